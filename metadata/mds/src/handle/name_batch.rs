//! Name batches: applies changes that clients made under directory delegations.
//!
//! Does: grant directory delegations, reserve inode numbers, apply batches of changes.
//! Does not: trust the client: each change is checked like a request, at its own time between the
//! grant and now.
//! Contract: changes are applied in order, in one transaction, up to the first refused one, which
//! is reported and has no effect. A repeated batch is not applied again.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0050-directory-write-delegations.md.

use std::collections::HashMap;

use sealstone_mds_protocol::{
    Access, ClientId, CreateOp, DirLeaseId, ErrorCode, InodeId, InodeLease, InodeRange, LeaseKind,
    NAME_CHANGES_MAX, Name, NameChange, Node, NodeKind, NodeLease, RESERVED_INODES_MAX, RenameMode, RenameOp,
    Response, UnlinkOp,
};

use crate::access::Principal;
use crate::audit::AuditRecord;
use crate::dir_delegations::allows_delegation;
use crate::dir_delegations::records::{ReservedInodes, check_delegation, numbers};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::{ClientKey, LeaseRequest};
use crate::namespace::{self, NewNode, RenameParams, UnlinkContext};
use crate::open_files::OpenModes;
use crate::records::{Inode, load, save};
use crate::replay_cache::{self, OnceOutcome, ReplayKey};
use crate::server::Mds;
use crate::store::Transaction;

/// Tolerated clock difference of a client, milliseconds: less than what counts as a wrong clock
/// ([`sealstone_mds_protocol::Stat::changed_ns`]).
const CLOCKS_DIFFER_MS: u64 = 250;

/// State shared by the changes of one batch.
struct NameBatchTx<'a> {
    principal: &'a Principal,
    client: &'a ClientKey,
    any_group: bool,
    now_ms: u64,
    /// When each delegation was granted.
    since: HashMap<DirLeaseId, u64>,
    numbers: Option<ReservedInodes>,
}

/// A file that is created and opened by the batch.
struct PendingOpen {
    /// Index of the change.
    at: usize,
    id: InodeId,
    /// Whether its open has begun.
    begun: bool,
}

impl Mds {
    /// Answers `DelegateDir`. A delegation is granted only if no other client has a lease or had
    /// one recalled recently.
    pub(super) fn delegate_dir(
        &self,
        principal: &Principal,
        directory: Option<Node>,
        client_id: ClientId,
        numbers: u16,
        now_ms: u64,
    ) -> Result<Response> {
        if numbers > RESERVED_INODES_MAX {
            return Err(MdsError::refused(
                ErrorCode::Invalid,
                format!("{RESERVED_INODES_MAX} numbers at once"),
            ));
        }
        let client = (principal.user.clone(), client_id);
        let id = directory.map(|directory| self.proof_key.verify(principal, directory)).transpose()?;
        // On a nearly full disk names are created one by one, so that each refusal reaches its
        // caller.
        let is_short = !self.store.accepts_additions();
        if self.config.shared || is_short || !self.leases.can_cache(&client, now_ms) {
            return Ok(Response::DirDelegated { lease: None, before: None, numbers: None });
        }
        let granted = match id {
            Some(id) => self.grant_delegation(principal, id, &client, now_ms)?,
            None => None,
        };
        // Numbers are useless without the delegation.
        let numbers = match numbers {
            0 => None,
            _ if id.is_some() && granted.is_none() => None,
            count => self.reserve_inodes(&client, count)?.map(|first| {
                let all = (first.0..).take(usize::from(count)).map(InodeId);
                InodeRange {
                    first,
                    proofs: all.map(|id| self.proof_key.prove(&principal.user, id)).collect(),
                }
            }),
        };
        let (lease, before) = granted.map_or((None, None), |new| (Some(new.lease), new.before));
        Ok(Response::DirDelegated { lease, before, numbers })
    }

    fn grant_delegation(
        &self,
        principal: &Principal,
        id: InodeId,
        client: &ClientKey,
        now_ms: u64,
    ) -> Result<Option<crate::leases::NewLease>> {
        if !allows_delegation(&*self.store.snapshot()?, principal, id)? {
            return Ok(None);
        }
        let request = LeaseRequest {
            kind: LeaseKind::Write,
            waits: false,
            others_write: false,
            opportunistic: true,
            delegation: true,
        };
        let Some(new) = self.leases.grant_or_upgrade(id, client, request, now_ms)? else { return Ok(None) };
        let dir = DirLeaseId { inode: id, epoch: new.lease.epoch, lease: new.lease.number };
        // Under the lease no other client changes the directory.
        match self.record_delegation(principal, client.1, dir, now_ms) {
            Ok(true) => Ok(Some(new)),
            done => {
                self.leases.undo_upgrade(id, client, new);
                done.map(|_| None)
            }
        }
    }

    /// Answers `NameBatch`.
    pub(super) fn apply_name_batch(
        &self,
        principal: &Principal,
        changes: &[NameChange],
        replay_key: &ReplayKey,
        now_ms: u64,
    ) -> Result<Response> {
        if changes.len() > NAME_CHANGES_MAX {
            return Err(MdsError::refused(ErrorCode::Limit, format!("{NAME_CHANGES_MAX} changes at once")));
        }
        let client: ClientKey = (principal.user.clone(), replay_key.client_id());
        let replay_entry = self.replay_cache.entry(&principal.user, replay_key, now_ms)?;
        // Not for a repeated request: the client may have opened the file since.
        if !replay_entry.is_known(&*self.store.snapshot()?)? {
            for id in changes.iter().filter_map(NameChange::closed_inode) {
                self.release(id, &client, now_ms)?;
            }
        }
        // A concurrent revocation drops cached access before or after this, not between.
        let _issuing = self.issuing();
        let opening = self.begin_opens(changes, &client, now_ms)?;
        let outcome = self.apply_batch(principal, &client, changes, &replay_entry, now_ms);
        let done = match &outcome {
            Ok(OnceOutcome { response: Response::NameBatchApplied { done, .. }, .. }) => usize::from(*done),
            _ => 0,
        };
        for file in opening.iter().filter(|file| file.at >= done) {
            self.end_opening(file, &client);
        }
        let OnceOutcome { response, now } = outcome?;
        let Response::NameBatchApplied { done: count, failure, .. } = response else { return Ok(response) };
        if now {
            // Audited at once: later failures do not undo the changes.
            let written = changes.iter().take(done).filter(|change| !matches!(change, NameChange::Close(_)));
            written.for_each(|change| self.audit_change(principal, change, "ok", now_ms));
            if let (Some(failure), Some(change)) = (&failure, changes.get(done)) {
                self.audit_change(principal, change, failure.code.name(), now_ms);
            }
        }
        let (mut leases, mut failed) = (Vec::new(), None);
        for file in opening.iter().filter(|file| file.at < done) {
            let kept = match failed {
                None => self.finish_open(principal, file, &client, now, now_ms),
                Some(_) => Ok(None),
            };
            match kept {
                Ok(Some(lease)) => leases.push(InodeLease { inode: file.id, lease }),
                Ok(None) if failed.is_none() => {}
                Ok(None) => self.end_opening(file, &client),
                Err(error) => {
                    self.end_opening(file, &client);
                    failed = Some(error);
                }
            }
        }
        if now {
            for change in changes.iter().take(done) {
                if let NameChange::Close(id) = change {
                    // A repeated request does not close again: all files are closed now, even if
                    // one fails.
                    let closed =
                        self.release(*id, &client, now_ms).and_then(|()| self.remove_if_unused(*id, now_ms));
                    failed = failed.or(closed.err());
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(Response::NameBatchApplied { done: count, leases, failure }),
        }
    }

    /// Audits each change like a request.
    fn audit_change(&self, principal: &Principal, change: &NameChange, verdict: &str, time_ms: u64) {
        let (action, subject) = audit_action(change);
        self.audit.record(&AuditRecord {
            time_ms,
            user: principal.user.as_str(),
            session: Some(&principal.session),
            proven: true,
            source: None,
            action,
            subject: Some(&subject),
            verdict,
        });
    }

    /// Begins the opens of files that are created and still open at the end of the batch, so that a
    /// removal in the same batch keeps them. Numbers that are not reserved for the client are not
    /// opened.
    fn begin_opens(
        &self,
        changes: &[NameChange],
        client: &ClientKey,
        now_ms: u64,
    ) -> Result<Vec<PendingOpen>> {
        let closed_by = |change: &NameChange| match change {
            NameChange::Close(id) => Some(*id),
            change => change.closed_inode(),
        };
        let closed_by: HashMap<InodeId, usize> =
            changes.iter().enumerate().filter_map(|(at, change)| Some((closed_by(change)?, at))).collect();
        let opened = changes.iter().enumerate().filter_map(|(at, change)| match change {
            NameChange::Create(CreateOp { inode, what: NodeKind::File, held: true, .. }) => {
                Some((at, *inode))
            }
            _ => None,
        });
        let opened: Vec<_> =
            opened.filter(|(at, id)| closed_by.get(id).is_none_or(|closed| closed < at)).collect();
        if opened.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = numbers(&*self.store.snapshot()?, client)?;
        self.register_client(&client.0, client.1, now_ms)?;
        let mut all: Vec<PendingOpen> = Vec::new();
        for (at, id) in opened {
            let begun = numbers.has(id);
            if begun && let Err(error) = self.open_files.begin_open(&client.0, client.1, id, now_ms) {
                all.iter().for_each(|file| self.end_opening(file, client));
                return Err(error);
            }
            all.push(PendingOpen { at, id, begun });
        }
        Ok(all)
    }

    /// Closes a file. In this order: a lock request in between finds the file closed, or its lock
    /// ends here.
    pub(super) fn release(&self, id: InodeId, client: &ClientKey, now_ms: u64) -> Result<()> {
        self.open_files.close(&client.0, client.1, id);
        self.leases.return_lease(id, client, None, now_ms);
        self.release_locks(id, client)?;
        self.release_fence(id, client)
    }

    fn end_opening(&self, file: &PendingOpen, client: &ClientKey) {
        if file.begun {
            self.open_files.abort_open(&client.0, client.1, file.id);
        }
    }

    /// Completes the open of a created file and grants a write lease; for a repeated request like a
    /// new open.
    fn finish_open(
        &self,
        principal: &Principal,
        file: &PendingOpen,
        client: &ClientKey,
        now: bool,
        now_ms: u64,
    ) -> Result<Option<NodeLease>> {
        let mut modes = OpenModes::of(Access::Update);
        if !now {
            let found: Option<Inode> = load(&*self.store.snapshot()?, &keys::inode(file.id))?;
            let Some(found) = found else {
                self.end_opening(file, client);
                return Ok(None);
            };
            if found.owner != principal.user {
                modes = OpenModes::default();
            }
        }
        self.open_files.open(&client.0, client.1, file.id, modes, now_ms)?;
        self.end_opening(file, client);
        let fenced =
            || self.fence_of(file.id, client).map(|fence| fence.is_some_and(|fence| !fence.released));
        if !modes.writes || (!now && fenced()?) {
            return Ok(None);
        }
        self.lease(principal, client.1, file.id, (LeaseKind::Write, false), now_ms)
    }

    /// Applies the changes: all of them, or those before the first refused one.
    fn apply_batch(
        &self,
        principal: &Principal,
        client: &ClientKey,
        changes: &[NameChange],
        replay_entry: &replay_cache::ReplayEntry<'_>,
        now_ms: u64,
    ) -> Result<OnceOutcome> {
        let (mut upto, mut failure) = (changes.len(), None);
        loop {
            let mut refused = None;
            let outcome = self.with_unlink_context(now_ms, |tx, ending| {
                // The transaction may run a second time after a conflict.
                refused = None;
                replay_cache::answer(tx, Some(replay_entry), |tx| {
                    let mut batch = NameBatchTx {
                        principal,
                        client,
                        any_group: self.has_directory(),
                        now_ms,
                        since: HashMap::new(),
                        numbers: None,
                    };
                    for (at, change) in changes.iter().take(upto).enumerate() {
                        batch.apply(tx, change, ending).inspect_err(|_| refused = Some(at))?;
                    }
                    if let Some(numbers) = &batch.numbers {
                        save(tx, &keys::reserved_inodes(client), numbers)?;
                    }
                    let failure = failure.clone();
                    Ok(Response::NameBatchApplied { done: upto as u16, leases: Vec::new(), failure })
                })
            });
            match (outcome, refused) {
                (Err(MdsError::Refused(why)), Some(at)) if why.code != ErrorCode::Busy => {
                    if at == 0 {
                        let response =
                            Response::NameBatchApplied { done: 0, leases: Vec::new(), failure: Some(why) };
                        return Ok(OnceOutcome { response, now: true });
                    }
                    // The refused change may be partly applied: start again without it.
                    (upto, failure) = (at, Some(why));
                }
                (outcome, _) => return outcome,
            }
        }
    }
}

impl NameBatchTx<'_> {
    /// Returns the time of a change, limited to the period since the delegation was granted.
    fn at(&mut self, tx: &dyn Transaction, dir: DirLeaseId, at_ms: u64) -> Result<u64> {
        let since_ms = match self.since.get(&dir) {
            Some(since_ms) => *since_ms,
            None => {
                let since_ms = check_delegation(tx, self.client, dir)?;
                self.since.insert(dir, since_ms);
                since_ms
            }
        };
        // Client and server clocks may differ.
        let earliest_ms = since_ms.saturating_sub(CLOCKS_DIFFER_MS);
        Ok(at_ms.clamp(earliest_ms, earliest_ms.max(self.now_ms.saturating_add(CLOCKS_DIFFER_MS))))
    }

    fn apply(
        &mut self,
        tx: &mut dyn Transaction,
        change: &NameChange,
        ending: &UnlinkContext<'_>,
    ) -> Result<()> {
        match change {
            NameChange::Create(made) => self.make(tx, made),
            // Done after the transaction.
            NameChange::Close(_) => Ok(()),
            NameChange::Unlink(removed) => {
                let UnlinkOp { directory, name, inode, at_ms, .. } = removed;
                let at_ms = self.at(tx, *directory, *at_ms)?;
                check_precondition(tx, directory.inode, name, Some(*inode))?;
                let ending = UnlinkContext { now_ms: at_ms, ..*ending };
                namespace::remove_node(tx, self.principal, (directory.inode, name), false, &ending).map(drop)
            }
            NameChange::Rename(renamed) => {
                let RenameOp { from_directory, from, inode, to_directory, to, replaced, at_ms, .. } = renamed;
                let at_ms = self.at(tx, *from_directory, *at_ms)?;
                let at_ms = self.at(tx, *to_directory, at_ms)?;
                let moved = check_precondition(tx, from_directory.inode, from, Some(*inode))?;
                if moved.is_some_and(|moved| moved.is_directory()) {
                    return Err(MdsError::refused(ErrorCode::IsADirectory, from.shown()));
                }
                check_precondition(tx, to_directory.inode, to, *replaced)?;
                let way = RenameParams {
                    from_parent: from_directory.inode,
                    from,
                    to_parent: to_directory.inode,
                    to,
                    mode: RenameMode::Replace,
                };
                let ending = UnlinkContext { now_ms: at_ms, ..*ending };
                namespace::rename_node(tx, self.principal, &way, &ending).map(drop)
            }
        }
    }

    fn make(&mut self, tx: &mut dyn Transaction, made: &CreateOp) -> Result<()> {
        let at_ms = self.at(tx, made.directory, made.at_ms)?;
        if self.numbers.is_none() {
            self.numbers = Some(numbers(tx, self.client)?);
        }
        if let Some(numbers) = &mut self.numbers {
            numbers.take(made.inode)?;
        }
        let new = NewNode {
            name: &made.name,
            what: &made.what,
            mode: made.mode,
            umask: made.umask,
            owner: made.owner.as_ref(),
            group: made.group.as_ref(),
            any_group: self.any_group,
            number: Some(made.inode),
        };
        namespace::make_node(tx, self.principal, made.directory.inode, &new, at_ms).map(drop)
    }
}

/// Checks that a name still has the expected node; returns the node.
fn check_precondition(
    tx: &dyn Transaction,
    directory: InodeId,
    name: &Name,
    what: Option<InodeId>,
) -> Result<Option<Inode>> {
    let (id, found) = namespace::child(tx, directory, name)?.unzip();
    match id {
        id if id == what => Ok(found),
        None => Err(MdsError::refused(ErrorCode::NotFound, name.shown())),
        Some(_) => Err(MdsError::refused(ErrorCode::Exists, name.shown())),
    }
}

/// Returns action and subject of a change for the audit log, like those of a request.
fn audit_action(change: &NameChange) -> (&'static str, String) {
    let place = |dir: &DirLeaseId, name: &Name| format!("node {}/{name}", dir.inode.0);
    match change {
        NameChange::Create(made) => ("MakeNode", place(&made.directory, &made.name)),
        NameChange::Unlink(removed) => ("RemoveNode", place(&removed.directory, &removed.name)),
        NameChange::Rename(renamed) => {
            let RenameOp { from_directory, from, to_directory, to, .. } = renamed;
            ("RenameNode", format!("{} -> {}", place(from_directory, from), place(to_directory, to)))
        }
        NameChange::Close(inode) => ("CloseNode", format!("node {}", inode.0)),
    }
}
