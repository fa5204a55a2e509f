//! One connection of the simulated network.
//!
//! Contract: bytes arrive in order, as latency and bandwidth allow. A cut connection returns what
//! arrived before the cut, possibly what was in flight, then `ConnectionReset`.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::{Host, NetworkFaults};
use crate::history::History;
use crate::random::RandomSource;

/// Maximum bytes of one read.
const READ_MAX: u64 = 64 << 10;
/// Percentage of reads that return very few bytes.
const CRUMBS_PERCENT: u64 = 10;

/// Bytes in flight; an empty parcel is the end of the stream.
struct Packet {
    at: Instant,
    bytes: Vec<u8>,
    taken: usize,
}

struct WirePipe {
    parcels: VecDeque<Packet>,
    under_way: usize,
    /// Time at which the link is free for the next byte.
    free_at: Instant,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

struct WireState {
    /// `pipes[side]` is what that side sends.
    pipes: [WirePipe; 2],
    gone: [bool; 2],
    cut: bool,
    frozen: bool,
    factor: u64,
    /// Bytes until it breaks.
    breaks_after: Option<u64>,
}

pub(super) struct Wire {
    number: u64,
    hosts: [Host; 2],
    quality: NetworkFaults,
    state: Mutex<WireState>,
    chance: Arc<RandomSource>,
    history: Arc<History>,
}

/// One end of a connection.
pub struct WireEnd {
    wire: Arc<Wire>,
    side: usize,
    timer: Pin<Box<Sleep>>,
}

impl WirePipe {
    fn new() -> Self {
        Self { parcels: VecDeque::new(), under_way: 0, free_at: Instant::now(), reader: None, writer: None }
    }

    fn wake(&mut self) {
        [self.reader.take(), self.writer.take()].into_iter().flatten().for_each(Waker::wake);
    }

    fn clear(&mut self) {
        self.parcels.clear();
        self.under_way = 0;
    }
}

impl WireState {
    fn cut(&mut self, discard: [bool; 2]) {
        self.cut = true;
        for (pipe, discard) in self.pipes.iter_mut().zip(discard) {
            if discard {
                pipe.clear();
            }
            pipe.wake();
        }
    }
}

impl Wire {
    pub(super) fn new(
        number: u64,
        hosts: [Host; 2],
        quality: NetworkFaults,
        breaks_after: Option<u64>,
        chance: Arc<RandomSource>,
        history: Arc<History>,
    ) -> Arc<Self> {
        let state = WireState {
            pipes: [WirePipe::new(), WirePipe::new()],
            gone: [false; 2],
            cut: false,
            frozen: false,
            factor: 1,
            breaks_after,
        };
        Arc::new(Self { number, hosts, quality, state: Mutex::new(state), chance, history })
    }

    pub(super) const fn hosts(&self) -> [Host; 2] {
        self.hosts
    }

    pub(super) fn connects(&self, host: Host) -> bool {
        self.hosts.contains(&host)
    }

    /// Breaks it; bytes in flight from a side may be discarded.
    pub(super) fn cut(&self, discard: [bool; 2]) {
        self.history.note("cut", &[self.number]);
        self.state.lock().cut(discard);
    }

    pub(super) fn freeze(&self, frozen: bool) {
        let mut state = self.state.lock();
        state.frozen = frozen;
        state.pipes.iter_mut().for_each(WirePipe::wake);
    }

    pub(super) fn slow(&self, factor: u64) {
        self.state.lock().factor = factor;
    }

    pub(super) fn cancel_break(&self) {
        self.state.lock().breaks_after = None;
    }
}

/// Returns both ends: the caller's, then the other.
pub(super) fn ends(wire: &Arc<Wire>) -> [WireEnd; 2] {
    [0, 1].map(|side| WireEnd {
        wire: wire.clone(),
        side,
        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
    })
}

impl WireEnd {
    /// Returns the number of the connection, equal at both ends and never reused.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.wire.number
    }

    /// Returns the host at the other end.
    #[must_use]
    pub fn peer(&self) -> Host {
        self.wire.hosts[1 - self.side]
    }

    /// Sends bytes and returns their number.
    fn send(&self, cx: &Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let wire = &*self.wire;
        let mut state = wire.state.lock();
        if state.cut || state.gone[1 - self.side] {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let factor = state.factor;
        let pipe = &mut state.pipes[self.side];
        let mut room = total.min(wire.quality.window - pipe.under_way);
        if total > 0 && room == 0 {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut bytes = Vec::with_capacity(room);
        for slice in slices {
            let part = slice.len().min(room);
            bytes.extend_from_slice(&slice[..part]);
            room -= part;
        }
        let sent = bytes.len();
        self.post(pipe, bytes, factor);
        if let Some(left) = state.breaks_after.as_mut() {
            *left = left.saturating_sub(sent as u64);
            if *left == 0 {
                wire.history.note("doom", &[wire.number]);
                state.cut([wire.chance.percent(50), wire.chance.percent(50)]);
            }
        }
        Poll::Ready(Ok(sent))
    }

    fn post(&self, pipe: &mut WirePipe, bytes: Vec<u8>, factor: u64) {
        let NetworkFaults { latency_us: (low, high), bytes_per_ms, .. } = self.wire.quality;
        let now = Instant::now();
        let transfer = Duration::from_micros(bytes.len() as u64 * 1000 * factor / bytes_per_ms);
        let trip = Duration::from_micros(self.wire.chance.range(low..=high) * factor);
        pipe.free_at = pipe.free_at.max(now) + transfer;
        let after = pipe.parcels.back().map_or(now, |last| last.at);
        pipe.under_way += bytes.len();
        pipe.parcels.push_back(Packet { at: (pipe.free_at + trip).max(after), bytes, taken: 0 });
        if let Some(reader) = pipe.reader.take() {
            reader.wake();
        }
    }
}

impl AsyncRead for WireEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = self.wire.clone();
        let side = self.side;
        let mut state = wire.state.lock();
        let WireState { pipes, cut, frozen, .. } = &mut *state;
        let pipe = &mut pipes[1 - side];
        let at = match pipe.parcels.front_mut() {
            None if *cut => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                pipe.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            _ if *frozen => {
                pipe.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Some(parcel) if parcel.at > Instant::now() => parcel.at,
            Some(parcel) if parcel.bytes.is_empty() => return Poll::Ready(Ok(())),
            Some(parcel) => {
                let most = if wire.chance.percent(CRUMBS_PERCENT) { 64 } else { READ_MAX };
                let most = wire.chance.range(1..=most) as usize;
                let count = most.min(buf.remaining()).min(parcel.bytes.len() - parcel.taken);
                buf.put_slice(&parcel.bytes[parcel.taken..parcel.taken + count]);
                parcel.taken += count;
                if parcel.taken == parcel.bytes.len() {
                    pipe.parcels.pop_front();
                }
                pipe.under_way -= count;
                if let Some(writer) = pipe.writer.take() {
                    writer.wake();
                }
                wire.history.note("read", &[wire.number, side as u64, count as u64]);
                return Poll::Ready(Ok(()));
            }
        };
        // A cut must wake it too.
        pipe.reader = Some(cx.waker().clone());
        drop(state);
        self.timer.as_mut().reset(at);
        if self.timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl AsyncWrite for WireEnd {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.send(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.send(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.wire.state.lock();
        if !state.cut {
            let factor = state.factor;
            let pipe = &mut state.pipes[self.side];
            if pipe.parcels.back().is_none_or(|last| !last.bytes.is_empty()) {
                self.post(pipe, Vec::new(), factor);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for WireEnd {
    fn drop(&mut self) {
        let mut state = self.wire.state.lock();
        state.gone[self.side] = true;
        if !state.cut {
            let factor = state.factor;
            let pipe = &mut state.pipes[self.side];
            if pipe.parcels.back().is_none_or(|last| !last.bytes.is_empty()) {
                self.post(pipe, Vec::new(), factor);
            }
        }
        state.pipes[1 - self.side].clear();
        // Its writer must learn that there is no reader.
        if let Some(writer) = state.pipes[1 - self.side].writer.take() {
            writer.wake();
        }
    }
}
