//! Jobs of C functions: results, failures, limits, cancellation, reuse of engines.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sealstone_crypto::RustCrypto;
use sealstone_function_service::{
    EngineSet, FunctionService, RunRecord, RunRecorder, ServiceLimits, ServiceParts,
};
use sealstone_osd::capability::Range;
use sealstone_osd::function::attributes::FunctionAttributes;
use sealstone_osd::function::{
    ApiVersion, EngineType, ExitReason, INLINE_MAX, JobAction, JobId, JobRequest, JobState, ReplyParts,
};
use sealstone_osd::{ObjectId, Permissions};
use sealstone_osd_device::{
    CodeRequest, CodeReservation, DeviceEnvironment, FunctionCall, FunctionCaller, FunctionCode,
    FunctionRefusal, FunctionRunner as _, GrantedObject, JobCall,
};
use sealstone_seal::{Hash, InitialKey, KeyHierarchy, Random as _};
use sealstone_test_support::program_folder;
use zeroize::Zeroizing;

use crate::objects::{ALL, GrantedMemory};

/// One function whose method selects its behaviour.
const SOURCE: &str = r#"
#include "osd.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int64_t runs;
int64_t osd_main(const osd_call *call) {
    const char *m = osd_method(call);
    static char buffer[1 << 20];
    runs++;
    if (!strcmp(m, "empty")) return 0;
    if (!strcmp(m, "runs")) return osd_result(&runs, sizeof runs);
    if (!strcmp(m, "fail")) return -OSD_EBADMSG;
    if (!strcmp(m, "crash")) { *(volatile int *)8 = 1; return 0; }
    if (!strcmp(m, "loop")) { for (volatile uint64_t i = 0;; i++) {} }
    if (!strcmp(m, "bomb")) { for (;;) { char *p = malloc(1 << 20); if (!p) abort(); memset(p, 1, 1 << 20); } }
    if (!strcmp(m, "enomem")) return -OSD_ENOMEM;
    if (!strcmp(m, "patient")) { while (!osd_cancelled()) {} return -OSD_ECANCELED; }
    if (!strcmp(m, "large")) { return osd_result(buffer, 100000); }
    if (!strcmp(m, "flood")) { for (;;) { int64_t e = osd_result(buffer, sizeof buffer); if (e < 0) return e; } }
    if (!strcmp(m, "chatter")) { osd_log(OSD_LOG_WARNING, "a\033[2J", 5); return osd_progress(3, 7); }
    if (!strcmp(m, "sum")) {
        uint64_t sum = 0, at = 0;
        for (;;) {
            int64_t n = osd_read(0, at, buffer, sizeof buffer);
            if (n < 0) return n;
            if (n == 0) break;
            for (int64_t i = 0; i < n; i++) sum += (unsigned char)buffer[i];
            at += n;
        }
        return osd_result(&sum, sizeof sum);
    }
    if (!strcmp(m, "write")) { int64_t e = osd_write(0, 0, "changed", 7); return e < 0 ? e : 0; }
    if (!strcmp(m, "write-fail")) { osd_write(0, 0, "changed", 7); return -OSD_EIO; }
    if (!strcmp(m, "write-large")) { osd_write(0, 0, "changed", 7); return osd_result(buffer, 100000); }
    if (!strcmp(m, "punch")) { return osd_punch(0, 2, 3); }
    if (!strcmp(m, "guess")) {
        if (osd_length(1) != -OSD_EBADF || osd_length(UINT32_MAX) != -OSD_EBADF) return 1;
        return osd_length(1u << 31) == -OSD_EBADF ? 0 : 2;
    }
    if (!strcmp(m, "fork")) { return fork(); }
    if (!strcmp(m, "garbage")) {
        /* A stream begins with its second buffer, at 64 KiB + 5 MiB of the memory that the engine writes. */
        void *data = NULL;
        int64_t writer = osd_writer_open(0, 0);
        int64_t e = writer < 0 ? writer : osd_writer_buffer(writer, &data);
        if (e < 0) return e;
        uint32_t *ring = (uint32_t *)((char *)data - (64 << 10) - (5 << 20));
        memset((char *)ring + 4096, 0xA5, 4096);
        __atomic_fetch_add(ring, 1000, __ATOMIC_SEQ_CST);
        for (;;) __asm__ volatile("");
    }
    if (!strcmp(m, "linger")) {
        /* Pretends to return, and continues: a copy of the last request becomes a return. */
        void *data = NULL;
        int64_t writer = osd_writer_open(0, 0);
        int64_t e = writer < 0 ? writer : osd_writer_buffer(writer, &data);
        if (e < 0) return e;
        uint32_t *ring = (uint32_t *)((char *)data - (64 << 10) - (5 << 20));
        osd_progress(1, 2);
        uint32_t tail = *ring;
        char *last = (char *)ring + 4096 + (tail - 1) % 64 * 64, *next = (char *)ring + 4096 + tail % 64 * 64;
        memset(next, 0, 64);
        next[0] = 15;
        memcpy(next + 4, last + 4, 4);
        __atomic_fetch_add(ring, 1, __ATOMIC_SEQ_CST);
        for (;;) __asm__ volatile("");
    }
    if (!strcmp(m, "log-flood")) {
        for (int i = 0; i < 20000; i++) osd_log(OSD_LOG_INFO, "0123456789", 10);
        return osd_log(OSD_LOG_ERROR, "last", 4) < 0;
    }
    if (!strcmp(m, "hoard")) {
        int64_t opened = 0, reader;
        const void *data;
        while ((reader = osd_reader_open(0, 0, 1 << 20)) >= 0 && opened < 1000) {
            if (osd_reader_next(reader, &data) < 0) return -OSD_EIO;
            opened++;
        }
        return osd_result(&opened, sizeof opened) < 0;
    }
    return -OSD_ENOENT;
}
"#;

struct TestEnvironment;

impl DeviceEnvironment for TestEnvironment {
    fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
    }

    fn fill_random(&self, into: &mut [u8]) {
        sealstone_crypto::SystemRandom.fill(into);
    }
}

#[derive(Default)]
struct RecordedRuns(Mutex<Vec<(ExitReason, u64, u64)>>);

impl RunRecorder for RecordedRuns {
    fn record_run(&self, record: &RunRecord<'_>) {
        self.0.lock().push((record.exit, record.usage.bytes_read, record.denials));
    }
}

/// Builds a function in C as a shared object.
pub(crate) fn build_module(text: &str) -> Arc<[u8]> {
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("fn.c"), folder.path().join("fn.so"));
    std::fs::write(&source, text).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine-c/include");
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&object, &source])
        .arg("-I")
        .arg(include)
        .status()
        .expect("gcc");
    assert!(status.success());
    std::fs::read(object).unwrap().into()
}

/// Returns the code of the function; builds it the first time.
fn code() -> Arc<[u8]> {
    static CODE: OnceLock<Arc<[u8]>> = OnceLock::new();
    Arc::clone(CODE.get_or_init(|| build_module(SOURCE)))
}

/// Returns a reservation without a budget.
pub(crate) fn reserved() -> CodeReservation {
    CodeReservation::new(())
}

pub(crate) struct TestService {
    pub(crate) service: Arc<FunctionService>,
    runs: Arc<RecordedRuns>,
    folder: tempfile::TempDir,
}

fn keys() -> KeyHierarchy<RustCrypto> {
    KeyHierarchy::factory(Hash::Sha256, &InitialKey::new(&[1; 32]).unwrap(), [7; 20])
}

impl TestService {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut ServiceLimits)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (service, runs) = start(folder.path(), change);
        Self { service, runs, folder }
    }

    fn run(&self, method: &str, objects: Vec<Arc<dyn GrantedObject>>) -> ReplyParts {
        self.service.reserve_and_run(call(1, method, 30_000, objects)).unwrap()
    }

    fn wait_until_running(&self, user: u8, id: JobId) {
        let began = Instant::now();
        while self.job(user, id, JobAction::Status).unwrap().header.state != JobState::Running {
            assert!(began.elapsed() < Duration::from_secs(60), "the job does not run");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn job(&self, user: u8, id: JobId, action: JobAction) -> Result<ReplyParts, FunctionRefusal> {
        let request = JobRequest { action, job: id };
        self.service.job(JobCall {
            function: FUNCTION,
            request,
            inline_max: INLINE_MAX,
            caller: caller(user),
        })
    }
}

fn start(
    folder: &Path,
    change: impl FnOnce(&mut ServiceLimits),
) -> (Arc<FunctionService>, Arc<RecordedRuns>) {
    let mut limits = ServiceLimits::for_cores(2);
    change(&mut limits);
    let runs = Arc::new(RecordedRuns::default());
    let parts = ServiceParts {
        engines: EngineSet::start(&[program_folder().to_owned()], false),
        limits,
        environment: Arc::new(TestEnvironment),
        records: folder.join("jobs"),
        recorder: Arc::clone(&runs) as Arc<dyn RunRecorder>,
        receipts: Box::new(|| keys().receipt_key()),
    };
    (Arc::new(FunctionService::start(parts).unwrap()), runs)
}

const FUNCTION: ObjectId = ObjectId::new(0x10000, 0x10010);

fn caller(user: u8) -> FunctionCaller {
    FunctionCaller::new([user; 20], "iqn.2026-11.org.sealstone:test".into())
}

pub(crate) fn call(
    user: u8,
    method: &str,
    timeout_ms: u32,
    objects: Vec<Arc<dyn GrantedObject>>,
) -> FunctionCall {
    let code = code();
    FunctionCall {
        function: FUNCTION,
        digest: *blake3::hash(&code).as_bytes(),
        code: Some(FunctionCode { bytes: code, reservation: reserved() }),
        attributes: FunctionAttributes::default(),
        engine: EngineType::C,
        api: ApiVersion::CURRENT,
        method: method.into(),
        arguments: Zeroizing::new(b"arguments".to_vec()),
        secret_arguments: false,
        commit_on_success: false,
        input_digests: false,
        objects,
        result_object: None,
        job: None,
        timeout_ms,
        inline_max: INLINE_MAX,
        caller: caller(user),
    }
}

/// Runs calls as a device does.
pub(crate) trait ReservingRunner {
    fn reserve_and_run(&self, call: FunctionCall) -> Result<ReplyParts, FunctionRefusal>;
}

impl ReservingRunner for FunctionService {
    fn reserve_and_run(&self, mut call: FunctionCall) -> Result<ReplyParts, FunctionRefusal> {
        let bytes = call.code.take().unwrap().bytes;
        let FunctionCall { function, engine, api, ref caller, .. } = call;
        let request = CodeRequest { function, bytes: bytes.len() as u64, engine, api, caller };
        let reservation = self.reserve_code(&request)?;
        call.code = Some(FunctionCode { bytes, reservation });
        self.execute(call)
    }
}

fn number(reply: &ReplyParts) -> u64 {
    u64::from_le_bytes(reply.inline[..8].try_into().unwrap())
}

#[test]
fn function_reads_object_and_returns_result() {
    let test = TestService::new();
    let data: Vec<u8> = (0..3_000_000_u32).map(|index| index as u8).collect();
    let sum = data.iter().map(|byte| u64::from(*byte)).sum();
    let reply = test.run("sum", vec![GrantedMemory::object(Permissions::READ, &data)]);
    assert_eq!((reply.header.state, reply.header.exit), (JobState::Done, ExitReason::Success));
    assert_eq!((number(&reply), reply.header.bytes_read), (sum, data.len() as u64));
    let receipt = keys().verify_receipt(&reply.receipt).unwrap();
    assert_eq!(receipt.result_digest, *blake3::hash(&reply.inline).as_bytes());
    assert_eq!((receipt.job, receipt.inputs[0].length), (reply.header.job.0, data.len() as u64));
    assert_eq!(*test.runs.0.lock(), [(ExitReason::Success, data.len() as u64, 0)]);
}

#[test]
fn receipts_have_input_digests_on_request() {
    let test = TestService::new();
    let data: Vec<u8> = (0..3_000_000_u32).map(|index| index as u8).collect();
    let objects = || vec![GrantedMemory::object(Permissions::READ, &data) as Arc<dyn GrantedObject>; 2];
    let digests = |receipt: &[u8]| {
        let inputs = keys().verify_receipt(receipt).unwrap().inputs;
        inputs.iter().map(|input| input.digest).collect::<Vec<_>>()
    };
    let finished = |secret_arguments| {
        let call = FunctionCall { secret_arguments, input_digests: true, ..call(1, "sum", 0, objects()) };
        let id = test.service.reserve_and_run(call).unwrap().header.job;
        test.job(1, id, JobAction::Wait { timeout_ms: 20_000 }).unwrap();
        test.job(1, id, JobAction::Result { offset: 0 }).unwrap()
    };
    // The function reads the first object from its start to its end, and not the second one.
    assert_eq!(digests(&finished(false).receipt), [Some(*blake3::hash(&data).as_bytes()), None]);
    assert_eq!(digests(&finished(true).receipt), [None, None], "a digest can reveal a secret");
    let call = || call(1, "sum", 30_000, objects());
    let run = |call| digests(&test.service.reserve_and_run(call).unwrap().receipt);
    assert_eq!(run(call()), [None, None], "not requested");
    let requested = || FunctionCall { input_digests: true, ..call() };
    assert_eq!(run(requested()), [Some(*blake3::hash(&data).as_bytes()), None]);
    assert_eq!(run(FunctionCall { secret_arguments: true, ..requested() }), [None, None], "a secret");
}

#[test]
fn receipt_has_digests_of_short_inputs() {
    const BYTES_MAX: usize = 8 << 10;
    let test = TestService::new();
    let digest_of = |data: &[u8], method| {
        let objects = vec![GrantedMemory::object(Permissions::READ, data) as Arc<dyn GrantedObject>];
        let reply = test.run(method, objects);
        keys().verify_receipt(&reply.receipt).unwrap().inputs[0].digest
    };
    for length in [0, 1, BYTES_MAX, BYTES_MAX + 1] {
        let data = vec![7; length];
        let expected = (0..=BYTES_MAX).contains(&length).then(|| *blake3::hash(&data).as_bytes());
        assert_eq!(digest_of(&data, "sum"), expected, "{length} bytes");
    }
    assert_eq!(digest_of(b"abc", "empty"), None, "nothing was read");
}

#[test]
fn late_read_error_reaches_function() {
    let test = TestService::new();
    let object = GrantedMemory::object(Permissions::READ, &[1; 3_000_000]);
    *object.damaged_from.lock() = 2_500_000;
    let header = test.run("sum", vec![object]).header;
    assert_eq!((header.exit, header.error), (ExitReason::FunctionError, -5), "not the end of the object");
}

#[test]
fn object_ends_where_granted_range_ends() {
    let test = TestService::new();
    for length in [1_000_000, 1 << 20, 3_000_000] {
        let object = GrantedMemory::object(Permissions::READ, &[1; 3_000_000]);
        *object.range.lock() = Range { start: 0, length };
        let reply = test.run("sum", vec![object]);
        assert_eq!((reply.header.exit, number(&reply)), (ExitReason::Success, length));
    }
    let object = GrantedMemory::object(Permissions::READ, &[1; 3_000_000]);
    *object.range.lock() = Range { start: 8, length: 8 };
    assert_eq!(test.run("sum", vec![object]).header.error, -13, "before the range");
}

#[test]
fn warm_engine_serves_same_owner_only() {
    let test = TestService::new();
    assert_eq!(number(&test.run("runs", Vec::new())), 1);
    assert_eq!(number(&test.run("runs", Vec::new())), 2);
    let other = test.service.reserve_and_run(call(2, "runs", 30_000, Vec::new())).unwrap();
    assert_eq!(number(&other), 1);
    let secret = FunctionCall { secret_arguments: true, ..call(1, "runs", 30_000, Vec::new()) };
    assert_eq!(number(&test.service.reserve_and_run(secret).unwrap()), 3);
    assert_eq!(number(&test.run("runs", Vec::new())), 1, "secrets end an engine");
}

#[test]
fn failures_have_their_exit_reason() {
    let test = TestService::with(|limits| {
        limits.run.cpu_s = 1;
        limits.run.memory = 64 << 20;
    });
    let ends: Vec<_> = ["fail", "crash", "loop", "bomb", "flood", "fork", "unknown", "empty"]
        .into_iter()
        .map(|method| {
            let header = test.run(method, Vec::new()).header;
            (method, header.exit, header.error)
        })
        .collect();
    assert_eq!(ends[0], ("fail", ExitReason::FunctionError, -74));
    assert_eq!(ends[1], ("crash", ExitReason::Trap, 11));
    assert_eq!((ends[2].0, ends[2].1), ("loop", ExitReason::CpuTime));
    // By the memory cgroup, or without one at the end of the address space by an abort.
    assert_eq!(ends[3].1, ExitReason::Memory, "{ends:?}");
    assert_eq!((ends[4].0, ends[4].1), ("flood", ExitReason::Output));
    assert_eq!(ends[5].1, ExitReason::Trap, "{ends:?}");
    assert_eq!(ends[6], ("unknown", ExitReason::FunctionError, -2));
    assert_eq!(ends[7], ("empty", ExitReason::Success, 0), "other runs are not affected");
}

#[test]
fn returned_enomem_has_its_reason_in_the_log() {
    let test = TestService::new();
    let id = test.service.reserve_and_run(call(1, "enomem", 0, Vec::new())).unwrap().header.job;
    let header = test.job(1, id, JobAction::Wait { timeout_ms: 20_000 }).unwrap().header;
    assert_eq!((header.exit, header.error), (ExitReason::FunctionError, -12), "little memory is used");
    let log = test.job(1, id, JobAction::Log { offset: 0 }).unwrap();
    let log = String::from_utf8(log.inline).unwrap();
    assert!(
        log.contains("device: the function returned ENOMEM (") && log.contains(" of 256 MiB used)"),
        "{log}"
    );
}

#[test]
fn garbage_on_ring_ends_engine() {
    let test = TestService::new();
    let object = || GrantedMemory::object(ALL, b"initial");
    assert_eq!(number(&test.run("runs", Vec::new())), 1);
    let header = test.run("garbage", vec![object()]).header;
    let end = (header.state, header.exit, header.error);
    assert_eq!(end, (JobState::Failed, ExitReason::ProtocolViolation, 0));
    assert_eq!(number(&test.run("runs", Vec::new())), 1, "the engine was replaced");
}

/// Runs a function that pretends to return, and another call after a pause; returns CPU time and
/// wall time of the latter in microseconds.
fn usage_after_pretended_return(pause_after: Duration) -> (u64, u64) {
    let test = TestService::with(|limits| limits.pause_after = pause_after);
    let header = test.run("linger", vec![GrantedMemory::object(ALL, b"initial")]).header;
    assert_eq!((header.state, header.exit), (JobState::Done, ExitReason::Success));
    std::thread::sleep(Duration::from_secs(3));
    let next = test.service.reserve_and_run(call(1, "empty", 300, Vec::new())).unwrap().header;
    assert_eq!(next.exit, ExitReason::WallTime, "the engine never returns");
    (next.cpu_us, next.wall_us)
}

#[test]
fn idle_engine_uses_no_cpu_time() {
    let (cpu_us, wall_us) = usage_after_pretended_return(Duration::from_millis(20));
    assert!(cpu_us < wall_us + 1_500_000, "{cpu_us} us in 3 s and {wall_us} us");
}

#[test]
fn cpu_time_between_calls_is_charged() {
    let (cpu_us, wall_us) = usage_after_pretended_return(Duration::from_secs(60));
    assert!(cpu_us > wall_us, "one thread used {cpu_us} us in a call of {wall_us} us");
}

#[test]
fn stopped_engine_serves_next_call() {
    let test = TestService::with(|limits| limits.pause_after = Duration::ZERO);
    for count in 1..=20 {
        assert_eq!(number(&test.run("runs", Vec::new())), count);
        std::thread::sleep(Duration::from_millis(count % 4 * 5));
    }
    // A stopped engine ends with its service.
    test.service.shut_down();
}

#[test]
fn flooded_log_keeps_its_end_only() {
    let test = TestService::new();
    let id = test.service.execute(call(1, "log-flood", 0, Vec::new())).unwrap().header.job;
    let header = test.job(1, id, JobAction::Wait { timeout_ms: 20_000 }).unwrap().header;
    assert_eq!((header.state, header.exit), (JobState::Done, ExitReason::Success));
    let log = test.job(1, id, JobAction::Log { offset: 0 }).unwrap();
    assert!(log.inline.len() <= INLINE_MAX && log.header.offset > 0, "{:?}", log.header);
    assert!(String::from_utf8(log.inline).unwrap().ends_with("0123456789\nerror: last\n"));
    assert_eq!(log.header.total_length, 20_000 * 11 + 12);
}

#[test]
fn kept_buffers_return_at_end_of_call() {
    let test = TestService::new();
    let object = GrantedMemory::object(Permissions::READ, &[1; 2 << 20]);
    let opened: Vec<u64> = (0..20).map(|_| number(&test.run("hoard", vec![object.clone()]))).collect();
    assert!(opened[0] > 0 && opened.iter().all(|count| *count == opened[0]), "{opened:?}");
    assert_eq!(number(&test.run("runs", Vec::new())), 21, "one engine served all of them");
}

#[test]
fn unsupported_api_version_is_refused() {
    let test = TestService::new();
    let run = |major, minor| {
        let api = ApiVersion { major, minor };
        let call = FunctionCall { api, ..call(1, "empty", 30_000, Vec::new()) };
        test.service.reserve_and_run(call).map(|reply| reply.header.exit)
    };
    let (lowest, highest) = (ApiVersion { major: 1, minor: 0 }, ApiVersion::CURRENT);
    assert_eq!(run(highest.major, highest.minor), Ok(ExitReason::Success));
    for (major, minor) in [(0, 9), (highest.major, highest.minor + 1), (2, 0)] {
        let requested = ApiVersion { major, minor };
        let refusal = FunctionRefusal::ApiUnsupported { requested, lowest, highest };
        assert_eq!(run(major, minor), Err(refusal));
    }
}

#[test]
fn timeout_ends_endless_function() {
    let test = TestService::new();
    let began = Instant::now();
    let reply = test.service.reserve_and_run(call(1, "loop", 300, Vec::new())).unwrap();
    assert_eq!((reply.header.state, reply.header.exit), (JobState::TimedOut, ExitReason::WallTime));
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn asynchronous_job_is_waited_for_and_private() {
    let test = TestService::new();
    let id = test.service.reserve_and_run(call(1, "chatter", 0, Vec::new())).unwrap().header.job;
    let header = test.job(1, id, JobAction::Wait { timeout_ms: 20_000 }).unwrap().header;
    assert_eq!((header.state, header.progress_done, header.progress_total), (JobState::Done, 3, 7));
    let log = test.job(1, id, JobAction::Log { offset: 0 }).unwrap();
    assert_eq!(String::from_utf8(log.inline).unwrap(), "warning: a\\x1b[2J\n");
    assert_eq!(test.job(2, id, JobAction::Status), Err(FunctionRefusal::UnknownJob));
    assert_eq!(test.job(1, JobId([9; 16]), JobAction::Status), Err(FunctionRefusal::UnknownJob));
}

#[test]
fn device_limits_wait_for_job() {
    let test = TestService::with(|limits| limits.wait = Duration::from_millis(50));
    let id = test.service.reserve_and_run(call(1, "loop", 0, Vec::new())).unwrap().header.job;
    let header = test.job(1, id, JobAction::Wait { timeout_ms: 24 * 60 * 60 * 1000 }).unwrap().header;
    assert!(!header.state.is_final(), "the client repeats its request");
    test.job(1, id, JobAction::Cancel).unwrap();
}

#[test]
fn cancel_stops_patient_and_endless_functions() {
    let test = TestService::new();
    for method in ["patient", "loop"] {
        let id = test.service.reserve_and_run(call(1, method, 0, Vec::new())).unwrap().header.job;
        test.wait_until_running(1, id);
        test.job(1, id, JobAction::Cancel).unwrap();
        let header = test.job(1, id, JobAction::Wait { timeout_ms: 20_000 }).unwrap().header;
        assert_eq!((header.state, header.exit), (JobState::Cancelled, ExitReason::Cancelled), "{method}");
    }
}

#[test]
fn hundred_jobs_of_user_are_limited() {
    let test = TestService::new();
    let start = |user| test.service.reserve_and_run(call(user, "loop", 0, Vec::new()));
    let started: Vec<_> = (0..100).filter_map(|_| start(1).ok()).collect();
    assert_eq!(started.len(), 4);
    assert_eq!(start(1), Err(FunctionRefusal::TooManyJobs));
    let other = start(2).unwrap().header;
    assert_eq!(other.state, JobState::Queued, "four jobs run, others wait");
    for reply in &started {
        test.job(1, reply.header.job, JobAction::Cancel).unwrap();
    }
    test.wait_until_running(2, other.job);
    test.service.shut_down();
}

/// An object takes locks of the device when it is released, so the service must have none.
#[test]
fn objects_of_queued_jobs_are_released_unlocked() {
    let test = TestService::with(|limits| limits.jobs.running = 1);
    test.service.reserve_and_run(call(1, "loop", 0, Vec::new())).unwrap();
    let (sender, released) = std::sync::mpsc::channel();
    let queue = || {
        let object = GrantedMemory::object(Permissions::READ, b"");
        let (service, sender) = (Arc::downgrade(&test.service), sender.clone());
        *object.on_release.lock() = Some(Box::new(move || {
            let _ = service.upgrade().map(|service| service.job_counts());
            sender.send(()).unwrap();
        }));
        test.service.reserve_and_run(call(2, "empty", 0, vec![object])).unwrap().header.job
    };
    let (cancelled, _kept) = (queue(), queue());
    let service = Arc::clone(&test.service);
    std::thread::spawn(move || {
        let request = JobRequest { action: JobAction::Cancel, job: cancelled };
        let job = JobCall { function: FUNCTION, request, inline_max: 0, caller: caller(2) };
        service.job(job).unwrap();
        service.shut_down();
    });
    for _ in 0..2 {
        released.recv_timeout(Duration::from_secs(120)).expect("released without a deadlock");
    }
}

/// The threads of commands also serve flushes, formats and logins.
#[test]
fn synchronous_runs_leave_command_threads_free() {
    let test = TestService::with(|limits| limits.jobs.per_user = 64);
    let (sender, replies) = std::sync::mpsc::channel();
    for number in 0..20 {
        let (service, sender) = (Arc::clone(&test.service), sender.clone());
        std::thread::spawn(move || {
            let reply = service.reserve_and_run(call(1 + number / 5, "loop", 20_000, Vec::new()));
            let _ = sender.send(reply.map(|reply| reply.header.exit));
        });
    }
    for _ in 0..4 {
        let reply = replies.recv_timeout(Duration::from_secs(120)).expect("refused at once");
        assert_eq!(reply, Err(FunctionRefusal::TooManyJobs));
    }
    let id = test.service.reserve_and_run(call(9, "empty", 0, Vec::new())).unwrap().header.job;
    assert_eq!(
        test.job(9, id, JobAction::Wait { timeout_ms: 10 }).map(drop),
        Err(FunctionRefusal::TooManyJobs)
    );
    assert_eq!(test.job(9, id, JobAction::Status).unwrap().header.state, JobState::Queued);
    test.service.shut_down();
    for _ in 0..16 {
        assert_eq!(replies.recv().unwrap(), Ok(ExitReason::Killed));
    }
}

#[test]
fn code_of_queued_jobs_has_budget() {
    let test = TestService::with(|limits| limits.jobs.running = 1);
    let job = test.service.reserve_and_run(call(1, "loop", 0, Vec::new())).unwrap().header.job;
    let bytes: Arc<[u8]> = vec![0; 64 << 20].into();
    let queue = |user| {
        let code = FunctionCode { bytes: Arc::clone(&bytes), reservation: reserved() };
        let call = FunctionCall { code: Some(code), ..call(user, "empty", 0, Vec::new()) };
        test.service.reserve_and_run(call).map(|reply| reply.header.job)
    };
    let queued = [2, 2].map(|user| queue(user).unwrap());
    assert_eq!(queue(2), Err(FunctionRefusal::TooManyJobs), "the share of the user");
    queue(3).unwrap();
    queue(4).unwrap();
    assert_eq!(queue(5), Err(FunctionRefusal::TooManyJobs), "the bound of the device");
    assert_eq!(test.service.job_counts().refused, 2);
    test.job(2, queued[1], JobAction::Cancel).unwrap();
    queue(5).unwrap();
    test.job(1, job, JobAction::Cancel).unwrap();
    test.service.shut_down();
    let running = Arc::strong_count(&bytes);
    assert_eq!(running, 1, "no ended job has a copy");
}

#[test]
fn client_chooses_unused_job_id() {
    let test = TestService::new();
    let job = Some(JobId([7; 16]));
    let begin =
        |user, job| test.service.reserve_and_run(FunctionCall { job, ..call(user, "loop", 0, Vec::new()) });
    assert_eq!(begin(1, job).unwrap().header.job, JobId([7; 16]));
    for user in [1, 2] {
        assert_eq!(begin(user, job), Err(FunctionRefusal::JobIdInUse));
    }
    assert_eq!(test.job(2, JobId([7; 16]), JobAction::Status), Err(FunctionRefusal::UnknownJob));
    test.job(1, JobId([7; 16]), JobAction::Cancel).unwrap();
    // The record of the job survived the refused ones.
    let id = begin(1, Some(JobId([8; 16]))).unwrap().header.job;
    assert_eq!(begin(1, Some(id)), Err(FunctionRefusal::JobIdInUse));
    test.service.shut_down();
    let (service, runs) = start(test.folder.path(), |_| {});
    let again = TestService { service, runs, folder: test.folder };
    assert_eq!(again.job(1, id, JobAction::Status).unwrap().header.state, JobState::Lost);
}

#[test]
fn job_that_outlives_result_credential_is_refused() {
    let test = TestService::new();
    let object = GrantedMemory::partition();
    let run = |timeout_ms| {
        let long =
            FunctionCall { result_object: Some(object.clone()), ..call(1, "large", timeout_ms, Vec::new()) };
        test.service.reserve_and_run(long)
    };
    *object.expires_ms.lock() = TestEnvironment.now_ms() + 1;
    assert_eq!(run(0).unwrap_err(), FunctionRefusal::ResultExpires);
    // The client of a synchronous job is there to request another credential.
    assert!(run(20_000).is_ok());
    *object.expires_ms.lock() = u64::MAX;
    assert!(run(0).is_ok());
}

#[test]
fn asynchronous_job_stores_long_result() {
    let test = TestService::new();
    let object = GrantedMemory::partition();
    let long = FunctionCall { result_object: Some(object.clone()), ..call(1, "large", 0, Vec::new()) };
    let id = test.service.reserve_and_run(long).unwrap().header.job;
    let header = test.job(1, id, JobAction::Wait { timeout_ms: 20_000 }).unwrap().header;
    assert_eq!((header.state, header.total_length), (JobState::Done, 100_000));
    assert!(header.result_object.is_some());
    assert_eq!(object.children.lock()[0].bytes.lock().len(), 100_000);
    // A cancelled job stores nothing.
    let object = GrantedMemory::partition();
    let held = FunctionCall { result_object: Some(object.clone()), ..call(1, "loop", 0, Vec::new()) };
    let id = test.service.reserve_and_run(held).unwrap().header.job;
    test.job(1, id, JobAction::Cancel).unwrap();
    let header = test.job(1, id, JobAction::Wait { timeout_ms: 20_000 }).unwrap().header;
    assert_eq!((header.state, header.result_object), (JobState::Cancelled, None));
    assert!(object.children.lock().is_empty());
}

#[test]
fn unfinished_job_is_lost_after_restart() {
    let test = TestService::new();
    let id = test.service.reserve_and_run(call(1, "loop", 0, Vec::new())).unwrap().header.job;
    test.service.shut_down();
    let (service, runs) = start(test.folder.path(), |_| {});
    let again = TestService { service, runs, folder: test.folder };
    let header = again.job(1, id, JobAction::Status).unwrap().header;
    assert_eq!((header.state, header.exit), (JobState::Lost, ExitReason::Lost));
    assert_eq!(again.job(2, id, JobAction::Status), Err(FunctionRefusal::UnknownJob));
}

#[test]
fn large_result_needs_and_uses_create() {
    let test = TestService::new();
    assert_eq!(test.run("large", Vec::new()).header.exit, ExitReason::Output);
    let partition = GrantedMemory::partition();
    let header = test.run("large", vec![partition.clone()]).header;
    assert_eq!((header.exit, header.total_length), (ExitReason::Success, 100_000));
    assert!(header.result_object.is_some());
    assert_eq!(partition.children.lock()[0].bytes.lock().len(), 100_000);
}

#[test]
fn staged_output_appears_on_success_only() {
    let test = TestService::new();
    let object = GrantedMemory::object(ALL, b"initial");
    let staged = |method| {
        let call = call(1, method, 30_000, vec![object.clone()]);
        test.service.reserve_and_run(FunctionCall { commit_on_success: true, ..call }).unwrap().header.exit
    };
    assert_eq!(staged("write-fail"), ExitReason::FunctionError);
    assert_eq!(*object.bytes.lock(), b"initial");
    assert_eq!(staged("write"), ExitReason::Success);
    assert_eq!(*object.bytes.lock(), b"changed");
}

#[test]
fn failed_commit_removes_result_object() {
    let test = TestService::new();
    let partition = GrantedMemory::partition();
    let object = GrantedMemory::object(ALL, b"initial");
    object.fails_writes.store(true, Ordering::Relaxed);
    let call = call(1, "write-large", 30_000, vec![object.clone(), partition.clone()]);
    let reply = test.service.reserve_and_run(FunctionCall { commit_on_success: true, ..call }).unwrap();
    assert_eq!((reply.header.exit, reply.header.error), (ExitReason::Output, -5));
    assert_eq!((reply.header.total_length, reply.header.result_object), (0, None));
    let receipt = keys().verify_receipt(&reply.receipt).unwrap();
    assert_eq!(receipt.result_digest, *blake3::hash(b"").as_bytes());
    let children = partition.children.lock();
    assert!(children.len() == 1 && children[0].is_removed.load(Ordering::Relaxed));
}

#[test]
fn punch_removes_bytes_and_moves_rest() {
    let test = TestService::new();
    let object = GrantedMemory::object(ALL, b"0123456789");
    assert_eq!(test.run("punch", vec![object.clone()]).header.exit, ExitReason::Success);
    assert_eq!(*object.bytes.lock(), b"0156789");
    let staged = call(1, "punch", 30_000, vec![object.clone()]);
    let staged = FunctionCall { commit_on_success: true, ..staged };
    assert_eq!(test.service.reserve_and_run(staged).unwrap().header.error, -22, "staged output has no punch");
    assert_eq!(*object.bytes.lock(), b"0156789");
}

#[test]
fn function_reaches_granted_objects_only() {
    let test = TestService::new();
    let object = GrantedMemory::object(Permissions::READ, b"initial");
    assert_eq!(test.run("guess", vec![object.clone()]).header.exit, ExitReason::Success);
    let header = test.run("write", vec![object.clone()]).header;
    assert_eq!((header.exit, header.error), (ExitReason::FunctionError, -13));
    assert_eq!(*object.bytes.lock(), b"initial");
    assert_eq!(test.runs.0.lock().last(), Some(&(ExitReason::FunctionError, 0, 1)));
}

/// Prints the time of an empty function in a warm engine; no assertion depends on it.
#[test]
fn empty_function_runs_many_times() {
    let test = TestService::new();
    let mut times: Vec<_> = (0..2000)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(test.run("empty", Vec::new()).header.exit, ExitReason::Success);
            began.elapsed()
        })
        .collect();
    let cold = times[0];
    times.sort_unstable();
    eprintln!("cold {cold:?}, p50 {:?}, p99 {:?}", times[1000], times[1980]);
    assert_eq!(test.service.job_counts().kept, 2000);
}
