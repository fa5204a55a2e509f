//! Limits of the log on standard error: lines per place in the code, and bytes per line.
//!
//! Does: writes [`LINES_BURST`] lines of each place, then [`LINES_PER_SECOND`]; logs the number of
//! suppressed lines; truncates lines at [`LINE_BYTES_MAX`].
//! Does not: inspect levels or texts.
//! Contract: peers cannot control the amount of output. Memory is one counter per place.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Burst of lines of one place in the code.
const LINES_BURST: u64 = 200;
/// Lines per second of one place after the burst.
const LINES_PER_SECOND: u64 = 5;
/// Interval between two lines about suppressed lines.
const SUMMARY_EVERY: Duration = Duration::from_secs(10);
/// Maximum length of a line, bytes.
const LINE_BYTES_MAX: usize = 8192;
/// Target of the lines about suppressed lines, which are not counted.
const SUMMARY_TARGET: &str = "sealstone::log";

struct CallsiteBudget {
    metadata: &'static Metadata<'static>,
    /// Thousandths of lines.
    tokens: u64,
    at: Instant,
    left_out: u64,
}

#[derive(Default)]
struct CallsiteBudgets {
    all: HashMap<Identifier, CallsiteBudget>,
    reporting: bool,
}

/// Layer that counts lines.
#[derive(Clone, Default)]
pub(crate) struct LineLimit(Arc<Mutex<CallsiteBudgets>>);

impl LineLimit {
    /// Counts a line. Returns whether it is written.
    fn take(&self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        let mut places = self.0.lock();
        let full = LINES_BURST * 1000;
        let new = || CallsiteBudget { metadata, tokens: full, at: now, left_out: 0 };
        let place = places.all.entry(metadata.callsite()).or_insert_with(new);
        let passed = u64::try_from(now.saturating_duration_since(place.at).as_millis()).unwrap_or(u64::MAX);
        place.tokens = place.tokens.saturating_add(passed.saturating_mul(LINES_PER_SECOND)).min(full);
        place.at = now;
        if let Some(left) = place.tokens.checked_sub(1000) {
            place.tokens = left;
            return true;
        }
        place.left_out += 1;
        if !std::mem::replace(&mut places.reporting, true) {
            let this = self.clone();
            // Without a thread the lines are still suppressed.
            let report = move || {
                loop {
                    thread::sleep(SUMMARY_EVERY);
                    this.report();
                }
            };
            drop(thread::Builder::new().name("log-limit".into()).spawn(report));
        }
        false
    }

    /// Takes the counts of suppressed lines.
    fn take_suppressed(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut places = self.0.lock();
        let counted = places.all.values_mut().filter(|place| place.left_out > 0);
        counted.map(|place| (place.metadata, std::mem::take(&mut place.left_out))).collect()
    }

    fn report(&self) {
        for (metadata, count) in self.take_suppressed() {
            let (file, line) = (metadata.file().unwrap_or_default(), metadata.line().unwrap_or_default());
            tracing::warn!(
                target: SUMMARY_TARGET,
                count,
                level = %metadata.level(),
                place = %format_args!("{file}:{line}"),
                "similar log lines were left out"
            );
        }
    }
}

impl<S: Subscriber> Layer<S> for LineLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        metadata.target() == SUMMARY_TARGET || self.take(metadata, Instant::now())
    }
}

/// Writes a line, truncated if it is too long.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write_line(out: &mut impl Write, line: &[u8], json: bool) -> io::Result<()> {
    if line.len() <= LINE_BYTES_MAX {
        return out.write_all(line);
    }
    // An escape has at most six bytes.
    let kept = String::from_utf8_lossy(line.get(..LINE_BYTES_MAX / 8).unwrap_or(line));
    let bytes = line.len();
    let cut = match json {
        true => serde_json::json!({ "level": "WARN", "message": "a long log line was cut", "bytes": bytes, "begin": kept })
            .to_string(),
        false => format!("{}... ({bytes} bytes)", kept.trim_end()),
    };
    writeln!(out, "{cut}")
}

/// Writer of whole lines.
pub(crate) struct LineWriter<W> {
    /// Destination of the lines.
    pub(crate) out: W,
    /// Whether lines are JSON objects.
    pub(crate) json: bool,
}

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_line(&mut self.out, line, self.json)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt as _;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn flood_of_one_place_is_counted() {
        let (limit, written) = (LineLimit::default(), Written::default());
        let out = written.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || LineWriter { out: out.clone(), json: false })
            .with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(limit.clone()).with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..10_000 {
                tracing::warn!(n, "noise");
            }
            tracing::warn!("signal");
            tracing::warn!(name = "x".repeat(100_000), "long");
            limit.report();
        });
        let text = String::from_utf8(written.0.lock().clone()).expect("text");
        let noise = text.lines().filter(|line| line.contains("noise")).count() as u64;
        assert!((LINES_BURST..LINES_BURST + 1_000).contains(&noise), "{noise}");
        assert_eq!(text.lines().filter(|line| line.contains("signal")).count(), 1);
        let summary = format!("count={}", 10_000 - noise);
        assert!(text.lines().any(|line| line.contains("left out") && line.contains(&summary)), "{summary}");
        assert!(text.lines().all(|line| line.len() <= LINE_BYTES_MAX));
    }

    #[test]
    fn long_json_line_stays_json() {
        let mut out = Vec::new();
        let line = "\u{1}".repeat(20_000);
        write_line(&mut out, line.as_bytes(), true).expect("written");
        assert!(out.len() <= LINE_BYTES_MAX);
        let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(value["bytes"], 20_000);
    }
}
