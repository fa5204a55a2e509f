//! Requests that address nodes.
//!
//! Contract: a file is held before it is looked at, so that it does not go in between; whoever is refused holds no more
//! than before.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, Failure, FileKind, InodeId, IssueKind, LeaseKind, Method, Name, Node,
    NodeKind, NodeLease, OpenedNode, Request, Response,
};
use sealstone_osd::Permissions;

use super::delegate::{IssueGuard, IssueParams};
use super::leases::as_server;
use crate::access::{AccessRight, Principal};
use crate::devices::{READ_RIGHTS, WRITE_RIGHTS};
use crate::entropy::Entropy;
use crate::error::{MdsError, Result};
use crate::holds::Held;
use crate::leases::{BARRED_MS, Use};
use crate::lengths::Written;
use crate::namespace::{self, NewNode, RenameParams, UnlinkContext, WriteReport};
use crate::once::{self, Asked, Memo, Told};
use crate::records::Inode;
use crate::server::Mds;
use crate::store::Transaction;

/// Who wants what of a file.
struct Opening<'a> {
    issuing: &'a IssueGuard<'a>,
    who: &'a Principal,
    id: InodeId,
    held: Held,
    method: Method,
}

impl Mds {
    /// Runs changes by which nodes may end as one transaction.
    pub(super) fn with_unlink_context<T>(
        &self,
        now_ms: u64,
        mut work: impl FnMut(&mut dyn Transaction, &UnlinkContext<'_>) -> Result<T>,
    ) -> Result<T> {
        let removing = self.holds.removing(self.config.shared, now_ms);
        let ending = UnlinkContext { reap_due_ms: self.reap_due(now_ms), now_ms, removing: &removing };
        self.update(|tx| work(tx, &ending))
    }

    pub(super) fn nodes(
        &self,
        who: &Principal,
        request: Request,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        match request {
            Request::Lookup { parent, name, client_id } => {
                let parent = self.node(who, parent)?;
                match client_id {
                    Some(client_id) => self.look_up_leased(who, (parent, &name), client_id, now_ms),
                    None => {
                        let stat = namespace::look_up(&*self.store.snapshot()?, who, parent, &name)?;
                        Ok(Response::Stat { stat })
                    }
                }
            }
            Request::GetNode { node } => {
                let id = self.node(who, node)?;
                Ok(Response::Stat { stat: namespace::node(&*self.store.snapshot()?, id)?.stat(id) })
            }
            Request::ReadNodes { directory, after, limit, client_id } => {
                let id = self.node(who, directory)?;
                self.list_leased(who, (id, after.as_ref(), limit), client_id, now_ms)
            }
            Request::ReadLink { node } => {
                let id = self.node(who, node)?;
                Ok(Response::Target { target: namespace::read_link(&*self.store.snapshot()?, id)? })
            }
            Request::SetNode { node, change, client_id, through } => {
                let id = self.node(who, node)?;
                if let (Some(client_id), Some(_)) = (client_id, change.size) {
                    self.not_fenced(id, &(who.user.clone(), client_id), false)?;
                }
                let client_id = client_id.filter(|_| through);
                let held = client_id.is_some_and(|one| self.holds.held(&who.user, one, id, now_ms).writes);
                let terms = (held, self.has_directory());
                let set = self.with_unlink_context(now_ms, |tx, ending| {
                    namespace::set_node(tx, who, id, &change, terms, ending)
                });
                let stat = self.clearing(set)?;
                if change.size.is_some() {
                    // There may be something to clear, or to remove.
                    self.clears_changed.store(true, Ordering::Release);
                }
                Ok(Response::Stat { stat })
            }
            Request::GetXattr { node, name } => {
                let id = self.node(who, node)?;
                let value = namespace::get_xattr(
                    &*self.store.snapshot()?,
                    who,
                    (id, &name),
                    self.config.method_floor,
                )?;
                Ok(Response::Xattr { value })
            }
            Request::ListXattr { node } => {
                let id = self.node(who, node)?;
                Ok(Response::Xattrs { names: namespace::list_xattrs(&*self.store.snapshot()?, who, id)? })
            }
            Request::StatFs { node } => self.stat_fs(who, node),
            request @ (Request::MakeNode { .. }
            | Request::LinkNode { .. }
            | Request::RemoveNode { .. }
            | Request::RenameNode { .. }
            | Request::NameBatch { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }) => self.change(who, request, None, now_ms),
            request => self.open_nodes(who, request, now_ms, rng),
        }
    }

    /// Makes, moves and takes away names and extended attributes: once, if it has a turn.
    pub(super) fn change(
        &self,
        who: &Principal,
        request: Request,
        asked: Option<&Asked>,
        now_ms: u64,
    ) -> Result<Response> {
        if let Request::NameBatch { changes } = &request {
            let alone = || MdsError::refused(ErrorCode::Invalid, "only as a change that is done once");
            return self.change_names(who, changes, asked.ok_or_else(alone)?, now_ms);
        }
        let memo = asked.map(|asked| self.memo(&who.user, asked, now_ms)).transpose()?;
        let memo = memo.as_ref();
        let told = match request {
            Request::MakeNode { parent, name, what, mode, umask, owner, group, client_id } => {
                let any_group = self.has_directory();
                let (owner, group) = (owner.as_ref(), group.as_ref());
                let new =
                    NewNode { name: &name, what: &what, mode, umask, owner, group, any_group, number: None };
                return self.make_node(who, parent, &new, client_id, memo, now_ms);
            }
            Request::LinkNode { node, parent, name } => {
                let (id, parent) = (self.node(who, node)?, self.node(who, parent)?);
                self.update(|tx| {
                    once::answer(tx, memo, |tx| {
                        let stat = namespace::link_node(tx, who, id, (parent, &name), now_ms)?;
                        Ok(Response::Stat { stat })
                    })
                })?
            }
            Request::RemoveNode { parent, name, directory } => {
                let place = (self.node(who, parent)?, &name);
                self.with_unlink_context(now_ms, |tx, ending| {
                    once::answer(tx, memo, |tx| {
                        let stat = namespace::remove_node(tx, who, place, directory, ending)?;
                        Ok(Response::Stat { stat })
                    })
                })?
            }
            Request::RenameNode { from_parent, from, to_parent, to, mode } => {
                let (from_parent, to_parent) = (self.node(who, from_parent)?, self.node(who, to_parent)?);
                let way = RenameParams { from_parent, from: &from, to_parent, to: &to, mode };
                self.with_unlink_context(now_ms, |tx, ending| {
                    once::answer(tx, memo, |tx| {
                        let (moved, other) = namespace::rename_node(tx, who, &way, ending)?;
                        Ok(Response::Renamed { moved, other })
                    })
                })?
            }
            Request::SetXattr { node, name, value, mode } => {
                let id = self.node(who, node)?;
                let (what, any_group) = ((&name, &value, mode), self.has_directory());
                self.update(|tx| {
                    once::answer(tx, memo, |tx| {
                        namespace::set_xattr(tx, who, id, what, any_group, now_ms)?;
                        Ok(Response::Done {})
                    })
                })?
            }
            Request::RemoveXattr { node, name } => {
                let id = self.node(who, node)?;
                self.update(|tx| {
                    once::answer(tx, memo, |tx| {
                        namespace::remove_xattr(tx, who, id, &name, now_ms)?;
                        Ok(Response::Done {})
                    })
                })?
            }
            _ => return Err(MdsError::refused(ErrorCode::Invalid, "not a change of names")),
        };
        let left = match &told.response {
            Response::Stat { stat } | Response::Renamed { other: Some(stat), .. } => Some(stat),
            _ => None,
        };
        if let Some(gone) = left.filter(|left| left.kind == FileKind::Directory && left.links == 0) {
            // Who was ahead in it, if anybody, did this.
            self.leases.gone(gone.inode, now_ms);
        }
        Ok(told.response)
    }

    /// What holders ask for.
    fn open_nodes(
        &self,
        who: &Principal,
        request: Request,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        match request {
            Request::OpenNode { node, access, method, client_id, reclaim } => {
                let (id, issuing) = (self.node(who, node)?, &self.issuing());
                let method = self.method(method);
                let opening = Opening { issuing, who, id, held: Held::of(access), method };
                self.open_node(&opening, client_id, reclaim, now_ms, rng)
            }
            Request::Allocate { node, size_hint, method, client_id } => {
                let (id, issuing) = (self.node(who, node)?, &self.issuing());
                let held = self.may_write(who, id, client_id, now_ms)?;
                let opening = Opening { issuing, who, id, held, method: self.method(method) };
                self.allocate(&opening, client_id, size_hint, now_ms, rng)
            }
            Request::Written { node, size_at_least, mtime_ns, generation, made, fit, client_id } => {
                let id = self.node(who, node)?;
                self.may_write(who, id, client_id, now_ms)?;
                let writing = WriteReport { size_at_least, mtime_ns, generation, made, fit };
                let due_ms = self.reap_due(now_ms);
                let written = self.update(|tx| namespace::written(tx, who, id, &writing, due_ms, now_ms));
                let (stat, over) = self.clearing(written)?;
                if let Some(error) = over {
                    // There is something to clear.
                    self.clears_changed.store(true, Ordering::Release);
                    return Err(error);
                }
                Ok(Response::Stat { stat })
            }
            Request::CloseNode { node, client_id } => {
                let id = self.node(who, node)?;
                self.release(id, &(who.user.clone(), client_id), now_ms)?;
                self.let_go(id, now_ms)?;
                let (held, until_ms) = self.holds.keep(&who.user, client_id, now_ms);
                Ok(Response::Kept { held, until_ms })
            }
            Request::KeepNodes { client_id } => {
                let (held, until_ms) = self.holds.keep(&who.user, client_id, now_ms);
                Ok(Response::Kept { held, until_ms })
            }
            Request::EndClient { client_id } => {
                self.end_client(&(who.user.clone(), client_id), now_ms)?;
                Ok(Response::Done {})
            }
            request @ (Request::LockNode { .. } | Request::UnlockNode { .. }) => {
                self.lock_nodes(who, request, now_ms)
            }
            Request::Recalls { client_id, epoch, known, wait_ms: _ } => {
                self.recalls(who, client_id, (epoch, known), now_ms, rng)
            }
            Request::DelegateDir { directory, client_id, numbers } => {
                self.lead_names(who, directory, client_id, numbers, now_ms)
            }
            Request::LeaseNode { node, client_id, kind } => {
                self.lease_node(who, node, client_id, kind, now_ms)
            }
            Request::ReturnLease { inode, client_id, number } => {
                let by = (who.user.clone(), client_id);
                self.is_not_ahead(inode, &by, number)?;
                self.leases.give_back(inode, &by, Some(number), now_ms);
                Ok(Response::Done {})
            }
            _ => Err(MdsError::refused(ErrorCode::Invalid, "not a request about nodes")),
        }
    }

    fn make_node(
        &self,
        who: &Principal,
        parent: Node,
        new: &NewNode<'_>,
        client_id: Option<ClientId>,
        memo: Option<&Memo<'_>>,
        now_ms: u64,
    ) -> Result<Response> {
        let parent = self.node(who, parent)?;
        let leads = *new.what == NodeKind::Directory;
        if client_id.is_some() && !leads && *new.what != NodeKind::File {
            return Err(MdsError::refused(ErrorCode::Invalid, "only a file is held open"));
        }
        // What a maker holds it for is asked anew by a revocation, before or after this.
        let _issuing = self.issuing();
        if let Some(client_id) = client_id.filter(|_| !leads) {
            self.register_client(&who.user, client_id, now_ms)?;
        }
        let Told { response, now } = self.update(|tx| {
            once::answer(tx, memo, |tx| {
                let stat = namespace::make_node(tx, who, parent, new, now_ms)?;
                Ok(Response::Stat { stat })
            })
        })?;
        let response = match (client_id, response) {
            (Some(client_id), Response::Stat { stat }) if leads && now && !self.config.shared => {
                return self.lease_made(who, client_id, stat, now_ms);
            }
            (_, response) => response,
        };
        if let (Some(client_id), Response::Stat { stat }) = (client_id.filter(|_| !leads), &response) {
            // Much may have become of it since it was made: asked for again, it is held as by who opens it again.
            let own = || -> Result<bool> {
                Ok(namespace::node(&*self.store.snapshot()?, stat.inode)
                    .is_ok_and(|file| file.owner == who.user))
            };
            let held = if now || own()? { Held::of(Access::Update) } else { Held::default() };
            self.holds.hold(&who.user, client_id, stat.inode, held, now_ms)?;
            let id = stat.inode;
            if now && let Some(lease) = self.lease(who, client_id, id, (LeaseKind::Write, false), now_ms)? {
                // As it is with the lease held.
                let stat = namespace::node(&*self.store.snapshot()?, id)?.stat(id);
                return Ok(Response::Made { stat, lease });
            }
        }
        Ok(response)
    }

    /// What somebody may do with a file that he wants to write to: what he holds it for, or what its mode says.
    pub(super) fn may_write(
        &self,
        who: &Principal,
        id: InodeId,
        client_id: ClientId,
        now_ms: u64,
    ) -> Result<Held> {
        self.not_fenced(id, &(who.user.clone(), client_id), false)?;
        let held = self.holds.held(&who.user, client_id, id, now_ms);
        if held.writes {
            return Ok(held);
        }
        let file = namespace::node(&*self.store.snapshot()?, id)?;
        who.needs(AccessRight::Write, &file, "node")?;
        let reads = who.needs_all([AccessRight::Read, AccessRight::Write], &file, "node").is_ok();
        Ok(Held { reads, writes: true })
    }

    fn open_node(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        reclaim: bool,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let &Opening { who, id, held, .. } = opening;
        // Asked first: one that comes back after its time holds nothing any more.
        let before = self.holds.held(&who.user, client_id, id, now_ms);
        self.register_client(&who.user, client_id, now_ms)?;
        self.holds.begin(&who.user, client_id, id, now_ms)?;
        let opened = self.opened(opening, client_id, (before, reclaim), now_ms, rng);
        match opened {
            Ok(mut node) => {
                node.held_until_ms = self.holds.opened(&who.user, client_id, id, held, now_ms)?;
                Ok(Response::NodeOpened { node })
            }
            Err(error) => {
                if self.holds.not_opened(&who.user, client_id, id) {
                    self.let_go(id, now_ms)?;
                }
                Err(error)
            }
        }
    }

    fn opened(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        (before, reclaim): (Held, bool),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<OpenedNode> {
        let &Opening { who, id, held, .. } = opening;
        let file = namespace::node(&*self.store.snapshot()?, id)?;
        namespace::need_file(&file, "node")?;
        let may_reclaim = reclaim && file.owner == who.user;
        if !before.includes(held) && !may_reclaim {
            who.needs_all(AccessRight::to(held.reads, held.writes), &file, "node")?;
        }
        let by = (who.user.clone(), client_id);
        if held.writes {
            self.not_fenced(id, &by, !reclaim)?;
        }
        if reclaim {
            // What a server before this one gave him is not known.
            self.holds.writes(&who.user, client_id, id);
        }
        let lease = self.lease_to_open(opening, client_id, reclaim, now_ms)?;
        let mut granted = || {
            // As it is with the lease held.
            let file = namespace::node(&*self.store.snapshot()?, id)?;
            self.grant(opening, client_id, (file, IssueKind::Open), now_ms, rng)
        };
        match (granted(), lease) {
            (Ok(node), lease) => Ok(OpenedNode { lease: lease.map(|(lease, _)| lease), ..node }),
            (Err(error), Some((lease, true))) => {
                // Nobody is told of it.
                self.leases.give_back(id, &by, Some(lease.number), now_ms);
                Err(error)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Whoever has a lease that this open is in the way of gives it back; gives one to who opens, and says whether it is new.
    fn lease_to_open(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        reclaim: bool,
        now_ms: u64,
    ) -> Result<Option<(NodeLease, bool)>> {
        let &Opening { who, id, held, .. } = opening;
        let by = (who.user.clone(), client_id);
        // Who is given leases asks for one before it writes.
        let writes = held.writes && !self.leases.is_led(&by, now_ms);
        if writes {
            self.leases.bar(id, now_ms.saturating_add(BARRED_MS));
        }
        let what = if writes { Use::Change } else { Use::Read };
        self.make_room(id, Some(&by), what, reclaim, now_ms)?;
        let known = self.leases.of(id).into_iter().any(|(one, _)| one == by);
        let first = if held.writes { LeaseKind::Write } else { LeaseKind::Read };
        let lease = match self.lease(who, client_id, id, (first, false), now_ms)? {
            None if held.writes => self.lease(who, client_id, id, (LeaseKind::Read, false), now_ms)?,
            lease => lease,
        };
        Ok(lease.map(|lease| (lease, !known)))
    }

    /// Grants for what somebody may do with a file that has objects.
    fn grant(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        (mut file, kind): (Inode, IssueKind),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<OpenedNode> {
        let &Opening { issuing, who, id, held, method } = opening;
        let until_ms = now_ms.saturating_add(self.config.grant_lifetime_ms());
        if held.writes {
            self.clearing(namespace::check_clear(&file))?;
        }
        if held.writes && !file.objects_exist && file.layout.is_some() {
            // Nobody sees that.
            file = as_server(|| self.update(|tx| namespace::note_create_grant(tx, id, until_ms)))?;
        }
        if held.writes {
            self.holds.writes(&who.user, client_id, id);
        }
        let grants = match &file.layout {
            Some(layout) => {
                let terms = (method, rights(held, !file.objects_exist), until_ms);
                self.issue(issuing, who, &IssueParams::whole(kind, id, layout, terms), now_ms, rng)?.0
            }
            None => Vec::new(),
        };
        if held.writes {
            // Who was fenced meanwhile is not told what may have the new tags already.
            self.not_fenced(id, &(who.user.clone(), client_id), kind == IssueKind::Open)?;
        }
        if held.writes && kind == IssueKind::Create {
            self.check_lengths_later(Written::File(id), &who.user, 0, until_ms)?;
        }
        let (stat, made, sparse) = (file.stat(id), file.objects_exist, file.sparse);
        Ok(OpenedNode { stat, layout: file.layout, grants, made, sparse, held_until_ms: 0, lease: None })
    }

    fn allocate(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        size_hint: Option<u64>,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        if let Some(size) = size_hint {
            namespace::check_size(size)?;
        }
        let pool = self.devices.pool();
        let until_ms = now_ms.saturating_add(self.config.grant_lifetime_ms());
        let id = opening.id;
        let allocated = self.update(|tx| {
            namespace::allocate(tx, id, until_ms, |tx| {
                let place = |tx: &mut dyn Transaction, size_hint| {
                    self.allocate_layout(tx, id, size_hint, (&pool, now_ms), "node")
                };
                match place(tx, size_hint) {
                    // The file may have holes, which take no space: only the devices know whether
                    // it fits.
                    Err(MdsError::Refused(failure)) if failure.code == ErrorCode::NoSpace => place(tx, None),
                    placed => placed,
                }
            })
        });
        let (file, _) = self.clearing(allocated)?;
        let mut node = self.grant(opening, client_id, (file, IssueKind::Create), now_ms, rng)?;
        let held = self.holds.has(&opening.who.user, client_id, id, now_ms);
        node.held_until_ms = if held { now_ms + crate::holds::HOLD_MS } else { 0 };
        Ok(Response::NodeOpened { node })
    }

    /// Fresh grants for what a holder has open.
    pub(super) fn renew_node(
        &self,
        issuing: &IssueGuard<'_>,
        who: &Principal,
        (node, access, client_id): (Node, Access, ClientId),
        method: Method,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let id = self.node(who, node)?;
        let opening = Opening { issuing, who, id, held: Held::of(access), method };
        let before = self.holds.held(&who.user, client_id, id, now_ms);
        if opening.held.writes {
            self.not_fenced(id, &(who.user.clone(), client_id), false)?;
        }
        let file = namespace::node(&*self.store.snapshot()?, id)?;
        if !before.includes(opening.held) {
            namespace::check_file(who, &file, access, "node")?;
        }
        let cut = || MdsError::refused(ErrorCode::Stale, "the file was cut meanwhile");
        if file.layout.is_none() {
            return Err(cut());
        }
        let node = self.grant(&opening, client_id, (file, IssueKind::Renew), now_ms, rng)?;
        // Looked at anew when the objects are still to be made: it may have been cut since.
        let layout = node.layout.ok_or_else(cut)?;
        Ok(Response::Grants { layout, generation: node.stat.generation, grants: node.grants })
    }

    /// Somebody holds it no longer: what nobody holds and nothing leads to goes now.
    pub(crate) fn let_go(&self, id: InodeId, now_ms: u64) -> Result<()> {
        if self.holds.is_held(id) {
            return Ok(());
        }
        let left = match namespace::node(&*self.store.snapshot()?, id) {
            Ok(node) => node.links,
            // It went when its last name did.
            Err(_) => return Ok(()),
        };
        if left == 0 {
            self.with_unlink_context(now_ms, |tx, ending| namespace::close(tx, id, ending))?;
        }
        Ok(())
    }

    /// Whoever waits for objects to be cleared has that begin now.
    pub(super) fn clearing<T>(&self, done: Result<T>) -> Result<T> {
        if matches!(&done, Err(MdsError::Refused(Failure { code: ErrorCode::Busy, .. }))) {
            self.clears_changed.store(true, Ordering::Release);
        }
        done
    }
}

/// What a grant allows with objects; `creates`: they may not be there yet.
fn rights(held: Held, creates: bool) -> Permissions {
    let reads = if held.reads { READ_RIGHTS } else { Permissions::NONE };
    let writes = if held.writes { WRITE_RIGHTS } else { Permissions::NONE };
    let makes = if held.writes && creates { Permissions::CREATE } else { Permissions::NONE };
    reads.union(writes).union(makes)
}

/// What a request about a node is about, for the audit log; reads are not logged, nor is that somebody is still there.
pub(super) fn subject(request: &Request) -> Option<String> {
    let place = |parent: &Node, name: &Name| format!("node {}/{name}", parent.inode.0);
    let one = |node: &Node| Some(format!("node {}", node.inode.0));
    let of = |node: &Node, name: &sealstone_mds_protocol::XattrName| {
        Some(format!("node {} attribute {}", node.inode.0, name.as_bytes().escape_ascii()))
    };
    match request {
        Request::MakeNode { parent, name, .. } | Request::RemoveNode { parent, name, .. } => {
            Some(place(parent, name))
        }
        Request::LinkNode { node, parent, name } => {
            Some(format!("node {} -> {}", node.inode.0, place(parent, name)))
        }
        Request::RenameNode { from_parent, from, to_parent, to, .. } => {
            Some(format!("{} -> {}", place(from_parent, from), place(to_parent, to)))
        }
        Request::SetNode { node, .. }
        | Request::OpenNode { node, .. }
        | Request::Allocate { node, .. }
        | Request::Written { node, .. } => one(node),
        Request::SetXattr { node, name, .. } | Request::RemoveXattr { node, name } => of(node, name),
        _ => None,
    }
}
