//! Tests the allocator state against the engine itself.

use std::sync::Arc;

use redb::{Builder, Database, ReadableDatabase, TableDefinition};

use sealstone_redb_format::TreeCursor;

use super::backend::{IndexFile, LiveBackend};
use super::index::{NAME, RecordIndex};
use super::record::Key;
use super::verified_file::VerifiedFile;
use crate::contract::SeededRandom;
use crate::medium::Medium;
use crate::sim::SimMedium;

const UUID: [u8; 16] = *b"0123456789abcdef";
const TABLE: TableDefinition<'static, &[u8; 25], &[u8]> = TableDefinition::new(NAME);

fn key(number: u64) -> Key {
    let mut key = [1; 25];
    key[17..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Opens the engine on a file that was killed or closed; it must not walk over the file.
fn open(medium: &SimMedium) -> Database {
    let file = medium.open("index", false).unwrap();
    let mut verified_file = VerifiedFile::take(file, NAME, UUID, true).unwrap();
    let mut cursor = TreeCursor::new(&verified_file.reader, [0; 25], [255; 25]);
    while cursor.current().is_some() {
        cursor.pass();
    }
    assert!(verified_file.is_sound());
    verified_file.hand_over(false).unwrap();
    let pages = IndexFile::verified(&verified_file, Arc::default());
    let mut builder = Builder::new();
    builder.set_repair_callback(|_| panic!("the engine walks over the file"));
    builder.create_with_backend(LiveBackend::new(pages)).unwrap()
}

/// The engine accepts our allocator state, whatever pages are in use, and continues with it; its
/// own check confirms exactly which pages are free.
#[test]
fn engine_accepts_the_allocator_state() {
    for seed in 1..=4 {
        let mut random = SeededRandom::new(seed);
        let mut medium = SimMedium::new(seed);
        RecordIndex::format(medium.open("index", true).unwrap(), &UUID).unwrap();
        medium.sync_names().unwrap();
        for round in 0..6 {
            let mut engine = open(&medium);
            assert!(engine.check_integrity().unwrap(), "seed {seed}, round {round}");
            for _ in 0..3 {
                let transaction = engine.begin_write().unwrap();
                let mut table = transaction.open_table(TABLE).unwrap();
                let (from, count) = (random.below(3000), random.below(600));
                for number in from..from + count {
                    let long = [10, 300, 5000, 70_000][(random.below(10) / 3) as usize];
                    if (seed + round) % 3 == 0 {
                        table.remove(&key(number)).unwrap();
                    } else {
                        table
                            .insert(&key(number), &vec![round as u8; random.below(long) as usize][..])
                            .unwrap();
                    }
                }
                drop(table);
                transaction.commit().unwrap();
            }
            let records = |engine: &Database| {
                let table = engine.begin_read().unwrap().open_table(TABLE).unwrap();
                table.range::<&[u8; 25]>(..).unwrap().map(|pair| pair.unwrap().1.value().len()).sum::<usize>()
            };
            let expected = records(&engine);
            // After a kill or a power failure: the last commit was synced either way.
            medium = if round % 2 == 0 { medium.fork() } else { medium.crash() };
            assert_eq!(records(&open(&medium.fork())), expected, "seed {seed}, round {round}");
        }
    }
}

/// A walk that did not see every page yields no allocator state: the engine walks on its own.
#[test]
fn unseen_page_is_not_free() {
    let medium = SimMedium::new(1);
    RecordIndex::format(medium.open("index", true).unwrap(), &UUID).unwrap();
    let engine = open(&medium);
    let transaction = engine.begin_write().unwrap();
    for number in 0..500 {
        transaction.open_table(TABLE).unwrap().insert(&key(number), &[7; 100][..]).unwrap();
    }
    transaction.commit().unwrap();
    let killed = medium.fork();
    let mut verified_file =
        VerifiedFile::take(killed.open("index", false).unwrap(), NAME, UUID, true).unwrap();
    TreeCursor::new(&verified_file.reader, [0; 25], [255; 25]).current().unwrap();
    verified_file.hand_over(false).unwrap();
    let walked = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut builder = Builder::new();
    let reported = walked.clone();
    builder.set_repair_callback(move |_| reported.store(true, std::sync::atomic::Ordering::Relaxed));
    // It requests pages that were not verified, and receives none of them.
    assert!(
        builder
            .create_with_backend(LiveBackend::new(IndexFile::verified(&verified_file, Arc::default())))
            .is_err()
    );
    assert!(walked.load(std::sync::atomic::Ordering::Relaxed));
}
