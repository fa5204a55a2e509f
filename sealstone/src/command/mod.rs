//! The commands. Each is one function from its arguments to an [`Outcome`].

pub(crate) mod approve;
pub(crate) mod audit;
pub(crate) mod block;
mod block_attach;
mod block_e2e;
pub(crate) mod cap;
mod cap_run;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod drain;
pub(crate) mod files;
mod function_policy;
pub(crate) mod function_project;
mod function_test;
pub(crate) mod functions;
pub(crate) mod groups;
pub(crate) mod job_records;
pub(crate) mod jobs;
pub(crate) mod keys;
mod local_engine;
pub(crate) mod mount;
pub(crate) mod osd_check;
pub(crate) mod osd_status;
pub(crate) mod parts;
pub(crate) mod placement;
pub(crate) mod quotas;
pub(crate) mod rebalance;
mod result_sink;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod scrub;
pub(crate) mod session;
pub(crate) mod transfer;
pub(crate) mod tree;
pub(crate) mod users;
pub(crate) mod walk;

use std::future::Future;

use sealstone_client::ClientError;
use sealstone_mds_protocol::ErrorCode;

use crate::failure::{Failure, FailureKind, Outcome, chain};

/// Runs a command's future on a small runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .map_err(|error| Failure::from(error).at("runtime"))?;
    let outcome = runtime.block_on(future);
    // A pending read of standard input must not keep the process alive.
    runtime.shutdown_background();
    outcome
}

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
