//! Commands on several paths or users, of which some fail: the others are done.

use std::os::unix::fs::PermissionsExt;

use sealstone_tests::{CommandResult, System, run_with_input, text};
use serde_json::Value;

/// Returns a system with a directory `/d` that has a file, and the files `/a` and `/b`.
fn start() -> System {
    let system = System::start(1);
    system.run(&["mkdir", "/d"]).ok();
    for path in ["/a", "/b", "/d/f"] {
        run_with_input(system.command(&["put", "-", path]), path.as_bytes()).ok();
    }
    system
}

/// Runs a command with `--json` and returns its result, although it fails.
fn json(system: &System, code: i32, arguments: &[&str]) -> Value {
    let ended = system.run(&[&["--json"], arguments].concat()).fails(code);
    let error: Value = serde_json::from_str(&ended.stderr).expect("one JSON object");
    assert_eq!(error["error"]["next_step"], "see the list of failures", "{error}");
    ended.json()
}

/// Checks that text output has exactly one line for each failure.
#[track_caller]
fn fails_with_lines(system: &System, code: i32, arguments: &[&str], lines: &[&str]) -> String {
    let output = system.command(arguments).output().expect("the binary starts");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), lines.len(), "{arguments:?}: {errors}");
    for (error, line) in errors.lines().zip(lines) {
        assert!(error.starts_with(&format!("sealstone {}: {line}", arguments[0])), "{error}, not {line}");
    }
    String::from_utf8(output.stdout).expect("text")
}

fn paths(value: &Value) -> Vec<&str> {
    value["files"].as_array().expect("a list").iter().filter_map(|file| file["path"].as_str()).collect()
}

#[test]
fn stat_returns_files_beside_failures() {
    let system = start();
    let value = json(&system, 1, &["stat", "/a", "/none", "/b", "/d/none"]);
    assert_eq!(paths(&value), ["/a", "/b"]);
    assert_eq!((&value["failed_count"], &value["not_tried_count"]), (&2.into(), &0.into()));
    assert_eq!(value["failed"][0]["kind"], "not_found");
    assert_eq!(value["failed"][1]["message"], "/d/none: not found");
    assert!(value["failed"][0]["next_step"].is_string(), "{value}");
    let shown = fails_with_lines(&system, 1, &["stat", "/none", "/a"], &["/none: not found"]);
    assert!(shown.contains("path  /a") && !shown.contains("none"), "{shown}");
    // Nothing exists: the exit code of that failure.
    let lines = ["/none: not found", "/none2: not found"];
    assert_eq!(fails_with_lines(&system, 4, &["stat", "/none", "/none2"], &lines), "");
    let value = json(&system, 4, &["stat", "/none", "/none2"]);
    assert!(paths(&value).is_empty(), "{value}");
    assert_eq!(system.run(&["--json", "stat", "/a", "/b"]).ok().json()["failed_count"], 0);
}

#[test]
fn rm_continues_after_failures() {
    let system = start();
    let value = json(&system, 1, &["rm", "/none", "/a", "/d", "/", "/b"]);
    assert_eq!((&value["removed"], &value["failed_count"]), (&2.into(), &3.into()));
    for path in ["/a", "/b"] {
        system.run(&["stat", path]).fails(4);
    }
    system.run(&["stat", "/d/f"]).ok();
    let lines = ["/none: not found"];
    fails_with_lines(&system, 1, &["rm", "-r", "/none", "/d"], &lines);
    system.run(&["stat", "/d"]).fails(4);
}

#[test]
fn changes_continue_after_failing_paths() {
    let system = start();
    let value = json(&system, 1, &["mkdir", "/a", "/new", "/none/x", "/new2"]);
    assert_eq!(paths(&value), ["/new", "/new2"]);
    assert_eq!(value["failed"][0]["kind"], "failed");
    assert_eq!(value["failed"][1]["kind"], "not_found");
    system.run(&["user", "add", "carol", "--enrol", "--code-file", text(&system.path("code"))]).ok();
    system.run(&["group", "add", "staff"]).ok();
    for arguments in [&["chmod", "600"][..], &["chown", "carol"], &["chgrp", "staff"]] {
        let value = json(&system, 1, &[arguments, &["/none", "/a", "/none2", "/b"]].concat());
        assert_eq!(paths(&value), ["/a", "/b"], "{arguments:?}");
        let lines = ["/none: not found", "/none2: not found"];
        fails_with_lines(&system, 1, &[arguments, &["/none", "/b", "/none2"]].concat(), &lines);
    }
    let stat = system.run(&["--json", "stat", "/b"]).ok().json()["files"][0].clone();
    assert_eq!(
        (&stat["mode"], &stat["owner"], &stat["group"]),
        (&"0600".into(), &"carol".into(), &"staff".into())
    );
    // A wrong command line changes nothing.
    system.run(&["chmod", "640", "/b", "relative/../path"]).fails(2);
    assert_eq!(system.run(&["--json", "stat", "/b"]).ok().json()["files"][0]["mode"], "0600");
}

#[test]
fn cat_writes_files_beside_failures() {
    let system = start();
    let lines = ["/none: not found"];
    assert_eq!(fails_with_lines(&system, 1, &["cat", "/a", "/none", "/d/f"], &lines), "/a/d/f");
    let ended = system.run(&["--json", "cat", "/none", "/b"]);
    assert_eq!((ended.code, &ended.stdout[..]), (1, &b"/b"[..]), "{}", ended.stderr);
    let errors: Vec<Value> =
        ended.stderr.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    assert_eq!(errors[0]["error"]["kind"], "not_found");
    assert_eq!(errors[1]["error"]["next_step"], "see the list of failures");
    assert_eq!(errors.len(), 2);
}

#[test]
fn group_adds_all_known_users() {
    let system = start();
    for name in ["carol", "dave"] {
        let code = system.path(name);
        system.run(&["user", "add", name, "--enrol", "--code-file", text(&code)]).ok();
    }
    let value = json(&system, 1, &["group", "add", "staff", "nobody", "carol", "none"]);
    assert_eq!(value["users"], serde_json::json!(["carol"]));
    assert_eq!(value["failed_count"], 2);
    let value = json(&system, 1, &["group", "join", "staff", "nobody", "dave"]);
    assert_eq!(value["users"], serde_json::json!(["dave"]));
    let members = system.run(&["group", "members", "staff"]).ok().text();
    assert_eq!(members.lines().collect::<Vec<_>>(), ["carol", "dave"]);
    let value = json(&system, 1, &["group", "leave", "staff", "nobody", "dave"]);
    assert_eq!(value["users"], serde_json::json!(["dave"]));
    assert_eq!(system.run(&["group", "members", "staff"]).ok().text().trim_end(), "carol");
    system.run(&["group", "join", "staff", "nobody"]).fails(4);
}

#[test]
fn listing_continues_after_unreadable_directories() {
    let system = start();
    system.run(&["mkdir", "/closed", "/open"]).ok();
    for path in ["/closed/x", "/open/y"] {
        run_with_input(system.command(&["put", "-", path]), b"x").ok();
    }
    system.run(&["chmod", "700", "/closed"]).ok();
    let (code, password) = (system.path("carol.code"), system.path("carol.pw"));
    std::fs::write(&password, "carol's own\n").expect("written");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    system.run(&["user", "add", "carol", "--enrol", "--code-file", text(&code)]).ok();
    let cluster = system.cluster();
    let carol = |arguments: &[&str]| {
        let mut command = system.command(arguments);
        command.env("SEALSTONE_SESSION", system.path("carol.toml"));
        CommandResult::from(command.output().expect("the binary starts"))
    };
    let credentials = ["--cluster", text(&cluster), "--password-file", text(&password)];
    carol(&[&["enrol", "--user", "carol", "--code-file", text(&code)], &credentials[..]].concat()).ok();
    carol(&[&["login", "carol"], &credentials[..]].concat()).ok();
    let ended = carol(&["--json", "ls", "-r", "/"]).fails(1);
    let value = ended.json();
    let entries: Vec<&str> = value["entries"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|entry| entry["path"].as_str())
        .collect();
    assert!(entries.contains(&"open/y") && !entries.contains(&"closed/x"), "{entries:?}");
    assert_eq!((&value["failed_count"], &value["failed"][0]["kind"]), (&1.into(), &"denied".into()));
    let ended = carol(&["ls", "-r", "/"]).fails(1);
    assert!(ended.text().lines().any(|line| line == "open/y"), "{}", ended.text());
    assert!(ended.stderr.starts_with("sealstone ls: /closed: access denied"), "{}", ended.stderr);
    carol(&["ls", "/closed"]).fails(3);
}
