//! The index engine's file on the medium, and a frozen copy of it for reading on after a failure.
//!
//! Does: carry redb's calls to a [`MediumFile`]; stop all writes for good when told to.
//! Does not: interpret what redb writes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use redb::StorageBackend;

use crate::medium::MediumFile;

/// redb's file, live.
pub(crate) struct LiveBackend {
    pub(crate) file: Arc<dyn MediumFile>,
    /// Set when the store is poisoned: nothing may be written any more.
    pub(crate) stopped: Arc<AtomicBool>,
}

impl LiveBackend {
    fn check(&self) -> io::Result<()> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the store is poisoned"));
        }
        Ok(())
    }
}

impl fmt::Debug for LiveBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveBackend")
    }
}

impl StorageBackend for LiveBackend {
    fn len(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.check()?;
        self.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.write_at(offset, data)
    }
}

/// Unit in which a frozen file keeps what was written over it, in bytes.
const PAGE: u64 = 4096;

/// redb's file as it is; writes (redb repairs what it opens) stay in memory.
pub(crate) struct FrozenBackend {
    file: Arc<dyn MediumFile>,
    over: RwLock<Over>,
}

struct Over {
    length: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl FrozenBackend {
    pub(crate) fn new(file: Arc<dyn MediumFile>) -> io::Result<Self> {
        let length = file.length()?;
        Ok(Self { file, over: RwLock::new(Over { length, pages: BTreeMap::new() }) })
    }

    /// A page as the file has it; zeros beyond its end.
    fn original(&self, page: u64) -> io::Result<Box<[u8; PAGE as usize]>> {
        let mut bytes = Box::new([0; PAGE as usize]);
        let left = self.file.length()?.saturating_sub(page * PAGE).min(PAGE);
        self.file.read_at(page * PAGE, &mut bytes[..left as usize])?;
        Ok(bytes)
    }
}

impl fmt::Debug for FrozenBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrozenBackend")
    }
}

impl StorageBackend for FrozenBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.over.read().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.over.read();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > over.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < out.len() {
            let (page, within) = ((offset + done as u64) / PAGE, ((offset + done as u64) % PAGE) as usize);
            let part = (out.len() - done).min(PAGE as usize - within);
            let target = &mut out[done..done + part];
            match over.pages.get(&page) {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + part]),
                None => target.copy_from_slice(&self.original(page)?[within..within + part]),
            }
            done += part;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.over.write().length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut over = self.over.write();
        let mut done = 0;
        while done < data.len() {
            let (page, within) = ((offset + done as u64) / PAGE, ((offset + done as u64) % PAGE) as usize);
            let part = (data.len() - done).min(PAGE as usize - within);
            let bytes = match over.pages.entry(page) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.original(page)?),
            };
            bytes[within..within + part].copy_from_slice(&data[done..done + part]);
            done += part;
        }
        over.length = over.length.max(offset + data.len() as u64);
        Ok(())
    }
}
