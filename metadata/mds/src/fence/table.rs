//! Table of fences, and of recorded locks that a fence may have to end.
//!
//! Does: define the record of a fence, keep the fences in memory, decide which completed ones to
//! drop.
//! Does not: take the steps of a fence; `fence` does.
//! Truth: docs/standards/mds/leases.md §5.11.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use sealstone_mds_protocol::{ErrorCode, InodeId, UserName, record};

use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::ClientKey;
use crate::limits::GRANT_LIFETIME_MAX_MS;
use crate::locks::LockRecord;
use crate::records::{decode, load};
use crate::server_registry::ServerName;
use crate::share;
use crate::store::{MetaStore, Snapshot, each_between};

/// Margin for different clocks of devices, added to the longest life of a credential, milliseconds.
const MARGIN_MS: u64 = 60_000;

record! {
    /// A fence: a client that may not write a file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Fence {
        /// Whether it is for locks, which end when it is done; otherwise it is for a lease.
        pub of_locks: bool,
        /// Time when it began.
        pub began_ms: u64,
        /// Time when all credentials from before it have expired.
        pub over_ms: u64,
        /// Whether the client can no longer write.
        pub done: bool,
        /// Whether the client has released the file; then it may get new credentials.
        pub released: bool,
    }
}

impl Fence {
    pub(super) fn new(of_locks: bool, now_ms: u64) -> Self {
        let over_ms = now_ms.saturating_add(GRANT_LIFETIME_MAX_MS + MARGIN_MS);
        Self { of_locks, began_ms: now_ms, over_ms, done: false, released: false }
    }
}

/// A file and a client.
pub(super) type FenceKey = (InodeId, ClientKey);

#[derive(Default)]
pub(super) struct FenceTable {
    /// Recorded locks that this server is responsible for.
    pub(super) locked: HashSet<FenceKey>,
    /// Those of before the restart that were not reclaimed yet.
    pub(super) before: HashMap<InodeId, Vec<ClientKey>>,
    /// Fences that are not recorded yet, with the server responsible for the locks.
    pub(super) begun: HashMap<FenceKey, Option<ServerName>>,
    /// Recorded fences, if this is the only server.
    pub(super) known: HashMap<FenceKey, Fence>,
}

/// All fences.
#[derive(Default)]
pub(crate) struct Fences {
    pub(super) table: Mutex<FenceTable>,
    /// Serializes steps, so that memory follows the store.
    pub(super) step_lock: Mutex<()>,
}

/// Fails with `Fenced` if the client is fenced from the file.
pub(crate) fn check_fence<S: Snapshot + ?Sized>(view: &S, id: InodeId, client: &ClientKey) -> Result<()> {
    match load::<Fence, _>(view, &keys::fence(id, client))? {
        Some(fence) if !fence.released => Err(MdsError::refused(ErrorCode::Fenced, "")),
        _ => Ok(()),
    }
}

impl Fences {
    /// Loads the recorded locks and fences. `own`: this server, if there are several.
    pub(crate) fn load(store: &dyn MetaStore, own: Option<&ServerName>) -> Result<Self> {
        let mut table = FenceTable::default();
        let view = store.snapshot()?;
        let from = keys::all_locked();
        each_between(&*view, &from, &keys::after_prefix(&from), |key, value| {
            let Some((id, client)) = keys::locked_parts(key) else { return Ok(()) };
            let LockRecord { server, .. } = decode(value)?;
            if own.is_none_or(|own| server == *own) {
                table.before.entry(id).or_default().push(client.clone());
                table.locked.insert((id, client));
            }
            Ok::<_, MdsError>(())
        })?;
        if own.is_none() {
            let from = keys::fences();
            each_between(&*view, &from, &keys::after_prefix(&from), |key, value| {
                if let Some(place) = keys::locked_parts(key) {
                    table.known.insert(place, decode(value)?);
                }
                Ok::<_, MdsError>(())
            })?;
        }
        Ok(Self { table: Mutex::new(table), step_lock: Mutex::default() })
    }

    /// Whether this server has recorded locks of the client on the file.
    pub(crate) fn is_locked(&self, id: InodeId, client: &ClientKey) -> bool {
        self.table.lock().locked.contains(&(id, client.clone()))
    }

    /// Notes that locks were recorded.
    pub(crate) fn locked(&self, id: InodeId, client: &ClientKey) {
        self.table.lock().locked.insert((id, client.clone()));
    }

    /// Notes that locks were removed; returns whether they were recorded.
    pub(crate) fn unlocked(&self, id: InodeId, client: &ClientKey) -> bool {
        let table = &mut *self.table.lock();
        table.mark_reclaimed(id, client);
        table.locked.remove(&(id, client.clone()))
    }

    /// Whether another client has unreclaimed locks on the file from before the restart.
    pub(crate) fn others_had_locks_before(&self, id: InodeId, client: &ClientKey) -> bool {
        self.table.lock().before.get(&id).is_some_and(|before| before.iter().any(|one| one != client))
    }

    /// Whether the client had locks on the file before the restart that it has not reclaimed.
    pub(crate) fn had_locks_before(&self, id: InodeId, client: &ClientKey) -> bool {
        self.table.lock().before.get(&id).is_some_and(|before| before.contains(client))
    }

    pub(super) fn unreclaimed(&self) -> Vec<FenceKey> {
        let table = self.table.lock();
        table
            .before
            .iter()
            .flat_map(|(id, before)| before.iter().map(|client| (*id, client.clone())))
            .collect()
    }

    /// Notes that a client of before the restart has reclaimed its locks on the file.
    pub(super) fn mark_reclaimed(&self, id: InodeId, client: &ClientKey) {
        self.table.lock().mark_reclaimed(id, client);
    }
}

impl FenceTable {
    pub(super) fn mark_reclaimed(&mut self, id: InodeId, client: &ClientKey) {
        if let Some(before) = self.before.get_mut(&id) {
            before.retain(|one| one != client);
            if before.is_empty() {
                self.before.remove(&id);
            }
        }
    }
}

/// Returns the indices of the fences to drop so that at most `max` are left: the oldest first, of
/// users with more than an equal share.
pub(super) fn surplus(kept: &[(u64, FenceKey)], max: usize) -> HashSet<usize> {
    let mut of_user: HashMap<&UserName, usize> = HashMap::new();
    kept.iter().for_each(|(_, (_, client))| *of_user.entry(&client.0).or_default() += 1);
    let cap = share::equal_cap(of_user.values().copied(), max);
    let mut goes = HashSet::new();
    for (at, (_, (_, client))) in kept.iter().enumerate() {
        let left = of_user.entry(&client.0).or_default();
        if *left > cap {
            *left -= 1;
            goes.insert(at);
        }
    }
    goes
}
