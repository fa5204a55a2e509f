//! `sealstone-login`: both ends of a login with arbitrary messages, and stored keys.

use std::sync::OnceLock;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sealstone_login::{
    AccountRecord, ChannelBinding, ClientStarted, LoginContext, LoginFailure, ServerKeys, ServerStarted,
    SessionKeys, SessionTerms, start_login, start_registration,
};
use sealstone_mds_protocol::login::{
    KE3_BYTES, LoginChallenge, LoginFinish, LoginOk, LoginStart, REGISTRATION_REQUEST_BYTES,
    REGISTRATION_UPLOAD_BYTES, Resume, SUITE_LIGHT, SessionId,
};
use sealstone_mds_protocol::{
    BODY_MAX, FrameHeader, HEADER_BYTES, MessageType, Text, Wire, WireWriter, decode_message,
};

use super::mds::body;
use super::mds::user;
use crate::Target;
use crate::input::{Input, array, seed};

const CHANNEL: ChannelBinding = ChannelBinding([9; 32]);
const PASSWORD: &[u8] = b"correct horse";
/// Time of the tested servers, in milliseconds since 1970.
pub(crate) const NOW_MS: u64 = 1_800_000_000_000;
const LOGIN_ID: [u8; 16] = [1; 16];

fn context() -> LoginContext {
    LoginContext::new(&[7; 16], &CHANNEL)
}

/// One account and the messages of a valid login, the same in every process.
struct LoginFixture {
    keys: ServerKeys,
    account: AccountRecord,
    request: [u8; REGISTRATION_REQUEST_BYTES],
    upload: [u8; REGISTRATION_UPLOAD_BYTES],
    start: LoginStart,
    challenge: LoginChallenge,
    finish: LoginFinish,
    ok: LoginOk,
    session: SessionKeys,
}

/// Random numbers of client and server, the same for each login.
fn client_rng() -> StdRng {
    StdRng::seed_from_u64(2)
}

fn begin() -> (LoginStart, ClientStarted, StdRng) {
    let mut rng = client_rng();
    let (start, client) =
        start_login(&mut rng, SUITE_LIGHT, &user("alice"), PASSWORD, context()).expect("a proper password");
    (start, client, rng)
}

fn answer(
    keys: &ServerKeys,
    account: Option<&AccountRecord>,
    start: &LoginStart,
) -> Result<(LoginChallenge, ServerStarted), LoginFailure> {
    keys.challenge(&mut StdRng::seed_from_u64(3), account, start, context(), LOGIN_ID, 5, 1)
}

fn terms() -> SessionTerms {
    SessionTerms {
        session: [3; 16],
        expires_ms: 1000,
        idle_s: 60,
        roles: Text::new("user").expect("a short text"),
    }
}

fn world() -> &'static LoginFixture {
    static WORLD: OnceLock<LoginFixture> = OnceLock::new();
    WORLD.get_or_init(|| {
        let mut rng = StdRng::seed_from_u64(1);
        let keys = ServerKeys::generate(&mut rng);
        let (request, registering) =
            start_registration(&mut rng, &user("alice"), PASSWORD).expect("a proper password");
        let response = keys.register(&user("alice"), &request).expect("an honest request");
        let upload = registering.finish(&mut rng, SUITE_LIGHT, &response).expect("an honest response");
        let account = AccountRecord::parse(&upload).expect("an honest record");
        let (start, client, mut rng) = begin();
        let (challenge, server) = answer(&keys, Some(&account), &start).expect("an honest start");
        let (finish, client) = client.challenge(&mut rng, challenge.clone()).expect("an honest challenge");
        let (ok, session) = server.finish(&finish).expect("an honest proof").open(terms());
        let ours = client.confirm(&ok).expect("an honest confirmation");
        assert_eq!(*ours.to_bytes(), *session.to_bytes());
        LoginFixture { keys, account, request, upload, start, challenge, finish, ok, session }
    })
}

/// Logs in on a new connection; returns the session and its keys.
pub(crate) fn log_in(
    mds: &sealstone_mds::Mds,
    channel: &ChannelBinding,
    name: &str,
    password: &[u8],
    suite: u16,
    rng: &mut StdRng,
) -> (SessionId, SessionKeys) {
    let mut connection = sealstone_mds::Connection::new(*channel, sealstone_mds::LoginSource::default());
    let mut send = |kind, message: &dyn Fn(&mut WireWriter), rng: &mut StdRng| {
        let mut out = WireWriter::new();
        message(&mut out);
        let body = out.finish(BODY_MAX).expect("login bodies are short");
        let header = FrameHeader { kind, body_length: body.len() as u32, sequence: 0 };
        let output = connection.receive(mds, &header, &body, NOW_MS, rng);
        output.frame.expect("an honest message is answered")[HEADER_BYTES..].to_vec()
    };
    let context = LoginContext::new(&mds.server_id(), channel);
    let (start, client) = start_login(rng, suite, &user(name), password, context).expect("a password");
    let challenge = send(MessageType::LoginStart, &|out| start.put(out), rng);
    let challenge = decode_message(&challenge).expect("an honest challenge");
    let (finish, client) = client.challenge(rng, challenge).expect("the right password");
    let ok: LoginOk =
        decode_message(&send(MessageType::LoginFinish, &|out| finish.put(out), rng)).expect("proven");
    (ok.session, client.confirm(&ok).expect("an honest confirmation"))
}

fn server_seeds() -> Vec<Vec<u8>> {
    let world = world();
    let start = body(&world.start);
    vec![
        seed(&[0], &[&start[..], &world.finish.ke3].concat()),
        seed(&[1], &[&start[..], &world.finish.ke3].concat()),
        seed(&[2], &world.request),
        seed(&[3], &world.upload),
        seed(&[4], &world.keys.to_bytes()),
        seed(&[5], &body(&world.finish)),
    ]
}

fn server(input: &[u8]) {
    let world = world();
    let mut input = Input::new(input);
    match input.byte() % 6 {
        kind @ (0 | 1) => {
            let bytes = input.rest();
            let (start, proof) = bytes.split_at(bytes.len().saturating_sub(KE3_BYTES));
            let Ok(start) = decode_message::<LoginStart>(start) else { return };
            let account = (kind == 0).then_some(&world.account);
            let Ok((_, started)) = answer(&world.keys, account, &start) else { return };
            let finish = LoginFinish { login_id: LOGIN_ID, ke3: array(proof) };
            let proven = started.finish(&finish).is_ok();
            // The server compares suite and capability bits; the transcript binds them later.
            let honest = kind == 0 && start.ke1 == world.start.ke1 && start.user == world.start.user;
            assert_eq!(proven, honest && finish.ke3 == world.finish.ke3, "proven without the password");
        }
        2 => drop(world.keys.register(&user("alice"), &input.array())),
        3 => {
            // An uploaded record with arbitrary content must be answered like any other.
            let Ok(account) = AccountRecord::parse(&input.array()) else { return };
            let Ok((_, started)) = answer(&world.keys, Some(&account), &world.start) else { return };
            let _ = started.finish(&world.finish);
        }
        4 => {
            let Ok(keys) = ServerKeys::from_bytes(input.rest()) else { return };
            assert_eq!(
                *ServerKeys::from_bytes(&keys.to_bytes()).expect("our own keys").to_bytes(),
                *keys.to_bytes()
            );
            let _ = answer(&keys, None, &world.start);
        }
        _ => {
            let Ok(finish) = decode_message::<LoginFinish>(input.rest()) else { return };
            let (_, started) =
                answer(&world.keys, Some(&world.account), &world.start).expect("an honest start");
            assert_eq!(
                started.finish(&finish).is_ok(),
                finish == world.finish,
                "proven without the password"
            );
        }
    }
}

pub(crate) const SERVER: Target = Target {
    name: "login-server",
    about: "which message, then it; only the honest proof of the honest start is taken",
    run: server,
    seeds: server_seeds,
    cost: 600,
    quarantine: None,
    covers: &["login::ServerKeys::from_bytes", "login::AccountRecord::parse"],
};

fn client_seeds() -> Vec<Vec<u8>> {
    let world = world();
    let (challenge, ok) = (body(&world.challenge), body(&world.ok));
    vec![[challenge, ok].concat()]
}

/// Slow: Argon2id runs for each challenge with valid curve points.
fn client(input: &[u8]) {
    let world = world();
    let length = body(&world.challenge).len();
    let (challenge, ok) = input.split_at(length.min(input.len()));
    let Ok(challenge) = decode_message::<LoginChallenge>(challenge) else { return };
    let (_, client, mut rng) = begin();
    let Ok((finish, client)) = client.challenge(&mut rng, challenge.clone()) else {
        assert_ne!(challenge, world.challenge);
        return;
    };
    assert_eq!(challenge.ke2, world.challenge.ke2, "a server without the record was believed");
    assert!(challenge.login_id != LOGIN_ID || finish == world.finish);
    if let Ok(ok) = decode_message::<LoginOk>(ok) {
        let honest = challenge == world.challenge && ok == world.ok;
        assert_eq!(client.confirm(&ok).is_ok(), honest, "a confirmation that the server did not make");
    }
}

pub(crate) const CLIENT: Target = Target {
    name: "login-client",
    about: "a challenge and a confirmation; only those of the server that has the record are believed",
    run: client,
    seeds: client_seeds,
    cost: 20_000,
    quarantine: None,
    covers: &["mds-protocol::frame::decode_message"],
};

fn resumption() -> (Resume, LoginOk) {
    let world = world();
    let resume = world.session.resume([3; 16], &CHANNEL, [4; 16]);
    let mut ok = world.ok.clone();
    ok.confirm = world.session.resume_confirm(&resume, &CHANNEL, &ok);
    (resume, ok)
}

fn resume(input: &[u8]) {
    let world = world();
    let (honest, honest_ok) = resumption();
    let mut input = Input::new(input);
    if let Ok(message) = decode_message::<Resume>(input.take(body(&honest).len())) {
        // The session's name only selects the keys; the MAC covers channel and nonce.
        let same = (message.nonce, message.mac) == (honest.nonce, honest.mac);
        assert_eq!(world.session.proves(&message, &CHANNEL), same, "resumed without the keys");
    }
    let bytes = input.rest();
    if let Ok(ok) = decode_message::<LoginOk>(bytes) {
        let believed = world.session.check_resumed(&honest, &CHANNEL, &ok).is_ok();
        assert_eq!(believed, ok == honest_ok, "a confirmation that the server did not make");
    }
    let keys = SessionKeys::from_bytes(&array(bytes));
    assert_eq!(*keys.to_bytes(), array(bytes));
}

pub(crate) const RESUME: Target = Target {
    name: "login-resume",
    about: "a resumption and its confirmation; only honest ones are believed",
    run: resume,
    seeds: || {
        let (resume, ok) = resumption();
        vec![[body(&resume), body(&ok)].concat()]
    },
    cost: 10,
    quarantine: None,
    covers: &["login::SessionKeys::from_bytes"],
};
