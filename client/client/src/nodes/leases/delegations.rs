//! Directory delegations: use and return.
//!
//! Contract: a change that is queued under a delegation is acknowledged before the delegation is
//! returned, since both check it under the same lock.

use std::sync::Arc;

use sealstone_mds_protocol::{DirLeaseId, InodeId, LeaseKind, Node, NodeLease, Request};
use tokio::sync::OwnedRwLockWriteGuard;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::open_inode::OpenInode;
use super::super::shared::Shared;
use super::RETRY_PAUSE;
use crate::{ClientError, Devices, Metadata};

/// Maximum delegations returned at once.
const PARALLEL_MAX: usize = 16;

impl<M: Metadata, D: Devices> Shared<M, D> {
    /// Whether this client uses directory delegations.
    pub(in super::super) fn uses_delegations(&self) -> bool {
        self.options.directory_delegations && self.leases.recall_link.is_some()
    }

    /// Runs `work` under delegations on these directories. None of them is returned before the
    /// changes that `work` queues are acknowledged.
    pub(in super::super) fn with_dir_lease<T>(
        &self,
        directories: [InodeId; 2],
        work: impl FnOnce([DirLeaseId; 2]) -> Option<T>,
    ) -> Option<T> {
        if !self.uses_delegations() {
            return None;
        }
        let table = &mut *self.leases.table.lock();
        let now = self.lease_time();
        let mut delegations = [DirLeaseId { inode: InodeId(0), epoch: 0, lease: 0 }; 2];
        for (delegation, inode) in delegations.iter_mut().zip(directories) {
            *delegation = table.use_delegation(inode, now)?;
        }
        work(delegations)
    }

    /// Replaces a valid lease by its upgrade and keeps the cached dentries. Returns false if the
    /// old lease is not valid any more.
    pub(in super::super) fn upgrade_lease(&self, inode: InodeId, before: u64, lease: NodeLease) -> bool {
        let mut table = self.leases.table.lock();
        if !table.upgrade(inode, before, lease) {
            return false;
        }
        // Still under the lock, so that no recall comes between.
        self.dentries.with(|table| table.move_to_lease(inode, before, &lease));
        true
    }

    /// Records as returned a lease on a file that was closed meanwhile; the queued close returns
    /// it.
    pub(in super::super) fn record_returned(&self, inode: InodeId, lease: NodeLease) {
        self.leases.table.lock().record_returned(inode, lease, self.lease_time());
    }

    /// Starts the return of a delegation that the server does not know.
    pub(in super::super) fn on_dir_lease_lost(self: &Arc<Self>, inode: InodeId, number: u64) {
        let mut table = self.leases.table.lock();
        if table.has(inode, number) {
            self.start_return(&mut table, inode);
        }
    }

    /// Waits until the delegation on a directory is returned, and so its local changes are
    /// acknowledged.
    ///
    /// # Errors
    /// `NameChangesUnsent` on timeout.
    pub(in super::super) async fn release_dir_lease(
        self: &Arc<Self>,
        inode: InodeId,
    ) -> Result<(), ClientError> {
        let delegated = self.leases.table.lock().lease(inode).filter(|lease| lease.kind == LeaseKind::Write);
        let Some(NodeLease { number, .. }) = delegated.filter(|_| self.open_inode(inode).is_none()) else {
            return Ok(());
        };
        self.on_dir_lease_lost(inode, number);
        let begun = Instant::now();
        loop {
            let changed = self.leases.changed.notified();
            if !self.leases.table.lock().has(inode, number) {
                return Ok(());
            }
            if self.options.timeout.is_some_and(|max| begun.elapsed() >= max) {
                return Err(ClientError::NameChangesUnsent);
            }
            let _ = timeout(RETRY_PAUSE, changed).await;
        }
    }

    /// Returns all directory delegations at shutdown, so that other clients need not wait for a
    /// recall.
    pub(in super::super) async fn release_all_dir_leases(self: &Arc<Self>) {
        let delegated: Vec<_> = {
            let table = self.leases.table.lock();
            let delegated = table.leases().filter(|(_, lease)| lease.kind == LeaseKind::Write);
            delegated.map(|(inode, lease)| (inode, lease.number)).collect()
        };
        let mut works = JoinSet::new();
        for (inode, number) in delegated.into_iter().filter(|(inode, _)| self.open_inode(*inode).is_none()) {
            if works.len() >= PARALLEL_MAX {
                works.join_next().await;
            }
            let shared = self.clone();
            works.spawn_on(
                async move {
                    let request = Request::ReturnLease { inode, client_id: shared.client_id, number };
                    if let Err(error) = shared.core.metadata.call(request).await {
                        tracing::debug!(inode = inode.0, %error, "could not return a directory delegation; the server waits until it expires");
                    }
                },
                &self.runtime,
            );
        }
        while works.join_next().await.is_some() {}
    }

    /// Closes a file that is not open and about to lose its last name, if all of it is stored. The
    /// close is sent with the removal. None if the file has to stay.
    pub(in super::super) fn close_for_unlink(self: &Arc<Self>, node: Node) -> Option<UnlinkClose<M, D>> {
        let open_inode = self.open_inode_or_new(node);
        let closed = self.try_close_for_unlink(&open_inode);
        drop(open_inode);
        if closed.is_none() {
            self.evict_if_unused(node.inode);
        }
        closed
    }

    fn try_close_for_unlink(&self, open_inode: &Arc<OpenInode<M, D>>) -> Option<UnlinkClose<M, D>> {
        let inode = open_inode.node.inode;
        let exclusive = open_inode.open_lock.clone().try_write_owned().ok()?;
        let mut state = open_inode.state();
        if open_inode.open_count() > 0 || state.open.released || self.name_queue.is_unsent_create(inode) {
            return None;
        }
        let Some(stat) = &state.attrs.stat else {
            // It may have a lease from a lookup.
            let was_open = self.drop_lease(inode);
            drop(state);
            return Some(UnlinkClose { open_inode: open_inode.clone(), was_open, _exclusive: exclusive });
        };
        if stat.links != 1 || !state.buffer.is_stored() || !self.drop_lease(inode) {
            return None;
        }
        state.readahead.invalidate(0..u64::MAX);
        (state.attrs.lease_seen, state.open.released) = (0, true);
        drop(state);
        Some(UnlinkClose { open_inode: open_inode.clone(), was_open: true, _exclusive: exclusive })
    }

    /// Unlocks a file that was closed for a removal; later opens wait for the queued changes.
    /// `lost`: whether its name was removed.
    pub(in super::super) fn end_close_for_unlink(&self, closed: UnlinkClose<M, D>, unlinked: bool) {
        let inode = closed.open_inode.node.inode;
        if unlinked {
            self.async_closes.clear_write_failure(inode);
        }
        self.evict(inode);
    }
}

/// A file that was closed for a removal. While this exists, opens of it wait.
pub(in super::super) struct UnlinkClose<M, D> {
    open_inode: Arc<OpenInode<M, D>>,
    /// Whether the file was open or leased at the server.
    pub(in super::super) was_open: bool,
    _exclusive: OwnedRwLockWriteGuard<()>,
}
