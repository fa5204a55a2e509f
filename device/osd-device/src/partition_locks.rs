//! Locks for commands on the whole contents of a partition.
//!
//! Does: block changes of a partition that is being duplicated, and all access to one that is being
//! replaced or removed.
//! Does not: order commands on single objects; `locks` does.
//! Contract: acquired before `locks`, in one order by all commands that wait. A command on single
//! objects never waits here: it gets BUSY, so that no transport thread blocks while a million
//! objects are duplicated.
//! Truth: docs/standards/device.md, duplicates.

use std::collections::BTreeSet;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use sealstone_osd::cdb::Command;

use crate::catalog::Catalog;
use crate::commands::ActionRow;
use crate::continued::Continued;

/// Locks of each kind. Partitions that share a stripe are BUSY together.
const STRIPES: usize = 1024;

/// Access of a command to partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartitionUse {
    /// None, or it locks step by step.
    Nothing,
    /// Reads in a partition.
    Look(u64),
    /// Changes in a partition.
    Change(u64),
    /// Reads in the first partition, changes in the second.
    Copy(u64, u64),
    /// No change in the first partition, no access to the second.
    Duplicate(u64, Option<u64>),
    /// No access to any partition.
    Everything,
}

/// Another command has an exclusive claim of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartitionBusy;

impl PartitionUse {
    /// Returns the claim of a command. `sets`: it sets attributes of an object that it otherwise
    /// reads.
    pub(crate) fn of(
        command: &Command,
        row: &ActionRow,
        sets: bool,
        continued: &Continued,
        catalog: &Catalog,
    ) -> Self {
        let object = command.object();
        match command {
            Command::FormatOsd(_) => Self::Everything,
            Command::RemovePartition(remove) => Self::Duplicate(remove.partition, Some(remove.partition)),
            Command::CreateSnapshot(make) | Command::CreateClone(make) => Self::Duplicate(make.source, None),
            Command::RefreshSnapshotOrClone(replace) => {
                let source =
                    catalog.partition(replace.partition).map(|partition| partition.policy().lineage.source);
                Self::Duplicate(source.unwrap_or(replace.source), Some(replace.partition))
            }
            Command::RestorePartition(replace) => Self::Duplicate(replace.source, Some(replace.partition)),
            Command::CreatePartition(_) | Command::ObjectStructureCheck(_) => Self::Nothing,
            Command::CopyUserObjects(_) => match &continued.segment.copy_source {
                Some(source) => Self::Copy(source.object.partition, object.partition),
                None => Self::Change(object.partition),
            },
            // Its matches join a collection.
            Command::Query(query) if query.matches != 0 => Self::Change(object.partition),
            _ if row.changes || sets => Self::Change(object.partition),
            _ => Self::Look(object.partition),
        }
    }
}

/// Partition locks of a device.
pub(crate) struct PartitionLocks {
    /// Shared for any access to a partition; exclusive to replace all of it.
    looking: Box<[RwLock<()>]>,
    /// Shared to change something in a partition; exclusive to block changes.
    changing: Box<[RwLock<()>]>,
}

/// Guards of a claim.
pub(crate) struct PartitionGuards<'a> {
    _shared: [Option<RwLockReadGuard<'a, ()>>; 2],
    _alone: Vec<RwLockWriteGuard<'a, ()>>,
}

impl PartitionLocks {
    pub(crate) fn new() -> Self {
        let stripes = || (0..STRIPES).map(|_| RwLock::new(())).collect();
        Self { looking: stripes(), changing: stripes() }
    }

    /// Acquires a claim. Exclusive claims wait for commands in progress.
    ///
    /// # Errors
    /// [`PartitionBusy`], immediately, for a command on single objects.
    pub(crate) fn acquire(&self, claim: PartitionUse) -> Result<PartitionGuards<'_>, PartitionBusy> {
        let shared = |first, second| PartitionGuards { _shared: [first, second], _alone: Vec::new() };
        Ok(match claim {
            PartitionUse::Nothing => shared(None, None),
            PartitionUse::Look(partition) => shared(Some(enter(&self.looking, partition)?), None),
            PartitionUse::Change(partition) => shared(Some(enter(&self.changing, partition)?), None),
            PartitionUse::Copy(from, to) => {
                shared(Some(enter(&self.looking, from)?), Some(enter(&self.changing, to)?))
            }
            PartitionUse::Duplicate(source, target) => self.alone(target.as_slice(), &[Some(source), target]),
            PartitionUse::Everything => {
                let alone = self.looking.iter().chain(&*self.changing).map(RwLock::write).collect();
                PartitionGuards { _shared: [None, None], _alone: alone }
            }
        })
    }

    /// Acquires exclusive locks: first `looking`, then `changing`, each in the order of the
    /// stripes.
    fn alone(&self, looking: &[u64], changing: &[Option<u64>]) -> PartitionGuards<'_> {
        let numbers =
            |partitions: &mut dyn Iterator<Item = u64>| partitions.map(stripe).collect::<BTreeSet<_>>();
        let looking = numbers(&mut looking.iter().copied());
        let changing = numbers(&mut changing.iter().copied().flatten());
        let mut alone: Vec<_> = looking.into_iter().map(|number| self.looking[number].write()).collect();
        alone.extend(changing.into_iter().map(|number| self.changing[number].write()));
        PartitionGuards { _shared: [None, None], _alone: alone }
    }
}

fn enter(locks: &[RwLock<()>], partition: u64) -> Result<RwLockReadGuard<'_, ()>, PartitionBusy> {
    locks[stripe(partition)].try_read().ok_or(PartitionBusy)
}

/// Fibonacci hashing spreads neighbouring ids.
fn stripe(partition: u64) -> usize {
    let spread = partition.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    usize::try_from(spread).map_or(0, |spread| spread % STRIPES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicated_partition_allows_reads_and_rejects_changes() {
        let contents = PartitionLocks::new();
        let taken = |claim| contents.acquire(claim).is_err();
        let duplicate = contents.acquire(PartitionUse::Duplicate(1, Some(2))).unwrap();
        assert!(!taken(PartitionUse::Look(1)) && taken(PartitionUse::Change(1)));
        assert!(taken(PartitionUse::Look(2)) && taken(PartitionUse::Change(2)));
        assert!(taken(PartitionUse::Copy(2, 3)) && taken(PartitionUse::Copy(3, 1)));
        assert!(
            !taken(PartitionUse::Copy(1, 3))
                && !taken(PartitionUse::Change(3))
                && !taken(PartitionUse::Nothing)
        );
        drop(duplicate);
        let _made = contents.acquire(PartitionUse::Duplicate(1, None)).unwrap();
        assert!(
            !taken(PartitionUse::Look(1))
                && taken(PartitionUse::Change(1))
                && !taken(PartitionUse::Change(2))
        );
    }

    #[test]
    fn exclusive_claims_acquire_in_one_order() {
        let contents = PartitionLocks::new();
        std::thread::scope(|scope| {
            for claim in [
                PartitionUse::Duplicate(1, Some(2)),
                PartitionUse::Duplicate(2, Some(1)),
                PartitionUse::Duplicate(1, Some(1)),
                PartitionUse::Duplicate(2, None),
                PartitionUse::Everything,
            ] {
                let contents = &contents;
                scope.spawn(move || (0..200).for_each(|_| drop(contents.acquire(claim).unwrap())));
            }
        });
    }
}
