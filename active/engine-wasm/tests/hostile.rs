//! Modules that attack the engine or its host.

use std::time::Instant;

use sealstone_function_abi::CallErrno;

use crate::modules::{LocalEngine, encode, main_module};
use crate::support::MemoryDevice;

/// Exit code after a trap.
const EXIT_TRAP: i32 = 4;

/// Runs a module that the engine refuses; returns its line in the log.
fn refusal(module: &[u8]) -> String {
    let mut engine = LocalEngine::start(module);
    let mut device = MemoryDevice::default();
    let status = device.run(&mut engine.ring, "", b"").expect("no violation");
    assert!(
        status == CallErrno::NotExecutable.result() || status == CallErrno::NoMemory.result(),
        "{status}"
    );
    assert!(engine.stop().success());
    device.log.pop().expect("a line").1
}

/// Runs a module that traps; returns its line in the log.
fn trap(text: &str) -> String {
    let (mut log, status) = LocalEngine::with_text(text).run_to_end();
    assert_eq!(status.code(), Some(EXIT_TRAP), "{log:?}");
    log.pop().expect("a line")
}

#[test]
fn traps_end_process_with_their_reason() {
    for (body, reason) in [
        ("unreachable", "unreachable"),
        ("(i64.load (i32.const -16))", "out of bounds memory access"),
        ("(i64.load offset=4294967295 (i32.const -1))", "out of bounds memory access"),
        ("(i64.div_s (i64.const 1) (i64.const 0))", "divide by zero"),
        ("(i64.trunc_f64_s (f64.const nan))", "conversion to integer"),
        ("(call 0 (local.get $call))", "call stack exhausted"),
        (
            "(memory.fill (i32.const 0) (i32.const 1) (i32.const -1)) (i64.const 0)",
            "out of bounds memory access",
        ),
    ] {
        let line = trap(&main_module("", body));
        assert!(line.contains(reason) && line.contains("function 0"), "{body}: {line}");
    }
}

#[test]
fn indirect_calls_are_checked() {
    let items = "(type $other (func (result i32))) (table 2 funcref) (elem (i32.const 0) 0)";
    for (index, reason) in
        [(0, "indirect call type mismatch"), (1, "uninitialized element"), (9, "undefined element")]
    {
        let body = format!("(i64.extend_i32_u (call_indirect (type $other) (i32.const {index})))");
        let line = trap(&main_module(items, &body));
        assert!(line.contains(reason), "{index}: {line}");
    }
}

#[test]
fn trap_names_function_of_module() {
    let module = main_module("(func $deep (result i64) unreachable)", "(call $deep)");
    let line = trap(&module);
    assert!(line.contains("in deep (byte ") && line.contains("< function 1"), "{line}");
}

#[test]
fn addresses_outside_memory_are_refused_by_calls() {
    let imports = "(import \"osd\" \"osd_read\" (func $read (param i32 i64 i32 i32) (result i64)))
        (import \"osd\" \"osd_write\" (func $write (param i32 i64 i32 i32) (result i64)))
        (import \"osd\" \"osd_list\" (func $list (param i32 i64 i32 i32) (result i64)))
        (import \"osd\" \"osd_create\" (func $create (param i32 i32) (result i64)))
        (import \"osd\" \"osd_log\" (func $log (param i32 i32 i32) (result i64)))
        (import \"osd\" \"osd_reader_next\" (func $next (param i64 i32) (result i64)))";
    for call in [
        "(call $read (i32.const 0) (i64.const 0) (i32.const -8) (i32.const 16))",
        "(call $read (i32.const 0) (i64.const 0) (i32.const 16) (i32.const -1))",
        "(call $write (i32.const 0) (i64.const 0) (i32.const 0x7fffffff) (i32.const 1))",
        "(call $write (i32.const 0) (i64.const 0) (i32.const -1) (i32.const -1))",
        "(call $list (i32.const 0) (i64.const 0) (i32.const 8) (i32.const 0x20000001))",
        "(call $create (i32.const 0) (i32.const -4))",
        "(call $log (i32.const 1) (i32.const -4) (i32.const 100))",
        "(call $next (i64.const 0) (i32.const -2))",
    ] {
        let mut engine = LocalEngine::with_text(&main_module(imports, call));
        let mut device = MemoryDevice::new(&[b"hello"]);
        assert_eq!(device.run(&mut engine.ring, "", b""), Ok(CallErrno::Invalid.result()), "{call}");
        assert_eq!(device.objects, [Some(b"hello".to_vec())], "{call}");
        assert!(engine.stop().success());
    }
}

#[test]
fn foreign_imports_are_refused_by_name() {
    for import in [
        "(import \"wasi_snapshot_preview1\" \"fd_write\" (func (param i32 i32 i32 i32) (result i32)))",
        "(import \"env\" \"system\" (func (param i32) (result i32)))",
        "(import \"osd\" \"osd_shutdown\" (func))",
    ] {
        let line = refusal(&encode(&main_module(import, "(i64.const 0)")));
        let name = import.split('"').nth(3).expect("a name");
        assert!(line.contains(name) && line.contains("no call of the interface"), "{line}");
    }
}

#[test]
fn malformed_modules_are_refused() {
    assert!(refusal(b"#!/bin/sh\n").contains("not a WebAssembly file"));
    let valid = encode(&main_module("", "(i64.const 0)"));
    assert!(refusal(&valid[..valid.len() - 3]).contains("malformed module at byte"));
    // Passes the checks of sections, not those of the compiler.
    let mut invalid = valid.clone();
    let at = valid.windows(2).rposition(|pair| pair == [0x42, 0x00]).expect("the constant");
    invalid[at] = 0x41;
    assert!(refusal(&invalid).contains("type mismatch"), "{}", refusal(&invalid));
}

#[test]
fn huge_modules_are_refused_before_compilation() {
    let started = Instant::now();
    let functions = main_module(&"(func)".repeat(60_000), "(i64.const 0)");
    assert!(refusal(&encode(&functions)).contains("60001 functions, at most 50000"));
    let memory = "(module (memory (export \"memory\") 65536)
        (func (export \"osd_main\") (param i32) (result i64) (i64.const 0)))";
    assert!(refusal(&encode(memory)).contains("its memory has 4294967296 bytes at the start"));
    let table = main_module("(table 4000000000 funcref)", "(i64.const 0)");
    assert!(refusal(&encode(&table)).contains("a table of 4000000000 entries"));
    assert!(started.elapsed().as_secs() < 100);
}

#[test]
fn data_outside_memory_traps_at_start() {
    let module = main_module("(data (i32.const 0x7fffffff) \"x\")", "(i64.const 0)");
    assert!(trap(&module).contains("out of bounds memory access"));
}

#[test]
fn table_growth_is_limited() {
    let module = main_module(
        "(table $t 1 funcref)",
        "(i64.extend_i32_s (table.grow $t (ref.null func) (i32.const 0x7fffffff)))",
    );
    let mut engine = LocalEngine::with_text(&module);
    let mut device = MemoryDevice::default();
    let status = device.run(&mut engine.ring, "", b"").expect("no violation");
    // The growth fails in the function, or the engine has no instructions on references.
    let refused = status == CallErrno::NotExecutable.result();
    assert!(
        status == -1 || refused && device.log[0].1.contains("reference types"),
        "{status} {:?}",
        device.log
    );
    assert!(engine.stop().success());
}
