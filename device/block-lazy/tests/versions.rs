//! Versions, commits and limits, without an attacker.

use sealstone_block_lazy::{LazyError, LazyVolume, LazyWrite, ReadVerdict};
use sealstone_block_protection::{BlockKeys, ProtectionLevel};

use crate::support::{BLOCK, Bench, MODERN, PAPER, S2_5, SAFE, WRITER, unit};

const LEVELS: [ProtectionLevel; 3] =
    [ProtectionLevel::S1LazyMac, ProtectionLevel::S2LazyCipher, ProtectionLevel::S2LazyCipherMac];

#[test]
fn every_level_reads_back_its_writes() {
    for (level, profile) in
        LEVELS.into_iter().flat_map(|level| [(level, PAPER), (level, SAFE), (level, MODERN)])
    {
        let mut bench = Bench::new(level, profile);
        assert_eq!(bench.number(3), Some(0), "an unwritten block is zero");
        bench.write(0, 64, 1);
        bench.write(10, 5, 2);
        for round in 0..3 {
            let read = bench.volume.read(0, 64, 0).unwrap();
            let data = bench.verify(0, read).unwrap();
            for (lba, block) in (0..).zip(data.chunks_exact(BLOCK)) {
                let expected = if (10..15).contains(&lba) { 2 } else { 1 };
                assert_eq!(crate::support::stamped(lba, block), expected, "{level} {round}");
            }
            if round == 0 {
                bench = bench.reopen();
            } else {
                bench.volume.verify_due(100_000).unwrap();
                assert_eq!(bench.volume.status(0).unverified, 0);
            }
        }
        assert_eq!(bench.rejected(), []);
    }
}

#[test]
fn eager_level_commits_without_versions() {
    let bench = Bench::new(ProtectionLevel::S2LazyCipher, PAPER);
    bench.write(5, 3, 1);
    let status = bench.volume.status(0);
    assert_eq!((status.unverified, status.log_bytes), (0, 0));
}

#[test]
fn reader_falls_back_in_paper_profile_only() {
    for (profile, falls_back) in [(PAPER, true), (SAFE, false), (MODERN, false)] {
        let bench = Bench::new(S2_5, profile);
        for number in 1..=3 {
            bench.write(9, 1, number);
        }
        assert_eq!(bench.number(9), Some(3));
        if falls_back {
            let backs: Vec<_> = (0..4).map(|back| bench.number_back(9, back)).collect();
            assert_eq!(backs, [Some(3), Some(2), Some(1), Some(0)]);
        }
        let back = if falls_back { 4 } else { 1 };
        let error = bench.volume.read(9, 1, back).unwrap_err();
        assert!(matches!(error, LazyError::NoVersion { lba: 9, .. }), "{error}");
    }
}

#[test]
fn successful_read_commits_newest_version() {
    let bench = Bench::new(S2_5, PAPER);
    bench.write(9, 1, 1);
    bench.write(9, 1, 2);
    let version = bench.volume.read(9, 1, 0).unwrap().versions[0];
    bench.volume.report(9, version, ReadVerdict::Authentic, 0).unwrap();
    let status = bench.volume.status(0);
    assert_eq!((status.unverified, status.verified, status.log_bytes), (0, 0, 0));
    assert_eq!(bench.reopen().number(9), Some(2));
}

/// A report about a version that was the newest when it was read, after further writes.
#[test]
fn late_report_deletes_no_newer_write() {
    let bench = Bench::new(S2_5, PAPER);
    bench.write(9, 1, 1);
    let read = bench.volume.read(9, 1, 0).unwrap().versions[0];
    bench.write(9, 1, 2);
    for _ in 0..2 {
        bench.volume.report(9, read, ReadVerdict::Authentic, 0).unwrap();
        assert_eq!((bench.number(9), bench.number_back(9, 1)), (Some(2), Some(1)));
        assert_eq!(bench.volume.status(0).unverified, 1);
    }
    let bench = bench.reopen();
    // A reader falls back over a changed write, and a further one follows before its report.
    bench.write_corrupted(9, 3, 0).unwrap();
    let changed = bench.volume.read(9, 1, 0).unwrap().versions[0];
    let older = bench.volume.read(9, 1, 1).unwrap().versions[0];
    bench.write(9, 1, 4);
    bench.volume.report(9, changed, ReadVerdict::Corrupt, 0).unwrap();
    bench.volume.report(9, older, ReadVerdict::Authentic, 0).unwrap();
    assert_eq!((bench.number(9), bench.number_back(9, 1)), (Some(4), Some(2)));
    assert_eq!(bench.reopen().number(9), Some(4));
}

#[test]
fn garbage_collection_follows_age_and_count() {
    for (profile, age_ms) in [(PAPER, 30_000), (SAFE, 500), (MODERN, 500)] {
        let bench = Bench::new(S2_5, profile);
        bench.send(&bench.seal(1, 1, 1), false, 1_000).unwrap();
        bench.send(&bench.seal(2, 1, 1), false, 1_001).unwrap();
        bench.volume.verify_due(1_000 + age_ms - 1).unwrap();
        assert_eq!(bench.volume.status(0).unverified, 2);
        bench.volume.verify_due(1_000 + age_ms).unwrap();
        assert_eq!(bench.volume.status(0).unverified, 1);
        let status = bench.volume.status(1_001 + age_ms);
        assert_eq!((status.window_max_ms, status.oldest_ms), (age_ms, age_ms));
        for number in 1..=5 {
            bench.send(&bench.seal(3, 1, number), false, 1_001 + age_ms).unwrap();
        }
        bench.volume.verify_due(1_000 + age_ms).unwrap();
        assert_eq!(bench.volume.status(0).unverified, 1, "more than four versions are verified");
        assert_eq!(bench.number(3), Some(5));
    }
}

/// The ninth version of a block verifies the eight before it.
#[test]
fn version_limit_verifies_before_next_write() {
    let bench = Bench::new(S2_5, PAPER);
    for number in 1..=8 {
        bench.write(3, 1, number);
    }
    assert_eq!(bench.volume.status(0).unverified, 8);
    bench.write(3, 1, 9);
    assert_eq!(bench.volume.status(0).unverified, 1);
    assert_eq!((bench.number(3), bench.number_back(3, 1)), (Some(9), Some(8)));
}

#[test]
fn discarded_blocks_are_unwritten_after_restart() {
    for profile in [PAPER, SAFE, MODERN] {
        let bench = Bench::new(S2_5, profile);
        bench.write(0, 20, 1);
        bench.volume.discard(5, 10).unwrap();
        let bench = bench.reopen();
        let numbers: Vec<_> = [4, 5, 14, 15].map(|lba| bench.number(lba)).to_vec();
        assert_eq!(numbers, [Some(1), Some(0), Some(0), Some(1)]);
    }
}

#[test]
fn malformed_writes_change_nothing() {
    let bench = Bench::new(S2_5, SAFE);
    bench.write(250, 1, 1);
    let good = bench.seal(250, 2, 2);
    let keys = &good.list.keys[..];
    let write = LazyWrite {
        first_lba: 250,
        keys,
        macs: &good.macs,
        data: &good.data,
        writer: WRITER,
        session: 0,
        durable: false,
    };
    // L5: the number of keys, of MACs, or of bytes differs.
    for bad in [
        LazyWrite { keys: &keys[..1], ..write },
        LazyWrite { macs: &good.macs[..1], ..write },
        LazyWrite { macs: &[], ..write },
        LazyWrite { data: &good.data[..BLOCK], ..write },
        LazyWrite { data: &good.data[..BLOCK * 2 - 1], ..write },
    ] {
        let error = bench.volume.write(bad, 0).unwrap_err();
        assert!(matches!(error, LazyError::Shape { .. }), "{error}");
    }
    for first_lba in [255, 256, u64::MAX] {
        let error = bench.volume.write(LazyWrite { first_lba, ..write }, 0).unwrap_err();
        assert!(matches!(error, LazyError::Range { .. }), "{error}");
    }
    let empty = LazyWrite { keys: &[], macs: &[], data: &[], ..write };
    assert!(matches!(bench.volume.write(empty, 0), Err(LazyError::Range { .. })));
    let zeros = [keys[0].clone(), BlockKeys::UNWRITTEN];
    let zeros = LazyWrite { keys: &zeros, ..write };
    assert!(matches!(bench.volume.write(zeros, 0), Err(LazyError::ZeroKeys(251))));
    assert!(matches!(bench.volume.read(256, 1, 0), Err(LazyError::Range { .. })));
    assert_eq!((bench.number(250), bench.number(251)), (Some(1), Some(0)));
}

#[test]
fn description_must_fit_the_profile() {
    let bench = Bench::new(S2_5, SAFE);
    let without = sealstone_block_lazy::LazyUnit { secret: None, ..bench.unit.clone() };
    let opened = LazyVolume::open(bench.store.clone(), without, 0);
    assert!(matches!(opened, Err(LazyError::PageSecret("paper+safe"))));
    let records = unit(ProtectionLevel::S1RecordMac, PAPER, 256);
    let opened = LazyVolume::open(bench.store.clone(), records, 0);
    assert!(matches!(opened, Err(LazyError::Level("S1-1u"))));
    let mixed = sealstone_block_lazy::LazyUnit { profile: MODERN, ..bench.unit.clone() };
    let opened = LazyVolume::open(bench.store.clone(), mixed, 0);
    assert!(matches!(opened, Err(LazyError::Level("S2-5"))));
    assert!(matches!(bench.volume.begin_session(), Err(LazyError::NoUnitKeys("paper+safe"))));
}

#[test]
fn removal_leaves_no_objects_of_unit() {
    let bench = Bench::new(S2_5, MODERN);
    bench.write(0, 100, 1);
    bench.volume.synchronize(0).unwrap();
    bench.write(0, 100, 2);
    assert!(bench.store.space().objects > 1);
    LazyVolume::remove(&*bench.store, 1).unwrap();
    assert_eq!(bench.store.space().objects, 1, "the object of the blocks remains");
}

/// Pages are read again after they were displaced.
#[test]
fn key_cache_stays_within_its_limit() {
    for profile in [SAFE, MODERN] {
        let mut description = unit(S2_5, profile, 4096);
        description.limits.cached_pages = 2;
        let bench = Bench::with(description);
        for lba in (0..4096).step_by(100) {
            bench.write(lba, 1, lba + 1);
        }
        bench.volume.synchronize(0).unwrap();
        for lba in (0..4096).step_by(100) {
            assert_eq!(bench.number(lba), Some(lba + 1));
            assert!(bench.volume.status(0).cached_pages <= 2);
        }
    }
}
