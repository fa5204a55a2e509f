//! Requests of the kernel to the one file of a disk.
//!
//! Does: answers them in tasks of the caller's runtime, and limits bytes in flight.
//! Does not: change size, owner or mode.

use core::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use sealstone_block_client::FlushCursor;
use sealstone_nbd::{BlockBackend, NbdError};
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::file::DiskFile;
use crate::kernel::{
    AnswerFields, Attributes, Changes, DIRECT_IO, KernelReply, Operation, PARALLEL_WRITES, RequestHandler,
    RequestHeader, WriteTarget,
};
use crate::table::HandleTable;

/// Inode number of the root, which is the file.
const ROOT: u64 = 1;
/// Cache time of attributes. They never change, but a dead mount is noticed only after it.
const CACHE_TIME: Duration = Duration::from_secs(1);
/// Maximum bytes of reads and writes in flight, in units of [`UNIT`].
const BYTES_MAX: usize = (64 << 20) / UNIT;
const UNIT: usize = 4096;
/// A regular file.
const S_IFREG: u32 = 0o100_000;
/// Flags of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Targets of lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// Bytes of a block in `st_blocks`.
const STAT_BLOCK: u64 = 512;

/// The mounted disk.
pub(crate) struct DiskHandler<B> {
    state: Arc<DiskState<B>>,
    runtime: Handle,
}

struct DiskState<B> {
    file: DiskFile<B>,
    /// Open files: each gets each loss once.
    files: HandleTable<FlushCursor>,
    memory: Arc<Semaphore>,
}

impl<B: BlockBackend> DiskHandler<B> {
    pub(crate) fn new(file: DiskFile<B>, runtime: Handle) -> Self {
        let memory = Arc::new(Semaphore::new(BYTES_MAX));
        Self { state: Arc::new(DiskState { file, files: HandleTable::new(), memory }), runtime }
    }

    /// Polls the answer to a request once on this thread, which sends its command, and runs the
    /// rest in a task.
    fn task<F: Future<Output = ()> + Send + 'static>(&self, answer: impl FnOnce(Arc<DiskState<B>>) -> F) {
        let mut answer = Box::pin(answer(self.state.clone()));
        // The task polls again, and is the one that is woken.
        let mut context = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(&mut context))) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => drop(self.runtime.spawn(answer)),
            // The dropped reply has answered the request; serving continues.
            Err(_) => tracing::error!("handler of a kernel request panicked; the request failed with EIO"),
        }
    }

    /// Waits for memory for data that the kernel has sent. This thread reads no further request
    /// meanwhile.
    fn wait_for_memory(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Errno> {
        let units = units(bytes);
        let memory = Arc::clone(&self.state.memory);
        match memory.clone().try_acquire_many_owned(units) {
            Ok(permit) => Ok(permit),
            Err(_) => self.runtime.block_on(memory.acquire_many_owned(units)).map_err(|_| Errno::IO),
        }
    }

    fn write(&self, to: WriteTarget, data: Bytes, memory: OwnedSemaphorePermit, reply: KernelReply) {
        self.task(move |disk| async move {
            let outcome = disk.file.write(to.offset, data, to.synchronous).await;
            drop(memory);
            match outcome {
                Ok(count) => reply.bytes(AnswerFields::count(count as u32).as_bytes()),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn flush(&self, handle: u64, reply: KernelReply) {
        self.task(move |disk| async move { disk.flush(handle, reply).await });
    }

    /// Accepts changes that change nothing.
    fn set_attributes(&self, changes: Changes, reply: KernelReply) {
        let attributes = self.state.attributes();
        let is_same = |value: Option<u32>, current: u32| value.is_none_or(|value| value == current);
        if changes.size.is_some_and(|size| size != attributes.size) {
            return reply.error(Errno::INVAL);
        }
        let has_mode = is_same(changes.mode.map(|mode| mode & 0o7777), attributes.mode & 0o7777);
        if !has_mode || !is_same(changes.uid, attributes.uid) || !is_same(changes.gid, attributes.gid) {
            return reply.error(Errno::PERM);
        }
        reply.bytes(AnswerFields::attr(&attributes, CACHE_TIME).as_bytes());
    }

    /// Discards or zeroes an extent, or accepts that its space is reserved.
    fn allocate(&self, offset: u64, length: u64, mode: u32, reply: KernelReply) {
        let size = self.state.file.properties().bytes;
        let is_within = offset.checked_add(length).is_some_and(|end| end <= size);
        let may_unmap = match mode {
            _ if !is_within && mode & KEEP_SIZE == 0 => return reply.error(Errno::NOSPC),
            0 | KEEP_SIZE => return reply.ok(),
            mode if mode & !KEEP_SIZE == PUNCH_HOLE => true,
            mode if mode & !KEEP_SIZE == ZERO_RANGE => false,
            _ => return reply.error(Errno::OPNOTSUPP),
        };
        self.task(move |disk| async move {
            match disk.file.zero(offset, length, may_unmap).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn seek(&self, offset: u64, whence: u32, reply: KernelReply) {
        let is_data = match whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return reply.error(Errno::INVAL),
        };
        self.task(move |disk| async move {
            match disk.file.seek(offset, is_data).await {
                Ok(Some(found)) => reply.bytes(AnswerFields::offset(found).as_bytes()),
                Ok(None) => reply.error(Errno::NXIO),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}

impl<B: BlockBackend> DiskState<B> {
    fn attributes(&self) -> Attributes {
        let properties = self.file.properties();
        Attributes {
            ino: ROOT,
            size: properties.bytes,
            blocks: properties.bytes / STAT_BLOCK,
            mode: S_IFREG | if properties.is_read_only { 0o400 } else { 0o600 },
            links: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            block_bytes: properties.block_preferred,
            ..Attributes::default()
        }
    }

    async fn read(&self, offset: u64, size: u32, reply: KernelReply) {
        let Ok(_memory) = self.memory.acquire_many(units(size as usize)).await else {
            return reply.error(Errno::IO);
        };
        // The reply is taken by the closure, or answers the error.
        let mut reply = Some(reply);
        let outcome = self
            .file
            .read(offset, u64::from(size), |bytes| {
                if let Some(reply) = reply.take() {
                    reply.bytes(bytes);
                }
            })
            .await;
        if let (Err(error), Some(reply)) = (outcome, reply) {
            reply.error(errno(&error));
        }
    }

    async fn flush(&self, handle: u64, reply: KernelReply) {
        let Some(cursor) = self.files.get(handle) else { return reply.error(Errno::BADF) };
        if self.file.properties().is_read_only {
            return reply.ok();
        }
        match self.file.flush(&cursor).await {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }
}

impl<B: BlockBackend> RequestHandler for DiskHandler<B> {
    fn handle(&self, header: RequestHeader, operation: Operation<'_>, reply: KernelReply) {
        if header.node != ROOT && !matches!(operation, Operation::StatFs | Operation::Destroy) {
            return reply.error(Errno::NOENT);
        }
        match operation {
            Operation::GetAttr => {
                let attributes = self.state.attributes();
                reply.bytes(AnswerFields::attr(&attributes, CACHE_TIME).as_bytes());
            }
            Operation::SetAttr(changes) => self.set_attributes(changes, reply),
            // O_TRUNC has no effect, as on a block device.
            Operation::Open { .. } => {
                let handle = self.state.files.insert(self.state.file.flush_cursor());
                let flags = DIRECT_IO | PARALLEL_WRITES;
                if !reply.naming(AnswerFields::default().open(handle, flags).as_bytes()) {
                    drop(self.state.files.remove(handle));
                }
            }
            Operation::Read { offset, size, .. } => {
                self.task(move |disk| async move { disk.read(offset, size, reply).await });
            }
            Operation::Write { handle, offset, data, kills, appends, synchronous } => {
                match self.wait_for_memory(data.len()) {
                    Ok(memory) => {
                        let mut buffer = self.state.file.buffers.take(data.len());
                        buffer.copy_from_slice(data);
                        let to =
                            WriteTarget { node: header.node, handle, offset, kills, appends, synchronous };
                        self.write(to, self.state.file.buffers.share(buffer), memory, reply);
                    }
                    Err(error) => reply.error(error),
                }
            }
            // A close writes nothing back, since there is no cache. A process that starts another
            // one closes its files in it, and must not wait for the disk then.
            Operation::Flush { .. } => reply.error(Errno::NOSYS),
            Operation::Fsync { handle } => self.flush(handle, reply),
            Operation::Release { handle, .. } => {
                drop(self.state.files.remove(handle));
                reply.ok();
            }
            Operation::Allocate { offset, length, mode, .. } => self.allocate(offset, length, mode, reply),
            Operation::Seek { offset, whence, .. } => self.seek(offset, whence, reply),
            Operation::StatFs => {
                let properties = self.state.file.properties();
                let block = properties.block_preferred;
                let blocks = properties.bytes / u64::from(block);
                reply.bytes(AnswerFields::file_system((blocks, 0), (1, 0), block).as_bytes());
            }
            Operation::Destroy => reply.ok(),
            Operation::Lookup { .. } => reply.error(Errno::NOTDIR),
            _ => reply.error(Errno::NOSYS),
        }
    }

    fn write_whole(
        &self,
        to: WriteTarget,
        memory: Vec<u8>,
        part: Range<usize>,
        reply: KernelReply,
    ) -> Vec<u8> {
        match self.wait_for_memory(memory.len()) {
            Ok(permit) => {
                let next = self.state.file.buffers.take(memory.len());
                let data = self.state.file.buffers.share(memory).slice(part);
                self.write(to, data, permit, reply);
                next
            }
            Err(error) => {
                reply.error(error);
                memory
            }
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }
}

/// Returns the units of memory of a request.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT).min(BYTES_MAX)).unwrap_or(u32::MAX)
}

/// Returns the error number for an error of the disk.
const fn errno(error: &NbdError) -> Errno {
    match error {
        NbdError::ReadOnly => Errno::ROFS,
        NbdError::Invalid(_) => Errno::INVAL,
        NbdError::NoSpace | NbdError::PastEnd => Errno::NOSPC,
        NbdError::Unsupported(_) => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}
