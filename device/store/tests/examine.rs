//! Examination for damage: all stored checks are compared, and missing digests are computed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::records::{edit_record, record_key};
use crate::support::{bytes, fresh, object_of, open};
use sealstone_digest::{CoveredDigests, DigestCover, Profile};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::{self, SeededRandom};
use sealstone_store::sim::SimMedium;
use sealstone_store::{
    AttributeId, BLOCK, CompletedDigests, Damage, DamageKind, DigestStore, DiskStore, ObjectExamination,
    ObjectExaminer, ObjectStore, PIECE,
};

const PARTITION: u64 = 0x1_0000;

/// Examines all of an object; returns bytes read, damage, and the pieces that lack digests.
fn examine(store: &DiskStore, id: ObjectId) -> (u64, Vec<Damage>, Vec<u64>) {
    let mut examination = ObjectExamination::of(id);
    let (mut read, mut damage, mut incomplete) = (0, Vec::new(), Vec::new());
    loop {
        let step = store.examine(&mut examination).unwrap();
        assert!(step.bytes <= PIECE);
        read += step.bytes;
        damage.extend(step.damage);
        incomplete.extend(step.incomplete);
        if !step.more {
            return (read, damage, incomplete);
        }
    }
}

/// Returns which units have a known digest; checks that those are right.
fn known(store: &DiskStore, id: ObjectId) -> Vec<bool> {
    let mut content = vec![0; store.stat(id).unwrap().length as usize];
    store.read(id, 0, &mut content).unwrap();
    assert_eq!(contract::wrong_digests(store, id, &content).unwrap(), [0; 0]);
    store.digests(id, 0, content.len() as u64).unwrap().values.iter().map(Option::is_some).collect()
}

fn kinds(store: &DiskStore, id: ObjectId) -> Vec<DamageKind> {
    examine(store, id).1.into_iter().map(|damage| damage.kind).collect()
}

fn complete(store: &DiskStore, id: ObjectId, pieces: &[u64]) {
    for &at in pieces {
        store.complete_digests(id, at).unwrap();
    }
}

/// Writes a digest that does not match the bytes, though all checksums are right.
fn write_wrong(store: &DiskStore, id: ObjectId, profile: Profile, data: &[u8], at: usize) -> (u64, u64) {
    let mut other = data.to_vec();
    other[at] ^= 1;
    let covered = CoveredDigests::of(
        DigestCover::new(profile.values(), 0, data.len() as u64, data.len() as u64),
        &other,
    );
    store.write_digested(id, 0, data, &covered).unwrap();
    let unit = at as u64 / profile.unit_bytes() * profile.unit_bytes();
    (unit, profile.unit_bytes())
}

#[test]
fn wrong_digest_is_damage_until_bytes_are_rewritten() {
    for profile in Profile::ALL {
        let (_, store) = fresh(1, 8 << 20);
        let id = object_of(&store, PARTITION, Some(profile));
        let data = bytes(1, 1_200_000);
        let (offset, length) = write_wrong(&store, id, profile, &data, 1_100_000);
        let damage = Damage { object: id, kind: DamageKind::Data, offset, length };
        let mapped = data.len().next_multiple_of(BLOCK as usize) as u64;
        assert_eq!(examine(&store, id), (mapped, vec![damage], vec![]), "{profile:?}");
        assert_eq!(store.damage_of(id), [damage]);
        assert_eq!(store.examine_bytes(id, offset + 5, 1).unwrap(), [damage]);
        assert_eq!(store.examine_bytes(id, 0, offset).unwrap(), []);
        // A corrupt block elsewhere in the chunk does not hide it, nor the reverse.
        store.write(id, offset, &data[offset as usize..][..length as usize]).unwrap();
        assert_eq!(store.damage_of(id), [], "{profile:?}");
        assert_eq!(examine(&store, id).1, []);
    }
}

#[test]
fn corrupt_block_does_not_hide_wrong_digest_nearby() {
    let (medium, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::Blake3));
    let data = bytes(1, 100_000);
    let (offset, length) = write_wrong(&store, id, Profile::Blake3, &data, 50_000);
    store.flush().unwrap();
    medium.rot("segment-00000", 2 * BLOCK + 7, 1);
    let piece = |offset, length| Damage { object: id, kind: DamageKind::Data, offset, length };
    assert_eq!(examine(&store, id).1, [piece(2 * BLOCK, BLOCK), piece(offset, length)]);
}

/// As after an older version or a `punch`: the units have no digest.
#[test]
fn missing_digests_are_computed_and_existing_ones_kept() {
    let (medium, store) = fresh(1, 16 << 20);
    let old = object_of(&store, PARTITION, None);
    let id = object_of(&store, PARTITION + 1, Some(Profile::Blake3));
    let data = bytes(1, 2_500_000);
    store.write(old, 0, &data).unwrap();
    store.share(old, id).unwrap();
    store.clear(id, 1 << 20, 64 << 10).unwrap();
    store.write(id, 5, b"something of today").unwrap();
    assert_eq!(examine(&store, old).2, [0; 0], "a partition without digests misses none");
    let (_, damage, incomplete) = examine(&store, id);
    assert_eq!((damage, incomplete.clone()), (vec![], vec![0, 1 << 20, 2 << 20]));
    let used = store.space().used;
    let mut units = 0;
    for at in incomplete {
        let done = store.complete_digests(id, at + 4711).unwrap();
        assert!(done.units > 0 && done.bytes == done.units * Profile::Blake3.unit_bytes(), "{done:?}");
        units += done.units;
        assert_eq!(
            store.complete_digests(id, at).unwrap(),
            CompletedDigests::default(),
            "nothing is left to do"
        );
    }
    let holes = 4;
    assert_eq!(units, 2_500_000_u64.div_ceil(16 << 10) - holes - 1, "all but holes and what was written");
    assert_eq!(known(&store, id).into_iter().filter(|known| !known).count() as u64, holes);
    assert_eq!((examine(&store, id).2, store.space().used), (vec![], used));
    // The tail after a punch.
    store.punch(id, 3 * BLOCK, BLOCK).unwrap();
    let incomplete = examine(&store, id).2;
    assert!(!incomplete.is_empty());
    complete(&store, id, &incomplete);
    assert_eq!(examine(&store, id).2, [0; 0]);
    let before = known(&store, id);
    store.flush().unwrap();
    drop(store);
    let store = open(&medium).unwrap();
    assert_eq!((known(&store, id), examine(&store, id).1), (before, vec![]));
}

#[test]
fn wrong_digest_is_never_recomputed() {
    for profile in [Profile::Blake3, Profile::Sha1] {
        let (_, store) = fresh(1, 8 << 20);
        let id = object_of(&store, PARTITION, Some(profile));
        let data = bytes(1, 200_000);
        let (offset, length) = write_wrong(&store, id, profile, &data, 20_000);
        // Into a partition of the same profile, and of another one.
        for (number, other) in [(1, profile), (2, Profile::AdHash256)] {
            let copy = object_of(&store, PARTITION + number, Some(other));
            store.share(id, copy).unwrap();
            store.complete_digests(copy, 0).unwrap();
            let damage = Damage { object: copy, kind: DamageKind::Data, offset, length };
            let (_, found, incomplete) = examine(&store, copy);
            assert_eq!((found, incomplete), (vec![damage], vec![]), "{profile:?} as {other:?}");
        }
        // An intact digest of another profile is replaced by one of the partition's profile.
        store.write(id, 0, &data).unwrap();
        let copy = object_of(&store, PARTITION + 3, Some(Profile::AdHash256));
        store.share(id, copy).unwrap();
        assert_eq!(examine(&store, copy).2, [0]);
        assert!(store.complete_digests(copy, 0).unwrap().units > 0);
        assert!(known(&store, copy).into_iter().all(|known| known));
    }
}

#[test]
fn digests_made_while_others_write_are_right() {
    let (_, store) = fresh(1, 16 << 20);
    let old = object_of(&store, PARTITION, None);
    let data = bytes(1, 1_500_000);
    store.write(old, 0, &data).unwrap();
    for profile in [Profile::Blake3, Profile::LtHash] {
        let id = object_of(&store, PARTITION + u64::from(profile.code()), Some(profile));
        store.share(old, id).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = SeededRandom::new(7);
                for step in 0..300 {
                    let at = random.below(1_490_000);
                    match step % 10 {
                        0 => store.share(old, id).unwrap(),
                        1 => store.punch(id, at, 1 + random.below(9000)).unwrap(),
                        2 => store.resize(id, 1_000_000 + random.below(500_000)).unwrap(),
                        _ => store.write(id, at, &bytes(step, 1 + random.below(9000) as usize)).unwrap(),
                    }
                }
                over.store(true, Ordering::SeqCst);
            });
            while !over.load(Ordering::SeqCst) {
                let (_, damage, incomplete) = examine(&store, id);
                assert_eq!(damage, [], "{profile:?}");
                complete(&store, id, &incomplete);
            }
        });
        let (_, damage, incomplete) = examine(&store, id);
        complete(&store, id, &incomplete);
        assert_eq!((damage, kinds(&store, id)), (vec![], vec![]), "{profile:?}");
        assert!(known(&store, id).into_iter().all(|known| known), "{profile:?}");
        if let Some((stored, found)) = store.digest_sums(id).unwrap() {
            assert_eq!(stored, found);
        }
    }
}

fn record(medium: &SimMedium, key: [u8; 25]) -> Option<Vec<u8>> {
    let mut found = None;
    edit_record(medium, key, |value| {
        found.clone_from(&value);
        value
    });
    found
}

/// An outdated record is intact in itself: only the sum over all of them reveals it.
#[test]
fn outdated_chunk_is_found_by_the_sum() {
    let (medium, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::LtHash));
    store.write(id, 0, &bytes(1, 2 << 20)).unwrap();
    store.flush().unwrap();
    assert_eq!(kinds(&store, id), []);
    drop(store);
    let key = record_key(2, id, 1);
    let before = record(&medium, key);
    let store = open(&medium).unwrap();
    store.write(id, 1 << 20, &bytes(2, 1 << 20)).unwrap();
    store.flush().unwrap();
    drop(store);
    edit_record(&medium, key, |_| before);
    let store = open(&medium).unwrap();
    // The blocks that it refers to have been reallocated since.
    assert_eq!(kinds(&store, id).last(), Some(&DamageKind::Sum));
    assert_eq!(store.examine_records(id).unwrap(), [DamageKind::Sum]);
    // Writing does not repair it: more may be lost than is written.
    store.write(id, 1 << 20, &bytes(3, 1 << 20)).unwrap();
    assert_eq!(kinds(&store, id), [DamageKind::Sum]);
    store.remove(id).unwrap();
    assert!(store.health().is_sound(), "{:?}", store.health());
}

/// By the current profile, and by the one that the partition had when the digest was computed.
#[test]
fn the_digest_of_an_attribute_page_is_compared() {
    for later in [Profile::Sha1, Profile::Blake3] {
        let (medium, store) = fresh(1, 8 << 20);
        let partition = ObjectId::of_partition(PARTITION);
        store.create(partition, ObjectType::Partition).unwrap();
        store.set_profile(PARTITION, Some(Profile::Sha1)).unwrap();
        let attribute = AttributeId { page: 7, number: 3 };
        let key = record_key(8, partition, 7);
        store.set_attribute(partition, attribute, b"one").unwrap();
        store.page_digest(partition, 7).unwrap();
        store.set_profile(PARTITION, Some(later)).unwrap();
        store.flush().unwrap();
        assert_eq!(kinds(&store, partition), []);
        drop(store);
        let before = record(&medium, key);
        let store = open(&medium).unwrap();
        store.set_attribute(partition, attribute, b"two").unwrap();
        store.flush().unwrap();
        drop(store);
        edit_record(&medium, key, |now| {
            assert_eq!(now, None, "a change takes it away");
            before
        });
        let store = open(&medium).unwrap();
        assert!(store.health().is_sound());
        assert_eq!(kinds(&store, partition), [DamageKind::Digests], "{later:?}");
        assert_eq!(store.damage_of(partition).len(), 1);
        store.set_attribute(partition, attribute, b"three").unwrap();
        assert_eq!((store.damage_of(partition), kinds(&store, partition)), (vec![], vec![]));
    }
}

/// Its objects count as having the default profile: no digests of that are computed for them.
#[test]
fn lost_profile_is_damage_and_can_be_reset() {
    let (medium, store) = fresh(1, 8 << 20);
    let id = object_of(&store, PARTITION, Some(Profile::Sha1));
    let partition = ObjectId::of_partition(PARTITION);
    store.write(id, 0, &bytes(1, 100_000)).unwrap();
    store.flush().unwrap();
    drop(store);
    edit_record(&medium, record_key(7, partition, 0), |value| {
        let mut value = value.expect("it is not the default");
        value[1] ^= 4;
        Some(value)
    });
    let store = open(&medium).unwrap();
    let lost = Damage { object: partition, kind: DamageKind::Profile, offset: 0, length: 0 };
    assert_eq!((store.health().damage, store.is_poisoned()), (vec![lost], false));
    assert_eq!(
        (store.profile(PARTITION), kinds(&store, partition)),
        (Some(Profile::DEFAULT), vec![lost.kind])
    );
    let (_, damage, incomplete) = examine(&store, id);
    assert_eq!((damage, incomplete), (vec![], vec![]));
    assert_eq!(store.complete_digests(id, 0).unwrap(), CompletedDigests::default());
    store.set_profile(PARTITION, Some(Profile::Sha1)).unwrap();
    assert!(store.health().is_sound(), "{:?}", store.health());
    assert!(known(&store, id).into_iter().all(|known| known));
    assert!(store.set_profile(PARTITION, None).is_err(), "it has objects");
}

#[test]
fn concurrent_removal_is_reported() {
    let (_, store) = fresh(1, 8 << 20);
    let store = Arc::new(store);
    let id = object_of(&store, PARTITION, Some(Profile::Blake3));
    store.write(id, 0, &bytes(1, 2 << 20)).unwrap();
    let mut examination = ObjectExamination::of(id);
    assert!(store.examine(&mut examination).unwrap().more);
    store.remove(id).unwrap();
    assert!(store.examine(&mut examination).is_err());
    assert!(store.complete_digests(id, 0).is_err() && store.examine_records(id).is_err());
}
