//! Roles, groups and owners: the rights of each request.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, AccountKind, CheckScope, DeviceState, ErrorCode, FileKind, GroupName, Method, OpenHandle,
    QuotaChange, QuotaSubject, Request, Response, RevocationTarget, Role, UserName,
};

use super::accounts::register;
use super::world::{ADMIN, ALICE, BOB, World, create, new_device, path, user};
use crate::access::SETGID;
use crate::groups::{GROUPS_PER_USER_MAX, MEMBERS_MAX};

const OPERATOR: SessionId = [8; 16];
const READER: SessionId = [9; 16];

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

impl World {
    /// Creates a world with accounts for the sessions of alice and bob, an operator and a reader.
    fn peopled() -> Self {
        let mut world = Self::with_devices(1);
        for name in ["alice", "bob", "olga", "rita"] {
            assert_eq!(register(&mut world, ADMIN, name, false, false), Response::Done {});
        }
        for (name, role) in [("olga", Role::Operator), ("rita", Role::ReadOnly)] {
            world.done(ADMIN, Request::UserSetRole { name: user(name), role });
        }
        world.session_as(OPERATOR, "olga", Role::Operator);
        world.session_as(READER, "rita", Role::ReadOnly);
        world
    }

    fn done(&mut self, caller: SessionId, request: Request) {
        let shown = format!("{request:?}");
        assert_eq!(self.ask(caller, request), Response::Done {}, "{shown}");
    }

    fn join(&mut self, name: &str, members: &[&str]) {
        self.done(ADMIN, Request::GroupCreate { name: group(name) });
        for member in members {
            self.done(ADMIN, Request::GroupAddMember { group: group(name), user: user(member) });
        }
    }

    fn chown(
        &mut self,
        caller: SessionId,
        at: &str,
        owner: Option<&str>,
        to: Option<Option<&str>>,
    ) -> Response {
        let owner = owner.map(|owner| UserName::new(owner).unwrap());
        let group = to.map(|to| to.map(group));
        self.ask(caller, Request::SetOwner { path: path(at), owner, group })
    }

    fn may_read(&mut self, caller: SessionId, at: &str) -> bool {
        let request = Request::Open { path: path(at), access: Access::Read, method: Method::CmdRsp };
        matches!(self.ask(caller, request), Response::Opened { .. })
    }
}

fn code(response: &Response) -> ErrorCode {
    match response {
        Response::Failed { failure } => failure.code,
        other => panic!("not refused: {other:?}"),
    }
}

/// One request of each class, and the roles that may send it.
#[test]
fn roles_permit_exactly_the_table() {
    let mut world = World::peopled();
    world.put(ALICE, "/f", 9);
    let stat = world.stat(ALICE, "/f").unwrap();
    let (admin, operator, user_, reader) = (8, 4, 2, 1);
    let (read, update) = (Access::Read, Access::Update);
    let method = Method::CmdRsp;
    let until_ms = world.now + 1_000;
    let delegate = |write| Request::Delegate {
        path: path("/f"),
        read: true,
        write,
        start: 0,
        end: None,
        until_ms,
        method,
    };
    let all: Vec<(Request, u8)> = vec![
        (Request::WhoAmI {}, 15),
        (Request::ServerInfo {}, 15),
        (Request::DiskFree {}, 15),
        (Request::DeviceList { after: None, limit: 1 }, 15),
        (Request::Stat { path: path("/f") }, admin | user_ | reader),
        (Request::ReadDir { path: path("/"), after: None, limit: 1 }, admin | user_ | reader),
        (Request::Open { path: path("/f"), access: read, method }, admin | user_ | reader),
        (
            Request::RenewGrants { handle: OpenHandle::File { node: stat.node(), access: read }, method },
            admin | user_ | reader,
        ),
        (Request::Open { path: path("/f"), access: update, method }, admin | user_),
        (
            Request::RenewGrants { handle: OpenHandle::File { node: stat.node(), access: update }, method },
            admin | user_,
        ),
        (create("/new", None), admin | user_),
        (Request::MakeDir { path: path("/d"), parents: true, mode: 0o777 }, admin | user_),
        (Request::SetMode { path: path("/f"), mode: 0o666 }, admin | user_),
        (Request::SetOwner { path: path("/f"), owner: None, group: Some(None) }, admin | user_),
        (Request::DeviceAdd { device: new_device(0) }, admin | operator),
        (
            Request::DeviceSetState { id: sealstone_mds_protocol::DeviceId(1), state: DeviceState::Active },
            admin | operator,
        ),
        (
            Request::DeviceSetState { id: sealstone_mds_protocol::DeviceId(1), state: DeviceState::Joining },
            admin,
        ),
        (Request::QuotaList { after: None, limit: 1 }, 15),
        (Request::CheckBegin { scope: CheckScope::Counts, repair: false }, admin),
        (Request::QuotaSet { of: QuotaSubject::User(user("bob")), change: QuotaChange::default() }, admin),
        (Request::UserList { after: None, limit: 1 }, admin),
        (Request::UserSetRole { name: user("bob"), role: Role::User }, admin),
        (Request::UserSetEnabled { name: user("bob"), enabled: true }, admin),
        (
            Request::UserInvite {
                name: user("bob"),
                kind: AccountKind::Password,
                role: Role::Admin,
                lifetime_s: 1,
                replace: true,
            },
            admin,
        ),
        (Request::GroupCreate { name: group("g") }, admin),
        (Request::GroupAddMember { group: group("g"), user: user("bob") }, admin),
        (Request::GroupMembers { group: group("g"), after: None, limit: 1 }, admin),
        (Request::GroupList { after: None, limit: 1 }, admin),
        (Request::GroupRemoveMember { group: group("g"), user: user("bob") }, admin),
        (Request::GroupRemove { name: group("g") }, admin),
        (Request::GrantHolders { path: path("/f") }, admin),
        (delegate(false), admin | user_ | reader),
        (delegate(true), admin | user_),
        (
            Request::IssueList { path: path("/f"), user: None, since_ms: 0, until_ms: 9, from: None },
            admin | user_,
        ),
        (Request::Revoke { what: RevocationTarget::Object(path("/f")) }, admin | user_),
        (Request::Revoke { what: RevocationTarget::User(user("reader")) }, admin),
        (Request::RevocationList {}, admin),
        (Request::RevocationProgress { id: 77 }, admin | user_ | reader | operator),
        (Request::Rename { from: path("/f"), to: path("/h"), replace: false }, user_),
        (Request::Remove { path: path("/h"), recursive: false }, user_),
    ];
    // "/f" is writable for all, so that only the role decides.
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o666 });
    for (request, allowed) in all {
        // The owner last, because the owner's changes would affect the others.
        for (caller, bit) in [(READER, reader), (OPERATOR, operator), (ADMIN, admin), (ALICE, user_)] {
            if bit == admin && allowed & admin == 0 {
                continue;
            }
            let mut request = request.clone();
            if let Request::RenewGrants { handle: OpenHandle::File { node, .. }, .. } = &mut request {
                // With the user's own proof.
                let name = match caller {
                    READER => "rita",
                    OPERATOR => "olga",
                    ADMIN => "admin",
                    _ => "alice",
                };
                node.proof = world.mds.proof_key.prove(&user(name), node.inode);
            }
            let answer = world.ask(caller, request.clone());
            let denied = matches!(&answer, Response::Failed { failure } if failure.code.is_denial());
            assert_eq!(denied, allowed & bit == 0, "{request:?} by {bit}: {answer:?}");
        }
    }
}

#[test]
fn role_change_ends_old_sessions() {
    let mut world = World::peopled();
    for caller in [ALICE, OPERATOR, READER] {
        for name in ["alice", "olga", "rita", "bob"] {
            let request = Request::UserSetRole { name: user(name), role: Role::Admin };
            assert_eq!(world.refused(caller, request), ErrorCode::Denied);
        }
    }
    // A registration of oneself changes the password only.
    register(&mut world, ALICE, "alice", true, true);
    let Response::WhoAmI { role, .. } = world.ask(ALICE, Request::WhoAmI {}) else { panic!("alive") };
    assert_eq!(role, Role::User);
    world.done(ADMIN, Request::UserSetRole { name: user("alice"), role: Role::ReadOnly });
    assert_eq!(world.refused(ALICE, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
    // An administrator may step down only if another one who can log in remains.
    let down = Request::UserSetRole { name: user("admin"), role: Role::User };
    assert_eq!(world.refused(ADMIN, down.clone()), ErrorCode::Denied);
    let invited = Request::UserInvite {
        name: user("new"),
        kind: AccountKind::Password,
        role: Role::Admin,
        lifetime_s: 60,
        replace: false,
    };
    assert!(matches!(world.ask(ADMIN, invited), Response::Invitation { .. }));
    assert_eq!(world.refused(ADMIN, down.clone()), ErrorCode::Denied, "who never enrolled cannot log in");
    world.done(ADMIN, Request::UserSetRole { name: user("bob"), role: Role::Admin });
    world.done(ADMIN, down);
    assert_eq!(world.refused(ADMIN, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
}

#[test]
fn membership_takes_effect_at_next_request() {
    let mut world = World::peopled();
    world.put(ALICE, "/f", 9);
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o640 });
    assert!(!world.may_read(BOB, "/f"));
    world.join("staff", &["alice"]);
    assert!(matches!(world.chown(ALICE, "/f", None, Some(Some("staff"))), Response::Stat { .. }));
    assert!(!world.may_read(BOB, "/f"));
    world.done(ADMIN, Request::GroupAddMember { group: group("staff"), user: user("bob") });
    assert!(world.may_read(BOB, "/f"));
    let update = Request::Open { path: path("/f"), access: Access::Update, method: Method::CmdRsp };
    assert_eq!(world.refused(BOB, update), ErrorCode::Denied);
    world.restart();
    assert!(world.may_read(BOB, "/f"));
    world.done(ADMIN, Request::GroupRemoveMember { group: group("staff"), user: user("bob") });
    assert!(!world.may_read(BOB, "/f"));
    // A removed group grants no right, nor does the name of a removed account.
    world.done(ADMIN, Request::GroupAddMember { group: group("staff"), user: user("bob") });
    world.done(ADMIN, Request::GroupRemove { name: group("staff") });
    assert!(!world.may_read(BOB, "/f"));
    world.join("staff", &["bob"]);
    world.ask(ADMIN, Request::UserRemove { name: user("bob") });
    register(&mut world, ADMIN, "bob", false, false);
    world.session(BOB, "bob", false);
    assert!(!world.may_read(BOB, "/f"), "a new account of an old name is in no group");
}

#[test]
fn chown_is_limited_to_own_groups() {
    let mut world = World::peopled();
    world.put(ALICE, "/f", 9);
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o6755 });
    world.join("staff", &["alice"]);
    world.join("others", &["bob"]);
    assert_eq!(code(&world.chown(ALICE, "/f", Some("bob"), None)), ErrorCode::NotPermitted);
    assert_eq!(code(&world.chown(ALICE, "/f", None, Some(Some("others")))), ErrorCode::NotPermitted);
    assert_eq!(
        code(&world.chown(ALICE, "/f", None, Some(Some("nogroup")))),
        ErrorCode::NotPermitted,
        "the same"
    );
    assert_eq!(code(&world.chown(BOB, "/f", Some("bob"), None)), ErrorCode::NotPermitted);
    assert_eq!(code(&world.chown(BOB, "/f", None, Some(Some("others")))), ErrorCode::NotPermitted);
    assert_eq!(code(&world.chown(ADMIN, "/f", Some("nobody"), None)), ErrorCode::NotFound);
    assert_eq!(code(&world.chown(ADMIN, "/f", None, Some(Some("nogroup")))), ErrorCode::NotFound);
    let Response::Stat { stat } = world.chown(ALICE, "/f", Some("alice"), Some(Some("staff"))) else {
        panic!("her own file")
    };
    assert_eq!((stat.mode, stat.group), (0o755, Some(group("staff"))), "set-id bits go");
    let Response::Stat { stat } = world.chown(ADMIN, "/f", Some("bob"), Some(Some("others"))) else {
        panic!("an administrator")
    };
    assert_eq!((stat.owner, stat.group), (user("bob"), Some(group("others"))));
    assert_eq!(code(&world.chown(ALICE, "/f", None, Some(None))), ErrorCode::NotPermitted, "hers no more");
    // The failed request changed nothing.
    let stat = world.stat(ALICE, "/f").unwrap();
    assert_eq!((stat.owner, stat.group), (user("bob"), Some(group("others"))));
}

#[test]
fn setgid_directory_passes_on_its_group() {
    let mut world = World::peopled();
    world.join("staff", &["alice"]);
    world.mkdir(ALICE, "/team", 0o777);
    world.chown(ALICE, "/team", None, Some(Some("staff")));
    world.put(BOB, "/team/before", 1);
    assert_eq!(world.stat(ALICE, "/team/before").unwrap().group, None);
    let set = Request::SetMode { path: path("/team"), mode: SETGID | 0o777 };
    assert!(matches!(world.ask(ALICE, set), Response::Stat { stat } if stat.mode == SETGID | 0o777));
    world.put(BOB, "/team/file", 1);
    world.mkdir(BOB, "/team/sub", 0o755);
    world.put(BOB, "/team/sub/file", 1);
    for at in ["/team/file", "/team/sub", "/team/sub/file"] {
        let stat = world.stat(ALICE, at).unwrap();
        assert_eq!(stat.group, Some(group("staff")), "{at}");
        assert_eq!(stat.mode & SETGID != 0, stat.kind == FileKind::Directory, "{at}");
    }
    // Users outside of the group cannot create a file with the bit either.
    for (caller, at, kept) in [(BOB, "/team/bobs", 0), (ALICE, "/team/hers", SETGID)] {
        let create = Request::Create {
            path: path(at),
            size_hint: Some(1),
            mode: SETGID | 0o755,
            replace: false,
            method: Method::CmdRsp,
        };
        let Response::Created { file } = world.ask(caller, create) else { panic!("created") };
        assert_eq!(world.commit(caller, file.intent, 1).unwrap().mode, kept | 0o755);
    }
    // Users outside of the group cannot set the bit.
    let set = Request::SetMode { path: path("/team/sub"), mode: SETGID | 0o755 };
    assert!(matches!(world.ask(BOB, set), Response::Stat { stat } if stat.mode == 0o755));
}

#[test]
fn group_lists_are_paged_and_limited() {
    let mut world = World::peopled();
    for i in 0..GROUPS_PER_USER_MAX {
        world.join(&format!("g{i:03}"), &["bob"]);
    }
    world.done(ADMIN, Request::GroupCreate { name: group("z") });
    assert_eq!(world.refused(ADMIN, Request::GroupCreate { name: group("z") }), ErrorCode::Exists);
    let add = |name: &str, caller: &str| Request::GroupAddMember { group: group(name), user: user(caller) };
    assert_eq!(world.refused(ADMIN, add("z", "bob")), ErrorCode::Limit);
    assert_eq!(world.refused(ADMIN, add("y", "bob")), ErrorCode::NotFound);
    assert_eq!(world.refused(ADMIN, add("z", "nobody")), ErrorCode::NotFound);
    world.done(ADMIN, add("z", "alice"));
    world.done(ADMIN, add("z", "alice"));
    let (mut seen, mut after) = (0, None);
    loop {
        let Response::Groups { groups, more } = world.ask(ADMIN, Request::GroupList { after, limit: 10 })
        else {
            panic!("groups")
        };
        seen += groups.len();
        after = groups.last().map(|group| group.name.clone());
        if !more {
            break;
        }
    }
    assert_eq!(seen, GROUPS_PER_USER_MAX + 1);
    let list = Request::GroupMembers { group: group("z"), after: None, limit: 10 };
    assert_eq!(world.ask(ADMIN, list), Response::Members { members: vec![user("alice")], more: false });
    let Response::WhoAmI { groups, .. } = world.ask(BOB, Request::WhoAmI {}) else { panic!("bob") };
    assert_eq!(groups.len(), GROUPS_PER_USER_MAX);
    // A full group, written directly: thousands of registrations would take minutes.
    world
        .mds
        .update(|tx| {
            for i in 0..MEMBERS_MAX {
                let name = user(&format!("m{i}"));
                crate::records::save(tx, &crate::keys::member_of(&group("y"), &name), &())?;
                crate::records::save(tx, &crate::keys::group_of(&name, &group("y")), &())?;
            }
            crate::groups::create(tx, &group("y"), 1)
        })
        .unwrap();
    assert_eq!(world.refused(ADMIN, add("y", "alice")), ErrorCode::Limit);
    world.done(ADMIN, Request::GroupRemove { name: group("y") });
    let left = world.disk.dump().iter().filter(|(key, _)| b"hj".contains(&key[0])).count();
    assert_eq!(left, 2 * (GROUPS_PER_USER_MAX + 1), "no membership of the removed group is left");
}

#[test]
fn credential_holders_are_listed_until_expiry() {
    let mut world = World::peopled();
    world.now += crate::limits::GRANT_LIFETIME_MAX_MS + 1;
    world.session(ADMIN, "admin", true);
    world.session(ALICE, "alice", false);
    world.session(BOB, "bob", false);
    world.put(ALICE, "/f", 9);
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o644 });
    assert!(world.may_read(BOB, "/f"));
    let holders = |world: &mut World| match world.ask(ADMIN, Request::GrantHolders { path: path("/f") }) {
        Response::Holders { holders, complete } => {
            (holders.iter().map(|one| (one.user.to_string(), one.writes)).collect::<Vec<_>>(), complete)
        }
        other => panic!("{other:?}"),
    };
    let (seen, _) = holders(&mut world);
    assert_eq!(seen, [("alice".to_owned(), true), ("bob".to_owned(), false)]);
    // Credentials of a disabled user are still listed, because devices accept them.
    world.ask(ADMIN, Request::UserSetEnabled { name: user("bob"), enabled: false });
    assert_eq!(world.mds.credentials_of(&user("bob"), world.now).holders.len(), 1);
    world.now += world.mds.config.grant_lifetime_ms + 1;
    assert_eq!(holders(&mut world).0, []);
    world.now += crate::limits::GRANT_LIFETIME_MAX_MS;
    world.session(ADMIN, "admin", true);
    assert!(holders(&mut world).1, "after the longest life of a grant nothing is missing");
}
