//! The engine in the sandbox.

use sealstone_sandbox::EngineExitCause;

use crate::confined_engine::plain_call;
use crate::support::MemoryDevice;
use crate::zygotes::{has_interpreter, limits, start, zygote};

#[test]
fn confined_function_uses_every_call() {
    if !has_interpreter() {
        return;
    }
    let zygote = zygote();
    let mut engine = start(&zygote, include_str!("functions/every_call.py"), limits());
    let mut device = MemoryDevice::new(&[b"hello", b""]);
    assert_eq!(device.run(&mut engine.ring, "every", b"a=1\0"), Ok(0), "{:?}", device.log);
    assert_eq!(device.result, b"all");
    engine.ring.control().stop_engine();
    assert_eq!(engine.wait().cause, EngineExitCause::Exited(0));
}

#[test]
fn confined_function_has_standard_library() {
    if !has_interpreter() {
        return;
    }
    let zygote = zygote();
    let mut engine = start(&zygote, include_str!("functions/libraries.py"), limits());
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut engine.ring, "", b""), Ok(0), "{:?}", device.log);
}

#[test]
fn confined_streams_serve_many_calls() {
    if !has_interpreter() {
        return;
    }
    let zygote = zygote();
    let mut engine = start(&zygote, include_str!("functions/behaviours.py"), limits());
    let mut device = MemoryDevice::new(&[b"hello"]);
    assert_eq!(device.run(&mut engine.ring, "streams", b""), Ok(12), "{:?}", device.log);
    assert_eq!(device.run(&mut engine.ring, "count", b""), Ok(1));
}

#[test]
fn confined_exception_ends_engine() {
    if !has_interpreter() {
        return;
    }
    let zygote = zygote();
    for (method, cause) in [("raise", 1), ("exit", 1), ("leave", 7)] {
        let mut engine = start(&zygote, include_str!("functions/behaviours.py"), limits());
        let mut device = MemoryDevice::default();
        assert_eq!(engine.run(&mut device, &plain_call(method, b"")), None);
        assert_eq!(engine.wait().cause, EngineExitCause::Exited(cause), "{method}");
    }
}
