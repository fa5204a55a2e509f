//! Contract of collection members.

use sealstone_osd::{ObjectId, ObjectType};

use super::user;
use crate::{MAX_MEMBERSHIPS, ObjectStore, StoreError};

/// Returns the id of a collection.
fn collection(number: u64) -> ObjectId {
    ObjectId::new(0x1_0000, 0x9_0000 + number)
}

/// Creates `objects` user objects and `collections` collections.
fn populate<S: ObjectStore>(store: &S, objects: u64, collections: u64) {
    for number in 0..objects {
        store.create(user(0x1_0000 + number), ObjectType::User).expect("create");
    }
    for number in 0..collections {
        store.create(collection(number), ObjectType::Collection).expect("create collection");
    }
}

pub(super) fn members_and_memberships_are_one_fact<S: ObjectStore>(store: &S) {
    populate(store, 5, 4);
    let mut expected = Vec::new();
    for number in 0..4 {
        for member in (number..5).rev() {
            let slot = (number * 10 + member) as u32;
            assert!(store.join(collection(number), 0x1_0000 + member, slot).expect("join"));
            assert!(!store.join(collection(number), 0x1_0000 + member, 77).expect("join again"));
            expected.push((number, member, slot));
        }
        if number % 2 == 0 {
            store.flush().expect("flush");
        }
    }
    let check = |expected: &[(u64, u64, u32)]| {
        for number in 0..4 {
            let mut members: Vec<(u64, u32)> = expected
                .iter()
                .filter(|one| one.0 == number)
                .map(|&(_, member, slot)| (0x1_0000 + member, slot))
                .collect();
            members.sort_unstable();
            let count = store.member_count(collection(number)).expect("count");
            assert_eq!(count, members.len() as u64);
            assert_eq!(store.members(collection(number), 0, 100).expect("members"), members);
            for &(member, slot) in &members {
                assert_eq!(store.membership(collection(number), member).expect("slot"), Some(slot));
            }
        }
        for member in 0..5 {
            let mut memberships: Vec<(u64, u32)> = expected
                .iter()
                .filter(|one| one.1 == member)
                .map(|&(number, _, slot)| (collection(number).object, slot))
                .collect();
            memberships.sort_unstable();
            assert_eq!(store.memberships(user(0x1_0000 + member)).expect("memberships"), memberships);
        }
    };
    check(&expected);
    let gone = expected.remove(7);
    assert_eq!(store.leave(collection(gone.0), 0x1_0000 + gone.1).expect("leave"), Some(gone.2));
    assert_eq!(store.leave(collection(gone.0), 0x1_0000 + gone.1).expect("leave again"), None);
    check(&expected);
    store.flush().expect("flush");
    check(&expected);
}

pub(super) fn only_user_objects_join_only_collections<S: ObjectStore>(store: &S) {
    populate(store, 2, 2);
    refuses!(store.join(collection(7), 0x1_0000, 1), StoreError::NotFound(_));
    refuses!(store.join(user(0x1_0001), 0x1_0000, 1), StoreError::NotFound(_));
    refuses!(store.join(collection(0), 0x1_0005, 1), StoreError::NotFound(_));
    refuses!(store.join(collection(0), collection(1).object, 1), StoreError::NotFound(_));
    refuses!(store.leave(collection(7), 0x1_0000), StoreError::NotFound(_));
    refuses!(store.members(collection(7), 0, 1), StoreError::NotFound(_));
    refuses!(store.members(user(0x1_0000), 0, 1), StoreError::NotFound(_));
    refuses!(store.member_count(user(0x1_0000)), StoreError::NotFound(_));
    refuses!(store.memberships(user(0x1_0005)), StoreError::NotFound(_));
    assert_eq!(store.membership(collection(7), 0x1_0000).expect("no such collection"), None);
    assert_eq!(store.member_count(collection(0)).expect("count"), 0);
    assert!(store.memberships(user(0x1_0000)).expect("memberships").is_empty());
    assert_eq!(store.space().objects, 4);
}

pub(super) fn removal_ends_memberships_and_full_collections_stay<S: ObjectStore>(store: &S) {
    populate(store, 3, 2);
    for number in 0..2 {
        for member in 0..3 {
            store.join(collection(number), 0x1_0000 + member, 1).expect("join");
        }
    }
    store.flush().expect("flush");
    refuses!(store.remove(collection(0)), StoreError::HasMembers(_));
    store.remove(user(0x1_0001)).expect("remove a member");
    assert_eq!(store.members(collection(0), 0, 9).expect("members"), [(0x1_0000, 1), (0x1_0002, 1)]);
    assert_eq!(store.member_count(collection(1)).expect("count"), 2);
    // A new object under the same id is a member of nothing.
    store.create(user(0x1_0001), ObjectType::User).expect("create again");
    assert!(store.memberships(user(0x1_0001)).expect("memberships").is_empty());
    for member in [0x1_0000, 0x1_0002] {
        store.leave(collection(0), member).expect("leave");
    }
    store.remove(collection(0)).expect("remove the empty collection");
    refuses!(store.members(collection(0), 0, 1), StoreError::NotFound(_));
    assert_eq!(store.memberships(user(0x1_0000)).expect("memberships"), [(collection(1).object, 1)]);
    store.create(collection(0), ObjectType::Collection).expect("create again");
    assert_eq!(store.member_count(collection(0)).expect("count"), 0);
}

pub(super) fn members_are_listed_in_order_and_bounded<S: ObjectStore>(store: &S) {
    populate(store, 60, 1);
    for member in 0..60 {
        store.join(collection(0), 0x1_0000 + (member * 37) % 60, 0).expect("join");
        if member == 30 {
            store.flush().expect("flush");
        }
    }
    let listed = |from, max| -> Vec<u64> {
        store.members(collection(0), from, max).expect("members").into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(listed(0, usize::MAX), (0x1_0000..0x1_0000 + 60).collect::<Vec<_>>());
    assert_eq!(listed(0x1_0010, 3), [0x1_0010, 0x1_0011, 0x1_0012]);
    assert_eq!(listed(0x1_0000, 0), []);
    assert_eq!(listed(u64::MAX, 5), []);
    // Collections are listed too, and the number of memberships of an object is limited.
    for number in 1..=MAX_MEMBERSHIPS as u64 {
        store.create(collection(number), ObjectType::Collection).expect("create collection");
    }
    for number in 1..MAX_MEMBERSHIPS as u64 {
        assert!(store.join(collection(number), 0x1_0000, 9).expect("join"));
    }
    let last = collection(MAX_MEMBERSHIPS as u64);
    refuses!(store.join(last, 0x1_0000, 9), StoreError::TooLarge { .. });
    assert!(store.join(last, 0x1_0001, 9).expect("another object"));
    assert_eq!(store.collections(collection(3), 2).expect("collections"), [collection(3), collection(4)]);
    let all = store.collections(ObjectId::ROOT, usize::MAX).expect("collections");
    assert_eq!(all.len(), MAX_MEMBERSHIPS + 1);
    store.remove(user(0x1_0000)).expect("remove a member of many");
    assert_eq!(store.member_count(collection(9)).expect("count"), 0);
}
