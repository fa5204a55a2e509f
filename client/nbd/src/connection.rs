//! One connection: reads requests, runs them in parallel, and writes replies in the order of
//! completion.
//!
//! Does: checks extents, alignment and flags before the backend sees a request.
//! Does not: access the disk; the backend does.
//! Contract: a request keeps its permits, for one request and its bytes, until its reply is
//! written. So a client that does not read replies cannot use more memory.

use core::time::Duration;
use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::wire::{
    self, NbdCommand, NbdRequest, NbdViolation, OPTION_BYTES, REQUEST_BYTES, TRANSFER_MAX, command_flag,
};
use crate::{BlockBackend, ExportName, ExportProperties, Handshake, HandshakeStep, NbdError, StatusExtent};

/// Maximum requests in flight on one connection.
const REQUESTS_MAX: usize = 128;
/// Maximum bytes of data of requests in flight on all connections, in units of [`BYTES_UNIT`].
const BYTES_MAX: usize = (128 << 20) / BYTES_UNIT;
const BYTES_UNIT: usize = 4096;
/// Time for the whole negotiation.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that are read at once.
const READ_SIZE: usize = 128 << 10;
/// Replies in one write.
const REPLIES_AT_ONCE: usize = 16;

/// Limits that all connections share.
pub(crate) struct ServerLimits {
    bytes: Arc<Semaphore>,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { bytes: Arc::new(Semaphore::new(BYTES_MAX)) }
    }
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
    _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
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

/// Serves one connection to its end.
pub(crate) async fn run<B: BlockBackend>(
    stream: UnixStream,
    backend: Arc<B>,
    name: ExportName,
    limits: Arc<ServerLimits>,
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
    let (replies, queue) = mpsc::channel(REQUESTS_MAX);
    let writer = tokio::spawn(write_replies(writing, queue));
    let runner = Arc::new(RequestRunner {
        cursor: backend.flush_cursor(),
        properties: backend.properties(),
        backend,
        has_structured_replies: handshake.has_structured_replies(),
        has_allocation: handshake.has_allocation(),
    });
    let outcome = read_requests(&mut reader, &runner, &limits, replies, &mut stopping).await;
    // The writer ends when all requests in flight have ended.
    match writer.await {
        Ok(written) => outcome.and(written.map_err(ConnectionError::from)),
        Err(error) => Err(io::Error::other(error).into()),
    }
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

/// Reads requests and starts them, until the client disconnects or the server stops.
async fn read_requests<B: BlockBackend>(
    reader: &mut RequestReader,
    runner: &Arc<RequestRunner<B>>,
    limits: &ServerLimits,
    replies: mpsc::Sender<ReplyFrame>,
    stopping: &mut watch::Receiver<bool>,
) -> Result<(), ConnectionError> {
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        let has_request = tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => return Ok(()),
            has_request = reader.fill(REQUEST_BYTES) => has_request?,
        };
        if !has_request {
            return Ok(());
        }
        let request = wire::parse_request(&reader.array().await?)?;
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        let units = match request.command {
            NbdCommand::Disconnect => return Ok(()),
            NbdCommand::Read | NbdCommand::Write => {
                (request.length.min(TRANSFER_MAX) as usize).div_ceil(BYTES_UNIT)
            }
            _ => 0,
        };
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let memory = match units {
            0 => None,
            units => {
                Some(Arc::clone(&limits.bytes).acquire_many_owned(units).await.map_err(io::Error::other)?)
            }
        };
        let data = match request.command {
            NbdCommand::Write => reader.take(request.length as usize).await?,
            _ => Bytes::new(),
        };
        let (runner, replies) = (Arc::clone(runner), replies.clone());
        tokio::spawn(async move {
            let (head, body) = runner.run(&request, data).await;
            // The client may have disconnected.
            let _ = replies.send(ReplyFrame { head, body, _permits: (place, memory) }).await;
        });
    }
}

/// Writes replies as they become ready, several at once.
async fn write_replies(mut writing: OwnedWriteHalf, mut queue: mpsc::Receiver<ReplyFrame>) -> io::Result<()> {
    let mut frames = Vec::with_capacity(REPLIES_AT_ONCE);
    while queue.recv_many(&mut frames, REPLIES_AT_ONCE).await > 0 {
        let mut slices: Vec<_> = frames
            .iter()
            .flat_map(|frame| [IoSlice::new(&frame.head), IoSlice::new(&frame.body)])
            .filter(|slice| !slice.is_empty())
            .collect();
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            match writing.write_vectored(slices).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => IoSlice::advance_slices(&mut slices, written),
            }
        }
        frames.clear();
    }
    writing.shutdown().await
}

/// Runs requests of one connection.
struct RequestRunner<B> {
    backend: Arc<B>,
    properties: ExportProperties,
    cursor: sealstone_block_client::FlushCursor,
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
    /// Returns the reply to a request, head and body.
    async fn run(&self, request: &NbdRequest, data: Bytes) -> (Vec<u8>, Vec<u8>) {
        let cookie = request.cookie;
        let result = self.execute(request, data).await;
        match (self.has_structured_replies, result) {
            (false, Err(error)) => (wire::simple_reply(cookie, error.code()), Vec::new()),
            (false, Ok(RequestResult::Data(body))) => (wire::simple_reply(cookie, 0), body),
            (false, Ok(_)) => (wire::simple_reply(cookie, 0), Vec::new()),
            (true, Err(error)) => (wire::structured_error(cookie, &error), Vec::new()),
            (true, Ok(RequestResult::Data(body))) if !body.is_empty() => {
                (wire::structured_data(cookie, request.offset, request.length), body)
            }
            (true, Ok(RequestResult::Status(extents))) => (wire::block_status(cookie, &extents), Vec::new()),
            (true, Ok(_)) => (wire::structured_done(cookie), Vec::new()),
        }
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
                Ok(RequestResult::Data(self.backend.read(offset, length).await?))
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
