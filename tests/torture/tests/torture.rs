//! A short run for the test suite; `make torture` is the long one.

use std::time::Duration;

use sealstone_torture::{RunOptions, run};

/// Approximate duration; the last round of each part is completed.
const TIME: Duration = Duration::from_secs(24);

#[test]
fn killed_daemons_keep_their_promises() {
    let seed = std::env::var("SEALSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    let options = RunOptions { seed, time: TIME, workers: 4, system: true, names_alone: false };
    let report = run(&options, |_| {}).unwrap_or_else(|violation| {
        panic!(
            "{}: {} (SEALSTONE_SEED={seed}; folder kept: {:?})",
            violation.place, violation.what, violation.folder
        )
    });
    assert!(
        report.kills > 0
            && report.steps > 0
            && report.durable > 0
            && report.compared > 0
            && report.names_rounds > 0,
        "{report:?}"
    );
}
