//! Names that holders change first, and tell of then.
//!
//! Does: let a holder be ahead in a directory, reserve numbers for what he makes, take the changes that he tells of. Does not:
//! trust him: each change is judged as if it were asked for, and at its own time, between the moment in which he was let and now.
//! Contract: changes are done in their order, in one transaction, up to the first one that is refused; which is told, and
//! nothing of it is done. Asked for again, they are not done again.
//! O(changes) for each request, of which there are [`NAME_CHANGES_MAX`] at most.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0050-directory-write-delegations.md.

use std::collections::HashMap;

use sealstone_mds_protocol::{
    Access, ClientId, CreateOp, DirLeaseId, ErrorCode, InodeId, InodeLease, InodeRange, LeaseKind,
    NAME_CHANGES_MAX, Name, NameChange, Node, NodeKind, NodeLease, RESERVED_INODES_MAX, RenameMode, RenameOp,
    Response, UnlinkOp,
};

use crate::access::Principal;
use crate::ahead::{self, NumbersRecord};
use crate::audit::AuditRecord;
use crate::error::{MdsError, Result};
use crate::holds::Held;
use crate::keys;
use crate::leases::{Who, Wish};
use crate::namespace::{self, NewNode, RenameParams, UnlinkContext};
use crate::once::{self, Asked, Told};
use crate::records::{Inode, load, save};
use crate::server::Mds;
use crate::store::Transaction;

/// By so much the clock of who made a change may be another one, milliseconds: less than what is taken for a clock that is
/// wrong ([`sealstone_mds_protocol::Stat::changed_ns`]).
const CLOCKS_DIFFER_MS: u64 = 250;

/// What the changes of one request share.
struct Telling<'a> {
    who: &'a Principal,
    by: &'a Who,
    any_group: bool,
    now_ms: u64,
    /// Since when he is ahead where.
    since: HashMap<DirLeaseId, u64>,
    numbers: Option<NumbersRecord>,
}

/// A file that is made and held.
struct Opening {
    /// By which of the changes.
    at: usize,
    id: InodeId,
    /// Is it held already?
    begun: bool,
}

impl Mds {
    /// A holder asks to be ahead in a directory, for numbers, or both. He is let where nobody else has a lease, or had to give
    /// one back lately: who shares a directory asks for each change.
    pub(super) fn lead_names(
        &self,
        who: &Principal,
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
        let by = (who.user.clone(), client_id);
        let id = directory.map(|directory| self.node(who, directory)).transpose()?;
        // On a short disk names are made one by one, so that each refusal is an answer to its caller.
        let is_short = !self.store.accepts_additions();
        if self.config.shared || is_short || !self.leases.is_led(&by, now_ms) {
            return Ok(Response::DirDelegated { lease: None, before: None, numbers: None });
        }
        let given = match id {
            Some(id) => self.lead(who, id, &by, now_ms)?,
            None => None,
        };
        // Whoever is not let makes nothing by them.
        let numbers = match numbers {
            0 => None,
            _ if id.is_some() && given.is_none() => None,
            count => self.reserve_numbers(&by, count)?.map(|first| {
                let all = (first.0..).take(usize::from(count)).map(InodeId);
                InodeRange { first, proofs: all.map(|id| self.proof_key.prove(&who.user, id)).collect() }
            }),
        };
        let (lease, before) = given.map_or((None, None), |new| (Some(new.lease), new.before));
        Ok(Response::DirDelegated { lease, before, numbers })
    }

    fn lead(
        &self,
        who: &Principal,
        id: InodeId,
        by: &Who,
        now_ms: u64,
    ) -> Result<Option<crate::leases::New>> {
        if !ahead::may_be(&*self.store.snapshot()?, who, id)? {
            return Ok(None);
        }
        let wish =
            Wish { kind: LeaseKind::Write, waits: false, others_write: false, in_passing: true, ahead: true };
        let Some(new) = self.leases.give_over(id, by, wish, now_ms)? else { return Ok(None) };
        let there = DirLeaseId { inode: id, epoch: new.lease.epoch, lease: new.lease.number };
        // With the lease held: nobody changes the directory meanwhile.
        match self.note_ahead(who, by.1, there, now_ms) {
            Ok(true) => Ok(Some(new)),
            done => {
                self.leases.put_back(id, by, new);
                done.map(|_| None)
            }
        }
    }

    /// A holder tells of what he did.
    pub(super) fn change_names(
        &self,
        who: &Principal,
        changes: &[NameChange],
        asked: &Asked,
        now_ms: u64,
    ) -> Result<Response> {
        if changes.len() > NAME_CHANGES_MAX {
            return Err(MdsError::refused(ErrorCode::Limit, format!("{NAME_CHANGES_MAX} changes at once")));
        }
        let by: Who = (who.user.clone(), asked.client_id());
        let memo = self.memo(&who.user, asked, now_ms)?;
        // Whoever asks again may have opened it since.
        if !memo.is_known(&*self.store.snapshot()?)? {
            for id in changes.iter().filter_map(NameChange::closed_inode) {
                self.release(id, &by, now_ms)?;
            }
        }
        // What a maker holds it for is asked anew by a revocation, before or after this.
        let _issuing = self.issuing();
        let opening = self.begin_to_hold(changes, &by, now_ms)?;
        let told = self.tell(who, &by, changes, &memo, now_ms);
        let done = match &told {
            Ok(Told { response: Response::NameBatchApplied { done, .. }, .. }) => usize::from(*done),
            _ => 0,
        };
        for file in opening.iter().filter(|file| file.at >= done) {
            self.end_opening(file, &by);
        }
        let Told { response, now } = told?;
        let Response::NameBatchApplied { done: count, failure, .. } = response else { return Ok(response) };
        if now {
            // At once: nothing that fails from here on takes it back.
            // That a file was closed is not written down.
            let written = changes.iter().take(done).filter(|change| !matches!(change, NameChange::Close(_)));
            written.for_each(|change| self.write_down(who, change, "ok", now_ms));
            if let (Some(failure), Some(change)) = (&failure, changes.get(done)) {
                self.write_down(who, change, failure.code.name(), now_ms);
            }
        }
        let (mut leases, mut failed) = (Vec::new(), None);
        for file in opening.iter().filter(|file| file.at < done) {
            let kept = match failed {
                None => self.keep_made(who, file, &by, now, now_ms),
                Some(_) => Ok(None),
            };
            match kept {
                Ok(Some(lease)) => leases.push(InodeLease { inode: file.id, lease }),
                Ok(None) if failed.is_none() => {}
                Ok(None) => self.end_opening(file, &by),
                Err(error) => {
                    self.end_opening(file, &by);
                    failed = Some(error);
                }
            }
        }
        if now {
            for change in changes.iter().take(done) {
                if let NameChange::Close(id) = change {
                    // Told again it is not done again: all of them are let go of now, whatever becomes of one.
                    let gone = self.release(*id, &by, now_ms).and_then(|()| self.let_go(*id, now_ms));
                    failed = failed.or(gone.err());
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(Response::NameBatchApplied { done: count, leases, failure }),
        }
    }

    /// One record for each change, as if it had been asked for.
    fn write_down(&self, who: &Principal, change: &NameChange, verdict: &str, time_ms: u64) {
        let (action, subject) = told_of(change);
        self.audit.record(&AuditRecord {
            time_ms,
            user: who.user.as_str(),
            session: Some(&who.session),
            proven: true,
            source: None,
            action,
            subject: Some(&subject),
            verdict,
        });
    }

    /// Files that are made and held when all is done: what takes their names away in the same request leaves them to their
    /// holder. Of numbers that are not his to use nothing is held meanwhile.
    fn begin_to_hold(&self, changes: &[NameChange], by: &Who, now_ms: u64) -> Result<Vec<Opening>> {
        let let_go = |change: &NameChange| match change {
            NameChange::Close(id) => Some(*id),
            change => change.closed_inode(),
        };
        let let_go: HashMap<InodeId, usize> =
            changes.iter().enumerate().filter_map(|(at, change)| Some((let_go(change)?, at))).collect();
        let held = changes.iter().enumerate().filter_map(|(at, change)| match change {
            NameChange::Create(CreateOp { inode, what: NodeKind::File, held: true, .. }) => {
                Some((at, *inode))
            }
            _ => None,
        });
        let held: Vec<_> = held.filter(|(at, id)| let_go.get(id).is_none_or(|gone| gone < at)).collect();
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = ahead::numbers(&*self.store.snapshot()?, by)?;
        self.register_client(&by.0, by.1, now_ms)?;
        let mut all: Vec<Opening> = Vec::new();
        for (at, id) in held {
            let begun = numbers.has(id);
            if begun && let Err(error) = self.holds.begin(&by.0, by.1, id, now_ms) {
                all.iter().for_each(|file| self.end_opening(file, by));
                return Err(error);
            }
            all.push(Opening { at, id, begun });
        }
        Ok(all)
    }

    /// A holder lets go of a file. In this order: a lock that comes in between finds the file closed, or is ended here.
    pub(super) fn release(&self, id: InodeId, by: &Who, now_ms: u64) -> Result<()> {
        self.holds.release(&by.0, by.1, id);
        self.leases.give_back(id, by, None, now_ms);
        self.release_locks(id, by)?;
        self.let_go_of_fence(id, by)
    }

    fn end_opening(&self, file: &Opening, by: &Who) {
        if file.begun {
            self.holds.not_opened(&by.0, by.1, file.id);
        }
    }

    /// A file that was made is held, and its holder is given a lease; told again, as if he opened it again.
    fn keep_made(
        &self,
        who: &Principal,
        file: &Opening,
        by: &Who,
        now: bool,
        now_ms: u64,
    ) -> Result<Option<NodeLease>> {
        let mut held = Held::of(Access::Update);
        if !now {
            let found: Option<Inode> = load(&*self.store.snapshot()?, &keys::inode(file.id))?;
            let Some(found) = found else {
                self.end_opening(file, by);
                return Ok(None);
            };
            if found.owner != who.user {
                held = Held::default();
            }
        }
        self.holds.hold(&by.0, by.1, file.id, held, now_ms)?;
        self.end_opening(file, by);
        let fenced = || self.fence_of(file.id, by).map(|fence| fence.is_some_and(|fence| !fence.let_go));
        if !held.writes || (!now && fenced()?) {
            return Ok(None);
        }
        self.lease(who, by.1, file.id, (LeaseKind::Write, false), now_ms)
    }

    /// Does the changes: all of them, or those before the first one that is refused.
    fn tell(
        &self,
        who: &Principal,
        by: &Who,
        changes: &[NameChange],
        memo: &once::Memo<'_>,
        now_ms: u64,
    ) -> Result<Told> {
        let (mut upto, mut failure) = (changes.len(), None);
        loop {
            let mut refused = None;
            let told = self.with_unlink_context(now_ms, |tx, ending| {
                // Another server may have been faster, and this be the second time.
                refused = None;
                once::answer(tx, Some(memo), |tx| {
                    let mut telling = Telling {
                        who,
                        by,
                        any_group: self.has_directory(),
                        now_ms,
                        since: HashMap::new(),
                        numbers: None,
                    };
                    for (at, change) in changes.iter().take(upto).enumerate() {
                        telling.apply(tx, change, ending).inspect_err(|_| refused = Some(at))?;
                    }
                    if let Some(numbers) = &telling.numbers {
                        save(tx, &keys::numbers(by), numbers)?;
                    }
                    let failure = failure.clone();
                    Ok(Response::NameBatchApplied { done: upto as u16, leases: Vec::new(), failure })
                })
            });
            match (told, refused) {
                (Err(MdsError::Refused(why)), Some(at)) if why.code != ErrorCode::Busy => {
                    if at == 0 {
                        let response =
                            Response::NameBatchApplied { done: 0, leases: Vec::new(), failure: Some(why) };
                        return Ok(Told { response, now: true });
                    }
                    // What was refused may have begun to be done: without it, from the beginning.
                    (upto, failure) = (at, Some(why));
                }
                (told, _) => return told,
            }
        }
    }
}

impl Telling<'_> {
    /// The time of a change in a directory in which he is ahead.
    fn at(&mut self, tx: &dyn Transaction, there: DirLeaseId, at_ms: u64) -> Result<u64> {
        let since_ms = match self.since.get(&there) {
            Some(since_ms) => *since_ms,
            None => {
                let since_ms = ahead::check(tx, self.by, there)?;
                self.since.insert(there, since_ms);
                since_ms
            }
        };
        // The clocks of both sides are not quite the same.
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
            // It is, after this.
            NameChange::Close(_) => Ok(()),
            NameChange::Unlink(removed) => {
                let UnlinkOp { directory, name, inode, at_ms, .. } = removed;
                let at_ms = self.at(tx, *directory, *at_ms)?;
                is_as_told(tx, directory.inode, name, Some(*inode))?;
                let ending = UnlinkContext { now_ms: at_ms, ..*ending };
                namespace::remove_node(tx, self.who, (directory.inode, name), false, &ending).map(drop)
            }
            NameChange::Rename(renamed) => {
                let RenameOp { from_directory, from, inode, to_directory, to, replaced, at_ms, .. } = renamed;
                let at_ms = self.at(tx, *from_directory, *at_ms)?;
                let at_ms = self.at(tx, *to_directory, at_ms)?;
                let moved = is_as_told(tx, from_directory.inode, from, Some(*inode))?;
                if moved.is_some_and(|moved| moved.is_directory()) {
                    return Err(MdsError::refused(ErrorCode::IsADirectory, from.shown()));
                }
                is_as_told(tx, to_directory.inode, to, *replaced)?;
                let way = RenameParams {
                    from_parent: from_directory.inode,
                    from,
                    to_parent: to_directory.inode,
                    to,
                    mode: RenameMode::Replace,
                };
                let ending = UnlinkContext { now_ms: at_ms, ..*ending };
                namespace::rename_node(tx, self.who, &way, &ending).map(drop)
            }
        }
    }

    fn make(&mut self, tx: &mut dyn Transaction, made: &CreateOp) -> Result<()> {
        let at_ms = self.at(tx, made.directory, made.at_ms)?;
        if self.numbers.is_none() {
            self.numbers = Some(ahead::numbers(tx, self.by)?);
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
        namespace::make_node(tx, self.who, made.directory.inode, &new, at_ms).map(drop)
    }
}

/// Does a name lead to what it led to where the change was made? What that is now.
fn is_as_told(
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

/// What a change is called, and what it is about, for the audit log: as if it had been asked for.
fn told_of(change: &NameChange) -> (&'static str, String) {
    let place = |there: &DirLeaseId, name: &Name| format!("node {}/{name}", there.inode.0);
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
