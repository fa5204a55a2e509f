//! Tests of the formats of EXECUTE FUNCTION.

use std::string::{String, ToString};
use std::vec::Vec;

use proptest::prelude::*;
use zeroize::Zeroizing;

use super::attributes::{EngineEntry, FunctionAttributes, signed_message};
use super::paper::PaperRequest;
use super::*;
use crate::{ObjectId, ObjectType, Permissions};

fn any_engine() -> impl Strategy<Value = EngineType> {
    (0..EngineType::ALL.len()).prop_map(|at| EngineType::ALL[at])
}

fn any_api() -> impl Strategy<Value = ApiVersion> {
    any::<(u16, u16)>().prop_map(|(major, minor)| ApiVersion { major, minor })
}

fn any_object() -> impl Strategy<Value = FunctionObject> {
    (1_u64.., 1_u64.., 0_u8..3, 1_u8..).prop_map(|(partition, object, kind, rights)| {
        let (object, kind) = match kind {
            0 => (ObjectId::of_partition(partition), ObjectType::Partition),
            1 => (ObjectId::new(partition, object), ObjectType::Collection),
            _ => (ObjectId::new(partition, object), ObjectType::User),
        };
        FunctionObject { object, kind, rights: Permissions::from_bytes([rights, 0, 0, 0, 0]) }
    })
}

prop_compose! {
    fn any_run()(
        engine in proptest::option::of(any_engine()),
        flags in any::<(bool, bool, bool, bool)>(),
        timeout_ms in 0..=TIMEOUT_MAX_MS,
        api in any_api(),
        digest in proptest::option::of(proptest::array::uniform32(1_u8..)),
        method in "[a-z_.]{0,64}",
        arguments in proptest::collection::vec(any::<u8>(), 0..100),
        mut objects in proptest::collection::vec(any_object(), 0..5),
        job in proptest::option::of(proptest::array::uniform16(1_u8..)),
    ) -> RunRequest {
        let (secret_arguments, commit_on_success, result_entry, input_digests) = flags;
        if result_entry {
            objects.push(result_object());
        }
        RunRequest {
            engine, secret_arguments, commit_on_success, input_digests, timeout_ms, api, digest, method,
            arguments: Zeroizing::new(arguments), objects, result_entry,
            job: job.filter(|_| timeout_ms == 0).map(JobId),
        }
    }
}

fn any_request() -> impl Strategy<Value = ExecuteRequest> {
    let action =
        (0_u8..5, any::<u64>(), 0..=TIMEOUT_MAX_MS).prop_map(|(action, offset, timeout_ms)| match action {
            0 => JobAction::Status,
            1 => JobAction::Wait { timeout_ms },
            2 => JobAction::Cancel,
            3 => JobAction::Log { offset },
            _ => JobAction::Result { offset },
        });
    let job = (action, proptest::array::uniform16(1_u8..))
        .prop_map(|(action, job)| ExecuteRequest::Job(JobRequest { action, job: JobId(job) }));
    prop_oneof![any_run().prop_map(ExecuteRequest::Run), job]
}

fn result_object() -> FunctionObject {
    FunctionObject {
        object: ObjectId::new(0x1_0000, 0x1_0002),
        kind: ObjectType::User,
        rights: FunctionObject::RESULT_RIGHTS,
    }
}

#[test]
fn result_entry_is_last_with_its_rights() {
    let result = RunRequest { result_entry: true, ..run() };
    let encode = |request: &RunRequest| ExecuteRequest::Run(request.clone()).encode();
    assert!(encode(&result).is_none(), "the only entry may be read");
    assert!(encode(&RunRequest { objects: Vec::new(), ..result.clone() }).is_none());
    let mut good = result;
    good.objects.push(result_object());
    let bytes = encode(&good).unwrap();
    assert_eq!(bytes[3], 0x05, "FLAGS");
    assert_eq!(ExecuteRequest::parse(&bytes), Ok(ExecuteRequest::Run(good)));
    let mut wrong = bytes.to_vec();
    wrong[80 + 24 + 16] = 0x40;
    assert_eq!(ExecuteRequest::parse(&wrong), Err(80 + 24), "the last entry");
}

fn run() -> RunRequest {
    RunRequest {
        engine: Some(EngineType::Wasm),
        secret_arguments: true,
        commit_on_success: false,
        input_digests: false,
        result_entry: false,
        timeout_ms: 5,
        api: ApiVersion::CURRENT,
        digest: Some([7; 32]),
        method: "count".to_string(),
        arguments: Zeroizing::new(std::vec![1, 2, 3]),
        objects: std::vec![FunctionObject {
            object: ObjectId::new(0x1_0000, 0x1_0001),
            kind: ObjectType::User,
            rights: Permissions::READ | Permissions::GET_ATTR,
        }],
        job: None,
    }
}

#[test]
fn only_asynchronous_runs_choose_their_id() {
    let job = Some(JobId([9; 16]));
    let encode = |request: RunRequest| ExecuteRequest::Run(request).encode();
    assert!(encode(RunRequest { job, ..run() }).is_none());
    let request = RunRequest { job, timeout_ms: 0, ..run() };
    let mut bytes = encode(request.clone()).unwrap().to_vec();
    assert_eq!(bytes[32..48], [9; 16]);
    assert_eq!(ExecuteRequest::parse(&bytes), Ok(ExecuteRequest::Run(request)));
    bytes[11] = 1;
    assert_eq!(ExecuteRequest::parse(&bytes), Err(32), "with a timeout");
}

#[test]
fn request_fields_stand_at_documented_bytes() {
    let wire = ExecuteRequest::Run(run()).encode().unwrap();
    assert_eq!(wire[..20], [1, 1, 2, 1, 0, 1, 0, 1, 0, 0, 0, 5, 0, 5, 0, 1, 0, 0, 0, 3]);
    assert_eq!((&wire[48..80], wire[80 + 16], wire[80 + 17]), (&[7; 32][..], 0xA0, 0x80));
    assert_eq!(wire[104..], *b"count\x01\x02\x03");
    let action = JobAction::Log { offset: 9 };
    let wire = ExecuteRequest::Job(JobRequest { action, job: JobId([3; 16]) }).encode().unwrap();
    assert_eq!((wire.len(), wire[1], wire[31], &wire[32..48]), (80, 5, 9, &[3; 16][..]));
}

/// Returns an entry for a collection whose number the device chooses.
const fn new_collection(rights: Permissions) -> FunctionObject {
    FunctionObject { object: ObjectId::of_partition(1), kind: ObjectType::Collection, rights }
}

#[test]
fn limits_plus_one_are_refused() {
    let refused = |change: fn(&mut RunRequest)| {
        let mut request = run();
        change(&mut request);
        ExecuteRequest::Run(request).encode().is_none()
    };
    assert!(!refused(|request| request.method = "m".repeat(METHOD_MAX)));
    assert!(refused(|request| request.method = "m".repeat(METHOD_MAX + 1)));
    assert!(!refused(|request| request.arguments = Zeroizing::new(std::vec![1; ARGUMENTS_MAX])));
    assert!(refused(|request| request.arguments = Zeroizing::new(std::vec![1; ARGUMENTS_MAX + 1])));
    assert!(!refused(|request| request.objects = std::vec![request.objects[0]; OBJECTS_MAX]));
    assert!(refused(|request| request.objects = std::vec![request.objects[0]; OBJECTS_MAX + 1]));
    assert!(refused(|request| request.timeout_ms = TIMEOUT_MAX_MS + 1));
    assert!(refused(|request| request.method = "a\nb".to_string()));
    assert!(refused(|request| request.objects[0].rights = Permissions::NONE));
    assert!(refused(|request| request.objects[0].rights = Permissions::POL_SEC));
    assert!(refused(|request| request.objects[0].object = ObjectId::of_partition(5)));
    assert!(refused(|request| request.objects[0].kind = ObjectType::Root));
    assert!(refused(|request| request.objects[0] = new_collection(Permissions::READ)));
    assert!(!refused(|request| request.objects[0] = new_collection(Permissions::CREATE)));
}

#[test]
fn each_wrong_field_has_its_offset() {
    let wire = ExecuteRequest::Run(run()).encode().unwrap();
    let with = |at: usize, byte: u8| {
        let mut wire = wire.to_vec();
        wire[at] = byte;
        ExecuteRequest::parse(&wire)
    };
    assert_eq!(with(0, 2), Err(0), "format");
    assert_eq!(with(1, 0), Err(1), "operation");
    assert_eq!(with(1, 7), Err(1), "operation");
    assert_eq!(with(2, 5), Err(2), "engine");
    assert_eq!(with(3, 0x10), Err(3), "flags");
    assert_eq!(with(8, 0xFF), Err(8), "timeout");
    assert_eq!(with(13, 65), Err(12), "length of the method");
    assert_eq!(with(15, 65), Err(14), "number of objects");
    assert_eq!(with(17, 2), Err(16), "length of the arguments");
    assert_eq!(with(19, 4), Err(16), "one byte too few");
    assert_eq!(with(23, 1), Err(20), "reserved");
    assert_eq!(with(31, 1), Err(24), "offset of a run");
    assert_eq!(with(40, 1), Err(32), "job of a run");
    assert_eq!(with(97, 3), Err(80), "type of an object");
    assert_eq!(with(103, 1), Err(80), "reserved bytes of an object");
    assert_eq!(with(104, 0xFF), Err(104), "method that is not UTF-8");
    let job = ExecuteRequest::Job(JobRequest { action: JobAction::Status, job: JobId([1; 16]) });
    let wire = job.encode().unwrap();
    let with = |at: usize, byte: u8| {
        let mut wire = wire.to_vec();
        wire[at] = byte;
        ExecuteRequest::parse(&wire)
    };
    assert_eq!((with(3, 1), with(12, 1), with(50, 1)), (Err(2), Err(12), Err(48)), "fields of a run");
    assert_eq!(with(24, 1), Err(1), "offset of a status");
    let none = ExecuteRequest::Job(JobRequest { action: JobAction::Status, job: JobId::NONE });
    assert!(none.encode().is_none());
}

#[test]
fn debug_output_omits_arguments() {
    let request = RunRequest { arguments: Zeroizing::new(std::vec![0xAB; 4]), ..run() };
    let text = std::format!("{:?}", ExecuteRequest::Run(request));
    assert!(!text.contains("171") && text.contains("count"), "{text}");
}

#[test]
fn signed_message_separates_its_fields() {
    let of = |version: &str, publisher: &str| {
        let attributes = FunctionAttributes {
            version: version.to_string(),
            publisher: publisher.to_string(),
            ..FunctionAttributes::default()
        };
        signed_message(&[1; 32], &attributes)
    };
    assert_ne!(of("1.0", "a"), of("1.", "0a"));
    assert_ne!(of("1.0", "a"), signed_message(&[2; 32], &FunctionAttributes::default()));
}

#[test]
fn each_wrong_paper_field_has_its_offset() {
    let method = "count".to_string();
    let request =
        PaperRequest { code_bundle: 7, timeout_ms: 9, method, arguments: Zeroizing::new([b'e'; 3].to_vec()) };
    let wire = request.encode().unwrap().to_vec();
    let with = |at: usize, bytes: &[u8]| {
        let mut wire = wire.clone();
        wire[at..at + bytes.len()].copy_from_slice(bytes);
        PaperRequest::parse(&wire).unwrap_err()
    };
    assert_eq!(with(4, &(TIMEOUT_MAX_MS + 1).to_be_bytes()), 4);
    assert_eq!(with(8, &65_u16.to_be_bytes()), 8, "METHOD LENGTH beyond its limit");
    assert_eq!((with(11, &[1]), with(10, &[1])), (10, 10), "reserved bytes");
    assert_eq!((with(15, &[2]), with(12, &[1])), (12, 12), "ARGUMENTS LENGTH");
    assert_eq!(with(9, &[4]), 12, "lengths do not add up");
    assert_eq!((with(16, &[0xFF]), with(16, b"\n")), (16, 16), "method");
    assert_eq!((PaperRequest::parse(&wire[..15]), PaperRequest::parse(&[])), (Err(0), Err(0)));
    assert_eq!(PaperRequest::parse(&wire[..wire.len() - 1]), Err(12));
    assert_eq!(PaperRequest { method: "x".repeat(65), ..request.clone() }.encode(), None);
    assert_eq!(PaperRequest { arguments: Zeroizing::new([0; 65537].to_vec()), ..request }.encode(), None);
}

proptest! {
    #[test]
    fn request_round_trips(request in any_request()) {
        let wire = request.encode().unwrap();
        prop_assert_eq!(ExecuteRequest::parse(&wire), Ok(request));
    }

    #[test]
    fn arbitrary_request_bytes_never_panic(
        request in any_request(), noise: Vec<u8>, at: proptest::sample::Index, byte: u8,
    ) {
        let _ = ExecuteRequest::parse(&noise);
        let _ = PaperRequest::parse(&noise);
        let mut wire = request.encode().unwrap().to_vec();
        let at = at.index(wire.len());
        wire[at] = byte;
        if let Ok(request) = ExecuteRequest::parse(&wire) {
            prop_assert_eq!(&request.encode().unwrap()[..], &wire[..]);
        }
        let _ = ExecuteRequest::parse(&wire[..at]);
    }

    #[test]
    fn reply_round_trips(
        codes in (1_u8..8, 0_u8..12, any::<i32>()),
        numbers in proptest::array::uniform10(any::<u64>()),
        object in proptest::option::of((any::<u64>(), any::<u64>())),
        inline in proptest::collection::vec(any::<u8>(), 0..50),
        receipt in proptest::collection::vec(any::<u8>(), 0..50),
    ) {
        let (state, exit, error) = codes;
        let [total_length, offset, bytes_read, bytes_written, cpu_us, wall_us, peak_memory, calls, done, total] =
            numbers;
        let header = ReplyHeader {
            job: JobId([9; 16]),
            state: JobState::from_code(state).unwrap(),
            exit: ExitReason::from_code(exit).unwrap(),
            error, total_length, offset, bytes_read, bytes_written, cpu_us, wall_us, peak_memory, calls,
            progress_done: done,
            progress_total: total,
            result_object: object.map(|(partition, object)| ObjectId::new(partition, object)),
        };
        let reply = ReplyParts { header, inline, receipt };
        let wire = reply.encode().unwrap();
        prop_assert!(wire.len() <= REPLY_MAX);
        prop_assert_eq!(ReplyParts::parse(&wire), Ok(reply.clone()));
        prop_assert_eq!(ReplyParts::parse(&wire[..REPLY_HEADER_LEN - 1]), Err(ReplyError::Short(127)));
    }

    #[test]
    fn arbitrary_reply_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = ReplyParts::parse(&bytes);
        let mut bytes = bytes;
        for (at, byte) in bytes.iter_mut().enumerate() {
            match at {
                0 | 1 => *byte = 1,
                2 | 3 | 40..=46 | 112..=127 => *byte = 0,
                _ => {}
            }
        }
        if let Ok(reply) = ReplyParts::parse(&bytes) {
            let wire = reply.encode().unwrap();
            prop_assert_eq!(&wire[..], &bytes[..wire.len()]);
        }
    }

    #[test]
    fn attribute_values_round_trip(
        engine in proptest::option::of(any_engine()),
        range in proptest::option::of((any_api(), any_api())),
        texts in ("[ -~]{0,20}", "[ -~]{0,20}", "[ -~]{0,200}"),
        key in proptest::option::of(proptest::array::uniform32(any::<u8>())),
    ) {
        let (version, publisher, manifest) = texts;
        let attributes = FunctionAttributes {
            engine,
            api: range.map(|(one, two)| (one.min(two), one.max(two))),
            version, publisher, manifest,
            publisher_key: key,
            signature: key.map(|_| [3; 64]),
            digest: key,
        };
        let values = attributes.encode();
        let get = |id| values.iter().find(|(one, _)| *one == id).map(|(_, value)| &value[..]);
        prop_assert_eq!(FunctionAttributes::parse(get), Ok(attributes));
    }

    #[test]
    fn engine_entries_round_trip(
        available: bool, versions in (any_api(), any_api()), version in "\\PC{0,60}", detail: String,
    ) {
        let (api_lowest, api_highest) = versions;
        let entry = EngineEntry { available, api_lowest, api_highest, version, detail };
        let wire = entry.encode();
        prop_assert!(wire.len() <= attributes::ENGINE_ENTRY_MAX);
        let parsed = EngineEntry::parse(&wire).unwrap();
        prop_assert!(entry.detail.starts_with(&parsed.detail) && entry.version.starts_with(&parsed.version));
        prop_assert_eq!(parsed.encode(), wire);
    }

    #[test]
    fn paper_request_round_trips(
        code_bundle: u32, timeout_ms in 0..=TIMEOUT_MAX_MS, method in "[a-z]{0,64}",
        arguments in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let request = PaperRequest { code_bundle, timeout_ms, method, arguments: Zeroizing::new(arguments) };
        prop_assert_eq!(PaperRequest::parse(&request.encode().unwrap()), Ok(request));
    }
}
