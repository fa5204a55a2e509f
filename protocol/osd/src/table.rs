//! Every service action as one row: dispatch, checks, documentation and coverage tests use the same
//! rows.
//!
//! Source of truth: `docs/standards/osd.md`, service actions and permissions. The permissions are
//! unverified choices.

use core::fmt;

use crate::cdb::{Action, CdbError, CdbWire, Command};
use crate::{Generation, ObjectType, Permissions};

/// One service action.
pub struct ServiceAction {
    /// Its index in [`SERVICE_ACTIONS`].
    pub action: Action,
    /// The standard's name.
    pub name: &'static str,
    /// Code in OSD-1, if it exists there.
    pub osd1: Option<u16>,
    /// Code in OSD-2.
    pub osd2: Option<u16>,
    /// Whether a device must support it.
    pub support: Support,
    /// Types of object that it can address; [`Command::object_types`] returns those of a command.
    pub objects: &'static [ObjectType],
    /// Permissions the capability must grant; attribute parameters need additional ones.
    pub permissions: Permissions,
    /// Additional permissions when the command acts on everything beneath its object.
    pub deep_permissions: Permissions,
    /// Direction of its command data.
    pub transfer: Transfer,
    /// Meaning of OSD-2 bytes 48–51.
    pub continuation: Continuation,
    /// The bytes that the allowed range of a capability must cover.
    pub bytes: ByteRule,
    pub(crate) read: fn(&CdbWire) -> Result<Command, CdbError>,
}

impl ServiceAction {
    /// Returns its code in `generation`; `None` if it does not exist there.
    #[must_use]
    pub const fn code(&self, generation: Generation) -> Option<u16> {
        generation.select([self.osd1, self.osd2])
    }
}

impl fmt::Debug for ServiceAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Whether a device must have a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Required of every device.
    Mandatory,
    /// A device may omit it.
    Optional,
    /// Only where collections are supported.
    Collections,
}

/// Direction of command data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// No command data.
    None,
    /// To the initiator.
    In,
    /// To the device.
    Out,
    /// Both ways.
    Both,
}

/// The bytes of its user object that a command reads, changes, moves or reveals, and that the
/// allowed range of a capability must therefore cover. Attributes that reveal or set the length
/// have a separate rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRule {
    /// None: neither bytes nor length of an existing user object.
    None,
    /// Those in the CDB or its scatter/gather list; none if the CDB has none.
    Extent,
    /// LENGTH bytes from the logical length on.
    AtEnd,
    /// All from STARTING BYTE on.
    Tail,
    /// All bytes.
    Whole,
}

/// Meaning of OSD-2 bytes 48–51.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation {
    /// Something else: list identifier, seed, map type.
    NotThere,
    /// CDB CONTINUATION LENGTH, which must be 0.
    Refused,
    /// At most one scatter/gather list.
    ScatterGather,
    /// Extension capabilities, if it names a second object.
    Extensions,
    /// Exactly one query list.
    Query,
    /// Exactly one copy source.
    CopySource,
    /// Exactly one list of operations.
    Rewrite,
    /// Exactly one request to run a function or about a job.
    Function,
}

/// Range of all service action codes of OSD.
const CODES: core::ops::Range<u16> = 0x8800..0x9000;
/// A code without a row.
const NO_ROW: u8 = u8::MAX;

/// For each code its row and, in the lowest bit, its generation: every command of a device is
/// looked up, several times.
static BY_CODE: [u8; (CODES.end - CODES.start) as usize] = by_code();

const fn by_code() -> [u8; (CODES.end - CODES.start) as usize] {
    let mut all = [NO_ROW; (CODES.end - CODES.start) as usize];
    let mut row = 0;
    while row < SERVICE_ACTIONS.len() {
        assert!(row < (NO_ROW / 2) as usize, "more rows than a byte takes");
        if let Some(code) = SERVICE_ACTIONS[row].osd1 {
            all[(code - CODES.start) as usize] = (row as u8) << 1;
        }
        if let Some(code) = SERVICE_ACTIONS[row].osd2 {
            all[(code - CODES.start) as usize] = (row as u8) << 1 | 1;
        }
        row += 1;
    }
    all
}

/// Returns the row of a code, with the generation of the code.
#[must_use]
pub fn find(code: u16) -> Option<(&'static ServiceAction, Generation)> {
    let found = *BY_CODE.get(usize::from(code.checked_sub(CODES.start)?))?;
    let row = SERVICE_ACTIONS.get(usize::from(found >> 1))?;
    Some((row, if found & 1 == 0 { Generation::Osd1 } else { Generation::Osd2 }))
}

pub use crate::cdb::SERVICE_ACTIONS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_match_actions_and_codes_are_unique() {
        for (at, row) in SERVICE_ACTIONS.iter().enumerate() {
            assert_eq!(row.action as usize, at, "{}", row.name);
            for generation in [Generation::Osd1, Generation::Osd2] {
                let Some(code) = row.code(generation) else { continue };
                let (found, of) = find(code).unwrap();
                assert_eq!((found.name, of), (row.name, generation));
            }
        }
    }

    #[test]
    fn service_action_code_determines_the_generation() {
        for row in SERVICE_ACTIONS {
            let osd1 = |code: u16| matches!(code, 0x8801..=0x887F | 0x8F7E | 0x8F7F);
            let osd2 = |code: u16| matches!(code, 0x8880..=0x88FF | 0x8F7C | 0x8F7D | 0x8F90 | 0x8F91);
            assert!(row.osd1.is_none_or(osd1) && row.osd2.is_some_and(osd2), "{}", row.name);
            let same = row.osd1.zip(row.osd2).is_none_or(|(one, two)| one + 0x80 == two || two + 2 == one);
            assert!(same, "{}", row.name);
        }
    }

    #[test]
    fn every_row_has_a_permission() {
        assert!(SERVICE_ACTIONS.iter().all(|row| !row.permissions.is_empty() && !row.objects.is_empty()));
        assert_eq!(SERVICE_ACTIONS.len(), 41);
    }

    /// A range restricts user objects alone, and a command on one that transfers data specifies the
    /// bytes.
    #[test]
    fn byte_rules_fit_objects_and_transfers() {
        for row in SERVICE_ACTIONS {
            let user = row.objects.contains(&ObjectType::User);
            assert!(user || row.bytes == ByteRule::None, "{}", row.name);
            let moves = row.permissions.contains(Permissions::READ)
                || row.permissions.contains(Permissions::WRITE)
                || row.permissions.contains(Permissions::APPEND)
                || row.permissions.contains(Permissions::REMOVE);
            assert!(!user || !moves || row.bytes != ByteRule::None, "{}", row.name);
        }
    }

    #[test]
    fn codes_outside_the_table_are_unknown() {
        assert!(
            [0, 0x8800, 0x8804, 0x8809, 0x888D, 0x8F80, 0x8FFF, 0xFFFF]
                .into_iter()
                .all(|code| find(code).is_none())
        );
    }
}
