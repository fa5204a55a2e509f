//! End-to-end tests through the real binary, and the harness that starts it.
//!
//! Does: builds the binary once, runs commands, starts daemons on free ports, kills them.
//! Does not: use internals of a crate; a test sees what a user sees.
//! Contract: when a handle is dropped, its processes are dead and its folders are removed.

#![allow(clippy::missing_panics_doc, reason = "a harness fails by panicking, that is its purpose")]

mod capture;
mod daemon;
pub mod initiator;
mod json_shape;
mod modules;
mod mounted;
mod pair;
mod ports;
#[path = "../../metadata/meta-store/tests/support/postgres.rs"]
pub mod postgres;
mod prepared;
mod system;
pub mod tls;
mod tmpfs;
mod web;

pub use capture::{CapturedCommand, Wiretap};
pub use daemon::{Daemon, Signal};
pub use initiator::Initiator;
pub use modules::store_shipped;
pub use mounted::{MountStopper, Mounted, can_mount};
pub use pair::ServerPair;
pub use ports::{reserve_address, reserve_port};
pub use sealstone_test_support::{is_installed, left_out};
pub use system::{System, text};
pub use tmpfs::{Tmpfs, can_mount_tmpfs, fill};
pub use web::get;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use sealstone_test_support::program_folder;
use serde_json::Value;

/// Returns the path of the binary under test; builds it with the profile of the tests if needed.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| program_folder().join("sealstone"))
}

/// Result of a finished command.
#[derive(Clone, Debug)]
pub struct CommandResult {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error as text.
    pub stderr: String,
}

impl From<Output> for CommandResult {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl CommandResult {
    /// Fails the test unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stderr: {}", self.stderr);
        self
    }

    /// Fails the test unless the command failed with this code and a one-line message.
    #[track_caller]
    pub fn fails(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {} stderr: {}", self.text(), self.stderr);
        assert_eq!(self.stderr.trim_end().lines().count(), 1, "one line, got: {}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    /// Fails the test unless standard error contains all of these.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "'{word}' is missing in: {}", self.stderr);
        }
        self
    }

    /// Returns standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns the result of a command, without the fields of the envelope.
    ///
    /// Fails the test unless the result has the fields that docs/reference/json.md documents.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        let mut value: Value = serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()));
        json_shape::check(&value);
        let fields = value.as_object_mut().expect("the shape is an object");
        fields.retain(|name, _| name != "schema_version" && name != "command");
        value
    }
}

/// Returns a command of the binary with logs off, isolated from the user's own session.
///
/// Any free port is replaced by a reserved one, so that a daemon can be started on it again.
/// Signals that the test runner ignores, such as those of `nohup`, have their default action in it.
#[must_use]
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(binary());
    // `up` derives the ports of several daemons from one.
    let fixed = !arguments.contains(&"up");
    for argument in arguments {
        match *argument {
            ports::ANY_PORT if fixed => command.arg(reserve_address()),
            other => command.arg(other),
        };
    }
    command.env("SEALSTONE_LOG", "off").env_remove("SEALSTONE_SESSION").stdin(Stdio::null());
    if !rustix::process::geteuid().is_root() {
        // Only root counts the open files of a process without core dumps.
        command.env("SEALSTONE_CORE_DUMPS", "1");
    }
    command
}

/// Runs a command to its end.
#[must_use]
pub fn run(arguments: &[&str]) -> CommandResult {
    CommandResult::from(command(arguments).output().expect("the binary starts"))
}

/// Runs a prepared command with this standard input to its end.
#[must_use]
pub fn run_with_input(mut command: Command, input: &[u8]) -> CommandResult {
    use std::io::Write as _;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A command that refuses early does not read everything.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("the child can be waited for");
    writer.join().expect("the writer does not panic");
    CommandResult::from(output)
}
