//! The journal: the changes of the tree since the last checkpoint, one record for each block.
//!
//! ```text
//! clear:  magic 4 | key epoch 2 | changes 2 | lease epoch 4 | tags 2 | zero 2 | sequence 8 |
//!         zero 8 | chain of the record before 16
//! tag 16
//! sealed: changes (LBA 8 | first counter 8 | blocks 4 | kind 1 | zero 11), then tags (16), then
//!         zeros, 4032 in all
//! ```
//!
//! The tag of a record is the chain of the next one. Clear fields and the unit are associated data.
//! The blocks of a change have consecutive counters; those of unmapped blocks are zero.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::aead::TAG_LEN;
use crate::keys::KeyEpoch;
use crate::layout::BLOCK_LEN;
use crate::reader::FieldReader;
use crate::sealer::{DiskSealer, LeaseEpoch, nonce};
use crate::{BlockEntry, NodeSlot};

const MAGIC: &[u8; 4] = b"SLEJ";
const CLEAR_LEN: usize = 48;
const BODY: usize = CLEAR_LEN + TAG_LEN;
/// Bytes of a change.
const CHANGE_LEN: usize = 2 * TAG_LEN;
/// Maximum tags of a record, of which each change takes the space of two.
pub const RECORD_UNITS_MAX: usize = (BLOCK_LEN - BODY) / TAG_LEN;
/// Maximum blocks of one write in the journal.
pub const WRITE_BLOCKS_MAX: usize = RECORD_UNITS_MAX - 2;
/// Maximum blocks of one unmap in the journal: 8 MiB.
pub const UNMAP_BLOCKS_MAX: u32 = 2048;
const ASSOCIATED_LEN: usize = CLEAR_LEN + 16;

const KIND_WRITE: u8 = 1;
const KIND_UNMAP: u8 = 2;

/// The tag of a record, to which the next record refers. That of an empty journal is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainTag(pub [u8; TAG_LEN]);

/// A change of consecutive blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalChange {
    /// Blocks that were written.
    Write {
        /// The first block.
        lba: u64,
        /// The counter of the first block.
        counter: u64,
        /// The tags of the blocks, one at least.
        tags: Vec<[u8; TAG_LEN]>,
    },
    /// Blocks that read as zeros from now on.
    Unmap {
        /// The first block.
        lba: u64,
        /// Number of blocks, one at least.
        blocks: u32,
    },
}

impl JournalChange {
    /// Returns the first block, and the number of blocks.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        match self {
            Self::Write { lba, tags, .. } => (*lba, tags.len() as u64),
            Self::Unmap { lba, blocks } => (*lba, u64::from(*blocks)),
        }
    }
}

/// Why a block is not the next record of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalRecordError {
    /// Another record, damaged bytes, or none at all: the journal ends before it.
    #[error("record {sequence} of the journal is missing or damaged")]
    NotNext {
        /// The expected record.
        sequence: u64,
    },
    /// A record that no version of this program writes.
    #[error("record {sequence} of the journal has an unknown form; a newer version wrote it")]
    Form {
        /// The record.
        sequence: u64,
    },
}

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRecord {
    /// Its number; that of the first record of a unit is 1.
    pub sequence: u64,
    /// The tag of the record before.
    pub before: ChainTag,
    /// The tag of this record.
    pub chain: ChainTag,
    /// The key of its blocks and of the record.
    pub key_epoch: KeyEpoch,
    /// The lease of the writer.
    pub lease_epoch: LeaseEpoch,
    /// The changes, in order.
    pub changes: Vec<JournalChange>,
}

impl JournalRecord {
    /// Calls `change` for each block with its new entry.
    pub fn for_each_entry(&self, mut change: impl FnMut(u64, BlockEntry)) {
        for each in &self.changes {
            match each {
                JournalChange::Write { lba, counter, tags } => {
                    for ((lba, counter), tag) in (*lba..).zip(*counter..).zip(tags) {
                        let entry = BlockEntry {
                            key_epoch: self.key_epoch,
                            slot: NodeSlot::First,
                            lease_epoch: self.lease_epoch,
                            counter,
                            tag: *tag,
                        };
                        change(lba, entry);
                    }
                }
                JournalChange::Unmap { lba, blocks } => {
                    for lba in *lba..lba.saturating_add(u64::from(*blocks)) {
                        change(lba, BlockEntry::UNWRITTEN);
                    }
                }
            }
        }
    }

    /// Parses the block at the place of a record. `data_blocks` limits the blocks of the changes.
    ///
    /// # Errors
    /// [`JournalRecordError`].
    pub fn open(
        block: &[u8; BLOCK_LEN],
        sequence: u64,
        before: ChainTag,
        data_blocks: u64,
        sealer: &DiskSealer,
    ) -> Result<Self, JournalRecordError> {
        let not_next = JournalRecordError::NotNext { sequence };
        let form = JournalRecordError::Form { sequence };
        let mut clear = FieldReader(block);
        if clear.array() != Some(*MAGIC) {
            return Err(not_next);
        }
        let key_epoch = KeyEpoch(clear.u16().ok_or(not_next)?);
        let changes = usize::from(clear.u16().ok_or(not_next)?);
        let lease_epoch = LeaseEpoch(clear.u32().ok_or(not_next)?);
        let tags = usize::from(clear.u16().ok_or(not_next)?);
        let zero: [u8; 2] = clear.array().ok_or(not_next)?;
        let is_next = clear.u64() == Some(sequence);
        let reserved: [u8; 8] = clear.array().ok_or(not_next)?;
        // The chain does not have to be secret: it is compared before the tag to save work only.
        if !is_next || clear.array() != Some(before.0) {
            return Err(not_next);
        }
        let chain = ChainTag(clear.array().ok_or(not_next)?);
        let ciphers = sealer.ring().ciphers(key_epoch).ok_or(not_next)?;
        let mut body = [0; BLOCK_LEN - BODY];
        ciphers
            .journal
            .open(
                &nonce(lease_epoch, sequence),
                &associated(sealer, block),
                &block[BODY..],
                &chain.0,
                &mut body,
            )
            .map_err(|_| not_next)?;
        if zero != [0; 2] || reserved != [0; 8] || changes == 0 || 2 * changes + tags > RECORD_UNITS_MAX {
            return Err(form);
        }
        let (change_bytes, rest) = body.split_at(changes * CHANGE_LEN);
        let (tag_bytes, padding) = rest.split_at(tags * TAG_LEN);
        let mut tags = tag_bytes.as_chunks::<TAG_LEN>().0.iter().copied();
        let changes = change_bytes
            .as_chunks::<CHANGE_LEN>()
            .0
            .iter()
            .map(|bytes| parse_change(bytes, &mut tags, data_blocks))
            .collect::<Option<Vec<_>>>()
            .ok_or(form)?;
        if tags.next().is_some() || padding.iter().any(|byte| *byte != 0) {
            return Err(form);
        }
        Ok(Self { sequence, before, chain, key_epoch, lease_epoch, changes })
    }
}

fn parse_change(
    bytes: &[u8; CHANGE_LEN],
    tags: &mut impl Iterator<Item = [u8; TAG_LEN]>,
    data_blocks: u64,
) -> Option<JournalChange> {
    let mut fields = FieldReader(bytes);
    let (lba, counter, blocks) = (fields.u64()?, fields.u64()?, fields.u32()?);
    let (kind, zero): (u8, [u8; 11]) = (fields.u8()?, fields.array()?);
    let end = lba.checked_add(u64::from(blocks))?;
    if blocks == 0 || end > data_blocks || zero != [0; 11] {
        return None;
    }
    match kind {
        KIND_WRITE
            if blocks as usize <= WRITE_BLOCKS_MAX && counter.checked_add(u64::from(blocks)).is_some() =>
        {
            let tags: Vec<_> = tags.take(blocks as usize).collect();
            (counter > 0 && tags.len() == blocks as usize).then_some(JournalChange::Write {
                lba,
                counter,
                tags,
            })
        }
        KIND_UNMAP if blocks <= UNMAP_BLOCKS_MAX && counter == 0 => {
            Some(JournalChange::Unmap { lba, blocks })
        }
        _ => None,
    }
}

fn associated(sealer: &DiskSealer, block: &[u8]) -> [u8; ASSOCIATED_LEN] {
    let mut associated = [0; ASSOCIATED_LEN];
    associated[..CLEAR_LEN].copy_from_slice(&block[..CLEAR_LEN]);
    associated[CLEAR_LEN..].copy_from_slice(&sealer.ring().unit().0);
    associated
}

/// Collects the changes of one record.
#[derive(Debug, Default)]
pub struct JournalBuilder {
    tags: usize,
    changes: Vec<JournalChange>,
}

impl JournalBuilder {
    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Adds a change. Returns it if the record has no space for it, or if it exceeds
    /// [`WRITE_BLOCKS_MAX`] or [`UNMAP_BLOCKS_MAX`].
    pub fn push(&mut self, change: JournalChange) -> Option<JournalChange> {
        let tags = match &change {
            JournalChange::Write { counter, tags, .. } if *counter > 0 && !tags.is_empty() => tags.len(),
            JournalChange::Unmap { blocks, .. } if (1..=UNMAP_BLOCKS_MAX).contains(blocks) => 0,
            _ => return Some(change),
        };
        if 2 * (self.changes.len() + 1) + self.tags + tags > RECORD_UNITS_MAX {
            return Some(change);
        }
        self.tags += tags;
        self.changes.push(change);
        None
    }

    /// Returns the record and its block. The sequence number is used once for each lease.
    #[must_use]
    pub fn seal(
        self,
        sequence: u64,
        before: ChainTag,
        sealer: &DiskSealer,
    ) -> (JournalRecord, Box<[u8; BLOCK_LEN]>) {
        let mut block = Box::new([0; BLOCK_LEN]);
        let (key_epoch, lease_epoch) = (sealer.ring().newest(), sealer.lease());
        let count = |units: usize| u16::try_from(units).expect("a record has few units").to_be_bytes();
        block[..4].copy_from_slice(MAGIC);
        block[4..6].copy_from_slice(&key_epoch.0.to_be_bytes());
        block[6..8].copy_from_slice(&count(self.changes.len()));
        block[8..12].copy_from_slice(&lease_epoch.0.to_be_bytes());
        block[12..14].copy_from_slice(&count(self.tags));
        block[16..24].copy_from_slice(&sequence.to_be_bytes());
        block[32..48].copy_from_slice(&before.0);
        let associated = associated(sealer, &block[..]);
        let body = &mut block[BODY..];
        let (change_bytes, rest) = body.split_at_mut(self.changes.len() * CHANGE_LEN);
        let mut tag_bytes = rest.as_chunks_mut::<TAG_LEN>().0.iter_mut();
        for (change, bytes) in self.changes.iter().zip(change_bytes.as_chunks_mut::<CHANGE_LEN>().0) {
            let (lba, blocks) = change.range();
            bytes[..8].copy_from_slice(&lba.to_be_bytes());
            bytes[16..20].copy_from_slice(&u32::try_from(blocks).unwrap_or(u32::MAX).to_be_bytes());
            bytes[20] = KIND_UNMAP;
            if let JournalChange::Write { counter, tags, .. } = change {
                bytes[8..16].copy_from_slice(&counter.to_be_bytes());
                bytes[20] = KIND_WRITE;
                tags.iter().zip(&mut tag_bytes).for_each(|(tag, bytes)| *bytes = *tag);
            }
        }
        let chain =
            ChainTag(sealer.newest_ciphers().journal.seal(&nonce(lease_epoch, sequence), &associated, body));
        block[CLEAR_LEN..BODY].copy_from_slice(&chain.0);
        let changes = self.changes;
        (JournalRecord { sequence, before, chain, key_epoch, lease_epoch, changes }, block)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{UnitId, UnitKey, UnitKeyRing, portable_aead};

    const DATA_BLOCKS: u64 = 10_000;

    fn sealer() -> DiskSealer {
        let ring = UnitKeyRing::new(UnitId([1; 16]), KeyEpoch(1), UnitKey::new([2; 32]), portable_aead);
        DiskSealer::new(ring.expect("epoch 1"), LeaseEpoch(3))
    }

    fn open(block: &[u8; BLOCK_LEN], sequence: u64, before: u8) -> Result<JournalRecord, JournalRecordError> {
        JournalRecord::open(block, sequence, ChainTag([before; 16]), DATA_BLOCKS, &sealer())
    }

    fn write(lba: u64, counter: u64, blocks: usize) -> JournalChange {
        JournalChange::Write { lba, counter, tags: alloc::vec![[7; 16]; blocks] }
    }

    fn sealed(lba: u64, blocks: u32) -> (JournalRecord, Box<[u8; BLOCK_LEN]>) {
        let mut builder = JournalBuilder::default();
        assert!(builder.push(write(lba, 50, 2)).is_none());
        assert!(builder.push(JournalChange::Unmap { lba: lba + 2, blocks }).is_none());
        builder.seal(9, ChainTag([4; 16]), &sealer())
    }

    #[test]
    fn every_changed_byte_of_record_is_detected() {
        let (record, block) = sealed(5, 3);
        assert_eq!(open(&block, 9, 4), Ok(record));
        assert!(open(&block, 10, 4).is_err() && open(&block, 9, 5).is_err());
        for at in 0..BLOCK_LEN {
            let mut changed = block.clone();
            changed[at] ^= 8;
            assert!(open(&changed, 9, 4).is_err(), "{at}");
        }
    }

    #[test]
    fn changes_beyond_the_end_are_refused() {
        let (_, block) = sealed(DATA_BLOCKS - 2, 1);
        assert_eq!(open(&block, 9, 4), Err(JournalRecordError::Form { sequence: 9 }));
    }

    #[test]
    fn full_record_takes_no_more() {
        let mut builder = JournalBuilder::default();
        let refused = [write(0, 1, WRITE_BLOCKS_MAX + 1), write(0, 0, 1), write(0, 1, 0)];
        for change in refused
            .into_iter()
            .chain([0, UNMAP_BLOCKS_MAX + 1].map(|blocks| JournalChange::Unmap { lba: 0, blocks }))
        {
            assert_eq!(builder.push(change.clone()), Some(change));
        }
        assert_eq!(builder.push(write(0, 1, WRITE_BLOCKS_MAX - 3)), None);
        assert!(builder.push(write(0, 7, 2)).is_some());
        assert_eq!(builder.push(write(0, 7, 1)), None);
        assert!(builder.push(JournalChange::Unmap { lba: 0, blocks: 1 }).is_some());
        let (record, block) = builder.seal(1, ChainTag::default(), &sealer());
        assert_eq!(open(&block, 1, 0), Ok(record));
    }

    fn any_change() -> impl Strategy<Value = (u64, u32, bool)> {
        (0..DATA_BLOCKS - 40, 1..40_u32, any::<bool>())
    }

    proptest! {
        #[test]
        fn records_open_to_themselves(changes in proptest::collection::vec(any_change(), 1..8)) {
            let mut builder = JournalBuilder::default();
            let mut counter = 1;
            let mut expected = Vec::new();
            for (lba, blocks, is_write) in changes {
                let change = match is_write {
                    true => write(lba, counter, blocks as usize),
                    false => JournalChange::Unmap { lba, blocks },
                };
                let fits = builder.push(change).is_none();
                for block in (0..u64::from(blocks)).filter(|_| fits) {
                    expected.push((lba + block, if is_write { counter } else { 0 }));
                    counter += u64::from(is_write);
                }
            }
            prop_assume!(!builder.is_empty());
            let (record, block) = builder.seal(9, ChainTag([4; 16]), &sealer());
            prop_assert_eq!(&open(&block, 9, 4), &Ok(record.clone()));
            let mut found = Vec::new();
            record.for_each_entry(|lba, entry| found.push((lba, entry.counter)));
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn arbitrary_blocks_are_no_records(head in any::<[u8; 64]>()) {
            let mut block = [0; BLOCK_LEN];
            block[..64].copy_from_slice(&head);
            block[..4].copy_from_slice(MAGIC);
            block[16..24].copy_from_slice(&9_u64.to_be_bytes());
            block[32..48].copy_from_slice(&[4; 16]);
            prop_assert!(open(&block, 9, 4).is_err());
        }
    }
}
