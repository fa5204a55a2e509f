//! The public Rust API: files over objects.
//!
//! Does: [`Client`] stores, reads and names files. It talks to the metadata server over TLS and
//! directly to devices over iSCSI.
//! Does not: cache data (except [`nodes`]), or mount anything.
//! Contract: the logic uses the two traits [`Devices`] and [`Metadata`], tokio's timers, and an
//! [`Environment`] for wall clock and randomness. So a simulation runs all of it in one thread on
//! paused time.
//! Truth: docs/design/architecture.md §4; docs/standards/mds/README.md.

mod accounts;
mod attributes;
mod budget;
mod buffers;
mod capability_file;
mod checksum;
mod client;
mod delegated;
mod disks;
mod errno;
mod error;
mod failure;
pub mod functions;
mod get;
mod interfaces;
mod links;
mod map;
mod mds;
pub mod nodes;
mod open;
mod pool;
mod put;
mod quotas;
mod run_file;
mod service_key;
mod session_file;
pub mod tls;
mod tuning;

pub use accounts::EnrolmentCode;
pub use budget::{BUDGET_MAX, MemoryBudget, MemoryPermit};
pub use capability_file::{CAPABILITY_FILE_MAX, CapabilityDevice, CapabilityFile};
pub use client::{CONNECT_TIMEOUT, Client, DeviceConnectOptions, DiskFree, Listing, OpenFile, WhoAmI};
pub use delegated::{Delegated, Delegation, NoServer, Progress};
pub use disks::disk_name;
pub use errno::errno;
pub use error::ClientError;
pub use failure::function_failure;
pub use get::GetOptions;
pub use interfaces::{Devices, Metadata};
pub use mds::{
    ByteStream, MdsClient, MdsDial, MdsOptions, PaperOptions, PlainDial, SecureChannel, SessionTicket,
    TicketKeys, TlsDial,
};
pub use open::RENEW_BEFORE_MS;
pub use pool::{DevicePool, DialFactory};
pub use put::{PutOptions, StoredFile};
pub use quotas::{quota_of_tree, quota_of_user};
pub use run_file::{RUN_FILE_DATA_MAX, RUN_FILE_MAX, RunFile, RunFileMetadata};
pub use sealstone_initiator::{
    Environment, OsdError, OsdOptions, Proof, ProofError, Proofs, SystemEnvironment, chap,
};
pub use sealstone_login::paper::OakleyGroup as PaperGroup;
pub use sealstone_mds_protocol::login::Revoking;
pub use sealstone_mds_protocol::{
    AccountKind, CheckFinding, CheckPhase, CheckScope, CheckStatus, Checksum, ChecksumKind, ChosenDevice,
    CredentialHolder, Device, DeviceCondition, DeviceId, DeviceProblem, DirEntry, Drain as DrainState,
    FileKind, FilePath, FindingKind, Group, GroupName, IssueEntry, IssueKind, Layout, Method, Name,
    ObjectRef, PlacementRecord, ProblemKind, Quota, QuotaChange, QuotaCursor, QuotaDrift, QuotaSubject,
    Rebalance as RebalanceState, Revocation, RevocationTarget, Role, Stat, User, UserName, WaitingDevice,
    WidthBound,
};
pub use service_key::ServiceKey;
pub use session_file::{SESSION_FILE_MAX, SavedSession};
pub use tuning::{COMMAND_BYTES_MAX, COMMAND_BYTES_MIN, DEPTH_MAX, MEMORY_BYTES_MIN, SMALL_FILE_MAX, Tuning};
