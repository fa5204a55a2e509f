//! Daemons as separate processes: started, awaited, stopped.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;

use crate::Outcome;
use crate::process::usage;
use crate::settings::Settings;
use crate::workload::median;

/// Capacity of a measured device; its files are sparse.
const CAPACITY: &str = "32G";
/// How long a daemon may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of checking whether it ended.
const STOP_POLL: Duration = Duration::from_millis(2);

/// A running daemon. Killed when dropped without [`Daemon::stop`].
pub(crate) struct Daemon {
    child: Child,
    /// Kept open, because a daemon that prints more would fail otherwise.
    _stdout: BufReader<ChildStdout>,
    /// Its ready line.
    ready: Value,
    ready_s: f64,
}

impl Daemon {
    /// Starts it and waits until it is ready.
    fn start(binary: &Path, arguments: &[&str], data: &Path) -> Outcome<Self> {
        Self::spawn(command(binary, arguments, data), &arguments.join(" "), &data.with_extension("log"))
    }

    /// Starts a command and waits for its ready line in JSON; other output goes to `log`.
    pub(crate) fn spawn(mut command: Command, what: &str, log: &Path) -> Outcome<Self> {
        let begin = Instant::now();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(log)?).spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let ready_s = begin.elapsed().as_secs_f64();
        let Ok(ready) = serde_json::from_str(&line) else {
            let _ = child.kill();
            let _ = child.wait();
            let said = fs::read_to_string(log).unwrap_or_default();
            return Err(format!("`{what}` does not become ready: {said}").into());
        };
        Ok(Self { child, _stdout: stdout, ready, ready_s })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as a power failure would.
    pub(crate) fn kill(mut self) -> Outcome {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub(crate) fn stop(mut self) -> Outcome {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > STOP_TIMEOUT {
                return Err("a daemon does not end".into());
            }
            thread::sleep(STOP_POLL);
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn command(binary: &Path, arguments: &[&str], data: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("--json").args(arguments).arg("--data").arg(data);
    // The caller's settings must not affect the daemon.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SEALSTONE_") {
            command.env_remove(name);
        }
    }
    command
}

fn init(binary: &Path, arguments: &[&str], data: &Path) -> Outcome {
    let output = command(binary, arguments, data).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{}` failed: {said}", arguments.join(" ")).into())
}

const OSD_INIT: [&str; 4] = ["osd", "init", "--capacity", CAPACITY];
const OSD_SERVE: [&str; 7] =
    ["osd", "serve", "--insecure-nosec", "--insecure-capkey", "--insecure-adhash", "--listen", "127.0.0.1:0"];
const MDS_INIT: [&str; 2] = ["mds", "init"];
const MDS_SERVE: [&str; 4] = ["mds", "serve", "--listen", "127.0.0.1:0"];

/// The measured device.
pub(crate) struct Osd {
    daemon: Daemon,
    /// Its folder.
    pub(crate) data: PathBuf,
    /// Its iSCSI address.
    pub(crate) url: String,
    /// Its pin for TLS.
    pub(crate) pin: String,
}

impl Osd {
    /// Formats a device in `data` and starts it.
    pub(crate) fn new(binary: &Path, data: &Path) -> Outcome<Self> {
        Self::with(binary, data, &[])
    }

    /// Formats and starts one of several devices.
    pub(crate) fn named(binary: &Path, data: &Path, name: &str) -> Outcome<Self> {
        init(binary, &[&OSD_INIT[..], &["--name", name]].concat(), data)?;
        Self::serve(binary, data, &[])
    }

    /// Formats a device and starts it with more flags.
    pub(crate) fn with(binary: &Path, data: &Path, flags: &[&str]) -> Outcome<Self> {
        init(binary, &OSD_INIT, data)?;
        Self::serve(binary, data, flags)
    }

    /// Formats a device, creates block units with these arguments, and starts it with more flags.
    pub(crate) fn with_units(
        binary: &Path,
        data: &Path,
        units: &[Vec<&str>],
        flags: &[&str],
    ) -> Outcome<Self> {
        init(binary, &OSD_INIT, data)?;
        for unit in units {
            init(binary, &[&["block", "create"], &unit[..]].concat(), data)?;
        }
        Self::serve(binary, data, flags)
    }

    /// Starts the device in `data`.
    pub(crate) fn start(binary: &Path, data: &Path) -> Outcome<Self> {
        Self::serve(binary, data, &[])
    }

    /// Starts the device in `data` with more flags.
    pub(crate) fn start_with(binary: &Path, data: &Path, flags: &[&str]) -> Outcome<Self> {
        Self::serve(binary, data, flags)
    }

    fn serve(binary: &Path, data: &Path, flags: &[&str]) -> Outcome<Self> {
        let daemon = Daemon::start(binary, &[&OSD_SERVE[..], flags].concat(), data)?;
        let url = daemon.ready.get("url").and_then(Value::as_str).ok_or("the device tells no address")?;
        let pin = daemon.ready.get("pin").and_then(Value::as_str).ok_or("the device tells no pin")?;
        Ok(Self { data: data.to_owned(), url: url.to_owned(), pin: pin.to_owned(), daemon })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Returns a field of its ready line.
    pub(crate) fn field(&self, name: &str) -> Outcome<&str> {
        let text = self.daemon.ready.get(name).and_then(Value::as_str);
        Ok(text.ok_or_else(|| format!("the device does not say its {name}"))?)
    }

    pub(crate) fn stop(self) -> Outcome {
        self.daemon.stop()
    }
}

/// A metadata server for it.
pub(crate) struct MdsDaemon {
    daemon: Daemon,
    /// Its folder.
    pub(crate) data: PathBuf,
}

impl MdsDaemon {
    /// Creates a metadata server in `data` and starts it with these flags.
    pub(crate) fn new(binary: &Path, data: &Path, flags: &[&str]) -> Outcome<Self> {
        init(binary, &MDS_INIT, data)?;
        Self::start(binary, data, flags)
    }

    /// Creates and starts a metadata server with these flags of `init`, which may select a store.
    pub(crate) fn with_store(binary: &Path, data: &Path, flags: &[&str]) -> Outcome<Self> {
        init(binary, &[&MDS_INIT[..], flags].concat(), data)?;
        Self::start(binary, data, &[])
    }

    /// Starts the metadata server in `data`.
    pub(crate) fn start(binary: &Path, data: &Path, flags: &[&str]) -> Outcome<Self> {
        let daemon = Daemon::start(binary, &[&MDS_SERVE[..], flags].concat(), data)?;
        Ok(Self { daemon, data: data.to_owned() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Returns the seconds from the start of the process to its ready line.
    pub(crate) const fn ready_s(&self) -> f64 {
        self.daemon.ready_s
    }

    /// Kills it, as a power failure would.
    pub(crate) fn kill(self) -> Outcome {
        self.daemon.kill()
    }

    /// Returns a field of its ready line.
    pub(crate) fn field(&self, name: &str) -> Outcome<&str> {
        let text = self.daemon.ready.get(name).and_then(Value::as_str);
        Ok(text.ok_or_else(|| format!("the metadata server does not say its {name}"))?)
    }

    pub(crate) fn stop(self) -> Outcome {
        self.daemon.stop()
    }
}

/// Start times of daemons, and their idle memory.
#[derive(Debug, Serialize)]
pub(crate) struct StartTimes {
    /// Seconds from the start of the process to its ready line, median.
    pub(crate) osd_ready_s: f64,
    pub(crate) mds_ready_s: f64,
    /// Resident memory after some idle seconds, in KiB.
    pub(crate) osd_idle_kib: u64,
    pub(crate) mds_idle_kib: u64,
    /// All start times, in order.
    osd_ready_all_s: Vec<f64>,
    mds_ready_all_s: Vec<f64>,
}

/// Starts a device and a metadata server several times; the last ones stay idle for a while.
pub(crate) fn measure_starts(settings: &Settings, folder: &Path) -> Outcome<StartTimes> {
    let (osd, mds) = (folder.join("osd"), folder.join("mds"));
    init(&settings.binary, &OSD_INIT, &osd)?;
    init(&settings.binary, &MDS_INIT, &mds)?;
    let repeat = |arguments: &[&str], data: &Path| -> Outcome<(Vec<f64>, Daemon)> {
        let mut times = Vec::new();
        loop {
            let daemon = Daemon::start(&settings.binary, arguments, data)?;
            times.push(daemon.ready_s);
            if times.len() >= settings.starts {
                return Ok((times, daemon));
            }
            daemon.stop()?;
        }
    };
    let (osd_times, osd) = repeat(&OSD_SERVE, &osd)?;
    let (mds_times, mds) = repeat(&MDS_SERVE, &mds)?;
    thread::sleep(Duration::from_secs(settings.idle_s));
    let starts = StartTimes {
        osd_ready_s: median(&mut osd_times.clone()),
        mds_ready_s: median(&mut mds_times.clone()),
        osd_idle_kib: usage(osd.child.id())?.rss_kib,
        mds_idle_kib: usage(mds.child.id())?.rss_kib,
        osd_ready_all_s: osd_times,
        mds_ready_all_s: mds_times,
    };
    osd.stop()?;
    mds.stop()?;
    Ok(starts)
}
