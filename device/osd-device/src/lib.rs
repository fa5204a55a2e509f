//! The OSD logical unit: command table, checks, attribute engine, handlers.
//!
//! Does: execute SCSI commands on an object store.
//! Does not: transport; the target passes commands and replies through
//! `sealstone_scsi::lu::LogicalUnit`.
//! Contract: there is one path to data. Bytes become a typed command, the admission check yields a
//! permit, and only a permit reaches a handler. Every refusal has its sense data and its audit
//! record.
//! Truth: T10/1355-D and T10/1729-D as recorded in `docs/standards/osd.md`; docs/design/security.md
//! section 3.

mod attributes;
pub mod audit;
pub mod boot;
mod cache;
mod catalog;
mod change_cache;
mod clock;
mod commands;
mod continued;
mod cost;
mod damage;
mod device;
mod device_facts;
mod digests;
mod duplicates;
mod environment;
mod execute;
mod failure;
pub mod folder;
mod function_fields;
mod function_runner;
mod functions;
mod guard;
mod hashing;
pub mod inspect;
mod isolation;
pub mod keyfile;
mod keyring;
mod locks;
mod metrics;
mod nexus;
mod paper;
mod partition_locks;
mod partition_policy;
pub mod provision;
mod report;
mod running;
mod scrub;
mod scrub_pass;
pub mod sim;
mod source;
mod spc;
mod stored_code;
mod stranded;
mod timestamps;
mod tracking;
mod tracking_page;
mod unit;
mod worker;

pub use audit::{AuditRecord, AuditSink, AuditVerdict, NoAudit, Principal};
pub use damage::{Damage, Range};
pub use device::OsdConfig;
pub use environment::DeviceEnvironment;
pub use function_runner::{
    CodeRequest, CodeReservation, EngineInfo, FunctionCall, FunctionCaller, FunctionCode, FunctionRefusal,
    FunctionRunner, GrantError, GrantedList, GrantedObject, JobCall,
};
pub use guard::{LeaseStore, VolatileLease};
pub use hashing::HashingCount;
pub use keyring::{KeyRecord, KeyStore, KeyringError, VolatileKeys};
pub use metrics::{CommandCount, Metrics};
pub use nexus::TOKEN_LEN;
pub use provision::{DataDir, DeviceIdentity, ProvisionError};
pub use scrub::{ScrubState, ScrubStep};
pub use scrub_pass::UnreadObject;
pub use unit::{DeviceParts, DeviceUsage, OsdUnit, StartError, UpkeepError, WorkCounts};
pub use worker::Worker;
