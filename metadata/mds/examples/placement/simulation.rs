//! Places many files on many devices by three policies: how even the result is, and what moves when
//! devices are added or removed.
//!
//! Does: run the server's own policy, the same hashing without its correction, and a tree of racks,
//! hosts and devices with straw2's draw, as CRUSH does.
//! Does not: model time; device figures are updated only at each look.
//! Contract: equal plans give equal results on the same machine. Sizes are bytes.

use std::collections::BTreeMap;

use sealstone_mds::placement::{Candidate, DevicePool, SINGLE_MAX, UNIT_LARGE, UNIT_MEDIUM};
use sealstone_mds_protocol::DeviceId;

/// Hosts of a rack, and devices of a host.
const HOSTS: u32 = 8;
const DEVICES: u32 = 5;
/// Maximum number of passes over all objects until balancing has to end.
const PASSES_MAX: usize = 20;

/// Parameters of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) devices: u32,
    /// Relative sizes of devices, used in turn.
    pub(crate) sizes: Vec<u64>,
    pub(crate) files: u64,
    /// Sizes of files, bytes: each entry is a percentage and a range, evenly distributed by
    /// logarithm.
    pub(crate) mix: Vec<(u64, u64, u64)>,
    /// Maximum number of devices of one file.
    pub(crate) width_max: usize,
    /// Mean fill level at the end.
    pub(crate) fill: f64,
    /// Number of updates of the device figures.
    pub(crate) looks: u64,
    pub(crate) seed: u64,
}

/// How devices are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// As the server does: hashing, corrected by fill levels; layouts are stored.
    Corrected,
    /// The same hashing by capacity alone, computed again when devices change.
    HashAlone,
    /// A tree of racks, hosts and devices with straw2 at each level, computed again when devices
    /// change.
    Tree,
}

/// Deviation of the fullest and emptiest devices from the mean fill level, as fractions of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    pub(crate) worst: f64,
    /// Deviation of 99 % of the devices.
    pub(crate) p99: f64,
    pub(crate) rms: f64,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    file: u64,
    bytes: u64,
    device: DeviceId,
}

/// Devices and the objects on them.
#[derive(Clone, Debug)]
pub(crate) struct World {
    policy: Policy,
    width_max: usize,
    devices: BTreeMap<DeviceId, Candidate>,
    /// Objects; those of a file are adjacent.
    objects: Vec<Object>,
}

/// The finaliser of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns a number between 0 and 1.
fn unit(x: u64) -> f64 {
    ((mix(x) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

fn size_of(plan: &Plan, file: u64) -> u64 {
    let mut percent = mix(plan.seed ^ mix(file)) % 100;
    for &(share, least, most) in &plan.mix {
        if percent < share {
            let (least, most) = ((least as f64).ln(), (most as f64).ln());
            return (least + (most - least) * unit(plan.seed ^ file.rotate_left(32))).exp() as u64;
        }
        percent -= share;
    }
    0
}

impl World {
    /// Places all files of a plan.
    pub(crate) fn fill(plan: &Plan, policy: Policy) -> Self {
        let bytes: u64 = (0..plan.files).map(|file| size_of(plan, file)).sum();
        let parts: u64 = (0..plan.devices as usize).map(|at| plan.sizes[at % plan.sizes.len()]).sum();
        let part = (bytes as f64 / plan.fill / parts as f64) as u64;
        let mut world =
            Self { policy, width_max: plan.width_max, devices: BTreeMap::new(), objects: Vec::new() };
        for number in 0..plan.devices {
            // Sizes in turn, so that every host has some of each.
            world.add(number, part * plan.sizes[number as usize % plan.sizes.len()]);
        }
        let every = (plan.files / plan.looks).max(1);
        let mut look = world.look();
        for file in 0..plan.files {
            if file % every == 0 && policy == Policy::Corrected {
                look = world.look();
            }
            for (device, bytes) in look.place(file, size_of(plan, file), plan.width_max) {
                world.objects.push(Object { file, bytes, device });
                world.devices.entry(device).and_modify(|one| one.used += bytes);
            }
        }
        world
    }

    /// Adds an empty device.
    pub(crate) fn add(&mut self, number: u32, total: u64) -> DeviceId {
        let device = DeviceId(number);
        self.devices.insert(device, Candidate { device, total, used: 0, speed: 0, troubled: false });
        device
    }

    pub(crate) fn capacity(&self, device: DeviceId) -> u64 {
        self.devices[&device].total
    }

    pub(crate) fn used(&self, device: DeviceId) -> u64 {
        self.devices[&device].used
    }

    /// Returns these devices' share of all bytes.
    pub(crate) fn part(&self, devices: &[DeviceId]) -> f64 {
        let (used, total) = self
            .devices
            .values()
            .fold((0.0, 0.0), |(used, total), one| (used + one.used as f64, total + one.total as f64));
        devices.iter().map(|id| used / total * self.capacity(*id) as f64).sum()
    }

    pub(crate) fn objects(&self) -> usize {
        self.objects.len()
    }

    fn look(&self) -> Look {
        match self.policy {
            Policy::Corrected => Look::Figures(self.pool()),
            Policy::HashAlone => {
                let empty = |one: &Candidate| Candidate { used: 0, ..*one };
                Look::Figures(DevicePool::new(&self.devices.values().map(empty).collect::<Vec<_>>()))
            }
            Policy::Tree => Look::Tree(Tree::new(self.devices.values())),
        }
    }

    fn pool(&self) -> DevicePool {
        DevicePool::new(&self.devices.values().copied().collect::<Vec<_>>())
    }

    pub(crate) fn balance(&self) -> Balance {
        let (used, total) = self
            .devices
            .values()
            .fold((0.0, 0.0), |(used, total), one| (used + one.used as f64, total + one.total as f64));
        let far = |one: &Candidate| (one.used as f64 / one.total as f64 / (used / total) - 1.0).abs();
        let mut all: Vec<f64> = self.devices.values().map(far).collect();
        all.sort_by(f64::total_cmp);
        let rms = (all.iter().map(|far| far * far).sum::<f64>() / all.len() as f64).sqrt();
        let worst = *all.last().expect("there are devices");
        Balance { worst, p99: all[(all.len() * 99 / 100).min(all.len() - 1)], rms }
    }

    fn shift(&mut self, at: usize, to: DeviceId) -> u64 {
        let Object { bytes, device, .. } = self.objects[at];
        self.objects[at].device = to;
        self.devices.entry(device).and_modify(|one| one.used -= bytes);
        self.devices.entry(to).and_modify(|one| one.used += bytes);
        bytes
    }

    /// Returns the other devices of an object's file.
    fn taken(&self, at: usize) -> Vec<DeviceId> {
        let file = self.objects[at].file;
        let first = self.objects[..at].iter().rposition(|one| one.file != file).map_or(0, |at| at + 1);
        self.objects[first..].iter().take_while(|one| one.file == file).map(|one| one.device).collect()
    }

    /// Removes a device; returns the moved bytes.
    pub(crate) fn drain(&mut self, gone: DeviceId) -> u64 {
        self.devices.remove(&gone).expect("it is there");
        let mut moved = 0;
        match self.policy {
            Policy::Corrected => {
                let on_it: Vec<usize> =
                    (0..self.objects.len()).filter(|at| self.objects[*at].device == gone).collect();
                for at in on_it {
                    let Object { file, bytes, .. } = self.objects[at];
                    let taken = self.taken(at);
                    let seed = mix(file) ^ at as u64;
                    let (to, _) = self.pool().successor(seed, bytes, &taken).expect("there is room");
                    moved += self.shift(at, to);
                }
            }
            Policy::HashAlone | Policy::Tree => moved = self.compute_anew(),
        }
        moved
    }

    /// Rebalances after devices were added; returns the moved bytes.
    pub(crate) fn rebalance(&mut self) -> u64 {
        if self.policy != Policy::Corrected {
            return self.compute_anew();
        }
        let mut moved = 0;
        let count = self.objects.len();
        let mut pool = self.pool();
        for pass in 0..PASSES_MAX {
            let before = moved;
            for step in 0..count {
                // Visits all objects in an order that separates those of a file.
                let at = (step * 7919 + pass) % count;
                let Object { file, bytes, device } = self.objects[at];
                if pool.balancing_target(mix(file) ^ at as u64, bytes, device, &[]).is_none() {
                    continue;
                }
                let taken = self.taken(at);
                if let Some((to, _)) = pool.balancing_target(mix(file) ^ at as u64, bytes, device, &taken) {
                    moved += self.shift(at, to);
                    pool = self.pool();
                }
            }
            if moved == before {
                return moved;
            }
        }
        panic!("balancing does not end");
    }

    /// Computes all placements again; returns the moved bytes.
    fn compute_anew(&mut self) -> u64 {
        let (look, mut moved, mut at) = (self.look(), 0, 0);
        while at < self.objects.len() {
            let file = self.objects[at].file;
            let end = at + self.objects[at..].iter().take_while(|one| one.file == file).count();
            let size = self.objects[at..end].iter().map(|one| one.bytes).sum();
            let new = look.place(file, size, self.width_max);
            let old: Vec<DeviceId> = self.objects[at..end].iter().map(|one| one.device).collect();
            let mut come = new.iter().map(|(id, _)| *id).filter(|id| !old.contains(id));
            for object in at..end {
                let device = self.objects[object].device;
                if !new.iter().any(|(id, _)| *id == device) {
                    let to = come.next().expect("as many come as go");
                    moved += self.shift(object, to);
                }
            }
            at = end;
        }
        moved
    }
}

/// Device figures at one time.
enum Look {
    Figures(DevicePool),
    Tree(Tree),
}

impl Look {
    /// Returns the devices of a file, with the bytes on each.
    fn place(&self, file: u64, size: u64, width_max: usize) -> Vec<(DeviceId, u64)> {
        let devices = match self {
            Self::Figures(pool) => {
                let choice = pool.place(Some(size), mix(file), width_max).expect("there is room");
                choice.shape.devices().to_vec()
            }
            Self::Tree(tree) => tree.descend(file, width(size, width_max)),
        };
        let share = size / devices.len() as u64;
        let rest = size - share * (devices.len() as u64 - 1);
        let bytes = |at: usize| if at == 0 { rest } else { share };
        devices.into_iter().enumerate().map(|(at, device)| (device, bytes(at))).collect()
    }
}

/// A node of the tree: number, weight and children.
struct Tree {
    number: u32,
    weight: u64,
    parts: Vec<Tree>,
}

impl Tree {
    fn new<'a>(devices: impl Iterator<Item = &'a Candidate>) -> Self {
        let leaf = |one: &Candidate| Self { number: one.device.0, weight: one.total, parts: Vec::new() };
        let hosts = Self::group(devices.map(leaf), DEVICES);
        Self { number: 0, weight: 0, parts: Self::group(hosts.into_iter(), HOSTS) }
    }

    fn group(parts: impl Iterator<Item = Self>, each: u32) -> Vec<Self> {
        let mut groups: BTreeMap<u32, Self> = BTreeMap::new();
        for part in parts {
            let number = part.number / each;
            let group = groups.entry(number).or_insert(Self { number, weight: 0, parts: Vec::new() });
            group.weight += part.weight;
            group.parts.push(part);
        }
        groups.into_values().collect()
    }

    /// Chooses distinct devices by descending from the root, again for each device and after each
    /// collision.
    fn descend(&self, file: u64, width: usize) -> Vec<DeviceId> {
        let mut found: Vec<DeviceId> = Vec::with_capacity(width);
        let mut attempt = 0u64;
        while found.len() < width {
            // As in CRUSH for replicas: the attempts for one position do not depend on later
            // positions.
            let seed = mix(file ^ mix((found.len() as u64) << 32 | attempt));
            let device = DeviceId(self.draw(seed, 1).draw(seed, 2).draw(seed, 3).number);
            if found.contains(&device) {
                attempt += 1;
            } else {
                found.push(device);
                attempt = 0;
            }
        }
        found
    }

    /// The draw of straw2: the longest straw wins, with a probability in proportion to its weight.
    fn draw(&self, seed: u64, level: u64) -> &Self {
        let length =
            |one: &Self| unit(seed ^ mix(u64::from(one.number) << 8 | level)).ln() / one.weight as f64;
        let longest = self.parts.iter().max_by(|a, b| length(a).total_cmp(&length(b)));
        longest.expect("a tree with devices")
    }
}

/// Returns the width of a file in the tree: that of the server's policy.
fn width(size: u64, width_max: usize) -> usize {
    if size <= SINGLE_MAX {
        return 1;
    }
    let unit = if size <= 16 << 20 { UNIT_MEDIUM } else { UNIT_LARGE };
    width_max.min(size.div_ceil(u64::from(unit)) as usize)
}
