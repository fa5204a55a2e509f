//! Locks in memory and in the store, compared with a table of bytes.

use proptest::prelude::*;
use sealstone_mds_protocol::ClientId;

use super::*;
use crate::tests::world::World;

const FILE: InodeId = InodeId(7);

fn alice(number: u64) -> ClientKey {
    (UserName::new("alice").unwrap(), ClientId { number })
}

fn range(kind: LockKind, start: u64, end: u64, owner: u64) -> Lock {
    Lock { kind, whole: false, start, end, owner, pid: 1 }
}

/// Number of bytes in the model.
const BYTES: u64 = 12;

fn any_lock() -> impl Strategy<Value = (u64, Lock, bool)> {
    (0..2u64, 0..3usize, 0..BYTES, 1..BYTES, 0..2u64, any::<bool>()).prop_map(
        |(client_id, kind, start, length, owner, release)| {
            let end = (start + length).min(BYTES);
            (client_id, range(LockKind::ALL[kind], start, end, owner), release)
        },
    )
}

/// The model has locks for each byte. Returns the number of ranges.
fn does_what_a_table_of_bytes_does(
    locks: &impl LockTable,
    steps: &[(u64, Lock, bool)],
    all: impl Fn() -> Vec<Lock>,
) -> std::result::Result<usize, TestCaseError> {
    let mut bytes: Vec<Vec<(u64, u64, LockKind)>> = vec![Vec::new(); BYTES as usize];
    for &(number, lock, release) in steps {
        if release && lock.kind == LockKind::Unlock {
            locks.release(&alice(number), FILE, Some(lock.owner)).unwrap();
            bytes.iter_mut().for_each(|byte| byte.retain(|one| (one.0, one.1) != (number, lock.owner)));
            continue;
        }
        let touched = || (lock.start..lock.end).map(|at| at as usize);
        let free = lock.kind == LockKind::Unlock
            || touched().all(|at| {
                bytes[at].iter().all(|(client_id, owner, kind)| {
                    (*client_id, *owner) == (number, lock.owner)
                        || (*kind == LockKind::Read && lock.kind == LockKind::Read)
                })
            });
        let covered = touched().all(|at| {
            bytes[at].iter().any(|(client_id, owner, kind)| {
                (*client_id, *owner) == (number, lock.owner)
                    && (*kind == LockKind::Write || lock.kind == LockKind::Read)
            })
        });
        if lock.kind != LockKind::Unlock {
            prop_assert_eq!(locks.covers(&alice(number), FILE, &lock).unwrap(), covered);
        }
        let tested = locks.lock(&alice(number), FILE, lock, true).unwrap();
        let found = locks.lock(&alice(number), FILE, lock, false).unwrap();
        prop_assert_eq!((tested.is_none(), found.is_none()), (free, free));
        if free {
            for at in touched() {
                bytes[at].retain(|one| (one.0, one.1) != (number, lock.owner));
                if lock.kind != LockKind::Unlock {
                    bytes[at].push((number, lock.owner, lock.kind));
                }
            }
        }
    }
    let all = all();
    for (at, byte) in bytes.iter().enumerate() {
        let covering = all.iter().filter(|one| (one.start..one.end).contains(&(at as u64)));
        prop_assert_eq!(covering.count(), byte.len());
    }
    Ok(all.len())
}

proptest! {
    #[test]
    fn lock_ranges_match_byte_table(steps in prop::collection::vec(any_lock(), 1..60)) {
        let locks = MemoryLocks::default();
        let all = || -> Vec<Lock> {
            let table = locks.0.lock();
            table.files.get(&FILE).into_iter().flatten().map(|one| one.lock).collect()
        };
        let count = does_what_a_table_of_bytes_does(&locks, &steps, all)?;
        let table = locks.0.lock();
        prop_assert_eq!(table.count, count);
        prop_assert_eq!(table.count, table.by_user.values().sum::<usize>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn stored_lock_ranges_match_byte_table(steps in prop::collection::vec(any_lock(), 1..60)) {
        let world = World::empty();
        let locks = StoredLocks(&world.mds);
        let all = || -> Vec<Lock> {
            stored::of_file(&*world.mds.store.snapshot().unwrap(), FILE).unwrap().iter().map(|one| one.lock).collect()
        };
        let count = does_what_a_table_of_bytes_does(&locks, &steps, all)?;
        let counts = world.mds.update(|tx| stored::counts(tx, &alice(1).0)).unwrap();
        prop_assert_eq!(counts, (count as u64, count as u64));
    }
}

#[test]
fn adjacent_locks_merge_into_one() {
    let locks = MemoryLocks::default();
    for at in 0..2 * LOCKS_PER_FILE_MAX as u64 {
        locks.lock(&alice(1), FILE, range(LockKind::Write, at, at + 1, 1), false).unwrap();
    }
    assert_eq!(locks.0.lock().count, 1);
}

#[test]
fn user_is_limited_to_half_of_file_locks() {
    const SHARE: u64 = LOCKS_PER_FILE_MAX as u64 / 2;
    let locks = MemoryLocks::default();
    let one = |at: u64| range(LockKind::Read, 2 * at, 2 * at + 1, 1);
    for at in 0..SHARE {
        locks.lock(&alice(1), FILE, one(at), false).unwrap();
    }
    assert!(locks.lock(&alice(1), FILE, one(SHARE), false).is_err());
    // A lock that needs no additional entry is granted.
    locks.lock(&alice(1), FILE, range(LockKind::Unlock, 0, 1, 1), false).unwrap();
    locks.lock(&alice(1), FILE, one(SHARE), false).unwrap();
    let bob = (UserName::new("bob").unwrap(), ClientId { number: 1 });
    locks.lock(&bob, FILE, one(SHARE + 1), false).unwrap();
}

#[test]
fn locks_per_user_are_bounded() {
    let locks = MemoryLocks::default();
    for at in 0..LOCKS_BY_USER_MAX as u64 {
        let (file, at) = (InodeId(at / 64), at % 64);
        locks.lock(&alice(1), file, range(LockKind::Read, 2 * at, 2 * at + 1, 1), false).unwrap();
    }
    let other = InodeId(1 << 40);
    assert!(locks.lock(&alice(1), other, range(LockKind::Read, 0, 1, 1), false).is_err());
    let bob = (UserName::new("bob").unwrap(), ClientId { number: 1 });
    assert!(locks.lock(&bob, other, range(LockKind::Read, 0, 1, 1), false).is_ok());
    locks.release(&alice(1), InodeId(0), None).unwrap();
    assert!(locks.lock(&alice(1), other, range(LockKind::Read, 0, 1, 1), false).is_ok());
}

#[test]
fn whole_file_and_range_locks_are_independent() {
    let locks = MemoryLocks::default();
    let whole = Lock { kind: LockKind::Write, whole: true, start: 0, end: LOCK_TO_END, owner: 1, pid: 1 };
    assert_eq!(locks.lock(&alice(1), FILE, whole, false).unwrap(), None);
    let other = range(LockKind::Write, 0, 9, 2);
    assert_eq!(locks.lock(&alice(2), FILE, other, false).unwrap(), None);
    let second = Lock { owner: 2, ..whole };
    assert_eq!(locks.lock(&alice(2), FILE, second, false).unwrap(), Some(whole));
    locks.release(&alice(1), FILE, None).unwrap();
    assert_eq!(locks.lock(&alice(2), FILE, second, false).unwrap(), None);
    for broken in [range(LockKind::Read, 5, 5, 1), range(LockKind::Read, 6, 5, 1), Lock { start: 1, ..whole }]
    {
        assert!(locks.lock(&alice(1), FILE, broken, false).is_err());
    }
}
