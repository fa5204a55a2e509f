//! One connection: reads requests, runs them in parallel, and writes replies in the order of
//! completion.
//!
//! Does: checks extents, alignment and flags before the backend sees a request.
//! Does not: access the disk; the backend does.
//! Contract: one task runs a connection and all its requests. A request is counted, with its bytes,
//! until its reply is written. So a client that does not read replies cannot use more memory.

use core::pin::pin;
use core::time::Duration;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use sealstone_block_client::{BufferPool, FlushCursor};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

use crate::budget::{CommonMemory, ConnectionMemory, MemoryPermit};
use crate::wire::{
    self, NbdCommand, NbdRequest, NbdViolation, OPTION_BYTES, REQUEST_BYTES, TRANSFER_MAX, command_flag,
};
use crate::{BlockBackend, ExportName, ExportProperties, Handshake, HandshakeStep, NbdError, StatusExtent};

/// Maximum requests in flight on one connection.
const REQUESTS_MAX: usize = 128;
/// Time for the whole negotiation.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that are read at once, and the longest data that are not read into a buffer of their own.
const READ_SIZE: usize = 32 << 10;
/// Maximum pieces in one vectored write.
const SLICES_MAX: usize = 64;

/// Resources that all connections share.
#[derive(Default)]
pub(crate) struct SharedResources {
    memory: CommonMemory,
    buffers: BufferPool,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the client violated the NBD protocol: {0}")]
    Violation(#[from] NbdViolation),
    #[error("no complete negotiation within {HANDSHAKE_TIMEOUT:?}")]
    HandshakeTimeout,
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// A reply that is ready to be written.
struct ReplyFrame {
    head: Vec<u8>,
    body: Vec<u8>,
    _memory: Option<MemoryPermit>,
}

/// A request with its data.
struct ReceivedRequest {
    request: NbdRequest,
    data: Bytes,
    memory: Option<MemoryPermit>,
}

/// The reading half with bytes that were received and not used yet.
struct RequestReader {
    stream: OwnedReadHalf,
    buffer: BytesMut,
}

impl RequestReader {
    /// Receives until `length` bytes are buffered; `false` at the end of the stream between
    /// messages.
    async fn fill(&mut self, length: usize) -> io::Result<bool> {
        while self.buffer.len() < length {
            self.buffer.reserve((length - self.buffer.len()).max(READ_SIZE));
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() {
                    Ok(false)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
        Ok(true)
    }

    /// Receives exactly `length` bytes.
    async fn take(&mut self, length: usize) -> io::Result<Bytes> {
        if !self.fill(length).await? && length > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Receives exactly `length` bytes; long data into a buffer of the pool.
    async fn take_data(&mut self, length: usize, buffers: &BufferPool) -> io::Result<Bytes> {
        if length <= READ_SIZE {
            return self.take(length).await;
        }
        let mut data = buffers.take(length);
        let (head, rest) = data.split_at_mut(self.buffer.len().min(length));
        self.buffer.copy_to_slice(head);
        self.stream.read_exact(rest).await?;
        Ok(buffers.share(data))
    }

    async fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let bytes = self.take(N).await?;
        bytes.as_ref().try_into().map_err(|_| io::ErrorKind::UnexpectedEof.into())
    }

    async fn skip(&mut self, mut length: usize) -> io::Result<()> {
        while length > 0 {
            let piece = length.min(READ_SIZE);
            self.take(piece).await?;
            length -= piece;
        }
        Ok(())
    }
}

/// The writing half with replies that are not written yet.
struct ReplyWriter {
    stream: OwnedWriteHalf,
    frames: VecDeque<ReplyFrame>,
    /// Bytes of the first reply that are written.
    written: usize,
    buffers: BufferPool,
}

impl ReplyWriter {
    /// Writes replies until the socket is full.
    fn write_ready(&mut self) -> io::Result<()> {
        while !self.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let pieces = self.frames.iter().flat_map(|frame| [&frame.head[..], &frame.body[..]]);
            let mut skipped = self.written;
            let mut count = 0;
            for piece in pieces {
                let start = skipped.min(piece.len());
                skipped -= start;
                if start < piece.len() {
                    slices[count] = IoSlice::new(&piece[start..]);
                    count += 1;
                }
                if count == SLICES_MAX {
                    break;
                }
            }
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn advance(&mut self, written: usize) {
        self.written += written;
        while let Some(frame) = self.frames.front() {
            let length = frame.head.len() + frame.body.len();
            if self.written < length {
                return;
            }
            self.written -= length;
            if let Some(frame) = self.frames.pop_front() {
                self.buffers.give(frame.body);
            }
        }
    }
}

/// Serves one connection to its end.
pub(crate) async fn run<B: BlockBackend>(
    stream: UnixStream,
    backend: Arc<B>,
    name: ExportName,
    shared: Arc<SharedResources>,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), ConnectionError> {
    let (reading, mut writing) = stream.into_split();
    let mut reader = RequestReader { stream: reading, buffer: BytesMut::new() };
    let mut handshake = Handshake::new(name, backend.properties());
    let negotiation = async {
        tokio::time::timeout(HANDSHAKE_TIMEOUT, negotiate(&mut reader, &mut writing, &mut handshake))
            .await
            .map_err(|_| ConnectionError::HandshakeTimeout)?
    };
    let has_begun = tokio::select! {
        biased;
        _ = stopping.wait_for(|stop| *stop) => return Ok(()),
        has_begun = negotiation => has_begun?,
    };
    if !has_begun {
        return Ok(());
    }
    let runner = Arc::new(RequestRunner {
        cursor: backend.flush_cursor(),
        properties: backend.properties(),
        backend,
        buffers: shared.buffers.clone(),
        has_structured_replies: handshake.has_structured_replies(),
        has_allocation: handshake.has_allocation(),
    });
    let buffers = shared.buffers.clone();
    let mut replies = ReplyWriter { stream: writing, frames: VecDeque::new(), written: 0, buffers };
    let outcome = exchange(reader, &mut replies, &runner, &shared, &mut stopping).await;
    // The client may have closed its side.
    let _ = replies.stream.shutdown().await;
    outcome
}

/// Runs the negotiation; `false` if the client ended it.
async fn negotiate(
    reader: &mut RequestReader,
    writing: &mut OwnedWriteHalf,
    handshake: &mut Handshake,
) -> Result<bool, ConnectionError> {
    writing.write_all(&Handshake::greeting()).await?;
    if !reader.fill(4).await? {
        return Ok(false);
    }
    handshake.client_flags(u32::from_be_bytes(reader.array().await?))?;
    loop {
        if !reader.fill(OPTION_BYTES).await? {
            return Ok(false);
        }
        let header = wire::parse_option_header(&reader.array().await?)?;
        let mut out = Vec::new();
        let length = header.length as usize;
        let step = if handshake.accept_option(header)? {
            let data = reader.take(length).await?;
            handshake.option(header.code, &data, &mut out)?
        } else {
            reader.skip(length).await?;
            handshake.skipped_option(header, &mut out);
            HandshakeStep::Continue
        };
        match (writing.write_all(&out).await, step) {
            // The client may close at once after it has aborted the negotiation.
            (_, HandshakeStep::Close) => return Ok(false),
            (Err(error), _) => return Err(error.into()),
            (Ok(()), HandshakeStep::Transmission) => return Ok(true),
            (Ok(()), HandshakeStep::Continue) => {}
        }
    }
}

/// Runs requests until the client disconnects or the server stops, and then until all replies are
/// written.
async fn exchange<B: BlockBackend>(
    reader: RequestReader,
    replies: &mut ReplyWriter,
    runner: &Arc<RequestRunner<B>>,
    shared: &SharedResources,
    stopping: &mut watch::Receiver<bool>,
) -> Result<(), ConnectionError> {
    let memory = ConnectionMemory::new(&shared.memory);
    let mut running = FuturesUnordered::new();
    let mut incoming = pin!(next_request(reader, &memory, &shared.buffers));
    // How reading of requests ended.
    let mut ended = None;
    let written = loop {
        if ended.is_some() && running.is_empty() && replies.frames.is_empty() {
            break Ok(());
        }
        let has_place = running.len() + replies.frames.len() < REQUESTS_MAX;
        let written = tokio::select! {
            biased;
            Some(frame) = running.next(), if !running.is_empty() => {
                replies.frames.push_back(frame);
                while let Some(Some(frame)) = running.next().now_or_never() {
                    replies.frames.push_back(frame);
                }
                replies.write_ready()
            }
            ready = replies.stream.writable(), if !replies.frames.is_empty() => {
                ready.and_then(|()| replies.write_ready())
            }
            _ = stopping.wait_for(|stop| *stop), if ended.is_none() => {
                ended = Some(Ok(()));
                Ok(())
            }
            next = &mut incoming, if ended.is_none() && has_place => {
                match next {
                    Ok(Some((reader, received))) => {
                        incoming.set(next_request(reader, &memory, &shared.buffers));
                        running.push(Arc::clone(runner).run(received));
                    }
                    Ok(None) => ended = Some(Ok(())),
                    Err(error) => ended = Some(Err(error)),
                }
                Ok(())
            }
        };
        if written.is_err() {
            break written;
        }
    };
    if !running.is_empty() {
        // The client disconnected; its requests end without replies.
        tokio::spawn(async move { while running.next().await.is_some() {} });
    }
    ended.unwrap_or(Ok(())).and(written.map_err(ConnectionError::from))
}

/// Reads one request with its data; `None` if the client disconnected.
async fn next_request(
    mut reader: RequestReader,
    memory: &ConnectionMemory,
    buffers: &BufferPool,
) -> Result<Option<(RequestReader, ReceivedRequest)>, ConnectionError> {
    if !reader.fill(REQUEST_BYTES).await? {
        return Ok(None);
    }
    let request = wire::parse_request(&reader.array().await?)?;
    let memory = match request.command {
        NbdCommand::Disconnect => return Ok(None),
        NbdCommand::Read | NbdCommand::Write if request.length > 0 => {
            Some(memory.acquire(request.length as usize).await?)
        }
        _ => None,
    };
    let data = match request.command {
        NbdCommand::Write => reader.take_data(request.length as usize, buffers).await?,
        _ => Bytes::new(),
    };
    Ok(Some((reader, ReceivedRequest { request, data, memory })))
}

/// Runs requests of one connection.
struct RequestRunner<B> {
    backend: Arc<B>,
    properties: ExportProperties,
    cursor: FlushCursor,
    buffers: BufferPool,
    has_structured_replies: bool,
    has_allocation: bool,
}

/// The result of a request.
enum RequestResult {
    Done,
    Data(Vec<u8>),
    Status(Vec<StatusExtent>),
}

impl<B: BlockBackend> RequestRunner<B> {
    /// Returns the reply to a request.
    async fn run(self: Arc<Self>, received: ReceivedRequest) -> ReplyFrame {
        let ReceivedRequest { request, data, memory } = received;
        let cookie = request.cookie;
        let result = self.execute(&request, data).await;
        let mut body = Vec::new();
        let head = match (self.has_structured_replies, result) {
            (false, Err(error)) => wire::simple_reply(cookie, error.code()),
            (true, Err(error)) => wire::structured_error(cookie, &error),
            (false, Ok(RequestResult::Data(data))) => {
                body = data;
                wire::simple_reply(cookie, 0)
            }
            (true, Ok(RequestResult::Data(data))) if !data.is_empty() => {
                body = data;
                wire::structured_data(cookie, request.offset, request.length)
            }
            (true, Ok(RequestResult::Status(extents))) => wire::block_status(cookie, &extents),
            (false, Ok(_)) => wire::simple_reply(cookie, 0),
            (true, Ok(_)) => wire::structured_done(cookie),
        };
        ReplyFrame { head, body, _memory: memory }
    }

    async fn execute(&self, request: &NbdRequest, data: Bytes) -> Result<RequestResult, NbdError> {
        use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
        let (offset, length) = (request.offset, request.length);
        let has = |flag: u16| request.flags & flag != 0;
        let allow = |flags: u16| match request.flags & !flags {
            0 => Ok(()),
            _ => Err(NbdError::Invalid("unknown flags")),
        };
        match request.command {
            NbdCommand::Read => {
                allow(if self.has_structured_replies { FUA | DF } else { FUA })?;
                if length > TRANSFER_MAX {
                    return Err(NbdError::Invalid("a read above the maximum length"));
                }
                self.check(request)?;
                let buffer = self.buffers.take(length as usize);
                Ok(RequestResult::Data(self.backend.read(offset, buffer).await?))
            }
            NbdCommand::Write => {
                allow(FUA)?;
                self.check_write(request)?;
                self.backend.write(offset, data, has(FUA)).await?;
                Ok(RequestResult::Done)
            }
            NbdCommand::Flush => {
                allow(FUA)?;
                self.backend.flush(&self.cursor).await?;
                Ok(RequestResult::Done)
            }
            NbdCommand::Trim => {
                allow(FUA)?;
                self.check_write(request)?;
                self.backend.trim(offset, length, has(FUA)).await?;
                Ok(RequestResult::Done)
            }
            NbdCommand::WriteZeroes => {
                allow(FUA | NO_HOLE | FAST_ZERO)?;
                self.check_write(request)?;
                if has(FAST_ZERO) && (has(NO_HOLE) || !self.properties.has_fast_zero) {
                    return Err(NbdError::Unsupported("fast zeros"));
                }
                self.backend.write_zeros(offset, length, !has(NO_HOLE), has(FUA)).await?;
                Ok(RequestResult::Done)
            }
            NbdCommand::BlockStatus => {
                allow(FUA | REQ_ONE)?;
                if !self.has_allocation {
                    return Err(NbdError::Invalid("no context was selected"));
                }
                if length == 0 {
                    return Err(NbdError::Invalid("block status of no bytes"));
                }
                self.check(request)?;
                let mut extents = self.backend.status(offset, length).await?;
                if has(REQ_ONE) {
                    extents.truncate(1);
                }
                Ok(RequestResult::Status(extents))
            }
            NbdCommand::Disconnect | NbdCommand::Unknown(_) => Err(NbdError::Invalid("unknown command")),
        }
    }

    fn check(&self, request: &NbdRequest) -> Result<(), NbdError> {
        let block = u64::from(self.properties.block_min);
        let (offset, length) = (request.offset, u64::from(request.length));
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(NbdError::Invalid("an extent that is not aligned to the block size"));
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.properties.bytes => Ok(()),
            _ => Err(NbdError::Invalid("an extent beyond the end of the export")),
        }
    }

    fn check_write(&self, request: &NbdRequest) -> Result<(), NbdError> {
        if self.properties.is_read_only {
            return Err(NbdError::ReadOnly);
        }
        let end = request.offset.checked_add(u64::from(request.length));
        if request.command == NbdCommand::Write && end.is_none_or(|end| end > self.properties.bytes) {
            return Err(NbdError::PastEnd);
        }
        self.check(request)
    }
}

#[cfg(test)]
mod tests;
