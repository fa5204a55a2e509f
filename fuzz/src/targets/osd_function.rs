//! `sealstone-osd`: requests, replies and attribute values of EXECUTE FUNCTION.

use sealstone_osd::cdb::ExecuteFunction;
use sealstone_osd::continuation::Segment;
use sealstone_osd::function::attributes::{EngineEntry, FunctionAttributes};
use sealstone_osd::function::paper::PaperRequest;
use sealstone_osd::function::{
    ApiVersion, EngineType, ExecuteRequest, FunctionObject, JobAction, JobId, JobRequest, JobState,
    ReplyHeader, ReplyParts, RunRequest,
};
use sealstone_osd::{Command, ObjectType, Permissions};
use zeroize::Zeroizing;

use super::osd::OBJECT;
use crate::Target;
use crate::input::Input;

/// Service action of EXECUTE FUNCTION.
const ACTION: u16 = 0x8F91;

/// A request to run a function on [`OBJECT`].
pub(crate) fn run_request() -> ExecuteRequest {
    ExecuteRequest::Run(RunRequest {
        job: None,
        engine: Some(EngineType::Wasm),
        secret_arguments: true,
        commit_on_success: false,
        input_digests: false,
        result_entry: false,
        timeout_ms: 1000,
        api: ApiVersion::CURRENT,
        digest: Some([7; 32]),
        method: "count".into(),
        arguments: Zeroizing::new(b"lines".to_vec()),
        objects: vec![FunctionObject {
            object: OBJECT,
            kind: ObjectType::User,
            rights: Permissions::READ | Permissions::WRITE,
        }],
    })
}

fn seeds() -> Vec<Vec<u8>> {
    let job = JobRequest { action: JobAction::Log { offset: 9 }, job: JobId([1; 16]) };
    let paper = PaperRequest {
        code_bundle: 0x1_0001,
        timeout_ms: 9,
        method: "wordcount".into(),
        arguments: Zeroizing::new(vec![b'e']),
    };
    let segments = [
        Segment { function: Some(run_request()), ..Segment::default() },
        Segment { function: Some(ExecuteRequest::Job(job)), ..Segment::default() },
        Segment { paper_function: Some(paper), ..Segment::default() },
    ];
    let header = ReplyHeader::new(JobId([1; 16]), JobState::Done);
    let reply = ReplyParts { header, inline: vec![1, 2, 3], receipt: vec![4] };
    let engine = EngineEntry {
        available: true,
        api_lowest: ApiVersion::CURRENT,
        api_highest: ApiVersion::CURRENT,
        version: "wasmtime 48".into(),
        detail: String::new(),
    };
    let segments = segments.map(|segment| segment.encode(ACTION).expect("a seed within the limits"));
    let others = [reply.encode().expect("a seed within the limits"), engine.encode(), vec![2, 1, 1, 0, 0]];
    [
        segments.map(|wire| [&[0][..], &wire].concat()).to_vec(),
        others.into_iter().enumerate().map(|(at, wire)| [&[at as u8 + 1][..], &wire].concat()).collect(),
    ]
    .concat()
}

fn segment(bytes: &[u8]) {
    let command = Command::ExecuteFunction(ExecuteFunction { object: OBJECT, allocation: 128 });
    if let Ok(segment) = Segment::parse(&command, bytes) {
        assert_eq!(Segment::paper_function_at(bytes).is_some(), segment.paper_function.is_some());
        let wire = segment.encode(ACTION).expect("what parses is within the limits");
        assert_eq!(Segment::parse(&command, &wire), Ok(segment));
    }
}

/// Cuts the input into one value for each attribute of the function page.
fn attributes(bytes: &[u8]) {
    let mut rest = bytes;
    let mut values = Vec::new();
    for _ in FunctionAttributes::ALL {
        let Some((&length, tail)) = rest.split_first() else { break };
        let (value, tail) = tail.split_at(usize::from(length).min(tail.len()));
        values.push(value);
        rest = tail;
    }
    let of = |id| FunctionAttributes::ALL.iter().position(|one| *one == id);
    let parsed = FunctionAttributes::parse(|id| of(id).and_then(|at| values.get(at).copied()));
    if let Ok(attributes) = parsed {
        let values = attributes.encode();
        let get = |id| values.iter().find(|(one, _)| *one == id).map(|(_, value)| &value[..]);
        assert_eq!(FunctionAttributes::parse(get), Ok(attributes));
    }
}

fn function(input: &[u8]) {
    let mut input = Input::new(input);
    let (kind, bytes) = (input.byte(), input.rest());
    match kind % 4 {
        0 => segment(bytes),
        1 => {
            if let Ok(reply) = ReplyParts::parse(bytes) {
                let wire = reply.encode().expect("what parses is within the limits");
                assert_eq!(wire, bytes[..wire.len()]);
            }
        }
        2 => {
            if let Some(entry) = EngineEntry::parse(bytes) {
                assert_eq!(entry.encode(), bytes);
            }
        }
        _ => attributes(bytes),
    }
}

pub(crate) const FUNCTION: Target = Target {
    name: "osd-function",
    about: "kind, then a segment, reply, engine entry or attributes of a function; encodes as it parsed",
    run: function,
    seeds,
    cost: 2,
    quarantine: None,
    covers: &["osd::ReplyParts::parse", "osd::FunctionAttributes::parse", "osd::EngineEntry::parse"],
};
