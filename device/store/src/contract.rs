//! The contract suite: every backend runs it by one call of [`contract`], and one of [`model`].
//!
//! Does: tests each method with its refusals and edge cases; compares any store with
//! [`MemoryStore`], step by step.
//! Does not: simulate crashes; the crash tests of each backend do.

use sealstone_digest::Profile;
use sealstone_osd::{ObjectId, ObjectType};

use crate::{
    AttributeId, BLOCK, MAX_ATTRIBUTE_LENGTH, MAX_OBJECT_LENGTH, MemoryStore, ObjectExtent, ObjectStore,
    Space, StoreError,
};

/// Asserts an error's variant.
macro_rules! refuses {
    ($result:expr, $error:pat) => {
        match $result {
            Err($error) => {}
            other => panic!("expected {}, got {other:?}", stringify!($error)),
        }
    };
}

mod digests;
mod memberships;
mod sharing;
mod small;

pub use digests::wrong_digests;

/// Capacity of the stores that the suite creates, in bytes.
const CAPACITY: u64 = 4 << 20;

/// Tests the contract of [`ObjectStore`] on new stores from `make(capacity in bytes)`.
///
/// # Panics
/// If a store breaks the contract.
pub fn contract<S: ObjectStore>(make: impl Fn(u64) -> S) {
    let promises: [fn(&S); 34] = [
        unknown_objects_are_not_found,
        create_and_remove_change_what_exists,
        writes_are_read_back,
        holes_read_as_zeros_and_take_no_space,
        overwrites_take_no_more_space,
        resize_cuts_and_extends_with_zeros,
        clear_makes_holes_and_zero_edges,
        punch_moves_the_tail_down,
        attributes_come_back_in_order,
        listing_is_ordered_and_bounded,
        a_full_store_refuses_growth_only,
        limits_are_refused_and_change_nothing,
        empty_operations_change_nothing,
        every_change_is_counted,
        scopes_nest_and_flush_is_repeatable,
        sharing::shared_bytes_are_taken_once_and_parted_by_writing,
        sharing::a_share_replaces_what_was_there,
        sharing::map_of_many_pieces_is_returned_in_parts,
        sharing::a_comparison_tells_what_is_not_shared,
        sharing::comparison_of_many_pieces_is_returned_in_parts,
        sharing::the_last_to_let_go_frees,
        sharing::a_full_store_refuses_to_part_what_is_shared,
        small::small_objects_grow_and_shrink,
        small::small_objects_share_and_part,
        small::a_full_store_lets_small_objects_grow_within_a_block,
        memberships::members_and_memberships_are_one_fact,
        memberships::only_user_objects_join_only_collections,
        memberships::removal_ends_memberships_and_full_collections_stay,
        memberships::members_are_listed_in_order_and_bounded,
        digests::any_change_leaves_digests_of_what_is_there,
        digests::digests_that_the_caller_has_are_taken,
        digests::a_partitions_profile_is_set_while_it_is_empty,
        digests::digests_of_nothing_are_refused_or_empty,
        digests::a_pages_digest_is_that_of_its_attributes,
    ];
    for promise in promises {
        promise(&make(CAPACITY));
    }
}

/// Returns the id of a user object.
fn user(object: u64) -> ObjectId {
    ObjectId::new(0x1_0000, object)
}

/// Creates the first user object of a store.
fn made<S: ObjectStore>(store: &S) -> ObjectId {
    let id = user(0x1_0001);
    store.create(id, ObjectType::User).expect("create in a fresh store");
    id
}

/// Returns `length` bytes that differ from block to block and from seed to seed.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = SeededRandom::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Reads the whole object.
fn content<S: ObjectStore + ?Sized>(store: &S, id: ObjectId) -> Vec<u8> {
    let length = store.stat(id).expect("stat").length;
    let mut bytes = vec![0xEE; length as usize];
    let read = store.read(id, 0, &mut bytes).expect("read all");
    assert_eq!(read as u64, length, "a read of the whole object is not short");
    bytes
}

fn unknown_objects_are_not_found<S: ObjectStore>(store: &S) {
    let id = user(7);
    let attribute = AttributeId { page: 1, number: 1 };
    refuses!(store.stat(id), StoreError::NotFound(_));
    refuses!(store.read(id, 0, &mut [0; 1]), StoreError::NotFound(_));
    refuses!(store.write(id, 0, &[1]), StoreError::NotFound(_));
    refuses!(store.write(id, 0, &[]), StoreError::NotFound(_));
    refuses!(store.resize(id, 1), StoreError::NotFound(_));
    refuses!(store.clear(id, 0, 1), StoreError::NotFound(_));
    refuses!(store.punch(id, 0, 1), StoreError::NotFound(_));
    refuses!(store.remove(id), StoreError::NotFound(_));
    refuses!(store.share(id, id), StoreError::NotFound(_));
    refuses!(store.share(id, user(8)), StoreError::NotFound(_));
    refuses!(store.map(id, 0, 1), StoreError::NotFound(_));
    refuses!(store.compare(id, id, 0, 1), StoreError::NotFound(_));
    refuses!(store.attribute(id, attribute), StoreError::NotFound(_));
    refuses!(store.set_attribute(id, attribute, &[1]), StoreError::NotFound(_));
    refuses!(store.attributes(id, None), StoreError::NotFound(_));
    let Space { total, used, available, objects, .. } = store.space();
    assert_eq!((total, used, available, objects), (CAPACITY, 0, CAPACITY, 0));
}

fn create_and_remove_change_what_exists<S: ObjectStore>(store: &S) {
    for (id, kind) in [
        (ObjectId::ROOT, ObjectType::Root),
        (ObjectId::of_partition(0x1_0000), ObjectType::Partition),
        (user(0x1_0000), ObjectType::User),
        (user(0x1_0001), ObjectType::Collection),
    ] {
        store.create(id, kind).expect("create");
        refuses!(store.create(id, ObjectType::User), StoreError::Exists(_));
        let stat = store.stat(id).expect("stat");
        assert_eq!((stat.kind, stat.length, stat.used_bytes), (kind, 0, 0));
    }
    assert_eq!(store.space().objects, 4);
    store.write(user(0x1_0000), 0, &pattern(1, 10_000)).expect("write");
    store.set_attribute(user(0x1_0000), AttributeId { page: 1, number: 9 }, b"x").expect("set");
    store.remove(user(0x1_0000)).expect("remove");
    refuses!(store.stat(user(0x1_0000)), StoreError::NotFound(_));
    assert_eq!((store.space().objects, store.space().used), (3, 0));
    // A new object under the same id starts empty.
    store.create(user(0x1_0000), ObjectType::User).expect("create again");
    assert!(content(store, user(0x1_0000)).is_empty());
    assert!(store.attributes(user(0x1_0000), None).expect("attributes").is_empty());
    store.flush().expect("flush");
    store.remove(user(0x1_0000)).expect("remove after flush");
    store.create(user(0x1_0000), ObjectType::User).expect("create after flush");
    assert!(content(store, user(0x1_0000)).is_empty());
}

fn writes_are_read_back<S: ObjectStore>(store: &S) {
    let id = made(store);
    let mut expected = vec![0_u8; 300_000];
    for (step, (offset, length)) in
        [(0, 1), (1, 4095), (4096, 4096), (10, 9000), (8191, 2), (100_000, 200_000), (4096, 8192)]
            .into_iter()
            .enumerate()
    {
        let data = pattern(step as u64, length);
        store.write(id, offset as u64, &data).expect("write");
        expected[offset..offset + length].copy_from_slice(&data);
        if step % 2 == 1 {
            store.flush().expect("flush");
        }
    }
    assert_eq!(content(store, id), expected);
    for (offset, length) in [(0, 1), (4095, 2), (4096, 4096), (1, 299_999), (299_999, 1), (12_287, 90_000)] {
        let mut bytes = vec![0xEE; length];
        assert_eq!(store.read(id, offset as u64, &mut bytes).expect("read"), length);
        assert_eq!(bytes, expected[offset..offset + length], "{length} bytes at {offset}");
    }
    let mut bytes = [0xEE; 10];
    assert_eq!(store.read(id, 299_997, &mut bytes).expect("read over the end"), 3);
    assert_eq!(bytes[..3], expected[299_997..]);
    assert_eq!(store.read(id, 300_000, &mut bytes).expect("read at the end"), 0);
    assert_eq!(store.read(id, u64::MAX, &mut bytes).expect("read far past the end"), 0);
    assert_eq!(store.read(id, 0, &mut []).expect("read nothing"), 0);
}

fn holes_read_as_zeros_and_take_no_space<S: ObjectStore>(store: &S) {
    let id = made(store);
    let far = 1 << 40;
    store.write(id, far, b"end").expect("write far out");
    assert_eq!(store.stat(id).expect("stat").length, far + 3);
    assert_eq!(store.stat(id).expect("stat").used_bytes, BLOCK);
    let mut bytes = [0xEE; 9000];
    assert_eq!(store.read(id, far - 8997, &mut bytes).expect("read"), 9000);
    assert!(bytes[..8997].iter().all(|&b| b == 0));
    assert_eq!(&bytes[8997..], b"end");
    store.write(id, 10 * BLOCK + 5, b"x").expect("write in the hole");
    assert_eq!(store.read(id, 9 * BLOCK, &mut bytes).expect("read"), 9000);
    assert!(bytes.iter().enumerate().all(|(i, &b)| b == if i as u64 == BLOCK + 5 { b'x' } else { 0 }));
    assert_eq!(store.space().used, 2 * BLOCK);
    store.remove(id).expect("remove");
    assert_eq!(store.space().used, 0);
}

fn overwrites_take_no_more_space<S: ObjectStore>(store: &S) {
    let id = made(store);
    store.write(id, 0, &pattern(1, 100_000)).expect("write");
    let used = store.space().used;
    assert_eq!(used, 25 * BLOCK);
    for round in 0..50 {
        store.write(id, 0, &pattern(round, 100_000)).expect("overwrite");
        if round % 10 == 0 {
            store.flush().expect("flush");
        }
        assert_eq!((store.space().used, store.stat(id).expect("stat").used_bytes), (used, used));
    }
    assert_eq!(content(store, id), pattern(49, 100_000));
}

fn resize_cuts_and_extends_with_zeros<S: ObjectStore>(store: &S) {
    let id = made(store);
    let data = pattern(3, 20_000);
    store.write(id, 0, &data).expect("write");
    store.flush().expect("flush");
    store.resize(id, 9_000).expect("cut");
    assert_eq!(content(store, id), data[..9_000]);
    assert_eq!(store.stat(id).expect("stat").used_bytes, 3 * BLOCK);
    store.resize(id, 30_000).expect("extend");
    let mut expected = data[..9_000].to_vec();
    expected.resize(30_000, 0);
    assert_eq!(content(store, id), expected, "what was cut off does not come back");
    assert_eq!(store.stat(id).expect("stat").used_bytes, 3 * BLOCK);
    store.resize(id, 0).expect("cut to nothing");
    assert_eq!((content(store, id).len(), store.space().used), (0, 0));
    store.resize(id, MAX_OBJECT_LENGTH).expect("extend to the limit");
    assert_eq!((store.stat(id).expect("stat").length, store.space().used), (MAX_OBJECT_LENGTH, 0));
}

fn clear_makes_holes_and_zero_edges<S: ObjectStore>(store: &S) {
    let id = made(store);
    let mut expected = pattern(4, 40_000);
    store.write(id, 0, &expected).expect("write");
    for (offset, length, blocks) in [
        (5, 10, 10),
        (4_000, 200, 10),
        (8_000, 10_000, 8),
        (0, 4_096, 7),
        (39_990, 10, 7),
        (36_864, 3_136, 6),
    ] {
        store.clear(id, offset as u64, length as u64).expect("clear");
        expected[offset..offset + length].fill(0);
        assert!(content(store, id) == expected, "clear {length} bytes at {offset}");
        assert_eq!(store.space().used, blocks * BLOCK, "after clear of {length} bytes at {offset}");
    }
    store.clear(id, 50_000, 1_000).expect("clear past the end");
    expected.resize(51_000, 0);
    assert_eq!(content(store, id), expected, "clear extends");
    store.clear(id, 0, 1 << 40).expect("clear all");
    assert_eq!((store.stat(id).expect("stat").length, store.space().used), (1 << 40, 0));
}

fn punch_moves_the_tail_down<S: ObjectStore>(store: &S) {
    let id = made(store);
    let mut expected = pattern(5, 3 << 19);
    store.write(id, 0, &expected).expect("write");
    for (offset, length) in
        [(4096, 8192), (5, 10), (1_000_000, 4096), (0, 1), (70_000, 123_457), (1_048_576, 77)]
    {
        store.punch(id, offset as u64, length as u64).expect("punch");
        expected.drain(offset..offset + length);
        assert!(content(store, id) == expected, "punch {length} bytes at {offset}");
        assert_eq!(store.space().used, (expected.len() as u64).next_multiple_of(BLOCK));
    }
    store.punch(id, 500_000, u64::MAX).expect("punch to the end");
    expected.truncate(500_000);
    store.punch(id, 500_000, 5).expect("punch at the end does nothing");
    store.punch(id, u64::MAX, 5).expect("punch past the end does nothing");
    assert_eq!(content(store, id), expected);
    store.resize(id, 1 << 30).expect("extend");
    store.write(id, (1 << 30) - 1, b"z").expect("write the last byte");
    store.punch(id, 500_000, (1 << 30) - 500_001).expect("punch the hole");
    expected.push(b'z');
    assert_eq!(content(store, id), expected);
}

fn attributes_come_back_in_order<S: ObjectStore>(store: &S) {
    let id = made(store);
    let key = |page, number| AttributeId { page, number };
    let long = pattern(6, MAX_ATTRIBUTE_LENGTH);
    for (attribute, value) in [
        (key(0x4000_0001, 2), b"b".as_slice()),
        (key(1, u32::MAX - 1), b"c"),
        (key(1, 3), &long),
        (key(u32::MAX - 1, 0), b"last"),
        (key(0, 0), b"first"),
    ] {
        store.set_attribute(id, attribute, value).expect("set");
    }
    let names = |page| -> Vec<AttributeId> {
        store.attributes(id, page).expect("attributes").into_iter().map(|(name, _)| name).collect()
    };
    let check = || {
        assert_eq!(names(Some(1)), [key(1, 3), key(1, u32::MAX - 1)]);
        assert_eq!(names(Some(2)), []);
        assert_eq!(names(None).len(), 5);
        assert!(names(None).is_sorted());
        assert_eq!(store.attribute(id, key(1, 3)).expect("get").as_deref(), Some(&long[..]));
        assert_eq!(store.attribute(id, key(1, 4)).expect("get"), None);
    };
    check();
    store.flush().expect("flush");
    check();
    store.set_attribute(id, key(1, 3), b"short").expect("set again");
    store.set_attribute(id, key(1, 4), b"").expect("remove what is not there");
    store.set_attribute(id, key(0, 0), b"").expect("remove");
    assert_eq!(store.attribute(id, key(1, 3)).expect("get").as_deref(), Some(&b"short"[..]));
    assert_eq!(store.attribute(id, key(0, 0)).expect("get"), None);
    assert_eq!(names(None).len(), 4);
    let neighbour = user(0x1_0002);
    store.create(neighbour, ObjectType::User).expect("create");
    assert!(
        store.attributes(neighbour, None).expect("attributes").is_empty(),
        "attributes belong to one object"
    );
}

fn listing_is_ordered_and_bounded<S: ObjectStore>(store: &S) {
    let mut ids = Vec::new();
    for object in 0..40 {
        // Half of the objects are created before a flush and half after it, so that listing merges
        // both.
        let id = ObjectId::new(object % 3, (object * 7919) % 1000);
        store.create(id, ObjectType::User).expect("create");
        store.write(id, 0, b"x").expect("write");
        ids.push(id);
        if object == 20 {
            store.flush().expect("flush");
        }
    }
    for gone in [3, 25] {
        store.remove(ids[gone]).expect("remove");
    }
    ids.remove(25);
    ids.remove(3);
    ids.sort();
    let listed = |from, max| -> Vec<ObjectId> {
        store.list(from, max).expect("list").into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(listed(ObjectId::ROOT, usize::MAX), ids);
    assert_eq!(listed(ObjectId::ROOT, 0), []);
    assert_eq!(listed(ids[10], 5), ids[10..15], "from is included");
    assert_eq!(listed(ObjectId::new(ids[10].partition, ids[10].object + 1), 5), ids[11..16]);
    assert_eq!(listed(ObjectId::new(u64::MAX, u64::MAX), 5), []);
    store.flush().expect("flush");
    assert_eq!(listed(ObjectId::ROOT, 1000), ids);
}

fn a_full_store_refuses_growth_only<S: ObjectStore>(store: &S) {
    let id = made(store);
    let small = user(0x1_0002);
    store.create(small, ObjectType::User).expect("create");
    store.write(small, 0, &pattern(1, 4096)).expect("write");
    let data = pattern(2, 1 << 20);
    for part in 0..3 {
        store.write(id, part << 20, &data).expect("fill");
    }
    refuses!(store.write(id, 3 << 20, &data), StoreError::NoSpace);
    assert_eq!(store.stat(id).expect("stat").length, 3 << 20, "a refused write changes nothing");
    store.write(id, 3 << 20, &data[4096..]).expect("fill to the last block");
    assert_eq!(store.space().used, CAPACITY);
    refuses!(store.write(small, 4096, b"x"), StoreError::NoSpace);
    // Operations that do not grow an object still succeed, flushed or not.
    for round in 0..8 {
        store.write(id, (round % 4) << 19, &data[..1 << 19]).expect("overwrite when full");
        store.flush().expect("flush when full");
    }
    assert_eq!(store.read(small, 0, &mut [0; 4096]).expect("read when full"), 4096);
    store.write(small, 100, &[1; 50]).expect("overwrite a part when full");
    store.set_attribute(small, AttributeId { page: 1, number: 1 }, b"x").expect("attributes when full");
    store.clear(id, 0, 4096).expect("clear when full");
    store.write(small, 4096, b"x").expect("a freed block can be used at once");
    store.resize(id, 100).expect("cut when full");
    store.write(small, 8192, &data).expect("write into freed space");
    store.remove(id).expect("remove");
    store.remove(small).expect("remove");
    assert_eq!(store.space().used, 0);
}

fn limits_are_refused_and_change_nothing<S: ObjectStore>(store: &S) {
    let id = made(store);
    refuses!(store.write(id, MAX_OBJECT_LENGTH, b"x"), StoreError::TooLarge { .. });
    refuses!(store.write(id, u64::MAX, b"x"), StoreError::TooLarge { .. });
    refuses!(store.clear(id, 1, MAX_OBJECT_LENGTH), StoreError::TooLarge { .. });
    refuses!(store.clear(id, u64::MAX, u64::MAX), StoreError::TooLarge { .. });
    refuses!(store.resize(id, MAX_OBJECT_LENGTH + 1), StoreError::TooLarge { .. });
    store.write(id, MAX_OBJECT_LENGTH - 1, b"x").expect("write the last byte there can be");
    store.resize(id, 0).expect("cut");
    let attribute = AttributeId { page: 1, number: 1 };
    let long = vec![1; MAX_ATTRIBUTE_LENGTH + 1];
    refuses!(store.set_attribute(id, attribute, &long), StoreError::TooLarge { .. });
    let mut number = 0;
    let refusal = loop {
        match store.set_attribute(id, AttributeId { page: 2, number }, &long[1..]) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refusal, StoreError::TooLarge { .. }), "all attributes together are bounded: {refusal}");
    assert_eq!(store.attributes(id, None).expect("attributes").len(), number as usize);
    store.set_attribute(id, AttributeId { page: 2, number: 0 }, b"").expect("remove");
    store.set_attribute(id, AttributeId { page: 2, number }, &long[1..]).expect("set into the room made");
}

fn empty_operations_change_nothing<S: ObjectStore>(store: &S) {
    let id = made(store);
    store.write(id, 0, b"abc").expect("write");
    store.write(id, 1000, b"").expect("write nothing");
    store.clear(id, 1000, 0).expect("clear nothing");
    store.punch(id, 1, 0).expect("punch nothing");
    assert_eq!(content(store, id), b"abc");
}

fn every_change_is_counted<S: ObjectStore>(store: &S) {
    let (id, other) = (user(0x1_0001), user(0x1_0002));
    let attribute = AttributeId { page: 1, number: 2 };
    type Change<'a, S> = (&'a str, &'a dyn Fn(&S) -> Result<(), StoreError>);
    let changes: [Change<'_, S>; 10] = [
        ("create", &|store| store.create(id, ObjectType::User)),
        ("write", &|store| store.write(id, 0, &[1; 9000])),
        ("overwrite in part", &|store| store.write(id, 17, b"abc")),
        ("resize", &|store| store.resize(id, 5000)),
        ("clear", &|store| store.clear(id, 10, 20)),
        ("punch", &|store| store.punch(id, 0, 100)),
        ("attribute", &|store| store.set_attribute(id, attribute, b"value")),
        ("attribute of the same length", &|store| store.set_attribute(id, attribute, b"VALUE")),
        ("share", &|store| store.share(other, id)),
        ("remove", &|store| store.remove(id)),
    ];
    store.create(other, ObjectType::User).expect("create the source of a share");
    let mut before = store.change_count(id);
    for (name, change) in changes {
        change(store).expect(name);
        let after = store.change_count(id);
        assert!(after > before, "{name}: {before}, then {after}");
        let mut bytes = [0; 8];
        let _ = (store.stat(id), store.read(id, 0, &mut bytes), store.attributes(id, None));
        assert_eq!(store.change_count(id), after, "reading is no change");
        before = after;
    }
}

fn scopes_nest_and_flush_is_repeatable<S: ObjectStore>(store: &S) {
    {
        let _outer = store.begin();
        let id = made(store);
        let _inner = store.begin();
        store.write(id, 0, b"abc").expect("write in a scope");
        assert_eq!(content(store, id), b"abc", "a scope reads its own writes");
    }
    for _ in 0..3 {
        store.flush().expect("flush");
    }
    assert_eq!(content(store, user(0x1_0001)), b"abc");
}

/// One step of the model test.
#[derive(Clone, Debug)]
pub enum ModelOp {
    /// `create` of object number `.0` (of a small set).
    Create(u8),
    /// `remove` of object number `.0`.
    Remove(u8),
    /// `write` at offset, length, seed of the bytes.
    Write(u8, u64, usize, u64),
    /// `read` at offset, length.
    Read(u8, u64, usize),
    /// `resize` to a length.
    Resize(u8, u64),
    /// `clear` at offset, length.
    Clear(u8, u64, u64),
    /// `punch` at offset, length.
    Punch(u8, u64, u64),
    /// `share` from one object to another.
    Share(u8, u8),
    /// `map` from an offset, at most this many extents.
    Map(u8, u64, usize),
    /// `compare` with an object, from an offset, at most this many extents.
    Compare(u8, u8, u64, usize),
    /// `set_attribute` by number, length (0 removes), seed.
    SetAttribute(u8, u32, usize, u64),
    /// `list` from an object, at most this many.
    List(u8, usize),
    /// `create` of collection number `.0` (of a small set).
    CreateCollection(u8),
    /// `remove` of collection `.0`.
    RemoveCollection(u8),
    /// `join` collection, object, slot.
    Join(u8, u8, u32),
    /// `leave` collection, object.
    Leave(u8, u8),
    /// `members` of a collection, from an object, at most this many; and their number.
    Members(u8, u8, usize),
    /// `set_profile` of one of two partitions, created if missing; by profile code, 0 for none.
    Profile(u8, u8),
    /// `page_digest` of an object, by page.
    PageDigest(u8, u32),
    /// `flush` of the store.
    Flush,
}

/// Returns the id of the object that an [`ModelOp`] refers to by number.
#[must_use]
pub fn object(number: u8) -> ObjectId {
    ObjectId::new(0x1_0000 + u64::from(number) % 2, 0x1_0000 + u64::from(number))
}

/// Returns the id of the collection that an [`ModelOp`] refers to by number.
#[must_use]
pub fn collection(number: u8) -> ObjectId {
    ObjectId::new(0x1_0000 + u64::from(number) % 2, 0x2_0000 + u64::from(number))
}

/// Runs one step; returns its result in a form that can be compared between stores.
pub fn apply<S: ObjectStore + ?Sized>(store: &S, op: &ModelOp) -> String {
    match *op {
        ModelOp::Create(o) => format!("{:?}", store.create(object(o), ObjectType::User)),
        ModelOp::Remove(o) => format!("{:?}", store.remove(object(o))),
        ModelOp::Write(o, at, length, seed) => {
            format!("{:?}", store.write(object(o), at, &pattern(seed, length)))
        }
        ModelOp::Read(o, at, length) => {
            let mut bytes = vec![0xEE; length];
            let result = store.read(object(o), at, &mut bytes);
            bytes.truncate(*result.as_ref().unwrap_or(&0));
            format!("{result:?} {:x?}", crate::crc::crc32c(&bytes))
        }
        ModelOp::Resize(o, length) => format!("{:?}", store.resize(object(o), length)),
        ModelOp::Clear(o, at, length) => format!("{:?}", store.clear(object(o), at, length)),
        ModelOp::Punch(o, at, length) => format!("{:?}", store.punch(object(o), at, length)),
        ModelOp::Share(from, to) => format!("{:?}", store.share(object(from), object(to))),
        ModelOp::Map(o, from, max) => format!("{:?}", store.map(object(o), from, max)),
        ModelOp::Compare(o, other, from, max) => {
            format!("{:?}", store.compare(object(o), object(other), from, max))
        }
        ModelOp::SetAttribute(o, number, length, seed) => {
            let attribute = AttributeId { page: number % 3, number };
            format!("{:?}", store.set_attribute(object(o), attribute, &pattern(seed, length)))
        }
        ModelOp::List(o, max) => format!("{:?}", store.list(object(o), max)),
        ModelOp::Flush => format!("{:?}", store.flush()),
        ModelOp::Profile(partition, code) => {
            let partition = object(partition).partition;
            let made = store.create(ObjectId::of_partition(partition), ObjectType::Partition);
            let set = store.set_profile(partition, Profile::from_code(code));
            format!("{made:?} {set:?} {:?}", store.profile(partition))
        }
        ModelOp::PageDigest(o, page) => format!("{:?}", store.page_digest(object(o), page)),
        ModelOp::CreateCollection(c) => format!("{:?}", store.create(collection(c), ObjectType::Collection)),
        ModelOp::RemoveCollection(c) => format!("{:?}", store.remove(collection(c))),
        ModelOp::Join(c, o, slot) => format!("{:?}", store.join(collection(c), object(o).object, slot)),
        ModelOp::Leave(c, o) => format!("{:?}", store.leave(collection(c), object(o).object)),
        ModelOp::Members(c, o, max) => {
            let count = store.member_count(collection(c));
            format!("{count:?} {:?}", store.members(collection(c), object(o).object, max))
        }
    }
}

/// Returns the first steps of a history: the profiles of the partitions of [`object`], drawn from
/// `random`.
pub fn random_profiles(random: &mut SeededRandom) -> [ModelOp; 2] {
    [0, 1].map(|partition| ModelOp::Profile(partition, random.below(6) as u8))
}

/// Returns all content of a store by value, to compare two stores, or one before and after a crash.
///
/// # Errors
/// Errors of `list`, `stat`, `read` and `attributes`.
pub fn snapshot<S: ObjectStore + ?Sized>(store: &S) -> Result<Vec<ObjectSnapshot>, StoreError> {
    let mut all = Vec::new();
    let mut from = ObjectId::ROOT;
    loop {
        let page = store.list(from, 100)?;
        for &(id, kind) in &page {
            let stat = store.stat(id)?;
            let mut content = vec![0xEE; stat.length as usize];
            store.read(id, 0, &mut content)?;
            let wrong = wrong_digests(store, id, &content)?;
            let attributes = store.attributes(id, None)?;
            let profile = store.profile(id.partition);
            let map = store.map(id, 0, usize::MAX)?;
            let (members, memberships) = match kind {
                ObjectType::Collection => (store.members(id, 0, usize::MAX)?, Vec::new()),
                _ => (Vec::new(), store.memberships(id)?),
            };
            let ties = [members, memberships];
            all.push(ObjectSnapshot {
                id,
                kind,
                used_bytes: stat.used_bytes,
                content,
                map,
                attributes,
                ties,
                profile,
                wrong,
            });
        }
        match page.last() {
            Some(&(id, _)) if page.len() == 100 => from = ObjectId::new(id.partition, id.object + 1),
            _ => return Ok(all),
        }
    }
}

/// One object of a [`snapshot`].
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectSnapshot {
    /// The object's id.
    pub id: ObjectId,
    /// The object's kind.
    pub kind: ObjectType,
    /// Used capacity in bytes.
    pub used_bytes: u64,
    /// All bytes of the object.
    pub content: Vec<u8>,
    /// The map of its data, with the shared extents.
    pub map: Vec<ObjectExtent>,
    /// All its attributes.
    pub attributes: Vec<(AttributeId, Vec<u8>)>,
    /// Its members, and the collections that it is a member of, with their slots.
    pub ties: [Vec<(u64, u32)>; 2],
    /// The digest profile of its partition.
    pub profile: Option<Profile>,
    /// Units whose stored digest does not match their bytes; always empty in a correct store.
    pub wrong: Vec<u64>,
}

impl std::fmt::Debug for ObjectSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (length, crc) = (self.content.len(), crate::crc::crc32c(&self.content));
        write!(f, "{}: {length} bytes, {} used, crc {crc:08x}", self.id, self.used_bytes)?;
        write!(f, ", {} attributes, ties {:?}", self.attributes.len(), self.ties)?;
        write!(f, ", profile {:?}, wrong digests {:?}", self.profile, self.wrong)
    }
}

/// Longest object that [`random_op`] creates, in bytes.
const MODEL_LENGTH: u64 = 3 << 19;

/// Returns a step drawn from `random`: mostly small and unaligned, sometimes large, aligned or at a
/// chunk boundary. Half of the objects usually stay short enough to be stored in an index.
pub fn random_op(random: &mut SeededRandom) -> ModelOp {
    let object = random.below(6) as u8;
    let small = object >= 3 && random.below(16) > 0;
    let location = |random: &mut SeededRandom| match random.below(4) {
        0 if small => 0,
        _ if small => random.below(1200),
        0 => random.below(MODEL_LENGTH),
        1 => random.below(MODEL_LENGTH / BLOCK) * BLOCK,
        2 => random.below(3 * BLOCK),
        _ => (1 << 20) - 3 * BLOCK + random.below(6 * BLOCK),
    };
    let length = |random: &mut SeededRandom| match random.below(5) {
        _ if small => random.below(900),
        0 => random.below(100),
        1 => random.below(3 * BLOCK),
        2 => (1 + random.below(8)) * BLOCK,
        3 => random.below(20 * BLOCK),
        _ => random.below(120 * BLOCK),
    };
    match random.below(100) {
        0..=9 => ModelOp::Create(object),
        10..=13 => ModelOp::Remove(object),
        14..=44 => ModelOp::Write(object, location(random), length(random) as usize, random.next()),
        45..=59 => ModelOp::Read(object, location(random), length(random) as usize),
        60..=65 => ModelOp::Resize(object, location(random)),
        66..=73 => ModelOp::Clear(object, location(random), length(random)),
        74..=79 => ModelOp::Punch(object, location(random), length(random)),
        80..=83 => ModelOp::Share(object, random.below(6) as u8),
        84 if random.below(2) == 0 => ModelOp::Map(object, location(random), random.below(9) as usize),
        84 => ModelOp::Compare(object, random.below(6) as u8, location(random), random.below(9) as usize),
        85..=89 => {
            let value = if random.below(3) == 0 { 0 } else { random.below(200) };
            ModelOp::SetAttribute(object, random.below(12) as u32, value as usize, random.next())
        }
        90 if random.below(2) == 0 => ModelOp::Profile(object, random.below(6) as u8),
        90 => ModelOp::PageDigest(object, random.below(3) as u32),
        91 => ModelOp::List(object, random.below(8) as usize),
        92..=96 => random_tie(random, object),
        _ => ModelOp::Flush,
    }
}

/// Returns a random step that concerns collections.
fn random_tie(random: &mut SeededRandom, object: u8) -> ModelOp {
    let collection = random.below(4) as u8;
    match random.below(12) {
        0..=2 => ModelOp::CreateCollection(collection),
        3 => ModelOp::RemoveCollection(collection),
        4..=7 => ModelOp::Join(collection, object, random.below(5) as u32),
        8..=9 => ModelOp::Leave(collection, object),
        _ => ModelOp::Members(collection, object, random.below(4) as usize),
    }
}

/// Runs the same steps on `store` and on a [`MemoryStore`] of the same capacity, and compares the
/// results.
///
/// # Panics
/// At the first difference, with the step in the message.
pub fn model<S: ObjectStore + ?Sized>(store: &S, ops: &[ModelOp]) {
    let oracle = MemoryStore::new(store.space().total);
    for (step, op) in ops.iter().enumerate() {
        assert_eq!(apply(store, op), apply(&oracle, op), "step {step}: {op:?}");
        assert_eq!(store.space(), oracle.space(), "space after step {step}: {op:?}");
    }
    let [found, expected] = [snapshot(store), snapshot(&oracle)].map(|all| all.expect("snapshot"));
    assert_eq!(found, expected, "contents after {} steps", ops.len());
}

/// A small seeded random generator (SplitMix64), so that a seed reproduces a history.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// Creates the generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }
}
