//! Tests of the raw device as a medium, on the simulated disk, with crashes and faults.

use std::collections::BTreeMap;

use super::*;
use crate::sim::{DiskFault, SeededRandom, SimMedium};

const LENGTH: u64 = DEVICE_MIN;

fn bare(seed: u64) -> (SimMedium, Arc<dyn MediumFile>) {
    let disk = SimMedium::new(seed);
    let device = disk.open("device", true).unwrap();
    device.set_len(LENGTH).unwrap();
    device.sync().unwrap();
    disk.sync_names().unwrap();
    (disk, device)
}

fn device_of(disk: &SimMedium) -> Arc<dyn MediumFile> {
    disk.open("device", false).unwrap()
}

fn fresh(seed: u64) -> (SimMedium, DeviceMedium) {
    let (disk, device) = bare(seed);
    (disk, DeviceMedium::format(device, [7; 16], false).unwrap())
}

fn contents(file: &dyn MediumFile) -> Vec<u8> {
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn regions_behave_as_files() {
    let (disk, medium) = fresh(1);
    assert_eq!(medium.open("a", false).err().unwrap().kind(), io::ErrorKind::NotFound);
    let a = medium.open("a", true).unwrap();
    assert_eq!(a.length().unwrap(), 0);
    a.write_at(5, b"hello").unwrap();
    assert_eq!(contents(&*a), b"\0\0\0\0\0hello");
    assert_eq!(a.read_at(6, &mut [0; 5]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(a.read_at(u64::MAX, &mut [0; 5]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    // After truncating and extending, the tail is zero.
    a.set_len(7).unwrap();
    a.set_len(2 * UNIT + 3).unwrap();
    assert_eq!(contents(&*a)[..12], *b"\0\0\0\0\0he\0\0\0\0\0");
    let b = medium.open("b", true).unwrap();
    b.set_len(UNIT).unwrap();
    a.set_len(4 * UNIT).unwrap();
    let pattern: Vec<u8> = (0..2 * UNIT).map(|at| (at / 7) as u8).collect();
    let (left, right) = pattern.split_at(1000);
    a.write_vectored_at(2 * UNIT - 77, &[IoSlice::new(left), IoSlice::new(right)]).unwrap();
    let mut found = vec![0; pattern.len()];
    let (one, two) = found.split_at_mut(UNIT as usize);
    a.read_vectored_at(2 * UNIT - 77, &mut [IoSliceMut::new(one), IoSliceMut::new(two)]).unwrap();
    assert!(found == pattern, "also across the gap that b made");
    assert!(contents(&*b).iter().all(|&byte| byte == 0));
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(a.set_len(LENGTH)), io::ErrorKind::StorageFull);
    assert_eq!(kind(a.set_len(u64::MAX)), io::ErrorKind::StorageFull);
    assert_eq!(a.length().unwrap(), 4 * UNIT, "a refusal changes nothing");
    medium.delete("b").unwrap();
    assert_eq!(kind(medium.delete("b")), io::ErrorKind::NotFound);
    assert_eq!(b.length().unwrap_err().kind(), io::ErrorKind::NotFound, "a region that is gone");
    a.sync().unwrap();
    medium.sync_names().unwrap();
    let medium = DeviceMedium::open(device_of(&disk.crash())).unwrap();
    assert_eq!(medium.list().unwrap(), ["a"]);
    assert_eq!(contents(&*medium.open("a", false).unwrap())[2 * UNIT as usize..][..100], pattern[77..177]);
}

#[test]
fn new_bytes_are_zero_whatever_the_device_carried() {
    let (_, device) = bare(1);
    device.write_at(UNIT, &vec![0xDB; 20 * UNIT as usize]).unwrap();
    let medium = DeviceMedium::format(device, [7; 16], true).unwrap();
    let file = medium.open("a", true).unwrap();
    file.write_at(3 * UNIT + 5, b"x").unwrap();
    assert_eq!(contents(&*file).iter().filter(|&&byte| byte != 0).count(), 1);
    let raw = medium.open("b", true).unwrap();
    raw.reserve(UNIT).unwrap();
    assert!(contents(&*raw).iter().all(|&byte| byte == 0xDB), "reserved bytes are as they were");
}

#[test]
fn a_device_that_carries_anything_is_refused() {
    let refused = |at, bytes: &[u8]| {
        let (_, device) = bare(1);
        device.write_at(at, bytes).unwrap();
        let error = DeviceMedium::format(device.clone(), [7; 16], false).unwrap_err();
        assert!(matches!(DeviceMedium::open(device.clone()), Err(FormatError::NotFormatted)));
        let mut found = vec![0; bytes.len()];
        device.read_at(at, &mut found).unwrap();
        assert_eq!(found, bytes, "a refusal changes nothing");
        DeviceMedium::format(device.clone(), [7; 16], true).unwrap();
        device.read_at(at, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0), "nobody finds the old contents again");
        error
    };
    for (at, magic, name) in [
        (512, &b"EFI PART"[..], "a GPT partition table"),
        (0x438, &[0x53, 0xEF], "an ext2, ext3 or ext4 file system"),
        (0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
        (700_000, b"x", "data of an unknown kind"),
        (LENGTH - 512, b"EFI PART", "data of an unknown kind"),
    ] {
        let error = refused(at, magic);
        assert!(matches!(error, FormatError::Occupied { what } if what == name), "{error}");
    }
    let (disk, medium) = fresh(1);
    assert_eq!(medium.uuid(), [7; 16]);
    drop(medium);
    // A label alone is an unfinished store, wherever the format was interrupted.
    let options = crate::FormatOptions::new(1 << 20, [9; 16]);
    for point in 1.. {
        let disk = disk.fork();
        let medium = DeviceMedium::format(device_of(&disk), [8; 16], false).unwrap();
        disk.fault(DiskFault::Power(disk.calls().writes + disk.calls().syncs + point));
        let made = crate::format(&medium, &options).is_ok();
        let disk = disk.crash();
        match DeviceMedium::format(device_of(&disk), [8; 16], false) {
            Ok(_) => assert!(!made, "point {point}"),
            Err(FormatError::AlreadyFormatted) => {
                let medium = DeviceMedium::open(device_of(&disk)).unwrap();
                crate::DiskStore::open(Arc::new(medium), crate::StoreOptions::default())
                    .expect("it was finished");
                if made {
                    break;
                }
            }
            Err(error) => panic!("point {point}: {error}"),
        }
    }
}

#[test]
fn unusable_devices_are_reported_by_cause() {
    let broken = |how: fn(&SimMedium)| {
        let (disk, medium) = fresh(1);
        medium.sync_names().unwrap();
        how(&disk);
        DeviceMedium::open(device_of(&disk)).unwrap_err()
    };
    let label = broken(|disk| disk.rot("device", 33, 4));
    assert!(matches!(label, FormatError::Label(_)), "{label}");
    let version = broken(|disk| device_of(disk).write_at(8, &[9]).unwrap());
    assert!(matches!(version, FormatError::Version { found: 9, supported: 1 }), "{version}");
    let short = broken(|disk| {
        let longer = LENGTH + UNIT;
        device_of(disk).set_len(longer).unwrap();
        drop(DeviceMedium::format(device_of(disk), [7; 16], true).unwrap());
        device_of(disk).set_len(LENGTH).unwrap();
    });
    assert!(matches!(short, FormatError::DeviceShrunk { found: LENGTH, .. }), "{short}");
    let tables = broken(|disk| SLOTS.into_iter().for_each(|at| disk.rot("device", at + 9, 1)));
    assert!(matches!(tables, FormatError::Label(_)), "{tables}");
    let small = broken(|disk| device_of(disk).set_len(LENGTH - 1).unwrap());
    assert!(matches!(small, FormatError::DeviceTooSmall { min: DEVICE_MIN, .. }), "{small}");
}

#[test]
fn interrupted_label_is_detected_and_can_be_repeated() {
    for seed in 1..=4 {
        for point in 1.. {
            let (disk, device) = bare(seed);
            let calls = disk.calls();
            disk.fault(DiskFault::Power(calls.writes + calls.syncs + point));
            let finished = DeviceMedium::format(device, [7; 16], false).is_ok();
            let disk = disk.crash();
            match DeviceMedium::open(device_of(&disk)) {
                Ok(_) => {}
                Err(FormatError::NotFormatted | FormatError::FormatIncomplete) if !finished => {
                    DeviceMedium::format(device_of(&disk), [7; 16], false).unwrap();
                }
                Err(error) => panic!("seed {seed}, point {point}: {error}"),
            }
            if finished {
                break;
            }
        }
    }
}

#[test]
fn capacities_leave_room_for_the_index() {
    for length in [DEVICE_MIN, 64 << 20, 1 << 30, 100 << 30, 10 << 40] {
        let capacity = capacity_max(length);
        assert!(capacity >= crate::disk::MIN_CAPACITY, "{length}: {capacity}");
        let index = (length / 16).max(INDEX_MIN);
        assert!(capacity + reserve_of(capacity) + index <= length + length / 100, "{length}: {capacity}");
    }
}

/// Changes a few files at random: after each crash they are as last synced, or as a later change
/// left them.
#[test]
fn synced_names_lengths_and_bytes_survive_every_crash() {
    for seed in 1..=25 {
        let (disk, _) = fresh(seed);
        let mut disk = disk.crash();
        let mut random = SeededRandom::new(seed);
        // The content of each name when it was last synced, and all its contents since.
        let mut durable: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
        for _ in 0..4 {
            let medium = DeviceMedium::open(device_of(&disk)).unwrap();
            for (name, versions) in &mut durable {
                let found = contents(&*medium.open(name, false).unwrap());
                let first = versions.first().unwrap();
                let kept = found.iter().zip(first).take_while(|(one, other)| one == other).count();
                // A synced byte must survive unless a later version differs in it.
                let later = |at: usize| versions[1..].iter().any(|v| v.get(at) != first.get(at));
                assert!(
                    kept == first.len().min(found.len()) || (kept..first.len()).any(later),
                    "seed {seed}: {name} at {kept}"
                );
                assert!(versions.iter().any(|v| v.len() == found.len()), "seed {seed}: {name}'s length");
                *versions = vec![found];
            }
            let calls = disk.calls();
            disk.fault(DiskFault::Power(calls.writes + calls.syncs + 1 + random.below(60)));
            let _ = (0..60).try_for_each(|_| step(&medium, &mut random, &mut durable));
            disk = disk.crash();
        }
    }
}

fn step(
    medium: &DeviceMedium,
    random: &mut SeededRandom,
    durable: &mut BTreeMap<String, Vec<Vec<u8>>>,
) -> io::Result<()> {
    let name = ["a", "b", "c"][random.below(3) as usize].to_owned();
    let file = medium.open(&name, true)?;
    let mut now = contents(&*file);
    match random.below(4) {
        0 => {
            let length = (random.below(3) * UNIT + random.below(3000)) as usize;
            now.resize(length, 0);
            durable.get_mut(&name).into_iter().for_each(|versions| versions.push(now.clone()));
            file.set_len(length as u64)
        }
        1 | 2 => {
            let at = random.below(now.len() as u64 + 1000) as usize;
            let data = vec![random.next() as u8; 1 + random.below(9000) as usize];
            now.resize(now.len().max(at + data.len()), 0);
            now[at..at + data.len()].copy_from_slice(&data);
            durable.get_mut(&name).into_iter().for_each(|versions| versions.push(now.clone()));
            file.write_at(at as u64, &data)
        }
        _ => {
            file.sync()?;
            if !durable.contains_key(&name) {
                medium.sync_names()?;
            }
            durable.insert(name, vec![now]);
            Ok(())
        }
    }
}

/// After a failed write of a table, the next one must not overwrite the last good copy.
#[test]
fn a_failed_table_leaves_the_good_copy_alone() {
    for failing in 1..=3 {
        for seed in 1..=20 {
            let (disk, medium) = fresh(seed);
            medium.open("kept", true).unwrap().write_at(0, b"kept").unwrap();
            medium.sync_names().unwrap();
            medium.open("new", true).unwrap();
            let calls = disk.calls();
            disk.fault(DiskFault::Sync(calls.syncs + 1));
            assert!(medium.sync_names().is_err());
            disk.fault(DiskFault::Power(calls.writes + calls.syncs + 2 + failing));
            let _ = medium.open("newer", true).unwrap().write_at(0, b"x");
            let _ = medium.sync_names();
            let medium = DeviceMedium::open(device_of(&disk.crash())).unwrap();
            assert_eq!(contents(&*medium.open("kept", false).unwrap()), b"kept", "seed {seed}");
        }
    }
}
