//! One open file: what was written here and is not on its devices yet, and how it gets there.
//!
//! Does: take writes into memory, send them as large commands in the background, keep what no flush has proven, tell
//! the metadata server the new size. Does not: read; `read` does. Does not: cut; `change` does.
//! Contract: bytes stay here until a flush in the same life of the device has proven them and the server knows of them, so
//! a device that restarts costs nothing, nor does a cut of somebody else's that is learnt of late. Two commands on one byte
//! are never under way together. What could not be stored is told once, and where there is no room to writers before that; a
//! file is not as long as what could not be stored.
//! Truth: docs/adr/0036-close-and-sync-of-files-in-place.md.

use core::ops::Range;
use core::time::Duration;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sealstone_initiator::OsdError;
use sealstone_mds_protocol::{
    Access, ErrorCode, FILE_SIZE_MAX, Failure, Grant, Handle, Layout, LeaseKind, Stat,
};
use sealstone_mds_protocol::{Node, OpenedNode};
use tokio::sync::{Notify, RwLock, Semaphore};
use tokio::time::{Instant, sleep};

use super::dirty::Taken;
use super::leases::Standing;
use super::prove::{CUT_AGAIN, REOPENS_MAX};
use super::shared::{Shared, fenced, is_fenced, is_over_quota, lock};
use super::state::{Object, Objects, State};
use crate::open::OpenObjects;
use crate::{ClientError, Devices, Metadata};

/// Pieces that wait for more bytes at most; more are sent as they are.
const PIECES_MAX: usize = 64;

/// Whoever opens a file whose lock was lost waits so long for those to close it who knew of the lock.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// Was there no room for it?
fn is_full(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(failure) => failure.code == ErrorCode::NoSpace,
        ClientError::Device { error, .. } => matches!(error, OsdError::NoSpace),
        _ => false,
    }
}

/// One open file, shared by all who have it open here.
pub(super) struct Body<M, D> {
    pub(super) shared: Arc<Shared<M, D>>,
    pub(super) node: Node,
    /// Opens of it here.
    pub(super) opens: AtomicUsize,
    pub(super) state: Mutex<State<M, D>>,
    /// Who opens it at the server shares it; who lets it go there has it alone: of the two requests neither overtakes the
    /// other.
    pub(super) holding: Arc<RwLock<()>>,
    /// One at a time asks for locks, so that what is claimed again is what programs have.
    pub(super) locking: tokio::sync::Mutex<()>,
    /// One at a time asks for a lease.
    pub(super) leasing: tokio::sync::Mutex<()>,
    /// Commands that change bytes share it; who cuts, or sends again, has it alone.
    pub(super) gate: RwLock<()>,
    /// One at a time asks for objects, tells the server, proves.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) allocating: tokio::sync::Mutex<()>,
    /// A command ended.
    pub(super) moved: Notify,
    pub(super) depth: Semaphore,
}

impl<M: Metadata, D: Devices> Body<M, D> {
    pub(super) fn new(shared: Arc<Shared<M, D>>, node: Node) -> Self {
        let tuning = shared.core.tuning;
        let pot = shared.core.budget.nothing();
        Self {
            node,
            opens: AtomicUsize::new(0),
            state: Mutex::new(State::new(tuning.command_bytes, pot, shared.core.buffers.clone())),
            holding: Arc::default(),
            locking: tokio::sync::Mutex::new(()),
            leasing: tokio::sync::Mutex::new(()),
            gate: RwLock::new(()),
            turn: tokio::sync::Mutex::new(()),
            allocating: tokio::sync::Mutex::new(()),
            moved: Notify::new(),
            depth: Semaphore::new(tuning.depth * 4),
            shared,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<M, D>> {
        lock(&self.state)
    }

    /// Takes over what OpenNode or MakeNode answered to who opens it here. Whoever opens a file sees what others closed
    /// before, whatever is held here.
    pub(super) async fn opened(
        self: &Arc<Self>,
        opened: OpenedNode,
        access: Access,
    ) -> Result<(), ClientError> {
        let changed = {
            let mut state = self.state();
            state.let_go = false;
            state.reads |= access != Access::Write;
            state.writes |= access != Access::Read;
            !state.held.is_empty() && state.ours_alone.is_none_or(|known| known < opened.stat.version)
        };
        if changed {
            self.settle().await;
        }
        self.take_opened(opened, access, true).await?;
        let freed = match changed {
            true => self.prove().await.and(self.tell_stored().await),
            false => Ok(()),
        };
        if let Err(error) = freed {
            // It is held on, and lies over what others wrote.
            tracing::warn!(inode = self.node.inode.0, %error, "what was written here before is not durable yet");
        }
        Ok(())
    }

    /// Takes over what the server answered; `anew`: to who opens it here.
    pub(super) async fn take_opened(
        &self,
        opened: OpenedNode,
        access: Access,
        anew: bool,
    ) -> Result<(), ClientError> {
        let OpenedNode { stat, layout, grants, made, sparse, lease, .. } = opened;
        // Where objects were until they moved they may still be read, with what others wrote since missing.
        let objects = self.state().objects.clone();
        let there = match (objects, &layout) {
            (Some(known), Some(layout)) => known.open.is_at(layout.objects()).await,
            _ => false,
        };
        let known = |state: &State<M, D>| {
            let number = layout.as_ref().map(Layout::number);
            let same =
                state.objects.as_ref().is_some_and(|objects| Some(objects.open.layout.number()) == number);
            same && there && (state.writable || access == Access::Read)
        };
        let objects = match &layout {
            Some(layout) if !known(&self.state()) => {
                Some(self.objects(layout.clone(), &grants, access, true).await?)
            }
            _ => None,
        };
        let mut state = self.state();
        if let Some(lease) = lease {
            state.seen_under = lease.number;
        }
        state.rights_unsure &= !anew;
        if state.stat.as_ref().is_some_and(|known| known.version > stat.version) {
            // Overtaken by what was told since: whoever writes asks for the objects.
            return Ok(());
        }
        let other = match (&state.objects, &layout) {
            (Some(objects), Some(layout)) => objects.open.layout.number() != layout.number(),
            // Cut to nothing by somebody else, or overtaken by our own question for objects.
            (Some(_), None) => state.generation != stat.generation,
            (None, _) => false,
        };
        state.follow(&stat, other);
        if other {
            state.objects = None;
            (state.writable, state.ours) = (false, false);
        }
        if let Some(objects) = objects {
            state.take_objects(objects);
            state.writable = access != Access::Read;
        }
        if access != Access::Read {
            // Nobody is given the right to write before what was cut off is cleared.
            state.clean_until = u64::MAX;
        }
        state.made = made;
        state.sparse |= sparse;
        state.ours_alone = match anew {
            true => Some(stat.version),
            false => state.ours_alone.filter(|known| *known == stat.version),
        };
        state.see(&stat);
        state.outdated = false;
        Ok(())
    }

    pub(super) async fn objects(
        &self,
        layout: Layout,
        grants: &[Grant],
        access: Access,
        there: bool,
    ) -> Result<Objects<M, D>, ClientError> {
        let handle = Handle::Node { node: self.node, access, holder: self.shared.holder };
        let (core, method) = (self.shared.core.clone(), self.shared.options.method);
        let open = Arc::new(OpenObjects::new(core, handle, method, layout, grants).await?);
        let object = |_| Object { made: Arc::new(tokio::sync::Mutex::new(there)), facts: Arc::default() };
        Ok(Objects { each: (0..open.layout.width()).map(object).collect(), open })
    }

    /// What the server last told, with what it does not know yet.
    pub(super) fn overlay(&self, mut stat: Stat) -> Stat {
        let mut state = self.state();
        let newer = |known: &Stat| known.version == stat.version && known.ctime_ns > stat.ctime_ns;
        if let Some(known) = state.stat.as_ref().filter(|known| newer(known)) {
            // Overtaken by a change that leaves the bytes as they are.
            stat = known.clone();
        } else if !state.see(&stat)
            && let Some(known) = &state.stat
        {
            // An answer that was overtaken by what was told since.
            (stat.size, stat.version, stat.mtime_ns) = (known.size, known.version, known.mtime_ns);
        }
        if let Some(changed_ns) = state.changed_ns {
            stat.size = stat.size.max(state.written_end);
            stat.mtime_ns = changed_ns;
            stat.ctime_ns = stat.ctime_ns.max(changed_ns);
            // What was written here goes to objects, if there are none yet.
            stat.width = stat.width.max(1);
        }
        stat
    }

    /// Takes bytes over, if there is memory for them right now.
    pub(super) fn try_write(self: &Arc<Self>, offset: u64, data: &[u8]) -> Result<bool, ClientError> {
        let mut state = self.state();
        if !self.makes_room(&mut state, offset, data.len())? {
            return Ok(false);
        }
        self.take_over(&mut state, offset, data);
        Ok(true)
    }

    /// The same for bytes that are all of a unit, in memory that is kept instead of being copied: another one comes back, as
    /// large. Where they are not, or cannot be taken right now, it is the same.
    pub(super) fn try_write_whole(
        self: &Arc<Self>,
        offset: u64,
        memory: Vec<u8>,
        part: Range<usize>,
    ) -> Result<Vec<u8>, Vec<u8>> {
        let mut state = self.state();
        // An error is told to who asks the other way.
        let whole = state.error.is_none() && state.dirty.is_whole(offset, part.len());
        if !whole || !matches!(self.makes_room(&mut state, offset, part.len()), Ok(true)) {
            return Err(memory);
        }
        let length = memory.len();
        self.took(&mut state, offset..offset + part.len() as u64);
        let room = part.len();
        self.dispatch(&mut state, vec![Taken { offset, data: memory, part, room }]);
        state.settle_pot();
        drop(state);
        let mut other = self.shared.core.buffers.take(length);
        other.resize(length, 0);
        Ok(other)
    }

    /// May these bytes be taken over right now? Then the memory for them is in the pot.
    pub(super) fn makes_room(
        &self,
        state: &mut State<M, D>,
        offset: u64,
        length: usize,
    ) -> Result<bool, ClientError> {
        if offset.saturating_add(length as u64) > FILE_SIZE_MAX {
            return Err(ClientError::TooLarge { max: FILE_SIZE_MAX });
        }
        if state.lock_lost {
            return Err(fenced());
        }
        let standing = self.shared.standing(self.node.inode, LeaseKind::Write, state.seen_under);
        let without = || state.without_until.is_some_and(|until| Instant::now() < until);
        if matches!(standing, Standing::Missing | Standing::Over) && !without() {
            return Ok(false);
        }
        if let Some(error) = state.error.take_if(|error| is_over_quota(error)) {
            // Whoever goes on writing need not wait for the end to hear of it.
            return Err(error);
        }
        if state.error.as_ref().is_some_and(is_full) {
            // Nor here; but what is missing was taken before, so that the end tells it all the same.
            return Err(Failure::new(ErrorCode::NoSpace, "bytes that were written before").into());
        }
        let needed = state.dirty.room() + state.dirty.cost(offset, length);
        let more = needed.saturating_sub(state.pot.bytes());
        if more > 0 {
            let Some(lease) = self.shared.core.budget.try_take(more) else { return Ok(false) };
            state.pot.merge(lease);
        }
        Ok(true)
    }

    /// Takes bytes over.
    pub(super) async fn write(self: &Arc<Self>, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let unit = self.shared.core.tuning.command_bytes as u64;
        let (mut offset, mut data) = (offset, data);
        self.needs_locks()?;
        // One piece after the other: the memory for one is there sooner or later, for all of it perhaps never.
        while !data.is_empty() {
            let within = usize::try_from(unit - offset % unit).unwrap_or(usize::MAX);
            let (head, rest) = data.split_at(within.min(data.len()));
            self.lease(LeaseKind::Write, false).await?;
            while !self.try_write(offset, head)? {
                let cost = self.state().dirty.cost(offset, head.len());
                let lease = self.shared.room(cost).await;
                self.state().pot.merge(lease);
                self.lease(LeaseKind::Write, false).await?;
            }
            offset += head.len() as u64;
            data = rest;
        }
        Ok(())
    }

    pub(super) fn take_over(self: &Arc<Self>, state: &mut State<M, D>, offset: u64, data: &[u8]) {
        state.dirty.write(offset, data);
        self.took(state, offset..offset + data.len() as u64);
        let ready = match state.dirty.len() > PIECES_MAX {
            true => state.dirty.take_all(),
            false => state.dirty.take_whole(),
        };
        self.dispatch(state, ready);
        state.settle_pot();
    }

    /// Takes down that a range was written.
    fn took(&self, state: &mut State<M, D>, range: Range<u64>) {
        state.ahead.forget(range.clone());
        state.size = state.size.max(range.end);
        state.written_end = state.written_end.max(range.end);
        state.sparse = true;
        state.changed(self.now_ns());
    }

    pub(super) fn now_ns(&self) -> i64 {
        i64::try_from(self.shared.core.now_ms()).unwrap_or(i64::MAX).saturating_mul(1_000_000)
    }

    /// What could not be stored, for whoever asks first.
    pub(super) fn take_error(&self) -> Result<(), ClientError> {
        self.state().error.take().map_or(Ok(()), Err)?;
        self.needs_locks()
    }

    /// Do programs here still have the locks that they were given?
    pub(super) fn needs_locks(&self) -> Result<(), ClientError> {
        if self.state().lock_lost { Err(fenced()) } else { Ok(()) }
    }

    /// Others go on without us: nothing that was written here and is not stored is kept.
    pub(super) fn unless_fenced<T>(&self, outcome: Result<T, ClientError>) -> Result<T, ClientError> {
        outcome.inspect_err(|error| {
            if is_fenced(error) {
                self.discard();
            }
        })
    }

    /// Returns when everything written before is on its devices and the metadata server knows of it: others who open
    /// the file see it.
    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), ClientError> {
        let told = self.hand_over().await;
        self.take_error()?;
        told
    }

    /// The same for whoever is not told what could not be stored before: that is left for who has the file open.
    pub(super) async fn hand_over(self: &Arc<Self>) -> Result<(), ClientError> {
        let upto = self.dispatch_all();
        self.settle().await;
        self.unless_fenced(self.tell(upto).await)
    }

    /// Returns when everything written before is durable, on devices and metadata server.
    pub(super) async fn sync(self: &Arc<Self>) -> Result<(), ClientError> {
        let stored = self.store().await.and(self.shared.names_told().await);
        self.take_error()?;
        stored
    }

    /// The same for whoever is not told what could not be stored before.
    pub(super) async fn store(self: &Arc<Self>) -> Result<(), ClientError> {
        let upto = self.dispatch_all();
        self.settle().await;
        for _ in 0..=REOPENS_MAX {
            let proven = self.prove().await;
            let told = self.tell(upto).await;
            self.unless_fenced(proven.and(told))?;
            // The server may have said that the file has other objects: then it was sent to those, and is not proven.
            if self.state().held.range(..upto.next).next().is_none() {
                if !self.state().missing {
                    // Late, but as it was written.
                    self.shared.closings.forgive(self.node.inode);
                }
                return Ok(());
            }
        }
        Err(CUT_AGAIN)
    }

    /// Tells the server of what is on its devices. What is proven too is held here no longer.
    pub(super) async fn tell_stored(self: &Arc<Self>) -> Result<(), ClientError> {
        let stored = self.state().stored();
        match stored {
            Some(upto) => self.unless_fenced(self.tell(upto).await),
            None => Ok(()),
        }
    }

    /// Has what is on its devices proven and told, so that its memory is free; errors wait for whoever closes.
    pub(super) async fn make_room(self: &Arc<Self>) {
        if let Err(error) = self.prove().await {
            return self.fail(error);
        }
        if let Err(error) = self.tell_stored().await {
            self.fail(error);
            // Others wait for the memory. It is durable, and the server is asked again.
            self.state().give_up();
        }
    }

    /// Sends and proves what is here, so that its memory is free; errors wait for whoever closes.
    pub(super) async fn give_way(self: &Arc<Self>) {
        self.dispatch_all();
        self.settle().await;
        if !self.state().held.is_empty() {
            self.make_room().await;
        }
    }

    /// How often it is open here.
    pub(super) fn open_count(&self) -> usize {
        self.opens.load(Ordering::Acquire)
    }

    /// Does the server hold it for us, as far as is known here?
    pub(super) fn is_held(&self) -> bool {
        let state = self.state();
        state.stat.is_some() && !state.let_go
    }

    /// Has nobody it open? `wait`: a kernel tells of the last close after the program that closed it goes on, which may ask again
    /// before that.
    pub(super) async fn closed_soon(&self, wait: bool) -> bool {
        let until = Instant::now() + CLOSE_WAIT;
        while self.open_count() != 0 {
            if !wait || Instant::now() >= until {
                return false;
            }
            sleep(Duration::from_millis(5)).await;
        }
        true
    }
}
