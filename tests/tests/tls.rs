//! TLS on the iSCSI port: an attacker on the network cannot read or change traffic, and
//! unauthenticated peers get nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::tls_support::{RelayBehaviour, TlsRelay};
use sealstone_channel::{Pin, TlsIdentity};
use sealstone_tests::initiator::{Initiator, login};
use sealstone_tests::{CommandResult, Daemon, Signal, System, command, get, run, run_with_input, text};

/// Generous, because tests share two cores.
const PATIENCE: Duration = Duration::from_secs(200);

fn content(length: u32) -> Vec<u8> {
    (0..length).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A device behind a man in the middle, added with this pin (default: its own); keeps the result of
/// `add-osd`.
struct RelayedDevice {
    system: System,
    between: TlsRelay,
    added: CommandResult,
}

impl RelayedDevice {
    fn start(relay: RelayBehaviour, pin: Option<&str>, flags: &[&str], mds_flags: &[&str]) -> Self {
        let system = System::start_with_mds(0, "1G", &[], mds_flags);
        let (data, key) = (system.path("osd"), system.path("osd.key"));
        let init = ["osd", "init", "--data", text(&data), "--capacity", "1G", "--key-out", text(&key)];
        let made = run(&[&["--json"], &init[..]].concat()).ok().json();
        let mut serve =
            command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
        serve.args(flags);
        let device = Daemon::start(serve);
        if !flags.contains(&"off") {
            assert_eq!(device.field("pin"), made["pin"].as_str().expect("init prints the pin"));
        }
        let own = made["pin"].as_str().expect("a pin").to_owned();
        let between = TlsRelay::start(device, own.parse().expect("a pin"), relay);
        let (url, wait) = (between.url(), ["--wait", "15"]);
        let mut add = vec!["mds", "add-osd", &url, "--key", text(&key)];
        match pin {
            Some("") => {}
            Some(pin) => add.extend(["--pin", pin]),
            None => add.extend(["--pin", &own]),
        }
        let added = system.run(&[&add, &wait[..]].concat());
        Self { system, between, added }
    }

    fn put(&self, path: &str, flags: &[&str], bytes: &[u8]) -> CommandResult {
        run_with_input(self.system.command(&[&["put", "-", path], flags].concat()), bytes)
    }
}

/// A man in the middle sees every byte of a session, but nothing readable.
#[test]
fn tls_hides_traffic_from_a_wiretap() {
    let behind = RelayedDevice::start(RelayBehaviour::Bytes, None, &["--tls", "required"], &[]);
    behind.added.clone().ok();
    let bytes = content(900_000);
    for method in ["cmdrsp", "alldata"] {
        behind.put(&format!("/{method}"), &["--method", method], &bytes).ok();
        assert!(behind.system.run(&["cat", &format!("/{method}")]).ok().stdout == bytes);
    }
    let seen = behind.between.seen();
    assert!(seen.len() > 3 * bytes.len(), "it all went through here: {} bytes", seen.len());
    for secret in [&bytes[..64], &bytes[700_000..700_064], b"InitiatorName", b"iqn.2026-11.org.sealstone"] {
        assert!(!seen.windows(secret.len()).any(|window| window == secret), "seen on the way");
    }
}

/// Without a pin the traffic is in plain text, which shows that the test above works.
#[test]
fn plain_traffic_is_visible_to_a_wiretap() {
    let behind = RelayedDevice::start(RelayBehaviour::Bytes, Some(""), &["--tls", "optional"], &[]);
    behind.added.clone().ok();
    let bytes = content(100_000);
    behind.put("/plain", &[], &bytes).ok();
    assert!(behind.between.seen().windows(64).any(|window| window == &bytes[..64]));
    // A client that requires TLS refuses a device without a pin.
    behind.put("/file", &["--device-tls", "required"], &bytes).fails(3).says(&["has no pinned certificate"]);
}

/// A man in the middle answers in plain text, and so receives only the client's TLS hello.
#[test]
fn tls_stripping_reveals_only_a_hello() {
    let behind = RelayedDevice::start(RelayBehaviour::Strip, None, &[], &[]);
    behind.added.clone().fails(1).says(&["is not usable after"]);
    let seen = behind.between.seen();
    assert!(!seen.is_empty() && seen[0] == 0x16, "a TLS record");
    assert!(!seen.windows(13).any(|window| window == b"InitiatorName"));
}

/// A man in the middle with another certificate.
#[test]
fn changed_certificate_error_shows_both_pins() {
    let impostor = TlsIdentity::self_signed("impostor.example").expect("made");
    let shown = impostor.pin().expect("a pin").to_string();
    let behind = RelayedDevice::start(RelayBehaviour::Tls(impostor), None, &[], &[]);
    behind.added.clone().fails(3).says(&["has another certificate", &shown]);

    // A wrong pin has the same effect.
    let wrong = Pin::certificate(b"another").to_string();
    let behind = RelayedDevice::start(RelayBehaviour::Bytes, Some(&wrong), &[], &[]);
    behind.added.clone().fails(3).says(&["has another certificate", behind.between.pin()]);
    let key = behind.system.path("osd.key");
    let url = behind.between.url();
    let add = |pin: &str| behind.system.run(&["mds", "add-osd", &url, "--key", text(&key), "--pin", pin]);
    let nonsense = add("sha256:12");
    assert_eq!(nonsense.code, 2);
    nonsense.says(&["64 hexadecimal digits"]);
    // With the correct pin the device is taken into use.
    add(behind.between.pin()).ok();
    behind.put("/file", &[], b"here").ok();
}

/// A device that returns with another certificate is not the one that was added: clients report it
/// and send nothing.
#[test]
fn new_device_certificate_requires_adding_again() {
    let mut system = System::start(1);
    run_with_input(system.command(&["put", "-", "/file"]), b"here").ok();
    let old = system.osd(0).field("pin").to_owned();
    let data = system.path("osd0");
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    system.start_osd(0);
    assert_eq!(system.osd(0).field("pin"), old, "it keeps its certificate");
    assert_eq!(system.end_osd(0, Signal::Kill), -1);
    for name in ["certificate.der", "certificate-key.der"] {
        fs::remove_file(data.join(name)).expect("removed");
    }
    system.start_osd(0);
    let new = system.osd(0).field("pin").to_owned();
    assert_ne!(new, old);
    system.run(&["cat", "/file"]).fails(3).says(&[&old, &new]);
    let url = system.osd(0).field("url").to_owned();
    let key = system.path("osd0.key");
    let certificate = data.join("certificate.der");
    system.run(&["mds", "add-osd", &url, "--key", text(&key), "--certificate", text(&certificate)]).ok();
    assert_eq!(system.run(&["cat", "/file"]).ok().stdout, b"here");
}

/// CAPKEY signs the token of the channel between client and relay; the device's token differs.
/// Without TLS the relay has all it needs.
#[test]
fn relayed_token_is_refused_inside_tls() {
    let impostor = TlsIdentity::self_signed("relay.example").expect("made");
    let shown = impostor.pin().expect("a pin").to_string();
    // The victim takes the relay for its device: another, compromised device of the cluster, for
    // example.
    let floor = ["--method-floor", "capkey"];
    let behind = RelayedDevice::start(RelayBehaviour::Tls(impostor), Some(&shown), &[], &floor);
    behind.added.clone().ok();
    behind.put("/signed", &["--method", "cmdrsp"], b"by command").ok();
    behind.put("/file", &["--method", "capkey"], b"by token").fails(3).says(&["access denied"]);
    behind.system.run(&["cat", "--method", "capkey", "/signed"]).fails(3).says(&["access denied"]);

    let plain = RelayedDevice::start(RelayBehaviour::Bytes, Some(""), &["--insecure-capkey"], &floor);
    plain.added.clone().ok();
    plain.put("/file", &["--method", "capkey"], b"by token").ok();
}

/// A connection that is cut within a write must not look like an acknowledgement.
#[test]
fn put_over_a_cut_connection_fails() {
    let behind = RelayedDevice::start(RelayBehaviour::Bytes, None, &[], &[]);
    behind.added.clone().ok();
    behind.between.cut_after(300_000);
    behind.put("/file", &[], &content(6_000_000)).fails(1);
    behind.system.run(&["stat", "/file"]).fails(4);
    behind.between.cut_after(usize::MAX);
    behind.put("/file", &[], b"whole").ok();
}

fn device(flags: &[&str]) -> (tempfile::TempDir, Daemon) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("osd");
    run(&["osd", "init", "--data", text(&data), "--capacity", "1G"]).ok();
    let mut serve = command(&["--json", "osd", "serve", "--data", text(&data)]);
    serve.args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]).args(flags);
    (folder, Daemon::start(serve))
}

fn counter(device: &Daemon, name: &str) -> u64 {
    let page = get(device.field("metrics"), "/metrics").1;
    let line = page.lines().find(|line| line.starts_with(&format!("sealstone_iscsi_{name}{{")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}: {page}"))
}

#[track_caller]
fn waits_for(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends these bytes, and returns the response until the device closes.
#[track_caller]
fn says_to(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the port is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("it neither answers nor closes")
        }
        _ => said,
    }
}

#[test]
fn tls_listener_does_not_answer_plain_clients() {
    let (folder, device) = device(&["--tls", "required", "--login-s-max", "2"]);
    let address = device.field("address").to_owned();
    let target = device.field("url").rsplit('/').nth(1).expect("iscsi://HOST:PORT/IQN/LUN").to_owned();
    assert_eq!(device.field("tls"), "required");
    assert_eq!(says_to(&address, &login("plain", &target)), b"", "not a byte");
    assert_eq!(says_to(&address, b"GET / HTTP/1.1\r\n\r\n"), b"");
    // A hello of TLS 1.2 only, and a record of noise: an alert at most.
    let mut hello = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xC0, 0x2F, 1, 0]);
    let noise = [&[0x16, 3, 3, 0x40, 0][..], &content(0x4000)].concat();
    for bytes in [&hello[..], &noise, &[0x16; 5]] {
        let said = says_to(&address, bytes);
        assert!(said.len() <= 7 && said.first().is_none_or(|first| *first == 0x15), "{said:02x?}");
    }
    // Nothing at all, and half a hello: closed after the timeout.
    assert_eq!(says_to(&address, b""), b"");
    assert_eq!(says_to(&address, &hello[..20]), b"");
    // Another protocol, and none, inside a valid handshake.
    for protocols in [&[b"osd-mds/1".to_vec()][..], &[]] {
        let mut stream = sealstone_tests::tls::connect_as(&address, protocols);
        let _ = stream.write_all(&login("inside", &target));
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert_eq!(said, b"", "{protocols:?}");
    }
    // Noise inside a valid channel ends it.
    let mut stream = sealstone_tests::tls::connect_as(&address, &[b"osd-iscsi/1".to_vec()]);
    stream.write_all(&content(4000)).expect("taken");
    let _ = stream.read_to_end(&mut Vec::new());
    assert_eq!(counter(&device, "sessions_open"), 0);
    assert_eq!(counter(&device, "tls_handshakes_total"), 1);
    waits_for(|| counter(&device, "tls_handshakes_failed_total") >= 9);
    let audit = fs::read_to_string(folder.path().join("osd/audit.jsonl")).expect("an audit log");
    for reason in ["tls-missing", "tls-handshake", "tls-protocol"] {
        assert!(audit.contains(reason), "{reason} is missing in {audit}");
    }
    assert_eq!(device.stderr(), "");
}

/// A client with unfinished handshakes occupies only the slots of its address; others are served
/// meanwhile.
#[test]
fn incomplete_handshake_times_out() {
    let flags = ["--tls", "required", "--login-s-max", "5", "--logins-per-address-max", "16"];
    let (_folder, device) = device(&flags);
    let address = device.field("address").to_owned();
    let before = device.resident_bytes();
    let held: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).expect("the port is open");
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]);
            stream
        })
        .collect();
    waits_for(|| counter(&device, "logins_crowded_total") >= 100);
    assert!(counter(&device, "connections_open") <= 16);
    waits_for(|| counter(&device, "tls_handshakes_failed_total") >= 16);
    // Their slots are free again, though their ends are still open.
    let mut stream = sealstone_tests::tls::connect_as(&address, &[b"osd-iscsi/1".to_vec()]);
    stream.write_all(&[0]).expect("a channel");
    assert!(device.resident_bytes() < before + (32 << 20), "{} and {}", before, device.resident_bytes());
    drop(held);
}

#[test]
fn a_listener_that_allows_both_serves_both() {
    let (_folder, device) = device(&[]);
    assert_eq!(device.field("tls"), "optional", "on loopback, unless told otherwise");
    let address = device.field("address").to_owned();
    let mut plain = Initiator::login(&address, device.field("url"), "plain");
    assert!(!plain.inquiry().is_empty());
    drop(sealstone_tests::tls::connect_as(&address, &[b"osd-iscsi/1".to_vec()]).sock);
}

#[test]
fn plain_text_on_a_network_requires_two_flags() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("osd");
    run(&["osd", "init", "--data", text(&data), "--capacity", "1G"]).ok();
    let serve = ["--json", "osd", "serve", "--data", text(&data), "--listen", "0.0.0.0:0"];
    run(&[&serve[..], &["--tls", "off"]].concat()).fails(2).says(&["--insecure-no-tls", "loopback"]);
    for (flags, tls) in [
        (&[][..], "required"),
        (&["--tls", "optional"], "optional"),
        (&["--tls", "off", "--insecure-no-tls"], "off"),
    ] {
        let mut device = Daemon::start(command(&[&serve[..], flags].concat()));
        assert_eq!(device.field("tls"), tls);
        assert_eq!(device.ready()["pin"].is_null(), tls == "off");
        assert_eq!(device.end(Signal::Terminate), 0);
    }
}

#[test]
fn exposed_or_wrong_private_key_is_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let [data, other] = ["osd", "other"].map(|name| folder.path().join(name));
    for data in [&data, &other] {
        run(&["osd", "init", "--data", text(data), "--capacity", "1G"]).ok();
    }
    let key = data.join("certificate-key.der");
    assert_eq!(fs::metadata(&key).expect("there").permissions().mode() & 0o777, 0o600);
    let serve = || run(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("widened");
    serve().fails(3).says(&["certificate-key.der", "chmod 600"]);
    fs::remove_file(&key).expect("removed");
    serve().fails(4).says(&["certificate-key.der"]);
    fs::copy(other.join("certificate-key.der"), &key).expect("copied");
    serve().fails(1).says(&["certificate.der", "do not match"]);
    fs::write(&key, b"no key").expect("written");
    serve().fails(1).says(&["certificate.der"]);
    // A folder of a release without TLS gets a new certificate.
    for name in ["certificate.der", "certificate-key.der"] {
        fs::remove_file(data.join(name)).expect("removed");
    }
    let device =
        Daemon::start(command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]));
    assert!(device.field("pin").starts_with("sha256:"));
}

/// One pin for all devices of a cluster and its metadata server: the authority that `mds init`
/// creates.
#[test]
fn authority_certifies_only_its_cluster() {
    let mut system = System::start(0);
    let cluster = fs::read_to_string(system.cluster()).expect("a cluster file");
    let authority = cluster.split('"').find(|word| word.starts_with("ca-sha256:")).expect("an authority");
    let mut devices = Vec::new();
    for (name, certified) in [("a", "a"), ("b", "a")] {
        let [data, key, out] =
            [name.to_owned(), format!("{name}.key"), format!("{name}-tls")].map(|name| system.path(&name));
        run(&["osd", "init", "--data", text(&data), "--capacity", "1G", "--key-out", text(&key)]).ok();
        let named = system.path(&format!("{certified}.key"));
        let mds = system.path("mds");
        let issue = [
            "--json",
            "mds",
            "issue-certificate",
            "--data",
            text(&mds),
            "--key",
            text(&named),
            "--out",
            text(&out),
        ];
        let issued = run(&issue).ok().json();
        assert_eq!(issued["authority"], authority);
        run(&issue).fails(1).says(&["already exists"]);
        for file in ["certificate.der", "certificate-key.der", "authority.der"] {
            fs::copy(out.join(file), data.join(file)).expect("carried over");
        }
        let serve =
            ["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0", "--tls", "required"];
        let device = Daemon::start(command(&serve));
        assert_eq!(device.field("pin"), issued["pin"], "it can be pinned by itself too");
        let add = ["mds", "add-osd", device.field("url"), "--key", text(&key), "--pin", authority];
        let added = system.run(&add);
        if name == certified {
            added.ok();
        } else {
            added.fails(3).says(&["has another certificate", "authority"]);
        }
        devices.push(device);
    }
    run_with_input(system.command(&["put", "-", "/file"]), b"vouched for").ok();
    assert_eq!(system.run(&["cat", "/file"]).ok().stdout, b"vouched for");

    // The server's certificate is renewed: clients that pinned it refuse it, clients that pinned
    // the authority accept it.
    let secret = system.path("mds").join("admin-secret");
    let pin = system.mds().field("pin").to_owned();
    system.end_mds(Signal::Terminate);
    fs::remove_file(system.path("mds").join("certificate.der")).expect("removed");
    system.start_mds();
    let address = system.mds().field("address").to_owned();
    let login = |pin: &str| {
        system.run(&["login", "admin", "--mds", &address, "--pin", pin, "--password-file", text(&secret)])
    };
    login(&pin).fails(3).says(&["certificate is not the pinned one"]);
    login(authority).ok();
    let other = Pin::authority(b"another").to_string();
    login(&other).fails(3).says(&["not from the pinned authority"]);
    assert_eq!(system.run(&["cat", "/file"]).ok().stdout, b"vouched for");
}
