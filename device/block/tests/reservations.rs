//! Reservations as initiators use them: PERSISTENT RESERVE IN and OUT, RESERVE and RELEASE.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use crate::support::{Bench, CAPACITY, disk, sense, sixteen, ten};
use sealstone_block::BlockSize;
use sealstone_scsi::lu::{Buffers, LogicalUnit as _, NexusId, NoTasks, ScsiCommand};
use sealstone_scsi::{AdditionalSense, Sense, Status, additional};
use sealstone_store::MemoryStore;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const REGISTER_AND_MOVE: u8 = 7;
/// APTPL: registrations survive a power loss.
const DURABLE: u8 = 1;

/// Sends PERSISTENT RESERVE OUT from a nexus.
fn out(bench: &Bench, nexus: u64, action: u8, kind: u8, own: u64, other: u64, flags: u8) -> Status {
    let mut list = [own.to_be_bytes(), other.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    bench.from(nexus, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], &list, 0).status
}

/// Returns the data of PERSISTENT RESERVE IN.
fn report(bench: &Bench, action: u8) -> Vec<u8> {
    let mut cdb = ten(0x5E, action, 0, 4096);
    cdb[0] = 0x5E;
    bench.get(&cdb)
}

/// Returns the next unit attention of a nexus.
fn attention(bench: &Bench, nexus: u64) -> Option<AdditionalSense> {
    let reply = bench.from(nexus, &[0; 6], &[], 0);
    (reply.status == Status::CheckCondition).then(|| sense(&reply).code)
}

fn bench() -> Bench {
    let bench = Bench::new(BlockSize::B512);
    (2..=3).for_each(|nexus| bench.login(nexus));
    bench
}

/// Every command of the table against every reservation type: an unregistered nexus may run what
/// its class allows.
#[test]
fn unregistered_nexus_access_follows_reservation_type() {
    let reads: [&[u8]; 5] = [
        &ten(0x28, 0, 0, 0),
        &ten(0x2F, 0, 0, 0),
        &ten(0x34, 0, 0, 1),
        &[0x1A, 0, 0x3F, 0, 255, 0],
        &sixteen(0x9E, 0x12, 0, 64),
    ];
    let writes: [&[u8]; 9] = [
        &ten(0x2A, 0, 0, 0),
        &ten(0x2E, 0, 0, 0),
        &sixteen(0x8B, 0, 0, 0),
        &sixteen(0x89, 0, 0, 0),
        &ten(0x42, 0, 0, 0),
        &ten(0x35, 0, 0, 1),
        &[0x1B, 0, 0, 0, 0, 0],
        &[0x1E, 0, 0, 0, 1, 0],
        &[0x15, 0x10, 0, 0, 0, 0],
    ];
    let always: [&[u8]; 8] = [
        &[0; 6],
        &[0x12, 0, 0, 0, 96, 0],
        &[0x03, 0, 0, 0, 18, 0],
        &ten(0x25, 0, 0, 0),
        &sixteen(0x9E, 0x10, 0, 32),
        &[0x1B, 0, 0, 0, 1, 0],
        &[0x1E, 0, 0, 0, 0, 0],
        &[0x5E, 0, 0, 0, 0, 0, 0, 0, 64, 0],
    ];
    for kind in [1_u8, 3, 5, 6, 7, 8] {
        let bench = bench();
        assert_eq!(out(&bench, 1, REGISTER, 0, 0, 0xA, 0), Status::Good);
        assert_eq!(out(&bench, 2, REGISTER, 0, 0, 0xB, 0), Status::Good);
        assert_eq!(out(&bench, 1, RESERVE, kind, 0xA, 0, 0), Status::Good);
        let passes =
            |nexus, cdb: &[u8]| bench.from(nexus, cdb, &[], 4096).status != Status::ReservationConflict;
        let write_exclusive = matches!(kind, 1 | 5 | 7);
        let registrants = kind >= 5;
        for nexus in 1..=3 {
            let full = nexus == 1 || (nexus == 2 && registrants);
            assert!(always.iter().all(|cdb| passes(nexus, cdb)), "type {kind}, nexus {nexus}");
            for cdb in reads {
                assert_eq!(
                    passes(nexus, cdb),
                    full || write_exclusive,
                    "type {kind}, nexus {nexus}: {cdb:02x?}"
                );
            }
            if nexus != 1 {
                for cdb in writes {
                    assert_eq!(passes(nexus, cdb), full, "type {kind}, nexus {nexus}: {cdb:02x?}");
                }
            }
        }
    }
}

#[test]
fn keys_reservation_and_full_status_are_reported() {
    let bench = bench();
    assert_eq!(out(&bench, 1, REGISTER, 0, 0, 0xA1, 0), Status::Good);
    assert_eq!(out(&bench, 2, REGISTER, 0, 0, 0xB2, 4), Status::Good);
    assert_eq!(
        report(&bench, 0),
        [&[0, 0, 0, 2, 0, 0, 0, 16][..], &0xA1_u64.to_be_bytes(), &0xB2_u64.to_be_bytes()].concat()
    );
    assert_eq!(report(&bench, 1), [0, 0, 0, 2, 0, 0, 0, 0]);
    assert_eq!(out(&bench, 2, RESERVE, 6, 0xB2, 0, 0), Status::Good);
    let reservation = report(&bench, 1);
    assert_eq!(reservation[..8], [0, 0, 0, 2, 0, 0, 0, 16]);
    assert_eq!((reservation[15], reservation[21]), (0xB2, 6));
    let full = report(&bench, 3);
    assert_eq!(u32::from_be_bytes(full[4..8].try_into().unwrap()) as usize, full.len() - 8);
    let length = 24 + u32::from_be_bytes(full[28..32].try_into().unwrap()) as usize;
    let (one, two) = (&full[8..8 + length], &full[8 + length..]);
    assert_eq!((one[7], one[12], one[13]), (0xA1, 0, 0));
    assert_eq!((two[7], two[12], two[13]), (0xB2, 3, 6), "holder, all ports");
    assert_eq!(&one[18..20], [0, 1], "the only target port");
    assert!(one[24 + 4..].starts_with(b"iqn.test:1,i,0x000000000001\0"));
    let capabilities = report(&bench, 2);
    assert_eq!(capabilities, [0, 8, 0x15, 0xB0, 0xEA, 0x01, 0, 0]);
}

#[test]
fn malformed_reservation_parameters_change_nothing() {
    let bench = bench();
    let list = [[0; 8], 7_u64.to_be_bytes(), [0; 8]].concat();
    let send = |cdb: &[u8], list: &[u8]| bench.refused(cdb, list);
    let short = send(&[0x5F, REGISTER, 0, 0, 0, 0, 0, 0, 23, 0], &list);
    assert_eq!(short.code, additional::PARAMETER_LIST_LENGTH_ERROR);
    let longer_than_sent = send(&[0x5F, REGISTER, 0, 0, 0, 0, 0, 0, 24, 0], &list[..20]);
    assert_eq!(longer_than_sent.code, additional::PARAMETER_LIST_LENGTH_ERROR);
    let mut ports = list.clone();
    ports[20] = 0x08;
    let ports = send(&[0x5F, REGISTER, 0, 0, 0, 0, 0, 0, 24, 0], &ports);
    assert_eq!((ports.code, ports.field.unwrap().byte), (additional::INVALID_FIELD_IN_PARAMETER_LIST, 20));
    let unknown = send(&[0x5F, 0x1F, 0, 0, 0, 0, 0, 0, 24, 0], &list);
    assert_eq!((unknown.code, unknown.field.unwrap().byte), (additional::INVALID_FIELD_IN_CDB, 1));
    assert_eq!(send(&[0x5E, 0x1F, 0, 0, 0, 0, 0, 0, 24, 0], &[]).field.unwrap().byte, 1);
    assert_eq!(out(&bench, 1, REGISTER, 0, 0, 7, 0), Status::Good);
    for (kind, bit) in [(0x15, 7), (0x00, 3), (0x02, 3), (0x09, 3)] {
        let reply = bench.send(
            &[0x5F, RESERVE, kind, 0, 0, 0, 0, 0, 24, 0],
            &[7_u64.to_be_bytes(), [0; 8], [0; 8]].concat(),
            0,
        );
        assert_eq!(sense(&reply).field.unwrap().bit, Some(bit), "{kind:#x}");
    }
    assert_eq!(report(&bench, 1)[4..8], [0; 4]);
    let wrong_release = {
        assert_eq!(out(&bench, 1, RESERVE, 1, 7, 0, 0), Status::Good);
        bench.send(
            &[0x5F, RELEASE, 3, 0, 0, 0, 0, 0, 24, 0],
            &[7_u64.to_be_bytes(), [0; 8], [0; 8]].concat(),
            0,
        )
    };
    assert_eq!(sense(&wrong_release).code, additional::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
}

#[test]
fn reservation_notices_reach_only_affected_ports() {
    let bench = bench();
    for nexus in 1..=3 {
        assert_eq!(out(&bench, nexus, REGISTER, 0, 0, nexus, 0), Status::Good);
    }
    assert_eq!(out(&bench, 1, RESERVE, 5, 1, 0, 0), Status::Good);
    assert_eq!(out(&bench, 1, RELEASE, 5, 1, 0, 0), Status::Good);
    assert_eq!(attention(&bench, 1), None);
    for nexus in 2..=3 {
        assert_eq!(attention(&bench, nexus), Some(additional::RESERVATIONS_RELEASED));
        assert_eq!(attention(&bench, nexus), None, "once");
    }
    assert_eq!(out(&bench, 1, RESERVE, 1, 1, 0, 0), Status::Good);
    assert_eq!(out(&bench, 2, PREEMPT, 3, 2, 1, 0), Status::Good);
    assert_eq!(attention(&bench, 1), Some(additional::REGISTRATIONS_PREEMPTED));
    assert_eq!(attention(&bench, 3), None);
    assert_eq!(bench.from(1, &ten(0x28, 0, 0, 1), &[], 512).status, Status::ReservationConflict);
    assert_eq!(out(&bench, 3, CLEAR, 0, 3, 0, 0), Status::Good);
    assert_eq!(attention(&bench, 2), Some(additional::RESERVATIONS_PREEMPTED));
    assert_eq!(attention(&bench, 1), None, "no longer registered");
    assert_eq!(bench.from(1, &ten(0x28, 0, 0, 1), &[], 512).status, Status::Good);
}

/// A registration belongs to the port, not to its session.
#[test]
fn registrations_outlive_nexus_unlike_spc2_reservations() {
    let bench = bench();
    assert_eq!(out(&bench, 2, REGISTER, 0, 0, 0xB, 0), Status::Good);
    assert_eq!(out(&bench, 2, RESERVE, 3, 0xB, 0, 0), Status::Good);
    bench.unit.nexus_lost(NexusId(2));
    assert_eq!(bench.from(1, &ten(0x28, 0, 0, 1), &[], 512).status, Status::ReservationConflict);
    bench.login(2);
    assert_eq!(bench.from(2, &ten(0x28, 0, 0, 1), &[], 512).status, Status::Good);
    assert_eq!(out(&bench, 2, REGISTER, 0, 0xB, 0, 0), Status::Good);

    bench.put(&[0x16, 0, 0, 0, 0, 0], &[]);
    for cdb in [
        &ten(0x28, 0, 0, 1)[..],
        &[0; 6],
        &[0x16, 0, 0, 0, 0, 0],
        &[0x5E, 0, 0, 0, 0, 0, 0, 0, 64, 0],
        &[0x1A, 0, 0x3F, 0, 255, 0],
    ] {
        assert_eq!(bench.from(2, cdb, &[], 512).status, Status::ReservationConflict, "{cdb:02x?}");
    }
    assert_eq!(bench.from(2, &[0x17, 0, 0, 0, 0, 0], &[], 0).status, Status::Good);
    assert_eq!(
        bench.from(2, &[0; 6], &[], 0).status,
        Status::ReservationConflict,
        "still reserved by the other nexus"
    );
    bench.unit.nexus_lost(NexusId(1));
    assert_eq!(bench.from(2, &ten(0x28, 0, 0, 1), &[], 512).status, Status::Good);
    bench.from(2, &[0x16, 0, 0, 0, 0, 0], &[], 0);
    bench.unit.reset();
    assert_eq!(attention(&bench, 3), Some(additional::BUS_DEVICE_RESET_OCCURRED));
    assert_eq!(bench.from(3, &ten(0x28, 0, 0, 1), &[], 512).status, Status::Good);
}

#[test]
fn registrations_survive_restart_only_with_aptpl() {
    let store = Arc::new(MemoryStore::new(CAPACITY));
    let bench = Bench::on(store, disk("disk", BlockSize::B512, 1 << 20));
    bench.login(2);
    assert_eq!(out(&bench, 1, REGISTER, 0, 0, 0xA, DURABLE), Status::Good);
    assert_eq!(out(&bench, 1, RESERVE, 6, 0xA, 0, 0), Status::Good);
    assert_eq!(report(&bench, 2)[3] & 1, 1, "PTPL_A");
    let again = Bench::open(Arc::clone(&bench.store));
    again.login(2);
    assert_eq!(again.from(2, &ten(0x28, 0, 0, 1), &[], 512).status, Status::ReservationConflict);
    assert_eq!(again.from(1, &ten(0x28, 0, 0, 1), &[], 512).status, Status::Good);
    assert_eq!(report(&again, 0)[..4], [0; 4], "the generation starts from zero");
    assert_eq!(out(&again, 1, REGISTER, 0, 0xA, 0xA, 0), Status::Good);
    let third = Bench::open(Arc::clone(&bench.store));
    third.login(2);
    assert_eq!(third.from(2, &ten(0x28, 0, 0, 1), &[], 512).status, Status::Good, "forgotten");
}

#[test]
fn register_and_move_targets_transport_id() {
    let bench = bench();
    assert_eq!(out(&bench, 1, REGISTER, 0, 0, 0xA, 0), Status::Good);
    assert_eq!(out(&bench, 1, RESERVE, 1, 0xA, 0, 0), Status::Good);
    let mut id = b"\x45\0\0\x1Ciqn.test:2,i,0x000000000002\0".to_vec();
    id.resize(32, 0);
    let mut list = [0xA_u64.to_be_bytes(), 0xB_u64.to_be_bytes(), [0, 2, 0, 1, 0, 0, 0, 32]].concat();
    list.extend(&id);
    let cdb = [0x5F, REGISTER_AND_MOVE, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    let mut elsewhere = list.clone();
    elsewhere[19] = 2;
    assert_eq!(sense(&bench.send(&cdb, &elsewhere, 0)).field.unwrap().byte, 18);
    let mut other_protocol = list.clone();
    other_protocol[24] = 0x06;
    assert_eq!(sense(&bench.send(&cdb, &other_protocol, 0)).field.unwrap().byte, 24);
    bench.put(&cdb, &list);
    let writes = |nexus| bench.from(nexus, &ten(0x2A, 0, 0, 1), &[1; 512], 0).status;
    assert_eq!((writes(1), writes(2)), (Status::ReservationConflict, Status::Good));
    assert_eq!(report(&bench, 0)[8..], 0xB_u64.to_be_bytes(), "the old one unregistered");
}

/// Names are not authenticated, accounts are. A session with the name of a port but another account
/// does not get its registration.
#[test]
fn registration_belongs_to_port_account() {
    let bench = bench();
    bench.login_as(7, 7, Some("ann"));
    assert_eq!(out(&bench, 7, REGISTER, 0, 0, 0xA, 0), Status::Good);
    assert_eq!(out(&bench, 7, RESERVE, 3, 0xA, 0, 0), Status::Good);
    bench.unit.nexus_lost(NexusId(7));
    let reads = |nexus| bench.from(nexus, &ten(0x28, 0, 0, 1), &[], 512).status;
    for (nexus, account) in [(8, None), (9, Some("bob"))] {
        bench.login_as(nexus, 7, account);
        assert_eq!(reads(nexus), Status::ReservationConflict, "{account:?}");
        assert_eq!(out(&bench, nexus, RELEASE, 3, 0xA, 0, 0), Status::ReservationConflict, "{account:?}");
        bench.unit.nexus_lost(NexusId(nexus));
    }
    bench.login_as(10, 7, Some("ann"));
    assert_eq!(reads(10), Status::Good);

    // A TransportID names no account: it means a port that is logged in or registered.
    let moves = |number: u8| {
        let mut id = format!("E\0\0\x1Ciqn.test:{number},i,0x{number:012x}\0").into_bytes();
        id.resize(32, 0);
        let mut list = [0xA_u64.to_be_bytes(), 0xB_u64.to_be_bytes(), [0, 0, 0, 1, 0, 0, 0, 32]].concat();
        list.extend(&id);
        bench.from(10, &[0x5F, REGISTER_AND_MOVE, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, 0)
    };
    assert_eq!(sense(&moves(6)).field.unwrap().byte, 24, "an unknown port");
    bench.login_as(11, 5, Some("eve"));
    assert_eq!(moves(5).status, Status::Good);
    assert_eq!((reads(11), reads(10)), (Status::Good, Status::ReservationConflict));
}

/// A long command yields to changes of reservations, and ends when one forbids it to continue.
#[test]
fn reservation_ends_long_command_between_pieces() {
    struct Slow<'a> {
        bench: &'a Bench,
        pieces: AtomicUsize,
        reserver: Sender<()>,
    }
    impl Buffers for Slow<'_> {
        fn take(&self, len: usize) -> Option<Vec<u8>> {
            if self.pieces.fetch_add(1, Ordering::SeqCst) == 0 {
                self.reserver.send(()).unwrap();
            }
            // Time for the other thread to reach the lock.
            std::thread::sleep(std::time::Duration::from_millis(40));
            assert_eq!(self.bench.unit.description().lun, 1);
            Some(vec![0; len])
        }
        fn freeze(&self, buffer: Vec<u8>) -> bytes::Bytes {
            buffer.into()
        }
    }
    const PIECES: u32 = 100;
    let bench = Bench::with(disk("disk", BlockSize::B4096, u64::from(PIECES) << 20));
    bench.login(2);
    assert_eq!(out(&bench, 2, REGISTER, 0, 0, 0xA, 0), Status::Good);
    let (reserver, asked) = channel();
    std::thread::scope(|scope| {
        let bench = &bench;
        scope.spawn(move || {
            asked.recv().unwrap();
            assert_eq!(out(bench, 2, RESERVE, 3, 0xA, 0, 0), Status::Good);
        });
        let slow = Slow { bench, pieces: AtomicUsize::new(0), reserver };
        let command = ScsiCommand {
            nexus: NexusId(1),
            lun: 1,
            cdb: &sixteen(0x8F, 0, 0, PIECES << 8),
            data_out: &[],
            data_in_max: 0,
            buffers: &slow,
            tasks: &NoTasks,
        };
        assert_eq!(bench.unit.execute(command).status, Status::ReservationConflict);
        assert!(slow.pieces.load(Ordering::SeqCst) < PIECES as usize);
    });
}

/// Once PREEMPT is acknowledged, no write of the preempted nexus follows.
#[test]
fn preempt_fences_writer_before_good() {
    let bench = bench();
    assert_eq!(out(&bench, 1, REGISTER, 0, 0, 1, 0), Status::Good);
    for round in 0..50_u8 {
        assert_eq!(out(&bench, 2, REGISTER, 0, 0, 2, 0), Status::Good);
        assert_eq!(out(&bench, 2, RESERVE, 1, 2, 0, 0), Status::Good);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut written = 0;
                while bench.from(2, &ten(0x2A, 0, 0, 1), &[0xFF; 512], 0).status == Status::Good {
                    written += 1;
                }
                written
            });
            assert_eq!(out(&bench, 1, PREEMPT, 1, 1, 2, 0), Status::Good);
            bench.write(0, &[round; 512]);
            let _ = writer.join().expect("no panic");
            assert_eq!(bench.read(0, 1), [round; 512]);
        });
        assert_eq!(out(&bench, 1, RELEASE, 1, 1, 0, 0), Status::Good);
        while attention(&bench, 2).is_some() {}
    }
}

/// Every helper above parses sense data; this keeps the type in use.
#[test]
fn a_conflict_has_no_sense_data() {
    let bench = bench();
    assert_eq!(out(&bench, 1, REGISTER, 0, 0, 1, 0), Status::Good);
    assert_eq!(out(&bench, 1, RESERVE, 3, 1, 0, 0), Status::Good);
    let reply = bench.from(2, &ten(0x28, 0, 0, 1), &[], 512);
    assert_eq!((reply.status, reply.sense.len()), (Status::ReservationConflict, 0));
    assert!(Sense::parse(&reply.sense).is_err());
    assert_eq!(bench.unit.counters().conflicts, 1);
}
