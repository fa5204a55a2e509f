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

use super::dirty::DirtyPiece;
use super::durability::{REOPENS_MAX, TRUNCATED_REPEATEDLY};
use super::inode_state::{InFlightWrite, InodeState, ObjectSet, WritePosition};
use super::open_inode::OpenInode;
use super::shared::{Shared, is_denied, is_fenced, lock};
use crate::open::is_stale;
use crate::{ClientError, Devices, Metadata};

/// Maximum pieces that wait for a flush, however short they are.
const UNFLUSHED_MAX: usize = 512;

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Sends pieces in the background.
    pub(super) fn dispatch(self: &Arc<Self>, state: &mut InodeState<M, D>, pieces: Vec<DirtyPiece>) {
        for DirtyPiece { offset, data, part, memory } in pieces {
            let permit = state.reserved.split(memory);
            let data = self.shared.core.buffers.freeze(data, permit).slice(part);
            let number = state.next;
            state.next += 1;
            let piece = InFlightWrite {
                offset,
                data,
                sent: false,
                acknowledged: false,
                size_reported: false,
                durable: false,
            };
            state.in_flight.insert(number, piece);
            let open_inode = self.clone();
            self.shared.runtime.spawn(async move { open_inode.send(number).await });
        }
    }

    /// Sends all dirty bytes, complete pieces or not; returns the position up to which they go.
    pub(super) fn dispatch_all(self: &Arc<Self>) -> WritePosition {
        let mut state = self.state();
        let pieces = state.dirty.take_all();
        self.dispatch(&mut state, pieces);
        state.release_excess_memory();
        state.position()
    }

    async fn send(self: Arc<Self>, number: u64) {
        let outcome = self.discard_if_fenced(self.deliver(number).await);
        let flushes = {
            let mut state = self.state();
            match outcome {
                Ok(()) => self.acknowledge(&mut state, number),
                Err(error) => {
                    tracing::warn!(inode = self.node.inode.0, %error, "write failed; its bytes are lost, and the next fsync or close reports it");
                    state.in_flight.remove(&number);
                    state.on_write_failed();
                    state.error.get_or_insert(error);
                }
            }
            let tuning = &self.shared.core.tuning;
            let full =
                state.unflushed_bytes > tuning.memory_bytes / 4 || state.in_flight.len() > UNFLUSHED_MAX;
            full && !core::mem::replace(&mut state.flushing, true)
        };
        self.completed.notify_waiters();
        if flushes {
            self.flush_to_free_memory().await;
            self.state().flushing = false;
        }
    }

    pub(super) fn acknowledge(&self, state: &mut InodeState<M, D>, number: u64) {
        state.progress = Some(Instant::now());
        if let Some(piece) = state.in_flight.get_mut(&number)
            && !piece.acknowledged
        {
            piece.acknowledged = true;
            state.unflushed_bytes += piece.data.len();
        }
    }

    /// Records an error until a program gets it.
    pub(super) fn record_error(&self, error: ClientError) {
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
                let _shared = self.write_barrier.read().await;
                let _permit = self.command_permits.acquire().await;
                let piece = {
                    let mut state = self.state();
                    let current = state.writes_to(&objects);
                    match state.in_flight.get_mut(&number).filter(|piece| !piece.acknowledged) {
                        Some(piece) if current => {
                            piece.sent = true;
                            piece.clone()
                        }
                        // Truncated, or migrated to other objects, meanwhile.
                        Some(_) => continue,
                        // Truncated, or sent again already after a restart.
                        None => return Ok(()),
                    }
                };
                self.write_piece(&objects, &piece, begun).await
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
    fn timeout_start(&self, begun: Instant) -> Instant {
        self.state().progress.map_or(begun, |progress| progress.max(begun))
    }

    /// Waits until no earlier piece with the same bytes is in flight.
    async fn wait_for_earlier(&self, number: u64) {
        loop {
            let completed = self.completed.notified();
            tokio::pin!(completed);
            // Registered before the check, so that no wake-up is lost.
            completed.as_mut().enable();
            let free = {
                let state = self.state();
                state.in_flight.get(&number).is_none_or(|mine| {
                    let mine = mine.range();
                    let in_progress = |piece: &InFlightWrite| {
                        let range = piece.range();
                        !piece.acknowledged && range.start < mine.end && mine.start < range.end
                    };
                    !state.in_flight.range(..number).any(|(_, piece)| in_progress(piece))
                })
            };
            if free {
                return;
            }
            completed.await;
        }
    }

    /// Writes all bytes of a piece to its objects.
    pub(super) async fn write_piece(
        &self,
        objects: &ObjectSet<M, D>,
        piece: &InFlightWrite,
        begun: Instant,
    ) -> Result<(), ClientError> {
        let begun = || self.timeout_start(begun);
        for extent in objects.open.layout.extents(piece.range()) {
            let from = (extent.file_offset - piece.offset) as usize;
            let data = piece.data.slice(from..from + extent.length as usize);
            let place = (extent.index, extent.object_offset);
            self.shared.with_retry_since(begun, || self.write_object(objects, place, data.clone())).await?;
        }
        Ok(())
    }

    async fn write_object(
        &self,
        objects: &ObjectSet<M, D>,
        place: (usize, u64),
        data: Bytes,
    ) -> Result<(), ClientError> {
        let mut missing = None;
        // Missing, then created by another task, then present; a third failure is an error.
        for _ in 0..3 {
            match self.try_write_object(objects, place, data.clone()).await {
                Err(error @ ClientError::Device { error: OsdError::NotFound, .. }) => {
                    self.handle_missing_object(objects, place.0).await?;
                    missing = Some(error);
                }
                outcome => return outcome,
            }
        }
        Err(missing.unwrap_or(ClientError::OTHER_ANSWER))
    }

    async fn try_write_object(
        &self,
        objects: &ObjectSet<M, D>,
        (index, offset): (usize, u64),
        data: Bytes,
    ) -> Result<(), ClientError> {
        let Some(known) = objects.each.get(index) else { return Err(ClientError::OTHER_ANSWER) };
        {
            let mut made = known.created.lock().await;
            if !*made {
                let make = |object| Operation::CreateAndWrite { object, offset, data: data.clone() };
                lock(&known.flush_state).has_unflushed = true;
                match self.create_object(objects, index, make).await {
                    Ok(()) => {
                        *made = true;
                        // A concurrent flush may not have covered it.
                        lock(&known.flush_state).has_unflushed = true;
                        return Ok(());
                    }
                    Err(ClientError::Device { error: OsdError::Exists, .. }) => *made = true,
                    Err(error) => return Err(error),
                }
            }
        }
        self.ensure_epoch(objects, index).await?;
        let note = || {
            let mut flush_state = lock(&known.flush_state);
            flush_state.has_unflushed = true;
            flush_state.unflushed_writes = flush_state.unflushed_writes.saturating_add(1);
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
    async fn create_object(
        &self,
        objects: &ObjectSet<M, D>,
        index: usize,
        make: impl FnMut(ObjectId) -> Operation + Send,
    ) -> Result<(), ClientError> {
        let before = self.shared.device_epoch(objects.open.device_of(index).await?);
        let device_epoch = match before {
            Some(_) => {
                objects.open.execute(index, make).await?;
                before
            }
            None => objects.open.execute_in(index, make).await?,
        };
        if let Some(device_epoch) = device_epoch {
            if before.is_none() {
                self.shared.set_device_epoch(device_epoch);
            }
            lock(&objects.each[index].flush_state).device_epoch.get_or_insert(device_epoch);
        }
        Ok(())
    }

    /// Handles a missing object: it will be created by the next try. If it was lost, all its bytes
    /// are sent again.
    async fn handle_missing_object(
        &self,
        objects: &ObjectSet<M, D>,
        index: usize,
    ) -> Result<(), ClientError> {
        let Some(known) = objects.each.get(index) else { return Err(ClientError::OTHER_ANSWER) };
        let (touched, durable) = {
            let flush_state = lock(&known.flush_state);
            (flush_state.has_unflushed, flush_state.durable)
        };
        if durable || self.state().all_created {
            // Objects are removed when their file is truncated or removed.
            objects.open.check_current().await?;
            let device = objects.open.device_of(index).await?;
            let name = objects.open.core.device_label(device).await;
            return Err(ClientError::Device { device, name, error: OsdError::NotFound });
        }
        if touched {
            // Set before it can be created again, since a flush would then find it.
            self.state().device_restarted = true;
        }
        *known.created.lock().await = false;
        Ok(())
    }

    /// Fetches the boot epoch, if it is not known. Several commands are durable together only
    /// within one boot epoch.
    async fn ensure_epoch(&self, objects: &ObjectSet<M, D>, index: usize) -> Result<(), ClientError> {
        let known = &objects.each[index];
        if lock(&known.flush_state).device_epoch.is_some() {
            return Ok(());
        }
        let device = objects.open.device_of(index).await?;
        let device_epoch = match self.shared.device_epoch(device) {
            Some(device_epoch) => device_epoch,
            None => {
                let device_epoch = objects.open.device_epoch(index).await?;
                self.shared.set_device_epoch(device_epoch);
                device_epoch
            }
        };
        lock(&known.flush_state).device_epoch.get_or_insert(device_epoch);
        Ok(())
    }

    /// Returns the objects with write credentials; requests them from the server if needed.
    pub(super) async fn objects_to_write(&self, begun: Instant) -> Result<ObjectSet<M, D>, ClientError> {
        let _guard = self.allocate_lock.lock().await;
        let hint = {
            let state = self.state();
            if let (Some(objects), true) = (&state.objects, state.writable) {
                return Ok(objects.clone());
            }
            // More bytes will follow while a program writes; a complete piece is a sign of that, so
            // the size is not final.
            let whole = state
                .in_flight
                .values()
                .any(|piece| piece.data.len() >= self.shared.core.tuning.command_bytes);
            (!whole).then_some(state.size)
        };
        let Shared { options, client_id, .. } = &*self.shared;
        let request = Request::Allocate {
            node: self.node,
            size_hint: hint,
            method: options.method,
            client_id: *client_id,
        };
        self.shared.flush_dependencies_of(&request).await?;
        let begun = || self.timeout_start(begun);
        let mut denied = false;
        for _ in 0..=REOPENS_MAX {
            let ask = || self.shared.core.metadata.call(request.clone());
            let opened = match self.shared.with_retry_since(begun, ask).await {
                Ok(Response::NodeOpened { node }) => node,
                Ok(_) => return Err(ClientError::OTHER_ANSWER),
                Err(error) if is_denied(&error) && !core::mem::replace(&mut denied, true) => {
                    self.reopen().await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(objects) = self.apply_allocation(opened).await? {
                return Ok(objects);
            }
        }
        Err(TRUNCATED_REPEATEDLY)
    }

    /// Applies the answer to Allocate; none if newer attributes are known.
    async fn apply_allocation(&self, opened: OpenedNode) -> Result<Option<ObjectSet<M, D>>, ClientError> {
        let Some(layout) = opened.layout else {
            // Truncated to zero meanwhile; the next request gets new objects.
            return Ok(None);
        };
        let exist = opened.made;
        let access = if self.state().reads { Access::Update } else { Access::Write };
        let objects = self.objects(layout, &opened.grants, access, exist).await?;
        let mut state = self.state();
        if state.stat.as_ref().is_some_and(|known| known.version > opened.stat.version) {
            return Ok(None);
        }
        let other = |known: &ObjectSet<M, D>| known.open.layout.number() != objects.open.layout.number();
        let other = state.objects.as_ref().is_some_and(other);
        state.follow_layout(&opened.stat, other);
        if other {
            state.objects = None;
            state.allocated_here = false;
        }
        state.all_created = exist;
        // The server permits writing only after truncated bytes are cleared.
        state.clean_until = u64::MAX;
        state.allocated_here |= !exist && state.objects.is_none();
        state.writable = true;
        let objects = state.set_objects(objects);
        state.update_attrs(&opened.stat);
        state.layout_stale = false;
        Ok(Some(objects))
    }

    /// Waits until nothing sent so far is in flight.
    pub(super) async fn wait_in_flight(&self) {
        let last = self.state().next;
        loop {
            let completed = self.completed.notified();
            tokio::pin!(completed);
            completed.as_mut().enable();
            if self.state().in_flight.range(..last).all(|(_, piece)| piece.acknowledged) {
                return;
            }
            completed.await;
        }
    }
}
