//! Parameters of a world, derived from its seed: hosts, workers, users, capacities, kinds of
//! faults.

use std::time::Duration;

use sealstone_client::Tuning;

use crate::metadata::USERS;
use crate::network::NetworkFaults;
use crate::random::RandomSource;

/// Maximum number of workers.
pub const WORKERS_MAX: usize = 4;
/// Bytes of a device that never fills up.
pub const PLENTY: u64 = 256 << 20;

/// Access of others to a worker's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderPrivacy {
    /// All may read.
    Open,
    /// Others cannot enter the folder.
    PrivateFolder,
    /// Others can list the folder, but not read the files.
    PrivateFiles,
}

impl FolderPrivacy {
    /// Returns the mode of the folder and of its files.
    #[must_use]
    pub const fn modes(self) -> (u16, u16) {
        match self {
            Self::Open => (0o755, 0o644),
            Self::PrivateFolder => (0o700, 0o644),
            Self::PrivateFiles => (0o755, 0o600),
        }
    }
}

/// Parameters of one world.
#[derive(Clone, Debug)]
pub struct WorldPlan {
    /// Number of devices.
    pub devices: u8,
    /// Bytes of each device; a small number makes them fill up.
    pub capacity: u64,
    /// Whether disks flip stored bits.
    pub rot: bool,
    /// Number of concurrent clients.
    pub workers: u8,
    /// Number of accounts that they use.
    pub users: u8,
    /// Access of others, for each worker.
    pub privacy: [FolderPrivacy; WORKERS_MAX],
    /// Operations of each worker.
    pub operations: u64,
    /// Whether there are no faults: then no operation may fail.
    pub calm: bool,
    /// Number of faults.
    pub faults: u64,
    /// Quality of the network.
    pub weather: NetworkFaults,
    /// Transfer options of the clients.
    pub tuning: Tuning,
    /// Clients' timeout for a device.
    pub command_timeout: Duration,
    /// Clients' timeout for the metadata server.
    pub answer_timeout: Duration,
    /// Lifetime of credentials, in milliseconds.
    pub grant_ms: u64,
    /// Lifetime of a create, in milliseconds.
    pub intent_ms: u64,
    /// How far the clients' clocks are ahead, in milliseconds.
    pub client_skew_ms: i64,
    /// Longest pause between two operations of a worker, in milliseconds.
    pub pause_ms: u64,
    /// Whether clocks of devices drift and follow the metadata server's.
    pub drift: bool,
}

impl WorldPlan {
    /// Derives the parameters from a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let chance = RandomSource::new(seed, "plan");
        let calm = chance.percent(12);
        let latency = chance.logarithmic(20..=20_000);
        let weather = NetworkFaults {
            latency_us: (latency / 2, latency),
            bytes_per_ms: chance.logarithmic(4 << 10..=512 << 10),
            window: 1 << chance.range(13..=18),
            refused_percent: if calm { 0 } else { *chance.pick(&[0, 0, 3, 15]) },
            breaks_percent: if calm { 0 } else { *chance.pick(&[0, 0, 5, 20]) },
        };
        let tuning = Tuning {
            memory_bytes: *chance.pick(&[1 << 20, 4 << 20, 16 << 20]),
            command_bytes: 1 << chance.range(14..=20),
            depth: chance.range(1..=6) as usize,
        };
        let skewed = chance.percent(20);
        let skew = chance.range(0..=600_000) as i64 - 300_000;
        let privacy = [FolderPrivacy::Open, FolderPrivacy::PrivateFolder, FolderPrivacy::PrivateFiles];
        // Full disks and corruption fail operations, so calm worlds have neither.
        let tight = !calm && chance.percent(20);
        Self {
            devices: chance.range(1..=4) as u8,
            capacity: if tight { chance.range(6 << 20..=20 << 20) } else { PLENTY },
            rot: !calm && chance.percent(25),
            workers: chance.range(1..=WORKERS_MAX as u64) as u8,
            users: chance.range(1..=USERS.len() as u64) as u8,
            privacy: core::array::from_fn(|_| *chance.pick(&privacy)),
            operations: chance.range(8..=24),
            calm,
            faults: if calm { 0 } else { chance.range(2..=12) },
            weather,
            tuning,
            command_timeout: Duration::from_millis(chance.logarithmic(2_000..=60_000)),
            answer_timeout: Duration::from_millis(chance.logarithmic(2_000..=30_000)),
            grant_ms: chance.logarithmic(10_000..=120_000),
            intent_ms: chance.logarithmic(20_000..=120_000),
            client_skew_ms: if skewed { skew } else { 0 },
            pause_ms: chance.logarithmic(1..=2_000),
            drift: chance.percent(40),
        }
    }

    /// Returns the account of a worker.
    #[must_use]
    pub const fn user_of(&self, worker: u8) -> usize {
        (worker % self.users) as usize
    }

    /// Whether one worker may read what another one stored.
    #[must_use]
    pub fn may_read(&self, reader: u8, owner: u8) -> bool {
        self.user_of(reader) == self.user_of(owner) || self.privacy[usize::from(owner)] == FolderPrivacy::Open
    }

    /// Whether devices fill up.
    #[must_use]
    pub const fn is_tight(&self) -> bool {
        self.capacity < PLENTY
    }

    /// Returns a file size: around the limits of layouts and commands, or any.
    #[must_use]
    pub fn size(chance: &RandomSource) -> usize {
        const KIB: u64 = 1 << 10;
        let edges = [4 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, 768 * KIB, 1024 * KIB, 2048 * KIB];
        let size = match chance.range(0..=9) {
            0 => chance.range(0..=2),
            1..=4 => chance.logarithmic(1..=64 * KIB),
            5..=7 => {
                // Large sizes are rarer, because they are slow.
                let edge = edges[chance.range(0..=chance.range(0..=edges.len() as u64 - 1)) as usize];
                edge + chance.range(0..=2) - 1
            }
            8 => chance.logarithmic(64 * KIB..=1024 * KIB),
            _ => chance.logarithmic(512 * KIB..=3 * 1024 * KIB),
        };
        size as usize
    }
}
