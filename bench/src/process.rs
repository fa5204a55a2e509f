//! What a process used, as the kernel counts it.

use std::fs;
use std::io;
use std::process;

/// CPU seconds and memory of one process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// User and system time since its start, seconds.
    pub(crate) cpu_s: f64,
    /// Resident memory now, KiB.
    pub(crate) rss_kib: u64,
    /// Largest resident memory so far, KiB.
    pub(crate) peak_rss_kib: u64,
}

/// Usage of process `pid`.
pub(crate) fn usage(pid: u32) -> io::Result<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command name may hold anything; the fields of interest stand after its closing parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse().ok())
            .unwrap_or(0)
    };
    Ok(Usage {
        cpu_s: (ticks(11) + ticks(12)) / per_second,
        rss_kib: kib("VmRSS:"),
        peak_rss_kib: kib("VmHWM:"),
    })
}

/// Usage of this process.
pub(crate) fn own() -> io::Result<Usage> {
    usage(process::id())
}
