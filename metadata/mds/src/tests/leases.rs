//! Leases: conflicts, recalls, and when the server stops waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, ChangeRequest, ClientId, ErrorCode, InodeId, LeaseKind, Lock, LockKind, Method, Node, NodeChange,
    NodeKind, NodeLease, Recall, RenameMode, Request, RequestId, Response, RevocationTarget, Role, XattrMode,
    XattrName, XattrValue,
};

use super::nodes::name;
use super::world::{ADMIN, ALICE, BOB, World, create, path, user};
use crate::leases::{GRANT_BLOCK_MS, LEASE_VALID_MS, REVOKE_AFTER_MS};
use crate::open_files::CLIENT_TIMEOUT_MS;

const METHOD: Method = Method::AllData;
/// The clients of alice and bob, and one of bob without leases.
const HERS: ClientId = ClientId { number: 11 };
const HIS: ClientId = ClientId { number: 22 };
const PLAIN: ClientId = ClientId { number: 33 };

fn open(node: Node, access: Access, client_id: ClientId) -> Request {
    Request::OpenNode { node, access, method: METHOD, client_id, reclaim: false }
}

fn recalls(client_id: ClientId, epoch: u64, known: u64) -> Request {
    Request::Recalls { client_id, epoch, known, wait_ms: 0 }
}

fn written(node: Node, size_at_least: u64, generation: u32, client_id: ClientId) -> Request {
    Request::Written { node, size_at_least, mtime_ns: None, generation, made: true, fit: false, client_id }
}

fn set(node: Node, change: NodeChange, client_id: Option<ClientId>) -> Request {
    Request::SetNode { node, change, client_id, through: false }
}

fn mode(mode: u16) -> NodeChange {
    NodeChange { mode: Some(mode), ..NodeChange::default() }
}

pub(super) fn set_mode(node: Node, bits: u16) -> Request {
    set(node, mode(bits), None)
}

fn lease(node: Node, client_id: ClientId, kind: LeaseKind) -> Request {
    Request::LeaseNode { node, client_id, kind }
}

fn attribute() -> XattrName {
    XattrName::new("user.a").unwrap()
}

pub(super) fn is_busy(response: &Response) -> bool {
    matches!(response, Response::Failed { failure } if failure.code == ErrorCode::Busy)
}

impl World {
    pub(super) fn poll_recalls(
        &mut self,
        caller: SessionId,
        client_id: ClientId,
        epoch: u64,
        known: u64,
    ) -> (u64, u64, Vec<Recall>) {
        match self.ask(caller, recalls(client_id, epoch, known)) {
            Response::Recalls { epoch, last, recalls, .. } => (epoch, last, recalls),
            other => panic!("{other:?}"),
        }
    }

    /// A client registers and confirms its epoch.
    pub(super) fn register_caching(&mut self, caller: SessionId, client_id: ClientId) -> u64 {
        let (epoch, ..) = self.poll_recalls(caller, client_id, 0, 0);
        assert_eq!(self.poll_recalls(caller, client_id, epoch, 0).0, epoch);
        epoch
    }

    /// The client stays active for this long.
    pub(super) fn keep_active(&mut self, caller: SessionId, client_id: ClientId, ms: u64) {
        for _ in 0..ms.div_ceil(1000) {
            self.now += 1000;
            let (epoch, ..) = self.poll_recalls(caller, client_id, 0, 0);
            self.poll_recalls(caller, client_id, epoch, 0);
        }
    }

    /// A file of alice that all users may write, with bytes.
    pub(super) fn shared_file(&mut self, at: &str) -> Node {
        let file = self.file(ALICE, at);
        self.node_stat(ALICE, set(file, mode(0o666), None));
        self.write(ALICE, file, 9);
        let close = Request::CloseNode { node: file, client_id: super::nodes::CLIENT };
        assert!(matches!(self.ask(ALICE, close), Response::Kept { .. }));
        file
    }

    fn leased(&mut self, caller: SessionId, request: Request) -> Option<NodeLease> {
        match self.ask(caller, request) {
            Response::Leased { lease, .. } => lease,
            Response::NodeOpened { node } => node.lease,
            other => panic!("{other:?}"),
        }
    }

    /// Alice's mount has the file leased.
    fn holding(&mut self, file: Node, kind: LeaseKind) -> (u64, NodeLease) {
        let epoch = self.register_caching(ALICE, HERS);
        let access = if kind == LeaseKind::Read { Access::Read } else { Access::Update };
        let given = self.leased(ALICE, open(file, access, HERS)).expect("no conflicting lease");
        assert_eq!((given.kind, given.epoch), (kind, epoch));
        (epoch, given)
    }
}

impl World {
    /// Each device gets the tags of its objects.
    pub(super) fn apply_device_tags(&mut self) -> usize {
        let mut reported = 0;
        for device in self.mds.retag_devices().unwrap() {
            let items = self.mds.next_retags(device, 99).unwrap();
            reported += items.len();
            self.mds.retagged(&items, self.now).unwrap();
        }
        reported
    }
}

type Make = fn(&mut World, InodeId) -> Request;

/// Requests of other clients, and whether they conflict with a read lease or a write lease.
const ASKED: &[(&str, Make, bool, bool)] = &[
    ("look", |world, id| Request::GetNode { node: world.node(ADMIN, id) }, false, false),
    (
        "look up",
        |_, _| Request::Lookup { parent: Node::ROOT, name: name("f"), client_id: None },
        false,
        false,
    ),
    (
        "list",
        |_, _| Request::ReadNodes { directory: Node::ROOT, after: None, limit: 9, client_id: None },
        false,
        false,
    ),
    ("look by path", |_, _| Request::Stat { path: path("/f") }, false, false),
    ("attributes", |world, id| Request::ListXattr { node: world.node(ADMIN, id) }, false, false),
    ("open to read", |world, id| open(world.node(ADMIN, id), Access::Read, PLAIN), false, true),
    ("open to write", |world, id| open(world.node(ADMIN, id), Access::Update, PLAIN), true, true),
    (
        "open by path to read",
        |_, _| Request::Open { path: path("/f"), access: Access::Read, method: METHOD },
        false,
        true,
    ),
    (
        "open by path to write",
        |_, _| Request::Open { path: path("/f"), access: Access::Update, method: METHOD },
        true,
        true,
    ),
    ("mode", |world, id| set(world.node(ADMIN, id), mode(0o600), None), true, true),
    (
        "cut",
        |world, id| set(world.node(ADMIN, id), NodeChange { size: Some(0), ..NodeChange::default() }, None),
        true,
        true,
    ),
    ("mode by path", |_, _| Request::SetMode { path: path("/f"), mode: 0o600 }, true, true),
    (
        "owner by path",
        |_, _| Request::SetOwner { path: path("/f"), owner: Some(user("uid-5")), group: None },
        true,
        true,
    ),
    (
        "link",
        |world, id| Request::LinkNode { node: world.node(ADMIN, id), parent: Node::ROOT, name: name("g") },
        true,
        true,
    ),
    (
        "remove",
        |_, _| Request::RemoveNode { parent: Node::ROOT, name: name("f"), directory: false },
        true,
        true,
    ),
    ("remove by path", |_, _| Request::Remove { path: path("/f"), recursive: false }, true, true),
    (
        "rename over",
        |world, _| {
            world.put(ADMIN, "/other", 1);
            Request::RenameNode {
                from_parent: Node::ROOT,
                from: name("other"),
                to_parent: Node::ROOT,
                to: name("f"),
                mode: RenameMode::Replace,
            }
        },
        true,
        true,
    ),
    (
        "put over",
        |world, _| {
            let Response::Created { file } = world.ask(ADMIN, create("/f", Some(3))) else {
                panic!("created")
            };
            Request::Commit { intent: file.intent, size: 3, mtime_ns: None, checksum: None }
        },
        true,
        true,
    ),
    (
        "set attribute",
        |world, id| Request::SetXattr {
            node: world.node(ADMIN, id),
            name: attribute(),
            value: XattrValue::new("v").unwrap(),
            mode: XattrMode::Set,
        },
        true,
        true,
    ),
    (
        "delegate to read",
        |world, _| Request::Delegate {
            path: path("/f"),
            read: true,
            write: false,
            start: 0,
            end: None,
            until_ms: world.now + 1000,
            method: METHOD,
        },
        false,
        true,
    ),
    (
        "delegate to write",
        |world, _| Request::Delegate {
            path: path("/f"),
            read: false,
            write: true,
            start: 0,
            end: None,
            until_ms: world.now + 1000,
            method: METHOD,
        },
        true,
        true,
    ),
    ("live", |_, _| Request::KeepNodes { client_id: PLAIN }, false, false),
];

#[test]
fn requests_wait_for_conflicting_leases_only() {
    for (what, make, read, write) in ASKED {
        for (kind, waits) in [(LeaseKind::Read, *read), (LeaseKind::Write, *write)] {
            let mut world = World::with_devices(1);
            let file = world.shared_file("f");
            let (epoch, given) = world.holding(file, kind);
            let request = make(&mut world, file.inode);
            let answer = world.ask(ADMIN, request.clone());
            assert_eq!(is_busy(&answer), waits, "{what} against {kind:?}: {answer:?}");
            let (_, last, recalls) = world.poll_recalls(ALICE, HERS, epoch, 0);
            let expected: Vec<_> =
                waits.then_some(Recall { inode: file.inode, number: given.number }).into_iter().collect();
            assert_eq!(recalls, expected, "{what} against {kind:?}");
            // Recalled once; the request still waits.
            assert_eq!(world.poll_recalls(ALICE, HERS, epoch, last), (epoch, last, vec![]));
            if !waits {
                assert!(!matches!(answer, Response::Failed { .. }), "{what}: {answer:?}");
                continue;
            }
            assert!(is_busy(&world.ask(ADMIN, request.clone())), "{what}: nothing was done");
            let back = Request::ReturnLease { inode: file.inode, client_id: HERS, number: given.number };
            assert!(matches!(world.ask(ALICE, back), Response::Done {}));
            let answer = world.ask(ADMIN, request);
            assert!(!matches!(answer, Response::Failed { .. }), "{what} against {kind:?}: {answer:?}");
        }
    }
}

#[test]
fn write_lease_client_changes_file_without_recall() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    let (epoch, _) = world.holding(file, LeaseKind::Write);
    let once = |number, request| {
        let turn = RequestId { client_id: HERS, slot: 0, sequence: number };
        Request::Once { id: turn, request: ChangeRequest::new(request).unwrap() }
    };
    let generation = world.node_stat(ALICE, Request::GetNode { node: file }).generation;
    for request in [
        set(file, mode(0o640), Some(HERS)),
        written(file, 20, generation, HERS),
        Request::Allocate { node: file, size_hint: None, method: METHOD, client_id: HERS },
        open(file, Access::Update, HERS),
        once(1, Request::LinkNode { node: file, parent: Node::ROOT, name: name("g") }),
        once(2, Request::RemoveNode { parent: Node::ROOT, name: name("g"), directory: false }),
        once(3, Request::RemoveNode { parent: Node::ROOT, name: name("f"), directory: false }),
    ] {
        let answer = world.ask(ALICE, request);
        assert!(!matches!(answer, Response::Failed { .. }), "{answer:?}");
    }
    assert_eq!(world.poll_recalls(ALICE, HERS, epoch, 0).2, []);
}

#[test]
fn read_leases_share_write_lease_is_exclusive() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    let (hers, first) = world.holding(file, LeaseKind::Read);
    let his = world.register_caching(BOB, HIS);
    let bobs = world.node(BOB, file.inode);
    let second = world.leased(BOB, open(bobs, Access::Read, HIS)).expect("both read");
    assert_eq!(world.mds.lease_count(), 2);
    // BOB requests an upgrade: ALICE's lease is recalled, and BOB keeps the read lease until then.
    assert!(is_busy(&world.ask(BOB, lease(bobs, HIS, LeaseKind::Write))));
    assert_eq!(
        world.poll_recalls(ALICE, HERS, hers, 0).2,
        [Recall { inode: file.inode, number: first.number }]
    );
    assert_eq!(world.poll_recalls(BOB, HIS, his, 0).2, []);
    world.ask(ALICE, Request::ReturnLease { inode: file.inode, client_id: HERS, number: first.number });
    // His request has priority over others.
    assert!(is_busy(&world.ask(ALICE, lease(file, HERS, LeaseKind::Read))));
    let third = world.leased(BOB, lease(bobs, HIS, LeaseKind::Write)).expect("alone");
    assert!(third.number > second.number && third.kind == LeaseKind::Write);
    // A return of the old lease has no effect.
    world.ask(BOB, Request::ReturnLease { inode: bobs.inode, client_id: HIS, number: second.number });
    assert_eq!(world.mds.lease_count(), 1);
    assert!(is_busy(&world.ask(ALICE, lease(file, HERS, LeaseKind::Read))));
    world.ask(BOB, Request::CloseNode { node: bobs, client_id: HIS });
    assert!(world.leased(ALICE, lease(file, HERS, LeaseKind::Read)).is_some(), "closing gives it back");
}

#[test]
fn lease_requires_confirmed_epoch_and_recent_contact() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    assert_eq!(world.leased(ALICE, open(file, Access::Read, HERS)), None, "it never asked for recalls");
    let (epoch, ..) = world.poll_recalls(ALICE, HERS, 0, 0);
    assert_eq!(world.leased(ALICE, open(file, Access::Read, HERS)), None, "it may have some of before");
    world.poll_recalls(ALICE, HERS, epoch, 0);
    assert!(world.leased(ALICE, open(file, Access::Read, HERS)).is_some());
    world.now += LEASE_VALID_MS + 1;
    assert_eq!(world.leased(ALICE, lease(file, HERS, LeaseKind::Write)), None, "it does not answer");
}

#[test]
fn new_file_grants_write_lease_to_creator() {
    let mut world = World::with_devices(1);
    world.register_caching(ALICE, HERS);
    let (parent, what) = (Node::ROOT, NodeKind::File);
    let make = |at: &str, client_id| Request::MakeNode {
        parent,
        name: name(at),
        what: what.clone(),
        mode: 0o666,
        umask: 0,
        owner: None,
        group: None,
        client_id: Some(client_id),
    };
    let made = world.ask(ALICE, make("f", HERS));
    assert!(
        matches!(made, Response::Made { lease: NodeLease { kind: LeaseKind::Write, .. }, .. }),
        "{made:?}"
    );
    assert!(matches!(world.ask(ALICE, make("g", PLAIN)), Response::Stat { .. }));
}

#[test]
fn no_lease_while_client_writes_without_one() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    let bobs = world.node(BOB, file.inode);
    world.opened(BOB, open(bobs, Access::Update, PLAIN));
    world.register_caching(ALICE, HERS);
    assert_eq!(world.leased(ALICE, open(file, Access::Read, HERS)), None);
    world.now += GRANT_BLOCK_MS;
    world.register_caching(ALICE, HERS);
    assert_eq!(world.leased(ALICE, lease(file, HERS, LeaseKind::Read)), None);
    world.ask(BOB, Request::CloseNode { node: bobs, client_id: PLAIN });
    assert!(world.leased(ALICE, lease(file, HERS, LeaseKind::Read)).is_some());
    // An open by path blocks leases as long as its credential is valid.
    let by_path = Request::Open { path: path("/f"), access: Access::Update, method: METHOD };
    assert!(is_busy(&world.ask(BOB, by_path.clone())));
    world.ask(ALICE, Request::CloseNode { node: file, client_id: HERS });
    world.open(BOB, by_path);
    world.now += world.mds.config.grant_lifetime_ms() - 1;
    world.register_caching(ALICE, HERS);
    assert_eq!(world.leased(ALICE, open(file, Access::Read, HERS)), None);
    world.now += 2;
    assert!(world.leased(ALICE, open(file, Access::Read, HERS)).is_some());
}

#[test]
fn recall_waits_until_lease_expires() {
    for kind in [LeaseKind::Read, LeaseKind::Write] {
        let mut world = World::with_devices(1);
        let file = world.shared_file("f");
        let (epoch, _) = world.holding(file, kind);
        let remove = Request::Remove { path: path("/f"), recursive: false };
        world.now += 5_000;
        assert!(is_busy(&world.ask(ADMIN, remove.clone())));
        // He was last seen earlier.
        world.now += REVOKE_AFTER_MS - 5_001;
        assert!(is_busy(&world.ask(ADMIN, remove.clone())));
        world.now += 1;
        let mut answer = world.ask(ADMIN, remove.clone());
        for _ in 0..3 {
            if is_busy(&answer) {
                world.apply_device_tags();
                answer = world.ask(ADMIN, remove.clone());
            }
        }
        assert!(matches!(answer, Response::Removed { .. }), "{kind:?}: {answer:?}");
        // He receives a new epoch.
        assert_ne!(world.poll_recalls(ALICE, HERS, epoch, 0).0, epoch);
    }
}

#[test]
fn unreturned_lease_is_revoked_despite_contact() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    let (epoch, _) = world.holding(file, LeaseKind::Write);
    let change = Request::SetMode { path: path("/f"), mode: 0o600 };
    assert!(is_busy(&world.ask(ADMIN, change.clone())));
    let (mut waited, mut known) = (0, 0);
    while is_busy(&world.ask(ADMIN, change.clone())) {
        world.apply_device_tags();
        known = world.poll_recalls(ALICE, HERS, epoch, known).1;
        world.now += 1_000;
        waited += 1_000;
        assert!(waited < 2 * REVOKE_AFTER_MS);
    }
    assert!(waited >= LEASE_VALID_MS);
    assert!(world.mds.counters.leases_fenced.load(Ordering::Relaxed) == 1);
}

#[test]
fn fenced_client_cannot_report_old_writes() {
    let mut world = World::with_devices(2);
    let file = world.shared_file("f");
    let (epoch, _) = world.holding(file, LeaseKind::Write);
    let bobs = world.node(BOB, file.inode);
    world.now += REVOKE_AFTER_MS + 1;
    let generation = world.node_stat(ALICE, Request::GetNode { node: file }).generation;
    assert!(is_busy(&world.ask(BOB, open(bobs, Access::Read, PLAIN))));
    assert!(is_busy(&world.ask(BOB, open(bobs, Access::Read, PLAIN))));
    // Not before every device refuses the fenced client's credentials.
    for _ in 0..5 {
        assert!(is_busy(&world.ask(BOB, open(bobs, Access::Read, PLAIN))));
    }
    let again = Request::OpenNode {
        node: file,
        access: Access::Update,
        method: METHOD,
        client_id: HERS,
        reclaim: true,
    };
    let handle =
        sealstone_mds_protocol::OpenHandle::Node { node: file, access: Access::Update, client_id: HERS };
    let late = [
        written(file, 99, generation, HERS),
        Request::Allocate { node: file, size_hint: None, method: METHOD, client_id: HERS },
        Request::RenewGrants { handle, method: METHOD },
        again,
    ];
    for request in &late {
        assert_eq!(world.refused(ALICE, request.clone()), ErrorCode::Fenced);
    }
    assert_eq!(world.apply_device_tags(), 1);
    while is_busy(&world.ask(BOB, open(bobs, Access::Read, PLAIN))) {}
    for request in &late {
        assert_eq!(world.refused(ALICE, request.clone()), ErrorCode::Fenced);
    }
    assert!(is_busy(&world.ask(ALICE, open(file, Access::Update, HERS))), "it is to hear of it first");
    let (now_era, ..) = world.poll_recalls(ALICE, HERS, epoch, 0);
    assert_ne!(now_era, epoch);
    world.poll_recalls(ALICE, HERS, now_era, 0);
    world.opened(ALICE, open(file, Access::Update, HERS));
    world.node_stat(ALICE, written(file, 99, generation, HERS));
}

#[test]
fn restart_waits_for_earlier_leases() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    let other = world.shared_file("other");
    let (epoch, _) = world.holding(file, LeaseKind::Write);
    world.restart();
    // The files of earlier leases are unknown; reads of attributes and other names do not wait.
    let change = Request::SetMode { path: path("/other"), mode: 0o600 };
    assert!(is_busy(&world.ask(ADMIN, change.clone())));
    assert!(is_busy(&world.ask(BOB, open(world.node(BOB, other.inode), Access::Read, PLAIN))));
    assert!(matches!(world.ask(BOB, Request::Stat { path: path("/f") }), Response::Stat { .. }));
    world.mkdir(BOB, "/d", 0o755);
    // The client reports its writes before it confirms the new epoch.
    let (now_era, ..) = world.poll_recalls(ALICE, HERS, epoch, 0);
    assert_ne!(now_era, epoch);
    let again = Request::OpenNode {
        node: file,
        access: Access::Update,
        method: METHOD,
        client_id: HERS,
        reclaim: true,
    };
    let generation = world.opened(ALICE, again).stat.generation;
    world.node_stat(ALICE, written(file, 77, generation, HERS));
    assert!(is_busy(&world.ask(ADMIN, change.clone())));
    world.poll_recalls(ALICE, HERS, now_era, 0);
    assert!(matches!(world.ask(ADMIN, change), Response::Stat { .. }), "all have come back");
    // There was also a client without leases, which may return and write.
    assert_eq!(world.leased(ALICE, lease(file, HERS, LeaseKind::Write)), None);
    for _ in 0..CLIENT_TIMEOUT_MS / 10_000 + 1 {
        world.now += 10_000;
        world.register_caching(ALICE, HERS);
    }
    assert!(world.leased(ALICE, lease(file, HERS, LeaseKind::Write)).is_some());
}

#[test]
fn restart_wait_ends_when_leases_expire() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    world.holding(file, LeaseKind::Read);
    world.restart();
    let change = Request::SetMode { path: path("/f"), mode: 0o600 };
    assert!(is_busy(&world.ask(ADMIN, change.clone())));
    world.now += REVOKE_AFTER_MS - 1;
    assert!(is_busy(&world.ask(ADMIN, change.clone())));
    world.now += 1;
    assert!(matches!(world.ask(ADMIN, change), Response::Stat { .. }));
}

#[test]
fn ended_client_has_no_state() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    let orphan = world.file(ALICE, "orphan");
    world.opened(ALICE, open(orphan, Access::Update, HERS));
    let (epoch, _) = world.holding(file, LeaseKind::Write);
    let remove = Request::RemoveNode { parent: Node::ROOT, name: name("orphan"), directory: false };
    world.ask(ALICE, remove);
    world.node_stat(ALICE, Request::GetNode { node: orphan });
    let change = Request::SetMode { path: path("/f"), mode: 0o600 };
    assert!(is_busy(&world.ask(ADMIN, change.clone())));
    for _ in 0..2 {
        assert!(matches!(world.ask(ALICE, Request::EndClient { client_id: HERS }), Response::Done {}));
    }
    assert_eq!(world.mds.lease_count(), 0);
    assert_eq!(world.refused(ALICE, Request::GetNode { node: orphan }), ErrorCode::Stale);
    assert!(matches!(world.ask(ADMIN, change.clone()), Response::Stat { .. }));
    // The end of the pending `Recalls` does not register the client again.
    assert_eq!(world.poll_recalls(ALICE, HERS, epoch, 0), (0, 0, vec![]));
    world.restart();
    assert!(matches!(world.ask(ADMIN, change), Response::Stat { .. }), "nobody may come back");
    // A client that continues is registered again.
    world.opened(ALICE, open(file, Access::Read, HERS));
    assert_ne!(world.poll_recalls(ALICE, HERS, epoch, 0).0, 0);
}

#[test]
fn shared_store_grants_no_leases() {
    let [mut one, _] = World::two(1);
    let file = one.file(ALICE, "f");
    assert_eq!(one.poll_recalls(ALICE, HERS, 0, 0), (0, 0, vec![]));
    assert_eq!(one.leased(ALICE, open(file, Access::Update, HERS)), None);
    assert_eq!(one.leased(ALICE, lease(file, HERS, LeaseKind::Write)), None);
}

#[test]
fn role_change_recalls_leases() {
    let mut world = World::with_accounts(1);
    let file = world.shared_file("f");
    let (epoch, given) = world.holding(file, LeaseKind::Read);
    assert!(matches!(
        world.ask(ADMIN, Request::Revoke { what: RevocationTarget::Object(path("/f")) }),
        Response::Revocation { .. }
    ));
    assert_eq!(
        world.poll_recalls(ALICE, HERS, epoch, 0).2,
        [Recall { inode: file.inode, number: given.number }]
    );
    assert!(matches!(
        world.ask(ADMIN, Request::Revoke { what: RevocationTarget::User(user("alice")) }),
        Response::Revocation { .. }
    ));
    while world.mds.collect_revocations(world.now).unwrap() {}
    let (second, ..) = world.poll_recalls(ALICE, HERS, epoch, 0);
    assert_ne!(second, epoch);
    world.poll_recalls(ALICE, HERS, second, 0);
    assert_eq!(world.mds.lease_count(), 0);
    world.session_as(ALICE, "alice", Role::ReadOnly);
    assert_ne!(world.poll_recalls(ALICE, HERS, second, 0).0, second);
}

#[test]
fn lease_requires_open_file_and_permission() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    world.register_caching(BOB, HIS);
    let bobs = world.node(BOB, file.inode);
    assert_eq!(world.refused(BOB, lease(bobs, HIS, LeaseKind::Read)), ErrorCode::Invalid);
    world.opened(BOB, open(bobs, Access::Read, HIS));
    world.ask(BOB, Request::ReturnLease { inode: bobs.inode, client_id: HIS, number: 1 });
    world.register_caching(BOB, HIS);
    let (_, last, _) = world.poll_recalls(BOB, HIS, 0, 0);
    while is_busy(&world.ask(ALICE, set(file, mode(0o644), None))) {
        let (epoch, _, recalls) = world.poll_recalls(BOB, HIS, 0, last);
        for recall in recalls {
            world.ask(BOB, Request::ReturnLease { inode: bobs.inode, client_id: HIS, number: recall.number });
        }
        world.poll_recalls(BOB, HIS, epoch, last);
    }
    assert_eq!(world.refused(BOB, lease(bobs, HIS, LeaseKind::Write)), ErrorCode::Denied);
    let lock = Lock { kind: LockKind::Read, whole: false, start: 0, end: 9, owner: 5, pid: 6 };
    let lock = Request::LockNode { node: bobs, client_id: HIS, lock, test: false, reclaim: false };
    assert_eq!(world.ask(BOB, lock), Response::Locked { conflict: None });
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn recall_wakes_pending_request() {
    let mut world = World::with_devices(1);
    let file = world.shared_file("f");
    let (epoch, _) = world.holding(file, LeaseKind::Read);
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(flag.clone());
    let body = Request::Recalls { client_id: HERS, epoch, known: 0, wait_ms: 9_999 }.encode(1).unwrap();
    let waiting = world.mds.waiting(&ALICE, &body).expect("it may wait");
    assert!(waiting.max_ms() < 9_999);
    assert!(!world.mds.has_recalls(&waiting, &waker));
    world.ask(BOB, Request::Stat { path: path("/f") });
    assert!(!flag.0.load(Ordering::SeqCst));
    world.ask(ADMIN, Request::SetMode { path: path("/f"), mode: 0o600 });
    assert!(flag.0.load(Ordering::SeqCst));
    assert!(world.mds.has_recalls(&waiting, &waker));
    // An unknown client, or one of another epoch, does not wait.
    let body =
        Request::Recalls { client_id: HERS, epoch: epoch + 1, known: 0, wait_ms: 9_999 }.encode(1).unwrap();
    assert!(world.mds.has_recalls(&world.mds.waiting(&ALICE, &body).unwrap(), &waker));
    assert!(world.mds.waiting(&[9; 16], &body).is_none());
}
