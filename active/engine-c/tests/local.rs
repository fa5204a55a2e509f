//! The engine without confinement.

use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::Duration;

use sealstone_function_abi::{CallDescriptor, CallErrno};

use crate::functions;
use crate::support::{LocalEngine, MemoryDevice};

/// The engine program.
const ENGINE: &str = env!("CARGO_BIN_EXE_sealstone-engine-c");

fn with_function(name: &str, test: impl FnOnce(LocalEngine)) {
    let folder = tempfile::tempdir().expect("a folder");
    test(LocalEngine::start(ENGINE, &functions::build(name, folder.path())));
}

#[test]
fn every_call_works_from_c() {
    with_function("every_call", |mut engine| {
        let mut device = MemoryDevice::new(&[b"hello", b""]);
        assert_eq!(device.run(&mut engine.ring, "every", b"a=1"), Ok(0), "line of a failed check");
        assert_eq!(device.objects[1].as_deref(), Some(&b"bcdef end"[..]));
        assert_eq!(device.result, b"all");
        assert_eq!(device.log, [(3, "checked".to_owned())]);
        assert!(engine.stop().success());
    });
}

#[test]
fn start_serves_many_calls() {
    with_function("behaviours", |mut engine| {
        let mut device = MemoryDevice::new(&[b"hello"]);
        for count in 1..=3 {
            assert_eq!(device.run(&mut engine.ring, "count", b""), Ok(count));
        }
        assert_eq!(device.run(&mut engine.ring, "constructed", b""), Ok(1));
        assert_eq!(device.run(&mut engine.ring, "fail", b""), Ok(CallErrno::NoSpace.result()));
        assert_eq!(device.run(&mut engine.ring, "root", &[7; 100]), Ok(10));
        assert_eq!(device.run(&mut engine.ring, "streams", b""), Ok(0));
        assert_eq!(device.run(&mut engine.ring, "streams", b""), Ok(0));
        assert_eq!(device.run(&mut engine.ring, "unknown", b""), Ok(CallErrno::NotFound.result()));
        assert_eq!(device.log, [(3, "constructor".to_owned())]);
        assert!(engine.stop().success());
    });
}

#[test]
fn cancelled_function_returns() {
    with_function("behaviours", |mut engine| {
        let control = engine.ring.control();
        let canceller = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            control.set_cancelled();
        });
        let status = MemoryDevice::default().run(&mut engine.ring, "wait", b"");
        assert_eq!(status, Ok(CallErrno::Cancelled.result()));
        canceller.join().expect("cancel");
        assert!(engine.stop().success());
    });
}

#[test]
fn failing_process_leaves_ring_consistent() {
    for (method, signal, code) in
        [("abort", Some(6), None), ("fault", Some(11), None), ("leave", None, Some(7))]
    {
        with_function("behaviours", |mut engine| {
            let call = CallDescriptor { method, ..CallDescriptor::default() };
            engine.ring.begin_call(&call).expect("a valid call");
            // The constructor writes a line, and waits for its completion.
            let line = engine.ring.next_request(Duration::from_secs(10)).expect("no violation");
            engine.ring.complete(line.expect("a request").cookie, 0, 0);
            let status = engine.process.wait().expect("the engine ends");
            assert_eq!((status.signal(), status.code()), (signal, code), "{method}");
            assert_eq!(engine.ring.next_request(Duration::from_millis(20)), Ok(None));
        });
    }
}

#[test]
fn code_without_entry_is_refused() {
    with_function("no_entry", |mut engine| {
        let mut device = MemoryDevice::default();
        let status = device.run(&mut engine.ring, "", b"");
        assert_eq!(status, Ok(CallErrno::NotExecutable.result()));
        assert!(device.log[0].1.contains("neither osd_main nor start"), "{:?}", device.log);
        assert!(engine.stop().success());
    });
}

#[test]
fn file_without_code_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text.so");
    std::fs::write(&path, "#!/bin/sh\n").expect("write");
    let mut engine = LocalEngine::start(ENGINE, &path);
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut engine.ring, "", b""), Ok(CallErrno::NotExecutable.result()));
    assert!(device.log[0].1.contains("cannot load the function"), "{:?}", device.log);
    assert!(engine.stop().success());
}
