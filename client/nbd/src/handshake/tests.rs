//! Tests of the negotiation: each option, and arbitrary bytes.

use proptest::prelude::*;

use super::*;

fn handshake(block_min: u32) -> Handshake {
    let properties = ExportProperties {
        bytes: 1 << 20,
        block_min,
        block_preferred: 4096,
        is_read_only: false,
        can_trim: true,
        has_fast_zero: true,
    };
    Handshake::new(ExportName::new("vm1").expect("a name"), properties)
}

/// Returns the types of the replies in `out`.
fn kinds(mut out: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while !out.is_empty() {
        let word = |at: usize| u32::from_be_bytes(out[at..at + 4].try_into().expect("four"));
        kinds.push(word(12));
        out = &out[20 + word(16) as usize..];
    }
    kinds
}

fn run(handshake: &mut Handshake, code: u32, data: &[u8]) -> (Vec<u32>, HandshakeStep) {
    let mut out = Vec::new();
    let step = handshake.option(code, data, &mut out).expect("no violation");
    (kinds(&out), step)
}

fn go(name: &[u8], requests: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name);
    data.extend((requests.len() as u16).to_be_bytes());
    data.extend(requests.iter().flat_map(|request| request.to_be_bytes()));
    data
}

fn queries(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name);
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend_from_slice(query);
    }
    data
}

#[test]
fn go_describes_export_and_begins_transmission() {
    for name in [&b"vm1"[..], b""] {
        let (kinds, step) = run(&mut handshake(512), option::GO, &go(name, &[info::NAME, info::BLOCK_SIZE]));
        assert_eq!(kinds, [reply::INFO, reply::INFO, reply::INFO, reply::ACK]);
        assert_eq!(step, HandshakeStep::Transmission);
    }
    let (kinds, step) = run(&mut handshake(512), option::INFO, &go(b"vm1", &[]));
    assert_eq!((kinds, step), (vec![reply::INFO, reply::ACK], HandshakeStep::Continue));
}

#[test]
fn large_blocks_require_block_size_request() {
    let mut handshake = handshake(4096);
    let (kinds, step) = run(&mut handshake, option::GO, &go(b"vm1", &[]));
    assert_eq!((kinds, step), (vec![reply::ERR_BLOCK_SIZE_REQUIRED], HandshakeStep::Continue));
    let (_, step) = run(&mut handshake, option::GO, &go(b"vm1", &[info::BLOCK_SIZE]));
    assert_eq!(step, HandshakeStep::Transmission);
    let refused = handshake.option(option::EXPORT_NAME, b"vm1", &mut Vec::new());
    assert_eq!(refused, Err(NbdViolation::UnknownExport));
}

#[test]
fn export_name_gets_zeros_unless_declined() {
    for (flags, length) in [(1, 134), (3, 10)] {
        let mut handshake = handshake(512);
        handshake.client_flags(flags).expect("offered");
        let mut out = Vec::new();
        assert_eq!(handshake.option(option::EXPORT_NAME, b"", &mut out), Ok(HandshakeStep::Transmission));
        assert_eq!(out.len(), length);
    }
}

#[test]
fn contexts_require_structured_replies() {
    let mut handshake = handshake(512);
    let data = queries(b"vm1", &[b"base:allocation", b"qemu:dirty"]);
    assert_eq!(run(&mut handshake, option::SET_META_CONTEXT, &data).0, [reply::ERR_INVALID]);
    assert_eq!(run(&mut handshake, option::STRUCTURED_REPLY, &[]).0, [reply::ACK]);
    assert_eq!(run(&mut handshake, option::SET_META_CONTEXT, &data).0, [reply::META_CONTEXT, reply::ACK]);
    assert!(handshake.has_allocation());
    let unknown = queries(b"vm1", &[b"qemu:dirty"]);
    assert_eq!(run(&mut handshake, option::SET_META_CONTEXT, &unknown).0, [reply::ACK]);
    assert!(!handshake.has_allocation(), "the last selection counts");
    for all in [queries(b"", &[]), queries(b"", &[b"base:"])] {
        let (kinds, _) = run(&mut handshake, option::LIST_META_CONTEXT, &all);
        assert_eq!(kinds, [reply::META_CONTEXT, reply::ACK]);
    }
    assert!(!handshake.has_allocation(), "a list selects nothing");
}

#[test]
fn bad_options_are_refused_with_an_error() {
    let bad: &[(u32, &[u8], u32)] = &[
        (option::LIST, b"x", reply::ERR_INVALID),
        (option::STARTTLS, b"", reply::ERR_POLICY),
        (option::STRUCTURED_REPLY, b"x", reply::ERR_INVALID),
        (option::GO, b"", reply::ERR_INVALID),
        (option::GO, &go(b"vm2", &[]), reply::ERR_UNKNOWN),
        (option::GO, &go(b"vm1", &[0])[..9], reply::ERR_INVALID),
        (option::GO, &[0xFF; 8], reply::ERR_INVALID),
        (option::LIST_META_CONTEXT, &queries(b"vm2", &[]), reply::ERR_UNKNOWN),
        (option::LIST_META_CONTEXT, &[0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF], reply::ERR_INVALID),
        (option::LIST_META_CONTEXT, &[0, 0, 0, 0, 0, 0, 0, 0, 9], reply::ERR_INVALID),
        (11, b"", reply::ERR_UNSUPPORTED),
        (u32::MAX, b"", reply::ERR_UNSUPPORTED),
    ];
    for (code, data, expected) in bad {
        let (kinds, step) = run(&mut handshake(512), *code, data);
        assert_eq!((kinds, step), (vec![*expected], HandshakeStep::Continue), "{code} {data:?}");
    }
}

#[test]
fn limits_of_options_are_kept() {
    let mut handshake = handshake(512);
    let of = |code, length| OptionHeader { code, length };
    assert_eq!(handshake.accept_option(of(option::GO, OPTION_DATA_MAX)), Ok(true));
    assert_eq!(handshake.accept_option(of(option::GO, OPTION_DATA_MAX + 1)), Ok(false));
    let long = OPTION_SKIP_MAX + 1;
    assert_eq!(handshake.accept_option(of(option::GO, long)), Err(NbdViolation::OptionLength(long)));
    let long = OPTION_DATA_MAX + 1;
    let refused = handshake.accept_option(of(option::EXPORT_NAME, long));
    assert_eq!(refused, Err(NbdViolation::OptionLength(long)));
    assert_eq!(handshake.client_flags(4), Err(NbdViolation::ClientFlags(4)));
    for _ in 4..OPTIONS_MAX {
        assert_eq!(handshake.accept_option(of(option::LIST, 0)), Ok(true));
    }
    let refused = handshake.accept_option(of(option::LIST, 0));
    assert_eq!(refused, Err(NbdViolation::OptionCount(OPTIONS_MAX)));
}

proptest! {
    #[test]
    fn arbitrary_options_get_complete_replies(
        options in proptest::collection::vec((0_u32..12, proptest::collection::vec(any::<u8>(), 0..60)), 0..8)
    ) {
        let mut handshake = handshake(512);
        for (code, data) in options {
            let mut out = Vec::new();
            match handshake.option(code, &data, &mut out) {
                Ok(HandshakeStep::Transmission) => break,
                Ok(_) => prop_assert!(!kinds(&out).is_empty()),
                Err(violation) => prop_assert_eq!(violation, NbdViolation::UnknownExport),
            }
        }
    }
}
