//! Logout with revocation of the session's credentials, and that access can always be ended.

use std::collections::BTreeSet;

use sealstone_mds_protocol::login::{LOGOUT_REVOKE, Revoking, SessionId};
use sealstone_mds_protocol::{
    Access, DeviceId, ErrorCode, Method, ObjectRef, Request, Response, Revocation, RevocationTarget,
};

use super::world::{ADMIN, ALICE, BOB, World, path, user};
use crate::revoke::{REVOCATIONS_MAX, REVOCATIONS_OF_USERS_MAX, REVOCATIONS_PER_USER_MAX};

impl World {
    fn read_as(&mut self, caller: SessionId, at: &str) -> BTreeSet<ObjectRef> {
        let open = Request::Open { path: path(at), access: Access::Read, method: Method::AllData };
        self.open(caller, open).grants.iter().map(|grant| grant.object).collect()
    }

    fn log_out_revoking(&self, id: &SessionId) -> Option<Revoking> {
        assert_eq!(LOGOUT_REVOKE, 1);
        self.mds.logout(id, true, self.now).unwrap()
    }

    fn known(&mut self) -> Vec<Revocation> {
        match self.ask(ADMIN, Request::RevocationList {}) {
            Response::Revocations { revocations } => revocations,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn logout_with_revoke_ends_own_credentials_only() {
    const OTHER: SessionId = [9; 16];
    let (mut world, _) = World::logged(1);
    for at in ["/a", "/b", "/c"] {
        world.put(ALICE, at, 1);
        world.ask(ALICE, Request::SetMode { path: path(at), mode: 0o644 });
    }
    world.now += crate::limits::CREDENTIAL_LIFETIME_MAX_MS + 1;
    for (id, name) in [(ADMIN, true), (BOB, false)] {
        world.session(id, if name { "admin" } else { "bob" }, name);
    }
    world.session(OTHER, "bob", false);
    let mut his = world.read_as(BOB, "/a");
    his.extend(world.read_as(BOB, "/b"));
    world.read_as(OTHER, "/c");
    let revoking = world.log_out_revoking(&BOB).unwrap();
    assert!(revoking.complete && revoking.objects == 2 && revoking.until_ms > world.now, "{revoking:?}");
    assert_eq!(world.refused(BOB, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
    let answer: BTreeSet<ObjectRef> =
        world.tell(DeviceId(1), 9).into_iter().map(|(object, ..)| object).collect();
    assert_eq!(answer, his);
    // The user requests the progress in another session; other users do not see the revocation.
    let asked = Request::RevocationProgress { id: revoking.id };
    let Response::Revocation { revocation } = world.ask(OTHER, asked.clone()) else { panic!("his own") };
    assert!(
        revocation.done_ms.is_some() && revocation.what == RevocationTarget::Session(BOB),
        "{revocation:?}"
    );
    world.session(ALICE, "alice", false);
    assert_eq!(world.refused(ALICE, asked), ErrorCode::NotFound);
    // A user cannot revoke another user's session.
    let foreign = Request::Revoke { what: RevocationTarget::Session(OTHER) };
    assert_eq!(world.refused(ADMIN, foreign), ErrorCode::Invalid);
}

#[test]
fn crash_at_logout_leaves_all_or_nothing() {
    for crash_at in 0..6 {
        let (mut world, log) = World::logged(1);
        world.put(ALICE, "/a", 1);
        world.ask(ALICE, Request::SetMode { path: path("/a"), mode: 0o644 });
        world.read_as(BOB, "/a");
        world.disk.fail_after(Some(crash_at));
        let promised = world.mds.logout(&BOB, true, world.now).is_ok();
        let collected = promised && world.mds.collect_revocations(world.now).is_ok();
        world.disk.fail_after(None);
        world.disk.crash(0);
        world.log_to(&log);
        let alive = !matches!(world.ask(BOB, Request::WhoAmI {}), Response::Failed { .. });
        assert_eq!(alive, !promised, "crash at {crash_at}");
        let answer = world.tell(DeviceId(1), 9);
        assert_eq!(answer.len(), usize::from(promised), "crash at {crash_at}, collected {collected}");
        let known = world.known();
        assert_eq!(known.len(), usize::from(promised));
        assert!(known.iter().all(|one| one.done_ms.is_some()), "crash at {crash_at}: {known:?}");
    }
}

#[test]
fn user_filling_revocations_can_be_disabled() {
    let (mut world, _) = World::logged(1);
    world.put(BOB, "/f", 1);
    let revoke = Request::Revoke { what: RevocationTarget::Object(path("/f")) };
    for _ in 0..REVOCATIONS_PER_USER_MAX {
        assert!(matches!(world.ask(BOB, revoke.clone()), Response::Revocation { .. }));
    }
    assert_eq!(world.refused(BOB, revoke), ErrorCode::Limit);
    // Logout works, though nothing is revoked.
    assert_eq!(world.log_out_revoking(&BOB), None);
    assert_eq!(world.refused(BOB, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
    let disabled = world.ask(ADMIN, Request::UserSetEnabled { name: user("bob"), enabled: false });
    assert!(matches!(disabled, Response::Revocation { .. }), "{disabled:?}");
    let answer = world.tell(DeviceId(1), 9);
    assert!(!answer.is_empty());
    assert!(world.known().iter().all(|one| one.done_ms.is_some()));
}

#[test]
fn many_users_leave_revocations_for_administrators() {
    let (mut world, _) = World::logged(1);
    world.mkdir(ADMIN, "/d", 0o777);
    let (mut refused, mut last_begun) = (0, false);
    for n in 0..REVOCATIONS_OF_USERS_MAX + 20 {
        // Each user has a session and a file.
        let name = format!("u{}", n / REVOCATIONS_PER_USER_MAX);
        let mut id = [0xC0; 16];
        id[..8].copy_from_slice(&((n / REVOCATIONS_PER_USER_MAX) as u64).to_be_bytes());
        if n % REVOCATIONS_PER_USER_MAX == 0 {
            world.session(id, &name, false);
            world.put(id, &format!("/d/{name}"), 1);
        }
        let what = RevocationTarget::Object(path(&format!("/d/{name}")));
        if let Response::Failed { failure } = world.ask(id, Request::Revoke { what }) {
            assert_eq!(failure.code, ErrorCode::Limit);
            refused += 1;
        } else {
            last_begun = n / REVOCATIONS_PER_USER_MAX >= REVOCATIONS_OF_USERS_MAX / REVOCATIONS_PER_USER_MAX;
        }
    }
    assert!(refused >= 20, "{refused}");
    assert!(last_begun, "a user without any finds room after twelve greedy ones");
    for name in ["alice", "bob"] {
        let disabled = world.ask(ADMIN, Request::UserSetEnabled { name: user(name), enabled: false });
        assert!(matches!(disabled, Response::Revocation { .. }), "{disabled:?}");
    }
    assert!(world.known().len() <= REVOCATIONS_MAX);
}

/// Found in use: while a device was unavailable, administrators' own revocations blocked disabling
/// any user.
#[test]
fn full_revocation_list_does_not_block_disabling() {
    let (mut world, _) = World::logged(1);
    world.put(BOB, "/f", 1);
    let revoke = Request::Revoke { what: RevocationTarget::Object(path("/f")) };
    for _ in 0..REVOCATIONS_MAX {
        assert!(matches!(world.ask(ADMIN, revoke.clone()), Response::Revocation { .. }));
    }
    assert_eq!(world.refused(ADMIN, revoke.clone()), ErrorCode::Limit);
    let enabled = |enabled| Request::UserSetEnabled { name: user("bob"), enabled };
    let disabled = world.ask(ADMIN, enabled(false));
    let Response::Revocation { revocation: first } = disabled else { panic!("{disabled:?}") };
    assert_eq!(world.refused(BOB, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
    // A repeated one is the same revocation.
    assert!(matches!(world.ask(ADMIN, enabled(true)), Response::Done {}));
    let disabled = world.ask(ADMIN, enabled(false));
    let Response::Revocation { revocation: again } = disabled else { panic!("{disabled:?}") };
    assert_eq!(again.id, first.id);
    assert!(!world.tell(DeviceId(1), 9).is_empty());
    assert!(world.known().iter().all(|one| one.done_ms.is_some()));
    let Response::Revocation { .. } = world.ask(ADMIN, revoke) else { panic!("those that are over go") };
}
