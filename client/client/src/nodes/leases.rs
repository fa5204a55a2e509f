//! Leases of this client: requesting, using and returning them.
//!
//! Does: receives recalls on a connection of its own; requests missing leases; keeps closed files
//! cached while they are leased.
//! Does not: decide which leases are valid; [`LeaseTable`] does.
//! Does not: know the kernel; a [`CacheInvalidator`](super::CacheInvalidator) does.
//! Contract: an answer to Recalls does not renew the leases that it recalls. A lease is returned
//! when all data written under it is durable and reported, and its cached data is dropped; later
//! reads and writes request it again. Reads and writes do not wait for a return in progress, so
//! that the return can wait for them.
//! Truth: docs/adr/0046-leases.md; docs/standards/mds/leases.md §5.11.

mod delegations;
mod recalls;

use core::time::Duration;
use std::sync::Arc;

use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, InodeId, LeaseKind, NodeLease, Recall, Request, Response, Stat,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

pub(super) use recalls::recall_task;

use super::background;
use super::errors::{fenced, is_fenced};
use super::lease_table::{GRANT_DELAY_MAX, GrantOutcome, LeaseState, LeaseTable, LeaseTime, RecallOutcome};
use super::name_queue::LEASE_NOT_YET_ASSIGNED;
use super::open_inode::OpenInode;
use super::shared::Shared;
use crate::{ClientError, Devices, Metadata};

/// How long the server may delay the answer to Recalls if nothing is recalled.
const WAIT_MS: u32 = 4_000;
/// Minimum time between requests if the server answers early with nothing.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a server that gives no leases is asked again.
const DISABLED_RETRY: Duration = Duration::from_secs(60);
/// How long a denied lease is not requested again. Must be shorter than the server's denial period.
const DENIED_FOR: Duration = Duration::from_secs(1);
/// Pause before a lease is requested again that is being returned.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Time without open files or leases after which Recalls is not sent any more.
const LISTEN_IDLE: Duration = Duration::from_secs(60);

impl<M: Metadata, D: Devices> Shared<M, D> {
    fn lease_time(&self) -> LeaseTime {
        LeaseTime { instant: Instant::now(), wall_ms: self.core.environment.now_ms() }
    }

    /// Returns the state of a lease of this kind or stronger. A lease under which the attributes
    /// were not received counts as missing, since they may be older.
    pub(super) fn lease_state(&self, inode: InodeId, kind: LeaseKind, lease_seen: u64) -> LeaseState {
        if self.leases.recall_link.is_none() {
            return LeaseState::Disabled;
        }
        if lease_seen == LEASE_NOT_YET_ASSIGNED && self.name_queue.is_unsent_create(inode) {
            return LeaseState::Valid;
        }
        self.leases.table.lock().state(inode, kind, lease_seen, self.lease_time())
    }

    /// Returns lease number and remaining validity, if the lease is valid and not recalled.
    pub(super) fn lease_validity(&self, inode: InodeId, kind: LeaseKind) -> Option<(u64, Duration)> {
        self.find_valid_lease(inode, kind).map(|(lease, left)| (lease.number, left))
    }

    /// Returns the valid lease on a node.
    pub(super) fn valid_lease(&self, inode: InodeId) -> Option<NodeLease> {
        self.find_valid_lease(inode, LeaseKind::Read).map(|(lease, _)| lease)
    }

    fn find_valid_lease(&self, inode: InodeId, kind: LeaseKind) -> Option<(NodeLease, Duration)> {
        let (mut table, now) = (self.leases.table.lock(), self.lease_time());
        let left = table.validity(now);
        if !table.contains(inode) && !left.is_zero() && self.name_queue.is_unsent_create(inode) {
            let epoch = table.epoch();
            return Some((NodeLease { kind: LeaseKind::Write, number: LEASE_NOT_YET_ASSIGNED, epoch }, left));
        }
        table.use_valid(inode, kind, now)
    }

    /// Returns the client id to send with requests that may grant leases, if leases work at the
    /// moment.
    pub(super) fn client_id_for_leases(&self) -> Option<ClientId> {
        self.leases.wake_listener();
        self.has_leases().then_some(self.client_id)
    }

    /// Whether the server grants leases at the moment.
    fn has_leases(&self) -> bool {
        self.leases.table.lock().grants_leases(self.lease_time())
    }

    /// Records a granted lease. Ignores it if it is of another epoch or was returned already.
    pub(super) fn record_grant(self: &Arc<Self>, inode: InodeId, lease: NodeLease) {
        let outcome = self.leases.table.lock().record_grant(inode, lease, self.lease_time());
        match outcome {
            GrantOutcome::Recorded | GrantOutcome::Ignored => {}
            GrantOutcome::Recalled => self.spawn_return(inode, lease.number),
            GrantOutcome::ReturnedBefore => {
                // ReturnLease was lost, or this answer is late; then returning it again does
                // nothing.
                let shared = self.clone();
                self.runtime.spawn(async move {
                    let _ = shared.send_return(inode, lease.number).await;
                });
            }
        }
    }

    /// Keeps a closed file cached, if it has a valid lease. Evicts others above the limit.
    pub(super) fn keep_cached(self: &Arc<Self>, open_inode: &Arc<OpenInode<M, D>>) -> bool {
        let inode = open_inode.node.inode;
        if open_inode.state().open.lock_lost {
            // Close it at the server instead, which clears its record there.
            return false;
        }
        let has_no_name = open_inode.state().attrs.stat.as_ref().is_some_and(|stat| stat.links == 0);
        if has_no_name
            || self.lease_validity(inode, LeaseKind::Read).is_none()
            || self.options.cached_files_max == 0
        {
            return false;
        }
        let mut table = self.leases.table.lock();
        let max = self.options.cached_files_max;
        let Some(evicted) = table.keep_cached(inode, open_inode.clone(), max) else { return false };
        evicted.into_iter().for_each(|inode| self.start_return(&mut table, inode));
        true
    }

    /// Closes a file that is about to lose its last name and is not open, so that the server
    /// removes it at once. Returns whether it was closed.
    pub(super) async fn close_before_unlink(self: &Arc<Self>, inode: InodeId) -> bool {
        let Some(open_inode) = self.open_inode(inode) else { return false };
        let (number, cached) = {
            // Writers check the lease under this lock.
            let mut state = open_inode.state();
            let last = state.attrs.stat.as_ref().is_some_and(|stat| stat.links == 1);
            if !last || !state.buffer.is_stored() || state.open.released || open_inode.open_count() > 0 {
                return false;
            }
            let forgotten = self.leases.table.lock().forget(inode, self.lease_time());
            let Some((number, cached)) = forgotten else { return false };
            state.readahead.invalidate(0..u64::MAX);
            state.attrs.lease_seen = 0;
            (number, cached)
        };
        self.dentries.with(|table| table.invalidate(inode));
        drop(cached);
        background::close(&open_inode).await;
        if open_inode.open_count() > 0 {
            // It was opened meanwhile, and the open continues without a lease.
            self.leases.invalidate_kernel_cache(inode).await;
            if let Err(error) = self.send_return(inode, number).await {
                tracing::debug!(%error, "could not return a lease; the server revokes it");
            }
        }
        drop(open_inode);
        self.evict_if_unused(inode);
        true
    }

    /// Invalidates the kernel's cache of a file that was not removed after all.
    pub(super) async fn invalidate_kernel_cache(&self, inode: InodeId) {
        self.leases.invalidate_kernel_cache(inode).await;
    }

    /// Starts the return of the lease of a file without names, so that the server removes it.
    pub(super) fn on_last_name_removed(self: &Arc<Self>, inode: InodeId) {
        let mut table = self.leases.table.lock();
        if table.is_cached(inode) {
            self.start_return(&mut table, inode);
        }
    }

    /// Marks a cached file as open again.
    pub(super) fn mark_open(&self, inode: InodeId) {
        self.leases.table.lock().mark_open(inode);
    }

    /// Starts the return of a lease.
    fn start_return(self: &Arc<Self>, table: &mut LeaseTable<Arc<OpenInode<M, D>>>, inode: InodeId) {
        if let Some(number) = table.begin_return(inode, self.lease_time()) {
            self.spawn_return(inode, number);
        }
    }

    fn spawn_return(self: &Arc<Self>, inode: InodeId, number: u64) {
        let shared = self.clone();
        self.runtime.spawn(async move { shared.return_after_flush(inode, number, true).await });
    }

    /// Returns a lease after everything written under it is durable and reported, and the caches
    /// are dropped.
    async fn return_after_flush(self: &Arc<Self>, inode: InodeId, number: u64, sends_return: bool) {
        // Without an open inode, the kernel caches nothing beyond the time without leases.
        let mut used = self.open_inode(inode).is_some();
        if used {
            self.leases.invalidate_kernel_cache(inode).await;
        }
        let closed = loop {
            if let Err(error) = self.sync_names_of(inode).await {
                tracing::warn!(inode = inode.0, %error, "returning a lease waits for directory changes; retrying");
                if !self.leases.table.lock().has(inode, number) {
                    return;
                }
                sleep(POLL_INTERVAL).await;
                continue;
            }
            let open_inode = self.open_inode(inode);
            used |= open_inode.is_some();
            self.flush_directory(inode).await;
            let stored = match &open_inode {
                Some(open_inode) => open_inode.store().await,
                None => Ok(()),
            };
            if let (Err(error), Some(open_inode)) = (&stored, &open_inode)
                && is_fenced(error)
            {
                open_inode.discard();
                continue;
            }
            if let Err(error) = stored {
                tracing::warn!(inode = inode.0, %error, "returning a lease waits for written data; retrying");
                if !self.leases.table.lock().has(inode, number) {
                    return;
                }
                sleep(POLL_INTERVAL).await;
                continue;
            }
            // Writers check the lease under this lock.
            let mut state = open_inode.as_ref().map(|open_inode| open_inode.state());
            if state.as_ref().is_some_and(|state| !state.buffer.is_stored()) {
                continue;
            }
            let mut table = self.leases.table.lock();
            if !table.has(inode, number) {
                return;
            }
            let cached = table.end_return(inode, number, self.lease_time());
            drop(table);
            self.dentries.with(|table| table.invalidate(inode));
            if let Some(state) = &mut state {
                state.readahead.invalidate(0..u64::MAX);
                state.attrs.lease_seen = 0;
            }
            drop(cached);
            drop(state);
            break open_inode.filter(|open_inode| open_inode.open_count() == 0);
        };
        // Drops what was read while the data was being stored.
        if used {
            self.leases.invalidate_kernel_cache(inode).await;
        } else {
            self.leases.invalidate_kernel_list(inode).await;
        }
        self.leases.changed.notify_waiters();
        let open = match &closed {
            Some(open_inode) => {
                // No program has it open: CloseNode returns the lease too.
                background::close(open_inode).await;
                open_inode.open_count() > 0
            }
            None => true,
        };
        if sends_return
            && open
            && let Err(error) = self.send_return(inode, number).await
        {
            tracing::debug!(%error, "could not return a lease; the server revokes it");
        }
        drop(closed);
        self.evict_if_unused(inode);
    }

    async fn send_return(&self, inode: InodeId, number: u64) -> Result<(), ClientError> {
        self.call_done(&Request::ReturnLease { inode, client_id: self.client_id, number }).await
    }

    /// Starts the return of recalled leases.
    fn on_recalls(self: &Arc<Self>, recalls: &[Recall]) {
        let mut table = self.leases.table.lock();
        for recall in recalls {
            let outcome = table.on_recall(recall, self.lease_time());
            if let RecallOutcome::Return(Some(number)) | RecallOutcome::Early(Some(number)) = outcome {
                self.spawn_return(recall.inode, number);
            }
            if let RecallOutcome::Early(_) = outcome {
                let (shared, recall) = (self.clone(), *recall);
                self.runtime.spawn(async move {
                    sleep(GRANT_DELAY_MAX).await;
                    let expired =
                        shared.leases.table.lock().expire_early_recall(&recall, shared.lease_time());
                    if expired {
                        let _ = shared.send_return(recall.inode, recall.number).await;
                    }
                });
            }
        }
    }

    /// Stores everything, drops all leases and then begins a new epoch.
    async fn begin_epoch(self: &Arc<Self>, epoch: u64) {
        self.name_queue.state().reset();
        // A restarted server has also lost open files without a lease.
        let anew = self.leases.table.lock().epoch() != 0;
        let open = self.open_inodes().into_iter().filter(|open_inode| anew && open_inode.open_count() > 0);
        let open: Vec<InodeId> = open.map(|open_inode| open_inode.node.inode).collect();
        let all: Vec<(InodeId, Option<u64>)> = {
            let mut table = self.leases.table.lock();
            table.end_epoch();
            let leased = table.leases().map(|(id, lease)| (id, Some(lease.number)));
            let others = open.into_iter().filter(|id| !table.contains(*id));
            leased.chain(others.map(|id| (id, None))).collect()
        };
        let mut works = JoinSet::new();
        for (inode, number) in all {
            let shared = self.clone();
            works.spawn_on(
                async move {
                    if let Some(open_inode) = shared.open_inode(inode)
                        && open_inode.open_count() > 0
                    {
                        background::reopen(&shared, &open_inode).await;
                    }
                    if let Some(number) = number {
                        shared.return_after_flush(inode, number, false).await;
                    }
                    shared.evict_if_unused(inode);
                },
                &self.runtime,
            );
        }
        while works.join_next().await.is_some() {}
        // A request with the new epoch confirms that nothing of an older epoch is left to send.
        while let Err(error) = self.sync_names().await {
            tracing::warn!(%error, "directory changes not acknowledged; retrying");
        }
        self.leases.table.lock().begin_epoch(epoch);
    }

    /// Returns leases that were not used for long. Returns whether any lease is left.
    fn expire_idle(self: &Arc<Self>) -> bool {
        let mut old = self.leases.table.lock().idle(self.lease_time());
        // Leases of open files are not returned for being idle.
        old.retain(|(id, kept)| *kept || self.open_inode(*id).is_none());
        let mut table = self.leases.table.lock();
        table.prune_returned(self.lease_time());
        for (inode, _) in old {
            self.start_return(&mut table, inode);
        }
        !table.is_empty()
    }

    /// Forgets a lease that is not being returned, before a CloseNode. Returns whether there was
    /// one.
    pub(super) fn drop_lease(&self, inode: InodeId) -> bool {
        // The file may be dropped with it, which needs the lock.
        let forgotten = self.leases.table.lock().forget(inode, self.lease_time());
        forgotten.is_some()
    }

    /// Drops all leases at shutdown.
    pub(super) fn drop_leases(&self) {
        let cached = self.leases.table.lock().clear();
        drop(cached);
    }
}

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    fn lease_state(&self, kind: LeaseKind) -> LeaseState {
        let lease_seen = self.state().attrs.lease_seen;
        self.shared.lease_state(self.node.inode, kind, lease_seen)
    }

    /// Waits for a lease, or until it is clear that none is granted. `quiet`: also waits while a
    /// recalled lease is being returned.
    pub(super) async fn wait_for_lease(
        self: &Arc<Self>,
        kind: LeaseKind,
        quiet: bool,
    ) -> Result<(), ClientError> {
        loop {
            let changed = self.shared.leases.changed.notified();
            match self.lease_state(kind) {
                LeaseState::Valid | LeaseState::Disabled => return Ok(()),
                LeaseState::Recalled if !quiet => return Ok(()),
                LeaseState::Recalled | LeaseState::Expired => {
                    let _ = timeout(RETRY_PAUSE, changed).await;
                    continue;
                }
                LeaseState::None => {}
            }
            if self.is_lease_denied() {
                return Ok(());
            }
            let _guard = self.lease_requests.lock().await;
            if self.lease_state(kind) != LeaseState::None || self.is_lease_denied() {
                continue;
            }
            let request = Request::LeaseNode { node: self.node, client_id: self.shared.client_id, kind };
            self.shared.flush_dependencies_of(&request).await?;
            match self.shared.core.metadata.call(request.clone()).await {
                Ok(Response::Leased { stat, lease }) => match lease {
                    Some(lease) => {
                        self.record_leased_attrs(&stat, lease.number);
                        self.shared.record_grant(self.node.inode, lease);
                        if self.lease_state(kind) == LeaseState::None {
                            // It is being returned.
                            sleep(RETRY_PAUSE).await;
                        }
                    }
                    None => self.note_lease_denied(),
                },
                Ok(_) => return Err(ClientError::OTHER_ANSWER),
                Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Busy => {
                    sleep(RETRY_PAUSE).await
                }
                Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Invalid => {
                    // The server restarted or dropped the open files of this client.
                    self.note_lease_denied();
                    match self.reopen().await {
                        Err(error) if is_fenced(&error) => self.discard(),
                        outcome => outcome?,
                    }
                }
                Err(error) => {
                    // Continue without a lease; the error recurs where it matters.
                    tracing::debug!(inode = self.node.inode.0, %error, "lease request failed");
                    self.note_lease_denied();
                }
            }
        }
    }

    /// Discards unsaved data after the client was fenced; writers get an error.
    pub(super) fn discard(&self) {
        let locked = self.shared.locks.lock().remove_all(self.node.inode);
        let mut state = self.state();
        if locked {
            // The file is opened again for reading only.
            (state.open.lock_lost, state.open.writes) = (true, false);
        }
        let wrote = !state.buffer.is_stored();
        let data_lost = state.buffer.data_lost || wrote;
        state.truncate(0);
        state.buffer.data_lost = data_lost;
        let size = state.attrs.stat.as_ref().map_or(0, |stat| stat.size);
        (state.attrs.size, state.layout.writable, state.attrs.exclusive_since_version) = (size, false, None);
        // The fenced credentials are refused and not renewed; readers request new ones.
        state.layout.drop_objects();
        state.attrs.note_change(false);
        if wrote || locked {
            state.error.get_or_insert(fenced());
        }
        drop(state);
        let inode = self.node.inode.0;
        match (wrote, locked) {
            (true, true) => {
                tracing::warn!(inode, "client was fenced; locks and unflushed writes lost")
            }
            (true, false) => {
                tracing::warn!(inode, "client was fenced; unflushed writes lost")
            }
            (false, true) => tracing::warn!(inode, "client was fenced; locks lost"),
            (false, false) => tracing::debug!(inode, "client was fenced; nothing lost"),
        }
        self.completed.notify_waiters();
    }

    pub(super) fn is_lease_denied(&self) -> bool {
        self.state().attrs.no_lease_until.is_some_and(|until| Instant::now() < until)
    }

    fn note_lease_denied(&self) {
        self.state().attrs.no_lease_until = Some(Instant::now() + DENIED_FOR);
    }

    /// Records attributes that were received with a lease; from here on only this client changes
    /// them.
    fn record_leased_attrs(&self, stat: &Stat, number: u64) {
        let mut state = self.state();
        if state.update_attrs(stat) {
            state.attrs.exclusive_since_version = Some(stat.version);
        }
        state.attrs.lease_seen = number;
    }

    /// Returns the attributes; of an open file with a lease, if one is granted.
    pub(super) async fn stat(self: &Arc<Self>) -> Result<Stat, ClientError> {
        if self.open_count() > 0 && self.shared.has_leases() {
            self.wait_for_lease(LeaseKind::Read, true).await?;
        }
        if let Some((stat, _)) = self.cached_stat() {
            return Ok(stat);
        }
        let attr_epoch = self.state().attrs.change_epoch;
        let stat = self.shared.call_stat(&Request::GetNode { node: self.node }).await?;
        let stat = self.overlay(stat);
        self.state().attrs.cached_epoch = attr_epoch;
        Ok(stat)
    }

    /// Returns how long the kernel may cache attributes; none means as for a file that is not open.
    pub(super) fn attr_validity(&self) -> Option<Duration> {
        match self.shared.lease_validity(self.node.inode, LeaseKind::Read) {
            Some((_, left)) => Some(left),
            // They are requested with a lease before they are used.
            None if self.open_count() > 0 && self.shared.has_leases() => Some(Duration::ZERO),
            None => None,
        }
    }

    /// Returns the attributes, if a lease keeps them valid, and for how long.
    pub(super) fn cached_stat(&self) -> Option<(Stat, Duration)> {
        let (number, left) = self.shared.lease_validity(self.node.inode, LeaseKind::Read)?;
        let state = self.state();
        let stat = state.attrs.stat.clone().filter(|_| state.attrs.is_current_under(number))?;
        drop(state);
        Some((self.overlay(stat), left))
    }

    /// Records a local change of attributes whose result is not known.
    pub(super) fn note_attr_change(&self, rights: bool) {
        let mut state = self.state();
        state.attrs.note_change(rights);
    }

    /// Whether it can be opened with this access without a request.
    pub(super) fn can_open_locally(&self, access: Access) -> bool {
        let kind = if access == Access::Read { LeaseKind::Read } else { LeaseKind::Write };
        let Some((number, _)) = self.shared.lease_validity(self.node.inode, kind) else { return false };
        let state = self.state();
        let there =
            state.layout.objects.is_some() || state.attrs.stat.as_ref().is_some_and(|stat| stat.width == 0);
        let is_current = state.attrs.is_current_under(number)
            && !state.attrs.rights_changed
            && !state.layout.stale
            && !state.open.lock_lost;
        state.open.covers(access) && there && is_current && state.error.is_none()
    }
}
