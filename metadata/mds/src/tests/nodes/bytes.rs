//! Objects, sizes and credentials.

use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, Node, NodeChange, NodeKind, OpenHandle, OpenedNode, Request, Response,
};
use sealstone_osd::{CapabilityBytes, Generation, Permissions};

use super::super::world::{ALICE, BOB, World, path};
use super::{CLIENT, METHOD, allocate, name, open, remove, resize, set, written};

#[test]
fn empty_file_has_no_objects() {
    let mut world = World::with_devices(2);
    let file = world.file(ALICE, "f");
    let opened = world.opened(ALICE, open(file, Access::Read));
    assert_eq!((opened.layout, opened.grants.len(), opened.stat.width), (None, 0, 0));
    assert_eq!(world.node_stat(ALICE, resize(file, 1 << 40)).size, 1 << 40);
    let Response::Opened { file: by_path } =
        world.ask(ALICE, Request::Open { path: path("/f"), access: Access::Read, method: METHOD })
    else {
        panic!("opened")
    };
    assert_eq!((by_path.layout, by_path.sparse, by_path.stat.size), (None, true, 1 << 40));
    world.ask(ALICE, Request::CloseNode { node: file, client_id: CLIENT });
    world.node_stat(ALICE, remove(Node::ROOT, "f"));
    world.now += 1_000_000;
    assert!(world.reap_all().is_empty());
}

fn permissions(opened: &OpenedNode) -> Permissions {
    let bytes = CapabilityBytes::new(Generation::Osd2, opened.grants[0].capability.as_slice()).unwrap();
    bytes.parse().unwrap().permissions
}

#[test]
fn credentials_create_objects_only_once() {
    let mut world = World::with_devices(2);
    let file = world.file(ALICE, "f");
    let first = world.opened(ALICE, allocate(file, Some(10)));
    assert!(!first.made && permissions(&first).contains(Permissions::CREATE | Permissions::WRITE));
    let again = world.opened(ALICE, allocate(file, Some(1 << 30)));
    assert_eq!(again.layout, first.layout, "concurrent first writes use the same objects");
    world.node_stat(ALICE, written(file, 10, 0));
    let later = world.opened(ALICE, open(file, Access::Update));
    assert!(later.made && permissions(&later).contains(Permissions::READ | Permissions::WRITE));
    assert!(!permissions(&later).contains(Permissions::CREATE));
    assert!(!permissions(&world.opened(ALICE, open(file, Access::Read))).contains(Permissions::WRITE));
    // Objects that a silent client never created, or created and never reported, are removed with
    // the file.
    world.ask(ALICE, Request::CloseNode { node: file, client_id: CLIENT });
    let lost = world.file(ALICE, "lost");
    let objects = world.opened(ALICE, allocate(lost, Some(1 << 20))).layout.unwrap().objects().to_vec();
    world.restart();
    world.ask(ALICE, Request::Remove { path: path("/lost"), recursive: false });
    // It waits a minute for its client; then it is removed, and later its objects.
    world.now += 10_000_000;
    world.reap_all();
    world.now += 10_000_000;
    let removed = world.reap_all();
    assert!(objects.iter().all(|object| removed.contains(object)));
}

#[test]
fn write_only_open_grants_no_read() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "f");
    world.write(ALICE, file, 5);
    world.node_stat(ALICE, set(file, NodeChange { mode: Some(0o602), ..NodeChange::default() }));
    let seen = world.node(BOB, file.inode);
    assert_eq!(world.refused(BOB, open(seen, Access::Read)), ErrorCode::Denied);
    assert_eq!(world.refused(BOB, open(seen, Access::Update)), ErrorCode::Denied);
    let opened = world.opened(BOB, open(seen, Access::Write));
    assert!(permissions(&opened).contains(Permissions::WRITE));
    assert!(!permissions(&opened).contains(Permissions::READ));
    let opened = world.opened(BOB, allocate(seen, None));
    assert!(!permissions(&opened).contains(Permissions::READ));
}

#[test]
fn open_file_survives_mode_change() {
    let mut world = World::with_devices(1);
    // As open(O_CREAT | O_RDWR, 0) has it.
    let request = Request::MakeNode {
        parent: Node::ROOT,
        name: name("f"),
        what: NodeKind::File,
        mode: 0,
        umask: 0,
        owner: None,
        group: None,
        client_id: Some(CLIENT),
    };
    let file = world.node_stat(ALICE, request).node();
    world.write(ALICE, file, 9);
    assert_eq!(world.refused(BOB, open(world.node(BOB, file.inode), Access::Read)), ErrorCode::Denied);
    let other = ClientId { number: 2 };
    let fresh = Request::OpenNode {
        node: file,
        access: Access::Update,
        method: METHOD,
        client_id: other,
        reclaim: false,
    };
    assert_eq!(world.refused(ALICE, fresh), ErrorCode::Denied, "another open looks at the mode");
    let handle = OpenHandle::Node { node: file, access: Access::Update, client_id: CLIENT };
    assert!(matches!(
        world.ask(ALICE, Request::RenewGrants { handle, method: METHOD }),
        Response::Grants { .. }
    ));
    let shrink = Request::SetNode {
        node: file,
        change: NodeChange { size: Some(1), ..NodeChange::default() },
        client_id: Some(CLIENT),
        through: true,
    };
    world.node_stat(ALICE, shrink);
    assert_eq!(world.refused(ALICE, resize(file, 0)), ErrorCode::Denied);
}

#[test]
fn truncated_bytes_are_never_readable() {
    let mut world = World::with_devices(2);
    let file = world.file(ALICE, "f");
    world.opened(ALICE, open(file, Access::Update));
    let before = world.write(ALICE, file, 1000);
    let cut = world.node_stat(ALICE, resize(file, 100));
    assert_eq!((cut.size, cut.generation), (100, before.generation + 1));
    // It cannot grow before its objects were cleared: not by size, not by writes.
    for request in [
        resize(file, 101),
        written(file, 101, cut.generation),
        allocate(file, None),
        open(file, Access::Update),
        Request::RenewGrants {
            handle: OpenHandle::Node { node: file, access: Access::Update, client_id: CLIENT },
            method: METHOD,
        },
        // Nor by path: the server's truncation could remove what is written through it.
        Request::Open { path: path("/f"), access: Access::Update, method: METHOD },
        Request::Open { path: path("/f"), access: Access::Write, method: METHOD },
        Request::RenewGrants {
            handle: OpenHandle::File { node: file, access: Access::Update },
            method: METHOD,
        },
    ] {
        assert_eq!(world.refused(ALICE, request), ErrorCode::Busy);
    }
    // Bytes before the new end can be written, and it can be truncated again.
    world.node_stat(ALICE, written(file, 100, cut.generation));
    let items = world.mds.next_clears(None, 9).unwrap();
    assert_eq!(items[0].objects.iter().map(|(_, length)| *length).collect::<Vec<_>>(), [100]);
    let cut = world.node_stat(ALICE, resize(file, 50));
    world.mds.cleared(&items).unwrap();
    assert_eq!(
        world.refused(ALICE, resize(file, 51)),
        ErrorCode::Busy,
        "cleared to 100 is not cleared to 50"
    );
    world.restart();
    assert_eq!(world.clear_all(), 1);
    assert_eq!(world.clear_all(), 0);
    assert_eq!(world.node_stat(ALICE, resize(file, 2000)).size, 2000);
    // A client that wrote between truncation and clearing has to write again too.
    let late = ClientId { number: 9 };
    let again = Request::OpenNode {
        node: file,
        access: Access::Update,
        method: METHOD,
        client_id: late,
        reclaim: false,
    };
    let now = world.opened(ALICE, again).stat.generation;
    assert_eq!(world.refused(ALICE, written(file, 4000, cut.generation)), ErrorCode::Stale);
    // A client that wrote past the new end earlier and reports it now has to write again.
    world.opened(
        ALICE,
        Request::OpenNode {
            node: file,
            access: Access::Update,
            method: METHOD,
            client_id: CLIENT,
            reclaim: true,
        },
    );
    assert_eq!(world.refused(ALICE, written(file, 4000, before.generation)), ErrorCode::Stale);
    assert_eq!(world.node_stat(ALICE, written(file, 4000, now)).size, 4000);
}

#[test]
fn file_truncated_to_zero_gets_new_objects() {
    let mut world = World::with_devices(2);
    let file = world.file(ALICE, "f");
    world.write(ALICE, file, 1000);
    let old = world.opened(ALICE, allocate(file, None)).layout.unwrap();
    world.node_stat(ALICE, resize(file, 7));
    let cut = world.node_stat(ALICE, resize(file, 0));
    assert_eq!((cut.size, cut.width, world.records(b'c')), (0, 0, 0));
    assert_eq!(world.refused(ALICE, written(file, 10, 0)), ErrorCode::Stale);
    let new = world.opened(ALICE, allocate(file, Some(10))).layout.unwrap();
    assert!(new.objects().iter().all(|object| !old.objects().contains(object)));
    world.now += 1_000_000;
    assert_eq!(world.reap_all(), old.objects());
}

#[test]
fn concurrent_appends_never_shorten_file() {
    let mut world = World::with_devices(2);
    let file = world.file(ALICE, "f");
    world.node_stat(ALICE, set(file, NodeChange { mode: Some(0o666), ..NodeChange::default() }));
    world.write(ALICE, file, 1000);
    let seen = world.node(BOB, file.inode);
    let (a, b) = (world.write(BOB, seen, 5000), world.write(ALICE, file, 3000));
    assert_eq!((a.size, b.size), (5000, 5000));
    assert!(b.version > a.version);
    let too_long = written(file, u64::MAX, b.generation);
    assert_eq!(world.refused(ALICE, too_long), ErrorCode::FileTooLarge);
}
