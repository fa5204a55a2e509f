//! Operations of administrators and owners, and their reports as text and JSON.
//!
//! Does: drains and rebalances devices, checks metadata and devices, rotates keys, issues, revokes
//! and lists credentials, reads audit logs, reports files and sessions; waits for the end of an
//! operation if the caller requests that.
//! Does not: parse arguments, print, or take signals.
//! Contract: an operation continues at the server when the caller stops waiting. The JSON of a
//! report is that of docs/reference/json.md.

mod accounts;
mod approval;
mod audit;
mod capability_files;
mod capacity;
mod check;
mod clock_report;
mod device_check;
mod devices;
mod drain;
mod function_status;
mod keys;
mod observer;
mod placement;
mod quotas;
mod rebalance;
mod revocation;
mod scrub;
mod session_report;
mod stat_report;

pub use accounts::{
    account_json, groups_json, groups_text, read_service_key, rotate_service_key, set_paper_passphrase,
    users_json, users_text,
};
pub use approval::{approval_json, approval_text};
pub use audit::{IssueReport, audit};
pub use capability_files::{
    DelegatedAccess, IssuedCapability, capability_json, capability_text, load_capability_files,
};
pub use capacity::CapacityReport;
pub use check::{CheckReport, CountReport, check, count_again, last_check};
pub use clock_report::clock_text;
pub use device_check::{DeviceCheckReport, check_device};
pub use devices::{device_of_name, fetch_device, required_device};
pub use drain::{DrainAction, DrainReport, drain};
pub use function_status::{function_status, function_status_text};
pub use keys::{KeyRotation, KeyRotationReport, KeysReport, list_keys, rotate_keys};
pub use observer::{OperationObserver, OperationUnit, WaitLimit};
pub use placement::PlacementReport;
pub use quotas::{quota_json, quotas_text};
pub use rebalance::{RebalanceAction, RebalanceReport, rebalance};
pub use revocation::{
    PartitionRevocation, RevocationList, RevocationReport, follow_revocation, list_revocations,
    revoke_partition,
};
pub use scrub::{ScrubAction, ScrubResult, scrub};
pub use session_report::{LogoutRevocation, whoami_json, whoami_text};
pub use stat_report::StatReport;
