//! Reads of an object that continue one another: the next bytes are requested before a function
//! asks for them.
//!
//! Does: keep the bytes of the next read requested while a function works, up to 4 MiB, so that the
//! host copies meanwhile.
//! Does not: read ahead for short or scattered reads, or while a stream is open.
//! Contract: bytes that were requested before a change by the same function are never returned to
//! it. A change by another client can be missed by a read up to 4 MiB later, as in a stream.

use std::collections::VecDeque;

use sealstone_function_abi::limits::BUFFER_BYTES;
use sealstone_function_abi::{CallErrno, HeapRange, RequestBody};

use crate::engine::{EngineRing, PART_BYTES, RequestTicket, checked};

/// Buffers of the heap for bytes that are read ahead, and the parts in each.
const BUFFERS_MAX: usize = 4;
const PARTS_PER_BUFFER: u32 = BUFFER_BYTES / PART_BYTES;
/// Shortest read that is followed by reading ahead.
const READ_BYTES_MIN: usize = PART_BYTES as usize;

/// State of a part.
#[derive(Debug)]
enum AheadPart {
    Requested(RequestTicket),
    /// So many bytes arrived.
    Arrived(usize),
}

/// Parts that are requested ahead of a function.
#[derive(Debug)]
pub(crate) struct HeapReadAhead {
    object: u32,
    /// Offset of the first byte that the function has not received.
    next: u64,
    /// Offset of the first byte that is not requested.
    requested: u64,
    /// Bytes of the first part that the function has received.
    consumed: usize,
    parts: VecDeque<(AheadPart, HeapRange)>,
    /// Parts of the buffers that are not requested.
    free: Vec<HeapRange>,
    buffers: Vec<HeapRange>,
    /// Whether the function has changed something since.
    is_stale: bool,
}

impl EngineRing {
    /// Copies bytes that were read ahead; returns how many, and whether the object ends there.
    ///
    /// # Errors
    ///
    /// The error of the host for a part.
    pub(crate) fn read_prepared(
        &mut self,
        object: u32,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(usize, bool), CallErrno> {
        let Some(mut ahead) = self.ahead.take() else { return Ok((0, false)) };
        if ahead.is_stale || (ahead.object, ahead.next) != (object, offset) {
            self.end_read_ahead(ahead);
            return Ok((0, false));
        }
        let mut done = 0;
        while done < into.len()
            && let Some((part, range)) = ahead.parts.pop_front()
        {
            let count = match part {
                AheadPart::Arrived(count) => count,
                AheadPart::Requested(ticket) => match checked(self.wait(ticket)) {
                    Ok(completion) => (completion.result as usize).min(range.length() as usize),
                    Err(error) => {
                        self.end_read_ahead(ahead);
                        return Err(error);
                    }
                },
            };
            let length = (count - ahead.consumed).min(into.len() - done);
            let from = self.heap_range(range.offset() + ahead.consumed as u64, length as u32);
            self.copy_from_heap(from, &mut into[done..done + length]);
            (done, ahead.consumed) = (done + length, ahead.consumed + length);
            if ahead.consumed < count {
                ahead.parts.push_front((AheadPart::Arrived(count), range));
                break;
            }
            ahead.consumed = 0;
            if count < range.length() as usize {
                self.end_read_ahead(ahead);
                return Ok((done, true));
            }
            ahead.free.push(range);
            self.request_parts(&mut ahead);
        }
        ahead.next += done as u64;
        self.ahead = Some(ahead);
        Ok((done, false))
    }

    /// Begins to read ahead after a read that returned all bytes, if the next one probably
    /// continues it.
    pub(crate) fn begin_read_ahead(&mut self, object: u32, offset: u64, length: usize) {
        let next = offset.saturating_add(length as u64);
        let continues = offset == 0 || self.last_read == Some((object, offset));
        self.last_read = Some((object, next));
        if self.ahead.is_some() || !continues || length < READ_BYTES_MIN || self.has_streams() {
            return;
        }
        // As much as the next read probably takes: what the function never reads is wasted work.
        let wanted = length.div_ceil(BUFFER_BYTES as usize).min(BUFFERS_MAX);
        let buffers: Vec<_> = (0..wanted).map_while(|_| self.take_buffer().ok()).collect();
        let parts = buffers.iter().flat_map(|buffer| {
            (0..PARTS_PER_BUFFER).map(|part| buffer.offset() + u64::from(part * PART_BYTES))
        });
        let free = parts.map(|at| self.heap_range(at, PART_BYTES)).rev().collect();
        let mut ahead = HeapReadAhead {
            object,
            next,
            requested: next,
            consumed: 0,
            parts: VecDeque::new(),
            free,
            buffers,
            is_stale: false,
        };
        self.request_parts(&mut ahead);
        self.ahead = Some(ahead);
    }

    /// Requests the bytes after those that are requested, for all free parts.
    fn request_parts(&mut self, ahead: &mut HeapReadAhead) {
        while let Some(buffer) = ahead.free.pop() {
            let body = RequestBody::Read { object: ahead.object, offset: ahead.requested, buffer };
            let end = ahead.requested.checked_add(u64::from(buffer.length()));
            match (end, self.submit(&body)) {
                (Some(end), Ok(ticket)) => {
                    ahead.parts.push_back((AheadPart::Requested(ticket), buffer));
                    ahead.requested = end;
                }
                _ => {
                    ahead.free.push(buffer);
                    return;
                }
            }
        }
    }

    /// Waits for the parts, whose bytes are dropped, and frees the buffers.
    fn end_read_ahead(&mut self, ahead: HeapReadAhead) {
        for (part, _) in ahead.parts {
            if let AheadPart::Requested(ticket) = part {
                self.wait(ticket);
            }
        }
        ahead.buffers.into_iter().for_each(|buffer| self.free_buffer(buffer));
    }

    /// Ends reading ahead, for a stream that needs buffers and slots.
    pub(crate) fn stop_read_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            self.end_read_ahead(ahead);
        }
    }

    /// Marks what was read ahead as outdated if a request changes something.
    pub(crate) const fn note_change(&mut self, body: &RequestBody) {
        let changes = !matches!(
            body,
            RequestBody::Read { .. }
                | RequestBody::Length { .. }
                | RequestBody::GetAttribute { .. }
                | RequestBody::List { .. }
                | RequestBody::IsMember { .. }
                | RequestBody::Result { .. }
                | RequestBody::Log { .. }
                | RequestBody::Progress { .. }
        );
        if let Some(ahead) = &mut self.ahead
            && changes
        {
            ahead.is_stale = true;
        }
    }
}
