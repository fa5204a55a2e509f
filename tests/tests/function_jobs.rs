//! Jobs and function files: exit codes, records of jobs, and commands on several of them.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use sealstone_tests::{Signal, System, run_with_input, text};
use serde_json::Value;

use crate::function_runs::{jobs, store_text};
use crate::revocation::{add_user, other};

/// Longest wait for a state; generous, because tests share two cores.
const STATE_TIMEOUT: Duration = Duration::from_secs(120);

/// A function that returns `NAME` when the first byte of object 0 is `g`, or the error of a read.
/// If it may write, it writes `held` before.
const HOLD: &str = r#"#include "osd.h"
#include <time.h>
int64_t osd_main(const osd_call *call) {
    const struct timespec pause = {0, 2000000};
    char first = 0;
    osd_write(0, 1, "held", 4);
    osd_progress(1, 2);
    while (first != 'g') {
        int64_t count = osd_read(0, 0, &first, 1);
        if (osd_cancelled()) return -OSD_ECANCELED;
        if (count < 0) return count;
        nanosleep(&pause, 0);
    }
    osd_result("NAME\n", sizeof "NAME\n" - 1);
    return 0;
}
"#;

/// A device with the file `/gate`, a function `hold` that waits for it, a function `open` that
/// changes it to `g`, and a user bob.
pub(crate) struct HeldRun {
    pub(crate) system: System,
}

impl HeldRun {
    pub(crate) fn start(flags: &[&str], mds_flags: &[&str]) -> Self {
        let flags = [&["--metrics", "127.0.0.1:0"], flags].concat();
        let system = System::start_with_mds(1, "2G", &flags, mds_flags);
        let held = Self { system };
        held.close();
        held.store("first");
        store_text(
            &held.system,
            "open",
            "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { int64_t n = osd_write(0, 0, \"g\", 1); return n < 0 ? n : 0; }\n",
        );
        add_user(&held.system, "bob");
        held
    }

    /// Stores a version of the function `hold` that returns this name.
    pub(crate) fn store(&self, name: &str) {
        store_text(&self.system, "hold", &HOLD.replace("NAME", name));
    }

    /// Replaces the file, so that the function waits.
    pub(crate) fn close(&self) {
        run_with_input(self.system.command(&["put", "-", "/gate"]), b"-----").ok();
    }

    /// Lets running functions return.
    pub(crate) fn open(&self) {
        self.system.run(&["run", "open", "--update", "/gate"]).ok();
    }

    /// Starts the function in a client process of its own.
    pub(crate) fn spawn(&self, options: &[&str]) -> Child {
        let mut command = self.system.command(&[&["run", "hold", "/gate"], options].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    /// Starts an asynchronous job; returns its id when the function runs.
    pub(crate) fn start_job(&self, options: &[&str]) -> String {
        let run = [&["--json", "run", "hold", "--async", "/gate"], options].concat();
        let started = self.system.run(&run).ok().json();
        let id = jobs(&started)[0]["job"].as_str().expect("an id").to_owned();
        until("the function runs", || self.status(&id)["progress"]["done"] == 1);
        id
    }

    pub(crate) fn status(&self, id: &str) -> Value {
        jobs(&self.system.run(&["--json", "job", "status", id]).ok().json())[0].clone()
    }

    /// Sums the samples of a metric of the device that contain a text.
    pub(crate) fn metric(&self, name: &str, part: &str) -> f64 {
        let (status, page) = sealstone_tests::get(self.system.osd(0).field("metrics"), "/metrics");
        assert_eq!(status, 200);
        let samples = page.lines().filter(|line| line.starts_with(name) && line.contains(part));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    pub(crate) fn await_running(&self, count: u32) {
        let running = || self.metric("sealstone_function_jobs", "state=\"running\"");
        until("the jobs run", || running() == f64::from(count));
    }

    /// Checks that another user stores and reads a file.
    pub(crate) fn check_other_user(&self) {
        let content = vec![0x5A; 2_000_000];
        let mut put = self.system.command(&["put", "-", "/bobs"]);
        put.env("SEALSTONE_SESSION", self.system.path("bob.toml"));
        run_with_input(put, &content).ok();
        assert!(other(&self.system, "bob", &["cat", "/bobs"]).ok().stdout == content);
    }
}

/// Polls until a condition is true.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < STATE_TIMEOUT, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

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

#[test]
fn killed_device_reports_lost_job() {
    let mut held = HeldRun::start(&[], &[]);
    let id = held.start_job(&["--update", "--commit"]);
    held.check_other_user();
    let before = held.status(&id);
    assert_eq!((&before["state"], &before["bytes_written"]), (&"running".into(), &4.into()), "{before}");
    assert_eq!(held.system.end_osd(0, Signal::Kill), -1);
    held.system.start_osd(0);
    let after = held.status(&id);
    assert_eq!((&after["state"], &after["exit"]), (&"lost".into(), &"lost".into()), "{after}");
    held.system.run(&["job", "wait", &id]).fails(1).says(&[&id, "lost"]);
    held.system.run(&["job", "result", &id]).fails(1).says(&[&id, "lost"]);
    assert_eq!(held.system.run(&["cat", "/gate"]).ok().text(), "-----", "its output was staged");
    held.check_other_user();
    // A lost job uses no slot, and its output does not appear later.
    held.open();
    assert_eq!(held.system.run(&["run", "hold", "--update", "--commit", "/gate"]).ok().text(), "first\n");
    assert_eq!(held.system.run(&["cat", "/gate"]).ok().text(), "gheld");
}

#[test]
fn killed_client_cancels_synchronous_job_only() {
    let held = HeldRun::start(&[], &[]);
    let mut client = held.spawn(&[]);
    held.await_running(1);
    client.kill().expect("it runs");
    client.wait().expect("it ends");
    let ended = || held.metric("sealstone_function_jobs_ended_total", "reason=\"cancelled\"");
    until("the job is cancelled", || ended() == 1.0);
    held.await_running(0);

    let id = held.start_job(&[]);
    let mut client = held.system.command(&["job", "wait", &id]);
    let mut client = client.stdout(Stdio::null()).spawn().expect("the binary starts");
    held.check_other_user();
    client.kill().expect("it waits");
    client.wait().expect("it ends");
    assert_eq!(held.status(&id)["state"], "running");
    held.open();
    held.system.run(&["job", "wait", &id]).ok();
    assert_eq!(held.system.run(&["job", "result", &id]).ok().text(), "first\n");
    assert_eq!(ended(), 1.0, "only the synchronous job was cancelled");
}
