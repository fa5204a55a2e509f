//! OSD-1 end to end: 200-byte CDBs, 80-byte capabilities, 20-byte check values, its own attribute
//! lists.

use std::sync::Arc;

use crate::plain::{Plain, triple, values};
use crate::support::{Answer, Bench, ListPair, NEXUS, PID, user};
use sealstone_osd::attribute::list::ObjectValuesOsd1;
use sealstone_osd::capability::{Range, Scope, offset};
use sealstone_osd::cdb::*;
use sealstone_osd::listing::Listing;
use sealstone_osd::table::SERVICE_ACTIONS;
use sealstone_osd::{
    AttributeId, Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod,
};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_seal::SecurityToken;
use sealstone_seal::algorithm::{SLOT_HMAC_SHA1, SLOT_UNITS_SHA1};
use sealstone_store::MemoryStore;

const OID: u64 = 0x10000;
const METHODS: [SecurityMethod; 2] = [SecurityMethod::CmdRsp, SecurityMethod::AllData];

fn bench(config: OsdConfig) -> Bench {
    let config = OsdConfig { allow_osd1: true, ..config };
    let bench = Bench::with(config, Arc::new(MemoryStore::new(64 << 20)));
    bench.create_partition(PID);
    bench
}

/// Returns the required capability in the layout of OSD-1: one descriptor for user objects and
/// collections, no range.
fn capability(bench: &Bench, command: &Command, method: SecurityMethod) -> Capability {
    let osd2 = bench.capability(command, method);
    let object = command.object();
    let scope = Scope::default();
    Capability {
        generation: Generation::Osd1,
        format: Generation::Osd1,
        icv_algorithm: 0,
        descriptor: match osd2.object_type {
            ObjectType::User | ObjectType::Collection => {
                Descriptor::User { scope, allowed: object, range: Range::ALL }
            }
            _ => osd2.descriptor,
        },
        ..osd2
    }
}

#[track_caller]
fn run(bench: &Bench, command: Command, method: SecurityMethod, lists: ListPair, data: &[u8]) -> Answer {
    bench.run_with(command, lists, data, &capability(bench, &command, method))
}

fn extent(start: u64, length: u64) -> Extent {
    Extent { object: user(OID), start, length }
}

fn list(object: ObjectId) -> Command {
    Command::List(List { object, list_id: 0, allocation: 4096, initial: 0, with_attributes: false })
}

#[test]
fn osd1_session_works_under_signed_methods() {
    for method in METHODS {
        let bench = bench(OsdConfig::default());
        let run = |command, lists, data: &[u8]| run(&bench, command, method, lists, data);
        let create = Command::Create(Create { object: user(OID), count: 1 });
        run(create, ListPair::set(&[(1, 9, b"name")]), &[]).good();
        let written =
            run(Command::Write(extent(0, 10)), ListPair::get(&[(1, 0x82), (1, 9)]), b"0123456789").good();
        let got = values(Generation::Osd1, &written.attributes);
        assert_eq!(got[0].1, 10u64.to_be_bytes());
        assert_eq!(got[1].1, b"name");
        let appended = Command::Append(Append { object: user(OID), length: 3 });
        let at = run(appended, ListPair::get(&[(0xFFFF_FFFE, 5)]), b"abc").good();
        assert_eq!(values(Generation::Osd1, &at.attributes)[0].1, 10u64.to_be_bytes());
        let read = run(Command::Read(extent(8, 5)), ListPair::get(&[(1, 2)]), &[]).good();
        assert_eq!(read.data, b"89abc");
        assert_eq!(values(Generation::Osd1, &read.attributes)[0].1, OID.to_be_bytes());
        let past = run(Command::Read(extent(10, 10)), ListPair::default(), &[]);
        assert_eq!(past.sense(), (1, 0x3B17));
        assert_eq!(past.sense.unwrap().command_specific, Some(3));
        let both = Command::CreateAndWrite(Extent { object: user(OID + 1), start: 4, length: 4 });
        run(both, ListPair::default(), b"data").good();
        let listed = run(list(ObjectId::of_partition(PID)), ListPair::default(), &[]).good();
        let ids: Vec<u64> = Listing::parse(Generation::Osd1, &listed.data).unwrap().ids().collect();
        assert_eq!(ids, [OID, OID + 1]);
        let partitions = run(list(ObjectId::ROOT), ListPair::default(), &[]).good();
        assert_eq!(
            Listing::parse(Generation::Osd1, &partitions.data).unwrap().ids().collect::<Vec<_>>(),
            [PID]
        );
        let flush = Flush { object: user(OID), scope: FlushScope::Everything, start: 0, length: 0 };
        run(Command::Flush(flush), ListPair::default(), &[]).good();
        let container = |object| FlushContainer { object, scope: ContainerScope::Everything };
        run(Command::FlushPartition(container(ObjectId::of_partition(PID))), ListPair::default(), &[]).good();
        run(Command::FlushOsd(container(ObjectId::ROOT)), ListPair::default(), &[]).good();
        let target = |object| Target { object };
        run(Command::SetAttributes(target(user(OID))), ListPair::set(&[(0x1_0000, 7, b"mine")]), &[]).good();
        let page = run(Command::GetAttributes(target(user(OID))), ListPair::page(3), &[]).good();
        assert_eq!(page.attributes[..8], [0, 0, 0, 3, 0, 0, 0, 0x1E]);
        let current = run(Command::GetAttributes(target(user(OID))), ListPair::page(0xFFFF_FFFE), &[]).good();
        assert_eq!(current.attributes.len(), 8 + 0x30);
        assert_eq!(current.attributes[28], 0x80);
        assert_eq!(current.attributes[32..40], PID.to_be_bytes());
        assert_ne!(current.attributes[8..28], [0; 20], "the response integrity check value");
        run(Command::Remove(target(user(OID))), ListPair::default(), &[]).good();
        let ended = run(Command::Read(extent(0, 1)), ListPair::default(), &[]);
        assert_eq!((ended.status, ended.sense()), (Status::CheckCondition, (5, 0x2400)));
        // Root level.
        let made = Command::CreatePartition(CreatePartition { partition: PID + 1 });
        run(made, ListPair::default(), &[]).good();
        let removed = Command::RemovePartition(RemovePartition { partition: PID + 1, with_contents: false });
        run(removed, ListPair::default(), &[]).good();
        let kept = RemovePartition { partition: PID, with_contents: false };
        assert_eq!(run(Command::RemovePartition(kept), ListPair::default(), &[]).sense(), (5, 0x2C0A));
        let format = Command::FormatOsd(FormatOsd { capacity: 0 });
        run(format, ListPair::set(&[(0x9000_0001, 9, b"renamed")]), &[]).good();
        let root = Command::GetAttributes(target(ObjectId::ROOT));
        let name = run(root, ListPair::get(&[(0x9000_0001, 9), (0x9000_0001, 0xC0)]), &[]).good();
        let got = values(Generation::Osd1, &name.attributes);
        assert_eq!((got[0].1.as_slice(), got[1].1.as_slice()), (&b"renamed"[..], &0u64.to_be_bytes()[..]));
    }
}

#[test]
fn capkey_of_osd1_signs_the_token() {
    let bench = bench(OsdConfig { insecure_capkey: true, ..OsdConfig::default() });
    let page = bench.raw(NEXUS, &[0x12, 1, 0xB1, 0, 255, 0], &[], 255).data_in;
    let token = SecurityToken(page[4..36].try_into().unwrap());
    let create = Command::Create(Create { object: user(OID), count: 1 });
    let capability = capability(&bench, &create, SecurityMethod::CapKey);
    for (token, status) in [(token, Status::Good), (SecurityToken([9; 32]), Status::CheckCondition)] {
        let ready = bench.ready_with_token(create, &ListPair::default(), &[], &capability, &token);
        assert_eq!(bench.send(&ready).status, status);
    }
}

#[test]
fn several_objects_return_list_type_f() {
    let bench = bench(OsdConfig::default());
    let create = Command::Create(Create { object: user(0), count: 3 });
    let answer =
        run(&bench, create, SecurityMethod::AllData, ListPair::get(&[(1, 2), (1, 0x77)]), &[]).good();
    assert_eq!(answer.attributes[0] & 0xF, 0xF);
    let seen: Vec<_> = ObjectValuesOsd1::parse(&answer.attributes).unwrap().collect();
    assert_eq!(seen.len(), 6);
    for (at, object) in [OID, OID + 1, OID + 2].into_iter().enumerate() {
        assert_eq!(seen[2 * at], (object, AttributeId::new(1, 2), &object.to_be_bytes()[..]));
        assert_eq!(seen[2 * at + 1], (object, AttributeId::new(1, 0x77), &[][..]), "undefined");
    }
    let lists = ListPair { allocation: 20, ..ListPair::get(&[(1, 2)]) };
    let cut = run(&bench, create, SecurityMethod::AllData, lists, &[]).good().attributes;
    assert_eq!(
        (cut.len(), &cut[2..4]),
        (20, &(3u16 * 26).to_be_bytes()[..]),
        "truncated, with its full length"
    );
}

#[test]
fn osd1_capability_fields_checked_with_pointer() {
    let bench = bench(OsdConfig::default());
    let create = Command::Create(Create { object: user(OID), count: 1 });
    run(&bench, create, SecurityMethod::CmdRsp, ListPair::default(), &[]).good();
    let read = Command::Read(extent(0, 0));
    let good = capability(&bench, &read, SecurityMethod::CmdRsp);
    bench.run_with(read, ListPair::default(), &[], &good).good();
    let descriptor = |scope, object| Descriptor::User { scope, allowed: object, range: Range::ALL };
    let tag = Scope { policy_access_tag: 7, ..Scope::default() };
    let none = Scope::default();
    let cases = [
        (Capability { expires_ms: 1, ..good }, offset::EXPIRATION),
        (Capability { object_created_ms: 1, ..good }, offset::CREATED),
        (Capability { object_type: ObjectType::Collection, ..good }, offset::OBJECT_TYPE),
        (Capability { permissions: Permissions::WRITE, ..good }, offset::PERMISSIONS),
        (Capability { descriptor: Descriptor::None, ..good }, offset::DESCRIPTOR_TYPE),
        (Capability { descriptor: descriptor(tag, user(OID)), ..good }, offset::POLICY_ACCESS_TAG[0]),
        (
            Capability { descriptor: descriptor(none, ObjectId::new(PID + 1, OID)), ..good },
            offset::PARTITION[0],
        ),
        (Capability { descriptor: descriptor(none, user(OID + 1)), ..good }, offset::OBJECT[0]),
    ];
    for (capability, at) in cases {
        let answer = bench.run_with(read, ListPair::default(), &[], &capability);
        assert_eq!(answer.sense(), (5, 0x2400), "{at}");
        assert_eq!(answer.sense.unwrap().field.unwrap().byte, pointer::CAPABILITY + at);
    }
    // A capability that claims the other generation.
    let wrong = Capability { format: Generation::Osd2, ..good };
    let ready = bench.ready(read, &ListPair::default(), &[], &wrong);
    assert_eq!(bench.send(&ready).status, Status::CheckCondition);
    // An algorithm whose values do not fit in 20 bytes cannot be requested.
    let slot_1 = Capability { icv_algorithm: 1, ..good };
    let mut ready = bench.ready(read, &ListPair::default(), &[], &good);
    let at = usize::from(pointer::CAPABILITY);
    ready.cdb[at..at + 80].copy_from_slice(&slot_1.encode());
    assert_eq!(bench.send(&ready).status, Status::CheckCondition);
}

#[test]
fn osd1_check_values_protect_all_parts() {
    for slot in [SLOT_HMAC_SHA1, SLOT_UNITS_SHA1] {
        protects_commands_data_and_replies(slot);
    }
}

fn protects_commands_data_and_replies(slot: u8) {
    let bench = bench(OsdConfig::default());
    let capability = |bench: &Bench, command: &Command, method| Capability {
        icv_algorithm: slot,
        ..capability(bench, command, method)
    };
    let create = Command::Create(Create { object: user(OID), count: 1 });
    run(&bench, create, SecurityMethod::AllData, ListPair::default(), &[]).good();
    let write = Command::Write(extent(0, 8));
    let rights = capability(&bench, &write, SecurityMethod::AllData);
    let before = bench.state_hash();
    let lists = ListPair::set(&[(1, 9, b"x")]);
    for byte in [12, 45, 51, 100, 165, 185] {
        let mut ready = bench.ready(write, &lists, b"8 bytes!", &rights);
        ready.cdb[byte] ^= 1;
        assert_eq!(bench.send(&ready).status, Status::CheckCondition, "CDB byte {byte}");
    }
    let whole = bench.ready(write, &lists, b"8 bytes!", &rights);
    for byte in [0, 7, 256, 265, whole.data_out.len() - 1] {
        let mut ready = bench.ready(write, &lists, b"8 bytes!", &rights);
        ready.data_out[byte] ^= 1;
        let reply = bench.send(&ready);
        assert_eq!(bench.verify(&ready, &reply).unwrap().sense(), (5, 0x260F), "data-out byte {byte}");
    }
    assert_eq!(bench.state_hash(), before);
    let sent = bench.send(&whole);
    bench.verify(&whole, &sent).unwrap().good();
    assert_eq!(bench.send(&whole).status, Status::CheckCondition, "a second time");
    let read = Command::Read(extent(0, 8));
    let rights = capability(&bench, &read, SecurityMethod::AllData);
    let ready = bench.ready(read, &ListPair::get(&[(1, 9)]), &[], &rights);
    let reply = bench.send(&ready);
    for byte in [0, 7, 256, 270] {
        let mut changed = reply.clone();
        let mut data = changed.data_in.to_vec();
        data[byte] ^= 1;
        changed.data_in = data.into();
        assert!(bench.verify(&ready, &changed).is_err(), "data-in byte {byte}");
    }
    bench.verify(&ready, &reply).unwrap().good();
}

#[test]
fn osd2_features_are_refused_in_osd1_cdb() {
    let plain = Plain::with_object(Generation::Osd1);
    // CDBFMT 1.
    let mut wire = plain.cdb(Command::SetAttributes(Target { object: user(OID) })).encode().unwrap().to_vec();
    wire[11] = 0x10;
    let sense = crate::plain::sense(&plain.wire(&wire, &[]));
    assert_eq!((triple(&sense), sense.field.unwrap().byte), ((5, 0x2400), 11));
    // Service actions that have no code in OSD-1.
    for row in SERVICE_ACTIONS.iter().filter(|row| row.osd1.is_none()) {
        let code = row.osd2.unwrap() - 0x80;
        let mut wire = plain.cdb(Command::Read(extent(0, 0))).encode().unwrap().to_vec();
        wire[8..10].copy_from_slice(&code.to_be_bytes());
        let sense = crate::plain::sense(&plain.wire(&wire, &[]));
        assert_eq!((triple(&sense), sense.field.unwrap().byte), ((5, 0x2400), 8), "{}", row.name);
    }
    // Isolation bits and CDB continuation lengths are reserved in OSD-1.
    let mut wire = plain.cdb(Command::Read(extent(0, 0))).encode().unwrap().to_vec();
    wire[10] |= 0x07;
    assert!(plain.wire(&wire, &[]).sense.is_empty());
}

#[test]
fn osd1_disabled_device_refuses_osd1() {
    let bench = Bench::with(
        OsdConfig { insecure_nosec: true, ..OsdConfig::default() },
        Arc::new(MemoryStore::new(1 << 20)),
    );
    let mut cdb = Cdb::new(Generation::Osd1, Command::GetAttributes(Target { object: ObjectId::ROOT }));
    cdb.capability = crate::plain::capability(Generation::Osd1, Permissions::ALL_OSD1).encode();
    let sense = crate::plain::sense(&bench.raw(NEXUS, &cdb.encode().unwrap(), &[], 4096));
    assert_eq!((triple(&sense), sense.field.unwrap().byte), ((5, 0x2400), 8));
}

/// Trap T1: open-osd sends 228 additional bytes in CDBs of 200.
#[test]
fn the_additional_length_of_open_osd_is_understood() {
    let plain = Plain::with_object(Generation::Osd1);
    let mut wire = plain.cdb(Command::Write(extent(0, 3))).encode().unwrap().to_vec();
    assert_eq!((wire.len(), wire[7]), (200, 192));
    wire[7] = 228;
    assert!(plain.wire(&wire, b"abc").sense.is_empty());
    wire[7] = 216;
    assert_eq!(triple(&crate::plain::sense(&plain.wire(&wire, b"abc"))), (5, 0x2000));
    assert_eq!(plain.good(&plain.cdb(Command::Read(extent(0, 3))), &[]).data_in[..], b"abc"[..]);
}

#[test]
fn osd1_lists_are_unaligned_at_256_offsets() {
    let plain = Plain::with_object(Generation::Osd1);
    let names = [AttributeId::new(0x1_0000, 1), AttributeId::new(0x1_0000, 2), AttributeId::new(1, 1)];
    let set = [(names[0], b"odd".to_vec()), (names[1], b"longer value".to_vec())];
    let (cdb, out) = plain.with_lists(Command::Write(extent(0, 5)), b"hello", &set, &names);
    let reply = plain.good(&cdb, &out);
    let bytes = plain.attributes(&cdb, &reply);
    assert_eq!(bytes[..4], [9, 0, 0, 10 + 3 + 10 + 12 + 10 + 8]);
    assert_eq!(bytes.len(), 4 + 53);
    assert_eq!(bytes[4..17], [0, 1, 0, 0, 0, 0, 0, 1, 0, 3, b'o', b'd', b'd']);
    // Truncated anywhere, the list keeps its full length.
    for allocation in [2u32, 4, 13, 14, 56] {
        let mut cdb = cdb;
        let AttributeParameters::List { get: Some(get), .. } = &mut cdb.attributes else { unreachable!() };
        get.retrieved.length = allocation;
        let reply = plain.good(&cdb, &out);
        assert_eq!(plain.attributes(&cdb, &reply), &bytes[..allocation as usize]);
    }
    // An empty value removes; one of FFFFh bytes is not a value.
    let (cdb, mut out) = plain.with_lists(
        Command::SetAttributes(Target { object: user(OID) }),
        &[],
        &[(names[0], vec![])],
        &[],
    );
    plain.good(&cdb, &out);
    assert_eq!(plain.get(user(OID), 0x1_0000, 1), []);
    out[12..14].fill(0xFF);
    assert_eq!(triple(&plain.sense(&cdb, &out)), (5, 0x1A00));
}

/// Collections of OSD-1: one descriptor type for user objects and collections.
#[test]
fn collections_and_keys_of_osd1() {
    for method in METHODS {
        let bench = bench(OsdConfig::default());
        let run = |command, lists, data: &[u8]| run(&bench, command, method, lists, data);
        let cid = 0x2_0000;
        let collection = user(cid);
        run(Command::CreateCollection(Target { object: collection }), ListPair::default(), &[]).good();
        let create = Command::Create(Create { object: user(OID), count: 1 });
        run(create, ListPair::set(&[(4, 1, &cid.to_be_bytes())]), &[]).good();
        let listing = |object| {
            Command::ListCollection(List {
                object,
                list_id: 0,
                allocation: 4096,
                initial: 0,
                with_attributes: false,
            })
        };
        let ids = |object| {
            let answer = run(listing(object), ListPair::default(), &[]).good();
            Listing::parse(Generation::Osd1, &answer.data).unwrap().ids().collect::<Vec<u64>>()
        };
        assert_eq!(ids(collection), [OID]);
        assert_eq!(ids(ObjectId::of_partition(PID)), [cid]);
        let flush = FlushContainer { object: collection, scope: ContainerScope::Everything };
        run(Command::FlushCollection(flush), ListPair::default(), &[]).good();
        let page = run(Command::GetAttributes(Target { object: user(OID) }), ListPair::page(4), &[]).good();
        assert_eq!(page.attributes[4..16], [&[0, 0, 0, 8][..], &cid.to_be_bytes()].concat());
        let remove = |force| Command::RemoveCollection(RemoveCollection { object: collection, force });
        assert_eq!(run(remove(false), ListPair::default(), &[]).sense(), (5, 0x2C0A));
        run(remove(true), ListPair::default(), &[]).good();
        assert_eq!(ids(ObjectId::of_partition(PID)), [0; 0]);
        let key = SetKey { partition: PID, key: KeyToSet::Working(3), identifier: [9; 7], seed: [5; 20] };
        run(Command::SetKey(key), ListPair::default(), &[]).good();
        let identifier = run(
            Command::GetAttributes(Target { object: ObjectId::of_partition(PID) }),
            ListPair::get(&[(0x3000_0005, 0x8003)]),
            &[],
        );
        assert_eq!(values(Generation::Osd1, &identifier.good().attributes)[0].1, [9; 7]);
    }
}
