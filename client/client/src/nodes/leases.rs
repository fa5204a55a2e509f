//! Leases: what may be believed of a file without asking, and giving that back when somebody else wants it.
//!
//! Does: ask the server what is to be given back, on a connection of its own; say what is held; ask for what is missing; keep files
//! that nobody has open here any more, as long as they are leased. Does not: know the kernel; a [`Keeper`] does.
//! Contract: a lease is believed in for as long after a question was sent as its answer said, by two clocks of this machine, one of
//! which goes on while it sleeps; the answer that calls it back prolongs nothing. It is given back when everything that was written
//! here is durable and told, and nothing of it is kept; from then on what is read or written asks for it again. Reading and writing
//! of what is being given back waits for nothing, so that giving back can wait for it.
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
    Access, ErrorCode, HolderId, InodeId, Lease, LeaseKind, Recall, Request, Response, Stat,
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

/// How long the server is asked to wait for something to tell.
const WAIT_MS: u32 = 4_000;
/// A question that is answered sooner, with nothing, is asked again after this.
const PACE: Duration = Duration::from_secs(1);
/// Where no leases are given it is asked again after this.
const NONE_HERE: Duration = Duration::from_secs(60);
/// A recall of what is not known here: its grant was overtaken, and comes within this time, or was lost.
const OVERTAKEN: Duration = Duration::from_secs(1);
/// Whoever is told that there is no lease does without for this time, which is less than the server gives none to others.
const WITHOUT: Duration = Duration::from_secs(1);
/// Pause before a lease is asked for again that somebody else is giving back.
const AGAIN: Duration = Duration::from_millis(20);
/// Files that nobody has open here any more, kept by their leases, at most.
const KEPT_MAX: usize = 2_048;
/// So many of them go when there are more: the ones that were used least lately.
const KEPT_SPARE: usize = 256;
/// One that nobody used for this long goes.
const KEPT_FOR: Duration = Duration::from_secs(120);
/// A directory that is led, and in which nobody did anything for so long, is led no more: whoever looks into it waits for nobody.
const LED_FOR: Duration = Duration::from_secs(6);
/// Nobody had anything open or leased for so long: nothing is asked until somebody has.
const IDLE: Duration = Duration::from_secs(60);

/// Until when something is believed, by two clocks.
#[derive(Clone, Copy, Debug)]
struct Until {
    instant: Instant,
    /// Of the clock that goes on while this machine sleeps, milliseconds since 1970.
    wall_ms: u64,
}

impl Until {
    fn left(self, wall_ms: u64) -> Duration {
        let by_wall = Duration::from_millis(self.wall_ms.saturating_sub(wall_ms));
        self.instant.saturating_duration_since(Instant::now()).min(by_wall)
    }
}

struct Entry<M, D> {
    lease: Lease,
    /// It is called back, and believed in until then.
    called: Option<Until>,
    /// Nobody has it open here any more.
    kept: Option<Arc<Body<M, D>>>,
    used: Instant,
}

struct Book<M, D> {
    /// 0: not known, or none are given.
    era: u64,
    known: u64,
    until: Option<Until>,
    entries: BTreeMap<InodeId, Entry<M, D>>,
    /// Called back before they were given.
    overtaken: BTreeMap<u64, InodeId>,
    /// An answer that names one of these was overtaken by its being given back.
    gone: Gone,
}

/// How it stands with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is ours.
    Held,
    /// It is being given back, and believed in until that is done.
    Called,
    /// The same, and its time is over.
    Over,
    /// None is given, or the server does not hear of us: what is done without leases is done.
    Off,
    /// It has to be asked for.
    Missing,
}

/// See the module.
pub(super) struct Leases<M, D> {
    second: Option<Arc<M>>,
    book: Mutex<Book<M, D>>,
    keeper: OnceLock<Arc<dyn Keeper>>,
    moved: Notify,
    wanted: Arc<Notify>,
    /// Nothing is asked any more.
    ended: AtomicBool,
}

impl<M: Metadata, D: Devices> Leases<M, D> {
    pub(super) fn new(second: Option<M>) -> Self {
        let book = Book {
            era: 0,
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

    /// It is the end: the server is to forget this holder, and not to hear of it again.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        let _ = self.keeper.set(keeper);
    }

    /// Somebody opens something.
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

    /// How it stands with a lease of this kind, or a stronger one. One under which the file was not seen yet, since it was given
    /// in passing or to who holds the file again, has to be asked for too: what is known of the file may be older.
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
        let entry = book.entries.get(&inode).filter(|entry| entry.lease.era == book.era);
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

    /// For how long what is known of a file is to be believed, if it is leased, and by which lease.
    pub(super) fn believed(&self, inode: InodeId, kind: LeaseKind) -> Option<(u64, Duration)> {
        self.believed_by(inode, kind).map(|(lease, left)| (lease.number, left))
    }

    /// The lease that something is believed by.
    pub(super) fn leased(&self, inode: InodeId) -> Option<Lease> {
        self.believed_by(inode, LeaseKind::Read).map(|(lease, _)| lease)
    }

    fn believed_by(&self, inode: InodeId, kind: LeaseKind) -> Option<(Lease, Duration)> {
        let mut book = lock(&self.leases.book);
        let left = book.until?.left(self.wall_ms());
        let era = book.era;
        if !book.entries.contains_key(&inode) && !left.is_zero() && self.ledger.is_own(inode) {
            return Some((Lease { kind: LeaseKind::Write, number: OWN, era }, left));
        }
        let entry = book.entries.get_mut(&inode)?;
        let ours = entry.called.is_none() && entry.lease.era == era && entry.lease.kind >= kind;
        if !ours || left.is_zero() {
            return None;
        }
        entry.used = Instant::now();
        Some((entry.lease, left))
    }

    /// Whom leases on names are to be given to, if they are given to us at all.
    pub(super) fn leads(&self) -> Option<HolderId> {
        self.leases.want();
        self.is_led().then_some(self.holder)
    }

    /// Are leases given to us at all, just now?
    fn is_led(&self) -> bool {
        let book = lock(&self.leases.book);
        book.era != 0 && book.until.is_some_and(|until| !until.left(self.wall_ms()).is_zero())
    }

    /// The server gave one. It is not believed in if the answer was overtaken: by its being given back, or by another era.
    pub(super) fn given(self: &Arc<Self>, inode: InodeId, lease: Lease) {
        let mut book = lock(&self.leases.book);
        if lease.era != book.era {
            return;
        }
        if book
            .entries
            .get(&inode)
            .is_some_and(|Entry { lease: known, .. }| known.era == lease.era && known.number >= lease.number)
        {
            return;
        }
        if let Some(long_ago) = book.gone.knows(inode, lease.number) {
            drop(book);
            if long_ago {
                // The server was not told, or its answer is late: then this does nothing.
                let shared = self.clone();
                self.runtime.spawn(async move {
                    let _ = shared.return_lease(inode, lease.number).await;
                });
            }
            return;
        }
        let called = book.overtaken.remove(&lease.number).map(|_| {
            // What calls it back prolonged nothing.
            Until { instant: Instant::now(), wall_ms: 0 }
        });
        let kept = book.entries.remove(&inode).and_then(|old| old.kept);
        book.entries.insert(inode, Entry { lease, called, kept, used: Instant::now() });
        drop(book);
        if called.is_some() {
            self.give_back_soon(inode, lease.number);
        }
    }

    /// A file that nobody has open here any more: it is kept, if it is leased.
    pub(super) fn keep(self: &Arc<Self>, body: &Arc<Body<M, D>>) -> bool {
        let inode = body.node.inode;
        if body.state().lock_lost {
            // The server is to hear that nothing of it is left here.
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

    /// A file is about to lose its last name, and nobody has it open here: it is let go of before, so that it goes with its
    /// name and is not kept for us. Says whether it was.
    pub(super) async fn let_go_of(self: &Arc<Self>, inode: InodeId) -> bool {
        let Some(body) = self.body(inode) else { return false };
        let (number, entry) = {
            // Whoever writes looks whether it is still ours while he has this.
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
            // Somebody opened it meanwhile, and goes on without the lease.
            self.leases.forget_kept(inode).await;
            if let Err(error) = self.return_lease(inode, number).await {
                tracing::debug!(%error, "a lease could not be given back; the server does without");
            }
        }
        drop(body);
        self.forget(inode);
        true
    }

    /// It stays after all: what is kept of it elsewhere was not told to forget it.
    pub(super) async fn stays(&self, inode: InodeId) {
        self.leases.forget_kept(inode).await;
    }

    /// A file has no name any more: it goes when nobody has it open, and is not kept.
    pub(super) fn nameless(self: &Arc<Self>, inode: InodeId) {
        let mut book = lock(&self.leases.book);
        if book.entries.get(&inode).is_some_and(|entry| entry.kept.is_some()) {
            self.call_in(&mut book, inode);
        }
    }

    /// A kept file is in use again.
    pub(super) fn unkeep(&self, inode: InodeId) {
        if let Some(entry) = lock(&self.leases.book).entries.get_mut(&inode) {
            entry.kept = None;
        }
    }

    /// Has one given back that is ours.
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

    /// Gives a lease back: what was written here is durable and told, and nothing is kept.
    async fn give_back(self: &Arc<Self>, inode: InodeId, number: u64, tells: bool) {
        let is_ours =
            |book: &Book<M, D>| book.entries.get(&inode).is_some_and(|one| one.lease.number == number);
        // Of what was only looked up nothing is kept elsewhere for longer than without leases.
        let mut used = self.body(inode).is_some();
        if used {
            self.leases.forget_kept(inode).await;
        }
        let gone = loop {
            if let Err(error) = self.names_told_of(inode).await {
                tracing::warn!(inode = inode.0, %error, "a lease waits for what was done to names under it");
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
                tracing::warn!(inode = inode.0, %error, "a lease waits for what was written under it");
                if !is_ours(&lock(&self.leases.book)) {
                    return;
                }
                sleep(PACE).await;
                continue;
            }
            // Whoever writes looks whether it is still ours while he has this.
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
        // What was read while the rest was being stored.
        if used {
            self.leases.forget_kept(inode).await;
        } else if let Some(keeper) = self.leases.keeper.get() {
            keeper.forget_list(inode).await;
        }
        self.leases.moved.notify_waiters();
        let open = match &gone {
            Some(body) => {
                // Nobody has it open: it is let go of with the lease.
                keep::close(body).await;
                body.open_count() > 0
            }
            None => true,
        };
        if tells
            && open
            && let Err(error) = self.return_lease(inode, number).await
        {
            tracing::debug!(%error, "a lease could not be given back; the server does without");
        }
        drop(gone);
        self.forget(inode);
    }

    async fn return_lease(&self, inode: InodeId, number: u64) -> Result<(), ClientError> {
        self.call_done(&Request::ReturnLease { inode, holder: self.holder, number }).await
    }

    /// The server calls some back.
    fn recalled(self: &Arc<Self>, recalls: &[Recall]) {
        let mut book = lock(&self.leases.book);
        for recall in recalls {
            match book.entries.get(&recall.inode).map(|entry| entry.lease.number) {
                Some(number) if number == recall.number => self.call_in(&mut book, recall.inode),
                // Another one took its place, which the server knows.
                Some(number) if number > recall.number => {}
                known => {
                    if known.is_some() {
                        // It took the place of the one that is known, by an answer that did not come yet.
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
                            // Its answer may come yet.
                            book.gone.note(recall.inode, recall.number);
                        }
                        let _ = shared.return_lease(recall.inode, recall.number).await;
                    });
                }
            }
        }
    }

    /// All leases are gone or called in: everything is stored and forgotten, then the new era begins.
    async fn begin_era(self: &Arc<Self>, era: u64) {
        self.ledger.book().begin_anew();
        // Of what is open without a lease a server that began anew knows nothing either.
        let anew = lock(&self.leases.book).era != 0;
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
        // Who names a new era has nothing left to tell of what he did in others.
        while let Err(error) = self.names_told().await {
            tracing::warn!(%error, "what was done to names is not told yet");
        }
        let mut book = lock(&self.leases.book);
        (book.era, book.known) = (era, 0);
        book.overtaken.clear();
        // Of another era nothing is believed, and its numbers may be others'.
        book.gone = Gone::default();
    }

    /// Gives back what nobody used for long. Is there anything left?
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
        // What somebody has open is not given back for that, whether it is used or not.
        old.retain(|(id, kept)| *kept || self.body(*id).is_none());
        let mut book = lock(&self.leases.book);
        book.gone.forget(GONE_FOR);
        for (inode, _) in old {
            self.call_in(&mut book, inode);
        }
        !book.entries.is_empty()
    }

    /// Forgets one that is not being given back: closing the file does that. Was there one?
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

    /// Lets all of it go: the end.
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

    /// Returns when the file is leased for this, or nothing is to be had. `quiet`: not while it is being given back either.
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
            let request = Request::LeaseNode { node: self.node, holder: self.shared.holder, kind };
            self.shared.told_before(&request).await?;
            match self.shared.core.metadata.call(request.clone()).await {
                Ok(Response::Leased { stat, lease }) => match lease {
                    Some(lease) => {
                        self.leased(&stat, lease.number);
                        self.shared.given(self.node.inode, lease);
                        if self.standing(kind) == Standing::Missing {
                            // One that is on its way back.
                            sleep(AGAIN).await;
                        }
                    }
                    None => self.go_without(),
                },
                Ok(_) => return Err(ClientError::OTHER_ANSWER),
                Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Busy => sleep(AGAIN).await,
                Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Invalid => {
                    // The server began anew, or took us for gone.
                    self.go_without();
                    match self.hold_again().await {
                        Err(error) if is_fenced(&error) => self.discard(),
                        outcome => outcome?,
                    }
                }
                Err(error) => {
                    // Without: whatever it is, is told where it matters.
                    tracing::debug!(inode = self.node.inode.0, %error, "no lease");
                    self.go_without();
                }
            }
        }
    }

    /// Others went on without us: what was written here is not taken any more, and whoever wrote it is told.
    pub(super) fn discard(&self) {
        let locked = lock(&self.shared.locks).lose(self.node.inode);
        let mut state = self.state();
        if locked {
            // It is asked for again to be read.
            (state.lock_lost, state.writes) = (true, false);
        }
        let wrote = !state.is_stored();
        let missing = state.missing || wrote;
        state.cut(0);
        state.missing = missing;
        let size = state.stat.as_ref().map_or(0, |stat| stat.size);
        (state.size, state.writable, state.ours_alone) = (size, false, None);
        // Its credentials are refused, and are not renewed: whoever reads asks for others.
        (state.objects, state.ours) = (None, false);
        state.unsure += 1;
        if wrote || locked {
            state.error.get_or_insert(fenced());
        }
        drop(state);
        let inode = self.node.inode.0;
        match (wrote, locked) {
            (true, true) => {
                tracing::warn!(inode, "this mount was not heard of: locks and what was written are lost")
            }
            (true, false) => {
                tracing::warn!(inode, "this mount was not heard of, and what was written is lost")
            }
            (false, true) => tracing::warn!(inode, "this mount was not heard of, and locks are lost"),
            (false, false) => tracing::debug!(inode, "this mount was not heard of, and nothing is lost"),
        }
        self.moved.notify_waiters();
    }

    pub(super) fn goes_without(&self) -> bool {
        self.state().without_until.is_some_and(|until| Instant::now() < until)
    }

    fn go_without(&self) {
        self.state().without_until = Some(Instant::now() + WITHOUT);
    }

    /// Takes down what the server told with a lease: from here on nobody else changes it.
    fn leased(&self, stat: &Stat, number: u64) {
        let mut state = self.state();
        if state.see(stat) {
            state.ours_alone = Some(stat.version);
        }
        state.seen_under = number;
    }

    /// The attributes as they are now: of a file that is open, with a lease if there is one to be had.
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

    /// For how long attributes that were told are to be believed; none: as those of a file that nobody has open.
    pub(super) fn attributes_for(&self) -> Option<Duration> {
        match self.shared.believed(self.node.inode, LeaseKind::Read) {
            Some((_, left)) => Some(left),
            // Asked for with a lease, before they are used.
            None if self.open_count() > 0 && self.shared.is_led() => Some(Duration::ZERO),
            None => None,
        }
    }

    /// The attributes, if they are believed, and for how long.
    pub(super) fn believed_stat(&self) -> Option<(Stat, Duration)> {
        let (number, left) = self.shared.believed(self.node.inode, LeaseKind::Read)?;
        let state = self.state();
        let stat = state.stat.clone().filter(|_| state.seen_under == number && state.sure == state.unsure)?;
        drop(state);
        Some((self.overlay(stat), left))
    }

    /// Something of it was changed here, and how it is now was not told.
    pub(super) fn note_unsure(&self, rights: bool) {
        let mut state = self.state();
        state.unsure += 1;
        state.rights_unsure |= rights;
    }

    /// May it be opened for this without asking?
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
