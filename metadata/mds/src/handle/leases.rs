//! Lease requests, and the conflict check of every transaction.
//!
//! Does: track the nodes that a request's transaction changes, so that no request skips the check;
//! answer `Recalls`.
//! Does not: find conflicts; `leases` does.
//! Contract: a response with a lease has the attributes as they are while the lease is held. A
//! request that has to wait is answered `Busy` and changed nothing.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0046-leases.md.

use std::sync::Arc;
use std::task::Waker;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, InodeId, LeaseKind, Name, Node, NodeLease, OpenHandle, Request, Response,
    Stat,
};

use crate::access::{AccessRight, Principal};
use crate::counters::add;
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::{
    self, ClientKey, ConflictVerdict, GRANT_BLOCK_MS, LEASE_VALID_MS, LeaseAccess, LeaseRequest, Leases,
    SessionRights, WAIT_MAX_MS,
};
use crate::namespace;
use crate::open_files::OpenModes;
use crate::records::{Inode, decode};
use crate::replay_cache::ReplayKey;
use crate::request_context::{RequestContext, as_server, current_request};
use crate::server::Mds;
use crate::store::{MetaError, Pair, Snapshot, Transaction};

/// Returns the context of a request.
pub(super) fn request_context(
    leases: &Arc<Leases>,
    principal: &Principal,
    request: &Request,
    replay_key: Option<&ReplayKey>,
    now_ms: u64,
) -> Option<RequestContext> {
    let client = client_of_request(request, replay_key).map(|client_id| (principal.user.clone(), client_id));
    let reports_writes = matches!(
        request,
        Request::Allocate { .. }
            | Request::Written { .. }
            | Request::CloseNode { .. }
            | Request::NameBatch { .. }
    );
    Some(RequestContext {
        leases: Arc::clone(leases),
        read_point: leases.read_point(),
        client,
        reports_writes,
        now_ms,
    })
}

/// Returns the client id of a request.
fn client_of_request(request: &Request, replay_key: Option<&ReplayKey>) -> Option<ClientId> {
    match request {
        Request::SetNode { client_id, .. }
        | Request::Lookup { client_id, .. }
        | Request::ReadNodes { client_id, .. }
        | Request::MakeNode { client_id, .. } => client_id.or_else(|| replay_key.map(ReplayKey::client_id)),
        Request::OpenNode { client_id, .. }
        | Request::Allocate { client_id, .. }
        | Request::Written { client_id, .. }
        | Request::CloseNode { client_id, .. }
        | Request::LeaseNode { client_id, .. }
        | Request::DelegateDir { client_id, .. }
        | Request::RenewGrants { handle: OpenHandle::Node { client_id, .. }, .. } => Some(*client_id),
        _ => replay_key.map(ReplayKey::client_id),
    }
}

/// Blocks grants of leases on the changed nodes until it is dropped.
pub(crate) struct ChangeGuard<'a> {
    mds: &'a Mds,
    ids: Vec<InodeId>,
    now_ms: u64,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.mds.leases.end_change(&self.ids, self.now_ms);
        }
    }
}

/// A transaction that records which nodes it changes.
struct ChangeTrackingTx<'a, 'b> {
    tx: &'a mut (dyn Transaction + 'b),
    changed: Vec<InodeId>,
    /// During the grace period only files wait for leases of before the restart; delegations of
    /// directories are recorded.
    only_files: bool,
    directories: Vec<InodeId>,
}

impl ChangeTrackingTx<'_, '_> {
    fn note(&mut self, key: &[u8]) -> std::result::Result<(), MetaError> {
        let is_new = |id: &InodeId| !self.changed.contains(id) && !self.directories.contains(id);
        let Some(id) = keys::changed_inode(key).filter(is_new) else {
            return Ok(());
        };
        if self.only_files {
            let before: Option<Inode> = self.tx.get(key)?.map(|value| decode(&value)).transpose()?;
            if before.is_none_or(|before| before.is_directory()) {
                self.directories.push(id);
                return Ok(());
            }
        }
        self.changed.push(id);
        Ok(())
    }
}

impl Snapshot for ChangeTrackingTx<'_, '_> {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, MetaError> {
        self.tx.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> std::result::Result<Vec<Pair>, MetaError> {
        self.tx.scan(from, until, limit)
    }
}

impl Transaction for ChangeTrackingTx<'_, '_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), MetaError> {
        self.note(key)?;
        self.tx.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> std::result::Result<(), MetaError> {
        self.note(key)?;
        self.tx.delete(key)
    }

    /// The owner of the inner transaction commits it.
    fn commit(self: Box<Self>) -> std::result::Result<(), MetaError> {
        Err(MetaError::Conflict)
    }
}

/// A `Recalls` request that may stay pending.
#[derive(Clone, Debug)]
pub struct PendingRecalls {
    client: ClientKey,
    epoch: u64,
    known: u64,
    wait_ms: u32,
}

impl PendingRecalls {
    /// Returns the maximum time to wait, milliseconds.
    #[must_use]
    pub const fn max_ms(&self) -> u32 {
        self.wait_ms
    }
}

impl Mds {
    /// Runs the work of a transaction. If it belongs to a request and changes nodes with leases of
    /// others, those are recalled and it fails with Busy. The changes may be committed while the
    /// guard lives.
    pub(crate) fn track_changes<'a, T>(
        &'a self,
        tx: &mut dyn Transaction,
        work: impl FnOnce(&mut dyn Transaction) -> Result<T>,
    ) -> (Result<T>, Option<ChangeGuard<'a>>) {
        let Some(request_context) = current_request() else {
            return (work(tx), None);
        };
        let only_files = self.leases.is_recovering(request_context.now_ms);
        let mut track_changes =
            ChangeTrackingTx { tx, changed: Vec::new(), only_files, directories: Vec::new() };
        let done = work(&mut track_changes);
        let ChangeTrackingTx { changed: mut ids, directories, .. } = track_changes;
        if done.is_err() || (ids.is_empty() && directories.is_empty()) {
            return (done, None);
        }
        let RequestContext { client, reports_writes, now_ms, .. } = request_context;
        // The grace period may end just now; then leases on directories are granted again.
        let (verdicts, begun) =
            self.leases.begin_change((&ids, &directories), client.as_ref(), reports_writes, now_ms);
        add(&self.counters.leases_recalled, begun);
        if verdicts.is_empty() {
            ids.extend(directories);
            return (done, Some(ChangeGuard { mds: self, ids, now_ms }));
        }
        for (id, verdict) in verdicts {
            if let ConflictVerdict::Fence(lost) = verdict {
                self.leases.queue_fence(id, lost);
            }
        }
        (Err(leases::busy()), None)
    }

    /// Recalls the leases that conflict with an access; `Busy` until they are returned.
    pub(super) fn recall_conflicting(
        &self,
        id: InodeId,
        client: Option<&ClientKey>,
        what: LeaseAccess,
        reports_writes: bool,
        now_ms: u64,
    ) -> Result<()> {
        let (verdict, begun) = self.leases.check_conflicts(id, client, what, reports_writes, now_ms);
        add(&self.counters.leases_recalled, begun);
        match verdict {
            ConflictVerdict::Free => return Ok(()),
            ConflictVerdict::Wait => {}
            ConflictVerdict::Fence(lost) => {
                self.leases.queue_fence(id, lost);
                self.fence_unreturned(now_ms);
            }
        }
        Err(leases::busy())
    }

    /// Fences the clients that did not return a write lease.
    pub(crate) fn fence_unreturned(&self, now_ms: u64) {
        for (id, principal) in self.leases.take_unreturned() {
            let fence = || match self.revoke_delegation(id, &principal, now_ms)? {
                true => Ok(()),
                false => self.fence_lease(id, &principal, now_ms),
            };
            if let Err(error) = as_server(fence) {
                tracing::warn!(inode = id.0, %error, "cannot fence a file; retrying");
            }
        }
    }

    /// Fences such clients from within a request, if there are any.
    pub(crate) fn fence_unreturned_now(&self) {
        let request_context = current_request();
        if let Some(request_context) = request_context
            && self.leases.has_unreturned()
        {
            self.fence_unreturned(request_context.now_ms);
        }
    }

    /// Recalls leases before a file is read or written by path until `until_ms`. The server does
    /// not learn when that access ends.
    pub(super) fn recall_for_path_access(
        &self,
        id: InodeId,
        access: Access,
        until_ms: u64,
        now_ms: u64,
    ) -> Result<()> {
        let what = if access.changes_data() { LeaseAccess::Change } else { LeaseAccess::Read };
        if what == LeaseAccess::Change {
            self.leases.block_grants_until(id, until_ms);
        }
        self.recall_conflicting(id, None, what, false, now_ms)
    }

    /// Grants a lease on a node, if available. `waits`: conflicting leases are returned first
    /// (Busy).
    pub(super) fn lease(
        &self,
        principal: &Principal,
        client_id: ClientId,
        id: InodeId,
        (kind, waits): (LeaseKind, bool),
        now_ms: u64,
    ) -> Result<Option<NodeLease>> {
        if self.config.shared {
            return Ok(None);
        }
        let client = (principal.user.clone(), client_id);
        if !self.leases.can_cache(&client, now_ms) {
            return Ok(None);
        }
        let others_write = self.others_write(principal, &client, id, now_ms)?;
        let request = LeaseRequest { kind, waits, others_write, opportunistic: false, delegation: false };
        let granted = self.leases.grant(id, &client, request, now_ms)?;
        add(&self.counters.leases_given, u64::from(granted.is_some()));
        Ok(granted)
    }

    /// Grants an opportunistic read lease to a client that looks a node up.
    fn opportunistic_lease(
        &self,
        principal: &Principal,
        client_id: ClientId,
        id: InodeId,
        now_ms: u64,
    ) -> Result<Option<NodeLease>> {
        let client = (principal.user.clone(), client_id);
        if let Some(known) = self.leases.existing_lease(id, &client, now_ms) {
            return Ok(known);
        }
        if self.others_write(principal, &client, id, now_ms)? {
            return Ok(None);
        }
        let request = LeaseRequest {
            kind: LeaseKind::Read,
            waits: false,
            others_write: false,
            opportunistic: true,
            delegation: false,
        };
        let granted = self.leases.grant(id, &client, request, now_ms)?;
        add(&self.counters.leases_given, u64::from(granted.is_some()));
        Ok(granted)
    }

    /// Looks up a name, with opportunistic leases on directory and node. A client with the lease on
    /// the directory knows its names until a recall.
    pub(super) fn look_up_with_leases(
        &self,
        principal: &Principal,
        (parent, name): (InodeId, &Name),
        client_id: ClientId,
        now_ms: u64,
    ) -> Result<Response> {
        let look = || namespace::look_up(&*self.store.snapshot()?, principal, parent, name);
        if self.config.shared || !self.leases.can_cache(&(principal.user.clone(), client_id), now_ms) {
            return Ok(Response::Stat { stat: look()? });
        }
        namespace::check_passes(&*self.store.snapshot()?, principal, parent, name)?;
        let directory = self.opportunistic_lease(principal, client_id, parent, now_ms)?;
        // Everything read from here on is covered by the lease.
        let mut stat = look();
        let mut lease = None;
        if let Ok(Stat { inode: found, .. }) = stat {
            lease = self.opportunistic_lease(principal, client_id, found, now_ms)?;
            if lease.is_some() {
                stat = look();
                lease = lease.filter(|_| stat.as_ref().is_ok_and(|stat| stat.inode == found));
            }
        }
        match (stat, directory) {
            (Ok(stat), None) if lease.is_none() => Ok(Response::Stat { stat }),
            (Ok(stat), directory) => Ok(Response::LookedUp { stat: Some(stat), directory, lease }),
            (Err(error), directory @ Some(_)) if error.is_not_found() => {
                Ok(Response::LookedUp { stat: None, directory, lease: None })
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Returns a page of a directory, with an opportunistic lease on it.
    pub(super) fn list_with_lease(
        &self,
        principal: &Principal,
        (directory, after, limit): (InodeId, Option<&Name>, u16),
        client_id: Option<ClientId>,
        now_ms: u64,
    ) -> Result<Response> {
        let lease = match client_id.filter(|_| !self.config.shared) {
            Some(client_id) => {
                // No lease without permission to list.
                namespace::listable(&*self.store.snapshot()?, principal, directory)?;
                self.opportunistic_lease(principal, client_id, directory, now_ms)?
            }
            None => None,
        };
        // Everything read from here on is covered by the lease.
        let (entries, more) =
            namespace::read_nodes(&*self.store.snapshot()?, principal, directory, after, limit)?;
        Ok(match lease {
            Some(lease) => Response::Listed { entries, more, lease },
            None => Response::Directory { entries, more },
        })
    }

    /// Grants an opportunistic lease on a new directory to its creator; it must still be empty.
    pub(super) fn lease_created(
        &self,
        principal: &Principal,
        client_id: ClientId,
        made: Stat,
        now_ms: u64,
    ) -> Result<Response> {
        let Some(lease) = self.opportunistic_lease(principal, client_id, made.inode, now_ms)? else {
            return Ok(Response::Stat { stat: made });
        };
        let view = self.store.snapshot()?;
        // Another client may have changed or removed it already.
        match namespace::node(&*view, made.inode) {
            Ok(node) if namespace::is_empty(&*view, made.inode)? => {
                Ok(Response::Made { stat: node.stat(made.inode), lease })
            }
            _ => Ok(Response::Stat { stat: made }),
        }
    }

    /// Whether a client without leases may be writing to the file.
    fn others_write(
        &self,
        principal: &Principal,
        client: &ClientKey,
        id: InodeId,
        now_ms: u64,
    ) -> Result<bool> {
        let is_caching = |user: &_, client_id| {
            let one: ClientKey = (Clone::clone(user), client_id);
            one == *client || self.leases.can_cache(&one, now_ms)
        };
        Ok((self.uncached_before && self.open_files.is_recovering(now_ms))
            || self.open_files.has_other_writer(id, now_ms, is_caching)
            || self.is_written_since_before(principal, id, now_ms)?)
    }

    /// Whether another client may write the file with a credential from before the restart. Open
    /// files are checked elsewhere; this finds opens by path.
    fn is_written_since_before(&self, principal: &Principal, id: InodeId, now_ms: u64) -> Result<bool> {
        let before = &self.writers_before;
        if before.are_over(now_ms) {
            return Ok(false);
        }
        let Ok(file) = namespace::node(&*self.store.snapshot()?, id) else { return Ok(false) };
        let objects: Vec<_> = file.layout.iter().flat_map(|layout| layout.objects()).copied().collect();
        Ok(before.others_write(&objects, &principal.session, now_ms))
    }

    /// Answers `Recalls`: the leases that the client has to return.
    pub(super) fn recalls(
        &self,
        principal: &Principal,
        client_id: ClientId,
        (epoch, known): (u64, u64),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let client = (principal.user.clone(), client_id);
        // Other servers of the store do not know the leases. An ended client is not registered
        // again by its own pending `Recalls`.
        if self.config.shared || self.open_files.has_ended(&client) {
            return Ok(Response::Recalls { epoch: 0, lease_ms: 0, last: 0, recalls: Vec::new() });
        }
        if !self.leases.is_registered(&client) {
            self.register_caching_client(&principal.user, client_id, now_ms)?;
        }
        self.open_files.keep_alive(&principal.user, client_id, now_ms);
        let standing = SessionRights { role: principal.role, groups: principal.groups.clone() };
        let fresh = u64::from_be_bytes(random(rng));
        let batch = self.leases.poll_recalls(&client, standing, (epoch, known), fresh, now_ms);
        let leases::RecallBatch { epoch, last, recalls, newly } = batch;
        if newly {
            self.release_lease_fences(&client)?;
            self.release_older_delegations(&client, epoch)?;
        }
        Ok(Response::Recalls { epoch, lease_ms: LEASE_VALID_MS as u32, last, recalls })
    }

    /// Answers `LeaseNode`: grants a lease on an open file.
    pub(super) fn lease_node(
        &self,
        principal: &Principal,
        node: Node,
        client_id: ClientId,
        kind: LeaseKind,
        now_ms: u64,
    ) -> Result<Response> {
        let id = self.proof_key.verify(principal, node)?;
        if !self.open_files.has_open(&principal.user, client_id, id, now_ms) {
            return Err(MdsError::refused(ErrorCode::Invalid, "the client does not have the file open"));
        }
        let wanted = match kind {
            LeaseKind::Read => OpenModes { reads: true, writes: false },
            LeaseKind::Write => OpenModes { reads: false, writes: true },
        };
        if !self.open_files.open_modes(&principal.user, client_id, id, now_ms).includes(wanted) {
            let file = namespace::node(&*self.store.snapshot()?, id)?;
            principal.needs_all(AccessRight::to(wanted.reads, wanted.writes), &file, "node")?;
        }
        let client = (principal.user.clone(), client_id);
        if !self.leases.can_cache(&client, now_ms) && kind == LeaseKind::Write {
            self.leases.block_grants_until(id, now_ms.saturating_add(GRANT_BLOCK_MS));
        }
        if kind == LeaseKind::Write {
            self.check_not_fenced(id, &client, false)?;
        }
        self.recall_conflicting(id, Some(&client), LeaseAccess::needed_for(kind), false, now_ms)?;
        let lease = self.lease(principal, client_id, id, (kind, true), now_ms)?;
        if lease.is_none() && kind == LeaseKind::Write {
            self.leases.block_grants_until(id, now_ms.saturating_add(GRANT_BLOCK_MS));
            self.recall_conflicting(id, Some(&client), LeaseAccess::Change, false, now_ms)?;
        }
        // Read while the lease is held: later changes have to recall it.
        let stat = namespace::node(&*self.store.snapshot()?, id)?.stat(id);
        Ok(Response::Leased { stat, lease })
    }

    /// Returns the number of leases.
    #[must_use]
    pub fn lease_count(&self) -> usize {
        self.leases.count()
    }

    /// Returns the number of penalties since the start.
    #[must_use]
    pub fn lease_penalties(&self) -> u64 {
        self.leases.penalties()
    }

    /// Returns the pending `Recalls` of a request body, or `None` for another request.
    #[must_use]
    pub fn waiting(&self, session: &SessionId, body: &[u8]) -> Option<PendingRecalls> {
        let Ok((_, Request::Recalls { client_id, epoch, known, wait_ms })) = Request::decode(body) else {
            return None;
        };
        let user = self.sessions.user_of(session)?;
        Some(PendingRecalls { client: (user, client_id), epoch, known, wait_ms: wait_ms.min(WAIT_MAX_MS) })
    }

    /// Whether an answer is available; otherwise `waker` is woken when one is.
    #[must_use]
    pub fn has_recalls(&self, waiting: &PendingRecalls, waker: &Waker) -> bool {
        self.leases.has_recalls(&waiting.client, (waiting.epoch, waiting.known), waker)
    }
}
