//! Iteration over many objects in steps, for commands on collections and for lists.
//!
//! Does: hold locks for one step at a time, so that other commands can run in between, and check
//! before each step whether the command may continue. Does not: know what is done with the objects.
//! Contract: the caller has no lock. A visited object exists and is still a member. Its lock and
//! that of its collection are held, and the command's authority was checked under them. Memory: the
//! ids of one step.
//! Truth: docs/design/security.md 3.5; docs/standards/osd.md, "Collections".

use std::cell::Cell;

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{GroupScope, StoreError};

use super::collections::{self, Kind};
use super::data::partition_of;
use crate::device::Device;
use crate::failure::Failure;
use crate::locks::{Grasp, Reach};
use crate::report::Refusal;

/// Members per step.
pub(crate) const STEP: usize = 128;

/// Checks whether the command may still continue.
pub(crate) type Authority<'a> = &'a (dyn Fn() -> Result<(), Refusal> + 'a);

/// Step control of a long command.
pub(crate) struct Steps<'a> {
    pub(crate) device: &'a Device,
    /// Whether the command already has all locks that it needs; then steps acquire none.
    held: bool,
    authority: Authority<'a>,
    /// Collection that tracks the progress.
    tracked: Cell<Option<ObjectId>>,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(device: &'a Device, held: bool, authority: Authority<'a>) -> Self {
        Self { device, held, authority, tracked: Cell::new(None) }
    }

    /// Checks whether the command may continue. Call it under a lock.
    pub(crate) fn authority(&self) -> Result<(), Refusal> {
        (self.authority)()
    }

    /// Acquires a lock, unless the command has all of them.
    pub(crate) fn reach(&self, reach: Reach) -> Option<Grasp<'a>> {
        (!self.held).then(|| self.device.locks.reach(reach))
    }

    /// Acquires the locks of several objects, unless the command has all of them.
    fn several(&self, partition: u64, populate: bool, objects: &[(ObjectId, bool)]) -> Option<Grasp<'a>> {
        (!self.held).then(|| self.device.locks.several(partition, populate, objects))
    }

    /// Sets the collection that tracks the progress.
    pub(crate) fn track(&self, collection: Option<ObjectId>) {
        self.tracked.set(collection);
    }
}

/// A collection whose members a command processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// The collection.
    pub(crate) collection: ObjectId,
    pub(crate) kind: Kind,
}

/// Access of a step to its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Reads them.
    Look,
    /// Changes them.
    Change,
    /// Removes them.
    Remove,
}

/// Progress of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Members visited.
    pub(crate) processed: u64,
    /// Members that were removed before they were visited.
    pub(crate) missing: u64,
}

/// Some ids, ascending, and where to continue.
struct Part {
    ids: Vec<u64>,
    next: Option<u64>,
}

impl Pool {
    /// Returns the members of a collection.
    pub(crate) fn of(device: &Device, collection: ObjectId) -> Result<Self, Failure> {
        Ok(Self { collection, kind: collections::kind(device, collection)? })
    }

    /// Returns the number of members.
    pub(crate) fn count(self, device: &Device) -> Result<u64, Failure> {
        match self.kind {
            Kind::Spontaneous => Ok(partition_of(device, self.collection)?.objects()),
            Kind::Linked | Kind::Tracking => Ok(device.store.member_count(self.collection)?),
        }
    }

    fn part(self, device: &Device, from: u64) -> Result<Part, Failure> {
        let partition = self.collection.partition;
        let after = |id: u64| id.checked_add(1);
        match self.kind {
            Kind::Spontaneous => {
                let found = device.store.list(ObjectId::new(partition, from.max(1)), STEP)?;
                let inside = |id: &ObjectId| id.partition == partition;
                let last = found.last().filter(|(id, _)| found.len() == STEP && inside(id));
                let next = last.and_then(|(id, _)| after(id.object));
                let wanted = |(id, kind): &(ObjectId, ObjectType)| inside(id) && *kind == ObjectType::User;
                let ids = found.iter().filter(|one| wanted(one)).map(|(id, _)| id.object).collect();
                Ok(Part { ids, next })
            }
            Kind::Linked | Kind::Tracking => {
                let found = device.store.members(self.collection, from, STEP)?;
                let last = found.last().filter(|_| found.len() == STEP);
                let next = last.and_then(|(id, _)| after(*id));
                Ok(Part { ids: found.into_iter().map(|(id, _)| id).collect(), next })
            }
        }
    }

    fn holds(self, device: &Device, member: u64) -> Result<bool, Failure> {
        match self.kind {
            Kind::Spontaneous => match device.store.stat(ObjectId::new(self.collection.partition, member)) {
                Ok(stat) => Ok(stat.kind == ObjectType::User),
                Err(StoreError::NotFound(_)) => Ok(false),
                Err(error) => Err(error.into()),
            },
            Kind::Linked | Kind::Tracking => Ok(device.store.membership(self.collection, member)?.is_some()),
        }
    }
}

/// Visits all members in ascending order, until `visit` returns false.
pub(crate) fn walk(
    steps: &Steps<'_>,
    pool: Pool,
    hold: Hold,
    tally: &Cell<Tally>,
    mut visit: impl FnMut(ObjectId) -> Result<bool, Refusal>,
) -> Result<(), Refusal> {
    let device = steps.device;
    let partition = pool.collection.partition;
    // Objects created meanwhile are skipped, so that a stream of new objects cannot keep a command
    // running.
    let last = match pool.kind {
        Kind::Spontaneous => match partition_of(device, pool.collection)?.next_object() {
            u64::MAX => u64::MAX,
            next => next.saturating_sub(1),
        },
        Kind::Linked | Kind::Tracking => u64::MAX,
    };
    let mut next = Some(0);
    while let Some(from) = next {
        let part = {
            let _grasp = steps.reach(Reach::Look(pool.collection));
            pool.part(device, from)?
        };
        next = part.next.filter(|&next| next <= last);
        let alone = hold != Hold::Look;
        let mut objects = vec![(pool.collection, false)];
        objects.extend(part.ids.iter().map(|&id| (ObjectId::new(partition, id), alone)));
        // The collection that is filled: the authority is checked under its lock too.
        objects.extend(steps.tracked.get().map(|filled| (filled, false)));
        let _grasp = steps.several(partition, hold == Hold::Remove, &objects);
        steps.authority()?;
        let scope = alone.then(|| device.store.begin());
        let mut continues = true;
        for id in part.ids.into_iter().filter(|&id| id <= last) {
            let mut so_far = tally.get();
            if pool.holds(device, id)? {
                so_far.processed += 1;
                continues = visit(ObjectId::new(partition, id))?;
            } else {
                so_far.missing += 1;
            }
            tally.set(so_far);
            if !continues {
                break;
            }
        }
        scope.map_or(Ok(()), GroupScope::end)?;
        if !continues {
            return Ok(());
        }
        if let Some(collection) = steps.tracked.get() {
            device.tracking.note(collection, tally.get());
        }
    }
    Ok(())
}
