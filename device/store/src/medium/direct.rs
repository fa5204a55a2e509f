//! A file or device accessed past the page cache (O_DIRECT).
//!
//! Does: reads and writes at any offset, length and buffer, through aligned buffers where needed;
//! caches a few of those.
//! Does not: use io_uring: each request has its own thread, and a ring gains nothing for one
//! request at a time (docs/adr/0012-direct-io-without-io-uring.md).
//! Contract: as any [`MediumFile`](super::MediumFile); the edges of an unaligned write are read
//! first, under a lock.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::OFlags;

/// Required alignment of offsets, lengths and buffers in bytes, which every device supports.
const ALIGN: usize = 4096;
/// Length of an aligned buffer in bytes: the maximum that one system call transfers through it.
const BUFFER: usize = 1 << 20;
/// Maximum number of buffers kept for reuse.
const BUFFERS_KEPT: usize = 16;

/// Memory that starts at a multiple of [`ALIGN`].
struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    fn new() -> Self {
        let bytes = vec![0; BUFFER + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start }
    }

    fn get(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + length]
    }
}

/// A file opened with O_DIRECT. If its length is not a multiple of 4 KiB, bytes beyond the last
/// multiple cannot be written.
pub(super) struct DirectFile {
    file: File,
    buffers: Mutex<Vec<AlignedBuffer>>,
    /// Held while the edges of an unaligned write are read and written.
    edges: Mutex<()>,
}

impl std::fmt::Debug for DirectFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl DirectFile {
    /// Opens an existing file. Fails with `InvalidInput` if the file system does not support
    /// O_DIRECT.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECT.bits() as i32;
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                io::Error::new(error.kind(), "no O_DIRECT here: use io = \"cached\"")
            }
            _ => error,
        };
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(refused)?;
        Ok(Self { file, buffers: Mutex::default(), edges: Mutex::new(()) })
    }

    fn with_buffer<T>(&self, work: impl FnOnce(&mut AlignedBuffer) -> io::Result<T>) -> io::Result<T> {
        let kept = self.buffers.lock().pop();
        let mut buffer = kept.unwrap_or_else(AlignedBuffer::new);
        let result = work(&mut buffer);
        let mut kept = self.buffers.lock();
        if kept.len() < BUFFERS_KEPT {
            kept.push(buffer);
        }
        result
    }

    /// Reads into the buffer from `offset`, both aligned, up to the file's end; returns the number
    /// of bytes.
    fn fill(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // A short read means the end of the file; continuing from there would be unaligned.
            if !done.is_multiple_of(ALIGN) {
                break;
            }
        }
        Ok(done)
    }

    pub(super) fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if is_aligned(offset, into) {
            return if self.fill(offset, into)? == into.len() { Ok(()) } else { Err(end_of_file()) };
        }
        self.read_parts(offset, &mut [IoSliceMut::new(into)])
    }

    /// Fills several buffers from consecutive bytes.
    pub(super) fn read_parts(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let total: usize = into.iter().map(|part| part.len()).sum();
        if total == 0 {
            return Ok(());
        }
        let mut targets =
            into.iter_mut().flat_map(|part| part.chunks_mut(ALIGN)).filter(|part| !part.is_empty());
        let mut target: &mut [u8] = &mut [];
        self.with_buffer(|buffer| {
            let mut done = 0;
            while done < total {
                let at = offset + done as u64;
                let lead = (at % ALIGN as u64) as usize;
                let length = (lead + total - done).next_multiple_of(ALIGN).min(BUFFER);
                let bytes = buffer.get(length);
                let found = self.fill(at - lead as u64, bytes)?;
                let wanted = (length - lead).min(total - done);
                if found < lead + wanted {
                    return Err(end_of_file());
                }
                let mut from = &bytes[lead..lead + wanted];
                while !from.is_empty() {
                    if target.is_empty() {
                        target = targets.next().expect("as many bytes as were counted");
                    }
                    let count = from.len().min(target.len());
                    let (head, rest) = std::mem::take(&mut target).split_at_mut(count);
                    head.copy_from_slice(&from[..count]);
                    (target, from) = (rest, &from[count..]);
                }
                done += wanted;
            }
            Ok(())
        })
    }

    pub(super) fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if is_aligned(offset, data) {
            return self.file.write_all_at(data, offset);
        }
        self.write_parts(offset, &[IoSlice::new(data)])
    }

    /// Writes several buffers to consecutive bytes.
    pub(super) fn write_parts(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let total: usize = data.iter().map(|part| part.len()).sum();
        let whole = offset.is_multiple_of(ALIGN as u64) && total.is_multiple_of(ALIGN);
        if whole && data.iter().all(|part| is_aligned(0, part)) {
            let mut at = offset;
            for part in data {
                self.file.write_all_at(part, at)?;
                at += part.len() as u64;
            }
            return Ok(());
        }
        let _edges = (!whole).then(|| self.edges.lock());
        let mut sources = data.iter().map(|part| &part[..]).filter(|part| !part.is_empty());
        let mut source: &[u8] = &[];
        self.with_buffer(|buffer| {
            let mut done = 0;
            while done < total {
                let at = offset + done as u64;
                let lead = (at % ALIGN as u64) as usize;
                let length = (lead + total - done).next_multiple_of(ALIGN).min(BUFFER);
                let part = (length - lead).min(total - done);
                let start = at - lead as u64;
                let bytes = buffer.get(length);
                if lead > 0 {
                    self.edge(start, &mut bytes[..ALIGN])?;
                }
                if lead + part < length && (lead == 0 || length > ALIGN) {
                    self.edge(start + (length - ALIGN) as u64, &mut bytes[length - ALIGN..])?;
                }
                let mut into = &mut bytes[lead..lead + part];
                while !into.is_empty() {
                    if source.is_empty() {
                        source = sources.next().expect("as many bytes as were counted");
                    }
                    let count = into.len().min(source.len());
                    let (head, rest) = into.split_at_mut(count);
                    head.copy_from_slice(&source[..count]);
                    (into, source) = (rest, &source[count..]);
                }
                self.file.write_all_at(bytes, start)?;
                done += part;
            }
            Ok(())
        })
    }

    /// Reads one block; zeros beyond the file's end.
    fn edge(&self, start: u64, block: &mut [u8]) -> io::Result<()> {
        let found = self.fill(start, block)?;
        block[found..].fill(0);
        Ok(())
    }
}

fn is_aligned(offset: u64, bytes: &[u8]) -> bool {
    offset.is_multiple_of(ALIGN as u64)
        && bytes.len().is_multiple_of(ALIGN)
        && bytes.as_ptr().align_offset(ALIGN) == 0
}

fn end_of_file() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Creates a temporary file; `None` if its file system has no O_DIRECT.
    fn file(length: u64) -> Option<(tempfile::TempDir, DirectFile)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        File::create(&path).unwrap().set_len(length).unwrap();
        DirectFile::open(&path).ok().map(|file| (folder, file))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        /// Any offsets, lengths and buffers behave like a plain array of bytes.
        #[test]
        fn any_offset_length_and_buffer_will_do(
            steps in proptest::collection::vec((0_usize..3 << 20, 1_usize..40_000, 0_usize..5000, any::<u8>()), 1..12),
            long in 1_usize..3 << 20,
        ) {
            const LENGTH: usize = 4 << 20;
            let Some((_folder, file)) = file(LENGTH as u64) else { return Ok(()) };
            let mut model = vec![0_u8; LENGTH];
            for (index, (at, length, cut, byte)) in steps.into_iter().enumerate() {
                let at = if index % 3 == 0 { at / ALIGN * ALIGN } else { at };
                let length = match index % 4 { 0 => length / ALIGN * ALIGN, 1 => long, _ => length };
                let length = length.min(LENGTH - at);
                let data: Vec<u8> = (0..length).map(|i| byte ^ (i / 3) as u8).collect();
                let (one, two) = data.split_at(cut.min(length));
                if index % 2 == 0 {
                    file.write_parts(at as u64, &[IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(two)]).unwrap();
                } else {
                    file.write_at(at as u64, &data).unwrap();
                }
                model[at..at + length].copy_from_slice(&data);
                let from = at.saturating_sub(cut);
                let mut found = vec![0; (length + 2 * cut).min(LENGTH - from)];
                let middle = cut.min(found.len());
                if index % 2 == 0 {
                    file.read_at(from as u64, &mut found).unwrap();
                } else {
                    let (one, two) = found.split_at_mut(middle);
                    file.read_parts(from as u64, &mut [IoSliceMut::new(one), IoSliceMut::new(two)]).unwrap();
                }
                prop_assert!(found == model[from..from + found.len()]);
            }
            let mut all = vec![0; LENGTH];
            file.read_at(0, &mut all).unwrap();
            prop_assert!(all == model);
        }
    }

    #[test]
    fn reads_beyond_end_fail_and_last_bytes_succeed() {
        let Some((_folder, file)) = file(10_000) else { return };
        file.read_at(9_000, &mut [0; 1_000]).unwrap();
        assert_eq!(file.read_at(9_000, &mut [0; 1_001]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(file.read_at(20_480, &mut [0; 1]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        file.read_at(1 << 40, &mut []).unwrap();
    }

    /// Two writers of one block do not overwrite each other's bytes.
    #[test]
    fn unaligned_writers_of_one_block_keep_both_writes() {
        let Some((_folder, file)) = file(4096) else { return };
        std::thread::scope(|scope| {
            for writer in 0..4_u8 {
                let file = &file;
                scope.spawn(move || {
                    for step in 0..50 {
                        file.write_at(u64::from(writer) * 1000 + step * 10, &[writer + 1; 10]).unwrap();
                    }
                });
            }
        });
        let mut found = [0; 4096];
        file.read_at(0, &mut found).unwrap();
        for writer in 0..4_u8 {
            let from = usize::from(writer) * 1000;
            assert!(found[from..from + 500].iter().all(|&byte| byte == writer + 1));
        }
    }
}
