//! The engine's file on a file system that may become full.
//!
//! Does: passes redb's calls to a file; keeps space allocated behind the last written page, so that
//! changes of a limited size succeed on a full disk; reports how much.
//! Does not: interpret what redb writes.
//! Contract: one process has the file open. redb uses the lowest free pages, so a small commit
//! needs pages below the last written one, or right behind it.
//! Truth: docs/adr/0056-full-disks.md.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::StorageBackend;
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate, flock, seek};
use rustix::io::Errno;

/// Bytes kept allocated behind the last written page.
const HEADROOM: u64 = 12 << 20;
/// Bytes allocated at a time: a nearly full disk may have space for some pieces.
const PIECE: u64 = 1 << 20;

/// Allocated space of the file.
#[derive(Debug)]
pub(super) struct FileSpace {
    file: File,
    /// All bytes before this offset are allocated.
    backed: AtomicU64,
    /// End of the last written page.
    top: AtomicU64,
}

impl FileSpace {
    fn open(file: File) -> io::Result<Self> {
        let top = last_data(&file)?;
        let space = Self { file, backed: AtomicU64::new(0), top: AtomicU64::new(top) };
        space.extend();
        Ok(space)
    }

    /// Returns the allocated bytes behind the last page.
    pub(super) fn headroom(&self) -> u64 {
        self.backed.load(Ordering::Acquire).saturating_sub(self.top.load(Ordering::Acquire))
    }

    /// Allocates space up to [`HEADROOM`] behind the last page, as far as the file system has it.
    pub(super) fn extend(&self) {
        let target = self.top.load(Ordering::Acquire) + HEADROOM;
        let mut backed = self.backed.load(Ordering::Acquire);
        while backed < target {
            let step = if backed == 0 { target - HEADROOM + PIECE } else { PIECE.min(target - backed) };
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, backed, step) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => backed += step,
                Err(error) => {
                    tracing::debug!(%error, "no disk space to reserve for the metadata store");
                    break;
                }
            }
        }
        self.backed.store(backed, Ordering::Release);
    }
}

/// Returns the end of the last written data of a file; its length if the file system does not
/// report it.
fn last_data(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let (mut at, mut end) = (0, 0);
    while at < length {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(end),
            Err(_) => return Ok(length),
        };
        match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => (at, end) = (hole, hole),
            Err(_) => return Ok(length),
        }
    }
    Ok(end)
}

/// Storage backend of the engine.
#[derive(Debug)]
pub(super) struct StoreFile(Arc<FileSpace>);

impl StoreFile {
    /// Locks and opens a file; `None` if another process has it open.
    pub(super) fn open(file: File) -> io::Result<Option<(Self, Arc<FileSpace>)>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let space = Arc::new(FileSpace::open(file)?);
        Ok(Some((Self(Arc::clone(&space)), space)))
    }
}

impl StorageBackend for StoreFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.file.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let shrinks = length < self.len()?;
        self.0.file.set_len(length)?;
        if shrinks {
            // Truncation also released the space behind the end.
            self.0.backed.fetch_min(length, Ordering::AcqRel);
            self.0.top.fetch_min(length, Ordering::AcqRel);
            self.0.extend();
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.file.write_all_at(data, offset)?;
        self.0.top.fetch_max(offset + data.len() as u64, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_reserved_behind_the_last_page() {
        let file = tempfile::tempfile().unwrap();
        let (backend, space) = StoreFile::open(file).unwrap().unwrap();
        assert!(space.headroom() >= HEADROOM);
        backend.set_len(64 << 20).unwrap();
        backend.write(20 << 20, &[1; 4096]).unwrap();
        space.extend();
        assert_eq!(space.headroom(), HEADROOM);
        backend.set_len(21 << 20).unwrap();
        assert!(space.headroom() >= HEADROOM);
        assert_eq!(backend.len().unwrap(), 21 << 20);
        assert_eq!(last_data(&space.file).unwrap(), (20 << 20) + 4096);
    }
}
