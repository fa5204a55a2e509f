//! State of a block unit for each I_T nexus.
//!
//! Does: keep the initiator port and pending unit attentions.
//! Does not: keep registrations, which outlive a nexus.
//! Contract: a nexus that was not announced gets a record at its first command.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use sealstone_scsi::lu::{InitiatorPort, NexusId};
use sealstone_scsi::{AdditionalSense, Attentions, additional};

use crate::durability::{LossReport, UnitDurability};
use crate::ports::PortIdentity;

/// Nexuses remembered. Beyond that an arbitrary one is forgotten, and starts afresh with its next
/// command.
const NEXUSES_MAX: usize = 65_536;

/// State of one nexus.
#[derive(Debug)]
pub(crate) struct BlockNexus {
    pub(crate) id: NexusId,
    pub(crate) port: PortIdentity,
    attentions: Mutex<Attentions>,
    /// Whether the durable mark of unflushed writes is set.
    dirty: AtomicBool,
    last_write_ms: AtomicU64,
    /// Whether the initiator was last informed that the write cache is off.
    write_through: AtomicBool,
    loss: Mutex<LossReport>,
}

impl BlockNexus {
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    pub(crate) fn set_dirty(&self, dirty: bool) {
        self.dirty.store(dirty, Ordering::Release);
    }

    pub(crate) fn wrote(&self, now_ms: u64) {
        self.last_write_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(crate) fn last_write_ms(&self) -> u64 {
        self.last_write_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Acquire)
    }

    pub(crate) fn set_write_through(&self, through: bool) {
        self.write_through.store(through, Ordering::Release);
    }

    pub(crate) fn loss(&self) -> LossReport {
        *self.loss.lock()
    }

    pub(crate) fn set_loss(&self, loss: LossReport) {
        *self.loss.lock() = loss;
    }

    /// Queues a unit attention.
    pub(crate) fn raise(&self, code: AdditionalSense) {
        self.attentions.lock().raise(code);
    }

    /// Returns the next unit attention; `take` removes it.
    pub(crate) fn attention(&self, take: bool) -> Option<AdditionalSense> {
        let mut attentions = self.attentions.lock();
        if take { attentions.take() } else { attentions.first() }
    }

    /// Clears the unit attention about the LUN list.
    pub(crate) fn luns_reported(&self) {
        self.attentions.lock().luns_reported();
    }
}

/// All nexuses of a unit.
#[derive(Debug, Default)]
pub(crate) struct NexusTable(RwLock<HashMap<NexusId, Arc<BlockNexus>>>);

impl NexusTable {
    /// Adds a nexus that logged in.
    pub(crate) fn establish(
        &self,
        id: NexusId,
        port: &InitiatorPort<'_>,
        durability: &UnitDurability,
    ) -> Arc<BlockNexus> {
        let attention =
            if durability.power_failed() { additional::POWER_ON_OCCURRED } else { port.attention() };
        let port = PortIdentity {
            name: port.name.to_owned(),
            isid: port.isid,
            account: port.account.map(str::to_owned),
        };
        let (write_through, loss) = durability.of_port(&port);
        let nexus = Arc::new(BlockNexus {
            id,
            port,
            attentions: Mutex::new(Attentions::begin(attention)),
            dirty: AtomicBool::new(false),
            last_write_ms: AtomicU64::new(0),
            write_through: AtomicBool::new(write_through),
            loss: Mutex::new(loss),
        });
        let mut known = self.0.write();
        if known.len() >= NEXUSES_MAX
            && let Some(&other) = known.keys().next()
        {
            known.remove(&other);
        }
        known.insert(id, Arc::clone(&nexus));
        nexus
    }

    pub(crate) fn lose(&self, id: NexusId) {
        self.0.write().remove(&id);
    }

    pub(crate) fn get(&self, id: NexusId, durability: &UnitDurability) -> Arc<BlockNexus> {
        self.find(id).unwrap_or_else(|| self.establish(id, &InitiatorPort::new(""), durability))
    }

    /// Returns a nexus that logged in.
    pub(crate) fn find(&self, id: NexusId) -> Option<Arc<BlockNexus>> {
        self.0.read().get(&id).cloned()
    }

    /// Returns every nexus.
    pub(crate) fn all(&self) -> Vec<Arc<BlockNexus>> {
        self.0.read().values().cloned().collect()
    }

    /// Queues a unit attention for all nexuses except one.
    pub(crate) fn raise(&self, code: AdditionalSense, except: Option<NexusId>) {
        self.0.read().values().filter(|nexus| Some(nexus.id) != except).for_each(|nexus| nexus.raise(code));
    }

    /// Returns the logged-in port with the same name and ISID.
    pub(crate) fn named_as(&self, port: &PortIdentity) -> Option<PortIdentity> {
        self.0.read().values().map(|nexus| &nexus.port).find(|known| known.is_named_as(port)).cloned()
    }

    /// Queues a unit attention for the nexuses of a port.
    pub(crate) fn raise_for(&self, port: &PortIdentity, code: AdditionalSense) {
        self.0.read().values().filter(|nexus| nexus.port == *port).for_each(|nexus| nexus.raise(code));
    }
}
