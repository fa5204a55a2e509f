//! Estimates the cost of a command before it is parsed, so that the transport knows where to run
//! it.
//!
//! Does: read a few unchecked bytes of the CDB. A wrong estimate only costs time.
//! Truth: docs/adr/0003-tokio-with-commands-on-the-connection-task.md,
//! docs/adr/0014-threads-for-long-commands.md.

use sealstone_osd::cdb::{Action, OPERATION_CODE, pointer};
use sealstone_osd::{Generation, ObjectId, SecurityMethod, capability, table};
use sealstone_scsi::lu::Cost;

use crate::commands;
use crate::device::OsdDevice;
use crate::digests;

/// FUA, in byte 10 of an OSD CDB.
const FUA: u8 = 0x08;

/// Attribute lists longer than this may take long, in bytes.
const LONG_LIST: u32 = 2048;
/// More objects than this may take long.
const MANY_OBJECTS: u32 = 32;
/// GET/SET CDBFMT of the list format, in byte 11.
const CDBFMT_LIST: u8 = 0x30;
/// LIST_ATTR, in byte 11.
const LIST_ATTR: u8 = 0x40;

/// Offsets in the CDB, in list format: length of the get list and length of the set list.
const LIST_LENGTHS: [usize; 2] = [52, 68];

/// Whether the command has long lists, attributes of many objects, or many objects to create. Uses
/// unchecked bytes: a wrong estimate only costs time.
fn is_long(cdb: &[u8], action: Action) -> bool {
    let number =
        |at: usize| cdb.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
    let bits = cdb.get(usize::from(pointer::SPECIFIC_BITS)).copied().unwrap_or(0);
    let lists = bits & CDBFMT_LIST == CDBFMT_LIST && LIST_LENGTHS.iter().any(|&at| number(at) > LONG_LIST);
    lists
        || match action {
            // The number of objects is the upper half of the word.
            Action::Create => [Generation::Osd1, Generation::Osd2]
                .iter()
                .any(|&generation| number(usize::from(pointer::length(generation))) >> 16 > MANY_OBJECTS),
            Action::List | Action::ListCollection => bits & LIST_ATTR != 0,
            _ => false,
        }
}

/// Check values over fewer bytes than this take less time than a thread switch (about 60 µs).
const HEAVY_BYTES: u64 = 128 * 1024;

/// Mask of the algorithm's slot in its byte of the capability.
const SLOT: u8 = 0x0F;

/// Returns where a command with this CDB should run.
pub(crate) fn of(device: &OsdDevice, cdb: &[u8]) -> Cost {
    if cdb.first() != Some(&OPERATION_CODE) {
        return Cost::Inline;
    }
    let found = service_action(cdb).and_then(table::find);
    let Some((action, generation)) = found.map(|(row, generation)| (row.action, generation)) else {
        return Cost::Inline;
    };
    let Some(row) = commands::row(action) else { return Cost::Inline };
    let fua = cdb.get(usize::from(pointer::OPTIONS)).is_some_and(|options| options & FUA != 0);
    // A command that only sets attributes is rare, so its flush may block here.
    let through = device.config.write_through && row.changes;
    if fua || through || is_long(cdb, action) {
        return if row.cost == Cost::Long { Cost::Long } else { Cost::Blocking };
    }
    match computes_over(cdb, action, generation) {
        bytes if row.cost == Cost::Inline && bytes >= HEAVY_BYTES => match action {
            Action::Read if reads_stored_digests(device, cdb) => row.cost,
            _ => Cost::Heavy(bytes),
        },
        _ => row.cost,
    }
}

/// Returns the service action code.
pub(crate) fn service_action(cdb: &[u8]) -> Option<u16> {
    let at = usize::from(pointer::SERVICE_ACTION);
    cdb.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// Returns a byte of the capability.
fn of_capability(cdb: &[u8], at: u16) -> Option<u8> {
    cdb.get(usize::from(pointer::CAPABILITY) + usize::from(at)).copied()
}

/// Returns the bytes of command data that check values are computed over, regardless of stored
/// digests.
fn computes_over(cdb: &[u8], action: Action, generation: Generation) -> u64 {
    let method = of_capability(cdb, capability::offset::METHOD);
    let moves = matches!(action, Action::Read | Action::Write | Action::Append | Action::CreateAndWrite);
    if !moves || method.and_then(SecurityMethod::from_nibble) != Some(SecurityMethod::AllData) {
        return 0;
    }
    let at = usize::from(pointer::length(generation));
    cdb.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Whether the partition keeps the digests that the check value of a READ covers. Then only the
/// data at both ends is hashed, and units without a digest, such as holes.
fn reads_stored_digests(device: &OsdDevice, cdb: &[u8]) -> bool {
    let number = |at: u16| cdb.get(usize::from(at)..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let slot = of_capability(cdb, capability::offset::KEY_VERSION).map(|byte| byte & SLOT);
    let wanted = slot.and_then(|slot| device.slots.get(slot)).and_then(|algorithm| algorithm.digest());
    let kept = || number(pointer::PARTITION).and_then(|id| digests::kept(device, ObjectId::of_partition(id)));
    wanted.is_some() && wanted == kept() && !has_continuation(cdb)
}

/// Whether there is a continuation segment. Its pieces are covered as they are sent, not as units
/// of the object.
fn has_continuation(cdb: &[u8]) -> bool {
    let at = usize::from(pointer::CONTINUATION);
    cdb.get(at..at + 4).is_some_and(|length| length != [0; 4])
}
