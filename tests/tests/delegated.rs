//! Capability files through the real binaries: what they permit, and what they do not.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sealstone_client::{CapabilityFile, Delegated, DeviceConnectOptions, Method, Proofs};
use sealstone_initiator::{
    Bearer, Operation, OsdClient, OsdError, OsdOptions, SystemEnvironment, TargetUrl, TcpDial, TlsPolicy,
};
use sealstone_mds_protocol::{CapabilityBlob, DevicePin, PinKind, Secret};
use sealstone_osd::capability::Range;
use sealstone_osd::{Capability, CapabilityBytes, Descriptor, Generation, ObjectId, Permissions};
use sealstone_tests::{CommandResult, Signal, System, command, run_with_input, text};
use std::sync::Arc;

pub(crate) fn content(length: u32) -> Vec<u8> {
    (0..length).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub(crate) fn put(system: &System, path: &str, bytes: &[u8]) {
    run_with_input(system.command(&["put", "-", path]), bytes).ok();
}

/// Runs a program that has only the file: no session, no metadata server.
pub(crate) fn program(arguments: &[&str]) -> CommandResult {
    let mut command = command(arguments);
    command.env("SEALSTONE_SESSION", "/nonexistent/session.toml");
    CommandResult::from(command.output().expect("the binary starts"))
}

fn program_with_input(arguments: &[&str], input: &[u8]) -> CommandResult {
    let mut command = command(arguments);
    command.env("SEALSTONE_SESSION", "/nonexistent/session.toml");
    run_with_input(command, input)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn load(path: &Path) -> CapabilityFile {
    CapabilityFile::load(path).expect("a capability file")
}

/// Sends one operation with one of the file's credentials to its device.
fn operate(file: &CapabilityFile, index: usize, operation: Operation) -> Result<Vec<u8>, OsdError> {
    let grant = &file.delegated.grants[index];
    let device = file.devices.iter().find(|device| device.id == grant.object.device).expect("its device");
    let url: TargetUrl = device.url.as_str().parse().expect("its URL");
    let bearer = Bearer::new(grant.capability.as_slice(), grant.key.expose()).expect("a credential");
    runtime().block_on(async {
        let environment = Arc::new(SystemEnvironment);
        let options = OsdOptions::new(&*environment);
        let dial = TcpDial::by_policy(
            &url,
            device.pin.map(sealstone_initiator::Pin::from),
            &device.system_id,
            TlsPolicy::Auto,
        )
        .expect("a way there");
        let client = OsdClient::new(Arc::new(dial), &url, environment, options);
        let received = client.execute(&bearer, operation).await;
        client.close().await;
        received.map(|done| done.data)
    })
}

fn read(object: ObjectId, offset: u64, length: usize) -> Operation {
    Operation::Read { object, offset, length, buffer: Vec::new() }
}

fn capability(file: &CapabilityFile, index: usize) -> Capability {
    let bytes = file.delegated.grants[index].capability.as_slice();
    CapabilityBytes::new(Generation::Osd2, bytes).expect("104 bytes").parse().expect("an open capability")
}

/// Returns the file with its first capability changed and its key unchanged.
fn forged(file: &CapabilityFile, change: impl FnOnce(&mut Capability)) -> CapabilityFile {
    let mut forged = file.clone();
    let mut changed = capability(file, 0);
    change(&mut changed);
    forged.delegated.grants[0].capability =
        CapabilityBlob::new(changed.encode().to_vec()).expect("as long as before");
    forged
}

#[test]
fn delegated_program_accesses_only_its_byte_range() {
    let mut system = System::start(3);
    let bytes = content(5_000_000);
    put(&system, "/data", &bytes);
    let (cap, rw) = (system.path("r.cap"), system.path("rw.cap"));
    let (cap, rw) = (text(&cap).to_owned(), text(&rw).to_owned());
    let issue = |arguments: &[&str]| system.run(&[&["cap", "issue", "--until", "10m"], arguments].concat());
    issue(&["--read", "--range", "1000000..3000007", "/data", "-o", &cap]).ok();
    assert_eq!(std::fs::metadata(&cap).expect("written").permissions().mode() & 0o777, 0o600);
    issue(&["--read", "/data", "-o", &cap]).fails(1).says(&["already exists"]);
    issue(&["--read", "--write", "--range", "1M..", "--force", "/data", "-o", &rw]).ok();
    // The description of the file.
    let shown = program(&["cap", "show", &cap]).ok().text();
    assert!(
        shown.contains("1000000..3000007") && shown.contains("read") && !shown.contains("write"),
        "{shown}"
    );
    let key: String =
        load(Path::new(&cap)).delegated.grants[0].key.expose().iter().map(|b| format!("{b:02x}")).collect();
    let json = program(&["--json", "cap", "show", &cap]).ok().text();
    assert!(!json.contains(&key) && !shown.contains(&key), "its key is not shown");
    // The metadata server is not needed.
    system.end_mds(Signal::Terminate);
    assert!(program(&["cap", "get", &cap]).ok().stdout == bytes[1_000_000..3_000_007]);
    let local = system.path("local");
    program(&["cap", "get", &cap, text(&local), "--range", "1000001..1000004"]).ok();
    assert_eq!(std::fs::read(&local).expect("fetched"), &bytes[1_000_001..1_000_004]);
    program(&["cap", "get", &cap, "-", "--range", "999999..1000001"]).fails(3).says(&["outside its range"]);
    program(&["cap", "get", &cap, "-", "--range", "3000006..3000008"]).fails(3).says(&["outside its range"]);
    program_with_input(&["cap", "put", &cap, "-"], b"x").fails(3).says(&["reading only"]);
    // In place, across devices; durable when it returns.
    let new = content(2_100_000).iter().map(|byte| !byte).collect::<Vec<u8>>();
    program_with_input(&["cap", "put", &rw, "-", "--at", "1500000"], &new).ok();
    for device in 0..3 {
        system.end_osd(device, Signal::Kill);
        system.start_osd(device);
    }
    let mut expected = bytes.clone();
    expected[1_500_000..1_500_000 + new.len()].copy_from_slice(&new);
    assert!(program(&["cap", "get", &rw]).ok().stdout == expected[1 << 20..]);
    program_with_input(&["cap", "put", &rw, "-", "--at", "1048575"], b"x")
        .fails(3)
        .says(&["outside its range"]);
    let end = bytes.len() - 1;
    program_with_input(&["cap", "put", &rw, "-", "--at", &end.to_string()], b"xy").fails(3);
    std::fs::write(&local, [0; 9]).expect("written");
    program(&["cap", "put", &rw, text(&local), "--at", &(end - 3).to_string()])
        .fails(1)
        .says(&["the range allows 4"]);
    system.start_mds();
    assert!(
        system.run(&["cat", "/data"]).ok().stdout == expected,
        "nothing else was changed, and no checksum is left"
    );
}

#[test]
fn device_refuses_a_widened_capability() {
    let system = System::start(1);
    put(&system, "/data", &content(100_000));
    put(&system, "/other", b"somebody else's");
    let (cap, other) = (system.path("a.cap"), system.path("other.cap"));
    for (to, path) in [(&cap, "/data"), (&other, "/other")] {
        let issue = ["cap", "issue", "--read", "--until", "10m", path, "-o", text(to)];
        let range: &[&str] = if path == "/data" { &["--range", "100..200"] } else { &[] };
        system.run(&[&issue[..], range].concat()).ok();
    }
    let (file, theirs) = (load(&cap), load(&other));
    let object = file.delegated.grants[0].object.object;
    let denied = |file: &CapabilityFile, operation: Operation| {
        let error = operate(file, 0, operation).expect_err("the device refuses");
        assert!(error.is_denied(), "{error:?}");
    };
    // Unchanged: exactly the granted range.
    assert_eq!(operate(&file, 0, read(object, 100, 100)).expect("allowed"), &content(200)[100..]);
    for (offset, length) in [(99, 2), (199, 2), (0, 1), (200, 1)] {
        denied(&file, read(object, offset, length));
    }
    let data = bytes::Bytes::from_static(b"x");
    denied(&file, Operation::Write { object, offset: 100, data: data.clone() });
    denied(&file, Operation::Remove { object });
    let id = sealstone_osd::AttributeId::new(1, 0x82);
    denied(&file, Operation::GetAttributes { object, ids: vec![id], length_max: 64 });
    // Its own key for another object, and another object's capability with its key.
    let elsewhere = theirs.delegated.grants[0].object.object;
    denied(&file, read(elsewhere, 0, 4));
    let mut mixed = file.clone();
    mixed.delegated.grants[0].capability = theirs.delegated.grants[0].capability.clone();
    denied(&mixed, read(elsewhere, 0, 4));
    // Each field changed.
    let range = |start, length| {
        move |capability: &mut Capability| {
            let Descriptor::User { range, .. } = &mut capability.descriptor else {
                unreachable!("a user object")
            };
            *range = Range { start, length };
        }
    };
    denied(&forged(&file, range(0, 100_000)), read(object, 0, 100));
    denied(&forged(&file, range(0, u64::MAX)), read(object, 0, 100));
    let write = Operation::Write { object, offset: 100, data };
    let rights =
        |capability: &mut Capability| capability.permissions = Permissions::READ | Permissions::WRITE;
    denied(&forged(&file, rights), write);
    denied(&forged(&file, |capability| capability.expires_ms += 3_600_000), read(object, 100, 1));
    denied(&forged(&file, |capability| capability.audit = [0; 20]), read(object, 100, 1));
    let renamed = |capability: &mut Capability| {
        let Descriptor::User { allowed, .. } = &mut capability.descriptor else {
            unreachable!("a user object")
        };
        *allowed = elsewhere;
    };
    denied(&forged(&file, renamed), read(elsewhere, 0, 4));
    let untagged = |capability: &mut Capability| {
        let Descriptor::User { scope, .. } = &mut capability.descriptor else {
            unreachable!("a user object")
        };
        scope.policy_access_tag = 0;
    };
    denied(&forged(&file, untagged), read(object, 100, 1));
    let method = |capability: &mut Capability| capability.method = sealstone_osd::SecurityMethod::CmdRsp;
    denied(&forged(&file, method), read(object, 100, 1));
    // The device audits every refusal with the principal that the server recorded.
    let audit = std::fs::read_to_string(system.path("osd0").join("audit.jsonl")).expect("the audit log");
    let principal: String = file.delegated.principal.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(audit.lines().any(|line| line.contains(&principal) && line.contains("refused")), "{audit}");
}

/// CLEAR must not move bytes behind the granted range.
#[test]
fn byte_range_capability_moves_no_later_bytes() {
    let system = System::start(1);
    put(&system, "/data", &content(100_000));
    let cap = system.path("a.cap");
    let issue =
        ["cap", "issue", "--write", "--range", "4096..8192", "--until", "10m", "/data", "-o", text(&cap)];
    system.run(&issue).ok();
    let file = load(&cap);
    let object = file.delegated.grants[0].object.object;
    operate(&file, 0, Operation::Clear { object, offset: 4096, length: 4096 }).expect("allowed");
    for (offset, length) in [(4096, 4096), (4096, 1), (8191, 1)] {
        let error = operate(&file, 0, Operation::Punch { object, offset, length }).expect_err("refused");
        assert!(error.is_denied(), "{error:?}");
    }
    let error = operate(&file, 0, Operation::Append { object, data: bytes::Bytes::from_static(b"x") });
    assert!(error.expect_err("refused").is_denied());
    let mut expected = content(100_000);
    expected[4096..8192].fill(0);
    assert!(system.run(&["cat", "/data"]).ok().stdout == expected);
}

#[test]
fn an_expired_damaged_or_exposed_file_opens_nothing() {
    let system = System::start(1);
    put(&system, "/data", b"0123456789");
    let cap = system.path("a.cap");
    let issue = |until: &str, more: &[&str]| {
        let issue = ["cap", "issue", "--read", "--until", until, "/data", "-o", text(&cap), "--force"];
        system.run(&[&issue[..], more].concat())
    };
    issue("1s", &[]).ok();
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    program(&["cap", "get", text(&cap)]).fails(3);
    issue("2h", &[]).fails(1).says(&["is 3600 s"]);
    issue("2020-01-01T00:00Z", &[]).fails(1).says(&["expiry time has passed"]);
    issue("10m", &["--range", "0..11"]).fails(1).says(&["of a file of 10 bytes"]);
    issue("10m", &[]).ok();
    assert_eq!(program(&["cap", "get", text(&cap)]).ok().stdout, b"0123456789");
    // Any changed bit is detected.
    let good = std::fs::read(&cap).expect("readable");
    for at in [0, 9, good.len() / 2, good.len() - 40, good.len() - 1] {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&cap, &damaged).expect("written");
        program(&["cap", "get", text(&cap)]).fails(1);
        program(&["cap", "show", text(&cap)]).fails(1);
    }
    std::fs::write(&cap, &good[..good.len() - 1]).expect("written");
    program(&["cap", "get", text(&cap)]).fails(1).says(&["damaged"]);
    // With a corrected digest the device detects it.
    std::fs::write(&cap, &good).expect("written");
    let file = load(&cap);
    let mut flipped = file.clone();
    let mut key = file.delegated.grants[0].key.expose().to_vec();
    key[3] ^= 1;
    flipped.delegated.grants[0].key = Secret::new(key).expect("as long as before");
    flipped.save(&cap).expect("written");
    program(&["cap", "get", text(&cap)]).fails(3);
    file.save(&cap).expect("written");
    std::fs::set_permissions(&cap, std::fs::Permissions::from_mode(0o644)).expect("its mode");
    program(&["cap", "get", text(&cap)]).fails(1).says(&["0600"]);
    program(&["cap", "get", text(&system.path("nowhere.cap"))]).fails(4);
}

/// A stolen file works from anywhere, because it is a bearer credential; but it does not bypass
/// TLS.
#[test]
fn a_stolen_file_does_not_get_around_tls() {
    let system = System::start_with(1, "1G", &["--tls", "required"]);
    put(&system, "/data", b"0123456789");
    let cap = system.path("a.cap");
    system.run(&["cap", "issue", "--read", "--until", "10m", "/data", "-o", text(&cap)]).ok();
    assert_eq!(program(&["cap", "get", text(&cap)]).ok().stdout, b"0123456789");
    let file = load(&cap);
    assert!(file.devices[0].pin.is_some());
    // Without the pin: the device refuses plain text.
    let mut stripped = file.clone();
    stripped.devices[0].pin = None;
    stripped.save(&cap).expect("written");
    assert_ne!(program(&["cap", "get", text(&cap)]).code, 0);
    // An honest client refuses a device with another certificate, and plain text if not allowed.
    let mut wrong = file.clone();
    wrong.devices[0].pin = Some(DevicePin { kind: PinKind::Certificate, hash: [7; 32] });
    wrong.save(&cap).expect("written");
    program(&["cap", "get", text(&cap)]).fails(3).says(&["pinned is"]);
    let reach =
        DeviceConnectOptions { tls: TlsPolicy::Required, ..DeviceConnectOptions::from(Proofs::default()) };
    let delegated = Delegated::open(stripped, reach).expect("it parses");
    let mut sink = Vec::new();
    let received = runtime().block_on(delegated.read(None, &mut sink, &mut |_, _| {}));
    assert_eq!(received.expect_err("refused").exit_code(), 3);
    assert!(sink.is_empty());
    assert_eq!(file.delegated.grants[0].method, Method::AllData);
}

/// A drain does not wait for the holder of a revoked capability file.
#[test]
fn drain_does_not_wait_for_revoked_capability_file() {
    let system = System::start(2);
    put(&system, "/data", &content(100_000));
    let cap = system.path("a.cap");
    system.run(&["cap", "issue", "--read", "--write", "--until", "50m", "/data", "-o", text(&cap)]).ok();
    let file = load(&cap);
    let object = file.delegated.grants[0].object.object;
    let stat = system.run(&["--json", "stat", "/data"]).ok().json()["files"][0].clone();
    let device = stat["placement"]["objects"][0]["name"].as_str().expect("a name").to_owned();
    system.run(&["osd", "drain", &device, "--wait", "3"]).fails(1).says(&["in use"]);
    system.run(&["revoke", "--object", "/data"]).ok();
    system.run(&["osd", "drain", &device, "--wait", "100"]).ok();
    assert!(system.run(&["cat", "/data"]).ok().stdout == content(100_000));
    assert!(operate(&file, 0, read(object, 0, 1)).is_err(), "the file opens nothing any more");
}

/// Adding a draining device again at the same URL succeeds at once and reports its state.
#[test]
fn add_osd_of_draining_device_succeeds() {
    let system = System::start(2);
    system.run(&["osd", "drain", "osd0", "--wait", "100"]).ok();
    let url = system.osd(0).field("url").to_owned();
    let key = system.path("osd0.key");
    system.run(&["mds", "add-osd", &url, "--key", text(&key)]).ok().says(&["being drained"]);
    assert_eq!(system.run(&["osd", "drain", "osd0", "--show"]).ok().text().matches("empty since").count(), 1);
}
