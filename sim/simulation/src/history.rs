//! The history, as readable lines and as a hash.
//!
//! Contract: equal histories have equal hashes. The hash covers every byte that the network
//! delivers and every command that a device answers.

use std::fmt::Write;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum lines kept; the hash covers all.
const LINES_MAX: usize = 100_000;

/// The history of one world.
pub struct History {
    began: Instant,
    /// Whether hashed-only events are lines too.
    trace: bool,
    state: Mutex<HistoryState>,
}

struct HistoryState {
    hash: u64,
    events: u64,
    lines: Vec<String>,
    violations: Vec<String>,
}

impl History {
    /// Creates an empty history; `trace` keeps every event as a line.
    #[must_use]
    pub fn new(trace: bool) -> Self {
        // The offset basis of FNV-1a.
        let state = HistoryState {
            hash: 0xCBF2_9CE4_8422_2325,
            events: 0,
            lines: Vec::new(),
            violations: Vec::new(),
        };
        Self { began: Instant::now(), trace, state: Mutex::new(state) }
    }
}

impl HistoryState {
    fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

impl History {
    /// Returns microseconds since the world's start.
    #[must_use]
    pub fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Adds an event to the hash only: too frequent for lines.
    pub fn note(&self, what: &str, figures: &[u64]) {
        let at = self.micros();
        let mut state = self.state.lock();
        state.events += 1;
        state.mix(what.as_bytes());
        state.mix(&at.to_be_bytes());
        figures.iter().for_each(|figure| state.mix(&figure.to_be_bytes()));
        if self.trace && state.lines.len() < LINES_MAX {
            state.lines.push(format!("{:>5}.{:06}   {what} {figures:?}", at / 1_000_000, at % 1_000_000));
        }
    }

    /// Adds the bytes of the last event to the hash.
    pub fn note_bytes(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        state.mix(bytes);
        if self.trace
            && let Some(line) = state.lines.last_mut()
        {
            for byte in bytes {
                let _ = write!(line, " {byte:02x}");
            }
        }
    }

    /// Adds a line.
    pub fn add_line(&self, line: impl AsRef<str>) {
        let at = self.micros();
        let mut text = String::new();
        let _ = write!(text, "{:>5}.{:06} {}", at / 1_000_000, at % 1_000_000, line.as_ref());
        let mut state = self.state.lock();
        state.events += 1;
        state.mix(text.as_bytes());
        if state.lines.len() < LINES_MAX {
            state.lines.push(text);
        }
    }

    /// Records a violation.
    pub fn violate(&self, what: impl AsRef<str>) {
        self.add_line(format!("VIOLATION: {}", what.as_ref()));
        self.state.lock().violations.push(what.as_ref().to_owned());
    }

    /// Returns hash and number of events so far.
    #[must_use]
    pub fn sum(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.hash, state.events)
    }

    /// Takes out lines and violations.
    #[must_use]
    pub fn take(&self) -> (Vec<String>, Vec<String>) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.lines), std::mem::take(&mut state.violations))
    }
}
