//! "Hash and MAC": ALLDATA check values over digests of the data instead of the data itself, so
//! that stored digests can be reused.
//!
//! Does: combines header, digests and lists, in the same way at both ends.
//! Does not: hash, or store digests; `sealstone-digest` and the stores do.
//! Contract: the header has a fixed length and holds all counts, so that the MAC's input is
//! self-delimiting. It binds the digests to command, object, offset in the object, direction, and
//! what is known of the object's end.
//! Source of truth: docs/design/security.md 5.1, 5.4; `docs/standards/security.md`, "Hash and MAC".

use alloc::borrow::Cow;
use alloc::vec::Vec;

use sealstone_digest::{
    AttributePage, CoveredDigests, DataDirection, DigestCover, DigestValue, Profile, RangeHeader,
};
use sealstone_osd::attribute::list::{GetNames, RetrievedWriter, Values};
use sealstone_osd::{AttributeId, AttributeParameters, Cdb, Command, Generation, ObjectId};

use crate::Tag;
use crate::icv::{IcvKeys, Purpose};
use crate::nonce::Nonce;
use crate::provider::Provider;

/// Location of a command's data, derived from its CDB alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLocation {
    /// The object of the CDB.
    pub object: ObjectId,
    /// Offset of the data in the object, bytes; `None` if they are not one range of it: lists,
    /// appended data, the pieces of a scatter/gather list, operands, a range that ends beyond the
    /// largest byte number. Such data are covered as if they were an object of their own.
    pub start: Option<u64>,
}

impl DataLocation {
    /// Returns the location of a command's data.
    #[must_use]
    pub fn of(cdb: &Cdb) -> Self {
        let start = match cdb.command {
            Command::Read(extent) | Command::Write(extent) | Command::CreateAndWrite(extent)
                if cdb.continuation_length == 0 =>
            {
                extent.start.checked_add(extent.length).map(|_| extent.start)
            }
            _ => None,
        };
        Self { object: cdb.command.object(), start }
    }

    /// Computes the digests of data that a client sends: it does not know where the object ends.
    pub(crate) fn cover_out(&self, profile: Profile, data: &[u8]) -> CoveredDigests {
        let length = data.len() as u64;
        // `of` checked the length in the CDB; the data have the same length.
        CoveredDigests::of(DigestCover::of_write(profile, self.start.unwrap_or(0), length), data)
    }
}

/// Object information besides the counts, reported by the device: 16 bytes in the integrity
/// information of data-in, between counts and check value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectBounds {
    /// End of the object, bytes: a last unit that ends there is whole. For data that are no range
    /// of an object, their length. 0 for data-out.
    pub object_length: u64,
    /// The object's generation, if the device counts them; else 0.
    pub generation: u64,
}

impl ObjectBounds {
    /// Encoded length in bytes.
    pub const LEN: usize = 16;
    /// For data-out: nothing is known of the object.
    pub const NONE: Self = Self { object_length: 0, generation: 0 };

    /// Returns the wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut wire = [0; Self::LEN];
        wire[..8].copy_from_slice(&self.object_length.to_be_bytes());
        wire[8..].copy_from_slice(&self.generation.to_be_bytes());
        wire
    }

    /// Parses the first 16 bytes; `None` if there are fewer.
    #[must_use]
    pub fn parse(wire: &[u8]) -> Option<Self> {
        let (words, _) = wire.as_chunks::<8>();
        let &[length, generation, ..] = words else { return None };
        Some(Self { object_length: u64::from_be_bytes(length), generation: u64::from_be_bytes(generation) })
    }

    /// Returns this with an object length of at least `end`.
    pub(crate) fn reaching(self, end: u64) -> Self {
        Self { object_length: self.object_length.max(end), ..self }
    }
}

/// A list of attributes under a check value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoveredList<'a> {
    /// The bytes of the list.
    pub bytes: &'a [u8],
    /// The digest of the page that the list consists of, if [`whole_page`] and [`page_value`] say
    /// that it covers the list; `None`: the digest of the bytes does.
    pub page: Option<DigestValue>,
}

impl<'a> CoveredList<'a> {
    /// Returns a list that is covered by the digest of its bytes.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, page: None }
    }
}

/// Returns the page that a GET ATTRIBUTES requests as a whole, and nothing else. An application
/// page of an object has a stored digest, and that covers the retrieved list.
#[must_use]
pub fn whole_page(cdb: &Cdb, get: &[u8]) -> Option<u32> {
    let Command::GetAttributes(_) = cdb.command else { return None };
    let AttributeParameters::List { get: Some(_), .. } = cdb.attributes else { return None };
    let names = GetNames::parse(cdb.generation, get).ok()?;
    let mut names = names.iter();
    let (only, None) = (names.next()?, names.next()) else { return None };
    let of_applications = only.page < PAGES_END
        && only.page % PAGES_OF_A_TYPE >= APPLICATION_PAGES
        && only.number == AttributeId::ALL;
    of_applications.then_some(only.page)
}

/// Number range of the pages of each of root, partition, collection and user objects …
const PAGES_OF_A_TYPE: u32 = 0x3000_0000;
/// … all below this one; application-defined pages start at this offset in a range.
const PAGES_END: u32 = 0xC000_0000;
const APPLICATION_PAGES: u32 = 0x1_0000;

/// Returns the digest of the page if a retrieved list is all of one page: not truncated, nothing of
/// another page, by ascending numbers.
#[must_use]
pub fn page_value(
    profile: Profile,
    generation: Generation,
    page: u32,
    retrieved: &[u8],
) -> Option<DigestValue> {
    let values = Values::parse_retrieved(generation, retrieved).ok()?;
    if values.full_len() != retrieved.len() as u64 {
        return None;
    }
    let mut digest = AttributePage::new(profile, page);
    let mut last = None;
    for (id, value) in values.iter() {
        if id.page != page || last >= Some(id.number) {
            return None;
        }
        digest.push(id.number, value);
        last = Some(id.number);
    }
    // Padding is covered by no digest: it must have its only valid form.
    (rewritten(generation, &values) == retrieved).then(|| digest.finish())
}

/// Returns the list as this device would encode it.
fn rewritten(generation: Generation, values: &Values<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = RetrievedWriter::new(generation, &mut bytes, usize::MAX);
    values.iter().for_each(|(id, value)| out.push(id, value));
    out.finish();
    bytes
}

/// Computes the check value: the MAC of the header, of the digests, and of the digests of non-empty
/// lists. For data-out these are the set and the get attributes list, for data-in nothing and the
/// retrieved attributes.
#[must_use]
pub fn tag<P: Provider>(
    keys: &IcvKeys<P>,
    direction: DataDirection,
    nonce: &Nonce,
    origin: &DataLocation,
    place: ObjectBounds,
    covered: &CoveredDigests,
    lists: [CoveredList<'_>; 2],
) -> Tag {
    let profile = covered.cover().profile();
    let range = covered.cover().range();
    let header = RangeHeader {
        profile,
        direction,
        nonce: nonce.0,
        partition: origin.object.partition,
        object: origin.object.object,
        start: origin.start.unwrap_or(0),
        moved: range.end - range.start,
        object_length: place.object_length,
        generation: place.generation,
        digests: u32::try_from(covered.values().len()).unwrap_or(u32::MAX),
        set_attributes: lists[0].bytes.len() as u64,
        get_attributes: lists[1].bytes.len() as u64,
    };
    let digests = lists
        .map(|list| (!list.bytes.is_empty()).then(|| list.page.unwrap_or_else(|| profile.list(list.bytes))));
    let [set, get] = digests.each_ref().map(|digest| digest.as_ref().map_or(&[][..], AsRef::as_ref));
    let purpose = match direction {
        DataDirection::In => Purpose::DataIn,
        DataDirection::Out => Purpose::DataOut,
    };
    keys.over_digests(purpose, &[&header.encode(), &covered.to_bytes(), set, get])
}

/// Returns data as one byte slice. Several pieces are copied; large transfers never consist of
/// several.
pub(crate) fn gather<'a>(pieces: &[&'a [u8]]) -> Cow<'a, [u8]> {
    match pieces {
        [] => Cow::Borrowed(&[]),
        [one] => Cow::Borrowed(one),
        several => Cow::Owned(several.concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use sealstone_osd::cdb::{Append, Extent};

    #[test]
    fn only_single_object_ranges_have_an_offset() {
        let object = ObjectId::new(0x1_0000, 0x1_0001);
        let extent = Extent { object, start: 77, length: 5 };
        let start = |command, continuation_length| {
            DataLocation::of(&Cdb { continuation_length, ..Cdb::new(Generation::Osd2, command) }).start
        };
        assert_eq!(start(Command::Read(extent), 0), Some(77));
        assert_eq!(start(Command::Write(extent), 0), Some(77));
        assert_eq!(start(Command::CreateAndWrite(extent), 0), Some(77));
        assert_eq!(start(Command::Read(extent), 56), None);
        let beyond = Extent { start: u64::MAX, ..extent };
        assert_eq!(start(Command::Write(beyond), 0), None);
        assert_eq!(start(Command::Append(Append { object, length: 5 }), 0), None);
    }

    proptest! {
        #[test]
        fn offsets_round_trip(object_length: u64, generation: u64, wire: Vec<u8>) {
            let place = ObjectBounds { object_length, generation };
            prop_assert_eq!(ObjectBounds::parse(&place.encode()), Some(place));
            match ObjectBounds::parse(&wire) {
                Some(place) => prop_assert_eq!(&place.encode()[..], &wire[..ObjectBounds::LEN]),
                None => prop_assert!(wire.len() < ObjectBounds::LEN),
            }
        }
    }
}
