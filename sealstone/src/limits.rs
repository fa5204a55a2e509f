//! Limits that options and daemons share.

/// Time in which a device that was added becomes usable, in seconds.
pub(crate) const JOIN_S_MAX: u64 = 30;
