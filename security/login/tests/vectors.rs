//! `docs/standards/vectors/login.json`: whole logins of the paper profile, frame by frame, through
//! the public functions and the wire's codec. `make_login.py` there created them independently of
//! this code.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use std::collections::VecDeque;
use std::path::Path;

use sealstone_login::paper::{
    Addresses, AwaitingCookie, AwaitingResponse, ClientTerms, OakleyGroup, PassphraseKey, ReplayCache,
    ServerTerms, answer_continue, answer_cookie, check_init,
};
use sealstone_login::{CryptoRng, RngCore};
use sealstone_mds_protocol::paper::{
    Confirm, Continue, ContinueOk, CookieRequest, CookieResponse, Identity, Init, InitResponse, Offers,
    PaperHeader, PaperLogout, PaperType, SessionOk,
};
use sealstone_mds_protocol::{HEADER_BYTES, UserName, Wire, WireWriter, decode_message, encode_message};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Returns the random bytes that the vector specifies.
struct Script(VecDeque<u8>);

impl Script {
    fn of(draws: &[&[u8]]) -> Self {
        Self(draws.concat().into())
    }
}

impl RngCore for Script {
    fn next_u32(&mut self) -> u32 {
        unreachable!("bytes are drawn, nothing else")
    }
    fn next_u64(&mut self) -> u64 {
        unreachable!("bytes are drawn, nothing else")
    }
    fn fill_bytes(&mut self, into: &mut [u8]) {
        for byte in into {
            *byte = self.0.pop_front().expect("no more is drawn than the vector says");
        }
    }
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), rand::Error> {
        self.fill_bytes(into);
        Ok(())
    }
}

impl CryptoRng for Script {}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn pairs(value: &Value) -> Offers {
    Offers::new(hex(value).chunks(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()).unwrap()
}

struct Frames<'a>(&'a Value);

impl Frames<'_> {
    fn bytes(&self, name: &str) -> Vec<u8> {
        hex(&self.0[name])
    }

    /// Checks that the message encodes to this frame, and that the frame decodes to this message.
    fn check<T: Wire + PartialEq + core::fmt::Debug>(&self, name: &str, kind: PaperType, message: &T) -> T {
        assert_eq!(encode_message(kind, 0, message).unwrap(), self.bytes(name), "{name}");
        let (header, body) = self.split(name);
        assert_eq!(header.kind, kind);
        let read: T = decode_message(&body).unwrap();
        assert_eq!(read, *message, "{name}");
        read
    }

    fn split(&self, name: &str) -> (PaperHeader, Vec<u8>) {
        let bytes = self.bytes(name);
        let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        let parsed = PaperHeader::parse(header).unwrap();
        assert_eq!(parsed.encode(), *header);
        (parsed, body.to_vec())
    }
}

fn content(message: &impl Wire) -> Vec<u8> {
    let mut out = WireWriter::new();
    message.put(&mut out);
    out.finish(1024).unwrap()
}

#[test]
fn whole_logins_match_the_vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/standards/vectors/login.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 4);
    for vector in vectors {
        check(vector);
    }
    // As in the design page.
    let given = &vectors[0];
    assert_eq!(text(&given["cky_c"]), "8aadcecc9891fef2");
    assert_eq!(text(&given["cky_m"]), "6de1e6497ad850bc");
    assert!(text(&given["k_i"]).starts_with("0114686a") && text(&given["k_i"]).ends_with("c5c0"));
    assert!(text(&given["skeyid"]).starts_with("db7f9584") && text(&given["skeyid"]).ends_with("0315"));
}

fn check(vector: &Value) {
    let frames = Frames(&vector["frames"]);
    let now = vector["time_ms"].as_u64().unwrap();
    let user = UserName::new(text(&vector["user"])).unwrap();
    let key = PassphraseKey::derive(&user, text(&vector["passphrase"]));
    assert_eq!(key.to_bytes().as_slice(), hex(&vector["k"]));
    let address = |name: &str| text(&vector[name]).parse().unwrap();
    let addresses = Addresses { client: address("client_address"), server: address("server_address") };
    assert_eq!(key.cookie(addresses.client).as_slice(), hex(&vector["cky_c"]));
    assert_eq!(key.cookie(addresses.server).as_slice(), hex(&vector["cky_m"]));
    let identity = |name: &str| Identity::new(text(&vector[name]).as_bytes()).unwrap();
    let group = OakleyGroup::from_number(u32::try_from(vector["group"].as_u64().unwrap()).unwrap()).unwrap();
    let terms = ClientTerms {
        user,
        client: identity("client_id"),
        server: identity("server_id"),
        addresses,
        group,
        offers: pairs(&vector["offers"]),
    };
    let server_terms = ServerTerms { identity: identity("server_id"), takes_group_1: true };
    let mut client_draws = Script::of(&[&hex(&vector["n_c"]), &hex(&vector["x"])]);
    let mut server_draws = Script::of(&[&hex(&vector["n_m"]), &hex(&vector["y"])]);

    let (init, client) = if vector["conservative"].as_bool().unwrap() {
        let (request, client) = AwaitingCookie::start(terms, key.clone());
        let request: CookieRequest = frames.check("cookie_req", PaperType::CookieRequest, &request);
        let response = answer_cookie(&key, &addresses, &request).unwrap();
        let response: CookieResponse = frames.check("cookie_rsp", PaperType::CookieResponse, &response);
        client.answer(&mut client_draws, &response).unwrap()
    } else {
        AwaitingResponse::start(&mut client_draws, terms, key.clone()).unwrap()
    };
    let init: Init = frames.check("init", PaperType::Init, &init);
    assert_eq!(init.signature.as_slice(), hex(&vector["sig1"]));
    assert_eq!(Sha256::digest(init.public.as_slice()).to_vec(), hex(&vector["gx_sha256"]));

    let checked = check_init(&server_terms, &key, &addresses, init).unwrap();
    let fresh = checked.fresh(&mut ReplayCache::default()).unwrap();
    let (response, half) = fresh.respond(&mut server_draws, now).unwrap();
    let response: InitResponse = frames.check("resp", PaperType::Response, &response);
    assert_eq!(response.signature.as_slice(), hex(&vector["sig2"]));
    assert_eq!(Sha256::digest(response.public.as_slice()).to_vec(), hex(&vector["gy_sha256"]));
    assert_eq!(response.choice, pairs(&vector["choice"]));

    let (confirm, client) = client.answer(response, now, now).unwrap();
    let confirm: Confirm = frames.check("confirm", PaperType::Confirm, &confirm);
    assert_eq!(confirm.signature.as_slice(), hex(&vector["sig3"]));
    let proven = half.confirm(&confirm, now).unwrap();
    let session = proven.session().clone();
    assert_eq!(session.skeyid(), hex(&vector["skeyid"]));

    let iv = hex(&vector["iv"]);
    let mut ivs = Script::of(&[iv.as_slice(); 8]);
    let number: [u8; 16] = hex(&vector["session"]).try_into().unwrap();
    let opened_terms = SessionOk {
        session: number,
        expires_ms: vector["expires_ms"].as_u64().unwrap(),
        idle_s: u32::try_from(vector["idle_s"].as_u64().unwrap()).unwrap(),
        rekey_bytes: vector["rekey_bytes"].as_u64().unwrap(),
    };
    let (frame, mut server) = proven.open(&mut ivs, &opened_terms).unwrap();
    assert_eq!(frame, frames.bytes("session_ok"));
    let (header, body) = frames.split("session_ok");
    let opened = client.open(&header, &body).unwrap();
    assert_eq!(opened.terms, opened_terms);
    let mut client = opened.channel;
    let (question, answer) = (hex(&vector["question"]), hex(&vector["answer"]));
    let logout = content(&PaperLogout { session: number });
    for (name, to_server, kind, expected) in [
        ("data_to_server", true, PaperType::Data, &question),
        ("data_to_client", false, PaperType::Data, &answer),
        ("logout", true, PaperType::Logout, &logout),
        ("logout_ok", false, PaperType::LogoutOk, &logout),
    ] {
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        assert_eq!(from.sealer.seal(&mut ivs, kind, expected).unwrap(), frames.bytes(name), "{name}");
        let (header, body) = frames.split(name);
        assert_eq!(*to.opener.open(&header, &body).unwrap(), *expected, "{name}");
    }

    let mut draws = Script::of(&[&hex(&vector["continue_n_c"])]);
    let (message, waiting) = opened.session.resume(&mut draws, number);
    let message: Continue = frames.check("continue", PaperType::Continue, &message);
    let mut draws = Script::of(&[&hex(&vector["continue_n_m"])]);
    let (ok, mut server) = answer_continue(&mut draws, &session, &message, now).unwrap();
    let ok: ContinueOk = frames.check("continue_ok", PaperType::ContinueOk, &ok);
    let (mut client, _) = waiting.answer(&ok, now, now).unwrap();
    let mut ivs = Script::of(&[iv.as_slice(); 2]);
    let sealed = client.sealer.seal(&mut ivs, PaperType::Data, &question).unwrap();
    assert_eq!(sealed, frames.bytes("continued_data_to_server"));
    let (header, body) = frames.split("continued_data_to_server");
    assert_eq!(*server.opener.open(&header, &body).unwrap(), question);
    let sealed = server.sealer.seal(&mut ivs, PaperType::Data, &answer).unwrap();
    assert_eq!(sealed, frames.bytes("continued_data_to_client"));
    let (header, body) = frames.split("continued_data_to_client");
    assert_eq!(*client.opener.open(&header, &body).unwrap(), answer);
}
