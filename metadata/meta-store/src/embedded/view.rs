//! Snapshots and transactions of the embedded store: reads merge the file with the layers of
//! changes above it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use sealstone_mds::store::{MetaError, Overlay, Pair, Snapshot, Transaction, check_limits};

use super::layer::ChangeLayer;
use super::merge::{KeyStream, MergedKeys};
use super::{FileSnapshot, StoreCore, failed};

/// Maximum overhead in the journal of a change and of a record, in bytes.
const RECORD_BYTES: u64 = 64;

impl StoreCore {
    pub(super) fn view(&self) -> EmbeddedSnapshot<'_> {
        let mut state = self.state.lock();
        let number = state.number;
        *state.views.entry(number).or_default() += 1;
        let frozen = state.frozen.as_ref().map(|(layer, _)| layer.clone());
        let layers = [Some(state.active.clone()), frozen];
        EmbeddedSnapshot { core: self, base: state.base.clone(), layers, number }
    }
}

/// Committed content of the store at one moment.
pub(super) struct EmbeddedSnapshot<'a> {
    core: &'a StoreCore,
    base: Arc<FileSnapshot>,
    /// Changes on top of it, newest first.
    layers: [Option<Arc<ChangeLayer>>; 2],
    number: u64,
}

impl EmbeddedSnapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        let changed = |layer: &Arc<ChangeLayer>| layer.get(key, self.number);
        if let Some(change) = self.layers.iter().flatten().find_map(changed) {
            return Ok(change);
        }
        Ok(self.base.get(key).map_err(failed)?.map(|value| value.value().to_vec()))
    }

    fn scan(
        &self,
        own: Option<&Overlay>,
        from: &[u8],
        until: &[u8],
        limit: usize,
    ) -> Result<Vec<Pair>, MetaError> {
        if from >= until {
            return Ok(Vec::new());
        }
        let stored = self.base.range(from..until).map_err(failed)?.map(|pair| {
            let (key, value) = pair.map_err(failed)?;
            Ok((key.value().to_vec(), Some(value.value().to_vec())))
        });
        let mut all: Box<KeyStream<'_>> = Box::new(stored);
        for layer in self.layers.iter().rev().flatten().filter(|layer| !layer.is_empty()) {
            all = Box::new(MergedKeys::new(layer.range(from, until, self.number), all));
        }
        if let Some(own) = own.filter(|own| !own.is_empty()) {
            all = Box::new(MergedKeys::new(own.range(from, until), all));
        }
        let pair = |found: Result<(Vec<u8>, Option<Vec<u8>>), MetaError>| match found {
            Ok((key, change)) => change.map(|value| Ok((key, value))),
            Err(error) => Some(Err(error)),
        };
        let mut visited = 0;
        let found = all.inspect(|_| visited += 1).filter_map(pair).take(limit).collect();
        self.core.visited.fetch_add(visited, Ordering::Relaxed);
        found
    }
}

impl Drop for EmbeddedSnapshot<'_> {
    fn drop(&mut self) {
        let views = &mut self.core.state.lock().views;
        if let Some(count) = views.get_mut(&self.number) {
            *count -= 1;
            if *count == 0 {
                views.remove(&self.number);
            }
        }
    }
}

impl Snapshot for EmbeddedSnapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        self.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        self.scan(None, from, until, limit)
    }
}

pub(super) struct EmbeddedTransaction<'a> {
    pub(super) view: EmbeddedSnapshot<'a>,
    pub(super) changes: Overlay,
    pub(super) writer: MutexGuard<'a, ()>,
}

impl EmbeddedTransaction<'_> {
    fn commit(self, waits: bool) -> Result<(), MetaError> {
        let Self { view, changes, writer } = self;
        let core = view.core;
        drop(view);
        if changes.is_empty() {
            return Ok(());
        }
        core.check()?;
        let Some(journal) = &core.journal else { return core.write_through(&changes) };
        let bytes = |(key, change): (&[u8], Option<&[u8]>)| {
            RECORD_BYTES + (key.len() + change.map_or(0, <[u8]>::len)) as u64
        };
        // A full disk is reported here, before anything was changed.
        let bytes = changes.iter().map(bytes).sum::<u64>() + RECORD_BYTES;
        journal.reserve(bytes).map_err(MetaError::of_medium)?;
        let number = core.publish(journal, changes, waits);
        drop(writer);
        if waits { core.wait_durable(number) } else { Ok(()) }
    }
}

impl Snapshot for EmbeddedTransaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        match self.changes.get(key) {
            Some(change) => Ok(change),
            None => self.view.get(key),
        }
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        self.view.scan(Some(&self.changes), from, until, limit)
    }
}

impl Transaction for EmbeddedTransaction<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        self.changes.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError> {
        check_limits(key, &[])?;
        self.changes.delete(key);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), MetaError> {
        Self::commit(*self, true)
    }

    fn commit_lazily(self: Box<Self>) -> Result<(), MetaError> {
        Self::commit(*self, false)
    }
}
