//! Leases of this client: requesting, using and returning them.
//!
//! Does: receives recalls on a connection of its own; says which leases are valid; requests
//! missing ones; keeps closed files cached while they are leased.
//! Does not: know the kernel; a [`CacheInvalidator`] does.
//! Contract: a lease is valid for the time in the answer to Recalls, counted from when the request
//! was sent, by two clocks of which one counts suspended time. An answer does not renew the leases
//! that it recalls. A lease is returned when all data written under it is durable and reported, and
//! its cached data is dropped; later reads and writes request it again. Reads and writes do not
//! wait for a return in progress, so that the return can wait for them.
//! Truth: docs/adr/0046-leases.md; docs/standards/mds/leases.md §5.11.

mod delegations;
mod invalidator;
mod recalls;
mod returned;

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, InodeId, LeaseKind, NodeLease, Recall, Request, Response, Stat,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

pub use invalidator::CacheInvalidator;
pub(super) use recalls::recall_task;

use returned::{RETURNED_KEEP, ReturnedLeases};

use super::background;
use super::name_queue::LEASE_NOT_YET_ASSIGNED;
use super::open_inode::OpenInode;
use super::shared::{Shared, fenced, is_fenced, lock};
use crate::{ClientError, Devices, Metadata};

/// How long the server may delay the answer to Recalls if nothing is recalled.
const WAIT_MS: u32 = 4_000;
/// Minimum time between requests if the server answers early with nothing.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a server that gives no leases is asked again.
const DISABLED_RETRY: Duration = Duration::from_secs(60);
/// How long a recall of an unknown lease waits for the answer that grants it.
const GRANT_DELAY_MAX: Duration = Duration::from_secs(1);
/// How long a denied lease is not requested again. Must be shorter than the server's denial period.
const DENIED_FOR: Duration = Duration::from_secs(1);
/// Pause before a lease is requested again that is being returned.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Maximum closed files that stay cached by their leases.
const CACHED_MAX: usize = 2_048;
/// Number of files to evict, least recently used first, when there are more.
const EVICT_COUNT: usize = 256;
/// Idle time after which the lease of a closed file is returned.
const CACHED_IDLE: Duration = Duration::from_secs(120);
/// Idle time after which a directory delegation is returned, so that other clients need not wait
/// for a recall.
const DELEGATION_IDLE: Duration = Duration::from_secs(6);
/// Time without open files or leases after which Recalls is not sent any more.
const LISTEN_IDLE: Duration = Duration::from_secs(60);

/// The end of a validity period, by two clocks.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    instant: Instant,
    /// By the clock that counts suspended time, in milliseconds since 1970.
    wall_ms: u64,
}

impl Deadline {
    fn left(self, wall_ms: u64) -> Duration {
        let by_wall = Duration::from_millis(self.wall_ms.saturating_sub(wall_ms));
        self.instant.saturating_duration_since(Instant::now()).min(by_wall)
    }
}

struct LeaseEntry<M, D> {
    lease: NodeLease,
    /// Set while the lease is being returned: the end of its validity.
    recalled: Option<Deadline>,
    /// The inode, if no program has it open and it stays cached.
    cached: Option<Arc<OpenInode<M, D>>>,
    last_used: Instant,
}

struct LeaseTable<M, D> {
    /// The current epoch; 0 if it is not known or there are no leases.
    epoch: u64,
    last_recall: u64,
    valid_until: Option<Deadline>,
    entries: BTreeMap<InodeId, LeaseEntry<M, D>>,
    /// Recalls that arrived before the grant, by lease number.
    early_recalls: BTreeMap<u64, InodeId>,
    /// Returned leases, so that late answers that grant them are ignored.
    returned: ReturnedLeases,
}

/// State of the lease on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// Valid, and not recalled.
    Valid,
    /// Recalled, and valid until it is returned.
    Recalled,
    /// Recalled and expired, but not returned yet.
    Expired,
    /// The server gives no leases or does not answer: the client works without them.
    Disabled,
    /// Not granted yet; it has to be requested.
    None,
}

/// The leases of this client.
pub(super) struct LeaseManager<M, D> {
    recall_link: Option<Arc<M>>,
    table: Mutex<LeaseTable<M, D>>,
    invalidator: OnceLock<Arc<dyn CacheInvalidator>>,
    changed: Notify,
    wake: Arc<Notify>,
    /// Set at the end: no request is sent any more.
    stopped: AtomicBool,
}

impl<M: Metadata, D: Devices> LeaseManager<M, D> {
    pub(super) fn new(recall_link: Option<M>) -> Self {
        let table = LeaseTable {
            epoch: 0,
            last_recall: 0,
            valid_until: None,
            entries: BTreeMap::new(),
            early_recalls: BTreeMap::new(),
            returned: ReturnedLeases::default(),
        };
        Self {
            recall_link: recall_link.map(Arc::new),
            table: Mutex::new(table),
            invalidator: OnceLock::new(),
            changed: Notify::new(),
            wake: Arc::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Stops the listener, since a request after EndClient would register this client again.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(super) fn set_cache_invalidator(&self, invalidator: Arc<dyn CacheInvalidator>) {
        let _ = self.invalidator.set(invalidator);
    }

    /// Wakes the listener before something is opened.
    pub(super) fn wake_listener(&self) {
        if self.recall_link.is_some() {
            self.wake.notify_one();
        }
    }

    async fn invalidate_kernel_cache(&self, inode: InodeId) {
        if let Some(invalidator) = self.invalidator.get() {
            invalidator.invalidate(inode).await;
        }
    }
}

impl<M: Metadata, D: Devices> Shared<M, D> {
    fn wall_ms(&self) -> u64 {
        self.core.environment.now_ms()
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
        let wall_ms = self.wall_ms();
        let table = lock(&self.leases.table);
        let left = |until: Option<Deadline>| until.map_or(Duration::ZERO, |until| until.left(wall_ms));
        let entry = table.entries.get(&inode).filter(|entry| entry.lease.epoch == table.epoch);
        match entry {
            Some(LeaseEntry { lease, recalled: Some(until), .. }) => {
                let is_valid =
                    lease.kind >= kind && lease.number == lease_seen && !left(Some(*until)).is_zero();
                if is_valid { LeaseState::Recalled } else { LeaseState::Expired }
            }
            _ if left(table.valid_until).is_zero() => LeaseState::Disabled,
            Some(LeaseEntry { lease, .. }) if lease.kind >= kind && lease.number == lease_seen => {
                LeaseState::Valid
            }
            _ => LeaseState::None,
        }
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
        let mut table = lock(&self.leases.table);
        let left = table.valid_until?.left(self.wall_ms());
        let epoch = table.epoch;
        if !table.entries.contains_key(&inode) && !left.is_zero() && self.name_queue.is_unsent_create(inode) {
            return Some((NodeLease { kind: LeaseKind::Write, number: LEASE_NOT_YET_ASSIGNED, epoch }, left));
        }
        let entry = table.entries.get_mut(&inode)?;
        let is_valid = entry.recalled.is_none() && entry.lease.epoch == epoch && entry.lease.kind >= kind;
        if !is_valid || left.is_zero() {
            return None;
        }
        entry.last_used = Instant::now();
        Some((entry.lease, left))
    }

    /// Returns the client id to send with requests that may grant leases, if leases work at the
    /// moment.
    pub(super) fn client_id_for_leases(&self) -> Option<ClientId> {
        self.leases.wake_listener();
        self.has_leases().then_some(self.client_id)
    }

    /// Whether the server grants leases at the moment.
    fn has_leases(&self) -> bool {
        let table = lock(&self.leases.table);
        table.epoch != 0 && table.valid_until.is_some_and(|until| !until.left(self.wall_ms()).is_zero())
    }

    /// Records a granted lease. Ignores it if it is of another epoch or was returned already.
    pub(super) fn record_grant(self: &Arc<Self>, inode: InodeId, lease: NodeLease) {
        let mut table = lock(&self.leases.table);
        if lease.epoch != table.epoch {
            return;
        }
        if table.entries.get(&inode).is_some_and(|LeaseEntry { lease: known, .. }| {
            known.epoch == lease.epoch && known.number >= lease.number
        }) {
            return;
        }
        if let Some(is_old) = table.returned.was_returned(inode, lease.number) {
            drop(table);
            if is_old {
                // ReturnLease was lost, or this answer is late; then returning it again does
                // nothing.
                let shared = self.clone();
                self.runtime.spawn(async move {
                    let _ = shared.send_return(inode, lease.number).await;
                });
            }
            return;
        }
        let recalled = table.early_recalls.remove(&lease.number).map(|_| {
            // The answer that recalled it renewed nothing.
            Deadline { instant: Instant::now(), wall_ms: 0 }
        });
        let cached = table.entries.remove(&inode).and_then(|old| old.cached);
        table.entries.insert(inode, LeaseEntry { lease, recalled, cached, last_used: Instant::now() });
        drop(table);
        if recalled.is_some() {
            self.spawn_return(inode, lease.number);
        }
    }

    /// Keeps a closed file cached, if it has a valid lease. Evicts others above the limit.
    pub(super) fn keep_cached(self: &Arc<Self>, open_inode: &Arc<OpenInode<M, D>>) -> bool {
        let inode = open_inode.node.inode;
        if open_inode.state().lock_lost {
            // Close it at the server instead, which clears its record there.
            return false;
        }
        let has_no_name = open_inode.state().stat.as_ref().is_some_and(|stat| stat.links == 0);
        if has_no_name
            || self.lease_validity(inode, LeaseKind::Read).is_none()
            || self.options.cached_files_max == 0
        {
            return false;
        }
        let mut table = lock(&self.leases.table);
        let Some(entry) = table.entries.get_mut(&inode).filter(|entry| entry.recalled.is_none()) else {
            return false;
        };
        entry.cached = Some(open_inode.clone());
        let mut cached: Vec<_> = table
            .entries
            .iter()
            .filter(|(_, one)| one.cached.is_some())
            .map(|(id, one)| (one.last_used, *id))
            .collect();
        let max = self.options.cached_files_max.min(CACHED_MAX);
        if cached.len() > max {
            cached.sort_unstable();
            let spare = cached.len() - max + EVICT_COUNT.min(max / 2);
            for (_, id) in cached.into_iter().take(spare) {
                self.start_return(&mut table, id);
            }
        }
        true
    }

    /// Closes a file that is about to lose its last name and is not open, so that the server
    /// removes it at once. Returns whether it was closed.
    pub(super) async fn close_before_unlink(self: &Arc<Self>, inode: InodeId) -> bool {
        let Some(open_inode) = self.open_inode(inode) else { return false };
        let (number, entry) = {
            // Writers check the lease under this lock.
            let mut state = open_inode.state();
            let last = state.stat.as_ref().is_some_and(|stat| stat.links == 1);
            if !last || !state.is_stored() || state.released || open_inode.open_count() > 0 {
                return false;
            }
            let mut table = lock(&self.leases.table);
            let is_valid = table.entries.get(&inode).filter(|entry| entry.recalled.is_none());
            let Some(number) = is_valid.map(|entry| entry.lease.number) else { return false };
            table.returned.record(inode, number);
            state.readahead.invalidate(0..u64::MAX);
            state.lease_seen = 0;
            (number, table.entries.remove(&inode))
        };
        self.dentries.invalidate(inode);
        drop(entry);
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
        let mut table = lock(&self.leases.table);
        if table.entries.get(&inode).is_some_and(|entry| entry.cached.is_some()) {
            self.start_return(&mut table, inode);
        }
    }

    /// Marks a cached file as open again.
    pub(super) fn mark_open(&self, inode: InodeId) {
        if let Some(entry) = lock(&self.leases.table).entries.get_mut(&inode) {
            entry.cached = None;
        }
    }

    /// Starts the return of a lease.
    fn start_return(self: &Arc<Self>, table: &mut LeaseTable<M, D>, inode: InodeId) {
        let until = table.valid_until;
        let Some(entry) = table.entries.get_mut(&inode).filter(|entry| entry.recalled.is_none()) else {
            return;
        };
        entry.recalled = until.or(Some(Deadline { instant: Instant::now(), wall_ms: 0 }));
        let number = entry.lease.number;
        self.spawn_return(inode, number);
    }

    fn spawn_return(self: &Arc<Self>, inode: InodeId, number: u64) {
        let shared = self.clone();
        self.runtime.spawn(async move { shared.return_after_flush(inode, number, true).await });
    }

    /// Returns a lease after everything written under it is durable and reported, and the caches
    /// are dropped.
    async fn return_after_flush(self: &Arc<Self>, inode: InodeId, number: u64, sends_return: bool) {
        let is_ours = |table: &LeaseTable<M, D>| {
            table.entries.get(&inode).is_some_and(|one| one.lease.number == number)
        };
        // Without an open inode, the kernel caches nothing beyond the time without leases.
        let mut used = self.open_inode(inode).is_some();
        if used {
            self.leases.invalidate_kernel_cache(inode).await;
        }
        let closed = loop {
            if let Err(error) = self.sync_names_of(inode).await {
                tracing::warn!(inode = inode.0, %error, "returning a lease waits for directory changes; retrying");
                if !is_ours(&lock(&self.leases.table)) {
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
                if !is_ours(&lock(&self.leases.table)) {
                    return;
                }
                sleep(POLL_INTERVAL).await;
                continue;
            }
            // Writers check the lease under this lock.
            let mut state = open_inode.as_ref().map(|open_inode| open_inode.state());
            if state.as_ref().is_some_and(|state| !state.is_stored()) {
                continue;
            }
            let mut table = lock(&self.leases.table);
            if !is_ours(&table) {
                return;
            }
            let entry = table.entries.remove(&inode);
            table.returned.record(inode, number);
            drop(table);
            self.dentries.invalidate(inode);
            if let Some(state) = &mut state {
                state.readahead.invalidate(0..u64::MAX);
                state.lease_seen = 0;
            }
            drop(entry);
            drop(state);
            break open_inode.filter(|open_inode| open_inode.open_count() == 0);
        };
        // Drops what was read while the data was being stored.
        if used {
            self.leases.invalidate_kernel_cache(inode).await;
        } else if let Some(invalidator) = self.leases.invalidator.get() {
            invalidator.invalidate_list(inode).await;
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
        let mut table = lock(&self.leases.table);
        for recall in recalls {
            match table.entries.get(&recall.inode).map(|entry| entry.lease.number) {
                Some(number) if number == recall.number => self.start_return(&mut table, recall.inode),
                // A newer lease replaced it; the server knows that.
                Some(number) if number > recall.number => {}
                known => {
                    if known.is_some() {
                        // The recalled lease replaces the known one, by an answer that has not
                        // arrived yet.
                        self.start_return(&mut table, recall.inode);
                    }
                    table.early_recalls.insert(recall.number, recall.inode);
                    let (shared, recall) = (self.clone(), *recall);
                    self.runtime.spawn(async move {
                        sleep(GRANT_DELAY_MAX).await;
                        {
                            let mut table = lock(&shared.leases.table);
                            if table.early_recalls.remove(&recall.number).is_none() {
                                return;
                            }
                            // The answer may still arrive.
                            table.returned.record(recall.inode, recall.number);
                        }
                        let _ = shared.send_return(recall.inode, recall.number).await;
                    });
                }
            }
        }
    }

    /// Stores everything, drops all leases and then begins a new epoch.
    async fn begin_epoch(self: &Arc<Self>, epoch: u64) {
        self.name_queue.state().reset();
        // A restarted server has also lost open files without a lease.
        let anew = lock(&self.leases.table).epoch != 0;
        let open = self.open_inodes().into_iter().filter(|open_inode| anew && open_inode.open_count() > 0);
        let open: Vec<InodeId> = open.map(|open_inode| open_inode.node.inode).collect();
        let all: Vec<(InodeId, Option<u64>)> = {
            let mut table = lock(&self.leases.table);
            table.valid_until = None;
            let leased = table.entries.iter().map(|(id, entry)| (*id, Some(entry.lease.number)));
            let others = open.into_iter().filter(|id| !table.entries.contains_key(id));
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
        let mut table = lock(&self.leases.table);
        (table.epoch, table.last_recall) = (epoch, 0);
        table.early_recalls.clear();
        // Returned leases of another epoch are not valid anyway, and their numbers may be reused.
        table.returned = ReturnedLeases::default();
    }

    /// Returns leases that were not used for long. Returns whether any lease is left.
    fn expire_idle(self: &Arc<Self>) -> bool {
        let old = |entry: &LeaseEntry<M, D>| {
            let is_delegation = entry.lease.kind == LeaseKind::Write && entry.cached.is_none();
            entry.recalled.is_none()
                && entry.last_used.elapsed() > if is_delegation { DELEGATION_IDLE } else { CACHED_IDLE }
        };
        let mut old: Vec<(InodeId, bool)> = {
            let table = lock(&self.leases.table);
            let old = table.entries.iter().filter(|(_, entry)| old(entry));
            old.map(|(id, entry)| (*id, entry.cached.is_some())).collect()
        };
        // Leases of open files are not returned for being idle.
        old.retain(|(id, kept)| *kept || self.open_inode(*id).is_none());
        let mut table = lock(&self.leases.table);
        table.returned.prune(RETURNED_KEEP);
        for (inode, _) in old {
            self.start_return(&mut table, inode);
        }
        !table.entries.is_empty()
    }

    /// Forgets a lease that is not being returned, before a CloseNode. Returns whether there was
    /// one.
    pub(super) fn drop_lease(&self, inode: InodeId) -> bool {
        let mut table = lock(&self.leases.table);
        let known = table.entries.get(&inode).filter(|entry| entry.recalled.is_none());
        let Some(number) = known.map(|entry| entry.lease.number) else { return false };
        let entry = table.entries.remove(&inode);
        table.returned.record(inode, number);
        drop(table);
        drop(entry);
        true
    }

    /// Drops all leases at shutdown.
    pub(super) fn drop_leases(&self) {
        let entries = core::mem::take(&mut lock(&self.leases.table).entries);
        drop(entries);
    }
}

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    fn lease_state(&self, kind: LeaseKind) -> LeaseState {
        let lease_seen = self.state().lease_seen;
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
        let locked = lock(&self.shared.locks).remove_all(self.node.inode);
        let mut state = self.state();
        if locked {
            // The file is opened again for reading only.
            (state.lock_lost, state.writes) = (true, false);
        }
        let wrote = !state.is_stored();
        let data_lost = state.data_lost || wrote;
        state.truncate(0);
        state.data_lost = data_lost;
        let size = state.stat.as_ref().map_or(0, |stat| stat.size);
        (state.size, state.writable, state.exclusive_since_version) = (size, false, None);
        // The fenced credentials are refused and not renewed; readers request new ones.
        (state.objects, state.allocated_here) = (None, false);
        state.attr_epoch += 1;
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
        self.state().no_lease_until.is_some_and(|until| Instant::now() < until)
    }

    fn note_lease_denied(&self) {
        self.state().no_lease_until = Some(Instant::now() + DENIED_FOR);
    }

    /// Records attributes that were received with a lease; from here on only this client changes
    /// them.
    fn record_leased_attrs(&self, stat: &Stat, number: u64) {
        let mut state = self.state();
        if state.update_attrs(stat) {
            state.exclusive_since_version = Some(stat.version);
        }
        state.lease_seen = number;
    }

    /// Returns the attributes; of an open file with a lease, if one is granted.
    pub(super) async fn stat(self: &Arc<Self>) -> Result<Stat, ClientError> {
        if self.open_count() > 0 && self.shared.has_leases() {
            self.wait_for_lease(LeaseKind::Read, true).await?;
        }
        if let Some((stat, _)) = self.cached_stat() {
            return Ok(stat);
        }
        let attr_epoch = self.state().attr_epoch;
        let stat = self.shared.call_stat(&Request::GetNode { node: self.node }).await?;
        let stat = self.overlay(stat);
        self.state().attr_epoch_cached = attr_epoch;
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
        let stat = state
            .stat
            .clone()
            .filter(|_| state.lease_seen == number && state.attr_epoch_cached == state.attr_epoch)?;
        drop(state);
        Some((self.overlay(stat), left))
    }

    /// Records a local change of attributes whose result is not known.
    pub(super) fn note_attr_change(&self, rights: bool) {
        let mut state = self.state();
        state.attr_epoch += 1;
        state.rights_changed |= rights;
    }

    /// Whether it can be opened with this access without a request.
    pub(super) fn can_open_locally(&self, access: Access) -> bool {
        let kind = if access == Access::Read { LeaseKind::Read } else { LeaseKind::Write };
        let Some((number, _)) = self.shared.lease_validity(self.node.inode, kind) else { return false };
        let state = self.state();
        let reads = access == Access::Write || state.reads;
        let writes = access == Access::Read || state.writes;
        let there = state.objects.is_some() || state.stat.as_ref().is_some_and(|stat| stat.width == 0);
        let is_current = state.lease_seen == number
            && state.attr_epoch_cached == state.attr_epoch
            && !state.rights_changed
            && !state.layout_stale
            && !state.lock_lost;
        reads && writes && there && is_current && state.error.is_none()
    }
}
