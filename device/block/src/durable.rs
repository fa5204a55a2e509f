//! When writes of a nexus are durable, and what a unit reports after a power failure.
//!
//! Does: a durable mark of each port before its first unflushed write is acknowledged; removal of the mark when the port
//! is idle and everything is flushed; failure of the first SYNCHRONIZE CACHE of a port whose writes may be lost;
//! write-through for initiators that were last informed that the write cache is off. Does not: flush by a clock; the
//! store does.
//! Contract: [`BlockUnit::mark_dirty`] is called under the gate. Locks are taken in the order gate, table.
//! Truth: docs/adr/0054-write-through-and-power-loss.md.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_scsi::lu::NexusId;
use sealstone_store::{ObjectStore, PreviousShutdown, StoreError};

use crate::catalog::{self, Description};
use crate::failure::Failure;
use crate::nexus::{Nexus, Port};
use crate::ports::{PortFlags, PortTable};
use crate::unit::BlockUnit;

/// Time without a write after which the mark of a port is removed.
const IDLE: Duration = Duration::from_secs(5);
/// Most ports of which a unit knows in memory that they were informed of lost writes; others are informed again.
const INFORMED_MAX: usize = 4096;

/// Acknowledged writes that may be lost, as an initiator was informed of them.
#[derive(Clone, Copy, Debug)]
pub struct LostWrites<'a> {
    /// Name of the block unit.
    pub unit: &'a str,
    /// Its logical unit number.
    pub lun: u16,
    /// The nexus that received the failed SYNCHRONIZE CACHE.
    pub nexus: NexusId,
    /// iSCSI name of the initiator.
    pub initiator: &'a str,
}

/// Where reports of lost writes go.
pub trait LossSink: Send + Sync {
    /// Takes one report.
    fn record(&self, lost: &LostWrites<'_>);
}

/// Drops every report: for tests and for a store that serves no initiator.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLossSink;

impl LossSink for NoLossSink {
    fn record(&self, _: &LostWrites<'_>) {}
}

/// What holds for all block units of a device.
#[derive(Clone)]
pub struct UnitOptions {
    /// Every write is durable before it is acknowledged, and no initiator can change that.
    pub write_through: bool,
    /// Identifies this start of the machine. Unflushed writes of another one may be lost.
    pub boot_id: [u8; 16],
    /// Where reports of lost writes go.
    pub losses: Arc<dyn LossSink>,
}

impl Default for UnitOptions {
    fn default() -> Self {
        Self { write_through: false, boot_id: [0; 16], losses: Arc::new(NoLossSink) }
    }
}

impl fmt::Debug for UnitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnitOptions").field("write_through", &self.write_through).finish_non_exhaustive()
    }
}

/// Whether the nexus has to be informed of lost writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Loss {
    #[default]
    None,
    /// The next SYNCHRONIZE CACHE fails.
    Pending,
    /// A SYNCHRONIZE CACHE has failed; the next one shows that the initiator received the status.
    Reported,
}

/// The durable facts about the ports of one unit.
pub(crate) struct Durability {
    table: Mutex<PortTable>,
    /// Whether any port is dirty.
    dirty: AtomicBool,
    /// Milliseconds of the clock of [`BlockUnit::tick`].
    now_ms: AtomicU64,
    losses: Arc<dyn LossSink>,
    /// After a power failure every nexus receives POWER ON OCCURRED.
    power_failed: bool,
    informed: Mutex<BTreeSet<Port>>,
}

impl Durability {
    /// Reads the table of a unit, and settles what an earlier start left in it.
    pub(crate) fn open(
        store: &dyn ObjectStore,
        unit: &Description,
        options: &UnitOptions,
    ) -> Result<Self, StoreError> {
        let record = catalog::load_ports(store, unit.object())?.unwrap_or_default();
        let mut table = PortTable::decode(&record);
        let was_dirty = table.any(PortFlags::DIRTY);
        // After the death of the process alone the store has every acknowledged write.
        let power_failed = was_dirty
            && (store.previous_shutdown() == PreviousShutdown::PossiblePowerLoss
                || table.boot_id() != options.boot_id
                || store.flush().is_err());
        if power_failed {
            table.lose_dirty();
            tracing::warn!(
                unit = unit.name,
                "unflushed writes may be lost after a power failure; SYNCHRONIZE CACHE of their initiators fails once"
            );
        } else if was_dirty {
            table.clear_all(PortFlags::DIRTY);
        } else {
            // A mark of more than one port has no end of its own: it lasts until a stop without unflushed writes.
            table.clear_shared(PortFlags::LOST);
        }
        table.set_boot_id(options.boot_id);
        let settled = table.encode();
        if settled != record {
            let stored = catalog::store_ports(store, unit.object(), &settled).and_then(|()| store.flush());
            if let Err(error) = stored {
                // A store that can only be read serves its units all the same.
                tracing::error!(unit = unit.name, %error, "marks of unflushed writes were not stored");
            }
        }
        Ok(Self {
            table: Mutex::new(table),
            dirty: AtomicBool::new(false),
            now_ms: AtomicU64::new(0),
            losses: Arc::clone(&options.losses),
            power_failed,
            informed: Mutex::default(),
        })
    }

    pub(crate) const fn power_failed(&self) -> bool {
        self.power_failed
    }

    /// Returns what holds for a port that logs in: whether it uses write-through, and whether it has lost writes.
    pub(crate) fn of_port(&self, port: &Port) -> (bool, Loss) {
        let flags = self.table.lock().flags(port);
        let lost = flags.contains(PortFlags::LOST) && !self.informed.lock().contains(port);
        (flags.contains(PortFlags::WRITE_THROUGH), if lost { Loss::Pending } else { Loss::None })
    }
}

impl BlockUnit {
    /// Stores the table durably.
    fn store_ports(&self, table: &PortTable) -> Result<(), Failure> {
        catalog::store_ports(self.store(), self.object(), &table.encode()).map_err(Failure::Write)?;
        self.store().flush().map_err(Failure::Write)
    }

    /// Whether writes of the nexus must be durable before they are acknowledged.
    pub(crate) fn is_write_through(&self, nexus: &Nexus) -> bool {
        !self.settings().write_cache() || nexus.write_through()
    }

    /// Makes the mark of the nexus durable before its first unflushed write is acknowledged.
    pub(crate) fn mark_dirty(&self, nexus: &Nexus) -> Result<(), Failure> {
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

    /// Removes the marks of ports that are idle, after a flush. `now` is of a clock that does not go back.
    pub(crate) fn tick(&self, now: Duration) {
        let durability = self.durability();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        durability.now_ms.store(now_ms, Ordering::Relaxed);
        if !durability.dirty.load(Ordering::Acquire) {
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
            tracing::warn!(unit = self.name(), error = %failure, "marks of unflushed writes stay");
        }
    }

    /// Removes every mark: for an orderly end. Returns when all writes are durable.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.clean(Vec::new)
    }

    /// Flushes, and removes the marks of all ports but the active ones.
    fn clean(&self, active: impl Fn() -> Vec<Arc<Nexus>>) -> Result<(), Failure> {
        let durability = self.durability();
        // No write is under way behind the closed gate. A later one waits for the table before it is marked.
        let gate = self.lock_gate();
        let active = active();
        for nexus in self.nexuses().all() {
            if !active.iter().any(|other| other.port == nexus.port) {
                nexus.set_dirty(false);
            }
        }
        let mut table = durability.table.lock();
        drop(gate);
        if !table.any(PortFlags::DIRTY) {
            return Ok(());
        }
        self.flush()?;
        let mut cleaned = table.clone();
        if cleaned.clear_dirty_except(&ports(&active)) {
            self.store_ports(&cleaned)?;
            *table = cleaned;
        }
        durability.dirty.store(table.any(PortFlags::DIRTY), Ordering::Release);
        Ok(())
    }

    /// Fails the first SYNCHRONIZE CACHE of a nexus whose writes may be lost.
    pub(crate) fn report_loss(&self, nexus: &Nexus) -> Result<(), Failure> {
        match nexus.loss() {
            Loss::None => Ok(()),
            Loss::Pending => {
                nexus.set_loss(Loss::Reported);
                tracing::warn!(
                    unit = self.name(),
                    initiator = nexus.port.name,
                    "SYNCHRONIZE CACHE fails: unflushed writes may be lost after a power failure"
                );
                let lun = self.description().lun;
                self.durability().losses.record(&LostWrites {
                    unit: self.name(),
                    lun,
                    nexus: nexus.id,
                    initiator: &nexus.port.name,
                });
                Err(Failure::WritesLost)
            }
            // A status that a broken session did not deliver is repeated: another nexus begins as pending.
            Loss::Reported => {
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
                nexus.set_loss(Loss::None);
                Ok(())
            }
        }
    }

    /// Whether [`Self::inform_of_cache`] waits for the store.
    pub(crate) fn informs_of_cache(&self, nexus: &Nexus) -> bool {
        self.settings().write_cache() == nexus.write_through()
    }

    /// The initiator was informed of WCE: with 0 it relies on write-through until it is informed of 1.
    pub(crate) fn inform_of_cache(&self, nexus: &Nexus) -> Result<(), Failure> {
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
        // A row of more than one port is not cleared by one of them.
        nexus.set_write_through(table.flags(&nexus.port).contains(PortFlags::WRITE_THROUGH));
        Ok(())
    }
}

fn ports(nexuses: &[Arc<Nexus>]) -> Vec<&Port> {
    nexuses.iter().map(|nexus| &nexus.port).collect()
}
