//! Runs every target over its seeds, mutations of them, and inputs that failed before.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sealstone_fuzz::{Failure, Session, TARGETS, Target, attempt, find, hex, minimise};

/// Mutations of a target of cost 1; `SEALSTONE_FUZZ_RUNS` overrides it.
const RUNS: u64 = 4000;
/// Mutations of the most expensive target at least.
const RUNS_MIN: u64 = 2;
/// Seed of the mutations; `SEALSTONE_FUZZ_SEED` overrides it.
const SEED: u64 = 1;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn told(target: &Target, what: &str, input: &[u8], failure: &Failure) -> String {
    format!("{}, {what}: {}\n  input: {}", target.name, failure.message, hex(&minimise(target, input)))
}

/// Returns all failures of one target.
fn smoke(target: &'static Target, runs: u64, seed: u64) -> Result<(), String> {
    let mut session =
        Session::new(target, seed, corpus(target).into_iter().map(|(_, input)| input).collect());
    for (at, input) in session.seeds().iter().enumerate() {
        attempt(target, input)
            .map_err(|failure| told(target, &format!("input {at} to start from"), input, &failure))?;
    }
    for run in 0..(runs / u64::from(target.cost)).max(RUNS_MIN) {
        session
            .step()
            .map_err(|(input, failure)| told(target, &format!("seed {seed}, run {run}"), &input, &failure))?;
    }
    Ok(())
}

/// Returns inputs that failed before, by file name.
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

/// Does `work` for every target, on as many threads as there are processors.
fn for_each(work: impl Fn(&'static Target) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // From the end of the table: the expensive targets are there.
                while let Some(target) = TARGETS.iter().rev().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    if target.quarantine.is_some() {
                        continue;
                    }
                    if let Err(failure) = work(target) {
                        failures.lock().expect("nobody panics with it").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("nobody panics with it");
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn no_seed_and_no_mutation_of_one_breaks_a_target() {
    let (runs, seed) = (number("SEALSTONE_FUZZ_RUNS", RUNS), number("SEALSTONE_FUZZ_SEED", SEED));
    for_each(|target| smoke(target, runs, seed));
}

#[test]
fn what_broke_once_does_not_break_again() {
    for_each(|target| {
        for (file, input) in corpus(target) {
            attempt(target, &input)
                .map_err(|failure| told(target, &format!("corpus file {file}"), &input, &failure))?;
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
        // A folder of inputs that failed before, or a file of inputs with high coverage.
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
