//! The table of calls that a function can make: name, parameters, result, and how each is
//! transported.
//!
//! The C header, the reference page, and the imports of WebAssembly modules are generated from it
//! or checked against it.

use crate::descriptor::ObjectRights;

/// Number of a request in the submission ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CallCode {
    /// Reads bytes of an object.
    Read = 1,
    /// Writes bytes of an object.
    Write = 2,
    /// Appends bytes to an object.
    Append = 3,
    /// Removes a range of bytes of an object; the bytes after it move down.
    Punch = 4,
    /// Returns the length of an object.
    Length = 5,
    /// Reads an attribute.
    GetAttribute = 6,
    /// Sets an attribute.
    SetAttribute = 7,
    /// Lists a partition or collection.
    List = 8,
    /// Creates an object in a partition.
    Create = 9,
    /// Removes an object.
    Remove = 10,
    /// Makes the written bytes of an object durable.
    Flush = 11,
    /// Appends bytes to the result.
    Result = 12,
    /// Writes a line to the log.
    Log = 13,
    /// Reports progress.
    Progress = 14,
    /// Ends the call with a status; only the engine sends it.
    Return = 15,
    /// Writes zeros to a range of bytes of an object.
    Clear = 16,
    /// Creates a collection.
    CreateCollection = 17,
    /// Removes a collection.
    RemoveCollection = 18,
    /// Makes an object a member of a collection.
    AddMember = 19,
    /// Ends the membership of an object in a collection.
    RemoveMember = 20,
    /// Returns whether an object is a member of a collection.
    IsMember = 21,
}

impl CallCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 21] = [
        Self::Read,
        Self::Write,
        Self::Append,
        Self::Punch,
        Self::Length,
        Self::GetAttribute,
        Self::SetAttribute,
        Self::List,
        Self::Create,
        Self::Remove,
        Self::Flush,
        Self::Result,
        Self::Log,
        Self::Progress,
        Self::Return,
        Self::Clear,
        Self::CreateCollection,
        Self::RemoveCollection,
        Self::AddMember,
        Self::RemoveMember,
        Self::IsMember,
    ];

    /// Returns the code of a number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        if number == 0 || number as usize > Self::ALL.len() {
            None
        } else {
            Some(Self::ALL[number as usize - 1])
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// Route of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTransport {
    /// A request in the submission ring.
    Ring(CallCode),
    /// A word of the memory that the engine can only read.
    Memory,
    /// A part of the SDK: ring requests of other rows, sent ahead of their use.
    Stream,
}

/// Type of a parameter of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// An unsigned number of 32 bits.
    U32,
    /// An unsigned number of 64 bits.
    U64,
    /// A signed number of 64 bits.
    I64,
    /// Bytes that the call reads: an address and a length, two parameters in C and WebAssembly.
    BytesIn,
    /// Bytes that the call writes: an address and a capacity.
    BytesOut,
    /// Text that the call reads: UTF-8, an address and a length.
    TextIn,
    /// Numbers of 64 bits that the call writes: an address and a capacity in numbers.
    NumbersOut,
    /// Address of one number of 64 bits that the call writes, or null.
    NumberOut,
    /// Address of a pointer to bytes to read, which the call writes.
    ReadPointerOut,
    /// Address of a pointer to bytes to fill, which the call writes.
    WritePointerOut,
}

/// A parameter of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallParameter {
    /// Name in the C header.
    pub name: &'static str,
    /// Type in C and WebAssembly.
    pub kind: ParameterKind,
}

/// Type of the value that a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnKind {
    /// A count or number, or a negative error number.
    Result,
    /// 0 or 1.
    Flag,
}

/// A row of the table of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionCallRow {
    /// Name in C, and name of the import in WebAssembly.
    pub name: &'static str,
    /// Route of the call.
    pub transport: CallTransport,
    /// The right that the first handle of the call must have; none for calls without an object.
    pub right: ObjectRights,
    /// Parameters in their order.
    pub parameters: &'static [CallParameter],
    /// Type of the returned value.
    pub returns: ReturnKind,
    /// First minor version of the API that has the call.
    pub since_minor: u16,
    /// Documentation, one sentence or more.
    pub doc: &'static str,
}

/// Returns the row of a name.
#[must_use]
pub fn find_call(name: &str) -> Option<&'static FunctionCallRow> {
    CALLS.iter().find(|row| row.name == name)
}

const fn parameter(name: &'static str, kind: ParameterKind) -> CallParameter {
    CallParameter { name, kind }
}

const fn row(
    name: &'static str,
    transport: CallTransport,
    right: ObjectRights,
    parameters: &'static [CallParameter],
    doc: &'static str,
) -> FunctionCallRow {
    FunctionCallRow { name, transport, right, parameters, returns: ReturnKind::Result, since_minor: 0, doc }
}

/// Returns the row of a call that version 1.1 added.
const fn row_of_1_1(
    name: &'static str,
    code: CallCode,
    right: ObjectRights,
    parameters: &'static [CallParameter],
    doc: &'static str,
) -> FunctionCallRow {
    FunctionCallRow { since_minor: 1, ..row(name, Ring(code), right, parameters, doc) }
}

const OBJECT: CallParameter = parameter("object", ParameterKind::U32);
const COLLECTION: CallParameter = parameter("collection", ParameterKind::U32);
const PARTITION: CallParameter = parameter("partition", ParameterKind::U32);
const OFFSET: CallParameter = parameter("offset", ParameterKind::U64);
const LENGTH: CallParameter = parameter("length", ParameterKind::U64);
const BUFFER: CallParameter = parameter("buffer", ParameterKind::BytesOut);
const DATA: CallParameter = parameter("data", ParameterKind::BytesIn);
const PAGE: CallParameter = parameter("page", ParameterKind::U32);
const NUMBER: CallParameter = parameter("number", ParameterKind::U32);
const READER: CallParameter = parameter("reader", ParameterKind::I64);
const WRITER: CallParameter = parameter("writer", ParameterKind::I64);

use CallTransport::{Memory, Ring, Stream};

/// Every call of the interface. The C header, the reference page, the exports of the C engine and
/// the imports of WebAssembly modules follow it.
pub static CALLS: &[FunctionCallRow] = &[
    row(
        "osd_read",
        Ring(CallCode::Read),
        ObjectRights::READ,
        &[OBJECT, OFFSET, BUFFER],
        "Reads bytes of an object. Returns the number of bytes, which is smaller than the capacity only \
         at the end of the object.",
    ),
    row(
        "osd_write",
        Ring(CallCode::Write),
        ObjectRights::WRITE,
        &[OBJECT, OFFSET, DATA],
        "Writes all bytes at an offset, and extends the object if it ends before. Returns their number.",
    ),
    row(
        "osd_append",
        Ring(CallCode::Append),
        ObjectRights::APPEND,
        &[OBJECT, DATA],
        "Appends at most 4 MiB to an object in one step. Returns the offset of the first byte.",
    ),
    row(
        "osd_punch",
        Ring(CallCode::Punch),
        ObjectRights::WRITE,
        &[OBJECT, OFFSET, LENGTH],
        "Removes a range of bytes; the bytes after it move down. Returns 0.",
    ),
    row(
        "osd_length",
        Ring(CallCode::Length),
        ObjectRights::READ,
        &[OBJECT],
        "Returns the length of an object in bytes.",
    ),
    row(
        "osd_get_attribute",
        Ring(CallCode::GetAttribute),
        ObjectRights::GET_ATTRIBUTE,
        &[OBJECT, PAGE, NUMBER, BUFFER],
        "Reads an attribute. Returns the length of its value; of a longer one than the capacity, only \
         the first bytes are stored.",
    ),
    row(
        "osd_set_attribute",
        Ring(CallCode::SetAttribute),
        ObjectRights::SET_ATTRIBUTE,
        &[OBJECT, PAGE, NUMBER, DATA],
        "Sets an attribute to a value of at most 65534 bytes; no bytes remove it. Returns 0.",
    ),
    row(
        "osd_list",
        Ring(CallCode::List),
        ObjectRights::READ,
        &[OBJECT, parameter("after", ParameterKind::U64), parameter("numbers", ParameterKind::NumbersOut)],
        "Lists the objects of a partition or collection whose numbers are above `after`, in ascending \
         order, at most 65536 at once. Returns how many were stored; 0 at the end.",
    ),
    row(
        "osd_create",
        Ring(CallCode::Create),
        ObjectRights::CREATE,
        &[PARTITION, parameter("number", ParameterKind::NumberOut)],
        "Creates a user object in a partition. Returns its handle, and stores its number unless the \
         address is null.",
    ),
    row(
        "osd_remove",
        Ring(CallCode::Remove),
        ObjectRights::REMOVE,
        &[OBJECT],
        "Removes an object. Returns 0.",
    ),
    row(
        "osd_flush",
        Ring(CallCode::Flush),
        ObjectRights::MANAGE,
        &[OBJECT],
        "Returns 0 when the changes of an object or collection survive a loss of power.",
    ),
    row_of_1_1(
        "osd_clear",
        CallCode::Clear,
        ObjectRights::WRITE,
        &[OBJECT, OFFSET, LENGTH],
        "Writes zeros to a range of bytes without moving any, and extends the object if it ends before. \
         Returns 0.",
    ),
    row_of_1_1(
        "osd_create_collection",
        CallCode::CreateCollection,
        ObjectRights::CREATE,
        &[COLLECTION, parameter("number", ParameterKind::NumberOut)],
        "Creates a collection, through a handle that can create it. Returns the handle of the collection, \
         and stores its number unless the address is null.",
    ),
    row_of_1_1(
        "osd_remove_collection",
        CallCode::RemoveCollection,
        ObjectRights::REMOVE,
        &[COLLECTION, parameter("force", ParameterKind::U32)],
        "Removes a collection; its members stay. With `force` 1 their memberships end first; with 0 the \
         collection must be empty. Returns 0.",
    ),
    row_of_1_1(
        "osd_add_member",
        CallCode::AddMember,
        ObjectRights::SET_ATTRIBUTE,
        &[COLLECTION, OBJECT],
        "Makes a user object a member of a collection of its partition. The object needs the right \
         SET_ATTR too. Returns 0, also if it is a member already.",
    ),
    row_of_1_1(
        "osd_remove_member",
        CallCode::RemoveMember,
        ObjectRights::SET_ATTRIBUTE,
        &[COLLECTION, OBJECT],
        "Ends the membership of a user object in a collection. The object needs the right SET_ATTR too. \
         Returns 0.",
    ),
    row_of_1_1(
        "osd_is_member",
        CallCode::IsMember,
        ObjectRights::READ,
        &[COLLECTION, OBJECT],
        "Returns 1 if a user object is a member of a collection, otherwise 0. The object needs the right \
         GET_ATTR.",
    ),
    row(
        "osd_result",
        Ring(CallCode::Result),
        ObjectRights::NONE,
        &[DATA],
        "Appends bytes to the result that the caller receives. Returns 0.",
    ),
    row(
        "osd_log",
        Ring(CallCode::Log),
        ObjectRights::NONE,
        &[parameter("level", ParameterKind::U32), parameter("text", ParameterKind::TextIn)],
        "Writes a line to the log of the job: level 1 error, 2 warning, 3 information. Bytes beyond 4096 \
         are dropped. Returns 0.",
    ),
    row(
        "osd_progress",
        Ring(CallCode::Progress),
        ObjectRights::NONE,
        &[parameter("done", ParameterKind::U64), parameter("total", ParameterKind::U64)],
        "Reports progress: so many units of a total, which is 0 if it is unknown. Returns 0.",
    ),
    FunctionCallRow {
        returns: ReturnKind::Flag,
        ..row(
            "osd_cancelled",
            Memory,
            ObjectRights::NONE,
            &[],
            "Returns 1 if the job was cancelled; the function then returns soon, or is killed.",
        )
    },
    row(
        "osd_clock",
        Memory,
        ObjectRights::NONE,
        &[],
        "Returns the device's time in milliseconds since 1970, as of the last call.",
    ),
    row(
        "osd_reader_open",
        Stream,
        ObjectRights::READ,
        &[OBJECT, OFFSET, LENGTH],
        "Opens a stream that reads a range ahead, in two buffers of 1 MiB. Returns its number.",
    ),
    row(
        "osd_reader_next",
        Stream,
        ObjectRights::READ,
        &[READER, parameter("data", ParameterKind::ReadPointerOut)],
        "Stores the address of the next bytes, which are valid until the next call for this stream. \
         Returns their number; 0 at the end of the range or object.",
    ),
    row(
        "osd_reader_close",
        Stream,
        ObjectRights::NONE,
        &[READER],
        "Closes a stream and frees its buffers. Returns 0.",
    ),
    row(
        "osd_writer_open",
        Stream,
        ObjectRights::WRITE,
        &[OBJECT, OFFSET],
        "Opens a stream that writes behind, in two buffers of 1 MiB. Returns its number.",
    ),
    row(
        "osd_writer_buffer",
        Stream,
        ObjectRights::WRITE,
        &[WRITER, parameter("data", ParameterKind::WritePointerOut)],
        "Stores the address of a free buffer, which the function fills. Returns its capacity.",
    ),
    row(
        "osd_writer_commit",
        Stream,
        ObjectRights::WRITE,
        &[WRITER, LENGTH],
        "Writes the first bytes of the buffer at the position of the stream, and returns before they are \
         written. Returns 0, or the error of an earlier write.",
    ),
    row(
        "osd_writer_close",
        Stream,
        ObjectRights::NONE,
        &[WRITER],
        "Waits for all writes of a stream and closes it. Returns 0, or the first error.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_code_has_one_row() {
        for (index, code) in CallCode::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(code.number()), index + 1);
            assert_eq!(CallCode::from_number(code.number()), Some(code));
            let rows = CALLS.iter().filter(|row| row.transport == Ring(code)).count();
            assert_eq!(rows, usize::from(code != CallCode::Return), "{code:?}");
        }
        assert_eq!(CallCode::from_number(0), None);
        assert_eq!(CallCode::from_number(22), None);
    }

    #[test]
    fn call_names_are_unique_and_prefixed() {
        for (index, row) in CALLS.iter().enumerate() {
            assert!(row.name.starts_with("osd_"));
            assert!(CALLS[index + 1..].iter().all(|other| other.name != row.name), "{}", row.name);
            assert_eq!(find_call(row.name), Some(row));
        }
    }
}
