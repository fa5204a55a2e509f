//! Check of the secret under which the keys of blocks are sealed at rest.
//!
//! Does: stores a sealed value in the state of a unit, and opens it whenever the unit is opened.
//! Does not: check units of M-lazy, whose sealed keys show a wrong secret.
//! Contract: no key is sealed under another secret than those before. A unit of an earlier version
//! of this program gets the value as soon as one of its pages of keys opens.
//! Truth: `docs/design/block-lazy.md`.

use sealstone_crypto::record::RecordSeal;
use sealstone_store::{AttributeId, ObjectStore, StoreError};

use crate::config::LazyUnit;
use crate::error::LazyError;
use crate::key_pages::KeyPages;
use crate::layout;
use crate::policy::VersionPolicy;

/// Attribute of the unit's state: the sealed value.
const SECRET_CHECK: AttributeId = AttributeId { page: 0, number: 3 };
/// Name under which the value is sealed. The value itself is empty.
const NAME: &[u8] = b"check of the secret";

/// Returns the seal of the value; `None` for a unit without one.
fn seal(unit: &LazyUnit) -> Option<RecordSeal> {
    let secret = unit.secret.as_ref().filter(|_| !VersionPolicy::of(unit.profile).has_unit_keys)?;
    Some(RecordSeal::new(secret, unit.serial))
}

/// Stores the value of a unit that has one.
pub(crate) fn store_check(store: &dyn ObjectStore, unit: &LazyUnit) -> Result<(), StoreError> {
    let Some(seal) = seal(unit) else { return Ok(()) };
    let mut fill = |into: &mut [u8]| (unit.random)(into);
    let sealed = seal.seal(NAME, &[], &mut fill);
    store.set_attribute(layout::state_object(unit.lun), SECRET_CHECK, &sealed)
}

/// Checks that the keys of a unit were sealed under its secret.
pub(crate) fn check_secret(
    store: &dyn ObjectStore,
    unit: &LazyUnit,
    pages: &KeyPages,
) -> Result<(), LazyError> {
    let Some(seal) = seal(unit) else { return Ok(()) };
    if let Some(sealed) = store.attribute(layout::state_object(unit.lun), SECRET_CHECK)? {
        return seal.open(NAME, &sealed).map(drop).map_err(|_| LazyError::WrongPageSecret);
    }
    if pages.opens_any(store)? {
        // A full store still serves the unit. The next opening tries again.
        let _ = store_check(store, unit);
    }
    Ok(())
}
