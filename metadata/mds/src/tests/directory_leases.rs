//! Leases on directories: granted with lookups, and recalled by conflicting changes of names.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    ChangeRequest, ClientId, ErrorCode, LeaseKind, Name, Node, NodeKind, NodeLease, Recall, RenameMode,
    Request, RequestId, Response, SetTime, Stat,
};

use super::leases::is_busy;
use super::nodes::{make, name};
use super::world::{ADMIN, ALICE, BOB, World, path};
use crate::leases::{RECALL_COOLDOWN_MS, UNREQUESTED_PER_CLIENT_MAX};

const HERS: ClientId = ClientId { number: 11 };
const HIS: ClientId = ClientId { number: 22 };

fn lookup(parent: Node, name: Name) -> Request {
    Request::Lookup { parent, name, client_id: Some(HERS) }
}

fn remove(parent: Node, at: &str, directory: bool) -> Request {
    Request::RemoveNode { parent, name: name(at), directory }
}

fn rename(from_parent: Node, from: &str, to_parent: Node, to: &str) -> Request {
    Request::RenameNode { from_parent, from: name(from), to_parent, to: name(to), mode: RenameMode::Replace }
}

impl World {
    /// Returns the attributes of a lookup, and the leases on the directory and the node.
    fn looked(
        &mut self,
        caller: SessionId,
        request: Request,
    ) -> (Option<Stat>, Option<NodeLease>, Option<NodeLease>) {
        match self.ask(caller, request) {
            Response::LookedUp { stat, directory, lease } => (stat, directory, lease),
            Response::Stat { stat } => (Some(stat), None, None),
            Response::Failed { failure } if failure.code == ErrorCode::NotFound => (None, None, None),
            other => panic!("{other:?}"),
        }
    }

    /// Creates a directory that all users may change, with a file and a directory in it, and
    /// another one beside it.
    fn directories(&mut self) -> (Node, Node) {
        self.mkdir(ADMIN, "/d", 0o777);
        self.mkdir(ADMIN, "/d/sub", 0o777);
        self.mkdir(ADMIN, "/e", 0o777);
        self.put(ADMIN, "/d/f", 1);
        self.put(ADMIN, "/e/f", 1);
        (self.node_at("/d"), self.node_at("/e"))
    }

    fn node_at(&mut self, at: &str) -> Node {
        let inode = self.stat(ADMIN, at).unwrap().inode;
        self.node(ADMIN, inode)
    }
}

type MakeRequest = fn(Node, Node) -> Request;

/// Requests with two directories, and whether each changes names in the first one.
const NAME_REQUESTS: &[(&str, MakeRequest, bool)] = &[
    ("make", |d, _| make(d, "new", NodeKind::Fifo, 0o644), true),
    ("make a directory", |d, _| make(d, "new", NodeKind::Directory, 0o755), true),
    (
        "make a directory by path",
        |_, _| Request::MakeDir { path: path("/d/new"), parents: false, mode: 0o755 },
        true,
    ),
    ("remove", |d, _| remove(d, "f", false), true),
    ("remove a directory", |d, _| remove(d, "sub", true), true),
    ("remove by path", |_, _| Request::Remove { path: path("/d/f"), recursive: false }, true),
    ("rename within", |d, _| rename(d, "f", d, "g"), true),
    ("rename away", |d, e| rename(d, "f", e, "g"), true),
    ("rename here", |d, e| rename(e, "f", d, "g"), true),
    ("rename by path", |_, _| Request::Rename { from: path("/e/f"), to: path("/d/g"), replace: false }, true),
    ("its mode", |d, _| super::leases::set_mode(d, 0o700), true),
    ("the directory itself is renamed", |_, _| rename(Node::ROOT, "d", Node::ROOT, "x"), true),
    ("make beside", |_, e| make(e, "new", NodeKind::Fifo, 0o644), false),
    ("look up", |d, _| Request::Lookup { parent: d, name: name("f"), client_id: None }, false),
    ("list", |d, _| Request::ReadNodes { directory: d, after: None, limit: 9, client_id: None }, false),
];

#[test]
fn name_changes_recall_directory_leases() {
    for (what, make, waits) in NAME_REQUESTS {
        let mut world = World::with_devices(1);
        let (d, e) = world.directories();
        let epoch = world.register_caching(ALICE, HERS);
        let hers = world.node(ALICE, d.inode);
        let (none, given, _) = world.looked(ALICE, lookup(hers, name("nothing")));
        let given = given.expect("no conflict");
        assert_eq!((none, given.kind, given.epoch), (None, LeaseKind::Read, epoch));
        let request = make(d, e);
        let answer = world.ask(ADMIN, request.clone());
        assert_eq!(is_busy(&answer), *waits, "{what}: {answer:?}");
        let recalls = world.poll_recalls(ALICE, HERS, epoch, 0).2;
        let expected = waits.then_some(Recall { inode: d.inode, number: given.number });
        assert_eq!(recalls, expected.into_iter().collect::<Vec<_>>(), "{what}");
        if *waits {
            let back = Request::ReturnLease { inode: d.inode, client_id: HERS, number: given.number };
            assert!(matches!(world.ask(ALICE, back), Response::Done {}));
        }
        let answer = if *waits { world.ask(ADMIN, request) } else { answer };
        assert!(!matches!(answer, Response::Failed { .. }), "{what}: {answer:?}");
    }
}

#[test]
fn own_directory_lease_permits_name_changes() {
    let mut world = World::with_devices(1);
    let (d, _) = world.directories();
    let epoch = world.register_caching(ALICE, HERS);
    let d = world.node(ALICE, d.inode);
    let (_, given, _) = world.looked(ALICE, lookup(d, name("f")));
    for (number, request) in
        [make(d, "new", NodeKind::Fifo, 0o644), rename(d, "new", d, "newer"), remove(d, "newer", false)]
            .into_iter()
            .enumerate()
    {
        let turn = RequestId { client_id: HERS, slot: 0, sequence: number as u64 + 1 };
        let answer =
            world.ask(ALICE, Request::Once { id: turn, request: ChangeRequest::new(request).unwrap() });
        assert!(!matches!(answer, Response::Failed { .. }), "{answer:?}");
    }
    assert_eq!(world.poll_recalls(ALICE, HERS, epoch, 0).2, []);
    assert_eq!(world.looked(ALICE, lookup(d, name("newer"))), (None, given, None));
}

#[test]
fn contended_directory_gets_no_leases() {
    let mut world = World::with_devices(1);
    let (d, _) = world.directories();
    world.register_caching(ALICE, HERS);
    let hers = world.node(ALICE, d.inode);
    let given = world.looked(ALICE, lookup(hers, name("nothing"))).1.unwrap();
    assert!(is_busy(&world.ask(ADMIN, make(d, "new", NodeKind::Fifo, 0o644))));
    world.ask(ALICE, Request::ReturnLease { inode: d.inode, client_id: HERS, number: given.number });
    assert!(!is_busy(&world.ask(ADMIN, make(d, "new", NodeKind::Fifo, 0o644))));
    for _ in 0..3 {
        let (stat, directory, lease) = world.looked(ALICE, lookup(hers, name("new")));
        assert!(stat.is_some() && directory.is_none() && lease.is_some());
        assert!(!is_busy(&world.ask(ADMIN, remove(d, "f", false))), "no conflict");
        world.put(ADMIN, "/d/f", 1);
    }
    world.keep_active(ALICE, HERS, RECALL_COOLDOWN_MS + 1);
    assert!(world.looked(ALICE, lookup(hers, name("new"))).1.is_some());
}

#[test]
fn directory_lease_needs_search_permission() {
    let mut world = World::with_devices(1);
    world.mkdir(ADMIN, "/private", 0o700);
    world.put(ADMIN, "/private/f", 1);
    let private = world.node_at("/private");
    world.register_caching(BOB, HIS);
    let his = world.node(BOB, private.inode);
    let asks = Request::Lookup { parent: his, name: name("f"), client_id: Some(HIS) };
    assert_eq!(world.refused(BOB, asks), ErrorCode::Denied);
    let lists = Request::ReadNodes { directory: his, after: None, limit: 9, client_id: Some(HIS) };
    assert_eq!(world.refused(BOB, lists), ErrorCode::Denied);
    assert_eq!(world.mds.lease_count(), 0);
}

#[test]
fn stat_lease_does_not_block_writers() {
    let mut world = World::with_devices(1);
    let (d, _) = world.directories();
    let epoch = world.register_caching(ALICE, HERS);
    let hers = world.node(ALICE, d.inode);
    let (stat, _, lease) = world.looked(ALICE, lookup(hers, name("f")));
    let (stat, lease) = (stat.unwrap(), lease.unwrap());
    assert_eq!(lease.kind, LeaseKind::Read);
    let at = NodeKind::Fifo;
    assert!(!is_busy(&world.ask(ADMIN, make(Node::ROOT, "fifo", at, 0o644))));
    // Times are attributes, so changing them waits for the recall.
    let change = sealstone_mds_protocol::NodeChange { mtime: Some(SetTime::At(5)), ..Default::default() };
    let file = world.node(ADMIN, stat.inode);
    let set = Request::SetNode { node: file, change, client_id: None, through: false };
    assert!(is_busy(&world.ask(ADMIN, set.clone())));
    let recalls = world.poll_recalls(ALICE, HERS, epoch, 0).2;
    assert_eq!(recalls, [Recall { inode: stat.inode, number: lease.number }]);
    world.ask(ALICE, Request::ReturnLease { inode: stat.inode, client_id: HERS, number: lease.number });
    assert!(!is_busy(&world.ask(ADMIN, set)));
    // A lookup recalls no write lease of another client: it returns the last reported attributes.
    world.register_caching(BOB, HIS);
    let theirs = world.node(BOB, d.inode);
    let open = Request::MakeNode {
        parent: theirs,
        name: name("his"),
        what: NodeKind::File,
        mode: 0o644,
        umask: 0,
        owner: None,
        group: None,
        client_id: Some(HIS),
    };
    // Alice's lease on the directory blocks Bob first.
    assert!(is_busy(&world.ask(BOB, open.clone())));
    let (_, _, recalls) = world.poll_recalls(ALICE, HERS, epoch, 1);
    world.ask(ALICE, Request::ReturnLease { inode: d.inode, client_id: HERS, number: recalls[0].number });
    assert!(matches!(world.ask(BOB, open), Response::Made { .. }));
    let (seen, directory, lease) = world.looked(ALICE, lookup(hers, name("his")));
    assert!(seen.is_some() && directory.is_none() && lease.is_none());
}

#[test]
fn new_directory_is_leased_to_its_creator() {
    let mut world = World::with_devices(1);
    let (d, _) = world.directories();
    world.register_caching(ALICE, HERS);
    let d = world.node(ALICE, d.inode);
    let mut given = 0;
    for number in 0..UNREQUESTED_PER_CLIENT_MAX + 9 {
        let request = Request::MakeNode {
            parent: d,
            name: name(&number.to_string()),
            what: NodeKind::Directory,
            mode: 0o755,
            umask: 0,
            owner: None,
            group: None,
            client_id: Some(HERS),
        };
        match world.ask(ALICE, request) {
            Response::Made { lease, .. } => {
                assert_eq!(lease.kind, LeaseKind::Read);
                given += 1;
            }
            Response::Stat { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((given, world.mds.lease_count()), (UNREQUESTED_PER_CLIENT_MAX, UNREQUESTED_PER_CLIENT_MAX));
    let file = Request::MakeNode {
        parent: d,
        name: name("file"),
        what: NodeKind::File,
        mode: 0o644,
        umask: 0,
        owner: None,
        group: None,
        client_id: Some(HERS),
    };
    assert!(matches!(world.ask(ALICE, file), Response::Made { .. }));
}
