//! Appends to an open file, and attributes after acquiring a lock on a file without a lease.
//!
//! Does: writes at the real end of the file, which no other client can move meanwhile.
//! Does not: use the end that the caller assumes.
//! Contract: with a write lease, the end is chosen under that lease, so appends of all clients
//! follow each other. Without leases the server is asked for the end, and the bytes are stored
//! before the append returns; two clients that append at the same moment without a lock can then
//! overwrite each other.
//! Truth: docs/adr/0058-appends-at-the-true-end.md; write(2) of POSIX, `O_APPEND`.

use std::sync::Arc;

use sealstone_mds_protocol::{LeaseKind, Request};

use super::lease_table::LeaseState;
use super::open_inode::OpenInode;
use crate::{ClientError, Devices, Metadata};

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Appends bytes if a lease makes the end certain and memory is available; returns their
    /// offset.
    pub(super) fn try_append(self: &Arc<Self>, data: &[u8]) -> Result<Option<u64>, ClientError> {
        let mut state = self.state();
        let lease_state = self.shared.lease_state(self.node.inode, LeaseKind::Write, state.attrs.lease_seen);
        if !matches!(lease_state, LeaseState::Valid | LeaseState::Recalled) {
            return Ok(None);
        }
        self.write_at_end(&mut state, data)
    }

    fn write_at_end(
        self: &Arc<Self>,
        state: &mut super::inode_state::InodeState<M, D>,
        data: &[u8],
    ) -> Result<Option<u64>, ClientError> {
        let end = state.attrs.size;
        if !self.reserve_memory(state, end, data.len())? {
            return Ok(None);
        }
        self.buffer_write(state, end, data);
        Ok(Some(end))
    }

    /// Appends bytes, contiguous if they fit into one command; returns their offset.
    pub(super) async fn append(self: &Arc<Self>, data: &[u8]) -> Result<u64, ClientError> {
        self.require_locks()?;
        let mut began = None;
        for piece in data.chunks(self.shared.core.tuning.command_bytes) {
            let at = self.append_piece(piece).await?;
            began.get_or_insert(at);
        }
        Ok(began.unwrap_or_else(|| self.state().attrs.size))
    }

    async fn append_piece(self: &Arc<Self>, data: &[u8]) -> Result<u64, ClientError> {
        loop {
            self.wait_for_lease(LeaseKind::Write, false).await?;
            if let Some(at) = self.try_append(data)? {
                return Ok(at);
            }
            if self.is_unleased()
                && let Some(at) = self.append_unleased(data).await?
            {
                return Ok(at);
            }
            self.wait_for_append_memory(data.len()).await;
        }
    }

    /// Appends at the end that the server reports, and stores the bytes; none if a lease or memory
    /// has to be waited for.
    async fn append_unleased(self: &Arc<Self>, data: &[u8]) -> Result<Option<u64>, ClientError> {
        let _guard = self.lease_requests.lock().await;
        self.send_and_report().await?;
        self.refresh().await?;
        let placed = {
            let mut state = self.state();
            self.write_at_end(&mut state, data)?
        };
        if placed.is_some() {
            self.send_and_report().await?;
        }
        Ok(placed)
    }

    /// Waits for the memory that an append of `length` bytes needs.
    async fn wait_for_append_memory(self: &Arc<Self>, length: usize) {
        let cost = {
            let state = self.state();
            state.buffer.dirty.cost(state.attrs.size, length)
        };
        let permit = self.shared.wait_for_memory(cost).await;
        self.state().buffer.reserved.merge(permit);
    }

    /// Whether reads and writes proceed without a lease because none is given.
    pub(super) fn is_unleased(&self) -> bool {
        let lease_seen = self.state().attrs.lease_seen;
        let lease_state = self.shared.lease_state(self.node.inode, LeaseKind::Read, lease_seen);
        lease_state == LeaseState::Disabled || self.is_lease_denied()
    }

    /// Stores written bytes before a lock of this file changes hands, if no lease makes others wait
    /// for them.
    pub(super) async fn store_before_unlock(self: &Arc<Self>) {
        if self.is_unleased()
            && let Err(error) = self.send_and_report().await
        {
            self.record_error(error);
        }
    }

    /// Fetches the attributes after a lock was acquired without a lease, so that no older version
    /// of the bytes is used.
    pub(super) async fn refresh_after_lock(self: &Arc<Self>) {
        if self.is_unleased()
            && let Err(error) = self.refresh().await
        {
            tracing::warn!(inode = self.node.inode.0, %error, "attributes could not be fetched after a lock was acquired");
        }
    }

    /// Fetches the attributes. If others wrote meanwhile, buffered unflushed bytes are stored
    /// first.
    async fn refresh(self: &Arc<Self>) -> Result<(), ClientError> {
        let known = self.state().attrs.stat.as_ref().map(|stat| stat.version);
        let stat = self.shared.call_stat(&Request::GetNode { node: self.node }).await?;
        let changed = known != Some(stat.version);
        self.overlay(stat);
        let has_in_flight = !self.state().buffer.in_flight.is_empty();
        if changed && has_in_flight {
            self.wait_in_flight().await;
            self.make_durable().await?;
            self.report_acknowledged().await?;
        }
        Ok(())
    }
}
