//! A device on a raw block device: a loop device if the machine provides one, else a file that
//! stands in for it with the same code.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use sealstone_tests::{Daemon, Signal, System, command, run, run_with_input, text};

/// A block device, removed when dropped.
struct LoopDevice {
    path: PathBuf,
    is_loop: bool,
}

impl LoopDevice {
    fn new(folder: &Path, bytes: u64) -> Self {
        let file = folder.join("backing");
        File::create(&file).and_then(|file| file.set_len(bytes)).expect("a sparse file");
        let losetup = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        match losetup {
            Ok(output) if output.status.success() => {
                let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
                Self { path, is_loop: true }
            }
            _ => Self { path: file, is_loop: false },
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if self.is_loop {
            let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
        }
    }
}

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

fn serve(data: &Path, address: &str, flags: &[&str]) -> Daemon {
    let mut command = command(&["osd", "serve", "--data", text(data), "--listen", address, "--json"]);
    command.args(flags);
    Daemon::start(command)
}

#[test]
fn raw_device_survives_kills_and_is_locked() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let block = LoopDevice::new(folder.path(), 256 << 20);
    let (data, key) = (folder.path().join("raw"), folder.path().join("raw.key"));
    let (device, data_text, key_text) = (text(&block.path), text(&data), text(&key));
    let init = ["osd", "init", "--data", data_text, "--device", device, "--key-out", key_text];
    let made = run(&[&init[..], &["--json"]].concat()).ok().json();
    let capacity = made["capacity"].as_u64().expect("a number");
    assert!((200 << 20..240 << 20).contains(&capacity), "most of the device: {capacity}");

    let system = System::start(0);
    let mut daemon = serve(&data, "127.0.0.1:0", &[]);
    let (address, url) = (daemon.field("address").to_owned(), daemon.field("url").to_owned());
    system.run(&["mds", "add-osd", &url, "--key", key_text]).ok();
    for round in 0..3 {
        let path = format!("/file-{round}");
        run_with_input(system.command(&["put", "-", &path]), &content(round, 9_000_000)).ok();
        daemon.end(Signal::Kill);
        // Bytes written through the page cache are read past it, and the other way round.
        let io = ["direct", "cached", "direct"][usize::from(round)];
        daemon = serve(&data, &address, &["--io", io, "--discard-kib-min", "64"]);
        for earlier in 0..=round {
            let found = system.run(&["cat", &format!("/file-{earlier}")]).ok().stdout;
            assert!(found == content(earlier, 9_000_000), "file {earlier} after kill {round}");
        }
    }
    system.run(&["rm", "/file-1"]).ok();
    for earlier in [0, 2] {
        let found = system.run(&["cat", &format!("/file-{earlier}")]).ok().stdout;
        assert!(found == content(earlier, 9_000_000), "file {earlier} after another's space was given back");
    }
    // No second device, and on a block device no file system, can use it meanwhile.
    let other = folder.path().join("other");
    let second = ["osd", "init", "--data", text(&other), "--device", device, "--force"];
    run(&second).fails(1).says(&["in use"]);
    daemon.end(Signal::Terminate);
    run(&second[..6]).fails(1).says(&["a store exists here already", "--force"]);
    assert!(!other.exists(), "a refusal leaves nothing behind");
    run(&second).ok();
    // The first folder's device belongs to another store now.
    run(&["osd", "serve", "--data", data_text, "--listen", "127.0.0.1:0"]).fails(1).says(&["another store"]);
}

#[test]
fn formatting_over_a_file_system_requires_force() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let block = LoopDevice::new(folder.path(), 64 << 20);
    let device = File::options().write(true).open(&block.path).expect("the device opens");
    std::os::unix::fs::FileExt::write_all_at(&device, &[0x53, 0xEF], 0x438).expect("a magic");
    device.sync_all().expect("sync");
    drop(device);
    let data = folder.path().join("raw");
    let init = ["osd", "init", "--data", text(&data), "--device", text(&block.path)];
    run(&init).fails(1).says(&["ext4", "--force"]);
    run(&[&init[..], &["--force", "--capacity", "1G"]].concat()).fails(1).says(&["capacity", "outside"]);
    run(&[&init[..4], &["--device", "/dev/null"]].concat()).fails(1).says(&["neither a block device"]);
    run(&[&init[..4], &["--device", "/nowhere"]].concat()).fails(1).says(&["/nowhere"]);
    assert_eq!(run(&init[..4]).code, 2, "neither capacity nor device");
    assert_eq!(run(&[&init[..4], &["--capacity", "64M", "--force"]].concat()).code, 2, "force what?");
    assert!(!data.exists(), "refusals leave nothing behind");
    run(&[&init[..], &["--force"]].concat()).ok();
}
