//! REWRITE: atomic, under conditions, with the old bytes on request.

use std::sync::Arc;

use crate::support::{Answer, Bench, ListPair, PID, user, value};
use sealstone_osd::cdb::*;
use sealstone_osd::continuation::Segment;
use sealstone_osd::rewrite::{RewriteAction as Action, RewriteOperation};
use sealstone_osd::{AttributeId, Capability, Command, Permissions, SecurityMethod};
use sealstone_osd_device::OsdConfig;
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{DiskStore, FormatOptions, StoreOptions, format};

const OID: u64 = 0x10000;
const VERSION: AttributeId = AttributeId::new(0x1_0000, 1);

fn bench(data: &[u8]) -> Bench {
    let bench = Bench::with_partition();
    fill(&bench, data);
    bench
}

fn fill(bench: &Bench, data: &[u8]) {
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    let write = Command::Write(Extent { object: user(OID), start: 0, length: data.len() as u64 });
    bench.run(write, ListPair::set(&[(VERSION.page, VERSION.number, b"v1")]), data).good();
}

/// Returns a command with range and flags.
fn range(start: u64, length: u32) -> Rewrite {
    Rewrite {
        object: user(OID),
        start,
        length,
        operands: 0,
        returns: RewriteReturn::Nothing,
        conditional: false,
        extend: false,
    }
}

/// An operation at an offset, with its operand.
type Step<'a> = (Action, u64, u32, &'a [u8]);

fn send(
    bench: &Bench,
    rewrite: Rewrite,
    steps: &[Step<'_>],
    lists: ListPair,
    without: Permissions,
) -> Answer {
    let mut data = Vec::new();
    let mut operations = Vec::new();
    for &(action, offset, length, operand) in steps {
        operations.push(RewriteOperation { action, offset, length, operand: data.len() as u64 });
        data.extend_from_slice(operand);
    }
    let command = Command::Rewrite(Rewrite { operands: data.len() as u32, ..rewrite });
    let full = bench.capability(&command, SecurityMethod::AllData);
    let permissions = full.permissions | Permissions::READ;
    let capability = Capability { permissions: permissions.without(without), ..full };
    let segment = Segment { rewrite: operations, ..Segment::default() };
    let ready = bench.ready_scattered(command, &lists, &data, &capability, segment.encode(0x8F90).unwrap());
    let reply = bench.send(&ready);
    bench.verify(&ready, &reply).unwrap()
}

fn run(bench: &Bench, rewrite: Rewrite, steps: &[Step<'_>]) -> Answer {
    send(bench, rewrite, steps, ListPair::default(), Permissions::NONE)
}

fn content(bench: &Bench) -> Vec<u8> {
    let length = bench.store.stat(user(OID)).unwrap().length;
    let read = Command::Read(Extent { object: user(OID), start: 0, length });
    bench.run(read, ListPair::default(), &[]).good().data
}

fn version(bench: &Bench) -> Vec<u8> {
    let get = Command::GetAttributes(Target { object: user(OID) });
    value(&bench.run(get, ListPair::get(&[(VERSION.page, VERSION.number)]), &[]).good().attributes)
}

#[test]
fn operations_run_in_their_order_on_the_range() {
    let bench = bench(b"0123456789abcdef");
    let steps: &[Step<'_>] = &[
        (Action::Replace, 0, 2, b"XY"),
        (Action::Xor, 0, 2, &[0x20, 0x20]),
        (Action::And, 2, 1, &[0xF0]),
        (Action::Or, 3, 1, &[0x40]),
        (Action::Add(2), 4, 4, &[1, 0, 0xFF, 0xFF]),
        (Action::Fill(2), 8, 4, b"-+"),
        (Action::Copy(0), 1, 3, b""),
    ];
    run(&bench, range(2, 12), steps).good();
    // 2..14 was "23456789abcd".
    let mut expected = b"01xyxy0u78789-+-+ef".to_vec();
    expected.truncate(2);
    let mut middle = b"23456789abcd".to_vec();
    middle[..2].copy_from_slice(b"xy");
    middle[2] = b'4' & 0xF0;
    middle[3] = b'5' | 0x40;
    middle[4] += 1;
    let number = u16::from_le_bytes([middle[6], middle[7]]).wrapping_add(0xFFFF);
    middle[6..8].copy_from_slice(&number.to_le_bytes());
    middle[8..12].copy_from_slice(b"-+-+");
    middle.copy_within(0..3, 1);
    expected.extend_from_slice(&middle);
    expected.extend_from_slice(b"ef");
    assert_eq!(content(&bench), expected);
}

#[test]
fn failed_condition_reports_position_changes_nothing() {
    let bench = bench(b"0123456789");
    let before = bench.state_hash();
    let conditional = Rewrite { conditional: true, ..range(2, 6) };
    let answer =
        run(&bench, conditional, &[(Action::Replace, 0, 2, b"ZZ"), (Action::Compare, 2, 4, b"45x7")]);
    assert_eq!(answer.sense(), (0xE, 0x1D00));
    assert_eq!(answer.sense.unwrap().information, Some(6));
    assert_eq!(bench.state_hash(), before);
    let digest = |bytes: &[u8]| <sha2::Sha256 as sha2::Digest>::digest(bytes).to_vec();
    let wrong = run(
        &bench,
        conditional,
        &[(Action::CompareDigest, 0, 4, &digest(b"2346")), (Action::Replace, 0, 1, b"Z")],
    );
    assert_eq!(wrong.sense(), (0xE, 0x1D00));
    let attribute = Action::CompareAttribute(VERSION);
    assert_eq!(
        run(&bench, conditional, &[(attribute, 0, 2, b"v2"), (Action::Replace, 0, 1, b"Z")]).sense(),
        (0xE, 0x1D00)
    );
    assert_eq!(bench.state_hash(), before);
    let steps: &[Step<'_>] = &[
        (Action::Compare, 0, 3, b"234"),
        (Action::CompareDigest, 0, 4, &digest(b"2345")),
        (attribute, 0, 2, b"v1"),
        (Action::Replace, 0, 1, b"Z"),
        (Action::Compare, 0, 2, b"Z3"),
    ];
    run(&bench, conditional, steps).good();
    assert_eq!(content(&bench), b"01Z3456789");
}

/// Compare and set of a version in one command: of two clients with the same version, one succeeds.
#[test]
fn version_is_compared_and_set_atomically() {
    let bench = bench(b"balance: 100");
    let update = |new: &[u8]| {
        let steps: &[Step<'_>] =
            &[(Action::CompareAttribute(VERSION), 0, 2, b"v1"), (Action::Replace, 0, 3, new)];
        let lists = ListPair::set(&[(VERSION.page, VERSION.number, b"v2")]);
        send(&bench, Rewrite { conditional: true, ..range(9, 3) }, steps, lists, Permissions::NONE)
    };
    update(b"150").good();
    assert_eq!(update(b"050").sense(), (0xE, 0x1D00));
    assert_eq!((content(&bench), version(&bench)), (b"balance: 150".to_vec(), b"v2".to_vec()));
}

#[test]
fn rewrite_returns_old_bytes_or_digest() {
    let bench = bench(b"0123456789");
    let old = Rewrite { returns: RewriteReturn::Old, ..range(4, 4) };
    assert_eq!(run(&bench, old, &[(Action::Fill(1), 0, 4, b"-")]).good().data, b"4567");
    let digest = Rewrite { returns: RewriteReturn::Digest, ..range(0, 10) };
    let answer = run(&bench, digest, &[(Action::Replace, 0, 1, b"_")]).good();
    assert_eq!(answer.data, <sha2::Sha256 as sha2::Digest>::digest(b"0123----89").to_vec());
    let beyond = Rewrite { returns: RewriteReturn::Old, extend: true, ..range(8, 6) };
    assert_eq!(
        run(&bench, beyond, &[(Action::Replace, 4, 2, b"!!")]).good().data,
        b"89",
        "as far as it went"
    );
    assert_eq!(content(&bench), b"_123----89\0\0!!");
}

#[test]
fn an_object_grows_only_if_that_is_allowed() {
    let bench = bench(b"0123456789");
    let before = bench.state_hash();
    for (start, length) in [(8, 3), (11, 1), (u64::MAX, 1)] {
        let answer = run(&bench, range(start, length), &[(Action::Fill(1), 0, length, b"x")]);
        assert_eq!(answer.sense(), (5, 0x2400), "{start}");
        assert_eq!(answer.sense.unwrap().field.map(|field| field.byte), Some(40));
    }
    assert_eq!(bench.state_hash(), before);
    run(&bench, Rewrite { extend: true, ..range(12, 2) }, &[(Action::Fill(1), 0, 2, b"x")]).good();
    assert_eq!(content(&bench), b"0123456789\0\0xx");
    let condition = Rewrite { extend: true, conditional: true, ..range(14, 4) };
    run(&bench, condition, &[(Action::Compare, 0, 4, &[0; 4])]).good();
    assert_eq!(content(&bench).len(), 14, "a condition alone writes nothing");
}

#[test]
fn rewrite_checks_every_permission() {
    let bench = bench(b"0123456789");
    let before = bench.state_hash();
    let refused = |rewrite, steps: &[Step<'_>], without| {
        let answer = send(&bench, rewrite, steps, ListPair::default(), without);
        assert_eq!(answer.sense(), (5, 0x2400));
        assert_eq!(answer.sense.unwrap().field.map(|field| field.byte), Some(129));
        assert_eq!(bench.state_hash(), before);
    };
    let replace: &[Step<'_>] = &[(Action::Replace, 0, 1, b"x")];
    let old = Rewrite { returns: RewriteReturn::Old, ..range(0, 4) };
    let conditional = Rewrite { conditional: true, ..range(0, 4) };
    refused(range(0, 4), replace, Permissions::WRITE);
    refused(old, replace, Permissions::READ);
    refused(Rewrite { returns: RewriteReturn::Digest, ..old }, replace, Permissions::READ);
    refused(conditional, &[(Action::Compare, 0, 1, b"0")], Permissions::READ);
    refused(conditional, &[(Action::Compare, 0, 1, b"0")], Permissions::REWRITE_CONDITIONAL);
    let attribute = Action::CompareAttribute(VERSION);
    refused(conditional, &[(attribute, 0, 2, b"v1")], Permissions::GET_ATTR);
    // COPY moves data that READ would return; the CDB does not show that.
    refused(range(0, 4), &[(Action::Copy(2), 0, 1, b"")], Permissions::READ);
    send(&bench, range(0, 4), replace, ListPair::default(), Permissions::READ | Permissions::GET_ATTR).good();
}

#[test]
fn rewrite_range_must_fit_capability() {
    use sealstone_osd::capability::{Range, Scope};
    let bench = bench(b"0123456789");
    let command = Command::Rewrite(Rewrite { operands: 1, ..range(2, 4) });
    let full = bench.capability(&command, SecurityMethod::AllData);
    let operation = RewriteOperation { action: Action::Replace, offset: 0, length: 1, operand: 0 };
    let segment = Segment { rewrite: vec![operation], ..Segment::default() }.encode(0x8F90).unwrap();
    for (allowed, status) in [(Range { start: 2, length: 3 }, false), (Range { start: 2, length: 4 }, true)] {
        let descriptor =
            sealstone_osd::Descriptor::User { scope: Scope::default(), allowed: user(OID), range: allowed };
        let capability = Capability { descriptor, ..full };
        let ready = bench.ready_scattered(command, &ListPair::default(), b"x", &capability, segment.clone());
        let reply = bench.send(&ready);
        let answer = bench.verify(&ready, &reply).unwrap();
        assert_eq!(answer.status == sealstone_scsi::Status::Good, status, "{allowed:?}");
    }
}

/// At whatever point the power fails: the old bytes with the old version, or the new ones with the
/// new version.
#[test]
fn bytes_and_attributes_change_together_across_a_crash() {
    let medium = SimMedium::new(5);
    format(&medium, &FormatOptions { segment: Some(4 << 20), ..FormatOptions::new(8 << 20, [7; 16]) })
        .unwrap();
    let start = |medium: &SimMedium, epoch| {
        let store = DiskStore::open(Arc::new(medium.clone()), StoreOptions::default()).unwrap();
        Bench::start(OsdConfig::default(), Arc::new(store), epoch, 0)
    };
    let bench = start(&medium, 1);
    bench.create_partition(PID);
    fill(&bench, &[1; 20_000]);
    bench.store.flush().unwrap();
    drop(bench);
    let mut point = 1;
    let (mut old, mut new) = (0, 0);
    loop {
        let medium = medium.fork();
        let bench = start(&medium, 2);
        bench.keys.lock().add_partition(PID).unwrap();
        let calls = medium.calls();
        medium.fault(DiskFault::Power(calls.writes + calls.syncs + point));
        let steps: &[Step<'_>] = &[(Action::Fill(1), 0, 9_000, &[2]), (Action::Fill(1), 15_000, 4_000, &[3])];
        let lists = ListPair { fua: true, ..ListPair::set(&[(VERSION.page, VERSION.number, b"v2")]) };
        let answer = send(&bench, range(100, 19_000), steps, lists, Permissions::NONE);
        let dead = medium.is_dead();
        drop(bench);
        let store = DiskStore::open(Arc::new(medium.crash()), StoreOptions::default()).unwrap();
        use sealstone_store::ObjectStore as _;
        let mut bytes = vec![0; 20_000];
        store.read(user(OID), 0, &mut bytes).unwrap();
        let version = store.attribute(user(OID), VERSION).unwrap().unwrap();
        let mut rewritten = vec![1; 20_000];
        rewritten[100..9_100].fill(2);
        rewritten[15_100..19_100].fill(3);
        if version == b"v1" {
            assert!(bytes == [1; 20_000], "point {point}");
            assert!(answer.sense.is_some(), "point {point}: an acknowledged rewrite is there");
            old += 1;
        } else {
            assert!(bytes == rewritten, "point {point}");
            new += 1;
        }
        if !dead {
            break;
        }
        point += 1;
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}
