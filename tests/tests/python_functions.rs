//! Functions in Python that run in the real engine, on devices that the real binary serves.

use std::path::Path;

use sealstone_tests::{System, left_out, run_with_input, text};
use serde_json::Value;

use crate::function_runs::jobs;

/// Returns a system whose devices run Python functions; `None` if the machine has no interpreter.
fn start() -> Option<System> {
    let system = System::start(1);
    let engines = system.run(&["--json", "fn", "engines"]).ok().json();
    let engines = engines["devices"][0]["engines"].as_array().expect("a list");
    let python = engines.iter().find(|engine| engine["engine"] == "python").expect("a row");
    if python["available"] == true {
        return Some(system);
    }
    let detail = python["detail"].as_str().unwrap_or_default();
    assert!(!detail.is_empty(), "{python}");
    left_out(&format!("the Python engine is not available: {detail}"));
    None
}

fn store(system: &System, name: &str, source: &str) {
    let path = system.path(&format!("{name}.py"));
    std::fs::write(&path, source).expect("written");
    system.run(&["fn", "put", text(&path), name]).ok();
}

/// Runs a function that fails as a job of its own; returns exit reason, code and log.
fn failed_run(system: &System, arguments: &[&str]) -> (String, i64, String) {
    let started = system.run(&[&["--json", "run", "--async"], arguments].concat()).ok().json();
    let id = jobs(&started)[0]["job"].as_str().expect("an id").to_owned();
    system.run(&["job", "wait", &id]).fails(1);
    let status = system.run(&["--json", "job", "status", &id]).ok().json();
    let job = &jobs(&status)[0];
    let log = system.run(&["job", "log", &id]).ok().text();
    (job["exit"].as_str().expect("a reason").to_owned(), job["code"].as_i64().unwrap_or(0), log)
}

/// Returns the function of the how-to page.
fn example_of_page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/functions-in-python.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, rest) = page.split_once("```python\n").expect("an example");
    rest.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn new_python_project_runs_on_devices() {
    let Some(system) = start() else { return };
    let project = system.path("longest");
    let created = system.run(&["--json", "fn", "new", "--lang", "python", text(&project)]).ok().json();
    assert_eq!(created["language"], "python", "{created}");
    let code = project.join("longest.py");
    std::fs::write(project.join("a.txt"), "one\nthree\n").expect("written");
    let tested = system.run(&["fn", "test", text(&code), text(&project.join("a.txt"))]).ok();
    system.run(&["fn", "put", text(&code), "longest"]).ok();
    system.run(&["put", text(&project.join("a.txt")), "/a"]).ok();
    let result = system.run(&["run", "longest", "/a"]).ok().stdout;
    assert_eq!(String::from_utf8_lossy(&result), "{\"object\":0,\"longest\":5}\n");
    assert!(tested.stdout == result);
}

#[test]
fn example_of_page_runs_on_devices() {
    let Some(system) = start() else { return };
    store(&system, "status", &example_of_page());
    let shown = system.run(&["--json", "fn", "show", "status"]).ok().json();
    assert_eq!(shown["engine"], "python", "{shown}");
    let lines: String =
        (0..100_000).map(|n| format!("GET /{n} {} 12\n", if n % 4 == 0 { 500 } else { 200 })).collect();
    run_with_input(system.command(&["put", "-", "/log"]), lines.as_bytes()).ok();
    let result = |arguments: &[&str]| -> String {
        let run = system.run(&[&["--json", "run", "status"], arguments].concat()).ok().json();
        assert_eq!(jobs(&run)[0]["exit"], "success", "{run}");
        jobs(&run)[0]["result"].as_str().expect("a result").to_owned()
    };
    assert_eq!(result(&["/log"]), "{\"200\": 75000, \"500\": 25000}\n");
    assert_eq!(result(&["--arg", "status=500", "/log"]), "{\"500\": 25000}\n");
}

#[test]
fn python_failures_name_their_exit_reason() {
    let Some(system) = start() else { return };
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let function = |body: &str| format!("import os\ndef run(osd, call):\n    {body}\n");
    store(&system, "raise", &function("raise ValueError('bad ' + osd.arguments['key'])"));
    store(&system, "foreign", &function("return osd.read(7, 0, 1)"));
    store(&system, "write", &function("return osd.write(0, 0, b'two')"));
    store(&system, "fork", &function("os.fork()"));
    store(&system, "spin", &function("while True: pass"));
    store(&system, "memory", &function("keep = [bytearray(b'x' * (16 << 20)) for _ in range(1000)]"));
    store(&system, "broken", "def run(osd, call:\n");
    store(&system, "good", &function("return osd.read(0)"));

    let (exit, _, log) = failed_run(&system, &["raise", "--arg", "key=hunter2", "/a"]);
    assert!(
        exit == "trap" && log.contains("ValueError: bad hunter2") && log.contains("line 3"),
        "{exit}: {log}"
    );
    let secrets = system.path("secrets");
    std::fs::write(&secrets, "key=hunter2\n").expect("written");
    std::fs::set_permissions(&secrets, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("mode");
    let (exit, _, log) = failed_run(&system, &["raise", "--arg-file", text(&secrets), "/a"]);
    assert!(exit == "trap" && log.contains("ValueError") && !log.contains("hunter2"), "{exit}: {log}");

    for (name, exit, code, line) in [
        ("foreign", "function_error", Some(-9), "OSError: [Errno 9]"),
        ("write", "function_error", Some(-13), "PermissionError"),
        ("broken", "function_error", Some(-8), "SyntaxError"),
        ("fork", "trap", None, "forbidden system call"),
        ("memory", "memory", None, "memory"),
    ] {
        let found = failed_run(&system, &[name, "/a"]);
        assert_eq!(found.0, exit, "{name}: {}", found.2);
        assert!(code.is_none_or(|code| code == found.1), "{name}: {}", found.1);
        assert!(found.2.to_lowercase().contains(&line.to_lowercase()), "{name}: {}", found.2);
    }
    let spinning = system.run(&["--json", "run", "spin", "--timeout", "2s", "/a"]);
    let spinning: Value = serde_json::from_slice(&spinning.stdout).expect("JSON");
    assert_eq!(jobs(&spinning)[0]["exit"], "wall_time", "{spinning}");
    // The device still runs others.
    let run = system.run(&["--json", "run", "good", "/a"]).ok().json();
    assert_eq!(jobs(&run)[0]["result"], "one\n", "{run}");
}

#[test]
fn compiled_python_file_is_refused() {
    let system = System::start(1);
    for (name, content, says) in [
        ("fn.py", &b"\xa7\r\r\n\0\0\0\0"[..], "no Python source"),
        ("fn.pyc", b"\xa7\r\r\n\0\0\0\0", "names no engine"),
    ] {
        let path = system.path(name);
        std::fs::write(&path, content).expect("written");
        system.run(&["fn", "put", text(&path), "compiled"]).fails(2).says(&[says]);
    }
    let listed: Value = system.run(&["--json", "fn", "ls"]).ok().json();
    assert_eq!(listed["functions"], serde_json::json!([]));
}
