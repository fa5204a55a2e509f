//! OBJECT STRUCTURE CHECK of a partition or of the whole device.
//!
//! Does: verify every data block against its checksum and stored digest, and every index record;
//! record findings in the Error Recovery attributes.
//! Does not: repair; rewriting the damaged blocks does.
//! Contract: it locks one object at a time and reads at most one piece under the lock, so other
//! commands wait no longer than that. One check runs at a time. Its authority ends with its key:
//! after SET KEY has answered, it reads at most one more piece and records nothing. Damage that is
//! gone is cleared.
//! Truth: docs/design/t10-osd.md 1.10, 3.5 (R+6, P+6, U+6); docs/standards/device.md.

use sealstone_osd::{ObjectId, ObjectType};

use super::data::partition_of;
use super::{CommandResult, CommandRun};
use crate::catalog::successor;
use crate::damage::{Damage, Examination, ExamineStep, RecordResult, store_contained};
use crate::failure::OsdFailure;
use crate::locks::LockScope;

/// Objects per step.
const STEP: usize = 256;

/// OBJECT STRUCTURE CHECK of a partition, or of the root and all partitions.
pub(crate) fn check(run: &CommandRun<'_>, object: ObjectId) -> Result<CommandResult, OsdFailure> {
    let device = run.device;
    let _only_one = device.checking.try_lock().ok_or(OsdFailure::PartitionBusy)?;
    let partitions = if object.is_root() {
        device.catalog.partition_ids(0, usize::MAX)
    } else {
        partition_of(device, object)?;
        vec![object.partition]
    };
    let mut damaged = 0;
    for partition in partitions {
        damaged += u64::from(check_partition(run, partition)?);
    }
    if object.is_root() {
        check_object(run, object)?;
        let _change = device.locks.acquire(LockScope::Change(object));
        check_authority(run)?;
        store_contained(&*device.store, object, ObjectType::Root, damaged, run.now_ms)?;
    }
    Ok(CommandResult::of(object))
}

/// Checks that the command may still continue. Call it under a lock, which SET KEY waits for.
fn check_authority(run: &CommandRun<'_>) -> Result<(), OsdFailure> {
    run.steps.authority().map_err(|_| OsdFailure::KeysChanged)
}

/// Checks a partition and returns whether anything in it is damaged. Returns false if it was
/// removed meanwhile.
fn check_partition(run: &CommandRun<'_>, partition: u64) -> Result<bool, OsdFailure> {
    let (device, now_ms) = (run.device, run.now_ms);
    let mut damaged = 0u64;
    let mut from = ObjectId::new(partition, 1);
    let object = ObjectId::of_partition(partition);
    loop {
        let found = {
            let _look = device.locks.acquire(LockScope::Look(object));
            if device.catalog.partition(partition).is_none() {
                return Ok(false);
            }
            device.store.list_known(from, STEP)?
        };
        let last = found.last().map(|(id, _)| *id);
        let whole = found.len() == STEP;
        for (id, _) in found.into_iter().filter(|(id, _)| id.partition == partition) {
            damaged += u64::from(check_object(run, id)?);
        }
        match last.and_then(successor) {
            Some(next) if whole && next.partition == partition => from = next,
            _ => break,
        }
    }
    let own = check_object(run, object)?;
    let _change = device.locks.acquire(LockScope::Change(object));
    check_authority(run)?;
    if device.catalog.partition(partition).is_none() {
        return Ok(false);
    }
    store_contained(&*device.store, object, ObjectType::Partition, damaged, now_ms)?;
    Ok(own || damaged > 0)
}

/// Reads all of an object, records the findings, and returns whether it is damaged.
fn check_object(run: &CommandRun<'_>, id: ObjectId) -> Result<bool, OsdFailure> {
    let (device, now_ms) = (run.device, run.now_ms);
    let examiner = device.examiner();
    let mut examination = Examination::of(id);
    let found = loop {
        {
            let _look = device.locks.acquire(LockScope::Look(id));
            check_authority(run)?;
        }
        match examiner.step(&mut examination)? {
            ExamineStep::More(_) => {}
            ExamineStep::End(_) => break examination.found,
            ExamineStep::Gone => break Damage::default(),
        }
    };
    match device.damaged.settle(examiner, id, &found, now_ms)? {
        RecordResult::Gone => Ok(false),
        RecordResult::Same | RecordResult::Changed if found == Damage::default() => Ok(false),
        // A write may have intervened, so the recorded state counts.
        RecordResult::Same | RecordResult::Changed => {
            Ok(!crate::damage::known(&*device.store, id)?.is_none())
        }
    }
}
