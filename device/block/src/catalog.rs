//! Catalogue of the block units of a device, kept in the store itself.
//!
//! Does: keeps one user object per unit in a reserved partition, with a record that describes the
//! unit.
//! Does not: run units.
//! Contract: the partition id is below all ids that OSD commands can create, list or address, so
//! OSD commands cannot reach block units and FORMAT OSD keeps them. A unit is created and removed
//! as a whole: an object without a record is an unfinished unit, which the next start removes. A
//! damaged record makes its unit unavailable and no other one.
//! Truth: docs/adr/0008-block-units-in-a-reserved-partition.md,
//! docs/adr/0092-damaged-records-of-block-units.md; docs/standards/block.md.

use sealstone_block_lazy::{LazyError, LazyVolume};
use sealstone_block_protection::UnitProtection;
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{AttributeId, ObjectStore, StoreError};
use thiserror::Error;

use crate::geometry::{BlockSize, Geometry, SizeError};

/// The partition of block units. T10 reserves ids below 10000h, and OSD commands refuse them.
pub const BLOCK_PARTITION: u64 = 0xB10C;
/// Largest logical unit number of a block unit. Number 0 is the OSD.
pub const LUN_MAX: u16 = 255;
/// Block units of a device.
pub const UNITS_MAX: usize = LUN_MAX as usize;
/// Longest name of a unit, in bytes.
pub const NAME_MAX: usize = 64;

const _: () = assert!(BLOCK_PARTITION < ObjectId::FIRST_ASSIGNABLE);

/// Attributes of a unit's object.
const PAGE: u32 = 0;
const RECORD: AttributeId = AttributeId { page: PAGE, number: 1 };
const RESERVATIONS: AttributeId = AttributeId { page: PAGE, number: 2 };
const MODES: AttributeId = AttributeId { page: PAGE, number: 3 };
const PORTS: AttributeId = AttributeId { page: PAGE, number: 4 };
/// Layout version of the record.
const VERSION: u8 = 1;
const THIN: u8 = 0x01;
const REMOVABLE: u8 = 0x02;
const WRITE_THROUGH: u8 = 0x04;
/// Bytes of the record before the name.
const FIXED: usize = 38;
/// Bytes per write while a unit is fully provisioned.
const FILL: usize = 1 << 20;

/// Why an operation on the units of a device failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// Not a valid unit name.
    #[error("bad name {0:?}: 1 to {NAME_MAX} of a-z, 0-9, '.', '-', '_'")]
    Name(String),
    /// The name is in use.
    #[error("block unit {0} already exists")]
    NameTaken(String),
    /// Not a valid LUN of a block unit.
    #[error("invalid LUN {0}: use 1 to {LUN_MAX}")]
    Lun(u16),
    /// The LUN is in use.
    #[error("LUN {0} is in use")]
    LunTaken(u16),
    /// All LUNs are in use.
    #[error("limit of {UNITS_MAX} block units reached")]
    TooMany,
    /// Not a valid unit size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A fully provisioned unit of this size does not fit.
    #[error("not enough free space: {wanted} bytes requested, {free} free")]
    NoSpace {
        /// Bytes requested.
        wanted: u64,
        /// Bytes free.
        free: u64,
    },
    /// There is no unit of this name.
    #[error("no block unit named {0}")]
    NotFound(String),
    /// The unit cannot be served.
    #[error("block unit {name} is unavailable: {reason}")]
    Unavailable {
        /// Name of the unit.
        name: String,
        /// The damage, and the next step.
        reason: String,
    },
    /// Initiators have registered or reserved the unit.
    #[error("{name} is reserved or registered by {initiators} initiators")]
    Reserved {
        /// Name of the unit.
        name: String,
        /// Number of initiators.
        initiators: usize,
    },
    /// The stored record of the unit is damaged.
    #[error("the record of LUN {0} is damaged")]
    Damaged(u64),
    /// The key of the unit was not replaced.
    #[error("cannot rotate the key of {name}")]
    Rotation {
        /// Name of the unit.
        name: String,
        /// Cause of the failure.
        #[source]
        cause: LazyError,
    },
    /// The store failed.
    #[error("store failed")]
    Store(#[from] StoreError),
}

/// Parameters of a new unit.
#[derive(Clone, Debug)]
pub struct NewUnit {
    /// Name of the unit.
    pub name: String,
    /// Logical unit number. `None` selects the lowest free one.
    pub lun: Option<u16>,
    /// Size in bytes.
    pub bytes: u64,
    /// Size of a logical block.
    pub block: BlockSize,
    /// Whether the unit is thinly provisioned: space is allocated by writes and freed by UNMAP.
    /// Otherwise all space is allocated now.
    pub thin: bool,
    /// Whether initiators may eject and load the medium.
    pub removable: bool,
    /// Whether every write is durable before it is acknowledged. Initiators cannot change that.
    pub write_through: bool,
    /// Least protection of sessions that use the unit.
    pub protection: UnitProtection,
    /// Random bytes that become the serial number.
    pub serial: [u8; 16],
    /// Current time in milliseconds since 1970.
    pub now_ms: u64,
}

impl NewUnit {
    /// Returns the parameters of a thin unit without protection, of the lowest free LUN.
    #[must_use]
    pub fn new(name: &str, block: BlockSize, bytes: u64, serial: [u8; 16]) -> Self {
        Self {
            name: name.to_owned(),
            lun: None,
            bytes,
            block,
            thin: true,
            removable: false,
            write_through: false,
            protection: UnitProtection::NONE,
            serial,
            now_ms: 0,
        }
    }
}

/// Description of an existing unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitDescription {
    /// Logical unit number.
    pub lun: u16,
    /// Name of the unit.
    pub name: String,
    /// Block size and number of blocks.
    pub geometry: Geometry,
    /// Whether the unit is thinly provisioned.
    pub thin: bool,
    /// Whether initiators may eject and load the medium.
    pub removable: bool,
    /// Whether every write is durable before it is acknowledged. Initiators cannot change that.
    pub write_through: bool,
    /// Least protection of sessions that use the unit.
    pub protection: UnitProtection,
    /// Serial number, unique among all units.
    pub serial: [u8; 16],
    /// Creation time in milliseconds since 1970.
    pub created_ms: u64,
}

/// A unit that cannot be served, because a record of it is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedUnit {
    /// Logical unit number.
    pub lun: u16,
    /// Name of the unit; `lun-N` if it cannot be read.
    pub name: String,
    /// The damage, and the next step.
    pub reason: String,
}

impl DamagedUnit {
    /// Returns the unit with a reason that names the next step.
    pub(crate) fn new(lun: u16, name: String, problem: &str) -> Self {
        let reason = format!(
            "{problem}; restore the store from a copy and restart the device, or remove the unit with \
             its data: sealstone block rm {name} --force"
        );
        Self { lun, name, reason }
    }
}

/// The units of a store, by their records.
#[derive(Debug, Default)]
pub(crate) struct UnitRecords {
    pub(crate) units: Vec<UnitDescription>,
    pub(crate) damaged: Vec<DamagedUnit>,
}

/// Why the record of a unit cannot be used, and its name if it can be read.
struct RecordProblem {
    name: Option<String>,
    problem: String,
}

impl From<StoreError> for RecordProblem {
    fn from(error: StoreError) -> Self {
        Self { name: None, problem: format!("its record cannot be read: {}", chain(&error)) }
    }
}

/// Returns an error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

impl UnitDescription {
    /// Returns the serial number as text.
    #[must_use]
    pub fn serial_text(&self) -> String {
        self.serial.iter().map(|byte| format!("{byte:02X}")).collect()
    }

    /// Returns the object that holds the blocks.
    pub(crate) fn object(&self) -> ObjectId {
        object_of(self.lun)
    }

    fn encode(&self) -> Vec<u8> {
        let flags = [(self.thin, THIN), (self.removable, REMOVABLE), (self.write_through, WRITE_THROUGH)];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        let shift = u8::try_from(self.geometry.block().shift()).expect("9 or 12");
        let mut out = vec![VERSION, flags, shift, self.protection.code()];
        out.extend(self.lun.to_be_bytes());
        out.extend(self.geometry.blocks().to_be_bytes());
        out.extend(self.serial);
        out.extend(self.created_ms.to_be_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, name) = bytes.split_first_chunk::<FIXED>()?;
        let [VERSION, flags, shift @ (9 | 12), protection, lun_high, lun_low, rest @ ..] = fixed else {
            return None;
        };
        let (blocks, rest) = rest.split_first_chunk::<8>()?;
        let (serial, created) = rest.split_first_chunk::<16>()?;
        let block = BlockSize::from_bytes(1 << shift)?;
        let bytes = u64::from_be_bytes(*blocks).checked_mul(block.bytes())?;
        let name = std::str::from_utf8(name).ok()?;
        check_name(name).ok()?;
        Some(Self {
            lun: u16::from_be_bytes([*lun_high, *lun_low]),
            name: name.to_owned(),
            geometry: Geometry::new(block, bytes).ok()?,
            thin: flags & THIN != 0,
            removable: flags & REMOVABLE != 0,
            write_through: flags & WRITE_THROUGH != 0,
            // Releases without protection refuse any code but 0, and so any protected unit.
            protection: UnitProtection::from_code(*protection)?,
            serial: *serial,
            created_ms: u64::from_be_bytes(created.try_into().ok()?),
        })
    }
}

fn object_of(lun: u16) -> ObjectId {
    ObjectId::new(BLOCK_PARTITION, u64::from(lun))
}

fn check_name(name: &str) -> Result<(), CatalogError> {
    let fits = !name.is_empty() && name.len() <= NAME_MAX;
    let plain = name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'));
    if fits && plain { Ok(()) } else { Err(CatalogError::Name(name.chars().take(NAME_MAX).collect())) }
}

/// Returns the units of a store, sorted by LUN. Removes unfinished ones.
///
/// # Errors
/// The objects of the units cannot be listed.
pub(crate) fn load(store: &dyn ObjectStore) -> Result<UnitRecords, CatalogError> {
    let (mut units, mut problems) = (Vec::<UnitDescription>::new(), Vec::new());
    for lun in luns(store)? {
        match load_unit(store, object_of(lun)) {
            Ok(Some(unit)) if units.iter().any(|known| known.name == unit.name) => {
                let problem = format!("its record has the name of another unit, {}", unit.name);
                problems.push((lun, RecordProblem { name: None, problem }));
            }
            Ok(Some(unit)) => units.push(unit),
            Ok(None) => {}
            Err(problem) => problems.push((lun, problem)),
        }
    }
    let mut damaged: Vec<DamagedUnit> = Vec::new();
    for (lun, RecordProblem { name, problem }) in problems {
        let mut name = name.unwrap_or_else(|| format!("lun-{lun}"));
        while units.iter().any(|unit| unit.name == name) || damaged.iter().any(|unit| unit.name == name) {
            name.push_str("-damaged");
        }
        damaged.push(DamagedUnit::new(lun, name, &problem));
    }
    Ok(UnitRecords { units, damaged })
}

/// Returns the LUNs of all objects of units, also beyond lost pages of the index.
fn luns(store: &dyn ObjectStore) -> Result<Vec<u16>, StoreError> {
    let found = store.list_known(object_of(1), UNITS_MAX)?;
    let own = found.iter().filter(|(id, _)| id.partition == BLOCK_PARTITION);
    Ok(own.filter_map(|(id, _)| u16::try_from(id.object).ok()).collect())
}

/// Returns the unit of an object; `None` if it was unfinished and is removed.
fn load_unit(store: &dyn ObjectStore, id: ObjectId) -> Result<Option<UnitDescription>, RecordProblem> {
    let Some(record) = store.attribute(id, RECORD)? else {
        if !store.known_damage(id).is_empty() {
            // The record may be what was lost: the blocks must not be removed.
            return Err(RecordProblem { name: None, problem: "its record is lost".to_owned() });
        }
        tracing::warn!(lun = id.object, "removing a block unit whose creation was interrupted");
        if let Err(error) = store.remove(id) {
            // A read-only store still serves the other units.
            tracing::error!(lun = id.object, %error, "cannot remove an unfinished block unit");
        }
        return Ok(None);
    };
    let Some(unit) = UnitDescription::decode(&record).filter(|unit| unit.object() == id) else {
        return Err(undecodable(&record));
    };
    let found = match store.stat(id) {
        Ok(stat) => stat.length,
        Err(error) => return Err(RecordProblem { name: Some(unit.name), ..error.into() }),
    };
    let expected = unit.geometry.bytes();
    if found != expected {
        let problem = format!("its object has {found} bytes instead of {expected}");
        return Err(RecordProblem { name: Some(unit.name), problem });
    }
    Ok(Some(unit))
}

/// Returns why a record was not decoded. A name in its place is used if it is valid.
fn undecodable(record: &[u8]) -> RecordProblem {
    match record.first() {
        Some(&version) if version > VERSION => {
            let problem =
                format!("its record has version {version}, and this program knows version {VERSION}");
            RecordProblem { name: None, problem }
        }
        _ => {
            let name = record.get(FIXED..).and_then(|name| std::str::from_utf8(name).ok());
            let name = name.filter(|name| check_name(name).is_ok()).map(str::to_owned);
            RecordProblem { name, problem: "its record is damaged".to_owned() }
        }
    }
}

/// Creates a unit durably. `taken` has LUN and name of each existing unit, also of unavailable
/// ones.
pub(crate) fn create(
    store: &dyn ObjectStore,
    taken: &[(u16, String)],
    new: NewUnit,
) -> Result<UnitDescription, CatalogError> {
    check_name(&new.name)?;
    let geometry = Geometry::new(new.block, new.bytes)?;
    if taken.iter().any(|(_, name)| *name == new.name) {
        return Err(CatalogError::NameTaken(new.name));
    }
    let is_taken = |lun: u16| taken.iter().any(|(used, _)| *used == lun);
    let lun = match new.lun {
        Some(lun) if !(1..=LUN_MAX).contains(&lun) => return Err(CatalogError::Lun(lun)),
        Some(lun) if is_taken(lun) => return Err(CatalogError::LunTaken(lun)),
        Some(lun) => lun,
        None => (1..=LUN_MAX).find(|lun| !is_taken(*lun)).ok_or(CatalogError::TooMany)?,
    };
    let unit = UnitDescription {
        lun,
        name: new.name,
        geometry,
        thin: new.thin,
        removable: new.removable,
        write_through: new.write_through,
        protection: new.protection,
        serial: new.serial,
        created_ms: new.now_ms,
    };
    let id = unit.object();
    // Of a unit whose removal was interrupted.
    LazyVolume::remove(store, lun)?;
    if unit.thin {
        let scope = store.begin();
        store.create(id, ObjectType::User)?;
        store.resize(id, geometry.bytes())?;
        store.set_attribute(id, RECORD, &unit.encode())?;
        scope.end()?;
    } else {
        let space = store.space();
        let free = space.available;
        if geometry.bytes() > free {
            return Err(CatalogError::NoSpace { wanted: geometry.bytes(), free });
        }
        store.create(id, ObjectType::User)?;
        let provisioned = provision(store, id, geometry.bytes())
            .and_then(|()| store.set_attribute(id, RECORD, &unit.encode()));
        if let Err(error) = provisioned {
            // Without a record the next start would remove the object, but its space is needed now.
            store.remove(id)?;
            return Err(error.into());
        }
    }
    store.flush()?;
    Ok(unit)
}

/// Allocates all space of a unit by writing zeros.
fn provision(store: &dyn ObjectStore, id: ObjectId, bytes: u64) -> Result<(), StoreError> {
    let zeros = vec![0; FILL];
    let mut at = 0;
    while at < bytes {
        let length = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(FILL);
        store.write(id, at, &zeros[..length])?;
        at += length as u64;
    }
    Ok(())
}

/// Removes a unit durably.
pub(crate) fn remove(store: &dyn ObjectStore, lun: u16) -> Result<(), StoreError> {
    store.remove(object_of(lun))?;
    LazyVolume::remove(store, lun)?;
    store.flush()
}

/// Returns the bytes of the store that a unit uses.
pub(crate) fn used_bytes(store: &dyn ObjectStore, lun: u16) -> Result<u64, StoreError> {
    Ok(store.stat(object_of(lun))?.used_bytes)
}

/// Stores registrations that survive a restart. An empty record removes them.
pub(crate) fn store_reservations(
    store: &dyn ObjectStore,
    id: ObjectId,
    record: &[u8],
) -> Result<(), StoreError> {
    store.set_attribute(id, RESERVATIONS, record)
}

/// Returns the record that [`store_reservations`] stored.
pub(crate) fn load_reservations(
    store: &dyn ObjectStore,
    id: ObjectId,
) -> Result<Option<Vec<u8>>, StoreError> {
    store.attribute(id, RESERVATIONS)
}

/// Stores the description of a unit durably.
pub(crate) fn store_description(store: &dyn ObjectStore, unit: &UnitDescription) -> Result<(), StoreError> {
    store.set_attribute(unit.object(), RECORD, &unit.encode())?;
    store.flush()
}

/// Stores the saved values of the mode pages.
pub(crate) fn store_modes(store: &dyn ObjectStore, id: ObjectId, record: &[u8]) -> Result<(), StoreError> {
    store.set_attribute(id, MODES, record)
}

/// Returns the record that [`store_modes`] stored.
pub(crate) fn load_modes(store: &dyn ObjectStore, id: ObjectId) -> Result<Option<Vec<u8>>, StoreError> {
    store.attribute(id, MODES)
}

/// Stores the table of initiator ports; an empty record removes it.
pub(crate) fn store_ports(store: &dyn ObjectStore, id: ObjectId, record: &[u8]) -> Result<(), StoreError> {
    store.set_attribute(id, PORTS, record)
}

/// Returns the record that [`store_ports`] stored.
pub(crate) fn load_ports(store: &dyn ObjectStore, id: ObjectId) -> Result<Option<Vec<u8>>, StoreError> {
    store.attribute(id, PORTS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn unit_records_round_trip(name in "[a-z0-9._-]{1,64}", lun in 1..=LUN_MAX, blocks in 1..1_u64 << 30, flags: (bool, bool, bool, bool), protection: u8) {
            let block = if flags.0 { BlockSize::B512 } else { BlockSize::B4096 };
            let unit = UnitDescription {
                lun,
                name,
                geometry: Geometry::new(block, blocks * block.bytes()).unwrap(),
                thin: flags.1,
                removable: flags.2,
                write_through: flags.3,
                protection: UnitProtection::from_code(protection).unwrap_or(UnitProtection::NONE),
                serial: [7; 16],
                created_ms: blocks,
            };
            prop_assert_eq!(UnitDescription::decode(&unit.encode()), Some(unit));
        }

        #[test]
        fn arbitrary_records_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut versioned = vec![VERSION, 0, 9, 0];
            versioned.extend(&bytes);
            let _ = (UnitDescription::decode(&bytes), UnitDescription::decode(&versioned));
        }
    }
}
