//! The index engine's file on the medium. Each page is compared with its checksum when the engine
//! reads it.
//!
//! Does: passes redb's calls to a [`MediumFile`]; keeps in memory a checksum of every page that was
//! verified at open or written since; fails reads of pages that differ or were never verified; can
//! stop all writes permanently; keeps a copy of the header of the last synced commit behind the
//! engine's part of the file; extends the file in steps as it is written, whatever length the
//! engine set.
//! Does not: interpret what redb writes, except for that header.
//! Contract: a checksum changes before its page does, so that no page passes with an older one.
//! redb never reads a page while it writes it.
//! Source of truth: docs/adr/0011-index-verified-before-opening.md.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use redb::StorageBackend;
use sealstone_redb_format::{AllocatorState, EngineHeader, HEADER_BYTES, MAX_LENGTH, TreeReader, UNIT};

use super::header_copy::{COPY, header_to_copy};
use super::index_space::FreePages;
use super::page_checksums::{IndexPages, PageChecksums};
use super::verified_file::VerifiedFile;
use crate::medium::MediumFile;

/// The file with its copy of the header grows to a multiple of this, in bytes; it is the unit of a
/// raw device.
const GROW_UNIT: u64 = 1 << 20;
/// The file grows by at least an eighth of its length, limited to this many bytes.
const GROW_MAX: u64 = 64 << 20;

/// The header as the engine last wrote it.
struct HeaderState {
    now: EngineHeader,
    /// State at the last sync.
    synced: Option<EngineHeader>,
    /// Whether our copy of the header is not synced yet.
    loose: bool,
}

impl HeaderState {
    fn new(now: EngineHeader, synced: Option<EngineHeader>) -> Self {
        Self { now, synced, loose: false }
    }
}

/// The file of the index engine, redb.
pub(crate) struct IndexFile {
    file: Arc<dyn MediumFile>,
    sums: Arc<PageChecksums>,
    /// Identifies the store in the copy of the header.
    uuid: [u8; 16],
    head: Mutex<HeaderState>,
    /// Length of its part of the file that the engine set, in bytes.
    length: AtomicU64,
    /// Length of the engine's part that the file really has, in bytes; our copy of the header
    /// follows it. Changed under `head`.
    end: AtomicU64,
    /// Set when the store is poisoned: all writes fail.
    stopped: Arc<AtomicBool>,
    /// Set when a sync failed: written pages may not be on the medium.
    unsynced: AtomicBool,
    /// Pages written, by offset in bytes, with their lengths.
    written: Mutex<HashMap<u64, u64>>,
}

impl IndexFile {
    /// Creates the state of an empty file.
    pub(crate) fn fresh(file: Arc<dyn MediumFile>, uuid: [u8; 16]) -> Arc<Self> {
        let head = HeaderState::new(EngineHeader([0; HEADER_BYTES]), None);
        Arc::new(Self::over(file, Arc::default(), uuid, head, 0, Arc::default()))
    }

    /// Creates the state of a verified file.
    pub(crate) fn verified(found: &VerifiedFile, stopped: Arc<AtomicBool>) -> Arc<Self> {
        let head = HeaderState::new(found.header.clone(), Some(found.header.clone()));
        let (file, sums) = (found.file.clone(), found.sums.clone());
        Arc::new(Self::over(file, sums, found.uuid, head, found.end, stopped))
    }

    fn over(
        file: Arc<dyn MediumFile>,
        sums: Arc<PageChecksums>,
        uuid: [u8; 16],
        head: HeaderState,
        end: u64,
        stopped: Arc<AtomicBool>,
    ) -> Self {
        let (length, end) = (AtomicU64::new(end), AtomicU64::new(end));
        let (head, unsynced, written) = (Mutex::new(head), AtomicBool::new(false), Mutex::default());
        Self { file, sums, uuid, head, length, end, stopped, unsynced, written }
    }

    fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Whether a sync failed.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.unsynced.load(Ordering::Acquire)
    }

    /// Writes our copy of the header of the last synced commit to this offset.
    fn write_copy(&self, head: &mut HeaderState, location: u64) -> io::Result<()> {
        let copy =
            head.synced.as_ref().map_or([0; COPY], |synced| header_to_copy(synced, location, &self.uuid));
        self.file.write_at(location, &copy)?;
        head.loose = true;
        Ok(())
    }

    /// Extends the file for bytes up to `needed` of the engine's part. New bytes have any content:
    /// pages are not read before they are written.
    fn extend_to(&self, needed: u64) -> io::Result<()> {
        if needed <= self.end() {
            return Ok(());
        }
        let mut head = self.head.lock();
        let old = self.end();
        if needed <= old {
            return Ok(());
        }
        let copy = COPY as u64;
        let with_copy = |end: u64| (end + copy).next_multiple_of(GROW_UNIT);
        let step = (old / 8).min(GROW_MAX);
        let wanted = with_copy(needed.max(old + step));
        let grown = match self.file.allocate(wanted) {
            // The medium may have space for the needed bytes, though not for a whole step.
            Err(error) if is_full(&error) && wanted > with_copy(needed) => {
                self.file.allocate(with_copy(needed)).map(|()| with_copy(needed))
            }
            result => result.map(|()| wanted),
        }?;
        self.end_at(&mut head, grown - copy)
    }

    /// Moves our copy of the header behind the new end of the file.
    fn end_at(&self, head: &mut HeaderState, end: u64) -> io::Result<()> {
        let old = self.end();
        self.write_copy(head, end)?;
        // If the file were truncated here again, the old copy could be mistaken for the last one.
        if old > 0 {
            self.file.write_at(old, &[0; COPY])?;
        }
        self.end.store(end, Ordering::Release);
        Ok(())
    }

    /// Extends the file by `wanted` bytes, at least an eighth, at most `most`, or by less if the
    /// medium has less. Returns whether it grew. The engine is not notified.
    pub(crate) fn grow(&self, wanted: u64, most: u64) -> io::Result<bool> {
        let mut head = self.head.lock();
        let old = self.end();
        let longest = MAX_LENGTH.saturating_sub(old).min(most) / GROW_UNIT * GROW_UNIT;
        let mut step = wanted.max(old / 8).max(1).next_multiple_of(GROW_UNIT).min(longest);
        while step > 0 {
            let end = (old + step + COPY as u64) / GROW_UNIT * GROW_UNIT - COPY as u64;
            let end = if end > old { end } else { end + GROW_UNIT };
            match self.file.allocate(end + COPY as u64) {
                Ok(()) => {
                    self.end_at(&mut head, end)?;
                    return Ok(true);
                }
                Err(error) if is_full(&error) => step = step / 2 / GROW_UNIT * GROW_UNIT,
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Returns the free pages after the last commit and the page allocator's state; `None` if they
    /// cannot be determined.
    pub(crate) fn inspect(&self, table: &str) -> Option<(AllocatorState, FreePages)> {
        let last = self.head.lock().synced.as_ref().and_then(EngineHeader::primary)?;
        let length = self.end();
        let mut reader = TreeReader::new(IndexPages::plain(self.file.clone()), length);
        reader.start_recording(last.user);
        reader.find_table(last.user, table);
        let shape = reader.outline()?;
        let allocator = AllocatorState::of(&reader.take_recorded()?, &last, length, true)?;
        let free_pages = FreePages { free: allocator.free.clone(), shape, length };
        Some((allocator, free_pages))
    }

    /// Lets an engine that starts now find the last commit as cleanly closed, with this allocator
    /// state of the whole file.
    pub(crate) fn start_from(&self, allocator: &AllocatorState) -> io::Result<()> {
        self.check()?;
        for (offset, bytes) in &allocator.pages {
            self.sums.record_page(*offset, bytes);
            self.file.write_at(*offset, bytes)?;
        }
        let mut head = self.head.lock();
        let length = self.end();
        let header = EngineHeader::closed_after(&allocator.commit, length);
        (head.now, head.synced) = (header.clone(), Some(header));
        self.length.store(length, Ordering::Release);
        self.written.lock().clear();
        Ok(())
    }

    /// Returns the pages written since the last call, by offset and length in bytes.
    pub(crate) fn take_written(&self) -> Vec<(u64, u64)> {
        self.written.lock().drain().collect()
    }

    /// Truncates the file.
    fn cut(&self, length: u64) -> io::Result<()> {
        if length >= self.end() {
            return Ok(());
        }
        let mut head = self.head.lock();
        self.write_copy(&mut head, length)?;
        self.file.set_len(length + COPY as u64)?;
        self.end.store(length, Ordering::Release);
        self.sums.cut(length);
        Ok(())
    }

    /// Returns a reader of the last synced commit that does not need the engine.
    pub(crate) fn frozen(&self, table: &str) -> TreeReader {
        let mut reader = TreeReader::new(IndexPages::plain(self.file.clone()), self.end());
        let last = self.head.lock().synced.as_ref().and_then(EngineHeader::primary);
        if let Some(last) = last {
            reader.find_table(last.user, table);
        }
        reader
    }

    fn check(&self) -> io::Result<()> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the store is poisoned"));
        }
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The storage backend that is passed to the engine.
pub(crate) struct LiveBackend {
    pub(crate) pages: Arc<IndexFile>,
    /// Set when another engine instance uses the file.
    pub(crate) detached: Arc<AtomicBool>,
}

impl LiveBackend {
    pub(crate) fn new(pages: Arc<IndexFile>) -> Self {
        Self { pages, detached: Arc::default() }
    }

    /// Returns the pages, if writing is permitted.
    fn writable(&self) -> io::Result<&IndexFile> {
        if self.detached.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "another engine has the file"));
        }
        self.pages.check()?;
        Ok(&self.pages)
    }
}

impl fmt::Debug for LiveBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveBackend")
    }
}

fn is_pages(offset: u64, length: usize) -> bool {
    offset >= UNIT && offset.is_multiple_of(UNIT) && (length as u64).is_multiple_of(UNIT)
}

impl StorageBackend for LiveBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.pages.length.load(Ordering::Acquire))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset == 0 && out.len() <= HEADER_BYTES {
            out.copy_from_slice(&self.pages.head.lock().now.0[..out.len()]);
            return Ok(());
        }
        if !is_pages(offset, out.len()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the engine read a part of a page"));
        }
        self.pages.file.read_at(offset, out)?;
        self.pages.sums.check(offset, out).map_err(|page| {
            tracing::error!(page, "a page of the index is damaged");
            io::Error::new(io::ErrorKind::InvalidData, format!("the index's page at {page} is damaged"))
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let pages = self.writable()?;
        pages.cut(length)?;
        pages.length.store(length, Ordering::Release);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.writable()?;
        let now = self.pages.head.lock().now.clone();
        if let Err(error) = self.pages.file.sync() {
            self.pages.unsynced.store(true, Ordering::Release);
            return Err(error);
        }
        let mut head = self.pages.head.lock();
        head.loose = false;
        let commit = now.primary().map(|slot| slot.id);
        let news = commit.is_some()
            && commit != head.synced.as_ref().and_then(EngineHeader::primary).map(|slot| slot.id);
        head.synced = Some(now);
        // The copy matters only after a crash. It becomes durable with the next sync, or on its
        // own.
        if news && let Err(error) = self.pages.write_copy(&mut head, self.pages.end()) {
            tracing::warn!(%error, "writing the copy of the index header failed");
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.writable()?;
        if offset == 0 && data.len() == HEADER_BYTES {
            self.pages.extend_to(UNIT)?;
            let mut head = self.pages.head.lock();
            head.now.0.copy_from_slice(data);
            return self.pages.file.write_at(0, data);
        }
        if !is_pages(offset, data.len()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the engine wrote a part of a page"));
        }
        self.pages.extend_to(offset + data.len() as u64)?;
        self.pages.written.lock().insert(offset, data.len() as u64);
        self.pages.sums.record_page(offset, data);
        self.pages.file.write_at(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        let Ok(pages) = self.writable() else { return Ok(()) };
        let loose = std::mem::take(&mut pages.head.lock().loose);
        if loose { pages.file.sync() } else { Ok(()) }
    }
}
