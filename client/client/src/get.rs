//! Reading a file: bytes of its objects, in order, into any sink.
//!
//! Does: reads ahead of the sink within the memory budget, several objects at once; orders stripes;
//! checks lengths and the recorded checksum; continues in the new objects when the file is
//! migrated.
//! Does not: follow a file that is replaced meanwhile; it reads what it opened.
//! Contract: the sink gets a prefix of the file, and all of it on `Ok`. The checksum is known only
//! at the end: a caller that must not use wrong bytes waits for `Ok`.

use core::ops::Range;
use std::collections::VecDeque;
use std::io::SeekFrom;
use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{
    Access, Checksum, FILE_SIZE_MAX, FilePath, Layout, Method, OpenHandle, OpenedFile, Request, Response,
    Stat,
};
use tokio::io::{AsyncSeekExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::budget::MemoryPermit;
use crate::checksum::RunningChecksum;
use crate::map::{FileMap, MAP_EXTENTS, MapSource, ObjectMap};
use crate::open::{ClientCore, MissingData, OpenObjects, is_stale};
use crate::put::{HOLE_MIN, joined};
use crate::{ClientError, Devices, Metadata};

/// Bytes of a file whose holes are determined at once, so that the first bytes of a large file
/// arrive early.
const MAP_WINDOW_BYTES: u64 = 1 << 30;
/// Maximum groups of commands in read-ahead.
const READ_AHEAD_GROUPS: usize = 4;

/// How to read a file.
pub struct GetOptions {
    /// Security method; the server may require a stronger one.
    pub method: Method,
    /// The bytes to read, limited to the end of the file; all if none.
    pub range: Option<Range<u64>>,
    /// Checks the recorded checksum, if the whole file is read and this client supports its kind.
    pub verify: bool,
    /// Called with the bytes written to the sink so far, and their total.
    pub progress: Option<Box<dyn FnMut(u64, u64) + Send>>,
}

impl Default for GetOptions {
    fn default() -> Self {
        Self { method: Method::AllData, range: None, verify: true, progress: None }
    }
}

impl core::fmt::Debug for GetOptions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GetOptions")
            .field("method", &self.method)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// Opens a file for reading or for changes in place.
pub(crate) async fn open<M: Metadata, D: Devices>(
    core: &Arc<ClientCore<M, D>>,
    path: &FilePath,
    access: Access,
    method: Method,
) -> Result<(Stat, Arc<OpenObjects<M, D>>), ClientError> {
    let request = Request::Open { path: path.clone(), access, method };
    let Response::Opened { file: OpenedFile { stat, layout, grants, sparse } } =
        core.metadata.call(request).await?
    else {
        return Err(ClientError::OTHER_ANSWER);
    };
    let handle = OpenHandle::File { node: stat.node(), access };
    let objects = match layout {
        Some(layout) => {
            let objects = OpenObjects::new(core.clone(), handle, method, layout, &grants).await?;
            objects.of_file(stat.generation, if sparse { MissingData::Zeros } else { MissingData::Lost })
        }
        None => OpenObjects::empty(core.clone()),
    };
    Ok((stat, Arc::new(objects)))
}

pub(crate) async fn get<M: Metadata, D: Devices>(
    core: &Arc<ClientCore<M, D>>,
    path: &FilePath,
    sink: impl AsyncWrite + Unpin + Send,
    mut options: GetOptions,
) -> Result<Stat, ClientError> {
    let (stat, objects) = open(core, path, Access::Read, options.method).await?;
    let whole = 0..stat.size;
    let range = options.range.clone().map_or(whole.clone(), |range| range.start..range.end.min(stat.size));
    let mut passing = Passing::new(&stat, &range, &mut options);
    pour(&objects, range, sink, |piece| passing.piece(piece)).await?;
    passing.finish()?;
    Ok(stat)
}

/// Reads a whole file into a local regular file, preserving its holes.
pub(crate) async fn get_file<M: Metadata, D: Devices>(
    core: &Arc<ClientCore<M, D>>,
    path: &FilePath,
    file: &mut tokio::fs::File,
    mut options: GetOptions,
) -> Result<Stat, ClientError> {
    let (stat, objects) = open(core, path, Access::Read, options.method).await?;
    let mut passing = Passing::new(&stat, &(0..stat.size), &mut options);
    let mapped = |objects| FileMap::new(Mapped { objects, size: stat.size });
    let (mut objects, mut at) = (objects, 0);
    let mut map = mapped(objects.clone());
    while at < stat.size {
        let window = at..stat.size.min(at.saturating_add(MAP_WINDOW_BYTES));
        // A file smaller than the shortest hole needs no map.
        let found = match stat.size < HOLE_MIN {
            true => Ok(window),
            false => next_data(&mut map, window, stat.size).await,
        };
        let latest = objects.latest();
        let data = match found {
            // The same content is in other objects now.
            Err(error) if is_stale(&error) && !Arc::ptr_eq(&latest, &objects) => {
                objects = latest;
                map = mapped(objects.clone());
                continue;
            }
            found => found?,
        };
        if data.start > at {
            let hole = data.start - at;
            passing.hole(hole);
            let ahead = i64::try_from(hole).map_err(|_| ClientError::TooLarge { max: FILE_SIZE_MAX })?;
            file.seek(SeekFrom::Current(ahead)).await.map_err(ClientError::Sink)?;
        }
        at = data.end;
        if !data.is_empty() {
            pour(&objects, data, &mut *file, |piece| passing.piece(piece)).await?;
        }
    }
    passing.finish()?;
    file.set_len(stat.size).await.map_err(ClientError::Sink)?;
    Ok(stat)
}

/// Returns the first data of a window; if all of it is a hole, the empty range where the hole ends,
/// at `size` at most.
async fn next_data<S: MapSource>(
    map: &mut FileMap<S>,
    window: Range<u64>,
    size: u64,
) -> Result<Range<u64>, ClientError> {
    if let Some(data) = map.next_extent(window.clone(), HOLE_MIN).await? {
        return Ok(data);
    }
    // The hole may be as long as the file, so it is not walked window by window.
    let data = map.first_data(window.end..size).await?.unwrap_or(size);
    Ok(data..data)
}

/// Checksum and progress of the bytes that were read.
struct Passing<'a> {
    expected: Option<Checksum>,
    running: Option<RunningChecksum>,
    progress: Option<&'a mut Box<dyn FnMut(u64, u64) + Send>>,
    done: u64,
    total: u64,
}

impl<'a> Passing<'a> {
    fn new(stat: &Stat, range: &Range<u64>, options: &'a mut GetOptions) -> Self {
        let expected = stat.checksum.filter(|_| options.verify && *range == (0..stat.size));
        let running = expected.and_then(|checksum| RunningChecksum::begin(checksum.kind));
        let total = range.end.saturating_sub(range.start);
        Self { expected, running, progress: options.progress.as_mut(), done: 0, total }
    }

    fn piece(&mut self, piece: &[u8]) {
        if let Some(running) = &mut self.running {
            running.update(piece);
        }
        self.passed(piece.len() as u64);
    }

    fn hole(&mut self, length: u64) {
        if let Some(running) = &mut self.running {
            running.zeros(length);
        }
        self.passed(length);
    }

    fn passed(&mut self, bytes: u64) {
        self.done += bytes;
        if let Some(progress) = &mut self.progress {
            progress(self.done, self.total);
        }
    }

    fn finish(self) -> Result<(), ClientError> {
        if self.done != self.total {
            return Err(ClientError::DataMissing { offset: self.done });
        }
        if self.running.is_some_and(|running| Some(running.finish()) != self.expected) {
            return Err(ClientError::ChecksumMismatch);
        }
        Ok(())
    }
}

/// The objects of an open file, as a source of maps.
struct Mapped<M, D> {
    objects: Arc<OpenObjects<M, D>>,
    size: u64,
}

impl<M: Metadata, D: Devices> MapSource for Mapped<M, D> {
    fn layout(&self) -> &Layout {
        &self.objects.layout
    }

    async fn map(&self, index: usize, from: u64) -> Result<ObjectMap, ClientError> {
        let objects = &self.objects;
        if objects.missing == MissingData::All {
            return ObjectMap::parse(from, &[]);
        }
        let ask = |object| Operation::ReadMap { object, from, extents_max: MAP_EXTENTS, compare: false };
        let stretches = match objects.execute(index, ask).await {
            Ok(completion) => completion.map,
            Err(ClientError::Device { error: OsdError::NotFound, .. })
                if objects.missing == MissingData::Zeros =>
            {
                objects.check_current().await?;
                Vec::new()
            }
            // The offset is beyond the end of the object.
            Err(ClientError::Device { error: OsdError::InvalidField { .. }, .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let map = ObjectMap::parse(from, &stretches)?;
        if map.is_ended()
            && objects.missing == MissingData::Lost
            && from < objects.layout.object_length(index, self.size)
        {
            objects.check_current().await?;
            let offset = objects.layout.file_offset(index, from).unwrap_or(from);
            return Err(ClientError::DataMissing { offset });
        }
        Ok(map)
    }
}

/// Writes a range to `sink` and passes each piece to `each`. Returns the number of bytes, fewer
/// only if data ends.
pub(crate) async fn pour<M: Metadata, D: Devices>(
    objects: &Arc<OpenObjects<M, D>>,
    range: Range<u64>,
    mut sink: impl AsyncWrite + Unpin + Send,
    mut each: impl FnMut(&[u8]) + Send,
) -> Result<u64, ClientError> {
    let mut ahead = ReadAhead::new(objects.clone(), range);
    let mut done = 0;
    while let Some(mut group) = ahead.next().await? {
        for piece in group.pieces() {
            sink.write_all(piece).await.map_err(ClientError::Sink)?;
            each(piece);
            done += piece.len() as u64;
        }
        group.give_back(&objects.core);
    }
    sink.flush().await.map_err(ClientError::Sink)?;
    Ok(done)
}

/// Fills `into` from `offset` on; returns the bytes before the end of the file, at most
/// `into.len()`.
pub(crate) async fn read_at<M: Metadata, D: Devices>(
    objects: &Arc<OpenObjects<M, D>>,
    size: u64,
    offset: u64,
    into: &mut [u8],
) -> Result<usize, ClientError> {
    let end = offset.saturating_add(into.len() as u64).min(size);
    let mut ahead = ReadAhead::new(objects.clone(), offset..end);
    let mut filled = 0;
    while let Some(mut group) = ahead.next().await? {
        for piece in group.pieces() {
            let Some(target) = into.get_mut(filled..filled + piece.len()) else {
                return Err(ClientError::Protocol("more bytes than were asked for"));
            };
            target.copy_from_slice(piece);
            filled += piece.len();
        }
        group.give_back(&objects.core);
    }
    Ok(filled)
}

/// Reads groups of commands ahead of the consumer.
struct ReadAhead<M, D> {
    objects: Arc<OpenObjects<M, D>>,
    groups: VecDeque<Reading>,
    /// The range for which no command was sent yet.
    rest: Range<u64>,
    group_bytes: u64,
}

/// A range of the file whose commands are in flight.
struct Reading {
    range: Range<u64>,
    reads: JoinSet<Result<Part, ClientError>>,
    lease: MemoryPermit,
}

impl Reading {
    async fn parts(&mut self) -> Result<Vec<Part>, ClientError> {
        let mut parts = Vec::with_capacity(self.reads.len());
        while let Some(part) = self.reads.join_next().await {
            parts.push(joined(part)?);
        }
        // Commands complete in any order; pieces are looked up by object.
        parts.sort_by_key(|part| (part.index, part.offset));
        Ok(parts)
    }
}

/// The bytes of a group in one object.
struct Part {
    index: usize,
    /// Offset of the first byte in the object.
    offset: u64,
    data: Vec<u8>,
}

/// A range of the file that was read completely.
struct ReadStripe {
    range: Range<u64>,
    layout: Layout,
    parts: Vec<Part>,
    _lease: MemoryPermit,
}

impl<M: Metadata, D: Devices> ReadAhead<M, D> {
    fn new(objects: Arc<OpenObjects<M, D>>, range: Range<u64>) -> Self {
        let group_bytes = Self::group_bytes(&objects);
        Self { objects, groups: VecDeque::new(), rest: range, group_bytes }
    }

    fn group_bytes(objects: &OpenObjects<M, D>) -> u64 {
        let tuning = objects.core.tuning;
        let wanted = tuning.command_bytes.saturating_mul(objects.layout.width());
        // A quarter: two groups of each of two transfers must fit, or they would alternate.
        wanted.min(tuning.memory_bytes / 4).max(1) as u64
    }

    async fn next(&mut self) -> Result<Option<ReadStripe>, ClientError> {
        loop {
            self.fill().await;
            let Some(mut reading) = self.groups.pop_front() else { return Ok(None) };
            match reading.parts().await {
                Ok(parts) => {
                    let layout = self.objects.layout.clone();
                    let group = ReadStripe { range: reading.range, layout, parts, _lease: reading.lease };
                    self.fill().await;
                    return Ok(Some(group));
                }
                Err(error) => {
                    let start = reading.range.start;
                    drop(reading);
                    self.follow(start, error)?;
                }
            }
        }
    }

    /// Continues in the objects to which the file was migrated.
    fn follow(&mut self, start: u64, error: ClientError) -> Result<(), ClientError> {
        let latest = self.objects.latest();
        if !is_stale(&error) || Arc::ptr_eq(&latest, &self.objects) {
            return Err(error);
        }
        // Reads in flight are repeated, so their memory is released first.
        self.groups.clear();
        self.rest.start = start;
        self.group_bytes = Self::group_bytes(&latest);
        self.objects = latest;
        Ok(())
    }

    /// Sends commands as far ahead as memory allows; waits for memory only if none is in flight.
    async fn fill(&mut self) {
        let budget = self.objects.core.budget.clone();
        while self.rest.start < self.rest.end && self.groups.len() < READ_AHEAD_GROUPS {
            // Groups end at multiples of their size, so that the commands of a sequential reader
            // are aligned.
            let aligned =
                (self.rest.start / self.group_bytes).saturating_add(1).saturating_mul(self.group_bytes);
            let range = self.rest.start..self.rest.end.min(aligned);
            let bytes = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            let lease = match budget.try_take(bytes) {
                Some(lease) => lease,
                None if self.groups.is_empty() => budget.take(bytes).await,
                None => return,
            };
            self.rest.start = range.end;
            let reads = self.send(&range);
            self.groups.push_back(Reading { range, reads, lease });
        }
    }

    fn send(&self, range: &Range<u64>) -> JoinSet<Result<Part, ClientError>> {
        let mut reads = JoinSet::new();
        let command_bytes = self.objects.core.tuning.command_bytes as u64;
        for index in 0..self.objects.layout.width() {
            let Some(Range { mut start, end }) = self.objects.layout.object_range(index, range.clone())
            else {
                continue;
            };
            while start < end {
                let aligned = (start / command_bytes).saturating_add(1).saturating_mul(command_bytes);
                let stop = end.min(aligned);
                let objects = self.objects.clone();
                reads.spawn(async move { read_part(&objects, index, start..stop).await });
                start = stop;
            }
        }
        reads
    }
}

async fn read_part<M: Metadata, D: Devices>(
    objects: &OpenObjects<M, D>,
    index: usize,
    range: Range<u64>,
) -> Result<Part, ClientError> {
    let missing = objects.missing;
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let read = |object| {
        let buffer = objects.core.buffers.take(length);
        Operation::Read { object, offset: range.start, length, buffer }
    };
    if missing == MissingData::All {
        return Ok(Part { index, offset: range.start, data: vec![0; length] });
    }
    match objects.execute(index, read).await {
        Ok(completion) if completion.data.len() == length => {
            return Ok(Part { index, offset: range.start, data: completion.data });
        }
        Ok(completion) if missing == MissingData::Zeros => {
            let mut data = completion.data;
            data.resize(length, 0);
            return Ok(Part { index, offset: range.start, data });
        }
        Err(error) if missing == MissingData::Zeros && OpenObjects::<M, D>::is_short(&error) => {
            // It was never written, or the file is being removed; the latter returns `Stale`.
            objects.check_current().await?;
            let mut data = match error {
                ClientError::Device { error: OsdError::ReadPastEnd { data }, .. } => data,
                _ => Vec::new(),
            };
            data.resize(length, 0);
            return Ok(Part { index, offset: range.start, data });
        }
        Err(error) if !OpenObjects::<M, D>::is_short(&error) => return Err(error),
        Ok(_) | Err(_) => {}
    }
    // Objects are removed when their file is replaced or removed; that is reported instead of a
    // loss.
    objects.check_current().await?;
    let offset = objects.layout.file_offset(index, range.start).unwrap_or(range.start);
    Err(ClientError::DataMissing { offset })
}

impl ReadStripe {
    /// Returns the bytes in file order. A piece ends where a stripe unit or a command ends.
    fn pieces(&mut self) -> impl Iterator<Item = &[u8]> {
        let Self { range, layout, parts, .. } = self;
        let parts: &[Part] = parts;
        layout.extents(range.clone()).flat_map(move |extent| {
            let (mut at, end) = (extent.object_offset, extent.object_offset + extent.length);
            core::iter::from_fn(move || {
                if at >= end {
                    return None;
                }
                let piece = find(parts, extent.index, at..end)?;
                at += piece.len() as u64;
                Some(piece)
            })
        })
    }

    fn give_back<M, D>(self, core: &ClientCore<M, D>) {
        self.parts.into_iter().for_each(|part| core.buffers.give(part.data));
    }
}

/// Returns the bytes at the start of `wanted`, as far as one command read them.
fn find(parts: &[Part], index: usize, wanted: Range<u64>) -> Option<&[u8]> {
    let after = parts.partition_point(|part| (part.index, part.offset) <= (index, wanted.start));
    let part = parts.get(after.checked_sub(1)?).filter(|part| part.index == index)?;
    let from = usize::try_from(wanted.start - part.offset).ok()?;
    let length = usize::try_from(wanted.end - wanted.start).ok()?;
    let rest = part.data.get(from..)?;
    let piece = rest.get(..length).unwrap_or(rest);
    (!piece.is_empty()).then_some(piece)
}
