//! A simulated disk whose power can be cut: unsynced data survives in part, by sector.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use redb::StorageBackend;

use super::super::{EmbeddedMeta, FORMAT_JOURNAL, JournalFile, StoreCore, StoreMarkers, builder};

const SECTOR: usize = 512;
const STORE: &str = "store";
const JOURNAL: [&str; 2] = ["journal-0", "journal-1"];

#[derive(Clone, Debug)]
enum PendingWrite {
    Length(usize),
    Write(usize, Vec<u8>),
}

impl PendingWrite {
    fn onto(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Length(length) => bytes.resize(*length, 0),
            Self::Write(offset, data) => {
                let end = offset + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset..end].copy_from_slice(data);
            }
        }
    }

    /// Splits a write into the sectors that may survive independently.
    fn sectors(self) -> Vec<Self> {
        match self {
            Self::Length(_) => vec![self],
            Self::Write(offset, data) => {
                let first = (SECTOR - offset % SECTOR).min(data.len());
                let (head, rest) = data.split_at(first);
                let starts = (offset + first..).step_by(SECTOR);
                let rest = starts.zip(rest.chunks(SECTOR)).map(|(at, part)| Self::Write(at, part.to_vec()));
                std::iter::once(Self::Write(offset, head.to_vec())).chain(rest).collect()
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
struct FileImage {
    durable: Vec<u8>,
    now: Vec<u8>,
    pending: Vec<PendingWrite>,
}

#[derive(Debug, Default)]
struct DiskPower {
    files: Mutex<BTreeMap<&'static str, FileImage>>,
    /// Writes and syncs until every operation fails; `None` for no limit.
    left: Mutex<Option<usize>>,
    full: AtomicBool,
    syncs: AtomicUsize,
    held: Mutex<()>,
}

/// Which unsynced data survives a power cut.
pub(super) enum UnsyncedData {
    Nothing,
    Everything,
    /// Each sector at random, with this seed.
    Some(u64),
}

/// A disk with the three files of a store.
#[derive(Clone, Debug, Default)]
pub(super) struct SimDisk(Arc<DiskPower>);

impl SimDisk {
    /// Opens the store on it, with a journal.
    pub(super) fn start(&self) -> Result<EmbeddedMeta, Box<dyn std::error::Error + Send + Sync>> {
        let database = builder().create_with_backend(self.file(STORE))?;
        let markers = StoreMarkers::read(&database)?;
        let media = JOURNAL.map(|name| Box::new(self.file(name)) as Box<dyn JournalFile>);
        let left = if markers.format == FORMAT_JOURNAL {
            Some([media[0].read_all()?, media[1].read_all()?])
        } else {
            None
        };
        let core = StoreCore::begin(database, markers, left.as_ref(), Some(media), usize::MAX)?;
        Ok(EmbeddedMeta { core: Arc::new(core), applier: None })
    }

    fn file(&self, name: &'static str) -> SimFile {
        SimFile { power: self.0.clone(), name }
    }

    /// Cuts the power after this many writes and syncs.
    pub(super) fn fail_after(&self, operations: usize) {
        *self.0.left.lock() = Some(operations);
    }

    pub(super) fn is_full(&self, full: bool) {
        self.0.full.store(full, Ordering::SeqCst);
    }

    pub(super) fn syncs(&self) -> usize {
        self.0.syncs.load(Ordering::SeqCst)
    }

    /// Blocks all syncs while the guard lives.
    pub(super) fn hold(&self) -> MutexGuard<'_, ()> {
        self.0.held.lock()
    }

    /// Changes the byte at this offset.
    pub(super) fn damage(&self, name: &'static str, at: usize) {
        let mut files = self.0.files.lock();
        let image = files.entry(name).or_default();
        image.now[at] ^= 0x40;
        image.durable[at] ^= 0x40;
    }

    /// Returns the disk as it is after a power cut now.
    pub(super) fn crash(&self, kept: UnsyncedData) -> Self {
        let mut chance = match kept {
            UnsyncedData::Some(seed) => Some(seed | 1),
            _ => None,
        };
        let mut keeps = || match (&kept, &mut chance) {
            (UnsyncedData::Everything, _) => true,
            (UnsyncedData::Some(_), Some(state)) => {
                // xorshift64
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                state.count_ones() % 2 == 0
            }
            _ => false,
        };
        let files = self.0.files.lock();
        let after = files.iter().map(|(name, image)| {
            let mut bytes = image.durable.clone();
            for part in image.pending.iter().cloned().flat_map(PendingWrite::sectors) {
                if keeps() {
                    part.onto(&mut bytes);
                }
            }
            (*name, FileImage { durable: bytes.clone(), now: bytes, pending: Vec::new() })
        });
        Self(Arc::new(DiskPower { files: Mutex::new(after.collect()), ..DiskPower::default() }))
    }
}

#[derive(Debug)]
struct SimFile {
    power: Arc<DiskPower>,
    name: &'static str,
}

impl SimFile {
    fn with<T>(&self, work: impl FnOnce(&mut FileImage) -> T) -> T {
        work(self.power.files.lock().entry(self.name).or_default())
    }

    fn spend(&self) -> io::Result<()> {
        match &mut *self.power.left.lock() {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn put(&self, pending: PendingWrite) -> io::Result<()> {
        self.spend()?;
        let full = self.power.full.load(Ordering::SeqCst);
        self.with(|image| {
            let grows = match &pending {
                PendingWrite::Length(length) => *length > image.now.len(),
                PendingWrite::Write(offset, data) => offset + data.len() > image.now.len(),
            };
            if full && grows {
                return Err(io::ErrorKind::StorageFull.into());
            }
            pending.onto(&mut image.now);
            image.pending.push(pending);
            Ok(())
        })
    }

    fn synced(&self) -> io::Result<()> {
        drop(self.power.held.lock());
        self.spend()?;
        self.power.syncs.fetch_add(1, Ordering::SeqCst);
        self.with(|image| {
            image.durable.clone_from(&image.now);
            image.pending.clear();
        });
        Ok(())
    }
}

impl JournalFile for SimFile {
    fn read_all(&self) -> io::Result<Vec<u8>> {
        Ok(self.with(|image| image.now.clone()))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.put(PendingWrite::Write(offset as usize, bytes.to_vec()))
    }

    fn sync(&self) -> io::Result<()> {
        self.synced()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.with(|image| image.now.len() as u64))
    }
}

impl StorageBackend for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|image| {
            let end = offset as usize + out.len();
            let found = image.now.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(found);
            Ok(())
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.put(PendingWrite::Length(length as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.synced()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.put(PendingWrite::Write(offset as usize, data.to_vec()))
    }
}
