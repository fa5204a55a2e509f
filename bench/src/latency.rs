//! Latency of one command, measured many times.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Outcome;

/// Fraction of the samples that warms up and does not count.
const LEAD_IN: usize = 20;

/// Result of one command.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CommandLatency {
    pub(crate) name: String,
    pub(crate) samples: usize,
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) least_us: f64,
    /// Note printed after the row.
    pub(crate) note: String,
}

impl CommandLatency {
    /// Computes the result from single times.
    pub(crate) fn of(name: &str, note: &str, mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |percent: usize| {
            let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
        };
        Self {
            name: name.to_owned(),
            samples: times.len(),
            median_us: at(50),
            p99_us: at(99),
            least_us: at(0),
            note: note.to_owned(),
        }
    }

    /// Runs `work` this many times, after a warm-up.
    pub(crate) fn measure(
        name: &str,
        note: &str,
        samples: usize,
        mut work: impl FnMut(usize) -> Outcome,
    ) -> Outcome<Self> {
        let lead_in = samples.div_ceil(LEAD_IN);
        let mut times = Vec::with_capacity(samples);
        for number in 0..lead_in + samples {
            let begin = Instant::now();
            work(number)?;
            let time = begin.elapsed();
            if number >= lead_in {
                times.push(time);
            }
        }
        let latency = Self::of(name, note, times);
        eprintln!("{name}: {:.0} us, p99 {:.0} us", latency.median_us, latency.p99_us);
        Ok(latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_p99_use_sorted_times() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let latency = CommandLatency::of("x", "", times);
        assert!((latency.median_us - 101.0).abs() < 1e-6, "{latency:?}");
        assert!((latency.p99_us - 199.0).abs() < 1e-6 && (latency.least_us - 1.0).abs() < 1e-6);
        assert!(CommandLatency::of("x", "", Vec::new()).median_us.is_nan());
    }
}
