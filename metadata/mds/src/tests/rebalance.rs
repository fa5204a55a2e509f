//! Rebalance: it moves little, ends, and runs only when requested.

use std::collections::BTreeMap;

use sealstone_mds_protocol::{
    Access, CheckScope, ClientId, DeviceId, DeviceState, ErrorCode, Method, Rebalance, Request, Response,
};

use super::moves::{answer, live};
use super::world::{ADMIN, ALICE, GIB, World};
use crate::records::{Inode, decode};
use crate::{BalancePass, MoveStart};

const MIB: u64 = 1 << 20;
/// Bytes of each file.
const FILE: u64 = MIB / 2;

fn rebalance_status(world: &mut World, request: Request) -> Option<Rebalance> {
    match world.ask(ADMIN, request) {
        Response::Rebalance { rebalance } => rebalance,
        other => panic!("{other:?}"),
    }
}

fn show(world: &mut World) -> Rebalance {
    rebalance_status(world, Request::RebalanceShow {}).expect("there was one")
}

/// Sets device figures from the bytes of the files on them; each device has 64 MiB.
fn measure(world: &World) -> BTreeMap<DeviceId, u64> {
    let mut used: BTreeMap<DeviceId, u64> = world.mds.devices().iter().map(|(one, _)| (one.id, 0)).collect();
    for (_, value) in world.disk.dump().into_iter().filter(|(key, _)| key[0] == b'i') {
        let file: Inode = decode(&value).unwrap();
        let Some(layout) = &file.layout else { continue };
        for (index, object) in layout.objects().iter().enumerate() {
            *used.get_mut(&object.device).unwrap() += layout.object_length(index, file.size);
        }
    }
    for (id, used) in &used {
        world.mds.device_answered(&world.mds.device_address(*id).unwrap(), 64 * MIB, *used).unwrap();
    }
    used
}

/// Runs a pass of the daemon with devices that copy immediately; returns the moved bytes.
fn pass(world: &mut World) -> crate::Result<u64> {
    world.mds.abandon_moves(world.now)?;
    measure(world);
    let Some(now) = world.mds.rebalancing()? else { return Ok(0) };
    let mut pool = world.mds.pool();
    let mut pass = BalancePass::default();
    let mut moved = 0;
    let page = world.mds.next_balancing_moves(&pool, None)?;
    assert_eq!(page.next, None);
    for item in page.items {
        match world.mds.begin_balancing_move(item.inode, &pool, world.now)? {
            MoveStart::Started(order) => {
                answer(world, order.from.device)?;
                assert!(world.mds.is_fenced(&order)?);
                assert!(world.mds.finish_move(&order, item.bytes, world.now)?);
                pool.moved(order.from.device, order.to.device, item.bytes);
                moved += item.bytes;
            }
            MoveStart::InUse => pass.in_use += 1,
            MoveStart::NothingToMove => {}
        }
    }
    (pass.left_bytes, pass.last) = (pool.surplus(), moved == 0);
    world.mds.rebalance_passed(now.began_ms, &pass, world.now)?;
    Ok(moved)
}

/// Creates three devices with about 20 MiB each, and a fourth empty one.
fn one_came() -> (World, DeviceId) {
    let mut world = World::with_devices(3);
    for at in 0..120 {
        world.put(ALICE, &format!("/f{at}"), FILE);
    }
    let id = world.add_device(3);
    world.mds.device_answered(&world.mds.device_address(id).unwrap(), GIB, 0).unwrap();
    world.mds.device_prepared(&world.mds.device_address(id).unwrap()).unwrap();
    measure(&world);
    (world, id)
}

#[test]
fn new_device_gets_its_share_only() {
    let (mut world, new) = one_came();
    let before = live(&world);
    let begun = rebalance_status(&mut world, Request::Rebalance { rate: 0 }).unwrap();
    assert_eq!((begun.moved_bytes, begun.done_ms), (0, None));
    assert!(begun.left_bytes > 10 * MIB, "{begun:?}");
    let mut passes = 0;
    while show(&mut world).done_ms.is_none() {
        pass(&mut world).unwrap();
        passes += 1;
        assert!(passes < 10, "it does not end");
    }
    let used = measure(&world);
    assert_eq!(used.values().sum::<u64>(), 120 * FILE);
    for (id, bytes) in &used {
        assert!(bytes.abs_diff(15 * MIB) < 2 * FILE, "device {}: {bytes}", id.0);
    }
    let state = show(&mut world);
    assert!(state.left_bytes < 2 * FILE, "{state:?}");
    // The new device's missing share, and the differences of the others.
    let (least, moved) = (begun.left_bytes, state.moved_bytes);
    assert!(moved + state.left_bytes >= least && moved <= least + 3 * MIB, "{state:?}, at least {least}");
    let arrived = live(&world).difference(&before).filter(|object| object.device == new).count() as u64;
    assert!(arrived * FILE * 10 >= state.moved_bytes * 9, "what moves goes to the new one");
    // Quota usage is unchanged.
    assert_eq!(world.run_check(CheckScope::Names, false), []);
    // A second rebalance has nothing to move.
    rebalance_status(&mut world, Request::Rebalance { rate: 0 });
    assert_eq!(pass(&mut world).unwrap(), 0);
    assert_eq!((show(&mut world).moved_objects, show(&mut world).done_ms), (0, Some(world.now)));
}

#[test]
fn rebalance_ends_despite_open_files() {
    let (mut world, _) = one_came();
    let mut nodes = Vec::new();
    for at in 0..120 {
        let node = world.stat(ALICE, &format!("/f{at}")).unwrap().node();
        let (access, client_id) = (Access::Update, ClientId { number: 7 });
        world.ask(
            ALICE,
            Request::OpenNode { node, access, method: Method::AllData, client_id, reclaim: false },
        );
        nodes.push(node);
    }
    rebalance_status(&mut world, Request::Rebalance { rate: 0 });
    assert_eq!(pass(&mut world).unwrap(), 0);
    let state = show(&mut world);
    assert!(state.in_use > 0 && state.left_bytes > 0 && state.done_ms.is_some(), "{state:?}");
}

#[test]
fn rebalance_skips_newly_drained_device() {
    let (mut world, new) = one_came();
    rebalance_status(&mut world, Request::Rebalance { rate: 0 });
    let pool = world.mds.pool();
    let page = world.mds.next_balancing_moves(&pool, None).unwrap();
    assert!(!page.items.is_empty());
    world.ask(ADMIN, Request::DeviceDrain { id: new, rate: 0 });
    for item in page.items {
        assert_eq!(
            world.mds.begin_balancing_move(item.inode, &pool, world.now).unwrap(),
            MoveStart::NothingToMove
        );
    }
}

#[test]
fn rebalance_can_be_stopped_and_rate_changed() {
    let (mut world, _) = one_came();
    assert_eq!(rebalance_status(&mut world, Request::RebalanceShow {}), None);
    assert_eq!(rebalance_status(&mut world, Request::RebalanceStop {}), None);
    let begun = rebalance_status(&mut world, Request::Rebalance { rate: 0 }).unwrap();
    world.now += 5;
    let rate = crate::DRAIN_RATE_MIN;
    let again = rebalance_status(&mut world, Request::Rebalance { rate }).unwrap();
    assert_eq!((again.began_ms, again.rate), (begun.began_ms, rate));
    assert_eq!(world.refused(ADMIN, Request::Rebalance { rate: rate - 1 }), ErrorCode::Limit);
    world.restart();
    assert_eq!(world.mds.rebalancing().unwrap(), Some(again));
    let ended = rebalance_status(&mut world, Request::RebalanceStop {}).unwrap();
    assert_eq!((ended.stopped, ended.done_ms), (true, Some(world.now)));
    assert_eq!(world.mds.rebalancing().unwrap(), None);
    assert_eq!(pass(&mut world).unwrap(), 0);
    // A late pass of the previous rebalance does not affect the next one.
    world.now += 5;
    let next = rebalance_status(&mut world, Request::Rebalance { rate: 0 }).unwrap();
    let late = BalancePass { last: true, ..BalancePass::default() };
    world.mds.rebalance_passed(begun.began_ms, &late, world.now).unwrap();
    assert_eq!(show(&mut world), next);
    for request in [Request::Rebalance { rate: 0 }, Request::RebalanceStop {}, Request::RebalanceShow {}] {
        assert_eq!(world.refused(ALICE, request), ErrorCode::Denied);
    }
}

#[test]
fn rebalance_continues_after_crash() {
    let mut completed = 0;
    for crash_at in (0..140).step_by(7) {
        let (mut world, new) = one_came();
        let before = live(&world).len();
        rebalance_status(&mut world, Request::Rebalance { rate: 0 });
        world.disk.fail_after(Some(crash_at));
        let ended = pass(&mut world);
        completed += u32::from(ended.is_ok());
        world.restart();
        assert_eq!(live(&world).len(), before, "crash at {crash_at}");
        for (device, _) in world.mds.devices() {
            answer(&world, device.id).unwrap();
        }
        for _ in 0..3 {
            pass(&mut world).unwrap();
        }
        assert_eq!(live(&world).len(), before, "crash at {crash_at}");
        assert!(measure(&world)[&new] >= 14 * MIB, "crash at {crash_at}");
        assert!(show(&mut world).done_ms.is_some(), "crash at {crash_at}");
        assert_eq!(world.mds.devices().iter().filter(|(_, state)| *state != DeviceState::Active).count(), 0);
    }
    assert!(completed > 0, "the last crash point lies behind the pass");
}
