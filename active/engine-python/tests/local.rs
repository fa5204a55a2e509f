//! The engine without confinement.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sealstone_function_abi::{CallDescriptor, CallErrno};

use crate::confined_engine::plain_call;
use crate::support::{LocalEngine, MemoryDevice};
use crate::zygotes::{ENGINE, has_interpreter};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/functions").join(name).with_extension("py")
}

/// Runs a call that ends the process; returns its exit code.
fn run_to_exit(mut engine: LocalEngine, device: &mut MemoryDevice, call: &CallDescriptor<'_>) -> Option<i32> {
    engine.ring.begin_call(call).expect("a valid call");
    loop {
        assert_eq!(device.serve_next(&mut engine.ring), None, "the call returns");
        if let Some(status) = engine.process.try_wait().expect("wait") {
            assert_eq!(device.serve_next(&mut engine.ring), None, "the call returns");
            return status.code();
        }
    }
}

fn lines(device: &MemoryDevice) -> Vec<&str> {
    device.log.iter().map(|(_, line)| line.as_str()).collect()
}

#[test]
fn printed_text_stays_in_log_of_its_call() {
    if !has_interpreter() {
        return;
    }
    let mut engine = LocalEngine::start(ENGINE, &source("behaviours"));
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut engine.ring, "partial", b""), Ok(CallErrno::NoSpace.result()));
    assert!(lines(&device).contains(&"partial"), "{:?}", device.log);
    device.log.clear();
    assert_eq!(device.run(&mut engine.ring, "count", b""), Ok(1));
    assert_eq!(lines(&device), [""; 0]);
    assert!(engine.stop().success());
}

#[test]
fn every_call_works_from_python() {
    if !has_interpreter() {
        return;
    }
    let mut engine = LocalEngine::start(ENGINE, &source("every_call"));
    let mut device = MemoryDevice::new(&[b"hello", b""]);
    assert_eq!(device.run(&mut engine.ring, "every", b"a=1\0"), Ok(0), "{:?}", device.log);
    assert_eq!(device.objects[1].as_deref(), Some(&b"bcdef end"[..]));
    assert_eq!((&device.result[..], device.progress), (&b"all"[..], (1, 2)));
    assert_eq!(device.log, [(3, "checked".to_owned())]);
    assert_eq!(device.flushed, [0]);
    assert!(engine.stop().success());
}

#[test]
fn engine_serves_many_calls() {
    if !has_interpreter() {
        return;
    }
    let mut engine = LocalEngine::start(ENGINE, &source("behaviours"));
    let mut device = MemoryDevice::new(&[b"hello"]);
    for count in 1..=3 {
        assert_eq!(device.run(&mut engine.ring, "count", b""), Ok(count));
    }
    assert_eq!(device.run(&mut engine.ring, "print", b""), Ok(0));
    assert_eq!(lines(&device), ["imported", "one", "three", "two"]);
    for method in ["keep", "kept", "finalizer", "count"] {
        let status = device.run(&mut engine.ring, method, b"").expect("no violation");
        assert!((0..=4).contains(&status), "{method}: {status}, {:?}", device.log);
    }
    assert_eq!(device.run(&mut engine.ring, "streams", b""), Ok(12), "{:?}", device.log);
    assert_eq!(device.run(&mut engine.ring, "missing", b""), Ok(CallErrno::BadHandle.result()));
    assert!(engine.stop().success());
}

#[test]
fn cancelled_function_returns() {
    if !has_interpreter() {
        return;
    }
    let mut engine = LocalEngine::start(ENGINE, &source("behaviours"));
    let control = engine.ring.control();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        control.set_cancelled();
    });
    let status = MemoryDevice::default().run(&mut engine.ring, "wait", b"");
    assert_eq!(status, Ok(CallErrno::Cancelled.result()));
    canceller.join().expect("cancel");
    assert!(engine.stop().success());
}

#[test]
fn exception_ends_process_with_traceback() {
    if !has_interpreter() {
        return;
    }
    for (method, arguments, secret_arguments, code, last) in [
        ("raise", &b"key=hunter2\0"[..], false, 1, "ValueError: bad value hunter2"),
        ("raise", b"key=hunter2\0", true, 1, "ValueError (message omitted: the arguments are secret)"),
        ("raise", b"no argument\0", false, 1, "ValueError: argument 0 is not a new name=value string"),
        ("exit", b"", false, 1, "SystemExit: 0"),
        ("wrong", b"", false, 1, "TypeError: run returned float, not a status, bytes, str or None"),
        ("leave", b"", false, 7, "imported"),
    ] {
        let mut device = MemoryDevice::new(&[b"hello"]);
        let call = CallDescriptor { secret_arguments, ..plain_call(method, arguments) };
        let engine = LocalEngine::start(ENGINE, &source("behaviours"));
        assert_eq!(run_to_exit(engine, &mut device, &call), Some(code), "{method}");
        let log = lines(&device);
        assert_eq!(log.last(), Some(&last), "{log:?}");
        let shows_frame = log.iter().any(|line| line.contains("behaviours.py") && line.contains(", line "));
        assert!(shows_frame || matches!(method, "wrong" | "leave"), "{log:?}");
        assert!(!secret_arguments || !log.join("\n").contains("hunter2"), "{log:?}");
    }
}

#[test]
fn wrong_sources_are_refused() {
    if !has_interpreter() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (content, text) in [
        (&b"def run(osd, call:\n"[..], "SyntaxError"),
        (b"x = 1\n", "TypeError: the module defines no function run(osd, call)"),
        (b"import no_such_module\n", "ModuleNotFoundError"),
        (b"\xa7\r\r\n\0\0", "the code has zero bytes or is not UTF-8"),
        (b"import sealstone_function._load\n", "ModuleNotFoundError"),
        (b"raise SystemExit(0)\n", "SystemExit: 0"),
    ] {
        let path = folder.path().join("function.py");
        std::fs::write(&path, content).expect("written");
        let mut engine = LocalEngine::start(ENGINE, &path);
        let mut device = MemoryDevice::default();
        let status = device.run(&mut engine.ring, "", b"");
        assert_eq!(status, Ok(CallErrno::NotExecutable.result()), "{text}");
        assert!(lines(&device).iter().any(|line| line.contains(text)), "{:?}", device.log);
        assert!(engine.stop().success());
    }
}

#[test]
fn missing_interpreter_has_a_reason() {
    let runtime = |library: &str| {
        let mut engine = Command::new(ENGINE);
        let output = engine.arg("--runtime").env("SEALSTONE_PYTHON_LIBRARY", library).output();
        let output = output.expect("start the engine");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(runtime("/usr/lib/libpython2.7.so.1.0").contains("libpython3.N.so.1.0"));
    assert!(runtime("/no/lib/libpython3.11.so.1.0").contains("has no standard library"));
    let usage = Command::new(ENGINE).output().expect("start the engine");
    assert!(!usage.status.success() && usage.stderr.starts_with(b"usage: "));
}
