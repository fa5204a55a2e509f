//! Free space of the index, on a raw device, in files, and on a full file system: changes without
//! space are refused with `NoSpace` and nothing else, nothing is lost, and removals free space
//! again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sealstone_test_support::left_out;

use crate::support::{INDEX, open, seeds};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::sim::{CallCounts, DiskFault, SimMedium};
use sealstone_store::{
    AttributeId, BLOCK, BlockDevice, DEVICE_MIN, DeviceMedium, DiskStore, FileMedium, FormatOptions, Medium,
    Memberships, ObjectStore, StoreError, StoreOptions, format,
};

const NAME: AttributeId = AttributeId { page: 1, number: 1 };
const MIB: u64 = 1 << 20;

fn id(object: u64) -> ObjectId {
    ObjectId::new(1, object)
}

fn pattern(object: u64, length: usize) -> Vec<u8> {
    vec![object as u8 | 1; length]
}

/// Expected contents: lengths of data and attribute by object.
type Model = BTreeMap<u64, (usize, usize)>;

/// Properties of the objects of a test.
#[derive(Clone, Copy, Debug)]
struct Habit {
    data: &'static [usize],
    attributes: &'static [usize],
    /// Maximum number of operations between two flushes.
    group: u64,
    /// Whether there is a block for each one of the capacity.
    blocks: bool,
}

impl Habit {
    /// On a file system where other programs may have taken them.
    fn in_files(self) -> Self {
        Self { blocks: false, ..self }
    }
}

const MIXED: Habit = Habit {
    data: &[0, 1, 512, 4096],
    attributes: &[0, 10, 1000, 3000, 6000, 60_000],
    group: 40,
    blocks: true,
};
const SMALL: Habit = Habit { data: &[0, 1, 512], attributes: &[0, 300, 1000], group: 200, blocks: true };
const LARGE: Habit = Habit { data: &[0, 9000], attributes: &[65_534, 20_000, 100], group: 10, blocks: true };

/// Maximum number of objects without an attribute that are created when there is no space for
/// attributes.
const BARE_MAX: u64 = 100;

/// Returns `true` if it was done, `false` if there was no space.
fn done(result: Result<(), StoreError>, what: &str) -> bool {
    match result {
        Ok(()) => true,
        Err(StoreError::NoSpace) => false,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// Returns the approximate size of the records in bytes.
fn weight(model: &Model) -> usize {
    model.values().map(|(_, attribute)| 100 + attribute).sum()
}

/// Creates objects until all are refused: at last bare ones, of which a few fill nothing. Returns
/// by how many bytes the records grew.
fn fill(store: &DiskStore, model: &mut Model, habit: Habit, random: &mut SeededRandom) -> usize {
    let before = weight(model);
    let mut next = model.keys().last().map_or(1, |last| last + 1);
    let (mut refused, mut refused_attributes, mut bare) = (0, 0, 0);
    while refused < 8 && bare < BARE_MAX {
        let object = next;
        next += 1;
        if !done(store.create(id(object), ObjectType::User), "create") {
            refused += 1;
            continue;
        }
        model.insert(object, (0, 0));
        let length = habit.data[random.below(habit.data.len() as u64) as usize];
        if length > 0 && done(store.write(id(object), 0, &pattern(object, length)), "write") {
            model.get_mut(&object).unwrap().0 = length;
        }
        let length = habit.attributes[random.below(habit.attributes.len() as u64) as usize];
        if refused_attributes == 8 {
            bare += 1;
        } else if length > 0 {
            if done(store.set_attribute(id(object), NAME, &pattern(object, length)), "attribute") {
                model.get_mut(&object).unwrap().1 = length;
            } else {
                refused_attributes += 1;
            }
        }
        if random.below(habit.group) == 0 {
            store.flush().unwrap();
        }
    }
    store.flush().unwrap();
    assert!(!store.is_poisoned());
    weight(model) - before
}

/// Removes these objects; a removal is never refused.
fn remove(
    store: &DiskStore,
    model: &mut Model,
    habit: Habit,
    random: &mut SeededRandom,
    which: impl Fn(u64) -> bool,
) {
    let removed: Vec<u64> = model.keys().copied().filter(|object| which(*object)).collect();
    for object in removed {
        // A device's command is one scope: there is no commit in it.
        let scope = (object % 3 == 0).then(|| store.begin());
        store.remove(id(object)).unwrap_or_else(|error| panic!("removing {object}: {error:?}"));
        drop(scope);
        model.remove(&object);
        if random.below(habit.group) == 0 {
            store.flush().unwrap();
        }
    }
    store.flush().unwrap();
}

/// Checks that exactly the expected objects are present, and that the counters are exact.
fn check(store: &DiskStore, model: &Model) {
    assert!(!store.is_poisoned(), "{:?}", store.health());
    assert!(store.health().is_sound(), "{:?}", store.health());
    let mut listed: Vec<u64> = Vec::new();
    loop {
        let from = listed.last().map_or(id(1), |last| id(last + 1));
        let found = store.list(from, 60_000).unwrap();
        if found.is_empty() {
            break;
        }
        listed.extend(found.iter().map(|(id, _)| id.object));
    }
    assert!(listed.iter().eq(model.keys()), "{} objects, {} expected", listed.len(), model.len());
    let mut blocks = 0;
    for (object, (data, attribute)) in model {
        blocks += data.div_ceil(BLOCK as usize) as u64;
        let mut bytes = vec![0; data + 1];
        assert_eq!(store.read(id(*object), 0, &mut bytes).unwrap(), *data, "object {object}");
        assert_eq!(bytes[..*data], pattern(*object, *data), "object {object}");
        let found = store.attribute(id(*object), NAME).unwrap().unwrap_or_default();
        assert_eq!(found, pattern(*object, *attribute), "attribute of {object}");
    }
    let space = store.space();
    assert_eq!((space.used, space.objects), (blocks * BLOCK, model.len() as u64));
}

/// Existing data can be changed, in a full store too: attributes by others of the same length.
fn overwrite(store: &DiskStore, model: &Model, habit: Habit, random: &mut SeededRandom) {
    let objects: Vec<u64> = model.keys().copied().collect();
    for turn in 0..150 {
        let object = objects[random.below(objects.len() as u64) as usize];
        let (data, attribute) = model[&object];
        let scope = (turn % 3 == 0).then(|| store.begin());
        // The file system may have no other block for the new bytes.
        if data > 0 && !done(store.write(id(object), 0, &pattern(object, data)), "an overwrite") {
            assert!(!habit.blocks, "a block for an overwrite of {object}");
        }
        if attribute > 0 {
            let value = pattern(object, attribute);
            let set = store.set_attribute(id(object), NAME, &value);
            set.unwrap_or_else(|error| panic!("{turn}: the same {attribute} bytes: {error:?}"));
        }
        drop(scope);
        if random.below(habit.group) == 0 {
            store.flush().unwrap();
        }
    }
}

/// Fills, half empties, fills again, reopens, empties, and fills the store.
fn live(seed: u64, habit: Habit, reopen: &mut dyn FnMut(DiskStore) -> DiskStore, store: DiskStore) -> Model {
    let mut random = SeededRandom::new(seed);
    let mut model = Model::new();
    let first = fill(&store, &mut model, habit, &mut random);
    check(&store, &model);
    overwrite(&store, &model, habit, &mut random);
    let store = reopen(store);
    check(&store, &model);
    remove(&store, &mut model, habit, &mut random, |object| object % 2 == 0);
    check(&store, &model);
    let again = fill(&store, &mut model, habit, &mut random);
    assert!(again * 4 >= first, "half of {first} bytes went, {again} came back");
    check(&store, &model);
    let store = reopen(store);
    check(&store, &model);
    let again = fill(&store, &mut model, habit, &mut random);
    assert!(again * 5 <= first, "{again} bytes more after opening, beside {first}");
    remove(&store, &mut model, habit, &mut random, |_| true);
    check(&store, &model);
    let again = fill(&store, &mut model, habit, &mut random);
    // With seed 1 it is 69.4 %; the cause of the loss is not known.
    assert!(again * 20 >= first * 13, "{first} bytes at first, {again} when all were gone");
    let store = reopen(store);
    check(&store, &model);
    model
}

/// Creates a store on a raw device of this many bytes, with the default capacity of such a device.
fn raw(seed: u64, length: u64) -> (SimMedium, DiskStore) {
    let disk = SimMedium::new(seed);
    let device = disk.open("device", true).unwrap();
    device.set_len(length).unwrap();
    device.sync().unwrap();
    disk.sync_names().unwrap();
    let capacity = DeviceMedium::survey(&device, false).unwrap();
    let medium = DeviceMedium::format(device, [7; 16], true).unwrap();
    format(&medium, &FormatOptions::new(capacity, [8; 16])).unwrap();
    let store = open(&disk).unwrap();
    (disk, store)
}

/// Checks that the index has all of the device that no other region has.
fn has_all(medium: &DeviceMedium, length: u64) {
    let units = |name: &String| medium.open(name, false).unwrap().length().unwrap().div_ceil(MIB);
    let all: u64 = medium.list().unwrap().iter().map(units).sum();
    assert_eq!(all + 1, length / MIB, "units of all regions and of the label");
}

fn full_device(length: u64, habit: Habit) {
    for seed in seeds(1) {
        let (disk, store) = raw(seed, length);
        let mut disk = disk;
        let mut reopen = |store: DiskStore| {
            drop(store);
            disk = disk.crash();
            open(&disk).unwrap()
        };
        live(seed, habit, &mut reopen, store);
        let medium = DeviceMedium::open(disk.open("device", false).unwrap()).unwrap();
        has_all(&medium, length);
    }
}

#[test]
fn a_full_raw_device_refuses_and_loses_nothing() {
    full_device(DEVICE_MIN, MIXED);
}

#[test]
fn full_raw_device_of_small_objects_accepts_removals() {
    let length = DEVICE_MIN + 7 * MIB;
    let (disk, store) = raw(1, length);
    let (mut random, mut model) = (SeededRandom::new(1), Model::new());
    fill(&store, &mut model, SMALL, &mut random);
    overwrite(&store, &model, SMALL, &mut random);
    remove(&store, &mut model, SMALL, &mut random, |object| object % 3 > 0);
    drop(store);
    let disk = disk.crash();
    check(&open(&disk).unwrap(), &model);
    let medium = DeviceMedium::open(disk.open("device", false).unwrap()).unwrap();
    has_all(&medium, length);
}

#[test]
fn full_raw_device_of_large_attributes_loses_nothing() {
    full_device(DEVICE_MIN, LARGE);
}

/// As above, on real files: larger, and killed rather than crashed.
#[test]
fn larger_raw_device_is_used_completely() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let length = 320 * MIB;
    std::fs::File::create(&path).unwrap().set_len(length).unwrap();
    let device = Arc::new(BlockDevice::open(&path).unwrap());
    let capacity = DeviceMedium::survey(&(device.clone() as _), false).unwrap();
    let medium = DeviceMedium::format(device.clone(), [7; 16], false).unwrap();
    format(&medium, &FormatOptions::new(capacity, [8; 16])).unwrap();
    let start = || {
        let medium = DeviceMedium::open(device.clone()).unwrap();
        DiskStore::open(Arc::new(medium), StoreOptions::default()).unwrap()
    };
    let habit = Habit { data: &[0, 1, 512], attributes: &[3000, 7000], group: 500, blocks: true };
    let (mut random, mut model) = (SeededRandom::new(1), Model::new());
    let store = start();
    fill(&store, &mut model, habit, &mut random);
    overwrite(&store, &model, habit, &mut random);
    drop(store);
    let store = start();
    check(&store, &model);
    remove(&store, &mut model, habit, &mut random, |object| object % 3 > 0);
    drop(store);
    check(&start(), &model);
    has_all(&DeviceMedium::open(device.clone()).unwrap(), length);
}

fn full_disk(space: u64, habit: Habit) {
    for seed in seeds(1) {
        let disk = SimMedium::new(seed);
        format(&disk, &FormatOptions::new(64 * MIB, [8; 16])).unwrap();
        disk.limit_space(space);
        let store = open(&disk).unwrap();
        let mut disk = disk;
        let mut reopen = |store: DiskStore| {
            drop(store);
            disk = disk.crash();
            open(&disk).unwrap()
        };
        live(seed, habit.in_files(), &mut reopen, store);
    }
}

#[test]
fn full_file_system_refuses_and_loses_nothing() {
    full_disk(12 * MIB, MIXED);
}

#[test]
fn disk_full_of_small_objects_loses_nothing() {
    full_disk(4 * MIB, SMALL);
}

#[test]
fn disk_full_of_large_attributes_loses_nothing() {
    full_disk(20 * MIB, LARGE);
}

/// An object with memberships in many collections: a full index has no space to end all memberships
/// at once.
#[test]
fn member_of_many_collections_leaves_full_store() {
    const COLLECTIONS: u64 = 300;
    let disk = SimMedium::new(1);
    format(&disk, &FormatOptions::new(64 * MIB, [8; 16])).unwrap();
    let store = open(&disk).unwrap();
    let member = id(1);
    store.create(member, ObjectType::User).unwrap();
    let collections = || (0..COLLECTIONS).map(|number| id(1_000_000 + number));
    for collection in collections() {
        store.create(collection, ObjectType::Collection).unwrap();
        store.join(collection, member.object, 1).unwrap();
    }
    store.flush().unwrap();
    disk.limit_space(2 * MIB);
    let mut model = Model::from([(member.object, (0, 0))]);
    fill(&store, &mut model, SMALL.in_files(), &mut SeededRandom::new(1));
    // In one group there is no space for all of that.
    let scope = store.begin();
    assert!(matches!(store.remove(member), Err(StoreError::NoSpace)));
    drop(scope);
    store.remove(member).unwrap();
    store.flush().unwrap();
    assert!(matches!(store.stat(member), Err(StoreError::NotFound(_))));
    assert!(collections().all(|collection| store.member_count(collection).unwrap() == 0));
    drop(store);
    let store = open(&disk.crash()).unwrap();
    assert!(store.health().is_sound());
    assert!(collections().all(|collection| store.member_count(collection).unwrap() == 0));
}

/// A mounted tmpfs; unmounted when dropped.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    /// Returns `None` where mounting is not permitted.
    fn mount(place: &'a Path, options: &str) -> Option<Self> {
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(place)
            .stderr(std::process::Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(place))
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_file_system_refuses_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_mounted) = Tmpfs::mount(folder.path(), "size=12m") else {
        left_out("a tmpfs needs root");
        return;
    };
    let place = folder.path().join("store");
    format(&FileMedium::open(&place).unwrap(), &FormatOptions::new(64 * MIB, [8; 16])).unwrap();
    let start =
        || DiskStore::open(Arc::new(FileMedium::open(&place).unwrap()), StoreOptions::default()).unwrap();
    live(
        1,
        MIXED.in_files(),
        &mut |store| {
            drop(store);
            start()
        },
        start(),
    );
}

#[test]
fn full_file_system_serves_overwrites_truncation_and_removals() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_mounted) = Tmpfs::mount(folder.path(), "size=32m") else {
        left_out("a tmpfs needs root");
        return;
    };
    let place = folder.path().join("store");
    format(&FileMedium::open(&place).unwrap(), &FormatOptions::new(512 * MIB, [8; 16])).unwrap();
    let start =
        || DiskStore::open(Arc::new(FileMedium::open(&place).unwrap()), StoreOptions::default()).unwrap();
    let free = || sealstone_store::free_space_of(folder.path()).unwrap().free;
    let mut store = start();
    let available = store.space().available;
    assert!((16 * MIB..32 * MIB).contains(&available), "{available} bytes of 32 MiB");
    let bytes = pattern(7, MIB as usize);
    let ballast = folder.path().join("ballast");
    for round in 0..4 {
        let mut made = 0;
        let make = |store: &DiskStore, object: u64| -> Result<(), StoreError> {
            store.create(id(object), ObjectType::User)?;
            store.write(id(object), 0, &bytes)
        };
        while done(make(&store, made + 1), "filling") {
            made += 1;
        }
        assert!(made >= 16, "round {round}: only {made} MiB fit into 32 MiB");
        store.flush().unwrap();
        assert!(store.space().available < MIB, "round {round}: {:?}", store.space());
        if round % 2 == 1 {
            // Another program takes the rest.
            let mut file = std::fs::File::create(&ballast).unwrap();
            while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
            assert!(free() < 4096);
        }
        if round == 2 {
            drop(store);
            store = start();
        }
        for object in 1..=made {
            let at = object * 4096 % MIB;
            store.write(id(object), at, &bytes[at as usize..][..4096]).unwrap();
            store.flush().unwrap();
            let mut read = vec![0; bytes.len()];
            assert_eq!(store.read(id(object), 0, &mut read).unwrap(), bytes.len());
            assert!(read == bytes, "round {round}: object {object}");
        }
        store.resize(id(1), MIB - 100).unwrap();
        let (before, taken) = (free(), made * MIB);
        for object in 1..=made + 1 {
            match store.remove(id(object)) {
                Ok(()) | Err(StoreError::NotFound(_)) => {}
                Err(error) => panic!("round {round}: removal: {error:?}"),
            }
        }
        store.flush().unwrap();
        store.tick(std::time::Duration::from_secs(round + 1)).unwrap();
        assert!(free() >= before + taken / 2, "round {round}: {} freed of {taken}", free() - before);
        let _ = std::fs::remove_file(&ballast);
        assert!(!store.is_poisoned());
    }
    drop(store);
    assert!(start().health().is_sound());
}

/// Number of objects between two flushes of a disk that grows.
const STEP: u64 = 8;

fn index_length(disk: &SimMedium) -> u64 {
    match disk.open("device", false) {
        Ok(device) => DeviceMedium::open(device).unwrap().open(INDEX, false).unwrap().length().unwrap(),
        Err(_) => disk.open(INDEX, false).unwrap().length().unwrap(),
    }
}

/// Creates objects from `first` on, and flushes.
fn step(store: &DiskStore, first: u64) -> Result<(), StoreError> {
    for object in first..first + STEP {
        store.create(id(object), ObjectType::User)?;
        store.set_attribute(id(object), NAME, &pattern(object, 1000))?;
    }
    store.flush()
}

/// Steps from `first` on until the index has grown, or something fails. Returns the first object
/// that is not known to be durable, and the calls before the last step.
fn grow(disk: &SimMedium, store: &DiskStore, first: u64) -> (u64, CallCounts) {
    let length = index_length(disk);
    for first in (first..first + 2000).step_by(STEP as usize) {
        let calls = disk.calls();
        if step(store, first).is_err() {
            return (first, calls);
        }
        // After a power failure the length cannot be read.
        if disk.is_dead() || index_length(disk) > length {
            return (first + STEP, calls);
        }
    }
    panic!("it never grew");
}

/// Each write and sync of the step in which the index grows fails, or the power does: all flushed
/// data is present.
#[test]
fn growth_survives_any_failure() {
    type Make = fn(u64) -> (SimMedium, DiskStore);
    let files: Make = |seed| {
        let disk = SimMedium::new(seed);
        format(&disk, &FormatOptions::new(8 * MIB, [8; 16])).unwrap();
        let store = open(&disk).unwrap();
        (disk, store)
    };
    let device: Make = |seed| raw(seed, DEVICE_MIN);
    for make in [files, device] {
        // A disk that is about to grow, so that each try is a short one.
        let (disk, store) = make(1);
        let (grown, _) = grow(&disk, &store, 1);
        let (disk, store) = make(1);
        let first = grown - STEP;
        (1..first).step_by(STEP as usize).for_each(|first| step(&store, first).unwrap());
        drop(store);
        let before = disk.fork();
        let attempt = |fault: Option<DiskFault>| {
            let disk = before.fork();
            fault.into_iter().for_each(|fault| disk.fault(fault));
            let store = open(&disk).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            let (flushed, calls) = grow(&disk, &store, first);
            drop(store);
            (disk, flushed, calls)
        };
        let (disk, _, from) = attempt(None);
        let to = disk.calls();
        let mut faults = Vec::new();
        for write in from.writes + 1..=to.writes {
            faults.extend([DiskFault::Write(write), DiskFault::Full(write)]);
        }
        faults.extend((from.syncs + 1..=to.syncs).map(DiskFault::Sync));
        faults.extend((from.writes + from.syncs + 1..=to.writes + to.syncs).map(DiskFault::Power));
        for fault in faults {
            let (disk, flushed, _) = attempt(Some(fault));
            let disk = disk.crash();
            let store = open(&disk).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            assert!(store.health().is_sound(), "{fault:?}: {:?}", store.health());
            for object in 1..flushed {
                let found = store.attribute(id(object), NAME).unwrap();
                assert_eq!(found, Some(pattern(object, 1000)), "{fault:?}: object {object}");
            }
            step(&store, 5000).unwrap();
        }
    }
}

/// Holes have no records to move.
#[test]
fn punching_a_hole_needs_no_space() {
    let (disk, store) = raw(1, 2 * DEVICE_MIN);
    store.create(id(1), ObjectType::User).unwrap();
    store.write(id(1), 1 << 49, b"far").unwrap();
    store.flush().unwrap();
    let before = index_length(&disk);
    store.punch(id(1), 0, 4096).unwrap();
    store.flush().unwrap();
    assert_eq!(index_length(&disk), before, "nothing was taken for it");
    assert_eq!(store.stat(id(1)).unwrap().length, (1 << 49) + 3 - 4096);
    let mut bytes = [0; 3];
    store.read(id(1), (1 << 49) - 4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"far");
}

/// While a group is being committed, the pages that it frees are not available yet: a removal waits
/// for it.
#[test]
fn a_full_store_takes_removals_while_others_commit() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 150;
    let (_disk, store) = raw(1, DEVICE_MIN);
    let make = |object: u64| -> Result<(), StoreError> {
        store.create(id(object), ObjectType::User)?;
        store.set_attribute(id(object), NAME, &pattern(object, 1 + (object as usize * 977) % 9000))
    };
    let mut made = 0;
    while done(make(made + 1), "filling") {
        made += 1;
        if made.is_multiple_of(50) {
            store.flush().unwrap();
        }
    }
    store.flush().unwrap();
    let (store, make) = (&store, &make);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut mine: Vec<u64> = (1..=made).filter(|object| object % THREADS == thread).collect();
                for round in 0..ROUNDS {
                    for _ in 0..4 {
                        let Some(object) = mine.pop() else { break };
                        store.remove(id(object)).unwrap_or_else(|error| panic!("removal: {error:?}"));
                    }
                    let from = (thread + 2) << 32 | round << 8;
                    for object in from..from + 6 {
                        let refused = !done(make(object), "a new one");
                        // The object may exist, without its attribute.
                        if store.stat(id(object)).is_ok() {
                            mine.insert(0, object);
                        }
                        if refused {
                            break;
                        }
                    }
                    if round % 3 == thread {
                        store.flush().unwrap();
                    }
                }
            });
        }
    });
    store.flush().unwrap();
    assert!(!store.is_poisoned());
    assert!(store.health().is_sound(), "{:?}", store.health());
}
