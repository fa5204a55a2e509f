//! Calls and jobs: client, metadata server and the checks of the device are real. The service of
//! these tests runs closures with the handles that the device grants.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealstone_client::functions::{
    CallGrouping, CallReply, FunctionDescription, FunctionError, FunctionPublication, FunctionRun,
};
use sealstone_client::{GetOptions, Method, PutOptions};
use sealstone_osd::function::attributes::EngineEntry;
use sealstone_osd::function::{
    ApiVersion, EngineType, ExitReason, INLINE_MAX, JobAction, JobId, JobState, ReplyHeader, ReplyParts,
};
use sealstone_osd_device::{CodeRequest, CodeReservation, EngineInfo, GrantError, JobCall};

use crate::world::{TestClient, World, content};

type DeviceCall = sealstone_osd_device::FunctionCall;
type DeviceRefusal = sealstone_osd_device::FunctionRefusal;
type ClosureWork = Box<dyn Fn(&DeviceCall) -> Result<Vec<u8>, DeviceRefusal> + Send + Sync>;

const METHOD: Method = Method::AllData;

/// A job that a device keeps.
struct KeptJob {
    id: JobId,
    user: Vec<u8>,
    state: JobState,
    result: Vec<u8>,
}

/// Runs closures, and keeps the jobs.
struct ClosureService {
    work: ClosureWork,
    jobs: Mutex<Vec<KeptJob>>,
}

impl ClosureService {
    fn reply(job: &KeptJob, offset: usize, max: usize) -> ReplyParts {
        let end = job.result.len().min(offset + max.min(INLINE_MAX));
        let inline = job.result.get(offset..end).unwrap_or_default().to_vec();
        let header = ReplyHeader {
            total_length: job.result.len() as u64,
            offset: offset as u64,
            ..ReplyHeader::new(job.id, job.state)
        };
        ReplyParts { header, inline, receipt: b"receipt".to_vec() }
    }
}

impl sealstone_osd_device::FunctionRunner for ClosureService {
    fn engines(&self) -> Vec<EngineInfo> {
        let entry = EngineEntry {
            available: true,
            api_lowest: ApiVersion::FIRST,
            api_highest: ApiVersion::CURRENT,
            version: "closures".into(),
            detail: String::new(),
        };
        vec![EngineInfo { engine: EngineType::C, entry }]
    }

    fn reserve_code(&self, request: &CodeRequest<'_>) -> Result<CodeReservation, DeviceRefusal> {
        match request.engine {
            EngineType::C => Ok(CodeReservation::new(())),
            engine => Err(DeviceRefusal::EngineMissing(engine)),
        }
    }

    fn execute(&self, call: DeviceCall) -> Result<ReplyParts, DeviceRefusal> {
        let mut result = (self.work)(&call)?;
        let (total_length, mut result_object) = (result.len() as u64, None);
        if let Some(entry) = call.result_object.as_ref().filter(|_| result.len() > INLINE_MAX) {
            let object = entry.create().map_err(|_| DeviceRefusal::ServiceFailed)?;
            object.write(0, &result).map_err(|_| DeviceRefusal::ServiceFailed)?;
            (result, result_object) = (Vec::new(), Some(object.object()));
        }
        let mut jobs = self.jobs.lock().unwrap();
        let id = JobId([jobs.len() as u8 + 1; 16]);
        // An asynchronous job ends when a client waits for it.
        let state = if call.timeout_ms == 0 { JobState::Running } else { JobState::Done };
        let user = call.caller.audit[..16].to_vec();
        jobs.push(KeptJob { id, user, state, result });
        let kept = jobs.last().unwrap();
        let max = if state == JobState::Done { call.inline_max } else { 0 };
        let reply = Self::reply(kept, 0, max);
        let header = ReplyHeader { total_length, result_object, ..reply.header };
        Ok(ReplyParts { header, ..reply })
    }

    fn job(&self, call: JobCall) -> Result<ReplyParts, DeviceRefusal> {
        let mut jobs = self.jobs.lock().unwrap();
        let user = &call.caller.audit[..16];
        let kept = jobs.iter_mut().find(|job| job.id == call.request.job && job.user == user);
        let kept = kept.ok_or(DeviceRefusal::UnknownJob)?;
        Ok(match call.request.action {
            JobAction::Status => Self::reply(kept, 0, 0),
            JobAction::Wait { .. } => {
                kept.state = JobState::Done;
                Self::reply(kept, 0, 0)
            }
            JobAction::Cancel => {
                kept.state = JobState::Cancelled;
                let reply = Self::reply(kept, 0, 0);
                ReplyParts { header: ReplyHeader { exit: ExitReason::Cancelled, ..reply.header }, ..reply }
            }
            JobAction::Log { .. } => {
                let reply = Self::reply(kept, 0, 0);
                let header = ReplyHeader { total_length: 5, ..reply.header };
                ReplyParts { header, inline: b"lines".to_vec(), receipt: Vec::new() }
            }
            JobAction::Result { offset } => {
                Self::reply(kept, usize::try_from(offset).unwrap(), call.inline_max)
            }
        })
    }
}

/// Starts a world whose devices run this closure as the function.
async fn world_with(
    devices: u8,
    work: impl Fn(&DeviceCall) -> Result<Vec<u8>, DeviceRefusal> + Send + Sync + Clone + 'static,
) -> (World, TestClient) {
    let world = World::new(devices).await;
    for place in 0..devices {
        let service = ClosureService { work: Box::new(work.clone()), jobs: Mutex::default() };
        world.machine(place).serve_functions(Arc::new(service));
    }
    let client = world.client(crate::world::tuning()).await;
    put_function(&client, EngineType::C).await;
    (world, client)
}

async fn put_function(client: &TestClient, engine: EngineType) {
    let description = FunctionDescription { engine: Some(engine), ..FunctionDescription::default() };
    let publication = FunctionPublication { description, mode: 0o755, replace: true, method: METHOD };
    client.put_function("/fn", b"code of the function", &publication).await.unwrap();
}

/// Returns the bytes of all objects of a call, in their order.
fn read_objects(call: &DeviceCall) -> Result<Vec<u8>, DeviceRefusal> {
    let mut all = Vec::new();
    for object in &call.objects {
        let length = object.length().map_err(|_| DeviceRefusal::ServiceFailed)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        let count = object.read(0, &mut bytes).map_err(|_| DeviceRefusal::ServiceFailed)?;
        all.extend_from_slice(&bytes[..count]);
    }
    Ok(all)
}

async fn replies(call: &FunctionRun, client: &TestClient) -> Vec<CallReply> {
    let mut replies = Vec::new();
    call.run(client, |reply| replies.push(reply)).await.unwrap();
    replies.sort_by_key(|reply| reply.number);
    replies
}

/// Puts the parts of a striped file together again.
fn assemble(replies: &[CallReply], size: usize) -> Vec<u8> {
    let mut whole = vec![0; size];
    for reply in replies {
        let [part] = reply.parts[..] else { panic!("one object for each job") };
        let (unit, width) = (part.unit.map_or(size, |unit| unit as usize), part.width);
        for (number, piece) in reply.result.chunks(unit).enumerate() {
            let at = (number * width + part.index) * unit;
            whole[at..at + piece.len()].copy_from_slice(piece);
        }
    }
    whole
}

#[tokio::test(start_paused = true)]
async fn striped_file_is_read_by_all_devices() {
    let (_world, client) = world_with(3, read_objects).await;
    let bytes = content(2_500_001);
    client.put("/data", &bytes[..], PutOptions::default()).await.unwrap();
    let mut call = FunctionRun::new("/fn");
    call.long_results = false;
    call.read("/data");
    let found = replies(&call, &client).await;
    assert!(found.len() > 1 && found.iter().all(CallReply::is_success), "{found:?}");
    // The results are longer than a reply, so they are fetched in pages.
    assert!(found.iter().any(|reply| reply.result.len() > 3 * INLINE_MAX));
    assert_eq!(assemble(&found, bytes.len()), bytes);
    assert!(found.iter().all(|reply| reply.receipt == b"receipt"));
    let engines = client.device_engines(found[0].handle.as_ref().unwrap().device, METHOD).await.unwrap();
    assert_eq!((engines.len(), engines[0].entry.version.as_str()), (1, "closures"));
}

#[tokio::test(start_paused = true)]
async fn long_results_are_read_from_their_objects() {
    let (world, client) = world_with(3, read_objects).await;
    let bytes = content(2_500_001);
    client.put("/data", &bytes[..], PutOptions::default()).await.unwrap();
    for name in ["/a", "/b", "/c"] {
        client.put(name, name.as_bytes(), PutOptions::default()).await.unwrap();
    }
    let mut call = FunctionRun::new("/fn");
    ["/data", "/a", "/b", "/c"].iter().for_each(|name| call.read(name));
    let found = replies(&call, &client).await;
    let (long, short): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|reply| reply.outcome.as_ref().unwrap().result_object.is_some());
    assert!(long.len() > 1 && short.len() >= 3, "{long:?}");
    assert_eq!(assemble(&long, bytes.len()), bytes);
    // The server removes the objects after the call.
    let due = world.mds.next_reap(None, 99, world.clock.now()).unwrap();
    for reply in &long {
        let object = reply.outcome.as_ref().unwrap().result_object;
        assert!(due.iter().any(|item| Some(item.object.object) == object), "{due:?}");
    }
    crate::world::mounts::reap(&world).await;
}

#[tokio::test(start_paused = true)]
async fn update_changes_existing_bytes_only() {
    let overwrite = |call: &DeviceCall| {
        let [object] = &call.objects[..] else { return Err(DeviceRefusal::ServiceFailed) };
        object.write(0, b"NEW").map_err(|_| DeviceRefusal::ServiceFailed)?;
        let behind = object.write(9, b"too long");
        Ok(if behind == Err(GrantError::AccessDenied) { b"refused".to_vec() } else { b"written".to_vec() })
    };
    let (_world, client) = world_with(1, overwrite).await;
    client.put("/data", &b"old bytes!"[..], PutOptions::default()).await.unwrap();
    let mut call = FunctionRun::new("/fn");
    call.update("/data");
    let found = replies(&call, &client).await;
    assert_eq!(found[0].result, b"refused", "{found:?}");
    let mut back = Vec::new();
    client.get("/data", &mut back, GetOptions::default()).await.unwrap();
    assert_eq!(back, b"NEW bytes!");
    // Without the right to update, the device refuses the write.
    let mut reading = FunctionRun::new("/fn");
    reading.read("/data");
    assert!(!replies(&reading, &client).await[0].is_success());
}

#[tokio::test(start_paused = true)]
async fn objects_of_device_share_one_job() {
    let count = |call: &DeviceCall| Ok(vec![call.objects.len() as u8]);
    let (_world, client) = world_with(1, count).await;
    for name in ["/a", "/b", "/c"] {
        client.put(name, name.as_bytes(), PutOptions::default()).await.unwrap();
    }
    client.put("/empty", &b""[..], PutOptions::default()).await.unwrap();
    let mut call = FunctionRun::new("/fn");
    ["/a", "/b", "/empty", "/c"].iter().for_each(|name| call.read(name));
    assert_eq!(replies(&call, &client).await.len(), 3);
    call.grouping = CallGrouping::PerDevice;
    let found = replies(&call, &client).await;
    assert_eq!((found.len(), &found[0].result[..]), (1, &[3][..]));
}

#[tokio::test(start_paused = true)]
async fn file_without_access_has_reply_with_error() {
    let (_world, client) = world_with(2, |call: &DeviceCall| Ok(vec![call.objects.len() as u8])).await;
    for name in ["/a", "/c"] {
        client.put(name, name.as_bytes(), PutOptions::default()).await.unwrap();
    }
    let mut call = FunctionRun::new("/fn");
    ["/a", "/missing", "/c"].iter().for_each(|name| call.read(name));
    let found = replies(&call, &client).await;
    let groups: Vec<(usize, usize, bool)> =
        found.iter().map(|reply| (reply.group.first_file, reply.group.replies, reply.is_success())).collect();
    assert_eq!(groups, [(0, 1, true), (2, 1, true), (1, 1, false)]);
}

#[tokio::test(start_paused = true)]
async fn jobs_of_many_files_receive_header_rows() {
    let (_world, client) = world_with(2, |call: &DeviceCall| Ok(call.arguments.to_vec())).await;
    let mut call = FunctionRun::new("/fn");
    call.header_rows = true;
    for file in 0..300 {
        let path = format!("/{file}");
        client.put(&path, format!("h{file}\n1\n").as_bytes(), PutOptions::default()).await.unwrap();
        call.read(&path);
    }
    let found = replies(&call, &client).await;
    assert_eq!(found.len(), 300);
    for (file, reply) in found.iter().enumerate() {
        assert_eq!(reply.parts[0].file, file);
        assert_eq!(reply.result, format!("header.0=h{file}\0").into_bytes());
    }
    call.grouping = CallGrouping::PerDevice;
    let found = replies(&call, &client).await;
    let mut files: Vec<usize> = found.iter().flat_map(|reply| &reply.parts).map(|part| part.file).collect();
    files.sort_unstable();
    assert!(files == (0..300).collect::<Vec<_>>() && found.len() < 20, "{} jobs", found.len());
}

#[tokio::test(start_paused = true)]
async fn empty_output_does_not_shift_pairs() {
    let never = |_: &DeviceCall| -> Result<Vec<u8>, DeviceRefusal> { panic!("it must not run") };
    let (_world, client) = world_with(1, never).await;
    for (name, bytes) in [("/in1", "one"), ("/out1", ""), ("/in2", "two"), ("/out2", "")] {
        client.put(name, bytes.as_bytes(), PutOptions::default()).await.unwrap();
    }
    let mut call = FunctionRun::new("/fn");
    call.grouping = CallGrouping::PerDevice;
    ["/in1", "/out1", "/in2", "/out2"].iter().for_each(|name| call.update(name));
    let error = call.run(&client, |_| panic!("no job")).await.unwrap_err();
    assert!(error.to_string().starts_with("/out1 has no bytes on device "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn asynchronous_job_is_waited_for_and_read() {
    let (_world, client) = world_with(1, read_objects).await;
    let bytes = content(200_000);
    client.put("/data", &bytes[..], PutOptions::default()).await.unwrap();
    let mut call = FunctionRun::new("/fn");
    call.timeout_ms = 0;
    // Without an object for it, the result is fetched in pages.
    call.long_results = false;
    call.read("/data");
    let found = replies(&call, &client).await;
    assert_eq!(found[0].outcome.as_ref().unwrap().state, JobState::Running);
    let job = found[0].handle.clone().unwrap();
    assert_eq!(client.job_status(&job, METHOD).await.unwrap().state, JobState::Running);
    assert_eq!(
        client.wait_for_job(&job, Duration::from_secs(1), METHOD).await.unwrap().state,
        JobState::Done
    );
    let mut result = Vec::new();
    while result.len() < bytes.len() {
        let page = client.job_result(&job, result.len() as u64, METHOD).await.unwrap();
        assert!(!page.bytes.is_empty() && page.bytes.len() <= INLINE_MAX);
        result.extend_from_slice(&page.bytes);
    }
    assert_eq!(result, bytes);
    assert_eq!(client.job_log(&job, 0, METHOD).await.unwrap().bytes, b"lines");
    assert_eq!(client.cancel_job(&job, METHOD).await.unwrap().state, JobState::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn busy_device_and_missing_engine_are_typed() {
    let (_world, client) = world_with(1, |_: &DeviceCall| Err(DeviceRefusal::TooManyJobs)).await;
    client.put("/data", &b"data"[..], PutOptions::default()).await.unwrap();
    let mut call = FunctionRun::new("/fn");
    call.read("/data");
    let found = replies(&call, &client).await;
    let error = found[0].outcome.as_ref().unwrap_err();
    assert!(matches!(error, FunctionError::Busy { .. }), "{error:?}");
    put_function(&client, EngineType::Wasm).await;
    let found = replies(&call, &client).await;
    let error = found[0].outcome.as_ref().unwrap_err();
    let wasm = Some(EngineType::Wasm);
    assert!(matches!(error, FunctionError::NoEngine { engine, .. } if *engine == wasm), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn code_that_differs_from_digest_never_runs() {
    let (world, client) = world_with(1, |_: &DeviceCall| Ok(b"ran".to_vec())).await;
    client.put("/data", &b"data"[..], PutOptions::default()).await.unwrap();
    let mut call = FunctionRun::new("/fn");
    call.read("/data");
    assert_eq!(replies(&call, &client).await[0].result, b"ran");
    // Another code in the object, behind the back of the metadata server.
    let (layout, _) = client.placement("/fn").await.unwrap();
    let object = layout.unwrap().objects()[0].object;
    let bearer = world.own(0, sealstone_mds::ServerPurpose::CopyTo(object));
    let data = bytes::Bytes::from_static(b"code with a back door");
    let write = sealstone_initiator::Operation::Write { object, offset: 0, data };
    world.osd(0).execute(&bearer, write).await.unwrap();
    let found = replies(&call, &client).await;
    let error = found[0].outcome.as_ref().unwrap_err();
    assert!(matches!(error, FunctionError::DigestMismatch { .. }), "{error:?}");
}
