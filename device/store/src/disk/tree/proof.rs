//! Which commit the file holds, and what of it is sound: found before the engine sees the file.
//!
//! Does: tell a commit that a crash cut short from one that rotted; make the engine start from pages that were all
//! checked. Does not: change the file, but for pages and headers that had one wrong bit.
//!
//! The engine writes a commit's pages and its slot, then syncs once. After a crash the newest slot may so name a tree
//! that is not all there, and the slot before it is the last commit. The same is seen if a page of the last commit
//! rots. Our copy of the header tells them apart: it is written after the sync, so that what it names was whole.

use std::io;
use std::sync::Arc;

use super::book::{Book, Region};
use super::header::{COPY, HEADER, Header, OLD_COPY, OLD_COPY_AT, Slot};
use super::{PageRef, Reader, UNIT};
use crate::disk::backend::Sums;
use crate::medium::MediumFile;

/// What is known of the file.
pub(crate) struct Proof {
    /// Reads the commit that counts.
    pub(crate) reader: Reader,
    pub(crate) file: Arc<dyn MediumFile>,
    /// Checksums of all pages seen.
    pub(crate) sums: Arc<Sums>,
    /// What the engine is to be given as the file's header.
    pub(crate) header: Header,
    /// The commit that counts.
    commit: Option<Slot>,
    /// Did the engine not close the file in order, or are its own tables damaged?
    unclean: bool,
    /// Where the engine's part of the file ends, in bytes. Behind it lies our copy of the header.
    pub(crate) end: u64,
    /// Does it? In a store of an older make it lay elsewhere.
    has_copy: bool,
    pub(crate) uuid: [u8; 16],
    /// Is there a slot that rotted, and no copy of it? Then the last commit may be lost.
    pub(crate) lost_commit: bool,
    /// Is our table there, or at least in doubt?
    pub(crate) has_table: bool,
}

/// Fills `into` as far as the file reaches and can be read.
fn read_some(file: &dyn MediumFile, length: u64, offset: u64, into: &mut [u8]) {
    let there = length.saturating_sub(offset).min(into.len() as u64) as usize;
    let into = &mut into[..there];
    // Once more: what fails for good fails again. What cannot be read counts as rotten.
    let read = file.read_at(offset, into).or_else(|_| file.read_at(offset, into));
    if let Err(error) = read {
        tracing::warn!(%error, offset, "the index's header cannot be read");
        into.fill(0);
    }
}

fn bad_pages(reader: &Reader, root: Option<PageRef>) -> Vec<PageRef> {
    let mut bad = Vec::new();
    reader.prove(root, &mut bad);
    bad
}

impl Proof {
    /// Reads what it must of the index of the store `uuid`. Most pages are read when the records are. `has_copy`: the
    /// last page is our copy of the header, even if it cannot be read as one.
    ///
    /// # Errors
    /// When the file's length cannot be had.
    pub(crate) fn take(
        file: Arc<dyn MediumFile>,
        table: &str,
        uuid: [u8; 16],
        has_copy: bool,
    ) -> io::Result<Self> {
        let length = file.length()?;
        let mut header = [0; HEADER];
        read_some(&*file, length, 0, &mut header);
        let header = Header(header);
        let place = (length / UNIT).saturating_sub(1) * UNIT;
        let mut copy = [0; COPY];
        read_some(&*file, length, place, &mut copy);
        let copy = Header::of_copy(&copy, place, &uuid);
        // The power may fail between the copy and the superblock that tells of it.
        let has_copy = has_copy || copy.is_some();
        let end = if has_copy { place } else { length / UNIT * UNIT };
        let copy = if has_copy {
            copy
        } else {
            let mut copy = [0; OLD_COPY];
            read_some(&*file, length, OLD_COPY_AT, &mut copy);
            Header::of_old_copy(&copy)
        };
        let mut commits = header.commits();
        for commit in copy.iter().flat_map(Header::commits) {
            if commits.iter().all(|known| known.id != commit.id) {
                commits.push(commit);
            }
        }
        commits.sort_by_key(|slot| std::cmp::Reverse(slot.id));
        let acknowledged = copy.as_ref().and_then(Header::primary).map(|slot| slot.id);
        let lost_commit = header.has_lost_slot() && acknowledged.is_none();
        let sums = Arc::new(Sums::default());
        let mut reader = Reader::new(file.clone(), end, Some(sums.clone()));
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
                tracing::warn!("the index engine's own tables are damaged; they are made anew");
            }
            sound
        };
        let (commit, unclean) = (Some(*chosen), !ready);
        reader.watch(chosen.user);
        let has_table = reader.find_table(chosen.user, table);
        Ok(Self { reader, file, sums, header, commit, unclean, end, has_copy, uuid, lost_commit, has_table })
    }

    /// After all records were read, of a sound file that may be written to: makes it ready for the engine. Gives what is
    /// free in it, by region, if the engine need not find that out by itself. `guard`: the last page is nobody's, so that
    /// the engine does not shorten the file.
    ///
    /// # Errors
    /// When the file cannot be written to, or synced.
    pub(crate) fn hand_over(&mut self, guard: bool) -> io::Result<Option<Vec<Region>>> {
        self.reader.write_mended()?;
        if self.has_copy
            && let Err(error) = self.file.allocate(self.end + COPY as u64)
        {
            tracing::warn!(%error, "the index's file has holes that the medium has no room for");
        }
        let mut free = None;
        if let Some(commit) = self.commit.take() {
            if self.unclean {
                // Pages of the commit may be in memory alone, and those of the one before are written over from here on.
                self.file.sync()?;
            }
            free = self.write_book(&commit, guard)?;
        }
        if !self.has_copy {
            self.file.reserve(self.end + COPY as u64)?;
            self.file.write_at(self.end, &self.header.to_copy(self.end, &self.uuid))?;
            self.file.sync()?;
            self.has_copy = true;
        }
        Ok(free)
    }

    /// Spares the engine its walks over the file, if it can be done.
    fn write_book(&mut self, commit: &Slot, guard: bool) -> io::Result<Option<Vec<Region>>> {
        let book = self.reader.seen().and_then(|seen| Book::of(&seen, commit, self.end, guard));
        let Some(book) = book else {
            if !self.unclean {
                // It has one of its own.
                return Ok(None);
            }
            let system = bad_pages(&self.reader, commit.system).is_empty();
            tracing::info!(system, "the index engine recovers");
            self.header = Header::to_recover(commit, system, self.end);
            return Ok(None);
        };
        // No commit refers to these places: should the power fail, they are found damaged and made anew.
        for (offset, bytes) in &book.pages {
            self.sums.learn(*offset, bytes);
            self.file.write_at(*offset, bytes)?;
        }
        self.header = Header::closed_after(&book.commit, self.end);
        Ok(Some(book.free))
    }

    /// Did the engine close the file in order?
    pub(crate) fn was_closed(&self) -> bool {
        !self.unclean
    }

    /// After all records were read: is all of it sound, so that the engine may have the file?
    pub(crate) fn is_sound(&self) -> bool {
        !self.lost_commit && self.reader.damaged() == 0
    }
}

/// The commit that counts, of a file that the engine did not close.
fn choose<'a>(reader: &Reader, commits: &'a [Slot], acknowledged: Option<u64>) -> Option<&'a Slot> {
    let newest = commits.first()?;
    let Some(older) = commits.get(1) else { return Some(newest) };
    if acknowledged.is_some_and(|id| id >= newest.id) {
        return Some(newest);
    }
    let bad = bad_pages(reader, newest.user);
    if bad.is_empty() {
        return Some(newest);
    }
    // What is bad in the older tree, too, was there before: that is rot. The rest the crash cut off.
    let before = bad_pages(reader, older.user);
    let torn = bad.iter().any(|page| !before.contains(page));
    tracing::info!(torn, newest = newest.id, older = older.id, "the last commit is not whole");
    Some(if torn { older } else { newest })
}
