//! The paper's login, frame by frame: what it accepts, and what it refuses with which reason.

mod attacks;

use std::net::IpAddr;
use std::sync::Arc;

use sealstone_login::paper::{
    Addresses, Algorithms, AwaitingCookie, AwaitingResponse, AwaitingSession, Channel, ClientTerms,
    OakleyGroup, Opened, PassphraseKey,
};
use sealstone_mds_protocol::paper::{
    CLIENT_IDENTITY, ContinueOk, CookieRequest, Identity, Init, InitResponse, PaperError, PaperErrorCode,
    PaperHeader, PaperLogout, PaperType, SERVER_IDENTITY,
};
use sealstone_mds_protocol::{
    ErrorCode, HEADER_BYTES, Request, Response, Secret, Wire, WireWriter, decode_message, encode_message,
};

use super::accounts::register;
use super::audit_log::Seen;
use super::world::{ADMIN, World, path, user};
use crate::{Mds, Output, PaperConnection, PaperListener};

const PASSPHRASE: &str = "correct horse battery";

struct Paper {
    world: World,
    listener: Arc<PaperListener>,
    seen: Arc<Seen>,
}

impl Paper {
    /// Creates a server with an account `carol` that has a key.
    fn new() -> Self {
        let (mut world, seen) = World::empty().audited(|config| config.paper_login = true);
        register(&mut world, ADMIN, "carol", false, false);
        let listener = Arc::new(PaperListener::new(false, &mut world.rng));
        let mut paper = Self { world, listener, seen };
        let answer = paper.set_key("carol", Some(PASSPHRASE));
        assert!(matches!(answer, Response::Done {}), "{answer:?}");
        paper
    }

    fn set_key(&mut self, name: &str, passphrase: Option<&str>) -> Response {
        let key = passphrase.map(|passphrase| {
            let key = PassphraseKey::derive(&user(name), passphrase);
            Secret::new(key.to_bytes().to_vec()).unwrap()
        });
        self.world.ask(ADMIN, Request::UserSetPaperKey { name: user(name), key })
    }

    fn connect_from(&self, client: [u8; 4]) -> PaperConnection {
        let addresses = Addresses { client: IpAddr::from(client), server: IpAddr::from([192, 0, 2, 1]) };
        PaperConnection::new(self.listener.clone(), addresses)
    }

    fn connect(&self) -> PaperConnection {
        self.connect_from([192, 0, 2, 10])
    }

    fn send(&mut self, connection: &mut PaperConnection, frame: &[u8]) -> Output {
        let (header, body) = split(frame);
        connection.receive(&self.world.mds, &header, body, self.world.now, &mut self.world.rng)
    }

    fn message(&mut self, to: &mut PaperConnection, kind: PaperType, message: &impl Wire) -> Output {
        self.send(to, &encode_message(kind, 0, message).unwrap())
    }

    fn init(&mut self, terms: ClientTerms, passphrase: &str) -> (Init, AwaitingResponse) {
        let key = PassphraseKey::derive(&terms.user, passphrase);
        AwaitingResponse::start(&mut self.world.rng, terms, key).unwrap()
    }

    /// Runs a login up to the confirmation.
    fn half_open(&mut self, connection: &mut PaperConnection) -> (Vec<u8>, AwaitingSession) {
        let (init, client) = self.init(terms("carol"), PASSPHRASE);
        let output = self.message(connection, PaperType::Init, &init);
        let response: InitResponse = answer(&output, PaperType::Response).unwrap();
        let (confirm, client) = client.answer(response, self.world.now, self.world.now).unwrap();
        (encode_message(PaperType::Confirm, 0, &confirm).unwrap(), client)
    }

    fn login(&mut self, connection: &mut PaperConnection) -> Opened {
        let (confirm, client) = self.half_open(connection);
        let output = self.send(connection, &confirm);
        let frame = output.frame.unwrap();
        let (header, body) = split(&frame);
        client.open(&header, body).unwrap()
    }

    fn data(&mut self, to: &mut PaperConnection, channel: &mut Channel, request: &Request) -> Response {
        let body = request.encode(7).unwrap();
        let frame = channel.sealer.seal(&mut self.world.rng, PaperType::Data, &body).unwrap();
        let output = self.send(to, &frame);
        let frame = output.frame.unwrap();
        let (header, body) = split(&frame);
        assert_eq!(header.kind, PaperType::Data);
        Response::decode(&channel.opener.open(&header, body).unwrap()).unwrap().1
    }

    /// Asserts that the answer was only this code, that the connection is closed, and what was
    /// recorded for `user`.
    fn refused(&self, output: &Output, code: PaperErrorCode, user: &str, verdict: &str) {
        let error = answer::<PaperError>(output, PaperType::Error).unwrap();
        assert_eq!(error.code, code);
        assert_eq!(error.text.as_str(), "");
        assert!(output.close);
        let (identity, _, why) = self.seen.last();
        assert_eq!((identity.as_str(), why.as_str()), (user, verdict));
    }
}

fn terms(name: &str) -> ClientTerms {
    ClientTerms {
        user: user(name),
        client: Identity::new(CLIENT_IDENTITY).unwrap(),
        server: Identity::new(SERVER_IDENTITY).unwrap(),
        addresses: Addresses { client: IpAddr::from([192, 0, 2, 10]), server: IpAddr::from([192, 0, 2, 1]) },
        group: OakleyGroup::Modp1024,
        offers: Algorithms::offers(),
    }
}

fn split(frame: &[u8]) -> (PaperHeader, &[u8]) {
    let (header, body) = frame.split_first_chunk::<HEADER_BYTES>().unwrap();
    (PaperHeader::parse(header).unwrap(), body)
}

fn answer<T: Wire>(output: &Output, kind: PaperType) -> Result<T, PaperErrorCode> {
    let frame = output.frame.as_ref().expect("every frame is answered");
    let (header, body) = split(frame);
    if header.kind == PaperType::Error && kind != PaperType::Error {
        return Err(decode_message::<PaperError>(body).unwrap().code);
    }
    assert_eq!(header.kind, kind);
    Ok(decode_message(body).unwrap())
}

fn content(message: &impl Wire) -> Vec<u8> {
    let mut out = WireWriter::new();
    message.put(&mut out);
    out.finish(1024).unwrap()
}

#[test]
fn login_request_logout() {
    let mut paper = Paper::new();
    let mut connection = paper.connect();
    let opened = paper.login(&mut connection);
    assert!(connection.is_active());
    let mut channel = opened.channel;
    let identity = paper.data(&mut connection, &mut channel, &Request::WhoAmI {});
    assert!(matches!(identity, Response::WhoAmI { ref user, session, .. }
        if user.as_str() == "carol" && session == opened.terms.session));
    let made = Request::MakeDir { path: path("/carols"), parents: false, mode: 0o755 };
    assert!(matches!(paper.data(&mut connection, &mut channel, &made), Response::Stat { .. }));
    let logout = PaperLogout { session: opened.terms.session };
    let frame = channel.sealer.seal(&mut paper.world.rng, PaperType::Logout, &content(&logout)).unwrap();
    let output = paper.send(&mut connection, &frame);
    assert!(output.close);
    let frame = output.frame.unwrap();
    let (header, body) = split(&frame);
    assert_eq!(header.kind, PaperType::LogoutOk);
    assert_eq!(*channel.opener.open(&header, body).unwrap(), content(&logout));
    // The session is over on every connection, and its keys are deleted.
    let (message, _) = opened.session.resume(&mut paper.world.rng, opened.terms.session);
    let mut another = paper.connect();
    let output = paper.message(&mut another, PaperType::Continue, &message);
    assert_eq!(answer::<ContinueOk>(&output, PaperType::ContinueOk), Err(PaperErrorCode::SessionExpired));
    assert!(paper.world.disk.dump().iter().all(|(key, _)| key[0] != b'q'));
    let verdicts = paper.seen.lines();
    assert!(verdicts.contains(&"carol paper-login ok".to_owned()), "{verdicts:?}");
    assert!(verdicts.contains(&"carol logout ok".to_owned()), "{verdicts:?}");
}

#[test]
fn session_continues_on_other_connection_after_restart() {
    let mut paper = Paper::new();
    let mut connection = paper.connect();
    let opened = paper.login(&mut connection);
    for restart in [false, true] {
        if restart {
            paper.world.mds =
                Mds::open(Arc::new(paper.world.disk.clone()), paper.world.mds.config.clone()).unwrap();
        }
        // From another address: a session is not bound to one.
        let mut another = paper.connect_from([198, 51, 100, 7]);
        let (message, client) = opened.session.resume(&mut paper.world.rng, opened.terms.session);
        let output = paper.message(&mut another, PaperType::Continue, &message);
        let ok = answer(&output, PaperType::ContinueOk).unwrap();
        let (mut channel, _) = client.answer(&ok, paper.world.now, paper.world.now).unwrap();
        let identity = paper.data(&mut another, &mut channel, &Request::WhoAmI {});
        assert!(matches!(identity, Response::WhoAmI { .. }), "{identity:?}");
    }
}

#[test]
fn session_cannot_be_resumed_in_other_profile() {
    let mut paper = Paper::new();
    let mut connection = paper.connect();
    let opened = paper.login(&mut connection);
    // The modern profile's keys of this session are random.
    let (_, keys) = paper
        .world
        .mds
        .sessions
        .find(&paper.world.disk, &opened.terms.session, u64::MAX, paper.world.now)
        .unwrap()
        .unwrap();
    let stored = keys.to_bytes();
    assert!(stored.windows(20).all(|window| window != opened.session.skeyid()));
    // A session of the modern profile has no keys of this one.
    let (message, _) = opened.session.resume(&mut paper.world.rng, ADMIN);
    let mut another = paper.connect();
    let output = paper.message(&mut another, PaperType::Continue, &message);
    paper.refused(&output, PaperErrorCode::SessionExpired, "", "no-session");
}

/// A stolen passphrase of this profile must not give access to an account of the other.
#[test]
fn paper_profile_changes_no_account() {
    let mut paper = Paper::new();
    let mut connection = paper.connect();
    let mut channel = paper.login(&mut connection).channel;
    let requests = [
        Request::UserRegisterStart { name: user("carol"), request: [0; 32], proof: None },
        Request::UserSetPaperKey { name: user("carol"), key: None },
        Request::UserList { after: None, limit: 9 },
        Request::UserRemove { name: user("carol") },
    ];
    for request in requests {
        let response = paper.data(&mut connection, &mut channel, &request);
        assert!(matches!(response, Response::Failed { failure } if failure.code == ErrorCode::Denied));
        assert_eq!(paper.seen.last().2, "Denied");
    }
}

#[test]
fn only_administrators_set_paper_keys() {
    let mut paper = Paper::new();
    let denied =
        |response| matches!(response, Response::Failed { failure } if failure.code == ErrorCode::Denied);
    assert!(denied(paper.set_key("admin", Some("x"))));
    assert_eq!(paper.seen.last().2, "Denied");
    let missing = paper.set_key("nobody", Some("x"));
    assert!(matches!(missing, Response::Failed { failure } if failure.code == ErrorCode::NotFound));
    let short = Secret::new(vec![1; 19]).unwrap();
    let response = paper.world.ask(ADMIN, Request::UserSetPaperKey { name: user("carol"), key: Some(short) });
    assert!(matches!(response, Response::Failed { failure } if failure.code == ErrorCode::Invalid));
    paper.world.mds.config.paper_login = false;
    assert!(denied(paper.set_key("carol", Some("x"))));
    assert!(matches!(paper.set_key("carol", None), Response::Done {}), "taking away is always allowed");
    let mut connection = paper.connect();
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let output = paper.message(&mut connection, PaperType::Init, &init);
    paper.refused(&output, PaperErrorCode::Cookie, "carol", "unknown-user");
}

#[test]
fn key_change_and_account_removal_end_sessions() {
    let mut paper = Paper::new();
    for end in [0, 1] {
        let mut connection = paper.connect();
        let mut channel = paper.login(&mut connection).channel;
        if end == 0 {
            paper.set_key("carol", Some(PASSPHRASE));
        } else {
            paper.world.ask(ADMIN, Request::UserRemove { name: user("carol") });
        }
        let response = paper.data(&mut connection, &mut channel, &Request::WhoAmI {});
        assert!(matches!(response, Response::Failed { failure } if failure.code == ErrorCode::NotLoggedIn));
        assert_eq!(paper.seen.last().2, "NotLoggedIn");
        assert!(!connection.is_active());
    }
    assert!(paper.world.disk.dump().iter().all(|(key, _)| key[0] != b'p' && key[0] != b'q'));
}

/// A1, A9: the answers are the same, the log entries are not.
#[test]
fn refused_paper_logins_look_alike() {
    let mut paper = Paper::new();
    for (name, passphrase, from, verdict) in [
        ("carol", "wrong", [192, 0, 2, 10], "cookie-mismatch"),
        ("carol", PASSPHRASE, [192, 0, 2, 99], "cookie-mismatch"),
        ("nobody", PASSPHRASE, [192, 0, 2, 10], "unknown-user"),
        ("admin", PASSPHRASE, [192, 0, 2, 10], "unknown-user"),
    ] {
        let (init, _) = paper.init(terms(name), passphrase);
        let mut connection = paper.connect_from(from);
        let output = paper.message(&mut connection, PaperType::Init, &init);
        paper.refused(&output, PaperErrorCode::Cookie, name, verdict);
        let mut connection = paper.connect_from(from);
        let request = CookieRequest { client_cookie: init.client_cookie, user: init.user };
        let output = paper.message(&mut connection, PaperType::CookieRequest, &request);
        paper.refused(&output, PaperErrorCode::Cookie, name, verdict);
    }
    assert_eq!(paper.listener.half_open_counts(), (0, 0), "nothing is remembered of any");
    let page = paper.listener.render();
    assert!(page.contains("sealstone_mds_paper_cookie_mismatches_total 8\n"), "{page}");
    assert!(page.contains("sealstone_mds_insecure_profile{mechanism=\"obs-login\"} 1\n"), "{page}");
}

#[test]
fn conservative_login_counts_as_one_attempt() {
    let mut paper = Paper::new();
    for _ in 0..4 {
        let mut connection = paper.connect();
        let key = PassphraseKey::derive(&user("carol"), PASSPHRASE);
        let (request, client) = AwaitingCookie::start(terms("carol"), key);
        let output = paper.message(&mut connection, PaperType::CookieRequest, &request);
        let cookies = answer(&output, PaperType::CookieResponse).unwrap();
        let (init, _) = client.answer(&mut paper.world.rng, &cookies).unwrap();
        assert!(
            answer::<InitResponse>(
                &paper.message(&mut connection, PaperType::Init, &init),
                PaperType::Response
            )
            .is_ok()
        );
    }
    let mut connection = paper.connect();
    let key = PassphraseKey::derive(&user("carol"), PASSPHRASE);
    let (request, _) = AwaitingCookie::start(terms("carol"), key);
    assert!(!paper.message(&mut connection, PaperType::CookieRequest, &request).close);
    let output = paper.message(&mut connection, PaperType::CookieRequest, &request);
    paper.refused(&output, PaperErrorCode::Malformed, "carol", "out-of-place");
}

#[test]
fn guesses_are_limited_with_retry_delay() {
    let mut paper = Paper::new();
    let mut limited = None;
    for _ in 0..7 {
        let (init, _) = paper.init(terms("carol"), "wrong");
        let mut connection = paper.connect();
        let output = paper.message(&mut connection, PaperType::Init, &init);
        let error: PaperError = answer(&output, PaperType::Error).unwrap();
        if error.code == PaperErrorCode::Busy {
            limited = Some(error.retry_ms);
            paper.refused(&output, PaperErrorCode::Busy, "carol", "limited");
            break;
        }
    }
    assert_eq!(limited, Some(1_000));
}
