//! Every target with its seeds, with mutations of them, and with inputs of earlier failures.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sealstone_fuzz::{FuzzFailure, FuzzSession, TARGETS, Target, attempt, find, hex, minimise};

/// Number of mutations of a target of cost 1; set `SEALSTONE_FUZZ_RUNS` to change it.
const RUNS: u64 = 4000;
/// Minimum number of mutations of the most expensive target.
const RUNS_MIN: u64 = 2;
/// Seed of the mutations; set `SEALSTONE_FUZZ_SEED` to change it.
const SEED: u64 = 1;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn failure_text(target: &Target, what: &str, input: &[u8], failure: &FuzzFailure) -> String {
    format!("{}, {what}: {}\n  input: {}", target.name, failure.message, hex(&minimise(target, input)))
}

/// Runs one target; returns its failures.
fn smoke(target: &'static Target, runs: u64, seed: u64) -> Result<(), String> {
    let mut session =
        FuzzSession::new(target, seed, corpus(target).into_iter().map(|(_, input)| input).collect());
    for (at, input) in session.seeds().iter().enumerate() {
        attempt(target, input)
            .map_err(|failure| failure_text(target, &format!("input {at} to start from"), input, &failure))?;
    }
    for run in 0..(runs / u64::from(target.cost)).max(RUNS_MIN) {
        session.step().map_err(|(input, failure)| {
            failure_text(target, &format!("seed {seed}, run {run}"), &input, &failure)
        })?;
    }
    Ok(())
}

/// Inputs of earlier failures, by file name.
fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .map(|entry| {
            let entry = entry.expect("the folder is readable");
            let input = std::fs::read(entry.path()).expect("the file is readable");
            (entry.file_name().to_string_lossy().into_owned(), input)
        })
        .collect();
    files.sort();
    files
}

/// Runs `work` for every target, with one thread per processor.
fn for_each(work: impl Fn(&'static Target) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // In reverse order, because the most expensive targets are last.
                while let Some(target) = TARGETS.iter().rev().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    if target.quarantine.is_some() {
                        continue;
                    }
                    if let Err(failure) = work(target) {
                        failures.lock().expect("no thread panics with it").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panics with it");
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn seeds_and_their_mutations_pass() {
    let (runs, seed) = (number("SEALSTONE_FUZZ_RUNS", RUNS), number("SEALSTONE_FUZZ_SEED", SEED));
    for_each(|target| smoke(target, runs, seed));
}

#[test]
fn inputs_of_earlier_failures_pass() {
    for_each(|target| {
        for (file, input) in corpus(target) {
            attempt(target, &input)
                .map_err(|failure| failure_text(target, &format!("corpus file {file}"), &input, &failure))?;
        }
        Ok(())
    });
}

#[test]
fn every_corpus_belongs_to_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.expect("the folder is readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        // A folder of inputs of earlier failures, or a corpus file.
        let target = name.strip_suffix(".inputs").unwrap_or(&name);
        assert!(find(target).is_some(), "corpus/{name} has no target");
    }
}

#[test]
fn seeds_are_the_same_at_every_call() {
    for target in TARGETS.iter().filter(|target| target.cost < 1000) {
        assert_eq!((target.seeds)(), (target.seeds)(), "{}", target.name);
    }
}
