//! A raw device as medium: label, table of regions, and the store's files as regions of whole MiB.
//!
//! Does: implements [`Medium`] on one block device or one large file, through [`MediumFile`], so
//! that the crash simulator runs below it, too.
//! Does not: open real devices; `block.rs` does.
//! Contract: a table is written to the copy that is not the last good one, and counts when it is
//! synced. Units that a region released get no other owner before that, so that in whichever table
//! survives each unit has one owner.
//! Source of truth: docs/design/store.md, "Raw devices".

mod block;
mod foreign;
pub(crate) mod label;
mod regions;

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

pub use block::BlockDevice;

use super::{Medium, MediumFile};
use crate::FormatError;
use crate::disk::{is_unfinished, log_length_for, reserve_of};
use foreign::LOOKED_AT;
use label::{DeviceLabel, LABEL, LabelState, MAGIC, SLOT, SLOTS, UNIT, encode_table, is_sound, parse_table};
use regions::{RegionPiece, RegionTable, pieces};

/// Minimum length of a device in bytes, for the tables, an index and the smallest store.
pub const DEVICE_MIN: u64 = 32 << 20;
/// Minimum space of the index on a device, in bytes; on larger devices it is a sixteenth.
const INDEX_MIN: u64 = 12 << 20;
/// Zeros are written in pieces of this many bytes.
const ZEROS: usize = 1 << 20;

/// A raw device with a label.
#[derive(Clone)]
pub struct DeviceMedium(Arc<DeviceInner>);

struct DeviceInner {
    device: Arc<dyn MediumFile>,
    /// The same device in the access mode for data. Regions share no page, so each page is accessed
    /// in one mode at a time.
    data: Arc<dyn MediumFile>,
    label: DeviceLabel,
    regions: RwLock<RegionTable>,
    /// Held while a table is written.
    table: Mutex<DeviceTable>,
    /// Number of completed writes.
    writes: AtomicU64,
    /// Number of writes that are known to be durable.
    synced: Mutex<u64>,
    /// New units that were zeroed since the last table: the zeros must be durable before a table
    /// that assigns them.
    zeroed: AtomicU64,
}

/// State of the table on the device.
struct DeviceTable {
    /// Generation of the last table written, whether or not the write succeeded.
    generation: u64,
    /// The copy that holds the last durable table.
    good: usize,
    /// Number of the last change in it.
    change: u64,
}

impl DeviceMedium {
    /// Writes a label, which makes a device one without regions.
    ///
    /// # Errors
    /// Unless `overwrite`: `AlreadyFormatted` if it has our label and a finished store, `Occupied`
    /// if it has other content. `DeviceTooSmall`, `Version`, `IoMode`.
    pub fn format(device: Arc<dyn MediumFile>, uuid: [u8; 16], overwrite: bool) -> Result<Self, FormatError> {
        let length = Self::check_free(&device, overwrite)?;
        let mut label = DeviceLabel { state: LabelState::Formatting, uuid, length };
        let write = |at, bytes: &[u8]| device.write_at(at, bytes).map_err(io("labelling the device"));
        let sync = || device.sync().map_err(io("labelling the device"));
        write(0, &label.encode())?;
        sync()?;
        // The former content must not be recognised any more, at either end.
        let zeros = vec![0; UNIT as usize];
        write(LABEL as u64, &zeros[LABEL..])?;
        write(length - LOOKED_AT, &zeros[..LOOKED_AT as usize])?;
        let empty = encode_table(1, [].iter()).expect("an empty table is short");
        write(SLOTS[0], &empty)?;
        sync()?;
        label.state = LabelState::Ready;
        write(0, &label.encode())?;
        sync()?;
        Self::open(device)
    }

    /// Checks that the device may be formatted; returns its length.
    fn check_free(device: &Arc<dyn MediumFile>, overwrite: bool) -> Result<u64, FormatError> {
        let length = length_of(&**device)?;
        if overwrite {
            return Ok(length);
        }
        match read_label(&**device)? {
            Some(DeviceLabel { state: LabelState::Formatting, .. }) => Ok(length),
            // Interrupted between the label and the store: no write was ever acknowledged.
            Some(_) if Self::open(Arc::clone(device)).is_ok_and(|medium| is_unfinished(&medium)) => {
                Ok(length)
            }
            Some(_) => Err(FormatError::AlreadyFormatted),
            None => match foreign::contents(&**device, length).map_err(io("reading the device"))? {
                None => Ok(length),
                Some(what) => Err(FormatError::Occupied { what }),
            },
        }
    }

    /// Returns the maximum capacity of a store on this device, if it may be formatted; changes
    /// nothing.
    ///
    /// # Errors
    /// Those of [`format`](Self::format).
    pub fn survey(device: &Arc<dyn MediumFile>, overwrite: bool) -> Result<u64, FormatError> {
        Self::check_free(device, overwrite).map(capacity_max)
    }

    /// Opens a device with a label.
    ///
    /// # Errors
    /// `NotFormatted` without one, `FormatIncomplete`, `Version`, `DeviceLabel`, `DeviceShrunk`,
    /// `DeviceTooSmall`, `IoMode`.
    pub fn open(device: Arc<dyn MediumFile>) -> Result<Self, FormatError> {
        Self::open_with(Arc::clone(&device), device)
    }

    /// Like [`open`](Self::open), with another file handle on the same bytes for data.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(device: Arc<dyn MediumFile>, data: Arc<dyn MediumFile>) -> Result<Self, FormatError> {
        let label = read_label(&*device)?.ok_or(FormatError::NotFormatted)?;
        if label.state == LabelState::Formatting {
            return Err(FormatError::FormatIncomplete);
        }
        let found = length_of(&*device)?;
        if found < label.length {
            return Err(FormatError::DeviceShrunk { found, expected: label.length });
        }
        let units = label.length / UNIT;
        let mut best: Option<(usize, u64, Vec<label::RegionEntry>)> = None;
        let mut bytes = vec![0; SLOT];
        for (slot, at) in SLOTS.into_iter().enumerate() {
            device.read_at(at, &mut bytes).map_err(io("reading the table of regions"))?;
            if let Some((generation, entries)) = parse_table(&bytes)
                && best.as_ref().is_none_or(|(_, newest, _)| generation > *newest)
            {
                best = Some((slot, generation, entries));
            }
        }
        let (good, generation, entries) =
            best.ok_or(FormatError::Label("neither copy of the table of regions is sound"))?;
        if !is_sound(&entries, units) {
            return Err(FormatError::Label("the table of regions contradicts itself"));
        }
        Ok(Self(Arc::new(DeviceInner {
            device,
            data,
            label,
            regions: RwLock::new(RegionTable::new(units, entries)),
            table: Mutex::new(DeviceTable { generation, good, change: 0 }),
            writes: AtomicU64::new(0),
            synced: Mutex::new(0),
            zeroed: AtomicU64::new(0),
        })))
    }

    /// Returns the uuid in the label.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.0.label.uuid
    }
}

/// Returns the largest capacity of a store on a device of `length` bytes: the rest after label,
/// index, write log and the store's own reserve.
fn capacity_max(length: u64) -> u64 {
    // One unit each for the table, the superblock and the rounding of the last segment.
    let usable = (length / UNIT).saturating_sub(3) * UNIT;
    let data = usable.saturating_sub((usable / 16).max(INDEX_MIN));
    data.saturating_sub(reserve_of(data) + log_length_for(data)) / UNIT * UNIT
}

impl std::fmt::Debug for DeviceMedium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMedium").field("label", &self.0.label).finish_non_exhaustive()
    }
}

fn io(doing: &'static str) -> impl Fn(io::Error) -> FormatError {
    move |source| FormatError::Io { doing, source }
}

/// Returns the device's length, in whole units.
fn length_of(device: &dyn MediumFile) -> Result<u64, FormatError> {
    let length = device.length().map_err(io("reading the device's length"))? / UNIT * UNIT;
    if length < DEVICE_MIN {
        return Err(FormatError::DeviceTooSmall { bytes: length, min: DEVICE_MIN });
    }
    Ok(length)
}

/// Reads the label, if the device has one.
fn read_label(device: &dyn MediumFile) -> Result<Option<DeviceLabel>, FormatError> {
    length_of(device)?;
    let mut bytes = [0; LABEL];
    device.read_at(0, &mut bytes).map_err(io("reading the label"))?;
    if bytes.starts_with(MAGIC) { DeviceLabel::parse(&bytes).map(Some) } else { Ok(None) }
}

impl DeviceInner {
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        let result = self.device.write_at(at, data);
        // Also after a failure: a part of it may have been written.
        self.writes.fetch_add(1, Ordering::Release);
        result
    }

    fn zero(&self, pieces: &[RegionPiece]) -> io::Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        let zeros = vec![0; ZEROS];
        for piece in pieces {
            let mut done = 0;
            while done < piece.length {
                let part = (piece.length - done).min(ZEROS as u64);
                self.write(piece.at + done, &zeros[..part as usize])?;
                done += part;
            }
        }
        self.zeroed.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Makes all completed writes durable. All regions share the device, and so one sync.
    fn sync_device(&self) -> io::Result<()> {
        let mut synced = self.synced.lock();
        let writes = self.writes.load(Ordering::Acquire);
        if *synced != writes {
            self.device.sync()?;
            *synced = writes;
        }
        Ok(())
    }

    /// Makes all changes of regions up to `change` durable, and all completed writes.
    fn sync_table(&self, change: u64) -> io::Result<()> {
        let mut table = self.table.lock();
        if table.change >= change {
            drop(table);
            return self.sync_device();
        }
        table.generation += 1;
        let (bytes, latest) = {
            let regions = self.regions.read();
            (encode_table(table.generation, regions.entries()), regions.changes())
        };
        let bytes = bytes.ok_or(io::ErrorKind::StorageFull)?;
        // After the table was encoded: the units that it assigns were zeroed before.
        if self.zeroed.swap(0, Ordering::AcqRel) > 0
            && let Err(error) = self.sync_device()
        {
            self.zeroed.fetch_add(1, Ordering::Release);
            return Err(error);
        }
        let slot = 1 - table.good;
        self.write(SLOTS[slot], &bytes)?;
        self.sync_device()?;
        table.good = slot;
        table.change = latest;
        self.regions.write().settle(latest);
        Ok(())
    }

    /// Sets a region's length; new bytes are zero if `clean`.
    fn resize(&self, id: u64, length: u64, clean: bool) -> io::Result<()> {
        let attempt = || {
            let mut regions = self.regions.write();
            let old = regions.get(id)?.entry.length;
            if old == length {
                return Ok(());
            }
            if length < old {
                return regions.set_length(id, length);
            }
            // No reader may see the new bytes, and no table may assign them, before they are zero.
            // After a failure the units stay with the region, not zeroed: its length says that they
            // are unused.
            regions.set_length(id, length)?;
            if clean {
                let extents = &regions.get(id)?.entry.extents;
                if let Err(error) = self.zero(&pieces(extents, old, length - old)) {
                    regions.set_length(id, old)?;
                    return Err(error);
                }
            }
            Ok(())
        };
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                let (leaving, change) = {
                    let regions = self.regions.read();
                    (regions.is_leaving(), regions.changes())
                };
                if !leaving {
                    return Err(error);
                }
                self.sync_table(change)?;
                attempt()
            }
            result => result,
        }
    }
}

impl Medium for DeviceMedium {
    fn has_bounded_index(&self) -> bool {
        true
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.0.device.boot_id()
    }

    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>> {
        let found = self.0.regions.read().find(name);
        let id = match found {
            Some(id) => id,
            None if !create => return Err(io::ErrorKind::NotFound.into()),
            None => {
                let mut regions = self.0.regions.write();
                regions.find(name).map_or_else(|| regions.create(name), Ok)?
            }
        };
        Ok(Arc::new(RegionFile { device: self.0.device.clone(), medium: self.0.clone(), id }))
    }

    fn open_data(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        let id = self.0.regions.read().find(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(RegionFile { device: self.0.data.clone(), medium: self.0.clone(), id }))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.0.regions.write().delete(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.regions.read().names().cloned().collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        let change = self.0.regions.read().changes();
        self.0.sync_table(change)
    }

    fn rewrite_names(&self) -> io::Result<()> {
        {
            // First in its own slot: the other copy may be the last one on the device.
            let table = self.0.table.lock();
            let mut bytes = vec![0; SLOT];
            self.0.device.read_at(SLOTS[table.good], &mut bytes)?;
            self.0.write(SLOTS[table.good], &bytes)?;
            self.0.sync_device()?;
        }
        self.sync_names()
    }
}

/// An open region.
struct RegionFile {
    /// The device in this region's access mode.
    device: Arc<dyn MediumFile>,
    medium: Arc<DeviceInner>,
    id: u64,
}

impl RegionFile {
    /// Returns the location of bytes; `UnexpectedEof` beyond the end.
    fn locate(&self, offset: u64, length: u64) -> io::Result<Vec<RegionPiece>> {
        let regions = self.medium.regions.read();
        let entry = &regions.get(self.id)?.entry;
        if offset.checked_add(length).is_none_or(|end| end > entry.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(pieces(&entry.extents, offset, length))
    }

    /// Like `locate`, after extending the region if needed.
    fn locate_for_writing(&self, offset: u64, length: u64) -> io::Result<Vec<RegionPiece>> {
        match self.locate(offset, length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            found => return found,
        }
        let end = offset.checked_add(length).ok_or(io::ErrorKind::InvalidInput)?;
        self.medium.resize(self.id, end, true)?;
        self.locate(offset, length)
    }
}

impl MediumFile for RegionFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.medium.regions.read().get(self.id)?.entry.length)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.medium.resize(self.id, length, true)
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        self.medium.resize(self.id, length, false)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut rest = into;
        for piece in self.locate(offset, rest.len() as u64)? {
            let (part, after) = rest.split_at_mut(piece.length as usize);
            self.device.read_at(piece.at, part)?;
            rest = after;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut rest = data;
        for piece in self.locate_for_writing(offset, rest.len() as u64)? {
            let (part, after) = rest.split_at(piece.length as usize);
            let result = self.device.write_at(piece.at, part);
            self.medium.writes.fetch_add(1, Ordering::Release);
            result?;
            rest = after;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let changed = self.medium.regions.read().get(self.id)?.changed;
        self.medium.sync_table(changed)
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        for piece in self.locate(offset, length)? {
            let result = self.device.discard(piece.at, piece.length);
            self.medium.writes.fetch_add(1, Ordering::Release);
            result?;
        }
        Ok(())
    }

    fn read_vectored_at(&self, mut offset: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let length = into.iter().map(|part| part.len() as u64).sum();
        if let [piece] = self.locate(offset, length)?[..] {
            return self.device.read_vectored_at(piece.at, into);
        }
        for part in into {
            self.read_at(offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn write_vectored_at(&self, mut offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let length = data.iter().map(|part| part.len() as u64).sum();
        if let [piece] = self.locate_for_writing(offset, length)?[..] {
            let result = self.device.write_vectored_at(piece.at, data);
            self.medium.writes.fetch_add(1, Ordering::Release);
            return result;
        }
        for part in data {
            self.write_at(offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
