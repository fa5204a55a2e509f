//! Requests about accounts and sessions.

use sealstone_login::{LoginContext, ServerKeys, start_login, start_registration};
use sealstone_mds_protocol::login::{LoginFinish, SUITE_LIGHT, SUITE_STANDARD};
use sealstone_mds_protocol::{ErrorCode, Request, Response, Role};

use super::world::{ADMIN, ALICE, BOB, World, path, user};

/// Registers through the server; the light suite keeps the test fast. Users who change their own
/// password prove the current one.
pub(super) fn register(
    world: &mut World,
    caller: [u8; 16],
    name: &str,
    admin: bool,
    replace: bool,
) -> Response {
    let role = if admin { Role::Admin } else { Role::User };
    let own = matches!(world.ask(caller, Request::WhoAmI {}), Response::WhoAmI { user: me, .. } if me == user(name));
    let proof = (own && replace).then_some((SUITE_LIGHT, &b"pw"[..]));
    register_proving(world, caller, name, (SUITE_LIGHT, b"pw"), (role, replace), proof)
}

/// Sets a password or key of a suite; `proof` is the claimed current one.
pub(super) fn register_proving(
    world: &mut World,
    caller: [u8; 16],
    name: &str,
    (suite, password): (u16, &[u8]),
    (role, replace): (Role, bool),
    proof: Option<(u16, &[u8])>,
) -> Response {
    let name = user(name);
    let context = LoginContext::again(&world.mds.server_id(), &caller);
    let begun = proof.map(|(suite, old)| start_login(&mut world.rng, suite, &name, old, context).unwrap());
    let (proof, state) = begun.unzip();
    let (request, started) = start_registration(&mut world.rng, &name, password).unwrap();
    let begin = Request::UserRegisterStart { name: name.clone(), request, proof };
    let (response, challenge) = match world.ask(caller, begin) {
        Response::UserRegisterStart { response, challenge } => (response, challenge),
        other => return other,
    };
    let record = started.finish(&mut world.rng, suite, &response).unwrap();
    let proof = state.zip(challenge).map(|(state, challenge)| {
        // A client that does not know the password sends a guess.
        let guess = LoginFinish { login_id: challenge.login_id, ke3: [1; 64] };
        state.challenge(&mut world.rng, challenge).map_or(guess, |(finish, _)| finish)
    });
    world.ask(caller, Request::UserRegisterFinish { name, record, suite, role, replace, proof })
}

fn code(response: &Response) -> Option<ErrorCode> {
    match response {
        Response::Failed { failure } => Some(failure.code),
        _ => None,
    }
}

#[test]
fn only_administrators_create_accounts() {
    let mut world = World::empty();
    assert_eq!(register(&mut world, ADMIN, "carol", false, false), Response::Done {});
    assert_eq!(code(&register(&mut world, ADMIN, "carol", false, false)), Some(ErrorCode::Exists));
    assert_eq!(code(&register(&mut world, ADMIN, "dave", false, true)), Some(ErrorCode::NotFound));
    assert_eq!(code(&register(&mut world, ALICE, "carol", false, true)), Some(ErrorCode::Denied));
    // Alice has a session but no account, and cannot create one.
    assert_eq!(code(&register(&mut world, ALICE, "alice", true, false)), Some(ErrorCode::Denied));
    assert_eq!(register(&mut world, ADMIN, "alice", false, false), Response::Done {});
    // She may change her own password, but does not become an administrator.
    assert_eq!(register(&mut world, ALICE, "alice", true, true), Response::Done {});
    let Response::Users { users, more } = world.ask(ADMIN, Request::UserList { after: None, limit: 9 })
    else {
        panic!("users")
    };
    let listed: Vec<_> = users.iter().map(|u| (u.name.as_str(), u.role == Role::Admin, u.enabled)).collect();
    assert_eq!(listed, [("admin", true, true), ("alice", false, true), ("carol", false, true)]);
    assert!(!more);
    assert_eq!(world.refused(ALICE, Request::UserList { after: None, limit: 9 }), ErrorCode::Denied);
}

/// The answer of a registration lets a client test a guess of the password. With a stolen session
/// and one recorded challenge, guessing must not be faster than by login.
#[test]
fn session_does_not_speed_up_password_guessing() {
    let mut world = World::empty();
    assert_eq!(register(&mut world, ADMIN, "alice", false, false), Response::Done {});
    let (request, _) = start_registration(&mut world.rng, &user("alice"), b"guess").unwrap();
    let guess = Request::UserRegisterStart { name: user("alice"), request, proof: None };
    let answered =
        (0..20).take_while(|_| code(&world.ask(ALICE, guess.clone())) != Some(ErrorCode::Busy)).count();
    assert_eq!(answered, 4, "five for each name, of which the account took one");
    let Response::Failed { failure } = world.ask(ADMIN, guess.clone()) else { panic!("not limited") };
    assert!(failure.retry_ms > 0);
    // Other users are not delayed, and the delay ends.
    assert_eq!(register(&mut world, ADMIN, "carol", false, false), Response::Done {});
    world.now += 60_000;
    assert!(matches!(world.ask(ALICE, guess), Response::UserRegisterStart { .. }));
}

#[test]
fn the_last_administrator_stays() {
    let mut world = World::empty();
    let disable = Request::UserSetEnabled { name: user("admin"), enabled: false };
    assert_eq!(world.refused(ADMIN, disable.clone()), ErrorCode::Denied);
    assert_eq!(world.refused(ADMIN, Request::UserRemove { name: user("admin") }), ErrorCode::Denied);
    assert_eq!(register(&mut world, ADMIN, "second", true, false), Response::Done {});
    assert!(matches!(world.ask(ADMIN, disable), Response::Revocation { .. }));
    assert_eq!(world.refused(ADMIN, Request::WhoAmI {}), ErrorCode::NotLoggedIn, "its sessions ended");
}

#[test]
fn disabled_account_has_no_session_after_restart() {
    let mut world = World::empty();
    for name in ["alice", "bob"] {
        register(&mut world, ADMIN, name, false, false);
    }
    world.ask(ADMIN, Request::UserRemove { name: user("alice") });
    world.ask(ADMIN, Request::UserSetEnabled { name: user("bob"), enabled: false });
    for _ in 0..2 {
        for session in [ALICE, BOB] {
            assert_eq!(world.refused(session, Request::Stat { path: path("/") }), ErrorCode::NotLoggedIn);
        }
        world.restart();
    }
    assert!(matches!(world.ask(ADMIN, Request::WhoAmI {}), Response::WhoAmI { role: Role::Admin, .. }));
}

#[test]
fn session_survives_clock_set_back_for_a_while() {
    let mut world = World::empty();
    let idle = world.mds.config.session_idle_ms;
    let wrong = world.now;
    world.now += idle - 1_000;
    let right = world.now;
    assert!(matches!(world.ask(BOB, Request::WhoAmI {}), Response::WhoAmI { .. }));
    world.now = wrong;
    world.take_up();
    assert!(matches!(world.ask(BOB, Request::WhoAmI {}), Response::WhoAmI { .. }));
    world.now = right + 60_000;
    assert!(matches!(world.ask(BOB, Request::WhoAmI {}), Response::WhoAmI { .. }));
}

#[test]
fn sessions_end_when_idle_and_at_their_time() {
    let mut world = World::empty();
    let idle = world.mds.config.session_idle_ms;
    for _ in 0..10 {
        world.now += idle - 1;
        assert!(matches!(world.ask(ALICE, Request::WhoAmI {}), Response::WhoAmI { .. }));
    }
    assert_eq!(world.refused(BOB, Request::WhoAmI {}), ErrorCode::NotLoggedIn, "idle");
    while world.now + idle / 2 < 1_000 + world.mds.config.session_ttl_ms {
        world.now += idle / 2;
        assert!(matches!(world.ask(ALICE, Request::WhoAmI {}), Response::WhoAmI { .. }));
    }
    world.now = 1_000 + world.mds.config.session_ttl_ms;
    assert_eq!(world.refused(ALICE, Request::WhoAmI {}), ErrorCode::NotLoggedIn, "absolute");
    world.now += idle;
    while world.mds.tidy(world.now).unwrap() {}
    assert_eq!(world.disk.dump().iter().filter(|(key, _)| b"sw".contains(&key[0])).count(), 0, "swept");
}

#[test]
fn excess_login_ends_least_recently_used_session() {
    let mut world = World::empty();
    for i in 0..crate::sessions::SESSIONS_PER_USER_MAX {
        world.now += 1;
        let mut id = [9; 16];
        id[..8].copy_from_slice(&(i as u64).to_be_bytes());
        world.session(id, "alice", false);
    }
    world.restart();
    assert_eq!(world.refused(ALICE, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
}

#[test]
fn only_hello_works_without_session() {
    let mut world = World::empty();
    let response = world.mds.handle(None, Request::WhoAmI {}, world.now, &mut world.rng);
    assert_eq!(code(&response), Some(ErrorCode::NotLoggedIn));
    let hello = |oldest, newest| Request::Hello { oldest, newest, software: Default::default() };
    let response = world.mds.handle(None, hello(1, 9), world.now, &mut world.rng);
    assert!(matches!(response, Response::Hello { version: 1, .. }));
    let response = world.mds.handle(None, hello(2, 9), world.now, &mut world.rng);
    assert_eq!(code(&response), Some(ErrorCode::Version));
}

#[test]
fn registration_needs_valid_points_and_suite() {
    let mut world = World::empty();
    let start = Request::UserRegisterStart { name: user("eve"), request: [0; 32], proof: None };
    assert_eq!(world.refused(ADMIN, start), ErrorCode::Invalid);
    for (suite, record) in [(SUITE_STANDARD, [0; 192]), (9, valid_record(&mut world))] {
        let finish = Request::UserRegisterFinish {
            name: user("eve"),
            record,
            suite,
            role: Role::User,
            replace: false,
            proof: None,
        };
        assert_eq!(world.refused(ADMIN, finish), ErrorCode::Invalid);
    }
}

fn valid_record(world: &mut World) -> [u8; 192] {
    let keys = ServerKeys::generate(&mut world.rng);
    let (request, started) = start_registration(&mut world.rng, &user("eve"), b"pw").unwrap();
    let response = keys.register(&user("eve"), &request).unwrap();
    started.finish(&mut world.rng, SUITE_LIGHT, &response).unwrap()
}
