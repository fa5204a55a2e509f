//! What was acknowledged survives SIGKILL of any process in the middle of a put.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use sealstone_tests::{Signal, System, run_with_input};

/// Bytes of the file that is under way when a process dies.
const LARGE: usize = 24 << 20;

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

#[derive(Clone, Copy, Debug)]
enum Victim {
    Mds,
    Osd(usize),
}

/// Kills `victim` when half of a large file is written, restarts it, and checks what was promised.
fn drill(victim: Victim) {
    let mut system = System::start(2);
    let before: Vec<(String, Vec<u8>)> = (0..4)
        .map(|index| (format!("/before-{index}"), content(index, 200_000 * usize::from(index + 1))))
        .collect();
    for (path, bytes) in &before {
        run_with_input(system.command(&["put", "-", path]), bytes).ok();
    }

    let large = content(77, LARGE);
    let mut put = system
        .command(&["put", "-", "/large"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("put starts");
    let mut stdin = put.stdin.take().expect("piped");
    stdin.write_all(&large[..LARGE / 2]).expect("the first half goes in");
    std::thread::sleep(Duration::from_millis(150));
    match victim {
        Victim::Mds => drop(system.end_mds(Signal::Kill)),
        Victim::Osd(index) => drop(system.end_osd(index, Signal::Kill)),
    }
    let rest = large[LARGE / 2..].to_vec();
    let feeder = std::thread::spawn(move || {
        // If put has given up, its pipe is closed, and that is an answer too.
        let _ = stdin.write_all(&rest);
    });
    std::thread::sleep(Duration::from_millis(300));
    match victim {
        Victim::Mds => system.start_mds(),
        Victim::Osd(index) => system.start_osd(index),
    }
    let output = put.wait_with_output().expect("put ends by itself");
    feeder.join().expect("the feeder does not panic");

    let after = system.run(&["cat", "/large"]);
    // A device that comes back gets again what it may have lost: the put must end well.
    if output.status.success() || matches!(victim, Victim::Osd(_)) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{victim:?}: {said}");
        assert!(after.ok().stdout == large, "{victim:?}: put said it was stored");
    } else {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.trim_end().lines().count(), 1, "{victim:?}: one line of error: {said}");
        // It failed and said so; then there is no file, or (if only the answer was lost) the whole one.
        assert!(after.code == 4 || after.stdout == large, "{victim:?}: neither nothing nor everything");
    }
    for (path, bytes) in &before {
        assert!(system.run(&["cat", path]).ok().stdout == *bytes, "{victim:?}: {path} was acknowledged");
    }
    run_with_input(system.command(&["put", "-", "/after"]), b"life goes on").ok();
    assert_eq!(system.run(&["cat", "/after"]).ok().stdout, b"life goes on");
}

#[test]
fn a_killed_mds_loses_nothing_acknowledged() {
    drill(Victim::Mds);
}

#[test]
fn a_killed_first_device_loses_nothing_acknowledged() {
    drill(Victim::Osd(0));
}

#[test]
fn a_killed_second_device_loses_nothing_acknowledged() {
    drill(Victim::Osd(1));
}

/// A clean end and a new start keep everything, and the end is clean.
#[test]
fn sigterm_ends_cleanly_and_nothing_is_lost() {
    let mut system = System::start(1);
    run_with_input(system.command(&["put", "-", "/kept"]), b"kept").ok();
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    assert_eq!(system.end_mds(Signal::Terminate), 0);
    system.start_mds();
    system.start_osd(0);
    assert_eq!(system.run(&["cat", "/kept"]).ok().stdout, b"kept");
}
