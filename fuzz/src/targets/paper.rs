//! The paper's login: messages, both ends with arbitrary bytes, records, and a connection to the
//! server.

use std::net::IpAddr;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sealstone_login::paper::{
    Addresses, Algorithms, AwaitingResponse, Channel, ClientTerms, Encryption, HalfOpen, Hash, OakleyGroup,
    PAPER_SESSION_BYTES, PaperSession, PassphraseKey, ReplayCache, ServerTerms, answer_continue, check_init,
};
use sealstone_mds_protocol::paper::{
    Confirm, Continue, ContinueOk, CookieRequest, CookieResponse, Identity, Init, InitResponse, PaperError,
    PaperHeader, PaperLogout, PaperType, SessionOk,
};
use sealstone_mds_protocol::{HEADER_BYTES, decode_message, encode_message};

use super::mds::{body, one, user};
use crate::Target;
use crate::input::{Input, array, seed};

const NOW_MS: u64 = 1_800_000_000_000;

fn identity(name: &str) -> Identity {
    Identity::new(name.as_bytes()).expect("a short name")
}

fn addresses() -> Addresses {
    Addresses { client: IpAddr::from([192, 0, 2, 10]), server: IpAddr::from([192, 0, 2, 1]) }
}

fn key() -> PassphraseKey {
    PassphraseKey::derive(&user("alice"), "correct horse")
}

fn server_terms() -> ServerTerms {
    ServerTerms { identity: identity("mds"), takes_group_1: true }
}

/// A valid login, the same each time, with group 1 for speed.
fn begin(encryption: Encryption) -> (Init, AwaitingResponse) {
    let terms = ClientTerms {
        user: user("alice"),
        client: identity("client"),
        server: identity("mds"),
        addresses: addresses(),
        group: OakleyGroup::Modp768,
        offers: Algorithms { encryption, hash: Hash::Sha1 }.list(),
    };
    AwaitingResponse::start(&mut StdRng::seed_from_u64(1), terms, key()).expect("two names")
}

fn respond(init: Init) -> Option<(InitResponse, HalfOpen)> {
    let checked = check_init(&server_terms(), &key(), &addresses(), init).ok()?;
    let fresh = checked.fresh(&mut ReplayCache::default()).ok()?;
    fresh.respond(&mut StdRng::seed_from_u64(2), NOW_MS).ok()
}

fn session(encryption: Encryption) -> (PaperSession, Confirm, Channel, Channel) {
    let (init, client) = begin(encryption);
    let (response, half) = respond(init).expect("an honest start");
    let (confirm, client) = client.answer(response, NOW_MS, NOW_MS).expect("an honest answer");
    let proven = half.confirm(&confirm, NOW_MS).expect("an honest confirmation");
    let session = proven.session().clone();
    let terms = SessionOk { session: [3; 16], expires_ms: 1, idle_s: 1, rekey_bytes: 1 };
    let (frame, server) = proven.open(&mut StdRng::seed_from_u64(3), &terms).expect("it fits");
    let (header, body) = split(&frame);
    (session, confirm, client.open(&header, body).expect("an honest session").channel, server)
}

fn split(frame: &[u8]) -> (PaperHeader, &[u8]) {
    let (header, body) = frame.split_first_chunk::<HEADER_BYTES>().expect("a whole frame");
    (PaperHeader::parse(header).expect("a frame of ours"), body)
}

fn messages(input: &[u8]) {
    let mut input = Input::new(input);
    let header: [u8; HEADER_BYTES] = input.array();
    let Ok(parsed) = PaperHeader::parse(&header) else { return };
    assert_eq!(parsed.encode(), header);
    let bytes = input.rest();
    match parsed.kind {
        PaperType::CookieRequest => one::<CookieRequest>(bytes),
        PaperType::CookieResponse => one::<CookieResponse>(bytes),
        PaperType::Init => one::<Init>(bytes),
        PaperType::Response => one::<InitResponse>(bytes),
        PaperType::Confirm => one::<Confirm>(bytes),
        PaperType::SessionOk => one::<SessionOk>(bytes),
        PaperType::Logout | PaperType::LogoutOk => one::<PaperLogout>(bytes),
        PaperType::Continue => one::<Continue>(bytes),
        PaperType::ContinueOk => one::<ContinueOk>(bytes),
        PaperType::Error => one::<PaperError>(bytes),
        PaperType::Data => {}
    }
}

fn message_seeds() -> Vec<Vec<u8>> {
    let (init, client) = begin(Encryption::Aes128Cbc);
    let cookies = CookieResponse { client_cookie: init.client_cookie, server_cookie: [1; 8] };
    let request = CookieRequest { client_cookie: init.client_cookie, user: user("alice") };
    let (response, _) = respond(init.clone()).expect("an honest start");
    let (confirm, _) = client.answer(response.clone(), NOW_MS, NOW_MS).expect("an honest answer");
    vec![
        encode_message(PaperType::CookieRequest, 0, &request).expect("short"),
        encode_message(PaperType::CookieResponse, 0, &cookies).expect("short"),
        encode_message(PaperType::Init, 0, &init).expect("short"),
        encode_message(PaperType::Response, 0, &response).expect("short"),
        encode_message(PaperType::Confirm, 0, &confirm).expect("short"),
    ]
}

pub(crate) const MESSAGES: Target = Target {
    name: "paper-messages",
    about: "a frame of the paper's profile; what parses encodes to the same bytes",
    run: messages,
    seeds: message_seeds,
    cost: 1,
    quarantine: None,
    covers: &["mds-protocol::Header::parse"],
};

fn ends(input: &[u8]) {
    let mut input = Input::new(input);
    match input.byte() % 5 {
        0 => {
            let Ok(init) = decode_message::<Init>(input.rest()) else { return };
            let honest = begin(Encryption::Aes128Cbc).0;
            let signed = [honest, begin(Encryption::Aes256Gcm).0]
                .iter()
                // CKY-M is not signed: zero, or the correct one.
                .any(|honest| Init { server_cookie: honest.server_cookie, ..init.clone() } == *honest);
            assert!(respond(init).is_none() || signed, "an INIT without a signature was answered");
        }
        1 => {
            let Ok(response) = decode_message::<InitResponse>(input.rest()) else { return };
            let (init, client) = begin(Encryption::Aes128Cbc);
            let honest = respond(init).expect("an honest start").0;
            let believed = client.answer(response.clone(), NOW_MS, NOW_MS).is_ok();
            assert_eq!(believed, response == honest, "an answer that the server did not make");
        }
        2 => {
            let Ok(confirm) = decode_message::<Confirm>(input.rest()) else { return };
            let half = respond(begin(Encryption::Aes128Cbc).0).expect("an honest start").1;
            let honest = session(Encryption::Aes128Cbc).1;
            assert_eq!(half.confirm(&confirm, NOW_MS).is_ok(), confirm == honest);
        }
        3 => {
            let Ok(message) = decode_message::<Continue>(input.rest()) else { return };
            let (session, ..) = session(Encryption::Aes128Cbc);
            let honest = session.resume(&mut StdRng::seed_from_u64(4), [3; 16]).0;
            let answered = answer_continue(&mut StdRng::seed_from_u64(5), &session, &message, NOW_MS).is_ok();
            assert_eq!(answered, message == honest, "continued without the keys");
        }
        _ => {
            let bytes: [u8; PAPER_SESSION_BYTES] = array(input.rest());
            if let Some(session) = PaperSession::from_bytes(&bytes) {
                let again = PaperSession::from_bytes(&session.to_bytes()).expect("our own bytes");
                assert_eq!(again.skeyid(), session.skeyid());
            }
        }
    }
}

fn end_seeds() -> Vec<Vec<u8>> {
    let (init, _) = begin(Encryption::Aes128Cbc);
    let response = respond(init.clone()).expect("an honest start").0;
    let (session, confirm, ..) = session(Encryption::Aes128Cbc);
    let continued = session.resume(&mut StdRng::seed_from_u64(4), [3; 16]).0;
    vec![
        seed(&[0], &body(&init)),
        seed(&[1], &body(&response)),
        seed(&[2], &body(&confirm)),
        seed(&[3], &body(&continued)),
        seed(&[4], &*session.to_bytes()),
    ]
}

pub(crate) const ENDS: Target = Target {
    name: "paper-ends",
    about: "a message to one end of a login; only the honest one of the other end is taken",
    run: ends,
    seeds: end_seeds,
    cost: 2_000,
    quarantine: None,
    covers: &["login::PaperSession::from_bytes"],
};

fn records(input: &[u8]) {
    let mut input = Input::new(input);
    let encryption = [Encryption::Aes128Cbc, Encryption::Aes256Gcm][usize::from(input.byte() & 1)];
    let (_, _, mut client, mut server) = session(encryption);
    let length = usize::from(input.byte());
    let content = input.take(length).to_vec();
    let frame = client
        .sealer
        .seal(&mut StdRng::seed_from_u64(6), PaperType::Data, &content)
        .expect("short contents fit");
    let mut altered = frame.clone();
    while !input.is_empty() {
        let at = usize::from(input.short()) % altered.len();
        altered[at] ^= input.byte();
    }
    let (header, bytes) = altered.split_first_chunk::<HEADER_BYTES>().expect("a whole frame");
    let Ok(header) = PaperHeader::parse(header) else { return };
    let opened = server.opener.open(&header, bytes);
    assert_eq!(opened.is_ok(), altered == frame, "a record that the client did not make");
    if let Ok(opened) = opened {
        assert_eq!(*opened, content);
    }
}

pub(crate) const RECORDS: Target = Target {
    name: "paper-records",
    about: "a record with bytes of it changed; only the one that was made opens",
    run: records,
    seeds: || {
        vec![
            seed(&[0, 5], b"hello"),
            seed(&[1, 5], b"hello"),
            seed(&[0, 5], b"hello\0\x20\x01"),
            seed(&[1, 5], b"hello\0\x20\x01"),
            seed(&[0, 0], b""),
        ]
    },
    cost: 2_000,
    quarantine: None,
    covers: &["login::Opener::open"],
};
