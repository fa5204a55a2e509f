//! Wrong bytes of a protected read: the client distinguishes medium errors from tampering, and
//! never returns wrong bytes.

use crate::world::World;
use crate::world::faults::Fault;
use sealstone_client::{ClientError, GetOptions, OsdError, PutOptions, Tuning};
use sealstone_osd::ObjectId;
use sealstone_scsi::additional;

/// Returns bytes in which all blocks differ.
fn numbered(length: u32) -> Vec<u8> {
    (0..length / 8)
        .flat_map(|word| u64::from(word).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .collect()
}

/// The device sends corrupted bytes with the stored digests. The client detects the mismatch and
/// asks the device to verify, which reports the damaged block.
#[tokio::test(start_paused = true)]
async fn corruption_is_medium_error_naming_the_block() {
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
    // Ranges outside the damaged block are readable.
    let mut back = Vec::new();
    let range = Some(0..98_304);
    client.get("/file", &mut back, GetOptions { range, ..GetOptions::default() }).await.unwrap();
    assert!(back == bytes[..98_304]);
}

/// Data that were changed once in transit are read again.
#[tokio::test(start_paused = true)]
async fn bit_flipped_once_is_read_again() {
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

/// An attacker who changes every answer is distinguished from a corrupt medium: the device verified
/// its medium without an error.
#[tokio::test(start_paused = true)]
async fn tampering_on_wire_is_integrity_error() {
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
