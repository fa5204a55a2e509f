//! A small device and its MDS, for the end-to-end tests.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part of it")]

use std::cell::RefCell;
use std::collections::BTreeMap;

use sealstone_crypto::{ParkingLot, RustCrypto};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{Extent, Target};
use sealstone_osd::{
    AttributeId, Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod,
};
use sealstone_seal::*;

pub type Keys = KeyHierarchy<RustCrypto>;
pub type TestGate = Gate<RustCrypto, ParkingLot>;
pub type TestSigner = Signer<RustCrypto>;

pub const NOW: u64 = 0x019b_76da_abe8;
pub const SYSTEM: SystemId = *b"\xf1\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
pub const PARTITION: u64 = 0x1_0000;
pub const OBJECT: ObjectId = ObjectId::new(PARTITION, 0x1_0001);
pub const TAG: u32 = 7;
pub const CREATED: u64 = NOW - 1000;
pub const TOKEN: SecurityToken = SecurityToken([0x42; 32]);
pub const BOOT_EPOCH: u16 = 9;
pub const GENERATIONS: [Generation; 2] = [Generation::Osd1, Generation::Osd2];

/// Returns a counter instead of random bytes: every nonce differs, every run is the same.
pub fn random() -> impl Random {
    let mut count = 0_u64;
    move |into: &mut [u8]| {
        count += 1;
        let bytes = count.to_be_bytes();
        into.iter_mut().enumerate().for_each(|(at, byte)| *byte = bytes[7 - at % 8]);
    }
}

pub fn keys() -> Keys {
    let initial = InitialKey::new(&[0x5A; 32]).unwrap();
    let mut keys = Keys::factory(Hash::Sha256, &initial, SYSTEM);
    keys.add_partition(PARTITION).unwrap();
    keys
}

/// The device's objects and attributes, changeable by the test.
pub struct World {
    pub floor: SecurityMethod,
    pub frozen_keys: u16,
    pub frozen_audit: Option<[u8; 20]>,
    pub objects: BTreeMap<ObjectId, ObjectFacts>,
    pub allowed: Vec<(u64, u32, AttributeId)>,
    pub asked: RefCell<Vec<&'static str>>,
}

impl World {
    pub fn new() -> Self {
        let facts = |kind| ObjectFacts { kind, created_ms: CREATED, policy_access_tag: TAG };
        let objects = [
            (OBJECT, facts(ObjectType::User)),
            (ObjectId::of_partition(PARTITION), facts(ObjectType::Partition)),
            (ObjectId::new(PARTITION, 0x1_0002), facts(ObjectType::Collection)),
            (ObjectId::ROOT, ObjectFacts { kind: ObjectType::Root, created_ms: 0, policy_access_tag: 0 }),
        ];
        Self {
            floor: SecurityMethod::NoSec,
            frozen_keys: 0,
            frozen_audit: None,
            objects: BTreeMap::from(objects),
            allowed: Vec::new(),
            asked: RefCell::default(),
        }
    }
}

impl DeviceFacts for World {
    fn floor(&self, _: ObjectId) -> SecurityMethod {
        self.asked.borrow_mut().push("floor");
        self.floor
    }
    fn frozen_keys(&self, _: u64) -> u16 {
        self.asked.borrow_mut().push("frozen_keys");
        self.frozen_keys
    }
    fn audit_frozen(&self, audit: &[u8; 20]) -> bool {
        self.asked.borrow_mut().push("audit_frozen");
        self.frozen_audit.as_ref() == Some(audit)
    }
    fn object(&self, id: ObjectId) -> Option<ObjectFacts> {
        self.asked.borrow_mut().push("object");
        self.objects.get(&id).copied()
    }
    fn attribute_allowed(&self, partition: u64, access: u32, attribute: AttributeId) -> bool {
        self.allowed.contains(&(partition, access, attribute))
    }
}

/// A device with its gate.
pub struct Device {
    pub gate: TestGate,
    pub keys: Keys,
    pub world: World,
    pub nexus: NexusSecurity,
    pub clock_ms: u64,
}

impl Device {
    pub fn new() -> Self {
        Self::with(GatePolicy {
            nonces: NonceLimits { slots_per_second: 1 << 14, ..NonceLimits::default() },
            ..GatePolicy::default()
        })
    }

    pub fn with(policy: GatePolicy) -> Self {
        let gate = TestGate::new(policy, 0, &mut random());
        gate.nonces().extend_lease(u64::MAX);
        Self {
            gate,
            keys: keys(),
            world: World::new(),
            nexus: NexusSecurity { token: Some(TOKEN), secure_channel: false },
            clock_ms: NOW,
        }
    }

    pub fn admit(&self, bytes: &[u8]) -> Result<Admitted<RustCrypto>, GateRefusal<RustCrypto>> {
        let cdb = Cdb::parse(bytes).expect("tests send CDBs that parse");
        self.gate.admit(&GateRequest {
            cdb: &cdb,
            bytes,
            nexus: &self.nexus,
            clock_ms: self.clock_ms,
            boot_epoch: BOOT_EPOCH,
            keys: &self.keys,
            facts: &self.world,
        })
    }

    /// Runs the gate, then the permit.
    pub fn permit(&self, bytes: &[u8]) -> Result<Permit, Denial> {
        let cdb = Cdb::parse(bytes).expect("tests send CDBs that parse");
        let admitted = self.admit(bytes).map_err(|refused| refused.denial)?;
        admitted.permit(&cdb, &self.world)
    }
}

pub fn scope() -> Scope {
    Scope { attributes_access: 0, policy_access_tag: TAG, boot_epoch: 0 }
}

/// Returns a capability for everything on the user object, by the strongest algorithm that fits.
pub fn capability(generation: Generation, method: SecurityMethod) -> Capability {
    let slot = match generation {
        Generation::Osd1 => algorithm::SLOT_HMAC_SHA1,
        Generation::Osd2 => algorithm::SLOT_HMAC_SHA256,
    };
    Capability {
        generation,
        format: generation,
        key_version: 0,
        icv_algorithm: slot,
        method,
        expires_ms: NOW + 300_000,
        audit: *b"audit-vector-0000001",
        discriminator: [3; 12],
        object_created_ms: CREATED,
        object_type: ObjectType::User,
        permissions: Permissions::ALL_OSD2,
        descriptor: Descriptor::User {
            scope: scope(),
            allowed: OBJECT,
            range: Range {
                start: 0,
                length: match generation {
                    Generation::Osd1 => u64::MAX,
                    Generation::Osd2 => 0,
                },
            },
        },
    }
}

pub fn credential(keys: &Keys, capability: &Capability) -> Credential {
    Credential::issue(keys, &AlgorithmSlots::DEFAULT, capability).unwrap()
}

pub fn signer(keys: &Keys, capability: &Capability) -> TestSigner {
    TestSigner::new(&credential(keys, capability), &AlgorithmSlots::DEFAULT).unwrap()
}

pub fn read(generation: Generation) -> Cdb {
    Cdb::new(generation, Command::Read(Extent { object: OBJECT, start: 0, length: 4096 }))
}

pub fn write(generation: Generation, length: u64) -> Cdb {
    Cdb::new(generation, Command::Write(Extent { object: OBJECT, start: 0, length }))
}

pub fn remove(generation: Generation) -> Cdb {
    Cdb::new(generation, Command::Remove(Target { object: OBJECT }))
}

/// Signs a command without data-out.
pub fn sign(signer: &TestSigner, cdb: Cdb, time_ms: u64, random: &mut dyn Random) -> SignedCommand {
    signer.sign(cdb, &mut SentParts::default(), time_ms, Some(&TOKEN), random).unwrap()
}
