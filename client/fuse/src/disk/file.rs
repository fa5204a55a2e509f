//! A disk of whole blocks as a file of bytes.
//!
//! Does: reads blocks around writes of parts of them, and clips requests at the end.
//! Does not: grow or shrink.
//! Contract: a write of part of a block excludes all other changes, so that no bytes beside it
//! change.

use bytes::Bytes;
use sealstone_block_client::{BufferPool, FlushCursor};
use sealstone_nbd::{BlockBackend, ExportProperties, NbdError};
use std::sync::Arc;
use tokio::sync::RwLock;

/// Maximum bytes of one request for zeros or allocation.
const EXTENT_MAX: u64 = 1 << 30;

/// A disk as a file.
pub(crate) struct DiskFile<B> {
    backend: Arc<B>,
    properties: ExportProperties,
    pub(crate) buffers: BufferPool,
    /// Shared by changes of whole blocks.
    changes: RwLock<()>,
}

impl<B: BlockBackend> DiskFile<B> {
    pub(crate) fn new(backend: Arc<B>) -> Self {
        let properties = backend.properties();
        Self { backend, properties, buffers: BufferPool::default(), changes: RwLock::new(()) }
    }

    pub(crate) const fn properties(&self) -> &ExportProperties {
        &self.properties
    }

    pub(crate) fn flush_cursor(&self) -> FlushCursor {
        self.backend.flush_cursor()
    }

    const fn block(&self) -> u64 {
        self.properties.block_min as u64
    }

    /// Returns the end of an extent, at most that of the disk.
    fn end(&self, offset: u64, length: u64) -> u64 {
        offset.saturating_add(length).min(self.properties.bytes)
    }

    /// Passes the bytes from `offset` on to `use_bytes`; fewer than `length` at the end of the
    /// disk.
    pub(crate) async fn read<T>(
        &self,
        offset: u64,
        length: u64,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, NbdError> {
        let end = self.end(offset, length);
        if offset >= end {
            return Ok(use_bytes(&[]));
        }
        let start = offset - offset % self.block();
        let whole = end.next_multiple_of(self.block()) - start;
        let blocks = self.backend.read(start, self.buffers.take(bytes_of(whole))).await?;
        let result = use_bytes(&blocks[bytes_of(offset - start)..bytes_of(end - start)]);
        self.buffers.give(blocks);
        Ok(result)
    }

    /// Writes bytes up to the end of the disk; returns how many. `durable`: they are on stable
    /// storage then.
    pub(crate) async fn write(&self, offset: u64, data: Bytes, durable: bool) -> Result<usize, NbdError> {
        let end = self.end(offset, data.len() as u64);
        if data.is_empty() {
            return Ok(0);
        }
        if offset >= end {
            return Err(NbdError::PastEnd);
        }
        let length = bytes_of(end - offset);
        let data = data.slice(..length);
        if offset.is_multiple_of(self.block()) && end.is_multiple_of(self.block()) {
            let _shared = self.changes.read().await;
            self.backend.write(offset, data, durable).await?;
        } else {
            let _alone = self.changes.write().await;
            let start = offset - offset % self.block();
            let whole = self.complete(offset, &data).await?;
            self.backend.write(start, whole, durable).await?;
        }
        Ok(length)
    }

    /// Returns the whole blocks around some bytes, with their stored content around these.
    async fn complete(&self, offset: u64, data: &[u8]) -> Result<Bytes, NbdError> {
        let block = self.block();
        let end = offset + data.len() as u64;
        let (start, stop) = (offset - offset % block, end.next_multiple_of(block));
        let mut whole = self.buffers.take(bytes_of(stop - start));
        let has_head = offset > start;
        let has_tail = end < stop && !(has_head && stop - start == block);
        for (is_needed, at) in [(has_head, start), (has_tail, stop - block)] {
            if is_needed {
                let stored = self.backend.read(at, vec![0; bytes_of(block)]).await?;
                whole[bytes_of(at - start)..][..stored.len()].copy_from_slice(&stored);
            }
        }
        whole[bytes_of(offset - start)..][..data.len()].copy_from_slice(data);
        Ok(self.buffers.share(whole))
    }

    /// Writes zeros up to the end of the disk; `may_unmap`: they need no space.
    pub(crate) async fn zero(&self, offset: u64, length: u64, may_unmap: bool) -> Result<(), NbdError> {
        let (block, end) = (self.block(), self.end(offset, length));
        let (first, last) = (offset.next_multiple_of(block), end - end % block);
        if first >= last {
            return self.write_zeros(offset, end).await;
        }
        self.write_zeros(offset, first).await?;
        let mut at = first;
        while at < last {
            let piece = (last - at).min(EXTENT_MAX);
            let _shared = self.changes.read().await;
            let length = u32::try_from(piece).unwrap_or(u32::MAX);
            self.backend.write_zeros(at, length, may_unmap, false).await?;
            at += piece;
        }
        self.write_zeros(last, end).await
    }

    /// Writes zeros over part of one or two blocks.
    async fn write_zeros(&self, offset: u64, end: u64) -> Result<(), NbdError> {
        if offset < end {
            self.write(offset, Bytes::from(vec![0; bytes_of(end - offset)]), false).await?;
        }
        Ok(())
    }

    /// Makes all acknowledged writes durable.
    pub(crate) async fn flush(&self, cursor: &FlushCursor) -> Result<(), NbdError> {
        self.backend.flush(cursor).await
    }

    /// Returns the first offset from `offset` on that has data, or is in a hole. The end of the
    /// disk is a hole.
    pub(crate) async fn seek(&self, offset: u64, is_data: bool) -> Result<Option<u64>, NbdError> {
        let size = self.properties.bytes;
        if offset >= size {
            return Ok(None);
        }
        let mut at = offset - offset % self.block();
        while at < size {
            let length = u32::try_from((size - at).min(EXTENT_MAX)).unwrap_or(u32::MAX);
            let before = at;
            for extent in self.backend.status(at, length).await? {
                if (extent.is_hole && extent.is_zero) != is_data {
                    return Ok(Some(at.max(offset)));
                }
                at += u64::from(extent.length);
            }
            if at == before {
                return Err(NbdError::Failed("the status of no byte is known".to_owned()));
            }
        }
        Ok((!is_data).then_some(size))
    }
}

/// Converts a number of bytes of one request, which is in memory.
fn bytes_of(count: u64) -> usize {
    usize::try_from(count).expect("a request is at most a few MiB")
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;
    use proptest::prelude::*;
    use sealstone_nbd::StatusExtent;

    use super::*;

    /// A disk of 64 KiB in memory that knows which blocks were unmapped.
    pub(crate) struct MemoryDisk {
        block: u32,
        bytes: Mutex<Vec<u8>>,
        flushes: AtomicUsize,
    }

    pub(crate) const SIZE: usize = 64 << 10;

    impl MemoryDisk {
        pub(crate) fn new(block: u32) -> Arc<Self> {
            let bytes = (0..SIZE).map(|at| (at / 3) as u8).collect();
            Arc::new(Self { block, bytes: Mutex::new(bytes), flushes: AtomicUsize::new(0) })
        }

        fn check(&self, offset: u64, length: usize) -> usize {
            assert!(
                offset.is_multiple_of(u64::from(self.block)) && length.is_multiple_of(self.block as usize)
            );
            assert!(length > 0 && offset as usize + length <= SIZE);
            offset as usize
        }
    }

    impl BlockBackend for MemoryDisk {
        fn properties(&self) -> ExportProperties {
            ExportProperties {
                bytes: SIZE as u64,
                block_min: self.block,
                block_preferred: 4096,
                is_read_only: false,
                can_trim: true,
                has_fast_zero: true,
            }
        }

        fn flush_cursor(&self) -> FlushCursor {
            FlushCursor::default()
        }

        async fn read(&self, offset: u64, mut buffer: Vec<u8>) -> Result<Vec<u8>, NbdError> {
            let start = self.check(offset, buffer.len());
            let end = start + buffer.len();
            buffer.copy_from_slice(&self.bytes.lock()[start..end]);
            Ok(buffer)
        }

        async fn write(&self, offset: u64, data: Bytes, _: bool) -> Result<(), NbdError> {
            let start = self.check(offset, data.len());
            // Others may run between the parts of a change.
            tokio::task::yield_now().await;
            self.bytes.lock()[start..start + data.len()].copy_from_slice(&data);
            Ok(())
        }

        async fn flush(&self, _: &FlushCursor) -> Result<(), NbdError> {
            self.flushes.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        async fn trim(&self, _: u64, _: u32, _: bool) -> Result<(), NbdError> {
            Err(NbdError::Unsupported("a hint has no use here"))
        }

        async fn write_zeros(&self, offset: u64, length: u32, _: bool, _: bool) -> Result<(), NbdError> {
            self.write(offset, vec![0; length as usize].into(), false).await
        }

        async fn status(&self, offset: u64, length: u32) -> Result<Vec<StatusExtent>, NbdError> {
            let start = self.check(offset, length as usize);
            let block = self.block as usize;
            let bytes = self.bytes.lock();
            let is_zero = |at: usize| bytes[at..at + block].iter().all(|byte| *byte == 0);
            // One extent an answer, as the protocol allows.
            let first = is_zero(start);
            let same = (start..start + length as usize).step_by(block).take_while(|at| is_zero(*at) == first);
            Ok(vec![StatusExtent { length: (same.count() * block) as u32, is_hole: first, is_zero: first }])
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    proptest! {
        #[test]
        fn file_equals_bytes_in_memory(
            block in prop_oneof![Just(512_u32), Just(4096)],
            steps in proptest::collection::vec((0_u8..3, 0..SIZE as u64 + 5000, 1..20_000_usize, any::<u8>()), 1..30),
        ) {
            let disk = MemoryDisk::new(block);
            let file = DiskFile::new(disk.clone());
            let mut model = disk.bytes.lock().clone();
            run(async {
                for (kind, offset, length, byte) in steps {
                    let (from, to) = ((offset as usize).min(SIZE), (offset as usize + length).min(SIZE));
                    match kind {
                        0 => {
                            let written = file.write(offset, vec![byte; length].into(), false).await;
                            let expected = if from == to { Err(NbdError::PastEnd) } else { Ok(to - from) };
                            prop_assert_eq!(written, expected);
                            model[from..to].fill(byte);
                        }
                        1 => {
                            file.zero(offset, length as u64, true).await.expect("zeros");
                            model[from..to].fill(0);
                        }
                        _ => {
                            let read = file.read(offset, length as u64, <[u8]>::to_vec).await.expect("read");
                            prop_assert_eq!(&read, &model[from..to]);
                        }
                    }
                }
                prop_assert_eq!(&*disk.bytes.lock(), &model);
                Ok(())
            })?;
        }
    }

    #[test]
    fn writes_of_parts_of_one_block_are_both_kept() {
        let disk = MemoryDisk::new(512);
        let file = DiskFile::new(disk.clone());
        run(async {
            let (a, b, c) = tokio::join!(
                file.write(10, Bytes::from_static(b"first"), false),
                file.write(100, Bytes::from_static(b"second"), false),
                file.write(512, vec![7; 512].into(), false),
            );
            assert_eq!((a, b, c), (Ok(5), Ok(6), Ok(512)));
        });
        let bytes = disk.bytes.lock();
        assert_eq!((&bytes[10..15], &bytes[100..106]), (&b"first"[..], &b"second"[..]));
    }

    #[test]
    fn seek_finds_data_and_holes() {
        let file = DiskFile::new(MemoryDisk::new(512));
        run(async {
            file.zero(1000, 3096, true).await.expect("zeros");
            assert_eq!(file.seek(0, true).await, Ok(Some(0)));
            assert_eq!(file.seek(100, false).await, Ok(Some(1024)));
            assert_eq!(file.seek(2000, false).await, Ok(Some(2000)));
            assert_eq!(file.seek(2000, true).await, Ok(Some(4096)));
            assert_eq!(file.seek(5000, false).await, Ok(Some(SIZE as u64)));
            assert_eq!(file.seek(SIZE as u64, false).await, Ok(None));
            file.zero(SIZE as u64 - 1024, 9999, true).await.expect("zeros");
            assert_eq!(file.seek(SIZE as u64 - 1, true).await, Ok(None));
        });
    }
}
