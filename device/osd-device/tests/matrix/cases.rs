//! The refusals: each sample with each single defect, by each method.

use super::conditions::{self as condition, Condition};
use super::samples::Sample;
use super::support::{ListPair, START_MS};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{Action, pointer};
use sealstone_osd::table::{ByteRule, SERVICE_ACTIONS};
use sealstone_osd::{
    Capability, Cdb, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_seal::algorithm::preferred_slot;

/// Change of the capability before it is signed.
pub type Edit = Box<dyn Fn(&mut Capability)>;

/// Change of the command in addition.
pub enum Finish {
    /// No change.
    AsIs,
    /// Replaces bytes of the CDB and signs it again.
    Sign(Vec<(usize, Vec<u8>)>),
    /// XORs bytes of the CDB after signing.
    Tamper(Vec<(usize, Vec<u8>)>),
    /// Changes a byte of the Data-Out Buffer; distance from its end.
    DataOut(usize),
    /// Changes a byte of the Data-Out Buffer; distance from its start.
    DataOutFront(usize),
    /// Changes the last byte of the attribute list in the Data-Out Buffer.
    List,
    /// The Data-Out Buffer ends one byte early.
    Short,
    /// The Data-Out Buffer is empty.
    Empty,
    /// Sends it twice; the first time it is refused for lack of permission.
    Twice,
    /// Shifts the nonce by this many milliseconds, and signs it.
    Nonce(i64),
    /// Signs with another key.
    Key(Key),
    /// CAPKEY with the token of another nexus.
    Token,
}

/// Wrong keys.
#[derive(Clone, Copy)]
pub enum Key {
    /// The same level, of a device with another system id.
    ForeignDevice,
    /// The same level, below another master key.
    StaleMaster,
    /// A key of another level or partition.
    WrongLevel,
}

/// Configurations of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// Accepts CAPKEY.
    Lenient,
    /// The default: CMDRSP at least.
    Strict,
    /// The default method of root and partition is ALLDATA.
    Raised,
    /// Working key 0 of the partition is frozen.
    Frozen,
}

pub struct Case {
    pub condition: Condition,
    /// Description of the defect.
    pub what: String,
    pub method: SecurityMethod,
    pub device: Device,
    pub lists: ListPair,
    pub edit: Edit,
    /// Change of the extension capability before it is authenticated.
    pub further: Further,
    pub finish: Finish,
}

/// Change of the extension capability of a command on a second object.
pub enum Further {
    /// No change.
    Sound,
    /// Changed before it is authenticated.
    Changed(Edit),
    /// Sent with an invalid proof.
    Unproven,
    /// Not sent.
    Missing,
}

pub const METHODS: [SecurityMethod; 3] =
    [SecurityMethod::CapKey, SecurityMethod::CmdRsp, SecurityMethod::AllData];

/// Whether the command requires at least CMDRSP.
pub fn needs_signature(sample: &Sample) -> bool {
    matches!(
        sample.row.action,
        Action::SetKey
            | Action::SetMasterKey
            | Action::FormatOsd
            | Action::ExecuteFunction
            | Action::CreatePartition
            | Action::RemovePartition
            | Action::CreateSnapshot
            | Action::CreateClone
            | Action::DetachClone
            | Action::RefreshSnapshotOrClone
            | Action::RestorePartition
    )
}

/// Whether the partition's working key signs it.
fn by_partition_key(sample: &Sample) -> bool {
    sample.command.object().partition != 0
        && !matches!(
            sample.row.action,
            Action::SetKey
                | Action::CreatePartition
                | Action::RemovePartition
                | Action::CreateSnapshot
                | Action::CreateClone
                | Action::RefreshSnapshotOrClone
        )
}

/// Returns the page of the object type with its attributes.
fn page(sample: &Sample, offset: u32) -> u32 {
    let base = match sample.kind {
        ObjectType::Root => 0x9000_0000,
        ObjectType::Partition => 0x3000_0000,
        ObjectType::Collection => 0x6000_0000,
        ObjectType::User => 0,
    };
    base + offset
}

/// Returns a range that allows the command of a sample but not the whole object, if there is one.
fn own_range(sample: &Sample) -> Option<Range> {
    match sample.row.bytes {
        ByteRule::None => Some(Range { start: 0, length: 4096 }),
        ByteRule::Extent | ByteRule::AtEnd => Some(Range { start: 0, length: 1 << 20 }),
        ByteRule::Tail | ByteRule::Whole => None,
    }
}

/// Returns the descriptor for an object type.
pub fn descriptor(generation: Generation, kind: ObjectType, allowed: ObjectId, scope: Scope) -> Descriptor {
    match (kind, generation) {
        (ObjectType::User, _) | (ObjectType::Collection, Generation::Osd1) => {
            Descriptor::User { scope, allowed, range: Range::ALL }
        }
        (ObjectType::Collection, Generation::Osd2) => Descriptor::Collection { scope, allowed },
        (ObjectType::Root | ObjectType::Partition, _) => {
            Descriptor::Partition { scope, partition: allowed.partition }
        }
    }
}

/// Returns a capability that allows the sample, and every attribute.
pub fn full(sample: &Sample, method: SecurityMethod) -> Capability {
    let generation = sample.generation;
    Capability {
        generation,
        format: generation,
        key_version: 0,
        icv_algorithm: preferred_slot(generation, method),
        method,
        expires_ms: START_MS + 3_600_000,
        audit: *b"auditor-of-the-tests",
        discriminator: [7; 12],
        object_created_ms: 0,
        object_type: sample.kind,
        permissions: sample.command.permissions()
            | Permissions::GET_ATTR
            | Permissions::SET_ATTR
            | Permissions::POL_SEC
            | Permissions::OBJ_MGMT,
        descriptor: descriptor(generation, sample.kind, sample.command.object(), Scope::default()),
    }
}

fn scope_of(capability: &mut Capability) -> Option<&mut Scope> {
    match &mut capability.descriptor {
        Descriptor::None => None,
        Descriptor::User { scope, .. }
        | Descriptor::Partition { scope, .. }
        | Descriptor::Collection { scope, .. } => Some(scope),
    }
}

/// Collects the cases of one sample by one method.
struct Collector<'s> {
    sample: &'s Sample,
    method: SecurityMethod,
    cases: Vec<Case>,
}

impl Collector<'_> {
    fn add(
        &mut self,
        condition: Condition,
        what: impl Into<String>,
        lists: ListPair,
        finish: Finish,
        edit: impl Fn(&mut Capability) + 'static,
    ) {
        self.cases.push(Case {
            condition,
            what: what.into(),
            method: self.method,
            device: Device::Lenient,
            lists,
            edit: Box::new(edit),
            further: Further::Sound,
            finish,
        });
    }

    /// Adds the extension capability with each defect. `ranged`: it must cover all bytes.
    fn further(&mut self, sound: Capability, ranged: bool) {
        let mut add = |condition, what: &str, further| {
            self.cases.push(Case {
                condition,
                what: format!("extension: {what}"),
                method: self.method,
                device: Device::Lenient,
                lists: ListPair::default(),
                edit: Box::new(|_| {}),
                further,
                finish: Finish::AsIs,
            });
        };
        add(condition::FURTHER_PERMISSION, "none", Further::Missing);
        add(condition::FURTHER_ICV, "proof of nobody", Further::Unproven);
        let mut edit = |condition, what: &str, edit: Edit| add(condition, what, Further::Changed(edit));
        let allowed = sound.descriptor.allowed().unwrap();
        let descriptor = move |allowed, scope| match sound.descriptor {
            Descriptor::Collection { .. } => Descriptor::Collection { scope, allowed },
            _ => Descriptor::User { scope, allowed, range: Range::ALL },
        };
        let scope = Scope::default();
        let needed = sound.permissions;
        edit(
            condition::FURTHER_PERMISSION,
            "without any",
            Box::new(|one| one.permissions = Permissions::NONE),
        );
        edit(
            condition::FURTHER_PERMISSION,
            "with all others",
            Box::new(move |one| one.permissions = Permissions::ALL_OSD2.without(needed)),
        );
        for (what, other) in [
            ("the next", ObjectId::new(allowed.partition, allowed.object + 1)),
            ("all ones", ObjectId::new(allowed.partition, u64::MAX)),
        ] {
            let edited = descriptor(other, scope);
            edit(condition::FURTHER_OBJECT, what, Box::new(move |one| one.descriptor = edited));
        }
        let kind = match sound.object_type {
            ObjectType::User => ObjectType::Collection,
            _ => ObjectType::User,
        };
        edit(
            condition::FURTHER_OBJECT_TYPE,
            "another",
            Box::new(move |one| {
                one.object_type = kind;
                one.descriptor = self::descriptor(Generation::Osd2, kind, allowed, scope);
            }),
        );
        // Of a partition: signed like one of partition 10000h, with other content.
        edit(
            condition::FURTHER_DESCRIPTOR_TYPE,
            "of a partition",
            Box::new(move |one| {
                one.descriptor = Descriptor::Partition { scope, partition: allowed.partition };
            }),
        );
        edit(condition::FURTHER_EXPIRED, "in 1970", Box::new(|one| one.expires_ms = 1));
        edit(condition::FURTHER_CREATED_TIME, "another", Box::new(|one| one.object_created_ms = 1));
        let tagged = descriptor(allowed, Scope { policy_access_tag: 0xDEAD, ..scope });
        edit(condition::FURTHER_TAG, "another", Box::new(move |one| one.descriptor = tagged));
        let booted = descriptor(allowed, Scope { boot_epoch: 77, ..scope });
        edit(condition::FURTHER_BOOT_EPOCH, "another", Box::new(move |one| one.descriptor = booted));
        edit(condition::FURTHER_KEY_UNKNOWN, "key version 9", Box::new(|one| one.key_version = 9));
        edit(condition::FURTHER_BELOW_FLOOR, "NOSEC", Box::new(|one| one.method = SecurityMethod::NoSec));
        if ranged && sound.object_type == ObjectType::User {
            for (what, range) in [
                ("one byte late", Range { start: 1, length: u64::MAX - 1 }),
                ("one byte short", Range { start: 0, length: u64::MAX - 1 }),
            ] {
                let ranged = Descriptor::User { scope, allowed, range };
                edit(condition::FURTHER_RANGE, what, Box::new(move |one| one.descriptor = ranged));
            }
        }
    }

    fn field(
        &mut self,
        condition: Condition,
        what: impl Into<String>,
        edit: impl Fn(&mut Capability) + 'static,
    ) {
        self.add(condition, what, ListPair::default(), Finish::AsIs, edit);
    }

    fn finish(&mut self, condition: Condition, what: impl Into<String>, finish: Finish) {
        self.add(condition, what, ListPair::default(), finish, |_| {});
    }

    fn permissions(&mut self) {
        let sample = self.sample;
        let needed = sample.command.permissions();
        for (bit, name) in Permissions::NAMES.iter().filter(|(bit, _)| needed.contains(*bit)) {
            self.field(condition::MISSING_PERMISSION, format!("without {name}"), |capability| {
                capability.permissions = capability.permissions.without(*bit);
            });
        }
        self.field(condition::MISSING_PERMISSION, "without any", |capability| {
            capability.permissions = Permissions::NONE;
        });
        let all_but = |needed: Permissions| {
            move |capability: &mut Capability| {
                capability.permissions = (Permissions::ALL_OSD2 | Permissions::EXECUTE).without(needed);
            }
        };
        self.field(condition::MISSING_PERMISSION, "with all others", all_but(needed));
        for (what, lists, bit) in self.attributes() {
            self.add(condition::MISSING_PERMISSION, what, lists, Finish::AsIs, move |capability| {
                capability.permissions = capability.permissions.without(bit);
            });
        }
    }

    /// Returns attributes next to the command, and the permission without which they are refused.
    fn attributes(&self) -> Vec<(&'static str, ListPair, Permissions)> {
        let number = if matches!(self.sample.kind, ObjectType::Root | ObjectType::Partition) {
            1
        } else {
            0x4000_0001
        };
        let get = |offset, number| ListPair::get(&[(page(self.sample, offset), number)]);
        let set = |at, number, value: &'static [u8]| ListPair::set(&[(page(self.sample, at), number, value)]);
        let mut all = vec![
            ("get an attribute without GET_ATTR", get(1, 9), Permissions::GET_ATTR),
            ("set an attribute without SET_ATTR", set(1, 9, b"name"), Permissions::SET_ATTR),
            ("get a policy attribute without POL_SEC", get(5, number), Permissions::POL_SEC),
            ("set a policy attribute without POL_SEC", set(5, number, &[3]), Permissions::POL_SEC),
        ];
        if self.sample.kind != ObjectType::Collection {
            all.push(("set a quota without OBJ_MGMT", set(2, 1, &[9; 8]), Permissions::OBJ_MGMT));
        }
        // CAPKEY never sets a policy attribute: that is another condition.
        if self.method == SecurityMethod::CapKey {
            all.retain(|(what, ..)| !what.starts_with("set a policy"));
        }
        all
    }

    fn wrong_fields(&mut self) {
        let (sample, generation) = (self.sample, self.sample.generation);
        let object = sample.command.object();
        self.field(condition::EXPIRED, "a millisecond ago", |capability| {
            capability.expires_ms = START_MS - 1
        });
        self.field(condition::EXPIRED, "in 1970", |capability| capability.expires_ms = 1);
        self.field(condition::CREATED_TIME, "another", |capability| capability.object_created_ms = 1);
        self.field(condition::POLICY_ACCESS_TAG, "another", |capability| {
            scope_of(capability).unwrap().policy_access_tag = 0xDEAD;
        });
        for kind in [ObjectType::Root, ObjectType::Partition, ObjectType::Collection, ObjectType::User] {
            if kind != sample.kind {
                self.field(condition::OBJECT_TYPE, format!("{kind:?}"), move |capability| {
                    capability.object_type = kind;
                    capability.descriptor = descriptor(generation, kind, object, Scope::default());
                });
            }
        }
        self.field(condition::DESCRIPTOR_TYPE, "none", |capability| capability.descriptor = Descriptor::None);
        let other = match sample.kind {
            ObjectType::User | ObjectType::Collection => ObjectType::Partition,
            ObjectType::Root | ObjectType::Partition => ObjectType::User,
        };
        self.field(condition::DESCRIPTOR_TYPE, format!("of {other:?}"), move |capability| {
            capability.descriptor = descriptor(generation, other, object, Scope::default());
        });
        for (what, partition) in [("the next", object.partition + 1), ("all ones", u64::MAX)] {
            let allowed = ObjectId::new(partition, object.object);
            self.field(condition::PARTITION, what, move |capability| {
                capability.descriptor =
                    descriptor(generation, capability.object_type, allowed, Scope::default());
            });
        }
        if matches!(sample.kind, ObjectType::User | ObjectType::Collection) {
            for (what, number) in [("the next", object.object + 1), ("all ones", u64::MAX)] {
                let allowed = ObjectId::new(object.partition, number);
                self.field(condition::OBJECT, what, move |capability| {
                    capability.descriptor =
                        descriptor(generation, capability.object_type, allowed, Scope::default());
                });
            }
        }
        if generation == Generation::Osd2 {
            self.osd2_fields(object);
        }
    }

    fn osd2_fields(&mut self, object: ObjectId) {
        self.field(condition::BOOT_EPOCH, "another", |capability| {
            scope_of(capability).unwrap().boot_epoch = 77;
        });
        let restrict = |capability: &mut Capability| scope_of(capability).unwrap().attributes_access = 0x55;
        for (what, lists) in [
            ("get an attribute that no list names", ListPair::get(&[(page(self.sample, 1), 9)])),
            ("set an attribute that no list names", ListPair::set(&[(page(self.sample, 1), 9, b"name")])),
        ] {
            self.add(condition::ATTRIBUTES_ACCESS, what, lists, Finish::AsIs, restrict);
        }
        if self.sample.kind == ObjectType::User {
            self.byte_ranges(object);
        }
    }

    /// Adds capabilities for too few bytes, by the rule of the row, and attributes that reveal or
    /// set the length.
    fn byte_ranges(&mut self, object: ObjectId) {
        let ranged = move |range| {
            move |capability: &mut Capability| {
                capability.descriptor = Descriptor::User { scope: Scope::default(), allowed: object, range };
            }
        };
        let named = self.sample.command.range();
        let wanted = match self.sample.row.bytes {
            ByteRule::None => None,
            ByteRule::Extent => named,
            ByteRule::AtEnd => Some(Range { start: 0, length: self.sample.command.data_out_len() }),
            ByteRule::Tail => named.map(|range| Range { length: u64::MAX - range.start, ..range }),
            ByteRule::Whole => Some(Range { start: 0, length: u64::MAX }),
        };
        if let Some(wanted) = wanted {
            let late = Range { start: wanted.start + 1, length: u64::MAX - wanted.start - 1 };
            self.field(condition::RANGE, "one byte late", ranged(late));
            self.field(condition::RANGE, "elsewhere", ranged(Range { start: 1 << 40, length: 1 << 40 }));
            if wanted.length > 0 {
                let short = Range { start: wanted.start, length: wanted.length - 1 };
                self.field(condition::RANGE, "one byte short", ranged(short));
            }
        }
        // A range that the command itself may use: the attribute is refused.
        let Some(own) = own_range(self.sample) else { return };
        let last = own.start.saturating_add(own.length);
        let beyond: &'static [u8] = Box::leak(Box::new((last + 1).to_be_bytes()));
        for (what, lists) in [
            ("get the logical length", ListPair::get(&[(1, 0x82)])),
            ("get the used capacity", ListPair::get(&[(1, 0x81)])),
            ("get the whole information page", ListPair::get(&[(1, u32::MAX)])),
            ("set the logical length beyond the range", ListPair::set(&[(1, 0x82, beyond)])),
        ] {
            self.add(condition::RANGE, what, lists, Finish::AsIs, ranged(own));
        }
    }

    /// Adds invalid codes, signed as they are.
    fn codes(&mut self) {
        let generation = self.sample.generation;
        let at = |offset: usize, byte: u8| Finish::Sign(vec![(80 + offset, vec![byte])]);
        self.finish(condition::FORMAT, "of the other generation", at(0, generation.select([2, 1])));
        for format in [0, 3, 15] {
            self.finish(condition::CODE, format!("format {format}"), at(0, format));
        }
        for method in [4, 15] {
            self.finish(condition::CODE, format!("method {method}"), at(2, method));
        }
        for kind in [0x00, 0x03, 0x41, 0xFF] {
            self.finish(condition::CODE, format!("object type {kind:02X}h"), at(48, kind));
        }
        for descriptor in [4_u8, 15] {
            self.finish(condition::CODE, format!("descriptor type {descriptor}"), at(55, descriptor << 4));
        }
        if generation == Generation::Osd1 {
            self.finish(condition::CODE, "descriptor type 3", at(55, 0x30));
        }
        let empty: &[u8] = generation.select([&[1, 2, 4, 15], &[4, 7, 15]]);
        for slot in empty {
            self.finish(condition::ALGORITHM, format!("slot {slot}"), at(1, *slot));
        }
        for byte in [3, 54] {
            self.finish(condition::RESERVED, format!("byte {byte}"), at(byte, 1));
        }
        if generation == Generation::Osd2 {
            self.finish(condition::RESERVED, "byte 66", at(66, 0x80));
        }
        if !matches!(self.sample.row.action, Action::SetKey | Action::SetMasterKey) {
            for version in [1, 9, 15] {
                self.field(condition::KEY_VERSION, format!("{version}"), move |capability| {
                    capability.key_version = version;
                });
            }
        }
    }

    /// Adds fields of the capability changed after signing: one bit, or to another valid code.
    fn tampered_capability(&mut self) {
        let generation = self.sample.generation;
        let mut fields: Vec<(&str, usize, u8)> = vec![
            ("expiration time", 9, 1),
            ("audit", 10, 1),
            ("capability discriminator", 30, 1),
            ("object created time", 47, 1),
            ("object type", 48, self.other_type()),
            // One more permission: what an attacker wants.
            ("permissions bit mask", 49, self.other_permission()),
        ];
        fields.extend(match generation {
            Generation::Osd1 => vec![("policy access tag", 59, 1), ("allowed partition id", 67, 1)],
            Generation::Osd2 => vec![
                ("allowed attributes access", 59, 1),
                ("policy access tag", 63, 1),
                ("boot epoch", 65, 1),
                ("allowed partition id", 79, 1),
            ],
        });
        if matches!(self.sample.kind, ObjectType::User | ObjectType::Collection) {
            fields.push(("allowed object id", generation.select([75, 87]), 1));
        }
        if generation == Generation::Osd2 && self.sample.kind == ObjectType::User {
            fields.extend([("allowed range length", 95, 1), ("allowed range start", 103, 1)]);
        }
        for (what, at, bits) in fields {
            self.finish(
                condition::REQUEST_ICV,
                format!("{what} changed after signing"),
                Finish::Tamper(vec![(80 + at, vec![bits])]),
            );
        }
        // The method: lower and higher, as far as the floor of the device admits it.
        for other in METHODS {
            if other != self.method && !(other == SecurityMethod::CapKey && needs_signature(self.sample)) {
                let bits = other as u8 ^ self.method as u8;
                let direction = if other < self.method { "downgraded" } else { "raised" };
                self.finish(
                    condition::REQUEST_ICV,
                    format!("method {direction} to {other} after signing"),
                    Finish::Tamper(vec![(82, vec![bits])]),
                );
            }
        }
        let to_nosec = self.method as u8;
        self.finish(
            condition::BELOW_FLOOR,
            "method downgraded to NOSEC after signing",
            Finish::Tamper(vec![(82, vec![to_nosec])]),
        );
    }

    fn other_type(&self) -> u8 {
        let other =
            if self.sample.kind == ObjectType::User { ObjectType::Partition } else { ObjectType::User };
        self.sample.kind as u8 ^ other as u8
    }

    fn other_permission(&self) -> u8 {
        let has = full(self.sample, self.method).permissions.bytes()[0];
        // The highest missing bit; WRITE is removed if all are present.
        (0..8).rev().map(|bit| 1 << bit).find(|bit| has & bit == 0).unwrap_or(0x40)
    }

    /// Adds fields of the CDB outside of the capability changed after signing.
    fn tampered_cdb(&mut self) {
        let generation = self.sample.generation;
        let length = usize::from(pointer::length(generation));
        let mut fields: Vec<(&str, usize, Vec<u8>)> = vec![
            ("control", 1, vec![1]),
            ("options (DPO)", 10, vec![0x10]),
            ("options (FUA)", 10, vec![0x08]),
            ("timestamps control", 12, vec![0x7F]),
            ("partition id", 23, vec![1]),
            ("object id", 31, vec![1]),
            ("length", length + 7, vec![1]),
            ("starting byte", usize::from(pointer::start(generation)) + 7, vec![1]),
            ("attribute format", 11, vec![0x10]),
            ("attribute parameters", 55, vec![1]),
            ("attribute parameters (last)", 79, vec![1]),
            ("nonce (time)", usize::from(pointer::nonce(generation)) + 5, vec![1]),
            ("nonce (chance)", usize::from(pointer::nonce(generation)) + 11, vec![1]),
            (
                "data-in integrity check value offset",
                usize::from(pointer::data_in_icv_offset(generation)),
                vec![0x40],
            ),
            (
                "data-out integrity check value offset",
                usize::from(pointer::data_out_icv_offset(generation)),
                vec![0x40],
            ),
            ("check value (first byte)", usize::from(pointer::request_icv(generation)), vec![0x80]),
            (
                "check value (last byte)",
                usize::from(pointer::request_icv(generation)) + generation.icv_len() - 1,
                vec![1],
            ),
        ];
        let own = self.sample.row.code(generation).unwrap();
        let other = [Action::GetAttributes, Action::Read]
            .map(|action| SERVICE_ACTIONS[action as usize].code(generation).unwrap())
            .into_iter()
            .find(|code| *code != own)
            .unwrap();
        fields.push(("service action", 8, (own ^ other).to_be_bytes().to_vec()));
        for (what, at, bits) in fields {
            self.finish(
                condition::REQUEST_ICV,
                format!("{what} changed after signing"),
                Finish::Tamper(vec![(at, bits)]),
            );
        }
    }

    fn keys(&mut self) {
        self.finish(condition::REQUEST_ICV, "signed for another device", Finish::Key(Key::ForeignDevice));
        self.finish(condition::REQUEST_ICV, "signed below another master key", Finish::Key(Key::StaleMaster));
        self.finish(
            condition::REQUEST_ICV,
            "signed with the key of another level",
            Finish::Key(Key::WrongLevel),
        );
        let icv = usize::from(pointer::request_icv(self.sample.generation));
        let width = self.sample.generation.icv_len();
        if self.method == SecurityMethod::CapKey {
            self.finish(condition::REQUEST_ICV, "security token of another nexus", Finish::Token);
            self.finish(
                condition::REQUEST_ICV,
                "check value (first byte) changed",
                Finish::Tamper(vec![(icv, vec![1])]),
            );
            let last = icv + width - 1;
            self.finish(
                condition::REQUEST_ICV,
                "check value (last byte) changed",
                Finish::Tamper(vec![(last, vec![1])]),
            );
        }
    }

    fn nonces(&mut self) {
        let without = |capability: &mut Capability| capability.permissions = Permissions::NONE;
        self.add(condition::REPLAYED, "sent twice", ListPair::default(), Finish::Twice, without);
        for (what, off) in [
            ("a minute old", -60_000),
            ("a day old", -86_400_000),
            ("a minute ahead", 60_000),
            ("of 1970", -(START_MS as i64)),
        ] {
            self.finish(condition::OUT_OF_WINDOW, what, Finish::Nonce(off));
        }
    }

    fn data(&mut self) {
        let generation = self.sample.generation;
        let sets = || ListPair::set(&[(page(self.sample, 1), 9, b"name")]);
        let gets = || ListPair::get(&[(page(self.sample, 1), 9)]);
        let bytes = !self.sample.data().is_empty();
        let front = self.sample.continuation.len();
        let mut cases = vec![
            (condition::DATA_OUT_ICV, "check value (last byte)", sets(), Finish::DataOut(1)),
            (
                condition::DATA_OUT_ICV,
                "check value (first byte)",
                sets(),
                Finish::DataOut(generation.icv_len()),
            ),
            (condition::DATA_OUT_ICV, "a count", sets(), Finish::DataOut(generation.icv_len() + 1)),
            (condition::DATA_OUT_ICV, "get attributes list", gets(), Finish::List),
            (condition::DATA_OUT_ICV, "set attributes list", sets(), Finish::List),
            (
                condition::DATA_OUT_ICV_OFFSET,
                "none",
                sets(),
                Finish::Sign(vec![(usize::from(pointer::data_out_icv_offset(generation)), vec![0xFF; 4])]),
            ),
            (
                condition::DATA_IN_ICV_OFFSET,
                "none",
                gets(),
                Finish::Sign(vec![(usize::from(pointer::data_in_icv_offset(generation)), vec![0xFF; 4])]),
            ),
            (condition::DATA_OUT_ICV_OFFSET, "behind the end of the buffer", sets(), Finish::Short),
        ];
        if bytes {
            cases.push((
                condition::DATA_OUT_ICV,
                "command data",
                ListPair::default(),
                Finish::DataOutFront(front),
            ));
        }
        for (condition, what, lists, finish) in cases {
            self.add(condition, what, lists, finish, |_| {});
        }
    }

    fn missing_data(&mut self) {
        let lists = ListPair::set(&[(page(self.sample, 1), 9, b"name")]);
        self.add(condition::DATA_OUT_LAYOUT, "empty", lists, Finish::Empty, |_| {});
    }

    fn continuation(&mut self) {
        for (what, at) in
            [("check value (first byte)", 8), ("check value (last byte)", 39), ("service action", 3)]
        {
            self.finish(condition::CONTINUATION_ICV, what, Finish::DataOutFront(at));
        }
        let last = self.sample.continuation.len() - 1;
        self.finish(condition::CONTINUATION_ICV, "last byte of a descriptor", Finish::DataOutFront(last));
    }
}

/// Returns every single defect of one sample.
pub fn all(sample: &Sample) -> Vec<Case> {
    let mut cases = Vec::new();
    for method in METHODS {
        if method == SecurityMethod::CapKey && needs_signature(sample) {
            continue;
        }
        let mut collector = Collector { sample, method, cases: Vec::new() };
        collector.permissions();
        collector.wrong_fields();
        collector.codes();
        collector.tampered_capability();
        collector.keys();
        if let Some(further) = sample.further {
            collector.further(further, sample.row.name != "EXECUTE FUNCTION");
        }
        if method >= SecurityMethod::CmdRsp {
            collector.tampered_cdb();
            collector.nonces();
            collector.missing_data();
            if !sample.continuation.is_empty() {
                collector.continuation();
            }
        }
        if method == SecurityMethod::AllData {
            collector.data();
        }
        cases.append(&mut collector.cases);
    }
    let mut floor = |method, device, what: &str| {
        cases.push(Case {
            condition: condition::BELOW_FLOOR,
            what: what.to_owned(),
            method,
            device,
            lists: ListPair::default(),
            edit: Box::new(|_| {}),
            further: Further::Sound,
            finish: Finish::AsIs,
        });
    };
    floor(SecurityMethod::NoSec, Device::Strict, "NOSEC where CMDRSP is asked for");
    floor(SecurityMethod::NoSec, Device::Lenient, "NOSEC where CAPKEY is asked for");
    floor(SecurityMethod::CapKey, Device::Strict, "CAPKEY where CMDRSP is asked for");
    for method in [SecurityMethod::NoSec, SecurityMethod::CapKey, SecurityMethod::CmdRsp] {
        floor(method, Device::Raised, &format!("{method} where ALLDATA is asked for"));
    }
    if by_partition_key(sample) {
        for method in METHODS {
            if method == SecurityMethod::CapKey && needs_signature(sample) {
                continue;
            }
            cases.push(Case {
                condition: condition::KEY_FROZEN,
                what: "key 0".to_owned(),
                method,
                device: Device::Frozen,
                lists: ListPair::default(),
                edit: Box::new(|_| {}),
                further: Further::Sound,
                finish: Finish::AsIs,
            });
        }
    }
    cases
}

/// Returns the condition that is found before the check value, if the change of the CDB causes one.
pub fn found_first(bytes: &[u8], canonical: bool, key_known: bool) -> Option<Condition> {
    if Cdb::parse(bytes).is_err() {
        return None;
    }
    Some(match (key_known, canonical) {
        (false, _) => condition::KEY_UNKNOWN,
        (true, false) => condition::RESERVED,
        (true, true) => condition::REQUEST_ICV,
    })
}
