//! Reads and writes of blocks; refused commands change nothing.

use crate::support::{Bench, sense, sixteen, ten, what};
use sealstone_block::BlockSize;
use sealstone_scsi::{FieldPointer, SenseKey, Status, additional};

const B512: BlockSize = BlockSize::B512;
/// Blocks of the 1 MiB unit.
const BLOCKS: u32 = 2048;

fn pattern(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * 512).map(|at| (at as u8).wrapping_mul(31) ^ (at / 512) as u8 ^ seed).collect()
}

/// Returns a 12-byte CDB with LBA and length at the positions of READ(12).
fn twelve(code: u8, flags: u8, lba: u32, blocks: u32) -> [u8; 12] {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[6..10].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Returns a COMPARE AND WRITE CDB.
fn compare(lba: u64, blocks: u8) -> [u8; 16] {
    let mut cdb = sixteen(0x89, 0, lba, 0);
    cdb[13] = blocks;
    cdb
}

#[test]
fn every_read_form_reads_every_write_form() {
    for block in [B512, BlockSize::B4096] {
        let bench = Bench::new(block);
        let size = block.bytes() as usize;
        let reads: [&[u8]; 4] =
            [&[0x08, 0, 0, 9, 2, 0], &ten(0x28, 0, 9, 2), &twelve(0xA8, 0, 9, 2), &sixteen(0x88, 0, 9, 2)];
        let writes: [&[u8]; 8] = [
            &[0x0A, 0, 0, 9, 2, 0],
            &ten(0x2A, 0, 9, 2),
            &twelve(0xAA, 0, 9, 2),
            &sixteen(0x8A, 0, 9, 2),
            &ten(0x2E, 0x02, 9, 2),
            &twelve(0xAE, 0, 9, 2),
            &sixteen(0x8E, 0x02, 9, 2),
            &sixteen(0x9C, 0, 9, 2),
        ];
        for (seed, write) in (1..).zip(writes) {
            let data: Vec<u8> = (0..2 * size).map(|at| (at as u8) ^ seed).collect();
            bench.put(write, &data);
            for read in reads {
                assert!(bench.get(read) == data, "{write:02x?} {read:02x?}");
            }
        }
        assert!(bench.read(8, 1).iter().all(|&byte| byte == 0), "neighbours are untouched");
    }
}

#[test]
fn zero_length_means_256_blocks_in_cdb6_only() {
    let bench = Bench::new(B512);
    let data = pattern(3, 256);
    bench.put(&[0x0A, 0, 0, 0, 0, 0], &data);
    assert!(bench.get(&[0x08, 0, 0, 0, 0, 0]) == data);
    for cdb in [&ten(0x28, 0, 5, 0)[..], &ten(0x2A, 0, 5, 0), &twelve(0xA8, 0, 5, 0), &sixteen(0x88, 0, 5, 0)]
    {
        assert_eq!(bench.get(cdb), []);
    }
    // An empty transfer at the end of the unit is valid; beyond the end it is not.
    assert_eq!(bench.get(&ten(0x28, 0, BLOCKS, 0)), []);
    assert_eq!(bench.refused(&ten(0x28, 0, BLOCKS + 1, 0), &[]).code, additional::LBA_OUT_OF_RANGE);
}

#[test]
fn out_of_range_error_reports_first_bad_block() {
    let bench = Bench::new(B512);
    let data = pattern(1, 2);
    bench.write(u64::from(BLOCKS) - 1, &data[..512]);
    let codes: [(&[u8], u64); 8] = [
        (&ten(0x28, 0, BLOCKS - 1, 2), 2048),
        (&ten(0x2A, 0, BLOCKS, 1), 2048),
        (&sixteen(0x88, 0, u64::MAX, 1), u64::MAX),
        (&sixteen(0x8A, 0, u64::MAX - 1, 8), u64::MAX - 1),
        (&sixteen(0x8B, 0, 4000, 1), 4000),
        (&ten(0x2F, 0, BLOCKS - 1, 3), 2048),
        (&ten(0x34, 0, 5000, 1), 5000),
        (&ten(0x35, 0, 5000, 1), 5000),
    ];
    for (cdb, first) in codes {
        let refusal = bench.refused(cdb, &data);
        assert_eq!(what(&refusal), (SenseKey::IllegalRequest, additional::LBA_OUT_OF_RANGE), "{cdb:02x?}");
        let told = u32::try_from(first).ok().map(u64::from);
        assert_eq!(refusal.information, told, "fixed format has 32 bits: {cdb:02x?}");
    }
    assert!(bench.read(u64::from(BLOCKS) - 1, 1) == data[..512], "nothing was written");
}

#[test]
fn protection_information_is_refused_everywhere() {
    let bench = Bench::new(B512);
    let data = pattern(1, 1);
    for flags in (1..8).map(|protect: u8| protect << 5) {
        let all: [&[u8]; 10] = [
            &ten(0x28, flags, 0, 1),
            &ten(0x2A, flags, 0, 1),
            &ten(0x2E, flags, 0, 1),
            &ten(0x2F, flags, 0, 1),
            &ten(0x41, flags, 0, 1),
            &twelve(0xA8, flags, 0, 1),
            &sixteen(0x8B, flags, 0, 1),
            &sixteen(0x89, flags, 0, 0),
            &sixteen(0x93, flags, 0, 1),
            &sixteen(0x9C, flags, 0, 1),
        ];
        for cdb in all {
            let refusal = bench.refused(cdb, &data);
            assert_eq!(refusal.code, additional::INVALID_FIELD_IN_CDB, "{cdb:02x?}");
            assert_eq!(refusal.field, Some(FieldPointer { in_cdb: true, byte: 1, bit: Some(7) }));
        }
    }
}

#[test]
fn naca_and_overlong_transfer_point_to_field() {
    let bench = Bench::new(B512);
    let mut cdb = ten(0x28, 0, 0, 1);
    cdb[9] = 0x04;
    assert_eq!(bench.refused(&cdb, &[]).field, Some(FieldPointer { in_cdb: true, byte: 9, bit: Some(2) }));
    let refusal = bench.refused(&twelve(0xA8, 0, 0, 32769), &[]);
    assert_eq!((refusal.code, refusal.field), (additional::INVALID_FIELD_IN_CDB, Some(FieldPointer::cdb(6))));
}

#[test]
fn short_data_out_writes_nothing_and_reports_residual() {
    let bench = Bench::new(B512);
    let old = pattern(7, 2);
    bench.write(4, &old);
    for cdb in [&ten(0x2A, 0, 4, 2)[..], &ten(0x2E, 0, 4, 2), &sixteen(0x8B, 0, 4, 2), &ten(0x2F, 0x02, 4, 2)]
    {
        let reply = bench.send(cdb, &[0xFF; 700], 0);
        let code = additional::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT;
        assert_eq!(what(&sense(&reply)), (SenseKey::IllegalRequest, code), "{cdb:02x?}");
        assert_eq!(reply.data_out_used, 1024, "the residual comes from it");
    }
    assert!(bench.read(4, 2) == old);
    // Surplus data-out is ignored.
    let reply = bench.send(&ten(0x2A, 0, 4, 1), &[0xFF; 2000], 0);
    assert_eq!((reply.status, reply.data_out_used), (Status::Good, 512));
    assert!(bench.read(5, 1) == old[512..]);
}

#[test]
fn read_is_truncated_and_reports_full_length() {
    let bench = Bench::new(B512);
    bench.write(0, &pattern(9, 4));
    let reply = bench.send(&ten(0x28, 0, 0, 4), &[], 700);
    assert_eq!((reply.status, reply.data_in_wanted), (Status::Good, 2048));
    assert!(reply.data_in == pattern(9, 4)[..700]);
}

#[test]
fn verify_compares_by_bytchk() {
    let bench = Bench::new(B512);
    let data = pattern(5, 3);
    bench.write(20, &data);
    bench.put(&ten(0x2F, 0, 20, 3), &[]);
    bench.put(&ten(0x2F, 0x02, 20, 3), &data);
    let mut other = data.clone();
    other[1500] ^= 1;
    let refusal = bench.refused(&ten(0x2F, 0x02, 20, 3), &other);
    assert_eq!(what(&refusal), (SenseKey::Miscompare, additional::MISCOMPARE_DURING_VERIFY));
    bench.put(&sixteen(0x8A, 0, 40, 2), &[pattern(1, 1), pattern(1, 1)].concat());
    bench.put(&twelve(0xAF, 0x06, 40, 2), &pattern(1, 1));
    assert_eq!(bench.refused(&sixteen(0x8F, 0x06, 39, 2), &pattern(1, 1)).key, SenseKey::Miscompare);
    let reserved = bench.refused(&ten(0x2F, 0x04, 20, 1), &data[..512]);
    assert_eq!(reserved.field, Some(FieldPointer { in_cdb: true, byte: 1, bit: Some(2) }));
}

#[test]
fn compare_and_write_writes_only_after_match() {
    let bench = Bench::new(B512);
    let (old, new) = (pattern(1, 2), pattern(2, 2));
    bench.write(100, &old);
    let both = |compare: &[u8], write: &[u8]| [compare, write].concat();
    let mut wrong = old.clone();
    wrong[777] ^= 0x80;
    let refusal = bench.refused(&compare(100, 2), &both(&wrong, &new));
    assert_eq!(what(&refusal), (SenseKey::Miscompare, additional::MISCOMPARE_DURING_VERIFY));
    assert_eq!(refusal.information, Some(777));
    assert!(bench.read(100, 2) == old);
    bench.put(&compare(100, 2), &both(&old, &new));
    assert!(bench.read(100, 2) == new);
    bench.put(&compare(100, 0), &[]);
    assert_eq!(bench.refused(&compare(100, 0), &[0; 1024]).field, Some(FieldPointer::cdb(13)));
    for length in [512, 1023, 1025, 4096] {
        let refusal = bench.refused(&compare(100, 1), &vec![0; length]);
        assert_eq!(refusal.code, additional::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT, "{length}");
    }
}

#[test]
fn or_write_sets_bits_and_clears_none() {
    let bench = Bench::new(B512);
    let (first, second) = (pattern(0x55, 2), pattern(0xF0, 2));
    bench.write(7, &first);
    bench.put(&sixteen(0x8B, 0x08, 7, 2), &second);
    let expected: Vec<u8> = first.iter().zip(&second).map(|(a, b)| a | b).collect();
    assert!(bench.read(7, 2) == expected);
}

#[test]
fn atomic_writes_take_no_boundary() {
    let bench = Bench::new(B512);
    let mut cdb = sixteen(0x9C, 0, 0, 1);
    cdb[10] = 1;
    assert_eq!(bench.refused(&cdb, &pattern(1, 1)).field, Some(FieldPointer::cdb(10)));
}

/// Threads that increment with COMPARE AND WRITE lose no update.
#[test]
fn compare_and_write_is_atomic_between_nexuses() {
    const THREADS: u64 = 4;
    const STEPS: u32 = 50;
    let bench = Bench::new(B512);
    for nexus in 2..=THREADS {
        bench.login(nexus);
    }
    let count = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
    std::thread::scope(|scope| {
        for nexus in 1..=THREADS {
            let bench = &bench;
            scope.spawn(move || {
                let mut done = 0;
                while done < STEPS {
                    let old = bench.from(nexus, &sixteen(0x88, 0, 3, 1), &[], 512).data_in.to_vec();
                    let mut new = old.clone();
                    new[..4].copy_from_slice(&(count(&old) + 1).to_be_bytes());
                    let reply = bench.from(nexus, &compare(3, 1), &[old, new].concat(), 0);
                    done += u32::from(reply.status == Status::Good);
                }
            });
        }
    });
    assert_eq!(count(&bench.read(3, 1)), STEPS * THREADS as u32);
}
