//! The index engine's file on the medium: each page is checked against its checksum when the engine reads it.
//!
//! Does: carry redb's calls to a [`MediumFile`]; keep a checksum of every page that was proved at open or written
//! since, in memory; give no page that differs, and none that nobody proved; stop all writes for good when told to;
//! keep a copy of the header of the last commit that was synced. Does not: interpret what redb writes, but for that
//! header.
//! Contract: a checksum changes before its page does, so that no page passes with an older one. redb never reads a
//! page while it writes it.
//! Truth: docs/adr/0011-the-index-is-proved-before-the-engine-reads-it.md.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use redb::StorageBackend;

use super::tree::{COPY_AT, HEADER, Header, Proof, Reader, UNIT};
use crate::medium::MediumFile;

/// Marks a checksum as known, above its 32 bits.
const KNOWN: u64 = 1 << 32;

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

/// redb's file.
pub(crate) struct Pages {
    file: Arc<dyn MediumFile>,
    sums: Arc<Sums>,
    head: Mutex<Head>,
    /// Set when the store is poisoned: nothing may be written any more.
    stopped: Arc<AtomicBool>,
}

impl Pages {
    /// Over an empty file.
    pub(crate) fn fresh(file: Arc<dyn MediumFile>) -> Arc<Self> {
        let head = Head { now: Header([0; HEADER]), synced: None, loose: false };
        Arc::new(Self { file, sums: Arc::default(), head: Mutex::new(head), stopped: Arc::default() })
    }

    /// Over a file that was proved.
    pub(crate) fn proved(proof: &Proof, stopped: Arc<AtomicBool>) -> Arc<Self> {
        let head = Head { now: proof.header.clone(), synced: Some(proof.header.clone()), loose: false };
        let (file, sums) = (proof.file.clone(), proof.sums.clone());
        Arc::new(Self { file, sums, head: Mutex::new(head), stopped })
    }

    /// The file as of the last commit that was synced, without the engine.
    pub(crate) fn frozen(&self, table: &str) -> Reader {
        let length = self.file.length().unwrap_or(0);
        let mut reader = Reader::new(self.file.clone(), length, None);
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

/// What the engine is given.
pub(crate) struct LiveBackend(pub(crate) Arc<Pages>);

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
        Ok(Proof::whole_length(self.0.file.length()?))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset == 0 && out.len() <= HEADER {
            out.copy_from_slice(&self.0.head.lock().now.0[..out.len()]);
            return Ok(());
        }
        if !is_pages(offset, out.len()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the engine read a part of a page"));
        }
        self.0.file.read_at(offset, out)?;
        self.0.sums.check(offset, out).map_err(|page| {
            tracing::error!(page, "a page of the index is damaged");
            io::Error::new(io::ErrorKind::InvalidData, format!("the index's page at {page} is damaged"))
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.check()?;
        self.0.file.set_len(length)?;
        self.0.sums.cut(length);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.check()?;
        let now = self.0.head.lock().now.clone();
        self.0.file.sync()?;
        let mut head = self.0.head.lock();
        head.loose = false;
        let commit = now.primary().map(|slot| slot.id);
        if commit.is_some() && commit != head.synced.as_ref().and_then(Header::primary).map(|slot| slot.id) {
            // Only a witness for after a crash: it becomes durable with the next sync, or by itself.
            match self.0.file.write_at(COPY_AT, &now.to_copy()) {
                Ok(()) => head.loose = true,
                Err(error) => tracing::warn!(%error, "the copy of the index's header was not written"),
            }
        }
        head.synced = Some(now);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.check()?;
        if offset == 0 && data.len() == HEADER {
            let mut head = self.0.head.lock();
            head.now.0.copy_from_slice(data);
            return self.0.file.write_at(0, data);
        }
        if !is_pages(offset, data.len()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the engine wrote a part of a page"));
        }
        self.0.sums.learn(offset, data);
        self.0.file.write_at(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        let loose = std::mem::take(&mut self.0.head.lock().loose);
        if loose && self.0.check().is_ok() { self.0.file.sync() } else { Ok(()) }
    }
}
