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

use super::body::Body;
use super::leases::Standing;
use crate::{ClientError, Devices, Metadata};

impl<M: Metadata, D: Devices> Body<M, D> {
    /// Appends bytes if a lease makes the end certain and memory is available; returns their
    /// offset.
    pub(super) fn try_append(self: &Arc<Self>, data: &[u8]) -> Result<Option<u64>, ClientError> {
        let mut state = self.state();
        let standing = self.shared.standing(self.node.inode, LeaseKind::Write, state.seen_under);
        if !matches!(standing, Standing::Held | Standing::Called) {
            return Ok(None);
        }
        self.place_at_end(&mut state, data)
    }

    fn place_at_end(
        self: &Arc<Self>,
        state: &mut super::state::State<M, D>,
        data: &[u8],
    ) -> Result<Option<u64>, ClientError> {
        let end = state.size;
        if !self.makes_room(state, end, data.len())? {
            return Ok(None);
        }
        self.take_over(state, end, data);
        Ok(Some(end))
    }

    /// Appends bytes, contiguous if they fit into one command; returns their offset.
    pub(super) async fn append(self: &Arc<Self>, data: &[u8]) -> Result<u64, ClientError> {
        self.needs_locks()?;
        let mut began = None;
        for piece in data.chunks(self.shared.core.tuning.command_bytes) {
            let at = self.append_piece(piece).await?;
            began.get_or_insert(at);
        }
        Ok(began.unwrap_or_else(|| self.state().size))
    }

    async fn append_piece(self: &Arc<Self>, data: &[u8]) -> Result<u64, ClientError> {
        loop {
            self.lease(LeaseKind::Write, false).await?;
            if let Some(at) = self.try_append(data)? {
                return Ok(at);
            }
            if self.is_unleased()
                && let Some(at) = self.append_unleased(data).await?
            {
                return Ok(at);
            }
            self.take_memory(data.len()).await;
        }
    }

    /// Appends at the end that the server reports, and stores the bytes; none if a lease or memory
    /// has to be waited for.
    async fn append_unleased(self: &Arc<Self>, data: &[u8]) -> Result<Option<u64>, ClientError> {
        let _one = self.leasing.lock().await;
        self.hand_over().await?;
        self.refresh().await?;
        let placed = {
            let mut state = self.state();
            self.place_at_end(&mut state, data)?
        };
        if placed.is_some() {
            self.hand_over().await?;
        }
        Ok(placed)
    }

    /// Waits for the memory that an append of `length` bytes needs.
    async fn take_memory(self: &Arc<Self>, length: usize) {
        let cost = {
            let state = self.state();
            state.dirty.cost(state.size, length)
        };
        let permit = self.shared.room(cost).await;
        self.state().pot.merge(permit);
    }

    /// Whether reads and writes proceed without a lease because none is given.
    pub(super) fn is_unleased(&self) -> bool {
        let seen_under = self.state().seen_under;
        let standing = self.shared.standing(self.node.inode, LeaseKind::Read, seen_under);
        standing == Standing::Off || self.goes_without()
    }

    /// Stores written bytes before a lock of this file changes hands, if no lease makes others wait
    /// for them.
    pub(super) async fn store_before_unlock(self: &Arc<Self>) {
        if self.is_unleased()
            && let Err(error) = self.hand_over().await
        {
            self.fail(error);
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
        let known = self.state().stat.as_ref().map(|stat| stat.version);
        let stat = self.shared.call_stat(&Request::GetNode { node: self.node }).await?;
        let changed = known != Some(stat.version);
        self.overlay(stat);
        let held = !self.state().held.is_empty();
        if changed && held {
            self.settle().await;
            self.prove().await?;
            self.tell_stored().await?;
        }
        Ok(())
    }
}
