//! Node proofs, open files and their expiry, and audit records.

use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, Lock, LockKind, Node, NodeChange, NodeKind, OpenHandle, Request, Response,
    RevocationTarget, Role,
};

use super::super::world::{ADMIN, ALICE, BOB, World, path};
use super::{CLIENT, METHOD, code, make, name, open, remove, set};
use crate::audit::{AuditRecord, AuditSink};
use crate::election::LEASE_MS;
use crate::open_files::{CLIENT_TIMEOUT_MS, CLIENTS_MAX};
use crate::{Config, Mds};

fn mode(mode: u16) -> NodeChange {
    NodeChange { mode: Some(mode), ..NodeChange::default() }
}

fn renew(node: Node, access: Access) -> Request {
    Request::RenewGrants { handle: OpenHandle::Node { node, access, client_id: CLIENT }, method: METHOD }
}

fn keep(client_id: ClientId) -> Request {
    Request::KeepNodes { client_id }
}

fn revoke(at: &str) -> Request {
    Request::Revoke { what: RevocationTarget::Object(path(at)) }
}

#[test]
fn listable_directory_without_search_grants_nothing() {
    let mut world = World::with_devices(1);
    let seen = world.make(ALICE, Node::ROOT, "d", NodeKind::Directory, 0o744);
    let file = world.make(ALICE, seen.node(), "f", NodeKind::File, 0o666);
    world.make(ALICE, seen.node(), "g", NodeKind::Directory, 0o777);
    let bobs = world.node(BOB, seen.inode);
    let by_path = Request::ReadDir { path: path("/d"), after: None, limit: 9 };
    let by_node = |directory| Request::ReadNodes { directory, after: None, limit: 9, client_id: None };
    for request in [by_path.clone(), by_node(bobs)] {
        let Response::Directory { entries, more: false } = world.ask(BOB, request) else { panic!("a list") };
        let answer: Vec<_> =
            entries.iter().map(|entry| (entry.name.shown().into_owned(), entry.kind)).collect();
        let kinds = [NodeKind::File.kind(), NodeKind::Directory.kind()];
        assert_eq!(answer, [("f".to_owned(), kinds[0]), ("g".to_owned(), kinds[1])]);
        assert_eq!(entries[0].inode, file.inode);
        assert!(entries.iter().all(|entry| entry.stat.is_none()), "neither proof nor anything else");
    }
    assert_eq!(
        world.refused(BOB, Request::Lookup { parent: bobs, name: name("f"), client_id: None }),
        ErrorCode::Denied
    );
    // A user with search permission gets all attributes.
    for request in [by_path, by_node(seen.node())] {
        let Response::Directory { entries, .. } = world.ask(ALICE, request) else { panic!("a list") };
        assert_eq!(entries[0].stat.as_ref(), Some(&file));
    }
}

#[test]
fn file_revocation_applies_to_open_files() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "f");
    world.write(ALICE, file, 9);
    let bobs = world.node(BOB, file.inode);
    world.opened(BOB, open(bobs, Access::Read));
    world.opened(ALICE, open(file, Access::Update));
    world.node_stat(ALICE, set(file, mode(0o600)));
    assert!(matches!(world.ask(BOB, renew(bobs, Access::Read)), Response::Grants { .. }), "it is open");
    assert!(matches!(world.ask(ALICE, revoke("/f")), Response::Revocation { .. }));
    assert_eq!(world.refused(BOB, renew(bobs, Access::Read)), ErrorCode::Denied);
    assert_eq!(world.refused(BOB, open(bobs, Access::Read)), ErrorCode::Denied);
    assert!(matches!(world.ask(ALICE, renew(file, Access::Update)), Response::Grants { .. }), "hers still");
    // It is not closed: it stays open as long as the client is active, though the client gets no
    // credentials.
    world.node_stat(ALICE, remove(Node::ROOT, "f"));
    world.ask(ALICE, Request::CloseNode { node: file, client_id: CLIENT });
    assert!(matches!(world.ask(BOB, keep(CLIENT)), Response::Kept { held: 1, .. }));
    assert!(code(&world.ask(BOB, Request::GetNode { node: bobs })).is_none());
    let lock = Lock { kind: LockKind::Read, whole: false, start: 0, end: 9, owner: 5, pid: 6 };
    let lock = Request::LockNode { node: bobs, client_id: CLIENT, lock, test: false, reclaim: false };
    assert_eq!(world.ask(BOB, lock), Response::Locked { conflict: None });
    world.ask(BOB, Request::CloseNode { node: bobs, client_id: CLIENT });
    assert_eq!(world.records(b'i'), 1);
}

#[test]
fn user_revocation_applies_to_open_files() {
    let mut world = World::with_devices(1);
    let files = ["f", "g"].map(|at| world.file(ALICE, at));
    for file in files {
        world.write(ALICE, file, 9);
        let bobs = world.node(BOB, file.inode);
        world.opened(BOB, open(bobs, Access::Read));
    }
    world.node_stat(ALICE, set(files[0], mode(0o600)));
    let user = super::super::world::user("bob");
    let begun = world.ask(ADMIN, Request::Revoke { what: RevocationTarget::User(user) });
    assert!(matches!(begun, Response::Revocation { .. }), "{begun:?}");
    while world.mds.collect_revocations(world.now).unwrap() {}
    let [closed, still] = files.map(|file| renew(world.node(BOB, file.inode), Access::Read));
    assert_eq!(world.refused(BOB, closed), ErrorCode::Denied);
    assert!(matches!(world.ask(BOB, still), Response::Grants { .. }), "the mode permits it");
}

#[test]
fn role_change_applies_to_open_files() {
    let (mut world, _) = World::logged(1);
    let name = super::super::world::user("bob");
    let role = |role| Request::UserSetRole { name: name.clone(), role };
    assert!(matches!(world.ask(ADMIN, role(Role::Admin)), Response::Done {}));
    world.session(BOB, "bob", true);
    let file = world.file(ALICE, "f");
    world.write(ALICE, file, 9);
    world.node_stat(ALICE, set(file, mode(0o600)));
    let bobs = world.node(BOB, file.inode);
    world.opened(BOB, open(bobs, Access::Update));
    assert!(matches!(world.ask(ADMIN, role(Role::User)), Response::Done {}));
    while world.mds.collect_revocations(world.now).unwrap() {}
    // The client logs in again by itself with the same client id.
    world.session(BOB, "bob", false);
    let bobs = world.node(BOB, file.inode);
    assert_eq!(world.refused(BOB, renew(bobs, Access::Update)), ErrorCode::Denied);
}

#[test]
fn file_revocation_applies_across_servers() {
    let [mut one, mut other] = World::two(1);
    let file = one.file(ALICE, "f");
    one.write(ALICE, file, 9);
    let bobs = one.node(BOB, file.inode);
    other.opened(BOB, open(bobs, Access::Read));
    one.node_stat(ALICE, set(file, mode(0o600)));
    let Response::Revocation { revocation } = one.ask(ALICE, revoke("/f")) else { panic!("begun") };
    assert!(revocation.collecting, "the other server was not seen yet");
    // Credentials from before it have the new tag; so the objects get yet another one.
    assert!(matches!(other.ask(BOB, renew(bobs, Access::Read)), Response::Grants { .. }));
    let tags = |world: &World| {
        let device = world.mds.retag_devices().unwrap()[0];
        world.mds.next_retags(device, 9).unwrap().iter().map(|item| item.tag).collect::<Vec<_>>()
    };
    let before = tags(&one);
    while other.mds.collect_revocations(other.now).unwrap() {}
    assert_eq!(other.refused(BOB, renew(bobs, Access::Read)), ErrorCode::Denied);
    assert_ne!(tags(&one), before);
    let asked = Request::RevocationProgress { id: revocation.id };
    assert!(matches!(one.ask(ALICE, asked), Response::Revocation { revocation } if !revocation.collecting));
}

#[test]
fn file_without_objects_needs_no_revocation() {
    let mut world = World::with_devices(1);
    world.file(ALICE, "f");
    world.make(ALICE, Node::ROOT, "pipe", NodeKind::Fifo, 0o644);
    world.make(ALICE, Node::ROOT, "d", NodeKind::Directory, 0o755);
    for at in ["/f", "/pipe"] {
        let Response::Revocation { revocation } = world.ask(ALICE, revoke(at)) else { panic!("{at}") };
        assert_eq!((revocation.total, revocation.done_ms), (0, Some(world.now)), "{at}");
    }
    assert_eq!(world.refused(ALICE, revoke("/d")), ErrorCode::IsADirectory);
}

#[test]
fn orphans_wait_for_clients_after_restart() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "f");
    world.write(ALICE, file, 9);
    world.opened(ALICE, open(file, Access::Update));
    world.node_stat(ALICE, remove(Node::ROOT, "f"));
    // It is nearly due when the server ends, and becomes due before the client returns.
    world.now += CLIENT_TIMEOUT_MS - 5;
    world.ask(ALICE, keep(CLIENT));
    world.restart();
    world.now += 10;
    while world.mds.tidy(world.now).unwrap() {}
    let again = Request::OpenNode {
        node: file,
        access: Access::Update,
        method: METHOD,
        client_id: CLIENT,
        reclaim: true,
    };
    assert_eq!(world.opened(ALICE, again).stat.size, 9);
    world.ask(ALICE, Request::CloseNode { node: file, client_id: CLIENT });
    // No client returns for it: it is removed.
    world.now += 3 * CLIENT_TIMEOUT_MS;
    while world.mds.tidy(world.now).unwrap() {}
    assert_eq!((world.records(b'i'), world.records(b'n')), (1, 0));
}

#[test]
fn orphan_open_at_other_server_stays() {
    /// More than one page.
    const OTHERS: usize = 150;
    let [mut one, mut other] = World::two(1);
    assert!(one.mds.leads(one.now).unwrap());
    for n in 0..OTHERS {
        one.file(ALICE, &format!("f{n}"));
    }
    let held = one.file(ALICE, "held");
    other.opened(ALICE, open(held, Access::Read));
    for n in 0..OTHERS {
        one.node_stat(ALICE, remove(Node::ROOT, &format!("f{n}")));
    }
    one.now += 1;
    one.node_stat(ALICE, remove(Node::ROOT, "held"));
    for _ in 0..30 {
        one.now += LEASE_MS / 2;
        other.now = one.now;
        assert!(one.mds.leads(one.now).unwrap() && !other.mds.leads(other.now).unwrap());
        other.ask(ALICE, keep(CLIENT));
        other.mds.tidy_memory(other.now);
        while one.mds.tidy(one.now).unwrap() {}
        assert!(code(&other.ask(ALICE, Request::GetNode { node: held })).is_none());
    }
    assert_eq!((one.records(b'i'), one.records(b'n')), (2, 1), "the others were removed");
    // Its client has ended too.
    for world in [&mut one, &mut other] {
        world.now += 3 * CLIENT_TIMEOUT_MS;
    }
    other.mds.tidy_memory(other.now);
    while one.mds.tidy(one.now).unwrap() {}
    assert_eq!((one.records(b'i'), one.records(b'n'), one.records(b'f')), (1, 0, 0));
}

#[test]
fn clients_without_open_files_leave_no_records() {
    let mut world = World::with_devices(1);
    let closed = world.make(ALICE, Node::ROOT, "d", NodeKind::Directory, 0o700);
    let parent = world.node(BOB, closed.inode);
    let file = world.file(ALICE, "f");
    world.node_stat(ALICE, set(file, mode(0o600)));
    let bobs = world.node(BOB, file.inode);
    for number in 0..CLIENTS_MAX as u64 + 9 {
        let client_id = ClientId { number };
        let expected = if number < CLIENTS_MAX as u64 { ErrorCode::Denied } else { ErrorCode::Limit };
        let Request::MakeNode { name, what, mode, owner, group, .. } =
            make(parent, "new", NodeKind::File, 0o644)
        else {
            panic!("a request")
        };
        let made = Request::MakeNode {
            parent,
            name,
            what,
            mode,
            umask: 0,
            owner,
            group,
            client_id: Some(client_id),
        };
        assert_eq!(world.refused(BOB, made), expected);
        let opened =
            Request::OpenNode { node: bobs, access: Access::Read, method: METHOD, client_id, reclaim: false };
        assert_eq!(world.refused(BOB, opened), expected);
    }
    assert_eq!(world.records(b'f'), CLIENTS_MAX);
    world.now += CLIENT_TIMEOUT_MS + 1;
    while world.mds.tidy(world.now).unwrap() {}
    assert_eq!(world.records(b'f'), 0);
}

#[test]
fn restarted_server_expires_only_own_clients() {
    let [mut one, mut other] = World::two(1);
    let file = one.file(ALICE, "f");
    let bobs = one.node(BOB, file.inode);
    one.opened(ALICE, open(file, Access::Read));
    other.opened(BOB, open(bobs, Access::Read));
    assert_eq!(one.records(b'f'), 2);
    let config = |server| Config { shared: true, server: [server; 16], ..Config::default() };
    let start = |world: &World, server| {
        let mds = Mds::open(Arc::new(world.disk.clone()), config(server)).unwrap();
        mds.tidy_memory(world.now);
        mds
    };
    let again = start(&one, 0x10);
    assert_eq!(one.records(b'f'), 2, "it may come back");
    again.tidy_memory(one.now + CLIENT_TIMEOUT_MS);
    assert_eq!(one.records(b'f'), 1);
    // A third server has no earlier clients and no grace period.
    assert!(!start(&one, 0x30).open_files.is_recovering(one.now));
    let again = start(&other, 0x20);
    assert!(again.open_files.is_recovering(one.now));
    // A client that moved belongs to the other server.
    one.mds = start(&one, 0x10);
    one.take_up();
    one.opened(BOB, open(bobs, Access::Read));
    again.tidy_memory(one.now + CLIENT_TIMEOUT_MS);
    assert_eq!(one.records(b'f'), 1);
}

/// Collects the subject of each record.
#[derive(Default)]
struct Subjects(Mutex<Vec<String>>);

impl AuditSink for Subjects {
    fn record(&self, record: &AuditRecord<'_>) {
        self.0.lock().extend(record.subject.map(str::to_owned));
    }
}

#[test]
fn audit_log_has_no_proofs_or_clients() {
    let mut world = World::with_devices(1);
    let subjects = Arc::new(Subjects::default());
    let mds = Mds::open(Arc::new(world.disk.clone()), Config::default()).unwrap();
    world.mds = mds.with_audit(subjects.clone());
    world.take_up();
    let file = world.file(ALICE, "f");
    world.write(ALICE, file, 9);
    let admins = world.node(ADMIN, file.inode);
    let client_id = ClientId { number: 0x1234_5678_9ABC };
    for (caller, node) in [(ALICE, file), (ADMIN, admins)] {
        world.opened(
            caller,
            Request::OpenNode { node, access: Access::Read, method: METHOD, client_id, reclaim: false },
        );
        for handle in [
            OpenHandle::Node { node, access: Access::Read, client_id },
            OpenHandle::File { node, access: Access::Read },
        ] {
            let renewed = world.ask(caller, Request::RenewGrants { handle, method: METHOD });
            assert!(matches!(renewed, Response::Grants { .. }), "{renewed:?}");
        }
    }
    let subjects = subjects.0.lock();
    let output = format!("node {}", file.inode.0);
    assert!(subjects.iter().filter(|one| **one == output).count() >= 6, "{subjects:?}");
    assert!(subjects.iter().all(|one| !one.contains("proof") && !one.contains("number")), "{subjects:?}");
}
