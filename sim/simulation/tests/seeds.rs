//! Checks a few dozen worlds. `SEALSTONE_SEEDS=N` runs N of them, `SEALSTONE_SEED=S` repeats one.

#![allow(clippy::unwrap_used, reason = "a test")]

use sealstone_simulation::run;

/// Default number of worlds.
const SEEDS: u64 = 24;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn every_world_keeps_every_promise() {
    let seeds = match number("SEALSTONE_SEED") {
        Some(seed) => seed..=seed,
        None => 0..=number("SEALSTONE_SEEDS").unwrap_or(SEEDS) - 1,
    };
    let several = seeds.end() - seeds.start() + 1 >= SEEDS;
    let (mut judged, mut off_ms) = (0, 0);
    let failed: Vec<u64> = seeds
        .filter(|seed| {
            let report = run(*seed);
            assert!(report.events > 0);
            judged += report.judged;
            off_ms = off_ms.max(report.off_ms);
            if !report.is_good() {
                eprintln!("{report}");
            }
            !report.is_good()
        })
        .collect();
    assert!(failed.is_empty(), "replay each with SEALSTONE_SEED=n: {failed:?}");
    // Clocks drifted, and commands arrived meanwhile.
    assert!(!several || (judged > 1_000 && off_ms > 20), "{judged} commands judged, {off_ms} ms off at most");
}

#[test]
fn one_seed_is_one_history() {
    for seed in [3, 7] {
        let (first, second) = (run(seed), run(seed));
        let differs = first.lines.iter().zip(&second.lines).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!((first.hash, first.events), (second.hash, second.events), "seed {seed}");
        assert_ne!(first.hash, run(seed + 1).hash, "seed {seed}");
    }
}
