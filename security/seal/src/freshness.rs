//! The nonce memory: each signed request runs once.
//!
//! Does: checks the time window, remembers nonces, limits shares, and keeps the high-water lease
//! that survives a restart.
//! Does not: read a clock, store the lease (the caller does), or consider anything but credential,
//! nonce and clock.
//! Contract: check and insert are one step. A nonce that cannot be remembered is refused; nothing
//! is ever evicted. The oldest acceptable time goes back only by [`NonceMemory::begin_era`], which
//! refuses all times of earlier eras.
//! Source of truth: docs/design/security.md 3.4; docs/adr/0057-clock-steps.md.
//!
//! Costs: 8 bytes per nonce at a load of 0.41 to 0.81 (up to 0.9 in a full second), kept for the
//! window and two seconds. A second starts with [`SLOTS_START`] slots per shard and doubles, so an
//! idle device uses no memory and a slow one a few kilobytes; [`NonceLimits::slots_per_second`]
//! limits the total.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::keyed_hash::KeyedHash;
use crate::nonce::{NONCE_LEN, Nonce, TIME_MAX_MS};
use crate::provider::{Locks, Mutex};

/// Initial slots of a second in each shard; doubled as they fill.
pub const SLOTS_START: usize = 64;
/// Longest window in either direction, milliseconds.
pub const WINDOW_MAX_MS: u64 = 5 * 60 * 1000;
/// Default maximum age of an accepted nonce, milliseconds.
pub const OLD_MS: u64 = 20_000;
/// Default maximum lead of an accepted nonce, milliseconds.
pub const NEW_MS: u64 = 10_000;
/// How far ahead of the clock the lease is kept, milliseconds.
pub const LEASE_AHEAD_MS: u64 = 3_000;
/// The lease is renewed when it is less than this ahead, milliseconds.
pub const LEASE_LOW_MS: u64 = 2_000;
/// At start, a clock further behind the lease than this is wrong, milliseconds.
pub const CLOCK_BACK_MAX_MS: u64 = 60_000;
/// A second is full at this percentage of its slots.
pub const FULL_PERCENT: usize = 90;
/// A second's table doubles when this many sixteenths of its slots are used.
pub const GROW_SIXTEENTHS: usize = 13;
/// Maximum slots of one credential as a multiple of a second's free slots: one credential alone
/// gets up to two thirds, two greedy ones two fifths each, and some slots always stay free for the
/// next.
pub const SHARE_OF_FREE: usize = 2;
/// Divisor of a second's slots for the reserve of credentials that use less than [`SMALL_PART`]:
/// enough for 64 of them, whatever the greedy ones do.
pub const RESERVE_PART: usize = 16;
/// A credential is small while it uses less than this fraction of a second.
pub const SMALL_PART: usize = 1024;
/// Maximum lead of the clock over the machine's, milliseconds; a device whose lease is further
/// ahead waits.
pub const CLOCK_AHEAD_MAX_MS: u64 = LEASE_AHEAD_MS;
/// Number of counters in each of the two rows that limit shares.
const SHARE_CELLS: usize = 256;

/// Identifies a credential within one run of the device: a keyed hash of its capability and the
/// identity of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialId(pub(crate) u64);

impl CredentialId {
    /// Creates an id from a hash that attackers cannot predict: for users of the memory without a
    /// gate.
    #[must_use]
    pub const fn of_hash(hash: u64) -> Self {
        Self(hash)
    }
}

/// Limits of the nonce memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonceLimits {
    /// Maximum age of an accepted nonce, milliseconds; at most [`WINDOW_MAX_MS`].
    pub old_ms: u64,
    /// Maximum lead of an accepted nonce, milliseconds; at most [`WINDOW_MAX_MS`].
    pub new_ms: u64,
    /// Maximum slots of one second over all shards, rounded up to a power of two; 8 bytes each. The
    /// default of 2^19 permits 295 000 requests per second of one credential and 470 000 of all
    /// together. A second of 200 000 requests uses half of it, 2 MiB.
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
    /// Returns the number of seconds that can be within the window at once.
    const fn generations(&self) -> usize {
        ((self.old_ms + self.new_ms).div_ceil(1000) + 2) as usize
    }

    /// Returns the maximum memory in bytes.
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

/// Why a nonce was refused. It was not remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NonceError {
    /// This request was seen before.
    #[error("nonce not unique")]
    Replayed,
    /// Too old, too new, or beyond the lease.
    #[error("nonce timestamp out of range")]
    OutOfWindow,
    /// The second of its time stamp is full.
    #[error("nonce memory of this second is full")]
    Full,
    /// The credential used up its share of that second.
    #[error("this credential has used its share of this second")]
    Share,
}

/// The machine's clock is behind the lease persisted before the restart: the device cannot accept
/// signed commands yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ClockBehind {
    /// Further behind than restarts explain: an administrator must set the clock.
    #[error(
        "the clock is {behind_ms} ms behind the time up to which nonces were accepted before the restart"
    )]
    Wrong {
        /// Difference in milliseconds.
        behind_ms: u64,
    },
    /// The device was restarted several times within seconds: waiting resolves it.
    #[error("the clock reaches the time up to which nonces were accepted before the restart in {wait_ms} ms")]
    Settling {
        /// Waiting time in milliseconds.
        wait_ms: u64,
    },
}

/// Returns the clock to use after a restart. It is after the persisted lease, so that a client that
/// adopts the reported time is not refused for it again, but never further ahead of the machine's
/// clock than [`CLOCK_AHEAD_MAX_MS`]. A lease is at most [`LEASE_AHEAD_MS`] ahead of this clock, so
/// restarts never take it further ahead of the machine's than the two together.
///
/// # Errors
/// [`ClockBehind`]: the device stays NOT READY, and reports which of the two cases it is.
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

/// Maximum number of closed eras that are kept; beyond it the two oldest are merged.
pub const SPENT_MAX: usize = 8;
/// A lease that moves by more than this at once begins an era, milliseconds.
pub const ERA_LEAP_MS: u64 = 60_000;

/// A span of times in which nonces were accepted, both ends included, milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    /// First time of the span.
    pub from_ms: u64,
    /// Last time of the span.
    pub to_ms: u64,
}

/// The durable part of the nonce memory: the times in which nonces may have been accepted. After
/// the clock is set back, no nonce of these times is accepted again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NonceHistory {
    /// Start of the current era; its end is the lease.
    era_ms: u64,
    /// Upper limit of the times of accepted nonces, milliseconds since 1970.
    lease_ms: u64,
    /// Closed eras, in order of time, not touching.
    spent: Vec<TimeSpan>,
}

impl NonceHistory {
    /// Creates the history of a device whose lease is `lease_ms` and whose current era began at
    /// `era_ms`.
    #[must_use]
    pub fn new(lease_ms: u64, era_ms: u64, spent: &[TimeSpan]) -> Self {
        let mut history = Self { era_ms: era_ms.min(lease_ms), lease_ms, spent: Vec::new() };
        for span in spent {
            history.spend(*span);
        }
        history
    }

    /// Returns the end of the current era.
    #[must_use]
    pub const fn lease_ms(&self) -> u64 {
        self.lease_ms
    }

    /// Returns the start of the current era.
    #[must_use]
    pub const fn era_ms(&self) -> u64 {
        self.era_ms
    }

    /// Returns the closed eras, in order of time.
    #[must_use]
    pub fn spent(&self) -> &[TimeSpan] {
        &self.spent
    }

    /// Returns the history with a lease up to `lease_ms`. A leap of the lease begins an era, so
    /// that the skipped time stays usable. `old_ms` is the maximum age of an accepted nonce.
    #[must_use]
    pub fn extended(&self, lease_ms: u64, old_ms: u64) -> Self {
        if lease_ms <= self.lease_ms {
            return self.clone();
        }
        let mut next = self.clone();
        let oldest_ms = lease_ms.saturating_sub(LEASE_AHEAD_MS).saturating_sub(old_ms);
        if lease_ms - self.lease_ms > ERA_LEAP_MS && oldest_ms > self.lease_ms {
            next.close();
            next.era_ms = oldest_ms;
        }
        next.lease_ms = lease_ms;
        next
    }

    /// Returns the history after the clock was set back to `clock_ms`: the current era is closed,
    /// and the next one begins there.
    #[must_use]
    pub fn set_back(&self, clock_ms: u64) -> Self {
        let mut next = self.clone();
        next.close();
        next.era_ms = clock_ms;
        next.lease_ms = clock_ms.saturating_add(LEASE_AHEAD_MS);
        next
    }

    /// Returns the history after a clean shutdown: no nonce later than `newest_ms` was accepted.
    #[must_use]
    pub fn retired(&self, newest_ms: u64) -> Self {
        Self { lease_ms: newest_ms.min(self.lease_ms), ..self.clone() }
    }

    /// Returns the history without its closed eras: for a device all of whose keys were replaced.
    #[must_use]
    pub const fn without_spent(&self) -> Self {
        Self { era_ms: self.era_ms, lease_ms: self.lease_ms, spent: Vec::new() }
    }

    fn close(&mut self) {
        let span = TimeSpan { from_ms: self.era_ms, to_ms: self.lease_ms };
        if span.to_ms > 0 {
            self.spend(span);
        }
    }

    /// Adds a span; touching spans are merged, and so are the two oldest of too many.
    fn spend(&mut self, span: TimeSpan) {
        self.spent.push(TimeSpan { to_ms: span.to_ms.max(span.from_ms), ..span });
        self.spent.sort_unstable_by_key(|span| span.from_ms);
        let mut merged: Vec<TimeSpan> = Vec::with_capacity(self.spent.len());
        for span in self.spent.drain(..) {
            match merged.last_mut() {
                Some(last) if span.from_ms <= last.to_ms.saturating_add(1) => {
                    last.to_ms = last.to_ms.max(span.to_ms);
                }
                _ => merged.push(span),
            }
        }
        while merged.len() > SPENT_MAX {
            let oldest = merged.remove(0);
            merged[0].from_ms = oldest.from_ms;
        }
        self.spent = merged;
    }
}

/// The nonces seen within the window.
pub struct NonceMemory<L: Locks> {
    hash: KeyedHash,
    limits: NonceLimits,
    shards: Box<[L::Mutex<NonceShard>]>,
    /// Latest acceptable time stamp: the caller has made this value durable.
    lease_ms: AtomicU64,
    /// Last time of the closed eras: later times need no search.
    spent_last_ms: AtomicU64,
}

impl<L: Locks> NonceMemory<L> {
    /// Creates an empty memory. `seed` is drawn at every start. `lease_ms` is the value last
    /// persisted, 0 for a new device: no nonce up to it is accepted, nor any later one until the
    /// first [`Self::extend_lease`].
    #[must_use]
    pub fn new(limits: NonceLimits, seed: &[u8; 16], lease_ms: u64) -> Self {
        let limits = NonceLimits {
            old_ms: limits.old_ms.min(WINDOW_MAX_MS),
            new_ms: limits.new_ms.min(WINDOW_MAX_MS),
            ..limits
        };
        let floor_ms = if lease_ms == 0 { 0 } else { lease_ms.saturating_add(1) };
        let shard = || NonceShard {
            floor_ms,
            spent: Box::default(),
            newest_ms: 0,
            retired: false,
            swept_second: 0,
            slots_start: SLOTS_START,
            slots_max: limits.slots_per_shard(),
            ring: (0..limits.generations()).map(|_| NonceSecond::default()).collect(),
        };
        Self {
            hash: KeyedHash::new(seed),
            shards: (0..limits.shards()).map(|_| L::Mutex::new(shard())).collect(),
            limits,
            lease_ms: AtomicU64::new(lease_ms),
            spent_last_ms: AtomicU64::new(0),
        }
    }

    /// Returns the lease to persist now, if it is due. Call it once per second, or before each
    /// command; make the value durable, then pass it to [`Self::extend_lease`].
    #[must_use]
    pub fn lease_due(&self, clock_ms: u64) -> Option<u64> {
        let lease = self.lease_ms.load(Ordering::Acquire);
        (lease < clock_ms.saturating_add(LEASE_LOW_MS)).then(|| clock_ms.saturating_add(LEASE_AHEAD_MS))
    }

    /// Begins an era of `history`, which the caller has made durable, after the clock was set back
    /// to its start. Nonces of closed eras and of times before the start are refused from here on.
    pub fn begin_era(&self, history: &NonceHistory) {
        // First the lease: a command that read the clock before it was set back is beyond it, and
        // is refused.
        self.lease_ms.store(history.lease_ms, Ordering::Release);
        for shard in &self.shards {
            shard.with(|shard| {
                shard.floor_ms = history.era_ms;
                shard.newest_ms = 0;
                shard.swept_second = history.era_ms / 1000;
                shard.ring.fill_with(NonceSecond::default);
                shard.spent = history.spent.clone().into_boxed_slice();
            });
        }
        self.note_spent(&history.spent);
    }

    /// Returns for how long the clock will be within a closed era, milliseconds; 0 if it is in
    /// none. No nonce of such a time is accepted.
    #[must_use]
    pub fn spent_for_ms(&self, clock_ms: u64) -> u64 {
        if clock_ms > self.spent_last_ms.load(Ordering::Acquire) {
            return 0;
        }
        let within = |span: &&TimeSpan| (span.from_ms..=span.to_ms).contains(&clock_ms);
        let Some(shard) = self.shards.first() else { return 0 };
        shard.with(|shard| {
            shard.spent.iter().find(within).map_or(0, |span| span.to_ms.saturating_add(1) - clock_ms)
        })
    }

    /// Also refuses the nonces of these spans. For a start: [`Self::new`] knows only the lease.
    pub fn refuse_spent(&self, spent: &[TimeSpan]) {
        for shard in &self.shards {
            shard.with(|shard| shard.spent = spent.into());
        }
        self.note_spent(spent);
    }

    fn note_spent(&self, spent: &[TimeSpan]) {
        self.spent_last_ms.store(spent.last().map_or(0, |span| span.to_ms), Ordering::Release);
    }

    /// Sets the lease, which is durable: time stamps up to it may be accepted. Goes back only by
    /// [`Self::begin_era`].
    pub fn extend_lease(&self, durable_ms: u64) {
        self.lease_ms.fetch_max(durable_ms, Ordering::AcqRel);
    }

    /// Returns the configured limits.
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
        // The top byte selects the shard, the low bits the slot.
        let shard = (print >> 56) as usize & (self.shards.len() - 1);
        self.shards[shard].with(|shard| {
            // The clock was set back after the caller read it: its time must not raise the floor of
            // this era.
            if clock_ms > self.lease_ms.load(Ordering::Acquire) {
                return Err(NonceError::OutOfWindow);
            }
            shard.admit(credential, time, oldest, print)
        })
    }

    /// Stops accepting nonces, and returns the latest time of any accepted nonce. For a clean
    /// shutdown: the lease can be reduced to it, since no later nonce can be replayed.
    #[must_use]
    pub fn retire(&self) -> u64 {
        let newest = |shard: &L::Mutex<NonceShard>| {
            shard.with(|shard| {
                shard.retired = true;
                // Earlier starts may have accepted any time below the floor.
                shard.newest_ms.max(shard.floor_ms.saturating_sub(1))
            })
        };
        self.shards.iter().map(newest).max().unwrap_or(0)
    }

    /// Frees the memory of seconds that left the window; call it regularly on an idle device.
    pub fn sweep(&self, clock_ms: u64) {
        let oldest = clock_ms.saturating_sub(self.limits.old_ms);
        for shard in &self.shards {
            shard.with(|shard| {
                if clock_ms <= self.lease_ms.load(Ordering::Acquire) {
                    shard.advance(oldest);
                }
            });
        }
    }

    /// Returns the memory in use, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.with(|shard| shard.bytes())).sum()
    }
}

/// A part of the memory, selected by the nonce's hash.
struct NonceShard {
    /// Oldest acceptable time; only grows within an era.
    floor_ms: u64,
    /// Closed eras, whose times are refused.
    spent: Box<[TimeSpan]>,
    /// Latest time of an accepted nonce.
    newest_ms: u64,
    /// Whether all nonces are refused from now on.
    retired: bool,
    /// Seconds before this one were freed.
    swept_second: u64,
    /// Initial slots of a new second: as many as the last one needed.
    slots_start: usize,
    slots_max: usize,
    /// Second s is at index s modulo the length, which is greater than the number of seconds in the
    /// window.
    ring: Box<[NonceSecond]>,
}

impl NonceShard {
    fn admit(
        &mut self,
        credential: CredentialId,
        time_ms: u64,
        oldest_ms: u64,
        print: u64,
    ) -> Result<(), NonceError> {
        self.advance(oldest_ms);
        let is_spent = self.spent.iter().any(|span| (span.from_ms..=span.to_ms).contains(&time_ms));
        if time_ms < self.floor_ms || self.retired || is_spent {
            return Err(NonceError::OutOfWindow);
        }
        let number = time_ms / 1000;
        let at = (number % self.ring.len() as u64) as usize;
        let second = &mut self.ring[at];
        if second.slots.is_empty() {
            *second = NonceSecond::new(number, self.slots_start.min(self.slots_max));
        } else if second.number != number {
            // The clock went back, and the ring has moved on: a nonce that cannot be remembered is
            // refused.
            return Err(NonceError::OutOfWindow);
        }
        second.admit(credential, print, self.slots_max)?;
        self.newest_ms = self.newest_ms.max(time_ms);
        Ok(())
    }

    /// Raises the floor and frees the seconds below it.
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
                *second = NonceSecond::default();
            }
        }
    }

    fn bytes(&self) -> usize {
        self.ring.iter().map(NonceSecond::bytes).sum()
    }
}

/// The nonces of one second: an open-addressing table of 64-bit keyed hashes; zero is an empty
/// slot.
#[derive(Default)]
struct NonceSecond {
    number: u64,
    used: usize,
    slots: Vec<u64>,
    shares: Option<Box<Shares>>,
}

/// Counts per credential, in two rows of cells: the lesser of the two cells is an upper bound of
/// the true count. A credential shares both cells with a given other one with probability 2^-16.
type Shares = [[u32; SHARE_CELLS]; 2];

impl NonceSecond {
    fn new(number: u64, slots: usize) -> Self {
        Self { number, used: 0, slots: alloc::vec![0; slots], shares: Some(Box::new([[0; SHARE_CELLS]; 2])) }
    }

    fn admit(&mut self, credential: CredentialId, print: u64, slots_max: usize) -> Result<(), NonceError> {
        if self.used * 16 >= self.slots.len() * GROW_SIXTEENTHS && self.slots.len() < slots_max {
            self.grow();
        }
        let at = match find(&self.slots, print) {
            SlotSearch::Here => return Err(NonceError::Replayed),
            SlotSearch::Empty(at) => at,
            SlotSearch::Nowhere => return Err(NonceError::Full),
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
            if let SlotSearch::Empty(at) = find(&self.slots, print) {
                self.slots[at] = print;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.slots.len() * 8 + self.shares.as_ref().map_or(0, |_| size_of::<Shares>())
    }
}

enum SlotSearch {
    Here,
    Empty(usize),
    Nowhere,
}

/// Finds a hash or its free slot by linear probing; the table's length is a power of two.
fn find(slots: &[u64], print: u64) -> SlotSearch {
    let mask = slots.len() - 1;
    let start = print as usize & mask;
    for step in 0..slots.len() {
        let at = (start + step) & mask;
        match slots[at] {
            0 => return SlotSearch::Empty(at),
            seen if seen == print => return SlotSearch::Here,
            _ => {}
        }
    }
    SlotSearch::Nowhere
}

#[cfg(test)]
mod tests;
