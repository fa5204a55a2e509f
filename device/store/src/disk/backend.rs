//! The index engine's file on the medium: each page is checked against its checksum when the engine reads it.
//!
//! Does: carry redb's calls to a [`MediumFile`]; keep a checksum of every page that was proved at open or written
//! since, in memory; give no page that differs, and none that nobody proved; stop all writes for good when told to;
//! keep a copy of the header of the last commit that was synced behind the engine's part of the file; let the file grow
//! by steps, as it is written, whatever length the engine gave it. Does not: interpret what redb writes, but for that
//! header.
//! Contract: a checksum changes before its page does, so that no page passes with an older one. redb never reads a
//! page while it writes it.
//! Truth: docs/adr/0011-index-verified-before-opening.md.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use redb::StorageBackend;

use super::room::Ground;
use super::tree::{Book, COPY, HEADER, Header, MAX_LENGTH, Proof, Reader, UNIT};
use crate::medium::MediumFile;

/// Marks a checksum as known, above its 32 bits.
const KNOWN: u64 = 1 << 32;
/// The file grows to a multiple of this with its copy of the header, in bytes: a unit of a raw device,
const GROW_UNIT: u64 = 1 << 20;
/// by at least an eighth of what it has, but not by more than so much.
const GROW_MAX: u64 = 64 << 20;

/// CRC32C of each page of 4 KiB that is known: 8 bytes of memory for each.
#[derive(Default)]
pub(crate) struct Sums(RwLock<Vec<u64>>);

impl Sums {
    /// These pages have these bytes.
    pub(crate) fn learn(&self, offset: u64, bytes: &[u8]) {
        let first = (offset / UNIT) as usize;
        let pages = bytes.chunks_exact(UNIT as usize);
        let mut sums = self.0.write();
        if sums.len() < first + pages.len() {
            sums.resize(first + pages.len(), 0);
        }
        for (sum, page) in sums[first..].iter_mut().zip(pages) {
            *sum = KNOWN | u64::from(crate::crc::crc32c(page));
        }
    }

    /// The first page whose bytes are not the known ones.
    fn check(&self, offset: u64, bytes: &[u8]) -> Result<(), u64> {
        let first = (offset / UNIT) as usize;
        let sums = self.0.read();
        for (at, page) in bytes.chunks_exact(UNIT as usize).enumerate() {
            let known = sums.get(first + at).copied().unwrap_or(0);
            if known != KNOWN | u64::from(crate::crc::crc32c(page)) {
                return Err((first + at) as u64 * UNIT);
            }
        }
        Ok(())
    }

    /// The file ends at `length` now.
    fn cut(&self, length: u64) {
        self.0.write().truncate((length / UNIT) as usize);
    }
}

/// The header as the engine knows it.
struct Head {
    now: Header,
    /// As of the last sync.
    synced: Option<Header>,
    /// Is our copy of it not synced yet?
    loose: bool,
}

impl Head {
    fn new(now: Header, synced: Option<Header>) -> Self {
        Self { now, synced, loose: false }
    }
}

/// redb's file.
pub(crate) struct Pages {
    file: Arc<dyn MediumFile>,
    sums: Arc<Sums>,
    /// Names the store in the copy of the header.
    uuid: [u8; 16],
    head: Mutex<Head>,
    /// The length that the engine gave its part of the file, in bytes.
    length: AtomicU64,
    /// How much of that the file has, in bytes: behind it lies our copy of the header. Changed under `head`.
    end: AtomicU64,
    /// Set when the store is poisoned: nothing may be written any more.
    stopped: Arc<AtomicBool>,
    /// Set when a sync failed: what is in memory may not be on the medium.
    unsynced: AtomicBool,
    /// Pages written, by their place in bytes, with their lengths.
    written: Mutex<HashMap<u64, u64>>,
}

impl Pages {
    /// Over an empty file.
    pub(crate) fn fresh(file: Arc<dyn MediumFile>, uuid: [u8; 16]) -> Arc<Self> {
        let head = Head::new(Header([0; HEADER]), None);
        Arc::new(Self::over(file, Arc::default(), uuid, head, 0, Arc::default()))
    }

    /// Over a file that was proved.
    pub(crate) fn proved(proof: &Proof, stopped: Arc<AtomicBool>) -> Arc<Self> {
        let head = Head::new(proof.header.clone(), Some(proof.header.clone()));
        let (file, sums) = (proof.file.clone(), proof.sums.clone());
        Arc::new(Self::over(file, sums, proof.uuid, head, proof.end, stopped))
    }

    fn over(
        file: Arc<dyn MediumFile>,
        sums: Arc<Sums>,
        uuid: [u8; 16],
        head: Head,
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

    /// Did a sync fail?
    pub(crate) fn is_unsynced(&self) -> bool {
        self.unsynced.load(Ordering::Acquire)
    }

    /// Writes our copy of the header of the last commit that was synced, to this place.
    fn write_copy(&self, head: &mut Head, place: u64) -> io::Result<()> {
        let copy = head.synced.as_ref().map_or([0; COPY], |synced| synced.to_copy(place, &self.uuid));
        self.file.write_at(place, &copy)?;
        head.loose = true;
        Ok(())
    }

    /// Makes the file long enough for bytes up to `needed` of the engine's part. New bytes may be anything: nobody reads
    /// a page that was not written.
    fn reach(&self, needed: u64) -> io::Result<()> {
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
            // Where there is no room for a step there may be for what is needed.
            Err(error) if is_full(&error) && wanted > with_copy(needed) => {
                self.file.allocate(with_copy(needed)).map(|()| with_copy(needed))
            }
            result => result.map(|()| wanted),
        }?;
        self.end_at(&mut head, grown - copy)
    }

    /// The file is longer now: our copy of the header goes behind the new end.
    fn end_at(&self, head: &mut Head, end: u64) -> io::Result<()> {
        let old = self.end();
        self.write_copy(head, end)?;
        // Else it might be taken for the last one, if the file were cut off here again.
        if old > 0 {
            self.file.write_at(old, &[0; COPY])?;
        }
        self.end.store(end, Ordering::Release);
        Ok(())
    }

    /// Makes the file longer by so many bytes, at least an eighth, or by what the medium has of that, and not by more than
    /// `most`. Gives whether it has any. The engine is not told.
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

    /// What the last commit leaves free, with the book of it; `None` if that cannot be found out.
    pub(crate) fn look(&self, table: &str) -> Option<(Book, Ground)> {
        let last = self.head.lock().synced.as_ref().and_then(Header::primary)?;
        let length = self.end();
        let mut reader = Reader::new(self.file.clone(), length, None);
        reader.watch(last.user);
        reader.find_table(last.user, table);
        let shape = reader.outline()?;
        let book = Book::of(&reader.seen()?, &last, length, true)?;
        let ground = Ground { free: book.free.clone(), shape, length };
        Some((book, ground))
    }

    /// An engine that starts now finds the last commit, closed in order, with this book of all of the file.
    pub(crate) fn start_from(&self, book: &Book) -> io::Result<()> {
        self.check()?;
        for (offset, bytes) in &book.pages {
            self.sums.learn(*offset, bytes);
            self.file.write_at(*offset, bytes)?;
        }
        let mut head = self.head.lock();
        let length = self.end();
        let header = Header::closed_after(&book.commit, length);
        (head.now, head.synced) = (header.clone(), Some(header));
        self.length.store(length, Ordering::Release);
        self.written.lock().clear();
        Ok(())
    }

    /// The pages that were written since this was asked last, by their places and lengths in bytes.
    pub(crate) fn take_written(&self) -> Vec<(u64, u64)> {
        self.written.lock().drain().collect()
    }

    /// Cuts the file off.
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

    /// The file as of the last commit that was synced, without the engine.
    pub(crate) fn frozen(&self, table: &str) -> Reader {
        let mut reader = Reader::new(self.file.clone(), self.end(), None);
        let last = self.head.lock().synced.as_ref().and_then(Header::primary);
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

/// What the engine is given.
pub(crate) struct LiveBackend {
    pub(crate) pages: Arc<Pages>,
    /// Set when another engine has the file.
    pub(crate) detached: Arc<AtomicBool>,
}

impl LiveBackend {
    pub(crate) fn new(pages: Arc<Pages>) -> Self {
        Self { pages, detached: Arc::default() }
    }

    /// The pages, for writing.
    fn writable(&self) -> io::Result<&Pages> {
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
        if offset == 0 && out.len() <= HEADER {
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
        let news =
            commit.is_some() && commit != head.synced.as_ref().and_then(Header::primary).map(|slot| slot.id);
        head.synced = Some(now);
        // Only a witness for after a crash: it becomes durable with the next sync, or by itself.
        if news && let Err(error) = self.pages.write_copy(&mut head, self.pages.end()) {
            tracing::warn!(%error, "the copy of the index's header was not written");
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.writable()?;
        if offset == 0 && data.len() == HEADER {
            self.pages.reach(UNIT)?;
            let mut head = self.pages.head.lock();
            head.now.0.copy_from_slice(data);
            return self.pages.file.write_at(0, data);
        }
        if !is_pages(offset, data.len()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the engine wrote a part of a page"));
        }
        self.pages.reach(offset + data.len() as u64)?;
        self.pages.written.lock().insert(offset, data.len() as u64);
        self.pages.sums.learn(offset, data);
        self.pages.file.write_at(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        let Ok(pages) = self.writable() else { return Ok(()) };
        let loose = std::mem::take(&mut pages.head.lock().loose);
        if loose { pages.file.sync() } else { Ok(()) }
    }
}
