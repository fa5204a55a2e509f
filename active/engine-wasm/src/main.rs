//! The engine program for functions that are WebAssembly modules.
//!
//! Does: waits for calls on the rings that the device passes, compiles the module at its first
//! call, runs each call in an instance of its own, and reports the returned status.
//! Does not: confine itself; `sealstone-sandbox` does that before this program sees a byte of the
//! module.
//! Contract: no state of a call reaches the next one. A trap ends the process after a line in the
//! log of the job. Addresses of the function are offsets in its memory, and are checked by each
//! call.
//! Truth: `docs/reference/function-api.md`, generated from the table of calls, and
//! `docs/adr/0070-webassembly-engine.md`.
//!
//! `sealstone-engine-wasm --local CODE ENGINE_MEMORY HOST_MEMORY` runs without confinement, with
//! paths instead of descriptors: for tests of functions on the machine of their developer.

mod calls;
mod function;
mod guest;

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sealstone_function_abi::CallErrno;
use sealstone_function_ring::EngineRing;
use sealstone_sandbox::{EngineContext, EngineLimits};

use crate::function::{CompiledFunction, ModuleLoadError, RunFailure};

/// Exit code of an engine that cannot use its rings.
const EXIT_NO_RING: i32 = 2;
/// Exit code of an engine that was started without code or descriptors.
const EXIT_NO_CODE: i32 = 3;
/// Exit code of an engine whose function trapped.
const EXIT_TRAP: i32 = 4;
/// Level of a log line about an error.
const LOG_ERROR: u32 = 1;
/// Memory that the process needs beside that of the module, in bytes: compiler, code and tables.
const ENGINE_MEMORY_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [] => sealstone_sandbox::engine_main(run_confined),
        [mode, code, engine_memory, host_memory] if mode == "--local" => {
            run_local(Path::new(code), Path::new(engine_memory), Path::new(host_memory))
        }
        _ => {
            let usage = "usage: sealstone-engine-wasm [--local CODE ENGINE_MEMORY HOST_MEMORY]; \
                         `sealstone osd serve` starts it without arguments";
            let _ = writeln!(std::io::stderr(), "{usage}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the maximum memory of a module in a process of so many bytes.
const fn module_memory_max(process_bytes: u64) -> u64 {
    let half = process_bytes / 2;
    process_bytes - if half < ENGINE_MEMORY_BYTES { half } else { ENGINE_MEMORY_BYTES }
}

/// Serves the calls of a device, in a confined process.
fn run_confined(context: EngineContext) -> i32 {
    let EngineContext { code: Some(path), descriptors, limits, .. } = context else { return EXIT_NO_CODE };
    let Ok(descriptors) = <[OwnedFd; 2]>::try_from(descriptors) else { return EXIT_NO_CODE };
    let function = ModuleFile {
        path,
        memory_max: module_memory_max(limits.memory_bytes),
        is_confined: true,
        loaded: None,
    };
    match EngineRing::attach(descriptors) {
        Ok(ring) => serve(ring, function),
        Err(_) => EXIT_NO_RING,
    }
}

/// Serves the calls of a local host.
fn run_local(code: &Path, engine_memory: &Path, host_memory: &Path) -> ExitCode {
    let memory_max = module_memory_max(EngineLimits::default().memory_bytes);
    let function = ModuleFile { path: code.to_owned(), memory_max, is_confined: false, loaded: None };
    match EngineRing::attach_paths(engine_memory, host_memory) {
        Ok(ring) => u8::try_from(serve(ring, function)).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}; pass the memory files of a running host");
            ExitCode::FAILURE
        }
    }
}

/// Runs calls until the host stops the engine; returns the exit code.
fn serve(mut ring: EngineRing, mut function: ModuleFile) -> i32 {
    loop {
        let call = match ring.wait_call() {
            Ok(None) => return 0,
            Ok(Some(call)) => call,
            Err(error) => {
                refuse_call(&mut ring, CallErrno::Invalid, &format!("cannot begin the call: {error}"));
                continue;
            }
        };
        let loaded = match function.load() {
            Ok(loaded) => loaded,
            Err(error) => {
                // Arguments may be secret: they are cleared before the end of the call is reported.
                drop(call);
                let text = format!("cannot load the function: {error}");
                refuse_call(&mut ring, CallErrno::NotExecutable, &text);
                continue;
            }
        };
        let (returned, outcome) = loaded.run(ring, call);
        ring = returned;
        match outcome {
            Ok(status) => ring.finish_call(status),
            Err(RunFailure::Refused(text)) => {
                let text = format!("cannot start the function: {text}");
                refuse_call(&mut ring, CallErrno::NoMemory, &text);
            }
            Err(RunFailure::Trapped(text)) => {
                let _ = ring.log(LOG_ERROR, text.as_bytes());
                return EXIT_TRAP;
            }
        }
    }
}

fn refuse_call(ring: &mut EngineRing, error: CallErrno, text: &str) {
    let _ = ring.log(LOG_ERROR, text.as_bytes());
    ring.finish_call(error.result());
}

/// The code of a function, which is compiled at the first call.
struct ModuleFile {
    path: PathBuf,
    memory_max: u64,
    /// Whether the process refuses new code after the compilation.
    is_confined: bool,
    loaded: Option<CompiledFunction>,
}

impl ModuleFile {
    fn load(&mut self) -> Result<&CompiledFunction, ModuleLoadError> {
        let loaded = match self.loaded.take() {
            Some(loaded) => loaded,
            None => {
                let loaded = CompiledFunction::load(&self.path, self.memory_max)?;
                if self.is_confined {
                    // Kernels before 6.3 cannot; the filter of system calls applies all the same.
                    let _ = sealstone_sandbox::refuse_new_code();
                }
                loaded
            }
        };
        Ok(self.loaded.insert(loaded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_memory_leaves_some_for_engine() {
        assert_eq!(module_memory_max(256 << 20), 192 << 20);
        assert_eq!(module_memory_max(64 << 20), 32 << 20);
        assert_eq!(module_memory_max(0), 0);
    }
}
