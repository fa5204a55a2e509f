//! Small objects in the index: their cost, their fallback to blocks without space, and that the
//! counters are right.

use std::sync::Arc;

use crate::support::{Engine, MEDIA, TABLE, format_options, open, options, seeds};
use redb::ReadableTable as _;
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::{self, SeededRandom, random_op};
use sealstone_store::sim::SimMedium;
use sealstone_store::{BLOCK, DiskStore, ExtentKind, MAX_INLINE, Medium, ObjectStore, StoreOptions, format};

const CAPACITY: u64 = 4 << 20;

fn id(object: u64) -> ObjectId {
    ObjectId::new(1, object)
}

fn with(medium: &SimMedium, inline_max: u64, inline_bytes_max: Option<u64>) -> DiskStore {
    let options = StoreOptions { inline_max, inline_bytes_max, ..options() };
    DiskStore::open(Arc::new(medium.clone()), options).unwrap()
}

fn formatted(seed: u64) -> SimMedium {
    let medium = SimMedium::new(seed);
    format(&medium, &format_options(CAPACITY)).unwrap();
    medium
}

fn put(store: &DiskStore, object: u64, length: usize) {
    if store.stat(id(object)).is_err() {
        store.create(id(object), ObjectType::User).unwrap();
    }
    store.write(id(object), 0, &vec![object as u8 + 1; length]).unwrap();
}

fn has(store: &DiskStore, object: u64, length: usize) {
    let mut found = vec![0; length + 1];
    assert_eq!(store.read(id(object), 0, &mut found).unwrap(), length, "object {object}");
    assert!(found[..length].iter().all(|byte| *byte == object as u8 + 1), "object {object}");
}

fn data_is_untouched(medium: &SimMedium) -> bool {
    let segments = medium.list().unwrap().into_iter().filter(|name| name.starts_with("segment-"));
    segments.map(|name| medium.open(&name, false).unwrap()).all(|file| {
        let mut bytes = vec![0; file.length().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == 0)
    })
}

#[test]
fn small_object_needs_no_data_write_or_sync() {
    for (inline_max, syncs) in [(1024, 1), (0, 2)] {
        let medium = formatted(1);
        let store = with(&medium, inline_max, None);
        put(&store, 0, 512);
        store.flush().unwrap();
        let before = medium.calls();
        put(&store, 0, 512);
        store.flush().unwrap();
        let calls = medium.calls();
        assert_eq!(calls.syncs - before.syncs, syncs, "up to {inline_max}");
        assert_eq!(data_is_untouched(&medium), inline_max > 0);
        assert_eq!(store.inline_use().blocks, u64::from(inline_max > 0));
        assert_eq!(store.space().used, BLOCK, "it counts as a block either way");
        drop(store);
        let store = with(&medium, inline_max, None);
        has(&store, 0, 512);
    }
}

#[test]
fn growing_past_inline_limit_leaves_the_index() {
    let medium = formatted(2);
    for limit in [1, 1024, 4000] {
        let store = with(&medium, limit, None);
        for (length, blocks) in [(limit, 1), (limit + 1, 0), (limit, 1)] {
            put(&store, 0, length as usize);
            store.resize(id(0), length).unwrap();
            assert_eq!(store.inline_use().blocks, blocks, "{length} bytes of {limit}");
            has(&store, 0, length as usize);
        }
        put(&store, 0, limit as usize + 1);
        store.flush().unwrap();
    }
    // More than a block is never kept there.
    let store = with(&medium, u64::MAX, None);
    put(&store, 1, MAX_INLINE as usize);
    assert_eq!(store.inline_use().blocks, 1);
    put(&store, 1, MAX_INLINE as usize + 1);
    assert_eq!(store.inline_use().blocks, 0);
}

#[test]
fn small_objects_beyond_index_share_use_blocks() {
    let medium = formatted(3);
    let store = with(&medium, 1024, Some(10_000));
    for object in 0..100 {
        put(&store, object, 400);
    }
    let full = store.inline_use();
    assert!((15..=25).contains(&full.blocks) && full.bytes <= full.bytes_max, "{full:?}");
    assert_eq!(store.space().used, 100 * BLOCK);
    // An object that grows without space leaves the index; one that keeps its length stays.
    put(&store, 1, 400);
    assert_eq!(store.inline_use(), full);
    put(&store, 0, 1000);
    assert_eq!(store.inline_use().blocks, full.blocks - 1);
    put(&store, 2, 10);
    store.flush().unwrap();
    drop(store);
    // Less space than before: nothing moves, and nothing is added.
    let store = with(&medium, 1024, Some(100));
    let found = store.inline_use();
    assert_eq!((found.blocks, found.bytes_max), (full.blocks - 1, 100));
    put(&store, 200, 100);
    assert_eq!(store.inline_use().blocks, full.blocks - 1);
    for object in 0..100 {
        let length = [(0, 1000), (2, 400)].iter().find(|(of, _)| *of == object).map_or(400, |found| found.1);
        has(&store, object, length);
        store.remove(id(object)).unwrap();
    }
    assert_eq!((store.inline_use().blocks, store.inline_use().bytes), (0, 0));
    store.flush().unwrap();
    drop(store);
    let store = with(&medium, 1024, None);
    assert_eq!(store.space().used, BLOCK);
    assert!(store.health().is_sound());
}

/// A copy takes no space, and the bytes stay until the last one is removed.
#[test]
fn copies_of_small_object_share_its_bytes() {
    let medium = formatted(4);
    let store = with(&medium, 1024, None);
    put(&store, 0, 700);
    let one = store.inline_use();
    for copy in 1..50 {
        store.create(id(copy), ObjectType::User).unwrap();
        store.share(id(copy - 1), id(copy)).unwrap();
    }
    assert_eq!((store.inline_use(), store.space().used), (one, BLOCK));
    store.flush().unwrap();
    drop(store);
    let store = with(&medium, 1024, None);
    assert_eq!((store.inline_use(), store.space().used), (one, BLOCK));
    assert_eq!(store.map(id(7), 0, 9).unwrap()[0].kind, ExtentKind::Data { shared: true });
    store.write(id(20), 0, b"parted").unwrap();
    assert_eq!(store.inline_use().blocks, 2);
    for copy in (0..50).filter(|copy| *copy != 20) {
        let mut found = [0; 700];
        store.read(id(copy), 0, &mut found).unwrap();
        assert_eq!(found, [1; 700]);
        store.remove(id(copy)).unwrap();
    }
    assert_eq!((store.inline_use().blocks, store.space().used), (1, BLOCK));
}

/// Returns the number of records of inline blocks in the index, and the bytes in them.
fn records(medium: &SimMedium) -> (u64, u64) {
    let engine = redb::Builder::new().create_with_backend(Engine::on(medium)).unwrap();
    let transaction = engine.begin_write().unwrap();
    let table = transaction.open_table(TABLE).unwrap();
    let all = table.range::<&[u8; 25]>(
        &{
            let mut first = [0; 25];
            first[0] = 10;
            first
        }..,
    );
    all.unwrap()
        .map(|found| found.unwrap().1.value().len() as u64 - 5)
        .fold((0, 0), |(n, sum), l| (n + 1, sum + l))
}

/// After any history there is a record for each inline block and no other, and reopening counts the
/// same.
#[test]
fn inline_counts_match_records_after_any_history() {
    let mut most = 0;
    for seed in seeds(12) {
        let mut random = SeededRandom::new(seed);
        // The records are examined in files only.
        let (medium, mut store) = MEDIA[0](seed, CAPACITY);
        for _ in 0..6 {
            for _ in 0..60 {
                contract::apply(&store, &random_op(&mut random));
                most = most.max(store.inline_use().blocks);
            }
            store.flush().unwrap();
            let (usage, space) = (store.inline_use(), store.space());
            drop(store);
            let (blocks, bytes) = records(&medium);
            store = open(&medium).unwrap();
            assert_eq!((store.inline_use(), store.space()), (usage, space), "seed {seed}");
            assert_eq!((blocks, bytes + 64 * blocks), (usage.blocks, usage.bytes), "seed {seed}");
            assert!(store.health().is_sound(), "seed {seed}: {:?}", store.health());
        }
    }
    assert!(most > 0, "no history had a small object");
}
