//! The log of unverified versions, in segments.
//!
//! Does: appends records, reads them, finds all of them again after a restart.
//! Does not: know which versions are still in use; the index does.
//! Contract: segments are removed oldest first, so a removed record never reappears. The records of
//! one write are appended by one write of the store, which is atomic.

use std::collections::BTreeMap;

use sealstone_block_protection::{BlockSeal, KeyScheme};
use sealstone_crypto::record::{RECORD_OVERHEAD, RecordSeal};
use sealstone_osd::ObjectType;
use sealstone_store::ObjectStore;
use zeroize::Zeroizing;

use crate::config::{LazyUnit, RandomSource};
use crate::error::LazyError;
use crate::layout::{self, HEAD_CRC, RECORD_HEAD, RecordHead, SEGMENTS_MAX, VersionNumber};

/// Bounds of a segment's length in bytes; one write may exceed it.
const SEGMENT_MIN: u64 = 64 << 10;
const SEGMENT_MAX: u64 = 4 << 20;
/// Longest segment that is read: the bound and one write with its keys.
const SEGMENT_READ_MAX: u64 = 64 << 20;
/// Bytes that are read at once when records are verified, in the order in which they were written.
const READ_AHEAD: u64 = 256 << 10;
/// Segments per capacity of the log.
const SEGMENTS_PER_LOG: u64 = 16;

/// A version to append.
pub(crate) struct NewVersion<'a> {
    pub(crate) lba: u64,
    pub(crate) version: VersionNumber,
    pub(crate) seal: BlockSeal,
    pub(crate) data: &'a [u8],
}

/// Location of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPlace {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
}

/// A record found at opening.
pub(crate) struct FoundVersion {
    pub(crate) lba: u64,
    pub(crate) version: VersionNumber,
    pub(crate) place: RecordPlace,
}

pub(crate) struct VersionLog {
    lun: u16,
    scheme: KeyScheme,
    block: usize,
    blocks: u64,
    /// Seals keys of blocks; `None` where there are none, or where they are not sealed.
    seal: Option<RecordSeal>,
    random: RandomSource,
    segment_bytes: u64,
    /// Lengths of the segments; the last one is appended to.
    segments: BTreeMap<u32, u64>,
    ahead: RecordReadAhead,
}

/// Bytes of a segment that were read for the next records. Records are never overwritten, so they
/// are valid until segments are removed or emptied.
#[derive(Default)]
struct RecordReadAhead {
    segment: u32,
    start: u64,
    bytes: Vec<u8>,
}

impl RecordReadAhead {
    /// Returns the bytes of a record, if all were read.
    fn record(&self, place: RecordPlace, length: usize) -> Option<&[u8]> {
        let at = place.offset.checked_sub(self.start).filter(|_| place.segment == self.segment)?;
        let at = usize::try_from(at).ok()?;
        self.bytes.get(at..at.checked_add(length)?)
    }
}

impl VersionLog {
    /// Opens the log of a unit, and returns all versions in the order in which they were written.
    pub(crate) fn open(
        store: &dyn ObjectStore,
        unit: &LazyUnit,
        scheme: KeyScheme,
    ) -> Result<(Self, Vec<FoundVersion>), LazyError> {
        let secret = unit.secret.as_ref().filter(|_| !scheme.has_generations());
        let mut log = Self {
            lun: unit.lun,
            scheme,
            block: unit.block.bytes(),
            blocks: unit.blocks,
            seal: secret.map(|secret| RecordSeal::new(secret, unit.serial)),
            random: unit.random.clone(),
            segment_bytes: (unit.limits.log_bytes_max / SEGMENTS_PER_LOG).clamp(SEGMENT_MIN, SEGMENT_MAX),
            segments: BTreeMap::new(),
            ahead: RecordReadAhead::default(),
        };
        let mut found = Vec::new();
        let mut from = layout::segment(unit.lun, 0);
        loop {
            let listed = store.list(from, 256)?;
            for (id, _) in &listed {
                let Some(number) = layout::segment_number(unit.lun, *id) else { return Ok((log, found)) };
                let length = store.stat(*id)?.length;
                log.segments.insert(number, length);
                log.scan(store, number, length, &mut found)?;
            }
            match listed.last() {
                Some((last, _)) if listed.len() == 256 => from.object = last.object + 1,
                _ => return Ok((log, found)),
            }
        }
    }

    /// Returns the bytes between the head of a record and its data.
    const fn seal_len(&self) -> usize {
        let checked = if self.scheme.has_generations() { HEAD_CRC } else { 0 };
        self.scheme.seal_len() + checked + if self.seal.is_some() { RECORD_OVERHEAD } else { 0 }
    }

    /// Returns the bytes of a record.
    pub(crate) const fn record_len(&self) -> u64 {
        (RECORD_HEAD + self.seal_len() + self.block) as u64
    }

    fn scan(
        &self,
        store: &dyn ObjectStore,
        segment: u32,
        length: u64,
        found: &mut Vec<FoundVersion>,
    ) -> Result<(), LazyError> {
        let damaged = |offset: u64| LazyError::LogDamaged { segment, offset };
        if length > SEGMENT_READ_MAX {
            return Err(damaged(SEGMENT_READ_MAX));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| damaged(0))?];
        let read = store.read(layout::segment(self.lun, segment), 0, &mut bytes)?;
        let mut offset = 0;
        while offset < read {
            let place = RecordPlace { segment, offset: offset as u64 };
            let record_len = usize::try_from(self.record_len()).map_err(|_| damaged(place.offset))?;
            let record = bytes[offset..read].get(..record_len).ok_or(damaged(place.offset))?;
            let head = match self.split(record) {
                Some((head, _, _)) => head,
                // The verification rejects the version: its block is unreadable, and no other one.
                None => self.intact_head(record).ok_or(damaged(place.offset))?,
            };
            if head.lba >= self.blocks {
                return Err(damaged(place.offset));
            }
            found.push(FoundVersion { lba: head.lba, version: head.version, place });
            offset += record_len;
        }
        Ok(())
    }

    /// Splits a record into head, seal and data; `None` if its length or its checksum is wrong.
    fn split<'a>(&self, record: &'a [u8]) -> Option<(RecordHead, &'a [u8], &'a [u8])> {
        let (head, rest) = record.split_first_chunk::<RECORD_HEAD>()?;
        let head = RecordHead::decode(head);
        let (seal, data) = rest.split_at_checked(self.seal_len())?;
        let whole = usize::from(head.length) == self.block && data.len() == self.block;
        (whole && head.checksum(seal, data) == head.crc).then_some((head, seal, data))
    }

    /// Returns the head of a damaged record if its sealed keys, or the CRC of the head, show
    /// that the head is right.
    fn intact_head(&self, record: &[u8]) -> Option<RecordHead> {
        let (head, rest) = record.split_first_chunk::<RECORD_HEAD>()?;
        let head = RecordHead::decode(head);
        let sealed = rest.get(..self.seal_len())?;
        if self.scheme.has_generations() {
            return sealed.ends_with(&head.own_checksum()).then_some(head);
        }
        let opened = self.seal.as_ref()?.open(&Self::name(head.lba, head.version), sealed);
        opened.is_ok().then_some(head)
    }

    fn name(lba: u64, version: VersionNumber) -> [u8; 24] {
        let mut name = *b"version\0................";
        name[8..16].copy_from_slice(&lba.to_be_bytes());
        name[16..].copy_from_slice(&version.get().to_be_bytes());
        name
    }

    /// Appends the versions of one write. Returns the locations of their records.
    pub(crate) fn append(
        &mut self,
        store: &dyn ObjectStore,
        versions: &[NewVersion<'_>],
    ) -> Result<Vec<RecordPlace>, LazyError> {
        let record_len = self.record_len();
        let length = record_len * versions.len() as u64;
        let last = self.segments.last_key_value().map(|(number, length)| (*number, *length));
        let (segment, start) = match last {
            Some((number, used)) if used == 0 || used + length <= self.segment_bytes => (number, used),
            _ => {
                let number = last.map_or(0, |(number, _)| number + 1);
                if number >= SEGMENTS_MAX {
                    return Err(LazyError::VersionsExhausted);
                }
                store.create(layout::segment(self.lun, number), ObjectType::User)?;
                self.segments.insert(number, 0);
                (number, 0)
            }
        };
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        for version in versions {
            let mut plain = Zeroizing::new(Vec::with_capacity(self.scheme.seal_len()));
            version.seal.append_to(self.scheme, &mut plain);
            let mut seal = match &self.seal {
                None => plain.to_vec(),
                Some(seal) => {
                    let random = &self.random;
                    let mut fill = |into: &mut [u8]| random(into);
                    seal.seal(&Self::name(version.lba, version.version), &plain[..], &mut fill)
                }
            };
            let block = u16::try_from(self.block).expect("512 or 4096");
            let mut head = RecordHead { lba: version.lba, version: version.version, length: block, crc: 0 };
            if self.scheme.has_generations() {
                seal.extend_from_slice(&head.own_checksum());
            }
            head.crc = head.checksum(&seal, version.data);
            bytes.extend_from_slice(&head.encode());
            bytes.extend_from_slice(&seal);
            bytes.extend_from_slice(version.data);
        }
        store.write(layout::segment(self.lun, segment), start, &bytes)?;
        self.segments.insert(segment, start + length);
        let offsets = (0..versions.len() as u64).map(|at| start + at * record_len);
        Ok(offsets.map(|offset| RecordPlace { segment, offset }).collect())
    }

    /// Reads the version of a block at a location. `KeyPageDamaged` if the record is whole, but its
    /// keys cannot be opened: the unit's secret may be a wrong one.
    pub(crate) fn read(
        &self,
        store: &dyn ObjectStore,
        lba: u64,
        version: VersionNumber,
        place: RecordPlace,
    ) -> Result<(BlockSeal, Vec<u8>), LazyError> {
        let mut record = vec![0; usize::try_from(self.record_len()).unwrap_or(0)];
        let read = store.read(layout::segment(self.lun, place.segment), place.offset, &mut record)?;
        self.open_record(lba, version, place, &record[..read])
    }

    /// Returns for each location the number of records, from it on, that follow each other in the
    /// log and in the list.
    pub(crate) fn run_lengths(&self, places: &[Option<RecordPlace>]) -> Vec<u64> {
        let mut runs = vec![1; places.len()];
        for at in (1..places.len()).rev() {
            let follows = |place: &RecordPlace| {
                let offset = place.offset + self.record_len();
                places[at] == Some(RecordPlace { offset, ..*place })
            };
            if places[at - 1].as_ref().is_some_and(follows) {
                runs[at - 1] = runs[at] + 1;
            }
        }
        runs
    }

    /// As [`Self::read`], for the first one of several records that follow each other. They are
    /// read in the same operation.
    pub(crate) fn read_ahead(
        &mut self,
        store: &dyn ObjectStore,
        lba: u64,
        version: VersionNumber,
        place: RecordPlace,
        records: u64,
    ) -> Result<(BlockSeal, Vec<u8>), LazyError> {
        let record_len = usize::try_from(self.record_len()).unwrap_or(0);
        if self.ahead.record(place, record_len).is_none() {
            let length = self.segments.get(&place.segment).copied().unwrap_or(0);
            let wanted = records.saturating_mul(self.record_len()).min(READ_AHEAD.max(self.record_len()));
            let count = length.saturating_sub(place.offset).min(wanted);
            let mut ahead = core::mem::take(&mut self.ahead);
            ahead.bytes.resize(usize::try_from(count).unwrap_or(0), 0);
            let segment = layout::segment(self.lun, place.segment);
            let read = match store.read(segment, place.offset, &mut ahead.bytes) {
                Ok(read) => read,
                // Damage of a later record concerns that one only.
                Err(_) => return self.read(store, lba, version, place),
            };
            ahead.bytes.truncate(read);
            (ahead.segment, ahead.start) = (place.segment, place.offset);
            self.ahead = ahead;
        }
        let record = self.ahead.record(place, record_len).unwrap_or_default();
        self.open_record(lba, version, place, record)
    }

    fn open_record(
        &self,
        lba: u64,
        version: VersionNumber,
        place: RecordPlace,
        record: &[u8],
    ) -> Result<(BlockSeal, Vec<u8>), LazyError> {
        let damaged = LazyError::LogDamaged { segment: place.segment, offset: place.offset };
        match self.split(record) {
            Some((head, seal, data)) if head.lba == lba && head.version == version => {
                let plain = match &self.seal {
                    None => BlockSeal::decode(self.scheme, &seal[..self.scheme.seal_len()]),
                    Some(sealed) => {
                        let open = sealed.open(&Self::name(lba, version), seal);
                        let open = open.map_err(|_| LazyError::KeyPageDamaged(lba))?;
                        BlockSeal::decode(self.scheme, &open)
                    }
                };
                Ok((plain.ok_or(damaged)?, data.to_vec()))
            }
            _ => Err(damaged),
        }
    }

    /// Removes the segments before the oldest one that is in use; without one, all but the last,
    /// which is emptied.
    pub(crate) fn trim(
        &mut self,
        store: &dyn ObjectStore,
        oldest_in_use: Option<u32>,
    ) -> Result<(), LazyError> {
        let Some((&last, &length)) = self.segments.last_key_value() else { return Ok(()) };
        let keep = oldest_in_use.unwrap_or(last);
        if oldest_in_use.is_none() {
            // A segment that is emptied gets new records at the same offsets.
            self.ahead = RecordReadAhead::default();
        }
        while let Some((&first, _)) = self.segments.first_key_value()
            && first < keep
        {
            store.remove(layout::segment(self.lun, first))?;
            self.segments.remove(&first);
        }
        if oldest_in_use.is_none() && length > 0 {
            store.resize(layout::segment(self.lun, last), 0)?;
            self.segments.insert(last, 0);
        }
        Ok(())
    }

    /// Returns the bytes of all segments.
    pub(crate) fn used(&self) -> u64 {
        self.segments.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use sealstone_block_protection::{BlockKeys, Generation, MAC_LEN};
    use sealstone_store::MemoryStore;

    use super::*;

    const SCHEME: KeyScheme = KeyScheme::Generation;
    const BLOCK: usize = 512;

    fn log() -> VersionLog {
        VersionLog {
            lun: 1,
            scheme: SCHEME,
            block: BLOCK,
            blocks: 64,
            seal: None,
            random: std::sync::Arc::new(|_: &mut [u8]| {}),
            segment_bytes: SEGMENT_MAX,
            segments: BTreeMap::new(),
            ahead: RecordReadAhead::default(),
        }
    }

    #[test]
    fn reads_take_no_more_than_run() {
        let (store, mut log) = (MemoryStore::new(64 << 20), log());
        let data: Vec<Vec<u8>> = (0..8).map(|at| vec![at; BLOCK]).collect();
        let versions = (1..).zip(&data).map(|(number, data)| NewVersion {
            lba: number,
            version: VersionNumber::new(number).unwrap(),
            seal: BlockSeal {
                keys: BlockKeys::of_generation(Generation::new(1, 1)),
                mac: [number as u8; MAC_LEN],
            },
            data,
        });
        let versions: Vec<_> = versions.collect();
        let places = log.append(&store, &versions).unwrap();
        let some = |at: usize| Some(places[at]);
        // Blocks 1 to 3 follow each other, then one that is not in the log, a gap, and two more.
        let list = [some(0), some(1), some(2), None, some(5), some(3), some(4)];
        let runs = log.run_lengths(&list);
        assert_eq!(runs, [3, 2, 1, 1, 1, 2, 1]);
        let mut read = 0;
        for (place, run) in list.iter().zip(runs).filter_map(|(place, run)| Some(((*place)?, run))) {
            let at = places.iter().position(|known| *known == place).unwrap();
            let is_kept = log.ahead.record(place, log.record_len() as usize).is_some();
            let found = log.read_ahead(&store, versions[at].lba, versions[at].version, place, run);
            assert_eq!(found.unwrap().1, data[at]);
            read += if is_kept { 0 } else { log.ahead.bytes.len() as u64 };
        }
        assert_eq!(read, 6 * log.record_len(), "each record once");
    }
}
