//! Who may come in: connections, by where they come from.
//!
//! Does: count open connections of each source, and how fast it connects; say which connection is refused and why. Does
//! not: accept or close, which `server` does, nor share places between sources, which `sealstone_channel::Admission` does.
//! Contract: a source is what [`source`] says. What is remembered is bounded: a source that holds nothing and whose
//! bucket is full again is forgotten, and of [`SOURCES_MAX`] the fullest makes room.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{Clock, Counter, pool::Part};

/// Most sources that are remembered.
const SOURCES_MAX: usize = 4096;
/// One connection in the bucket's own unit, so that it fills by whole numbers each millisecond.
const ONE: u64 = 1000;

/// How fast connections of one source may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Connections at once.
    pub burst: u32,
    /// And so many a second from then on.
    pub per_second: u32,
}

impl Rate {
    /// No bound.
    pub const UNBOUNDED: Self = Self { burst: u32::MAX, per_second: u32::MAX };
}

/// Limits of one source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once.
    pub(crate) open_max: usize,
    pub(crate) rate: Rate,
    /// Bytes of data buffers.
    pub(crate) memory_max: usize,
    /// Long commands at once.
    pub(crate) long_max: usize,
}

/// Why a connection is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    /// Its source has as many connections as it may.
    Crowded,
    /// Its source comes too often.
    TooFast,
}

impl Turned {
    pub(crate) const fn counter(self) -> Counter {
        match self {
            Self::Crowded => Counter::ConnectionsCrowded,
            Self::TooFast => Counter::ConnectionsThrottled,
        }
    }

    /// For the audit log.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Crowded => "connections-of-address",
            Self::TooFast => "too-fast",
        }
    }
}

/// Whence a connection comes, from its `address:port`: an IPv4 address or an IPv6 /64, so that one host cannot be many;
/// what is no such address counts as it stands.
pub(crate) fn source(peer: &str) -> String {
    match peer.parse::<SocketAddr>().map(|address| address.ip().to_canonical()) {
        Ok(IpAddr::V4(address)) => address.to_string(),
        Ok(IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
        Err(_) => peer.to_owned(),
    }
}

/// One source.
struct Here {
    open: usize,
    /// Thousandths of connections that may come at once.
    tokens: u64,
    /// Until when `tokens` is counted.
    at_ms: u64,
    /// What all its connections have of the buffers.
    memory: Arc<Part>,
    /// Places for its long commands.
    long: Arc<Semaphore>,
}

impl Here {
    fn refill(&mut self, rate: Rate, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.at_ms);
        let more = passed.saturating_mul(u64::from(rate.per_second));
        self.tokens = self.tokens.saturating_add(more).min(full(rate));
        self.at_ms = now_ms;
    }

    fn is_forgotten(&self, rate: Rate) -> bool {
        self.open == 0 && self.tokens >= full(rate)
    }
}

fn full(rate: Rate) -> u64 {
    u64::from(rate.burst) * ONE
}

/// Everybody who is here, by source.
pub(crate) struct Arrivals {
    limits: Limits,
    clock: Clock,
    here: Mutex<HashMap<String, Here>>,
}

/// One connection's place; free again when dropped.
pub(crate) struct Place {
    arrivals: Arc<Arrivals>,
    source: String,
    memory: Arc<Part>,
    long: Arc<Semaphore>,
}

impl Arrivals {
    pub(crate) fn new(limits: Limits, clock: Clock) -> Arc<Self> {
        Arc::new(Self { limits, clock, here: Mutex::default() })
    }

    /// A place for one more connection of this source, or why there is none. Whoever is turned away for another reason than
    /// his speed has come all the same: a crowd that goes on knocking is too fast in the end.
    pub(crate) fn enter(self: &Arc<Self>, source: String) -> Result<Place, Turned> {
        let Limits { open_max, rate, memory_max, long_max } = self.limits;
        let now_ms = self.clock.now_ms();
        let mut here = self.here.lock();
        if here.len() >= SOURCES_MAX && !here.contains_key(&source) {
            make_room(&mut here, rate, now_ms);
        }
        let fresh = || {
            let memory = Arc::new(Part::new(memory_max));
            let long = Arc::new(Semaphore::new(long_max.min(Semaphore::MAX_PERMITS)));
            Here { open: 0, tokens: full(rate), at_ms: now_ms, memory, long }
        };
        let one = here.entry(source.clone()).or_insert_with(fresh);
        one.refill(rate, now_ms);
        if one.tokens < ONE {
            return Err(Turned::TooFast);
        }
        if rate != Rate::UNBOUNDED {
            one.tokens -= ONE;
        }
        if one.open >= open_max {
            return Err(Turned::Crowded);
        }
        one.open += 1;
        let (memory, long) = (Arc::clone(&one.memory), Arc::clone(&one.long));
        Ok(Place { arrivals: Arc::clone(self), source, memory, long })
    }
}

/// Forgets whoever has nothing here; if that is nobody, the one among those without a connection that has the most left.
/// Whoever has a connection stays: there are at most as many as the target has connections.
fn make_room(here: &mut HashMap<String, Here>, rate: Rate, now_ms: u64) {
    here.retain(|_, one| {
        one.refill(rate, now_ms);
        !one.is_forgotten(rate)
    });
    if here.len() < SOURCES_MAX {
        return;
    }
    let idle = here.iter().filter(|(_, one)| one.open == 0);
    if let Some(fullest) = idle.max_by_key(|(_, one)| one.tokens).map(|(source, _)| source.clone()) {
        here.remove(&fullest);
    }
}

impl Place {
    /// What its source may have of the buffers, all connections together.
    pub(crate) fn memory(&self) -> Arc<Part> {
        Arc::clone(&self.memory)
    }

    /// Places for long commands of its source.
    pub(crate) fn long(&self) -> Arc<Semaphore> {
        Arc::clone(&self.long)
    }

    /// Where the connection comes from.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let rate = self.arrivals.limits.rate;
        let now_ms = self.arrivals.clock.now_ms();
        let mut here = self.arrivals.here.lock();
        if let Some(one) = here.get_mut(&self.source) {
            one.open -= 1;
            one.refill(rate, now_ms);
            if one.is_forgotten(rate) {
                here.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn arrivals(open_max: usize, rate: Rate) -> (Arc<AtomicU64>, Arc<Arrivals>) {
        let now = Arc::new(AtomicU64::new(5));
        let time = Arc::clone(&now);
        let clock = Clock::new(move || time.load(Ordering::SeqCst));
        (now, Arrivals::new(Limits { open_max, rate, memory_max: 1, long_max: 1 }, clock))
    }

    #[test]
    fn a_source_is_an_address_or_a_network_of_one_host() {
        assert_eq!(source("10.0.0.1:3000"), source("10.0.0.1:4000"));
        assert_eq!(source("[::ffff:10.0.0.1]:1"), source("10.0.0.1:1"));
        assert_eq!(source("[2001:db8:1:2::3]:1"), source("[2001:db8:1:2:ffff::4]:2"));
        assert_ne!(source("[2001:db8:1:2::3]:1"), source("[2001:db8:1:3::3]:1"));
        assert_eq!(source("a client"), "a client");
    }

    #[test]
    fn a_source_has_so_many_places_and_others_have_theirs() {
        let (_, arrivals) = arrivals(2, Rate::UNBOUNDED);
        let first = arrivals.enter("a".into()).unwrap();
        let _second = arrivals.enter("a".into()).unwrap();
        assert_eq!(arrivals.enter("a".into()).err(), Some(Turned::Crowded));
        let other = arrivals.enter("b".into()).unwrap();
        drop(first);
        assert!(arrivals.enter("a".into()).is_ok());
        drop(other);
        assert!(!arrivals.here.lock().contains_key("b"), "nothing is remembered of who left");
    }

    #[test]
    fn a_burst_and_then_so_many_a_second() {
        let (now, arrivals) = arrivals(usize::MAX, Rate { burst: 3, per_second: 2 });
        let come = |source: &str| arrivals.enter(source.into()).map(drop);
        assert!((0..3).all(|_| come("a").is_ok()));
        assert_eq!((come("a"), come("b")), (Err(Turned::TooFast), Ok(())));
        now.store(5 + 499, Ordering::SeqCst);
        assert_eq!(come("a"), Err(Turned::TooFast));
        now.store(5 + 500, Ordering::SeqCst);
        assert_eq!((come("a"), come("a")), (Ok(()), Err(Turned::TooFast)));
        now.store(u64::MAX, Ordering::SeqCst);
        assert_eq!((0..100).filter(|_| come("a").is_ok()).count(), 3, "no more than the burst is saved up");
    }

    #[test]
    fn a_crowd_that_goes_on_knocking_is_too_fast_in_the_end() {
        let (_, arrivals) = arrivals(1, Rate { burst: 3, per_second: 0 });
        let _first = arrivals.enter("a".into()).unwrap();
        let turned: Vec<_> = (0..3).map(|_| arrivals.enter("a".into()).err()).collect();
        assert_eq!(turned, [Some(Turned::Crowded), Some(Turned::Crowded), Some(Turned::TooFast)]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_who_is_here_is_not_forgotten() {
        let (_, arrivals) = arrivals(1, Rate { burst: 2, per_second: 0 });
        let here = arrivals.enter("here".into()).unwrap();
        for n in 0..2 * SOURCES_MAX {
            assert!(arrivals.enter(n.to_string()).is_ok());
        }
        assert!(arrivals.here.lock().len() <= SOURCES_MAX);
        assert_eq!(arrivals.enter("here".into()).err(), Some(Turned::Crowded));
        drop(here);
    }
}
