//! Contract tests of the disk store, on the simulated disk and on real files.

use std::sync::Arc;
use std::thread;

use crate::support::{format_options, fresh, fresh_device, open, options, seeds};
use proptest::prelude::*;
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::{self, ModelOp, SeededRandom};
use sealstone_store::{
    BLOCK, BlockDevice, DEVICE_MIN, DeviceMedium, DiskStore, FileMedium, FormatError, IoMode, ObjectStore,
    StoreError, StoreOptions, bind_device, format, open_store_medium,
};

#[test]
fn the_simulated_disk_keeps_the_contract() {
    contract::contract(|capacity| fresh(1, capacity).1);
}

#[test]
fn real_files_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    contract::contract(|capacity| {
        number.set(number.get() + 1);
        let medium = FileMedium::open(folder.path().join(number.get().to_string())).unwrap();
        format(&medium, &format_options(capacity)).unwrap();
        DiskStore::open(Arc::new(medium), options()).unwrap()
    });
}

#[test]
fn a_simulated_raw_device_keeps_the_contract() {
    contract::contract(|capacity| fresh_device(1, capacity).1);
}

#[test]
fn a_file_as_raw_device_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    contract::contract(|capacity| {
        number.set(number.get() + 1);
        let path = folder.path().join(number.get().to_string());
        std::fs::File::create(&path).unwrap().set_len(2 * DEVICE_MIN + capacity).unwrap();
        let device = Arc::new(BlockDevice::open(&path).unwrap());
        let medium = DeviceMedium::format(device, [7; 16], false).unwrap();
        format(&medium, &format_options(capacity)).unwrap();
        DiskStore::open(Arc::new(medium), options()).unwrap()
    });
}

/// With O_DIRECT, on files and on a file as raw device; without O_DIRECT for temporary files, the
/// test prints that it is skipped.
#[test]
fn data_past_the_page_cache_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    for raw in [false, true] {
        let open = |capacity| -> Result<DiskStore, FormatError> {
            number.set(number.get() + 1);
            let path = folder.path().join(number.get().to_string());
            if raw {
                let device = folder.path().join(format!("raw-{}", number.get()));
                std::fs::File::create(&device).unwrap().set_len(2 * DEVICE_MIN + capacity).unwrap();
                format(&bind_device(&path, &device, [7; 16], false)?, &format_options(capacity))?;
            } else {
                format(&FileMedium::open(&path)?, &format_options(capacity))?;
            }
            DiskStore::open(open_store_medium(&path, IoMode::Direct)?, options())
        };
        match open(4 << 20) {
            Ok(_) => contract::contract(|capacity| open(capacity).unwrap()),
            Err(FormatError::Io { source, .. }) if source.kind() == std::io::ErrorKind::InvalidInput => {
                println!("no O_DIRECT here");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Space of removed objects returns to the file system, in files and through a raw device; without
/// support for holes it stays allocated.
#[test]
fn removed_objects_return_space_to_file_system() {
    use std::os::unix::fs::MetadataExt;
    const LENGTH: u64 = 24 << 20;
    let folder = tempfile::tempdir().unwrap();
    for (raw, asked) in [(false, false), (false, true), (true, false), (true, true)] {
        let path = folder.path().join(format!("{raw}-{asked}"));
        let device = folder.path().join(format!("raw-{asked}"));
        if raw {
            std::fs::File::create(&device).unwrap().set_len(4 * DEVICE_MIN).unwrap();
            format(&bind_device(&path, &device, [7; 16], false).unwrap(), &format_options(32 << 20)).unwrap();
        } else {
            format(&FileMedium::open(&path).unwrap(), &format_options(32 << 20)).unwrap();
        }
        let discard_blocks_min = if asked { 16 } else { u64::MAX };
        let options = StoreOptions { discard_blocks_min, ..StoreOptions::default() };
        let store = DiskStore::open(open_store_medium(&path, IoMode::Auto).unwrap(), options).unwrap();
        let allocated = || -> u64 {
            let files = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            let segments = files.filter(|file| file.to_string_lossy().contains("segment-"));
            let of = |file: &std::path::Path| file.metadata().unwrap().blocks() * 512;
            if raw { of(&device) } else { segments.map(|file| of(&file)).sum() }
        };
        let (kept, removed) = (ObjectId::new(1, 1), ObjectId::new(1, 2));
        for id in [kept, removed] {
            store.create(id, ObjectType::User).unwrap();
        }
        store.write(kept, 0, &[7; 100_000]).unwrap();
        store.write(removed, 0, &vec![8; LENGTH as usize]).unwrap();
        store.flush().unwrap();
        let full = allocated();
        store.remove(removed).unwrap();
        store.flush().unwrap();
        let after = allocated();
        if asked && after < full {
            assert!(after + LENGTH <= full + (1 << 20), "raw {raw}: {full} bytes, then {after}");
        }
        assert!(asked || after + (1 << 20) >= full, "nobody asked: {full} bytes, then {after}");
        let mut bytes = vec![0; 100_000];
        assert_eq!(store.read(kept, 0, &mut bytes).unwrap(), 100_000);
        assert!(bytes.iter().all(|&byte| byte == 7));
        store.write(kept, 0, &vec![9; LENGTH as usize]).unwrap();
        assert!(store.verify(kept).unwrap().is_empty(), "discarded space can be used again");
    }
}

#[test]
fn any_history_is_that_of_the_model() {
    for seed in seeds(30) {
        let mut random = SeededRandom::new(seed);
        let mut ops = contract::random_profiles(&mut random).to_vec();
        ops.extend((0..300).map(|_| contract::random_op(&mut random)));
        let (medium, store) = if seed % 5 == 0 { fresh_device(seed, 4 << 20) } else { fresh(seed, 4 << 20) };
        println!("seed {seed}");
        contract::model(&store, &ops);
        // After a clean reopen it is all still present.
        let before = contract::snapshot(&store).unwrap();
        let space = store.space();
        store.flush().unwrap();
        drop(store);
        let store = open(&medium).unwrap();
        assert_eq!(contract::snapshot(&store).unwrap(), before, "seed {seed}");
        assert_eq!(store.space(), space, "seed {seed}");
    }
}

fn any_op() -> impl Strategy<Value = ModelOp> {
    any::<u64>().prop_map(|seed| contract::random_op(&mut SeededRandom::new(seed)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// As above, with shrinking.
    #[test]
    fn any_short_history_is_that_of_the_model(
        profiles: u64, mut ops in proptest::collection::vec(any_op(), 1..60),
    ) {
        ops.splice(0..0, contract::random_profiles(&mut SeededRandom::new(profiles)));
        contract::model(&fresh(1, 4 << 20).1, &ops);
    }
}

#[test]
fn a_large_sequential_write_is_few_reads() {
    let (medium, store) = fresh(1, 32 << 20);
    drop(store);
    let store = DiskStore::open(Arc::new(medium.clone()), StoreOptions::default()).unwrap();
    let id = ObjectId::new(0x1_0000, 0x1_0000);
    store.create(id, ObjectType::User).unwrap();
    for part in 0..64 {
        store.write(id, part << 16, &vec![part as u8; 1 << 16]).unwrap();
    }
    store.flush().unwrap();
    store.read(id, 0, &mut vec![0; 4 << 20]).unwrap();
    let before = medium.calls().reads;
    store.read(id, 0, &mut vec![0; 4 << 20]).unwrap();
    // 256 KiB at a time, 1 MiB segments.
    assert!(medium.calls().reads - before <= 4 * 4 + 2, "{} reads", medium.calls().reads - before);
}

#[test]
fn corruption_is_reported_exactly_where_it_is() {
    let (medium, store) = fresh(1, 4 << 20);
    let id = ObjectId::new(0x1_0000, 0x1_0000);
    store.create(id, ObjectType::User).unwrap();
    store.write(id, 0, &[7; 100_000]).unwrap();
    store.flush().unwrap();
    // The first data ever written is at the start of the first segment.
    medium.rot("segment-00000", 5 * BLOCK + 100, 0x10);
    let mut bytes = vec![0; 100_000];
    match store.read(id, 0, &mut bytes) {
        Err(StoreError::Damaged { object, offset, length }) => {
            assert_eq!((object, offset, length), (id, 5 * BLOCK, BLOCK))
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.read(id, 6 * BLOCK - 1, &mut [0; 1]), Err(StoreError::Damaged { .. })));
    assert_eq!(store.read(id, 6 * BLOCK, &mut bytes[..50_000]).unwrap(), 50_000);
    assert_eq!(store.read(id, 0, &mut bytes[..5 * BLOCK as usize]).unwrap(), 5 * BLOCK as usize);
    assert_eq!(store.verify(id).unwrap(), [(5 * BLOCK, BLOCK)]);
    assert!(matches!(store.write(id, 5 * BLOCK + 1, b"x"), Err(StoreError::Damaged { .. })), "no laundering");
    store.write(id, 5 * BLOCK, &[8; BLOCK as usize]).unwrap();
    assert_eq!(store.read(id, 0, &mut bytes).unwrap(), 100_000, "a whole block written anew is sound");
    assert!(store.verify(id).unwrap().is_empty());
}

#[test]
fn one_flush_serves_all_that_wait() {
    let (medium, store) = fresh(1, 4 << 20);
    let before = medium.calls().syncs;
    thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for step in 0..50 {
                    let id = ObjectId::new(thread, step);
                    store.create(id, ObjectType::User).unwrap();
                    store.write(id, 0, &[thread as u8; 5000]).unwrap();
                    store.flush().unwrap();
                }
            });
        }
    });
    let syncs = medium.calls().syncs - before;
    println!("{syncs} syncs for 400 flushes");
    // Alone, each flush would sync a segment and the index.
    assert!(syncs < 800, "{syncs} syncs");
    drop(store);
    let store = open(&medium.crash()).unwrap();
    assert_eq!(store.space().objects, 400);
}

#[test]
fn concurrent_readers_never_see_mixed_writes() {
    let (_, store) = fresh(1, 16 << 20);
    let objects = 4;
    let length = 150_000;
    for object in 0..objects {
        store.create(ObjectId::new(1, object), ObjectType::User).unwrap();
        store.write(ObjectId::new(1, object), 0, &vec![0; length]).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let mut random = SeededRandom::new(seed);
                let mut bytes = vec![0; length];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let id = ObjectId::new(1, random.below(objects));
                    assert_eq!(store.read(id, 0, &mut bytes).unwrap(), length);
                    assert!(
                        bytes.iter().all(|&byte| byte == bytes[0]),
                        "a write is seen whole or not at all"
                    );
                }
            });
        }
        let mut writers = Vec::new();
        for seed in 10..12 {
            let store = &store;
            writers.push(scope.spawn(move || {
                let mut random = SeededRandom::new(seed);
                for step in 0..200 {
                    let id = ObjectId::new(1, random.below(objects));
                    store.write(id, 0, &vec![random.next() as u8; length]).unwrap();
                    if step % 9 == 0 {
                        store.flush().unwrap();
                    }
                }
            }));
        }
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn flush_inside_a_scope_is_refused() {
    let (_, store) = fresh(1, 4 << 20);
    let outer = store.begin();
    let inner = store.begin();
    assert!(matches!(store.flush(), Err(StoreError::ScopeOpen)));
    drop(inner);
    assert!(matches!(store.flush(), Err(StoreError::ScopeOpen)));
    drop(outer);
    store.flush().unwrap();
}

#[test]
fn ticks_commit_old_or_large_groups() {
    let medium = sealstone_store::sim::SimMedium::new(1);
    format(&medium, &format_options(8 << 20)).unwrap();
    let options = StoreOptions { group_bytes_max: 1 << 20, ..options() };
    let store = DiskStore::open(Arc::new(medium.clone()), options).unwrap();
    let second = |n| std::time::Duration::from_millis(n);
    let id = ObjectId::new(1, 1);
    let syncs = || medium.calls().syncs;
    let before = syncs();
    store.tick(second(0)).unwrap();
    store.create(id, ObjectType::User).unwrap();
    store.tick(second(5_000)).unwrap();
    store.tick(second(5_999)).unwrap();
    assert_eq!(syncs(), before, "neither old nor large");
    store.tick(second(6_000)).unwrap();
    assert!(syncs() > before, "old");
    let before = syncs();
    store.write(id, 0, &vec![1; 1 << 20]).unwrap();
    store.tick(second(6_001)).unwrap();
    assert!(syncs() > before, "large");
}

#[test]
fn a_full_store_takes_overwrites_in_scopes() {
    let (_, store) = fresh(1, 4 << 20);
    let id = ObjectId::new(1, 1);
    store.create(id, ObjectType::User).unwrap();
    store.write(id, 0, &vec![0; 4 << 20]).unwrap();
    for round in 0..30 {
        let _scope = store.begin();
        store.write(id, (round % 3) << 20, &vec![round as u8; 1 << 20]).unwrap();
        store.write(id, (3 << 20) + 5, &[round as u8; 100]).unwrap();
        assert!(matches!(store.write(id, 4 << 20, b"x"), Err(StoreError::NoSpace)));
    }
}

/// Corruption anywhere in the index: an error, never a panic or wrong bytes.
#[test]
fn corrupt_index_causes_no_panic_or_wrong_bytes() {
    let (medium, store) = fresh(1, 4 << 20);
    for object in 0..40 {
        let id = ObjectId::new(1, object);
        store.create(id, ObjectType::User).unwrap();
        store.write(id, 0, &[object as u8 + 1; 5000]).unwrap();
    }
    store.flush().unwrap();
    drop(store);
    let length = sealstone_store::Medium::open(&medium, "index.redb", false).unwrap().length().unwrap();
    for seed in seeds(300) {
        let mut random = SeededRandom::new(seed);
        let medium = medium.fork();
        for _ in 0..1 + random.below(20) {
            medium.rot("index.redb", random.below(length), 1 << random.below(8));
        }
        let Ok(store) = open(&medium) else { continue };
        for object in 0..40 {
            let id = ObjectId::new(1, object);
            let mut bytes = [0; 5000];
            if let Ok(5000) = store.read(id, 0, &mut bytes) {
                assert!(bytes == [object as u8 + 1; 5000], "seed {seed}: object {object}");
            }
            if store.remove(id).is_ok() {
                store.create(id, ObjectType::User).unwrap();
            }
        }
        let _ = store.flush();
    }
}
