//! End-to-end protected disks through the real binary: users, keys, devices that lie.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use sealstone_tests::{CommandResult, Daemon, Signal, System, text};

use crate::block_attach::NbdClient;
use crate::revocation::{add_user, other};

/// Bytes that are found in no other file.
const PATTERN: &[u8; 64] = b"a secret of the client that the device must never store in clear";

/// A system with a protected disk of 8 MiB.
struct ProtectedDisk {
    system: System,
}

impl ProtectedDisk {
    fn new() -> Self {
        let disk = Self { system: System::start(1) };
        let data = disk.device();
        let create = ["block", "create", "vault", "--data", text(&data), "--size", "8M", "--protect", "e2e"];
        disk.system.run(&create).ok().says(&["data are lost"]);
        disk
    }

    fn device(&self) -> PathBuf {
        self.system.path("osd0")
    }

    fn socket(&self) -> PathBuf {
        self.system.path("vault.sock")
    }

    /// Returns the command that attaches the disk in the session of a user; `None`: administrator.
    fn attach_command(&self, user: Option<&str>) -> Command {
        let (data, socket) = (self.device(), format!("unix:{}", text(&self.socket())));
        let mut command = self.system.command(&[
            "--json",
            "block",
            "attach",
            "vault",
            "--data",
            text(&data),
            "--nbd",
            &socket,
            "--protect",
            "e2e",
        ]);
        if let Some(user) = user {
            command.env("SEALSTONE_SESSION", self.system.path(&format!("{user}.toml")));
        }
        command
    }

    fn attach(&self, user: Option<&str>) -> (Daemon, NbdClient) {
        let daemon = Daemon::start(self.attach_command(user));
        (daemon, NbdClient::connect(&self.socket()))
    }

    fn attach_refused(&self, user: Option<&str>) -> CommandResult {
        match Daemon::try_start(self.attach_command(user)) {
            Err(refused) => refused,
            Ok(_) => panic!("the disk was attached"),
        }
    }

    fn status(&self) -> serde_json::Value {
        self.system.run(&["--json", "block", "status", "vault"]).ok().json()
    }
}

fn pattern(blocks: usize) -> Vec<u8> {
    PATTERN.iter().copied().cycle().take(blocks * 4096).collect()
}

#[test]
fn device_stores_no_plain_text() {
    let disk = ProtectedDisk::new();
    let (mut attach, mut client) = disk.attach(None);
    client.write(64 << 10, &pattern(32));
    assert_eq!(client.flush(), 0);
    assert_eq!(client.read(64 << 10, 32 * 4096), pattern(32));
    assert_eq!(client.read(0, 4096), [0; 4096]);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    let (mut attach, mut client) = disk.attach(None);
    assert_eq!(client.read(64 << 10, 32 * 4096), pattern(32));
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    let device = disk.device();
    let grep = Command::new("grep").args(["-rlF", "a secret of the client", text(&device)]).output();
    assert_eq!(grep.expect("grep runs").stdout, b"", "files with plain text");
    let status = disk.status();
    assert_eq!((&status["protection"], &status["failures"]), (&"e2e".into(), &0.into()));
    assert_eq!(status["in_use_by"], serde_json::Value::Null, "the lease was returned");
}

#[test]
fn killed_client_loses_nothing_that_was_flushed() {
    let disk = ProtectedDisk::new();
    let (mut attach, mut client) = disk.attach(None);
    for round in 0..20 {
        client.write(round * 4096, &pattern(1));
        client.write(0, &pattern(4));
    }
    assert_eq!(client.flush(), 0);
    let _ = attach.end(Signal::Kill);
    // The lease of the killed client ends after 14 s.
    std::fs::remove_file(disk.socket()).expect("the socket is left");
    let (mut attach, mut client) = disk.attach(None);
    assert_eq!(client.read(0, 20 * 4096), pattern(20));
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
}

#[test]
fn close_waits_for_device_longer_than_lease() {
    let mut disk = ProtectedDisk::new();
    let (mut attach, mut client) = disk.attach(None);
    client.write(0, &pattern(8));
    assert_eq!(disk.system.end_osd(0, Signal::Terminate), 0);
    drop(client);
    std::thread::scope(|scope| {
        let end = scope.spawn(|| attach.end(Signal::Terminate));
        // The lease is valid for 12 s without renewal.
        std::thread::sleep(Duration::from_secs(14));
        disk.system.start_osd(0);
        assert_eq!(end.join().expect("it ends"), 0);
    });
    let (mut attach, mut client) = disk.attach(None);
    assert_eq!(client.read(0, 8 * 4096), pattern(8));
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
}

#[test]
fn device_set_back_is_reported() {
    let mut disk = ProtectedDisk::new();
    let (mut attach, mut client) = disk.attach(None);
    client.write(0, &pattern(8));
    assert_eq!(client.flush(), 0);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    let (device, old) = (disk.device(), disk.system.path("old"));
    assert_eq!(disk.system.end_osd(0, Signal::Terminate), 0);
    let copy = |from: &PathBuf, to: &PathBuf| {
        let copied = Command::new("cp").args(["-a", "--sparse=always", text(from), text(to)]).status();
        assert!(copied.expect("cp runs").success());
    };
    copy(&device, &old);
    disk.system.start_osd(0);
    let (mut attach, mut client) = disk.attach(None);
    client.write(0, &[7; 4096]);
    assert_eq!(client.flush(), 0);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    assert_eq!(disk.system.end_osd(0, Signal::Terminate), 0);
    std::fs::remove_dir_all(&device).expect("removed");
    copy(&old, &device);
    disk.system.start_osd(0);
    disk.attach_refused(None).fails(1).says(&["not trustworthy"]);
    let status = disk.status();
    assert_eq!(status["failures"], 1);
    assert!(status["last_failure"].is_string(), "{status}");
    let audit = disk.system.path("mds").join("audit.jsonl");
    let lines = std::fs::read_to_string(audit).expect("the audit log");
    assert!(lines.lines().any(|line| line.contains("DiskReport") && line.contains("vault")), "{lines}");
}

#[test]
fn users_gain_and_lose_access() {
    let disk = ProtectedDisk::new();
    add_user(&disk.system, "bob");
    disk.attach_refused(Some("bob")).fails(3).says(&["you have no key"]);
    let grant = ["block", "grant", "vault", "bob"];
    disk.system.run(&grant).fails(1).says(&["block key"]);
    let key = other(&disk.system, "bob", &["--json", "block", "key"]).ok().json();
    let digest = key["key"].as_str().expect("a digest").to_owned();
    let wrong = format!("sha256:{}", "0".repeat(64));
    disk.system.run(&[&grant[..], &["--key", &wrong]].concat()).fails(3).says(&[&digest]);
    disk.system.run(&[&grant[..], &["--key", &digest]].concat()).ok();
    let (mut attach, mut client) = disk.attach(Some("bob"));
    client.write(0, &pattern(2));
    assert_eq!(client.flush(), 0);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    disk.system.run(&["block", "revoke", "vault", "bob"]).ok().says(&["block rotate"]);
    disk.attach_refused(Some("bob")).fails(3).says(&["you have no key"]);
    disk.system.run(&["block", "rotate", "vault"]).ok();
    assert_eq!(disk.status()["key_epoch"], 2);
    let (mut attach, mut client) = disk.attach(None);
    assert_eq!(client.read(0, 2 * 4096), pattern(2), "blocks of the earlier key");
    client.write(4096, &[9; 4096]);
    assert_eq!(client.flush(), 0);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    let (mut attach, mut client) = disk.attach(None);
    assert_eq!(client.read(4096, 4096), [9; 4096]);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
}

#[test]
fn lost_and_wrong_keys_open_nothing() {
    let disk = ProtectedDisk::new();
    let file = disk.system.path("admin.disk-key");
    let key = std::fs::read_to_string(&file).expect("the key file");
    let (head, _) = key.split_once('\n').expect("two lines");
    std::fs::write(&file, format!("{head}\n{}\n", "42".repeat(32))).expect("written");
    disk.attach_refused(None).fails(1).says(&["does not open"]);
    std::fs::remove_file(&file).expect("removed");
    disk.attach_refused(None).fails(4).says(&["block key"]);
}

#[test]
fn removed_disk_frees_its_name() {
    let disk = ProtectedDisk::new();
    let data = disk.device();
    let remove = ["--json", "block", "rm", "vault", "--data", text(&data)];
    let create =
        ["--json", "block", "create", "vault", "--data", text(&data), "--size", "8M", "--protect", "e2e"];
    let show = ["--json", "block", "show", "vault", "--data", text(&data)];
    assert_eq!(disk.system.run(&show).ok().json()["protect"], "e2e");
    let list = disk.system.run(&["block", "list", "--data", text(&data)]).ok().text();
    assert!(list.contains("e2e"), "{list}");
    disk.system.run(&create).fails(1).says(&["exists", "--record"]);
    assert_eq!(disk.system.run(&remove).ok().json()["record_removed"], true);
    disk.system.run(&["block", "status", "vault"]).fails(4);
    disk.system.run(&create).ok();
    // Without a session the record remains.
    other(&disk.system, "bob", &remove[1..]).ok().says(&["not the record", "block rm vault --record"]);
    disk.system.run(&create).fails(1);
    // A plain unit of the same name is not that disk.
    disk.system.run(&create[..8]).ok();
    assert_eq!(disk.system.run(&remove).ok().json()["record_removed"], false);
    assert_eq!(disk.status()["name"], "vault");
    disk.system.run(&["block", "rm", "vault", "--record"]).ok();
    disk.system.run(&["block", "rm", "vault", "--record"]).fails(4);
    disk.system.run(&create).ok();
}

#[test]
fn unit_without_header_is_refused_on_request() {
    let disk = ProtectedDisk::new();
    let data = disk.device();
    // A device that lies can present another unit under the name.
    disk.system.run(&["block", "rm", "vault", "--data", text(&data)]).ok();
    disk.system.run(&["block", "create", "vault", "--data", text(&data), "--size", "8M"]).ok();
    disk.attach_refused(None).fails(3).says(&["no end-to-end protection"]);
    let create = ["block", "create", "odd", "--data", text(&data), "--size", "8M", "--protect", "e2e"];
    disk.system.run(&[&create[..], &["--insecure-paper-profile"]].concat()).fails(2);
}
