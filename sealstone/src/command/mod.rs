//! The commands. Each is one function from its arguments to an [`Outcome`].

pub(crate) mod approve;
pub(crate) mod audit;
pub(crate) mod block;
mod block_attach;
mod block_e2e;
pub(crate) mod cap;
mod cap_run;
pub(crate) mod clock;
pub(crate) mod demo;
pub(crate) mod files;
mod function_install;
mod function_policy;
pub(crate) mod function_project;
mod function_test;
pub(crate) mod functions;
pub(crate) mod groups;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod maintenance;
pub(crate) mod mount;
mod parts;
mod progress;
pub(crate) mod quotas;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod transfer;
pub(crate) mod users;

use std::future::Future;

use sealstone_client::Method;
use sealstone_failure::{Failure, Outcome};

/// Security method of the commands of `fn` and `job`.
const FUNCTION_METHOD: Method = Method::AllData;

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
