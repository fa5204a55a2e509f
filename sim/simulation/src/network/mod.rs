//! A network of hosts, with connections that are slow, break, hang or are refused.
//!
//! Does: connects streams of two hosts, delays and slices bytes, cuts streams, blocks a host's
//! traffic.
//! Does not: lose, change or reorder bytes of an open stream, as TCP.
//! Contract: all randomness comes from one stream, so one order of calls gives one history.

mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use wire::Wire;
pub use wire::WireEnd;

use crate::history::History;
use crate::random::RandomSource;

/// Timeout of a connection attempt to a host that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of the attempts.
const CONNECT_POLL: Duration = Duration::from_millis(50);

/// A host on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// The metadata server.
    Mds,
    /// A device, by its number.
    Device(u8),
    /// One client process.
    Client(u32),
    /// The attacker.
    Attacker,
}

/// Callback of the server for a new connection.
type Accept = Arc<dyn Fn(WireEnd) + Send + Sync>;

enum Service {
    Up(Accept),
    /// The machine is up, but the port is closed.
    Refusing,
    /// The machine is down.
    Silent,
}

/// Quality of the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkFaults {
    /// One-way latency range, in microseconds.
    pub latency_us: (u64, u64),
    /// Bytes per millisecond, connection and direction.
    pub bytes_per_ms: u64,
    /// Maximum bytes in flight in one direction.
    pub window: usize,
    /// Percentage of refused connection attempts.
    pub refused_percent: u64,
    /// Percentage of connections that break after some bytes.
    pub breaks_percent: u64,
}

struct NetworkState {
    services: BTreeMap<Host, Service>,
    partitioned: BTreeSet<Host>,
    slow: BTreeMap<Host, u64>,
    wires: BTreeMap<u64, Weak<Wire>>,
    next_wire: u64,
    quality: NetworkFaults,
}

/// The network.
pub struct Network {
    state: Mutex<NetworkState>,
    chance: Arc<RandomSource>,
    history: Arc<History>,
}

impl Network {
    /// Creates a network without hosts.
    #[must_use]
    pub fn new(quality: NetworkFaults, chance: Arc<RandomSource>, history: Arc<History>) -> Arc<Self> {
        let state = NetworkState {
            services: BTreeMap::new(),
            partitioned: BTreeSet::new(),
            slow: BTreeMap::new(),
            wires: BTreeMap::new(),
            next_wire: 0,
            quality,
        };
        Arc::new(Self { state: Mutex::new(state), chance, history })
    }

    /// Accepts connections to `host` from now on.
    pub fn serve(&self, host: Host, accept: impl Fn(WireEnd) + Send + Sync + 'static) {
        self.state.lock().services.insert(host, Service::Up(Arc::new(accept)));
    }

    /// Stops accepting connections and drops existing ones; some bytes in flight to others may
    /// still arrive.
    pub fn down(&self, host: Host) {
        let service = if self.chance.percent(50) { Service::Refusing } else { Service::Silent };
        self.state.lock().services.insert(host, service);
        self.cut(host);
    }

    /// Breaks all connections of a host and returns their number.
    pub fn cut(&self, host: Host) -> usize {
        let wires = self.wires(|wire| wire.connects(host));
        wires.iter().for_each(|wire| wire.cut([self.chance.percent(50), self.chance.percent(50)]));
        wires.len()
    }

    /// Breaks a random connection and returns its ends.
    pub fn cut_any(&self) -> Option<[Host; 2]> {
        let wires = self.wires(|_| true);
        if wires.is_empty() {
            return None;
        }
        let wire = self.chance.pick(&wires);
        wire.cut([self.chance.percent(50), self.chance.percent(50)]);
        Some(wire.hosts())
    }

    /// Blocks or unblocks all traffic of a host.
    pub fn partition(&self, host: Host, apart: bool) {
        let mut state = self.state.lock();
        if apart {
            state.partitioned.insert(host);
        } else {
            state.partitioned.remove(&host);
        }
        let partitioned = state.partitioned.clone();
        drop(state);
        for wire in self.wires(|wire| wire.connects(host)) {
            wire.freeze(wire.hosts().iter().any(|host| partitioned.contains(host)));
        }
    }

    /// Slows new bytes of a host down by `factor`; 1 is normal.
    pub fn slow(&self, host: Host, factor: u64) {
        self.state.lock().slow.insert(host, factor);
        for wire in self.wires(|wire| wire.connects(host)) {
            wire.slow(self.factor(wire.hosts()));
        }
    }

    /// Sets the quality for new connections.
    pub fn set_fault_rates(&self, quality: NetworkFaults) {
        self.state.lock().quality = quality;
    }

    /// Ends all faults, for new and existing connections.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        (state.quality.refused_percent, state.quality.breaks_percent) = (0, 0);
        state.partitioned.clear();
        state.slow.clear();
        drop(state);
        for wire in self.wires(|_| true) {
            wire.cancel_break();
            wire.slow(1);
            wire.freeze(false);
        }
    }

    /// Delivers a datagram from one host to another. Returns `None` if it is lost or the host is
    /// down.
    pub async fn datagram(&self, from: Host, to: Host) -> Option<()> {
        let quality = self.state.lock().quality;
        let trip = self.chance.range(quality.latency_us.0..=quality.latency_us.1);
        sleep(Duration::from_micros(trip.saturating_mul(self.factor([from, to])))).await;
        let lost = self.chance.percent(quality.refused_percent);
        let state = self.state.lock();
        let apart = [from, to].iter().any(|host| state.partitioned.contains(host));
        // A device queries the time before it serves.
        let there = to != Host::Mds || matches!(state.services.get(&to), Some(Service::Up(_)));
        (there && !apart && !lost).then_some(())
    }

    /// Connects two hosts.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`.
    pub async fn dial(self: &Arc<Self>, from: Host, to: Host) -> io::Result<WireEnd> {
        let quality = self.state.lock().quality;
        let trip = Duration::from_micros(self.chance.range(quality.latency_us.0..=quality.latency_us.1));
        sleep(trip * 2).await;
        let mut waited = Duration::ZERO;
        let accept = loop {
            {
                let state = self.state.lock();
                let apart = [from, to].iter().any(|host| state.partitioned.contains(host));
                match state.services.get(&to) {
                    Some(Service::Up(accept)) if !apart => break accept.clone(),
                    Some(Service::Refusing) if !apart => {
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                    _ => {}
                }
            }
            if waited >= CONNECT_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sleep(CONNECT_POLL).await;
            waited += CONNECT_POLL;
        };
        if self.chance.percent(quality.refused_percent) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        // Connections to the metadata server carry few bytes.
        let most = if to == Host::Mds { 16 << 10 } else { 4 << 20 };
        let breaks_after =
            self.chance.percent(quality.breaks_percent).then(|| self.chance.logarithmic(64..=most));
        let factor = self.factor([from, to]);
        let number = {
            let mut state = self.state.lock();
            state.next_wire += 1;
            state.next_wire
        };
        let wire =
            Wire::new(number, [from, to], quality, breaks_after, self.chance.clone(), self.history.clone());
        wire.slow(factor);
        self.state.lock().wires.insert(number, Arc::downgrade(&wire));
        self.history.note("connect", &[number]);
        let [near, far] = wire::ends(&wire);
        accept(far);
        Ok(near)
    }

    fn factor(&self, hosts: [Host; 2]) -> u64 {
        let state = self.state.lock();
        hosts.iter().filter_map(|host| state.slow.get(host)).copied().max().unwrap_or(1)
    }

    fn wires(&self, which: impl Fn(&Wire) -> bool) -> Vec<Arc<Wire>> {
        let mut state = self.state.lock();
        state.wires.retain(|_, wire| wire.strong_count() > 0);
        state.wires.values().filter_map(Weak::upgrade).filter(|wire| which(wire)).collect()
    }
}
