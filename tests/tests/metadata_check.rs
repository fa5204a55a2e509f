//! `sealstone check` through the real binary: a consistent system has no findings; lost and leaked
//! objects are found.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use sealstone_tests::{CommandResult, Signal, System, run_with_input, text};

fn put(system: &System, path: &str, length: usize) {
    run_with_input(system.command(&["put", "-", path]), &vec![7; length]).ok();
}

/// Replaces one folder by a copy of another.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp").args(["-a", text(from), text(to)]).status().expect("cp runs");
    assert!(copied.success());
}

/// Restores older records of the server, while the devices stay.
fn back(system: &mut System, to: &Path) {
    system.end_mds(Signal::Terminate);
    let data = system.path("mds");
    copy(to, &data);
    system.start_mds();
}

fn kinds(ended: &CommandResult) -> Vec<String> {
    let found = ended.json();
    let findings = found["check"]["findings"].as_array().cloned().unwrap_or_default();
    findings.iter().map(|finding| finding["kind"].as_str().expect("a kind").to_owned()).collect()
}

#[test]
fn check_reports_lost_and_removes_orphaned_data() {
    let mut system = System::start(2);
    system.run(&["mkdir", "/d"]).ok();
    put(&system, "/d/kept", 1000);
    put(&system, "/d/striped", 3 << 20);
    let seen = system.run(&["--json", "check"]).ok().json()["check"].clone();
    assert_eq!((&seen["findings_count"], &seen["phase"]), (&0.into(), &"done".into()), "{seen}");
    assert!(seen["nodes"] == 4 && seen["names"] == 3, "{seen}");
    assert!(seen["objects"].as_u64().is_some_and(|objects| objects >= 3), "{seen}");
    system.end_mds(Signal::Terminate);
    let older = system.path("older");
    copy(&system.path("mds"), &older);
    system.start_mds();
    // Created after the restored records: the server does not know them.
    put(&system, "/later", 1000);
    back(&mut system, &older);
    let found = system.run(&["--json", "check"]);
    assert_eq!((found.code, kinds(&found)), (1, vec!["leaked".to_owned()]));
    let repaired = system.run(&["--json", "check", "--repair"]).ok();
    assert_eq!(
        (kinds(&repaired), &repaired.json()["check"]["repaired"]),
        (vec!["leaked".to_owned()], &1.into())
    );
    let begun = Instant::now();
    while system.run(&["--json", "check", "--repair"]).ok().json()["check"]["findings"]
        != serde_json::json!([])
    {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is removed");
    }
    // Removed after it: their bytes are gone, and the finding names the path.
    system.end_mds(Signal::Terminate);
    copy(&system.path("mds"), &older);
    system.start_mds();
    let objects =
        || system.run(&["--json", "check"]).ok().json()["check"]["objects"].as_u64().expect("a number");
    let before = objects();
    system.run(&["rm", "/d/kept"]).ok();
    let begun = Instant::now();
    while objects() >= before {
        assert!(begun.elapsed() < Duration::from_secs(60), "its object is removed");
        std::thread::sleep(Duration::from_millis(200));
    }
    back(&mut system, &older);
    let found = system.run(&["--json", "check"]);
    assert_eq!((found.code, kinds(&found)), (1, vec!["lost".to_owned()]));
    assert_eq!(found.json()["check"]["findings"][0]["path"], "/d/kept");
    system.run(&["check", "--no-objects"]).ok();
}

#[test]
fn unreachable_device_is_reported_without_loss() {
    let mut system = System::start(2);
    for at in 0..6 {
        put(&system, &format!("/{at}"), 1000);
    }
    system.end_osd(1, Signal::Kill);
    let found = system.run(&["--json", "check"]);
    assert_eq!((found.code, kinds(&found)), (1, vec!["silent".to_owned()]));
    system.run(&["check", "--show"]).fails(1).says(&["problem", "found"]);
    system.start_osd(1);
    system.run(&["quota", "check"]).ok();
    system.run(&["check"]).ok();
}
