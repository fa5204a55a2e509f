//! Files are stored and read completely, or an error is returned: against real devices and the real
//! metadata server.

use std::sync::atomic::{AtomicU16, Ordering};

use crate::world::faults::Fault;
use crate::world::{TestClient, World, content};
use sealstone_client::{
    ChecksumKind, ClientError, Device, DevicePool, Devices, GetOptions, Method, OsdError, PutOptions, Tuning,
};
use sealstone_initiator::{Bearer, Completion, Operation};

async fn put(client: &TestClient, path: &str, bytes: &[u8]) -> Result<(), ClientError> {
    client.put(path, bytes, PutOptions::default()).await.map(drop)
}

async fn get(client: &TestClient, path: &str) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    client.get(path, &mut bytes, GetOptions::default()).await?;
    Ok(bytes)
}

fn small_commands() -> Tuning {
    Tuning { memory_bytes: 2 << 20, command_bytes: 64 << 10, depth: 2 }
}

#[tokio::test(start_paused = true)]
async fn put_and_get_roundtrip_all_sizes_and_methods() {
    let world = World::new(3).await;
    let client = world.client(small_commands()).await;
    for (i, length) in
        [0, 1, 4095, 4096, 524_287, 524_288, 524_289, 3_000_001, 9 << 20].into_iter().enumerate()
    {
        for method in [Method::CmdRsp, Method::AllData] {
            let bytes = content(length);
            let path = format!("/file-{i}-{}", method.name());
            let options =
                PutOptions { method, checksum: Some(ChecksumKind::Sha256), ..PutOptions::default() };
            let stat = client.put(&path, &bytes[..], options).await.unwrap();
            assert_eq!(stat.size, length as u64);
            let mut back = Vec::new();
            client.get(&path, &mut back, GetOptions { method, ..GetOptions::default() }).await.unwrap();
            assert!(back == bytes, "{path}: {} of {length} bytes", back.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn striped_file_ranges_read_the_same_bytes() {
    let world = World::new(4).await;
    let client = world.client(small_commands()).await;
    let bytes = content(7 << 20);
    let options = PutOptions { size: Some(bytes.len() as u64), ..PutOptions::default() };
    let stat = client.put("/big", &bytes[..], options).await.unwrap();
    assert!(stat.width > 1, "{stat:?}");
    let file = client.open("/big", Method::AllData).await.unwrap();
    for (start, end) in [(0, 1), (65_535, 65_537), (1 << 20, 3 << 20), (5_000_001, 7 << 20), (0, 8 << 20)] {
        let expected = &bytes[start..end.min(bytes.len())];
        assert!(file.read(start as u64..end as u64).await.unwrap() == expected, "{start}..{end}");
    }
    let mut beyond = [0; 16];
    assert_eq!(file.read_at(bytes.len() as u64, &mut beyond).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_transfer_holds_more_memory_than_the_budget() {
    let world = World::new(3).await;
    let tuning = Tuning { memory_bytes: 1 << 20, command_bytes: 256 << 10, depth: 8 };
    let client = world.client(tuning).await;
    let bytes = content(8 << 20);
    let (a, b, c) =
        tokio::join!(put(&client, "/a", &bytes), put(&client, "/b", &bytes), put(&client, "/c", &bytes));
    for stored in [a, b, c] {
        stored.unwrap();
    }
    let (a, b, c) = tokio::join!(get(&client, "/a"), get(&client, "/b"), get(&client, "/c"));
    assert!(a.unwrap() == bytes && b.unwrap() == bytes && c.unwrap() == bytes);
    assert!(client.memory().peak() <= 1 << 20, "{}", client.memory().peak());
    assert!(client.memory().try_take(1 << 20).is_some(), "a lease was not given back");
}

#[tokio::test(start_paused = true)]
async fn lost_nexus_only_delays_put() {
    let world = World::new(2).await;
    for cut in [1_000, 70_000, 300_000, 1_500_000] {
        for fault in [Fault::CutWrites(cut), Fault::CutReads(cut / 1000 + 300)] {
            let client = world.client(small_commands()).await;
            let streams = *world.faults.streams.lock().unwrap();
            world.faults.next([Some(fault), Some(fault)]);
            let bytes = content(4 << 20);
            let path = format!("/cut-{fault:?}");
            put(&client, &path, &bytes).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            assert!(*world.faults.streams.lock().unwrap() > streams + 2, "{fault:?} never struck");
            assert!(get(&client, &path).await.unwrap() == bytes, "{fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lost_nexus_only_delays_get() {
    let world = World::new(2).await;
    let bytes = content(4 << 20);
    put(&world.client(small_commands()).await, "/file", &bytes).await.unwrap();
    for cut in [1_000, 100_000, 1_200_000] {
        let client = world.client(small_commands()).await;
        world.faults.next([Some(Fault::CutReads(cut)), Some(Fault::CutReads(cut * 2))]);
        assert!(get(&client, "/file").await.unwrap() == bytes, "{cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_device_is_queried_again() {
    let world = World::new(2).await;
    let bytes = content(4 << 20);
    put(&world.client(small_commands()).await, "/file", &bytes).await.unwrap();
    for stall in [300, 150_000] {
        let client = world.client(small_commands()).await;
        world.faults.next([Some(Fault::StallReads(stall))]);
        assert!(get(&client, "/file").await.unwrap() == bytes, "{stall}");
        world.faults.next([None, None]);
        let path = format!("/stall-{stall}");
        put(&client, &path, &bytes).await.unwrap();
        assert!(get(&client, &path).await.unwrap() == bytes, "{stall}");
    }
}

#[tokio::test(start_paused = true)]
async fn source_that_grows_is_reported_and_stored_as_prefix() {
    let world = World::new(2).await;
    let client = world.client(small_commands()).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let old = content(3 << 20);
    for is_final in [false, true] {
        std::fs::write(&path, &old).unwrap();
        let growing = path.clone();
        let append = move |_: u64| {
            let mut file = std::fs::OpenOptions::new().append(true).open(&growing).unwrap();
            std::io::Write::write_all(&mut file, b"one more line").unwrap();
        };
        let options = PutOptions { progress: Some(Box::new(append)), ..PutOptions::default() };
        let file = std::fs::File::open(&path).unwrap();
        let stored = client.put_open_file("/log", file, options, is_final).await;
        if is_final {
            let stored = stored.unwrap();
            assert!(stored.source_changed && stored.stat.size == old.len() as u64, "{stored:?}");
            assert!(get(&client, "/log").await.unwrap() == old);
        } else {
            assert!(matches!(stored, Err(ClientError::SourceChanged)), "{stored:?}");
            assert!(client.stat("/log").await.unwrap_err().is_not_found());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn holes_are_neither_sent_nor_fetched() {
    let world = World::new(3).await;
    let client = world.client(small_commands()).await;
    let folder = tempfile::tempdir().unwrap();
    let size: u64 = 1 << 28;
    let file = std::fs::File::create(folder.path().join("source")).unwrap();
    file.set_len(size).unwrap();
    let written = [(0, content(70_000)), (100 << 20, content(200_000)), (size - 100_000, content(100_000))];
    for (offset, bytes) in &written {
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, *offset).unwrap();
    }
    let source = folder.path().join("source");
    let stat = client.put_file("/sparse", &source, PutOptions::default()).await.unwrap();
    assert_eq!(stat.size, size);
    let open = client.open("/sparse", Method::AllData).await.unwrap();
    for (offset, bytes) in &written {
        assert!(open.read(*offset..*offset + bytes.len() as u64).await.unwrap() == *bytes, "{offset}");
    }
    assert_eq!(open.read(50 << 20..(50 << 20) + 10).await.unwrap(), [0; 10]);
    let target = std::fs::File::create_new(folder.path().join("target")).unwrap();
    let mut target = tokio::fs::File::from_std(target);
    client.get_file("/sparse", &mut target, GetOptions::default()).await.unwrap();
    let target = target.into_std().await;
    let metadata = target.metadata().unwrap();
    let allocated = std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
    assert!(metadata.len() == size && allocated < 4 << 20, "{allocated}");
    let target = std::fs::File::open(folder.path().join("target")).unwrap();
    for (offset, bytes) in &written {
        let mut found = vec![0; bytes.len()];
        std::os::unix::fs::FileExt::read_exact_at(&target, &mut found, *offset).unwrap();
        assert!(found == *bytes, "{offset}");
    }
}

/// Devices that report a new boot epoch for each request.
struct Restarting(DevicePool, AtomicU16);

impl Devices for Restarting {
    async fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> Result<Completion, OsdError> {
        let asks = matches!(operation, Operation::GetAttributes { .. } | Operation::Asking { .. });
        let mut done = self.0.execute(device, bearer, operation).await?;
        if asks {
            let life = self.1.fetch_add(1, Ordering::Relaxed);
            done.attributes[0].1 = Some(life.to_be_bytes().to_vec().into());
        }
        Ok(done)
    }
}

/// A flush covers only writes in its own boot epoch: with a restart in between, a put that trusted
/// it would lose acknowledged data.
#[tokio::test(start_paused = true)]
async fn endlessly_restarting_device_fails_put() {
    let world = World::new(1).await;
    let client = world.client_over(Restarting(world.pool(), AtomicU16::new(1)), small_commands()).await;
    let many = client.put("/many", &content(3 << 20)[..], PutOptions::default()).await;
    assert!(matches!(many, Err(ClientError::Restarted(_))), "{many:?}");
    assert!(client.stat("/many").await.unwrap_err().is_not_found());
    // Nor does it cover a creation in one command: the object that it finds may have been created
    // again.
    let one = client.put("/one", &content(5000)[..], PutOptions::default()).await;
    assert!(matches!(one, Err(ClientError::Restarted(_))), "{one:?}");
}

/// Devices that drop the last byte of every READ without an error.
struct Short(DevicePool);

impl Devices for Short {
    async fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> Result<Completion, OsdError> {
        let mut done = self.0.execute(device, bearer, operation).await?;
        done.data.pop();
        Ok(done)
    }
}

#[tokio::test(start_paused = true)]
async fn short_read_is_an_error() {
    let world = World::new(1).await;
    put(&world.client(Tuning::default()).await, "/file", &content(5000)).await.unwrap();
    let client = world.client_over(Short(world.pool()), Tuning::default()).await;
    let got = client.get("/file", &mut Vec::new(), GetOptions::default()).await;
    assert!(matches!(got, Err(ClientError::DataMissing { offset: 0 })), "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn bit_flipped_on_wire_is_never_returned() {
    let world = World::new(1).await;
    let bytes = content(400_000);
    put(&world.client(Tuning::default()).await, "/file", &bytes).await.unwrap();
    for at in [3_000, 50_001, 200_000, 399_999] {
        let client = world.client(Tuning::default()).await;
        world.faults.next([Some(Fault::FlipRead(at))]);
        match get(&client, "/file").await {
            // Read again: over another connection if a header was hit, else with FUA.
            Ok(back) => assert!(back == bytes, "{at}"),
            Err(ClientError::Device { error: OsdError::IntegrityFailure(_), .. }) => {}
            Err(error) => panic!("{at}: {error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cmdrsp_corruption_is_caught_by_file_checksum() {
    let world = World::new(1).await;
    let bytes = content(400_000);
    put(&world.client(Tuning::default()).await, "/file", &bytes).await.unwrap();
    let client = world.client(Tuning::default()).await;
    world.faults.next([Some(Fault::FlipRead(200_000))]);
    let options = GetOptions { method: Method::CmdRsp, ..GetOptions::default() };
    let got = client.get("/file", &mut Vec::new(), options).await;
    assert!(matches!(got, Err(ClientError::ChecksumMismatch)), "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn credentials_that_expire_in_the_middle_are_renewed() {
    let config = sealstone_mds::Config { grant_lifetime_ms: 8_000, ..Default::default() };
    let world = World::with(2, config).await;
    let client = world.client(small_commands()).await;
    // A source that takes a minute.
    let (mut tap, source) = tokio::io::duplex(64 << 10);
    let bytes = content(2 << 20);
    let pour = async {
        for chunk in bytes.chunks(128 << 10) {
            tokio::time::sleep(core::time::Duration::from_secs(4)).await;
            tokio::io::AsyncWriteExt::write_all(&mut tap, chunk).await.unwrap();
        }
        drop(tap);
    };
    let (stored, ()) = tokio::join!(client.put("/slow", source, PutOptions::default()), pour);
    stored.unwrap();
    assert!(client.metadata().called("RenewGrants") >= 3);
    assert!(get(&client, "/slow").await.unwrap() == bytes);
}

#[tokio::test(start_paused = true)]
async fn clock_skew_is_corrected_by_device() {
    for skew in [-600_000, 600_000] {
        let world = World::new(1).await;
        world.client_clock.skew_ms.store(skew, Ordering::Relaxed);
        let client = world.client(Tuning::default()).await;
        put(&client, "/file", b"now").await.unwrap();
        assert_eq!(get(&client, "/file").await.unwrap(), b"now");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_commit_is_resolved() {
    let world = World::new(1).await;
    let client = world.client(Tuning::default()).await;
    *client.metadata().lose.lock().unwrap() = Some("Commit");
    put(&client, "/file", b"here").await.unwrap();
    assert_eq!(get(&client, "/file").await.unwrap(), b"here");
}

#[tokio::test(start_paused = true)]
async fn failing_source_leaves_nothing_behind() {
    let world = World::new(2).await;
    let client = world.client(small_commands()).await;
    let bytes = content(2 << 20);
    let options = PutOptions { size: Some(3 << 20), ..PutOptions::default() };
    let error = client.put("/short", &bytes[..], options).await.unwrap_err();
    assert!(
        matches!(error, ClientError::SourceLength { announced: 3_145_728, actual: 2_097_152 }),
        "{error}"
    );
    assert!(client.stat("/short").await.unwrap_err().is_not_found());
    assert_eq!(client.metadata().called("Abandon"), 1);
}

#[tokio::test(start_paused = true)]
async fn names_are_made_listed_moved_and_removed() {
    let world = World::new(1).await;
    let client = world.client(Tuning::default()).await;
    client.mkdir("/d/e", true, 0o755).await.unwrap();
    for i in 0..300 {
        put(&client, &format!("/d/{i:03}"), b"x").await.unwrap();
    }
    let names = client.list("/d").unwrap().collect().await.unwrap();
    assert_eq!(names.len(), 301);
    assert!(names.is_sorted_by(|a, b| a.name < b.name));
    client.rename("/d/000", "/moved", false).await.unwrap();
    assert_eq!(get(&client, "/moved").await.unwrap(), b"x");
    assert!(client.stat("/d/000").await.unwrap_err().is_not_found());
    assert!(client.remove("/d", false).await.is_err());
    assert_eq!(client.remove("/d", true).await.unwrap(), 301);
    assert_eq!(client.remove("/moved", false).await.unwrap(), 1);
    assert_eq!(client.whoami().await.unwrap().user.as_str(), "admin");
    assert_eq!(client.disk_free().await.unwrap().devices, 1);
    assert_eq!(client.device_list().await.unwrap().len(), 1);
}
