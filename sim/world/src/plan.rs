//! What a seed decides before anything happens.

use std::time::Duration;

use sealstone_client::Tuning;

use crate::chance::Chance;
use crate::metadata::USERS;
use crate::network::Weather;

/// Workers at most.
pub const WORKERS_MAX: usize = 4;
/// Bytes of a device that never fills up.
pub const PLENTY: u64 = 256 << 20;

/// Whom a worker lets read what is his.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Everybody.
    Open,
    /// Nobody else may enter the folder.
    ShutFolder,
    /// Everybody may list the folder, nobody else may read the files.
    ShutFiles,
}

impl Privacy {
    /// Mode of the folder and of the files in it.
    #[must_use]
    pub const fn modes(self) -> (u16, u16) {
        match self {
            Self::Open => (0o755, 0o644),
            Self::ShutFolder => (0o700, 0o644),
            Self::ShutFiles => (0o755, 0o600),
        }
    }
}

/// One world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Devices.
    pub devices: u8,
    /// Bytes of each device: plenty, or so few that they fill up.
    pub capacity: u64,
    /// Disks rot: bits flip in what devices have stored.
    pub rot: bool,
    /// Clients at work at once.
    pub workers: u8,
    /// Accounts that they work under.
    pub users: u8,
    /// For each worker, whom he lets read.
    pub privacy: [Privacy; WORKERS_MAX],
    /// Operations of each.
    pub operations: u64,
    /// Nothing fails: then no operation may either.
    pub calm: bool,
    /// How many faults strike.
    pub faults: u64,
    /// The network.
    pub weather: Weather,
    /// The clients' transfers.
    pub tuning: Tuning,
    /// How long clients wait for a device.
    pub command_timeout: Duration,
    /// How long clients wait for the metadata server.
    pub answer_timeout: Duration,
    /// Life of grants, milliseconds.
    pub grant_ms: u64,
    /// Life of a create, milliseconds.
    pub intent_ms: u64,
    /// The clients' clocks are ahead by so much, milliseconds.
    pub client_skew_ms: i64,
    /// The longest pause between two operations of a worker, milliseconds.
    pub pause_ms: u64,
    /// Clocks of devices are off at first, drift, and follow the metadata server's.
    pub drift: bool,
}

impl Plan {
    /// The world of this seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let chance = Chance::new(seed, "plan");
        let calm = chance.percent(12);
        let latency = chance.logarithmic(20..=20_000);
        let weather = Weather {
            latency_us: (latency / 2, latency),
            bytes_per_ms: chance.logarithmic(4 << 10..=512 << 10),
            window: 1 << chance.range(13..=18),
            refused_percent: if calm { 0 } else { *chance.pick(&[0, 0, 3, 15]) },
            doomed_percent: if calm { 0 } else { *chance.pick(&[0, 0, 5, 20]) },
        };
        let tuning = Tuning {
            memory_bytes: *chance.pick(&[1 << 20, 4 << 20, 16 << 20]),
            command_bytes: 1 << chance.range(14..=20),
            depth: chance.range(1..=6) as usize,
        };
        let skewed = chance.percent(20);
        let skew = chance.range(0..=600_000) as i64 - 300_000;
        let privacy = [Privacy::Open, Privacy::ShutFolder, Privacy::ShutFiles];
        // Full disks and rot fail operations, so calm worlds have neither.
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

    /// The account of a worker.
    #[must_use]
    pub const fn user_of(&self, worker: u8) -> usize {
        (worker % self.users) as usize
    }

    /// May one worker read what another one stored?
    #[must_use]
    pub fn may_read(&self, reader: u8, owner: u8) -> bool {
        self.user_of(reader) == self.user_of(owner) || self.privacy[usize::from(owner)] == Privacy::Open
    }

    /// Do devices fill up?
    #[must_use]
    pub const fn is_tight(&self) -> bool {
        self.capacity < PLENTY
    }

    /// A size of a file: around the places where layouts and commands change, or any.
    #[must_use]
    pub fn size(chance: &Chance) -> usize {
        const KIB: u64 = 1 << 10;
        let edges = [4 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, 768 * KIB, 1024 * KIB, 2048 * KIB];
        let size = match chance.range(0..=9) {
            0 => chance.range(0..=2),
            1..=4 => chance.logarithmic(1..=64 * KIB),
            5..=7 => {
                // Large edges are rarer: their bytes cost time.
                let edge = edges[chance.range(0..=chance.range(0..=edges.len() as u64 - 1)) as usize];
                edge + chance.range(0..=2) - 1
            }
            8 => chance.logarithmic(64 * KIB..=1024 * KIB),
            _ => chance.logarithmic(512 * KIB..=3 * 1024 * KIB),
        };
        size as usize
    }
}
