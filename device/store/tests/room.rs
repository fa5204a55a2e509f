//! A raw device whose share for the index is used up: refused, not lost.
#![allow(clippy::unwrap_used)] // helpers of tests, too

mod support;

use std::collections::BTreeMap;

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{AttributeId, DEVICE_MIN, DeviceMedium, Medium, ObjectStore, StoreError};
use support::{fresh_device, open};

const CAPACITY: u64 = 4 << 20;
const NAME: AttributeId = AttributeId { page: 1, number: 1 };
/// Objects between two flushes.
const GROUP: u64 = 40;

fn id(object: u64) -> ObjectId {
    ObjectId::new(1, object)
}

/// Makes objects until there is no room; gives the attribute of each.
fn fill(store: &impl ObjectStore, from: u64, objects: &mut BTreeMap<u64, Vec<u8>>) {
    for object in from.. {
        match store.create(id(object), ObjectType::User) {
            Err(StoreError::NoSpace) => break,
            result => result.unwrap(),
        }
        objects.insert(object, Vec::new());
        let value = vec![object as u8; 1000 + (object % 7000) as usize];
        match store.set_attribute(id(object), NAME, &value) {
            Err(StoreError::NoSpace) => break,
            result => result.unwrap(),
        }
        objects.insert(object, value);
        if object % GROUP == 0 {
            store.flush().unwrap();
        }
    }
    store.flush().unwrap();
}

fn check(store: &impl ObjectStore, objects: &BTreeMap<u64, Vec<u8>>) {
    let listed: Vec<u64> = store.list(id(1), 60_000).unwrap().into_iter().map(|(id, _)| id.object).collect();
    assert!(listed.iter().eq(objects.keys()));
    for (object, value) in objects {
        assert_eq!(store.attribute(id(*object), NAME).unwrap().unwrap_or_default(), *value);
    }
}

#[test]
fn a_full_index_refuses_loses_nothing_and_takes_more_after_removals() {
    let (disk, store) = fresh_device(1, CAPACITY);
    let mut objects = BTreeMap::new();
    store.create(id(1), ObjectType::User).unwrap();
    store.write(id(1), 0, &[1; 8192]).unwrap();
    objects.insert(1, Vec::new());
    fill(&store, 2, &mut objects);
    assert!(!store.is_poisoned(), "refused in time");
    assert!(matches!(store.write(id(1), 1 << 20, &[1]), Err(StoreError::NoSpace)), "a new chunk");
    assert!(matches!(store.share(id(1), id(2)), Err(StoreError::NoSpace)));
    store.write(id(1), 4096, &[2; 4096]).expect("overwrites go on");
    store.flush().unwrap();
    drop(store);
    let disk = disk.crash();
    {
        let medium = DeviceMedium::open(disk.open("device", false).unwrap()).unwrap();
        let index = medium.open("index.redb", false).unwrap().length().unwrap();
        let others: u64 = medium
            .list()
            .unwrap()
            .iter()
            .filter(|name| *name != "index.redb")
            .map(|name| medium.open(name, false).unwrap().length().unwrap().next_multiple_of(1 << 20))
            .sum();
        let share = DEVICE_MIN + CAPACITY - (1 << 20) - others;
        assert!(index * 10 >= share * 8, "the share is used: {index} of {share}");
    }
    let store = open(&disk).unwrap();
    check(&store, &objects);
    assert!(matches!(store.create(id(100_000), ObjectType::User), Err(StoreError::NoSpace)), "still full");
    let gone: Vec<u64> = objects.keys().copied().filter(|object| *object > 1 && object % 3 > 0).collect();
    for object in gone {
        store.remove(id(object)).unwrap();
        objects.remove(&object);
    }
    store.flush().unwrap();
    let before = objects.len();
    fill(&store, 100_000, &mut objects);
    assert!(objects.len() > before + 20, "there is room again");
    assert!(!store.is_poisoned());
    drop(store);
    check(&open(&disk.crash()).unwrap(), &objects);
}
