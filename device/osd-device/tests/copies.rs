//! COPY USER OBJECTS, and the extension capability for its source.

use std::sync::Arc;

use crate::support::{Answer, Bench, ListPair, PID, SIGN_HERE, user, value};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::*;
use sealstone_osd::continuation::{CopySource, Segment};
use sealstone_osd::{Capability, Command, Descriptor, ObjectId, ObjectType, Permissions, SecurityMethod};
use sealstone_osd_device::OsdConfig;
use sealstone_store::{BLOCK, MemoryStore};

const OID: u64 = 0x10000;
const COPY: u64 = 0x12000;
const OTHER: u64 = 0x20000;

fn bench() -> Bench {
    let bench = Bench::with_partition();
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    let data = [7; 3 * BLOCK as usize + 5];
    let write = Command::Write(Extent { object: user(OID), start: 0, length: data.len() as u64 });
    let set = ListPair::set(&[(1, 9, b"original"), (0x1_0000, 1, b"inode"), (5, 0x4000_0001, &[0, 0, 0, 3])]);
    bench.run(write, set, &data).good();
    bench
}

fn copy_to(object: ObjectId) -> CopyObjects {
    CopyObjects { object, method: 0, immediate: false }
}

fn source(attributes: bool) -> CopySource {
    CopySource { object: user(OID), attributes, freeze: true, time: 0 }
}

/// Returns a capability to read the source.
fn reading() -> Capability {
    Capability {
        object_type: ObjectType::User,
        permissions: Permissions::READ | Permissions::GET_ATTR,
        descriptor: Descriptor::User { scope: Scope::default(), allowed: user(OID), range: Range::ALL },
        ..Bench::new().capability(&Command::Remove(Target { object: user(OID) }), SecurityMethod::AllData)
    }
}

/// Copies under ALLDATA with these extensions.
fn copy_with(bench: &Bench, copy: CopyObjects, source: CopySource, extensions: &[Capability]) -> Answer {
    let segment = Segment {
        copy_source: Some(source),
        extensions: extensions.iter().map(Capability::encode).collect(),
        proofs: vec![SIGN_HERE; extensions.len()],
        ..Segment::default()
    };
    let command = Command::CopyUserObjects(copy);
    let capability = bench.capability(&command, SecurityMethod::AllData);
    let lists = ListPair::get(&[(0xFFFF_FFFE, 4)]);
    let ready = bench.ready_scattered(command, &lists, &[], &capability, segment.encode(0x8893).unwrap());
    let reply = bench.send(&ready);
    bench.verify(&ready, &reply).unwrap()
}

fn copy(bench: &Bench, to: CopyObjects, source: CopySource) -> Answer {
    copy_with(bench, to, source, &[reading()])
}

fn read(bench: &Bench, object: ObjectId, length: u64) -> Vec<u8> {
    bench.run(Command::Read(Extent { object, start: 0, length }), ListPair::default(), &[]).good().data
}

fn get(bench: &Bench, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
    let command = Command::GetAttributes(Target { object });
    value(&bench.run(command, ListPair::get(&[(page, number)]), &[]).good().attributes)
}

#[test]
fn copy_shares_blocks_until_written() {
    let bench = bench();
    let used = bench.store.space().used;
    copy(&bench, copy_to(user(COPY)), source(false)).good();
    assert_eq!(bench.store.space().used, used);
    assert_eq!(read(&bench, user(COPY), 3 * BLOCK + 5), [7; 3 * BLOCK as usize + 5]);
    assert_eq!(get(&bench, user(COPY), 1, 9), [0u8; 0], "attributes were not requested");
    let write = Command::Write(Extent { object: user(COPY), start: 0, length: 4 });
    bench.run(write, ListPair::default(), b"copy").good();
    assert_eq!((read(&bench, user(COPY), 4), read(&bench, user(OID), 4)), (b"copy".to_vec(), vec![7; 4]));
    assert_eq!(bench.store.space().used, used + BLOCK);
    bench.run(Command::Remove(Target { object: user(OID) }), ListPair::default(), &[]).good();
    assert_eq!(read(&bench, user(COPY), 6), b"copy\x07\x07");
}

#[test]
fn copied_attributes_include_no_authority() {
    let bench = bench();
    copy(&bench, copy_to(user(COPY)), source(true)).good();
    assert_eq!(get(&bench, user(COPY), 1, 9), b"original");
    assert_eq!(get(&bench, user(COPY), 0x1_0000, 1), b"inode");
    assert_eq!(get(&bench, user(COPY), 5, 0x4000_0001), [0; 4], "the tag of a new object");
}

#[test]
fn copy_supports_other_partition_and_chosen_id() {
    let bench = bench();
    bench.create_partition(OTHER);
    let answer = copy(&bench, copy_to(ObjectId::new(OTHER, 0)), source(false)).good();
    let chosen = u64::from_be_bytes(value(&answer.attributes).try_into().unwrap());
    assert_eq!(read(&bench, ObjectId::new(OTHER, chosen), 5), [7; 5]);
    assert_eq!(get(&bench, ObjectId::of_partition(OTHER), 0x3000_0001, 0x81), (4 * BLOCK).to_be_bytes());
}

#[test]
fn source_floor_applies_to_unsecured_copy() {
    let config = OsdConfig { insecure_nosec: true, ..OsdConfig::default() };
    let bench = Bench::with(config, Arc::new(MemoryStore::new(64 << 20)));
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    let copy = |to| {
        let segment = Segment { copy_source: Some(source(false)), ..Segment::default() };
        let command = Command::CopyUserObjects(copy_to(user(to)));
        let mut capability = bench.capability(&command, SecurityMethod::NoSec);
        capability.permissions = capability.permissions | Permissions::READ;
        let segment = segment.encode(0x8893).unwrap();
        let ready = bench.ready_scattered(command, &ListPair::default(), &[], &capability, segment);
        bench.verify(&ready, &bench.send(&ready)).unwrap()
    };
    copy(COPY).good();
    let set = Command::SetAttributes(Target { object: user(OID) });
    bench.run(set, ListPair::set(&[(0xF001, 1, &[2])]), &[]).good();
    assert_eq!(copy(COPY + 1).sense(), (5, 0x2400));
}

#[test]
fn copy_requires_read_permission_on_source() {
    let bench = bench();
    let before = bench.state_hash();
    let refused = |extensions: &[Capability]| {
        let answer = copy_with(&bench, copy_to(user(COPY)), source(true), extensions);
        assert_eq!(answer.sense(), (5, 0x2400));
        assert_eq!(bench.state_hash(), before);
    };
    let sound = reading();
    let descriptor = |allowed, range, scope| Descriptor::User { scope, allowed, range };
    refused(&[]);
    refused(&[sound, sound]);
    refused(&[Capability { permissions: Permissions::READ, ..sound }]);
    refused(&[Capability { permissions: Permissions::GET_ATTR, ..sound }]);
    refused(&[Capability { expires_ms: crate::support::START_MS - 1, ..sound }]);
    refused(&[Capability { method: SecurityMethod::CapKey, ..sound }]);
    refused(&[Capability { method: SecurityMethod::NoSec, ..sound }]);
    refused(&[Capability { object_created_ms: 5, ..sound }]);
    refused(&[Capability { descriptor: descriptor(user(OID + 1), Range::ALL, Scope::default()), ..sound }]);
    let part = Range { start: 0, length: 100 };
    refused(&[Capability { descriptor: descriptor(user(OID), part, Scope::default()), ..sound }]);
    for scope in
        [Scope { policy_access_tag: 9, ..Scope::default() }, Scope { boot_epoch: 7, ..Scope::default() }]
    {
        refused(&[Capability { descriptor: descriptor(user(OID), Range::ALL, scope), ..sound }]);
    }
    let answer = copy_with(
        &bench,
        copy_to(user(COPY)),
        source(false),
        &[Capability { permissions: Permissions::READ, ..sound }],
    );
    answer.good();
}

/// A capability without its key, or a proof for another command, authenticates nothing.
#[test]
fn extension_proof_is_bound_to_command_and_key() {
    let bench = bench();
    let command = Command::CopyUserObjects(copy_to(user(COPY)));
    let capability = bench.capability(&command, SecurityMethod::AllData);
    let segment = |proof| Segment {
        copy_source: Some(source(false)),
        extensions: vec![reading().encode()],
        proofs: vec![proof],
        ..Segment::default()
    };
    let proof_of = |ready: &crate::support::Ready, at: usize| -> [u8; 32] {
        ready.data_out[at - 32..at].try_into().unwrap()
    };
    let sealed = segment(SIGN_HERE).encode(0x8893).unwrap();
    let ready = bench.ready_scattered(command, &ListPair::default(), &[], &capability, sealed.clone());
    let proof = proof_of(&ready, sealed.len());
    assert_ne!(proof, SIGN_HERE);
    for stale in [[0; 32], proof] {
        // The bearer of the first capability signed it again, without the extension's key.
        let wire = segment(stale).encode(0x8893).unwrap();
        let forged = bench.ready_scattered(command, &ListPair::default(), &[], &capability, wire);
        let reply = bench.send(&forged);
        let answer = bench.verify(&forged, &reply).unwrap();
        assert_eq!(answer.sense(), (5, 0x2400));
    }
    let reply = bench.send(&ready);
    bench.verify(&ready, &reply).unwrap().good();
}

#[test]
fn invalid_copy_points_to_its_field() {
    let bench = bench();
    let refused = |to: CopyObjects, from: CopySource| {
        let answer = copy(&bench, to, from);
        assert_eq!(answer.sense(), (5, 0x2400));
        answer.sense.unwrap().field.map(|field| field.byte)
    };
    let to = copy_to(user(COPY));
    assert_eq!(refused(CopyObjects { method: 0x81, ..to }, source(false)), Some(14));
    assert_eq!(refused(CopyObjects { immediate: true, ..to }, source(false)), Some(11));
    assert_eq!(refused(to, CopySource { time: 1, ..source(false) }), Some(48));
    assert_eq!(refused(copy_to(user(OID)), source(false)), Some(24), "onto itself");
    assert_eq!(refused(copy_to(user(5)), source(false)), Some(24), "no id for objects");
    copy(&bench, to, source(false)).good();
    assert_eq!(refused(to, source(false)), Some(24), "the id exists");
    bench.run(Command::Remove(Target { object: user(OID) }), ListPair::default(), &[]).good();
    assert_eq!(refused(copy_to(user(COPY + 1)), source(false)), Some(48), "nothing to copy");
}

#[test]
fn quotas_of_the_destination_bind_copies() {
    let bench = bench();
    let quota = |page, number, value: u64| {
        let set = Command::SetAttributes(Target { object: ObjectId::of_partition(PID) });
        bench.run(set, ListPair::set(&[(page, number, &value.to_be_bytes())]), &[]).good();
    };
    let before = get(&bench, ObjectId::of_partition(PID), 0x3000_0001, 0x81);
    quota(0x3000_0002, 0x10001, 7 * BLOCK);
    assert_eq!(copy(&bench, copy_to(user(COPY)), source(false)).sense(), (7, 0x5507), "capacity");
    quota(0x3000_0002, 0x10001, u64::MAX);
    quota(0x3000_0002, 1, 100);
    assert_eq!(copy(&bench, copy_to(user(COPY)), source(false)).sense(), (7, 0x5507), "length");
    quota(0x3000_0002, 1, u64::MAX);
    quota(0x3000_0002, 0x10002, 1);
    assert_eq!(copy(&bench, copy_to(user(COPY)), source(false)).sense(), (7, 0x5507), "count");
    assert_eq!(get(&bench, ObjectId::of_partition(PID), 0x3000_0001, 0x81), before);
    assert!(bench.store.stat(user(COPY)).is_err(), "a failed copy leaves nothing");
}
