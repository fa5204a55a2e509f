//! How a command ends badly: one line on standard error, the next step to take, and the exit code of the contract.

use std::fmt;
use std::process::ExitCode;

use sealstone_mds_protocol::printable;

/// What a script can tell apart by the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The operation failed: exit code 1.
    Operation,
    /// The command line or a configuration file is wrong: exit code 2.
    Usage,
    /// Not allowed, or not logged in: exit code 3.
    Denied,
    /// The thing named does not exist: exit code 4.
    NotFound,
    /// A signal of this number ended the command in order: exit code 128 and the number.
    Signal(u8),
}

impl Kind {
    /// The name under which `--json` reports it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Operation => "failed",
            Self::Usage => "usage",
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::Signal(_) => "signal",
        }
    }

    /// The kind of a name; a name of another version is an operation that failed.
    pub(crate) fn from_name(name: &str) -> Self {
        let known = [Self::Usage, Self::Denied, Self::NotFound];
        known.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Operation)
    }
}

impl From<Kind> for ExitCode {
    fn from(kind: Kind) -> Self {
        Self::from(match kind {
            Kind::Operation => 1,
            Kind::Usage => 2,
            Kind::Denied => 3,
            Kind::NotFound => 4,
            Kind::Signal(number) => 128u8.saturating_add(number),
        })
    }
}

/// A failure as the user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Chooses the exit code.
    pub(crate) kind: Kind,
    /// What went wrong, one line.
    pub(crate) message: String,
    /// What to do about it, if we know.
    pub(crate) next_step: Option<String>,
    /// Whether everything else of the same command would fail too.
    pub(crate) fatal: bool,
}

/// The outcome of every command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string(), next_step: None, fatal: false }
    }

    pub(crate) fn operation(message: impl fmt::Display) -> Self {
        Self::new(Kind::Operation, message)
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Says that everything else of the same command would fail too.
    #[must_use]
    pub(crate) fn fatal(self) -> Self {
        Self { fatal: true, ..self }
    }

    /// Adds what to do next.
    #[must_use]
    pub(crate) fn hint(mut self, next_step: impl fmt::Display) -> Self {
        self.next_step = Some(next_step.to_string());
        self
    }

    /// Puts the failing thing in front: `PATH: message`, unless the message begins with it already.
    #[must_use]
    pub(crate) fn at(mut self, what: impl fmt::Display) -> Self {
        let prefix = format!("{what}: ");
        if !self.message.starts_with(&prefix) {
            self.message.insert_str(0, &prefix);
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line that shows itself, whatever a server or a cause sent.
        let message = self.message.replace(['\n', '\r'], " ");
        let message = printable(&message);
        match &self.next_step {
            Some(next_step) => write!(f, "{message} ({})", printable(next_step)),
            None => f.write_str(&message),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            std::io::ErrorKind::PermissionDenied => Kind::Denied,
            _ => Kind::Operation,
        };
        Self::new(kind, error)
    }
}

/// A chain of causes on one line: `a: b: c`, without repeating what a parent already said.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
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

    /// Scripts that read standard error line by line see one line.
    #[test]
    fn a_failure_is_one_line_with_its_next_step() {
        let failure = Failure::operation("cannot bind\n127.0.0.1:3260").hint("choose another port").at("osd");
        assert_eq!(failure.to_string(), "osd: cannot bind 127.0.0.1:3260 (choose another port)");
    }

    #[test]
    fn path_in_front_is_not_repeated() {
        let failure = Failure::operation("/a: access denied").at("/a").at("/a");
        assert_eq!(failure.to_string(), "/a: access denied");
        assert_eq!(Failure::operation("/ab: full").at("/a").to_string(), "/a: /ab: full");
    }
}
