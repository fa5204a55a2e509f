//! Sending written bytes of an open file to its devices.
//!
//! Contract: pieces are sent in the background, several at once, but never two with the same byte.
//! The first piece for a missing object creates it.
//! Truth: docs/adr/0036-close-and-sync-of-files-in-place.md.

use std::sync::Arc;

use bytes::Bytes;
use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{Access, OpenedNode, Request, Response};
use sealstone_osd::ObjectId;
use tokio::time::Instant;

use super::body::Body;
use super::dirty::Taken;
use super::prove::{CUT_AGAIN, REOPENS_MAX};
use super::shared::{Shared, is_denied, is_fenced, lock};
use super::state::{Held, Mark, Objects, State};
use crate::open::is_stale;
use crate::{ClientError, Devices, Metadata};

/// Maximum pieces that wait for a flush, however short they are.
const UNPROVEN_MAX: usize = 512;

impl<M: Metadata, D: Devices> Body<M, D> {
    /// Sends pieces in the background.
    pub(super) fn dispatch(self: &Arc<Self>, state: &mut State<M, D>, pieces: Vec<Taken>) {
        for Taken { offset, data, part, room } in pieces {
            let lease = state.pot.split(room);
            let data = self.shared.core.buffers.freeze(data, lease).slice(part);
            let number = state.next;
            state.next += 1;
            let held = Held { offset, data, sent: false, acknowledged: false, told: false, proven: false };
            state.held.insert(number, held);
            let body = self.clone();
            self.shared.runtime.spawn(async move { body.send(number).await });
        }
    }

    /// Sends all dirty bytes, complete pieces or not; returns the position up to which they go.
    pub(super) fn dispatch_all(self: &Arc<Self>) -> Mark {
        let mut state = self.state();
        let pieces = state.dirty.take_all();
        self.dispatch(&mut state, pieces);
        state.settle_pot();
        state.mark()
    }

    async fn send(self: Arc<Self>, number: u64) {
        let outcome = self.unless_fenced(self.deliver(number).await);
        let prove = {
            let mut state = self.state();
            match outcome {
                Ok(()) => self.acknowledge(&mut state, number),
                Err(error) => {
                    tracing::warn!(inode = self.node.inode.0, %error, "write failed; its bytes are lost, and the next fsync or close reports it");
                    state.held.remove(&number);
                    state.was_not_stored();
                    state.error.get_or_insert(error);
                }
            }
            let tuning = &self.shared.core.tuning;
            let full = state.unproven > tuning.memory_bytes / 4 || state.held.len() > UNPROVEN_MAX;
            full && !core::mem::replace(&mut state.proving, true)
        };
        self.moved.notify_waiters();
        if prove {
            self.make_room().await;
            self.state().proving = false;
        }
    }

    pub(super) fn acknowledge(&self, state: &mut State<M, D>, number: u64) {
        state.progress = Some(Instant::now());
        if let Some(held) = state.held.get_mut(&number)
            && !held.acknowledged
        {
            held.acknowledged = true;
            state.unproven += held.data.len();
        }
    }

    /// Records an error until a program gets it.
    pub(super) fn fail(&self, error: ClientError) {
        tracing::warn!(inode = self.node.inode.0, %error, "write-back failed; the next fsync or close reports it");
        if is_fenced(&error) {
            self.discard();
        }
        self.state().error.get_or_insert(error);
    }

    async fn deliver(self: &Arc<Self>, number: u64) -> Result<(), ClientError> {
        let begun = Instant::now();
        let mut reopens = 0;
        loop {
            let objects = self.objects_to_write(begun).await?;
            self.wait_for_earlier(number).await;
            let outcome = {
                let _shared = self.gate.read().await;
                let _turn = self.depth.acquire().await;
                let held = {
                    let mut state = self.state();
                    let current = state.writes_to(&objects);
                    match state.held.get_mut(&number).filter(|held| !held.acknowledged) {
                        Some(held) if current => {
                            held.sent = true;
                            held.clone()
                        }
                        // Truncated, or migrated to other objects, meanwhile.
                        Some(_) => continue,
                        // Truncated, or sent again already after a restart.
                        None => return Ok(()),
                    }
                };
                self.write_out(&objects, &held, begun).await
            };
            match outcome {
                Err(error) if is_stale(&error) && reopens < REOPENS_MAX => {
                    reopens += 1;
                    let mut state = self.state();
                    if state.writes_to(&objects) {
                        state.writable = false;
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Returns when the timeout of a write begins: progress of other pieces restarts it.
    fn patience_from(&self, begun: Instant) -> Instant {
        self.state().progress.map_or(begun, |progress| progress.max(begun))
    }

    /// Waits until no earlier piece with the same bytes is in flight.
    async fn wait_for_earlier(&self, number: u64) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            // Registered before the check, so that no wake-up is lost.
            moved.as_mut().enable();
            let free = {
                let state = self.state();
                state.held.get(&number).is_none_or(|mine| {
                    let mine = mine.range();
                    let under_way = |held: &Held| {
                        let range = held.range();
                        !held.acknowledged && range.start < mine.end && mine.start < range.end
                    };
                    !state.held.range(..number).any(|(_, held)| under_way(held))
                })
            };
            if free {
                return;
            }
            moved.await;
        }
    }

    /// Writes all bytes of a piece to its objects.
    pub(super) async fn write_out(
        &self,
        objects: &Objects<M, D>,
        held: &Held,
        begun: Instant,
    ) -> Result<(), ClientError> {
        let begun = || self.patience_from(begun);
        for extent in objects.open.layout.extents(held.range()) {
            let from = (extent.file_offset - held.offset) as usize;
            let data = held.data.slice(from..from + extent.length as usize);
            let place = (extent.index, extent.object_offset);
            self.shared.patiently_since(begun, || self.write_object(objects, place, data.clone())).await?;
        }
        Ok(())
    }

    async fn write_object(
        &self,
        objects: &Objects<M, D>,
        place: (usize, u64),
        data: Bytes,
    ) -> Result<(), ClientError> {
        let mut missing = None;
        // Missing, then created by another task, then present; a third failure is an error.
        for _ in 0..3 {
            match self.write_once(objects, place, data.clone()).await {
                Err(error @ ClientError::Device { error: OsdError::NotFound, .. }) => {
                    self.made_anew(objects, place.0).await?;
                    missing = Some(error);
                }
                outcome => return outcome,
            }
        }
        Err(missing.unwrap_or(ClientError::OTHER_ANSWER))
    }

    async fn write_once(
        &self,
        objects: &Objects<M, D>,
        (index, offset): (usize, u64),
        data: Bytes,
    ) -> Result<(), ClientError> {
        let Some(known) = objects.each.get(index) else { return Err(ClientError::OTHER_ANSWER) };
        {
            let mut made = known.made.lock().await;
            if !*made {
                let make = |object| Operation::CreateAndWrite { object, offset, data: data.clone() };
                lock(&known.facts).open = true;
                match self.make_in(objects, index, make).await {
                    Ok(()) => {
                        *made = true;
                        // A concurrent flush may not have covered it.
                        lock(&known.facts).open = true;
                        return Ok(());
                    }
                    Err(ClientError::Device { error: OsdError::Exists, .. }) => *made = true,
                    Err(error) => return Err(error),
                }
            }
        }
        self.know_life(objects, index).await?;
        let note = || {
            let mut facts = lock(&known.facts);
            facts.open = true;
            facts.writes = facts.writes.saturating_add(1);
        };
        // Recorded before, since the write may be done even if its answer is lost.
        note();
        let write = |object| Operation::Write { object, offset, data: data.clone() };
        objects.open.execute(index, write).await?;
        // And after, since a concurrent flush may not have covered it.
        note();
        Ok(())
    }

    /// Creates an object in a known boot epoch of its device: one known before, or that of the
    /// answer.
    async fn make_in(
        &self,
        objects: &Objects<M, D>,
        index: usize,
        make: impl FnMut(ObjectId) -> Operation + Send,
    ) -> Result<(), ClientError> {
        let before = self.shared.life(objects.open.device_of(index).await?);
        let life = match before {
            Some(_) => {
                objects.open.execute(index, make).await?;
                before
            }
            None => objects.open.execute_in(index, make).await?,
        };
        if let Some(life) = life {
            if before.is_none() {
                self.shared.set_life(life);
            }
            lock(&objects.each[index].facts).life.get_or_insert(life);
        }
        Ok(())
    }

    /// Handles a missing object: it will be created by the next try. If it was lost, all its bytes
    /// are sent again.
    async fn made_anew(&self, objects: &Objects<M, D>, index: usize) -> Result<(), ClientError> {
        let Some(known) = objects.each.get(index) else { return Err(ClientError::OTHER_ANSWER) };
        let (touched, durable) = {
            let facts = lock(&known.facts);
            (facts.open, facts.durable)
        };
        if durable || self.state().made {
            // Objects are removed when their file is truncated or removed.
            objects.open.check_current().await?;
            let device = objects.open.device_of(index).await?;
            let name = objects.open.core.device_label(device).await;
            return Err(ClientError::Device { device, name, error: OsdError::NotFound });
        }
        if touched {
            // Set before it can be created again, since a flush would then find it.
            self.state().lost = true;
        }
        *known.made.lock().await = false;
        Ok(())
    }

    /// Fetches the boot epoch, if it is not known. Several commands are durable together only
    /// within one boot epoch.
    async fn know_life(&self, objects: &Objects<M, D>, index: usize) -> Result<(), ClientError> {
        let known = &objects.each[index];
        if lock(&known.facts).life.is_some() {
            return Ok(());
        }
        let device = objects.open.device_of(index).await?;
        let life = match self.shared.life(device) {
            Some(life) => life,
            None => {
                let life = objects.open.life(index).await?;
                self.shared.set_life(life);
                life
            }
        };
        lock(&known.facts).life.get_or_insert(life);
        Ok(())
    }

    /// Returns the objects with write credentials; requests them from the server if needed.
    pub(super) async fn objects_to_write(&self, begun: Instant) -> Result<Objects<M, D>, ClientError> {
        let _alone = self.allocating.lock().await;
        let hint = {
            let state = self.state();
            if let (Some(objects), true) = (&state.objects, state.writable) {
                return Ok(objects.clone());
            }
            // More bytes will follow while a program writes; a complete piece is a sign of that, so
            // the size is not final.
            let whole =
                state.held.values().any(|held| held.data.len() >= self.shared.core.tuning.command_bytes);
            (!whole).then_some(state.size)
        };
        let Shared { options, client_id, .. } = &*self.shared;
        let request = Request::Allocate {
            node: self.node,
            size_hint: hint,
            method: options.method,
            client_id: *client_id,
        };
        self.shared.told_before(&request).await?;
        let begun = || self.patience_from(begun);
        let mut denied = false;
        for _ in 0..=REOPENS_MAX {
            let ask = || self.shared.core.metadata.call(request.clone());
            let opened = match self.shared.patiently_since(begun, ask).await {
                Ok(Response::NodeOpened { node }) => node,
                Ok(_) => return Err(ClientError::OTHER_ANSWER),
                Err(error) if is_denied(&error) && !core::mem::replace(&mut denied, true) => {
                    self.hold_again().await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(objects) = self.take_allocated(opened).await? {
                return Ok(objects);
            }
        }
        Err(CUT_AGAIN)
    }

    /// Applies the answer to Allocate; none if newer attributes are known.
    async fn take_allocated(&self, opened: OpenedNode) -> Result<Option<Objects<M, D>>, ClientError> {
        let Some(layout) = opened.layout else {
            // Truncated to zero meanwhile; the next request gets new objects.
            return Ok(None);
        };
        let there = opened.made;
        let access = if self.state().reads { Access::Update } else { Access::Write };
        let objects = self.objects(layout, &opened.grants, access, there).await?;
        let mut state = self.state();
        if state.stat.as_ref().is_some_and(|known| known.version > opened.stat.version) {
            return Ok(None);
        }
        let other = |known: &Objects<M, D>| known.open.layout.number() != objects.open.layout.number();
        let other = state.objects.as_ref().is_some_and(other);
        state.follow(&opened.stat, other);
        if other {
            state.objects = None;
            state.ours = false;
        }
        state.made = there;
        // The server permits writing only after truncated bytes are cleared.
        state.clean_until = u64::MAX;
        state.ours |= !there && state.objects.is_none();
        state.writable = true;
        let objects = state.take_objects(objects);
        state.see(&opened.stat);
        state.outdated = false;
        Ok(Some(objects))
    }

    /// Waits until nothing sent so far is in flight.
    pub(super) async fn settle(&self) {
        let last = self.state().next;
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.state().held.range(..last).all(|(_, held)| held.acknowledged) {
                return;
            }
            moved.await;
        }
    }
}
