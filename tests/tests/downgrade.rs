//! The attack of the ESM paper as a program, and each defence against it. A command is captured,
//! its method set to NOSEC, its check value to zero, its data replaced, and sent on the attacker's
//! own connection.
//!
//! It works against a device that trusts the method named in a capability. Then each defence is
//! tested.

use sealstone_seal::paper::mceliece::PublicKey;
use sealstone_tests::{CapturedCommand, Initiator, System, Wiretap, run_with_input, text};

/// Service actions of OSD-2 WRITE, and CREATE AND WRITE.
const WRITES: [u16; 2] = [0x8886, 0x8892];
const WRITE: u16 = 0x8886;
/// Offsets in an OSD-2 CDB.
const METHOD: usize = 82;
const REQUEST_ICV: std::ops::Range<usize> = 184..216;
const SERVICE_ACTION: std::ops::Range<usize> = 8..10;
const DATA_OUT_ICV_OFFSET: std::ops::Range<usize> = 232..236;
/// Length fields, each followed by its offset: attributes to get, allocation, attributes to set.
const ATTRIBUTE_LISTS: [usize; 3] = [52, 60, 68];
const GENUINE: &[u8] = b"what the owner wrote";
const FORGED: &[u8] = b"what the thief wrote";

/// Disables TLS, so that traffic can be captured.
const PLAIN: [&str; 2] = ["--tls", "off"];

/// Starts a system whose device trusts the method of each command, with more flags for both
/// servers.
fn believing(osd: &[&str], mds: &[&str]) -> System {
    let osd = [&["--insecure-nosec"][..], &PLAIN, osd].concat();
    let mds = [&["--method-floor", "capkey"][..], mds].concat();
    System::start_with_mds(1, "1G", &osd, &mds)
}

/// Captures the write of a file stored with CAPKEY.
fn capture(system: &System, put: &[&str]) -> CapturedCommand {
    let device = system.osd(0).field("address").parse().expect("an address");
    let wiretap = Wiretap::before(device).expect("a port");
    let url = system.osd(0).field("url").replace(&device.to_string(), &wiretap.address.to_string());
    system.run(&["mds", "add-osd", &url, "--key", text(&system.path("osd0.key"))]).ok();
    let put = [put, &["put", "--method", "capkey", "-", "/victim"]].concat();
    run_with_input(system.command(&put), GENUINE).ok();
    let is_write = |command: &CapturedCommand| {
        WRITES.contains(&command.service_action())
            && command.data_out.windows(GENUINE.len()).any(|part| part == GENUINE)
    };
    wiretap.capture(is_write).expect("the write passed the wire")
}

/// Sends the captured command with method NOSEC, without a check value, and with other data.
/// Returns its status.
fn attack(system: &System, cdb: &[u8]) -> u8 {
    let (address, url) = (system.osd(0).field("address"), system.osd(0).field("url"));
    let mut thief = Initiator::login(address, url, "thief");
    // A new nexus gets a unit attention first.
    thief.command(0, &[0; 6], &[], 0);
    thief.command(0, cdb, FORGED, 0).0
}

fn downgraded(captured: &CapturedCommand) -> Vec<u8> {
    let mut cdb = captured.cdb.clone();
    // The object exists already.
    cdb[SERVICE_ACTION].copy_from_slice(&WRITE.to_be_bytes());
    cdb[METHOD] &= 0xF0;
    cdb[REQUEST_ICV].fill(0);
    cdb[DATA_OUT_ICV_OFFSET].fill(0xFF);
    // Requests no attributes: zero lengths, no offsets.
    for list in ATTRIBUTE_LISTS {
        cdb[list..list + 4].fill(0);
        cdb[list + 4..list + 8].fill(0xFF);
    }
    cdb
}

fn holds(system: &System, options: &[&str]) -> Vec<u8> {
    system.run(&[options, &["cat", "--method", "capkey", "/victim"]].concat()).ok().stdout
}

/// Checks that the device has the forged bytes, which only the owner's checksum at the metadata
/// server detects.
fn is_forged(system: &System, options: &[&str]) {
    let read = system.run(&[options, &["cat", "--method", "capkey", "/victim"]].concat());
    read.fails(1).says(&["does not match the checksum"]);
}

/// Status CHECK CONDITION; GOOD is 0.
const REFUSED: u8 = 0x02;

#[test]
fn device_trusting_the_command_method_is_exploitable() {
    let system = believing(&[], &[]);
    let captured = capture(&system, &[]);
    assert_eq!(captured.cdb[METHOD] & 0x0F, 1, "it came by CAPKEY");
    assert_eq!(attack(&system, &downgraded(&captured)), 0, "GOOD");
    is_forged(&system, &[]);
}

/// The first defence, and the default: the device's own floor.
#[test]
fn a_devices_floor_stops_the_thief() {
    let osd = [&["--insecure-capkey"][..], &PLAIN].concat();
    let system = System::start_with_mds(1, "1G", &osd, &["--method-floor", "capkey"]);
    let captured = capture(&system, &[]);
    assert_eq!(attack(&system, &downgraded(&captured)), REFUSED);
    assert_eq!(holds(&system, &[]), GENUINE);
    let audit = std::fs::read_to_string(system.path("osd0").join("audit.jsonl")).expect("the audit log");
    assert!(audit.contains("below_floor"), "{audit}");
}

/// The modern defence for devices that must trust the method: a sealed capability contains it.
#[test]
fn a_sealed_capability_stops_the_thief() {
    let system = believing(&["--sealed-only"], &["--seal-capabilities"]);
    let captured = capture(&system, &[]);
    assert_eq!(captured.cdb[80], 0x0E, "it is sealed");
    assert_eq!(attack(&system, &downgraded(&captured)), REFUSED);
    // An invented one fails as well.
    let mut invented = downgraded(&captured);
    invented[80..184].fill(0xFF);
    invented[80..84].copy_from_slice(&[0x02, 0, 0, 0]);
    assert_eq!(attack(&system, &invented), REFUSED);
    assert_eq!(holds(&system, &[]), GENUINE);
}

/// The paper's defence: it stops the paper's attacker, but not one who uses the published key.
#[test]
fn paper_cipher_stops_only_the_papers_attacker() {
    let conceal = ["--conceal-method"];
    let system = believing(&["--method-cipher", "h5s"], &conceal);
    let captured = capture(&system, &conceal);
    assert_eq!(captured.cdb[1] & 0x80, 0x80, "it says that it is concealed");
    // In the clear: refused. Unchanged with zeros over the method: any of the sixteen values is
    // equally likely.
    let mut clear = downgraded(&captured);
    clear[1] = 0;
    assert_eq!(attack(&system, &clear), REFUSED);
    assert_eq!(holds(&system, &conceal), GENUINE);
    // The key is published: a capability of permission bits alone, concealed under it, is accepted.
    let (address, url) = (system.osd(0).field("address"), system.osd(0).field("url"));
    let mut thief = Initiator::login(address, url, "reader");
    thief.command(0, &[0; 6], &[], 0);
    let (status, page) = thief.command(0, &[0x12, 1, 0xC0, 0x10, 0, 0], &[], 0x1000);
    assert_eq!(status, 0);
    let key = PublicKey::parse(&page[4..]).expect("a public key");
    let mut forged = clear;
    for byte in [80, 81, 82, 83] {
        forged[byte] = 0;
    }
    forged[80] = 2;
    forged[129..131].fill(0xFF);
    let mut random = |into: &mut [u8]| into.fill(0x55);
    key.conceal(&mut forged, &mut random).expect("room for the redundancy");
    assert_eq!(attack(&system, &forged), 0, "GOOD");
    is_forged(&system, &conceal);
}
