//! Block units through the real binary: the command line, third-party initiators, SIGKILL.

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use sealstone_osd::{AttributeId, ObjectId};
use sealstone_store::{DiskStore, IoMode, ObjectStore as _, StoreOptions, open_store_medium};
use sealstone_tests::{CommandResult, Daemon, Initiator, Signal, command, get, reserve_address, run, text};

/// A device in its own folder.
pub(crate) struct UnitDevice {
    pub(crate) folder: tempfile::TempDir,
    daemon: Option<Daemon>,
    /// The same address for every start.
    address: String,
}

impl UnitDevice {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let device = Self { folder, daemon: None, address: reserve_address() };
        let key = device.folder.path().join("key");
        run(&[
            "osd",
            "init",
            "--data",
            text(&device.data()),
            "--capacity",
            "256M",
            "--name",
            "judge",
            "--key-out",
            text(&key),
        ])
        .ok();
        device
    }

    /// Starts a device with the unit `disk` of 32 MiB.
    pub(crate) fn with_disk(create: &[&str]) -> Self {
        let mut device = Self::new();
        device.block(&[&["create", "disk", "--size", "32M"], create].concat()).ok();
        device.start();
        device
    }

    /// Attaches the unit `disk` at this address.
    pub(crate) fn attach(&self, address: &[&str], flags: &[&str]) -> Daemon {
        let data = self.data();
        let unit = ["--json", "block", "attach", "disk", "--data", text(&data)];
        Daemon::start(command(&[&unit[..], address, flags].concat()))
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("device")
    }

    /// Runs `sealstone block VERB …` on this device.
    pub(crate) fn block(&self, arguments: &[&str]) -> CommandResult {
        let data = self.data();
        run(&[&["--json", "block"], arguments, &["--data", text(&data)]].concat())
    }

    pub(crate) fn start(&mut self) {
        self.start_with(&[]);
    }

    pub(crate) fn start_with(&mut self, flags: &[&str]) {
        self.start_logged("off", flags);
    }

    /// Starts it with messages of at least this severity on its standard error.
    pub(crate) fn start_logged(&mut self, log: &str, flags: &[&str]) {
        let data = self.data();
        let mut command =
            command(&["--json", "osd", "serve", "--data", text(&data), "--listen", &self.address]);
        command.args(flags).env("SEALSTONE_LOG", log);
        self.daemon = Some(Daemon::start(command));
    }

    pub(crate) fn end(&mut self, signal: Signal) {
        let _ = self.daemon.take().expect("it runs").end(signal);
    }

    /// Returns the standard error of the running device so far.
    pub(crate) fn stderr(&self) -> String {
        self.daemon.as_ref().expect("it runs").stderr()
    }

    pub(crate) fn field(&self, name: &str) -> String {
        self.daemon.as_ref().expect("it runs").field(name).to_owned()
    }

    /// Returns the URL of a logical unit.
    pub(crate) fn url(&self, lun: u16) -> String {
        let osd = self.field("url");
        format!("{}/{lun}", osd.strip_suffix("/0").expect("the OSD is LUN 0"))
    }

    /// Logs in and clears the initial unit attentions.
    fn login(&self, name: &str) -> Initiator {
        let mut initiator = Initiator::login(&self.field("address"), &self.field("url"), name);
        let _ = initiator.command(1, &[0; 6], &[], 0);
        initiator
    }
}

/// Runs a third-party tool and returns its output.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}: run scripts/setup --tests"));
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {arguments:?}: {printed}");
    printed
}

#[test]
fn units_are_managed_online_and_offline() {
    let mut device = UnitDevice::new();
    let made = device.block(&["create", "one", "--size", "16M"]).ok().json();
    assert_eq!(
        (made["lun"].as_u64(), made["size"].as_u64(), made["url"].as_str()),
        (Some(1), Some(16 << 20), None)
    );
    device.start_with(&["--metrics", "127.0.0.1:0"]);
    let made =
        device.block(&["create", "two", "--size", "64M", "--block-size", "4096", "--lun", "9"]).ok().json();
    assert_eq!(made["url"].as_str(), Some(device.url(9).as_str()));
    // Both units are visible at once, also the one created before the start.
    let listed = tool("iscsi-ls", &["-s", &format!("iscsi://{}", device.field("address"))]);
    assert!(listed.contains("Lun:1") && listed.contains("Lun:9"), "{listed}");
    let units = device.block(&["list"]).ok().json();
    let names: Vec<_> =
        units["units"].as_array().expect("a list").iter().map(|unit| unit["name"].clone()).collect();
    assert_eq!(names, ["one", "two"]);
    device.block(&["rm", "two"]).ok();
    let listed = tool("iscsi-ls", &["-s", &format!("iscsi://{}", device.field("address"))]);
    assert!(!listed.contains("Lun:9"), "{listed}");
    let (_, page) = get(&device.field("metrics"), "/metrics");
    assert!(
        page.contains("sealstone_block_commands_total{device=\"judge\",lun=\"1\",unit=\"one\"}"),
        "{page}"
    );
    device.end(Signal::Terminate);
    assert!(!device.data().join("control.sock").exists());
    assert_eq!(device.block(&["list"]).ok().json()["units"].as_array().map(Vec::len), Some(1));
    device.block(&["rm", "one"]).ok();
    assert_eq!(run(&["block", "list", "--data", text(&device.data())]).ok().text(), "no block units\n");
}

#[test]
fn invalid_units_are_refused_in_one_line() {
    let mut device = UnitDevice::new();
    let nowhere = device.folder.path().join("nowhere");
    run(&["block", "list", "--data", text(&nowhere)]).fails(4);
    for running in [false, true] {
        if running {
            device.start();
        }
        device.block(&["create", "Upper", "--size", "1M"]).fails(2).says(&["bad name"]);
        device.block(&["create", "a", "--size", "1000"]).fails(2).says(&["multiple of the block size"]);
        device.block(&["create", "a", "--size", "0"]).fails(2);
        device
            .block(&["create", "a", "--size", "1M", "--block-size", "1024"])
            .fails(2)
            .says(&["512 or 4096"]);
        device.block(&["create", "a", "--size", "1M", "--lun", "0"]).fails(2).says(&["1 to 255"]);
        device.block(&["create", "a", "--size", "1G", "--thick"]).fails(1).says(&["free"]);
        device.block(&["rm", "a"]).fails(4).says(&["no block unit named a"]);
        device.block(&["create", if running { "y" } else { "x" }, "--size", "1M"]).ok();
        device
            .block(&["create", if running { "y" } else { "x" }, "--size", "1M"])
            .fails(1)
            .says(&["already"]);
    }
    // A running device has exclusive use of its store.
    let data = device.data();
    let second = run(&["osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
    second.fails(1).says(&["in use"]);
    assert_eq!(device.block(&["list"]).ok().json()["units"].as_array().map(Vec::len), Some(2));
}

/// The control socket accepts one request; anything else is refused or dropped, and the device
/// continues.
#[test]
fn the_control_socket_bears_anything() {
    let mut device = UnitDevice::new();
    device.start();
    let path = device.data().join("control.sock");
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let say = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&path).expect("connects");
        // The device may close before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    for (request, answer) in [
        ("nonsense\n", "usage"),
        ("{\"format\":{}}\n", "usage"),
        ("{\"create\":{\"name\":\"a\"}}\n", "usage"),
        ("{\"remove\":{\"name\":\"a\",\"force\":true,\"more\":1}}\n", "usage"),
        ("{\"remove\":{\"name\":\"a\",\"force\":true}}\n", "not_found"),
        ("\"list\"\n", "done"),
        ("", ""),
    ] {
        let printed = say(request.as_bytes());
        assert!(printed.contains(answer), "{request}: {printed}");
    }
    assert!(!say(&vec![b'['; 3 << 20]).contains("done"), "longer than any request");
    let _held = UnixStream::connect(&path).expect("connects");
    assert_eq!(device.block(&["list"]).ok().json()["units"].as_array().map(Vec::len), Some(0));
}

/// A block unit has no capabilities, so it is not offered beyond loopback without permission.
#[test]
fn units_beyond_loopback_require_a_flag() {
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "1M"]).ok();
    let data = device.data();
    let serve = ["osd", "serve", "--data", text(&data), "--listen", "0.0.0.0:0"];
    run(&serve).fails(3).says(&["block units", "--insecure-block"]);
    device.start();
    device.block(&["rm", "disk"]).ok();
    device.end(Signal::Terminate);
    // Without units it serves, but creates none.
    let daemon = Daemon::start(command(&[&["--json"], &serve[..]].concat()));
    device.block(&["create", "disk", "--size", "1M"]).fails(3).says(&["--insecure-block"]);
    drop(daemon);
    let daemon = Daemon::start(command(&[&["--json"], &serve[..], &["--insecure-block"]].concat()));
    device.block(&["create", "disk", "--size", "1M"]).ok();
    drop(daemon);
    // With an access file the flag is not needed.
    let access = device.folder.path().join("access.toml");
    let write = |names: &str| {
        std::fs::write(&access, format!("[[initiator]]\nnames = [\"{names}\"]\n")).expect("written");
        std::fs::set_permissions(&access, Permissions::from_mode(0o600)).expect("private");
    };
    let guarded = [&serve[..], &["--access-file", text(&access)]].concat();
    write("iqn.*");
    run(&guarded).fails(3).says(&["block units"]);
    write("iqn.2026-11.org.example:vm1");
    drop(Daemon::start(command(&[&["--json"], &guarded[..]].concat())));
}

#[test]
fn libiscsi_sees_a_disk() {
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "64M"]).ok();
    device.start();
    let url = device.url(1);
    let inquiry = tool("iscsi-inq", &[&url]);
    assert!(inquiry.contains("DIRECT_ACCESS") && inquiry.contains("SEALSTONE BLOCK"), "{inquiry}");
    for page in ["0x00", "0x80", "0x83", "0x86", "0xb0", "0xb1", "0xb2", "0xc0"] {
        tool("iscsi-inq", &["-e", "1", "-c", page, &url]);
    }
    let capacity = tool("iscsi-readcapacity16", &[&url]);
    assert!(capacity.contains("67108864"), "{capacity}");
    tool("iscsi-swp", &["--swp", "on", &url]);
    let protected = tool("iscsi-swp", &[&url]);
    assert!(protected.contains("SWP:1"), "{protected}");
    tool("iscsi-swp", &["--swp", "off", &url]);
    // LUN 0 is still an OSD.
    assert!(tool("iscsi-inq", &[&device.url(0)]).contains("OSD"));
}

/// libiscsi's test suite: families that need no second path, with an installed `iscsi-test-cu`.
#[test]
fn libiscsis_own_tests_pass() {
    let mut device = UnitDevice::new();
    device.block(&["create", "small", "--size", "64M"]).ok();
    device.block(&["create", "large", "--size", "64M", "--block-size", "4096"]).ok();
    device.start();
    let families = [
        ("Read10", 1),
        ("Write16", 2),
        ("Verify10", 1),
        ("OrWrite", 2),
        ("Unmap", 1),
        ("WriteSame16", 2),
        // Its tests assume blocks of 512 bytes.
        ("ProutReserve", 1),
        // Its tests assume that a single block can be unmapped.
        ("GetLBAStatus", 2),
    ];
    for (family, lun) in families {
        let url = device.url(lun);
        let printed = tool("iscsi-test-cu", &["-d", "-S", "-t", &format!("SCSI.{family}"), &url]);
        let tests = printed.lines().find(|line| line.trim_start().starts_with("tests")).unwrap_or_default();
        let failed = tests.split_whitespace().nth(4);
        assert_eq!(failed, Some("0"), "{family}: {printed}");
    }
}

/// An image is written to the unit and read back with qemu's own initiator.
#[test]
fn qemu_stores_an_image_and_reads_it_back() {
    const ABSENT: &str = "qemu-img with iscsi:// is not installed (scripts/setup --all)";
    let driver = Path::new("/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so");
    if Command::new("qemu-img").arg("--version").output().is_err() || !driver.exists() {
        sealstone_tests::left_out(ABSENT);
        return;
    }
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "32M"]).ok();
    device.start();
    let url = device.url(1);
    assert!(tool("qemu-img", &["info", &url]).contains("32 MiB"));
    let image = device.folder.path().join("image");
    let mut bytes: Vec<u8> =
        (0..16_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bytes[4 << 20..8 << 20].fill(0);
    bytes.resize(32 << 20, 0);
    std::fs::write(&image, &bytes).expect("written");
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&image), &url]);
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&image), &url]);
    let script = ["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", "-c", "read -P 0x5a 1M 64k"];
    let printed =
        tool("qemu-io", &[&script[..], &["-c", "discard 2M 1M", "-c", "read -P 0 2M 1M", &url]].concat());
    assert!(!printed.contains("failed"), "{printed}");
    let used = device.block(&["list"]).ok().json()["units"][0]["used"].as_u64().expect("bytes");
    assert!(used < 20 << 20, "{used} bytes: what is zero takes no space");
}

const BLOCKS: u32 = 64;

fn stamp(lba: u32, version: u32) -> Vec<u8> {
    let mut block = vec![0xC3; 512];
    block[..4].copy_from_slice(&lba.to_be_bytes());
    block[4..8].copy_from_slice(&version.to_be_bytes());
    block[508..].copy_from_slice(&version.to_be_bytes());
    block
}

fn ten(code: u8, flags: u8, lba: u32, blocks: u8) -> [u8; 10] {
    let mut cdb = [code, flags, 0, 0, 0, 0, 0, 0, blocks, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb
}

/// After SIGKILL at any moment each block has its last synchronised or a later version; never an
/// older or torn one.
#[test]
fn synchronised_writes_survive_sigkill() {
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "32K"]).ok();
    let mut durable = vec![0_u32; BLOCKS as usize];
    let mut random = 7_u32;
    let mut below = |limit: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % limit
    };
    let mut version = 0;
    for round in 0..6 {
        device.start();
        let mut initiator = device.login("kill");
        let mut since: Vec<Vec<u32>> = vec![Vec::new(); BLOCKS as usize];
        for _ in 0..40 + below(60) {
            version += 1;
            let lba = below(BLOCKS);
            let fua = below(10) == 0;
            let flags = if fua { 0x08 } else { 0 };
            let (status, _) = initiator.command(1, &ten(0x2A, flags, lba, 1), &stamp(lba, version), 0);
            assert_eq!(status, 0);
            since[lba as usize].push(version);
            if fua {
                durable[lba as usize] = version;
                since[lba as usize].clear();
            }
            if below(20) == 0 {
                assert_eq!(initiator.command(1, &ten(0x35, 0, 0, 0), &[], 0).0, 0);
                for (durable, since) in durable.iter_mut().zip(&mut since) {
                    *durable = since.drain(..).next_back().unwrap_or(*durable);
                }
            }
        }
        device.end(Signal::Kill);
        device.start();
        let mut initiator = device.login("check");
        for lba in 0..BLOCKS {
            let (status, block) = initiator.command(1, &ten(0x28, 0, lba, 1), &[], 512);
            assert_eq!((status, block.len()), (0, 512));
            let found = u32::from_be_bytes(block[4..8].try_into().expect("four bytes"));
            assert!(
                block == stamp(lba, found) || (found == 0 && block.iter().all(|&byte| byte == 0)),
                "block {lba} is torn"
            );
            let at = lba as usize;
            assert!(
                found == durable[at] || since[at].contains(&found),
                "round {round}, block {lba}: {found}, {durable:?}"
            );
            durable[at] = found;
        }
        // The content is durable after this command.
        assert_eq!(initiator.command(1, &ten(0x35, 0, 0, 0), &[], 0).0, 0);
        device.end(Signal::Kill);
    }
}

const WRITE_CACHE: u8 = 0x04;
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

/// Returns WCE as reported by MODE SENSE; the page must be savable.
fn write_cache(initiator: &mut Initiator) -> bool {
    let (status, page) = initiator.command(1, &[0x1A, 0x08, 0x08, 0, 255, 0], &[], 255);
    assert_eq!((status, page[4]), (GOOD, 0x88), "PS, caching page");
    page[6] & WRITE_CACHE != 0
}

/// Sets WCE by MODE SELECT, with or without SP, and returns the status.
fn select_cache(initiator: &mut Initiator, on: bool, save: bool) -> u8 {
    let mut list = [0; 24];
    (list[4], list[5], list[6]) = (0x08, 18, if on { WRITE_CACHE } else { 0 });
    initiator.command(1, &[0x15, 0x10 | u8::from(save), 0, 0, 24, 0], &list, 0).0
}

#[test]
fn write_cache_turned_off_survives_sigkill() {
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "32K"]).ok();
    for save in [false, true] {
        device.start();
        let mut initiator = device.login("modes");
        assert_eq!(select_cache(&mut initiator, true, true), GOOD);
        assert_eq!(select_cache(&mut initiator, false, save), GOOD);
        device.end(Signal::Kill);
        device.start();
        let mut initiator = device.login("modes");
        assert!(!write_cache(&mut initiator), "saved by SP: {save}");
        assert_eq!(initiator.command(1, &ten(0x2A, 0, 3, 1), &stamp(3, 7), 0).0, GOOD);
        device.end(Signal::Kill);
        device.start();
        let mut initiator = device.login("modes");
        assert_eq!(initiator.command(1, &ten(0x28, 0, 3, 1), &[], 512), (GOOD, stamp(3, 7)));
        device.end(Signal::Terminate);
    }
}

#[test]
fn write_through_switches_bind_initiators() {
    let mut device = UnitDevice::new();
    let made = device.block(&["create", "disk", "--size", "32K", "--write-through"]).ok().json();
    assert_eq!((made["write_through"].as_bool(), made["write_cache"].as_bool()), (Some(true), Some(false)));
    device.start();
    let mut initiator = device.login("modes");
    assert!(!write_cache(&mut initiator));
    assert_eq!(select_cache(&mut initiator, true, true), CHECK_CONDITION);
    let set = device.block(&["set", "disk", "--write-through=false"]).ok().json();
    assert_eq!(set["write_cache"].as_bool(), Some(true));
    assert_eq!(initiator.command(1, &[0; 6], &[], 0).0, CHECK_CONDITION, "MODE PARAMETERS CHANGED");
    assert!(write_cache(&mut initiator));
    let shown = run(&["block", "ls", "--data", text(&device.data())]).ok().text();
    assert!(shown.contains("write-back"), "{shown}");
    device.end(Signal::Terminate);
    device.start_with(&["--write-through"]);
    let mut initiator = device.login("modes");
    assert!(!write_cache(&mut initiator));
    assert_eq!(device.block(&["show", "disk"]).ok().json()["write_cache"].as_bool(), Some(false));
    device.end(Signal::Terminate);
}

/// Starts the daemon as after a reboot: with another boot id in its mount namespace.
pub(crate) fn start_after_power_failure(device: &mut UnitDevice) {
    let boot_id = device.folder.path().join("boot_id");
    std::fs::write(&boot_id, "11111111-2222-3333-4444-555555555555\n").expect("written");
    let data = device.data();
    let serve = command(&["--json", "osd", "serve", "--data", text(&data), "--listen", &device.address]);
    let mut other = Command::new("unshare");
    other.args(["--mount", "--map-root-user", "sh", "-c"]);
    other.arg("mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"").arg(&boot_id);
    other.arg(serve.get_program()).args(serve.get_args());
    device.daemon = Some(Daemon::start(other));
}

#[test]
fn synchronize_after_power_failure_fails_and_is_audited() {
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "32K"]).ok();
    device.start();
    let mut writer = device.login("writer");
    let mut reader = device.login("reader");
    assert_eq!(writer.command(1, &ten(0x2A, 0, 1, 1), &stamp(1, 1), 0).0, GOOD);
    assert_eq!(reader.command(1, &ten(0x28, 0, 1, 1), &[], 512).0, GOOD);
    device.end(Signal::Kill);
    // The death of the process alone loses nothing, and no command fails.
    device.start();
    let mut writer = device.login("writer");
    assert_eq!(writer.command(1, &ten(0x35, 0, 0, 0), &[], 0).0, GOOD);
    assert_eq!(writer.command(1, &ten(0x2A, 0, 1, 1), &stamp(1, 2), 0).0, GOOD);
    device.end(Signal::Kill);
    start_after_power_failure(&mut device);
    let mut reader = device.login("reader");
    assert_eq!(reader.command(1, &ten(0x35, 0, 0, 0), &[], 0).0, GOOD, "had no unflushed writes");
    let mut writer = device.login("writer");
    assert_eq!(writer.command(1, &ten(0x35, 0, 0, 0), &[], 0).0, CHECK_CONDITION);
    assert_eq!(writer.command(1, &ten(0x35, 0, 0, 0), &[], 0).0, GOOD, "once");
    device.end(Signal::Terminate);
    let log = std::fs::read_to_string(device.data().join("audit.jsonl")).expect("an audit log");
    let lost: Vec<&str> = log.lines().filter(|line| line.contains("writes_lost")).collect();
    assert!(lost.len() == 1 && lost[0].contains("\"unit\":\"disk\""), "{log}");
    assert!(lost[0].contains("writer"), "{log}");
}

/// A reservation with APTPL excludes others after SIGKILL too, and the owner's port is recognised.
#[test]
fn a_durable_reservation_survives_sigkill() {
    const CONFLICT: u8 = 0x18;
    let mut device = UnitDevice::new();
    device.block(&["create", "disk", "--size", "1M"]).ok();
    device.start();
    let mut owner = device.login("owner");
    let mut list = [[0; 8], 42_u64.to_be_bytes(), [0; 8]].concat();
    list[20] = 1;
    assert_eq!(owner.command(1, &[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0).0, 0);
    let reserve = [42_u64.to_be_bytes(), [0; 8], [0; 8]].concat();
    assert_eq!(owner.command(1, &[0x5F, 1, 3, 0, 0, 0, 0, 0, 24, 0], &reserve, 0).0, 0);
    device.end(Signal::Kill);
    device.start();
    let mut other = device.login("another");
    assert_eq!(other.command(1, &ten(0x28, 0, 0, 1), &[], 512).0, CONFLICT);
    device.block(&["rm", "disk"]).fails(1).says(&["--force"]);
    let mut owner = device.login("owner");
    assert_eq!(owner.command(1, &ten(0x28, 0, 0, 1), &[], 512).0, 0);
    assert_eq!(owner.command(1, &[0x5F, 3, 0, 0, 0, 0, 0, 0, 24, 0], &reserve, 0).0, 0);
    assert_eq!(other.command(1, &ten(0x28, 0, 0, 1), &[], 512).0, 0);
    device.block(&["rm", "disk"]).ok();
}

/// A damaged record of one unit stops neither the device nor its other units.
#[test]
fn damaged_record_stops_one_unit_of_device() {
    let mut device = UnitDevice::new();
    for name in ["broken", "healthy"] {
        device.block(&["create", name, "--size", "16M"]).ok();
    }
    let folder = device.data().join("store");
    let change_record = |change: &dyn Fn(&mut Vec<u8>)| {
        let medium = open_store_medium(&folder, IoMode::Auto).expect("the store");
        let options = StoreOptions { undigested: [0xB10C].into(), ..StoreOptions::default() };
        let store = DiskStore::open(medium, options).expect("open");
        let (id, record) = (ObjectId::new(0xB10C, 1), AttributeId { page: 0, number: 1 });
        let mut bytes = store.attribute(id, record).expect("read").expect("a record");
        change(&mut bytes);
        store.set_attribute(id, record, &bytes).expect("stored");
        store.flush().expect("flushed");
    };
    change_record(&|bytes| bytes[2] ^= 0x40);
    device.start_with(&["--metrics", "127.0.0.1:0"]);
    assert!(tool("iscsi-readcapacity16", &[&device.url(2)]).contains("16777216"));
    assert!(tool("iscsi-inq", &[&device.url(0)]).contains("OSD"));
    let status = device.block(&["status", "broken"]).ok().json();
    let reason = status["unavailable"].as_str().expect("a reason");
    assert!(status["available"] == false && reason.contains("record is damaged"), "{status}");
    let units = device.block(&["list"]).ok().json();
    assert_eq!((&units["units"][0]["name"], &units["units"][0]["lun"]), (&"broken".into(), &1.into()));
    assert!(units["units"][0]["unavailable"].is_string() && units["units"][1]["unavailable"].is_null());
    let listed = run(&["block", "list", "--data", text(&device.data())]).ok().text();
    let row = listed.lines().find(|line| line.contains("broken")).expect("a row");
    assert!(row.contains("unknown") && !row.contains("thick") && !row.contains("thin"), "{listed}");
    let (_, page) = get(&device.field("metrics"), "/metrics");
    assert!(page.contains("sealstone_block_unavailable_units{device=\"judge\"} 1"), "{page}");
    let log = device.data().join("audit.jsonl");
    crate::audit::find(&log, "the damaged record", |record| {
        record["action"] == "INTEGRITY" && record["reason"] == "record_damaged" && record["unit"] == "broken"
    });
    device.block(&["create", "other", "--size", "1M", "--lun", "1"]).fails(1).says(&["in use"]);
    device.block(&["rm", "broken"]).fails(1).says(&["record is damaged", "--force"]);
    // The restored record is used after the next start, and a damaged unit can be removed.
    device.end(Signal::Terminate);
    change_record(&|bytes| bytes[2] ^= 0x40);
    device.start();
    assert!(tool("iscsi-readcapacity16", &[&device.url(1)]).contains("16777216"));
    device.end(Signal::Kill);
    change_record(&|bytes| bytes.truncate(8));
    device.start();
    device.block(&["rm", "lun-1", "--force"]).ok();
    assert_eq!(device.block(&["list"]).ok().json()["units"].as_array().map(Vec::len), Some(1));
    device.block(&["create", "broken", "--size", "1M", "--lun", "1"]).ok();
}
