//! Counters of the service for `/metrics`.

use core::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::job_table::{JobCounts, JobUsage};
use crate::pool::PoolCounts;

/// Counters of all runs since the start.
#[derive(Debug, Default)]
pub(crate) struct ServiceMetrics {
    cpu_us: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    calls: AtomicU64,
    denials: AtomicU64,
}

impl ServiceMetrics {
    /// Counts a run that has ended.
    pub(crate) fn count(&self, usage: &JobUsage, denials: u64) {
        for (counter, value) in [
            (&self.cpu_us, usage.cpu_us),
            (&self.bytes_read, usage.bytes_read),
            (&self.bytes_written, usage.bytes_written),
            (&self.calls, usage.calls),
            (&self.denials, denials),
        ] {
            counter.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Returns all metrics as Prometheus text. `device` becomes a label.
    pub(crate) fn prometheus(&self, device: &str, jobs: &JobCounts, pool: PoolCounts) -> String {
        let mut text = String::new();
        let mut family = |kind: &str, name: &str, help: &str, samples: &[(String, String)]| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{{device=\"{device}\"{labels}}} {value}");
            }
        };
        let states = [("queued", jobs.queued), ("running", jobs.running), ("kept", jobs.kept)];
        let states = states.map(|(state, count)| (format!(",state=\"{state}\""), count.to_string()));
        family("gauge", "sealstone_function_jobs", "Jobs by state; kept ones have ended.", &states);
        let ended: Vec<_> = jobs
            .ended
            .iter()
            .map(|((state, exit), count)| {
                (format!(",state=\"{state}\",reason=\"{exit}\""), count.to_string())
            })
            .collect();
        family("counter", "sealstone_function_jobs_ended_total", "Ended jobs by state and reason.", &ended);
        let cpu_s = self.cpu_us.load(Ordering::Relaxed) as f64 / 1e6;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
        for (kind, name, help, value) in [
            ("counter", "jobs_refused_total", "Jobs refused with TASK SET FULL.", jobs.refused.to_string()),
            ("counter", "cpu_seconds_total", "CPU time of functions.", format!("{cpu_s:.6}")),
            ("counter", "read_bytes_total", "Bytes that functions read.", load(&self.bytes_read)),
            ("counter", "written_bytes_total", "Bytes that functions wrote.", load(&self.bytes_written)),
            ("counter", "calls_total", "Calls of functions to the device.", load(&self.calls)),
            ("counter", "denials_total", "Calls refused for lack of authority.", load(&self.denials)),
            ("counter", "engines_started_total", "Engine processes started.", pool.started.to_string()),
            ("counter", "engines_reused_total", "Runs in an engine that was warm.", pool.reused.to_string()),
            ("gauge", "engines_idle", "Idle engine processes.", pool.idle.to_string()),
        ] {
            family(kind, &format!("sealstone_function_{name}"), help, &[(String::new(), value)]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use sealstone_osd::function::{ExitReason, JobState};

    use super::*;

    #[test]
    fn counts_appear_as_prometheus_text() {
        let metrics = ServiceMetrics::default();
        let usage = JobUsage { cpu_us: 1_500_000, bytes_read: 7, ..JobUsage::default() };
        metrics.count(&usage, 2);
        metrics.count(&usage, 0);
        let mut jobs = JobCounts { running: 3, ..JobCounts::default() };
        jobs.ended.insert((JobState::Failed, ExitReason::CpuTime), 4);
        let text = metrics.prometheus("a", &jobs, PoolCounts { idle: 1, ..PoolCounts::default() });
        for line in [
            "sealstone_function_jobs{device=\"a\",state=\"running\"} 3",
            "sealstone_function_jobs_ended_total{device=\"a\",state=\"failed\",reason=\"cpu-time\"} 4",
            "sealstone_function_cpu_seconds_total{device=\"a\"} 3.000000",
            "sealstone_function_read_bytes_total{device=\"a\"} 14",
            "sealstone_function_denials_total{device=\"a\"} 2",
            "sealstone_function_engines_idle{device=\"a\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
