//! Functions that run in the real engine of C functions, on devices that the real binary serves.

use std::path::{Path, PathBuf};
use std::process::Command;

use sealstone_tests::{Daemon, Signal, System, command, run, run_with_input, text};
use serde_json::Value;

use crate::function_jobs::{HeldRun, until};

/// Sources of the C interface and of the template of a project.
fn sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../active").join(name)
}

/// Builds a module with the C compiler of the machine.
pub(crate) fn build_module(module: &Path, source: &Path) {
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o", text(module)])
        .arg(source)
        .arg("-I")
        .arg(sources("engine-c/include"))
        .status()
        .expect("cc starts");
    assert!(built.success(), "{}: {built}", module.display());
}

/// Builds a module, and stores it as a function.
fn store_module(system: &System, name: &str, source: &Path) {
    store_module_with(system, name, source, &[]);
}

fn store_module_with(system: &System, name: &str, source: &Path, options: &[&str]) {
    let module = system.path(&format!("{name}.so"));
    build_module(&module, source);
    let put = ["fn", "put", text(&module), name, "--engine", "c", "--api", "1.0"];
    system.run(&[&put, options].concat()).ok();
}

pub(crate) fn store_text(system: &System, name: &str, source: &str) {
    let path = system.path(&format!("{name}.c"));
    std::fs::write(&path, source).expect("written");
    store_module(system, name, &path);
}

pub(crate) fn jobs(run: &Value) -> &[Value] {
    run["jobs"].as_array().expect("a list of jobs")
}

#[test]
fn c_function_reads_files_and_returns_results() {
    let system = System::start(2);
    store_module(&system, "longest", &sources("functions/templates/c/function.c"));
    for (path, content) in [("/a", "one\nthree\n"), ("/b", "a line of twenty byt\n\n")] {
        run_with_input(system.command(&["put", "-", path]), content.as_bytes()).ok();
    }
    let run = system.run(&["--json", "run", "longest", "/a", "/b"]).ok().json();
    assert_eq!(jobs(&run).len(), 2, "{run}");
    for job in jobs(&run) {
        let expected = if job["files"][0]["path"] == "/a" { 5 } else { 20 };
        assert_eq!(job["exit"], "success", "{run}");
        assert_eq!(job["result"], format!("{{\"object\":0,\"longest\":{expected}}}\n"), "{run}");
    }
    // A file that does not exist has no job, and does not stop that of the other one.
    let run = system.run(&["--json", "run", "longest", "/a", "/missing"]);
    let value: Value = serde_json::from_slice(&run.stdout).expect("JSON");
    assert_eq!((jobs(&value).len(), &value["failed_count"]), (1, &1.into()), "{value}");
    run.fails(1).says(&["/missing"]);
    system.run(&["run", "longest", "/missing"]).fails(4).says(&["/missing"]);
}

#[test]
fn cpp_function_with_static_library_runs() {
    let system = System::start(1);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let source = system.path("words.cpp");
    let text_of_source = r#"#include "osd.h"
#include <cmath>
#include <map>
#include <string>
extern "C" int64_t osd_main(const osd_call *call) {
    std::map<std::string, int> words;
    words["root"] = (int)std::sqrt((double)call->object_count + 8);
    try { throw std::string("x"); } catch (const std::string &) { words["caught"] = 1; }
    std::string out = std::to_string(words["root"] + words["caught"]);
    return osd_result(out.data(), out.size());
}
"#;
    std::fs::write(&source, text_of_source).expect("written");
    let module = system.path("words.so");
    let built = Command::new("c++")
        .args(["-shared", "-fPIC", "-O2", "-static-libstdc++", "-static-libgcc", "-o", text(&module)])
        .arg(&source)
        .arg("-I")
        .arg(sources("engine-c/include"))
        .status()
        .expect("c++ starts");
    assert!(built.success(), "{built}");
    system.run(&["fn", "put", text(&module), "words", "--engine", "c"]).ok();
    assert_eq!(system.run(&["run", "words", "/a"]).ok().text(), "4");
}

#[test]
fn moved_function_keeps_its_description() {
    let system = System::start(2);
    let source = sources("functions/templates/c/function.c");
    store_module_with(&system, "longest", &source, &["--no-copies"]);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\nthree\n").ok();
    let shown = || system.run(&["--json", "fn", "show", "longest"]).ok().json();
    let before = shown();
    let from = before["copies"][0]["device"].as_str().expect("a name").to_owned();
    system.run(&["osd", "drain", &from, "--wait", "120"]).ok();
    let after = shown();
    assert_ne!(after["copies"], before["copies"], "{after}");
    for key in ["engine", "api", "digest"] {
        assert_eq!(after[key], before[key], "{after}");
    }
    let run = system.run(&["--json", "run", "longest", "/a"]).ok().json();
    assert_eq!(jobs(&run)[0]["exit"], "success", "{run}");
}

#[test]
fn new_c_project_builds_and_runs() {
    let system = System::start(1);
    let project = system.path("longest");
    let created = system.run(&["--json", "fn", "new", "--lang", "c", text(&project)]).ok().json();
    assert_eq!((&created["function"], &created["language"]), (&"longest".into(), &"c".into()), "{created}");
    let built = Command::new("make").args(["longest.so", "longest-local"]).current_dir(&project).output();
    assert!(built.expect("make starts").status.success());
    std::fs::write(project.join("a.txt"), "one\nthree\n").expect("written");
    let local = Command::new("./longest-local").arg("a.txt").current_dir(&project).output();
    let result = local.expect("it starts").stdout;
    assert_eq!(text_of(&result), "{\"object\":0,\"longest\":5}\n");
    // The device computes the same.
    system.run(&["fn", "put", text(&project.join("longest.so")), "longest", "--engine", "c"]).ok();
    system.run(&["put", text(&project.join("a.txt")), "/a"]).ok();
    assert!(system.run(&["run", "longest", "/a"]).ok().stdout == result);
}

#[test]
fn new_project_refuses_names_and_existing_files() {
    let temporary = tempfile::tempdir().expect("temporary folder");
    let folder = temporary.path().join("count");
    let sdk = sources("fn");
    let new = ["fn", "new", text(&folder), "--lang"];
    run(&[&new[..], &["rust", "--sdk", text(&sdk)]].concat()).ok();
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("written");
    assert!(manifest.contains("name = \"count\"") && manifest.contains("path = \"/"), "{manifest}");
    run(&[&new[..], &["rust"]].concat()).fails(1).says(&["Cargo.toml"]);
    run(&[&new[..], &["c", "--name", "Count"]].concat()).fails(2).says(&["a-z", "--name"]);
    run(&[&new[..], &["c", "--sdk", text(&sdk)]].concat()).fails(2).says(&["--lang rust"]);
    assert!(!folder.join("osd.h").exists());
}

fn text_of(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn asynchronous_job_has_a_verifiable_receipt() {
    let system = System::start(1);
    store_module(&system, "longest", &sources("functions/templates/c/function.c"));
    run_with_input(system.command(&["put", "-", "/a"]), b"one\nthree\n").ok();
    let started = system.run(&["--json", "run", "longest", "--async", "/a"]).ok().json();
    let id = jobs(&started)[0]["job"].as_str().expect("an id").to_owned();
    system.run(&["job", "wait", &id]).ok();
    let (result, receipt) = (system.path("result.json"), system.path("receipt"));
    system.run(&["job", "result", &id, "--output", text(&result), "--receipt", text(&receipt)]).ok();
    assert_eq!(std::fs::read(&result).expect("written"), b"{\"object\":0,\"longest\":5}\n");
    let verify = ["job", "verify", "--receipt", text(&receipt), "--result", text(&result)];
    let verified = system.run(&[&["--json"], &verify[..]].concat()).ok().json();
    let input = &verified["inputs"][0];
    assert_eq!(
        (&input["length"], &input["unchanged"], input["digest"].as_str()),
        (&10.into(), &true.into(), Some("49c39e18c41ecea10775915bd5725916abad52b2fac31593c7e59a7a97ab8e25")),
        "{verified}"
    );
    // Any user whom the metadata server knows.
    crate::revocation::add_user(&system, "bob");
    crate::revocation::other(&system, "bob", &verify).ok();
    std::fs::write(&result, "{\"object\":0,\"longest\":6}\n").expect("written");
    system.run(&verify).fails(1).says(&["result"]);
    let mut forged = std::fs::read(&receipt).expect("written");
    if let Some(last) = forged.last_mut() {
        *last ^= 1;
    }
    std::fs::write(&receipt, forged).expect("written");
    system.run(&["job", "verify", "--receipt", text(&receipt)]).fails(1).says(&["receipt"]);
}

#[test]
fn run_keeps_verifiable_receipts() {
    let system = System::start(1);
    store_module(&system, "longest", &sources("functions/templates/c/function.c"));
    let (local, folder) = (system.path("input"), system.path("receipts"));
    // Longer than inputs whose digests need no request.
    std::fs::write(&local, "four\n".repeat(100_000)).expect("written");
    system.run(&["put", text(&local), "/a"]).ok();
    let ran = system.run(&["--json", "run", "longest", "--receipts", text(&folder), "/a"]).ok().json();
    let receipt = jobs(&ran)[0]["receipt"].as_str().expect("a path").to_owned();
    let result = receipt.replace(".receipt", ".result");
    assert_eq!(std::fs::read(&result).expect("written"), b"{\"object\":0,\"longest\":4}\n");
    let verify = ["job", "verify", "--receipt", &receipt, "--result", &result, "--input", text(&local)];
    let verified = system.run(&[&["--json"], &verify[..]].concat()).ok().json();
    assert!(verified["inputs"][0]["digest"].is_string(), "{verified}");
    std::fs::write(&local, "four\n".repeat(99_999)).expect("written");
    system.run(&verify).fails(1).says(&["states no input"]);
    // Failed jobs have receipts too.
    store_text(
        &system,
        "fails",
        "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { return -5; }\n",
    );
    let failed = system.run(&["--json", "run", "fails", "--receipts", text(&folder), "/a"]).fails(1);
    let failed: Value = serde_json::from_slice(&failed.stdout).expect("JSON");
    let receipt = jobs(&failed)[0]["receipt"].as_str().expect("a path").to_owned();
    let verified = system.run(&["--json", "job", "verify", "--receipt", &receipt]).ok().json();
    assert_eq!(
        (&verified["exit"], &verified["code"]),
        (&"function_error".into(), &(-5).into()),
        "{verified}"
    );
    assert_eq!(system.run(&["run", "fails", "--receipts", text(&folder), "--async", "/a"]).code, 2);
    // A folder that cannot be created leaves the output of an earlier run.
    let (output, below) = (system.path("output"), local.join("below"));
    std::fs::write(&output, "earlier").expect("written");
    let refused = ["run", "longest", "--receipts", text(&below), "--output", text(&output), "/a"];
    system.run(&refused).fails(1).says(&["not a directory"]);
    assert_eq!(std::fs::read(&output).expect("a file"), b"earlier");
}

#[test]
fn function_of_newer_api_runs_without_range() {
    let system = System::start(1);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    store_text(
        &system,
        "clears",
        "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { return osd_clear(0, 0, 2); }\n",
    );
    let module = system.path("clears.so");
    let put = |api| system.run(&["fn", "put", text(&module), "clears", "--engine", "c", "--api", api]).ok();
    put("1.1");
    system.run(&["run", "clears", "--update", "/a"]).ok();
    assert_eq!(system.run(&["cat", "/a"]).ok().stdout, b"\0\0e\n");
    put("1.9");
    system.run(&["run", "clears", "--update", "/a"]).fails(1).says(&["API version", "fn engines"]);
}

#[test]
fn failing_functions_name_their_exit_reason() {
    let system = System::start(1);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let main =
        |body: &str| format!("#include \"osd.h\"\nint64_t osd_main(const osd_call *call) {{ {body} }}\n");
    store_text(&system, "loop", &main("for (;;) __asm__ volatile(\"\");"));
    store_text(&system, "crash", &main("*(volatile int *)0 = 1; return 0;"));
    store_text(&system, "foreign", &main("char byte; return osd_read(7, 0, &byte, 1) == -9 ? 0 : 1;"));
    let reason = |arguments: &[&str]| {
        let failed = system.run(&[&["--json", "run"], arguments].concat());
        let run: Value = serde_json::from_slice(&failed.stdout).expect("JSON");
        jobs(&run)[0]["exit"].as_str().expect("a reason").to_owned()
    };
    assert_eq!(reason(&["loop", "/a", "--timeout", "2s"]), "wall_time");
    assert_eq!(reason(&["crash", "/a"]), "trap");
    // The device still runs others, and a handle that was not granted does not exist.
    assert_eq!(reason(&["foreign", "/a"]), "success");
}

#[test]
fn policy_refuses_unlisted_and_unsigned_functions() {
    let system = System::start_with_mds(2, "1G", &[], &["--file-partitions", "3"]);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let main =
        "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { return osd_result(\"1\", 1); }\n";
    store_text(&system, "good", main);
    store_text(&system, "other", &main.replace("\"1\"", "\"2\""));
    let refused = |function: &str| {
        system.run(&["run", function, "/a"]).fails(3).says(&["policy of the partition"]);
    };
    let shown = system.run(&["--json", "fn", "policy"]).ok().json();
    assert_eq!(shown["devices"].as_array().map(Vec::len), Some(6), "{shown}");
    assert_eq!(
        (&shown["devices"][0]["policy"], &shown["partitions"]),
        (&"any".into(), &serde_json::json!([0x10000, 0x10001, 0x10002])),
        "{shown}"
    );
    system.run(&["fn", "policy", "--set", "listed", "--function", "good"]).ok();
    let one = system.run(&["--json", "fn", "policy", "--partition", "0x10002"]).ok().json();
    let of_one = (&one["devices"][1]["partition"], &one["devices"][1]["policy"]);
    assert_eq!(of_one, (&0x10002.into(), &"listed".into()), "{one}");
    system.run(&["run", "good", "/a"]).ok();
    refused("other");
    // The device that has the file refused it.
    let ran = system.run(&["--json", "run", "good", "/a"]).ok().json();
    let device = jobs(&ran)[0]["device"].as_str().expect("a name").to_owned();
    let log = system.path(&device).join("audit.jsonl");
    crate::audit::find(&log, "the refusal", |record| record.to_string().contains("function_policy"));

    let key = system.path("publisher.key");
    std::fs::write(&key, [7; 32]).expect("written");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, private).expect("private");
    let module = system.path("other.so");
    let put = ["--json", "fn", "put", text(&module), "other", "--engine", "c", "--sign", text(&key)];
    let signed = system.run(&put).ok().json();
    let public = signed["publisher_key"].as_str().expect("a key").to_owned();
    let shown = system.run(&["--json", "fn", "policy", "--set", "signed", "--key", &public]).ok().json();
    assert_eq!(shown["devices"][1]["keys"][0], public.as_str(), "{shown}");
    assert_eq!(shown["devices"][1]["digests"], serde_json::json!([]), "the list was replaced");
    system.run(&["run", "other", "/a"]).ok();
    refused("good");
    system.run(&["fn", "policy", "--set", "any"]).ok();
    system.run(&["run", "good", "/a"]).ok();
    system.run(&["fn", "policy", "--set", "listed"]).fails(2).says(&["--function"]);
    system.run(&["--json", "fn", "policy", "--partition", "1"]).fails(4);
}

/// A function with a method for each case of a local run.
const LOCAL_SOURCE: &str = r#"
#include "osd.h"
#include <string.h>
#include <unistd.h>
int64_t osd_main(const osd_call *call) {
    const char *method = osd_method(call);
    static char buffer[200000];
    if (!strcmp(method, "crash")) { *(volatile int *)0 = 1; return 0; }
    if (!strcmp(method, "loop")) { for (;;) __asm__ volatile(""); }
    if (!strcmp(method, "escape")) return fork() < 0 ? -1 : 0;
    if (!strcmp(method, "large")) { memset(buffer, 'x', sizeof buffer); return osd_result(buffer, sizeof buffer); }
    if (!strcmp(method, "write")) { int64_t e = osd_write(0, 0, "CHANGED", 7); return e < 0 ? e : 0; }
    if (!strcmp(method, "write-fail")) { osd_write(0, 0, "CHANGED", 7); return 7; }
    osd_log(OSD_LOG_WARNING, "a line", 6);
    for (uint32_t object = 0; object < call->object_count; object++) {
        int64_t length = osd_read(object, 0, buffer, sizeof buffer);
        if (length < 0) return length;
        osd_result(buffer, (size_t)length);
    }
    return osd_result(osd_arguments(call), call->arguments_length);
}
"#;

#[test]
fn local_test_runs_function_in_sandbox() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("fn.c"), LOCAL_SOURCE).expect("written");
    build_module(&path("fn.so"), &path("fn.c"));
    let (module, a, b) = (path("fn.so"), path("a"), path("b"));
    std::fs::write(&a, "one").expect("written");
    std::fs::write(&b, "two").expect("written");
    let (module, a, b) = (text(&module), text(&a), text(&b));
    let test = |arguments: &[&str]| run(&[&["--json", "fn", "test", module], arguments].concat());

    let ran = run(&["fn", "test", module, a, b, "--arg", "k=v"]).ok();
    assert_eq!(ran.stdout, b"onek=v\0twok=v\0");
    ran.says(&["warning: a line", "done: success", "CPU time", "memory"]);
    let ran = test(&[a, b, "--together"]).ok().json();
    let job = &jobs(&ran)[0];
    assert_eq!((&job["result"], &job["log"]), (&"onetwo".into(), &"warning: a line\n".into()), "{ran}");
    assert_eq!((&job["bytes_read"], &ran["engine"]), (&6.into(), &"c".into()), "{ran}");
    assert!(job["peak_memory"].as_u64().expect("bytes") > 0, "{ran}");
    assert_eq!(test(&[]).ok().json()["jobs"][0]["result"], "", "no objects");

    let large = path("large");
    test(&[a, "--method", "large", "--output", text(&large)]).ok();
    assert_eq!(std::fs::read(&large).expect("written"), vec![b'x'; 200_000]);
    let exit = |arguments: &[&str]| {
        let failed = test(arguments);
        let ran: Value = serde_json::from_slice(&failed.stdout).expect("JSON");
        failed.fails(1);
        let job = &jobs(&ran)[0];
        (job["exit"].as_str().expect("a reason").to_owned(), job["code"].as_i64().expect("a code"))
    };
    assert_eq!(exit(&[a, "--method", "crash"]), ("trap".to_owned(), 11));
    assert_eq!(exit(&[a, "--method", "loop", "--timeout", "500ms"]), ("wall_time".to_owned(), 0));
    assert_eq!(exit(&[a, "--method", "escape"]), ("trap".to_owned(), 31), "SIGSYS");
    assert_eq!(exit(&[a, "--method", "write"]), ("function_error".to_owned(), -13), "no --update");
    let staged = [a, "--method", "write-fail", "--update", "--commit"];
    assert_eq!(exit(&staged), ("function_error".to_owned(), 7));
    assert_eq!(std::fs::read(a).expect("kept"), b"one");
    test(&[a, "--method", "write", "--update"]).ok();
    assert_eq!(std::fs::read(a).expect("kept"), b"CHANGED");

    let several = test(&[a, "/missing", b]);
    let ran: Value = serde_json::from_slice(&several.stdout).expect("JSON");
    assert_eq!((jobs(&ran).len(), &ran["failed_count"]), (2, &1.into()), "{ran}");
    several.fails(1);
    test(&["/missing"]).fails(4).says(&["/missing"]);
    run(&["fn", "test", a]).fails(2).says(&["--engine"]);
    let empty = path("empty");
    std::fs::create_dir(&empty).expect("created");
    test(&[a, "--engines", text(&empty)]).fails(1).says(&["sealstone-engine-c", "make engines"]);
}

#[test]
fn changed_function_finishes_with_old_code() {
    let held = HeldRun::start(&[], &[]);
    let output = |client: std::process::Child| {
        let done = client.wait_with_output().expect("it ends");
        let printed = text_of(&done.stderr).to_owned();
        assert!(done.status.success(), "{printed}");
        text_of(&done.stdout).to_owned()
    };
    let overwritten = held.spawn(&[]);
    held.await_running(1);
    held.store("second");
    held.check_other_user();
    held.open();
    assert_eq!(output(overwritten), "first\n");
    assert_eq!(held.system.run(&["run", "hold", "/gate"]).ok().text(), "second\n");

    held.close();
    let removed = held.spawn(&[]);
    held.await_running(1);
    held.system.run(&["fn", "rm", "hold"]).ok();
    held.system.run(&["run", "hold", "/gate"]).fails(4).says(&["hold", "fn ls"]);
    held.check_other_user();
    held.open();
    assert_eq!(output(removed), "second\n");
}

#[test]
fn revoked_objects_stop_function_at_next_call() {
    let held = HeldRun::start(&[], &[]);
    for revoked in ["/gate", "/.functions/hold"] {
        let id = held.start_job(&[]);
        held.system.run(&["revoke", "--object", revoked]).ok();
        held.system.run(&["job", "wait", &id]).fails(1).says(&["function-error", "code -13"]);
        assert_eq!(held.status(&id)["state"], "failed", "{revoked}");
        held.check_other_user();
    }
    // The write that each of them tries first was not granted either.
    assert_eq!(held.metric("sealstone_function_denials_total", ""), 4.0);
    held.open();
    assert_eq!(held.system.run(&["run", "hold", "/gate"]).ok().text(), "first\n");
}

#[test]
fn expired_credential_stops_function() {
    let held = HeldRun::start(&[], &["--grant-s", "5"]);
    let id = held.start_job(&[]);
    until("the credential expires", || held.status(&id)["state"] != "running");
    let status = held.status(&id);
    assert_eq!((&status["exit"], &status["code"]), (&"function_error".into(), &(-13).into()), "{status}");
    held.check_other_user();
    held.open();
    assert_eq!(held.system.run(&["run", "hold", "/gate"]).ok().text(), "first\n");
}

/// Writes `x` to the objects with odd handles, and returns the number of objects and the length of
/// the arguments.
const PAIRS: &str = r#"#include "osd.h"
#include <stdio.h>
int64_t osd_main(const osd_call *call) {
    char text[64];
    for (uint32_t object = 1; object < call->object_count; object += 2) {
        int64_t written = osd_write(object, 0, "x", 1);
        if (written < 0) return written;
    }
    int length = snprintf(text, sizeof text, "%u %u\n", call->object_count, (unsigned)call->arguments_length);
    return osd_result(text, (size_t)length) < 0;
}
"#;

#[test]
fn limits_of_call_are_refused_by_name() {
    let system = System::start(1);
    store_text(&system, "pairs", PAIRS);
    let folder = system.path("files");
    std::fs::create_dir(&folder).expect("created");
    for number in 0..66 {
        std::fs::write(folder.join(number.to_string()), "-").expect("written");
    }
    system.run(&["put", "-r", text(&folder), "/files"]).ok();
    let paths: Vec<String> = (0..66).map(|number| format!("/files/{number}")).collect();
    let run = |count: usize, options: &[&str]| {
        let paths: Vec<&str> = paths[..count].iter().map(String::as_str).collect();
        system.run(&[&["run", "pairs", "--together"], &paths[..], options].concat())
    };
    assert_eq!(run(64, &["--update"]).ok().text(), "64 0\n");
    for (path, content) in [(&paths[0], "-"), (&paths[1], "x"), (&paths[62], "-"), (&paths[63], "x")] {
        assert_eq!(system.run(&["cat", path]).ok().text(), content, "{path}");
    }
    run(65, &["--update"]).fails(2).says(&["number of files that one call changes together", "64"]);
    assert_eq!(system.run(&["cat", "/files/64"]).ok().text(), "-");
    // Files that are read need no pairs, so a further job has the rest of them.
    let read = run(66, &["--json"]);
    let value: Value = serde_json::from_slice(&read.stdout).expect("JSON");
    let objects: Vec<usize> =
        jobs(&value).iter().filter_map(|job| Some(job["files"].as_array()?.len())).collect();
    assert_eq!(objects.iter().sum::<usize>(), 66, "{value}");
    assert!(objects.contains(&64) && jobs(&value).iter().all(|job| job["code"] == -13), "{value}");

    let one = |options: &[&str]| run(1, options);
    let value = |bytes: usize| format!("k={}", "v".repeat(bytes));
    // The name, `=` and a zero byte belong to the 64 KiB.
    assert_eq!(one(&["--arg", &value(65_533)]).ok().text(), "1 65536\n");
    one(&["--arg", &value(65_534)]).fails(2).says(&["65537", "65536"]);
    let many: Vec<String> = (0..257).map(|number| format!("{number}=")).collect();
    let many: Vec<&str> = many.iter().flat_map(|one| ["--arg", one]).collect();
    one(&many[..512]).ok();
    one(&many).fails(2).says(&["at most 256 arguments"]);
    one(&["--method", &"m".repeat(64)]).ok();
    one(&["--method", &"m".repeat(65)]).fails(2).says(&["the method", "64"]);
}

#[test]
fn full_device_refuses_output_of_function() {
    let system = System::start_with(1, "64M", &[]);
    // Writes 1 MiB pieces over the object, until one is refused.
    store_text(
        &system,
        "fill",
        r#"#include "osd.h"
#include <string.h>
static char piece[1 << 20];
int64_t osd_main(const osd_call *call) {
    memset(piece, 'x', sizeof piece);
    for (uint64_t at = 0; at < 12 << 20; at += sizeof piece) {
        int64_t written = osd_write(0, at, piece, sizeof piece);
        if (written < 0) return written;
    }
    return 0;
}
"#,
    );
    let hole = system.path("hole");
    std::fs::File::create(&hole).and_then(|file| file.set_len(12 << 20)).expect("created");
    system.run(&["put", text(&hole), "/hole"]).ok();
    run_with_input(system.command(&["put", "-", "/kept"]), b"kept").ok();
    let piece = vec![7; 2 << 20];
    let full = (0..40).find_map(|number| {
        let put = run_with_input(system.command(&["put", "-", &format!("/piece-{number}")]), &piece);
        (put.code != 0).then_some(put)
    });
    full.expect("the device is full").fails(1).says(&["no space left"]);

    let staged = system.run(&["run", "fill", "--update", "--commit", "/hole"]);
    staged.fails(1).says(&["/hole", "output", "code -28"]);
    let zeros = system.run(&["cat", "/hole"]).ok().stdout;
    assert!(zeros.len() == 12 << 20 && zeros.iter().all(|byte| *byte == 0), "nothing was committed");
    let written = system.run(&["run", "fill", "--update", "/hole"]);
    written.fails(1).says(&["/hole", "function-error", "code -28"]);
    assert_eq!(system.run(&["cat", "/kept"]).ok().text(), "kept");
    system.run(&["rm", "/hole"]).ok();
    assert_eq!(system.run(&["cat", "/kept"]).ok().text(), "kept");
}

#[test]
fn added_device_has_policy_of_cluster() {
    let system = System::start_with_mds(1, "1G", &[], &["--file-partitions", "2"]);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let main =
        "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { return osd_result(\"1\", 1); }\n";
    store_text(&system, "good", main);
    store_text(&system, "other", &main.replace("\"1\"", "\"2\""));
    system.run(&["fn", "policy", "--set", "listed", "--function", "good"]).ok();
    let (data, key) = (system.path("extra"), system.path("extra.key"));
    let init = ["osd", "init", "--data", text(&data), "--capacity", "1G", "--name", "extra", "--key-out"];
    run(&[&init[..], &[text(&key)]].concat()).ok();
    let serve = ["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
    let extra = Daemon::start(command(&serve));
    let url = extra.field("url").to_owned();
    let mut add = vec!["mds", "add-osd", &url, "--key", text(&key), "--wait", "120"];
    let pin = extra.ready()["pin"].as_str().map(ToOwned::to_owned);
    if let Some(pin) = &pin {
        add.extend(["--pin", pin]);
    }
    system.run(&add).ok();
    let shown = system.run(&["--json", "fn", "policy"]).ok().json();
    let devices = shown["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 4, "{shown}");
    assert!(devices.iter().all(|device| device["policy"] == "listed"), "{shown}");
    // Everything moves to the new device.
    system.run(&["osd", "drain", "osd0", "--wait", "120"]).ok();
    assert_eq!(system.run(&["run", "good", "/a"]).ok().text(), "1");
    system.run(&["run", "other", "/a"]).fails(3).says(&["policy of the partition"]);
}

#[test]
fn returned_device_gets_missed_policy() {
    let mut system = System::start(2);
    let main =
        "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { return osd_result(\"1\", 1); }\n";
    store_text(&system, "good", main);
    store_text(&system, "other", &main.replace("\"1\"", "\"2\""));
    system.end_osd(1, Signal::Terminate);
    system.run(&["fn", "policy", "--set", "listed", "--function", "good"]).fails(1);
    system.start_osd(1);
    until("the policy of both devices", || {
        let shown = system.run(&["--json", "fn", "policy"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        let devices = shown["devices"].as_array().expect("a list");
        devices.len() == 2 && devices.iter().all(|device| device["policy"] == "listed")
    });
}
