//! One open file: what was written here and is not on its devices yet, and how it gets there.
//!
//! Does: take writes into memory, send them as large commands in the background, keep what no flush has proven, tell
//! the metadata server the new size. Does not: read; `read` does. Does not: cut; `change` does.
//! Contract: bytes stay here until a flush in the same life of the device has proven them, so a device that restarts
//! costs nothing. Two commands on one byte are never under way together. What could not be stored is told once.
//! Truth: docs/adr/0036-files-in-place.md.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use sealstone_mds_protocol::{Access, FILE_SIZE_MAX, Grant, Handle, Layout, Stat};
use sealstone_mds_protocol::{Node, OpenedNode};
use tokio::sync::{Notify, RwLock, Semaphore};

use super::ahead::Ahead;
use super::dirty::Dirty;
use super::shared::{Shared, lock};
use crate::budget::Lease;
use crate::open::OpenObjects;
use crate::{ClientError, Devices, Metadata};

/// Pieces that wait for more bytes at most; more are sent as they are.
const PIECES_MAX: usize = 64;

/// One open file, shared by all who have it open here.
pub(super) struct Body<M, D> {
    pub(super) shared: Arc<Shared<M, D>>,
    pub(super) node: Node,
    /// Opens of it here.
    pub(super) opens: AtomicUsize,
    pub(super) state: Mutex<State<M, D>>,
    /// Commands that change bytes share it; who cuts, or sends again, has it alone.
    pub(super) gate: RwLock<()>,
    /// One at a time asks for objects, tells the server, proves.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) allocating: tokio::sync::Mutex<()>,
    /// A command ended.
    pub(super) moved: Notify,
    pub(super) depth: Semaphore,
}

/// The objects of a file, and what is known of each.
pub(super) struct Objects<M, D> {
    pub(super) open: Arc<OpenObjects<M, D>>,
    /// One for each object.
    pub(super) each: Vec<Object>,
}

impl<M, D> Clone for Objects<M, D> {
    fn clone(&self) -> Self {
        Self { open: self.open.clone(), each: self.each.clone() }
    }
}

/// What is known of one object.
#[derive(Clone)]
pub(super) struct Object {
    /// Held by whoever makes it; true once it is there.
    pub(super) made: Arc<tokio::sync::Mutex<bool>>,
    pub(super) facts: Arc<Mutex<Facts>>,
}

#[derive(Default)]
pub(super) struct Facts {
    /// The life of its device, as it was told before the first command that is not proven.
    pub(super) life: Option<u16>,
    /// Commands after the one that made it, that no flush has proven.
    pub(super) writes: u32,
    /// Something that no flush has proven was done to it.
    pub(super) open: bool,
    /// It has been proven: it cannot be gone any more.
    pub(super) durable: bool,
}

pub(super) struct State<M, D> {
    /// Length of the file as programs here see it.
    pub(super) size: u64,
    /// As the server last told, whoever changed it.
    pub(super) stat: Option<Stat>,
    /// Of the objects that we write to, and the length that they were cut to.
    pub(super) generation: u32,
    /// Version of the content if nobody but us changed it since it was opened here.
    pub(super) ours_alone: Option<u64>,
    /// Local change of content, not told yet: nanoseconds since 1970.
    pub(super) changed_ns: Option<i64>,
    pub(super) dirty: Dirty,
    /// Memory of what is dirty.
    pub(super) pot: Lease,
    /// Sent or being sent, by order of dispatch.
    pub(super) held: BTreeMap<u64, Held>,
    pub(super) next: u64,
    pub(super) unproven: usize,
    /// What could not be stored, until somebody was told.
    pub(super) error: Option<ClientError>,
    /// The device may have lost what is held.
    pub(super) lost: bool,
    pub(super) proving: bool,
    pub(super) objects: Option<Objects<M, D>>,
    /// Are they good for writing?
    pub(super) writable: bool,
    /// Were the objects chosen for us: is it ours to make all of them?
    pub(super) ours: bool,
    /// Does the server know that all objects are on their devices?
    pub(super) made: bool,
    /// From here on the objects may hold bytes that were cut off and are not cleared yet: they read as zeros.
    pub(super) clean_until: u64,
    /// Was it written in place? Then what is missing at the end of an object reads as zeros.
    pub(super) sparse: bool,
    pub(super) ahead: Ahead,
}

#[derive(Clone)]
pub(super) struct Held {
    pub(super) offset: u64,
    pub(super) data: Bytes,
    pub(super) acknowledged: bool,
}

impl Held {
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

impl<M, D> State<M, D> {
    /// New rights, for the same objects perhaps: then what is known of each still holds.
    pub(super) fn take_objects(&mut self, mut objects: Objects<M, D>) -> Objects<M, D> {
        if let Some(known) = self.objects.take().filter(|known| known.open.layout == objects.open.layout) {
            objects.each = known.each;
        }
        self.objects = Some(objects.clone());
        objects
    }

    /// Takes down what the server told; of another version nothing that was read ahead is good.
    pub(super) fn see(&mut self, stat: &Stat) {
        if self.stat.as_ref().is_none_or(|known| known.version != stat.version) {
            self.ahead.forget(0..u64::MAX);
        }
        self.stat = Some(stat.clone());
    }

    /// Takes down what the server told after a change of ours.
    pub(super) fn see_own(&mut self, stat: &Stat) {
        self.generation = stat.generation;
        // A version more than ours: somebody else wrote in between.
        self.ours_alone = self.ours_alone.filter(|known| stat.version <= known + 1).map(|_| stat.version);
        self.see(stat);
    }

    /// Gives back memory that nothing dirty needs any more.
    pub(super) fn settle_pot(&mut self) {
        let more = self.pot.bytes().saturating_sub(self.dirty.room());
        if more > 0 {
            drop(self.pot.split(more));
        }
    }
}

impl<M: Metadata, D: Devices> Body<M, D> {
    pub(super) fn new(shared: Arc<Shared<M, D>>, node: Node) -> Self {
        let tuning = shared.core.tuning;
        let pot = shared.core.budget.nothing();
        Self {
            node,
            opens: AtomicUsize::new(0),
            state: Mutex::new(State {
                size: 0,
                stat: None,
                generation: 0,
                ours_alone: None,
                changed_ns: None,
                dirty: Dirty::new(tuning.command_bytes),
                pot,
                held: BTreeMap::new(),
                next: 0,
                unproven: 0,
                error: None,
                lost: false,
                proving: false,
                objects: None,
                writable: false,
                ours: false,
                made: false,
                clean_until: u64::MAX,
                sparse: false,
                ahead: Ahead::new(tuning.command_bytes as u64),
            }),
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

    /// Takes over what OpenNode or MakeNode answered.
    pub(super) async fn opened(&self, opened: OpenedNode, access: Access) -> Result<(), ClientError> {
        let OpenedNode { stat, layout, grants, made, sparse, .. } = opened;
        let objects = match layout {
            Some(layout) => {
                let known = {
                    let state = self.state();
                    let same = |objects: &&Objects<M, D>| objects.open.layout == layout;
                    state
                        .objects
                        .as_ref()
                        .filter(same)
                        .cloned()
                        .filter(|_| state.writable || access == Access::Read)
                };
                match known {
                    Some(_) => None,
                    None => Some(self.objects(layout, &grants, access, true).await?),
                }
            }
            None => None,
        };
        let mut state = self.state();
        if let Some(objects) = objects {
            state.take_objects(objects);
            state.writable = access != Access::Read;
        }
        if access != Access::Read {
            // Nobody is given the right to write before what was cut off is cleared.
            state.clean_until = u64::MAX;
        }
        if stat.width == 0 {
            // Cut to nothing by somebody else: what he cut is not read here any more.
            state.objects = None;
            state.writable = false;
        }
        state.made = made;
        state.sparse |= sparse;
        state.generation = stat.generation;
        state.ours_alone = Some(stat.version);
        state.see(&stat);
        // What was written here and not told is part of the file for those who read it here.
        let here = !state.dirty.is_empty() || state.changed_ns.is_some();
        state.size = if here { state.size.max(stat.size) } else { stat.size };
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
        match &state.stat {
            // An answer that was overtaken by what was told since.
            Some(known) if known.version > stat.version => {
                (stat.size, stat.version, stat.mtime_ns) = (known.size, known.version, known.mtime_ns);
            }
            _ => state.see(&stat),
        }
        if let Some(changed_ns) = state.changed_ns {
            stat.size = stat.size.max(state.size);
            stat.mtime_ns = changed_ns;
            stat.ctime_ns = stat.ctime_ns.max(changed_ns);
        } else {
            state.size = stat.size;
        }
        stat
    }

    /// Takes bytes over, if there is memory for them right now.
    pub(super) fn try_write(self: &Arc<Self>, offset: u64, data: &[u8]) -> Result<bool, ClientError> {
        if offset.saturating_add(data.len() as u64) > FILE_SIZE_MAX {
            return Err(ClientError::TooLarge { max: FILE_SIZE_MAX });
        }
        let mut state = self.state();
        let needed = state.dirty.room() + state.dirty.cost(offset, data.len());
        let more = needed.saturating_sub(state.pot.bytes());
        if more > 0 {
            let Some(lease) = self.shared.core.budget.try_take(more) else { return Ok(false) };
            state.pot.merge(lease);
        }
        self.take_over(&mut state, offset, data);
        Ok(true)
    }

    /// Takes bytes over.
    pub(super) async fn write(self: &Arc<Self>, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let unit = self.shared.core.tuning.command_bytes as u64;
        let (mut offset, mut data) = (offset, data);
        // One piece after the other: the memory for one is there sooner or later, for all of it perhaps never.
        while !data.is_empty() {
            let within = usize::try_from(unit - offset % unit).unwrap_or(usize::MAX);
            let (head, rest) = data.split_at(within.min(data.len()));
            while !self.try_write(offset, head)? {
                let cost = self.state().dirty.cost(offset, head.len());
                let lease = self.shared.room(cost).await;
                self.state().pot.merge(lease);
            }
            offset += head.len() as u64;
            data = rest;
        }
        Ok(())
    }

    fn take_over(self: &Arc<Self>, state: &mut State<M, D>, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        state.dirty.write(offset, data);
        state.ahead.forget(offset..end);
        state.size = state.size.max(end);
        state.sparse = true;
        state.changed_ns = Some(self.now_ns());
        let ready = match state.dirty.len() > PIECES_MAX {
            true => state.dirty.take_all(),
            false => state.dirty.take_whole(),
        };
        self.dispatch(state, ready);
        state.settle_pot();
    }

    pub(super) fn now_ns(&self) -> i64 {
        i64::try_from(self.shared.core.now_ms()).unwrap_or(i64::MAX).saturating_mul(1_000_000)
    }

    /// What could not be stored, for whoever asks first.
    pub(super) fn take_error(&self) -> Result<(), ClientError> {
        self.state().error.take().map_or(Ok(()), Err)
    }

    /// Returns when everything written before is on its devices and the metadata server knows of it: others who open
    /// the file see it.
    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), ClientError> {
        self.dispatch_all();
        self.settle().await;
        let told = self.tell().await;
        self.take_error()?;
        told
    }

    /// Returns when everything written before is durable, on devices and metadata server.
    pub(super) async fn sync(self: &Arc<Self>) -> Result<(), ClientError> {
        self.dispatch_all();
        self.settle().await;
        let proven = self.prove().await;
        let told = self.tell().await;
        self.take_error()?;
        proven.and(told)
    }

    /// Sends and proves what is here, so that its memory is free; errors wait for whoever closes.
    pub(super) async fn give_way(self: &Arc<Self>) {
        self.state().ahead.forget(0..u64::MAX);
        self.dispatch_all();
        self.settle().await;
        if self.state().held.is_empty() {
            return;
        }
        if let Err(error) = self.prove().await {
            self.fail(error);
        }
    }

    /// How often it is open here.
    pub(super) fn open_count(&self) -> usize {
        self.opens.load(Ordering::Acquire)
    }
}
