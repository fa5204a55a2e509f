//! INQUIRY, mode pages, supported operation codes, capacity and medium.

use crate::support::{Bench, TARGET, disk, sense, sixteen, ten, what};
use sealstone_block::{BLOCK_PARTITION, BlockSize, BlockUnits, CatalogError, NewUnit};
use sealstone_osd::{AttributeId, ObjectId};
use sealstone_scsi::lu::{Cost, LogicalUnit as _, NexusId};
use sealstone_scsi::{FieldPointer, SenseKey, Status, additional};

const B512: BlockSize = BlockSize::B512;

/// Returns a vital product data page without its header.
fn page(bench: &Bench, number: u8) -> Vec<u8> {
    let data = bench.get(&[0x12, 1, number, 1, 0, 0]);
    assert_eq!((data[0], data[1]), (0, number));
    data[4..].to_vec()
}

#[test]
fn inquiry_reports_disk_and_supported_pages() {
    let bench = Bench::new(B512);
    let data = bench.get(&[0x12, 0, 0, 0, 255, 0]);
    assert_eq!((data[0], data[1] & 0x80), (0, 0));
    assert_eq!(&data[8..32], b"SEALSTONSEALSTONE BLOCK ");
    let pages = page(&bench, 0);
    assert_eq!(pages, [0x00, 0x80, 0x83, 0x86, 0xB0, 0xB1, 0xB2, 0xC0]);
    pages.iter().for_each(|number| drop(page(&bench, *number)));
    assert_eq!(page(&bench, 0x80), "5A".repeat(16).as_bytes());
    assert_eq!(bench.refused(&[0x12, 1, 0xC1, 0, 255, 0], &[]).field, Some(FieldPointer::cdb(2)));
}

#[test]
fn capacity_is_reported_in_both_lengths() {
    let bench = Bench::new(B512);
    assert_eq!(bench.get(&ten(0x25, 0, 0, 0)), [0, 0, 7, 0xFF, 0, 0, 2, 0]);
    let long = bench.get(&sixteen(0x9E, 0x10, 0, 32));
    assert_eq!(long.len(), 32);
    assert_eq!(long[..16], [0, 0, 0, 0, 0, 0, 7, 0xFF, 0, 0, 2, 0, 0, 3, 0xC0, 0]);
    assert_eq!(bench.get(&sixteen(0x9E, 0x10, 0, 12)).len(), 12);
    assert_eq!(bench.refused(&ten(0x25, 0, 1, 0), &[]).field, Some(FieldPointer::cdb(2)));
    let huge = Bench::with(disk("huge", B512, 1 << 45));
    assert_eq!(huge.get(&ten(0x25, 0, 0, 0)), [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 2, 0]);
    assert_eq!(huge.get(&sixteen(0x9E, 0x10, 0, 8)), ((1_u64 << 36) - 1).to_be_bytes());
}

/// The reported operation codes are exactly those that are implemented.
#[test]
fn supported_operation_codes_are_those_that_are_answered() {
    for thin in [true, false] {
        let mut new = disk("disk", B512, 1 << 20);
        new.thin = thin;
        let bench = Bench::with(new);
        let all = bench.get(&[0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0]);
        let mut reported: Vec<(u8, Option<u16>)> = all[4..]
            .chunks_exact(8)
            .map(|row| (row[0], (row[5] & 1 == 1).then(|| u16::from_be_bytes([row[2], row[3]]))))
            .collect();
        reported.dedup();
        for code in 0..=255_u8 {
            for action in 0..32_u8 {
                let mut cdb = [0; 16];
                (cdb[0], cdb[1]) = (code, action);
                let reply = bench.send(&cdb, &[], 0);
                let unknown = reply.status == Status::CheckCondition && {
                    let sense = sense(&reply);
                    sense.code == additional::INVALID_COMMAND_OPERATION_CODE
                };
                let has = reported.iter().any(|(reported, _)| *reported == code);
                assert_eq!(!unknown, has, "thin {thin}: {code:#04x}/{action:#04x}");
            }
        }
        assert_eq!(reported.contains(&(0x42, None)), thin);
        let refusal = bench.refused(&[0x48, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
        assert_eq!(refusal.code, additional::INVALID_COMMAND_OPERATION_CODE, "no SANITIZE");
    }
}

#[test]
fn write_protection_keeps_every_change_away() {
    let bench = Bench::new(B512);
    bench.login(2);
    let control = |swp: u8| {
        let mut list = [0, 0, 0, 0, 0x0A, 10].to_vec();
        list.extend(&bench.get(&[0x1A, 0x08, 0x0A, 0, 255, 0])[6..]);
        list[4 + 2 + 2] = swp;
        bench.put(&[0x15, 0x10, 0, 0, 16, 0], &list);
    };
    bench.write(0, &[1; 512]);
    control(0x08);
    assert_eq!(sense(&bench.from(2, &[0; 6], &[], 0)).code, additional::MODE_PARAMETERS_CHANGED);
    assert_eq!(
        bench.from(1, &[0; 6], &[], 0).status,
        Status::Good,
        "the initiator that changed it gets no attention"
    );
    assert_eq!(bench.get(&[0x1A, 0, 0x3F, 0, 255, 0])[2], 0x90, "WP, DPOFUA");
    let (unmap, list) = crate::support::unmap(&[(0, 1)]);
    let writes: [(&[u8], &[u8]); 7] = [
        (&ten(0x2A, 0, 0, 1), &[2; 512]),
        (&ten(0x2E, 0, 0, 1), &[2; 512]),
        (&sixteen(0x8B, 0, 0, 1), &[2; 512]),
        (&sixteen(0x9C, 0, 0, 0), &[]),
        (&sixteen(0x93, 0, 0, 1), &[2; 512]),
        (&unmap, &list),
        (&sixteen(0x89, 0, 0, 0), &[]),
    ];
    for (cdb, data) in writes {
        let refusal = bench.refused(cdb, data);
        assert_eq!(what(&refusal), (SenseKey::DataProtect, additional::WRITE_PROTECTED), "{cdb:02x?}");
    }
    assert_eq!(bench.read(0, 1), [1; 512]);
    bench.put(&ten(0x35, 0, 0, 0), &[]);
    control(0);
    bench.write(0, &[2; 512]);
    control(0x08);
    bench.unit.reset();
    let attentions = [additional::BUS_DEVICE_RESET_OCCURRED, additional::MODE_PARAMETERS_CHANGED];
    for attention in attentions {
        assert_eq!(sense(&bench.from(1, &[0; 6], &[], 0)).code, attention);
    }
    bench.write(0, &[3; 512]);
}

#[test]
fn sense_format_follows_d_sense() {
    let bench = Bench::new(B512);
    let beyond = sixteen(0x88, 0, u64::MAX, 1);
    assert_eq!(bench.send(&beyond, &[], 0).sense[0], 0x70, "fixed; the block does not fit");
    let near = bench.send(&sixteen(0x88, 0, 5000, 1), &[], 0);
    assert_eq!((near.sense[0], &near.sense[3..7]), (0xF0, &5000_u32.to_be_bytes()[..]));
    let mut list = [0, 0, 0, 0, 0x0A, 10].to_vec();
    list.extend(&bench.get(&[0x1A, 0x08, 0x0A, 0, 255, 0])[6..]);
    list[4 + 2] |= 0x04;
    bench.put(&[0x15, 0x10, 0, 0, 16, 0], &list);
    let reply = bench.send(&beyond, &[], 0);
    assert_eq!(reply.sense[0], 0x72);
    assert_eq!(sense(&reply).information, Some(u64::MAX));
}

#[test]
fn removable_medium_ejects_unless_prevented() {
    let mut new = disk("disk", B512, 1 << 20);
    new.removable = true;
    let bench = Bench::with(new);
    bench.login(2);
    let start_stop = |flags: u8| bench.send(&[0x1B, 0, 0, 0, flags, 0], &[], 0);
    assert_eq!(bench.from(2, &[0x1E, 0, 0, 0, 1, 0], &[], 0).status, Status::Good);
    assert_eq!(sense(&start_stop(0x02)).code, additional::MEDIUM_REMOVAL_PREVENTED);
    bench.unit.nexus_lost(NexusId(2));
    assert_eq!(start_stop(0x02).status, Status::Good);
    for cdb in [&[0; 6][..], &ten(0x28, 0, 0, 1), &ten(0x25, 0, 0, 0), &ten(0x2A, 0, 0, 1)] {
        let refusal = bench.refused(cdb, &[0; 512]);
        assert_eq!(what(&refusal), (SenseKey::NotReady, additional::MEDIUM_NOT_PRESENT), "{cdb:02x?}");
    }
    assert_eq!(start_stop(0x03).status, Status::Good);
    bench.write(0, &[1; 512]);
    // Other flags have no effect; a reserved power condition is refused.
    for flags in [0x00, 0x01, 0x04, 0x10, 0x32, 0x70] {
        assert_eq!(start_stop(flags).status, Status::Good);
        assert_eq!(bench.from(1, &[0; 6], &[], 0).status, Status::Good);
    }
    assert_eq!(sense(&start_stop(0x40)).field.expect("a field").byte, 4);
    let fixed = Bench::new(B512);
    assert_eq!(fixed.refused(&[0x1B, 0, 0, 0, 0x02, 0], &[]).field.expect("a field").bit, Some(1));
}

#[test]
fn blocking_commands_report_blocking_cost() {
    let bench = Bench::new(B512);
    let cost = |cdb: &[u8]| bench.unit.cost(NexusId(1), cdb);
    assert_eq!(cost(&ten(0x2A, 0, 0, 1)), Cost::Blocking, "the first write blocks for its mark");
    bench.write(0, &[1; 512]);
    for cdb in [&ten(0x28, 0, 0, 1)[..], &ten(0x2A, 0, 0, 1), &[0x0A, 8, 0, 0, 1, 0], &[0; 6], &[]] {
        assert_eq!(cost(cdb), Cost::Inline, "{cdb:02x?}");
    }
    for cdb in [&ten(0x28, 8, 0, 1)[..], &ten(0x2A, 8, 0, 1), &ten(0x35, 0, 0, 0), &[0x1D, 4, 0, 0, 0, 0]] {
        assert_eq!(cost(cdb), Cost::Blocking, "{cdb:02x?}");
    }
    for code in [0x2E, 0x2F, 0x41, 0x42, 0x8E, 0x8F, 0x93, 0xAE, 0xAF] {
        let mut cdb = [0; 16];
        cdb[0] = code;
        assert_eq!(cost(&cdb), Cost::Long, "{code:#x}: few of one initiator at once");
    }
    // Without a write cache every write blocks.
    let mut list = [0, 0, 0, 0, 0x08, 18].to_vec();
    list.extend([0; 18]);
    bench.put(&[0x15, 0x10, 0, 0, 24, 0], &list);
    assert_eq!(cost(&ten(0x2A, 0, 0, 1)), Cost::Blocking);
    assert_eq!(cost(&ten(0x28, 0, 0, 1)), Cost::Inline);
}

#[test]
fn units_are_created_listed_and_removed() {
    let bench = Bench::new(B512);
    let create = |name: &str, lun: Option<u16>, bytes: u64| {
        let new = NewUnit { lun, ..disk(name, B512, bytes) };
        bench.units.create(new).map(|unit| unit.description().lun)
    };
    assert!(matches!(create("disk", None, 512), Err(CatalogError::NameTaken(_))));
    assert!(matches!(create("Disk", None, 512), Err(CatalogError::Name(_))));
    assert!(matches!(create("two", Some(1), 512), Err(CatalogError::LunTaken(1))));
    assert!(matches!(create("two", Some(0), 512), Err(CatalogError::Lun(0))));
    assert!(matches!(create("two", Some(256), 512), Err(CatalogError::Lun(256))));
    assert!(matches!(create("two", None, 513), Err(CatalogError::Size(_))));
    assert_eq!(create("seven", Some(7), 512).expect("created"), 7);
    assert_eq!(create("two", None, 1 << 30).expect("created"), 2);
    let again = Bench::open(std::sync::Arc::clone(&bench.store));
    let names: Vec<String> =
        again.units.list().expect("listed").into_iter().map(|listed| listed.description.name).collect();
    assert_eq!(names, ["disk", "two", "seven"]);

    let mut list = [[0; 8], 7_u64.to_be_bytes(), [0; 8]].concat();
    list[20] = 1;
    bench.put(&[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list);
    assert!(matches!(bench.units.remove("disk", false), Err(CatalogError::Reserved { initiators: 1, .. })));
    assert!(matches!(bench.units.remove("none", false), Err(CatalogError::NotFound(_))));
    bench.units.remove("disk", true).expect("removed");
    assert_eq!(bench.refused(&ten(0x28, 0, 0, 1), &[]).code, additional::LOGICAL_UNIT_NOT_SUPPORTED);
    assert_eq!(bench.send(&[0x12, 0, 0, 0, 96, 0], &[], 96).data_in[0], 0x7F);
    // The LUN is free again, and a new unit there has none of the old registrations.
    assert_eq!(create("new", None, 1 << 20).expect("created"), 1);
    assert_eq!(bench.units.units()[0].description().name, "new");
    assert_eq!(bench.units.list().expect("listed")[0].reserved_by, 0);
}

/// A damaged record of one unit leaves the others usable, and keeps its name and LUN.
#[test]
fn damaged_record_stops_its_unit_only() {
    let bench = Bench::new(BlockSize::B512);
    for name in ["second", "third", "fourth"] {
        bench.units.create(disk(name, BlockSize::B512, 1 << 20)).expect("created");
    }
    let record = AttributeId { page: 0, number: 1 };
    let of = |lun| ObjectId::new(BLOCK_PARTITION, lun);
    let change = |lun, number, change: &dyn Fn(&mut Vec<u8>)| {
        let id = AttributeId { number, ..record };
        let mut bytes = bench.store.attribute(of(lun), id).expect("read").unwrap_or_default();
        change(&mut bytes);
        bench.store.set_attribute(of(lun), id, &bytes).expect("stored");
    };
    // An unknown block size, a newer version, and a damaged record of reservations.
    change(2, 1, &|bytes| bytes[2] = 13);
    change(3, 1, &|bytes| bytes[0] = 9);
    change(4, 2, &|bytes| *bytes = vec![0xFF; 7]);
    let units = BlockUnits::open(std::sync::Arc::clone(&bench.store), TARGET).expect("opens");
    let served: Vec<_> = units.units().iter().map(|unit| unit.description().name.clone()).collect();
    assert_eq!(served, ["disk"]);
    let damaged = units.damaged();
    let found: Vec<_> = damaged.iter().map(|(unit, _)| (unit.lun, &unit.name[..])).collect();
    assert_eq!(found, [(2, "second"), (3, "lun-3"), (4, "fourth")]);
    for ((unit, _), reason) in damaged.iter().zip(["record is damaged", "version 9", "LUN 4 is damaged"]) {
        assert!(unit.reason.contains(reason) && unit.reason.contains("--force"), "{unit:?}");
    }
    let create = |name: &str, lun| units.create(NewUnit { lun, ..disk(name, BlockSize::B512, 1 << 20) });
    assert!(matches!(create("second", None), Err(CatalogError::NameTaken(_))));
    assert!(matches!(create("new", Some(3)), Err(CatalogError::LunTaken(3))));
    assert_eq!(create("new", None).expect("created").description().lun, 5);
    for refused in [units.remove("second", false).err(), units.set_write_through("second", true).err()] {
        assert!(matches!(refused, Some(CatalogError::Unavailable { .. })), "{refused:?}");
    }
    assert_eq!(units.remove("second", true).expect("removed"), 2);
    assert!(matches!(units.remove("second", true), Err(CatalogError::NotFound(_))));
    assert_eq!(create("second", None).expect("created").description().lun, 2);
    // A record that is restored is used after the next start.
    change(3, 1, &|bytes| bytes[0] = 1);
    let again = BlockUnits::open(std::sync::Arc::clone(&bench.store), TARGET).expect("opens");
    assert_eq!((again.units().len(), again.damaged().len()), (4, 1));
}
