//! Who may touch what at the same time.
//!
//! Does: order commands so that each sees an object, a partition or the device at rest.
//! Does not: protect the store's own structures; it does that itself.
//! Contract: always taken in this order: device, partition, object; never two of one level. So no deadlock.
//! Truth: docs/design/security.md 3.5: a change of the policy access tag returns after all admitted under the old one.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use sealstone_osd::ObjectId;

/// Locks for partitions; ids that fall together only wait for each other.
const PARTITION_STRIPES: usize = 64;
/// Locks for objects.
const OBJECT_STRIPES: usize = 1024;

/// What a command is about to do to the thing it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Reads one object, partition or the root.
    Look(ObjectId),
    /// Changes one object, partition or the root.
    Change(ObjectId),
    /// Adds or removes a user object of this partition: ids, counts and quotas are decided under the lock.
    Populate(ObjectId),
    /// Adds or removes partitions, or formats: nothing else runs.
    Whole,
}

/// All locks of a device.
pub(crate) struct Locks {
    device: RwLock<()>,
    partitions: Box<[RwLock<()>]>,
    objects: Box<[RwLock<()>]>,
}

/// Either kind of guard on one level.
enum Held<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

/// Keeps what [`Locks::reach`] took; dropped innermost first.
pub(crate) struct Grasp<'a> {
    _object: Option<Held<'a>>,
    _partition: Option<Held<'a>>,
    _device: Held<'a>,
}

impl Locks {
    pub(crate) fn new() -> Self {
        let stripes = |count| (0..count).map(|_| RwLock::new(())).collect();
        Self {
            device: RwLock::new(()),
            partitions: stripes(PARTITION_STRIPES),
            objects: stripes(OBJECT_STRIPES),
        }
    }

    /// Waits until the command may go on.
    pub(crate) fn reach(&self, reach: Reach) -> Grasp<'_> {
        let (id, alone) = match reach {
            Reach::Whole => return Grasp { _object: None, _partition: None, _device: alone(&self.device) },
            Reach::Populate(id) => {
                let device = shared(&self.device);
                let partition = alone_of(&self.partitions, id.partition);
                // The object's own lock too: REMOVE must not overtake a READ under way.
                let object = (id.object != 0).then(|| alone_of(&self.objects, mix(id)));
                return Grasp { _object: object, _partition: Some(partition), _device: device };
            }
            Reach::Look(id) => (id, false),
            Reach::Change(id) => (id, true),
        };
        let device = shared(&self.device);
        if id.object == 0 {
            let lock = &self.partitions[stripe(id.partition, PARTITION_STRIPES)];
            let partition = if alone { self::alone(lock) } else { shared(lock) };
            return Grasp { _object: None, _partition: Some(partition), _device: device };
        }
        let lock = &self.objects[stripe(mix(id), OBJECT_STRIPES)];
        let object = if alone { self::alone(lock) } else { shared(lock) };
        Grasp { _object: Some(object), _partition: None, _device: device }
    }
}

fn shared(lock: &RwLock<()>) -> Held<'_> {
    Held::Shared { _guard: lock.read() }
}

fn alone(lock: &RwLock<()>) -> Held<'_> {
    Held::Alone { _guard: lock.write() }
}

fn alone_of(locks: &[RwLock<()>], key: u64) -> Held<'_> {
    alone(&locks[stripe(key, locks.len())])
}

fn mix(id: ObjectId) -> u64 {
    id.partition.rotate_left(32) ^ id.object
}

/// Fibonacci hashing: neighbours fall far apart.
fn stripe(key: u64, count: usize) -> usize {
    let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    usize::try_from(spread).map_or(0, |spread| spread % count)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_change_waits_for_looks_and_the_whole_waits_for_all() {
        let locks = Locks::new();
        let id = ObjectId::new(0x10000, 0x10000);
        let steps = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let look = locks.reach(Reach::Look(id));
            let _second = locks.reach(Reach::Look(id));
            scope.spawn(|| {
                let _change = locks.reach(Reach::Change(id));
                steps.fetch_add(1, Ordering::SeqCst);
            });
            scope.spawn(|| {
                let _whole = locks.reach(Reach::Whole);
                steps.fetch_add(1, Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert_eq!(steps.load(Ordering::SeqCst), 0);
            drop(look);
        });
        assert_eq!(steps.load(Ordering::SeqCst), 2);
    }
}
