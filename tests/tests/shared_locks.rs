//! Locks of two mounts at two metadata servers on one PostgreSQL, of which one dies: the real
//! binary, real mounts.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sealstone_tests::{Mounted, ServerPair, Signal, can_mount, command, text};

/// Creates a separate session file that knows these servers.
fn login(pair: &ServerPair, name: &str, servers: &str) -> PathBuf {
    let (session, pin) = (pair.system.path(name), pair.system.mds().field("pin").to_owned());
    let secret = pair.admin_secret();
    let arguments = ["login", "admin", "--mds", servers, "--pin", &pin, "--password-file", text(&secret)];
    let status = command(&arguments).env("SEALSTONE_SESSION", &session).status().unwrap();
    assert!(status.success());
    session
}

fn open(path: impl AsRef<std::path::Path>) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Locks the file and returns how long it took; fails after `longest`.
fn lock_within(file: &File, longest: Duration) -> Duration {
    let began = Instant::now();
    while file.try_lock().is_err() {
        assert!(began.elapsed() < longest, "still not given");
        std::thread::sleep(Duration::from_millis(200));
    }
    began.elapsed()
}

#[test]
fn locks_hold_across_servers_and_end_with_mounts() {
    if !can_mount() {
        return;
    }
    let mut pair = ServerPair::start(2);
    let (first, second) = (pair.system.mds().field("address").to_owned(), pair.second_address.clone());
    let both = login(&pair, "both.toml", &format!("{first},{second}"));
    let at_second = login(&pair, "second.toml", &second);
    let mut one = Mounted::in_session(&pair.system, "one", &both, &[]);
    let two = Mounted::in_session(&pair.system, "two", &at_second, &[]);
    let (mine, theirs) = (open(one.path("file")), open(two.path("file")));
    mine.lock().unwrap();
    assert!(theirs.try_lock().is_err(), "it is seen at the other server");
    mine.unlock().unwrap();
    theirs.lock().unwrap();
    assert!(mine.try_lock().is_err());
    // Released by closing it.
    drop(theirs);
    assert!(lock_within(&mine, Duration::from_secs(20)) < Duration::from_secs(10));
    let theirs = open(two.path("file"));
    mine.write_all_at(&[1; 5000], 0).unwrap();
    mine.sync_all().unwrap();
    pair.system.end_mds(Signal::Kill);
    assert!(theirs.try_lock().is_err(), "it outlives the server");
    mine.write_all_at(&[2; 5000], 0).unwrap();
    mine.sync_all().unwrap();
    // Longer than the time after which a silent server, and its clients, count as dead.
    let until = Instant::now() + Duration::from_secs(100);
    while Instant::now() < until {
        assert!(theirs.try_lock().is_err(), "the mount came to the other server");
        std::thread::sleep(Duration::from_secs(5));
    }
    mine.write_all_at(&[3; 5000], 0).unwrap();
    mine.sync_all().unwrap();
    let mut seen = [0; 5000];
    theirs.read_exact_at(&mut seen, 0).unwrap();
    drop(mine);
    let mine = open(one.path("file"));
    mine.lock().unwrap();
    mine.write_all_at(&[4; 5000], 0).unwrap();
    mine.sync_all().unwrap();
    // The mount is killed.
    one.kill();
    drop(mine);
    let waited = lock_within(&theirs, Duration::from_secs(150));
    assert!(waited > Duration::from_secs(40), "it might have come back: {waited:?}");
    theirs.write_all_at(&[5; 5000], 0).unwrap();
    theirs.sync_all().unwrap();
    assert!(fs::read(two.path("file")).unwrap() == [5; 5000]);
}
