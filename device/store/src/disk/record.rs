//! Index records: keys, values and their encoding.
//!
//! Does: encodes and parses; each value carries a CRC32C over its key and itself, so that a corrupt
//! or misplaced record is detected.
//! Does not: read the index.
//! Source of truth: docs/design/store.md, "Index records".

use std::sync::Arc;

use sealstone_digest::{DigestValue as Digest, LTHASH_BYTES, LtHash, Profile};
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_redb_format::TableKey;

use super::chunk::Chunk;
use super::pool::number_of;
use crate::BLOCK;

/// Upper bound (exclusive) of the record tags.
pub(crate) const TAGS: usize = 11;
/// A key: tag, partition, object, and chunk number or attribute; big endian, so that byte order is
/// key order.
pub(crate) type Key = TableKey;

/// The kind of record; the first byte of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordTag {
    Store = 0,
    Object = 1,
    Chunk = 2,
    Attribute = 3,
    Member = 4,
    Membership = 5,
    Collection = 6,
    Profile = 7,
    Page = 8,
    Sum = 9,
    Inline = 10,
}

fn key(tag: RecordTag, id: ObjectId, sub: u64) -> Key {
    let mut key = [0; 25];
    key[0] = tag as u8;
    key[1..9].copy_from_slice(&id.partition.to_be_bytes());
    key[9..17].copy_from_slice(&id.object.to_be_bytes());
    key[17..].copy_from_slice(&sub.to_be_bytes());
    key
}

/// Returns the key of the single record that identifies the store.
pub(crate) fn store_key() -> Key {
    key(RecordTag::Store, ObjectId::ROOT, 0)
}

/// Returns the key of the number of the last committed group, kept while the store has a write log.
pub(crate) fn group_key() -> Key {
    key(RecordTag::Store, ObjectId::ROOT, 1)
}

/// Parses the number in the sealed record of [`group_key`].
pub(crate) fn parse_group(bytes: &[u8]) -> Option<u64> {
    let bytes = unseal(&group_key(), bytes).ok()?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Returns the key of an object's record.
pub(crate) fn object_key(id: ObjectId) -> Key {
    key(RecordTag::Object, id, 0)
}

/// Whether it is the key of an object's own record.
pub(crate) fn is_object(key: &Key) -> bool {
    key[0] == RecordTag::Object as u8
}

/// Returns the key of a chunk of an object.
pub(crate) fn chunk_key(id: ObjectId, chunk: u64) -> Key {
    key(RecordTag::Chunk, id, chunk)
}

/// Returns the key of an attribute of an object.
pub(crate) fn attribute_key(id: ObjectId, attribute: AttributeId) -> Key {
    key(RecordTag::Attribute, id, u64::from(attribute.page) << 32 | u64::from(attribute.number))
}

/// Returns the key of a member of a collection.
pub(crate) fn member_key(collection: ObjectId, member: u64) -> Key {
    key(RecordTag::Member, collection, member)
}

/// Returns the key of a collection of a member.
pub(crate) fn membership_key(member: ObjectId, collection: u64) -> Key {
    key(RecordTag::Membership, member, collection)
}

/// Returns the key of a collection's number of members.
pub(crate) fn collection_key(collection: ObjectId) -> Key {
    key(RecordTag::Collection, collection, 0)
}

/// Returns the key of a partition's digest profile; only profiles other than the default have a
/// record.
pub(crate) fn profile_key(partition: u64) -> Key {
    key(RecordTag::Profile, ObjectId::of_partition(partition), 0)
}

/// Returns the key of the digest of an attribute page, which has a record only if it is known.
pub(crate) fn page_key(id: ObjectId, page: u32) -> Key {
    key(RecordTag::Page, id, u64::from(page))
}

/// Returns the key of the sum of an object's digests.
pub(crate) fn sum_key(id: ObjectId) -> Key {
    key(RecordTag::Sum, id, 0)
}

/// Returns the key of an inline block's bytes, by its location.
pub(crate) fn inline_key(location: u64) -> Key {
    key(RecordTag::Inline, ObjectId::ROOT, number_of(location))
}

/// Whether it is the key of an inline block.
pub(crate) fn is_inline_key(key: &Key) -> bool {
    key[0] == RecordTag::Inline as u8
}

/// Returns the first and last key of all inline blocks.
pub(crate) fn all_inline() -> (Key, Key) {
    all(RecordTag::Inline)
}

/// Returns the first and last key of all digest records that are not of chunks: profiles, pages,
/// sums.
pub(crate) fn all_about_digests() -> (Key, Key) {
    (all(RecordTag::Profile).0, all(RecordTag::Sum).1)
}

fn all(tag: RecordTag) -> (Key, Key) {
    (key(tag, ObjectId::ROOT, 0), key(tag, ObjectId::new(u64::MAX, u64::MAX), u64::MAX))
}

/// Returns the first and last key of all objects.
pub(crate) fn all_objects() -> (Key, Key) {
    all(RecordTag::Object)
}

/// Returns the first and last key of all chunks of all objects.
pub(crate) fn all_chunks() -> (Key, Key) {
    all(RecordTag::Chunk)
}

/// Returns the first and last key of all attributes of all objects.
pub(crate) fn all_attributes() -> (Key, Key) {
    all(RecordTag::Attribute)
}

/// Returns the first and last key of all members of all collections.
pub(crate) fn all_members() -> (Key, Key) {
    all(RecordTag::Member)
}

/// Returns the first and last key of all collections of all members.
pub(crate) fn all_memberships() -> (Key, Key) {
    all(RecordTag::Membership)
}

/// Returns the first and last key of all collections.
pub(crate) fn all_collections() -> (Key, Key) {
    all(RecordTag::Collection)
}

fn u64_at(key: &Key, at: usize) -> u64 {
    key[at..at + 8].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Returns the object that a key belongs to.
pub(crate) fn object_of(key: &Key) -> ObjectId {
    ObjectId::new(u64_at(key, 1), u64_at(key, 9))
}

/// Whether it is a chunk's key.
pub(crate) fn is_chunk(key: &Key) -> bool {
    key[0] == RecordTag::Chunk as u8
}

/// Whether it is the key of a partition's profile.
pub(crate) fn is_profile(key: &Key) -> bool {
    key[0] == RecordTag::Profile as u8
}

/// Whether it is the key of an object's sum.
pub(crate) fn is_sum(key: &Key) -> bool {
    key[0] == RecordTag::Sum as u8
}

/// Returns the chunk number in a chunk's key.
pub(crate) fn chunk_of(key: &Key) -> u64 {
    u64_at(key, 17)
}

/// Returns the member in a member's key, the collection in a membership's, or the number of an
/// inline block.
pub(crate) fn sub_of(key: &Key) -> u64 {
    u64_at(key, 17)
}

/// Returns the attribute in an attribute's key.
pub(crate) fn attribute_of(key: &Key) -> AttributeId {
    AttributeId { page: (u64_at(key, 17) >> 32) as u32, number: u64_at(key, 17) as u32 }
}

/// An object's own record, without its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRecord {
    pub(crate) kind: ObjectType,
    /// Logical length in bytes.
    pub(crate) length: u64,
    /// Number of mapped blocks.
    pub(crate) blocks: u64,
    /// Total of its attributes towards the limit, in bytes.
    pub(crate) attribute_weight: u64,
    /// Number of collections that it is a member of.
    pub(crate) memberships: u16,
}

impl ObjectRecord {
    /// Returns the record of a new object.
    pub(crate) fn empty(kind: ObjectType) -> Self {
        Self { kind, length: 0, blocks: 0, attribute_weight: 0, memberships: 0 }
    }
}

/// A record's value. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RecordValue {
    Object(ObjectRecord),
    Chunk(Arc<Chunk>),
    Attribute(Arc<[u8]>),
    /// The slot of a membership, under the collection and under the member.
    Membership(u32),
    /// Number of members of a collection.
    Count(u64),
    /// Digest profile of a partition, if it is not the default.
    Profile(Option<Profile>),
    /// The digest of an attribute page, and its profile.
    Page(Profile, Digest),
    /// The sum of the digests of an object.
    Sum(Arc<LtHash>),
    /// The bytes of an inline block, without trailing zeros.
    Inline(Arc<[u8]>),
}

/// A record whose bytes are not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorruptRecord;

/// First byte of each value: the version of its layout.
const LAYOUT: u8 = 1;

impl RecordValue {
    /// Returns the approximate memory of the value in bytes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Object(_) => 48,
            Self::Chunk(chunk) => 64 + chunk.weight(),
            Self::Attribute(value) | Self::Inline(value) => 48 + value.len(),
            Self::Membership(_) | Self::Count(_) | Self::Profile(_) => 16,
            Self::Page(..) => 48,
            Self::Sum(_) => 48 + LTHASH_BYTES,
        }
    }

    /// Returns the value's bytes under its key.
    pub(crate) fn encode(&self, key: &Key) -> Vec<u8> {
        let mut out = vec![LAYOUT];
        match self {
            Self::Object(object) => {
                out.push(object.kind as u8);
                out.extend_from_slice(&object.memberships.to_le_bytes());
                for field in [object.length, object.blocks, object.attribute_weight] {
                    out.extend_from_slice(&field.to_le_bytes());
                }
            }
            Self::Chunk(chunk) => chunk.encode(&mut out),
            Self::Attribute(value) | Self::Inline(value) => out.extend_from_slice(value),
            Self::Membership(slot) => out.extend_from_slice(&slot.to_le_bytes()),
            Self::Count(count) => out.extend_from_slice(&count.to_le_bytes()),
            Self::Profile(profile) => out.push(profile.map_or(0, Profile::code)),
            Self::Page(profile, digest) => {
                out.push(profile.code());
                out.extend_from_slice(digest.as_bytes());
            }
            Self::Sum(sum) => out.extend_from_slice(&sum.to_bytes()),
        }
        seal(key, out)
    }

    /// Parses the result of [`encode`](Self::encode) under the same key.
    pub(crate) fn parse(key: &Key, bytes: &[u8]) -> Result<Self, CorruptRecord> {
        let bytes = unseal(key, bytes)?;
        let (&layout, body) = bytes.split_first().ok_or(CorruptRecord)?;
        if layout != LAYOUT {
            return Err(CorruptRecord);
        }
        match key[0] {
            tag if tag == RecordTag::Object as u8 => {
                let body: &[u8; 27] = body.try_into().map_err(|_| CorruptRecord)?;
                let field =
                    |at: usize| body[at..at + 8].iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
                let kind = match body[0] {
                    0x01 => ObjectType::Root,
                    0x02 => ObjectType::Partition,
                    0x40 => ObjectType::Collection,
                    0x80 => ObjectType::User,
                    _ => return Err(CorruptRecord),
                };
                let (length, blocks, attribute_weight) = (field(3), field(11), field(19));
                let memberships = u16::from_le_bytes([body[1], body[2]]);
                Ok(Self::Object(ObjectRecord { kind, length, blocks, attribute_weight, memberships }))
            }
            tag if tag == RecordTag::Chunk as u8 => {
                Chunk::parse(body).map(|chunk| Self::Chunk(Arc::new(chunk)))
            }
            tag if tag == RecordTag::Attribute as u8 => Ok(Self::Attribute(body.into())),
            tag if tag == RecordTag::Member as u8 || tag == RecordTag::Membership as u8 => {
                let slot = body.try_into().map_err(|_| CorruptRecord)?;
                Ok(Self::Membership(u32::from_le_bytes(slot)))
            }
            tag if tag == RecordTag::Collection as u8 => {
                Ok(Self::Count(u64::from_le_bytes(body.try_into().map_err(|_| CorruptRecord)?)))
            }
            tag if tag == RecordTag::Profile as u8 => match body {
                [0] => Ok(Self::Profile(None)),
                [code] => Ok(Self::Profile(Some(Profile::from_code(*code).ok_or(CorruptRecord)?))),
                _ => Err(CorruptRecord),
            },
            tag if tag == RecordTag::Page as u8 => {
                let (&code, digest) = body.split_first().ok_or(CorruptRecord)?;
                Ok(Self::Page(
                    Profile::from_code(code).ok_or(CorruptRecord)?,
                    Digest::new(digest).ok_or(CorruptRecord)?,
                ))
            }
            tag if tag == RecordTag::Sum as u8 => {
                Ok(Self::Sum(Arc::new(LtHash::from_bytes(body.try_into().map_err(|_| CorruptRecord)?))))
            }
            tag if tag == RecordTag::Inline as u8 && body.len() as u64 <= BLOCK => {
                Ok(Self::Inline(body.into()))
            }
            _ => Err(CorruptRecord),
        }
    }
}

/// Returns the number of bytes in the intact record of an inline block; `None` if it is corrupt.
/// Copies nothing.
pub(crate) fn inline_length(key: &Key, bytes: &[u8]) -> Option<u16> {
    let (&layout, body) = unseal(key, bytes).ok()?.split_first()?;
    u16::try_from(body.len()).ok().filter(|length| layout == LAYOUT && u64::from(*length) <= BLOCK)
}

/// Appends the CRC32C over key and value.
pub(crate) fn seal(key: &Key, mut value: Vec<u8>) -> Vec<u8> {
    let crc = crate::crc::crc32c_of(key, &value);
    value.extend_from_slice(&crc.to_le_bytes());
    value
}

/// Checks and removes the CRC32C.
pub(crate) fn unseal<'a>(key: &Key, bytes: &'a [u8]) -> Result<&'a [u8], CorruptRecord> {
    let (value, crc) = bytes.split_last_chunk::<4>().ok_or(CorruptRecord)?;
    let expected = crate::crc::crc32c_of(key, value);
    if u32::from_le_bytes(*crc) == expected { Ok(value) } else { Err(CorruptRecord) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn objects_and_attributes_round_trip(length: u64, blocks: u64, weight: u64, value: Vec<u8>) {
            let id = ObjectId::new(length, blocks);
            let object = RecordValue::Object(ObjectRecord {
                kind: ObjectType::Collection, length, blocks, attribute_weight: weight, memberships: weight as u16,
            });
            let key = object_key(id);
            prop_assert_eq!(RecordValue::parse(&key, &object.encode(&key)), Ok(object.clone()));
            prop_assert_eq!(RecordValue::parse(&object_key(ObjectId::ROOT), &object.encode(&key)).is_err(), !id.is_root());
            let attribute = AttributeId { page: length as u32, number: weight as u32 };
            let key = attribute_key(id, attribute);
            prop_assert_eq!((object_of(&key), attribute_of(&key)), (id, attribute));
            let inline = inline_key(weight >> 1);
            let bytes = RecordValue::Inline(value.clone().into());
            prop_assert_eq!((is_inline_key(&inline), sub_of(&inline)), (true, weight >> 1));
            prop_assert_eq!(RecordValue::parse(&inline, &bytes.encode(&inline)), Ok(bytes));
            let value = RecordValue::Attribute(value.into());
            prop_assert_eq!(RecordValue::parse(&key, &value.encode(&key)), Ok(value));
            for key in [member_key(id, weight), membership_key(id, weight)] {
                let slot = RecordValue::Membership(weight as u32);
                prop_assert_eq!((object_of(&key), sub_of(&key)), (id, weight));
                prop_assert_eq!(RecordValue::parse(&key, &slot.encode(&key)), Ok(slot));
            }
            let key = profile_key(id.partition);
            let profile = Profile::from_code(weight as u8 % 6);
            prop_assert_eq!(RecordValue::parse(&key, &RecordValue::Profile(profile).encode(&key)), Ok(RecordValue::Profile(profile)));
            let key = page_key(id, weight as u32);
            let page = RecordValue::Page(profile.unwrap_or(Profile::DEFAULT), [weight as u8; 32].into());
            prop_assert_eq!(RecordValue::parse(&key, &page.encode(&key)), Ok(page));
            let sum = RecordValue::Sum(Arc::new(LtHash::from_bytes(&[weight as u8; LTHASH_BYTES])));
            prop_assert_eq!(RecordValue::parse(&sum_key(id), &sum.encode(&sum_key(id))), Ok(sum));
            let key = collection_key(id);
            prop_assert_eq!(RecordValue::parse(&key, &RecordValue::Count(weight).encode(&key)), Ok(RecordValue::Count(weight)));
        }

        #[test]
        fn arbitrary_records_never_panic(bytes: Vec<u8>, tag in 0_u8..12) {
            let mut key = chunk_key(ObjectId::ROOT, 3);
            key[0] = tag;
            let _ = RecordValue::parse(&key, &bytes);
            let mut sound = vec![LAYOUT];
            sound.extend_from_slice(&bytes);
            let _ = RecordValue::parse(&key, &seal(&key, sound));
        }
    }
}
