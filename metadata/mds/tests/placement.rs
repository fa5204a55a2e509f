//! A thousand devices of mixed size, placed by the server's own policy.

#[path = "../examples/placement/simulation.rs"]
#[allow(dead_code)]
mod simulation;

use sealstone_mds_protocol::DeviceId;
use simulation::{Plan, Policy, World};

/// Wide stripes give many objects for few files.
fn thousand() -> Plan {
    Plan {
        devices: 1000,
        sizes: vec![1, 2, 4],
        files: 12_000,
        mix: vec![(20, 4 << 10, 512 << 10), (80, 8 << 20, 16 << 20)],
        width_max: 64,
        fill: 0.6,
        looks: 200,
        seed: 1,
    }
}

fn hundred() -> Plan {
    Plan { devices: 100, files: 4_000, width_max: 16, ..thousand() }
}

#[test]
fn thousand_mixed_devices_balance_within_five_percent() {
    let balance = World::fill(&thousand(), Policy::Corrected).balance();
    assert!(balance.worst < 0.05, "{balance:?}");
}

#[test]
fn correction_is_better_than_hashing_alone() {
    let rms = |policy| World::fill(&hundred(), policy).balance().rms;
    let (corrected, alone, tree) = (rms(Policy::Corrected), rms(Policy::HashAlone), rms(Policy::Tree));
    assert!(corrected < alone && corrected < tree, "{corrected} {alone} {tree}");
}

#[test]
fn removed_device_moves_only_its_objects() {
    let mut world = World::fill(&hundred(), Policy::Corrected);
    let removed = DeviceId(2);
    let least = world.used(removed);
    assert_eq!(world.drain(removed), least);
    assert!(world.balance().worst < 0.1, "{:?}", world.balance());
}

#[test]
fn added_devices_get_only_their_share() {
    let mut world = World::fill(&hundred(), Policy::Corrected);
    let new: Vec<DeviceId> = (0..3).map(|at| world.add(100 + at, world.capacity(DeviceId(2)))).collect();
    let moved = world.rebalance() as f64 / world.part(&new);
    assert!((0.8..1.2).contains(&moved), "{moved}");
    assert!(world.balance().worst < 0.06, "{:?}", world.balance());
}
