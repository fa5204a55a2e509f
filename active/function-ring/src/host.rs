//! The host's side of the shared memory: it begins calls, receives requests, and completes them.
//!
//! Does: creates the memory files, checks every entry, wakes and stops the engine.
//! Does not: execute requests; the function service does.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sealstone_function_abi::layout::{self, COMPLETION_BYTES, SUBMISSION_BYTES, engine, host};
use sealstone_function_abi::limits::{HEAP_BYTES, REQUEST_BYTES_MAX, RING_SLOTS};
use sealstone_function_abi::{
    CallDescriptor, CompletionEntry, DescriptorError, EntryError, HeapRange, RequestBody, RingCompletion,
    SubmissionEntry,
};
use zerocopy::IntoBytes as _;
use zeroize::Zeroizing;

use crate::memory::{self, SharedMapping};
use crate::wait::{self, AdaptivePoll, SleepOutcome};

/// Wake-ups without a request in one wait, after which the engine is in violation. An engine of
/// ours sends at most one per request.
const EMPTY_WAKEUPS_MAX: u32 = 4096;
/// Bytes that [`HostRing::fill_heap`] and [`HostRing::drain_heap`] copy at once: it fits in a cache
/// of the second level.
const BOUNCE_BYTES: usize = 256 << 10;
/// Time for which both sides poll on a machine with several cores: as long as the kernel takes to
/// wake an engine.
const SPIN: Duration = Duration::from_micros(20);
/// Maximum number of attempts to wake a host that is about to sleep, and the time between them.
const INTERRUPT_TRIES_MAX: u32 = 1000;
const INTERRUPT_RETRY: Duration = Duration::from_micros(50);

/// Parameters of a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Size of the heap in bytes; a multiple of 1 MiB, 8 MiB to 1 GiB. Pages are allocated when
    /// they are used first.
    pub heap_bytes: u64,
    /// Time for which both sides poll before they sleep, as long as that usually succeeds.
    pub spin: Duration,
}

impl RingOptions {
    /// Returns the options for a machine with this many cores. On a single one nothing polls.
    #[must_use]
    pub fn for_cores(cores: usize) -> Self {
        Self { spin: if cores > 1 { SPIN } else { Duration::ZERO }, ..Self::default() }
    }
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { heap_bytes: HEAP_BYTES, spin: Duration::ZERO }
    }
}

/// The memory that a host shares with one engine.
pub struct HostMemory {
    /// Region A: the engine writes it.
    engine_file: OwnedFd,
    /// Region B: only this process writes it.
    host_file: OwnedFd,
    engine_region: SharedMapping,
    host_region: SharedMapping,
    heap_bytes: u64,
    spin: Duration,
    /// Number of the latest call.
    generation: AtomicU32,
    /// Bytes of method and arguments of the latest call that are not cleared yet.
    method_bytes: AtomicUsize,
    argument_bytes: AtomicUsize,
    /// Whether the host's thread is in a wait, or about to.
    is_waiting: AtomicBool,
    /// Whether a wait must end.
    interrupted: AtomicBool,
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory").field("heap_bytes", &self.heap_bytes).finish_non_exhaustive()
    }
}

impl HostMemory {
    /// Creates both memory files, maps and seals them.
    ///
    /// # Errors
    ///
    /// The size of the heap is not permitted (`InvalidInput`), or the kernel refuses the memory.
    pub fn create(options: RingOptions) -> io::Result<Self> {
        let heap_bytes = options.heap_bytes;
        if !layout::is_heap_size(heap_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let engine_bytes = engine::region_bytes(heap_bytes);
        let engine_file = memory::create_file("sealstone-engine-ring", engine_bytes)?;
        let host_file = memory::create_file("sealstone-host-ring", host::REGION_BYTES as u64)?;
        let engine_bytes = usize::try_from(engine_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let engine_region = SharedMapping::new(engine_file.as_fd(), engine_bytes, true)?;
        let host_region = SharedMapping::new(host_file.as_fd(), host::REGION_BYTES, true)?;
        memory::seal(&engine_file, false)?;
        memory::seal(&host_file, true)?;
        let spin = options.spin.min(Duration::from_millis(1));
        host_region.store_entry(host::HEADER, &layout::encode_header(heap_bytes));
        host_region.store(host::SPIN_NS, spin.as_nanos() as u32);
        Ok(Self {
            engine_file,
            host_file,
            engine_region,
            host_region,
            heap_bytes,
            spin,
            generation: AtomicU32::new(0),
            method_bytes: AtomicUsize::new(0),
            argument_bytes: AtomicUsize::new(0),
            is_waiting: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
        })
    }

    /// Returns the descriptors that the engine receives, in the order that it expects.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.engine_file.as_fd(), self.host_file.as_fd()]
    }

    /// Returns the size of the heap in bytes.
    #[must_use]
    pub const fn heap_bytes(&self) -> u64 {
        self.heap_bytes
    }

    fn store_time(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.host_region.store_long(host::CLOCK_MS, now.as_millis() as u64);
    }

    /// Overwrites method and arguments, which may be secret. The bytes after them are always zero.
    fn clear_call(&self) {
        self.host_region.clear(host::METHOD, self.method_bytes.swap(0, Ordering::Relaxed));
        self.host_region.clear(host::ARGUMENTS, self.argument_bytes.swap(0, Ordering::Relaxed));
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.clear_call();
    }
}

/// Controls a ring from other threads.
#[derive(Clone, Debug)]
pub struct RingControl {
    memory: Arc<HostMemory>,
}

impl RingControl {
    /// Sets the cancel flag of the running call, which the function reads without a request.
    pub fn set_cancelled(&self) {
        let generation = self.memory.generation.load(Ordering::Acquire);
        self.memory.host_region.store(host::CANCELLED, generation);
    }

    /// Ends the current wait of the host's thread, or its next one, with no request.
    pub fn interrupt(&self) {
        self.memory.interrupted.store(true, Ordering::SeqCst);
        for _ in 0..INTERRUPT_TRIES_MAX {
            // The wake is lost if that thread has checked the flag and does not sleep yet.
            if !self.memory.is_waiting.load(Ordering::SeqCst)
                || !self.memory.interrupted.load(Ordering::SeqCst)
            {
                return;
            }
            wait::wake(self.memory.engine_region.word(engine::SUBMISSION_TAIL));
            std::thread::sleep(INTERRUPT_RETRY);
        }
    }

    /// Makes the engine exit when it next waits for a call.
    pub fn stop_engine(&self) {
        self.memory.host_region.store(host::STOP, 1);
        let generation = self.memory.host_region.word(host::GENERATION);
        generation.fetch_add(1, Ordering::SeqCst);
        wait::wake(generation);
    }
}

/// A request that an engine sent, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRequest {
    /// Number by which the engine finds its request again.
    pub cookie: u64,
    /// The request.
    pub body: RequestBody,
}

/// A breach of the protocol. The engine must be killed, and its memory must not be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingViolation {
    /// The tail of the submission ring moved by more than the free slots.
    #[error("submission tail moved by {pending}, but {free} slots are free")]
    TailJump {
        /// Slots that the tail claims.
        pending: u32,
        /// Slots that are free.
        free: u32,
    },
    /// The entry is malformed.
    #[error("malformed request: {0}")]
    MalformedEntry(#[from] EntryError),
    /// The entry belongs to another call.
    #[error("request of call {sent}, but call {current} runs")]
    StaleGeneration {
        /// Call in the entry.
        sent: u32,
        /// The running call.
        current: u32,
    },
    /// A request arrived while no call runs.
    #[error("request outside of a call")]
    OutsideCall,
    /// The call ended while requests were in flight.
    #[error("call ended with {0} requests in flight")]
    UnfinishedRequests(u32),
    /// The engine woke the host many times without a request.
    #[error("{EMPTY_WAKEUPS_MAX} wake-ups without a request")]
    DoorbellStorm,
}

/// Why a call cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginCallError {
    /// The descriptor exceeds a limit.
    #[error("invalid call: {0}")]
    Descriptor(#[from] DescriptorError),
    /// A call runs.
    #[error("a call runs in this engine")]
    CallRuns,
    /// The engine broke the protocol since the last call.
    #[error("engine broke the protocol: {0}")]
    Violation(#[from] RingViolation),
}

/// The host's end of a ring, for one service thread.
#[derive(Debug)]
pub struct HostRing {
    memory: Arc<HostMemory>,
    /// Entries that were taken, modulo 2^32.
    submission_head: u32,
    /// Entries that were completed, modulo 2^32.
    completion_tail: u32,
    /// Requests that were taken and not completed.
    in_flight: u32,
    is_in_call: bool,
    poll: AdaptivePoll,
    /// Bytes of an object on their way to the heap. They can be a key, so no copy is left in freed
    /// memory.
    bounce: Zeroizing<Vec<u8>>,
}

impl HostRing {
    /// Returns the host's end of a memory. There must be only one.
    #[must_use]
    pub fn new(memory: Arc<HostMemory>) -> Self {
        Self {
            poll: AdaptivePoll::new(memory.spin),
            memory,
            submission_head: 0,
            completion_tail: 0,
            in_flight: 0,
            is_in_call: false,
            bounce: Zeroizing::default(),
        }
    }

    /// Returns a handle for other threads.
    #[must_use]
    pub fn control(&self) -> RingControl {
        RingControl { memory: Arc::clone(&self.memory) }
    }

    /// Returns the memory.
    #[must_use]
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// Whether a call runs.
    #[must_use]
    pub const fn is_in_call(&self) -> bool {
        self.is_in_call
    }

    /// Describes a call to the engine and starts it. It ends with a [`RequestBody::Return`].
    ///
    /// # Errors
    ///
    /// A call runs, a limit is exceeded, or the engine broke the protocol.
    pub fn begin_call(&mut self, call: &CallDescriptor<'_>) -> Result<(), BeginCallError> {
        if self.is_in_call {
            return Err(BeginCallError::CallRuns);
        }
        let header = call.encode_header()?;
        if self.pending() != 0 {
            return Err(RingViolation::OutsideCall.into());
        }
        let region = &self.memory.host_region;
        region.copy_in(host::DESCRIPTOR, &header);
        region.copy_in(host::OBJECTS, call.objects.as_bytes());
        self.memory.method_bytes.store(call.method.len(), Ordering::Relaxed);
        self.memory.argument_bytes.store(call.arguments.len(), Ordering::Relaxed);
        region.copy_in(host::METHOD, call.method.as_bytes());
        region.copy_in(host::ARGUMENTS, call.arguments);
        self.memory.store_time();
        let generation = self.memory.generation.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.memory.generation.store(generation, Ordering::Release);
        region.store(host::GENERATION, generation);
        self.is_in_call = true;
        wait::wake_if_sleeping(
            region.word(host::GENERATION),
            self.memory.engine_region.word(engine::SLEEPING),
        );
        Ok(())
    }

    fn pending(&self) -> u32 {
        self.memory.engine_region.load(engine::SUBMISSION_TAIL).wrapping_sub(self.submission_head)
    }

    /// Waits for the next request; `None` after the timeout or an interrupt.
    ///
    /// # Errors
    ///
    /// The engine broke the protocol and must be killed.
    pub fn next_request(&mut self, timeout: Duration) -> Result<Option<RingRequest>, RingViolation> {
        if self.pending() == 0 && !self.wait_for_entry(timeout)? {
            return Ok(None);
        }
        self.take_entry().map(Some)
    }

    /// Waits until the tail moves; false after the timeout or an interrupt.
    fn wait_for_entry(&mut self, timeout: Duration) -> Result<bool, RingViolation> {
        let (head, engine_region) = (self.submission_head, &self.memory.engine_region);
        if self.poll.poll(timeout, || engine_region.load(engine::SUBMISSION_TAIL) != head) {
            return Ok(true);
        }
        let memory = &self.memory;
        let tail = memory.engine_region.word(engine::SUBMISSION_TAIL);
        let deadline = Instant::now() + timeout;
        let is_sleeping = memory.host_region.word(host::SLEEPING);
        memory.is_waiting.store(true, Ordering::SeqCst);
        let mut empty_wakeups = 0;
        let outcome = loop {
            if memory.interrupted.swap(false, Ordering::SeqCst) {
                break Ok(false);
            }
            wait::announce(is_sleeping);
            if self.pending() != 0 {
                break Ok(true);
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break Ok(false);
            }
            if wait::sleep(tail, self.submission_head, Some(rest)) == SleepOutcome::Woken
                && self.pending() == 0
            {
                empty_wakeups += 1;
                if empty_wakeups > EMPTY_WAKEUPS_MAX {
                    break Err(RingViolation::DoorbellStorm);
                }
            }
        };
        wait::withdraw(is_sleeping);
        memory.is_waiting.store(false, Ordering::SeqCst);
        outcome
    }

    /// Copies the next entry and checks the copy.
    fn take_entry(&mut self) -> Result<RingRequest, RingViolation> {
        let (pending, free) = (self.pending(), RING_SLOTS - self.in_flight);
        if pending > free {
            return Err(RingViolation::TailJump { pending, free });
        }
        if !self.is_in_call {
            return Err(RingViolation::OutsideCall);
        }
        let slot = (self.submission_head % RING_SLOTS) as usize;
        let bytes: [u8; SUBMISSION_BYTES] =
            self.memory.engine_region.copy_entry(engine::SUBMISSIONS + slot * SUBMISSION_BYTES);
        let entry: SubmissionEntry = zerocopy::transmute!(bytes);
        let (sent, current) = (entry.generation(), self.generation());
        if sent != current {
            return Err(RingViolation::StaleGeneration { sent, current });
        }
        let body = entry.parse(self.memory.heap_bytes)?;
        self.submission_head = self.submission_head.wrapping_add(1);
        if let RequestBody::Return { .. } = body {
            if self.in_flight != 0 {
                return Err(RingViolation::UnfinishedRequests(self.in_flight));
            }
            self.is_in_call = false;
            self.memory.clear_call();
        } else {
            self.in_flight += 1;
        }
        Ok(RingRequest { cookie: entry.cookie(), body })
    }

    fn generation(&self) -> u32 {
        self.memory.generation.load(Ordering::Relaxed)
    }

    /// Sends the outcome of a request: a count or a negative error number, and a second value. A
    /// [`RequestBody::Return`] has none.
    pub fn complete(&mut self, cookie: u64, result: i64, value: u64) {
        let entry = CompletionEntry::new(self.generation(), RingCompletion { cookie, result, value });
        let bytes: [u8; COMPLETION_BYTES] = zerocopy::transmute!(entry);
        let slot = (self.completion_tail % RING_SLOTS) as usize;
        let region = &self.memory.host_region;
        region.store_entry(host::COMPLETIONS + slot * COMPLETION_BYTES, &bytes);
        self.memory.store_time();
        self.completion_tail = self.completion_tail.wrapping_add(1);
        self.in_flight = self.in_flight.saturating_sub(1);
        region.store(host::COMPLETION_TAIL, self.completion_tail);
        wait::wake_if_sleeping(
            region.word(host::COMPLETION_TAIL),
            self.memory.engine_region.word(engine::SLEEPING),
        );
    }

    fn heap_offset(range: HeapRange) -> usize {
        engine::HEAP + range.offset() as usize
    }

    /// Copies the first bytes of a heap range; returns how many. The engine can change the heap at
    /// any time, so only the copy may be checked or hashed.
    pub fn copy_from_heap(&self, range: HeapRange, into: &mut [u8]) -> usize {
        let length = into.len().min(range.length() as usize);
        self.memory.engine_region.copy_out(Self::heap_offset(range), &mut into[..length])
    }

    /// Copies bytes to the start of a heap range; returns how many fit.
    pub fn copy_to_heap(&self, range: HeapRange, from: &[u8]) -> usize {
        let length = from.len().min(range.length() as usize);
        self.memory.engine_region.copy_in(Self::heap_offset(range), &from[..length])
    }

    /// Fills a heap range from a reader, in parts of 256 KiB that stay in the cache. The reader
    /// receives the offset in the range, and returns fewer bytes than requested only at its end.
    ///
    /// # Errors
    ///
    /// The first error of the reader. A short count would look like the end of the object, so bytes
    /// before the error do not count.
    pub fn fill_heap<E>(
        &mut self,
        range: HeapRange,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let mut bounce = self.take_bounce(range);
        let (length, start) = (range.length() as usize, Self::heap_offset(range));
        let mut filled = 0;
        let outcome = loop {
            let part = bounce.len().min(length - filled);
            if part == 0 {
                break Ok(filled);
            }
            match read(filled as u64, &mut bounce[..part]) {
                Ok(count) => {
                    let count = count.min(part);
                    filled += self.memory.engine_region.copy_in(start + filled, &bounce[..count]);
                    if count < part {
                        break Ok(filled);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.bounce = bounce;
        outcome
    }

    /// Passes the bytes of a heap range to a writer, in parts of at most 256 KiB, each copied once
    /// before it is used. The writer receives the offset in the range.
    ///
    /// # Errors
    ///
    /// The first error of the writer, with the number of bytes that were written before.
    pub fn drain_heap<E>(
        &mut self,
        range: HeapRange,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<usize, (usize, E)> {
        let mut bounce = self.take_bounce(range);
        let (length, start) = (range.length() as usize, Self::heap_offset(range));
        // Functions store into the buffers of streams themselves. Engines copy into the transfer
        // area past the caches, so flushing it would gain nothing.
        let is_of_stream = range.offset() >= u64::from(REQUEST_BYTES_MAX);
        let mut done = 0;
        let outcome = loop {
            let part = bounce.len().min(length - done);
            if part == 0 {
                break Ok(done);
            }
            if is_of_stream {
                self.memory.engine_region.copy_out_once(start + done, &mut bounce[..part]);
            } else {
                self.memory.engine_region.copy_out(start + done, &mut bounce[..part]);
            }
            match write(done as u64, &bounce[..part]) {
                Ok(()) => done += part,
                Err(error) => break Err((done, error)),
            }
        };
        self.bounce = bounce;
        outcome
    }

    fn take_bounce(&mut self, range: HeapRange) -> Zeroizing<Vec<u8>> {
        let bounce = std::mem::take(&mut self.bounce);
        let needed = BOUNCE_BYTES.min(range.length() as usize);
        // A longer buffer is a new one, because growth would leave a copy of the bytes.
        if bounce.len() < needed { Zeroizing::new(vec![0; needed]) } else { bounce }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// An engine that only wakes the host makes it work for nothing, and not for long.
    #[test]
    fn doorbell_storm_is_violation() {
        let memory = Arc::new(HostMemory::create(RingOptions::default()).expect("memory files"));
        let mut ring = HostRing::new(Arc::clone(&memory));
        let done = AtomicBool::new(false);
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    wait::wake(memory.engine_region.word(engine::SUBMISSION_TAIL));
                }
            });
            let outcome = ring.next_request(Duration::from_secs(30));
            done.store(true, Ordering::Relaxed);
            outcome
        });
        assert_eq!(outcome, Err(RingViolation::DoorbellStorm));
    }

    #[test]
    fn heap_parts_pass_through_private_memory() {
        let memory = Arc::new(HostMemory::create(RingOptions::default()).expect("memory files"));
        let mut ring = HostRing::new(Arc::clone(&memory));
        let range = HeapRange::new(5, (BOUNCE_BYTES * 2 + 9) as u32, memory.heap_bytes()).expect("a range");
        let bytes: Vec<u8> = (0..range.length()).map(|n| (n % 253) as u8).collect();
        let fill = |at: u64, part: &mut [u8]| {
            part.copy_from_slice(&bytes[at as usize..at as usize + part.len()]);
            Ok::<_, ()>(part.len())
        };
        assert_eq!(ring.fill_heap(range, fill), Ok(bytes.len()));
        let mut drained = Vec::new();
        let collect = |at: u64, part: &[u8]| {
            assert_eq!(at as usize, drained.len());
            drained.extend_from_slice(part);
            Ok::<_, ()>(())
        };
        assert_eq!(ring.drain_heap(range, collect), Ok(bytes.len()));
        assert!(drained == bytes);
        assert_eq!(ring.fill_heap(range, |at, _| if at == 0 { Ok(7) } else { Err(()) }), Ok(7));
        let late = |at: u64, part: &mut [u8]| if at == 0 { Ok(part.len()) } else { Err("late") };
        assert_eq!(ring.fill_heap(range, late), Err("late"));
        let limit = |at: u64, _: &[u8]| if at == 0 { Ok(()) } else { Err("full") };
        assert_eq!(ring.drain_heap(range, limit), Err((BOUNCE_BYTES, "full")));
    }
}
