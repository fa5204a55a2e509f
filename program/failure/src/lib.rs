//! Failures as a user sees them: a subject, a reason, the next step and a kind.
//!
//! Does: formats failures and errors on one line, escapes foreign text, reads and writes secret
//! files with such failures, and works on several parts of which some may fail.
//! Does not: print, log, or end the process.
//! Contract: a failure has no secrets, and no characters that control a terminal.
//! Truth: docs/reference/cli.md (exit codes), docs/reference/json.md (`error`).

mod parts;
pub mod secret_file;
pub mod text;

use std::fmt;
use std::path::Path;

use sealstone_mds_protocol::printable;
use serde_json::{Value, json};

pub use crate::parts::{PartObserver, PartResults, for_each};
use crate::text::ShownPath as _;

/// Kind of a failure; a command has an exit code for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The operation failed: exit code 1.
    Operation,
    /// The command line or a configuration file is wrong: exit code 2.
    Usage,
    /// Access denied, or not logged in: exit code 3.
    Denied,
    /// The named thing does not exist: exit code 4.
    NotFound,
    /// A signal of this number ended the command: exit code 128 plus the number.
    Signal(u8),
}

impl FailureKind {
    /// Returns the name that `--json` reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operation => "failed",
            Self::Usage => "usage",
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::Signal(_) => "signal",
        }
    }

    /// Returns the kind of a name; `Operation` for an unknown one.
    pub fn from_name(name: &str) -> Self {
        let known = [Self::Usage, Self::Denied, Self::NotFound];
        known.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Operation)
    }
}

/// A failure as the user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Decides the exit code.
    pub kind: FailureKind,
    /// `SUBJECT: reason`, one line.
    pub message: String,
    /// Advice to the user.
    pub next_step: Option<String>,
    /// Whether all other parts of the same command would fail too.
    pub fatal: bool,
    /// Whether text output has a line for each part of this failure, and needs no other.
    pub reported: bool,
}

/// The outcome of every command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Returns a failure without a next step.
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self {
            kind,
            message: without_os_error(&message.to_string()),
            next_step: None,
            fatal: false,
            reported: false,
        }
    }

    /// Returns the failure of an operation.
    pub fn operation(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Operation, message)
    }

    /// Returns the failure of a wrong argument or file.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Usage, message)
    }

    /// Returns the failure of a name that does not exist.
    pub fn not_found(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::NotFound, message)
    }

    /// Returns the failure of a response that does not belong to the request.
    pub fn unexpected_response() -> Self {
        Self::operation("unexpected response of the metadata server")
            .hint("client and server may have different versions; `sealstone --version`")
    }

    /// Returns the failure as an entry of `failed`, and as `error`.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "kind": self.kind.name(), "message": self.message, "next_step": self.next_step })
    }

    /// Marks that all other parts of the same command would fail too.
    #[must_use]
    pub fn fatal(self) -> Self {
        Self { fatal: true, ..self }
    }

    /// Sets the next step.
    #[must_use]
    pub fn hint(mut self, next_step: impl fmt::Display) -> Self {
        self.next_step = Some(next_step.to_string());
        self
    }

    /// Sets the next step unless the failure has one.
    #[must_use]
    pub fn or_hint(self, next_step: impl fmt::Display) -> Self {
        if self.next_step.is_some() { self } else { self.hint(next_step) }
    }

    /// Puts the subject in front: `PATH: reason`. A message that names the same subject, or the
    /// last name of the same path, gets no second one.
    #[must_use]
    pub fn at(mut self, subject: impl fmt::Display) -> Self {
        let subject = subject.to_string();
        let named = self.message.split_once(": ").map(|(named, _)| named.len());
        let is_last_name = |named: &str| subject.rsplit_once('/').is_some_and(|(_, name)| name == named);
        match named {
            Some(length) if self.message[..length] == subject => {}
            Some(length) if is_last_name(&self.message[..length]) => {
                self.message.replace_range(..length, &subject);
            }
            _ => self.message.insert_str(0, &format!("{subject}: ")),
        }
        self
    }

    /// Puts two subjects in front, `A JOIN B: reason`, unless the message names one of them
    /// already.
    #[must_use]
    pub fn at_both(self, a: impl fmt::Display, join: &str, b: impl fmt::Display) -> Self {
        let (a, b) = (a.to_string(), b.to_string());
        match self.message.split_once(": ") {
            Some((named, _)) if named == a || named == b => self,
            _ => self.at(format!("{a}{join}{b}")),
        }
    }

    /// Adds the next step to the failure of a file system, at this path.
    #[must_use]
    pub fn medium_hint(self, error: &std::io::Error, path: &Path) -> Self {
        use std::io::ErrorKind as E;
        match error.kind() {
            E::PermissionDenied => Self { kind: FailureKind::Denied, ..self }
                .hint(format!("the daemon must own {} and be able to write it", path.shown())),
            E::ReadOnlyFilesystem => self.hint("mount the file system for writing"),
            E::StorageFull | E::QuotaExceeded => {
                self.hint("free some space on this file system and start again")
            }
            _ => self,
        }
    }
}

/// Removes the numbers that the standard library adds to errors of the operating system.
fn without_os_error(message: &str) -> String {
    let mut rest = message;
    let mut out = String::with_capacity(message.len());
    while let Some(at) = rest.find(" (os error ") {
        out.push_str(&rest[..at]);
        // The text of the system begins with a capital letter.
        let start = out.rfind(": ").map_or(0, |colon| colon + 2);
        if let Some(first) = out.get_mut(start..start + 1) {
            first.make_ascii_lowercase();
        }
        let after = &rest[at..];
        rest = after.find(')').map_or("", |end| &after[end + 1..]);
    }
    out + rest
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A cause or a server may send line breaks and control characters.
        let message = self.message.replace(['\n', '\r'], " ");
        let message = printable(&message);
        match &self.next_step {
            Some(next_step) => write!(f, "{message} ({})", printable(next_step)),
            None => f.write_str(&message),
        }
    }
}

impl std::error::Error for Failure {}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind;
        let (kind, next_step) = match error.kind() {
            ErrorKind::NotFound => (FailureKind::NotFound, Some("check the path on this machine")),
            ErrorKind::PermissionDenied => {
                (FailureKind::Denied, Some("check its owner and mode on this machine: ls -ld"))
            }
            ErrorKind::StorageFull => (FailureKind::Operation, Some("free space on this machine's disk")),
            ErrorKind::ReadOnlyFilesystem => (FailureKind::Operation, Some("choose a writable folder")),
            ErrorKind::AddrInUse => (FailureKind::Operation, Some("choose another port, or stop its user")),
            _ => (FailureKind::Operation, None),
        };
        // Errors of this program begin in lower case; so do these.
        let text = error.to_string();
        let mut letters = text.chars();
        let first = letters.next().map(|first| first.to_ascii_lowercase());
        let text: String = first.into_iter().chain(letters).collect();
        Self { next_step: next_step.map(str::to_owned), ..Self::new(kind, text) }
    }
}

/// Joins an error and its causes on one line: `a: b: c`. A cause that its parent ends with is not
/// repeated.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = inner.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_one_line_with_next_step() {
        let failure = Failure::operation("cannot bind\n127.0.0.1:3260").hint("choose another port").at("osd");
        assert_eq!(failure.to_string(), "osd: cannot bind 127.0.0.1:3260 (choose another port)");
    }

    #[test]
    fn subject_is_named_once() {
        let failure = Failure::operation("/a: access denied").at("/a").at("/a");
        assert_eq!(failure.to_string(), "/a: access denied");
        assert_eq!(Failure::operation("/ab: full").at("/a").to_string(), "/a: /ab: full");
        assert_eq!(Failure::operation("f2: already exists").at("/d/f2").to_string(), "/d/f2: already exists");
        let both = |message: &str| Failure::operation(message).at_both("staff", ", ", "alice").to_string();
        assert_eq!(both("alice: not found"), "alice: not found");
        assert_eq!(both("access denied"), "staff, alice: access denied");
    }

    #[test]
    fn system_errors_are_lower_case_without_numbers() {
        let failure = Failure::from(std::io::Error::from_raw_os_error(2)).at("/nope");
        assert_eq!(failure.to_string(), "/nope: no such file or directory (check the path on this machine)");
        assert_eq!(without_os_error("a: B (os error 5): C d (os error 111)"), "a: b: c d");
    }
}
