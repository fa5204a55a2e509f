//! Who works on all of a partition's contents, and who may go on meanwhile.
//!
//! Does: keep changes out of a partition that is duplicated, and everybody out of one that is replaced or removed.
//! Does not: order commands on single objects; `locks` does. Contract: taken before `locks`, in one order by everybody
//! who waits. A command on single objects never waits here: it is BUSY, so that no thread of the transport stands
//! still while a million objects are duplicated.
//! Truth: docs/standards/device.md, duplicates.

use std::collections::BTreeSet;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use sealstone_osd::cdb::Command;

use crate::catalog::Catalog;
use crate::commands::Row;
use crate::continued::Continued;

/// Locks of each kind; many, since partitions that fall together are BUSY together.
const STRIPES: usize = 1024;

/// What a command needs of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nothing, or it locks what it looks at step by step.
    Nothing,
    /// Looks at something in a partition.
    Look(u64),
    /// Changes something in a partition.
    Change(u64),
    /// Looks at something in the first, changes something in the second.
    Copy(u64, u64),
    /// Nothing changes in the first, nobody is in the second.
    Duplicate(u64, Option<u64>),
    /// Nobody is anywhere.
    Everything,
}

/// Somebody else works on all of the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken;

impl Claim {
    /// What a command needs; `sets`: it sets attributes of what it would only look at.
    pub(crate) fn of(
        command: &Command,
        row: &Row,
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

/// The locks of a device's contents.
pub(crate) struct Contents {
    /// Shared by those who look into a partition; alone for who replaces all of it.
    looking: Box<[RwLock<()>]>,
    /// Shared by those who change something in a partition; alone for who needs it at rest.
    changing: Box<[RwLock<()>]>,
}

/// Keeps what was claimed.
pub(crate) struct Claimed<'a> {
    _shared: [Option<RwLockReadGuard<'a, ()>>; 2],
    _alone: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Contents {
    pub(crate) fn new() -> Self {
        let stripes = || (0..STRIPES).map(|_| RwLock::new(())).collect();
        Self { looking: stripes(), changing: stripes() }
    }

    /// Takes what a command needs. Who needs contents alone waits for those who are in them.
    ///
    /// # Errors
    /// [`Taken`], at once, for a command on single objects.
    pub(crate) fn claim(&self, claim: Claim) -> Result<Claimed<'_>, Taken> {
        let shared = |first, second| Claimed { _shared: [first, second], _alone: Vec::new() };
        Ok(match claim {
            Claim::Nothing => shared(None, None),
            Claim::Look(partition) => shared(Some(enter(&self.looking, partition)?), None),
            Claim::Change(partition) => shared(Some(enter(&self.changing, partition)?), None),
            Claim::Copy(from, to) => {
                shared(Some(enter(&self.looking, from)?), Some(enter(&self.changing, to)?))
            }
            Claim::Duplicate(source, target) => self.alone(target.as_slice(), &[Some(source), target]),
            Claim::Everything => {
                let alone = self.looking.iter().chain(&*self.changing).map(RwLock::write).collect();
                Claimed { _shared: [None, None], _alone: alone }
            }
        })
    }

    /// First those to look, then those to change, each in the order of the stripes.
    fn alone(&self, looking: &[u64], changing: &[Option<u64>]) -> Claimed<'_> {
        let numbers =
            |partitions: &mut dyn Iterator<Item = u64>| partitions.map(stripe).collect::<BTreeSet<_>>();
        let looking = numbers(&mut looking.iter().copied());
        let changing = numbers(&mut changing.iter().copied().flatten());
        let mut alone: Vec<_> = looking.into_iter().map(|number| self.looking[number].write()).collect();
        alone.extend(changing.into_iter().map(|number| self.changing[number].write()));
        Claimed { _shared: [None, None], _alone: alone }
    }
}

fn enter(locks: &[RwLock<()>], partition: u64) -> Result<RwLockReadGuard<'_, ()>, Taken> {
    locks[stripe(partition)].try_read().ok_or(Taken)
}

/// Fibonacci hashing: neighbours fall far apart.
fn stripe(partition: u64) -> usize {
    let spread = partition.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    usize::try_from(spread).map_or(0, |spread| spread % STRIPES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_is_duplicated_can_be_read_and_refuses_changes_at_once() {
        let contents = Contents::new();
        let taken = |claim| contents.claim(claim).is_err();
        let duplicate = contents.claim(Claim::Duplicate(1, Some(2))).unwrap();
        assert!(!taken(Claim::Look(1)) && taken(Claim::Change(1)));
        assert!(taken(Claim::Look(2)) && taken(Claim::Change(2)));
        assert!(taken(Claim::Copy(2, 3)) && taken(Claim::Copy(3, 1)));
        assert!(!taken(Claim::Copy(1, 3)) && !taken(Claim::Change(3)) && !taken(Claim::Nothing));
        drop(duplicate);
        let _made = contents.claim(Claim::Duplicate(1, None)).unwrap();
        assert!(!taken(Claim::Look(1)) && taken(Claim::Change(1)) && !taken(Claim::Change(2)));
    }

    #[test]
    fn those_who_wait_keep_one_order() {
        let contents = Contents::new();
        std::thread::scope(|scope| {
            for claim in [
                Claim::Duplicate(1, Some(2)),
                Claim::Duplicate(2, Some(1)),
                Claim::Duplicate(1, Some(1)),
                Claim::Duplicate(2, None),
                Claim::Everything,
            ] {
                let contents = &contents;
                scope.spawn(move || (0..200).for_each(|_| drop(contents.claim(claim).unwrap())));
            }
        });
    }
}
