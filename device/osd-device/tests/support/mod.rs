//! A device on a memory store, and clients that sign their commands.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "shared by the test files beside it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use sealstone_crypto::RustCrypto;
use sealstone_osd::attribute::list::{encode_get, encode_set};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{AttributeParameters, GetList, GetPage, Segment, SetValue};
use sealstone_osd::continuation::Segment as Continuation;
use sealstone_osd::{
    AttributeId, Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod, offset,
};
use sealstone_osd_device::{
    AuditRecord, AuditSink, DeviceEnvironment, DeviceParts, KeyRecord, OsdConfig, OsdUnit, VolatileLease,
};
use sealstone_scsi::lu::{
    Buffers, InitiatorPort, LogicalUnit as _, NexusId, NoTasks, ScsiCommand, ScsiReply, Tasks,
};
use sealstone_scsi::{Sense, Status};
use sealstone_seal::algorithm::preferred_slot;
use sealstone_seal::freshness::NonceHistory;
use sealstone_seal::signer::{ReceivedReply, ReplyError, SentParts as SignParts, SignedCommand, Signer};
use sealstone_seal::{
    AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, KeySelector, SecurityToken, selector,
};
use sealstone_store::{MemoryStore, ObjectStore};

pub const SYSTEM_ID: [u8; 20] = *b"\x01\x00\x00\x10SEAL0123456789ab";
pub const MASTER: [u8; 32] = [0x5A; 32];
pub const START_MS: u64 = 0x019b_76da_abe8;
pub const PID: u64 = 0x10000;
pub const NEXUS: NexusId = NexusId(1);

/// A clock controlled by the test, and deterministic random bytes.
#[derive(Default)]
pub struct Fake {
    pub ms: AtomicU64,
    /// Whether the clock may be set back.
    pub sound: AtomicBool,
    counter: AtomicU64,
}

impl DeviceEnvironment for Fake {
    fn now_ms(&self) -> u64 {
        self.ms.load(Ordering::SeqCst)
    }

    fn is_sound(&self) -> bool {
        self.sound.load(Ordering::SeqCst)
    }

    fn fill_random(&self, into: &mut [u8]) {
        for byte in into {
            // splitmix64
            let mut next = self.counter.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst);
            next = (next ^ next >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            next = (next ^ next >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            *byte = (next ^ next >> 31) as u8;
        }
    }
}

/// Audit records as text.
#[derive(Default)]
pub struct Log(pub Mutex<Vec<String>>);

impl AuditSink for Log {
    fn record(&self, record: &AuditRecord<'_>) {
        let line = format!(
            "{} {} {} {} {} {:?} {:?}",
            record.principal,
            record.initiator,
            record.action,
            record.object,
            record.verdict.name(),
            record.verdict.reason(),
            record.sense
        );
        self.0.lock().push(line);
    }
}

pub struct HeapBuffers;

impl Buffers for HeapBuffers {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        // Previous content of a buffer must not leak.
        (len <= 64 << 20).then(|| vec![0xEE; len])
    }

    fn freeze(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from(buffer)
    }
}

pub type Keys = KeyHierarchy<RustCrypto>;

/// Placeholder of a proof that is computed when the command is signed.
pub const SIGN_HERE: [u8; 32] = [0xEE; 32];

pub struct Bench {
    pub unit: Arc<OsdUnit>,
    pub fake: Arc<Fake>,
    pub log: Arc<Log>,
    pub store: Arc<dyn ObjectStore>,
    pub keys: Mutex<KeyHierarchy<RustCrypto>>,
}

/// The get list and the set list of a command.
#[derive(Clone, Debug, Default)]
pub struct ListPair {
    pub get: Vec<AttributeId>,
    pub get_page: Option<u32>,
    pub set: Vec<(AttributeId, Vec<u8>)>,
    pub allocation: u32,
    pub fua: bool,
}

impl ListPair {
    pub fn get(ids: &[(u32, u32)]) -> Self {
        Self {
            get: ids.iter().map(|&(page, number)| AttributeId::new(page, number)).collect(),
            allocation: 4096,
            ..Self::default()
        }
    }

    pub fn set(values: &[(u32, u32, &[u8])]) -> Self {
        let set =
            values.iter().map(|&(page, number, value)| (AttributeId::new(page, number), value.to_vec()));
        Self { set: set.collect(), ..Self::default() }
    }

    pub fn page(page: u32) -> Self {
        Self { get_page: Some(page), allocation: 4096, ..Self::default() }
    }
}

/// A command ready to send, with the state to verify its reply.
pub struct Ready {
    pub cdb: Vec<u8>,
    pub data_out: Vec<u8>,
    pub data_in_max: usize,
    pub signed: SignedCommand,
    pub signer: Signer<RustCrypto>,
}

/// A verified reply.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: Status,
    pub sense: Option<Sense>,
    pub data: Vec<u8>,
    pub attributes: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.status, Status::Good, "{:?}", self.sense);
        self
    }

    /// Returns sense key, code and qualifier.
    pub fn sense(&self) -> (u8, u16) {
        let sense = self.sense.as_ref().expect("sense data");
        (sense.key.nibble(), sense.code.0)
    }
}

impl Bench {
    pub fn new() -> Self {
        Self::with(OsdConfig::default(), Arc::new(MemoryStore::new(64 << 20)))
    }

    pub fn with(config: OsdConfig, store: Arc<dyn ObjectStore>) -> Self {
        Self::start(config, store, 1, 0)
    }

    pub fn start(config: OsdConfig, store: Arc<dyn ObjectStore>, boot_epoch: u16, lease_ms: u64) -> Self {
        Self::start_with(config, store, boot_epoch, lease_ms, KeyRecord::volatile())
    }

    pub fn start_with(
        config: OsdConfig,
        store: Arc<dyn ObjectStore>,
        boot_epoch: u16,
        lease_ms: u64,
        keys: KeyRecord,
    ) -> Self {
        Self::attempt(config, store, boot_epoch, lease_ms, keys).unwrap()
    }

    /// Starts a device on a store that may be damaged; `None` if it cannot start.
    pub fn try_start(store: Arc<dyn ObjectStore>, boot_epoch: u16, lease_ms: u64) -> Option<Self> {
        Self::attempt(OsdConfig::default(), store, boot_epoch, lease_ms, KeyRecord::volatile()).ok()
    }

    fn attempt(
        config: OsdConfig,
        store: Arc<dyn ObjectStore>,
        boot_epoch: u16,
        lease_ms: u64,
        keys: KeyRecord,
    ) -> Result<Self, sealstone_osd_device::StartError> {
        let fake = Arc::new(Fake::default());
        fake.ms.store(START_MS, Ordering::SeqCst);
        let log = Arc::new(Log::default());
        let unit = OsdUnit::start(DeviceParts {
            store: Arc::clone(&store),
            config,
            system_id: SYSTEM_ID,
            name: "bench".into(),
            master_key: InitialKey::new(&MASTER).unwrap(),
            keys,
            boot_epoch,
            nonces: NonceHistory::new(lease_ms, 0, &[]),
            lease: Box::new(VolatileLease),
            environment: Arc::clone(&fake) as Arc<dyn DeviceEnvironment>,
            audit: Arc::clone(&log) as Arc<dyn AuditSink>,
        })?;
        let keys = KeyHierarchy::factory(Hash::Sha256, &InitialKey::new(&MASTER).unwrap(), SYSTEM_ID);
        let bench = Self { unit: Arc::new(unit), fake, log, store, keys: Mutex::new(keys) };
        bench.login(NEXUS);
        Ok(bench)
    }

    pub fn login(&self, nexus: NexusId) {
        self.unit.nexus_established(nexus, &InitiatorPort::new("iqn.test:client"));
        let ready = self.raw(nexus, &[0; 6], &[], 0);
        assert_eq!(ready.status, Status::CheckCondition, "the attention comes first");
    }

    /// Creates partition 10000h.
    pub fn with_partition() -> Self {
        let bench = Self::new();
        bench.create_partition(PID);
        bench
    }

    pub fn create_partition(&self, pid: u64) {
        let create = Command::CreatePartition(sealstone_osd::cdb::CreatePartition { partition: pid });
        self.run(create, ListPair::default(), &[]).good();
        let mut keys = self.keys.lock();
        keys.remove_partition(pid);
        keys.add_partition(pid).unwrap();
        let retired = keys.is_retired(pid);
        drop(keys);
        if retired {
            self.renew_keys(pid);
        }
    }

    /// Sets a pair of keys and working key 0 of a recreated partition.
    pub fn renew_keys(&self, pid: u64) {
        use sealstone_osd::cdb::{KeyToSet, SetKey};
        let set =
            |key| Command::SetKey(SetKey { partition: pid, key, identifier: [0xA1; 7], seed: [0xA1; 20] });
        self.run(set(KeyToSet::Partition), ListPair::default(), &[]).good();
        self.keys.lock().set_partition(pid, &[0xA1; 20], [0xA1; 7]).unwrap();
        self.run(set(KeyToSet::Working(0)), ListPair::default(), &[]).good();
        self.keys.lock().set_working(pid, 0, &[0xA1; 20], [0xA1; 7]).unwrap();
    }

    /// Runs CREATE USER TRACKING COLLECTION with all needed authority, also for the source.
    #[track_caller]
    pub fn track(&self, create: sealstone_osd::cdb::CreateTracking) -> Answer {
        let command = Command::CreateTrackingCollection(create);
        let capability = self.capability(&command, SecurityMethod::AllData);
        let source = ObjectId::new(create.object.partition, create.source);
        let reading = Capability {
            permissions: Permissions::READ,
            descriptor: Descriptor::Collection { scope: Scope::default(), allowed: source },
            ..capability
        };
        let segment = Continuation {
            extensions: vec![reading.encode()],
            proofs: vec![SIGN_HERE],
            ..Continuation::default()
        };
        let continuation = if create.source == 0 { Vec::new() } else { segment.encode(0x8894).unwrap() };
        let ready = self.ready_scattered(command, &ListPair::default(), &[], &capability, continuation);
        self.finish(&ready)
    }

    pub fn raw(&self, nexus: NexusId, cdb: &[u8], data_out: &[u8], data_in_max: usize) -> ScsiReply {
        self.raw_with(nexus, cdb, data_out, data_in_max, &NoTasks)
    }

    pub fn raw_with(
        &self,
        nexus: NexusId,
        cdb: &[u8],
        data_out: &[u8],
        data_in_max: usize,
        tasks: &dyn Tasks,
    ) -> ScsiReply {
        self.unit.execute(ScsiCommand {
            nexus,
            lun: 0,
            cdb,
            data_out,
            data_in_max,
            buffers: &HeapBuffers,
            tasks,
        })
    }

    /// Returns a capability that allows exactly what the command needs, and every attribute.
    pub fn capability(&self, command: &Command, method: SecurityMethod) -> Capability {
        let object = command.object();
        let object_type = *command.object_types().last().unwrap();
        let scope = Scope::default();
        Capability {
            generation: Generation::Osd2,
            format: Generation::Osd2,
            key_version: 0,
            icv_algorithm: preferred_slot(Generation::Osd2, method),
            method,
            expires_ms: START_MS + 3_600_000,
            audit: *b"auditor-of-the-tests",
            discriminator: [7; 12],
            object_created_ms: 0,
            object_type,
            permissions: command.permissions()
                | Permissions::GET_ATTR
                | Permissions::SET_ATTR
                | Permissions::POL_SEC
                | Permissions::OBJ_MGMT,
            descriptor: match object_type {
                ObjectType::User => Descriptor::User { scope, allowed: object, range: Range::ALL },
                ObjectType::Collection => Descriptor::Collection { scope, allowed: object },
                ObjectType::Root | ObjectType::Partition => {
                    Descriptor::Partition { scope, partition: object.partition }
                }
            },
        }
    }

    pub fn ready(&self, command: Command, lists: &ListPair, data: &[u8], capability: &Capability) -> Ready {
        self.build(command, lists, data, capability, Vec::new(), &SecurityToken([0; 32]))
    }

    /// Signs with a key of the test's choice.
    pub fn ready_under(
        &self,
        command: Command,
        lists: &ListPair,
        data: &[u8],
        capability: &Capability,
        key: KeySelector,
    ) -> Ready {
        self.build_under(command, lists, data, capability, Vec::new(), &SecurityToken([0; 32]), Some(key))
    }

    pub fn fill_random(&self, into: &mut [u8]) {
        self.fake.fill_random(into);
    }

    pub fn ready_with_token(
        &self,
        command: Command,
        lists: &ListPair,
        data: &[u8],
        capability: &Capability,
        token: &SecurityToken,
    ) -> Ready {
        self.build(command, lists, data, capability, Vec::new(), token)
    }

    pub fn ready_scattered(
        &self,
        command: Command,
        lists: &ListPair,
        data: &[u8],
        capability: &Capability,
        continuation: Vec<u8>,
    ) -> Ready {
        self.build(command, lists, data, capability, continuation, &SecurityToken([0; 32]))
    }

    pub fn build(
        &self,
        command: Command,
        lists: &ListPair,
        data: &[u8],
        capability: &Capability,
        continuation: Vec<u8>,
        token: &SecurityToken,
    ) -> Ready {
        self.build_under(command, lists, data, capability, continuation, token, None)
    }

    /// Signs with the key of another capability.
    pub fn signer(&self, capability: &Capability) -> Signer<RustCrypto> {
        let keys = self.keys.lock();
        let issued = Credential::issue(&keys, &AlgorithmSlots::WITH_BROKEN, capability);
        // If the key does not exist, any key will do for a command that must be refused.
        let credential = issued.unwrap_or_else(|_| {
            Credential::issue_under(&keys, &AlgorithmSlots::WITH_BROKEN, KeySelector::Master, capability)
                .unwrap()
        });
        Signer::new(&credential, &AlgorithmSlots::WITH_BROKEN).unwrap()
    }

    pub fn build_under(
        &self,
        command: Command,
        lists: &ListPair,
        data: &[u8],
        capability: &Capability,
        mut continuation: Vec<u8>,
        token: &SecurityToken,
        key: Option<KeySelector>,
    ) -> Ready {
        let generation = capability.generation;
        let mut cdb = Cdb::new(generation, command);
        cdb.options.fua = lists.fua;
        cdb.continuation_length = continuation.len() as u32;
        let align = |at: u64| offset::align_up(generation, at).unwrap();
        let mut end = continuation.len() as u64 + data.len() as u64;
        let mut place = |bytes: &[u8]| {
            if bytes.is_empty() {
                return Segment::default();
            }
            let segment = Segment { offset: align(end), length: bytes.len() as u32 };
            end = segment.end();
            segment
        };
        let retrieved = match lists.allocation {
            0 => Segment::default(),
            length => Segment { offset: align(command.data_in_len()), length },
        };
        let (mut set_bytes, mut get_bytes) = (Vec::new(), Vec::new());
        cdb.attributes = if let Some(page) = lists.get_page {
            let set = lists.set.first().map(|(id, value)| {
                set_bytes.clone_from(value);
                SetValue { id: *id, value: place(value) }
            });
            AttributeParameters::Page { get: Some(GetPage { page, retrieved }), set }
        } else {
            if !lists.set.is_empty() {
                set_bytes =
                    encode_set(generation, lists.set.iter().map(|(id, value)| (*id, value.as_slice())));
            }
            if !lists.get.is_empty() {
                get_bytes = encode_get(generation, &lists.get);
            }
            let set = place(&set_bytes);
            let get = place(&get_bytes);
            AttributeParameters::List {
                get: (get.length > 0).then_some(GetList { list: get, retrieved }),
                set: (set.length > 0).then_some(set),
            }
        };
        let credential = {
            let keys = self.keys.lock();
            let selector = key.unwrap_or_else(|| selector(&command, capability.key_version));
            let issued = Credential::issue_under(&keys, &AlgorithmSlots::WITH_BROKEN, selector, capability);
            // A partition that does not exist has no keys; any key will do for a command that must
            // be refused.
            issued.unwrap_or_else(|_| {
                Credential::issue_under(&keys, &AlgorithmSlots::WITH_BROKEN, KeySelector::Master, capability)
                    .unwrap()
            })
        };
        let signer = Signer::new(&credential, &AlgorithmSlots::WITH_BROKEN).unwrap();
        let held: Vec<Capability> = match Continuation::parse(&command, &continuation) {
            Ok(segment) if segment.proofs.contains(&SIGN_HERE) => {
                segment.extensions.iter().map(|bytes| bytes.parse().unwrap()).collect()
            }
            _ => Vec::new(),
        };
        let pieces = [data];
        let mut parts = SignParts {
            continuation: &mut continuation,
            data: if data.is_empty() { &[] } else { &pieces },
            set_attributes: &set_bytes,
            get_attributes: &get_bytes,
        };
        let mut random = |into: &mut [u8]| self.fake.fill_random(into);
        let now = self.fake.now_ms();
        let extensions: Vec<_> = held.iter().map(|one| self.signer(one)).collect();
        let extensions: Vec<_> = extensions.iter().collect();
        let signed =
            signer.sign_extended(cdb, &mut parts, &extensions, now, Some(token), &mut random).unwrap();
        let mut data_out = continuation;
        data_out.extend_from_slice(data);
        let attributes = Cdb::parse(&signed.cdb).unwrap().attributes;
        for (segment, bytes) in
            [(attributes.set_segment(), &set_bytes), (attributes.get_list_segment(), &get_bytes)]
        {
            let Some(segment) = segment else { continue };
            data_out.resize(data_out.len().max(segment.end() as usize), 0);
            data_out[segment.offset as usize..segment.end() as usize].copy_from_slice(bytes);
        }
        if let Some(integrity) = &signed.integrity {
            data_out.resize(integrity.offset as usize, 0);
            data_out.extend_from_slice(integrity.as_bytes());
        }
        Ready { cdb: signed.cdb.to_vec(), data_out, data_in_max: signed.data_in_len as usize, signed, signer }
    }

    pub fn send(&self, ready: &Ready) -> ScsiReply {
        self.raw(NEXUS, &ready.cdb, &ready.data_out, ready.data_in_max)
    }

    pub fn verify(&self, ready: &Ready, reply: &ScsiReply) -> Result<Answer, ReplyError> {
        let wire =
            ReceivedReply { status: reply.status.byte(), sense: &reply.sense, data_in: &reply.data_in };
        let checked = ready.signer.verify(&ready.signed, &wire)?;
        Ok(Answer {
            status: reply.status,
            sense: Sense::parse(&reply.sense).ok(),
            data: checked.data.to_vec(),
            attributes: checked.attributes.to_vec(),
        })
    }

    /// Signs, sends, verifies.
    #[track_caller]
    pub fn run_with(
        &self,
        command: Command,
        lists: ListPair,
        data: &[u8],
        capability: &Capability,
    ) -> Answer {
        self.finish(&self.ready(command, &lists, data, capability))
    }

    /// Sends, and verifies a sealed reply.
    #[track_caller]
    fn finish(&self, ready: &Ready) -> Answer {
        let reply = self.send(ready);
        self.verify(ready, &reply).unwrap_or_else(|error| {
            assert!(matches!(error, ReplyError::Unsealed(_)), "{error}: {reply:?}");
            Answer {
                status: reply.status,
                sense: Sense::parse(&reply.sense).ok(),
                data: Vec::new(),
                attributes: Vec::new(),
            }
        })
    }

    /// Runs a command under ALLDATA, with all needed permissions.
    #[track_caller]
    pub fn run(&self, command: Command, lists: ListPair, data: &[u8]) -> Answer {
        let capability = self.capability(&command, SecurityMethod::AllData);
        self.run_with(command, lists, data, &capability)
    }

    /// Returns a hash of the store's content without access times.
    pub fn state_hash(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        for (id, kind) in self.store.list(ObjectId::ROOT, 1 << 16).unwrap() {
            let stat = self.store.stat(id).unwrap();
            (id, kind as u8, stat.length).hash(&mut hasher);
            let mut bytes = vec![0; usize::try_from(stat.length.min(1 << 20)).unwrap()];
            self.store.read(id, 0, &mut bytes).unwrap();
            bytes.hash(&mut hasher);
            for (id, value) in self.store.attributes(id, None).unwrap() {
                (id.page, id.number, value).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// Returns the values of a retrieved list.
pub fn values(attributes: &[u8]) -> Vec<(AttributeId, Vec<u8>)> {
    let list = sealstone_osd::attribute::list::Values::parse_retrieved(Generation::Osd2, attributes).unwrap();
    list.iter().map(|(id, value)| (id, value.to_vec())).collect()
}

/// Returns the value of the only attribute of a retrieved list.
pub fn value(attributes: &[u8]) -> Vec<u8> {
    values(attributes).pop().expect("one attribute").1
}

pub fn user(object: u64) -> ObjectId {
    ObjectId::new(PID, object)
}
