//! Ranges that a C function clears, and its collections, through the real engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sealstone_osd::Permissions;
use sealstone_osd::capability::Range;
use sealstone_osd::function::{ExitReason, JobAction, JobState};
use sealstone_osd_device::{FunctionCall, FunctionCode, FunctionRunner as _, GrantedObject, JobCall};

use crate::functions::{ReservingRunner as _, TestService, build_module, call, reserved};
use crate::objects::{ALL, GrantedMemory};

/// Each method returns 0 or the error of its call.
const SOURCE: &str = r#"
#include "osd.h"
#include <string.h>
int64_t osd_main(const osd_call *call) {
    const char *m = osd_method(call);
    uint64_t number = 0;
    if (call->api_minor < 1) return 1;
    if (!strcmp(m, "clear")) return osd_clear(0, 2, 3);
    if (!strcmp(m, "clear-far")) return osd_clear(0, 1 << 20, 1);
    if (!strcmp(m, "clear-until")) {
        for (;;) { int64_t e = osd_clear(0, 0, 1); if (e < 0) return e; }
    }
    if (!strcmp(m, "make")) {
        int64_t made = osd_create_collection(0, &number);
        if (made < 0) return made;
        if (osd_add_member(made, 1) != 0 || osd_is_member(made, 1) != 1) return 2;
        if (osd_remove_collection(made, 0) != -OSD_ENOTEMPTY) return 3;
        if (osd_remove_member(made, 1) != 0 || osd_remove_member(made, 1) != -OSD_ENOENT) return 4;
        if (osd_add_member(made, 99) != -OSD_EBADF) return 5;
        return number != 0 ? osd_remove_collection(made, 0) : 6;
    }
    if (!strcmp(m, "add")) return osd_add_member(0, 1);
    if (!strcmp(m, "remove-member")) return osd_remove_member(0, 1);
    if (!strcmp(m, "check")) { int64_t is = osd_is_member(0, 1); return is < 0 ? is : 0; }
    if (!strcmp(m, "remove")) return osd_remove_collection(0, 1);
    if (!strcmp(m, "create")) { int64_t made = osd_create_collection(0, &number); return made < 0 ? made : 0; }
    if (!strcmp(m, "create-many")) {
        for (;;) { int64_t made = osd_create_collection(0, NULL); if (made < 0) return made; }
    }
    return -OSD_ENOENT;
}
"#;

/// Runs a method; returns exit reason and error.
struct CollectionRuns {
    test: TestService,
    code: Arc<[u8]>,
}

impl CollectionRuns {
    fn new() -> Self {
        Self { test: TestService::new(), code: build_module(SOURCE) }
    }

    fn call(&self, method: &str, timeout_ms: u32, objects: Vec<Arc<dyn GrantedObject>>) -> FunctionCall {
        let code = Some(FunctionCode { bytes: Arc::clone(&self.code), reservation: reserved() });
        let digest = *blake3::hash(&self.code).as_bytes();
        FunctionCall { code, digest, ..call(1, method, timeout_ms, objects) }
    }

    fn run(&self, method: &str, objects: Vec<Arc<dyn GrantedObject>>) -> i32 {
        let call = self.call(method, 30_000, objects);
        let header = self.test.service.reserve_and_run(call).unwrap().header;
        let expected = if header.error == 0 { ExitReason::Success } else { ExitReason::FunctionError };
        assert_eq!(header.exit, expected, "{method}");
        header.error
    }
}

#[test]
fn clear_needs_right_range_and_space() {
    let runs = CollectionRuns::new();
    let object = GrantedMemory::object(Permissions::WRITE, b"0123456789");
    assert_eq!(runs.run("clear", vec![object.clone()]), 0);
    assert_eq!(*object.bytes.lock(), b"01\0\0\x0056789");
    assert_eq!(runs.run("clear-far", vec![object.clone()]), -28, "ENOSPC");
    *object.range.lock() = Range { start: 3, length: 9 };
    assert_eq!(runs.run("clear", vec![object.clone()]), -13, "EACCES outside of the range");
    let reader = GrantedMemory::object(ALL.without(Permissions::WRITE), b"0123456789");
    assert_eq!(runs.run("clear", vec![reader.clone()]), -13);
    assert_eq!(*reader.bytes.lock(), b"0123456789");
    assert_eq!(runs.run("clear", Vec::new()), -9, "EBADF");
}

#[test]
fn staged_clear_appears_on_success() {
    let runs = CollectionRuns::new();
    let object = GrantedMemory::object(ALL, b"0123456789");
    let call = FunctionCall { commit_on_success: true, ..runs.call("clear", 30_000, vec![object.clone()]) };
    assert_eq!(runs.test.service.reserve_and_run(call).unwrap().header.error, 0);
    assert_eq!(*object.bytes.lock(), b"01\0\0\x0056789");
}

#[test]
fn revocation_stops_clears_of_running_function() {
    let runs = CollectionRuns::new();
    let object = GrantedMemory::object(Permissions::WRITE, b"0123456789");
    let started = runs.call("clear-until", 0, vec![object.clone()]);
    let (function, caller) = (started.function, started.caller.clone());
    let id = runs.test.service.reserve_and_run(started).unwrap().header.job;
    while object.bytes.lock()[0] != 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    *object.rights.lock() = Permissions::READ;
    let request =
        sealstone_osd::function::JobRequest { action: JobAction::Wait { timeout_ms: 20_000 }, job: id };
    let ended = runs.test.service.job(JobCall { function, request, inline_max: 0, caller }).unwrap().header;
    assert_eq!((ended.state, ended.error), (JobState::Failed, -13));
}

#[test]
fn collection_calls_need_their_rights() {
    let runs = CollectionRuns::new();
    let member = || GrantedMemory::object(ALL, b"member") as Arc<dyn GrantedObject>;
    let maker = GrantedMemory::collections();
    assert_eq!(runs.run("make", vec![maker.clone(), member()]), 0);
    assert!(maker.children.lock()[0].is_removed.load(Ordering::Relaxed));
    assert_eq!(runs.run("create-many", vec![maker.clone()]), -12, "all handles are in use");
    let rows = [
        ("create", Permissions::CREATE),
        ("add", Permissions::SET_ATTR),
        ("check", Permissions::READ),
        ("remove-member", Permissions::SET_ATTR | Permissions::READ),
        ("remove", Permissions::REMOVE),
    ];
    for (method, rights) in rows {
        let collection = GrantedMemory::collections();
        *collection.rights.lock() = ALL;
        assert_eq!(runs.run("add", vec![collection.clone(), member()]), 0);
        *collection.rights.lock() = ALL.without(rights);
        assert_eq!(runs.run(method, vec![collection.clone(), member()]), -13, "{method}");
        *collection.rights.lock() = rights;
        assert_eq!(runs.run(method, vec![collection.clone(), member()]), 0, "{method}");
    }
}
