//! Changes of an open file that are no writes: cutting and growing it, zeroing ranges, where data and holes are.
//!
//! Contract: what is cut off never comes back: nothing of it is under way or held when the server is asked, which has the
//! objects cleared; until it has, it gives nobody the right to write, so the next write asks for that right anew.

use core::ops::Range;
use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::NodeChange;
use sealstone_mds_protocol::{Request, Stat};

use super::body::{Body, Objects};
use super::prove::REDOS_MAX;
use super::shared::lock;
use crate::{ClientError, Devices, Metadata};

impl<M: Metadata, D: Devices> Body<M, D> {
    /// Changes what is known of the file, its size among it, in order with what was written here.
    pub(super) async fn set(
        self: &Arc<Self>,
        change: NodeChange,
        through_file: bool,
    ) -> Result<Stat, ClientError> {
        match change.size {
            Some(size) => self.cut(size, change, through_file).await,
            // A time that is set now must not be overwritten by a write from before that is told later.
            None if change.mtime.is_some() => {
                self.flush().await?;
                self.ask(change, through_file).await
            }
            None => self.ask(change, through_file).await,
        }
    }

    async fn ask(&self, change: NodeChange, through_file: bool) -> Result<Stat, ClientError> {
        let holder = through_file.then_some(self.shared.holder);
        self.shared.call_stat(&Request::SetNode { node: self.node, change, holder }).await
    }

    async fn cut(
        self: &Arc<Self>,
        size: u64,
        change: NodeChange,
        through_file: bool,
    ) -> Result<Stat, ClientError> {
        {
            let mut state = self.state();
            state.dirty.truncate(size);
            state.settle_pot();
            state.size = state.size.min(size);
        }
        self.dispatch_all();
        self.settle().await;
        if size == 0 {
            // Nothing of it is wanted any more, and the server is told the time with the size.
            let mut state = self.state();
            state.held.clear();
            (state.unproven, state.lost, state.changed_ns) = (0, false, None);
        }
        // Held bytes behind the new end could be sent again and bring it back.
        let behind = self.state().held.values().any(|held| held.range().end > size);
        if behind {
            self.prove().await?;
        }
        self.tell().await?;
        let _turn = self.turn.lock().await;
        let _alone = self.gate.write().await;
        let stat = self.ask(change, through_file).await?;
        let mut state = self.state();
        state.ahead.forget(0..u64::MAX);
        // It grows at the server only when what was cut off is cleared; here it can grow before that.
        let grown = state.stat.as_ref().is_some_and(|known| known.size < stat.size);
        state.clean_until = if grown { u64::MAX } else { state.clean_until.min(stat.size) };
        state.size = stat.size;
        state.made &= stat.width != 0;
        state.writable = false;
        state.sparse = true;
        if stat.width == 0 {
            // An empty file has no objects.
            state.objects = None;
            state.ours = false;
        }
        state.see_own(&stat);
        Ok(stat)
    }

    /// Makes a range read as zeros; the file does not grow.
    pub(super) async fn zero(self: &Arc<Self>, range: Range<u64>) -> Result<(), ClientError> {
        let end = range.end.min(self.state().size);
        if range.start >= end {
            return Ok(());
        }
        let range = range.start..end;
        self.flush().await?;
        // What is held is older than the zeros, and must not be sent again after them.
        self.prove().await?;
        let _turn = self.turn.lock().await;
        let _alone = self.gate.write().await;
        let objects = {
            let mut state = self.state();
            state.ahead.forget(range.clone());
            state.changed_ns = Some(self.now_ns());
            state.objects.clone()
        };
        // Without objects all of it is zeros.
        let Some(objects) = objects else { return Ok(()) };
        for index in 0..objects.each.len() {
            let Some(part) = objects.open.layout.object_range(index, range.clone()) else { continue };
            let object = objects.open.layout.objects()[index].object;
            let clear = || Operation::Clear { object, offset: part.start, length: part.end - part.start };
            let cleared = self.durably(&objects, index, clear).await;
            match cleared {
                Ok(()) => lock(&objects.each[index].facts).durable = true,
                Err(ClientError::Device { error: OsdError::NotFound, .. }) if !self.state().made => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
    /// Does something to an object in one life of its device, and flushes it.
    async fn durably(
        &self,
        objects: &Objects<M, D>,
        index: usize,
        make: impl Fn() -> Operation + Send + Sync,
    ) -> Result<(), ClientError> {
        let place = objects.open.layout.objects()[index];
        for _ in 0..=REDOS_MAX {
            let before = match self.shared.life(place.device) {
                Some(life) => life,
                None => self.shared.patiently(|| objects.open.boot_epoch(index)).await?,
            };
            self.shared.patiently(|| objects.open.execute(index, &make)).await?;
            let flush = || Operation::Flush { object: place.object };
            self.shared.patiently(|| objects.open.execute(index, flush)).await?;
            let now = self.shared.patiently(|| objects.open.boot_epoch(index)).await?;
            self.shared.set_life(place.device, now);
            if now == before {
                return Ok(());
            }
        }
        Err(ClientError::Restarted(place.device))
    }
}
