//! The calls of `osd.h`, as functions of this program with the C calling convention.
//!
//! Contract: pointers of the function are used only until the call returns. A call outside of
//! `osd_main`, or from a second thread at the same time, fails.
#![allow(unsafe_code, reason = "the C interface: exported names and pointers of the function")]
#![allow(unreachable_pub, reason = "loaded functions reach these names")]

use std::ffi::{c_char, c_void};
use std::slice;

use sealstone_function_abi::CallErrno;
use sealstone_function_ring::{ProcessRing, StreamId};

/// The ring of this process.
pub(crate) static RING: ProcessRing = ProcessRing::new();

/// Converts an outcome to the result of a call: a number, or a negative error number.
fn result<T: TryInto<i64>>(outcome: Result<T, CallErrno>) -> i64 {
    let number = outcome.and_then(|value| value.try_into().map_err(|_| CallErrno::TooLarge));
    number.unwrap_or_else(CallErrno::result)
}

fn unit(outcome: Result<(), CallErrno>) -> i64 {
    result(outcome.map(|()| 0))
}

/// Returns a slice of the function's memory to read; `EINVAL` for null or an impossible length.
///
/// # Safety
///
/// The function promises that the bytes are readable and do not change until the call returns.
unsafe fn bytes_in<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], CallErrno> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() || length > isize::MAX as usize {
        return Err(CallErrno::Invalid);
    }
    // SAFETY: not null, not longer than any allocation; the rest is the promise of the caller.
    Ok(unsafe { slice::from_raw_parts(data.cast(), length) })
}

/// Returns a slice of the function's memory to fill; `EINVAL` for null, a wrong alignment or an
/// impossible length.
///
/// # Safety
///
/// The function promises that nothing else uses the values until the call returns.
unsafe fn values_out<'a, T>(data: *mut T, count: usize) -> Result<&'a mut [T], CallErrno> {
    if count == 0 {
        return Ok(&mut []);
    }
    let is_possible = count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    if data.is_null() || !data.is_aligned() || !is_possible {
        return Err(CallErrno::Invalid);
    }
    // SAFETY: not null, aligned, not longer than any allocation; the rest is the promise of the
    // caller. Every bit pattern is valid, since `T` is an integer in all uses.
    Ok(unsafe { slice::from_raw_parts_mut(data, count) })
}

/// Stores a value unless the address is null.
///
/// # Safety
///
/// The address is null, or writable for one value.
unsafe fn store<T>(address: *mut T, value: T) {
    if !address.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { address.write_unaligned(value) };
    }
}

/// Reads bytes of an object.
///
/// # Safety
///
/// `buffer` is writable for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_read(object: u32, offset: u64, buffer: *mut c_void, capacity: usize) -> i64 {
    // SAFETY: the promise of this function's caller.
    let buffer = unsafe { values_out(buffer.cast::<u8>(), capacity) };
    result(buffer.and_then(|buffer| RING.with(|ring| ring.read(object, offset, buffer))))
}

/// Writes bytes of an object.
///
/// # Safety
///
/// `data` is readable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_write(object: u32, offset: u64, data: *const c_void, length: usize) -> i64 {
    // SAFETY: the promise of this function's caller.
    let data = unsafe { bytes_in(data, length) };
    result(data.and_then(|data| RING.with(|ring| ring.write(object, offset, data))))
}

/// Appends bytes to an object.
///
/// # Safety
///
/// `data` is readable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_append(object: u32, data: *const c_void, length: usize) -> i64 {
    // SAFETY: the promise of this function's caller.
    let data = unsafe { bytes_in(data, length) };
    result(data.and_then(|data| RING.with(|ring| ring.append(object, data))))
}

/// Removes a range of bytes of an object.
#[unsafe(no_mangle)]
pub extern "C" fn osd_punch(object: u32, offset: u64, length: u64) -> i64 {
    unit(RING.with(|ring| ring.punch(object, offset, length)))
}

/// Returns the length of an object.
#[unsafe(no_mangle)]
pub extern "C" fn osd_length(object: u32) -> i64 {
    result(RING.with(|ring| ring.length(object)))
}

/// Reads an attribute.
///
/// # Safety
///
/// `buffer` is writable for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_get_attribute(
    object: u32,
    page: u32,
    number: u32,
    buffer: *mut c_void,
    capacity: usize,
) -> i64 {
    // SAFETY: the promise of this function's caller.
    let buffer = unsafe { values_out(buffer.cast::<u8>(), capacity) };
    result(buffer.and_then(|buffer| RING.with(|ring| ring.get_attribute(object, page, number, buffer))))
}

/// Sets an attribute.
///
/// # Safety
///
/// `data` is readable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_set_attribute(
    object: u32,
    page: u32,
    number: u32,
    data: *const c_void,
    length: usize,
) -> i64 {
    // SAFETY: the promise of this function's caller.
    let data = unsafe { bytes_in(data, length) };
    unit(data.and_then(|data| RING.with(|ring| ring.set_attribute(object, page, number, data))))
}

/// Lists object numbers.
///
/// # Safety
///
/// `numbers` is writable for `capacity` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_list(object: u32, after: u64, numbers: *mut u64, capacity: usize) -> i64 {
    // SAFETY: the promise of this function's caller.
    let numbers = unsafe { values_out(numbers, capacity) };
    result(numbers.and_then(|numbers| RING.with(|ring| ring.list(object, after, numbers))))
}

/// Creates an object.
///
/// # Safety
///
/// `number` is null or writable for one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_create(partition: u32, number: *mut u64) -> i64 {
    result(RING.with(|ring| ring.create(partition)).map(|(handle, created)| {
        // SAFETY: the promise of this function's caller.
        unsafe { store(number, created) };
        handle
    }))
}

/// Removes an object.
#[unsafe(no_mangle)]
pub extern "C" fn osd_remove(object: u32) -> i64 {
    unit(RING.with(|ring| ring.remove(object)))
}

/// Makes the written bytes of an object durable.
#[unsafe(no_mangle)]
pub extern "C" fn osd_flush(object: u32) -> i64 {
    unit(RING.with(|ring| ring.flush(object)))
}

/// Writes zeros to a range of bytes of an object.
#[unsafe(no_mangle)]
pub extern "C" fn osd_clear(object: u32, offset: u64, length: u64) -> i64 {
    unit(RING.with(|ring| ring.clear(object, offset, length)))
}

/// Creates a collection.
///
/// # Safety
///
/// `number` is null or writable for one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_create_collection(collection: u32, number: *mut u64) -> i64 {
    result(RING.with(|ring| ring.create_collection(collection)).map(|(handle, created)| {
        // SAFETY: the promise of this function's caller.
        unsafe { store(number, created) };
        handle
    }))
}

/// Removes a collection.
#[unsafe(no_mangle)]
pub extern "C" fn osd_remove_collection(collection: u32, force: u32) -> i64 {
    unit(RING.with(|ring| ring.remove_collection(collection, force)))
}

/// Makes an object a member of a collection.
#[unsafe(no_mangle)]
pub extern "C" fn osd_add_member(collection: u32, object: u32) -> i64 {
    unit(RING.with(|ring| ring.add_member(collection, object)))
}

/// Ends the membership of an object in a collection.
#[unsafe(no_mangle)]
pub extern "C" fn osd_remove_member(collection: u32, object: u32) -> i64 {
    unit(RING.with(|ring| ring.remove_member(collection, object)))
}

/// Returns whether an object is a member of a collection.
#[unsafe(no_mangle)]
pub extern "C" fn osd_is_member(collection: u32, object: u32) -> i64 {
    result(RING.with(|ring| ring.is_member(collection, object)))
}

/// Appends bytes to the result.
///
/// # Safety
///
/// `data` is readable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_result(data: *const c_void, length: usize) -> i64 {
    // SAFETY: the promise of this function's caller.
    let data = unsafe { bytes_in(data, length) };
    unit(data.and_then(|data| RING.with(|ring| ring.result(data))))
}

/// Writes a line to the log.
///
/// # Safety
///
/// `text` is readable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_log(level: u32, text: *const c_char, length: usize) -> i64 {
    // SAFETY: the promise of this function's caller.
    let text = unsafe { bytes_in(text.cast(), length) };
    unit(text.and_then(|text| RING.with(|ring| ring.log(level, text))))
}

/// Reports progress.
#[unsafe(no_mangle)]
pub extern "C" fn osd_progress(done: u64, total: u64) -> i64 {
    unit(RING.with(|ring| ring.progress(done, total)))
}

/// Returns 1 if the job was cancelled.
#[unsafe(no_mangle)]
pub extern "C" fn osd_cancelled() -> i32 {
    RING.with(|ring| Ok(ring.is_cancelled())).is_ok_and(|is_cancelled| is_cancelled).into()
}

/// Returns the time of the device in milliseconds since 1970.
#[unsafe(no_mangle)]
pub extern "C" fn osd_clock() -> i64 {
    result(RING.with(|ring| Ok(ring.clock_ms())))
}

/// Opens a stream that reads ahead.
#[unsafe(no_mangle)]
pub extern "C" fn osd_reader_open(object: u32, offset: u64, length: u64) -> i64 {
    result(RING.with(|ring| ring.open_reader(object, offset, length)).map(StreamId::number))
}

/// Returns the next bytes of a stream.
///
/// # Safety
///
/// `data` is null or writable for one pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_reader_next(reader: i64, data: *mut *const c_void) -> i64 {
    result(RING.with(|ring| {
        let range = ring.read_next(StreamId::from_number(reader))?;
        let address = ring.heap_address(range).ok_or(CallErrno::InputOutput)?;
        // SAFETY: the promise of this function's caller.
        unsafe { store(data, address.as_ptr().cast_const().cast()) };
        Ok(range.length())
    }))
}

/// Closes a stream that reads.
#[unsafe(no_mangle)]
pub extern "C" fn osd_reader_close(reader: i64) -> i64 {
    unit(RING.with(|ring| ring.close_stream(StreamId::from_number(reader), false)))
}

/// Opens a stream that writes behind.
#[unsafe(no_mangle)]
pub extern "C" fn osd_writer_open(object: u32, offset: u64) -> i64 {
    result(RING.with(|ring| ring.open_writer(object, offset)).map(StreamId::number))
}

/// Returns a free buffer of a stream.
///
/// # Safety
///
/// `data` is null or writable for one pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osd_writer_buffer(writer: i64, data: *mut *mut c_void) -> i64 {
    result(RING.with(|ring| {
        let range = ring.write_buffer(StreamId::from_number(writer))?;
        let address = ring.heap_address(range).ok_or(CallErrno::InputOutput)?;
        // SAFETY: the promise of this function's caller.
        unsafe { store(data, address.as_ptr().cast()) };
        Ok(range.length())
    }))
}

/// Writes the first bytes of the buffer of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn osd_writer_commit(writer: i64, length: u64) -> i64 {
    unit(RING.with(|ring| ring.commit_buffer(StreamId::from_number(writer), length)))
}

/// Waits for the writes of a stream and closes it.
#[unsafe(no_mangle)]
pub extern "C" fn osd_writer_close(writer: i64) -> i64 {
    unit(RING.with(|ring| ring.close_stream(StreamId::from_number(writer), true)))
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn calls_outside_a_call_fail() {
        let mut byte = 0u8;
        // SAFETY: the buffer is one byte, and the other addresses are null.
        let results = unsafe {
            [
                osd_read(0, 0, (&raw mut byte).cast(), 1),
                osd_create(0, ptr::null_mut()),
                osd_reader_next(0, ptr::null_mut()),
            ]
        };
        assert_eq!(results, [CallErrno::BadHandle.result(); 3]);
        assert_eq!((osd_length(0), osd_cancelled()), (CallErrno::BadHandle.result(), 0));
    }

    #[test]
    fn impossible_buffers_are_refused() {
        let invalid = CallErrno::Invalid.result();
        // SAFETY: null and impossible lengths are refused before any access.
        unsafe {
            assert_eq!(osd_read(0, 0, ptr::null_mut(), 1), invalid);
            assert_eq!(osd_write(0, 0, ptr::without_provenance(8), usize::MAX), invalid);
            assert_eq!(osd_list(0, 0, ptr::without_provenance_mut(4), 1), invalid);
            assert_eq!(osd_list(0, 0, ptr::without_provenance_mut(8), usize::MAX / 8), invalid);
        }
    }
}
