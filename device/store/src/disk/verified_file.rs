//! Determines which commit the file holds, and which parts of it are intact, before the engine
//! opens the file.
//!
//! Does: distinguishes a commit that a crash interrupted from a corrupt one; makes the engine start
//! from pages that were all verified.
//! Does not: change the file, except for pages and headers that had one wrong bit.
//!
//! The engine writes a commit's pages and its slot, then syncs once. After a crash the newest slot
//! may therefore refer to an incomplete tree, and the slot before it is the last commit. Corruption
//! of a page of the last commit looks the same. Our copy of the header distinguishes them: it is
//! written after the sync, so the commit in it was complete.

use std::io;
use std::sync::Arc;

use sealstone_redb_format::{
    AllocatorState, CommitSlot, EngineHeader, HEADER_BYTES, PageRef, RegionPages, TreeReader, UNIT,
};

use super::header_copy::{COPY, OLD_COPY, OLD_COPY_AT, header_of_copy, header_of_old_copy, header_to_copy};
use super::page_checksums::{IndexPages, PageChecksums};
use crate::medium::MediumFile;

/// Result of verifying the file.
pub(crate) struct VerifiedFile {
    /// Reads the valid commit.
    pub(crate) reader: TreeReader,
    pub(crate) file: Arc<dyn MediumFile>,
    /// Checksums of all pages read.
    pub(crate) sums: Arc<PageChecksums>,
    /// The header that the engine receives.
    pub(crate) header: EngineHeader,
    /// The valid commit.
    commit: Option<CommitSlot>,
    /// Whether the engine did not close the file cleanly, or its own tables are damaged.
    unclean: bool,
    /// End of the engine's part of the file, in bytes. Our copy of the header follows it.
    pub(crate) end: u64,
    /// Whether it does. In older stores it was elsewhere.
    has_copy: bool,
    pub(crate) uuid: [u8; 16],
    /// Whether a slot is corrupt and has no copy. Then the last commit may be lost.
    pub(crate) lost_commit: bool,
    /// Whether our table exists, or may exist.
    pub(crate) has_table: bool,
}

/// Fills `into` as far as the file reaches and can be read.
fn read_some(file: &dyn MediumFile, length: u64, offset: u64, into: &mut [u8]) {
    let there = length.saturating_sub(offset).min(into.len() as u64) as usize;
    let into = &mut into[..there];
    // Read once more: a permanent error repeats. Unreadable bytes count as corrupt.
    let read = file.read_at(offset, into).or_else(|_| file.read_at(offset, into));
    if let Err(error) = read {
        tracing::warn!(%error, offset, "the index's header cannot be read");
        into.fill(0);
    }
}

fn bad_pages(reader: &TreeReader, root: Option<PageRef>) -> Vec<PageRef> {
    let mut bad = Vec::new();
    reader.find_damaged(root, &mut bad);
    bad
}

impl VerifiedFile {
    /// Reads the necessary parts of the index of the store `uuid`. Most pages are read later, with
    /// the records. `has_copy`: the last page is our copy of the header, even if it is unreadable.
    ///
    /// # Errors
    /// If the file's length is not available.
    pub(crate) fn take(
        file: Arc<dyn MediumFile>,
        table: &str,
        uuid: [u8; 16],
        has_copy: bool,
    ) -> io::Result<Self> {
        let length = file.length()?;
        let mut header = [0; HEADER_BYTES];
        read_some(&*file, length, 0, &mut header);
        let header = EngineHeader(header);
        let location = (length / UNIT).saturating_sub(1) * UNIT;
        let mut copy = [0; COPY];
        read_some(&*file, length, location, &mut copy);
        let copy = header_of_copy(&copy, location, &uuid);
        // The power may fail between writing the copy and the superblock that announces it.
        let has_copy = has_copy || copy.is_some();
        let end = if has_copy { location } else { length / UNIT * UNIT };
        let copy = if has_copy {
            copy
        } else {
            let mut copy = [0; OLD_COPY];
            read_some(&*file, length, OLD_COPY_AT, &mut copy);
            header_of_old_copy(&copy)
        };
        let mut commits = header.commits();
        for commit in copy.iter().flat_map(EngineHeader::commits) {
            if commits.iter().all(|known| known.id != commit.id) {
                commits.push(commit);
            }
        }
        commits.sort_by_key(|slot| std::cmp::Reverse(slot.id));
        let acknowledged = copy.as_ref().and_then(EngineHeader::primary).map(|slot| slot.id);
        let lost_commit = header.has_lost_slot() && acknowledged.is_none();
        let sums = Arc::new(PageChecksums::default());
        let mut reader = TreeReader::new(IndexPages::verifying(file.clone(), sums.clone()), end);
        let closed = commits.first().is_some_and(|commit| header.is_closed_after(commit, end));
        let chosen = if closed { commits.first() } else { choose(&reader, &commits, acknowledged) };
        let Some(chosen) = chosen else {
            let (lost_commit, has_table, unclean) = (true, true, true);
            return Ok(Self {
                reader,
                file,
                sums,
                header,
                commit: None,
                unclean,
                end,
                has_copy,
                uuid,
                lost_commit,
                has_table,
            });
        };
        let ready = closed && {
            let sound = bad_pages(&reader, chosen.system).is_empty();
            if !sound {
                tracing::warn!("the index engine's own tables are damaged; rebuilding them");
            }
            sound
        };
        let (commit, unclean) = (Some(*chosen), !ready);
        reader.start_recording(chosen.user);
        let has_table = reader.find_table(chosen.user, table);
        Ok(Self { reader, file, sums, header, commit, unclean, end, has_copy, uuid, lost_commit, has_table })
    }

    /// After all records of an intact, writable file were read: prepares it for the engine. Returns
    /// its free pages by region, if the engine need not determine them. `guard`: the last page
    /// stays unused, so that the engine does not shorten the file.
    ///
    /// # Errors
    /// If the file cannot be written or synced.
    pub(crate) fn hand_over(&mut self, guard: bool) -> io::Result<Option<Vec<RegionPages>>> {
        self.write_repaired()?;
        if self.has_copy
            && let Err(error) = self.file.allocate(self.end + COPY as u64)
        {
            tracing::warn!(%error, "the index file has holes, and the medium has no space to fill them");
        }
        let mut free = None;
        if let Some(commit) = self.commit.take() {
            if self.unclean {
                // Pages of the commit may be in memory only, and those of the previous commit are
                // overwritten from here on.
                self.file.sync()?;
            }
            free = self.write_allocator_state(&commit, guard)?;
        }
        if !self.has_copy {
            self.file.reserve(self.end + COPY as u64)?;
            self.file.write_at(self.end, &header_to_copy(&self.header, self.end, &self.uuid))?;
            self.file.sync()?;
            self.has_copy = true;
        }
        Ok(free)
    }

    /// Writes the repaired pages to the file.
    fn write_repaired(&self) -> io::Result<()> {
        let repaired = self.reader.take_repaired();
        for (offset, bytes) in &repaired {
            self.file.write_at(*offset, bytes)?;
        }
        if repaired.is_empty() { Ok(()) } else { self.file.sync() }
    }

    /// Saves the engine its walks over the file, if possible.
    fn write_allocator_state(
        &mut self,
        commit: &CommitSlot,
        guard: bool,
    ) -> io::Result<Option<Vec<RegionPages>>> {
        let allocator = self
            .reader
            .take_recorded()
            .and_then(|recorded| AllocatorState::of(&recorded, commit, self.end, guard));
        let Some(allocator) = allocator else {
            if !self.unclean {
                // The file has its own allocator state.
                return Ok(None);
            }
            let system = bad_pages(&self.reader, commit.system).is_empty();
            tracing::info!(system, "the index engine recovers its tables");
            self.header = EngineHeader::to_recover(commit, system, self.end);
            return Ok(None);
        };
        // No commit refers to these pages: after a power failure they are found damaged and written
        // again.
        for (offset, bytes) in &allocator.pages {
            self.sums.record_page(*offset, bytes);
            self.file.write_at(*offset, bytes)?;
        }
        self.header = EngineHeader::closed_after(&allocator.commit, self.end);
        Ok(Some(allocator.free))
    }

    /// Whether the engine closed the file cleanly.
    pub(crate) fn was_closed(&self) -> bool {
        !self.unclean
    }

    /// After all records were read: whether all of it is intact, so that the engine may use the
    /// file.
    pub(crate) fn is_sound(&self) -> bool {
        !self.lost_commit && self.reader.damaged() == 0
    }
}

/// Chooses the valid commit of a file that the engine did not close.
fn choose<'a>(
    reader: &TreeReader,
    commits: &'a [CommitSlot],
    acknowledged: Option<u64>,
) -> Option<&'a CommitSlot> {
    let newest = commits.first()?;
    let Some(older) = commits.get(1) else { return Some(newest) };
    if acknowledged.is_some_and(|id| id >= newest.id) {
        return Some(newest);
    }
    let bad = bad_pages(reader, newest.user);
    if bad.is_empty() {
        return Some(newest);
    }
    // Pages that are also bad in the older tree were bad before: that is corruption. The others
    // were cut off by the crash.
    let before = bad_pages(reader, older.user);
    let torn = bad.iter().any(|page| !before.contains(page));
    tracing::info!(
        torn,
        newest = newest.id,
        older = older.id,
        "the last commit is torn or has damaged pages"
    );
    Some(if torn { older } else { newest })
}
