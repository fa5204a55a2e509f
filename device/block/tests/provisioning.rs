//! Thin units allocate space by writes and free it; full units have all space from the start.

use crate::support::{Bench, CAPACITY, disk, sixteen, ten, unmap, what};
use sealstone_block::{BlockSize, CatalogError};
use sealstone_scsi::{FieldPointer, SenseKey, additional};

/// Returns GET LBA STATUS from a block on: (lba, blocks, deallocated).
fn status(bench: &Bench, lba: u64) -> Vec<(u64, u32, bool)> {
    let mut cdb = sixteen(0x9E, 0x12, lba, 4096);
    cdb[14] = 0;
    let data = bench.get(&cdb);
    assert_eq!(
        u32::from_be_bytes(data[..4].try_into().expect("complete descriptor")) as usize + 4,
        data.len()
    );
    let one = |entry: &[u8]| {
        let lba = u64::from_be_bytes(entry[..8].try_into().expect("complete descriptor"));
        (lba, u32::from_be_bytes(entry[8..12].try_into().expect("complete descriptor")), entry[12] == 1)
    };
    data[8..].chunks_exact(16).map(one).collect()
}

#[test]
fn unmapped_blocks_read_zero_and_use_no_space() {
    for block in [BlockSize::B512, BlockSize::B4096] {
        let bench = Bench::new(block);
        let per_store_block = 4096 / block.bytes();
        let size = block.bytes() as usize;
        let empty = bench.store.space().used;
        bench.write(0, &vec![0xAB; 16 * 4096]);
        assert_eq!(bench.store.space().used - empty, 16 * 4096);
        let (cdb, list) = unmap(&[(4 * per_store_block, 8 * per_store_block as u32)]);
        bench.put(&cdb, &list);
        assert_eq!(bench.store.space().used - empty, 8 * 4096);
        assert!(bench.read(4 * per_store_block, 2).iter().all(|&byte| byte == 0));
        let unit = 256 * per_store_block;
        let p = per_store_block;
        assert_eq!(
            status(&bench, 0),
            [
                (0, 4 * p as u32, false),
                (4 * p, 8 * p as u32, true),
                (12 * p, 4 * p as u32, false),
                (16 * p, (unit - 16 * p) as u32, true),
            ]
        );
        assert_eq!(status(&bench, 5 * p)[0], (5 * p, 7 * p as u32, true));
        // A partial block of the store becomes zeros and stays mapped.
        if block == BlockSize::B512 {
            let (cdb, list) = unmap(&[(1, 3)]);
            bench.put(&cdb, &list);
            let data = bench.read(0, 5);
            assert!(
                data[size..4 * size].iter().all(|&byte| byte == 0)
                    && data[0] == 0xAB
                    && data[4 * size] == 0xAB
            );
            assert!(!status(&bench, 1)[0].2);
        }
    }
}

#[test]
fn unmap_list_is_checked_before_any_change() {
    let bench = Bench::new(BlockSize::B512);
    bench.write(0, &[0xAB; 8192]);
    let (cdb, list) = unmap(&[(0, 8), (2040, 9)]);
    let refusal = bench.refused(&cdb, &list);
    assert_eq!((refusal.code, refusal.information), (additional::LBA_OUT_OF_RANGE, Some(2048)));
    assert_eq!(bench.read(0, 1), [0xAB; 512], "nothing was unmapped");
    let (cdb, list) = unmap(&vec![(0, 1); 257]);
    assert_eq!(bench.refused(&cdb, &list).field, Some(FieldPointer::parameter(2)));
    let (cdb, list) = unmap(&[(0, 8), (0, u32::MAX)]);
    assert_eq!(bench.refused(&cdb, &list).field, Some(FieldPointer::parameter(32)));
    bench.put(&ten(0x42, 0, 0, 0), &[]);
    let (cdb, list) = unmap(&[]);
    bench.put(&cdb, &list);
    for cut in [1, 7] {
        let refusal = bench.refused(&ten(0x42, 0, 0, cut), &list[..usize::from(cut)]);
        assert_eq!(refusal.code, additional::PARAMETER_LIST_LENGTH_ERROR);
    }
    assert_eq!(bench.refused(&ten(0x42, 1, 0, 0), &[]).field.unwrap().bit, Some(0), "no anchors");
}

#[test]
fn write_same_fills_or_unmaps() {
    let bench = Bench::new(BlockSize::B512);
    let block: Vec<u8> = (0..512).map(|at| at as u8).collect();
    bench.put(&ten(0x41, 0, 3, 2000), &block);
    let data = bench.read(3, 2000);
    assert!(data.chunks_exact(512).all(|found| found == block));
    assert!(bench.read(2003, 1).iter().all(|&byte| byte == 0));
    // Zeros with UNMAP unmap; other data with UNMAP is written.
    bench.put(&sixteen(0x93, 0x08, 8, 8), &[0; 512]);
    assert!(status(&bench, 8)[0].2);
    bench.put(&sixteen(0x93, 0x08, 8, 8), &block);
    assert!(!status(&bench, 8)[0].2 && bench.read(15, 1) == block);
    // No data-out means zeros, mapped without UNMAP.
    bench.put(&sixteen(0x93, 0x01, 8, 8), &[]);
    assert!(!status(&bench, 8)[0].2 && bench.read(8, 8).iter().all(|&byte| byte == 0));
    bench.put(&sixteen(0x93, 0x09, 8, 8), &[]);
    assert!(status(&bench, 8)[0].2);
    let refusals: [(&[u8], &[u8], u16); 5] = [
        (&ten(0x41, 0x10, 0, 1), &block, 1),
        (&ten(0x41, 0x02, 0, 1), &block, 1),
        (&ten(0x41, 0x01, 0, 1), &[], 1),
        (&ten(0x41, 0, 0, 0), &block, 7),
        (&sixteen(0x93, 0, 0, 32769), &block, 10),
    ];
    for (cdb, data, byte) in refusals {
        let refusal = bench.refused(cdb, data);
        assert_eq!(
            (refusal.code, refusal.field.unwrap().byte),
            (additional::INVALID_FIELD_IN_CDB, byte),
            "{cdb:02x?}"
        );
    }
    for length in [0, 511, 1024] {
        let refusal = bench.refused(&ten(0x41, 0, 0, 1), &vec![1; length]);
        assert_eq!(refusal.code, additional::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    }
}

#[test]
fn full_store_refuses_allocation_but_allows_overwrite() {
    let bench = Bench::with(disk("large", BlockSize::B4096, 2 * CAPACITY));
    let piece = vec![0x11; 1 << 20];
    let mut stored = 0;
    let refusal = loop {
        let reply = bench.send(&sixteen(0x8A, 0, stored * 256, 256), &piece, 0);
        if reply.status != sealstone_scsi::Status::Good {
            break crate::support::sense(&reply);
        }
        stored += 1;
        assert!(stored < 100);
    };
    assert_eq!(what(&refusal), (SenseKey::DataProtect, additional::SPACE_ALLOCATION_FAILED));
    assert!(stored >= 60);
    bench.write(0, &vec![0x22; 1 << 20]);
    let (cdb, list) = unmap(&[(256, 256)]);
    bench.put(&cdb, &list);
    bench.write(stored * 256, &piece);
}

#[test]
fn fully_provisioned_unit_keeps_its_space() {
    let mut new = disk("full", BlockSize::B4096, 8 << 20);
    new.thin = false;
    let bench = Bench::with(new);
    assert_eq!(bench.units.list().unwrap()[0].used_bytes, 8 << 20);
    let (cdb, list) = unmap(&[(0, 1)]);
    assert_eq!(bench.refused(&cdb, &list).code, additional::INVALID_COMMAND_OPERATION_CODE);
    assert_eq!(bench.refused(&sixteen(0x9E, 0x12, 0, 64), &[]).code, additional::INVALID_FIELD_IN_CDB);
    assert_eq!(bench.refused(&sixteen(0x93, 0x08, 0, 1), &[0; 4096]).field.unwrap().bit, Some(3));
    let capacity = bench.get(&sixteen(0x9E, 0x10, 0, 32));
    assert_eq!(capacity[14], 0);
    let mut larger = disk("larger", BlockSize::B4096, CAPACITY);
    larger.thin = false;
    let refused = bench.units.create(larger);
    assert!(matches!(refused, Err(CatalogError::NoSpace { wanted: CAPACITY, .. })), "{refused:?}");
}
