//! Durability of an open file: flushes of its objects, sending bytes again after a restart of a
//! device, and reporting to the metadata server.
//!
//! Contract: a piece leaves memory when each of its objects was flushed after the acknowledgement,
//! in the boot epoch from before it was sent, and the server knows the size. That all objects exist
//! is reported only after they were flushed.
//! Truth: docs/adr/0036-close-and-sync-of-files-in-place.md;
//! docs/adr/0006-puts-survive-restarts.md.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{
    Access, ErrorCode, FILE_SIZE_MAX, Failure, Node, OpenedNode, Request, Response, Stat,
};
use tokio::time::Instant;

use super::background::{close, reclaim_locks};
use super::errors::{REOPENS_MAX, RESENDS_MAX, TRUNCATED_REPEATEDLY, is_denied, is_fenced, is_over_quota};
use super::layout_state::ObjectSet;
use super::open_inode::OpenInode;
use super::write_buffer::{InFlightWrite, ResendScope, WritePosition};
use crate::open::is_stale;
use crate::{ClientError, Devices, Metadata};

/// The result of a flush.
#[derive(PartialEq, Eq)]
enum FlushOutcome {
    Durable,
    /// A device restarted: sent bytes may be lost.
    Restarted,
    /// Another client truncated the file: bytes that were not reported may be lost.
    Truncated,
}

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Returns when all bytes acknowledged before are durable on the devices.
    pub(super) async fn make_durable(self: &Arc<Self>) -> Result<(), ClientError> {
        let _guard = self.server_lock.lock().await;
        self.make_durable_locked().await
    }

    async fn make_durable_locked(self: &Arc<Self>) -> Result<(), ClientError> {
        let mut restarted = None;
        for _ in 0..=RESENDS_MAX {
            let (objects, has_acknowledged) = {
                let state = self.state();
                (
                    state.layout.objects.clone(),
                    state.buffer.in_flight.values().any(|piece| piece.acknowledged),
                )
            };
            let objects = match objects {
                Some(objects) => objects,
                None if !has_acknowledged => return Ok(()),
                // Truncated to zero by another client: the bytes need new objects.
                None => self.objects_to_write(Instant::now()).await?,
            };
            let handled = match self.shared.with_retry(|| self.flush_objects(&objects)).await {
                Ok(FlushOutcome::Durable) => return self.create_missing_objects(&objects).await,
                Ok(FlushOutcome::Truncated) => self.resend(ResendScope::Unreported).await,
                Ok(FlushOutcome::Restarted) => {
                    let device = objects.open.device_of(0).await?;
                    restarted = Some(objects.open.core.device_label(device).await);
                    tracing::debug!(inode = self.node.inode.0, "a device restarted; sending again");
                    self.resend_all().await
                }
                Err(error) => Err(error),
            };
            match handled {
                // The objects were removed by a truncation.
                Err(error) if is_stale(&error) => self.refresh_layout().await?,
                handled => handled?,
            }
        }
        Err(restarted.map_or(TRUNCATED_REPEATEDLY, ClientError::Restarted))
    }

    async fn flush_objects(self: &Arc<Self>, objects: &ObjectSet<M, D>) -> Result<FlushOutcome, ClientError> {
        let numbers: Vec<u64> = {
            let state = self.state();
            match state.buffer.resend {
                ResendScope::Nothing => {}
                ResendScope::Unreported => return Ok(FlushOutcome::Truncated),
                ResendScope::All => return Ok(FlushOutcome::Restarted),
            }
            state
                .buffer
                .in_flight
                .iter()
                .filter(|(_, piece)| piece.acknowledged)
                .map(|(number, _)| *number)
                .collect()
        };
        let open: Vec<usize> = (0..objects.each.len())
            .filter(|index| objects.each[*index].flush_state.lock().has_unflushed)
            .collect();
        if let [index] = open[..] {
            if self.flush_object(objects, index).await? == FlushOutcome::Restarted {
                return Ok(FlushOutcome::Restarted);
            }
        } else {
            let mut flushes = tokio::task::JoinSet::new();
            for index in open {
                let (open_inode, objects) = (self.clone(), objects.clone());
                flushes.spawn(async move { open_inode.flush_object(&objects, index).await });
            }
            while let Some(flushed) = flushes.join_next().await {
                if crate::put::joined(flushed)? == FlushOutcome::Restarted {
                    return Ok(FlushOutcome::Restarted);
                }
            }
        }
        let mut state = self.state();
        if state.buffer.resend == ResendScope::All {
            // A lost object was found while the flushes were in progress.
            return Ok(FlushOutcome::Restarted);
        }
        let current = state.layout.objects.as_ref().is_some_and(|known| known.is_same_layout(objects));
        if state.buffer.resend != ResendScope::Nothing || !current {
            return Ok(FlushOutcome::Truncated);
        }
        state.mark_durable(&numbers);
        Ok(FlushOutcome::Durable)
    }

    async fn flush_object(
        &self,
        objects: &ObjectSet<M, D>,
        index: usize,
    ) -> Result<FlushOutcome, ClientError> {
        let known = &objects.each[index];
        let (device_epoch, writes) = {
            let flush_state = known.flush_state.lock();
            (flush_state.device_epoch, flush_state.unflushed_writes)
        };
        let now = match objects.open.execute_in(index, |object| Operation::Flush { object }).await {
            Ok(now) => now,
            Err(ClientError::Device { error: OsdError::NotFound, .. })
                if !known.flush_state.lock().durable && !self.state().layout.all_created =>
            {
                *known.created.lock().await = false;
                return Ok(FlushOutcome::Restarted);
            }
            Err(error @ ClientError::Device { error: OsdError::NotFound, .. }) => {
                // Objects are removed when their file is truncated or removed.
                objects.open.check_current().await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        if let Some(now) = now {
            self.shared.set_device_epoch(now);
        }
        // The existence of the object proves nothing: the server may have created it again, empty,
        // to fence it.
        if device_epoch.is_none() || device_epoch != now {
            return Ok(FlushOutcome::Restarted);
        }
        let mut flush_state = known.flush_state.lock();
        // Writes during the flush may not be durable.
        flush_state.has_unflushed = flush_state.unflushed_writes != writes;
        flush_state.unflushed_writes = flush_state.unflushed_writes.saturating_sub(writes);
        flush_state.durable = true;
        Ok(FlushOutcome::Durable)
    }

    /// Creates objects that got no bytes, if they were allocated for this client. Once all exist, a
    /// missing one is known to be lost.
    async fn create_missing_objects(&self, objects: &ObjectSet<M, D>) -> Result<(), ClientError> {
        {
            let state = self.state();
            let begun = objects.each.iter().any(|object| object.flush_state.lock().durable);
            if state.layout.all_created || !state.layout.allocated_here || !begun {
                return Ok(());
            }
        }
        for (index, known) in objects.each.iter().enumerate() {
            if known.flush_state.lock().durable {
                continue;
            }
            let mut created = known.created.lock().await;
            if !*created {
                let create = |object| Operation::Create { object };
                match self.shared.with_retry(|| objects.open.execute(index, create)).await {
                    Ok(_) | Err(ClientError::Device { error: OsdError::Exists, .. }) => *created = true,
                    Err(error) => return Err(error),
                }
            }
            drop(created);
            let flush = |object| Operation::Flush { object };
            match self.shared.with_retry(|| objects.open.execute(index, flush)).await {
                Ok(_) => {}
                // Lost in a restart before it was durable: the next flush creates it again.
                Err(ClientError::Device { error: OsdError::NotFound, .. }) => {
                    *known.created.lock().await = false;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            let mut flush_state = known.flush_state.lock();
            // Concurrent writes are covered by the next flush.
            flush_state.durable = !flush_state.has_unflushed;
        }
        Ok(())
    }

    /// Sends all bytes again after a restart. Of reported bytes only those that the server still
    /// has are sent; a truncation right after that check is not seen.
    async fn resend_all(&self) -> Result<(), ClientError> {
        if self.state().buffer.in_flight.values().any(|piece| piece.size_reported) {
            self.refresh_layout().await?;
        }
        self.resend(ResendScope::All).await
    }

    /// Sends bytes again with no other write in flight: all after a restart, else those that were
    /// not reported. The next flush finds what is lost once more.
    async fn resend(&self, scope: ResendScope) -> Result<(), ClientError> {
        let all = scope == ResendScope::All;
        let begun = Instant::now();
        if self.state().buffer.in_flight.is_empty() {
            self.clear_flush_state();
            return Ok(());
        }
        let objects = self.objects_to_write(begun).await?;
        let _guard = self.write_barrier.write().await;
        let pieces: Vec<(u64, InFlightWrite)> = {
            let mut state = self.state();
            if !state.layout.writes_to(&objects) {
                // Truncated again meanwhile; the caller checks again.
                return Ok(());
            }
            state.buffer.clear_resend(scope);
            let wanted = state.buffer.in_flight.iter_mut().filter(|(_, piece)| all || !piece.size_reported);
            wanted
                .map(|(number, piece)| {
                    (piece.sent, piece.durable) = (true, false);
                    (*number, piece.clone())
                })
                .collect()
        };
        let sent = self.resend_pieces(&objects, pieces, all, begun).await;
        if sent.is_err() {
            self.state().buffer.require_resend(scope);
        }
        sent
    }

    async fn resend_pieces(
        &self,
        objects: &ObjectSet<M, D>,
        pieces: Vec<(u64, InFlightWrite)>,
        all: bool,
        begun: Instant,
    ) -> Result<(), ClientError> {
        let touched: BTreeSet<usize> = pieces
            .iter()
            .flat_map(|(_, piece)| objects.open.layout.extents(piece.range()))
            .map(|extent| extent.index)
            .collect();
        // Bytes that are sent again count for the new boot epoch, so it is read before that.
        for index in (0..objects.each.len()).filter(|_| all) {
            let known = &objects.each[index];
            if !touched.contains(&index) {
                known.clear_flush_state();
                continue;
            }
            match self.shared.with_retry(|| objects.open.device_epoch(index)).await {
                Ok(device_epoch) => {
                    self.shared.set_device_epoch(device_epoch);
                    known.flush_state.lock().device_epoch = Some(device_epoch);
                }
                Err(ClientError::Device { error: OsdError::NotFound, .. })
                    if !known.flush_state.lock().durable =>
                {
                    *known.created.lock().await = false;
                    known.flush_state.lock().device_epoch = None;
                }
                Err(error) => return Err(error),
            }
        }
        for (number, piece) in pieces {
            self.write_piece(objects, &piece, begun).await?;
            self.state().buffer.acknowledge(number, Instant::now());
        }
        Ok(())
    }

    /// Clears the flush state, since no buffered bytes could be lost by a restart.
    fn clear_flush_state(&self) {
        let mut state = self.state();
        state.buffer.clear_resend(ResendScope::All);
        for known in state.layout.objects.iter().flat_map(|objects| &objects.each) {
            known.clear_flush_state();
        }
    }

    /// Reports to the metadata server what was written up to a position and is not known there; all
    /// of it has been sent.
    pub(super) async fn report_size(self: &Arc<Self>, upto: WritePosition) -> Result<(), ClientError> {
        let _guard = self.server_lock.lock().await;
        self.report_size_locked(&upto, 0).await
    }

    /// Extends the file to at least `size` bytes at the server.
    pub(super) async fn grow(self: &Arc<Self>, size: u64) -> Result<(), ClientError> {
        if size > FILE_SIZE_MAX {
            return Err(ClientError::TooLarge { max: FILE_SIZE_MAX });
        }
        let upto = self.dispatch_all();
        self.wait_in_flight().await;
        let _guard = self.server_lock.lock().await;
        self.report_size_locked(&upto, size).await
    }

    async fn report_size_locked(&self, upto: &WritePosition, grow: u64) -> Result<(), ClientError> {
        let mut denied = false;
        for _ in 0..=REOPENS_MAX {
            match self.try_report_size(upto, grow).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if is_stale(&error) => self.refresh_layout().await?,
                Err(error) if is_denied(&error) && !core::mem::replace(&mut denied, true) => {
                    self.reopen().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(TRUNCATED_REPEATEDLY)
    }

    /// Returns false if it has to be repeated.
    async fn try_report_size(&self, upto: &WritePosition, grow: u64) -> Result<bool, ClientError> {
        // Only bytes that are in the objects are reported.
        let scope = self.state().buffer.resend;
        match scope {
            ResendScope::Nothing => {}
            ResendScope::Unreported => self.resend(ResendScope::Unreported).await?,
            ResendScope::All => self.resend_all().await?,
        }
        if grow > 0 {
            self.objects_to_write(Instant::now()).await?;
        }
        let (request, generation, made, objects) = {
            let state = self.state();
            if state.buffer.resend != ResendScope::Nothing {
                return Ok(false);
            }
            let made = state.layout.all_created || self.are_all_created(&state.layout.objects);
            let changed_ns = state.buffer.changed_ns.or_else(|| (grow > 0).then(|| self.now_ns()));
            let news =
                changed_ns.is_some() || (made && !state.layout.all_created && state.layout.objects.is_some());
            if !news {
                return Ok(true);
            }
            // Without objects no bytes are on a device, so there is no size to report.
            let written = changed_ns.is_some() && state.layout.objects.is_some();
            let request = Request::Written {
                node: self.node,
                size_at_least: if written { upto.end.min(state.buffer.unreported_end).max(grow) } else { 0 },
                mtime_ns: changed_ns,
                generation: state.layout.generation,
                made,
                fit: false,
                client_id: self.shared.client_id,
            };
            (
                request,
                state.layout.generation,
                made,
                state.layout.objects.as_ref().map(|objects| objects.open.clone()),
            )
        };
        let stat = match self.shared.call_stat(&request).await {
            Err(error) if grow == 0 && is_over_quota(&error) => {
                self.truncate_to_quota(upto, request, generation).await?
            }
            outcome => outcome?,
        };
        let mut state = self.state();
        state.on_size_reported(upto);
        if state.layout.generation == generation {
            state.layout.all_created = made;
            state.update_own_attrs(&stat);
        } else {
            // Truncated right after that: the reported bytes are gone.
            let now = state.layout.objects.as_ref().map(|objects| &objects.open);
            let same = now
                .zip(objects.as_ref())
                .is_some_and(|(now, then)| now.layout.number() == then.layout.number());
            let end = if same { state.attrs.stat.as_ref().map_or(0, |stat| stat.size) } else { 0 };
            state.buffer.truncate_reported(end);
        }
        Ok(true)
    }

    /// Handles a quota that is smaller than the written file: the part that fits is kept, the rest
    /// truncated. The error is returned, unless there is space meanwhile.
    async fn truncate_to_quota(
        &self,
        upto: &WritePosition,
        mut request: Request,
        generation: u32,
    ) -> Result<Stat, ClientError> {
        if let Request::Written { fit, .. } = &mut request {
            *fit = true;
        }
        // Bytes that arrived after the truncation would stay in the objects.
        let _guard = self.write_barrier.write().await;
        if self.state().layout.generation != generation {
            return Err(Failure::new(ErrorCode::Stale, "the file was truncated meanwhile").into());
        }
        match self.shared.call_stat(&request).await {
            Err(error) if is_over_quota(&error) => {
                let stat = self.shared.call_stat(&Request::GetNode { node: self.node }).await?;
                let mut state = self.state();
                state.on_size_reported(upto);
                state.on_truncated(&stat);
                state.buffer.data_lost = true;
                drop(state);
                // In-flight pieces may have been dropped.
                self.completed.notify_waiters();
                Err(error)
            }
            outcome => outcome,
        }
    }

    /// Whether all objects of the file are durable.
    fn are_all_created(&self, objects: &Option<ObjectSet<M, D>>) -> bool {
        let state_made = |objects: &ObjectSet<M, D>| {
            objects.each.iter().all(|object| {
                let flush_state = object.flush_state.lock();
                flush_state.durable
            })
        };
        objects.as_ref().is_some_and(state_made)
    }

    /// Applies a truncation or migration by another client. Buffered bytes that were not reported
    /// are then written again.
    async fn refresh_layout(&self) -> Result<(), ClientError> {
        let access = self.state().open.access();
        let opened = self.shared.open_node(self.node, access, true).await?;
        // After a restart of the server this open registers the file again, so locks are reclaimed
        // at once.
        reclaim_locks(&self.shared, self.node).await?;
        self.apply_layout(opened, access, false).await
    }

    /// Opens the file again and reclaims its locks, after the server restarted or dropped this
    /// client.
    pub(super) async fn reopen(&self) -> Result<(), ClientError> {
        let access = self.state().open.access();
        self.shared.open_node(self.node, access, true).await?;
        self.mark_layout_stale();
        reclaim_locks(&self.shared, self.node).await
    }

    /// Marks the layout as possibly stale: while the server did not know of this open, it may have
    /// moved the objects.
    pub(super) fn mark_layout_stale(&self) {
        self.state().layout.mark_stale();
    }

    /// Discards unsaved bytes and closes the file at the server, after all programs that lost a
    /// lock on it have closed it.
    pub(super) async fn reset_after_fence(self: &Arc<Self>) {
        self.discard();
        self.shared.drop_lease(self.node.inode);
        close(self).await;
        self.shared.dentries.with(|table| table.invalidate(self.node.inode));
        let mut state = self.state();
        if self.open_count() == 0 {
            (state.open.lock_lost, state.error) = (false, None);
        }
    }

    /// Opens the file again for reading, unless another task has done so since `layouts_received`.
    pub(super) async fn refresh_layout_to_read(&self, layouts_received: u64) -> Result<(), ClientError> {
        let _guard = self.server_lock.lock().await;
        if self.state().layout.received != layouts_received {
            return Ok(());
        }
        let opened = self.shared.open_node(self.node, Access::Read, true).await?;
        // A lost lock does not prevent reading.
        if let Err(error) = reclaim_locks(&self.shared, self.node).await
            && !is_fenced(&error)
        {
            return Err(error);
        }
        self.apply_layout(opened, Access::Read, false).await
    }
}

impl<M: Metadata, D: Devices> super::shared::Shared<M, D> {
    pub(super) async fn open_node(
        self: &Arc<Self>,
        node: Node,
        access: Access,
        reclaim: bool,
    ) -> Result<OpenedNode, ClientError> {
        let answer = self.call(&self.open_request(node, access, reclaim)).await?;
        self.record_open_lease(node, &answer);
        match answer {
            Response::NodeOpened { node } => Ok(node),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Records the lease that an open may have returned.
    pub(super) fn record_open_lease(self: &Arc<Self>, node: Node, answer: &Response) {
        if let Response::NodeOpened { node: OpenedNode { lease: Some(lease), .. } } = answer {
            self.record_grant(node.inode, *lease);
        }
    }

    /// Returns the request that opens a node.
    pub(super) fn open_request(&self, node: Node, access: Access, reclaim: bool) -> Request {
        Request::OpenNode { node, access, method: self.options.method, client_id: self.client_id, reclaim }
    }
}
