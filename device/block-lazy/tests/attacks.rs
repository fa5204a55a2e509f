//! Rows L1 to L12 of the attacks on lazy protection, as far as they concern storage.
//!
//! Each attack runs on both profiles: the paper's result is recorded, that of `paper+safe` is
//! required.

use sealstone_block_lazy::{LazyError, LazyUnit, LazyVolume, ReadVerdict, VersionNumber, WriterId};
use sealstone_osd::ObjectId;

use crate::support::{Bench, MODERN, PAPER, S2_5, SAFE, SECRET_CHECK, STATE, WRITER, unit};

/// L1, write suppression: the data of a write is changed on its way.
#[test]
fn suppressed_write_is_silent_in_paper_profile() {
    let bench = Bench::new(S2_5, PAPER);
    bench.write(9, 1, 1);
    bench.write_corrupted(9, 2, 0).unwrap();
    // A reader detects it, and accepts the version before as the newest.
    assert_eq!((bench.number(9), bench.number_back(9, 1)), (None, Some(1)));
    bench.volume.verify_due(30_000).unwrap();
    assert_eq!(bench.number(9), Some(1));
}

#[test]
fn suppressed_write_is_an_error_with_counter_measures() {
    for profile in [SAFE, MODERN] {
        let bench = Bench::new(S2_5, profile);
        bench.write(9, 1, 1);
        bench.write_corrupted(9, 2, 1_000).unwrap();
        bench.volume.verify_due(1_500).unwrap();
        let rejected = bench.volume.take_rejected();
        assert_eq!(rejected.len(), 1);
        assert_eq!((rejected[0].lba, rejected[0].writer), (9, Some(WRITER)));
        assert_eq!(bench.volume.status(0).rejected, 1);
        // No reader receives the older version, also after a restart, until the block is written.
        assert!(matches!(bench.volume.read(9, 1, 0), Err(LazyError::WriteLost(9))));
        let bench = bench.reopen();
        assert!(matches!(bench.volume.read(8, 3, 0), Err(LazyError::WriteLost(9))));
        bench.write(9, 1, 3);
        assert_eq!(bench.number(9), Some(3));
        bench.volume.synchronize(2_000).unwrap();
        assert_eq!(bench.reopen().number(9), Some(3));
    }
}

/// L1 at once for more blocks than are listed: each writer is in the list.
#[test]
fn many_rejections_name_each_writer() {
    let bench = Bench::with(unit(S2_5, MODERN, 2048));
    for lba in 0..1_100 {
        bench.write_corrupted(lba, 1, 0).unwrap();
    }
    let other = WriterId(8);
    let mut blocks = bench.seal(1_500, 2, 1);
    blocks.data.iter_mut().for_each(|byte| *byte ^= 1);
    bench.send_as(other, &blocks, false, 0).unwrap();
    bench.volume.verify_due(1_000).unwrap();
    let rejected = bench.volume.take_rejected();
    let by_other: Vec<u64> = (rejected.iter())
        .filter(|rejected| rejected.writer == Some(other))
        .map(|rejected| rejected.lba)
        .collect();
    assert_eq!((rejected.len(), by_other), (1_025, vec![1_500]));
    let status = bench.volume.status(0);
    assert_eq!((status.rejected, status.rejected_dropped), (1_102, 77));
}

/// L1 with FLUSH and FUA: the error reaches the writer before GOOD.
#[test]
fn flush_and_fua_verify_before_acknowledgement() {
    for profile in [SAFE, MODERN] {
        let bench = Bench::new(S2_5, profile);
        bench.write(9, 1, 1);
        bench.volume.synchronize(0).unwrap();
        assert_eq!(bench.rejected(), []);
        let mut blocks = bench.seal(9, 2, 2);
        blocks.data[600] ^= 1;
        let error = bench.send(&blocks, true, 0).unwrap_err();
        assert!(matches!(error, LazyError::NotAuthentic(10)), "{error}");
        assert_eq!((bench.number(9), bench.number(10)), (Some(1), Some(0)), "nothing was written");
        bench.send(&bench.seal(9, 2, 3), true, 0).unwrap();
        assert_eq!(bench.volume.status(0).unverified, 0);
        bench.write_corrupted(9, 4, 0).unwrap();
        bench.volume.synchronize(0).unwrap();
        assert_eq!(bench.rejected(), [9]);
    }
}

/// L2, rollback with destruction: the reply with the newest version is changed on its way, and the
/// client falls back.
#[test]
fn changed_read_reply_destroys_write_in_paper_profile() {
    let bench = Bench::new(S2_5, PAPER);
    bench.write(9, 1, 1);
    bench.write(9, 1, 2);
    let mut reply = bench.volume.read(9, 1, 0).unwrap();
    reply.data[0] ^= 1;
    let newest = reply.versions[0];
    assert_eq!(bench.verify(9, reply), None);
    bench.volume.report(9, newest, ReadVerdict::Corrupt, 0).unwrap();
    let older = bench.volume.read(9, 1, 1).unwrap();
    bench.volume.report(9, older.versions[0], ReadVerdict::Authentic, 0).unwrap();
    assert_eq!(bench.number(9), Some(1), "the valid write is lost, as the paper permits");
}

#[test]
fn changed_read_reply_keeps_write_with_counter_measures() {
    for profile in [SAFE, MODERN] {
        let bench = Bench::new(S2_5, profile);
        bench.write(9, 1, 1);
        bench.write(9, 1, 2);
        let newest = bench.volume.read(9, 1, 0).unwrap().versions[0];
        bench.volume.report(9, newest, ReadVerdict::Corrupt, 0).unwrap();
        let status = bench.volume.status(0);
        assert_eq!((status.false_reports, status.rejected, status.unverified), (1, 0, 0));
        assert_eq!((bench.number(9), bench.reopen().number(9)), (Some(2), Some(2)));
    }
}

/// L8: a client reports success for a version of its choice.
#[test]
fn false_report_commits_garbage_in_paper_profile_only() {
    for (profile, found) in [(PAPER, None), (SAFE, Some(2)), (MODERN, Some(2))] {
        let bench = Bench::new(S2_5, profile);
        bench.write_corrupted(9, 1, 0).unwrap();
        let garbage = bench.volume.read(9, 1, 0).unwrap().versions[0];
        bench.write(9, 1, 2);
        let valid = bench.volume.read(9, 1, 0).unwrap().versions[0];
        bench.volume.report(9, valid, ReadVerdict::Corrupt, 0).unwrap();
        bench.volume.report(9, garbage, ReadVerdict::Authentic, 0).unwrap();
        assert_eq!(bench.number(9), found);
        let unknown = VersionNumber::new(1 << 40).unwrap();
        bench.volume.report(9, unknown, ReadVerdict::Authentic, 0).unwrap();
        bench.volume.synchronize(0).unwrap();
        assert_eq!(bench.number(9), found);
        assert_eq!(bench.rejected(), []);
    }
}

/// L7 in the paper's profile: writes are refused, and nothing is lost.
#[test]
fn full_log_is_busy_until_verified() {
    const BLOCKS: u64 = 440;
    let mut description = unit(S2_5, PAPER, BLOCKS);
    description.limits.log_bytes_max = 256 << 10;
    let bench = Bench::with(description);
    let mut written = 0;
    let error = loop {
        match bench.send(&bench.seal(written % BLOCKS, 1, written + 1), false, 0) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LazyError::Busy { max: 262_144, .. }), "{error}");
    assert_eq!((written, bench.volume.status(0).busy), (445, 1));
    let newest = |lba| Some(if lba < written - BLOCKS { BLOCKS + lba + 1 } else { lba + 1 });
    assert!((0..BLOCKS).all(|lba| bench.number(lba) == newest(lba)));
    bench.volume.verify_due(30_000).unwrap();
    assert_eq!(bench.volume.status(0).log_bytes, 0);
    bench.write(BLOCKS - 1, 1, 9);
    let bench = bench.reopen();
    assert!((0..BLOCKS - 1).all(|lba| bench.number(lba) == newest(lba)));
}

/// L7 with counter-measures: writes are verified at once from 90 % on, so the log never is full.
#[test]
fn nearly_full_log_makes_writes_eager() {
    // A record of M-lazy is shorter, so that more of them fit.
    for profile in [SAFE, MODERN] {
        let mut description = unit(S2_5, profile, 4096);
        description.limits.log_bytes_max = 256 << 10;
        let bench = Bench::with(description);
        for lba in 0..1_000 {
            bench.write(lba, 1, lba + 1);
        }
        let status = bench.volume.status(0);
        assert!(status.log_bytes <= 236_000 && status.log_bytes > 230_000, "{status:?}");
        assert_eq!((status.busy, status.unverified as u64 + status.eager), (0, 1_000));
        let error = bench.write_corrupted(5, 9, 0).unwrap_err();
        assert!(matches!(error, LazyError::NotAuthentic(5)), "{error}");
        let bench = bench.reopen();
        assert!((0..1_000).all(|lba| bench.number(lba) == Some(lba + 1)));
    }
}

/// L10, a stolen disk: keys beside the data are readable in the paper's profile only.
#[test]
fn stored_keys_are_sealed_with_counter_measures() {
    for (profile, readable) in [(PAPER, true), (SAFE, false)] {
        let bench = Bench::new(S2_5, profile);
        let committed = bench.seal(9, 1, 1);
        bench.send(&committed, false, 0).unwrap();
        bench.volume.verify_due(100_000).unwrap();
        let waiting = bench.seal(10, 1, 1);
        bench.send(&waiting, false, 0).unwrap();
        let mut stored = Vec::new();
        for (id, _) in bench.store.list(ObjectId::new(0, 0), 100).unwrap() {
            let mut bytes = vec![0; 16 << 10];
            let read = bench.store.read(id, 0, &mut bytes).unwrap();
            stored.extend_from_slice(&bytes[..read]);
        }
        for keys in [&committed.list.keys[0], &waiting.list.keys[0]] {
            let contains = |key: &[u8]| stored.windows(key.len()).any(|bytes| bytes == key);
            assert_eq!(contains(&keys.encryption), readable);
            assert_eq!(contains(&keys.authentication), readable);
        }
    }
}

/// With one page of keys, a wrong secret looks like damage in a unit of an earlier version. It
/// deletes no version that waits for verification.
#[test]
fn wrong_secret_deletes_no_waiting_version() {
    let bench = Bench::new(S2_5, SAFE);
    bench.write(200, 1, 3);
    let wrong = LazyUnit { secret: Some(zeroize::Zeroizing::new([8; 32])), ..bench.unit.clone() };
    let refused = LazyVolume::open(bench.store.clone(), wrong.clone(), 0);
    assert!(matches!(refused.err(), Some(LazyError::WrongPageSecret)));
    bench.store.set_attribute(STATE, SECRET_CHECK, &[]).unwrap();
    let opened = LazyVolume::open(bench.store.clone(), wrong, 0).unwrap();
    assert!(matches!(opened.read(200, 1, 0), Err(LazyError::KeyPageDamaged(200))));
    opened.verify_due(100_000).unwrap();
    assert_eq!(opened.status(100_000).unverifiable, 1);
    assert!(matches!(opened.synchronize(100_000), Err(LazyError::KeyPageDamaged(200))));
    drop(opened);
    assert_eq!(bench.store.attribute(STATE, SECRET_CHECK).unwrap(), None);
    let bench = bench.reopen();
    bench.volume.verify_due(100_000).unwrap();
    assert_eq!(bench.number(200), Some(3));
}

/// A unit of an earlier version has no check of the secret until one of its pages opens.
#[test]
fn old_unit_gets_check_of_secret() {
    let bench = Bench::new(S2_5, SAFE);
    let wrong = LazyUnit { secret: Some(zeroize::Zeroizing::new([8; 32])), ..bench.unit.clone() };
    let is_refused = |wrong: &LazyUnit| {
        let opened = LazyVolume::open(bench.store.clone(), wrong.clone(), 0);
        matches!(opened.err(), Some(LazyError::WrongPageSecret))
    };
    // Blocks 0 and 100 are on pages 0 and 1.
    for lba in [0, 100] {
        bench.write(lba, 1, 1);
        bench.volume.synchronize(0).unwrap();
        bench.store.set_attribute(STATE, SECRET_CHECK, &[]).unwrap();
        assert_eq!(is_refused(&wrong), lba == 100, "one page may be damaged, two are not");
        assert_eq!(bench.store.attribute(STATE, SECRET_CHECK).unwrap(), None);
        drop(LazyVolume::open(bench.store.clone(), bench.unit.clone(), 0).unwrap());
        assert!(is_refused(&wrong));
    }
}

/// L10: sealed keys open at their place, in their unit and under their secret only.
#[test]
fn sealed_keys_open_at_their_place_only() {
    let bench = Bench::new(S2_5, SAFE);
    bench.write(0, 1, 1);
    bench.write(100, 1, 2);
    bench.volume.synchronize(0).unwrap();
    for other in [
        LazyUnit { serial: [6; 16], ..bench.unit.clone() },
        LazyUnit { secret: Some(zeroize::Zeroizing::new([8; 32])), ..bench.unit.clone() },
    ] {
        let refused = LazyVolume::open(bench.store.clone(), other, 0);
        assert!(matches!(refused.err(), Some(LazyError::WrongPageSecret)));
    }
    // Blocks 0 and 100 are on pages 0 and 1.
    let keys = ObjectId::new(sealstone_block_lazy::LAZY_PARTITION, 2 << 32);
    let mut page = vec![0; 4096];
    bench.store.read(keys, 0, &mut page).unwrap();
    bench.store.write(keys, 4096, &page).unwrap();
    let bench = bench.reopen();
    assert!(matches!(bench.volume.read(100, 1, 0), Err(LazyError::KeyPageDamaged(100))));
    assert_eq!(bench.number(0), Some(1));
}

/// L12: blocks that change places on the disk, with their keys and MACs.
#[test]
fn moved_blocks_are_detected_with_counter_measures() {
    for (profile, detected) in [(PAPER, false), (SAFE, true), (MODERN, true)] {
        let bench = Bench::new(S2_5, profile);
        let sealed = bench.seal(9, 1, 1);
        let mut moved = sealed.clone();
        moved.list.first_lba = 10;
        bench.send(&moved, false, 0).unwrap();
        let read = bench.volume.read(10, 1, 0).unwrap();
        assert_eq!(bench.verify(10, read).is_none(), detected);
        bench.volume.verify_due(100_000).unwrap();
        assert_eq!(bench.rejected().is_empty(), !detected);
    }
}
