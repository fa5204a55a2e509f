//! Enrolment codes, keys of services, passwords: which log in, and which no longer do.

use sealstone_login::{LoginContext, SessionKeys, start_login, start_registration};
use sealstone_mds_protocol::login::{
    LoginAgain, LoginChallenge, LoginError, LoginErrorCode, LoginOk, RegisterOk, RegisterResponse,
    RegisterStart, RegisterUpload, Retry, SUITE_LIGHT, SUITE_SERVICE_A, SUITE_SERVICE_B, SessionId,
};
use sealstone_mds_protocol::{AccountKind, ErrorCode, MessageType, Request, Response, Role, Secret};

use super::accounts::{register, register_proving};
use super::logins::{CHANNEL, answer};
use super::world::{ADMIN, ALICE, BOB, World, user};
use crate::Connection;

impl World {
    fn invite(&mut self, name: &str, role: Role, replace: bool) -> Secret {
        let request = Request::UserInvite {
            name: user(name),
            kind: AccountKind::Password,
            role,
            lifetime_s: 60,
            replace,
        };
        match self.ask(ADMIN, request) {
            Response::Invitation { code, expires_ms } => {
                assert_eq!(expires_ms, self.now + 60_000);
                code
            }
            other => panic!("{other:?}"),
        }
    }

    /// Registers on a connection: `uploads` is the account, code and suite of the second message.
    fn enrol(
        &mut self,
        connection: &mut Connection,
        (name, code): (&str, &Secret),
        uploads: (&str, &Secret, u16),
        password: &[u8],
    ) -> Result<RegisterOk, LoginError> {
        let (request, started) = start_registration(&mut self.rng, &user(name), password).unwrap();
        let start = RegisterStart { user: user(name), code: code.clone(), request };
        let output = self.message(connection, MessageType::RegisterStart, 0, &start);
        let response: RegisterResponse = answer(&output, MessageType::RegisterResponse)?;
        let record = started.finish(&mut self.rng, SUITE_LIGHT, &response.response).unwrap();
        let (name, code, suite) = uploads;
        let upload = RegisterUpload { user: user(name), code: code.clone(), record, suite };
        let output = self.message(connection, MessageType::RegisterUpload, 0, &upload);
        answer(&output, MessageType::RegisterOk)
    }

    pub(super) fn enrols(
        &mut self,
        name: &str,
        code: &Secret,
        password: &[u8],
    ) -> Result<(), LoginErrorCode> {
        let mut connection = self.connect();
        let done = self.enrol(&mut connection, (name, code), (name, code, SUITE_LIGHT), password);
        done.map(|_| ()).map_err(|error| error.code)
    }

    pub(super) fn login_with(
        &mut self,
        connection: &mut Connection,
        (name, suite): (&str, u16),
        password: &[u8],
    ) -> Result<(LoginOk, SessionKeys), LoginError> {
        let context = LoginContext::new(&self.mds.server_id(), &CHANNEL);
        let (start, client) = start_login(&mut self.rng, suite, &user(name), password, context).unwrap();
        let output = self.message(connection, MessageType::LoginStart, 0, &start);
        let challenge: LoginChallenge = answer(&output, MessageType::LoginChallenge)?;
        let (finish, proven) = client
            .challenge(&mut self.rng, challenge)
            .map_err(|_| LoginError { code: LoginErrorCode::Refused, retry_ms: 0 })?;
        let output = self.message(connection, MessageType::LoginFinish, 0, &finish);
        let ok: LoginOk = answer(&output, MessageType::LoginOk)?;
        let keys = proven.confirm(&ok).unwrap();
        Ok((ok, keys))
    }

    fn logs_in(&mut self, name: &str, suite: u16, password: &[u8]) -> Option<SessionId> {
        let mut connection = self.connect();
        let result = self.login_with(&mut connection, (name, suite), password);
        connection.ended(&self.mds, self.now);
        result.ok().map(|(ok, _)| ok.session)
    }

    fn key(&mut self, caller: SessionId, name: &str, suite: u16, key: &[u8], replace: bool) -> Response {
        register_proving(self, caller, name, (suite, key), (Role::User, replace), None)
    }

    fn alive(&mut self, session: SessionId) -> bool {
        matches!(self.ask(session, Request::WhoAmI {}), Response::WhoAmI { .. })
    }
}

const REFUSED: Result<(), LoginErrorCode> = Err(LoginErrorCode::Refused);

fn code(response: &Response) -> Option<ErrorCode> {
    match response {
        Response::Failed { failure } => Some(failure.code),
        _ => None,
    }
}

#[test]
fn enrolment_code_sets_password_once() {
    let mut world = World::empty();
    let code = world.invite("carol", Role::ReadOnly, false);
    assert_eq!(world.logs_in("carol", SUITE_LIGHT, b"mine"), None, "nothing to log in with yet");
    let mut connection = world.connect();
    let both = ("carol", &code, SUITE_LIGHT);
    world.enrol(&mut connection, ("carol", &code), both, b"mine").unwrap();
    // On the same connection, immediately.
    let (ok, _) = world.login_with(&mut connection, ("carol", SUITE_LIGHT), b"mine").unwrap();
    assert_eq!(ok.roles.as_str(), "read-only");
    assert_eq!(world.enrols("carol", &code, b"another"), REFUSED, "used up");
    assert!(world.logs_in("carol", SUITE_LIGHT, b"mine").is_some());
    // The code is not stored.
    let shown = code.expose().to_vec();
    assert!(world.disk.dump().iter().all(|(_, value)| !value.windows(26).any(|part| part == shown)));
}

#[test]
fn invalid_codes_get_the_same_refusal() {
    let mut world = World::empty();
    let code = world.invite("carol", Role::User, false);
    let other = world.invite("dave", Role::User, false);
    let wrong = Secret::new(b"aaaaaaaaaaaaaaaaaaaaaaaaaa".to_vec()).unwrap();
    let empty = Secret::new(Vec::new()).unwrap();
    for (name, code) in
        [("nobody", &code), ("carol", &other), ("carol", &wrong), ("admin", &code), ("dave", &empty)]
    {
        assert_eq!(world.enrols(name, code, b"pw"), REFUSED, "{name}");
    }
    world.now += 60_000;
    assert_eq!(world.enrols("carol", &code, b"pw"), REFUSED, "expired");
    // A second code replaces the first.
    let first = world.invite("carol", Role::User, true);
    let second = world.invite("carol", Role::User, true);
    assert_eq!(world.enrols("carol", &first, b"pw"), REFUSED, "replaced");
    world.now += 60_000 - 1;
    assert_eq!(world.enrols("carol", &second, b"pw"), Ok(()));
}

#[test]
fn code_ends_with_its_account() {
    let mut world = World::empty();
    for name in ["carol", "dave"] {
        let code = world.invite(name, Role::User, false);
        world.ask(ADMIN, Request::UserSetEnabled { name: user(name), enabled: false });
        assert_eq!(world.enrols(name, &code, b"pw"), REFUSED);
        world.ask(ADMIN, Request::UserSetEnabled { name: user(name), enabled: true });
        assert_eq!(world.enrols(name, &code, b"pw"), REFUSED, "it does not come back");
        let code = world.invite(name, Role::User, true);
        world.ask(ADMIN, Request::UserRemove { name: user(name) });
        assert_eq!(world.enrols(name, &code, b"pw"), REFUSED);
        world.now += 600_000;
    }
}

#[test]
fn enrolment_halves_must_match() {
    let mut world = World::empty();
    let code = world.invite("carol", Role::User, false);
    let other = world.invite("dave", Role::User, false);
    for (uploads, expected) in [
        (("dave", &code, SUITE_LIGHT), LoginErrorCode::Malformed),
        (("dave", &other, SUITE_LIGHT), LoginErrorCode::Malformed),
        (("carol", &other, SUITE_LIGHT), LoginErrorCode::Malformed),
        // A password under a suite without stretching could be guessed from the record.
        (("carol", &code, SUITE_SERVICE_A), LoginErrorCode::Malformed),
        (("carol", &code, 99), LoginErrorCode::Malformed),
    ] {
        let mut connection = world.connect();
        let error = world.enrol(&mut connection, ("carol", &code), uploads, b"pw").unwrap_err();
        assert_eq!(error.code, expected, "{uploads:?}");
        world.now += 9_000;
    }
    // Nor without the first half, nor too late.
    let code = world.invite("carol", Role::User, true);
    let upload = |world: &mut World, connection: &mut Connection, record| {
        let upload = RegisterUpload { user: user("carol"), code: code.clone(), record, suite: SUITE_LIGHT };
        let output = world.message(connection, MessageType::RegisterUpload, 0, &upload);
        answer::<RegisterOk>(&output, MessageType::RegisterOk).unwrap_err().code
    };
    let mut connection = world.connect();
    assert_eq!(upload(&mut world, &mut connection, [1; 192]), LoginErrorCode::Malformed);
    let mut connection = world.connect();
    let (request, _) = start_registration(&mut world.rng, &user("carol"), b"pw").unwrap();
    let start = RegisterStart { user: user("carol"), code: code.clone(), request };
    let _ = world.message(&mut connection, MessageType::RegisterStart, 0, &start);
    world.now += world.mds.config.challenge_ms + 1;
    assert_eq!(upload(&mut world, &mut connection, [1; 192]), LoginErrorCode::Timeout);
}

#[test]
fn code_guesses_are_limited_like_passwords() {
    let mut world = World::empty();
    let code = world.invite("carol", Role::User, false);
    let wrong = Secret::new(vec![b'a'; 26]).unwrap();
    for name in ["carol", "nobody"] {
        let tries = (0..7).map(|_| world.enrols(name, &wrong, b"pw")).collect::<Vec<_>>();
        assert_eq!(tries.iter().filter(|result| **result == REFUSED).count(), 5, "{name}: {tries:?}");
    }
    assert_eq!(world.enrols("carol", &code, b"pw"), Err(LoginErrorCode::Busy));
}

#[test]
fn codes_have_limits_and_kinds() {
    let mut world = World::empty();
    let invite = |name: &str, lifetime_s, replace| Request::UserInvite {
        name: user(name),
        kind: AccountKind::Password,
        role: Role::User,
        lifetime_s,
        replace,
    };
    assert_eq!(world.refused(ADMIN, invite("c", 0, false)), ErrorCode::Invalid);
    let max = crate::accounts::CODE_LIFETIME_MAX_S;
    assert_eq!(world.refused(ADMIN, invite("c", max + 1, false)), ErrorCode::Limit);
    assert!(matches!(world.ask(ADMIN, invite("c", max, false)), Response::Invitation { .. }));
    assert_eq!(world.refused(ADMIN, invite("c", 9, false)), ErrorCode::Exists);
    assert_eq!(world.refused(ADMIN, invite("nobody", 9, true)), ErrorCode::NotFound);
    assert_eq!(world.refused(ALICE, invite("alice", 9, true)), ErrorCode::Denied);
    assert_eq!(world.key(ADMIN, "backup", SUITE_SERVICE_A, &[7; 32], false), Response::Done {});
    assert_eq!(world.refused(ADMIN, invite("backup", 9, true)), ErrorCode::Invalid);
    for kind in [AccountKind::Service, AccountKind::Directory] {
        let (role, lifetime_s) = (Role::User, 9);
        let request = Request::UserInvite { name: user("d"), kind, role, lifetime_s, replace: false };
        assert_eq!(world.refused(ADMIN, request), ErrorCode::Invalid, "nothing of that kind has a code here");
    }
    world.ask(ADMIN, Request::UserSetEnabled { name: user("c"), enabled: false });
    assert_eq!(world.refused(ADMIN, invite("c", 9, true)), ErrorCode::Invalid);
}

#[test]
fn password_change_ends_old_sessions() {
    let mut world = World::empty();
    register(&mut world, ADMIN, "alice", false, false);
    world.session([7; 16], "alice", false);
    assert_eq!(register(&mut world, ALICE, "alice", false, true), Response::Done {});
    assert!(world.alive(ALICE), "the session that asked goes on");
    assert!(!world.alive([7; 16]), "her others do not");
    assert_eq!(register(&mut world, ADMIN, "alice", false, true), Response::Done {});
    assert!(!world.alive(ALICE), "somebody else changed it");
    // With a code too, but only when it is used.
    world.session(ALICE, "alice", false);
    let code = world.invite("alice", Role::User, true);
    assert!(world.alive(ALICE));
    assert!(world.logs_in("alice", SUITE_LIGHT, b"pw").is_some(), "the old password is good until then");
    world.enrols("alice", &code, b"new").unwrap();
    assert!(!world.alive(ALICE));
    assert!(world.logs_in("alice", SUITE_LIGHT, b"pw").is_none());
    assert!(world.logs_in("alice", SUITE_LIGHT, b"new").is_some());
}

/// A stolen session is not enough to take over the account.
#[test]
fn password_change_needs_current_password() {
    let mut world = World::empty();
    for name in ["alice", "bob"] {
        register(&mut world, ADMIN, name, false, false);
    }
    let change = |world: &mut World, caller, name, proof| {
        register_proving(world, caller, name, (SUITE_LIGHT, b"new"), (Role::User, true), proof)
    };
    assert_eq!(code(&change(&mut world, ALICE, "alice", None)), Some(ErrorCode::Denied));
    for (suite, guess) in [(SUITE_LIGHT, &b"guess"[..]), (SUITE_LIGHT, b"new"), (1, b"pw")] {
        assert_eq!(code(&change(&mut world, ALICE, "alice", Some((suite, guess)))), Some(ErrorCode::Denied));
    }
    // An administrator's own password needs the proof too; other users' do not.
    assert_eq!(code(&change(&mut world, ADMIN, "admin", None)), Some(ErrorCode::Denied));
    assert_eq!(change(&mut world, ADMIN, "bob", None), Response::Done {});
    // A proof for one's own account is not valid for another one.
    assert_eq!(code(&change(&mut world, ALICE, "bob", Some((SUITE_LIGHT, b"pw")))), Some(ErrorCode::Denied));
    assert!(world.logs_in("alice", SUITE_LIGHT, b"pw").is_some(), "still the old one");
    world.now += 60_000;
    assert_eq!(change(&mut world, ALICE, "alice", Some((SUITE_LIGHT, b"pw"))), Response::Done {});
    assert!(world.alive(ALICE));
    assert!(world.logs_in("alice", SUITE_LIGHT, b"new").is_some());
}

#[test]
fn reauth_is_valid_once_in_its_session() {
    let mut world = World::empty();
    register(&mut world, ADMIN, "alice", false, false);
    let record = {
        register(&mut world, ADMIN, "other", false, false);
        crate::accounts::existing(&*world.mds.store.snapshot().unwrap(), &user("other")).unwrap().credentials
            [0]
        .record
    };
    let second = [7; 16];
    world.session(second, "alice", false);
    let begin = |world: &mut World, caller: SessionId, session: SessionId| {
        let context = LoginContext::again(&world.mds.server_id(), &session);
        let (proof, state) =
            start_login(&mut world.rng, SUITE_LIGHT, &user("alice"), b"pw", context).unwrap();
        let (request, _) = start_registration(&mut world.rng, &user("alice"), b"new").unwrap();
        let request = Request::UserRegisterStart { name: user("alice"), request, proof: Some(proof) };
        match world.ask(caller, request) {
            Response::UserRegisterStart { challenge: Some(challenge), .. } => {
                Ok(state.challenge(&mut world.rng, challenge).ok().map(|(finish, _)| finish))
            }
            Response::Failed { failure } => Err(failure),
            other => panic!("{other:?}"),
        }
    };
    let end = |world: &mut World, caller, proof| {
        let (name, suite, role) = (user("alice"), SUITE_LIGHT, Role::User);
        world.ask(caller, Request::UserRegisterFinish { name, record, suite, role, replace: true, proof })
    };
    let denied = Some(ErrorCode::Denied);
    // Made for another session, the client already rejects it.
    assert_eq!(begin(&mut world, ALICE, second), Ok(None));
    let proof = begin(&mut world, ALICE, ALICE).unwrap();
    assert_eq!(code(&end(&mut world, second, proof.clone())), denied, "another session's");
    world.now += crate::reauth::REAUTH_MS + 1;
    assert_eq!(code(&end(&mut world, ALICE, proof)), denied, "late");
    let older = begin(&mut world, ALICE, ALICE).unwrap();
    let proof = begin(&mut world, ALICE, ALICE).unwrap();
    assert_eq!(code(&end(&mut world, ALICE, older)), denied, "another was begun");
    assert_eq!(code(&end(&mut world, ALICE, proof)), denied, "and a wrong end used it up");
    // The password was changed between proof and change.
    world.now += 600_000;
    let proof = begin(&mut world, ALICE, ALICE).unwrap();
    let code_of_admin = world.invite("alice", Role::User, true);
    world.enrols("alice", &code_of_admin, b"third").unwrap();
    world.session(ALICE, "alice", false);
    assert_eq!(code(&end(&mut world, ALICE, proof.clone())), denied);
    // In time, it works once only.
    world.now += 600_000;
    register(&mut world, ADMIN, "alice", false, true);
    world.session(ALICE, "alice", false);
    let proof = begin(&mut world, ALICE, ALICE).unwrap();
    assert_eq!(end(&mut world, ALICE, proof.clone()), Response::Done {});
    assert_eq!(code(&end(&mut world, ALICE, proof)), denied, "used up");
    // Guesses are throttled as at login.
    world.now += 600_000;
    register(&mut world, ADMIN, "alice", false, true);
    world.session(ALICE, "alice", false);
    let busy = (0..9).filter_map(|_| begin(&mut world, ALICE, ALICE).err()).last().expect("limited");
    assert_eq!(busy.code, ErrorCode::Busy);
    assert!(busy.retry_ms > 0);
    assert!(world.logs_in("alice", SUITE_LIGHT, b"pw").is_some(), "and do not make her wait at the door");
}

#[test]
fn service_keys_overlap_during_rotation() {
    let mut world = World::empty();
    let (old, new) = ([7; 32], [8; 32]);
    assert_eq!(world.key(ADMIN, "backup", SUITE_SERVICE_A, &old, false), Response::Done {});
    let first = world.logs_in("backup", SUITE_SERVICE_A, &old).unwrap();
    assert!(world.logs_in("backup", SUITE_SERVICE_A, &new).is_none());
    assert!(world.logs_in("backup", SUITE_SERVICE_B, &old).is_none());
    // It adds its next key itself, and both are valid.
    let next = |world: &mut World, proof| {
        register_proving(world, first, "backup", (SUITE_SERVICE_B, &new), (Role::User, true), proof)
    };
    assert_eq!(code(&next(&mut world, None)), Some(ErrorCode::Denied), "with the key in use alone");
    assert_eq!(code(&next(&mut world, Some((SUITE_SERVICE_A, &[9; 32])))), Some(ErrorCode::Denied));
    assert_eq!(next(&mut world, Some((SUITE_SERVICE_A, &old))), Response::Done {});
    assert!(world.alive(first));
    let second = world.logs_in("backup", SUITE_SERVICE_B, &new).unwrap();
    assert!(world.logs_in("backup", SUITE_SERVICE_A, &old).is_some());
    let retire = |suite| Request::UserRetireKey { name: user("backup"), suite };
    assert_eq!(world.ask(second, retire(SUITE_SERVICE_A)), Response::Done {});
    assert!(world.logs_in("backup", SUITE_SERVICE_A, &old).is_none());
    assert!(!world.alive(first), "what the old key opened ends with it");
    assert!(world.alive(second));
    assert_eq!(world.refused(second, retire(SUITE_SERVICE_A)), ErrorCode::NotFound);
    assert_eq!(world.refused(second, retire(SUITE_SERVICE_B)), ErrorCode::Denied, "the last one stays");
    assert_eq!(world.refused(BOB, retire(SUITE_SERVICE_B)), ErrorCode::Denied, "somebody else's");
}

#[test]
fn passwords_and_key_files_are_not_interchangeable() {
    let mut world = World::empty();
    register(&mut world, ADMIN, "alice", false, false);
    world.key(ADMIN, "backup", SUITE_SERVICE_A, &[7; 32], false);
    for suite in [SUITE_SERVICE_A, SUITE_SERVICE_B] {
        assert_eq!(code(&world.key(ALICE, "alice", suite, b"pw", true)), Some(ErrorCode::Invalid));
        assert_eq!(code(&world.key(ADMIN, "alice", suite, b"pw", true)), Some(ErrorCode::Invalid));
        assert!(world.logs_in("alice", suite, b"pw").is_none());
    }
    assert_eq!(code(&world.key(ADMIN, "backup", SUITE_LIGHT, b"pw", true)), Some(ErrorCode::Invalid));
    assert!(world.logs_in("backup", SUITE_LIGHT, &[7; 32]).is_none());
    assert_eq!(
        world.refused(ALICE, Request::UserRetireKey { name: user("alice"), suite: SUITE_LIGHT }),
        ErrorCode::Invalid
    );
}

#[test]
fn login_fails_after_concurrent_account_change() {
    let mut world = World::empty();
    register(&mut world, ADMIN, "alice", false, false);
    let changes: [fn(&mut World); 4] = [
        |world| {
            world.ask(ADMIN, Request::UserSetEnabled { name: user("alice"), enabled: false });
        },
        |world| {
            world.ask(ADMIN, Request::UserRemove { name: user("alice") });
        },
        |world| {
            let code = world.invite("alice", Role::User, true);
            world.enrols("alice", &code, b"other").unwrap();
        },
        |world| {
            register(world, ADMIN, "alice", false, true);
        },
    ];
    for change in changes {
        world.now += 600_000;
        world.session(ADMIN, "admin", true);
        register(&mut world, ADMIN, "alice", false, false);
        register(&mut world, ADMIN, "alice", false, true);
        world.ask(ADMIN, Request::UserSetEnabled { name: user("alice"), enabled: true });
        let mut connection = world.connect();
        let context = LoginContext::new(&world.mds.server_id(), &CHANNEL);
        let (start, client) =
            start_login(&mut world.rng, SUITE_LIGHT, &user("alice"), b"pw", context).unwrap();
        let output = world.message(&mut connection, MessageType::LoginStart, 0, &start);
        let challenge: LoginChallenge = answer(&output, MessageType::LoginChallenge).unwrap();
        let (finish, _) = client.challenge(&mut world.rng, challenge).unwrap();
        change(&mut world);
        let output = world.message(&mut connection, MessageType::LoginFinish, 0, &finish);
        let error = answer::<LoginOk>(&output, MessageType::LoginOk).unwrap_err();
        assert_eq!(error.code, LoginErrorCode::Refused);
    }
}

#[test]
fn session_of_disabled_user_cannot_be_resumed() {
    let mut world = World::empty();
    register(&mut world, ADMIN, "alice", false, false);
    let mut connection = world.connect();
    let (ok, keys) = world.login_with(&mut connection, ("alice", SUITE_LIGHT), b"pw").unwrap();
    world.ask(ADMIN, Request::UserSetEnabled { name: user("alice"), enabled: false });
    world.ask(ADMIN, Request::UserSetEnabled { name: user("alice"), enabled: true });
    for _ in 0..2 {
        let mut connection = world.connect();
        let resume = keys.resume(ok.session, &CHANNEL, [1; 16]);
        let output = world.message(&mut connection, MessageType::Resume, 0, &resume);
        let error = answer::<LoginOk>(&output, MessageType::LoginOk).unwrap_err();
        assert_eq!(error.code, LoginErrorCode::SessionExpired);
        world.restart();
    }
}

/// Under load nothing is stored for a login before its cookie returned: a flood costs one hash
/// each, and no memory.
#[test]
fn patient_client_logs_in_during_flood() {
    let mut world = World::empty();
    register(&mut world, ADMIN, "alice", false, false);
    world.mds.config.half_open_max = 0;
    let context = LoginContext::new(&world.mds.server_id(), &CHANNEL);
    let before = world.disk.dump();
    let mut connections = Vec::new();
    for i in 0..2_000 {
        let name = user(&format!("flood{i}"));
        let (start, _) = start_login(&mut world.rng, SUITE_LIGHT, &name, b"pw", context.clone()).unwrap();
        let mut connection = world.connect();
        let output = world.message(&mut connection, MessageType::LoginStart, 0, &start);
        assert!(!output.close);
        let retry: Retry = answer(&output, MessageType::Retry).unwrap();
        assert_eq!(retry.retry_ms, world.mds.config.retry_ms);
        connections.push(connection);
    }
    assert_eq!(world.mds.limiter.lock().remembered(), 0, "no name and no source is remembered");
    assert_eq!(world.mds.half_open.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(world.disk.dump(), before);

    let (start, client) = start_login(&mut world.rng, SUITE_LIGHT, &user("alice"), b"pw", context).unwrap();
    let mut connection = world.connect();
    let output = world.message(&mut connection, MessageType::LoginStart, 0, &start);
    let Retry { cookie, retry_ms } = answer(&output, MessageType::Retry).unwrap();
    let again = LoginAgain { cookie, start };
    let output = world.message(&mut connection, MessageType::LoginAgain, 0, &again);
    let _: Retry = answer(&output, MessageType::Retry).expect("too early");
    world.now += u64::from(retry_ms);
    let mut bent = again.clone();
    bent.cookie[9] ^= 1;
    let output = world.message(&mut connection, MessageType::LoginAgain, 0, &bent);
    let _: Retry = answer(&output, MessageType::Retry).expect("not ours");
    let output = world.message(&mut connection, MessageType::LoginAgain, 0, &again);
    let challenge: LoginChallenge = answer(&output, MessageType::LoginChallenge).unwrap();
    assert_eq!(world.mds.half_open.load(std::sync::atomic::Ordering::Relaxed), 1);
    let (finish, _) = client.challenge(&mut world.rng, challenge).unwrap();
    let output = world.message(&mut connection, MessageType::LoginFinish, 0, &finish);
    let _: LoginOk = answer(&output, MessageType::LoginOk).unwrap();
    assert_eq!(world.mds.half_open.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn session_expiry_survives_restarts() {
    let mut world = World::empty();
    register(&mut world, ADMIN, "alice", false, false);
    let (idle, ttl) = (world.mds.config.session_idle_ms, world.mds.config.session_ttl_ms);
    let resumes = |world: &mut World, session, keys: &SessionKeys| {
        let mut connection = world.connect();
        let resume = keys.resume(session, &CHANNEL, [1; 16]);
        let output = world.message(&mut connection, MessageType::Resume, 0, &resume);
        answer::<LoginOk>(&output, MessageType::LoginOk).map(|ok| ok.expires_ms).map_err(|error| error.code)
    };
    let open = |world: &mut World| {
        let mut connection = world.connect();
        let (ok, keys) = world.login_with(&mut connection, ("alice", SUITE_LIGHT), b"pw").unwrap();
        (ok.session, keys)
    };
    let (session, keys) = open(&mut world);
    world.now += idle;
    world.mds.settle().unwrap();
    world.restart();
    assert_eq!(resumes(&mut world, session, &keys), Err(LoginErrorCode::SessionExpired), "idle");
    let (session, keys) = open(&mut world);
    let end = world.now + ttl;
    // In use all the time, and restarted all the time: its end does not move.
    while world.now + idle / 2 < end {
        world.now += idle / 2;
        world.mds.settle().unwrap();
        world.restart();
        assert_eq!(resumes(&mut world, session, &keys), Ok(end));
        assert!(world.alive(session));
    }
    world.now = end;
    assert!(!world.alive(session));
    world.mds.settle().unwrap();
    world.restart();
    assert_eq!(resumes(&mut world, session, &keys), Err(LoginErrorCode::SessionExpired), "absolute");
}
