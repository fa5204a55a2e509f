//! Migration of files that have outgrown their layouts: the bytes are always complete, and writers
//! have priority.

use std::collections::BTreeSet;

use sealstone_mds_protocol::{
    Access, CheckScope, ClientId, InodeId, Layout, LeaseKind, Method, Node, NodeChange, ObjectRef,
    OpenHandle, PlacementRecord, Request, Response, RevocationTarget, Stat, WidthBound,
};

use super::moves::{answer, later, live, node_of};
use super::world::{ADMIN, ALICE, BOB, GIB, World, path};
use crate::placement::outgrown::OUTGROWN_MIN;
use crate::placement::{UNIT_LARGE, UNIT_MEDIUM};
use crate::records::Inode;
use crate::{MigrationOrder, MoveStart};

const MIB: u64 = 1 << 20;
const LARGE: u64 = 100 * MIB;
const CLIENT: ClientId = ClientId { number: 7 };
const METHOD: Method = Method::AllData;

fn inode_of(world: &World, id: InodeId) -> Inode {
    crate::namespace::node(&*world.mds.store.snapshot().unwrap(), id).unwrap()
}

fn written(world: &World, node: Node, size_at_least: u64) -> Request {
    let generation = inode_of(world, node.inode).generation;
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

fn resize(node: Node, size: u64) -> Request {
    let change = NodeChange { size: Some(size), ..NodeChange::default() };
    Request::SetNode { node, change, client_id: None, through: false }
}

fn open(at: &str, access: Access) -> Request {
    Request::Open { path: path(at), access, method: METHOD }
}

fn open_node(node: Node, access: Access) -> Request {
    Request::OpenNode { node, access, method: METHOD, client_id: CLIENT, reclaim: false }
}

/// Creates a small file and lets it grow.
fn grow(world: &mut World, at: &str, size: u64) -> Stat {
    world.put(ALICE, at, 9);
    later(world);
    let node = node_of(world, at);
    let request = written(world, node, size);
    match world.ask(ALICE, request) {
        Response::Stat { stat } => stat,
        other => panic!("{other:?}"),
    }
}

/// Creates three devices, and one file that has outgrown its object.
fn one_file() -> World {
    let mut world = World::with_devices(3);
    grow(&mut world, "/f", LARGE);
    world
}

fn marked(world: &World) -> Vec<InodeId> {
    world.mds.next_outgrown(None).unwrap()
}

fn begin(world: &mut World, at: &str) -> MoveStart<MigrationOrder> {
    let inode = world.stat(ALICE, at).unwrap().inode;
    world.mds.begin_migration(inode, world.now).unwrap()
}

fn go(begun: MoveStart<MigrationOrder>) -> MigrationOrder {
    match begun {
        MoveStart::Started(order) => order,
        other => panic!("{other:?}"),
    }
}

/// Confirms all pending tags.
fn answer_all(world: &World) -> crate::Result<()> {
    world.mds.devices().iter().try_for_each(|(device, _)| answer(world, device.id))
}

/// Begins a migration, with tags confirmed by every device.
fn fenced(world: &mut World, at: &str) -> MigrationOrder {
    let order = go(begin(world, at));
    answer_all(world).unwrap();
    assert!(world.mds.is_migration_fenced(&order).unwrap());
    order
}

fn finish(world: &World, order: &MigrationOrder) -> bool {
    world.mds.finish_migration(order, order.size, world.now).unwrap()
}

fn placement(world: &mut World, at: &str) -> (Layout, PlacementRecord) {
    match world.ask(ALICE, Request::Placement { path: path(at) }) {
        Response::Placement { layout, placed } => (layout.unwrap(), placed.unwrap()),
        other => panic!("{other:?}"),
    }
}

fn no_drift(world: &mut World) {
    assert_eq!(world.run_check(CheckScope::Names, false), []);
}

/// Runs a pass of the daemon with devices that copy immediately; stops when the store fails.
fn pass(world: &mut World, given: &mut BTreeSet<ObjectRef>) -> crate::Result<()> {
    world.mds.abandon_moves(world.now)?;
    for inode in world.mds.next_outgrown(None)? {
        if let MoveStart::Started(order) = world.mds.begin_migration(inode, world.now)? {
            given.extend(order.to.objects());
            answer_all(world)?;
            assert!(world.mds.is_migration_fenced(&order)?);
            assert!(world.mds.finish_migration(&order, order.size, world.now)?);
        }
    }
    Ok(())
}

#[test]
fn grown_file_gets_layout_of_fresh_file() {
    let mut world = one_file();
    let before = inode_of(&world, world.mds.next_outgrown(None).unwrap()[0]);
    assert_eq!(before.layout.as_ref().unwrap().width(), 1);
    let order = fenced(&mut world, "/f");
    assert_eq!((order.filled.clone(), order.size), (vec![true], LARGE));
    assert!(finish(&world, &order));
    let after = inode_of(&world, order.inode);
    let layout = after.layout.clone().unwrap();
    assert_eq!((layout.stripe_unit(), layout.width()), (Some(UNIT_LARGE), 3));
    world.put(ALICE, "/fresh", LARGE);
    let fresh = placement(&mut world, "/fresh").0;
    assert_eq!((layout.stripe_unit(), layout.width()), (fresh.stripe_unit(), fresh.width()));
    let placed = placement(&mut world, "/f").1;
    assert_eq!((placed.size_hint, placed.at_ms, placed.bound), (Some(LARGE), world.now, WidthBound::Devices));
    assert_eq!(placed.outgrew, Some(1));
    // Another layout of the same content.
    assert_ne!(layout.number(), order.from.number());
    let same = |file: &Inode| (file.generation, file.version, file.size, file.mtime_ns, file.checksum);
    assert_eq!(same(&before), same(&after));
    assert!(after.objects_exist);
    let removed = world.reap_all();
    assert_eq!(removed, order.from.objects());
    assert_eq!(marked(&world), []);
    no_drift(&mut world);
    assert_eq!(begin(&mut world, "/f"), MoveStart::NothingToMove, "not twice");
    let metrics = world.mds.counters.render();
    assert!(metrics.contains("sealstone_mds_files_carried_total 1\n"), "{metrics}");
    assert!(metrics.contains(&format!("sealstone_mds_carried_bytes_total {LARGE}\n")), "{metrics}");
}

#[test]
fn only_unplanned_growth_marks_file() {
    let mut world = World::with_devices(3);
    world.put(ALICE, "/known", LARGE);
    let unknown = world.create(ALICE, "/unknown", None);
    world.commit(ALICE, unknown.intent, LARGE).unwrap();
    grow(&mut world, "/small", OUTGROWN_MIN - 1);
    assert_eq!(marked(&world), []);
    // A put that becomes longer than announced.
    let longer = world.create(ALICE, "/longer", Some(9));
    let longer = world.commit(ALICE, longer.intent, OUTGROWN_MIN).unwrap().inode;
    assert_eq!(marked(&world), [longer]);
    assert!(matches!(begin(&mut world, "/longer"), MoveStart::Started(_)));
    // Other ways to grow.
    let small = node_of(&mut world, "/small");
    world.ask(ALICE, resize(small, 2 * OUTGROWN_MIN));
    assert_eq!(marked(&world), [small.inode, longer]);
    // A removed file loses its mark.
    world.ask(ALICE, Request::Remove { path: path("/small"), recursive: false });
    assert_eq!(world.mds.begin_migration(small.inode, world.now).unwrap(), MoveStart::NothingToMove);
    assert_eq!(marked(&world), [longer]);
}

#[test]
fn useless_mark_is_removed() {
    let mut world = World::with_devices(1);
    let file = grow(&mut world, "/f", LARGE).node();
    assert_eq!(marked(&world), [file.inode]);
    assert_eq!(begin(&mut world, "/f"), MoveStart::NothingToMove);
    assert_eq!(marked(&world), []);
    let more = written(&world, file, LARGE + 1);
    world.ask(ALICE, more);
    assert_eq!(marked(&world), []);
    let more = written(&world, file, 2 * LARGE);
    world.ask(ALICE, more);
    assert_eq!(marked(&world), [file.inode]);
    assert_eq!(begin(&mut world, "/f"), MoveStart::NothingToMove);
    for i in 1..3 {
        let id = world.add_device(i);
        world.mds.device_answered(&world.mds.device_address(id).unwrap(), GIB, 0).unwrap();
        world.mds.device_prepared(&world.mds.device_address(id).unwrap()).unwrap();
    }
    // A rebalance searches all files anyway.
    world.mds.next_balancing_moves(&world.mds.pool(), None).unwrap();
    assert_eq!(marked(&world), [file.inode]);
    let order = fenced(&mut world, "/f");
    assert!(finish(&world, &order));
    assert_eq!(order.to.width(), 3);
}

#[test]
fn small_stripe_unit_is_outgrown() {
    let mut world = World::with_devices(3);
    world.put(ALICE, "/f", 5 * MIB);
    later(&mut world);
    let node = node_of(&mut world, "/f");
    for (size, outgrown) in [(20 * MIB, false), (63 * MIB, false), (65 * MIB, true)] {
        let grown = written(&world, node, size);
        world.ask(ALICE, grown);
        assert_eq!(!marked(&world).is_empty(), outgrown, "{size}");
    }
    let order = fenced(&mut world, "/f");
    assert_eq!((order.from.stripe_unit(), order.to.stripe_unit()), (Some(UNIT_MEDIUM), Some(UNIT_LARGE)));
    assert!(finish(&world, &order));
}

#[test]
fn copy_waits_for_all_devices() {
    let mut world = World::with_devices(3);
    world.put(ALICE, "/f", 5 * MIB);
    let node = node_of(&mut world, "/f");
    let grown = written(&world, node, LARGE);
    world.ask(ALICE, grown);
    let order = go(begin(&mut world, "/f"));
    assert_eq!(order.from.width(), 3);
    for (answered, object) in order.from.objects().iter().enumerate() {
        assert!(!world.mds.is_migration_fenced(&order).unwrap(), "{answered} devices");
        answer(&world, object.device).unwrap();
    }
    assert!(world.mds.is_migration_fenced(&order).unwrap());
    assert!(finish(&world, &order));
}

#[test]
fn writer_ends_migration() {
    let mut world = one_file();
    let node = node_of(&mut world, "/f");
    for by_number in [false, true] {
        let order = fenced(&mut world, "/f");
        assert!(world.mds.is_migration_pending(&order).unwrap());
        let grants = match by_number {
            false => world.open(ALICE, open("/f", Access::Update)).grants,
            true => world.opened(ALICE, open_node(node, Access::Update)).grants,
        };
        assert_eq!(grants[0].object, order.from.objects()[0]);
        assert!(!world.mds.is_migration_pending(&order).unwrap());
        assert!(!finish(&world, &order));
        let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
        assert!(
            order.to.objects().iter().all(|object| removed.contains(object)),
            "what was copied is removed"
        );
        assert!(live(&world).is_superset(&order.from.objects().iter().copied().collect()));
        assert_eq!(marked(&world), [order.inode], "it is tried again");
    }
    // As long as the client has the file open.
    assert_eq!(begin(&mut world, "/f"), MoveStart::InUse);
    world.ask(ALICE, Request::CloseNode { node, client_id: CLIENT });
    // Reading does not end a migration.
    let order = fenced(&mut world, "/f");
    world.open(BOB, open("/f", Access::Read));
    assert!(finish(&world, &order));
}

#[test]
fn writer_at_other_server_ends_migration() {
    let mut one = one_file();
    let mut other = one.beside(0x20);
    let order = fenced(&mut one, "/f");
    let grants = other.open(ALICE, open("/f", Access::Update)).grants;
    assert_eq!(grants[0].object, order.from.objects()[0]);
    assert!(!one.mds.is_migration_pending(&order).unwrap());
    assert!(!finish(&one, &order));
    // A reader at the other server gets the file's location.
    let opened = other.open(BOB, open("/f", Access::Read));
    let order = fenced(&mut one, "/f");
    assert!(finish(&one, &order));
    let handle = OpenHandle::File { node: opened.stat.node(), access: Access::Read };
    match other.ask(BOB, Request::RenewGrants { handle, method: METHOD }) {
        Response::Grants { layout, generation, .. } => {
            assert_eq!((layout, generation), (order.to, opened.stat.generation));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn file_with_write_lease_is_not_migrated() {
    let mut world = one_file();
    let node = node_of(&mut world, "/f");
    // A client that sends Recalls gets leases, also write leases on files open for reading.
    let mut epoch = 0;
    for _ in 0..2 {
        let recalls = Request::Recalls { client_id: CLIENT, epoch, known: 0, wait_ms: 0 };
        let Response::Recalls { epoch: now, .. } = world.ask(ALICE, recalls) else { panic!("it is led") };
        epoch = now;
    }
    world.opened(ALICE, open_node(node, Access::Read));
    let ask = Request::LeaseNode { node, client_id: CLIENT, kind: LeaseKind::Write };
    match world.ask(ALICE, ask) {
        Response::Leased { lease: Some(lease), .. } => assert_eq!(lease.kind, LeaseKind::Write),
        other => panic!("{other:?}"),
    }
    assert_eq!(begin(&mut world, "/f"), MoveStart::InUse);
    world.ask(ALICE, Request::CloseNode { node, client_id: CLIENT });
    assert!(matches!(begin(&mut world, "/f"), MoveStart::Started(_)));
}

#[test]
fn open_file_gets_new_layout_at_renewal() {
    let mut world = one_file();
    let opened = world.open(BOB, open("/f", Access::Read));
    let order = fenced(&mut world, "/f");
    assert!(finish(&world, &order));
    let handle = OpenHandle::File { node: opened.stat.node(), access: Access::Read };
    let renew = || Request::RenewGrants { handle, method: METHOD };
    let renewed = |world: &mut World| match world.ask(BOB, renew()) {
        Response::Grants { layout, generation, grants } => {
            let objects: Vec<ObjectRef> = grants.iter().map(|grant| grant.object).collect();
            assert_eq!(objects, layout.objects());
            (layout, generation)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(renewed(&mut world), (order.to, opened.stat.generation));
    // Truncated to nothing and written again, it has other content.
    let node = node_of(&mut world, "/f");
    world.ask(ALICE, resize(node, 0));
    world.opened(ALICE, Request::Allocate { node, size_hint: None, method: METHOD, client_id: CLIENT });
    let grown = written(&world, node, LARGE);
    world.ask(ALICE, grown);
    assert_ne!(renewed(&mut world).1, opened.stat.generation);
}

#[test]
fn capability_file_blocks_migration() {
    let delegate = |write: bool, until_ms: u64| Request::Delegate {
        path: path("/f"),
        read: !write,
        write,
        start: 0,
        end: None,
        until_ms,
        method: METHOD,
    };
    let mut world = one_file();
    for write in [true, false] {
        later(&mut world);
        let until_ms = world.now + 60_000;
        assert!(matches!(world.ask(ALICE, delegate(write, until_ms)), Response::Delegated { .. }));
        assert_eq!(begin(&mut world, "/f"), MoveStart::InUse);
        world.now = until_ms + 1;
        let order = fenced(&mut world, "/f");
        let until_ms = world.now + 60_000;
        assert!(matches!(world.ask(ALICE, delegate(write, until_ms)), Response::Delegated { .. }));
        assert!(!finish(&world, &order));
    }
}

#[test]
fn valid_create_credentials_block_migration() {
    let mut world = World::with_devices(3);
    let node = world.file(ALICE, "f");
    let opened = world
        .opened(ALICE, Request::Allocate { node, size_hint: Some(9), method: METHOD, client_id: CLIENT });
    assert_eq!(opened.layout.unwrap().width(), 1);
    let grown = written(&world, node, LARGE);
    world.ask(ALICE, grown);
    assert!(inode_of(&world, node.inode).objects_exist);
    // The client would create the old object again, where its bytes would be lost.
    assert_eq!(begin(&mut world, "/f"), MoveStart::InUse);
    later(&mut world);
    let order = fenced(&mut world, "/f");
    assert!(finish(&world, &order));
}

#[test]
fn changed_file_is_not_migrated() {
    let changes: [fn(&mut World); 3] = [
        |world| {
            let node = node_of(world, "/f");
            world.ask(ALICE, resize(node, LARGE - 1));
        },
        |world| {
            let what = RevocationTarget::Object(path("/f"));
            assert!(matches!(world.ask(ALICE, Request::Revoke { what }), Response::Revocation { .. }));
        },
        |world| assert_eq!(world.mds.abandon_moves(world.now).unwrap(), 1),
    ];
    for change in changes {
        let mut world = one_file();
        let order = fenced(&mut world, "/f");
        change(&mut world);
        assert!(!finish(&world, &order));
        assert!(live(&world).contains(&order.from.objects()[0]));
        let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
        assert!(order.to.objects().iter().all(|object| removed.contains(object)));
        assert!(removed.is_disjoint(&live(&world)));
    }
}

#[test]
fn migration_keeps_length_of_sparse_file() {
    let mut world = one_file();
    let node = node_of(&mut world, "/f");
    let order = fenced(&mut world, "/f");
    world.ask(ALICE, resize(node, 2 * LARGE));
    assert!(finish(&world, &order));
    let file = inode_of(&world, node.inode);
    assert_eq!((file.size, file.sparse, file.layout), (2 * LARGE, true, Some(order.to)));
    no_drift(&mut world);
}

#[test]
fn replaced_or_removed_file_stays_removed() {
    let changes: [fn(&mut World); 2] = [
        |world| drop(world.put(ALICE, "/f", 20)),
        |world| drop(world.ask(ALICE, Request::Remove { path: path("/f"), recursive: false })),
    ];
    for change in changes {
        let mut world = one_file();
        let order = fenced(&mut world, "/f");
        change(&mut world);
        assert!(!finish(&world, &order));
        later(&mut world);
        let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
        assert!(order.to.objects().iter().chain(order.from.objects()).all(|object| removed.contains(object)));
        assert!(live(&world).is_disjoint(&removed));
    }
}

#[test]
fn late_copy_of_abandoned_move_is_removed() {
    let mut world = one_file();
    let order = fenced(&mut world, "/f");
    assert_eq!(world.mds.abandon_moves(world.now).unwrap(), 1);
    world.reap_all();
    world.now += 120_000;
    let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
    assert!(
        order.to.objects().iter().all(|object| removed.contains(object)),
        "after its credential has expired"
    );
    assert!(!finish(&world, &order));
    let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
    assert!(order.to.objects().iter().all(|object| removed.contains(object)));
    world.now += 1;
    world.mds.abandon_migration(&order, world.now).unwrap();
    let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
    assert!(order.to.objects().iter().all(|object| removed.contains(object)));
    assert!(live(&world).contains(&order.from.objects()[0]));
}

#[test]
fn drain_abandons_migration() {
    let mut world = one_file();
    let order = fenced(&mut world, "/f");
    let device = order.from.objects()[0].device;
    world.ask(ADMIN, Request::DeviceDrain { id: device, rate: 0 });
    // A move of one object abandons the migration.
    assert!(matches!(world.mds.begin_move(order.inode, device, world.now).unwrap(), MoveStart::Started(_)));
    assert!(!finish(&world, &order));
    assert_eq!(world.mds.abandon_moves(world.now).unwrap(), 1);
}

#[test]
fn crash_before_any_commit_loses_no_object() {
    let mut completed = 0;
    for crash_at in 0..40 {
        let mut world = World::with_devices(3);
        for at in ["/a", "/b", "/c"] {
            grow(&mut world, at, LARGE);
        }
        let before = live(&world);
        let mut given = before.clone();
        world.disk.fail_after(Some(crash_at));
        completed += u32::from(pass(&mut world, &mut given).is_ok());
        world.restart();
        for at in ["/a", "/b", "/c"] {
            let file = world.stat(ALICE, at).unwrap();
            assert!([1, 3].contains(&file.width) && file.size == LARGE, "crash at {crash_at}: {file:?}");
        }
        // Pending tags are confirmed first.
        answer_all(&world).unwrap();
        later(&mut world);
        pass(&mut world, &mut given).unwrap();
        let live = live(&world);
        assert_eq!(live.len(), 9, "crash at {crash_at}");
        assert_eq!(marked(&world), [], "crash at {crash_at}");
        later(&mut world);
        let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
        assert!(removed.is_disjoint(&live), "crash at {crash_at}: an object of a file was removed");
        let all: BTreeSet<ObjectRef> = removed.union(&live).copied().collect();
        assert!(all.is_superset(&given), "crash at {crash_at}: an object is on no list");
        no_drift(&mut world);
    }
    assert!(completed > 0, "the last crash point lies behind the pass");
}
