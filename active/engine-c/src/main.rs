//! The engine program for functions that are shared objects, from C or any other language.
//!
//! Does: waits for calls on the rings that the device passes, loads the function at its first call,
//! calls `osd_main` or `start`, and reports the returned status. It exports the calls of `osd.h`.
//! Does not: confine itself; `sealstone-sandbox` does that before this program sees a descriptor.
//! Contract: code of a function is loaded after the confinement. Requests leave this process only
//! through the ring, and a failure of the program or the function ends the process. A confined
//! function has no descriptor of the shared memory.
//! Truth: `include/osd.h` and `docs/reference/function-api.md`, generated from the table of calls.
//!
//! `sealstone-engine-c --local CODE ENGINE_MEMORY HOST_MEMORY` runs without confinement, with paths
//! instead of descriptors: for tests of functions on the machine of their developer.

mod calls;
mod loader;

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sealstone_function_abi::CallErrno;
use sealstone_function_ring::EngineRing;
use sealstone_sandbox::EngineContext;

use crate::calls::RING;
use crate::loader::LoadedFunction;

/// Exit code of an engine that cannot use its rings.
const EXIT_NO_RING: i32 = 2;
/// Exit code of an engine that was started without code or descriptors.
const EXIT_NO_CODE: i32 = 3;

fn main() -> ExitCode {
    loader::preload_math_library();
    loader::prepare_sorting();
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [] => sealstone_sandbox::engine_main(run_confined),
        [mode, code, engine_memory, host_memory] if mode == "--local" => {
            run_local(Path::new(code), Path::new(engine_memory), Path::new(host_memory))
        }
        _ => {
            let usage = "usage: sealstone-engine-c [--local CODE ENGINE_MEMORY HOST_MEMORY]; \
                         `sealstone osd serve` starts it without arguments";
            let _ = writeln!(std::io::stderr(), "{usage}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the calls of a device, in a confined process.
fn run_confined(context: EngineContext) -> i32 {
    let EngineContext { code: Some(code), descriptors, .. } = context else { return EXIT_NO_CODE };
    let Ok(descriptors) = <[OwnedFd; 2]>::try_from(descriptors) else { return EXIT_NO_CODE };
    match EngineRing::attach(descriptors) {
        Ok(ring) => serve(ring, &code),
        Err(_) => EXIT_NO_RING,
    }
}

/// Serves the calls of a local host.
fn run_local(code: &Path, engine_memory: &Path, host_memory: &Path) -> ExitCode {
    match EngineRing::attach_paths(engine_memory, host_memory) {
        Ok(ring) => {
            serve(ring, code);
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}; pass the memory files of a running host");
            ExitCode::FAILURE
        }
    }
}

/// Runs calls until the host stops the engine; returns the exit code.
fn serve(ring: EngineRing, code: &Path) -> i32 {
    RING.install(ring);
    let mut function = CodeFile { path: code.to_owned(), loaded: None };
    RING.serve(|call| {
        Ok(match function.load() {
            Ok(loaded) => loaded.run(call),
            Err(error) => {
                RING.log_error(&format!("cannot load the function: {error}"));
                CallErrno::NotExecutable.result()
            }
        })
    })
}

/// The code of a function, which is loaded at the first call.
struct CodeFile {
    path: PathBuf,
    loaded: Option<LoadedFunction>,
}

impl CodeFile {
    fn load(&mut self) -> Result<&LoadedFunction, loader::LoadError> {
        let loaded = match self.loaded.take() {
            Some(loaded) => loaded,
            None => LoadedFunction::load(&self.path)?,
        };
        Ok(self.loaded.insert(loaded))
    }
}
