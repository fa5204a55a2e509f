//! Failures as a user sees them, of the errors of this crate: the kind and the next step.

use sealstone_failure::{Failure, FailureKind, chain};
use sealstone_initiator::OsdError;
use sealstone_mds_protocol::ErrorCode;

use crate::error::ClientError;
use crate::functions::FunctionError;

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let kind = match error.exit_code() {
            2 => FailureKind::Usage,
            3 => FailureKind::Denied,
            4 => FailureKind::NotFound,
            _ => FailureKind::Operation,
        };
        let mut failure = Self::new(kind, chain(&error));
        failure.fatal = matches!(
            error,
            ClientError::SessionOver
                | ClientError::Connection(_)
                | ClientError::WrongCertificate(_)
                | ClientError::NotInPaperProfile
        );
        match error {
            ClientError::SessionOver => {
                Self { message: "not logged in, or the session has ended".into(), ..failure }
                    .hint("sealstone login NAME")
            }
            ClientError::EnrolmentRefused => {
                failure.hint("an administrator creates a new code: sealstone user reset NAME")
            }
            ClientError::WrongCertificate(_) => failure.hint(
                "possible man in the middle; compare the pin with the one that the metadata server prints",
            ),
            ClientError::Connection(_) => {
                failure.hint("check that the metadata server runs and that its address is right")
            }
            ClientError::SessionFile(_) => failure.hint("sealstone login NAME creates a new one"),
            ClientError::Damaged { .. } => failure.hint(
                "put the file again from a good copy, or remove it; `sealstone scrub` lists other damage",
            ),
            ClientError::CapabilityFile(_) => failure.hint("`sealstone cap issue` creates a new one"),
            ClientError::NotDelegated(_) => failure.hint("`sealstone cap show FILE` shows what it allows"),
            ClientError::LoginRefused => failure.hint("check the name and the password, and try again"),
            ClientError::CapabilityFileIo(error) | ClientError::SessionFileIo(error) => {
                Self { next_step: Self::from(error).next_step, ..failure }
            }
            ClientError::Device { .. } => {
                failure.hint("check that the device runs; `sealstone df` shows the devices")
            }
            ClientError::Refused(refusal) => match next_step(refusal.code) {
                Some(next_step) => failure.hint(next_step),
                None => failure,
            },
            ClientError::OutcomeUnknown { .. } => failure.hint("`sealstone stat` shows the present state"),
            _ => failure,
        }
    }
}

/// Returns what a user can do after the metadata server refused a request. Codes that depend on the
/// command have none.
const fn next_step(code: ErrorCode) -> Option<&'static str> {
    Some(match code {
        ErrorCode::Exists => "choose another name, or remove the existing one first",
        ErrorCode::NotEmpty => "`sealstone rm -r` removes a directory with its contents",
        ErrorCode::NotADirectory | ErrorCode::IsADirectory => "`sealstone stat` shows its kind",
        ErrorCode::NoSpace => "`sealstone df` shows the free space",
        ErrorCode::Stale => "run the command again",
        ErrorCode::Busy => "try again later",
        ErrorCode::Version => "update the older one of client and server",
        ErrorCode::Invalid | ErrorCode::Internal => "the log of the metadata server has the details",
        ErrorCode::Limit | ErrorCode::FileTooLarge | ErrorCode::TooManyLinks => {
            "docs/reference/limits.md lists all limits"
        }
        ErrorCode::Loop => "`sealstone ls -l` shows the targets of links",
        ErrorCode::Locked | ErrorCode::Deadlock => "try again when the other client released its lock",
        ErrorCode::Quota => "`sealstone quota show` shows limit and use",
        ErrorCode::CrossesTrees => "copy it instead, as between two file systems",
        ErrorCode::Cycle => "choose a destination outside of the directory",
        ErrorCode::Fenced => "write the file again",
        ErrorCode::NotFound
        | ErrorCode::Denied
        | ErrorCode::NotPermitted
        | ErrorCode::NotLoggedIn
        | ErrorCode::InvalidName
        | ErrorCode::NoAttribute
        | ErrorCode::NotSupported => return None,
    })
}

impl From<FunctionError> for Failure {
    fn from(error: FunctionError) -> Self {
        match error {
            FunctionError::Client(error) => Self::from(error),
            error => function_failure(&error),
        }
    }
}

/// Returns the failure of an error that the caller keeps.
#[must_use]
pub fn function_failure(error: &FunctionError) -> Failure {
    let kind = match error.exit_code() {
        2 => FailureKind::Usage,
        3 => FailureKind::Denied,
        4 => FailureKind::NotFound,
        _ => FailureKind::Operation,
    };
    let failure = Failure::new(kind, chain(error));
    match error {
        FunctionError::Busy { .. } => {
            failure.hint("`sealstone job ls` shows your jobs; `sealstone job cancel` stops one")
        }
        FunctionError::NoEngine { .. } => {
            failure.hint("`sealstone fn engines` lists the engines; `sealstone get` fetches the file")
        }
        FunctionError::NoCopy { .. } => failure.hint("its owner can run `sealstone fn copy`"),
        FunctionError::Client(ClientError::NotDelegated(_)) => {
            failure.hint("`sealstone cap show FILE` shows what it allows")
        }
        FunctionError::NoKeyCopy { path, .. } => {
            failure.hint(format!("its owner permits copies on the devices with `sealstone chmod 700 {path}`"))
        }
        FunctionError::UnknownJob { .. } => failure.hint("`sealstone job ls` shows the known jobs"),
        FunctionError::Limit { .. } | FunctionError::ArgumentsTooLong { .. } => {
            failure.hint("docs/reference/limits.md lists all limits")
        }
        FunctionError::Refused { error: OsdError::FunctionUnsupported, .. } => failure.hint(
            "`sealstone fn show` has the API versions of the function, `sealstone fn engines` those of devices",
        ),
        FunctionError::Refused { error: OsdError::FunctionRequestUnknown { .. }, .. } => {
            failure.hint("update the device, or use a client of its version")
        }
        FunctionError::Refused { .. } => failure.hint("`sealstone fn show` shows what the function needs"),
        _ => failure,
    }
}
