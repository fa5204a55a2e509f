//! A block device, or a regular file instead of one, as the file below a
//! [`DeviceMedium`](super::DeviceMedium).
//!
//! Does: opens it exclusively (O_EXCL excludes mounts and other openers of a block device, flock a
//! second daemon), checks its sectors, reads, writes, syncs, discards.
//! Does not: create or resize it.

use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags, flock, ioctl_blksszget};
use rustix::io::Errno;

use super::super::file::RealFile;
use super::super::{IoMode, MediumFile};
use crate::{BLOCK, FormatError};

/// A device, opened exclusively until this is dropped.
#[derive(Debug)]
pub struct BlockDevice {
    file: RealFile,
    /// A separate file handle for data, if there is one.
    data: Option<RealFile>,
    length: u64,
    /// Whether it is a device, rather than a regular file.
    is_device: bool,
}

impl BlockDevice {
    /// Opens a block device or a regular file.
    ///
    /// # Errors
    /// `InUse` if it is mounted or another process has it open; `NotADevice`, `Sectors`, `IoMode`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        Self::open_with(path, IoMode::Auto)
    }

    /// Like [`open`](Self::open), with an access mode for data.
    ///
    /// # Errors
    /// As [`open`](Self::open); `IoMode` if the device does not support the mode.
    pub fn open_with(path: impl AsRef<Path>, io: IoMode) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let failed = |doing| move |source| FormatError::Io { doing, source };
        let kind = std::fs::metadata(path).map_err(failed("looking at the device"))?.file_type();
        if !kind.is_block_device() && !kind.is_file() {
            return Err(FormatError::NotADevice);
        }
        // On a block device, O_EXCL without O_CREAT fails if it is open exclusively elsewhere,
        // including a mount; on a regular file it has no effect.
        let exclusive = if kind.is_block_device() { OFlags::EXCL.bits() as i32 } else { 0 };
        let mut file = match OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                return Err(FormatError::InUse);
            }
            file => file.map_err(failed("opening the device"))?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(FormatError::InUse),
            Err(error) => return Err(failed("locking the device")(error.into())),
        }
        if kind.is_block_device() {
            let sector =
                ioctl_blksszget(&file).map_err(|error| failed("asking for sectors")(error.into()))?;
            check_sector(sector)?;
        }
        // Seeking to the end is the way to find the length of a block device.
        let length = file.seek(SeekFrom::End(0)).map_err(failed("reading the device's length"))?;
        let file = RealFile::new(file);
        let direct = || file.direct(path).map_err(failed("opening the device past the page cache"));
        let data = if io == IoMode::Direct { Some(direct()?) } else { None };
        Ok(Self { file, data, length, is_device: kind.is_block_device() })
    }

    /// Returns the device in the access mode for data.
    #[must_use]
    pub fn data(self: &Arc<Self>) -> Arc<dyn MediumFile> {
        match self.data {
            Some(_) => Arc::new(DataHandle(Arc::clone(self))),
            None => Arc::clone(self) as Arc<dyn MediumFile>,
        }
    }
}

/// A device in its access mode for data.
struct DataHandle(Arc<BlockDevice>);

impl DataHandle {
    fn file(&self) -> &RealFile {
        self.0.data.as_ref().unwrap_or(&self.0.file)
    }
}

impl MediumFile for DataHandle {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file().read_at(offset, into)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.check(offset, data.len() as u64)?;
        self.file().write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.discard(offset, length)
    }

    fn read_vectored_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.file().read_vectored_at(offset, into)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.check(offset, data.iter().map(|part| part.len() as u64).sum())?;
        self.file().write_vectored_at(offset, data)
    }
}

/// Checks that a block consists of whole sectors.
fn check_sector(bytes: u32) -> Result<(), FormatError> {
    let fits = bytes >= 512 && u64::from(bytes) <= BLOCK && BLOCK.is_multiple_of(u64::from(bytes));
    if fits { Ok(()) } else { Err(FormatError::Sectors { bytes }) }
}

impl MediumFile for BlockDevice {
    fn length(&self) -> io::Result<u64> {
        Ok(self.length)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.file.boot_id()
    }

    fn set_len(&self, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset, data.len() as u64)?;
        self.file.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.check(offset, length)?;
        if self.is_device {
            self.file.discard_blocks(offset, length)
        } else {
            self.file.discard(offset, length)
        }
    }

    fn read_vectored_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.file.read_vectored_at(offset, into)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        self.check(offset, data.iter().map(|part| part.len() as u64).sum())?;
        self.file.write_vectored_at(offset, data)
    }
}

impl BlockDevice {
    /// Checks that the range exists: a regular file used as a device does not grow.
    fn check(&self, offset: u64, length: u64) -> io::Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn sectors_larger_than_a_block_are_refused() {
        for bytes in [512, 1024, 2048, 4096] {
            check_sector(bytes).unwrap();
        }
        for bytes in [0, 256, 520, 3000, 8192, 65536] {
            assert!(
                matches!(check_sector(bytes), Err(FormatError::Sectors { bytes: found }) if found == bytes)
            );
        }
    }

    #[test]
    fn devices_and_files_are_opened_exclusively() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(BlockDevice::open(folder.path()), Err(FormatError::NotADevice)));
        assert!(matches!(BlockDevice::open("/dev/null"), Err(FormatError::NotADevice)));
        let path = folder.path().join("device");
        assert!(matches!(BlockDevice::open(&path), Err(FormatError::Io { .. })), "it is not made");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let device = BlockDevice::open(&path).unwrap();
        assert!(matches!(BlockDevice::open(&path), Err(FormatError::InUse)));
        assert_eq!(device.length().unwrap(), 1 << 20);
        assert_eq!(device.write_at((1 << 20) - 1, b"xy").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(device.length().unwrap(), 1 << 20, "it does not grow");
    }
}
