//! File leases: which client may cache what, and recalls.
//!
//! Does: keep leases in memory, find conflicts, recall, wake clients that wait for recalls, and
//! know when a lease has expired at its client.
//! Does not: fence; `fence` does, and calls [`Leases::on_fenced`].
//! Contract: a write lease is exclusive; while a client has a read lease, no other client changes
//! the node. A conflicting operation waits until the lease is returned or has expired on the
//! client's clock; an expired write lease is fenced first. While a change is being committed no
//! lease is granted on its node, so a client with a lease has seen the current state. O(leases of
//! the node) for each check, at most [`LEASES_OF_FILE_MAX`].
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0046-leases.md.

mod delegation_ends;
mod expiry;
pub(crate) mod penalty;
mod table;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::task::Waker;

use parking_lot::Mutex;
use sealstone_mds_protocol::{
    ClientId, Failure, GroupName, InodeId, LeaseKind, NodeLease, RECALLS_MAX, Recall, Role, UserName,
};

use crate::error::{MdsError, Result};
use crate::share;
use delegation_ends::DelegationEnds;
use penalty::Penalties;

/// Validity of leases after the client sent the request that was answered, milliseconds.
pub(crate) const LEASE_VALID_MS: u64 = 12_000;
/// Time after which a lease is revoked, milliseconds: the validity plus a margin for different
/// clock rates.
pub(crate) const REVOKE_AFTER_MS: u64 = LEASE_VALID_MS + 2_000;
/// Maximum time that `Recalls` stays pending, milliseconds.
pub(crate) const WAIT_MAX_MS: u32 = 4_000;
/// Maximum number of leases on one node; a user has a share of them (see `share`).
pub(crate) const LEASES_OF_FILE_MAX: usize = 512;
/// Maximum number of leases of one client.
pub(crate) const LEASES_PER_CLIENT_MAX: usize = 8_192;
/// Maximum number of opportunistic leases of one client, so that opens still get one.
pub(crate) const UNREQUESTED_PER_CLIENT_MAX: usize = LEASES_PER_CLIENT_MAX / 4 * 3;
/// After a recall or revocation on a node, no opportunistic lease is granted on it for this long,
/// milliseconds: the node is contended.
pub(crate) const RECALL_COOLDOWN_MS: u64 = 10_000;
/// Maximum number of leases of all users; a user has a share of them (see `share`).
pub(crate) const LEASES_MAX: usize = 1 << 18;
/// Delay after which a conflicting request is repeated, milliseconds.
const RETRY_MS: u32 = 10;
/// The first request that had to wait has priority for this long, milliseconds.
const PRIORITY_MS: u64 = 500;
/// No lease is granted on a node for this long after a client was denied a write lease,
/// milliseconds: the client writes without one for less than this.
pub(crate) const GRANT_BLOCK_MS: u64 = 3_000;
/// Maximum number of pending `Recalls` of one client; the oldest is answered.
const WAKERS_MAX: usize = 4;

/// A user and client id.
pub(crate) type ClientKey = (UserName, ClientId);

/// Access that a request needs to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAccess {
    /// Read bytes: conflicts with write leases.
    Read,
    /// Change the node: conflicts with all leases.
    Change,
}

impl LeaseAccess {
    /// Returns the access that a lease of this kind permits.
    pub(crate) const fn needed_for(kind: LeaseKind) -> Self {
        match kind {
            LeaseKind::Read => Self::Read,
            LeaseKind::Write => Self::Change,
        }
    }

    fn conflicts_with(self, kind: LeaseKind) -> bool {
        self == Self::Change || kind == LeaseKind::Write
    }
}

/// Result of a conflict check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConflictVerdict {
    /// No conflict.
    Free,
    /// Conflicting leases were recalled and are not returned yet.
    Wait,
    /// Write leases of these clients have expired; fence the clients first.
    Fence(Vec<ClientKey>),
}

/// Role and groups of a client's session. A change voids its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionRights {
    pub(crate) role: Role,
    pub(crate) groups: std::sync::Arc<[GroupName]>,
}

/// Answer to `Recalls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecallBatch {
    pub(crate) epoch: u64,
    pub(crate) last: u64,
    pub(crate) recalls: Vec<Recall>,
    /// Whether this request confirmed a new epoch, and so the loss of all earlier leases.
    pub(crate) newly: bool,
}

#[derive(Debug)]
struct GrantedLease {
    client: ClientKey,
    kind: LeaseKind,
    number: u64,
    epoch: u64,
    /// Whether it is a directory delegation.
    delegation: bool,
    /// The pending recall, if any.
    recalled: Option<PendingRecall>,
}

/// A recall whose lease was not returned yet.
#[derive(Clone, Copy, Debug)]
struct PendingRecall {
    number: u64,
    began_ms: u64,
    /// The client may use the lease until then.
    until_ms: u64,
}

#[derive(Debug, Default)]
struct NodeLeases {
    leases: Vec<GrantedLease>,
    /// The request that has priority and until when; `None` is a request without client id.
    priority: Option<(Option<ClientKey>, u64)>,
    /// No lease is granted before: an unknown client may write.
    blocked_until_ms: u64,
    /// Number of changes being committed.
    changing: u32,
    /// Time of the last recall.
    recalled_ms: Option<u64>,
}

impl NodeLeases {
    fn is_idle(&self, now_ms: u64) -> bool {
        let waits = self.priority.as_ref().is_some_and(|(_, until_ms)| *until_ms > now_ms);
        let quiet = !self.was_recalled(now_ms);
        self.leases.is_empty() && !waits && self.blocked_until_ms <= now_ms && self.changing == 0 && quiet
    }

    /// Whether a lease on it was recalled recently.
    fn was_recalled(&self, now_ms: u64) -> bool {
        self.recalled_ms.is_some_and(|recalled_ms| recalled_ms.saturating_add(RECALL_COOLDOWN_MS) > now_ms)
    }
}

#[derive(Debug)]
struct LeaseClient {
    epoch: u64,
    /// Whether the client confirmed its epoch, and so dropped earlier leases.
    confirmed: bool,
    last_seen_ms: u64,
    rights: SessionRights,
    leases: usize,
    recalls: BTreeMap<u64, Recall>,
    wakers: Vec<Waker>,
}

impl LeaseClient {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

#[derive(Debug, Default)]
struct LeaseTable {
    files: HashMap<InodeId, NodeLeases>,
    clients: HashMap<ClientKey, LeaseClient>,
    /// Last number of a lease or recall.
    last: u64,
    count: usize,
    by_user: HashMap<UserName, usize>,
    penalties: Penalties,
    ends: DelegationEnds,
    /// Clients of before the restart that may have valid leases; empty after the grace period.
    unrecovered: HashSet<ClientKey>,
    recovery_end_ms: Option<u64>,
    /// Clients of before the restart that registered again.
    returned: HashSet<ClientKey>,
}

/// Outcome of a recall.
#[derive(Debug, Default)]
struct RecallOutcome {
    begun: u64,
    waits: bool,
    lost: Vec<ClientKey>,
}

/// All leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    table: Mutex<LeaseTable>,
    /// Clients that did not return a write lease and must be fenced.
    lost: Mutex<Vec<(InodeId, ClientKey)>>,
}

/// A directory delegation of before the restart.
pub(crate) struct RecoveredLease {
    pub(crate) id: InodeId,
    pub(crate) client: ClientKey,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
}

/// A granted lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewLease {
    pub(crate) lease: NodeLease,
    /// Number of the lease that was upgraded without a gap.
    pub(crate) before: Option<u64>,
}

/// Parameters of a lease request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseRequest {
    pub(crate) kind: LeaseKind,
    /// Whether the request waits until conflicting leases are returned.
    pub(crate) waits: bool,
    /// Whether a client without leases has the file open for writing.
    pub(crate) others_write: bool,
    /// Whether it is opportunistic: granted only without recent recalls and below a lower limit.
    pub(crate) opportunistic: bool,
    /// Whether it is for a directory delegation.
    pub(crate) delegation: bool,
}

impl Leases {
    /// `before`: clients that may have leases from before the restart; `delegations`: the recorded
    /// directory delegations.
    pub(crate) fn new(
        before: impl IntoIterator<Item = ClientKey>,
        delegations: impl IntoIterator<Item = RecoveredLease>,
    ) -> Self {
        let mut table = LeaseTable { unrecovered: before.into_iter().collect(), ..LeaseTable::default() };
        for RecoveredLease { id, client, epoch, number } in delegations {
            let granted = GrantedLease {
                client,
                kind: LeaseKind::Write,
                number,
                epoch,
                delegation: true,
                recalled: None,
            };
            table.count(&granted.client.0);
            table.files.entry(id).or_default().leases.push(granted);
        }
        Self { table: Mutex::new(table), lost: Mutex::default() }
    }

    /// Queues clients to be fenced from a node.
    pub(crate) fn queue_fence(&self, id: InodeId, lost: Vec<ClientKey>) {
        self.lost.lock().extend(lost.into_iter().map(|client| (id, client)));
    }

    /// Returns and clears the clients to be fenced.
    pub(crate) fn take_unreturned(&self) -> Vec<(InodeId, ClientKey)> {
        std::mem::take(&mut *self.lost.lock())
    }

    /// Whether clients wait to be fenced.
    pub(crate) fn has_unreturned(&self) -> bool {
        !self.lost.lock().is_empty()
    }

    /// Returns the number of the last end of a directory delegation.
    pub(crate) fn read_point(&self) -> u64 {
        self.table.lock().ends.last
    }

    /// Recalls another client's delegation before names of a directory are read at a state since
    /// `read_point`. Returns `Wait` if a delegation ended since then, because its changes may not
    /// be visible. Delegations of before the restart are recorded, so there is no grace period.
    pub(crate) fn recall_dir_writer(
        &self,
        id: InodeId,
        by: Option<&ClientKey>,
        read_point: u64,
        now_ms: u64,
    ) -> ConflictVerdict {
        let table = &mut *self.table.lock();
        match table.recalled(id, by, LeaseAccess::Read, now_ms).0 {
            ConflictVerdict::Free if table.ends.since(id, read_point) => ConflictVerdict::Wait,
            verdict => verdict,
        }
    }

    /// Whether the client has a directory delegation with this number.
    pub(crate) fn has_delegation(&self, id: InodeId, client: &ClientKey, number: u64) -> bool {
        let table = self.table.lock();
        let is_it = |one: &GrantedLease| one.delegation && one.client == *client && one.number == number;
        table.files.get(&id).is_some_and(|file| file.leases.iter().any(is_it))
    }

    /// Returns the client's delegation on a directory if it should have been returned by now.
    pub(crate) fn overdue_delegation(&self, id: InodeId, client: &ClientKey, now_ms: u64) -> Option<u64> {
        let table = self.table.lock();
        let is_over = |one: &&GrantedLease| one.recalled.is_some_and(|recall| recall.until_ms <= now_ms);
        let mut his =
            table.files.get(&id)?.leases.iter().filter(|one| one.delegation && one.client == *client);
        his.find(is_over).map(|one| one.number)
    }

    /// Removes a revoked delegation; the client gets a new epoch.
    pub(crate) fn drop_delegation(&self, id: InodeId, client: &ClientKey, number: u64) {
        let is_it = |one: &GrantedLease| one.delegation && one.client == *client && one.number == number;
        self.table.lock().revoke(id, is_it);
    }

    /// Removes all leases on a removed directory.
    pub(crate) fn drop_directory(&self, id: InodeId, now_ms: u64) {
        let table = &mut *self.table.lock();
        while table.remove_lease(id, |_| true).is_some() {}
        if table.files.get(&id).is_some_and(|file| file.is_idle(now_ms)) {
            table.files.remove(&id);
        }
    }

    /// Handles `Recalls`: registers the client, renews its leases and returns pending recalls.
    /// `fresh`: an epoch that no client has had.
    pub(crate) fn poll_recalls(
        &self,
        client: &ClientKey,
        rights: SessionRights,
        (epoch, known): (u64, u64),
        fresh: u64,
        now_ms: u64,
    ) -> RecallBatch {
        let table = &mut *self.table.lock();
        let new = || LeaseClient {
            epoch: fresh.max(1),
            confirmed: false,
            last_seen_ms: now_ms,
            rights: rights.clone(),
            leases: 0,
            recalls: BTreeMap::new(),
            wakers: Vec::new(),
        };
        let state = table.clients.entry(client.clone()).or_insert_with(new);
        state.last_seen_ms = now_ms;
        if state.rights != rights {
            // The new rights may not permit what its leases permit.
            state.rights = rights;
            state.epoch = state.epoch.wrapping_add(1).max(1);
            state.confirmed = false;
        }
        let newly = epoch == state.epoch && !state.confirmed;
        state.confirmed |= newly;
        let now_epoch = state.epoch;
        if newly {
            table.drop_other_epochs(client, now_epoch, now_ms);
            if table.unrecovered.remove(client) {
                table.returned.insert(client.clone());
            }
        }
        let Some(state) = table.clients.get_mut(client) else {
            return RecallBatch { epoch: 0, last: 0, recalls: Vec::new(), newly };
        };
        let news = state.recalls.range(known.saturating_add(1)..).take(RECALLS_MAX);
        let (mut last, mut recalls) = (known, Vec::new());
        for (number, recall) in news {
            last = *number;
            recalls.push(*recall);
        }
        RecallBatch { epoch: now_epoch, last, recalls, newly }
    }

    /// Whether an answer for the client is pending; otherwise `waker` is woken when one is.
    pub(crate) fn has_recalls(&self, client: &ClientKey, (epoch, known): (u64, u64), waker: &Waker) -> bool {
        let table = &mut *self.table.lock();
        let Some(state) = table.clients.get_mut(client) else { return true };
        if !state.confirmed
            || state.epoch != epoch
            || state.recalls.range(known.saturating_add(1)..).next().is_some()
        {
            return true;
        }
        if !state.wakers.iter().any(|one| one.will_wake(waker)) {
            if state.wakers.len() >= WAKERS_MAX {
                state.wakers.remove(0).wake();
            }
            state.wakers.push(waker.clone());
        }
        false
    }

    /// Whether the client is eligible for leases now.
    pub(crate) fn can_cache(&self, client: &ClientKey, now_ms: u64) -> bool {
        self.table.lock().clients.get(client).is_some_and(|one| one.can_cache(now_ms))
    }

    /// Whether the client has sent `Recalls`.
    pub(crate) fn is_registered(&self, client: &ClientKey) -> bool {
        self.table.lock().clients.contains_key(client)
    }

    /// Whether the grace period for leases of before the restart is active.
    pub(crate) fn is_recovering(&self, now_ms: u64) -> bool {
        self.table.lock().waits(now_ms)
    }

    /// Checks whether an access conflicts with leases, and recalls those. `settles`: the request
    /// reports changes made under a lease of before the restart. Also returns the number of new
    /// recalls.
    pub(crate) fn check_conflicts(
        &self,
        id: InodeId,
        by: Option<&ClientKey>,
        what: LeaseAccess,
        reports_writes: bool,
        now_ms: u64,
    ) -> (ConflictVerdict, u64) {
        let table = &mut *self.table.lock();
        if table.waits(now_ms)
            && !(reports_writes
                && by.is_some_and(|by| table.unrecovered.contains(by) || table.returned.contains(by)))
        {
            return (ConflictVerdict::Wait, 0);
        }
        let (verdict, begun) = table.recalled(id, by, what, now_ms);
        if verdict == ConflictVerdict::Free {
            if let Some(file) = table.files.get_mut(&id)
                && file.priority.as_ref().is_some_and(|(first, _)| first.as_ref() == by)
            {
                file.priority = None;
            }
            return (ConflictVerdict::Free, begun);
        }
        if let Some(file) = table.files.get_mut(&id)
            && file.priority.as_ref().is_none_or(|(_, until_ms)| *until_ms <= now_ms)
        {
            file.priority = Some((by.cloned(), now_ms.saturating_add(PRIORITY_MS)));
        }
        (verdict, begun)
    }

    /// Checks a change of several nodes. If nothing conflicts, no lease is granted on them until
    /// [`Leases::end_change`]. The grace period does not apply to `directories`.
    pub(crate) fn begin_change(
        &self,
        (ids, directories): (&[InodeId], &[InodeId]),
        by: Option<&ClientKey>,
        reports_writes: bool,
        now_ms: u64,
    ) -> (Vec<(InodeId, ConflictVerdict)>, u64) {
        let (mut verdicts, mut begun) = (Vec::new(), 0);
        for id in ids {
            let (verdict, more) = self.check_conflicts(*id, by, LeaseAccess::Change, reports_writes, now_ms);
            begun += more;
            if verdict != ConflictVerdict::Free {
                verdicts.push((*id, verdict));
            }
        }
        for id in directories {
            let (verdict, more) = self.table.lock().recalled(*id, by, LeaseAccess::Change, now_ms);
            begun += more;
            if verdict != ConflictVerdict::Free {
                verdicts.push((*id, verdict));
            }
        }
        if !verdicts.is_empty() {
            return (verdicts, begun);
        }
        let table = &mut *self.table.lock();
        // Checked again under one lock.
        let all = || ids.iter().chain(directories);
        let is_leased = |id: &&InodeId| {
            table.files.get(id).is_some_and(|file| file.leases.iter().any(|one| Some(&one.client) != by))
        };
        if let Some(id) = all().find(is_leased) {
            return (vec![(*id, ConflictVerdict::Wait)], begun);
        }
        for id in all() {
            table.files.entry(*id).or_default().changing += 1;
        }
        (verdicts, begun)
    }

    /// Ends a change that was committed or aborted.
    pub(crate) fn end_change(&self, ids: &[InodeId], now_ms: u64) {
        let table = &mut *self.table.lock();
        for id in ids {
            if let Some(file) = table.files.get_mut(id) {
                file.changing = file.changing.saturating_sub(1);
                if file.is_idle(now_ms) {
                    table.files.remove(id);
                }
            }
        }
    }

    /// Blocks grants on a node until then.
    pub(crate) fn block_grants_until(&self, id: InodeId, until_ms: u64) {
        let table = &mut *self.table.lock();
        let file = table.files.entry(id).or_default();
        file.blocked_until_ms = file.blocked_until_ms.max(until_ms);
    }

    /// Grants a lease; `None` if it is not available.
    ///
    /// # Errors
    /// `Busy` to a request that waits, while a conflicting lease is out or another request has
    /// priority.
    pub(crate) fn grant(
        &self,
        id: InodeId,
        client: &ClientKey,
        request: LeaseRequest,
        now_ms: u64,
    ) -> Result<Option<NodeLease>> {
        Ok(self.grant_or_upgrade(id, client, request, now_ms)?.map(|new| new.lease))
    }

    /// Grants a lease, or upgrades the client's own lease, which is returned in `before`.
    pub(crate) fn grant_or_upgrade(
        &self,
        id: InodeId,
        client: &ClientKey,
        request: LeaseRequest,
        now_ms: u64,
    ) -> Result<Option<NewLease>> {
        let table = &mut *self.table.lock();
        let later = || if request.waits { Err(busy()) } else { Ok(None) };
        if table.waits(now_ms) {
            return later();
        }
        let Some(state) = table.clients.get(client).filter(|one| one.can_cache(now_ms)) else {
            return Ok(None);
        };
        if table.penalties.has(&client.0, now_ms) {
            return Ok(None);
        }
        let (epoch, own) = (state.epoch, state.leases);
        let of_user = table.by_user.get(&client.0).copied().unwrap_or_default();
        let file = table.files.entry(id).or_default();
        if let Some(known) = file.leases.iter().find(|one| one.client == *client) {
            if known.recalled.is_some() {
                // The client has to return it first.
                return later();
            }
            if known.epoch == epoch && known.kind >= request.kind {
                let lease = NodeLease { kind: known.kind, number: known.number, epoch };
                return Ok(Some(NewLease { lease, before: Some(known.number) }));
            }
        }
        if file.changing > 0 {
            return later();
        }
        if file
            .priority
            .as_ref()
            .is_some_and(|(first, until_ms)| *until_ms > now_ms && first.as_ref() != Some(client))
        {
            return later();
        }
        let what = LeaseAccess::needed_for(request.kind);
        if file.leases.iter().any(|one| one.client != *client && what.conflicts_with(one.kind)) {
            return later();
        }
        if request.others_write
            || file.blocked_until_ms > now_ms
            || (request.opportunistic && file.was_recalled(now_ms))
        {
            return Ok(None);
        }
        let before = file.leases.iter().find(|one| one.client == *client).map(|one| (one.epoch, one.number));
        let own_before = before.is_some();
        let own_max = if request.opportunistic { UNREQUESTED_PER_CLIENT_MAX } else { LEASES_PER_CLIENT_MAX };
        let on_file = file.leases.iter().filter(|one| one.client.0 == client.0).count();
        let full = own >= own_max
            || !share::is_free(of_user, table.count, 1, LEASES_MAX)
            || !share::is_free(on_file, file.leases.len(), 1, LEASES_OF_FILE_MAX);
        if full && !own_before {
            return Ok(None);
        }
        file.priority = None;
        table.remove_lease(id, |one| one.client == *client);
        let number = table.number();
        let granted = GrantedLease {
            client: client.clone(),
            kind: request.kind,
            number,
            epoch,
            delegation: request.delegation,
            recalled: None,
        };
        table.files.entry(id).or_default().leases.push(granted);
        table.count(&client.0);
        if let Some(state) = table.clients.get_mut(client) {
            state.leases += 1;
        }
        let before = before.filter(|(of, _)| *of == epoch).map(|(_, number)| number);
        Ok(Some(NewLease { lease: NodeLease { kind: request.kind, number, epoch }, before }))
    }

    /// Undoes a grant that was not sent; restores the lease that it upgraded.
    pub(crate) fn undo_upgrade(&self, id: InodeId, client: &ClientKey, new: NewLease) {
        let table = &mut *self.table.lock();
        let number = new.lease.number;
        if new.before == Some(number) {
            // The existing lease was returned: unsent changes may depend on it.
            return;
        }
        let Some(mut granted) = table.remove_lease(id, |one| one.client == *client && one.number == number)
        else {
            return;
        };
        let Some(before) = new.before else { return };
        granted = GrantedLease {
            kind: LeaseKind::Read,
            number: before,
            delegation: false,
            recalled: None,
            ..granted
        };
        table.files.entry(id).or_default().leases.push(granted);
        table.count(&client.0);
        if let Some(state) = table.clients.get_mut(client) {
            state.leases += 1;
        }
    }

    /// Returns the client's lease on a node. `Some(None)`: no lease can be granted now, because it
    /// is being recalled or the client is not eligible.
    pub(crate) fn existing_lease(
        &self,
        id: InodeId,
        client: &ClientKey,
        now_ms: u64,
    ) -> Option<Option<NodeLease>> {
        let table = self.table.lock();
        let Some(state) = table.clients.get(client).filter(|one| one.can_cache(now_ms)) else {
            return Some(None);
        };
        let known = table.files.get(&id)?.leases.iter().find(|one| one.client == *client)?;
        let ours = known.recalled.is_none() && known.epoch == state.epoch;
        Some(ours.then_some(NodeLease { kind: known.kind, number: known.number, epoch: known.epoch }))
    }

    /// Removes a returned lease: the one with this number, or without a number any that is not a
    /// directory delegation. No error if it does not exist.
    pub(crate) fn return_lease(&self, id: InodeId, client: &ClientKey, number: Option<u64>, now_ms: u64) {
        let table = &mut *self.table.lock();
        let is_it = |one: &GrantedLease| {
            one.client == *client && number.map_or(!one.delegation, |number| one.number == number)
        };
        if let Some(granted) = table.remove_lease(id, is_it) {
            table.penalize_if_slow(&granted, now_ms);
        }
        if table.files.get(&id).is_some_and(|file| file.is_idle(now_ms)) {
            table.files.remove(&id);
        }
    }

    /// Removes the write lease of a fenced client. With `always_new_epoch`, a new epoch begins even
    /// if the lease was already returned: the client's writes are refused until it reads the epoch.
    pub(crate) fn on_fenced(&self, id: InodeId, client: &ClientKey, always_new_epoch: bool) {
        let table = &mut *self.table.lock();
        let lost =
            table.remove_lease(id, |one| one.client == *client && one.kind == LeaseKind::Write).is_some();
        if lost || always_new_epoch {
            table.begin_epoch(client);
        }
    }

    /// Recalls all leases of a user's clients by a new epoch.
    pub(crate) fn recall_all_of_user(&self, user: &UserName) {
        let table = &mut *self.table.lock();
        for (_, state) in table.clients.iter_mut().filter(|((of, _), _)| of == user) {
            state.epoch = state.epoch.wrapping_add(1).max(1);
            state.confirmed = false;
            state.wake();
        }
    }

    /// Returns the clients with leases on a node, and the kinds.
    pub(crate) fn on_node(&self, id: InodeId) -> Vec<(ClientKey, LeaseKind)> {
        let table = self.table.lock();
        let granted = table.files.get(&id).into_iter().flat_map(|file| &file.leases);
        granted.map(|one| (one.client.clone(), one.kind)).collect()
    }

    /// Returns the number of leases.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.table.lock().count
    }
}

impl LeaseClient {
    fn can_cache(&self, now_ms: u64) -> bool {
        self.confirmed && self.last_seen_ms.saturating_add(LEASE_VALID_MS) > now_ms
    }
}

pub(crate) fn busy() -> MdsError {
    MdsError::Refused(Failure::busy(RETRY_MS))
}

#[cfg(test)]
mod tests;
