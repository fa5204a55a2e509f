//! PERFORM SCSI COMMAND and PERFORM TASK MANAGEMENT FUNCTION, in both generations, under NOSEC and
//! ALLDATA.

use crate::plain::{DATA_IN_MAX, Plain, triple};
use crate::support::{Bench, ListPair, NEXUS, PID, user};
use parking_lot::Mutex;
use sealstone_osd::cdb::{PerformScsi, PerformTask};
use sealstone_osd::task::{ServiceResponse, TaskResponse};
use sealstone_osd::{Command, Generation, ObjectId, Permissions, SecurityMethod};
use sealstone_scsi::lu::{Cost, LogicalUnit as _, TaskOrder, TaskResult, Tasks};
use sealstone_scsi::{FieldPointer, Sense, Status};

const BOTH: [Generation; 2] = [Generation::Osd1, Generation::Osd2];

fn scsi(object: ObjectId, cdb: &[u8]) -> Command {
    let mut bytes = [0; 16];
    bytes[..cdb.len()].copy_from_slice(cdb);
    Command::PerformScsi(PerformScsi { object, cdb: bytes })
}

fn function(object: ObjectId, function: u8, tag: u64) -> Command {
    Command::PerformTask(PerformTask { object, allocation: 8, function, tag })
}

#[test]
fn embedded_command_matches_direct_command() {
    for generation in BOTH {
        let plain = Plain::with_object(generation);
        for cdb in [
            &[0x12, 0, 0, 0, 96, 0][..],
            &[0x12, 1, 0x83, 0, 255, 0],
            &[0x12, 1, 0x83, 0, 10, 0],
            &[0x03, 1, 0, 0, 252, 0],
            &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0],
            &[0x1A, 0, 0x3F, 0, 255, 0],
            &[0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0],
            &[0; 6],
        ] {
            let alone = plain.bench.raw(NEXUS, cdb, &[], DATA_IN_MAX);
            for object in [ObjectId::ROOT, ObjectId::of_partition(PID), user(0x10000)] {
                let reply = plain.good(&plain.cdb(scsi(object, cdb)), &[]);
                assert_eq!(reply.data_in, alone.data_in, "{cdb:02x?}");
                assert_eq!(reply.data_in_wanted, alone.data_in_wanted);
            }
        }
    }
}

#[test]
fn embedded_command_errors_point_into_outer_cdb() {
    let plain = Plain::with_object(Generation::Osd2);
    let sense = |cdb: &[u8]| plain.sense(&plain.cdb(scsi(ObjectId::ROOT, cdb)), &[]);
    let unknown = sense(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(triple(&unknown), (5, 0x2000));
    let page = sense(&[0x12, 0, 0x80, 0, 255, 0]);
    assert_eq!((triple(&page), page.field), ((5, 0x2400), Some(FieldPointer::cdb(34))));
    // No OSD command within another.
    let osd = sense(&[0x7F, 0, 0, 0, 0, 0, 0, 228, 0x88, 0x85]);
    assert_eq!((triple(&osd), osd.field), ((5, 0x2400), Some(FieldPointer::cdb(32))));
    let osd = osd.osd.unwrap();
    assert!(!osd.completed.contains(sealstone_scsi::Functions::COMMAND));
}

#[test]
fn without_dev_mgmt_neither_is_performed() {
    let bench = Bench::with_partition();
    for command in [scsi(ObjectId::ROOT, &[0x12, 0, 0, 0, 96, 0]), function(ObjectId::ROOT, 0x02, 0)] {
        let mut capability = bench.capability(&command, SecurityMethod::AllData);
        capability.permissions = Permissions::ALL_OSD2.without(Permissions::DEV_MGMT);
        let refused = bench.run_with(command, ListPair::default(), &[], &capability);
        assert_eq!(refused.sense(), (5, 0x2400));
        assert_eq!(refused.sense.unwrap().field, Some(FieldPointer::cdb(80 + 49)));
    }
}

/// Under ALLDATA the check value covers the data of the embedded command.
#[test]
fn embedded_command_data_is_sealed() {
    let bench = Bench::with_partition();
    let command = scsi(ObjectId::of_partition(PID), &[0x12, 0, 0, 0, 96, 0]);
    let answer = bench.run(command, ListPair::get(&[(0x3000_0001, 1)]), &[]).good();
    assert_eq!(answer.data[0], 0x11, "an object-based storage device");
    assert_eq!(crate::support::value(&answer.attributes), PID.to_be_bytes());
    let capability = bench.capability(&command, SecurityMethod::AllData);
    let ready = bench.ready(command, &ListPair::default(), &[], &capability);
    let mut reply = bench.send(&ready);
    let mut data = reply.data_in.to_vec();
    data[8] ^= 1;
    reply.data_in = data.into();
    assert!(bench.verify(&ready, &reply).is_err());
}

/// A task manager with a fixed answer that records its orders.
struct Manager {
    asked: Mutex<Vec<TaskOrder>>,
    says: TaskResult,
}

impl Tasks for Manager {
    fn order(&self, order: TaskOrder) -> TaskResult {
        self.asked.lock().push(order);
        self.says
    }
}

#[test]
fn each_function_becomes_its_order_and_its_answer() {
    let cases = [
        (0x01, Some(TaskOrder::Abort { tag: 7 })),
        (0x02, Some(TaskOrder::AbortSet)),
        (0x04, Some(TaskOrder::ClearSet)),
        (0x08, Some(TaskOrder::Reset)),
        (0x10, Some(TaskOrder::NexusReset)),
        (0x40, None),
        (0x80, Some(TaskOrder::Query { tag: 7 })),
        (0x81, Some(TaskOrder::QuerySet)),
        (0x82, None),
    ];
    for generation in BOTH {
        let plain = Plain::with_object(generation);
        for (code, order) in cases {
            for (says, response) in [
                (TaskResult::Complete, ServiceResponse::Complete),
                (TaskResult::Succeeded, ServiceResponse::Succeeded),
                (TaskResult::Rejected, ServiceResponse::Rejected),
            ] {
                let manager = Manager { asked: Mutex::default(), says };
                let cdb = plain.cdb(function(ObjectId::ROOT, code, 7)).encode().unwrap();
                assert_eq!(plain.bench.unit.cost(NEXUS, &cdb), Cost::Blocking);
                let reply = plain.bench.raw_with(NEXUS, &cdb, &[], 64, &manager);
                assert_eq!(reply.status, Status::Good, "{code:#x}: {:?}", Sense::parse(&reply.sense));
                let answer = TaskResponse::parse(&reply.data_in).unwrap();
                let expected = if order.is_some() { response } else { ServiceResponse::Complete };
                assert_eq!(answer, TaskResponse::new(expected), "{code:#x}");
                assert_eq!(*manager.asked.lock(), Vec::from_iter(order), "{code:#x}");
            }
        }
        // Tasks that do not end in time: BUSY.
        let manager = Manager { asked: Mutex::default(), says: TaskResult::Unfinished };
        let cdb = plain.cdb(function(ObjectId::ROOT, 0x02, 0)).encode().unwrap();
        assert_eq!(plain.bench.raw_with(NEXUS, &cdb, &[], 64, &manager).status, Status::Busy);
        // Without a task manager.
        let reply = plain.good(&plain.cdb(function(ObjectId::ROOT, 0x02, 0)), &[]);
        assert_eq!(TaskResponse::parse(&reply.data_in).unwrap().response, ServiceResponse::Rejected);
    }
}

#[test]
fn task_functions_on_others_require_root() {
    let plain = Plain::with_object(Generation::Osd2);
    for code in [0x04, 0x08] {
        let sense = plain.sense(&plain.cdb(function(user(0x10000), code, 0)), &[]);
        assert_eq!((triple(&sense), sense.field), ((5, 0x2400), Some(FieldPointer::cdb(16))));
    }
    plain.good(&plain.cdb(function(user(0x10000), 0x02, 0)), &[]);
    for code in [0x00, 0x03, 0x20, 0x83, 0xFF] {
        let sense = plain.sense(&plain.cdb(function(ObjectId::ROOT, code, 0)), &[]);
        assert_eq!((triple(&sense), sense.field), ((5, 0x2400), Some(FieldPointer::cdb(39))), "{code:#x}");
    }
    // Short allocations truncate the answer.
    let cut = PerformTask { object: ObjectId::ROOT, allocation: 5, function: 0x81, tag: 0 };
    let reply = plain.good(&plain.cdb(Command::PerformTask(cut)), &[]);
    assert_eq!(reply.data_in[..], [0, 6, 0, 0, 8]);
}

/// A nexus reset replaces the security token.
#[test]
fn a_nexus_reset_renews_the_security_token() {
    let plain = Plain::with_object(Generation::Osd2);
    let token = || plain.bench.raw(NEXUS, &[0x12, 1, 0xB1, 0, 255, 0], &[], 255).data_in;
    let before = token();
    let manager = Manager { asked: Mutex::default(), says: TaskResult::Complete };
    let cdb = plain.cdb(function(ObjectId::ROOT, 0x10, 0)).encode().unwrap();
    assert_eq!(plain.bench.raw_with(NEXUS, &cdb, &[], 64, &manager).status, Status::Good);
    assert_ne!(before, token());
}
