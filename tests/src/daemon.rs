//! A daemon under test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a daemon may take until it is ready; generous, because tests share two cores.
const READY_S_MAX: u64 = 30;

/// How to end a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Cleanly.
    Terminate,
    /// As a power cut would.
    Kill,
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    ready: Value,
}

impl Daemon {
    /// Starts the daemon and waits for its ready line (run it with `--json`).
    #[track_caller]
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("the daemon starts");
        let stdout = child.stdout.take().expect("piped");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Once nobody waits for lines any more, reading on keeps the pipe from filling up.
                let _ = sender.send(line);
            }
        });
        let line = receiver.recv_timeout(Duration::from_secs(READY_S_MAX));
        let Ok(line) = line else {
            let _ = child.kill();
            let status = child.wait();
            panic!("no ready line within {READY_S_MAX} s; status {status:?}");
        };
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("ready line: {error}: {line}"));
        Self { child, ready }
    }

    /// A field of the ready line.
    #[track_caller]
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        self.ready[name].as_str().unwrap_or_else(|| panic!("the ready line has no {name}: {}", self.ready))
    }

    /// The whole ready line.
    #[must_use]
    pub const fn ready(&self) -> &Value {
        &self.ready
    }

    /// Process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it and waits; the exit code, or -1 for a signal.
    pub fn end(&mut self, signal: Signal) -> i32 {
        let id = rustix::process::Pid::from_child(&self.child);
        let number = match signal {
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
        };
        // It may be gone already; waiting tells.
        let _ = rustix::process::kill_process(id, number);
        self.child.wait().expect("the child can be waited for").code().unwrap_or(-1)
    }

    /// Is it still running after this long?
    pub fn survives(&mut self, time: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < time {
            if self.child.try_wait().expect("the child can be asked").is_some() {
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
    }
}
