//! Long results of asynchronous jobs, and clients that are killed while they start jobs.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Instant;

use sealstone_tests::{Signal, System, run_with_input, text};
use serde_json::Value;

use crate::function_jobs::until;
use crate::function_runs::{jobs, store_text};

/// Bytes of a long result.
const LONG: usize = 1 << 20;

/// A function that waits until the first byte of object 0 is `g`, and returns 1 MiB.
const LONG_AFTER_GATE: &str = r#"#include "osd.h"
#include <string.h>
#include <time.h>
int64_t osd_main(const osd_call *call) {
    static char text[65536];
    const struct timespec pause = {0, 2000000};
    char first = 0;
    osd_progress(1, 2);
    while (first != 'g') {
        int64_t count = osd_read(0, 0, &first, 1);
        if (osd_cancelled()) return -OSD_ECANCELED;
        if (count < 0) return count;
        nanosleep(&pause, 0);
    }
    for (int part = 0; part < 16; part++) {
        memset(text, 'a' + part, sizeof text);
        int64_t added = osd_result(text, sizeof text);
        if (added < 0) return added;
    }
    return 0;
}
"#;

fn expected() -> Vec<u8> {
    (0..16).flat_map(|part| std::iter::repeat_n(b'a' + part, 65_536)).collect()
}

fn start(flags: &[&str], mds_flags: &[&str]) -> System {
    let system = System::start_with_mds(1, "2G", flags, mds_flags);
    store_text(&system, "long", LONG_AFTER_GATE);
    let short =
        "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { return osd_result(\"1\", 1); }\n";
    store_text(&system, "short", short);
    gate(&system, b"-");
    system
}

fn gate(system: &System, content: &[u8]) {
    run_with_input(system.command(&["put", "-", "/gate"]), content).ok();
}

/// Starts an asynchronous job; returns its id.
fn start_job(system: &System, function: &str) -> String {
    let started = system.run(&["--json", "run", function, "--async", "/gate"]).ok().json();
    jobs(&started)[0]["job"].as_str().expect("an id").to_owned()
}

fn status(system: &System, id: &str) -> Value {
    jobs(&system.run(&["--json", "job", "status", id]).ok().json())[0].clone()
}

/// Bytes that count in the quota of the administrator.
fn charged(system: &System) -> u64 {
    let shown = system.run(&["--json", "quota", "show", "--user", "admin"]).ok().json();
    shown["bytes"].as_u64().expect("a number")
}

#[test]
fn long_result_of_asynchronous_job_is_fetched() {
    let system = start(&[], &[]);
    gate(&system, b"g");
    let before = charged(&system);
    let id = start_job(&system, "long");
    system.run(&["job", "wait", &id]).ok();
    assert_eq!(status(&system, &id)["result_bytes"], LONG);
    assert!(system.run(&["job", "result", &id]).ok().stdout == expected());
    let (file, receipt) = (system.path("result"), system.path("receipt"));
    system.run(&["job", "result", &id, "--output", text(&file), "--receipt", text(&receipt)]).ok();
    assert!(std::fs::read(&file).expect("written") == expected(), "it can be fetched again");
    system.run(&["job", "verify", "--receipt", text(&receipt), "--result", text(&file)]).ok();
    system.run(&["job", "verify", &id]).ok();
    // A short result needs no object, and ends its reservation.
    let reserved = charged(&system);
    assert!(reserved > before, "{reserved}");
    let id = start_job(&system, "short");
    system.run(&["job", "wait", &id]).ok();
    assert_eq!(system.run(&["job", "result", &id]).ok().text(), "1");
    assert_eq!(charged(&system), reserved);
}

#[test]
fn cancelled_and_lost_jobs_expose_no_result() {
    let mut system = start(&[], &[]);
    let before = charged(&system);
    for is_lost in [false, true] {
        let id = start_job(&system, "long");
        until("the function runs", || status(&system, &id)["progress"]["done"] == 1);
        assert!(charged(&system) > before, "an object is reserved");
        let state = if is_lost {
            assert_eq!(system.end_osd(0, Signal::Kill), -1);
            system.start_osd(0);
            "lost"
        } else {
            system.run(&["job", "cancel", &id]).ok();
            "cancelled"
        };
        until("the job ends", || status(&system, &id)["state"] == state);
        gate(&system, b"g");
        let file = system.path("result");
        system.run(&["job", "result", &id, "--output", text(&file)]).fails(1).says(&[state]);
        assert!(std::fs::read(&file).map_or(true, |bytes| bytes.is_empty()), "{state}");
        assert_eq!(charged(&system), before, "the reservation has ended");
        gate(&system, b"-");
    }
}

/// Ids of the runs in the audit log of the device.
fn run_ids(system: &System) -> BTreeSet<String> {
    let log = std::fs::read_to_string(system.path("osd0").join("audit.jsonl")).expect("an audit log");
    let records = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    records.filter_map(|record| Some(record["job"].as_str()?.to_owned())).collect()
}

#[test]
fn killed_client_leaves_findable_jobs_only() {
    // Jobs that could outlive the credential for their result are refused.
    let wall = ["--function-wall-s-max", "10"];
    let system = start(&wall, &["--grant-s", "20", "--delegated-s-max", "20"]);
    system.run(&["mkdir", "/files"]).ok();
    for number in 0..30 {
        run_with_input(system.command(&["put", "-", &format!("/files/{number}")]), b"content").ok();
    }
    let before = charged(&system);
    let start_time = Instant::now();
    // The device refuses jobs above its limit for one user, so the command may fail.
    let _ = system.run(&["run", "short", "--async", "/files"]);
    let duration = start_time.elapsed();
    let started = run_ids(&system).len();
    let kill_client = |wait: &dyn Fn()| {
        let mut client = system.command(&["run", "short", "--async", "/files"]);
        let mut client =
            client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
        wait();
        client.kill().expect("it runs or has ended");
        client.wait().expect("it ends");
        until("no job runs", || {
            let listed = system.run(&["--json", "job", "ls"]).ok().json();
            jobs(&listed).iter().all(|job| job["state"] != "running" && job["state"] != "queued")
        });
    };
    (1..=12).for_each(|round| kill_client(&|| std::thread::sleep(duration * round / 12)));
    // Beside other work, all of these may be too early.
    let ran_before = run_ids(&system).len();
    kill_client(&|| until("a job of the client runs", || run_ids(&system).len() > ran_before));
    let ran = run_ids(&system);
    assert!(ran.len() > started, "killed clients started no job: {started}, {ran:?}");
    let listed = system.run(&["--json", "job", "ls"]).ok().json();
    let known: BTreeSet<String> =
        jobs(&listed).iter().filter_map(|job| Some(job["job"].as_str()?.to_owned())).collect();
    let lost: Vec<&String> = ran.difference(&known).collect();
    assert!(lost.is_empty(), "{lost:?} of {}", ran.len());
    // Reservations end by themselves, at most two lifetimes of a capability file after their start.
    until("all reservations end", || charged(&system) == before);
    system.run(&["check"]).ok();
}
