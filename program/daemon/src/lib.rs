//! Common parts of device server and metadata server: ports, clocks, audit log, metrics.
//!
//! Does: binds ports, checks data folders, follows and stores clocks, writes the audit log, serves
//! `/metrics` and `/healthz`, forbids core dumps.
//! Does not: parse options, print, take signals or end the process; the program does.
//! Contract: a part that runs until a [`Shutdown`] ends in order after it.
//! Truth: docs/standards/time.md; docs/reference/files.md (audit log).

mod audit_file;
mod audit_log;
mod audit_rate_limit;
mod audit_shares;
pub mod core_dumps;
pub mod machine;
pub mod machine_clock;
pub mod metrics;
mod ports;
mod shutdown;
pub mod time;

pub use audit_file::{AUDIT_LOST_FILE, SESSION_DIGITS, segments as audit_segments};
pub use audit_log::{AUDIT_FILE, AuditLog, AuditState, truncate_text};
pub use audit_rate_limit::RecordKind;
pub use audit_shares::RecordSubject;
pub use ports::{MetricsPort, bind, check_data_folder};
pub use shutdown::{Shutdown, ShutdownTrigger};
