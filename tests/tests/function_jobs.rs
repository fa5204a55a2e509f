//! Jobs and function files: exit codes, records of jobs, and commands on several of them.

use sealstone_tests::{System, run_with_input, text};
use serde_json::Value;

use crate::function_runs::{jobs, store_text};

/// Starts a system with a file `/a` and the functions `same` and `crash`.
fn start() -> System {
    let system = System::start(1);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let main =
        |body: &str| format!("#include \"osd.h\"\nint64_t osd_main(const osd_call *call) {{ {body} }}\n");
    store_text(&system, "same", &main("osd_result(\"same\\n\", 5); return 0;"));
    store_text(&system, "crash", &main("*(volatile int *)0 = 1; return 0;"));
    system
}

/// Starts an asynchronous job; returns its id.
fn start_job(system: &System, function: &str) -> String {
    let started = system.run(&["--json", "run", function, "--async", "/a"]).ok().json();
    jobs(&started)[0]["job"].as_str().expect("an id").to_owned()
}

fn listed(system: &System) -> Vec<Value> {
    jobs(&system.run(&["--json", "job", "ls"]).ok().json()).to_vec()
}

#[test]
fn failed_job_fails_wait_and_result() {
    let system = start();
    let (good, bad) = (start_job(&system, "same"), start_job(&system, "crash"));
    system.run(&["job", "wait", &good]).ok();
    system.run(&["job", "wait", &bad]).fails(1).says(&["ended as failed", "trap", "job log"]);
    system.run(&["job", "wait", &bad, &good]).fails(1).says(&[&bad]);
    system.run(&["job", "status", &bad]).ok();
    let file = system.path("result");
    system.run(&["job", "result", &good, "--output", text(&file)]).ok();
    assert_eq!(std::fs::read(&file).expect("written"), b"same\n");
    system.run(&["job", "result", &bad, "--output", text(&file)]).fails(1).says(&["trap"]);
}

#[test]
fn job_commands_continue_after_unknown_job() {
    let system = start();
    let id = start_job(&system, "same");
    let status = system.run(&["--json", "job", "status", "0000", &id]);
    let value: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!((jobs(&value).len(), &value["failed_count"]), (1, &1.into()), "{value}");
    status.fails(1);
}

#[test]
fn started_and_failed_jobs_are_recorded() {
    let system = start();
    system.run(&["run", "same", "/a"]).ok();
    assert_eq!(listed(&system).len(), 0, "a job that ended well needs no record");
    system.run(&["run", "crash", "/a"]).fails(1);
    let id = start_job(&system, "same");
    let ids: Vec<Value> = listed(&system).iter().map(|job| job["job"].clone()).collect();
    assert!(ids.len() == 2 && ids.contains(&id.into()), "{ids:?}");
    // The devices forget the jobs of a function with it.
    system.run(&["fn", "rm", "same", "crash"]).ok();
    assert_eq!(listed(&system).len(), 0);
    assert_eq!(listed(&system).len(), 0);
}

#[test]
fn function_removal_continues_after_missing_one() {
    let system = start();
    let removed = system.run(&["--json", "fn", "rm", "same", "missing", "crash"]);
    let value: Value = serde_json::from_slice(&removed.stdout).expect("JSON");
    assert_eq!((&value["removed"], &value["failed_count"]), (&2.into(), &1.into()), "{value}");
    removed.fails(1);
    let listed = system.run(&["--json", "fn", "ls"]).ok().json();
    assert_eq!(listed["functions"], serde_json::json!([]));
}

#[test]
fn function_mode_without_owner_rights_is_refused() {
    let system = start();
    let module = system.path("same.so");
    for mode in ["644", "477"] {
        let put = ["fn", "put", text(&module), "new", "--engine", "c", "--mode", mode];
        system.run(&put).fails(2).says(&["mode", "700"]);
    }
    system.run(&["fn", "put", text(&module), "new", "--engine", "c", "--mode", "700"]).ok();
}
