//! What the verbs do. Each command is one function from its arguments to an [`Outcome`].

pub(crate) mod approve;
pub(crate) mod audit;
pub(crate) mod block;
pub(crate) mod cap;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod drain;
pub(crate) mod files;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod look_through;
pub(crate) mod mount;
pub(crate) mod placement;
pub(crate) mod quotas;
pub(crate) mod rebalance;
pub(crate) mod revoke;
pub(crate) mod scrub;
pub(crate) mod session;
pub(crate) mod transfer;
pub(crate) mod tree;
pub(crate) mod users;
pub(crate) mod walk;

use std::future::Future;

use sealstone_client::ClientError;

use crate::failure::{Failure, Kind, Outcome, chain};

/// Runs a command's future on a small runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .map_err(|error| Failure::from(error).at("runtime"))?;
    let outcome = runtime.block_on(future);
    // A read of standard input that nobody needs any more must not keep the process alive.
    runtime.shutdown_background();
    outcome
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let kind = match error.exit_code() {
            2 => Kind::Usage,
            3 => Kind::Denied,
            4 => Kind::NotFound,
            _ => Kind::Operation,
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
                Self { message: "not logged in, or the session is over".into(), ..failure }
                    .hint("sealstone login NAME")
            }
            ClientError::EnrolmentRefused => {
                failure.hint("an administrator makes a new code with `sealstone user reset NAME`")
            }
            ClientError::WrongCertificate(_) => failure.hint(
                "somebody may be in between; `mds serve` and `up` print the pin and write it to cluster.toml",
            ),
            ClientError::Connection(_) => failure.hint("is the metadata server running?"),
            ClientError::SessionFile(_) => failure.hint("sealstone login NAME makes a new one"),
            ClientError::Damaged { .. } => failure.hint(
                "put the file again from a good copy, or `rm` it; `sealstone scrub` on the device tells what else is damaged",
            ),
            ClientError::CapabilityFile(_) => failure.hint("`sealstone cap issue` makes a new one"),
            ClientError::NotDelegated(_) => failure.hint("`sealstone cap show FILE` tells what it allows"),
            ClientError::OutcomeUnknown { .. } => failure.hint("`sealstone stat` tells what is there now"),
            _ => failure,
        }
    }
}
