//! Who was turned away, for an audit log: one record at once, and what follows of the same kind in one more.
//!
//! Does: put refusals of one source and reason together. Does not: format or store; a shell does.
//! Contract: however many are turned away, each source and reason makes at most one record in [`EVERY_MS`], at most
//! [`KINDS_MAX`] of them are kept apart, and every refusal is in the `count` of one record.

use std::{collections::HashMap, fmt, mem, sync::Arc};

use parking_lot::Mutex;

use crate::Clock;

/// Milliseconds from one record of a source and reason to the next.
pub const EVERY_MS: u64 = 10_000;
/// Sources with their reasons that are kept apart; further ones are told as [`OTHERS`].
const KINDS_MAX: usize = 1024;
/// The source of a record that is about several.
pub const OTHERS: &str = "others";

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<'a> {
    /// IPv4 address, or IPv6 /64.
    pub source: &'a str,
    /// The iSCSI name that was said; not proven. Empty if none was.
    pub initiator: &'a str,
    /// `connect`, `login` or `manage`.
    pub action: &'static str,
    /// Why.
    pub reason: &'static str,
    /// How many refusals this record is about.
    pub count: u64,
}

/// Hears of refusals.
pub trait Watcher: Send + Sync {
    /// Takes one record; called where connections are accepted, so it must not wait for long.
    fn refused(&self, refused: &Refused<'_>);
}

/// A watcher, or nobody.
#[derive(Clone, Default)]
pub struct Watch(Option<Arc<dyn Watcher>>);

impl Watch {
    /// This one.
    #[must_use]
    pub fn by(watcher: Arc<dyn Watcher>) -> Self {
        Self(Some(watcher))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

type Kind = (String, &'static str, &'static str);

struct Pending {
    since_ms: u64,
    initiator: String,
    count: u64,
}

/// Refusals on their way to the watcher.
pub(crate) struct Refusals {
    watch: Watch,
    clock: Clock,
    pending: Mutex<HashMap<Kind, Pending>>,
}

impl Refusals {
    pub(crate) fn new(watch: Watch, clock: Clock) -> Self {
        Self { watch, clock, pending: Mutex::default() }
    }

    pub(crate) fn add(&self, source: &str, initiator: &str, action: &'static str, reason: &'static str) {
        let Some(watcher) = &self.watch.0 else { return };
        let now_ms = self.clock.now_ms();
        let mut pending = self.pending.lock();
        let mut kind = (source.to_owned(), action, reason);
        if pending.len() >= KINDS_MAX && !pending.contains_key(&kind) {
            OTHERS.clone_into(&mut kind.0);
        }
        if let Some(known) = pending.get_mut(&kind) {
            initiator.clone_into(&mut known.initiator);
            known.count += 1;
            return;
        }
        let source = kind.0.clone();
        pending.insert(kind, Pending { since_ms: now_ms, initiator: initiator.to_owned(), count: 0 });
        drop(pending);
        watcher.refused(&Refused { source: &source, initiator, action, reason, count: 1 });
    }

    /// Tells what has come together; with `all` also what is too young.
    pub(crate) fn flush(&self, all: bool) {
        let Some(watcher) = &self.watch.0 else { return };
        let now_ms = self.clock.now_ms();
        let mut due = Vec::new();
        self.pending.lock().retain(|kind, one| {
            if !all && now_ms < one.since_ms.saturating_add(EVERY_MS) {
                return true;
            }
            let (count, initiator) = (mem::take(&mut one.count), mem::take(&mut one.initiator));
            one.since_ms = now_ms;
            if count > 0 {
                due.push((kind.clone(), initiator, count));
            }
            // Whoever goes on is told again only after as long.
            count > 0 && !all
        });
        for ((source, action, reason), initiator, count) in due {
            watcher.refused(&Refused { source: &source, initiator: &initiator, action, reason, count });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(String, &'static str, u64)>>);

    impl Watcher for Heard {
        fn refused(&self, refused: &Refused<'_>) {
            self.0.lock().push((refused.source.to_owned(), refused.reason, refused.count));
        }
    }

    #[test]
    fn a_flood_makes_few_records_and_each_refusal_is_in_one() {
        let (heard, now) = (Arc::new(Heard::default()), Arc::new(AtomicU64::new(0)));
        let time = Arc::clone(&now);
        let refusals =
            Refusals::new(Watch::by(heard.clone()), Clock::new(move || time.load(Ordering::SeqCst)));
        for _ in 0..1000 {
            refusals.add("a", "", "connect", "too-fast");
            refusals.add("b", "", "connect", "too-fast");
        }
        refusals.flush(false);
        assert_eq!(heard.0.lock().len(), 2, "the first of each at once, the rest later");
        now.store(EVERY_MS, Ordering::SeqCst);
        refusals.flush(false);
        refusals.add("a", "", "connect", "too-fast");
        refusals.flush(false);
        assert_eq!(heard.0.lock().len(), 4, "whoever goes on waits as long again");
        refusals.flush(true);
        refusals.flush(true);
        let of = |source: &str| -> u64 {
            heard.0.lock().iter().filter(|(one, ..)| one == source).map(|(_, _, count)| count).sum()
        };
        assert_eq!((of("a"), of("b"), heard.0.lock().len()), (1001, 1000, 5));
    }

    #[test]
    fn many_sources_are_told_as_others() {
        let heard = Arc::new(Heard::default());
        let refusals = Refusals::new(Watch::by(heard.clone()), Clock::new(|| 0));
        for n in 0..3 * KINDS_MAX {
            refusals.add(&n.to_string(), "", "connect", "too-fast");
        }
        assert!(refusals.pending.lock().len() <= KINDS_MAX + 1);
        refusals.flush(true);
        let heard = heard.0.lock();
        assert_eq!(heard.len(), KINDS_MAX + 2);
        assert_eq!(heard.iter().map(|(_, _, count)| count).sum::<u64>(), 3 * KINDS_MAX as u64);
    }
}
