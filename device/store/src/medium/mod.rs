//! The seam to whatever keeps the files of a store: a folder, a raw device, or the simulator.
//!
//! Does: name exactly what the store asks of a disk, and what it may rely on after a power loss.
//! Contract: a byte is durable when a `sync` of its file that began after its write returned `Ok`; a name, when
//! `sync_names` did. Until then a write may be lost, kept, or torn at 512-byte sectors, in any order. After a
//! failed `sync` nothing is known about what was pending, and a later `sync` says nothing about it.

mod device;
mod direct;
mod file;
mod place;

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

pub use device::{BlockDevice, DEVICE_MIN, DeviceMedium};
pub use file::FileMedium;
pub use place::{bind_device, open_place, survey_device};

/// How block data gets to the medium and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// As it is best for a device as it comes: through the page cache, so that what is read twice is in memory.
    #[default]
    Auto,
    /// Through the page cache.
    Cached,
    /// Past it (O_DIRECT): memory stays to others, and cold reads from 64 KiB on are faster. The index stays cached.
    Direct,
}

/// The free space of a file system that other programs use, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that this process may still take.
    pub free: u64,
    /// Bytes of the whole file system.
    pub total: u64,
    /// The same for all stores on one file system of a machine, until the machine restarts.
    pub id: [u8; 16],
}

/// A flat folder of named files.
pub trait Medium: Send + Sync {
    /// Opens a file for reading and writing; makes an empty one if `create` and it is not there.
    /// Fails with `NotFound` if it is not there and `create` is false.
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>>;

    /// Opens a file that is there, for data in whole blocks: past the page cache, if the medium was opened so.
    fn open_data(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        self.open(name, false)
    }

    /// Removes a file. `NotFound` if it is not there.
    fn delete(&self, name: &str) -> io::Result<()>;

    /// The names of all files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes created and deleted names durable.
    fn sync_names(&self) -> io::Result<()>;

    /// After a sync failed in another opening: writes again, durably, what this medium keeps of its own about its files.
    /// What the system remembers of it may be nowhere else.
    fn rewrite_names(&self) -> io::Result<()> {
        self.sync_names()
    }

    /// Returns what the file system beneath has for everybody; `None` if the space of the medium is its own.
    fn free_space(&self) -> Option<FreeSpace> {
        None
    }

    /// Has the index a room of its own, set aside when the store was made, beyond which it cannot grow?
    fn has_bounded_index(&self) -> bool {
        false
    }

    /// The boot of the system whose memory holds what was written and is not durable; `None` if that is unknown.
    fn boot_id(&self) -> Option<[u8; 16]> {
        None
    }
}

/// Returns the free space of the file system with this folder.
///
/// # Errors
/// Those of the system.
pub fn free_space_of(folder: &Path) -> io::Result<FreeSpace> {
    let found = rustix::fs::statvfs(folder)?;
    let device = std::fs::metadata(folder)?.dev();
    // The number of a file system is unique within one start of the machine, whose id is random.
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

/// One open file. Positions are bytes; there is no cursor, so all threads may use it at once.
pub trait MediumFile: Send + Sync {
    /// Length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// As [`Medium::boot_id`], of this file.
    fn boot_id(&self) -> Option<[u8; 16]> {
        None
    }

    /// Sets the length; new bytes are zero and take no space.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// As `set_len`, but new bytes may read as anything until they are written: where zeros would have to be
    /// written, nobody waits for that.
    fn reserve(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    /// As `reserve`, but with space for all bytes up to there: no later write to them finds the medium full, as far as the
    /// medium can promise that. Fails with `StorageFull` and changes nothing if there is no such space. Never shortens.
    fn allocate(&self, length: u64) -> io::Result<()> {
        if self.length()? < length { self.reserve(length) } else { Ok(()) }
    }

    /// Gives space to these bytes of the file without a change of its length. `StorageFull` if there is no such space.
    fn back(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    /// Returns the parts of the file that have no space on the medium, ascending; none where the medium does not tell.
    fn holes(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(Vec::new())
    }

    /// Fills `into` from `offset`. `UnexpectedEof` if the file ends before.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`, extending the file as needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes contents and length durable.
    fn sync(&self) -> io::Result<()>;

    /// Says that these bytes are not needed any more; they read as anything until written again.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Fills several buffers from consecutive bytes, in as few calls to the system as possible.
    fn read_vectored_at(&self, mut offset: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        for part in into {
            self.read_at(offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Writes several buffers to consecutive bytes, in as few calls to the system as possible.
    fn write_vectored_at(&self, mut offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        for part in data {
            self.write_at(offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }
}
