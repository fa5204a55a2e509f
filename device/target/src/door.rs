//! Login throttle of the target: CHAP failures by source and account, and resets.
//!
//! Does: count. Does not: know secrets; the protocol machine does.
//! Contract: failures at one account do not delay logins of another one from the same source, nor an account that has
//! logged in from there before. Memory is bounded, and names that a peer invents evict nothing: buckets have a fixed number,
//! and are found by a hash with a secret.

use std::{
    collections::{VecDeque, hash_map::RandomState},
    fmt,
    hash::BuildHasher as _,
    sync::Arc,
};

use parking_lot::Mutex;
use sealstone_iscsi::target::Doorkeeper;

use crate::{Clock, Counter, Counters};

/// Wrong responses of one source for one account within [`FAILURE_WINDOW_MS`] after which it is refused.
pub const FAILURES_MAX: u32 = 10;
/// Wrong responses of one source for all accounts within it after which accounts are refused that never logged in from there.
const SOURCE_FAILURES_MAX: u32 = 100;
/// Milliseconds after the first wrong response until the next one may be tried.
pub const FAILURE_WINDOW_MS: u64 = 60_000;
/// Buckets of each kind.
const BUCKETS: usize = 1 << 14;
/// Sources and accounts that have logged in, remembered at most.
const FAMILIAR_MAX: usize = 4096;

/// Unpredictable bytes.
#[derive(Clone)]
pub struct Random(Arc<dyn Fn(&mut [u8]) + Send + Sync>);

impl Random {
    /// From any function that fills a slice.
    pub fn new(fill: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(fill))
    }
}

impl Default for Random {
    /// The system's.
    fn default() -> Self {
        // Without random bytes a challenge could repeat; the system never fails here once it has booted.
        Self::new(|into| getrandom::fill(into).expect("the system's random source answers"))
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}

#[derive(Clone, Copy, Default)]
struct Window {
    began_ms: u64,
    failures: u32,
}

impl Window {
    fn add(&mut self, now_ms: u64) {
        if self.is_over(now_ms) {
            *self = Self { began_ms: now_ms, failures: 0 };
        }
        self.failures = self.failures.saturating_add(1);
    }

    const fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.began_ms.saturating_add(FAILURE_WINDOW_MS)
    }

    const fn is_full(&self, max: u32, now_ms: u64) -> bool {
        self.failures >= max && !self.is_over(now_ms)
    }
}

struct Table {
    /// Of a source and an account.
    accounts: Vec<Window>,
    /// Of a source.
    sources: Vec<Window>,
    /// Hashes of sources with accounts that have logged in from there; only a right response adds one.
    familiar: VecDeque<u64>,
}

/// CHAP failures of all sources.
pub(crate) struct Failures {
    hash: RandomState,
    table: Mutex<Table>,
    clock: Clock,
    counters: Arc<Counters>,
}

fn slot(hash: u64) -> usize {
    (hash % BUCKETS as u64) as usize
}

impl Failures {
    pub(crate) fn new(clock: Clock, counters: Arc<Counters>) -> Arc<Self> {
        let buckets = || vec![Window::default(); BUCKETS];
        let table = Table { accounts: buckets(), sources: buckets(), familiar: VecDeque::new() };
        Arc::new(Self { hash: RandomState::new(), table: Mutex::new(table), clock, counters })
    }

    fn admits(&self, source: &str, account: &str) -> bool {
        let now = self.clock.now_ms();
        let (own, all) = (self.hash.hash_one((source, account)), self.hash.hash_one(source));
        let table = self.table.lock();
        let full = |windows: &[Window], hash, max| {
            windows.get(slot(hash)).is_some_and(|window: &Window| window.is_full(max, now))
        };
        let admits = !full(&table.accounts, own, FAILURES_MAX)
            && (table.familiar.contains(&own) || !full(&table.sources, all, SOURCE_FAILURES_MAX));
        drop(table);
        if !admits {
            self.counters.add(Counter::LoginsThrottled, 1);
        }
        admits
    }

    fn failed(&self, source: &str, account: &str) {
        self.counters.add(Counter::ChapFailures, 1);
        let now = self.clock.now_ms();
        let (own, all) = (slot(self.hash.hash_one((source, account))), slot(self.hash.hash_one(source)));
        let table = &mut *self.table.lock();
        for window in table.accounts.get_mut(own).into_iter().chain(table.sources.get_mut(all)) {
            window.add(now);
        }
    }

    fn passed(&self, source: &str, account: &str) {
        let own = self.hash.hash_one((source, account));
        let mut table = self.table.lock();
        table.familiar.retain(|known| *known != own);
        if table.familiar.len() >= FAMILIAR_MAX {
            table.familiar.pop_front();
        }
        table.familiar.push_back(own);
    }
}

/// One connection's doorkeeper.
pub(crate) struct Door {
    pub(crate) failures: Arc<Failures>,
    pub(crate) random: Random,
    pub(crate) source: String,
}

impl Doorkeeper for Door {
    fn random(&self, into: &mut [u8]) {
        self.random.0(into);
    }

    fn admits(&self, account: &str) -> bool {
        self.failures.admits(&self.source, account)
    }

    fn failed(&self, account: &str) {
        self.failures.failed(&self.source, account);
    }

    fn passed(&self, account: &str) {
        self.failures.passed(&self.source, account);
    }
}

/// Resets that reach beyond their own session: a few at once, then one in [`RESET_EVERY_MS`], so that nobody can keep
/// ending the others' commands.
pub(crate) struct Resets(Mutex<(u32, u64)>);

/// Resets at once.
const RESETS_BURST: u32 = 16;
/// Milliseconds after which one more is allowed.
const RESET_EVERY_MS: u64 = 5_000;

impl Resets {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new((RESETS_BURST, 0)))
    }

    pub(crate) fn take(&self, now_ms: u64) -> bool {
        let mut state = self.0.lock();
        let (left, at) = &mut *state;
        let more = now_ms.saturating_sub(*at) / RESET_EVERY_MS;
        if more > 0 {
            *left = left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(RESETS_BURST);
            *at = now_ms;
        }
        let allowed = *left > 0;
        *left = left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn failures(now_ms: u64) -> (Arc<AtomicU64>, Arc<Failures>) {
        let now = Arc::new(AtomicU64::new(now_ms));
        let time = Arc::clone(&now);
        (now, Failures::new(Clock::new(move || time.load(Ordering::SeqCst)), Arc::default()))
    }

    #[test]
    fn failures_refuse_their_source_and_account_for_a_while() {
        let (now, failures) = failures(5);
        for _ in 0..FAILURES_MAX {
            assert!(failures.admits("a", "alice"));
            failures.failed("a", "alice");
        }
        assert!(!failures.admits("a", "alice"));
        assert!(failures.admits("b", "alice") && failures.admits("a", "bob"));
        assert_eq!(failures.counters.get(Counter::LoginsThrottled), 1);
        now.store(5 + FAILURE_WINDOW_MS, Ordering::SeqCst);
        assert!(failures.admits("a", "alice"));
        failures.failed("a", "alice");
        assert!(failures.admits("a", "alice"), "a new window");
    }

    #[test]
    fn invented_names_do_not_refuse_account_that_logged_in() {
        let (_, failures) = failures(5);
        failures.passed("a", "alice");
        for n in 0..10 * SOURCE_FAILURES_MAX {
            failures.failed("a", &n.to_string());
        }
        assert!(failures.admits("a", "alice") && !failures.admits("a", "carol"));
        assert!(failures.admits("b", "carol"));
        for n in 0..2 * FAMILIAR_MAX {
            failures.passed("b", &n.to_string());
        }
        assert!(failures.table.lock().familiar.len() <= FAMILIAR_MAX);
    }

    #[test]
    fn resets_are_few() {
        let resets = Resets::new();
        assert_eq!((0..100).filter(|_| resets.take(1000)).count(), RESETS_BURST as usize);
        assert!(resets.take(1000 + RESET_EVERY_MS) && !resets.take(1001 + RESET_EVERY_MS));
        assert_eq!((0..100).filter(|_| resets.take(u64::MAX)).count(), RESETS_BURST as usize);
    }
}
