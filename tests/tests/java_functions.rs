//! Functions in Java that run in the real engine, on devices that the real binary serves.

use std::path::{Path, PathBuf};
use std::process::Command;

use sealstone_tests::{System, binary, left_out, run_with_input, text};
use serde_json::Value;

use crate::function_runs::jobs;

/// Returns a system whose devices run Java functions; `None` if the machine has no JDK.
fn start() -> Option<System> {
    let system = System::start(1);
    let engines = system.run(&["--json", "fn", "engines"]).ok().json();
    let engines = engines["devices"][0]["engines"].as_array().expect("a list");
    let java = engines.iter().find(|engine| engine["engine"] == "java").expect("a row");
    let detail = java["detail"].as_str().unwrap_or_default();
    if java["available"] == false {
        assert!(!detail.is_empty(), "{java}");
        left_out(&format!("the Java engine is not available: {detail}"));
        return None;
    }
    let has_compiler =
        Command::new("javac").arg("-version").output().is_ok_and(|output| output.status.success());
    if !has_compiler {
        left_out("javac is not installed");
    }
    has_compiler.then_some(system)
}

/// Compiles a class to a JAR file whose manifest names it.
fn compile(system: &System, class: &str, source: &str) -> PathBuf {
    let folder = system.path(class);
    std::fs::create_dir_all(&folder).expect("created");
    std::fs::write(folder.join(format!("{class}.java")), source).expect("written");
    std::fs::write(folder.join("manifest.txt"), format!("Sealstone-Function: {class}\n")).expect("written");
    let sdk = binary().with_file_name("sealstone-function.jar");
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(&folder).output();
        let output = output.expect("the JDK starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run("javac", &["--release", "17", "-cp", text(&sdk), "-d", "classes", &format!("{class}.java")]);
    run("jar", &["--create", "--file", "fn.jar", "--manifest", "manifest.txt", "-C", "classes", "."]);
    folder.join("fn.jar")
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
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/functions-in-java.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, rest) = page.split_once("```java\n").expect("an example");
    rest.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn example_of_page_runs_on_devices() {
    let Some(system) = start() else { return };
    let jar = compile(&system, "Status", &example_of_page());
    system.run(&["fn", "put", text(&jar), "status"]).ok();
    let shown = system.run(&["--json", "fn", "show", "status"]).ok().json();
    assert_eq!(shown["engine"], "java", "{shown}");
    let lines: String =
        (0..100_000).map(|n| format!("GET /{n} {} 12\n", if n % 4 == 0 { 500 } else { 200 })).collect();
    run_with_input(system.command(&["put", "-", "/log"]), lines.as_bytes()).ok();
    let result = |arguments: &[&str]| -> String {
        let run = system.run(&[&["--json", "run", "status"], arguments].concat()).ok().json();
        assert_eq!(jobs(&run)[0]["exit"], "success", "{run}");
        jobs(&run)[0]["result"].as_str().expect("a result").to_owned()
    };
    assert_eq!(result(&["/log"]), "200 75000\n500 25000\n");
    assert_eq!(result(&["--arg", "status=500", "/log"]), "500 25000\n");
}

#[test]
fn new_java_project_builds_and_runs() {
    let Some(system) = start() else { return };
    let project = system.path("longest");
    let created = system.run(&["--json", "fn", "new", "--lang", "java", text(&project)]).ok().json();
    assert_eq!(
        (&created["function"], &created["language"]),
        (&"longest".into(), &"java".into()),
        "{created}"
    );
    std::fs::write(project.join("a.txt"), "one\nthree\n").expect("written");
    let make = |arguments: &[&str]| {
        let output = Command::new("make").arg("--silent").args(arguments).current_dir(&project).output();
        let output = output.expect("make starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    make(&["longest.jar"]);
    let result = make(&["local", "FILES=a.txt"]);
    assert_eq!(String::from_utf8_lossy(&result), "{\"object\":0,\"longest\":5}\n");
    // The device computes the same.
    system.run(&["fn", "put", text(&project.join("longest.jar")), "longest"]).ok();
    system.run(&["put", text(&project.join("a.txt")), "/a"]).ok();
    assert!(system.run(&["run", "longest", "/a"]).ok().stdout == result);
}

/// A function whose method is one of its failures.
const FAILURES: &str = r#"
import io.sealstone.function.*;
import java.util.*;

public final class Failures implements OsdFunction {
    public long run(Osd osd, Call call) throws Exception {
        switch (call.argument("do")) {
            case "raise": throw new IllegalStateException("bad " + call.argument("key"));
            case "foreign": return osd.read(7, 0, 1).length;
            case "write": osd.write(0, 0, new byte[1]); return 0;
            case "exit": System.exit(0); return 0;
            case "process": new ProcessBuilder("/bin/true").start(); return 0;
            case "memory": for (List<byte[]> kept = new ArrayList<>();;) kept.add(new byte[1 << 24]);
            case "spin": while (true) Thread.onSpinWait();
            default: osd.result(osd.read(0)); return 0;
        }
    }
}
"#;

#[test]
fn java_failures_name_their_exit_reason() {
    let Some(system) = start() else { return };
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let jar = compile(&system, "Failures", FAILURES);
    system.run(&["fn", "put", text(&jar), "fails"]).ok();

    let (exit, _, log) = failed_run(&system, &["fails", "--arg", "do=raise", "--arg", "key=hunter2", "/a"]);
    let says = log.contains("IllegalStateException: bad hunter2") && log.contains("Failures.java:8");
    assert!(exit == "trap" && says, "{exit}: {log}");
    let secrets = system.path("secrets");
    std::fs::write(&secrets, "do=raise\nkey=hunter2\n").expect("written");
    std::fs::set_permissions(&secrets, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("mode");
    let (exit, _, log) = failed_run(&system, &["fails", "--arg-file", text(&secrets), "/a"]);
    assert!(exit == "trap" && log.contains("IllegalState") && !log.contains("hunter2"), "{exit}: {log}");

    for (name, exit, code, line) in [
        ("foreign", "function_error", Some(-9), "EBADF"),
        ("write", "function_error", Some(-13), "EACCES"),
        ("exit", "trap", None, "System.exit(0)"),
        ("process", "trap", None, ""),
        ("memory", "memory", Some(-12), "OutOfMemoryError"),
    ] {
        let found = failed_run(&system, &["fails", "--arg", &format!("do={name}"), "/a"]);
        assert_eq!(found.0, exit, "{name}: {}", found.2);
        assert!(code.is_none_or(|code| code == found.1), "{name}: {}", found.1);
        assert!(found.2.contains(line), "{name}: {}", found.2);
    }
    let spinning = system.run(&["--json", "run", "fails", "--arg", "do=spin", "--timeout", "2s", "/a"]);
    let spinning: Value = serde_json::from_slice(&spinning.stdout).expect("JSON");
    assert_eq!(jobs(&spinning)[0]["exit"], "wall_time", "{spinning}");
    // The device still runs others.
    let run = system.run(&["--json", "run", "fails", "--arg", "do=read", "/a"]).ok().json();
    assert_eq!(jobs(&run)[0]["result"], "one\n", "{run}");
}

#[test]
fn wrong_jar_files_are_refused() {
    let system = System::start(1);
    for (name, content, says) in [
        ("fn.jar", &b"\xCA\xFE\xBA\xBE"[..], "not a JAR file"),
        ("fn.jar", b"PK\x03\x04", "truncated JAR file"),
        ("fn.jar", b"PK\x03\x04PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\0", "no META-INF/MANIFEST.MF"),
        ("fn.class", b"\xCA\xFE\xBA\xBE", "names no engine"),
    ] {
        let path = system.path(name);
        std::fs::write(&path, content).expect("written");
        system.run(&["fn", "put", text(&path), "wrong"]).fails(2).says(&[says]);
    }
    let listed: Value = system.run(&["--json", "fn", "ls"]).ok().json();
    assert_eq!(listed["functions"], serde_json::json!([]));
}

/// A process of the machine: its parent, its state, and its CPU time in clock ticks.
fn process_status(id: u32) -> Option<(u32, char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((number(1)? as u32, fields.first()?.chars().next()?, number(11)? + number(12)?))
}

/// Returns the stopped processes below another one, with their CPU time.
fn stopped_descendants(ancestor: u32) -> Vec<(u32, u64)> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_below = |id: u32| {
        let parents = std::iter::successors(Some(id), |id| process_status(*id).map(|(parent, ..)| parent));
        parents.take(8).any(|id| id == ancestor)
    };
    let stopped = ids.filter(|id| is_below(*id)).filter_map(|id| Some((id, process_status(id)?)));
    stopped.filter(|(_, (_, state, _))| *state == 'T').map(|(id, (_, _, ticks))| (id, ticks)).collect()
}

#[test]
fn thread_left_behind_is_stopped_between_calls() {
    let Some(system) = start() else { return };
    let source = "import io.sealstone.function.*;
public final class Spinner implements OsdFunction {
    private static volatile long turns;
    public long run(Osd osd, Call call) throws Exception {
        if (call.method().equals(\"spin\")) {
            Thread thread = new Thread(() -> { for (;;) { turns++; } });
            thread.setDaemon(true);
            thread.start();
        }
        osd.result(turns + \"\\n\");
        return 0;
    }
}
";
    let jar = compile(&system, "Spinner", source);
    system.run(&["fn", "put", text(&jar), "spinner"]).ok();
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let run = |method: &str| {
        let run = system.run(&["--json", "run", "spinner", "--method", method, "/a"]).ok().json();
        assert_eq!(jobs(&run)[0]["exit"], "success", "{run}");
        let turns: u64 =
            jobs(&run)[0]["result"].as_str().expect("a number").trim().parse().expect("a number");
        (turns, jobs(&run)[0]["cpu_us"].as_u64().expect("a number"))
    };
    run("spin");
    let mut before = Vec::new();
    crate::function_jobs::until("the engine is stopped", || {
        before = stopped_descendants(system.osd(0).id());
        !before.is_empty()
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(stopped_descendants(system.osd(0).id()), before, "a stopped engine uses no CPU time");
    // The same engine continues, and pays for its thread.
    let (turns, cpu_us) = run("");
    assert!(turns > 0 && cpu_us > 0, "{turns} turns, {cpu_us} us");
}
