//! The module `_sealstone`: the calls of the interface for the Python code above it.
//!
//! Contract: every number and every length of Python is checked here or in the ring. A refusal is
//! an `OSError` with its error number. A call outside of `run`, or during another one, fails.
#![allow(unsafe_code, reason = "buffers of the shared heap, as objects of the interpreter")]

use sealstone_function_abi::CallErrno;
use sealstone_function_abi::limits::ATTRIBUTE_BYTES_MAX;
use sealstone_function_ring::{ProcessRing, StreamId};

use crate::library::{BuiltinFunction, CallArguments, PythonObject, RaisedException};

/// Maximum bytes of one `read`.
const READ_BYTES_MAX: u64 = 64 << 20;
/// Numbers that one `list` returns.
const LIST_NUMBERS: usize = 4096;

/// The ring of this process.
pub(crate) static RING: ProcessRing = ProcessRing::new();

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallFailure {
    /// With an error number.
    Errno(CallErrno),
    /// With an exception that is set.
    Raised(RaisedException),
}

impl From<CallErrno> for CallFailure {
    fn from(error: CallErrno) -> Self {
        Self::Errno(error)
    }
}

impl From<RaisedException> for CallFailure {
    fn from(error: RaisedException) -> Self {
        Self::Raised(error)
    }
}

type Called = Result<PythonObject, CallFailure>;

/// Converts an outcome to that of a builtin function.
fn raise(outcome: Called) -> Result<PythonObject, RaisedException> {
    outcome.map_err(|failure| match failure {
        CallFailure::Errno(error) => RaisedException::os_error(-error.result(), error.doc()),
        // A number outside of 64 bits is an argument like any other wrong one.
        CallFailure::Raised(error) if error.is_overflow() => {
            error.clear();
            let invalid = CallErrno::Invalid;
            RaisedException::os_error(-invalid.result(), invalid.doc())
        }
        CallFailure::Raised(error) => error,
    })
}

/// Returns the handle of an object.
fn handle(arguments: CallArguments<'_>, index: isize) -> Result<u32, CallFailure> {
    u32::try_from(arguments.number(index)?).map_err(|_| CallErrno::BadHandle.into())
}

/// Returns a number of 32 bits.
fn small_number(arguments: CallArguments<'_>, index: isize) -> Result<u32, CallFailure> {
    u32::try_from(arguments.number(index)?).map_err(|_| CallErrno::Invalid.into())
}

/// Returns the number of a stream.
fn stream(arguments: CallArguments<'_>) -> Result<StreamId, CallFailure> {
    let number = i64::try_from(arguments.number(0)?).map_err(|_| CallErrno::BadHandle)?;
    Ok(StreamId::from_number(number))
}

fn nothing(outcome: Result<(), CallErrno>) -> Called {
    outcome?;
    Ok(PythonObject::none()?)
}

fn number(outcome: Result<u64, CallErrno>) -> Called {
    Ok(PythonObject::unsigned(outcome?)?)
}

fn read(arguments: CallArguments<'_>) -> Called {
    let (object, offset, length) = (handle(arguments, 0)?, arguments.number(1)?, arguments.number(2)?);
    let capacity = usize::try_from(length).ok().filter(|_| length <= READ_BYTES_MAX);
    let capacity = capacity.ok_or(CallErrno::TooLarge)?;
    PythonObject::filled_bytes(capacity, |buffer| Ok(RING.with(|ring| ring.read(object, offset, buffer))?))
}

fn write(arguments: CallArguments<'_>) -> Called {
    let (object, offset, data) = (handle(arguments, 0)?, arguments.number(1)?, arguments.bytes(2)?);
    number(RING.with(|ring| ring.write(object, offset, data)).map(|count| count as u64))
}

fn append(arguments: CallArguments<'_>) -> Called {
    let (object, data) = (handle(arguments, 0)?, arguments.bytes(1)?);
    number(RING.with(|ring| ring.append(object, data)))
}

fn punch(arguments: CallArguments<'_>) -> Called {
    let (object, offset, length) = (handle(arguments, 0)?, arguments.number(1)?, arguments.number(2)?);
    nothing(RING.with(|ring| ring.punch(object, offset, length)))
}

fn length(arguments: CallArguments<'_>) -> Called {
    let object = handle(arguments, 0)?;
    number(RING.with(|ring| ring.length(object)))
}

fn get_attribute(arguments: CallArguments<'_>) -> Called {
    let object = handle(arguments, 0)?;
    let (page, attribute) = (small_number(arguments, 1)?, small_number(arguments, 2)?);
    PythonObject::filled_bytes(ATTRIBUTE_BYTES_MAX as usize, |buffer| {
        Ok(RING.with(|ring| ring.get_attribute(object, page, attribute, buffer))?)
    })
}

fn set_attribute(arguments: CallArguments<'_>) -> Called {
    let object = handle(arguments, 0)?;
    let (page, attribute) = (small_number(arguments, 1)?, small_number(arguments, 2)?);
    let value = arguments.bytes(3)?;
    nothing(RING.with(|ring| ring.set_attribute(object, page, attribute, value)))
}

fn list(arguments: CallArguments<'_>) -> Called {
    let (object, after) = (handle(arguments, 0)?, arguments.number(1)?);
    let mut numbers = vec![0; LIST_NUMBERS];
    let count = RING.with(|ring| ring.list(object, after, &mut numbers))?;
    let numbers = numbers.iter().take(count).map(|&number| PythonObject::unsigned(number));
    Ok(PythonObject::tuple(numbers.collect::<Result<_, _>>()?)?)
}

fn create(arguments: CallArguments<'_>) -> Called {
    let partition = handle(arguments, 0)?;
    let (handle, number) = RING.with(|ring| ring.create(partition))?;
    let pair = vec![PythonObject::unsigned(handle.into())?, PythonObject::unsigned(number)?];
    Ok(PythonObject::tuple(pair)?)
}

fn remove(arguments: CallArguments<'_>) -> Called {
    let object = handle(arguments, 0)?;
    nothing(RING.with(|ring| ring.remove(object)))
}

fn flush(arguments: CallArguments<'_>) -> Called {
    let object = handle(arguments, 0)?;
    nothing(RING.with(|ring| ring.flush(object)))
}

fn clear(arguments: CallArguments<'_>) -> Called {
    let (object, offset, length) = (handle(arguments, 0)?, arguments.number(1)?, arguments.number(2)?);
    nothing(RING.with(|ring| ring.clear(object, offset, length)))
}

fn create_collection(arguments: CallArguments<'_>) -> Called {
    let collection = handle(arguments, 0)?;
    let (handle, number) = RING.with(|ring| ring.create_collection(collection))?;
    let pair = vec![PythonObject::unsigned(handle.into())?, PythonObject::unsigned(number)?];
    Ok(PythonObject::tuple(pair)?)
}

fn remove_collection(arguments: CallArguments<'_>) -> Called {
    let (collection, force) = (handle(arguments, 0)?, small_number(arguments, 1)?);
    nothing(RING.with(|ring| ring.remove_collection(collection, force)))
}

fn add_member(arguments: CallArguments<'_>) -> Called {
    let (collection, object) = (handle(arguments, 0)?, handle(arguments, 1)?);
    nothing(RING.with(|ring| ring.add_member(collection, object)))
}

fn remove_member(arguments: CallArguments<'_>) -> Called {
    let (collection, object) = (handle(arguments, 0)?, handle(arguments, 1)?);
    nothing(RING.with(|ring| ring.remove_member(collection, object)))
}

fn is_member(arguments: CallArguments<'_>) -> Called {
    let (collection, object) = (handle(arguments, 0)?, handle(arguments, 1)?);
    let is_member = RING.with(|ring| ring.is_member(collection, object))?;
    Ok(PythonObject::flag(is_member)?)
}

fn result(arguments: CallArguments<'_>) -> Called {
    let data = arguments.bytes(0)?;
    nothing(RING.with(|ring| ring.result(data)))
}

fn log(arguments: CallArguments<'_>) -> Called {
    let (level, text) = (small_number(arguments, 0)?, arguments.bytes(1)?);
    nothing(RING.with(|ring| ring.log(level, text)))
}

fn progress(arguments: CallArguments<'_>) -> Called {
    let (done, total) = (arguments.number(0)?, arguments.number(1)?);
    nothing(RING.with(|ring| ring.progress(done, total)))
}

fn cancelled(_: CallArguments<'_>) -> Called {
    let is_cancelled = RING.with(|ring| Ok(ring.is_cancelled()))?;
    Ok(PythonObject::flag(is_cancelled)?)
}

fn clock(_: CallArguments<'_>) -> Called {
    number(RING.with(|ring| Ok(ring.clock_ms())))
}

fn reader_open(arguments: CallArguments<'_>) -> Called {
    let (object, offset, length) = (handle(arguments, 0)?, arguments.number(1)?, arguments.number(2)?);
    let id = RING.with(|ring| ring.open_reader(object, offset, length))?;
    Ok(PythonObject::number(id.number())?)
}

/// Returns the next part of a reader: its address in the heap and its length.
fn next_part(arguments: CallArguments<'_>) -> Result<(std::ptr::NonNull<u8>, u32), CallFailure> {
    let id = stream(arguments)?;
    Ok(RING.with(|ring| {
        let range = ring.read_next(id)?;
        Ok((ring.heap_address(range).ok_or(CallErrno::InputOutput)?, range.length()))
    })?)
}

fn reader_bytes(arguments: CallArguments<'_>) -> Called {
    let (address, length) = next_part(arguments)?;
    // SAFETY: the range is one of the heap, which stays mapped.
    Ok(unsafe { PythonObject::bytes_of_memory(address, length) }?)
}

fn reader_view(arguments: CallArguments<'_>) -> Called {
    let (address, length) = next_part(arguments)?;
    if length == 0 {
        return Ok(PythonObject::none()?);
    }
    // SAFETY: the range is one of the heap, which stays mapped until the process ends. Its content
    // may change after the next request for this stream, which a view shows as other bytes.
    Ok(unsafe { PythonObject::view_of_memory(address, length) }?)
}

fn reader_close(arguments: CallArguments<'_>) -> Called {
    let id = stream(arguments)?;
    nothing(RING.with(|ring| ring.close_stream(id, false)))
}

fn writer_open(arguments: CallArguments<'_>) -> Called {
    let (object, offset) = (handle(arguments, 0)?, arguments.number(1)?);
    let id = RING.with(|ring| ring.open_writer(object, offset))?;
    Ok(PythonObject::number(id.number())?)
}

fn writer_commit(arguments: CallArguments<'_>) -> Called {
    let (id, data) = (stream(arguments)?, arguments.bytes(1)?);
    nothing(RING.with(|ring| ring.write_stream(id, data)))
}

fn writer_close(arguments: CallArguments<'_>) -> Called {
    let id = stream(arguments)?;
    nothing(RING.with(|ring| ring.close_stream(id, true)))
}

macro_rules! builtins {
    ($($name:ident),* $(,)?) => {
        &[$({
            fn body(arguments: CallArguments<'_>) -> Result<PythonObject, RaisedException> {
                raise($name(arguments))
            }
            const NAME: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier has no zero byte"),
                };
            BuiltinFunction { name: NAME, body }
        }),*]
    };
}

/// The functions of the module.
pub(crate) static BUILTINS: &[BuiltinFunction] = builtins![
    read,
    write,
    append,
    punch,
    length,
    get_attribute,
    set_attribute,
    list,
    create,
    remove,
    flush,
    clear,
    create_collection,
    remove_collection,
    add_member,
    remove_member,
    is_member,
    result,
    log,
    progress,
    cancelled,
    clock,
    reader_open,
    reader_bytes,
    reader_view,
    reader_close,
    writer_open,
    writer_commit,
    writer_close,
];
