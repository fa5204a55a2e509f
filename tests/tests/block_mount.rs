//! `sealstone block attach --mount-file` through the real binary, with e2fsprogs.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom as HoleSeek, fallocate, seek};
use rustix::io::Errno;
use sealstone_tests::{Daemon, Signal, can_mount, is_installed, run, text};

use crate::block_units::{UnitDevice, start_after_power_failure, tool};

const SIZE: u64 = 32 << 20;
/// Time after a write in which the device still has it as unflushed: it flushes after 5 s idle.
const UNFLUSHED_TIME: Duration = Duration::from_secs(4);

/// A device with one unit of 32 MiB, mounted as a file.
struct MountedUnit {
    device: UnitDevice,
    attach: Daemon,
}

impl MountedUnit {
    fn new(create: &[&str], flags: &[&str]) -> Self {
        let device = UnitDevice::with_disk(create);
        let attach = Self::attach(&device, flags);
        Self { device, attach }
    }

    fn attach(device: &UnitDevice, flags: &[&str]) -> Daemon {
        device.attach(&["--mount-file", text(&Self::file_of(device))], flags)
    }

    fn file_of(device: &UnitDevice) -> PathBuf {
        device.folder.path().join("disk.img")
    }

    fn file(&self) -> PathBuf {
        Self::file_of(&self.device)
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.file()).expect("open")
    }
}

impl Drop for MountedUnit {
    fn drop(&mut self) {
        // A failed test leaves the mount, which would keep the folder.
        let _ = rustix::mount::unmount(self.file(), rustix::mount::UnmountFlags::DETACH);
    }
}

fn read_at(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).expect("read");
    bytes
}

#[test]
fn mounted_file_reads_and_writes_any_bytes() {
    if !can_mount() {
        return;
    }
    for block in ["512", "4096"] {
        let mut unit = MountedUnit::new(&["--block-size", block], &["--sessions", "2"]);
        let path = unit.file();
        let stat = std::fs::metadata(&path).expect("stat");
        assert_eq!((stat.len(), stat.permissions().mode() & 0o777), (SIZE, 0o600));
        let mut file = unit.open();
        file.write_all_at(b"some bytes", 1003).expect("written");
        assert_eq!(read_at(&file, 1000, 16), *b"\0\0\0some bytes\0\0\0");
        let long: Vec<u8> = (0..5_000_001_u32).map(|at| (at / 5) as u8).collect();
        file.write_all_at(&long, 1 << 20).expect("written");
        assert!(read_at(&file, 1 << 20, long.len()) == long);
        file.sync_all().expect("durable");
        // At the end.
        assert_eq!(file.write_at(&[1; 4096], SIZE - 10).expect("a short write"), 10);
        assert_eq!(file.write_at(&[1; 10], SIZE).map_err(|error| error.kind()), Err(ErrorKind::StorageFull));
        assert_eq!(file.read_at(&mut [0; 10], SIZE).expect("the end"), 0);
        // The size does not change.
        assert!(
            file.set_len(SIZE).is_ok() && file.set_len(SIZE / 2).is_err() && file.set_len(SIZE * 2).is_err()
        );
        let truncated = OpenOptions::new().write(true).truncate(true).open(&path).expect("as a disk");
        assert_eq!(truncated.metadata().expect("stat").len(), SIZE);
        // Punched bytes are zeros, and space is freed.
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, (1 << 20) + 100, 4 << 20).expect("punched");
        assert!(read_at(&file, (1 << 20) + 100, 4 << 20).iter().all(|byte| *byte == 0));
        assert_eq!(read_at(&file, 1 << 20, 100), long[..100]);
        assert_eq!(read_at(&file, (5 << 20) + 100, 100), long[(4 << 20) + 100..][..100]);
        let hole = seek(&file, HoleSeek::Hole(1 << 20)).expect("a hole");
        assert!((1 << 20..(1 << 20) + 5000).contains(&hole), "{hole}");
        fallocate(&file, FallocateFlags::ZERO_RANGE, 1 << 20, 4096).expect("zeroed");
        assert_eq!(read_at(&file, 1 << 20, 100), [0; 100]);
        fallocate(&file, FallocateFlags::empty(), 0, SIZE).expect("within");
        assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, SIZE + 1), Err(Errno::NOSPC));
        // A synchronous write is durable at once.
        let flags = OFlags::DSYNC.bits() as i32;
        let synchronous = OpenOptions::new().write(true).custom_flags(flags).open(&path).expect("open");
        synchronous.write_all_at(&[9; 512], 0).expect("written");
        file.seek(SeekFrom::Start(0)).expect("seek");
        let mut start = [0; 512];
        file.read_exact(&mut start).expect("read");
        assert_eq!(start, [9; 512]);
        drop((file, truncated, synchronous));
        assert_eq!(unit.attach.end(Signal::Terminate), 0);
        assert!(!path.exists(), "it was created by the command");
    }
}

#[test]
fn ext4_on_mounted_file_survives_killed_device() {
    if !can_mount() || !["mkfs.ext4", "debugfs", "e2fsck"].iter().all(|program| is_installed(program)) {
        return;
    }
    let mut unit = MountedUnit::new(&[], &["--timeout", "300"]);
    let image = unit.file();
    tool("mkfs.ext4", &["-q", text(&image)]);
    let source = unit.device.folder.path().join("source");
    let content = |index: usize| index.to_string().repeat(50_000);
    std::fs::create_dir(&source).expect("created");
    for index in 0..12 {
        std::fs::write(source.join(index.to_string()), content(index)).expect("written");
    }
    let write = |range: std::ops::Range<usize>| {
        let (source, image) = (source.clone(), image.clone());
        std::thread::spawn(move || {
            for index in range {
                let from = source.join(index.to_string());
                tool("debugfs", &["-w", "-R", &format!("write {} {index}", text(&from)), text(&image)]);
            }
        })
    };
    for round in 0..3 {
        let writer = write(round * 4..round * 4 + 4);
        std::thread::sleep(Duration::from_millis(100));
        unit.device.end(Signal::Kill);
        unit.device.start();
        writer.join().expect("written");
    }
    tool("e2fsck", &["-f", "-n", text(&image)]);
    assert_eq!(unit.attach.end(Signal::Terminate), 0);
    unit.attach = MountedUnit::attach(&unit.device, &["--read-only"]);
    let back = unit.device.folder.path().join("back");
    for index in 0..12 {
        tool("debugfs", &["-R", &format!("dump {index} {}", text(&back)), text(&image)]);
        assert!(std::fs::read_to_string(&back).expect("dumped") == content(index), "file {index}");
    }
    let refused = OpenOptions::new().write(true).open(&image).map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(ErrorKind::ReadOnlyFilesystem));
}

#[test]
fn lost_writes_fail_next_fsync_of_each_file() {
    if !can_mount() {
        return;
    }
    let mut unit = MountedUnit::new(&[], &[]);
    let [one, two] = [unit.open(), unit.open()];
    loop {
        let began = Instant::now();
        one.write_all_at(&[7; 4096], 0).expect("written");
        unit.device.end(Signal::Kill);
        if began.elapsed() < UNFLUSHED_TIME {
            break;
        }
        // The machine is busy, and the device has flushed the write.
        unit.device.start();
    }
    start_after_power_failure(&mut unit.device);
    assert_eq!(read_at(&one, 0, 4096).len(), 4096);
    assert!(one.sync_all().is_err(), "the loss is reported");
    one.sync_all().expect("once");
    assert!(two.sync_all().is_err(), "each open file is informed");
    two.sync_all().expect("once");
    drop((one, two));
    assert_eq!(unit.attach.end(Signal::Terminate), 0);
}

#[test]
fn bad_mount_files_are_refused() {
    if !can_mount() {
        return;
    }
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "1M"]).ok();
    device.start();
    let (data, folder) = (device.data(), device.folder.path().to_owned());
    let attach = |file: &Path, flags: &[&str]| {
        let common = ["--json", "block", "attach", "disk", "--data", text(&data), "--mount-file", text(file)];
        run(&[&common[..], flags].concat())
    };
    std::fs::write(folder.join("full"), b"content").expect("written");
    attach(&folder.join("full"), &[]).fails(1).says(&["content"]);
    attach(&folder, &[]).fails(1).says(&["regular file"]);
    attach(&folder.join("no/such/folder"), &[]).fails(4);
    assert_eq!(attach(&folder.join("file"), &["--nbd", "unix:s"]).code, 2);
    assert_eq!(run(&["block", "attach", "disk", "--data", text(&data)]).code, 2);
    assert_eq!(std::fs::metadata(folder.join("full")).expect("stat").size(), 7);
}
