//! Description of the machine.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;

use serde::Serialize;

/// Linux' limit of wake-up latency; holding it open with 0 keeps all cores from sleeping.
const WAKE_UP_LIMIT: &str = "/dev/cpu_dma_latency";

/// The machine, and its load.
#[derive(Debug, Serialize)]
pub(crate) struct MachineInfo {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// TCP congestion control, common to device, client and plain TCP.
    pub(crate) congestion_control: String,
    /// Whether idle cores were kept awake, so that wake-up latency is not measured.
    pub(crate) kept_awake: bool,
    /// Load averages over 1, 5 and 15 minutes, before and after.
    pub(crate) load_before: String,
    pub(crate) load_after: String,
}

impl MachineInfo {
    pub(crate) fn look() -> Self {
        let line = |path: &str, key: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let found = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'));
            found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = line("/proc/meminfo", "MemTotal");
        let memory_kib = memory.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        Self {
            cpu: line("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib.unwrap_or(0) / 1024,
            kernel: setting("kernel/osrelease"),
            congestion_control: setting("net/ipv4/tcp_congestion_control"),
            kept_awake: false,
            load_before: load(),
            load_after: String::new(),
        }
    }

    pub(crate) fn look_again(&mut self) {
        self.load_after = load();
    }
}

impl fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = if self.kept_awake { "kept awake" } else { "free to sleep" };
        let Self { cores: count, cpu, memory_mib, kernel, congestion_control, .. } = self;
        write!(
            f,
            "{count} cores of {cpu}, {cores}, {memory_mib} MiB, Linux {kernel}, {congestion_control}; "
        )?;
        write!(f, "load {} before, {} after", self.load_before, self.load_after)
    }
}

/// Keeps idle cores awake until it is dropped.
pub(crate) struct CoreWaker {
    _open: File,
}

impl CoreWaker {
    /// Keeps cores awake; `None` without permission.
    pub(crate) fn new() -> Option<Self> {
        let mut file = OpenOptions::new().write(true).open(WAKE_UP_LIMIT).ok()?;
        file.write_all(&0i32.to_ne_bytes()).ok()?;
        Some(Self { _open: file })
    }
}

fn setting(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default().trim().to_owned()
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
