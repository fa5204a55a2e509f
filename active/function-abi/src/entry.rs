//! Entries of the submission and completion rings: requests of a function, and their results.
//!
//! Contract: a parsed request is within the heap and within every limit.

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::call::CallCode;
use crate::layout::{COMPLETION_BYTES, SUBMISSION_BYTES};
use crate::limits::{ATTRIBUTE_BYTES_MAX, LIST_ENTRIES_MAX, LOG_LINE_BYTES_MAX, REQUEST_BYTES_MAX};

/// A submission entry as it is in memory. Fields that a request does not use are 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct SubmissionEntry {
    code: u8,
    reserved: [u8; 3],
    generation: U32,
    cookie: U64,
    object: U32,
    /// Attribute page, or level of a log line.
    page: U32,
    /// Attribute number, handle of a member, or whether a removal is forced.
    number: U32,
    /// Bytes of the heap range.
    data_length: U32,
    data_offset: U64,
    /// Offset in the object, the last number listed, units of progress, or status.
    first: U64,
    /// Length to punch or clear, or total of progress.
    second: U64,
    reserved_end: U64,
}

/// A completion entry as it is in memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CompletionEntry {
    cookie: U64,
    result: I64,
    value: U64,
    generation: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<SubmissionEntry>() == SUBMISSION_BYTES);
const _: () = assert!(size_of::<CompletionEntry>() == COMPLETION_BYTES);

/// Why a submission entry is malformed. The engine that sent it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// No call has this code.
    #[error("unknown call code {0}")]
    UnknownCode(u8),
    /// A field that the call does not use is not 0.
    #[error("field {0} is not 0")]
    NotZero(&'static str),
    /// The range of the heap ends outside of it.
    #[error("heap range of {length} bytes at {offset} exceeds the heap")]
    OutsideHeap {
        /// First byte of the range.
        offset: u64,
        /// Bytes of the range.
        length: u32,
    },
    /// The request moves more bytes than its limit.
    #[error("{length} bytes exceed the limit of {limit}")]
    TooLong {
        /// Requested bytes.
        length: u32,
        /// Maximum of this call.
        limit: u32,
    },
    /// The range of the object ends above 2^64.
    #[error("object range of {length} bytes at {offset} overflows")]
    RangeOverflow {
        /// First byte of the range.
        offset: u64,
        /// Bytes of the range.
        length: u64,
    },
    /// The length of a list is no multiple of 8.
    #[error("list of {0} bytes")]
    ListLength(u32),
    /// The level of a log line is unknown.
    #[error("log level {0}")]
    LogLevel(u32),
    /// A flag is neither 0 nor 1.
    #[error("flag {0}")]
    Flag(u32),
}

/// A range of the heap that ends within it: only the check constructs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapRange {
    offset: u64,
    length: u32,
}

impl HeapRange {
    /// Returns the range if it ends within a heap of `heap_bytes`.
    #[must_use]
    pub fn new(offset: u64, length: u32, heap_bytes: u64) -> Option<Self> {
        let end = offset.checked_add(u64::from(length))?;
        (end <= heap_bytes).then_some(Self { offset, length })
    }

    /// Returns the offset of the first byte in the heap.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn length(self) -> u32 {
        self.length
    }

    /// Returns the first bytes of the range, all of it if it is not longer.
    #[must_use]
    pub fn first(self, length: u32) -> Self {
        Self { length: self.length.min(length), ..self }
    }
}

/// A checked request of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// Reads bytes of an object into the heap. Result: the number of bytes.
    Read {
        /// Handle of the object.
        object: u32,
        /// First byte in the object.
        offset: u64,
        /// Destination in the heap.
        buffer: HeapRange,
    },
    /// Writes bytes of the heap. Result: the number of bytes.
    Write {
        /// Handle of the object.
        object: u32,
        /// First byte in the object.
        offset: u64,
        /// Source in the heap.
        data: HeapRange,
    },
    /// Appends bytes of the heap. Result: the number of bytes; value: their offset in the object.
    Append {
        /// Handle of the object.
        object: u32,
        /// Source in the heap.
        data: HeapRange,
    },
    /// Removes a range of an object. Result: 0.
    Punch {
        /// Handle of the object.
        object: u32,
        /// First byte in the object.
        offset: u64,
        /// Bytes of the range.
        length: u64,
    },
    /// Requests the length. Result: 0; value: the length.
    Length {
        /// Handle of the object.
        object: u32,
    },
    /// Reads an attribute into the heap. Result: the length of the value.
    GetAttribute {
        /// Handle of the object.
        object: u32,
        /// Attribute page.
        page: u32,
        /// Attribute number.
        number: u32,
        /// Destination; of a longer value, only the first bytes are stored.
        buffer: HeapRange,
    },
    /// Sets an attribute. Result: 0.
    SetAttribute {
        /// Handle of the object.
        object: u32,
        /// Attribute page.
        page: u32,
        /// Attribute number.
        number: u32,
        /// The value.
        data: HeapRange,
    },
    /// Lists objects as little-endian numbers of 8 bytes. Result: how many.
    List {
        /// Handle of the partition or collection.
        object: u32,
        /// Only numbers above this one are listed.
        after: u64,
        /// Destination in the heap.
        buffer: HeapRange,
    },
    /// Creates an object. Result: its handle; value: its number.
    Create {
        /// Handle of the partition.
        object: u32,
    },
    /// Removes an object. Result: 0.
    Remove {
        /// Handle of the object.
        object: u32,
    },
    /// Makes written bytes durable. Result: 0.
    Flush {
        /// Handle of the object.
        object: u32,
    },
    /// Appends bytes to the result of the job. Result: the number of bytes.
    Result {
        /// Source in the heap.
        data: HeapRange,
    },
    /// Writes a line to the log. Result: 0.
    Log {
        /// 1 error, 2 warning, 3 information.
        level: u8,
        /// The text; it may be malformed UTF-8 or contain control characters.
        data: HeapRange,
    },
    /// Reports progress. Result: 0.
    Progress {
        /// Units that are done.
        done: u64,
        /// All units; 0 if unknown.
        total: u64,
    },
    /// Writes zeros to a range of an object. Result: 0.
    Clear {
        /// Handle of the object.
        object: u32,
        /// First byte in the object.
        offset: u64,
        /// Bytes of the range.
        length: u64,
    },
    /// Creates a collection. Result: its handle; value: its number.
    CreateCollection {
        /// Handle that can create it.
        collection: u32,
    },
    /// Removes a collection. Result: 0.
    RemoveCollection {
        /// Handle of the collection.
        collection: u32,
        /// Whether memberships end first.
        force: bool,
    },
    /// Makes an object a member of a collection. Result: 0.
    AddMember {
        /// Handle of the collection.
        collection: u32,
        /// Handle of the object.
        object: u32,
    },
    /// Ends a membership. Result: 0.
    RemoveMember {
        /// Handle of the collection.
        collection: u32,
        /// Handle of the object.
        object: u32,
    },
    /// Requests whether an object is a member. Result: 0 or 1.
    IsMember {
        /// Handle of the collection.
        collection: u32,
        /// Handle of the object.
        object: u32,
    },
    /// Ends the call. The completion has no meaning.
    Return {
        /// Value that the function returned.
        status: i64,
    },
}

impl RequestBody {
    /// Returns the code of the request.
    #[must_use]
    pub const fn code(&self) -> CallCode {
        match self {
            Self::Read { .. } => CallCode::Read,
            Self::Write { .. } => CallCode::Write,
            Self::Append { .. } => CallCode::Append,
            Self::Punch { .. } => CallCode::Punch,
            Self::Length { .. } => CallCode::Length,
            Self::GetAttribute { .. } => CallCode::GetAttribute,
            Self::SetAttribute { .. } => CallCode::SetAttribute,
            Self::List { .. } => CallCode::List,
            Self::Create { .. } => CallCode::Create,
            Self::Remove { .. } => CallCode::Remove,
            Self::Flush { .. } => CallCode::Flush,
            Self::Result { .. } => CallCode::Result,
            Self::Log { .. } => CallCode::Log,
            Self::Progress { .. } => CallCode::Progress,
            Self::Return { .. } => CallCode::Return,
            Self::Clear { .. } => CallCode::Clear,
            Self::CreateCollection { .. } => CallCode::CreateCollection,
            Self::RemoveCollection { .. } => CallCode::RemoveCollection,
            Self::AddMember { .. } => CallCode::AddMember,
            Self::RemoveMember { .. } => CallCode::RemoveMember,
            Self::IsMember { .. } => CallCode::IsMember,
        }
    }
}

impl SubmissionEntry {
    /// Encodes a request.
    #[must_use]
    pub fn new(generation: u32, cookie: u64, body: &RequestBody) -> Self {
        let mut entry = Self {
            code: body.code().number(),
            generation: generation.into(),
            cookie: cookie.into(),
            ..Self::default()
        };
        match *body {
            RequestBody::Read { object, offset, buffer: data }
            | RequestBody::Write { object, offset, data } => {
                entry.object = object.into();
                entry.first = offset.into();
                entry.set_data(data);
            }
            RequestBody::Append { object, data } => {
                entry.object = object.into();
                entry.set_data(data);
            }
            RequestBody::Punch { object, offset, length } | RequestBody::Clear { object, offset, length } => {
                entry.object = object.into();
                entry.first = offset.into();
                entry.second = length.into();
            }
            RequestBody::Length { object }
            | RequestBody::Create { object }
            | RequestBody::CreateCollection { collection: object }
            | RequestBody::Remove { object }
            | RequestBody::Flush { object } => entry.object = object.into(),
            RequestBody::GetAttribute { object, page, number, buffer: data }
            | RequestBody::SetAttribute { object, page, number, data } => {
                entry.object = object.into();
                entry.page = page.into();
                entry.number = number.into();
                entry.set_data(data);
            }
            RequestBody::List { object, after, buffer } => {
                entry.object = object.into();
                entry.first = after.into();
                entry.set_data(buffer);
            }
            RequestBody::RemoveCollection { collection, force } => {
                entry.object = collection.into();
                entry.number = u32::from(force).into();
            }
            RequestBody::AddMember { collection, object }
            | RequestBody::RemoveMember { collection, object }
            | RequestBody::IsMember { collection, object } => {
                entry.object = collection.into();
                entry.number = object.into();
            }
            RequestBody::Result { data } => entry.set_data(data),
            RequestBody::Log { level, data } => {
                entry.page = u32::from(level).into();
                entry.set_data(data);
            }
            RequestBody::Progress { done, total } => {
                entry.first = done.into();
                entry.second = total.into();
            }
            RequestBody::Return { status } => entry.first = status.cast_unsigned().into(),
        }
        entry
    }

    fn set_data(&mut self, data: HeapRange) {
        self.data_offset = data.offset.into();
        self.data_length = data.length.into();
    }

    /// Returns the number of the call that sent the entry.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.get()
    }

    /// Returns the number by which the engine finds its request again.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie.get()
    }

    /// Checks the entry against a heap of `heap_bytes`.
    ///
    /// # Errors
    ///
    /// A field has a value that no engine of ours sends.
    pub fn parse(&self, heap_bytes: u64) -> Result<RequestBody, EntryError> {
        let code = CallCode::from_number(self.code).ok_or(EntryError::UnknownCode(self.code))?;
        self.check_unused(code)?;
        let object = self.object.get();
        let (page, number) = (self.page.get(), self.number.get());
        let (first, second) = (self.first.get(), self.second.get());
        Ok(match code {
            CallCode::Read => {
                let buffer = self.data(REQUEST_BYTES_MAX, heap_bytes)?;
                check_range(first, u64::from(buffer.length))?;
                RequestBody::Read { object, offset: first, buffer }
            }
            CallCode::Write => {
                let data = self.data(REQUEST_BYTES_MAX, heap_bytes)?;
                check_range(first, u64::from(data.length))?;
                RequestBody::Write { object, offset: first, data }
            }
            CallCode::Append => {
                RequestBody::Append { object, data: self.data(REQUEST_BYTES_MAX, heap_bytes)? }
            }
            CallCode::Punch => {
                check_range(first, second)?;
                RequestBody::Punch { object, offset: first, length: second }
            }
            CallCode::Length => RequestBody::Length { object },
            CallCode::GetAttribute => {
                let buffer = self.data(ATTRIBUTE_BYTES_MAX, heap_bytes)?;
                RequestBody::GetAttribute { object, page, number, buffer }
            }
            CallCode::SetAttribute => {
                let data = self.data(ATTRIBUTE_BYTES_MAX, heap_bytes)?;
                RequestBody::SetAttribute { object, page, number, data }
            }
            CallCode::List => {
                let buffer = self.data(LIST_ENTRIES_MAX * 8, heap_bytes)?;
                if !buffer.length.is_multiple_of(8) {
                    return Err(EntryError::ListLength(buffer.length));
                }
                RequestBody::List { object, after: first, buffer }
            }
            CallCode::Create => RequestBody::Create { object },
            CallCode::Remove => RequestBody::Remove { object },
            CallCode::Flush => RequestBody::Flush { object },
            CallCode::Result => RequestBody::Result { data: self.data(REQUEST_BYTES_MAX, heap_bytes)? },
            CallCode::Log => {
                let level @ 1..=3 = page else { return Err(EntryError::LogLevel(page)) };
                RequestBody::Log { level: level as u8, data: self.data(LOG_LINE_BYTES_MAX, heap_bytes)? }
            }
            CallCode::Progress => RequestBody::Progress { done: first, total: second },
            CallCode::Return => RequestBody::Return { status: first.cast_signed() },
            CallCode::Clear => {
                check_range(first, second)?;
                RequestBody::Clear { object, offset: first, length: second }
            }
            CallCode::CreateCollection => RequestBody::CreateCollection { collection: object },
            CallCode::RemoveCollection => {
                let flag @ 0..=1 = number else { return Err(EntryError::Flag(number)) };
                RequestBody::RemoveCollection { collection: object, force: flag == 1 }
            }
            CallCode::AddMember => RequestBody::AddMember { collection: object, object: number },
            CallCode::RemoveMember => RequestBody::RemoveMember { collection: object, object: number },
            CallCode::IsMember => RequestBody::IsMember { collection: object, object: number },
        })
    }

    fn data(&self, limit: u32, heap_bytes: u64) -> Result<HeapRange, EntryError> {
        let (offset, length) = (self.data_offset.get(), self.data_length.get());
        if length > limit {
            return Err(EntryError::TooLong { length, limit });
        }
        HeapRange::new(offset, length, heap_bytes).ok_or(EntryError::OutsideHeap { offset, length })
    }

    /// Refuses values in fields that the call does not use, so that later versions can use them.
    fn check_unused(&self, code: CallCode) -> Result<(), EntryError> {
        use CallCode::{
            AddMember, Append, Clear, Create, CreateCollection, Flush, GetAttribute, IsMember, Length, List,
            Log, Progress, Punch, Read, Remove, RemoveCollection, RemoveMember, Return, SetAttribute, Write,
        };
        let of_collection =
            matches!(code, CreateCollection | RemoveCollection | AddMember | RemoveMember | IsMember);
        let no_object = matches!(code, CallCode::Result | Log | Progress | Return);
        let no_page = !matches!(code, GetAttribute | SetAttribute | Log);
        let has_number = of_collection && code != CreateCollection;
        let no_number = !has_number && !matches!(code, GetAttribute | SetAttribute);
        let no_data = of_collection
            || matches!(code, Punch | Clear | Length | Create | Remove | Flush | Progress | Return);
        let no_first = of_collection
            || matches!(
                code,
                Append
                    | Length
                    | GetAttribute
                    | SetAttribute
                    | Create
                    | Remove
                    | Flush
                    | CallCode::Result
                    | Log
            );
        let no_second = !matches!(code, Punch | Clear | Progress);
        debug_assert!(!no_first || !matches!(code, Read | Write | List));
        let fields = [
            ("reserved", self.reserved != [0; 3] || self.reserved_end != 0),
            ("object", no_object && self.object != 0),
            ("page", no_page && self.page != 0),
            ("number", no_number && self.number != 0),
            ("data_length", no_data && self.data_length != 0),
            ("data_offset", no_data && self.data_offset != 0),
            ("first", no_first && self.first != 0),
            ("second", no_second && self.second != 0),
        ];
        match fields.into_iter().find(|&(_, is_set)| is_set) {
            Some((name, _)) => Err(EntryError::NotZero(name)),
            None => Ok(()),
        }
    }
}

fn check_range(offset: u64, length: u64) -> Result<(), EntryError> {
    match offset.checked_add(length) {
        Some(_) => Ok(()),
        None => Err(EntryError::RangeOverflow { offset, length }),
    }
}

/// The outcome of a request, as the engine receives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCompletion {
    /// Number by which the engine finds its request.
    pub cookie: u64,
    /// A count, or a negative error number.
    pub result: i64,
    /// Second result of some calls: offset, length or object number.
    pub value: u64,
}

impl CompletionEntry {
    /// Encodes the outcome of a request.
    #[must_use]
    pub fn new(generation: u32, completion: RingCompletion) -> Self {
        Self {
            cookie: completion.cookie.into(),
            result: completion.result.into(),
            value: completion.value.into(),
            generation: generation.into(),
            reserved: 0.into(),
        }
    }

    /// Returns the number of the call.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.get()
    }

    /// Returns the outcome.
    #[must_use]
    pub fn completion(&self) -> RingCompletion {
        RingCompletion { cookie: self.cookie.get(), result: self.result.get(), value: self.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    const HEAP: u64 = 64 << 20;

    fn heap_range(limit: u32) -> impl Strategy<Value = HeapRange> + Clone {
        (0..=limit, any::<u64>()).prop_map(|(length, place)| {
            let offset = place % (HEAP - u64::from(length) + 1);
            HeapRange::new(offset, length, HEAP).expect("within the heap")
        })
    }

    prop_compose! {
        fn object_range()(length in any::<u64>(), place in any::<u64>()) -> (u64, u64) {
            (place.min(u64::MAX - length), length)
        }
    }

    fn any_body() -> impl Strategy<Value = RequestBody> {
        let object = any::<u32>();
        let attribute = (any::<u32>(), any::<u32>(), any::<u32>(), heap_range(ATTRIBUTE_BYTES_MAX));
        let transfer =
            (any::<u32>(), 0..u64::MAX - u64::from(REQUEST_BYTES_MAX), heap_range(REQUEST_BYTES_MAX));
        prop_oneof![
            transfer.clone().prop_map(|(object, offset, buffer)| RequestBody::Read {
                object,
                offset,
                buffer
            }),
            transfer.clone().prop_map(|(object, offset, data)| RequestBody::Write { object, offset, data }),
            transfer.prop_map(|(object, _, data)| RequestBody::Append { object, data }),
            (object, object_range()).prop_map(|(object, (offset, length))| RequestBody::Punch {
                object,
                offset,
                length
            }),
            any::<u32>().prop_map(|object| RequestBody::Length { object }),
            attribute.clone().prop_map(|(object, page, number, buffer)| RequestBody::GetAttribute {
                object,
                page,
                number,
                buffer
            }),
            attribute.prop_map(|(object, page, number, data)| RequestBody::SetAttribute {
                object,
                page,
                number,
                data
            }),
            (any::<u32>(), any::<u64>(), heap_range(LIST_ENTRIES_MAX * 8)).prop_map(
                |(object, after, buffer)| RequestBody::List {
                    object,
                    after,
                    buffer: buffer.first(buffer.length() / 8 * 8)
                }
            ),
            any::<u32>().prop_map(|object| RequestBody::Create { object }),
            any::<u32>().prop_map(|object| RequestBody::Remove { object }),
            any::<u32>().prop_map(|object| RequestBody::Flush { object }),
            heap_range(REQUEST_BYTES_MAX).prop_map(|data| RequestBody::Result { data }),
            (1..=3u8, heap_range(LOG_LINE_BYTES_MAX))
                .prop_map(|(level, data)| RequestBody::Log { level, data }),
            any::<(u64, u64)>().prop_map(|(done, total)| RequestBody::Progress { done, total }),
            (object, object_range()).prop_map(|(object, (offset, length))| RequestBody::Clear {
                object,
                offset,
                length
            }),
            object.prop_map(|collection| RequestBody::CreateCollection { collection }),
            any::<(u32, bool)>()
                .prop_map(|(collection, force)| RequestBody::RemoveCollection { collection, force }),
            any::<(u32, u32)>()
                .prop_map(|(collection, object)| RequestBody::AddMember { collection, object }),
            any::<(u32, u32)>()
                .prop_map(|(collection, object)| RequestBody::RemoveMember { collection, object }),
            any::<(u32, u32)>().prop_map(|(collection, object)| RequestBody::IsMember { collection, object }),
            any::<i64>().prop_map(|status| RequestBody::Return { status }),
        ]
    }

    proptest! {
        #[test]
        fn request_round_trips(body in any_body(), generation: u32, cookie: u64) {
            let entry = SubmissionEntry::new(generation, cookie, &body);
            prop_assert_eq!(entry.parse(HEAP), Ok(body));
            prop_assert_eq!((entry.generation(), entry.cookie()), (generation, cookie));
        }

        #[test]
        fn arbitrary_entries_parse_within_limits(bytes: [u8; SUBMISSION_BYTES], code in 0..26u8) {
            let mut bytes = bytes;
            bytes[0] = code;
            let entry = SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes");
            if let Ok(body) = entry.parse(HEAP) {
                prop_assert_eq!(SubmissionEntry::new(entry.generation(), entry.cookie(), &body), entry);
            }
        }

        #[test]
        fn completions_read_back(generation: u32, cookie: u64, result: i64, value: u64) {
            let completion = RingCompletion { cookie, result, value };
            let entry = CompletionEntry::new(generation, completion);
            let entry = CompletionEntry::read_from_bytes(entry.as_bytes()).expect("32 bytes");
            prop_assert_eq!((entry.generation(), entry.completion()), (generation, completion));
        }
    }

    fn valid_read() -> SubmissionEntry {
        let buffer = HeapRange::new(0, 4096, HEAP).expect("within the heap");
        SubmissionEntry::new(1, 2, &RequestBody::Read { object: 3, offset: 4, buffer })
    }

    #[test]
    fn each_wrong_field_is_refused() {
        type Change = fn(&mut SubmissionEntry);
        let changes: [(Change, EntryError); 9] = [
            (|entry| entry.code = 0, EntryError::UnknownCode(0)),
            (|entry| entry.code = 22, EntryError::UnknownCode(22)),
            (|entry| entry.reserved[2] = 1, EntryError::NotZero("reserved")),
            (|entry| entry.reserved_end = 1.into(), EntryError::NotZero("reserved")),
            (|entry| entry.page = 1.into(), EntryError::NotZero("page")),
            (|entry| entry.second = 1.into(), EntryError::NotZero("second")),
            (
                |entry| entry.data_length = (REQUEST_BYTES_MAX + 1).into(),
                EntryError::TooLong { length: REQUEST_BYTES_MAX + 1, limit: REQUEST_BYTES_MAX },
            ),
            (
                |entry| entry.data_offset = (u64::MAX - 10).into(),
                EntryError::OutsideHeap { offset: u64::MAX - 10, length: 4096 },
            ),
            (
                |entry| entry.first = (u64::MAX - 10).into(),
                EntryError::RangeOverflow { offset: u64::MAX - 10, length: 4096 },
            ),
        ];
        for (change, error) in changes {
            let mut entry = valid_read();
            change(&mut entry);
            assert_eq!(entry.parse(HEAP), Err(error));
        }
        assert!(valid_read().parse(4096).is_ok());
        assert_eq!(valid_read().parse(4095), Err(EntryError::OutsideHeap { offset: 0, length: 4096 }));
    }

    #[test]
    fn odd_lists_levels_and_flags_are_refused() {
        let buffer = HeapRange::new(0, 12, HEAP).expect("within the heap");
        let list = SubmissionEntry::new(1, 1, &RequestBody::List { object: 0, after: 0, buffer });
        assert_eq!(list.parse(HEAP), Err(EntryError::ListLength(12)));
        let removal = RequestBody::RemoveCollection { collection: 1, force: true };
        let mut removal = SubmissionEntry::new(1, 1, &removal);
        removal.number = 2.into();
        assert_eq!(removal.parse(HEAP), Err(EntryError::Flag(2)));
        for level in [0, 4] {
            let log = SubmissionEntry::new(1, 1, &RequestBody::Log { level, data: buffer });
            assert_eq!(log.parse(HEAP), Err(EntryError::LogLevel(u32::from(level))));
        }
    }
}
