//! The engine in the sandbox.

use std::sync::Arc;
use std::time::Duration;

use sealstone_function_abi::{CallDescriptor, CallErrno};
use sealstone_function_ring::{HostMemory, HostRing};
use sealstone_sandbox::{
    EngineCode, EngineExitCause, EngineKind, EngineLimits, EngineRequest, SandboxedEngine, Zygote,
    ZygoteOptions,
};

use crate::modules::{EVERY_CALL, collect_log, encode, main_module};
use crate::support::{MemoryDevice, small_ring};

/// Maximum time until an engine has ended.
const END_LIMIT: Duration = Duration::from_secs(120);

/// The limits that a device gives to engines of this kind.
fn limits() -> EngineLimits {
    EngineLimits {
        memory_bytes: 256 << 20,
        address_space_bytes: Some((5 << 30) + (768 << 20)),
        data_bytes: Some(256 << 20),
        cpu_seconds: 2,
        ..EngineLimits::default()
    }
}

fn start(text: &str) -> (Zygote, Arc<HostMemory>, HostRing, SandboxedEngine) {
    let options = ZygoteOptions::new(env!("CARGO_BIN_EXE_sealstone-engine-wasm"), EngineKind::Wasm);
    let zygote = Zygote::spawn(options).expect("the machine can confine engines");
    let (memory, ring) = small_ring();
    let request = EngineRequest {
        code: Some(EngineCode::new("fn.wasm", &encode(text)).expect("memory file")),
        descriptors: memory.descriptors().to_vec(),
        parameters: Vec::new(),
        limits: limits(),
    };
    let engine = zygote.start(&request).expect("a confined engine");
    drop(request);
    (zygote, memory, ring, engine)
}

/// Runs a call without objects until the engine has ended.
fn run_to_end(text: &str) -> (Vec<String>, EngineExitCause) {
    let (_zygote, _memory, mut ring, engine) = start(text);
    ring.begin_call(&CallDescriptor::default()).expect("a valid call");
    let mut log = Vec::new();
    loop {
        if !collect_log(&mut ring, &mut log)
            && let Some(exit) = engine.wait(Some(Duration::ZERO)).expect("wait")
        {
            collect_log(&mut ring, &mut log);
            return (log, exit.cause);
        }
    }
}

#[test]
fn confined_module_uses_every_call() {
    let (_zygote, _memory, mut ring, engine) = start(EVERY_CALL);
    for _ in 0..3 {
        let mut device = MemoryDevice::new(&[b"hello", b""]);
        assert_eq!(device.run(&mut ring, "every", b"a=1"), Ok(0), "number of a failed check");
        assert_eq!(device.result, b"all");
    }
    ring.control().stop_engine();
    let exit = engine.wait(Some(END_LIMIT)).expect("wait").expect("the engine ends");
    assert_eq!(exit.cause, EngineExitCause::Exited(0));
}

#[test]
fn confined_traps_are_logged() {
    for (body, reason) in [
        ("unreachable", "unreachable"),
        ("(i64.load (i32.const -16))", "out of bounds memory access"),
        ("(call 0 (local.get $call))", "call stack exhausted"),
        ("(i64.div_s (i64.const 1) (i64.const 0))", "divide by zero"),
    ] {
        let (log, cause) = run_to_end(&main_module("", body));
        assert_eq!(cause, EngineExitCause::Exited(4), "{log:?}");
        assert!(log.iter().any(|line| line.contains(reason)), "{log:?}");
    }
}

#[test]
fn endless_loop_ends_at_processor_limit() {
    let (log, cause) = run_to_end(&main_module("", "(loop $again (br $again)) (i64.const 0)"));
    assert_eq!(cause, EngineExitCause::CpuLimit, "{log:?}");
}

#[test]
fn memory_growth_ends_at_limit() {
    // Writes to each page that it gains.
    let module = main_module(
        "",
        "(local $pages i32)
         (block $end (loop $again
           (br_if $end (i32.eq (local.tee $pages (memory.grow (i32.const 16))) (i32.const -1)))
           (memory.fill (i32.shl (local.get $pages) (i32.const 16)) (i32.const 1) (i32.const 0x100000))
           (br $again)))
         (i64.extend_i32_u (i32.shr_u (memory.size) (i32.const 4)))",
    );
    let (_zygote, _memory, mut ring, _engine) = start(&module);
    for _ in 0..2 {
        let mebibytes = MemoryDevice::default().run(&mut ring, "", b"").expect("no violation");
        assert_eq!(mebibytes, 191, "the last step of 1 MiB does not fit");
    }
}

#[test]
fn malformed_module_is_refused_in_sandbox() {
    let import = "(import \"env\" \"system\" (func (param i32) (result i32)))";
    let (_zygote, _memory, mut ring, _engine) = start(&main_module(import, "(i64.const 0)"));
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut ring, "", b""), Ok(CallErrno::NotExecutable.result()));
    assert!(device.log[0].1.contains("env.system"), "{:?}", device.log);
}
