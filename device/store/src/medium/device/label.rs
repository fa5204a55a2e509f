//! The first MiB of a raw device: encoding of its label and its table of regions.
//!
//! Does: encodes and parses both.
//! Does not: read or write the device.
//! Source of truth: docs/design/store.md, "Raw devices".

use crate::FormatError;
use crate::crc::crc32c;

/// First bytes of a label.
pub(crate) const MAGIC: &[u8; 8] = b"SEALDEV1";
/// First bytes of a table of regions.
const TABLE_MAGIC: &[u8; 8] = b"SEALREGS";
/// Version of the layout of label and table.
const VERSION: u32 = 1;
/// Length of the label in bytes: one sector, so that a write of it is not torn.
pub(crate) const LABEL: usize = 512;
/// Unit of allocation for regions, in bytes; the first one holds label and tables.
pub(crate) const UNIT: u64 = 1 << 20;
/// Offsets of the two copies of the table, in bytes.
pub(crate) const SLOTS: [u64; 2] = [256 << 10, 512 << 10];
/// Space for one copy of the table, in bytes.
pub(crate) const SLOT: usize = 256 << 10;
/// A copy is written in whole blocks of this size, which every device supports.
const ALIGN: usize = 4096;
/// Length of a table's header: magic, generation, length of the body, number of regions.
const HEAD: usize = 24;
/// Longest name of a region, in bytes.
pub(crate) const NAME_MAX: usize = 64;
/// Maximum number of regions.
pub(crate) const REGIONS_MAX: usize = 4096;

/// Whether the device is ready for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelState {
    /// Its table is being created.
    Formatting = 1,
    /// Label and table are complete.
    Ready = 2,
}

/// Contents of the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLabel {
    pub(crate) state: LabelState,
    pub(crate) uuid: [u8; 16],
    /// Length of the device in bytes when it was formatted.
    pub(crate) length: u64,
}

impl DeviceLabel {
    pub(crate) fn encode(&self) -> [u8; LABEL] {
        let mut bytes = [0; LABEL];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.state as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..40].copy_from_slice(&self.length.to_le_bytes());
        bytes[40..48].copy_from_slice(&UNIT.to_le_bytes());
        let crc = crc32c(&bytes[..LABEL - 4]);
        bytes[LABEL - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Parses the result of [`encode`](Self::encode); the caller has checked the magic.
    pub(crate) fn parse(bytes: &[u8; LABEL]) -> Result<Self, FormatError> {
        let version = u32_at(bytes, 8);
        // Before the checksum: a later version may store it elsewhere.
        if version != VERSION {
            return Err(FormatError::Version { found: version, supported: VERSION });
        }
        if u32_at(bytes, LABEL - 4) != crc32c(&bytes[..LABEL - 4]) {
            return Err(FormatError::Label("its checksum is wrong"));
        }
        let state = match u32_at(bytes, 12) {
            1 => LabelState::Formatting,
            2 => LabelState::Ready,
            _ => return Err(FormatError::Label("unknown state")),
        };
        if u64_at(bytes, 40) != UNIT {
            return Err(FormatError::Label("unknown unit"));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        Ok(Self { state, uuid, length: u64_at(bytes, 32) })
    }
}

/// Consecutive units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitExtent {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl UnitExtent {
    pub(crate) fn end(self) -> u64 {
        u64::from(self.first) + u64::from(self.count)
    }
}

/// One region in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionEntry {
    pub(crate) name: String,
    /// Length in bytes, at most that of its extents.
    pub(crate) length: u64,
    pub(crate) extents: Vec<UnitExtent>,
}

/// Encodes a table, padded to whole blocks; `None` if it does not fit a slot.
pub(crate) fn encode_table<'a>(
    generation: u64,
    entries: impl ExactSizeIterator<Item = &'a RegionEntry>,
) -> Option<Vec<u8>> {
    let count = u32::try_from(entries.len()).ok()?;
    let mut out = TABLE_MAGIC.to_vec();
    out.extend_from_slice(&generation.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&count.to_le_bytes());
    for entry in entries {
        out.push(u8::try_from(entry.name.len()).ok()?);
        out.extend_from_slice(entry.name.as_bytes());
        out.extend_from_slice(&entry.length.to_le_bytes());
        out.extend_from_slice(&u32::try_from(entry.extents.len()).ok()?.to_le_bytes());
        for extent in &entry.extents {
            out.extend_from_slice(&extent.first.to_le_bytes());
            out.extend_from_slice(&extent.count.to_le_bytes());
        }
    }
    let body = u32::try_from(out.len() - HEAD).ok()?;
    out[16..20].copy_from_slice(&body.to_le_bytes());
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.resize(out.len().next_multiple_of(ALIGN), 0);
    (out.len() <= SLOT).then_some(out)
}

/// Parses generation and regions of one copy of the table; `None` if it is torn or missing.
pub(crate) fn parse_table(bytes: &[u8]) -> Option<(u64, Vec<RegionEntry>)> {
    if bytes.len() < HEAD || !bytes.starts_with(TABLE_MAGIC) {
        return None;
    }
    let end = HEAD.checked_add(u32_at(bytes, 16) as usize)?;
    let crc = bytes.get(end..end.checked_add(4)?)?;
    if crc != crc32c(&bytes[..end]).to_le_bytes() {
        return None;
    }
    let count = u32_at(bytes, 20) as usize;
    if count > REGIONS_MAX {
        return None;
    }
    let mut rest = &bytes[HEAD..end];
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let name = take(&mut rest, 1).and_then(|length| take(&mut rest, usize::from(length[0])))?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let length = u64_at(take(&mut rest, 8)?, 0);
        let extents = u32_at(take(&mut rest, 4)?, 0) as usize;
        let rows = take(&mut rest, extents.checked_mul(8)?)?;
        let extents = rows
            .chunks_exact(8)
            .map(|row| UnitExtent { first: u32_at(row, 0), count: u32_at(row, 4) })
            .collect();
        entries.push(RegionEntry { name, length, extents });
    }
    rest.is_empty().then(|| (u64_at(bytes, 8), entries))
}

/// Whether the regions lie within `units`, do not overlap each other or the first unit, and are as
/// long as they say.
pub(crate) fn is_sound(entries: &[RegionEntry], units: u64) -> bool {
    let mut extents: Vec<UnitExtent> =
        entries.iter().flat_map(|entry| entry.extents.iter().copied()).collect();
    extents.sort_unstable();
    let apart = extents.windows(2).all(|pair| pair[0].end() <= u64::from(pair[1].first));
    let inside = extents.iter().all(|extent| extent.first > 0 && extent.count > 0 && extent.end() <= units);
    let long_enough = entries.iter().all(|entry| {
        entry.length.div_ceil(UNIT) <= entry.extents.iter().map(|extent| u64::from(extent.count)).sum()
    });
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    let named = names.windows(2).all(|pair| pair[0] != pair[1])
        && names.iter().all(|name| (1..=NAME_MAX).contains(&name.len()));
    apart && inside && long_enough && named
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (part, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(part)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries() -> impl Strategy<Value = Vec<RegionEntry>> {
        let entry = ("[a-z0-9.-]{1,64}", any::<u64>(), proptest::collection::vec(any::<(u32, u32)>(), 0..5));
        proptest::collection::vec(entry, 0..20).prop_map(|rows| {
            let row = |(name, length, extents): (String, u64, Vec<(u32, u32)>)| RegionEntry {
                name,
                length,
                extents: extents.into_iter().map(|(first, count)| UnitExtent { first, count }).collect(),
            };
            rows.into_iter().map(row).collect()
        })
    }

    proptest! {
        #[test]
        fn label_round_trips_and_flipped_bits_are_detected(uuid: [u8; 16], length: u64, ready: bool, bit in 64..LABEL * 8) {
            let label = DeviceLabel { state: if ready { LabelState::Ready } else { LabelState::Formatting }, uuid, length };
            let mut bytes = label.encode();
            prop_assert_eq!(DeviceLabel::parse(&bytes).unwrap(), label);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(DeviceLabel::parse(&bytes).is_err());
        }

        #[test]
        fn table_round_trips_and_flipped_bits_are_detected(generation: u64, entries in entries(), bit: usize) {
            let mut bytes = encode_table(generation, entries.iter()).unwrap();
            prop_assert!(bytes.len().is_multiple_of(ALIGN));
            prop_assert_eq!(parse_table(&bytes), Some((generation, entries)));
            let used = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
            let bit = bit % (used * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(parse_table(&bytes), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 24 {
                bytes[..8].copy_from_slice(TABLE_MAGIC);
                bytes[16..20].copy_from_slice(&40_u32.to_le_bytes());
            }
            if let Some((_, entries)) = parse_table(&bytes) {
                let _ = is_sound(&entries, 100);
            }
            if let Some(label) = bytes.first_chunk() {
                let _ = DeviceLabel::parse(label);
            }
        }
    }

    #[test]
    fn regions_that_clash_or_lie_outside_are_unsound() {
        let entry = |name: &str, length, extents: &[(u32, u32)]| RegionEntry {
            name: name.to_owned(),
            length,
            extents: extents.iter().map(|&(first, count)| UnitExtent { first, count }).collect(),
        };
        assert!(is_sound(&[entry("a", UNIT + 1, &[(1, 2)]), entry("b", 0, &[])], 3));
        assert!(!is_sound(&[entry("a", 1, &[(0, 1)])], 3), "the first unit is the table's");
        assert!(!is_sound(&[entry("a", 1, &[(2, 2)])], 3), "outside");
        assert!(!is_sound(&[entry("a", 1, &[(1, 2)]), entry("b", 1, &[(2, 1)])], 9), "overlap");
        assert!(!is_sound(&[entry("a", UNIT + 1, &[(1, 1)])], 9), "too short");
        assert!(!is_sound(&[entry("a", 0, &[]), entry("a", 0, &[])], 9), "one name twice");
        assert!(!is_sound(&[entry("a", 1, &[(u32::MAX, u32::MAX)])], u64::from(u32::MAX)), "no overflow");
    }
}
