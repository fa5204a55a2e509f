//! The iSCSI target shell: sockets, buffers, budgets around the state machine.
//!
//! Does: accept connections up to limits and not faster than these say, count failed logins, drive one `sealstone_iscsi::target::Connection` each, run commands on
//! logical units, keep sessions apart, bound memory and time, count. Does not: know any SCSI command but REPORT LUNS
//! and INQUIRY of a LUN that is not there.
//! Contract: [`Target::serve`] returns after `shutdown`, when every connection is gone.
//! Truth: RFC 7143 through `sealstone-iscsi`; SAM-5 §4.6 (LUNs); docs/standards/iscsi.md.

mod arrivals;
mod config;
mod connection;
mod counters;
mod door;
mod heavy;
mod luns;
mod mailbox;
mod pool;
mod server;
mod sessions;
mod tls;
mod watch;

pub use arrivals::Rate;
pub use config::{Clock, Config, ConfigError, Pace};
pub use counters::{Counter, Counters};
pub use door::{FAILURE_WINDOW_MS, FAILURES_MAX, Random};
pub use pool::{Memory, Share};
pub use server::Target;
pub use tls::{Mode as TlsMode, Tls};
pub use watch::{EVERY_MS as REFUSALS_EVERY_MS, OTHERS, Refused, Watch, Watcher};
