//! A stream that carries protected records from a certain byte on.
//!
//! Does: passes bytes through until records begin; from then on seals what is written, and opens
//! what is read.
//! Does not: agree on keys.
//! Contract: once records began, every byte that is read is authentic. A stream that was
//! changed or cut fails with `InvalidData`, or ends.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sealstone_block_protection::{RecordOpener, RecordSealer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::receive::poll_receive;

/// Bytes that are read from the stream below at once.
const RAW_BYTES: usize = 64 * 1024;
/// Maximum data bytes that are sealed at once. The next data are accepted when these are written.
const SEALED_AT_ONCE: usize = 64 * 1024;

/// Fills a slice with unpredictable bytes.
pub type FillRandom = Box<dyn FnMut(&mut [u8]) + Send>;

/// Both ends of the records of a stream.
pub struct StreamRecords {
    /// Seals what is written.
    pub sealer: RecordSealer,
    /// Opens what is read.
    pub opener: RecordOpener,
    /// Initialisation vectors of records.
    pub random: FillRandom,
}

struct ActiveRecords {
    keys: StreamRecords,
    /// Bytes that are still written without records.
    plain: usize,
    sealed: Vec<u8>,
    sealed_from: usize,
    raw: Box<[u8]>,
    opened: Vec<u8>,
    opened_from: usize,
}

/// A stream, with records or without.
pub struct RecordStream<S> {
    inner: S,
    records: Option<Box<ActiveRecords>>,
}

impl<S> RecordStream<S> {
    /// Wraps a stream that has no records yet.
    pub const fn new(inner: S) -> Self {
        Self { inner, records: None }
    }

    /// Begins records: at once for reading, after `plain` further bytes for writing.
    pub fn begin_records(&mut self, keys: StreamRecords, plain: usize) {
        self.records = Some(Box::new(ActiveRecords {
            keys,
            plain,
            sealed: Vec::new(),
            sealed_from: 0,
            raw: vec![0; RAW_BYTES].into(),
            opened: Vec::new(),
            opened_from: 0,
        }));
    }
}

impl<S: AsyncRead + Unpin + 'static> RecordStream<S> {
    /// Reads into `first`, then into `second`; returns the number of bytes.
    ///
    /// # Errors
    /// Errors of the stream; `InvalidData` if a record is not authentic.
    pub fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        [first, second]: [&mut [u8]; 2],
    ) -> Poll<io::Result<usize>> {
        if self.records.is_none() {
            return poll_receive(&mut self.inner, cx, [first, second]);
        }
        let mut place = ReadBuf::new(if first.is_empty() { second } else { first });
        ready!(Pin::new(self).poll_read(cx, &mut place))?;
        Poll::Ready(Ok(place.filled().len()))
    }
}

impl ActiveRecords {
    /// Writes sealed bytes until none wait.
    fn poll_drain<S: AsyncWrite + Unpin>(
        &mut self,
        inner: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.sealed_from < self.sealed.len() {
            match ready!(Pin::new(&mut *inner).poll_write(cx, &self.sealed[self.sealed_from..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sealed_from += count,
            }
        }
        self.sealed.clear();
        self.sealed_from = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RecordStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { inner, records } = &mut *self;
        let Some(active) = records else { return Pin::new(inner).poll_read(cx, into) };
        while active.opened_from == active.opened.len() {
            active.opened.clear();
            active.opened_from = 0;
            let mut raw = ReadBuf::new(&mut active.raw);
            ready!(Pin::new(&mut *inner).poll_read(cx, &mut raw))?;
            if raw.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let opened = active.keys.opener.open(raw.filled(), &mut active.opened);
            opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        let waiting = &active.opened[active.opened_from..];
        let count = waiting.len().min(into.remaining());
        into.put_slice(&waiting[..count]);
        active.opened_from += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RecordStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { inner, records } = &mut *self;
        let Some(active) = records else { return Pin::new(inner).poll_write_vectored(cx, pieces) };
        if active.plain > 0 {
            let Some(first) = pieces.iter().find(|piece| !piece.is_empty()) else {
                return Poll::Ready(Ok(0));
            };
            let plain = &first[..first.len().min(active.plain)];
            let count = ready!(Pin::new(inner).poll_write(cx, plain))?;
            active.plain -= count;
            return Poll::Ready(Ok(count));
        }
        ready!(active.poll_drain(inner, cx))?;
        let mut data = Vec::new();
        for piece in pieces {
            let room = SEALED_AT_ONCE - data.len();
            data.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        let StreamRecords { sealer, random, .. } = &mut active.keys;
        sealer.seal(&data, random, &mut active.sealed).map_err(io::Error::other)?;
        // The data are taken. An error of the stream is returned by the next call.
        if let Poll::Ready(Err(error)) = active.poll_drain(inner, cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(data.len()))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { inner, records } = &mut *self;
        if let Some(active) = records {
            ready!(active.poll_drain(inner, cx))?;
        }
        Pin::new(inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { inner, records } = &mut *self;
        if let Some(active) = records {
            ready!(active.poll_drain(inner, cx))?;
        }
        Pin::new(inner).poll_shutdown(cx)
    }
}
