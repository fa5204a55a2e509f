//! Regular files in one folder.
//!
//! Does: positioned reads and writes, fdatasync, fsync of the folder, a lock against a second
//! daemon.
//! Does not: cache, or retry anything but EINTR; the kernel's page cache is the cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate, fdatasync, flock, seek};
use rustix::io::{Errno, preadv, pwritev};

use super::direct::DirectFile;
use super::{FreeSpace, IoMode, Medium, MediumFile};
use crate::FormatError;

/// File with Linux's boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Unit in which the system counts the space of a file, in bytes.
const SECTOR: u64 = 512;
/// Name of the lock file in the folder.
const LOCK: &str = "lock";

/// The files of one folder, locked exclusively until this is dropped.
#[derive(Debug)]
pub struct FileMedium {
    folder: PathBuf,
    io: IoMode,
    /// Holds the flock.
    _lock: File,
}

impl FileMedium {
    /// Locks a folder; creates it (mode 0700) if needed.
    ///
    /// # Errors
    /// `InUse` if another medium has the folder, in this process or in another; `IoMode` for the
    /// rest.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, FormatError> {
        Self::open_with(folder, IoMode::Auto)
    }

    /// Like [`open`](Self::open), with an access mode for data.
    ///
    /// # Errors
    /// As [`open`](Self::open). Whether the file system supports O_DIRECT is found out when data
    /// files are opened.
    pub fn open_with(folder: impl AsRef<Path>, io: IoMode) -> Result<Self, FormatError> {
        let folder = folder.as_ref().to_path_buf();
        let failed = |doing| move |source| FormatError::Io { doing, source };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed("making the folder"))?;
        let lock = open(&folder.join(LOCK), true).map_err(failed("opening the lock file"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { folder, io, _lock: lock }),
            Err(Errno::WOULDBLOCK) => Err(FormatError::InUse),
            Err(error) => Err(FormatError::Io { doing: "locking the folder", source: error.into() }),
        }
    }
}

impl Medium for FileMedium {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>> {
        Ok(Arc::new(RealFile::new(open(&self.folder.join(name), create)?)))
    }

    fn open_data(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        let path = self.folder.join(name);
        let direct = if self.io == IoMode::Direct { Some(DirectFile::open(&path)?) } else { None };
        Ok(Arc::new(RealFile { file: open(&path, false)?, direct }))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != LOCK {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn free_space(&self) -> Option<FreeSpace> {
        super::free_space_of(&self.folder).ok()
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        boot_id()
    }
}

/// Returns the boot id of the running kernel.
fn boot_id() -> Option<[u8; 16]> {
    parse_boot_id(&fs::read_to_string(BOOT_ID).ok()?)
}

/// Parses a UUID: 32 hexadecimal digits, with hyphens anywhere.
fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.trim_end().bytes().filter(|byte| *byte != b'-').collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes = digits.chunks(2).map(|pair| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// Accessible to the owner only: the store's content is private.
fn open(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(create).mode(0o600).open(path)
}

/// One regular file; with a second handle past the page cache, if requested.
#[derive(Debug)]
pub(super) struct RealFile {
    file: File,
    direct: Option<DirectFile>,
}

impl RealFile {
    pub(super) fn new(file: File) -> Self {
        Self { file, direct: None }
    }

    /// Discards blocks of a block device. Discarded blocks may read as anything. That is harmless:
    /// free blocks are not read, and an allocated block is written as a whole first.
    pub(super) fn discard_blocks(&self, offset: u64, length: u64) -> io::Result<()> {
        let zeroed = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A hole reads as zeros. Devices that do not guarantee that for unmapped blocks refuse it,
        // and support the second form.
        for flags in [zeroed, zeroed | FallocateFlags::NO_HIDE_STALE] {
            match fallocate(&self.file, flags, offset, length) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                result => return Ok(result?),
            }
        }
        Ok(())
    }

    /// Returns the file with its bytes read and written past the page cache.
    pub(super) fn direct(&self, path: &Path) -> io::Result<Self> {
        Ok(Self { file: self.file.try_clone()?, direct: Some(DirectFile::open(path)?) })
    }
}

impl MediumFile for RealFile {
    fn boot_id(&self) -> Option<[u8; 16]> {
        boot_id()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let old = self.length()?;
        match fallocate(&self.file, FallocateFlags::empty(), 0, length.max(1)) {
            Ok(()) => Ok(()),
            // Not every file system supports it: then the length is set, without a guarantee of
            // space.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if old < length => self.set_len(length),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => {
                // A part of it may have been allocated.
                if self.length()? > old {
                    self.set_len(old)?;
                }
                Err(error.into())
            }
        }
    }

    fn back(&self, offset: u64, length: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, length) {
            // Not every file system supports it: then a write fails if there is no space.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn holes(&self) -> io::Result<Vec<Range<u64>>> {
        let metadata = self.file.metadata()?;
        let (length, mut at, mut holes) = (metadata.len(), 0, Vec::new());
        // Allocated but unwritten space is reported as a hole; a file with all of its space has
        // none.
        if metadata.blocks().saturating_mul(SECTOR) >= length {
            return Ok(holes);
        }
        while at < length {
            let hole = match seek(&self.file, SeekFrom::Hole(at)) {
                Ok(hole) if hole < length => hole,
                Ok(_) => break,
                // Not every file system supports it: then all of the file counts as having space.
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            at = match seek(&self.file, SeekFrom::Data(hole)) {
                Ok(data) => data.min(length),
                // There is no data behind it.
                Err(Errno::NXIO) => length,
                Err(error) => return Err(error.into()),
            };
            holes.push(hole..at);
        }
        Ok(holes)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match &self.direct {
            Some(direct) => direct.read_at(offset, into),
            None => self.file.read_exact_at(into, offset),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &self.direct {
            Some(direct) => direct.write_at(offset, data),
            None => self.file.write_all_at(data, offset),
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.file)?)
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
            // Not every file system supports it; the bytes then stay allocated.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read_vectored_at(&self, mut offset: u64, mut into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            return direct.read_parts(offset, into);
        }
        IoSliceMut::advance_slices(&mut into, 0);
        while !into.is_empty() {
            match preadv(&self.file, into, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    offset += read as u64;
                    IoSliceMut::advance_slices(&mut into, read);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_vectored_at(&self, mut offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            return direct.write_parts(offset, data);
        }
        let mut parts = data.to_vec();
        let mut data = &mut parts[..];
        IoSlice::advance_slices(&mut data, 0);
        while !data.is_empty() {
            match pwritev(&self.file, data, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut data, written);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_holder() {
        let folder = tempfile::tempdir().unwrap();
        let first = FileMedium::open(folder.path()).unwrap();
        assert!(matches!(FileMedium::open(folder.path()), Err(FormatError::InUse)));
        drop(first);
        FileMedium::open(folder.path()).unwrap();
    }

    #[test]
    fn boot_ids_are_parsed() {
        let parsed = parse_boot_id("0123456789ab-cdef-0123-4567-89abcdef\n");
        assert_eq!(parsed.map(u128::from_be_bytes), Some(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef));
        for text in ["", "0123", "0123456789ab-cdef-0123-4567-89abcdeg", "0123456789abcdef0123456789abcdef01"]
        {
            assert_eq!(parse_boot_id(text), None, "{text}");
        }
    }

    #[test]
    fn vectored_calls_cross_buffers() {
        let folder = tempfile::tempdir().unwrap();
        let medium = FileMedium::open(folder.path()).unwrap();
        let file = medium.open("x", true).unwrap();
        file.write_vectored_at(3, &[IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"de")]).unwrap();
        let (mut a, mut b) = ([0; 4], [0; 4]);
        file.read_vectored_at(0, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]).unwrap();
        assert_eq!((&a, &b), (b"\0\0\0a", b"bcde"));
        let short = file.read_vectored_at(1, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]);
        assert_eq!(short.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(medium.list().unwrap(), ["x"]);
    }
}
