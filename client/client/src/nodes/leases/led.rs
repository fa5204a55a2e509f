//! Leases on directories in which names are changed here first.
//!
//! Contract: what is put down while a directory is led is told before its lease is given back: whoever puts it down looks at the
//! lease under the lock under which that begins.

use std::sync::Arc;

use sealstone_mds_protocol::{AheadIn, InodeId, Lease, LeaseKind, Node, Request};
use tokio::sync::OwnedRwLockWriteGuard;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::body::Body;
use super::super::shared::{Shared, lock};
use super::{AGAIN, Entry};
use crate::{ClientError, Devices, Metadata};

/// Directories that are given back at once at most.
const TOGETHER_MAX: usize = 16;

impl<M: Metadata, D: Devices> Shared<M, D> {
    /// Are names changed here first, where that is to be had?
    pub(in super::super) fn leads_names(&self) -> bool {
        self.options.names_ahead && self.leases.second.is_some()
    }

    /// Does something while these directories are led: no lease on them is given back before the server was told of what it
    /// puts down.
    pub(in super::super) fn while_led<T>(
        &self,
        directories: [InodeId; 2],
        work: impl FnOnce([AheadIn; 2]) -> Option<T>,
    ) -> Option<T> {
        if !self.leads_names() {
            return None;
        }
        let book = &mut *lock(&self.leases.book);
        if book.until?.left(self.wall_ms()).is_zero() {
            return None;
        }
        let mut led = [AheadIn { inode: InodeId(0), era: 0, lease: 0 }; 2];
        for (led, inode) in led.iter_mut().zip(directories) {
            let entry = book.entries.get_mut(&inode)?;
            let Lease { kind, number, era } = entry.lease;
            if entry.called.is_some() || era != book.era || kind != LeaseKind::Write {
                return None;
            }
            entry.used = Instant::now();
            *led = AheadIn { inode, era, lease: number };
        }
        work(led)
    }

    /// A lease took the place of another one, which is believed in: what is known by that goes on. Else it is one as any other.
    pub(in super::super) fn take_over_lease(&self, inode: InodeId, before: u64, lease: Lease) -> bool {
        let mut book = lock(&self.leases.book);
        let called = book.overtaken.contains_key(&lease.number);
        let era = book.era;
        let Some(entry) = book.entries.get_mut(&inode) else { return false };
        let same = entry.lease.number == before && entry.lease.era == lease.era && lease.era == era;
        if !same || entry.called.is_some() || called {
            return false;
        }
        entry.lease = lease;
        self.names.go_on(inode, before, &lease);
        true
    }

    /// One was given for what is not held any more: the server hears of that.
    pub(in super::super) fn not_ours(&self, inode: InodeId, lease: Lease) {
        let mut book = lock(&self.leases.book);
        if lease.era == book.era {
            book.gone.note(inode, lease.number);
        }
    }

    /// The server does not know of one that is believed in: it is given up.
    pub(in super::super) fn lead_is_lost(self: &Arc<Self>, inode: InodeId, number: u64) {
        let mut book = lock(&self.leases.book);
        if book.entries.get(&inode).is_some_and(|entry| entry.lease.number == number) {
            self.call_in(&mut book, inode);
        }
    }

    /// A directory is not led from here on: the server was told of what was done in it.
    ///
    /// # Errors
    /// `NamesNotTold`, if it was not there for as long as it is waited for.
    pub(in super::super) async fn lead_no_more(self: &Arc<Self>, inode: InodeId) -> Result<(), ClientError> {
        let led = {
            let book = lock(&self.leases.book);
            book.entries
                .get(&inode)
                .filter(|entry| entry.lease.kind == LeaseKind::Write)
                .map(|entry| entry.lease)
        };
        let Some(Lease { number, .. }) = led.filter(|_| self.body(inode).is_none()) else { return Ok(()) };
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

    /// Gives back all directories that are led, at the end: who looks into one afterwards waits for nobody.
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
                    let request = Request::ReturnLease { inode, holder: shared.holder, number };
                    if let Err(error) = shared.core.metadata.call(request).await {
                        tracing::debug!(inode = inode.0, %error, "a directory is not given back; the server waits for it");
                    }
                },
                &self.runtime,
            );
        }
        while works.join_next().await.is_some() {}
    }

    /// A file that nobody has open here is about to lose its last name: lets go of it, if nothing of it is here that is not
    /// stored; the server hears of that with the name, and nobody opens it before that. None: it stays.
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
            // Looked at, perhaps, by a lease.
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

    /// What was let go of is to be told: whoever opens it now asks after that. `lost`: its name is.
    pub(in super::super) fn gone_here(&self, gone: LetGo<M, D>, lost: bool) {
        let inode = gone.body.node.inode;
        if lost {
            self.closings.forgive(inode);
        }
        self.leave(inode);
    }
}

/// A file that was let go of here. As long as this lives nobody opens it: who wants to finds this body, and waits.
pub(in super::super) struct LetGo<M, D> {
    body: Arc<Body<M, D>>,
    /// Was there something to let go of?
    pub(in super::super) was: bool,
    _alone: OwnedRwLockWriteGuard<()>,
}
