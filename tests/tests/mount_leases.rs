//! Mounts that believe what they were told until somebody else wants it: the real binary, real mounts.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sealstone_tests::{Mounted, Signal, System, can_mount};

fn system() -> System {
    System::start_with_mds(2, "1G", &[], &["--metrics", "127.0.0.1:0"])
}

/// Requests but those that a mount sends whatever is done on it.
fn requests(system: &System) -> u64 {
    let own = ["Recalls", "KeepNodes"];
    system.figure("sealstone_mds_requests_total", |line| !own.iter().any(|name| line.contains(name)))
}

fn open(path: impl AsRef<std::path::Path>) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// The mounts have asked what to give back: from here on they are given leases.
fn settle() {
    std::thread::sleep(Duration::from_millis(500));
}

#[test]
fn who_reads_sees_what_was_written_at_another_mount_while_both_have_it_open() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    let (mine, theirs) = (open(one.path("file")), open(two.path("file")));
    for round in 0..30_u8 {
        let (writer, reader) = if round % 3 == 2 { (&theirs, &mine) } else { (&mine, &theirs) };
        let content = [round; 5000];
        let at = u64::from(round) * 700;
        writer.write_all_at(&content, at).unwrap();
        let mut seen = [99; 5000];
        reader.read_exact_at(&mut seen, at).unwrap();
        assert!(seen == content, "round {round}");
        assert_eq!(reader.metadata().unwrap().len(), at + 5000, "round {round}");
        // What was read before and is written over.
        writer.write_all_at(&[round, 1, 2, 3], 0).unwrap();
        let mut seen = [0; 4];
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [round, 1, 2, 3], "round {round}");
    }
    assert!(system.figure("sealstone_mds_leases_recalled_total", |_| true) > 20);
    assert_eq!(system.figure("sealstone_mds_leases_fenced_total", |_| true), 0);
}

#[test]
fn a_file_that_nobody_else_wants_is_opened_read_and_closed_without_a_request() {
    if !can_mount() {
        return;
    }
    let system = system();
    let mount = Mounted::with(&system, "mnt", &["--attr-timeout", "60"]);
    settle();
    fs::write(mount.path("file"), vec![7; 100_000]).unwrap();
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), 100_000);
    let before = requests(&system);
    for _ in 0..1000 {
        assert_eq!(fs::read(mount.path("file")).unwrap().len(), 100_000);
    }
    let asked = requests(&system) - before;
    assert!(asked < 20, "{asked} requests");
}

#[test]
fn a_server_that_begins_anew_finds_what_was_believed_and_others_wait_for_it() {
    if !can_mount() {
        return;
    }
    let mut system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    // A program of its own has it open: what is started here while the server is away closes nothing there.
    let script = "exec 3<> file; printf old >&3; echo; read line; printf new >&3; echo; read line";
    let (input, output) = (Stdio::piped(), Stdio::piped());
    let mut program = Command::new("sh");
    program.args(["-ec", script]).current_dir(one.place()).stdin(input).stdout(output);
    let mut program = program.spawn().unwrap();
    let mut step = || {
        program.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        program.stdin.as_mut().unwrap().write_all(b"\n")
    };
    fs::write(one.path("closed"), b"closed").unwrap();
    while fs::metadata(one.path("file")).map_or(0, |known| known.len()) < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    system.end_mds(Signal::Kill);
    system.start_mds();
    let began = Instant::now();
    assert_eq!(fs::read(two.path("file")).unwrap(), b"old", "{:?}", began.elapsed());
    assert_eq!(fs::read(two.path("closed")).unwrap(), b"closed");
    assert!(began.elapsed() < Duration::from_secs(30));
    step().unwrap();
    step().unwrap();
    assert_eq!(fs::read(two.path("file")).unwrap(), b"oldnew");
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_mount_without_leases_sees_what_was_closed() {
    if !can_mount() {
        return;
    }
    let system = system();
    let one = Mounted::at(&system, "one");
    let two = Mounted::with(&system, "two", &["--no-leases", "--attr-timeout", "0"]);
    settle();
    for round in 0..10_u8 {
        fs::write(one.path("file"), [round; 100]).unwrap();
        assert!(fs::read(two.path("file")).unwrap() == [round; 100]);
        fs::write(two.path("file"), [100 + round; 200]).unwrap();
        assert!(fs::read(one.path("file")).unwrap() == [100 + round; 200]);
    }
}

#[test]
fn two_mounts_that_count_in_one_file_under_a_lock_lose_nothing() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    fs::write(one.path("count"), "0").unwrap();
    fs::write(one.path("lock"), "").unwrap();
    let script = "for i in $(seq 10); do flock lock sh -c 'n=$(cat count); echo $((n+1)) 1<> count'; done";
    let run = |mount: &Mounted| {
        Command::new("sh").args(["-ec", script]).current_dir(mount.place()).spawn().unwrap()
    };
    for mut child in [run(&one), run(&two)] {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(two.path("count")).unwrap().trim(), "20");
}
