//! Write-back of directory changes under a directory delegation.
//!
//! Does: requests a delegation for directories with repeated changes, applies changes locally,
//! flushes them in batches and before any request that depends on them.
//! Does not: store the queue; `name_queue` does.
//! Contract: a change is applied locally only if the server would do the same: the directory has a
//! write lease, so no other client sees or changes it; the name is known; and the user's right to
//! the directory decides alone. Changes are durable after [`Shared::sync_names`], and are flushed
//! in order within milliseconds in any case. A change that the server refuses is undone in the
//! caches and reported once.
//! Truth: docs/adr/0050-directory-write-delegations.md.

use core::time::Duration;
use std::sync::{Arc, Weak};

use sealstone_mds_protocol::{
    ChangeRequest, CreateOp, DirLeaseId, FileKind, InodeId, InodeLease, LeaseKind, Name, NameChange, Node,
    NodeKind, NodeLease, OpenHandle, RESERVED_INODES_MAX, RenameOp, Request, Response, Stat, UnlinkOp,
};
use tokio::time::{Instant, sleep, timeout};

use super::CreateParams;
use super::dentry_table::DelegatedName;
use super::errors::{is_fenced, is_invalid, is_transient};
use super::name_queue::{BATCH_MAX, CHANGES_MAX, LEASE_NOT_YET_ASSIGNED};
use super::shared::{CHANGE_RETRY_MS, PAUSE_MAX, PAUSE_MIN, Shared};
use crate::{ClientError, Devices, Metadata};

/// Requested changes in a directory after which a delegation is requested.
const DELEGATE_AFTER: u32 = 2;
/// Delay before a delegation is requested again after a refusal.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long changes are gathered before a batch is sent, if no request waits for them.
const BATCH_DELAY: Duration = Duration::from_millis(4);
/// Inode numbers requested with the first delegation.
const INODES_FIRST: u16 = 256;
/// More inode numbers are requested when fewer than this are left.
const INODES_LOW: usize = 512;
/// How often the task checks whether the file system still exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Mode bits other than the permissions: set-user-ID, set-group-ID, sticky.
const SPECIAL: u16 = 0o7000;
/// Permission bits of a symbolic link.
const LINK_MODE: u16 = 0o777;

/// The local changes that a request depends on.
enum Dependency<'a> {
    Nodes([Option<InodeId>; 2]),
    Name(InodeId, &'a Name),
    Everything,
    Nothing,
}

fn dependencies_of(request: &Request) -> Dependency<'_> {
    let one = |node: &Node| Dependency::Nodes([Some(node.inode), None]);
    match request {
        Request::Lookup { parent, name, .. } => Dependency::Name(parent.inode, name),
        Request::MakeNode { parent, .. } => one(parent),
        Request::ReadNodes { directory: node, .. }
        | Request::GetNode { node }
        | Request::ReadLink { node }
        | Request::SetNode { node, .. }
        | Request::OpenNode { node, .. }
        | Request::Allocate { node, .. }
        | Request::Written { node, .. }
        | Request::CloseNode { node, .. }
        | Request::LeaseNode { node, .. }
        | Request::LockNode { node, .. }
        | Request::UnlockNode { node, .. }
        | Request::GetXattr { node, .. }
        | Request::SetXattr { node, .. }
        | Request::ListXattr { node }
        | Request::RemoveXattr { node, .. }
        | Request::RenewGrants { handle: OpenHandle::Node { node, .. }, .. } => one(node),
        Request::LinkNode { node, parent, .. } => Dependency::Nodes([Some(node.inode), Some(parent.inode)]),
        // Leases are returned only after the changes under them were flushed.
        Request::ReturnLease { .. }
        | Request::Recalls { .. }
        | Request::DelegateDir { .. }
        | Request::NameBatch { .. } => Dependency::Nothing,
        _ => Dependency::Everything,
    }
}

impl<M: Metadata, D: Devices> Shared<M, D> {
    /// Flushes all local changes that a request depends on.
    pub(super) async fn flush_dependencies_of(&self, request: &Request) -> Result<(), ClientError> {
        let upto = match dependencies_of(request) {
            Dependency::Nodes([first, second]) => {
                let nodes = [first, second.or(first)];
                let [Some(first), Some(second)] = nodes else { return Ok(()) };
                self.name_queue.flush_upto(&[first, second])
            }
            Dependency::Name(directory, name) => self.name_queue.flush_upto_name(directory, name),
            Dependency::Everything => self.name_queue.flush_upto_all(),
            Dependency::Nothing => None,
        };
        self.wait_acked(upto).await
    }

    /// Flushes all local changes: when this returns, they are durable.
    ///
    /// # Errors
    /// `NameChangesUnsent` if the server does not accept them within the timeout.
    pub(super) async fn sync_names(&self) -> Result<(), ClientError> {
        self.wait_acked(self.name_queue.flush_upto_all()).await
    }

    /// Flushes the local changes in a directory or of a node.
    pub(super) async fn sync_names_of(&self, inode: InodeId) -> Result<(), ClientError> {
        self.wait_acked(self.name_queue.flush_upto(&[inode])).await
    }

    /// Waits until the server has acknowledged the changes up to `upto`.
    pub(super) async fn wait_acked(&self, upto: Option<u64>) -> Result<(), ClientError> {
        let Some(upto) = upto else { return Ok(()) };
        let begun = Instant::now();
        loop {
            let acked = self.name_queue.acked.notified();
            tokio::pin!(acked);
            acked.as_mut().enable();
            if self.name_queue.is_acked(upto) {
                return Ok(());
            }
            self.name_queue.urgent.notify_one();
            let _ = timeout(CHECK_INTERVAL, acked).await;
            if self.options.timeout.is_some_and(|max| begun.elapsed() >= max)
                && !self.name_queue.is_acked(upto)
            {
                return Err(ClientError::NameChangesUnsent);
            }
        }
    }

    /// Waits until the queue of local changes has space.
    pub(super) async fn wait_for_queue_space(&self) -> Result<(), ClientError> {
        let upto = self.name_queue.state().space_after();
        self.wait_acked(upto).await
    }

    /// Counts a change that was requested from the server in a directory, and requests a delegation
    /// if they are frequent.
    pub(super) fn count_requested_change(self: &Arc<Self>, directory: Node) {
        if !self.uses_delegations()
            || self.valid_lease(directory.inode).is_none_or(|lease| lease.kind != LeaseKind::Read)
        {
            return;
        }
        if !self.name_queue.state().count_change(directory.inode, DELEGATE_AFTER) {
            return;
        }
        let shared = self.clone();
        self.runtime.spawn(async move { shared.request_delegation(directory).await });
    }

    async fn request_delegation(self: &Arc<Self>, directory: Node) {
        let numbers = if self.name_queue.state().inodes_left() == 0 { INODES_FIRST } else { 0 };
        let request = Request::DelegateDir { directory: Some(directory), client_id: self.client_id, numbers };
        let mut refused = true;
        match self.core.metadata.call(request).await {
            Ok(Response::DirDelegated { lease, before, numbers }) => {
                self.name_queue.state().add_inodes(numbers);
                if let Some(lease) = lease {
                    self.record_delegation(directory.inode, lease, before);
                    refused = false;
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(inode = directory.inode.0, %error, "no directory delegation"),
        }
        let not_before = refused.then(|| Instant::now() + REFUSED_FOR);
        self.name_queue.state().end_delegation_request(directory.inode, not_before);
    }

    fn request_inode_numbers(self: &Arc<Self>) {
        let shared = self.clone();
        self.runtime.spawn(async move {
            let request = Request::DelegateDir {
                directory: None,
                client_id: shared.client_id,
                numbers: RESERVED_INODES_MAX,
            };
            let numbers = match shared.core.metadata.call(request).await {
                Ok(Response::DirDelegated { numbers, .. }) => numbers,
                _ => None,
            };
            shared.name_queue.state().end_inode_request(numbers);
        });
    }

    /// Creates a node locally, if a delegation permits it; returns it with the delegation.
    pub(super) fn create_locally(
        self: &Arc<Self>,
        directory: Node,
        name: &Name,
        params: &CreateParams,
        held: bool,
    ) -> Option<(Stat, DirLeaseId)> {
        let CreateParams { what, mode, umask, owner, group } = params;
        let is_supported =
            matches!(what, NodeKind::File | NodeKind::Symlink(_) | NodeKind::Fifo | NodeKind::Socket);
        if !is_supported || owner.is_some() || mode & SPECIAL != 0 {
            return None;
        }
        let at_ms = self.core.now_ms();
        let mut needs_inodes = false;
        let created = self.with_dir_lease([directory.inode, directory.inode], |[delegation, _]| {
            let mut queue = self.name_queue.state();
            if queue.is_full() {
                return None;
            }
            let Some(node) = queue.next_inode() else {
                needs_inodes = queue.start_inode_request(INODES_LOW);
                return None;
            };
            let (owner, node_group) = queue.new_node_owner(group.as_ref())?.clone();
            let (node_mode, size) = match what {
                NodeKind::Symlink(target) => (LINK_MODE, target.as_bytes().len() as u64),
                _ => (mode & !umask, 0),
            };
            let now_ns = Stat::ns(at_ms);
            let stat = Stat {
                inode: node.inode,
                proof: node.proof,
                kind: what.kind(),
                mode: node_mode,
                owner,
                group: node_group,
                links: 1,
                rdev: 0,
                size,
                version: 0,
                generation: 0,
                atime_ns: now_ns,
                mtime_ns: now_ns,
                ctime_ns: now_ns,
                birth_ns: now_ns,
                width: 0,
                checksum: None,
            };
            let entry = DelegatedName { directory: delegation, name };
            if !self.dentries.with(|table| table.create_locally(entry, &stat, at_ms)) {
                return None;
            }
            queue.take_inode();
            queue.push(NameChange::Create(CreateOp {
                directory: delegation,
                name: name.clone(),
                inode: node.inode,
                what: what.clone(),
                mode: *mode,
                umask: *umask,
                owner: None,
                group: group.clone(),
                at_ms,
                held,
            }));
            needs_inodes = queue.start_inode_request(INODES_LOW);
            Some((stat, delegation))
        });
        if needs_inodes {
            self.request_inode_numbers();
        }
        let created = created?;
        self.name_queue.queued.notify_one();
        Some(created)
    }

    /// Returns the node of a name, or that there is none, if a delegation makes the cached dentry
    /// authoritative.
    fn certain_entry(&self, directory: InodeId, name: &Name) -> Option<Option<(Node, FileKind)>> {
        self.with_dir_lease([directory, directory], |[delegation, _]| {
            self.dentries.with(|table| table.certain_entry(DelegatedName { directory: delegation, name }))
        })
    }

    /// Removes the name of a node other than a directory locally, if a delegation permits it.
    pub(super) fn unlink_locally(self: &Arc<Self>, directory: InodeId, name: &Name) -> Option<()> {
        let (node, kind) = self.certain_entry(directory, name)??;
        if kind == FileKind::Directory || self.name_queue.state().is_full() {
            return None;
        }
        let closed = self.close_for_unlink(node)?;
        let close = closed.was_open;
        let at_ms = self.core.now_ms();
        let removed = self.with_dir_lease([directory, directory], |[delegation, _]| {
            let mut queue = self.name_queue.state();
            let entry = DelegatedName { directory: delegation, name };
            if !self.dentries.with(|table| table.unlink_locally(entry, node.inode, at_ms)) {
                return None;
            }
            let (name, inode) = (name.clone(), node.inode);
            let removed = UnlinkOp { directory: delegation, name, inode, at_ms, close };
            queue.push(NameChange::Unlink(removed));
            Some(())
        });
        self.queue_close_if(removed.is_none() && close, node.inode);
        self.end_close_for_unlink(closed, removed.is_some());
        self.name_queue.queued.notify_one();
        removed
    }

    /// Renames a node other than a directory locally, over nothing or over such a node, if a
    /// delegation permits it.
    pub(super) fn rename_locally(
        self: &Arc<Self>,
        (from_directory, from): (InodeId, &Name),
        (to_directory, to): (InodeId, &Name),
        replaces: bool,
    ) -> Option<()> {
        let (node, kind) = self.certain_entry(from_directory, from)??;
        let old = self.certain_entry(to_directory, to)?;
        let other =
            |old: &(Node, FileKind)| replaces && old.1 != FileKind::Directory && old.0.inode != node.inode;
        if kind == FileKind::Directory || !old.as_ref().is_none_or(other) || self.name_queue.state().is_full()
        {
            return None;
        }
        let replaced = old.map(|(old, _)| old.inode);
        let closed = match old {
            Some((old, _)) => Some(self.close_for_unlink(old)?),
            None => None,
        };
        let close = closed.as_ref().is_some_and(|closed| closed.was_open);
        let at_ms = self.core.now_ms();
        let open_inode = self.open_inode(node.inode);
        // Locked meanwhile, so that no reader gets the new name with the old time.
        let mut state = open_inode.as_ref().map(|open_inode| open_inode.state());
        let renamed =
            self.with_dir_lease([from_directory, to_directory], |[from_delegation, to_delegation]| {
                let mut queue = self.name_queue.state();
                let places = (
                    DelegatedName { directory: from_delegation, name: from },
                    DelegatedName { directory: to_delegation, name: to },
                );
                let renamed = (node.inode, replaced);
                if !self.dentries.with(|table| table.rename_locally(places, renamed, at_ms)) {
                    return None;
                }
                queue.push(NameChange::Rename(RenameOp {
                    from_directory: from_delegation,
                    from: from.clone(),
                    inode: node.inode,
                    to_directory: to_delegation,
                    to: to.clone(),
                    replaced,
                    at_ms,
                    close,
                }));
                Some(())
            });
        if let (Some(()), Some(stat)) = (renamed, state.as_mut().and_then(|state| state.attrs.stat.as_mut()))
        {
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, at_ms);
        }
        drop(state);
        if let Some(replaced) = replaced {
            self.queue_close_if(renamed.is_none() && close, replaced);
        }
        if let Some(closed) = closed {
            self.end_close_for_unlink(closed, renamed.is_some());
        }
        self.name_queue.queued.notify_one();
        renamed
    }

    /// Queues a close of a file whose removal was not queued, but which the client has already
    /// closed.
    fn queue_close_if(&self, condition: bool, inode: InodeId) {
        if condition {
            self.name_queue.state().push(NameChange::Close(inode));
        }
    }

    /// Closes a file at once that was created here and closed by its programs without a write.
    pub(super) fn close_unwritten(&self, open_inode: &super::open_inode::OpenInode<M, D>) -> bool {
        let inode = open_inode.node.inode;
        let Ok(_guard) = open_inode.open_lock.try_write() else { return false };
        let mut state = open_inode.state();
        if !state.is_unwritten() || open_inode.open_count() > 0 || self.locks.lock().has(inode) {
            return false;
        }
        let is_unsent = self.name_queue.is_unsent_create(inode);
        if !is_unsent && !self.drop_lease(inode) {
            // Without a lease it is closed as any other file.
            return false;
        }
        {
            let mut queue = self.name_queue.state();
            if queue.close_unsent(inode) {
                queue.push(NameChange::Close(inode));
            }
        }
        (state.open.released, state.attrs.lease_seen) = (true, 0);
        drop(state);
        self.evict(inode);
        self.name_queue.queued.notify_one();
        true
    }

    /// Records a new delegation, which replaces a read lease on the directory.
    fn record_delegation(self: &Arc<Self>, inode: InodeId, lease: NodeLease, before: Option<u64>) {
        if let Some(before) = before.filter(|before| *before < lease.number)
            && self.upgrade_lease(inode, before, lease)
        {
            return;
        }
        self.record_grant(inode, lease);
    }

    /// Takes over the leases that the server granted with acknowledged changes.
    fn on_batch_acked(self: &Arc<Self>, changes: &[NameChange], leases: &[InodeLease]) {
        for change in changes {
            let NameChange::Create(CreateOp { inode, held: true, .. }) = change else { continue };
            let lease = leases.iter().find(|on| on.inode == *inode).map(|on| on.lease);
            let is_ours = self.name_queue.is_unsent_create(*inode);
            match lease {
                Some(lease) if is_ours => {
                    if let Some(open_inode) = self.open_inode(*inode) {
                        let mut state = open_inode.state();
                        if state.attrs.lease_seen == LEASE_NOT_YET_ASSIGNED {
                            state.attrs.lease_seen = lease.number;
                        }
                    }
                    self.record_grant(*inode, lease);
                }
                // It was closed meanwhile; the close is queued.
                Some(lease) => self.record_returned(*inode, lease),
                None => {}
            }
        }
    }

    /// Drops changes that the server refused or that were lost: invalidates the caches and records
    /// the error.
    fn drop_changes(&self, changes: Vec<NameChange>, why: impl Fn() -> ClientError) {
        for change in &changes {
            tracing::warn!(
                error = %why(),
                inode = change.nodes().next().map(|inode| inode.0),
                directory = change.directories().next().map(|lease| lease.inode.0),
                "directory change lost; reported at the next fsync"
            );
            for directory in change.directories() {
                self.dentries.with(|table| table.invalidate_refused(directory.inode, change.nodes()));
            }
            match change {
                NameChange::Create(CreateOp { inode, .. }) => {
                    if let Some(open_inode) = self.open_inode(*inode) {
                        open_inode.record_error(why());
                    }
                }
                // Fsync of the file reports it, as does fsync of a directory; the file's bytes are
                // not affected.
                NameChange::Rename(RenameOp { inode, .. }) => {
                    if let Some(open_inode) =
                        self.open_inode(*inode).filter(|open_inode| open_inode.open_count() > 0)
                    {
                        open_inode.state().error.get_or_insert_with(&why);
                    }
                }
                NameChange::Unlink(_) | NameChange::Close(_) => {}
            }
            if !matches!(change, NameChange::Close(_)) {
                self.name_queue.state().record_error(why());
            }
        }
    }

    /// Sends the next batch of local changes.
    async fn flush_batch(self: &Arc<Self>) {
        let changes = self.name_queue.state().next_batch();
        if changes.is_empty() {
            return;
        }
        let slot = self.acquire_slot().await;
        let Ok(change) = ChangeRequest::new(Request::NameBatch { changes: changes.clone() }) else { return };
        let request = Request::Once { id: slot.request_id(), request: change };
        // This clock also counts the time that the machine is suspended.
        let until_ms = self.core.now_ms().saturating_add(CHANGE_RETRY_MS);
        let mut pause = PAUSE_MIN;
        let answer = loop {
            match self.core.metadata.call(request.clone()).await {
                Err(error) if is_transient(&error) => {
                    if self.core.now_ms() > until_ms || self.is_last_user() {
                        break Err(ClientError::OutcomeUnknown { request: "NameBatch" });
                    }
                    tracing::debug!(%error, "directory changes not acknowledged; retrying");
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                answer => break answer,
            }
        };
        match answer {
            Ok(Response::NameBatchApplied { done, leases, failure }) => {
                let done = usize::from(done).min(changes.len());
                self.on_batch_acked(&changes[..done], &leases);
                self.name_queue.state().acknowledge(done);
                if let Some(failure) = failure {
                    let why = || ClientError::Refused(failure.clone());
                    let first = self.name_queue.state().pop();
                    let fenced = is_fenced(&why());
                    let delegation: Vec<DirLeaseId> =
                        first.iter().filter(|_| fenced).flat_map(NameChange::directories).collect();
                    if matches!(first, Some(NameChange::Create(_))) && is_invalid(&why()) {
                        self.name_queue.state().drop_inodes();
                        if self.name_queue.state().start_inode_request(INODES_LOW) {
                            self.request_inode_numbers();
                        }
                    }
                    self.drop_changes(first.into_iter().collect(), why);
                    if let [delegation] = delegation[..] {
                        // All other changes under that delegation would be refused too. Of two
                        // directories the next refusal shows which one it is.
                        let dropped = self.name_queue.state().drop_under(delegation);
                        self.drop_changes(dropped, why);
                    }
                    delegation
                        .iter()
                        .for_each(|delegation| self.on_dir_lease_lost(delegation.inode, delegation.lease));
                }
            }
            Ok(_) => self.drop_batch(changes.len(), &|| ClientError::OTHER_ANSWER),
            Err(error) => {
                let why = error.to_string();
                tracing::error!(error = %why, "metadata server refused directory changes; they are lost");
                self.drop_batch(changes.len(), &|| ClientError::NameChangesUnsent);
            }
        }
        drop(slot);
        self.name_queue.acked.notify_waiters();
    }

    /// Whether only the write-back task still uses this file system.
    fn is_last_user(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
    }

    fn drop_batch(&self, count: usize, why: &dyn Fn() -> ClientError) {
        for _ in 0..count {
            let change = self.name_queue.state().pop();
            self.drop_changes(change.into_iter().collect(), why);
        }
    }
}

/// Flushes local changes in the background until the file system is dropped.
pub(super) async fn writeback_task<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    let Some(queue) = weak.upgrade().map(|shared| shared.name_queue.clone()) else { return };
    loop {
        if queue.state().is_empty() {
            let _ = timeout(CHECK_INTERVAL, queue.queued.notified()).await;
        } else {
            let Some(shared) = weak.upgrade() else { return };
            let has_space = queue.state().has_batch_space();
            if has_space {
                let _ = timeout(BATCH_DELAY, queue.urgent.notified()).await;
            }
            shared.flush_batch().await;
            continue;
        }
        if weak.strong_count() == 0 {
            return;
        }
    }
}

const _: () = assert!(BATCH_MAX <= sealstone_mds_protocol::NAME_CHANGES_MAX && CHANGES_MAX > BATCH_MAX);
