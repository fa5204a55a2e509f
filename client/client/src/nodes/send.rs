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
use super::errors::{REOPENS_MAX, TRUNCATED_REPEATEDLY, is_denied, is_fenced};
use super::inode_state::InodeState;
use super::layout_state::ObjectSet;
use super::open_inode::OpenInode;
use super::shared::Shared;
use super::write_buffer::{InFlightWrite, ResendScope, WritePosition};
use crate::open::is_stale;
use crate::{ClientError, Devices, Metadata};

/// Maximum pieces that wait for a flush, however short they are.
const UNFLUSHED_MAX: usize = 512;

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Sends pieces in the background.
    pub(super) fn dispatch(self: &Arc<Self>, state: &mut InodeState<M, D>, pieces: Vec<DirtyPiece>) {
        for DirtyPiece { offset, data, part, memory } in pieces {
            let permit = state.buffer.reserved.split(memory);
            let data = self.shared.core.buffers.freeze(data, permit).slice(part);
            let number = state.buffer.add_in_flight(offset, data);
            let open_inode = self.clone();
            self.shared.runtime.spawn(async move { open_inode.send(number).await });
        }
    }

    /// Sends all dirty bytes, complete pieces or not; returns the position up to which they go.
    pub(super) fn dispatch_all(self: &Arc<Self>) -> WritePosition {
        let mut state = self.state();
        let pieces = state.buffer.dirty.take_all();
        self.dispatch(&mut state, pieces);
        state.buffer.release_excess_memory();
        state.buffer.position()
    }

    async fn send(self: Arc<Self>, number: u64) {
        let outcome = self.discard_if_fenced(self.deliver(number).await);
        let flushes = {
            let mut state = self.state();
            match outcome {
                Ok(()) => state.buffer.acknowledge(number, Instant::now()),
                Err(error) => {
                    tracing::warn!(inode = self.node.inode.0, %error, "write failed; its bytes are lost, and the next fsync or close reports it");
                    state.on_write_failed(number);
                    state.error.get_or_insert(error);
                }
            }
            let tuning = &self.shared.core.tuning;
            let full = state.buffer.unflushed_bytes > tuning.memory_bytes / 4
                || state.buffer.in_flight.len() > UNFLUSHED_MAX;
            full && !core::mem::replace(&mut state.tasks.flushing, true)
        };
        self.completed.notify_waiters();
        if flushes {
            self.flush_to_free_memory().await;
            self.state().tasks.flushing = false;
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
                    let current = state.layout.writes_to(&objects);
                    match state.buffer.in_flight.get_mut(&number).filter(|piece| !piece.acknowledged) {
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
                    if state.layout.writes_to(&objects) {
                        state.layout.writable = false;
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Returns when the timeout of a write begins: progress of other pieces restarts it.
    fn timeout_start(&self, begun: Instant) -> Instant {
        self.state().buffer.last_progress.map_or(begun, |progress| progress.max(begun))
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
                state.buffer.in_flight.get(&number).is_none_or(|mine| {
                    let mine = mine.range();
                    let in_progress = |piece: &InFlightWrite| {
                        let range = piece.range();
                        !piece.acknowledged && range.start < mine.end && mine.start < range.end
                    };
                    !state.buffer.in_flight.range(..number).any(|(_, piece)| in_progress(piece))
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
                known.flush_state.lock().has_unflushed = true;
                match self.create_object(objects, index, make).await {
                    Ok(()) => {
                        *made = true;
                        // A concurrent flush may not have covered it.
                        known.flush_state.lock().has_unflushed = true;
                        return Ok(());
                    }
                    Err(ClientError::Device { error: OsdError::Exists, .. }) => *made = true,
                    Err(error) => return Err(error),
                }
            }
        }
        self.ensure_epoch(objects, index).await?;
        let note = || {
            let mut flush_state = known.flush_state.lock();
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
            objects.each[index].flush_state.lock().device_epoch.get_or_insert(device_epoch);
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
            let flush_state = known.flush_state.lock();
            (flush_state.has_unflushed, flush_state.durable)
        };
        if durable || self.state().layout.all_created {
            // Objects are removed when their file is truncated or removed.
            objects.open.check_current().await?;
            let device = objects.open.device_of(index).await?;
            let name = objects.open.core.device_label(device).await;
            return Err(ClientError::Device { device, name, error: OsdError::NotFound });
        }
        if touched {
            // Set before it can be created again, since a flush would then find it.
            self.state().buffer.require_resend(ResendScope::All);
        }
        *known.created.lock().await = false;
        Ok(())
    }

    /// Fetches the boot epoch, if it is not known. Several commands are durable together only
    /// within one boot epoch.
    async fn ensure_epoch(&self, objects: &ObjectSet<M, D>, index: usize) -> Result<(), ClientError> {
        let known = &objects.each[index];
        if known.flush_state.lock().device_epoch.is_some() {
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
        known.flush_state.lock().device_epoch.get_or_insert(device_epoch);
        Ok(())
    }

    /// Returns the objects with write credentials; requests them from the server if needed.
    pub(super) async fn objects_to_write(&self, begun: Instant) -> Result<ObjectSet<M, D>, ClientError> {
        let _guard = self.allocate_lock.lock().await;
        let hint = {
            let state = self.state();
            if let (Some(objects), true) = (&state.layout.objects, state.layout.writable) {
                return Ok(objects.clone());
            }
            // More bytes will follow while a program writes; a complete piece is a sign of that, so
            // the size is not final.
            let whole = state
                .buffer
                .in_flight
                .values()
                .any(|piece| piece.data.len() >= self.shared.core.tuning.command_bytes);
            (!whole).then_some(state.attrs.size)
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
        let access = if self.state().open.reads { Access::Update } else { Access::Write };
        let objects = self.objects(layout, &opened.grants, access, exist).await?;
        let mut state = self.state();
        if state.attrs.is_newer_than(&opened.stat) {
            return Ok(None);
        }
        let other = state.layout.objects.as_ref().is_some_and(|known| !known.is_same_layout(&objects));
        state.follow_layout(&opened.stat, other);
        if other {
            state.layout.drop_objects();
        }
        state.layout.all_created = exist;
        // The server permits writing only after truncated bytes are cleared.
        state.layout.clean_until = u64::MAX;
        state.layout.allocated_here |= !exist && state.layout.objects.is_none();
        state.layout.writable = true;
        let objects = state.layout.set_objects(objects);
        state.update_attrs(&opened.stat);
        state.layout.stale = false;
        Ok(Some(objects))
    }

    /// Waits until nothing sent so far is in flight.
    pub(super) async fn wait_in_flight(&self) {
        let last = self.state().buffer.next_number;
        loop {
            let completed = self.completed.notified();
            tokio::pin!(completed);
            completed.as_mut().enable();
            if self.state().buffer.in_flight.range(..last).all(|(_, piece)| piece.acknowledged) {
                return;
            }
            completed.await;
        }
    }
}
