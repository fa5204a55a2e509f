//! Requests that address nodes.
//!
//! Contract: a file is marked open before it is read, so that it is not removed in between; a
//! refused request leaves no file open.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, Failure, FileKind, InodeId, IssueKind, LeaseKind, Method, Name, Node,
    NodeKind, NodeLease, OpenedNode, Request, Response,
};
use sealstone_osd::Permissions;

use super::delegate::{IssueGuard, IssueParams};
use crate::access::{AccessRight, Principal};
use crate::devices::{READ_RIGHTS, WRITE_RIGHTS};
use crate::entropy::Entropy;
use crate::error::{MdsError, Result};
use crate::leases::{GRANT_BLOCK_MS, LeaseAccess};
use crate::lengths::table::LengthTarget;
use crate::namespace::{self, NewNode, RenameParams, UnlinkContext, WriteReport};
use crate::open_files::OpenModes;
use crate::records::Inode;
use crate::replay_cache::{self, OnceOutcome, ReplayEntry, ReplayKey};
use crate::request_context::as_server;
use crate::server::Mds;
use crate::store::Transaction;

/// An open request: the caller, the file and the access.
struct Opening<'a> {
    issuing: &'a IssueGuard<'a>,
    principal: &'a Principal,
    id: InodeId,
    modes: OpenModes,
    method: Method,
}

impl Mds {
    /// Runs changes that may remove nodes in one transaction.
    pub(super) fn with_unlink_context<T>(
        &self,
        now_ms: u64,
        mut work: impl FnMut(&mut dyn Transaction, &UnlinkContext<'_>) -> Result<T>,
    ) -> Result<T> {
        let removing = self.open_files.removing(self.config.shared, now_ms);
        let ending = UnlinkContext { reap_due_ms: self.reap_due(now_ms), now_ms, removing: &removing };
        self.update(|tx| work(tx, &ending))
    }

    pub(super) fn nodes(
        &self,
        principal: &Principal,
        request: Request,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        match request {
            Request::Lookup { parent, name, client_id } => {
                let parent = self.proof_key.verify(principal, parent)?;
                match client_id {
                    Some(client_id) => {
                        self.look_up_with_leases(principal, (parent, &name), client_id, now_ms)
                    }
                    None => {
                        let stat = namespace::look_up(&*self.store.snapshot()?, principal, parent, &name)?;
                        Ok(Response::Stat { stat })
                    }
                }
            }
            Request::GetNode { node } => {
                let id = self.proof_key.verify(principal, node)?;
                Ok(Response::Stat { stat: namespace::node(&*self.store.snapshot()?, id)?.stat(id) })
            }
            Request::ReadNodes { directory, after, limit, client_id } => {
                let id = self.proof_key.verify(principal, directory)?;
                self.list_with_lease(principal, (id, after.as_ref(), limit), client_id, now_ms)
            }
            Request::ReadLink { node } => {
                let id = self.proof_key.verify(principal, node)?;
                Ok(Response::Target { target: namespace::read_link(&*self.store.snapshot()?, id)? })
            }
            Request::SetNode { node, change, client_id, through } => {
                let id = self.proof_key.verify(principal, node)?;
                if let (Some(client_id), Some(_)) = (client_id, change.size) {
                    self.check_not_fenced(id, &(principal.user.clone(), client_id), false)?;
                }
                let client_id = client_id.filter(|_| through);
                let modes = client_id
                    .is_some_and(|one| self.open_files.open_modes(&principal.user, one, id, now_ms).writes);
                let terms = (modes, self.has_directory());
                let set = self.with_unlink_context(now_ms, |tx, ending| {
                    namespace::set_node(tx, principal, id, &change, terms, ending)
                });
                let stat = self.clearing(set)?;
                if change.size.is_some() {
                    // There may be objects to clear or remove.
                    self.clears_changed.store(true, Ordering::Release);
                }
                Ok(Response::Stat { stat })
            }
            Request::GetXattr { node, name } => {
                let id = self.proof_key.verify(principal, node)?;
                let value = namespace::get_xattr(
                    &*self.store.snapshot()?,
                    principal,
                    (id, &name),
                    self.config.method_floor,
                )?;
                Ok(Response::Xattr { value })
            }
            Request::ListXattr { node } => {
                let id = self.proof_key.verify(principal, node)?;
                Ok(Response::Xattrs {
                    names: namespace::list_xattrs(&*self.store.snapshot()?, principal, id)?,
                })
            }
            Request::StatFs { node } => self.stat_fs(principal, node),
            request @ (Request::MakeNode { .. }
            | Request::LinkNode { .. }
            | Request::RemoveNode { .. }
            | Request::RenameNode { .. }
            | Request::NameBatch { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }) => self.change(principal, request, None, now_ms),
            request => self.open_nodes(principal, request, now_ms, rng),
        }
    }

    /// Changes names and extended attributes; exactly once, if it has a request id.
    pub(super) fn change(
        &self,
        principal: &Principal,
        request: Request,
        replay_key: Option<&ReplayKey>,
        now_ms: u64,
    ) -> Result<Response> {
        if let Request::NameBatch { changes } = &request {
            let alone = || MdsError::refused(ErrorCode::Invalid, "allowed only inside Once");
            return self.apply_name_batch(principal, changes, replay_key.ok_or_else(alone)?, now_ms);
        }
        let replay_entry = replay_key
            .map(|replay_key| self.replay_cache.entry(&principal.user, replay_key, now_ms))
            .transpose()?;
        let replay_entry = replay_entry.as_ref();
        let answer = match request {
            Request::MakeNode { parent, name, what, mode, umask, owner, group, client_id } => {
                let any_group = self.has_directory();
                let (owner, group) = (owner.as_ref(), group.as_ref());
                let new =
                    NewNode { name: &name, what: &what, mode, umask, owner, group, any_group, number: None };
                return self.make_node(principal, parent, &new, client_id, replay_entry, now_ms);
            }
            Request::LinkNode { node, parent, name } => {
                let (id, parent) =
                    (self.proof_key.verify(principal, node)?, self.proof_key.verify(principal, parent)?);
                self.update(|tx| {
                    replay_cache::answer(tx, replay_entry, |tx| {
                        let stat = namespace::link_node(tx, principal, id, (parent, &name), now_ms)?;
                        Ok(Response::Stat { stat })
                    })
                })?
            }
            Request::RemoveNode { parent, name, directory } => {
                let place = (self.proof_key.verify(principal, parent)?, &name);
                self.with_unlink_context(now_ms, |tx, ending| {
                    replay_cache::answer(tx, replay_entry, |tx| {
                        let stat = namespace::remove_node(tx, principal, place, directory, ending)?;
                        Ok(Response::Stat { stat })
                    })
                })?
            }
            Request::RenameNode { from_parent, from, to_parent, to, mode } => {
                let (from_parent, to_parent) = (
                    self.proof_key.verify(principal, from_parent)?,
                    self.proof_key.verify(principal, to_parent)?,
                );
                let way = RenameParams { from_parent, from: &from, to_parent, to: &to, mode };
                self.with_unlink_context(now_ms, |tx, ending| {
                    replay_cache::answer(tx, replay_entry, |tx| {
                        let (moved, other) = namespace::rename_node(tx, principal, &way, ending)?;
                        Ok(Response::Renamed { moved, other })
                    })
                })?
            }
            Request::SetXattr { node, name, value, mode } => {
                let id = self.proof_key.verify(principal, node)?;
                let (what, any_group) = ((&name, &value, mode), self.has_directory());
                self.update(|tx| {
                    replay_cache::answer(tx, replay_entry, |tx| {
                        namespace::set_xattr(tx, principal, id, what, any_group, now_ms)?;
                        Ok(Response::Done {})
                    })
                })?
            }
            Request::RemoveXattr { node, name } => {
                let id = self.proof_key.verify(principal, node)?;
                self.update(|tx| {
                    replay_cache::answer(tx, replay_entry, |tx| {
                        namespace::remove_xattr(tx, principal, id, &name, now_ms)?;
                        Ok(Response::Done {})
                    })
                })?
            }
            _ => return Err(MdsError::refused(ErrorCode::Invalid, "not a request that changes names")),
        };
        let left = match &answer.response {
            Response::Stat { stat } | Response::Renamed { other: Some(stat), .. } => Some(stat),
            _ => None,
        };
        if let Some(removed) = left.filter(|left| left.kind == FileKind::Directory && left.links == 0) {
            // A delegation on the directory was already recalled.
            self.leases.drop_directory(removed.inode, now_ms);
        }
        Ok(answer.response)
    }

    /// Handles requests of clients about open files and leases.
    fn open_nodes(
        &self,
        principal: &Principal,
        request: Request,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        match request {
            Request::OpenNode { node, access, method, client_id, reclaim } => {
                check_node_access(access)?;
                let (id, issuing) = (self.proof_key.verify(principal, node)?, &self.issuing());
                let method = self.method(method);
                let opening = Opening { issuing, principal, id, modes: OpenModes::of(access), method };
                self.open_node(&opening, client_id, reclaim, now_ms, rng)
            }
            Request::Allocate { node, size_hint, method, client_id } => {
                let (id, issuing) = (self.proof_key.verify(principal, node)?, &self.issuing());
                let modes = self.may_write(principal, id, client_id, now_ms)?;
                let opening = Opening { issuing, principal, id, modes, method: self.method(method) };
                self.allocate(&opening, client_id, size_hint, now_ms, rng)
            }
            Request::Written { node, size_at_least, mtime_ns, generation, made, fit, client_id } => {
                let id = self.proof_key.verify(principal, node)?;
                self.may_write(principal, id, client_id, now_ms)?;
                let writing = WriteReport { size_at_least, mtime_ns, generation, made, fit };
                let due_ms = self.reap_due(now_ms);
                let written =
                    self.update(|tx| namespace::written(tx, principal, id, &writing, due_ms, now_ms));
                let (stat, over) = self.clearing(written)?;
                if let Some(error) = over {
                    // There are objects to clear.
                    self.clears_changed.store(true, Ordering::Release);
                    return Err(error);
                }
                Ok(Response::Stat { stat })
            }
            Request::CloseNode { node, client_id } => {
                let id = self.proof_key.verify(principal, node)?;
                self.release(id, &(principal.user.clone(), client_id), now_ms)?;
                self.remove_if_unused(id, now_ms)?;
                let (held, until_ms) = self.open_files.keep_alive(&principal.user, client_id, now_ms);
                Ok(Response::Kept { held, until_ms })
            }
            Request::KeepNodes { client_id } => {
                let (held, until_ms) = self.open_files.keep_alive(&principal.user, client_id, now_ms);
                Ok(Response::Kept { held, until_ms })
            }
            Request::EndClient { client_id } => {
                self.end_client(&(principal.user.clone(), client_id), now_ms)?;
                Ok(Response::Done {})
            }
            request @ (Request::LockNode { .. } | Request::UnlockNode { .. }) => {
                self.lock_nodes(principal, request, now_ms)
            }
            Request::Recalls { client_id, epoch, known, wait_ms: _ } => {
                self.recalls(principal, client_id, (epoch, known), now_ms, rng)
            }
            Request::DelegateDir { directory, client_id, numbers } => {
                self.delegate_dir(principal, directory, client_id, numbers, now_ms)
            }
            Request::LeaseNode { node, client_id, kind } => {
                self.lease_node(principal, node, client_id, kind, now_ms)
            }
            Request::ReturnLease { inode, client_id, number } => {
                let client = (principal.user.clone(), client_id);
                self.release_delegation(inode, &client, number)?;
                self.leases.return_lease(inode, &client, Some(number), now_ms);
                Ok(Response::Done {})
            }
            _ => Err(MdsError::refused(ErrorCode::Invalid, "not a request about nodes")),
        }
    }

    fn make_node(
        &self,
        principal: &Principal,
        parent: Node,
        new: &NewNode<'_>,
        client_id: Option<ClientId>,
        replay_entry: Option<&ReplayEntry<'_>>,
        now_ms: u64,
    ) -> Result<Response> {
        let parent = self.proof_key.verify(principal, parent)?;
        let leads = *new.what == NodeKind::Directory;
        if client_id.is_some() && !leads && *new.what != NodeKind::File {
            return Err(MdsError::refused(ErrorCode::Invalid, "only files can be opened"));
        }
        // A concurrent revocation drops cached access before or after this, not between.
        let _issuing = self.issuing();
        if let Some(client_id) = client_id.filter(|_| !leads) {
            self.register_client(&principal.user, client_id, now_ms)?;
        }
        let OnceOutcome { response, now } = self.update(|tx| {
            replay_cache::answer(tx, replay_entry, |tx| {
                let stat = namespace::make_node(tx, principal, parent, new, now_ms)?;
                Ok(Response::Stat { stat })
            })
        })?;
        let response = match (client_id, response) {
            (Some(client_id), Response::Stat { stat }) if leads && now && !self.config.shared => {
                return self.lease_created(principal, client_id, stat, now_ms);
            }
            (_, response) => response,
        };
        if let (Some(client_id), Response::Stat { stat }) = (client_id.filter(|_| !leads), &response) {
            // A repeated request: the file may have changed since, so it is opened like any other.
            let own = || -> Result<bool> {
                Ok(namespace::node(&*self.store.snapshot()?, stat.inode)
                    .is_ok_and(|file| file.owner == principal.user))
            };
            let modes = if now || own()? { OpenModes::of(Access::Update) } else { OpenModes::default() };
            self.open_files.open(&principal.user, client_id, stat.inode, modes, now_ms)?;
            let id = stat.inode;
            if now
                && let Some(lease) =
                    self.lease(principal, client_id, id, (LeaseKind::Write, false), now_ms)?
            {
                // Read while the lease is held.
                let stat = namespace::node(&*self.store.snapshot()?, id)?.stat(id);
                return Ok(Response::Made { stat, lease });
            }
        }
        Ok(response)
    }

    /// Returns the access to write to a file: from its open modes, or from its mode.
    pub(super) fn may_write(
        &self,
        principal: &Principal,
        id: InodeId,
        client_id: ClientId,
        now_ms: u64,
    ) -> Result<OpenModes> {
        self.check_not_fenced(id, &(principal.user.clone(), client_id), false)?;
        let modes = self.open_files.open_modes(&principal.user, client_id, id, now_ms);
        if modes.writes {
            return Ok(modes);
        }
        let file = namespace::node(&*self.store.snapshot()?, id)?;
        principal.needs(AccessRight::Write, &file, "node")?;
        let reads = principal.needs_all([AccessRight::Read, AccessRight::Write], &file, "node").is_ok();
        Ok(OpenModes { reads, writes: true })
    }

    fn open_node(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        reclaim: bool,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let &Opening { principal, id, modes, .. } = opening;
        // Checked first: an expired client has nothing open.
        let before = self.open_files.open_modes(&principal.user, client_id, id, now_ms);
        self.register_client(&principal.user, client_id, now_ms)?;
        self.open_files.begin_open(&principal.user, client_id, id, now_ms)?;
        let opened = self.opened(opening, client_id, (before, reclaim), now_ms, rng);
        match opened {
            Ok(mut node) => {
                node.held_until_ms =
                    self.open_files.end_open(&principal.user, client_id, id, modes, now_ms)?;
                Ok(Response::NodeOpened { node })
            }
            Err(error) => {
                if self.open_files.abort_open(&principal.user, client_id, id) {
                    self.remove_if_unused(id, now_ms)?;
                }
                Err(error)
            }
        }
    }

    fn opened(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        (before, reclaim): (OpenModes, bool),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<OpenedNode> {
        let &Opening { principal, id, modes, .. } = opening;
        let file = namespace::node(&*self.store.snapshot()?, id)?;
        namespace::need_file(&file, "node")?;
        let may_reclaim = reclaim && file.owner == principal.user;
        if !before.includes(modes) && !may_reclaim {
            principal.needs_all(AccessRight::to(modes.reads, modes.writes), &file, "node")?;
        }
        let client = (principal.user.clone(), client_id);
        if modes.writes {
            self.check_not_fenced(id, &client, !reclaim)?;
        }
        if reclaim {
            // Credentials from before the restart are not known.
            self.open_files.note_write_credential(&principal.user, client_id, id);
        }
        let lease = self.lease_to_open(opening, client_id, reclaim, now_ms)?;
        let mut granted = || {
            // Read while the lease is held.
            let file = namespace::node(&*self.store.snapshot()?, id)?;
            self.grant(opening, client_id, (file, IssueKind::Open), now_ms, rng)
        };
        match (granted(), lease) {
            (Ok(node), lease) => Ok(OpenedNode { lease: lease.map(|(lease, _)| lease), ..node }),
            (Err(error), Some((lease, true))) => {
                // The file was not returned to any client.
                self.leases.return_lease(id, &client, Some(lease.number), now_ms);
                Err(error)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Recalls leases that conflict with an open, and grants one to the opener; returns whether it
    /// is new.
    fn lease_to_open(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        reclaim: bool,
        now_ms: u64,
    ) -> Result<Option<(NodeLease, bool)>> {
        let &Opening { principal, id, modes, .. } = opening;
        let client = (principal.user.clone(), client_id);
        // A client with leases requests one before it writes.
        let writes = modes.writes && !self.leases.can_cache(&client, now_ms);
        if writes {
            self.leases.block_grants_until(id, now_ms.saturating_add(GRANT_BLOCK_MS));
        }
        let what = if writes { LeaseAccess::Change } else { LeaseAccess::Read };
        self.recall_conflicting(id, Some(&client), what, reclaim, now_ms)?;
        let known = self.leases.on_node(id).into_iter().any(|(one, _)| one == client);
        let first = if modes.writes { LeaseKind::Write } else { LeaseKind::Read };
        let lease = match self.lease(principal, client_id, id, (first, false), now_ms)? {
            None if modes.writes => self.lease(principal, client_id, id, (LeaseKind::Read, false), now_ms)?,
            lease => lease,
        };
        Ok(lease.map(|lease| (lease, !known)))
    }

    /// Issues credentials for an open file that has objects.
    fn grant(
        &self,
        opening: &Opening<'_>,
        client_id: ClientId,
        (mut file, kind): (Inode, IssueKind),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<OpenedNode> {
        let &Opening { issuing, principal, id, modes, method } = opening;
        let until_ms = now_ms.saturating_add(self.config.grant_lifetime_ms());
        if modes.writes {
            self.clearing(namespace::check_clear(&file))?;
        }
        if modes.writes && !file.objects_exist && file.layout.is_some() {
            // An internal change: no client caches it, so no lease is recalled.
            file = as_server(|| self.update(|tx| namespace::note_create_grant(tx, id, until_ms)))?;
        }
        if modes.writes {
            self.open_files.note_write_credential(&principal.user, client_id, id);
        }
        let grants = match &file.layout {
            Some(layout) => {
                let terms = (method, rights(modes, !file.objects_exist), until_ms);
                self.issue(issuing, principal, &IssueParams::whole(kind, id, layout, terms), now_ms, rng)?.0
            }
            None => Vec::new(),
        };
        if modes.writes {
            // A client that was fenced meanwhile must not get credentials with the new tags.
            self.check_not_fenced(id, &(principal.user.clone(), client_id), kind == IssueKind::Open)?;
        }
        if modes.writes && kind == IssueKind::Create {
            self.check_lengths_later(LengthTarget::File(id), &principal.user, until_ms)?;
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
        let is_open = self.open_files.has_open(&opening.principal.user, client_id, id, now_ms);
        node.held_until_ms = if is_open { now_ms + crate::open_files::CLIENT_TIMEOUT_MS } else { 0 };
        Ok(Response::NodeOpened { node })
    }

    /// Renews the credentials of an open file.
    pub(super) fn renew_node(
        &self,
        issuing: &IssueGuard<'_>,
        principal: &Principal,
        (node, access, client_id): (Node, Access, ClientId),
        method: Method,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        check_node_access(access)?;
        let id = self.proof_key.verify(principal, node)?;
        let opening = Opening { issuing, principal, id, modes: OpenModes::of(access), method };
        let before = self.open_files.open_modes(&principal.user, client_id, id, now_ms);
        if opening.modes.writes {
            self.check_not_fenced(id, &(principal.user.clone(), client_id), false)?;
        }
        let file = namespace::node(&*self.store.snapshot()?, id)?;
        if !before.includes(opening.modes) {
            namespace::check_file(principal, &file, access, "node")?;
        }
        let cut = || MdsError::refused(ErrorCode::Stale, "the file was truncated meanwhile");
        if file.layout.is_none() {
            return Err(cut());
        }
        let node = self.grant(&opening, client_id, (file, IssueKind::Renew), now_ms, rng)?;
        // Read again if the objects do not exist yet: the file may have been truncated.
        let layout = node.layout.ok_or_else(cut)?;
        Ok(Response::Grants { layout, generation: node.stat.generation, grants: node.grants })
    }

    /// Removes a file that no client has open and that has no name.
    pub(crate) fn remove_if_unused(&self, id: InodeId, now_ms: u64) -> Result<()> {
        if self.open_files.is_open(id) {
            return Ok(());
        }
        let left = match namespace::node(&*self.store.snapshot()?, id) {
            Ok(node) => node.links,
            // It was removed with its last name.
            Err(_) => return Ok(()),
        };
        if left == 0 {
            self.with_unlink_context(now_ms, |tx, ending| namespace::close(tx, id, ending))?;
        }
        Ok(())
    }

    /// Starts clearing if objects wait for it.
    pub(super) fn clearing<T>(&self, done: Result<T>) -> Result<T> {
        if matches!(&done, Err(MdsError::Refused(Failure { code: ErrorCode::Busy, .. }))) {
            self.clears_changed.store(true, Ordering::Release);
        }
        done
    }
}

/// Fails for an access that exists only for files opened by path.
fn check_node_access(access: Access) -> Result<()> {
    if access.is_of_nodes() { Ok(()) } else { Err(MdsError::refused(ErrorCode::Invalid, "access to a node")) }
}

/// Returns the permissions of a credential; `creates`: the objects may not exist yet.
fn rights(modes: OpenModes, creates: bool) -> Permissions {
    let reads = if modes.reads { READ_RIGHTS } else { Permissions::NONE };
    let writes = if modes.writes { WRITE_RIGHTS } else { Permissions::NONE };
    let makes = if modes.writes && creates { Permissions::CREATE } else { Permissions::NONE };
    reads.union(writes).union(makes)
}

/// Returns the subject of a node request for the audit log; reads and keep-alives are not logged.
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
