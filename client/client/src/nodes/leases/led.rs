//! Directory delegations: use and return.
//!
//! Contract: a change that is queued under a delegation is acknowledged before the delegation is
//! returned, since both check it under the same lock.

use std::sync::Arc;

use sealstone_mds_protocol::{DirLeaseId, InodeId, LeaseKind, Node, NodeLease, Request};
use tokio::sync::OwnedRwLockWriteGuard;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::body::Body;
use super::super::shared::{Shared, lock};
use super::{AGAIN, Entry};
use crate::{ClientError, Devices, Metadata};

/// Maximum delegations returned at once.
const TOGETHER_MAX: usize = 16;

impl<M: Metadata, D: Devices> Shared<M, D> {
    /// Whether this client uses directory delegations.
    pub(in super::super) fn leads_names(&self) -> bool {
        self.options.names_ahead && self.leases.second.is_some()
    }

    /// Runs `work` under delegations on these directories. None of them is returned before the
    /// changes that `work` queues are acknowledged.
    pub(in super::super) fn while_led<T>(
        &self,
        directories: [InodeId; 2],
        work: impl FnOnce([DirLeaseId; 2]) -> Option<T>,
    ) -> Option<T> {
        if !self.leads_names() {
            return None;
        }
        let book = &mut *lock(&self.leases.book);
        if book.until?.left(self.wall_ms()).is_zero() {
            return None;
        }
        let mut led = [DirLeaseId { inode: InodeId(0), epoch: 0, lease: 0 }; 2];
        for (led, inode) in led.iter_mut().zip(directories) {
            let entry = book.entries.get_mut(&inode)?;
            let NodeLease { kind, number, epoch } = entry.lease;
            if entry.called.is_some() || epoch != book.epoch || kind != LeaseKind::Write {
                return None;
            }
            entry.used = Instant::now();
            *led = DirLeaseId { inode, epoch, lease: number };
        }
        work(led)
    }

    /// Replaces a valid lease by its upgrade and keeps the cached dentries. Returns false if the
    /// old lease is not valid any more.
    pub(in super::super) fn take_over_lease(&self, inode: InodeId, before: u64, lease: NodeLease) -> bool {
        let mut book = lock(&self.leases.book);
        let called = book.overtaken.contains_key(&lease.number);
        let epoch = book.epoch;
        let Some(entry) = book.entries.get_mut(&inode) else { return false };
        let same = entry.lease.number == before && entry.lease.epoch == lease.epoch && lease.epoch == epoch;
        if !same || entry.called.is_some() || called {
            return false;
        }
        entry.lease = lease;
        self.names.go_on(inode, before, &lease);
        true
    }

    /// Records as returned a lease on a file that was closed meanwhile; the queued close returns
    /// it.
    pub(in super::super) fn not_ours(&self, inode: InodeId, lease: NodeLease) {
        let mut book = lock(&self.leases.book);
        if lease.epoch == book.epoch {
            book.gone.note(inode, lease.number);
        }
    }

    /// Starts the return of a delegation that the server does not know.
    pub(in super::super) fn lead_is_lost(self: &Arc<Self>, inode: InodeId, number: u64) {
        let mut book = lock(&self.leases.book);
        if book.entries.get(&inode).is_some_and(|entry| entry.lease.number == number) {
            self.call_in(&mut book, inode);
        }
    }

    /// Waits until the delegation on a directory is returned, and so its local changes are
    /// acknowledged.
    ///
    /// # Errors
    /// `NamesNotTold` on timeout.
    pub(in super::super) async fn lead_no_more(self: &Arc<Self>, inode: InodeId) -> Result<(), ClientError> {
        let led = {
            let book = lock(&self.leases.book);
            book.entries
                .get(&inode)
                .filter(|entry| entry.lease.kind == LeaseKind::Write)
                .map(|entry| entry.lease)
        };
        let Some(NodeLease { number, .. }) = led.filter(|_| self.body(inode).is_none()) else {
            return Ok(());
        };
        self.lead_is_lost(inode, number);
        let begun = Instant::now();
        loop {
            let moved = self.leases.moved.notified();
            let is_there = |entry: &Entry<M, D>| entry.lease.number == number;
            if !lock(&self.leases.book).entries.get(&inode).is_some_and(is_there) {
                return Ok(());
            }
            if self.options.timeout.is_some_and(|max| begun.elapsed() >= max) {
                return Err(ClientError::NamesNotTold);
            }
            let _ = timeout(AGAIN, moved).await;
        }
    }

    /// Returns all directory delegations at shutdown, so that other clients need not wait for a
    /// recall.
    pub(in super::super) async fn lead_nothing(self: &Arc<Self>) {
        let led: Vec<_> = {
            let book = lock(&self.leases.book);
            let led = book.entries.iter().filter(|(_, entry)| entry.lease.kind == LeaseKind::Write);
            led.map(|(inode, entry)| (*inode, entry.lease.number)).collect()
        };
        let mut works = JoinSet::new();
        for (inode, number) in led.into_iter().filter(|(inode, _)| self.body(*inode).is_none()) {
            if works.len() >= TOGETHER_MAX {
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
    pub(in super::super) fn let_go_here(self: &Arc<Self>, node: Node) -> Option<LetGo<M, D>> {
        let body = self.body_or_make(node);
        let gone = self.let_go_alone(&body);
        drop(body);
        if gone.is_none() {
            self.forget(node.inode);
        }
        gone
    }

    fn let_go_alone(&self, body: &Arc<Body<M, D>>) -> Option<LetGo<M, D>> {
        let inode = body.node.inode;
        let alone = body.holding.clone().try_write_owned().ok()?;
        let mut state = body.state();
        if body.open_count() > 0 || state.let_go || self.ledger.is_own(inode) {
            return None;
        }
        let Some(stat) = &state.stat else {
            // It may have a lease from a lookup.
            let was = self.drop_lease(inode);
            drop(state);
            return Some(LetGo { body: body.clone(), was, _alone: alone });
        };
        if stat.links != 1 || !state.is_stored() || !self.drop_lease(inode) {
            return None;
        }
        state.ahead.forget(0..u64::MAX);
        (state.seen_under, state.let_go) = (0, true);
        drop(state);
        Some(LetGo { body: body.clone(), was: true, _alone: alone })
    }

    /// Unlocks a file that was closed for a removal; later opens wait for the queued changes.
    /// `lost`: whether its name was removed.
    pub(in super::super) fn gone_here(&self, gone: LetGo<M, D>, lost: bool) {
        let inode = gone.body.node.inode;
        if lost {
            self.closings.forgive(inode);
        }
        self.leave(inode);
    }
}

/// A file that was closed for a removal. While this exists, opens of it wait.
pub(in super::super) struct LetGo<M, D> {
    body: Arc<Body<M, D>>,
    /// Whether the file was open or leased at the server.
    pub(in super::super) was: bool,
    _alone: OwnedRwLockWriteGuard<()>,
}
