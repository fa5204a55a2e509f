//! All block units of a device.
//!
//! Does: open, make, list and remove units. Does not: offer them; the shell attaches them to its target.
//! Contract: one of these for a store at a time: the store's lock keeps other processes away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_store::ObjectStore;

use crate::BlockUnit;
use crate::catalog::{self, CatalogError, Description, NewUnit};
use crate::counters::UnitCounters;
use crate::durable::UnitOptions;

/// A unit with what is known about it now.
#[derive(Clone, Debug)]
pub struct Listed {
    /// What it is.
    pub description: Description,
    /// Bytes of the store that it takes.
    pub used_bytes: u64,
    /// Initiators that have registered or reserved it.
    pub reserved_by: usize,
    /// Whether a write may be acknowledged before it is durable (WCE).
    pub write_cache: bool,
    /// What it did since it was opened.
    pub counters: UnitCounters,
}

/// The block units of one store.
pub struct BlockUnits {
    store: Arc<dyn ObjectStore>,
    target: String,
    options: UnitOptions,
    units: Mutex<BTreeMap<u16, Arc<BlockUnit>>>,
    /// Held by whoever makes or removes a unit, which may take long; looking at them goes on.
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
    /// [`CatalogError::Damaged`], [`CatalogError::Store`].
    pub fn open_with(
        store: Arc<dyn ObjectStore>,
        target: &str,
        options: UnitOptions,
    ) -> Result<Self, CatalogError> {
        let mut units = BTreeMap::new();
        for description in catalog::load(&*store)? {
            let lun = description.lun;
            let unit = BlockUnit::open(Arc::clone(&store), description, target, &options)?;
            units.insert(lun, Arc::new(unit));
        }
        let target = target.to_owned();
        Ok(Self { store, target, options, units: Mutex::new(units), changing: Mutex::default() })
    }

    /// The units, by number.
    #[must_use]
    pub fn units(&self) -> Vec<Arc<BlockUnit>> {
        self.units.lock().values().cloned().collect()
    }

    /// Makes a unit; it is durable when this returns.
    ///
    /// # Errors
    /// Each variant of [`CatalogError`] but those about removal.
    pub fn create(&self, new: NewUnit) -> Result<Arc<BlockUnit>, CatalogError> {
        let _changing = self.changing.lock();
        let taken: Vec<Description> = self.units().iter().map(|unit| unit.description().clone()).collect();
        let description = catalog::create(&*self.store, &taken, new)?;
        let lun = description.lun;
        let unit = BlockUnit::open(Arc::clone(&self.store), description, &self.target, &self.options)?;
        let unit = Arc::new(unit);
        self.units.lock().insert(lun, Arc::clone(&unit));
        Ok(unit)
    }

    /// Makes a unit write-through, or lets initiators choose again; the setting is durable when this returns.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`], [`CatalogError::Store`].
    pub fn set_write_through(&self, name: &str, write_through: bool) -> Result<(), CatalogError> {
        let _changing = self.changing.lock();
        self.named(name)?.set_write_through(write_through)
    }

    fn named(&self, name: &str) -> Result<Arc<BlockUnit>, CatalogError> {
        let found = self.units().into_iter().find(|unit| unit.description().name == name);
        found.ok_or_else(|| CatalogError::NotFound(name.to_owned()))
    }

    /// Removes the marks of unflushed writes of initiators that are idle. Called now and then, with a clock that does
    /// not go back.
    pub fn tick(&self, now: Duration) {
        self.units().iter().for_each(|unit| unit.tick(now));
    }

    /// Ends all units in order: everything is durable, and no mark of unflushed writes stays. Called when no command can
    /// come any more.
    pub fn close(&self) {
        for unit in self.units() {
            if let Err(failure) = unit.close() {
                tracing::error!(unit = unit.description().name, error = %failure, "marks of unflushed writes stay");
            }
        }
    }

    /// Removes a unit with all its blocks; with `force` even if initiators have it registered or reserved. Commands
    /// that come later hear that it is not there.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`], [`CatalogError::Reserved`], [`CatalogError::Store`].
    pub fn remove(&self, name: &str, force: bool) -> Result<Description, CatalogError> {
        let _changing = self.changing.lock();
        let unit = self.named(name)?;
        let initiators = unit.reserved_by();
        if initiators > 0 && !force {
            return Err(CatalogError::Reserved { name: name.to_owned(), initiators });
        }
        unit.retire();
        if let Err(error) = catalog::remove(&*self.store, unit.description()) {
            // The object may be gone from memory and not from the medium, if the flush failed. Then the store is poisoned
            // and says so to every command; else the unit goes on.
            unit.reinstate();
            return Err(error.into());
        }
        self.units.lock().remove(&unit.description().lun);
        Ok(unit.description().clone())
    }

    /// All units with their figures.
    ///
    /// # Errors
    /// [`CatalogError::Store`].
    pub fn list(&self) -> Result<Vec<Listed>, CatalogError> {
        let listed = |unit: &Arc<BlockUnit>| {
            Ok(Listed {
                description: unit.current_description(),
                used_bytes: catalog::used_bytes(&*self.store, unit.description())?,
                reserved_by: unit.reserved_by(),
                write_cache: unit.has_write_cache(),
                counters: unit.counters(),
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
