//! Nodes by number: names, links, removal while open, rights, locks.

mod attributes;
mod bytes;
mod lists;
mod model;
mod open_files;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, FileKind, GroupName, InodeId, LINKS_MAX, LinkTarget, Lock, LockKind, Method,
    Name, Node, NodeChange, NodeKind, OpenHandle, OpenedNode, RenameMode, Request, Response, SetTime, Stat,
    UserName,
};

use super::world::{ADMIN, ALICE, BOB, World, path, user};
use crate::open_files::CLIENT_TIMEOUT_MS;
use crate::records::Inode;

pub(super) const CLIENT: ClientId = ClientId { number: 1 };
const METHOD: Method = Method::AllData;

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn target(text: &str) -> LinkTarget {
    LinkTarget::new(text).unwrap()
}

fn code(response: &Response) -> Option<ErrorCode> {
    match response {
        Response::Failed { failure } => Some(failure.code),
        _ => None,
    }
}

impl World {
    /// Returns the node with the proof of a session.
    pub(super) fn node(&self, caller: SessionId, id: InodeId) -> Node {
        let user = match caller {
            ADMIN => "admin",
            ALICE => "alice",
            _ => "bob",
        };
        Node { inode: id, proof: self.mds.proof_key.prove(&super::world::user(user), id) }
    }

    pub(super) fn node_stat(&mut self, caller: SessionId, request: Request) -> Stat {
        match self.ask(caller, request) {
            Response::Stat { stat } => stat,
            other => panic!("{other:?}"),
        }
    }

    fn make(&mut self, caller: SessionId, parent: Node, at: &str, what: NodeKind, mode: u16) -> Stat {
        let made = make(parent, at, what, mode);
        self.node_stat(caller, made)
    }

    pub(super) fn file(&mut self, caller: SessionId, at: &str) -> Node {
        self.make(caller, Node::ROOT, at, NodeKind::File, 0o644).node()
    }

    pub(super) fn opened(&mut self, caller: SessionId, request: Request) -> OpenedNode {
        match self.ask(caller, request) {
            Response::NodeOpened { node } => node,
            other => panic!("{other:?}"),
        }
    }

    /// Writes up to `size` as a client would.
    pub(super) fn write(&mut self, caller: SessionId, node: Node, size: u64) -> Stat {
        self.opened(caller, allocate(node, Some(size)));
        let generation = self.node_stat(caller, Request::GetNode { node }).generation;
        self.node_stat(caller, written(node, size, generation))
    }

    fn records(&self, family: u8) -> usize {
        self.disk.dump().iter().filter(|(key, _)| key[0] == family).count()
    }

    fn clear_all(&mut self) -> usize {
        let items = self.mds.next_clears(None, 100).unwrap();
        self.mds.cleared(&items).unwrap();
        items.len()
    }
}

pub(super) fn make(parent: Node, at: &str, what: NodeKind, mode: u16) -> Request {
    Request::MakeNode {
        parent,
        name: name(at),
        what,
        mode,
        umask: 0,
        owner: None,
        group: None,
        client_id: None,
    }
}

fn open(node: Node, access: Access) -> Request {
    Request::OpenNode { node, access, method: METHOD, client_id: CLIENT, reclaim: false }
}

fn allocate(node: Node, size_hint: Option<u64>) -> Request {
    Request::Allocate { node, size_hint, method: METHOD, client_id: CLIENT }
}

fn written(node: Node, size_at_least: u64, generation: u32) -> Request {
    Request::Written {
        node,
        size_at_least,
        mtime_ns: None,
        generation,
        made: true,
        fit: false,
        client_id: CLIENT,
    }
}

fn remove(parent: Node, at: &str) -> Request {
    Request::RemoveNode { parent, name: name(at), directory: false }
}

fn resize(node: Node, size: u64) -> Request {
    let change = NodeChange { size: Some(size), ..NodeChange::default() };
    Request::SetNode { node, change, client_id: None, through: false }
}

fn set(node: Node, change: NodeChange) -> Request {
    Request::SetNode { node, change, client_id: None, through: false }
}

#[test]
fn inode_number_without_proof_is_refused() {
    let mut world = World::with_devices(1);
    let secret = world.make(ALICE, Node::ROOT, "private", NodeKind::Directory, 0o700).node();
    let file = world.make(ALICE, secret, "f", NodeKind::File, 0o666).node();
    // Bob guesses the number or has alice's proof: nodes behind a closed directory stay protected.
    for proof in [[0; 8], file.proof, [0xFF; 8]] {
        let guessed = Node { inode: file.inode, proof };
        for request in [
            Request::GetNode { node: guessed },
            Request::RenewGrants {
                handle: OpenHandle::File { node: guessed, access: Access::Read },
                method: METHOD,
            },
            Request::RenewGrants {
                handle: OpenHandle::Node { node: guessed, access: Access::Update, client_id: CLIENT },
                method: METHOD,
            },
            open(guessed, Access::Read),
            allocate(guessed, None),
            Request::ReadLink { node: guessed },
            resize(guessed, 0),
            Request::LinkNode { node: guessed, parent: Node::ROOT, name: name("mine") },
        ] {
            assert_eq!(world.refused(BOB, request), ErrorCode::Stale);
        }
    }
    assert_eq!(
        world.refused(BOB, Request::Lookup { parent: Node::ROOT, name: name("nothing"), client_id: None }),
        ErrorCode::NotFound
    );
    let seen = world
        .node_stat(BOB, Request::Lookup { parent: Node::ROOT, name: name("private"), client_id: None })
        .node();
    assert_eq!(
        world.refused(BOB, Request::Lookup { parent: seen, name: name("f"), client_id: None }),
        ErrorCode::Denied
    );
    // A proof stays valid after the session and a restart.
    world.restart();
    assert!(code(&world.ask(ALICE, Request::GetNode { node: file })).is_none());
}

#[test]
fn all_node_kinds_can_be_created_and_removed() {
    let mut world = World::with_devices(1);
    let kinds = [
        ("file", NodeKind::File),
        ("directory", NodeKind::Directory),
        ("symlink", NodeKind::Symlink(target("../x\u{fe}"))),
        ("fifo", NodeKind::Fifo),
        ("socket", NodeKind::Socket),
        ("null", NodeKind::CharDevice(0x103)),
        ("sda", NodeKind::BlockDevice(0x800)),
    ];
    for (at, what) in kinds.clone() {
        let made = world.make(ADMIN, Node::ROOT, at, what.clone(), 0o640);
        assert_eq!((made.kind, made.links), (what.kind(), if at == "directory" { 2 } else { 1 }));
        let again =
            world.node_stat(ADMIN, Request::Lookup { parent: Node::ROOT, name: name(at), client_id: None });
        assert_eq!(again, made);
        assert_eq!(world.refused(ADMIN, make(Node::ROOT, at, NodeKind::File, 0)), ErrorCode::Exists);
    }
    let Response::Directory { entries, more: false } =
        world.ask(BOB, Request::ReadNodes { directory: Node::ROOT, after: None, limit: 9, client_id: None })
    else {
        panic!("a list")
    };
    assert_eq!(entries.len(), kinds.len());
    let rdev = |at: &str| {
        let entry = entries.iter().find(|entry| entry.name == name(at));
        entry.unwrap().stat.as_ref().unwrap().rdev
    };
    assert_eq!((rdev("null"), rdev("sda"), rdev("fifo")), (0x103, 0x800, 0));
    let link =
        world.node_stat(BOB, Request::Lookup { parent: Node::ROOT, name: name("symlink"), client_id: None });
    assert_eq!((link.mode, link.size), (0o777, 6));
    let Response::Target { target: found } = world.ask(BOB, Request::ReadLink { node: link.node() }) else {
        panic!("a target")
    };
    assert_eq!(found, target("../x\u{fe}"));
    let Response::FileSystem { nodes, .. } = world.ask(BOB, Request::StatFs { node: None }) else {
        panic!("figures")
    };
    assert_eq!(nodes, kinds.len() as u64 + 1);
    for (at, what) in kinds {
        let directory = what == NodeKind::Directory;
        let wrong = Request::RemoveNode { parent: Node::ROOT, name: name(at), directory: !directory };
        let expected = if directory { ErrorCode::IsADirectory } else { ErrorCode::NotADirectory };
        assert_eq!(world.refused(ADMIN, wrong), expected);
        let left =
            world.node_stat(ADMIN, Request::RemoveNode { parent: Node::ROOT, name: name(at), directory });
        assert_eq!(left.links, 0);
    }
    assert_eq!(world.records(b'i'), 1);
    for what in [NodeKind::CharDevice(1), NodeKind::BlockDevice(1)] {
        assert_eq!(world.refused(ALICE, make(Node::ROOT, "dev", what, 0)), ErrorCode::NotPermitted);
    }
}

#[test]
fn names_allow_all_bytes_except_separators() {
    let mut world = World::with_devices(1);
    let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let all = Name::new(bytes.clone()).unwrap();
    let request = Request::MakeNode {
        parent: Node::ROOT,
        name: all.clone(),
        what: NodeKind::File,
        mode: 0o644,
        umask: 0,
        owner: None,
        group: None,
        client_id: None,
    };
    world.node_stat(ALICE, request);
    let at = sealstone_mds_protocol::FilePath::root().join(&all).unwrap();
    let Response::Directory { entries, .. } =
        world.ask(ALICE, Request::ReadDir { path: path("/"), after: None, limit: 9 })
    else {
        panic!("a list")
    };
    assert_eq!(entries[0].name.as_bytes(), bytes);
    assert!(code(&world.ask(ALICE, Request::Stat { path: at })).is_none());
}

#[test]
fn file_is_removed_with_last_link() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "a");
    let objects = world.opened(ALICE, allocate(file, Some(9))).layout.unwrap().objects().to_vec();
    world.node_stat(ALICE, written(file, 9, 0));
    let linked =
        world.node_stat(ALICE, Request::LinkNode { node: file, parent: Node::ROOT, name: name("b") });
    assert_eq!((linked.inode, linked.links), (file.inode, 2));
    assert_eq!(
        world.refused(ALICE, Request::LinkNode { node: file, parent: Node::ROOT, name: name("b") }),
        ErrorCode::Exists
    );
    assert_eq!(world.node_stat(ALICE, remove(Node::ROOT, "a")).links, 1);
    world.now += 1_000_000;
    world.reap_all();
    // Replaced by path too: the other name's file is replaced, this one stays.
    assert_eq!(world.stat(ALICE, "/b").unwrap().size, 9);
    world.put(ALICE, "/b", 3);
    world.now += 1_000_000;
    assert_eq!(world.reap_all(), objects);
    assert_eq!(world.refused(ALICE, Request::GetNode { node: file }), ErrorCode::Stale);
}

#[test]
fn hard_links_are_limited() {
    let mut world = World::with_devices(1);
    let directory = world.make(ALICE, Node::ROOT, "d", NodeKind::Directory, 0o755).node();
    let link = Request::LinkNode { node: directory, parent: Node::ROOT, name: name("e") };
    assert_eq!(world.refused(ALICE, link), ErrorCode::NotPermitted);
    let file = world.file(ALICE, "f");
    let key = crate::keys::inode(file.inode);
    let full = |links| {
        move |tx: &mut dyn crate::store::Transaction| {
            let mut inode: Inode = crate::records::load(tx, &crate::keys::inode(file.inode))?.unwrap();
            inode.links = links;
            Ok(crate::records::save(tx, &crate::keys::inode(file.inode), &inode)?)
        }
    };
    world.mds.update(full(LINKS_MAX - 1)).unwrap();
    world.node_stat(ALICE, Request::LinkNode { node: file, parent: Node::ROOT, name: name("last") });
    let more = Request::LinkNode { node: file, parent: Node::ROOT, name: name("more") };
    assert_eq!(world.refused(ALICE, more), ErrorCode::TooManyLinks);
    assert!(world.disk.dump().iter().any(|(found, _)| *found == key));
}

#[test]
fn unlinked_open_file_stays_until_close() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "f");
    world.write(ALICE, file, 9);
    world.opened(ALICE, open(file, Access::Read));
    assert_eq!(world.node_stat(ALICE, remove(Node::ROOT, "f")).links, 0);
    assert_eq!((world.records(b'i'), world.records(b'n')), (2, 1));
    // It has no name and cannot get one; it can be read, and reopened by the client that has it
    // open.
    assert!(world.stat(ALICE, "/f").is_err());
    let link = Request::LinkNode { node: file, parent: Node::ROOT, name: name("g") };
    assert_eq!(world.refused(ALICE, link), ErrorCode::NotFound);
    assert_eq!(world.node_stat(ALICE, Request::GetNode { node: file }).size, 9);
    let handle = OpenHandle::Node { node: file, access: Access::Read, client_id: CLIENT };
    assert!(matches!(
        world.ask(ALICE, Request::RenewGrants { handle, method: METHOD }),
        Response::Grants { .. }
    ));
    // It stays as long as its client is active.
    for _ in 0..10 {
        world.now += CLIENT_TIMEOUT_MS - 1;
        assert!(matches!(
            world.ask(ALICE, Request::KeepNodes { client_id: CLIENT }),
            Response::Kept { held: 1, .. }
        ));
        world.reap_all();
    }
    assert_eq!(world.records(b'i'), 2);
    world.ask(ALICE, Request::CloseNode { node: file, client_id: CLIENT });
    assert_eq!(world.records(b'i'), 1);
    world.now += 1_000_000;
    assert_eq!(world.reap_all().len(), 1);
    assert_eq!((world.records(b'n'), world.records(b'f')), (0, 0), "nothing is left of it");
}

#[test]
fn orphans_of_silent_client_are_removed() {
    for comes_back in [false, true] {
        let mut world = World::with_devices(1);
        let file = world.file(ALICE, "f");
        world.write(ALICE, file, 9);
        world.opened(ALICE, open(file, Access::Update));
        world.restart();
        // The server knows that there was a client, but not its open files.
        world.node_stat(ALICE, remove(Node::ROOT, "f"));
        assert_eq!(world.records(b'i'), 2);
        if comes_back {
            let Response::Kept { held: 0, .. } = world.ask(ALICE, Request::KeepNodes { client_id: CLIENT })
            else {
                panic!("no open files are reported")
            };
            let again = Request::OpenNode {
                node: file,
                access: Access::Update,
                method: METHOD,
                client_id: CLIENT,
                reclaim: true,
            };
            assert_eq!(world.opened(ALICE, again).stat.links, 0);
            world.now += CLIENT_TIMEOUT_MS;
            world.reap_all();
            assert_eq!(world.records(b'i'), 2, "it is held again");
        }
        world.now += CLIENT_TIMEOUT_MS + 1;
        while world.mds.tidy(world.now).unwrap() {}
        world.now += 2 * CLIENT_TIMEOUT_MS;
        while world.mds.tidy(world.now).unwrap() {}
        world.now += 1_000_000;
        assert_eq!(world.reap_all().len(), 1);
        assert_eq!((world.records(b'i'), world.records(b'n'), world.records(b'f')), (1, 0, 0));
    }
}

#[test]
fn replaced_open_file_stays_until_close() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "f");
    world.write(ALICE, file, 9);
    world.opened(ALICE, open(file, Access::Read));
    world.put(ALICE, "/f", 5);
    assert_eq!(world.node_stat(ALICE, Request::GetNode { node: file }).size, 9);
    world.put(ALICE, "/g", 5);
    let other = world.file(ALICE, "h");
    world.opened(ALICE, open(other, Access::Read));
    world.ask(ALICE, Request::Rename { from: path("/g"), to: path("/h"), replace: true });
    world.ask(ALICE, Request::Remove { path: path("/f"), recursive: true });
    assert_eq!(world.node_stat(ALICE, Request::GetNode { node: other }).links, 0);
}

#[test]
fn symlinks_are_followed_as_posix_requires() {
    let mut world = World::with_devices(1);
    let d = world.make(ALICE, Node::ROOT, "d", NodeKind::Directory, 0o755).node();
    world.put(ALICE, "/d/f", 7);
    for (at, to) in
        [("rel", "d"), ("abs", "/d"), ("dots", "./d/../rel//."), ("file", "rel/f"), ("away", "d/none")]
    {
        world.make(ALICE, Node::ROOT, at, NodeKind::Symlink(target(to)), 0);
    }
    world.make(ALICE, d, "up", NodeKind::Symlink(target("../file")), 0);
    for at in ["/rel/f", "/abs/f", "/dots/f", "/file", "/d/up", "/rel/up"] {
        assert_eq!(world.stat(ALICE, at).unwrap().size, 7, "{at}");
    }
    let lstat = |world: &mut World, at: &str| world.node_stat(ALICE, Request::Lstat { path: path(at) }).kind;
    assert_eq!(
        (lstat(&mut world, "/file"), lstat(&mut world, "/rel/f")),
        (FileKind::Symlink, FileKind::File)
    );
    assert_eq!(world.stat(ALICE, "/away"), Err(ErrorCode::NotFound));
    assert_eq!(world.stat(ALICE, "/file/x"), Err(ErrorCode::NotADirectory));
    // A put at a dangling link creates the target.
    world.put(ALICE, "/away", 3);
    assert_eq!(world.stat(ALICE, "/d/none").unwrap().size, 3);
    // Removal and rename apply to the link itself.
    world.ask(ALICE, Request::Remove { path: path("/file"), recursive: false });
    world.ask(ALICE, Request::Rename { from: path("/rel"), to: path("/moved"), replace: false });
    assert_eq!(lstat(&mut world, "/moved"), FileKind::Symlink);
    assert!(world.stat(ALICE, "/d/f").is_ok());
    // Directories are created through links in the path.
    world.ask(ALICE, Request::MakeDir { path: path("/moved/x/y"), parents: true, mode: 0o755 });
    assert!(world.stat(ALICE, "/d/x/y").is_ok());
}

#[test]
fn symlink_loops_and_long_chains_are_refused() {
    let mut world = World::with_devices(1);
    world.make(ALICE, Node::ROOT, "loop", NodeKind::Symlink(target("loop")), 0);
    assert_eq!(world.stat(ALICE, "/loop"), Err(ErrorCode::Loop));
    assert_eq!(world.stat(ALICE, "/loop/x"), Err(ErrorCode::Loop));
    world.put(ALICE, "/l0", 1);
    for i in 1..=41 {
        let to = target(&format!("l{}", i - 1));
        world.make(ALICE, Node::ROOT, &format!("l{i}"), NodeKind::Symlink(to), 0);
    }
    assert!(world.stat(ALICE, "/l40").is_ok());
    assert_eq!(world.stat(ALICE, "/l41"), Err(ErrorCode::Loop));
}

#[test]
fn rename_follows_posix_and_link_counts() {
    let mut world = World::with_devices(1);
    let a = world.make(ALICE, Node::ROOT, "a", NodeKind::Directory, 0o755).node();
    let b = world.make(ALICE, Node::ROOT, "b", NodeKind::Directory, 0o755).node();
    let x = world.make(ALICE, a, "x", NodeKind::Directory, 0o755).node();
    let file = world.make(ALICE, a, "f", NodeKind::File, 0o644).node();
    let links = |world: &mut World, node| world.node_stat(ALICE, Request::GetNode { node }).links;
    let rename = |from_parent, from: &str, to_parent, to: &str, mode| Request::RenameNode {
        from_parent,
        from: name(from),
        to_parent,
        to: name(to),
        mode,
    };
    use RenameMode::{Exchange, NoReplace, Replace};
    assert_eq!((links(&mut world, Node::ROOT), links(&mut world, a), links(&mut world, b)), (4, 3, 2));
    assert_eq!(world.refused(ALICE, rename(Node::ROOT, "a", x, "y", Replace)), ErrorCode::Cycle);
    assert_eq!(world.refused(ALICE, rename(Node::ROOT, "a", a, "y", Replace)), ErrorCode::Cycle);
    assert_eq!(world.refused(ALICE, rename(a, "x", Node::ROOT, "a", Replace)), ErrorCode::NotEmpty);
    assert_eq!(world.refused(ALICE, rename(a, "f", Node::ROOT, "b", Replace)), ErrorCode::IsADirectory);
    assert_eq!(world.refused(ALICE, rename(Node::ROOT, "b", a, "f", Replace)), ErrorCode::NotADirectory);
    assert_eq!(world.refused(ALICE, rename(a, "f", a, "x", NoReplace)), ErrorCode::Exists);
    assert_eq!(world.refused(ALICE, rename(a, "f", a, "none", Exchange)), ErrorCode::NotFound);
    assert_eq!(world.refused(ALICE, rename(Node::ROOT, "a", x, "z", Exchange)), ErrorCode::NotFound);
    // A directory replaces an empty one.
    let Response::Renamed { moved, other: Some(removed) } =
        world.ask(ALICE, rename(a, "x", Node::ROOT, "b", Replace))
    else {
        panic!("moved")
    };
    assert_eq!((moved.inode, removed.inode, removed.links), (x.inode, b.inode, 0));
    assert_eq!((links(&mut world, Node::ROOT), links(&mut world, a)), (4, 2));
    // A file and a directory are exchanged.
    assert!(code(&world.ask(ALICE, rename(a, "f", Node::ROOT, "b", Exchange))).is_none());
    assert_eq!((links(&mut world, Node::ROOT), links(&mut world, a)), (3, 3));
    assert_eq!(world.stat(ALICE, "/b").unwrap().inode, file.inode);
    assert_eq!(world.stat(ALICE, "/a/f").unwrap().inode, x.inode);
    // An exchange cannot move a directory into itself either.
    let deep = world.make(ALICE, x, "deep", NodeKind::Directory, 0o755).node();
    assert_eq!(world.refused(ALICE, rename(x, "deep", Node::ROOT, "a", Exchange)), ErrorCode::Cycle);
    assert_eq!(links(&mut world, deep), 2);
    // Two names of one file: both stay.
    world.node_stat(ALICE, Request::LinkNode { node: file, parent: a, name: name("g") });
    assert!(code(&world.ask(ALICE, rename(a, "g", Node::ROOT, "b", Replace))).is_none());
    assert_eq!((links(&mut world, file), world.stat(ALICE, "/a/g").is_ok()), (2, true));
}

#[test]
fn sticky_and_foreign_directories_refuse_removal() {
    let mut world = World::with_devices(1);
    let tmp = world.make(ADMIN, Node::ROOT, "tmp", NodeKind::Directory, 0o1777);
    let (tmp_a, tmp_b) = (world.node(ALICE, tmp.inode), world.node(BOB, tmp.inode));
    world.make(ALICE, tmp_a, "f", NodeKind::File, 0o666);
    world.make(BOB, tmp_b, "g", NodeKind::File, 0o666);
    assert_eq!(world.refused(BOB, remove(tmp_b, "f")), ErrorCode::NotPermitted);
    let rename = |from: &str, to: &str| Request::RenameNode {
        from_parent: tmp_b,
        from: name(from),
        to_parent: tmp_b,
        to: name(to),
        mode: RenameMode::Replace,
    };
    assert_eq!(world.refused(BOB, rename("f", "h")), ErrorCode::NotPermitted);
    assert_eq!(world.refused(BOB, rename("g", "f")), ErrorCode::NotPermitted);
    let closed = world.make(ALICE, Node::ROOT, "hers", NodeKind::Directory, 0o755);
    let (hers, seen) = (closed.node(), world.node(BOB, closed.inode));
    world.make(ALICE, hers, "f", NodeKind::File, 0o666);
    assert_eq!(world.refused(BOB, remove(seen, "f")), ErrorCode::Denied);
    assert_eq!(world.refused(BOB, make(seen, "x", NodeKind::Fifo, 0o666)), ErrorCode::Denied);
    // Another user's directory inside one's own cannot be moved out: that changes its `..`.
    let mine = world.make(BOB, Node::ROOT, "mine", NodeKind::Directory, 0o777);
    let mine_a = world.node(ALICE, mine.inode);
    world.make(ALICE, mine_a, "inner", NodeKind::Directory, 0o755);
    let away = Request::RenameNode {
        from_parent: mine.node(),
        from: name("inner"),
        to_parent: tmp_b,
        to: name("inner"),
        mode: RenameMode::Replace,
    };
    assert_eq!(world.refused(BOB, away), ErrorCode::Denied);
}

#[test]
fn times_and_modes_follow_posix_permissions() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "f");
    let seen = world.node(BOB, file.inode);
    let mode = |mode| NodeChange { mode: Some(mode), ..NodeChange::default() };
    let mtime = |time| NodeChange { mtime: Some(time), ..NodeChange::default() };
    assert_eq!(world.refused(BOB, set(seen, mode(0o777))), ErrorCode::NotPermitted);
    assert_eq!(world.refused(BOB, set(seen, mtime(SetTime::Now))), ErrorCode::Denied);
    world.now += 5;
    let changed = world.node_stat(ALICE, set(file, mode(0o622)));
    assert_eq!((changed.ctime_ns, changed.mtime_ns), (changed.birth_ns + 5_000_000, changed.birth_ns));
    assert_eq!(world.refused(BOB, set(seen, mtime(SetTime::At(7)))), ErrorCode::NotPermitted);
    world.now += 5;
    let touched = world.node_stat(BOB, set(seen, mtime(SetTime::Now)));
    assert_eq!(touched.mtime_ns, touched.birth_ns + 10_000_000);
    assert_eq!(world.node_stat(ALICE, set(file, mtime(SetTime::At(-1)))).mtime_ns, -1);
    // An empty change has no effect.
    let (before, after) = (
        world.node_stat(ALICE, Request::GetNode { node: file }),
        world.node_stat(BOB, set(seen, NodeChange::default())),
    );
    assert_eq!(before.ctime_ns, after.ctime_ns);
    // A write clears the set-id bits, unless an administrator writes.
    world.node_stat(ADMIN, set(world.node(ADMIN, file.inode), mode(0o6777)));
    world.write(BOB, seen, 9);
    assert_eq!(world.node_stat(ALICE, Request::GetNode { node: file }).mode, 0o777);
    let link = world.make(ALICE, Node::ROOT, "link", NodeKind::Symlink(target("f")), 0).node();
    assert_eq!(world.refused(ALICE, set(link, mode(0o600))), ErrorCode::NotSupported);
}

#[test]
fn only_administrators_create_nodes_for_others() {
    let mut world = World::with_devices(1);
    let made = |owner: &str, group: Option<&str>| Request::MakeNode {
        parent: Node::ROOT,
        name: name(owner),
        what: NodeKind::File,
        mode: 0o644,
        umask: 0,
        owner: Some(UserName::new(owner).unwrap()),
        group: group.map(|group| GroupName::new(group).unwrap()),
        client_id: None,
    };
    assert_eq!(world.refused(ALICE, made("uid-1000", None)), ErrorCode::NotPermitted);
    assert_eq!(world.refused(ALICE, made("alice", Some("gid-7"))), ErrorCode::NotPermitted);
    assert_eq!(world.refused(ADMIN, made("nobody-here", None)), ErrorCode::NotFound);
    let stat = world.node_stat(ADMIN, made("uid-1000", Some("gid-7")));
    assert_eq!((stat.owner.number(), stat.group.unwrap().number()), (Some(1000), Some(7)));
    let invite = Request::UserInvite {
        name: user("uid-1000"),
        kind: sealstone_mds_protocol::AccountKind::Password,
        role: sealstone_mds_protocol::Role::User,
        lifetime_s: 9,
        replace: false,
    };
    assert_eq!(world.refused(ADMIN, invite), ErrorCode::InvalidName);
    let group = Request::GroupCreate { name: GroupName::new("gid-7").unwrap() };
    assert_eq!(world.refused(ADMIN, group), ErrorCode::InvalidName);
}

#[test]
fn locks_end_with_close_and_are_reclaimed() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "f");
    let (one, two) = (CLIENT, ClientId { number: 2 });
    let lock = |client_id, kind, reclaim| Request::LockNode {
        node: file,
        client_id,
        lock: Lock { kind, whole: false, start: 0, end: 9, owner: 5, pid: 6 },
        test: false,
        reclaim,
    };
    let hold = |client_id, reclaim| Request::OpenNode {
        node: file,
        access: Access::Update,
        method: METHOD,
        client_id,
        reclaim,
    };
    let is_free = |answer: Response| match answer {
        Response::Locked { conflict } => conflict.is_none(),
        other => panic!("{other:?}"),
    };
    assert_eq!(world.refused(ALICE, lock(one, LockKind::Write, false)), ErrorCode::Invalid);
    for client_id in [one, two] {
        world.opened(ALICE, hold(client_id, false));
    }
    assert!(is_free(world.ask(ALICE, lock(one, LockKind::Write, false))));
    assert!(!is_free(world.ask(ALICE, lock(two, LockKind::Read, false))));
    // After a restart the previous owner may reclaim it; others wait.
    world.restart();
    for client_id in [one, two] {
        world.opened(ALICE, hold(client_id, true));
    }
    assert_eq!(world.refused(ALICE, lock(two, LockKind::Read, false)), ErrorCode::Busy);
    assert!(is_free(world.ask(ALICE, lock(one, LockKind::Write, true))));
    world.now += CLIENT_TIMEOUT_MS;
    for client_id in [one, two] {
        world.ask(ALICE, Request::KeepNodes { client_id });
    }
    assert!(!is_free(world.ask(ALICE, lock(two, LockKind::Read, false))));
    // A silent client's lock ends with it; a closed file's and a released one end at once.
    world.now += CLIENT_TIMEOUT_MS;
    world.ask(ALICE, Request::KeepNodes { client_id: two });
    world.now += 1;
    while world.mds.tidy(world.now).unwrap() {}
    assert!(is_free(world.ask(ALICE, lock(two, LockKind::Read, false))));
    // It is fenced, and opens the file again after it released it.
    assert_eq!(world.refused(ALICE, hold(one, true)), ErrorCode::Fenced);
    world.ask(ALICE, Request::CloseNode { node: file, client_id: one });
    world.opened(ALICE, hold(one, false));
    assert!(!is_free(world.ask(ALICE, lock(one, LockKind::Write, false))));
    world.ask(ALICE, Request::UnlockNode { node: file, client_id: two, owner: 5 });
    assert!(is_free(world.ask(ALICE, lock(one, LockKind::Write, false))));
    world.ask(ALICE, Request::CloseNode { node: file, client_id: one });
    assert!(is_free(world.ask(ALICE, lock(two, LockKind::Write, false))));
}

#[test]
fn directory_pages_continue_after_last_name() {
    let mut world = World::with_devices(1);
    for i in 0..40 {
        world.make(ALICE, Node::ROOT, &format!("f{i:02}"), NodeKind::File, 0o644);
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let request =
            Request::ReadNodes { directory: Node::ROOT, after: after.clone(), limit: 7, client_id: None };
        let Response::Directory { entries, more } = world.ask(BOB, request) else { panic!("a page") };
        // Each page can be continued at once.
        for entry in &entries {
            let node = entry.stat.as_ref().unwrap().node();
            assert!(code(&world.ask(BOB, Request::GetNode { node })).is_none());
        }
        after = entries.last().map(|entry| entry.name.clone());
        seen.extend(entries.into_iter().map(|entry| entry.name.shown().into_owned()));
        if !more {
            break;
        }
    }
    assert_eq!(seen, (0..40).map(|i| format!("f{i:02}")).collect::<Vec<_>>());
}
