//! A mount that does not answer, and others that continue without it. A separate test program:
//! processes started while the mount is stopped would wait for it.
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
fn stopped_mount_is_fenced_and_gets_the_error() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    // Both mounts poll recalls: from here on they get leases.
    std::thread::sleep(Duration::from_millis(500));
    let mut stopper = MountStopper::of(&one);
    let mut mine = open(one.path("file"));
    mine.write_all(&[1; 9000]).unwrap();
    mine.sync_all().unwrap();
    // Only in its memory, under a lease.
    mine.write_all_at(&[2; 9000], 0).unwrap();
    stopper.stop();
    let began = Instant::now();
    let theirs = open(two.path("file"));
    let mut seen = [0; 9000];
    theirs.read_exact_at(&mut seen, 0).unwrap();
    let waited = began.elapsed();
    assert!(seen == [1; 9000], "what was synced: {:?} after {waited:?}", &seen[..9]);
    assert!(waited < Duration::from_secs(40), "{waited:?}");
    theirs.write_all_at(&[3; 9000], 0).unwrap();
    theirs.sync_all().unwrap();
    assert_eq!(system.metric("sealstone_mds_leases_fenced_total", |_| true), 1);
    drop(stopper);
    std::thread::sleep(Duration::from_secs(2));
    let reported = mine.sync_all().and_then(|()| mine.sync_all());
    assert_eq!(reported.unwrap_err().raw_os_error(), Some(5), "EIO");
    drop(mine);
    theirs.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == [3; 9000], "nothing arrived late");
    // As soon as it has received its new epoch.
    let until = Instant::now() + Duration::from_secs(30);
    let read = loop {
        match fs::read(one.path("file")) {
            Err(error) if Instant::now() < until => {
                assert_eq!(error.raw_os_error(), Some(5));
                std::thread::sleep(Duration::from_millis(100));
            }
            read => break read.unwrap(),
        }
    };
    assert!(read == [3; 9000]);
    fs::write(one.path("file"), b"again").unwrap();
    assert_eq!(fs::read(two.path("file")).unwrap(), b"again");
}
