//! Function files, their copies and calls: against real devices and the real metadata server.

use sealstone_client::functions::{
    CallArguments, FunctionDescription, FunctionError, FunctionPublication, FunctionRun, JobHandle,
};
use sealstone_client::{ClientError, DeviceId, GetOptions, Method, OsdError, PutOptions, Tuning};
use sealstone_mds_protocol::{Access, ErrorCode, FilePath};
use sealstone_osd::ObjectId;
use sealstone_osd::function::{ApiVersion, EngineType, JobId};

use crate::world::{TestClient, World, content, mounts::Mount};

const METHOD: Method = Method::AllData;

fn publication(mode: u16) -> FunctionPublication {
    let description = FunctionDescription {
        engine: Some(EngineType::C),
        api: Some((ApiVersion::FIRST, ApiVersion::CURRENT)),
        version: "2.1".to_owned(),
        publisher: "tests".to_owned(),
        manifest: "method count".to_owned(),
        ..FunctionDescription::default()
    };
    FunctionPublication { description, mode, replace: true, method: METHOD }
}

async fn put(client: &TestClient, path: &str, code: &[u8]) {
    client.put_function(path, code, &publication(0o755)).await.unwrap();
}

async fn devices(client: &TestClient) -> Vec<DeviceId> {
    client.device_list().await.unwrap().iter().map(|device| device.id).collect()
}

fn small_commands() -> Tuning {
    crate::world::tuning()
}

#[tokio::test(start_paused = true)]
async fn function_is_one_described_object() {
    let world = World::new(3).await;
    let client = world.client(small_commands()).await;
    // A plain file of this size has stripes, and would be migrated to more devices.
    let code = content(5 << 20);
    put(&client, "/fn", &code).await;
    let found = client.function("/fn", METHOD).await.unwrap();
    assert_eq!(found.digest, Some(*blake3::hash(&code).as_bytes()));
    assert_eq!(found.description.digest, found.digest);
    assert_eq!(found.description.engine, Some(EngineType::C));
    assert_eq!(found.description.version, "2.1");
    assert_eq!((found.copies.len(), found.stat.width, found.stat.mode), (1, 1, 0o755));
    let mut back = Vec::new();
    client.get("/fn", &mut back, GetOptions::default()).await.unwrap();
    assert_eq!(back, code, "a function is an ordinary file");
}

#[tokio::test(start_paused = true)]
async fn copies_are_whole_and_made_once() {
    let world = World::new(3).await;
    let client = world.client(small_commands()).await;
    let code = content(300_000);
    put(&client, "/fn", &code).await;
    let all = devices(&client).await;
    assert_eq!(client.copy_function("/fn", &all, METHOD).await.unwrap(), 2);
    assert_eq!(client.copy_function("/fn", &all, METHOD).await.unwrap(), 0);
    let found = client.function("/fn", METHOD).await.unwrap();
    assert_eq!(found.copies.len(), 3);
    let (layout, _) = client.placement("/fn").await.unwrap();
    for object in layout.unwrap().objects() {
        let place = all.iter().position(|id| *id == object.device).unwrap();
        let place = u8::try_from(place).unwrap();
        let bearer = world.own(place, sealstone_mds::ServerPurpose::CopyFrom(object.object));
        let bytes = world.osd(place).read(&bearer, object.object, 0, code.len()).await.unwrap();
        assert!(bytes[..] == code[..], "device {place}");
    }
    let mut back = Vec::new();
    client.get("/fn", &mut back, GetOptions::default()).await.unwrap();
    assert_eq!(back, code);
}

#[tokio::test(start_paused = true)]
async fn open_function_is_readable_after_new_copy() {
    let world = World::new(3).await;
    let client = world.client(small_commands()).await;
    let code = content(300_000);
    put(&client, "/fn", &code).await;
    let mount = Mount::of(&world).await;
    let file = mount.open("fn", Access::Read).await;
    assert_eq!(file.read(0, 10).await.unwrap(), &code[..10]);
    client.copy_function("/fn", &devices(&client).await, METHOD).await.unwrap();
    // The credentials of the open file have expired; the renewal has those of the copies too.
    tokio::time::sleep(std::time::Duration::from_secs(400)).await;
    assert_eq!(file.read(200_000, 99).await.unwrap(), &code[200_000..200_099]);
}

#[tokio::test(start_paused = true)]
async fn refused_copies_are_abandoned() {
    let world = World::new(2).await;
    let (client, other) = (world.client(small_commands()).await, world.client(small_commands()).await);
    put(&client, "/fn", b"code").await;
    let all = devices(&client).await;
    for replaced in [false, true] {
        if replaced {
            put(&other, "/fn", b"code").await;
        }
        let requests = client.metadata();
        let abandoned = requests.called("Abandon");
        requests.gate.close("CopyFunction");
        let meanwhile = async {
            requests.gate.reached().await;
            match replaced {
                true => put(&other, "/fn", b"other code").await,
                false => assert_eq!(other.copy_function("/fn", &all, METHOD).await.unwrap(), 1),
            }
            requests.gate.open();
        };
        let (copied, ()) = tokio::join!(client.copy_function("/fn", &all, METHOD), meanwhile);
        let is_stale = |error: &ClientError| matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Stale);
        match copied {
            Ok(made) => assert!(!replaced && made == 0),
            Err(FunctionError::Client(error)) => assert!(replaced && is_stale(&error), "{error:?}"),
            Err(error) => panic!("{error:?}"),
        }
        assert_eq!(requests.called("Abandon"), abandoned + 1, "replaced: {replaced}");
    }
}

#[tokio::test(start_paused = true)]
async fn copy_survives_restart_of_its_device() {
    let world = World::new(2).await;
    let client = world.client(small_commands()).await;
    put(&client, "/fn", &content(300_000)).await;
    let all = devices(&client).await;
    for place in 0..2 {
        world.machine(place).power_cut();
        world.machine(place).boot();
    }
    assert_eq!(client.copy_function("/fn", &all, METHOD).await.unwrap(), 1);
    for place in 0..2 {
        world.machine(place).power_cut();
        world.machine(place).boot();
    }
    assert_eq!(client.function("/fn", METHOD).await.unwrap().copies.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn plain_and_changed_files_are_no_functions() {
    let world = World::new(2).await;
    let client = world.client(small_commands()).await;
    client.put("/data", &b"data"[..], PutOptions { mode: 0o755, ..PutOptions::default() }).await.unwrap();
    assert!(matches!(client.function("/data", METHOD).await, Err(FunctionError::NotDescribed { .. })));
    let refused = FunctionRun::new("/data").run(&client, |_| {}).await;
    assert!(matches!(refused, Err(FunctionError::NotAFunction { .. })), "{refused:?}");
    // A write in place removes the checksum.
    put(&client, "/fn", b"code of a function").await;
    let until_ms = client.server_now_ms() + 60_000;
    let wanted = sealstone_client::Delegation {
        read: false,
        write: true,
        start: 0,
        end: None,
        until_ms,
        method: METHOD,
    };
    client.delegate("/fn", wanted).await.unwrap();
    let refused = FunctionRun::new("/fn").run(&client, |_| {}).await;
    assert!(matches!(refused, Err(FunctionError::NotAFunction { .. })), "{refused:?}");
    let missing = FunctionRun::new("/none").run(&client, |_| {}).await;
    assert!(matches!(missing, Err(FunctionError::Client(error)) if error.is_not_found()));
}

#[tokio::test(start_paused = true)]
async fn execution_needs_its_permission() {
    let world = World::new(1).await;
    let client = world.client(small_commands()).await;
    client.put_function("/fn", b"code", &publication(0o700)).await.unwrap();
    client.set_mode("/fn", 0o644).await.unwrap();
    // The administrator of this world needs no permission bits, so the copy is not refused for it.
    assert!(client.function("/fn", METHOD).await.is_ok());
    let until_ms = client.server_now_ms() + 60_000;
    let file = client.delegate_execution("/fn", until_ms, METHOD).await.unwrap();
    assert!(file.executes() && file.delegated.grants.len() == 1);
}

#[tokio::test(start_paused = true)]
async fn invalid_publications_are_refused_before_storing() {
    let world = World::new(1).await;
    let client = world.client(small_commands()).await;
    let empty = client.put_function("/fn", b"", &publication(0o755)).await;
    assert!(matches!(empty, Err(FunctionError::CodeTooLong { length: 0, .. })));
    let mut without_engine = publication(0o755);
    without_engine.description.engine = None;
    let mut long_version = publication(0o755);
    long_version.description.version = "v".repeat(129);
    let mut reversed = publication(0o755);
    reversed.description.api = Some((ApiVersion::CURRENT, ApiVersion { major: 0, minor: 9 }));
    for invalid in [without_engine, long_version, reversed, publication(0o644)] {
        let refused = client.put_function("/fn", b"code", &invalid).await;
        assert!(matches!(refused, Err(FunctionError::Description { .. })), "{refused:?}");
    }
    assert!(client.stat("/fn").await.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn call_without_service_names_the_device() {
    let world = World::new(3).await;
    let client = world.client(small_commands()).await;
    put(&client, "/fn", b"code").await;
    client.put("/data", &content(5 << 20)[..], PutOptions::default()).await.unwrap();
    let width = client.stat("/data").await.unwrap().width;
    assert!(width > 1);
    let mut call = FunctionRun::new("/fn");
    call.read("/data");
    let mut replies = Vec::new();
    let summary = call.run(&client, |reply| replies.push(reply)).await.unwrap();
    assert_eq!((summary.jobs, summary.failed), (usize::from(width), usize::from(width)));
    assert_eq!(summary.copies, summary.devices - 1);
    for reply in &replies {
        let error = reply.outcome.as_ref().unwrap_err();
        assert!(matches!(error, FunctionError::NoEngine { engine: Some(EngineType::C), .. }), "{error:?}");
        assert!(error.to_string().contains(&reply.device));
        assert!(reply.arguments.starts_with(b"stripe.0="));
    }
    assert!(client.device_engines(devices(&client).await[0], METHOD).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_their_limits_are_refused() {
    let world = World::new(1).await;
    let client = world.client(small_commands()).await;
    put(&client, "/fn", b"code").await;
    let mut call = FunctionRun::new("/fn");
    call.method = "m".repeat(65);
    assert!(matches!(call.run(&client, |_| {}).await, Err(FunctionError::Limit { .. })));
    let mut call = FunctionRun::new("/fn");
    call.timeout_ms = u32::MAX;
    assert!(matches!(call.run(&client, |_| {}).await, Err(FunctionError::Limit { .. })));
    client.put("/data", &b"data"[..], PutOptions::default()).await.unwrap();
    let mut call = FunctionRun::new("/fn");
    call.read("/data");
    let mut arguments = CallArguments::default();
    arguments.add("a", &"x".repeat(65_536)).unwrap();
    call.arguments = arguments;
    let mut errors = Vec::new();
    call.run(&client, |reply| errors.push(reply.outcome.unwrap_err())).await.unwrap();
    assert!(matches!(errors[..], [FunctionError::ArgumentsTooLong { .. }]), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn job_of_replaced_function_is_unknown() {
    let world = World::new(1).await;
    let client = world.client(small_commands()).await;
    put(&client, "/fn", b"code").await;
    let job = JobHandle {
        function: FilePath::new("/fn").unwrap(),
        device: devices(&client).await[0],
        device_name: "osd0".to_owned(),
        object: ObjectId::new(0x1_0000, 0x7777),
        job: JobId([7; 16]),
    };
    let unknown = client.job_status(&job, METHOD).await;
    assert!(matches!(unknown, Err(FunctionError::UnknownJob { .. })), "{unknown:?}");
    client.remove("/fn", false).await.unwrap();
    let removed = client.cancel_job(&job, METHOD).await;
    let is_not_found = |error: &ClientError| matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::NotFound);
    assert!(matches!(removed, Err(FunctionError::Client(error)) if is_not_found(&error)));
    assert!(!OsdError::UnknownJob.is_denied());
}
