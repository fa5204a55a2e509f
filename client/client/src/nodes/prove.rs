//! What makes an open file durable: flushes of its objects, bytes sent again when a device restarted, and the word to
//! the metadata server.
//!
//! Contract: a piece leaves memory when each object it lies in was flushed after it was
//! acknowledged, in the life of the device that was known before it was sent, and the server knows
//! of it. It hears that all objects are there when they are proven, and not before. Truth:
//! docs/adr/0036-close-and-sync-of-files-in-place.md; docs/adr/0006-puts-survive-restarts.md.

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

/// Times that bytes are sent again because a device restarted, before that is an error.
pub(super) const REDOS_MAX: u32 = 8;
/// Times that the server's word that the file was cut or carried over meanwhile is followed.
pub(super) const REOPENS_MAX: u32 = 4;

/// Somebody else cuts it as fast as it is followed.
pub(super) const CUT_AGAIN: ClientError = ClientError::Protocol("a file that is cut again and again");

/// What a flush proved.
#[derive(PartialEq, Eq)]
enum Proof {
    Durable,
    /// A device restarted since: what is held may be gone.
    Restarted,
    /// Somebody cut the file: what the server was not told of may be gone.
    Overtaken,
}

impl<M: Metadata, D: Devices> Body<M, D> {
    /// Returns when everything that was acknowledged before is durable on the devices.
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
                // Cut to nothing by somebody else: what is held goes to new ones.
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
                // They went with what was cut off.
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
            // Something was found missing while the flushes were under way.
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
                // Objects go when their file is cut or removed.
                objects.open.check_current().await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        if let Some(now) = now {
            self.shared.set_life(now);
        }
        // That the object is there proves nothing: the server may have made it again, empty, to fence it.
        if life.is_none() || life != now {
            return Ok(Proof::Restarted);
        }
        let mut facts = lock(&known.facts);
        // What came in between is not proven.
        facts.open = facts.writes != writes;
        facts.writes = facts.writes.saturating_sub(writes);
        facts.durable = true;
        Ok(Proof::Durable)
    }

    /// Objects that no byte came to are made too, by whoever was given them: once all are there, one that is missing is
    /// known to be lost.
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
                // Lost by a restart before it was durable: the next proof makes it again.
                Err(ClientError::Device { error: OsdError::NotFound, .. }) => {
                    *known.made.lock().await = false;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            let mut facts = lock(&known.facts);
            // Bytes that came meanwhile are proven by the next flush.
            facts.durable = !facts.open;
        }
        Ok(())
    }

    /// After a restart. What the server was told of is the file's: of that, only what it still has is sent. A cut in the
    /// moment after that is not seen.
    async fn send_all_again(&self) -> Result<(), ClientError> {
        if self.state().held.values().any(|held| held.told) {
            self.reopen().await?;
        }
        self.send_again(true).await
    }

    /// Sends again, alone, what is held: all of it after a restart, or what the server was not told of. What is lost once
    /// more, the next flush finds.
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
                // Cut again meanwhile: whoever called looks again.
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
        // What is sent again in a life that is not known to be another is proven by the one before.
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

    /// Nothing is held that a restart could have taken.
    fn forget_touched(&self) {
        let mut state = self.state();
        (state.lost, state.overtaken) = (false, false);
        for known in state.objects.iter().flat_map(|objects| &objects.each) {
            known.forget_touched();
        }
    }

    /// Tells the metadata server what it does not know yet, of what was written up to a mark; all of that has been sent.
    pub(super) async fn tell(self: &Arc<Self>, upto: Mark) -> Result<(), ClientError> {
        let _alone = self.turn.lock().await;
        self.tell_alone(&upto, 0).await
    }

    /// Makes the file at least so long, for everybody.
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

    /// False: something came in between.
    async fn tell_once(&self, upto: &Mark, grow: u64) -> Result<bool, ClientError> {
        let (lost, overtaken) = {
            let state = self.state();
            (state.lost, state.overtaken)
        };
        // The server is told of nothing that is not in the objects.
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
            // Without objects there is nothing on a device that a size could be about.
            let written = changed_ns.is_some() && state.objects.is_some();
            let request = Request::Written {
                node: self.node,
                size_at_least: if written { upto.end.min(state.written_end).max(grow) } else { 0 },
                mtime_ns: changed_ns,
                generation: state.generation,
                made,
                fit: false,
                holder: self.shared.holder,
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
            // Cut right after that: what was told went with the rest.
            let now = state.objects.as_ref().map(|objects| &objects.open);
            let same = now
                .zip(objects.as_ref())
                .is_some_and(|(now, then)| now.layout.number() == then.layout.number());
            let end = if same { state.stat.as_ref().map_or(0, |stat| stat.size) } else { 0 };
            state.forget_told(end);
        }
        Ok(true)
    }

    /// A quota does not let the file become as long as it was written: what fits is kept, and the rest is cut off, here as
    /// at the server. The refusal comes all the same, unless there is room meanwhile.
    async fn keep_what_fits(
        &self,
        upto: &Mark,
        mut request: Request,
        generation: u32,
    ) -> Result<Stat, ClientError> {
        if let Request::Written { fit, .. } = &mut request {
            *fit = true;
        }
        // What arrived behind the cut would stay there.
        let _alone = self.gate.write().await;
        if self.state().generation != generation {
            return Err(Failure::new(ErrorCode::Stale, "the file was cut meanwhile").into());
        }
        match self.shared.call_stat(&request).await {
            Err(error) if is_over_quota(&error) => {
                let stat = self.shared.call_stat(&Request::GetNode { node: self.node }).await?;
                let mut state = self.state();
                state.told(upto);
                state.was_cut(&stat);
                state.missing = true;
                drop(state);
                // Pieces that were to be sent may be gone.
                self.moved.notify_waiters();
                Err(error)
            }
            outcome => outcome,
        }
    }

    /// Is every object of the file durable on its device?
    fn all_made(&self, objects: &Option<Objects<M, D>>) -> bool {
        let state_made = |objects: &Objects<M, D>| {
            objects.each.iter().all(|object| {
                let facts = lock(&object.facts);
                facts.durable
            })
        };
        objects.as_ref().is_some_and(state_made)
    }

    /// The file was cut, or carried over to other objects, by somebody else: takes over what it is now. What is held here
    /// and was not told is written again by the next word to the server, as if it were written after that.
    async fn reopen(&self) -> Result<(), ClientError> {
        let access = self.state().access();
        let opened = self.shared.open_node(self.node, access, true).await?;
        // If the server began anew, nobody else asks whether it knows of them: now the file counts as held.
        lock_again(&self.shared, self.node).await?;
        self.take_opened(opened, access, false).await
    }

    /// The server does not know that we hold it: it began anew, or did not hear of us. Has it held, and locked, as before.
    pub(super) async fn hold_again(&self) -> Result<(), ClientError> {
        let access = self.state().access();
        self.shared.open_node(self.node, access, true).await?;
        self.was_forgotten();
        lock_again(&self.shared, self.node).await
    }

    /// The server did not know that we have it open: meanwhile its objects may have moved.
    pub(super) fn was_forgotten(&self) {
        let mut state = self.state();
        state.outdated |= state.objects.is_some();
    }

    /// Nobody has the file open here any more who lost a lock on it: nothing that was written is kept, and the server hears
    /// so.
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

    /// The same for who reads: unless somebody has done so since he looked.
    pub(super) async fn reopen_to_read(&self, openings: u64) -> Result<(), ClientError> {
        let _alone = self.turn.lock().await;
        if self.state().openings != openings {
            return Ok(());
        }
        let opened = self.shared.open_node(self.node, Access::Read, true).await?;
        // If one is lost it is read all the same.
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
        again: bool,
    ) -> Result<OpenedNode, ClientError> {
        let answer = self.call(&self.opening(node, access, again)).await?;
        self.take_lease(node, &answer);
        match answer {
            Response::NodeOpened { node } => Ok(node),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// The server gave a lease with this, perhaps.
    pub(super) fn take_lease(self: &Arc<Self>, node: Node, answer: &Response) {
        if let Response::NodeOpened { node: OpenedNode { lease: Some(lease), .. } } = answer {
            self.given(node.inode, *lease);
        }
    }

    /// The question for that.
    pub(super) fn opening(&self, node: Node, access: Access, again: bool) -> Request {
        Request::OpenNode { node, access, method: self.options.method, holder: self.holder, again }
    }
}
