//! What a process used, as the kernel counts it.

use std::fs;
use std::io;
use std::process;

/// CPU seconds and memory of one process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// User and system time of its threads since they began, seconds, to the nanosecond. That of threads that ended is
    /// not in it.
    pub(crate) cpu_s: f64,
    /// Resident memory now, KiB.
    pub(crate) rss_kib: u64,
    /// Largest resident memory so far, KiB.
    pub(crate) peak_rss_kib: u64,
}

/// Usage of process `pid`.
pub(crate) fn usage(pid: u32) -> io::Result<Usage> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while it is looked at.
        let stat = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        nanoseconds += stat.split(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse().ok())
            .unwrap_or(0)
    };
    Ok(Usage { cpu_s: nanoseconds as f64 / 1e9, rss_kib: kib("VmRSS:"), peak_rss_kib: kib("VmHWM:") })
}

/// Usage of this process.
pub(crate) fn own() -> io::Result<Usage> {
    usage(process::id())
}
