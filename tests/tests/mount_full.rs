//! Devices that become full under a mount. A separate test program: starting a process closes
//! inherited files, and would receive the error meant for the next close or sync.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::time::{Duration, Instant};

use sealstone_tests::{Mounted, System, can_mount};

/// Bytes of the device.
const CAPACITY: &str = "64M";
const CAPACITY_BYTES: usize = 64 << 20;
/// Timeout for the grace period of a removed file, the next removal and the next capacity poll,
/// with a margin.
const ROOM_AGAIN_MAX: Duration = Duration::from_secs(60);

#[test]
fn full_device_returns_enospc_and_the_stored_length() {
    if !can_mount() {
        return;
    }
    let system = System::start_with(1, CAPACITY, &[]);
    let mount = Mounted::at(&system, "mnt");
    let path = mount.path("file");
    let mut file = fs::File::create(&path).expect("made");
    // Non-zero bytes, so that a hole is not taken for them.
    let piece = vec![7; 1 << 20];
    let mut taken = 0;
    let reported = (0..200).find_map(|_| {
        let error = file.write_all(&piece).err();
        taken += usize::from(error.is_none());
        error
    });
    let error = reported.expect("it is told while it goes on writing");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!((40..200).contains(&taken), "{taken} MiB");
    assert_eq!(file.sync_all().expect_err("and in the end").kind(), ErrorKind::StorageFull);
    file.sync_all().expect("once");
    drop(file);
    // Bytes after the first loss may have been stored; the bytes at the file's end were.
    let stored = fs::read(&path).expect("it is read");
    let (least, most) = (40 << 20, CAPACITY_BYTES + (8 << 20));
    assert!((least..=most).contains(&stored.len()), "{} bytes", stored.len());
    assert_eq!(stored.last(), Some(&7));
    let seen = system.run(&["--json", "stat", "/file"]).ok().json()["files"][0].clone();
    assert_eq!(seen["size"].as_u64(), Some(stored.len() as u64));
    fs::remove_file(&path).expect("removed");
    let start = Instant::now();
    let again = || {
        let mut small = fs::File::create(mount.path("small"))?;
        small.write_all(b"again")?;
        small.sync_all()
    };
    while again().is_err() {
        assert!(start.elapsed() < ROOM_AGAIN_MAX, "no room {ROOM_AGAIN_MAX:?} after the removal");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(fs::read(mount.path("small")).expect("it is read"), b"again");
}
