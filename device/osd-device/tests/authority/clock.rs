//! Tests of the device clock: nonces outside the window, a clock that is set back, and restarts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sealstone_osd::cdb::{ContainerScope, FlushContainer, List};
use sealstone_osd::{Command, ObjectId, SecurityMethod};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_store::MemoryStore;

use super::{bench, read, refused};
use crate::support::{self, Bench, ListPair, NEXUS, START_MS};

#[test]
fn nonce_outside_window_reports_the_clock() {
    let bench = bench();
    let capability = bench.capability(&read(), SecurityMethod::CmdRsp);
    for off in [-21_000i64, 11_000] {
        let now = bench.fake.ms.load(Ordering::SeqCst);
        bench.fake.ms.store(now.wrapping_add_signed(off), Ordering::SeqCst);
        let ready = bench.ready(read(), &ListPair::default(), &[], &capability);
        bench.fake.ms.store(now, Ordering::SeqCst);
        let answer = bench.verify(&ready, &bench.send(&ready)).unwrap();
        refused(&answer, 0x2407);
        assert_eq!(answer.sense.unwrap().information, Some(now));
    }
}

#[test]
fn clock_set_back_makes_device_not_ready() {
    let bench = Bench::start(OsdConfig::default(), Arc::new(MemoryStore::new(1 << 20)), 2, START_MS + 30_000);
    assert_eq!(
        bench.raw(NEXUS, &[0; 6], &[], 0).sense[1..4],
        [2, 4, 1],
        "further ahead than one restart explains"
    );
    let remove =
        Command::FlushOsd(FlushContainer { object: ObjectId::ROOT, scope: ContainerScope::Everything });
    assert_eq!(bench.run(remove, ListPair::default(), &[]).sense(), (2, 0x0401));
    bench.fake.ms.store(START_MS + 27_000, Ordering::SeqCst);
    assert_eq!(bench.raw(NEXUS, &[0; 6], &[], 0).status, Status::Good);
    bench.fake.ms.store(START_MS - 3_600_000, Ordering::SeqCst);
    assert_eq!(bench.raw(NEXUS, &[0; 6], &[], 0).sense[1..4], [2, 4, 3]);
    let list =
        List { object: ObjectId::ROOT, list_id: 0, allocation: 64, initial: 0, with_attributes: false };
    assert_eq!(bench.run(Command::List(list), ListPair::default(), &[]).sense(), (2, 0x0403));
    bench.fake.ms.store(START_MS + 40_000, Ordering::SeqCst);
    bench.run(Command::List(list), ListPair::default(), &[]).good();
}

#[test]
fn sound_clock_step_back_refuses_captured_commands() {
    let bench = bench();
    bench.fake.sound.store(true, Ordering::SeqCst);
    let days = 3 * 86_400_000;
    let mut capability = bench.capability(&read(), SecurityMethod::AllData);
    capability.expires_ms = START_MS + 2 * days;
    let mut captured = Vec::new();
    let mut runs = |at_ms: u64| {
        bench.fake.ms.store(at_ms, Ordering::SeqCst);
        bench.unit.upkeep().unwrap();
        let ready = bench.ready(read(), &ListPair::default(), &[], &capability);
        bench.verify(&ready, &bench.send(&ready)).unwrap().good();
        captured.push(ready);
        for old in &captured {
            refused_for_time(&bench.verify(old, &bench.send(old)).unwrap());
        }
    };
    runs(START_MS + 1_000);
    // The wrong time is accepted, and a minute later the correct one again.
    runs(START_MS + days);
    runs(START_MS + days + 30_000);
    runs(START_MS + 60_000);
    runs(START_MS + 70_000);
    // Just before the time that was already used, and just after it.
    runs(START_MS + days - 25_000);
    runs(START_MS + days + 35_000);
    // Within it the device waits, and reports that.
    bench.fake.ms.store(START_MS + days + 10_000, Ordering::SeqCst);
    bench.unit.upkeep().unwrap();
    assert_eq!(bench.raw(NEXUS, &[0; 6], &[], 0).sense[1..4], [2, 4, 1]);
    assert_eq!(bench.run(read(), ListPair::default(), &[]).sense(), (2, 0x0401));
}

/// Checks that a captured command is refused as replayed or for its time.
fn refused_for_time(answer: &support::Answer) {
    assert!(matches!(answer.sense(), (5, 0x2406 | 0x2407)), "{:?}", answer.sense());
}

#[test]
fn nonces_from_before_a_restart_are_refused() {
    let store = Arc::new(MemoryStore::new(1 << 20));
    let list =
        List { object: ObjectId::ROOT, list_id: 0, allocation: 64, initial: 0, with_attributes: false };
    let command = Command::List(list);
    let first = Bench::start(OsdConfig::default(), store.clone(), 1, 0);
    let capability = first.capability(&command, SecurityMethod::AllData);
    let ready = first.ready(command, &ListPair::default(), &[], &capability);
    first.verify(&ready, &first.send(&ready)).unwrap().good();
    let second = Bench::start(OsdConfig::default(), store, 2, START_MS + 3000);
    refused(&second.verify(&ready, &second.send(&ready)).unwrap(), 0x2407);
    second.fake.ms.store(START_MS + 3001, Ordering::SeqCst);
    second.run(command, ListPair::default(), &[]).good();
}
