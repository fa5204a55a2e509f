//! Counters for `/metrics`.
//!
//! Does: count commands per row of the command table and denials per name.
//! Does not: serve them.
//! Contract: counting a command that is not refused never blocks.
//! Truth: docs/design/architecture.md section 4 (metrics).

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Counts of one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandCount {
    /// Commands received.
    pub received: u64,
    /// Commands refused for lack of authority.
    pub refused: u64,
    /// Commands that failed for another reason.
    pub failed: u64,
    /// Bytes of data-out used.
    pub bytes_out: u64,
    /// Bytes of data-in sent.
    pub bytes_in: u64,
}

#[derive(Default)]
struct CounterCell {
    received: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
}

/// Result of a counted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnding {
    Done,
    Refused(&'static str),
    Failed,
}

/// The counters of one logical unit.
pub struct Metrics {
    names: Vec<&'static str>,
    cells: Vec<CounterCell>,
    denials: Mutex<BTreeMap<&'static str, u64>>,
}

impl Metrics {
    pub(crate) fn new(names: Vec<&'static str>) -> Self {
        let cells = names.iter().map(|_| CounterCell::default()).collect();
        Self { names, cells, denials: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn count(&self, row: usize, ending: CommandEnding, bytes_out: u64, bytes_in: u64) {
        let Some(cell) = self.cells.get(row) else { return };
        cell.received.fetch_add(1, Ordering::Relaxed);
        cell.bytes_out.fetch_add(bytes_out, Ordering::Relaxed);
        cell.bytes_in.fetch_add(bytes_in, Ordering::Relaxed);
        match ending {
            CommandEnding::Done => {}
            CommandEnding::Failed => {
                cell.failed.fetch_add(1, Ordering::Relaxed);
            }
            CommandEnding::Refused(name) => {
                cell.refused.fetch_add(1, Ordering::Relaxed);
                *self.denials.lock().entry(name).or_default() += 1;
            }
        }
    }

    /// Returns the counts of each command, with its name.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, CommandCount)> + '_ {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.names.iter().zip(&self.cells).map(move |(&name, cell)| {
            let count = CommandCount {
                received: load(&cell.received),
                refused: load(&cell.refused),
                failed: load(&cell.failed),
                bytes_out: load(&cell.bytes_out),
                bytes_in: load(&cell.bytes_in),
            };
            (name, count)
        })
    }

    /// Returns how often each denial occurred.
    #[must_use]
    pub fn denials(&self) -> BTreeMap<&'static str, u64> {
        self.denials.lock().clone()
    }

    /// Returns the counters as Prometheus text, for commands that were received. `device` becomes a
    /// label.
    #[must_use]
    pub fn prometheus(&self, device: &str) -> String {
        let mut text = String::new();
        let families: [(&str, &str, fn(&CommandCount) -> u64); 5] = [
            ("sealstone_osd_commands_total", "Commands received.", |c| c.received),
            ("sealstone_osd_refused_total", "Commands refused for lack of authority.", |c| c.refused),
            ("sealstone_osd_failed_total", "Commands that failed for another reason.", |c| c.failed),
            ("sealstone_osd_data_out_bytes_total", "Bytes received with commands.", |c| c.bytes_out),
            ("sealstone_osd_data_in_bytes_total", "Bytes sent with replies.", |c| c.bytes_in),
        ];
        for (family, help, value) in families {
            header(&mut text, family, help);
            for (name, count) in self.commands().filter(|(_, count)| count.received > 0) {
                sample(&mut text, family, device, "command", name, value(&count));
            }
        }
        let family = "sealstone_osd_denials_total";
        header(&mut text, family, "Refusals by reason.");
        for (name, count) in self.denials() {
            sample(&mut text, family, device, "reason", name, count);
        }
        text
    }
}

fn header(text: &mut String, family: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {family} {help}\n# TYPE {family} counter");
}

fn sample(text: &mut String, family: &str, device: &str, label: &str, name: &str, value: u64) {
    let _ = writeln!(text, "{family}{{device=\"{device}\",{label}=\"{name}\"}} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_is_counted_once_and_shown() {
        let metrics = Metrics::new(vec!["READ", "WRITE"]);
        metrics.count(0, CommandEnding::Done, 0, 4096);
        metrics.count(1, CommandEnding::Refused("bad_icv"), 0, 0);
        metrics.count(1, CommandEnding::Failed, 10, 0);
        metrics.count(9, CommandEnding::Done, 1, 1);
        let write = metrics.commands().last().unwrap().1;
        assert_eq!(write, CommandCount { received: 2, refused: 1, failed: 1, bytes_out: 10, bytes_in: 0 });
        let text = metrics.prometheus("a");
        assert!(text.contains("sealstone_osd_data_in_bytes_total{device=\"a\",command=\"READ\"} 4096"));
        assert!(text.contains("sealstone_osd_denials_total{device=\"a\",reason=\"bad_icv\"} 1"));
    }
}
