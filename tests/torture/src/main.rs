//! `make torture`: kills real daemons for the given time.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sealstone_torture::{RunOptions, run};

const USAGE: &str = "usage: sealstone-torture [--seconds N] [--seed S] [--workers N] [--device-only | --names-only] [--json]
  --seconds N     how long (120)
  --seed S        the seed of every choice (random; SEALSTONE_SEED=S is the same)
  --workers N     clients of a device at once (5)
  --device-only   no metadata server
  --names-only    nothing but clients that change the same names, at two metadata servers on one PostgreSQL
  --json          the summary as one line of JSON
Exit code 1 and the seed if a promise was broken. A full file system is made with a tmpfs, and a raw device with a loop
device; both take root. Without a loop device a file stands for the raw device.";

/// Parsed command line.
struct Arguments {
    options: RunOptions,
    json: bool,
}

fn main() -> ExitCode {
    let Some(Arguments { options, json }) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // Built before the time starts.
    sealstone_tests::binary();
    let bar = ProgressBar::new(options.time.as_secs());
    if json || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.set_style(
        ProgressStyle::with_template("{msg:20!} [{bar:40}] {pos:>4}/{len} s")
            .expect("a fixed template parses")
            .progress_chars("=> "),
    );
    let began = Instant::now();
    let ticking = bar.clone();
    std::thread::spawn(move || {
        while !ticking.is_finished() {
            ticking.set_position(began.elapsed().as_secs().min(options.time.as_secs()));
            std::thread::sleep(Duration::from_millis(250));
        }
    });
    let outcome = run(&options, |what| bar.set_message(what));
    bar.finish_and_clear();
    match outcome {
        Ok(report) => {
            if json {
                println!("{}", serde_json::to_string(&report).expect("numbers serialise"));
            } else {
                println!(
                    "{} kills and {} during starts, {} lives; {} steps acknowledged ({} rewrites, {} of collections, \
                     {} of snapshots and clones), {} of them durable, {} refused for want of space; {} objects \
                     compared after restarts, {} checks at rest; {} files put in {} rounds of a system; \
                     {} changes of the same names in {} rounds ({} never answered, {} rounds not decided); seed {}, \
                     {:.0} s",
                    report.kills,
                    report.kills_at_start,
                    report.lives,
                    report.steps,
                    report.rewrites,
                    report.memberships,
                    report.duplicates,
                    report.durable,
                    report.refused,
                    report.compared,
                    report.checks,
                    report.puts,
                    report.rounds,
                    report.names_operations,
                    report.names_rounds,
                    report.names_unknown,
                    report.names_undecided,
                    report.seed,
                    report.seconds,
                );
                report.left_out.iter().for_each(|what| println!("left out, since it takes root: {what}"));
            }
            ExitCode::SUCCESS
        }
        Err(violation) => {
            eprintln!("torture: {}: {}", violation.place, violation.what);
            if let Some(folder) = violation.folder {
                eprintln!("the folder is kept: {}", folder.display());
            }
            eprintln!("seed {}: SEALSTONE_SEED={} make torture", options.seed, options.seed);
            ExitCode::FAILURE
        }
    }
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let seed = match std::env::var("SEALSTONE_SEED") {
        Ok(seed) => seed.parse().ok()?,
        Err(_) => rand::random(),
    };
    let options =
        RunOptions { seed, time: Duration::from_secs(120), workers: 5, system: true, names_alone: false };
    let mut all = Arguments { options, json: false };
    while let Some(word) = words.next() {
        let mut number = || words.next()?.parse::<u64>().ok();
        match word.as_str() {
            "--seconds" => all.options.time = Duration::from_secs(number()?),
            "--seed" => all.options.seed = number()?,
            "--workers" => {
                all.options.workers = usize::try_from(number()?).ok().filter(|n| (1..=64).contains(n))?
            }
            "--device-only" => all.options.system = false,
            "--names-only" => all.options.names_alone = true,
            "--json" => all.json = true,
            _ => return None,
        }
    }
    Some(all)
}
