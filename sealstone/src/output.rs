//! Printing of results and failures: text, or JSON with `--json`.
//!
//! Contract: standard output has the result and nothing else. Every JSON line is an object that has
//! `schema_version` and `command`.
//! Truth: docs/reference/json.md.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sealstone_failure::text::printable_json;
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_mds_protocol::{printable, printable_lines};
use serde::Serialize;
use serde_json::{Value, json};

/// Version of the JSON that `--json` prints. A higher number is incompatible: see
/// docs/reference/json.md.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Signal number that a closed standard output reports, as if SIGPIPE had ended the command.
const SIGPIPE: u8 = 13;

/// Format of results, and the command that prints them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    /// Words of the command, such as `user add`; empty if the command line has none.
    command: &'static str,
}

impl Output {
    pub(crate) const fn new(json: bool, quiet: bool, command: &'static str) -> Self {
        Self { json, quiet, command }
    }

    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints the result: one JSON line, or the text.
    pub(crate) fn result(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        let line = if self.json { self.to_json(value)? } else { printable_lines(&text()).into_owned() };
        print_line(&line)
    }

    /// Prints the ready line of a daemon. The daemon continues if that fails.
    pub(crate) fn ready(self, value: &impl Serialize, text: impl FnOnce() -> String) {
        if let Err(error) = self.result(value, text) {
            tracing::warn!(%error, "cannot print the ready line; continuing");
        }
    }

    /// Prints the result under `--json` only.
    pub(crate) fn done(self, value: &impl Serialize) -> Outcome {
        if self.json { print_line(&self.to_json(value)?) } else { Ok(()) }
    }

    /// Prints a remark on standard error, except with `--json` or `--quiet`.
    pub(crate) fn remark(self, text: impl AsRef<str>) {
        if !self.json && !self.quiet {
            print_error(&printable_lines(text.as_ref()));
        }
    }

    /// Prints several lines about a wrong command line on standard error.
    pub(crate) fn usage(self, text: &str) {
        print_error(printable_lines(text).trim_end());
    }

    /// Prints one failure of a command that continued. Under `--json` the result lists it.
    pub(crate) fn complain(self, text: &str) {
        if !self.json {
            print_error(&format!("{}: {}", self.prefix(), printable(text)));
        }
    }

    /// Sets the next step of a failure by its kind and the command, unless it has one.
    pub(crate) fn with_default_hint(self, failure: Failure) -> Failure {
        // Some messages of the daemons' crates have the next step themselves.
        if failure.message.contains("; run `") {
            return failure;
        }
        let noun = self.command.split(' ').next().unwrap_or_default();
        let next_step = match (failure.kind, noun) {
            (FailureKind::Usage, _) => format!("sealstone {} --help", self.command),
            (FailureKind::NotFound, "user" | "enrol") => "`sealstone user list` shows the accounts".into(),
            (FailureKind::NotFound, "group") => {
                "`sealstone group list` and `sealstone user list` show what exists".into()
            }
            (FailureKind::NotFound, "osd" | "mds") => "`sealstone df` shows the devices".into(),
            (FailureKind::NotFound, "fn") => "`sealstone fn ls` lists the functions of /.functions".into(),
            (FailureKind::NotFound, "job") => "`sealstone job ls` shows the jobs of this session".into(),
            (FailureKind::NotFound, "block") => "`sealstone block list` shows the units".into(),
            (FailureKind::NotFound, "quota") => {
                "`sealstone quota list` shows users and trees with quotas".into()
            }
            (FailureKind::NotFound, "chown" | "chgrp" | "revoke" | "audit") => {
                "`sealstone ls` shows files, `sealstone user list` accounts".into()
            }
            (FailureKind::NotFound, _) => "`sealstone ls` shows what a directory has".into(),
            (FailureKind::Denied, _) => "`sealstone whoami` shows your account and role".into(),
            (FailureKind::Operation | FailureKind::Signal(_), _) => return failure,
        };
        failure.or_hint(next_step)
    }

    /// Prints the failure of one part of a command that continues. Under `--json` the result lists
    /// it.
    pub(crate) fn part_failure(self, failure: &Failure) {
        self.complain(&failure.to_string());
    }

    /// Prints the failure of the command: one line on standard error.
    pub(crate) fn failure(self, failure: &Failure) {
        // As a program that SIGPIPE ends: no message.
        if failure.kind == FailureKind::Signal(SIGPIPE) {
            return;
        }
        if self.json {
            let error = json!({ "error": failure.json() });
            print_error(&printable_json(self.envelope(error).to_string()));
        } else if !failure.reported {
            print_error(&format!("{}: {failure}", self.prefix()));
        }
    }

    fn prefix(self) -> String {
        ["sealstone", self.command].join(" ").trim_end().to_owned()
    }

    /// Adds the fields that every JSON line has.
    fn envelope(self, mut value: Value) -> Value {
        debug_assert!(value.is_object(), "a result is an object: {value}");
        if let Value::Object(fields) = &mut value {
            fields.insert("schema_version".into(), SCHEMA_VERSION.into());
            fields.insert("command".into(), self.command.into());
        }
        value
    }

    fn to_json(self, value: &impl Serialize) -> Outcome<String> {
        let value = serde_json::to_value(value).map_err(Failure::operation)?;
        Ok(printable_json(self.envelope(value).to_string()))
    }

    /// Returns a progress bar over bytes; hidden with `--json` or `--quiet`, and where standard
    /// error is no terminal.
    pub(crate) fn progress(self, total_bytes: Option<u64>, what: &str) -> ProgressBar {
        match total_bytes {
            Some(total) => {
                let template =
                    "{msg:16!} [{wide_bar}] {bytes:>10}/{total_bytes:10} {binary_bytes_per_sec:>12} {eta:>4}";
                self.bar(ProgressBar::new(total), template, what)
            }
            None => {
                let template = "{msg:24!} {spinner} {bytes:>10} {binary_bytes_per_sec:>12}";
                self.bar(ProgressBar::new_spinner(), template, what)
            }
        }
    }

    /// Returns a progress bar over a count; hidden where [`Output::progress`] is.
    pub(crate) fn counting(self, total: u64, what: &str) -> ProgressBar {
        let template = "{msg:16!} [{wide_bar}] {pos:>10}/{len:10} {per_sec:>12} {eta:>4}";
        self.bar(ProgressBar::new(total), template, what)
    }

    fn bar(self, bar: ProgressBar, template: &str, what: &str) -> ProgressBar {
        if self.json || self.quiet || !io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        bar.set_style(
            ProgressStyle::with_template(template).expect("a fixed template parses").progress_chars("=> "),
        );
        bar.set_message(printable(what).into_owned());
        bar
    }
}

/// Prints a line on standard error. A full or closed one must not change how a command ends.
fn print_error(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints a line on standard output.
fn print_line(line: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(stdout_failure)
}

/// Prints bytes unchanged on standard output.
pub(crate) fn print_bytes(bytes: &[u8]) -> Outcome {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(stdout_failure)
}

/// Returns the failure of a write to standard output. A closed pipe ends a command as SIGPIPE does:
/// silent, exit code 141.
pub(crate) fn stdout_failure(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::new(FailureKind::Signal(SIGPIPE), "standard output is closed");
    }
    Failure::from(error).at("standard output").hint("the result is incomplete; run the command again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_next_step_is_kept() {
        let output = Output::new(false, false, "user rm");
        let failure = Failure::not_found("x: not found");
        assert!(output.with_default_hint(failure.clone()).to_string().contains("user list"));
        assert!(output.with_default_hint(failure.hint("own")).to_string().ends_with("(own)"));
    }
}
