//! Durability of the writes of each nexus, and reports of lost writes after a power failure.
//!
//! Does: sets a durable mark for each port before its first unflushed write is acknowledged, and
//! removes it when the port is idle and everything is flushed. Fails the first SYNCHRONIZE CACHE of
//! a port whose writes may be lost. Forces write-through for initiators that were last informed
//! that the write cache is off.
//! Does not: flush periodically; the store does.
//! Contract: [`BlockUnit::mark_dirty`] is called under the command lock. Locks are acquired in the
//! order command lock, lock of reports of rejected writes, port table.
//! Truth: docs/adr/0054-write-through-and-power-loss.md.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::catalog;
use crate::durability::LossReport;
use crate::failure::BlockFailure;
use crate::lazy::LazyBlocks;
use crate::nexus::BlockNexus;
use crate::options::LostWrites;
use crate::ports::{PortFlags, PortIdentity, PortTable};
use crate::unit::BlockUnit;

/// Time without a write after which the mark of a port is removed.
const IDLE: Duration = Duration::from_secs(5);
/// Ports that a unit remembers, in memory, as informed of lost writes. Further ones are informed
/// again.
const INFORMED_MAX: usize = 4096;

impl BlockUnit {
    /// Stores the table durably.
    fn store_ports(&self, table: &PortTable) -> Result<(), BlockFailure> {
        catalog::store_ports(self.store(), self.object(), &table.encode()).map_err(BlockFailure::Write)?;
        self.store().flush().map_err(BlockFailure::Write)
    }

    /// Whether writes of the nexus must be durable before they are acknowledged.
    pub(crate) fn is_write_through(&self, nexus: &BlockNexus) -> bool {
        !self.settings().write_cache() || nexus.write_through()
    }

    /// Makes the mark of the nexus durable before its first unflushed write is acknowledged.
    pub(crate) fn mark_dirty(&self, nexus: &BlockNexus) -> Result<(), BlockFailure> {
        nexus.wrote(self.durability().now_ms.load(Ordering::Relaxed));
        if nexus.is_dirty() {
            return Ok(());
        }
        let mut table = self.durability().table.lock();
        if table.set(&nexus.port, PortFlags::DIRTY)
            && let Err(failure) = self.store_ports(&table)
        {
            table.clear(&nexus.port, PortFlags::DIRTY);
            return Err(failure);
        }
        self.durability().dirty.store(true, Ordering::Release);
        nexus.set_dirty(true);
        Ok(())
    }

    /// Removes the marks of idle ports, after a flush. `now` is from a monotonic clock.
    pub(crate) fn tick(&self, now: Duration) {
        let durability = self.durability();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        durability.now_ms.store(now_ms, Ordering::Relaxed);
        if !durability.dirty.load(Ordering::Acquire) || self.blocks().lazy().is_err() {
            return;
        }
        let idle_ms = IDLE.as_millis() as u64;
        let active = || {
            let mut all = self.nexuses().all();
            all.retain(|nexus| nexus.is_dirty() && now_ms.saturating_sub(nexus.last_write_ms()) < idle_ms);
            all
        };
        let has_idle = {
            let active = active();
            durability.table.lock().has_idle(&ports(&active))
        };
        if has_idle && let Err(failure) = self.clean(active) {
            tracing::warn!(unit = self.name(), error = %failure, "cannot remove marks of unflushed writes");
        }
    }

    /// Removes every mark at a clean shutdown, when all writes are durable. A unit whose keys are
    /// unavailable keeps its marks.
    pub(crate) fn close(&self) -> Result<(), BlockFailure> {
        if self.blocks().lazy().is_err() { Ok(()) } else { self.clean(Vec::new) }
    }

    /// Flushes, and removes the marks of all ports except the active ones.
    fn clean(&self, active: impl Fn() -> Vec<Arc<BlockNexus>>) -> Result<(), BlockFailure> {
        let durability = self.durability();
        let is_dirty = durability.table.lock().any(PortFlags::DIRTY);
        if is_dirty {
            self.flush()?;
        }
        // The exclusive lock excludes writes. A later write waits for the port table before it sets
        // a mark.
        let guard = self.command_lock().write();
        let active = active();
        for nexus in self.nexuses().all() {
            if !active.iter().any(|other| other.port == nexus.port) {
                nexus.set_dirty(false);
            }
        }
        let mut table = durability.table.lock();
        drop(guard);
        if !table.any(PortFlags::DIRTY) {
            return Ok(());
        }
        self.flush_without_reports()?;
        if self.blocks().lazy()?.is_some_and(LazyBlocks::has_rejected) {
            // Their report needs the table. The marks stay until the next call.
            drop(table);
            self.report_rejected();
            return Ok(());
        }
        let mut cleaned = table.clone();
        if cleaned.clear_dirty_except(&ports(&active)) {
            self.store_ports(&cleaned)?;
            *table = cleaned;
        }
        durability.dirty.store(table.any(PortFlags::DIRTY), Ordering::Release);
        Ok(())
    }

    /// Makes the next SYNCHRONIZE CACHE of a port fail, in a later session too.
    pub(crate) fn set_lost(&self, port: &PortIdentity) {
        for nexus in self.nexuses().all().iter().filter(|nexus| nexus.port == *port) {
            nexus.set_loss(LossReport::Pending);
        }
        self.durability().informed.lock().remove(port);
        let mut table = self.durability().table.lock();
        if table.set(port, PortFlags::LOST)
            && let Err(failure) = self.store_ports(&table)
        {
            tracing::error!(unit = self.name(), error = %failure, "cannot store that writes were lost");
        }
    }

    /// Makes the next SYNCHRONIZE CACHE of every port fail, also of ports that log in later.
    pub(crate) fn set_lost_by_any(&self) {
        for nexus in self.nexuses().all() {
            nexus.set_loss(LossReport::Pending);
        }
        self.durability().informed.lock().clear();
        let mut table = self.durability().table.lock();
        if table.set_every(PortFlags::LOST)
            && let Err(failure) = self.store_ports(&table)
        {
            tracing::error!(unit = self.name(), error = %failure, "cannot store that writes were lost");
        }
    }

    /// Fails the first SYNCHRONIZE CACHE of a nexus whose writes may be lost.
    pub(crate) fn report_loss(&self, nexus: &BlockNexus) -> Result<(), BlockFailure> {
        match nexus.loss() {
            LossReport::None => Ok(()),
            LossReport::Pending => {
                nexus.set_loss(LossReport::Reported);
                tracing::warn!(
                    unit = self.name(),
                    initiator = nexus.port.name,
                    "SYNCHRONIZE CACHE fails: acknowledged writes were lost"
                );
                let lun = self.description().lun;
                self.durability().losses.record(&LostWrites {
                    unit: self.name(),
                    lun,
                    nexus: nexus.id,
                    initiator: &nexus.port.name,
                });
                Err(BlockFailure::WritesLost)
            }
            // If the session broke before the status arrived, the report is repeated, because a new
            // nexus starts as pending.
            LossReport::Reported => {
                let mut table = self.durability().table.lock();
                let mut informed = table.clone();
                if informed.clear(&nexus.port, PortFlags::LOST) {
                    self.store_ports(&informed)?;
                    *table = informed;
                } else {
                    let mut informed = self.durability().informed.lock();
                    if informed.len() < INFORMED_MAX {
                        informed.insert(nexus.port.clone());
                    }
                }
                nexus.set_loss(LossReport::None);
                Ok(())
            }
        }
    }

    /// Whether [`Self::inform_of_cache`] has to write to the store.
    pub(crate) fn informs_of_cache(&self, nexus: &BlockNexus) -> bool {
        self.settings().write_cache() == nexus.write_through()
    }

    /// Records that the initiator was informed of WCE. With WCE 0 it relies on write-through until
    /// it is informed of 1.
    pub(crate) fn inform_of_cache(&self, nexus: &BlockNexus) -> Result<(), BlockFailure> {
        if !self.informs_of_cache(nexus) {
            return Ok(());
        }
        let through = !self.settings().write_cache();
        let mut table = self.durability().table.lock();
        let mut informed = table.clone();
        let changed = match through {
            true => informed.set(&nexus.port, PortFlags::WRITE_THROUGH),
            false => informed.clear(&nexus.port, PortFlags::WRITE_THROUGH),
        };
        if changed {
            self.store_ports(&informed)?;
            *table = informed;
        }
        // A row for several ports is not cleared by one of them.
        nexus.set_write_through(table.flags(&nexus.port).contains(PortFlags::WRITE_THROUGH));
        Ok(())
    }
}

fn ports(nexuses: &[Arc<BlockNexus>]) -> Vec<&PortIdentity> {
    nexuses.iter().map(|nexus| &nexus.port).collect()
}
