//! EXECUTE FUNCTION: authority, the copy of the code, and the objects that a function accesses.
//!
//! The service of these tests runs a closure in the thread of the command, with the handles of the
//! real device.

use std::sync::Arc;

use crate::support::{Answer, Bench, ListPair, NEXUS, PID, SIGN_HERE, START_MS, user, value};
use parking_lot::Mutex;
use sealstone_crypto::signature::PublisherKey;
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::*;
use sealstone_osd::continuation::Segment;
use sealstone_osd::function::attributes::{EngineEntry, FunctionAttributes, signed_message};
use sealstone_osd::function::{
    ApiVersion, EngineType, ExecuteRequest, FunctionObject, JobAction, JobId, JobRequest, JobState,
    REPLY_MAX, ReplyHeader, ReplyParts, RunRequest,
};
use sealstone_osd::{
    AttributeId, Capability, Command, Descriptor, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_osd_device::{
    CodeRequest, CodeReservation, EngineInfo, FunctionCall, FunctionRefusal, FunctionRunner, GrantError,
    GrantedObject, JobCall, OsdConfig,
};
use sealstone_scsi::Status;
use sealstone_scsi::lu::LogicalUnit as _;
use sealstone_store::{MemoryStore, ObjectStore};

mod changing_code;
mod collections;
mod kept_policy;
mod paper;
mod restrictions;

/// The function object, an object with data, and one that does not exist at first.
const CODE: u64 = 0x10000;
const DATA: u64 = 0x10001;
const OTHER: u64 = 0x10002;
const JOB: JobId = JobId([9; 16]);
const ACTION: u16 = 0x8F91;

type Work = Box<dyn Fn(&FunctionCall) -> Vec<u8> + Send>;

fn code(call: &FunctionCall) -> &[u8] {
    &call.code.as_ref().unwrap().bytes
}

/// Runs a closure as the function.
struct ClosureRunner {
    /// Bytes of code that may be in memory.
    code_bytes: Arc<Mutex<u64>>,
    work: Mutex<Option<Work>>,
    calls: Mutex<Vec<(JobAction, [u8; 20])>>,
}

impl Default for ClosureRunner {
    fn default() -> Self {
        let code_bytes = Arc::new(Mutex::new(64 << 20));
        Self { code_bytes, work: Mutex::default(), calls: Mutex::default() }
    }
}

/// Returns bytes when it is dropped.
struct CodeShare(Arc<Mutex<u64>>, u64);

impl Drop for CodeShare {
    fn drop(&mut self) {
        *self.0.lock() += self.1;
    }
}

impl FunctionRunner for ClosureRunner {
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

    fn reserve_code(&self, request: &CodeRequest<'_>) -> Result<CodeReservation, FunctionRefusal> {
        if request.engine != EngineType::C {
            return Err(FunctionRefusal::EngineMissing(request.engine));
        }
        let mut free = self.code_bytes.lock();
        *free = free.checked_sub(request.bytes).ok_or(FunctionRefusal::TooManyJobs)?;
        Ok(CodeReservation::new(CodeShare(Arc::clone(&self.code_bytes), request.bytes)))
    }

    fn execute(&self, call: FunctionCall) -> Result<ReplyParts, FunctionRefusal> {
        let work = self.work.lock();
        let inline = work.as_ref().map_or_else(Vec::new, |work| work(&call));
        let header = ReplyHeader::new(JOB, JobState::Done);
        Ok(ReplyParts { header, inline, receipt: b"receipt".to_vec() })
    }

    fn job(&self, call: JobCall) -> Result<ReplyParts, FunctionRefusal> {
        if call.request.job != JOB {
            return Err(FunctionRefusal::UnknownJob);
        }
        self.calls.lock().push((call.request.action, call.caller.audit));
        let header = ReplyHeader::new(JOB, JobState::Running);
        Ok(ReplyParts { header, inline: Vec::new(), receipt: Vec::new() })
    }
}

struct Stage {
    bench: Bench,
    runner: Arc<ClosureRunner>,
}

fn entry(object: ObjectId, kind: ObjectType, rights: Permissions) -> FunctionObject {
    FunctionObject { object, kind, rights }
}

fn request(objects: Vec<FunctionObject>) -> RunRequest {
    RunRequest {
        engine: Some(EngineType::C),
        secret_arguments: false,
        commit_on_success: false,
        input_digests: false,
        result_entry: false,
        timeout_ms: 1000,
        api: ApiVersion::CURRENT,
        digest: None,
        method: "main".into(),
        arguments: b"arguments".to_vec().into(),
        objects,
        job: None,
    }
}

impl Stage {
    fn new() -> Self {
        Self::with(OsdConfig::default())
    }

    fn with(config: OsdConfig) -> Self {
        Self::on(config, Arc::new(MemoryStore::new(64 << 20)))
    }

    fn on(config: OsdConfig, store: Arc<dyn ObjectStore>) -> Self {
        let bench = Bench::with(config, store);
        bench.create_partition(PID);
        for (number, bytes) in [(CODE, &b"code of the function"[..]), (DATA, b"0123456789")] {
            let object = user(number);
            bench.run(Command::Create(Create { object, count: 1 }), ListPair::default(), &[]).good();
            let write = Command::Write(Extent { object, start: 0, length: bytes.len() as u64 });
            bench.run(write, ListPair::default(), bytes).good();
        }
        let runner = Arc::new(ClosureRunner::default());
        bench.unit.set_function_runner(Arc::clone(&runner) as Arc<dyn FunctionRunner>);
        Self { bench, runner }
    }

    /// Sets the function of the next runs.
    fn function(&self, work: impl Fn(&FunctionCall) -> Vec<u8> + Send + 'static) {
        *self.runner.work.lock() = Some(Box::new(work));
    }

    /// Returns a capability for an entry.
    fn granting(&self, entry: &FunctionObject) -> Capability {
        let scope = Scope::default();
        let creates = entry.rights.contains(Permissions::CREATE);
        let (object_type, descriptor) = match entry.kind {
            ObjectType::Partition if !creates => {
                (ObjectType::Partition, Descriptor::Partition { scope, partition: entry.object.partition })
            }
            ObjectType::Collection => {
                (ObjectType::Collection, Descriptor::Collection { scope, allowed: entry.object })
            }
            _ => (ObjectType::User, Descriptor::User { scope, allowed: entry.object, range: Range::ALL }),
        };
        let remove = Command::Remove(Target { object: user(DATA) });
        Capability {
            object_type,
            permissions: entry.rights,
            descriptor,
            ..self.bench.capability(&remove, SecurityMethod::AllData)
        }
    }

    fn send(&self, segment: Segment, change: impl FnOnce(&mut Capability)) -> Answer {
        let command =
            Command::ExecuteFunction(ExecuteFunction { object: user(CODE), allocation: REPLY_MAX as u32 });
        let mut capability = self.bench.capability(&command, SecurityMethod::AllData);
        change(&mut capability);
        let continuation = segment.encode(ACTION).unwrap();
        let ready = self.bench.ready_scattered(command, &ListPair::default(), &[], &capability, continuation);
        let reply = self.bench.send(&ready);
        if reply.status == Status::TaskSetFull {
            // It has no sense data, and so no integrity check value.
            return Answer { status: reply.status, sense: None, data: Vec::new(), attributes: Vec::new() };
        }
        self.bench.verify(&ready, &reply).unwrap()
    }

    fn run_with(&self, request: RunRequest, extensions: &[Capability]) -> Answer {
        let segment = Segment {
            function: Some(ExecuteRequest::Run(request)),
            extensions: extensions.iter().map(Capability::encode).collect(),
            proofs: vec![SIGN_HERE; extensions.len()],
            ..Segment::default()
        };
        self.send(segment, |_| ())
    }

    /// Runs with a full capability for each entry.
    fn run(&self, objects: &[FunctionObject]) -> ReplyParts {
        let extensions: Vec<_> = objects.iter().map(|entry| self.granting(entry)).collect();
        let answer = self.run_with(request(objects.to_vec()), &extensions).good();
        ReplyParts::parse(&answer.data).unwrap()
    }

    fn job(&self, job: JobId, change: impl FnOnce(&mut Capability)) -> Answer {
        let request = JobRequest { action: JobAction::Status, job };
        let function = Some(ExecuteRequest::Job(request));
        self.send(Segment { function, ..Segment::default() }, change)
    }

    fn set(&self, object: ObjectId, values: &[(u32, u32, &[u8])]) {
        let command = Command::SetAttributes(Target { object });
        self.bench.run(command, ListPair::set(values), &[]).good();
    }

    fn read(&self, object: ObjectId, length: u64) -> Vec<u8> {
        let read = Command::Read(Extent { object, start: 0, length });
        self.bench.run(read, ListPair::default(), &[]).good().data
    }

    fn get(&self, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
        let command = Command::GetAttributes(Target { object });
        value(&self.bench.run(command, ListPair::get(&[(page, number)]), &[]).good().attributes)
    }
}

/// All rights of a user object.
fn all_rights() -> Permissions {
    FunctionObject::RIGHTS.without(Permissions::CREATE)
}

/// Runs operations in the function, and returns their results after the run.
fn results<T: Send + 'static>(
    stage: &Stage,
    objects: &[FunctionObject],
    work: impl Fn(&[Arc<dyn GrantedObject>]) -> T + Send + 'static,
) -> T {
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    stage.function(move |call| {
        *keep.lock() = Some(work(&call.objects));
        Vec::new()
    });
    stage.run(objects);
    let result = kept.lock().take();
    result.unwrap()
}

#[test]
fn function_gets_code_arguments_and_objects() {
    let stage = Stage::new();
    stage.function(|call| {
        assert_eq!((code(call), &call.arguments[..]), (&b"code of the function"[..], &b"arguments"[..]));
        assert_eq!(call.digest, *blake3::hash(b"code of the function").as_bytes());
        assert_eq!((call.method.as_str(), call.function), ("main", user(CODE)));
        assert_eq!(
            (call.caller.audit, call.caller.initiator.as_str()),
            (*b"auditor-of-the-tests", "iqn.test:client")
        );
        let mut bytes = [0; 20];
        let read = call.objects[0].read(2, &mut bytes).unwrap();
        bytes[..read].to_vec()
    });
    let reply = stage.run(&[entry(user(DATA), ObjectType::User, Permissions::READ)]);
    assert_eq!((&reply.inline[..], &reply.receipt[..]), (&b"23456789"[..], &b"receipt"[..]));
    assert_eq!((reply.header.job, reply.header.state), (JOB, JobState::Done));
    assert!(
        stage.bench.log.0.lock().iter().any(|line| line.contains("EXECUTE FUNCTION 0x10000/0x10000 done"))
    );
}

#[test]
fn capability_without_execute_is_refused() {
    let stage = Stage::new();
    stage.function(|_| panic!("it must not run"));
    let segment =
        || Segment { function: Some(ExecuteRequest::Run(request(Vec::new()))), ..Segment::default() };
    let others = |capability: &mut Capability| {
        capability.permissions =
            (Permissions::ALL_OSD2 | Permissions::REWRITE_CONDITIONAL).without(Permissions::EXECUTE);
    };
    let answer = stage.send(segment(), others);
    assert_eq!((answer.sense(), answer.sense.unwrap().field.unwrap().byte), ((5, 0x2400), 129));
}

#[test]
fn device_without_service_reports_missing_engine() {
    let bench = Bench::with_partition();
    bench.run(Command::Create(Create { object: user(CODE), count: 1 }), ListPair::default(), &[]).good();
    let stage = Stage { bench, runner: Arc::default() };
    assert_eq!(stage.run_with(request(Vec::new()), &[]).sense(), (5, 0x2000));
    assert_eq!(stage.job(JOB, |_| ()).sense(), (5, 0x2000));
    let stage = Stage::new();
    let wasm = RunRequest { engine: Some(EngineType::Wasm), ..request(Vec::new()) };
    assert_eq!(stage.run_with(wasm, &[]).sense(), (5, 0x2000));
    let none = RunRequest { engine: None, ..request(Vec::new()) };
    assert_eq!(stage.run_with(none, &[]).sense(), (5, 0x2600), "neither request nor attributes name one");
}

#[test]
fn wrong_code_digest_is_refused() {
    let stage = Stage::new();
    let digest = *blake3::hash(b"code of the function").as_bytes();
    let with = |digest| stage.run_with(RunRequest { digest: Some(digest), ..request(Vec::new()) }, &[]);
    with(digest).good();
    let wrong = with([1; 32]);
    assert_eq!(wrong.sense(), (5, 0x2400));
    let field = wrong.sense.unwrap().field.unwrap();
    assert_eq!((field.in_cdb, field.byte), (false, 96), "CODE DIGEST in the segment");
    stage.set(user(CODE), &[(0xF002, 9, &digest)]);
    stage.run_with(request(Vec::new()), &[]).good();
    let write = Command::Write(Extent { object: user(CODE), start: 0, length: 4 });
    stage.bench.run(write, ListPair::default(), b"CODE").good();
    assert_eq!(stage.run_with(request(Vec::new()), &[]).sense(), (5, 0x2400), "changed code");
}

#[test]
fn changed_function_runs_its_new_code() {
    let stage = Stage::new();
    stage.function(|call| [code(call), &call.digest].concat());
    let expect = |bytes: &[u8]| {
        let expected = [bytes, blake3::hash(bytes).as_bytes()].concat();
        // The second run finds what the first one left.
        assert!([stage.run(&[]), stage.run(&[])].iter().all(|reply| reply.inline == expected));
    };
    expect(b"code of the function");
    let write = |bytes: &[u8]| {
        let extent = Extent { object: user(CODE), start: 0, length: bytes.len() as u64 };
        stage.bench.run(Command::Write(extent), ListPair::default(), bytes).good();
    };
    write(b"CODE");
    expect(b"CODE of the function");
    // A function changes its own code through a handle.
    let handle = entry(user(CODE), ObjectType::User, Permissions::WRITE);
    results(&stage, &[handle], |objects| objects[0].write(0, b"self").unwrap());
    stage.function(|call| [code(call), &call.digest].concat());
    expect(b"self of the function");
    // So does a change of its attributes: another digest of the publisher.
    stage.set(user(CODE), &[(0xF002, 9, &[7; 32])]);
    assert_eq!(stage.run_with(request(Vec::new()), &[]).sense().0, 5);
}

#[test]
fn full_budget_refuses_before_code_is_read() {
    let stage = Stage::new();
    let length = b"code of the function".len() as u64;
    *stage.runner.code_bytes.lock() = length - 1;
    // If the code were read, its digest would be refused first.
    let wrong = || RunRequest { digest: Some([1; 32]), ..request(Vec::new()) };
    assert_eq!(stage.run_with(wrong(), &[]).status, Status::TaskSetFull);
    *stage.runner.code_bytes.lock() = length;
    assert_eq!(stage.run_with(wrong(), &[]).sense(), (5, 0x2400));
    assert_eq!(*stage.runner.code_bytes.lock(), length, "a refused run returns its share");
    stage.run(&[]);
    assert_eq!(*stage.runner.code_bytes.lock(), length);
    let wrong = RunRequest { engine: Some(EngineType::Java), ..wrong() };
    assert_eq!(stage.run_with(wrong, &[]).sense(), (5, 0x2000), "no such engine");
}

#[test]
fn each_object_needs_its_own_capability() {
    let stage = Stage::new();
    stage.function(|_| panic!("it must not run"));
    let one = entry(user(DATA), ObjectType::User, Permissions::READ);
    let good = stage.granting(&one);
    let refused = |objects: Vec<FunctionObject>, extensions: &[Capability]| {
        let answer = stage.run_with(request(objects), extensions);
        assert_eq!(answer.status, Status::CheckCondition);
        answer.sense()
    };
    assert_eq!(refused(vec![one], &[]), (5, 0x2400), "none");
    assert_eq!(refused(vec![one, one], &[good]), (5, 0x2400), "one for two");
    assert_eq!(refused(vec![], &[good]), (5, 0x2400), "one for none");
    let more = FunctionObject { rights: Permissions::READ | Permissions::WRITE, ..one };
    assert_eq!(refused(vec![more], &[good]), (5, 0x2400), "fewer rights than the entry");
    let expired = Capability { expires_ms: START_MS - 1, ..good };
    assert_eq!(refused(vec![one], &[expired]), (5, 0x2400), "expired");
    let other = stage.granting(&entry(user(CODE), ObjectType::User, Permissions::READ));
    assert_eq!(refused(vec![one], &[other]), (5, 0x2400), "for another object");
    let segment = Segment {
        function: Some(ExecuteRequest::Run(request(vec![one]))),
        extensions: vec![good.encode()],
        proofs: vec![[1; 32]],
        ..Segment::default()
    };
    assert_eq!(stage.send(segment, |_| ()).sense(), (5, 0x2400), "a wrong proof");
}

#[test]
fn rights_restrict_each_operation() {
    let stage = Stage::new();
    let rights = [
        Permissions::READ,
        Permissions::WRITE,
        Permissions::APPEND,
        Permissions::GET_ATTR,
        Permissions::SET_ATTR,
        Permissions::OBJ_MGMT,
        Permissions::REMOVE,
    ];
    for right in rights {
        let objects = [entry(user(DATA), ObjectType::User, right)];
        let done = results(&stage, &objects, |objects| {
            let object = &objects[0];
            let name = AttributeId::new(1, 9);
            [
                (Permissions::READ, object.read(0, &mut [0; 1]).map(drop)),
                (Permissions::READ, object.length().map(drop)),
                (Permissions::WRITE, object.write(0, b"w")),
                (Permissions::WRITE, object.punch(9, 1).map(drop)),
                (Permissions::APPEND, object.append(b"9").map(drop)),
                (Permissions::GET_ATTR, object.attribute(name).map(drop)),
                (Permissions::SET_ATTR, object.set_attribute(name, b"name")),
                (Permissions::OBJ_MGMT, object.flush()),
                (Permissions::REMOVE, object.remove()),
            ]
        });
        for (needed, result) in done {
            let expected = if needed == right { Ok(()) } else { Err(GrantError::AccessDenied) };
            assert_eq!(result, expected, "{needed} with {right}");
        }
    }
}

#[test]
fn operations_have_effects_of_their_commands() {
    let stage = Stage::new();
    stage.bench.fake.ms.store(START_MS + 60_000, std::sync::atomic::Ordering::SeqCst);
    let objects = [entry(user(DATA), ObjectType::User, all_rights())];
    results(&stage, &objects, |objects| {
        let object = &objects[0];
        object.write(8, b"abcd").unwrap();
        assert_eq!((object.append(b"ef"), object.length()), (Ok(12), Ok(14)));
        assert_eq!(object.punch(0, 2), Ok(12), "bytes that move");
        object.set_attribute(AttributeId::new(1, 9), b"renamed").unwrap();
        assert_eq!(object.attribute(AttributeId::new(1, 9)), Ok(Some(b"renamed".to_vec())));
        assert_eq!(object.attribute(AttributeId::new(1, 0x82)), Ok(Some(12_u64.to_be_bytes().to_vec())));
        assert_eq!(object.read(100, &mut [0; 4]), Ok(0), "beyond the end");
        object.flush().unwrap();
    });
    assert_eq!(stage.read(user(DATA), 12), b"234567abcdef");
    assert_eq!(stage.get(user(DATA), 1, 9), b"renamed");
    let modified = stage.get(user(DATA), 3, 5);
    assert_eq!(modified, (START_MS + 60_000).to_be_bytes()[2..], "data modified time");
    let read = stage.get(user(CODE), 3, 5);
    assert_eq!(read, START_MS.to_be_bytes()[2..], "the code was not modified");
}

#[test]
fn quotas_stop_writes_of_a_function() {
    let stage = Stage::new();
    stage.set(user(DATA), &[(2, 1, &20_u64.to_be_bytes())]);
    let objects = [entry(user(DATA), ObjectType::User, all_rights())];
    let done = results(&stage, &objects, |objects| {
        (objects[0].write(10, &[1; 10]), objects[0].write(10, &[1; 11]), objects[0].append(&[1]))
    });
    assert_eq!(done, (Ok(()), Err(GrantError::TooLarge), Err(GrantError::TooLarge)));
    stage.set(user(DATA), &[(2, 1, &[])]);
    stage.set(ObjectId::of_partition(PID), &[(0x3000_0002, 0x1_0001, &8192_u64.to_be_bytes())]);
    let done = results(&stage, &objects, |objects| objects[0].write(0, &[1; 100_000]));
    assert_eq!(done, Err(GrantError::NoSpace));
}

#[test]
fn byte_range_restricts_reads_writes_and_length() {
    let stage = Stage::new();
    let rights = Permissions::READ | Permissions::WRITE | Permissions::APPEND | Permissions::GET_ATTR;
    let one = entry(user(DATA), ObjectType::User, rights);
    let ranged = |start, length| Capability {
        descriptor: Descriptor::User {
            scope: Scope::default(),
            allowed: user(DATA),
            range: Range { start, length },
        },
        ..stage.granting(&one)
    };
    stage.function(|call| {
        let object = &call.objects[0];
        assert_eq!(object.range(), Range { start: 2, length: 4 });
        let denied = GrantError::AccessDenied;
        assert_eq!(object.read(2, &mut [0; 4]), Ok(4));
        assert_eq!(object.read(1, &mut [0; 2]), Err(denied));
        assert_eq!(object.read(5, &mut [0; 2]), Err(denied));
        assert_eq!(object.write(5, b"x"), Ok(()));
        assert_eq!(object.write(6, b"x"), Err(denied));
        assert_eq!((object.append(b"x"), object.punch(2, 1)), (Err(denied), Err(denied)));
        assert_eq!(object.length(), Ok(6), "no more than the range shows");
        assert_eq!(object.attribute(AttributeId::new(1, 0x82)), Err(denied));
        b"done".to_vec()
    });
    let answer = stage.run_with(request(vec![one]), &[ranged(2, 4)]).good();
    assert_eq!(ReplyParts::parse(&answer.data).unwrap().inline, b"done");
    assert_eq!(stage.read(user(DATA), 10), b"01234x6789");
}

/// A tag, a key, an audit value and the expiry end the access in the middle of a run.
#[test]
fn revocation_stops_the_next_call() {
    let revocations: [(&str, fn(&Bench)); 4] = [
        ("policy access tag", |bench| {
            let command = Command::SetAttributes(Target { object: user(DATA) });
            bench.run(command, ListPair::set(&[(5, 0x4000_0001, &[0, 0, 0, 4])]), &[]).good();
        }),
        ("audit value", |bench| {
            let command = Command::SetAttributes(Target { object: ObjectId::ROOT });
            bench.run(command, ListPair::set(&[(0x9000_F005, 1, b"auditor-of-the-tests")]), &[]).good();
        }),
        ("expiry", |bench| {
            bench.fake.ms.store(START_MS + 3_600_001, std::sync::atomic::Ordering::SeqCst);
        }),
        ("key", |bench| bench.renew_keys(PID)),
    ];
    for (what, revoke) in revocations {
        let stage = Arc::new(Stage::new());
        stage.set(user(DATA), &[(5, 0x4000_0001, &[0, 0, 0, 3])]);
        let one = entry(user(DATA), ObjectType::User, Permissions::READ | Permissions::WRITE);
        let scope = Scope { policy_access_tag: 3, ..Scope::default() };
        let capability = Capability {
            descriptor: Descriptor::User { scope, allowed: user(DATA), range: Range::ALL },
            ..stage.granting(&one)
        };
        // The handle outlives the command, as that of an asynchronous job does.
        let kept = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&kept);
        stage.function(move |call| {
            *keep.lock() = Some(Arc::clone(&call.objects[0]));
            Vec::new()
        });
        stage.run_with(request(vec![one]), &[capability]).good();
        let handle = kept.lock().take().unwrap();
        assert_eq!(handle.read(0, &mut [0; 4]), Ok(4), "{what}");
        revoke(&stage.bench);
        assert_eq!(handle.read(0, &mut [0; 4]), Err(GrantError::AccessDenied), "{what}");
        assert_eq!(handle.write(0, b"late"), Err(GrantError::AccessDenied), "{what}");
    }
}

#[test]
fn removed_objects_are_not_found_by_handles() {
    let stage = Arc::new(Stage::new());
    let one = entry(user(DATA), ObjectType::User, all_rights());
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    stage.function(move |call| {
        *keep.lock() = Some((Arc::clone(&call.objects[0]), Arc::clone(&call.code.as_ref().unwrap().bytes)));
        Vec::new()
    });
    let created = stage.get(user(DATA), 3, 1);
    let created_ms = created.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let capability = Capability { object_created_ms: created_ms, ..stage.granting(&one) };
    stage.run_with(request(vec![one]), &[capability]).good();
    let (handle, code) = kept.lock().take().unwrap();
    for number in [DATA, CODE] {
        stage.bench.run(Command::Remove(Target { object: user(number) }), ListPair::default(), &[]).good();
    }
    assert_eq!(&code[..], b"code of the function", "the code is a copy");
    assert_eq!(handle.read(0, &mut [0; 4]), Err(GrantError::NotFound));
    assert_eq!(handle.write(0, b"late"), Err(GrantError::NotFound));
    stage.bench.fake.ms.fetch_add(5, std::sync::atomic::Ordering::SeqCst);
    stage
        .bench
        .run(Command::Create(Create { object: user(DATA), count: 1 }), ListPair::default(), &[])
        .good();
    assert_eq!(handle.write(0, b"late"), Err(GrantError::AccessDenied), "another object of this number");
}

#[test]
fn function_creates_and_lists_objects_of_partition() {
    let stage = Stage::new();
    let rights = Permissions::CREATE | Permissions::WRITE | Permissions::READ | Permissions::REMOVE;
    let partition = ObjectId::of_partition(PID);
    let objects = [
        entry(partition, ObjectType::Partition, rights),
        entry(partition, ObjectType::Partition, Permissions::READ),
    ];
    let (first, second, listed) = results(&stage, &objects, |objects| {
        let (maker, lister) = (&objects[0], &objects[1]);
        assert_eq!(maker.write(0, b"x"), Err(GrantError::Invalid), "no object yet");
        assert_eq!(maker.list(0, 10), Err(GrantError::Invalid));
        assert_eq!(lister.create().err(), Some(GrantError::AccessDenied));
        let first = maker.create().unwrap();
        first.write(0, b"result").unwrap();
        assert!(!first.rights().contains(Permissions::CREATE) && first.kind() == ObjectType::User);
        assert_eq!(first.create().err(), Some(GrantError::Invalid));
        assert_eq!(first.append(b"x"), Err(GrantError::AccessDenied), "not a right of the entry");
        let second = maker.create().unwrap();
        second.remove().unwrap();
        assert_eq!(second.read(0, &mut [0; 1]), Err(GrantError::NotFound));
        (first.object(), second.object(), lister.list(0, 10).unwrap())
    });
    assert_eq!((first.partition, stage.read(first, 6)), (PID, b"result".to_vec()));
    assert_eq!((listed.numbers, listed.next), (vec![CODE, DATA, first.object], None));
    // After a crash it can be attributed to function and caller.
    let function = [user(CODE).partition.to_be_bytes(), CODE.to_be_bytes()].concat();
    assert_eq!(stage.get(first, 0xF008, 1), function);
    assert_eq!(stage.get(first, 0xF008, 2).len(), 20);
    assert_ne!(first, second);
}

#[test]
fn function_lists_members_of_collection() {
    let stage = Stage::new();
    let collection = user(0x11000);
    stage
        .bench
        .run(Command::CreateCollection(Target { object: collection }), ListPair::default(), &[])
        .good();
    stage.set(user(DATA), &[(4, 1, &collection.object.to_be_bytes())]);
    let objects = [
        entry(collection, ObjectType::Collection, Permissions::READ),
        entry(user(DATA), ObjectType::User, Permissions::SET_ATTR),
    ];
    let listed = results(&stage, &objects, move |objects| {
        assert_eq!(objects[0].read(0, &mut [0; 1]), Err(GrantError::Invalid));
        let listed = objects[0].list(0, 10).unwrap();
        // A function removes a member, and adds it again, by an attribute of the member.
        let membership = AttributeId::new(4, 1);
        objects[1].set_attribute(membership, &[]).unwrap();
        assert!(objects[0].list(0, 10).unwrap().numbers.is_empty());
        objects[1].set_attribute(membership, &collection.object.to_be_bytes()).unwrap();
        assert_eq!(objects[0].list(0, 10).unwrap().numbers, [DATA]);
        listed
    });
    assert_eq!(listed.numbers, [DATA]);
}

#[test]
fn missing_object_is_not_found() {
    let stage = Stage::new();
    let objects = [entry(user(OTHER), ObjectType::User, all_rights())];
    let done = results(&stage, &objects, |objects| {
        (objects[0].read(0, &mut [0; 1]), objects[0].write(0, b"x"), objects[0].remove())
    });
    let missing = GrantError::NotFound;
    assert_eq!(done, (Err(missing), Err(missing), Err(missing)));
}

#[test]
fn snapshot_contents_cannot_be_written() {
    let stage = Stage::new();
    let snapshot = 0x20000;
    let make = Duplicate { partition: snapshot, source: PID, method: 1 };
    stage.bench.run(Command::CreateSnapshot(make), ListPair::default(), &[]).good();
    stage.bench.keys.lock().add_partition(snapshot).unwrap();
    let objects =
        [entry(ObjectId::new(snapshot, DATA), ObjectType::User, Permissions::READ | Permissions::WRITE)];
    let done =
        results(&stage, &objects, |objects| (objects[0].read(0, &mut [0; 4]), objects[0].write(0, b"x")));
    assert_eq!(done, (Ok(4), Err(GrantError::AccessDenied)));
}

#[test]
fn jobs_report_to_their_caller_only() {
    let stage = Stage::new();
    let reply = ReplyParts::parse(&stage.job(JOB, |_| ()).good().data).unwrap();
    assert_eq!(reply.header.state, JobState::Running);
    assert_eq!(stage.runner.calls.lock()[..], [(JobAction::Status, *b"auditor-of-the-tests")]);
    let unknown = stage.job(JobId([8; 16]), |_| ());
    assert_eq!(unknown.sense(), (5, 0x2400));
    let denied = stage.job(JOB, |capability| capability.permissions = Permissions::READ);
    assert_eq!(denied.sense(), (5, 0x2400), "a job needs EXECUTE too");
}

#[test]
fn lost_connection_is_visible_to_the_service() {
    let stage = Stage::new();
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    stage.function(move |call| {
        *keep.lock() = Some(call.caller.clone());
        Vec::new()
    });
    stage.run(&[]);
    let caller = kept.lock().take().unwrap();
    assert!(!caller.is_disconnected());
    stage.bench.unit.connection_ended(NEXUS);
    assert!(caller.is_disconnected(), "before its commands end");
}

#[test]
fn engines_are_listed_in_root_page() {
    let stage = Stage::new();
    let entry = EngineEntry::parse(&stage.get(ObjectId::ROOT, 0x9000_F002, 1)).unwrap();
    assert_eq!((entry.available, entry.version.as_str()), (true, "closures"));
    assert_eq!(stage.get(ObjectId::ROOT, 0x9000_F002, 2), [0_u8; 0]);
    let bench = Bench::new();
    let command = Command::GetAttributes(Target { object: ObjectId::ROOT });
    let answer = bench.run(command, ListPair::get(&[(0x9000_F002, 1)]), &[]).good();
    assert_eq!(value(&answer.attributes), [0_u8; 0], "no service, no engines");
}

#[test]
fn attributes_choose_engine_and_api_range() {
    let stage = Stage::new();
    stage.set(user(CODE), &[(0xF002, 1, &[1]), (0xF002, 2, &[0, 1, 0, 0]), (0xF002, 3, &[0, 1, 0, 5])]);
    let with = |major, minor| {
        let api = ApiVersion { major, minor };
        stage.run_with(RunRequest { engine: None, api, ..request(Vec::new()) }, &[])
    };
    with(1, 0).good();
    with(1, 5).good();
    assert_eq!(
        (with(1, 6).sense(), with(2, 0).sense(), with(0, 9).sense()),
        ((5, 0x2600), (5, 0x2600), (5, 0x2600))
    );
}

#[test]
fn partition_policy_selects_functions() {
    let stage = Stage::new();
    let partition = ObjectId::of_partition(PID);
    let run = || stage.run_with(request(Vec::new()), &[]);
    let digest = *blake3::hash(b"code of the function").as_bytes();
    stage.set(partition, &[(0x3000_F002, 1, &[2])]);
    let refused = run();
    assert_eq!(refused.sense(), (5, 0x2400), "not listed");
    let field = refused.sense.unwrap().field.unwrap();
    assert_eq!((field.in_cdb, field.byte), (false, 49), "OPERATION in the segment");
    stage.set(partition, &[(0x3000_F002, 0x2007, &digest)]);
    run().good();
    stage.set(partition, &[(0x3000_F002, 1, &[1])]);
    assert_eq!(run().sense(), (5, 0x2400), "not signed");
    let key = PublisherKey::from_seed(&[3; 32]);
    let mut attributes = FunctionAttributes {
        engine: Some(EngineType::C),
        publisher: "example".into(),
        manifest: "methods = []".into(),
        publisher_key: Some(key.public()),
        ..FunctionAttributes::default()
    };
    attributes.signature = Some(key.sign(&signed_message(&digest, &attributes)));
    let set = |attributes: &FunctionAttributes| {
        let values = attributes.encode();
        let values: Vec<_> = values.iter().map(|(id, value)| (id.page, id.number, &value[..])).collect();
        stage.set(user(CODE), &values);
    };
    set(&attributes);
    assert_eq!(run().sense(), (5, 0x2400), "the key is not trusted");
    stage.set(partition, &[(0x3000_F002, 0x1000, &key.public())]);
    run().good();
    set(&FunctionAttributes { manifest: "methods = [1]".into(), ..attributes.clone() });
    assert_eq!(run().sense(), (5, 0x2400), "the manifest is not what was signed");
    set(&attributes);
    let write = Command::Write(Extent { object: user(CODE), start: 0, length: 4 });
    stage.bench.run(write, ListPair::default(), b"CODE").good();
    assert_eq!(run().sense(), (5, 0x2400), "the code is not what was signed");
}

#[test]
fn policy_needs_security_permission() {
    let stage = Stage::new();
    let command = Command::SetAttributes(Target { object: ObjectId::of_partition(PID) });
    let capability = stage.bench.capability(&command, SecurityMethod::AllData);
    let weaker =
        Capability { permissions: capability.permissions.without(Permissions::POL_SEC), ..capability };
    let lists = ListPair::set(&[(0x3000_F002, 1, &[1])]);
    assert_eq!(stage.bench.run_with(command, lists.clone(), &[], &weaker).sense(), (5, 0x2400));
    stage.bench.run_with(command, lists, &[], &capability).good();
}

#[test]
fn code_above_the_limit_is_refused() {
    let stage = Stage::new();
    let limit = 64_u64 << 20;
    stage.bench.store.resize(user(CODE), limit).unwrap();
    stage.function(|call| (code(call).len() as u64).to_be_bytes().to_vec());
    assert_eq!(stage.run(&[]).inline, limit.to_be_bytes());
    stage.bench.store.resize(user(CODE), limit + 1).unwrap();
    assert_eq!(stage.run_with(request(Vec::new()), &[]).sense(), (5, 0x2600));
}

#[test]
fn reply_fits_the_allocation_length() {
    let stage = Stage::new();
    stage.function(|call| vec![7; call.inline_max + 5]);
    let command = Command::ExecuteFunction(ExecuteFunction { object: user(CODE), allocation: 130 });
    let capability = stage.bench.capability(&command, SecurityMethod::AllData);
    let function = Some(ExecuteRequest::Run(request(Vec::new())));
    let segment = Segment { function, ..Segment::default() }.encode(ACTION).unwrap();
    let ready = stage.bench.ready_scattered(command, &ListPair::default(), &[], &capability, segment);
    let answer = stage.bench.verify(&ready, &stage.bench.send(&ready)).unwrap().good();
    let reply = ReplyParts::parse(&answer.data).unwrap();
    assert_eq!((answer.data.len(), reply.inline.len(), reply.receipt.len()), (130, 2, 0));
}
