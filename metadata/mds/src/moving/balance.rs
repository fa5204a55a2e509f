//! Rebalance: its progress, and the files to check.
//!
//! Contract: objects move as [`DevicePool::balancing_target`] chooses, one at a time and as few as
//! possible; each move is one of [`super`]. It ends even if files are in use.
//! Truth: docs/standards/mds/layouts.md §6.5.

use sealstone_mds_protocol::{InodeId, Rebalance, Text};

use super::{MoveItem, MovePage, SCAN_PAGE, balancing_target, check_rate};
use crate::error::Result;
use crate::keys;
use crate::placement::DevicePool;
use crate::placement::outgrown::LayoutForm;
use crate::records::{Inode, decode, load, save};
use crate::server::Mds;
use crate::store::Transaction;

/// Result of a search of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalancePass {
    /// Minimum number of bytes that have to move.
    pub left_bytes: u64,
    /// Number of objects that could not be moved because they are in use.
    pub in_use: u64,
    /// The first problem.
    pub problem: String,
    /// Whether it was the last search.
    pub last: bool,
}

impl Mds {
    /// Begins a rebalance at `rate` bytes per second at most (0: unlimited).
    pub(crate) fn begin_rebalance(&self, rate: u64, now_ms: u64) -> Result<()> {
        check_rate(rate)?;
        let left_bytes = self.devices.pool().surplus();
        self.update(|tx| {
            let known = load::<Rebalance, _>(tx, &key())?.filter(|known| known.done_ms.is_none());
            let fresh = Rebalance { began_ms: now_ms, left_bytes, ..Rebalance::default() };
            // A repeated request continues at another rate.
            Ok(save(tx, &key(), &Rebalance { rate, ..known.unwrap_or(fresh) })?)
        })
    }

    /// Stops the rebalance; moved objects stay where they are.
    pub(crate) fn stop_rebalance(&self, now_ms: u64) -> Result<()> {
        self.update(|tx| {
            change(tx, |known| {
                known.done_ms = Some(now_ms);
                known.stopped = true;
            })
        })
    }

    /// Returns the last rebalance.
    pub(crate) fn rebalance(&self) -> Result<Option<Rebalance>> {
        Ok(load(&*self.store.snapshot()?, &key())?)
    }

    /// Returns the running rebalance.
    ///
    /// # Errors
    /// `Store`.
    pub fn rebalancing(&self) -> Result<Option<Rebalance>> {
        Ok(self.rebalance()?.filter(|known| known.done_ms.is_none()))
    }

    /// Returns the devices in use, with their last reported figures.
    #[must_use]
    pub fn pool(&self) -> DevicePool {
        self.devices.pool()
    }

    /// Searches some files, after `after`, for objects whose move improves the balance. Marks files
    /// that have outgrown their layout because devices were added.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_balancing_moves(&self, pool: &DevicePool, after: Option<InodeId>) -> Result<MovePage> {
        let (from, until) = keys::inodes(after);
        let pairs = self.store.snapshot()?.scan(&from, &until, SCAN_PAGE)?;
        let next = pairs.last().filter(|_| pairs.len() == SCAN_PAGE).and_then(|(key, _)| keys::inode_id(key));
        let (mut items, mut outgrown) = (Vec::new(), Vec::new());
        for (key, value) in &pairs {
            let (Some(inode), file) = (keys::inode_id(key), decode::<Inode>(value)?) else { continue };
            let Some(layout) = &file.layout else { continue };
            if pool.outgrown(LayoutForm::of(layout), file.size, inode.0, self.config.width_max).is_some() {
                outgrown.push(inode);
            }
            for index in 0..layout.width() {
                if balancing_target(pool, layout, index, file.size).is_some() {
                    items.push(MoveItem { inode, bytes: layout.object_length(index, file.size) });
                }
            }
        }
        self.mark_outgrown(&outgrown)?;
        Ok(MovePage { items, next })
    }

    /// Records a search of all files for the rebalance that began then; one that was started again
    /// meanwhile is not ended.
    ///
    /// # Errors
    /// `Store`.
    pub fn rebalance_passed(&self, began_ms: u64, pass: &BalancePass, now_ms: u64) -> Result<()> {
        self.update(|tx| {
            change(tx, |known| {
                if known.began_ms == began_ms {
                    known.left_bytes = pass.left_bytes;
                    known.in_use = pass.in_use;
                    known.problem = Text::truncated(&pass.problem);
                    known.done_ms = pass.last.then_some(now_ms);
                }
            })
        })
    }
}

/// Counts a moved object.
pub(super) fn note_moved(tx: &mut dyn Transaction, bytes: u64) -> Result<()> {
    change(tx, |known| {
        known.moved_objects += 1;
        known.moved_bytes = known.moved_bytes.saturating_add(bytes);
        known.left_bytes = known.left_bytes.saturating_sub(bytes);
    })
}

/// Changes the record of the running rebalance.
fn change(tx: &mut dyn Transaction, change: impl FnOnce(&mut Rebalance)) -> Result<()> {
    if let Some(mut known) = load::<Rebalance, _>(tx, &key())?.filter(|known| known.done_ms.is_none()) {
        change(&mut known);
        save(tx, &key(), &known)?;
    }
    Ok(())
}

fn key() -> Vec<u8> {
    keys::meta(keys::REBALANCE)
}
