//! `sealstone-osd-device`: the OSD logical unit with arbitrary CDBs and data, and its files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sealstone_crypto::RustCrypto;
use sealstone_osd::cdb::{Extent, GetList, GetPage, OPERATION_CODE, Segment, SetValue};
use sealstone_osd::table::Transfer;
use sealstone_osd::{
    AttributeId, AttributeParameters, Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType,
    Permissions, SecurityMethod, attribute, capability::Range, capability::Scope,
};
use sealstone_osd_device::provision::{self, DataDir, DeviceIdentity, InitialKeyFile};
use sealstone_osd_device::{
    DeviceEnvironment, DeviceParts, KeyRecord, NoAudit, OsdConfig, OsdUnit, VolatileLease,
};
use sealstone_scsi::lu::{
    Buffers, InitiatorPort, LogicalUnit as _, NexusId, NoTasks, ScsiCommand, ScsiReply,
};
use sealstone_scsi::{SENSE_MAX, Sense, Status};
use sealstone_seal::freshness::NonceHistory;
use sealstone_seal::{
    AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, SentParts, Signer, selector,
};
use sealstone_store::{MemoryStore, ObjectStore};
use zeroize::Zeroizing;

use super::osd::{OBJECT, capability, cdbs};
use super::seal::{NOW_MS, counter};
use crate::Target;
use crate::input::Input;

const SYSTEM_ID: [u8; 20] = *b"fuzz system id 20 by";
const MASTER_KEY: [u8; 32] = [0x5A; 32];
const NEXUS: NexusId = NexusId(1);
/// Maximum length of a data-in buffer, in bytes.
const BUFFER_MAX: usize = 1 << 20;
/// Maximum number of commands per input.
const COMMANDS_MAX: usize = 12;

struct FuzzEnvironment(AtomicU64);

impl DeviceEnvironment for FuzzEnvironment {
    fn now_ms(&self) -> u64 {
        NOW_MS
    }
    fn fill_random(&self, into: &mut [u8]) {
        let count = self.0.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        into.iter_mut().zip(count.into_iter().cycle()).for_each(|(slot, byte)| *slot = byte);
    }
}

struct PlainBuffers;

impl Buffers for PlainBuffers {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        (len <= BUFFER_MAX).then(|| vec![0xEE; len])
    }
    fn freeze(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from(buffer)
    }
}

fn master_key() -> InitialKey {
    InitialKey::new(&MASTER_KEY).expect("a key of 32 bytes")
}

/// A device with a partition, objects and a collection.
struct DeviceRig {
    unit: OsdUnit,
    store: Arc<MemoryStore>,
}

impl DeviceRig {
    fn new(config: OsdConfig) -> Self {
        let store = Arc::new(MemoryStore::new(16 << 20));
        let unit = OsdUnit::start(DeviceParts {
            store: Arc::clone(&store) as Arc<dyn ObjectStore>,
            config,
            system_id: SYSTEM_ID,
            name: "fuzz".to_owned(),
            master_key: master_key(),
            keys: KeyRecord::volatile(),
            boot_epoch: 9,
            nonces: NonceHistory::default(),
            lease: Box::new(VolatileLease),
            environment: Arc::new(FuzzEnvironment(AtomicU64::new(1))),
            audit: Arc::new(NoAudit),
        })
        .expect("an empty store");
        unit.nexus_established(NEXUS, &InitiatorPort::new("iqn.2026-11.org.sealstone:fuzz"));
        unit.upkeep().expect("a volatile lease");
        while unit.work() {}
        let rig = Self { unit, store };
        // The first command of a nexus gets the unit attention of the power-on.
        let _ = rig.send(&[0; 6], &[], 0);
        rig
    }

    fn send(&self, cdb: &[u8], data_out: &[u8], data_in_max: usize) -> ScsiReply {
        let command = ScsiCommand {
            nexus: NEXUS,
            lun: 0,
            cdb,
            data_out,
            data_in_max,
            buffers: &PlainBuffers,
            tasks: &NoTasks,
        };
        let _ = self.unit.cost(NexusId(1), cdb);
        let reply = self.unit.execute(command);
        assert!(reply.data_in.len() <= data_in_max, "more data-in than the initiator takes");
        assert!(reply.sense.len() <= SENSE_MAX);
        assert!(reply.data_in_wanted >= reply.data_in.len() as u64);
        if !reply.sense.is_empty() {
            Sense::parse(&reply.sense).expect("sense data of our own");
        }
        assert!(
            reply.status != Status::CheckCondition || !reply.sense.is_empty(),
            "a refusal without a reason"
        );
        reply
    }

    /// Creates the objects that the seeds address, with signatures if the device requires them.
    fn furnish(&self, signed: bool) {
        for (cdb, data_out) in furniture(if signed { SecurityMethod::AllData } else { SecurityMethod::NoSec })
        {
            let (cdb, data_out) =
                if signed { sign(&cdb, &data_out).expect("an honest command") } else { (cdb, data_out) };
            let reply = self.send(&cdb, &data_out, 4096);
            assert_eq!(reply.status, Status::Good, "{:?}", Sense::parse(&reply.sense));
        }
    }
}

/// The commands that create [`OBJECT`] and its partition.
fn furniture(method: SecurityMethod) -> Vec<(Vec<u8>, Vec<u8>)> {
    let partition = sealstone_osd::cdb::CreatePartition { partition: OBJECT.partition };
    let extent = Extent { object: OBJECT, start: 0, length: 1000 };
    let granted = |command| encoded(with_capability(Cdb::new(Generation::Osd2, command), method));
    vec![
        (granted(Command::CreatePartition(partition)), Vec::new()),
        (granted(Command::CreateAndWrite(extent)), vec![7; 1000]),
    ]
}

fn encoded(cdb: Cdb) -> Vec<u8> {
    cdb.encode().expect("seeds fit their layout").to_vec()
}

/// A capability for the object and operation of the command.
fn with_capability(cdb: Cdb, method: SecurityMethod) -> Cdb {
    let scope = Scope::default();
    let object = cdb.command.object();
    let kind = cdb.command.object_types()[0];
    let range = match cdb.generation {
        Generation::Osd1 => Range::ALL,
        Generation::Osd2 => Range { start: 0, length: 0 },
    };
    let descriptor = match kind {
        ObjectType::Root | ObjectType::Partition => {
            Descriptor::Partition { scope, partition: object.partition }
        }
        ObjectType::Collection if cdb.generation == Generation::Osd2 => {
            Descriptor::Collection { scope, allowed: object }
        }
        ObjectType::Collection | ObjectType::User => Descriptor::User { scope, allowed: object, range },
    };
    let permissions = Permissions::ALL_OSD2;
    let granted =
        Capability { object_type: kind, descriptor, permissions, ..capability(cdb.generation, method) };
    Cdb { capability: granted.encode(), ..cdb }
}

fn keys() -> &'static KeyHierarchy<RustCrypto> {
    static KEYS: OnceLock<KeyHierarchy<RustCrypto>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut keys = KeyHierarchy::factory(Hash::Sha256, &master_key(), SYSTEM_ID);
        keys.add_partition(OBJECT.partition).expect("the first partition");
        keys
    })
}

/// Signs a parsed command with its own capability; `None` if it cannot be signed.
fn sign(cdb: &[u8], data_out: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let cdb = Cdb::parse(cdb).ok()?;
    let granted = cdb.capability.parse().ok()?;
    let slots = &AlgorithmSlots::WITH_BROKEN;
    let credential =
        Credential::issue_under(keys(), slots, selector(&cdb.command, granted.key_version), &granted).ok()?;
    let signer = Signer::<RustCrypto>::new(&credential, slots).ok()?;
    let part = |segment: Option<Segment>| match segment {
        Some(segment) if segment.length > 0 => segment.of(data_out),
        _ => Some(&[][..]),
    };
    let start = usize::try_from(cdb.continuation_length).ok()?;
    let length = usize::try_from(cdb.command.data_out_len()).ok()?;
    let mut continuation = data_out.get(..start)?.to_vec();
    let data = data_out.get(start..)?.get(..length)?;
    let mut parts = SentParts {
        continuation: &mut continuation,
        data: &[data],
        set_attributes: part(cdb.attributes.set_segment())?,
        get_attributes: part(cdb.attributes.get_list_segment())?,
    };
    let mut random = counter();
    // A different nonce for each command, derived from the CDB.
    let mut chance = |into: &mut [u8]| {
        sealstone_seal::Random::fill(&mut random, into);
        let sum = cdb_digest(data_out, &cdb);
        into.iter_mut().zip(sum.to_le_bytes()).for_each(|(slot, byte)| *slot ^= byte);
    };
    let signed = signer.sign(cdb, &mut parts, NOW_MS, None, &mut chance).ok()?;
    let mut out = data_out.to_vec();
    out[..start].copy_from_slice(&continuation);
    if let Some(integrity) = &signed.integrity {
        let at = usize::try_from(integrity.offset).ok().filter(|at| *at <= BUFFER_MAX)?;
        let block = integrity.as_bytes();
        out.resize(out.len().max(at + block.len()), 0);
        out[at..at + block.len()].copy_from_slice(block);
    }
    Some((signed.cdb.to_vec(), out))
}

/// Distinguishes two commands; not a secure hash.
fn cdb_digest(data_out: &[u8], cdb: &Cdb) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    (data_out, format!("{cdb:?}")).hash(&mut hasher);
    hasher.finish()
}

/// Options in the first byte.
mod flag {
    /// Signed with the right keys, on a device with security method CMDRSP.
    pub(super) const SIGNED: u8 = 0x01;
    pub(super) const NO_OBJECTS: u8 = 0x02;
}

/// One command of an input: lengths, then bytes.
fn packed(cdb: &[u8], data_out: &[u8], data_in_max: u16) -> Vec<u8> {
    let lengths = [data_out.len() as u16, data_in_max].map(u16::to_be_bytes);
    [&[cdb.len() as u8][..], lengths.as_flattened(), cdb, data_out].concat()
}

/// Every command with a matching capability, and data if it takes any.
fn commands(method: SecurityMethod) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for plain in cdbs() {
        let sized = match plain.command {
            Command::Read(extent) => Command::Read(Extent { length: 500, ..extent }),
            Command::Write(extent) => Command::Write(Extent { length: 500, ..extent }),
            Command::Append(append) => Command::Append(sealstone_osd::cdb::Append { length: 500, ..append }),
            Command::Clear(extent) => Command::Clear(Extent { start: 100, length: 500, ..extent }),
            Command::Punch(extent) => Command::Punch(Extent { start: 100, length: 500, ..extent }),
            Command::List(list) => Command::List(sealstone_osd::cdb::List { allocation: 1024, ..list }),
            Command::ListCollection(list) => {
                let object = ObjectId::of_partition(OBJECT.partition);
                Command::ListCollection(sealstone_osd::cdb::List { allocation: 1024, object, ..list })
            }
            Command::ReadMap(map) => {
                Command::ReadMap(sealstone_osd::cdb::ReadMap { allocation: 1024, ..map })
            }
            other => other,
        };
        let cdb = with_capability(Cdb { command: sized, ..plain }, method);
        let moves = matches!(cdb.command.row().transfer, Transfer::Out | Transfer::Both);
        let data = if moves {
            vec![7; cdb.data_out_offset() as usize + 500]
        } else {
            vec![0; cdb.data_out_offset() as usize]
        };
        all.push(packed(&encoded(cdb), &data, 4096));
        all.extend(with_attributes(cdb, &data));
    }
    all
}

/// The same command with attributes to get and set in every format.
fn with_attributes(cdb: Cdb, data: &[u8]) -> Vec<Vec<u8>> {
    let generation = cdb.generation;
    let user = AttributeId::new(0x1_0000, 1);
    let names =
        [user, AttributeId::new(1, AttributeId::ALL), AttributeId::new(AttributeId::ALL, AttributeId::ALL)];
    let set = attribute::list::encode_set(generation, [(user, &b"value"[..])]);
    let get = attribute::list::encode_get(generation, &names);
    let (list_at, set_at, retrieved_at) = (1024, 2048, 4096);
    let retrieved = Segment { offset: retrieved_at, length: 2048 };
    let segment = |offset, bytes: &[u8]| Segment { offset, length: bytes.len() as u32 };
    let mut buffer = data.to_vec();
    buffer.resize(set_at as usize + set.len(), 0);
    buffer[list_at as usize..list_at as usize + get.len()].copy_from_slice(&get);
    buffer[set_at as usize..].copy_from_slice(&set);
    let list = AttributeParameters::List {
        get: Some(GetList { list: segment(list_at, &get), retrieved }),
        set: Some(segment(set_at, &set)),
    };
    let page = AttributeParameters::Page {
        get: Some(GetPage { page: 1, retrieved }),
        set: Some(SetValue { id: user, value: Segment { offset: list_at, length: 9 } }),
    };
    let mut formats = vec![list, page];
    if generation == Generation::Osd2 {
        formats.push(AttributeParameters::One { id: user, length: 18, value: [b'v'; 18] });
    }
    formats.into_iter().map(|attributes| packed(&encoded(Cdb { attributes, ..cdb }), &buffer, 8192)).collect()
}

/// SPC commands, and invalid CDBs.
fn others() -> Vec<Vec<u8>> {
    let cdbs: [&[u8]; 8] = [
        &[0; 6],
        &[0x12, 0, 0, 0, 96, 0],
        &[0x12, 1, 0x83, 1, 0, 0],
        &[0x12, 1, 0xB1, 1, 0, 0],
        &[0x03, 1, 0, 0, 252, 0],
        &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0],
        &[0x28; 10],
        &[],
    ];
    cdbs.map(|cdb| packed(cdb, &[], 512)).to_vec()
}

fn unit_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (flags, method) in [
        (0, SecurityMethod::NoSec),
        (flag::NO_OBJECTS, SecurityMethod::NoSec),
        (flag::SIGNED, SecurityMethod::CmdRsp),
        (flag::SIGNED, SecurityMethod::AllData),
    ] {
        let all = commands(method);
        seeds.extend(all.iter().map(|command| [&[flags][..], command].concat()));
        // Several commands in sequence, so that each sees the state left by earlier ones.
        seeds.extend(all.chunks(3).map(|few| [&[flags][..], &few.concat()].concat()));
    }
    seeds.extend(others().iter().map(|command| [&[0][..], command].concat()));
    seeds
}

fn each(input: &mut Input<'_>, mut run: impl FnMut(&[u8], &[u8], usize)) {
    for _ in 0..COMMANDS_MAX {
        if input.is_empty() {
            break;
        }
        let (cdb, out, data_in_max) =
            (usize::from(input.byte()), usize::from(input.short()), usize::from(input.short()));
        let cdb = input.take(cdb);
        run(cdb, input.take(out), data_in_max);
    }
}

fn unit(input: &[u8]) {
    let mut input = Input::new(input);
    let flags = input.byte();
    let signed = flags & flag::SIGNED != 0;
    let rig = DeviceRig::new(OsdConfig {
        allow_osd1: true,
        insecure_nosec: !signed,
        insecure_adhash: true,
        audit_reads: true,
        ..OsdConfig::default()
    });
    if flags & flag::NO_OBJECTS == 0 {
        rig.furnish(signed);
    }
    each(&mut input, |cdb, data_out, data_in_max| {
        let own = if signed { sign(cdb, data_out) } else { None };
        let (cdb, data_out) = own.as_ref().map_or((cdb, data_out), |(cdb, out)| (&cdb[..], &out[..]));
        let _ = rig.send(cdb, data_out, data_in_max);
    });
    rig.unit.upkeep().expect("a volatile lease");
    while rig.unit.work() {}
    let _ = rig.unit.usage();
    rig.unit.shut_down().expect("memory does not fail");
}

pub(crate) const UNIT: Target = Target {
    name: "device-unit",
    about: "commands to a device that asks for no proof, or signed by an insider; replies keep to their limits",
    run: unit,
    seeds: unit_seeds,
    cost: 150,
    quarantine: None,
    covers: &["osd-device::OsdUnit::execute", "osd::Cdb::parse", "scsi::SpcCommand::parse"],
};

fn locked_unit(input: &[u8]) {
    let rig = DeviceRig::new(OsdConfig { allow_osd1: true, ..OsdConfig::default() });
    rig.furnish(true);
    let image = |store: &MemoryStore| {
        let ids = store.list(ObjectId::ROOT, 100).expect("memory does not fail");
        let mut data = vec![0; 2000];
        let read = store.read(OBJECT, 0, &mut data).expect("the object is there");
        data.truncate(read);
        (ids, data, store.attributes(OBJECT, Some(0x1_0000)).expect("the object is there"))
    };
    let before = image(&rig.store);
    each(&mut Input::new(input), |cdb, data_out, data_in_max| {
        let reply = rig.send(cdb, data_out, data_in_max);
        if cdb.first() == Some(&OPERATION_CODE) {
            assert_ne!(reply.status, Status::Good, "a command without proof was done");
            assert!(reply.data_in.is_empty(), "data without proof");
        }
    });
    assert!(image(&rig.store) == before, "changed without proof");
}

pub(crate) const LOCKED_UNIT: Target = Target {
    name: "device-locked-unit",
    about: "commands without proof to a device with floor CMDRSP; none is done, nothing changes, no data comes back",
    run: locked_unit,
    seeds: || {
        let all = SecurityMethod::ALL.into_iter().flat_map(commands);
        all.chain(others()).collect()
    },
    cost: 150,
    quarantine: None,
    covers: &["osd-device::OsdUnit::execute"],
};

/// The three files of a data directory, one after the other.
fn directory(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let mut input = Input::new(input);
    for name in FILES {
        let length = usize::from(input.short());
        let path = folder.path().join(name);
        fs::write(&path, input.take(length)).expect("the folder is writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    }
    let Ok(dir) = DataDir::open(folder.path()) else { return };
    if let Ok(boot) = dir.begin_boot() {
        assert_ne!(boot.epoch, 0);
        let next = dir.begin_boot().expect("our own boot record");
        assert_eq!(next.lease_ms, boot.lease_ms);
    }
    let out = folder.path().join("key-out");
    dir.write_key_out(&out).expect("the folder is writable");
}

const FILES: [&str; 3] = ["device.toml", "master.key", "boot.toml"];

fn directory_seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let root = folder.path().join("osd");
    let identity = DeviceIdentity::new("osd-1", 1 << 30, [7; 12]).expect("a proper name");
    let key = provision::InitialKey(Zeroizing::new([0xA5; provision::MASTER_KEY_LEN]));
    let made = DataDir::format(&root, identity, key, |store| fs::create_dir(store));
    made.expect("an empty folder").expect("an empty folder");
    let file = |name| {
        let bytes = fs::read(root.join(name)).expect("made by format");
        [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()
    };
    vec![FILES.map(file).concat()]
}

pub(crate) const DIRECTORY: Target = Target {
    name: "device-directory",
    about: "the files of a data directory; what opens counts its starts and writes its key file",
    run: directory,
    seeds: directory_seeds,
    cost: 4000,
    quarantine: None,
    covers: &["osd-device::DataDir::open"],
};

fn key_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(file) = InitialKeyFile::parse(text) {
        let shown = format!("{file:?}");
        let key: String = file.key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!shown.contains(&key), "the key is shown");
    }
}

pub(crate) const KEY_FILE: Target = Target {
    name: "device-key-file",
    about: "the text of a device's key file; of what parses the key is not shown",
    run: key_file,
    seeds: || {
        let file = |id: &str, key: &str| {
            format!("system_id = \"{id}\"\nname = \"osd1\"\nmaster_key = \"{key}\"\n").into_bytes()
        };
        vec![
            file(&"0a".repeat(20), &"1B".repeat(32)),
            file(&"0a".repeat(19), &"1b".repeat(32)),
            file(&"0a".repeat(20), &"1g".repeat(32)),
        ]
    },
    cost: 20,
    quarantine: None,
    covers: &["osd-device::InitialKeyFile::parse"],
};
