//! Logins on connections, frame by frame.

use proptest::prelude::*;
use sealstone_login::{ChannelBinding, LoginContext, SessionKeys, start_login};
use sealstone_mds_protocol::login::{
    LoginChallenge, LoginError, LoginErrorCode, LoginOk, Logout, LogoutOk, SUITE_STANDARD,
};
use sealstone_mds_protocol::{
    ErrorCode, FrameHeader, HEADER_BYTES, MessageType, Request, Response, Wire, decode_message,
    encode_message, frame,
};

use super::world::{World, user};
use crate::{Connection, LoginSource, Output};

pub(super) const CHANNEL: ChannelBinding = ChannelBinding([5; 32]);

impl World {
    pub(super) fn connect(&self) -> Connection {
        Connection::new(CHANNEL, LoginSource::default())
    }

    pub(super) fn send(&mut self, connection: &mut Connection, bytes: &[u8]) -> Output {
        let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        let header = FrameHeader::parse(header).unwrap();
        connection.receive(&self.mds, &header, body, self.now, &mut self.rng)
    }

    pub(super) fn message(
        &mut self,
        connection: &mut Connection,
        kind: MessageType,
        sequence: u32,
        body: &impl Wire,
    ) -> Output {
        self.send(connection, &encode_message(kind, sequence, body).unwrap())
    }

    fn request(&mut self, connection: &mut Connection, sequence: u32, request: &Request) -> Output {
        self.send(connection, &frame(MessageType::Request, sequence, &request.encode(7).unwrap()).unwrap())
    }

    /// Logs in; returns the last frame.
    fn login(
        &mut self,
        connection: &mut Connection,
        name: &str,
        password: &[u8],
    ) -> Result<(LoginOk, SessionKeys), LoginError> {
        let context = LoginContext::new(&self.mds.server_id(), &CHANNEL);
        let (start, client) =
            start_login(&mut self.rng, SUITE_STANDARD, &user(name), password, context).unwrap();
        let output = self.message(connection, MessageType::LoginStart, 0, &start);
        let challenge: LoginChallenge = answer(&output, MessageType::LoginChallenge)?;
        let finish = match client.challenge(&mut self.rng, challenge.clone()) {
            Ok((finish, proven)) => (finish, Some(proven)),
            // A client that does not know the password sends a guess.
            Err(_) => (
                sealstone_mds_protocol::login::LoginFinish { login_id: challenge.login_id, ke3: [1; 64] },
                None,
            ),
        };
        let output = self.message(connection, MessageType::LoginFinish, 0, &finish.0);
        let ok: LoginOk = answer(&output, MessageType::LoginOk)?;
        let keys = finish.1.expect("only a proof is accepted").confirm(&ok).unwrap();
        Ok((ok, keys))
    }
}

pub(super) fn answer<T: Wire>(output: &Output, kind: MessageType) -> Result<T, LoginError> {
    let bytes = output.frame.as_ref().expect("every frame is answered");
    let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
    let header = FrameHeader::parse(header).unwrap();
    if header.kind == MessageType::Error {
        return Err(decode_message(body).unwrap());
    }
    assert_eq!(header.kind, kind);
    Ok(decode_message(body).unwrap())
}

fn response(output: &Output) -> Response {
    let bytes = output.frame.as_ref().expect("every request is answered");
    let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
    assert_eq!(FrameHeader::parse(header).unwrap().kind, MessageType::Response);
    Response::decode(body).unwrap().1
}

#[test]
fn login_request_logout() {
    let mut world = World::empty();
    let mut connection = world.connect();
    let hello = Request::Hello { oldest: 1, newest: 1, software: Default::default() };
    assert!(matches!(
        response(&world.request(&mut connection, 0, &hello)),
        Response::Hello { version: 1, .. }
    ));
    let early = world.request(&mut connection, 0, &Request::WhoAmI {});
    assert!(
        matches!(response(&early), Response::Failed { failure } if failure.code == ErrorCode::NotLoggedIn)
    );
    let (ok, _) = world.login(&mut connection, "admin", b"secret").unwrap();
    assert_eq!(ok.roles.as_str(), "admin");
    let identity = response(&world.request(&mut connection, 1, &Request::WhoAmI {}));
    assert!(
        matches!(identity, Response::WhoAmI { role: sealstone_mds_protocol::Role::Admin, session, .. } if session == ok.session)
    );
    let logout = Logout { session: ok.session, flags: 0 };
    let output = world.message(&mut connection, MessageType::Logout, 2, &logout);
    assert!(output.close);
    let ended = LogoutOk { session: logout.session, revoking: None };
    assert_eq!(answer::<LogoutOk>(&output, MessageType::LogoutOk), Ok(ended));
    let late = world.request(&mut connection, 3, &Request::WhoAmI {});
    assert!(late.close);
}

#[test]
fn wrong_password_and_unknown_user_look_alike() {
    let mut world = World::empty();
    for (name, password) in [("admin", b"wrong".as_slice()), ("nobody", b"secret")] {
        let mut connection = world.connect();
        let error = world.login(&mut connection, name, password).err();
        assert_eq!(error, Some(LoginError { code: LoginErrorCode::Refused, retry_ms: 0 }));
    }
}

#[test]
fn guesses_are_limited_per_user_known_or_not() {
    let (mut world, seen) = World::empty().audited(|_| {});
    for name in ["admin", "nobody"] {
        let mut limited = None;
        for _ in 0..7 {
            let mut connection = world.connect();
            match world.login(&mut connection, name, b"wrong") {
                Err(LoginError { code: LoginErrorCode::Busy, retry_ms }) => {
                    limited = Some(retry_ms);
                    break;
                }
                Err(error) => assert_eq!(error.code, LoginErrorCode::Refused),
                Ok(_) => panic!("logged in"),
            }
        }
        assert_eq!(limited, Some(1_000), "{name}");
        assert_eq!(seen.last(), (name.to_owned(), "login".to_owned(), "limited".to_owned()));
    }
}

/// Sends LOGIN_STARTs for an account from many addresses of a few networks, as fast as possible.
fn flood(world: &mut World, name: &str, attempts: u32) -> u32 {
    let context = LoginContext::new(&world.mds.server_id(), &CHANNEL);
    let (start, _) = start_login(&mut world.rng, SUITE_STANDARD, &user(name), b"guess", context).unwrap();
    let mut through = 0;
    for n in 0..attempts {
        let address = std::net::IpAddr::from([10, 0, (n % 20) as u8, (n / 20 % 250) as u8]);
        let mut connection = Connection::new(CHANNEL, address.into());
        let output = world.message(&mut connection, MessageType::LoginStart, 0, &start);
        through += u32::from(answer::<LoginChallenge>(&output, MessageType::LoginChallenge).is_ok());
    }
    through
}

#[test]
fn flood_does_not_block_first_login_of_network() {
    let mut world = World::empty();
    let guesses = flood(&mut world, "admin", 5_000);
    assert!(guesses <= 20 * 8, "{guesses} guesses through");
    let home: LoginSource = std::net::IpAddr::from([192, 0, 2, 1]).into();
    let mut connection = Connection::new(CHANNEL, home);
    world.login(&mut connection, "admin", b"secret").unwrap();
    // Known addresses survive a restart, and a flood from the same network.
    world.mds.settle().unwrap();
    world.restart();
    for host in 2..100 {
        let mut connection = Connection::new(CHANNEL, std::net::IpAddr::from([192, 0, 2, host]).into());
        let context = LoginContext::new(&world.mds.server_id(), &CHANNEL);
        let (start, _) =
            start_login(&mut world.rng, SUITE_STANDARD, &user("admin"), b"guess", context).unwrap();
        world.message(&mut connection, MessageType::LoginStart, 0, &start);
    }
    let mut connection = Connection::new(CHANNEL, home);
    world.login(&mut connection, "admin", b"secret").unwrap();
}

#[test]
fn invented_names_keep_familiar_addresses() {
    let mut world = World::empty();
    let home: LoginSource = std::net::IpAddr::from([192, 0, 2, 1]).into();
    let mut connection = Connection::new(CHANNEL, home);
    world.login(&mut connection, "admin", b"secret").unwrap();
    let before = world.disk.dump().len();
    for n in 0..500 {
        flood(&mut world, &format!("invented{n}"), 2);
    }
    assert_eq!(world.disk.dump().len(), before, "names that do not exist are not stored");
    flood(&mut world, "admin", 5_000);
    let mut connection = Connection::new(CHANNEL, home);
    world.login(&mut connection, "admin", b"secret").unwrap();
}

#[test]
fn session_is_resumed_after_restart() {
    let mut world = World::empty();
    let mut connection = world.connect();
    let (ok, keys) = world.login(&mut connection, "admin", b"secret").unwrap();
    for restart in [false, true] {
        if restart {
            world.mds.settle().unwrap();
            world.restart();
        }
        let mut connection = world.connect();
        let resume = keys.resume(ok.session, &CHANNEL, [8; 16]);
        let output = world.message(&mut connection, MessageType::Resume, 0, &resume);
        let resumed: LoginOk = answer(&output, MessageType::LoginOk).unwrap();
        keys.check_resumed(&resume, &CHANNEL, &resumed).unwrap();
        let identity = response(&world.request(&mut connection, 1, &Request::WhoAmI {}));
        assert!(matches!(identity, Response::WhoAmI { .. }));
        // On another channel the proof is invalid.
        let mut elsewhere = Connection::new(ChannelBinding([6; 32]), LoginSource::default());
        let output = world.message(&mut elsewhere, MessageType::Resume, 0, &resume);
        let error = answer::<LoginOk>(&output, MessageType::LoginOk).unwrap_err();
        assert_eq!(error.code, LoginErrorCode::SessionExpired);
        assert!(output.close);
    }
}

#[test]
fn logout_ends_session_on_all_connections() {
    let (mut world, seen) = World::empty().audited(|_| {});
    let (mut first, mut second) = (world.connect(), world.connect());
    let (ok, keys) = world.login(&mut first, "admin", b"secret").unwrap();
    let resume = keys.resume(ok.session, &CHANNEL, [8; 16]);
    world.message(&mut second, MessageType::Resume, 0, &resume);
    world.message(&mut first, MessageType::Logout, 1, &Logout { session: ok.session, flags: 0 });
    let output = world.request(&mut second, 1, &Request::WhoAmI {});
    assert!(
        matches!(response(&output), Response::Failed { failure } if failure.code == ErrorCode::NotLoggedIn)
    );
    assert!(output.close);
    assert_eq!(seen.last().2, "NotLoggedIn");
    let mut third = world.connect();
    let output = world.message(&mut third, MessageType::Resume, 0, &resume);
    assert!(answer::<LoginOk>(&output, MessageType::LoginOk).is_err());
    assert_eq!(seen.last().2, "no-session");
}

#[test]
fn late_proof_is_refused() {
    let (mut world, seen) = World::empty().audited(|_| {});
    let mut connection = world.connect();
    let context = LoginContext::new(&world.mds.server_id(), &CHANNEL);
    let (start, client) =
        start_login(&mut world.rng, SUITE_STANDARD, &user("admin"), b"secret", context).unwrap();
    let output = world.message(&mut connection, MessageType::LoginStart, 0, &start);
    let challenge = answer(&output, MessageType::LoginChallenge).unwrap();
    let (finish, _) = client.challenge(&mut world.rng, challenge).unwrap();
    world.now += world.mds.config.challenge_ms + 1;
    let output = world.message(&mut connection, MessageType::LoginFinish, 0, &finish);
    assert_eq!(answer::<LoginOk>(&output, MessageType::LoginOk).unwrap_err().code, LoginErrorCode::Timeout);
    assert!(output.close);
    assert_eq!(seen.last().2, "late");
}

#[test]
fn unexpected_message_or_sequence_closes_connection() {
    let mut world = World::empty();
    let logout = Logout { session: [0; 16], flags: 0 };
    let mut connection = world.connect();
    assert!(world.message(&mut connection, MessageType::Logout, 0, &logout).close);
    let mut connection = world.connect();
    assert!(world.request(&mut connection, 1, &Request::WhoAmI {}).close, "no session, no sequence");
    for sequence in [0, 2, u32::MAX] {
        let mut connection = world.connect();
        world.login(&mut connection, "admin", b"secret").unwrap();
        assert!(world.request(&mut connection, sequence, &Request::WhoAmI {}).close);
    }
    let mut connection = world.connect();
    world.login(&mut connection, "admin", b"secret").unwrap();
    assert!(!world.request(&mut connection, 1, &Request::WhoAmI {}).close);
    assert!(world.request(&mut connection, 1, &Request::WhoAmI {}).close, "a repeat");
}

#[test]
fn malformed_request_keeps_session_open() {
    let mut world = World::empty();
    let mut connection = world.connect();
    world.login(&mut connection, "admin", b"secret").unwrap();
    let mut body = Request::WhoAmI {}.encode(7).unwrap();
    body[8..10].copy_from_slice(&0x7FFFu16.to_be_bytes());
    let output = world.send(&mut connection, &frame(MessageType::Request, 1, &body).unwrap());
    assert!(matches!(response(&output), Response::Failed { failure } if failure.code == ErrorCode::Version));
    assert!(!output.close);
    assert!(matches!(
        response(&world.request(&mut connection, 2, &Request::WhoAmI {})),
        Response::WhoAmI { .. }
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_frames_never_panic_or_log_in(
        frames in prop::collection::vec((0..MessageType::ALL.len(), prop::collection::vec(any::<u8>(), 0..200)), 1..4)
    ) {
        let mut world = shared_world().lock();
        let mut connection = world.connect();
        for (kind, body) in frames {
            let output = world.send(&mut connection, &frame(MessageType::ALL[kind], 0, &body).unwrap());
            prop_assert!(!connection.is_active());
            if output.close {
                break;
            }
        }
    }
}

fn shared_world() -> &'static parking_lot::Mutex<World> {
    static WORLD: std::sync::OnceLock<parking_lot::Mutex<World>> = std::sync::OnceLock::new();
    WORLD.get_or_init(|| parking_lot::Mutex::new(World::empty()))
}

/// A client with a wrong password notices it in the challenge and sends no proof; the attempt is
/// still recorded.
#[test]
fn abandoned_login_is_recorded_and_counted() {
    let (mut world, seen) = World::empty().audited(|_| {});
    let start = |world: &mut World, name: &str| {
        let context = LoginContext::new(&world.mds.server_id(), &CHANNEL);
        start_login(&mut world.rng, SUITE_STANDARD, &user(name), b"guess", context).unwrap().0
    };
    // Disconnected after the challenge.
    let first = start(&mut world, "admin");
    let mut connection = world.connect();
    world.message(&mut connection, MessageType::LoginStart, 0, &first);
    connection.ended(&world.mds, world.now);
    // Another message after the challenge.
    let second = start(&mut world, "nobody");
    let mut connection = world.connect();
    world.message(&mut connection, MessageType::LoginStart, 0, &second);
    assert!(world.message(&mut connection, MessageType::LoginStart, 0, &second).close);
    connection.ended(&world.mds, world.now);
    // The right password: only a login is recorded.
    let mut connection = world.connect();
    world.login(&mut connection, "admin", b"secret").unwrap();
    connection.ended(&world.mds, world.now);
    assert_eq!(seen.lines(), ["admin login abandoned", "nobody login out-of-place", "admin login ok"]);
    let page = world.mds.counters().render();
    assert!(page.contains("sealstone_mds_logins_refused_total 2\n"), "{page}");
}
