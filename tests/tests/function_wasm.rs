//! WebAssembly functions in the real engine, on devices that the real binary serves.

use std::path::PathBuf;

use sealstone_tests::{System, binary, left_out, run_with_input, text};
use serde_json::Value;

/// Returns the folder of the engine program; reports the test as left out if it is not built.
fn engine_folder() -> Option<PathBuf> {
    let target = binary().ancestors().nth(2).expect("the binary is in the target folder");
    let folder = target.join("engine-wasm/tested");
    if folder.join("sealstone-engine-wasm").is_file() {
        return Some(folder);
    }
    left_out("`scripts/engine-wasm test` builds the engine");
    None
}

/// Encodes a module with a memory of two pages, which imports `osd_read` (function 0) and
/// `osd_result` (function 1), and whose `osd_main` has this body.
fn module(body: &[u8]) -> Vec<u8> {
    let section = |number: u8, content: &[u8]| [&[number, content.len() as u8][..], content].concat();
    let name = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
    let types = [
        &[3, 0x60, 1, 0x7F, 1, 0x7E][..],
        &[0x60, 4, 0x7F, 0x7E, 0x7F, 0x7F, 1, 0x7E],
        &[0x60, 2, 0x7F, 0x7F, 1, 0x7E],
    ];
    let imports =
        [&[2][..], &name("osd"), &name("osd_read"), &[0, 1], &name("osd"), &name("osd_result"), &[0, 2]];
    let code = [&[1, body.len() as u8 + 1, 0][..], body].concat();
    let parts = [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &types.concat()),
        section(2, &imports.concat()),
        section(3, &[1, 0]),
        section(5, &[1, 0, 2]),
        section(7, &[&[2][..], &name("memory"), &[2, 0], &name("osd_main"), &[0, 2]].concat()),
        section(10, &code),
    ];
    parts.concat()
}

/// Reads up to 100 bytes of the first object to address 16, and returns them as the result.
const ECHO: &[u8] = &[0x41, 16, 0x41, 0, 0x42, 0, 0x41, 16, 0x41, 0xE4, 0, 0x10, 0, 0xA7, 0x10, 1, 0x0B];
/// Loops for ever.
const LOOP: &[u8] = &[0x03, 0x40, 0x0C, 0, 0x0B, 0x42, 0, 0x0B];
/// Executes the instruction `unreachable`.
const UNREACHABLE: &[u8] = &[0x00, 0x0B];
/// Reads at an address outside of the memory.
const WILD: &[u8] = &[0x41, 0x70, 0x29, 3, 0, 0x0B];
/// Reads the object with the handle 7, which the caller did not grant; returns the error.
const FOREIGN: &[u8] = &[0x41, 7, 0x42, 0, 0x41, 16, 0x41, 1, 0x10, 0, 0x0B];

fn store(system: &System, name: &str, body: &[u8]) {
    let file = system.path(&format!("{name}.wasm"));
    std::fs::write(&file, module(body)).expect("written");
    system.run(&["fn", "put", text(&file), name]).ok();
}

/// Returns the job of a run on one file.
fn job(system: &System, arguments: &[&str]) -> Value {
    let finished = system.run(&[&["--json", "run"], arguments].concat());
    let run: Value = serde_json::from_slice(&finished.stdout).expect("JSON");
    run["jobs"][0].clone()
}

#[test]
fn wasm_function_runs_on_device() {
    let Some(folder) = engine_folder() else { return };
    let system = System::start_with(2, "2G", &["--engines", text(&folder)]);
    let engines = system.run(&["--json", "fn", "engines"]).ok().text();
    let value: Value = serde_json::from_str(&engines).expect("JSON");
    let engines = value["devices"][0]["engines"].as_array().expect("a list");
    let available = |name: &str| engines.iter().any(|one| one["engine"] == name && one["available"] == true);
    assert!(available("wasm") && !available("c"), "{value}");
    store(&system, "echo", ECHO);
    for content in ["some bytes\n", "other bytes\n"] {
        run_with_input(system.command(&["put", "-", "/a"]), content.as_bytes()).ok();
        let job = job(&system, &["echo", "/a"]);
        assert_eq!((&job["exit"], &job["result"]), (&"success".into(), &content.into()), "{job}");
    }
}

#[test]
fn failing_wasm_functions_name_their_exit_reason() {
    let Some(folder) = engine_folder() else { return };
    let system = System::start_with(1, "2G", &["--engines", text(&folder)]);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    for (name, body, exit) in [
        ("loop", LOOP, "wall_time"),
        ("unreachable", UNREACHABLE, "trap"),
        ("wild", WILD, "trap"),
        ("foreign", FOREIGN, "function_error"),
        ("echo", ECHO, "success"),
    ] {
        store(&system, name, body);
        let job = job(&system, &[name, "/a", "--timeout", "2s"]);
        assert_eq!(job["exit"], exit, "{name}: {job}");
    }
}

/// Returns the jobs of a run in the order of files and objects.
fn sorted_jobs(run: &Value) -> Vec<(String, u64, Value)> {
    let mut jobs: Vec<(String, u64, Value)> = run["jobs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|job| {
            let file = &job["files"][0];
            let path = file["path"].as_str().expect("a path").to_owned();
            (path, file["object"].as_u64().expect("a number"), job["result"].clone())
        })
        .collect();
    jobs.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    jobs
}

#[test]
fn client_runs_wasm_function_with_same_result() {
    let Some(folder) = engine_folder() else { return };
    let content: String = (0..400_000).map(|line| format!("line {line}\n")).collect();
    let run_on = |flags: &[&str]| {
        let system = System::start_with(2, "2G", flags);
        store(&system, "echo", ECHO);
        run_with_input(system.command(&["put", "-", "/long"]), content.as_bytes()).ok();
        run_with_input(system.command(&["put", "-", "/short"]), b"some bytes\n").ok();
        let run = ["--json", "run", "echo", "/long", "/short", "--engines", text(&folder)];
        let run = system.run(&run).ok().json();
        (system, run)
    };
    let (_device, on_device) = run_on(&["--engines", text(&folder)]);
    let (system, at_client) = run_on(&[]);
    let jobs = |run: &Value| run["jobs"].as_array().expect("a list").clone();
    assert!(jobs(&on_device).iter().all(|job| job["at_client"].is_null() && job["job"].is_string()));
    assert!(jobs(&at_client).iter().all(|job| job["at_client"] == true), "{at_client}");
    assert!(jobs(&on_device).len() > 2, "one file is striped: {on_device}");
    assert_eq!(sorted_jobs(&on_device), sorted_jobs(&at_client));
    // Functions that may change files run on devices only.
    system.run(&["run", "echo", "/short", "--update", "--engines", text(&folder)]).fails(1).says(&["wasm"]);
    system.run(&["run", "echo", "/short", "--async", "--engines", text(&folder)]).fails(1).says(&["wasm"]);
}

#[test]
fn client_runs_wasm_function_for_busy_device() {
    let Some(folder) = engine_folder() else { return };
    let flags = ["--engines", text(&folder), "--function-jobs-per-user-max", "1"];
    let system = System::start_with(1, "2G", &flags);
    store(&system, "echo", ECHO);
    store(&system, "loop", LOOP);
    run_with_input(system.command(&["put", "-", "/a"]), b"some bytes\n").ok();
    let started = system.run(&["--json", "run", "loop", "--async", "/a"]).ok().json();
    let id = started["jobs"][0]["job"].as_str().expect("an id").to_owned();
    let run = ["--json", "run", "echo", "/a", "--engines", text(&folder)];
    let run = system.run(&run).ok().json();
    let job = &run["jobs"][0];
    assert_eq!((&job["at_client"], &job["result"]), (&true.into(), &"some bytes\n".into()), "{run}");
    system.run(&["job", "cancel", &id]).ok();
}
