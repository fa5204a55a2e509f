//! Other clients that read or change a delegated directory wait until all changes are sent.

use super::*;
use crate::leases::REVOKE_AFTER_MS;
use sealstone_mds_protocol::{RenameMode, RevocationTarget};

const METHOD: Method = Method::AllData;

type Make = fn(&mut World, Node) -> Request;

fn rename(from_parent: Node, from: &str, to_parent: Node, to: &str) -> Request {
    Request::RenameNode { from_parent, from: name(from), to_parent, to: name(to), mode: RenameMode::Replace }
}

fn delegate(world: &World, at: &str) -> Request {
    Request::Delegate {
        path: path(at),
        read: true,
        write: false,
        start: 0,
        end: None,
        until_ms: world.now + 1_000,
        method: METHOD,
    }
}

fn at(world: &mut World, id: InodeId) -> Node {
    world.node(ADMIN, id)
}

/// Requests of an administrator about `/p/d`, on which alice has the delegation, and whether they
/// wait.
const ASKED: &[(&str, Make, bool)] = &[
    ("look up", |_, d| Request::Lookup { parent: d, name: name("f"), client_id: None }, true),
    (
        "look up what is not there",
        |_, d| Request::Lookup { parent: d, name: name("x"), client_id: None },
        true,
    ),
    (
        "look up by a holder",
        |_, d| Request::Lookup { parent: d, name: name("f"), client_id: Some(HIS) },
        true,
    ),
    ("list", |_, d| Request::ReadNodes { directory: d, after: None, limit: 9, client_id: None }, true),
    (
        "list by a holder",
        |_, d| Request::ReadNodes { directory: d, after: None, limit: 9, client_id: Some(HIS) },
        true,
    ),
    ("stat", |_, _| Request::Stat { path: path("/p/d/f") }, true),
    ("lstat", |_, _| Request::Lstat { path: path("/p/d/f") }, true),
    ("stat through it", |_, _| Request::Stat { path: path("/p/d/sub/f") }, true),
    ("stat through a link to it", |_, _| Request::Stat { path: path("/link/f") }, true),
    ("placement", |_, _| Request::Placement { path: path("/p/d/f") }, true),
    ("list by path", |_, _| Request::ReadDir { path: path("/p/d"), after: None, limit: 9 }, true),
    ("open", |_, _| Request::Open { path: path("/p/d/f"), access: Access::Read, method: METHOD }, true),
    ("create", |_, _| super::super::world::create("/p/d/new", Some(1)), true),
    ("make a directory", |_, _| Request::MakeDir { path: path("/p/d/n"), parents: false, mode: 0o755 }, true),
    (
        "make directories",
        |_, _| Request::MakeDir { path: path("/p/d/sub/n"), parents: true, mode: 0o755 },
        true,
    ),
    ("rename away", |_, _| Request::Rename { from: path("/p/d/f"), to: path("/e/g"), replace: false }, true),
    ("rename here", |_, _| Request::Rename { from: path("/e/f"), to: path("/p/d/g"), replace: false }, true),
    ("rename itself", |_, _| Request::Rename { from: path("/p/d"), to: path("/p/x"), replace: false }, true),
    ("rename above", |_, _| Request::Rename { from: path("/p"), to: path("/x"), replace: false }, false),
    ("remove", |_, _| Request::Remove { path: path("/p/d/f"), recursive: false }, true),
    ("remove itself", |_, _| Request::Remove { path: path("/p/d"), recursive: true }, true),
    ("remove above", |_, _| Request::Remove { path: path("/p"), recursive: true }, true),
    ("its mode", |_, _| Request::SetMode { path: path("/p/d"), mode: 0o700 }, true),
    ("mode of a file", |_, _| Request::SetMode { path: path("/p/d/f"), mode: 0o600 }, true),
    ("owner", |_, _| Request::SetOwner { path: path("/p/d/f"), owner: Some(user("bob")), group: None }, true),
    ("delegate", |world, _| delegate(world, "/p/d/f"), true),
    ("revoke", |_, _| Request::Revoke { what: RevocationTarget::Object(path("/p/d/f")) }, true),
    ("make by number", |_, d| make(d, "new", NodeKind::Fifo, 0o644), true),
    (
        "link",
        |world, d| {
            let id = world.inode("/e/f");
            Request::LinkNode { node: at(world, id), parent: d, name: name("l") }
        },
        true,
    ),
    ("remove by number", |_, d| Request::RemoveNode { parent: d, name: name("f"), directory: false }, true),
    (
        "remove a directory in it",
        |_, d| Request::RemoveNode { parent: d, name: name("sub"), directory: true },
        true,
    ),
    (
        "remove itself by number",
        |world, _| {
            let id = world.inode("/p");
            Request::RemoveNode { parent: at(world, id), name: name("d"), directory: true }
        },
        true,
    ),
    (
        "replace itself",
        |world, _| {
            let (p, e) = (world.inode("/p"), world.inode("/e"));
            world.mkdir(ADMIN, "/e/empty", 0o755);
            rename(at(world, e), "empty", at(world, p), "d")
        },
        true,
    ),
    ("rename within", |_, d| rename(d, "f", d, "g"), true),
    (
        "exchange",
        |world, d| {
            let e = world.inode("/e");
            let (from_parent, from, to) = (at(world, e), name("f"), name("f"));
            Request::RenameNode { from_parent, from, to_parent: d, to, mode: RenameMode::Exchange }
        },
        true,
    ),
    (
        "attribute of itself",
        |_, d| Request::SetXattr {
            node: d,
            name: XattrName::new("user.a").unwrap(),
            value: XattrValue::new("v").unwrap(),
            mode: XattrMode::Set,
        },
        true,
    ),
    ("look at itself", |_, d| Request::GetNode { node: d }, false),
    ("stat itself", |_, _| Request::Stat { path: path("/p/d") }, false),
    ("list above", |_, _| Request::ReadDir { path: path("/p"), after: None, limit: 9 }, false),
    ("make beside", |_, _| Request::MakeDir { path: path("/p/n"), parents: false, mode: 0o755 }, false),
    (
        "look below",
        |world, _| {
            let below = world.below();
            Request::Lookup { parent: at(world, below), name: name("f"), client_id: None }
        },
        false,
    ),
    (
        "make below",
        |world, _| {
            let below = world.below();
            make(at(world, below), "n", NodeKind::Fifo, 0o644)
        },
        false,
    ),
    ("quotas", |_, _| Request::QuotaList { after: None, limit: 9 }, false),
];

impl World {
    /// The names in the directory.
    fn below(&self) -> InodeId {
        let is_sub = |key: &[u8]| key[0] == b'd' && key.ends_with(b"sub");
        let all = self.disk.dump();
        let (_, value) = all.iter().find(|(key, _)| is_sub(key)).unwrap();
        crate::records::decode(value).unwrap()
    }
}

/// Alice has the delegation on `/p/d`, which has a file and a directory.
fn nested() -> (World, TestClient, DirLeaseId) {
    let (mut world, ..) = world();
    for at in ["/p", "/p/d", "/p/d/sub"] {
        world.mkdir(ADMIN, at, 0o777);
    }
    for at in ["/p/d/f", "/p/d/sub/f"] {
        world.put(ADMIN, at, 1);
    }
    let change = QuotaChange { bytes_max: Some(Some(99)), nodes_max: None };
    world.mkdir(ADMIN, "/p/d/tree", 0o755);
    world.ask(ADMIN, Request::QuotaSet { of: QuotaSubject::Tree(path("/p/d/tree")), change });
    let link = NodeKind::Symlink(LinkTarget::new("p/d").unwrap());
    world.ask(ADMIN, make(Node::ROOT, "link", link, 0o777));
    let d = world.inode("/p/d");
    let mut hers = TestClient::new(&mut world, ALICE, HERS);
    let there = hers.acquire_delegation(&mut world, d);
    (world, hers, there)
}

#[test]
fn other_clients_wait_for_returned_delegation() {
    for (what, ask, waits) in ASKED {
        let (mut world, hers, there) = nested();
        let d = world.node(ADMIN, there.inode);
        let request = ask(&mut world, d);
        let before = world.disk.dump();
        let answer = world.ask(ADMIN, request.clone());
        assert_eq!(is_busy(&answer), *waits, "{what}: {answer:?}");
        let expected: Vec<_> = waits.then_some(there.lease).into_iter().collect();
        assert_eq!(hers.recalled(&mut world), expected, "{what}");
        if !waits {
            assert!(!matches!(answer, Response::Failed { .. }), "{what}: {answer:?}");
            continue;
        }
        assert_eq!(world.disk.dump(), before, "{what}: nothing was done");
        assert!(is_busy(&world.ask(ADMIN, request.clone())), "{what}");
        hers.return_delegation(&mut world, there);
        let answer = world.ask(ADMIN, request);
        assert!(!is_busy(&answer), "{what}: {answer:?}");
    }
}

#[test]
fn own_requests_do_not_recall_own_delegation() {
    let (mut world, mut hers, there) = nested();
    let d = world.node(ALICE, there.inode);
    let asks = [
        Request::Lookup { parent: d, name: name("f"), client_id: Some(HERS) },
        Request::Lookup { parent: d, name: name("x"), client_id: Some(HERS) },
        Request::ReadNodes { directory: d, after: None, limit: 9, client_id: Some(HERS) },
        Request::MakeNode {
            parent: d,
            name: name("own"),
            what: NodeKind::File,
            mode: 0o644,
            umask: 0,
            owner: None,
            group: None,
            client_id: Some(HERS),
        },
    ];
    for request in asks {
        let answer = world.ask(ALICE, request.clone());
        assert!(!is_busy(&answer), "{request:?}: {answer:?}");
    }
    for request in [
        make(d, "n", NodeKind::Directory, 0o755),
        rename(d, "own", d, "mine"),
        Request::RemoveNode { parent: d, name: name("mine"), directory: false },
        Request::RemoveNode { parent: d, name: name("n"), directory: true },
    ] {
        hers.sequence += 1;
        let turn = RequestId { client_id: HERS, slot: 0, sequence: hers.sequence };
        let answer =
            world.ask(ALICE, Request::Once { id: turn, request: ChangeRequest::new(request).unwrap() });
        assert!(!matches!(answer, Response::Failed { .. }), "{answer:?}");
    }
    assert_eq!(hers.recalled(&mut world), [] as [u64; 0]);
    // Another client of alice is a different client, and so is a request without client id.
    for client_id in [None, Some(ClientId { number: 12 })] {
        let asks = Request::Lookup { parent: d, name: name("f"), client_id };
        assert!(is_busy(&world.ask(ALICE, asks)));
    }
    // After the recall the client still sends all its changes.
    let id = hers.number();
    hers.send_all(&mut world, &[make_file(there, "last", id)]);
}

#[test]
fn earlier_put_waits_for_delegation_at_commit() {
    let (mut world, d, _) = world();
    let file = world.create(BOB, "/d/put", Some(1));
    let mut hers = TestClient::new(&mut world, ALICE, HERS);
    let there = hers.acquire_delegation(&mut world, d);
    assert_eq!(world.commit(BOB, file.intent, 1), Err(ErrorCode::Busy));
    assert_eq!(hers.recalled(&mut world), [there.lease]);
    let id = hers.number();
    hers.send_all(&mut world, &[make_file(there, "hers", id)]);
    hers.return_delegation(&mut world, there);
    world.commit(BOB, file.intent, 1).unwrap();
    assert_eq!(world.names_in(d).len(), 3);
}

#[test]
fn batch_under_returned_delegation_is_fenced() {
    let (mut world, mut hers, there) = ahead();
    let e = world.inode("/e");
    let mut his = TestClient::new(&mut world, BOB, HIS);
    let beside = his.acquire_delegation(&mut world, e);
    let before = world.names_in(there.inode);
    let id = hers.number();
    for wrong in [
        DirLeaseId { lease: there.lease + 1, ..there },
        DirLeaseId { epoch: there.epoch ^ 1, ..there },
        DirLeaseId { inode: InodeId(1), ..there },
        DirLeaseId { inode: InodeId(u64::MAX), ..there },
        beside,
    ] {
        let reported = hers.send_batch(&mut world, &[make_file(wrong, "x", id)]);
        assert_eq!(reported, (0, Some(ErrorCode::Fenced), vec![]), "{wrong:?}");
        let f = before[0].1;
        let across = renamed((there, "f"), f, (wrong, "x"), None);
        assert_eq!(hers.send_batch(&mut world, &[across]).1, Some(ErrorCode::Fenced));
    }
    // By the same client id of another user, and by another client of the user.
    let mut others = [
        TestClient { caller: BOB, ..hers.clone() },
        TestClient { client_id: ClientId { number: 12 }, ..hers.clone() },
        TestClient { caller: ADMIN, ..hers.clone() },
    ];
    for other in &mut others {
        assert_eq!(other.send_batch(&mut world, &[make_file(there, "x", id)]).1, Some(ErrorCode::Fenced));
        let back =
            Request::ReturnLease { inode: there.inode, client_id: other.client_id, number: there.lease };
        world.ask(other.caller, back);
    }
    hers.send_all(&mut world, &[make_file(there, "x", id)]);
    // A return with another number has no effect.
    hers.return_delegation(&mut world, DirLeaseId { lease: there.lease + 1, ..there });
    let id = hers.number();
    hers.send_all(&mut world, &[make_file(there, "y", id)]);
    hers.return_delegation(&mut world, there);
    let id = hers.number();
    assert_eq!(hers.send_batch(&mut world, &[make_file(there, "z", id)]).1, Some(ErrorCode::Fenced));
    assert_eq!((world.names_in(there.inode).len(), world.count_of(b'A')), (before.len() + 2, 1));
}

#[test]
fn close_keeps_directory_delegation() {
    let (mut world, mut hers, there) = ahead();
    let node = world.node(ALICE, there.inode);
    assert!(matches!(world.ask(ALICE, Request::CloseNode { node, client_id: HERS }), Response::Kept { .. }));
    let stat = || Request::Stat { path: path("/d/f") };
    assert!(is_busy(&world.ask(BOB, stat())), "his changes may be unsent");
    let inode = there.inode;
    let removal = UnlinkOp { directory: there, name: name("none"), inode, at_ms: 0, close: true };
    assert_eq!(hers.send_batch(&mut world, &[NameChange::Unlink(removal)]).0, 0);
    assert!(is_busy(&world.ask(BOB, stat())));
    let id = hers.number();
    hers.send_all(&mut world, &[make_file(there, "x", id)]);
    hers.return_delegation(&mut world, there);
    assert!(matches!(world.ask(BOB, stat()), Response::Stat { .. }));
}

#[test]
fn unanswered_recall_revokes_delegation() {
    let (mut world, mut hers, there) = ahead();
    let e = world.inode("/e");
    let beside = {
        let (lease, ..) = hers.request_delegation(&mut world, Some(e), 0);
        DirLeaseId { inode: e, epoch: hers.epoch, lease: lease.unwrap().number }
    };
    let stat = || Request::Stat { path: path("/d/f") };
    assert!(is_busy(&world.ask(BOB, stat())));
    world.now += REVOKE_AFTER_MS - 1;
    world.register_caching(ALICE, HERS);
    assert!(is_busy(&world.ask(BOB, stat())));
    world.now += 1;
    // Once more, which ends it.
    assert!(is_busy(&world.ask(BOB, stat())));
    assert!(matches!(world.ask(BOB, stat()), Response::Stat { .. }));
    let id = hers.number();
    assert_eq!(
        hers.send_batch(&mut world, &[make_file(there, "x", id)]),
        (0, Some(ErrorCode::Fenced), vec![])
    );
    // In the other directory no other client waits, and the client is active.
    hers.send_all(&mut world, &[make_file(beside, "x", id)]);
    let (epoch, ..) = world.poll_recalls(ALICE, HERS, hers.epoch, 0);
    assert_ne!(epoch, hers.epoch, "the client gets a new epoch");
    assert_eq!(world.count_of(b'A'), 1);
    world.poll_recalls(ALICE, HERS, epoch, 0);
    assert_eq!(world.count_of(b'A'), 0, "he has nothing left of before");
    assert_eq!(hers.send_batch(&mut world, &[removed(beside, "x", id)]).1, Some(ErrorCode::Fenced));
}

#[test]
fn silent_client_keeps_unneeded_delegation() {
    let (mut world, mut hers, there) = ahead();
    world.now += 10 * crate::open_files::CLIENT_TIMEOUT_MS;
    world.mds.tidy_memory(world.now);
    let id = hers.number();
    hers.send_all(&mut world, &[make_file(there, "x", id)]);
    world.now += 10 * crate::open_files::CLIENT_TIMEOUT_MS;
    world.mds.tidy_memory(world.now);
    // The client was silent for longer than leases are valid.
    let stat = || Request::Stat { path: path("/d/x") };
    assert!(is_busy(&world.ask(BOB, stat())));
    assert!(matches!(world.ask(BOB, stat()), Response::Stat { .. }));
    let id = hers.number();
    assert_eq!(hers.send_batch(&mut world, &[make_file(there, "y", id)]).1, Some(ErrorCode::Fenced));
}

#[test]
fn restart_waits_only_in_delegated_directories() {
    let (mut world, mut hers, there) = ahead();
    let f = world.names_in(there.inode)[0].1;
    world.restart();
    let [mine, other] = ["/d/f", "/e/f"].map(|at| Request::Stat { path: path(at) });
    assert!(matches!(world.ask(BOB, other), Response::Stat { .. }));
    world.mkdir(BOB, "/e/n", 0o755);
    world.mkdir(BOB, "/n", 0o755);
    assert!(is_busy(&world.ask(BOB, mine.clone())));
    // Alice reconnects and sends all changes before she confirms the new epoch, also those in new
    // directories.
    let (epoch, ..) = world.poll_recalls(ALICE, HERS, hers.epoch, 0);
    assert_ne!(epoch, hers.epoch);
    let id = hers.number();
    hers.send_all(&mut world, &[make_file(there, "x", id), removed(there, "f", f)]);
    assert!(is_busy(&world.ask(BOB, mine.clone())), "there may be more");
    world.poll_recalls(ALICE, HERS, epoch, 0);
    assert_eq!(world.refused(BOB, mine), ErrorCode::NotFound);
    assert!(matches!(world.ask(BOB, Request::Stat { path: path("/d/x") }), Response::Stat { .. }));
    let id = hers.number();
    assert_eq!(hers.send_batch(&mut world, &[make_file(there, "y", id)]).1, Some(ErrorCode::Fenced));
    assert_eq!(world.count_of(b'A'), 0);
}

#[test]
fn restart_wait_for_delegation_is_bounded() {
    let (mut world, mut hers, there) = ahead();
    world.restart();
    let stat = || Request::Stat { path: path("/d/f") };
    assert!(is_busy(&world.ask(BOB, stat())));
    world.now += REVOKE_AFTER_MS - 1;
    assert!(is_busy(&world.ask(BOB, stat())));
    world.now += 1;
    world.ask(BOB, stat());
    assert!(matches!(world.ask(BOB, stat()), Response::Stat { .. }));
    let id = hers.number();
    assert_eq!(hers.send_batch(&mut world, &[make_file(there, "x", id)]).1, Some(ErrorCode::Fenced));
}

#[test]
fn shared_store_refuses_earlier_delegations() {
    let (mut world, mut hers, there) = ahead();
    let single = world.mds.config.clone();
    world.mds.config.shared = true;
    world.restart();
    let stat = Request::Stat { path: path("/d/f") };
    assert!(matches!(world.ask(BOB, stat.clone()), Response::Stat { .. }), "nobody is waited for");
    let id = hers.number();
    assert_eq!(hers.send_batch(&mut world, &[make_file(there, "x", id)]).1, Some(ErrorCode::Fenced));
    world.mds.config = single;
    world.restart();
    assert!(matches!(world.ask(BOB, stat), Response::Stat { .. }));
    assert_eq!(hers.send_batch(&mut world, &[make_file(there, "x", id)]).1, Some(ErrorCode::Fenced));
}

#[test]
fn removed_directory_leaves_no_delegation() {
    for replaced in [false, true] {
        let (mut world, ..) = world();
        world.mkdir(ALICE, "/a", 0o755);
        world.mkdir(ALICE, "/b", 0o755);
        let a = world.inode("/a");
        let mut hers = TestClient::new(&mut world, ALICE, HERS);
        let there = hers.acquire_delegation(&mut world, a);
        let request = if replaced {
            rename(Node::ROOT, "b", Node::ROOT, "a")
        } else {
            Request::RemoveNode { parent: Node::ROOT, name: name("a"), directory: true }
        };
        hers.sequence += 1;
        let turn = RequestId { client_id: HERS, slot: 0, sequence: hers.sequence };
        let answer =
            world.ask(ALICE, Request::Once { id: turn, request: ChangeRequest::new(request).unwrap() });
        assert!(!matches!(answer, Response::Failed { .. }), "{answer:?}");
        assert_eq!((world.mds.lease_count(), world.count_of(b'A')), (0, 0));
        let id = hers.number();
        assert_eq!(hers.send_batch(&mut world, &[make_file(there, "x", id)]).1, Some(ErrorCode::Fenced));
    }
}

#[test]
fn concurrent_requests_revoke_delegation_once() {
    let (mut world, mut hers, there) = ahead();
    let stat = || Request::Stat { path: path("/d/f") };
    assert!(is_busy(&world.ask(BOB, stat())));
    world.now += REVOKE_AFTER_MS;
    world.register_caching(ALICE, HERS);
    // A second request found the same, and was slower.
    let caller = (user("alice"), HERS);
    world.mds.leases.queue_fence(there.inode, vec![caller.clone()]);
    assert!(is_busy(&world.ask(BOB, stat())));
    assert_eq!((world.count_of(b'F'), world.count_of(b'A')), (0, 0), "nothing is there to be fenced");
    let (epoch, ..) = world.poll_recalls(ALICE, HERS, hers.epoch, 0);
    hers.epoch = epoch;
    world.poll_recalls(ALICE, HERS, epoch, 0);
    world.keep_active(ALICE, HERS, crate::leases::penalty::FIRST_MS);
    // And another one even later, when alice has the delegation again.
    let there = hers.acquire_delegation(&mut world, there.inode);
    world.mds.leases.queue_fence(there.inode, vec![caller]);
    world.mds.fence_unreturned(world.now);
    assert_eq!(world.poll_recalls(ALICE, HERS, epoch, 0).0, epoch);
    let id = hers.number();
    hers.send_all(&mut world, &[make_file(there, "x", id)]);
}
