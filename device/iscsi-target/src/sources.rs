//! Limits of connections by source address.
//!
//! Does: count open connections and connection rate of each source; decide which connection is
//! refused, and why.
//! Does not: accept or close connections (`server` does), nor distribute slots among sources
//! (`sealstone_channel::Admission` does).
//! Contract: [`source`] defines what one source is. Memory is bounded: a source without connections
//! and with a full bucket is forgotten. At [`SOURCES_MAX`] the idle source with the fullest bucket
//! is evicted.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{Counter, MonotonicClock, pool::BufferQuota};

/// Sources that are remembered at most.
const SOURCES_MAX: usize = 4096;
/// One connection in the unit of the token bucket, so that it fills by whole numbers each
/// millisecond.
const ONE: u64 = 1000;

/// Rate at which one source may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRate {
    /// Connections at once.
    pub burst: u32,
    /// Connections per second after the burst.
    pub per_second: u32,
}

impl ConnectionRate {
    /// No limit.
    pub const UNBOUNDED: Self = Self { burst: u32::MAX, per_second: u32::MAX };
}

/// Limits of one source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceLimits {
    /// Open connections.
    pub(crate) open_max: usize,
    pub(crate) rate: ConnectionRate,
    /// Bytes of data buffers.
    pub(crate) memory_max: usize,
    /// Long commands that run at once.
    pub(crate) long_max: usize,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRefusal {
    /// Its source has reached the limit of open connections.
    TooManyOpen,
    /// Its source connects too fast.
    TooFast,
}

impl ConnectionRefusal {
    pub(crate) const fn counter(self) -> Counter {
        match self {
            Self::TooManyOpen => Counter::ConnectionsCrowded,
            Self::TooFast => Counter::ConnectionsThrottled,
        }
    }

    /// Returns the reason as the audit log records it.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::TooManyOpen => "connections-of-address",
            Self::TooFast => "too-fast",
        }
    }
}

/// Returns the source of an `address:port`: an IPv4 address or an IPv6 /64, which is one host. Any
/// other string is a source of its own.
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

/// State of one source.
struct SourceState {
    open: usize,
    /// Tokens in the bucket, in thousandths of a connection.
    tokens: u64,
    /// Time up to which `tokens` is counted.
    at_ms: u64,
    /// Data buffers of all its connections.
    memory: Arc<BufferQuota>,
    /// Slots for its long commands.
    long: Arc<Semaphore>,
}

impl SourceState {
    fn refill(&mut self, rate: ConnectionRate, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.at_ms);
        let more = passed.saturating_mul(u64::from(rate.per_second));
        self.tokens = self.tokens.saturating_add(more).min(full(rate));
        self.at_ms = now_ms;
    }

    fn is_forgotten(&self, rate: ConnectionRate) -> bool {
        self.open == 0 && self.tokens >= full(rate)
    }
}

fn full(rate: ConnectionRate) -> u64 {
    u64::from(rate.burst) * ONE
}

/// State of all sources.
pub(crate) struct SourceTable {
    limits: SourceLimits,
    clock: MonotonicClock,
    here: Mutex<HashMap<String, SourceState>>,
}

/// Slot of one connection of a source. Dropping it frees the slot.
pub(crate) struct SourceSlot {
    sources: Arc<SourceTable>,
    source: String,
    memory: Arc<BufferQuota>,
    long: Arc<Semaphore>,
}

impl SourceTable {
    pub(crate) fn new(limits: SourceLimits, clock: MonotonicClock) -> Arc<Self> {
        Arc::new(Self { limits, clock, here: Mutex::default() })
    }

    /// Takes a slot for a connection of this source, or returns the reason of the refusal. A
    /// connection that is refused for the number of open ones still takes a token, so a source that
    /// keeps trying becomes too fast.
    pub(crate) fn enter(self: &Arc<Self>, source: String) -> Result<SourceSlot, ConnectionRefusal> {
        let SourceLimits { open_max, rate, memory_max, long_max } = self.limits;
        let now_ms = self.clock.now_ms();
        let mut here = self.here.lock();
        if here.len() >= SOURCES_MAX && !here.contains_key(&source) {
            evict_source(&mut here, rate, now_ms);
        }
        let fresh = || {
            let memory = Arc::new(BufferQuota::new(memory_max));
            let long = Arc::new(Semaphore::new(long_max.min(Semaphore::MAX_PERMITS)));
            SourceState { open: 0, tokens: full(rate), at_ms: now_ms, memory, long }
        };
        let one = here.entry(source.clone()).or_insert_with(fresh);
        one.refill(rate, now_ms);
        if one.tokens < ONE {
            return Err(ConnectionRefusal::TooFast);
        }
        if rate != ConnectionRate::UNBOUNDED {
            one.tokens -= ONE;
        }
        if one.open >= open_max {
            return Err(ConnectionRefusal::TooManyOpen);
        }
        one.open += 1;
        let (memory, long) = (Arc::clone(&one.memory), Arc::clone(&one.long));
        Ok(SourceSlot { sources: Arc::clone(self), source, memory, long })
    }
}

/// Removes sources without state. If there are none, removes the one with the most tokens among
/// those without connections. Sources with connections stay: there are at most as many as the
/// target has connections.
fn evict_source(here: &mut HashMap<String, SourceState>, rate: ConnectionRate, now_ms: u64) {
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

impl SourceSlot {
    /// Returns the buffer quota that all connections of the source share.
    pub(crate) fn memory(&self) -> Arc<BufferQuota> {
        Arc::clone(&self.memory)
    }

    /// Returns the semaphore for long commands of the source.
    pub(crate) fn long(&self) -> Arc<Semaphore> {
        Arc::clone(&self.long)
    }

    /// Returns the source of the connection.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

impl Drop for SourceSlot {
    fn drop(&mut self) {
        let rate = self.sources.limits.rate;
        let now_ms = self.sources.clock.now_ms();
        let mut here = self.sources.here.lock();
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

    fn sources(open_max: usize, rate: ConnectionRate) -> (Arc<AtomicU64>, Arc<SourceTable>) {
        let now = Arc::new(AtomicU64::new(5));
        let time = Arc::clone(&now);
        let clock = MonotonicClock::new(move || time.load(Ordering::SeqCst));
        (now, SourceTable::new(SourceLimits { open_max, rate, memory_max: 1, long_max: 1 }, clock))
    }

    #[test]
    fn source_is_ipv4_address_or_ipv6_64() {
        assert_eq!(source("10.0.0.1:3000"), source("10.0.0.1:4000"));
        assert_eq!(source("[::ffff:10.0.0.1]:1"), source("10.0.0.1:1"));
        assert_eq!(source("[2001:db8:1:2::3]:1"), source("[2001:db8:1:2:ffff::4]:2"));
        assert_ne!(source("[2001:db8:1:2::3]:1"), source("[2001:db8:1:3::3]:1"));
        assert_eq!(source("a client"), "a client");
    }

    #[test]
    fn open_connections_are_limited_per_source() {
        let (_, sources) = sources(2, ConnectionRate::UNBOUNDED);
        let first = sources.enter("a".into()).unwrap();
        let _second = sources.enter("a".into()).unwrap();
        assert_eq!(sources.enter("a".into()).err(), Some(ConnectionRefusal::TooManyOpen));
        let other = sources.enter("b".into()).unwrap();
        drop(first);
        assert!(sources.enter("a".into()).is_ok());
        drop(other);
        assert!(!sources.here.lock().contains_key("b"), "a source without connections is forgotten");
    }

    #[test]
    fn a_burst_and_then_so_many_a_second() {
        let (now, sources) = sources(usize::MAX, ConnectionRate { burst: 3, per_second: 2 });
        let come = |source: &str| sources.enter(source.into()).map(drop);
        assert!((0..3).all(|_| come("a").is_ok()));
        assert_eq!((come("a"), come("b")), (Err(ConnectionRefusal::TooFast), Ok(())));
        now.store(5 + 499, Ordering::SeqCst);
        assert_eq!(come("a"), Err(ConnectionRefusal::TooFast));
        now.store(5 + 500, Ordering::SeqCst);
        assert_eq!((come("a"), come("a")), (Ok(()), Err(ConnectionRefusal::TooFast)));
        now.store(u64::MAX, Ordering::SeqCst);
        assert_eq!((0..100).filter(|_| come("a").is_ok()).count(), 3, "no more than the burst is saved up");
    }

    #[test]
    fn refused_connections_also_take_tokens() {
        let (_, sources) = sources(1, ConnectionRate { burst: 3, per_second: 0 });
        let _first = sources.enter("a".into()).unwrap();
        let turned: Vec<_> = (0..3).map(|_| sources.enter("a".into()).err()).collect();
        assert_eq!(
            turned,
            [
                Some(ConnectionRefusal::TooManyOpen),
                Some(ConnectionRefusal::TooManyOpen),
                Some(ConnectionRefusal::TooFast)
            ]
        );
    }

    #[test]
    fn source_table_is_bounded_and_keeps_connected() {
        let (_, sources) = sources(1, ConnectionRate { burst: 2, per_second: 0 });
        let here = sources.enter("here".into()).unwrap();
        for n in 0..2 * SOURCES_MAX {
            assert!(sources.enter(n.to_string()).is_ok());
        }
        assert!(sources.here.lock().len() <= SOURCES_MAX);
        assert_eq!(sources.enter("here".into()).err(), Some(ConnectionRefusal::TooManyOpen));
        drop(here);
    }
}
