//! Leases: what asks for them, gives them back, and what has to wait for that.
//!
//! Does: watch every transaction of a request for files that it changes, so that no request can forget to; tell holders
//! what they are to give back. Does not: decide who is in whose way; `leases` does.
//! Contract: whoever is told of a lease is told of the file as it is with the lease held. A request that has to wait is
//! Busy, and nothing was done.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0046-leases.md.

use std::cell::RefCell;
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
use crate::holds::Held;
use crate::keys;
use crate::leases::{self, BARRED_MS, BELIEVED_MS, Leases, Standing, Use, Verdict, WAIT_MAX_MS, Who, Wish};
use crate::namespace;
use crate::once::Asked;
use crate::records::{Inode, decode};
use crate::server::Mds;
use crate::store::{MetaError, Pair, Snapshot, Transaction};

/// Who asks for what this thread is doing.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    leases: Arc<Leases>,
    /// Before it looked at anything.
    moment: u64,
    by: Option<Who>,
    /// Does it tell of what was done under a lease, perhaps of before the start?
    settles: bool,
    now_ms: u64,
}

thread_local! {
    /// None: the server itself, which is in nobody's way.
    static ASKER: RefCell<Option<Asker>> = const { RefCell::new(None) };
}

/// Does some work as somebody.
pub(super) fn as_asker<T>(asker: Option<Asker>, work: impl FnOnce() -> T) -> T {
    struct Back(Option<Asker>);
    impl Drop for Back {
        fn drop(&mut self) {
            ASKER.set(self.0.take());
        }
    }
    let _back = Back(ASKER.replace(asker));
    work()
}

/// Does some work as the server itself: a change that nobody sees, or that whoever has a lease knows of.
pub(crate) fn as_server<T>(work: impl FnOnce() -> T) -> T {
    as_asker(None, work)
}

/// Names in a directory are about to be read: whoever else is ahead in it tells of his changes first (Busy).
pub(crate) fn sees_names(id: InodeId) -> Result<()> {
    ASKER.with_borrow(|asker| {
        let Some(Asker { leases, moment, by, now_ms, .. }) = asker else { return Ok(()) };
        match leases.sees_names(id, by.as_ref(), *moment, *now_ms) {
            Verdict::Free => return Ok(()),
            Verdict::Wait => {}
            Verdict::Fence(lost) => leases.to_fence(id, lost),
        }
        Err(leases::busy())
    })
}

/// A transaction is about to begin: it sees everything that was told of until now.
pub(crate) fn sees_all_until_now() {
    ASKER.with_borrow_mut(|asker| {
        if let Some(asker) = asker {
            asker.moment = asker.leases.moment();
        }
    });
}

/// Whoever sent a request.
pub(super) fn asker(
    leases: &Arc<Leases>,
    who: &Principal,
    request: &Request,
    asked: Option<&Asked>,
    now_ms: u64,
) -> Option<Asker> {
    let by = client_of_request(request, asked).map(|client_id| (who.user.clone(), client_id));
    let settles = matches!(
        request,
        Request::Allocate { .. }
            | Request::Written { .. }
            | Request::CloseNode { .. }
            | Request::NameBatch { .. }
    );
    Some(Asker { leases: Arc::clone(leases), moment: leases.moment(), by, settles, now_ms })
}

/// Which holder asks.
fn client_of_request(request: &Request, asked: Option<&Asked>) -> Option<ClientId> {
    match request {
        Request::SetNode { client_id, .. }
        | Request::Lookup { client_id, .. }
        | Request::ReadNodes { client_id, .. }
        | Request::MakeNode { client_id, .. } => client_id.or_else(|| asked.map(Asked::client_id)),
        Request::OpenNode { client_id, .. }
        | Request::Allocate { client_id, .. }
        | Request::Written { client_id, .. }
        | Request::CloseNode { client_id, .. }
        | Request::LeaseNode { client_id, .. }
        | Request::DelegateDir { client_id, .. }
        | Request::RenewGrants { handle: OpenHandle::Node { client_id, .. }, .. } => Some(*client_id),
        _ => asked.map(Asked::client_id),
    }
}

/// Until this is dropped nobody is given a lease on what is being changed.
pub(crate) struct Changing<'a> {
    mds: &'a Mds,
    ids: Vec<InodeId>,
    now_ms: u64,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.mds.leases.changed(&self.ids, self.now_ms);
        }
    }
}

/// A transaction that takes down which inodes are changed in it.
struct Watched<'a, 'b> {
    tx: &'a mut (dyn Transaction + 'b),
    changed: Vec<InodeId>,
    /// Leases of before the start are not known: then files are waited for, and directories, which are here, are not.
    only_files: bool,
    directories: Vec<InodeId>,
}

impl Watched<'_, '_> {
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

impl Snapshot for Watched<'_, '_> {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, MetaError> {
        self.tx.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> std::result::Result<Vec<Pair>, MetaError> {
        self.tx.scan(from, until, limit)
    }
}

impl Transaction for Watched<'_, '_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), MetaError> {
        self.note(key)?;
        self.tx.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> std::result::Result<(), MetaError> {
        self.note(key)?;
        self.tx.delete(key)
    }

    /// It is lent: whoever has the transaction itself commits it.
    fn commit(self: Box<Self>) -> std::result::Result<(), MetaError> {
        Err(MetaError::Conflict)
    }
}

/// A holder that waits for recalls.
#[derive(Clone, Debug)]
pub struct Waiting {
    who: Who,
    epoch: u64,
    known: u64,
    wait_ms: u32,
}

impl Waiting {
    /// For how long at most, milliseconds.
    #[must_use]
    pub const fn max_ms(&self) -> u32 {
        self.wait_ms
    }
}

impl Mds {
    /// Runs the work of a transaction; if it is a request's and changes what somebody has a lease on, that one is to give it
    /// back first (Busy). The changes may be committed while the second one lives.
    pub(crate) fn watched<'a, T>(
        &'a self,
        tx: &mut dyn Transaction,
        work: impl FnOnce(&mut dyn Transaction) -> Result<T>,
    ) -> (Result<T>, Option<Changing<'a>>) {
        let Some(asker) = ASKER.with_borrow(Clone::clone) else { return (work(tx), None) };
        let only_files = self.leases.waits(asker.now_ms);
        let mut watched = Watched { tx, changed: Vec::new(), only_files, directories: Vec::new() };
        let done = work(&mut watched);
        let Watched { changed: mut ids, directories, .. } = watched;
        if done.is_err() || (ids.is_empty() && directories.is_empty()) {
            return (done, None);
        }
        let Asker { by, settles, now_ms, .. } = asker;
        // Whoever is waited for may come just now: then leases are given on directories again.
        let (verdicts, begun) = self.leases.may_change((&ids, &directories), by.as_ref(), settles, now_ms);
        add(&self.counters.leases_recalled, begun);
        if verdicts.is_empty() {
            ids.extend(directories);
            return (done, Some(Changing { mds: self, ids, now_ms }));
        }
        for (id, verdict) in verdicts {
            if let Verdict::Fence(lost) = verdict {
                self.leases.to_fence(id, lost);
            }
        }
        (Err(leases::busy()), None)
    }

    /// Waits, as Busy, until nothing is in the way of what is about to be done to a file.
    pub(super) fn make_room(
        &self,
        id: InodeId,
        by: Option<&Who>,
        what: Use,
        settles: bool,
        now_ms: u64,
    ) -> Result<()> {
        let (verdict, begun) = self.leases.may(id, by, what, settles, now_ms);
        add(&self.counters.leases_recalled, begun);
        match verdict {
            Verdict::Free => return Ok(()),
            Verdict::Wait => {}
            Verdict::Fence(lost) => {
                self.leases.to_fence(id, lost);
                self.fence_lost(now_ms);
            }
        }
        Err(leases::busy())
    }

    /// Those that had a lease to write and did not give it back are kept from writing; when that is so, others go on.
    pub(crate) fn fence_lost(&self, now_ms: u64) {
        for (id, who) in self.leases.take_lost() {
            let fence = || match self.depose(id, &who, now_ms)? {
                true => Ok(()),
                false => self.fence_lease(id, &who, now_ms),
            };
            if let Err(error) = as_server(fence) {
                tracing::warn!(inode = id.0, %error, "a file could not be fenced");
            }
        }
    }

    /// The same from within a request, if there is something to do.
    pub(crate) fn fence_lost_now(&self) {
        let asker = ASKER.with_borrow(Clone::clone);
        if let Some(asker) = asker
            && self.leases.has_lost()
        {
            self.fence_lost(asker.now_ms);
        }
    }

    /// A file is about to be read or written by its path, until then: nobody is told of that, nor of its end.
    pub(super) fn make_room_by_path(
        &self,
        id: InodeId,
        access: Access,
        until_ms: u64,
        now_ms: u64,
    ) -> Result<()> {
        let what = if access == Access::Read { Use::Read } else { Use::Change };
        if what == Use::Change {
            self.leases.bar(id, until_ms);
        }
        self.make_room(id, None, what, false, now_ms)
    }

    /// Gives a lease on a file, if there is one to be had. `waits`: others give theirs back first (Busy).
    pub(super) fn lease(
        &self,
        who: &Principal,
        client_id: ClientId,
        id: InodeId,
        (kind, waits): (LeaseKind, bool),
        now_ms: u64,
    ) -> Result<Option<NodeLease>> {
        if self.config.shared {
            return Ok(None);
        }
        let by = (who.user.clone(), client_id);
        if !self.leases.is_led(&by, now_ms) {
            return Ok(None);
        }
        let others_write = self.others_write(who, &by, id, now_ms)?;
        let wish = Wish { kind, waits, others_write, in_passing: false, ahead: false };
        let given = self.leases.give(id, &by, wish, now_ms)?;
        add(&self.counters.leases_given, u64::from(given.is_some()));
        Ok(given)
    }

    /// One to read, for who looks a node up.
    fn lease_in_passing(
        &self,
        who: &Principal,
        client_id: ClientId,
        id: InodeId,
        now_ms: u64,
    ) -> Result<Option<NodeLease>> {
        let by = (who.user.clone(), client_id);
        if let Some(known) = self.leases.known(id, &by, now_ms) {
            return Ok(known);
        }
        if self.others_write(who, &by, id, now_ms)? {
            return Ok(None);
        }
        let wish =
            Wish { kind: LeaseKind::Read, waits: false, others_write: false, in_passing: true, ahead: false };
        let given = self.leases.give(id, &by, wish, now_ms)?;
        add(&self.counters.leases_given, u64::from(given.is_some()));
        Ok(given)
    }

    /// What has a name in a directory, with leases on both if they are to be had: who has that on the directory knows its
    /// names, until it is called back.
    pub(super) fn look_up_leased(
        &self,
        who: &Principal,
        (parent, name): (InodeId, &Name),
        client_id: ClientId,
        now_ms: u64,
    ) -> Result<Response> {
        let look = || namespace::look_up(&*self.store.snapshot()?, who, parent, name);
        if self.config.shared || !self.leases.is_led(&(who.user.clone(), client_id), now_ms) {
            return Ok(Response::Stat { stat: look()? });
        }
        namespace::check_passes(&*self.store.snapshot()?, who, parent, name)?;
        let directory = self.lease_in_passing(who, client_id, parent, now_ms)?;
        // From here on what is seen is as it is with the lease held.
        let mut stat = look();
        let mut lease = None;
        if let Ok(Stat { inode: led, .. }) = stat {
            lease = self.lease_in_passing(who, client_id, led, now_ms)?;
            if lease.is_some() {
                stat = look();
                lease = lease.filter(|_| stat.as_ref().is_ok_and(|stat| stat.inode == led));
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

    /// A page of a directory, with a lease on it if there is one to be had.
    pub(super) fn list_leased(
        &self,
        who: &Principal,
        (directory, after, limit): (InodeId, Option<&Name>, u16),
        client_id: Option<ClientId>,
        now_ms: u64,
    ) -> Result<Response> {
        let lease = match client_id.filter(|_| !self.config.shared) {
            Some(client_id) => {
                // Whoever may not list it is given nothing.
                namespace::listable(&*self.store.snapshot()?, who, directory)?;
                self.lease_in_passing(who, client_id, directory, now_ms)?
            }
            None => None,
        };
        // From here on what is seen is as it is with the lease held.
        let (entries, more) = namespace::read_nodes(&*self.store.snapshot()?, who, directory, after, limit)?;
        Ok(match lease {
            Some(lease) => Response::Listed { entries, more, lease },
            None => Response::Directory { entries, more },
        })
    }

    /// A lease on a directory that was just made, for who is told what it is: nothing is in it.
    pub(super) fn lease_made(
        &self,
        who: &Principal,
        client_id: ClientId,
        made: Stat,
        now_ms: u64,
    ) -> Result<Response> {
        let Some(lease) = self.lease_in_passing(who, client_id, made.inode, now_ms)? else {
            return Ok(Response::Stat { stat: made });
        };
        let view = self.store.snapshot()?;
        // Somebody may have put something into it already, or have taken it away.
        match namespace::node(&*view, made.inode) {
            Ok(node) if namespace::is_empty(&*view, made.inode)? => {
                Ok(Response::Made { stat: node.stat(made.inode), lease })
            }
            _ => Ok(Response::Stat { stat: made }),
        }
    }

    /// May somebody write to a file who is given no leases?
    fn others_write(&self, who: &Principal, by: &Who, id: InodeId, now_ms: u64) -> Result<bool> {
        let led = |user: &_, client_id| {
            let one: Who = (Clone::clone(user), client_id);
            one == *by || self.leases.is_led(&one, now_ms)
        };
        Ok((self.unled_before && self.holds.waits(now_ms))
            || self.holds.others_write(id, now_ms, led)
            || self.is_written_since_before(who, id, now_ms)?)
    }

    /// May somebody write a file with a credential that a server before this one gave him? Whoever has it open here is
    /// asked; whoever opened it by its path is known by that alone.
    fn is_written_since_before(&self, who: &Principal, id: InodeId, now_ms: u64) -> Result<bool> {
        let before = &self.writers_before;
        if before.are_over(now_ms) {
            return Ok(false);
        }
        let Ok(file) = namespace::node(&*self.store.snapshot()?, id) else { return Ok(false) };
        let objects: Vec<_> = file.layout.iter().flat_map(|layout| layout.objects()).copied().collect();
        Ok(before.others_write(&objects, &who.session, now_ms))
    }

    /// A holder of this user is told which leases to give back.
    pub(super) fn recalls(
        &self,
        who: &Principal,
        client_id: ClientId,
        (epoch, known): (u64, u64),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let by = (who.user.clone(), client_id);
        // Another server of the store would not know of them; and whoever said that he is gone is not met again by a wait of his.
        if self.config.shared || self.holds.has_ended(&by) {
            return Ok(Response::Recalls { epoch: 0, lease_ms: 0, last: 0, recalls: Vec::new() });
        }
        if !self.leases.knows(&by) {
            self.meet_led(&who.user, client_id, now_ms)?;
        }
        self.holds.keep(&who.user, client_id, now_ms);
        let standing = Standing { role: who.role, groups: who.groups.clone() };
        let fresh = u64::from_be_bytes(random(rng));
        let told = self.leases.heard(&by, standing, (epoch, known), fresh, now_ms);
        let leases::Told { epoch, last, recalls, newly } = told;
        if newly {
            self.let_go_of_lost_leases(&by)?;
            self.is_not_ahead_since(&by, epoch)?;
        }
        Ok(Response::Recalls { epoch, lease_ms: BELIEVED_MS as u32, last, recalls })
    }

    /// Who has a file open asks for a lease on it.
    pub(super) fn lease_node(
        &self,
        who: &Principal,
        node: Node,
        client_id: ClientId,
        kind: LeaseKind,
        now_ms: u64,
    ) -> Result<Response> {
        let id = self.node(who, node)?;
        if !self.holds.has(&who.user, client_id, id, now_ms) {
            return Err(MdsError::refused(
                ErrorCode::Invalid,
                "only on a file that is held is a lease given",
            ));
        }
        let wanted = match kind {
            LeaseKind::Read => Held { reads: true, writes: false },
            LeaseKind::Write => Held { reads: false, writes: true },
        };
        if !self.holds.held(&who.user, client_id, id, now_ms).includes(wanted) {
            let file = namespace::node(&*self.store.snapshot()?, id)?;
            who.needs_all(AccessRight::to(wanted.reads, wanted.writes), &file, "node")?;
        }
        let by = (who.user.clone(), client_id);
        if !self.leases.is_led(&by, now_ms) && kind == LeaseKind::Write {
            self.leases.bar(id, now_ms.saturating_add(BARRED_MS));
        }
        if kind == LeaseKind::Write {
            self.not_fenced(id, &by, false)?;
        }
        self.make_room(id, Some(&by), Use::under(kind), false, now_ms)?;
        let lease = self.lease(who, client_id, id, (kind, true), now_ms)?;
        if lease.is_none() && kind == LeaseKind::Write {
            self.leases.bar(id, now_ms.saturating_add(BARRED_MS));
            self.make_room(id, Some(&by), Use::Change, false, now_ms)?;
        }
        // Looked at with the lease held: whatever changes it now waits for it.
        let stat = namespace::node(&*self.store.snapshot()?, id)?.stat(id);
        Ok(Response::Leased { stat, lease })
    }

    /// Leases that are out.
    #[must_use]
    pub fn leases_out(&self) -> usize {
        self.leases.count()
    }

    /// Times since the start that a user got no more leases.
    #[must_use]
    pub fn lease_penalties(&self) -> u64 {
        self.leases.penalties()
    }

    /// A session's holder asks which leases to give back, and may wait for some: who it is.
    #[must_use]
    pub fn waiting(&self, session: &SessionId, body: &[u8]) -> Option<Waiting> {
        let Ok((_, Request::Recalls { client_id, epoch, known, wait_ms })) = Request::decode(body) else {
            return None;
        };
        let user = self.sessions.user_of(session)?;
        Some(Waiting { who: (user, client_id), epoch, known, wait_ms: wait_ms.min(WAIT_MAX_MS) })
    }

    /// Is there something to tell it? If not `waker` is woken when there is. Nothing is held meanwhile but its name.
    #[must_use]
    pub fn has_news(&self, waiting: &Waiting, waker: &Waker) -> bool {
        self.leases.has_news(&waiting.who, (waiting.epoch, waiting.known), waker)
    }
}
