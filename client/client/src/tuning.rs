//! How much memory and parallelism transfers use.

/// Bytes read from a source before its file is created: what fits needs no stripes.
pub const SMALL_FILE_MAX: usize = 512 * 1024;
/// The largest command size that can be configured, bytes.
pub const COMMAND_BYTES_MAX: usize = 8 << 20;
/// The smallest command size that can be configured, bytes.
pub const COMMAND_BYTES_MIN: usize = 4096;
/// The least memory that can be configured, bytes: two files at their beginning.
pub const MEMORY_BYTES_MIN: usize = 2 * SMALL_FILE_MAX;
/// The most commands under way for one object that can be configured.
pub const DEPTH_MAX: usize = 64;

/// Limits of transfers. Values outside the limits named above are brought inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Bytes of file data that all transfers of a client hold at most.
    pub memory_bytes: usize,
    /// Bytes of one READ or WRITE, a power of two.
    pub command_bytes: usize,
    /// Commands under way for one object of a file.
    pub depth: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { memory_bytes: 64 << 20, command_bytes: 1 << 20, depth: 4 }
    }
}

impl Tuning {
    pub(crate) fn bounded(self) -> Self {
        let command_bytes = self.command_bytes.clamp(COMMAND_BYTES_MIN, COMMAND_BYTES_MAX);
        Self {
            memory_bytes: self.memory_bytes.clamp(MEMORY_BYTES_MIN, crate::BUDGET_MAX),
            command_bytes: 1 << command_bytes.ilog2(),
            depth: self.depth.clamp(1, DEPTH_MAX),
        }
    }
}
