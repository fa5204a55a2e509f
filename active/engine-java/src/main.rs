//! The engine program for functions in Java.
//!
//! Does: loads the installed Java virtual machine, starts it in the confined process, loads the JAR
//! file of the function at its first call, and runs its `OsdFunction`.
//! Does not: confine itself; `sealstone-sandbox` does that before this program sees a descriptor.
//! Contract: the virtual machine starts, and code of a function is read, after the confinement. The
//! library is loaded before it, as an engine could not find it. An exception without an error
//! number ends the process, after its trace was written to the log of the job.
//! Truth: `docs/how-to/functions-in-java.md` and `docs/reference/function-api.md`.
//!
//! `sealstone-engine-java --runtime` prints what the device must bind and pass.
//! `sealstone-engine-java --local CODE ENGINE_MEMORY HOST_MEMORY` runs without confinement, with
//! paths instead of descriptors: for tests of functions on the machine of their developer.

mod calls;
mod function;
mod machine;
mod runtime;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sealstone_function_abi::CallErrno;
use sealstone_function_ring::EngineRing;
use sealstone_sandbox::{EngineContext, EngineLimits};

use crate::calls::RING;
use crate::function::{EXIT_EXCEPTION, FunctionMachine};
use crate::runtime::{HOME_VARIABLE, JavaRuntime, RuntimeError};

/// Exit code of an engine that cannot use its rings.
const EXIT_NO_RING: i32 = 2;
/// Exit code of an engine that was started without code or descriptors.
const EXIT_NO_CODE: i32 = 3;
/// Exit code of an engine whose virtual machine does not start.
const EXIT_NO_MACHINE: i32 = 4;
/// Stack of the thread that runs functions. The first thread of a process has a stack that grows,
/// which the virtual machine supports badly.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match &arguments[..] {
        [mode] if mode == "--runtime" => describe_runtime(),
        [first, home, second, sdk] if first == "--home" && second == "--sdk" => {
            return run_zygote(Path::new(home), Path::new(sdk));
        }
        [mode, code, engine_memory, host_memory] if mode == "--local" => {
            run_local(code.into(), Path::new(engine_memory), Path::new(host_memory))
        }
        _ => Err("usage: sealstone-engine-java --runtime | --home FOLDER --sdk FILE | \
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

fn find_runtime() -> Result<JavaRuntime, Box<dyn std::error::Error>> {
    let program = std::env::current_exe()?;
    let named = std::env::var_os(HOME_VARIABLE);
    Ok(JavaRuntime::find(named.as_deref(), &program).map_err(|error: RuntimeError| Box::new(error))?)
}

/// Prints the description of the virtual machine after its library was loaded once.
fn describe_runtime() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = find_runtime()?;
    machine::load(&runtime.home)?;
    std::io::stdout().write_all(runtime.description().as_bytes())?;
    Ok(())
}

/// Serves a device as its zygote.
fn run_zygote(home: &Path, sdk: &Path) -> ExitCode {
    let sdk = match std::fs::read(sdk) {
        Ok(sdk) => sdk,
        Err(error) => return fail(&error),
    };
    match machine::load(home) {
        Ok(()) => sealstone_sandbox::engine_main(|context| run_confined(context, sdk.clone())),
        Err(error) => fail(&error),
    }
}

/// Serves the calls of a device, in a confined process.
fn run_confined(context: EngineContext, sdk: Vec<u8>) -> i32 {
    let EngineContext { code: Some(code), descriptors, limits, .. } = context else { return EXIT_NO_CODE };
    let Ok(descriptors) = <[OwnedFd; 2]>::try_from(descriptors) else { return EXIT_NO_CODE };
    match EngineRing::attach(descriptors) {
        Ok(ring) => run_thread(ring, code, sdk, limits.memory_bytes),
        Err(_) => EXIT_NO_RING,
    }
}

/// Serves the calls of a local host.
fn run_local(
    code: PathBuf,
    engine_memory: &Path,
    host_memory: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = find_runtime()?;
    machine::load(&runtime.home)?;
    let sdk = std::fs::read(&runtime.sdk)?;
    let ring = EngineRing::attach_paths(engine_memory, host_memory)?;
    machine::exit_now(run_thread(ring, code, sdk, EngineLimits::default().memory_bytes))
}

/// Serves calls in a thread of its own; ends the process with its exit code.
fn run_thread(ring: EngineRing, code: PathBuf, sdk: Vec<u8>, memory_bytes: u64) -> i32 {
    let body = move || machine::exit_now(serve(ring, &code, &sdk, memory_bytes));
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(body);
    // The thread ends the process, unless it panicked.
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(never)) => never,
        _ => EXIT_NO_MACHINE,
    }
}

/// Runs calls until the host stops the engine; returns the exit code.
fn serve(ring: EngineRing, code: &Path, sdk: &[u8], memory_bytes: u64) -> i32 {
    RING.install(ring);
    // Before the first call, so that the start of the machine and of the call overlap.
    let machine = FunctionMachine::start(memory_bytes, sdk);
    let mut loaded = None;
    RING.serve(|call| {
        let machine = machine.as_ref().map_err(|error| {
            RING.log_error(&format!("cannot start Java: {error}"));
            EXIT_NO_MACHINE
        })?;
        let function = match loaded.take().map_or_else(|| machine.load(code), Ok) {
            Ok(function) => function,
            Err(error) => return Ok(error.result()),
        };
        match function.run(call) {
            Ok(status) => {
                // After an exhausted heap the classes are loaded again, without their state.
                loaded = (status != CallErrno::NoMemory.result()).then_some(function);
                Ok(status)
            }
            Err(error) if error.is_memory => Ok(CallErrno::NoMemory.result()),
            Err(_) => Err(EXIT_EXCEPTION),
        }
    })
}
