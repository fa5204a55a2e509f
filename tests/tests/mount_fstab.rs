//! The process of a mount: as `mount` of util-linux starts it, and how it starts and ends.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};
use sealstone_tests::{CommandResult, Mounted, Signal, System, binary, can_mount, text};

/// A mount point, unmounted when dropped, however often it was mounted.
struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        while unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

/// Returns source, type and options of each mount at a mount point.
fn mounts(place: &Path) -> Vec<(String, String, String)> {
    let table = fs::read_to_string("/proc/self/mounts").expect("the table of mounts");
    let fields = table.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let here = fields.filter(|fields| fields[1] == text(place));
    here.map(|fields| (fields[0].clone(), fields[2].clone(), fields[3].clone())).collect()
}

#[test]
fn fstab_entries_mount_once_and_are_listed() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    system.run(&["mkdir", "/projects"]).ok();
    let place = MountPoint(system.path("mnt"));
    fs::create_dir(&place.0).expect("a folder");
    let session = format!("session={}", text(&system.path("session.toml")));
    let helper = |name: &str, source: &str, options: &str| {
        let link = system.path(name);
        if !link.exists() {
            symlink(binary(), &link).expect("a link");
        }
        let mut command = Command::new(link);
        command.args([source, text(&place.0), "-o", options]).env("SEALSTONE_LOG", "off");
        CommandResult::from(command.output().expect("the helper starts"))
    };
    let mount = |source: &str, options: &str| helper("mount.sealstone", source, options);
    mount("sealstone:/projects", &format!("rw,_netdev,{session}")).ok();
    let found = mounts(&place.0);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&*found[0].0, &*found[0].1), ("sealstone:/projects", "fuse.sealstone"));
    fs::write(place.0.join("file"), b"1").expect("it is written");
    // A second mount on top of it is refused.
    mount("sealstone:/projects", &session).fails(1).says(&["already", "umount"]);
    system.run(&["mount", text(&place.0)]).fails(1).says(&["already"]);
    // `mount -o remount` calls the helper of the type in the mount table.
    helper("mount.fuse.sealstone", "sealstone:/projects", "rw,remount,ro").ok();
    assert!(mounts(&place.0)[0].2.starts_with("ro,nosuid,nodev"), "{:?}", mounts(&place.0));
    let refused = fs::write(place.0.join("file"), b"2").expect_err("it is read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    helper("mount.fuse.sealstone", "sealstone:/projects", "remount,rw").ok();
    fs::write(place.0.join("file"), b"3").expect("it is not any more");
    system.run(&["umount", text(&place.0)]).ok();
    assert_eq!(mounts(&place.0), []);
    // A source without a prefix is shown unchanged.
    mount("/projects", &session).ok();
    assert_eq!(mounts(&place.0)[0].0, "/projects");
    assert_eq!(fs::read(place.0.join("file")).expect("it is there"), b"3");
    system.run(&["umount", text(&place.0)]).ok();
}

/// The end of its terminal ends a mount cleanly: data of open files is stored.
#[test]
fn mount_stores_open_files_at_hangup() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    let content: Vec<u8> =
        (0..3u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for signal in [Signal::HangUp, Signal::Quit, Signal::Terminate] {
        let mut mounted = Mounted::at(&system, "mnt");
        let mut file = fs::File::create(mounted.path("open")).expect("created");
        std::io::Write::write_all(&mut file, &content).expect("written");
        // The mount leaves the tree at once, and ends when the last file in it is closed.
        let open = mounted.path("open");
        let program = std::thread::spawn(move || {
            while open.exists() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            drop(file);
        });
        assert_eq!(mounted.end(signal), 0, "{signal:?}");
        program.join().expect("the file is closed");
        assert!(system.run(&["cat", "/open"]).ok().stdout == content, "{signal:?}");
        system.run(&["rm", "/open"]).ok();
    }
}

/// A background mount needs no folder for temporary files.
#[test]
fn mount_needs_no_temporary_folder() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    let place = system.path("mnt");
    fs::create_dir(&place).expect("created");
    let mut mount = system.command(&["mount", text(&place)]);
    let output = mount.env("TMPDIR", "/nonexistent").output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(place.join("file"), b"content").expect("written");
    system.run(&["umount", text(&place)]).ok();
    // Errors in the background are still reported.
    let mut mount = system.command(&["mount", text(&place), "--path", "/none"]);
    let output = mount.env("TMPDIR", "/nonexistent").output().expect("the binary starts");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && printed.contains("/none"), "{printed}");
}
