//! The segment files: blocks by number.
//!
//! Does: find the file of a block; read, write, discard; remember which files wait for a sync.
//! Does not: know what the blocks mean.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::space::Run;
use super::superblock::Superblock;
use crate::medium::{Medium, MediumFile};
use crate::{BLOCK, FormatError};

/// All segments of a store.
pub(crate) struct Segments {
    files: Vec<Arc<dyn MediumFile>>,
    /// Which were written since the last group was closed.
    dirty: Vec<AtomicBool>,
    /// Blocks of each file but the last.
    pub(crate) blocks_each: u64,
}

/// A segment's file name.
fn name(segment: u64) -> String {
    format!("segment-{segment:05}")
}

/// Is this a segment's file name?
pub(crate) fn is_segment(name: &str) -> bool {
    name.starts_with("segment-")
}

impl Segments {
    /// Makes all segments of a new store, durably but for their names.
    pub(crate) fn format(medium: &dyn Medium, superblock: &Superblock) -> io::Result<()> {
        for segment in 0..superblock.segments() {
            let file = medium.open(&name(segment), true)?;
            // No block is read before it was written.
            file.reserve(superblock.segment_bytes(segment))?;
            file.sync()?;
        }
        Ok(())
    }

    /// Opens them, checking that all are there in full.
    pub(crate) fn open(medium: &dyn Medium, superblock: &Superblock) -> Result<Self, FormatError> {
        let mut files = Vec::new();
        for segment in 0..superblock.segments() {
            let name = name(segment);
            let io = |source| FormatError::Io { doing: "opening a segment", source };
            let file = match medium.open(&name, false) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(FormatError::Missing { name });
                }
                file => file.map_err(io)?,
            };
            let (found, expected) = (file.length().map_err(io)?, superblock.segment_bytes(segment));
            if found < expected {
                return Err(FormatError::Truncated { name, found, expected });
            }
            files.push(file);
        }
        let dirty = files.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self { files, dirty, blocks_each: superblock.segment_blocks })
    }

    fn locate(&self, place: u64) -> (usize, u64) {
        ((place / self.blocks_each) as usize, place % self.blocks_each * BLOCK)
    }

    /// Fills the buffers from the block `place` on.
    pub(crate) fn read(&self, place: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let (segment, offset) = self.locate(place);
        match into {
            [only] => self.files[segment].read_at(offset, only),
            many => self.files[segment].read_vectored_at(offset, many),
        }
    }

    /// Writes the buffers from the block `place` on; all in one segment.
    pub(crate) fn write(&self, place: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let (segment, offset) = self.locate(place);
        self.dirty[segment].store(true, Ordering::Release);
        match data {
            [only] => self.files[segment].write_at(offset, only),
            many => self.files[segment].write_vectored_at(offset, many),
        }
    }

    /// The files written since the last call; the caller syncs them with [`sync`](Self::sync).
    pub(crate) fn take_dirty(&self) -> Vec<usize> {
        (0..self.files.len()).filter(|&segment| self.dirty[segment].swap(false, Ordering::AcqRel)).collect()
    }

    /// Makes what was written to these files durable.
    pub(crate) fn sync(&self, segments: &[usize]) -> io::Result<()> {
        segments.iter().try_for_each(|&segment| self.files[segment].sync())
    }

    /// Lets the medium have the blocks' space back. Runs may cross segments here.
    pub(crate) fn discard(&self, run: Run) -> io::Result<()> {
        let (mut place, end) = (run.place, run.place + run.count);
        while place < end {
            let (segment, offset) = self.locate(place);
            let stop = end.min((segment as u64 + 1) * self.blocks_each);
            self.files[segment].discard(offset, (stop - place) * BLOCK)?;
            place = stop;
        }
        Ok(())
    }
}
