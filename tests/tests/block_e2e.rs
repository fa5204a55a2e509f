//! End-to-end protected disks through the real binary: users, keys, devices that lie.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sealstone_tests::{CommandResult, Daemon, Initiator, Signal, System, text};

use crate::block_attach::NbdClient;
use crate::block_proxy::{WireChange, WireProxy};
use crate::revocation::{add_user, other};

/// Bytes that are found in no other file.
const PATTERN: &[u8; 64] = b"a secret of the client that the device must never store in clear";

/// A system with a protected disk of 8 MiB.
struct ProtectedDisk {
    system: System,
}

impl ProtectedDisk {
    fn new() -> Self {
        Self::on(System::start(1))
    }

    fn on(system: System) -> Self {
        let disk = Self { system };
        let data = disk.device();
        // End-to-end protection is the default of --protect.
        let create = ["block", "create", "vault", "--data", text(&data), "--size", "8M", "--protect"];
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

    /// Attaches a unit by name or URL with these options alone.
    fn attach_with(&self, unit: &str, flags: &[&str]) -> Result<Daemon, CommandResult> {
        let (data, socket) = (self.device(), format!("unix:{}", text(&self.socket())));
        let mut arguments = vec!["--json", "block", "attach", unit, "--nbd", &socket];
        if !unit.contains("://") {
            arguments.extend(["--data", text(&data)]);
        }
        Daemon::try_start(self.system.command(&[&arguments[..], flags].concat()))
    }

    fn refused_with(&self, unit: &str, flags: &[&str]) -> CommandResult {
        match self.attach_with(unit, flags) {
            Err(refused) => refused,
            Ok(_) => panic!("the unit was attached"),
        }
    }

    /// Attaches the disk again: it is refused as a whole, or each block is right or an error.
    fn reads_right_or_refuses(&self, expected: impl Fn(u64) -> Option<Vec<u8>>) {
        match Daemon::try_start(self.attach_command(None)) {
            Ok(mut attach) => {
                let mut client = NbdClient::connect(&self.socket());
                for (at, expected) in (0..).map_while(|at| Some((at, expected(at)?))) {
                    if client.request(0, at * 4096, 4096, &[]) == 0 {
                        assert!(client.payload(4096) == expected, "block {at}");
                    }
                }
                drop(client);
                let _ = attach.end(Signal::Terminate);
            }
            Err(refused) => drop(refused.fails(1).says(&["not trustworthy"])),
        }
    }

    /// Removes the unit, not its record, and creates a plain one of the same name.
    fn replace_by_plain_unit(&self) {
        let data = self.device();
        other(&self.system, "nobody", &["block", "rm", "vault", "--data", text(&data)]).ok();
        self.system.run(&["block", "create", "vault", "--data", text(&data), "--size", "8M"]).ok();
    }

    fn url(&self, unit: &str) -> String {
        let data = self.device();
        let shown = self.system.run(&["--json", "block", "show", unit, "--data", text(&data)]).ok().json();
        shown["url"].as_str().expect("a URL").to_owned()
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

/// The device dies while several programs write, and then the client dies without a flush.
#[test]
fn acknowledged_writes_survive_kills_of_device() {
    const BLOCKS: u64 = 16;
    let mut disk = ProtectedDisk::new();
    let (mut attach, first) = disk.attach(None);
    let others = [NbdClient::connect(&disk.socket()), NbdClient::connect(&disk.socket())];
    let has_ended = AtomicBool::new(false);
    let content = |writer: u64, version: u64| vec![(version * 3 + writer) as u8 | 1; 4096];
    let place = |writer: u64, at: u64| (writer * BLOCKS + at) * 4096;
    let written: Vec<u64> = std::thread::scope(|scope| {
        let start = |(writer, mut client): (u64, NbdClient)| {
            let has_ended = &has_ended;
            scope.spawn(move || {
                let mut version = 0;
                while version < BLOCKS || !has_ended.load(Ordering::Relaxed) {
                    client.write(place(writer, version % BLOCKS), &content(writer, version));
                    version += 1;
                }
                version
            })
        };
        let writers: Vec<_> = (0..).zip([first].into_iter().chain(others)).map(start).collect();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(400));
            let _ = disk.system.end_osd(0, Signal::Kill);
            disk.system.start_osd(0);
        }
        has_ended.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("all writes succeed")).collect()
    });
    let _ = attach.end(Signal::Kill);
    std::fs::remove_file(disk.socket()).expect("the socket is left");
    let (mut attach, mut client) = disk.attach(None);
    for (writer, versions) in (0..).zip(written) {
        for version in versions - BLOCKS..versions {
            let found = client.read(place(writer, version % BLOCKS), 4096);
            assert!(found == content(writer, version), "writer {writer}, version {version}: {}", found[0]);
        }
    }
    assert_eq!(client.flush(), 0);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    assert_eq!(disk.status()["failures"], 0);
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

/// L4, L11: the record at the metadata server decides, not the device: a removed header, or another
/// disk under the name, is refused without any option, reported and shown.
#[test]
fn downgrade_by_device_is_refused() {
    let disk = ProtectedDisk::new();
    disk.replace_by_plain_unit();
    let url = disk.url("vault");
    disk.refused_with("vault", &[]).fails(3).says(&["record"]);
    disk.refused_with("vault", &["--protect", "e2e"]).fails(3).says(&["no end-to-end protection"]);
    disk.refused_with(&url, &[]).fails(3).says(&["--protect none"]);
    disk.refused_with(&url, &["--protect", "e2e"]).fails(3);
    let status = disk.status();
    assert_eq!(status["failures"], 1, "{status}");
    let audit = std::fs::read_to_string(disk.system.path("mds").join("audit.jsonl")).expect("the audit log");
    assert!(audit.lines().any(|line| line.contains("DiskReport") && line.contains("vault")), "{audit}");
    // The user can insist.
    for unit in ["vault", &url] {
        let mut attach = disk.attach_with(unit, &["--protect", "none"]).expect("a plain unit");
        assert_eq!(attach.field("protect"), "none");
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
    // The device presents the header of another disk.
    let data = disk.device();
    disk.system
        .run(&["block", "create", "spare", "--data", text(&data), "--size", "8M", "--protect", "e2e"])
        .ok();
    let osd = disk.system.osd(0);
    let mut raw = Initiator::login(disk.system.osd_address(0), osd.field("url"), "device");
    for lun in [1, 2] {
        let _ = raw.command(lun, &[0; 6], &[], 0);
    }
    let (status, header) = raw.command(2, &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[], 4096);
    assert_eq!((status, header.len()), (0, 4096));
    assert_eq!(raw.command(1, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 8, 0], &header, 0).0, 0);
    for flags in [&[][..], &["--protect", "e2e"], &["--protect", "none"]] {
        disk.refused_with("vault", flags).fails(3).says(&["another disk"]);
    }
    assert_eq!(disk.status()["failures"], 4);
    let list = disk.system.run(&["--json", "block", "status", "spare", "--data", text(&data)]).ok().json();
    assert_eq!(list["protect"], "e2e");
}

/// Without the record, such as while the metadata server is stopped, nothing is attached unseen.
#[test]
fn plain_attach_without_record_is_explicit() {
    let mut disk = ProtectedDisk::new();
    disk.replace_by_plain_unit();
    assert_eq!(disk.system.end_mds(Signal::Terminate), 0);
    assert_ne!(disk.refused_with("vault", &[]).says(&["--protect none"]).code, 0);
    let mut attach = disk.attach_with("vault", &["--protect", "none"]).expect("a plain unit");
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// L1, L2, L12: a man in the middle changes bytes of blocks, of journal and tree: each read is what
/// was written last, or an error that is reported.
#[test]
fn changes_on_the_wire_are_errors() {
    const EIO: u32 = 5;
    let disk = ProtectedDisk::new();
    let url = disk.url("vault");
    let proxy = WireProxy::start(disk.system.osd_address(0));
    let proxied = url.replace(disk.system.osd_address(0), &proxy.address);
    let flags = ["--protect", "e2e", "--timeout", "20"];
    let mut attach = disk.attach_with(&proxied, &flags).expect("attached");
    let mut client = NbdClient::connect(&disk.socket());
    let mut versions = [0_u8; 8];
    let mut errors = 0;
    for version in 1..=32_u8 {
        let (at, to_target) = (u64::from(version * 5 % 8), version % 3 > 0);
        if to_target {
            proxy.arm(true, WireChange::Byte(100 + 91 * usize::from(version)), 1);
        }
        match client.request(1, at * 4096, 4096, &[version; 4096]) {
            0 => versions[at as usize] = version,
            error => assert_eq!(error, EIO),
        }
        if !to_target {
            proxy.arm(false, WireChange::Byte(100 + 91 * usize::from(version)), 1);
        }
        for at in 0..8_u64 {
            match client.request(0, at * 4096, 4096, &[]) {
                0 => assert!(client.payload(4096) == [versions[at as usize]; 4096], "block {at}, {version}"),
                error => {
                    assert_eq!(error, EIO);
                    errors += 1;
                }
            }
        }
        proxy.disarm();
    }
    assert!(errors > 0);
    let status = disk.status();
    assert!(status["failures"].as_u64() > Some(0), "{status}");
    drop(client);
    let _ = attach.end(Signal::Terminate);
    disk.reads_right_or_refuses(|at| versions.get(at as usize).map(|version| vec![*version; 4096]));
}

/// Two writers: a second client cannot attach the disk, and one that writes to the unit without the
/// lease destroys blocks, which are then errors.
#[test]
fn writer_without_lease_gives_no_wrong_data() {
    let disk = ProtectedDisk::new();
    let (mut attach, mut client) = disk.attach(None);
    client.write(0, &pattern(64));
    assert_eq!(client.flush(), 0);
    let second = disk.system.path("second.sock");
    let socket = format!("unix:{}", text(&second));
    let data = disk.device();
    let refused = disk.system.run(&["block", "attach", "vault", "--data", text(&data), "--nbd", &socket]);
    assert_ne!(refused.says(&["in use"]).code, 0);
    // All of the unit behind its header.
    let mut raw = Initiator::login(disk.system.osd_address(0), disk.system.osd(0).field("url"), "second");
    let _ = raw.command(1, &[0; 6], &[], 0);
    for lba in (8..(8 << 20) / 512_u32).step_by(128) {
        let mut cdb = [0x2A, 0, 0, 0, 0, 0, 0, 0, 120, 0];
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        assert_eq!(raw.command(1, &cdb, &[0x6E; 120 * 512], 0).0, 0);
    }
    let mut errors = 0;
    for at in 0..64_u64 {
        match client.request(0, at * 4096, 4096, &[]) {
            0 => assert!(client.payload(4096) == pattern(1), "block {at}"),
            _ => errors += 1,
        }
    }
    assert!(errors > 32, "{errors}");
    assert!(disk.status()["failures"].as_u64() > Some(0));
    drop(client);
    let _ = attach.end(Signal::Terminate);
    disk.reads_right_or_refuses(|at| (at < 64).then(|| pattern(1)));
}

/// After a rotation, old blocks get the new key in the background, whenever the client is killed.
#[test]
fn rotation_rewrites_blocks_despite_kills() {
    let disk = ProtectedDisk::new();
    let (mut attach, mut client) = disk.attach(None);
    let content = |at: u64| vec![at as u8 ^ 0x35; 64 << 10];
    for at in 0..100 {
        client.write(at * (64 << 10), &content(at));
    }
    assert_eq!(client.flush(), 0);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    assert_eq!(disk.status()["oldest_key_epoch"], 1);
    disk.system.run(&["block", "rotate", "vault"]).ok().says(&["background"]);
    assert_eq!(disk.status()["oldest_key_epoch"], 1);
    for wait_ms in [10, 60, 150] {
        let (mut attach, client) = disk.attach(None);
        std::thread::sleep(Duration::from_millis(wait_ms));
        drop(client);
        let _ = attach.end(Signal::Kill);
        std::fs::remove_file(disk.socket()).expect("the socket is left");
    }
    let (mut attach, mut client) = disk.attach(None);
    // Users write meanwhile.
    client.write(0, &content(77));
    let began = std::time::Instant::now();
    while disk.status()["oldest_key_epoch"] != 2 {
        assert!(began.elapsed() < Duration::from_secs(120), "{}", disk.status());
        std::thread::sleep(Duration::from_millis(100));
    }
    let expected = |at: u64| if at == 0 { content(77) } else { content(at) };
    for at in 0..100 {
        assert!(client.read(at * (64 << 10), 64 << 10) == expected(at), "{at}");
    }
    assert_eq!(client.flush(), 0);
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    let (mut attach, mut client) = disk.attach(None);
    for at in 0..100 {
        assert!(client.read(at * (64 << 10), 64 << 10) == expected(at), "{at}");
    }
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    assert_eq!(disk.status()["failures"], 0);
}

/// Sessions with CHAP below a protected disk: created, attached, refused without the account.
#[test]
fn sealed_disk_on_device_with_chap() {
    let folder = tempfile::tempdir().expect("a folder");
    let private = |name: &str, content: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("narrowed");
        path
    };
    let secret = "what the cluster says";
    let name = "iqn.2026-11.org.sealstone:client";
    let rule = format!("[[initiator]]\nnames = [\"{name}\"]\nuser = \"cluster\"\nsecret = \"{secret}\"\n");
    let access = private("access", &rule);
    let account = format!("[[target]]\nnames = [\"iqn.*\"]\nuser = \"cluster\"\nsecret = \"{secret}\"\n");
    let chap = private("chap", &account);
    let (access, chap) = (text(&access), text(&chap));
    let system = System::start_with_mds(1, "256M", &["--access-file", access], &["--chap-file", chap]);
    let data = system.path("osd0");
    let create = ["block", "create", "vault", "--data", text(&data), "--size", "8M", "--protect", "e2e"];
    assert_ne!(system.run(&create).code, 0, "without the account");
    system.run(&[&create[..], &["--chap-file", chap]].concat()).ok();
    let disk = ProtectedDisk { system };
    disk.refused_with("vault", &[]).fails(3).says(&["--chap-file"]);
    let mut attach = disk.attach_with("vault", &["--chap-file", chap]).expect("attached");
    assert_eq!(attach.field("protect"), "e2e");
    let mut client = NbdClient::connect(&disk.socket());
    client.write(0, &pattern(8));
    assert_eq!((client.flush(), client.read(0, 8 * 4096)), (0, pattern(8)));
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
}
