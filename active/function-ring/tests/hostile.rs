//! The host against engines that break the protocol. A hostile engine writes the memory file
//! itself, which is all that an engine can do.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sealstone_function_abi::layout::{SUBMISSION_BYTES, engine};
use sealstone_function_abi::{CallDescriptor, EntryError, HeapRange, RequestBody, SubmissionEntry};
use sealstone_function_ring::{BeginCallError, HostMemory, HostRing, RingViolation};
use zerocopy::IntoBytes as _;

use crate::support::small_ring;

const SOON: Duration = Duration::from_millis(50);

/// The memory that an engine can write, without any rule.
struct HostileEngine {
    file: OwnedFd,
}

impl HostileEngine {
    fn new(memory: &HostMemory) -> Self {
        Self { file: memory.descriptors()[0].try_clone_to_owned().expect("a descriptor") }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        rustix::io::pwrite(&self.file, bytes, offset as u64).expect("write the memory file");
    }

    fn set_tail(&self, tail: u32) {
        self.write(engine::SUBMISSION_TAIL, &tail.to_le_bytes());
    }

    fn put(&self, slot: usize, entry: &SubmissionEntry) {
        self.write(engine::SUBMISSIONS + slot * SUBMISSION_BYTES, entry.as_bytes());
    }
}

/// Returns a ring in its first call, whose generation is 1.
fn ring_in_call() -> (Arc<HostMemory>, HostRing, HostileEngine) {
    let (memory, mut host) = small_ring();
    host.begin_call(&CallDescriptor::default()).expect("first call");
    let hostile = HostileEngine::new(&memory);
    (memory, host, hostile)
}

fn length_request(generation: u32) -> SubmissionEntry {
    SubmissionEntry::new(generation, 9, &RequestBody::Length { object: 0 })
}

fn read_request(length: u32) -> SubmissionEntry {
    let buffer = HeapRange::new(0, length, 1 << 40).expect("a range");
    SubmissionEntry::new(1, 9, &RequestBody::Read { object: 0, offset: 0, buffer })
}

#[test]
fn tail_jump_is_violation() {
    for (tail, pending) in [(65, 65), (u32::MAX, u32::MAX), (1 << 31, 1 << 31)] {
        let (_memory, mut host, hostile) = ring_in_call();
        hostile.set_tail(tail);
        assert_eq!(host.next_request(SOON), Err(RingViolation::TailJump { pending, free: 64 }));
    }
}

#[test]
fn tail_beyond_free_slots_is_violation() {
    let (_memory, mut host, hostile) = ring_in_call();
    (0..64).for_each(|slot| hostile.put(slot, &length_request(1)));
    hostile.set_tail(64);
    for _ in 0..64 {
        assert!(host.next_request(SOON).expect("valid").is_some());
    }
    hostile.set_tail(65);
    assert_eq!(host.next_request(SOON), Err(RingViolation::TailJump { pending: 1, free: 0 }));
}

#[test]
fn malformed_entry_is_violation() {
    let (_memory, mut host, hostile) = ring_in_call();
    hostile.write(engine::SUBMISSIONS, &[0xFF; SUBMISSION_BYTES]);
    hostile.write(engine::SUBMISSIONS + 4, &1u32.to_le_bytes());
    hostile.set_tail(1);
    let violation = host.next_request(SOON).unwrap_err();
    assert_eq!(violation, RingViolation::MalformedEntry(EntryError::UnknownCode(0xFF)));
}

#[test]
fn range_outside_heap_is_violation() {
    let (memory, mut host, hostile) = ring_in_call();
    let offset = memory.heap_bytes() - 4095;
    let buffer = HeapRange::new(offset, 4096, 1 << 40).expect("a range");
    hostile.put(0, &SubmissionEntry::new(1, 9, &RequestBody::Result { data: buffer }));
    hostile.set_tail(1);
    let violation = host.next_request(SOON).unwrap_err();
    let outside = EntryError::OutsideHeap { offset, length: 4096 };
    assert_eq!(violation, RingViolation::MalformedEntry(outside));
}

#[test]
fn stale_generation_is_violation() {
    for sent in [0, 2, u32::MAX] {
        let (_memory, mut host, hostile) = ring_in_call();
        hostile.put(0, &length_request(sent));
        hostile.set_tail(1);
        assert_eq!(host.next_request(SOON), Err(RingViolation::StaleGeneration { sent, current: 1 }));
    }
}

#[test]
fn request_outside_call_is_violation() {
    let (memory, mut host) = small_ring();
    let hostile = HostileEngine::new(&memory);
    hostile.put(0, &length_request(0));
    hostile.set_tail(1);
    assert_eq!(host.next_request(SOON), Err(RingViolation::OutsideCall));
    assert_eq!(
        host.begin_call(&CallDescriptor::default()),
        Err(BeginCallError::Violation(RingViolation::OutsideCall))
    );
}

#[test]
fn request_after_return_is_violation() {
    let (_memory, mut host, hostile) = ring_in_call();
    hostile.put(0, &SubmissionEntry::new(1, 0, &RequestBody::Return { status: -5 }));
    hostile.put(1, &length_request(1));
    hostile.set_tail(2);
    let request = host.next_request(SOON).expect("valid").expect("a request");
    assert_eq!(request.body, RequestBody::Return { status: -5 });
    assert_eq!(host.next_request(SOON), Err(RingViolation::OutsideCall));
    assert!(!host.is_in_call());
}

#[test]
fn return_with_requests_is_violation() {
    let (_memory, mut host, hostile) = ring_in_call();
    hostile.put(0, &length_request(1));
    hostile.put(1, &SubmissionEntry::new(1, 0, &RequestBody::Return { status: 0 }));
    hostile.set_tail(2);
    assert!(host.next_request(SOON).expect("valid").is_some());
    assert_eq!(host.next_request(SOON), Err(RingViolation::UnfinishedRequests(1)));
}

/// An accepted request is within its limits, whatever the engine writes during the check.
#[test]
fn changing_entries_never_pass_their_check() {
    const ACCEPTED: usize = 20_000;
    let (_memory, mut host, hostile) = ring_in_call();
    let (good, bad) = (read_request(4096), read_request(u32::MAX));
    let done = AtomicBool::new(false);
    let (mut accepted, mut refused) = (0, 0);
    thread::scope(|scope| {
        let (hostile, done) = (&hostile, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for slot in 0..64 {
                    hostile.put(slot, &bad);
                    hostile.put(slot, &good);
                }
            }
        });
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut tail = 1;
        hostile.set_tail(tail);
        // After a violation a device kills the engine; this test tries the same slot again instead.
        while accepted < ACCEPTED && Instant::now() < deadline {
            match host.next_request(SOON) {
                Ok(Some(request)) => {
                    accepted += 1;
                    let RequestBody::Read { buffer, .. } = request.body else {
                        done.store(true, Ordering::Relaxed);
                        panic!("accepted {request:?}");
                    };
                    if buffer.length() != 4096 {
                        done.store(true, Ordering::Relaxed);
                        panic!("accepted {request:?}");
                    }
                    host.complete(request.cookie, 0, 0);
                    tail += 1;
                    hostile.set_tail(tail);
                }
                Ok(None) => {}
                Err(_) => refused += 1,
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(accepted, ACCEPTED);
    assert!(refused > 0, "the entries never changed during a check");
}

/// Completions that the engine never reads cost the host nothing.
#[test]
fn unread_completions_do_not_block() {
    let (_memory, mut host, hostile) = ring_in_call();
    (0..64).for_each(|slot| hostile.put(slot, &length_request(1)));
    for tail in 1..=1000 {
        hostile.set_tail(tail);
        let request = host.next_request(SOON).expect("valid").expect("a request");
        host.complete(request.cookie, 0, 0);
    }
}

#[test]
fn silent_engine_costs_only_timeout() {
    let (_memory, mut host, _hostile) = ring_in_call();
    let start = Instant::now();
    assert_eq!(host.next_request(SOON), Ok(None));
    assert!(start.elapsed() >= SOON && start.elapsed() < SOON * 1000);
}

#[test]
fn engine_cannot_write_host_region() {
    let (memory, _host, _hostile) = ring_in_call();
    let [a, b] = memory.descriptors();
    assert_eq!(rustix::io::pwrite(b, b"x", 0), Err(rustix::io::Errno::PERM));
    for (file, size) in [(a, 0), (a, 1 << 30), (b, 0), (b, 1 << 30)] {
        assert_eq!(rustix::fs::ftruncate(file, size), Err(rustix::io::Errno::PERM));
    }
}

#[test]
fn random_entries_never_break_host() {
    use rand::{Rng as _, SeedableRng as _};
    let mut random = rand::rngs::StdRng::seed_from_u64(22);
    for _ in 0..200 {
        let (_memory, mut host, hostile) = ring_in_call();
        let mut ring = vec![0; 64 * SUBMISSION_BYTES];
        random.fill(&mut ring[..]);
        for entry in ring.chunks_exact_mut(SUBMISSION_BYTES) {
            entry[0] = random.gen_range(0..17);
            entry[1..4].fill(0);
            entry[4..8].copy_from_slice(&1u32.to_le_bytes());
            if random.gen_bool(0.9) {
                entry[16..].fill(0);
            }
        }
        hostile.write(engine::SUBMISSIONS, &ring);
        hostile.set_tail(64);
        let mut buffer = vec![0; 4 << 20];
        while let Ok(Some(request)) = host.next_request(Duration::ZERO) {
            if let RequestBody::Write { data, .. } | RequestBody::Result { data } = request.body {
                assert_eq!(host.copy_from_heap(data, &mut buffer), data.length() as usize);
            }
            host.complete(request.cookie, 0, 0);
        }
    }
}
