//! Real file systems of the kernel on block units: `--mount-file`, a loop device, ext4 and xfs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use sealstone_tests::{Daemon, Signal, System, can_mount, is_installed, left_out, text};

use crate::block_units::tool;

/// Size of a unit: the least that xfs accepts, and 2 % for the tree of a protected disk.
const SIZE: &str = "320M";

/// A file system that the kernel mounts from a file.
#[derive(Clone, Copy)]
struct FileSystem {
    name: &'static str,
    make: &'static str,
    /// Checks an image without changes.
    check: &'static [&'static str],
}

const EXT4: FileSystem = FileSystem { name: "ext4", make: "mkfs.ext4", check: &["e2fsck", "-f", "-n"] };
const XFS: FileSystem = FileSystem { name: "xfs", make: "mkfs.xfs", check: &["xfs_repair", "-n"] };

/// A unit as a file, whose file system is mounted through a loop device.
struct MountedUnit {
    system: System,
    protect: &'static str,
    attach: Option<Daemon>,
    device: Option<String>,
}

/// Whether the kernel has loop devices and the programs exist.
fn can_loop(kind: FileSystem) -> bool {
    if !can_mount() || ![kind.make, kind.check[0], "losetup"].iter().all(|program| is_installed(program)) {
        return false;
    }
    let free = Command::new("losetup").arg("--find").output();
    let has_loop = free.is_ok_and(|output| output.status.success());
    let kernel = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = kernel.lines().any(|line| line.trim() == kind.name)
        || Command::new("modprobe").arg(kind.name).status().is_ok_and(|status| status.success());
    if !has_loop {
        left_out("no loop devices");
    } else if !is_known {
        left_out(&format!("the kernel has no {}", kind.name));
    }
    has_loop && is_known
}

impl MountedUnit {
    fn new(protect: &'static str) -> Self {
        let unit = Self { system: System::start_with(1, "1G", &[]), protect, attach: None, device: None };
        // Mounts below are shared, as they are where systemd runs: what is unmounted here is
        // unmounted in the mount namespaces of engines too.
        let mounts = unit.system.path("mounts");
        fs::create_dir(&mounts).expect("created");
        tool("mount", &["-t", "tmpfs", "mounts", text(&mounts)]);
        tool("mount", &["--make-shared", text(&mounts)]);
        let data = unit.system.path("osd0");
        let create = ["block", "create", "disk", "--data", text(&data), "--size", SIZE, "--protect", protect];
        unit.system.run(&create).ok();
        unit
    }

    fn file(&self) -> PathBuf {
        self.system.path("mounts/disk.img")
    }

    fn place(&self) -> PathBuf {
        self.system.path("mounts/place")
    }

    fn attach(&mut self) {
        let (data, file) = (self.system.path("osd0"), self.file());
        let mut arguments = vec!["--json", "block", "attach", "disk", "--data", text(&data)];
        arguments.extend(["--mount-file", text(&file), "--timeout", "300"]);
        if self.protect == "e2e" {
            arguments.extend(["--protect", "e2e"]);
        }
        let command = self.system.command(&arguments);
        let attach = Daemon::start(command);
        assert_eq!(attach.field("protect"), self.protect);
        self.attach = Some(attach);
    }

    fn detach(&mut self) {
        let mut attach = self.attach.take().expect("it is attached");
        assert_eq!(attach.end(Signal::Terminate), 0, "{}", attach.stderr());
    }

    fn mount(&mut self, kind: FileSystem, options: &str) {
        let device = tool("losetup", &["--find", "--show", "--direct-io=on", text(&self.file())]);
        let device = device.trim().to_owned();
        self.device = Some(device.clone());
        let place = self.place();
        fs::create_dir_all(&place).expect("created");
        tool("mount", &["-t", kind.name, "-o", options, &device, text(&place)]);
    }

    fn unmount(&mut self) {
        tool("umount", &[text(&self.place())]);
        tool("losetup", &["-d", &self.device.take().expect("it is mounted")]);
    }
}

impl Drop for MountedUnit {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            let _ = Command::new("umount").arg("-l").arg(self.place()).status();
            let _ = Command::new("losetup").args(["-d", &device]).status();
        }
        for place in [self.file(), self.system.path("mounts")] {
            let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Creates a tree of files of many sizes, with links, modes and holes.
fn create_tree(root: &Path, seed: u8) {
    for folder in 0..6 {
        let path = root.join(format!("folder {folder}/deeper"));
        fs::create_dir_all(&path).expect("created");
        for index in 0..25_u32 {
            let length = (index * index * 997 + folder * 31) as usize % 400_000;
            let content: Vec<u8> =
                (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 21) as u8 ^ seed).collect();
            let file = path.join(format!("file{index}"));
            fs::write(&file, content).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o400 | (index % 8))).expect("set");
        }
        symlink("deeper/file3", path.join("../link")).expect("linked");
        fs::hard_link(path.join("file4"), path.join("another name")).expect("linked");
        let sparse = fs::File::create(path.join("sparse")).expect("created");
        sparse.set_len(3 << 20).expect("resized");
    }
}

fn assert_same(one: &Path, two: &Path) {
    tool("diff", &["-r", "--no-dereference", text(one), text(two)]);
    let modes = |root: &Path| {
        let listed = Command::new("find")
            .current_dir(root)
            .args([".", "-mindepth", "1", "-name", "lost+found", "-prune", "-o", "-printf"])
            .arg("%P %y %m %n %l\n")
            .output()
            .expect("find runs");
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| !line.is_empty() && !line.contains(" d "))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(modes(one), modes(two));
}

/// Makes a file system, copies a tree to it, checks it, attaches it again and compares the tree.
fn file_system_survives(kind: FileSystem, protect: &'static str, kills_device: bool) {
    if !can_loop(kind) {
        return;
    }
    let mut unit = MountedUnit::new(protect);
    let source = unit.system.path("source");
    create_tree(&source, 7);
    unit.attach();
    tool(kind.make, &["-q", text(&unit.file())]);
    unit.mount(kind, "defaults");
    let copy = unit.place().join("tree");
    let copying = {
        let (source, copy) = (source.clone(), copy.clone());
        thread::spawn(move || {
            tool("cp", &["-a", text(&source), text(&copy)]);
            tool("sync", &["-f", text(&copy)]);
        })
    };
    if kills_device {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(300));
            let _ = unit.system.end_osd(0, Signal::Kill);
            unit.system.start_osd(0);
        }
    }
    copying.join().expect("copied");
    // Removed and written again: the unit frees and uses space.
    fs::remove_dir_all(copy.join("folder 2")).expect("removed");
    tool("cp", &["-a", text(&source.join("folder 2")), text(&copy)]);
    if kind.name == "ext4" {
        tool("fstrim", &[text(&unit.place())]);
    }
    assert_same(&source, &copy);
    unit.unmount();
    unit.detach();
    // After a restart of the device everything comes from its disk.
    let _ = unit.system.end_osd(0, Signal::Terminate);
    unit.system.start_osd(0);
    unit.attach();
    tool(kind.check[0], &[&kind.check[1..], &[text(&unit.file())]].concat());
    unit.mount(kind, "ro");
    assert_same(&source, &copy);
    unit.unmount();
    unit.detach();
}

#[test]
fn ext4_on_plain_unit_survives_killed_device() {
    file_system_survives(EXT4, "none", true);
}

#[test]
fn xfs_on_plain_unit_is_whole_after_attach() {
    file_system_survives(XFS, "none", false);
}

#[test]
fn ext4_on_sealed_disk_is_whole_after_attach() {
    file_system_survives(EXT4, "e2e", false);
}

#[test]
fn xfs_on_sealed_disk_survives_killed_device() {
    file_system_survives(XFS, "e2e", true);
}
