//! The trait for the storage of a store's files: a folder, a raw device, or the simulator.
//!
//! Does: states exactly what the store requires of a disk, and what it may rely on after a power
//! loss.
//! Contract: a byte is durable when a `sync` of its file that began after the write returned `Ok`;
//! a name, when `sync_names` did. Until then a write may be lost, kept, or torn at 512-byte
//! sectors, in any order. After a failed `sync` the state of pending writes is unknown, and a later
//! `sync` does not change that.

mod binding;
mod device;
mod direct;
mod file;

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

pub use binding::{bind_device, open_store_medium, survey_device};
pub use device::{BlockDevice, DEVICE_MIN, DeviceMedium};
pub use file::FileMedium;

/// How block data is transferred to and from the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// The default for devices: through the page cache, so that repeated reads come from memory.
    #[default]
    Auto,
    /// Through the page cache.
    Cached,
    /// Past the page cache (O_DIRECT): leaves the memory to others, and makes cold reads from 64
    /// KiB on faster. The index is still cached.
    Direct,
}

/// The free space of a file system that other programs use, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that this process can still take.
    pub free: u64,
    /// Size of the file system in bytes.
    pub total: u64,
    /// Equal for all stores on one file system of a machine, until the machine restarts.
    pub id: [u8; 16],
}

/// A flat folder of named files.
pub trait Medium: Send + Sync {
    /// Opens a file for reading and writing. Creates an empty one if it does not exist and `create`
    /// is true; otherwise fails with `NotFound`.
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>>;

    /// Opens an existing file for data in whole blocks: past the page cache, if the medium was
    /// opened in that mode.
    fn open_data(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        self.open(name, false)
    }

    /// Removes a file. Fails with `NotFound` if it does not exist.
    fn delete(&self, name: &str) -> io::Result<()>;

    /// Returns the names of all files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes created and deleted names durable.
    fn sync_names(&self) -> io::Result<()>;

    /// After a sync failed in an earlier opening: writes the medium's own metadata about its files
    /// again, durably. The system's cache may be the only place that has it.
    fn rewrite_names(&self) -> io::Result<()> {
        self.sync_names()
    }

    /// Returns the free space of the shared file system; `None` if the medium's space is its own.
    fn free_space(&self) -> Option<FreeSpace> {
        None
    }

    /// Whether the index has a fixed space, reserved at format, beyond which it cannot grow.
    fn has_bounded_index(&self) -> bool {
        false
    }

    /// Returns the boot id of the system whose memory holds written but not durable data; `None` if
    /// it is unknown.
    fn boot_id(&self) -> Option<[u8; 16]> {
        None
    }
}

/// Returns the free space of the file system with this folder.
///
/// # Errors
/// Errors of the system.
pub fn free_space_of(folder: &Path) -> io::Result<FreeSpace> {
    let found = rustix::fs::statvfs(folder)?;
    let device = std::fs::metadata(folder)?.dev();
    // The number of a file system is unique until the machine restarts; the boot id is random.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = boot.chars().filter_map(|digit| digit.to_digit(16));
    let boot = digits.fold(0_u128, |id, digit| id << 4 | u128::from(digit));
    let id = (boot ^ u128::from(device)).to_be_bytes();
    let unit = found.f_frsize;
    Ok(FreeSpace {
        free: found.f_bavail.saturating_mul(unit),
        total: found.f_blocks.saturating_mul(unit),
        id,
    })
}

/// One open file. Offsets are in bytes; there is no cursor, so all threads can use it at once.
pub trait MediumFile: Send + Sync {
    /// Returns the length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Like [`Medium::boot_id`], for this file.
    fn boot_id(&self) -> Option<[u8; 16]> {
        None
    }

    /// Sets the length; new bytes are zero and take no space.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// Like `set_len`, but new bytes may read as anything until they are written. It avoids writing
    /// zeros.
    fn reserve(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    /// Like `reserve`, but allocates space for all bytes up to there: no later write to them finds
    /// the medium full, as far as the medium can guarantee that. Fails with `StorageFull` and
    /// changes nothing if there is no such space. Never shortens the file.
    fn allocate(&self, length: u64) -> io::Result<()> {
        if self.length()? < length { self.reserve(length) } else { Ok(()) }
    }

    /// Allocates space for these bytes of the file without changing its length. Fails with
    /// `StorageFull` if there is no such space.
    fn back(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    /// Returns the parts of the file that have no space on the medium, ascending; none if the
    /// medium cannot report them.
    fn holes(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(Vec::new())
    }

    /// Fills `into` from `offset`. Fails with `UnexpectedEof` if the file ends before.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`, extending the file as needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes contents and length durable.
    fn sync(&self) -> io::Result<()>;

    /// Declares these bytes unused; they may read as anything until written again.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Fills several buffers from consecutive bytes, in as few system calls as possible.
    fn read_vectored_at(&self, mut offset: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        for part in into {
            self.read_at(offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Writes several buffers to consecutive bytes, in as few system calls as possible.
    fn write_vectored_at(&self, mut offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        for part in data {
            self.write_at(offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }
}
