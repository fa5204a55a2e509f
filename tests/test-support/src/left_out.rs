//! Tests that cannot run on this machine.
//!
//! Does: writes one line per test that is left out, past the capture of the test harness, so that
//! the test runner counts it.
//! Contract: the line is `left out: TEST: REASON`; `xtask tests` reads it.

use std::io::Write as _;
use std::process::Command;

/// Start of the line.
pub const LEFT_OUT: &str = "left out: ";

/// Reports that the current test is left out, and why.
pub fn left_out(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed");
    // The harness captures the print macros, and shows them for failed tests only.
    let _ = writeln!(std::io::stderr(), "{LEFT_OUT}{test}: {reason}");
}

/// Whether a program is installed. Reports the test as left out if it is not.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        left_out(&format!("{program} is not installed"));
    }
    found
}
