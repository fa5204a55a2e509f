//! A confined engine under test; the tests of engine programs include this file.
#![allow(dead_code, reason = "each program uses a part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_function_abi::CallDescriptor;
use sealstone_function_ring::{HostMemory, HostRing};
use sealstone_sandbox::{EngineCode, EngineExit, EngineLimits, EngineRequest, SandboxedEngine, Zygote};

use crate::support::{MemoryDevice, small_ring};

/// Maximum time until a call, or an engine, has ended.
const END_LIMIT: Duration = Duration::from_secs(120);

/// A confined engine with one function.
pub(crate) struct ConfinedEngine {
    pub(crate) ring: HostRing,
    pub(crate) engine: SandboxedEngine,
    _memory: Arc<HostMemory>,
}

impl ConfinedEngine {
    pub(crate) fn start(zygote: &Zygote, code: EngineCode, limits: EngineLimits) -> Self {
        let (memory, ring) = small_ring();
        let request = EngineRequest {
            code: Some(code),
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
        let deadline = Instant::now() + END_LIMIT;
        loop {
            if let Some(status) = device.serve_next(&mut self.ring) {
                return Some(status);
            }
            if self.engine.wait(Some(Duration::ZERO)).expect("wait").is_some() {
                // Requests that were sent before the end.
                return device.serve_next(&mut self.ring);
            }
            assert!(Instant::now() < deadline, "the call does not end: {:?}", device.log);
        }
    }
}

/// Returns a call without objects.
pub(crate) fn plain_call<'a>(method: &'a str, arguments: &'a [u8]) -> CallDescriptor<'a> {
    CallDescriptor { method, arguments, result_bytes_max: 1 << 20, ..CallDescriptor::default() }
}
