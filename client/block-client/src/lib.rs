//! Sessions to block units: a disk behind iSCSI as an asynchronous object.
//!
//! Does: logs in, reads and writes with many commands in flight, flushes, unmaps, and repeats
//! commands after a lost connection. Reports acknowledged writes that the target lost.
//! Does not: cache data, or interpret it.
//! Contract: bytes are those of the unit, in whole blocks. Every command is idempotent, and is
//! repeated on the session that sent it first.
//! Truth: SBC-3 and docs/standards/block.md; RFC 7143 §6.3.5 (session reinstatement).

mod buffer_pool;
mod command;
pub mod e2e;
mod error;
mod flush;
mod limits;
mod options;
mod unit;
mod unit_path;
mod verified_read;

pub use buffer_pool::BufferPool;
pub use command::{AllocationExtent, CapacityData, StatusListError, parse_capacity, parse_lba_status};
pub use error::BlockError;
pub use flush::FlushCursor;
pub use limits::{UnitGeometry, UnitIdentity};
pub use options::{RECOVERY_TIMEOUT_DEFAULT, SESSIONS_MAX, UnitClientOptions};
pub use unit::{BlockUnitClient, ZeroMode};
