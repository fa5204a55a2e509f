//! A device without security, with CDBs exactly as a test writes them.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "shared by the test files beside it")]

use std::sync::Arc;

use sealstone_osd::attribute::list::{encode_get, encode_set};
use sealstone_osd::cdb::{AttributeParameters, GetList, GetPage, Segment, SetValue};
use sealstone_osd::{
    AttributeId, Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod, offset,
};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Sense;
use sealstone_scsi::lu::ScsiReply;
use sealstone_store::{MemoryStore, ObjectStore};

use crate::support::{Bench, NEXUS, PID};

/// Longest data-in that a test accepts.
pub const DATA_IN_MAX: usize = 8 << 20;

pub struct Plain {
    pub bench: Bench,
    pub generation: Generation,
}

impl Plain {
    pub fn new(generation: Generation) -> Self {
        Self::on(generation, Arc::new(MemoryStore::new(64 << 20)))
    }

    pub fn on(generation: Generation, store: Arc<dyn ObjectStore>) -> Self {
        let config = OsdConfig { insecure_nosec: true, allow_osd1: true, ..OsdConfig::default() };
        Self { bench: Bench::with(config, store), generation }
    }

    /// Creates partition 10000h with user object 10000h.
    pub fn with_object(generation: Generation) -> Self {
        let plain = Self::new(generation);
        plain.good(&plain.cdb(create_partition(PID)), &[]);
        plain.good(&plain.cdb(create(0x10000, 1)), &[]);
        plain
    }

    /// Returns a CDB with all permissions.
    pub fn cdb(&self, command: Command) -> Cdb {
        let mut cdb = Cdb::new(self.generation, command);
        cdb.capability = capability(self.generation, Permissions::ALL_OSD2).encode();
        cdb
    }

    pub fn send(&self, cdb: &Cdb, data_out: &[u8]) -> ScsiReply {
        self.wire(&cdb.encode().unwrap(), data_out)
    }

    pub fn wire(&self, cdb: &[u8], data_out: &[u8]) -> ScsiReply {
        self.bench.raw(NEXUS, cdb, data_out, DATA_IN_MAX)
    }

    #[track_caller]
    pub fn good(&self, cdb: &Cdb, data_out: &[u8]) -> ScsiReply {
        let reply = self.send(cdb, data_out);
        assert!(reply.sense.is_empty(), "{:?}", Sense::parse(&reply.sense));
        assert_eq!(reply.status.byte(), 0);
        reply
    }

    /// Returns the sense data of a command that must fail.
    #[track_caller]
    pub fn sense(&self, cdb: &Cdb, data_out: &[u8]) -> Sense {
        sense(&self.send(cdb, data_out))
    }

    /// Returns the command with a get list, and the set list before it, both after `data`.
    pub fn with_lists(
        &self,
        command: Command,
        data: &[u8],
        set: &[(AttributeId, Vec<u8>)],
        get: &[AttributeId],
    ) -> (Cdb, Vec<u8>) {
        let mut cdb = self.cdb(command);
        let mut out = data.to_vec();
        let set = (!set.is_empty()).then(|| {
            let bytes = encode_set(self.generation, set.iter().map(|(id, value)| (*id, value.as_slice())));
            place(self.generation, &mut out, &bytes)
        });
        let get = (!get.is_empty()).then(|| GetList {
            list: place(self.generation, &mut out, &encode_get(self.generation, get)),
            retrieved: retrieved(&cdb, 1 << 20),
        });
        cdb.attributes = AttributeParameters::List { get, set };
        (cdb, out)
    }

    /// Returns the command with a page to get.
    pub fn with_page(&self, command: Command, page: u32, allocation: u32) -> Cdb {
        let mut cdb = self.cdb(command);
        let get = Some(GetPage { page, retrieved: retrieved(&cdb, allocation) });
        cdb.attributes = AttributeParameters::Page { get, set: None };
        cdb
    }

    /// Returns the command with one attribute to set in page format.
    pub fn with_value(&self, command: Command, data: &[u8], id: AttributeId, value: &[u8]) -> (Cdb, Vec<u8>) {
        let mut cdb = self.cdb(command);
        let mut out = data.to_vec();
        let value = place(self.generation, &mut out, value);
        cdb.attributes = AttributeParameters::Page { get: None, set: Some(SetValue { id, value }) };
        (cdb, out)
    }

    /// Returns the attributes of a reply.
    pub fn attributes<'a>(&self, cdb: &Cdb, reply: &'a ScsiReply) -> &'a [u8] {
        let at = cdb.attributes.retrieved_segment().unwrap().offset as usize;
        &reply.data_in[at.min(reply.data_in.len())..]
    }

    /// Returns one attribute of an object.
    #[track_caller]
    pub fn get(&self, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
        let (cdb, out) = self.with_lists(get_attributes(object), &[], &[], &[AttributeId::new(page, number)]);
        let reply = self.good(&cdb, &out);
        let mut values = values(self.generation, self.attributes(&cdb, &reply));
        assert_eq!(values.len(), 1);
        values.remove(0).1
    }

    /// Sets one attribute of an object.
    #[track_caller]
    pub fn set(&self, object: ObjectId, page: u32, number: u32, value: &[u8]) {
        let (cdb, out) = self.setting(object, page, number, value);
        self.good(&cdb, &out);
    }

    pub fn setting(&self, object: ObjectId, page: u32, number: u32, value: &[u8]) -> (Cdb, Vec<u8>) {
        let set = [(AttributeId::new(page, number), value.to_vec())];
        self.with_lists(set_attributes(object), &[], &set, &[])
    }
}

fn retrieved(cdb: &Cdb, length: u32) -> Segment {
    Segment { offset: offset::align_up(cdb.generation, cdb.command.data_in_len()).unwrap(), length }
}

fn place(generation: Generation, out: &mut Vec<u8>, bytes: &[u8]) -> Segment {
    let offset = offset::align_up(generation, out.len() as u64).unwrap();
    out.resize(offset as usize, 0);
    out.extend_from_slice(bytes);
    Segment { offset, length: bytes.len() as u32 }
}

/// Returns a capability. Only its permission bits count under NOSEC.
pub fn capability(generation: Generation, permissions: Permissions) -> Capability {
    Capability {
        generation,
        format: generation,
        key_version: 0,
        icv_algorithm: 0,
        method: SecurityMethod::NoSec,
        expires_ms: 0,
        audit: [0; 20],
        discriminator: [0; 12],
        object_created_ms: 0,
        object_type: ObjectType::User,
        permissions,
        descriptor: Descriptor::None,
    }
}

#[track_caller]
pub fn sense(reply: &ScsiReply) -> Sense {
    Sense::parse(&reply.sense).expect("sense data")
}

/// Returns sense key and code.
pub fn triple(sense: &Sense) -> (u8, u16) {
    (sense.key.nibble(), sense.code.0)
}

pub fn values(generation: Generation, attributes: &[u8]) -> Vec<(AttributeId, Vec<u8>)> {
    let list = sealstone_osd::attribute::list::Values::parse_retrieved(generation, attributes).unwrap();
    list.iter().map(|(id, value)| (id, value.to_vec())).collect()
}

pub fn create_partition(partition: u64) -> Command {
    Command::CreatePartition(sealstone_osd::cdb::CreatePartition { partition })
}

pub fn create(object: u64, count: u16) -> Command {
    Command::Create(sealstone_osd::cdb::Create { object: ObjectId::new(PID, object), count })
}

pub fn get_attributes(object: ObjectId) -> Command {
    Command::GetAttributes(sealstone_osd::cdb::Target { object })
}

pub fn set_attributes(object: ObjectId) -> Command {
    Command::SetAttributes(sealstone_osd::cdb::Target { object })
}
