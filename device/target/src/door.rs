//! Who may knock how often: CHAP failures, by where they come from, and resets.
//!
//! Does: count by source address. Does not: know secrets; the protocol machine does.
//! Contract: what is remembered is bounded.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use sealstone_iscsi::target::Doorkeeper;

use crate::{Clock, Counter, Counters};

/// Wrong responses of one source within [`FAILURE_WINDOW_MS`] after which it is refused unheard.
pub const FAILURES_MAX: u32 = 10;
/// Milliseconds after the first wrong response until a source may try again.
pub const FAILURE_WINDOW_MS: u64 = 60_000;
/// Most sources whose failures are remembered; beyond it the oldest is forgotten.
const SOURCES_MAX: usize = 4096;

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

#[derive(Clone, Copy)]
struct Window {
    began_ms: u64,
    failures: u32,
}

/// CHAP failures of all sources.
pub(crate) struct Failures {
    by_source: Mutex<HashMap<String, Window>>,
    clock: Clock,
    counters: Arc<Counters>,
}

impl Failures {
    pub(crate) fn new(clock: Clock, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { by_source: Mutex::default(), clock, counters })
    }

    fn admits(&self, source: &str) -> bool {
        let now = self.clock.now_ms();
        let known = self.by_source.lock().get(source).copied();
        let admits = known.is_none_or(|window| {
            window.failures < FAILURES_MAX || now >= window.began_ms.saturating_add(FAILURE_WINDOW_MS)
        });
        if !admits {
            self.counters.add(Counter::LoginsThrottled, 1);
        }
        admits
    }

    fn failed(&self, source: &str) {
        self.counters.add(Counter::ChapFailures, 1);
        let now = self.clock.now_ms();
        let mut known = self.by_source.lock();
        let over = |window: &Window| now >= window.began_ms.saturating_add(FAILURE_WINDOW_MS);
        if known.len() >= SOURCES_MAX && !known.contains_key(source) {
            known.retain(|_, window| !over(window));
            let oldest =
                known.iter().min_by_key(|(_, window)| window.began_ms).map(|(source, _)| source.clone());
            if let Some(oldest) = oldest.filter(|_| known.len() >= SOURCES_MAX) {
                known.remove(&oldest);
            }
        }
        let window = known.entry(source.to_owned()).or_insert(Window { began_ms: now, failures: 0 });
        if over(window) {
            *window = Window { began_ms: now, failures: 0 };
        }
        window.failures = window.failures.saturating_add(1);
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

    fn admits(&self) -> bool {
        self.failures.admits(&self.source)
    }

    fn failed(&self) {
        self.failures.failed(&self.source);
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

    #[test]
    fn failures_shut_the_door_for_a_while_and_for_their_source_only() {
        let now = Arc::new(AtomicU64::new(5));
        let time = Arc::clone(&now);
        let failures = Failures::new(Clock::new(move || time.load(Ordering::SeqCst)), Arc::default());
        for _ in 0..FAILURES_MAX {
            assert!(failures.admits("a"));
            failures.failed("a");
        }
        assert!(!failures.admits("a") && failures.admits("b"));
        assert_eq!(failures.counters.get(Counter::LoginsThrottled), 1);
        now.store(5 + FAILURE_WINDOW_MS, Ordering::SeqCst);
        assert!(failures.admits("a"));
        failures.failed("a");
        assert!(failures.admits("a"), "a new window");
        for n in 0..2 * SOURCES_MAX {
            failures.failed(&n.to_string());
        }
        assert!(failures.by_source.lock().len() <= SOURCES_MAX);
    }

    #[test]
    fn resets_are_few() {
        let resets = Resets::new();
        assert_eq!((0..100).filter(|_| resets.take(1000)).count(), RESETS_BURST as usize);
        assert!(resets.take(1000 + RESET_EVERY_MS) && !resets.take(1001 + RESET_EVERY_MS));
        assert_eq!((0..100).filter(|_| resets.take(u64::MAX)).count(), RESETS_BURST as usize);
    }
}
