//! A file system of nodes: directories and files by inode number, as a mount needs them.
//!
//! Does: looks up, creates, renames and removes nodes. Opens files that many callers read and write
//! at any offset.
//! Does not: know FUSE, paths, or user ids of this machine.
//! Contract: close-to-open consistency: an open anywhere sees what was closed before.
//! [`File::sync`] returns when bytes and size are durable. Requests to an unavailable server or
//! device are retried for [`NodesOptions::timeout`].
//! Truth: docs/adr/0036-close-and-sync-of-files-in-place.md; docs/standards/mds/nodes.md §5.8.

mod ahead;
mod append;
mod body;
mod change;
mod closing;
mod dirty;
mod file;
mod holes;
mod keep;
mod lead;
mod leases;
mod ledger;
mod list;
mod locks;
mod names;
mod prove;
mod read;
mod send;
mod shared;
mod state;
mod turns;
mod xattrs;

use core::time::Duration;
use std::sync::Arc;

use sealstone_mds_protocol::{
    Access, DirEntry, ErrorCode, Failure, FileKind, GroupName, InodeId, LeaseKind, Name, NodeLease, PAGE_MAX,
    Request, Response, Stat, UserName,
};
use sealstone_mds_protocol::{
    LinkTarget, Lock, LockKind, Node, NodeChange, NodeKind, OpenedNode, RenameMode,
};

pub use closing::Closing;
pub use file::File;
pub use holes::Seek;
pub use leases::Keeper;
pub use names::{Edition, Listed};
pub use shared::NodesOptions;

use crate::mds::Mds;
use crate::pool::DevicePool;
use crate::{Client, ClientError, Devices, Metadata};
use names::{Known, Own};
use shared::Shared;

/// The result of creating a node.
struct Made {
    stat: Stat,
    lease: Option<NodeLease>,
    /// Whether the node may have been changed by this client before the answer arrived.
    overtaken: bool,
}

/// Maximum pages that [`Nodes::list_soon`] fetches of a directory after lookups that found nothing.
const LISTED_PAGES_MAX: usize = 16;

/// A file system of nodes. Clones share all state.
pub struct Nodes<M = Mds, D = DevicePool> {
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
pub struct Making {
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
        keep::start(&shared);
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
        let nothing = || Failure::new(ErrorCode::NotFound, &name.shown());
        match self.known(parent.inode, name) {
            Known::There(node, _) => {
                if let Some(stat) = self.known_node(node.inode) {
                    return Ok(stat);
                }
            }
            Known::Nothing => return Err(nothing().into()),
            Known::Unknown => {}
        }
        let (mark, answer) = loop {
            let mark = self.shared.names.mark(parent.inode);
            let request = Request::Lookup { parent, name: name.clone(), client_id: self.shared.leads() };
            let answer = self.shared.call(&request).await?;
            // The client may have changed this node under another name, and this lookup did not
            // flush that change first.
            let led_to = match &answer {
                Response::Stat { stat } | Response::LookedUp { stat: Some(stat), .. } => Some(stat.inode),
                _ => None,
            };
            match led_to.and_then(|inode| self.shared.ledger.about(&[inode])) {
                None => break (mark, answer),
                upto => self.shared.told_upto(upto).await?,
            }
        };
        match answer {
            Response::Stat { stat } => Ok(self.overlay(stat)),
            Response::LookedUp { stat, directory, lease } => {
                if let Some(directory) = directory {
                    self.shared.given(parent.inode, directory);
                    let known = stat.as_ref().map_or(Known::Nothing, Known::of);
                    if self.shared.names.looked_up(&mark, &directory, name, known) {
                        self.list_soon(parent);
                    }
                }
                if let (Some(stat), Some(lease)) = (&stat, lease) {
                    self.shared.given(stat.inode, lease);
                    self.shared.names.seen(&mark, &lease, stat);
                }
                stat.map(|stat| self.overlay(stat)).ok_or_else(|| nothing().into())
            }
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the cached dentry of a name, if a valid lease covers the directory.
    fn known(&self, directory: InodeId, name: &Name) -> Known {
        match self.shared.leased(directory) {
            Some(lease) => self.shared.names.known(directory, &lease, name),
            None => Known::Unknown,
        }
    }

    /// Returns the cached attributes of a node, if a valid lease covers them.
    fn known_node(&self, inode: InodeId) -> Option<Stat> {
        if let Some(body) = self.shared.body(inode) {
            return body.believed_stat().map(|(stat, _)| stat);
        }
        if let Some(directory) = self.shared.names.made_in(inode) {
            let lease = self.shared.leased(directory)?;
            return self.shared.names.made(inode, (directory, &lease));
        }
        let lease = self.shared.leased(inode)?;
        self.shared.names.node(inode, &lease)
    }

    /// Lists the whole directory in the background after repeated misses, so that later misses need
    /// no request. Stops after [`LISTED_PAGES_MAX`] pages.
    fn list_soon(&self, directory: Node) {
        let nodes = self.clone();
        self.shared.runtime.spawn(async move {
            let mut after = None;
            for _ in 0..LISTED_PAGES_MAX {
                let Ok((entries, more)) = nodes.read_directory(directory, after).await else { return };
                after = entries.into_iter().next_back().map(|entry| entry.name);
                if !more || after.is_none() {
                    return;
                }
            }
        });
    }

    /// Returns the current attributes of a node.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others.
    pub async fn node(&self, node: Node) -> Result<Stat, ClientError> {
        match self.shared.body(node.inode) {
            Some(body) => body.stat().await,
            None => match self.known_node(node.inode) {
                Some(stat) => Ok(stat),
                None => self.shared.call_stat(&Request::GetNode { node }).await,
            },
        }
    }

    /// Returns how long the attributes of a node may be cached.
    #[must_use]
    pub fn attributes_for(&self, inode: InodeId) -> Duration {
        let leased = self.shared.body(inode).and_then(|body| body.attributes_for());
        leased.unwrap_or(self.shared.options.attributes_for)
    }

    /// Whether a lease keeps what is known of an open file valid; without one it is as old as the last request.
    #[must_use]
    pub fn is_leased(&self, node: Node) -> bool {
        self.shared.body(node.inode).is_some_and(|body| !body.is_unleased())
    }

    /// Sets the cache that is invalidated before a lease is returned.
    pub fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        self.shared.leases.set_keeper(keeper);
    }

    /// Updates cached state of a file that lost a name.
    fn lost_a_name(&self, stat: Stat) {
        let (inode, links) = (stat.inode, stat.links);
        self.overlay(stat);
        if links == 0 {
            self.shared.closings.forgive(inode);
            self.shared.nameless(inode);
        }
    }

    fn overlay(&self, stat: Stat) -> Stat {
        match self.shared.body(stat.inode) {
            Some(body) => body.overlay(stat),
            None => stat,
        }
    }

    /// Reads a page of a directory in byte order of names, starting after `after`; the flag says
    /// whether there may be more.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotADirectory` or `Denied` among others.
    pub async fn read_directory(
        &self,
        directory: Node,
        after: Option<Name>,
    ) -> Result<(Vec<DirEntry>, bool), ClientError> {
        let mark = self.shared.names.mark(directory.inode);
        let client_id = self.shared.leads();
        let request = Request::ReadNodes { directory, after: after.clone(), limit: PAGE_MAX, client_id };
        let (mut entries, more) = match self.shared.call(&request).await? {
            Response::Directory { entries, more } => (entries, more),
            Response::Listed { entries, more, lease } => {
                self.shared.given(directory.inode, lease);
                self.shared.names.listed(&mark, &lease, after.as_ref(), (&entries, more));
                (entries, more)
            }
            _ => return Err(ClientError::OTHER_ANSWER),
        };
        for entry in &mut entries {
            if let Some(stat) = &mut entry.stat
                && let Some(body) = self.shared.body(stat.inode)
            {
                *stat = body.overlay(stat.clone());
            }
        }
        let more = more && !entries.is_empty();
        Ok((entries, more))
    }

    /// Creates a node.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound` or `Denied` among others.
    pub async fn make(&self, parent: Node, name: &Name, making: Making) -> Result<Stat, ClientError> {
        self.shared.room_for_names().await?;
        if let Some((stat, _)) = self.shared.make_ahead(parent, name, &making, false) {
            return Ok(stat);
        }
        Ok(self.make_held(parent, name, making, false).await?.stat)
    }

    /// Creates a file and opens it for reading and writing.
    ///
    /// # Errors
    /// As [`Nodes::make`].
    pub async fn create(
        &self,
        parent: Node,
        name: &Name,
        making: Making,
    ) -> Result<(Stat, File<M, D>), ClientError> {
        self.shared.leases.want();
        self.shared.room_for_names().await?;
        let (made, made_in) = match self.shared.make_ahead(parent, name, &making, true) {
            Some((stat, made_in)) => {
                let lease = NodeLease { kind: LeaseKind::Write, number: ledger::OWN, epoch: 0 };
                (Made { stat, lease: Some(lease), overtaken: false }, Some(made_in))
            }
            None => (self.make_held(parent, name, making, true).await?, None),
        };
        let Made { stat, lease, overtaken } = made;
        let made_here = lease.is_some();
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
        if let Some(body) = self.shared.body(stat.inode) {
            let mut state = body.state();
            (state.made_here, state.made_in) = (made_here, made_in);
            drop(state);
            if overtaken {
                body.note_unsure(true);
            }
        }
        Ok((stat, file))
    }

    async fn make_held(
        &self,
        parent: Node,
        name: &Name,
        making: Making,
        hold: bool,
    ) -> Result<Made, ClientError> {
        let Making { what, mode, umask, owner, group } = making;
        let asked_group = group.clone().filter(|_| owner.is_none());
        let ours = owner.is_none();
        let plain = what != NodeKind::Directory && ours;
        let client_id = match what {
            NodeKind::Directory => self.shared.leads(),
            _ => hold.then_some(self.shared.client_id),
        };
        let leads = what == NodeKind::Directory;
        let request =
            Request::MakeNode { parent, name: name.clone(), what, mode, umask, owner, group, client_id };
        let own = self.shared.names.change(&[(parent.inode, Some(name))]);
        let answer = match self.shared.change(request).await {
            Ok(answer) => answer,
            Err(error) => return Err(not_done(own, error)),
        };
        let (stat, lease) = match answer {
            Response::Stat { stat } => (stat, None),
            Response::Made { stat, lease } => (stat, Some(lease)),
            _ => return Err(ClientError::OTHER_ANSWER),
        };
        if let Some(lease) = lease {
            self.shared.given(stat.inode, lease);
            if leads {
                // The session's user owns the directory, so the owner's bits decide whether it may
                // be listed.
                own.made(&lease, &stat, ours && stat.mode & 0o400 != 0);
            }
        }
        let overtaken = own.is_overtaken();
        own.done(&[Known::of(&stat)], &[]);
        if plain {
            let made = (&stat.owner, stat.group.as_ref());
            self.shared.ledger.book().note_maker(asked_group.as_ref(), made);
        }
        self.shared.changed_in(parent);
        Ok(Made { stat, lease, overtaken })
    }

    /// Adds a name to a file (hard link).
    ///
    /// # Errors
    /// `Refused` with `Exists` among others.
    pub async fn link(&self, node: Node, parent: Node, name: &Name) -> Result<Stat, ClientError> {
        self.is_linked(node.inode).await;
        let request = Request::LinkNode { node, parent, name: name.clone() };
        let own = self.shared.names.change(&[(parent.inode, Some(name)), (node.inode, None)]);
        match self.shared.change_stat(request).await {
            Ok(stat) => {
                own.done(&[Known::of(&stat)], &[]);
                Ok(self.overlay(stat))
            }
            Err(error) => Err(not_done(own, error)),
        }
    }

    /// Removes a name: with `directory`, of an empty directory; otherwise of any other node.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotEmpty`, `IsADirectory`, `NotADirectory` among others.
    pub async fn remove(&self, parent: Node, name: &Name, directory: bool) -> Result<(), ClientError> {
        self.shared.room_for_names().await?;
        if !directory && self.shared.remove_ahead(parent.inode, name).is_some() {
            return Ok(());
        }
        let gone = match directory {
            true => {
                self.leads_no_more(parent, name).await?;
                None
            }
            false => self.let_go_of(parent, name).await,
        };
        let request = Request::RemoveNode { parent, name: name.clone(), directory };
        let own = self.shared.names.change(&[(parent.inode, Some(name))]);
        let answer = match self.shared.change(request).await {
            Ok(answer) => answer,
            Err(error) => {
                self.stays(gone).await;
                return Err(not_done(own, error));
            }
        };
        let Response::Stat { stat } = answer else { return Err(ClientError::OTHER_ANSWER) };
        own.done(&[Known::Nothing], &[stat.inode]);
        self.shared.changed_in(parent);
        if stat.links > 0 {
            self.stays(gone).await;
        }
        self.lost_a_name(stat);
        Ok(())
    }

    /// Closes the node of a name before the name is removed, if it is its last one and no program
    /// has it open.
    async fn let_go_of(&self, parent: Node, name: &Name) -> Option<InodeId> {
        let Known::There(node, _) = self.known(parent.inode, name) else { return None };
        self.shared.let_go_of(node.inode).await.then_some(node.inode)
    }

    /// Releases the delegation on a directory that is about to be removed or replaced: its local
    /// changes are acknowledged first.
    async fn leads_no_more(&self, parent: Node, name: &Name) -> Result<(), ClientError> {
        match self.known(parent.inode, name) {
            Known::There(node, FileKind::Directory) => self.shared.lead_no_more(node.inode).await,
            _ => Ok(()),
        }
    }

    /// Invalidates the kernel's cache of a file that was closed for a removal and still exists.
    async fn stays(&self, gone: Option<InodeId>) {
        if let Some(inode) = gone {
            self.shared.stays(inode).await;
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
        let ahead = match mode {
            RenameMode::Replace => Some(true),
            RenameMode::NoReplace => Some(false),
            RenameMode::Exchange => None,
        };
        let (old, new) = ((from_parent.inode, from), (to_parent.inode, to));
        self.moves((from_parent, from), (to_parent, to), mode).await?;
        if mode == RenameMode::Exchange {
            self.moves((to_parent, to), (from_parent, from), mode).await?;
        }
        self.shared.room_for_names().await?;
        if ahead.and_then(|replaces| self.shared.rename_ahead(old, new, replaces)).is_some() {
            return Ok(());
        }
        self.leads_no_more(to_parent, to).await?;
        let request =
            Request::RenameNode { from_parent, from: from.clone(), to_parent, to: to.clone(), mode };
        let gone = match mode {
            RenameMode::Replace if (from_parent, from) != (to_parent, to) => {
                self.let_go_of(to_parent, to).await
            }
            _ => None,
        };
        let own = self.shared.names.change(&[(from_parent.inode, Some(from)), (to_parent.inode, Some(to))]);
        let answer = match self.shared.change(request).await {
            Ok(answer) => answer,
            Err(error) => {
                self.stays(gone).await;
                return Err(not_done(own, error));
            }
        };
        let Response::Renamed { moved, other } = answer else { return Err(ClientError::OTHER_ANSWER) };
        let left = match (mode, &other) {
            (RenameMode::Exchange, Some(other)) => Known::of(other),
            // A rename between two names of one file changes nothing.
            _ if moved.links > 1 && moved.kind != FileKind::Directory => Known::Unknown,
            (RenameMode::Exchange, None) => Known::Unknown,
            _ => Known::Nothing,
        };
        let others: Vec<InodeId> = other.iter().chain([&moved]).map(|stat| stat.inode).collect();
        if from_parent != to_parent {
            others.iter().for_each(|inode| self.is_given_away(*inode));
        }
        own.done(&[left, Known::of(&moved)], &others);
        self.shared.changed_in(from_parent);
        self.shared.changed_in(to_parent);
        self.overlay(moved);
        if let Some(other) = other {
            if other.links > 0 {
                self.stays(gone).await;
            }
            self.lost_a_name(other);
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
        self.shared.lead_no_more(node.inode).await?;
        let own = self.shared.names.change(&[(node.inode, None)]);
        let outcome = self.set_now(node, change, through_file).await;
        self.ended(own, outcome)
    }

    async fn set_now(&self, node: Node, change: NodeChange, through_file: bool) -> Result<Stat, ClientError> {
        if change.owner.is_some() {
            self.is_given_away(node.inode);
        }
        let stat = match self.shared.body(node.inode) {
            Some(body) => {
                let rights = change.mode.is_some() || change.owner.is_some() || change.group.is_some();
                let set = body.set(change, through_file).await;
                if rights {
                    body.note_unsure(true);
                }
                set?
            }
            None => {
                let nothing = change.size == Some(0);
                let request =
                    Request::SetNode { node, change, client_id: Some(self.shared.client_id), through: false };
                let stat = self.shared.call_stat(&request).await?;
                if nothing {
                    self.shared.closings.forgive(node.inode);
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
        if let Some(opened) = File::open_alone(&self.shared, node, access) {
            return Ok(opened);
        }
        self.shared.leases.want();
        let body = self.shared.body_or_make(node);
        if body.state().lock_lost {
            match body.closed_soon(access != Access::Read).await {
                true => body.begin_anew().await,
                false if access != Access::Read => return Err(shared::fenced()),
                false => {}
            }
        }
        let mut outcome = self.open_at_server(&body, access).await;
        if matches!(&outcome, Err(error) if shared::is_fenced(error)) && body.open_count() == 0 {
            // No program has it open any more, so no data of a lost lock is left.
            body.begin_anew().await;
            outcome = self.open_at_server(&body, access).await;
        }
        drop(body);
        if outcome.is_err() {
            self.shared.forget(node.inode);
        }
        outcome
    }

    async fn open_at_server(
        &self,
        body: &body::Body<M, D>,
        access: Access,
    ) -> Result<(File<M, D>, Stat), ClientError> {
        let _holding = body.holding.read().await;
        let opened = self.shared.open_node(body.node, access, false).await?;
        File::open(&self.shared, opened, access).await
    }

    /// Ends the local change with the outcome of the request.
    fn ended<T>(&self, own: Own<'_>, outcome: Result<T, ClientError>) -> Result<T, ClientError> {
        match outcome {
            Ok(done) => {
                own.done(&[], &[]);
                Ok(done)
            }
            Err(error) => Err(not_done(own, error)),
        }
    }

    /// Acquires, changes or releases an advisory lock. Returns the conflicting lock, if any; then
    /// nothing was changed. Does not wait for the conflicting lock.
    ///
    /// # Errors
    /// `Refused` with `Invalid`, `Limit`, `Deadlock` among others.
    pub async fn lock(&self, node: Node, lock: Lock) -> Result<Option<Lock>, ClientError> {
        let body = self.shared.body(node.inode);
        if let (Some(body), true) = (&body, lock.kind != LockKind::Unlock) {
            body.needs_locks()?;
        }
        if let Some(body) = &body {
            body.store_before_unlock().await;
        }
        let mut held = false;
        loop {
            let outcome = {
                let _one = match &body {
                    Some(body) => Some(body.locking.lock().await),
                    None => None,
                };
                let outcome = self.shared.lock_node(node, lock, false, false).await;
                if matches!(outcome, Ok(None)) {
                    shared::lock(&self.shared.locks).note(node.inode, lock);
                }
                outcome
            };
            match (outcome, &body) {
                (Err(error), Some(body)) if shared::is_invalid(&error) && !held => {
                    // The server restarted or dropped the open files of this client.
                    held = true;
                    body.hold_again().await?;
                }
                (Err(error), Some(body)) if shared::is_fenced(&error) => {
                    body.discard();
                    return Err(error);
                }
                (Ok(None), Some(body)) if lock.kind != LockKind::Unlock => {
                    body.refresh_after_lock().await;
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
        let body = self.shared.body(node.inode);
        let _one = match &body {
            Some(body) => Some(body.locking.lock().await),
            None => None,
        };
        if !shared::lock(&self.shared.locks).forget(node.inode, owner) {
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
fn not_done(own: Own<'_>, error: ClientError) -> ClientError {
    if matches!(error, ClientError::Refused(_)) {
        own.refused();
    }
    error
}
