//! State of one block unit.
//!
//! Does: bytes of the unit's object, the command lock, mode values, flushes, counters.
//! Does not: run commands; `dispatch` does.
//! Contract: a command holds [`BlockUnit::command_lock`] while it runs. A change of mode values
//! holds `selecting` until it is stored.
//! Truth: SBC-3, SPC-4; `docs/standards/block.md`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use sealstone_block_lazy::{LazyError, LazyStatus};
use sealstone_osd::ObjectId;
use sealstone_scsi::additional;
use sealstone_scsi::lu::NexusId;
use sealstone_scsi::spc::mode::NewPage;
use sealstone_store::{ObjectExtent, ObjectStore, StoreError};

use crate::catalog::{self, CatalogError, UnitDescription};
use crate::counters::{UnitCounterCells, UnitCounters};
use crate::durability::UnitDurability;
use crate::failure::BlockFailure;
use crate::geometry::{BlockExtent, Geometry};
use crate::integrity::{IntegrityFailure, IntegrityFailureKind};
use crate::lazy::{LazyBlocks, UnitBlocks};
use crate::medium::RemovableMedium;
use crate::mode::{ModeSettings, ModeValues};
use crate::nexus::{BlockNexus, NexusTable};
use crate::options::UnitOptions;
use crate::reservation::{LegacyReservation, ReservationState};

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
    pub(crate) fn current_description(&self) -> UnitDescription {
        let write_through = self.configured_write_through.load(Ordering::Acquire);
        UnitDescription { write_through, ..self.description.clone() }
    }

    /// Whether a write may be acknowledged before it is durable (WCE).
    pub(crate) fn has_write_cache(&self) -> bool {
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

    /// Returns the command lock. A command in progress holds it; its exclusive holder excludes all
    /// others.
    pub(crate) const fn command_lock(&self) -> &RwLock<ReservationState> {
        &self.commands
    }

    /// Returns the counter values since the unit was opened.
    #[must_use]
    pub fn counters(&self) -> UnitCounters {
        self.counters.snapshot()
    }

    pub(crate) const fn counter_cells(&self) -> &UnitCounterCells {
        &self.counters
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

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
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

    /// Returns the iSCSI name of the target.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// Returns a nexus, which is established if the target has not done so.
    pub(crate) fn nexus(&self, id: NexusId) -> Arc<BlockNexus> {
        self.nexuses.get(id, &self.durability)
    }

    pub(crate) const fn nexuses(&self) -> &NexusTable {
        &self.nexuses
    }

    pub(crate) const fn medium(&self) -> &RemovableMedium {
        &self.medium
    }

    /// Checks that the unit was not removed.
    pub(crate) fn check_not_removed(&self) -> Result<(), BlockFailure> {
        if self.is_retired() { Err(BlockFailure::Gone) } else { Ok(()) }
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

    /// Begins the next epoch of the unit's key. Sessions that have the earlier keys receive a unit
    /// attention, and their writes fail until they have requested the new ones.
    pub(crate) fn rotate_key(&self) -> Result<u32, LazyError> {
        let lazy = self.blocks.lazy().ok().flatten();
        let lazy = lazy.ok_or(LazyError::NoUnitKeys(self.description.protection.profile().name()))?;
        let epoch = lazy.rotate_key()?;
        self.nexuses.raise(additional::UNIT_KEYS_CHANGED, None);
        Ok(epoch)
    }

    /// Returns why the keys of the blocks cannot be used, and the next step; `None` if they can, or
    /// if the unit is not served.
    #[must_use]
    pub fn unavailable_reason(&self) -> Option<String> {
        self.blocks.unavailable_reason()
    }

    /// Opens blocks again whose keys could not be used. Returns whether the unit became available.
    pub(crate) fn reopen_keys(&self, options: &UnitOptions) -> bool {
        let is_reopened = self.blocks.reopen(&self.store, &self.description, options);
        if is_reopened {
            // As at an opening: the first flush must not skip versions of an earlier run.
            self.written.fetch_add(u64::from(self.blocks.has_unverified()), Ordering::AcqRel);
        }
        is_reopened
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
            return lazy.discard(extent);
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

    /// Ends what belongs to a nexus: its SPC-2 reservation, its prevention of removal and its
    /// session of unit keys. Registrations stay.
    pub(crate) fn end_nexus(&self, nexus: NexusId) {
        self.legacy.end(nexus);
        self.medium.prevent(nexus, false);
        if let Ok(Some(lazy)) = self.blocks.lazy() {
            lazy.end_session(nexus);
        }
        self.nexuses.lose(nexus);
    }

    /// Resets the unit: clears its SPC-2 reservation and preventions of removal, and restores the
    /// saved mode values.
    pub(crate) fn restore_defaults(&self) {
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

    /// Applies the values of mode pages, or none of them if that fails.
    pub(crate) fn select_modes(
        &self,
        nexus: NexusId,
        pages: &[NewPage],
        save: bool,
    ) -> Result<(), BlockFailure> {
        let _selecting = self.selecting.lock();
        let before = self.settings.values();
        self.settings.select(pages);
        if let Err(failure) = self.settle_modes(nexus, before, save) {
            self.settings.set_current(before);
            return Err(failure);
        }
        if self.settings.values() != before {
            self.nexuses.raise(additional::MODE_PARAMETERS_CHANGED, Some(nexus));
        }
        Ok(())
    }

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
            self.inform_of_cache(&self.nexus(nexus))?;
        }
        Ok(())
    }
}
