//! A file system of nodes: directories and files by inode number, as a mount needs them.
//!
//! Does: looks up, creates, renames and removes nodes. Opens files that many callers read and write
//! at any offset.
//! Does not: know FUSE, paths, or user ids of this machine.
//! Contract: close-to-open consistency: an open anywhere sees what was closed before.
//! [`File::sync`] returns when bytes and size are durable. Requests to an unavailable server or
//! device are retried for [`NodesOptions::timeout`].
//! Truth: docs/adr/0036-close-and-sync-of-files-in-place.md; docs/standards/mds/nodes.md §5.8.

mod append;
mod async_close;
mod async_close_table;
mod background;
mod cache_invalidator;
mod cached_attrs;
mod change;
mod dentry_cache;
mod dentry_table;
mod dirty;
mod durability;
mod errors;
mod file;
mod holes;
mod inode_state;
mod layout_state;
mod lease_manager;
mod lease_table;
mod leases;
mod list;
mod locks;
mod name_queue;
mod name_writeback;
mod open_inode;
mod read;
mod readahead;
mod request_slots;
mod send;
mod shared;
mod write_buffer;
mod xattrs;

use core::time::Duration;
use std::sync::Arc;

use sealstone_mds_protocol::{
    Access, ErrorCode, Failure, FileKind, GroupName, InodeId, LeaseKind, Name, NodeLease, Request, Response,
    Stat, UserName,
};
use sealstone_mds_protocol::{
    LinkTarget, Lock, LockKind, Node, NodeChange, NodeKind, OpenedNode, RenameMode,
};
use tokio::time::Instant;

pub use async_close_table::AsyncCloseGuard;
pub use cache_invalidator::CacheInvalidator;
pub use dentry_table::{CacheListing, ListEdition};
pub use file::File;
pub use holes::SeekTarget;
pub use shared::NodesOptions;

use crate::mds::MdsClient;
use crate::pool::DevicePool;
use crate::{Client, ClientError, Devices, Metadata};
use dentry_cache::LocalChangeGuard;
use dentry_table::Dentry;
use shared::Shared;

/// The result of creating a node.
struct CreatedNode {
    stat: Stat,
    lease: Option<NodeLease>,
    /// Whether the node may have been changed by this client before the answer arrived.
    may_be_outdated: bool,
}

/// A file system of nodes. Clones share all state.
pub struct Nodes<M = MdsClient, D = DevicePool> {
    shared: Arc<Shared<M, D>>,
}

impl<M, D> Clone for Nodes<M, D> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

/// Capacity and number of nodes of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemStat {
    /// Total bytes of all devices.
    pub total: u64,
    /// Bytes used on the devices.
    pub used: u64,
    /// Number of inodes in use.
    pub nodes: u64,
    /// Number of inodes left.
    pub nodes_free: u64,
}

/// Parameters of a node to be created.
#[derive(Clone, Debug)]
pub struct CreateParams {
    /// The kind of node.
    pub what: NodeKind,
    /// Permission bits.
    pub mode: u16,
    /// Permission bits to remove, unless the directory has a default access control list.
    pub umask: u16,
    /// The owner, if it is not the session's own user (administrators only).
    pub owner: Option<UserName>,
    /// The group, if it is not the default one.
    pub group: Option<GroupName>,
}

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Creates a file system over the connections of `client`. Must be called inside a tokio
    /// runtime, which then runs the background tasks.
    #[must_use]
    pub fn new(client: &Client<M, D>, options: NodesOptions) -> Self {
        let shared = Arc::new(Shared::new(client.core.clone(), options));
        background::start(&shared);
        Self { shared }
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &NodesOptions {
        &self.shared.options
    }

    /// Runs a task on the runtime of this file system.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.runtime.spawn(task);
    }

    /// Enters the runtime: while the guard lives, the calling thread may start futures that need
    /// it.
    pub fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.shared.runtime.enter()
    }

    /// Resolves an absolute path without following symbolic links.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotADirectory` or `Denied` among others.
    pub async fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Stat, ClientError> {
        let path = crate::client::file_path(path)?;
        let mut stat = self.node(Node::ROOT).await?;
        for name in path.names() {
            stat = self.lookup(stat.node(), &name).await?;
        }
        Ok(stat)
    }

    /// Looks up a name in a directory.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others.
    pub async fn lookup(&self, parent: Node, name: &Name) -> Result<Stat, ClientError> {
        let not_found = || Failure::new(ErrorCode::NotFound, &name.shown());
        match self.cached_dentry(parent.inode, name) {
            Dentry::Present(node, _) => {
                if let Some(stat) = self.cached_stat(node.inode) {
                    return Ok(stat);
                }
            }
            Dentry::Absent => return Err(not_found().into()),
            Dentry::NotCached => {}
        }
        let (snapshot, answer) = loop {
            let snapshot = self.shared.dentries.with(|table| table.snapshot(parent.inode, Instant::now()));
            let request =
                Request::Lookup { parent, name: name.clone(), client_id: self.shared.client_id_for_leases() };
            let answer = self.shared.call(&request).await?;
            // The client may have changed this node under another name, and this lookup did not
            // flush that change first.
            let found = match &answer {
                Response::Stat { stat } | Response::LookedUp { stat: Some(stat), .. } => Some(stat.inode),
                _ => None,
            };
            match found.and_then(|inode| self.shared.name_queue.flush_upto(&[inode])) {
                None => break (snapshot, answer),
                upto => self.shared.wait_acked(upto).await?,
            }
        };
        match answer {
            Response::Stat { stat } => Ok(self.overlay(stat)),
            Response::LookedUp { stat, directory, lease } => {
                if let Some(directory) = directory {
                    self.shared.record_grant(parent.inode, directory);
                    let found = (name, stat.as_ref().map_or(Dentry::Absent, Dentry::of));
                    let lists_directory = self
                        .shared
                        .dentries
                        .with(|table| table.record_lookup(&snapshot, &directory, found, Instant::now()));
                    if lists_directory {
                        self.list_in_background(parent);
                    }
                }
                if let (Some(stat), Some(lease)) = (&stat, lease) {
                    self.shared.record_grant(stat.inode, lease);
                    self.shared.dentries.with(|table| table.record_attributes(&snapshot, &lease, stat));
                }
                stat.map(|stat| self.overlay(stat)).ok_or_else(|| not_found().into())
            }
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the cached dentry of a name, if a valid lease covers the directory.
    fn cached_dentry(&self, directory: InodeId, name: &Name) -> Dentry {
        match self.shared.valid_lease(directory) {
            Some(lease) => {
                self.shared.dentries.with(|table| table.lookup(directory, &lease, name, Instant::now()))
            }
            None => Dentry::NotCached,
        }
    }

    /// Returns the cached attributes of a node, if a valid lease covers them.
    fn cached_stat(&self, inode: InodeId) -> Option<Stat> {
        if let Some(open_inode) = self.shared.open_inode(inode) {
            return open_inode.cached_stat().map(|(stat, _)| stat);
        }
        if let Some(directory) = self.shared.dentries.with(|table| table.created_in(inode)) {
            let lease = self.shared.valid_lease(directory)?;
            return self.shared.dentries.with(|table| table.created_node(inode, (directory, &lease)));
        }
        let lease = self.shared.valid_lease(inode)?;
        self.shared.dentries.with(|table| table.cached_node(inode, &lease))
    }

    /// Returns the current attributes of a node.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others.
    pub async fn node(&self, node: Node) -> Result<Stat, ClientError> {
        match self.shared.open_inode(node.inode) {
            Some(open_inode) => open_inode.stat().await,
            None => match self.cached_stat(node.inode) {
                Some(stat) => Ok(stat),
                None => self.shared.call_stat(&Request::GetNode { node }).await,
            },
        }
    }

    /// Returns how long the attributes of a node may be cached.
    #[must_use]
    pub fn attr_validity(&self, inode: InodeId) -> Duration {
        let leased = self.shared.open_inode(inode).and_then(|open_inode| open_inode.attr_validity());
        leased.unwrap_or(self.shared.options.attr_timeout)
    }

    /// Whether a lease keeps what is known of an open file valid; without one it is as old as the
    /// last request.
    #[must_use]
    pub fn is_leased(&self, node: Node) -> bool {
        self.shared.open_inode(node.inode).is_some_and(|open_inode| !open_inode.is_unleased())
    }

    /// Sets the cache that is invalidated before a lease is returned.
    pub fn set_cache_invalidator(&self, invalidator: Arc<dyn CacheInvalidator>) {
        self.shared.leases.set_cache_invalidator(invalidator);
    }

    /// Updates cached state of a file that lost a name.
    fn on_name_removed(&self, stat: Stat) {
        let (inode, links) = (stat.inode, stat.links);
        self.overlay(stat);
        if links == 0 {
            self.shared.async_closes.clear_write_failure(inode);
            self.shared.on_last_name_removed(inode);
        }
    }

    fn overlay(&self, stat: Stat) -> Stat {
        match self.shared.open_inode(stat.inode) {
            Some(open_inode) => open_inode.overlay(stat),
            None => stat,
        }
    }

    /// Creates a node.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound` or `Denied` among others.
    pub async fn create_node(
        &self,
        parent: Node,
        name: &Name,
        params: CreateParams,
    ) -> Result<Stat, ClientError> {
        self.shared.wait_for_queue_space().await?;
        if let Some((stat, _)) = self.shared.create_locally(parent, name, &params, false) {
            return Ok(stat);
        }
        Ok(self.create_by_request(parent, name, params, false).await?.stat)
    }

    /// Creates a file and opens it for reading and writing.
    ///
    /// # Errors
    /// As [`Nodes::create_node`].
    pub async fn create(
        &self,
        parent: Node,
        name: &Name,
        params: CreateParams,
    ) -> Result<(Stat, File<M, D>), ClientError> {
        self.shared.leases.wake_listener();
        self.shared.wait_for_queue_space().await?;
        let (made, created_under) = match self.shared.create_locally(parent, name, &params, true) {
            Some((stat, created_under)) => {
                let lease = NodeLease {
                    kind: LeaseKind::Write,
                    number: name_queue::LEASE_NOT_YET_ASSIGNED,
                    epoch: 0,
                };
                (CreatedNode { stat, lease: Some(lease), may_be_outdated: false }, Some(created_under))
            }
            None => (self.create_by_request(parent, name, params, true).await?, None),
        };
        let CreatedNode { stat, lease, may_be_outdated } = made;
        let created_locally = lease.is_some();
        let opened = OpenedNode {
            stat: stat.clone(),
            layout: None,
            grants: Vec::new(),
            made: false,
            sparse: true,
            held_until_ms: 0,
            lease,
        };
        let (file, _) = File::open(&self.shared, opened, Access::Update).await?;
        if let Some(open_inode) = self.shared.open_inode(stat.inode) {
            let mut state = open_inode.state();
            (state.open.created_locally, state.open.created_under) = (created_locally, created_under);
            drop(state);
            if may_be_outdated {
                open_inode.note_attr_change(true);
            }
        }
        Ok((stat, file))
    }

    async fn create_by_request(
        &self,
        parent: Node,
        name: &Name,
        params: CreateParams,
        open: bool,
    ) -> Result<CreatedNode, ClientError> {
        let CreateParams { what, mode, umask, owner, group } = params;
        let asked_group = group.clone().filter(|_| owner.is_none());
        let has_default_owner = owner.is_none();
        let plain = what != NodeKind::Directory && has_default_owner;
        let client_id = match what {
            NodeKind::Directory => self.shared.client_id_for_leases(),
            _ => open.then_some(self.shared.client_id),
        };
        let is_directory = what == NodeKind::Directory;
        let request =
            Request::MakeNode { parent, name: name.clone(), what, mode, umask, owner, group, client_id };
        let change_guard = self.shared.dentries.begin_change(&[(parent.inode, Some(name))]);
        let answer = match self.shared.change_once(request).await {
            Ok(answer) => answer,
            Err(error) => return Err(end_failed_change(change_guard, error)),
        };
        let (stat, lease) = match answer {
            Response::Stat { stat } => (stat, None),
            Response::Made { stat, lease } => (stat, Some(lease)),
            _ => return Err(ClientError::OTHER_ANSWER),
        };
        if let Some(lease) = lease {
            self.shared.record_grant(stat.inode, lease);
            if is_directory {
                // The session's user owns the directory, so the owner's bits decide whether it may
                // be listed.
                change_guard.record_created_directory(
                    &lease,
                    &stat,
                    has_default_owner && stat.mode & 0o400 != 0,
                );
            }
        }
        let may_be_outdated = change_guard.may_be_outdated();
        change_guard.done(&[Dentry::of(&stat)], &[]);
        if plain {
            let made = (&stat.owner, stat.group.as_ref());
            self.shared.name_queue.state().record_new_node_owner(asked_group.as_ref(), made);
        }
        self.shared.count_requested_change(parent);
        Ok(CreatedNode { stat, lease, may_be_outdated })
    }

    /// Adds a name to a file (hard link).
    ///
    /// # Errors
    /// `Refused` with `Exists` among others.
    pub async fn link(&self, node: Node, parent: Node, name: &Name) -> Result<Stat, ClientError> {
        self.flush_before_link(node.inode).await;
        let request = Request::LinkNode { node, parent, name: name.clone() };
        let change_guard =
            self.shared.dentries.begin_change(&[(parent.inode, Some(name)), (node.inode, None)]);
        match self.shared.change_stat(request).await {
            Ok(stat) => {
                change_guard.done(&[Dentry::of(&stat)], &[]);
                Ok(self.overlay(stat))
            }
            Err(error) => Err(end_failed_change(change_guard, error)),
        }
    }

    /// Removes a name: with `directory`, of an empty directory; otherwise of any other node.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotEmpty`, `IsADirectory`, `NotADirectory` among others.
    pub async fn remove(&self, parent: Node, name: &Name, directory: bool) -> Result<(), ClientError> {
        self.shared.wait_for_queue_space().await?;
        if !directory && self.shared.unlink_locally(parent.inode, name).is_some() {
            return Ok(());
        }
        let closed = match directory {
            true => {
                self.release_replaced_delegation(parent, name).await?;
                None
            }
            false => self.close_before_unlink(parent, name).await,
        };
        let request = Request::RemoveNode { parent, name: name.clone(), directory };
        let change_guard = self.shared.dentries.begin_change(&[(parent.inode, Some(name))]);
        let answer = match self.shared.change_once(request).await {
            Ok(answer) => answer,
            Err(error) => {
                self.invalidate_if_kept(closed).await;
                return Err(end_failed_change(change_guard, error));
            }
        };
        let Response::Stat { stat } = answer else { return Err(ClientError::OTHER_ANSWER) };
        change_guard.done(&[Dentry::Absent], &[stat.inode]);
        self.shared.count_requested_change(parent);
        if stat.links > 0 {
            self.invalidate_if_kept(closed).await;
        }
        self.on_name_removed(stat);
        Ok(())
    }

    /// Closes the node of a name before the name is removed, if it is its last one and no program
    /// has it open.
    async fn close_before_unlink(&self, parent: Node, name: &Name) -> Option<InodeId> {
        let Dentry::Present(node, _) = self.cached_dentry(parent.inode, name) else { return None };
        self.shared.close_before_unlink(node.inode).await.then_some(node.inode)
    }

    /// Releases the delegation on a directory that is about to be removed or replaced: its local
    /// changes are acknowledged first.
    async fn release_replaced_delegation(&self, parent: Node, name: &Name) -> Result<(), ClientError> {
        match self.cached_dentry(parent.inode, name) {
            Dentry::Present(node, FileKind::Directory) => self.shared.release_dir_lease(node.inode).await,
            _ => Ok(()),
        }
    }

    /// Invalidates the kernel's cache of a file that was closed for a removal and still exists.
    async fn invalidate_if_kept(&self, closed: Option<InodeId>) {
        if let Some(inode) = closed {
            self.shared.invalidate_kernel_cache(inode).await;
        }
    }

    /// Renames a node.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `Exists`, `NotEmpty`, `Cycle` among others.
    pub async fn rename(
        &self,
        (from_parent, from): (Node, &Name),
        (to_parent, to): (Node, &Name),
        mode: RenameMode,
    ) -> Result<(), ClientError> {
        let replaces = match mode {
            RenameMode::Replace => Some(true),
            RenameMode::NoReplace => Some(false),
            RenameMode::Exchange => None,
        };
        let (old, new) = ((from_parent.inode, from), (to_parent.inode, to));
        self.flush_before_rename((from_parent, from), (to_parent, to), mode).await?;
        if mode == RenameMode::Exchange {
            self.flush_before_rename((to_parent, to), (from_parent, from), mode).await?;
        }
        self.shared.wait_for_queue_space().await?;
        if replaces.and_then(|replaces| self.shared.rename_locally(old, new, replaces)).is_some() {
            return Ok(());
        }
        self.release_replaced_delegation(to_parent, to).await?;
        let request =
            Request::RenameNode { from_parent, from: from.clone(), to_parent, to: to.clone(), mode };
        let closed = match mode {
            RenameMode::Replace if (from_parent, from) != (to_parent, to) => {
                self.close_before_unlink(to_parent, to).await
            }
            _ => None,
        };
        let change_guard = self
            .shared
            .dentries
            .begin_change(&[(from_parent.inode, Some(from)), (to_parent.inode, Some(to))]);
        let answer = match self.shared.change_once(request).await {
            Ok(answer) => answer,
            Err(error) => {
                self.invalidate_if_kept(closed).await;
                return Err(end_failed_change(change_guard, error));
            }
        };
        let Response::Renamed { moved, other } = answer else { return Err(ClientError::OTHER_ANSWER) };
        let left = match (mode, &other) {
            (RenameMode::Exchange, Some(other)) => Dentry::of(other),
            // A rename between two names of one file changes nothing.
            _ if moved.links > 1 && moved.kind != FileKind::Directory => Dentry::NotCached,
            (RenameMode::Exchange, None) => Dentry::NotCached,
            _ => Dentry::Absent,
        };
        let others: Vec<InodeId> = other.iter().chain([&moved]).map(|stat| stat.inode).collect();
        if from_parent != to_parent {
            others.iter().for_each(|inode| self.disable_async_close(*inode));
        }
        change_guard.done(&[left, Dentry::of(&moved)], &others);
        self.shared.count_requested_change(from_parent);
        self.shared.count_requested_change(to_parent);
        self.overlay(moved);
        if let Some(other) = other {
            if other.links > 0 {
                self.invalidate_if_kept(closed).await;
            }
            self.on_name_removed(other);
        }
        Ok(())
    }

    /// Changes attributes of a node; a size truncates or grows a file. `through_file`: the caller
    /// has it open for writing.
    ///
    /// # Errors
    /// `Refused` with `Denied`, `NotPermitted`, `FileTooLarge` among others.
    pub async fn set(&self, node: Node, change: NodeChange, through_file: bool) -> Result<Stat, ClientError> {
        // The new attributes may forbid a delegation on this directory.
        self.shared.release_dir_lease(node.inode).await?;
        let change_guard = self.shared.dentries.begin_change(&[(node.inode, None)]);
        let outcome = self.set_attrs(node, change, through_file).await;
        self.end_change(change_guard, outcome)
    }

    async fn set_attrs(
        &self,
        node: Node,
        change: NodeChange,
        through_file: bool,
    ) -> Result<Stat, ClientError> {
        if change.owner.is_some() {
            self.disable_async_close(node.inode);
        }
        let stat = match self.shared.open_inode(node.inode) {
            Some(open_inode) => {
                let rights = change.mode.is_some() || change.owner.is_some() || change.group.is_some();
                let set = open_inode.set(change, through_file).await;
                if rights {
                    open_inode.note_attr_change(true);
                }
                set?
            }
            None => {
                let truncates = change.size == Some(0);
                let request =
                    Request::SetNode { node, change, client_id: Some(self.shared.client_id), through: false };
                let stat = self.shared.call_stat(&request).await?;
                if truncates {
                    self.shared.async_closes.clear_write_failure(node.inode);
                }
                stat
            }
        };
        Ok(self.overlay(stat))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Invalid` among others.
    pub async fn read_link(&self, node: Node) -> Result<LinkTarget, ClientError> {
        match self.shared.call(&Request::ReadLink { node }).await? {
            Response::Target { target } => Ok(target),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Opens a file and returns its attributes.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `Denied`, `IsADirectory` among others.
    pub async fn open(&self, node: Node, access: Access) -> Result<(File<M, D>, Stat), ClientError> {
        if let Some(opened) = File::open_locally(&self.shared, node, access) {
            return Ok(opened);
        }
        self.shared.leases.wake_listener();
        let open_inode = self.shared.open_inode_or_new(node);
        if open_inode.state().open.lock_lost {
            match open_inode.wait_closed(access != Access::Read).await {
                true => open_inode.reset_after_fence().await,
                false if access != Access::Read => return Err(errors::fenced()),
                false => {}
            }
        }
        let mut outcome = self.open_at_server(&open_inode, access).await;
        if matches!(&outcome, Err(error) if errors::is_fenced(error)) && open_inode.open_count() == 0 {
            // No program has it open any more, so no data of a lost lock is left.
            open_inode.reset_after_fence().await;
            outcome = self.open_at_server(&open_inode, access).await;
        }
        drop(open_inode);
        if outcome.is_err() {
            self.shared.evict_if_unused(node.inode);
        }
        outcome
    }

    async fn open_at_server(
        &self,
        open_inode: &open_inode::OpenInode<M, D>,
        access: Access,
    ) -> Result<(File<M, D>, Stat), ClientError> {
        let _guard = open_inode.open_lock.read().await;
        let opened = self.shared.open_node(open_inode.node, access, false).await?;
        File::open(&self.shared, opened, access).await
    }

    /// Ends the local change with the outcome of the request.
    fn end_change<T>(
        &self,
        change_guard: LocalChangeGuard<'_>,
        outcome: Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        match outcome {
            Ok(done) => {
                change_guard.done(&[], &[]);
                Ok(done)
            }
            Err(error) => Err(end_failed_change(change_guard, error)),
        }
    }

    /// Acquires, changes or releases an advisory lock. Returns the conflicting lock, if any; then
    /// nothing was changed. Does not wait for the conflicting lock.
    ///
    /// # Errors
    /// `Refused` with `Invalid`, `Limit`, `Deadlock` among others.
    pub async fn lock(&self, node: Node, lock: Lock) -> Result<Option<Lock>, ClientError> {
        let open_inode = self.shared.open_inode(node.inode);
        if let (Some(open_inode), true) = (&open_inode, lock.kind != LockKind::Unlock) {
            open_inode.require_locks()?;
        }
        if let Some(open_inode) = &open_inode {
            open_inode.store_before_unlock().await;
        }
        let mut reopened = false;
        loop {
            let outcome = {
                let _guard = match &open_inode {
                    Some(open_inode) => Some(open_inode.lock_requests.lock().await),
                    None => None,
                };
                let outcome = self.shared.lock_node(node, lock, false, false).await;
                if matches!(outcome, Ok(None)) {
                    self.shared.locks.lock().record(node.inode, lock);
                }
                outcome
            };
            match (outcome, &open_inode) {
                (Err(error), Some(open_inode)) if errors::is_invalid(&error) && !reopened => {
                    // The server restarted or dropped the open files of this client.
                    reopened = true;
                    open_inode.reopen().await?;
                }
                (Err(error), Some(open_inode)) if errors::is_fenced(&error) => {
                    open_inode.discard();
                    return Err(error);
                }
                (Ok(None), Some(open_inode)) if lock.kind != LockKind::Unlock => {
                    open_inode.refresh_after_lock().await;
                    return Ok(None);
                }
                (outcome, _) => return outcome,
            }
        }
    }

    /// Returns the lock that conflicts with this one, if any.
    ///
    /// # Errors
    /// As [`Nodes::lock`].
    pub async fn test_lock(&self, node: Node, lock: Lock) -> Result<Option<Lock>, ClientError> {
        self.shared.lock_node(node, lock, true, false).await
    }

    /// Releases all locks of one owner on a file; sends nothing if there are none.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn unlock_all(&self, node: Node, owner: u64) -> Result<(), ClientError> {
        let open_inode = self.shared.open_inode(node.inode);
        let _guard = match &open_inode {
            Some(open_inode) => Some(open_inode.lock_requests.lock().await),
            None => None,
        };
        if !self.shared.locks.lock().remove_owner(node.inode, owner) {
            return Ok(());
        }
        let client_id = self.shared.client_id;
        self.shared.call_done(&Request::UnlockNode { node, client_id, owner }).await
    }

    /// Returns capacity and number of nodes, as limited by the quotas of the session's user and of
    /// the node's tree.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`; `Refused` if the node does not exist.
    pub async fn file_system(&self, node: Node) -> Result<FileSystemStat, ClientError> {
        match self.shared.call(&Request::StatFs { node: Some(node) }).await? {
            Response::FileSystem { total, used, nodes, nodes_free } => {
                Ok(FileSystemStat { total, used, nodes, nodes_free })
            }
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Whether the node is a regular file.
    #[must_use]
    pub const fn is_file(stat: &Stat) -> bool {
        matches!(stat.kind, FileKind::File)
    }
}

/// Ends a local change whose request failed: a refusal changed nothing; after other errors the
/// outcome is unknown.
fn end_failed_change(change_guard: LocalChangeGuard<'_>, error: ClientError) -> ClientError {
    if matches!(error, ClientError::Refused(_)) {
        change_guard.refused();
    }
    error
}
