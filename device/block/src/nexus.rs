//! What a block unit remembers about each I_T nexus.
//!
//! Does: the initiator port, waiting unit attentions. Does not: registrations, which outlive a nexus.
//! Contract: a nexus that was never announced gets a record at its first command.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use sealstone_scsi::lu::{InitiatorPort, NexusId};
use sealstone_scsi::{AdditionalSense, Attentions, additional};

use crate::durable::{Durability, Loss};

/// Most nexuses remembered; beyond it an arbitrary one is forgotten and begins anew with its next command.
const NEXUSES_MAX: usize = 65_536;

/// A SCSI initiator port as iSCSI names it, name and session identifier (RFC 7143 §4.4.3.1), and the account that it
/// proved: names are said, so what a port owns is not handed to another account that says the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) isid: [u8; 6],
    /// CHAP name; `None` where none was asked for.
    pub(crate) account: Option<String>,
}

impl Port {
    /// Do both have the same name and session identifier, whoever said them?
    pub(crate) fn is_named_as(&self, other: &Self) -> bool {
        self.name == other.name && self.isid == other.isid
    }
}

/// One nexus.
#[derive(Debug)]
pub(crate) struct Nexus {
    pub(crate) id: NexusId,
    pub(crate) port: Port,
    attentions: Mutex<Attentions>,
    /// The durable mark for unflushed writes is set.
    dirty: AtomicBool,
    last_write_ms: AtomicU64,
    /// The initiator was last informed that the write cache is off.
    write_through: AtomicBool,
    loss: Mutex<Loss>,
}

impl Nexus {
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

    pub(crate) fn loss(&self) -> Loss {
        *self.loss.lock()
    }

    pub(crate) fn set_loss(&self, loss: Loss) {
        *self.loss.lock() = loss;
    }

    /// Something that the initiator must hear.
    pub(crate) fn raise(&self, code: AdditionalSense) {
        self.attentions.lock().raise(code);
    }

    /// The attention that is due.
    pub(crate) fn attention(&self, take: bool) -> Option<AdditionalSense> {
        let mut attentions = self.attentions.lock();
        if take { attentions.take() } else { attentions.first() }
    }

    /// REPORT LUNS was answered.
    pub(crate) fn luns_reported(&self) {
        self.attentions.lock().luns_reported();
    }
}

/// Every nexus of a unit.
#[derive(Debug, Default)]
pub(crate) struct Nexuses(RwLock<HashMap<NexusId, Arc<Nexus>>>);

impl Nexuses {
    /// A nexus logged in.
    pub(crate) fn establish(
        &self,
        id: NexusId,
        port: &InitiatorPort<'_>,
        durability: &Durability,
    ) -> Arc<Nexus> {
        let attention =
            if durability.power_failed() { additional::POWER_ON_OCCURRED } else { port.attention() };
        let port =
            Port { name: port.name.to_owned(), isid: port.isid, account: port.account.map(str::to_owned) };
        let (write_through, loss) = durability.of_port(&port);
        let nexus = Arc::new(Nexus {
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

    pub(crate) fn get(&self, id: NexusId, durability: &Durability) -> Arc<Nexus> {
        self.find(id).unwrap_or_else(|| self.establish(id, &InitiatorPort::new(""), durability))
    }

    /// Returns a nexus that logged in.
    pub(crate) fn find(&self, id: NexusId) -> Option<Arc<Nexus>> {
        self.0.read().get(&id).cloned()
    }

    /// Returns every nexus.
    pub(crate) fn all(&self) -> Vec<Arc<Nexus>> {
        self.0.read().values().cloned().collect()
    }

    /// Everybody hears of it but one.
    pub(crate) fn raise(&self, code: AdditionalSense, except: Option<NexusId>) {
        self.0.read().values().filter(|nexus| Some(nexus.id) != except).for_each(|nexus| nexus.raise(code));
    }

    /// The port that is logged in under the name and session identifier of this one.
    pub(crate) fn named_as(&self, port: &Port) -> Option<Port> {
        self.0.read().values().map(|nexus| &nexus.port).find(|known| known.is_named_as(port)).cloned()
    }

    /// The nexuses of a port hear of it.
    pub(crate) fn tell(&self, port: &Port, code: AdditionalSense) {
        self.0.read().values().filter(|nexus| nexus.port == *port).for_each(|nexus| nexus.raise(code));
    }
}
