//! Admission of connections: slots before and after the login, shared fairly between networks.
//!
//! Does: counts connections by address and network, chooses the connection that is closed when a
//! share or the table is full.
//! Does not: accept or close sockets; the listener waits for [`AdmissionTicket::evicted`].
//! Contract: a new connection is always admitted. When slots before the login run out, the network
//! with the most of them loses its oldest connection among those at the earliest stage. So
//! connections that send nothing never block others. Slots after the login are separate: only a
//! login takes one, and only from an owner with more slots than the new one.
//! Source of truth: docs/reference/limits.md.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Progress of a connection towards its login; later stages are evicted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoginStage {
    /// Accepted; nothing was received.
    Connected,
    /// The TLS handshake is over.
    Secured,
    /// The proof of a login was received and is being checked.
    Proving,
}

/// The origin of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionOrigin {
    /// One host: an IPv4 address or an IPv6 /64.
    address: String,
    /// Its network: an IPv4 /24 or an IPv6 /48.
    network: String,
    is_local: bool,
}

impl ConnectionOrigin {
    /// Returns the origin of a peer without an address: a simulated one.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { address: name.to_owned(), network: name.to_owned(), is_local: false }
    }

    /// Returns the host, as it is counted.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the network, as it is counted.
    #[must_use]
    pub fn network(&self) -> &str {
        &self.network
    }
}

impl From<IpAddr> for ConnectionOrigin {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let is_local = address.is_loopback();
        let (address, network) = match address {
            IpAddr::V4(v4) => {
                let [a, b, c, _] = v4.octets();
                (v4.to_string(), format!("{a}.{b}.{c}.0/24"))
            }
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                (format!("{a:x}:{b:x}:{c:x}:{d:x}::/64"), format!("{a:x}:{b:x}:{c:x}::/48"))
            }
        };
        Self { address, network, is_local }
    }
}

/// Slots of a listener, as numbers of connections.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// Before the login, of all networks together.
    pub pending_max: usize,
    /// Of these, of one network.
    pub pending_per_network_max: usize,
    /// Of these, of one address.
    pub pending_per_address_max: usize,
    /// Before the login, from the loopback address; separate from the others.
    pub pending_local_max: usize,
    /// After the login.
    pub active_max: usize,
    /// Of these, of one address.
    pub active_per_address_max: usize,
    /// After the login, additional slots for administrators and the loopback address.
    pub active_reserved: usize,
}

/// No slot after the login is available: no other owner has more than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection limit of the listener is reached")]
pub struct NoFreeSlot;

#[derive(Clone, Debug)]
enum ConnectionSlot {
    Pending(LoginStage),
    Active { owner: String, is_reserved: bool },
}

struct ConnectionEntry {
    origin: ConnectionOrigin,
    place: ConnectionSlot,
    close: watch::Sender<bool>,
}

#[derive(Default)]
struct AdmissionTable {
    next: u64,
    entries: HashMap<u64, ConnectionEntry>,
    evicted: u64,
}

/// The connections of a listener.
pub struct Admission {
    limits: AdmissionLimits,
    table: Mutex<AdmissionTable>,
}

impl Admission {
    /// Creates an empty table.
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default() })
    }

    /// Admits a connection; another one may be closed for it.
    #[must_use]
    pub fn enter(self: &Arc<Self>, origin: ConnectionOrigin) -> AdmissionTicket {
        let (close, closed) = watch::channel(false);
        let mut table = self.lock();
        table.make_place(&origin, &self.limits);
        let id = table.next;
        table.next += 1;
        table.entries.insert(
            id,
            ConnectionEntry { origin, place: ConnectionSlot::Pending(LoginStage::Connected), close },
        );
        AdmissionTicket { admission: Arc::clone(self), id, closed }
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn open(&self) -> usize {
        self.lock().entries.len()
    }

    /// Returns the number of open connections whose login is not finished.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lock().entries.values().filter(|entry| matches!(entry.place, ConnectionSlot::Pending(_))).count()
    }

    /// Returns the number of connections closed for others so far.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.lock().evicted
    }

    fn lock(&self) -> MutexGuard<'_, AdmissionTable> {
        // Counts and flags: a panic elsewhere leaves nothing half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionTable {
    fn pending(&self) -> impl Iterator<Item = (u64, LoginStage, &ConnectionOrigin)> {
        self.entries.iter().filter_map(|(id, entry)| match entry.place {
            ConnectionSlot::Pending(stage) => Some((*id, stage, &entry.origin)),
            ConnectionSlot::Active { .. } => None,
        })
    }

    fn active(&self) -> impl Iterator<Item = (u64, &str, &ConnectionOrigin, bool)> {
        self.entries.iter().filter_map(|(id, entry)| match &entry.place {
            ConnectionSlot::Active { owner, is_reserved } => {
                Some((*id, owner.as_str(), &entry.origin, *is_reserved))
            }
            ConnectionSlot::Pending(_) => None,
        })
    }

    fn evict(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.evicted += 1;
            entry.close.send_replace(true);
        }
    }

    /// Evicts the oldest connection at the earliest stage, among the pending ones that `of`
    /// selects.
    fn evict_pending(&mut self, of: impl Fn(&ConnectionOrigin) -> bool) {
        let oldest =
            self.pending().filter(|(_, _, origin)| of(origin)).map(|(id, stage, _)| (stage, id)).min();
        if let Some((_, id)) = oldest {
            self.evict(id);
        }
    }

    fn make_place(&mut self, new: &ConnectionOrigin, limits: &AdmissionLimits) {
        let count = |table: &Self, of: &dyn Fn(&ConnectionOrigin) -> bool| {
            table.pending().filter(|(_, _, origin)| of(origin)).count()
        };
        let same_address = |origin: &ConnectionOrigin| origin.address == new.address;
        if count(self, &same_address) >= limits.pending_per_address_max.max(1) {
            return self.evict_pending(same_address);
        }
        if new.is_local {
            if count(self, &|origin| origin.is_local) >= limits.pending_local_max.max(1) {
                self.evict_pending(|origin| origin.is_local);
            }
            return;
        }
        let same_network = |origin: &ConnectionOrigin| origin.network == new.network;
        if count(self, &same_network) >= limits.pending_per_network_max.max(1) {
            return self.evict_pending(same_network);
        }
        if count(self, &|origin| !origin.is_local) < limits.pending_max.max(1) {
            return;
        }
        let mut networks: HashMap<&str, usize> = HashMap::new();
        for (_, _, origin) in self.pending().filter(|(_, _, origin)| !origin.is_local) {
            *networks.entry(&origin.network).or_default() += 1;
        }
        let most = networks.values().copied().max().unwrap_or_default();
        // Of several networks with equal numbers, the oldest connection is evicted.
        let largest: Vec<String> = networks
            .into_iter()
            .filter(|(_, count)| *count == most)
            .map(|(network, _)| network.to_owned())
            .collect();
        self.evict_pending(|origin| !origin.is_local && largest.contains(&origin.network));
    }

    /// Returns the oldest active connection of the owner with the most, if that is more than
    /// `owner` will have.
    fn largest_owner(&self, owner: &str, of: impl Fn(&ConnectionOrigin, bool) -> bool) -> Option<u64> {
        let mut owners: HashMap<&str, (usize, u64)> = HashMap::new();
        for (id, owner, _, _) in self.active().filter(|(_, _, origin, reserved)| of(origin, *reserved)) {
            let (count, oldest) = owners.entry(owner).or_insert((0, id));
            (*count, *oldest) = (*count + 1, id.min(*oldest));
        }
        let own = owners.get(owner).map_or(0, |(count, _)| *count);
        // Of owners with equal numbers, the oldest connection is evicted: the choice does not
        // depend on the table's order.
        let largest = owners.into_values().max_by_key(|(count, oldest)| (*count, u64::MAX - *oldest));
        largest.filter(|(count, _)| *count > own + 1).map(|(_, oldest)| oldest)
    }
}

/// The slot of one connection; freed when dropped.
pub struct AdmissionTicket {
    admission: Arc<Admission>,
    id: u64,
    closed: watch::Receiver<bool>,
}

impl AdmissionTicket {
    /// Returns a flag that becomes true when the connection must be closed for another one.
    #[must_use]
    pub fn evicted(&self) -> watch::Receiver<bool> {
        self.closed.clone()
    }

    /// Records the progress of the login.
    pub fn advance(&self, to: LoginStage) {
        if let Some(entry) = self.admission.lock().entries.get_mut(&self.id)
            && let ConnectionSlot::Pending(stage) = &mut entry.place
        {
            *stage = (*stage).max(to);
        }
    }

    /// Records the finished login: the connection takes a slot of its owner's share.
    ///
    /// # Errors
    /// [`NoFreeSlot`] if no owner has more than this one; the connection must then be closed.
    pub fn activate(&self, owner: &str, is_privileged: bool) -> Result<(), NoFreeSlot> {
        let limits = &self.admission.limits;
        let mut table = self.admission.lock();
        let Some(entry) = table.entries.get(&self.id) else { return Err(NoFreeSlot) };
        if let ConnectionSlot::Active { .. } = entry.place {
            return Ok(());
        }
        let origin = entry.origin.clone();
        let of_address = table.active().filter(|(_, _, other, _)| other.address == origin.address).count();
        if of_address >= limits.active_per_address_max {
            let victim =
                table.largest_owner(owner, |other, _| other.address == origin.address).ok_or(NoFreeSlot)?;
            table.evict(victim);
        }
        let reserved = table.active().filter(|(_, _, _, reserved)| *reserved).count();
        let common = table.active().count() - reserved;
        let mut is_reserved = false;
        if common >= limits.active_max {
            if (is_privileged || origin.is_local) && reserved < limits.active_reserved {
                is_reserved = true;
            } else {
                let victim = table.largest_owner(owner, |_, reserved| !reserved).ok_or(NoFreeSlot)?;
                table.evict(victim);
            }
        }
        if let Some(entry) = table.entries.get_mut(&self.id) {
            entry.place = ConnectionSlot::Active { owner: owner.to_owned(), is_reserved };
        }
        Ok(())
    }
}

impl Drop for AdmissionTicket {
    fn drop(&mut self) {
        self.admission.lock().entries.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: AdmissionLimits = AdmissionLimits {
        pending_max: 8,
        pending_per_network_max: 6,
        pending_per_address_max: 4,
        pending_local_max: 2,
        active_max: 4,
        active_per_address_max: 3,
        active_reserved: 1,
    };

    fn from(address: &str) -> ConnectionOrigin {
        address.parse::<IpAddr>().unwrap().into()
    }

    fn is_evicted(ticket: &AdmissionTicket) -> bool {
        *ticket.evicted().borrow()
    }

    #[test]
    fn origin_counts_hosts_and_networks() {
        assert_eq!(from("10.0.0.1").network(), "10.0.0.0/24");
        assert_eq!(from("::ffff:10.0.0.1"), from("10.0.0.1"));
        assert_eq!(from("2001:db8:1:2::3").address(), "2001:db8:1:2::/64");
        assert_eq!(from("2001:db8:1:2::3").network(), from("2001:db8:1:ffff::1").network());
    }

    #[test]
    fn silent_flood_of_two_addresses_blocks_no_client() {
        let admission = Admission::new(LIMITS);
        let flood: Vec<AdmissionTicket> = (0..1200)
            .map(|n| admission.enter(from(if n % 2 == 0 { "10.0.0.1" } else { "10.0.1.1" })))
            .collect();
        assert_eq!(admission.open(), LIMITS.pending_max);
        let honest = admission.enter(from("10.9.9.9"));
        let more: Vec<AdmissionTicket> = (0..1200).map(|_| admission.enter(from("10.0.2.1"))).collect();
        assert!(!is_evicted(&honest), "a network with one connection loses none to larger ones");
        assert!(admission.open() <= LIMITS.pending_max);
        assert_eq!(honest.activate("alice", false), Ok(()));
        drop((flood, more));
        assert_eq!((admission.open(), admission.pending()), (1, 0));
    }

    #[test]
    fn flood_spares_connections_at_later_stages() {
        let admission = Admission::new(LIMITS);
        let honest = admission.enter(from("10.0.0.1"));
        honest.advance(LoginStage::Secured);
        let flood: Vec<AdmissionTicket> = (0..100).map(|_| admission.enter(from("10.0.0.1"))).collect();
        assert!(!is_evicted(&honest));
        assert_eq!(flood.iter().filter(|ticket| !is_evicted(ticket)).count(), 3);
    }

    #[test]
    fn flood_of_one_network_takes_its_share_alone() {
        let admission = Admission::new(LIMITS);
        let flood: Vec<AdmissionTicket> =
            (0..100).map(|n| admission.enter(from(&format!("10.0.0.{n}")))).collect();
        assert_eq!(flood.iter().filter(|ticket| !is_evicted(ticket)).count(), 6);
    }

    #[test]
    fn loopback_has_its_own_places() {
        let admission = Admission::new(LIMITS);
        let local = admission.enter(from("127.0.0.1"));
        let _flood: Vec<AdmissionTicket> =
            (0..100).map(|n| admission.enter(from(&format!("10.0.{n}.1")))).collect();
        assert!(!is_evicted(&local));
        let _locals: Vec<AdmissionTicket> =
            (2..9).map(|n| admission.enter(from(&format!("127.0.0.{n}")))).collect();
        assert_eq!(admission.open(), LIMITS.pending_max + LIMITS.pending_local_max);
    }

    #[test]
    fn active_places_are_shared_between_owners() {
        let admission = Admission::new(LIMITS);
        let login = |address: &str, owner: &str| {
            let ticket = admission.enter(from(address));
            ticket.activate(owner, false).map(|()| ticket)
        };
        let eve: Vec<AdmissionTicket> =
            (0..4).map(|n| login(&format!("10.0.{n}.1"), "eve").unwrap()).collect();
        let alice = login("10.9.0.1", "alice").unwrap();
        assert!(is_evicted(&eve[0]), "the owner with the most loses the oldest");
        let _bob = login("10.9.0.2", "bob").unwrap();
        assert!(is_evicted(&eve[1]) && !is_evicted(&alice));
        assert_eq!(login("10.9.0.4", "eve").err(), Some(NoFreeSlot), "nobody has more than eve");
        let root = admission.enter(from("10.9.0.5"));
        assert_eq!(root.activate("root", true), Ok(()), "administrators have a reserve");
    }

    #[test]
    fn address_at_its_limit_serves_other_owners() {
        let admission = Admission::new(LIMITS);
        let login = |owner: &str| {
            let ticket = admission.enter(from("10.0.0.1"));
            ticket.activate(owner, false).map(|()| ticket)
        };
        let eve: Vec<AdmissionTicket> = (0..3).map(|_| login("eve").unwrap()).collect();
        assert_eq!(login("eve").err(), Some(NoFreeSlot));
        let _alice = login("alice").unwrap();
        assert!(is_evicted(&eve[0]));
    }
}
