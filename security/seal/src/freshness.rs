//! The nonce memory: each signed request runs once.
//!
//! Does: the time window, remembering what was seen, shares, the high-water lease that survives a restart.
//! Does not: read a clock, store the lease (the caller does), or look at anything but credential, nonce and clock.
//! Contract: check and insert are one step. Whatever cannot be remembered is refused; nothing is ever evicted. The
//! oldest acceptable time never goes back, even if the clock does.
//! Truth: docs/design/security.md 3.4.
//!
//! Cost: 8 bytes a nonce at a load of 0.41 to 0.81 (up to 0.9 in a full second), kept for the window and two
//! seconds. A second starts with [`SLOTS_START`] slots a shard and doubles, so an idle device holds nothing and a
//! slow one some kilobytes; [`NonceLimits::slots_per_second`] bounds the whole.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::keyed_hash::KeyedHash;
use crate::nonce::{NONCE_LEN, Nonce, TIME_MAX_MS};
use crate::provider::{Locks, Mutex};

/// Slots with which a second begins, each shard; doubled as they fill.
pub const SLOTS_START: usize = 64;
/// Longest window in either direction, milliseconds.
pub const WINDOW_MAX_MS: u64 = 5 * 60 * 1000;
/// Default age of the oldest nonce accepted, milliseconds.
pub const OLD_MS: u64 = 20_000;
/// Default lead of the newest nonce accepted, milliseconds.
pub const NEW_MS: u64 = 10_000;
/// How far ahead of the clock the lease is kept, milliseconds.
pub const LEASE_AHEAD_MS: u64 = 3_000;
/// The lease is renewed when it is less than this ahead, milliseconds.
pub const LEASE_LOW_MS: u64 = 2_000;
/// A clock further behind the lease than this at start is wrong, milliseconds.
pub const CLOCK_BACK_MAX_MS: u64 = 60_000;
/// A second is full at this many percent of its slots.
pub const FULL_PERCENT: usize = 90;
/// A second's table doubles when this many sixteenths of its slots are used.
pub const GROW_SIXTEENTHS: usize = 13;
/// One credential may hold so many times what is still free of a second: alone up to two thirds, two greedy ones two
/// fifths each, and whatever there are of them, something stays free for the next.
pub const SHARE_OF_FREE: usize = 2;
/// One part in so many of a second is for credentials that hold less than [`SMALL_PART`], and for them only: enough for
/// 64 of them, whatever the greedy ones do.
pub const RESERVE_PART: usize = 16;
/// A credential is small while it holds less than one part in so many of a second.
pub const SMALL_PART: usize = 1024;
/// The clock may run so far ahead of the machine's, milliseconds; a device whose lease is further ahead waits.
pub const CLOCK_AHEAD_MAX_MS: u64 = LEASE_AHEAD_MS;
/// Counters in each of the two rows that bound shares.
const SHARE_CELLS: usize = 256;

/// Names a credential within one run of the device: a keyed hash of its capability and the identity of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialId(pub(crate) u64);

impl CredentialId {
    /// From a hash that outsiders cannot predict: for whoever uses the memory without a gate.
    #[must_use]
    pub const fn of_hash(hash: u64) -> Self {
        Self(hash)
    }
}

/// Sizes of the nonce memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonceLimits {
    /// Age of the oldest nonce accepted, milliseconds; at most [`WINDOW_MAX_MS`].
    pub old_ms: u64,
    /// Lead of the newest nonce accepted, milliseconds; at most [`WINDOW_MAX_MS`].
    pub new_ms: u64,
    /// Most slots of one second over all shards, rounded up to a power of two; 8 bytes each. The default of
    /// 2^19 lets one credential make 295 000 requests a second and all together 470 000. A second of 200 000 requests
    /// takes half of it, 2 MiB.
    pub slots_per_second: usize,
    /// Number of shards, each behind its own mutex; rounded up to a power of two, at most 256.
    pub shards: usize,
}

impl Default for NonceLimits {
    fn default() -> Self {
        Self { old_ms: OLD_MS, new_ms: NEW_MS, slots_per_second: 1 << 19, shards: 16 }
    }
}

impl NonceLimits {
    /// Seconds that can be within the window at once.
    const fn generations(&self) -> usize {
        ((self.old_ms + self.new_ms).div_ceil(1000) + 2) as usize
    }

    /// Most bytes the memory can take.
    #[must_use]
    pub const fn bytes_max(&self) -> usize {
        let per_shard_second = self.slots_per_shard() * 8 + size_of::<Shares>();
        self.generations() * self.shards() * per_shard_second
    }

    const fn shards(&self) -> usize {
        let shards = if self.shards > 256 { 256 } else { self.shards };
        shards.next_power_of_two()
    }

    const fn slots_per_shard(&self) -> usize {
        let slots = self.slots_per_second.div_ceil(self.shards());
        let slots = if slots < SLOTS_START { SLOTS_START } else { slots };
        if slots > 1 << 24 { 1 << 24 } else { slots.next_power_of_two() }
    }
}

/// Why a nonce was refused. Nothing was remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NonceError {
    /// This very request was seen before.
    #[error("nonce not unique")]
    Replayed,
    /// Too old, too new, or beyond the lease.
    #[error("nonce timestamp out of range")]
    OutOfWindow,
    /// The second of its time stamp is full.
    #[error("no room for another nonce of this second")]
    Full,
    /// The credential used up its share of that second.
    #[error("this credential has used its share of this second")]
    Share,
}

/// The machine's clock is behind what was promised before the restart: nothing that is signed can be answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ClockBehind {
    /// Further than any number of restarts explains: somebody must set it.
    #[error(
        "the clock is {behind_ms} ms behind the time up to which nonces were accepted before the restart"
    )]
    Wrong {
        /// How far, milliseconds.
        behind_ms: u64,
    },
    /// The device was restarted several times within seconds: time itself puts it right.
    #[error("the clock reaches the time up to which nonces were accepted before the restart in {wait_ms} ms")]
    Settling {
        /// How long, milliseconds.
        wait_ms: u64,
    },
}

/// The clock to go on with after a restart: after the persisted lease, so that a client which takes over the time that
/// it is told is not refused for it again, but never further ahead of the machine's clock than
/// [`CLOCK_AHEAD_MAX_MS`]. As a lease is at most [`LEASE_AHEAD_MS`] ahead of this clock, no number of restarts takes
/// it further ahead of the machine's than the two together.
///
/// # Errors
/// [`ClockBehind`]: the device stays NOT READY, and says which of the two it is.
pub const fn clock_after_restart(machine_ms: u64, lease_ms: u64) -> Result<u64, ClockBehind> {
    let behind_ms = lease_ms.saturating_sub(machine_ms);
    if behind_ms > CLOCK_BACK_MAX_MS {
        return Err(ClockBehind::Wrong { behind_ms });
    }
    if behind_ms > CLOCK_AHEAD_MAX_MS {
        return Err(ClockBehind::Settling { wait_ms: behind_ms - CLOCK_AHEAD_MAX_MS });
    }
    Ok(if machine_ms > lease_ms { machine_ms } else { lease_ms.saturating_add(1) })
}

const _: () = assert!(CLOCK_AHEAD_MAX_MS + LEASE_AHEAD_MS < CLOCK_BACK_MAX_MS);

/// What was seen within the window.
pub struct NonceMemory<L: Locks> {
    hash: KeyedHash,
    limits: NonceLimits,
    shards: Box<[L::Mutex<Shard>]>,
    /// No later time stamp is accepted: the caller has made this value durable.
    lease_ms: AtomicU64,
}

impl<L: Locks> NonceMemory<L> {
    /// An empty memory. `seed` is drawn anew at every start. `lease_ms` is the value last persisted, 0 for a new
    /// device: nothing up to it is accepted any more, nor anything after it until the first [`Self::extend_lease`].
    #[must_use]
    pub fn new(limits: NonceLimits, seed: &[u8; 16], lease_ms: u64) -> Self {
        let limits = NonceLimits {
            old_ms: limits.old_ms.min(WINDOW_MAX_MS),
            new_ms: limits.new_ms.min(WINDOW_MAX_MS),
            ..limits
        };
        let floor_ms = if lease_ms == 0 { 0 } else { lease_ms.saturating_add(1) };
        let shard = || Shard {
            floor_ms,
            newest_ms: 0,
            retired: false,
            swept_second: 0,
            slots_start: SLOTS_START,
            slots_max: limits.slots_per_shard(),
            ring: (0..limits.generations()).map(|_| Second::default()).collect(),
        };
        Self {
            hash: KeyedHash::new(seed),
            shards: (0..limits.shards()).map(|_| L::Mutex::new(shard())).collect(),
            limits,
            lease_ms: AtomicU64::new(lease_ms),
        }
    }

    /// The lease to persist now, if it is time: call it once a second, or before each command. Make the value
    /// durable, then hand it to [`Self::extend_lease`].
    #[must_use]
    pub fn lease_due(&self, clock_ms: u64) -> Option<u64> {
        let lease = self.lease_ms.load(Ordering::Acquire);
        (lease < clock_ms.saturating_add(LEASE_LOW_MS)).then(|| clock_ms.saturating_add(LEASE_AHEAD_MS))
    }

    /// The lease is durable: time stamps up to it may be accepted. Never goes back.
    pub fn extend_lease(&self, durable_ms: u64) {
        self.lease_ms.fetch_max(durable_ms, Ordering::AcqRel);
    }

    /// The window, as configured.
    #[must_use]
    pub const fn limits(&self) -> &NonceLimits {
        &self.limits
    }

    /// Checks that the nonce is fresh and remembers it, in one step.
    ///
    /// # Errors
    /// See [`NonceError`].
    pub fn admit(&self, credential: CredentialId, nonce: &Nonce, clock_ms: u64) -> Result<(), NonceError> {
        let newest = clock_ms.saturating_add(self.limits.new_ms).min(self.lease_ms.load(Ordering::Acquire));
        let time = nonce.time_ms();
        if time > newest || time > TIME_MAX_MS {
            return Err(NonceError::OutOfWindow);
        }
        let mut input = [0; 8 + NONCE_LEN];
        input[..8].copy_from_slice(&credential.0.to_be_bytes());
        input[8..].copy_from_slice(&nonce.0);
        let print = self.hash.hash(&input).max(1);
        let oldest = clock_ms.saturating_sub(self.limits.old_ms);
        // The top byte chooses the shard, the low bits the slot.
        let shard = (print >> 56) as usize & (self.shards.len() - 1);
        self.shards[shard].with(|shard| shard.admit(credential, time, oldest, print))
    }

    /// Accepts nothing any more, and tells the latest time of anything that was accepted: for an orderly end, where the
    /// lease can be taken back to it. Nothing later can be replayed, as nothing later was accepted.
    #[must_use]
    pub fn retire(&self) -> u64 {
        let newest = |shard: &L::Mutex<Shard>| {
            shard.with(|shard| {
                shard.retired = true;
                shard.newest_ms
            })
        };
        self.shards.iter().map(newest).max().unwrap_or(0)
    }

    /// Gives back the memory of seconds that left the window; call it now and then on an idle device.
    pub fn sweep(&self, clock_ms: u64) {
        let oldest = clock_ms.saturating_sub(self.limits.old_ms);
        for shard in &self.shards {
            shard.with(|shard| shard.advance(oldest));
        }
    }

    /// Bytes held at the moment.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.with(|shard| shard.bytes())).sum()
    }
}

/// Part of the memory, chosen by the nonce's hash.
struct Shard {
    /// Oldest acceptable time; only grows.
    floor_ms: u64,
    /// Latest time of a nonce that was accepted.
    newest_ms: u64,
    /// Nothing is accepted any more.
    retired: bool,
    /// Seconds before this one were given back.
    swept_second: u64,
    /// What a new second begins with: what the last one needed.
    slots_start: usize,
    slots_max: usize,
    /// The second s stands at s modulo the length, which is more than the window has seconds.
    ring: Box<[Second]>,
}

impl Shard {
    fn admit(
        &mut self,
        credential: CredentialId,
        time_ms: u64,
        oldest_ms: u64,
        print: u64,
    ) -> Result<(), NonceError> {
        self.advance(oldest_ms);
        if time_ms < self.floor_ms || self.retired {
            return Err(NonceError::OutOfWindow);
        }
        let number = time_ms / 1000;
        let at = (number % self.ring.len() as u64) as usize;
        let second = &mut self.ring[at];
        if second.slots.is_empty() {
            *second = Second::new(number, self.slots_start.min(self.slots_max));
        } else if second.number != number {
            // The clock went back, and the ring has moved on: what cannot be remembered is refused.
            return Err(NonceError::OutOfWindow);
        }
        second.admit(credential, print, self.slots_max)?;
        self.newest_ms = self.newest_ms.max(time_ms);
        Ok(())
    }

    /// Raises the floor and gives back the seconds that fell below it.
    fn advance(&mut self, oldest_ms: u64) {
        self.floor_ms = self.floor_ms.max(oldest_ms);
        let first = self.floor_ms / 1000;
        if first <= self.swept_second {
            return;
        }
        self.swept_second = first;
        for second in &mut self.ring {
            if second.number < first && !second.slots.is_empty() {
                self.slots_start = (second.used * 2).next_power_of_two().max(SLOTS_START);
                *second = Second::default();
            }
        }
    }

    fn bytes(&self) -> usize {
        self.ring.iter().map(Second::bytes).sum()
    }
}

/// The nonces of one second: an open-addressing table of 64-bit keyed hashes; zero is an empty slot.
#[derive(Default)]
struct Second {
    number: u64,
    used: usize,
    slots: Vec<u64>,
    shares: Option<Box<Shares>>,
}

/// Counts per credential, in two rows of cells: the lesser of the two cells bounds the true count from above. A
/// credential shares both its cells with a given other one with probability 2^-16.
type Shares = [[u32; SHARE_CELLS]; 2];

impl Second {
    fn new(number: u64, slots: usize) -> Self {
        Self { number, used: 0, slots: alloc::vec![0; slots], shares: Some(Box::new([[0; SHARE_CELLS]; 2])) }
    }

    fn admit(&mut self, credential: CredentialId, print: u64, slots_max: usize) -> Result<(), NonceError> {
        if self.used * 16 >= self.slots.len() * GROW_SIXTEENTHS && self.slots.len() < slots_max {
            self.grow();
        }
        let at = match find(&self.slots, print) {
            Found::Here => return Err(NonceError::Replayed),
            Found::Empty(at) => at,
            Found::Nowhere => return Err(NonceError::Full),
        };
        let full = slots_max * FULL_PERCENT / 100;
        if self.used >= full {
            return Err(NonceError::Full);
        }
        if let Some(shares) = &mut self.shares {
            let cells = [credential.0 & 0xFF, credential.0 >> 8 & 0xFF].map(|cell| cell as usize);
            let count = shares[0][cells[0]].min(shares[1][cells[1]]) as usize;
            let free = (full - full / RESERVE_PART).saturating_sub(self.used);
            if count >= (full / SMALL_PART).max(1) && count >= free * SHARE_OF_FREE {
                return Err(NonceError::Share);
            }
            shares[0][cells[0]] += 1;
            shares[1][cells[1]] += 1;
        }
        self.slots[at] = print;
        self.used += 1;
        Ok(())
    }

    fn grow(&mut self) {
        let old = core::mem::take(&mut self.slots);
        self.slots = alloc::vec![0; old.len() * 2];
        for print in old.into_iter().filter(|print| *print != 0) {
            if let Found::Empty(at) = find(&self.slots, print) {
                self.slots[at] = print;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.slots.len() * 8 + self.shares.as_ref().map_or(0, |_| size_of::<Shares>())
    }
}

enum Found {
    Here,
    Empty(usize),
    Nowhere,
}

/// Linear probing; the table's length is a power of two.
fn find(slots: &[u64], print: u64) -> Found {
    let mask = slots.len() - 1;
    let start = print as usize & mask;
    for step in 0..slots.len() {
        let at = (start + step) & mask;
        match slots[at] {
            0 => return Found::Empty(at),
            seen if seen == print => return Found::Here,
            _ => {}
        }
    }
    Found::Nowhere
}

#[cfg(test)]
mod tests {
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
    fn nobody_burns_the_nonce_of_another_credential() {
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
    fn a_clock_that_goes_back_reopens_nothing() {
        let memory = memory(NonceLimits { shards: 1, ..NonceLimits::default() });
        assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW), Ok(()));
        assert_eq!(memory.admit(ALICE, &nonce(NOW + 100_000, 2), NOW + 100_000), Ok(()));
        assert_eq!(memory.admit(ALICE, &nonce(NOW, 1), NOW), Err(NonceError::OutOfWindow));
    }

    /// How many of so many requests of a credential are accepted.
    fn accepted(memory: &NonceMemory<Std>, who: CredentialId, count: u64) -> usize {
        (0..count).filter(|number| memory.admit(who, &nonce(NOW, *number), NOW).is_ok()).count()
    }

    /// A credential with its own cells among those of a test.
    fn who(number: u64) -> CredentialId {
        CredentialId(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) << 16 | number << 8 | number)
    }

    #[test]
    fn one_credential_alone_makes_200_000_requests_a_second() {
        let memory = memory(NonceLimits::default());
        assert_eq!(accepted(&memory, ALICE, 200_000), 200_000);
        // 2 MiB for that second, and the counters of its shares.
        assert!(memory.bytes() <= (2 << 20) + 16 * size_of::<Shares>(), "{}", memory.bytes());
    }

    #[test]
    fn a_greedy_credential_gets_two_thirds_and_leaves_the_rest_to_the_others() {
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
    fn a_full_second_refuses_and_forgets_nothing() {
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
    fn an_orderly_end_takes_the_lease_back_to_what_was_accepted() {
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
    fn after_a_restart_everything_before_the_lease_is_refused() {
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
    fn a_clock_set_back_by_an_hour_keeps_the_device_from_starting() {
        let wrong = ClockBehind::Wrong { behind_ms: 3_600_000 };
        assert_eq!(clock_after_restart(NOW - 3_600_000, NOW), Err(wrong));
        assert_eq!(clock_after_restart(NOW - 5_000, NOW), Err(ClockBehind::Settling { wait_ms: 2_000 }));
        assert_eq!(clock_after_restart(NOW - 3_000, NOW), Ok(NOW + 1));
        assert_eq!(clock_after_restart(NOW, NOW), Ok(NOW + 1));
        assert_eq!(clock_after_restart(NOW + 5, NOW), Ok(NOW + 5));
    }

    #[test]
    fn restarts_in_a_row_never_take_the_clock_further_ahead_than_two_leases() {
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
    fn a_client_that_takes_over_the_clock_after_a_restart_is_accepted() {
        for machine in [NOW - 1_500, NOW - 1, NOW, NOW + 1] {
            let memory = NonceMemory::<Std>::new(NonceLimits::default(), &[1; 16], NOW);
            let clock = clock_after_restart(machine, NOW).unwrap();
            memory.extend_lease(memory.lease_due(clock).unwrap());
            assert_eq!(memory.admit(ALICE, &nonce(clock, 1), clock), Ok(()), "told {clock} at {machine}");
        }
    }

    #[test]
    fn an_idle_memory_is_small_and_a_busy_one_bounded() {
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

    proptest! {
        /// Whatever the order of times and clocks, no (credential, nonce) is accepted twice.
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
}
