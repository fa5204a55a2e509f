//! Formats a unit, and opens it: verifies the root, then replays the journal that follows the
//! checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sealstone_block_e2e::{
    BLOCK_LEN, BlockEntry, BlockPosition, ChainTag, DiskHeader, DiskLayout, DiskRoot, DiskSealer,
    IntegrityTree, JournalRecord, UnitId, UnitKeyRing,
};

use super::state::DiskState;
use super::{E2eError, E2eOptions, RootStore, SealedMedium, WriteGuarantee};
use crate::BlockError;

/// The keys of a disk.
pub type DiskKeys = Arc<UnitKeyRing>;

/// Findings of the opening of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Whether the last writer ended in order.
    pub was_clean: bool,
    /// Records of the journal that were read.
    pub records: u64,
    /// Blocks of records beyond the root: each has its newest content that was found.
    pub recovered_blocks: u64,
    /// Blocks beyond the root of which no version was found. Reading them fails until they are
    /// written.
    pub unreadable_blocks: u64,
}

/// Writes the header and publishes the first root. All data on the unit are lost.
pub(super) async fn format<M: SealedMedium, R: RootStore>(
    medium: &M,
    roots: &R,
    keys: &DiskKeys,
) -> Result<(), E2eError> {
    let unit_blocks = medium.blocks();
    DiskLayout::new(unit_blocks)?;
    let lease = roots.acquire().await?;
    let header = DiskHeader { unit: keys.unit(), unit_blocks }.encode();
    medium.write(0, Bytes::from(header as Box<[u8]>), WriteGuarantee::Nothing).await?;
    medium.flush().await?;
    let root = DiskRoot {
        lease_epoch: lease,
        version: 1,
        unit_blocks,
        top: BlockEntry::UNWRITTEN,
        checkpoint: (0, ChainTag::default()),
        journal: (0, ChainTag::default()),
        is_clean: true,
        oldest_key: keys.newest(),
    };
    let sealed = root.seal(&DiskSealer::new(Arc::clone(keys), lease));
    Ok(roots.publish(lease, None, sealed).await?)
}

/// Takes the lease and reads the state of the disk. The caller publishes a checkpoint before it
/// serves requests. Fails with `LostWrites` if the unit reports a loss, which it does once.
pub(super) async fn load<M: SealedMedium, R: RootStore>(
    medium: &M,
    roots: &R,
    keys: &DiskKeys,
    options: &E2eOptions,
) -> Result<(DiskState, OpenReport), E2eError> {
    check_header(medium, &keys.unit()).await?;
    let lease = roots.acquire().await?;
    let sealer = Arc::new(DiskSealer::new(Arc::clone(keys), lease));
    let root = DiskRoot::open(&roots.load().await?, &sealer)?;
    if let Some(seen) = options.seen_root.filter(|seen| !root.follows(seen)) {
        return Err(E2eError::RootRolledBack { found: root.version, seen: seen.version });
    }
    if root.lease_epoch >= lease {
        // The store gave an epoch again: nonces would repeat.
        return Err(E2eError::RootRolledBack {
            found: u64::from(lease.0),
            seen: u64::from(root.lease_epoch.0),
        });
    }
    if root.unit_blocks != medium.blocks() {
        return Err(E2eError::Size { found: medium.blocks(), expected: root.unit_blocks });
    }
    let layout = DiskLayout::new(root.unit_blocks)?;
    flush_earlier_writes(medium).await?;
    let mut replay = JournalReplay {
        medium,
        sealer: &sealer,
        tree: IntegrityTree::new(layout, root.top, options.cache_nodes),
        last: root.checkpoint,
        report: OpenReport { was_clean: root.is_clean, ..OpenReport::default() },
    };
    replay.read_published(&root).await?;
    replay.read_beyond(&root).await?;
    replay.check_top().await?;
    let JournalReplay { tree, last, report, .. } = replay;
    Ok((DiskState::new(sealer, tree, root, last), report))
}

/// Makes durable what the unit has. Otherwise a power failure could lose blocks of an earlier
/// client after their entries were read here, and the next root would have these entries.
async fn flush_earlier_writes<M: SealedMedium>(medium: &M) -> Result<(), E2eError> {
    medium.flush().await.map_err(|error| match error {
        BlockError::LostWrites => E2eError::LostWrites,
        error => error.into(),
    })
}

async fn check_header<M: SealedMedium>(medium: &M, unit: &UnitId) -> Result<(), E2eError> {
    let block = medium.read(0, 1).await?;
    let block = block.first_chunk().ok_or(E2eError::Internal("a block is incomplete"))?;
    let header = DiskHeader::parse(block)?;
    if header.unit != *unit {
        return Err(E2eError::OtherDisk);
    }
    if header.unit_blocks != medium.blocks() {
        return Err(E2eError::Size { found: medium.blocks(), expected: header.unit_blocks });
    }
    Ok(())
}

/// The journal while it is read.
struct JournalReplay<'a, M> {
    medium: &'a M,
    sealer: &'a DiskSealer,
    tree: IntegrityTree,
    last: (u64, ChainTag),
    report: OpenReport,
}

impl<M: SealedMedium> JournalReplay<'_, M> {
    /// Reads the records that the root contains. Each must exist.
    async fn read_published(&mut self, root: &DiskRoot) -> Result<(), E2eError> {
        while self.last.0 < root.journal.0 {
            let record = self.read_next().await?;
            let mut entries = Vec::new();
            record.for_each_entry(|lba, entry| entries.push((lba, entry)));
            self.set_entries(entries).await?;
        }
        if self.last != root.journal {
            let sequence = root.journal.0;
            return Err(sealstone_block_e2e::JournalRecordError::NotNext { sequence }.into());
        }
        Ok(())
    }

    /// Reads the records that the root does not contain, while the chain continues. Selects for
    /// each block the newest entry that matches.
    async fn read_beyond(&mut self, root: &DiskRoot) -> Result<(), E2eError> {
        let mut candidates: BTreeMap<u64, Vec<BlockEntry>> = BTreeMap::new();
        while self.last.0 - root.checkpoint.0 < self.tree.layout().journal_blocks() {
            let record = match self.read_next().await {
                Ok(record) => record,
                Err(E2eError::UnitRolledBack(_)) => break,
                Err(error) => return Err(error),
            };
            record.for_each_entry(|lba, entry| candidates.entry(lba).or_default().push(entry));
        }
        let mut selected = Vec::new();
        for (lba, entries) in candidates {
            let block = self.medium.read(self.tree.layout().data_block(lba), 1).await?;
            let published = self.entry(lba).await?;
            let matches = |entry: &&BlockEntry| {
                let mut data = [0; BLOCK_LEN];
                self.sealer.open_block(BlockPosition::Data { lba }, entry, &block, &mut data).is_ok()
            };
            if let Some(entry) = entries.iter().rev().find(matches) {
                self.report.recovered_blocks += 1;
                selected.push((lba, *entry));
            } else if !matches(&&published) {
                tracing::error!(lba, "no version of a block beyond the root was found");
                self.report.unreadable_blocks += 1;
            }
        }
        self.set_entries(selected).await
    }

    /// Reads the top node if no record needed it, so that a unit that was set back is refused.
    async fn check_top(&mut self) -> Result<(), E2eError> {
        if self.tree.cached() == 0 {
            for read in self.tree.missing(0, 1)? {
                let sealed = self.medium.read(read.block, 1).await?;
                self.tree.insert(&read, &sealed, self.sealer)?;
            }
        }
        Ok(())
    }

    async fn read_next(&mut self) -> Result<JournalRecord, E2eError> {
        let sequence = self.last.0 + 1;
        let block = self.medium.read(self.tree.layout().journal_block(sequence), 1).await?;
        let block = block.first_chunk().ok_or(E2eError::Internal("a block is incomplete"))?;
        let data_blocks = self.tree.layout().data_blocks();
        let record = JournalRecord::open(block, sequence, self.last.1, data_blocks, self.sealer)?;
        self.last = (sequence, record.chain);
        self.report.records += 1;
        Ok(record)
    }

    async fn set_entries(&mut self, entries: Vec<(u64, BlockEntry)>) -> Result<(), E2eError> {
        for (lba, entry) in entries {
            load_nodes(self.medium, self.sealer, lba, 1, &mut self.tree).await?;
            self.tree.set_entry(lba, &entry)?;
        }
        Ok(())
    }

    async fn entry(&mut self, lba: u64) -> Result<BlockEntry, E2eError> {
        load_nodes(self.medium, self.sealer, lba, 1, &mut self.tree).await?;
        let mut entries = Vec::new();
        self.tree.entries(lba, 1, &mut entries)?;
        entries.pop().ok_or(E2eError::Internal("a block has no entry"))
    }
}

/// Reads the nodes of a range into a tree that nothing else uses.
async fn load_nodes<M: SealedMedium>(
    medium: &M,
    sealer: &DiskSealer,
    lba: u64,
    blocks: u64,
    tree: &mut IntegrityTree,
) -> Result<(), E2eError> {
    loop {
        let reads = tree.missing(lba, blocks)?;
        if reads.is_empty() {
            return Ok(());
        }
        for read in reads {
            let sealed = medium.read(read.block, 1).await?;
            tree.insert(&read, &sealed, sealer)?;
        }
    }
}
