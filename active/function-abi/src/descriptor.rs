//! The descriptor of a call, which the device writes into shared memory, and the structures that a
//! function receives.
//!
//! Does: encodes and parses method, arguments, objects with their rights, and limits.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};
use zeroize::Zeroizing;

use crate::layout::host::DESCRIPTOR_BYTES;
use crate::limits::{ARGUMENT_BYTES_MAX, METHOD_BYTES_MAX, OBJECTS_MAX};
use crate::{API_MAJOR, API_MINOR};

/// Rights of a handle: the first byte of the permissions of OSD-2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectRights(u8);

impl ObjectRights {
    /// No right.
    pub const NONE: Self = Self(0);
    /// Reads bytes and length; lists a partition or collection.
    pub const READ: Self = Self(0x80);
    /// Writes, clears and punches bytes.
    pub const WRITE: Self = Self(0x40);
    /// Reads attributes.
    pub const GET_ATTRIBUTE: Self = Self(0x20);
    /// Sets attributes.
    pub const SET_ATTRIBUTE: Self = Self(0x10);
    /// Creates objects or collections in a partition.
    pub const CREATE: Self = Self(0x08);
    /// Removes the object or collection.
    pub const REMOVE: Self = Self(0x04);
    /// Flushes the object.
    pub const MANAGE: Self = Self(0x02);
    /// Appends bytes.
    pub const APPEND: Self = Self(0x01);

    /// Each right with its name in the C header and its name on the wire.
    pub const NAMES: [(Self, &'static str, &'static str); 8] = [
        (Self::READ, "OSD_READ", "READ"),
        (Self::WRITE, "OSD_WRITE", "WRITE"),
        (Self::GET_ATTRIBUTE, "OSD_GET_ATTRIBUTE", "GET_ATTR"),
        (Self::SET_ATTRIBUTE, "OSD_SET_ATTRIBUTE", "SET_ATTR"),
        (Self::CREATE, "OSD_CREATE", "CREATE"),
        (Self::REMOVE, "OSD_REMOVE", "REMOVE"),
        (Self::MANAGE, "OSD_MANAGE", "OBJ_MGMT"),
        (Self::APPEND, "OSD_APPEND", "APPEND"),
    ];

    /// Returns the rights of a byte.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns the byte.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all rights of `other` are present.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Type of an object, by its code in OSD-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// A partition.
    Partition = 0x02,
    /// A collection.
    Collection = 0x40,
    /// A user object: bytes and attributes.
    User = 0x80,
}

impl ObjectKind {
    /// All types, with their names in the C header.
    pub const NAMES: [(Self, &'static str); 3] = [
        (Self::Partition, "OSD_PARTITION"),
        (Self::Collection, "OSD_COLLECTION"),
        (Self::User, "OSD_USER_OBJECT"),
    ];

    /// Returns the type of a code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0x02 => Some(Self::Partition),
            0x40 => Some(Self::Collection),
            0x80 => Some(Self::User),
            _ => None,
        }
    }
}

/// Bytes of [`GuestObject`].
pub const GUEST_OBJECT_BYTES: usize = 32;
/// Bytes of [`GuestCall`].
pub const GUEST_CALL_BYTES: usize = 64;

/// An object of a call: `struct osd_object` of the C header. Its handle is its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GuestObject {
    partition: U64,
    number: U64,
    length: U64,
    kind: u8,
    rights: u8,
    reserved: [u8; 6],
}

const _: () = assert!(size_of::<GuestObject>() == GUEST_OBJECT_BYTES);

impl GuestObject {
    /// Returns the description of an object. The length is that at the start of the call, as far as
    /// the rights show it.
    #[must_use]
    pub fn new(partition: u64, number: u64, kind: ObjectKind, rights: ObjectRights, length: u64) -> Self {
        Self {
            partition: partition.into(),
            number: number.into(),
            length: length.into(),
            kind: kind as u8,
            rights: rights.bits(),
            reserved: [0; 6],
        }
    }

    /// Returns the partition.
    #[must_use]
    pub fn partition(&self) -> u64 {
        self.partition.get()
    }

    /// Returns the number of the object; 0 for a partition.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number.get()
    }

    /// Returns the length at the start of the call, in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length.get()
    }

    /// Returns the type; `None` for a reserved code.
    #[must_use]
    pub const fn kind(&self) -> Option<ObjectKind> {
        ObjectKind::from_code(self.kind)
    }

    /// Returns the rights.
    #[must_use]
    pub const fn rights(&self) -> ObjectRights {
        ObjectRights::from_bits(self.rights)
    }
}

/// The argument of a function: `struct osd_call` of the C header, the same in 32 and 64 bits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct GuestCall {
    size: U32,
    api_major: U16,
    api_minor: U16,
    method: U64,
    arguments: U64,
    objects: U64,
    method_length: U32,
    argument_length: U32,
    object_count: U32,
    timeout_ms: U32,
    result_bytes_max: U64,
    reserved: U64,
}

const _: () = assert!(size_of::<GuestCall>() == GUEST_CALL_BYTES);

impl GuestCall {
    /// Returns the structure for a descriptor whose method, arguments and objects were copied to
    /// these addresses of the function's memory. A zero byte follows method and arguments.
    #[must_use]
    pub fn new(call: &CallDescriptor<'_>, method: u64, arguments: u64, objects: u64) -> Self {
        // Lengths are within the limits of a descriptor, which fit in 32 bits.
        Self {
            size: (GUEST_CALL_BYTES as u32).into(),
            api_major: API_MAJOR.into(),
            api_minor: API_MINOR.into(),
            method: method.into(),
            arguments: arguments.into(),
            objects: objects.into(),
            method_length: (call.method.len() as u32).into(),
            argument_length: (call.arguments.len() as u32).into(),
            object_count: (call.objects.len() as u32).into(),
            timeout_ms: call.timeout_ms.into(),
            result_bytes_max: call.result_bytes_max.into(),
            reserved: 0.into(),
        }
    }
}

/// A call as the host describes it.
#[derive(Clone, Copy, Default)]
pub struct CallDescriptor<'a> {
    /// The method; empty for the default method.
    pub method: &'a str,
    /// The arguments.
    pub arguments: &'a [u8],
    /// The objects, whose handles are their indices.
    pub objects: &'a [GuestObject],
    /// Time in milliseconds until the function is killed; 0 if only the device's limits apply.
    pub timeout_ms: u32,
    /// Maximum bytes of the result.
    pub result_bytes_max: u64,
    /// Whether the arguments are secret: an engine then logs no text that may contain them.
    pub secret_arguments: bool,
}

impl fmt::Debug for CallDescriptor<'_> {
    /// Omits the arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallDescriptor")
            .field("method", &self.method)
            .field("arguments_len", &self.arguments.len())
            .field("objects", &self.objects)
            .finish_non_exhaustive()
    }
}

/// Why a call descriptor is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// The method is too long.
    #[error("method of {0} bytes, at most {METHOD_BYTES_MAX}")]
    MethodLength(usize),
    /// The method is not UTF-8.
    #[error("method is not UTF-8")]
    MethodText,
    /// The arguments are too long.
    #[error("arguments of {0} bytes, at most {ARGUMENT_BYTES_MAX}")]
    ArgumentLength(usize),
    /// There are too many objects.
    #[error("{0} objects, at most {OBJECTS_MAX}")]
    ObjectCount(usize),
    /// The host speaks another major version of the interface.
    #[error("function interface {0}, not {API_MAJOR}")]
    Version(u16),
}

/// Flag of a descriptor: the arguments are secret.
const FLAG_SECRET_ARGUMENTS: u32 = 1;

/// Fixed part of a descriptor in memory.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DescriptorHeader {
    api_major: U16,
    api_minor: U16,
    object_count: U32,
    method_length: U32,
    argument_length: U32,
    timeout_ms: U32,
    flags: U32,
    result_bytes_max: U64,
    reserved_end: [u8; 32],
}

const _: () = assert!(size_of::<DescriptorHeader>() == DESCRIPTOR_BYTES);

impl CallDescriptor<'_> {
    /// Checks all limits and returns the fixed part of the descriptor.
    ///
    /// # Errors
    ///
    /// A field exceeds its limit.
    pub fn encode_header(&self) -> Result<[u8; DESCRIPTOR_BYTES], DescriptorError> {
        check_lengths(self.method.len(), self.arguments.len(), self.objects.len())?;
        let header = DescriptorHeader {
            api_major: API_MAJOR.into(),
            api_minor: API_MINOR.into(),
            object_count: (self.objects.len() as u32).into(),
            method_length: (self.method.len() as u32).into(),
            argument_length: (self.arguments.len() as u32).into(),
            timeout_ms: self.timeout_ms.into(),
            flags: (if self.secret_arguments { FLAG_SECRET_ARGUMENTS } else { 0 }).into(),
            result_bytes_max: self.result_bytes_max.into(),
            reserved_end: [0; 32],
        };
        Ok(zerocopy::transmute!(header))
    }
}

fn check_lengths(method: usize, arguments: usize, objects: usize) -> Result<(), DescriptorError> {
    if method > METHOD_BYTES_MAX {
        return Err(DescriptorError::MethodLength(method));
    }
    if arguments > ARGUMENT_BYTES_MAX {
        return Err(DescriptorError::ArgumentLength(arguments));
    }
    if objects > OBJECTS_MAX {
        return Err(DescriptorError::ObjectCount(objects));
    }
    Ok(())
}

/// A call in the memory of the engine.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnedCallDescriptor {
    /// The method; empty for the default method.
    pub method: String,
    /// The arguments, cleared after use.
    pub arguments: Zeroizing<Vec<u8>>,
    /// The objects, whose handles are their indices.
    pub objects: Vec<GuestObject>,
    /// Time in milliseconds until the function is killed; 0 if only the device's limits apply.
    pub timeout_ms: u32,
    /// Maximum bytes of the result.
    pub result_bytes_max: u64,
    /// Whether the arguments are secret.
    pub secret_arguments: bool,
}

impl fmt::Debug for OwnedCallDescriptor {
    /// Omits the arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.borrow(), f)
    }
}

impl OwnedCallDescriptor {
    /// Returns the call as a view.
    #[must_use]
    pub fn borrow(&self) -> CallDescriptor<'_> {
        CallDescriptor {
            method: &self.method,
            arguments: &self.arguments,
            objects: &self.objects,
            timeout_ms: self.timeout_ms,
            result_bytes_max: self.result_bytes_max,
            secret_arguments: self.secret_arguments,
        }
    }

    /// Reads a call: `copy` fills a buffer from a part of the descriptor.
    ///
    /// # Errors
    ///
    /// A length exceeds its limit, the method is not UTF-8, or the version differs.
    pub fn read(
        header: [u8; DESCRIPTOR_BYTES],
        mut copy: impl FnMut(DescriptorPart, &mut [u8]),
    ) -> Result<Self, DescriptorError> {
        let header: DescriptorHeader = zerocopy::transmute!(header);
        if header.api_major != API_MAJOR {
            return Err(DescriptorError::Version(header.api_major.get()));
        }
        let method_length = header.method_length.get() as usize;
        let argument_length = header.argument_length.get() as usize;
        let object_count = header.object_count.get() as usize;
        check_lengths(method_length, argument_length, object_count)?;
        let mut method = alloc::vec![0; method_length];
        copy(DescriptorPart::Method, &mut method);
        let method = String::from_utf8(method).map_err(|_| DescriptorError::MethodText)?;
        let mut arguments = Zeroizing::new(alloc::vec![0; argument_length]);
        copy(DescriptorPart::Arguments, &mut arguments);
        let mut objects = alloc::vec![GuestObject::new_zeroed(); object_count];
        copy(DescriptorPart::Objects, objects.as_mut_bytes());
        Ok(Self {
            method,
            arguments,
            objects,
            timeout_ms: header.timeout_ms.get(),
            result_bytes_max: header.result_bytes_max.get(),
            secret_arguments: header.flags.get() & FLAG_SECRET_ARGUMENTS != 0,
        })
    }
}

/// A variable part of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorPart {
    /// The method.
    Method,
    /// The arguments.
    Arguments,
    /// The object descriptions.
    Objects,
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    fn sample<'a>(arguments: &'a [u8], objects: &'a [GuestObject]) -> CallDescriptor<'a> {
        CallDescriptor {
            method: "count",
            arguments,
            objects,
            timeout_ms: 30_000,
            result_bytes_max: 1 << 20,
            secret_arguments: false,
        }
    }

    fn read(
        call: &CallDescriptor<'_>,
        header: [u8; DESCRIPTOR_BYTES],
    ) -> Result<OwnedCallDescriptor, DescriptorError> {
        OwnedCallDescriptor::read(header, |part, buffer| match part {
            DescriptorPart::Method => buffer.copy_from_slice(call.method.as_bytes()),
            DescriptorPart::Arguments => buffer.copy_from_slice(call.arguments),
            DescriptorPart::Objects => buffer.copy_from_slice(call.objects.as_bytes()),
        })
    }

    #[test]
    fn descriptor_reads_back_at_its_limits() {
        let arguments = vec![7; ARGUMENT_BYTES_MAX];
        let objects =
            vec![GuestObject::new(0x10000, 0x10001, ObjectKind::User, ObjectRights::READ, 4096); OBJECTS_MAX];
        let call = sample(&arguments, &objects);
        let owned = read(&call, call.encode_header().expect("within limits")).expect("valid");
        assert_eq!(owned.method, "count");
        assert_eq!(*owned.arguments, arguments);
        assert_eq!(owned.objects, objects);
        assert_eq!((owned.timeout_ms, owned.result_bytes_max), (30_000, 1 << 20));
        assert_eq!(owned.objects[0].kind(), Some(ObjectKind::User));
        for secret_arguments in [false, true] {
            let call = CallDescriptor { secret_arguments, ..call };
            let owned = read(&call, call.encode_header().expect("within limits")).expect("valid");
            assert_eq!(owned.secret_arguments, secret_arguments);
        }
    }

    #[test]
    fn limits_plus_one_are_refused() {
        let arguments = vec![7; ARGUMENT_BYTES_MAX + 1];
        let error = sample(&arguments, &[]).encode_header().unwrap_err();
        assert_eq!(error, DescriptorError::ArgumentLength(ARGUMENT_BYTES_MAX + 1));
        let object = GuestObject::new(1, 2, ObjectKind::User, ObjectRights::READ, 0);
        let objects = vec![object; OBJECTS_MAX + 1];
        let error = sample(&[], &objects).encode_header().unwrap_err();
        assert_eq!(error, DescriptorError::ObjectCount(OBJECTS_MAX + 1));
        let method = "m".repeat(METHOD_BYTES_MAX + 1);
        let call = CallDescriptor { method: &method, ..sample(&[], &[]) };
        assert_eq!(call.encode_header().unwrap_err(), DescriptorError::MethodLength(METHOD_BYTES_MAX + 1));
    }

    #[test]
    fn wrong_descriptors_are_refused() {
        let call = sample(&[], &[]);
        let good = call.encode_header().expect("within limits");
        let mut other_version = good;
        other_version[0] = 2;
        assert_eq!(read(&call, other_version), Err(DescriptorError::Version(2)));
        let mut long = good;
        long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read(&call, long), Err(DescriptorError::ArgumentLength(u32::MAX as usize)));
        let text = OwnedCallDescriptor::read(good, |_, buffer| buffer.fill(0xFF));
        assert_eq!(text, Err(DescriptorError::MethodText));
    }

    #[test]
    fn debug_output_omits_arguments() {
        let call = sample(b"key=hunter2", &[]);
        let shown = alloc::format!("{call:?}").to_string();
        assert!(shown.contains("arguments_len: 11") && !shown.contains("hunter2"));
    }

    #[test]
    fn limits_and_rights_match_the_wire() {
        use sealstone_osd::function;
        assert_eq!(METHOD_BYTES_MAX, function::METHOD_MAX);
        assert_eq!(ARGUMENT_BYTES_MAX, function::ARGUMENTS_MAX);
        assert_eq!(OBJECTS_MAX, function::OBJECTS_MAX);
        assert_eq!(API_MAJOR, function::ApiVersion::CURRENT.major);
        assert_eq!(API_MINOR, function::ApiVersion::CURRENT.minor);
        let all = ObjectRights::NAMES.iter().fold(0, |all, (right, ..)| all | right.bits());
        assert_eq!(all, 0xFF);
    }
}
