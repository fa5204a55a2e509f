//! The engine program for functions in Python 3.
//!
//! Does: loads the interpreter of the machine, starts it in the confined process, compiles the
//! function at its first call, and runs `run(osd, call)`.
//! Does not: confine itself; `sealstone-sandbox` does that before this program sees a descriptor.
//! Contract: the interpreter starts, and code of a function is compiled, after the confinement. The
//! library is loaded before it, as an engine could not find it. An exception without an error
//! number ends the process, after its traceback was written to the log of the job.
//! Truth: `docs/how-to/functions-in-python.md` and `docs/reference/function-api.md`.
//!
//! `sealstone-engine-python --runtime` prints what the device must bind and pass.
//! `sealstone-engine-python --local CODE ENGINE_MEMORY HOST_MEMORY` runs without confinement, with
//! paths instead of descriptors: for tests of functions on the machine of their developer.

mod calls;
mod function;
mod library;
mod runtime;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use sealstone_function_ring::EngineRing;
use sealstone_sandbox::EngineContext;

use crate::calls::RING;
use crate::function::{CallEnd, FunctionInterpreter};
use crate::runtime::{LIBRARY_VARIABLE, PythonRuntime};

/// Exit code of an engine whose function raised an exception.
const EXIT_EXCEPTION: i32 = 1;
/// Exit code of an engine that cannot use its rings.
const EXIT_NO_RING: i32 = 2;
/// Exit code of an engine that was started without code or descriptors.
const EXIT_NO_CODE: i32 = 3;
/// Exit code of an engine whose interpreter does not start.
const EXIT_NO_INTERPRETER: i32 = 4;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match &arguments[..] {
        [mode] if mode == "--runtime" => describe_runtime(),
        [mode, library, home] if mode == "--package" => print_package(Path::new(library), home),
        [first, library, second, home] if first == "--library" && second == "--home" => {
            return run_zygote(Path::new(library), home);
        }
        [mode, code, engine_memory, host_memory] if mode == "--local" => {
            run_local(Path::new(code), Path::new(engine_memory), Path::new(host_memory))
        }
        _ => Err("usage: sealstone-engine-python --runtime | --library FILE --home FOLDER | \
                  --local CODE ENGINE_MEMORY HOST_MEMORY; `sealstone osd serve` starts it"
            .into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{error}");
    ExitCode::FAILURE
}

fn find_runtime() -> Result<PythonRuntime, runtime::RuntimeError> {
    PythonRuntime::find(std::env::var_os(LIBRARY_VARIABLE).as_deref())
}

/// Prints the description of the interpreter after its library was loaded once.
fn describe_runtime() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = find_runtime()?;
    library::load(&runtime.libpython)?;
    std::io::stdout().write_all(runtime.description().as_bytes())?;
    Ok(())
}

/// Serves a device as its zygote.
fn run_zygote(library: &Path, home: &OsString) -> ExitCode {
    let Some(home) = home.to_str() else { return ExitCode::FAILURE };
    match library::load(library) {
        Ok(_) => {
            let package = compiled_package(library, home);
            sealstone_sandbox::engine_main(|context| run_confined(context, home, &package))
        }
        Err(error) => fail(&error),
    }
}

/// Returns the compiled package of the engine, which another process prints: a zygote starts no
/// interpreter. Without it an engine compiles the package itself.
fn compiled_package(library: &Path, home: &str) -> Vec<u8> {
    let Ok(program) = std::env::current_exe() else { return Vec::new() };
    let mut command = Command::new(program);
    command.arg("--package").arg(library).arg(home).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success());
    output.map_or_else(Vec::new, |output| output.stdout)
}

/// Prints the compiled package of the engine.
fn print_package(library: &Path, home: &OsString) -> Result<(), Box<dyn std::error::Error>> {
    library::load(library)?;
    let home = home.to_str().ok_or("the folder is not UTF-8")?;
    std::io::stdout().write_all(&function::compile_package(home)?)?;
    Ok(())
}

/// Serves the calls of a device, in a confined process.
fn run_confined(context: EngineContext, home: &str, package: &[u8]) -> i32 {
    let EngineContext { code: Some(code), descriptors, .. } = context else { return EXIT_NO_CODE };
    let Ok(descriptors) = <[OwnedFd; 2]>::try_from(descriptors) else { return EXIT_NO_CODE };
    match EngineRing::attach(descriptors) {
        Ok(ring) => serve(ring, &code, home, package),
        Err(_) => EXIT_NO_RING,
    }
}

/// Serves the calls of a local host.
fn run_local(
    code: &Path,
    engine_memory: &Path,
    host_memory: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = find_runtime()?;
    library::load(&runtime.libpython)?;
    let ring = EngineRing::attach_paths(engine_memory, host_memory)?;
    match serve(ring, code, &runtime.home, &[]) {
        0 => Ok(()),
        code => std::process::exit(code),
    }
}

/// Runs calls until the host stops the engine; returns the exit code.
fn serve(ring: EngineRing, code: &Path, home: &str, package: &[u8]) -> i32 {
    RING.install(ring);
    // Before the first call, so that the start of the interpreter and of the call overlap.
    let interpreter = FunctionInterpreter::start(home, package);
    let mut loaded = None;
    RING.serve(|call| {
        let interpreter = interpreter.as_ref().map_err(|error| {
            RING.log_error(&format!("cannot start the interpreter: {error}"));
            EXIT_NO_INTERPRETER
        })?;
        let function = match loaded.take().map_or_else(|| interpreter.load(code), Ok) {
            Ok(function) => function,
            Err(error) => return Ok(error.result()),
        };
        match function.run(call) {
            CallEnd::Returned(status) => {
                loaded = Some(function);
                Ok(status)
            }
            CallEnd::Raised => Err(EXIT_EXCEPTION),
        }
    })
}
