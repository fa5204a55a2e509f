//! Attributes pages: their object types, and the page format (OSD-2 §7.1.2).
//!
//! A page format is a row of fields: attribute, offset, length. Device and client use the same
//! rows.
//! Source of truth: `docs/standards/osd.md`, page formats.

use alloc::vec::Vec;

use super::{
    COLLECTION, CURRENT_COMMAND, PARTITION, ROOT, USER, collection_security, collections_of_object,
    current_command, partition_error_recovery, partition_quotas, partition_security, partition_timestamps,
    root_error_recovery, root_quotas, root_security, root_timestamps, user_error_recovery, user_quotas,
    user_security, user_timestamps,
};
use super::{collection_error_recovery, collection_timestamps};
use crate::bytes::{array, u32_at};
use crate::sink::TruncatingSink;
use crate::{AttributeId, Generation, ObjectType};

/// The kind of object that a page number belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A page of this type of object, with its offset in the type's range.
    Object(ObjectType, u32),
    /// F000_0000h and up: a page that any object may have.
    Any,
    /// FFFF_FFFEh: about the command itself.
    CurrentCommand,
    /// FFFF_FFFFh: every page, in a request.
    All,
    /// C000_0000h to EFFF_FFFFh.
    Reserved,
}

/// Returns the owner of a page number.
#[must_use]
pub const fn owner(page: u32) -> Owner {
    match page {
        USER..PARTITION => Owner::Object(ObjectType::User, page),
        PARTITION..COLLECTION => Owner::Object(ObjectType::Partition, page - PARTITION),
        COLLECTION..ROOT => Owner::Object(ObjectType::Collection, page - COLLECTION),
        ROOT..0xC000_0000 => Owner::Object(ObjectType::Root, page - ROOT),
        0xC000_0000..0xF000_0000 => Owner::Reserved,
        CURRENT_COMMAND => Owner::CurrentCommand,
        AttributeId::ALL => Owner::All,
        0xF000_0000.. => Owner::Any,
    }
}

/// Returns the first page of a type of object.
#[must_use]
pub const fn base(kind: ObjectType) -> u32 {
    match kind {
        ObjectType::User => USER,
        ObjectType::Partition => PARTITION,
        ObjectType::Collection => COLLECTION,
        ObjectType::Root => ROOT,
    }
}

/// One field of a page format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The value of an attribute.
    Value {
        /// First byte, from the start of the page.
        at: u16,
        /// Length in bytes.
        len: u8,
        /// The attribute's number.
        number: u32,
    },
    /// A bit that indicates whether an attribute is defined.
    Defined {
        /// Its byte.
        at: u16,
        /// Its mask.
        mask: u8,
        /// The attribute's number.
        number: u32,
    },
}

/// A page with a page format.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The page.
    pub page: u32,
    /// PAGE LENGTH: bytes after the header.
    pub length: u32,
    /// The fields; bytes between them are reserved.
    pub fields: &'static [Field],
}

/// Bytes of a page's header.
pub const HEADER: usize = 8;
/// Maximum number of memberships in the collections page of an object.
pub const MEMBERSHIPS_MAX: usize = 4096;

const fn value(at: u16, len: u8, id: AttributeId) -> Field {
    Field::Value { at, len, number: id.number }
}

const fn numbered(at: u16, len: u8, number: u32) -> Field {
    Field::Value { at, len, number }
}

const fn defined(at: u16, mask: u8, id: AttributeId) -> Field {
    Field::Defined { at, mask, number: id.number }
}

/// Fields of the root's Policy/Security page: 8 fixed ones and boot epoch, 16 algorithms, 16
/// groups.
const ROOT_SECURITY: [Field; 42] = {
    use root_security as page;
    let mut fields = [numbered(0, 0, 0); 42];
    fields[0] = value(8, 1, page::DEFAULT_METHOD);
    fields[1] = value(9, 1, page::PARTITION_DEFAULT_METHOD);
    fields[2] = value(10, 2, page::SUPPORTED_METHODS);
    fields[3] = value(12, 6, page::OLDEST_NONCE_LIMIT);
    fields[4] = value(18, 6, page::NEWEST_NONCE_LIMIT);
    fields[5] = defined(24, 0x02, page::MASTER_KEY_IDENTIFIER);
    fields[6] = defined(24, 0x01, page::ROOT_KEY_IDENTIFIER);
    fields[7] = value(25, 7, page::MASTER_KEY_IDENTIFIER);
    fields[8] = value(32, 7, page::ROOT_KEY_IDENTIFIER);
    let mut slot = 0;
    while slot < 16 {
        fields[9 + slot] = numbered(39 + slot as u16, 1, page::ICV_ALGORITHM.number + slot as u32);
        fields[25 + slot] = numbered(55 + slot as u16, 1, page::DH_GROUP.number + slot as u32);
        slot += 1;
    }
    fields[41] = value(72, 2, page::BOOT_EPOCH);
    fields
};

/// Fields of a partition's Policy/Security page: 9 fixed ones, 16 bits, 16 key identifiers.
const PARTITION_SECURITY: [Field; 41] = {
    use partition_security as page;
    let mut fields = [numbered(0, 0, 0); 41];
    fields[0] = value(11, 1, page::DEFAULT_METHOD);
    fields[1] = value(12, 6, page::OLDEST_NONCE);
    fields[2] = value(18, 6, page::NEWEST_NONCE);
    fields[3] = value(24, 2, page::NONCE_LIST_DEPTH);
    fields[4] = value(26, 2, page::FROZEN_WORKING_KEYS);
    fields[5] = value(28, 4, page::POLICY_ACCESS_TAG);
    fields[6] = value(32, 4, page::USER_OBJECT_POLICY_ACCESS_TAG);
    fields[7] = defined(36, 0x01, page::PARTITION_KEY_IDENTIFIER);
    fields[8] = value(39, 7, page::PARTITION_KEY_IDENTIFIER);
    let mut key = 0;
    while key < 16 {
        let number = page::WORKING_KEY_IDENTIFIER.number + key as u32;
        fields[9 + key] = Field::Defined { at: 37 + key as u16 / 8, mask: 1 << (key % 8), number };
        fields[25 + key] = numbered(46 + 7 * key as u16, 7, number);
        key += 1;
    }
    fields
};

/// Created, accessed and modified times of all objects but the root.
const TIMES: [Field; 6] = [
    numbered(8, 6, 1),
    numbered(14, 6, 2),
    numbered(20, 6, 3),
    numbered(26, 6, 4),
    numbered(32, 6, 5),
    value(38, 1, partition_timestamps::BYPASS),
];

/// Damage of objects that contain other objects.
const DAMAGE: [Field; 6] = [
    numbered(8, 8, 6),
    numbered(16, 1, 1),
    numbered(17, 1, 2),
    numbered(18, 6, 3),
    numbered(24, 6, 4),
    numbered(30, 6, 5),
];

/// Damage of a collection or user object.
const OWN_DAMAGE: [Field; 3] = [numbered(8, 1, 1), numbered(10, 6, 3), numbered(16, 6, 4)];

macro_rules! layouts {
    ($($page:ident: $length:literal, $fields:expr;)*) => {
        /// Pages whose format does not depend on the generation.
        const LAYOUTS: &[Layout] = &[$(Layout { page: $page::PAGE, length: $length, fields: &$fields }),*];
    };
}

layouts! {
    root_quotas: 0x24, [
        value(8, 8, root_quotas::DEFAULT_MAXIMUM_LENGTH),
        value(16, 8, root_quotas::PARTITION_CAPACITY),
        value(24, 8, root_quotas::PARTITION_OBJECT_COUNT),
        value(32, 4, root_quotas::COLLECTIONS_PER_OBJECT),
        value(36, 8, root_quotas::PARTITION_COUNT)
    ];
    partition_quotas: 0x1C, [
        value(8, 8, partition_quotas::DEFAULT_MAXIMUM_LENGTH),
        value(16, 8, partition_quotas::CAPACITY),
        value(24, 8, partition_quotas::OBJECT_COUNT),
        value(32, 4, partition_quotas::COLLECTIONS_PER_OBJECT)
    ];
    user_quotas: 0x08, [value(8, 8, user_quotas::MAXIMUM_LENGTH)];
    root_timestamps: 0x0D, [
        value(8, 6, root_timestamps::ATTRIBUTES_ACCESSED),
        value(14, 6, root_timestamps::ATTRIBUTES_MODIFIED),
        value(20, 1, root_timestamps::BYPASS)
    ];
    partition_timestamps: 0x1F, TIMES;
    collection_timestamps: 0x1E, *TIMES.first_chunk::<5>().expect("six fields");
    user_timestamps: 0x1E, *TIMES.first_chunk::<5>().expect("six fields");
    partition_security: 0x96, PARTITION_SECURITY;
    collection_security: 0x04, [value(8, 4, collection_security::POLICY_ACCESS_TAG)];
    user_security: 0x04, [value(8, 4, user_security::POLICY_ACCESS_TAG)];
    root_error_recovery: 0x1C, DAMAGE;
    partition_error_recovery: 0x1C, DAMAGE;
    collection_error_recovery: 0x0E, OWN_DAMAGE;
    user_error_recovery: 0x0E, OWN_DAMAGE;
}

/// Pages whose format differs, OSD-1 and OSD-2.
static BY_GENERATION: [[Layout; 2]; 2] = [
    [
        Layout {
            page: root_security::PAGE,
            length: 0x3F,
            fields: ROOT_SECURITY.first_chunk::<41>().expect("more fields than that"),
        },
        Layout { page: root_security::PAGE, length: 0x42, fields: &ROOT_SECURITY },
    ],
    [
        Layout {
            page: CURRENT_COMMAND,
            length: 0x30,
            fields: &[
                value(8, 20, current_command::RESPONSE_ICV),
                value(28, 1, current_command::OBJECT_TYPE),
                value(32, 8, current_command::PARTITION_ID),
                value(40, 8, current_command::OBJECT_ID),
                value(48, 8, current_command::APPEND_START),
            ],
        },
        Layout {
            page: CURRENT_COMMAND,
            length: 0x44,
            fields: &[
                value(8, 32, current_command::RESPONSE_ICV),
                value(40, 1, current_command::OBJECT_TYPE),
                value(44, 8, current_command::PARTITION_ID),
                value(52, 8, current_command::OBJECT_ID),
                value(60, 8, current_command::APPEND_START),
                value(68, 8, current_command::USED_CAPACITY_CHANGE),
            ],
        },
    ],
];

/// Returns the format of a page; `None` for the null page format. The collections page of a user
/// object (U+4) has variable length: see [`encode_memberships`].
#[must_use]
pub fn layout(generation: Generation, page: u32) -> Option<Layout> {
    let fixed = LAYOUTS.iter().find(|layout| layout.page == page);
    let pair = BY_GENERATION.iter().find(|pair| pair[0].page == page);
    fixed.copied().or(pair.map(|pair| generation.select(*pair)))
}

/// Encodes a page, truncated to `allocation` bytes; `get` returns values by number, `None` if
/// undefined. Shorter values are left-justified. A page without a format is written as its header
/// with length 0.
///
/// Returns the full length.
pub fn encode<'v>(
    generation: Generation,
    page: u32,
    mut get: impl FnMut(u32) -> Option<&'v [u8]>,
    out: &mut Vec<u8>,
    allocation: usize,
) -> u64 {
    let Layout { length, fields, .. } =
        layout(generation, page).unwrap_or(Layout { page, length: 0, fields: &[] });
    let mut bytes = alloc::vec![0; HEADER + length as usize];
    bytes[..4].copy_from_slice(&page.to_be_bytes());
    bytes[4..8].copy_from_slice(&length.to_be_bytes());
    for field in fields {
        match *field {
            Field::Value { at, len, number } => {
                if let Some(found) = get(number) {
                    let field = &mut bytes[usize::from(at)..][..usize::from(len)];
                    field.iter_mut().zip(found).for_each(|(slot, byte)| *slot = *byte);
                }
            }
            Field::Defined { at, mask, number } => {
                if get(number).is_some_and(|value| !value.is_empty()) {
                    bytes[usize::from(at)] |= mask;
                }
            }
        }
    }
    let mut sink = TruncatingSink::new(out, allocation);
    sink.push(&bytes);
    sink.full()
}

/// Parses a page into numbers and values; attributes that are marked undefined are left out. `None`
/// if it is truncated, or not the requested page.
#[must_use]
pub fn parse(generation: Generation, page: u32, bytes: &[u8]) -> Option<Vec<(u32, &[u8])>> {
    let layout = layout(generation, page)?;
    if u32_at(bytes, 0)? != page || u32_at(bytes, 4)? < layout.length {
        return None;
    }
    let bytes = bytes.get(..HEADER + layout.length as usize)?;
    let undefined = |wanted: u32| {
        layout.fields.iter().any(|field| match *field {
            Field::Defined { at, mask, number } => number == wanted && bytes[usize::from(at)] & mask == 0,
            Field::Value { .. } => false,
        })
    };
    let values = layout.fields.iter().filter_map(|field| match *field {
        Field::Value { at, len, number } if !undefined(number) => {
            Some((number, &bytes[usize::from(at)..][..usize::from(len)]))
        }
        _ => None,
    });
    Some(values.collect())
}

/// Encodes the collections page of a user object (U+4): the ids in the order of their attribute
/// numbers. Returns the full length.
pub fn encode_memberships(collections: &[u64], out: &mut Vec<u8>, allocation: usize) -> u64 {
    let shown = &collections[..collections.len().min(MEMBERSHIPS_MAX)];
    let mut sink = TruncatingSink::new(out, allocation);
    sink.push(&collections_of_object::PAGE.to_be_bytes());
    sink.push(&(8 * shown.len() as u32).to_be_bytes());
    for id in shown {
        sink.push(&id.to_be_bytes());
    }
    sink.full()
}

/// Parses the collections page of a user object, as far as it is present; `None` if it is another
/// page.
#[must_use]
pub fn parse_memberships(bytes: &[u8]) -> Option<Vec<u64>> {
    if u32_at(bytes, 0)? != collections_of_object::PAGE {
        return None;
    }
    let length = usize::try_from(u32_at(bytes, 4)?).ok()?;
    let ids = bytes.get(HEADER..)?;
    let ids = &ids[..length.min(ids.len()).min(8 * MEMBERSHIPS_MAX)];
    Some(ids.chunks_exact(8).filter_map(|id| array(id, 0)).map(u64::from_be_bytes).collect())
}
