//! Zygotes of the engine program, and engines with one function.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sealstone_function_abi::CallDescriptor;
use sealstone_function_ring::{HostMemory, HostRing};
use sealstone_sandbox::{
    EngineCode, EngineExit, EngineKind, EngineLimits, EngineRequest, ReadOnlyBind, SandboxedEngine, Zygote,
    ZygoteOptions,
};

use crate::support::{MemoryDevice, small_ring};

/// The engine program.
pub(crate) const ENGINE: &str = env!("CARGO_BIN_EXE_sealstone-engine-java");
/// Maximum time until an engine has ended.
const END_LIMIT: Duration = Duration::from_secs(120);

/// Reports that the current test is left out, and why.
pub(crate) fn left_out(reason: &str) {
    let thread = std::thread::current();
    // The harness captures the print macros, and shows them for failed tests only.
    let _ = writeln!(std::io::stderr(), "left out: {}: {reason}", thread.name().unwrap_or("unnamed"));
}

/// Whether the machine has a JDK and the SDK; reports the test as left out if not.
pub(crate) fn has_java() -> bool {
    let runtime = Command::new(ENGINE).arg("--runtime").output().expect("start the engine");
    if !runtime.status.success() {
        left_out(String::from_utf8_lossy(&runtime.stderr).trim());
        return false;
    }
    let has_compiler =
        Command::new("javac").arg("-version").output().is_ok_and(|output| output.status.success());
    if !has_compiler {
        left_out("javac is not installed");
    }
    has_compiler
}

/// Returns the installations of Java of this machine that functions can use.
pub(crate) fn homes() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let homes = entries.filter_map(|entry| entry.path().canonicalize().ok());
    let mut homes: Vec<_> = homes.filter(|home| runtime(Some(home)).is_some()).collect();
    homes.sort_unstable();
    homes.dedup();
    homes
}

/// Returns the description of a runtime.
fn runtime(home: Option<&PathBuf>) -> Option<String> {
    let mut command = Command::new(ENGINE);
    command.arg("--runtime");
    if let Some(home) = home {
        command.env("SEALSTONE_JAVA_HOME", home);
    }
    let output = command.output().expect("start the engine");
    output.status.success().then(|| String::from_utf8(output.stdout).expect("text"))
}

/// Returns a zygote with the binds and arguments that the program states.
pub(crate) fn zygote() -> Zygote {
    zygote_of(None)
}

/// Returns a zygote with an installation of Java.
pub(crate) fn zygote_of(home: Option<&PathBuf>) -> Zygote {
    let mut options = ZygoteOptions::new(ENGINE, EngineKind::Java);
    for line in runtime(home).expect("a runtime").lines() {
        match line.split_once(' ') {
            Some(("bind", path)) => {
                options.binds.push(ReadOnlyBind { source: path.into(), target: path.into() });
            }
            Some(("argument", value)) => options.arguments.push(value.into()),
            _ => panic!("{line}"),
        }
    }
    Zygote::spawn(options).expect("the machine can confine engines")
}

/// Limits like those of a device.
pub(crate) fn limits() -> EngineLimits {
    EngineLimits {
        address_space_bytes: None,
        data_bytes: Some(256 << 20),
        threads: 64,
        descriptors: 64,
        ..EngineLimits::default()
    }
}

/// A confined engine with one function.
pub(crate) struct ConfinedEngine {
    pub(crate) ring: HostRing,
    pub(crate) engine: SandboxedEngine,
    _memory: Arc<HostMemory>,
}

impl ConfinedEngine {
    pub(crate) fn start(zygote: &Zygote, code: &[u8], limits: EngineLimits) -> Self {
        let (memory, ring) = small_ring();
        let request = EngineRequest {
            code: Some(EngineCode::new("fn.jar", code).expect("memory file")),
            descriptors: memory.descriptors().to_vec(),
            parameters: Vec::new(),
            limits,
        };
        let engine = zygote.start(&request).expect("a confined engine");
        Self { ring, engine, _memory: memory }
    }

    pub(crate) fn wait(&self) -> EngineExit {
        self.engine.wait(Some(END_LIMIT)).expect("wait").expect("the engine ends")
    }

    /// Runs a call with the objects of the device; the engine must not end.
    pub(crate) fn run_method(&mut self, device: &mut MemoryDevice, method: &str, arguments: &[u8]) -> i64 {
        let objects = device.descriptions();
        let call = CallDescriptor { objects: &objects, timeout_ms: 1000, ..plain_call(method, arguments) };
        let status = self.run(device, &call);
        status.unwrap_or_else(|| panic!("{method}: {:?}, {:?}", self.wait(), device.log))
    }

    /// Runs a call that may end the process; returns the status, or `None` if it ended.
    pub(crate) fn run(&mut self, device: &mut MemoryDevice, call: &CallDescriptor<'_>) -> Option<i64> {
        self.ring.begin_call(call).expect("a valid call");
        let deadline = std::time::Instant::now() + END_LIMIT;
        loop {
            if let Some(status) = device.serve_next(&mut self.ring) {
                return Some(status);
            }
            if self.engine.wait(Some(Duration::ZERO)).expect("wait").is_some() {
                // Requests that were sent before the end.
                return device.serve_next(&mut self.ring);
            }
            assert!(std::time::Instant::now() < deadline, "the call does not end: {:?}", device.log);
        }
    }
}

/// Returns a call without objects.
pub(crate) fn plain_call<'a>(method: &'a str, arguments: &'a [u8]) -> CallDescriptor<'a> {
    CallDescriptor { method, arguments, result_bytes_max: 1 << 20, ..CallDescriptor::default() }
}
