//! One block unit: what a target shell talks to.
//!
//! Does: order of checks, one lock for commands and reservations, durability, counters. Does not: transport.
//! Contract: every command runs under `gate`: beside others, or alone if it changes reservations or reads and writes in
//! one step. So a command that was let through has ended before a change of reservations is acknowledged, and COMPARE
//! AND WRITE is atomic. Nothing waits for the medium with the gate closed but what has to.
//! Truth: SAM-5 §5.14, SBC-3, SPC-4; `docs/standards/block.md` (order of checks).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use sealstone_osd::ObjectId;
use sealstone_scsi::lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply};
use sealstone_scsi::primary::{self, DeviceServer};
use sealstone_scsi::spc::Identity;
use sealstone_scsi::spc::mode::{ModeHeader, ModePage, ModeSense, NewPage};
use sealstone_scsi::spc::supported::CommandRow;
use sealstone_scsi::{AdditionalSense, Sense, Status, additional};
use sealstone_store::{ObjectStore, StoreError, Stretch};

use crate::catalog::{self, CatalogError, Description};
use crate::command::{self, Done, Function, Row, Run, Unknown, Wait};
use crate::counters::{Counters, UnitCounters};
use crate::durable::{Durability, UnitOptions};
use crate::failure::Failure;
use crate::geometry::{Extent, Geometry};
use crate::inquiry;
use crate::mode::{ModeValues, Settings};
use crate::nexus::{Nexus, Nexuses};
use crate::reservation::{Access, Legacy, Reservations};
use crate::transfer::asks_fua;

/// NACA in the CONTROL byte.
const NACA: u8 = 0x04;

/// A block unit.
pub struct BlockUnit {
    store: Arc<dyn ObjectStore>,
    description: Description,
    object: ObjectId,
    /// iSCSI name of the target, for the unit's identification.
    target: String,
    gate: RwLock<Reservations>,
    /// The same as in the reservations.
    legacy: Legacy,
    nexuses: Nexuses,
    settings: Settings,
    /// Held while mode values change.
    selecting: Mutex<()>,
    durability: Durability,
    /// The unit was made write-through.
    configured_write_through: AtomicBool,
    /// The whole device is write-through.
    device_write_through: bool,
    medium: Medium,
    /// Changes made and changes known to be durable: a flush of nothing is free.
    written: AtomicU64,
    flushed: AtomicU64,
    gone: AtomicBool,
    counters: Counters,
}

impl fmt::Debug for BlockUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockUnit").field("description", &self.description).finish_non_exhaustive()
    }
}

impl BlockUnit {
    /// Opens a unit of the store, with its reservations, saved mode pages and marks of unflushed writes.
    pub(crate) fn open(
        store: Arc<dyn ObjectStore>,
        description: Description,
        target: &str,
        options: &UnitOptions,
    ) -> Result<Self, CatalogError> {
        let object = description.object();
        let reservations = match catalog::load_reservations(&*store, object)? {
            None => Reservations::default(),
            // Whoever was kept out would get in: better nobody does.
            Some(record) => Reservations::from_record(&record).ok_or(CatalogError::Damaged(object.object))?,
        };
        let modes = catalog::load_modes(&*store, object)?;
        let durability = Durability::open(&*store, &description, options)?;
        let settings = Settings::new(modes.as_deref(), options.write_through || description.write_through);
        Ok(Self {
            configured_write_through: AtomicBool::new(description.write_through),
            device_write_through: options.write_through,
            durability,
            store,
            object,
            description,
            target: target.to_owned(),
            legacy: reservations.legacy.clone(),
            gate: RwLock::new(reservations),
            nexuses: Nexuses::default(),
            settings,
            selecting: Mutex::default(),
            medium: Medium::default(),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// The unit's record, with its write-through setting at the time of opening.
    #[must_use]
    pub const fn description(&self) -> &Description {
        &self.description
    }

    /// What the unit is now.
    #[must_use]
    pub fn current_description(&self) -> Description {
        let write_through = self.configured_write_through.load(Ordering::Acquire);
        Description { write_through, ..self.description.clone() }
    }

    /// Whether a write may be acknowledged before it is durable (WCE).
    #[must_use]
    pub fn has_write_cache(&self) -> bool {
        self.settings.write_cache()
    }

    /// Makes the unit write-through, or lets initiators choose again. The setting is durable when this returns.
    pub(crate) fn set_write_through(&self, write_through: bool) -> Result<(), CatalogError> {
        let _selecting = self.selecting.lock();
        let before = self.settings.write_cache();
        let unit = Description { write_through, ..self.description.clone() };
        if write_through {
            // First in effect, then stored: a write is never durable later than the setting says.
            self.settings.set_write_through(true);
        }
        if let Err(error) = catalog::store_description(&*self.store, &unit) {
            let stored = self.configured_write_through.load(Ordering::Acquire);
            self.settings.set_write_through(self.device_write_through || stored);
            return Err(error.into());
        }
        self.configured_write_through.store(write_through, Ordering::Release);
        self.settings.set_write_through(self.device_write_through || write_through);
        if self.settings.write_cache() != before {
            self.nexuses.raise(additional::MODE_PARAMETERS_CHANGED, None);
        }
        Ok(())
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) const fn durability(&self) -> &Durability {
        &self.durability
    }

    /// Waits until no command is under way, and keeps others from beginning.
    pub(crate) fn lock_gate(&self) -> RwLockWriteGuard<'_, Reservations> {
        self.gate.write()
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> UnitCounters {
        self.counters.snapshot()
    }

    /// How many initiators have registered or reserved it.
    pub(crate) fn reserved_by(&self) -> usize {
        let state = self.gate.read();
        state.registrants.len() + usize::from(self.legacy.holder().is_some())
    }

    /// From here on every command is told that there is no such unit. Returns when none is under way.
    pub(crate) fn retire(&self) {
        self.gone.store(true, Ordering::Release);
        drop(self.gate.write());
    }

    /// It could not be removed: everything is as before.
    pub(crate) fn reinstate(&self) {
        self.gone.store(false, Ordering::Release);
    }

    pub(crate) fn name(&self) -> &str {
        &self.description.name
    }

    pub(crate) fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    pub(crate) const fn object(&self) -> ObjectId {
        self.object
    }

    pub(crate) const fn geometry(&self) -> &Geometry {
        &self.description.geometry
    }

    pub(crate) const fn is_thin(&self) -> bool {
        self.description.thin
    }

    pub(crate) const fn is_removable(&self) -> bool {
        self.description.removable
    }

    pub(crate) const fn nexuses(&self) -> &Nexuses {
        &self.nexuses
    }

    pub(crate) const fn medium(&self) -> &Medium {
        &self.medium
    }

    fn check_there(&self) -> Result<(), Failure> {
        if self.gone.load(Ordering::Acquire) { Err(Failure::Gone) } else { Ok(()) }
    }

    /// SWP keeps every change away.
    pub(crate) fn check_writable(&self) -> Result<(), Failure> {
        if self.settings.write_protect() { Err(Failure::WriteProtected) } else { Ok(()) }
    }

    /// Bytes of the object; all of them.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failure> {
        let read = Failure::read(self.geometry().block().shift());
        match self.store.read(self.object, offset, into) {
            Ok(count) if count == into.len() => Ok(()),
            // The object is as long as the unit: a shorter one was cut by somebody else.
            Ok(_) => Err(read(StoreError::IndexDamaged { object: self.object })),
            Err(error) => Err(read(error)),
        }
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.changed(self.store.write(self.object, offset, data))
    }

    /// Blocks become holes.
    pub(crate) fn unmap(&self, extent: Extent) -> Result<(), Failure> {
        self.changed(self.store.clear(self.object, extent.offset(), extent.length()))
    }

    /// What is where from an offset on.
    pub(crate) fn map(&self, offset: u64, max: usize) -> Result<Vec<Stretch>, Failure> {
        let read = Failure::read(self.geometry().block().shift());
        self.store.map(self.object, offset, max).map_err(read)
    }

    fn changed(&self, outcome: Result<(), StoreError>) -> Result<(), Failure> {
        // Counted after the fact: a flush in between covers it or does not, and is repeated then.
        self.written.fetch_add(1, Ordering::AcqRel);
        outcome.map_err(Failure::Write)
    }

    /// Returns when everything written before is durable.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        let written = self.written.load(Ordering::Acquire);
        if self.flushed.load(Ordering::Acquire) < written {
            self.store.flush().map_err(Failure::Write)?;
            self.flushed.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }

    fn answer(&self, nexus: &Nexus, command: &ScsiCommand<'_>) -> ScsiReply {
        if self.gone.load(Ordering::Acquire) {
            return primary::absent(command.cdb, command.data_in_max);
        }
        let outcome = match command::find(command.cdb, &self.description) {
            Ok(row) => self.own(row, nexus, command),
            Err(Unknown::Code) => return self.shared(nexus, command),
            Err(Unknown::Action) => match primary::attention(self, nexus.id) {
                Some(reply) => return reply,
                None => Err(Failure::ServiceAction),
            },
        };
        match outcome {
            Ok(Answer::Attention(reply)) => reply,
            Ok(Answer::Done(done)) => {
                self.counters.moved(done.moved.0, done.moved.1);
                ScsiReply {
                    status: done.status,
                    sense: Vec::new(),
                    data_in: done.data_in,
                    data_in_wanted: done.wanted,
                    data_out_used: done.used,
                }
            }
            Err(failure) => self.refused(&failure),
        }
    }

    /// A command of the table: unit attention, then the CDB's form, reservations, medium, the command itself.
    fn own(&self, row: &Row, nexus: &Nexus, command: &ScsiCommand<'_>) -> Result<Answer, Failure> {
        if let Some(reply) = primary::attention(self, nexus.id) {
            return Ok(Answer::Attention(reply));
        }
        let length = usize::from(row.shared.length);
        if command.cdb.len() < length {
            return Err(Failure::OperationCode);
        }
        let run = Run::new(self, nexus, command);
        let control = row.shared.length - 1;
        if run.wire()[usize::from(control)] & NACA != 0 {
            return Err(Failure::bit(control, 2));
        }
        let access = row.access(run.wire());
        let admit = |state: &Reservations| self.admit(row, nexus, access, state);
        let done = match row.function {
            Function::Shared(function) => {
                let state = self.gate.read();
                admit(&state)?;
                function(&run)?
            }
            Function::Pieces(function) => {
                let mut state = self.gate.read();
                admit(&state)?;
                function(&run, &mut || {
                    // Whoever wants the unit to himself has it between two pieces; what holds then holds for the next.
                    RwLockReadGuard::bump(&mut state);
                    admit(&state)
                })?
            }
            Function::Alone(function) => {
                let state = self.gate.write();
                admit(&state)?;
                function(&run)?
            }
            Function::Report(function) => {
                let state = self.gate.read();
                admit(&state)?;
                function(&run, &state)?
            }
            Function::Change(function) => {
                let mut state = self.gate.write();
                admit(&state)?;
                function(&run, &mut state)?
            }
        };
        // The gate is open again: others go on while this waits.
        if done.flush || run.write_through() || self.is_write_through(nexus) {
            self.flush()?;
        }
        Ok(Answer::Done(done))
    }

    /// May a command begin, or go on?
    fn admit(&self, row: &Row, nexus: &Nexus, access: Access, state: &Reservations) -> Result<(), Failure> {
        // Again, inside the gate: the object may be another unit's by now.
        self.check_there()?;
        state.check(nexus.id, &nexus.port, access)?;
        if row.medium { self.medium.check() } else { Ok(()) }
    }

    /// A command that every device type has.
    fn shared(&self, nexus: &Nexus, command: &ScsiCommand<'_>) -> ScsiReply {
        let access = command.cdb.first().map_or(Access::Any, |code| command::class_of_shared(*code));
        if access == Access::Any || nexus.attention(false).is_some() {
            return primary::answer(self, command);
        }
        let state = self.gate.read();
        match state.check(nexus.id, &nexus.port, access) {
            Ok(()) => primary::answer(self, command),
            Err(failure) => self.refused(&failure),
        }
    }

    fn refused(&self, failure: &Failure) -> ScsiReply {
        if let Failure::Read(error, _) | Failure::Write(error) = failure {
            tracing::error!(unit = self.name(), error = %error, "the store failed a block command");
        }
        match failure.status() {
            Status::CheckCondition => ScsiReply {
                data_out_used: failure.data_out_wanted(),
                ..primary::refusal(self, &failure.sense())
            },
            status => ScsiReply::status(status),
        }
    }
}

/// What a command of the table came to, unless it failed.
enum Answer {
    Attention(ScsiReply),
    Done(Done),
}

impl LogicalUnit for BlockUnit {
    fn has_descriptor_sense(&self) -> bool {
        self.settings.descriptor_sense()
    }

    fn cost(&self, nexus: NexusId, cdb: &[u8]) -> Cost {
        use sealstone_scsi::spc::opcode::{MODE_SELECT_6, MODE_SELECT_10, MODE_SENSE_6, MODE_SENSE_10};
        // The first unflushed write of a nexus waits for its mark, and a change of what it relies on for its row.
        let first_write = || {
            let nexus = self.nexuses.find(nexus);
            nexus.is_none_or(|nexus| !nexus.is_dirty() || self.is_write_through(&nexus))
        };
        let informs = || self.nexuses.find(nexus).is_none_or(|nexus| self.informs_of_cache(&nexus));
        let waits = match command::find(cdb, &self.description) {
            Ok(row) => match row.wait {
                Wait::Never => false,
                Wait::Always => true,
                Wait::Long => return Cost::Long,
                Wait::Flush => {
                    (row.shared.length > 6 && asks_fua(cdb)) || (row.access == Access::Write && first_write())
                }
            },
            Err(_) => match cdb.first() {
                // Turning the write cache off flushes.
                Some(&(MODE_SELECT_6 | MODE_SELECT_10)) => true,
                Some(&(MODE_SENSE_6 | MODE_SENSE_10)) => informs(),
                _ => false,
            },
        };
        // Whoever has the unit alone, or waits to have it, may do so for long: who waits for him must not hold a thread
        // that other sessions and units are served by.
        if waits || self.gate.is_locked_exclusive() { Cost::Blocking } else { Cost::Inline }
    }

    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let nexus = self.nexuses.get(command.nexus, &self.durability);
        let reply = self.answer(&nexus, &command);
        let good = matches!(reply.status, Status::Good | Status::ConditionMet);
        self.counters.command(good, reply.status == Status::ReservationConflict);
        reply
    }

    fn nexus_established(&self, nexus: NexusId, port: &InitiatorPort<'_>) {
        self.nexuses.establish(nexus, port, &self.durability);
    }

    fn nexus_lost(&self, nexus: NexusId) {
        // A reservation of SPC-2 ends with its nexus; registrations do not.
        self.legacy.end(nexus);
        self.medium.prevent(nexus, false);
        self.nexuses.lose(nexus);
    }

    fn reset(&self) {
        self.legacy.clear();
        self.medium.reset();
        self.nexuses.raise(additional::BUS_DEVICE_RESET_OCCURRED, None);
        let _selecting = self.selecting.lock();
        let (before, had_cache) = (self.settings.values(), self.settings.write_cache());
        let saved = self.settings.saved();
        self.settings.take(saved);
        if before != saved {
            self.nexuses.raise(additional::MODE_PARAMETERS_CHANGED, None);
        }
        // An initiator that finds WCE 0 relies on earlier writes too.
        if had_cache
            && !self.settings.write_cache()
            && let Err(failure) = self.flush()
        {
            tracing::error!(unit = self.name(), error = %failure, "the flush of a reset failed");
        }
    }

    fn attention(&self, nexus: NexusId, code: AdditionalSense) {
        self.nexuses.get(nexus, &self.durability).raise(code);
    }

    fn luns_reported(&self, nexus: NexusId) {
        self.nexuses.get(nexus, &self.durability).luns_reported();
    }
}

impl DeviceServer for BlockUnit {
    fn identity(&self) -> Identity<'_> {
        inquiry::identity(&self.description)
    }

    fn pages(&self) -> &[u8] {
        &inquiry::PAGES
    }

    fn page(&self, _: NexusId, page: u8) -> Option<Vec<u8>> {
        inquiry::page(&self.description, &self.target, page)
    }

    fn commands(&self) -> &[CommandRow] {
        command::shared_rows(&self.description)
    }

    fn ready(&self) -> Result<(), Sense> {
        self.medium.check().map_err(|failure| failure.sense())
    }

    fn unit_attention(&self, nexus: NexusId, take: bool) -> Option<AdditionalSense> {
        self.nexuses.get(nexus, &self.durability).attention(take)
    }

    fn luns_reported(&self, nexus: NexusId) {
        self.nexuses.get(nexus, &self.durability).luns_reported();
    }

    fn descriptor_sense(&self) -> bool {
        self.settings.descriptor_sense()
    }

    fn mode_header(&self) -> ModeHeader {
        self.settings.header(self.geometry())
    }

    fn mode_pages(&self) -> Vec<ModePage> {
        self.settings.pages()
    }

    fn mode_sensed(&self, nexus: NexusId, sense: &ModeSense) {
        if !Settings::reports_cache(sense) {
            return;
        }
        let nexus = self.nexuses.get(nexus, &self.durability);
        if let Err(failure) = self.inform_of_cache(&nexus) {
            // Until the next restart it is so; a restart may turn the cache on.
            nexus.set_write_through(nexus.write_through() || !self.settings.write_cache());
            tracing::error!(unit = self.name(), error = %failure, "use of write-through was not stored");
        }
    }

    fn mode_select(&self, nexus: NexusId, pages: &[NewPage], save: bool) -> Result<(), Sense> {
        let _selecting = self.selecting.lock();
        let before = self.settings.values();
        self.settings.select(pages);
        if let Err(failure) = self.settle_modes(nexus, before, save) {
            self.settings.take(before);
            return Err(failure.sense());
        }
        if self.settings.values() != before {
            self.nexuses.raise(additional::MODE_PARAMETERS_CHANGED, Some(nexus));
        }
        Ok(())
    }
}

impl BlockUnit {
    /// Makes selected mode values hold: empties the cache where it was turned off, and saves what has to be saved.
    fn settle_modes(&self, nexus: NexusId, before: ModeValues, save: bool) -> Result<(), Failure> {
        let (now, old) = (self.settings.values(), self.settings.saved());
        let mut saved = if save { now } else { old };
        // A write cache that was turned off stays off after a reset, saved or not: the initiator that turned it off does
        // not flush, and a unit attention does not make Linux read the mode page again.
        saved.write_cache &= now.write_cache || !before.write_cache;
        if !self.settings.write_cache() || now.write_protect {
            self.flush()?;
        }
        if saved != old {
            catalog::store_modes(&*self.store, self.object, &saved.encode()).map_err(Failure::Write)?;
            self.store.flush().map_err(Failure::Write)?;
            self.settings.set_saved(saved);
        }
        if now.write_cache != before.write_cache {
            self.inform_of_cache(&self.nexuses.get(nexus, &self.durability))?;
        }
        Ok(())
    }
}

/// The medium of a removable unit: there or not (SBC-3 §5.20).
#[derive(Debug, Default)]
pub(crate) struct Medium(Mutex<MediumState>);

#[derive(Debug, Default)]
struct MediumState {
    ejected: bool,
    prevented_by: BTreeSet<NexusId>,
}

impl Medium {
    /// Can blocks be had?
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.0.lock().ejected { Err(Failure::NoMedium) } else { Ok(()) }
    }

    /// Loads or ejects; neither while anybody prevents it.
    pub(crate) fn load(&self, load: bool) -> Result<(), Failure> {
        let mut state = self.0.lock();
        if !state.prevented_by.is_empty() {
            return Err(Failure::RemovalPrevented);
        }
        state.ejected = !load;
        Ok(())
    }

    /// A nexus prevents removal, or allows it again.
    pub(crate) fn prevent(&self, nexus: NexusId, prevent: bool) {
        let mut state = self.0.lock();
        if prevent {
            state.prevented_by.insert(nexus);
        } else {
            state.prevented_by.remove(&nexus);
        }
    }

    /// Nobody prevents removal any more.
    fn reset(&self) {
        self.0.lock().prevented_by.clear();
    }
}

#[cfg(test)]
mod tests {
    use sealstone_store::MemoryStore;

    use super::*;
    use crate::{BlockSize, BlockUnits, NewUnit};

    /// Else one initiator that keeps a unit busy would hold the threads of all other sessions.
    #[test]
    fn whoever_has_to_wait_for_the_unit_does_so_elsewhere() {
        let units = BlockUnits::open(Arc::new(MemoryStore::new(64 << 20)), "iqn.x:y").unwrap();
        let new = NewUnit {
            name: "disk".into(),
            lun: None,
            bytes: 1 << 20,
            block: BlockSize::B512,
            thin: true,
            removable: false,
            write_through: false,
            serial: [1; 16],
            now_ms: 0,
        };
        let unit = units.create(new).unwrap();
        let (read, reserve) = ([0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], [0x16, 0, 0, 0, 0, 0]);
        assert_eq!(
            (unit.cost(NexusId(1), &read), unit.cost(NexusId(1), &reserve)),
            (Cost::Inline, Cost::Blocking)
        );
        let alone = unit.gate.write();
        assert_eq!(unit.cost(NexusId(1), &read), Cost::Blocking);
        drop(alone);
        assert_eq!(unit.cost(NexusId(1), &read), Cost::Inline);
    }
}
