//! All block units of a device.
//!
//! Does: open, create, list and remove units.
//! Does not: offer them; the daemon attaches them to its target.
//! Contract: a store has one instance at a time; the store's lock excludes other processes. A unit
//! with a damaged record is listed apart, and keeps its name and LUN until it is removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_block_lazy::{LazyStatus, LazyVolume, PageSecret};
use sealstone_store::ObjectStore;

use crate::BlockUnit;
use crate::catalog::{self, CatalogError, DamagedUnit, NewUnit, UnitDescription, UnitRecords};
use crate::counters::UnitCounters;
use crate::integrity::{IntegrityFailure, IntegrityFailureKind};
use crate::options::{StoredSecret, UnitOptions, seals_keys_at_rest};

/// Current state of a unit.
#[derive(Clone, Debug)]
pub struct UnitStatus {
    /// Description of the unit.
    pub description: UnitDescription,
    /// Bytes of the store that the unit uses.
    pub used_bytes: u64,
    /// Number of initiators that have registered or reserved the unit.
    pub reserved_by: usize,
    /// Whether a write may be acknowledged before it is durable (WCE).
    pub write_cache: bool,
    /// Counter values since the unit was opened.
    pub counters: UnitCounters,
    /// Versions and verification; `None` if blocks have no keys, or the unit is not served.
    pub lazy: Option<LazyStatus>,
    /// Why the keys of blocks cannot be used, and the next step.
    pub unavailable: Option<String>,
}

/// The block units of one store.
pub struct BlockUnits {
    store: Arc<dyn ObjectStore>,
    target: String,
    options: Mutex<UnitOptions>,
    units: Mutex<BTreeMap<u16, Arc<BlockUnit>>>,
    /// Units that cannot be served because a record of them is damaged.
    damaged: Mutex<BTreeMap<u16, DamagedUnit>>,
    /// Serialises creation and removal, which may take long. Readers do not need it.
    changing: Mutex<()>,
}

impl BlockUnits {
    /// Opens the units of a store with the default options; see [`Self::open_with`].
    ///
    /// # Errors
    /// As [`Self::open_with`].
    pub fn open(store: Arc<dyn ObjectStore>, target: &str) -> Result<Self, CatalogError> {
        Self::open_with(store, target, UnitOptions::default())
    }

    /// Opens the units of a store. `target` is the iSCSI name of the target that offers them.
    ///
    /// # Errors
    /// [`CatalogError::Store`] if the units cannot be listed. A unit with a damaged record is in
    /// [`Self::damaged`].
    pub fn open_with(
        store: Arc<dyn ObjectStore>,
        target: &str,
        options: UnitOptions,
    ) -> Result<Self, CatalogError> {
        let mut units = BTreeMap::new();
        let UnitRecords { units: described, mut damaged } = catalog::load(&*store)?;
        for description in described {
            let (lun, name) = (description.lun, description.name.clone());
            match BlockUnit::open(Arc::clone(&store), description, target, &options) {
                Ok(unit) => drop(units.insert(lun, Arc::new(unit))),
                Err(error) => damaged.push(DamagedUnit::new(lun, name, &catalog::chain(&error))),
            }
        }
        for DamagedUnit { lun, name, reason } in &damaged {
            tracing::error!(unit = name, lun, reason, "the block unit is unavailable");
            options.losses.record_integrity(&IntegrityFailure {
                unit: name,
                lun: *lun,
                initiator: "",
                kind: IntegrityFailureKind::RecordDamaged,
                block: None,
                count: 1,
            });
        }
        let damaged = damaged.into_iter().map(|unit| (unit.lun, unit)).collect();
        Ok(Self {
            store,
            target: target.to_owned(),
            options: Mutex::new(options),
            units: Mutex::new(units),
            damaged: Mutex::new(damaged),
            changing: Mutex::default(),
        })
    }

    /// Returns the units that cannot be served because a record of them is damaged, with the bytes
    /// of the store that each uses.
    #[must_use]
    pub fn damaged(&self) -> Vec<(DamagedUnit, u64)> {
        let damaged: Vec<DamagedUnit> = self.damaged.lock().values().cloned().collect();
        let used = |unit: &DamagedUnit| catalog::used_bytes(&*self.store, unit.lun).unwrap_or(0);
        damaged.into_iter().map(|unit| (unit.clone(), used(&unit))).collect()
    }

    fn damaged_named(&self, name: &str) -> Option<DamagedUnit> {
        self.damaged.lock().values().find(|unit| unit.name == name).cloned()
    }

    /// Returns the names of the units of a store whose keys are sealed under the secret of
    /// [`LazyOptions`](crate::LazyOptions), and so need this one. Damaged units that may have such
    /// keys are included.
    ///
    /// # Errors
    /// As [`Self::open_with`].
    pub fn sealed_unit_names(store: &dyn ObjectStore) -> Result<Vec<String>, CatalogError> {
        let mut names = Vec::new();
        let UnitRecords { units, damaged } = catalog::load(store)?;
        let has_state = |lun| LazyVolume::has_state(store, lun).unwrap_or(true);
        let sealed = |unit: &UnitDescription| seals_keys_at_rest(unit.protection) && has_state(unit.lun);
        names.extend(units.into_iter().filter(sealed).map(|unit| unit.name));
        names.extend(damaged.into_iter().filter(|unit| has_state(unit.lun)).map(|unit| unit.name));
        Ok(names)
    }

    /// Whether the secret of [`LazyOptions`](crate::LazyOptions) is missing.
    #[must_use]
    pub fn lacks_secret(&self) -> bool {
        let options = self.options.lock();
        options.lazy.as_ref().is_some_and(|lazy| matches!(lazy.secret, StoredSecret::Missing(_)))
    }

    /// Replaces a missing secret for units that are created later.
    pub fn set_secret(&self, secret: PageSecret) {
        if let Some(lazy) = &mut self.options.lock().lazy {
            lazy.secret = StoredSecret::Present(secret);
        }
    }

    /// Whether a unit is unavailable because its sealed keys cannot be used.
    #[must_use]
    pub fn needs_secret(&self) -> bool {
        let needs = |unit: &Arc<BlockUnit>| {
            seals_keys_at_rest(unit.description().protection) && unit.unavailable_reason().is_some()
        };
        self.units.lock().values().any(needs)
    }

    /// Uses a restored secret: opens the units that were unavailable without it. Returns the names
    /// of those that are available now.
    #[must_use]
    pub fn restore_secret(&self, secret: PageSecret) -> Vec<String> {
        let _changing = self.changing.lock();
        self.set_secret(secret);
        let options = self.options.lock().clone();
        let units = self.units();
        let reopened = units.iter().filter(|unit| unit.reopen_keys(&options));
        reopened.map(|unit| unit.description().name.clone()).collect()
    }

    /// Returns the units, sorted by LUN.
    #[must_use]
    pub fn units(&self) -> Vec<Arc<BlockUnit>> {
        self.units.lock().values().cloned().collect()
    }

    /// Creates a unit. It is durable when this returns.
    ///
    /// # Errors
    /// All variants of [`CatalogError`] except those about removal.
    pub fn create(&self, new: NewUnit) -> Result<Arc<BlockUnit>, CatalogError> {
        let _changing = self.changing.lock();
        let named = |unit: &Arc<BlockUnit>| (unit.description().lun, unit.description().name.clone());
        let mut taken: Vec<(u16, String)> = self.units().iter().map(named).collect();
        taken.extend(self.damaged.lock().values().map(|unit| (unit.lun, unit.name.clone())));
        let description = catalog::create(&*self.store, &taken, new)?;
        let lun = description.lun;
        let options = self.options.lock().clone();
        let unit = BlockUnit::open(Arc::clone(&self.store), description, &self.target, &options)?;
        let unit = Arc::new(unit);
        self.units.lock().insert(lun, Arc::clone(&unit));
        Ok(unit)
    }

    /// Makes a unit write-through, or lets initiators choose again. The setting is durable when
    /// this returns.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`] if there is no such unit, [`CatalogError::Store`] if the store
    /// fails.
    pub fn set_write_through(&self, name: &str, write_through: bool) -> Result<(), CatalogError> {
        let _changing = self.changing.lock();
        self.named(name)?.set_write_through(write_through)
    }

    fn named(&self, name: &str) -> Result<Arc<BlockUnit>, CatalogError> {
        let found = self.units().into_iter().find(|unit| unit.description().name == name);
        found.ok_or_else(|| match self.damaged_named(name) {
            Some(DamagedUnit { name, reason, .. }) => CatalogError::Unavailable { name, reason },
            None => CatalogError::NotFound(name.to_owned()),
        })
    }

    /// Begins the next epoch of a unit's key, and returns its number. It is durable when this
    /// returns. Sessions of the unit request the new key.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`]; [`CatalogError::Rotation`] if the unit has no key of its own, or
    /// none that can be used.
    pub fn rotate_key(&self, name: &str) -> Result<u32, CatalogError> {
        let _changing = self.changing.lock();
        let rotated = self.named(name)?.rotate_key();
        rotated.map_err(|cause| CatalogError::Rotation { name: name.to_owned(), cause })
    }

    /// Removes the marks of unflushed writes of idle initiators. Call it periodically, with a
    /// monotonic clock.
    pub fn tick(&self, now: Duration) {
        self.units().iter().for_each(|unit| unit.tick(now));
    }

    /// Verifies blocks of units with keys. Call it a few times a second.
    pub fn verify_due(&self) {
        self.units().iter().for_each(|unit| unit.verify_due());
    }

    /// Shuts all units down: flushes everything and removes all marks of unflushed writes. Call it
    /// when no further command can arrive.
    pub fn close(&self) {
        for unit in self.units() {
            if let Err(failure) = unit.close() {
                tracing::error!(unit = unit.description().name, error = %failure, "cannot remove marks of unflushed writes");
            }
        }
    }

    /// Removes a unit with all its blocks; with `force`, even if initiators have registered or
    /// reserved it, or if its record is damaged. Returns its LUN. Later commands get an error as
    /// for an unknown unit.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`], [`CatalogError::Reserved`], [`CatalogError::Unavailable`], or
    /// [`CatalogError::Store`].
    pub fn remove(&self, name: &str, force: bool) -> Result<u16, CatalogError> {
        let _changing = self.changing.lock();
        if let Some(DamagedUnit { lun, .. }) = self.damaged_named(name).filter(|_| force) {
            catalog::remove(&*self.store, lun)?;
            self.damaged.lock().remove(&lun);
            return Ok(lun);
        }
        let unit = self.named(name)?;
        let initiators = unit.reserved_by();
        if initiators > 0 && !force {
            return Err(CatalogError::Reserved { name: name.to_owned(), initiators });
        }
        unit.retire();
        if let Err(error) = catalog::remove(&*self.store, unit.description().lun) {
            // If only the flush failed, the object may be removed in memory but not on disk. The
            // store is then poisoned and refuses every command. Otherwise the unit continues to
            // work.
            unit.reinstate();
            return Err(error.into());
        }
        let lun = unit.description().lun;
        self.units.lock().remove(&lun);
        Ok(lun)
    }

    /// Returns all units that can be served, with their state.
    ///
    /// # Errors
    /// [`CatalogError::Store`] if the store fails.
    pub fn list(&self) -> Result<Vec<UnitStatus>, CatalogError> {
        let listed = |unit: &Arc<BlockUnit>| {
            Ok(UnitStatus {
                description: unit.current_description(),
                used_bytes: catalog::used_bytes(&*self.store, unit.description().lun)?,
                reserved_by: unit.reserved_by(),
                write_cache: unit.has_write_cache(),
                counters: unit.counters(),
                lazy: unit.lazy_status(),
                unavailable: unit.unavailable_reason(),
            })
        };
        self.units().iter().map(listed).collect()
    }
}

impl std::fmt::Debug for BlockUnits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.units.lock().values()).finish()
    }
}
