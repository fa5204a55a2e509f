//! Sources of a put: a stream, or a local file with holes.
//!
//! Contract: a source returns its bytes in order, and reports a hole instead of its zeros at the
//! hole's start. A file ends where it ended at the open, so that a growing file is stored as a
//! prefix.

use std::fs::Metadata;
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;

use bytes::BufMut;
use rustix::fs::SeekFrom as Seek;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeekExt};

/// Minimum length of a hole, in bytes; shorter holes are stored as zeros, since a command costs
/// more.
pub(crate) const HOLE_MIN: u64 = 64 << 10;
/// Bytes of a block in `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// A source of bytes to be stored.
pub(crate) trait Source: Send {
    /// Whether it may have holes, which are then searched before each read.
    fn is_sparse(&self) -> bool {
        false
    }

    /// Bytes that it occupies on its own disk, if it has holes.
    fn allocated(&self) -> Option<u64> {
        None
    }

    /// Skips the hole at the current position and returns its length; 0 if data is there.
    fn skip_hole(&mut self) -> impl Future<Output = io::Result<u64>> + Send;

    /// Reads some bytes; returns 0 at the end.
    fn read_buf(&mut self, into: &mut (impl BufMut + Send))
    -> impl Future<Output = io::Result<usize>> + Send;
}

/// A source without holes.
pub(super) struct StreamSource<R>(pub(super) R);

impl<R: AsyncRead + Unpin + Send> Source for StreamSource<R> {
    async fn skip_hole(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    async fn read_buf(&mut self, into: &mut (impl BufMut + Send)) -> io::Result<usize> {
        self.0.read_buf(into).await
    }
}

/// Attributes that identify a state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl FileState {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.len(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A local regular file.
pub(super) struct LocalFile {
    file: tokio::fs::File,
    opened: FileState,
    is_sparse: bool,
    allocated: u64,
    at: u64,
    /// End of the current data; the maximum if the file system does not report holes.
    data_until: u64,
}

impl LocalFile {
    pub(super) fn new(file: std::fs::File, metadata: &Metadata) -> Self {
        let opened = FileState::of(metadata);
        let allocated = metadata.blocks().saturating_mul(BLOCK_BYTES);
        let is_sparse = opened.size >= HOLE_MIN && allocated < opened.size;
        let data_until = if is_sparse { 0 } else { u64::MAX };
        Self { file: tokio::fs::File::from_std(file), opened, is_sparse, allocated, at: 0, data_until }
    }

    /// Whether the file changed since it was opened.
    pub(super) async fn has_changed(&self) -> io::Result<bool> {
        Ok(FileState::of(&self.file.metadata().await?) != self.opened)
    }

    /// Returns start and end of the data at or after the current position; none if only a hole is
    /// left.
    fn next_data(&self) -> Result<Option<(u64, u64)>, Errno> {
        let size = self.opened.size;
        match rustix::fs::seek(&self.file, Seek::Data(self.at)) {
            Ok(start) if start >= size => Ok(None),
            Ok(start) => Ok(Some((start, rustix::fs::seek(&self.file, Seek::Hole(start))?))),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Source for LocalFile {
    fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    fn allocated(&self) -> Option<u64> {
        self.is_sparse.then_some(self.allocated)
    }

    async fn skip_hole(&mut self) -> io::Result<u64> {
        if self.at < self.data_until || self.at >= self.opened.size {
            return Ok(0);
        }
        let size = self.opened.size;
        let (start, end) = match self.next_data() {
            Ok(Some((start, end))) => (start, end),
            Ok(None) => (size, u64::MAX),
            // Not every file system reports holes.
            Err(_) => (self.at, u64::MAX),
        };
        let hole = start - self.at;
        if hole >= HOLE_MIN {
            self.at = start;
        }
        self.data_until = end.max(self.at + 1);
        // The search moved the offset of the descriptor.
        self.file.seek(SeekFrom::Start(self.at)).await?;
        Ok(if hole >= HOLE_MIN { hole } else { 0 })
    }

    async fn read_buf(&mut self, into: &mut (impl BufMut + Send)) -> io::Result<usize> {
        let until = self.data_until.min(self.opened.size);
        let left = usize::try_from(until.saturating_sub(self.at)).unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(0);
        }
        let room = left.min(into.remaining_mut());
        let count = self.file.read_buf(&mut into.limit(room)).await?;
        self.at += count as u64;
        Ok(count)
    }
}
