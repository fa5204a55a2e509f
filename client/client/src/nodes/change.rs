//! Changes of an open file other than writes: truncating, growing and zeroing.
//!
//! Contract: truncated bytes never reappear. The server knows all bytes in the objects, and no
//! command is in flight, when it is asked to truncate. It clears the objects and gives no write
//! credentials until that is done, so the next write requests new ones. A refused truncation
//! changes nothing here.

use core::ops::Range;
use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{LeaseKind, NodeChange};
use sealstone_mds_protocol::{Request, Stat};
use sealstone_osd::ObjectId;
use tokio::time::Instant;

use super::errors::{REOPENS_MAX, RESENDS_MAX, TRUNCATED_REPEATEDLY};
use super::layout_state::ObjectSet;
use super::open_inode::OpenInode;
use crate::open::is_stale;
use crate::{ClientError, Devices, Metadata};

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Changes attributes, the size among them, in order with earlier writes.
    pub(super) async fn set(
        self: &Arc<Self>,
        change: NodeChange,
        through_file: bool,
    ) -> Result<Stat, ClientError> {
        if change.size.is_some() {
            self.require_locks()?;
        }
        match change.size {
            Some(size) => self.truncate(size, change, through_file).await,
            // A time that is set now must not be overwritten by an earlier write that is reported
            // later.
            None if change.mtime.is_some() => {
                self.send_and_report().await?;
                self.set_node(change, through_file).await
            }
            None => self.set_node(change, through_file).await,
        }
    }

    async fn set_node(&self, change: NodeChange, through_file: bool) -> Result<Stat, ClientError> {
        let client_id = Some(self.shared.client_id);
        let request = Request::SetNode { node: self.node, change, client_id, through: through_file };
        self.shared.call_stat(&request).await
    }

    async fn truncate(
        self: &Arc<Self>,
        size: u64,
        change: NodeChange,
        through_file: bool,
    ) -> Result<Stat, ClientError> {
        loop {
            let upto = match size {
                // The bytes are dropped anyway, so nothing is sent.
                0 => self.state().buffer.position(),
                _ => self.dispatch_all(),
            };
            if size > 0 {
                // The server clears only bytes that it knows.
                self.wait_in_flight().await;
                self.discard_if_fenced(self.report_size(upto).await)?;
            }
            let _server = self.server_lock.lock().await;
            let _guard = self.write_barrier.write().await;
            let more = {
                let state = self.state();
                upto.changes != Some(state.buffer.changes) && state.buffer.unreported_end > size
            };
            if size > 0 && more {
                continue;
            }
            let stat = self.discard_if_fenced(self.set_node(change.clone(), through_file).await)?;
            self.state().on_truncated(&stat);
            if size == 0 {
                self.shared.async_closes.clear_write_failure(self.node.inode);
            }
            // In-flight pieces may have been dropped.
            self.completed.notify_waiters();
            return Ok(stat);
        }
    }

    /// Makes a range read as zeros. The file does not grow.
    pub(super) async fn zero(self: &Arc<Self>, range: Range<u64>) -> Result<(), ClientError> {
        self.require_locks()?;
        self.wait_for_lease(LeaseKind::Write, false).await?;
        for _ in 0..=REOPENS_MAX {
            let range = range.start..range.end.min(self.state().attrs.size);
            if range.is_empty() {
                return Ok(());
            }
            self.send_and_report().await?;
            // Older buffered bytes must not be sent again after the zeros.
            self.make_durable().await?;
            let layouts_received = self.state().layout.received;
            match self.zero_once(&range).await {
                Err(error) if is_stale(&error) => self.refresh_layout_to_read(layouts_received).await?,
                outcome => return outcome,
            }
        }
        Err(TRUNCATED_REPEATEDLY)
    }

    async fn zero_once(self: &Arc<Self>, range: &Range<u64>) -> Result<(), ClientError> {
        let _server = self.server_lock.lock().await;
        let _guard = self.write_barrier.write().await;
        {
            let mut state = self.state();
            state.buffer.record_change(self.now_ns());
            let none = state.layout.objects.is_none()
                && state.attrs.stat.as_ref().is_none_or(|stat| stat.width == 0);
            if none {
                // A file without objects reads as zeros.
                return Ok(());
            }
        }
        let objects = self.objects_to_write(Instant::now()).await?;
        for index in 0..objects.each.len() {
            let Some(part) = objects.open.layout.object_range(index, range.clone()) else { continue };
            let clear =
                |object| Operation::Clear { object, offset: part.start, length: part.end - part.start };
            let cleared = self.run_durably(&objects, index, clear).await;
            // Concurrent read-ahead may have fetched the old bytes.
            self.state().readahead.invalidate(range.clone());
            match cleared {
                Ok(()) => objects.each[index].flush_state.lock().durable = true,
                Err(ClientError::Device { error: OsdError::NotFound, .. })
                    if !self.state().layout.all_created => {}
                Err(error @ ClientError::Device { error: OsdError::NotFound, .. }) => {
                    // Objects are removed when their file is truncated or removed.
                    self.shared.with_retry(|| objects.open.check_current()).await?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        // Removed objects accept commands for a while.
        self.shared.with_retry(|| objects.open.check_current()).await
    }

    /// Runs a command on an object and flushes it, within one boot epoch of the device.
    async fn run_durably(
        &self,
        objects: &ObjectSet<M, D>,
        index: usize,
        operation: impl Fn(ObjectId) -> Operation + Send + Sync,
    ) -> Result<(), ClientError> {
        for _ in 0..=RESENDS_MAX {
            let before = match self.shared.device_epoch(objects.open.device_of(index).await?) {
                Some(device_epoch) => device_epoch,
                None => self.shared.with_retry(|| objects.open.device_epoch(index)).await?,
            };
            self.shared.with_retry(|| objects.open.execute(index, &operation)).await?;
            let flush = |object| Operation::Flush { object };
            let now = self.shared.with_retry(|| objects.open.execute_in(index, flush)).await?;
            if let Some(now) = now {
                self.shared.set_device_epoch(now);
            }
            if now == Some(before) {
                return Ok(());
            }
        }
        let device = objects.open.device_of(index).await?;
        Err(ClientError::Restarted(objects.open.core.device_label(device).await))
    }
}
