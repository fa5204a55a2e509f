//! Runs targets, catches failures, and minimises failing inputs.
//!
//! Does: turns panics into [`FuzzFailure`]s with message and location.
//! Does not: print, or write files.
//! Contract: the same target, seed and run number give the same inputs.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::{Random, Target, mutate, shape, unhex};

/// Time limit for one input, sufficient for unoptimised builds on a loaded machine.
pub const INPUT_SLOW_MAX: Duration = Duration::from_secs(20);
/// Maximum number of attempts to minimise a failing input.
const MINIMISE_MAX: usize = 4000;
/// Time limit for minimising a failing input.
const MINIMISE_TIME_MAX: Duration = Duration::from_secs(20);
/// Number of inputs that a session keeps for further mutation.
const POOL_MAX: usize = 256;

/// A violation of a target's contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuzzFailure {
    /// Message and location of the panic, or the time taken.
    pub message: String,
}

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
    static LISTENING: RefCell<bool> = const { RefCell::new(false) };
}

/// Captures panics of targets instead of printing them.
fn listen() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if LISTENING.with_borrow(|listening| *listening) {
                LAST.set(Some(info.to_string()));
            } else {
                usual(info);
            }
        }));
    });
}

/// Runs one input.
///
/// # Errors
/// [`FuzzFailure`] if the target panicked, or took longer than [`INPUT_SLOW_MAX`].
pub fn attempt(target: &Target, input: &[u8]) -> Result<(), FuzzFailure> {
    listen();
    LISTENING.set(true);
    let started = Instant::now();
    let result = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    LISTENING.set(false);
    if result.is_err() {
        let message = LAST.take().unwrap_or_else(|| "panicked without a message".to_owned());
        return Err(FuzzFailure { message });
    }
    let took = started.elapsed();
    if took > INPUT_SLOW_MAX {
        return Err(FuzzFailure { message: format!("one input took {took:?}") });
    }
    Ok(())
}

/// Finds a smaller input that still fails: removes pieces, then sets bytes to zero, until nothing
/// more works.
#[must_use]
pub fn minimise(target: &Target, input: &[u8]) -> Vec<u8> {
    let mut best = input.to_vec();
    let mut left = MINIMISE_MAX;
    let until = Instant::now() + MINIMISE_TIME_MAX;
    let mut fails = |candidate: &[u8]| {
        left = left.saturating_sub(1);
        left > 0 && Instant::now() < until && attempt(target, candidate).is_err()
    };
    let mut width = best.len().next_power_of_two();
    while width > 0 {
        let mut at = 0;
        while at < best.len() {
            let mut candidate = best.clone();
            candidate.drain(at..(at + width).min(best.len()));
            if fails(&candidate) { best = candidate } else { at += width }
        }
        width /= 2;
    }
    for at in 0..best.len() {
        if best[at] != 0 {
            let mut candidate = best.clone();
            candidate[at] = 0;
            if fails(&candidate) {
                best = candidate;
            }
        }
    }
    best
}

/// The minimised corpus of earlier long runs from `corpus/TARGET.inputs`, one hexadecimal line for
/// each input; empty without the file.
///
/// # Panics
/// If a line of the file is not hexadecimal.
#[must_use]
pub fn kept(target: &Target) -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let text = std::fs::read_to_string(folder.join(format!("{}.inputs", target.name))).unwrap_or_default();
    text.lines()
        .map(|line| unhex(line).unwrap_or_else(|| panic!("{}.inputs: not hexadecimal: {line}", target.name)))
        .collect()
}

/// A run of one target over mutations of its seeds.
pub struct FuzzSession {
    target: &'static Target,
    random: Random,
    pool: Vec<Vec<u8>>,
    seeds: usize,
    shape: Option<shape::StructuredMutation>,
}

impl FuzzSession {
    /// Starts from the seeds of `target` and additional inputs `more`.
    #[must_use]
    pub fn new(target: &'static Target, seed: u64, more: Vec<Vec<u8>>) -> Self {
        let mut pool = (target.seeds)();
        pool.extend(kept(target));
        pool.extend(more);
        if pool.is_empty() {
            pool.push(Vec::new());
        }
        let seeds = pool.len();
        Self { target, random: Random::new(seed), pool, seeds, shape: shape::of(target.name) }
    }

    /// The initial inputs.
    #[must_use]
    pub fn seeds(&self) -> &[Vec<u8>] {
        &self.pool[..self.seeds]
    }

    /// The next mutated input. Some join the pool, so that mutations accumulate.
    pub fn next_input(&mut self) -> Vec<u8> {
        let from = self.random.below(self.pool.len());
        let other = self.random.below(self.pool.len());
        // If the structure of the input is known, two of three mutations preserve it.
        let input = match self.shape {
            Some(shape) if self.random.below(3) > 0 => shape(&self.pool[from], &mut self.random),
            _ => mutate(&self.pool[from], &self.pool[other], &mut self.random),
        };
        if self.random.below(16) == 0 {
            if self.pool.len() < self.seeds + POOL_MAX {
                self.pool.push(input.clone());
            } else {
                let at = self.seeds + self.random.below(POOL_MAX);
                self.pool[at] = input.clone();
            }
        }
        input
    }

    /// Runs one mutated input.
    ///
    /// # Errors
    /// The input and its [`FuzzFailure`].
    pub fn step(&mut self) -> Result<(), (Vec<u8>, FuzzFailure)> {
        let input = self.next_input();
        attempt(self.target, &input).map_err(|failure| (input, failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static BROKEN: Target = Target {
        name: "broken",
        about: "fails on two bytes",
        run: |input| assert!(!(input.contains(&7) && input.contains(&9)), "both"),
        seeds: || vec![vec![1, 2, 3]],
        cost: 1,
        quarantine: None,
        covers: &[],
    };

    #[test]
    fn panic_is_a_failure_with_message_and_location() {
        let failure = attempt(&BROKEN, &[7, 9]).unwrap_err();
        assert!(failure.message.contains("both") && failure.message.contains("run.rs"), "{failure:?}");
        assert_eq!(attempt(&BROKEN, &[7]), Ok(()));
    }

    #[test]
    fn a_failing_input_gets_small() {
        let mut input = vec![3; 1000];
        (input[100], input[900]) = (9, 7);
        assert_eq!(minimise(&BROKEN, &input), [9, 7]);
    }

    #[test]
    fn session_reproduces_a_failure_from_its_seed() {
        let hunt = || {
            let mut session = FuzzSession::new(&BROKEN, 5, Vec::new());
            (0..1_000_000).find_map(|_| session.step().err()).expect("found")
        };
        assert_eq!(hunt(), hunt());
    }
}
