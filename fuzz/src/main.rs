//! Long runs of one target with any toolchain: `sealstone-fuzz TARGET [--runs N] [--seed S]
//! [--minutes M]`.
//!
//! Does: prints progress; minimises a failing input and writes it to a file.
//! Does not: measure coverage.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sealstone_fuzz::{
    FuzzFailure, FuzzSession, INPUT_SLOW_MAX, TARGETS, Target, attempt, find, hex, kept, minimise,
};

const USAGE: &str =
    "usage: sealstone-fuzz TARGET|--all [--runs N] [--seed S] [--minutes M] [--out FOLDER] [--keep-going]
       sealstone-fuzz TARGET FILE...                   runs these inputs, nothing else
       sealstone-fuzz TARGET --write-seeds FOLDER      writes the inputs it starts from
       sealstone-fuzz --list";
/// Default number of runs of a target of cost 1, without `--runs` and `--minutes`.
const RUNS: u64 = 1_000_000;
/// Number of distinct failures after which `--keep-going` stops.
const FAILURES_MAX: usize = 20;

struct Arguments {
    targets: Vec<&'static Target>,
    files: Vec<PathBuf>,
    runs: Option<u64>,
    seed: u64,
    minutes: Option<f64>,
    out: PathBuf,
    write_seeds: Option<PathBuf>,
    keep_going: bool,
}

fn arguments() -> Result<Option<Arguments>, String> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let mut parsed = Arguments {
        targets: Vec::new(),
        files: Vec::new(),
        runs: None,
        seed: clock,
        minutes: None,
        out: PathBuf::from("."),
        write_seeds: None,
        keep_going: false,
    };
    let mut rest = std::env::args().skip(1);
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--list" => return Ok(None),
            "--all" => parsed.targets.extend(TARGETS.iter().filter(|target| target.quarantine.is_none())),
            "--runs" => parsed.runs = Some(value()?.parse().map_err(|_| "--runs needs a number")?),
            "--seed" => parsed.seed = value()?.parse().map_err(|_| "--seed needs a number")?,
            "--minutes" => parsed.minutes = Some(value()?.parse().map_err(|_| "--minutes needs a number")?),
            "--out" => parsed.out = PathBuf::from(value()?),
            "--write-seeds" => parsed.write_seeds = Some(PathBuf::from(value()?)),
            "--keep-going" => parsed.keep_going = true,
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            name if parsed.targets.is_empty() => {
                parsed.targets.push(find(name).ok_or(format!("no target {name}; see --list"))?);
            }
            file => parsed.files.push(PathBuf::from(file)),
        }
    }
    if parsed.targets.is_empty() { Err("no target".to_owned()) } else { Ok(Some(parsed)) }
}

/// The current input, for the detection of hangs.
type CurrentInput = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

/// Prints the input and ends the process if a target does not return.
fn watch(target: &'static Target, current: CurrentInput) {
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(1));
            let now = current.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, input)) = &*now
                && since.elapsed() > INPUT_SLOW_MAX
            {
                eprintln!("\n{}: does not return from input {}", target.name, hex(input));
                std::process::exit(3);
            }
        }
    });
}

fn report(target: &Target, out: &Path, number: usize, input: &[u8], failure: &FuzzFailure) {
    println!("\n{}: {}", target.name, failure.message);
    let small = minimise(target, input);
    let path = out.join(format!("{}-{number}", target.name));
    match std::fs::write(&path, &small) {
        Ok(()) => println!("{} bytes in {}: {}", small.len(), path.display(), hex(&small)),
        Err(error) => println!("{}: {error}; the input: {}", path.display(), hex(&small)),
    }
}

/// Returns the number of distinct failures.
fn run(target: &'static Target, arguments: &Arguments) -> usize {
    let current = CurrentInput::default();
    watch(target, Arc::clone(&current));
    let set = |now| *current.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let started = Instant::now();
    let until = arguments.minutes.map(|minutes| started + Duration::from_secs_f64(60.0 * minutes));
    let runs = match (arguments.runs, until) {
        (Some(runs), _) => runs,
        (None, Some(_)) => u64::MAX,
        (None, None) => RUNS / u64::from(target.cost) + 1,
    };
    let mut session = FuzzSession::new(target, arguments.seed, Vec::new());
    let mut queue = session.seeds().to_vec();
    let mut seen: Vec<String> = Vec::new();
    let mut last_report = started;
    let mut done = 0_u64;
    println!("{}: seed {}, {} inputs to start from", target.name, arguments.seed, queue.len());
    while done < runs && until.is_none_or(|until| Instant::now() < until) {
        let input = queue.pop().unwrap_or_else(|| session.next_input());
        set(Some((Instant::now(), input.clone())));
        let result = attempt(target, &input);
        set(None);
        done += 1;
        if let Err(failure) = result {
            // Failures are distinguished by the location of the panic; messages vary with the
            // input.
            let place = failure.message.split('\n').next().unwrap_or_default().to_owned();
            if !seen.contains(&place) {
                seen.push(place);
                report(target, &arguments.out, seen.len(), &input, &failure);
                if !arguments.keep_going || seen.len() == FAILURES_MAX {
                    break;
                }
            }
        }
        if last_report.elapsed() > Duration::from_secs(2) {
            last_report = Instant::now();
            let rate = done as f64 / started.elapsed().as_secs_f64();
            print!("\r{}: {done} runs, {rate:.0} a second, {} failures ", target.name, seen.len());
            let _ = std::io::stdout().flush();
        }
    }
    println!(
        "\r{}: {done} runs in {:.1} s, {} failures",
        target.name,
        started.elapsed().as_secs_f64(),
        seen.len()
    );
    seen.len()
}

fn replay(target: &Target, files: &[PathBuf]) -> Result<usize, String> {
    let mut failures = 0;
    for file in files {
        let input = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        match attempt(target, &input) {
            Ok(()) => println!("{}: passes", file.display()),
            Err(failure) => {
                failures += 1;
                println!("{}: {}", file.display(), failure.message);
            }
        }
    }
    Ok(failures)
}

fn write_seeds(targets: &[&Target], folder: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(folder)?;
    for target in targets {
        for (at, seed) in (target.seeds)().iter().chain(&kept(target)).enumerate() {
            std::fs::write(folder.join(format!("{}-seed-{at}", target.name)), seed)?;
        }
    }
    Ok(0)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            TARGETS.iter().for_each(|target| println!("{:22} {}", target.name, target.about));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let failures = if let Some(folder) = &arguments.write_seeds {
        write_seeds(&arguments.targets, folder).map_err(|error| format!("{}: {error}", folder.display()))
    } else if arguments.files.is_empty() {
        Ok(arguments.targets.iter().map(|target| run(target, &arguments)).sum())
    } else {
        replay(arguments.targets[0], &arguments.files)
    };
    match failures {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
