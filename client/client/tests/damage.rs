//! Who is at fault when the bytes of a protected read are wrong: the medium or the wire. Never are they handed on.

use crate::world::World;
use crate::world::faults::Fault;
use sealstone_client::{ClientError, GetOptions, OsdError, PutOptions, Tuning};
use sealstone_osd::ObjectId;
use sealstone_scsi::additional;

/// Bytes in which no two blocks are alike.
fn numbered(length: u32) -> Vec<u8> {
    (0..length / 8)
        .flat_map(|word| u64::from(word).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .collect()
}

/// The device sends what its medium gave with the digests that it should have; the client finds that they differ, asks it
/// to look, and hears which block is damaged.
#[tokio::test(start_paused = true)]
async fn rot_under_a_stored_digest_is_a_medium_error_that_names_the_block() {
    let world = World::new(1).await;
    let client = world.client(Tuning::default()).await;
    let bytes = numbered(200_000);
    client.put("/file", &bytes[..], PutOptions::default()).await.unwrap();
    let mut back = Vec::new();
    client.get("/file", &mut back, GetOptions::default()).await.unwrap();
    assert!(back == bytes);
    world.machine(0).rot(&bytes[100_000..100_064]);
    for again in 0..2 {
        let mut back = Vec::new();
        let error = client.get("/file", &mut back, GetOptions::default()).await.unwrap_err();
        let ClientError::Damaged { name, object, error, .. } = error else { panic!("{error}") };
        assert!(object > ObjectId::new(0x1_0000, 0) && name == "osd0");
        let block = Some(100_000 / 4096 * 4096);
        let OsdError::Medium { sense, offset } = error else { panic!("{error}") };
        assert_eq!((sense, offset), (additional::UNRECOVERED_READ_ERROR, block), "{again}");
        assert!(bytes.starts_with(&back));
    }
    // What does not touch the damaged block is there.
    let mut back = Vec::new();
    let range = Some(0..98_304);
    client.get("/file", &mut back, GetOptions { range, ..GetOptions::default() }).await.unwrap();
    assert!(back == bytes[..98_304]);
}

/// Once changed on its way, the data come when they are asked for again.
#[tokio::test(start_paused = true)]
async fn a_bit_that_flipped_once_on_the_wire_costs_a_second_read() {
    let world = World::new(1).await;
    let bytes = numbered(200_000);
    let client = world.client(Tuning::default()).await;
    client.put("/file", &bytes[..], PutOptions::default()).await.unwrap();
    world.faults.next([Some(Fault::FlipRead(50_000))]);
    let other = world.client(Tuning::default()).await;
    let mut back = Vec::new();
    other.get("/file", &mut back, GetOptions::default()).await.unwrap();
    assert!(back == bytes);
}

/// Whoever changes every answer is told from a medium that rotted: the device looked, and found nothing.
#[tokio::test(start_paused = true)]
async fn tampering_on_the_wire_is_an_integrity_error_and_no_damage() {
    let world = World::new(1).await;
    let bytes = vec![0xA5; 200_000];
    let client = world.client(Tuning::default()).await;
    client.put("/file", &bytes[..], PutOptions::default()).await.unwrap();
    world.faults.next([Some(Fault::FlipRuns(0xA5))]);
    let other = world.client(Tuning::default()).await;
    let mut back = Vec::new();
    let error = other.get("/file", &mut back, GetOptions::default()).await.unwrap_err();
    let tampered = matches!(error, ClientError::Device { error: OsdError::IntegrityFailure(_), .. });
    assert!(tampered && back.is_empty(), "{error}");
    let mut back = Vec::new();
    client.get("/file", &mut back, GetOptions::default()).await.unwrap();
    assert!(back == bytes);
}
