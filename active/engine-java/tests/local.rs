//! The engine without confinement: state between calls, the log, and reasons of refusals.

use std::process::Command;

use sealstone_function_abi::{CallDescriptor, CallErrno};

use crate::confined_engine::plain_call;
use crate::jars::{JarEntry, archive, classes, jar, manifest};
use crate::support::{LocalEngine, MemoryDevice};
use crate::zygotes::{ENGINE, has_java};

fn start(code: &[u8], folder: &tempfile::TempDir) -> LocalEngine {
    let path = folder.path().join("fn.jar");
    std::fs::write(&path, code).expect("written");
    LocalEngine::start(ENGINE, &path)
}

fn lines(device: &MemoryDevice) -> Vec<&str> {
    device.log.iter().map(|(_, line)| line.as_str()).collect()
}

/// Runs a call that ends the process; returns the log.
fn failed_call(code: &[u8], call: &CallDescriptor<'_>) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut engine = start(code, &folder);
    let mut device = MemoryDevice::default();
    engine.ring.begin_call(call).expect("a valid call");
    let mut ended = None;
    while ended.is_none() {
        assert_eq!(device.serve_next(&mut engine.ring), None, "the call returns");
        ended = engine.process.try_wait().expect("wait");
    }
    assert_eq!(device.serve_next(&mut engine.ring), None, "the call returns");
    assert_eq!(ended.and_then(|status| status.code()), Some(1));
    device.log.into_iter().map(|(_, line)| line).collect()
}

#[test]
fn state_and_printed_lines_follow_calls() {
    if !has_java() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut engine = start(&jar("Behaviours"), &folder);
    let mut device = MemoryDevice::new(&[b"hello"]);
    assert_eq!(device.run(&mut engine.ring, "print", b""), Ok(0));
    assert_eq!(lines(&device), ["loaded", "one", "two", "three"]);
    assert_eq!(device.run(&mut engine.ring, "missing", b""), Ok(-9));
    let says = "io.sealstone.function.OsdException: EBADF: the call has no object or stream of this number";
    assert_eq!(device.log[4], (1, says.into()));
    assert!(device.log[5].1.starts_with("  at Behaviours.run(Behaviours.java:"), "{:?}", device.log);
    assert_eq!(device.run(&mut engine.ring, "count", b""), Ok(1));
    assert_eq!(device.run(&mut engine.ring, "count", b""), Ok(2));
    let expected = classes().iter().find(|class| class.name == "Behaviours.class").expect("a class");
    assert_eq!(device.run(&mut engine.ring, "resource", b""), Ok(expected.content.len() as i64));
    assert_eq!(device.run(&mut engine.ring, "unknown", b""), Ok(-2));
    // Streams of an ended call are invalid; later calls use the same `EngineHost`.
    assert_eq!(device.run(&mut engine.ring, "keep", b""), Ok(0));
    assert_eq!(device.run(&mut engine.ring, "kept", b""), Ok(5), "{:?}", device.log);
    assert!(engine.stop().success());
}

#[test]
fn cancelled_function_sees_request() {
    if !has_java() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut engine = start(&jar("Behaviours"), &folder);
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut engine.ring, "count", b""), Ok(1));
    engine.ring.begin_call(&plain_call("wait", b"")).expect("a valid call");
    engine.ring.control().set_cancelled();
    assert_eq!(device.serve(&mut engine.ring), Ok(CallErrno::Cancelled.result()));
}

#[test]
fn trace_has_lines_and_hides_secrets() {
    if !has_java() {
        return;
    }
    let code = jar("Behaviours");
    let call = plain_call("raise", b"key=hunter2\0");
    let log = failed_call(&code, &call);
    assert_eq!(log[1], "java.lang.IllegalStateException: bad value hunter2");
    assert!(log[2].starts_with("  at ") && log[2].contains("Behaviours.java:"), "{log:?}");
    assert!(log.len() <= 26, "{log:?}");
    let log = failed_call(&code, &CallDescriptor { secret_arguments: true, ..call });
    let says = "java.lang.IllegalStateException (message omitted: the arguments are secret)";
    assert!(log[1] == says && !log.concat().contains("hunter2"), "{log:?}");
    let log = failed_call(&code, &plain_call("cause", b""));
    assert_eq!(log.last().map(String::as_str), Some("caused by java.lang.RuntimeException: inner"));
    // Exceptions of other threads are in the log, but do not end the call.
    let folder = tempfile::tempdir().expect("a folder");
    let mut engine = start(&jar("Behaviours"), &folder);
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut engine.ring, "thread-dies", b"key=hunter2\0"), Ok(0));
    assert!(lines(&device).iter().any(|line| line.contains("bad value hunter2")), "{:?}", device.log);
    let call = CallDescriptor { secret_arguments: true, ..plain_call("thread-dies", b"key=hunter3\0") };
    engine.ring.begin_call(&call).expect("a valid call");
    assert_eq!(device.serve(&mut engine.ring), Ok(0));
    assert!(!lines(&device).concat().contains("hunter3"), "{:?}", device.log);
}

#[test]
fn wrong_archives_are_refused_with_reasons() {
    if !has_java() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let valid = jar("Behaviours");
    let class = |name: &str| classes().iter().find(|class| class.name == name).expect("a class").clone();
    let broken = JarEntry::new("Broken.class", b"\xCA\xFE\xBA\xBE\0\0\0\x3Drubbish");
    let mut future = class("Behaviours.class");
    future.content[6..8].copy_from_slice(&[0, 99]);
    let mut renamed = class("Behaviours.class");
    renamed.name = "Other.class".into();
    let bomb: Vec<_> =
        (0..640).map(|n| JarEntry { length: 16 << 20, ..JarEntry::new(&format!("bomb{n}"), b"x") }).collect();
    let many = |count| (0..count).map(|n| JarEntry::new(&format!("{n}"), b"")).collect::<Vec<_>>();
    for (code, says) in [
        (b"\xCA\xFE\xBA\xBE".to_vec(), "it is not a JAR file"),
        (valid[..valid.len() / 2].to_vec(), "truncated JAR file"),
        (archive(&[class("Behaviours.class")]), "no META-INF/MANIFEST.MF"),
        (archive(&[manifest("Missing")]), "names the class Missing, which the JAR file does not contain"),
        (archive(&bomb), "more than 134217728 bytes together"),
        (archive(&many(1_000_000)), "JAR file of 33554433 bytes, at most 33554432"),
        (archive(&many(70_000)), "ZIP64 format or in several parts; a function has at most 16384 entries"),
        (archive(&many(16_385)), "16385 entries, at most 16384"),
        (archive(&[manifest("Broken"), broken]), "java.lang.ClassFormatError"),
        (archive(&[manifest("Behaviours"), future]), "java.lang.UnsupportedClassVersionError"),
        (
            archive(&[manifest("Other"), renamed]),
            "java.lang.NoClassDefFoundError: Other (wrong name: Behaviours)",
        ),
        (jar("io.sealstone.examples.Missing"), "which the JAR file does not contain"),
        (jar("EveryCall$Attempt"), "does not implement io.sealstone.function.OsdFunction"),
    ] {
        let mut engine = start(&code, &folder);
        let mut device = MemoryDevice::default();
        let status = device.run(&mut engine.ring, "every", b"");
        assert_eq!(status, Ok(CallErrno::NotExecutable.result()), "{says}: {:?}", device.log);
        assert!(lines(&device).iter().any(|line| line.contains(says)), "{says}: {:?}", device.log);
        assert!(engine.stop().success(), "{says}");
    }
}

#[test]
fn class_missing_at_run_ends_engine() {
    if !has_java() {
        return;
    }
    let class = classes().iter().find(|class| class.name == "EveryCall.class").expect("a class").clone();
    let call = CallDescriptor { timeout_ms: 1000, ..plain_call("every", b"a=1\0") };
    let log = failed_call(&archive(&[manifest("EveryCall"), class]), &call);
    assert!(log.iter().any(|line| line.contains("Exception") || line.contains("Error")), "{log:?}");
}

#[test]
fn missing_machine_has_a_reason() {
    let runtime = |home: &str| {
        let mut engine = Command::new(ENGINE);
        let output = engine.arg("--runtime").env("SEALSTONE_JAVA_HOME", home).output();
        let output = output.expect("start the engine");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(runtime("/no/such/folder").contains("is not the folder of a JDK or JRE"));
    assert!(runtime("/usr").contains("libjvm.so"));
    let usage = Command::new(ENGINE).output().expect("start the engine");
    assert!(!usage.status.success() && usage.stderr.starts_with(b"usage: "));
}
