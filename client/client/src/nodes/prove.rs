//! What makes an open file durable: flushes of its objects, bytes sent again when a device restarted, and the word to
//! the metadata server.
//!
//! Contract: a piece leaves memory when each object it lies in was flushed after it was acknowledged, in the life of the
//! device that was known before it was sent. Then, and not before, the server may hear that all objects are there.
//! Truth: docs/adr/0036-files-in-place.md; docs/adr/0006-puts-survive-restarts.md.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::OpenedNode;
use sealstone_mds_protocol::{Access, ErrorCode, Request, Response};

use super::body::{Body, Held, Objects};
use super::shared::{OTHER_ANSWER, lock};
use crate::{ClientError, Devices, Metadata};

/// Times that bytes are sent again because a device restarted, before that is an error.
pub(super) const REDOS_MAX: u32 = 8;
/// Times that the server's word that the file was cut or carried over meanwhile is followed.
const REOPENS_MAX: u32 = 4;

/// What a flush proved.
#[derive(PartialEq, Eq)]
enum Proof {
    Durable,
    /// A device restarted since: what is held may be gone.
    Restarted,
}

impl<M: Metadata, D: Devices> Body<M, D> {
    /// Returns when everything that was acknowledged before is durable on the devices.
    pub(super) async fn prove(self: &Arc<Self>) -> Result<(), ClientError> {
        let _alone = self.turn.lock().await;
        self.prove_alone().await
    }

    pub(super) async fn prove_alone(self: &Arc<Self>) -> Result<(), ClientError> {
        let mut restarted = None;
        for _ in 0..=REDOS_MAX {
            let Some(objects) = self.state().objects.clone() else { return Ok(()) };
            match self.shared.patiently(|| self.flush_objects(&objects)).await? {
                Proof::Durable => return self.make_missing(&objects).await,
                Proof::Restarted => {
                    restarted = objects.open.layout.objects().first().map(|object| object.device);
                    tracing::debug!(inode = self.node.inode.0, "a device restarted; sending again");
                    self.send_again(&objects).await?;
                }
            }
        }
        Err(restarted.map_or(OTHER_ANSWER, ClientError::Restarted))
    }

    async fn flush_objects(self: &Arc<Self>, objects: &Objects<M, D>) -> Result<Proof, ClientError> {
        let numbers: Vec<u64> = {
            let state = self.state();
            if state.lost {
                return Ok(Proof::Restarted);
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
        for number in numbers {
            if let Some(held) = state.held.remove(&number) {
                state.unproven -= held.data.len();
                // A block that was read before these bytes were there was right only as long as they lay over it.
                state.ahead.forget(held.range());
            }
        }
        Ok(Proof::Durable)
    }

    async fn flush_object(&self, objects: &Objects<M, D>, index: usize) -> Result<Proof, ClientError> {
        let place = objects.open.layout.objects()[index];
        let known = &objects.each[index];
        let (life, writes) = {
            let facts = lock(&known.facts);
            (facts.life, facts.writes)
        };
        match objects.open.execute(index, || Operation::Flush { object: place.object }).await {
            Ok(_) => {}
            Err(ClientError::Device { error: OsdError::NotFound, .. })
                if !lock(&known.facts).durable && !self.state().made =>
            {
                *known.made.lock().await = false;
                return Ok(Proof::Restarted);
            }
            Err(error) => return Err(error),
        }
        // What one command made is there whole or not at all, and the flush would have told.
        if writes > 0 {
            let now = objects.open.boot_epoch(index).await?;
            self.shared.set_life(place.device, now);
            if life != Some(now) {
                return Ok(Proof::Restarted);
            }
        }
        let mut facts = lock(&known.facts);
        // What came in between is not proven.
        facts.open = facts.writes != writes;
        facts.writes -= writes;
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
            let object = objects.open.layout.objects()[index].object;
            let mut made = known.made.lock().await;
            if !*made {
                let make = || Operation::Create { object };
                match self.shared.patiently(|| objects.open.execute(index, make)).await {
                    Ok(_) | Err(ClientError::Device { error: OsdError::Exists, .. }) => *made = true,
                    Err(error) => return Err(error),
                }
            }
            drop(made);
            let flush = || Operation::Flush { object };
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

    /// Sends everything that is held again, alone. What is lost once more, the next flush finds.
    async fn send_again(&self, objects: &Objects<M, D>) -> Result<(), ClientError> {
        let _alone = self.gate.write().await;
        let held: Vec<(u64, Held)> = {
            let mut state = self.state();
            state.lost = false;
            state.held.iter().map(|(number, held)| (*number, held.clone())).collect()
        };
        let touched: BTreeSet<usize> = held
            .iter()
            .flat_map(|(_, held)| objects.open.layout.extents(held.range()))
            .map(|extent| extent.index)
            .collect();
        for index in touched {
            let known = &objects.each[index];
            match self.shared.patiently(|| objects.open.boot_epoch(index)).await {
                Ok(life) => {
                    self.shared.set_life(objects.open.layout.objects()[index].device, life);
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
            self.write_out(objects, &piece).await?;
            let mut state = self.state();
            self.acknowledge(&mut state, number);
        }
        Ok(())
    }

    /// Tells the metadata server what it does not know yet.
    pub(super) async fn tell(self: &Arc<Self>) -> Result<(), ClientError> {
        let _alone = self.turn.lock().await;
        for _ in 0..REOPENS_MAX {
            let (size, changed_ns, generation, made) = {
                let state = self.state();
                let made = state.made || self.all_made(&state.objects);
                let news = state.changed_ns.is_some() || (made && !state.made && state.objects.is_some());
                if !news {
                    return Ok(());
                }
                // Without objects there is nothing on a device that a size could be about.
                let written = state.changed_ns.is_some() && state.objects.is_some();
                (if written { state.size } else { 0 }, state.changed_ns, state.generation, made)
            };
            let request = Request::Written {
                node: self.node,
                size_at_least: size,
                mtime_ns: changed_ns,
                generation,
                made,
                holder: self.shared.holder,
            };
            match self.shared.call_stat(&request).await {
                Ok(stat) => {
                    let mut state = self.state();
                    if state.changed_ns == changed_ns {
                        state.changed_ns = None;
                    }
                    state.made = made;
                    state.see_own(&stat);
                    return Ok(());
                }
                Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Stale => {
                    self.reopen().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(ClientError::Protocol("a file that is cut again and again"))
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

    /// The file was cut, or carried over to other objects, by somebody else: takes over what it is now, and writes again
    /// what is still held here, as if it were written after that.
    pub(super) async fn reopen(self: &Arc<Self>) -> Result<(), ClientError> {
        let access = if self.state().writable { Access::Update } else { Access::Read };
        let opened = self.shared.open_node(self.node, access, true).await?;
        {
            let mut state = self.state();
            if state.objects.as_ref().map(|objects| &objects.open.layout) != opened.layout.as_ref() {
                state.objects = None;
                state.writable = false;
            }
        }
        self.opened(opened, access).await?;
        if self.state().held.is_empty() {
            return Ok(());
        }
        let objects = self.objects_to_write().await?;
        self.send_again(&objects).await
    }
}

impl<M: Metadata, D: Devices> super::shared::Shared<M, D> {
    pub(super) async fn open_node(
        &self,
        node: sealstone_mds_protocol::Node,
        access: Access,
        again: bool,
    ) -> Result<OpenedNode, ClientError> {
        let (method, holder) = (self.options.method, self.holder);
        match self.call(&Request::OpenNode { node, access, method, holder, again }).await? {
            Response::NodeOpened { node } => Ok(node),
            _ => Err(OTHER_ANSWER),
        }
    }
}
