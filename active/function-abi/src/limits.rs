//! Limits of a call. Each has its unit in its name.

/// Slots of the submission ring, and maximum number of requests in flight.
pub const RING_SLOTS: u32 = 64;
/// Size of one buffer of the heap, in bytes; streams use whole buffers.
pub const BUFFER_BYTES: u32 = 1 << 20;
/// Size of the heap unless the device says otherwise, in bytes.
pub const HEAP_BYTES: u64 = 64 << 20;
/// Maximum size of a heap, in bytes.
pub const HEAP_BYTES_MAX: u64 = 1 << 30;
/// Minimum size of a heap, in bytes: what one request and one stream can use.
pub const HEAP_BYTES_MIN: u64 = 8 << 20;
/// Maximum bytes that one request moves.
pub const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// Maximum bytes of a method name.
pub const METHOD_BYTES_MAX: usize = 64;
/// Maximum bytes of the arguments of a call.
pub const ARGUMENT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of objects that a call starts with.
pub const OBJECTS_MAX: usize = 64;
/// Maximum number of handles of a call, those of created objects included.
pub const HANDLES_MAX: u32 = 4096;
/// Maximum bytes of an attribute value.
pub const ATTRIBUTE_BYTES_MAX: u32 = 65534;
/// Maximum bytes of one line of the log.
pub const LOG_LINE_BYTES_MAX: u32 = 4096;
/// Maximum number of object numbers that one `osd_list` returns.
pub const LIST_ENTRIES_MAX: u32 = 65536;
/// Maximum number of streams that are open at the same time in one call.
pub const STREAMS_MAX: usize = 8;
/// Buffers that a stream keeps in flight.
pub const STREAM_BUFFERS: usize = 2;
