//! Longer runs: `cargo run -p sealstone-simulation -- --seeds N [--from S]`, or one world: `--seed
//! S`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: sealstone-simulation [--seeds N] [--from S] | --seed S [--log | --trace]
  --seeds N   worlds to run (100)
  --from S    seed of the first (0)
  --seed S    one world
  --log       show its history even if all is well
  --trace     show every delivery and every command in it
SEALSTONE_SEED=S is the same as --seed S.";

/// Parsed command line.
struct CommandLine {
    from: u64,
    count: u64,
    log: bool,
    trace: bool,
}

fn main() -> ExitCode {
    let Some(options) = command_line(std::env::args().skip(1), std::env::var("SEALSTONE_SEED").ok()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let began = Instant::now();
    let mut failed = Vec::new();
    for (done, seed) in (options.from..options.from.saturating_add(options.count)).enumerate() {
        let report =
            if options.trace { sealstone_simulation::trace(seed) } else { sealstone_simulation::run(seed) };
        if options.log && report.is_good() {
            report.lines.iter().for_each(|line| println!("{line}"));
        }
        println!("{report}");
        if !report.is_good() {
            failed.push(seed);
        }
        let done = done as u64 + 1;
        if done.is_multiple_of(20) {
            let rate = done as f64 / began.elapsed().as_secs_f64();
            eprintln!("{done} of {} worlds, {rate:.1} a second, failed: {failed:?}", options.count);
        }
    }
    println!("{} worlds, failed: {failed:?}", options.count);
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn command_line(arguments: impl Iterator<Item = String>, seed: Option<String>) -> Option<CommandLine> {
    let mut options = CommandLine { from: 0, count: 100, log: false, trace: false };
    if let Some(seed) = seed {
        options = CommandLine { from: seed.parse().ok()?, count: 1, log: false, trace: false };
    }
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next()?.parse::<u64>().ok();
        match argument.as_str() {
            "--seeds" => options.count = number()?,
            "--from" => options.from = number()?,
            "--seed" => (options.from, options.count) = (number()?, 1),
            "--log" => options.log = true,
            "--trace" => (options.log, options.trace) = (true, true),
            _ => return None,
        }
    }
    Some(options)
}
