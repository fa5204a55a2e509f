//! `sealstone-seal`: stored keys, the gate, data-out, replies. Changed bytes are never accepted.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use sealstone_crypto::{ParkingLot, RustCrypto};
use sealstone_osd::cdb::{Append, Extent, GetList, Query, Segment, Target as Object};
use sealstone_osd::continuation::{self, Piece};
use sealstone_osd::{
    AttributeId, AttributeParameters, Capability, Cdb, Command, Generation, ObjectId, ObjectType,
    SecurityMethod, attribute,
};
use sealstone_scsi::{Sense, SenseKey, additional};
use sealstone_seal::cover::ObjectBounds;
use sealstone_seal::icv::DataInCounts;
use sealstone_seal::paper::mceliece::{Parameters, PrivateKey, PublicKey};
use sealstone_seal::{
    Admitted, AlgorithmSlots, Credential, DeviceFacts, Gate, GatePolicy, GateRequest, Hash, InitialKey,
    KeyHierarchy, NexusSecurity, NonceLimits, ObjectFacts, Random, ReceivedReply, SecurityToken, SentParts,
    SignedCommand, Signer, sense,
};

use super::osd::{OBJECT, capability};
use crate::Target;
use crate::input::{GENERATIONS, Input, seed};

type DeviceKeys = KeyHierarchy<RustCrypto>;
type DeviceGate = Gate<RustCrypto, ParkingLot>;

pub(crate) const NOW_MS: u64 = 0x019b_76da_abe8;
const TOKEN: SecurityToken = SecurityToken([0x42; 32]);
const METHODS: [SecurityMethod; 2] = [SecurityMethod::CmdRsp, SecurityMethod::AllData];

/// A counter instead of random numbers: every draw differs and every run is the same.
pub(crate) fn counter() -> impl Random {
    let mut count = 0_u64;
    move |into: &mut [u8]| {
        count += 1;
        into.iter_mut().zip(count.to_le_bytes().into_iter().cycle()).for_each(|(slot, byte)| *slot = byte);
    }
}

fn initial() -> InitialKey {
    InitialKey::new(&[0x5A; 32]).expect("a key of 32 bytes")
}

fn keys(hash: Hash) -> DeviceKeys {
    let mut keys = DeviceKeys::factory(hash, &initial(), *b"fuzz system id 20 by");
    keys.add_partition(OBJECT.partition).expect("the first partition");
    keys
}

fn keystore_seeds() -> Vec<Vec<u8>> {
    let mut bare = DeviceKeys::factory(Hash::Sha1, &initial(), [1; 20]);
    bare.format();
    let mut all: Vec<Vec<u8>> =
        [keys(Hash::Sha1), keys(Hash::Sha256), bare].iter().map(|keys| keys.encode().to_vec()).collect();
    let keys = keys(Hash::Sha256);
    all.push(keys.encode_top().to_vec());
    all.extend(keys.partitions().filter_map(|id| Some(keys.encode_partition(id)?.to_vec())));
    all
}

/// The same keys in parts, as a security manager stores them.
fn keystore_parts(input: &[u8]) {
    if let Ok(keys) = DeviceKeys::decode_top(input) {
        assert_eq!(keys.encode_top().len(), input.len());
    }
    let mut keys = keys(Hash::Sha256);
    if keys.put_partition(3, input).is_ok() {
        let wire = keys.encode_partition(3).expect("it was put");
        assert_eq!(wire.len(), input.len());
        keys.put_partition(4, &wire).expect("our own encoding");
    }
}

fn keystore(input: &[u8]) {
    keystore_parts(input);
    let Ok(keys) = DeviceKeys::decode(input) else { return };
    let wire = keys.encode();
    assert_eq!(wire.len(), input.len());
    let again = DeviceKeys::decode(&wire).expect("our own encoding");
    assert_eq!(*again.encode(), *wire);
}

pub(crate) const KEYSTORE: Target = Target {
    name: "seal-keystore",
    about: "stored keys; what decodes encodes in as many bytes and decodes again",
    run: keystore,
    seeds: keystore_seeds,
    cost: 60,
    quarantine: None,
    covers: &[
        "seal::KeyHierarchy::decode",
        "seal::KeyHierarchy::decode_top",
        "seal::KeyHierarchy::put_partition",
    ],
};

/// A public key, or a private key and a CDB with a concealed part.
fn method_cipher(input: &[u8]) {
    if let Ok(key) = PublicKey::parse(input) {
        assert_eq!(key.encode(), input);
    }
    let mut chance = |into: &mut [u8]| into.fill(0x35);
    let (which, cdb) = input.split_first().unwrap_or((&0, &[]));
    let parameters = Parameters::ALL[usize::from(*which) % Parameters::ALL.len()];
    let mut state = 1_u64;
    let mut drawn = |into: &mut [u8]| {
        for byte in into {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    };
    // Larger codes take too long to generate here.
    let key =
        PrivateKey::generate(if parameters.length() > 31 { Parameters::H3 } else { parameters }, &mut drawn);
    let mut cdb = cdb.to_vec();
    let before = cdb.clone();
    if key.reveal(&mut cdb).is_err() {
        assert_eq!(cdb, before);
    }
    if key.public().conceal(&mut cdb, &mut chance).is_ok() {
        key.reveal(&mut cdb).expect("what we concealed");
    }
}

fn method_cipher_seeds() -> Vec<Vec<u8>> {
    let mut concealed = vec![0; 237];
    (concealed[2], concealed[81]) = (0x80, 2);
    let mut key = vec![1, 0, 7, 0, 4];
    key.extend([0x80, 0x40, 0x20, 0x10]);
    vec![concealed, key]
}

pub(crate) const METHOD_CIPHER: Target = Target {
    name: "seal-method-cipher",
    about: "public keys and concealed CDBs of the ESM paper; what is refused stays as it was",
    run: method_cipher,
    seeds: method_cipher_seeds,
    cost: 60,
    quarantine: None,
    covers: &["seal::PublicKey::parse", "seal::paper::mceliece::reveal"],
};

/// The objects of a device.
struct KnownObjects(BTreeMap<ObjectId, ObjectFacts>);

impl KnownObjects {
    fn new() -> Self {
        let facts = |kind| ObjectFacts { kind, created_ms: NOW_MS - 1000, policy_access_tag: 7 };
        Self(BTreeMap::from([
            (OBJECT, facts(ObjectType::User)),
            (ObjectId::of_partition(OBJECT.partition), facts(ObjectType::Partition)),
        ]))
    }
}

impl DeviceFacts for KnownObjects {
    fn floor(&self, _: ObjectId) -> SecurityMethod {
        SecurityMethod::NoSec
    }
    fn frozen_keys(&self, _: u64) -> u16 {
        0
    }
    fn audit_frozen(&self, _: &[u8; 20]) -> bool {
        false
    }
    fn object(&self, id: ObjectId) -> Option<ObjectFacts> {
        self.0.get(&id).copied()
    }
    fn attribute_allowed(&self, _: u64, _: u32, _: AttributeId) -> bool {
        false
    }
}

/// A valid signed command, and the data to verify its reply.
struct SignedCdb {
    cdb: Cdb,
    signed: SignedCommand,
    data_out: Vec<u8>,
    signer: Signer<RustCrypto>,
}

struct SealFixture {
    keys: DeviceKeys,
    commands: Vec<SignedCdb>,
    /// Signed with a weaker method than required.
    weak: Vec<Vec<u8>>,
}

/// Parts of a Data-Out Buffer.
#[derive(Default)]
struct DataOutDraft {
    continuation: Vec<u8>,
    data: Vec<u8>,
    set: Vec<u8>,
    get: Vec<u8>,
}

impl DataOutDraft {
    fn sign(
        mut self,
        signer: &Signer<RustCrypto>,
        cdb: Cdb,
        random: &mut dyn Random,
    ) -> (SignedCommand, Vec<u8>) {
        let mut parts = SentParts {
            continuation: &mut self.continuation,
            data: &[&self.data],
            set_attributes: &self.set,
            get_attributes: &self.get,
        };
        let signed = signer.sign(cdb, &mut parts, NOW_MS, Some(&TOKEN), random).expect("honest parts");
        let mut buffer = [&self.continuation[..], &self.data].concat();
        let mut put = |at: u64, bytes: &[u8]| {
            let at = usize::try_from(at).expect("a small buffer");
            buffer.resize(buffer.len().max(at + bytes.len()), 0);
            buffer[at..at + bytes.len()].copy_from_slice(bytes);
        };
        if let Some(segment) = cdb.attributes.set_segment() {
            put(segment.offset, &self.set);
        }
        if let Some(segment) = cdb.attributes.get_list_segment() {
            put(segment.offset, &self.get);
        }
        if let Some(integrity) = &signed.integrity {
            put(integrity.offset, integrity.as_bytes());
        }
        (signed, buffer)
    }
}

/// Commands of every kind: without data, data in, data out, attributes both ways, continuation.
fn drafts(generation: Generation) -> Vec<(Cdb, DataOutDraft)> {
    let extent = Extent { object: OBJECT, start: 0, length: 100 };
    let plain = |command| Cdb::new(generation, command);
    let data = vec![7; 100];
    let id = AttributeId::new(0x1_0000, 1);
    let (set, get) = (
        attribute::list::encode_set(generation, [(id, &b"value"[..])]),
        attribute::list::encode_get(generation, &[id]),
    );
    let segment = |offset, bytes: &[u8]| Segment { offset, length: bytes.len() as u32 };
    let attributes = AttributeParameters::List {
        get: Some(GetList { list: segment(512, &get), retrieved: Segment { offset: 256, length: 64 } }),
        set: Some(segment(1024, &set)),
    };
    let lists = || DataOutDraft { set: set.clone(), get: get.clone(), ..DataOutDraft::default() };
    let mut all = vec![
        (plain(Command::Remove(Object { object: OBJECT })), DataOutDraft::default()),
        (plain(Command::Read(extent)), DataOutDraft::default()),
        (plain(Command::Write(extent)), DataOutDraft { data: data.clone(), ..DataOutDraft::default() }),
        (
            plain(Command::Append(Append { object: OBJECT, length: 100 })),
            DataOutDraft { data: data.clone(), ..DataOutDraft::default() },
        ),
        (Cdb { attributes, ..plain(Command::Read(extent)) }, lists()),
        (Cdb { attributes, ..plain(Command::Write(extent)) }, DataOutDraft { data: data.clone(), ..lists() }),
        (Cdb { attributes, ..plain(Command::SetAttributes(Object { object: OBJECT })) }, lists()),
    ];
    if generation == Generation::Osd2 {
        let pieces = vec![Piece { offset: 0, length: 60 }, Piece { offset: 100, length: 40 }];
        let segment = continuation::Segment { scatter_gather: Some(pieces), ..Default::default() };
        let command = Command::Write(extent);
        let action = command.row().osd2.expect("a command of OSD-2");
        let wire = segment.encode(action).expect("a short list");
        let cdb = Cdb { continuation_length: wire.len() as u32, ..plain(command) };
        all.push((cdb, DataOutDraft { continuation: wire, data, ..DataOutDraft::default() }));
        let query = Query { object: OBJECT, allocation: 64, matches: 0, immediate: false };
        let segment = continuation::Segment { query: Some(vec![0; 16]), ..Default::default() };
        let action = Command::Query(query).row().osd2.expect("a command of OSD-2");
        let wire = segment.encode(action).expect("a short list");
        let cdb = Cdb { continuation_length: wire.len() as u32, ..plain(Command::Query(query)) };
        all.push((cdb, DataOutDraft { continuation: wire, ..DataOutDraft::default() }));
    }
    all
}

/// The algorithm slots of both ends: all algorithms.
const SLOTS: AlgorithmSlots = AlgorithmSlots::WITH_BROKEN;

/// Signs with the algorithm of a slot.
fn signer_by(
    keys: &DeviceKeys,
    generation: Generation,
    method: SecurityMethod,
    slot: u8,
) -> Signer<RustCrypto> {
    let capability = Capability { icv_algorithm: slot, ..capability(generation, method) };
    let credential = Credential::issue(keys, &SLOTS, &capability).expect("the working key is set");
    Signer::new(&credential, &SLOTS).expect("a slot with an algorithm")
}

fn signer(keys: &DeviceKeys, generation: Generation, method: SecurityMethod) -> Signer<RustCrypto> {
    signer_by(keys, generation, method, generation.select([0, 1]))
}

fn world() -> &'static SealFixture {
    static WORLD: OnceLock<SealFixture> = OnceLock::new();
    WORLD.get_or_init(|| {
        let keys = keys(Hash::Sha256);
        let mut random = counter();
        let mut commands = Vec::new();
        let mut weak = Vec::new();
        for generation in GENERATIONS {
            for method in METHODS {
                for (cdb, draft) in drafts(generation) {
                    let signer = signer(&keys, generation, method);
                    let (signed, data_out) = draft.sign(&signer, cdb, &mut random);
                    let cdb = Cdb::parse(&signed.cdb).expect("our own CDB");
                    commands.push(SignedCdb { cdb, signed, data_out, signer });
                }
            }
            for method in [SecurityMethod::NoSec, SecurityMethod::CapKey] {
                let signer = signer(&keys, generation, method);
                for (cdb, draft) in drafts(generation) {
                    weak.push(draft.sign(&signer, cdb, &mut random).0.cdb.to_vec());
                }
            }
        }
        // Data covered by digests, with every algorithm.
        let slots = |generation: Generation| generation.select([&[3, 4][..], &[2, 3, 4]]);
        for (generation, slot) in GENERATIONS.iter().flat_map(|of| slots(*of).iter().map(|slot| (*of, *slot)))
        {
            for (cdb, draft) in drafts(generation) {
                let signer = signer_by(&keys, generation, SecurityMethod::AllData, slot);
                let (signed, data_out) = draft.sign(&signer, cdb, &mut random);
                let cdb = Cdb::parse(&signed.cdb).expect("our own CDB");
                commands.push(SignedCdb { cdb, signed, data_out, signer });
            }
        }
        assert!(commands.len() <= 256, "a byte names each");
        SealFixture { keys, commands, weak }
    })
}

fn gate() -> DeviceGate {
    let nonces = NonceLimits { slots_per_second: 64, shards: 1, ..NonceLimits::default() };
    let gate = DeviceGate::new(
        GatePolicy { slots: SLOTS, credentials: 64, nonces, ..GatePolicy::default() },
        0,
        &mut counter(),
    );
    gate.nonces().extend_lease(u64::MAX);
    gate
}

fn admit(gate: &DeviceGate, facts: &KnownObjects, cdb: &Cdb, bytes: &[u8]) -> Option<Admitted<RustCrypto>> {
    let nexus = NexusSecurity { token: Some(TOKEN), secure_channel: false };
    let request = GateRequest {
        cdb,
        bytes,
        nexus: &nexus,
        clock_ms: NOW_MS,
        boot_epoch: 9,
        keys: &world().keys,
        facts,
    };
    match gate.admit(&request) {
        Ok(admitted) => Some(admitted),
        Err(refused) => {
            // A rejection is answered, signed or not.
            let _ = refused.reply.sense(2, &[0x72, 5, 0x24, 0, 0, 0, 0, 0]);
            None
        }
    }
}

fn gate_seeds() -> Vec<Vec<u8>> {
    let strong = world().commands.iter().map(|honest| honest.signed.cdb.to_vec());
    strong.chain(world().weak.iter().cloned()).collect()
}

fn the_gate(input: &[u8]) {
    let Ok(cdb) = Cdb::parse(input) else { return };
    let (gate, facts) = (gate(), KnownObjects::new());
    let wire = &input[..cdb.generation.cdb_len()];
    let Some(admitted) = admit(&gate, &facts, &cdb, input) else {
        return assert!(
            world().commands.iter().all(|honest| *honest.signed.cdb != *wire),
            "an honest command was refused"
        );
    };
    assert!(
        world().commands.iter().any(|honest| *honest.signed.cdb == *wire),
        "a forged command was admitted"
    );
    let _ = admitted.permit(&cdb, &facts);
    let _ = admitted.data_in_layout(&cdb);
    let _ = admitted.authenticate(&cdb, &[]);
    assert!(admit(&gate, &facts, &cdb, input).is_none(), "a command was admitted twice");
}

pub(crate) const GATE: Target = Target {
    name: "seal-gate",
    about: "a CDB at the gate of a device with floor CMDRSP; only what an honest client signed is admitted, and once",
    run: the_gate,
    seeds: gate_seeds,
    cost: 12,
    quarantine: None,
    covers: &["osd::Cdb::parse", "osd::Capability::parse"],
};

fn data_out_seeds() -> Vec<Vec<u8>> {
    let all = world().commands.iter().enumerate();
    all.map(|(at, honest)| seed(&[at as u8], &honest.data_out)).collect()
}

fn data_out(input: &[u8]) {
    let mut input = Input::new(input);
    let commands = &world().commands;
    let honest = &commands[usize::from(input.byte()) % commands.len()];
    let buffer = input.rest();
    let admitted =
        admit(&gate(), &KnownObjects::new(), &honest.cdb, &honest.signed.cdb).expect("an honest command");
    let genuine = admitted.authenticate(&honest.cdb, &honest.data_out).expect("honest data");
    let Ok(parts) = admitted.authenticate(&honest.cdb, buffer) else {
        return assert_ne!(buffer, honest.data_out);
    };
    assert!(parts.used() <= buffer.len() as u64);
    assert_eq!(parts.continuation(), genuine.continuation(), "a forged continuation segment");
    if admitted.reply().method() == SecurityMethod::AllData {
        assert_eq!(parts, genuine, "forged data");
    }
    if !parts.continuation().is_empty() {
        let _ = continuation::Segment::parse(&honest.cdb.command, parts.continuation());
    }
}

pub(crate) const DATA_OUT: Target = Target {
    name: "seal-data-out",
    about: "which honest command, then a Data-Out Buffer; only genuine parts are authentic",
    run: data_out,
    seeds: data_out_seeds,
    cost: 12,
    quarantine: None,
    covers: &["osd::Segment::parse"],
};

/// Status, sense data and Data-In Buffer of a genuine reply.
fn reply_to(honest: &SignedCdb, good: bool) -> (u8, Vec<u8>, Vec<u8>) {
    let admitted =
        admit(&gate(), &KnownObjects::new(), &honest.cdb, &honest.signed.cdb).expect("an honest command");
    let layout = admitted.data_in_layout(&honest.cdb).expect("an honest place");
    let seal = admitted.reply();
    if !good {
        let sense = Sense::new(SenseKey::IllegalRequest, additional::INVALID_FIELD_IN_CDB);
        return (2, seal.sense(2, &sense.encode()), Vec::new());
    }
    let mut buffer = vec![0xDA; layout.data_max as usize];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = usize::try_from(at).expect("a small buffer");
        buffer.resize(buffer.len().max(at + bytes.len()), 0);
        buffer[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let attributes = layout.attributes.map_or(Vec::new(), |segment| vec![0xA7; segment.length as usize]);
    if let Some(segment) = layout.attributes {
        put(segment.offset, &attributes);
    }
    if let Some(place) = layout.integrity {
        let block = seal.data_in(&[&vec![0xDA; layout.data_max as usize]], &attributes).expect("ALLDATA");
        put(place, &block);
    }
    (0, seal.sense(0, &[]), buffer)
}

fn reply_seeds() -> Vec<Vec<u8>> {
    let all = world().commands.iter().enumerate();
    all.flat_map(|(at, honest)| {
        [true, false].map(|good| {
            let (status, sense, data_in) = reply_to(honest, good);
            seed(&[at as u8, status, sense.len() as u8], &[sense, data_in].concat())
        })
    })
    .collect()
}

fn reply(input: &[u8]) {
    let mut input = Input::new(input);
    let commands = &world().commands;
    let honest = &commands[usize::from(input.byte()) % commands.len()];
    let (status, length) = (input.byte(), usize::from(input.byte()));
    let sense = input.take(length);
    let data_in = input.rest();
    if let Some(field) = sense::response_icv_field(sense) {
        assert!(sense.get(field).is_some());
    }
    let _ = (sense::good_carrier(sense), DataInCounts::parse(data_in), ObjectBounds::parse(data_in));
    let Ok(checked) = honest.signer.verify(&honest.signed, &ReceivedReply { status, sense, data_in }) else {
        return;
    };
    let (_, genuine_sense, genuine_data) = reply_to(honest, status == 0);
    assert!(matches!(status, 0 | 2), "a forged status was believed");
    // The length byte of a GOOD sense carrier is not covered by the check value; all other bytes
    // are.
    let differs = |(at, (one, other)): (usize, (&u8, &u8))| at != 7 && one != other;
    let forged = sense.iter().zip(&genuine_sense).enumerate().any(differs);
    assert!(sense.len() == genuine_sense.len() && !forged, "forged sense data was believed");
    if honest.signer.method() == SecurityMethod::AllData && status == 0 {
        let genuine = ReceivedReply { status, sense: &genuine_sense, data_in: &genuine_data };
        assert_eq!(Ok(checked), honest.signer.verify(&honest.signed, &genuine), "forged data was believed");
    }
}

pub(crate) const REPLY: Target = Target {
    name: "seal-reply",
    about: "which honest command, then status, sense and data-in; only the device's own reply is believed",
    run: reply,
    seeds: reply_seeds,
    cost: 6,
    quarantine: None,
    covers: &[
        "seal::DataInCounts::parse",
        "seal::ObjectBounds::parse",
        "seal::sense::response_icv_field",
        "seal::sense::good_carrier",
    ],
};
