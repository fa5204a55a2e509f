//! Recording of the traffic by an attacker, and detection of executed attacks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_osd_device::OsdUnit;
use sealstone_scsi::AdditionalSense;
use sealstone_scsi::Status;
use sealstone_scsi::lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply};

use crate::drift::ClockAudit;
use crate::history::History;

/// Maximum recorded commands.
const REMEMBERED_MAX: usize = 200;
/// Maximum bytes of data-out of a recorded command; longer ones are not recorded.
const DATA_MAX: usize = 64 << 10;
/// Operation code of OSD commands.
const OSD_OPERATION_CODE: u8 = 0x7F;
/// iSCSI name under which the attacker logs in.
pub const ATTACKER: &str = "iqn.2026-11.org.sealstone:attacker";

/// A genuine command that was executed.
#[derive(Clone)]
pub struct Captured {
    /// Number of the device.
    pub place: u8,
    /// Its signed CDB.
    pub cdb: Vec<u8>,
    /// Its data-out.
    pub data_out: Vec<u8>,
}

/// All recorded commands.
#[derive(Default)]
pub struct Wiretap(Mutex<VecDeque<Captured>>);

impl Wiretap {
    /// Returns the number of recorded commands.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a recorded command.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Captured> {
        self.0.lock().get(index).cloned()
    }

    fn put(&self, captured: Captured) {
        let mut all = self.0.lock();
        if all.len() == REMEMBERED_MAX {
            all.pop_front();
        }
        all.push_back(captured);
    }
}

/// A monitored logical unit. It runs all commands on the connection's own task: one thread.
pub(crate) struct Witnessed {
    place: u8,
    unit: Arc<OsdUnit>,
    wiretap: Arc<Wiretap>,
    attackers: Mutex<BTreeSet<NexusId>>,
    judge: Arc<ClockAudit>,
    history: Arc<History>,
}

impl Witnessed {
    pub(crate) fn new(
        place: u8,
        unit: Arc<OsdUnit>,
        wiretap: Arc<Wiretap>,
        judge: Arc<ClockAudit>,
        history: Arc<History>,
    ) -> Self {
        Self { place, unit, wiretap, attackers: Mutex::default(), judge, history }
    }
}

impl LogicalUnit for Witnessed {
    fn has_descriptor_sense(&self) -> bool {
        self.unit.has_descriptor_sense()
    }

    fn cost(&self, _: NexusId, _: &[u8]) -> Cost {
        Cost::Inline
    }

    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let cdb = command.cdb;
        self.judge.begin();
        let reply = self.unit.execute(command);
        self.judge.end(cdb, &reply);
        let status = u64::from(reply.status.byte());
        let place = u64::from(self.place);
        self.history.note("command", &[place, command.nexus.0, status, command.data_out.len() as u64]);
        self.history.note_bytes(command.cdb);
        let good = reply.status == Status::Good && command.cdb.first() == Some(&OSD_OPERATION_CODE);
        if good && self.attackers.lock().contains(&command.nexus) {
            self.history.violate(format!("osd{} did what the attacker said", self.place));
        } else if good && command.data_out.len() <= DATA_MAX {
            let (cdb, data_out) = (command.cdb.to_vec(), command.data_out.to_vec());
            self.wiretap.put(Captured { place: self.place, cdb, data_out });
        }
        reply
    }

    fn nexus_established(&self, nexus: NexusId, port: &InitiatorPort<'_>) {
        if port.name == ATTACKER {
            self.attackers.lock().insert(nexus);
        }
        self.unit.nexus_established(nexus, port);
    }

    fn connection_ended(&self, nexus: NexusId) {
        self.unit.connection_ended(nexus);
    }

    fn nexus_lost(&self, nexus: NexusId) {
        self.attackers.lock().remove(&nexus);
        self.unit.nexus_lost(nexus);
    }

    fn reset(&self) {
        self.unit.reset();
    }

    fn attention(&self, nexus: NexusId, code: AdditionalSense) {
        self.unit.attention(nexus, code);
    }

    fn luns_reported(&self, nexus: NexusId) {
        self.unit.luns_reported(nexus);
    }
}
