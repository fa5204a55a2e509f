//! Captured commands of a real Linux initiator (open-osd, exofs) and responses of a real target
//! (osc-osd) are parsed correctly.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

use sealstone_osd::attribute::list::{GetNames, Values, encode_get};
use sealstone_osd::attribute::{partition_information, partition_quotas, root_information as root};
use sealstone_osd::cdb::{Create, CreatePartition, Extent, FormatOsd, Target};
use sealstone_osd::{
    AttributeId, AttributeParameters, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType,
    Permissions, SecurityMethod,
};

const PARTITION: u64 = 0x1_0000;
/// Page of exofs: attribute 1 is the inode.
const EXOFS: u32 = 0x1_0003;

struct Exchange {
    cdb: Vec<u8>,
    data_out: Vec<u8>,
    data_in: Vec<u8>,
}

/// Returns the exchange of that name.
fn exchange(name: &str) -> Exchange {
    let hex = |text: &str| -> Vec<u8> {
        let digits = text.trim_matches('-');
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    };
    let line = include_str!("data/exofs-linux-4.14.txt")
        .lines()
        .find(|line| line.split(' ').next() == Some(name))
        .unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    Exchange { cdb: hex(fields[1]), data_out: hex(fields[2]), data_in: hex(fields[3]) }
}

fn parse(name: &str) -> Cdb {
    Cdb::parse(&exchange(name).cdb).unwrap()
}

fn names(name: &str) -> Vec<AttributeId> {
    let exchange = exchange(name);
    let segment = Cdb::parse(&exchange.cdb).unwrap().attributes.get_list_segment().unwrap();
    GetNames::parse(Generation::Osd2, segment.of(&exchange.data_out).unwrap()).unwrap().iter().collect()
}

fn set_values(name: &str) -> Vec<(AttributeId, Vec<u8>)> {
    let exchange = exchange(name);
    let segment = Cdb::parse(&exchange.cdb).unwrap().attributes.set_segment().unwrap();
    let list = Values::parse_set(Generation::Osd2, segment.of(&exchange.data_out).unwrap()).unwrap();
    list.iter().map(|(id, value)| (id, value.to_vec())).collect()
}

fn retrieved(name: &str) -> Vec<(AttributeId, Vec<u8>)> {
    let exchange = exchange(name);
    let segment = Cdb::parse(&exchange.cdb).unwrap().attributes.retrieved_segment().unwrap();
    let bytes = &exchange.data_in[segment.offset as usize..];
    let list = Values::parse_retrieved(Generation::Osd2, bytes).unwrap();
    list.iter().map(|(id, value)| (id, value.to_vec())).collect()
}

const PROBE: [AttributeId; 11] = [
    root::VENDOR_IDENTIFICATION,
    root::PRODUCT_IDENTIFICATION,
    root::PRODUCT_MODEL,
    root::PRODUCT_REVISION,
    root::SERIAL_NUMBER,
    root::OSD_NAME,
    root::TOTAL_CAPACITY,
    root::USED_CAPACITY,
    root::PARTITION_COUNT,
    root::CLOCK,
    root::OSD_SYSTEM_ID,
];

/// T27: the probe's response is read by position, so the order of the request matters.
#[test]
fn probe_requests_eleven_root_attributes() {
    assert_eq!(parse("probe").command, Command::GetAttributes(Target { object: ObjectId::ROOT }));
    assert_eq!(names("probe"), PROBE);
    let answer = retrieved("probe");
    assert_eq!(answer.iter().map(|(id, _)| *id).collect::<Vec<_>>(), PROBE);
    assert_eq!(answer[0].1, b"OSC\0");
    assert_eq!(answer[10].1.len(), 20);
}

#[test]
fn format_sets_the_name_in_the_same_command() {
    assert_eq!(parse("format").command, Command::FormatOsd(FormatOsd { capacity: 0x10_0000 }));
    let values = set_values("format");
    assert_eq!((values.len(), values[0].0, values[0].1.len()), (1, root::OSD_NAME, 36));
}

#[test]
fn captured_creates_parse_to_their_operands() {
    let partition = Command::CreatePartition(CreatePartition { partition: PARTITION });
    assert_eq!(parse("create_partition").command, partition);
    let object = ObjectId::new(PARTITION, 0x1_0002);
    assert_eq!(parse("create").command, Command::Create(Create { object, count: 1 }));
    assert_eq!(parse("create").attributes, AttributeParameters::NONE);
}

#[test]
fn reads_and_writes_name_their_bytes() {
    let at = |object, start, length| Extent { object: ObjectId::new(PARTITION, object), start, length };
    let write = parse("write_device_table");
    assert_eq!(write.command, Command::Write(at(0x1_0001, 0, 0x98)));
    assert_eq!(write.command.data_out_len(), exchange("write_device_table").data_out.len() as u64);
    assert_eq!(parse("write_second_page").command, Command::Write(at(0x1_0006, 4096, 4096)));
    assert_eq!(parse("read").command, Command::Read(at(0x1_0001, 0, 0x98)));
    assert_eq!(parse("read").command.data_in_len(), 0x98);
}

#[test]
fn attribute_lists_carry_the_inode() {
    let root_directory = ObjectId::new(PARTITION, 0x1_0002);
    assert_eq!(parse("set_attributes").command, Command::SetAttributes(Target { object: root_directory }));
    let values = set_values("set_attributes");
    assert_eq!((values.len(), values[0].0, values[0].1.len()), (1, AttributeId::new(EXOFS, 1), 64));
    assert_eq!(names("get_inode"), [1, 2, 3].map(|number| AttributeId::new(EXOFS, number)));
    let answer = retrieved("get_inode");
    assert_eq!(answer.len(), 3);
    assert_eq!(answer[0], values[0]);
    assert!(answer[1].1.is_empty() && answer[2].1.is_empty());
}

/// exofs reads the quota only by an attribute that osc-osd lacks.
#[test]
fn undefined_attributes_are_returned_empty() {
    let page = partition_quotas::PAGE;
    assert_eq!(partition_information::PAGE, page - 1);
    let asked = names("statfs");
    assert_eq!(retrieved("statfs"), asked.iter().map(|id| (*id, Vec::new())).collect::<Vec<_>>());
}

/// T2: OSD-2 CDBs have a capability of format 1 whose fields are at the OSD-2 offsets.
#[test]
fn capabilities_claim_the_other_generation() {
    let cdb = parse("create");
    let capability = cdb.capability.parse().unwrap();
    assert_eq!((capability.generation, capability.format), (Generation::Osd2, Generation::Osd1));
    assert_eq!(capability.method, SecurityMethod::NoSec);
    assert_eq!(capability.object_type, ObjectType::User);
    assert_eq!(capability.permissions, Permissions::ALL_OSD1);
    let Descriptor::User { allowed, .. } = capability.descriptor else { panic!("{capability:?}") };
    assert_eq!(allowed, ObjectId::of_partition(PARTITION));
    let Descriptor::Partition { partition, .. } = parse("probe").capability.parse().unwrap().descriptor
    else {
        panic!("no partition descriptor")
    };
    assert_eq!(partition, 0);
}

/// We encode the same commands byte for byte, except for fields that do not matter.
#[test]
fn every_captured_cdb_survives_a_round_trip() {
    for name in
        ["probe", "format", "create_partition", "create", "write_device_table", "set_attributes", "read"]
    {
        let wire = exchange(name).cdb;
        let cdb = Cdb::parse(&wire).unwrap();
        let ours = cdb.encode().unwrap();
        assert_eq!(Cdb::parse(&ours), Ok(cdb), "{name}");
        assert_eq!(
            (ours[..32].to_vec(), ours[80..].to_vec()),
            (wire[..32].to_vec(), wire[80..].to_vec()),
            "{name}"
        );
    }
    let probe = exchange("probe");
    let ours = encode_get(Generation::Osd2, &PROBE);
    assert_eq!(ours[8..], probe.data_out[8..]);
}
