//! State of a unit, as `block status` and the metrics show it.

/// State of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LazyStatus {
    /// Unverified versions.
    pub unverified: usize,
    /// Age of the oldest unverified version in milliseconds.
    pub oldest_ms: u64,
    /// Longest time in milliseconds from a write to its verification.
    pub window_max_ms: u64,
    /// The same time, which 99 of 100 versions did not exceed.
    pub window_p99_ms: u64,
    /// Bytes of the version log.
    pub log_bytes: u64,
    /// Capacity of the version log.
    pub log_bytes_max: u64,
    /// Versions that were verified.
    pub verified: u64,
    /// Acknowledged writes that were deleted because they were not authentic.
    pub rejected: u64,
    /// Deleted writes that the caller did not take in time.
    pub rejected_dropped: u64,
    /// Writes that were verified at once.
    pub eager: u64,
    /// Writes that were refused because the log was full.
    pub busy: u64,
    /// Reports of damaged reads whose version is intact at the target.
    pub false_reports: u64,
    /// Blocks of which keys, versions or data on the medium are damaged.
    pub unverifiable: usize,
    /// Pages of keys in memory.
    pub cached_pages: usize,
    /// Epoch of the unit's key; 0 for the paper's profiles.
    pub key_epoch: u32,
}
