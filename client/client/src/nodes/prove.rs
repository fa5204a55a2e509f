//! Durability of an open file: flushes of its objects, sending bytes again after a restart of a
//! device, and reporting to the metadata server.
//!
//! Contract: a piece leaves memory when each of its objects was flushed after the acknowledgement,
//! in the boot epoch from before it was sent, and the server knows the size. The server is told
//! that all objects exist only after they were flushed.
//! Truth: docs/adr/0036-close-and-sync-of-files-in-place.md;
//! docs/adr/0006-puts-survive-restarts.md.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{
    Access, ErrorCode, FILE_SIZE_MAX, Failure, Node, OpenedNode, Request, Response, Stat,
};
use tokio::time::Instant;

use super::body::Body;
use super::keep::{close, lock_again};
use super::shared::{is_denied, is_fenced, is_over_quota, lock};
use super::state::{Held, Mark, Objects};
use crate::open::is_stale;
use crate::{ClientError, Devices, Metadata};

/// Maximum times that bytes are sent again because a device restarted.
pub(super) const REDOS_MAX: u32 = 8;
/// Maximum times that an operation follows a truncation or migration of the file.
pub(super) const REOPENS_MAX: u32 = 4;

/// Another client truncates the file faster than this one can open it again.
pub(super) const CUT_AGAIN: ClientError =
    ClientError::Protocol("too many concurrent truncations of the file");

/// The result of a flush.
#[derive(PartialEq, Eq)]
enum Proof {
    Durable,
    /// A device restarted: sent bytes may be lost.
    Restarted,
    /// Another client truncated the file: bytes that were not reported may be lost.
    Overtaken,
}

impl<M: Metadata, D: Devices> Body<M, D> {
    /// Returns when all bytes acknowledged before are durable on the devices.
    pub(super) async fn prove(self: &Arc<Self>) -> Result<(), ClientError> {
        let _alone = self.turn.lock().await;
        self.prove_alone().await
    }

    async fn prove_alone(self: &Arc<Self>) -> Result<(), ClientError> {
        let mut restarted = None;
        for _ in 0..=REDOS_MAX {
            let (objects, held) = {
                let state = self.state();
                (state.objects.clone(), state.held.values().any(|held| held.acknowledged))
            };
            let objects = match objects {
                Some(objects) => objects,
                None if !held => return Ok(()),
                // Truncated to zero by another client: the bytes need new objects.
                None => self.objects_to_write(Instant::now()).await?,
            };
            let proven = match self.shared.patiently(|| self.flush_objects(&objects)).await {
                Ok(Proof::Durable) => return self.make_missing(&objects).await,
                Ok(Proof::Overtaken) => self.send_again(false).await,
                Ok(Proof::Restarted) => {
                    let device = objects.open.device_of(0).await?;
                    restarted = Some(objects.open.core.device_label(device).await);
                    tracing::debug!(inode = self.node.inode.0, "a device restarted; sending again");
                    self.send_all_again().await
                }
                Err(error) => Err(error),
            };
            match proven {
                // The objects were removed by a truncation.
                Err(error) if is_stale(&error) => self.reopen().await?,
                proven => proven?,
            }
        }
        Err(restarted.map_or(CUT_AGAIN, ClientError::Restarted))
    }

    async fn flush_objects(self: &Arc<Self>, objects: &Objects<M, D>) -> Result<Proof, ClientError> {
        let numbers: Vec<u64> = {
            let state = self.state();
            if state.lost {
                return Ok(Proof::Restarted);
            }
            if state.overtaken {
                return Ok(Proof::Overtaken);
            }
            state.held.iter().filter(|(_, held)| held.acknowledged).map(|(number, _)| *number).collect()
        };
        let open: Vec<usize> =
            (0..objects.each.len()).filter(|index| lock(&objects.each[*index].facts).open).collect();
        if let [index] = open[..] {
            if self.flush_object(objects, index).await? == Proof::Restarted {
                return Ok(Proof::Restarted);
            }
        } else {
            let mut flushes = tokio::task::JoinSet::new();
            for index in open {
                let (body, objects) = (self.clone(), objects.clone());
                flushes.spawn(async move { body.flush_object(&objects, index).await });
            }
            while let Some(flushed) = flushes.join_next().await {
                if crate::put::joined(flushed)? == Proof::Restarted {
                    return Ok(Proof::Restarted);
                }
            }
        }
        let mut state = self.state();
        if state.lost {
            // A lost object was found while the flushes were in progress.
            return Ok(Proof::Restarted);
        }
        let same = |known: &Objects<M, D>| known.open.layout.number() == objects.open.layout.number();
        let current = state.objects.as_ref().is_some_and(same);
        if state.overtaken || !current {
            return Ok(Proof::Overtaken);
        }
        state.proven(&numbers);
        Ok(Proof::Durable)
    }

    async fn flush_object(&self, objects: &Objects<M, D>, index: usize) -> Result<Proof, ClientError> {
        let known = &objects.each[index];
        let (life, writes) = {
            let facts = lock(&known.facts);
            (facts.life, facts.writes)
        };
        let now = match objects.open.execute_in(index, |object| Operation::Flush { object }).await {
            Ok(now) => now,
            Err(ClientError::Device { error: OsdError::NotFound, .. })
                if !lock(&known.facts).durable && !self.state().made =>
            {
                *known.made.lock().await = false;
                return Ok(Proof::Restarted);
            }
            Err(error @ ClientError::Device { error: OsdError::NotFound, .. }) => {
                // Objects are removed when their file is truncated or removed.
                objects.open.check_current().await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        if let Some(now) = now {
            self.shared.set_life(now);
        }
        // The existence of the object proves nothing: the server may have created it again, empty,
        // to fence it.
        if life.is_none() || life != now {
            return Ok(Proof::Restarted);
        }
        let mut facts = lock(&known.facts);
        // Writes during the flush may not be durable.
        facts.open = facts.writes != writes;
        facts.writes = facts.writes.saturating_sub(writes);
        facts.durable = true;
        Ok(Proof::Durable)
    }

    /// Creates objects that got no bytes, if they were allocated for this client. Once all exist, a
    /// missing one is known to be lost.
    async fn make_missing(&self, objects: &Objects<M, D>) -> Result<(), ClientError> {
        {
            let state = self.state();
            let begun = objects.each.iter().any(|object| lock(&object.facts).durable);
            if state.made || !state.ours || !begun {
                return Ok(());
            }
        }
        for (index, known) in objects.each.iter().enumerate() {
            if lock(&known.facts).durable {
                continue;
            }
            let mut made = known.made.lock().await;
            if !*made {
                let make = |object| Operation::Create { object };
                match self.shared.patiently(|| objects.open.execute(index, make)).await {
                    Ok(_) | Err(ClientError::Device { error: OsdError::Exists, .. }) => *made = true,
                    Err(error) => return Err(error),
                }
            }
            drop(made);
            let flush = |object| Operation::Flush { object };
            match self.shared.patiently(|| objects.open.execute(index, flush)).await {
                Ok(_) => {}
                // Lost in a restart before it was durable: the next flush creates it again.
                Err(ClientError::Device { error: OsdError::NotFound, .. }) => {
                    *known.made.lock().await = false;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            let mut facts = lock(&known.facts);
            // Concurrent writes are covered by the next flush.
            facts.durable = !facts.open;
        }
        Ok(())
    }

    /// Sends all bytes again after a restart. Of reported bytes only those that the server still
    /// has are sent; a truncation right after that check is not seen.
    async fn send_all_again(&self) -> Result<(), ClientError> {
        if self.state().held.values().any(|held| held.told) {
            self.reopen().await?;
        }
        self.send_again(true).await
    }

    /// Sends bytes again with no other write in flight: all after a restart, else those that were
    /// not reported. The next flush finds what is lost once more.
    async fn send_again(&self, all: bool) -> Result<(), ClientError> {
        let begun = Instant::now();
        if self.state().held.is_empty() {
            self.forget_touched();
            return Ok(());
        }
        let objects = self.objects_to_write(begun).await?;
        let _alone = self.gate.write().await;
        let held: Vec<(u64, Held)> = {
            let mut state = self.state();
            if !state.writes_to(&objects) {
                // Truncated again meanwhile; the caller checks again.
                return Ok(());
            }
            if all {
                state.lost = false;
            }
            state.overtaken = false;
            let wanted = state.held.iter_mut().filter(|(_, held)| all || !held.told);
            wanted
                .map(|(number, held)| {
                    (held.sent, held.proven) = (true, false);
                    (*number, held.clone())
                })
                .collect()
        };
        let sent = self.send_pieces(&objects, held, all, begun).await;
        if sent.is_err() {
            let mut state = self.state();
            state.lost |= all;
            state.overtaken = true;
        }
        sent
    }

    async fn send_pieces(
        &self,
        objects: &Objects<M, D>,
        held: Vec<(u64, Held)>,
        all: bool,
        begun: Instant,
    ) -> Result<(), ClientError> {
        let touched: BTreeSet<usize> = held
            .iter()
            .flat_map(|(_, held)| objects.open.layout.extents(held.range()))
            .map(|extent| extent.index)
            .collect();
        // Bytes that are sent again count for the new boot epoch, so it is read before that.
        for index in (0..objects.each.len()).filter(|_| all) {
            let known = &objects.each[index];
            if !touched.contains(&index) {
                known.forget_touched();
                continue;
            }
            match self.shared.patiently(|| objects.open.life(index)).await {
                Ok(life) => {
                    self.shared.set_life(life);
                    lock(&known.facts).life = Some(life);
                }
                Err(ClientError::Device { error: OsdError::NotFound, .. }) if !lock(&known.facts).durable => {
                    *known.made.lock().await = false;
                    lock(&known.facts).life = None;
                }
                Err(error) => return Err(error),
            }
        }
        for (number, piece) in held {
            self.write_out(objects, &piece, begun).await?;
            let mut state = self.state();
            self.acknowledge(&mut state, number);
        }
        Ok(())
    }

    /// Clears the flush state, since no buffered bytes could be lost by a restart.
    fn forget_touched(&self) {
        let mut state = self.state();
        (state.lost, state.overtaken) = (false, false);
        for known in state.objects.iter().flat_map(|objects| &objects.each) {
            known.forget_touched();
        }
    }

    /// Reports to the metadata server what was written up to a position and is not known there; all
    /// of it has been sent.
    pub(super) async fn tell(self: &Arc<Self>, upto: Mark) -> Result<(), ClientError> {
        let _alone = self.turn.lock().await;
        self.tell_alone(&upto, 0).await
    }

    /// Extends the file to at least `size` bytes at the server.
    pub(super) async fn grow(self: &Arc<Self>, size: u64) -> Result<(), ClientError> {
        if size > FILE_SIZE_MAX {
            return Err(ClientError::TooLarge { max: FILE_SIZE_MAX });
        }
        let upto = self.dispatch_all();
        self.settle().await;
        let _alone = self.turn.lock().await;
        self.tell_alone(&upto, size).await
    }

    async fn tell_alone(&self, upto: &Mark, grow: u64) -> Result<(), ClientError> {
        let mut denied = false;
        for _ in 0..=REOPENS_MAX {
            match self.tell_once(upto, grow).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if is_stale(&error) => self.reopen().await?,
                Err(error) if is_denied(&error) && !core::mem::replace(&mut denied, true) => {
                    self.hold_again().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(CUT_AGAIN)
    }

    /// Returns false if it has to be repeated.
    async fn tell_once(&self, upto: &Mark, grow: u64) -> Result<bool, ClientError> {
        let (lost, overtaken) = {
            let state = self.state();
            (state.lost, state.overtaken)
        };
        // Only bytes that are in the objects are reported.
        if lost {
            self.send_all_again().await?;
        } else if overtaken {
            self.send_again(false).await?;
        }
        if grow > 0 {
            self.objects_to_write(Instant::now()).await?;
        }
        let (request, generation, made, objects) = {
            let state = self.state();
            if state.overtaken || state.lost {
                return Ok(false);
            }
            let made = state.made || self.all_made(&state.objects);
            let changed_ns = state.changed_ns.or_else(|| (grow > 0).then(|| self.now_ns()));
            let news = changed_ns.is_some() || (made && !state.made && state.objects.is_some());
            if !news {
                return Ok(true);
            }
            // Without objects no bytes are on a device, so there is no size to report.
            let written = changed_ns.is_some() && state.objects.is_some();
            let request = Request::Written {
                node: self.node,
                size_at_least: if written { upto.end.min(state.written_end).max(grow) } else { 0 },
                mtime_ns: changed_ns,
                generation: state.generation,
                made,
                fit: false,
                client_id: self.shared.client_id,
            };
            (request, state.generation, made, state.objects.as_ref().map(|objects| objects.open.clone()))
        };
        let stat = match self.shared.call_stat(&request).await {
            Err(error) if grow == 0 && is_over_quota(&error) => {
                self.keep_what_fits(upto, request, generation).await?
            }
            outcome => outcome?,
        };
        let mut state = self.state();
        state.told(upto);
        if state.generation == generation {
            state.made = made;
            state.see_own(&stat);
        } else {
            // Truncated right after that: the reported bytes are gone.
            let now = state.objects.as_ref().map(|objects| &objects.open);
            let same = now
                .zip(objects.as_ref())
                .is_some_and(|(now, then)| now.layout.number() == then.layout.number());
            let end = if same { state.stat.as_ref().map_or(0, |stat| stat.size) } else { 0 };
            state.forget_told(end);
        }
        Ok(true)
    }

    /// Handles a quota that is smaller than the written file: the part that fits is kept, the rest
    /// truncated. The error is returned, unless there is space meanwhile.
    async fn keep_what_fits(
        &self,
        upto: &Mark,
        mut request: Request,
        generation: u32,
    ) -> Result<Stat, ClientError> {
        if let Request::Written { fit, .. } = &mut request {
            *fit = true;
        }
        // Bytes that arrived after the truncation would stay in the objects.
        let _alone = self.gate.write().await;
        if self.state().generation != generation {
            return Err(Failure::new(ErrorCode::Stale, "the file was truncated meanwhile").into());
        }
        match self.shared.call_stat(&request).await {
            Err(error) if is_over_quota(&error) => {
                let stat = self.shared.call_stat(&Request::GetNode { node: self.node }).await?;
                let mut state = self.state();
                state.told(upto);
                state.was_cut(&stat);
                state.missing = true;
                drop(state);
                // In-flight pieces may have been dropped.
                self.moved.notify_waiters();
                Err(error)
            }
            outcome => outcome,
        }
    }

    /// Whether all objects of the file are durable.
    fn all_made(&self, objects: &Option<Objects<M, D>>) -> bool {
        let state_made = |objects: &Objects<M, D>| {
            objects.each.iter().all(|object| {
                let facts = lock(&object.facts);
                facts.durable
            })
        };
        objects.as_ref().is_some_and(state_made)
    }

    /// Applies a truncation or migration by another client. Buffered bytes that were not reported
    /// are then written again.
    async fn reopen(&self) -> Result<(), ClientError> {
        let access = self.state().access();
        let opened = self.shared.open_node(self.node, access, true).await?;
        // After a restart of the server this open registers the file again, so locks are reclaimed
        // at once.
        lock_again(&self.shared, self.node).await?;
        self.take_opened(opened, access, false).await
    }

    /// Opens the file again and reclaims its locks, after the server restarted or dropped this
    /// client.
    pub(super) async fn hold_again(&self) -> Result<(), ClientError> {
        let access = self.state().access();
        self.shared.open_node(self.node, access, true).await?;
        self.was_forgotten();
        lock_again(&self.shared, self.node).await
    }

    /// Marks the layout as possibly stale: while the server did not know of this open, it may have
    /// moved the objects.
    pub(super) fn was_forgotten(&self) {
        let mut state = self.state();
        state.outdated |= state.objects.is_some();
    }

    /// Discards unsaved bytes and closes the file at the server, after all programs that lost a
    /// lock on it have closed it.
    pub(super) async fn begin_anew(self: &Arc<Self>) {
        self.discard();
        self.shared.drop_lease(self.node.inode);
        close(self).await;
        self.shared.names.forget(self.node.inode);
        let mut state = self.state();
        if self.open_count() == 0 {
            (state.lock_lost, state.error) = (false, None);
        }
    }

    /// Opens the file again for reading, unless another task has done so since `openings`.
    pub(super) async fn reopen_to_read(&self, openings: u64) -> Result<(), ClientError> {
        let _alone = self.turn.lock().await;
        if self.state().openings != openings {
            return Ok(());
        }
        let opened = self.shared.open_node(self.node, Access::Read, true).await?;
        // A lost lock does not prevent reading.
        if let Err(error) = lock_again(&self.shared, self.node).await
            && !is_fenced(&error)
        {
            return Err(error);
        }
        self.take_opened(opened, Access::Read, false).await
    }
}

impl<M: Metadata, D: Devices> super::shared::Shared<M, D> {
    pub(super) async fn open_node(
        self: &Arc<Self>,
        node: Node,
        access: Access,
        reclaim: bool,
    ) -> Result<OpenedNode, ClientError> {
        let answer = self.call(&self.opening(node, access, reclaim)).await?;
        self.take_lease(node, &answer);
        match answer {
            Response::NodeOpened { node } => Ok(node),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Records the lease that an open may have returned.
    pub(super) fn take_lease(self: &Arc<Self>, node: Node, answer: &Response) {
        if let Response::NodeOpened { node: OpenedNode { lease: Some(lease), .. } } = answer {
            self.given(node.inode, *lease);
        }
    }

    /// Returns the request that opens a node.
    pub(super) fn opening(&self, node: Node, access: Access, reclaim: bool) -> Request {
        Request::OpenNode { node, access, method: self.options.method, client_id: self.client_id, reclaim }
    }
}
