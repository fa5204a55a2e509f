//! Locks for commands on objects, partitions and the device.
//!
//! Does: order commands so that each has a consistent view of an object, a partition or the device.
//! Does not: protect the store's own structures; it does that itself.
//! Contract: locks are acquired in the order partition access, partition, object; several of one
//! level only at once and in the order of the stripes. So there is no deadlock. Every access to a
//! partition shares its access lock; a command with all access locks exclusively is alone on the
//! device.
//! Truth: docs/design/security.md 3.5: a change of the policy access tag returns after all commands
//! admitted under the old tag.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use sealstone_osd::ObjectId;

/// Stripes of partition locks. Ids in the same stripe only wait for each other.
const PARTITION_STRIPES: usize = 64;
/// Stripes of object locks.
const OBJECT_STRIPES: usize = 1024;

/// Lock scope of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockScope {
    /// Reads one object, partition or the root.
    Look(ObjectId),
    /// Changes one object, partition or the root.
    Change(ObjectId),
    /// Adds or removes a user object of this partition. Ids, counts and quotas are decided under
    /// the lock.
    Populate(ObjectId),
    /// Changes collection memberships of a user object. No collection is created or removed
    /// meanwhile.
    Enroll(ObjectId),
    /// Excludes all other commands in this partition.
    Strict(u64),
    /// Excludes all other commands: adds or removes partitions, or formats.
    Whole,
}

/// Access lock of a partition, shared by all commands on it. Each is on its own cache line, since
/// every command takes one.
#[repr(align(64))]
struct AccessLock(RwLock<()>);

/// All locks of a device.
pub(crate) struct ObjectLocks {
    access_locks: Box<[AccessLock]>,
    partitions: Box<[RwLock<()>]>,
    objects: Box<[RwLock<()>]>,
}

/// A shared or exclusive guard.
enum LockGuard<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

/// Guards that [`ObjectLocks::reach`] acquired; innermost are dropped first.
pub(crate) struct LockGuards<'a> {
    _objects: Vec<LockGuard<'a>>,
    _object: Option<LockGuard<'a>>,
    _partition: Option<LockGuard<'a>>,
    _access_lock: Option<LockGuard<'a>>,
    _access_locks: Vec<LockGuard<'a>>,
}

impl ObjectLocks {
    pub(crate) fn new() -> Self {
        let stripes = |count| (0..count).map(|_| RwLock::new(())).collect();
        Self {
            access_locks: (0..PARTITION_STRIPES).map(|_| AccessLock(RwLock::new(()))).collect(),
            partitions: stripes(PARTITION_STRIPES),
            objects: stripes(OBJECT_STRIPES),
        }
    }

    fn access_lock(&self, partition: u64) -> &RwLock<()> {
        &self.access_locks[stripe(partition, PARTITION_STRIPES)].0
    }

    /// Acquires the locks of a scope.
    pub(crate) fn acquire(&self, scope: LockScope) -> LockGuards<'_> {
        let guards_of = |access_lock, partition, object| LockGuards {
            _objects: Vec::new(),
            _object: object,
            _partition: partition,
            _access_lock: access_lock,
            _access_locks: Vec::new(),
        };
        let (id, alone) = match scope {
            LockScope::Whole => {
                let access_locks =
                    self.access_locks.iter().map(|access_lock| alone(&access_lock.0)).collect();
                return LockGuards { _access_locks: access_locks, ..guards_of(None, None, None) };
            }
            LockScope::Strict(partition) => {
                return guards_of(Some(alone(self.access_lock(partition))), None, None);
            }
            LockScope::Populate(id) => {
                let access_lock = shared(self.access_lock(id.partition));
                let partition = alone_of(&self.partitions, id.partition);
                // The object's own lock too: REMOVE must not overtake a READ in progress.
                let object = (id.object != 0).then(|| alone_of(&self.objects, mix(id)));
                return guards_of(Some(access_lock), Some(partition), object);
            }
            LockScope::Enroll(id) => return self.acquire_several(id.partition, false, &[(id, true)]),
            LockScope::Look(id) => (id, false),
            LockScope::Change(id) => (id, true),
        };
        let access_lock = shared(self.access_lock(id.partition));
        let take = |lock| if alone { self::alone(lock) } else { shared(lock) };
        if id.object == 0 {
            let partition = take(&self.partitions[stripe(id.partition, PARTITION_STRIPES)]);
            return guards_of(Some(access_lock), Some(partition), None);
        }
        let object = take(&self.objects[stripe(mix(id), OBJECT_STRIPES)]);
        guards_of(Some(access_lock), None, Some(object))
    }

    /// Acquires the locks for a step of a long command: of a partition, exclusively if it adds or
    /// removes objects, and of some objects, of this or other partitions, each shared or
    /// exclusively.
    pub(crate) fn acquire_several(
        &self,
        partition: u64,
        populate: bool,
        objects: &[(ObjectId, bool)],
    ) -> LockGuards<'_> {
        let gate_of = |partition| stripe(partition, PARTITION_STRIPES);
        let mut access_locks = vec![gate_of(partition)];
        access_locks.extend(objects.iter().map(|(id, _)| gate_of(id.partition)));
        access_locks.sort_unstable();
        access_locks.dedup();
        let access_locks =
            access_locks.into_iter().map(|access_lock| shared(&self.access_locks[access_lock].0)).collect();
        let lock = &self.partitions[stripe(partition, PARTITION_STRIPES)];
        let partition = if populate { alone(lock) } else { shared(lock) };
        let mut stripes: Vec<(usize, bool)> =
            objects.iter().map(|&(id, alone)| (stripe(mix(id), OBJECT_STRIPES), !alone)).collect();
        // Of objects in the same stripe, an exclusive one comes first and stands for all.
        stripes.sort_unstable();
        stripes.dedup_by_key(|(stripe, _)| *stripe);
        let hold = |(stripe, look): (usize, bool)| {
            let lock = &self.objects[stripe];
            if look { shared(lock) } else { alone(lock) }
        };
        LockGuards {
            _objects: stripes.into_iter().map(hold).collect(),
            _object: None,
            _partition: Some(partition),
            _access_lock: None,
            _access_locks: access_locks,
        }
    }
}

fn shared(lock: &RwLock<()>) -> LockGuard<'_> {
    LockGuard::Shared { _guard: lock.read() }
}

fn alone(lock: &RwLock<()>) -> LockGuard<'_> {
    LockGuard::Alone { _guard: lock.write() }
}

fn alone_of(locks: &[RwLock<()>], key: u64) -> LockGuard<'_> {
    alone(&locks[stripe(key, locks.len())])
}

fn mix(id: ObjectId) -> u64 {
    id.partition.rotate_left(32) ^ id.object
}

/// Fibonacci hashing spreads neighbouring ids.
fn stripe(key: u64, count: usize) -> usize {
    let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    usize::try_from(spread).map_or(0, |spread| spread % count)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn shared_stripe_takes_strongest_object_lock() {
        let locks = ObjectLocks::new();
        let ids: Vec<_> = (0..4000).map(|object| ObjectId::new(0x10000, object)).collect();
        let mut wanted: Vec<_> = ids.iter().map(|&id| (id, false)).collect();
        wanted.push((ids[7], true));
        let guards = locks.acquire_several(0x10000, false, &wanted);
        assert!(guards._objects.len() <= OBJECT_STRIPES);
        let lock = &locks.objects[stripe(mix(ids[7]), OBJECT_STRIPES)];
        assert!(lock.try_read().is_none(), "locked exclusively");
        let others = locks.objects.iter().filter(|other| !std::ptr::eq(*other, lock));
        assert!(others.into_iter().all(|lock| lock.try_read().is_some() && lock.try_write().is_none()));
        drop(guards);
        assert!(lock.try_write().is_some());
    }

    #[test]
    fn exclusive_partition_lock_leaves_others_accessible() {
        let locks = ObjectLocks::new();
        let (one, other) = (0x10000, 0x10001);
        assert_ne!(stripe(one, PARTITION_STRIPES), stripe(other, PARTITION_STRIPES));
        let strict = locks.acquire(LockScope::Strict(one));
        for reach in [
            LockScope::Change(ObjectId::new(other, 7)),
            LockScope::Populate(ObjectId::new(other, 7)),
            LockScope::Strict(other),
            LockScope::Look(ObjectId::ROOT),
        ] {
            drop(locks.acquire(reach));
        }
        assert!(locks.access_lock(one).try_read().is_none(), "no access to it");
        drop(strict);
        // A copy between partitions needs both access locks.
        let copy = locks.acquire_several(other, true, &[(ObjectId::new(one, 5), false)]);
        assert!(
            locks.access_lock(one).try_write().is_none() && locks.access_lock(other).try_write().is_none()
        );
        drop(copy);
        let _whole = locks.acquire(LockScope::Whole);
        assert!(locks.access_locks.iter().all(|access_lock| access_lock.0.try_read().is_none()));
    }

    #[test]
    fn change_lock_waits_for_readers() {
        let locks = ObjectLocks::new();
        let id = ObjectId::new(0x10000, 0x10000);
        let steps = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let look = locks.acquire(LockScope::Look(id));
            let _second = locks.acquire(LockScope::Look(id));
            scope.spawn(|| {
                let _change = locks.acquire(LockScope::Change(id));
                steps.fetch_add(1, Ordering::SeqCst);
            });
            scope.spawn(|| {
                let _whole = locks.acquire(LockScope::Whole);
                steps.fetch_add(1, Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert_eq!(steps.load(Ordering::SeqCst), 0);
            drop(look);
        });
        assert_eq!(steps.load(Ordering::SeqCst), 2);
    }
}
