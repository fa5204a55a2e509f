//! The journal of the embedded store: commits in order, durable after one short write.
//!
//! Does: gather records, write and sync them for all who wait at that moment, take turns between two files, read back what a
//! crash left. Does not: know what keys mean, or when the store's own file has them.
//! Contract: when [`Journal::sync`] returns well, every record up to that number is on the medium; after one that failed none
//! does. What is read back is a row of records without a gap; if one is missing of which a later one knows that it was
//! durable, that is damage and said so. A block of the medium that has durable records is not written again before the
//! store's file has them.
//! Truth: docs/standards/mds/store.md §8; docs/adr/0049-journal-of-the-embedded-store.md.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Bytes that the medium writes as one: a batch begins with a new one.
const BLOCK: u64 = 4096;
/// A file grows by so many bytes, written once before they are used: later writes need no news of the file system.
const GROWTH: u64 = 1 << 20;
const MAGIC: [u8; 4] = *b"SMJ1";
/// The first block of a file says which opening it belongs to: a record without changes, of no commit.
const HEADING: u64 = 0;
const HEAD: usize = 48;
const DIGEST: usize = 16;
/// In the place of a value's length: the key was removed.
const REMOVED: u32 = u32::MAX;

/// A file, or what stands for one in a test.
pub(super) trait Medium: Send + Sync {
    fn read_all(&self) -> io::Result<Vec<u8>>;
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn length(&self) -> io::Result<u64>;
}

impl Medium for File {
    fn read_all(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.metadata()?.len()).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// The two files of the store in `store`.
pub(super) fn paths(store: &Path) -> [PathBuf; 2] {
    ["journal-0", "journal-1"].map(|name| {
        let mut path = store.as_os_str().to_owned();
        path.push(".");
        path.push(name);
        path.into()
    })
}

/// Bytes of each file that have space from the start: as much as removals, revocations and sessions need between two
/// commits of the store's file while the disk is full.
pub(super) const RESERVED: u64 = 4 << 20;

/// Opens or makes them, with space for [`RESERVED`] bytes if the disk has it, and sees to it that they stay.
pub(super) fn open_files(store: &Path) -> io::Result<[File; 2]> {
    let open = |path: &PathBuf| {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, RESERVED) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            // What is there may do: a write finds out.
            Err(error) => {
                tracing::warn!(%error, "no space could be reserved for the journal of the metadata store")
            }
        }
        file.sync_all()?;
        Ok::<_, io::Error>(file)
    };
    let [first, second] = paths(store);
    let files = [open(&first)?, open(&second)?];
    sync_folder(store)?;
    Ok(files)
}

/// Removes them, if they are there.
pub(super) fn remove_files(store: &Path) -> io::Result<()> {
    for path in paths(store) {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    sync_folder(store)
}

/// The folder of a file; that of a name alone is the current one.
pub(super) fn folder_of(store: &Path) -> &Path {
    store.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync_folder(store: &Path) -> io::Result<()> {
    File::open(folder_of(store))?.sync_all()
}

/// Records that are not on the medium yet.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    /// The number of the last one.
    last: u64,
}

/// Where the next batch goes.
struct Place {
    which: usize,
    offset: u64,
    /// Bytes of each file that were written before.
    lengths: [u64; 2],
    /// A write failed: what was to be written is gone, and nothing behind it counts.
    broken: bool,
}

/// See the module.
pub(super) struct Journal {
    media: [Box<dyn Medium>; 2],
    /// Drawn each time that the store is opened, and told to nobody: values that are stored cannot be made to look like
    /// records.
    epoch: u64,
    tail: Mutex<Tail>,
    place: Mutex<Place>,
    durable: AtomicU64,
    /// Bytes of the file in use, those that wait included.
    used: AtomicU64,
    /// Bytes that it takes without growing.
    room: AtomicU64,
}

impl Journal {
    /// An empty one, whose first record will be `last + 1`, in files that say so when this returns. What else lies in them
    /// is of another epoch.
    pub(super) fn new(media: [Box<dyn Medium>; 2], epoch: u64, last: u64) -> io::Result<Self> {
        let mut lengths = [0; 2];
        for (medium, length) in media.iter().zip(&mut lengths) {
            let mut heading = record(epoch, HEADING, 0, core::iter::empty());
            heading.resize(BLOCK as usize, 0);
            medium.write_at(0, &heading)?;
            medium.sync()?;
            *length = medium.length()?;
        }
        Ok(Self {
            media,
            epoch,
            tail: Mutex::new(Tail { bytes: Vec::new(), last }),
            place: Mutex::new(Place { which: 0, offset: BLOCK, lengths, broken: false }),
            durable: AtomicU64::new(last),
            used: AtomicU64::new(BLOCK),
            room: AtomicU64::new(lengths[0]),
        })
    }

    /// Takes a record, the next one; it is durable after a [`Journal::sync`].
    pub(super) fn append<'a>(
        &self,
        number: u64,
        changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) {
        let record = record(self.epoch, number, self.durable(), changes);
        let mut tail = self.tail.lock();
        tail.bytes.extend_from_slice(&record);
        tail.last = number;
        self.used.fetch_add(record.len() as u64, Ordering::AcqRel);
    }

    #[cfg(test)]
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of the last record that is durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Bytes of the file in use.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Sees to it that the file in use takes so many bytes more, whatever becomes of the medium's room later.
    pub(super) fn reserve(&self, bytes: u64) -> io::Result<()> {
        // Each batch before this record may be filled up to a whole block: that under way, the next, its own.
        let wanted = self.used() + bytes + 3 * BLOCK;
        if self.room.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let mut place = self.place.lock();
        self.grow(&mut place, wanted)
    }

    fn grow(&self, place: &mut Place, wanted: u64) -> io::Result<()> {
        let which = place.which;
        while place.lengths[which] < wanted {
            let from = place.lengths[which];
            self.media[which].write_at(from, &vec![0; GROWTH as usize])?;
            self.media[which].sync()?;
            place.lengths[which] = from + GROWTH;
            self.room.store(from + GROWTH, Ordering::Release);
        }
        Ok(())
    }

    /// Returns when everything up to this number is durable: whoever comes first writes for all who wait.
    pub(super) fn sync(&self, number: u64) -> io::Result<()> {
        if self.durable() >= number {
            return Ok(());
        }
        let mut place = self.place.lock();
        if self.durable() >= number {
            return Ok(());
        }
        self.write(&mut place)?;
        if self.durable() < number {
            return Err(io::Error::other("a record of the journal was not there to be written"));
        }
        Ok(())
    }

    fn write(&self, place: &mut Place) -> io::Result<()> {
        if place.broken {
            return Err(io::Error::other("a write to the journal failed before"));
        }
        place.broken = true;
        self.write_out(place)?;
        place.broken = false;
        Ok(())
    }

    fn write_out(&self, place: &mut Place) -> io::Result<()> {
        let (mut bytes, last) = {
            let mut tail = self.tail.lock();
            (std::mem::take(&mut tail.bytes), tail.last)
        };
        if bytes.is_empty() {
            return Ok(());
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
        let end = place.offset + bytes.len() as u64;
        self.grow(place, end)?;
        self.media[place.which].write_at(place.offset, &bytes)?;
        self.media[place.which].sync()?;
        place.offset = end;
        // What came meanwhile begins there.
        let waiting = self.tail.lock();
        self.used.store(end + waiting.bytes.len() as u64, Ordering::Release);
        drop(waiting);
        self.durable.store(last, Ordering::Release);
        Ok(())
    }

    /// Makes everything durable and goes on at the beginning of the other file, whose records the store's file has. Nobody
    /// may append meanwhile.
    pub(super) fn switch(&self) -> io::Result<()> {
        let mut place = self.place.lock();
        self.write(&mut place)?;
        (place.which, place.offset) = (1 - place.which, BLOCK);
        self.room.store(place.lengths[place.which], Ordering::Release);
        self.used.store(BLOCK, Ordering::Release);
        Ok(())
    }
}

/// What somebody would store who wants it to be taken for a record.
#[cfg(test)]
pub(super) fn forged<'a>(
    epoch: u64,
    number: u64,
    changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) -> Vec<u8> {
    record(epoch, number, number, changes)
}

/// A record as it is written.
fn record<'a>(
    epoch: u64,
    number: u64,
    durable: u64,
    changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) -> Vec<u8> {
    let mut record = vec![0; HEAD];
    for (key, value) in changes {
        record.extend((key.len() as u16).to_be_bytes());
        record.extend(value.map_or(REMOVED, |value| value.len() as u32).to_be_bytes());
        record.extend(key);
        record.extend(value.unwrap_or_default());
    }
    let length = (record.len() - HEAD) as u32;
    record.resize(record.len().next_multiple_of(8), 0);
    record[..4].copy_from_slice(&MAGIC);
    record[4..8].copy_from_slice(&length.to_be_bytes());
    record[8..16].copy_from_slice(&epoch.to_be_bytes());
    record[16..24].copy_from_slice(&number.to_be_bytes());
    record[24..32].copy_from_slice(&durable.to_be_bytes());
    let digest = digest(&record);
    record[32..HEAD].copy_from_slice(&digest);
    record
}

fn digest(record: &[u8]) -> [u8; DIGEST] {
    let length = u32::from_be_bytes(field(record, 4)) as usize;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&record[..32]).update(&record[HEAD..HEAD + length]);
    let mut digest = [0; DIGEST];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..DIGEST]);
    digest
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        field.copy_from_slice(found);
    }
    field
}

/// Keys and what became of them, in the order of a record.
pub(super) type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// A record as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) number: u64,
    /// Everything up to this number was durable when it was made.
    durable: u64,
    pub(super) changes: Changes,
}

/// What lies in the files is not what a crash leaves.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Unfit {
    /// One that was durable is missing.
    #[error("record {0} of the journal was durable and is damaged")]
    Gap(u64),
    /// It belongs to another store, or to another life of this one.
    #[error("the file that ends in journal-{0} is not the one that was in use beside this store")]
    Other(usize),
}

/// The record at this place, and where it ends.
fn parse(bytes: &[u8], at: usize, epoch: u64) -> Option<(Record, usize)> {
    let head = bytes.get(at..at.checked_add(HEAD)?)?;
    if head[..4] != MAGIC || u64::from_be_bytes(field(head, 8)) != epoch {
        return None;
    }
    let length = u32::from_be_bytes(field(head, 4)) as usize;
    let end = at.checked_add(HEAD)?.checked_add(length)?;
    let record = bytes.get(at..end)?;
    if digest(record) != record[32..HEAD] {
        return None;
    }
    let (mut rest, mut changes) = (&record[HEAD..], Vec::new());
    while !rest.is_empty() {
        let key_length = usize::from(u16::from_be_bytes(field(rest, 0)));
        let value_length = u32::from_be_bytes(field(rest, 2));
        let (key, behind) = rest.get(6..)?.split_at_checked(key_length)?;
        let (value, behind) = match value_length {
            REMOVED => (None, behind),
            length => {
                let (value, behind) = behind.split_at_checked(length as usize)?;
                (Some(value.to_vec()), behind)
            }
        };
        changes.push((key.to_vec(), value));
        rest = behind;
    }
    let (number, durable) = (u64::from_be_bytes(field(head, 16)), u64::from_be_bytes(field(head, 24)));
    Some((Record { number, durable, changes }, end.next_multiple_of(8)))
}

/// All records of an epoch in a file, wherever batches begin.
fn records(bytes: &[u8], epoch: u64) -> Vec<Record> {
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        match parse(bytes, at, epoch) {
            Some((record, end)) => {
                found.push(record);
                at = end;
            }
            None => at = (at + 1).next_multiple_of(BLOCK as usize),
        }
    }
    found
}

/// The row of records after `applied` that a crash left in the two files.
///
/// # Errors
/// If one is missing that was durable, or a file is not of this epoch.
pub(super) fn replay(files: &[Vec<u8>; 2], epoch: u64, applied: u64) -> Result<Vec<Record>, Unfit> {
    let of_another = |bytes: &Vec<u8>| parse(bytes, 0, epoch).is_none_or(|(head, _)| head.number != HEADING);
    if let Some(other) = files.iter().position(of_another) {
        return Err(Unfit::Other(other));
    }
    let mut all: Vec<Record> = files.iter().flat_map(|bytes| records(bytes, epoch)).collect();
    all.retain(|record| record.number > applied);
    all.sort_by_key(|record| record.number);
    let whole = all.iter().zip(applied + 1..).take_while(|(record, number)| record.number == *number).count();
    let (last, behind) = (applied + whole as u64, all.split_off(whole));
    if behind.iter().any(|record| record.durable > last) {
        return Err(Unfit::Gap(last + 1));
    }
    Ok(all)
}
