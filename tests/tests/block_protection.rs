//! Protection of block units through the real binary: levels, refusals, and their audit records.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use sealstone_tests::{CommandResult, Daemon, Signal, System, command, run, text};

use crate::block_attach::NbdClient;
use crate::block_proxy::{WireChange, WireProxy};
use crate::block_units::UnitDevice;

/// Rules of the device: the client sees one block unit, an observer the OSD as well.
const ACCESS: &str = r#"
[[initiator]]
names = ["iqn.2026-11.org.sealstone:client"]
user = "vm1"
secret = "what the client says"
luns = [1]

[[initiator]]
names = ["iqn.2026-11.org.sealstone:observer"]
user = "observer"
secret = "what observers say"
"#;

/// A device with accounts, and clients of its units.
pub(crate) struct ProtectedDevice {
    pub(crate) device: UnitDevice,
}

impl ProtectedDevice {
    pub(crate) fn new() -> Self {
        Self { device: UnitDevice::new() }
    }

    pub(crate) fn private(&self, name: &str, content: &str) -> PathBuf {
        let path = self.device.folder.path().join(name);
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("narrowed");
        path
    }

    pub(crate) fn start(&mut self, flags: &[&str]) {
        let access = self.private("access", ACCESS);
        self.device.start_with(&[&["--access-file", text(&access)], flags].concat());
    }

    pub(crate) fn chap(&self, user: &str, secret: &str) -> PathBuf {
        let content = format!("[[target]]\nnames = [\"iqn.*\"]\nuser = \"{user}\"\nsecret = \"{secret}\"\n");
        self.private(user, &content)
    }

    fn attach_arguments(&self, unit: &str, flags: &[&str]) -> Vec<String> {
        let (data, chap) = (self.device.data(), self.chap("vm1", "what the client says"));
        let socket = format!("unix:{}", text(&self.socket()));
        let chap = text(&chap);
        let mut all = vec!["--json", "block", "attach", unit, "--nbd", &socket, "--chap-file", chap];
        if !unit.contains("://") {
            all.extend(["--data", text(&data)]);
        }
        all.extend(flags);
        all.into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.device.folder.path().join("nbd.sock")
    }

    pub(crate) fn attach(&self, unit: &str, flags: &[&str]) -> Daemon {
        let arguments = self.attach_arguments(unit, flags);
        Daemon::start(command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// Attaches a unit, unless that is refused.
    pub(crate) fn try_attach(&self, unit: &str, flags: &[&str]) -> Option<Daemon> {
        let arguments = self.attach_arguments(unit, flags);
        Daemon::try_start(command(&arguments.iter().map(String::as_str).collect::<Vec<_>>())).ok()
    }

    pub(crate) fn refused_attach(&self, unit: &str, flags: &[&str]) -> CommandResult {
        let arguments = self.attach_arguments(unit, flags);
        run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Fills a unit through the account of the observer until the device has no space.
    pub(crate) fn fill(&self, url: &str) {
        let chap = self.chap("observer", "what observers say");
        let socket = self.device.folder.path().join("filler.sock");
        let nbd = format!("unix:{}", text(&socket));
        let observer = "iqn.2026-11.org.sealstone:observer";
        let mut arguments = vec!["--json", "block", "attach", url, "--nbd", &nbd];
        arguments.extend(["--initiator-name", observer, "--chap-file", text(&chap)]);
        let mut attach = Daemon::start(command(&arguments));
        let mut client = NbdClient::connect(&socket);
        let mut at = 0;
        for length in [1 << 20, 64 << 10, 4096] {
            let data = vec![0x77; length as usize];
            while client.request(1, at, length, &data) == 0 {
                at += u64::from(length);
            }
        }
        assert_eq!(attach.end(Signal::Terminate), 0);
    }

    pub(crate) fn client(&self) -> NbdClient {
        NbdClient::connect(&self.socket())
    }

    pub(crate) fn audit(&self) -> String {
        fs::read_to_string(self.device.data().join("audit.jsonl")).unwrap_or_default()
    }
}

#[test]
fn required_level_is_stored_shown_and_negotiated() {
    for level in ["paper:S1-1u", "paper:S2-1u"] {
        let mut bench = ProtectedDevice::new();
        let made = bench.device.block(&["create", "disk", "--size", "32M", "--protect", level]).ok().json();
        assert_eq!(made["protect"].as_str(), Some(level));
        bench.start(&[]);
        let shown = bench.device.block(&["show", "disk"]).ok().json();
        assert_eq!(shown["protect"].as_str(), Some(level));
        let mut attach = bench.attach("disk", &[]);
        assert_eq!(attach.field("protect"), level);
        let mut client = bench.client();
        let bytes: Vec<u8> =
            (0..3_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        client.write(1 << 20, &bytes);
        assert_eq!(client.flush(), 0);
        assert!(client.read(1 << 20, 3 << 20) == bytes);
        assert_eq!(attach.end(Signal::Terminate), 0);
        // After a restart the device requires the same.
        bench.device.end(Signal::Kill);
        bench.start(&[]);
        let mut attach = bench.attach("disk", &[]);
        assert!(bench.client().read(1 << 20, 3 << 20) == bytes);
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}

#[test]
fn sessions_below_required_level_are_refused_and_audited() {
    let mut bench = ProtectedDevice::new();
    bench.device.block(&["create", "disk", "--size", "32M", "--protect", "paper:S2-1u"]).ok();
    bench.start(&[]);
    let url = bench.device.url(1);
    for flags in [&[][..], &["--protect", "none"], &["--protect", "paper:S1-1u"]] {
        bench.refused_attach(&url, flags).fails(3).says(&["class 2, detail 0", "--protect"]);
    }
    bench.refused_attach("disk", &["--protect", "paper:S1-1u"]).fails(2).says(&["requires paper:S2-1u"]);
    let log = bench.audit();
    let line = log.lines().find(|line| line.contains("\"action\":\"login\"")).expect("a refused login");
    assert!(line.contains("\"protection\"") && line.contains("iqn.2026-11.org.sealstone:client"), "{line}");
    // A stronger level than required is accepted; a unit without protection needs none.
    let mut attach = bench.attach(&url, &["--protect", "paper:S2-1u"]);
    assert_eq!(attach.end(Signal::Terminate), 0);
    bench.device.block(&["rm", "disk"]).ok();
    bench.device.block(&["create", "weak", "--size", "32M", "--protect", "paper:S1-1u"]).ok();
    let mut attach = bench.attach("weak", &["--protect", "paper:S2-1u"]);
    assert_eq!(attach.field("protect"), "paper:S2-1u");
    assert_eq!(attach.end(Signal::Terminate), 0);
    bench.device.block(&["create", "odd", "--size", "32M", "--protect", "paper:S9"]).fails(2);
}

pub(crate) const OLD: &[u8; 32] = b"the content of the older write..";
pub(crate) const NEW: &[u8; 32] = b"the content of the newer write..";

/// Repeats 32 bytes to a block of 4 KiB.
pub(crate) fn block(content: &[u8; 32]) -> Vec<u8> {
    content.iter().copied().cycle().take(4096).collect()
}

/// READ of NBD that fails with this error number.
pub(crate) fn read_error(client: &mut NbdClient, offset: u64) -> u32 {
    client.request(0, offset, 4096, &[])
}

#[test]
fn keyed_levels_store_the_sealed_blocks() {
    for level in ["paper:S1-2", "paper:S2-3", "paper:S2-5", "lazy"] {
        let mut bench = ProtectedDevice::new();
        let profile = if level == "lazy" { "modern" } else { "paper+safe" };
        let create = ["create", "disk", "--size", "32M", "--protect", level];
        let made = bench.device.block(&create).ok().json();
        assert_eq!((made["protect"].as_str(), made["profile"].as_str()), (Some(level), Some(profile)));
        bench.start(&["--metrics", "127.0.0.1:0"]);
        let mut attach = bench.attach("disk", &[]);
        let bytes: Vec<u8> =
            (0..3_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut client = bench.client();
        client.write(1 << 20, &bytes);
        client.write(8 << 20, &block(OLD));
        assert_eq!(client.flush(), 0);
        assert!(client.read(1 << 20, 3 << 20) == bytes && client.read(8 << 20, 4096) == block(OLD));
        let status = bench.device.block(&["status", "disk"]).ok().json();
        assert_eq!((status["available"].as_bool(), status["rejected"].as_u64()), (Some(true), Some(0)));
        assert_eq!(status["unverified"].as_u64(), Some(0), "a flush verifies");
        assert!(status["window_p99_ms"].as_u64() <= Some(10_000));
        assert_eq!(attach.end(Signal::Terminate), 0);
        bench.device.end(Signal::Kill);
        // The content of the block repeats, and blocks are aligned in the files of the store.
        let has_content = |bytes: Vec<u8>| bytes.chunks_exact(OLD.len()).any(|part| part == OLD);
        let files = fs::read_dir(bench.device.data().join("store")).expect("a folder");
        let mut files = files.map(|file| file.expect("listed").path()).filter(|path| path.is_file());
        let is_readable = files.any(|path| has_content(fs::read(path).expect("readable")));
        assert_eq!(is_readable, level == "paper:S1-2", "{level} hides data exactly if it encrypts");
        bench.start(&[]);
        let mut attach = bench.attach("disk", &[]);
        assert!(bench.client().read(1 << 20, 3 << 20) == bytes);
        assert_eq!(attach.end(Signal::Terminate), 0);
        bench.device.block(&["rm", "disk"]).ok();
    }
}

/// L1: a write that was changed on its way is an error for its writer, and the older block is never
/// returned.
#[test]
fn changed_write_is_rejected_and_counted() {
    let mut bench = ProtectedDevice::new();
    bench.device.block(&["create", "disk", "--size", "32M", "--protect", "paper:S1-2"]).ok();
    bench.start(&["--metrics", "127.0.0.1:0"]);
    let proxy = WireProxy::start(&bench.device.field("address"));
    let url = bench.device.url(1).replace(&bench.device.field("address"), &proxy.address);
    let mut attach = bench.attach(&url, &["--protect", "paper:S1-2"]);
    let mut client = bench.client();
    client.write(0, &block(OLD));
    assert_eq!(client.flush(), 0);
    proxy.arm(true, WireChange::Data(NEW.to_vec()), 1);
    client.write(0, &block(NEW));
    // No client flushes: the device verifies by itself. The promise is a second; a busy machine
    // gets more.
    let began = Instant::now();
    let rejected =
        |bench: &ProtectedDevice| bench.device.block(&["status", "disk"]).ok().json()["rejected"].as_u64();
    while rejected(&bench) == Some(0) {
        assert!(began.elapsed() < Duration::from_secs(30), "the window is bounded");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.flush(), 5, "the writer is informed");
    assert_eq!(read_error(&mut client, 0), 5, "never the older block");
    let (_, page) = sealstone_tests::get(&bench.device.field("metrics"), "/metrics");
    assert!(
        page.contains("sealstone_block_rejected_total{device=\"judge\",lun=\"1\",unit=\"disk\"} 1"),
        "{page}"
    );
    client.write(0, &block(NEW));
    assert_eq!(client.flush(), 0);
    assert_eq!(client.read(0, 4096), block(NEW));
    // L2: a changed reply is read again, and destroys nothing.
    proxy.arm(false, WireChange::Data(NEW.to_vec()), 1);
    assert_eq!(client.read(0, 4096), block(NEW));
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// L1 in the paper's own profile, which needs a flag: readers silently receive the older block.
#[test]
fn changed_write_is_silent_in_paper_profile() {
    let mut bench = ProtectedDevice::new();
    let create = ["create", "disk", "--size", "32M", "--protect", "paper:S1-2", "--insecure-paper-profile"];
    let made = bench.device.block(&create).ok().json();
    assert_eq!(made["profile"].as_str(), Some("paper"));
    bench.start(&[]);
    let proxy = WireProxy::start(&bench.device.field("address"));
    let url = bench.device.url(1).replace(&bench.device.field("address"), &proxy.address);
    bench.refused_attach(&url, &["--protect", "paper:S1-2"]).fails(3);
    let flags = ["--protect", "paper:S1-2", "--insecure-paper-profile"];
    let mut attach = bench.attach(&url, &flags);
    let mut client = bench.client();
    client.write(0, &block(OLD));
    assert_eq!(client.flush(), 0);
    proxy.arm(true, WireChange::Data(NEW.to_vec()), 1);
    client.write(0, &block(NEW));
    assert_eq!(client.flush(), 0);
    let read = client.read(0, 4096);
    assert_eq!(read[..512], block(OLD)[..512], "expected, and broken");
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// L9: what SYNCHRONIZE CACHE acknowledged is there after the device was killed at any time.
#[test]
fn flushed_blocks_survive_kills_of_device() {
    survive_kills("paper:S2-5");
}

#[test]
fn flushed_modern_blocks_survive_kills() {
    survive_kills("lazy");
}

fn survive_kills(level: &str) {
    const BLOCKS: u64 = 48;
    let mut bench = ProtectedDevice::new();
    bench.device.block(&["create", "disk", "--size", "32M", "--protect", level]).ok();
    let mut flushed = [0_u32; BLOCKS as usize];
    let stamp = |number: u32| number.to_be_bytes().into_iter().cycle().take(4096).collect::<Vec<u8>>();
    for round in 1..=6_u32 {
        bench.start(&[]);
        let mut attach = bench.attach("disk", &["--timeout", "1"]);
        let mut client = bench.client();
        for at in 0..BLOCKS {
            let read = client.read(at * 4096, 4096);
            let number = u32::from_be_bytes(read[..4].try_into().expect("4 bytes"));
            assert!(read == stamp(number), "block {at} is one write");
            assert!(number >= flushed[at as usize], "block {at}: {number}, flushed {}", flushed[at as usize]);
        }
        for step in 0..4 {
            let number = round * 10 + step;
            let first = u64::from(number.wrapping_mul(7)) % BLOCKS;
            for at in first..BLOCKS {
                client.write(at * 4096, &stamp(number));
            }
            if step < 3 {
                assert_eq!(client.flush(), 0);
                flushed[first as usize..].fill(number);
            }
        }
        // Between two verifications, or during one.
        thread::sleep(Duration::from_millis(u64::from(round) * 120));
        bench.device.end(Signal::Kill);
        let _ = attach.end(Signal::Kill);
    }
}

/// The level is negotiated and never lowered, the key is rotated in use, and status shows its
/// epoch.
#[test]
fn modern_unit_is_attached_rotated_and_shown() {
    let mut bench = ProtectedDevice::new();
    let create = ["create", "disk", "--size", "32M", "--block-size", "4096", "--protect", "lazy"];
    bench.device.block(&[&create[..], &["--insecure-paper-profile"]].concat()).fails(2).says(&["lazy"]);
    bench.device.block(&create).ok();
    let stopped = bench.device.data();
    run(&["block", "rotate", "disk", "--data", text(&stopped)]).fails(1).says(&["rotate", "must run"]);
    bench.start(&[]);
    let url = bench.device.url(1);
    for flags in [&[][..], &["--protect", "none"], &["--protect", "paper:S2-5", "--protect-block", "4096"]] {
        bench.refused_attach(&url, flags).fails(3).says(&["class 2, detail 0"]);
    }
    bench.refused_attach("disk", &["--protect", "paper:S2-5"]).fails(2).says(&["requires lazy"]);
    assert!(bench.audit().lines().any(|line| line.contains("\"protection\"")));
    let mut attach = bench.attach(&url, &["--protect", "lazy", "--protect-block", "4096", "--sessions", "2"]);
    assert_eq!(attach.field("protect"), "lazy");
    let status = |bench: &ProtectedDevice| bench.device.block(&["status", "disk"]).ok().json();
    let mut client = bench.client();
    for epoch in 1..=3_u64 {
        assert_eq!(status(&bench)["key_epoch"].as_u64(), Some(epoch));
        client.write(epoch << 20, &block(NEW));
        assert_eq!(client.flush(), 0);
        let rotated = bench.device.block(&["rotate", "disk"]).ok().json();
        assert_eq!(
            (rotated["unit"].as_str(), rotated["key_epoch"].as_u64()),
            (Some("disk"), Some(epoch + 1))
        );
        client.write(epoch << 20 | 4096, &block(OLD));
        assert_eq!(client.read(epoch << 20, 8192), [block(NEW), block(OLD)].concat());
    }
    assert_eq!(client.flush(), 0);
    assert_eq!(attach.end(Signal::Terminate), 0);
    bench.device.end(Signal::Terminate);
    let recorded: Vec<(String, Option<u64>)> = (bench.audit().lines())
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .filter(|line| line["unit"] == "disk" && line["verdict"] == "done")
        .map(|line| (line["action"].as_str().expect("a text").to_owned(), line["key_epoch"].as_u64()))
        .collect();
    let rotations = (2..=4).map(|epoch| ("block rotate".to_owned(), Some(epoch)));
    let expected: Vec<_> = [("block create".to_owned(), None)].into_iter().chain(rotations).collect();
    assert_eq!(recorded, expected, "the unit was created while the device was stopped");
    bench.start(&[]);
    let mut attach = bench.attach("disk", &[]);
    let mut client = bench.client();
    for epoch in 1..=3_u64 {
        assert_eq!(client.read(epoch << 20, 8192), [block(NEW), block(OLD)].concat());
    }
    let shown = status(&bench);
    assert_eq!((shown["key_epoch"].as_u64(), shown["rejected"].as_u64()), (Some(4), Some(0)));
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// The levels of the paper with crypto hardware have the format of others, which the message names.
#[test]
fn hardware_levels_name_equal_levels() {
    let device = UnitDevice::new();
    for (level, equal) in
        [("paper:S2-2", "paper:S2-1u"), ("paper:S2-4", "paper:S2-3"), ("paper:S2-6", "paper:S2-5")]
    {
        let create = ["create", "disk", "--size", "32M", "--protect", level];
        let refused = device.block(&create);
        assert!(refused.code != 0 && refused.stderr.contains(equal), "{}", refused.stderr);
        device.block(&["create", "disk", "--size", "32M", "--protect", equal]).ok();
        device.block(&["rm", "disk"]).ok();
    }
}

/// Sense key of a unit whose keys are unavailable, in messages.
const NOT_READY: &str = "NOT READY";

impl ProtectedDevice {
    /// Starts the device with errors in its log.
    fn start_logged(&mut self) {
        let access = self.private("access", ACCESS);
        self.device.start_logged("error", &["--access-file", text(&access)]);
    }

    /// Writes or reads a block of a unit through the account of the observer. In the profile
    /// `paper` a read before the write deletes it, and `block attach` reads the first block.
    fn exchange(&self, unit: &str, write: Option<&[u8]>) -> Vec<u8> {
        let chap = self.chap("observer", "what observers say");
        let (data, socket) = (self.device.data(), format!("unix:{}", text(&self.socket())));
        let name = "iqn.2026-11.org.sealstone:observer";
        let unit = ["--json", "block", "attach", unit, "--data", text(&data), "--nbd", &socket];
        let account = ["--initiator-name", name, "--chap-file", text(&chap)];
        let mut attach = Daemon::start(command(&[&unit[..], &account].concat()));
        let mut client = self.client();
        let at = 1 << 20;
        if let Some(data) = write {
            client.write(at, data);
            assert_eq!(client.flush(), 0);
        }
        let found = client.read(at, 4096);
        assert_eq!(attach.end(Signal::Terminate), 0);
        found
    }

    /// Checks that only units that need the secret are unavailable, and that a message says why.
    fn check_unavailable(&mut self, level: &str, reason: &str) {
        let status = self.device.block(&["status", "disk"]).ok().json();
        assert_eq!(status["available"].as_bool(), Some(false), "{level}: {status}");
        let shown = status["unavailable"].as_str().unwrap_or_default().to_owned();
        assert!(shown.contains("block-keys.secret") && shown.contains(reason), "{level}: {shown}");
        assert!(shown.contains("restore the file from a copy"), "{level}: {shown}");
        self.refused_attach("disk", &[]).fails(1).says(&[NOT_READY]);
        assert!(self.audit().contains("keys_unavailable"), "{}", self.audit());
        let log = self.device.stderr();
        assert!(log.contains("disk") && log.contains(reason) && log.contains("restore"), "{level}: {log}");
        for other in ["plain", "paper"] {
            let status = self.device.block(&["status", other]).ok().json();
            assert_eq!(status["available"].as_bool(), Some(true), "{level}: {status}");
            assert!(status["unavailable"].is_null(), "{status}");
        }
        // A new unit would need a new secret.
        let create = ["create", "new", "--size", "32M", "--protect", "lazy"];
        self.device.block(&create).fails(1).says(&[reason, "restore"]);
        self.device.block(&["create", "more", "--size", "32M"]).ok();
        self.device.block(&["rm", "more"]).ok();
    }
}

impl ProtectedDevice {
    /// Replaces the secret of the running device, and waits until its unit is available, or until
    /// keys cannot be opened with it.
    fn check_restored(&mut self, level: &str, secret: &[u8], opens: bool) {
        let (file, new) = (self.device.data().join("block-keys.secret"), self.device.data().join("new"));
        fs::write(&new, secret).expect("written");
        fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("narrowed");
        fs::rename(&new, &file).expect("moved");
        let begin = Instant::now();
        loop {
            let status = self.device.block(&["status", "disk"]).ok().json();
            let reason = status["unavailable"].as_str().unwrap_or_default();
            let is_available = status["available"] == true;
            assert!(opens || !is_available, "{level}: {status}");
            let is_tried = if opens { is_available } else { reason.contains("cannot be opened") };
            if is_tried {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{level}: {status}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Only units that need the secret stop without it, and no new one replaces it: a new secret could
/// open nothing, and would make later blocks depend on another one.
#[test]
fn lost_secret_stops_only_units_that_need_it() {
    for level in ["lazy", "paper:S2-5"] {
        let mut bench = ProtectedDevice::new();
        bench.device.block(&["create", "disk", "--size", "32M", "--protect", level]).ok();
        bench.device.block(&["create", "plain", "--size", "32M"]).ok();
        let open = ["--protect", "paper:S2-5", "--insecure-paper-profile"];
        bench.device.block(&[&["create", "paper", "--size", "32M"], &open[..]].concat()).ok();
        bench.start(&[]);
        for unit in ["disk", "plain", "paper"] {
            assert_eq!(bench.exchange(unit, Some(&block(OLD))), block(OLD));
        }
        bench.device.end(Signal::Terminate);
        let data = bench.device.data();
        let (secret, copy) = (data.join("block-keys.secret"), data.join("copy"));
        fs::rename(&secret, &copy).expect("moved");
        for broken in [None, Some(&b"too short"[..]), Some(b"")] {
            if let Some(content) = broken {
                fs::write(&secret, content).expect("written");
                fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("narrowed");
            }
            bench.start_logged();
            let reason = if broken.is_some() { "does not have 32 bytes" } else { "missing" };
            bench.check_unavailable(level, reason);
            for unit in ["plain", "paper"] {
                assert_eq!(bench.exchange(unit, Some(&block(NEW))), block(NEW));
            }
            assert_eq!(fs::read(&secret).ok().as_deref(), broken, "no new secret");
            bench.device.end(Signal::Kill);
        }
        // The secret of another device opens no such unit, and the right one needs no restart.
        bench.start(&[]);
        bench.check_restored(level, &[0x5A; 32], false);
        bench.check_restored(level, &fs::read(&copy).expect("the copy"), true);
        assert_eq!(bench.exchange("disk", None), block(OLD));
        assert_eq!(bench.exchange("disk", Some(&block(NEW))), block(NEW));
        bench.device.end(Signal::Kill);
        bench.start(&[]);
        assert_eq!(bench.exchange("disk", None), block(NEW));
        bench.device.end(Signal::Terminate);
        // Without a copy of the secret only the unit is lost. The next one needs no restart.
        fs::remove_file(&secret).expect("removed");
        bench.start(&[]);
        bench.device.block(&["rm", "disk"]).ok();
        assert!(!secret.exists());
        bench.device.block(&["create", "disk", "--size", "32M", "--protect", level]).ok();
        assert!(secret.exists());
        assert_eq!(bench.exchange("disk", Some(&block(NEW))), block(NEW));
        bench.device.end(Signal::Kill);
        bench.start(&[]);
        assert_eq!(bench.exchange("disk", None), block(NEW));
    }
}

/// Objects need no secret of block keys.
#[test]
fn objects_are_served_without_secret_of_block_keys() {
    let mut system = System::start(1);
    let data = system.path("osd0");
    system
        .run(&["block", "create", "disk", "--data", text(&data), "--size", "32M", "--protect", "lazy"])
        .ok();
    let file = system.path("file");
    fs::write(&file, block(OLD)).expect("written");
    system.run(&["put", text(&file), "/file"]).ok();
    system.end_osd(0, Signal::Terminate);
    fs::remove_file(data.join("block-keys.secret")).expect("there");
    system.start_osd(0);
    let back = system.path("back");
    system.run(&["get", "/file", text(&back)]).ok();
    assert_eq!(fs::read(&back).expect("read"), block(OLD));
    system.run(&["put", text(&file), "/second"]).ok();
    let status = run(&["--json", "block", "status", "disk", "--data", text(&data)]).ok().json();
    assert_eq!(status["available"].as_bool(), Some(false), "{status}");
    assert!(!data.join("block-keys.secret").exists());
}

/// Rules of a device that trusts TLS and names, without CHAP.
const OPEN_ACCESS: &str = "[[initiator]]\nnames = [\"iqn.2026-11.org.sealstone:client\"]\n";

/// Session keys come from CHAP, from the TLS channel, or from both; with neither there are none.
#[test]
fn session_keys_come_from_tls_too() {
    for has_account in [true, false] {
        let mut bench = ProtectedDevice::new();
        bench.device.block(&["create", "disk", "--size", "32M", "--protect", "lazy"]).ok();
        match has_account {
            true => bench.start(&[]),
            false => {
                let access = bench.private("open", OPEN_ACCESS);
                bench.device.start_with(&["--access-file", text(&access)]);
            }
        }
        let mut attach = bench.attach("disk", &["--device-tls", "required"]);
        let mut client = bench.client();
        client.write(0, &block(NEW));
        assert_eq!(client.flush(), 0);
        assert_eq!(attach.end(Signal::Terminate), 0);
        // Without TLS an account is needed.
        if has_account {
            let mut attach = bench.attach("disk", &["--device-tls", "off"]);
            assert_eq!(bench.client().read(0, 4096), block(NEW));
            assert_eq!(attach.end(Signal::Terminate), 0);
        } else {
            bench.refused_attach("disk", &["--device-tls", "off"]).fails(3);
        }
    }
}

/// L1 and L2 for M-lazy: data that were changed on the way are an error, never older or wrong data.
#[test]
fn changed_modern_write_is_rejected_and_counted() {
    let mut bench = ProtectedDevice::new();
    let create = ["create", "disk", "--size", "32M", "--block-size", "4096", "--protect", "lazy"];
    bench.device.block(&create).ok();
    bench.start(&[]);
    let proxy = WireProxy::start(&bench.device.field("address"));
    let url = bench.device.url(1).replace(&bench.device.field("address"), &proxy.address);
    let mut attach = bench.attach(&url, &["--protect", "lazy", "--protect-block", "4096"]);
    let mut client = bench.client();
    client.write(0, &block(OLD));
    assert_eq!(client.flush(), 0);
    proxy.arm(true, WireChange::Large, 1);
    client.write(0, &block(NEW));
    let began = Instant::now();
    let rejected =
        |bench: &ProtectedDevice| bench.device.block(&["status", "disk"]).ok().json()["rejected"].as_u64();
    while rejected(&bench) == Some(0) {
        assert!(began.elapsed() < Duration::from_secs(30), "the window is bounded");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.flush(), 5, "the writer is informed");
    assert_eq!(read_error(&mut client, 0), 5, "never the older block");
    // A unit with an unreadable first block can be attached, to write it again.
    drop(client);
    assert_eq!(attach.end(Signal::Terminate), 0);
    let mut attach = bench.attach(&url, &["--protect", "lazy", "--protect-block", "4096"]);
    let mut client = bench.client();
    assert_eq!(read_error(&mut client, 0), 5);
    client.write(0, &block(NEW));
    assert_eq!(client.flush(), 0);
    proxy.arm(false, WireChange::Large, 1);
    assert_eq!(client.read(0, 4096), block(NEW), "it is read again");
    assert_eq!(rejected(&bench), Some(1));
    assert_eq!(attach.end(Signal::Terminate), 0);
}
