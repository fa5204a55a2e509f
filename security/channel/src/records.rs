//! A stream that is protected from a certain byte on: by records, by protected PDUs, or by both.
//!
//! Does: passes bytes through until the protection begins; from then on seals what is written, and
//! opens what is read.
//! Does not: agree on keys.
//! Contract: once records began, every byte that is read is authentic. With protected PDUs alone,
//! all but the data of blocks is. A stream that was changed or cut fails with `InvalidData`, or
//! ends.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sealstone_block_protection::{PduProtection, RecordOpener, RecordSealer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::receive::poll_receive;

/// Bytes that are read from the stream below at once.
const RAW_BYTES: usize = 64 * 1024;
/// Maximum data bytes that are sealed at once: a few PDUs with 64 KiB of data and their headers, or
/// one longer data segment. The next data are accepted when these are written.
const SEALED_AT_ONCE: usize = 160 * 1024;

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

/// Protection of both directions of a stream.
pub struct StreamProtection {
    /// Protection of PDUs, of which the plain stream consists.
    pub pdus: Option<PduProtection>,
    /// Records, around the protected PDUs.
    pub records: Option<StreamRecords>,
}

struct ActiveProtection {
    keys: StreamProtection,
    /// Bytes between PDUs and records.
    between: Vec<u8>,
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
    records: Option<Box<ActiveProtection>>,
}

impl<S> RecordStream<S> {
    /// Wraps a stream that has no records yet.
    pub const fn new(inner: S) -> Self {
        Self { inner, records: None }
    }

    /// Begins the protection: at once for reading, after `plain` further bytes for writing.
    pub fn begin_protection(&mut self, keys: StreamProtection, plain: usize) {
        self.records = Some(Box::new(ActiveProtection {
            keys,
            between: Vec::new(),
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

impl ActiveProtection {
    /// Opens `count` raw bytes.
    fn open(&mut self, count: usize) -> io::Result<()> {
        fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
            io::Error::new(io::ErrorKind::InvalidData, error)
        }
        let raw = &self.raw[..count];
        match (&mut self.keys.records, &mut self.keys.pdus) {
            (None, None) => self.opened.extend_from_slice(raw),
            (Some(records), None) => records.opener.open(raw, &mut self.opened).map_err(invalid)?,
            (None, Some(pdus)) => pdus.open(raw, &mut self.opened).map_err(invalid)?,
            (Some(records), Some(pdus)) => {
                self.between.clear();
                records.opener.open(raw, &mut self.between).map_err(invalid)?;
                pdus.open(&self.between, &mut self.opened).map_err(invalid)?;
            }
        }
        Ok(())
    }

    /// Seals pieces for writing, up to a limit; returns how many bytes it took.
    fn seal(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        let is_record_only = self.keys.pdus.is_none();
        self.between.clear();
        for piece in pieces {
            let room = SEALED_AT_ONCE.saturating_sub(taken);
            if piece.len() > room && taken > 0 {
                break;
            }
            // Only records cut a piece: a data segment that is cut would be copied once more.
            let plain = if is_record_only { &piece[..piece.len().min(room)] } else { &piece[..] };
            match (&mut self.keys.pdus, &self.keys.records) {
                (None, _) => self.between.extend_from_slice(plain),
                (Some(pdus), Some(_)) => pdus.seal(plain, &mut self.between).map_err(io::Error::other)?,
                (Some(pdus), None) => pdus.seal(plain, &mut self.sealed).map_err(io::Error::other)?,
            }
            taken += plain.len();
        }
        match &mut self.keys.records {
            Some(StreamRecords { sealer, random, .. }) => {
                sealer.seal(&self.between, random, &mut self.sealed).map_err(io::Error::other)?;
            }
            None if is_record_only => self.sealed.extend_from_slice(&self.between),
            None => {}
        }
        Ok(taken)
    }

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
            let count = raw.filled().len();
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
            active.open(count)?;
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
        let taken = active.seal(pieces)?;
        // The data are taken. An error of the stream is returned by the next call.
        if let Poll::Ready(Err(error)) = active.poll_drain(inner, cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(taken))
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
