//! Durable state of the initiator ports of a block unit: unflushed and lost writes, write-through.
//!
//! Does: reads the table of a unit and handles marks that an earlier run left in it.
//! Does not: set marks; `durable` does.
//! Truth: docs/adr/0054-write-through-and-power-loss.md.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use sealstone_store::{ObjectStore, PreviousShutdown, StoreError};

use crate::catalog::{self, UnitDescription};
use crate::options::{LossSink, UnitOptions};
use crate::ports::{PortFlags, PortIdentity, PortTable};

/// Whether the nexus must be informed of lost writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LossReport {
    #[default]
    None,
    /// The next SYNCHRONIZE CACHE fails.
    Pending,
    /// A SYNCHRONIZE CACHE has failed. The next one shows that the initiator received the status.
    Reported,
}

/// Durable state of the ports of one unit.
pub(crate) struct UnitDurability {
    pub(crate) table: Mutex<PortTable>,
    /// Whether any port is dirty.
    pub(crate) dirty: AtomicBool,
    /// Time of the last `BlockUnit::tick`, in milliseconds.
    pub(crate) now_ms: AtomicU64,
    pub(crate) losses: Arc<dyn LossSink>,
    /// Whether writes may be lost; every nexus then receives POWER ON OCCURRED.
    power_failed: bool,
    pub(crate) informed: Mutex<BTreeSet<PortIdentity>>,
}

impl UnitDurability {
    /// Reads the port table of a unit, and handles marks that an earlier run left in it.
    pub(crate) fn open(
        store: &dyn ObjectStore,
        unit: &UnitDescription,
        options: &UnitOptions,
    ) -> Result<Self, StoreError> {
        let record = catalog::load_ports(store, unit.object())?.unwrap_or_default();
        let mut table = PortTable::decode(&record);
        let was_dirty = table.any(PortFlags::DIRTY);
        // If only the process died, the store has every acknowledged write.
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
            // A mark of several ports is not cleared by any of them. It lasts until a shutdown
            // without unflushed writes.
            table.clear_shared(PortFlags::LOST);
        }
        table.set_boot_id(options.boot_id);
        let settled = table.encode();
        if settled != record {
            let stored = catalog::store_ports(store, unit.object(), &settled).and_then(|()| store.flush());
            if let Err(error) = stored {
                // A read-only store still serves its units.
                tracing::error!(unit = unit.name, %error, "cannot store marks of unflushed writes");
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

    /// Returns the state of a port that logs in: whether it uses write-through, and whether it has
    /// lost writes.
    pub(crate) fn of_port(&self, port: &PortIdentity) -> (bool, LossReport) {
        let flags = self.table.lock().flags(port);
        let lost = flags.contains(PortFlags::LOST) && !self.informed.lock().contains(port);
        (flags.contains(PortFlags::WRITE_THROUGH), if lost { LossReport::Pending } else { LossReport::None })
    }
}
