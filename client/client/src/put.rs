//! Storing a file: bytes of any source into objects, then one commit.
//!
//! Does: read ahead of the devices within the memory budget, write several commands to several devices at once,
//! flush, commit. Does not: choose devices; the layout says.
//! Contract: `Ok` means that all bytes are durable and visible under the name. After an error nothing is visible, and
//! the create was abandoned if the server could still be reached; it forgets an orphan by itself.
//! Truth: architecture.md §4 (files); t10-osd §1.10.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use sealstone_initiator::Operation;
use sealstone_mds_protocol::{
    Checksum, ChecksumKind, FILE_SIZE_MAX, FilePath, Handle, IntentId, Method, Request, Response, Stat,
};
use sealstone_osd::AttributeId;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;

use crate::budget::Lease;
use crate::checksum::Running;
use crate::open::{Core, OpenObjects};
use crate::tuning::SMALL_FILE_MAX;
use crate::{ClientError, Devices, Metadata};

/// The boot epoch as an attribute of user objects, a page of ours (docs/standards/device.md).
const BOOT_EPOCH: AttributeId = AttributeId::new(0xF003, 1);

/// How to store a file.
pub struct PutOptions {
    /// Its size if known: a source of another length is an error.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: u16,
    /// May it take the place of an older file?
    pub replace: bool,
    /// Security method for its objects; the server may raise it.
    pub method: Method,
    /// Last change of content to record, milliseconds since 1970; now if none.
    pub mtime_ms: Option<u64>,
    /// Checksum to compute and record; BLAKE3 is not computed by this client and counts as none.
    pub checksum: Option<ChecksumKind>,
    /// Told the number of bytes that devices have acknowledged so far.
    pub progress: Option<Box<dyn FnMut(u64) + Send>>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            size: None,
            mode: 0o644,
            replace: true,
            method: Method::AllData,
            mtime_ms: None,
            checksum: Some(ChecksumKind::Crc32c),
            progress: None,
        }
    }
}

impl core::fmt::Debug for PutOptions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PutOptions")
            .field("size", &self.size)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

pub(crate) async fn put<M: Metadata, D: Devices>(
    core: &Arc<Core<M, D>>,
    path: &FilePath,
    mut source: impl AsyncRead + Unpin + Send,
    mut options: PutOptions,
) -> Result<Stat, ClientError> {
    let (head, lease) = read_head(core, &mut source).await?;
    let ended = head.len() < SMALL_FILE_MAX;
    let known = if ended { Some(head.len() as u64) } else { options.size };
    let request = Request::Create {
        path: path.clone(),
        size_hint: known,
        mode: options.mode,
        replace: options.replace,
        method: options.method,
    };
    let Response::Created { file } = core.metadata.call(request).await? else {
        return Err(ClientError::Protocol("an answer to another request"));
    };
    let intent = file.intent;
    let stored = async {
        let handle = Handle::Intent(intent);
        let objects =
            OpenObjects::new(core.clone(), handle, options.method, file.layout, &file.grants).await?;
        let announced = options.size;
        let mut pump = Pump::new(Arc::new(objects), &mut options);
        pump.head(head, lease).await?;
        if !ended {
            pump.rest(&mut source).await?;
        }
        pump.finish(announced).await
    }
    .await;
    match stored {
        Ok((size, checksum)) => commit(core, path, intent, size, options.mtime_ms, checksum).await,
        Err(error) => {
            abandon(core, intent).await;
            Err(error)
        }
    }
}

/// Reads until [`SMALL_FILE_MAX`] bytes or the end.
async fn read_head<M: Metadata, D: Devices>(
    core: &Core<M, D>,
    source: &mut (impl AsyncRead + Unpin + Send),
) -> Result<(Vec<u8>, Lease), ClientError> {
    let lease = core.budget.take(SMALL_FILE_MAX).await;
    let mut head = core.buffers.take(SMALL_FILE_MAX);
    head.clear();
    head.reserve(SMALL_FILE_MAX);
    while head.len() < SMALL_FILE_MAX {
        let room = SMALL_FILE_MAX - head.len();
        if source.read_buf(&mut (&mut head).limit(room)).await.map_err(ClientError::Source)? == 0 {
            break;
        }
    }
    Ok((head, lease))
}

async fn commit<M: Metadata, D: Devices>(
    core: &Core<M, D>,
    path: &FilePath,
    intent: IntentId,
    size: u64,
    mtime_ms: Option<u64>,
    checksum: Option<Checksum>,
) -> Result<Stat, ClientError> {
    match core.metadata.call(Request::Commit { intent, size, mtime_ms, checksum }).await {
        Ok(Response::Stat { stat }) => Ok(stat),
        Ok(_) => Err(ClientError::Protocol("an answer to another request")),
        // Was the commit done? The intent is ours alone: if the name now leads to what only we could have put
        // there, it was.
        Err(ClientError::OutcomeUnknown { request }) => {
            match core.metadata.call(Request::Commit { intent, size, mtime_ms, checksum }).await {
                Ok(Response::Stat { stat }) => Ok(stat),
                Ok(_) => Err(ClientError::Protocol("an answer to another request")),
                Err(error) if gone(&error) => {
                    match core.metadata.call(Request::Stat { path: path.clone() }).await {
                        Ok(Response::Stat { stat }) if stat.size == size && stat.checksum == checksum => {
                            Ok(stat)
                        }
                        _ => Err(ClientError::OutcomeUnknown { request }),
                    }
                }
                Err(_) => Err(ClientError::OutcomeUnknown { request }),
            }
        }
        Err(error) => {
            abandon(core, intent).await;
            Err(error)
        }
    }
}

const fn gone(error: &ClientError) -> bool {
    use sealstone_mds_protocol::ErrorCode;
    matches!(error, ClientError::Refused(failure) if matches!(failure.code, ErrorCode::Stale | ErrorCode::NotFound))
}

async fn abandon<M: Metadata, D: Devices>(core: &Core<M, D>, intent: IntentId) {
    if let Err(error) = core.metadata.call(Request::Abandon { intent }).await {
        tracing::debug!(%error, "a create could not be abandoned; the server forgets it by itself");
    }
}

/// Bytes of one object that will be one WRITE.
struct Batch {
    buffer: Vec<u8>,
    lease: Lease,
    /// Where the first byte lies in the object.
    offset: u64,
}

/// Moves bytes from the source into the objects.
struct Pump<'a, M, D> {
    objects: Arc<OpenObjects<M, D>>,
    /// Per object: made yet? And how many commands are under way?
    lanes: Vec<Arc<Lane>>,
    /// Per object: what is being filled.
    batches: Vec<Option<Batch>>,
    writes: JoinSet<Result<u64, ClientError>>,
    position: u64,
    written: u64,
    checksum: Option<Running>,
    progress: Option<&'a mut Box<dyn FnMut(u64) + Send>>,
}

struct Lane {
    made: OnceCell<()>,
    /// The device's boot epoch before the second write went out. What one command made is all there or not at all, and
    /// a flush tells which; several commands are durable together only if one life of the device saw them all.
    life: OnceCell<u16>,
    depth: Semaphore,
}

impl<'a, M: Metadata, D: Devices> Pump<'a, M, D> {
    fn new(objects: Arc<OpenObjects<M, D>>, options: &'a mut PutOptions) -> Self {
        let width = objects.layout.width();
        let depth = objects.core.tuning.depth;
        Self {
            objects,
            lanes: (0..width)
                .map(|_| {
                    Arc::new(Lane {
                        made: OnceCell::new(),
                        life: OnceCell::new(),
                        depth: Semaphore::new(depth),
                    })
                })
                .collect(),
            batches: (0..width).map(|_| None).collect(),
            writes: JoinSet::new(),
            position: 0,
            written: 0,
            checksum: options.checksum.and_then(Running::begin),
            progress: options.progress.as_mut(),
        }
    }

    /// The bytes read before the file was created: sliced, not copied.
    async fn head(&mut self, head: Vec<u8>, lease: Lease) -> Result<(), ClientError> {
        if let Some(checksum) = &mut self.checksum {
            checksum.update(&head);
        }
        let mut head = self.objects.core.buffers.freeze(head, lease);
        let command_bytes = self.objects.core.tuning.command_bytes;
        let layout = self.objects.layout.clone();
        for extent in layout.extents(0..head.len() as u64) {
            let mut offset = extent.object_offset;
            let mut piece =
                head.split_to(usize::try_from(extent.length).unwrap_or(usize::MAX).min(head.len()));
            self.position += piece.len() as u64;
            while piece.has_remaining() {
                let data = piece.split_to(piece.len().min(command_bytes));
                let next = offset + data.len() as u64;
                self.write(extent.index, offset, data);
                offset = next;
            }
        }
        self.settle(false).await
    }

    /// Everything that the source still gives.
    async fn rest(&mut self, source: &mut (impl AsyncRead + Unpin + Send)) -> Result<(), ClientError> {
        loop {
            let Some(extent) = self.objects.layout.extents(self.position..FILE_SIZE_MAX).next() else {
                return Err(ClientError::TooLarge { max: FILE_SIZE_MAX });
            };
            self.ready_batch(extent.index, extent.object_offset).await?;
            let Self { batches, writes, .. } = self;
            let batch = batches
                .get_mut(extent.index)
                .and_then(Option::as_mut)
                .ok_or(ClientError::Protocol("an object outside the layout"))?;
            let filled = batch.buffer.len();
            let room = batch_room(batch, self.objects.core.tuning.command_bytes);
            let room = room.min(usize::try_from(extent.length).unwrap_or(usize::MAX));
            let mut space = (&mut batch.buffer).limit(room);
            let count = tokio::select! {
                biased;
                Some(done) = writes.join_next() => {
                    self.acknowledge(done)?;
                    continue;
                }
                count = source.read_buf(&mut space) => count.map_err(ClientError::Source)?,
            };
            if count == 0 {
                return Ok(());
            }
            if let Some(checksum) = &mut self.checksum {
                checksum.update(&batch.buffer[filled..]);
            }
            self.position += count as u64;
            if count == room && batch_room(batch, self.objects.core.tuning.command_bytes) == 0 {
                self.dispatch(extent.index);
            }
        }
    }

    /// Makes sure that object `index` has a batch with room at `offset`.
    async fn ready_batch(&mut self, index: usize, offset: u64) -> Result<(), ClientError> {
        if self.batches.get(index).is_some_and(Option::is_some) {
            return Ok(());
        }
        let size = self.objects.core.tuning.command_bytes;
        let budget = self.objects.core.budget.clone();
        let lease = match budget.try_take(size) {
            Some(lease) => lease,
            None => {
                // Whoever waits for memory must not sit on some: what is half full goes out as it is.
                (0..self.batches.len()).for_each(|index| self.dispatch(index));
                self.take_or_fail(&budget, size).await?
            }
        };
        let mut buffer = self.objects.core.buffers.take(size);
        buffer.clear();
        buffer.reserve(size);
        if let Some(slot) = self.batches.get_mut(index) {
            *slot = Some(Batch { buffer, lease, offset });
        }
        Ok(())
    }

    async fn take_or_fail(
        &mut self,
        budget: &crate::MemoryBudget,
        size: usize,
    ) -> Result<Lease, ClientError> {
        loop {
            tokio::select! {
                biased;
                Some(done) = self.writes.join_next() => self.acknowledge(done)?,
                lease = budget.take(size) => return Ok(lease),
            }
        }
    }

    /// Sends off the batch of object `index`, if there is one.
    fn dispatch(&mut self, index: usize) {
        let Some(Batch { buffer, lease, offset }) = self.batches.get_mut(index).and_then(Option::take) else {
            return;
        };
        if buffer.is_empty() {
            self.objects.core.buffers.give(buffer);
            return;
        }
        let data = self.objects.core.buffers.freeze(buffer, lease);
        self.write(index, offset, data);
    }

    fn write(&mut self, index: usize, offset: u64, data: Bytes) {
        let (objects, lane) = (self.objects.clone(), self.lanes[index].clone());
        self.writes.spawn(async move {
            let _turn = lane.depth.acquire().await;
            let length = data.len() as u64;
            let mut done = false;
            let object = objects.layout.objects()[index].object;
            // Whoever comes first makes the object, with its own bytes in it; the others wait for that.
            let make = async {
                let make = || Operation::CreateAndWrite { object, offset, data: data.clone() };
                objects.execute(index, make).await?;
                done = true;
                Ok::<(), ClientError>(())
            };
            lane.made.get_or_try_init(|| make).await?;
            if !done {
                lane.life.get_or_try_init(|| life(&objects, index)).await?;
                objects.execute(index, || Operation::Write { object, offset, data: data.clone() }).await?;
            }
            Ok(length)
        });
    }

    fn acknowledge(
        &mut self,
        done: Result<Result<u64, ClientError>, tokio::task::JoinError>,
    ) -> Result<(), ClientError> {
        self.written += joined(done)?;
        if let Some(progress) = &mut self.progress {
            progress(self.written);
        }
        Ok(())
    }

    /// Takes in what is done; all of it if `wait`.
    async fn settle(&mut self, wait: bool) -> Result<(), ClientError> {
        loop {
            let done = if wait { self.writes.join_next().await } else { self.writes.try_join_next() };
            match done {
                Some(done) => self.acknowledge(done)?,
                None => return Ok(()),
            }
        }
    }

    /// Waits for all writes, makes objects that got no bytes, flushes all.
    async fn finish(mut self, announced: Option<u64>) -> Result<(u64, Option<Checksum>), ClientError> {
        let size = self.position;
        if let Some(announced) = announced.filter(|announced| *announced != size) {
            return Err(ClientError::SourceLength { announced, actual: size });
        }
        (0..self.batches.len()).for_each(|index| self.dispatch(index));
        self.settle(true).await?;
        if self.written != size {
            return Err(ClientError::DataMissing { offset: self.written });
        }
        for index in 0..self.objects.layout.width() {
            let (objects, lane) = (self.objects.clone(), self.lanes[index].clone());
            self.writes.spawn(async move {
                let object = objects.layout.objects()[index].object;
                if !lane.made.initialized() {
                    objects.execute(index, || Operation::Create { object }).await?;
                }
                objects.execute(index, || Operation::Flush { object }).await?;
                match lane.life.get() {
                    Some(before) if life(&objects, index).await? != *before => {
                        Err(ClientError::Restarted(objects.layout.objects()[index].device))
                    }
                    _ => Ok(0),
                }
            });
        }
        self.settle(true).await?;
        Ok((size, self.checksum.take().map(Running::finish)))
    }
}

/// The boot epoch of the device that holds object `index`.
async fn life<M: Metadata, D: Devices>(
    objects: &OpenObjects<M, D>,
    index: usize,
) -> Result<u16, ClientError> {
    let object = objects.layout.objects()[index].object;
    let ask = || Operation::GetAttributes { object, ids: vec![BOOT_EPOCH], length_max: 64 };
    let answer = objects.execute(index, ask).await?;
    let value = answer.attributes.first().and_then(|(_, value)| value.as_deref()?.try_into().ok());
    value.map(u16::from_be_bytes).ok_or(ClientError::Protocol("a device that does not tell its boot epoch"))
}

/// Commands end at multiples of their size in the object, so that later reads of the same size meet whole ones.
fn batch_room(batch: &Batch, command_bytes: usize) -> usize {
    let misaligned = usize::try_from(batch.offset % command_bytes as u64).unwrap_or(0);
    command_bytes - misaligned - batch.buffer.len().min(command_bytes - misaligned)
}

/// A task that was cancelled or panicked has not done its work; the panic goes on here.
pub(crate) fn joined<T>(
    done: Result<Result<T, ClientError>, tokio::task::JoinError>,
) -> Result<T, ClientError> {
    match done {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ClientError::Protocol("the runtime is shutting down")),
        },
    }
}
