//! Resource usage of a process, as reported by the kernel.

use std::fs;
use std::io;
use std::process;

/// CPU seconds and memory of one process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessUsage {
    /// User and system time of its running threads, in seconds, to the nanosecond; ended threads do
    /// not count.
    pub(crate) cpu_s: f64,
    /// Resident memory now, in KiB.
    pub(crate) rss_kib: u64,
    /// Largest resident memory so far, in KiB.
    pub(crate) peak_rss_kib: u64,
}

/// Returns the usage of process `pid`.
pub(crate) fn usage(pid: u32) -> io::Result<ProcessUsage> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
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
    Ok(ProcessUsage { cpu_s: nanoseconds as f64 / 1e9, rss_kib: kib("VmRSS:"), peak_rss_kib: kib("VmHWM:") })
}

/// Returns the usage of this process.
pub(crate) fn own() -> io::Result<ProcessUsage> {
    usage(process::id())
}

/// Returns the resolution of [`whole_cpu_s`], in seconds; usually a hundredth.
pub(crate) fn tick_s() -> f64 {
    1.0 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the CPU seconds of a process so far, including ended threads, in ticks.
pub(crate) fn whole_cpu_s(pid: u32) -> io::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may contain blanks and brackets.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 * tick_s())
}

/// Returns the CPU seconds of this process, as [`whole_cpu_s`].
pub(crate) fn own_whole_cpu_s() -> io::Result<f64> {
    whole_cpu_s(process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_ended_are_part_of_a_process() {
        let before = whole_cpu_s(process::id()).unwrap();
        std::thread::spawn(|| {
            let begin = std::time::Instant::now();
            while whole_cpu_s(process::id()).unwrap() < 0.05 && begin.elapsed().as_secs() < 60 {
                std::hint::spin_loop();
            }
        })
        .join()
        .unwrap();
        let after = whole_cpu_s(process::id()).unwrap();
        assert!(after >= before && after >= 0.05, "{before} {after}");
    }
}
