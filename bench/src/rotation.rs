//! Working keys of many partitions changed by the metadata server, while clients put and get files.
//!
//! Does: runs a metadata server and a device as processes on a disk, rotates keys, counts failures.
//! Does not: judge.
//! Contract: the time is that of the rotation as measured by `mds keys rotate`: from the request
//! until the last key is set at the device and stored at the server. Clients run before, during and
//! after it. Their failures are reported however the run ends; an interrupt and [`RUN_S_MAX`] end
//! it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, fs, io, thread};

use serde::Serialize;
use serde_json::Value;

use crate::Outcome;
use crate::daemon::{MdsDaemon, Osd};
use crate::settings::Run;
use crate::workload::median;

/// Partitions of the device, each with its own keys.
const PARTITIONS: u64 = 1000;
/// Clients that put and get, each one process at a time.
const CLIENTS: usize = 3;
const FILE_BYTES: usize = 1 << 20;
/// Number of measured rotations.
const ROUNDS: usize = 5;
/// Maximum duration of a run after its login, in seconds. An interrupt ends it too.
const RUN_S_MAX: u64 = 1800;
/// Interval of checking whether a command has ended.
const POLL: Duration = Duration::from_millis(2);
/// Lifetime of credentials in seconds: key versions become free between rounds.
const GRANT_S: &str = "10";

/// Results of key changes under load.
#[derive(Debug, Serialize)]
struct RotationResults {
    partitions: u64,
    /// Seconds of each rotation of all working keys.
    rotations_s: Vec<f64>,
    rotation_s: Option<f64>,
    /// Seconds of a rotation that also overwrites the superseded keys at once.
    revocation_s: Option<f64>,
    /// Puts and gets meanwhile, and failed ones.
    operations: u64,
    failed: u64,
    /// Reason why the measurement is incomplete.
    ended_early: Option<String>,
}

/// A user of the measured system.
#[derive(Clone)]
pub(crate) struct BenchUser {
    pub(crate) binary: PathBuf,
    pub(crate) session: PathBuf,
    /// End of the run, which also ends the user's commands.
    pub(crate) end: Option<RunEnd>,
}

impl BenchUser {
    /// Creates a user whose session is in this file.
    pub(crate) fn new(binary: &Path, session: &Path) -> Self {
        Self { binary: binary.to_owned(), session: session.to_owned(), end: None }
    }

    /// Logs in as the administrator.
    pub(crate) fn login(&self, mds: &MdsDaemon) -> Outcome {
        let (cluster, secret) = (mds.data.join("cluster.toml"), mds.data.join("admin-secret"));
        let (cluster, secret) = (text(&cluster)?, text(&secret)?);
        self.run(&["login", "admin", "--cluster", cluster, "--password-file", secret]).map(drop)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--json").args(arguments).env("SEALSTONE_SESSION", &self.session);
        command.env("SEALSTONE_LOG", "off").stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome<Value> {
        let output = self.output(self.command(arguments))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("`{}` failed: {said}", arguments.join(" ")).into());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    fn output(&self, mut command: Command) -> Outcome<Output> {
        match &self.end {
            None => Ok(command.output()?),
            Some(end) => {
                let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
                end.output(child)
            }
        }
    }

    /// Puts a file and gets it back; returns how many of the two failed.
    fn there_and_back(&self, path: &str, bytes: &[u8]) -> Outcome<u64> {
        let file = self.session.with_extension(format!("put{}", path.replace('/', "-")));
        fs::write(&file, bytes)?;
        let put = self.output(self.command(&["put", text(&file)?, path]));
        fs::remove_file(&file)?;
        let put = put?.status.success();
        let got = self.output(self.command(&["get", path, "-"]))?;
        let got = got.status.success() && got.stdout == bytes;
        Ok(u64::from(!put) + u64::from(!got))
    }
}

pub(crate) fn text(path: &Path) -> Outcome<&str> {
    path.to_str().ok_or_else(|| "a path that is not UTF-8".into())
}

/// Puts and gets of all clients.
#[derive(Default)]
struct OperationCounters {
    done: AtomicU64,
    failed: AtomicU64,
}

/// Measures and prints. Failures of the clients are reported however it ends.
pub(crate) fn run(arguments: &Run) -> Outcome {
    let settings = arguments.settings()?;
    let folder = arguments.stage.scratch()?;
    let partitions = PARTITIONS.to_string();
    let flags = ["--grant-s", GRANT_S, "--file-partitions", &partitions];
    let mds = MdsDaemon::new(&settings.binary, &folder.path().join("mds"), &flags)?;
    let osd = Osd::new(&settings.binary, &folder.path().join("osd"))?;
    let end = RunEnd::watch(Duration::from_secs(RUN_S_MAX))?;
    let user = BenchUser {
        end: Some(end.clone()),
        ..BenchUser::new(&settings.binary, &folder.path().join("session"))
    };
    user.login(&mds)?;
    eprintln!("making {PARTITIONS} partitions and setting their keys; at most {RUN_S_MAX} s in all");
    let key = osd.data.join("initial.key");
    user.run(&["mds", "add-osd", &osd.url, "--key", text(&key)?, "--wait", "600"])?;
    let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(OperationCounters::default()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (user, end, stop, tally) = (user.clone(), end.clone(), stop.clone(), tally.clone());
            thread::spawn(move || put_and_get(client, &user, &end, &stop, &tally))
        })
        .collect();
    let mut rotations_s = Vec::new();
    let outcome = rotate_all(&user, &mut rotations_s);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        if client.join().is_err() {
            // The client's failures are unknown.
            tally.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
    let findings = RotationResults {
        partitions: PARTITIONS + 1,
        rotation_s: if rotations_s.is_empty() { None } else { Some(median(&mut rotations_s.clone())) },
        rotations_s,
        revocation_s: outcome.as_ref().ok().copied(),
        operations: tally.done.load(Ordering::Relaxed),
        failed: tally.failed.load(Ordering::Relaxed),
        ended_early: outcome.as_ref().err().map(|error| end.reason().unwrap_or_else(|| error.to_string())),
    };
    println!("{findings}");
    // An incomplete run must not replace a complete one.
    let saved = if outcome.is_ok() { arguments.common.save(&findings) } else { Ok(()) };
    // After an interrupt they may have ended already.
    let stopped = osd.stop().and(mds.stop());
    outcome?;
    saved.and(stopped)
}

/// Rotates repeatedly, and once more with the superseded keys overwritten; returns the seconds of
/// that.
fn rotate_all(user: &BenchUser, rotations_s: &mut Vec<f64>) -> Outcome<f64> {
    let rotate = |further: &[&str]| -> Outcome<f64> {
        let arguments = [&["mds", "keys", "rotate", "working"][..], further].concat();
        let output = user.run(&arguments)?;
        output["seconds"].as_f64().ok_or_else(|| "the command reports no time".into())
    };
    for round in 0..ROUNDS {
        let seconds = rotate(&[])?;
        eprintln!("rotation {}: {seconds:.2} s", round + 1);
        rotations_s.push(seconds);
    }
    rotate(&["--revoke"])
}

/// Runs one client. Operations in flight at the end of the run are not counted.
fn put_and_get(client: usize, user: &BenchUser, end: &RunEnd, stop: &AtomicBool, tally: &OperationCounters) {
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| (at * 31 + client) as u8).collect();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) || end.has_come() {
            return;
        }
        let path = format!("/client-{client}-{}", round % 100);
        let failed = user.there_and_back(&path, &bytes);
        if end.has_come() {
            return;
        }
        tally.failed.fetch_add(failed.unwrap_or(2), Ordering::Relaxed);
        tally.done.fetch_add(2, Ordering::Relaxed);
    }
}

impl fmt::Display for RotationResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partitions, rotations_s, operations, failed, .. } = self;
        let seconds =
            |time: Option<f64>| time.map_or("not measured".to_owned(), |time| format!("{time:.2} s"));
        let (rotation, revocation) = (seconds(self.rotation_s), seconds(self.revocation_s));
        write!(
            f,
            "working keys of {partitions} partitions: {rotation} a rotation (median of {}; with --revoke: {revocation}); \
             {operations} puts and gets meanwhile, {failed} failed",
            rotations_s.len()
        )?;
        match &self.ended_early {
            Some(why) => write!(f, "; ended early: {why}"),
            None => Ok(()),
        }
    }
}

/// End of a run: its time limit, or an interrupt.
#[derive(Clone)]
pub(crate) struct RunEnd {
    until: Instant,
    interrupted: Arc<AtomicBool>,
}

impl RunEnd {
    /// Makes an interrupt end the run cleanly from now on.
    fn watch(at_most: Duration) -> Outcome<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let received = interrupted.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let signals = {
            let _inside = runtime.enter();
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?
        };
        // Ends with the process.
        thread::spawn(move || {
            let mut signals = signals;
            if runtime.block_on(signals.recv()).is_some() {
                received.store(true, Ordering::Relaxed);
            }
        });
        Ok(Self { until: Instant::now() + at_most, interrupted })
    }

    fn has_come(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns the reason.
    fn reason(&self) -> Option<String> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Some("interrupted".to_owned());
        }
        (Instant::now() >= self.until).then(|| format!("it took more than {RUN_S_MAX} s"))
    }

    /// Returns the output of a process, which is killed when the run is over.
    fn output(&self, mut child: Child) -> Outcome<Output> {
        // Read concurrently: a full pipe would block it.
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (out, err) = (thread::spawn(move || read(out)), thread::spawn(move || read(err)));
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if self.has_come() {
                child.kill()?;
            }
            thread::sleep(POLL);
        };
        let whole = |reader: thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
        Ok(Output { status, stdout: whole(out), stderr: whole(err) })
    }
}

fn read(pipe: Option<impl io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // Bytes before an error are kept.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(at_most: Duration) -> RunEnd {
        RunEnd { until: Instant::now() + at_most, interrupted: Arc::default() }
    }

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("a shell")
    }

    #[test]
    fn output_of_command_is_read_completely() {
        let output =
            end(Duration::from_secs(600)).output(shell("seq 1 50000; echo no >&2; exit 3")).expect("ended");
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(3), &b"no\n"[..]));
        assert!(output.stdout.ends_with(b"50000\n"));
    }

    #[test]
    fn ended_run_stops_clients_with_the_reason() {
        let late = end(Duration::ZERO);
        assert!(!late.output(shell("exec sleep 600")).expect("ended").status.success());
        assert!(late.reason().is_some_and(|why| why.contains("took more than")));
        let interrupted = end(Duration::from_secs(600));
        interrupted.interrupted.store(true, Ordering::Relaxed);
        assert!(!interrupted.output(shell("exec sleep 600")).expect("ended").status.success());
        assert_eq!(interrupted.reason().as_deref(), Some("interrupted"));
    }

    #[test]
    fn verdict_is_printed_for_incomplete_runs() {
        let mut findings = RotationResults {
            partitions: 3,
            rotations_s: vec![1.0, 3.0, 2.0],
            rotation_s: Some(2.0),
            revocation_s: Some(4.0),
            operations: 10,
            failed: 0,
            ended_early: None,
        };
        assert!(findings.to_string().ends_with("10 puts and gets meanwhile, 0 failed"));
        findings = RotationResults {
            rotation_s: None,
            revocation_s: None,
            failed: 2,
            ended_early: Some("x".into()),
            ..findings
        };
        let report = findings.to_string();
        assert!(report.contains("not measured") && report.ends_with("2 failed; ended early: x"), "{report}");
    }
}
