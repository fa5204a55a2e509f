//! One failure of the medium at a time: an error and a consistent state, or success.
#![allow(clippy::unwrap_used)] // helpers of tests, too

mod support;

use std::sync::Arc;

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::{self, Op, Random};
use sealstone_store::sim::{Fault, SimMedium};
use sealstone_store::{DiskStore, FormatError, MemoryStore, ObjectStore, StoreError, format};
use support::{Fresh, MEDIA, format_options, fresh, open, options, seeds};

const CAPACITY: u64 = 6 << 20;

fn workload(seed: u64) -> Vec<Op> {
    let mut random = Random::new(seed);
    let mut ops: Vec<Op> = (0..4).map(Op::Create).collect();
    ops.extend((0..40).map(|_| contract::random_op(&mut random)));
    ops.push(Op::Flush);
    ops
}

/// A store with a history, closed, and what it holds.
struct Past {
    seed: u64,
    medium: SimMedium,
    memory: MemoryStore,
}

fn past(seed: u64, fresh: Fresh) -> Past {
    let (medium, store) = fresh(seed, CAPACITY);
    let memory = MemoryStore::new(CAPACITY);
    for op in workload(seed + 1000) {
        contract::apply(&store, &op);
        contract::apply(&memory, &op);
    }
    Past { seed, medium, memory }
}

/// Runs the workload with one fault, from a store just opened: nothing is cached.
fn survive(past: &Past, fault: Fault, crash: bool) {
    let seed = past.seed;
    let name = format!("seed {seed}, {fault:?}, crash {crash}");
    let medium = past.medium.fork();
    let store = open(&medium).unwrap();
    // `memory` follows what was acknowledged, `durable` what was flushed.
    let (memory, durable) = (past.memory.clone(), past.memory.clone());
    let calls = medium.calls();
    medium.fault(match fault {
        Fault::Read(n) => Fault::Read(calls.reads + n),
        Fault::Write(n) => Fault::Write(calls.writes + n),
        Fault::Sync(n) => Fault::Sync(calls.syncs + n),
        Fault::Power(n) => Fault::Power(calls.writes + calls.syncs + n),
    });
    let mut since: Vec<Op> = Vec::new();
    let mut poisoned = false;
    for (step, op) in workload(seed).iter().enumerate() {
        let answer = contract::apply(&store, op);
        let failed = answer.contains("Io {") || answer.contains("Index {") || answer.contains("Poisoned");
        if poisoned
            && !matches!(op, Op::Read(..) | Op::List(..) | Op::Map(..) | Op::Compare(..) | Op::Members(..))
        {
            let refused = ["Poisoned", "Io {", "Index {", "NotFound", "Exists", "TooLarge", "Damaged"];
            assert!(refused.iter().any(|word| answer.contains(word)), "{name}: step {step} {op:?}: {answer}");
            continue;
        }
        if failed {
            if answer.contains("Poisoned") || matches!(op, Op::Flush) {
                poisoned = true;
            }
            continue;
        }
        // Whatever did not fail answers as without faults; of reads only an unrepeatable in-place write may
        // leave a damaged block behind, and that store is poisoned.
        if answer.contains("Damaged") {
            assert!(
                matches!(store.flush(), Err(StoreError::Poisoned)),
                "{name}: step {step} {op:?}: {answer}"
            );
            poisoned = true;
            continue;
        }
        assert_eq!(answer, contract::apply(&memory, op), "{name}: step {step} {op:?}");
        since.push(op.clone());
        if matches!(op, Op::Flush) {
            for op in since.drain(..) {
                contract::apply(&durable, &op);
            }
        }
    }
    drop(store);
    let medium = if crash { medium.crash() } else { medium };
    let store = open(&medium).unwrap_or_else(|error| panic!("{name}: reopen: {error:?}"));
    let found = contract::snapshot(&store).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut since = since.into_iter();
    while contract::snapshot(&durable).unwrap() != found {
        let op = since.next().unwrap_or_else(|| panic!("{name}: no state since the last flush: {found:?}"));
        contract::apply(&durable, &op);
    }
    assert_eq!(store.space(), durable.space(), "{name}");
    store.create(ObjectId::new(9, 9), ObjectType::User).unwrap();
    store.flush().unwrap();
}

/// How often a workload calls the medium in each way.
fn calls_of(past: &Past) -> [u64; 3] {
    let medium = past.medium.fork();
    let store = open(&medium).unwrap();
    let before = medium.calls();
    for op in workload(past.seed) {
        contract::apply(&store, &op);
    }
    let after = medium.calls();
    [after.reads - before.reads, after.writes - before.writes, after.syncs - before.syncs]
}

#[test]
fn every_single_fault_is_an_error_or_harmless() {
    for (seed, fresh) in seeds(1).into_iter().flat_map(|seed| MEDIA.map(|fresh| (seed, fresh))) {
        let past = past(seed, fresh);
        let [reads, writes, syncs] = calls_of(&past);
        println!("seed {seed}: {reads} reads, {writes} writes, {syncs} syncs");
        (1..=reads).for_each(|n| survive(&past, Fault::Read(n), n % 8 == 0));
        for crash in [false, true] {
            (1..=writes).for_each(|n| survive(&past, Fault::Write(n), crash));
            (1..=syncs).for_each(|n| survive(&past, Fault::Sync(n), crash));
        }
    }
}

#[test]
fn after_a_failed_flush_writes_are_refused_and_reads_go_on() {
    for failing in 1..=2 {
        let (medium, store) = fresh(failing, CAPACITY);
        let id = ObjectId::new(1, 1);
        store.create(id, ObjectType::User).unwrap();
        store.write(id, 0, &[1; 10_000]).unwrap();
        store.flush().unwrap();
        store.write(id, 10_000, &[2; 10_000]).unwrap();
        // The first sync is that of the data, the second that of the index.
        medium.fault(Fault::Sync(medium.calls().syncs + failing));
        assert!(!store.is_poisoned());
        assert!(matches!(store.flush(), Err(StoreError::Io { .. } | StoreError::Index { .. })));
        assert!(store.is_poisoned());
        assert!(matches!(store.flush(), Err(StoreError::Poisoned)));
        assert!(matches!(store.write(id, 0, b"x"), Err(StoreError::Poisoned)));
        assert!(matches!(store.create(ObjectId::new(1, 2), ObjectType::User), Err(StoreError::Poisoned)));
        assert!(matches!(store.remove(id), Err(StoreError::Poisoned)));
        assert!(matches!(store.resize(id, 1), Err(StoreError::Poisoned)));
        let mut bytes = vec![0; 20_000];
        assert_eq!(store.read(id, 0, &mut bytes).unwrap(), 20_000);
        assert_eq!((bytes[0], bytes[10_000]), (1, 2));
        assert_eq!(store.list(ObjectId::ROOT, 10).unwrap().len(), 1);
        drop(store);
        let store = open(&medium.crash()).unwrap();
        let read = store.read(id, 0, &mut bytes).unwrap();
        assert!(read == 10_000 || read == 20_000);
        store.write(id, 0, b"x").unwrap();
        store.flush().unwrap();
    }
}

#[test]
fn a_full_disk_below_is_no_space_and_then_goes_on() {
    let (medium, store) = fresh(1, CAPACITY);
    let id = ObjectId::new(1, 1);
    store.create(id, ObjectType::User).unwrap();
    store.write(id, 0, &[1; 10_000]).unwrap();
    store.flush().unwrap();
    medium.limit_space(1 << 20);
    assert!(matches!(store.write(id, 0, &vec![2; 2 << 20]), Err(StoreError::NoSpace)));
    let mut bytes = vec![0; 10_000];
    assert_eq!(store.read(id, 0, &mut bytes).unwrap(), 10_000);
    assert!(bytes.iter().all(|&byte| byte == 1), "a refused write changes nothing");
    medium.limit_space(u64::MAX);
    store.write(id, 0, &vec![2; 2 << 20]).unwrap();
    store.flush().unwrap();
}

#[test]
fn an_interrupted_format_is_seen_and_can_be_done_again() {
    for seed in seeds(8) {
        let mut point = 1;
        loop {
            let medium = SimMedium::new(seed);
            medium.fault(Fault::Power(point));
            let finished = format(&medium, &format_options(CAPACITY)).is_ok();
            let medium = medium.crash();
            match open(&medium) {
                Ok(_) => {}
                Err(FormatError::NotFormatted | FormatError::FormatIncomplete) if !finished => {
                    format(&medium, &format_options(CAPACITY)).unwrap();
                    open(&medium).unwrap();
                }
                Err(error) => panic!("seed {seed}, point {point}: {error:?}"),
            }
            if finished {
                break;
            }
            point += 1;
        }
    }
}

/// The first edge may lie in a block that this group wrote already and that can be written in place: only when nothing
/// can fail any more.
#[test]
fn a_clear_whose_second_edge_cannot_be_read_changes_nothing() {
    let (medium, store) = fresh(1, CAPACITY);
    let id = ObjectId::new(1, 1);
    store.create(id, ObjectType::User).unwrap();
    store.write(id, 0, &[7; 8192]).unwrap();
    store.flush().unwrap();
    drop(store);
    let store = open(&medium).unwrap();
    store.write(id, 0, &[8; 4096]).unwrap();
    store.attributes(id, None).unwrap();
    medium.fault(Fault::Read(medium.calls().reads + 2));
    let failed = store.clear(id, 4000, 200);
    assert!(matches!(failed, Err(StoreError::Io { .. })), "the second block's read failed: {failed:?}");
    store.flush().unwrap();
    let mut bytes = [0; 8192];
    assert_eq!(store.read(id, 0, &mut bytes).unwrap(), 8192);
    assert!(bytes[..4096].iter().all(|&byte| byte == 8) && bytes[4096..].iter().all(|&byte| byte == 7));
}

#[test]
fn what_is_not_a_sound_store_is_named() {
    let broken = |how: fn(&SimMedium)| {
        let (medium, store) = fresh(1, CAPACITY);
        drop(store);
        how(&medium);
        open(&medium).unwrap_err()
    };
    use sealstone_store::Medium;
    assert!(matches!(open(&SimMedium::new(1)), Err(FormatError::NotFormatted)));
    let missing = broken(|medium| medium.delete("index.redb").unwrap());
    assert!(matches!(missing, FormatError::Missing { name } if name == "index.redb"));
    let short = broken(|medium| medium.open("index.redb", false).unwrap().set_len(0).unwrap());
    assert!(matches!(short, FormatError::Truncated { .. }));
    let version = broken(|medium| medium.open("superblock", false).unwrap().write_at(8, &[3]).unwrap());
    assert!(matches!(version, FormatError::Version { found: 3, supported: 2 }));
    let rotten = broken(|medium| medium.rot("superblock", 40, 1));
    assert!(matches!(rotten, FormatError::Superblock(_)));
    let foreign = broken(|medium| {
        let other = SimMedium::new(2);
        let options = sealstone_store::FormatOptions { uuid: [9; 16], ..format_options(CAPACITY) };
        format(&other, &options).unwrap();
        let (from, to) =
            (other.open("index.redb", false).unwrap(), medium.open("index.redb", false).unwrap());
        let mut bytes = vec![0; from.length().unwrap() as usize];
        from.read_at(0, &mut bytes).unwrap();
        to.set_len(0).unwrap();
        to.write_at(0, &bytes).unwrap();
    });
    assert!(matches!(foreign, FormatError::Foreign), "{foreign:?}");
    let (medium, _store) = fresh(1, CAPACITY);
    assert!(matches!(format(&medium, &format_options(CAPACITY)), Err(FormatError::AlreadyFormatted)));
    let again = sealstone_store::FormatOptions { overwrite: true, ..format_options(CAPACITY) };
    format(&medium, &again).unwrap();
    for capacity in [0, (1 << 20) - 1, (64 << 40) + 1] {
        let refused = format(&SimMedium::new(1), &format_options(capacity));
        assert!(matches!(refused, Err(FormatError::Capacity { .. })));
    }
}

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 0 { 0 } else { 0x82F6_3B78 })
    })
}

/// Makes a store one of version 1, which differs in the superblock alone as long as nothing is shared.
fn make_version_1(medium: &SimMedium) {
    use sealstone_store::Medium;
    let file = medium.open("superblock", false).unwrap();
    let mut bytes = [0; 512];
    file.read_at(0, &mut bytes).unwrap();
    bytes[8] = 1;
    let crc = crc32c(&bytes[..508]);
    bytes[508..].copy_from_slice(&crc.to_le_bytes());
    file.write_at(0, &bytes).unwrap();
    file.sync().unwrap();
}

/// Whenever the power fails, the store is one of the old version or of the new one, and all is in it.
#[test]
fn a_store_of_the_version_before_is_upgraded_when_it_is_opened() {
    use sealstone_store::Medium;
    let (medium, store) = fresh(1, CAPACITY);
    for op in workload(1).into_iter().filter(|op| !matches!(op, Op::Share(..))) {
        contract::apply(&store, &op);
    }
    store.flush().unwrap();
    let expected = contract::snapshot(&store).unwrap();
    drop(store);
    make_version_1(&medium);
    let mut point = 0;
    loop {
        let medium = medium.fork();
        point += 1;
        medium.fault(Fault::Power(medium.calls().writes + medium.calls().syncs + point));
        let opened = open(&medium).is_ok();
        let medium = medium.crash();
        assert_eq!(contract::snapshot(&open(&medium).unwrap()).unwrap(), expected, "point {point}");
        let mut version = [0; 4];
        medium.open("superblock", false).unwrap().read_at(8, &mut version).unwrap();
        assert_eq!(version, [2, 0, 0, 0], "point {point}");
        if opened {
            break;
        }
    }
    assert!(point > 2, "the upgrade writes and syncs");
}

#[test]
fn a_failing_open_can_be_repeated() {
    let (medium, store) = fresh(1, CAPACITY);
    for op in workload(1) {
        contract::apply(&store, &op);
    }
    let expected = contract::snapshot(&store).unwrap();
    drop(store);
    let medium = medium.crash();
    let before = medium.calls().reads;
    drop(open(&medium).unwrap());
    for nth in 1..=medium.calls().reads - before {
        medium.fault(Fault::Read(medium.calls().reads + nth));
        let result = DiskStore::open(Arc::new(medium.clone()), options());
        drop(result);
        let medium = medium.crash();
        assert_eq!(contract::snapshot(&open(&medium).unwrap()).unwrap(), expected);
    }
}
