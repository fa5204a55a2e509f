//! Device keys through the real binaries: takeover, rotation during writes, power loss, loss of
//! keys, backup.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sealstone_crypto::RustCrypto;
use sealstone_initiator::{Bearer, OsdClient, OsdError, OsdOptions, SystemEnvironment, TargetUrl, TcpDial};
use sealstone_osd::capability::Scope;
use sealstone_osd::{
    AttributeId, Capability, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy};
use sealstone_tests::{CommandResult, Signal, System, command, get, run, run_with_input, text};
use serde_json::Value;

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// Reads the device's capacity with a credential from its initial key file.
fn with_initial_key(system: &System, key_file: &Path, osd: usize) -> Result<(), OsdError> {
    let content = std::fs::read_to_string(key_file).expect("the key file is there");
    let value = |name: &str| {
        let line = content.lines().find(|line| line.starts_with(name)).expect("a line of the key file");
        unhex(line.split('"').nth(1).expect("a quoted value"))
    };
    let system_id = value("system_id").try_into().expect("20 bytes");
    let initial = InitialKey::new(&value("master_key")).expect("32 bytes");
    let keys = KeyHierarchy::<RustCrypto>::factory(Hash::Sha256, &initial, system_id);
    let capability = Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: 1,
        method: SecurityMethod::CmdRsp,
        expires_ms: 0,
        audit: [0; 20],
        discriminator: [5; 12],
        object_created_ms: 0,
        object_type: ObjectType::Root,
        permissions: Permissions::GET_ATTR,
        descriptor: Descriptor::Partition { scope: Scope::default(), partition: 0 },
    };
    let credential = Credential::issue(&keys, &AlgorithmSlots::DEFAULT, &capability).expect("factory keys");
    let bearer = Bearer::of(&credential).expect("a credential");
    let url: TargetUrl = system.osd(osd).field("url").parse().expect("the ready line's URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let environment = Arc::new(SystemEnvironment);
        let options = OsdOptions::new(&*environment);
        let device = OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment, options);
        let ids = vec![AttributeId::new(0x9000_0001, 0x80)];
        let received = device.attributes(&bearer, ObjectId::ROOT, ids).await;
        device.close().await;
        received.map(drop)
    })
}

fn put(system: &System, path: &str, bytes: &[u8]) -> CommandResult {
    run_with_input(system.command(&["put", "-", path]), bytes)
}

fn content(seed: u32, length: u32) -> Vec<u8> {
    (0..length).map(|index| (index.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn keys(system: &System) -> Vec<Value> {
    let listed = system.run(&["--json", "mds", "keys", "list"]).ok().json();
    listed["keys"].as_array().expect("a list").clone()
}

fn states(system: &System) -> Vec<String> {
    keys(system).iter().map(|key| key["state"].as_str().expect("a state").to_owned()).collect()
}

#[test]
fn initial_key_is_void_after_takeover() {
    let system = System::start(1);
    let key = system.path("osd0.key");
    let refused = with_initial_key(&system, &key, 0).expect_err("the initial key opens nothing");
    assert!(refused.is_denied(), "{refused:?}");
    put(&system, "/file", b"and clients work").ok();
    assert!(states(&system).iter().all(|state| state == "current"), "{:?}", keys(&system));
    // Adding it again with the same key only updates its address; its keys stay.
    let url = system.osd(0).field("url").to_owned();
    system.run(&["mds", "add-osd", &url, "--key", text(&key)]).ok();
    assert_eq!(system.run(&["cat", "/file"]).ok().stdout, b"and clients work");
}

/// Clients that put and get until they are stopped; all failures are recorded.
struct ClientLoad {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    workers: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl ClientLoad {
    fn start(system: &Arc<System>, clients: u32, bytes: u32) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let worker = |client: u32| {
            let (system, stop, done) = (system.clone(), stop.clone(), done.clone());
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                for round in 0.. {
                    let path = format!("/load-{client}-{}", round % 4);
                    let wanted = content(client * 1000 + round, bytes);
                    let put = put(&system, &path, &wanted);
                    if put.code != 0 {
                        failures.push(format!("put {path}: {}", put.stderr));
                    }
                    let got = system.run(&["get", &path, "-"]);
                    if got.code != 0 || got.stdout != wanted {
                        failures.push(format!("get {path}: {} bytes, {}", got.stdout.len(), got.stderr));
                    }
                    done.fetch_add(2, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                failures
            })
        };
        let workers = (0..clients).map(worker).collect();
        Self { stop, done, workers }
    }

    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let failures: Vec<String> =
            self.workers.into_iter().flat_map(|worker| worker.join().expect("a client")).collect();
        assert!(failures.is_empty(), "{} operations failed: {failures:?}", failures.len());
        self.done.load(Ordering::Relaxed)
    }
}

#[test]
fn key_changes_under_load_fail_no_operation() {
    // Short credential lifetimes, so that key versions become free again.
    let flags = ["--grant-s", "8", "--file-partitions", "3", "--metrics", "127.0.0.1:0"];
    let system = Arc::new(System::start_with_mds(2, "2G", &[], &flags));
    let load = ClientLoad::start(&system, 3, 3_000_000);
    let rotate = |arguments: &[&str]| {
        let whole = [&["--json", "mds", "keys", "rotate"][..], arguments].concat();
        let done = system.run(&whole).ok().json();
        assert_eq!(done["open"], 0, "{arguments:?} {done}");
        assert!(done["changed"].as_u64().expect("a number") > 0, "{arguments:?} {done}");
    };
    for _ in 0..3 {
        rotate(&["working"]);
        rotate(&["working", "--revoke"]);
        rotate(&["working", "--revoke", "--partition", "0x10001"]);
        rotate(&["partition", "--partition", "0x10000"]);
        rotate(&["root", "--device", "osd0"]);
        rotate(&["master", "--device", "osd1"]);
        rotate(&["partition"]);
    }
    let operations = load.finish();
    assert!(operations >= 6, "{operations} operations");
    let page = get(system.mds().field("metrics"), "/metrics").1;
    let changed = page.lines().find_map(|line| line.strip_prefix("sealstone_mds_keys_changed_total "));
    assert!(changed.and_then(|value| value.parse::<u64>().ok()) > Some(100), "{changed:?}");
    system.run(&["mds", "keys", "rotate", "root", "--partition", "0x10000"]).fails(1);
    system.run(&["mds", "keys", "rotate", "working", "--device", "nobody"]).fails(4).says(&["nobody"]);
}

/// The metadata server is killed repeatedly during key changes. Afterwards all files are readable
/// and no key is unresolved.
#[test]
fn server_killed_during_key_change_reconnects() {
    let mut system = System::start_with_mds(1, "1G", &[], &["--grant-s", "5"]);
    put(&system, "/before", b"written before").ok();
    for (round, level) in ["working", "partition", "root", "master", "master", "root"].into_iter().enumerate()
    {
        system.run(&["mds", "keys", "rotate", level, "--no-wait"]).ok();
        std::thread::sleep(Duration::from_millis(7 * round as u64));
        system.end_mds(Signal::Kill);
        system.start_mds();
        let path = format!("/after-{round}");
        put(&system, &path, path.as_bytes()).ok();
        assert_eq!(system.run(&["cat", &path]).ok().stdout, path.as_bytes());
        assert_eq!(system.run(&["cat", "/before"]).ok().stdout, b"written before");
    }
    system.run(&["--json", "mds", "keys", "rotate", "working"]).ok();
    assert!(states(&system).iter().all(|state| state == "current" || state == "superseded"));
}

fn secret(system: &System, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = system.path(name);
    std::fs::write(&path, format!("{text}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("private");
    path
}

#[test]
fn keystore_opens_only_with_its_sealing_key() {
    let mut system = System::start(1);
    put(&system, "/file", b"kept").ok();
    let mds = system.path("mds");
    let (right, wrong) = (
        secret(&system, "right", "correct horse battery"),
        secret(&system, "wrong", "correct horse batterx"),
    );
    let short = secret(&system, "short", "0123456789a");
    let reseal =
        |arguments: &[&str]| run(&[&["mds", "keys", "reseal", "--data", text(&mds)], arguments].concat());
    reseal(&["--new-passphrase-file", text(&right)]).fails(1).says(&["in use", "stop the metadata server"]);
    system.end_mds(Signal::Terminate);
    reseal(&["--new-passphrase-file", text(&short)]).fails(2).says(&["11 bytes", "at least 12"]);
    reseal(&["--new-passphrase-file", text(&right)]).ok();
    assert!(!mds.join("keystore.key").exists(), "the key file opens nothing any more");
    let serve = |arguments: &[&str]| {
        let whole = [&["--json", "mds", "serve", "--data", text(&mds), "--listen", "127.0.0.1:0"], arguments];
        sealstone_tests::Daemon::try_start(command(&whole.concat()))
    };
    serve(&[]).expect_err("refused").fails(3).says(&["passphrase", "--passphrase-file"]);
    let refused = serve(&["--passphrase-file", text(&wrong)]).expect_err("refused");
    refused.fails(3).says(&["the passphrase does not open", "keystore.sealed"]);
    drop(serve(&["--passphrase-file", text(&right)]).expect("it opens"));
    // The store file shows nothing of the device's keys.
    let store = std::fs::read(mds.join("meta.redb")).expect("the store");
    assert!(!store.windows(5).any(|bytes| bytes == b"OSDKT" || bytes == b"OSDKP"), "keys in the clear");
    // A systemd credential, and back to a key file elsewhere.
    let credentials = system.path("credentials");
    std::fs::create_dir(&credentials).expect("a folder");
    std::fs::write(credentials.join("vault"), [0xA7; 48]).expect("written");
    let mut to_credential = command(&[
        "mds",
        "keys",
        "reseal",
        "--data",
        text(&mds),
        "--passphrase-file",
        text(&right),
        "--new-credential",
        "vault",
    ]);
    to_credential.env("CREDENTIALS_DIRECTORY", &credentials);
    CommandResult::from(to_credential.output().expect("it runs")).ok();
    serve(&["--keystore-credential", "vault"]).expect_err("refused").fails(3).says(&["vault"]);
    let elsewhere = system.path("elsewhere.key");
    let mut to_key = command(&[
        "mds",
        "keys",
        "reseal",
        "--data",
        text(&mds),
        "--keystore-credential",
        "vault",
        "--new-key",
        text(&elsewhere),
    ]);
    to_key.env("CREDENTIALS_DIRECTORY", &credentials);
    CommandResult::from(to_key.output().expect("it runs")).ok();
    drop(serve(&["--keystore-key", text(&elsewhere)]).expect("it opens"));
    // An old copy of the keystore is reported as such.
    std::fs::rename(mds.join("keystore.sealed"), system.path("newest")).expect("moved");
    serve(&[]).expect_err("refused").fails(1).says(&["missing", "restore"]);
}

#[test]
fn restored_server_recovers_changed_keys() {
    let mut system = System::start(2);
    put(&system, "/old", b"before the backup").ok();
    let (mds, backup) = (system.path("mds"), system.path("mds.backup"));
    let pass = secret(&system, "backup.passphrase", "a long enough passphrase");
    let wrong = secret(&system, "wrong.passphrase", "another long passphrase");
    let write = ["mds", "backup", "--data", text(&mds), "--to", text(&backup)];
    let with = |arguments: &[&str], pass: &Path| {
        run(&[arguments, &["--backup-passphrase-file", text(pass)]].concat())
    };
    with(&write, &pass).fails(1).says(&["in use", "stop the metadata server"]);
    system.end_mds(Signal::Terminate);
    with(&write, &pass).ok();
    with(&write, &pass).fails(1).says(&["exists"]);
    let restore = ["mds", "restore", "--from", text(&backup)];
    with(&restore, &pass).ok();
    with(&restore, &wrong).fails(3).says(&["the passphrase does not open"]);
    let bytes = std::fs::read(&backup).expect("the backup");
    for at in [20, bytes.len() / 2, bytes.len() - 1] {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        let path = system.path("bad.backup");
        std::fs::write(&path, &bad).expect("written");
        let refused = with(&["mds", "restore", "--from", text(&path)], &pass);
        assert!(refused.code == 1 || refused.code == 3, "byte {at}: {}", refused.stderr);
    }
    // After the backup: more files, and new keys of all levels below the master.
    system.start_mds();
    put(&system, "/new", b"after the backup").ok();
    for level in ["working", "partition", "root"] {
        system.run(&["mds", "keys", "rotate", level]).ok();
    }
    system.end_mds(Signal::Kill);
    std::fs::rename(&mds, system.path("lost")).expect("moved");
    with(&["mds", "restore", "--from", text(&backup), "--data", text(&mds)], &pass).ok();
    with(&["mds", "restore", "--from", text(&backup), "--data", text(&mds)], &pass).fails(1);
    system.start_mds();
    // Sessions are not restored.
    system.run(&["ls", "/"]).fails(3);
    let secret = system.path("lost").join("admin-secret");
    system
        .run(&["login", "admin", "--cluster", text(&system.cluster()), "--password-file", text(&secret)])
        .ok();
    // The server recovers the devices' keys by itself.
    system.run(&["mds", "keys", "rotate", "working"]).ok();
    assert_eq!(system.run(&["cat", "/old"]).ok().stdout, b"before the backup");
    system.run(&["stat", "/new"]).fails(4);
    put(&system, "/new", b"again").ok();
    assert_eq!(system.run(&["cat", "/new"]).ok().stdout, b"again");
}

#[test]
fn reset_of_lost_keys_keeps_objects() {
    let mut system = System::start(1);
    put(&system, "/file", b"still there").ok();
    let (data, key) = (system.path("osd0"), system.path("again.key"));
    let new_key = ["osd", "new-key", "--data", text(&data), "--key-out", text(&key)];
    run(&new_key).fails(1).says(&["another process"]);
    system.end_osd(0, Signal::Terminate);
    let first = system.path("osd0.key");
    run(&new_key).ok();
    run(&new_key).fails(1).says(&["exists"]);
    system.start_osd(0);
    let url = system.osd(0).field("url").to_owned();
    // The server accepts the new key only after it noticed that none of its own works.
    let mut last = String::new();
    for _ in 0..60 {
        let added = system.run(&["mds", "add-osd", &url, "--key", text(&key)]);
        if added.code == 0 {
            assert_eq!(system.run(&["cat", "/file"]).ok().stdout, b"still there");
            let refused = with_initial_key(&system, &first, 0).expect_err("the first key is long worthless");
            assert!(refused.is_denied());
            return;
        }
        last = added.stderr;
        std::thread::sleep(Duration::from_secs(1));
    }
    panic!("not taken over again: {last}");
}
