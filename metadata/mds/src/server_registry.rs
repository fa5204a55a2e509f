//! Registry of the servers of one store: names, signs of life, ranges of grant numbers.
//!
//! Does: store and read the records of servers, and find dead servers.
//! Does not: keep time or run transactions; both are arguments.
//! Truth: docs/adr/0038-several-servers-one-database.md.

use std::collections::{HashMap, HashSet};

use sealstone_mds_protocol::{ErrorCode, record};

use crate::error::{MdsError, Result};
use crate::keys;
use crate::limits::CREDENTIAL_LIFETIME_MAX_MS;
use crate::open_files::CLIENT_TIMEOUT_MS;
use crate::records::{counter, decode, load, next_number, save};
use crate::store::{Pair, Snapshot, Transaction};

/// Interval at which a server stores its sign of life, milliseconds.
pub(crate) const SEEN_EVERY_MS: u64 = 15_000;
/// Clients of a server that was silent for this long have connected to another one, or are gone,
/// milliseconds.
pub(crate) const DEAD_MS: u64 = CLIENT_TIMEOUT_MS + SEEN_EVERY_MS;
/// Maximum number of servers of one store.
pub(crate) const SERVERS_MAX: usize = 256;
/// Number of servers; each has a range of a million grant numbers in every session.
const SERVER_NUMBERS: u64 = 1 << 12;
const NUMBERS_BITS: u32 = 20;

/// Name of a server, chosen when its folder was created.
pub type ServerName = [u8; 16];

record! {
    /// A server that uses the store.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ServerRecord {
        /// Time of its last sign of life, milliseconds since 1970.
        pub seen_ms: u64,
        /// Unique number among all servers: it selects its range of grant numbers.
        pub number: u16,
    }
}

/// Returns the records of all servers, with their keys.
fn all<S: Snapshot + ?Sized>(view: &S) -> Result<Vec<Pair>> {
    let all = keys::servers();
    Ok(view.scan(&all, &keys::after_prefix(&all), SERVERS_MAX)?)
}

/// Returns the names of all servers.
pub(crate) fn names<S: Snapshot + ?Sized>(view: &S) -> Result<Vec<ServerName>> {
    Ok(all(view)?.iter().filter_map(|(key, _)| keys::server_name(key)).collect())
}

/// Returns the names of all servers, each with the time of its last sign of life.
pub(crate) fn signs_of_life<S: Snapshot + ?Sized>(view: &S) -> Result<Vec<(ServerName, u64)>> {
    let mut signs = Vec::new();
    for (key, value) in all(view)? {
        let record: ServerRecord = decode(&value)?;
        signs.extend(keys::server_name(&key).map(|name| (name, record.seen_ms)));
    }
    Ok(signs)
}

/// Returns the keys of the servers that were silent until all their credentials have expired.
pub(crate) fn expired<S: Snapshot + ?Sized>(view: &S, now_ms: u64) -> Result<Vec<Vec<u8>>> {
    let mut expired = Vec::new();
    for (key, value) in all(view)? {
        let record: ServerRecord = decode(&value)?;
        if record.seen_ms.saturating_add(CREDENTIAL_LIFETIME_MAX_MS + 2 * SEEN_EVERY_MS) < now_ms {
            expired.push(key);
        }
    }
    Ok(expired)
}

/// Stores the sign of life of a server; returns the first of its grant numbers.
///
/// # Errors
/// `Limit` if there are too many servers; `Store`.
pub(crate) fn register(tx: &mut dyn Transaction, own: &ServerName, now_ms: u64) -> Result<u32> {
    let key = keys::server(own);
    let there = all(tx)?;
    let number = match load::<ServerRecord, _>(tx, &key)? {
        Some(known) => known.number,
        None if there.len() >= SERVERS_MAX => {
            return Err(MdsError::refused(ErrorCode::Limit, "servers of one store"));
        }
        None => number_for(tx, &there)?,
    };
    save(tx, &key, &ServerRecord { seen_ms: now_ms, number })?;
    Ok(u32::from(number) << NUMBERS_BITS)
}

/// Returns a number that no registered server has.
fn number_for(tx: &mut dyn Transaction, there: &[Pair]) -> Result<u16> {
    let taken = there.iter().map(|(_, value)| Ok(decode::<ServerRecord>(value)?.number));
    let taken: Vec<u16> = taken.collect::<Result<_>>()?;
    loop {
        let number = (next_number(tx, counter::SERVER)? % SERVER_NUMBERS) as u16;
        if !taken.contains(&number) {
            return Ok(number);
        }
    }
}

/// Signs of life of the other servers.
#[derive(Debug, Default)]
pub(crate) struct PeerLiveness {
    /// Last sign of life of each, and since when it is known, by our clock.
    observed: HashMap<ServerName, (u64, u64)>,
    /// Dead servers whose clients' locks were handled.
    settled: HashSet<ServerName>,
}

impl PeerLiveness {
    /// Records the current signs of life and returns the dead servers.
    fn observe(&mut self, records: &[(ServerName, u64)], now_ms: u64) -> HashSet<ServerName> {
        self.observed.retain(|name, _| records.iter().any(|(one, _)| one == name));
        let mut dead = HashSet::new();
        for (name, seen_ms) in records {
            let known = self.observed.entry(*name).or_insert((*seen_ms, now_ms));
            if known.0 != *seen_ms {
                *known = (*seen_ms, now_ms);
            }
            if now_ms.saturating_sub(known.1) >= DEAD_MS {
                dead.insert(*name);
            }
        }
        self.settled.retain(|name| dead.contains(name));
        dead
    }

    /// Returns the dead servers other than `own` if the clients' locks of one of them were not
    /// handled yet; none otherwise.
    pub(crate) fn unsettled_dead(
        &mut self,
        signs: &[(ServerName, u64)],
        own: &ServerName,
        now_ms: u64,
    ) -> HashSet<ServerName> {
        let mut dead = self.observe(signs, now_ms);
        dead.remove(own);
        if dead.iter().all(|name| self.settled.contains(name)) {
            dead.clear();
        }
        dead
    }

    /// Notes that the locks of the clients of these dead servers were handled.
    pub(crate) fn settle(&mut self, dead: HashSet<ServerName>) {
        self.settled.extend(dead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ServerName = [1; 16];
    const OTHER: ServerName = [2; 16];

    #[test]
    fn silent_peer_is_dead_until_it_returns() {
        let mut liveness = PeerLiveness::default();
        let signs = [(OWN, 5), (OTHER, 5)];
        assert!(liveness.unsettled_dead(&signs, &OWN, 1_000).is_empty());
        assert!(liveness.unsettled_dead(&signs, &OWN, 1_000 + DEAD_MS - 1).is_empty());
        let dead = liveness.unsettled_dead(&signs, &OWN, 1_000 + DEAD_MS);
        assert_eq!(dead, HashSet::from([OTHER]));
        liveness.settle(dead);
        assert!(liveness.unsettled_dead(&signs, &OWN, 2_000 + DEAD_MS).is_empty());
        // A new sign of life, and the same silence again: its locks are handled again.
        let signs = [(OWN, 5), (OTHER, 6)];
        assert!(liveness.unsettled_dead(&signs, &OWN, 3_000 + DEAD_MS).is_empty());
        let dead = liveness.unsettled_dead(&signs, &OWN, 3_000 + 2 * DEAD_MS);
        assert_eq!(dead, HashSet::from([OTHER]));
    }
}
