//! Keys of a unit, sessions and epochs of M-lazy.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealstone_block_lazy::{LazyError, LazyUnit, LazyVolume};
use sealstone_block_protection::{EPOCHS_MAX, UnitKeys};
use sealstone_osd::ObjectType;
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{AttributeId, DiskStore, FormatOptions, ObjectStore, StoreOptions, format};
use zeroize::Zeroizing;

use crate::support::{BLOCK, Bench, MODERN, S2_5, STATE, unit};

/// Attribute of the state of LUN 1: its keys.
const KEYS: AttributeId = AttributeId { page: 0, number: 2 };

#[test]
fn sessions_have_numbers_of_their_own() {
    let mut bench = Bench::new(S2_5, MODERN);
    let mut numbers = BTreeSet::new();
    for round in 0..3 {
        for _ in 0..5 {
            assert!(numbers.insert(bench.volume.begin_session().unwrap().session));
        }
        bench.write(round, 1, round + 1);
        bench = bench.reopen();
    }
    assert!((0..3).all(|lba| bench.number(lba) == Some(lba + 1)));
}

/// A client never chooses the key of a block: only generations of its own session are accepted.
#[test]
fn generation_of_other_session_is_refused() {
    let mut bench = Bench::new(S2_5, MODERN);
    let earlier = bench.seal(9, 2, 1);
    bench.begin_session().unwrap();
    for durable in [false, true] {
        let error = bench.send(&earlier, durable, 0).unwrap_err();
        assert!(matches!(error, LazyError::StaleGeneration(9)), "{error}");
    }
    let mut mixed = bench.seal(9, 2, 2);
    mixed.list.keys[1] = earlier.list.keys[1].clone();
    assert!(matches!(bench.send(&mixed, false, 0), Err(LazyError::StaleGeneration(10))));
    assert_eq!((bench.number(9), bench.number(10)), (Some(0), Some(0)));
    bench.write(9, 2, 3);
    assert_eq!(bench.number(10), Some(3));
}

/// Rotation writes no block again: old ones keep their key, new ones have the new one.
#[test]
fn rotation_keeps_blocks_and_stops_old_sessions() {
    let mut bench = Bench::new(S2_5, MODERN);
    bench.write(0, 4, 1);
    bench.volume.synchronize(0).unwrap();
    bench.write(4, 1, 1);
    assert_eq!((bench.volume.rotate_key().unwrap(), bench.volume.status(0).key_epoch), (2, 2));
    let error = bench.send(&bench.seal(1, 1, 2), false, 0).unwrap_err();
    assert!(matches!(error, LazyError::StaleGeneration(1)), "{error}");
    // The session still reads what it can, and writes after it has the new key.
    assert_eq!((bench.number(0), bench.number(4)), (Some(1), Some(1)));
    bench.begin_session().unwrap();
    bench.write(1, 1, 2);
    bench.volume.synchronize(0).unwrap();
    let bench = bench.reopen();
    assert_eq!([0, 1, 2, 4].map(|lba| bench.number(lba)), [Some(1), Some(2), Some(1), Some(1)]);
    assert_eq!((bench.volume.status(0).key_epoch, bench.rejected()), (2, vec![]));
    // A session with the earlier keys only cannot read what was written with the new key.
    let encoded = bench.volume.begin_session().unwrap().encoded;
    let (both, _) = UnitKeys::parse(&encoded).unwrap();
    let read = bench.volume.read(1, 1, 0).unwrap();
    let (generation, tag) = (read.seals[0].keys.generation, read.seals[0].mac);
    assert!(both.open_block(1, generation, &tag, &mut read.data.clone()));
    for _ in 2..EPOCHS_MAX {
        bench.volume.rotate_key().unwrap();
    }
    assert!(matches!(bench.volume.rotate_key(), Err(LazyError::EpochsExhausted(EPOCHS_MAX))));
    assert_eq!(bench.number(1), Some(2));
}

#[test]
fn unit_without_sessions_can_be_rotated() {
    let Bench { store, unit, volume, .. } = Bench::new(S2_5, MODERN);
    drop(volume);
    LazyVolume::remove(&*store, unit.lun).unwrap();
    let volume = LazyVolume::open(store.clone(), unit.clone(), 0).unwrap();
    assert_eq!((volume.rotate_key().unwrap(), volume.rotate_key().unwrap()), (2, 3));
    drop(volume);
    let bench = Bench::open(store, unit).unwrap();
    bench.write(9, 1, 1);
    assert_eq!((bench.number(9), bench.volume.status(0).key_epoch), (Some(1), 3));
}

/// L10: the keys of the unit are sealed, open in their unit only, and are never replaced.
#[test]
fn stored_unit_keys_are_sealed_and_never_replaced() {
    let bench = Bench::new(S2_5, MODERN);
    bench.write(9, 1, 1);
    bench.volume.synchronize(0).unwrap();
    let encoded = bench.volume.begin_session().unwrap().encoded;
    let stored = bench.store.attribute(STATE, KEYS).unwrap().unwrap();
    let key = &encoded[encoded.len() - 32..];
    assert!(!stored.windows(key.len()).any(|bytes| bytes == key));
    let reopened = |unit: LazyUnit| LazyVolume::open(bench.store.clone(), unit, 0).err();
    for other in [
        LazyUnit { serial: [6; 16], ..bench.unit.clone() },
        LazyUnit { secret: Some(Zeroizing::new([8; 32])), ..bench.unit.clone() },
    ] {
        assert!(matches!(reopened(other), Some(LazyError::UnitKeysDamaged)));
    }
    for at in 0..stored.len() {
        let mut changed = stored.clone();
        changed[at] ^= 1 << (at % 8);
        bench.store.set_attribute(STATE, KEYS, &changed).unwrap();
        assert!(matches!(reopened(bench.unit.clone()), Some(LazyError::UnitKeysDamaged)), "byte {at}");
    }
    bench.store.set_attribute(STATE, KEYS, &[]).unwrap();
    assert!(matches!(reopened(bench.unit.clone()), Some(LazyError::UnitKeysDamaged)));
    bench.store.set_attribute(STATE, KEYS, &stored).unwrap();
    assert_eq!(bench.reopen().number(9), Some(1));
}

/// The power fails in each single write and sync of sessions and rotations: no number of a session
/// is used twice, and no block loses its key.
#[test]
fn session_numbers_survive_every_crash_point() {
    let mut point = 1;
    loop {
        let mut medium = SimMedium::new(point);
        format(&medium, &FormatOptions::new(24 << 20, [7; 16])).unwrap();
        let open = |medium: &SimMedium| {
            let store = DiskStore::open(Arc::new(medium.clone()), StoreOptions::default());
            store.map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
        };
        let description = unit(S2_5, MODERN, 64);
        let store = open(&medium).unwrap();
        store.create(description.data, ObjectType::User).unwrap();
        store.resize(description.data, 64 * BLOCK as u64).unwrap();
        store.flush().unwrap();
        drop(store);
        let calls = medium.calls();
        medium.fault(DiskFault::Power(calls.writes + calls.syncs + point));
        let mut numbers = BTreeSet::new();
        let mut written = 0;
        let mut epoch = 0;
        for _ in 0..2 {
            let Ok(store) = open(&medium) else { break };
            let Ok(mut bench) = Bench::open(store, description.clone()) else { break };
            for step in 0..6 {
                let Ok(session) = bench.volume.begin_session() else { break };
                assert!(numbers.insert(session.session), "point {point}");
                if bench.begin_session().is_err() {
                    break;
                }
                let blocks = bench.seal(written, 1, written + 1);
                if bench.send(&blocks, false, 0).is_err() || bench.volume.synchronize(0).is_err() {
                    break;
                }
                written += 1;
                if step == 3 {
                    let Ok(begun) = bench.volume.rotate_key() else { break };
                    epoch = begun;
                }
            }
            if medium.is_dead() {
                break;
            }
        }
        let is_done = !medium.is_dead();
        medium = medium.crash();
        let bench = Bench::open(open(&medium).unwrap(), description.clone()).unwrap();
        assert!((0..written).all(|lba| bench.number(lba) == Some(lba + 1)), "point {point}");
        assert!(bench.volume.status(0).key_epoch >= epoch, "point {point}");
        assert!(!numbers.contains(&bench.volume.begin_session().unwrap().session), "point {point}");
        if is_done {
            break;
        }
        point += 1;
    }
    assert!(point > 20, "{point} crash points");
}
