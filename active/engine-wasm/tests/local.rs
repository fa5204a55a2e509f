//! The engine without confinement.

use std::thread;
use std::time::Duration;

use sealstone_function_abi::{CALLS, CallErrno};

use crate::modules::{EVERY_CALL, LocalEngine, main_module};
use crate::support::MemoryDevice;

/// Runs `osd_main` of a module once.
fn status_of(text: &str) -> i64 {
    let mut engine = LocalEngine::with_text(text);
    let mut device = MemoryDevice::new(&[b"hello"]);
    let status = device.run(&mut engine.ring, "", b"").expect("no violation");
    assert!(engine.stop().success());
    status
}

#[test]
fn every_call_works_from_module() {
    let mut engine = LocalEngine::with_text(EVERY_CALL);
    let mut device = MemoryDevice::new(&[b"hello", b""]);
    assert_eq!(device.run(&mut engine.ring, "every", b"a=1"), Ok(0), "number of a failed check");
    assert_eq!(device.objects[1].as_deref(), Some(&b"bcdef end"[..]));
    assert_eq!(device.result, b"all");
    assert_eq!(device.log, [(3, "checked".to_owned())]);
    assert!(engine.stop().success());
}

#[test]
fn every_call_is_used_by_test_module() {
    for row in CALLS {
        assert!(EVERY_CALL.contains(&format!("(call ${}", row.name)), "{}", row.name);
    }
}

#[test]
fn each_call_has_fresh_state() {
    let counter = main_module(
        "(global $count (mut i64) (i64.const 0))",
        "(i32.store (i32.const 16) (i32.add (i32.load (i32.const 16)) (i32.const 1)))
         (global.set $count (i64.add (global.get $count) (i64.const 1)))
         (i64.add (global.get $count) (i64.load32_u (i32.const 16)))",
    );
    let mut engine = LocalEngine::with_text(&counter);
    let mut device = MemoryDevice::default();
    for _ in 0..3 {
        assert_eq!(device.run(&mut engine.ring, "", b""), Ok(2));
    }
    assert!(engine.stop().success());
}

#[test]
fn start_and_initializer_run_in_order() {
    let module = "(module (import \"osd\" \"osd_log\" (func $log (param i32 i32 i32) (result i64)))
        (memory (export \"memory\") 1) (data (i32.const 8) \"first second\")
        (func $first (drop (call $log (i32.const 3) (i32.const 8) (i32.const 5))))
        (start $first)
        (func (export \"_initialize\") (drop (call $log (i32.const 3) (i32.const 14) (i32.const 6))))
        (func (export \"start\") (param i32) (result i64) (i64.const -28)))";
    let mut engine = LocalEngine::with_text(module);
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut engine.ring, "", b""), Ok(CallErrno::NoSpace.result()));
    assert_eq!(device.log, [(3, "first".to_owned()), (3, "second".to_owned())]);
    assert!(engine.stop().success());
}

#[test]
fn cancelled_function_returns() {
    let module = main_module(
        "(import \"osd\" \"osd_cancelled\" (func $cancelled (result i32)))",
        "(loop $again (br_if $again (i32.eqz (call $cancelled)))) (i64.const -125)",
    );
    let mut engine = LocalEngine::with_text(&module);
    let control = engine.ring.control();
    let canceller = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        control.set_cancelled();
    });
    let status = MemoryDevice::default().run(&mut engine.ring, "", b"");
    assert_eq!(status, Ok(CallErrno::Cancelled.result()));
    canceller.join().expect("cancel");
    assert!(engine.stop().success());
}

#[test]
fn growth_beyond_limit_fails_in_function() {
    // Returns the pages of the memory after the last successful step.
    let module = main_module(
        "",
        "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
         (i64.extend_i32_u (memory.size))",
    );
    // 192 MiB of the default of 256 MiB.
    assert_eq!(status_of(&module), 192 << 4);
}

#[test]
fn streams_are_limited_and_closed() {
    let module = main_module(
        "(import \"osd\" \"osd_reader_open\" (func $open (param i32 i64 i64) (result i64)))",
        "(local $count i64) (local $status i64)
         (loop $again
           (local.set $status (call $open (i32.const 0) (i64.const 0) (i64.const -1)))
           (local.set $count (i64.add (local.get $count) (i64.const 1)))
           (br_if $again (i64.ge_s (local.get $status) (i64.const 0))))
         (local.get $count)",
    );
    let mut engine = LocalEngine::with_text(&module);
    let mut device = MemoryDevice::new(&[b"hello"]);
    // The smallest heap has buffers for two streams; the third one fails, in each call.
    assert_eq!(device.run(&mut engine.ring, "", b""), Ok(3));
    assert_eq!(device.run(&mut engine.ring, "", b""), Ok(3));
    assert!(engine.stop().success());
}

#[test]
fn stream_without_memory_fails() {
    let module = "(module (import \"osd\" \"osd_reader_open\" (func $open (param i32 i64 i64) (result i64)))
        (memory (export \"memory\") 1 3)
        (func (export \"osd_main\") (param i32) (result i64)
          (call $open (i32.const 0) (i64.const 0) (i64.const -1))))";
    assert_eq!(status_of(module), CallErrno::NoMemory.result());
}
