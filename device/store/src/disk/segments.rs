//! The segment files, which hold the data blocks: reads and writes blocks by number.
//!
//! Does: finds the file of a block; reads, writes, discards; records which files need a sync.
//! Does not: know what the blocks mean.

use std::collections::HashSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::space::BlockRun;
use super::superblock::Superblock;
use crate::damage::StoreFault;
use crate::medium::{Medium, MediumFile};
use crate::{BLOCK, FormatError};

/// One segment file.
struct SegmentFile {
    /// `None` if it is missing.
    file: Option<Arc<dyn MediumFile>>,
    /// Its required length in blocks.
    blocks: u64,
}

impl SegmentFile {
    fn file(&self) -> io::Result<&dyn MediumFile> {
        self.file.as_deref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// All segments of a store.
pub(crate) struct SegmentFiles {
    files: Vec<SegmentFile>,
    /// Whether each file was written since the last group was closed.
    dirty: Vec<AtomicBool>,
    /// Number of blocks of each file but the last.
    pub(crate) blocks_each: u64,
}

/// Returns a segment's file name.
fn name(segment: u64) -> String {
    format!("segment-{segment:05}")
}

/// Whether this is a segment's file name.
pub(crate) fn is_segment(name: &str) -> bool {
    name.starts_with("segment-")
}

impl SegmentFiles {
    /// Creates all segments of a new store, durably except for their names.
    pub(crate) fn format(medium: &dyn Medium, superblock: &Superblock) -> io::Result<()> {
        for segment in 0..superblock.segments() {
            let file = medium.open(&name(segment), true)?;
            // No block is read before it was written.
            file.reserve(superblock.segment_bytes(segment))?;
            file.sync()?;
        }
        Ok(())
    }

    /// Opens the segments; returns which are missing or short, and which files do not belong to the
    /// store.
    pub(crate) fn open(
        medium: &dyn Medium,
        superblock: &Superblock,
    ) -> Result<(Self, Vec<StoreFault>), FormatError> {
        let mut files = Vec::new();
        let mut faults = Vec::new();
        for segment in 0..superblock.segments() {
            let name = name(segment);
            let io = |source| FormatError::Io { doing: "opening a segment", source };
            let file = match medium.open_data(&name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    faults.push(StoreFault::MissingFile { name });
                    files.push(SegmentFile { file: None, blocks: 0 });
                    continue;
                }
                file => file.map_err(io)?,
            };
            let (found, expected) = (file.length().map_err(io)?, superblock.segment_bytes(segment));
            if found < expected {
                faults.push(StoreFault::ShortFile { name, found, expected });
            }
            files.push(SegmentFile { file: Some(file), blocks: found.min(expected) / BLOCK });
        }
        let listed = medium.list().map_err(|source| FormatError::Io { doing: "listing files", source })?;
        let known: HashSet<String> = (0..superblock.segments()).map(name).collect();
        let unknown = listed.into_iter().filter(|name| is_segment(name) && !known.contains(name));
        faults.extend(unknown.map(|name| StoreFault::UnknownFile { name }));
        let dirty = files.iter().map(|_| AtomicBool::new(false)).collect();
        Ok((Self { files, dirty, blocks_each: superblock.segment_blocks }, faults))
    }

    /// Whether these blocks, all in one segment, can be read.
    pub(crate) fn has(&self, run: BlockRun) -> bool {
        let segment = self.files.get((run.location / self.blocks_each) as usize);
        segment.is_some_and(|segment| run.location % self.blocks_each + run.count <= segment.blocks)
    }

    fn locate(&self, location: u64) -> (usize, u64) {
        ((location / self.blocks_each) as usize, location % self.blocks_each * BLOCK)
    }

    /// Records that blocks of this file were written and need a sync.
    pub(crate) fn wrote(&self, location: u64) {
        self.dirty[self.locate(location).0].store(true, Ordering::Release);
    }

    /// Fills the buffers, starting at the block `location`.
    pub(crate) fn read(&self, location: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let (segment, offset) = self.locate(location);
        match into {
            [only] => self.files[segment].file()?.read_at(offset, only),
            many => self.files[segment].file()?.read_vectored_at(offset, many),
        }
    }

    /// Writes the buffers, starting at the block `location`; all in one segment.
    pub(crate) fn write(&self, location: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let (segment, offset) = self.locate(location);
        self.dirty[segment].store(true, Ordering::Release);
        match data {
            [only] => self.files[segment].file()?.write_at(offset, only),
            many => self.files[segment].file()?.write_vectored_at(offset, many),
        }
    }

    /// Returns the files written since the last call; the caller syncs them with
    /// [`sync`](Self::sync).
    pub(crate) fn take_dirty(&self) -> Vec<usize> {
        (0..self.files.len()).filter(|&segment| self.dirty[segment].swap(false, Ordering::AcqRel)).collect()
    }

    /// Makes the writes to these files durable.
    pub(crate) fn sync(&self, segments: &[usize]) -> io::Result<()> {
        segments.iter().try_for_each(|&segment| self.files[segment].file()?.sync())
    }

    /// Allocates space on the medium for a run, which lies in one segment.
    pub(crate) fn back(&self, run: BlockRun) -> io::Result<()> {
        let (segment, offset) = self.locate(run.location);
        self.files[segment].file()?.back(offset, run.count * BLOCK)
    }

    /// Returns the blocks of all segments that have no space on the medium.
    pub(crate) fn holes(&self) -> io::Result<Vec<BlockRun>> {
        let mut runs = Vec::new();
        for (segment, base) in self.files.iter().zip((0..).step_by(self.blocks_each as usize)) {
            let Some(file) = &segment.file else { continue };
            for hole in file.holes()? {
                // A block with a part of its space counts as one without: it gets the rest.
                let (first, end) = (hole.start / BLOCK, hole.end.div_ceil(BLOCK).min(segment.blocks));
                if first < end {
                    runs.push(BlockRun { location: base + first, count: end - first });
                }
            }
        }
        Ok(runs)
    }

    /// Returns the blocks' space to the medium. Runs may cross segments here.
    pub(crate) fn discard(&self, run: BlockRun) -> io::Result<()> {
        let (mut location, end) = (run.location, run.location + run.count);
        while location < end {
            let (segment, offset) = self.locate(location);
            let stop = end.min((segment as u64 + 1) * self.blocks_each);
            self.files[segment].file()?.discard(offset, (stop - location) * BLOCK)?;
            location = stop;
        }
        Ok(())
    }
}
