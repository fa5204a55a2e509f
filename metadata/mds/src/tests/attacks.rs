//! Attacks on the modern login and its channel, frame by frame. Each is refused with its reason in
//! the log and only a code on the wire. docs/standards/login-attacks.md has the list.

use std::sync::Arc;

use sealstone_login::{
    ChannelBinding, ClientStarted, LoginContext, LoginFailure, SessionKeys, start_login, start_registration,
};
use sealstone_mds_protocol::login::{
    LoginAgain, LoginChallenge, LoginError, LoginErrorCode, LoginFinish, LoginOk, LoginStart, Logout,
    RegisterResponse, RegisterStart, RegisterUpload, Resume, Retry, SUITE_LIGHT, SUITE_SERVICE_A,
};
use sealstone_mds_protocol::{
    FrameHeader, HEADER_BYTES, MessageType, Request, Response, Role, Secret, Wire, WireWriter,
    encode_message, frame,
};

use super::accounts::register;
use super::audit_log::Seen;
use super::logins::{CHANNEL, answer};
use super::world::{ADMIN, World, user};
use crate::{Connection, LoginSource, Output};

/// The password of all accounts that `register` creates.
const PASSWORD: &[u8] = b"pw";

struct Attack {
    world: World,
    seen: Arc<Seen>,
}

impl Attack {
    /// Creates a server with the accounts `carol` and `dave`, which have the same password.
    fn new() -> Self {
        let (mut world, seen) = World::empty().audited(|_| {});
        register(&mut world, ADMIN, "carol", false, false);
        register(&mut world, ADMIN, "dave", false, false);
        Self { world, seen }
    }

    fn context(&self) -> LoginContext {
        LoginContext::new(&self.world.mds.server_id(), &CHANNEL)
    }

    fn start(&mut self, name: &str) -> (LoginStart, ClientStarted) {
        // Meanwhile the throttle permits attempts again.
        self.world.now += 12_000;
        let context = self.context();
        start_login(&mut self.world.rng, SUITE_LIGHT, &user(name), PASSWORD, context).unwrap()
    }

    fn message(&mut self, to: &mut Connection, kind: MessageType, message: &impl Wire) -> Output {
        self.world.message(to, kind, 0, message)
    }

    /// Runs a login up to its challenge.
    fn challenged(
        &mut self,
        connection: &mut Connection,
        name: &str,
    ) -> (LoginStart, LoginChallenge, ClientStarted) {
        let (start, client) = self.start(name);
        let output = self.message(connection, MessageType::LoginStart, &start);
        (start, answer(&output, MessageType::LoginChallenge).unwrap(), client)
    }

    /// Runs a whole login; returns the messages and the result.
    fn login(&mut self, connection: &mut Connection) -> (LoginStart, LoginFinish, LoginOk, SessionKeys) {
        let (start, challenge, client) = self.challenged(connection, "carol");
        let (finish, proven) = client.challenge(&mut self.world.rng, challenge).unwrap();
        let output = self.message(connection, MessageType::LoginFinish, &finish);
        let ok: LoginOk = answer(&output, MessageType::LoginOk).unwrap();
        let keys = proven.confirm(&ok).unwrap();
        (start, finish, ok, keys)
    }

    /// Asserts that the answer was only this code, that the connection is closed, and what was
    /// recorded.
    #[track_caller]
    fn refused(&self, output: &Output, code: LoginErrorCode, user: &str, action: &str, verdict: &str) {
        assert_eq!(
            answer::<LoginOk>(output, MessageType::LoginOk),
            Err(LoginError { code, retry_ms: 0 }),
            "{verdict}"
        );
        assert!(output.close, "{verdict}");
        assert_eq!(self.seen.last(), (user.to_owned(), action.to_owned(), verdict.to_owned()));
    }

    fn violations(&self) -> String {
        let page = self.world.mds.counters().render();
        page.lines()
            .find(|line| line.starts_with("sealstone_mds_protocol_violations_total"))
            .unwrap()
            .to_owned()
    }
}

fn body(message: &impl Wire) -> Vec<u8> {
    let mut out = WireWriter::new();
    message.put(&mut out);
    out.finish(4096).unwrap()
}

#[test]
fn invalid_and_oversize_frames_are_refused() {
    let mut attack = Attack::new();
    let (start, _) = attack.start("carol");
    let honest = encode_message(MessageType::LoginStart, 0, &start).unwrap();
    let attacks = [
        (0, b'G', "foreign-frame", LoginErrorCode::Malformed),
        (4, 9, "foreign-frame", LoginErrorCode::Version),
        // A frame of the paper's profile.
        (5, 0, "foreign-frame", LoginErrorCode::Version),
        (6, 0x7F, "foreign-frame", LoginErrorCode::Malformed),
        (7, 1, "foreign-frame", LoginErrorCode::Malformed),
        (8, 1, "oversize", LoginErrorCode::Malformed),
    ];
    for (at, byte, verdict, code) in attacks {
        let mut header: [u8; HEADER_BYTES] = *honest.first_chunk().unwrap();
        header[at] = byte;
        let error = FrameHeader::parse(&header).unwrap_err();
        let mut connection = attack.world.connect();
        let output = connection.reject(&attack.world.mds, error, attack.world.now);
        attack.refused(&output, code, "", "login", verdict);
        let mut connection = attack.world.connect();
        attack.login(&mut connection);
        let output = connection.reject(&attack.world.mds, error, attack.world.now);
        attack.refused(&output, code, "", "session", verdict);
        assert!(!connection.is_active());
    }
    assert_eq!(attack.violations(), "sealstone_mds_protocol_violations_total 12");
}

#[test]
fn truncated_or_extended_login_message_is_malformed() {
    let mut attack = Attack::new();
    let (start, _) = attack.start("carol");
    let resume = Resume { session: [1; 16], nonce: [2; 16], mac: [3; 32] };
    let code = Secret::new(vec![b'a'; 26]).unwrap();
    let register = RegisterStart { user: user("carol"), code, request: [9; 32] };
    let again = LoginAgain { cookie: [1; 40], start: start.clone() };
    let messages = [
        (MessageType::LoginStart, body(&start)),
        (MessageType::LoginAgain, body(&again)),
        (MessageType::Resume, body(&resume)),
        (MessageType::RegisterStart, body(&register)),
    ];
    for (kind, whole) in messages {
        let longer = [&whole[..], &[0]].concat();
        for wrong in (0..whole.len()).map(|at| &whole[..at]).chain([&longer[..]]) {
            let mut connection = attack.world.connect();
            let output = attack.world.send(&mut connection, &frame(kind, 0, wrong).unwrap());
            attack.refused(&output, LoginErrorCode::Malformed, "", "login", "malformed");
        }
    }
    let finish = body(&LoginFinish { login_id: [1; 16], ke3: [2; 64] });
    for at in 0..finish.len() {
        let mut connection = attack.world.connect();
        attack.challenged(&mut connection, "carol");
        let cut = frame(MessageType::LoginFinish, 0, &finish[..at]).unwrap();
        let output = attack.world.send(&mut connection, &cut);
        attack.refused(&output, LoginErrorCode::Malformed, "carol", "login", "malformed");
    }
}

#[test]
fn names_and_codes_over_their_limit_are_malformed() {
    let mut attack = Attack::new();
    let (start, _) = attack.start("carol");
    let rest = body(&start)[2 + 2 + "carol".len()..].to_vec();
    let long = [&start.suite.to_be_bytes()[..], &65u16.to_be_bytes(), &[b'a'; 65], &rest].concat();
    let mut connection = attack.world.connect();
    let output = attack.world.send(&mut connection, &frame(MessageType::LoginStart, 0, &long).unwrap());
    attack.refused(&output, LoginErrorCode::Malformed, "", "login", "malformed");
    // A name that is shorter than its length field.
    let short = [&start.suite.to_be_bytes()[..], &u16::MAX.to_be_bytes(), b"carol"].concat();
    let mut connection = attack.world.connect();
    let output = attack.world.send(&mut connection, &frame(MessageType::LoginStart, 0, &short).unwrap());
    attack.refused(&output, LoginErrorCode::Malformed, "", "login", "malformed");
}

#[test]
fn an_unknown_suite_is_refused_by_name() {
    let mut attack = Attack::new();
    for suite in [0, 3, 0x0100, 0x0103, u16::MAX] {
        let (mut start, _) = attack.start("carol");
        start.suite = suite;
        let mut connection = attack.world.connect();
        let output = attack.message(&mut connection, MessageType::LoginStart, &start);
        attack.refused(&output, LoginErrorCode::Suite, "carol", "login", "suite");
    }
}

/// A suite that the account does not have gets a fake challenge.
#[test]
fn foreign_suite_gets_fake_challenge() {
    let mut attack = Attack::new();
    let (mut start, _) = attack.start("carol");
    start.suite = SUITE_SERVICE_A;
    let mut connection = attack.world.connect();
    let output = attack.message(&mut connection, MessageType::LoginStart, &start);
    let challenge: LoginChallenge = answer(&output, MessageType::LoginChallenge).unwrap();
    let finish = LoginFinish { login_id: challenge.login_id, ke3: [7; 64] };
    let output = attack.message(&mut connection, MessageType::LoginFinish, &finish);
    attack.refused(&output, LoginErrorCode::Refused, "carol", "login", "unknown-user");
}

#[test]
fn identity_and_invalid_points_are_refused() {
    let mut attack = Attack::new();
    // The blinded password, and the client's key share. ristretto255 has prime order, so its only
    // small subgroup is the identity.
    for at in [0..32, 64..96] {
        for byte in [0, 0xFF] {
            let (mut start, _) = attack.start("carol");
            start.ke1[at.clone()].fill(byte);
            let mut connection = attack.world.connect();
            let output = attack.message(&mut connection, MessageType::LoginStart, &start);
            attack.refused(&output, LoginErrorCode::Malformed, "carol", "login", "element");
        }
    }
}

#[test]
fn reflected_server_proof_is_refused() {
    let mut attack = Attack::new();
    let mut connection = attack.world.connect();
    let (_, challenge, _) = attack.challenged(&mut connection, "carol");
    let ke3 = *challenge.ke2.last_chunk().unwrap();
    let reflected = LoginFinish { login_id: challenge.login_id, ke3 };
    let output = attack.message(&mut connection, MessageType::LoginFinish, &reflected);
    attack.refused(&output, LoginErrorCode::Refused, "carol", "login", "refused");
    // The message itself, sent back.
    let mut connection = attack.world.connect();
    let (_, challenge, _) = attack.challenged(&mut connection, "carol");
    let output = attack.message(&mut connection, MessageType::LoginChallenge, &challenge);
    attack.refused(&output, LoginErrorCode::Malformed, "carol", "login", "out-of-place");
}

#[test]
fn replayed_login_opens_no_session() {
    let mut attack = Attack::new();
    let mut connection = attack.world.connect();
    let (start, finish, ..) = attack.login(&mut connection);
    // Replay both messages unchanged.
    let mut connection = attack.world.connect();
    attack.world.now += 12_000;
    let output = attack.message(&mut connection, MessageType::LoginStart, &start);
    let challenge: LoginChallenge = answer(&output, MessageType::LoginChallenge).unwrap();
    let output = attack.message(&mut connection, MessageType::LoginFinish, &finish);
    attack.refused(&output, LoginErrorCode::Refused, "carol", "login", "refused");
    assert_ne!(challenge.login_id, finish.login_id);
    // With the number of the new login, and in a login of another user.
    for name in ["carol", "dave"] {
        let mut connection = attack.world.connect();
        let (_, challenge, _) = attack.challenged(&mut connection, name);
        let spliced = LoginFinish { login_id: challenge.login_id, ke3: finish.ke3 };
        let output = attack.message(&mut connection, MessageType::LoginFinish, &spliced);
        attack.refused(&output, LoginErrorCode::Refused, name, "login", "refused");
    }
}

#[test]
fn proof_of_other_user_is_refused() {
    let mut attack = Attack::new();
    let (mut first, mut second) = (attack.world.connect(), attack.world.connect());
    let (_, challenge, client) = attack.challenged(&mut first, "dave");
    let (_, other, _) = attack.challenged(&mut second, "carol");
    let (finish, _) = client.challenge(&mut attack.world.rng, challenge).unwrap();
    let swapped = LoginFinish { login_id: other.login_id, ke3: finish.ke3 };
    let output = attack.message(&mut second, MessageType::LoginFinish, &swapped);
    attack.refused(&output, LoginErrorCode::Refused, "carol", "login", "refused");
}

/// A man in the middle has separate channels to both ends.
#[test]
fn client_rejects_challenge_of_other_channel() {
    let mut attack = Attack::new();
    let mut elsewhere = Connection::new(ChannelBinding([6; 32]), LoginSource::default());
    let (start, client) = attack.start("carol");
    let output = attack.message(&mut elsewhere, MessageType::LoginStart, &start);
    let challenge: LoginChallenge = answer(&output, MessageType::LoginChallenge).unwrap();
    let login_id = challenge.login_id;
    let verdict = client.challenge(&mut attack.world.rng, challenge).err();
    assert_eq!(verdict, Some(LoginFailure::Refused));
    // A proof of the attacker's own.
    let finish = LoginFinish { login_id, ke3: [0xA5; 64] };
    let output = attack.message(&mut elsewhere, MessageType::LoginFinish, &finish);
    attack.refused(&output, LoginErrorCode::Refused, "carol", "login", "refused");
}

#[test]
fn reordered_login_messages_are_refused() {
    let mut attack = Attack::new();
    let finish = body(&LoginFinish { login_id: [1; 16], ke3: [2; 64] });
    let logout = body(&Logout { session: [0; 16], flags: 0 });
    for (kind, bytes) in [
        (MessageType::LoginFinish, &finish),
        (MessageType::Logout, &logout),
        (MessageType::LoginOk, &finish),
        (MessageType::RegisterUpload, &finish),
        (MessageType::Response, &finish),
    ] {
        let mut connection = attack.world.connect();
        let output = attack.world.send(&mut connection, &frame(kind, 0, bytes).unwrap());
        attack.refused(&output, LoginErrorCode::Malformed, "", "login", "out-of-place");
        // After the end nothing is accepted.
        let output = attack.world.send(&mut connection, &frame(kind, 0, bytes).unwrap());
        attack.refused(&output, LoginErrorCode::Malformed, "", "login", "out-of-place");
    }
    let (start, _) = attack.start("carol");
    let request = Request::WhoAmI {}.encode(1).unwrap();
    for (kind, bytes) in [
        (MessageType::LoginStart, body(&start)),
        (MessageType::Logout, logout),
        (MessageType::Request, request),
    ] {
        let mut connection = attack.world.connect();
        attack.challenged(&mut connection, "carol");
        let output = attack.world.send(&mut connection, &frame(kind, 0, &bytes).unwrap());
        attack.refused(&output, LoginErrorCode::Malformed, "carol", "login", "out-of-place");
    }
}

#[test]
fn repeated_or_skipped_frame_closes_connection() {
    let mut attack = Attack::new();
    let request = Request::WhoAmI {}.encode(1).unwrap();
    for sequences in [&[0][..], &[2], &[1, 1], &[1, 3], &[1, 0], &[u32::MAX]] {
        let mut connection = attack.world.connect();
        attack.login(&mut connection);
        let (last, before) = sequences.split_last().unwrap();
        for sequence in before {
            let sent = frame(MessageType::Request, *sequence, &request).unwrap();
            assert!(!attack.world.send(&mut connection, &sent).close);
        }
        let sent = frame(MessageType::Request, *last, &request).unwrap();
        let output = attack.world.send(&mut connection, &sent);
        attack.refused(&output, LoginErrorCode::Malformed, "", "session", "sequence");
        assert!(!connection.is_active());
    }
    // A sequence number without a session.
    let mut connection = attack.world.connect();
    let output = attack.world.send(&mut connection, &frame(MessageType::Request, 1, &request).unwrap());
    attack.refused(&output, LoginErrorCode::Malformed, "", "login", "sequence");
}

#[test]
fn session_refuses_login_and_foreign_logout() {
    let mut attack = Attack::new();
    let request = Request::WhoAmI {}.encode(1).unwrap();
    let (start, _) = attack.start("carol");
    let logout = body(&Logout { session: [9; 16], flags: 0 });
    for (kind, bytes, verdict) in [
        (MessageType::LoginStart, body(&start), "out-of-place"),
        (
            MessageType::Resume,
            body(&Resume { session: [0; 16], nonce: [0; 16], mac: [0; 32] }),
            "out-of-place",
        ),
        (MessageType::Request, request[..4].to_vec(), "malformed"),
        (MessageType::Logout, logout[..7].to_vec(), "malformed"),
        (MessageType::Logout, logout, "other-session"),
    ] {
        let mut connection = attack.world.connect();
        let (_, _, ok, keys) = attack.login(&mut connection);
        let output = attack.world.send(&mut connection, &frame(kind, 1, &bytes).unwrap());
        attack.refused(&output, LoginErrorCode::Malformed, "", "session", verdict);
        // The session continues on a connection of its owner.
        let mut again = attack.world.connect();
        let resume = keys.resume(ok.session, &CHANNEL, [4; 16]);
        let output = attack.message(&mut again, MessageType::Resume, &resume);
        assert!(answer::<LoginOk>(&output, MessageType::LoginOk).is_ok());
    }
}

#[test]
fn invalid_resumptions_get_the_same_answer() {
    let mut attack = Attack::new();
    let mut connection = attack.world.connect();
    let (_, _, ok, keys) = attack.login(&mut connection);
    let honest = keys.resume(ok.session, &CHANNEL, [4; 16]);
    let another_key = SessionKeys::from_bytes(&[5; 32]).resume(ok.session, &CHANNEL, [4; 16]);
    let mut nonce = honest.clone();
    nonce.nonce[0] ^= 1;
    let mut mac = honest.clone();
    mac.mac[31] ^= 1;
    let elsewhere = keys.resume(ok.session, &ChannelBinding([6; 32]), [4; 16]);
    for forged in [another_key, nonce, mac, elsewhere] {
        let mut connection = attack.world.connect();
        let output = attack.message(&mut connection, MessageType::Resume, &forged);
        attack.refused(&output, LoginErrorCode::SessionExpired, "carol", "resume", "refused");
    }
    let mut unknown = honest.clone();
    unknown.session[0] ^= 1;
    let mut connection = attack.world.connect();
    let output = attack.message(&mut connection, MessageType::Resume, &unknown);
    attack.refused(&output, LoginErrorCode::SessionExpired, "", "resume", "no-session");
    // Replayed on its own channel it finds a session; on another one it is invalid.
    let mut connection = attack.world.connect();
    assert!(!attack.message(&mut connection, MessageType::Resume, &honest).close);
    let output = attack.message(&mut connection, MessageType::Resume, &honest);
    attack.refused(&output, LoginErrorCode::Malformed, "", "session", "sequence");
    let mut elsewhere = Connection::new(ChannelBinding([8; 32]), LoginSource::default());
    let output = attack.message(&mut elsewhere, MessageType::Resume, &honest);
    attack.refused(&output, LoginErrorCode::SessionExpired, "carol", "resume", "refused");
}

#[test]
fn invalid_enrolments_are_refused() {
    let mut attack = Attack::new();
    let lifetime_s = 60_000;
    let kind = sealstone_mds_protocol::AccountKind::Password;
    let invite =
        Request::UserInvite { name: user("erin"), kind, role: Role::User, lifetime_s, replace: false };
    let Response::Invitation { code, .. } = attack.world.ask(ADMIN, invite) else { panic!("no code") };
    let (request, _) = start_registration(&mut attack.world.rng, &user("erin"), b"mine").unwrap();
    let start = |request| RegisterStart { user: user("erin"), code: code.clone(), request };
    let mut connection = attack.world.connect();
    let output = attack.message(&mut connection, MessageType::RegisterStart, &start([0; 32]));
    attack.refused(&output, LoginErrorCode::Malformed, "erin", "enrol", "element");
    let other = Secret::new(vec![b'x'; 26]).unwrap();
    let upload = |name, code: &Secret, suite, byte| {
        let record = [byte; 192];
        body(&RegisterUpload { user: user(name), code: code.clone(), record, suite })
    };
    for (kind, bytes, verdict) in [
        (MessageType::RegisterUpload, upload("erin", &other, SUITE_LIGHT, 1), "other-enrolment"),
        (MessageType::RegisterUpload, upload("carol", &code, SUITE_LIGHT, 1), "other-enrolment"),
        (MessageType::RegisterUpload, upload("erin", &code, SUITE_LIGHT, 0xFF), "record"),
        (MessageType::RegisterUpload, upload("erin", &code, SUITE_SERVICE_A, 1), "record"),
        (MessageType::RegisterUpload, upload("erin", &code, SUITE_LIGHT, 1)[..9].to_vec(), "malformed"),
        (MessageType::LoginFinish, vec![0; 80], "out-of-place"),
    ] {
        attack.world.now += 12_000;
        let mut connection = attack.world.connect();
        let output = attack.message(&mut connection, MessageType::RegisterStart, &start(request));
        let _: RegisterResponse = answer(&output, MessageType::RegisterResponse).unwrap();
        let output = attack.world.send(&mut connection, &frame(kind, 0, &bytes).unwrap());
        attack.refused(&output, LoginErrorCode::Malformed, "erin", "enrol", verdict);
    }
}

#[test]
fn unknown_user_appears_only_in_log() {
    let mut attack = Attack::new();
    for (name, verdict) in [("carol", "refused"), ("nobody", "unknown-user")] {
        let mut connection = attack.world.connect();
        let (_, challenge, _) = attack.challenged(&mut connection, name);
        let finish = LoginFinish { login_id: challenge.login_id, ke3: [1; 64] };
        let output = attack.message(&mut connection, MessageType::LoginFinish, &finish);
        attack.refused(&output, LoginErrorCode::Refused, name, "login", verdict);
    }
}

/// As fast as possible, each for another user.
#[test]
fn login_flood_under_load_uses_no_memory() {
    let mut attack = Attack::new();
    attack.world.mds.config.half_open_max = 0;
    let (template, _) = attack.start("carol");
    let mut flood = |range: core::ops::Range<u32>| {
        for at in range {
            let start = LoginStart { user: user(&format!("u{at}")), ..template.clone() };
            let source = std::net::IpAddr::from(at.to_be_bytes());
            let mut connection = Connection::new(ChannelBinding([at as u8; 32]), source.into());
            // An invented cookie has no effect.
            let made_up = LoginAgain { cookie: [at as u8; 40], start: start.clone() };
            for output in [
                attack.message(&mut connection, MessageType::LoginStart, &start),
                attack.message(&mut connection, MessageType::LoginAgain, &made_up),
            ] {
                assert!(answer::<Retry>(&output, MessageType::Retry).is_ok());
            }
            connection.ended(&attack.world.mds, attack.world.now);
        }
    };
    flood(0..30_000);
    assert_eq!(attack.world.mds.half_open.load(std::sync::atomic::Ordering::Acquire), 0);
    assert_eq!(attack.world.mds.limiter.lock().remembered(), 0);
}
