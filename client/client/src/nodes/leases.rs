//! Leases of this client: requesting, using and returning them.
//!
//! Does: receives recalls on a connection of its own; says which leases are valid; requests
//! missing ones; keeps closed files cached while they are leased.
//! Does not: know the kernel; a [`Keeper`] does.
//! Contract: a lease is valid for the time in the answer to Recalls, counted from when the request
//! was sent, by two clocks of which one counts suspended time. An answer does not renew the leases
//! that it recalls. A lease is returned when all data written under it is durable and reported, and
//! its cached data is dropped; later reads and writes request it again. Reads and writes do not
//! wait for a return in progress, so that the return can wait for them.
//! Truth: docs/adr/0046-leases.md; docs/standards/mds/leases.md §5.11.

mod gone;
mod keeper;
mod led;
mod listen;

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

pub use keeper::Keeper;
pub(super) use listen::listen;

use gone::{GONE_FOR, Gone};

use super::body::Body;
use super::keep;
use super::ledger::OWN;
use super::shared::{Shared, fenced, is_fenced, lock};
use crate::{ClientError, Devices, Metadata};

/// How long the server may delay the answer to Recalls if nothing is recalled.
const WAIT_MS: u32 = 4_000;
/// Minimum time between requests if the server answers early with nothing.
const PACE: Duration = Duration::from_secs(1);
/// How often a server that gives no leases is asked again.
const NONE_HERE: Duration = Duration::from_secs(60);
/// How long a recall of an unknown lease waits for the answer that grants it.
const OVERTAKEN: Duration = Duration::from_secs(1);
/// How long a denied lease is not requested again. Must be shorter than the server's denial period.
const WITHOUT: Duration = Duration::from_secs(1);
/// Pause before a lease is requested again that is being returned.
const AGAIN: Duration = Duration::from_millis(20);
/// Maximum closed files that stay cached by their leases.
const KEPT_MAX: usize = 2_048;
/// Number of files to evict, least recently used first, when there are more.
const KEPT_SPARE: usize = 256;
/// Idle time after which the lease of a closed file is returned.
const KEPT_FOR: Duration = Duration::from_secs(120);
/// Idle time after which a directory delegation is returned, so that other clients need not wait
/// for a recall.
const LED_FOR: Duration = Duration::from_secs(6);
/// Time without open files or leases after which Recalls is not sent any more.
const IDLE: Duration = Duration::from_secs(60);

/// The end of a validity period, by two clocks.
#[derive(Clone, Copy, Debug)]
struct Until {
    instant: Instant,
    /// By the clock that counts suspended time, in milliseconds since 1970.
    wall_ms: u64,
}

impl Until {
    fn left(self, wall_ms: u64) -> Duration {
        let by_wall = Duration::from_millis(self.wall_ms.saturating_sub(wall_ms));
        self.instant.saturating_duration_since(Instant::now()).min(by_wall)
    }
}

struct Entry<M, D> {
    lease: NodeLease,
    /// Set while the lease is being returned: the end of its validity.
    called: Option<Until>,
    /// The inode, if no program has it open and it stays cached.
    kept: Option<Arc<Body<M, D>>>,
    used: Instant,
}

struct Book<M, D> {
    /// The current epoch; 0 if it is not known or there are no leases.
    epoch: u64,
    known: u64,
    until: Option<Until>,
    entries: BTreeMap<InodeId, Entry<M, D>>,
    /// Recalls that arrived before the grant, by lease number.
    overtaken: BTreeMap<u64, InodeId>,
    /// Returned leases, so that late answers that grant them are ignored.
    gone: Gone,
}

/// State of the lease on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Valid.
    Held,
    /// Recalled, and valid until it is returned.
    Called,
    /// Recalled and expired, but not returned yet.
    Over,
    /// The server gives no leases or does not answer: the client works without them.
    Off,
    /// Not granted yet; it has to be requested.
    Missing,
}

/// The leases of this client.
pub(super) struct Leases<M, D> {
    second: Option<Arc<M>>,
    book: Mutex<Book<M, D>>,
    keeper: OnceLock<Arc<dyn Keeper>>,
    moved: Notify,
    wanted: Arc<Notify>,
    /// Set at the end: no request is sent any more.
    ended: AtomicBool,
}

impl<M: Metadata, D: Devices> Leases<M, D> {
    pub(super) fn new(second: Option<M>) -> Self {
        let book = Book {
            epoch: 0,
            known: 0,
            until: None,
            entries: BTreeMap::new(),
            overtaken: BTreeMap::new(),
            gone: Gone::default(),
        };
        Self {
            second: second.map(Arc::new),
            book: Mutex::new(book),
            keeper: OnceLock::new(),
            moved: Notify::new(),
            wanted: Arc::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Stops the listener, since a request after EndClient would register this client again.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        let _ = self.keeper.set(keeper);
    }

    /// Wakes the listener before something is opened.
    pub(super) fn want(&self) {
        if self.second.is_some() {
            self.wanted.notify_one();
        }
    }

    async fn forget_kept(&self, inode: InodeId) {
        if let Some(keeper) = self.keeper.get() {
            keeper.forget(inode).await;
        }
    }
}

impl<M: Metadata, D: Devices> Shared<M, D> {
    fn wall_ms(&self) -> u64 {
        self.core.environment.now_ms()
    }

    /// Returns the state of a lease of this kind or stronger. A lease under which the attributes
    /// were not received counts as missing, since they may be older.
    pub(super) fn standing(&self, inode: InodeId, kind: LeaseKind, seen_under: u64) -> Standing {
        if self.leases.second.is_none() {
            return Standing::Off;
        }
        if seen_under == OWN && self.ledger.is_own(inode) {
            return Standing::Held;
        }
        let wall_ms = self.wall_ms();
        let book = lock(&self.leases.book);
        let left = |until: Option<Until>| until.map_or(Duration::ZERO, |until| until.left(wall_ms));
        let entry = book.entries.get(&inode).filter(|entry| entry.lease.epoch == book.epoch);
        match entry {
            Some(Entry { lease, called: Some(until), .. }) => {
                let ours = lease.kind >= kind && lease.number == seen_under && !left(Some(*until)).is_zero();
                if ours { Standing::Called } else { Standing::Over }
            }
            _ if left(book.until).is_zero() => Standing::Off,
            Some(Entry { lease, .. }) if lease.kind >= kind && lease.number == seen_under => Standing::Held,
            _ => Standing::Missing,
        }
    }

    /// Returns lease number and remaining validity, if the lease is valid and not recalled.
    pub(super) fn believed(&self, inode: InodeId, kind: LeaseKind) -> Option<(u64, Duration)> {
        self.believed_by(inode, kind).map(|(lease, left)| (lease.number, left))
    }

    /// Returns the valid lease on a node.
    pub(super) fn leased(&self, inode: InodeId) -> Option<NodeLease> {
        self.believed_by(inode, LeaseKind::Read).map(|(lease, _)| lease)
    }

    fn believed_by(&self, inode: InodeId, kind: LeaseKind) -> Option<(NodeLease, Duration)> {
        let mut book = lock(&self.leases.book);
        let left = book.until?.left(self.wall_ms());
        let epoch = book.epoch;
        if !book.entries.contains_key(&inode) && !left.is_zero() && self.ledger.is_own(inode) {
            return Some((NodeLease { kind: LeaseKind::Write, number: OWN, epoch }, left));
        }
        let entry = book.entries.get_mut(&inode)?;
        let ours = entry.called.is_none() && entry.lease.epoch == epoch && entry.lease.kind >= kind;
        if !ours || left.is_zero() {
            return None;
        }
        entry.used = Instant::now();
        Some((entry.lease, left))
    }

    /// Returns the client id to send with requests that may grant leases, if leases work at the
    /// moment.
    pub(super) fn leads(&self) -> Option<ClientId> {
        self.leases.want();
        self.is_led().then_some(self.client_id)
    }

    /// Whether the server grants leases at the moment.
    fn is_led(&self) -> bool {
        let book = lock(&self.leases.book);
        book.epoch != 0 && book.until.is_some_and(|until| !until.left(self.wall_ms()).is_zero())
    }

    /// Records a granted lease. Ignores it if it is of another epoch or was returned already.
    pub(super) fn given(self: &Arc<Self>, inode: InodeId, lease: NodeLease) {
        let mut book = lock(&self.leases.book);
        if lease.epoch != book.epoch {
            return;
        }
        if book.entries.get(&inode).is_some_and(|Entry { lease: known, .. }| {
            known.epoch == lease.epoch && known.number >= lease.number
        }) {
            return;
        }
        if let Some(long_ago) = book.gone.knows(inode, lease.number) {
            drop(book);
            if long_ago {
                // ReturnLease was lost, or this answer is late; then returning it again does
                // nothing.
                let shared = self.clone();
                self.runtime.spawn(async move {
                    let _ = shared.return_lease(inode, lease.number).await;
                });
            }
            return;
        }
        let called = book.overtaken.remove(&lease.number).map(|_| {
            // The answer that recalled it renewed nothing.
            Until { instant: Instant::now(), wall_ms: 0 }
        });
        let kept = book.entries.remove(&inode).and_then(|old| old.kept);
        book.entries.insert(inode, Entry { lease, called, kept, used: Instant::now() });
        drop(book);
        if called.is_some() {
            self.give_back_soon(inode, lease.number);
        }
    }

    /// Keeps a closed file cached, if it has a valid lease. Evicts others above the limit.
    pub(super) fn keep(self: &Arc<Self>, body: &Arc<Body<M, D>>) -> bool {
        let inode = body.node.inode;
        if body.state().lock_lost {
            // Close it at the server instead, which clears its record there.
            return false;
        }
        let nameless = body.state().stat.as_ref().is_some_and(|stat| stat.links == 0);
        if nameless || self.believed(inode, LeaseKind::Read).is_none() || self.options.leases_kept == 0 {
            return false;
        }
        let mut book = lock(&self.leases.book);
        let Some(entry) = book.entries.get_mut(&inode).filter(|entry| entry.called.is_none()) else {
            return false;
        };
        entry.kept = Some(body.clone());
        let mut kept: Vec<_> = book
            .entries
            .iter()
            .filter(|(_, one)| one.kept.is_some())
            .map(|(id, one)| (one.used, *id))
            .collect();
        let max = self.options.leases_kept.min(KEPT_MAX);
        if kept.len() > max {
            kept.sort_unstable();
            let spare = kept.len() - max + KEPT_SPARE.min(max / 2);
            for (_, id) in kept.into_iter().take(spare) {
                self.call_in(&mut book, id);
            }
        }
        true
    }

    /// Closes a file that is about to lose its last name and is not open, so that the server
    /// removes it at once. Returns whether it was closed.
    pub(super) async fn let_go_of(self: &Arc<Self>, inode: InodeId) -> bool {
        let Some(body) = self.body(inode) else { return false };
        let (number, entry) = {
            // Writers check the lease under this lock.
            let mut state = body.state();
            let last = state.stat.as_ref().is_some_and(|stat| stat.links == 1);
            if !last || !state.is_stored() || state.let_go || body.open_count() > 0 {
                return false;
            }
            let mut book = lock(&self.leases.book);
            let ours = book.entries.get(&inode).filter(|entry| entry.called.is_none());
            let Some(number) = ours.map(|entry| entry.lease.number) else { return false };
            book.gone.note(inode, number);
            state.ahead.forget(0..u64::MAX);
            state.seen_under = 0;
            (number, book.entries.remove(&inode))
        };
        self.names.forget(inode);
        drop(entry);
        keep::close(&body).await;
        if body.open_count() > 0 {
            // It was opened meanwhile, and the open continues without a lease.
            self.leases.forget_kept(inode).await;
            if let Err(error) = self.return_lease(inode, number).await {
                tracing::debug!(%error, "could not return a lease; the server revokes it");
            }
        }
        drop(body);
        self.forget(inode);
        true
    }

    /// Invalidates the kernel's cache of a file that was not removed after all.
    pub(super) async fn stays(&self, inode: InodeId) {
        self.leases.forget_kept(inode).await;
    }

    /// Starts the return of the lease of a file without names, so that the server removes it.
    pub(super) fn nameless(self: &Arc<Self>, inode: InodeId) {
        let mut book = lock(&self.leases.book);
        if book.entries.get(&inode).is_some_and(|entry| entry.kept.is_some()) {
            self.call_in(&mut book, inode);
        }
    }

    /// Marks a cached file as open again.
    pub(super) fn unkeep(&self, inode: InodeId) {
        if let Some(entry) = lock(&self.leases.book).entries.get_mut(&inode) {
            entry.kept = None;
        }
    }

    /// Starts the return of a lease.
    fn call_in(self: &Arc<Self>, book: &mut Book<M, D>, inode: InodeId) {
        let until = book.until;
        let Some(entry) = book.entries.get_mut(&inode).filter(|entry| entry.called.is_none()) else { return };
        entry.called = until.or(Some(Until { instant: Instant::now(), wall_ms: 0 }));
        let number = entry.lease.number;
        self.give_back_soon(inode, number);
    }

    fn give_back_soon(self: &Arc<Self>, inode: InodeId, number: u64) {
        let shared = self.clone();
        self.runtime.spawn(async move { shared.give_back(inode, number, true).await });
    }

    /// Returns a lease after everything written under it is durable and reported, and the caches
    /// are dropped.
    async fn give_back(self: &Arc<Self>, inode: InodeId, number: u64, tells: bool) {
        let is_ours =
            |book: &Book<M, D>| book.entries.get(&inode).is_some_and(|one| one.lease.number == number);
        // Without an open inode, the kernel caches nothing beyond the time without leases.
        let mut used = self.body(inode).is_some();
        if used {
            self.leases.forget_kept(inode).await;
        }
        let gone = loop {
            if let Err(error) = self.names_told_of(inode).await {
                tracing::warn!(inode = inode.0, %error, "returning a lease waits for directory changes; retrying");
                if !is_ours(&lock(&self.leases.book)) {
                    return;
                }
                sleep(PACE).await;
                continue;
            }
            let body = self.body(inode);
            used |= body.is_some();
            self.stored_in_it(inode).await;
            let stored = match &body {
                Some(body) => body.store().await,
                None => Ok(()),
            };
            if let (Err(error), Some(body)) = (&stored, &body)
                && is_fenced(error)
            {
                body.discard();
                continue;
            }
            if let Err(error) = stored {
                tracing::warn!(inode = inode.0, %error, "returning a lease waits for written data; retrying");
                if !is_ours(&lock(&self.leases.book)) {
                    return;
                }
                sleep(PACE).await;
                continue;
            }
            // Writers check the lease under this lock.
            let mut state = body.as_ref().map(|body| body.state());
            if state.as_ref().is_some_and(|state| !state.is_stored()) {
                continue;
            }
            let mut book = lock(&self.leases.book);
            if !is_ours(&book) {
                return;
            }
            let entry = book.entries.remove(&inode);
            book.gone.note(inode, number);
            drop(book);
            self.names.forget(inode);
            if let Some(state) = &mut state {
                state.ahead.forget(0..u64::MAX);
                state.seen_under = 0;
            }
            drop(entry);
            drop(state);
            break body.filter(|body| body.open_count() == 0);
        };
        // Drops what was read while the data was being stored.
        if used {
            self.leases.forget_kept(inode).await;
        } else if let Some(keeper) = self.leases.keeper.get() {
            keeper.forget_list(inode).await;
        }
        self.leases.moved.notify_waiters();
        let open = match &gone {
            Some(body) => {
                // No program has it open: CloseNode returns the lease too.
                keep::close(body).await;
                body.open_count() > 0
            }
            None => true,
        };
        if tells
            && open
            && let Err(error) = self.return_lease(inode, number).await
        {
            tracing::debug!(%error, "could not return a lease; the server revokes it");
        }
        drop(gone);
        self.forget(inode);
    }

    async fn return_lease(&self, inode: InodeId, number: u64) -> Result<(), ClientError> {
        self.call_done(&Request::ReturnLease { inode, client_id: self.client_id, number }).await
    }

    /// Starts the return of recalled leases.
    fn recalled(self: &Arc<Self>, recalls: &[Recall]) {
        let mut book = lock(&self.leases.book);
        for recall in recalls {
            match book.entries.get(&recall.inode).map(|entry| entry.lease.number) {
                Some(number) if number == recall.number => self.call_in(&mut book, recall.inode),
                // A newer lease replaced it; the server knows that.
                Some(number) if number > recall.number => {}
                known => {
                    if known.is_some() {
                        // The recalled lease replaces the known one, by an answer that has not
                        // arrived yet.
                        self.call_in(&mut book, recall.inode);
                    }
                    book.overtaken.insert(recall.number, recall.inode);
                    let (shared, recall) = (self.clone(), *recall);
                    self.runtime.spawn(async move {
                        sleep(OVERTAKEN).await;
                        {
                            let mut book = lock(&shared.leases.book);
                            if book.overtaken.remove(&recall.number).is_none() {
                                return;
                            }
                            // The answer may still arrive.
                            book.gone.note(recall.inode, recall.number);
                        }
                        let _ = shared.return_lease(recall.inode, recall.number).await;
                    });
                }
            }
        }
    }

    /// Stores everything, drops all leases and then begins a new epoch.
    async fn begin_era(self: &Arc<Self>, epoch: u64) {
        self.ledger.book().begin_anew();
        // A restarted server has also lost open files without a lease.
        let anew = lock(&self.leases.book).epoch != 0;
        let open = self.bodies().into_iter().filter(|body| anew && body.open_count() > 0);
        let open: Vec<InodeId> = open.map(|body| body.node.inode).collect();
        let all: Vec<(InodeId, Option<u64>)> = {
            let mut book = lock(&self.leases.book);
            book.until = None;
            let leased = book.entries.iter().map(|(id, entry)| (*id, Some(entry.lease.number)));
            let others = open.into_iter().filter(|id| !book.entries.contains_key(id));
            leased.chain(others.map(|id| (id, None))).collect()
        };
        let mut works = JoinSet::new();
        for (inode, number) in all {
            let shared = self.clone();
            works.spawn_on(
                async move {
                    if let Some(body) = shared.body(inode)
                        && body.open_count() > 0
                    {
                        keep::hold_again(&shared, &body).await;
                    }
                    if let Some(number) = number {
                        shared.give_back(inode, number, false).await;
                    }
                    shared.forget(inode);
                },
                &self.runtime,
            );
        }
        while works.join_next().await.is_some() {}
        // A request with the new epoch confirms that nothing of an older epoch is left to send.
        while let Err(error) = self.names_told().await {
            tracing::warn!(%error, "directory changes not acknowledged; retrying");
        }
        let mut book = lock(&self.leases.book);
        (book.epoch, book.known) = (epoch, 0);
        book.overtaken.clear();
        // Returned leases of another epoch are not valid anyway, and their numbers may be reused.
        book.gone = Gone::default();
    }

    /// Returns leases that were not used for long. Returns whether any lease is left.
    fn tend(self: &Arc<Self>) -> bool {
        let old = |entry: &Entry<M, D>| {
            let led = entry.lease.kind == LeaseKind::Write && entry.kept.is_none();
            entry.called.is_none() && entry.used.elapsed() > if led { LED_FOR } else { KEPT_FOR }
        };
        let mut old: Vec<(InodeId, bool)> = {
            let book = lock(&self.leases.book);
            let old = book.entries.iter().filter(|(_, entry)| old(entry));
            old.map(|(id, entry)| (*id, entry.kept.is_some())).collect()
        };
        // Leases of open files are not returned for being idle.
        old.retain(|(id, kept)| *kept || self.body(*id).is_none());
        let mut book = lock(&self.leases.book);
        book.gone.forget(GONE_FOR);
        for (inode, _) in old {
            self.call_in(&mut book, inode);
        }
        !book.entries.is_empty()
    }

    /// Forgets a lease that is not being returned, before a CloseNode. Returns whether there was
    /// one.
    pub(super) fn drop_lease(&self, inode: InodeId) -> bool {
        let mut book = lock(&self.leases.book);
        let known = book.entries.get(&inode).filter(|entry| entry.called.is_none());
        let Some(number) = known.map(|entry| entry.lease.number) else { return false };
        let entry = book.entries.remove(&inode);
        book.gone.note(inode, number);
        drop(book);
        drop(entry);
        true
    }

    /// Drops all leases at shutdown.
    pub(super) fn drop_leases(&self) {
        let entries = core::mem::take(&mut lock(&self.leases.book).entries);
        drop(entries);
    }
}

impl<M: Metadata, D: Devices> Body<M, D> {
    fn standing(&self, kind: LeaseKind) -> Standing {
        let seen_under = self.state().seen_under;
        self.shared.standing(self.node.inode, kind, seen_under)
    }

    /// Waits for a lease, or until it is clear that none is granted. `quiet`: also waits while a
    /// recalled lease is being returned.
    pub(super) async fn lease(self: &Arc<Self>, kind: LeaseKind, quiet: bool) -> Result<(), ClientError> {
        loop {
            let moved = self.shared.leases.moved.notified();
            match self.standing(kind) {
                Standing::Held | Standing::Off => return Ok(()),
                Standing::Called if !quiet => return Ok(()),
                Standing::Called | Standing::Over => {
                    let _ = timeout(AGAIN, moved).await;
                    continue;
                }
                Standing::Missing => {}
            }
            if self.goes_without() {
                return Ok(());
            }
            let _one = self.leasing.lock().await;
            if self.standing(kind) != Standing::Missing || self.goes_without() {
                continue;
            }
            let request = Request::LeaseNode { node: self.node, client_id: self.shared.client_id, kind };
            self.shared.told_before(&request).await?;
            match self.shared.core.metadata.call(request.clone()).await {
                Ok(Response::Leased { stat, lease }) => match lease {
                    Some(lease) => {
                        self.leased(&stat, lease.number);
                        self.shared.given(self.node.inode, lease);
                        if self.standing(kind) == Standing::Missing {
                            // It is being returned.
                            sleep(AGAIN).await;
                        }
                    }
                    None => self.go_without(),
                },
                Ok(_) => return Err(ClientError::OTHER_ANSWER),
                Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Busy => sleep(AGAIN).await,
                Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Invalid => {
                    // The server restarted or dropped the open files of this client.
                    self.go_without();
                    match self.hold_again().await {
                        Err(error) if is_fenced(&error) => self.discard(),
                        outcome => outcome?,
                    }
                }
                Err(error) => {
                    // Continue without a lease; the error recurs where it matters.
                    tracing::debug!(inode = self.node.inode.0, %error, "lease request failed");
                    self.go_without();
                }
            }
        }
    }

    /// Discards unsaved data after the client was fenced; writers get an error.
    pub(super) fn discard(&self) {
        let locked = lock(&self.shared.locks).lose(self.node.inode);
        let mut state = self.state();
        if locked {
            // The file is opened again for reading only.
            (state.lock_lost, state.writes) = (true, false);
        }
        let wrote = !state.is_stored();
        let missing = state.missing || wrote;
        state.cut(0);
        state.missing = missing;
        let size = state.stat.as_ref().map_or(0, |stat| stat.size);
        (state.size, state.writable, state.ours_alone) = (size, false, None);
        // The fenced credentials are refused and not renewed; readers request new ones.
        (state.objects, state.ours) = (None, false);
        state.unsure += 1;
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
        self.moved.notify_waiters();
    }

    pub(super) fn goes_without(&self) -> bool {
        self.state().without_until.is_some_and(|until| Instant::now() < until)
    }

    fn go_without(&self) {
        self.state().without_until = Some(Instant::now() + WITHOUT);
    }

    /// Records attributes that were received with a lease; from here on only this client changes
    /// them.
    fn leased(&self, stat: &Stat, number: u64) {
        let mut state = self.state();
        if state.see(stat) {
            state.ours_alone = Some(stat.version);
        }
        state.seen_under = number;
    }

    /// Returns the attributes; of an open file with a lease, if one is granted.
    pub(super) async fn stat(self: &Arc<Self>) -> Result<Stat, ClientError> {
        if self.open_count() > 0 && self.shared.is_led() {
            self.lease(LeaseKind::Read, true).await?;
        }
        if let Some((stat, _)) = self.believed_stat() {
            return Ok(stat);
        }
        let unsure = self.state().unsure;
        let stat = self.shared.call_stat(&Request::GetNode { node: self.node }).await?;
        let stat = self.overlay(stat);
        self.state().sure = unsure;
        Ok(stat)
    }

    /// Returns how long the kernel may cache attributes; none means as for a file that is not open.
    pub(super) fn attributes_for(&self) -> Option<Duration> {
        match self.shared.believed(self.node.inode, LeaseKind::Read) {
            Some((_, left)) => Some(left),
            // They are requested with a lease before they are used.
            None if self.open_count() > 0 && self.shared.is_led() => Some(Duration::ZERO),
            None => None,
        }
    }

    /// Returns the attributes, if a lease keeps them valid, and for how long.
    pub(super) fn believed_stat(&self) -> Option<(Stat, Duration)> {
        let (number, left) = self.shared.believed(self.node.inode, LeaseKind::Read)?;
        let state = self.state();
        let stat = state.stat.clone().filter(|_| state.seen_under == number && state.sure == state.unsure)?;
        drop(state);
        Some((self.overlay(stat), left))
    }

    /// Records a local change of attributes whose result is not known.
    pub(super) fn note_unsure(&self, rights: bool) {
        let mut state = self.state();
        state.unsure += 1;
        state.rights_unsure |= rights;
    }

    /// Whether it can be opened with this access without a request.
    pub(super) fn opens_alone(&self, access: Access) -> bool {
        let kind = if access == Access::Read { LeaseKind::Read } else { LeaseKind::Write };
        let Some((number, _)) = self.shared.believed(self.node.inode, kind) else { return false };
        let state = self.state();
        let reads = access == Access::Write || state.reads;
        let writes = access == Access::Read || state.writes;
        let there = state.objects.is_some() || state.stat.as_ref().is_some_and(|stat| stat.width == 0);
        let sure = state.seen_under == number
            && state.sure == state.unsure
            && !state.rights_unsure
            && !state.outdated
            && !state.lock_lost;
        reads && writes && there && sure && state.error.is_none()
    }
}
