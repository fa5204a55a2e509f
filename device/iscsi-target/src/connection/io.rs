//! Socket I/O of a connection: waits for the next event, and writes the send queue.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use sealstone_channel::RecordStream;
use sealstone_iscsi::{
    TaskId,
    target_side::{CommandReply, TargetConnection},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::Sleep,
};

use super::{ConnectionDriver, HIGH_WATER, orders::OrderRequest};
use crate::{Counter, sessions::SessionSignal};

/// Pieces in one vectored write.
const PIECES: usize = 64;

pub(super) enum Wakeup {
    /// Number of bytes received. Zero is the end of the stream.
    Read(usize),
    Written,
    Completed(TaskId, CommandReply),
    Ordered(OrderRequest),
    SessionSignal(SessionSignal),
    Timer,
    BufferPool,
    /// The connection is to be closed in favour of another one.
    Evicted,
}

/// Pieces waiting to be written.
#[derive(Default)]
pub(super) struct SendQueue {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    /// Time since when the first piece waits. Undefined while the queue is empty.
    since: u64,
    unflushed: bool,
}

impl SendQueue {
    /// Whether enough is queued: no more output is produced before some of it is written.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= HIGH_WATER || self.pieces.len() >= PIECES
    }

    /// Returns the number of bytes that wait.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes pieces from the state machine until the queue is full.
    pub(super) fn fill(&mut self, machine: &mut TargetConnection, now: u64) {
        while !self.is_full() {
            let Some(piece) = machine.poll_transmit() else { break };
            if self.pieces.is_empty() {
                self.since = now;
            }
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }

    pub(super) fn due(&self, timeout_ms: u64) -> Option<u64> {
        (!self.pieces.is_empty()).then(|| self.since.saturating_add(timeout_ms))
    }

    pub(super) fn is_stuck(&self, now: u64, timeout_ms: u64) -> bool {
        self.due(timeout_ms).is_some_and(|due| due <= now)
    }

    fn written(&mut self, mut count: usize, now: u64) {
        self.bytes -= count;
        self.unflushed = true;
        while let Some(first) = self.pieces.front_mut() {
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.pieces.pop_front();
            self.since = now;
        }
    }

    fn poll_write<S: AsyncWrite + Unpin>(
        &self,
        stream: &mut RecordStream<S>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
            used += 1;
        }
        match ready!(Pin::new(stream).poll_write_vectored(cx, &slices[..used])) {
            Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            other => Poll::Ready(other),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ConnectionDriver<S> {
    /// Waits for the first event that can be handled.
    pub(super) async fn wait(
        &mut self,
        mut timer: Pin<&mut Sleep>,
        armed: bool,
        mut leave: Pin<&mut impl Future<Output = ()>>,
        mut evict: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<Wakeup> {
        let shared = std::sync::Arc::clone(&self.shared);
        let mut freed = std::pin::pin!(shared.memory.freed.notified());
        let starved = self.machine.is_starved();
        let (left, machine, stream, send_queue) =
            (self.left, &mut self.machine, &mut self.stream, &mut self.send_queue);
        let (completions, mailbox) = (&mut self.completions, &mut self.mailbox);
        let ordered = &mut self.ordered;
        poll_fn(|cx| {
            if !send_queue.pieces.is_empty() {
                if let Poll::Ready(written) = send_queue.poll_write(stream, cx) {
                    let count = written?;
                    shared.counters.add(Counter::BytesSent, count as u64);
                    let now = if count < send_queue.bytes { shared.config.clock.now_ms() } else { 0 };
                    send_queue.written(count, now);
                    return Poll::Ready(Ok(Wakeup::Written));
                }
            } else if send_queue.unflushed && Pin::new(&mut *stream).poll_flush(cx)?.is_ready() {
                send_queue.unflushed = false;
            }
            if let Poll::Ready(Some((task, reply))) = completions.poll_recv(cx) {
                return Poll::Ready(Ok(Wakeup::Completed(task, reply)));
            }
            if let Poll::Ready(Some(order)) = ordered.poll_recv(cx) {
                return Poll::Ready(Ok(Wakeup::Ordered(order)));
            }
            if let Poll::Ready(control) = mailbox.poll_recv(cx) {
                return Poll::Ready(Ok(Wakeup::SessionSignal(control)));
            }
            if !left && leave.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Wakeup::SessionSignal(SessionSignal::Leave)));
            }
            if evict.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Wakeup::Evicted));
            }
            if armed && timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Wakeup::Timer));
            }
            if starved && freed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Wakeup::BufferPool));
            }
            let places = machine.rx_space();
            if places.iter().all(|place| place.is_empty()) {
                return Poll::Pending;
            }
            let count = ready!(stream.poll_receive(cx, places))?;
            Poll::Ready(Ok(Wakeup::Read(count)))
        })
        .await
    }

    /// Writes all remaining output, then shuts the stream down.
    pub(super) async fn send_remaining(&mut self) -> io::Result<()> {
        loop {
            self.send_queue.fill(&mut self.machine, 0);
            if self.send_queue.pieces.is_empty() {
                self.stream.flush().await?;
                return self.stream.shutdown().await;
            }
            let (send_queue, stream) = (&mut self.send_queue, &mut self.stream);
            let count = poll_fn(|cx| send_queue.poll_write(stream, cx)).await?;
            self.shared.counters.add(Counter::BytesSent, count as u64);
            self.send_queue.written(count, 0);
        }
    }
}
