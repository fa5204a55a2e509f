//! Formats a store, and finds an existing one.
//!
//! Does: orders the steps so that an interrupted format is recognised; checks all files before they
//! are used.
//! Contract: the superblock says "ready" only when everything else is durable.

use std::io;

use super::index::RecordIndex;
use super::segments::{SegmentFiles, is_segment};
use super::superblock::{COPIES, FormatState, LENGTH, MARK_AT, Superblock, VERSION, VERSION_WITHOUT_LOG};
use super::write_log;
use crate::FormatError;
use crate::medium::{Medium, MediumFile};

/// Name of the superblock file.
const SUPERBLOCK: &str = "superblock";
/// Name of the index file.
pub(crate) const INDEX: &str = "index.redb";
/// Value of the third sector of the superblock file after a failed sync.
const MARK: &[u8; 8] = b"SEALMARK";
/// Maximum number of segment files of a store; larger capacities have larger segments.
const MAX_SEGMENTS: u64 = 64;
/// Default length of a segment file, in bytes.
const SEGMENT: u64 = 1 << 30;

/// Parameters of `format`.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Capacity for objects in bytes.
    pub capacity: u64,
    /// Identifies the store; the caller draws it at random.
    pub uuid: [u8; 16],
    /// Length of a segment file in bytes; `None` chooses at least 1 GiB, so that there are few
    /// segments.
    pub segment: Option<u64>,
    /// Whether an existing store is destroyed.
    pub overwrite: bool,
}

impl FormatOptions {
    /// Returns options for a store of `capacity` bytes with default segments, which refuse to
    /// overwrite an existing store.
    #[must_use]
    pub fn new(capacity: u64, uuid: [u8; 16]) -> Self {
        Self { capacity, uuid, segment: None, overwrite: false }
    }
}

fn io_error(doing: &'static str) -> impl Fn(io::Error) -> FormatError {
    move |source| FormatError::Io { doing, source }
}

/// Formats a store on a medium. If it is interrupted, `open` fails with `FormatIncomplete` (or with
/// `NotFormatted`, if nothing was done yet), and the format can be repeated.
///
/// # Errors
/// `AlreadyFormatted`, `Version` or `Superblock` if the medium has other content and `overwrite` is
/// not set; `Capacity`; `IoMode` and `RecordIndex`.
pub fn format(medium: &dyn Medium, options: &FormatOptions) -> Result<(), FormatError> {
    let segment = options
        .segment
        .unwrap_or_else(|| SEGMENT.max((options.capacity / (MAX_SEGMENTS - 8)).next_multiple_of(1 << 20)));
    let mut superblock = Superblock::new(options.uuid, options.capacity, segment)?;
    if !options.overwrite {
        match find(medium) {
            Err(FormatError::NotFormatted | FormatError::FormatIncomplete) => {}
            Ok(_) => return Err(FormatError::AlreadyFormatted),
            Err(error) => return Err(error),
        }
    }
    // From here on there is no store: after a crash the superblock says "formatting", or is empty.
    let file = medium.open(SUPERBLOCK, true).map_err(io_error("creating the superblock"))?;
    file.write_at(MARK_AT, &[0; LENGTH]).map_err(io_error("writing the superblock"))?;
    write(&*file, &superblock).map_err(io_error("writing the superblock"))?;
    medium.sync_names().map_err(io_error("making names durable"))?;
    for name in medium.list().map_err(io_error("listing files"))? {
        if name == INDEX || name == write_log::NAME || is_segment(&name) {
            medium.delete(&name).map_err(io_error("deleting old files"))?;
        }
    }
    SegmentFiles::format(medium, &superblock).map_err(io_error("creating segments"))?;
    write_log::create(medium, superblock.log_bytes).map_err(io_error("creating the write log"))?;
    let index = medium.open(INDEX, true).map_err(io_error("creating the index"))?;
    RecordIndex::format(index, &superblock.uuid)?;
    medium.sync_names().map_err(io_error("making names durable"))?;
    superblock.state = FormatState::Ready;
    write(&*file, &superblock).map_err(io_error("writing the superblock"))
}

/// Allocates space on the file system for all segments of a store that is not open.
///
/// # Errors
/// `IoMode`; with `StorageFull` in it if there is not enough space.
pub fn preallocate(medium: &dyn Medium) -> Result<(), FormatError> {
    for name in medium.list().map_err(io_error("listing files"))? {
        if is_segment(&name) {
            let file = medium.open(&name, false).map_err(io_error("opening a segment"))?;
            let back = || file.back(0, file.length()?).and_then(|()| file.sync());
            back().map_err(io_error("preallocating a segment"))?;
        }
    }
    Ok(())
}

/// Returns the total block bytes of a store of this capacity, including its reserve.
#[must_use]
pub fn bytes_with_reserve(capacity: u64) -> u64 {
    capacity.saturating_add(super::reserve_of(capacity))
}

/// Writes both copies of the superblock. The first copy takes precedence if it is intact: it is
/// written first when it says that there is no store yet, and last when it says that there is one.
fn write(file: &dyn MediumFile, superblock: &Superblock) -> io::Result<()> {
    let mut order = COPIES;
    if superblock.state == FormatState::Ready {
        order.reverse();
    }
    order.into_iter().try_for_each(|at| {
        file.write_at(at, &superblock.encode())?;
        file.sync()
    })
}

/// Upgrades a store of an older version to this one, and repairs a damaged copy of the superblock.
/// All structures of older versions mean the same in this one, so nothing else changes; programs of
/// the older version refuse the store from then on.
///
/// Without space for a write log the store keeps a version that has none.
pub(crate) fn upgrade(
    medium: &dyn Medium,
    found: &FoundSuperblock,
    log_bytes: u64,
) -> Result<(), FormatError> {
    let FoundSuperblock { superblock, mended, suspect } = found;
    let version = if log_bytes > 0 { VERSION } else { VERSION_WITHOUT_LOG };
    let newer = Superblock { version, index_copy: true, log_bytes, ..*superblock };
    if newer == *superblock && !mended && !suspect {
        return Ok(());
    }
    tracing::info!(from = superblock.version, to = version, mended, "rewriting the superblock");
    let file = medium.open(SUPERBLOCK, false).map_err(io_error("opening the superblock"))?;
    write(&*file, &newer).map_err(io_error("writing the superblock"))?;
    // Last: if this step is not reached, the next open repeats all of them.
    let unmark = || {
        file.write_at(MARK_AT, &[0; LENGTH])?;
        file.sync()
    };
    unmark().map_err(io_error("writing the superblock"))
}

/// Marks the superblock file after a failed sync, for the next open while this system runs. Cached
/// pages of the index may not be on the medium although they count as written. The next boot
/// discards them, and possibly this mark.
pub(crate) fn mark(medium: &dyn Medium) {
    let write = || {
        let mut sector = [0; LENGTH];
        sector[..8].copy_from_slice(MARK);
        medium.open(SUPERBLOCK, false)?.write_at(MARK_AT, &sector)
    };
    if let Err(error) = write() {
        tracing::error!(%error, "a failed sync could not be recorded: restart the machine before opening the store again");
    }
}

/// After a sync failed in an earlier opening: writes the cached pages of the index file again,
/// durably. A page that cannot be read stays as it is.
pub(crate) fn rewrite(file: &dyn MediumFile) -> io::Result<()> {
    const PIECE: u64 = 1 << 20;
    const PAGE: u64 = 4096;
    let length = file.length()?;
    let mut buffer = vec![0; PIECE as usize];
    for start in (0..length).step_by(PIECE as usize) {
        let piece = PIECE.min(length - start);
        let bytes = &mut buffer[..piece as usize];
        if file.read_at(start, bytes).is_ok() {
            file.write_at(start, bytes)?;
            continue;
        }
        for at in (start..start + piece).step_by(PAGE as usize) {
            let bytes = &mut buffer[..PAGE.min(length - at) as usize];
            match file.read_at(at, bytes) {
                Ok(()) => file.write_at(at, bytes)?,
                Err(error) => tracing::warn!(%error, at, "a page of the index cannot be read"),
            }
        }
    }
    file.sync()
}

/// Whether the medium has no store, or an interrupted format. Then no write was ever acknowledged.
pub(crate) fn is_unfinished(medium: &dyn Medium) -> bool {
    matches!(find(medium), Err(FormatError::NotFormatted | FormatError::FormatIncomplete))
}

/// The superblock of a finished store, as found.
#[derive(Debug)]
pub(crate) struct FoundSuperblock {
    pub(crate) superblock: Superblock,
    /// Whether one of its copies is damaged, or older than the other.
    pub(crate) mended: bool,
    /// Whether a sync failed in an earlier opening.
    pub(crate) suspect: bool,
}

/// Reads the copy at `at`. An unreadable copy counts as damaged.
fn read(file: &dyn MediumFile, at: u64) -> Result<Superblock, FormatError> {
    let length = file.length().map_err(io_error("reading the superblock"))?;
    let mut bytes = vec![0; length.saturating_sub(at).min(LENGTH as u64) as usize];
    // Read once more: a permanent error repeats.
    file.read_at(at, &mut bytes)
        .or_else(|_| file.read_at(at, &mut bytes))
        .map_err(io_error("reading the superblock"))?;
    Superblock::parse(&bytes)
}

/// Finds the superblock of a finished store.
pub(crate) fn find(medium: &dyn Medium) -> Result<FoundSuperblock, FormatError> {
    let file = match medium.open(SUPERBLOCK, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FormatError::NotFormatted),
        file => file.map_err(io_error("opening the superblock"))?,
    };
    let [first, second] = COPIES.map(|at| read(&*file, at));
    let (superblock, mended) = match (first, second) {
        // Versions before 3 have one copy.
        (Ok(first), _) if first.version < 3 => (first, false),
        (Ok(first), second) => (first, second.ok() != Some(first)),
        // A program of a newer version wrote both.
        (Err(error @ FormatError::Version { .. }), Err(FormatError::Version { .. })) => return Err(error),
        (Err(_), Ok(second)) => (second, true),
        // No other file is created before the superblock is durable.
        (Err(FormatError::FormatIncomplete), Err(_)) if has_index(medium)? => {
            return Err(FormatError::Superblock("it is empty, but there is an index"));
        }
        (Err(error), Err(_)) => return Err(error),
    };
    match superblock.state {
        FormatState::Formatting => Err(FormatError::FormatIncomplete),
        FormatState::Ready => {
            let mut sector = [0; 8];
            let suspect = file.read_at(MARK_AT, &mut sector).is_ok() && sector == *MARK;
            Ok(FoundSuperblock { superblock, mended, suspect })
        }
    }
}

fn has_index(medium: &dyn Medium) -> Result<bool, FormatError> {
    Ok(medium.list().map_err(io_error("listing files"))?.iter().any(|name| name == INDEX))
}
