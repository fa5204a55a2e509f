//! `sealstone block attach` through the real binary, with clients of other projects.

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sealstone_tests::{Daemon, Signal, command, is_installed, run, text};

use crate::block_units::{UnitDevice, start_after_power_failure, tool};

/// A device with one unit of 32 MiB, exported by NBD.
struct AttachedUnit {
    device: UnitDevice,
    attach: Daemon,
}

impl AttachedUnit {
    fn new(create: &[&str], flags: &[&str]) -> Self {
        let device = UnitDevice::with_disk(create);
        let attach = Self::attach(&device, flags);
        Self { device, attach }
    }

    fn attach(device: &UnitDevice, flags: &[&str]) -> Daemon {
        let socket = format!("unix:{}", text(&Self::socket(device)));
        device.attach(&["--nbd", &socket], flags)
    }

    fn socket(device: &UnitDevice) -> PathBuf {
        device.folder.path().join("nbd.sock")
    }

    fn uri(&self) -> String {
        self.attach.field("uri").to_owned()
    }

    fn client(&self) -> NbdClient {
        NbdClient::connect(&Self::socket(&self.device))
    }
}

/// A minimal NBD client with simple replies.
pub(crate) struct NbdClient(UnixStream);

const WRITE: u16 = 1;
const FLUSH: u16 = 3;

impl NbdClient {
    pub(crate) fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        stream.write_all(&3_u32.to_be_bytes()).expect("sent");
        // NBD_OPT_GO for the default export, with a request of its block sizes.
        let option = [0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0, 3];
        stream.write_all(&[b"IHAVEOPT".as_slice(), &option].concat()).expect("sent");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("received");
        assert_eq!(greeting[..8], *b"NBDMAGIC");
        loop {
            let mut reply = [0; 20];
            stream.read_exact(&mut reply).expect("received");
            let field = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes"));
            let mut data = vec![0; field(16) as usize];
            stream.read_exact(&mut data).expect("received");
            match field(12) {
                1 => return Self(stream),
                kind => assert_eq!(kind, 3, "{}", String::from_utf8_lossy(&data)),
            }
        }
    }

    pub(crate) fn send(&mut self, code: u16, offset: u64, length: u32, data: &[u8]) {
        let mut bytes = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0], &code.to_be_bytes()].concat();
        bytes.extend(offset.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend_from_slice(data);
        self.0.write_all(&bytes).expect("sent");
    }

    pub(crate) fn error(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).expect("received");
        u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"))
    }

    pub(crate) fn request(&mut self, code: u16, offset: u64, length: u32, data: &[u8]) -> u32 {
        self.send(code, offset, length, data);
        self.error()
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("short");
        assert_eq!(self.request(WRITE, offset, length, data), 0);
    }

    pub(crate) fn flush(&mut self) -> u32 {
        self.request(FLUSH, 0, 0, &[])
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        assert_eq!(self.request(0, offset, length, &[]), 0);
        self.payload(length as usize)
    }

    /// Receives the data of a read that succeeded.
    pub(crate) fn payload(&mut self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.0.read_exact(&mut data).expect("received");
        data
    }
}

/// Bytes without repetition, with a hole of 4 MiB.
fn image(length: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bytes[4 << 20..8 << 20].fill(0);
    bytes
}

#[test]
fn qemu_uses_exports_of_both_block_sizes() {
    if !is_installed("qemu-img") || !is_installed("qemu-io") {
        return;
    }
    for block in ["512", "4096"] {
        let unit = AttachedUnit::new(&["--block-size", block], &[]);
        let uri = unit.uri();
        let file = unit.device.folder.path().join("image");
        std::fs::write(&file, image(32 << 20)).expect("written");
        assert!(tool("qemu-img", &["info", &uri]).contains("32 MiB"));
        tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&file), &uri]);
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&file), &uri]);
        let map = tool("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
        assert!(map.contains("\"start\": 4194304, \"length\": 4194304"), "the hole is known: {map}");
        let script = [
            "write -P 0x5a 1M 64k",
            "flush",
            "read -P 0x5a 1M 64k",
            "write -f -P 7 16M 12k",
            "read -P 7 16M 12k",
            "discard 16M 1M",
            "read -P 0 16M 1M",
            "write -P 9 17M 1M",
            "write -z 17M 512k",
            "write -z -u 17920k 512k",
            "read -P 0 17M 1M",
            "aio_write -P 3 18M 1M",
            "aio_write -P 4 19M 1M",
            "aio_flush",
            "read -P 3 18M 1M",
            "read -P 4 19M 1M",
        ];
        let mut arguments = vec!["-f", "raw"];
        script.iter().for_each(|line| arguments.extend(["-c", line]));
        let said = tool("qemu-io", &[&arguments[..], &[&uri]].concat());
        assert!(!said.contains("failed") && !said.contains("Pattern"), "{said}");
    }
}

#[test]
fn libnbd_copies_over_several_connections() {
    if !is_installed("nbdinfo") || !is_installed("nbdcopy") {
        return;
    }
    let mut unit = AttachedUnit::new(&[], &["--sessions", "2"]);
    let uri = unit.uri();
    let information: serde_json::Value =
        serde_json::from_str(&tool("nbdinfo", &["--json", &uri])).expect("JSON");
    let export = &information["exports"][0];
    for ability in
        ["can_multi_conn", "can_fua", "can_flush", "can_trim", "can_zero", "can_fast_zero", "can_df"]
    {
        assert_eq!(export[ability], true, "{ability}: {information}");
    }
    assert_eq!((&export["block_size_minimum"], &export["export-size"]), (&512.into(), &(32 << 20).into()));
    let [file, back] = ["image", "back"].map(|name| unit.device.folder.path().join(name));
    let bytes = image(32 << 20);
    std::fs::write(&file, &bytes).expect("written");
    tool("nbdcopy", &["--connections=4", "--requests=32", "--flush", text(&file), &uri]);
    let map = tool("nbdinfo", &["--map", &uri]);
    assert!(map.contains("hole,zero"), "{map}");
    tool("nbdcopy", &["--connections=4", &uri, text(&back)]);
    assert!(std::fs::read(&back).expect("a copy") == bytes, "the copy differs");
    let socket = AttachedUnit::socket(&unit.device);
    assert_eq!(std::fs::metadata(&socket).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(unit.attach.end(Signal::Terminate), 0);
    assert!(!socket.exists());
}

#[test]
fn fio_verifies_its_writes() {
    if !is_installed("fio") {
        return;
    }
    let engines = tool("fio", &["--enghelp"]);
    if !engines.lines().any(|line| line.trim() == "nbd") {
        sealstone_tests::left_out("fio has no engine nbd");
        return;
    }
    let unit = AttachedUnit::new(&[], &[]);
    let uri = format!("--uri={}", unit.uri());
    let folder = format!("--aux-path={}", text(unit.device.folder.path()));
    let said = tool(
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            &folder,
            "--rw=randrw",
            "--bsrange=512-64k",
            "--bs_unaligned=0",
            "--size=16M",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--fsync=64",
        ],
    );
    assert!(said.contains("err= 0"), "{said}");
}

#[test]
fn ext4_image_round_trips() {
    if !["mke2fs", "e2fsck", "qemu-img"].iter().all(|program| is_installed(program)) {
        return;
    }
    let mut unit = AttachedUnit::new(&[], &[]);
    let [folder, file, back] = ["files", "fs", "back"].map(|name| unit.device.folder.path().join(name));
    std::fs::create_dir(&folder).expect("created");
    for index in 0..40_u32 {
        std::fs::write(folder.join(format!("file{index}")), index.to_string().repeat(9000)).expect("written");
    }
    std::fs::File::create(&file).and_then(|file| file.set_len(32 << 20)).expect("a file");
    tool("mke2fs", &["-q", "-t", "ext4", "-d", text(&folder), text(&file)]);
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&file), &unit.uri()]);
    assert_eq!(unit.attach.end(Signal::Terminate), 0);
    unit.device.end(Signal::Kill);
    unit.device.start();
    unit.attach = AttachedUnit::attach(&unit.device, &["--read-only"]);
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &unit.uri(), text(&back)]);
    tool("e2fsck", &["-f", "-n", text(&back)]);
    let mut client = unit.client();
    assert_eq!(client.request(WRITE, 0, 512, &[1; 512]), 1, "EPERM of a read-only export");
}

/// While the device is killed and started again, requests wait; no acknowledged write is lost, and
/// no request fails.
#[test]
fn requests_continue_after_device_was_killed() {
    for flags in [&[][..], &["--sessions", "3"]] {
        let mut unit = AttachedUnit::new(&[], flags);
        let mut client = unit.client();
        let block = |version: u8, at: u64| vec![version ^ (at as u8); 4096];
        for round in 1..=4_u8 {
            for at in 0..32 {
                client.write(at * 4096, &block(round, at));
            }
            // Half of these are sent before the device ends, the others after it.
            for at in 32..48 {
                client.send(WRITE, at * 4096, 4096, &block(round, at));
            }
            unit.device.end(Signal::Kill);
            for at in 48..64 {
                client.send(WRITE, at * 4096, 4096, &block(round, at));
            }
            unit.device.start();
            for _ in 32..64 {
                assert_eq!(client.error(), 0);
            }
            for at in 0..64 {
                assert!(client.read(at * 4096, 4096) == block(round, at), "round {round}, block {at}");
            }
            assert_eq!(client.flush(), 0, "the death of the process loses nothing");
        }
        assert_eq!(unit.attach.end(Signal::Terminate), 0);
    }
}

/// Whether a mount namespace with another boot identifier can be made.
fn can_change_boot_id() -> bool {
    let made = std::process::Command::new("unshare").args(["--mount", "--map-root-user", "true"]).output();
    let can = made.is_ok_and(|output| output.status.success());
    if !can {
        sealstone_tests::left_out("no mount namespaces");
    }
    can
}

/// Time after a write in which the device still has it as unflushed: it flushes after 5 s idle.
const UNFLUSHED_TIME: Duration = Duration::from_secs(4);

/// Writes and kills the device before that write is flushed.
fn write_and_kill(unit: &mut AttachedUnit, client: &mut NbdClient) {
    for _ in 0..10 {
        let began = Instant::now();
        client.write(0, &[7; 4096]);
        unit.device.end(Signal::Kill);
        if began.elapsed() < UNFLUSHED_TIME {
            return;
        }
        // The machine is busy. The death of the process alone loses nothing.
        unit.device.start();
    }
    panic!("the machine is too slow to kill the device within {UNFLUSHED_TIME:?} after a write");
}

#[test]
fn lost_writes_fail_next_flush_once() {
    const EIO: u32 = 5;
    if !can_change_boot_id() {
        return;
    }
    for flags in [&[][..], &["--sessions", "3"]] {
        let mut unit = AttachedUnit::new(&[], flags);
        let [mut one, mut two] = [unit.client(), unit.client()];
        write_and_kill(&mut unit, &mut one);
        start_after_power_failure(&mut unit.device);
        // Reads and writes continue, but no flush hides the loss.
        assert_eq!(one.read(0, 4096).len(), 4096);
        assert_eq!(one.flush(), EIO);
        assert_eq!(one.flush(), 0, "once");
        one.write(0, &[8; 4096]);
        assert_eq!(one.flush(), 0);
        assert_eq!(two.flush(), EIO, "each connection is informed");
        assert_eq!(two.flush(), 0);
        assert_eq!(unit.client().flush(), 0, "a later connection has lost nothing");
        assert_eq!(unit.attach.end(Signal::Terminate), 0);
    }
}

#[test]
fn unseen_loss_is_the_exit_code() {
    if !can_change_boot_id() {
        return;
    }
    let mut unit = AttachedUnit::new(&[], &[]);
    let mut client = unit.client();
    write_and_kill(&mut unit, &mut client);
    drop(client);
    start_after_power_failure(&mut unit.device);
    assert_eq!(unit.attach.end(Signal::Terminate), 1);
    let said = unit.attach.stderr();
    assert!(said.contains("lost acknowledged writes") && said.contains("file system"), "{said}");
}

#[test]
fn unavailable_device_fails_requests_in_time() {
    const EIO: u32 = 5;
    let mut unit = AttachedUnit::new(&[], &["--timeout", "5"]);
    let mut client = unit.client();
    client.write(0, &[1; 512]);
    unit.device.end(Signal::Kill);
    assert_eq!(client.request(WRITE, 0, 512, &[2; 512]), EIO);
    assert_eq!(client.flush(), EIO);
    unit.device.start();
    client.write(0, &[3; 512]);
    assert_eq!(client.flush(), 0, "the writes were not lost");
    assert_eq!(client.read(0, 512), [3; 512]);
}

#[test]
fn wrong_arguments_are_refused_in_one_line() {
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "1M"]).ok();
    let folder = device.folder.path().to_owned();
    let socket = format!("unix:{}", text(&folder.join("s")));
    let attach = |device: &UnitDevice, unit: &str, nbd: &str, flags: &[&str]| {
        let data = device.data();
        let common = ["--json", "block", "attach", unit, "--nbd", nbd, "--data", text(&data)];
        run(&[&common[..], flags].concat())
    };
    attach(&device, "disk", &socket, &[]).fails(1).says(&["the device is stopped", "osd serve"]);
    run(&["block", "attach", "disk", "--nbd", &socket]).fails(2).says(&["--data"]);
    device.start();
    attach(&device, "other", &socket, &[]).fails(4).says(&["no block unit named other"]);
    attach(&device, "disk", &socket, &["--export", ""]).fails(2).says(&["--export"]);
    attach(&device, "disk", &socket, &["--initiator-name", "vm1"]).fails(2).says(&["no iSCSI name"]);
    attach(&device, "disk", &socket, &["--initiator-name", "iqn.*"]).fails(2).says(&["a pattern"]);
    attach(&device, "disk", &socket, &["--device-tls", "required", "--pin", &format!("sha256:{:064}", 0)])
        .fails(3)
        .says(&["certificate"]);
    assert_eq!(attach(&device, "disk", "tcp:1", &[]).code, 2);
    assert_eq!(attach(&device, "disk", &socket, &["--sessions", "9"]).code, 2);
    let url = |lun| run(&["block", "attach", &device.url(lun), "--nbd", &socket]);
    url(0).fails(1).says(&["not a disk"]);
    url(7).fails(4).says(&["no such logical unit"]);
    run(&["block", "attach", "iscsi://x", "--nbd", &socket]).fails(2);
    run(&["block", "attach", "iscsi://127.0.0.1:1/iqn.x/1", "--nbd", &socket]).fails(1).says(&["runs"]);
    let foreign = device.url(1).replace("osd.judge", "osd.other");
    run(&["block", "attach", &foreign, "--nbd", &socket]).fails(4).says(&["refused the login"]);
    // The socket.
    let open = folder.join("open");
    std::fs::create_dir(&open).expect("created");
    std::fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("set");
    let nbd = format!("unix:{}", text(&open.join("s")));
    attach(&device, "disk", &nbd, &[]).fails(1).says(&["the folder of the socket"]);
    std::fs::write(folder.join("file"), b"x").expect("written");
    let nbd = format!("unix:{}", text(&folder.join("file")));
    attach(&device, "disk", &nbd, &[]).fails(1).says(&["no socket"]);
    let data = device.data();
    let first = Daemon::start(command(&[
        "--json",
        "block",
        "attach",
        "disk",
        "--data",
        text(&data),
        "--nbd",
        &socket,
    ]));
    attach(&device, "disk", &socket, &[]).fails(1).says(&["another server uses the socket"]);
    drop(first);
    // A killed server leaves a socket, which the next one replaces.
    let arguments = ["--json", "block", "attach", "disk", "--data", text(&data), "--nbd", &socket];
    drop(Daemon::start(command(&[&arguments[..], &["--device-tls", "required"]].concat())));
}

#[test]
fn attach_proves_its_chap_account() {
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "1M"]).ok();
    let private = |name: &str, content: &str| {
        let path = device.folder.path().join(name);
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("private");
        path
    };
    let secret = "user = \"vm1\"\nsecret = \"at least twelve bytes\"\n";
    let access = private(
        "access.toml",
        &format!("[[initiator]]\nnames = [\"iqn.2026-11.org.example:vm1\"]\n{secret}luns = [1]\n"),
    );
    let right = private("right.chap", &format!("[[target]]\nnames = [\"*\"]\n{secret}"));
    let wrong =
        private("wrong.chap", &format!("[[target]]\nnames = [\"*\"]\n{secret}").replace("least", "most_"));
    device.start_with(&["--access-file", text(&access)]);
    let socket = format!("unix:{}", text(&AttachedUnit::socket(&device)));
    let data = device.data();
    let name = ["--initiator-name", "iqn.2026-11.org.example:vm1"];
    let arguments = ["--json", "block", "attach", "disk", "--data", text(&data), "--nbd", &socket];
    run(&arguments).fails(3);
    run(&[&arguments[..], &name].concat()).fails(3);
    run(&[&arguments[..], &name, &["--chap-file", text(&wrong)]].concat()).fails(3).says(&["--chap-file"]);
    let attach = Daemon::start(command(&[&arguments[..], &name, &["--chap-file", text(&right)]].concat()));
    let mut client = NbdClient::connect(&AttachedUnit::socket(&device));
    client.write(0, &[5; 512]);
    assert_eq!(client.read(0, 512), [5; 512]);
    drop(attach);
}
