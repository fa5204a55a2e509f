//! The engine program's side: the zygote, and the processes that it forks.

mod confine;
mod init;
mod root;
mod server;

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::options::EngineLimits;
use crate::report::IsolationLayer;
use crate::system;

/// The contents of a request, as the confined engine receives them.
#[derive(Debug)]
pub struct EngineContext {
    /// The descriptors of the request, in its order.
    pub descriptors: Vec<OwnedFd>,
    /// Path of the code, if the request has any.
    pub code: Option<PathBuf>,
    /// The parameters of the request.
    pub parameters: Vec<u8>,
    /// The limits that apply to this process.
    pub limits: EngineLimits,
}

/// Refuses code that this process does not have yet: no memory becomes executable from now on.
///
/// An engine that compiles calls it after the compilation. Engines for C start with this layer.
///
/// # Errors
///
/// The kernel is older than Linux 6.3.
pub fn refuse_new_code() -> io::Result<()> {
    system::refuse_writable_code()
}

/// Runs an engine program: serves its daemon until that ends, with one confined process per engine.
///
/// Each of these processes calls `body` after the last layer is applied, and exits with the code
/// that it returns. `main` must return the exit code of this function at once, and must not start a
/// thread before.
pub fn engine_main(body: impl Fn(EngineContext) -> i32) -> ExitCode {
    engine_main_without(&[], body)
}

/// Runs an engine program that omits some layers: for tests that show what the others stop.
#[doc(hidden)]
pub fn engine_main_without(omitted: &[IsolationLayer], body: impl Fn(EngineContext) -> i32) -> ExitCode {
    match server::serve(omitted, &body) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Under a daemon this is /dev/null, and the daemon has the error from the socket.
            let _ = writeln!(io::stderr(), "engine program: {error}; `sealstone osd serve` starts it");
            ExitCode::FAILURE
        }
    }
}
