//! Limits of memory and parallelism of transfers.

/// Bytes that are read before a file is created; a file up to this size is not striped.
pub const SMALL_FILE_MAX: usize = 512 * 1024;
/// Largest configurable command size, in bytes.
pub const COMMAND_BYTES_MAX: usize = 8 << 20;
/// Smallest configurable command size, in bytes.
pub const COMMAND_BYTES_MIN: usize = 4096;
/// Smallest configurable memory, in bytes: the first bytes of two files.
pub const MEMORY_BYTES_MIN: usize = 2 * SMALL_FILE_MAX;
/// Largest configurable number of commands in flight for one object.
pub const DEPTH_MAX: usize = 64;

/// Limits of transfers. Values outside their bounds are clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Maximum bytes of file data in memory, over all transfers of a client.
    pub memory_bytes: usize,
    /// Bytes of one READ or WRITE, a power of two.
    pub command_bytes: usize,
    /// Maximum commands in flight for one object of a file.
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
