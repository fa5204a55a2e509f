//! Iteration over many objects in steps, for commands on collections and for lists.
//!
//! Does: hold locks for one step at a time, so that other commands can run in between, and check
//! before each step whether the command may continue.
//! Does not: know what is done with the objects.
//! Contract: the caller has no lock. A visited object exists and is still a member. Its lock and
//! that of its collection are held, and the command's authority was checked under them. Memory: the
//! ids of one step.
//! Truth: docs/design/security.md 3.5; docs/standards/osd.md, "Collections".

use std::cell::Cell;

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{GroupScope, StoreError};

use super::collections::{self, CollectionKind};
use super::data::partition_of;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::locks::{LockGuards, LockScope};
use crate::report::OsdRefusal;
use crate::running::WalkProgress;

/// Members per step.
pub(crate) const STEP: usize = 128;

/// Checks whether the command may still continue.
pub(crate) type AuthorityCheck<'a> = &'a (dyn Fn() -> Result<(), OsdRefusal> + 'a);

/// Step control of a long command.
pub(crate) struct StepControl<'a> {
    pub(crate) device: &'a OsdDevice,
    /// Whether the command already has all locks that it needs; then steps acquire none.
    held: bool,
    authority: AuthorityCheck<'a>,
    /// Collection that tracks the progress.
    tracked: Cell<Option<ObjectId>>,
}

impl<'a> StepControl<'a> {
    pub(crate) fn new(device: &'a OsdDevice, held: bool, authority: AuthorityCheck<'a>) -> Self {
        Self { device, held, authority, tracked: Cell::new(None) }
    }

    /// Checks whether the command may continue. Call it under a lock.
    pub(crate) fn authority(&self) -> Result<(), OsdRefusal> {
        (self.authority)()
    }

    /// Acquires a lock, unless the command has all of them.
    pub(crate) fn acquire(&self, scope: LockScope) -> Option<LockGuards<'a>> {
        (!self.held).then(|| self.device.locks.acquire(scope))
    }

    /// Acquires the locks of several objects, unless the command has all of them.
    fn acquire_several(
        &self,
        partition: u64,
        populate: bool,
        objects: &[(ObjectId, bool)],
    ) -> Option<LockGuards<'a>> {
        (!self.held).then(|| self.device.locks.acquire_several(partition, populate, objects))
    }

    /// Sets the collection that tracks the progress.
    pub(crate) fn track(&self, collection: Option<ObjectId>) {
        self.tracked.set(collection);
    }
}

/// A collection whose members a command processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberSet {
    /// The collection.
    pub(crate) collection: ObjectId,
    pub(crate) kind: CollectionKind,
}

/// Access of a step to its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepAccess {
    /// Reads them.
    Look,
    /// Changes them.
    Change,
    /// Removes them.
    Remove,
}

/// Some ids, ascending, and where to continue.
struct IdBatch {
    ids: Vec<u64>,
    next: Option<u64>,
}

impl MemberSet {
    /// Returns the members of a collection.
    pub(crate) fn of(device: &OsdDevice, collection: ObjectId) -> Result<Self, OsdFailure> {
        Ok(Self { collection, kind: collections::kind(device, collection)? })
    }

    /// Returns the number of members.
    pub(crate) fn count(self, device: &OsdDevice) -> Result<u64, OsdFailure> {
        match self.kind {
            CollectionKind::Spontaneous => Ok(partition_of(device, self.collection)?.objects()),
            CollectionKind::Linked | CollectionKind::Tracking => {
                Ok(device.store.member_count(self.collection)?)
            }
        }
    }

    fn part(self, device: &OsdDevice, from: u64) -> Result<IdBatch, OsdFailure> {
        let partition = self.collection.partition;
        let after = |id: u64| id.checked_add(1);
        match self.kind {
            CollectionKind::Spontaneous => {
                let found = device.store.list(ObjectId::new(partition, from.max(1)), STEP)?;
                let inside = |id: &ObjectId| id.partition == partition;
                let last = found.last().filter(|(id, _)| found.len() == STEP && inside(id));
                let next = last.and_then(|(id, _)| after(id.object));
                let wanted = |(id, kind): &(ObjectId, ObjectType)| inside(id) && *kind == ObjectType::User;
                let ids = found.iter().filter(|one| wanted(one)).map(|(id, _)| id.object).collect();
                Ok(IdBatch { ids, next })
            }
            CollectionKind::Linked | CollectionKind::Tracking => {
                let found = device.store.members(self.collection, from, STEP)?;
                let last = found.last().filter(|_| found.len() == STEP);
                let next = last.and_then(|(id, _)| after(*id));
                Ok(IdBatch { ids: found.into_iter().map(|(id, _)| id).collect(), next })
            }
        }
    }

    pub(crate) fn holds(self, device: &OsdDevice, member: u64) -> Result<bool, OsdFailure> {
        match self.kind {
            CollectionKind::Spontaneous => {
                match device.store.stat(ObjectId::new(self.collection.partition, member)) {
                    Ok(stat) => Ok(stat.kind == ObjectType::User),
                    Err(StoreError::NotFound(_)) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            CollectionKind::Linked | CollectionKind::Tracking => {
                Ok(device.store.membership(self.collection, member)?.is_some())
            }
        }
    }
}

/// Visits all members in ascending order, until `visit` returns false.
pub(crate) fn walk(
    steps: &StepControl<'_>,
    pool: MemberSet,
    hold: StepAccess,
    progress: &Cell<WalkProgress>,
    mut visit: impl FnMut(ObjectId) -> Result<bool, OsdRefusal>,
) -> Result<(), OsdRefusal> {
    let device = steps.device;
    let partition = pool.collection.partition;
    // Objects created meanwhile are skipped, so that a stream of new objects cannot keep a command
    // running.
    let last = match pool.kind {
        CollectionKind::Spontaneous => match partition_of(device, pool.collection)?.next_object() {
            u64::MAX => u64::MAX,
            next => next.saturating_sub(1),
        },
        CollectionKind::Linked | CollectionKind::Tracking => u64::MAX,
    };
    let mut next = Some(0);
    while let Some(from) = next {
        let part = {
            let _guards = steps.acquire(LockScope::Look(pool.collection));
            pool.part(device, from)?
        };
        next = part.next.filter(|&next| next <= last);
        let alone = hold != StepAccess::Look;
        let mut objects = vec![(pool.collection, false)];
        objects.extend(part.ids.iter().map(|&id| (ObjectId::new(partition, id), alone)));
        // The collection that is filled: the authority is checked under its lock too.
        objects.extend(steps.tracked.get().map(|filled| (filled, false)));
        let _guards = steps.acquire_several(partition, hold == StepAccess::Remove, &objects);
        steps.authority()?;
        let scope = alone.then(|| device.store.begin());
        let mut continues = true;
        for id in part.ids.into_iter().filter(|&id| id <= last) {
            let mut so_far = progress.get();
            if pool.holds(device, id)? {
                so_far.processed += 1;
                continues = visit(ObjectId::new(partition, id))?;
            } else {
                so_far.missing += 1;
            }
            progress.set(so_far);
            if !continues {
                break;
            }
        }
        scope.map_or(Ok(()), GroupScope::end)?;
        if !continues {
            return Ok(());
        }
        if let Some(collection) = steps.tracked.get() {
            device.running.note(collection, progress.get());
        }
    }
    Ok(())
}
