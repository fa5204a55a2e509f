//! A daemon under test.
//!
//! Contract: a panic in a daemon fails the test, even if the daemon recovered.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::CommandResult;

/// How long a daemon may take until it is ready; generous, because tests share two cores.
const READY_S_MAX: u64 = 30;
/// How long a daemon may take to end, in seconds; generous for the same reason.
const END_S_MAX: u64 = 120;
/// Maximum seconds to wait for the end of standard error after that.
const STDERR_S_MAX: u64 = 30;

/// How to end a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: cleanly.
    Terminate,
    /// SIGKILL: as a power failure would.
    Kill,
    /// SIGHUP: as a closed terminal would.
    HangUp,
    /// SIGQUIT: as `^\` on a terminal would.
    Quit,
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    ready: Value,
    stderr: Arc<Mutex<String>>,
    /// Disconnected when standard error is read to its end.
    stderr_end: Mutex<Receiver<()>>,
}

impl Daemon {
    /// Starts the daemon and waits for its ready line (run it with `--json`).
    #[track_caller]
    #[must_use]
    pub fn start(command: Command) -> Self {
        match Self::try_start(command) {
            Ok(daemon) => daemon,
            Err(ended) => {
                panic!("it ended with {} instead of being ready; stderr: {}", ended.code, ended.stderr)
            }
        }
    }

    /// Does the same as [`Daemon::start`] for a daemon that may fail to start.
    ///
    /// # Errors
    /// How it ended.
    #[track_caller]
    pub fn try_start(mut command: Command) -> Result<Self, CommandResult> {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the daemon starts");
        let stdout = child.stdout.take().expect("piped");
        let text = Arc::new(Mutex::new(String::new()));
        let mut stderr = child.stderr.take().expect("piped");
        let for_reader = Arc::clone(&text);
        let (end_sender, stderr_end) = mpsc::channel();
        let listener = std::thread::spawn(move || {
            let _end_sender: mpsc::Sender<()> = end_sender;
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut bytes) {
                let part = String::from_utf8_lossy(&bytes[..count]);
                for_reader.lock().unwrap_or_else(PoisonError::into_inner).push_str(&part);
            }
        });
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Reads on after the ready line, so that the pipe does not fill up.
                let _ = sender.send(line);
            }
        });
        let received = || text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let line = match receiver.recv_timeout(Duration::from_secs(READY_S_MAX)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => {
                // Standard output was closed: the process has ended, or is about to.
                let status = child.wait().expect("the child can be waited for");
                let _ = listener.join();
                return Err(CommandResult {
                    code: status.code().unwrap_or(-1),
                    stdout: Vec::new(),
                    stderr: received(),
                });
            }
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let status = child.wait();
                panic!("no ready line within {READY_S_MAX} s; status {status:?}; stderr: {}", received());
            }
        };
        // From here on a panic kills the child.
        let mut daemon = Self { child, ready: Value::Null, stderr: text, stderr_end: Mutex::new(stderr_end) };
        daemon.ready =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("ready line: {error}: {line}"));
        crate::json_shape::check(&daemon.ready);
        Ok(daemon)
    }

    /// Returns a field of the ready line.
    #[track_caller]
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        self.ready[name].as_str().unwrap_or_else(|| panic!("the ready line has no {name}: {}", self.ready))
    }

    /// Returns the whole ready line.
    #[must_use]
    pub const fn ready(&self) -> &Value {
        &self.ready
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard error so far: empty with logs off, unless it panicked.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns its resident memory in bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("the daemon runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel reports it");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
        kib << 10
    }

    /// Returns the number of its open descriptors.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).expect("the daemon runs").count()
    }

    /// Ends it, waits until its standard error was read, and returns its exit code, or -1 if a
    /// signal ended it.
    ///
    /// # Panics
    /// If it still runs after 120 seconds.
    pub fn end(&mut self, signal: Signal) -> i32 {
        let id = rustix::process::Pid::from_child(&self.child);
        let number = match signal {
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::HangUp => rustix::process::Signal::HUP,
            Signal::Quit => rustix::process::Signal::QUIT,
        };
        // It may have ended already; the wait below shows that.
        let _ = rustix::process::kill_process(id, number);
        assert!(!self.survives(Duration::from_secs(END_S_MAX)), "{signal:?} does not end the daemon");
        let status = self.child.wait().expect("the child can be waited for");
        // A process that it started may have the same standard error, and live on.
        let end = self.stderr_end.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = end.recv_timeout(Duration::from_secs(STDERR_S_MAX));
        status.code().unwrap_or(-1)
    }

    /// Whether it still runs after this time.
    pub fn survives(&mut self, time: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < time {
            if self.child.try_wait().expect("the child can be waited for").is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let stderr = self.stderr();
        assert!(std::thread::panicking() || !stderr.contains("panicked"), "the daemon panicked: {stderr}");
    }
}
