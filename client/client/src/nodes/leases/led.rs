//! Leases on directories in which names are changed here first.
//!
//! Contract: what is put down while a directory is led is told before its lease is given back: whoever puts it down looks at the
//! lease under the lock under which that begins.

use std::sync::Arc;

use sealstone_mds_protocol::{AheadIn, InodeId, Lease, LeaseKind, Request};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::shared::{Shared, lock};
use super::{AGAIN, Entry};
use crate::{Devices, Metadata};

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
    pub(in super::super) async fn lead_no_more(self: &Arc<Self>, inode: InodeId) {
        let led = {
            let book = lock(&self.leases.book);
            book.entries
                .get(&inode)
                .filter(|entry| entry.lease.kind == LeaseKind::Write)
                .map(|entry| entry.lease)
        };
        let Some(Lease { number, .. }) = led.filter(|_| self.body(inode).is_none()) else { return };
        self.lead_is_lost(inode, number);
        loop {
            let moved = self.leases.moved.notified();
            let is_there = |entry: &Entry<M, D>| entry.lease.number == number;
            if !lock(&self.leases.book).entries.get(&inode).is_some_and(is_there) {
                return;
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
    /// stored; the server hears of that with the name. Says whether there was something to let go of; none: it stays.
    pub(in super::super) fn let_go_here(&self, inode: InodeId) -> Option<bool> {
        let Some(body) = self.body(inode) else {
            // Looked at, perhaps, by a lease.
            return Some(self.drop_lease(inode));
        };
        let _holding = body.holding.try_write().ok()?;
        let mut state = body.state();
        let last = state.stat.as_ref().is_some_and(|stat| stat.links == 1);
        if !last || !state.is_stored() || state.let_go || body.open_count() > 0 || self.ledger.is_own(inode) {
            return None;
        }
        if !self.drop_lease(inode) {
            return None;
        }
        state.ahead.forget(0..u64::MAX);
        (state.seen_under, state.let_go) = (0, true);
        drop(state);
        self.leave(inode);
        Some(true)
    }
}
