//! The iSCSI target shell: sockets, buffers and limits around the protocol state machine.
//!
//! Does: accept connections within limits of number and rate, count failed logins, drive one
//! `sealstone_iscsi::target_side::TargetConnection` each, run commands on logical units, keep
//! sessions apart, bound memory and time, count events.
//! Does not: implement SCSI commands, except REPORT LUNS and INQUIRY of a LUN that does not exist.
//! Contract: [`IscsiTarget::serve`] returns after `shutdown`, when every connection has ended.
//! Truth: RFC 7143 through `sealstone-iscsi`; SAM-5 §4.6 (LUNs); docs/standards/iscsi.md.

mod block_seals;
mod config;
mod connection;
mod counters;
mod heavy;
mod luns;
mod mailbox;
mod pool;
mod protection;
mod refusals;
mod server;
mod sessions;
mod sources;
mod throttle;
mod tls;

pub use config::{CommandPacing, ConfigError, MonotonicClock, TargetConfig};
pub use counters::{Counter, TargetCounters};
pub use pool::{BufferPool, BufferShare};
pub use refusals::{EVERY_MS as REFUSALS_EVERY_MS, OTHERS, RefusalRecord, RefusalSink, RefusalSinkHandle};
pub use server::IscsiTarget;
pub use sources::ConnectionRate;
pub use throttle::{FAILURE_WINDOW_MS, FAILURES_MAX, RandomSource};
pub use tls::{ListenerTls, TlsMode};
