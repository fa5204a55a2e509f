//! Measures what the start and the end of confined engines cost, and prints it as JSON.
//!
//! `cargo run --release -p sealstone-sandbox --example start_cost -- [ENGINE_PROGRAM [ROUNDS]]`;
//! the program is the attack engine unless another one is named.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sealstone_sandbox::{EngineCode, EngineKind, EngineRequest, Zygote, ZygoteOptions};

/// Rounds unless the second argument says otherwise.
const ROUNDS: usize = 500;
/// Size of the code that each engine receives, in bytes: a small shared object.
const CODE_BYTES: usize = 16 << 10;
/// Maximum time of one engine.
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let program = arguments.next().map_or_else(attack_engine, |program| Ok(PathBuf::from(program)))?;
    let rounds = arguments.next().map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let begin = Instant::now();
    let zygote = Zygote::spawn(ZygoteOptions::new(program, EngineKind::C))?;
    let zygote_us = begin.elapsed().as_micros();
    let code = EngineCode::new("fn.so", &vec![0; CODE_BYTES])?;
    let (mut starts, mut kills) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let request = EngineRequest {
            code: Some(code.clone()),
            parameters: b"sleep".to_vec(),
            ..EngineRequest::default()
        };
        let begin = Instant::now();
        let engine = zygote.start(&request)?;
        starts.push(begin.elapsed());
        let begin = Instant::now();
        engine.kill();
        engine.wait(Some(TIMEOUT))?.ok_or("the engine does not end")?;
        kills.push(begin.elapsed());
    }
    let (start, kill) = (percentiles(starts), percentiles(kills));
    let missing: Vec<_> = zygote.isolation().missing().map(|(layer, _)| layer.name()).collect();
    let result = serde_json::json!({
        "rounds": rounds,
        "zygote_us": zygote_us,
        "start_to_ready_us": start,
        "kill_to_reaped_us": kill,
        "missing_layers": missing,
    });
    writeln!(std::io::stdout(), "{result:#}")?;
    Ok(())
}

/// Returns the attack engine beside this example.
fn attack_engine() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(std::path::Path::parent).ok_or(std::io::ErrorKind::NotFound)?;
    Ok(folder.join("sealstone-attack-engine"))
}

fn percentiles(mut times: Vec<Duration>) -> serde_json::Value {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    serde_json::json!({ "min": at(0), "p50": at(50), "p99": at(99) })
}
