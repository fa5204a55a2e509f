//! Sets attributes of one object.
//!
//! Does: check which values are allowed, store them, and apply their effect (length, quotas, tags,
//! methods).
//! Does not: check permissions or parse lists.
//! Contract: [`check`] changes nothing and is called for every attribute of a command before its
//! work starts. [`AttributeChange::set`] needs the object's lock for change. An empty value removes
//! the attribute, which restores the default.
//! Truth: docs/design/t10-osd.md 3.1, 3.5, 4.10; docs/design/security.md 4.4 (floors).

use sealstone_digest::{Profile, ProfileStatus};
use sealstone_osd::function::attributes::{FunctionPolicy, is_valid_value};
use sealstone_osd::{AttributeId, ObjectId, ObjectType, SecurityMethod};
use sealstone_store::{MAX_ATTRIBUTE_LENGTH, StoreError};

use super::membership;
use super::rows::{self, IDENTIFICATION, PageKind, SetRule};
use crate::catalog::{self, be};
use crate::commands::data;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::isolation;

/// Bytes of one entry: page and number.
const NAME_LEN: usize = 8;
/// Bytes of an identification (attribute 0 of a page).
const IDENTIFICATION_LEN: usize = 40;

/// Checks whether an attribute may have this value, as far as that does not depend on an object.
pub(crate) fn check(kind: ObjectType, id: AttributeId, value: &[u8]) -> Result<(), OsdFailure> {
    let refused = Err(OsdFailure::Attribute(id));
    if id.is_wildcard() || value.len() > MAX_ATTRIBUTE_LENGTH {
        return refused;
    }
    match rows::sort_page(kind, id.page) {
        PageKind::Application => {
            let fits = id.number != IDENTIFICATION || value.is_empty() || value.len() == IDENTIFICATION_LEN;
            if fits { Ok(()) } else { refused }
        }
        PageKind::Own => {
            let Some(row) = rows::row(kind, id) else { return refused };
            let allowed = match row.set {
                SetRule::Never => false,
                SetRule::Stored => value.is_empty() || row.length.fits(value),
                SetRule::LogicalLength => row.length.fits(value),
                SetRule::Method => matches!(value, [] | [0..=3]),
                SetRule::NonceLimit(most) => value.is_empty() || row.length.fits(value) && be(value) <= most,
                SetRule::Isolation => value.is_empty() || isolation::method(value).is_some(),
                SetRule::OneOf(codes) => {
                    let code = value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
                    let is_one = row.length.fits(value) && code.is_some_and(|code| codes.contains(&code));
                    value.is_empty() || is_one
                }
                SetRule::Names => value.len().is_multiple_of(NAME_LEN) && row.length.fits(value),
                SetRule::Function => value.is_empty() || is_valid_value(id, value),
                SetRule::FunctionPolicy => match value {
                    [] => true,
                    [code] => FunctionPolicy::from_code(*code).is_some(),
                    _ => false,
                },
                SetRule::Clock => row.length.fits(value),
                SetRule::Profile => profile(value).is_some(),
                SetRule::Membership => value.is_empty() || row.length.fits(value),
            };
            if allowed { Ok(()) } else { refused }
        }
        PageKind::Directory | PageKind::CurrentCommand | PageKind::Empty | PageKind::Foreign => refused,
    }
}

/// Whether this value lowers a security floor. `current` is the present floor.
pub(crate) fn lowers_floor(kind: ObjectType, id: AttributeId, value: &[u8], current: SecurityMethod) -> bool {
    let is_method = rows::row(kind, id).is_some_and(|row| row.set == SetRule::Method);
    is_method && wanted_method(value) < current
}

/// Returns the method that a value of a method attribute requires. An empty value requires none.
pub(crate) fn wanted_method(value: &[u8]) -> SecurityMethod {
    value.first().copied().and_then(SecurityMethod::from_nibble).unwrap_or(SecurityMethod::NoSec)
}

/// Whether this is the adjustable clock.
pub(crate) fn is_clock(kind: ObjectType, id: AttributeId) -> bool {
    rows::row(kind, id).is_some_and(|row| row.set == SetRule::Clock)
}

/// Checks a new digest profile of a partition. It may change only while the partition is empty,
/// because existing objects keep the digests that they have.
pub(crate) fn check_profile(
    device: &OsdDevice,
    object: ObjectId,
    kind: ObjectType,
    id: AttributeId,
    value: &[u8],
) -> Result<(), OsdFailure> {
    if rows::row(kind, id).is_none_or(|row| row.set != SetRule::Profile) {
        return Ok(());
    }
    let wanted = allowed_profile(device, id, value)?;
    if wanted == device.store.profile(object.partition) {
        return Ok(());
    }
    let first = device.store.list(ObjectId::new(object.partition, 1), 1)?;
    let has_any = first.first().is_some_and(|(found, _)| found.partition == object.partition);
    if has_any { Err(OsdFailure::Attribute(id)) } else { Ok(()) }
}

/// Returns the profile that a value selects, if this device allows it for partitions.
fn allowed_profile(device: &OsdDevice, id: AttributeId, value: &[u8]) -> Result<Option<Profile>, OsdFailure> {
    let wanted = profile(value).ok_or(OsdFailure::Attribute(id))?;
    let broken = wanted.is_some_and(|profile| profile.status() == ProfileStatus::Broken);
    if broken && !device.config.insecure_adhash { Err(OsdFailure::Attribute(id)) } else { Ok(wanted) }
}

/// Returns the digest profile that a value selects, which may be none. Returns `None` for an
/// invalid value.
fn profile(value: &[u8]) -> Option<Option<Profile>> {
    match value {
        [0] => Some(None),
        [code] => Profile::from_code(*code).map(Some),
        // An empty value restores the default.
        [] => Some(Some(Profile::DEFAULT)),
        _ => None,
    }
}

/// Changes attributes of one object.
pub(crate) struct AttributeChange<'a> {
    pub(crate) device: &'a OsdDevice,
    pub(crate) id: ObjectId,
    pub(crate) kind: ObjectType,
}

impl AttributeChange<'_> {
    /// Sets one attribute that passed [`check`].
    pub(crate) fn set(&self, id: AttributeId, value: &[u8]) -> Result<(), OsdFailure> {
        let device = self.device;
        match rows::row(self.kind, id).map(|row| row.set) {
            Some(SetRule::Membership) => membership::set(device, self.id, id, value)?,
            Some(SetRule::Profile) => {
                let wanted = allowed_profile(device, id, value)?;
                // Setting the present profile again is allowed even if there are objects.
                if wanted != device.store.profile(self.id.partition) {
                    match device.store.set_profile(self.id.partition, wanted) {
                        Err(StoreError::Exists(_)) => return Err(OsdFailure::Attribute(id)),
                        done => done?,
                    }
                }
            }
            Some(SetRule::LogicalLength) => {
                data::resize(device, self.id, be(value))?;
            }
            Some(SetRule::Clock) => {
                let now_ms = device.clock.now_ms().map_err(|_| OsdFailure::ClockNotSet)?;
                let offset = device.clock.adjustment(be(value), now_ms).ok_or(OsdFailure::Attribute(id))?;
                catalog::store_clock_offset(&*device.store, offset)?;
            }
            _ => {
                // A cached access time would hide the value that is set now.
                if matches!(id.page.wrapping_sub(rows::base(self.kind)), rows::page::TIMESTAMPS) {
                    device.store_accesses_of(self.id)?;
                }
                catalog::set(&*device.store, self.id, id, value)?;
            }
        }
        device.cache.forget(self.id);
        Ok(())
    }

    /// Reloads cached policies after the last attribute was set.
    pub(crate) fn finish(&self) -> Result<(), OsdFailure> {
        match self.kind {
            ObjectType::Root => self.device.catalog.reload_root(&*self.device.store)?,
            ObjectType::Partition => {
                self.device.catalog.reload_partition(&*self.device.store, self.id.partition)?;
            }
            ObjectType::User | ObjectType::Collection => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: ObjectType, page: u32, number: u32, value: &[u8]) -> bool {
        check(kind, AttributeId::new(page, number), value).is_err()
    }

    #[test]
    fn device_maintained_attributes_are_readonly() {
        use ObjectType::{Partition, Root, User};
        assert!(refused(Root, 0x9000_0001, 3, &[0; 20]));
        assert!(refused(Root, 0x9000_0001, 0x81, &[0; 8]));
        assert!(refused(Partition, 0x3000_0001, 1, &[0; 8]));
        assert!(refused(User, 3, 1, &[0; 6]), "created time");
        assert!(refused(User, 0, 1, &[0; 40]), "directory");
        assert!(refused(User, 1, 0, &[0; 40]), "identification of a standard page");
        assert!(refused(User, 0xFFFF_FFFE, 4, &[0; 8]), "current command");
        assert!(refused(User, 0x80, 1, b"x"), "reserved page");
        assert!(refused(User, 0x3001_0000, 1, b"x"), "page of another type");
        assert!(refused(User, 0xFFFF_FFFF, 1, b"x"));
        assert!(refused(User, 0x1_0000, 0xFFFF_FFFF, b"x"));
        assert!(refused(User, rows::INTERNAL, 1, b"x"));
    }

    #[test]
    fn lengths_and_ranges_are_those_of_the_rows() {
        use ObjectType::{Partition, User};
        assert!(refused(User, 1, 0x82, &[0; 7]));
        assert!(refused(User, 1, 0x82, &[]));
        assert!(!refused(User, 1, 0x82, &[0; 8]));
        assert!(refused(Partition, 0x3000_0005, 1, &[4]));
        assert!(!refused(Partition, 0x3000_0005, 1, &[3]));
        assert!(refused(Partition, 0x3000_0005, 2, &[0, 0, 0, 0, 0x4E, 0x21]));
        assert!(!refused(Partition, 0x3000_0005, 2, &[0, 0, 0, 0, 0x4E, 0x20]));
        assert!(refused(User, 0x1_0000, 1, &vec![0; MAX_ATTRIBUTE_LENGTH + 1]));
        assert!(!refused(User, 0x1_0000, 1, &vec![0; MAX_ATTRIBUTE_LENGTH]));
        assert!(refused(User, 0x1_0000, 0, b"short"));
        assert!(!refused(User, 0x1_0000, 0, &[b' '; 40]));
    }

    #[test]
    fn function_attributes_accept_only_valid_values() {
        use ObjectType::{Partition, Root, User};
        assert!(!refused(User, 0xF002, 1, &[4]) && !refused(User, 0xF002, 1, &[]));
        assert!(refused(User, 0xF002, 1, &[5]) && refused(User, 0xF002, 1, &[1, 1]));
        assert!(!refused(User, 0xF002, 2, &[0, 1, 0, 0]) && refused(User, 0xF002, 3, &[0, 1, 0]));
        assert!(refused(User, 0xF002, 4, b"\xFF") && refused(User, 0xF002, 4, &[b'1'; 129]));
        assert!(refused(User, 0xF002, 6, &[0; 31]) && refused(User, 0xF002, 7, &[0; 63]));
        assert!(!refused(User, 0xF002, 8, &[b' '; 16384]) && refused(User, 0xF002, 8, &[b' '; 16385]));
        assert!(refused(User, 0xF002, 9, &[0; 33]) && refused(User, 0xF002, 10, &[0]));
        assert!(!refused(Partition, 0x3000_F002, 1, &[2]) && refused(Partition, 0x3000_F002, 1, &[3]));
        assert!(!refused(Partition, 0x3000_F002, 0x20FF, &[0; 32]));
        assert!(refused(Partition, 0x3000_F002, 0x2100, &[0; 32]));
        assert!(refused(Root, 0x9000_F002, 1, &[0; 11]));
    }

    #[test]
    fn weaker_method_or_removal_lowers_floor() {
        let id = AttributeId::new(0x3000_0005, 1);
        let lowers = |value: &[u8]| lowers_floor(ObjectType::Partition, id, value, SecurityMethod::CmdRsp);
        assert!(lowers(&[0]) && lowers(&[1]) && lowers(&[]));
        assert!(!lowers(&[2]) && !lowers(&[3]));
    }
}
