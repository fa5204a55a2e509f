//! Streams of an engine: sequential reads ahead and writes behind, in two buffers of 1 MiB each.

use std::collections::VecDeque;

use sealstone_function_abi::limits::{BUFFER_BYTES, STREAM_BUFFERS, STREAMS_MAX};
use sealstone_function_abi::{CallErrno, HeapRange, RequestBody};

use crate::engine::{EngineRing, RequestTicket, checked};

/// Names an open stream. A number that was closed is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(i64);

impl StreamId {
    /// Returns the number for C.
    #[must_use]
    pub const fn number(self) -> i64 {
        self.0
    }

    /// Returns the id of a number, which may name no open stream.
    #[must_use]
    pub const fn from_number(number: i64) -> Self {
        Self(number)
    }
}

/// The open streams of a call.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    streams: [Option<(i64, EngineStream)>; STREAMS_MAX],
    next_id: i64,
}

impl StreamTable {
    fn insert(&mut self, stream: EngineStream) -> Option<StreamId> {
        let place = self.streams.iter_mut().find(|place| place.is_none())?;
        let id = self.next_id;
        self.next_id += 1;
        *place = Some((id, stream));
        Some(StreamId(id))
    }

    fn is_empty(&self) -> bool {
        self.streams.iter().all(Option::is_none)
    }

    fn is_full(&self) -> bool {
        self.streams.iter().all(Option::is_some)
    }

    /// Takes a stream out of the table; [`StreamTable::put_back`] returns it.
    fn take(&mut self, id: StreamId) -> Result<EngineStream, CallErrno> {
        let place =
            self.streams.iter_mut().find(|place| matches!(place, Some((number, _)) if *number == id.0));
        place.and_then(Option::take).map(|(_, stream)| stream).ok_or(CallErrno::BadHandle)
    }

    fn put_back(&mut self, id: StreamId, stream: EngineStream) {
        // The place of the stream is still free.
        if let Some(place) = self.streams.iter_mut().find(|place| place.is_none()) {
            *place = Some((id.0, stream));
        }
    }

    fn any(&self) -> Option<StreamId> {
        self.streams.iter().flatten().map(|(id, _)| StreamId(*id)).next()
    }
}

#[derive(Debug)]
struct PendingPart {
    ticket: RequestTicket,
    buffer: HeapRange,
    length: u32,
}

/// An open stream.
#[derive(Debug)]
struct EngineStream {
    is_writer: bool,
    object: u32,
    /// Offset of the next request.
    next: u64,
    /// End of the range to read.
    end: u64,
    in_flight: VecDeque<PendingPart>,
    free: Vec<HeapRange>,
    /// The buffer that the function works with.
    current: Option<HeapRange>,
    /// The first error; later calls return it.
    error: Option<CallErrno>,
}

impl EngineRing {
    /// Opens a stream that reads a range; the range may end after the object, and above 2^64.
    ///
    /// # Errors
    ///
    /// `EBUSY` if too many streams are open, `ENOMEM` if the heap is used up.
    pub fn open_reader(&mut self, object: u32, offset: u64, length: u64) -> Result<StreamId, CallErrno> {
        let end = offset.saturating_add(length);
        let id = self.open_stream(false, object, offset, end)?;
        let mut stream = self.streams.take(id)?;
        self.read_ahead(&mut stream);
        self.streams.put_back(id, stream);
        Ok(id)
    }

    /// Opens a stream that writes from an offset on.
    ///
    /// # Errors
    ///
    /// `EBUSY` if too many streams are open, `ENOMEM` if the heap is used up.
    pub fn open_writer(&mut self, object: u32, offset: u64) -> Result<StreamId, CallErrno> {
        self.open_stream(true, object, offset, u64::MAX)
    }

    /// Whether a stream is open.
    pub(crate) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    fn open_stream(
        &mut self,
        is_writer: bool,
        object: u32,
        next: u64,
        end: u64,
    ) -> Result<StreamId, CallErrno> {
        if self.streams.is_full() {
            return Err(CallErrno::Busy);
        }
        self.stop_read_ahead();
        let mut free = Vec::with_capacity(STREAM_BUFFERS);
        for _ in 0..STREAM_BUFFERS {
            match self.take_buffer() {
                Ok(buffer) => free.push(buffer),
                Err(error) => {
                    free.into_iter().for_each(|buffer| self.free_buffer(buffer));
                    return Err(error);
                }
            }
        }
        let in_flight = VecDeque::with_capacity(STREAM_BUFFERS);
        let stream =
            EngineStream { is_writer, object, next, end, in_flight, free, current: None, error: None };
        self.streams.insert(stream).ok_or(CallErrno::Busy)
    }

    /// Sends reads for all free buffers.
    fn read_ahead(&mut self, stream: &mut EngineStream) {
        while stream.next < stream.end && stream.error.is_none() {
            let Some(buffer) = stream.free.pop() else { return };
            let rest = (stream.end - stream.next).min(BUFFER_BYTES.into()) as u32;
            let part = buffer.first(rest);
            let body = RequestBody::Read { object: stream.object, offset: stream.next, buffer: part };
            match self.submit(&body) {
                Ok(ticket) => {
                    stream.in_flight.push_back(PendingPart { ticket, buffer, length: rest });
                    stream.next += u64::from(rest);
                }
                Err(error) => {
                    stream.free.push(buffer);
                    stream.error = Some(error);
                }
            }
        }
    }

    /// Waits for all requests of a stream; their buffers become free.
    fn drain_stream(&mut self, stream: &mut EngineStream) {
        while let Some(part) = stream.in_flight.pop_front() {
            let outcome = checked(self.wait(part.ticket));
            stream.free.push(part.buffer);
            if stream.is_writer {
                stream.note_write(part.length, outcome.map(|completion| completion.result));
            }
        }
    }

    /// Returns the next bytes of a reader, which are valid until the next call for this stream. An
    /// empty range is the end.
    ///
    /// # Errors
    ///
    /// The error of the host, or `EBADF` if the stream is no reader.
    pub fn read_next(&mut self, id: StreamId) -> Result<HeapRange, CallErrno> {
        let mut stream = self.streams.take(id)?;
        let outcome =
            if stream.is_writer { Err(CallErrno::BadHandle) } else { self.read_next_of(&mut stream) };
        self.streams.put_back(id, stream);
        outcome
    }

    fn read_next_of(&mut self, stream: &mut EngineStream) -> Result<HeapRange, CallErrno> {
        stream.free.extend(stream.current.take());
        self.read_ahead(stream);
        let Some(part) = stream.in_flight.pop_front() else {
            let empty = stream.free.first().map(|buffer| buffer.first(0)).ok_or(CallErrno::InputOutput)?;
            return stream.error.map_or(Ok(empty), Err);
        };
        match checked(self.wait(part.ticket)) {
            Ok(completion) => {
                let count = completion.result.min(part.length.into()) as u32;
                if count < part.length {
                    // The object ends here. Later parts may be of bytes that were appended since.
                    stream.end = stream.next;
                    self.drain_stream(stream);
                }
                stream.current = Some(part.buffer);
                Ok(part.buffer.first(count))
            }
            Err(error) => {
                stream.error = Some(error);
                stream.free.push(part.buffer);
                self.drain_stream(stream);
                Err(error)
            }
        }
    }

    /// Returns a free buffer of a writer; the same one until it is committed.
    ///
    /// # Errors
    ///
    /// The error of an earlier write, or `EBADF` if the stream is no writer.
    pub fn write_buffer(&mut self, id: StreamId) -> Result<HeapRange, CallErrno> {
        let mut stream = self.streams.take(id)?;
        let outcome =
            if stream.is_writer { self.write_buffer_of(&mut stream) } else { Err(CallErrno::BadHandle) };
        self.streams.put_back(id, stream);
        outcome
    }

    fn write_buffer_of(&mut self, stream: &mut EngineStream) -> Result<HeapRange, CallErrno> {
        if stream.current.is_none()
            && stream.free.is_empty()
            && let Some(part) = stream.in_flight.pop_front()
        {
            let outcome = checked(self.wait(part.ticket));
            stream.free.push(part.buffer);
            stream.note_write(part.length, outcome.map(|completion| completion.result));
        }
        if let Some(error) = stream.error {
            return Err(error);
        }
        if stream.current.is_none() {
            stream.current = stream.free.pop();
        }
        stream.current.ok_or(CallErrno::InputOutput)
    }

    /// Writes the first bytes of the buffer of a writer, and returns before they are written.
    ///
    /// # Errors
    ///
    /// `EINVAL` without a buffer or above its size, or if the object would end above 2^64;
    /// otherwise the error of an earlier write.
    pub fn commit_buffer(&mut self, id: StreamId, length: u64) -> Result<(), CallErrno> {
        let mut stream = self.streams.take(id)?;
        let outcome = if stream.is_writer {
            self.commit_buffer_of(&mut stream, length)
        } else {
            Err(CallErrno::BadHandle)
        };
        self.streams.put_back(id, stream);
        outcome
    }

    /// Copies at most one buffer of bytes to a writer, and returns before they are written.
    ///
    /// # Errors
    ///
    /// As [`EngineRing::write_buffer`] and [`EngineRing::commit_buffer`].
    pub fn write_stream(&mut self, id: StreamId, from: &[u8]) -> Result<(), CallErrno> {
        if from.len() > BUFFER_BYTES as usize {
            return Err(CallErrno::Invalid);
        }
        let buffer = self.write_buffer(id)?;
        self.copy_to_heap(buffer, from);
        self.commit_buffer(id, from.len() as u64)
    }

    fn commit_buffer_of(&mut self, stream: &mut EngineStream, length: u64) -> Result<(), CallErrno> {
        if let Some(error) = stream.error {
            return Err(error);
        }
        let buffer = stream.current.ok_or(CallErrno::Invalid)?;
        let next = stream.next.checked_add(length).ok_or(CallErrno::Invalid)?;
        if length > u64::from(BUFFER_BYTES) {
            return Err(CallErrno::Invalid);
        }
        stream.current = None;
        if length == 0 {
            stream.free.push(buffer);
            return Ok(());
        }
        let length = length as u32;
        let body =
            RequestBody::Write { object: stream.object, offset: stream.next, data: buffer.first(length) };
        match self.submit(&body) {
            Ok(ticket) => {
                stream.in_flight.push_back(PendingPart { ticket, buffer, length });
                stream.next = next;
                Ok(())
            }
            Err(error) => {
                stream.free.push(buffer);
                stream.error = Some(error);
                Err(error)
            }
        }
    }

    /// Waits for all requests of a stream and closes it.
    ///
    /// # Errors
    ///
    /// The first error of a writer, or `EBADF` if the stream is of the other kind.
    pub fn close_stream(&mut self, id: StreamId, is_writer: bool) -> Result<(), CallErrno> {
        let mut stream = self.streams.take(id)?;
        if stream.is_writer != is_writer {
            self.streams.put_back(id, stream);
            return Err(CallErrno::BadHandle);
        }
        self.drain_stream(&mut stream);
        for buffer in stream.free.into_iter().chain(stream.current) {
            self.free_buffer(buffer);
        }
        match stream.error {
            Some(error) if is_writer => Err(error),
            _ => Ok(()),
        }
    }

    /// Closes all streams; their errors are lost.
    pub(crate) fn close_streams(&mut self) {
        while let Some(id) = self.streams.any() {
            if self.close_stream(id, true) == Err(CallErrno::BadHandle) {
                let _ = self.close_stream(id, false);
            }
        }
    }
}

impl EngineStream {
    /// Records the outcome of a write.
    fn note_write(&mut self, length: u32, outcome: Result<i64, CallErrno>) {
        let error = match outcome {
            Ok(count) if count == i64::from(length) => None,
            Ok(_) => Some(CallErrno::InputOutput),
            Err(error) => Some(error),
        };
        self.error = self.error.or(error);
    }
}
