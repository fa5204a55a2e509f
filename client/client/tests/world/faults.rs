//! Streams that break or corrupt bytes.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// A fault of one stream.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It breaks when this many bytes have been written.
    CutWrites(usize),
    /// It breaks when this many bytes have been read.
    CutReads(usize),
    /// One bit of the byte at this position is flipped when it is read.
    FlipRead(usize),
    /// One bit of each run of 64 of this byte is flipped when it is read.
    FlipRuns(u8),
    /// It stalls without an error when this many bytes have been read.
    StallReads(usize),
}

/// Bytes of a run.
const RUN: usize = 64;

/// Faults for future streams: each new stream takes the next one.
#[derive(Default)]
pub struct Faults {
    waiting: Mutex<Vec<Option<Fault>>>,
    pub streams: Mutex<usize>,
}

impl Faults {
    /// Adds faults for the next streams, in order.
    pub fn next(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        let mut waiting = self.waiting.lock().unwrap();
        *waiting = faults.into_iter().collect();
        waiting.reverse();
    }

    pub fn apply(&self, inner: DuplexStream) -> Bent {
        *self.streams.lock().unwrap() += 1;
        let fault = self.waiting.lock().unwrap().pop().flatten();
        Bent { inner, fault, read: 0, written: 0 }
    }
}

/// A stream with a fault.
pub struct Bent {
    inner: DuplexStream,
    fault: Option<Fault>,
    read: usize,
    written: usize,
}

impl AsyncRead for Bent {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(Fault::CutReads(at)) = self.fault
            && self.read >= at
        {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if let Some(Fault::StallReads(at)) = self.fault
            && self.read >= at
        {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        let count = buf.filled().len() - before;
        if let Some(Fault::FlipRead(at)) = self.fault
            && (self.read..self.read + count).contains(&at)
        {
            let at = before + at - self.read;
            buf.filled_mut()[at] ^= 1;
        }
        if let Some(Fault::FlipRuns(byte)) = self.fault {
            for run in buf.filled_mut()[before..].chunks_mut(RUN) {
                if run.len() == RUN && run.iter().all(|found| *found == byte) {
                    run[RUN / 2] ^= 1;
                }
            }
        }
        self.read += count;
        polled
    }
}

impl AsyncWrite for Bent {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(Fault::CutWrites(at)) = self.fault
            && self.written >= at
        {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let polled = Pin::new(&mut self.inner).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            self.written += count;
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
