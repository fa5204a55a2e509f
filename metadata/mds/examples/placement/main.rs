//! How evenly files are placed on a thousand devices, and what moves when devices are added or
//! removed:
//! `cargo run --example placement [FILES]`.

#![allow(clippy::print_stdout, clippy::expect_used, clippy::indexing_slicing)]

mod simulation;

use std::time::Instant;

use sealstone_mds::placement::{Candidate, DevicePool};
use sealstone_mds_protocol::DeviceId;
use simulation::{Plan, Policy, World};

const FILES: u64 = 400_000;
const PLACEMENTS: u64 = 10_000;

fn main() {
    let files = std::env::args().nth(1).and_then(|files| files.parse().ok()).unwrap_or(FILES);
    let plan = Plan {
        devices: 1000,
        sizes: vec![1, 2, 4, 8],
        files,
        mix: vec![(70, 4 << 10, 512 << 10), (30, 512 << 10, 64 << 20)],
        width_max: 8,
        fill: 0.6,
        looks: 200,
        seed: 1,
    };
    println!(
        "{} devices of sizes {:?}, {} files, {:.0} % full",
        plan.devices,
        plan.sizes,
        plan.files,
        plan.fill * 100.0
    );
    println!(
        "\npolicy      objects  from the mean: worst     99 %     rms   moved / least: one goes  one comes  ten come"
    );
    for policy in [Policy::Corrected, Policy::HashAlone, Policy::Tree] {
        let world = World::fill(&plan, policy);
        let balance = world.balance();
        let goes = {
            let mut world = world.clone();
            let gone = DeviceId(3);
            let least = world.used(gone);
            world.drain(gone) as f64 / least as f64
        };
        println!(
            "{:10} {:>8} {:>21.2} % {:>6.2} % {:>5.2} % {:>23.3} {:>10.3} {:>9.3}",
            format!("{policy:?}"),
            world.objects(),
            balance.worst * 100.0,
            balance.p99 * 100.0,
            balance.rms * 100.0,
            goes,
            come(&world, 1),
            come(&world, 10),
        );
    }
    time();
}

/// Adds devices; returns the moved bytes relative to their share of all bytes.
fn come(world: &World, count: u32) -> f64 {
    let mut world = world.clone();
    let capacity = world.capacity(DeviceId(3));
    let new: Vec<DeviceId> = (0..count).map(|at| world.add(1000 + at, capacity)).collect();
    let moved = world.rebalance();
    let least = world.part(&new);
    moved as f64 / least
}

/// Measures the cost of one placement.
fn time() {
    let device = |number| Candidate {
        device: DeviceId(number),
        total: 1 << 40,
        used: 1 << 39,
        speed: 0,
        troubled: false,
    };
    let devices: Vec<Candidate> = (0..1000).map(device).collect();
    let started = Instant::now();
    for _ in 0..PLACEMENTS / 10 {
        assert!(DevicePool::new(&devices).open() > 0);
    }
    let look_us = started.elapsed().as_secs_f64() * 1e6 / (PLACEMENTS / 10) as f64;
    let pool = DevicePool::new(&devices);
    let mut each_us = [0.0; 2];
    for (us, size) in each_us.iter_mut().zip([1, 1 << 30]) {
        let started = Instant::now();
        for seed in 0..PLACEMENTS {
            assert!(pool.place(Some(size), seed, 8).is_ok());
        }
        *us = started.elapsed().as_secs_f64() * 1e6 / PLACEMENTS as f64;
    }
    let build = if cfg!(debug_assertions) { "without" } else { "with" };
    println!(
        "\none choice among 1000 devices, built {build} optimisation: {:.1} us small, {:.1} us striped; their figures {look_us:.1} us",
        each_us[0], each_us[1]
    );
}
