//! Corruption, bad sectors, missing and short files: all data is present, or the loss is reported;
//! no read returns wrong bytes.

use std::collections::BTreeSet;

use crate::support::records::{edit_record, record_key};
use crate::support::{INDEX, fresh, open, seeds};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::sim::SimMedium;
use sealstone_store::{
    AttributeId, BLOCK, BackgroundThread, Damage, DamageKind, DiskStore, FormatError, Medium, Memberships,
    ObjectStore, StoreError, StoreFault, StoreScrub,
};

/// Tag of the records of inline blocks.
const INLINE: u8 = 10;
const OBJECTS: u64 = 60;
const PAGE: u64 = 4096;
const NAME: AttributeId = AttributeId { page: 1, number: 1 };

fn id(object: u64) -> ObjectId {
    ObjectId::new(1, object)
}

/// Every third object is small.
fn content(object: u64, round: u8) -> Vec<u8> {
    let length = if object.is_multiple_of(3) { 60 } else { 5000 };
    vec![object as u8 ^ round; length + object as usize]
}

fn name(object: u64, round: u8) -> Vec<u8> {
    [format!("the name of {object} in {round}").as_bytes(), &[round; 150]].concat()
}

fn fill(store: &DiskStore, round: u8) {
    for object in 0..OBJECTS {
        store.write(id(object), 0, &content(object, round)).unwrap();
        store.set_attribute(id(object), NAME, &name(object, round)).unwrap();
    }
    store.flush().unwrap();
}

/// Returns a store whose index has a few dozen pages, with everything in the state of the second
/// round; still open.
fn filled() -> (SimMedium, DiskStore) {
    let (medium, store) = fresh(1, 4 << 20);
    for object in 0..OBJECTS {
        store.create(id(object), ObjectType::User).unwrap();
    }
    store.create(id(1000), ObjectType::Collection).unwrap();
    for object in 0..OBJECTS {
        store.join(id(1000), object, 1).unwrap();
    }
    fill(&store, 1);
    fill(&store, 2);
    (medium, store)
}

fn bytes(medium: &SimMedium, name: &str) -> Vec<u8> {
    let file = medium.open(name, false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Returns the offsets of the used pages.
fn pages(medium: &SimMedium) -> Vec<u64> {
    let bytes = bytes(medium, INDEX);
    let used = bytes.chunks(PAGE as usize).enumerate().filter(|(_, page)| page.iter().any(|&byte| byte != 0));
    used.map(|(at, _)| at as u64 * PAGE).collect()
}

/// Checks that all objects are present and that the store works.
fn all_is_well(store: &DiskStore, what: &str) {
    assert!(!store.is_poisoned(), "{what}: {:?}", store.health());
    assert!(store.health().damage.is_empty(), "{what}: {:?}", store.health());
    assert_eq!(lost(store, what), BTreeSet::new(), "{what}");
    store.set_attribute(id(0), AttributeId { page: 2, number: 1 }, b"new").unwrap();
    store.flush().unwrap();
}

/// Returns the objects that cannot be read completely. Everything that can be read must be right.
fn lost(store: &DiskStore, what: &str) -> BTreeSet<ObjectId> {
    let mut lost = BTreeSet::new();
    for object in 0..OBJECTS {
        let id = id(object);
        let mut buffer = vec![0; 6000];
        match store.read(id, 0, &mut buffer) {
            Ok(count) => {
                assert!(buffer[..count] == content(object, 2), "{what}: object {object}: wrong bytes")
            }
            Err(_) => drop(lost.insert(id)),
        }
        match store.attribute(id, NAME) {
            Ok(value) => assert_eq!(value, Some(name(object, 2)), "{what}: object {object}: wrong attribute"),
            Err(_) => drop(lost.insert(id)),
        }
        if store.attributes(id, None).is_err() || store.memberships(id).is_err() {
            lost.insert(id);
        }
    }
    lost
}

/// Checks that the store opens and reports exactly the objects that it cannot read, or that none
/// can be found.
fn is_said_precisely(medium: &SimMedium, what: &str) {
    let store = match open(medium) {
        Ok(store) => store,
        Err(FormatError::IndexLost) => return,
        Err(error) => panic!("{what}: {error}"),
    };
    let lost = lost(&store, what);
    let health = store.health();
    let named: BTreeSet<ObjectId> =
        health.damage.iter().map(|damage| damage.object).filter(|id| id.object < OBJECTS).collect();
    let maybe = |id: &ObjectId| {
        health
            .faults
            .iter()
            .any(|fault| matches!(fault, StoreFault::LostObjects { from, to } if from <= id && id <= to))
    };
    for id in &lost {
        assert!(named.contains(id) || maybe(id), "{what}: {id} is lost and not named: {health:?}");
    }
    for id in &named {
        assert!(lost.contains(id), "{what}: {id} is named and sound: {health:?}");
    }
    lists_tell_what_they_miss(&store, what);
    assert_eq!(health.read_only, !lost.is_empty() || !health.faults.is_empty(), "{what}: {health:?}");
    if health.read_only {
        assert!(matches!(store.write(id(0), 0, b"x"), Err(StoreError::Poisoned)), "{what}");
        assert!(matches!(store.flush(), Err(StoreError::Poisoned)), "{what}");
    } else {
        all_is_well(&store, what);
    }
}

/// Checks that a list is complete or fails with the range of missing objects; the rest can still be
/// listed.
fn lists_tell_what_they_miss(store: &DiskStore, what: &str) {
    let all: BTreeSet<ObjectId> = (0..OBJECTS).map(id).chain([id(1000)]).collect();
    let known: BTreeSet<ObjectId> =
        store.list_known(id(0), 1000).unwrap().into_iter().map(|(id, _)| id).collect();
    assert!(known.is_subset(&all), "{what}");
    if let Ok(listed) = store.list(id(0), 1000) {
        assert_eq!(listed.len(), all.len(), "{what}: a short list is given for a whole one");
    }
    for missing in all.difference(&known) {
        match store.list(*missing, 1) {
            Err(StoreError::ListGap { before, from, to }) => {
                assert!(before.is_empty() && from <= *missing && *missing <= to, "{what}: {from} to {to}");
            }
            listed => panic!("{what}: {missing} is missing: {listed:?}"),
        }
    }
    for id in &known {
        let listed = match store.list(*id, 1) {
            Err(StoreError::ListGap { before, .. }) => before,
            listed => listed.unwrap(),
        };
        assert!(listed.is_empty() || listed[0].0 == *id, "{what}: {id}: {listed:?}");
    }
    match store.collections(id(0), 10) {
        Ok(listed) => assert_eq!(listed, [id(1000)], "{what}"),
        Err(StoreError::ListGap { from, to, .. }) => {
            assert!(from <= id(1000) && id(1000) <= to, "{what}: {from} to {to}");
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// How a page is damaged.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Bits,
    Sector,
    Zero,
    Other,
    Unreadable,
}

const HARMS: [Harm; 5] = [Harm::Bits, Harm::Sector, Harm::Zero, Harm::Other, Harm::Unreadable];

fn harm(medium: &SimMedium, page: u64, harm: Harm, random: &mut SeededRandom) {
    let bytes = bytes(medium, INDEX);
    let here = &bytes[page as usize..(page + PAGE) as usize];
    match harm {
        Harm::Bits => {
            let at = random.below(PAGE - 1);
            medium.rot(INDEX, page + at, 0x41);
            medium.rot(INDEX, page + at + 1, 0x80);
        }
        Harm::Sector => (512..1024).for_each(|at| medium.rot(INDEX, page + at, random.next() as u8)),
        Harm::Zero => (0..PAGE).for_each(|at| medium.rot(INDEX, page + at, here[at as usize])),
        Harm::Other => {
            let other = &bytes[PAGE as usize..2 * PAGE as usize];
            (0..PAGE).for_each(|at| medium.rot(INDEX, page + at, here[at as usize] ^ other[at as usize]));
        }
        Harm::Unreadable => medium.spoil(INDEX, page + 512 * random.below(8)),
    }
}

/// After a clean close and after a kill, each page of the index is damaged in each way.
#[test]
fn bad_index_page_loses_only_reported_objects() {
    let (medium, store) = filled();
    let killed = medium.fork();
    drop(store);
    for seed in seeds(1) {
        let mut random = SeededRandom::new(seed);
        for (medium, how) in [(&medium, "closed"), (&killed, "killed")] {
            // Other tests cover the header's page.
            for page in pages(medium).into_iter().filter(|&page| page > 0) {
                for kind in HARMS {
                    let medium = medium.fork();
                    harm(&medium, page, kind, &mut random);
                    is_said_precisely(&medium, &format!("seed {seed}, {how}, page {page}, {kind:?}"));
                }
            }
        }
    }
}

/// One wrong bit is found and corrected, anywhere in the index.
#[test]
fn flipped_bit_in_index_is_repaired() {
    let (medium, store) = filled();
    let killed = medium.fork();
    drop(store);
    for seed in seeds(1) {
        let mut random = SeededRandom::new(seed);
        for (medium, how) in [(&medium, "closed"), (&killed, "killed")] {
            for page in pages(medium) {
                let some = [0, 1, 2, 3, 8, PAGE - 1].map(Some).into_iter().chain([None; 4]);
                for at in some {
                    let at = at.unwrap_or_else(|| random.below(PAGE));
                    let medium = medium.fork();
                    let bit = random.below(8);
                    medium.rot(INDEX, page + at, 1 << bit);
                    let what = format!("seed {seed}, {how}, byte {}, bit {bit}", page + at);
                    all_is_well(&open(&medium).unwrap_or_else(|error| panic!("{what}: {error}")), &what);
                    all_is_well(&open(&medium).unwrap(), &what);
                }
            }
        }
    }
}

/// The header of the engine and our copy of it, bit by bit.
#[test]
fn flipped_bit_in_index_header_is_repaired() {
    let (medium, store) = filled();
    let killed = medium.fork();
    drop(store);
    for (medium, how) in [(&medium, "closed"), (&killed, "killed")] {
        let copy = copy_at(medium);
        for byte in (0..320).chain((copy..copy + 512).step_by(7)) {
            let medium = medium.fork();
            let bit = byte % 8;
            medium.rot(INDEX, byte, 1 << bit);
            let what = format!("{how}, byte {byte}, bit {bit}");
            let store = open(&medium).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(!store.is_poisoned(), "{what}: {:?}", store.health());
            let mut buffer = vec![0; 6000];
            for object in [0, 7, OBJECTS - 1] {
                let count = store.read(id(object), 0, &mut buffer).unwrap();
                assert!(buffer[..count] == content(object, 2), "{what}: object {object}");
            }
            store.create(id(2000), ObjectType::User).unwrap();
            store.flush().unwrap();
            drop(store);
            assert_eq!(open(&medium).unwrap().stat(id(2000)).unwrap().length, 0, "{what}");
        }
    }
}

/// Returns the offset of our copy of the index's header.
fn copy_at(medium: &SimMedium) -> u64 {
    medium.open(INDEX, false).unwrap().length().unwrap() - PAGE
}

/// The whole page of the header is lost, or that of the copy: zeroed, corrupt, or unreadable. The
/// other one replaces it.
#[test]
fn the_header_of_the_index_may_be_lost() {
    let (medium, store) = filled();
    let killed = medium.fork();
    drop(store);
    for (medium, how) in [(&medium, "closed"), (&killed, "killed")] {
        let there = bytes(medium, INDEX);
        let places = [0, copy_at(medium)];
        for with in [0x5A, 0] {
            let overwrite = |medium: &SimMedium, page: u64| {
                (page..page + PAGE).for_each(|at| medium.rot(INDEX, at, there[at as usize] ^ with));
            };
            for page in places {
                let medium = medium.fork();
                overwrite(&medium, page);
                all_is_well(&open(&medium).unwrap(), how);
                all_is_well(&open(&medium).unwrap(), how);
            }
            let medium = medium.fork();
            places.into_iter().for_each(|page| overwrite(&medium, page));
            assert!(matches!(open(&medium), Err(FormatError::IndexLost)), "{how}: both are lost");
        }
        let spoil = |medium: &SimMedium, page: u64| {
            (page..page + PAGE).step_by(512).for_each(|at| medium.spoil(INDEX, at));
        };
        for page in places {
            let medium = medium.fork();
            spoil(&medium, page);
            all_is_well(&open(&medium).unwrap(), how);
        }
        let medium = medium.fork();
        places.into_iter().for_each(|page| spoil(&medium, page));
        assert!(matches!(open(&medium), Err(FormatError::IndexLost)), "{how}: both cannot be read");
    }
}

/// Pages are damaged under an open store: it returns errors and stops writing, without a panic or a
/// wrong byte.
#[test]
fn corrupt_index_under_open_store_returns_errors() {
    for seed in seeds(2) {
        let mut random = SeededRandom::new(seed);
        let (medium, store) = filled();
        let all = pages(&medium);
        drop(store);
        for page in all {
            for kind in [Harm::Bits, Harm::Zero, Harm::Other, Harm::Unreadable] {
                let medium = medium.fork();
                let store = open(&medium).unwrap();
                // Closing truncated the file.
                if page >= bytes(&medium, INDEX).len() as u64 {
                    continue;
                }
                harm(&medium, page, kind, &mut random);
                let what = format!("seed {seed}, page {page}, {kind:?}");
                let lost = lost(&store, &what);
                assert!(lost.is_empty() || store.is_poisoned(), "{what}: {lost:?}");
                for object in 0..OBJECTS {
                    let _ = store.set_attribute(id(object), NAME, &name(object, 3));
                }
                let flushed = store.flush().is_ok();
                drop(store);
                // The reopened store has the second round or, if the flush succeeded, the third.
                let Ok(store) = open(&medium) else { continue };
                for object in 0..OBJECTS {
                    let Ok(value) = store.attribute(id(object), NAME) else { continue };
                    let rounds = if flushed { [3, 3] } else { [2, 3] };
                    assert!(
                        rounds.iter().any(|&round| value == Some(name(object, round))),
                        "{what}: {object}"
                    );
                }
            }
        }
    }
}

#[test]
fn missing_segment_loses_and_reports_its_objects() {
    for how in ["missing", "short", "zeroed", "bad sectors"] {
        let (medium, store) = fresh(1, 4 << 20);
        for object in 0..OBJECTS {
            store.create(id(object), ObjectType::User).unwrap();
            store.write(id(object), 0, &vec![object as u8; 40_000]).unwrap();
        }
        store.flush().unwrap();
        drop(store);
        let file = medium.open("segment-00001", false).unwrap();
        match how {
            "missing" => medium.delete("segment-00001").unwrap(),
            "short" => file.set_len(500_000).unwrap(),
            "zeroed" => {
                file.set_len(0).unwrap();
                file.set_len(1 << 20).unwrap();
            }
            _ => (0..1 << 20).step_by(512).for_each(|at| medium.spoil("segment-00001", at)),
        }
        let store = open(&medium).unwrap();
        let mut lost = Vec::new();
        for object in 0..OBJECTS {
            let mut bytes = vec![0; 40_000];
            match store.read(id(object), 0, &mut bytes) {
                Ok(count) => assert!(count == 40_000 && bytes.iter().all(|&byte| byte == object as u8)),
                Err(StoreError::Damaged { .. } | StoreError::Io { .. }) => lost.push(id(object)),
                Err(error) => panic!("{how}: {error}"),
            }
        }
        assert!(!lost.is_empty() && lost.len() < OBJECTS as usize / 2, "{how}: {lost:?}");
        let removed = matches!(how, "missing" | "short");
        assert_eq!(store.is_poisoned(), removed, "{how}");
        let store = open(&medium).unwrap();
        if removed {
            let named: BTreeSet<ObjectId> =
                store.health().damage.iter().map(|damage| damage.object).collect();
            assert_eq!(named.into_iter().collect::<Vec<_>>(), lost, "{how}: opening says it");
        }
        let mut walk = StoreScrub::new();
        let mut found = Vec::new();
        loop {
            let step = store.scrub(&mut walk, 1 << 20).unwrap();
            found.extend(step.damage);
            if step.done {
                break;
            }
        }
        let progress = walk.progress(&store);
        assert_eq!((progress.objects, progress.objects_total), (OBJECTS, OBJECTS), "{how}");
        assert_eq!(found, store.health().damage, "{how}");
        let named: BTreeSet<ObjectId> = found.iter().map(|damage| damage.object).collect();
        assert_eq!(named.into_iter().collect::<Vec<_>>(), lost, "{how}: scrubbing says it");
        let kind = if how == "zeroed" { DamageKind::Data } else { DamageKind::Unreadable };
        assert!(found.iter().all(|damage| damage.kind == kind && damage.length > 0), "{how}: {found:?}");
    }
}

#[test]
fn foreign_file_is_reported_and_kept() {
    let (medium, store) = filled();
    drop(store);
    medium.open("segment-00077", true).unwrap().write_at(0, b"x").unwrap();
    let store = open(&medium).unwrap();
    assert_eq!(store.health().faults, [StoreFault::UnknownFile { name: "segment-00077".into() }]);
    assert!(!store.health().read_only);
    all_is_well(&store, "a file more");
}

/// Damage of data is confined to its object; writing the whole block, truncating it away, or
/// removing the object repairs it.
#[test]
fn data_damage_is_confined_and_repaired_by_writing() {
    let (medium, store) = fresh(1, 4 << 20);
    let [sick, sound] = [id(1), id(2)];
    for id in [sick, sound] {
        store.create(id, ObjectType::User).unwrap();
        store.write(id, 0, &[7; 100_000]).unwrap();
    }
    store.flush().unwrap();
    for block in [3, 5, 6, 20, 24] {
        medium.rot("segment-00000", block * BLOCK + 100, 0x10);
    }
    let data = |offset, length| Damage { object: sick, kind: DamageKind::Data, offset, length };
    assert!(store.health().is_sound(), "nobody looked yet");
    assert!(store.read(sick, 0, &mut [0; 20_000]).is_err());
    assert_eq!(store.damage_of(sick), [data(3 * BLOCK, BLOCK)]);
    let blocks = [(3, 1), (5, 1), (6, 1), (20, 1), (24, 1)];
    let last = 100_000 - 24 * BLOCK;
    let expected: Vec<_> =
        blocks.map(|(block, _)| (block * BLOCK, if block == 24 { last } else { BLOCK })).into();
    assert_eq!(store.verify(sick).unwrap(), expected);
    let merged =
        [data(3 * BLOCK, BLOCK), data(5 * BLOCK, 2 * BLOCK), data(20 * BLOCK, BLOCK), data(24 * BLOCK, last)];
    assert_eq!(store.damage_of(sick), merged);
    assert!(store.verify(sound).unwrap().is_empty());
    assert!(!store.is_poisoned());
    store.write(sound, 0, &[8; 50_000]).unwrap();
    // Half a block would give the other half a good checksum.
    assert!(matches!(store.write(sick, 5 * BLOCK + 1, b"x"), Err(StoreError::Damaged { .. })));
    store.write(sick, 5 * BLOCK, &[9; BLOCK as usize]).unwrap();
    assert_eq!(store.damage_of(sick)[1], data(6 * BLOCK, BLOCK));
    store.clear(sick, 6 * BLOCK, BLOCK).unwrap();
    store.resize(sick, 20 * BLOCK).unwrap();
    assert_eq!(store.damage_of(sick), [data(3 * BLOCK, BLOCK)]);
    store.flush().unwrap();
    assert!(store.is_damaged());
    store.remove(sick).unwrap();
    assert!(store.health().is_sound());
    drop(store);
    assert!(open(&medium).unwrap().health().is_sound());
}

/// Corrupts the record of a tag and an object, on a page that is intact afterwards; or removes it.
fn spoil_record(medium: &SimMedium, tag: u8, object: u64, sub: u64, removed: bool) {
    // Inline blocks belong to no object.
    let owner = ObjectId::new(u64::from(tag != INLINE), object);
    edit_record(medium, record_key(tag, owner, sub), |value| {
        let mut value = value.expect("it is there");
        value[1] ^= 4;
        (!removed).then_some(value)
    });
}

/// A corrupt record on an intact page affects only its object.
#[test]
fn corrupt_record_affects_its_object_until_rewritten() {
    let name_key = 1 << 32 | 1;
    for (tag, sub, kind) in
        [(1, 0, DamageKind::Record), (2, 0, DamageKind::Map), (3, name_key, DamageKind::Attributes)]
    {
        let (medium, store) = filled();
        drop(store);
        spoil_record(&medium, tag, 7, sub, false);
        let store = open(&medium).unwrap();
        let named: Vec<_> = store.health().damage.iter().map(|damage| (damage.object, damage.kind)).collect();
        assert_eq!(named, [(id(7), kind)]);
        assert!(store.health().faults.is_empty() && !store.is_poisoned(), "{:?}", store.health());
        assert_eq!(lost(&store, "one record").into_iter().collect::<Vec<_>>(), [id(7)]);
        fill_but(&store, 7);
        store.flush().unwrap();
        match kind {
            DamageKind::Map => store.resize(id(7), 0).unwrap(),
            DamageKind::Attributes => store.set_attribute(id(7), NAME, b"again").unwrap(),
            _ => {
                store.remove(id(7)).unwrap();
                store.create(id(7), ObjectType::User).unwrap();
            }
        }
        assert!(store.health().is_sound(), "{kind:?}: {:?}", store.health());
        store.flush().unwrap();
        drop(store);
        let store = open(&medium).unwrap();
        assert!(store.health().is_sound() && !store.is_poisoned(), "{kind:?}: {:?}", store.health());
    }
}

/// The bytes of a small object are one record: without it they are damaged, and nothing else is.
#[test]
fn corrupt_inline_block_affects_its_objects_until_rewritten() {
    for copies in [0, 2] {
        let (medium, store) = fresh(1, 4 << 20);
        for object in 1..6 {
            store.create(id(object), ObjectType::User).unwrap();
            store.write(id(object), 0, &[object as u8; 300]).unwrap();
        }
        for copy in 0..copies {
            store.share(id(1), id(4 + copy)).unwrap();
        }
        store.flush().unwrap();
        let used = store.space().used;
        drop(store);
        // The first object's block has the first number.
        spoil_record(&medium, INLINE, 0, 0, false);
        let store = open(&medium).unwrap();
        let sick: Vec<_> = [1, 4, 5].into_iter().take(1 + copies as usize).map(id).collect();
        let piece = |object| Damage { object, kind: DamageKind::Data, offset: 0, length: 300 };
        let expected: Vec<_> = sick.iter().copied().map(piece).collect();
        assert_eq!(store.health().damage, expected);
        assert!(store.health().faults.is_empty() && !store.is_poisoned(), "{:?}", store.health());
        assert_eq!(store.space().used, used);
        for object in (1..6).map(id) {
            let read = store.read(object, 0, &mut [0; 300]);
            match sick.contains(&object) {
                true => assert!(matches!(read, Err(StoreError::Damaged { offset: 0, length: 300, .. }))),
                false => assert_eq!(read.unwrap(), 300),
            }
        }
        let mut walk = StoreScrub::new();
        while !store.scrub(&mut walk, 1 << 20).unwrap().done {}
        assert_eq!(store.health().damage, expected, "a scrub finds the same");
        assert!(matches!(store.write(sick[0], 1, b"x"), Err(StoreError::Damaged { .. })), "not in part");
        for (at, object) in sick.iter().enumerate() {
            match at {
                0 => store.write(*object, 0, &[7; 300]).unwrap(),
                1 => store.resize(*object, 0).unwrap(),
                _ => store.remove(*object).unwrap(),
            }
            assert_eq!(store.health().damage, expected[at + 1..]);
        }
        store.flush().unwrap();
        drop(store);
        let store = open(&medium).unwrap();
        assert!(store.health().is_sound() && !store.is_poisoned(), "{:?}", store.health());
        let mut found = [0; 300];
        store.read(sick[0], 0, &mut found).unwrap();
        assert_eq!(found, [7; 300]);
        store.write(id(2), 0, &[9; 200]).unwrap();
        store.flush().unwrap();
    }
}

/// The number of an object whose map is lost is allocated to another one: its old bytes are not
/// mistaken for the new ones.
#[test]
fn inline_block_with_lost_map_is_reused() {
    let (medium, store) = fresh(1, 4 << 20);
    for object in 1..4 {
        store.create(id(object), ObjectType::User).unwrap();
        store.write(id(object), 0, &[object as u8; 300]).unwrap();
    }
    store.flush().unwrap();
    drop(store);
    spoil_record(&medium, 2, 1, 0, false);
    let store = open(&medium).unwrap();
    assert!(!store.is_poisoned());
    assert_eq!(
        store.damage_of(id(1)),
        [Damage { object: id(1), kind: DamageKind::Map, offset: 0, length: 300 }]
    );
    assert_eq!(store.inline_use().blocks, 2);
    store.create(id(9), ObjectType::User).unwrap();
    store.write(id(9), 0, &[9; 200]).unwrap();
    store.resize(id(1), 0).unwrap();
    store.flush().unwrap();
    drop(store);
    let store = open(&medium).unwrap();
    assert!(store.health().is_sound(), "{:?}", store.health());
    for (object, length) in [(2, 300), (3, 300), (9, 200)] {
        let mut found = [0; 301];
        assert_eq!(store.read(id(object), 0, &mut found).unwrap(), length);
        assert!(found[..length].iter().all(|byte| *byte == object as u8));
    }
}

fn fill_but(store: &DiskStore, sick: u64) {
    for object in (0..OBJECTS).filter(|&object| object != sick) {
        store.write(id(object), 0, &content(object, 3)).unwrap();
        store.set_attribute(id(object), NAME, &name(object, 3)).unwrap();
    }
}

/// A record missing from an intact page was removed by a program: the index is not trusted enough
/// to write.
#[test]
fn vanished_record_makes_the_store_read_only() {
    for (tag, sub) in [(2, 0), (3, 1 << 32 | 1), (4, 5), (5, 1000), (INLINE, 0)] {
        let (medium, store) = filled();
        drop(store);
        let (object, sub) = match tag {
            4 => (1000, sub),
            INLINE => (0, sub),
            _ => (7, sub),
        };
        spoil_record(&medium, tag, object, sub, true);
        let store = open(&medium).unwrap();
        let health = store.health();
        assert!(health.read_only, "tag {tag}");
        assert!(
            health.faults.iter().any(|fault| matches!(fault, StoreFault::Inconsistent { .. })),
            "{health:?}"
        );
        assert!(!health.damage.is_empty(), "tag {tag}");
        if tag < 4 {
            assert_eq!(lost(&store, "a record gone").into_iter().collect::<Vec<_>>(), [id(7)], "tag {tag}");
        }
    }
}

#[test]
fn rate_limited_scrub_ends_and_finds_damage() {
    let (medium, store) = filled();
    medium.rot("segment-00000", 9 * BLOCK, 1);
    let store = std::sync::Arc::new(store);
    let (sender, receiver) = std::sync::mpsc::channel();
    let scrub = BackgroundThread::scrub(store.clone(), StoreScrub::new(), 64 << 20, move |step, progress| {
        sender.send((step.clone(), *progress)).unwrap();
    })
    .unwrap();
    let steps: Vec<_> = receiver.iter().collect();
    drop(scrub);
    let (last, progress) = steps.last().unwrap();
    assert!(last.done);
    assert_eq!(progress.objects, OBJECTS + 1);
    assert_eq!(progress.damaged, store.health().damage.len() as u64);
    let found: Vec<Damage> = steps.iter().flat_map(|(step, _)| step.damage.clone()).collect();
    assert_eq!(found, store.health().damage);
}
