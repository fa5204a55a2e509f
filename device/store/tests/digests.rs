//! Stored digests on the disk: which are known, for how long, and which are never returned.

use std::sync::Arc;

use crate::support::{bytes, fresh, object_of, open, options, seeds};
use sealstone_digest::{CoveredDigests, DigestCover, Profile};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::{self, ModelOp, SeededRandom};
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{
    AttributeId, BLOCK, DigestCheck, DigestStore, DiskStore, Medium, ObjectStore, StoreError, StoreOptions,
};

const PARTITION: u64 = 0x1_0000;

/// Returns which units of an object have a known digest; checks that those are right.
fn known(store: &DiskStore, id: ObjectId) -> Vec<bool> {
    let mut content = vec![0; store.stat(id).unwrap().length as usize];
    store.read(id, 0, &mut content).unwrap();
    assert_eq!(contract::wrong_digests(store, id, &content).unwrap(), [0; 0]);
    store.digests(id, 0, content.len() as u64).unwrap().values.iter().map(Option::is_some).collect()
}

#[test]
fn writes_keep_every_unit_digest_known() {
    for profile in Profile::ALL {
        let (medium, store) = fresh(1, 8 << 20);
        let id = object_of(&store, PARTITION, Some(profile));
        let mut random = SeededRandom::new(7);
        for step in 0..60 {
            let (at, length) = (random.below(1_200_000), 1 + random.below(100_000) as usize);
            store.write(id, at, &bytes(step, length)).unwrap();
        }
        store.resize(id, 1_150_001).unwrap();
        store.clear(id, 5000, 300).unwrap();
        store.clear(id, 3 * BLOCK, BLOCK).unwrap();
        store.write(id, 0, &bytes(99, 1_150_001)).unwrap();
        store.write(id, 777, b"a few bytes").unwrap();
        store.write(id, 1_150_001, b"and an end").unwrap();
        let all = known(&store, id);
        assert_eq!(all.len() as u64, 1_150_011_u64.div_ceil(profile.unit_bytes()));
        assert!(all.iter().all(|known| *known), "{profile:?}");
        store.flush().unwrap();
        drop(store);
        let store = open(&medium).unwrap();
        assert_eq!((known(&store, id), store.profile(PARTITION)), (all, Some(profile)));
    }
}

/// As in a store of version 2: records whose profile byte is 0, in a partition that has a profile.
#[test]
fn units_without_digest_get_one_when_written() {
    let (_, store) = fresh(1, 8 << 20);
    let old = object_of(&store, PARTITION, None);
    let id = object_of(&store, PARTITION + 1, Some(Profile::Blake3));
    let content = bytes(1, 100_000);
    store.write(old, 0, &content).unwrap();
    store.share(old, id).unwrap();
    assert_eq!(known(&store, id), [false; 7]);
    assert!(store.digests(old, 0, 100_000).unwrap().values.is_empty());
    let mut into = vec![0; 100_000];
    let read = store.read_digested(id, 0, &mut into, DigestCheck::ByStore).unwrap();
    assert_eq!((read.count, read.stored, into == content), (100_000, 0, true));
    let covered = read.covered.unwrap();
    assert_eq!(covered.values()[3], Profile::Blake3.value(3, &content[3 << 14..4 << 14]));
    // A part of one unit, all of another.
    store.write(id, (1 << 14) + 5, b"x").unwrap();
    store.write(id, 3 << 14, &bytes(2, 1 << 14)).unwrap();
    assert_eq!(known(&store, id), [false, true, false, true, false, false, false]);
    assert_eq!(store.read_digested(id, 0, &mut into, DigestCheck::ByStore).unwrap().stored, 2);
}

#[test]
fn share_copies_known_digests() {
    let (_, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::Sha1));
    let same = ObjectId::new(PARTITION, 0x1_0001);
    store.create(same, ObjectType::User).unwrap();
    let foreign = object_of(&store, PARTITION + 1, Some(Profile::AdHash256));
    store.write(id, 0, &bytes(1, 50_000)).unwrap();
    store.share(id, same).unwrap();
    store.share(id, foreign).unwrap();
    assert_eq!(known(&store, same), [true; 7]);
    assert_eq!(known(&store, foreign), [false; 7], "values of another profile are none");
    store.write(same, 8192, b"x").unwrap();
    assert_eq!((known(&store, same), known(&store, id)), (vec![true; 7], vec![true; 7]));
}

#[test]
fn digest_of_damaged_unit_is_never_returned() {
    let (medium, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::Blake3));
    store.write(id, 0, &bytes(1, 64 << 10)).unwrap();
    store.flush().unwrap();
    // Block 5, in the second unit; the first data ever written is at the start of the first
    // segment.
    medium.rot("segment-00000", 5 * BLOCK + 100, 0x10);
    let mut into = vec![0; 64 << 10];
    assert!(
        matches!(store.read_digested(id, 0, &mut into, DigestCheck::ByStore), Err(StoreError::Damaged { offset, .. }) if offset == 5 * BLOCK)
    );
    assert!(
        matches!(store.read_digested(id, 16 << 10, &mut into[..1], DigestCheck::ByStore), Ok(read) if read.count == 1)
    );
    // A write to another block of the unit cannot hash the damaged rest: the unit has no digest
    // from then on.
    store.write(id, 6 * BLOCK, &[9; BLOCK as usize]).unwrap();
    let values = store.digests(id, 0, 64 << 10).unwrap().values;
    assert_eq!(values.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true]);
    assert!(matches!(
        store.read_digested(id, 0, &mut into, DigestCheck::ByStore),
        Err(StoreError::Damaged { .. })
    ));
    // Rewriting the block repairs it.
    store.write(id, 5 * BLOCK, &[8; BLOCK as usize]).unwrap();
    assert_eq!(known(&store, id), [true; 4]);
}

/// A layer above that has a good copy writes the damaged ranges as reported. Then the object is as
/// before, including its digests, and stays so.
#[test]
fn good_copy_restores_a_damaged_object() {
    for profile in Profile::ALL {
        let (medium, store) = fresh(1, 8 << 20);
        let id = object_of(&store, PARTITION, Some(profile));
        // Two chunks, two segments, and a last block that is a short one.
        let (copy, length) = (bytes(3, 1_200_001), 1_200_001);
        store.write(id, 0, &copy).unwrap();
        store.flush().unwrap();
        let digests = store.digests(id, 0, length).unwrap().values;
        assert!(digests.iter().all(Option::is_some));
        let rotten = [0, 5, 6, 255, 256, 292];
        for block in rotten {
            medium.rot(&format!("segment-{:05}", block / 256), block % 256 * BLOCK + 100, 0x10);
        }
        assert!(matches!(
            store.read(id, 0, &mut vec![0; length as usize]),
            Err(StoreError::Damaged { offset: 0, .. })
        ));
        let damaged = store.verify(id).unwrap();
        let pieces = rotten.map(|block| (block * BLOCK, BLOCK.min(length - block * BLOCK)));
        assert_eq!(damaged, pieces, "{profile:?}");
        for (offset, length) in damaged {
            store.write(id, offset, &copy[offset as usize..(offset + length) as usize]).unwrap();
        }
        let is_whole = |store: &DiskStore| {
            let mut found = vec![0; length as usize];
            store.read(id, 0, &mut found).unwrap();
            assert!(found == copy, "{profile:?}");
            assert!(store.digests(id, 0, length).unwrap().values == digests, "{profile:?}");
            assert_eq!(store.verify(id).unwrap(), []);
            assert!(store.health().is_sound(), "{:?}", store.health());
        };
        is_whole(&store);
        store.flush().unwrap();
        is_whole(&open(&medium.crash()).unwrap());
    }
}

/// A receiver that has the digests checks the bytes: it gets them as the medium returned them, with
/// the digests that they should have. The store checks everything that the receiver cannot.
#[test]
fn store_checks_everything_the_receiver_does_not() {
    for profile in Profile::ALL {
        let (medium, store) = fresh(1, 8 << 20);
        let id = object_of(&store, PARTITION, Some(profile));
        let (content, unit) = (bytes(1, 70_001), profile.values().unit_bytes());
        store.write(id, 0, &content).unwrap();
        store.flush().unwrap();
        let read = |at: u64, length: usize, checked| {
            let mut into = vec![0; length];
            let read = store.read_digested(id, at, &mut into, checked);
            read.map(|read| (into, read.covered.unwrap()))
        };
        let right = |at: usize, length: usize| {
            CoveredDigests::of(
                DigestCover::new(profile, at as u64, length as u64, 70_001),
                &content[at..at + length],
            )
        };
        // The third unit, and the last block, of which the object has 369 bytes.
        let (third, last) = (2 * unit, 17 * BLOCK);
        for at in [third + 5, last + 7] {
            medium.rot("segment-00000", at, 0x10);
            let (got, covered) = read(0, 70_001, DigestCheck::ByReceiver).unwrap();
            assert!(got != content && covered == right(0, 70_001), "{profile:?}");
            assert_ne!(CoveredDigests::of(covered.cover().clone(), &got), covered);
            medium.rot("segment-00000", at, 0x10);
        }
        assert!(store.health().is_sound());
        medium.rot("segment-00000", third + 5, 0x10);
        // The unit is read partially: its digest does not apply to the bytes read.
        let (start, end) = (third as usize, (third + unit) as usize);
        for (at, length) in [(start, unit as usize - 1), (start + 1, unit as usize - 1), (0, start + 6)] {
            let found = read(at as u64, length, DigestCheck::ByReceiver).unwrap_err();
            assert!(matches!(found, StoreError::Damaged { offset, .. } if offset == third), "{found:?}");
        }
        // Now the damage is known, and every read reports it.
        assert!(!store.health().is_sound());
        for checked in [DigestCheck::ByReceiver, DigestCheck::ByStore] {
            assert!(matches!(read(0, end, checked), Err(StoreError::Damaged { .. })));
        }
        assert!(matches!(store.read(id, 0, &mut vec![0; end]), Err(StoreError::Damaged { .. })));
        // The rest is undamaged, and after rewriting the damage, all of it.
        assert!(read(0, start, DigestCheck::ByReceiver).unwrap().1 == right(0, start));
        store.write(id, third, &content[start..end]).unwrap();
        let (got, covered) = read(0, 70_001, DigestCheck::ByReceiver).unwrap();
        assert!(got == content && covered == right(0, 70_001));
    }
}

/// A digest that does not match the bytes, though all checksums are right: here from a caller that
/// passes a wrong one.
#[test]
fn scrub_finds_digests_that_do_not_match() {
    for profile in Profile::ALL {
        let (_, store) = fresh(1, 8 << 20);
        let id = object_of(&store, PARTITION, Some(profile));
        let (data, mut other) = (bytes(1, 1_200_000), bytes(1, 1_200_000));
        store.write(id, 0, &data).unwrap();
        assert_eq!(store.verify(id).unwrap(), []);
        other[1_100_000] ^= 1;
        let covered = CoveredDigests::of(DigestCover::new(profile, 0, 1_200_000, 1_200_000), &other);
        store.write_digested(id, 0, &data, &covered).unwrap();
        let unit = 1_100_000 / profile.unit_bytes() * profile.unit_bytes();
        let mut into = vec![0; 1_200_000];
        let read = store.read_digested(id, 0, &mut into, DigestCheck::ByReceiver).unwrap();
        assert_eq!((into == data, read.covered.as_ref() == Some(&covered)), (true, true));
        let found = store.read_digested(id, 0, &mut into, DigestCheck::ByStore);
        let length = profile.unit_bytes();
        assert!(
            matches!(found, Err(StoreError::Damaged { offset, length: l, .. }) if (offset, l) == (unit, length))
        );
        assert_eq!(store.verify(id).unwrap(), [(unit, length)], "{profile:?}");
        store.write(id, unit, &data[unit as usize..][..profile.unit_bytes() as usize]).unwrap();
        assert_eq!(store.verify(id).unwrap(), []);
    }
}

#[test]
fn unreadable_rest_loses_digest_but_write_succeeds() {
    let (medium, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::Blake3));
    store.write(id, 0, &bytes(1, 32 << 10)).unwrap();
    store.flush().unwrap();
    // All of the data, and nothing of the index, which the store may read at any time.
    for name in medium.list().unwrap().iter().filter(|name| name.starts_with("segment")) {
        (0..1 << 20).step_by(512).for_each(|at| medium.spoil(name, at));
    }
    store.write(id, 0, &[3; BLOCK as usize]).unwrap();
    medium.heal();
    assert_eq!(known(&store, id), [false, true]);
    store.write(id, 0, &[4; BLOCK as usize]).unwrap();
    assert_eq!(known(&store, id), [true, true]);
}

#[test]
fn lazy_partial_write_leaves_digest_to_the_reader() {
    let (medium, store) = fresh(1, 8 << 20);
    drop(store);
    let lazy = StoreOptions { digest_lazily: true, ..options() };
    let store = DiskStore::open(Arc::new(medium.clone()), lazy).unwrap();
    let id = object_of(&store, PARTITION, Some(Profile::Blake3));
    store.write(id, 0, &bytes(1, 100_000)).unwrap();
    assert_eq!(known(&store, id), [true; 7]);
    let reads = medium.calls().reads;
    store.write(id, 20_480, &[1; BLOCK as usize]).unwrap();
    assert_eq!(medium.calls().reads, reads);
    assert_eq!(known(&store, id), [true, false, true, true, true, true, true]);
    let mut into = vec![0; 100_000];
    let read = store.read_digested(id, 0, &mut into, DigestCheck::ByStore).unwrap();
    assert_eq!(read.stored, 6);
    assert_eq!(read.covered.unwrap().values()[1], Profile::Blake3.value(1, &into[1 << 14..2 << 14]));
}

#[test]
fn undigested_partition_reads_no_rest_of_units() {
    let (medium, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::Blake3));
    let content = bytes(1, 100_000);
    store.write(id, 0, &content).unwrap();
    store.flush().unwrap();
    drop(store);
    let undigested = StoreOptions { undigested: [PARTITION].into(), ..options() };
    let store = DiskStore::open(Arc::new(medium.clone()), undigested).unwrap();
    assert_eq!(store.profile(PARTITION), None);
    // The first write reads records of the index.
    store.write(id, 20_480, &[2; BLOCK as usize]).unwrap();
    let reads = medium.calls().reads;
    store.write(id, 20_480, &[1; BLOCK as usize]).unwrap();
    assert_eq!(medium.calls().reads, reads);
    let mut into = vec![0; 100_000];
    assert_eq!(store.read(id, 0, &mut into).unwrap(), into.len());
    assert!(into[..20_480] == content[..20_480] && into[20_480..][..BLOCK as usize] == [1; BLOCK as usize]);
    store.flush().unwrap();
    drop(store);
    // An opening without the option computes the digests again.
    let store = DiskStore::open(Arc::new(medium.clone()), options()).unwrap();
    assert_eq!(known(&store, id), [false; 7]);
    let read = store.read_digested(id, 0, &mut into, DigestCheck::ByStore).unwrap();
    assert_eq!(read.stored, 0);
    store.write(id, 0, &content).unwrap();
    assert_eq!(known(&store, id), [true; 7]);
}

/// AdHash: a small change reads only the block that it changes, and hashes little.
#[test]
fn a_small_change_is_incremental_under_adhash() {
    let (medium, store) = fresh(1, 8 << 20);
    let mut reads = Vec::new();
    for (partition, profile) in [(PARTITION, Profile::AdHash256), (PARTITION + 1, Profile::Sha1)] {
        let id = object_of(&store, partition, Some(profile));
        store.write(id, 0, &bytes(1, 64 << 10)).unwrap();
        let before = medium.calls().reads;
        store.write(id, 5000, b"some bytes").unwrap();
        store.write(id, (64 << 10) + 1000, b"after a gap").unwrap();
        store.write(id, (64 << 10) + 1011, b"at the end").unwrap();
        reads.push(medium.calls().reads - before);
        assert!(known(&store, id).iter().all(|known| *known));
    }
    // The changed block is read in both cases, the unit's other block under SHA-1 only.
    assert!(reads[0] < reads[1], "{reads:?}");
}

#[test]
fn corrupt_digest_is_an_error() {
    let (medium, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::Blake3));
    let content = bytes(1, 16 << 10);
    store.write(id, 0, &content).unwrap();
    // An index of more pages than its root.
    for object in 0..200 {
        let other = ObjectId::new(PARTITION, 0x2_0000 + object);
        store.create(other, ObjectType::User).unwrap();
        store.write(other, 0, &bytes(object, 5000)).unwrap();
    }
    store.flush().unwrap();
    drop(store);
    let digest = Profile::Blake3.value(0, &content);
    let file = Medium::open(&medium, "index.redb", false).unwrap();
    let mut all = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut all).unwrap();
    let place = all.windows(32).rposition(|window| window == digest.as_bytes()).expect("stored as it is");
    // More than can be repaired.
    (0..5).for_each(|byte| medium.rot("index.redb", place as u64 + 7 * byte, 1));
    let store = open(&medium).unwrap();
    assert!(matches!(store.digests(id, 0, 16 << 10), Err(StoreError::IndexDamaged { .. })));
    assert!(matches!(
        store.read_digested(id, 0, &mut [0; 9], DigestCheck::ByStore),
        Err(StoreError::IndexDamaged { .. })
    ));
}

#[test]
fn page_digest_is_kept_until_next_change() {
    let (medium, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::Blake3));
    let attribute = AttributeId { page: 7, number: 3 };
    store.set_attribute(id, attribute, b"one").unwrap();
    let one = store.page_digest(id, 7).unwrap();
    store.flush().unwrap();
    drop(store);
    let store = open(&medium).unwrap();
    assert_eq!(store.page_digest(id, 7).unwrap(), one);
    store.set_attribute(id, attribute, b"two").unwrap();
    let two = store.page_digest(id, 7).unwrap();
    assert_ne!(two, one);
    store.set_attribute(id, attribute, b"one").unwrap();
    store.flush().unwrap();
    drop(store);
    let store = open(&medium.crash()).unwrap();
    assert_eq!(store.page_digest(id, 7).unwrap(), one);
}

/// Checks that all objects of a store have right sums.
fn check_sums(store: &DiskStore, what: &str) -> usize {
    let mut seen = 0;
    for (id, _) in store.list(ObjectId::ROOT, 100).unwrap() {
        if let Some((stored, found)) = store.digest_sums(id).unwrap() {
            assert_eq!(stored, found, "{what}: {id}");
            seen += usize::from(store.stat(id).unwrap().used_bytes > 0);
        }
    }
    seen
}

fn lt_world(seed: u64) -> (SimMedium, DiskStore) {
    let (medium, store) = fresh(seed, 8 << 20);
    for partition in [0, 1] {
        contract::apply(&store, &ModelOp::Profile(partition, Profile::LtHash.code()));
    }
    (medium, store)
}

#[test]
fn object_sum_matches_digests_after_any_history() {
    let mut seen = 0;
    for seed in seeds(12) {
        let (medium, store) = lt_world(seed);
        let mut random = SeededRandom::new(seed);
        for step in 0..150 {
            let op = contract::random_op(&mut random);
            contract::apply(&store, &op);
            if step % 10 == 0 {
                seen += check_sums(&store, &format!("seed {seed}, step {step}: {op:?}"));
            }
        }
        store.flush().unwrap();
        let calls = medium.calls();
        medium.fault(DiskFault::Power(calls.writes + calls.syncs + 1 + random.below(40)));
        for _ in 0..60 {
            contract::apply(&store, &contract::random_op(&mut random));
        }
        drop(store);
        let store = open(&medium.crash()).unwrap();
        seen += check_sums(&store, &format!("seed {seed}, after a crash"));
    }
    assert!(seen > 100, "{seen} objects with bytes");
}
