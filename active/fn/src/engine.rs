//! The host of a function in an engine: safe wrappers of the calls in `osd.h`.
//!
//! Sequential reads and writes go through the engine's streams, which read ahead and write behind.
#![allow(unsafe_code, reason = "the calls of the engine have a C interface")]

use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::fmt::Display;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use sealstone_function_host::{FunctionCall, FunctionErrno, FunctionFailure, FunctionHost, LogLevel};

/// Major version of the interface that this SDK uses.
const API_MAJOR: u16 = 1;
/// Reads and writes of fewer bytes do not open a stream.
const STREAM_BYTES_MIN: u64 = 256 * 1024;

/// An object of a call: `struct osd_object` of `osd.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct EngineObject {
    /// Partition of the object.
    pub partition: u64,
    /// Number of the object; 0 for a partition.
    pub number: u64,
    /// Length at the start of the call, bytes.
    pub length: u64,
    /// Type of the object by its code in OSD-2: 02h partition, 40h collection, 80h user object.
    pub kind: u8,
    /// Rights: the first byte of the permissions of OSD-2.
    pub rights: u8,
    reserved: [u8; 6],
}

/// The argument of the entry point: `struct osd_call` of `osd.h`.
#[derive(Debug)]
#[repr(C)]
pub struct EngineCall {
    size: u32,
    api_major: u16,
    api_minor: u16,
    method_address: u64,
    arguments_address: u64,
    objects_address: u64,
    method_length: u32,
    arguments_length: u32,
    object_count: u32,
    timeout_ms: u32,
    result_bytes_max: u64,
    reserved: u64,
}

const _: () = assert!(size_of::<EngineObject>() == 32 && size_of::<EngineCall>() == 64);

// The names and types are rows of `active/function-abi/src/call.rs`.
#[cfg_attr(target_family = "wasm", link(wasm_import_module = "osd"))]
unsafe extern "C" {
    fn osd_read(object: u32, offset: u64, buffer: *mut c_void, capacity: usize) -> i64;
    fn osd_write(object: u32, offset: u64, data: *const c_void, length: usize) -> i64;
    fn osd_append(object: u32, data: *const c_void, length: usize) -> i64;
    safe fn osd_punch(object: u32, offset: u64, length: u64) -> i64;
    safe fn osd_length(object: u32) -> i64;
    fn osd_get_attribute(object: u32, page: u32, number: u32, buffer: *mut c_void, capacity: usize) -> i64;
    fn osd_set_attribute(object: u32, page: u32, number: u32, data: *const c_void, length: usize) -> i64;
    fn osd_list(object: u32, after: u64, numbers: *mut u64, capacity: usize) -> i64;
    fn osd_create(partition: u32, number: *mut u64) -> i64;
    safe fn osd_remove(object: u32) -> i64;
    safe fn osd_flush(object: u32) -> i64;
    safe fn osd_clear(object: u32, offset: u64, length: u64) -> i64;
    fn osd_create_collection(collection: u32, number: *mut u64) -> i64;
    safe fn osd_remove_collection(collection: u32, force: u32) -> i64;
    safe fn osd_add_member(collection: u32, object: u32) -> i64;
    safe fn osd_remove_member(collection: u32, object: u32) -> i64;
    safe fn osd_is_member(collection: u32, object: u32) -> i64;
    fn osd_result(data: *const c_void, length: usize) -> i64;
    fn osd_log(level: u32, text: *const u8, length: usize) -> i64;
    safe fn osd_progress(done: u64, total: u64) -> i64;
    safe fn osd_cancelled() -> i32;
    safe fn osd_clock() -> i64;
    safe fn osd_reader_open(object: u32, offset: u64, length: u64) -> i64;
    fn osd_reader_next(reader: i64, data: *mut *const c_void) -> i64;
    safe fn osd_reader_close(reader: i64) -> i64;
    safe fn osd_writer_open(object: u32, offset: u64) -> i64;
    fn osd_writer_buffer(writer: i64, data: *mut *mut c_void) -> i64;
    safe fn osd_writer_commit(writer: i64, length: u64) -> i64;
    safe fn osd_writer_close(writer: i64) -> i64;
}

/// Objects of the running call; an engine process runs one call at a time.
static OBJECTS: AtomicPtr<EngineObject> = AtomicPtr::new(ptr::null_mut());
static OBJECT_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Runs a function for a call of the engine; returns 0 or a negative error number.
///
/// # Safety
///
/// `call` and the addresses in it are valid until this returns, as the engine promises.
pub unsafe fn enter(
    call: *const EngineCall,
    function: fn(&mut FunctionCall<'_>) -> Result<(), FunctionFailure>,
) -> i64 {
    let invalid = -i64::from(FunctionErrno::INVALID.raw());
    // SAFETY: by the contract of this function, `call` is valid.
    let Some(call) = (unsafe { call.as_ref() }) else { return invalid };
    if call.api_major != API_MAJOR || (call.size as usize) < size_of::<EngineCall>() {
        return invalid;
    }
    // SAFETY: by the contract of this function, the addresses and lengths are valid.
    let (method, arguments) = unsafe {
        (
            slice_of(call.method_address, call.method_length),
            slice_of::<u8>(call.arguments_address, call.arguments_length),
        )
    };
    let Ok(method) = core::str::from_utf8(method) else { return invalid };
    OBJECTS.store(call.objects_address as usize as *mut EngineObject, Ordering::Relaxed);
    OBJECT_COUNT.store(call.object_count as usize, Ordering::Relaxed);
    let mut host = EngineHost::default();
    let outcome = FunctionCall::new(&mut host, method, arguments, call.object_count).run(function);
    OBJECT_COUNT.store(0, Ordering::Relaxed);
    outcome.map_or_else(|failure| -i64::from(failure.errno.raw()), |()| 0)
}

/// Returns a slice at an address of this memory.
///
/// # Safety
///
/// The address is that of `length` values, which nothing changes while the slice is used.
unsafe fn slice_of<'a, T>(address: u64, length: u32) -> &'a [T] {
    if length == 0 {
        return &[];
    }
    // SAFETY: by the contract of this function.
    unsafe { core::slice::from_raw_parts(address as usize as *const T, length as usize) }
}

/// Returns the objects of the running call; empty outside of a call.
#[must_use]
pub fn objects() -> Vec<EngineObject> {
    let count = OBJECT_COUNT.load(Ordering::Relaxed) as u32;
    // SAFETY: the count is positive only while `enter` runs, which has the engine's valid
    // addresses. Nothing writes to the objects, and the copy does not outlive the call.
    unsafe { slice_of(OBJECTS.load(Ordering::Relaxed) as usize as u64, count) }.to_vec()
}

/// Writes a panic to the log of the job.
pub fn log_panic(panic: &dyn Display) {
    EngineHost::default().log(LogLevel::Error, &panic.to_string());
}

/// Converts a result of a call.
fn check(result: i64) -> Result<u64, FunctionErrno> {
    u64::try_from(result)
        .map_err(|_| i32::try_from(result).map_or(FunctionErrno::IO, FunctionErrno::from_raw))
}

/// Appends bytes to an object; returns the offset of the first one.
pub fn append(object: u32, data: &[u8]) -> Result<u64, FunctionErrno> {
    // SAFETY: the call reads `data` only, until it returns.
    check(unsafe { osd_append(object, data.as_ptr().cast(), data.len()) })
}

/// Removes a range of bytes of an object; the bytes after it move down.
pub fn punch(object: u32, offset: u64, length: u64) -> Result<(), FunctionErrno> {
    check(osd_punch(object, offset, length)).map(drop)
}

/// Reads an attribute into the buffer; returns the length of its value, which may be larger.
pub fn get_attribute(object: u32, page: u32, number: u32, buffer: &mut [u8]) -> Result<usize, FunctionErrno> {
    // SAFETY: the call writes at most the length of `buffer`, until it returns.
    let length = unsafe { osd_get_attribute(object, page, number, buffer.as_mut_ptr().cast(), buffer.len()) };
    check(length).map(|length| length as usize)
}

/// Sets an attribute; no bytes remove it.
pub fn set_attribute(object: u32, page: u32, number: u32, value: &[u8]) -> Result<(), FunctionErrno> {
    // SAFETY: the call reads `value` only, until it returns.
    check(unsafe { osd_set_attribute(object, page, number, value.as_ptr().cast(), value.len()) }).map(drop)
}

/// Lists objects of a partition or collection with numbers above `after`; returns how many were
/// stored.
pub fn list(object: u32, after: u64, numbers: &mut [u64]) -> Result<usize, FunctionErrno> {
    // SAFETY: the call writes at most the length of `numbers`, until it returns.
    let count = check(unsafe { osd_list(object, after, numbers.as_mut_ptr(), numbers.len()) })?;
    Ok(numbers.len().min(count as usize))
}

/// Creates a user object in a partition; returns its handle and number.
pub fn create(partition: u32) -> Result<(u32, u64), FunctionErrno> {
    let mut number = 0;
    // SAFETY: the call writes one number, until it returns.
    let handle = check(unsafe { osd_create(partition, &raw mut number) })?;
    Ok((u32::try_from(handle).map_err(|_| FunctionErrno::IO)?, number))
}

/// Removes an object.
pub fn remove(object: u32) -> Result<(), FunctionErrno> {
    check(osd_remove(object)).map(drop)
}

/// Writes zeros to a range of bytes of an object, which is extended if it ends before.
pub fn clear(object: u32, offset: u64, length: u64) -> Result<(), FunctionErrno> {
    check(osd_clear(object, offset, length)).map(drop)
}

/// Creates a collection; returns its handle and number.
pub fn create_collection(collection: u32) -> Result<(u32, u64), FunctionErrno> {
    let mut number = 0;
    // SAFETY: the call writes one number, until it returns.
    let handle = check(unsafe { osd_create_collection(collection, &raw mut number) })?;
    Ok((u32::try_from(handle).map_err(|_| FunctionErrno::IO)?, number))
}

/// Removes a collection. With `force` its memberships end first, otherwise it must be empty.
pub fn remove_collection(collection: u32, force: bool) -> Result<(), FunctionErrno> {
    check(osd_remove_collection(collection, force.into())).map(drop)
}

/// Makes an object a member of a collection.
pub fn add_member(collection: u32, object: u32) -> Result<(), FunctionErrno> {
    check(osd_add_member(collection, object)).map(drop)
}

/// Ends the membership of an object in a collection.
pub fn remove_member(collection: u32, object: u32) -> Result<(), FunctionErrno> {
    check(osd_remove_member(collection, object)).map(drop)
}

/// Whether an object is a member of a collection.
pub fn is_member(collection: u32, object: u32) -> Result<bool, FunctionErrno> {
    check(osd_is_member(collection, object)).map(|is_member| is_member != 0)
}

/// Returns when the written bytes of an object survive a loss of power.
pub fn flush(object: u32) -> Result<(), FunctionErrno> {
    check(osd_flush(object)).map(drop)
}

/// Returns the device's time in milliseconds since 1970.
pub fn clock_ms() -> Result<u64, FunctionErrno> {
    check(osd_clock())
}

/// A stream that reads ahead.
struct ReadStream {
    stream: i64,
    object: u32,
    /// Offset of the next byte.
    position: u64,
    end: u64,
    /// Bytes that the engine has delivered and the function has not read.
    chunk: *const u8,
    chunk_length: usize,
}

impl Drop for ReadStream {
    fn drop(&mut self) {
        osd_reader_close(self.stream);
    }
}

impl ReadStream {
    /// Copies the next bytes; returns 0 at the end.
    fn next(&mut self, buffer: &mut [u8]) -> Result<usize, FunctionErrno> {
        if self.chunk_length == 0 {
            let mut chunk = ptr::null();
            // SAFETY: the call writes one address, until it returns.
            self.chunk_length = check(unsafe { osd_reader_next(self.stream, &raw mut chunk) })? as usize;
            self.chunk = chunk.cast();
        }
        let count = self.chunk_length.min(buffer.len());
        if count > 0 {
            // SAFETY: the engine delivered `chunk_length` bytes at `chunk`, which are valid until
            // the next call for this stream. The buffer is memory of this function, which the
            // engine does not deliver.
            unsafe {
                ptr::copy_nonoverlapping(self.chunk, buffer.as_mut_ptr(), count);
                self.chunk = self.chunk.add(count);
            }
        }
        self.chunk_length -= count;
        self.position += count as u64;
        Ok(count)
    }
}

/// A stream that writes behind.
struct WriteStream {
    stream: i64,
    object: u32,
    /// Offset of the next byte.
    position: u64,
}

impl WriteStream {
    fn open(object: u32, offset: u64) -> Result<Self, FunctionErrno> {
        let stream = check(osd_writer_open(object, offset))?.cast_signed();
        Ok(Self { stream, object, position: offset })
    }

    fn write(&mut self, data: &[u8]) -> Result<(), FunctionErrno> {
        let mut rest = data;
        while !rest.is_empty() {
            let mut buffer = ptr::null_mut();
            // SAFETY: the call writes one address, until it returns.
            let capacity = check(unsafe { osd_writer_buffer(self.stream, &raw mut buffer) })? as usize;
            let count = capacity.min(rest.len());
            if count == 0 {
                return Err(FunctionErrno::IO);
            }
            // SAFETY: the engine lent `capacity` bytes at `buffer` until the commit; `rest` is
            // memory of this function, which the engine does not lend.
            unsafe { ptr::copy_nonoverlapping(rest.as_ptr(), buffer.cast::<u8>(), count) };
            check(osd_writer_commit(self.stream, count as u64))?;
            self.position += count as u64;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Waits for all writes.
    fn close(self) -> Result<(), FunctionErrno> {
        check(osd_writer_close(self.stream)).map(drop)
    }
}

/// The host of a function in an engine.
#[derive(Default)]
struct EngineHost {
    reader: Option<ReadStream>,
    writer: Option<WriteStream>,
    /// Error of a delayed write that no call has returned yet.
    delayed: Option<FunctionErrno>,
}

impl EngineHost {
    /// Completes delayed writes of an object before another access to it.
    fn complete_writes(&mut self, object: u32) -> Result<(), FunctionErrno> {
        match self.writer.take_if(|writer| writer.object == object) {
            Some(writer) => writer.close(),
            None => Ok(()),
        }
    }
}

impl Drop for EngineHost {
    fn drop(&mut self) {
        // A failed function leaves a writer; its error is not reported, as the function reports
        // another one.
        if let Some(writer) = self.writer.take() {
            osd_writer_close(writer.stream);
        }
    }
}

impl FunctionHost for EngineHost {
    fn read(&mut self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, FunctionErrno> {
        self.complete_writes(object)?;
        if let Some(reader) = &mut self.reader {
            if reader.object == object && reader.position == offset && offset < reader.end {
                return reader.next(buffer);
            }
            self.reader = None;
        }
        // SAFETY: the call writes at most the length of `buffer`, until it returns.
        let count = check(unsafe { osd_read(object, offset, buffer.as_mut_ptr().cast(), buffer.len()) })?;
        Ok(buffer.len().min(count as usize))
    }

    fn write(&mut self, object: u32, offset: u64, data: &[u8]) -> Result<(), FunctionErrno> {
        // Bytes that were read ahead may be those that change.
        self.reader.take_if(|reader| reader.object == object);
        let continues = |writer: &WriteStream| writer.object == object && writer.position == offset;
        if !self.writer.as_ref().is_some_and(continues) {
            if let Some(writer) = self.writer.take() {
                writer.close()?;
            }
            if (data.len() as u64) < STREAM_BYTES_MIN {
                // SAFETY: the call reads `data` only, until it returns.
                return check(unsafe { osd_write(object, offset, data.as_ptr().cast(), data.len()) })
                    .map(drop);
            }
            self.writer = Some(WriteStream::open(object, offset)?);
        }
        self.writer.as_mut().map_or(Err(FunctionErrno::IO), |writer| writer.write(data))
    }

    fn length(&mut self, object: u32) -> Result<u64, FunctionErrno> {
        self.complete_writes(object)?;
        check(osd_length(object))
    }

    fn result(&mut self, data: &[u8]) -> Result<(), FunctionErrno> {
        // SAFETY: the call reads `data` only, until it returns.
        check(unsafe { osd_result(data.as_ptr().cast(), data.len()) }).map(drop)
    }

    fn log(&mut self, level: LogLevel, text: &str) {
        let level = match level {
            LogLevel::Error => 1,
            LogLevel::Warning => 2,
            LogLevel::Info => 3,
        };
        // SAFETY: the call reads `text` only, until it returns. A log that is full is not an error.
        unsafe { osd_log(level, text.as_ptr(), text.len()) };
    }

    fn progress(&mut self, done: u64, total: u64) {
        osd_progress(done, total);
    }

    fn is_cancelled(&self) -> bool {
        osd_cancelled() != 0
    }

    fn read_ahead(&mut self, object: u32, offset: u64, length: u64) {
        self.reader = None;
        if length < STREAM_BYTES_MIN {
            return;
        }
        if let Err(errno) = self.complete_writes(object) {
            self.delayed = Some(errno);
            return;
        }
        // Without a stream, reads are requested one by one.
        if let Ok(stream) = check(osd_reader_open(object, offset, length)) {
            let end = offset.saturating_add(length);
            self.reader = Some(ReadStream {
                stream: stream.cast_signed(),
                object,
                position: offset,
                end,
                chunk: ptr::null(),
                chunk_length: 0,
            });
        }
    }

    fn finish(&mut self) -> Result<(), FunctionErrno> {
        self.reader = None;
        let closed = self.writer.take().map_or(Ok(()), WriteStream::close);
        self.delayed.take().map_or(closed, Err)
    }
}
