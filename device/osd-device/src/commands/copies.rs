//! COPY USER OBJECTS: a new user object with the bytes of another one, and with its attributes if
//! requested.
//!
//! Does: share the blocks of the source without copying data, within the quotas of the destination.
//! Does not: check permissions; the extension capability for the source was checked before
//! (`source`).
//! Contract: the copy is a point-in-time copy of the source, so FREEZE and TIME OF DUPLICATION
//! change nothing. Access control attributes are not copied: the copy gets those of a new object.
//! Truth: docs/design/t10-osd.md 1.8 (copy source); docs/standards/device.md.

use sealstone_osd::ObjectId;
use sealstone_osd::cdb::{CopyObjects, pointer};

use super::data::{partition_of, user_object};
use super::duplicates::{MEMBERSHIPS, copy_attributes, is_authority, is_own, method};
use super::objects::{make, unmake};
use super::{CommandResult, CommandRun, ObjectEffect};
use crate::failure::{self, OsdFailure};

/// TIME OF DUPLICATION: default, and do not care. Both mean the time of the copy.
const TIMES: [u8; 2] = [0x0, 0xF];

/// COPY USER OBJECTS.
pub(crate) fn copy(run: &CommandRun<'_>, copy: &CopyObjects) -> Result<CommandResult, OsdFailure> {
    let device = run.device;
    let source_error = || OsdFailure::Field(pointer::CONTINUATION);
    let source = run.segment.copy_source.ok_or_else(source_error)?;
    method(copy.method)?;
    if copy.immediate {
        return Err(OsdFailure::Field(pointer::SPECIFIC_BITS));
    }
    if !TIMES.contains(&source.time) {
        return Err(source_error());
    }
    let from = source.object;
    if from == copy.object {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    let stat = match partition_of(device, from).and_then(|_| user_object(device, from)) {
        // The source is named in the segment, not in the CDB.
        Err(OsdFailure::Field(_)) => return Err(source_error()),
        Err(OsdFailure::Store(sealstone_store::StoreError::NotFound(_))) => return Err(source_error()),
        stat => stat?,
    };
    let created = make(device, run.now_ms, copy.object, 1)?;
    let to = created.last().copied().unwrap_or(copy.object);
    match fill(run, from, to, stat.length, stat.used_bytes, source.attributes) {
        Ok(()) => Ok(CommandResult {
            subjects: created,
            effect: ObjectEffect::DataModified,
            capacity_change: i64::try_from(stat.used_bytes).unwrap_or(i64::MAX),
            ..CommandResult::of(to)
        }),
        Err(failure) => {
            unmake(device, &created);
            Err(failure)
        }
    }
}

fn fill(
    run: &CommandRun<'_>,
    from: ObjectId,
    to: ObjectId,
    length: u64,
    used: u64,
    attributes: bool,
) -> Result<(), OsdFailure> {
    let device = run.device;
    let store = &*device.store;
    if length > device.facts(to)?.max_length {
        return Err(OsdFailure::Quota("maximum object length"));
    }
    let partition = partition_of(device, to)?;
    if !partition.reserve(used) {
        return Err(OsdFailure::Quota("partition capacity"));
    }
    let shared = store.share(from, to);
    let after = store.stat(to).map_or(0, |stat| stat.used_bytes);
    partition.settle(used, 0, after);
    shared?;
    if attributes {
        device.store_accesses_of(from)?;
        copy_attributes(store, from, to, |id| !is_own(id) && !is_authority(id) && id.page != MEMBERSHIPS)?;
        device.cache.forget(to);
    }
    Ok(())
}
