//! A mount that dies with a lock, and others that get it. A separate test program: processes
//! started while the mount is stopped would wait for it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use sealstone_tests::{MountStopper, Mounted, System, can_mount};

fn system() -> System {
    System::start_with_mds(2, "1G", &[], &["--metrics", "127.0.0.1:0"])
}

fn open(path: impl AsRef<std::path::Path>) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn stopped_lock_holder_is_fenced_first() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) =
        (Mounted::with(&system, "one", &["--no-leases"]), Mounted::with(&system, "two", &["--no-leases"]));
    let mut stopper = MountStopper::of(&one);
    let mut mine = open(one.path("file"));
    let theirs = open(two.path("file"));
    mine.lock().unwrap();
    mine.write_all(&[1; 9000]).unwrap();
    mine.sync_all().unwrap();
    // Only in its memory.
    mine.write_all_at(&[2; 9000], 0).unwrap();
    stopper.stop();
    let began = Instant::now();
    while theirs.try_lock().is_err() {
        assert!(began.elapsed() < Duration::from_secs(150), "a lock of who died is given to others");
        std::thread::sleep(Duration::from_millis(200));
    }
    let waited = began.elapsed();
    assert!(waited > Duration::from_secs(45), "it might have come back: {waited:?}");
    assert_eq!(system.metric("sealstone_mds_locks_fenced_total", |_| true), 1);
    theirs.write_all_at(&[3; 9000], 0).unwrap();
    theirs.sync_all().unwrap();
    drop(stopper);
    std::thread::sleep(Duration::from_secs(2));
    let eio =
        |reported: std::io::Result<()>| assert_eq!(reported.unwrap_err().raw_os_error(), Some(5), "EIO");
    eio(mine.sync_all());
    // Until all programs there have closed the file, writes fail and the lock is invalid.
    eio(mine.write_all_at(&[4; 10], 0).and_then(|()| mine.sync_all()));
    eio(mine.sync_all());
    eio(OpenOptions::new().write(true).open(one.path("file")).map(drop));
    let mut seen = [0; 9000];
    theirs.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == [3; 9000], "nothing arrived late: {:?}", &seen[..9]);
    assert!(fs::read(one.path("file")).unwrap() == [3; 9000]);
    drop(mine);
    // After the close it can be opened again.
    let mine = open(one.path("file"));
    assert!(mine.try_lock().is_err(), "it is theirs");
    theirs.unlock().unwrap();
    mine.lock().unwrap();
    mine.write_all_at(b"again", 0).unwrap();
    mine.sync_all().unwrap();
    assert!(fs::read(two.path("file")).unwrap().starts_with(b"again"));
}
