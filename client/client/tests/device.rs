//! The client of one device: typed commands, refusals, retries.

use crate::world::World;
use crate::world::faults::Fault;
use bytes::Bytes;
use sealstone_client::OsdError;
use sealstone_initiator::{Operation, ScsiRequest};
use sealstone_mds::ServerPurpose;
use sealstone_osd::ObjectId;

const OBJECT: ObjectId = ObjectId::new(0x1_0000, 0x2_0000);

#[tokio::test(start_paused = true)]
async fn refusals_have_names() {
    let world = World::new(1).await;
    let device = world.osd(0);
    let remover = world.own(0, ServerPurpose::RemoveObject(OBJECT));
    assert!(matches!(device.remove(&remover, OBJECT).await, Err(OsdError::NotFound)));
    let denied = device.write(&remover, OBJECT, 0, Bytes::from_static(b"x")).await;
    assert!(matches!(denied, Err(OsdError::AccessDenied { field: Some(_) })), "{denied:?}");
    let partition = world.own(0, ServerPurpose::PreparePartition);
    assert!(matches!(device.create_partition(&partition, 0x1_0000).await, Err(OsdError::Exists)));
}

#[tokio::test(start_paused = true)]
async fn capacity_attributes_can_be_read() {
    use sealstone_osd::AttributeId;
    let world = World::new(1).await;
    let bearer = world.own(0, ServerPurpose::ReadCapacity);
    let ids = vec![AttributeId::new(0x9000_0001, 0x80), AttributeId::new(0x9000_0001, 0x81)];
    let got = world.osd(0).attributes(&bearer, ObjectId::ROOT, ids.clone()).await.unwrap();
    assert_eq!(got.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    let total = got[0].1.as_deref().unwrap();
    assert_eq!(u64::from_be_bytes(total.try_into().unwrap()), crate::world::GIB);
}

#[tokio::test(start_paused = true)]
async fn unrepeatable_command_is_not_repeated() {
    let world = World::new(1).await;
    let device = world.osd(0);
    let remover = world.own(0, ServerPurpose::RemoveObject(OBJECT));
    // The stream breaks while a command is written, of which an unknown part arrived.
    world.faults.next([Some(Fault::CutWrites(3_000))]);
    let mut outcome = Ok(());
    for _ in 0..50 {
        outcome = device.remove(&remover, OBJECT).await;
        if !matches!(outcome, Err(OsdError::NotFound)) {
            break;
        }
    }
    assert!(matches!(outcome, Err(OsdError::OutcomeUnknown { command: "REMOVE" })), "{outcome:?}");
    assert!(matches!(device.remove(&remover, OBJECT).await, Err(OsdError::NotFound)));
}

#[tokio::test(start_paused = true)]
async fn raw_bytes_go_out_as_they_are() {
    let world = World::new(1).await;
    let device = world.osd(0);
    let inquiry =
        ScsiRequest { cdb: vec![0x12, 0, 0, 0, 96, 0].into(), data_in_max: 96, ..Default::default() };
    let answer = device.raw(inquiry).await.unwrap();
    assert_eq!((answer.status, answer.data_in[0] & 0x1F), (0, 0x11));
    // Malformed commands are refused, not executed.
    let nonsense = ScsiRequest { cdb: vec![0x7F; 236].into(), ..Default::default() };
    assert_eq!(device.raw(nonsense).await.unwrap().status, 2);
    let flush = device.execute(&world.own(0, ServerPurpose::ReadCapacity), Operation::FlushOsd).await;
    assert!(flush.is_err());
}
