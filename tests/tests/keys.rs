//! SIGKILL during a key change: the real device has the old or the new keys, complete, and its
//! manager can continue.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_crypto::RustCrypto;
use sealstone_crypto::dh::{DhGroup, DhSecret};
use sealstone_initiator::{
    Bearer, KeyManager, Operation, OsdClient, OsdOptions, SystemEnvironment, TargetUrl, TcpDial,
};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{CreatePartition, DhStep, KeyToSet, SetKey, SetMasterKey};
use sealstone_osd::{
    AttributeId, Capability, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod,
};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, KeySelector, selector};
use sealstone_tests::{Daemon, Signal, command, run, text};

type Keys = KeyHierarchy<RustCrypto>;

const FIRST: u64 = 0x10000;
/// A partition whose keys are set to test the root key.
const PROBE: u64 = 0x10001;
/// How long a device may take to accept or refuse a credential: its clock settles after a crash.
const PATIENCE: Duration = Duration::from_secs(90);

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).expect("digits"), 16).expect("hex")).collect()
}

/// Returns the factory hierarchy, from the key file of `osd init`.
fn factory(key_file: &Path) -> Keys {
    let content = std::fs::read_to_string(key_file).expect("the key file is there");
    let value = |name: &str| {
        let line = content.lines().find(|line| line.starts_with(name)).expect("a line of the key file");
        unhex(line.split('"').nth(1).expect("a quoted value"))
    };
    let system_id = value("system_id").try_into().expect("20 bytes");
    Keys::factory(Hash::Sha256, &InitialKey::new(&value("master_key")).expect("32 bytes"), system_id)
}

/// A device with a fixed address.
struct Device {
    folder: tempfile::TempDir,
    daemon: Option<Daemon>,
    port: u16,
}

impl Device {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (data, key) = (folder.path().join("osd"), folder.path().join("osd.key"));
        let arguments = ["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", "keyed"];
        run(&[&arguments[..], &["--key-out", text(&key)]].concat()).ok();
        let mut this = Self { folder, daemon: None, port: sealstone_tests::reserve_port() };
        this.start();
        this
    }

    fn start(&mut self) {
        let listen = format!("127.0.0.1:{}", self.port);
        let data = self.folder.path().join("osd");
        self.daemon = Some(Daemon::start(command(&[
            "osd",
            "serve",
            "--data",
            text(&data),
            "--listen",
            &listen,
            "--json",
        ])));
    }

    /// Returns a client that does not reconnect.
    fn client(&self) -> OsdClient {
        let url = self.daemon.as_ref().expect("it runs").field("url");
        let url = TargetUrl::from_str(url).expect("the ready line's URL");
        let options = OsdOptions { reconnects_max: 0, ..OsdOptions::new(&SystemEnvironment) };
        OsdClient::new(Arc::new(TcpDial::new(&url)), &url, Arc::new(SystemEnvironment), options)
    }
}

/// Returns a credential for a command, signed with the key that the device requires; `None` if it
/// is missing.
fn bearer(keys: &Keys, command: &Command) -> Option<Bearer> {
    let object = command.object();
    let capability = Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: 1,
        method: SecurityMethod::CmdRsp,
        expires_ms: 0,
        audit: *b"tests of keys, kills",
        discriminator: [9; 12],
        object_created_ms: 0,
        object_type: if object.is_root() { ObjectType::Root } else { ObjectType::Partition },
        permissions: Permissions::ALL_OSD2,
        descriptor: Descriptor::Partition { scope: Scope::default(), partition: object.partition },
    };
    let key = selector(command, 0);
    let credential = Credential::issue_under(keys, &AlgorithmSlots::DEFAULT, key, &capability).ok()?;
    Bearer::of(&credential).ok()
}

/// Runs a command until the device decides. Returns whether it was accepted.
async fn enters(device: &Device, keys: &Keys, command: Command, operation: impl Fn() -> Operation) -> bool {
    let Some(bearer) = bearer(keys, &command) else { return false };
    let begun = Instant::now();
    loop {
        let client = device.client();
        let received = client.execute(&bearer, operation()).await;
        client.close().await;
        match received {
            Ok(_) => return true,
            Err(error) if error.is_denied() => return false,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns a credential with every permission, for bytes of a user object.
fn bearer_for_bytes(keys: &Keys, object: ObjectId, start: u64, length: u64) -> Bearer {
    let capability = Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: 1,
        method: SecurityMethod::CmdRsp,
        expires_ms: 0,
        audit: *b"tests of byte ranges",
        discriminator: [9; 12],
        object_created_ms: 0,
        object_type: ObjectType::User,
        permissions: Permissions::ALL_OSD2,
        descriptor: Descriptor::User {
            scope: Scope::default(),
            allowed: object,
            range: Range { start, length },
        },
    };
    let key = KeySelector::Working { partition: object.partition, version: 0 };
    let credential = Credential::issue_under(keys, &AlgorithmSlots::DEFAULT, key, &capability);
    Bearer::of(&credential.expect("keys of the factory")).expect("a credential")
}

#[test]
fn byte_range_binds_append_length_and_map() {
    let device = Device::new();
    let mut keys = factory(&device.folder.path().join("osd.key"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let make = CreatePartition { partition: FIRST };
        let operation = || Operation::CreatePartition { partition: FIRST };
        assert!(enters(&device, &keys, Command::CreatePartition(make), operation).await);
        keys.add_partition(FIRST).expect("a new partition");
        let object = ObjectId::new(FIRST, 0x20000);
        let all = bearer_for_bytes(&keys, object, 0, 0);
        let client = device.client();
        let data = Bytes::from_static(b"object");
        let written = Operation::CreateAndWrite { object, offset: 0, data };
        client.execute(&all, written).await.expect("created");
        let length = AttributeId::new(1, 0x82);
        let resize = |to: u64| Operation::SetAttributes {
            object,
            values: vec![(length, Bytes::copy_from_slice(&to.to_be_bytes()))],
            durable: false,
        };
        let append = || Operation::Append { object, data: Bytes::from_static(b"+") };
        let get = || Operation::GetAttributes { object, ids: vec![length], length_max: 64 };
        let six = bearer_for_bytes(&keys, object, 0, 6);
        let later = bearer_for_bytes(&keys, object, 4, 2);
        for (bearer, operation) in [
            (&six, append()),
            (&six, resize(7)),
            (&six, get()),
            (&six, Operation::ReadMap { object, from: 0, extents_max: 16, compare: false }),
            (&six, Operation::Punch { object, offset: 0, length: 1 }),
            (&six, Operation::Remove { object }),
            (&later, resize(3)),
            (&later, Operation::Clear { object, offset: 3, length: 2 }),
        ] {
            let error = client.execute(bearer, operation).await.expect_err("outside the range");
            assert!(error.is_denied(), "{error:?}");
        }
        client.execute(&later, resize(4)).await.expect("bytes 4 and 5 are its own");
        client.execute(&later, append()).await.expect("byte 4 is its own");
        client.execute(&all, get()).await.expect("without a range");
        client.close().await;
    });
}

async fn sets(device: &Device, keys: &Keys, partition: u64, key: KeyToSet) -> bool {
    let set = SetKey { partition, key, identifier: [0xEE; 7], seed: [0xEE; 20] };
    enters(device, keys, Command::SetKey(set), || Operation::SetKey { set }).await
}

async fn looks(device: &Device, keys: &Keys, object: ObjectId) -> bool {
    let page = if object.is_root() { 0x9000_0001 } else { 0x3000_0001 };
    let ids = vec![AttributeId::new(page, 1)];
    let get = sealstone_osd::cdb::Target { object };
    let operation = || Operation::GetAttributes { object, ids: ids.clone(), length_max: 256 };
    enters(device, keys, Command::GetAttributes(get), operation).await
}

/// Tests the master key: only the current one can start an exchange. The session ends, and the
/// exchange with it.
async fn is_master(device: &Device, keys: &Keys) -> bool {
    let group = DhGroup::X25519;
    let value = DhSecret::draw(group, &mut |into: &mut [u8]| into.fill(0x42)).public();
    let set = SetMasterKey {
        step: DhStep::SeedExchange,
        group: group.code(),
        identifier: [1; 7],
        parameter_length: u32::try_from(value.len()).expect("32"),
        allocation: 64,
    };
    let operation = || Operation::SetMasterKey { set, data_out: value.clone().into() };
    enters(device, keys, Command::SetMasterKey(set), operation).await
}

/// Whether the device has exactly these keys. Every level is tested for which the hierarchy has a
/// key.
async fn fits(device: &Device, keys: &Keys) -> bool {
    let mut all = is_master(device, keys).await;
    // The probe's keys are set under the root key; nothing depends on them.
    let root = keys.signing_key(KeySelector::Root).is_some();
    all &= sets(device, keys, PROBE, KeyToSet::Partition).await == root;
    for partition in [0, FIRST] {
        let has = |selector| keys.signing_key(selector).is_some();
        let pair = has(KeySelector::Partition(partition));
        all &= sets(device, keys, partition, KeyToSet::Working(15)).await == pair;
        let working = has(KeySelector::Working { partition, version: 0 });
        all &= looks(device, keys, ObjectId::of_partition(partition)).await == working;
    }
    all
}

#[derive(Clone, Copy, Debug)]
enum KeyChange {
    Working,
    Partition,
    Root,
    Master,
}

/// Sets every key below the root again, so that the next change invalidates something.
async fn refill(device: &Device, keys: &mut Keys, seed: u8) {
    let mut manager = KeyManager::new(device.client(), keys.clone(), Arc::new(SystemEnvironment));
    let set = |partition, key| SetKey { partition, key, identifier: [seed; 7], seed: [seed; 20] };
    if keys.signing_key(KeySelector::Root).is_none() {
        manager.set_key_from(set(0, KeyToSet::Root)).await.expect("root");
    }
    for partition in [0, FIRST] {
        manager.set_key_from(set(partition, KeyToSet::Partition)).await.expect("partition");
        manager.set_key_from(set(partition, KeyToSet::Working(0))).await.expect("working");
    }
    *keys = manager.keys().clone();
}

/// Changes a key while the device is killed after `delay`, checks the result and continues from it.
async fn drill(device: &mut Device, keys: &mut Keys, change: KeyChange, seed: u8, delay: Duration) -> bool {
    let mut after = keys.clone();
    let (identifier, bytes) = ([seed; 7], [seed; 20]);
    let client = device.client();
    let mut manager = KeyManager::new(client.clone(), keys.clone(), Arc::new(SystemEnvironment));
    // Connects first, so that the delay applies to the change.
    let _ = client.security_token().await;
    let mut daemon = device.daemon.take().expect("it runs");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(delay);
        daemon.end(Signal::Kill)
    });
    let set = |partition, key| SetKey { partition, key, identifier, seed: bytes };
    let acknowledged = match change {
        KeyChange::Working => {
            after.set_working(FIRST, 0, &bytes, identifier).expect("a pair");
            manager.set_key_from(set(FIRST, KeyToSet::Working(0))).await.is_ok()
        }
        KeyChange::Partition => {
            after.set_partition(FIRST, &bytes, identifier).expect("a root key");
            manager.set_key_from(set(FIRST, KeyToSet::Partition)).await.is_ok()
        }
        KeyChange::Root => {
            after.set_root(&bytes, identifier);
            manager.set_key_from(set(0, KeyToSet::Root)).await.is_ok()
        }
        KeyChange::Master => {
            let done = manager.set_master_key(DhGroup::X25519, identifier).await.is_ok();
            after = manager.keys().clone();
            if !done {
                // As if it had been done: the manager stored its proposal, if it came that far.
                after.accept_master(identifier);
            }
            done
        }
    };
    killer.join().expect("the killer");
    device.start();
    let changed = fits(device, &after).await;
    let same = fits(device, keys).await;
    assert!(changed || !acknowledged, "{change:?} {seed}: what was acknowledged is there");
    assert!(changed || same, "{change:?} {seed}: neither the old keys nor the new ones, or a mix");
    if changed {
        *keys = after;
    }
    refill(device, keys, seed ^ 0x80).await;
    assert!(fits(device, keys).await, "{change:?} {seed}: the manager goes on");
    changed
}

#[test]
fn keys_are_old_or_new_after_a_kill() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut device = Device::new();
        let mut keys = factory(&device.folder.path().join("osd.key"));
        for partition in [FIRST, PROBE] {
            let create = CreatePartition { partition };
            let create = Command::CreatePartition(create);
            assert!(
                enters(&device, &keys, create, || Operation::CreatePartition { partition }).await,
                "a partition"
            );
            keys.add_partition(partition).expect("its keys");
        }
        refill(&device, &mut keys, 0x7F).await;
        assert!(fits(&device, &keys).await);
        let (mut seed, mut new, mut old) = (0, 0, 0);
        for delay_us in [0, 700, 2500, 9000] {
            for change in [KeyChange::Working, KeyChange::Partition, KeyChange::Root, KeyChange::Master] {
                seed += 1;
                let delay = Duration::from_micros(delay_us);
                match drill(&mut device, &mut keys, change, seed, delay).await {
                    true => new += 1,
                    false => old += 1,
                }
            }
        }
        assert_eq!(new + old, 16);
        // Without kills every change succeeds, also over one clean restart.
        device.daemon.take().expect("it runs").end(Signal::Terminate);
        device.start();
        assert!(fits(&device, &keys).await);
    });
}

/// A partition that was created by hand, or by a release without tags, gets the policy access tags
/// that credentials need.
#[test]
fn adding_a_device_sets_partition_tags() {
    let device = Device::new();
    let key = device.folder.path().join("osd.key");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (object, initial) = (ObjectId::of_partition(FIRST), factory(&key));
    let create = Command::CreatePartition(CreatePartition { partition: FIRST });
    let made = enters(&device, &initial, create, || Operation::CreateWith { object, values: Vec::new() });
    assert!(runtime.block_on(made), "the initial key makes partitions");
    let system = sealstone_tests::System::start(0);
    let url = device.daemon.as_ref().expect("it runs").field("url").to_owned();
    system.run(&["mds", "add-osd", &url, "--key", text(&key)]).ok();
    let put = sealstone_tests::run_with_input(system.command(&["put", "-", "/file"]), b"0123456789");
    put.ok();
    assert_eq!(system.run(&["cat", "/file"]).ok().stdout, b"0123456789");
    // It now works like any other.
    system.run(&["revoke", "--object", "/file"]).ok();
    assert_eq!(system.run(&["cat", "/file"]).ok().stdout, b"0123456789");
}
