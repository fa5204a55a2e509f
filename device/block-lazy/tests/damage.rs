//! Changed bytes of keys and versions on the medium: an error or right bytes, never wrong ones.

use sealstone_block_lazy::LazyError;
use sealstone_osd::ObjectId;

use crate::support::{Bench, PAPER, S2_5, SAFE, stamped};

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
    for profile in [PAPER, SAFE] {
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
            let opened = Bench::open(bench.store.clone(), bench.unit.clone());
            assert!(matches!(opened.err(), Some(LazyError::LogDamaged { segment: 0, .. })), "{at}");
            bench.store.write(log(), at, &byte).unwrap();
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
    for profile in [PAPER, SAFE] {
        let bench = Bench::new(S2_5, profile);
        bench.write(0, 2, 1);
        bench.volume.verify_due(100_000).unwrap();
        // The sealed part of a page, or the two slots.
        let length = if profile == SAFE { 63 * 64 + 29 } else { 128 };
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

#[test]
fn record_of_another_unit_is_damage() {
    let bench = Bench::new(S2_5, PAPER);
    bench.write(255, 1, 1);
    let smaller = sealstone_block_lazy::LazyUnit { blocks: 255, ..bench.unit.clone() };
    let opened = Bench::open(bench.store.clone(), smaller);
    assert!(matches!(opened.err(), Some(LazyError::LogDamaged { segment: 0, offset: 0 })));
}
