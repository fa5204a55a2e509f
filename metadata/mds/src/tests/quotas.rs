//! Quotas: usage matches the nodes, limits hold, and a refused request changes nothing.

use proptest::prelude::*;
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, CheckScope, ErrorCode, Failure, LinkTarget, Method, Node, NodeChange, NodeKind, Quota,
    QuotaChange, QuotaCursor, QuotaSubject, RenameMode, Request, Response, Stat, XattrMode, XattrName,
    XattrValue,
};

use super::nodes::{CLIENT, make, name};
use super::world::{ADMIN, ALICE, BOB, World, create, path, user};
use crate::open_files::CLIENT_TIMEOUT_MS;
use crate::records::{load, save};
use crate::store::MetaStore as _;
use crate::{keys, quota};

const METHOD: Method = Method::AllData;

fn limits(bytes: impl Into<Option<u64>>, nodes: impl Into<Option<u64>>) -> QuotaChange {
    QuotaChange { bytes_max: Some(bytes.into()), nodes_max: Some(nodes.into()) }
}

fn of_user(name: &str) -> QuotaSubject {
    QuotaSubject::User(user(name))
}

fn of_tree(at: &str) -> QuotaSubject {
    QuotaSubject::Tree(path(at))
}

impl World {
    fn quota(&mut self, caller: SessionId, request: Request) -> Result<Quota, ErrorCode> {
        match self.ask(caller, request) {
            Response::Quota { quota } => Ok(quota),
            Response::Failed { failure } => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    fn limit(&mut self, of: QuotaSubject, change: QuotaChange) -> Quota {
        self.quota(ADMIN, Request::QuotaSet { of, change }).unwrap()
    }

    fn used(&mut self, of: QuotaSubject) -> (u64, u64) {
        let quota = self.quota(ADMIN, Request::QuotaShow { of }).unwrap();
        (quota.bytes, quota.nodes)
    }

    fn failure(&mut self, caller: SessionId, request: Request) -> Failure {
        match self.ask(caller, request) {
            Response::Failed { failure } => failure,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn stat_of(&mut self, caller: SessionId, request: Request) -> Result<Stat, ErrorCode> {
        match self.ask(caller, request) {
            Response::Stat { stat } => Ok(stat),
            Response::Failed { failure } => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    fn at(&mut self, caller: SessionId, at: &str) -> Node {
        self.stat(caller, at).unwrap().node()
    }

    /// Counts everything again.
    fn drifts(&self) -> Vec<sealstone_mds_protocol::QuotaDrift> {
        quota::count(&*self.disk.snapshot().unwrap(), || Ok(())).unwrap()
    }
}

fn grow(node: Node, size: u64) -> Request {
    Request::SetNode {
        node,
        change: NodeChange { size: Some(size), ..NodeChange::default() },
        client_id: None,
        through: false,
    }
}

fn allocate(node: Node) -> Request {
    Request::Allocate { node, size_hint: None, method: METHOD, client_id: CLIENT }
}

fn written(node: Node, size_at_least: u64, generation: u32, fit: bool) -> Request {
    Request::Written { node, size_at_least, mtime_ns: None, generation, made: true, fit, client_id: CLIENT }
}

#[test]
fn user_byte_limit_holds_for_all_writes() {
    let mut world = World::with_accounts(1);
    world.limit(of_user("alice"), limits(1_000, None));
    world.put(ALICE, "/a", 600);
    // A put that cannot fit is refused before any byte is sent, and at its end if the size was
    // unknown.
    let refused = world.failure(ALICE, create("/b", Some(401)));
    assert_eq!(refused.code, ErrorCode::Quota);
    assert_eq!(refused.subject.as_str(), "user alice: 600 of 1000 bytes in use, 401 more requested");
    assert!(refused.to_string().contains("sealstone quota set"), "{refused}");
    let unsure = world.create(ALICE, "/b", None);
    assert_eq!(world.commit(ALICE, unsure.intent, 401), Err(ErrorCode::Quota));
    world.commit(ALICE, unsure.intent, 400).unwrap();
    // A replacement may use the space of the old file.
    world.put(ALICE, "/b", 400);
    assert_eq!(world.refused(ALICE, create("/b", Some(401))), ErrorCode::Quota);
    let a = world.at(ALICE, "/a");
    assert_eq!(world.refused(ALICE, grow(a, 601)), ErrorCode::Quota);
    let link = make(Node::ROOT, "l", NodeKind::Symlink(LinkTarget::new("x").unwrap()), 0);
    assert_eq!(world.refused(ALICE, link), ErrorCode::Quota);
    // An empty file has no space left for its first byte; a write that needs no more space
    // succeeds.
    let empty = world.stat_of(ALICE, make(Node::ROOT, "e", NodeKind::File, 0o600)).unwrap().node();
    assert_eq!(world.refused(ALICE, allocate(empty)), ErrorCode::Quota);
    world.stat_of(ALICE, grow(a, 500)).unwrap();
    assert!(matches!(world.ask(ALICE, allocate(empty)), Response::NodeOpened { .. }));
    assert_eq!(world.used(of_user("alice")), (900, 3));
    // The owner's limit applies to all writers, and no other user's.
    let b = world.at(ADMIN, "/b");
    assert_eq!(world.refused(ADMIN, grow(b, 501)), ErrorCode::Quota);
    world.put(BOB, "/bob", 5_000);
    assert_eq!(world.drifts(), []);
}

#[test]
fn user_file_limit_holds() {
    let mut world = World::with_accounts(1);
    world.limit(of_user("alice"), limits(None, 2));
    world.mkdir(ALICE, "/d", 0o755);
    world.put(ALICE, "/f", 9);
    assert_eq!(world.refused(ALICE, create("/g", Some(0))), ErrorCode::Quota);
    let deep = Request::MakeDir { path: path("/d/e"), parents: true, mode: 0o755 };
    let refused = world.failure(ALICE, deep);
    assert_eq!(refused.subject.as_str(), "user alice: 2 of 2 files in use");
    assert_eq!(world.refused(ALICE, make(Node::ROOT, "p", NodeKind::Fifo, 0)), ErrorCode::Quota);
    // Another name is not another file, and a replacement needs no further one.
    let f = world.at(ALICE, "/f");
    world.stat_of(ALICE, Request::LinkNode { node: f, parent: Node::ROOT, name: name("g") }).unwrap();
    world.ask(ALICE, Request::Remove { path: path("/g"), recursive: false });
    assert_eq!(world.used(of_user("alice")), (9, 2));
    world.put(ALICE, "/f", 10);
    world.ask(ALICE, Request::Remove { path: path("/f"), recursive: false });
    world.mkdir(ALICE, "/d/e", 0o755);
    assert_eq!(world.drifts(), []);
}

#[test]
fn write_beyond_quota_keeps_fitting_bytes() {
    let mut world = World::with_accounts(1);
    world.limit(of_user("alice"), limits(1_000, None));
    world.put(ALICE, "/other", 300);
    let file = world.stat_of(ALICE, make(Node::ROOT, "f", NodeKind::File, 0o600)).unwrap().node();
    world.ask(ALICE, allocate(file));
    // Without `fit` nothing changes.
    assert_eq!(world.refused(ALICE, written(file, 701, 0, false)), ErrorCode::Quota);
    let stat = world.stat_of(ALICE, Request::GetNode { node: file }).unwrap();
    assert_eq!((stat.size, stat.generation), (0, 0));
    assert_eq!(world.refused(ALICE, written(file, 701, 0, true)), ErrorCode::Quota);
    let stat = world.stat_of(ALICE, Request::GetNode { node: file }).unwrap();
    assert_eq!((stat.size, stat.generation, stat.width), (700, 1, 1));
    // The rest is truncated on the devices before the file grows again.
    let clears = world.mds.next_clears(None, 9).unwrap();
    assert_eq!(clears[0].objects[0].1, 700);
    world.limit(of_user("alice"), limits(2_000, None));
    assert_eq!(world.refused(ALICE, written(file, 701, 0, true)), ErrorCode::Stale);
    assert_eq!(world.refused(ALICE, written(file, 701, 1, true)), ErrorCode::Busy);
    world.mds.cleared(&clears).unwrap();
    assert_eq!(world.stat_of(ALICE, written(file, 701, 2, true)).unwrap().size, 701);
    // Where nothing fits the file is empty again, and has no objects.
    world.limit(of_user("alice"), limits(1_001, None));
    let none = world.stat_of(ALICE, make(Node::ROOT, "g", NodeKind::File, 0o600)).unwrap().node();
    world.limit(of_user("alice"), limits(1_002, None));
    world.ask(ALICE, allocate(none));
    world.limit(of_user("alice"), limits(1_001, None));
    assert_eq!(world.refused(ALICE, written(none, 5, 0, true)), ErrorCode::Quota);
    let stat = world.stat_of(ALICE, Request::GetNode { node: none }).unwrap();
    assert_eq!((stat.size, stat.width), (0, 0));
    assert_eq!(world.used(of_user("alice")), (1_001, 3));
    assert_eq!(world.drifts(), []);
}

#[test]
fn tree_limit_holds_for_all_users() {
    let mut world = World::with_accounts(1);
    world.mkdir(ADMIN, "/t", 0o777);
    world.mkdir(ADMIN, "/u", 0o777);
    let quota = world.limit(of_tree("/t"), limits(1_000, 5));
    assert_eq!((quota.bytes, quota.nodes, quota.path), (0, 1, Some(path("/t"))));
    world.put(ALICE, "/t/a", 600);
    let refused = world.failure(BOB, create("/t/b", Some(401)));
    assert_eq!(refused.subject.as_str(), "tree /t: 600 of 1000 bytes in use, 401 more requested");
    world.mkdir(BOB, "/t/d", 0o777);
    world.put(BOB, "/t/d/b", 400);
    assert_eq!(world.used(of_tree("/t/d/b")), (1_000, 4));
    world.mkdir(ALICE, "/t/e", 0o777);
    let sixth = Request::MakeDir { path: path("/t/g"), parents: false, mode: 0o777 };
    assert_eq!(world.failure(ALICE, sixth).subject.as_str(), "tree /t: 5 of 5 files in use");
    world.put(BOB, "/u/b", 5_000);
    assert_eq!(world.drifts(), []);
}

#[test]
fn names_stay_in_their_tree() {
    let mut world = World::with_accounts(1);
    for at in ["/t", "/u", "/plain"] {
        world.mkdir(ADMIN, at, 0o777);
    }
    world.limit(of_tree("/t"), limits(None, None));
    world.limit(of_tree("/u"), limits(None, None));
    world.put(ALICE, "/t/a", 10);
    world.put(ALICE, "/plain/p", 10);
    world.mkdir(ALICE, "/t/d", 0o777);
    let rename = |from: &str, to: &str| Request::Rename { from: path(from), to: path(to), replace: true };
    for (from, to) in [("/t/a", "/u/a"), ("/t/a", "/plain/a"), ("/plain/p", "/t/p"), ("/t/d", "/plain/d")] {
        assert_eq!(world.refused(ALICE, rename(from, to)), ErrorCode::CrossesTrees, "{from} {to}");
    }
    // Renames within the tree work, and the tree itself can be renamed, but not into another one.
    world.ask(ALICE, rename("/t/a", "/t/d/a"));
    assert_eq!(world.refused(ADMIN, rename("/t", "/u/t")), ErrorCode::CrossesTrees);
    assert!(matches!(world.ask(ADMIN, rename("/t", "/plain/t")), Response::Done {}));
    assert_eq!(world.used(of_tree("/plain/t/d/a")), (10, 3));
    // Its old path is stale, so none is returned until it is set again.
    let quota = world.quota(ADMIN, Request::QuotaShow { of: of_tree("/plain/t") }).unwrap();
    assert_eq!(quota.path, None);
    let (here, there) = (world.at(ALICE, "/plain/t"), world.at(ALICE, "/plain"));
    let p = world.at(ALICE, "/plain/p");
    let link = Request::LinkNode { node: p, parent: here, name: name("l") };
    assert_eq!(world.refused(ALICE, link), ErrorCode::CrossesTrees);
    let exchange = Request::RenameNode {
        from_parent: here,
        from: name("d"),
        to_parent: there,
        to: name("p"),
        mode: RenameMode::Exchange,
    };
    assert_eq!(world.refused(ALICE, exchange), ErrorCode::CrossesTrees);
    assert_eq!(world.drifts(), []);
}

#[test]
fn tree_starts_empty_and_is_not_nested() {
    let mut world = World::with_accounts(1);
    world.mkdir(ADMIN, "/t", 0o777);
    world.put(ALICE, "/t/f", 1);
    let set = |at: &str| Request::QuotaSet { of: of_tree(at), change: limits(100, None) };
    assert_eq!(world.refused(ADMIN, set("/t")), ErrorCode::NotEmpty);
    assert_eq!(world.refused(ADMIN, set("/t/f")), ErrorCode::NotADirectory);
    assert_eq!(world.refused(ADMIN, set("/none")), ErrorCode::NotFound);
    world.mkdir(ADMIN, "/e", 0o777);
    world.limit(of_tree("/e"), limits(100, None));
    world.mkdir(ADMIN, "/e/in", 0o777);
    let nested = world.failure(ADMIN, set("/e/in"));
    assert_eq!(nested.code, ErrorCode::Invalid);
    assert!(nested.subject.as_str().contains("(/e)"), "{nested}");
    // With nodes in it, it stays a tree without limits; without, it is no longer a tree.
    let clear = || Request::QuotaClear { of: of_tree("/e") };
    assert_eq!(world.quota(ADMIN, clear()).map(|quota| (quota.nodes, quota.bytes_max)), Ok((2, None)));
    world.ask(ADMIN, Request::Remove { path: path("/e/in"), recursive: false });
    assert_eq!(world.quota(ADMIN, clear()).map(|quota| quota.nodes), Ok(0));
    assert_eq!(world.refused(ADMIN, clear()), ErrorCode::NotFound);
    assert_eq!(world.refused(ADMIN, Request::QuotaShow { of: of_tree("/e") }), ErrorCode::NotFound);
    world.limit(of_tree("/e"), limits(100, None));
    world.ask(ADMIN, Request::Remove { path: path("/e"), recursive: false });
    let trees = world.disk.dump().into_iter().filter(|(key, _)| key[0] == b'T').count();
    assert_eq!((trees, world.drifts()), (0, vec![]));
}

#[test]
fn orphan_counts_until_close() {
    let mut world = World::with_accounts(1);
    world.limit(of_user("alice"), limits(1_000, None));
    world.put(ALICE, "/f", 900);
    let file = world.at(ALICE, "/f");
    let open = Request::OpenNode {
        node: file,
        access: Access::Read,
        method: METHOD,
        client_id: CLIENT,
        reclaim: false,
    };
    assert!(matches!(world.ask(ALICE, open), Response::NodeOpened { .. }));
    world.ask(ALICE, Request::RemoveNode { parent: Node::ROOT, name: name("f"), directory: false });
    assert_eq!(world.used(of_user("alice")), (900, 1));
    assert_eq!(world.refused(ALICE, create("/g", Some(200))), ErrorCode::Quota);
    world.ask(ALICE, Request::CloseNode { node: file, client_id: CLIENT });
    assert_eq!(world.used(of_user("alice")), (0, 0));
    world.put(ALICE, "/g", 200);
}

#[test]
fn chown_moves_usage_to_new_owner() {
    let mut world = World::with_accounts(1);
    world.put(ALICE, "/f", 900);
    world.limit(of_user("uid-7"), limits(899, None));
    let give = |to: &str| Request::SetOwner { path: path("/f"), owner: Some(user(to)), group: None };
    assert_eq!(world.refused(ADMIN, give("uid-7")), ErrorCode::Quota);
    assert_eq!((world.used(of_user("alice")), world.used(of_user("uid-7"))), ((900, 1), (0, 0)));
    world.limit(of_user("uid-7"), limits(900, 1));
    assert!(matches!(world.ask(ADMIN, give("uid-7")), Response::Stat { .. }));
    assert_eq!((world.used(of_user("alice")), world.used(of_user("uid-7"))), ((0, 0), (900, 1)));
    assert_eq!(world.drifts(), []);
}

#[test]
fn administrators_set_quotas_users_see_own() {
    let mut world = World::with_accounts(1);
    world.put(ALICE, "/a", 7);
    world.put(BOB, "/b", 8);
    world.mkdir(ADMIN, "/t", 0o700);
    world.limit(of_tree("/t"), limits(1, 1));
    let change = limits(1, 1);
    for request in [
        Request::QuotaSet { of: of_user("alice"), change },
        Request::QuotaSet { of: of_tree("/t"), change },
        Request::QuotaClear { of: of_user("alice") },
        Request::CheckBegin { scope: CheckScope::Counts, repair: false },
        Request::QuotaShow { of: of_user("bob") },
    ] {
        assert_eq!(world.refused(ALICE, request.clone()), ErrorCode::Denied, "{request:?}");
    }
    let own = world.quota(ALICE, Request::QuotaShow { of: of_user("alice") }).unwrap();
    assert_eq!((own.bytes, own.nodes), (7, 1));
    let list = |after| Request::QuotaList { after, limit: 2 };
    let Response::Quotas { quotas, more } = world.ask(ALICE, list(None)) else { panic!("quotas") };
    assert_eq!((quotas, more), (vec![own], false));
    // An administrator's pages: users, then trees, each once.
    let (mut after, mut all) = (None, Vec::new());
    loop {
        let Response::Quotas { quotas, more } = world.ask(ADMIN, list(after)) else { panic!("quotas") };
        all.extend(quotas);
        after = all.last().map(|quota: &Quota| quota.place.clone());
        if !more {
            break;
        }
    }
    let names: Vec<String> = all.iter().map(|quota| quota.place.to_string()).collect();
    assert_eq!(names[..3], ["user admin", "user alice", "user bob"].map(String::from));
    assert_eq!((all.len(), all[3].path.clone()), (4, Some(path("/t"))));
    assert_eq!(world.refused(ADMIN, Request::QuotaShow { of: of_user("nobody") }), ErrorCode::NotFound);
    let nobody = Request::QuotaSet { of: of_user("nobody"), change };
    assert_eq!(world.refused(ADMIN, nobody), ErrorCode::NotFound);
}

#[test]
fn statfs_shows_space_within_quotas() {
    let mut world = World::with_accounts(1);
    let figures = |world: &mut World, caller, node| match world.ask(caller, Request::StatFs { node }) {
        Response::FileSystem { total, used, nodes, nodes_free } => (total, used, nodes, nodes_free),
        other => panic!("{other:?}"),
    };
    let whole = figures(&mut world, ALICE, None);
    world.mkdir(ADMIN, "/t", 0o777);
    world.limit(of_tree("/t"), limits(5_000, 10));
    world.put(ALICE, "/t/f", 2_000);
    let tree = world.at(ALICE, "/t");
    assert_eq!(figures(&mut world, ALICE, Some(tree)), (5_000, 2_000, 2, 8));
    assert_eq!(figures(&mut world, ALICE, None).0, whole.0);
    world.limit(of_user("alice"), limits(2_500, 2));
    assert_eq!(figures(&mut world, ALICE, Some(tree)), (2_500, 2_000, 1, 1));
    assert_eq!(figures(&mut world, ALICE, None), (2_500, 2_000, 1, 1));
    // Never less than zero.
    world.limit(of_user("alice"), limits(10, 1));
    let tree = world.at(ALICE, "/t");
    assert_eq!(figures(&mut world, ALICE, Some(tree)), (10, 10, 1, 0));
}

#[test]
fn total_size_over_64_bits_is_refused() {
    let mut world = World::with_accounts(1);
    let huge = sealstone_mds_protocol::FILE_SIZE_MAX;
    for at in ["a", "b", "c"] {
        let file = world.stat_of(ALICE, make(Node::ROOT, at, NodeKind::File, 0o600)).unwrap().node();
        let grown = world.stat_of(ALICE, grow(file, huge));
        assert_eq!(grown.map(|stat| stat.size), if at == "c" { Err(ErrorCode::Limit) } else { Ok(huge) });
    }
    assert_eq!(world.drifts(), []);
}

#[test]
fn wrong_count_is_found_and_repaired() {
    let mut world = World::with_accounts(1);
    world.put(ALICE, "/a", 70);
    world.limit(of_user("alice"), limits(1_000, None));
    world
        .mds
        .update(|tx| {
            let key = keys::quota_of_user(&user("alice"));
            let mut record: quota::QuotaRecord = load(tx, &key)?.unwrap();
            record.bytes = 71;
            Ok(save(tx, &key, &record)?)
        })
        .unwrap();
    let check = |world: &mut World, repair| {
        let found = world.run_check(CheckScope::Counts, repair);
        let repaired = found.iter().any(|finding| finding.repaired);
        (found.into_iter().filter_map(|finding| finding.drift).collect::<Vec<_>>(), repaired)
    };
    let (drifts, repaired) = check(&mut world, false);
    assert_eq!((drifts[0].bytes, drifts[0].bytes_found, repaired), (71, 70, false));
    assert_eq!(drifts[0].place, QuotaCursor::User(user("alice")));
    assert!(check(&mut world, true).1);
    assert_eq!(check(&mut world, true), (vec![], false));
    // The limits are unchanged.
    assert_eq!(world.refused(ALICE, create("/b", Some(931))), ErrorCode::Quota);
}

/// Steps of a history.
#[derive(Clone, Debug)]
enum Step {
    Make {
        caller: usize,
        at: usize,
        kind: usize,
    },
    Put {
        caller: usize,
        at: usize,
        size: u64,
    },
    /// A create that is neither committed nor abandoned.
    Begin {
        caller: usize,
        at: usize,
        size: u64,
    },
    Attribute {
        caller: usize,
        at: usize,
        size: u64,
    },
    Size {
        caller: usize,
        at: usize,
        size: u64,
    },
    Write {
        caller: usize,
        at: usize,
        size: u64,
        fit: bool,
    },
    Remove {
        caller: usize,
        at: usize,
    },
    Rename {
        from: usize,
        to: usize,
        exchange: bool,
    },
    Link {
        from: usize,
        to: usize,
    },
    Own {
        at: usize,
        to: usize,
    },
    Open {
        caller: usize,
        at: usize,
    },
    Close,
    Limit {
        of: usize,
        bytes: Option<u64>,
        nodes: Option<u64>,
    },
    Clear {
        of: usize,
    },
    Tidy,
    Restart,
}

const PLACES: [&str; 9] = ["/a", "/b", "/t", "/t/a", "/t/b", "/t/d", "/t/d/a", "/u", "/u/a"];
const WHO: [SessionId; 3] = [ADMIN, ALICE, BOB];
const NAMES: [&str; 3] = ["admin", "alice", "bob"];

fn any_step() -> impl Strategy<Value = Step> {
    let (caller, at) = (|| 0..WHO.len(), || 0..PLACES.len());
    let size = || 0..60u64;
    prop_oneof![
        6 => (caller(), at(), 0..4usize).prop_map(|(caller, at, kind)| Step::Make { caller, at, kind }),
        4 => (caller(), at(), size()).prop_map(|(caller, at, size)| Step::Put { caller, at, size }),
        2 => (caller(), at(), size()).prop_map(|(caller, at, size)| Step::Begin { caller, at, size }),
        2 => (caller(), at(), size()).prop_map(|(caller, at, size)| Step::Attribute { caller, at, size }),
        3 => (caller(), at(), size()).prop_map(|(caller, at, size)| Step::Size { caller, at, size }),
        5 => (caller(), at(), size(), any::<bool>()).prop_map(|(caller, at, size, fit)| Step::Write { caller, at, size, fit }),
        4 => (caller(), at()).prop_map(|(caller, at)| Step::Remove { caller, at }),
        5 => (at(), at(), any::<bool>()).prop_map(|(from, to, exchange)| Step::Rename { from, to, exchange }),
        2 => (at(), at()).prop_map(|(from, to)| Step::Link { from, to }),
        2 => (at(), caller()).prop_map(|(at, to)| Step::Own { at, to }),
        2 => (caller(), at()).prop_map(|(caller, at)| Step::Open { caller, at }),
        1 => Just(Step::Close),
        4 => (0..5usize, prop::option::of(0..100u64), prop::option::of(0..6u64))
            .prop_map(|(of, bytes, nodes)| Step::Limit { of, bytes, nodes }),
        1 => (0..5usize).prop_map(|of| Step::Clear { of }),
        1 => Just(Step::Tidy),
        1 => Just(Step::Restart),
    ]
}

fn whose(of: usize) -> QuotaSubject {
    match of {
        3 => of_tree("/t"),
        4 => of_tree("/u"),
        user => of_user(NAMES[user]),
    }
}

struct Run {
    world: World,
    open: Vec<(usize, Node)>,
}

impl Run {
    fn node(&mut self, caller: usize, at: usize) -> Option<Node> {
        self.world.stat(WHO[caller], PLACES[at]).ok().map(|stat| stat.node())
    }

    /// Returns the directory of a place, and its last name.
    fn parent(&mut self, caller: usize, at: usize) -> Option<(Node, &'static str)> {
        let (above, last) = PLACES[at].rsplit_once('/')?;
        let above = if above.is_empty() {
            Some(Node::ROOT)
        } else {
            self.world.stat(WHO[caller], above).ok().map(|stat| stat.node())
        };
        Some((above?, last))
    }

    /// Performs a step, whatever the answer is. None: there is no node for it.
    fn step(&mut self, step: &Step) -> Option<()> {
        match *step {
            Step::Make { caller, at, kind } => {
                let (parent, last) = self.parent(caller, at)?;
                let what = match kind {
                    0 => NodeKind::File,
                    // No node is created through it.
                    1 => NodeKind::Symlink(LinkTarget::new("no/where").unwrap()),
                    _ => NodeKind::Directory,
                };
                self.world.ask(WHO[caller], make(parent, last, what, 0o777));
            }
            Step::Put { caller, at, size } => {
                if let Response::Created { file } = self.world.ask(WHO[caller], create(PLACES[at], None)) {
                    let _ = self.world.commit(WHO[caller], file.intent, size);
                }
            }
            Step::Begin { caller, at, size } => {
                self.world.ask(WHO[caller], create(PLACES[at], Some(size)));
            }
            Step::Attribute { caller, at, size } => {
                let node = self.node(caller, at)?;
                let name = XattrName::new("user.a").unwrap();
                let request = match size {
                    0 => Request::RemoveXattr { node, name },
                    size => {
                        let value = XattrValue::new(vec![7; size as usize]).unwrap();
                        Request::SetXattr { node, name, value, mode: XattrMode::Set }
                    }
                };
                self.world.ask(WHO[caller], request);
            }
            Step::Size { caller, at, size } => {
                let node = self.node(caller, at)?;
                self.world.ask(WHO[caller], grow(node, size));
            }
            Step::Write { caller, at, size, fit } => {
                let node = self.node(caller, at)?;
                if let Response::NodeOpened { node: opened } = self.world.ask(WHO[caller], allocate(node)) {
                    self.world.ask(WHO[caller], written(node, size, opened.stat.generation, fit));
                }
            }
            Step::Remove { caller, at } => {
                let (parent, last) = self.parent(caller, at)?;
                let directory = matches!(PLACES[at], "/t" | "/u" | "/t/d");
                self.world.ask(WHO[caller], Request::RemoveNode { parent, name: name(last), directory });
            }
            Step::Rename { from, to, exchange } => {
                let ((from_parent, from), (to_parent, to)) = (self.parent(0, from)?, self.parent(0, to)?);
                let mode = if exchange { RenameMode::Exchange } else { RenameMode::Replace };
                let (from, to) = (name(from), name(to));
                self.world.ask(ADMIN, Request::RenameNode { from_parent, from, to_parent, to, mode });
            }
            Step::Link { from, to } => {
                let (node, (parent, last)) = (self.node(0, from)?, self.parent(0, to)?);
                self.world.ask(ADMIN, Request::LinkNode { node, parent, name: name(last) });
            }
            Step::Own { at, to } => {
                let owner = Some(user(NAMES[to]));
                self.world.ask(ADMIN, Request::SetOwner { path: path(PLACES[at]), owner, group: None });
            }
            Step::Open { caller, at } => {
                let node = self.node(caller, at)?;
                let (access, method) = (Access::Update, METHOD);
                let open = Request::OpenNode { node, access, method, client_id: CLIENT, reclaim: false };
                if matches!(self.world.ask(WHO[caller], open), Response::NodeOpened { .. }) {
                    self.open.push((caller, node));
                }
            }
            Step::Close => {
                for (caller, node) in std::mem::take(&mut self.open) {
                    self.world.ask(WHO[caller], Request::CloseNode { node, client_id: CLIENT });
                }
            }
            Step::Limit { of, bytes, nodes } => {
                let change = QuotaChange { bytes_max: Some(bytes), nodes_max: Some(nodes) };
                self.world.ask(ADMIN, Request::QuotaSet { of: whose(of), change });
            }
            Step::Clear { of } => {
                self.world.ask(ADMIN, Request::QuotaClear { of: whose(of) });
            }
            Step::Tidy => {
                let items = self.world.mds.next_clears(None, 100).unwrap();
                self.world.mds.cleared(&items).unwrap();
                self.world.now += CLIENT_TIMEOUT_MS / 2;
                self.world.mds.tidy(self.world.now).unwrap();
            }
            Step::Restart => {
                self.world.restart();
                self.open.clear();
            }
        }
        Some(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_history_keeps_counts_exact(steps in prop::collection::vec(any_step(), 1..80)) {
        let mut run = Run { world: World::with_accounts(1), open: Vec::new() };
        for step in &steps {
            let _ = run.step(step);
            prop_assert_eq!(run.world.drifts(), [], "after {:?}", step);
            prop_assert_eq!(run.world.run_check(CheckScope::Names, false), [], "after {:?}", step);
        }
        // After all files are closed and removed, only the root is counted.
        let _ = run.step(&Step::Close);
        for at in PLACES.iter().rev() {
            run.world.ask(ADMIN, Request::Remove { path: path(at), recursive: true });
        }
        run.world.now += run.world.mds.config.intent_lifetime_ms;
        for _ in 0..4 {
            run.world.now += CLIENT_TIMEOUT_MS;
            while run.world.mds.tidy(run.world.now).unwrap() {}
        }
        let view = run.world.disk.snapshot().unwrap();
        prop_assert_eq!(quota::count(&*view, || Ok(())).unwrap(), []);
        let (from, until) = keys::inodes(None);
        prop_assert_eq!(view.scan(&from, &until, 9).unwrap().len(), 1);
        drop(view);
        prop_assert!(run.world.disk.dump().iter().all(|(key, _)| key[0] != b'T'));
    }
}
