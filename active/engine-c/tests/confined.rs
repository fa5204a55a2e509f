//! The engine in the sandbox.

use std::sync::Arc;
use std::time::Duration;

use sealstone_function_abi::{CallDescriptor, CallErrno};
use sealstone_function_ring::{HostMemory, HostRing};
use sealstone_sandbox::{
    EngineCode, EngineExitCause, EngineKind, EngineLimits, EngineRequest, SandboxedEngine, Zygote,
    ZygoteOptions,
};

use crate::functions;
use crate::support::{MemoryDevice, small_ring};

/// Maximum time until an engine has ended.
const END_LIMIT: Duration = Duration::from_secs(120);

fn zygote() -> Zygote {
    let options = ZygoteOptions::new(env!("CARGO_BIN_EXE_sealstone-engine-c"), EngineKind::C);
    Zygote::spawn(options).expect("the machine can confine engines")
}

fn start(zygote: &Zygote, name: &str, limits: EngineLimits) -> (Arc<HostMemory>, HostRing, SandboxedEngine) {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = std::fs::read(functions::build(name, folder.path())).expect("read the function");
    let (memory, ring) = small_ring();
    let request = EngineRequest {
        code: Some(EngineCode::new("fn.so", &bytes).expect("memory file")),
        descriptors: memory.descriptors().to_vec(),
        parameters: Vec::new(),
        limits,
    };
    let engine = zygote.start(&request).expect("a confined engine");
    (memory, ring, engine)
}

#[test]
fn confined_function_uses_every_call() {
    let zygote = zygote();
    let (_memory, mut ring, engine) = start(&zygote, "every_call", EngineLimits::default());
    let mut device = MemoryDevice::new(&[b"hello", b""]);
    assert_eq!(device.run(&mut ring, "every", b"a=1"), Ok(0), "line of a failed check");
    assert_eq!(device.result, b"all");
    ring.control().stop_engine();
    let exit = engine.wait(Some(END_LIMIT)).expect("wait").expect("the engine ends");
    assert_eq!(exit.cause, EngineExitCause::Exited(0));
}

#[test]
fn confined_function_has_math_library() {
    let zygote = zygote();
    let (_memory, mut ring, _engine) = start(&zygote, "behaviours", EngineLimits::default());
    let mut device = MemoryDevice::new(&[b"hello"]);
    assert_eq!(device.run(&mut ring, "root", &[7; 100]), Ok(10));
    assert_eq!(device.run(&mut ring, "streams", b""), Ok(0));
    assert_eq!(device.run(&mut ring, "count", b""), Ok(3));
}

#[test]
fn confined_function_sorts_with_library() {
    let zygote = zygote();
    let (_memory, mut ring, _engine) = start(&zygote, "behaviours", EngineLimits::default());
    assert_eq!(MemoryDevice::default().run(&mut ring, "sort", b""), Ok(0), "index of a wrong value");
}

/// An escape attempt: a second mapping of the heap that is executable.
#[test]
fn confined_function_cannot_remap_heap() {
    let zygote = zygote();
    let (_memory, mut ring, _engine) = start(&zygote, "behaviours", EngineLimits::default());
    assert_eq!(MemoryDevice::default().run(&mut ring, "remap", b""), Ok(0), "an open descriptor");
}

#[test]
fn confined_trap_has_its_signal() {
    let zygote = zygote();
    for (method, signal) in [("abort", 6), ("fault", 11)] {
        let (_memory, mut ring, engine) = start(&zygote, "behaviours", EngineLimits::default());
        let call = CallDescriptor { method, ..CallDescriptor::default() };
        ring.begin_call(&call).expect("a valid call");
        // The constructor writes a line, and then waits for its completion.
        let line = ring.next_request(END_LIMIT).expect("no violation").expect("a request");
        ring.complete(line.cookie, 0, 0);
        let exit = engine.wait(Some(END_LIMIT)).expect("wait").expect("the engine ends");
        assert_eq!(exit.cause, EngineExitCause::Signalled(signal), "{method}");
    }
}

#[test]
fn malformed_code_is_refused_in_sandbox() {
    let zygote = zygote();
    let (memory, mut ring) = small_ring();
    let request = EngineRequest {
        code: Some(EngineCode::new("fn.so", b"\x7fELF and nothing else").expect("memory file")),
        descriptors: memory.descriptors().to_vec(),
        ..EngineRequest::default()
    };
    let _engine = zygote.start(&request).expect("a confined engine");
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut ring, "", b""), Ok(CallErrno::NotExecutable.result()));
    assert!(device.log[0].1.contains("/fn.so"), "{:?}", device.log);
}
