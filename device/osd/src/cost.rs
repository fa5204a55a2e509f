//! What a command costs, before it is looked at: where the transport runs it.
//!
//! Does: judge by a few bytes of the CDB that nothing has checked yet. A wrong guess costs time
//! alone. Truth: docs/adr/0003-tokio-with-commands-on-the-connection-task.md,
//! docs/adr/0014-threads-for-long-commands.md.

use sealstone_osd::cdb::{Action, OPERATION_CODE, pointer};
use sealstone_osd::{Generation, ObjectId, SecurityMethod, capability, table};
use sealstone_scsi::lu::Cost;

use crate::commands;
use crate::device::Device;
use crate::digests;

/// FUA, in byte 10 of an OSD CDB.
const FUA: u8 = 0x08;

/// Attribute lists longer than this may take a while, bytes.
const LONG_LIST: u32 = 2048;
/// More objects than this may take a while.
const MANY_OBJECTS: u32 = 32;
/// GET/SET CDBFMT of the list format, in byte 11.
const CDBFMT_LIST: u8 = 0x30;
/// LIST_ATTR, in byte 11.
const LIST_ATTR: u8 = 0x40;

/// Bytes of the CDB, in list format: lengths of the get list and of the set list.
const LIST_LENGTHS: [usize; 2] = [52, 68];

/// Does it bring long lists, attributes of many objects, or many objects to make? Judged by a few bytes that nothing
/// has checked yet: a wrong guess costs time alone.
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

/// Check values over fewer bytes than this take no longer than a change of threads is worth: some 60 µs, bytes.
const HEAVY_BYTES: u64 = 128 * 1024;

/// The algorithm's slot, in its byte of the capability.
const SLOT: u8 = 0x0F;

/// Where the command of this CDB runs.
pub(crate) fn of(device: &Device, cdb: &[u8]) -> Cost {
    if cdb.first() != Some(&OPERATION_CODE) {
        return Cost::Inline;
    }
    let found = service_action(cdb).and_then(table::find);
    let Some((action, generation)) = found.map(|(row, generation)| (row.action, generation)) else {
        return Cost::Inline;
    };
    let Some(row) = commands::row(action) else { return Cost::Inline };
    let fua = cdb.get(usize::from(pointer::OPTIONS)).is_some_and(|options| options & FUA != 0);
    // A command without a change of its own may set attributes; it is rare, and its flush then blocks here.
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

/// The code of the service action.
pub(crate) fn service_action(cdb: &[u8]) -> Option<u16> {
    let at = usize::from(pointer::SERVICE_ACTION);
    cdb.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// A byte of the capability.
fn of_capability(cdb: &[u8], at: u16) -> Option<u8> {
    cdb.get(usize::from(pointer::CAPABILITY) + usize::from(at)).copied()
}

/// Bytes of command data that check values are computed over, unless their digests are stored.
fn computes_over(cdb: &[u8], action: Action, generation: Generation) -> u64 {
    let method = of_capability(cdb, capability::offset::METHOD);
    let moves = matches!(action, Action::Read | Action::Write | Action::Append | Action::CreateAndWrite);
    if !moves || method.and_then(SecurityMethod::from_nibble) != Some(SecurityMethod::AllData) {
        return 0;
    }
    let at = usize::from(pointer::length(generation));
    cdb.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Does the partition keep the digests that the check value of a READ is over? Then all that is computed over the data is
/// at its two ends; units that have no digest, as holes, are hashed all the same.
fn reads_stored_digests(device: &Device, cdb: &[u8]) -> bool {
    let number = |at: u16| cdb.get(usize::from(at)..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let slot = of_capability(cdb, capability::offset::KEY_VERSION).map(|byte| byte & SLOT);
    let wanted = slot.and_then(|slot| device.slots.get(slot)).and_then(|algorithm| algorithm.digest());
    let kept = || number(pointer::PARTITION).and_then(|id| digests::kept(device, ObjectId::of_partition(id)));
    wanted.is_some() && wanted == kept() && !has_continuation(cdb)
}

/// Is there a continuation segment? Its pieces are covered as they are sent, not as units of the object.
fn has_continuation(cdb: &[u8]) -> bool {
    let at = usize::from(pointer::CONTINUATION);
    cdb.get(at..at + 4).is_some_and(|length| length != [0; 4])
}
