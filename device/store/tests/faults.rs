//! One failure of the medium at a time: an error and a consistent state, or success.

use std::sync::Arc;

use crate::support::{Fresh, MEDIA, format_options, fresh, open, options, seeds};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::{self, ModelOp, SeededRandom};
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{DiskStore, FormatError, MemoryStore, ObjectStore, StoreError, StoreFault, format};

const CAPACITY: u64 = 6 << 20;

fn workload(seed: u64) -> Vec<ModelOp> {
    let mut random = SeededRandom::new(seed);
    let mut ops: Vec<ModelOp> = (0..4).map(ModelOp::Create).collect();
    ops.extend((0..40).map(|_| contract::random_op(&mut random)));
    ops.push(ModelOp::Flush);
    ops
}

/// A closed store with a history, and its contents.
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

/// Runs the workload with one fault, on a store just opened, without cached records.
fn survive(past: &Past, fault: DiskFault, crash: bool) {
    let seed = past.seed;
    let name = format!("seed {seed}, {fault:?}, crash {crash}");
    let medium = past.medium.fork();
    let store = open(&medium).unwrap();
    // `memory` has the acknowledged state, `durable` the flushed one.
    let (memory, durable) = (past.memory.clone(), past.memory.clone());
    let calls = medium.calls();
    medium.fault(match fault {
        DiskFault::Read(n) => DiskFault::Read(calls.reads + n),
        DiskFault::Write(n) => DiskFault::Write(calls.writes + n),
        DiskFault::Full(n) => DiskFault::Full(calls.writes + n),
        DiskFault::Sync(n) => DiskFault::Sync(calls.syncs + n),
        DiskFault::Power(n) => DiskFault::Power(calls.writes + calls.syncs + n),
    });
    let mut since: Vec<ModelOp> = Vec::new();
    let mut poisoned = false;
    for (step, op) in workload(seed).iter().enumerate() {
        let answer = contract::apply(&store, op);
        let failed = answer.contains("Io {") || answer.contains("Index {") || answer.contains("Poisoned");
        let reads = matches!(
            op,
            ModelOp::Read(..)
                | ModelOp::List(..)
                | ModelOp::Map(..)
                | ModelOp::Compare(..)
                | ModelOp::Members(..)
                | ModelOp::PageDigest(..)
        );
        if poisoned && !reads {
            let refused = ["Poisoned", "Io {", "Index {", "NotFound", "Exists", "TooLarge", "Damaged"];
            assert!(refused.iter().any(|word| answer.contains(word)), "{name}: step {step} {op:?}: {answer}");
            continue;
        }
        if failed {
            if answer.contains("Poisoned") || matches!(op, ModelOp::Flush) {
                poisoned = true;
            }
            continue;
        }
        // Operations without a failure return the same as without faults. Only an unrepeatable
        // in-place write may leave a damaged block for reads, and that store is poisoned.
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
        if matches!(op, ModelOp::Flush) {
            for op in since.drain(..) {
                contract::apply(&durable, &op);
            }
        }
    }
    drop(store);
    // The caches keep different entries each time, so the number of reads varies. A fault of one of
    // the last reads may not have occurred, and must not occur in the reopening.
    if matches!(fault, DiskFault::Read(n) if medium.calls().reads < calls.reads + n) {
        return;
    }
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

/// Returns how often a workload calls the medium in each way.
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
        (1..=reads).for_each(|n| survive(&past, DiskFault::Read(n), n % 8 == 0));
        for crash in [false, true] {
            (1..=writes).for_each(|n| survive(&past, DiskFault::Write(n), crash));
            (1..=syncs).for_each(|n| survive(&past, DiskFault::Sync(n), crash));
        }
    }
}

#[test]
fn failed_flush_refuses_writes_and_keeps_reads() {
    for failing in 1..=2 {
        let (medium, store) = fresh(failing, CAPACITY);
        let id = ObjectId::new(1, 1);
        store.create(id, ObjectType::User).unwrap();
        store.write(id, 0, &[1; 10_000]).unwrap();
        store.flush().unwrap();
        store.write(id, 10_000, &[2; 10_000]).unwrap();
        // The first sync is that of the data, the second that of the index.
        medium.fault(DiskFault::Sync(medium.calls().syncs + failing));
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
fn full_disk_is_no_space_until_space_returns() {
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
fn interrupted_format_is_detected_and_can_be_repeated() {
    for seed in seeds(8) {
        let mut point = 1;
        loop {
            let medium = SimMedium::new(seed);
            medium.fault(DiskFault::Power(point));
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

/// The first edge may lie in a block that this group already wrote and that can be written in
/// place: that must happen only when nothing can fail any more.
#[test]
fn clear_with_unreadable_edge_changes_nothing() {
    let (medium, store) = fresh(1, CAPACITY);
    let id = ObjectId::new(1, 1);
    store.create(id, ObjectType::User).unwrap();
    store.write(id, 0, &[7; 8192]).unwrap();
    store.flush().unwrap();
    drop(store);
    let store = open(&medium).unwrap();
    store.write(id, 0, &[8; 4096]).unwrap();
    store.attributes(id, None).unwrap();
    medium.fault(DiskFault::Read(medium.calls().reads + 2));
    let failed = store.clear(id, 4000, 200);
    assert!(matches!(failed, Err(StoreError::Io { .. })), "the second block's read failed: {failed:?}");
    store.flush().unwrap();
    let mut bytes = [0; 8192];
    assert_eq!(store.read(id, 0, &mut bytes).unwrap(), 8192);
    assert!(bytes[..4096].iter().all(|&byte| byte == 8) && bytes[4096..].iter().all(|&byte| byte == 7));
}

#[test]
fn unusable_stores_are_reported_by_cause() {
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
    let version = broken(|medium| make_version(medium, 5, &[0, 4096]));
    assert!(matches!(version, FormatError::Version { found: 5, supported: 4 }));
    let rotten = broken(|medium| [40, 4096 + 40].into_iter().for_each(|at| medium.rot("superblock", at, 1)));
    assert!(matches!(rotten, FormatError::Superblock(_)));
    let empty = broken(|medium| medium.open("superblock", false).unwrap().set_len(0).unwrap());
    assert!(matches!(empty, FormatError::Superblock(_)), "an interrupted format has no index: {empty:?}");
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

/// Computes CRC32C bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 0 { 0 } else { 0x82F6_3B78 })
    })
}

/// Converts a store to another version, with copies of the superblock at these offsets. Versions 1
/// and 2 differ in the superblock alone, as long as nothing is shared in 1, and had one copy.
fn make_version(medium: &SimMedium, version: u8, copies: &[u64]) {
    use sealstone_store::Medium;
    let file = medium.open("superblock", false).unwrap();
    let mut bytes = [0; 512];
    file.read_at(0, &mut bytes).unwrap();
    bytes[8] = version;
    // The copy of the index's header was in the header's own page, or did not exist; there was no
    // write log.
    bytes[60] = 0;
    bytes[64..72].fill(0);
    medium.delete("write-log").unwrap();
    medium.sync_names().unwrap();
    let index = medium.open("index.redb", false).unwrap();
    index.set_len(index.length().unwrap() - 4096).unwrap();
    index.sync().unwrap();
    let crc = crc32c(&bytes[..508]);
    bytes[508..].copy_from_slice(&crc.to_le_bytes());
    file.set_len(0).unwrap();
    for &at in copies {
        file.write_at(at, &bytes).unwrap();
    }
    file.sync().unwrap();
}

/// Each bit of both copies, one at a time: nothing is lost, and the copy is rewritten.
#[test]
fn a_flipped_bit_in_the_superblock_costs_nothing() {
    let (medium, store) = fresh(1, CAPACITY);
    store.create(ObjectId::new(1, 1), ObjectType::User).unwrap();
    store.flush().unwrap();
    drop(store);
    let sound = bytes_of(&medium, "superblock");
    for copy in [0, 4096] {
        for byte in 0..512 {
            let medium = medium.fork();
            medium.rot("superblock", copy + byte, 1 << (byte % 8));
            let store = open(&medium).unwrap_or_else(|error| panic!("byte {byte}: {error}"));
            assert_eq!(store.health().faults, [StoreFault::Superblock], "byte {byte}");
            assert_eq!(store.stat(ObjectId::new(1, 1)).unwrap().length, 0);
            assert!(!store.is_poisoned());
            assert_eq!(bytes_of(&medium, "superblock"), sound, "byte {byte}: written anew");
        }
    }
    medium.spoil("superblock", 0);
    assert!(open(&medium).unwrap().health().faults.contains(&StoreFault::Superblock));
    assert!(open(&medium).unwrap().health().is_sound(), "the disk took the sector back when it was written");
}

fn bytes_of(medium: &SimMedium, name: &str) -> Vec<u8> {
    let file = sealstone_store::Medium::open(medium, name, false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Wherever the power fails, the store has the old version or the new one, with all data.
#[test]
fn older_store_is_upgraded_when_opened() {
    use sealstone_store::Medium;
    for (old, seed) in [(1, 1), (2, 1), (2, 2), (3, 1)] {
        let (medium, store) = fresh(seed, CAPACITY);
        // Older versions had no digests.
        for partition in [0, 1] {
            contract::apply(&store, &ModelOp::Profile(partition, 0));
        }
        for op in workload(seed).into_iter().filter(|op| old > 1 || !matches!(op, ModelOp::Share(..))) {
            contract::apply(&store, &op);
        }
        store.flush().unwrap();
        let expected = contract::snapshot(&store).unwrap();
        drop(store);
        make_version(&medium, old, if old < 3 { &[0] } else { &[0, 4096] });
        // Those versions had no copy of the index's header.
        medium.open("index.redb", false).unwrap().write_at(512, &[0; 512]).unwrap();
        medium.open("index.redb", false).unwrap().sync().unwrap();
        let mut point = 0;
        loop {
            let medium = medium.fork();
            point += 1;
            medium.fault(DiskFault::Power(medium.calls().writes + medium.calls().syncs + point));
            let opened = open(&medium).is_ok();
            let medium = medium.crash();
            assert_eq!(
                contract::snapshot(&open(&medium).unwrap()).unwrap(),
                expected,
                "{old}, point {point}"
            );
            for copy in [0, 4096] {
                let mut version = [0; 4];
                medium.open("superblock", false).unwrap().read_at(copy + 8, &mut version).unwrap();
                assert_eq!(version, [4, 0, 0, 0], "{old}, point {point}");
            }
            if opened {
                break;
            }
        }
        assert!(point > 4, "the upgrade writes and syncs twice");
    }
}

/// After a failed sync the system treats pages as written that are not. Opening the store again
/// before a reboot reads them; so all of them must reach the medium before anything is based on
/// them.
#[test]
fn pages_of_failed_sync_are_written_again() {
    for fresh in MEDIA {
        for seed in seeds(12) {
            for nth in 1..=3 {
                let (medium, store) = fresh(seed, CAPACITY);
                for op in workload(seed) {
                    contract::apply(&store, &op);
                }
                let mut struck = false;
                for op in workload(seed + 100) {
                    if matches!(op, ModelOp::Flush) && !std::mem::replace(&mut struck, true) {
                        medium.fault(DiskFault::Sync(medium.calls().syncs + nth));
                    }
                    contract::apply(&store, &op);
                }
                drop(store);
                // The fault may occur here: then retry.
                let store = open(&medium).or_else(|_| open(&medium)).unwrap();
                assert!(!store.is_poisoned(), "seed {seed}, sync {nth}: {:?}", store.health());
                let _ = store.create(ObjectId::new(9, 9), ObjectType::User);
                store.flush().unwrap();
                let expected = contract::snapshot(&store).unwrap();
                drop(store);
                let store =
                    open(&medium.crash()).unwrap_or_else(|error| panic!("seed {seed}, sync {nth}: {error}"));
                assert!(!store.is_poisoned(), "seed {seed}, sync {nth}: {:?}", store.health());
                assert_eq!(contract::snapshot(&store).unwrap(), expected, "seed {seed}, sync {nth}");
            }
        }
    }
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
        medium.fault(DiskFault::Read(medium.calls().reads + nth));
        let result = DiskStore::open(Arc::new(medium.clone()), options());
        drop(result);
        let medium = medium.crash();
        assert_eq!(contract::snapshot(&open(&medium).unwrap()).unwrap(), expected);
    }
}

/// A store over several sessions, with its expected contents.
struct Life {
    name: String,
    medium: SimMedium,
    /// Everything that is certainly in the store.
    durable: MemoryStore,
    /// Operations since, in order: any prefix of them may be in the store.
    since: Vec<ModelOp>,
}

impl Life {
    /// Opens the store, uses it and closes it. At most one call fails.
    fn session(&mut self, seed: u64) {
        let store = match open(&self.medium) {
            Ok(store) => store,
            // It failed, so it does not fail again; whatever it left is repaired.
            Err(_) => {
                open(&self.medium).unwrap_or_else(|error| panic!("{}: open again: {error:?}", self.name))
            }
        };
        assert!(!store.is_poisoned(), "{}: one failure is no damage: {:?}", self.name, store.health());
        let memory = self.durable.clone();
        let mut poisoned = false;
        for op in workload(seed) {
            let answer = contract::apply(&store, &op);
            let writes = !matches!(
                op,
                ModelOp::Read(..)
                    | ModelOp::List(..)
                    | ModelOp::Map(..)
                    | ModelOp::Compare(..)
                    | ModelOp::Members(..)
            );
            if poisoned && writes {
                // A store that refuses changes executes none, whatever it returns.
                assert!(
                    !answer.starts_with("Ok") || !matches!(op, ModelOp::Flush),
                    "{}: {op:?}: {answer}",
                    self.name
                );
                continue;
            }
            if ["Io {", "Index {", "Poisoned"].iter().any(|word| answer.contains(word)) {
                poisoned |= store.is_poisoned();
                assert!(
                    poisoned || !matches!(op, ModelOp::Flush),
                    "{}: a failed flush poisons: {answer}",
                    self.name
                );
                continue;
            }
            let expected = contract::apply(&memory, &op);
            if answer != expected {
                // Only a full disk, or a block that could not be written in place, changes the
                // result.
                let allowed = answer.contains("NoSpace") || answer.contains("Damaged");
                assert!(allowed, "{}: {op:?}: {answer}, not {expected}", self.name);
                assert!(
                    !answer.contains("Damaged") || store.is_poisoned(),
                    "{}: {op:?}: {answer}",
                    self.name
                );
                // The model did what the store refused: from here on they differ.
                poisoned = true;
                if writes {
                    break;
                }
                continue;
            }
            self.since.push(op.clone());
            if matches!(op, ModelOp::Flush) {
                for op in self.since.drain(..) {
                    contract::apply(&self.durable, &op);
                }
            }
        }
    }

    /// Checks that the current state, after a crash if requested, is one that the store went
    /// through, not before the last flush.
    fn settle(&mut self, crash: bool) {
        if crash {
            self.medium = self.medium.crash();
        }
        let name = &self.name;
        let store = match open(&self.medium) {
            Ok(store) => store,
            Err(_) => open(&self.medium).unwrap_or_else(|error| panic!("{name}: reopen: {error:?}")),
        };
        assert!(store.health().damage.is_empty() && !store.is_poisoned(), "{name}: {:?}", store.health());
        // The single failure may occur here, too.
        let found = contract::snapshot(&store).or_else(|_| contract::snapshot(&store));
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut since = std::mem::take(&mut self.since).into_iter();
        while contract::snapshot(&self.durable).unwrap() != found {
            let op = since.next().unwrap_or_else(|| panic!("{name}: no state since the last flush"));
            contract::apply(&self.durable, &op);
        }
        assert_eq!(store.space(), self.durable.space(), "{name}");
    }
}

/// Each single call of a store's life fails once: the upgrade from the previous version, two
/// sessions with all operations, closing and opening. With EIO, and with a full disk.
#[test]
fn every_fault_from_upgrade_to_reopening_is_survived() {
    let all = std::env::var_os("SEALSTONE_SEEDS").is_some();
    for seed in seeds(1) {
        let past = past(seed, fresh);
        let medium = past.medium.crash();
        make_version(&medium, 2, &[0]);
        let life = |fault: Option<DiskFault>, crash| {
            let medium = medium.fork();
            let name = format!("seed {seed}, {fault:?}, crash {crash}");
            fault.into_iter().for_each(|fault| medium.fault(fault));
            let durable = past.memory.clone();
            let mut life = Life { name, medium, durable, since: Vec::new() };
            life.session(seed + 50);
            life.settle(false);
            life.session(seed + 60);
            life.settle(crash);
            life.medium.calls()
        };
        let before = medium.calls();
        let calls = life(None, false);
        let [reads, writes, syncs] =
            [calls.reads - before.reads, calls.writes - before.writes, calls.syncs - before.syncs];
        println!("seed {seed}: {reads} reads, {writes} writes, {syncs} syncs");
        // Reads change nothing, so the next one finds the same state: every third one, unless more
        // is requested.
        for n in (1..=reads).step_by(if all { 1 } else { 3 }) {
            life(Some(DiskFault::Read(before.reads + n)), n % 2 == 0);
        }
        for n in 1..=writes {
            life(Some(DiskFault::Write(before.writes + n)), n % 2 == 0);
            life(Some(DiskFault::Full(before.writes + n)), n % 2 == 1);
        }
        for n in 1..=syncs {
            life(Some(DiskFault::Sync(before.syncs + n)), n % 2 == 0);
            life(Some(DiskFault::Sync(before.syncs + n)), n % 2 == 1);
        }
    }
}

/// Formatting over an older store, with each single call failing: it can be repeated, and no
/// intermediate state opens as a store with other contents.
#[test]
fn every_fault_of_reformatting_is_survived() {
    let (medium, store) = fresh(1, CAPACITY);
    store.create(ObjectId::new(1, 1), ObjectType::User).unwrap();
    store.flush().unwrap();
    drop(store);
    let again = sealstone_store::FormatOptions { overwrite: true, ..format_options(CAPACITY) };
    let before = medium.calls();
    let calls = {
        let medium = medium.fork();
        format(&medium, &again).unwrap();
        medium.calls()
    };
    let writes = (1..=calls.writes - before.writes)
        .flat_map(|n| [DiskFault::Write(before.writes + n), DiskFault::Full(before.writes + n)]);
    let syncs = (1..=calls.syncs - before.syncs).map(|n| DiskFault::Sync(before.syncs + n));
    let reads = (1..=calls.reads - before.reads).map(|n| DiskFault::Read(before.reads + n));
    for (crash, fault) in writes.chain(syncs).chain(reads).flat_map(|fault| [(false, fault), (true, fault)]) {
        let medium = medium.fork();
        medium.fault(fault);
        let finished = format(&medium, &again).is_ok();
        let medium = if crash { medium.crash() } else { medium };
        match open(&medium) {
            Ok(store) => {
                let old = store.stat(ObjectId::new(1, 1)).is_ok();
                assert!(!(old && finished), "{fault:?}: the older store is back");
                assert!(old || store.list(ObjectId::ROOT, 10).unwrap().is_empty(), "{fault:?}");
            }
            Err(FormatError::FormatIncomplete | FormatError::NotFormatted) if !finished => {}
            Err(error) => panic!("{fault:?}, crash {crash}: {error:?}"),
        }
        format(&medium, &again).unwrap_or_else(|error| panic!("{fault:?}, crash {crash}: again: {error:?}"));
        assert!(open(&medium).unwrap().list(ObjectId::ROOT, 10).unwrap().is_empty());
    }
}
