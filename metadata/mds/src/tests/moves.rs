//! Moves of objects between devices: the bytes are always complete, and writers have priority.

use std::collections::BTreeSet;

use sealstone_mds_protocol::{
    Access, ClientId, Device, DeviceId, DeviceState, Drain, ErrorCode, Method, Node, NodeChange, ObjectRef,
    OpenHandle, Request, Response, RevocationTarget,
};

use super::world::{ADMIN, ALICE, BOB, GIB, World, create, path};
use crate::{DrainPass, MoveOrder, MoveStart};

const GONE: DeviceId = DeviceId(1);
const RATE: u64 = crate::DRAIN_RATE_MIN;

fn device(world: &mut World, request: Request) -> Device {
    match world.ask(ADMIN, request) {
        Response::Device { device } => device,
        other => panic!("{other:?}"),
    }
}

fn drain(world: &mut World) -> Device {
    device(world, Request::DeviceDrain { id: GONE, rate: RATE })
}

fn drain_status(world: &mut World) -> Drain {
    match world.ask(ADMIN, Request::DeviceList { after: None, limit: 9 }) {
        Response::Devices { devices, .. } => devices[0].drain.clone().expect("it is drained"),
        other => panic!("{other:?}"),
    }
}

/// Waits until all credentials have expired and nothing from before is recorded.
pub(super) fn later(world: &mut World) {
    world.now += 10_000_000;
    for (session, name) in [(ADMIN, "admin"), (ALICE, "alice"), (BOB, "bob")] {
        world.session(session, name, session == ADMIN);
    }
}

fn open(at: &str, access: Access) -> Request {
    Request::Open { path: path(at), access, method: Method::AllData }
}

/// Creates files until some are on the device.
fn files(world: &mut World) {
    for i in 0..8 {
        world.put(ALICE, &format!("/small{i}"), 9);
    }
    world.put(ALICE, "/large", 5 << 20);
}

/// Runs a pass of the daemon with devices that copy immediately; stops when the store fails.
fn pass(world: &mut World, given: &mut BTreeSet<ObjectRef>) -> crate::Result<DrainPass> {
    let mut pass = DrainPass::default();
    world.mds.abandon_moves(world.now)?;
    let began_ms = world.mds.draining()?.first().map_or(0, |(_, drain)| drain.began_ms);
    // Before the files: a put that ends meanwhile is one of them.
    pass.objects += world.mds.creates_on(GONE)?;
    let mut after = None;
    loop {
        let page = world.mds.next_moves(GONE, after)?;
        for item in page.items {
            match world.mds.begin_move(item.inode, GONE, world.now)? {
                MoveStart::Started(order) => {
                    given.insert(order.to);
                    answer(world, GONE)?;
                    assert!(world.mds.is_fenced(&order)?);
                    if world.mds.finish_move(&order, item.bytes, world.now)? {
                        continue;
                    }
                }
                MoveStart::InUse => {}
                MoveStart::NothingToMove => continue,
            }
            pass.objects += 1;
            pass.bytes += item.bytes;
            pass.in_use += 1;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    pass.removing = world.mds.removals_on(GONE, world.now)?;
    world.mds.drain_passed(GONE, began_ms, &pass, world.now)?;
    Ok(pass)
}

/// Confirms the pending tags of a device.
pub(super) fn answer(world: &World, device: DeviceId) -> crate::Result<()> {
    let items = world.mds.next_retags(device, 99)?;
    world.mds.retagged(&items, world.now)
}

fn begin(world: &mut World, at: &str) -> MoveStart {
    let inode = world.stat(ALICE, at).unwrap().inode;
    world.mds.begin_move(inode, GONE, world.now).unwrap()
}

fn go(begun: MoveStart) -> MoveOrder {
    match begun {
        MoveStart::Started(order) => order,
        other => panic!("{other:?}"),
    }
}

/// Returns the objects of all files.
pub(super) fn live(world: &World) -> BTreeSet<ObjectRef> {
    let files = world.disk.dump().into_iter().filter(|(key, _)| key[0] == b'i');
    let layout = |value: Vec<u8>| crate::records::decode::<crate::records::Inode>(&value).unwrap().layout;
    files.flat_map(|(_, value)| layout(value)).flat_map(|layout| layout.objects().to_vec()).collect()
}

/// Creates a file on the drained device, and two other devices.
fn one_file() -> World {
    let mut world = World::empty();
    world.add_device(0);
    world.mds.device_answered(&world.mds.device_address(GONE).unwrap(), GIB, 0).unwrap();
    world.mds.device_prepared(&world.mds.device_address(GONE).unwrap()).unwrap();
    world.put(ALICE, "/f", 9);
    for i in 1..3 {
        let id = world.add_device(i);
        world.mds.device_answered(&world.mds.device_address(id).unwrap(), GIB, 0).unwrap();
        world.mds.device_prepared(&world.mds.device_address(id).unwrap()).unwrap();
    }
    drain(&mut world);
    world
}

#[test]
fn drain_empties_device_and_counts() {
    let mut world = World::with_devices(3);
    files(&mut world);
    let on_it = live(&world).iter().filter(|object| object.device == GONE).count() as u64;
    assert!(on_it > 1);
    let state = drain(&mut world);
    assert_eq!((state.state, state.drain.map(|drain| drain.rate)), (DeviceState::Draining, Some(RATE)));
    let first = pass(&mut world, &mut BTreeSet::new()).unwrap();
    assert_eq!(first, DrainPass { removing: on_it, ..DrainPass::default() });
    assert_eq!(drain_status(&mut world).done_ms, None, "its objects are there still");
    world.reap_all();
    assert_eq!(pass(&mut world, &mut BTreeSet::new()).unwrap(), DrainPass::default());
    let drain = drain_status(&mut world);
    assert_eq!((drain.moved_objects, drain.left_objects, drain.done_ms), (on_it, 0, Some(world.now)));
    assert!(live(&world).iter().all(|object| object.device != GONE));
    assert!(world.mds.draining().unwrap().is_empty());
    // The shape is unchanged, and the reason describes the new device.
    let Response::Placement { layout, placed } = world.ask(BOB, Request::Placement { path: path("/large") })
    else {
        panic!("a placement")
    };
    assert_eq!(layout.unwrap().width(), placed.unwrap().chosen.len());
    let back = device(&mut world, Request::DeviceSetState { id: GONE, state: DeviceState::Active });
    assert_eq!((back.state, back.drain), (DeviceState::Active, None));
}

#[test]
fn drain_waits_for_creates() {
    let mut world = World::with_devices(1);
    let file = world.create(ALICE, "/slow", None);
    for i in 1..3 {
        let id = world.add_device(i);
        world.mds.device_answered(&world.mds.device_address(id).unwrap(), GIB, 0).unwrap();
        world.mds.device_prepared(&world.mds.device_address(id).unwrap()).unwrap();
    }
    drain(&mut world);
    assert_eq!(pass(&mut world, &mut BTreeSet::new()).unwrap().objects, 1);
    assert_eq!(drain_status(&mut world).done_ms, None);
    world.commit(ALICE, file.intent, 3 << 20).unwrap();
    pass(&mut world, &mut BTreeSet::new()).unwrap();
    world.reap_all();
    pass(&mut world, &mut BTreeSet::new()).unwrap();
    assert!(drain_status(&mut world).done_ms.is_some());
}

#[test]
fn writers_are_fenced_before_copy() {
    let mut world = one_file();
    let order = go(begin(&mut world, "/f"));
    assert!(order.filled);
    assert!(!world.mds.is_fenced(&order).unwrap(), "the writer of the put could still write");
    assert_eq!(
        begin(&mut world, "/f"),
        MoveStart::InUse,
        "nor is it begun again before the device was informed"
    );
    answer(&world, GONE).unwrap();
    assert!(world.mds.is_fenced(&order).unwrap());
    // A command of an expired credential may still run.
    later(&mut world);
    let order = go(begin(&mut world, "/f"));
    assert!(!world.mds.is_fenced(&order).unwrap());
}

pub(super) fn node_of(world: &mut World, at: &str) -> Node {
    world.stat(ALICE, at).unwrap().node()
}

#[test]
fn writer_ends_move() {
    let mut world = one_file();
    let order = go(begin(&mut world, "/f"));
    answer(&world, GONE).unwrap();
    let opened = world.open(ALICE, open("/f", Access::Update));
    assert_eq!(opened.grants[0].object, order.from);
    assert!(!world.mds.finish_move(&order, 9, world.now).unwrap());
    assert!(world.reap_all().contains(&order.to), "what was copied is removed");
    assert!(live(&world).contains(&order.from));
    // Reading does not end a move.
    let order = go(begin(&mut world, "/f"));
    answer(&world, GONE).unwrap();
    world.open(BOB, open("/f", Access::Read));
    assert!(world.mds.finish_move(&order, 9, world.now).unwrap());
}

#[test]
fn open_file_gets_new_location_at_renewal() {
    let mut world = one_file();
    later(&mut world);
    let opened = world.open(BOB, open("/f", Access::Read));
    let order = go(begin(&mut world, "/f"));
    answer(&world, GONE).unwrap();
    assert!(world.mds.finish_move(&order, 9, world.now).unwrap());
    let handle = OpenHandle::File { node: opened.stat.node(), access: Access::Read };
    match world.ask(BOB, Request::RenewGrants { handle, method: Method::AllData }) {
        Response::Grants { layout, generation, grants } => {
            assert_eq!((layout.number(), grants[0].object), (opened.layout.unwrap().number(), order.to));
            assert_eq!((layout.objects()[0], generation), (order.to, opened.stat.generation));
        }
        other => panic!("{other:?}"),
    }
    assert!(world.reap_all().contains(&order.from), "what was revoked since is not read from the old object");
}

#[test]
fn capability_file_blocks_move() {
    let delegate = |write: bool, until_ms: u64| Request::Delegate {
        path: path("/f"),
        read: !write,
        write,
        start: 0,
        end: None,
        until_ms,
        method: Method::AllData,
    };
    let mut world = one_file();
    // No capability file is issued when the drain has lasted longer than this.
    world.mds.config.delegated_lifetime_ms = u64::MAX;
    for write in [true, false] {
        later(&mut world);
        let until_ms = world.now + 60_000;
        assert!(matches!(world.ask(ALICE, delegate(write, until_ms)), Response::Delegated { .. }));
        assert_eq!(begin(&mut world, "/f"), MoveStart::InUse);
        // Other credentials of its session do not count.
        world.now = until_ms + 1;
        world.open(ALICE, open("/f", Access::Read));
        let order = go(begin(&mut world, "/f"));
        answer(&world, GONE).unwrap();
        // A capability file issued during the copy ends the move, also by another server.
        let until_ms = world.now + 60_000;
        assert!(matches!(world.ask(ALICE, delegate(write, until_ms)), Response::Delegated { .. }));
        assert!(!world.mds.finish_move(&order, 9, world.now).unwrap());
    }
}

#[test]
fn file_open_for_writing_is_not_moved() {
    let mut world = one_file();
    let (node, client_id) = (node_of(&mut world, "/f"), ClientId { number: 7 });
    let open =
        |access| Request::OpenNode { node, access, method: Method::AllData, client_id, reclaim: false };
    assert!(matches!(world.ask(ALICE, open(Access::Read)), Response::NodeOpened { .. }));
    answer(&world, GONE).unwrap();
    go(begin(&mut world, "/f"));
    answer(&world, GONE).unwrap();
    assert!(matches!(world.ask(ALICE, open(Access::Update)), Response::NodeOpened { .. }));
    assert_eq!(begin(&mut world, "/f"), MoveStart::InUse);
    assert!(matches!(world.ask(ALICE, Request::CloseNode { node, client_id }), Response::Kept { .. }));
    go(begin(&mut world, "/f"));
    // As long as a client may create its objects.
    let mut world = one_file();
    let node = node_of(&mut world, "/f");
    let cut = NodeChange { size: Some(0), ..NodeChange::default() };
    world.ask(ALICE, Request::SetNode { node, change: cut, client_id: None, through: false });
    world.mds.change_device(GONE, Some(DeviceState::Active)).unwrap();
    for other in [2, 3] {
        world.mds.change_device(DeviceId(other), Some(DeviceState::Draining)).unwrap();
    }
    let ask = Request::Allocate { node, size_hint: Some(9), method: Method::AllData, client_id };
    let Response::NodeOpened { node: opened } = world.ask(ALICE, ask) else { panic!("objects") };
    assert!(!opened.made && opened.layout.unwrap().objects()[0].device == GONE);
    for other in [2, 3] {
        world.mds.change_device(DeviceId(other), Some(DeviceState::Active)).unwrap();
    }
    assert_eq!(begin(&mut world, "/f"), MoveStart::InUse);
    later(&mut world);
    assert!(!go(begin(&mut world, "/f")).filled, "it may have been given up before a byte was there");
}

#[test]
fn old_object_stays_while_writer_could_create_it() {
    let mut world = World::with_devices(3);
    let file = world.create(ALICE, "/f", None);
    world.commit(ALICE, file.intent, 9).unwrap();
    later(&mut world);
    let (node, client_id) = (node_of(&mut world, "/f"), ClientId { number: 7 });
    let (access, method) = (Access::Update, Method::AllData);
    world.ask(ALICE, Request::OpenNode { node, access, method, client_id, reclaim: false });
    // The open file is forgotten, but its credentials are still valid.
    world.ask(ALICE, Request::CloseNode { node, client_id });
    let filled = file.layout.objects()[0].device;
    let begun = |world: &World| world.mds.begin_move(node.inode, filled, world.now).unwrap();
    assert_eq!(begun(&world), MoveStart::InUse);
    later(&mut world);
    assert!(go(begun(&world)).filled);
}

#[test]
fn old_object_stays_fenced_while_creatable() {
    let mut world = World::with_devices(3);
    let file = world.create(ALICE, "/f", None);
    world.commit(ALICE, file.intent, 9).unwrap();
    later(&mut world);
    let (node, client_id) = (node_of(&mut world, "/f"), ClientId { number: 7 });
    let (access, method) = (Access::Update, Method::AllData);
    world.ask(ALICE, Request::OpenNode { node, access, method, client_id, reclaim: false });
    let generation =
        crate::namespace::node(&*world.mds.store.snapshot().unwrap(), node.inode).unwrap().generation;
    let written = Request::Written {
        node,
        size_at_least: 9,
        mtime_ns: None,
        generation,
        made: true,
        fit: false,
        client_id,
    };
    assert!(matches!(world.ask(ALICE, written), Response::Stat { .. }));
    // The open file is forgotten. Its credentials can create missing objects at the old place.
    world.ask(ALICE, Request::CloseNode { node, client_id });
    let old = file.layout.objects()[0];
    let order = go(world.mds.begin_move(node.inode, old.device, world.now).unwrap());
    assert!(order.stays);
    answer(&world, old.device).unwrap();
    assert!(world.mds.finish_move(&order, 9, world.now).unwrap());
    assert!(
        !world.reap_all().contains(&old),
        "it would be made again, and take his bytes with it when it goes"
    );
    later(&mut world);
    assert!(world.reap_all().contains(&old));
}

#[test]
fn fence_creates_missing_object() {
    for soon in [true, false] {
        let mut world = World::with_devices(3);
        let file = world.create(ALICE, "/f", None);
        world.commit(ALICE, file.intent, 9).unwrap();
        let empty = file.layout.objects()[1];
        let inode = world.stat(ALICE, "/f").unwrap().inode;
        if !soon {
            later(&mut world);
        }
        world.mds.begin_move(inode, empty.device, world.now).unwrap();
        let items = world.mds.next_retags(empty.device, 9).unwrap();
        assert_eq!(items.iter().map(|item| (item.object, item.creates)).collect::<Vec<_>>(), [(empty, true)]);
    }
}

#[test]
fn late_copy_of_abandoned_move_is_removed() {
    let mut world = one_file();
    let order = go(begin(&mut world, "/f"));
    answer(&world, GONE).unwrap();
    assert_eq!(world.mds.abandon_moves(world.now).unwrap(), 1);
    world.reap_all();
    world.now += 120_000;
    assert!(world.reap_all().contains(&order.to), "once more when its credential has expired");
    // The slow copy finishes only now.
    assert!(!world.mds.finish_move(&order, 9, world.now).unwrap());
    assert!(world.reap_all().contains(&order.to));
    world.mds.abandon_move(&order, world.now + 1).unwrap();
    world.now += 1;
    assert!(world.reap_all().contains(&order.to));
    assert!(live(&world).contains(&order.from));
}

#[test]
fn truncated_or_revoked_file_is_not_moved() {
    let changes: [fn(&mut World); 2] = [
        |world| {
            let cut = NodeChange { size: Some(4), ..NodeChange::default() };
            let node = node_of(world, "/f");
            assert!(matches!(
                world.ask(ALICE, Request::SetNode { node, change: cut, client_id: None, through: false }),
                Response::Stat { .. }
            ));
        },
        |world| {
            let what = RevocationTarget::Object(path("/f"));
            assert!(matches!(world.ask(ALICE, Request::Revoke { what }), Response::Revocation { .. }));
        },
    ];
    for change in changes {
        let mut world = one_file();
        let order = go(begin(&mut world, "/f"));
        answer(&world, GONE).unwrap();
        change(&mut world);
        assert!(!world.mds.finish_move(&order, 9, world.now).unwrap());
        assert!(live(&world).contains(&order.from));
        assert!(world.reap_all().contains(&order.to));
    }
}

#[test]
fn replaced_or_removed_file_stays_removed() {
    let changes: [fn(&mut World); 2] = [
        |world| drop(world.put(ALICE, "/f", 20)),
        |world| drop(world.ask(ALICE, Request::Remove { path: path("/f"), recursive: false })),
    ];
    for change in changes {
        let mut world = one_file();
        let order = go(begin(&mut world, "/f"));
        answer(&world, GONE).unwrap();
        change(&mut world);
        assert!(!world.mds.finish_move(&order, 9, world.now).unwrap());
        later(&mut world);
        let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
        assert!(removed.contains(&order.to) && removed.contains(&order.from));
        assert!(live(&world).is_disjoint(&removed));
    }
}

#[test]
fn drain_without_target_reports_problem() {
    let mut world = World::with_devices(1);
    world.put(ALICE, "/f", 9);
    drain(&mut world);
    let inode = world.stat(ALICE, "/f").unwrap().inode;
    let error = world.mds.begin_move(inode, GONE, world.now).unwrap_err();
    assert_eq!(error.failure().code, ErrorCode::NoSpace);
}

#[test]
fn drain_needs_administrator_or_operator() {
    let mut world = World::with_devices(2);
    assert_eq!(world.refused(ALICE, Request::DeviceDrain { id: GONE, rate: 0 }), ErrorCode::Denied);
    let slow = Request::DeviceDrain { id: GONE, rate: RATE - 1 };
    assert_eq!(world.refused(ADMIN, slow), ErrorCode::Limit);
    let unknown = Request::DeviceDrain { id: DeviceId(9), rate: 0 };
    assert_eq!(world.refused(ADMIN, unknown), ErrorCode::NotFound);
    let joining = world.add_device(5);
    assert_eq!(world.refused(ADMIN, Request::DeviceDrain { id: joining, rate: 0 }), ErrorCode::Invalid);
}

#[test]
fn crash_during_move_loses_no_object() {
    let mut completed = 0;
    for crash_at in 0..60 {
        let mut world = World::with_devices(3);
        files(&mut world);
        world.create(ALICE, "/begun", Some(5 << 20));
        let before = live(&world);
        drain(&mut world);
        let mut given: BTreeSet<ObjectRef> = before.clone();
        world.disk.fail_after(Some(crash_at));
        let ended = pass(&mut world, &mut given);
        completed += u32::from(ended.is_ok());
        world.restart();
        // Each file has as many objects as before, and the device is empty at the end.
        assert_eq!(live(&world).len(), before.len(), "crash at {crash_at}");
        // Pending tags are confirmed first.
        answer(&world, GONE).unwrap();
        pass(&mut world, &mut given).unwrap();
        assert!(live(&world).iter().all(|object| object.device != GONE), "crash at {crash_at}");
        later(&mut world);
        let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
        let live = live(&world);
        assert!(removed.is_disjoint(&live), "crash at {crash_at}: an object of a file was removed");
        let all: BTreeSet<ObjectRef> = removed.union(&live).copied().collect();
        assert!(all.is_superset(&given), "crash at {crash_at}: an object is on no list");
    }
    assert!(completed > 0, "the last crash point lies behind the pass");
    assert!(matches!(World::with_devices(2).ask(ALICE, create("/x", None)), Response::Created { .. }));
}
