//! Large partitions and collections: answers fit the allocation, and other commands run in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Bench, ListPair, PID, user};
use sealstone_osd::cdb::*;
use sealstone_osd::continuation::Segment as Continuation;
use sealstone_osd::listing::{Listing, parse_matches};
use sealstone_osd::query::{Criterion, QueryList, QueryType};
use sealstone_osd::{AttributeId, Command, Generation, ObjectId, SecurityMethod};
use sealstone_osd_device::OsdConfig;
use sealstone_store::MemoryStore;

const OID: u64 = 0x10000;
const CID: u64 = 0x9_0000_0000;
const EVERYTHING: u64 = 0x1082;
/// User objects of the large partition; `SEALSTONE_OBJECTS` changes it.
const OBJECTS: u64 = 20_000;

fn objects() -> u64 {
    let asked = std::env::var("SEALSTONE_OBJECTS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(OBJECTS)
}

fn large() -> Bench {
    let bench = Bench::with(OsdConfig::default(), Arc::new(MemoryStore::new(64 << 20)));
    bench.create_partition(PID);
    let mut left = objects();
    while left > 0 {
        let count = left.min(10_000);
        let create = Command::Create(Create { object: user(0), count: u16::try_from(count).unwrap() });
        bench.run(create, ListPair::default(), &[]).good();
        left -= count;
    }
    bench
}

fn query(bench: &Bench, allocation: u64) -> Vec<u8> {
    let command =
        Command::Query(Query { object: user(EVERYTHING), allocation, matches: 0, immediate: false });
    let middle = (OID + objects() / 2).to_be_bytes();
    let id = AttributeId::new(1, 2);
    let criteria = vec![Criterion { id, min: &middle, max: &[] }];
    let list = QueryList { kind: QueryType::Union, criteria }.encode().unwrap();
    let segment = Continuation { query: Some(list), ..Continuation::default() };
    let capability = bench.capability(&command, SecurityMethod::AllData);
    let ready = bench.ready_scattered(
        command,
        &ListPair::default(),
        &[],
        &capability,
        segment.encode(0x88A0).unwrap(),
    );
    let reply = bench.send(&ready);
    bench.verify(&ready, &reply).unwrap().good().data
}

#[test]
fn everything_is_listed_and_queried_within_the_allocation() {
    let bench = large();
    let count = objects();
    let begun = Instant::now();
    let (mut seen, mut initial) = (0, 0);
    loop {
        let object = ObjectId::of_partition(PID);
        let list = List { object, list_id: 0, allocation: 1 << 16, initial, with_attributes: false };
        let data = bench.run(Command::List(list), ListPair::default(), &[]).good().data;
        assert!(data.len() <= 1 << 16);
        let listing = Listing::parse(Generation::Osd2, &data).unwrap();
        if initial == 0 {
            assert_eq!(listing.full_len, Some(24 + 8 * count));
        }
        seen += listing.ids().count() as u64;
        initial = listing.next;
        if initial == 0 {
            break;
        }
    }
    assert_eq!(seen, count);
    println!("LIST of {count} in parts of 64 KiB: {:?}", begun.elapsed());
    let begun = Instant::now();
    let whole = query(&bench, 16 << 20);
    println!("QUERY of {count}: {:?}", begun.elapsed());
    assert_eq!(parse_matches(&whole).unwrap().len() as u64, count - count / 2);
    let part = query(&bench, 1000);
    assert!(part.len() <= 1000 && part[..8] == whole[..8], "truncated, with its full length");
}

/// A creation in the same partition, and a change of a member, wait for at most one step, not for
/// the whole command.
#[test]
fn long_iterations_let_other_commands_run() {
    let bench = large();
    let over = AtomicBool::new(false);
    let (longest, changes, whole) = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let (mut longest, mut changes) = (Duration::ZERO, 0_u64);
            while !over.load(Ordering::SeqCst) {
                let begun = Instant::now();
                bench
                    .run(Command::Create(Create { object: user(0), count: 1 }), ListPair::default(), &[])
                    .good();
                let set = Command::SetAttributes(Target { object: user(OID) });
                bench.run(set, ListPair::set(&[(0x1_0000, 1, b"x")]), &[]).good();
                longest = longest.max(begun.elapsed());
                changes += 1;
            }
            (longest, changes)
        });
        let begun = Instant::now();
        let create = CreateTracking { object: user(CID), source: EVERYTHING, immediate: false };
        bench.track(create).good();
        query(&bench, 1 << 16);
        let whole = begun.elapsed();
        over.store(true, Ordering::SeqCst);
        let (longest, changes) = others.join().unwrap();
        (longest, changes, whole)
    });
    println!("{changes} pairs of changes within {whole:?}, the longest took {longest:?}");
    // There are hundreds of steps. A command that held its locks throughout would allow hardly any
    // change.
    assert!(changes >= 8, "{changes} within {whole:?}");
}
