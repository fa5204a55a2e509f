//! Commands without authority are refused with the right sense data, an audit record, and no change
//! (docs/design/security.md 8.4, 8.5).

#[path = "authority/clock.rs"]
mod clock;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Bench, ListPair, NEXUS, PID, START_MS, user, value};
use proptest::prelude::*;
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::*;
use sealstone_osd::table::SERVICE_ACTIONS;
use sealstone_osd::{Capability, Command, Descriptor, Generation, ObjectId, Permissions, SecurityMethod};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_scsi::lu::{ChannelToken, InitiatorPort, LogicalUnit as _, NexusId};
use sealstone_scsi::spc::vpd;
use sealstone_seal::signer::ReplyError;
use sealstone_store::MemoryStore;

const OID: u64 = 0x10000;
const CID: u64 = 0x20000;

fn bench() -> Bench {
    bench_with(OsdConfig::default())
}

fn bench_with(config: OsdConfig) -> Bench {
    let bench = Bench::with(config, Arc::new(MemoryStore::new(64 << 20)));
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    bench.run(write(), ListPair::default(), b"data").good();
    bench.run(Command::CreateCollection(Target { object: user(CID) }), ListPair::default(), &[]).good();
    bench
}

fn extent(object: ObjectId) -> Extent {
    Extent { object, start: 0, length: 4 }
}

fn write() -> Command {
    Command::Write(extent(user(OID)))
}

fn read() -> Command {
    Command::Read(extent(user(OID)))
}

/// One command of every implemented action.
fn implemented() -> Vec<(Command, &'static [u8])> {
    let container = |object| FlushContainer { object, scope: ContainerScope::Everything };
    let partition = ObjectId::of_partition(PID);
    [
        (Command::FormatOsd(FormatOsd { capacity: 0 }), &b""[..]),
        (Command::Create(Create { object: user(0), count: 1 }), b""),
        (
            Command::List(List {
                object: partition,
                list_id: 0,
                allocation: 64,
                initial: 0,
                with_attributes: false,
            }),
            b"",
        ),
        (Command::Punch(extent(user(OID))), b""),
        (read(), b""),
        (write(), b"DATA"),
        (Command::Append(Append { object: user(OID), length: 4 }), b"DATA"),
        (
            Command::Flush(Flush { object: user(OID), scope: FlushScope::Everything, start: 0, length: 0 }),
            b"",
        ),
        (Command::Clear(extent(user(OID))), b""),
        (Command::Remove(Target { object: user(OID) }), b""),
        (Command::CreatePartition(CreatePartition { partition: 0 }), b""),
        (Command::RemovePartition(RemovePartition { partition: PID, with_contents: true }), b""),
        (Command::GetAttributes(Target { object: user(OID) }), b""),
        (Command::SetAttributes(Target { object: user(OID) }), b""),
        (Command::CreateAndWrite(extent(user(0))), b"DATA"),
        (Command::FlushPartition(container(partition)), b""),
        (Command::FlushOsd(container(ObjectId::ROOT)), b""),
        (Command::ObjectStructureCheck(Target { object: partition }), b""),
        (Command::CreateSnapshot(duplicate(0, PID)), b""),
        (Command::CreateClone(duplicate(0, PID)), b""),
        (Command::DetachClone(duplicate(PID, 0)), b""),
        (Command::RefreshSnapshotOrClone(duplicate(PID, 0)), b""),
        (Command::RestorePartition(duplicate(PID, PID)), b""),
        (Command::ReadMap(map()), b""),
        (Command::ReadMapsAndCompare(map()), b""),
        (
            Command::PerformScsi(PerformScsi {
                object: ObjectId::ROOT,
                cdb: [0x12, 0, 0, 0, 96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            }),
            b"",
        ),
        (
            Command::PerformTask(PerformTask {
                object: ObjectId::ROOT,
                allocation: 8,
                function: 0x81,
                tag: 0,
            }),
            b"",
        ),
        (set_key(PID, KeyToSet::Working(2)), b""),
        (set_key(PID, KeyToSet::Partition), b""),
        (set_key(0, KeyToSet::Root), b""),
        (
            Command::SetMasterKey(SetMasterKey {
                step: DhStep::SeedExchange,
                group: 0xF1,
                identifier: [1; 7],
                parameter_length: 32,
                allocation: 36,
            }),
            &[9; 32],
        ),
    ]
    .into_iter()
    .chain(on_collections().map(|command| (command, &b""[..])))
    .collect()
}

/// Commands on collections, except QUERY, which needs a continuation segment: see `query.rs`.
fn on_collections() -> impl Iterator<Item = Command> {
    let members = Members { object: user(CID), immediate: false };
    let list = List {
        object: ObjectId::of_partition(PID),
        list_id: 0,
        allocation: 64,
        initial: 0,
        with_attributes: false,
    };
    [
        Command::CreateCollection(Target { object: user(0) }),
        Command::CreateTrackingCollection(CreateTracking { object: user(0), source: 0, immediate: false }),
        Command::ListCollection(list),
        Command::FlushCollection(FlushContainer { object: user(CID), scope: ContainerScope::Everything }),
        Command::GetMemberAttributes(members),
        Command::SetMemberAttributes(members),
        Command::RemoveMemberObjects(members),
        Command::RemoveCollection(RemoveCollection { object: user(CID), force: false }),
    ]
    .into_iter()
}

fn duplicate(partition: u64, source: u64) -> Duplicate {
    Duplicate { partition, source, method: 0 }
}

fn map() -> ReadMap {
    ReadMap { object: user(OID), allocation: 64, start: 0, kind: 0 }
}

fn set_key(partition: u64, key: KeyToSet) -> Command {
    Command::SetKey(SetKey { partition, key, identifier: [1; 7], seed: [1; 20] })
}

fn refused(answer: &crate::support::Answer, code: u16) {
    assert_eq!(answer.status, Status::CheckCondition);
    assert_eq!(answer.sense(), (5, code));
}

/// Order of checks: nonce before data, data before permissions.
#[test]
fn authentication_is_checked_before_permission() {
    let bench = bench();
    let before = bench.state_hash();
    let command = write();
    let mut capability = bench.capability(&command, SecurityMethod::AllData);
    capability.permissions = Permissions::NONE;
    let sent = |ready: &crate::support::Ready| bench.verify(ready, &bench.send(ready)).unwrap();
    // Only the permission is missing.
    let mut ready = bench.ready(command, &ListPair::default(), b"DATA", &capability);
    let answer = sent(&ready);
    refused(&answer, 0x2400);
    assert_eq!(answer.sense.unwrap().field.unwrap().byte, 129, "the permissions");
    // Repeated: the nonce is checked first.
    refused(&sent(&ready), 0x2406);
    // Permission missing and data changed: the data is checked first.
    ready = bench.ready(command, &ListPair::default(), b"DATA", &capability);
    ready.data_out[0] ^= 1;
    refused(&sent(&ready), 0x260F);
    assert_eq!(bench.state_hash(), before);
}

#[test]
fn every_row_needs_each_of_its_permissions() {
    let bench = bench();
    let before = bench.state_hash();
    for (command, data) in implemented() {
        let full = bench.capability(&command, SecurityMethod::AllData);
        let needed = command.permissions();
        let single = Permissions::NAMES.iter().map(|(bit, _)| *bit).filter(|bit| needed.contains(*bit));
        for without in single.chain([needed]) {
            let capability = Capability { permissions: full.permissions.without(without), ..full };
            let answer = bench.run_with(command, ListPair::default(), data, &capability);
            refused(&answer, 0x2400);
            assert_eq!(answer.sense.unwrap().field.unwrap().byte, 129, "{command:?} without {without}");
            assert_eq!(bench.state_hash(), before);
        }
    }
}

#[test]
fn unimplemented_actions_are_unknown_service_actions() {
    let bench = bench();
    let known = implemented().into_iter().map(|(command, _)| command.action());
    // These need a segment, so they are not among the samples.
    let known: Vec<_> = known
        .chain([Action::Query, Action::CopyUserObjects, Action::Rewrite, Action::ExecuteFunction])
        .collect();
    for row in SERVICE_ACTIONS.iter().filter(|row| !known.contains(&row.action)) {
        for fill in [0x00, 0xFF] {
            let mut cdb = [fill; 236];
            (cdb[0], cdb[7]) = (0x7F, 228);
            cdb[8..10].copy_from_slice(&row.osd2.unwrap().to_be_bytes());
            let reply = bench.raw(NEXUS, &cdb, &[], 0);
            let sense = sealstone_scsi::Sense::parse(&reply.sense).unwrap();
            assert_eq!((sense.code.0, sense.field.unwrap().byte), (0x2400, 8), "{}", row.name);
        }
    }
    assert!(known.len() >= 19);
    let mut cdb = [0; 236];
    (cdb[0], cdb[7], cdb[8], cdb[9]) = (0x7F, 228, 0x88, 0x8D);
    let reply = bench.raw(NEXUS, &cdb, &[], 0);
    assert_eq!(sealstone_scsi::Sense::parse(&reply.sense).unwrap().field.unwrap().byte, 8);
}

#[test]
fn osd1_is_answered_only_if_enabled() {
    for (allow_osd1, status) in [(false, Status::CheckCondition), (true, Status::Good)] {
        let bench = bench_with(OsdConfig { allow_osd1, ..OsdConfig::default() });
        let command = read();
        let capability = Capability {
            generation: Generation::Osd1,
            format: Generation::Osd1,
            icv_algorithm: 0,
            ..bench.capability(&command, SecurityMethod::AllData)
        };
        let ready = bench.ready(command, &ListPair::get(&[(1, 0x82)]), &[], &capability);
        let reply = bench.send(&ready);
        assert_eq!(reply.status, status);
        if allow_osd1 {
            let answer = bench.verify(&ready, &reply).unwrap();
            assert_eq!(answer.data, b"data");
            let list =
                sealstone_osd::attribute::list::Values::parse_retrieved(Generation::Osd1, &answer.attributes);
            assert_eq!(list.unwrap().iter().next().unwrap().1, 4u64.to_be_bytes());
        }
    }
}

#[test]
fn each_bit_of_a_capability_is_covered() {
    let bench = bench();
    let before = bench.state_hash();
    let capability = bench.capability(&write(), SecurityMethod::CmdRsp);
    let ready = bench.ready(write(), &ListPair::default(), b"DATA", &capability);
    for bit in 0..832 {
        let mut cdb = ready.cdb.clone();
        cdb[80 + bit / 8] ^= 1 << (bit % 8);
        let reply = bench.raw(NEXUS, &cdb, &ready.data_out, 0);
        let sense = sealstone_scsi::Sense::parse(&reply.sense).unwrap();
        assert_eq!((reply.status, sense.code.0), (Status::CheckCondition, 0x2400), "bit {bit}");
        assert_eq!((sense.field, sense.osd, sense.response_icv), (None, None, None), "bit {bit}");
    }
    assert_eq!(bench.state_hash(), before);
    // All of these failures look the same.
    let mut seen = std::collections::BTreeSet::new();
    for bit in [0, 8, 16, 17, 400, 831] {
        let mut cdb = ready.cdb.clone();
        cdb[80 + bit / 8] ^= 1 << (bit % 8);
        seen.insert(bench.raw(NEXUS, &cdb, &ready.data_out, 0).sense);
    }
    assert_eq!(seen.len(), 1);
    bench.verify(&ready, &bench.send(&ready)).unwrap().good();
}

#[test]
fn constant_check_values_are_refused() {
    let bench = bench();
    let capability = bench.capability(&write(), SecurityMethod::CmdRsp);
    for fill in [0x00, 0xFF] {
        let mut ready = bench.ready(write(), &ListPair::default(), b"DATA", &capability);
        ready.cdb[184..216].fill(fill);
        assert_eq!(bench.send(&ready).status, Status::CheckCondition);
    }
}

#[test]
fn each_byte_of_the_cdb_is_covered() {
    let bench = bench();
    let before = bench.state_hash();
    let capability = bench.capability(&write(), SecurityMethod::CmdRsp);
    let ready = bench.ready(write(), &ListPair::default(), b"DATA", &capability);
    for byte in 0..236 {
        let mut cdb = ready.cdb.clone();
        cdb[byte] ^= 0x40;
        let reply = bench.raw(NEXUS, &cdb, &ready.data_out, 0);
        assert_eq!(reply.status, Status::CheckCondition, "byte {byte}");
    }
    assert_eq!(bench.state_hash(), before);
}

#[test]
fn replay_is_refused_on_every_nexus() {
    let bench = bench();
    let append = Command::Append(Append { object: user(OID), length: 4 });
    let capability = bench.capability(&append, SecurityMethod::AllData);
    let ready = bench.ready(append, &ListPair::default(), b"more", &capability);
    bench.verify(&ready, &bench.send(&ready)).unwrap().good();
    let before = bench.state_hash();
    bench.login(NexusId(2));
    for nexus in [NEXUS, NexusId(2)] {
        let reply = bench.raw(nexus, &ready.cdb, &ready.data_out, 0);
        refused(&bench.verify(&ready, &reply).unwrap(), 0x2406);
    }
    assert_eq!(bench.state_hash(), before);
}

#[test]
fn recreated_partition_refuses_old_commands() {
    let bench = bench();
    let append = Command::Append(Append { object: user(OID), length: 4 });
    let capability = bench.capability(&append, SecurityMethod::AllData);
    let ready = bench.ready(append, &ListPair::default(), b"more", &capability);
    bench.verify(&ready, &bench.send(&ready)).unwrap().good();
    let remove = RemovePartition { partition: PID, with_contents: true };
    bench.run(Command::RemovePartition(remove), ListPair::default(), &[]).good();
    assert_eq!(bench.send(&ready).status, Status::CheckCondition);
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    assert_eq!(bench.send(&ready).sense[1..4], [5, 0x24, 0], "its key was removed");
    assert_eq!(bench.store.stat(user(OID)).unwrap().length, 0);
}

#[test]
fn identical_requests_on_threads_succeed_once() {
    let bench = bench();
    let append = Command::Append(Append { object: user(OID), length: 1 });
    let capability = bench.capability(&append, SecurityMethod::AllData);
    let ready = bench.ready(append, &ListPair::default(), b"x", &capability);
    let wins: usize = std::thread::scope(|scope| {
        let run = || scope.spawn(|| usize::from(bench.send(&ready).status == Status::Good));
        let threads: Vec<_> = (0..64).map(|_| run()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
    assert_eq!(bench.store.stat(user(OID)).unwrap().length, 5);
}

#[test]
fn attributes_narrow_the_window_and_freeze_keys() {
    let bench = bench();
    let partition = Target { object: ObjectId::of_partition(PID) };
    let set = |number: u32, value: &[u8]| {
        bench.run(Command::SetAttributes(partition), ListPair::set(&[(0x3000_0005, number, value)]), &[])
    };
    let capability = bench.capability(&read(), SecurityMethod::AllData);
    let late = |ms: u64| {
        let ready = bench.ready(read(), &ListPair::default(), &[], &capability);
        bench.fake.ms.fetch_add(ms, Ordering::SeqCst);
        bench.verify(&ready, &bench.send(&ready)).unwrap()
    };
    refused(&set(2, &[0, 0, 0, 1, 0, 0]), 0x2600);
    late(2000).good();
    set(2, &[0, 0, 0, 0, 0x03, 0xE8]).good();
    late(1000).good();
    refused(&late(1001), 0x2407);
    set(5, &[0, 1]).good();
    refused(&bench.run(read(), ListPair::default(), &[]), 0x2405);
}

#[test]
fn capability_fields_are_all_enforced() {
    let bench = bench();
    bench.run(Command::Create(Create { object: user(OID + 1), count: 1 }), ListPair::default(), &[]).good();
    let full = bench.capability(&read(), SecurityMethod::AllData);
    let with = |scope: Scope, allowed: ObjectId, range: Range| Capability {
        descriptor: Descriptor::User { scope, allowed, range },
        ..full
    };
    let scope = Scope::default();
    let cases = [
        (Capability { expires_ms: START_MS - 1, ..full }, 84),
        (Capability { object_created_ms: START_MS - 1, ..full }, 122),
        (with(scope, user(OID + 1), Range::ALL), 160),
        (with(scope, ObjectId::new(PID + 1, OID), Range::ALL), 152),
        (with(Scope { policy_access_tag: 5, ..scope }, user(OID), Range::ALL), 140),
        (with(Scope { boot_epoch: 2, ..scope }, user(OID), Range::ALL), 144),
        (with(scope, user(OID), Range { start: 1, length: 10 }), 168),
        (with(Scope { attributes_access: 3, ..scope }, user(OID), Range::ALL), 136),
    ];
    for (capability, field) in cases {
        let answer = bench.run_with(read(), ListPair::get(&[(1, 1)]), &[], &capability);
        refused(&answer, 0x2400);
        assert_eq!(answer.sense.unwrap().field.unwrap().byte, field);
    }
    let right = Capability {
        object_created_ms: START_MS,
        ..with(Scope { boot_epoch: 1, ..scope }, user(OID), Range { start: 0, length: 4 })
    };
    assert_eq!(bench.run_with(read(), ListPair::default(), &[], &right).good().data, b"data");
}

#[test]
fn recreated_object_refuses_old_capability() {
    let bench = bench();
    let old =
        Capability { object_created_ms: START_MS, ..bench.capability(&read(), SecurityMethod::AllData) };
    bench.run_with(read(), ListPair::default(), &[], &old).good();
    bench.run(Command::Remove(Target { object: user(OID) }), ListPair::default(), &[]).good();
    // The clock did not move.
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    refused(&bench.run_with(read(), ListPair::default(), &[], &old), 0x2400);
}

#[test]
fn changing_the_tag_revokes_at_once() {
    let bench = bench();
    let tag = |value: u8| {
        let set = Command::SetAttributes(Target { object: user(OID) });
        bench.run(set, ListPair::set(&[(5, 0x4000_0001, &[0, 0, 0, value])]), &[]).good();
    };
    tag(7);
    let scope = Scope { policy_access_tag: 7, ..Scope::default() };
    let descriptor = Descriptor::User { scope, allowed: user(OID), range: Range::ALL };
    let capability = Capability { descriptor, ..bench.capability(&read(), SecurityMethod::AllData) };
    bench.run_with(read(), ListPair::default(), &[], &capability).good();
    tag(8);
    refused(&bench.run_with(read(), ListPair::default(), &[], &capability), 0x2400);
}

/// Its tag cannot be compared with that of a removed object: no command runs with it, and a later
/// object with the same id does not match it.
#[test]
fn credential_of_removed_object_does_nothing() {
    let bench = bench();
    bench.run(Command::Remove(Target { object: user(OID) }), ListPair::default(), &[]).good();
    let before = bench.state_hash();
    let mut tried = 0;
    for (command, data) in implemented().into_iter().filter(|(command, _)| command.object() == user(OID)) {
        let full = bench.capability(&command, SecurityMethod::AllData);
        let Descriptor::User { scope, allowed, range } = full.descriptor else { continue };
        let scope = Scope { policy_access_tag: 5, ..scope };
        let old = Capability { descriptor: Descriptor::User { scope, allowed, range }, ..full };
        for old in [old, Capability { object_created_ms: START_MS - 1, ..full }] {
            let answer = bench.run_with(command, ListPair::default(), data, &old);
            assert!(answer.sense.is_some(), "{command:?}");
            assert_eq!(bench.state_hash(), before, "{command:?}");
            tried += 1;
        }
    }
    assert!(tried > 10, "{tried}");
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    let old =
        Capability { object_created_ms: START_MS - 1, ..bench.capability(&read(), SecurityMethod::AllData) };
    refused(&bench.run_with(read(), ListPair::default(), &[], &old), 0x2400);
}

#[test]
fn another_devices_credential_is_worth_nothing() {
    let bench = bench();
    let capability = bench.capability(&read(), SecurityMethod::AllData);
    let other = Bench::with_partition();
    *other.keys.lock() = {
        let initial = sealstone_seal::InitialKey::new(&crate::support::MASTER).unwrap();
        let mut keys = sealstone_seal::KeyHierarchy::factory(sealstone_seal::Hash::Sha256, &initial, [9; 20]);
        keys.add_partition(PID).unwrap();
        keys
    };
    let ready = other.ready(read(), &ListPair::default(), &[], &capability);
    assert!(matches!(bench.verify(&ready, &bench.send(&ready)), Err(ReplyError::Unsealed(2))));
}

#[test]
fn no_weaker_method_than_the_floor_gets_through() {
    let bench = bench();
    let before = bench.state_hash();
    for method in [SecurityMethod::NoSec, SecurityMethod::CapKey] {
        for (command, data) in implemented() {
            let capability = bench.capability(&command, method);
            let answer = bench.run_with(command, ListPair::default(), data, &capability);
            refused(&answer, 0x2400);
        }
    }
    assert_eq!(bench.state_hash(), before);
    // Floors are raised at once, and never lowered.
    let partition = Target { object: ObjectId::of_partition(PID) };
    let set = |value: u8| {
        let lists = ListPair::set(&[(0x3000_0005, 1, &[value])]);
        bench.run(Command::SetAttributes(partition), lists, &[])
    };
    set(3).good();
    let weak = bench.capability(&read(), SecurityMethod::CmdRsp);
    refused(&bench.run_with(read(), ListPair::default(), &[], &weak), 0x2400);
    for value in [0, 1, 2] {
        refused(&set(value), 0x2600);
    }
}

#[test]
fn capkey_is_bound_to_nexus_token() {
    let capkey = Some(SecurityMethod::CapKey);
    for (method_floor, insecure_capkey, secure_channel, status) in [
        (None, true, false, Status::Good),
        (None, false, false, Status::CheckCondition),
        (None, false, true, Status::CheckCondition),
        (None, true, true, Status::Good),
        (capkey, false, false, Status::CheckCondition),
        (capkey, false, true, Status::Good),
    ] {
        let bench = bench_with(OsdConfig { method_floor, insecure_capkey, ..OsdConfig::default() });
        let nexus = NexusId(5);
        bench.unit.nexus_established(
            nexus,
            &InitiatorPort {
                channel: secure_channel.then_some(ChannelToken([0x5A; 32])),
                ..InitiatorPort::new("iqn.test:other")
            },
        );
        let token = || {
            let page = bench.raw(nexus, &[0x12, 1, 0xB1, 0, 255, 0], &[], 255).data_in;
            assert_eq!((page[1], page.len()), (0xB1, 4 + 32));
            sealstone_seal::SecurityToken(page[4..].try_into().unwrap())
        };
        bench.raw(nexus, &[0; 6], &[], 0);
        let capability = bench.capability(&read(), SecurityMethod::CapKey);
        let first = token();
        assert_eq!(first.0 == [0x5A; 32], secure_channel, "inside TLS it is the channel's");
        let ready = bench.ready_with_token(read(), &ListPair::default(), &[], &capability, &first);
        let reply = bench.raw(nexus, &ready.cdb, &[], 4);
        assert_eq!(reply.status, status, "{method_floor:?} {insecure_capkey} {secure_channel}");
        // Another nexus has another token, and a reset creates a new one outside of TLS.
        assert_eq!(bench.raw(NEXUS, &ready.cdb, &[], 4).status, Status::CheckCondition);
        bench.unit.reset();
        assert_eq!(token() == first, secure_channel);
        bench.raw(nexus, &[0; 6], &[], 0);
        let after = if secure_channel { status } else { Status::CheckCondition };
        assert_eq!(bench.raw(nexus, &ready.cdb, &[], 4).status, after);
    }
}

#[test]
fn flipped_data_bit_is_refused_before_writing() {
    let bench = bench();
    let before = bench.state_hash();
    let capability = bench.capability(&write(), SecurityMethod::AllData);
    let lists = ListPair {
        get: vec![sealstone_osd::AttributeId::new(1, 1)],
        allocation: 64,
        ..ListPair::set(&[(0x1_0000, 1, b"v")])
    };
    let length = bench.ready(write(), &lists, b"DATA", &capability).data_out.len();
    for byte in 0..length {
        let mut ready = bench.ready(write(), &lists, b"DATA", &capability);
        if (4..8).contains(&byte) {
            continue; // padding between the parts
        }
        ready.data_out[byte] ^= 0x10;
        let answer = bench.verify(&ready, &bench.send(&ready)).unwrap();
        assert_eq!(answer.sense(), (5, 0x260F), "byte {byte}");
        assert_eq!(bench.state_hash(), before);
    }
}

#[test]
fn attribute_without_permission_stops_command() {
    let bench = bench();
    let before = bench.state_hash();
    let mut capability = bench.capability(&write(), SecurityMethod::AllData);
    capability.permissions = Permissions::WRITE;
    for lists in [ListPair::get(&[(1, 1)]), ListPair::set(&[(0x1_0000, 1, b"v")])] {
        let answer = bench.run_with(write(), lists, b"DATA", &capability);
        refused(&answer, 0x2400);
        assert_eq!(answer.sense.unwrap().field.unwrap().byte, 129);
        assert_eq!(bench.state_hash(), before);
    }
}

#[test]
fn refusals_and_changes_leave_records_and_counts() {
    let bench = bench_with(OsdConfig::default());
    bench.log.0.lock().clear();
    let mut capability = bench.capability(&write(), SecurityMethod::AllData);
    bench.run(write(), ListPair::default(), b"DATA").good();
    bench.run(read(), ListPair::default(), &[]).good();
    capability.permissions = Permissions::READ;
    bench.run_with(write(), ListPair::default(), b"DATA", &capability);
    let log = bench.log.0.lock().clone();
    assert_eq!(log.len(), 2, "{log:?}");
    let principal = "61756469746f722d6f662d7468652d7465737473";
    assert_eq!(log[0], format!("{principal} iqn.test:client WRITE 0x10000/0x10000 done None None"));
    assert!(
        log[1].contains("WRITE 0x10000/0x10000 refused Some(\"permission\") Some((5, 36, 0))"),
        "{}",
        log[1]
    );
    let metrics = bench.unit.metrics();
    let counts: std::collections::BTreeMap<_, _> = metrics.commands().collect();
    assert_eq!((counts["WRITE"].received, counts["WRITE"].refused, counts["READ"].bytes_in), (3, 1, 72));
    assert_eq!(metrics.denials()["permission"], 1);

    let audited = bench_with(OsdConfig { audit_reads: true, ..OsdConfig::default() });
    audited.log.0.lock().clear();
    audited.run(read(), ListPair::default(), &[]).good();
    assert_eq!(audited.log.0.lock().len(), 1);
}

#[test]
fn permitted_read_past_the_end_leaves_no_record() {
    let bench = bench();
    bench.log.0.lock().clear();
    let beyond = Command::Read(Extent { object: user(OID), start: 5, length: 4 });
    refused(&bench.run(beyond, ListPair::default(), &[]), 0x2400);
    bench.run(Command::Read(Extent { start: 2, ..extent(user(OID)) }), ListPair::default(), &[]);
    assert_eq!(*bench.log.0.lock(), [""; 0]);
    // Without read permission it is a refusal.
    let mut capability = bench.capability(&beyond, SecurityMethod::AllData);
    capability.permissions = Permissions::WRITE;
    bench.run_with(beyond, ListPair::default(), &[], &capability);
    assert_eq!(bench.log.0.lock().len(), 1);
}

#[test]
fn inquiry_and_readiness_identify_device() {
    let bench = bench();
    let inquiry = bench.raw(NEXUS, &[0x12, 0, 0, 0, 96, 0], &[], 96).data_in;
    assert_eq!((inquiry[0], &inquiry[8..16]), (0x11, &b"SEALSTON"[..]));
    let identification = bench.raw(NEXUS, &[0x12, 1, 0x83, 0, 255, 0], &[], 255).data_in;
    assert_eq!(identification[4..24], crate::support::SYSTEM_ID, "OSD SYSTEM ID, then what SPC-4 demands");
    let kinds: Vec<u8> = vpd::designations(&identification[4..]).map(|(_, kind, _)| kind).collect();
    assert_eq!(kinds, [0, 3, 1]);
    bench.unit.set_target_name("iqn.2026-11.org.sealstone:osd.test");
    let identification = bench.raw(NEXUS, &[0x12, 1, 0x83, 0, 255, 0], &[], 255).data_in;
    let names: Vec<_> = vpd::designations(&identification[4..]).skip(3).map(|found| found.1).collect();
    assert_eq!(names, [4, 8, 8], "target port, its name, the target");
    assert_eq!(bench.raw(NEXUS, &[0x12, 1, 0x99, 0, 255, 0], &[], 255).status, Status::CheckCondition);
    assert_eq!(bench.raw(NEXUS, &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[], 16).data_in.len(), 16);
    assert_eq!(bench.raw(NEXUS, &[0; 6], &[], 0).status, Status::Good);
    let unknown = bench.raw(NEXUS, &[0x28; 10], &[], 512);
    assert_eq!(sealstone_scsi::Sense::parse(&unknown.sense).unwrap().code.0, 0x2000);

    // A nexus gets POWER ON first, but INQUIRY does not report it.
    bench.unit.nexus_established(NexusId(9), &InitiatorPort::new("iqn.test:other"));
    assert_eq!(bench.raw(NexusId(9), &[0x12, 0, 0, 0, 96, 0], &[], 96).status, Status::Good);
    let sense = bench.raw(NexusId(9), &[3, 1, 0, 0, 252, 0], &[], 252).data_in;
    assert_eq!(sense[1..4], [6, 0x29, 0]);
    assert_eq!(bench.raw(NexusId(9), &[0; 6], &[], 0).status, Status::Good);
    bench.unit.reset();
    assert_eq!(bench.raw(NexusId(9), &[0; 6], &[], 0).sense[1..4], [6, 0x29, 3]);
}

#[test]
fn response_icv_is_readable_as_attribute() {
    let bench = bench();
    let capability = bench.capability(&read(), SecurityMethod::AllData);
    let ready = bench.ready(read(), &ListPair::get(&[(0xFFFF_FFFE, 1)]), &[], &capability);
    let reply = bench.send(&ready);
    let answer = bench.verify(&ready, &reply).unwrap().good();
    let sense = sealstone_scsi::Sense::parse(&reply.sense).unwrap();
    assert_eq!(value(&answer.attributes), sense.response_icv.unwrap().as_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// No input makes the device panic, and no unauthenticated input changes anything.
    #[test]
    fn arbitrary_bytes_change_nothing(
        mut cdb in proptest::collection::vec(any::<u8>(), 0..260),
        data in proptest::collection::vec(any::<u8>(), 0..300),
        action in 0..SERVICE_ACTIONS.len(),
        shape in any::<bool>(),
        max in 0..5000usize,
    ) {
        let bench = bench();
        let before = bench.state_hash();
        if shape && cdb.len() > 12 {
            (cdb[0], cdb[7]) = (0x7F, 228);
            cdb[8..10].copy_from_slice(&SERVICE_ACTIONS[action].osd2.unwrap().to_be_bytes());
            cdb.resize(236, 0);
        }
        let reply = bench.raw(NEXUS, &cdb, &data, max);
        prop_assert!(reply.data_in.len() <= max);
        prop_assert_eq!(bench.state_hash(), before);
        let _ = bench.unit.cost(NEXUS, &cdb);
    }

    /// The same where NOSEC passes everything to the handlers.
    #[test]
    fn arbitrary_commands_without_security_do_not_panic(
        mut cdb in proptest::collection::vec(any::<u8>(), 236),
        data in proptest::collection::vec(any::<u8>(), 0..300),
        small in any::<[bool; 4]>(),
        action in 0..SERVICE_ACTIONS.len(),
        max in 0..5000usize,
    ) {
        let bench = Bench::with(
            OsdConfig { insecure_nosec: true, allow_osd1: true, ..OsdConfig::default() },
            Arc::new(MemoryStore::new(1 << 20)),
        );
        bench.create_partition(PID);
        bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
        let osd1 = SERVICE_ACTIONS[action].osd1.filter(|_| small[3]);
        (cdb[0], cdb[7]) = (0x7F, 228);
        cdb[8..10].copy_from_slice(&osd1.or(SERVICE_ACTIONS[action].osd2).unwrap().to_be_bytes());
        (cdb[10], cdb[11], cdb[12]) = (0, cdb[11] & 1 | if small[0] { 0x20 } else { 0x30 }, 0);
        cdb[16..24].copy_from_slice(&PID.to_be_bytes());
        cdb[24..32].copy_from_slice(&OID.to_be_bytes());
        if small[1] {
            cdb[32..52].fill(0);
            (cdb[39], cdb[43], cdb[47]) = (data.len() as u8, data.len() as u8, 2);
        }
        if small[2] {
            cdb[52..80].fill(0);
        }
        cdb[80..184].fill(0);
        (cdb[80], cdb[129], cdb[130]) = (1, 0xFF, 0xFC);
        let reply = bench.raw(NEXUS, &cdb, &data, max);
        prop_assert!(reply.data_in.len() <= max);
        prop_assert!(reply.sense.len() <= 252);
    }
}
