//! Login throttle of the target: CHAP failures by source and account, and a rate limit of resets.
//!
//! Does: count failures.
//! Does not: know secrets; the protocol machine does.
//! Contract: failures of one account do not delay other accounts of the same source, nor accounts
//! that have logged in from there before. Memory is bounded, and invented names evict nothing: the
//! number of buckets is fixed, and a keyed hash selects them.

use std::{
    collections::{VecDeque, hash_map::RandomState},
    fmt,
    hash::BuildHasher as _,
    sync::Arc,
};

use parking_lot::Mutex;
use sealstone_iscsi::target_side::LoginGuard;

use crate::{Counter, MonotonicClock, TargetCounters};

/// Wrong responses of one source for one account within [`FAILURE_WINDOW_MS`] after which it is
/// refused.
pub const FAILURES_MAX: u32 = 10;
/// Wrong responses of one source for all accounts within that time. After them, only accounts that
/// have logged in from there are admitted.
const SOURCE_FAILURES_MAX: u32 = 100;
/// Length of the window, in milliseconds, counted from the first wrong response.
pub const FAILURE_WINDOW_MS: u64 = 60_000;
/// Buckets of each kind.
const BUCKETS: usize = 1 << 14;
/// Pairs of source and account that have logged in and are remembered.
const LOGGED_IN_MAX: usize = 4096;

/// A source of unpredictable bytes.
#[derive(Clone)]
pub struct RandomSource(Arc<dyn Fn(&mut [u8]) + Send + Sync>);

impl RandomSource {
    /// Uses any function that fills a slice.
    pub fn new(fill: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(fill))
    }

    /// Fills a slice.
    pub(crate) fn fill(&self, into: &mut [u8]) {
        (self.0)(into);
    }
}

impl Default for RandomSource {
    /// Uses the random source of the system.
    fn default() -> Self {
        // Without random bytes a challenge could repeat. The system never fails here after boot.
        Self::new(|into| getrandom::fill(into).expect("the random source of the system works"))
    }
}

impl fmt::Debug for RandomSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}

#[derive(Clone, Copy, Default)]
struct FailureWindow {
    began_ms: u64,
    failures: u32,
}

impl FailureWindow {
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

struct FailureTable {
    /// By source and account.
    accounts: Vec<FailureWindow>,
    /// By source.
    sources: Vec<FailureWindow>,
    /// Hashes of pairs of source and account that have logged in. Only a correct response adds one.
    logged_in: VecDeque<u64>,
}

/// CHAP failures of all sources.
pub(crate) struct LoginFailures {
    hash: RandomState,
    table: Mutex<FailureTable>,
    clock: MonotonicClock,
    counters: Arc<TargetCounters>,
}

fn slot(hash: u64) -> usize {
    (hash % BUCKETS as u64) as usize
}

impl LoginFailures {
    pub(crate) fn new(clock: MonotonicClock, counters: Arc<TargetCounters>) -> Arc<Self> {
        let buckets = || vec![FailureWindow::default(); BUCKETS];
        let table = FailureTable { accounts: buckets(), sources: buckets(), logged_in: VecDeque::new() };
        Arc::new(Self { hash: RandomState::new(), table: Mutex::new(table), clock, counters })
    }

    fn admits(&self, source: &str, account: &str) -> bool {
        let now = self.clock.now_ms();
        let (own, all) = (self.hash.hash_one((source, account)), self.hash.hash_one(source));
        let table = self.table.lock();
        let full = |windows: &[FailureWindow], hash, max| {
            windows.get(slot(hash)).is_some_and(|window: &FailureWindow| window.is_full(max, now))
        };
        let admits = !full(&table.accounts, own, FAILURES_MAX)
            && (table.logged_in.contains(&own) || !full(&table.sources, all, SOURCE_FAILURES_MAX));
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
        table.logged_in.retain(|known| *known != own);
        if table.logged_in.len() >= LOGGED_IN_MAX {
            table.logged_in.pop_front();
        }
        table.logged_in.push_back(own);
    }
}

/// Login throttle of one connection.
pub(crate) struct LoginThrottle {
    pub(crate) failures: Arc<LoginFailures>,
    pub(crate) random: RandomSource,
    pub(crate) source: String,
}

impl LoginGuard for LoginThrottle {
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

/// Rate limit of resets that affect other sessions: a burst, then one in [`RESET_EVERY_MS`].
/// Prevents one initiator from ending the commands of others all the time.
pub(crate) struct ResetThrottle(Mutex<(u32, u64)>);

/// Resets in a burst.
const RESETS_BURST: u32 = 16;
/// Milliseconds after which one more is allowed.
const RESET_EVERY_MS: u64 = 5_000;

impl ResetThrottle {
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

    fn failures(now_ms: u64) -> (Arc<AtomicU64>, Arc<LoginFailures>) {
        let now = Arc::new(AtomicU64::new(now_ms));
        let time = Arc::clone(&now);
        (now, LoginFailures::new(MonotonicClock::new(move || time.load(Ordering::SeqCst)), Arc::default()))
    }

    #[test]
    fn chap_failures_throttle_source_and_account() {
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
    fn invented_names_do_not_throttle_known_account() {
        let (_, failures) = failures(5);
        failures.passed("a", "alice");
        for n in 0..10 * SOURCE_FAILURES_MAX {
            failures.failed("a", &n.to_string());
        }
        assert!(failures.admits("a", "alice") && !failures.admits("a", "carol"));
        assert!(failures.admits("b", "carol"));
        for n in 0..2 * LOGGED_IN_MAX {
            failures.passed("b", &n.to_string());
        }
        assert!(failures.table.lock().logged_in.len() <= LOGGED_IN_MAX);
    }

    #[test]
    fn resets_are_few() {
        let resets = ResetThrottle::new();
        assert_eq!((0..100).filter(|_| resets.take(1000)).count(), RESETS_BURST as usize);
        assert!(resets.take(1000 + RESET_EVERY_MS) && !resets.take(1001 + RESET_EVERY_MS));
        assert_eq!((0..100).filter(|_| resets.take(u64::MAX)).count(), RESETS_BURST as usize);
    }
}
