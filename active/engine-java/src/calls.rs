//! Native methods of `EngineHost`: the calls of the interface for the Java code above it.
//!
//! Contract: every number and every length of Java is checked here or in the ring. A negative
//! result is an error number. A call outside of `run`, or during another one, fails.
#![allow(unsafe_code, reason = "parameters that the virtual machine passes")]

use std::ptr;
use std::sync::OnceLock;

use jni_sys::{JNIEnv, jboolean, jbyteArray, jint, jlong, jlongArray, jobject, jstring};
use sealstone_function_abi::CallErrno;
use sealstone_function_abi::limits::{
    ATTRIBUTE_BYTES_MAX, BUFFER_BYTES, LOG_LINE_BYTES_MAX, REQUEST_BYTES_MAX,
};
use sealstone_function_ring::{ProcessRing, StreamId};
use sealstone_java_archive::JavaArchive;
use sealstone_java_archive::limits::NAME_BYTES_MAX;

use crate::machine::{ByteArray, NativeEnvironment, NativeMethod};

/// Bytes that one part of a read or write copies through private memory.
const PART_BYTES: usize = BUFFER_BYTES as usize;
/// Maximum numbers that one `list` returns.
const LIST_NUMBERS_MAX: usize = 4096;

/// The ring of this process.
pub(crate) static RING: ProcessRing = ProcessRing::new();
/// The JAR file of the function.
pub(crate) static ARCHIVE: OnceLock<JavaArchive<'static>> = OnceLock::new();

type CallResult = Result<i64, CallErrno>;

/// Converts an outcome to a result.
fn result(outcome: CallResult) -> jlong {
    outcome.unwrap_or_else(CallErrno::result)
}

fn nothing(outcome: Result<(), CallErrno>) -> jlong {
    result(outcome.map(|()| 0))
}

fn number(outcome: Result<u64, CallErrno>) -> jlong {
    result(outcome.and_then(|value| i64::try_from(value).map_err(|_| CallErrno::TooLarge)))
}

fn handle(object: jint) -> Result<u32, CallErrno> {
    u32::try_from(object).map_err(|_| CallErrno::BadHandle)
}

fn unsigned(value: jlong) -> Result<u64, CallErrno> {
    u64::try_from(value).map_err(|_| CallErrno::Invalid)
}

fn index(value: jint) -> Result<usize, CallErrno> {
    usize::try_from(value).map_err(|_| CallErrno::Invalid)
}

/// Returns the range of an array that a call names.
fn range(
    array: Option<ByteArray>,
    start: jint,
    length: jint,
) -> Result<(ByteArray, usize, usize), CallErrno> {
    let (start, length) = (index(start)?, index(length)?);
    let array = array.filter(|array| array.contains(start, length)).ok_or(CallErrno::Invalid)?;
    Ok((array, start, length))
}

/// Returns a copy of a range with at most `bytes_max` bytes.
fn copied(
    array: Option<ByteArray>,
    start: jint,
    length: jint,
    bytes_max: usize,
) -> Result<Vec<u8>, CallErrno> {
    let (array, start, length) = range(array, start, length)?;
    if length > bytes_max {
        return Err(CallErrno::TooLarge);
    }
    array.copied(start, length).ok_or(CallErrno::Invalid)
}

/// Returns a copy of a whole array.
fn whole(array: Option<ByteArray>, bytes_max: usize) -> Result<Vec<u8>, CallErrno> {
    let length = array.ok_or(CallErrno::Invalid)?.length().min(jint::MAX as usize);
    copied(array, 0, length as jint, bytes_max)
}

fn read_range(object: jint, offset: jlong, into: Option<ByteArray>, start: jint, length: jint) -> CallResult {
    let (object, offset) = (handle(object)?, unsigned(offset)?);
    let (array, start, length) = range(into, start, length)?;
    let mut buffer = vec![0; length.min(PART_BYTES)];
    let mut done = 0;
    loop {
        let part = (length - done).min(PART_BYTES);
        let position = offset.checked_add(done as u64).ok_or(CallErrno::Invalid)?;
        let count = RING.with(|ring| ring.read(object, position, &mut buffer[..part]))?;
        array.store(start + done, &buffer[..count]);
        done += count;
        if count < part || done == length {
            return Ok(done as i64);
        }
    }
}

fn write_range(
    object: jint,
    offset: jlong,
    from: Option<ByteArray>,
    start: jint,
    length: jint,
) -> CallResult {
    let (object, offset) = (handle(object)?, unsigned(offset)?);
    let (array, start, length) = range(from, start, length)?;
    let mut buffer = vec![0; length.min(PART_BYTES)];
    let mut done = 0;
    loop {
        let part = (length - done).min(PART_BYTES);
        array.load(start + done, &mut buffer[..part]);
        let position = offset.checked_add(done as u64).ok_or(CallErrno::Invalid)?;
        RING.with(|ring| ring.write(object, position, &buffer[..part]))?;
        done += part;
        if done == length {
            return Ok(done as i64);
        }
    }
}

fn append_range(object: jint, from: Option<ByteArray>, start: jint, length: jint) -> Result<u64, CallErrno> {
    let object = handle(object)?;
    let data = copied(from, start, length, REQUEST_BYTES_MAX as usize)?;
    RING.with(|ring| ring.append(object, &data))
}

fn get_attribute_value(object: jint, page: jint, attribute: jint, into: Option<ByteArray>) -> CallResult {
    let object = handle(object)?;
    let array = into.ok_or(CallErrno::Invalid)?;
    let mut value = vec![0; array.length().min(ATTRIBUTE_BYTES_MAX as usize)];
    // Java has no unsigned numbers: pages above 2^31 are negative ones.
    let (page, attribute) = (page.cast_unsigned(), attribute.cast_unsigned());
    let length = RING.with(|ring| ring.get_attribute(object, page, attribute, &mut value))?;
    array.store(0, &value[..length.min(value.len())]);
    Ok(length as i64)
}

fn set_attribute_value(
    object: jint,
    page: jint,
    attribute: jint,
    value: Option<ByteArray>,
) -> Result<(), CallErrno> {
    let object = handle(object)?;
    let value = whole(value, ATTRIBUTE_BYTES_MAX as usize)?;
    let (page, attribute) = (page.cast_unsigned(), attribute.cast_unsigned());
    RING.with(|ring| ring.set_attribute(object, page, attribute, &value))
}

fn list_numbers(object: jint, after: jlong, capacity: usize) -> Result<Vec<jlong>, CallErrno> {
    let (object, after) = (handle(object)?, unsigned(after)?);
    let mut numbers = vec![0; capacity.min(LIST_NUMBERS_MAX)];
    let count = RING.with(|ring| ring.list(object, after, &mut numbers))?;
    numbers.truncate(count);
    Ok(numbers.into_iter().map(u64::cast_signed).collect())
}

fn log_line(level: jint, text: Option<ByteArray>) -> Result<(), CallErrno> {
    let level = u32::try_from(level).map_err(|_| CallErrno::Invalid)?;
    let array = text.ok_or(CallErrno::Invalid)?;
    let length = array.length().min(LOG_LINE_BYTES_MAX as usize);
    let text = array.copied(0, length).ok_or(CallErrno::Invalid)?;
    RING.with(|ring| ring.log(level, &text))
}

/// Copies at most one buffer to a writer.
fn write_part(stream: jlong, from: Option<ByteArray>, start: jint, length: jint) -> CallResult {
    let (array, start, length) = range(from, start, length)?;
    if length > PART_BYTES {
        return Err(CallErrno::TooLarge);
    }
    let stream = StreamId::from_number(stream);
    RING.with(|ring| {
        let buffer = ring.write_buffer(stream)?;
        let address = ring.heap_address(buffer).ok_or(CallErrno::InputOutput)?;
        // SAFETY: the buffer of a stream has as many bytes as a part may have, and no reference to
        // it exists.
        unsafe { array.load_to(start, length, address) };
        ring.commit_buffer(stream, length as u64)
    })?;
    Ok(length as i64)
}

/// Declares a native method; `$env` is the environment of its thread.
macro_rules! native {
    (fn $method:ident($env:ident $(, $name:ident: $type:ty)*) -> $result:ty $body:block) => {
        /// A native method.
        ///
        /// # Safety
        ///
        /// The virtual machine calls it, with parameters of the signature in [`METHODS`].
        unsafe extern "system" fn $method(
            env: *mut JNIEnv,
            _receiver: jobject
            $(, $name: $type)*
        ) -> $result {
            // SAFETY: the machine passes the environment of this thread.
            let $env = unsafe { NativeEnvironment::new(env) };
            $body
        }
    };
}

/// Wraps an array of bytes.
macro_rules! bytes {
    ($env:ident, $array:ident) => {
        // SAFETY: the signature of the method says that this parameter is a `byte[]`.
        unsafe { $env.byte_array($array) }
    };
}

native! { fn read(env, object: jint, offset: jlong, into: jbyteArray, start: jint, length: jint) -> jlong {
    result(read_range(object, offset, bytes!(env, into), start, length))
} }

native! { fn write(env, object: jint, offset: jlong, from: jbyteArray, start: jint, length: jint) -> jlong {
    result(write_range(object, offset, bytes!(env, from), start, length))
} }

native! { fn append(env, object: jint, from: jbyteArray, start: jint, length: jint) -> jlong {
    number(append_range(object, bytes!(env, from), start, length))
} }

native! { fn punch(_env, object: jint, offset: jlong, length: jlong) -> jlong {
    nothing((|| {
        let (object, offset, length) = (handle(object)?, unsigned(offset)?, unsigned(length)?);
        RING.with(|ring| ring.punch(object, offset, length))
    })())
} }

native! { fn length(_env, object: jint) -> jlong {
    number(handle(object).and_then(|object| RING.with(|ring| ring.length(object))))
} }

native! { fn get_attribute(env, object: jint, page: jint, attribute: jint, into: jbyteArray) -> jlong {
    result(get_attribute_value(object, page, attribute, bytes!(env, into)))
} }

native! { fn set_attribute(env, object: jint, page: jint, attribute: jint, value: jbyteArray) -> jlong {
    nothing(set_attribute_value(object, page, attribute, bytes!(env, value)))
} }

native! { fn list(env, object: jint, after: jlong, into: jlongArray) -> jlong {
    result(list_numbers(object, after, env.count_numbers(into)).map(|numbers| {
        // SAFETY: the signature of the method says that this parameter is a `long[]`.
        unsafe { env.write_numbers(into, &numbers) };
        numbers.len() as i64
    }))
} }

native! { fn create(env, partition: jint, into: jlongArray) -> jlong {
    result((|| {
        let partition = handle(partition)?;
        let (handle, number) = RING.with(|ring| ring.create(partition))?;
        // SAFETY: the signature of the method says that this parameter is a `long[]`.
        let is_written = unsafe { env.write_numbers(into, &[number.cast_signed()]) };
        if is_written { Ok(handle.into()) } else { Err(CallErrno::Invalid) }
    })())
} }

native! { fn remove(_env, object: jint) -> jlong {
    nothing(handle(object).and_then(|object| RING.with(|ring| ring.remove(object))))
} }

native! { fn flush(_env, object: jint) -> jlong {
    nothing(handle(object).and_then(|object| RING.with(|ring| ring.flush(object))))
} }

native! { fn clear(_env, object: jint, offset: jlong, length: jlong) -> jlong {
    nothing((|| {
        let (object, offset, length) = (handle(object)?, unsigned(offset)?, unsigned(length)?);
        RING.with(|ring| ring.clear(object, offset, length))
    })())
} }

native! { fn create_collection(env, collection: jint, into: jlongArray) -> jlong {
    result((|| {
        let collection = handle(collection)?;
        let (handle, number) = RING.with(|ring| ring.create_collection(collection))?;
        // SAFETY: the signature of the method says that this parameter is a `long[]`.
        let is_written = unsafe { env.write_numbers(into, &[number.cast_signed()]) };
        if is_written { Ok(handle.into()) } else { Err(CallErrno::Invalid) }
    })())
} }

native! { fn remove_collection(_env, collection: jint, force: jint) -> jlong {
    nothing((|| {
        let collection = handle(collection)?;
        RING.with(|ring| ring.remove_collection(collection, force.cast_unsigned()))
    })())
} }

native! { fn add_member(_env, collection: jint, object: jint) -> jlong {
    nothing((|| {
        let (collection, object) = (handle(collection)?, handle(object)?);
        RING.with(|ring| ring.add_member(collection, object))
    })())
} }

native! { fn remove_member(_env, collection: jint, object: jint) -> jlong {
    nothing((|| {
        let (collection, object) = (handle(collection)?, handle(object)?);
        RING.with(|ring| ring.remove_member(collection, object))
    })())
} }

native! { fn is_member(_env, collection: jint, object: jint) -> jlong {
    result((|| {
        let (collection, object) = (handle(collection)?, handle(object)?);
        RING.with(|ring| ring.is_member(collection, object)).map(i64::from)
    })())
} }

native! { fn append_result(env, data: jbyteArray, start: jint, length: jint) -> jlong {
    let data = copied(bytes!(env, data), start, length, usize::MAX);
    nothing(data.and_then(|data| RING.with(|ring| ring.result(&data))))
} }

native! { fn log(env, level: jint, text: jbyteArray) -> jlong {
    nothing(log_line(level, bytes!(env, text)))
} }

native! { fn progress(_env, done: jlong, total: jlong) -> jlong {
    nothing((|| {
        let (done, total) = (unsigned(done)?, unsigned(total)?);
        RING.with(|ring| ring.progress(done, total))
    })())
} }

native! { fn is_cancelled(_env) -> jboolean {
    RING.with(|ring| Ok(ring.is_cancelled())).unwrap_or(true).into()
} }

native! { fn clock(_env) -> jlong {
    number(RING.with(|ring| Ok(ring.clock_ms())))
} }

native! { fn open_reader(_env, object: jint, offset: jlong, length: jlong) -> jlong {
    result((|| {
        let (object, offset, length) = (handle(object)?, unsigned(offset)?, unsigned(length)?);
        RING.with(|ring| ring.open_reader(object, offset, length)).map(StreamId::number)
    })())
} }

native! { fn read_next(env, stream: jlong, error: jlongArray) -> jobject {
    let next = RING.with(|ring| {
        let range = ring.read_next(StreamId::from_number(stream))?;
        Ok((ring.heap_address(range).ok_or(CallErrno::InputOutput)?, range.length()))
    });
    match next {
        // SAFETY: the range is one of the heap, which stays mapped until the process ends. It is
        // memory that the engine may write, so a function that writes it harms only itself.
        Ok((address, length)) => unsafe { env.direct_buffer(address, length) },
        Err(errno) => {
            // SAFETY: the signature of the method says that this parameter is a `long[]`.
            unsafe { env.write_numbers(error, &[errno.result()]) };
            ptr::null_mut()
        }
    }
} }

native! { fn open_writer(_env, object: jint, offset: jlong) -> jlong {
    result((|| {
        let (object, offset) = (handle(object)?, unsigned(offset)?);
        RING.with(|ring| ring.open_writer(object, offset)).map(StreamId::number)
    })())
} }

native! { fn write_next(env, stream: jlong, from: jbyteArray, start: jint, length: jint) -> jlong {
    result(write_part(stream, bytes!(env, from), start, length))
} }

native! { fn close_stream(_env, stream: jlong, is_writer: jboolean) -> jlong {
    nothing(RING.with(|ring| ring.close_stream(StreamId::from_number(stream), is_writer != 0)))
} }

native! { fn entry(env, name: jstring) -> jbyteArray {
    // SAFETY: the signature of the method says that this parameter is a `String`.
    let name = unsafe { env.text(name, NAME_BYTES_MAX) };
    let Some((archive, name)) = ARCHIVE.get().zip(name) else { return ptr::null_mut() };
    match archive.entry(&name) {
        Ok(Some(content)) => env.new_bytes(&content),
        Ok(None) => ptr::null_mut(),
        Err(error) => {
            RING.log_error(&error.to_string());
            ptr::null_mut()
        }
    }
} }

macro_rules! row {
    ($name:literal, $signature:literal, $function:ident) => {
        NativeMethod { name: $name, signature: $signature, function: $function as *const () }
    };
}

/// The native methods of `EngineHost`.
pub(crate) static METHODS: &[NativeMethod] = &[
    row!(c"read", c"(IJ[BII)J", read),
    row!(c"write", c"(IJ[BII)J", write),
    row!(c"append", c"(I[BII)J", append),
    row!(c"punch", c"(IJJ)J", punch),
    row!(c"length", c"(I)J", length),
    row!(c"getAttribute", c"(III[B)J", get_attribute),
    row!(c"setAttribute", c"(III[B)J", set_attribute),
    row!(c"list", c"(IJ[J)J", list),
    row!(c"create", c"(I[J)J", create),
    row!(c"remove", c"(I)J", remove),
    row!(c"flush", c"(I)J", flush),
    row!(c"clear", c"(IJJ)J", clear),
    row!(c"createCollection", c"(I[J)J", create_collection),
    row!(c"removeCollection", c"(II)J", remove_collection),
    row!(c"addMember", c"(II)J", add_member),
    row!(c"removeMember", c"(II)J", remove_member),
    row!(c"isMember", c"(II)J", is_member),
    row!(c"result", c"([BII)J", append_result),
    row!(c"log", c"(I[B)J", log),
    row!(c"progress", c"(JJ)J", progress),
    row!(c"isCancelled", c"()Z", is_cancelled),
    row!(c"clock", c"()J", clock),
    row!(c"openReader", c"(IJJ)J", open_reader),
    row!(c"readNext", c"(J[J)Ljava/nio/ByteBuffer;", read_next),
    row!(c"openWriter", c"(IJ)J", open_writer),
    row!(c"writeNext", c"(J[BII)J", write_next),
    row!(c"closeStream", c"(JZ)J", close_stream),
    row!(c"entry", c"(Ljava/lang/String;)[B", entry),
];
