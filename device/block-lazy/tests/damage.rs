//! Changed bytes of keys and versions on the medium: an error or right bytes, never wrong ones.

use sealstone_block_lazy::{LazyError, ReadVerdict};
use sealstone_osd::ObjectId;

use crate::support::{BLOCK, Bench, MODERN, PAPER, S2_5, SAFE, SECRET_CHECK, STATE, stamped};

/// First segment of the log of LUN 1.
fn log() -> ObjectId {
    ObjectId::new(sealstone_block_lazy::LAZY_PARTITION, (2 << 32) | (1 << 31))
}

/// Object of the keys of LUN 1.
fn keys() -> ObjectId {
    ObjectId::new(sealstone_block_lazy::LAZY_PARTITION, 2 << 32)
}

#[test]
fn every_changed_byte_of_log_is_detected() {
    for profile in [PAPER, SAFE, MODERN] {
        let mut bench = Bench::new(S2_5, profile);
        bench.write(9, 1, 1);
        bench.write(9, 1, 2);
        let length = bench.store.stat(log()).unwrap().length;
        for at in 0..length {
            let mut byte = [0];
            bench.store.read(log(), at, &mut byte).unwrap();
            bench.store.write(log(), at, &[byte[0] ^ 0x41]).unwrap();
            // While the unit is open, a reader gets an error or a block whose MAC it checks.
            if let Ok(read) = bench.volume.read(9, 1, 0) {
                assert!(bench.verify(9, read).is_none_or(|block| stamped(9, &block) == 2), "{at}");
            }
            match Bench::open(bench.store.clone(), bench.unit.clone()) {
                Err(LazyError::LogDamaged { segment: 0, .. }) => {
                    bench.store.write(log(), at, &byte).unwrap();
                }
                Err(error) => panic!("{at}: {error}"),
                // The sealed keys, or the CRC of the head, show the block of the damaged record.
                Ok(other) => {
                    assert_ne!(profile, PAPER);
                    for _ in 0..2 {
                        if let Ok(read) = other.volume.read(9, 1, 0) {
                            assert!(
                                other.verify(9, read).is_none_or(|block| stamped(9, &block) == 2),
                                "{at}"
                            );
                        }
                        other.volume.verify_due(100_000).unwrap();
                    }
                    assert_eq!(other.number(100), Some(0), "{at}: other blocks are not concerned");
                    bench = Bench::new(S2_5, profile);
                    bench.write(9, 1, 1);
                    bench.write(9, 1, 2);
                }
            }
        }
        for cut in [1, 20, 100, 700, length - 1] {
            bench.store.resize(log(), cut).unwrap();
            let opened = Bench::open(bench.store.clone(), bench.unit.clone());
            assert!(opened.is_err(), "{cut}");
            bench = Bench::new(S2_5, profile);
            bench.write(9, 1, 1);
            bench.write(9, 1, 2);
        }
    }
}

#[test]
fn every_changed_byte_of_keys_is_detected() {
    for profile in [PAPER, SAFE, MODERN] {
        let bench = Bench::new(S2_5, profile);
        bench.write(0, 2, 1);
        bench.volume.verify_due(100_000).unwrap();
        // The sealed part of a page, or the two slots.
        let length = match profile {
            PAPER => 128,
            SAFE => 63 * 64 + 29,
            _ => 127 * 32 + 29,
        };
        for at in 0..length {
            let mut byte = [0];
            bench.store.read(keys(), at, &mut byte).unwrap();
            bench.store.write(keys(), at, &[byte[0] ^ 0x41]).unwrap();
            let other = Bench::open(bench.store.clone(), bench.unit.clone()).unwrap();
            for lba in 0..2 {
                match other.volume.read(lba, 1, 0) {
                    Ok(read) => {
                        assert_eq!(profile, PAPER, "{at}");
                        // The paper's MAC covers the ciphertext, not the key of the encryption.
                        let is_encryption_key = at % 64 < 24 && at / 64 == lba;
                        let verified = other.verify(lba, read);
                        assert!(is_encryption_key || verified.is_none_or(|b| stamped(lba, &b) == 1), "{at}");
                    }
                    Err(LazyError::KeyPageDamaged(_) | LazyError::WriteLost(_)) => {}
                    Err(error) => panic!("{at}: {error}"),
                }
            }
            bench.store.write(keys(), at, &byte).unwrap();
        }
    }
}

/// The unit is refused: a check that was changed does not show which secret is the right one.
#[test]
fn every_changed_byte_of_secret_check_is_detected() {
    let bench = Bench::new(S2_5, SAFE);
    bench.write(0, 2, 1);
    bench.volume.verify_due(100_000).unwrap();
    let stored = bench.store.attribute(STATE, SECRET_CHECK).unwrap().unwrap();
    let opened = |check: &[u8]| {
        bench.store.set_attribute(STATE, SECRET_CHECK, check).unwrap();
        Bench::open(bench.store.clone(), bench.unit.clone())
    };
    for at in 0..stored.len() {
        let mut changed = stored.clone();
        changed[at] ^= 1 << (at % 8);
        for check in [&changed[..], &stored[..at.max(1)]] {
            assert!(matches!(opened(check).err(), Some(LazyError::WrongPageSecret)), "byte {at}");
        }
    }
    assert_eq!(opened(&stored).unwrap().number(1), Some(1));
}

#[test]
fn record_of_another_unit_is_damage() {
    let bench = Bench::new(S2_5, PAPER);
    bench.write(255, 1, 1);
    let smaller = sealstone_block_lazy::LazyUnit { blocks: 255, ..bench.unit.clone() };
    let opened = Bench::open(bench.store.clone(), smaller);
    assert!(matches!(opened.err(), Some(LazyError::LogDamaged { segment: 0, offset: 0 })));
}

/// One damaged page of keys concerns its blocks only: others are verified, and the unit opens.
#[test]
fn damaged_key_page_spares_other_blocks() {
    let bench = Bench::new(S2_5, SAFE);
    // Blocks 0 to 62 share a page; 100 is on the next one.
    bench.write(0, 1, 1);
    bench.write(100, 1, 1);
    bench.volume.synchronize(0).unwrap();
    bench.write(0, 1, 2);
    bench.write(100, 1, 2);
    let mut byte = [0];
    bench.store.read(keys(), 30, &mut byte).unwrap();
    bench.store.write(keys(), 30, &[byte[0] ^ 1]).unwrap();
    let other = Bench::open(bench.store.clone(), bench.unit.clone()).unwrap();
    let is_damaged = |result: Result<(), LazyError>| matches!(result, Err(LazyError::KeyPageDamaged(0)));
    other.volume.verify_due(10_000).unwrap();
    let status = other.volume.status(10_000);
    assert_eq!((status.verified, status.unverified, status.unverifiable), (1, 1, 1));
    assert_eq!(other.number(100), Some(2));
    assert!(is_damaged(other.volume.read(0, 1, 0).map(drop)), "the version may be superseded");
    assert!(is_damaged(other.volume.synchronize(10_000)), "a flush states what it could not verify");
    // A medium that returns the right bytes again loses nothing.
    bench.store.write(keys(), 30, &byte).unwrap();
    other.volume.synchronize(10_000).unwrap();
    assert_eq!((other.number(0), other.volume.status(10_000).unverifiable), (Some(2), 0));
}

/// A committed block that the medium changed is counted after a report, until it is written again.
#[test]
fn reported_damage_of_committed_block_is_counted() {
    for profile in [SAFE, MODERN] {
        let bench = Bench::new(S2_5, profile);
        bench.write(9, 1, 1);
        bench.volume.verify_due(100_000).unwrap();
        let report = || {
            let mac = bench.volume.read(9, 1, 0).unwrap().seals[0].mac;
            bench.volume.report_mac(9, &mac, ReadVerdict::Corrupt, 0).unwrap();
            let status = bench.volume.status(0);
            (status.unverifiable, status.false_reports)
        };
        assert_eq!(report(), (0, 1));
        let (place, mut byte) = (9 * BLOCK as u64 + 100, [0]);
        bench.store.read(bench.unit.data, place, &mut byte).unwrap();
        bench.store.write(bench.unit.data, place, &[byte[0] ^ 1]).unwrap();
        assert_eq!((report(), bench.number(9)), ((1, 1), None));
        bench.store.write(bench.unit.data, place, &byte).unwrap();
        assert_eq!((report(), bench.number(9)), ((0, 2), Some(1)), "a medium that recovered");
        bench.store.write(bench.unit.data, place, &[byte[0] ^ 1]).unwrap();
        assert_eq!(report(), (1, 2));
        bench.write(9, 1, 2);
        bench.volume.verify_due(100_000).unwrap();
        assert_eq!((bench.volume.status(0).unverifiable, bench.number(9)), (0, Some(2)));
    }
}

/// A log that cannot take the longest write would be busy for ever.
#[test]
fn log_smaller_than_longest_write_is_refused() {
    // With counter-measures, such writes are verified at once and not logged.
    for (profile, is_refused) in [(PAPER, true), (SAFE, false), (MODERN, false)] {
        let bench = Bench::new(S2_5, profile);
        let mut description = bench.unit.clone();
        description.limits.log_bytes_max = 128 << 10;
        let opened = Bench::open(bench.store.clone(), description).err();
        assert_eq!(matches!(opened, Some(LazyError::LogTooSmall { .. })), is_refused);
        let default = sealstone_block_lazy::LazyLimits::for_unit(1 << 20, profile);
        assert!(default.log_bytes_max >= 20 << 20);
    }
}
