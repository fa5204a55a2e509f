//! Capabilities: the rights of the bearer of a credential (OSD-2 §4.11.2).
//!
//! Does: converts between bytes and typed fields.
//! Does not: check anything but the layout; `seal` verifies.
//! Contract: the check value covers the wire bytes, so keep [`CapabilityBytes`] beside a parsed
//! [`Capability`].
//! Source of truth: `docs/standards/osd.md`, capability.

use core::{fmt, mem::offset_of, ops::Deref};

use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{time_bytes, time_from};
use crate::{Generation, ObjectId, ObjectType, Permissions, SecurityMethod};

/// A parsed capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    /// The layout of the descriptor, which is that of the CDB around it.
    pub generation: Generation,
    /// The value of CAPABILITY FORMAT; open-osd sets OSD-1 in OSD-2 CDBs.
    pub format: Generation,
    /// Working key 0 to 15.
    pub key_version: u8,
    /// Slot 0 to 15 of the integrity check value algorithm (attribute R+5, 8000_0000h + slot).
    pub icv_algorithm: u8,
    /// The method that this capability requires.
    pub method: SecurityMethod,
    /// Milliseconds since 1970-01-01 UT, 48 bits; 0 never expires.
    pub expires_ms: u64,
    /// Opaque to the device.
    pub audit: [u8; 20],
    /// Distinguishes capabilities that are otherwise equal.
    pub discriminator: [u8; 12],
    /// Must equal the object's created time, milliseconds, 48 bits; 0 is not checked.
    pub object_created_ms: u64,
    /// Type of the object.
    pub object_type: ObjectType,
    /// The permitted operations.
    pub permissions: Permissions,
    /// The object.
    pub descriptor: Descriptor,
}

/// OBJECT DESCRIPTOR: the object of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Descriptor {
    /// No object: allows nothing.
    None,
    /// A user object (in OSD-1 also a collection).
    User {
        /// Conditions on the object.
        scope: Scope,
        /// The object; number 0 where a create lets the device choose.
        allowed: ObjectId,
        /// The permitted bytes (OSD-2).
        range: Range,
    },
    /// A partition, or the root with partition 0.
    Partition {
        /// Conditions on the partition.
        scope: Scope,
        /// Its id.
        partition: u64,
    },
    /// A collection (OSD-2).
    Collection {
        /// Conditions on the collection.
        scope: Scope,
        /// The collection.
        allowed: ObjectId,
    },
}

impl Descriptor {
    /// Returns the conditions; `None` for no descriptor.
    #[must_use]
    pub const fn scope(&self) -> Option<Scope> {
        match *self {
            Self::None => None,
            Self::User { scope, .. } | Self::Partition { scope, .. } | Self::Collection { scope, .. } => {
                Some(scope)
            }
        }
    }

    /// Returns the permitted object; `None` for no descriptor.
    #[must_use]
    pub const fn allowed(&self) -> Option<ObjectId> {
        match *self {
            Self::None => None,
            Self::User { allowed, .. } | Self::Collection { allowed, .. } => Some(allowed),
            Self::Partition { partition, .. } => Some(ObjectId::of_partition(partition)),
        }
    }
}

/// Conditions in every descriptor type; zero means "not checked".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// ALLOWED ATTRIBUTES ACCESS: number of an attribute of page P+4 (OSD-2).
    pub attributes_access: u32,
    /// Must equal the object's policy access tag.
    pub policy_access_tag: u32,
    /// Must equal the device's boot epoch (OSD-2).
    pub boot_epoch: u16,
}

/// ALLOWED RANGE of a user object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Range {
    /// Every byte; also the range of an OSD-1 capability.
    pub const ALL: Self = Self { start: 0, length: u64::MAX };

    /// Whether the range includes `length` bytes at `start`.
    ///
    /// A capability with start and length 0 does not restrict, as zero does in every other field:
    /// our choice.
    #[must_use]
    pub const fn permits(self, start: u64, length: u64) -> bool {
        if self.start == 0 && (self.length == 0 || self.length == u64::MAX) {
            return true;
        }
        match (start.checked_add(length), self.start.checked_add(self.length)) {
            (Some(end), Some(limit)) => start >= self.start && end <= limit,
            (Some(_), None) => start >= self.start,
            (None, _) => false,
        }
    }

    /// Returns the offset after the last permitted byte; `u64::MAX` without a limit.
    #[must_use]
    pub const fn end(self) -> u64 {
        if self.permits(0, u64::MAX) { u64::MAX } else { self.start.saturating_add(self.length) }
    }
}

/// Why bytes are not a capability; [`CapabilityError::offset`] returns the offset of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CapabilityError {
    /// Fewer or more bytes than the generation has.
    #[error("capability has {actual} bytes, expected {expected}")]
    Length {
        /// Bytes given.
        actual: usize,
        /// Bytes of this generation.
        expected: usize,
    },
    /// Format 0: the sender has no capability.
    #[error("no capability")]
    Absent,
    /// Format 3 to 15.
    #[error("unknown capability format {0}")]
    Format(u8),
    /// Method 4 to 15.
    #[error("unknown security method {0}")]
    Method(u8),
    /// The type is unknown.
    #[error("unknown object type {0:#04x}")]
    ObjectType(u8),
    /// Reserved descriptor type.
    #[error("reserved object descriptor type {0}")]
    DescriptorType(u8),
}

impl CapabilityError {
    /// Returns the offset of the wrong field from the start of the capability.
    #[must_use]
    pub const fn offset(&self) -> u16 {
        (match self {
            Self::Length { .. } | Self::Absent | Self::Format(_) => offset_of!(CapabilityHead, format),
            Self::Method(_) => offset_of!(CapabilityHead, method),
            Self::ObjectType(_) => offset_of!(CapabilityHead, object_type),
            Self::DescriptorType(_) => offset_of!(CapabilityHead, descriptor_type),
        }) as u16
    }
}

/// Offsets of fields from the start of a capability, for field pointers.
pub mod offset {
    use super::{CapabilityHead, Osd1, Osd2, offset_of};
    /// CAPABILITY FORMAT.
    pub const FORMAT: u16 = offset_of!(CapabilityHead, format) as u16;
    /// KEY VERSION and INTEGRITY CHECK VALUE ALGORITHM.
    pub const KEY_VERSION: u16 = offset_of!(CapabilityHead, key_and_algorithm) as u16;
    /// SECURITY METHOD.
    pub const METHOD: u16 = offset_of!(CapabilityHead, method) as u16;
    /// CAPABILITY EXPIRATION TIME.
    pub const EXPIRATION: u16 = offset_of!(CapabilityHead, expires) as u16;
    /// Offset of AUDIT.
    pub const AUDIT: u16 = offset_of!(CapabilityHead, audit) as u16;
    /// OBJECT CREATED TIME.
    pub const CREATED: u16 = offset_of!(CapabilityHead, created) as u16;
    /// OBJECT TYPE.
    pub const OBJECT_TYPE: u16 = offset_of!(CapabilityHead, object_type) as u16;
    /// PERMISSIONS BIT MASK.
    pub const PERMISSIONS: u16 = offset_of!(CapabilityHead, permissions) as u16;
    /// OBJECT DESCRIPTOR TYPE.
    pub const DESCRIPTOR_TYPE: u16 = offset_of!(CapabilityHead, descriptor_type) as u16;
    /// POLICY ACCESS TAG, OSD-1 and OSD-2.
    pub const POLICY_ACCESS_TAG: [u16; 2] =
        [offset_of!(Osd1, policy_access_tag) as u16, offset_of!(Osd2, policy_access_tag) as u16];
    /// ALLOWED PARTITION ID, OSD-1 and OSD-2.
    pub const PARTITION: [u16; 2] = [offset_of!(Osd1, partition) as u16, offset_of!(Osd2, partition) as u16];
    /// ALLOWED OBJECT ID, OSD-1 and OSD-2.
    pub const OBJECT: [u16; 2] = [offset_of!(Osd1, object) as u16, offset_of!(Osd2, object) as u16];
    /// ALLOWED ATTRIBUTES ACCESS (OSD-2).
    pub const ATTRIBUTES_ACCESS: u16 = offset_of!(Osd2, attributes_access) as u16;
    /// BOOT EPOCH (OSD-2).
    pub const BOOT_EPOCH: u16 = offset_of!(Osd2, boot_epoch) as u16;
    /// ALLOWED RANGE LENGTH (OSD-2).
    pub const RANGE: u16 = offset_of!(Osd2, range_length) as u16;
}

impl Capability {
    /// Parses the layout of `generation`, whatever CAPABILITY FORMAT says: open-osd fills OSD-2
    /// fields under format 1. The verifier decides whether `format` must equal `generation`.
    ///
    /// # Errors
    /// See [`CapabilityError`].
    pub fn parse(generation: Generation, bytes: &[u8]) -> Result<Self, CapabilityError> {
        let wrong_length =
            || CapabilityError::Length { actual: bytes.len(), expected: generation.capability_len() };
        let (head, body) = match generation {
            Generation::Osd1 => {
                Osd1::read_from_bytes(bytes).ok().map(|wire| (wire.head, DescriptorBody::from(wire)))
            }
            Generation::Osd2 => {
                Osd2::read_from_bytes(bytes).ok().map(|wire| (wire.head, DescriptorBody::from(wire)))
            }
        }
        .ok_or_else(wrong_length)?;
        let format = match head.format & 0x0F {
            0 => return Err(CapabilityError::Absent),
            1 => Generation::Osd1,
            2 => Generation::Osd2,
            other => return Err(CapabilityError::Format(other)),
        };
        Ok(Self {
            generation,
            format,
            key_version: head.key_and_algorithm >> 4,
            icv_algorithm: head.key_and_algorithm & 0x0F,
            method: SecurityMethod::from_nibble(head.method)
                .ok_or(CapabilityError::Method(head.method & 0x0F))?,
            expires_ms: time_from(head.expires),
            audit: head.audit,
            discriminator: head.discriminator,
            object_created_ms: time_from(head.created),
            object_type: ObjectType::from_byte(head.object_type)
                .ok_or(CapabilityError::ObjectType(head.object_type))?,
            permissions: Permissions::from_bytes(head.permissions),
            descriptor: body.descriptor(generation, head.descriptor_type >> 4)?,
        })
    }

    /// Returns the wire form; reserved fields are zero, times beyond 48 bits saturate, nibbles are
    /// masked.
    ///
    /// OSD-1 has one descriptor type for user objects and collections, and no range.
    #[must_use]
    pub fn encode(&self) -> CapabilityBytes {
        let (descriptor_type, body) = DescriptorBody::of(self.generation, &self.descriptor);
        let head = CapabilityHead {
            format: self.format.number(),
            key_and_algorithm: self.key_version << 4 | self.icv_algorithm & 0x0F,
            method: self.method as u8,
            reserved_3: 0,
            expires: time_bytes(self.expires_ms),
            audit: self.audit,
            discriminator: self.discriminator,
            created: time_bytes(self.object_created_ms),
            object_type: self.object_type as u8,
            permissions: self.permissions.bytes(),
            reserved_54: 0,
            descriptor_type: descriptor_type << 4,
        };
        match self.generation {
            Generation::Osd1 => CapabilityBytes::from_slice(self.generation, body.osd1(head).as_bytes()),
            Generation::Osd2 => CapabilityBytes::from_slice(self.generation, body.osd2(head).as_bytes()),
        }
    }
}

/// The fields of a capability that are never encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearFields {
    /// KEY VERSION.
    pub key_version: u8,
    /// INTEGRITY CHECK VALUE ALGORITHM: a slot.
    pub icv_algorithm: u8,
    /// SECURITY METHOD.
    pub method: SecurityMethod,
}

/// The wire bytes of a capability, 80 or 104, which a check value covers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CapabilityBytes {
    generation: Generation,
    bytes: [u8; Generation::Osd2.capability_len()],
}

impl CapabilityBytes {
    /// Returns all zeros: the sender has no capability.
    #[must_use]
    pub const fn absent(generation: Generation) -> Self {
        Self { generation, bytes: [0; Generation::Osd2.capability_len()] }
    }

    /// Creates it from exactly as many bytes as the generation has; `None` for another number.
    #[must_use]
    pub fn new(generation: Generation, bytes: &[u8]) -> Option<Self> {
        (bytes.len() == generation.capability_len()).then(|| Self::from_slice(generation, bytes))
    }

    /// Returns the generation, which sets the length.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Parses the fields.
    ///
    /// # Errors
    /// See [`CapabilityError`].
    pub fn parse(&self) -> Result<Capability, CapabilityError> {
        Capability::parse(self.generation, self)
    }

    /// CAPABILITY FORMAT of a sealed capability, which only the device can read with the working
    /// key. Ours: the standard has 0 to 2.
    pub const SEALED_FORMAT: u8 = 0x0E;

    /// Whether it is sealed. Then only the fields of [`Self::clear`] can be parsed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.generation == Generation::Osd2 && self[0] == Self::SEALED_FORMAT
    }

    /// Parses the fields that are in the clear in any capability, sealed or not.
    ///
    /// # Errors
    /// [`CapabilityError::Absent`], [`CapabilityError::Format`], [`CapabilityError::Method`].
    pub fn clear(&self) -> Result<ClearFields, CapabilityError> {
        match self[0] & 0x0F {
            0 => return Err(CapabilityError::Absent),
            1 | 2 => {}
            _ if self.is_sealed() => {}
            other => return Err(CapabilityError::Format(other)),
        }
        Ok(ClearFields {
            key_version: self[1] >> 4,
            icv_algorithm: self[1] & 0x0F,
            method: SecurityMethod::from_nibble(self[2]).ok_or(CapabilityError::Method(self[2] & 0x0F))?,
        })
    }

    /// Whether all reserved bits are zero. Only then do the parsed fields encode to exactly these
    /// bytes.
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        self.parse().is_ok_and(|capability| capability.encode() == *self)
    }

    /// Returns the bytes as an array; `None` if `N` is not the generation's length.
    pub(crate) fn to_array<const N: usize>(self) -> Option<[u8; N]> {
        self.as_ref().try_into().ok()
    }

    fn from_slice(generation: Generation, wire: &[u8]) -> Self {
        let mut this = Self::absent(generation);
        this.bytes[..wire.len()].copy_from_slice(wire);
        this
    }
}

impl From<[u8; Generation::Osd1.capability_len()]> for CapabilityBytes {
    fn from(wire: [u8; Generation::Osd1.capability_len()]) -> Self {
        Self::from_slice(Generation::Osd1, &wire)
    }
}

impl From<[u8; Generation::Osd2.capability_len()]> for CapabilityBytes {
    fn from(wire: [u8; Generation::Osd2.capability_len()]) -> Self {
        Self::from_slice(Generation::Osd2, &wire)
    }
}

impl Deref for CapabilityBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.generation.capability_len()]
    }
}

impl AsRef<[u8]> for CapabilityBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for CapabilityBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} capability ", self.generation)?;
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Bytes 0–55, common to both generations.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CapabilityHead {
    format: u8,
    key_and_algorithm: u8,
    method: u8,
    reserved_3: u8,
    expires: [u8; 6],
    audit: [u8; 20],
    discriminator: [u8; 12],
    created: [u8; 6],
    object_type: u8,
    permissions: [u8; 5],
    reserved_54: u8,
    descriptor_type: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Osd1 {
    head: CapabilityHead,
    policy_access_tag: U32,
    partition: U64,
    object: U64,
    reserved_76: [u8; 4],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Osd2 {
    head: CapabilityHead,
    attributes_access: U32,
    policy_access_tag: U32,
    boot_epoch: U16,
    reserved_66: [u8; 6],
    partition: U64,
    object: U64,
    range_length: U64,
    range_start: U64,
}

const _: () = assert!(size_of::<CapabilityHead>() == 56 && offset_of!(CapabilityHead, created) == 42);
const _: () = assert!(
    offset_of!(CapabilityHead, object_type) == 48 && offset_of!(CapabilityHead, descriptor_type) == 55
);
const _: () = assert!(size_of::<Osd1>() == 80 && offset_of!(Osd1, object) == 68);
const _: () = assert!(size_of::<Osd2>() == 104 && offset_of!(Osd2, partition) == 72);

/// The descriptor's fields, whatever the generation.
#[derive(Clone, Copy)]
struct DescriptorBody {
    scope: Scope,
    allowed: ObjectId,
    range: Range,
}

impl From<Osd1> for DescriptorBody {
    fn from(wire: Osd1) -> Self {
        Self {
            scope: Scope { policy_access_tag: wire.policy_access_tag.get(), ..Scope::default() },
            allowed: ObjectId::new(wire.partition.get(), wire.object.get()),
            range: Range::ALL,
        }
    }
}

impl From<Osd2> for DescriptorBody {
    fn from(wire: Osd2) -> Self {
        Self {
            scope: Scope {
                attributes_access: wire.attributes_access.get(),
                policy_access_tag: wire.policy_access_tag.get(),
                boot_epoch: wire.boot_epoch.get(),
            },
            allowed: ObjectId::new(wire.partition.get(), wire.object.get()),
            range: Range { start: wire.range_start.get(), length: wire.range_length.get() },
        }
    }
}

impl DescriptorBody {
    /// Reserved in every field that the descriptor type does not have.
    const RESERVED: Self = Self {
        scope: Scope { attributes_access: 0, policy_access_tag: 0, boot_epoch: 0 },
        allowed: ObjectId::ROOT,
        range: Range { start: 0, length: 0 },
    };

    fn descriptor(self, generation: Generation, descriptor_type: u8) -> Result<Descriptor, CapabilityError> {
        let Self { scope, allowed, range } = self;
        Ok(match (descriptor_type, generation) {
            (0, _) => Descriptor::None,
            (1, _) => Descriptor::User { scope, allowed, range },
            (2, _) => Descriptor::Partition { scope, partition: allowed.partition },
            (3, Generation::Osd2) => Descriptor::Collection { scope, allowed },
            (other, _) => return Err(CapabilityError::DescriptorType(other)),
        })
    }

    const fn of(generation: Generation, descriptor: &Descriptor) -> (u8, Self) {
        let blank = Self::RESERVED;
        match *descriptor {
            Descriptor::None => (0, blank),
            Descriptor::User { scope, allowed, range } => (1, Self { scope, allowed, range }),
            Descriptor::Partition { scope, partition } => {
                (2, Self { scope, allowed: ObjectId::of_partition(partition), ..blank })
            }
            Descriptor::Collection { scope, allowed } => match generation {
                Generation::Osd1 => (1, Self { scope, allowed, ..blank }),
                Generation::Osd2 => (3, Self { scope, allowed, ..blank }),
            },
        }
    }

    const fn osd1(self, head: CapabilityHead) -> Osd1 {
        Osd1 {
            head,
            policy_access_tag: U32::new(self.scope.policy_access_tag),
            partition: U64::new(self.allowed.partition),
            object: U64::new(self.allowed.object),
            reserved_76: [0; 4],
        }
    }

    const fn osd2(self, head: CapabilityHead) -> Osd2 {
        Osd2 {
            head,
            attributes_access: U32::new(self.scope.attributes_access),
            policy_access_tag: U32::new(self.scope.policy_access_tag),
            boot_epoch: U16::new(self.scope.boot_epoch),
            reserved_66: [0; 6],
            partition: U64::new(self.allowed.partition),
            object: U64::new(self.allowed.object),
            range_length: U64::new(self.range.length),
            range_start: U64::new(self.range.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(text: &str) -> std::vec::Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn fields_stand_at_the_offsets_of_the_reference() {
        assert_eq!((offset::FORMAT, offset::KEY_VERSION, offset::METHOD, offset::EXPIRATION), (0, 1, 2, 4));
        assert_eq!(
            (offset::AUDIT, offset::CREATED, offset::OBJECT_TYPE, offset::PERMISSIONS),
            (10, 42, 48, 49)
        );
        assert_eq!(offset::POLICY_ACCESS_TAG, [56, 60]);
        assert_eq!((offset::PARTITION, offset::OBJECT), ([60, 72], [68, 80]));
        assert_eq!((offset::ATTRIBUTES_ACCESS, offset::BOOT_EPOCH, offset::RANGE), (56, 64, 88));
    }

    #[test]
    fn the_pinned_osd1_vector_parses() {
        let wire = hex(concat!(
            "0130020001b8dac5b40061756469742d766563746f722d30303030303100000102030405060708090a0b019b76daa800",
            "80c0000000000010000000070000000000010000000000000001000100000000"
        ));
        let capability = Capability::parse(Generation::Osd1, &wire).unwrap();
        assert_eq!((capability.key_version, capability.icv_algorithm), (3, 0));
        assert_eq!(capability.method, SecurityMethod::CmdRsp);
        assert_eq!(capability.permissions, Permissions::READ | Permissions::WRITE);
        let scope = Scope { policy_access_tag: 7, ..Scope::default() };
        let allowed = ObjectId::new(0x10000, 0x10001);
        assert_eq!(capability.descriptor, Descriptor::User { scope, allowed, range: Range::ALL });
        assert_eq!(&capability.encode()[..], &wire[..]);
    }

    #[test]
    fn the_pinned_osd2_vector_parses() {
        let wire = hex(concat!(
            "0231020001b8dac5b40061756469742d766563746f722d30303030303100000102030405060708090a0b019b76daa800",
            "80c0000000000010000000000000000700000000000000000000000000010000000000000001",
            "0001ffffffffffffffff0000000000000000"
        ));
        let capability = Capability::parse(Generation::Osd2, &wire).unwrap();
        assert_eq!((capability.key_version, capability.icv_algorithm), (3, 1));
        let scope = Scope { policy_access_tag: 7, ..Scope::default() };
        let allowed = ObjectId::new(0x10000, 0x10001);
        assert_eq!(capability.descriptor, Descriptor::User { scope, allowed, range: Range::ALL });
        assert!(CapabilityBytes::new(Generation::Osd2, &wire).unwrap().is_canonical());
    }

    #[test]
    fn each_reserved_code_is_refused_at_its_field() {
        let refused = |at: usize, value: u8| {
            let mut wire = [0_u8; 104];
            (wire[0], wire[48]) = (2, 0x80);
            wire[at] = value;
            Capability::parse(Generation::Osd2, &wire).unwrap_err()
        };
        assert_eq!(refused(0, 0), CapabilityError::Absent);
        assert_eq!(refused(0, 3), CapabilityError::Format(3));
        assert_eq!((refused(2, 4), refused(2, 4).offset()), (CapabilityError::Method(4), 2));
        assert_eq!((refused(48, 3), refused(48, 3).offset()), (CapabilityError::ObjectType(3), 48));
        assert_eq!((refused(55, 0x40), refused(55, 0x40).offset()), (CapabilityError::DescriptorType(4), 55));
    }

    #[test]
    fn range_permits_contained_ranges() {
        let range = Range { start: 100, length: 50 };
        assert!(
            range.permits(100, 50)
                && range.permits(150, 0)
                && !range.permits(99, 1)
                && !range.permits(101, 50)
        );
        assert!(!range.permits(u64::MAX, 2));
        assert!(Range { start: 0, length: 0 }.permits(u64::MAX, u64::MAX) && Range::ALL.permits(5, 5));
        assert!(Range { start: 8, length: u64::MAX }.permits(8, 1 << 40));
        assert!(!Range { start: 8, length: 0 }.permits(8, 1));
    }

    fn any_generation() -> impl Strategy<Value = Generation> {
        prop_oneof![Just(Generation::Osd1), Just(Generation::Osd2)]
    }

    proptest! {
        #[test]
        fn parsed_value_round_trips(
            generation in any_generation(),
            mut wire in proptest::collection::vec(any::<u8>(), 104),
            codes in (1_u8..=2, 0_u8..=3, proptest::sample::select(&[0x01_u8, 0x02, 0x40, 0x80]), 0_u8..=2),
        ) {
            (wire[0], wire[2], wire[48], wire[55]) = (codes.0, codes.1, codes.2, codes.3 << 4);
            let capability = Capability::parse(generation, &wire[..generation.capability_len()]).unwrap();
            prop_assert_eq!(capability.encode().parse(), Ok(capability));
            prop_assert!(capability.encode().is_canonical());
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            generation in any_generation(),
            wire in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let _ = Capability::parse(generation, &wire);
        }
    }
}
