//! Functions in the virtual machine: its start, loading a JAR file, and running calls.

use std::ffi::CStr;
use std::io::Read as _;
use std::path::Path;

use sealstone_function_abi::{CallErrno, OwnedCallDescriptor};
use sealstone_java_archive::limits::ARCHIVE_BYTES_MAX;
use sealstone_java_archive::{ArchiveError, JavaArchive};

use crate::calls::{ARCHIVE, METHODS, RING};
use crate::machine::{
    JavaMachine, JavaReference, MachineError, MachineHooks, MethodHandle, RunArguments, ThrownException,
    exit_now,
};

/// Exit code of an engine whose function threw an exception or ended the virtual machine.
pub(crate) const EXIT_EXCEPTION: i32 = 1;

/// Classes of the SDK that an engine needs; each comes after those that it extends.
const SDK_CLASSES: [&CStr; 12] = [
    c"io/sealstone/function/OsdException",
    c"io/sealstone/function/OsdFunction",
    c"io/sealstone/function/OsdObject",
    c"io/sealstone/function/Call",
    c"io/sealstone/function/CallHost",
    c"io/sealstone/function/OsdReader",
    c"io/sealstone/function/OsdWriter",
    c"io/sealstone/function/Osd",
    c"io/sealstone/function/LogOutput",
    c"io/sealstone/function/FunctionLoader",
    HOST_CLASS,
    RUNNER_CLASS,
];
const HOST_CLASS: &CStr = c"io/sealstone/function/EngineHost";
const RUNNER_CLASS: &CStr = c"io/sealstone/function/FunctionRunner";

/// Memory of a job outside of the heap: the virtual machine itself, its threads and its compilers.
const MACHINE_BYTES: u64 = 48 << 20;
/// Smallest heap with which a function can start.
const HEAP_BYTES_MIN: u64 = 16 << 20;

/// Options of the machine besides its limits of memory.
const OPTIONS: [&str; 20] = [
    // One collector thread: engines share the cores of a device.
    "-XX:+UseSerialGC",
    // No files outside of the root: counters, core dumps, control groups, limits of descriptors.
    "-XX:-UsePerfData",
    "-XX:-CreateCoredumpOnCrash",
    "-XX:+SuppressFatalErrorMessage",
    "-XX:-UseContainerSupport",
    "-XX:-MaxFDLimit",
    "-XX:+DisableAttachMechanism",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Xrs",
    // The archive of the machine's own classes, if it has one: half of the time of a start.
    "-Xshare:auto",
    // Stacks are memory of the job.
    "-Xss512k",
    "-XX:VMThreadStackSize=512",
    "-XX:CompilerThreadStackSize=1024",
    "-XX:ReservedCodeCacheSize=32m",
    "-XX:CompressedClassSpaceSize=32m",
    "-XX:MaxMetaspaceSize=48m",
    "-Dfile.encoding=UTF-8",
    "-Djava.awt.headless=true",
    "-Djava.io.tmpdir=/",
    "-Duser.timezone=UTC",
];

/// Why a function cannot be loaded.
#[derive(Debug, thiserror::Error)]
enum JarError {
    #[error("cannot read the code: {0}")]
    Read(#[from] std::io::Error),
    #[error("{0}")]
    Archive(#[from] ArchiveError),
}

/// A virtual machine with the classes of the SDK.
#[derive(Debug)]
pub(crate) struct FunctionMachine {
    machine: JavaMachine,
    runner: JavaReference,
    load: MethodHandle,
    run: MethodHandle,
}

/// Called by the machine for `System.exit`, and when it cannot start.
extern "system" fn end_by_exit(code: i32) {
    RING.log_error(&format!("the function ended the virtual machine by System.exit({code})"));
    exit_now(EXIT_EXCEPTION)
}

/// Called by the machine after a fatal error.
extern "system" fn end_by_abort() {
    RING.log_error("the virtual machine ended by a fatal error: the function damaged its memory");
    exit_now(EXIT_EXCEPTION)
}

/// Returns the options of a machine for a memory limit of the job; `None` if that is too low.
fn options(memory_bytes: u64) -> Option<Vec<String>> {
    // A quarter of the rest is for classes, compiled code and direct buffers.
    let heap = memory_bytes.saturating_sub(MACHINE_BYTES) / 4 * 3;
    let heap = heap & !((1 << 20) - 1);
    if heap < HEAP_BYTES_MIN {
        return None;
    }
    let sized = [format!("-Xmx{heap}"), "-Xms8m".to_owned(), format!("-XX:MaxDirectMemorySize={}", heap / 4)];
    Some(OPTIONS.iter().map(|&option| option.to_owned()).chain(sized).collect())
}

impl FunctionMachine {
    /// Starts the machine. A confined process calls it before it reads any code of a function.
    pub(crate) fn start(memory_bytes: u64, sdk: &[u8]) -> Result<Self, MachineError> {
        let too_low = || {
            let least = (MACHINE_BYTES + (HEAP_BYTES_MIN * 4).div_ceil(3)).div_ceil(1 << 20);
            MachineError::Sdk(format!("needs a memory limit of {least} MiB at least"))
        };
        let options = options(memory_bytes).ok_or_else(too_low)?;
        let archive =
            JavaArchive::parse_library(sdk).map_err(|error| MachineError::Sdk(error.to_string()))?;
        let hooks = MachineHooks { exit: end_by_exit, abort: end_by_abort };
        let machine = JavaMachine::start(&options, &hooks)?;
        let mut runner = None;
        for name in SDK_CLASSES {
            let text = name.to_string_lossy();
            let code = archive.entry(&format!("{text}.class")).ok().flatten();
            let code = code.ok_or_else(|| MachineError::Sdk(format!("has no class {text}")))?;
            let refused = |_| MachineError::Sdk(format!("has a class {text} of another version"));
            let class = machine.define_class(name, &code).map_err(refused)?;
            if name == HOST_CLASS {
                machine.register(class, METHODS).map_err(refused)?;
            }
            runner = Some(class);
        }
        let unknown = |_: ThrownException| MachineError::Sdk("has another version".to_owned());
        // The last class of the list is the runner.
        let runner = runner.ok_or_else(|| MachineError::Sdk("is empty".to_owned()))?;
        let load = c"(Ljava/lang/String;)Lio/sealstone/function/FunctionRunner;";
        let load = machine.static_method(runner, c"load", load).map_err(unknown)?;
        let run = machine.method(runner, c"run", c"(Ljava/lang/String;[B[JIJZ)J").map_err(unknown)?;
        Ok(Self { machine, runner, load, run })
    }

    /// Loads a JAR file during a call; its errors are in the log of the job.
    pub(crate) fn load(&self, path: &Path) -> Result<JavaFunction<'_>, CallErrno> {
        let archive = match ARCHIVE.get() {
            Some(archive) => archive,
            None => match read_archive(path) {
                Ok(archive) => ARCHIVE.get_or_init(|| archive),
                Err(error) => {
                    RING.log_error(&error.to_string());
                    return Err(CallErrno::NotExecutable);
                }
            },
        };
        let loaded = self.machine.call_static(self.runner, self.load, archive.function_class());
        match loaded {
            Ok(function) => Ok(JavaFunction { machine: self, function }),
            Err(error) if error.is_memory => Err(CallErrno::NoMemory),
            Err(_) => Err(CallErrno::NotExecutable),
        }
    }
}

/// Reads a JAR file, whose bytes stay in memory until the process ends.
fn read_archive(path: &Path) -> Result<JavaArchive<'static>, JarError> {
    let mut code = Vec::new();
    std::fs::File::open(path)?.take(ARCHIVE_BYTES_MAX as u64 + 1).read_to_end(&mut code)?;
    Ok(JavaArchive::parse(code.leak())?)
}

/// A function whose class was initialized.
#[derive(Debug)]
pub(crate) struct JavaFunction<'a> {
    machine: &'a FunctionMachine,
    function: JavaReference,
}

impl JavaFunction<'_> {
    /// Runs one call. An error means that the function threw an exception without a number.
    pub(crate) fn run(&self, call: &OwnedCallDescriptor) -> Result<i64, ThrownException> {
        let fields = call.objects.iter().flat_map(|object| {
            let kind = object.kind().map_or(0, |kind| kind as i64);
            let numbers = [object.partition(), object.number(), object.length()].map(u64::cast_signed);
            numbers.into_iter().chain([kind, object.rights().bits().into()])
        });
        let arguments = RunArguments {
            method: &call.method,
            arguments: &call.arguments,
            fields: &fields.collect::<Vec<_>>(),
            timeout_ms: i32::try_from(call.timeout_ms).unwrap_or(i32::MAX),
            result_bytes_max: i64::try_from(call.result_bytes_max).unwrap_or(i64::MAX),
            is_secret: call.secret_arguments,
        };
        self.machine.machine.call_run(self.function, self.machine.run, &arguments)
    }
}

impl Drop for JavaFunction<'_> {
    /// Releases the function, so that the machine can unload its classes.
    fn drop(&mut self) {
        self.machine.machine.release(self.function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_leaves_memory_for_machine() {
        assert_eq!(options(64 << 20), None);
        let options = options(256 << 20).expect("enough memory");
        assert!(options.contains(&format!("-Xmx{}", 156 << 20)), "{options:?}");
    }
}
