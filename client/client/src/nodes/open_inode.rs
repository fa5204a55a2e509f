//! One open inode: its buffered writes and how they get to the devices.
//!
//! Does: buffers writes, sends them as large commands in the background, keeps them until a flush,
//! reports the size to the metadata server.
//! Does not: read; `read` does.
//! Does not: truncate; `change` does.
//! Contract: bytes stay in memory until they were flushed in the same boot epoch of the device, and
//! reported to the server. So a restart of a device loses nothing, nor does a remote truncation
//! that is noticed late. Two commands on one byte are never in flight together. A write-back error
//! is reported once; if no space is left, writes fail before that. The file ends before bytes that
//! could not be stored.
//! Truth: docs/adr/0036-close-and-sync-of-files-in-place.md.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use sealstone_initiator::OsdError;
use sealstone_mds_protocol::{
    Access, ErrorCode, FILE_SIZE_MAX, Failure, Grant, Layout, LeaseKind, OpenHandle, Stat,
};
use sealstone_mds_protocol::{Node, OpenedNode};
use tokio::sync::{Notify, RwLock, Semaphore};
use tokio::time::{Instant, sleep};

use super::dirty::DirtyPiece;
use super::errors::{REOPENS_MAX, TRUNCATED_REPEATEDLY, fenced, is_fenced, is_over_quota};
use super::inode_state::InodeState;
use super::layout_state::{ObjectSet, ObjectState};
use super::lease_table::LeaseState;
use super::shared::Shared;
use crate::open::OpenObjects;
use crate::{ClientError, Devices, Metadata};

/// Maximum buffered pieces that wait for more bytes; above it all are sent.
const PIECES_MAX: usize = 64;

/// How long an open waits for the programs that lost a lock of the file to close it.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// Whether the error says that no space is left.
fn is_full(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(failure) => failure.code == ErrorCode::NoSpace,
        ClientError::Device { error, .. } => matches!(error, OsdError::NoSpace),
        _ => false,
    }
}

/// One open inode, shared by all opens of it on this client.
pub(super) struct OpenInode<M, D> {
    pub(super) shared: Arc<Shared<M, D>>,
    pub(super) node: Node,
    /// Number of opens on this client.
    pub(super) opens: AtomicUsize,
    pub(super) state: Mutex<InodeState<M, D>>,
    /// Shared by opens at the server, exclusive for a close there, so that neither request
    /// overtakes the other.
    pub(super) open_lock: Arc<RwLock<()>>,
    /// Serializes lock requests, so that reclaimed locks are those that programs have.
    pub(super) lock_requests: tokio::sync::Mutex<()>,
    /// Serializes lease requests.
    pub(super) lease_requests: tokio::sync::Mutex<()>,
    /// Shared by commands that write; exclusive for truncating and for sending again.
    pub(super) write_barrier: RwLock<()>,
    /// Serializes flushes, size reports and opens at the server.
    pub(super) server_lock: tokio::sync::Mutex<()>,
    pub(super) allocate_lock: tokio::sync::Mutex<()>,
    /// Notified when a command completes.
    pub(super) completed: Notify,
    pub(super) command_permits: Semaphore,
}

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    pub(super) fn new(shared: Arc<Shared<M, D>>, node: Node) -> Self {
        let tuning = shared.core.tuning;
        let reserved = shared.core.budget.empty();
        Self {
            node,
            opens: AtomicUsize::new(0),
            state: Mutex::new(InodeState::new(tuning.command_bytes, reserved, shared.core.buffers.clone())),
            open_lock: Arc::default(),
            lock_requests: tokio::sync::Mutex::new(()),
            lease_requests: tokio::sync::Mutex::new(()),
            write_barrier: RwLock::new(()),
            server_lock: tokio::sync::Mutex::new(()),
            allocate_lock: tokio::sync::Mutex::new(()),
            completed: Notify::new(),
            command_permits: Semaphore::new(tuning.depth * 4),
            shared,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, InodeState<M, D>> {
        self.state.lock()
    }

    /// Applies the answer to OpenNode or MakeNode for a new open. The open sees what others closed
    /// before, whatever is buffered here.
    pub(super) async fn apply_open(
        self: &Arc<Self>,
        opened: OpenedNode,
        access: Access,
    ) -> Result<(), ClientError> {
        let changed = {
            let mut state = self.state();
            state.open.released = false;
            state.open.reads |= access != Access::Write;
            state.open.writes |= access != Access::Read;
            !state.buffer.in_flight.is_empty()
                && state.attrs.exclusive_since_version.is_none_or(|known| known < opened.stat.version)
        };
        if changed {
            self.wait_in_flight().await;
        }
        self.apply_layout(opened, access, true).await?;
        let freed = match changed {
            true => self.make_durable().await.and(self.report_acknowledged().await),
            false => Ok(()),
        };
        if let Err(error) = freed {
            // The bytes stay buffered and cover what others wrote.
            tracing::warn!(inode = self.node.inode.0, %error, "earlier local writes are not durable yet; they stay buffered");
        }
        Ok(())
    }

    /// Applies a layout from the server; `is_new_open`: for a new open on this client.
    pub(super) async fn apply_layout(
        &self,
        opened: OpenedNode,
        access: Access,
        is_new_open: bool,
    ) -> Result<(), ClientError> {
        let OpenedNode { stat, layout, grants, made, sparse, lease, .. } = opened;
        // Objects at their old location, before a move, may still be readable but lack later writes
        // of others.
        let objects = self.state().layout.objects.clone();
        let is_at_location = match (objects, &layout) {
            (Some(known), Some(layout)) => known.open.is_at(layout.objects()).await,
            _ => false,
        };
        let known = |state: &InodeState<M, D>| {
            let number = layout.as_ref().map(Layout::number);
            let same = state
                .layout
                .objects
                .as_ref()
                .is_some_and(|objects| Some(objects.open.layout.number()) == number);
            same && is_at_location && (state.layout.writable || access == Access::Read)
        };
        let objects = match &layout {
            Some(layout) if !known(&self.state()) => {
                Some(self.objects(layout.clone(), &grants, access, true).await?)
            }
            _ => None,
        };
        let mut state = self.state();
        if let Some(lease) = lease {
            state.attrs.lease_seen = lease.number;
        }
        state.attrs.rights_changed &= !is_new_open;
        if state.attrs.is_newer_than(&stat) {
            // Newer attributes are known; a writer requests the objects itself.
            return Ok(());
        }
        let other = match (&state.layout.objects, &layout) {
            (Some(objects), Some(layout)) => objects.open.layout.number() != layout.number(),
            // Truncated to zero by another client, or answered before our own request for objects.
            (Some(_), None) => state.layout.generation != stat.generation,
            (None, _) => false,
        };
        state.follow_layout(&stat, other);
        if other {
            state.layout.drop_objects();
            state.layout.writable = false;
        }
        if let Some(objects) = objects {
            state.layout.set_objects(objects);
            state.layout.writable = access != Access::Read;
        }
        if access != Access::Read {
            // The server permits writing only after truncated bytes are cleared.
            state.layout.clean_until = u64::MAX;
        }
        state.layout.all_created = made;
        state.layout.sparse |= sparse;
        state.attrs.exclusive_since_version = match is_new_open {
            true => Some(stat.version),
            false => state.attrs.exclusive_since_version.filter(|known| *known == stat.version),
        };
        state.update_attrs(&stat);
        state.layout.stale = false;
        Ok(())
    }

    pub(super) async fn objects(
        &self,
        layout: Layout,
        grants: &[Grant],
        access: Access,
        exist: bool,
    ) -> Result<ObjectSet<M, D>, ClientError> {
        let handle = OpenHandle::Node { node: self.node, access, client_id: self.shared.client_id };
        let (core, method) = (self.shared.core.clone(), self.shared.options.method);
        let open = Arc::new(OpenObjects::new(core, handle, method, layout, grants).await?);
        let object = |_| ObjectState {
            created: Arc::new(tokio::sync::Mutex::new(exist)),
            flush_state: Arc::default(),
        };
        Ok(ObjectSet { each: (0..open.layout.width()).map(object).collect(), open })
    }

    /// Merges attributes from the server with local changes that it does not know.
    pub(super) fn overlay(&self, mut stat: Stat) -> Stat {
        let mut state = self.state();
        let newer = |known: &Stat| known.version == stat.version && known.ctime_ns > stat.ctime_ns;
        if let Some(known) = state.attrs.stat.as_ref().filter(|known| newer(known)) {
            // A newer change of attributes is known, with the same content.
            stat = known.clone();
        } else if !state.update_attrs(&stat)
            && let Some(known) = &state.attrs.stat
        {
            // Newer attributes are known.
            (stat.size, stat.version, stat.mtime_ns) = (known.size, known.version, known.mtime_ns);
        }
        if let Some(changed_ns) = state.buffer.changed_ns {
            stat.size = stat.size.max(state.buffer.unreported_end);
            stat.mtime_ns = changed_ns;
            stat.ctime_ns = stat.ctime_ns.max(changed_ns);
            // The written bytes will get objects if there are none yet.
            stat.width = stat.width.max(1);
        }
        stat
    }

    /// Buffers a write if memory is available; false if it is not, or a lease is needed.
    pub(super) fn try_write(self: &Arc<Self>, offset: u64, data: &[u8]) -> Result<bool, ClientError> {
        let mut state = self.state();
        if !self.reserve_memory(&mut state, offset, data.len())? {
            return Ok(false);
        }
        self.buffer_write(&mut state, offset, data);
        Ok(true)
    }

    /// As [`Self::try_write`] for a whole unit: keeps `memory` instead of copying it, and returns
    /// another buffer of that length. Returns `memory` itself if that is not possible now.
    pub(super) fn try_write_whole(
        self: &Arc<Self>,
        offset: u64,
        memory: Vec<u8>,
        part: Range<usize>,
    ) -> Result<Vec<u8>, Vec<u8>> {
        let mut state = self.state();
        // `try_write` reports the error.
        let whole = state.error.is_none() && state.buffer.dirty.is_complete_unit(offset, part.len());
        if !whole || !matches!(self.reserve_memory(&mut state, offset, part.len()), Ok(true)) {
            return Err(memory);
        }
        let length = memory.len();
        state.record_write(offset..offset + part.len() as u64, self.now_ns());
        let reserved_bytes = part.len();
        self.dispatch(&mut state, vec![DirtyPiece { offset, data: memory, part, memory: reserved_bytes }]);
        state.buffer.release_excess_memory();
        drop(state);
        let mut other = self.shared.core.buffers.take(length);
        other.resize(length, 0);
        Ok(other)
    }

    /// Reserves memory for a write; false if memory or a lease has to be waited for.
    pub(super) fn reserve_memory(
        &self,
        state: &mut InodeState<M, D>,
        offset: u64,
        length: usize,
    ) -> Result<bool, ClientError> {
        if offset.saturating_add(length as u64) > FILE_SIZE_MAX {
            return Err(ClientError::TooLarge { max: FILE_SIZE_MAX });
        }
        if state.open.lock_lost {
            return Err(fenced());
        }
        let lease_state = self.shared.lease_state(self.node.inode, LeaseKind::Write, state.attrs.lease_seen);
        let without = || state.attrs.no_lease_until.is_some_and(|until| Instant::now() < until);
        if matches!(lease_state, LeaseState::None | LeaseState::Expired) && !without() {
            return Ok(false);
        }
        if let Some(error) = state.error.take_if(|error| is_over_quota(error)) {
            // Reports the quota error at once instead of at close.
            return Err(error);
        }
        if state.error.as_ref().is_some_and(is_full) {
            // Likewise; the error stays pending, since bytes of earlier writes are lost.
            return Err(Failure::new(ErrorCode::NoSpace, "earlier writes were not stored").into());
        }
        let needed = state.buffer.dirty.memory() + state.buffer.dirty.cost(offset, length);
        let more = needed.saturating_sub(state.buffer.reserved.bytes());
        if more > 0 {
            let Some(permit) = self.shared.core.budget.try_take(more) else { return Ok(false) };
            state.buffer.reserved.merge(permit);
        }
        Ok(true)
    }

    /// Buffers a write, waiting for memory and a lease.
    pub(super) async fn write(self: &Arc<Self>, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let unit = self.shared.core.tuning.command_bytes as u64;
        let (mut offset, mut data) = (offset, data);
        self.require_locks()?;
        // One piece at a time: memory for one becomes free in time, memory for all of it may never.
        while !data.is_empty() {
            let within = usize::try_from(unit - offset % unit).unwrap_or(usize::MAX);
            let (head, rest) = data.split_at(within.min(data.len()));
            self.wait_for_lease(LeaseKind::Write, false).await?;
            while !self.try_write(offset, head)? {
                let cost = self.state().buffer.dirty.cost(offset, head.len());
                let permit = self.shared.wait_for_memory(cost).await;
                self.state().buffer.reserved.merge(permit);
                self.wait_for_lease(LeaseKind::Write, false).await?;
            }
            offset += head.len() as u64;
            data = rest;
        }
        Ok(())
    }

    pub(super) fn buffer_write(self: &Arc<Self>, state: &mut InodeState<M, D>, offset: u64, data: &[u8]) {
        state.buffer.dirty.write(offset, data);
        state.record_write(offset..offset + data.len() as u64, self.now_ns());
        let ready = match state.buffer.dirty.len() > PIECES_MAX {
            true => state.buffer.dirty.take_all(),
            false => state.buffer.dirty.take_complete(),
        };
        self.dispatch(state, ready);
        state.buffer.release_excess_memory();
    }

    pub(super) fn now_ns(&self) -> i64 {
        i64::try_from(self.shared.core.now_ms()).unwrap_or(i64::MAX).saturating_mul(1_000_000)
    }

    /// Returns the pending error, once.
    pub(super) fn take_error(&self) -> Result<(), ClientError> {
        self.state().error.take().map_or(Ok(()), Err)?;
        self.require_locks()
    }

    /// Fails if locks of programs on this file were lost.
    pub(super) fn require_locks(&self) -> Result<(), ClientError> {
        if self.state().open.lock_lost { Err(fenced()) } else { Ok(()) }
    }

    /// Discards unsaved bytes if the error says that this client is fenced.
    pub(super) fn discard_if_fenced<T>(&self, outcome: Result<T, ClientError>) -> Result<T, ClientError> {
        outcome.inspect_err(|error| {
            if is_fenced(error) {
                self.discard();
            }
        })
    }

    /// Returns when all earlier writes are on the devices and the size is reported, so that an open
    /// elsewhere sees them.
    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), ClientError> {
        let reported = self.send_and_report().await;
        self.take_error()?;
        reported
    }

    /// As [`Self::flush`], but leaves the pending error to programs that have the file open.
    pub(super) async fn send_and_report(self: &Arc<Self>) -> Result<(), ClientError> {
        let upto = self.dispatch_all();
        self.wait_in_flight().await;
        self.discard_if_fenced(self.report_size(upto).await)
    }

    /// Returns when all earlier writes are durable, on devices and metadata server.
    pub(super) async fn sync(self: &Arc<Self>) -> Result<(), ClientError> {
        let stored = self.store().await.and(self.shared.sync_names().await);
        self.take_error()?;
        stored
    }

    /// As [`Self::sync`] for the bytes only, leaving the pending error to programs that have the
    /// file open.
    pub(super) async fn store(self: &Arc<Self>) -> Result<(), ClientError> {
        let upto = self.dispatch_all();
        self.wait_in_flight().await;
        for _ in 0..=REOPENS_MAX {
            let flushed = self.make_durable().await;
            let reported = self.report_size(upto).await;
            self.discard_if_fenced(flushed.and(reported))?;
            // The server may have returned other objects: the bytes were sent to those and are not
            // flushed yet.
            if self.state().buffer.in_flight.range(..upto.next).next().is_none() {
                if !self.state().buffer.data_lost {
                    // The file is now as its program wrote it.
                    self.shared.async_closes.clear_write_failure(self.node.inode);
                }
                return Ok(());
            }
        }
        Err(TRUNCATED_REPEATEDLY)
    }

    /// Reports the size of what is acknowledged; durable bytes are then dropped from memory.
    pub(super) async fn report_acknowledged(self: &Arc<Self>) -> Result<(), ClientError> {
        let stored = self.state().buffer.acknowledged_position();
        match stored {
            Some(upto) => self.discard_if_fenced(self.report_size(upto).await),
            None => Ok(()),
        }
    }

    /// Flushes and reports acknowledged bytes to free their memory. Errors are reported at close.
    pub(super) async fn flush_to_free_memory(self: &Arc<Self>) {
        if let Err(error) = self.make_durable().await {
            return self.record_error(error);
        }
        if let Err(error) = self.report_acknowledged().await {
            self.record_error(error);
            // Other writers need the memory. The bytes are durable, and the size is reported later.
            self.state().drop_unreported();
        }
    }

    /// Sends and flushes all buffered bytes to free memory. Errors are reported at close.
    pub(super) async fn flush_all(self: &Arc<Self>) {
        self.dispatch_all();
        self.wait_in_flight().await;
        if !self.state().buffer.in_flight.is_empty() {
            self.flush_to_free_memory().await;
        }
    }

    /// Returns the number of opens on this client.
    pub(super) fn open_count(&self) -> usize {
        self.opens.load(Ordering::Acquire)
    }

    /// Whether the server has this client's open state of it, as far as is known here.
    pub(super) fn is_open_at_server(&self) -> bool {
        let state = self.state();
        state.attrs.stat.is_some() && !state.open.released
    }

    /// Whether no program has it open. `wait`: waits up to [`CLOSE_WAIT`], since the kernel reports
    /// the last close late.
    pub(super) async fn wait_closed(&self, wait: bool) -> bool {
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
