//! The journal of the embedded store: an ordered log of commits, durable after one short write.
//!
//! Does: collects records, writes and syncs them for all waiting threads at once, alternates
//! between two files, and reads back the records after a crash.
//! Does not: interpret keys, or know when the store's file has them.
//! Contract: when [`CommitJournal::sync`] succeeds, every record up to that number is on disk;
//! after a failed write it never succeeds again. Replay returns records without a gap. A missing
//! record that a later one reports as durable is damage and an error. A disk block with durable
//! records is not overwritten before the store's file has them.
//! Truth: docs/standards/mds/store.md §8; docs/adr/0049-journal-of-the-embedded-store.md.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Bytes that the disk writes atomically; each batch starts with a new block.
const BLOCK: u64 = 4096;
/// Bytes by which a file grows. They are written once in advance, so that later writes need no
/// metadata update.
const GROWTH: u64 = 1 << 20;
const MAGIC: [u8; 4] = *b"SMJ1";
/// Number of the heading: the first block of a file, a record without changes that has the epoch.
const HEADING: u64 = 0;
const HEAD: usize = 48;
const DIGEST: usize = 16;
/// Marks a removed key in place of a value's length.
const REMOVED: u32 = u32::MAX;

/// A journal file; tests have a simulated one.
pub(super) trait JournalFile: Send + Sync {
    fn read_all(&self) -> io::Result<Vec<u8>>;
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn length(&self) -> io::Result<u64>;
}

impl JournalFile for File {
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

/// Returns the paths of the two journal files of a store.
pub(super) fn paths(store: &Path) -> [PathBuf; 2] {
    ["journal-0", "journal-1"].map(|name| {
        let mut path = store.as_os_str().to_owned();
        path.push(".");
        path.push(name);
        path.into()
    })
}

/// Bytes allocated for each file from the start: enough for removals, revocations and sessions
/// between two applications of the journal while the disk is full.
pub(super) const RESERVED: u64 = 4 << 20;

/// Opens or creates the files, allocates [`RESERVED`] bytes if the disk has them, and syncs the
/// folder.
pub(super) fn open_files(store: &Path) -> io::Result<[File; 2]> {
    let open = |path: &PathBuf| {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, RESERVED) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            // Continues with the space that is there; a later write may fail.
            Err(error) => {
                tracing::warn!(%error, "no disk space to reserve for the journal of the metadata store")
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

/// Removes the files, if they exist.
pub(super) fn remove_files(store: &Path) -> io::Result<()> {
    for path in paths(store) {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    sync_folder(store)
}

/// Returns the folder of a file; the current one for a path without a folder.
pub(super) fn folder_of(store: &Path) -> &Path {
    store.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync_folder(store: &Path) -> io::Result<()> {
    File::open(folder_of(store))?.sync_all()
}

/// Records that are not on disk yet.
#[derive(Default)]
struct UnwrittenRecords {
    bytes: Vec<u8>,
    /// Number of the last record.
    last: u64,
}

/// Write position.
struct WritePosition {
    which: usize,
    offset: u64,
    /// Bytes of each file that were written at least once.
    lengths: [u64; 2],
    /// Whether a write failed: its records are lost, so no later record may become durable.
    broken: bool,
}

/// The journal; see the module.
pub(super) struct CommitJournal {
    media: [Box<dyn JournalFile>; 2],
    /// Secret random number of this opening, so that stored values cannot imitate records.
    epoch: u64,
    tail: Mutex<UnwrittenRecords>,
    position: Mutex<WritePosition>,
    durable: AtomicU64,
    /// Bytes of the current file, waiting records included.
    used: AtomicU64,
    /// Size up to which the current file need not grow.
    capacity: AtomicU64,
}

impl CommitJournal {
    /// Creates an empty journal whose first record is `last + 1`. Both files carry the new epoch
    /// when this returns, so older content is ignored.
    pub(super) fn new(media: [Box<dyn JournalFile>; 2], epoch: u64, last: u64) -> io::Result<Self> {
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
            tail: Mutex::new(UnwrittenRecords { bytes: Vec::new(), last }),
            position: Mutex::new(WritePosition { which: 0, offset: BLOCK, lengths, broken: false }),
            durable: AtomicU64::new(last),
            used: AtomicU64::new(BLOCK),
            capacity: AtomicU64::new(lengths[0]),
        })
    }

    /// Appends the next record; it is durable after [`CommitJournal::sync`].
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

    /// Returns the number of the last durable record.
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns the used bytes of the current file.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Grows the current file so that this many more bytes fit even if the disk becomes full.
    pub(super) fn reserve(&self, bytes: u64) -> io::Result<()> {
        // Up to three batches are padded to a whole block: the one being written, the next, and
        // this record's.
        let wanted = self.used() + bytes + 3 * BLOCK;
        if self.capacity.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let mut position = self.position.lock();
        self.grow(&mut position, wanted)
    }

    fn grow(&self, position: &mut WritePosition, wanted: u64) -> io::Result<()> {
        let which = position.which;
        while position.lengths[which] < wanted {
            let from = position.lengths[which];
            self.media[which].write_at(from, &vec![0; GROWTH as usize])?;
            self.media[which].sync()?;
            position.lengths[which] = from + GROWTH;
            self.capacity.store(from + GROWTH, Ordering::Release);
        }
        Ok(())
    }

    /// Waits until all records up to `number` are durable. The first thread writes for all that
    /// wait.
    pub(super) fn sync(&self, number: u64) -> io::Result<()> {
        if self.durable() >= number {
            return Ok(());
        }
        let mut position = self.position.lock();
        if self.durable() >= number {
            return Ok(());
        }
        self.write(&mut position)?;
        if self.durable() < number {
            return Err(io::Error::other("the journal has no such record"));
        }
        Ok(())
    }

    fn write(&self, position: &mut WritePosition) -> io::Result<()> {
        if position.broken {
            return Err(io::Error::other("an earlier write to the journal failed"));
        }
        position.broken = true;
        self.write_out(position)?;
        position.broken = false;
        Ok(())
    }

    fn write_out(&self, position: &mut WritePosition) -> io::Result<()> {
        let (mut bytes, last) = {
            let mut tail = self.tail.lock();
            (std::mem::take(&mut tail.bytes), tail.last)
        };
        if bytes.is_empty() {
            return Ok(());
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
        let end = position.offset + bytes.len() as u64;
        self.grow(position, end)?;
        self.media[position.which].write_at(position.offset, &bytes)?;
        self.media[position.which].sync()?;
        position.offset = end;
        // Records that were appended meanwhile follow at `end`.
        let waiting = self.tail.lock();
        self.used.store(end + waiting.bytes.len() as u64, Ordering::Release);
        drop(waiting);
        self.durable.store(last, Ordering::Release);
        Ok(())
    }

    /// Makes all records durable and continues at the start of the other file, whose records the
    /// store's file has. The caller prevents appends meanwhile.
    pub(super) fn switch(&self) -> io::Result<()> {
        let mut position = self.position.lock();
        self.write(&mut position)?;
        (position.which, position.offset) = (1 - position.which, BLOCK);
        self.capacity.store(position.lengths[position.which], Ordering::Release);
        self.used.store(BLOCK, Ordering::Release);
        Ok(())
    }
}

/// Returns a forged record, as a client could store it in a value.
#[cfg(test)]
pub(super) fn forged<'a>(
    epoch: u64,
    number: u64,
    changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) -> Vec<u8> {
    record(epoch, number, number, changes)
}

/// Encodes a record.
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

/// Keys with their new values in a record's order; `None` is a removal.
pub(super) type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// A decoded record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JournalRecord {
    pub(super) number: u64,
    /// All records up to this number were durable when this one was appended.
    durable: u64,
    pub(super) changes: Changes,
}

/// Reason why the journal files do not belong to the store.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ReplayError {
    /// A durable record is missing.
    #[error("record {0} of the journal was durable and is damaged")]
    Gap(u64),
    /// The file belongs to another store, or to another opening of this one.
    #[error("journal-{0} does not belong to this store, or is from an earlier start")]
    Other(usize),
}

/// Decodes the record at `at`. Returns it and its end.
fn parse(bytes: &[u8], at: usize, epoch: u64) -> Option<(JournalRecord, usize)> {
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
    Some((JournalRecord { number, durable, changes }, end.next_multiple_of(8)))
}

/// Returns all records of an epoch in a file, wherever batches begin.
fn records(bytes: &[u8], epoch: u64) -> Vec<JournalRecord> {
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

/// Returns the records after `applied` that a crash left in the two files, without gaps.
///
/// # Errors
/// If a durable record is missing, or a file is not of this epoch.
pub(super) fn replay(
    files: &[Vec<u8>; 2],
    epoch: u64,
    applied: u64,
) -> Result<Vec<JournalRecord>, ReplayError> {
    let of_another = |bytes: &Vec<u8>| parse(bytes, 0, epoch).is_none_or(|(head, _)| head.number != HEADING);
    if let Some(other) = files.iter().position(of_another) {
        return Err(ReplayError::Other(other));
    }
    let mut all: Vec<JournalRecord> = files.iter().flat_map(|bytes| records(bytes, epoch)).collect();
    all.retain(|record| record.number > applied);
    all.sort_by_key(|record| record.number);
    let whole = all.iter().zip(applied + 1..).take_while(|(record, number)| record.number == *number).count();
    let (last, behind) = (applied + whole as u64, all.split_off(whole));
    if behind.iter().any(|record| record.durable > last) {
        return Err(ReplayError::Gap(last + 1));
    }
    Ok(all)
}
