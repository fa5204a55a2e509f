//! `sealstone-mds`: a live connection to the metadata server, frame by frame.

use std::sync::OnceLock;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sealstone_login::{ChannelBinding, SessionKeys};
use sealstone_mds::store::MemoryMeta;
use sealstone_mds::{Config, Connection, LoginSource, Mds, Output};
use sealstone_mds_protocol::login::{
    LoginError, LoginOk, Logout, LogoutOk, Resume, SUITE_LIGHT, SUITE_STANDARD, SessionId,
};
use sealstone_mds_protocol::{
    ErrorCode, FrameHeader, HEADER_BYTES, MessageType, Request, Response, Role, decode_message,
    encode_message, frame,
};

use super::login::{NOW_MS, log_in};
use super::mds::{requests, user};
use crate::Target;
use crate::input::{Input, seed};

const CHANNEL: ChannelBinding = ChannelBinding([5; 32]);
/// Maximum number of frames per run.
const FRAMES_MAX: usize = 24;
/// Key prefixes of accounts, groups, memberships, devices and their keys in the store.
const ACCOUNTS_AND_DEVICES: [u8; 6] = *b"ughjvk";
/// The unprivileged account.
const USER: &str = "alice";

/// A server with an administrator, a user, and a session of each.
struct ServerFixture {
    store: MemoryMeta,
    admin: (SessionId, SessionKeys),
    user: (SessionId, SessionKeys),
}

fn open(store: &MemoryMeta) -> Mds {
    Mds::open(std::sync::Arc::new(store.clone()), Config::default()).expect("the store is set up")
}

fn world() -> &'static ServerFixture {
    static WORLD: OnceLock<ServerFixture> = OnceLock::new();
    WORLD.get_or_init(|| {
        let mut rng = StdRng::seed_from_u64(1);
        let store = MemoryMeta::new();
        Mds::set_up(&store, &user("admin"), b"secret", NOW_MS, &mut rng).expect("an empty store");
        let mds = open(&store);
        let admin = log_in(&mds, &CHANNEL, "admin", b"secret", SUITE_STANDARD, &mut rng);
        let (request, started) = sealstone_login::start_registration(&mut rng, &user(USER), b"her own")
            .expect("a proper password");
        let ask = |request, rng: &mut StdRng| mds.handle(Some(&admin.0), request, NOW_MS, rng);
        let begin = Request::UserRegisterStart { name: user(USER), request, proof: None };
        let Response::UserRegisterStart { response, .. } = ask(begin, &mut rng) else {
            panic!("an administrator may register")
        };
        let record = started.finish(&mut rng, SUITE_LIGHT, &response).expect("the server's answer");
        let end = Request::UserRegisterFinish {
            name: user(USER),
            record,
            suite: SUITE_LIGHT,
            role: Role::User,
            replace: false,
            proof: None,
        };
        assert_eq!(ask(end, &mut rng), Response::Done {});
        let own = log_in(&mds, &CHANNEL, USER, b"her own", SUITE_LIGHT, &mut rng);
        ServerFixture { store, admin, user: own }
    })
}

/// Sends one frame and verifies the properties of every answer.
fn send(mds: &Mds, connection: &mut Connection, bytes: &[u8], rng: &mut StdRng) -> Option<Output> {
    let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let header = FrameHeader::parse(head).ok()?;
    let active = connection.is_active();
    let output = connection.receive(mds, &header, body, NOW_MS, rng);
    let Some(frame) = &output.frame else {
        assert!(output.close, "a frame without an answer closes");
        return Some(output);
    };
    let (head, body) = frame.split_first_chunk::<HEADER_BYTES>().expect("a whole header");
    let answer = FrameHeader::parse(head).expect("our own header");
    assert_eq!(usize::try_from(answer.body_length).expect("bounded"), body.len());
    match answer.kind {
        MessageType::Response => {
            let (_, response) = Response::decode(body).expect("our own response");
            let harmless = matches!(response, Response::Hello { .. } | Response::Failed { .. });
            let broken =
                matches!(&response, Response::Failed { failure } if failure.code == ErrorCode::Internal);
            assert!(!broken, "no request makes a sound server fail");
            assert!(active || harmless, "answered without a session: {response:?}");
        }
        MessageType::Error => drop(decode_message::<LoginError>(body).expect("our own error")),
        MessageType::LoginOk => drop(decode_message::<LoginOk>(body).expect("our own message")),
        MessageType::LogoutOk => drop(decode_message::<LogoutOk>(body).expect("our own message")),
        MessageType::LoginChallenge => assert!(!active),
        other => panic!("the server sends {other:?}"),
    }
    Some(output)
}

/// A connection with a resumed session.
fn resumed(mds: &Mds, (session, keys): &(SessionId, SessionKeys), rng: &mut StdRng) -> Connection {
    let mut connection = Connection::new(CHANNEL, LoginSource::default());
    let message: Resume = keys.resume(*session, &CHANNEL, [7; 16]);
    let bytes = encode_message(MessageType::Resume, 0, &message).expect("a short message");
    let output = send(mds, &mut connection, &bytes, rng).expect("a frame of ours");
    assert!(!output.close && connection.is_active());
    connection
}

/// The keys with this prefix.
fn families(store: &MemoryMeta, family: u8) -> Vec<Vec<u8>> {
    store.dump().into_iter().map(|(key, _)| key).filter(|key| key.first() == Some(&family)).collect()
}

fn connection(input: &[u8]) {
    let world = world();
    let mut input = Input::new(input);
    let mut rng = StdRng::seed_from_u64(2);
    let store = world.store.copy();
    let mds = open(&store);
    let who = input.byte() % 3;
    let mut connection = match who {
        0 => Connection::new(CHANNEL, LoginSource::default()),
        1 => resumed(&mds, &world.user, &mut rng),
        _ => resumed(&mds, &world.admin, &mut rng),
    };
    let before = ACCOUNTS_AND_DEVICES.map(|family| families(&store, family));
    let mut sequence = u32::from(who > 0);
    let mut closed = false;
    for _ in 0..FRAMES_MAX {
        if input.is_empty() {
            break;
        }
        let choice = input.byte();
        let length = usize::from(input.short());
        let bytes = match choice % 4 {
            // Raw frames.
            0 => input.take(length).to_vec(),
            // A body in a valid frame of some type.
            1 => {
                let kind = MessageType::ALL[usize::from(input.byte()) % MessageType::ALL.len()];
                frame(kind, sequence, input.take(length)).expect("lengths are short")
            }
            // A request with raw id, operation, schema and fields.
            2 => frame(MessageType::Request, sequence, input.take(length)).expect("lengths are short"),
            // A valid request, with its number and some changed bytes.
            _ => {
                let all = requests();
                let request = &all[usize::from(input.byte()) % all.len()];
                let mut body = request.encode(u64::from(choice)).expect("seeds are short");
                for _ in 0..length % 4 {
                    let at = usize::from(input.short()) % body.len();
                    body[at] ^= input.byte();
                }
                frame(MessageType::Request, sequence, &body).expect("seeds are short")
            }
        };
        let Some(output) = send(&mds, &mut connection, &bytes, &mut rng) else { continue };
        if closed {
            assert!(output.close, "a closed connection answers");
        }
        closed |= output.close;
        sequence += u32::from(connection.is_active());
    }
    if who < 2 {
        let after = ACCOUNTS_AND_DEVICES.map(|family| families(&store, family));
        assert_eq!(before, after, "only an administrator changes accounts and devices");
    }
    // The store opens again, and all its records are counted.
    drop(connection);
    let again = open(&store);
    assert!(again.inspect(&sealstone_mds_protocol::FilePath::root()).is_ok());
}

fn seeds() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).expect("seeds are short").to_be_bytes();
    // Each request by each kind of caller, as a valid request and as raw bytes.
    for (index, request) in requests().into_iter().enumerate() {
        let index = u8::try_from(index).expect("few requests");
        let body = request.encode(1).expect("seeds are short");
        for who in 0..3 {
            all.push(seed(&[who, 3, 0, 0, index], &[]));
            all.push(seed(&[who, 2], &[&length(&body)[..], &body].concat()));
        }
    }
    // A sequence of all requests.
    let history: Vec<u8> = (0..20u8).flat_map(|index| [3, 0, 0, index]).collect();
    all.push(seed(&[1], &history));
    all.push(seed(&[2], &history));
    let logout = encode_message(MessageType::Logout, 1, &Logout { session: world().user.0, flags: 1 })
        .expect("a short message");
    all.push(seed(&[1, 0], &[&length(&logout)[..], &logout].concat()));
    all
}

pub(crate) const CONNECTION: Target = Target {
    name: "mds-connection",
    about: "frames on a connection before login, of a user or of an administrator; every reply is complete, no right is gained",
    run: connection,
    seeds,
    cost: 40,
    quarantine: None,
    covers: &["mds::Connection::receive"],
};
