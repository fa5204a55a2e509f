//! Tests of the nonce memory, across clock steps and restarts.

use super::*;
use core::cell::RefCell;
use proptest::prelude::*;
use std::sync::{Mutex as StdMutex, PoisonError};

struct Std;
impl Locks for Std {
    type Mutex<T: Send + 'static> = StdLock<T>;
}
struct StdLock<T>(StdMutex<RefCell<T>>);
impl<T: Send> Mutex<T> for StdLock<T> {
    fn new(value: T) -> Self {
        Self(StdMutex::new(RefCell::new(value)))
    }
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).borrow_mut())
    }
}

const NOW: u64 = 0x019b_76da_abe8;
const ALICE: CredentialId = CredentialId(0x1111_2222_3333_4444);
const MALLORY: CredentialId = CredentialId(0x5555_6666_7777_8888);

fn memory(limits: NonceLimits) -> NonceMemory<Std> {
    let memory = NonceMemory::new(limits, &[7; 16], 0);
    memory.extend_lease(TIME_MAX_MS);
    memory
}

fn nonce(time: u64, number: u64) -> Nonce {
    let [_, _, random @ ..] = number.to_be_bytes();
    Nonce::new(time, random)
}

#[test]
fn a_nonce_is_accepted_once() {
    let memory = memory(NonceLimits::default());
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW), Ok(()));
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW + 19_000), Err(NonceError::Replayed));
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 2), NOW), Ok(()));
}

#[test]
fn nonces_of_credentials_are_independent() {
    let memory = memory(NonceLimits::default());
    assert_eq!(memory.admit(MALLORY, &nonce(NOW, 1), NOW), Ok(()));
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW), Ok(()));
}

#[test]
fn only_the_window_is_accepted() {
    let memory = memory(NonceLimits::default());
    for time in [NOW - 21_000, NOW - 20_001, NOW + 10_001, NOW + 11_000, 0, TIME_MAX_MS] {
        assert_eq!(memory.admit(ALICE, &nonce(time, 1), NOW), Err(NonceError::OutOfWindow), "{time}");
    }
    for time in [NOW - 20_000, NOW, NOW + 10_000] {
        assert_eq!(memory.admit(ALICE, &nonce(time, 1), NOW), Ok(()), "{time}");
    }
}

#[test]
fn clock_step_back_reopens_no_nonce() {
    let memory = memory(NonceLimits { shards: 1, ..NonceLimits::default() });
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW), Ok(()));
    assert_eq!(memory.admit(ALICE, &nonce(NOW + 100_000, 2), NOW + 100_000), Ok(()));
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW), Err(NonceError::OutOfWindow));
}

/// Returns how many of `count` requests of a credential are accepted.
fn accepted(memory: &NonceMemory<Std>, who: CredentialId, count: u64) -> usize {
    (0..count).filter(|number| memory.admit(who, &nonce(NOW, *number), NOW).is_ok()).count()
}

/// Returns a credential with its own cells among those of a test.
fn who(number: u64) -> CredentialId {
    CredentialId(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) << 16 | number << 8 | number)
}

#[test]
fn single_credential_reaches_200_000_requests_per_second() {
    let memory = memory(NonceLimits::default());
    assert_eq!(accepted(&memory, ALICE, 200_000), 200_000);
    // 2 MiB for that second, and the counters of its shares.
    assert!(memory.bytes() <= (2 << 20) + 16 * size_of::<Shares>(), "{}", memory.bytes());
}

#[test]
fn greedy_credential_gets_at_most_two_thirds() {
    let limits = NonceLimits { slots_per_second: 1 << 16, shards: 4, ..NonceLimits::default() };
    let memory = memory(limits);
    let full = (1 << 16) * FULL_PERCENT / 100;
    let shared = full - full / RESERVE_PART;
    let greedy = accepted(&memory, MALLORY, 300_000);
    assert!((greedy * 3).abs_diff(shared * 2) < shared / 50, "{greedy} of {shared}");
    assert_eq!(memory.admit(MALLORY, &nonce(NOW, 300_001), NOW), Err(NonceError::Share));
    assert_eq!(accepted(&memory, ALICE, 10_000), 10_000);
    assert_eq!(memory.admit(MALLORY, &nonce(NOW + 1000, 1), NOW), Ok(()), "the next second");
}

#[test]
fn forty_greedy_credentials_leave_room_for_small_ones() {
    let limits = NonceLimits { slots_per_second: 1 << 13, shards: 1, ..NonceLimits::default() };
    let memory = memory(limits);
    for greedy in 1..=40 {
        accepted(&memory, who(greedy), 8_000);
    }
    let small = (1 << 13) * FULL_PERCENT / 100 / SMALL_PART;
    for honest in 101..=120 {
        assert!(accepted(&memory, who(honest), 100) >= small, "credential {honest}");
    }
}

#[test]
fn full_second_refuses_and_keeps_nonces() {
    let memory = memory(NonceLimits { slots_per_second: 256, shards: 1, ..NonceLimits::default() });
    let all: Vec<_> = (0..250u64).map(|n| (who(n), nonce(NOW, n))).collect();
    let first: Vec<_> = all.iter().map(|(who, n)| memory.admit(*who, n, NOW)).collect();
    assert_eq!(first.iter().filter(|result| result.is_ok()).count(), 256 * FULL_PERCENT / 100);
    assert_eq!(first[249], Err(NonceError::Full));
    for ((who, n), first) in all.iter().zip(first) {
        let again = memory.admit(*who, n, NOW);
        assert_eq!(again, Err(if first.is_ok() { NonceError::Replayed } else { NonceError::Full }));
    }
}

#[test]
fn clean_shutdown_reduces_the_lease() {
    let memory = memory(NonceLimits::default());
    assert_eq!(memory.admit(ALICE, &nonce(NOW + 300, 1), NOW), Ok(()));
    assert_eq!(memory.admit(ALICE, &nonce(NOW - 300, 1), NOW), Ok(()));
    assert_eq!(memory.admit(ALICE, &nonce(NOW - 30_000, 1), NOW), Err(NonceError::OutOfWindow));
    assert_eq!(memory.retire(), NOW + 300);
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 2), NOW), Err(NonceError::OutOfWindow), "it is over");
    let next = NonceMemory::<Std>::new(NonceLimits::default(), &[2; 16], NOW + 300);
    next.extend_lease(NOW + 3000);
    assert_eq!(next.admit(ALICE, &nonce(NOW + 300, 1), NOW), Err(NonceError::OutOfWindow));
    assert_eq!(next.admit(ALICE, &nonce(NOW + 301, 1), NOW), Ok(()));
}

#[test]
fn restart_refuses_nonces_before_the_lease() {
    let memory = NonceMemory::<Std>::new(NonceLimits::default(), &[1; 16], NOW);
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW), Err(NonceError::OutOfWindow));
    assert_eq!(
        memory.admit(ALICE, &nonce(NOW + 1, 1), NOW + 1),
        Err(NonceError::OutOfWindow),
        "no lease yet"
    );
    let lease = memory.lease_due(NOW + 1).unwrap();
    assert_eq!(lease, NOW + 1 + LEASE_AHEAD_MS);
    memory.extend_lease(lease);
    assert_eq!(memory.lease_due(NOW + 1), None);
    assert_eq!(memory.admit(ALICE, &nonce(NOW + 1, 1), NOW + 1), Ok(()));
    assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW + 1), Err(NonceError::OutOfWindow));
    assert_eq!(memory.admit(ALICE, &nonce(lease + 1, 1), NOW + 1), Err(NonceError::OutOfWindow));
}

#[test]
fn clock_set_back_one_hour_prevents_start() {
    let wrong = ClockBehind::Wrong { behind_ms: 3_600_000 };
    assert_eq!(clock_after_restart(NOW - 3_600_000, NOW), Err(wrong));
    assert_eq!(clock_after_restart(NOW - 5_000, NOW), Err(ClockBehind::Settling { wait_ms: 2_000 }));
    assert_eq!(clock_after_restart(NOW - 3_000, NOW), Ok(NOW + 1));
    assert_eq!(clock_after_restart(NOW, NOW), Ok(NOW + 1));
    assert_eq!(clock_after_restart(NOW + 5, NOW), Ok(NOW + 5));
}

#[test]
fn repeated_restarts_keep_clock_within_two_leases() {
    let (mut machine, mut lease) = (NOW, 0);
    for restart in 0..1000 {
        let memory = NonceMemory::<Std>::new(NonceLimits::default(), &[1; 16], lease);
        let mut waited_ms = 0;
        let clock = loop {
            match clock_after_restart(machine, lease) {
                Ok(clock) => break clock,
                Err(ClockBehind::Settling { wait_ms }) => {
                    waited_ms += wait_ms;
                    machine += wait_ms;
                }
                Err(wrong) => panic!("restart {restart}: {wrong}"),
            }
        };
        assert!(waited_ms <= LEASE_AHEAD_MS, "restart {restart} waits {waited_ms} ms");
        assert!(clock <= machine + CLOCK_AHEAD_MAX_MS + 1);
        lease = memory.lease_due(clock).unwrap_or(lease);
        memory.extend_lease(lease);
        assert_eq!(memory.admit(ALICE, &nonce(clock, restart), clock), Ok(()));
        // It crashes ten milliseconds later.
        machine += 10;
    }
}

#[test]
fn client_with_resynced_clock_is_accepted_after_restart() {
    for machine in [NOW - 1_500, NOW - 1, NOW, NOW + 1] {
        let memory = NonceMemory::<Std>::new(NonceLimits::default(), &[1; 16], NOW);
        let clock = clock_after_restart(machine, NOW).unwrap();
        memory.extend_lease(memory.lease_due(clock).unwrap());
        assert_eq!(memory.admit(ALICE, &nonce(clock, 1), clock), Ok(()), "told {clock} at {machine}");
    }
}

#[test]
fn nonce_memory_is_small_idle_and_bounded_busy() {
    let limits = NonceLimits { slots_per_second: 1 << 12, ..NonceLimits::default() };
    let memory = memory(limits);
    assert_eq!(memory.bytes(), 0);
    for second in 0..100 {
        let now = NOW + second * 1000;
        for number in 0..5000_u64 {
            let who = CredentialId(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let _ = memory.admit(who, &nonce(now, number), now);
        }
        assert!(memory.bytes() <= limits.bytes_max());
    }
    memory.sweep(NOW + 200_000);
    assert_eq!(memory.bytes(), 0);
    assert!(NonceLimits::default().bytes_max() < 148 << 20, "{}", NonceLimits::default().bytes_max());
}

#[test]
fn of_64_threads_with_one_request_one_wins() {
    let memory = memory(NonceLimits::default());
    let wins: usize = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..64)
            .map(|_| scope.spawn(|| usize::from(memory.admit(ALICE, &nonce(NOW, 9), NOW).is_ok())))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
}

/// A device with memory, durable history and clock, as its guard keeps them.
struct Device {
    memory: NonceMemory<Std>,
    history: NonceHistory,
    clock_ms: u64,
}

impl Device {
    fn start(history: NonceHistory, clock_ms: u64) -> Self {
        let limits = NonceLimits { slots_per_second: 1024, shards: 2, ..NonceLimits::default() };
        let memory = NonceMemory::new(limits, &[3; 16], history.lease_ms());
        memory.refuse_spent(history.spent());
        Self { memory, history, clock_ms }
    }

    fn set_back(&mut self, clock_ms: u64) {
        self.history = self.history.set_back(clock_ms);
        self.memory.begin_era(&self.history);
        self.clock_ms = clock_ms;
    }

    /// Sets the clock as at start and in upkeep: a clock that is far behind the lease closes the
    /// era.
    fn go_to(&mut self, clock_ms: u64) {
        if clock_ms + LEASE_AHEAD_MS < self.clock_ms.max(self.history.lease_ms()) {
            self.set_back(clock_ms);
        }
        self.clock_ms = self.clock_ms.max(clock_ms);
        if let Some(due) = self.memory.lease_due(self.clock_ms) {
            self.history = self.history.extended(due, OLD_MS);
            self.memory.refuse_spent(self.history.spent());
            self.memory.extend_lease(due);
        }
    }
}

#[test]
fn corrected_clock_accepts_nonces_at_once() {
    let days = 3 * 86_400_000;
    let mut device = Device::start(NonceHistory::default(), NOW);
    device.go_to(NOW);
    let early = nonce(NOW, 1);
    assert_eq!(device.memory.admit(ALICE, &early, NOW), Ok(()));
    device.go_to(NOW + days);
    let wrong = nonce(NOW + days, 1);
    assert_eq!(device.memory.admit(ALICE, &wrong, NOW + days), Ok(()));
    device.go_to(NOW + 30_000);
    assert_eq!(device.memory.spent_for_ms(device.clock_ms), 0);
    let fresh = nonce(NOW + 30_000, 1);
    assert_eq!(device.memory.admit(ALICE, &fresh, NOW + 30_000), Ok(()));
    for old in [early, wrong, fresh] {
        assert!(device.memory.admit(ALICE, &old, device.clock_ms).is_err());
    }
    // A command that read the clock before it was set back changes nothing.
    assert_eq!(device.memory.admit(ALICE, &nonce(NOW + days, 2), NOW + days), Err(NonceError::OutOfWindow));
    device.memory.sweep(NOW + days);
    assert_eq!(device.memory.admit(ALICE, &nonce(NOW + 30_000, 2), NOW + 30_000), Ok(()));
    // Three days later the used times are refused, and no others.
    device.go_to(NOW + days - 60_000);
    device.go_to(NOW + days + 1_000);
    assert_eq!(device.memory.spent_for_ms(NOW + days + 1_000), LEASE_AHEAD_MS - 1_000 + 1);
    assert_eq!(device.memory.admit(ALICE, &wrong, NOW + days + 1_000), Err(NonceError::OutOfWindow));
    device.go_to(NOW + days + 4_000);
    let after = nonce(NOW + days + 4_000, 1);
    assert_eq!(device.memory.admit(ALICE, &after, NOW + days + 4_000), Ok(()));
}

proptest! {
    /// Through clock steps in both directions and restarts in between, no (credential, nonce) is
    /// accepted twice.
    #[test]
    fn no_step_of_the_clock_revives_a_nonce(steps in proptest::collection::vec(
        (0..8u8, 0..4u64, 0..12u64, 0..4u64), 1..300)) {
        let mut device = Device::start(NonceHistory::default(), NOW);
        let mut seen = std::collections::BTreeSet::new();
        for (step, who, place, number) in steps {
            let place_ms = NOW + place * 13_000;
            match step {
                0 => device.go_to(place_ms),
                1 => device.go_to(place_ms + 86_400_000),
                2 => device = Device::start(device.history.clone(), place_ms),
                3 => {
                    let retired = device.history.retired(device.memory.retire().max(device.clock_ms));
                    device = Device::start(retired, device.clock_ms);
                    device.go_to(device.clock_ms + 1);
                }
                _ => {
                    // Near the clock, so that most are accepted, and at few times, so that they
                    // repeat.
                    let time = (device.clock_ms / 2_000 * 2_000).saturating_sub(place * 1_000);
                    let one = nonce(time, number);
                    if device.memory.admit(CredentialId(who), &one, device.clock_ms).is_ok() {
                        prop_assert!(seen.insert((who, one.0)), "{time} at {}", device.clock_ms);
                    }
                }
            }
        }
    }

    /// Spans are ordered and do not touch, and none is lost when there are too many.
    #[test]
    fn closed_eras_are_bounded_and_cover_all(spans in proptest::collection::vec((0..10_000u64, 0..50u64), 1..60)) {
        let spans: Vec<_> =
            spans.iter().map(|&(from_ms, len)| TimeSpan { from_ms, to_ms: from_ms + len }).collect();
        let history = NonceHistory::new(20_000, 20_000, &spans);
        prop_assert!(history.spent().len() <= SPENT_MAX);
        prop_assert!(history.spent().windows(2).all(|two| two[0].to_ms + 1 < two[1].from_ms));
        let covered = |ms| history.spent().iter().any(|span| (span.from_ms..=span.to_ms).contains(&ms));
        for span in spans {
            prop_assert!((span.from_ms..=span.to_ms).all(covered));
        }
    }

    /// For any order of times and clocks, no (credential, nonce) is accepted twice.
    #[test]
    fn nothing_is_accepted_twice(steps in proptest::collection::vec(
        (0..4u64, 0..60_000u64, 0..6u64, 0..60_000u64), 1..200)) {
        let memory = memory(NonceLimits { slots_per_second: 1024, shards: 2, ..NonceLimits::default() });
        let mut seen = std::collections::BTreeSet::new();
        for (who, time, number, clock) in steps {
            // Few distinct times, so that repetitions happen.
            let nonce = nonce(NOW + time / 4000 * 4000, number);
            if memory.admit(CredentialId(who), &nonce, NOW + clock).is_ok() {
                prop_assert!(seen.insert((who, nonce.0)));
            }
        }
    }
}
