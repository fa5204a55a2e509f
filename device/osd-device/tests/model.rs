//! READ, WRITE, APPEND, CLEAR, PUNCH and the logical length against a plain vector, on both stores.

use std::sync::Arc;

use crate::support::{Bench, ListPair, PID, user};
use proptest::prelude::*;
use sealstone_osd::Command;
use sealstone_osd::cdb::*;
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_store::{DiskStore, FileMedium, FormatOptions, MemoryStore, ObjectStore, StoreOptions};

const OID: u64 = 0x10000;
/// Upper limit of object lengths in the test, in bytes: several blocks.
const SPAN: u64 = 40_000;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Append(Vec<u8>),
    Clear(u64, u64),
    Punch(u64, u64),
    Resize(u64),
    Read(u64, u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![0..SPAN, (0..10u64).prop_map(|block| block * 4096)];
    let data = || (any::<u8>(), 0..9000usize).prop_map(|(byte, length)| vec![byte; length]);
    prop_oneof![
        4 => (at(), data()).prop_map(|(at, data)| Step::Write(at, data)),
        2 => data().prop_map(Step::Append),
        2 => (at(), 0..9000u64).prop_map(|(at, length)| Step::Clear(at, length)),
        2 => (at(), 0..9000u64).prop_map(|(at, length)| Step::Punch(at, length)),
        1 => (0..SPAN).prop_map(Step::Resize),
        4 => (at(), 0..20_000u64).prop_map(|(at, length)| Step::Read(at, length)),
        1 => Just(Step::Flush),
    ]
}

/// Applies a step to the vector.
fn apply(model: &mut Vec<u8>, step: &Step) -> bool {
    let index = |at: u64| usize::try_from(at).unwrap();
    match step {
        Step::Write(at, data) => {
            if !data.is_empty() {
                let end = index(*at) + data.len();
                model.resize(model.len().max(end), 0);
                model[index(*at)..end].copy_from_slice(data);
            }
        }
        Step::Append(data) => model.extend_from_slice(data),
        Step::Clear(at, length) => {
            if *length > 0 {
                let end = index(at + length);
                model.resize(model.len().max(end), 0);
                model[index(*at)..end].fill(0);
            }
        }
        Step::Punch(at, length) => {
            if index(*at) > model.len() {
                return false;
            }
            let end = index(at + length).min(model.len());
            model.drain(index(*at)..end);
        }
        Step::Resize(length) => model.resize(index(*length), 0),
        Step::Read(at, _) => return index(*at) <= model.len(),
        Step::Flush => {}
    }
    true
}

fn send(bench: &Bench, step: &Step) -> crate::support::Answer {
    let object = user(OID);
    let extent = |start, length| Extent { object, start, length };
    let none = ListPair::default;
    match step {
        Step::Write(at, data) => bench.run(Command::Write(extent(*at, data.len() as u64)), none(), data),
        Step::Append(data) => {
            bench.run(Command::Append(Append { object, length: data.len() as u64 }), none(), data)
        }
        Step::Clear(at, length) => bench.run(Command::Clear(extent(*at, *length)), none(), &[]),
        Step::Punch(at, length) => bench.run(Command::Punch(extent(*at, *length)), none(), &[]),
        Step::Resize(length) => {
            let lists = ListPair::set(&[(1, 0x82, &length.to_be_bytes())]);
            bench.run(Command::SetAttributes(Target { object }), lists, &[])
        }
        Step::Read(at, length) => bench.run(Command::Read(extent(*at, *length)), none(), &[]),
        Step::Flush => {
            let flush = Flush { object, scope: FlushScope::Everything, start: 0, length: 0 };
            bench.run(Command::Flush(flush), none(), &[])
        }
    }
}

fn compare(store: Arc<dyn ObjectStore>, steps: &[Step]) -> Result<(), TestCaseError> {
    let bench = Bench::with(OsdConfig::default(), store);
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    let mut model = Vec::new();
    for step in steps {
        let allowed = apply(&mut model, step);
        let answer = send(&bench, step);
        if let (Step::Read(at, length), true) = (step, allowed) {
            let start = usize::try_from(*at).unwrap();
            let there = usize::try_from(*length).unwrap().min(model.len() - start);
            prop_assert_eq!(&answer.data[..], &model[start..start + there]);
            let short = there as u64 != *length;
            prop_assert_eq!(answer.status == Status::CheckCondition, short);
            if short {
                prop_assert_eq!(answer.sense(), (1, 0x3B17));
                prop_assert_eq!(answer.sense.unwrap().command_specific, Some(there as u64));
            }
        } else {
            prop_assert_eq!(answer.status == Status::Good, allowed, "{:?}", step);
        }
        prop_assert_eq!(bench.store.stat(user(OID)).unwrap().length, model.len() as u64);
        // The partition reports the space that the object uses.
        let used = bench.run(
            Command::GetAttributes(Target { object: sealstone_osd::ObjectId::of_partition(PID) }),
            ListPair::get(&[(0x3000_0001, 0x81)]),
            &[],
        );
        let used = u64::from_be_bytes(crate::support::value(&used.attributes).try_into().unwrap());
        prop_assert_eq!(used, bench.store.stat(user(OID)).unwrap().used_bytes);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_device_in_memory_is_a_vector(steps in proptest::collection::vec(step(), 1..40)) {
        compare(Arc::new(MemoryStore::new(16 << 20)), &steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn a_device_on_disk_is_a_vector(steps in proptest::collection::vec(step(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let medium = Arc::new(FileMedium::open(folder.path()).unwrap());
        let options = FormatOptions { segment: Some(16 << 20), ..FormatOptions::new(64 << 20, [1; 16]) };
        sealstone_store::format(&*medium, &options).unwrap();
        compare(Arc::new(DiskStore::open(medium, StoreOptions::default()).unwrap()), &steps)?;
    }
}

#[test]
fn nearly_full_disk_allows_repeated_overwrite() {
    let folder = tempfile::tempdir().unwrap();
    let medium = Arc::new(FileMedium::open(folder.path()).unwrap());
    let options = FormatOptions { segment: Some(16 << 20), ..FormatOptions::new(64 << 20, [1; 16]) };
    sealstone_store::format(&*medium, &options).unwrap();
    let store = Arc::new(DiskStore::open(medium, StoreOptions::default()).unwrap());
    let bench = Bench::with(OsdConfig::default(), store);
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    let chunk = vec![7; 1 << 20];
    let mut written = 0u64;
    loop {
        let extent = Extent { object: user(OID), start: written, length: 1 << 20 };
        let answer = bench.run(Command::Write(extent), ListPair::default(), &chunk);
        if answer.status != Status::Good {
            assert_eq!(answer.sense(), (7, 0x5507));
            break;
        }
        written += 1 << 20;
    }
    assert!(written >= 60 << 20, "{written}");
    for round in 0..3 {
        for at in (0..written).step_by(1 << 20) {
            let extent = Extent { object: user(OID), start: at, length: 1 << 20 };
            let answer = bench.run(Command::Write(extent), ListPair::default(), &chunk);
            assert_eq!(
                answer.status,
                Status::Good,
                "round {round}, byte {at} of {written}: {:?}",
                answer.sense
            );
        }
    }
}

#[test]
fn large_overwrites_reuse_freed_space() {
    for length in [7u64, 12, 20].map(|mib| mib << 20) {
        let folder = tempfile::tempdir().unwrap();
        let medium = Arc::new(FileMedium::open(folder.path()).unwrap());
        let options = FormatOptions { segment: Some(16 << 20), ..FormatOptions::new(64 << 20, [1; 16]) };
        sealstone_store::format(&*medium, &options).unwrap();
        let store = Arc::new(DiskStore::open(medium, StoreOptions::default()).unwrap());
        let bench = Bench::with(OsdConfig::default(), store);
        bench.create_partition(PID);
        bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
        let chunk = vec![7; usize::try_from(length).unwrap()];
        // One fewer than fits: an overwrite needs new blocks before the old ones are free.
        let count = (64 << 20) / length - 1;
        for at in (0..count).chain(0..count).chain(0..count) {
            let extent = Extent { object: user(OID), start: at * length, length };
            let answer = bench.run(Command::Write(extent), ListPair::default(), &chunk);
            assert_eq!(answer.status, Status::Good, "{at} of {count} times {length}: {:?}", answer.sense);
        }
    }
}
