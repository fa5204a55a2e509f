//! One block unit, as a target uses it.
//!
//! Does: order of checks, one lock for commands and reservations, durability, counters.
//! Does not: transport.
//! Contract: every command runs under the lock `commands`: shared with others, or exclusively if it
//! changes reservations or reads and writes in one step. So every admitted command has ended before
//! a change of reservations is acknowledged, and COMPARE AND WRITE is atomic. Flushes happen after
//! the lock is released, except where the order requires it.
//! Truth: SAM-5 §5.14, SBC-3, SPC-4; `docs/standards/block.md` (order of checks).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use sealstone_block_lazy::LazyStatus;
use sealstone_osd::ObjectId;
use sealstone_scsi::lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply};
use sealstone_scsi::primary::{self, DeviceServer};
use sealstone_scsi::spc::Identity;
use sealstone_scsi::spc::mode::{ModeHeader, ModePage, ModeSense, NewPage};
use sealstone_scsi::spc::supported::CommandRow;
use sealstone_scsi::{AdditionalSense, Sense, Status, additional};
use sealstone_store::{ObjectExtent, ObjectStore, StoreError};

use crate::catalog::{self, CatalogError, UnitDescription};
use crate::command::{
    self, BlockCommand, BlockCommandRow, BlockingKind, CommandFunction, CommandOutcome, UnknownCommand,
};
use crate::counters::{UnitCounterCells, UnitCounters};
use crate::durability::UnitDurability;
use crate::failure::BlockFailure;
use crate::geometry::{BlockExtent, Geometry};
use crate::inquiry;
use crate::integrity::{self, IntegrityFailure, IntegrityFailureKind};
use crate::lazy::{LazyBlocks, UnitBlocks};
use crate::mode::{ModeSettings, ModeValues};
use crate::nexus::{BlockNexus, NexusTable};
use crate::options::UnitOptions;
use crate::reservation::{CommandAccess, LegacyReservation, ReservationState};
use crate::transfer::has_fua;

/// NACA in the CONTROL byte.
const NACA: u8 = 0x04;

/// One block unit.
pub struct BlockUnit {
    store: Arc<dyn ObjectStore>,
    blocks: UnitBlocks,
    description: UnitDescription,
    object: ObjectId,
    /// iSCSI name of the target, for the unit's identification.
    target: String,
    commands: RwLock<ReservationState>,
    /// Shared with the reservation state.
    legacy: LegacyReservation,
    nexuses: NexusTable,
    settings: ModeSettings,
    /// Locked while mode values change.
    selecting: Mutex<()>,
    durability: UnitDurability,
    /// Whether the unit is configured as write-through.
    configured_write_through: AtomicBool,
    /// Whether the whole device is write-through.
    device_write_through: bool,
    medium: RemovableMedium,
    /// Number of changes, and number of changes known to be durable. A flush without new changes is
    /// skipped.
    written: AtomicU64,
    flushed: AtomicU64,
    retired: AtomicBool,
    counters: UnitCounterCells,
}

impl fmt::Debug for BlockUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockUnit").field("description", &self.description).finish_non_exhaustive()
    }
}

impl BlockUnit {
    /// Opens a unit of the store, with its reservations, saved mode pages and marks of unflushed
    /// writes.
    pub(crate) fn open(
        store: Arc<dyn ObjectStore>,
        description: UnitDescription,
        target: &str,
        options: &UnitOptions,
    ) -> Result<Self, CatalogError> {
        let object = description.object();
        let reservations = match catalog::load_reservations(&*store, object)? {
            None => ReservationState::default(),
            // Without the record, initiators that are excluded would get access: the unit stays
            // unavailable instead.
            Some(record) => {
                ReservationState::from_record(&record).ok_or(CatalogError::Damaged(object.object))?
            }
        };
        let modes = catalog::load_modes(&*store, object)?;
        let durability = UnitDurability::open(&*store, &description, options)?;
        let blocks = UnitBlocks::open(&store, &description, options);
        // Versions of an earlier run are not verified: the first flush must not skip them.
        let written = u64::from(blocks.has_unverified());
        let settings =
            ModeSettings::new(modes.as_deref(), options.write_through || description.write_through);
        Ok(Self {
            configured_write_through: AtomicBool::new(description.write_through),
            device_write_through: options.write_through,
            durability,
            blocks,
            store,
            object,
            description,
            target: target.to_owned(),
            legacy: reservations.legacy.clone(),
            commands: RwLock::new(reservations),
            nexuses: NexusTable::default(),
            settings,
            selecting: Mutex::default(),
            medium: RemovableMedium::default(),
            written: AtomicU64::new(written),
            flushed: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            counters: UnitCounterCells::default(),
        })
    }

    /// Returns the unit's description, with its write-through setting at the time of opening.
    #[must_use]
    pub const fn description(&self) -> &UnitDescription {
        &self.description
    }

    /// Returns the unit's current description.
    #[must_use]
    pub fn current_description(&self) -> UnitDescription {
        let write_through = self.configured_write_through.load(Ordering::Acquire);
        UnitDescription { write_through, ..self.description.clone() }
    }

    /// Whether a write may be acknowledged before it is durable (WCE).
    #[must_use]
    pub fn has_write_cache(&self) -> bool {
        self.settings.write_cache()
    }

    /// Makes the unit write-through, or lets initiators choose again. The setting is durable when
    /// this returns.
    pub(crate) fn set_write_through(&self, write_through: bool) -> Result<(), CatalogError> {
        let _selecting = self.selecting.lock();
        let before = self.settings.write_cache();
        let unit = UnitDescription { write_through, ..self.description.clone() };
        if write_through {
            // Takes effect before it is stored, so no write is less durable than the stored setting
            // says.
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

    pub(crate) const fn settings(&self) -> &ModeSettings {
        &self.settings
    }

    pub(crate) const fn durability(&self) -> &UnitDurability {
        &self.durability
    }

    /// Waits until no command is in progress, and blocks new ones until the guard is dropped.
    pub(crate) fn lock_commands(&self) -> RwLockWriteGuard<'_, ReservationState> {
        self.commands.write()
    }

    /// Returns the counter values since the unit was opened.
    #[must_use]
    pub fn counters(&self) -> UnitCounters {
        self.counters.snapshot()
    }

    /// Returns how many initiators have registered or reserved the unit.
    pub(crate) fn reserved_by(&self) -> usize {
        let state = self.commands.read();
        state.registrants.len() + usize::from(self.legacy.holder().is_some())
    }

    /// Makes every further command fail as for an unknown unit. Returns when none is in progress.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        drop(self.commands.write());
    }

    /// Reverts [`Self::retire`] after a failed removal.
    pub(crate) fn reinstate(&self) {
        self.retired.store(false, Ordering::Release);
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

    pub(crate) const fn nexuses(&self) -> &NexusTable {
        &self.nexuses
    }

    pub(crate) const fn medium(&self) -> &RemovableMedium {
        &self.medium
    }

    fn check_not_removed(&self) -> Result<(), BlockFailure> {
        if self.retired.load(Ordering::Acquire) { Err(BlockFailure::Gone) } else { Ok(()) }
    }

    /// Returns the blocks, with or without keys.
    pub(crate) const fn blocks(&self) -> &UnitBlocks {
        &self.blocks
    }

    /// Returns the state of versions and verification; `None` if blocks have no keys, or their keys
    /// are unavailable.
    #[must_use]
    pub fn lazy_status(&self) -> Option<LazyStatus> {
        self.blocks.lazy().ok().flatten().map(LazyBlocks::status)
    }

    /// Returns why the keys of the blocks cannot be used, and the next step; `None` if they can, or
    /// if the unit is not served.
    #[must_use]
    pub fn unavailable_reason(&self) -> Option<&str> {
        self.blocks.unavailable_reason()
    }

    /// Refuses commands that need plain blocks.
    fn check_plain(&self) -> Result<(), BlockFailure> {
        match self.blocks.lazy()? {
            None => Ok(()),
            Some(_) => Err(BlockFailure::OperationCode),
        }
    }

    /// Refuses changes while SWP is set.
    pub(crate) fn check_writable(&self) -> Result<(), BlockFailure> {
        if self.settings.write_protect() { Err(BlockFailure::WriteProtected) } else { Ok(()) }
    }

    /// Reads the first bytes of the unit, by which a program recognizes its content. Returns false
    /// if that fails, or if its blocks have keys.
    #[must_use]
    pub fn read_head(&self, into: &mut [u8]) -> bool {
        into.len() as u64 <= self.geometry().bytes() && self.read(0, into).is_ok()
    }

    /// Reads bytes of the object and fills `into` completely.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockFailure> {
        self.check_plain()?;
        let read = BlockFailure::read(self.geometry().block().shift());
        match self.store.read(self.object, offset, into) {
            Ok(count) if count == into.len() => Ok(()),
            // The object is as long as the unit. A shorter one was truncated outside of this
            // program.
            Ok(_) => Err(read(StoreError::IndexDamaged { object: self.object })),
            Err(error) => Err(read(error)),
        }
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), BlockFailure> {
        self.check_plain()?;
        self.changed(self.store.write(self.object, offset, data))
    }

    /// Turns blocks into holes.
    pub(crate) fn unmap(&self, extent: BlockExtent) -> Result<(), BlockFailure> {
        if let Some(lazy) = self.blocks.lazy()? {
            self.count_change();
            return lazy.discard(extent, self.geometry().block().bytes());
        }
        self.changed(self.store.clear(self.object, extent.offset(), extent.length()))
    }

    /// Returns the mapped ranges and holes from an offset on.
    pub(crate) fn map(&self, offset: u64, max: usize) -> Result<Vec<ObjectExtent>, BlockFailure> {
        let read = BlockFailure::read(self.geometry().block().shift());
        self.store.map(self.object, offset, max).map_err(read)
    }

    fn changed(&self, outcome: Result<(), StoreError>) -> Result<(), BlockFailure> {
        // Counted after the write: a concurrent flush may or may not cover it, so the next flush is
        // repeated.
        self.count_change();
        outcome.map_err(BlockFailure::Write)
    }

    /// Makes the next flush effective.
    pub(crate) fn count_change(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns when everything written before is durable, and the writers of rejected writes are
    /// marked in the port table.
    pub(crate) fn flush(&self) -> Result<(), BlockFailure> {
        let flushed = self.flush_without_reports();
        self.report_rejected();
        flushed
    }

    /// As [`Self::flush`], without the marks, for callers that hold the port table.
    pub(crate) fn flush_without_reports(&self) -> Result<(), BlockFailure> {
        // Versions of an earlier run cannot be verified without their keys.
        let lazy = self.blocks.lazy()?;
        let written = self.written.load(Ordering::Acquire);
        if self.flushed.load(Ordering::Acquire) < written {
            match lazy {
                Some(lazy) => lazy.synchronize()?,
                None => self.store.flush().map_err(BlockFailure::Write)?,
            }
            self.flushed.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }

    fn answer(&self, nexus: &BlockNexus, command: &ScsiCommand<'_>) -> ScsiReply {
        if self.retired.load(Ordering::Acquire) {
            return primary::absent(command.cdb, command.data_in_max);
        }
        let outcome = match command::find(command.cdb, &self.description) {
            Ok(row) => self.own(row, nexus, command),
            Err(UnknownCommand::Code) => return self.shared(nexus, command),
            Err(UnknownCommand::Action) => match primary::attention(self, nexus.id) {
                Some(reply) => return reply,
                None => Err(BlockFailure::ServiceAction),
            },
        };
        match outcome {
            Ok(TableOutcome::Attention(reply)) => reply,
            Ok(TableOutcome::Done(done)) => {
                self.counters.moved(done.moved.0, done.moved.1);
                ScsiReply {
                    status: done.status,
                    sense: Vec::new(),
                    data_in: done.data_in,
                    data_in_wanted: done.wanted,
                    data_out_used: done.used,
                }
            }
            Err(failure) => self.refused(nexus, &failure),
        }
    }

    /// Runs a command of the table. Checks unit attention, the form of the CDB, reservations and
    /// the medium in this order.
    fn own(
        &self,
        row: &BlockCommandRow,
        nexus: &BlockNexus,
        command: &ScsiCommand<'_>,
    ) -> Result<TableOutcome, BlockFailure> {
        if let Some(reply) = primary::attention(self, nexus.id) {
            return Ok(TableOutcome::Attention(reply));
        }
        let length = usize::from(row.shared.length);
        if command.cdb.len() < length {
            return Err(BlockFailure::OperationCode);
        }
        let run = BlockCommand::new(self, nexus, command);
        let control = row.shared.length - 1;
        if run.wire()[usize::from(control)] & NACA != 0 {
            return Err(BlockFailure::bit(control, 2));
        }
        let access = row.access(run.wire());
        let admit = |state: &ReservationState| self.admit(row, nexus, access, state);
        let done = match row.function {
            CommandFunction::Shared(function) => {
                let state = self.commands.read();
                admit(&state)?;
                function(&run)?
            }
            CommandFunction::Yielding(function) => {
                let mut state = self.commands.read();
                admit(&state)?;
                function(&run, &mut || {
                    // Lets exclusive commands run between two pieces, and checks admission again
                    // for the next piece.
                    RwLockReadGuard::bump(&mut state);
                    admit(&state)
                })?
            }
            CommandFunction::Exclusive(function) => {
                let state = self.commands.write();
                admit(&state)?;
                function(&run)?
            }
            CommandFunction::Report(function) => {
                let state = self.commands.read();
                admit(&state)?;
                function(&run, &state)?
            }
            CommandFunction::Change(function) => {
                let mut state = self.commands.write();
                admit(&state)?;
                function(&run, &mut state)?
            }
        };
        // The lock is released: others run while this waits.
        if done.flush || run.write_through() || self.is_write_through(nexus) {
            self.flush()?;
        }
        Ok(TableOutcome::Done(done))
    }

    /// Checks whether a command may start or continue.
    fn admit(
        &self,
        row: &BlockCommandRow,
        nexus: &BlockNexus,
        access: CommandAccess,
        state: &ReservationState,
    ) -> Result<(), BlockFailure> {
        // Checked again under the lock: the object may belong to another unit by now.
        self.check_not_removed()?;
        state.check(nexus.id, &nexus.port, access)?;
        if row.medium { self.medium.check() } else { Ok(()) }
    }

    /// Runs a command that every device type has.
    fn shared(&self, nexus: &BlockNexus, command: &ScsiCommand<'_>) -> ScsiReply {
        let access = command.cdb.first().map_or(CommandAccess::Any, |code| command::class_of_shared(*code));
        if access == CommandAccess::Any || nexus.attention(false).is_some() {
            return primary::answer(self, command);
        }
        let state = self.commands.read();
        match state.check(nexus.id, &nexus.port, access) {
            Ok(()) => primary::answer(self, command),
            Err(failure) => self.refused(nexus, &failure),
        }
    }

    /// Sends an integrity failure to the audit log.
    pub(crate) fn record_integrity(
        &self,
        initiator: &str,
        kind: IntegrityFailureKind,
        block: Option<u64>,
        count: u64,
    ) {
        let lun = self.description.lun;
        let failure = IntegrityFailure { unit: self.name(), lun, initiator, kind, block, count };
        self.durability.losses.record_integrity(&failure);
    }

    fn refused(&self, nexus: &BlockNexus, failure: &BlockFailure) -> ScsiReply {
        if let Some((kind, block)) = integrity::kind_of(failure) {
            self.counters.integrity_failure(kind);
            self.record_integrity(&nexus.port.name, kind, block, 1);
        }
        if let BlockFailure::Read(error, _) | BlockFailure::Write(error) = failure {
            tracing::error!(unit = self.name(), error = %error, "block command failed: store error");
        }
        if let BlockFailure::LazyRead(error) | BlockFailure::LazyWrite(error) = failure {
            tracing::error!(unit = self.name(), error = %error, "block command failed");
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

/// Outcome of a command of the table that did not fail.
enum TableOutcome {
    Attention(ScsiReply),
    Done(CommandOutcome),
}

impl LogicalUnit for BlockUnit {
    fn has_descriptor_sense(&self) -> bool {
        self.settings.descriptor_sense()
    }

    fn cost(&self, nexus: NexusId, cdb: &[u8]) -> Cost {
        use sealstone_scsi::spc::opcode::{MODE_SELECT_6, MODE_SELECT_10, MODE_SENSE_6, MODE_SENSE_10};
        // The first unflushed write of a nexus waits until its mark is stored. A changed WCE report
        // waits until its row is stored.
        let first_write = || {
            let nexus = self.nexuses.find(nexus);
            nexus.is_none_or(|nexus| !nexus.is_dirty() || self.is_write_through(&nexus))
        };
        let informs = || self.nexuses.find(nexus).is_none_or(|nexus| self.informs_of_cache(&nexus));
        let waits = match command::find(cdb, &self.description) {
            Ok(row) => match row.wait {
                BlockingKind::Never => false,
                BlockingKind::Always => true,
                BlockingKind::Long => return Cost::Long,
                BlockingKind::Flush => {
                    (row.shared.length > 6 && has_fua(cdb))
                        || (row.access == CommandAccess::Write && first_write())
                }
            },
            Err(_) => match cdb.first() {
                // Turning the write cache off flushes.
                Some(&(MODE_SELECT_6 | MODE_SELECT_10)) => true,
                Some(&(MODE_SENSE_6 | MODE_SENSE_10)) => informs(),
                _ => false,
            },
        };
        // An exclusive command may hold or await the lock for long. Commands that wait for it must
        // not block a thread that serves other sessions and units.
        if waits || self.commands.is_locked_exclusive() { Cost::Blocking } else { Cost::Inline }
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
        // An SPC-2 reservation ends with its nexus; registrations do not.
        self.legacy.end(nexus);
        self.medium.prevent(nexus, false);
        self.end_key_session(nexus);
        self.nexuses.lose(nexus);
    }

    fn reset(&self) {
        self.legacy.clear();
        self.medium.reset();
        self.nexuses.raise(additional::BUS_DEVICE_RESET_OCCURRED, None);
        let _selecting = self.selecting.lock();
        let (before, had_cache) = (self.settings.values(), self.settings.write_cache());
        let saved = self.settings.saved();
        self.settings.set_current(saved);
        if before != saved {
            self.nexuses.raise(additional::MODE_PARAMETERS_CHANGED, None);
        }
        // An initiator that reads WCE 0 relies on earlier writes too.
        if had_cache
            && !self.settings.write_cache()
            && let Err(failure) = self.flush()
        {
            tracing::error!(unit = self.name(), error = %failure, "flush after a logical unit reset failed");
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
        let available = self.blocks.lazy().map(drop);
        available.and_then(|()| self.medium.check()).map_err(|failure| failure.sense())
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
        if !ModeSettings::reports_cache(sense) {
            return;
        }
        let nexus = self.nexuses.get(nexus, &self.durability);
        if let Err(failure) = self.inform_of_cache(&nexus) {
            // The row could not be stored. Write-through stays in effect until a restart, which may
            // turn the cache on.
            nexus.set_write_through(nexus.write_through() || !self.settings.write_cache());
            tracing::error!(unit = self.name(), error = %failure, "cannot store that the initiator relies on write-through");
        }
    }

    fn mode_select(&self, nexus: NexusId, pages: &[NewPage], save: bool) -> Result<(), Sense> {
        let _selecting = self.selecting.lock();
        let before = self.settings.values();
        self.settings.select(pages);
        if let Err(failure) = self.settle_modes(nexus, before, save) {
            self.settings.set_current(before);
            return Err(failure.sense());
        }
        if self.settings.values() != before {
            self.nexuses.raise(additional::MODE_PARAMETERS_CHANGED, Some(nexus));
        }
        Ok(())
    }
}

impl BlockUnit {
    /// Applies selected mode values: flushes if the cache was turned off, and saves the values if
    /// requested.
    fn settle_modes(&self, nexus: NexusId, before: ModeValues, save: bool) -> Result<(), BlockFailure> {
        let (now, old) = (self.settings.values(), self.settings.saved());
        let mut saved = if save { now } else { old };
        // A write cache that was turned off stays off after a reset, saved or not: the initiator
        // that turned it off does not flush, and a unit attention does not make Linux read the mode
        // page again.
        saved.write_cache &= now.write_cache || !before.write_cache;
        if !self.settings.write_cache() || now.write_protect {
            self.flush()?;
        }
        if saved != old {
            catalog::store_modes(&*self.store, self.object, &saved.encode()).map_err(BlockFailure::Write)?;
            self.store.flush().map_err(BlockFailure::Write)?;
            self.settings.set_saved(saved);
        }
        if now.write_cache != before.write_cache {
            self.inform_of_cache(&self.nexuses.get(nexus, &self.durability))?;
        }
        Ok(())
    }
}

/// Medium of a removable unit: loaded or ejected (SBC-3 §5.20).
#[derive(Debug, Default)]
pub(crate) struct RemovableMedium(Mutex<MediumState>);

#[derive(Debug, Default)]
struct MediumState {
    ejected: bool,
    prevented_by: BTreeSet<NexusId>,
}

impl RemovableMedium {
    /// Checks that the medium is loaded.
    pub(crate) fn check(&self) -> Result<(), BlockFailure> {
        if self.0.lock().ejected { Err(BlockFailure::NoMedium) } else { Ok(()) }
    }

    /// Loads or ejects the medium. Fails while any nexus prevents it.
    pub(crate) fn load(&self, load: bool) -> Result<(), BlockFailure> {
        let mut state = self.0.lock();
        if !state.prevented_by.is_empty() {
            return Err(BlockFailure::RemovalPrevented);
        }
        state.ejected = !load;
        Ok(())
    }

    /// Records whether a nexus prevents removal.
    pub(crate) fn prevent(&self, nexus: NexusId, prevent: bool) {
        let mut state = self.0.lock();
        if prevent {
            state.prevented_by.insert(nexus);
        } else {
            state.prevented_by.remove(&nexus);
        }
    }

    /// Clears all preventions of removal.
    fn reset(&self) {
        self.0.lock().prevented_by.clear();
    }
}

#[cfg(test)]
mod tests {
    use sealstone_store::MemoryStore;

    use super::*;
    use crate::{BlockSize, BlockUnits, NewUnit, UnitProtection};

    /// Otherwise one initiator that keeps a unit busy would occupy the threads of all other
    /// sessions.
    #[test]
    fn commands_waiting_for_exclusive_unit_are_blocking() {
        let units = BlockUnits::open(Arc::new(MemoryStore::new(64 << 20)), "iqn.x:y").unwrap();
        let new = NewUnit {
            name: "disk".into(),
            lun: None,
            bytes: 1 << 20,
            block: BlockSize::B512,
            thin: true,
            removable: false,
            write_through: false,
            protection: UnitProtection::NONE,
            serial: [1; 16],
            now_ms: 0,
        };
        let unit = units.create(new).unwrap();
        let (read, reserve) = ([0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], [0x16, 0, 0, 0, 0, 0]);
        assert_eq!(
            (unit.cost(NexusId(1), &read), unit.cost(NexusId(1), &reserve)),
            (Cost::Inline, Cost::Blocking)
        );
        let alone = unit.commands.write();
        assert_eq!(unit.cost(NexusId(1), &read), Cost::Blocking);
        drop(alone);
        assert_eq!(unit.cost(NexusId(1), &read), Cost::Inline);
    }
}
