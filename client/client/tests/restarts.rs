//! Power failures of devices during a put: it succeeds completely, or returns an error.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::cutting::Cutting;
use crate::world::{Direct, World, content, tuning};
use sealstone_client::{ClientError, GetOptions, PutOptions, Stat};
use tokio::io::AsyncWriteExt;

type Client = sealstone_client::Client<Direct, Cutting>;

async fn stored(client: &Client, path: &str, bytes: &[u8]) -> Result<Stat, ClientError> {
    client.put(path, bytes, PutOptions::default()).await
}

/// Cuts the power of every device, so that later reads return durable bytes only.
async fn survives(world: &World, devices: u8, path: &str, bytes: &[u8]) {
    for place in 0..devices {
        world.machine(place).power_cut();
        world.machine(place).boot();
    }
    let mut back = Vec::new();
    world.client(tuning()).await.get(path, &mut back, GetOptions::default()).await.unwrap();
    assert!(
        back == bytes,
        "{} of {} bytes are right",
        back.iter().zip(bytes).filter(|(a, b)| a == b).count(),
        bytes.len()
    );
}

/// A power failure at any command of a put: the put succeeds, and its bytes are durable.
#[tokio::test(start_paused = true)]
async fn put_resends_bytes_lost_by_device() {
    let bytes = content(3 << 20);
    for cut in [
        ("CREATE AND WRITE", 1),
        ("WRITE", 1),
        ("WRITE", 5),
        ("WRITE", 30),
        ("WRITE", 47),
        ("FLUSH", 1),
        ("FLUSH", 2),
    ] {
        let world = World::new(1).await;
        let devices = Cutting::new(&world, &[cut]);
        let cuts = devices.cuts.clone();
        let client = world.client_over(devices, tuning()).await;
        stored(&client, "/file", &bytes).await.unwrap_or_else(|error| panic!("{cut:?}: {error}"));
        assert_eq!(cuts.load(Ordering::Relaxed), 1, "{cut:?} never came");
        survives(&world, 1, "/file", &bytes).await;
    }
}

/// A small file is one command: if it is lost, the flush finds no object, and it is created again.
#[tokio::test(start_paused = true)]
async fn small_file_lost_before_flush_is_recreated() {
    for length in [0, 1, 60_000] {
        let world = World::new(1).await;
        let first = if length == 0 { "CREATE" } else { "CREATE AND WRITE" };
        let devices = Cutting::new(&world, &[(first, 1), (first, 2)]);
        let cuts = devices.cuts.clone();
        let client = world.client_over(devices, tuning()).await;
        let bytes = content(length);
        // An empty slice still creates an object.
        stored(&client, "/small", &bytes).await.unwrap_or_else(|error| panic!("{length}: {error}"));
        assert_eq!(cuts.load(Ordering::Relaxed), 2, "{length}");
        survives(&world, 1, "/small", &bytes).await;
    }
}

/// The flush finds an object that is not the one that was written.
#[tokio::test(start_paused = true)]
async fn small_file_behind_empty_object_is_resent() {
    let world = World::new(1).await;
    let mut devices = Cutting::new(&world, &[("CREATE AND WRITE", 1)]);
    devices.remakes = true;
    let cuts = devices.cuts.clone();
    let client = world.client_over(devices, tuning()).await;
    let bytes = content(60_000);
    stored(&client, "/small", &bytes).await.unwrap();
    assert_eq!(cuts.load(Ordering::Relaxed), 1);
    survives(&world, 1, "/small", &bytes).await;
}

/// Several devices, several power failures, and a source that cannot be read twice.
#[tokio::test(start_paused = true)]
async fn a_pipe_over_several_devices_survives_many_cuts() {
    let world = World::new(3).await;
    let cuts: Vec<_> = (1..12).map(|n| ("WRITE", n * 9)).chain([("FLUSH", 3), ("FLUSH", 7)]).collect();
    let devices = Cutting::new(&world, &cuts);
    let count = devices.cuts.clone();
    let client = world.client_over(devices, tuning()).await;
    let bytes = content(9 << 20);
    let (mut tap, source) = tokio::io::duplex(100 << 10);
    let pour = async {
        for (index, chunk) in bytes.chunks(700_001).enumerate() {
            tap.write_all(chunk).await.unwrap();
            if index % 4 == 3 {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        }
        drop(tap);
    };
    let (put, ()) = tokio::join!(client.put("/piped", source, PutOptions::default()), pour);
    put.unwrap();
    assert!(count.load(Ordering::Relaxed) >= 10, "{count:?}");
    assert!(client.memory().peak() <= 2 << 20, "{}", client.memory().peak());
    assert!(client.memory().try_take(2 << 20).is_some(), "a lease was not given back");
    survives(&world, 3, "/piped", &bytes).await;
}

/// A device that is unavailable for some seconds, as in a restart, only delays the put.
#[tokio::test(start_paused = true)]
async fn short_device_outage_only_delays_put() {
    let world = World::new(2).await;
    let client = world.client_over(Cutting::new(&world, &[]), tuning()).await;
    let bytes = content(4 << 20);
    let (mut tap, source) = tokio::io::duplex(64 << 10);
    let pour = async {
        tap.write_all(&bytes[..2 << 20]).await.unwrap();
        world.machine(0).power_cut();
        tokio::time::sleep(Duration::from_secs(4)).await;
        world.machine(0).boot();
        tap.write_all(&bytes[2 << 20..]).await.unwrap();
        drop(tap);
    };
    let (put, ()) = tokio::join!(client.put("/away", source, PutOptions::default()), pour);
    put.unwrap();
    survives(&world, 2, "/away", &bytes).await;
}

/// A slow put does not occupy memory that others need: its bytes are flushed and released.
#[tokio::test(start_paused = true)]
async fn slow_sources_leave_memory_to_others() {
    let world = World::new(2).await;
    let client = Arc::new(world.client_over(Cutting::new(&world, &[]), tuning()).await);
    let bytes = content(3 << 20);
    let mut taps = Vec::new();
    let mut puts = Vec::new();
    for index in 0..4 {
        let (mut tap, source) = tokio::io::duplex(64 << 10);
        let client = client.clone();
        let put = async move { client.put(&format!("/slow{index}"), source, PutOptions::default()).await };
        puts.push(tokio::spawn(put));
        tap.write_all(&bytes[..900_000]).await.unwrap();
        taps.push(tap);
    }
    let quick = tokio::time::timeout(Duration::from_secs(30), stored(&client, "/quick", &bytes)).await;
    quick.expect("the others sit on the memory").unwrap();
    for tap in &mut taps {
        tap.write_all(&bytes[900_000..]).await.unwrap();
    }
    drop(taps);
    for (index, put) in puts.into_iter().enumerate() {
        put.await.unwrap().unwrap();
        survives(&world, 2, &format!("/slow{index}"), &bytes).await;
    }
}
