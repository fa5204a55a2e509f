//! A block logical unit (SBC-3, SPC-4), as used by ordinary initiators.

use crate::device::number;
use crate::iscsi::{Connection, ScsiReply};
use crate::runner::skip;
use crate::sense;
use crate::suite::behaviours;
use crate::target::Portal;

behaviours! { "Block logical units";
    Block "SPC-4 6.6.2" block_unit_is_direct_access_device;
    Block "SBC-3 5.15, 5.16" both_capacities_agree;
    Block "SBC-3 5.16" a_capacity_beyond_the_allocation_is_cut;
    Block "SBC-3 5.9, 5.35" written_blocks_are_read_by_every_form;
    Block "SBC-3 4.5" a_transfer_of_no_blocks_is_no_error;
    Block "SBC-3 4.5" a_read_beyond_the_end_is_refused;
    Block "SBC-3 4.5" write_beyond_the_end_changes_nothing;
    Block "SBC-3 5.9" protection_information_is_refused;
    Block "SBC-3 5.2" compare_and_write_writes_after_match;
    Block "SBC-3 5.2" compare_and_write_writes_nothing_on_a_miscompare;
    Block "SBC-3 5.33" verify_compares_bytes;
    Block "SBC-3 5.50" write_same_repeats_its_block;
    Block "SBC-3 5.8" orwrite_sets_bits_and_clears_none;
    Block "SBC-3 5.28" unmapped_blocks_read_as_the_unit_promises;
    Block "SBC-3 5.4" lba_status_reports_unmapped_blocks;
    Block "SBC-3 5.26" caches_are_synchronized;
    Block "SBC-3 5.35" a_forced_write_is_read;
    Block "SBC-3 6.5.3" block_limits_are_reported;
    Block "SBC-3 6.5.5" logical_block_provisioning_is_reported;
    Block "SPC-4 6.11" caching_page_is_reported;
    Block "SPC-4 4.3" block_unit_refuses_osd_commands;
    Block "SPC-4 4.3" block_unit_refuses_unknown_operation_code;
    Block "SPC-4 5.13" a_registered_initiator_reserves_and_releases;
    Block "SPC-4 5.13" a_reservation_keeps_others_from_writing;
    Block "SPC-4 6.15" keys_and_reservations_are_read;
    Block "SPC-4 5.13" a_wrong_reservation_key_conflicts;
    Block "SAM-5 5.14" block_unit_reports_attention_to_new_nexus;
}

const CONFLICT: u8 = 0x18;

fn session(portal: &Portal) -> Connection {
    Connection::session(portal)
}

fn named(portal: &Portal, name: &str) -> Connection {
    let mut connection = Connection::open(portal);
    connection.log_in(name, &[]);
    for _ in 0..4 {
        if connection.command(&[0; 6], &[], 0).status != 2 {
            break;
        }
    }
    connection
}

#[track_caller]
fn good(reply: ScsiReply) -> ScsiReply {
    assert_eq!(reply.status, 0, "{:02x?}", reply.sense);
    reply
}

#[track_caller]
fn refused(reply: &ScsiReply, key: u8, code: u16) {
    assert_eq!(reply.status, 2, "not refused");
    assert_eq!(sense::codes(&reply.sense), (key, code), "{:02x?}", reply.sense);
}

/// Skips the test if the unit lacks an optional command.
#[track_caller]
fn there(reply: ScsiReply) -> ScsiReply {
    if reply.status == 2 && sense::codes(&reply.sense) == (5, 0x2000) {
        skip("the unit does not have the command");
    }
    reply
}

/// Returns the block size and the number of the last block.
fn capacity(connection: &mut Connection) -> (usize, u64) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9E, 0x10, 32);
    let data = good(connection.command(&cdb, &[], 32)).data_in;
    (number(&data[8..12]) as usize, number(&data[..8]))
}

fn ten(code: u8, flags: u8, at: u64, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..6].copy_from_slice(&(at as u32).to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn sixteen(code: u8, flags: u8, at: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&at.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn twelve(code: u8, flags: u8, at: u64, blocks: u32) -> [u8; 12] {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..6].copy_from_slice(&(at as u32).to_be_bytes());
    cdb[6..10].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|at| (at * 7 % 251) as u8 ^ salt).collect()
}

fn write(connection: &mut Connection, at: u64, data: &[u8], block: usize) {
    good(connection.command(&sixteen(0x8A, 0, at, (data.len() / block) as u32), data, 0));
}

fn read(connection: &mut Connection, at: u64, blocks: u32, block: usize) -> Vec<u8> {
    good(connection.command(&sixteen(0x88, 0, at, blocks), &[], blocks as usize * block)).data_in
}

fn block_unit_is_direct_access_device(portal: &Portal) {
    let data = good(session(portal).command(&[0x12, 0, 0, 0, 96, 0], &[], 96)).data_in;
    assert_eq!(data[0], 0, "connected, direct access block device");
    assert!(data.len() >= 36 && data[3] & 0x0F == 2);
}

fn both_capacities_agree(portal: &Portal) {
    let mut connection = session(portal);
    let (block, last) = capacity(&mut connection);
    assert!(matches!(block, 512 | 4096), "{block}");
    let data = good(connection.command(&ten(0x25, 0, 0, 0), &[], 8)).data_in;
    assert_eq!(number(&data[..4]), last.min(0xFFFF_FFFF));
    assert_eq!(number(&data[4..8]) as usize, block);
}

fn a_capacity_beyond_the_allocation_is_cut(portal: &Portal) {
    let mut connection = session(portal);
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9E, 0x10, 12);
    assert_eq!(good(connection.command(&cdb, &[], 12)).data_in.len(), 12);
}

fn written_blocks_are_read_by_every_form(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    for (salt, code) in [(1_u8, 0x2A_u8), (2, 0xAA), (3, 0x8A)] {
        let data = pattern(3 * block, salt);
        let written = match code {
            0x2A => connection.command(&ten(code, 0, 5, 3), &data, 0),
            0xAA => connection.command(&twelve(code, 0, 5, 3), &data, 0),
            _ => connection.command(&sixteen(code, 0, 5, 3), &data, 0),
        };
        good(written);
        let length = 3 * block;
        assert!(good(connection.command(&ten(0x28, 0, 5, 3), &[], length)).data_in == data, "READ (10)");
        assert!(good(connection.command(&twelve(0xA8, 0, 5, 3), &[], length)).data_in == data, "READ (12)");
        assert!(good(connection.command(&sixteen(0x88, 0, 5, 3), &[], length)).data_in == data, "READ (16)");
    }
}

fn a_transfer_of_no_blocks_is_no_error(portal: &Portal) {
    let mut connection = session(portal);
    good(connection.command(&ten(0x28, 0, 0, 0), &[], 0));
    good(connection.command(&ten(0x2A, 0, 0, 0), &[], 0));
    good(connection.command(&sixteen(0x88, 0, 0, 0), &[], 0));
}

fn a_read_beyond_the_end_is_refused(portal: &Portal) {
    let mut connection = session(portal);
    let (block, last) = capacity(&mut connection);
    good(connection.command(&sixteen(0x88, 0, last, 1), &[], block));
    for (at, blocks) in [(last, 2), (last + 1, 1), (u64::MAX, 1)] {
        let reply = connection.command(&sixteen(0x88, 0, at, blocks), &[], blocks as usize * block);
        refused(&reply, 5, 0x2100);
        assert!(reply.data_in.is_empty());
    }
}

fn write_beyond_the_end_changes_nothing(portal: &Portal) {
    let mut connection = session(portal);
    let (block, last) = capacity(&mut connection);
    let before = pattern(block, 0x33);
    write(&mut connection, last, &before, block);
    let reply = connection.command(&sixteen(0x8A, 0, last, 2), &vec![0xEE; 2 * block], 0);
    refused(&reply, 5, 0x2100);
    assert!(read(&mut connection, last, 1, block) == before);
}

fn protection_information_is_refused(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    for protect in [0x20, 0xA0] {
        let reply = connection.command(&ten(0x28, protect, 0, 1), &[], block);
        refused(&reply, 5, 0x2400);
    }
}

/// Sends COMPARE AND WRITE with both halves, one block each.
fn compare_and_write(connection: &mut Connection, at: u64, halves: &[u8]) -> ScsiReply {
    let mut cdb = sixteen(0x89, 0, at, 0);
    cdb[13] = 1;
    there(connection.command(&cdb, halves, 0))
}

fn compare_and_write_writes_after_match(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    let (old, new) = (pattern(block, 1), pattern(block, 2));
    write(&mut connection, 9, &old, block);
    good(compare_and_write(&mut connection, 9, &[&old[..], &new].concat()));
    assert!(read(&mut connection, 9, 1, block) == new);
}

fn compare_and_write_writes_nothing_on_a_miscompare(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    let old = pattern(block, 1);
    write(&mut connection, 9, &old, block);
    let mut guess = old.clone();
    guess[100] ^= 1;
    let reply = compare_and_write(&mut connection, 9, &[&guess[..], &pattern(block, 2)].concat());
    refused(&reply, 0x0E, 0x1D00);
    assert!(read(&mut connection, 9, 1, block) == old);
}

fn verify_compares_bytes(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    let data = pattern(2 * block, 7);
    write(&mut connection, 20, &data, block);
    good(there(connection.command(&ten(0x2F, 0, 20, 2), &[], 0)));
    good(connection.command(&ten(0x2F, 0x02, 20, 2), &data, 0));
    let mut other = data;
    other[block + 1] ^= 1;
    let reply = connection.command(&ten(0x2F, 0x02, 20, 2), &other, 0);
    refused(&reply, 0x0E, 0x1D00);
}

fn write_same_repeats_its_block(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    let data = pattern(block, 5);
    good(there(connection.command(&ten(0x41, 0, 30, 4), &data, 0)));
    assert!(read(&mut connection, 30, 4, block) == data.repeat(4));
    good(connection.command(&sixteen(0x93, 0, 31, 2), &pattern(block, 6), 0));
    let all = [data.clone(), pattern(block, 6).repeat(2), data].concat();
    assert!(read(&mut connection, 30, 4, block) == all);
}

fn orwrite_sets_bits_and_clears_none(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    write(&mut connection, 40, &vec![0x0F; block], block);
    good(there(connection.command(&sixteen(0x8B, 0, 40, 1), &vec![0x55; block], 0)));
    assert_eq!(read(&mut connection, 40, 1, block), vec![0x5F; block]);
}

fn unmap(connection: &mut Connection, at: u64, blocks: u32) -> ScsiReply {
    let mut list = vec![0; 24];
    list[1] = 22;
    list[3] = 16;
    list[8..16].copy_from_slice(&at.to_be_bytes());
    list[16..20].copy_from_slice(&blocks.to_be_bytes());
    let mut cdb = [0; 10];
    (cdb[0], cdb[8]) = (0x42, 24);
    there(connection.command(&cdb, &list, 0))
}

fn page(connection: &mut Connection, page: u8) -> Vec<u8> {
    let reply = connection.command(&[0x12, 1, page, 2, 0, 0], &[], 512);
    if reply.status != 0 {
        skip("the unit does not have the page");
    }
    reply.data_in
}

fn unmapped_blocks_read_as_the_unit_promises(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    let zeros = page(&mut connection, 0xB2)[5] & 0x04 != 0;
    let blocks = (65_536 / block) as u32;
    write(&mut connection, 128, &pattern(65_536, 9), block);
    good(unmap(&mut connection, 128, blocks));
    let data = read(&mut connection, 128, blocks, block);
    assert_eq!(data.len(), 65_536);
    if zeros {
        assert!(data.iter().all(|byte| *byte == 0), "LBPRZ");
    }
    // A written block is mapped again, and its neighbours are unchanged.
    write(&mut connection, 130, &pattern(block, 3), block);
    assert!(read(&mut connection, 130, 1, block) == pattern(block, 3));
}

fn lba_status_reports_unmapped_blocks(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    let blocks = ((1 << 20) / block) as u32;
    let start = u64::from(blocks);
    write(&mut connection, start, &pattern(1 << 20, 9), block);
    let status = |connection: &mut Connection| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9E, 0x12, 24);
        cdb[2..10].copy_from_slice(&start.to_be_bytes());
        let data = good(there(connection.command(&cdb, &[], 24))).data_in;
        assert_eq!(number(&data[8..16]), start);
        data[20] & 0x0F
    };
    assert_eq!(status(&mut connection), 0, "mapped");
    good(unmap(&mut connection, start, blocks));
    assert_ne!(status(&mut connection), 0, "deallocated or anchored");
}

fn caches_are_synchronized(portal: &Portal) {
    let mut connection = session(portal);
    good(connection.command(&ten(0x35, 0, 0, 0), &[], 0));
    good(connection.command(&sixteen(0x91, 0, 0, 8), &[], 0));
    let (_, last) = capacity(&mut connection);
    let reply = connection.command(&sixteen(0x91, 0, last, 2), &[], 0);
    refused(&reply, 5, 0x2100);
}

fn a_forced_write_is_read(portal: &Portal) {
    let mut connection = session(portal);
    let (block, _) = capacity(&mut connection);
    let data = pattern(block, 0x44);
    good(connection.command(&ten(0x2A, 0x08, 50, 1), &data, 0));
    assert!(good(connection.command(&ten(0x28, 0x08, 50, 1), &[], block)).data_in == data);
}

fn block_limits_are_reported(portal: &Portal) {
    let data = page(&mut session(portal), 0xB0);
    assert_eq!((data[1], number(&data[2..4])), (0xB0, 0x3C));
    assert!(number(&data[8..12]) > 0, "a longest transfer");
}

fn logical_block_provisioning_is_reported(portal: &Portal) {
    let mut connection = session(portal);
    let data = page(&mut connection, 0xB2);
    assert!(data.len() >= 8 && data[1] == 0xB2);
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9E, 0x10, 32);
    let capacity = good(connection.command(&cdb, &[], 32)).data_in;
    let (managed, unmaps) = (capacity[14] & 0x80 != 0, data[5] & 0x80 != 0);
    assert!(managed || !unmaps, "a unit that unmaps says that provisioning is managed");
}

fn caching_page_is_reported(portal: &Portal) {
    let mut connection = session(portal);
    let reply = good(connection.command(&[0x1A, 0x08, 0x08, 0, 192, 0], &[], 192));
    let data = reply.data_in;
    assert_eq!(usize::from(data[0]) + 1, data.len(), "mode data length");
    assert_eq!((data[4] & 0x3F, data[5]), (0x08, 0x12), "caching page");
}

fn block_unit_refuses_osd_commands(portal: &Portal) {
    let mut connection = session(portal);
    let mut cdb = vec![0; 236];
    (cdb[0], cdb[7], cdb[11]) = (0x7F, 228, 0x30);
    cdb[8..10].copy_from_slice(&0x8883_u16.to_be_bytes());
    let reply = connection.command(&cdb, &[], 0);
    assert_eq!(reply.status, 2);
    assert_eq!(sense::codes(&reply.sense).0, 5, "{:02x?}", reply.sense);
}

fn block_unit_refuses_unknown_operation_code(portal: &Portal) {
    let mut connection = session(portal);
    for code in [0x02, 0xC1, 0xFE] {
        refused(&connection.command(&[code, 0, 0, 0, 0, 0], &[], 0), 5, 0x2000);
    }
}

/// Sends PERSISTENT RESERVE OUT: action, type, own key, and the key in the parameter list.
fn reserve_out(connection: &mut Connection, action: u8, kind: u8, key: u64, service_key: u64) -> u8 {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5F, action, kind, 24);
    let mut list = [key.to_be_bytes(), service_key.to_be_bytes()].concat();
    list.resize(24, 0);
    there(connection.command(&cdb, &list, 0)).status
}

fn reserve_in(connection: &mut Connection, action: u8) -> Vec<u8> {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1], cdb[7]) = (0x5E, action, 2);
    good(there(connection.command(&cdb, &[], 512))).data_in
}

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const REGISTER_AND_IGNORE: u8 = 6;
const WRITE_EXCLUSIVE: u8 = 1;

/// Opens a session with its own registration; the test clears it at its end.
fn registered(portal: &Portal, name: &str, key: u64) -> Connection {
    let mut connection = named(portal, name);
    assert_eq!(reserve_out(&mut connection, REGISTER_AND_IGNORE, 0, 0, key), 0);
    connection
}

fn a_registered_initiator_reserves_and_releases(portal: &Portal) {
    let mut one = registered(portal, "reserver", 0xAAAA);
    assert_eq!(reserve_out(&mut one, RESERVE, WRITE_EXCLUSIVE, 0xAAAA, 0), 0);
    assert_eq!(reserve_out(&mut one, RESERVE, WRITE_EXCLUSIVE, 0xAAAA, 0), 0, "again, by its holder");
    assert_eq!(reserve_out(&mut one, RELEASE, WRITE_EXCLUSIVE, 0xAAAA, 0), 0);
    assert_eq!(reserve_out(&mut one, CLEAR, 0, 0xAAAA, 0), 0);
}

fn a_reservation_keeps_others_from_writing(portal: &Portal) {
    let mut one = registered(portal, "reserver", 0xAAAA);
    let mut other = named(portal, "stranger");
    let (block, _) = capacity(&mut other);
    assert_eq!(reserve_out(&mut one, RESERVE, WRITE_EXCLUSIVE, 0xAAAA, 0), 0);
    let data = vec![1; block];
    assert_eq!(other.command(&sixteen(0x8A, 0, 60, 1), &data, 0).status, CONFLICT);
    assert_eq!(other.command(&sixteen(0x88, 0, 60, 1), &[], block).status, 0, "reads are free");
    good(one.command(&sixteen(0x8A, 0, 60, 1), &data, 0));
    assert_eq!(reserve_out(&mut one, CLEAR, 0, 0xAAAA, 0), 0);
    good(other.command(&sixteen(0x8A, 0, 60, 1), &data, 0));
}

fn keys_and_reservations_are_read(portal: &Portal) {
    let mut one = registered(portal, "reserver", 0xAAAA);
    assert_eq!(reserve_out(&mut one, RESERVE, WRITE_EXCLUSIVE, 0xAAAA, 0), 0);
    let keys = reserve_in(&mut one, 0);
    assert!(keys[8..].chunks_exact(8).any(|key| number(key) == 0xAAAA), "{keys:02x?}");
    let reservation = reserve_in(&mut one, 1);
    assert_eq!((number(&reservation[4..8]), number(&reservation[8..16])), (16, 0xAAAA));
    assert_eq!(reservation[21] & 0x0F, WRITE_EXCLUSIVE);
    assert_eq!(reserve_out(&mut one, CLEAR, 0, 0xAAAA, 0), 0);
    assert_eq!(number(&reserve_in(&mut one, 1)[4..8]), 0, "nobody holds it any more");
}

fn a_wrong_reservation_key_conflicts(portal: &Portal) {
    let mut one = registered(portal, "reserver", 0xAAAA);
    assert_eq!(reserve_out(&mut one, RESERVE, WRITE_EXCLUSIVE, 0xBBBB, 0), CONFLICT);
    assert_eq!(reserve_out(&mut one, REGISTER, 0, 0xBBBB, 0xCCCC), CONFLICT);
    assert_eq!(reserve_out(&mut one, CLEAR, 0, 0xAAAA, 0), 0);
}

fn block_unit_reports_attention_to_new_nexus(portal: &Portal) {
    let mut connection = Connection::open(portal);
    connection.log_in("attention", &[]);
    let reply = connection.command(&[0; 6], &[], 0);
    assert_eq!(reply.status, 2);
    let (key, code) = sense::codes(&reply.sense);
    assert_eq!((key, code >> 8), (6, 0x29));
    good(connection.command(&[0; 6], &[], 0));
}
