//! EXECUTE FUNCTION with descriptor 0003h of the ASF paper.

use sealstone_osd::CapabilityBytes;
use sealstone_osd::function::paper::PaperRequest;

use super::*;

fn request() -> PaperRequest {
    PaperRequest {
        code_bundle: CODE as u32,
        timeout_ms: 100,
        method: "wordcount".into(),
        arguments: b"e".to_vec().into(),
    }
}

/// A device with or without the paper profile, whose function object has an engine.
fn stage(paper_functions: bool) -> Stage {
    let stage = Stage::with(OsdConfig { paper_functions, ..OsdConfig::default() });
    stage.set(user(CODE), &[(0xF002, 1, &[1])]);
    stage
}

/// Runs with one capability to read.
fn run(stage: &Stage, paper: PaperRequest) -> Answer {
    let one = entry(user(DATA), ObjectType::User, Permissions::READ);
    run_with(stage, paper, vec![stage.granting(&one).encode()])
}

fn run_with(stage: &Stage, paper: PaperRequest, extensions: Vec<CapabilityBytes>) -> Answer {
    let proofs = vec![SIGN_HERE; extensions.len()];
    let segment = Segment { paper_function: Some(paper), extensions, proofs, ..Segment::default() };
    stage.send(segment, |_| ())
}

/// Checks for INVALID FIELD IN CDB that points at this byte of the segment.
#[track_caller]
fn is_refused_at(answer: Answer, byte: u16) {
    assert_eq!(answer.sense(), (5, 0x2400));
    let field = answer.sense.unwrap().field.unwrap();
    assert_eq!((field.in_cdb, field.byte), (false, byte));
}

#[test]
fn paper_descriptor_needs_the_paper_profile() {
    let modern = stage(false);
    modern.function(|_| panic!("it must not run"));
    is_refused_at(run(&modern, request()), 40);
    let stage = stage(true);
    stage.function(|call| {
        let mut bytes = [0; 10];
        assert_eq!((call.method.as_str(), &call.arguments[..]), ("wordcount", &b"e"[..]));
        assert_eq!(call.objects[0].read(0, &mut bytes), Ok(10));
        assert_eq!(call.objects[0].write(0, b"x"), Err(GrantError::AccessDenied));
        bytes.to_vec()
    });
    let reply = ReplyParts::parse(&run(&stage, request()).good().data).unwrap();
    assert_eq!(reply.inline, b"0123456789");
}

#[test]
fn paper_descriptor_is_refused_at_its_offset() {
    let command =
        Command::ExecuteFunction(ExecuteFunction { object: user(CODE), allocation: REPLY_MAX as u32 });
    let wire = Segment { paper_function: Some(request()), ..Segment::default() }.encode(ACTION).unwrap();
    // Behind an empty descriptor of proofs.
    let proofs = [&[0xFF, 0x11, 0, 0, 0, 0, 0, 32][..], &[0; 32]].concat();
    let late = [&wire[..40], &proofs, &wire[40..]].concat();
    let send = |stage: &Stage, segment: Vec<u8>| {
        let capability = stage.bench.capability(&command, SecurityMethod::AllData);
        let ready = stage.bench.ready_scattered(command, &ListPair::default(), &[], &capability, segment);
        stage.bench.verify(&ready, &stage.bench.send(&ready)).unwrap()
    };
    is_refused_at(send(&stage(false), late), 80);
    let stage = stage(true);
    stage.function(|_| panic!("it must not run"));
    let wrong = |at: usize, bytes: &[u8]| {
        let mut segment = wire.clone();
        segment[at..at + bytes.len()].copy_from_slice(bytes);
        segment
    };
    for (at, bytes, field) in [
        (48, &[1][..], 48),
        (52, &[0xFF], 52),
        (56, &[1], 56),
        (58, &[0, 1], 58),
        (60, &[0, 0, 0, 2], 60),
        (64, b"\0", 64),
    ] {
        is_refused_at(send(&stage, wrong(at, bytes)), field);
    }
    // A length that ends before the header of the request, and one beyond the segment.
    is_refused_at(send(&stage, wrong(43, &[0, 0, 0, 0, 8])[..56].to_vec()), 48);
    is_refused_at(send(&stage, wrong(44, &[0, 0, 1, 0])), 40);
}

#[test]
fn paper_refusals_point_at_the_code_bundle() {
    let stage = stage(true);
    stage.function(|_| panic!("it must not run"));
    is_refused_at(run(&stage, PaperRequest { code_bundle: 5, ..request() }), 48);
    stage.set(user(CODE), &[(0xF002, 9, &[1; 32])]);
    is_refused_at(run(&stage, request()), 48);
    let entry = entry(user(DATA), ObjectType::User, Permissions::READ);
    let nothing = Capability { permissions: Permissions::GLOBAL, ..stage.granting(&entry) };
    let refused = run_with(&stage, request(), vec![nothing.encode()]);
    assert_eq!(refused.sense(), (5, 0x2400), "a capability without rights for functions");
}
