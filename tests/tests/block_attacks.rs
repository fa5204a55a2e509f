//! Attacks on block units of the real device on the way to it: rows L1 to L6 and L8 of
//! docs/design/block-lazy.md.
//!
//! Contract of every test: no wrong bytes. A block is what was written last, or an error that the
//! device counts and records.

use std::thread;
use std::time::{Duration, Instant};

use sealstone_block_protection::{
    BlockKeyList, BlockSealer, ProtectedBlock, ProtectionLevel, ProtectionProfile, ProtectionSettings,
};
use sealstone_initiator::BlockReport;
use sealstone_tests::{Daemon, Signal};
use serde_json::Value;

use crate::block_attach::NbdClient;
use crate::block_hostile::{ForgedWrite, HostileSession, WireAnswer, lazy_settings, send_forged};
use crate::block_protection::{NEW, OLD, ProtectedDevice, block, read_error};
use crate::block_proxy::{WireChange, WireProxy};

pub(crate) const EIO: u32 = 5;
pub(crate) const WRITE: u16 = 1;
pub(crate) const BLOCK: usize = 4096;

/// A device with one unit, reached through a man in the middle.
pub(crate) struct AttackedUnit {
    pub(crate) bench: ProtectedDevice,
    pub(crate) proxy: WireProxy,
    pub(crate) level: &'static str,
    is_paper: bool,
}

impl AttackedUnit {
    pub(crate) fn new(level: &'static str, is_paper: bool) -> Self {
        let mut bench = ProtectedDevice::new();
        let paper: &[&str] = if is_paper { &["--insecure-paper-profile"] } else { &[] };
        let create = ["create", "disk", "--size", "32M", "--protect", level];
        bench.device.block(&[&create[..], paper].concat()).ok();
        bench.start(&[]);
        let proxy = WireProxy::start(&bench.device.field("address"));
        Self { bench, proxy, level, is_paper }
    }

    pub(crate) fn url(&self) -> String {
        self.bench.device.url(1).replace(&self.bench.device.field("address"), &self.proxy.address)
    }

    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let paper: &[&str] = if self.is_paper { &["--insecure-paper-profile"] } else { &[] };
        [&["--protect", self.level], paper].concat()
    }

    pub(crate) fn attach(&self) -> (Daemon, NbdClient) {
        (self.bench.attach(&self.url(), &self.flags()), self.bench.client())
    }

    /// Attaches the unit, unless the device refuses it.
    pub(crate) fn try_attach(&self) -> Option<(Daemon, NbdClient)> {
        let attach = self.bench.try_attach(&self.url(), &self.flags())?;
        Some((attach, self.bench.client()))
    }

    pub(crate) fn status(&self) -> Value {
        self.bench.device.block(&["status", "disk"]).ok().json()
    }

    pub(crate) fn count(&self, field: &str) -> u64 {
        self.status()[field].as_u64().expect("a number")
    }

    /// Waits until a figure of the status is reached. A busy machine takes its time.
    pub(crate) fn wait_for(&self, field: &str, expected: u64) {
        let began = Instant::now();
        while self.count(field) != expected {
            assert!(began.elapsed() < Duration::from_secs(60), "{field}: {}", self.status());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for a record of the audit log that has all these words.
    pub(crate) fn wait_for_audit(&self, words: &[&str]) {
        let began = Instant::now();
        loop {
            let log = self.bench.audit();
            if log.lines().any(|line| words.iter().all(|word| line.contains(word))) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{words:?}: {log}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn restart(&mut self, signal: Signal) {
        self.bench.device.end(signal);
        self.bench.start(&[]);
    }
}

/// Content of a block, which names it and its version.
pub(crate) fn stamp(at: u64, version: u8) -> Vec<u8> {
    let unit = [&at.to_be_bytes()[..], &[version; 24]].concat();
    unit.iter().copied().cycle().take(BLOCK).collect()
}

/// Reads a block; `None`: an error.
pub(crate) fn read(client: &mut NbdClient, at: u64) -> Option<Vec<u8>> {
    match client.request(0, at * BLOCK as u64, BLOCK as u32, &[]) {
        0 => Some(client.payload(BLOCK)),
        error => {
            assert_eq!(error, EIO, "block {at}");
            None
        }
    }
}

pub(crate) fn write(client: &mut NbdClient, at: u64, data: &[u8]) {
    client.write(at * BLOCK as u64, data);
}

pub(crate) fn settings(level: &str) -> ProtectionSettings {
    let level = match level {
        "paper:S1-2" => ProtectionLevel::S1LazyMac,
        "paper:S2-3" => ProtectionLevel::S2LazyCipher,
        _ => ProtectionLevel::S2LazyCipherMac,
    };
    let (block, profile) = (ProtectedBlock::B512, ProtectionProfile::PaperSafe);
    ProtectionSettings { level, block, profile, record: None }
}

/// L1: a device that is killed before it verified a forged write fails the first flush after its
/// restart, for a writer that it does not know any more.
#[test]
fn forged_write_before_kill_fails_next_flush() {
    for is_verified_first in [false, true] {
        let mut unit = AttackedUnit::new("paper:S1-2", false);
        let (mut attach, mut client) = unit.attach();
        write(&mut client, 0, &block(OLD));
        assert_eq!(client.flush(), 0);
        unit.proxy.arm(true, WireChange::Data(NEW.to_vec()), 1);
        write(&mut client, 0, &block(NEW));
        unit.restart(Signal::Kill);
        if is_verified_first {
            // The device verifies before the client has logged in again.
            unit.wait_for("rejected", 1);
        }
        assert_eq!(client.flush(), EIO, "{is_verified_first}");
        assert_eq!(read_error(&mut client, 0), EIO, "never the older block");
        unit.wait_for_audit(&["INTEGRITY", "write_rejected", "\"unit\":\"disk\""]);
        assert_eq!(unit.count("rejected"), 1);
        write(&mut client, 0, &block(NEW));
        assert_eq!((client.flush(), client.read(0, 4096)), (0, block(NEW)));
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}

/// L1: a forged write with FUA is refused before its status, and recorded.
#[test]
fn forged_durable_write_is_refused_and_recorded() {
    let unit = AttackedUnit::new("paper:S2-5", false);
    let (mut attach, mut client) = unit.attach();
    write(&mut client, 0, &block(OLD));
    assert_eq!(client.flush(), 0);
    let hostile = HostileSession::login(&unit.proxy.address, &unit.url(), settings(unit.level));
    // The data of the next PDU to the target are changed: it is the write of this session.
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x8A, 0x08, 1);
    unit.proxy.arm(true, WireChange::Byte(200), 1);
    let (status, code) = hostile.command(&cdb, &block(NEW)[..512], 0);
    assert_eq!((status, code), (2, (0x0C, 0)), "MEDIUM ERROR, WRITE ERROR");
    hostile.logout();
    assert_eq!(client.read(0, 4096), block(OLD), "it was never acknowledged");
    unit.wait_for_audit(&["INTEGRITY", "write_refused"]);
    assert_eq!(unit.count("refused_writes"), 1);
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// L2: replies that are always changed are errors, whatever the state of the block, and destroy
/// nothing.
#[test]
fn changed_replies_are_errors_and_destroy_nothing() {
    let mut unit = AttackedUnit::new("paper:S1-2", false);
    let (mut attach, mut client) = unit.attach();
    write(&mut client, 0, &block(OLD));
    for is_committed in [false, true] {
        write(&mut client, 0, &block(NEW));
        if is_committed {
            assert_eq!(client.flush(), 0);
        }
        unit.proxy.arm(false, WireChange::Data(NEW.to_vec()), usize::MAX);
        assert_eq!(read_error(&mut client, 0), EIO);
        unit.proxy.disarm();
        assert_eq!(client.read(0, 4096), block(NEW), "committed: {is_committed}");
    }
    assert_eq!((unit.count("rejected"), unit.count("unverifiable")), (0, 0));
    assert!(unit.count("false_reports") >= 2, "{}", unit.status());
    assert_eq!(client.flush(), 0);
    unit.restart(Signal::Kill);
    assert_eq!(client.read(0, 4096), block(NEW));
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// L2 in the paper's own profile: the changed reply destroys the newer write. Expected, and broken.
#[test]
fn changed_reply_destroys_write_in_paper_profile() {
    let unit = AttackedUnit::new("paper:S1-2", true);
    let (mut attach, mut client) = unit.attach();
    write(&mut client, 0, &block(OLD));
    write(&mut client, 0, &block(NEW));
    unit.proxy.arm(false, WireChange::Data(NEW.to_vec()), usize::MAX);
    let first = client.read(0, 512);
    unit.proxy.disarm();
    assert_eq!(first, block(OLD)[..512]);
    assert_eq!(client.read(0, 512), block(OLD)[..512], "the newer write is gone");
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// L3: a changed, repeated or foreign header ends the session and is recorded; the client sends its
/// commands again in a new one.
#[test]
fn changed_and_repeated_pdus_end_sessions() {
    for level in ["paper:S1-1u", "paper:S2-1u", "paper:S1-2", "paper:S2-3", "paper:S2-5"] {
        let unit = AttackedUnit::new(level, false);
        let (mut attach, mut client) = unit.attach();
        write(&mut client, 0, &stamp(0, 1));
        let foreign = unit.proxy.take_sent().pop().expect("the write");
        let changes = [
            (true, WireChange::Byte(20)),
            (true, WireChange::Repeat),
            (true, WireChange::Insert(foreign)),
            (false, WireChange::Byte(26)),
            (false, WireChange::Repeat),
        ];
        for (version, (to_target, change)) in (2..).zip(changes) {
            let before = unit.proxy.connections();
            unit.proxy.arm(to_target, change, 1);
            write(&mut client, 1, &stamp(1, version));
            assert!(!unit.proxy.is_armed(), "{level}");
            // The reply before a repeated one was right: the next command finds the end.
            assert_eq!(read(&mut client, 0), Some(stamp(0, 1)), "{level}, {version}");
            assert_eq!(read(&mut client, 1), Some(stamp(1, version)), "{level}, {version}");
            assert_eq!(unit.proxy.connections(), before + 1, "{level}, {version}");
            assert_eq!(client.flush(), 0, "{level}, {version}");
        }
        unit.wait_for_audit(&["INTEGRITY", "not-authentic"]);
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}

/// L3: exchanged PDUs, and PDUs that are left out.
#[test]
fn exchanged_and_omitted_pdus_end_sessions() {
    let unit = AttackedUnit::new("paper:S1-2", false);
    let (mut attach, mut client) = unit.attach();
    for (version, change) in (1..).zip([WireChange::Swap, WireChange::Omit, WireChange::Swap]) {
        let before = unit.proxy.connections();
        unit.proxy.arm(true, change, 1);
        // Two commands at once: the proxy waits for both.
        for at in 0..2 {
            client.send(WRITE, at * BLOCK as u64, BLOCK as u32, &stamp(at, version));
        }
        assert_eq!((client.error(), client.error()), (0, 0), "sent again");
        for at in 0..2 {
            assert_eq!(read(&mut client, at), Some(stamp(at, version)));
        }
        assert_eq!(unit.proxy.connections(), before + 1);
        assert_eq!(client.flush(), 0);
    }
    assert_eq!(unit.count("rejected"), 0);
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// L1, L3, L5: each byte of a write, one after another. A change of header or keys ends the
/// session, one of data or MAC fails the flush.
#[test]
fn each_changed_byte_of_write_is_detected() {
    const DATA: usize = 512;
    const MAC: usize = 16;
    for (level, step) in [("paper:S1-2", 1), ("lazy", 7)] {
        let unit = AttackedUnit::new(level, false);
        let (mut attach, mut client) = unit.attach();
        client.write(0, &stamp(0, 1)[..DATA]);
        let length = unit.proxy.take_sent().iter().map(Vec::len).max().expect("the write");
        let data_at = length - DATA - MAC;
        assert_eq!(client.flush(), 0);
        let is_tried = |at: &usize| match at.checked_sub(data_at) {
            Some(offset) if offset < DATA => offset.is_multiple_of(37),
            _ => at.is_multiple_of(step),
        };
        for (round, at) in (0..length).filter(is_tried).enumerate() {
            let content = &stamp(0, 2 + (round % 200) as u8)[..DATA];
            unit.proxy.arm(true, WireChange::Byte(at), 1);
            client.write(0, content);
            assert!(!unit.proxy.is_armed(), "{level}, {at}");
            if at < data_at {
                assert_eq!(client.flush(), 0, "{level}, {at}: the write was repeated in a new session");
            } else {
                assert_eq!(client.flush(), EIO, "{level}, {at}");
                assert_eq!(client.request(0, 0, DATA as u32, &[]), EIO, "{level}, {at}");
                client.write(0, content);
                assert_eq!(client.flush(), 0, "{level}, {at}");
            }
            assert_eq!(client.read(0, DATA as u32), content, "{level}, {at}");
        }
        let rejected = (data_at..length).filter(is_tried).count() as u64;
        assert_eq!(unit.count("rejected"), rejected, "{level}");
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}

/// L1 to L3 at random: bits of any bytes flipped in both directions.
#[test]
fn random_bit_flips_give_no_wrong_bytes() {
    let mut seed = 11_u64;
    let mut below = |limit: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % limit
    };
    for level in ["paper:S1-1u", "paper:S2-3", "paper:S1-2", "paper:S2-5", "lazy"] {
        let unit = AttackedUnit::new(level, false);
        let (mut attach, mut client) = unit.attach();
        let mut versions = [0_u8; 8];
        for version in 1..=24 {
            let at = below(8);
            unit.proxy.arm(below(2) == 0, WireChange::Byte(below(1 << 20) as usize), 1);
            let written = client.request(WRITE, at * BLOCK as u64, BLOCK as u32, &stamp(at, version));
            assert_eq!(written, 0, "{level}: a write");
            versions[at as usize] = version;
            for (at, version) in (0..).zip(versions) {
                match client.request(0, at * BLOCK as u64, BLOCK as u32, &[]) {
                    0 => {
                        let expected = if version == 0 { vec![0; BLOCK] } else { stamp(at, version) };
                        assert!(client.payload(BLOCK) == expected, "{level}: block {at}, {version}");
                    }
                    error => assert_eq!(error, EIO, "{level}: block {at}, {version}"),
                }
            }
            unit.proxy.disarm();
            if client.flush() != 0 {
                // The loss is reported; a file system would write again.
                assert_ne!(unit.count("rejected"), 0, "{level}");
                for (at, version) in (0..).zip(versions).filter(|(_, version)| *version > 0) {
                    client.write(at * BLOCK as u64, &stamp(at, version));
                }
                assert_eq!(client.flush(), 0, "{level}");
            }
        }
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}

/// L4: a man in the middle cannot lower the level or remove the negotiation, although the lower
/// level exists at the device.
#[test]
fn changed_negotiation_fails_the_login() {
    for (own, other) in [
        ("LazyLevel=S2-5", "LazyLevel=S2-3"),
        ("LazyProfile=paper+safe", "LazyProfile=paper+sofe"),
        ("X-org.sealstone.LazyLevel", "X-org.sealstone.LazyLovel"),
        // The target sends this one: it is replaced on the way back.
        ("X-org.sealstone.LazyProaf", "X-org.sealstone.LazyProof"),
    ] {
        let unit = AttackedUnit::new("paper:S2-5", false);
        unit.bench.device.block(&["create", "lower", "--size", "32M", "--protect", "paper:S2-3"]).ok();
        unit.proxy.replace(own, other);
        let refused =
            unit.bench.refused_attach(&unit.url(), &[&unit.flags()[..], &["--timeout", "1"]].concat());
        assert_ne!(refused.code, 0, "{own}");
    }
}

/// L4, L6: a level that one side lacks is refused and recorded, in both directions.
#[test]
fn level_of_one_side_is_refused() {
    let mut unit = AttackedUnit::new("paper:S2-5", false);
    for level in ["paper:S1-1u", "paper:S2-1u", "paper:S1-2", "paper:S2-3", "none"] {
        let refused = unit.bench.refused_attach(&unit.url(), &["--protect", level]);
        refused.fails(3).says(&["class 2, detail 0"]);
    }
    unit.wait_for_audit(&["\"action\":\"login\"", "\"reason\":\"protection\""]);
    assert!(unit.status()["sessions"]["refused_logins"].as_u64() >= Some(5), "{}", unit.status());
    // The unit has none, and the client requires one.
    unit.bench.device.block(&["rm", "disk"]).ok();
    unit.bench.device.block(&["create", "disk", "--size", "32M"]).ok();
    unit.restart(Signal::Terminate);
    unit.bench.refused_attach(&unit.url(), &unit.flags()).fails(3).says(&["class 2, detail 0"]);
}

/// L5: a key list with another number of keys, another place or another form changes nothing.
#[test]
fn key_lists_that_do_not_fit_change_nothing() {
    let unit = AttackedUnit::new("paper:S1-2", false);
    let (mut attach, mut client) = unit.attach();
    write(&mut client, 1, &block(OLD));
    assert_eq!(client.flush(), 0);
    let settings = lazy_settings(ProtectionProfile::PaperSafe);
    let form = settings.key_list_form().expect("the level has keys");
    let sealed = |lba: u64, blocks: usize| {
        let mut data = block(NEW)[..512].repeat(blocks);
        let mut fill = |into: &mut [u8]| into.fill(7);
        let (list, macs) = BlockSealer::new(form).seal(lba, &mut data, &mut fill);
        (list, macs, data)
    };
    let forged = |keys: (u64, usize), blocks: u8, change: fn(&mut Vec<u8>)| {
        let (list, macs, _) = sealed(keys.0, keys.1);
        let (_, _, data) = sealed(8, usize::from(blocks));
        let mut ahs = list.encode(form).expect("short").to_vec();
        change(&mut ahs);
        send_forged(&unit.proxy, &unit.url(), settings, &ForgedWrite { lba: 8, blocks, ahs, data, macs })
    };
    let same: fn(&mut Vec<u8>) = |_| {};
    assert_eq!(forged((8, 1), 1, same), WireAnswer::Status(0), "a right one is accepted");
    write(&mut client, 1, &block(OLD));
    assert_eq!(client.flush(), 0);
    assert_eq!(forged((8, 2), 1, same), WireAnswer::Reject(4), "more keys than blocks");
    assert_eq!(forged((8, 1), 2, same), WireAnswer::Reject(4), "fewer keys than blocks");
    assert_eq!(forged((9, 1), 1, same), WireAnswer::Status(2), "keys of another block");
    let changes: [(&str, fn(&mut Vec<u8>)); 6] = [
        ("count", |ahs| ahs[7] = 3),
        ("count of zero", |ahs| ahs[7] = 0),
        ("scheme", |ahs| ahs[3] = 3),
        ("block length", |ahs| ahs[4] = 12),
        ("length", |ahs| ahs[1] ^= 4),
        ("two lists", |ahs| ahs.extend_from_within(..)),
    ];
    for (name, change) in changes {
        assert_eq!(forged((8, 1), 1, change), WireAnswer::Ended, "{name}");
    }
    let list = BlockKeyList { first_lba: 8, keys: Vec::new() };
    assert!(list.encode(form).is_err() || forged((8, 0), 1, same) == WireAnswer::Ended);
    unit.wait_for_audit(&["INTEGRITY", "not-authentic"]);
    unit.wait_for_audit(&["INTEGRITY", "malformed-keys"]);
    let sessions = &unit.status()["sessions"];
    assert_eq!(sessions["malformed_writes"], 2, "{sessions}");
    assert!(sessions["forged"].as_u64() >= Some(6), "{sessions}");
    // WRITE (10) is not sealed by clients: its blocks have no keys.
    let hostile = HostileSession::login(&unit.proxy.address, &unit.url(), settings);
    let refused = hostile.command(&[0x2A, 0, 0, 0, 0, 8, 0, 0, 1, 0], &block(NEW)[..512], 0);
    assert_eq!(refused, (2, (0x0E, 3)));
    hostile.logout();
    assert_eq!(client.read(4096, 4096), block(OLD));
    assert_eq!((client.flush(), unit.count("rejected")), (0, 0));
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// L8: a client that lies about what it verified: a forged version that it reports as authentic is
/// rejected, and an authentic one that it reports as forged stays.
#[test]
fn lies_about_verified_blocks_have_no_effect() {
    let unit = AttackedUnit::new("paper:S1-2", false);
    let (mut attach, mut client) = unit.attach();
    write(&mut client, 0, &block(OLD));
    assert_eq!(client.flush(), 0);
    let hostile =
        HostileSession::login(&unit.proxy.address, &unit.url(), lazy_settings(ProtectionProfile::PaperSafe));
    unit.proxy.arm(true, WireChange::Data(NEW.to_vec()), 1);
    write(&mut client, 0, &block(NEW));
    let (outcome, reports) = hostile.read(0);
    assert!(outcome.0 == 2 && outcome.1.0 == 0x11, "{outcome:?}");
    let claims: Vec<BlockReport> =
        reports.into_iter().map(|report| BlockReport { is_authentic: true, ..report }).collect();
    assert_eq!(hostile.report(&claims), 0);
    unit.wait_for("rejected", 1);
    assert_eq!(client.flush(), EIO);
    assert_eq!(read_error(&mut client, 0), EIO, "neither the forged nor the older block");
    // The other lie.
    write(&mut client, 0, &block(NEW));
    let lies: Vec<BlockReport> =
        claims.into_iter().map(|claim| BlockReport { is_authentic: false, ..claim }).collect();
    assert_eq!(hostile.report(&lies), 0);
    assert_eq!(client.flush(), 0);
    assert_eq!(hostile.report(&lies), 0);
    assert_eq!(client.read(0, 4096), block(NEW));
    assert_eq!(unit.count("rejected"), 1);
    // Malformed lists.
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0xC2, 31);
    assert_eq!(hostile.command(&cdb, &[0; 31], 0).0, 2);
    cdb[13] = 32;
    assert_eq!(hostile.command(&cdb, &[0xFF; 32], 0).0, 2);
    hostile.logout();
    assert_eq!(attach.end(Signal::Terminate), 0);
}
