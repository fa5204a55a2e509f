//! The engine in the sandbox.

use sealstone_function_abi::CallDescriptor;
use sealstone_sandbox::EngineExitCause;

use crate::confined_engine::plain_call;
use crate::jars::jar;
use crate::support::MemoryDevice;
use crate::zygotes::{has_java, homes, limits, start, zygote, zygote_of};

#[test]
fn every_installation_runs_every_call() {
    if !has_java() {
        return;
    }
    for home in homes() {
        let zygote = zygote_of(Some(&home));
        let mut engine = start(&zygote, &jar("EveryCall"), limits());
        let mut device = MemoryDevice::new(&[b"hello", b""]);
        let status = engine.run_method(&mut device, "every", b"a=1\0");
        assert_eq!(status, 0, "{}: {:?}", home.display(), device.log);
        assert_eq!(device.result, b"all");
        let lines: Vec<_> = device.log.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(lines, ["checked", "lines"]);
        engine.ring.control().stop_engine();
        assert_eq!(engine.wait().cause, EngineExitCause::Exited(0), "{}", home.display());
    }
}

#[test]
fn confined_streams_and_threads_serve_calls() {
    if !has_java() {
        return;
    }
    let zygote = zygote();
    let mut engine = start(&zygote, &jar("Behaviours"), limits());
    let mut device = MemoryDevice::new(&[b"hello"]);
    for (method, status) in
        [("threads", 64 * 5), ("many-threads", 0), ("streams", 12), ("count", 1), ("count", 2)]
    {
        assert_eq!(engine.run_method(&mut device, method, b""), status, "{method}: {:?}", device.log);
    }
}

#[test]
fn exhausted_heap_is_status_and_frees_classes() {
    if !has_java() {
        return;
    }
    let zygote = zygote();
    let mut engine = start(&zygote, &jar("Behaviours"), limits());
    let mut device = MemoryDevice::default();
    assert_eq!(engine.run_method(&mut device, "count", b""), 1);
    for method in ["memory", "keep-memory", "memory"] {
        assert_eq!(engine.run_method(&mut device, method, b""), -12, "{method}: {:?}", device.log);
    }
    // Objects of a static field are freed with the class.
    for (method, status) in [("keep-memory", -12), ("half-memory", 0)] {
        assert_eq!(engine.run_method(&mut device, method, b""), status, "{method}: {:?}", device.log);
    }
    let says = |(_, line): &(_, String)| line == "java.lang.OutOfMemoryError: Java heap space";
    assert!(device.log.iter().any(says), "{:?}", device.log);
    // The class was loaded again.
    assert_eq!(engine.run_method(&mut device, "count", b""), 1);
}

#[test]
fn exceptions_and_exits_end_engine() {
    if !has_java() {
        return;
    }
    let zygote = zygote();
    for (method, code, says) in [
        ("raise", 1, "java.lang.IllegalStateException: bad value hunter2"),
        ("exit", 1, "the function ended the virtual machine by System.exit(0)"),
        ("halt", 1, "System.exit(7)"),
        ("stack", 1, "java.lang.StackOverflowError"),
    ] {
        let mut engine = start(&zygote, &jar("Behaviours"), limits());
        let mut device = MemoryDevice::default();
        assert_eq!(engine.run(&mut device, &plain_call(method, b"key=hunter2\0")), None, "{method}");
        assert_eq!(engine.wait().cause, EngineExitCause::Exited(code), "{method}");
        assert!(device.log.iter().any(|(_, line)| line.contains(says)), "{method}: {:?}", device.log);
    }
}

#[test]
fn shipped_examples_compute_their_results() {
    if !has_java() {
        return;
    }
    let zygote = zygote();
    let line = |text: &str| format!("{text:127}\n");
    let data: String =
        (0..20_000).map(|n| line(if n % 10 == 0 { "a needle here" } else { "plain hay" })).collect();
    for (class, arguments, result) in
        [("WordCount", &b""[..], "42000\n"), ("Grep", b"text=needle\0", "2000\n"), ("CopyObject", b"", "")]
    {
        let code = jar(&format!("io.sealstone.examples.{class}"));
        let mut engine = start(&zygote, &code, limits());
        let mut device = MemoryDevice::new(&[data.as_bytes(), b""]);
        if class != "CopyObject" {
            device.objects.pop();
        }
        let objects = device.descriptions();
        let call = CallDescriptor { objects: &objects, ..plain_call("", arguments) };
        assert_eq!(engine.run(&mut device, &call), Some(0), "{class}: {:?}", device.log);
        assert_eq!(String::from_utf8_lossy(&device.result), result, "{class}");
        if class == "CopyObject" {
            assert!(device.objects[0] == device.objects[1], "the copy differs");
        }
    }
}
