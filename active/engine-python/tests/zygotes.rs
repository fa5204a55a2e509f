//! Zygotes of the engine program, and engines with one function.

use std::io::Write as _;
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
pub(crate) const ENGINE: &str = env!("CARGO_BIN_EXE_sealstone-engine-python");
/// Maximum time until an engine has ended.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Reports that the current test is left out, and why.
pub(crate) fn left_out(reason: &str) {
    let thread = std::thread::current();
    // The harness captures the print macros, and shows them for failed tests only.
    let _ = writeln!(std::io::stderr(), "left out: {}: {reason}", thread.name().unwrap_or("unnamed"));
}

/// Whether the machine has an interpreter; reports the test as left out if not.
pub(crate) fn has_interpreter() -> bool {
    let runtime = Command::new(ENGINE).arg("--runtime").output().expect("start the engine");
    if !runtime.status.success() {
        left_out("libpython is not installed");
    }
    runtime.status.success()
}

/// Returns a zygote with the binds and arguments that the program states.
pub(crate) fn zygote() -> Zygote {
    let runtime = Command::new(ENGINE).arg("--runtime").output().expect("start the engine");
    let text = String::from_utf8(runtime.stdout).expect("text");
    let mut options = ZygoteOptions::new(ENGINE, EngineKind::Python);
    for line in text.lines() {
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
    EngineLimits { address_space_bytes: Some(768 << 20), ..EngineLimits::default() }
}

/// A confined engine with one function.
pub(crate) struct ConfinedEngine {
    pub(crate) ring: HostRing,
    pub(crate) engine: SandboxedEngine,
    _memory: Arc<HostMemory>,
}

impl ConfinedEngine {
    pub(crate) fn start(zygote: &Zygote, source: &str, limits: EngineLimits) -> Self {
        let (memory, ring) = small_ring();
        let request = EngineRequest {
            code: Some(EngineCode::new("fn.py", source.as_bytes()).expect("memory file")),
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
            assert!(std::time::Instant::now() < deadline, "the call does not end");
        }
    }
}

/// Returns a call without objects.
pub(crate) fn plain_call<'a>(method: &'a str, arguments: &'a [u8]) -> CallDescriptor<'a> {
    CallDescriptor { method, arguments, result_bytes_max: 1 << 20, ..CallDescriptor::default() }
}
