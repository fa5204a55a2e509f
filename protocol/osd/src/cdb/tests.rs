//! Tests of CDBs: encoding and parsing are inverse, and arbitrary bytes never panic.

use proptest::prelude::*;
use std::vec::Vec;

use super::*;
use crate::{AttributeId, ObjectId};
use Generation::{Osd1, Osd2};

/// Returns a CDB of `code` with every other byte zero and the list format.
fn blank(generation: Generation, code: u16) -> Vec<u8> {
    let mut cdb = std::vec![0; generation.cdb_len()];
    (cdb[0], cdb[7], cdb[11]) = (0x7F, additional_length(generation), 0x30);
    cdb[8..10].copy_from_slice(&code.to_be_bytes());
    cdb
}

fn put(cdb: &mut [u8], at: usize, bytes: &[u8]) {
    cdb[at..at + bytes.len()].copy_from_slice(bytes);
}

fn command(generation: Generation, code: u16, fields: &[(usize, &[u8])]) -> Command {
    let mut cdb = blank(generation, code);
    for (at, bytes) in fields {
        put(&mut cdb, *at, bytes);
    }
    Cdb::parse(&cdb).unwrap().command
}

fn refused(generation: Generation, code: u16, at: usize, bytes: &[u8]) -> CdbError {
    let mut cdb = blank(generation, code);
    put(&mut cdb, at, bytes);
    Cdb::parse(&cdb).unwrap_err()
}

const PID: (usize, &[u8]) = (16, &[0, 0, 0, 0, 0, 1, 0, 0]);
const OID: (usize, &[u8]) = (24, &[0, 0, 0, 0, 0, 1, 0, 5]);
const OBJECT: ObjectId = ObjectId::new(0x1_0000, 0x1_0005);

/// T5: the fields of the two generations are at different offsets.
#[test]
fn fields_are_read_where_each_generation_has_them() {
    let extent = Extent { object: OBJECT, start: 7, length: 9 };
    let osd1 = [PID, OID, (43, &[9][..]), (51, &[7])];
    let osd2 = [PID, OID, (39, &[9][..]), (47, &[7])];
    assert_eq!(command(Osd1, 0x8805, &osd1), Command::Read(extent));
    assert_eq!(command(Osd2, 0x8885, &osd2), Command::Read(extent));

    let create = Create { object: ObjectId::of_partition(0x1_0000), count: 3 };
    assert_eq!(command(Osd1, 0x8802, &[PID, (36, &[0, 3])]), Command::Create(create));
    assert_eq!(command(Osd2, 0x8882, &[PID, (32, &[0, 3])]), Command::Create(create));

    let format = Command::FormatOsd(FormatOsd { capacity: 1 << 32 });
    assert_eq!(command(Osd1, 0x8801, &[(39, &[1])]), format);
    assert_eq!(command(Osd2, 0x8881, &[(35, &[1])]), format);

    let list = List {
        object: ObjectId::of_partition(0x1_0000),
        list_id: 0x0102,
        allocation: 64,
        initial: 5,
        with_attributes: false,
    };
    assert_eq!(command(Osd1, 0x8803, &[PID, (34, &[1, 2]), (43, &[64]), (51, &[5])]), Command::List(list));
    let osd2 = [PID, (50, &[1, 2][..]), (39, &[64]), (47, &[5]), (11, &[0x70])];
    assert_eq!(command(Osd2, 0x8883, &osd2), Command::List(List { with_attributes: true, ..list }));
}

/// T6: the action determines the meaning of bytes 48–51, so none of these is taken for a
/// continuation length.
#[test]
fn bytes_48_to_51_depend_on_the_action() {
    let seed = [0xAB; 20];
    let key = [(11, &[0x33][..]), PID, (24, &[4, 1, 2, 3, 4, 5, 6, 7]), (32, &seed)];
    let expected =
        SetKey { partition: 0x1_0000, key: KeyToSet::Working(4), identifier: [1, 2, 3, 4, 5, 6, 7], seed };
    assert_eq!(command(Osd2, 0x8898, &key), Command::SetKey(expected));
    let map = ReadMap { object: OBJECT, allocation: 48, start: 0, kind: 0x8000 };
    assert_eq!(command(Osd2, 0x88B1, &[PID, OID, (39, &[48]), (48, &[0x80])]), Command::ReadMap(map));
    let sized = |code, at: &[u8]| refused(Osd2, code, 48, at).field_pointer();
    assert_eq!((sized(0x8882, &[0, 0, 0, 48]), sized(0x8887, &[0, 0, 0, 48])), (48, 48));
    assert_eq!((sized(0x8885, &[0, 0, 0, 40]), sized(0x8885, &[0, 0, 0, 52])), (48, 48));
    assert_eq!(sized(0x88A0, &[0, 0, 0, 0]), 48);
}

#[test]
fn rewrite_operands_round_trip() {
    let fields = [PID, OID, (11, &[0x36][..]), (34, &[1, 0, 0, 0, 2, 0]), (47, &[7]), (51, &[48])];
    let expected = Rewrite {
        object: OBJECT,
        start: 7,
        length: 512,
        operands: 256,
        returns: RewriteReturn::Nothing,
        conditional: true,
        extend: true,
    };
    let rewrite = command(Osd2, 0x8F90, &fields);
    assert_eq!(rewrite, Command::Rewrite(expected));
    assert_eq!((rewrite.data_out_len(), rewrite.data_in_len()), (256, 0));
    let bits = |bits: u8| {
        let fields = [PID, OID, (11, &[0x30 | bits][..]), (38, &[2, 0]), (51, &[48])];
        command(Osd2, 0x8F90, &fields)
    };
    use crate::Permissions;
    let read_write = Permissions::READ | Permissions::WRITE;
    assert_eq!((bits(0).data_in_len(), bits(1).data_in_len(), bits(8).data_in_len()), (0, 512, 32));
    assert_eq!((bits(0).permissions(), bits(4).permissions()), (Permissions::WRITE, Permissions::WRITE));
    assert_eq!((bits(1).permissions(), bits(8).permissions()), (read_write, read_write));
    assert_eq!(bits(2).permissions(), read_write | Permissions::REWRITE_CONDITIONAL);
    let refused = |at: usize, bytes: &[u8]| {
        let mut cdb = blank(Osd2, 0x8F90);
        put(&mut cdb, 38, &[2, 0]);
        put(&mut cdb, 51, &[48]);
        put(&mut cdb, at, bytes);
        Cdb::parse(&cdb).unwrap_err().field_pointer()
    };
    assert_eq!(refused(11, &[0x39]), 11, "bytes or digest");
    assert_eq!(refused(38, &[0, 0]), 36, "no range");
    assert_eq!(refused(36, &[1, 0, 0, 1]), 36, "too long a range");
    assert_eq!(refused(32, &[1, 0, 0, 1]), 32, "too many operands");
    assert_eq!(refused(51, &[0]), 48, "no operations");
}

#[test]
fn execute_function_bounds_its_allocation() {
    use crate::function::{REPLY_HEADER_LEN, REPLY_MAX};
    let with = |length: usize| {
        let mut cdb = blank(Osd2, 0x8F91);
        put(&mut cdb, 32, &(length as u64).to_be_bytes());
        put(&mut cdb, 51, &[48]);
        Cdb::parse(&cdb).map(|cdb| cdb.command.data_in_len()).map_err(|error| error.field_pointer())
    };
    assert_eq!(with(REPLY_HEADER_LEN), Ok(REPLY_HEADER_LEN as u64));
    assert_eq!(with(REPLY_MAX), Ok(REPLY_MAX as u64));
    assert_eq!((with(REPLY_HEADER_LEN - 1), with(REPLY_MAX + 1), with(0)), (Err(32), Err(32), Err(32)));
    let fields = [PID, OID, (39, &[128][..]), (51, &[48])];
    let execute = command(Osd2, 0x8F91, &fields);
    assert_eq!(execute, Command::ExecuteFunction(ExecuteFunction { object: OBJECT, allocation: 128 }));
    assert_eq!((execute.permissions(), execute.data_out_len()), (crate::Permissions::EXECUTE, 0));
    assert_eq!(refused(Osd2, 0x8F91, 39, &[128]).field_pointer(), 48, "no request");
}

/// T7: OSD-1 has FLUSH SCOPE in byte 10, OSD-2 in byte 11; an ambiguous one flushes everything.
#[test]
fn a_doubtful_flush_takes_everything() {
    let flush = |generation, code, at, bits: u8| match command(generation, code, &[PID, (at, &[bits])]) {
        Command::FlushPartition(flush) => flush.scope,
        other => panic!("{other:?}"),
    };
    assert_eq!(flush(Osd1, 0x881B, 10, 2), ContainerScope::Everything);
    assert_eq!(flush(Osd1, 0x881B, 10, 1), ContainerScope::Attributes);
    assert_eq!(flush(Osd2, 0x889B, 11, 0x31), ContainerScope::Attributes);
    assert_eq!(flush(Osd2, 0x889B, 10, 0), ContainerScope::Members);
    assert_eq!(flush(Osd2, 0x889B, 10, 1), ContainerScope::Everything);
    assert_eq!(refused(Osd2, 0x889B, 11, &[0x33]).field_pointer(), 11);
    assert_eq!(refused(Osd1, 0x8808, 10, &[2]).field_pointer(), 10);
}

/// T1: open-osd sends 228 additional bytes for 200-byte CDBs; an OSD-1 action in 236 bytes is still
/// refused.
#[test]
fn the_service_action_chooses_the_layout() {
    let mut osd1 = blank(Osd1, 0x8805);
    osd1[7] = 228;
    assert_eq!(Cdb::parse(&osd1).unwrap().generation, Osd1);
    osd1.resize(236, 0);
    assert_eq!(Cdb::parse(&osd1), Err(CdbError::Length { actual: 236, expected: 200 }));
    let short = Cdb::parse(&blank(Osd2, 0x8885)[..200]).unwrap_err();
    assert_eq!(short, CdbError::Length { actual: 200, expected: 236 });
    let r03 = refused(Osd2, 0x8885, 7, &[216]);
    assert_eq!(r03, CdbError::AdditionalLength { actual: 216, expected: 228 });
    assert_eq!(r03.sense().code, sealstone_scsi::additional::INVALID_COMMAND_OPERATION_CODE);
    assert_eq!(refused(Osd2, 0x888D, 1, &[0]), CdbError::ServiceAction(0x888D));
    assert_eq!(CdbError::ServiceAction(0x888D).sense().field.unwrap().byte, 8);
    assert_eq!(Cdb::parse(&[0x12, 0, 0, 0, 36, 0]), Err(CdbError::OperationCode(0x12)));
}

/// T20: format 1 is OSD-2's, its length has two bytes.
#[test]
fn one_attribute_can_be_set_from_the_cdb() {
    let mut cdb = blank(Osd2, 0x888F);
    put(&mut cdb, 11, &[0x10]);
    put(&mut cdb, 52, &[0, 0, 0, 1, 0, 0, 0, 9, 0, 3, b'a', b'b', b'c', b'd']);
    let mut value = [0; ONE_VALUE_MAX];
    value[..3].copy_from_slice(b"abc");
    let one = AttributeParameters::One { id: AttributeId::new(1, 9), length: 3, value };
    assert_eq!(Cdb::parse(&cdb).unwrap().attributes, one);
    let fault = |at, bytes: &[u8]| {
        let mut cdb = cdb.clone();
        put(&mut cdb, at, bytes);
        Cdb::parse(&cdb).unwrap_err().field_pointer()
    };
    assert_eq!(fault(60, &[0, 19]), 60);
    assert_eq!(fault(52, &[0xFF; 4]), 52);
    assert_eq!(fault(52, &[0; 4]), 52);
    assert_eq!(fault(56, &[0xFF; 4]), 56);
    assert_eq!(refused(Osd1, 0x880F, 11, &[0x10]).field_pointer(), 11);
    assert_eq!(refused(Osd2, 0x888F, 11, &[0x00]).field_pointer(), 11);
}

/// T4: a segment with bytes needs an offset; one without does not.
#[test]
fn list_offsets_count_only_with_a_length() {
    let mut cdb = blank(Osd2, 0x888E);
    put(&mut cdb, 52, &[0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    assert_eq!(Cdb::parse(&cdb).unwrap().attributes, AttributeParameters::NONE);
    put(&mut cdb, 52, &[0, 0, 0, 16]);
    assert_eq!(Cdb::parse(&cdb).unwrap_err().field_pointer(), 56);
    put(&mut cdb, 56, &[0xB0, 0, 0, 3, 0, 0, 0, 40, 0, 0, 0, 1]);
    let list = Segment { offset: 24, length: 16 };
    let retrieved = Segment { offset: 256, length: 40 };
    let get = Some(GetList { list, retrieved });
    assert_eq!(Cdb::parse(&cdb).unwrap().attributes, AttributeParameters::List { get, set: None });
    put(&mut cdb, 64, &[0xA0, 0, 0, 1]);
    assert_eq!(Cdb::parse(&cdb).unwrap_err().field_pointer(), 64);
}

#[test]
fn the_page_format_ignores_parts_with_page_zero() {
    let mut cdb = blank(Osd1, 0x880E);
    put(&mut cdb, 11, &[0x20]);
    put(&mut cdb, 52, &[0, 0, 0, 3, 0, 0, 0, 64, 0, 0, 0, 2]);
    let retrieved = Segment { offset: 512, length: 64 };
    let page = AttributeParameters::Page { get: Some(GetPage { page: 3, retrieved }), set: None };
    assert_eq!(Cdb::parse(&cdb).unwrap().attributes, page);
}

#[test]
fn reserved_codes_are_refused_where_they_stand() {
    assert_eq!(refused(Osd2, 0x8885, 12, &[0x80]).field_pointer(), 12); // T19
    assert_eq!(refused(Osd2, 0x8885, 10, &[0x03]).field_pointer(), 10);
    assert_eq!(refused(Osd2, 0x8883, 11, &[0x31]).field_pointer(), 11);
    assert_eq!(refused(Osd2, 0x8898, 11, &[0x30]).field_pointer(), 11);
    for (generation, action) in [(Osd1, 0x8818), (Osd2, 0x8898)] {
        for key in [0x31, 0x32] {
            // A key version of a key that has none.
            let mut version = [0; 14];
            (version[0], version[13]) = (key, 5);
            assert_eq!(refused(generation, action, 11, &version).field_pointer(), 24);
        }
    }
    assert_eq!(refused(Osd2, 0x8899, 11, &[0x32]).field_pointer(), 11);
    assert_eq!(refused(Osd2, 0x888C, 11, &[0x32]).field_pointer(), 11);
    assert_eq!(refused(Osd2, 0x8885, 228, &[0x80, 0, 0, 0]).field_pointer(), 228);
    let both = [0_u8, 0, 0, 0, 0, 0, 0, 1, 0, 2];
    assert_eq!(refused(Osd2, 0x8882, 24, &both).field_pointer(), 32);
}

#[test]
fn value_beyond_generation_is_not_encoded() {
    let encode = |generation, command| Cdb::new(generation, command).encode();
    let query = Command::Query(Query { object: OBJECT, allocation: 0, matches: 0, immediate: false });
    assert!(matches!(encode(Osd1, query), Err(EncodeError::Generation { command: "QUERY", .. })));
    let remove = RemovePartition { partition: 0x1_0000, with_contents: true };
    assert_eq!(encode(Osd1, Command::RemovePartition(remove)), Err(EncodeError::Unfit));
    let mut cdb = Cdb::new(Osd2, Command::Remove(Target { object: OBJECT }));
    cdb.security.data_in_icv_offset = Some(4);
    assert_eq!(cdb.encode(), Err(EncodeError::Offset(4)));
    cdb.security.data_in_icv_offset = None;
    cdb.continuation_length = 48;
    assert!(matches!(cdb.encode(), Err(EncodeError::Refused(_))));
}

#[test]
fn command_has_object_type_and_permissions() {
    use crate::{ObjectType, Permissions};
    let at = |object| Command::GetAttributes(Target { object });
    assert_eq!(at(ObjectId::ROOT).object_types(), [ObjectType::Root]);
    assert_eq!(at(ObjectId::of_partition(9)).object_types(), [ObjectType::Partition]);
    assert_eq!(at(OBJECT).object_types(), [ObjectType::Collection, ObjectType::User]);
    let list = |object| List { object, list_id: 0, allocation: 8, initial: 0, with_attributes: false };
    assert_eq!(Command::List(list(ObjectId::ROOT)).object_types(), [ObjectType::Root]);
    assert_eq!(Command::ListCollection(list(OBJECT)).object_types(), [ObjectType::Collection]);
    let collections = Command::ListCollection(list(ObjectId::of_partition(9)));
    assert_eq!(collections.object_types(), [ObjectType::Partition]);
    let create = Command::CreatePartition(CreatePartition { partition: 0 });
    assert_eq!(create.object_types(), [ObjectType::Partition]);
    let remove = |with_contents| Command::RemovePartition(RemovePartition { partition: 9, with_contents });
    assert_eq!(remove(false).permissions(), Permissions::REMOVE);
    assert_eq!(remove(true).permissions(), Permissions::REMOVE | Permissions::GBL_REM);
    let extent = Extent { object: OBJECT, start: 0, length: 9 };
    let moved = |command: Command| (command.data_out_len(), command.data_in_len());
    assert_eq!(moved(Command::Write(extent)), (9, 0));
    assert_eq!(moved(Command::Read(extent)), (0, 9));
    assert_eq!(moved(Command::Clear(extent)), (0, 0));
}

/// Returns any CDB of a code of the table that the parser accepts: valid codes in code fields,
/// random bytes elsewhere.
fn any_wire() -> impl Strategy<Value = Vec<u8>> {
    let code = (0..SERVICE_ACTIONS.len(), any::<bool>()).prop_map(|(row, osd1)| {
        let row = &SERVICE_ACTIONS[row];
        row.osd1.filter(|_| osd1).map_or((row.osd2.unwrap(), Osd2), |code| (code, Osd1))
    });
    let noise = proptest::collection::vec(any::<u8>(), 236);
    (code, noise, 0_u8..16, 1_u8..4, any::<bool>()).prop_map(
        |((code, generation), mut cdb, bits, format, quiet)| {
            cdb.truncate(generation.cdb_len());
            (cdb[0], cdb[7]) = (0x7F, additional_length(generation));
            cdb[8..10].copy_from_slice(&code.to_be_bytes());
            cdb[11] = format << 4 | bits & cdb[11] | cdb[11] & 0xC0;
            (cdb[10], cdb[12]) = (cdb[10] & 0x1C, if quiet { 0x7F } else { 0 });
            for offset in [56, 60, 64, 72, 76].into_iter().chain([cdb.len() - 8, cdb.len() - 4]) {
                cdb[offset] &= 0x7F;
            }
            if code != 0x8898 && generation == Osd2 {
                cdb[48..52].copy_from_slice(&if quiet { [0; 4] } else { [0, 0, 0, 64] });
            }
            cdb
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn parsed_value_round_trips(wire in any_wire()) {
        if let Ok(cdb) = Cdb::parse(&wire) {
            // An offset written with a coarse exponent may not be expressible with the finest one;
            // nothing else fails.
            match cdb.encode() {
                Ok(bytes) => prop_assert_eq!(Cdb::parse(&bytes), Ok(cdb)),
                Err(error) => prop_assert!(matches!(error, EncodeError::Offset(_)), "{error:?} {cdb:?}"),
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut wire in proptest::collection::vec(any::<u8>(), 0..300), osd in any::<bool>()) {
        if let (Some(first), true) = (wire.first_mut(), osd) {
            *first = OPERATION_CODE;
        }
        let _ = Cdb::parse(&wire).map_err(|error| error.sense().encode());
    }
}
