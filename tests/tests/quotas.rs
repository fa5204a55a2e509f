//! Quotas through the real binaries: limits hold, are told with the next step, and survive a kill.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use sealstone_tests::{Ended, Mounted, Signal, System, can_mount, text};

/// What somebody else does: his own session file.
fn other(system: &System, session: &str, arguments: &[&str]) -> Ended {
    let mut command = system.command(arguments);
    command.env("SEALSTONE_SESSION", system.path(session));
    Ended::from(command.output().expect("the binary starts"))
}

fn file(system: &System, name: &str, length: usize) -> String {
    let path = system.path(name);
    fs::write(&path, vec![b'x'; length]).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    text(&path).to_owned()
}

/// A shell script in a folder: did it succeed, and what did it say?
fn sh(folder: &Path, script: &str) -> (bool, String) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).env("LC_ALL", "C").output();
    let output = output.expect("sh runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn limits_hold_for_users_and_trees_and_survive_a_kill() {
    let mut system = System::start(1);
    let cluster = text(&system.cluster()).to_owned();
    let password = file(&system, "bob.pw", 20);
    system.run(&["user", "add", "bob", "--password-file", &password]).ok();
    other(&system, "bob.toml", &["login", "bob", "--cluster", &cluster, "--password-file", &password]).ok();
    system.run(&["quota", "set", "--user", "bob", "--size", "1MiB", "--files", "3"]).ok();
    let (big, small) = (file(&system, "big", 2 << 20), file(&system, "small", 100));
    let bob = |system: &System, arguments: &[&str]| other(system, "bob.toml", arguments);
    bob(&system, &["put", &big, "/big"]).fails(1).says(&[
        "user bob",
        "quota is used up",
        "sealstone quota set",
    ]);
    bob(&system, &["put", &small, "/small"]).ok();
    let shown = bob(&system, &["--json", "quota", "show"]).ok().json();
    let expected = serde_json::json!({
        "user": "bob", "bytes": 100, "bytes_max": 1 << 20, "files": 1, "files_max": 3,
    });
    assert_eq!(shown, expected);
    bob(&system, &["quota", "set", "--user", "bob", "--size", "1G"]).fails(3);
    bob(&system, &["quota", "show", "--user", "admin"]).fails(3);
    system.run(&["quota", "set", "--user", "nobody", "--size", "1"]).fails(4);
    system.run(&["--json", "quota", "set", "--user", "bob"]).fails(2);

    // A tree: for everybody in it, and nothing leaves it but as a copy.
    system.run(&["mkdir", "/t"]).ok();
    system.run(&["chmod", "777", "/t"]).ok();
    system.run(&["quota", "set", "--tree", "/t", "--size", "150"]).ok();
    bob(&system, &["put", &small, "/t/a"]).ok();
    system
        .run(&["put", &small, "/t/b"])
        .fails(1)
        .says(&["tree /t: 100 of 150 bytes in use, 100 more wanted"]);
    bob(&system, &["mv", "/t/a", "/a"]).fails(1).says(&["copy it there"]);
    system.run(&["quota", "set", "--tree", "/", "--size", "1"]).fails(1).says(&["begins empty"]);
    let before = system.run(&["--json", "quota", "list"]).ok().json();
    assert_eq!(before.as_array().map(Vec::len), Some(3), "{before}");
    assert_eq!(before[2]["tree"], "/t");
    assert!(system.run(&["quota", "list"]).ok().text().contains("tree /t"));
    assert_eq!(bob(&system, &["--json", "quota", "list"]).ok().json(), serde_json::json!([before[1]]));

    system.end_mds(Signal::Kill);
    system.start_mds();
    assert_eq!(system.run(&["--json", "quota", "list"]).ok().json(), before);
    system.run(&["put", &small, "/t/b"]).fails(1);
    let checked = system.run(&["--json", "quota", "check"]).ok().json();
    // The root, the tree, and two files.
    assert_eq!((&checked["nodes"], &checked["wrong"]), (&4.into(), &serde_json::json!([])));
    bob(&system, &["quota", "check"]).fails(3);

    // What is removed gives its room back; without limits everything fits.
    bob(&system, &["rm", "/t/a"]).ok();
    system.run(&["put", &small, "/t/b"]).ok();
    system.run(&["quota", "clear", "--user", "bob"]).ok();
    bob(&system, &["put", &big, "/big"]).ok();
    assert_eq!(bob(&system, &["--json", "quota", "show"]).ok().json()["bytes"], (2 << 20) + 100);
}

#[test]
fn programs_on_a_mount_meet_a_quota_as_they_know_it() {
    if !can_mount() {
        return;
    }
    let system = System::start(2);
    system.run(&["mkdir", "/t"]).ok();
    system.run(&["quota", "set", "--tree", "/t", "--size", "1MiB"]).ok();
    let mount = Mounted::at(&system, "mnt");
    let tree = mount.path("t");
    // df shows the limit.
    let (_, room) = sh(&tree, "stat -f -c '%b %a %S' .");
    let room: Vec<u64> = room.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!((room[0] * room[2], room[1] * room[2]), (1 << 20, 1 << 20));
    // A writer hears of it, and what fits is there, for him and for others.
    fs::write(tree.join("old"), vec![b'o'; 300_000]).unwrap();
    let (done, said) = sh(&tree, "dd if=/dev/zero of=new bs=64k count=40 conv=fsync");
    assert!(!done && said.contains("quota exceeded"), "{said}");
    let fits = (1u64 << 20) - 300_000;
    assert_eq!(fs::metadata(tree.join("new")).unwrap().len(), fits);
    assert_eq!(system.run(&["cat", "/t/new"]).ok().stdout, vec![0; fits as usize]);
    let shown = system.run(&["--json", "quota", "show", "--tree", "/t"]).ok().json();
    assert_eq!((&shown["bytes"], &shown["files"]), (&(1 << 20).into(), &3.into()));
    let (done, said) = sh(&tree, "truncate -s 2M old");
    assert!(!done && said.contains("quota exceeded"), "{said}");
    // mv copies where a rename would leave the tree.
    let (done, said) = sh(mount.place(), "mv t/new . && test ! -e t/new");
    assert!(done, "{said}");
    assert_eq!(fs::metadata(mount.path("new")).unwrap().len(), fits);
    // It counts no longer as soon as the mount has let it go.
    let deadline = Instant::now() + Duration::from_secs(60);
    while system.run(&["--json", "quota", "show", "--tree", "/t"]).ok().json()["bytes"] != 300_000 {
        assert!(Instant::now() < deadline, "what was removed is counted still");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (done, said) = sh(&tree, "dd if=/dev/zero of=new bs=64k count=10 conv=fsync");
    assert!(done, "{said}");
    assert!(system.run(&["quota", "check"]).ok().text().contains("all counts are right"));
}
