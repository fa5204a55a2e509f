//! Keys of a unit of M-lazy, and numbers of the sessions that use them.
//!
//! Does: creates the keys of a new unit, stores them sealed, numbers sessions, begins epochs.
//! Does not: know which session belongs to which initiator; the caller does.
//! Contract: a number is durable before a session has it, and no session receives it again, also
//! after a power failure. Keys that cannot be opened are never replaced.
//! Truth: `docs/standards/block-protection.md`, "Blocks of M-lazy".

use sealstone_block_protection::{UNIT_KEY_LEN, UnitKeys};
use sealstone_crypto::record::RecordSeal;
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{AttributeId, ObjectStore, StoreError};
use zeroize::Zeroizing;

use crate::config::LazyUnit;
use crate::error::LazyError;
use crate::layout;
use crate::secret_check::store_check;

/// Attribute of the unit's state: all version numbers below it may be in use.
pub(crate) const NEXT_VERSION: AttributeId = AttributeId { page: 0, number: 1 };
/// Attribute of the unit's state: its keys and the number of the next session, sealed.
const UNIT_KEYS: AttributeId = AttributeId { page: 0, number: 2 };
/// Name under which the keys are sealed.
const NAME: &[u8] = b"keys of the unit";
/// First number of a session.
const FIRST_SESSION: u32 = 1;

/// Keys of a unit as they are stored.
pub(crate) struct StoredUnitKeys {
    pub(crate) keys: UnitKeys,
    seal: RecordSeal,
    object: ObjectId,
    pub(crate) next_session: u32,
}

impl StoredUnitKeys {
    pub(crate) fn new_key(unit: &LazyUnit) -> Zeroizing<[u8; UNIT_KEY_LEN]> {
        let mut key = Zeroizing::new([0; UNIT_KEY_LEN]);
        (unit.random)(&mut *key);
        key
    }

    /// Creates the keys of a new unit, in the scope that creates its state.
    pub(crate) fn create(store: &dyn ObjectStore, unit: &LazyUnit) -> Result<Self, LazyError> {
        let seal = Self::seal(unit)?;
        let keys = UnitKeys::new(unit.serial, Self::new_key(unit));
        let object = layout::state_object(unit.lun);
        let created = Self { keys, seal, object, next_session: FIRST_SESSION };
        created.store(store, unit)?;
        Ok(created)
    }

    /// Opens the keys of a unit.
    pub(crate) fn open(store: &dyn ObjectStore, unit: &LazyUnit) -> Result<Self, LazyError> {
        let (seal, object) = (Self::seal(unit)?, layout::state_object(unit.lun));
        let sealed = store.attribute(object, UNIT_KEYS)?.ok_or(LazyError::UnitKeysDamaged)?;
        let encoded = seal.open(NAME, &sealed).map_err(|_| LazyError::UnitKeysDamaged)?;
        let (keys, next_session) = UnitKeys::parse(&encoded).map_err(|_| LazyError::UnitKeysDamaged)?;
        if *keys.unit() != unit.serial {
            return Err(LazyError::UnitKeysDamaged);
        }
        Ok(Self { keys, seal, object, next_session })
    }

    fn seal(unit: &LazyUnit) -> Result<RecordSeal, LazyError> {
        let secret = unit.secret.as_ref().ok_or(LazyError::PageSecret(unit.profile.name()))?;
        Ok(RecordSeal::new(secret, unit.serial))
    }

    fn store(&self, store: &dyn ObjectStore, unit: &LazyUnit) -> Result<(), StoreError> {
        let mut fill = |into: &mut [u8]| (unit.random)(into);
        let sealed = self.seal.seal(NAME, &self.keys.encode(self.next_session), &mut fill);
        store.set_attribute(self.object, UNIT_KEYS, &sealed)
    }

    /// Stores a number after the next one, durably, and returns the next one.
    pub(crate) fn take_session(
        &mut self,
        store: &dyn ObjectStore,
        unit: &LazyUnit,
    ) -> Result<u32, LazyError> {
        let session = self.next_session;
        self.next_session = session.checked_add(1).ok_or(LazyError::SessionsExhausted)?;
        // After a failure the number may be stored or not; it is not used in either case.
        self.store(store, unit)?;
        store.flush()?;
        Ok(session)
    }
}

/// Returns the first version number that no write has used, and the keys of the unit. Creates the
/// state of a new unit, in one scope.
pub(crate) fn load_state(
    store: &dyn ObjectStore,
    unit: &LazyUnit,
    has_unit_keys: bool,
) -> Result<(u64, Option<StoredUnitKeys>), LazyError> {
    let object = layout::state_object(unit.lun);
    let stored = match store.attribute(object, NEXT_VERSION) {
        Err(StoreError::NotFound(_)) => {
            let scope = store.begin();
            store.create(object, ObjectType::User)?;
            let keys = has_unit_keys.then(|| StoredUnitKeys::create(store, unit)).transpose()?;
            store_check(store, unit)?;
            scope.end()?;
            return Ok((1, keys));
        }
        other => other?,
    };
    let keys = has_unit_keys.then(|| StoredUnitKeys::open(store, unit)).transpose()?;
    let Some(bytes) = stored else { return Ok((1, keys)) };
    let bytes = bytes.try_into().map_err(|_| StoreError::IndexDamaged { object })?;
    Ok((u64::from_be_bytes(bytes), keys))
}
