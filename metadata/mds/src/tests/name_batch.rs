//! Directory delegations and name batches: what is granted, and what is accepted.

mod closed;
mod lost;
mod model;
mod races;
mod rights;
mod waits;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, ChangeRequest, ClientId, CreateOp, DirLeaseId, ErrorCode, InodeId, InodeLease, LinkTarget,
    Method, NAME_CHANGES_MAX, NameChange, Node, NodeKind, NodeLease, QuotaChange, QuotaSubject,
    RESERVED_INODES_MAX, RenameOp, Request, RequestId, Response, UnlinkOp, XattrMode, XattrName, XattrValue,
};

use super::nodes::{make, name};
use super::world::{ADMIN, ALICE, BOB, World, path, user};
use crate::leases::RECALL_COOLDOWN_MS;

/// The clients of alice and bob.
const HERS: ClientId = ClientId { number: 11 };
const HIS: ClientId = ClientId { number: 22 };

/// A client that may get delegations.
#[derive(Clone, Debug)]
struct TestClient {
    caller: SessionId,
    client_id: ClientId,
    epoch: u64,
    /// Sequence number of its last request.
    sequence: u64,
    /// Reserved inode numbers; the next one is last.
    numbers: Vec<InodeId>,
}

/// Answer to DelegateDir.
type DelegateAnswer = (Option<NodeLease>, Option<u64>, Vec<InodeId>);

impl TestClient {
    fn new(world: &mut World, caller: SessionId, client_id: ClientId) -> Self {
        let epoch = world.register_caching(caller, client_id);
        Self { caller, client_id, epoch, sequence: 0, numbers: Vec::new() }
    }

    fn request_delegation(
        &self,
        world: &mut World,
        directory: Option<InodeId>,
        numbers: u16,
    ) -> DelegateAnswer {
        let directory = directory.map(|id| world.node(self.caller, id));
        match world.ask(self.caller, Request::DelegateDir { directory, client_id: self.client_id, numbers }) {
            Response::DirDelegated { lease, before, numbers } => {
                let ids = numbers.into_iter().flat_map(|given| {
                    let ids: Vec<_> =
                        (given.first.0..).map(InodeId).zip(given.proofs).map(|(id, _)| id).collect();
                    ids
                });
                (lease, before, ids.collect())
            }
            other => panic!("{other:?}"),
        }
    }

    /// The delegation is granted, with inode numbers.
    fn acquire_delegation(&mut self, world: &mut World, directory: InodeId) -> DirLeaseId {
        let (lease, _, numbers) = self.request_delegation(world, Some(directory), 8);
        let lease = lease.expect("no conflicting lease");
        assert_eq!((lease.epoch, numbers.len()), (self.epoch, 8));
        self.numbers = numbers.into_iter().rev().collect();
        DirLeaseId { inode: directory, epoch: lease.epoch, lease: lease.number }
    }

    fn number(&mut self) -> InodeId {
        self.numbers.pop().expect("enough were asked for")
    }

    fn once(&self, changes: &[NameChange]) -> Request {
        let turn = RequestId { client_id: self.client_id, slot: 0, sequence: self.sequence };
        Request::Once {
            id: turn,
            request: ChangeRequest::new(Request::NameBatch { changes: changes.to_vec() }).unwrap(),
        }
    }

    /// Sends a batch; returns how many changes were applied, the refusal, and the files with
    /// leases.
    fn send_batch(
        &mut self,
        world: &mut World,
        changes: &[NameChange],
    ) -> (usize, Option<ErrorCode>, Vec<InodeId>) {
        self.sequence += 1;
        self.resend_batch(world, changes)
    }

    fn resend_batch(
        &self,
        world: &mut World,
        changes: &[NameChange],
    ) -> (usize, Option<ErrorCode>, Vec<InodeId>) {
        match world.ask(self.caller, self.once(changes)) {
            Response::NameBatchApplied { done, leases, failure } => {
                let on = leases.into_iter().map(|InodeLease { inode, .. }| inode).collect();
                (usize::from(done), failure.map(|failure| failure.code), on)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends a batch that is applied completely.
    fn send_all(&mut self, world: &mut World, changes: &[NameChange]) {
        let (done, failure, _) = self.send_batch(world, changes);
        assert_eq!((done, failure), (changes.len(), None));
    }

    fn return_delegation(&self, world: &mut World, there: DirLeaseId) {
        let DirLeaseId { inode, lease: number, .. } = there;
        let back = Request::ReturnLease { inode, client_id: self.client_id, number };
        assert!(matches!(world.ask(self.caller, back), Response::Done {}));
    }

    /// The leases to return.
    fn recalled(&self, world: &mut World) -> Vec<u64> {
        world
            .poll_recalls(self.caller, self.client_id, self.epoch, 0)
            .2
            .into_iter()
            .map(|recall| recall.number)
            .collect()
    }
}

fn made(directory: DirLeaseId, at: &str, inode: InodeId) -> CreateOp {
    CreateOp {
        directory,
        name: name(at),
        inode,
        what: NodeKind::File,
        mode: 0o644,
        umask: 0,
        owner: None,
        group: None,
        at_ms: 0,
        held: false,
    }
}

fn make_file(directory: DirLeaseId, at: &str, inode: InodeId) -> NameChange {
    NameChange::Create(made(directory, at, inode))
}

fn removed(directory: DirLeaseId, at: &str, inode: InodeId) -> NameChange {
    NameChange::Unlink(UnlinkOp { directory, name: name(at), inode, at_ms: 0, close: false })
}

fn renamed(
    (from_directory, from): (DirLeaseId, &str),
    inode: InodeId,
    (to_directory, to): (DirLeaseId, &str),
    replaced: Option<InodeId>,
) -> NameChange {
    NameChange::Rename(RenameOp {
        from_directory,
        from: name(from),
        inode,
        to_directory,
        to: name(to),
        replaced,
        at_ms: 0,
        close: false,
    })
}

fn is_busy(response: &Response) -> bool {
    super::leases::is_busy(response)
}

impl World {
    fn inode(&mut self, at: &str) -> InodeId {
        self.stat(ADMIN, at).unwrap().inode
    }

    fn is_stored(&self, id: InodeId) -> bool {
        self.disk.dump().iter().any(|(key, _)| *key == crate::keys::inode(id))
    }

    /// Stored names of a directory and their nodes.
    fn names_in(&self, id: InodeId) -> Vec<(String, InodeId)> {
        let prefix = crate::keys::entries(id);
        let all = self.disk.dump().into_iter().filter(|(key, _)| key.starts_with(&prefix));
        all.map(|(key, value)| {
            let name = crate::keys::entry_name(&key).unwrap();
            (name.shown().into_owned(), crate::records::decode(&value).unwrap())
        })
        .collect()
    }

    fn count_of(&self, family: u8) -> usize {
        self.disk.dump().iter().filter(|(key, _)| key[0] == family).count()
    }

    /// Files and orphans by the counters; checks that no quota counter has drifted.
    fn counted(&mut self) -> (u64, u64) {
        use crate::store::MetaStore as _;
        let view = self.disk.snapshot().unwrap();
        let drifts = crate::quota::count(&*view, || Ok(())).unwrap();
        assert_eq!(drifts, []);
        let figure = |what| crate::records::figure(&*view, what).unwrap();
        (figure(crate::records::counter::FILES), figure(crate::records::counter::ORPHANS))
    }
}

/// A directory that all users may change, with a file of the administrator, and another directory.
fn world() -> (World, InodeId, InodeId) {
    let mut world = World::with_accounts(1);
    for at in ["/d", "/e"] {
        world.mkdir(ADMIN, at, 0o777);
        world.put(ADMIN, &format!("{at}/f"), 1);
    }
    let (d, e) = (world.inode("/d"), world.inode("/e"));
    (world, d, e)
}

/// Alice has the delegation on the first one.
fn ahead() -> (World, TestClient, DirLeaseId) {
    let (mut world, d, _) = world();
    let mut hers = TestClient::new(&mut world, ALICE, HERS);
    let there = hers.acquire_delegation(&mut world, d);
    (world, hers, there)
}

type Spoil = fn(&mut World, InodeId);

/// Conditions under which no delegation is granted.
const SPOILT: &[(&str, Spoil)] = &[
    ("sticky", |world, d| _ = world.ask(ADMIN, super::leases::set_mode(world.node(ADMIN, d), 0o1777))),
    ("a group is handed on", |world, d| {
        _ = world.ask(ADMIN, super::leases::set_mode(world.node(ADMIN, d), 0o2777));
    }),
    ("may not be changed", |world, d| {
        _ = world.ask(ADMIN, super::leases::set_mode(world.node(ADMIN, d), 0o755));
    }),
    ("may not be passed", |world, d| {
        _ = world.ask(ADMIN, super::leases::set_mode(world.node(ADMIN, d), 0o776));
    }),
    ("a list for what is made", |world, d| {
        let set = Request::SetXattr {
            node: world.node(ADMIN, d),
            name: XattrName::new("system.posix_acl_default").unwrap(),
            value: XattrValue::new("user::rwx,user:bob:rwx,group::r-x,mask::rwx,other::r-x").unwrap(),
            mode: XattrMode::Set,
        };
        assert!(matches!(world.ask(ADMIN, set), Response::Done {}));
    }),
    ("a limit on the user's files", |world, _| {
        let change = QuotaChange { bytes_max: None, nodes_max: Some(Some(99)) };
        world.ask(ADMIN, Request::QuotaSet { of: QuotaSubject::User(user("alice")), change });
    }),
    ("a tree with limits", |world, _| {
        world.ask(ADMIN, Request::Remove { path: path("/d/f"), recursive: false });
        let change = QuotaChange { bytes_max: Some(Some(9)), nodes_max: None };
        let set = world.ask(ADMIN, Request::QuotaSet { of: QuotaSubject::Tree(path("/d")), change });
        assert!(matches!(set, Response::Quota { .. }), "{set:?}");
    }),
    ("another one has a lease to read", |world, d| {
        world.register_caching(BOB, HIS);
        let parent = world.node(BOB, d);
        world.ask(BOB, Request::Lookup { parent, name: name("f"), client_id: Some(HIS) });
        assert_eq!(world.mds.lease_count(), 2, "on the directory, and on the file");
    }),
    ("another one is ahead", |world, d| {
        let mut his = TestClient::new(world, BOB, HIS);
        his.acquire_delegation(world, d);
    }),
    ("a lease was recalled recently", |world, d| {
        let mut his = TestClient::new(world, BOB, HIS);
        let there = his.acquire_delegation(world, d);
        assert!(is_busy(&world.ask(ADMIN, Request::Stat { path: path("/d/f") })));
        his.return_delegation(world, there);
        world.now += RECALL_COOLDOWN_MS - 1;
        world.register_caching(ALICE, HERS);
    }),
];

#[test]
fn delegation_is_refused_on_special_directories() {
    for (why, spoil) in SPOILT {
        let (mut world, d, e) = world();
        let mut hers = TestClient::new(&mut world, ALICE, HERS);
        spoil(&mut world, d);
        let out = world.mds.lease_count();
        assert_eq!(hers.request_delegation(&mut world, Some(d), 9), (None, None, vec![]), "{why}");
        assert_eq!(world.mds.lease_count(), out, "{why}");
        if !why.contains("user's") {
            hers.acquire_delegation(&mut world, e);
        }
    }
}

#[test]
fn delegation_requires_recalls_and_single_server() {
    let (mut world, d, _) = world();
    let stranger = TestClient { caller: ALICE, client_id: HERS, epoch: 0, sequence: 0, numbers: Vec::new() };
    assert_eq!(stranger.request_delegation(&mut world, Some(d), 9), (None, None, vec![]));
    assert_eq!(stranger.request_delegation(&mut world, None, 9), (None, None, vec![]));
    let [mut one, _] = World::two(1);
    one.mkdir(ALICE, "/d", 0o777);
    let d = one.inode("/d");
    one.poll_recalls(ALICE, HERS, 0, 0);
    assert_eq!(stranger.request_delegation(&mut one, Some(d), 9), (None, None, vec![]));
}

#[test]
fn read_lease_upgrades_to_delegation_without_gap() {
    let (mut world, d, _) = world();
    let hers = TestClient::new(&mut world, ALICE, HERS);
    let parent = world.node(ALICE, d);
    let looked = world.ask(ALICE, Request::Lookup { parent, name: name("none"), client_id: Some(HERS) });
    let Response::LookedUp { directory: Some(read), .. } = looked else { panic!("{looked:?}") };
    let (lease, before, _) = hers.request_delegation(&mut world, Some(d), 0);
    let lease = lease.unwrap();
    assert_eq!(before, Some(read.number));
    assert_ne!(lease.number, read.number);
    // After a lost answer the client gets the same lease again, and sees that it is new.
    assert_eq!(hers.request_delegation(&mut world, Some(d), 0), (Some(lease), Some(lease.number), vec![]));
    assert_eq!((world.mds.lease_count(), world.count_of(b'A')), (1, 1));
}

#[test]
fn batch_applies_changes_in_order() {
    let (mut world, mut hers, there) = ahead();
    let e = world.inode("/e");
    let beside = {
        let (lease, ..) = hers.request_delegation(&mut world, Some(e), 0);
        DirLeaseId { inode: e, epoch: hers.epoch, lease: lease.unwrap().number }
    };
    let f = world.names_in(there.inode)[0].1;
    let (a, b, c) = (hers.number(), hers.number(), hers.number());
    let link = CreateOp { what: NodeKind::Symlink(LinkTarget::new("x").unwrap()), ..made(there, "link", c) };
    hers.send_all(
        &mut world,
        &[
            make_file(there, "a", a),
            renamed((there, "a"), a, (there, "a2"), None),
            make_file(there, "a", b),
            renamed((there, "a2"), a, (there, "f"), Some(f)),
            renamed((there, "a"), b, (beside, "b"), None),
            NameChange::Create(link),
            removed(there, "link", c),
        ],
    );
    assert_eq!(world.names_in(there.inode), [("f".to_owned(), a)]);
    assert_eq!(world.names_in(e)[0], ("b".to_owned(), b));
    assert!(!world.is_stored(f) && !world.is_stored(c));
    hers.return_delegation(&mut world, there);
    hers.return_delegation(&mut world, beside);
    let stat = world.stat(BOB, "/d/f").unwrap();
    assert_eq!((stat.inode, stat.owner, stat.mode), (a, user("alice"), 0o644));
    assert_eq!(world.counted(), (3, 0));
}

#[test]
fn batch_stops_at_first_refused_change() {
    let (mut world, mut hers, there) = ahead();
    let (a, b, c) = (hers.number(), hers.number(), hers.number());
    let f = world.names_in(there.inode)[0].1;
    let before = world.counted();
    let held = |at: &str, id| NameChange::Create(CreateOp { held: true, ..made(there, at, id) });
    // It would replace another node.
    let refused = renamed((there, "a"), a, (there, "f"), None);
    let changes = [held("a", a), refused.clone(), held("b", b)];
    assert_eq!(hers.send_batch(&mut world, &changes), (1, Some(ErrorCode::Exists), vec![a]));
    assert_eq!(hers.resend_batch(&mut world, &changes), (1, Some(ErrorCode::Exists), vec![a]));
    assert_eq!(world.counted(), (before.0 + 1, 0));
    assert!(!world.is_stored(b) && !world.mds.open_files.is_open(b) && world.mds.open_files.is_open(a));
    // The inode number of a refused create is still valid, once.
    assert_eq!(
        hers.send_batch(&mut world, &[held("b", b), held("c", b)]),
        (1, Some(ErrorCode::Invalid), vec![b])
    );
    for (change, why) in [
        (refused, ErrorCode::Exists),
        (make_file(there, "f", c), ErrorCode::Exists),
        (removed(there, "none", f), ErrorCode::NotFound),
        (removed(there, "f", a), ErrorCode::Exists),
        (renamed((there, "none"), f, (there, "x"), None), ErrorCode::NotFound),
        (renamed((there, "a"), a, (there, "x"), Some(f)), ErrorCode::NotFound),
    ] {
        assert_eq!(
            hers.send_batch(&mut world, std::slice::from_ref(&change)),
            (0, Some(why), vec![]),
            "{change:?}"
        );
        assert_eq!(hers.resend_batch(&mut world, std::slice::from_ref(&change)).0, 0, "judged again");
    }
    assert_eq!(world.counted(), (before.0 + 2, 0));
}

#[test]
fn batch_refuses_changes_of_directories() {
    let (mut world, d, _) = world();
    world.mkdir(ALICE, "/d/sub", 0o755);
    let mut hers = TestClient::new(&mut world, ALICE, HERS);
    let there = hers.acquire_delegation(&mut world, d);
    let names = world.names_in(d);
    let (f, sub) = (names[0].1, names[1].1);
    for change in [
        removed(there, "sub", sub),
        renamed((there, "sub"), sub, (there, "other"), None),
        renamed((there, "f"), f, (there, "sub"), Some(sub)),
    ] {
        let reported = hers.send_batch(&mut world, std::slice::from_ref(&change));
        assert_eq!(reported, (0, Some(ErrorCode::IsADirectory), vec![]), "{change:?}");
    }
    assert_eq!(world.names_in(d), names);
}

#[test]
fn batch_and_reservation_sizes_are_bounded() {
    let (mut world, mut hers, there) = ahead();
    let few = removed(there, "none", InodeId(99));
    let too_many = vec![few.clone(); NAME_CHANGES_MAX + 1];
    hers.sequence += 1;
    let asked = hers.once(&too_many);
    assert_eq!(world.refused(ALICE, asked), ErrorCode::Limit);
    assert_eq!(hers.send_batch(&mut world, &too_many[1..]).0, 0);
    assert_eq!(hers.send_batch(&mut world, &[]), (0, None, vec![]));
    assert_eq!(world.refused(ALICE, Request::NameBatch { changes: vec![few] }), ErrorCode::Invalid);
    let asks = |numbers| Request::DelegateDir { directory: None, client_id: HERS, numbers };
    assert_eq!(world.refused(ALICE, asks(RESERVED_INODES_MAX + 1)), ErrorCode::Invalid);
    assert_eq!(
        hers.request_delegation(&mut world, None, RESERVED_INODES_MAX).2.len(),
        usize::from(RESERVED_INODES_MAX)
    );
}

#[test]
fn change_time_is_limited_to_delegation_period() {
    let (mut world, mut hers, there) = ahead();
    let since = world.now;
    world.keep_active(ALICE, HERS, 9_000);
    let at = |world: &mut World, hers: &mut TestClient, number: usize, at_ms: u64| {
        let id = hers.number();
        hers.send_all(
            world,
            &[NameChange::Create(CreateOp { at_ms, ..made(there, &number.to_string(), id) })],
        );
        let stat = world.node_stat(ALICE, Request::GetNode { node: world.node(ALICE, id) });
        assert_eq!((stat.mtime_ns, stat.birth_ns), (stat.ctime_ns, stat.ctime_ns));
        stat.mtime_ns / 1_000_000
    };
    let now = world.now;
    // Client clocks may differ by at most a quarter of a second.
    let (first, last) = (since - 250, now + 250);
    let times =
        [(since + 5, since + 5), (0, first), (now - 1, now - 1), (last - 1, last - 1), (u64::MAX, last)];
    for (number, (reported, counts)) in times.into_iter().enumerate() {
        assert_eq!(at(&mut world, &mut hers, number, reported), counts as i64);
    }
    // Requested again, the time of the first grant stays: there may be older unsent changes.
    assert!(hers.request_delegation(&mut world, Some(there.inode), 0).0.is_some());
    assert_eq!(at(&mut world, &mut hers, 9, since + 7), since as i64 + 7);
}

#[test]
fn changes_within_one_millisecond_get_different_times() {
    let (mut world, mut hers, there) = ahead();
    let id = hers.number();
    let node = world.node(ALICE, id);
    hers.send_all(&mut world, &[make_file(there, "a", id)]);
    let mut last = world.node_stat(ALICE, Request::GetNode { node }).ctime_ns;
    for (from, to) in [("a", "b"), ("b", "a")] {
        hers.send_all(&mut world, &[renamed((there, from), id, (there, to), None)]);
        let now = world.node_stat(ALICE, Request::GetNode { node }).ctime_ns;
        assert!(now > last);
        last = now;
    }
    let directory = world.node(ALICE, there.inode);
    let before = world.node_stat(ALICE, Request::GetNode { node: directory }).ctime_ns;
    let (b, c) = (hers.number(), hers.number());
    hers.send_all(&mut world, &[make_file(there, "b", b), make_file(there, "c", c)]);
    assert!(world.node_stat(ALICE, Request::GetNode { node: directory }).ctime_ns >= before + 2);
}

#[test]
fn created_open_file_survives_unlink_in_batch() {
    let (mut world, mut hers, there) = ahead();
    let (files, _) = world.counted();
    let id = hers.number();
    let held = NameChange::Create(CreateOp { held: true, ..made(there, "a", id) });
    assert_eq!(hers.send_batch(&mut world, &[held, removed(there, "a", id)]), (2, None, vec![id]));
    assert_eq!(world.counted(), (files, 1));
    let node = world.node(ALICE, id);
    let allocate = Request::Allocate { node, size_hint: None, method: Method::AllData, client_id: HERS };
    assert!(matches!(world.ask(ALICE, allocate), Response::NodeOpened { .. }));
    assert!(matches!(world.ask(ALICE, Request::CloseNode { node, client_id: HERS }), Response::Kept { .. }));
    assert!(!world.is_stored(id));
    world.now += crate::open_files::CLIENT_TIMEOUT_MS + 1;
    world.reap_all();
    assert_eq!(world.counted(), (files, 0));
}

#[test]
fn file_created_and_closed_in_batch_is_removed() {
    let (mut world, mut hers, there) = ahead();
    let (files, _) = world.counted();
    let (a, b, c) = (hers.number(), hers.number(), hers.number());
    let held = |at: &str, id| NameChange::Create(CreateOp { held: true, ..made(there, at, id) });
    let close = |at: &str, inode| {
        NameChange::Unlink(UnlinkOp { directory: there, name: name(at), inode, at_ms: 0, close: true })
    };
    let over = NameChange::Rename(RenameOp {
        from_directory: there,
        from: name("c"),
        inode: c,
        to_directory: there,
        to: name("b"),
        replaced: Some(b),
        at_ms: 0,
        close: true,
    });
    let changes = [held("a", a), held("b", b), close("a", a), held("c", c), over];
    assert_eq!(hers.send_batch(&mut world, &changes), (5, None, vec![c]));
    assert!(!world.is_stored(a) && !world.is_stored(b));
    assert!(
        !world.mds.open_files.is_open(a)
            && !world.mds.open_files.is_open(b)
            && world.mds.open_files.is_open(c)
    );
    assert_eq!(world.counted(), (files + 1, 0));
}

#[test]
fn closed_file_is_removed_with_batch() {
    let (mut world, mut hers, there) = ahead();
    let id = hers.number();
    let held = NameChange::Create(CreateOp { held: true, ..made(there, "a", id) });
    assert_eq!(hers.send_batch(&mut world, &[held]), (1, None, vec![id]));
    let out = world.mds.lease_count();
    let removal = UnlinkOp { directory: there, name: name("a"), inode: id, at_ms: 0, close: true };
    hers.send_all(&mut world, &[NameChange::Unlink(removal)]);
    assert!(!world.is_stored(id) && !world.mds.open_files.is_open(id));
    assert_eq!((world.mds.lease_count(), world.counted().1), (out - 1, 0));
}

#[test]
fn reserved_inodes_are_used_once_in_order() {
    let (mut world, mut hers, there) = ahead();
    let e = world.inode("/e");
    let mut his = TestClient::new(&mut world, BOB, HIS);
    let beside = his.acquire_delegation(&mut world, e);
    let f = world.names_in(there.inode)[0].1;
    let (first, second, third) = (hers.number(), hers.number(), hers.number());
    let his_number = his.number();
    // Nodes that others created meanwhile are not hers.
    world.mkdir(BOB, "/elsewhere", 0o755);
    let elsewhere = world.inode("/elsewhere");
    hers.send_all(&mut world, &[make_file(there, "b", second)]);
    for wrong in
        [first, second, his_number, f, there.inode, elsewhere, InodeId(0), InodeId(1), InodeId(u64::MAX)]
    {
        for held in [false, true] {
            let change = NameChange::Create(CreateOp { held, ..made(there, "x", wrong) });
            assert_eq!(
                hers.send_batch(&mut world, &[change]),
                (0, Some(ErrorCode::Invalid), vec![]),
                "{wrong:?}"
            );
            assert!(!world.mds.open_files.is_open_by(&user("alice"), HERS, wrong));
        }
    }
    // Another client of hers does not have them either.
    let mut second_mount = TestClient::new(&mut world, ALICE, ClientId { number: 12 });
    world.mkdir(ALICE, "/own", 0o755);
    let own = world.inode("/own");
    let third_place = second_mount.acquire_delegation(&mut world, own);
    let reported = second_mount.send_batch(&mut world, &[make_file(third_place, "x", third)]);
    assert_eq!(reported, (0, Some(ErrorCode::Invalid), vec![]));
    hers.send_all(&mut world, &[make_file(there, "c", third)]);
    his.send_all(&mut world, &[make_file(beside, "x", his_number)]);
    world.restart();
    hers.epoch = world.register_caching(ALICE, HERS);
    world.now += crate::leases::REVOKE_AFTER_MS;
    hers.epoch = world.register_caching(ALICE, HERS);
    let (again, ..) = hers.request_delegation(&mut world, Some(there.inode), 0);
    let there = DirLeaseId { epoch: hers.epoch, lease: again.unwrap().number, ..there };
    let reported = hers.send_batch(&mut world, &[make_file(there, "y", third)]);
    assert_eq!(reported, (0, Some(ErrorCode::Invalid), vec![]), "used, whatever crashed");
    let fourth = hers.number();
    hers.send_all(&mut world, &[make_file(there, "y", fourth)]);
}

#[test]
fn lost_answers_keep_reserved_inodes() {
    let (mut world, mut hers, there) = ahead();
    for _ in 0..9 {
        hers.request_delegation(&mut world, None, 8);
    }
    let id = hers.number();
    hers.send_all(&mut world, &[make_file(there, "a", id)]);
    // The number of ranges is bounded.
    for _ in 0..99 {
        hers.request_delegation(&mut world, None, 8);
    }
    let id = hers.number();
    assert_eq!(hers.send_batch(&mut world, &[make_file(there, "b", id)]).1, Some(ErrorCode::Invalid));
}

#[test]
fn clients_with_reserved_inodes_are_bounded() {
    let (mut world, ..) = world();
    let mut given = 0;
    for number in 0..3_000 {
        let client_id = ClientId { number: 1_000 + number };
        if number % 200 == 0 {
            world.now += crate::open_files::CLIENT_TIMEOUT_MS + 1;
            world.mds.tidy_memory(world.now);
        }
        let mount = TestClient::new(&mut world, ALICE, client_id);
        given += usize::from(!mount.request_delegation(&mut world, None, 1).2.is_empty());
    }
    assert_eq!((given, world.count_of(b'N')), (crate::dir_delegations::RESERVED_BY_USER_MAX, given));
    let his = TestClient::new(&mut world, BOB, HIS);
    assert_eq!(his.request_delegation(&mut world, None, 1).2.len(), 1, "others have room");
}
