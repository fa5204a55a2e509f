//! The engine's side of the shared memory: it waits for calls, submits requests, and owns the heap.
//!
//! Does: submits and awaits requests; simple calls such as `read` and `write` are built on these.
//! Sequential streams are in `stream`.
//! Does not: check the answers of the device, which an engine has to trust.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

use sealstone_function_abi::layout::{self, COMPLETION_BYTES, SUBMISSION_BYTES, engine, host};
use sealstone_function_abi::limits::{
    ATTRIBUTE_BYTES_MAX, BUFFER_BYTES, LIST_ENTRIES_MAX, LOG_LINE_BYTES_MAX, REQUEST_BYTES_MAX, RING_SLOTS,
};
use sealstone_function_abi::{
    CallErrno, CompletionEntry, DescriptorError, DescriptorPart, HeapRange, OwnedCallDescriptor, RequestBody,
    RingCompletion, SubmissionEntry,
};

use crate::memory::SharedMapping;
use crate::read_ahead::HeapReadAhead;
use crate::stream::StreamTable;
use crate::wait::{self, AdaptivePoll};

/// Slots of the rings, as an index.
const SLOTS: usize = RING_SLOTS as usize;
/// Buffers at the start of the heap for calls that wait; streams have the others.
const TRANSFER_BUFFERS: usize = (REQUEST_BYTES_MAX / BUFFER_BYTES) as usize;

/// Bytes of one request of a read or write. A longer one is split, so that host and engine copy
/// different parts at the same time, and the parts stay in a cache.
pub(crate) const PART_BYTES: u32 = 512 << 10;
/// Requests that a read or write keeps in flight.
const PARTS_IN_FLIGHT: usize = 4;
const _: () = assert!(PARTS_IN_FLIGHT as u32 * PART_BYTES <= REQUEST_BYTES_MAX, "the transfer area");

/// Why an engine cannot use its rings.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The memory cannot be mapped.
    #[error("cannot map the ring: {0}")]
    Map(#[from] io::Error),
    /// The host has another layout of the memory.
    #[error("the ring of this device has another layout")]
    Layout,
}

/// A request in flight. It must be given to [`EngineRing::wait`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request must be waited for"]
pub struct RequestTicket {
    cookie: u64,
}

/// State of a slot of the engine's table of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestSlot {
    Free,
    Waiting(u64),
    Done(RingCompletion),
}

/// The engine's end of a ring.
#[derive(Debug)]
pub struct EngineRing {
    engine_region: SharedMapping,
    host_region: SharedMapping,
    heap_bytes: u64,
    poll: AdaptivePoll,
    generation: u32,
    submission_tail: u32,
    completion_head: u32,
    next_sequence: u64,
    slots: [RequestSlot; SLOTS],
    /// Whether each buffer of the heap is in use by a stream.
    buffers: Vec<bool>,
    pub(crate) streams: StreamTable,
    /// Bytes that are requested before the function reads them.
    pub(crate) ahead: Option<HeapReadAhead>,
    /// Object and end of the last read.
    pub(crate) last_read: Option<(u32, u64)>,
}

impl EngineRing {
    /// Maps the memory files of a host by their paths, for an engine without confinement.
    ///
    /// # Errors
    ///
    /// As [`Self::attach`].
    pub fn attach_paths(engine_file: &Path, host_file: &Path) -> Result<Self, AttachError> {
        let engine_file = File::options().read(true).write(true).open(engine_file)?;
        Self::attach([engine_file.into(), File::open(host_file)?.into()])
    }

    /// Maps the two descriptors that the engine received from `HostMemory::descriptors`, and closes
    /// them. A function must not map the memory again: a second mapping of the heap could be
    /// executable.
    ///
    /// # Errors
    ///
    /// The memory cannot be mapped, or has another layout.
    pub fn attach([engine_file, host_file]: [OwnedFd; 2]) -> Result<Self, AttachError> {
        let host_region = SharedMapping::new(host_file.as_fd(), host::REGION_BYTES, false)?;
        let header = host_region.copy_entry(host::HEADER);
        let heap_bytes = layout::parse_header(header).ok_or(AttachError::Layout)?;
        let region_bytes =
            usize::try_from(engine::region_bytes(heap_bytes)).map_err(|_| AttachError::Layout)?;
        let engine_region = SharedMapping::new(engine_file.as_fd(), region_bytes, true)?;
        let spin = Duration::from_nanos(host_region.load(host::SPIN_NS).into());
        Ok(Self {
            engine_region,
            host_region,
            heap_bytes,
            poll: AdaptivePoll::new(spin),
            generation: 0,
            submission_tail: 0,
            completion_head: 0,
            next_sequence: 0,
            slots: [RequestSlot::Free; SLOTS],
            buffers: vec![false; (heap_bytes / u64::from(BUFFER_BYTES)) as usize],
            streams: StreamTable::default(),
            ahead: None,
            last_read: None,
        })
    }

    /// Waits for the next call; `None` if the engine must exit.
    ///
    /// # Errors
    ///
    /// The host described the call in a way that this engine does not understand. The call has
    /// begun all the same, and ends with [`EngineRing::finish_call`].
    pub fn wait_call(&mut self) -> Result<Option<OwnedCallDescriptor>, DescriptorError> {
        let word = self.host_region.word(host::GENERATION);
        let is_sleeping = self.engine_region.word(engine::SLEEPING);
        // Calls are far apart, so this does not poll.
        while self.host_region.load(host::GENERATION) == self.generation {
            wait::announce(is_sleeping);
            if self.host_region.load(host::GENERATION) == self.generation {
                wait::sleep(word, self.generation, None);
            }
            wait::withdraw(is_sleeping);
        }
        if self.host_region.load(host::STOP) != 0 {
            return Ok(None);
        }
        self.generation = self.host_region.load(host::GENERATION);
        let mut header = [0; host::DESCRIPTOR_BYTES];
        self.host_region.copy_out(host::DESCRIPTOR, &mut header);
        OwnedCallDescriptor::read(header, |part, buffer| {
            let offset = match part {
                DescriptorPart::Method => host::METHOD,
                DescriptorPart::Arguments => host::ARGUMENTS,
                DescriptorPart::Objects => host::OBJECTS,
            };
            self.host_region.copy_out(offset, buffer);
        })
        .map(Some)
    }

    /// Ends the call with the status that the function returned. Streams are closed, and requests
    /// in flight are waited for.
    pub fn finish_call(&mut self, status: i64) {
        self.close_streams();
        while self.slots.iter().any(|slot| matches!(slot, RequestSlot::Waiting(_))) {
            self.wait_for_completion();
        }
        self.slots = [RequestSlot::Free; SLOTS];
        self.buffers.fill(false);
        (self.ahead, self.last_read) = (None, None);
        self.push(0, &RequestBody::Return { status });
    }

    /// Whether the host has cancelled the call.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.host_region.load(host::CANCELLED) == self.generation
    }

    /// Returns the time of the host in milliseconds since 1970, as of the last completion.
    #[must_use]
    pub fn clock_ms(&self) -> u64 {
        self.host_region.load_long(host::CLOCK_MS)
    }

    /// Sends a request without waiting for its completion.
    ///
    /// # Errors
    ///
    /// `EBUSY` if all slots are in flight.
    pub fn submit(&mut self, body: &RequestBody) -> Result<RequestTicket, CallErrno> {
        let slot = self.slots.iter().position(|slot| *slot == RequestSlot::Free).ok_or(CallErrno::Busy)?;
        self.note_change(body);
        let cookie = self.next_sequence * SLOTS as u64 + slot as u64;
        self.next_sequence += 1;
        self.slots[slot] = RequestSlot::Waiting(cookie);
        self.push(cookie, body);
        Ok(RequestTicket { cookie })
    }

    fn push(&mut self, cookie: u64, body: &RequestBody) {
        let entry = SubmissionEntry::new(self.generation, cookie, body);
        let bytes: [u8; SUBMISSION_BYTES] = zerocopy::transmute!(entry);
        let slot = self.submission_tail as usize % SLOTS;
        self.engine_region.store_entry(engine::SUBMISSIONS + slot * SUBMISSION_BYTES, &bytes);
        self.submission_tail = self.submission_tail.wrapping_add(1);
        self.engine_region.store(engine::SUBMISSION_TAIL, self.submission_tail);
        wait::wake_if_sleeping(
            self.engine_region.word(engine::SUBMISSION_TAIL),
            self.host_region.word(host::SLEEPING),
        );
    }

    /// Waits for the completion of a request.
    pub fn wait(&mut self, ticket: RequestTicket) -> RingCompletion {
        let slot = ticket.cookie as usize % SLOTS;
        loop {
            match self.slots[slot] {
                RequestSlot::Done(completion) => {
                    self.slots[slot] = RequestSlot::Free;
                    return completion;
                }
                RequestSlot::Waiting(_) => self.wait_for_completion(),
                // The call ended meanwhile, so the request has no outcome.
                RequestSlot::Free => {
                    return RingCompletion {
                        result: CallErrno::Cancelled.result(),
                        ..RingCompletion::default()
                    };
                }
            }
        }
    }

    /// Waits until the completion ring has entries, and stores them.
    fn wait_for_completion(&mut self) {
        let head = self.completion_head;
        let has_entry = || self.host_region.load(host::COMPLETION_TAIL) != head;
        if !self.poll.poll(Duration::MAX, has_entry) {
            let is_sleeping = self.engine_region.word(engine::SLEEPING);
            wait::announce(is_sleeping);
            if !has_entry() {
                wait::sleep(self.host_region.word(host::COMPLETION_TAIL), head, None);
            }
            wait::withdraw(is_sleeping);
        }
        let tail = self.host_region.load(host::COMPLETION_TAIL);
        while self.completion_head != tail {
            let offset = host::COMPLETIONS + self.completion_head as usize % SLOTS * COMPLETION_BYTES;
            let bytes: [u8; COMPLETION_BYTES] = self.host_region.copy_entry(offset);
            let entry: CompletionEntry = zerocopy::transmute!(bytes);
            let completion = entry.completion();
            let slot = &mut self.slots[completion.cookie as usize % SLOTS];
            if entry.generation() == self.generation && *slot == RequestSlot::Waiting(completion.cookie) {
                *slot = RequestSlot::Done(completion);
            }
            self.completion_head = self.completion_head.wrapping_add(1);
        }
    }

    /// Sends a request and waits; an error number becomes an error.
    fn call(&mut self, body: &RequestBody) -> Result<RingCompletion, CallErrno> {
        let ticket = self.submit(body)?;
        checked(self.wait(ticket))
    }

    /// Returns a range of the heap that no stream uses, for a call that waits.
    fn transfer_range(&self, bytes: usize) -> HeapRange {
        self.heap_range(0, bytes.min(REQUEST_BYTES_MAX as usize) as u32)
    }

    pub(crate) fn heap_range(&self, offset: u64, length: u32) -> HeapRange {
        // The transfer area and all buffers are within the smallest heap and within this one.
        HeapRange::new(offset, length, self.heap_bytes).expect("a range of the heap")
    }

    /// Takes a buffer of 1 MiB out of the heap.
    pub(crate) fn take_buffer(&mut self) -> Result<HeapRange, CallErrno> {
        let free = self.buffers.iter().skip(TRANSFER_BUFFERS).position(|in_use| !in_use);
        let index = TRANSFER_BUFFERS + free.ok_or(CallErrno::NoMemory)?;
        self.buffers[index] = true;
        Ok(self.heap_range(index as u64 * u64::from(BUFFER_BYTES), BUFFER_BYTES))
    }

    /// Returns a buffer to the heap.
    pub(crate) fn free_buffer(&mut self, buffer: HeapRange) {
        if let Some(in_use) = self.buffers.get_mut((buffer.offset() / u64::from(BUFFER_BYTES)) as usize) {
            *in_use = false;
        }
    }

    /// Returns the address of a heap range, for functions that work in the heap without a copy.
    #[must_use]
    pub fn heap_address(&self, range: HeapRange) -> Option<NonNull<u8>> {
        self.engine_region.address(engine::HEAP + range.offset() as usize)
    }

    /// Copies the first bytes of a heap range to memory that the heap is no part of.
    pub fn copy_from_heap(&self, range: HeapRange, into: &mut [u8]) {
        self.engine_region.copy_out(engine::HEAP + range.offset() as usize, into);
    }

    /// Copies bytes to the start of a heap range.
    pub fn copy_to_heap(&self, range: HeapRange, from: &[u8]) {
        self.engine_region.copy_in(engine::HEAP + range.offset() as usize, from);
    }

    /// Reads bytes of an object; returns fewer than requested only at its end.
    ///
    /// # Errors
    ///
    /// The error of the host for any part, or `EINVAL` if the range overflows.
    pub fn read(&mut self, object: u32, offset: u64, into: &mut [u8]) -> Result<usize, CallErrno> {
        check_range(offset, into.len())?;
        let (prepared, is_end) = self.read_prepared(object, offset, into)?;
        if is_end {
            return Ok(prepared);
        }
        if prepared < into.len() {
            self.stop_read_ahead();
        }
        let rest = &mut into[prepared..];
        let done = prepared + self.read_parts(object, offset + prepared as u64, rest)?;
        if done == into.len() {
            self.begin_read_ahead(object, offset, done);
        }
        Ok(done)
    }

    /// Reads bytes in parts, of which several are in flight.
    fn read_parts(&mut self, object: u32, offset: u64, into: &mut [u8]) -> Result<usize, CallErrno> {
        let mut in_flight: VecDeque<(RequestTicket, HeapRange)> = VecDeque::new();
        let (mut sent, mut done) = (0, 0);
        // The end of the object, or the first error; later parts do not count then.
        let mut ended = None;
        loop {
            while ended.is_none() && sent < into.len() && in_flight.len() < PARTS_IN_FLIGHT {
                let buffer = self.part_range(sent, into.len());
                match self.submit(&RequestBody::Read { object, offset: offset + sent as u64, buffer }) {
                    Ok(ticket) => in_flight.push_back((ticket, buffer)),
                    Err(error) if in_flight.is_empty() => return Err(error),
                    Err(_) => break,
                }
                sent += buffer.length() as usize;
            }
            let Some((ticket, buffer)) = in_flight.pop_front() else { break };
            let outcome = checked(self.wait(ticket));
            if ended.is_some() {
                continue;
            }
            match outcome {
                Ok(completion) => {
                    let count = (completion.result as usize).min(buffer.length() as usize);
                    self.copy_from_heap(buffer, &mut into[done..done + count]);
                    done += count;
                    if count < buffer.length() as usize {
                        ended = Some(Ok(()));
                    }
                }
                Err(error) => ended = Some(Err(error)),
            }
        }
        ended.unwrap_or(Ok(())).map(|()| done)
    }

    /// Writes all bytes at an offset.
    ///
    /// # Errors
    ///
    /// The first error of the host, after which any parts may be written, or `EINVAL` if the range
    /// overflows.
    pub fn write(&mut self, object: u32, offset: u64, from: &[u8]) -> Result<usize, CallErrno> {
        check_range(offset, from.len())?;
        let mut in_flight: VecDeque<(RequestTicket, u32)> = VecDeque::new();
        let (mut sent, mut failed) = (0, None);
        loop {
            while failed.is_none() && sent < from.len() && in_flight.len() < PARTS_IN_FLIGHT {
                let data = self.part_range(sent, from.len());
                let end = sent + data.length() as usize;
                self.copy_to_heap(data, &from[sent..end]);
                match self.submit(&RequestBody::Write { object, offset: offset + sent as u64, data }) {
                    Ok(ticket) => in_flight.push_back((ticket, data.length())),
                    Err(error) if in_flight.is_empty() => return Err(error),
                    Err(_) => break,
                }
                sent = end;
            }
            let Some((ticket, length)) = in_flight.pop_front() else { break };
            let error = match checked(self.wait(ticket)) {
                Ok(completion) if completion.result == i64::from(length) => continue,
                Ok(_) => CallErrno::InputOutput,
                Err(error) => error,
            };
            failed.get_or_insert(error);
        }
        failed.map_or(Ok(from.len()), Err)
    }

    /// Returns the range of the heap for the part of a transfer that begins at `start`. Parts that
    /// are in flight at once have different ranges.
    fn part_range(&self, start: usize, end: usize) -> HeapRange {
        let place = start / PART_BYTES as usize % PARTS_IN_FLIGHT;
        let length = (end - start).min(PART_BYTES as usize) as u32;
        self.heap_range(place as u64 * u64::from(PART_BYTES), length)
    }

    /// Appends bytes in one step; returns their offset.
    ///
    /// # Errors
    ///
    /// The error of the host, or `EFBIG` above 4 MiB.
    pub fn append(&mut self, object: u32, from: &[u8]) -> Result<u64, CallErrno> {
        let data = self.copied(from, REQUEST_BYTES_MAX)?;
        self.call(&RequestBody::Append { object, data }).map(|completion| completion.value)
    }

    /// Copies bytes to the transfer area if they are within a limit.
    fn copied(&self, from: &[u8], limit: u32) -> Result<HeapRange, CallErrno> {
        if from.len() > limit as usize {
            return Err(CallErrno::TooLarge);
        }
        let data = self.transfer_range(from.len());
        self.copy_to_heap(data, from);
        Ok(data)
    }

    /// Removes a range of an object; the bytes after it move down.
    ///
    /// # Errors
    ///
    /// The error of the host, or `EINVAL` if the range overflows.
    pub fn punch(&mut self, object: u32, offset: u64, length: u64) -> Result<(), CallErrno> {
        offset.checked_add(length).ok_or(CallErrno::Invalid)?;
        self.call(&RequestBody::Punch { object, offset, length }).map(drop)
    }

    /// Writes zeros to a range of an object, which is extended if it ends before.
    ///
    /// # Errors
    ///
    /// The error of the host, or `EINVAL` if the range overflows.
    pub fn clear(&mut self, object: u32, offset: u64, length: u64) -> Result<(), CallErrno> {
        offset.checked_add(length).ok_or(CallErrno::Invalid)?;
        self.call(&RequestBody::Clear { object, offset, length }).map(drop)
    }

    /// Returns the length of an object.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn length(&mut self, object: u32) -> Result<u64, CallErrno> {
        self.call(&RequestBody::Length { object }).map(|completion| completion.value)
    }

    /// Reads an attribute; returns the length of its value, of which the first bytes are stored.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn get_attribute(
        &mut self,
        object: u32,
        page: u32,
        number: u32,
        into: &mut [u8],
    ) -> Result<usize, CallErrno> {
        let buffer = self.transfer_range(into.len().min(ATTRIBUTE_BYTES_MAX as usize));
        let completion = self.call(&RequestBody::GetAttribute { object, page, number, buffer })?;
        let length = completion.result as usize;
        let stored = length.min(buffer.length() as usize);
        self.copy_from_heap(buffer, &mut into[..stored]);
        Ok(length)
    }

    /// Sets an attribute; no bytes remove it.
    ///
    /// # Errors
    ///
    /// The error of the host, or `EFBIG` for a value that is too long.
    pub fn set_attribute(
        &mut self,
        object: u32,
        page: u32,
        number: u32,
        from: &[u8],
    ) -> Result<(), CallErrno> {
        let data = self.copied(from, ATTRIBUTE_BYTES_MAX)?;
        self.call(&RequestBody::SetAttribute { object, page, number, data }).map(drop)
    }

    /// Lists object numbers above `after`; returns how many were stored.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn list(&mut self, object: u32, after: u64, into: &mut [u64]) -> Result<usize, CallErrno> {
        let buffer = self.transfer_range(into.len().min(LIST_ENTRIES_MAX as usize) * 8);
        let completion = self.call(&RequestBody::List { object, after, buffer })?;
        let count = (completion.result as usize).min(buffer.length() as usize / 8);
        let mut bytes = vec![0; count * 8];
        self.copy_from_heap(buffer, &mut bytes);
        for (number, bytes) in into.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        Ok(count)
    }

    /// Creates an object in a partition; returns its handle and its number.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn create(&mut self, partition: u32) -> Result<(u32, u64), CallErrno> {
        self.create_by(&RequestBody::Create { object: partition })
    }

    /// Creates a collection; returns its handle and its number.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn create_collection(&mut self, collection: u32) -> Result<(u32, u64), CallErrno> {
        self.create_by(&RequestBody::CreateCollection { collection })
    }

    fn create_by(&mut self, body: &RequestBody) -> Result<(u32, u64), CallErrno> {
        let completion = self.call(body)?;
        let handle = u32::try_from(completion.result).map_err(|_| CallErrno::InputOutput)?;
        Ok((handle, completion.value))
    }

    /// Removes an object.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn remove(&mut self, object: u32) -> Result<(), CallErrno> {
        self.call(&RequestBody::Remove { object }).map(drop)
    }

    /// Removes a collection. With `force` 1 its memberships end first; with 0 it must be empty.
    ///
    /// # Errors
    ///
    /// The error of the host, or `EINVAL` for another value of `force`.
    pub fn remove_collection(&mut self, collection: u32, force: u32) -> Result<(), CallErrno> {
        let force = match force {
            0 => false,
            1 => true,
            _ => return Err(CallErrno::Invalid),
        };
        self.call(&RequestBody::RemoveCollection { collection, force }).map(drop)
    }

    /// Makes an object a member of a collection.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn add_member(&mut self, collection: u32, object: u32) -> Result<(), CallErrno> {
        self.call(&RequestBody::AddMember { collection, object }).map(drop)
    }

    /// Ends the membership of an object in a collection.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn remove_member(&mut self, collection: u32, object: u32) -> Result<(), CallErrno> {
        self.call(&RequestBody::RemoveMember { collection, object }).map(drop)
    }

    /// Whether an object is a member of a collection.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn is_member(&mut self, collection: u32, object: u32) -> Result<bool, CallErrno> {
        let completion = self.call(&RequestBody::IsMember { collection, object })?;
        Ok(completion.result != 0)
    }

    /// Makes the written bytes of an object durable.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn flush(&mut self, object: u32) -> Result<(), CallErrno> {
        self.call(&RequestBody::Flush { object }).map(drop)
    }

    /// Appends bytes to the result.
    ///
    /// # Errors
    ///
    /// The error of the host; a part may have been appended.
    pub fn result(&mut self, from: &[u8]) -> Result<(), CallErrno> {
        for part in from.chunks(REQUEST_BYTES_MAX as usize) {
            let data = self.transfer_range(part.len());
            self.copy_to_heap(data, part);
            self.call(&RequestBody::Result { data })?;
        }
        Ok(())
    }

    /// Writes a line to the log; bytes beyond its limit are dropped.
    ///
    /// # Errors
    ///
    /// The error of the host, or `EINVAL` for an unknown level.
    pub fn log(&mut self, level: u32, text: &[u8]) -> Result<(), CallErrno> {
        let level = match level {
            1..=3 => level as u8,
            _ => return Err(CallErrno::Invalid),
        };
        let data = self.copied(&text[..text.len().min(LOG_LINE_BYTES_MAX as usize)], LOG_LINE_BYTES_MAX)?;
        self.call(&RequestBody::Log { level, data }).map(drop)
    }

    /// Reports progress.
    ///
    /// # Errors
    ///
    /// The error of the host.
    pub fn progress(&mut self, done: u64, total: u64) -> Result<(), CallErrno> {
        self.call(&RequestBody::Progress { done, total }).map(drop)
    }
}

fn check_range(offset: u64, length: usize) -> Result<(), CallErrno> {
    offset.checked_add(length as u64).map(drop).ok_or(CallErrno::Invalid)
}

/// Converts an error number of a completion to an error.
pub(crate) fn checked(completion: RingCompletion) -> Result<RingCompletion, CallErrno> {
    if completion.result < 0 {
        Err(CallErrno::from_result(completion.result).unwrap_or(CallErrno::InputOutput))
    } else {
        Ok(completion)
    }
}
