//! Making a store, and finding one.
//!
//! Does: order the steps so that an interrupted format is seen as one; check all files before they are used.
//! Contract: the superblock says "ready" only when all else is durable.

use std::io;

use super::index::Index;
use super::segments::{Segments, is_segment};
use super::superblock::{COPIES, LENGTH, MARK_AT, State, Superblock, VERSION, VERSION_WITHOUT_LOG};
use super::write_log;
use crate::FormatError;
use crate::medium::{Medium, MediumFile};

/// Name of the superblock's file.
const SUPERBLOCK: &str = "superblock";
/// Name of the index's file.
pub(crate) const INDEX: &str = "index.redb";
/// What the superblock's file says at its third place after a sync failed.
const MARK: &[u8; 8] = b"SEALMARK";
/// Most segment files of a store; larger capacities have larger segments.
const MAX_SEGMENTS: u64 = 64;
/// Usual length of a segment file, in bytes.
const SEGMENT: u64 = 1 << 30;

/// What `format` is to make.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Bytes that objects may use.
    pub capacity: u64,
    /// Names the store; drawn at random by the caller.
    pub uuid: [u8; 16],
    /// Length of a segment file in bytes; `None` chooses 1 GiB or more, so that there are few.
    pub segment: Option<u64>,
    /// Destroy a store that is there already.
    pub overwrite: bool,
}

impl FormatOptions {
    /// A store of `capacity` bytes with this name and usual segments, refusing to overwrite one.
    #[must_use]
    pub fn new(capacity: u64, uuid: [u8; 16]) -> Self {
        Self { capacity, uuid, segment: None, overwrite: false }
    }
}

fn io_error(doing: &'static str) -> impl Fn(io::Error) -> FormatError {
    move |source| FormatError::Io { doing, source }
}

/// Makes a store on a medium. If it is interrupted, `open` answers `FormatIncomplete` (or `NotFormatted`, if
/// nothing was done yet) and it can be done again.
///
/// # Errors
/// `AlreadyFormatted`, `Version` or `Superblock` if there is something else and `overwrite` is not set;
/// `Capacity`; `Io` and `Index`.
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
    // From here on there is no store: a crash leaves "formatting", or an empty superblock.
    let file = medium.open(SUPERBLOCK, true).map_err(io_error("making the superblock"))?;
    file.write_at(MARK_AT, &[0; LENGTH]).map_err(io_error("writing the superblock"))?;
    write(&*file, &superblock).map_err(io_error("writing the superblock"))?;
    medium.sync_names().map_err(io_error("making names durable"))?;
    for name in medium.list().map_err(io_error("listing files"))? {
        if name == INDEX || name == write_log::NAME || is_segment(&name) {
            medium.delete(&name).map_err(io_error("deleting old files"))?;
        }
    }
    Segments::format(medium, &superblock).map_err(io_error("making segments"))?;
    write_log::create(medium, superblock.log_bytes).map_err(io_error("making the write log"))?;
    let index = medium.open(INDEX, true).map_err(io_error("making the index"))?;
    Index::format(index, &superblock.uuid)?;
    medium.sync_names().map_err(io_error("making names durable"))?;
    superblock.state = State::Ready;
    write(&*file, &superblock).map_err(io_error("writing the superblock"))
}

/// Gives all segments of a store that is not open their space on the file system.
///
/// # Errors
/// `Io`; `StorageFull` in it where there is not so much.
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

/// Returns the bytes of blocks that a store of this capacity has: with those that it keeps back.
#[must_use]
pub fn bytes_with_reserve(capacity: u64) -> u64 {
    capacity.saturating_add(super::reserve_of(capacity))
}

/// Writes both copies. The first one counts if it is sound; so it is written first when it says that there is no store
/// yet, and last when it says that there is one.
fn write(file: &dyn MediumFile, superblock: &Superblock) -> io::Result<()> {
    let mut order = COPIES;
    if superblock.state == State::Ready {
        order.reverse();
    }
    order.into_iter().try_for_each(|at| {
        file.write_at(at, &superblock.encode())?;
        file.sync()
    })
}

/// Marks a store of an older version as one of this version, and mends the copy of the superblock that is damaged. All
/// that an older version can hold means the same in this one, so that nothing else changes; programs of the older
/// version refuse it from then on.
///
/// Without space for a write log the store keeps a version that has none.
pub(crate) fn upgrade(medium: &dyn Medium, found: &Found, log_bytes: u64) -> Result<(), FormatError> {
    let Found { superblock, mended, suspect } = found;
    let version = if log_bytes > 0 { VERSION } else { VERSION_WITHOUT_LOG };
    let newer = Superblock { version, index_copy: true, log_bytes, ..*superblock };
    if newer == *superblock && !mended && !suspect {
        return Ok(());
    }
    tracing::info!(from = superblock.version, to = version, mended, "writing the superblock anew");
    let file = medium.open(SUPERBLOCK, false).map_err(io_error("opening the superblock"))?;
    write(&*file, &newer).map_err(io_error("writing the superblock"))?;
    // Last: until here, whoever opens the store has to do all of it again.
    let unmark = || {
        file.write_at(MARK_AT, &[0; LENGTH])?;
        file.sync()
    };
    unmark().map_err(io_error("writing the superblock"))
}

/// A sync failed: says so to whoever opens the store next while this system runs. What it remembers of the index may
/// not be on the medium, though it counts as written; after a start of the system it is forgotten, and so may be this.
pub(crate) fn mark(medium: &dyn Medium) {
    let write = || {
        let mut sector = [0; LENGTH];
        sector[..8].copy_from_slice(MARK);
        medium.open(SUPERBLOCK, false)?.write_at(MARK_AT, &sector)
    };
    if let Err(error) = write() {
        tracing::error!(%error, "that a sync failed could not be noted: restart the machine before opening the store again");
    }
}

/// After a sync failed in another opening: writes again, durably, what the system remembers of the index's file. A page
/// that cannot be read stays as it is.
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

/// Was a store begun here and never finished, or none at all? Then nothing was ever acknowledged.
pub(crate) fn is_unfinished(medium: &dyn Medium) -> bool {
    matches!(find(medium), Err(FormatError::NotFormatted | FormatError::FormatIncomplete))
}

/// The superblock of a finished store.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) superblock: Superblock,
    /// Is one of its copies damaged, or older than the other?
    pub(crate) mended: bool,
    /// Did a sync fail in another opening?
    pub(crate) suspect: bool,
}

/// The copy at `at`. What cannot be read is damaged.
fn read(file: &dyn MediumFile, at: u64) -> Result<Superblock, FormatError> {
    let length = file.length().map_err(io_error("reading the superblock"))?;
    let mut bytes = vec![0; length.saturating_sub(at).min(LENGTH as u64) as usize];
    // Once more: what fails for good fails again.
    file.read_at(at, &mut bytes)
        .or_else(|_| file.read_at(at, &mut bytes))
        .map_err(io_error("reading the superblock"))?;
    Superblock::parse(&bytes)
}

/// The superblock of a finished store.
pub(crate) fn find(medium: &dyn Medium) -> Result<Found, FormatError> {
    let file = match medium.open(SUPERBLOCK, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FormatError::NotFormatted),
        file => file.map_err(io_error("opening the superblock"))?,
    };
    let [first, second] = COPIES.map(|at| read(&*file, at));
    let (superblock, mended) = match (first, second) {
        // Before version 3 there was one.
        (Ok(first), _) if first.version < 3 => (first, false),
        (Ok(first), second) => (first, second.ok() != Some(first)),
        // A program of a newer version wrote both.
        (Err(error @ FormatError::Version { .. }), Err(FormatError::Version { .. })) => return Err(error),
        (Err(_), Ok(second)) => (second, true),
        // Nothing else is made before the superblock is durable.
        (Err(FormatError::FormatIncomplete), Err(_)) if has_index(medium)? => {
            return Err(FormatError::Superblock("it is empty, but there is an index"));
        }
        (Err(error), Err(_)) => return Err(error),
    };
    match superblock.state {
        State::Formatting => Err(FormatError::FormatIncomplete),
        State::Ready => {
            let mut sector = [0; 8];
            let suspect = file.read_at(MARK_AT, &mut sector).is_ok() && sector == *MARK;
            Ok(Found { superblock, mended, suspect })
        }
    }
}

fn has_index(medium: &dyn Medium) -> Result<bool, FormatError> {
    Ok(medium.list().map_err(io_error("listing files"))?.iter().any(|name| name == INDEX))
}
