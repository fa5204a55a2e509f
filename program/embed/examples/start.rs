//! Measures embedded clusters: from the start to the first stored byte, and the stop.
//!
//! `cargo run --release -p sealstone-embed --example start [ROUNDS] [DEVICES]` prints one JSON
//! object: milliseconds, as median and 95th percentile.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use sealstone_client::PutOptions;
use sealstone_embed::EmbeddedCluster;

const ROUNDS_DEFAULT: usize = 20;
const DEVICES_DEFAULT: usize = 1;

/// Milliseconds of one round.
struct RoundTimes {
    /// Until clients can log in.
    started: f64,
    /// Until the first byte is stored and committed, from the same begin.
    stored: f64,
    /// Until the cluster has stopped, from the call of `stop`.
    stopped: f64,
}

async fn round(devices: usize, folder: Option<&Path>) -> Result<RoundTimes, Box<dyn Error>> {
    let builder = EmbeddedCluster::builder().devices(devices);
    let begun = Instant::now();
    let cluster = match folder {
        Some(folder) => builder.folder(folder),
        None => builder,
    };
    let cluster = cluster.start().await?;
    let started = milliseconds(begun);
    let client = cluster.client().await?;
    client.put("/first", &b"1"[..], PutOptions { replace: true, ..PutOptions::default() }).await?;
    let stored = milliseconds(begun);
    drop(client);
    let begun = Instant::now();
    cluster.stop().await?;
    Ok(RoundTimes { started, stored, stopped: milliseconds(begun) })
}

fn milliseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// Returns a JSON object with the median and the 95th percentile of a time of all rounds.
fn summary(rounds: &[RoundTimes], time: impl Fn(&RoundTimes) -> f64) -> String {
    let mut times: Vec<f64> = rounds.iter().map(time).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    format!("{{\"median\": {:.1}, \"p95\": {:.1}}}", at(50), at(95))
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the result")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds_wanted = arguments.next().map_or(Ok(ROUNDS_DEFAULT), |rounds| rounds.parse())?.max(1);
    let devices = arguments.next().map_or(Ok(DEVICES_DEFAULT), |devices| devices.parse())?;
    let mut lines = vec![format!("\"rounds\": {rounds_wanted}, \"devices\": {devices}")];
    for place in ["memory", "new_folder", "existing_folder"] {
        let kept = tempfile::tempdir()?;
        let mut rounds = Vec::new();
        if place == "existing_folder" {
            round(devices, Some(kept.path())).await?;
        }
        for index in 0..rounds_wanted {
            let new = kept.path().join(index.to_string());
            let folder = match place {
                "memory" => None,
                "new_folder" => Some(new.as_path()),
                _ => Some(kept.path()),
            };
            rounds.push(round(devices, folder).await?);
        }
        lines.push(format!(
            "\"{place}\": {{\"started_ms\": {}, \"stored_ms\": {}, \"stopped_ms\": {}}}",
            summary(&rounds, |times| times.started),
            summary(&rounds, |times| times.stored),
            summary(&rounds, |times| times.stopped)
        ));
    }
    println!("{{{}}}", lines.join(",\n "));
    Ok(())
}
