//! Every standard attribute of every object type: length, access, page format, identification,
//! directory.

use crate::plain::{Plain, create, create_partition, get_attributes, set_attributes, triple, values};
use crate::support::{PID, START_MS, user};
use sealstone_osd::attribute::{Access, PAGES, STANDARD, page};
use sealstone_osd::cdb::{AttributeParameters, List};
use sealstone_osd::{AttributeId, Command, Generation, ObjectId, ObjectType};

const OID: u64 = 0x10000;
const BOTH: [Generation; 2] = [Generation::Osd1, Generation::Osd2];

fn object_of(kind: ObjectType) -> Option<ObjectId> {
    match kind {
        ObjectType::Root => Some(ObjectId::ROOT),
        ObjectType::Partition => Some(ObjectId::of_partition(PID)),
        ObjectType::User => Some(user(OID)),
        ObjectType::Collection => None,
    }
}

/// Returns the object of a standard page, if it is one that the test created.
fn object_with(page: u32) -> Option<ObjectId> {
    match page::owner(page) {
        page::Owner::Object(kind, _) => object_of(kind),
        _ => None,
    }
}

#[test]
fn defined_attributes_match_row_length_and_access() {
    for generation in BOTH {
        let plain = Plain::with_object(generation);
        let mut defined = 0;
        for row in STANDARD {
            let Some(object) = object_with(row.id.page) else { continue };
            let value = plain.get(object, row.id.page, row.id.number);
            assert!(value.is_empty() || row.length.permits(value.len()), "{row:?}: {} bytes", value.len());
            let (cdb, out) = plain.setting(object, row.id.page, row.id.number, &value);
            let reply = plain.send(&cdb, &out);
            if value.is_empty() {
                continue;
            }
            defined += 1;
            match row.access {
                Access::Settable => {
                    assert!(reply.sense.is_empty(), "{row:?}: {:?}", crate::plain::sense(&reply))
                }
                Access::ReadOnly => {
                    let sense = crate::plain::sense(&reply);
                    assert_eq!(triple(&sense), (5, 0x2600), "{row:?}");
                    assert_eq!(sense.attributes, [(row.id.page, row.id.number)]);
                }
            }
        }
        assert!(defined > 60, "{defined}");
    }
}

#[test]
fn page_format_matches_list_format() {
    for generation in BOTH {
        let plain = Plain::with_object(generation);
        for &(number, _) in PAGES {
            let Some(object) = object_with(number).filter(|_| number != 0) else { continue };
            let cdb = plain.with_page(get_attributes(object), number, 4096);
            let reply = plain.good(&cdb, &[]);
            let bytes = plain.attributes(&cdb, &reply);
            assert_eq!(bytes[..4], number.to_be_bytes());
            let Some(layout) = page::layout(generation, number) else {
                assert!(bytes[4..8] == [0; 4] || number == 4, "{number:#x}");
                continue;
            };
            assert_eq!(bytes.len(), 8 + layout.length as usize, "{number:#x}");
            assert_eq!(bytes[4..8], layout.length.to_be_bytes());
            for (attribute, value) in page::parse(generation, number, bytes).unwrap() {
                // Reading this attribute changes it.
                let accessed = number & 0xFFFF == 3 && attribute == 2;
                let listed = plain.get(object, number, attribute);
                assert!(accessed || listed.is_empty() || listed == value, "{number:#x}/{attribute:#x}");
            }
        }
    }
}

#[test]
fn directories_list_standard_page_identifications() {
    let plain = Plain::with_object(Generation::Osd2);
    for kind in [ObjectType::Root, ObjectType::Partition, ObjectType::User] {
        let object = object_of(kind).unwrap();
        let base = page::base(kind);
        let all = AttributeId::new(base, AttributeId::ALL);
        let (cdb, out) = plain.with_lists(get_attributes(object), &[], &[], &[all]);
        let reply = plain.good(&cdb, &out);
        let directory = values(Generation::Osd2, plain.attributes(&cdb, &reply));
        let listed = |page: u32| directory.iter().find(|(id, _)| id.number == page);
        for &(number, name) in PAGES {
            if !matches!(page::owner(number), page::Owner::Object(of, _) if of == kind) || number == base {
                continue;
            }
            let identification = plain.get(object, number, 0);
            if identification.is_empty() {
                assert!(listed(number).is_none(), "{number:#x} is not kept");
                continue;
            }
            assert_eq!(&identification[..8], b"INCITS  ");
            assert!(identification[8..].starts_with(name.as_bytes()), "{number:#x}");
            assert_eq!(listed(number).unwrap().1, identification, "{number:#x}");
        }
        assert_eq!(plain.get(object, base, 0).len(), 40, "the directory names itself");
    }
}

#[test]
fn new_partitions_inherit_root_quotas() {
    let plain = Plain::new(Generation::Osd2);
    let quotas: [(u32, u32, &[u8]); 4] = [
        (1, 1, &77_000u64.to_be_bytes()),
        (0x10001, 0x10001, &88_000_000u64.to_be_bytes()),
        (0x10002, 0x10002, &99u64.to_be_bytes()),
        (0x10081, 0x10081, &5u32.to_be_bytes()),
    ];
    for (root, _, value) in quotas {
        plain.set(ObjectId::ROOT, 0x9000_0002, root, value);
    }
    plain.good(&plain.cdb(create_partition(PID)), &[]);
    for (_, partition, value) in quotas {
        assert_eq!(plain.get(ObjectId::of_partition(PID), 0x3000_0002, partition), value);
    }
    // Later changes at the root affect later partitions only.
    plain.set(ObjectId::ROOT, 0x9000_0002, 0x10002, &[]);
    assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0002, 0x10002), [0xFF; 8]);
    assert_eq!(plain.get(ObjectId::of_partition(PID), 0x3000_0002, 0x10002), 99u64.to_be_bytes());
}

fn ms(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

#[test]
fn a_partitions_times_are_those_of_its_contents() {
    let plain = Plain::with_object(Generation::Osd2);
    let partition = ObjectId::of_partition(PID);
    let at = |ms: u64| plain.bench.fake.ms.store(START_MS + ms, std::sync::atomic::Ordering::SeqCst);
    let time = |number| ms(&plain.get(partition, 0x3000_0003, number));
    at(100);
    plain.good(&plain.cdb(create(0, 3)), &[]);
    at(200);
    assert_eq!((time(1), time(5)), (START_MS, START_MS + 100));
    let list = List { object: partition, list_id: 0, allocation: 4096, initial: 0, with_attributes: false };
    plain.good(&plain.cdb(Command::List(list)), &[]);
    at(300);
    assert_eq!((time(4), time(5)), (START_MS + 200, START_MS + 100));
    plain.good(&plain.cdb(Command::Remove(sealstone_osd::cdb::Target { object: user(OID) })), &[]);
    assert_eq!(time(5), START_MS + 300);
    // Set explicitly, and not while the partition's bypass is active.
    plain.set(partition, 0x3000_0003, 5, &[0, 0, 0, 0, 0, 7]);
    plain.set(partition, 0x3000_0003, 0xFFFF_FFFE, &[0x7F]);
    plain.good(&plain.cdb(create(0, 1)), &[]);
    assert_eq!(time(5), 7);
}

#[test]
fn attributes_access_page_accepts_only_name_lists() {
    let plain = Plain::with_object(Generation::Osd2);
    let partition = ObjectId::of_partition(PID);
    let names: Vec<u8> = [0x0001_0003u32, 1, 0x0001_0003, 7].into_iter().flat_map(u32::to_be_bytes).collect();
    plain.set(partition, 0x3000_0004, 5, &names);
    plain.set(partition, 0x3000_0004, 0xFFFF_FF00, &names[..8]);
    assert_eq!(plain.get(partition, 0x3000_0004, 5), names);
    let all = AttributeId::new(0x3000_0004, AttributeId::ALL);
    let (cdb, out) = plain.with_lists(get_attributes(partition), &[], &[], &[all]);
    let reply = plain.good(&cdb, &out);
    let numbers: Vec<u32> =
        values(Generation::Osd2, plain.attributes(&cdb, &reply)).iter().map(|(id, _)| id.number).collect();
    assert_eq!(numbers, [0, 5, 0xFFFF_FF00], "a page of four thousand million numbers is not enumerated");
    for wrong in [&names[..7], &vec![0; 8 * 1025]] {
        let (cdb, out) = plain.setting(partition, 0x3000_0004, 6, wrong);
        assert_eq!(triple(&plain.sense(&cdb, &out)), (5, 0x2600));
    }
    let (cdb, out) = plain.setting(partition, 0x3000_0004, 0xFFFF_FF01, &names);
    assert_eq!(triple(&plain.sense(&cdb, &out)), (5, 0x2600));
    plain.set(partition, 0x3000_0004, 5, &[]);
    assert_eq!(plain.get(partition, 0x3000_0004, 5), []);
}

#[test]
fn one_attribute_is_set_from_the_cdb() {
    let plain = Plain::with_object(Generation::Osd2);
    let one = |id: AttributeId, bytes: &[u8]| {
        let mut value = [0; 18];
        value[..bytes.len()].copy_from_slice(bytes);
        let mut cdb = plain.cdb(set_attributes(user(OID)));
        cdb.attributes = AttributeParameters::One { id, length: bytes.len() as u8, value };
        cdb
    };
    let name = AttributeId::new(1, 9);
    plain.good(&one(name, b"eighteen bytes, ok"), &[]);
    assert_eq!(plain.get(user(OID), 1, 9), b"eighteen bytes, ok");
    plain.good(&one(name, b""), &[]);
    assert_eq!(plain.get(user(OID), 1, 9), b"");
    // The error points into the CDB, not into a list.
    let sense = plain.sense(&one(AttributeId::new(1, 1), &[0; 8]), &[]);
    assert_eq!(triple(&sense), (5, 0x2400));
    assert_eq!(sense.field.unwrap().byte, 52);
    // With any command: a write that sets the name of its object.
    let mut cdb =
        plain.cdb(Command::Write(sealstone_osd::cdb::Extent { object: user(OID), start: 0, length: 3 }));
    cdb.attributes = one(AttributeId::new(0x1_0000, 1), b"tag").attributes;
    plain.good(&cdb, b"abc");
    assert_eq!(plain.get(user(OID), 0x1_0000, 1), b"tag");
}

#[test]
fn the_adjustable_clock_moves_forward_or_waits() {
    let plain = Plain::new(Generation::Osd2);
    let at = |ms: u64| plain.bench.fake.ms.store(START_MS + ms, std::sync::atomic::Ordering::SeqCst);
    let clock = || ms(&plain.get(ObjectId::ROOT, 0x9000_0001, 0x100));
    let bytes = |ms: u64| ms.to_be_bytes()[2..].to_vec();
    assert_eq!(clock(), START_MS);
    plain.set(ObjectId::ROOT, 0x9000_0005, 9, &bytes(START_MS + 3_600_000));
    assert_eq!(clock(), START_MS + 3_600_000);
    assert_eq!(ms(&plain.get(ObjectId::ROOT, 0x9000_0005, 9)), START_MS + 3_600_000);
    at(1000);
    assert_eq!(clock(), START_MS + 3_601_000);
    // Back: it stands still until time has caught up.
    plain.set(ObjectId::ROOT, 0x9000_0005, 9, &bytes(START_MS + 3_591_000));
    assert_eq!(clock(), START_MS + 3_601_000);
    at(10_000);
    assert_eq!(clock(), START_MS + 3_601_000);
    at(12_000);
    assert_eq!(clock(), START_MS + 3_602_000);
    // Too large a step in either direction.
    for wrong in [START_MS + 3_602_000 - 55_000, START_MS + 3_602_000 + 86_400_001] {
        let (cdb, out) = plain.setting(ObjectId::ROOT, 0x9000_0005, 9, &bytes(wrong));
        assert_eq!(triple(&plain.sense(&cdb, &out)), (5, 0x2600));
        assert_eq!(clock(), START_MS + 3_602_000);
    }
    // A restart keeps the adjustment.
    let config = sealstone_osd_device::OsdConfig { insecure_nosec: true, ..Default::default() };
    let again = crate::support::Bench::start(config, plain.bench.store.clone(), 2, 0);
    let again = Plain { bench: again, generation: Generation::Osd2 };
    assert_eq!(ms(&again.get(ObjectId::ROOT, 0x9000_0001, 0x100)), START_MS + 3_590_000);
}

#[test]
fn access_list_limits_attributes_of_capability() {
    use crate::support::{Bench, ListPair};
    use sealstone_osd::capability::{Range, Scope};
    use sealstone_osd::cdb::Target;
    use sealstone_osd::{Descriptor, Permissions, SecurityMethod};

    let bench = Bench::with_partition();
    bench.run(create(OID, 1), ListPair::default(), &[]).good();
    let partition = Command::SetAttributes(Target { object: ObjectId::of_partition(PID) });
    let names: Vec<u8> = [0x1_0000, 1, 1, AttributeId::ALL].into_iter().flat_map(u32::to_be_bytes).collect();
    let list = ListPair::set(&[(0x3000_0004, 5, &names)]);
    // SET_ATTR alone does not grant access to it.
    let mut weak = bench.capability(&partition, SecurityMethod::AllData);
    weak.permissions = Permissions::SET_ATTR;
    assert_eq!(bench.run_with(partition, list.clone(), &[], &weak).sense(), (5, 0x2400));
    bench.run(partition, list, &[]).good();
    let run = |command: Command, access: u32, lists: ListPair| {
        let mut capability = bench.capability(&command, SecurityMethod::AllData);
        let scope = Scope { attributes_access: access, ..Scope::default() };
        capability.descriptor = Descriptor::User { scope, allowed: user(OID), range: Range::ALL };
        bench.run_with(command, lists, &[], &capability)
    };
    let (get, set) = (get_attributes(user(OID)), set_attributes(user(OID)));
    run(set, 5, ListPair::set(&[(0x1_0000, 1, b"named")])).good();
    let named = run(get, 5, ListPair::get(&[(0x1_0000, 1), (1, 2)])).good();
    assert_eq!(crate::support::values(&named.attributes)[0].1, b"named");
    for (command, access, lists) in [
        (set, 5, ListPair::set(&[(0x1_0000, 2, b"x")])),
        (get, 5, ListPair::get(&[(0x1_0000, 2)])),
        (get, 5, ListPair::get(&[(0x1_0000, AttributeId::ALL)])),
        (get, 6, ListPair::get(&[(0x1_0000, 1)])),
    ] {
        let refused = run(command, access, lists);
        assert_eq!(refused.sense(), (5, 0x2400));
        assert_eq!(refused.sense.unwrap().field.unwrap().byte, 80 + 56, "ALLOWED ATTRIBUTES ACCESS");
    }
    // Of all attributes, the pages that the list names completely.
    let all = run(get, 5, ListPair::get(&[(AttributeId::ALL, AttributeId::ALL)])).good();
    assert!(crate::support::values(&all.attributes).iter().all(|(id, _)| id.page == 1));
}

#[test]
fn default_duplication_methods_accept_supported_codes_only() {
    let plain = Plain::with_object(Generation::Osd2);
    let partition = ObjectId::of_partition(PID);
    let page = 0x3000_0001;
    for (number, first, codes) in [
        (0x200, 1_u32, &[0x00_u32, 0x01, 0xFD, 0xFF][..]),
        (0x201, 1, &[0x00, 0x01, 0xFD, 0xFF]),
        (0x300, 0, &[0x0, 0xF]),
        (0x301, 0, &[0x0, 0xF]),
    ] {
        assert_eq!(plain.get(partition, page, number), first.to_be_bytes());
        for code in codes {
            plain.set(partition, page, number, &code.to_be_bytes());
            assert_eq!(plain.get(partition, page, number), code.to_be_bytes());
        }
        for wrong in [&[0, 0, 0, 2][..], &[0, 0, 0, 0x81], &[1], &[0, 0, 0, 0, 1]] {
            let (cdb, out) = plain.setting(partition, page, number, wrong);
            assert_eq!(triple(&plain.sense(&cdb, &out)), (5, 0x2600), "{number:x} {wrong:?}");
        }
        plain.set(partition, page, number, &[]);
        assert_eq!(plain.get(partition, page, number), first.to_be_bytes());
    }
    // Descriptors supported in continuation segments, and their maximum length.
    let root = |kind: u32| plain.get(ObjectId::ROOT, 0x9000_0001, 0x700_0000 + kind);
    for (kind, most) in [
        (0x0001, 65_488_u32),
        (0x0002, 65_488),
        (0x0101, 18),
        (0xFF01, 67_216),
        (0xFF10, 32_768),
        (0xFF11, 2048),
        (0xFFEE, 6656),
    ] {
        assert_eq!(root(kind), most.to_be_bytes(), "{kind:04x}");
    }
    assert_eq!(root(0x0100), [0; 0]);
}
