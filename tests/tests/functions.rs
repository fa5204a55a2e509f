//! Functions through the real binaries: storing, describing, copying, delegating, refusing.

use sealstone_tests::{System, run_with_input, text};

/// A function file of 300 kB, not code that an engine could run.
fn code() -> Vec<u8> {
    (0..300_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// Stores a signed function; returns the JSON of `fn put`.
fn put_signed(system: &System) -> serde_json::Value {
    let (file, key) = (system.path("count.so"), system.path("publisher.key"));
    std::fs::write(&file, code()).expect("written");
    std::fs::write(&key, [7; 32]).expect("written");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, private).expect("private");
    let manifest = system.path("manifest");
    std::fs::write(&manifest, "methods = [\"count\"]").expect("written");
    let arguments = [
        "--json",
        "fn",
        "put",
        text(&file),
        "count",
        "--engine",
        "c",
        "--api",
        "1.0-1.2",
        "--version",
        "3",
        "--publisher",
        "tests",
        "--manifest",
        text(&manifest),
        "--sign",
        text(&key),
    ];
    system.run(&arguments).ok().json()
}

#[test]
fn function_is_stored_shown_and_removed() {
    let system = System::start(3);
    let stored = put_signed(&system);
    assert_eq!((&stored["path"], &stored["signed"]), (&"/.functions/count".into(), &true.into()), "{stored}");
    assert_eq!(stored["digest"].as_str().map(str::len), Some(64), "{stored}");
    assert_eq!(stored["copies"].as_array().map(Vec::len), Some(3), "{stored}");
    assert_eq!(stored["api"], serde_json::json!(["1.0", "1.2"]));
    let shown = system.run(&["fn", "show", "count"]).ok().text();
    assert!(shown.contains("API 1.0 to 1.2") && shown.contains("methods = "), "{shown}");
    assert!(system.run(&["fn", "ls"]).ok().text().contains("count"));
    let listed = system.run(&["--json", "fn", "ls"]).ok().json();
    assert_eq!(listed["functions"][0]["engine"], "c");
    assert_eq!(system.run(&["--json", "fn", "copy", "count"]).ok().json()["copies"], 0);
    // The code is an ordinary file.
    assert!(system.run(&["get", "/.functions/count", "-"]).ok().stdout == code());
    let cap = system.path("count.cap");
    system.run(&["cap", "issue", "--execute", "/.functions/count", "--until", "5m", "-o", text(&cap)]).ok();
    assert!(system.run(&["cap", "show", text(&cap)]).ok().text().contains("may        execute"));
    system.run(&["cap", "get", text(&cap), "-"]).fails(3).says(&["executing only"]);
    system.run(&["fn", "rm", "count"]).ok();
    system.run(&["fn", "show", "count"]).fails(4).says(&["/.functions/count", "fn ls"]);
}

#[test]
fn shipped_functions_are_installed_and_signed() {
    let system = System::start(2);
    run_with_input(system.command(&["put", "-", "/log"]), b"one\ntimeout\n").ok();
    system.run(&["run", "grep", "--pattern", "time", "/log"]).fails(4).says(&["fn install"]);
    let key = system.path("publisher.key");
    std::fs::write(&key, [7; 32]).expect("written");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("private");
    let modules = sealstone_test_support::program_folder().join("examples");
    let install = |arguments: &[&str]| {
        system.run(&[&["--json", "fn", "install", "--from", text(&modules)], arguments].concat())
    };
    let installed = install(&["--sign", text(&key)]).ok().json();
    let functions = installed["functions"].as_array().expect("a list");
    let names: Vec<_> = functions.iter().map(|function| function["path"].as_str().expect("a path")).collect();
    assert!(names.len() == 11 && names.contains(&"/.functions/grep"), "{installed}");
    assert!(functions.iter().all(|function| function["signed"] == true), "{installed}");
    // Devices run the signed ones under a policy that permits no other.
    let publisher = functions[0]["publisher_key"].as_str().expect("a key");
    system.run(&["fn", "policy", "--set", "signed", "--key", publisher]).ok();
    let found = system.run(&["run", "grep", "--pattern", "time", "/log"]).ok().text();
    assert_eq!(found, "2:timeout\n");
    install(&["count"]).ok();
    system.run(&["run", "count", "/log"]).fails(3).says(&["policy of the partition"]);
    install(&["count", "--engine", "wasm"]).fails(4).says(&["count.wasm", "make engines"]);
    system.run(&["--json", "fn", "install", "unknown"]).fails(2);
}

#[test]
fn refusals_name_the_next_step() {
    let system = System::start(2);
    put_signed(&system);
    run_with_input(system.command(&["put", "-", "/data"]), b"some data").ok();
    system.run(&["chmod", "755", "/data"]).ok();
    system.run(&["run", "/data", "/data"]).fails(1).says(&["not stored as a function", "fn put"]);
    system.run(&["run", "missing", "/data"]).fails(4).says(&["fn ls"]);
    system.run(&["run", "count", "/none"]).fails(4).says(&["/none"]);
    system.run(&["--json", "run", "count", "/data", "--timeout", "25h"]).fails(2);
    system.run(&["--json", "run", "count", "/data", "--arg", "=secret"]).fails(2);
    system.run(&["fn", "rm", "/data"]).fails(1).says(&["no description"]);
    system.run(&["job", "status", "77"]).fails(4).says(&["job ls"]);
    system.run(&["job", "ls"]).ok().says(&[]);
    let forged = system.path("receipt");
    std::fs::write(&forged, [1; 400]).expect("written");
    system.run(&["job", "verify", "--receipt", text(&forged)]).fails(1).says(&["not a receipt"]);
}

#[test]
fn engines_of_all_devices_are_listed() {
    let system = System::start(2);
    let engines = system.run(&["--json", "fn", "engines"]).ok().json();
    let devices = engines["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 2);
    assert!(devices.iter().all(|device| device["engines"].is_array()), "{engines}");
}

/// A WebAssembly module that imports a function `osd.NAME` and exports a memory and `osd_main`.
fn wasm_module(import: &str) -> Vec<u8> {
    let section = |number: u8, content: &[u8]| [&[number, content.len() as u8][..], content].concat();
    let name = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
    let parts = [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &[1, 0x60, 1, 0x7F, 1, 0x7E]),
        section(2, &[&[1][..], &name("osd"), &name(import), &[0, 0]].concat()),
        section(3, &[1, 0]),
        section(5, &[1, 0, 2]),
        section(7, &[&[2][..], &name("memory"), &[2, 0], &name("osd_main"), &[0, 1]].concat()),
        section(10, &[1, 4, 0, 0x42, 0, 0x0B]),
    ];
    parts.concat()
}

#[test]
fn engine_is_recognized_by_first_bytes() {
    let system = System::start(1);
    let file = system.path("function");
    std::fs::write(&file, wasm_module("osd_length")).expect("written");
    let stored = system.run(&["--json", "fn", "put", text(&file), "lengths"]).ok().json();
    assert_eq!(stored["engine"], "wasm", "{stored}");
    system.run(&["fn", "put", text(&file), "lengths", "--engine", "c"]).fails(2).says(&["wasm", "--engine"]);
    std::fs::write(&file, wasm_module("fd_write")).expect("written");
    system.run(&["fn", "put", text(&file), "writer"]).fails(2).says(&["osd.fd_write"]);
    std::fs::write(&file, "text").expect("written");
    system.run(&["fn", "put", text(&file), "text"]).fails(2).says(&["--engine"]);
}
