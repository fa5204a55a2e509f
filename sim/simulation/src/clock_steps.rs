//! A day of a device whose wall clock is repeatedly set wrong and corrected, with restarts and an
//! attacker.
//!
//! Does: the clock of a machine (`sealstone-sntp`), the nonce memory and its history
//! (`sealstone-seal`) combined as in a device, a client with a correct clock, an attacker who
//! replays all recorded commands.
//! Does not: networks, disks, keys; `ClockWorld` does.
//! Contract of the oracle: no command runs twice. A command runs once the wall clock has been
//! correct for a minute, unless its time was used already. Nothing that expired by a trusted time
//! becomes valid again.
//! Truth: docs/adr/0057-clock-steps.md.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealstone_crypto::ParkingLot;
use sealstone_seal::Nonce;
use sealstone_seal::freshness::{
    CredentialId, LEASE_AHEAD_MS, NonceHistory, NonceLimits, NonceMemory, OLD_MS, clock_after_restart,
};
use sealstone_sntp::{BEHIND_OK_MS, ClockReading, ClockTrust, LONG_CONFIRM_MS, MachineClock, MachineState};

use crate::clock::START_MS;
use crate::random::RandomSource;

/// Length of a simulated day in milliseconds: six hours are enough for every kind of step.
const DAY_MS: u64 = 6 * 3_600_000;
/// How long a clock may stand still before it is set back, in milliseconds; as in
/// `sealstone-osd-device`.
const STAND_MAX_MS: u64 = 10_000;
/// Time step, in milliseconds: the interval of a device's upkeep.
const TURN_MS: u64 = 500;
/// How long a clock must be correct before commands run, in milliseconds.
const RIGHT_MS: u64 = 60_000;
/// Interval of storing the machine clock's state, in milliseconds.
const SAVE_MS: u64 = 60_000;
/// Commands that the attacker replays at each step.
const REPLAYS: usize = 8;
/// The only credential, which the replayed commands use too.
const CLIENT: CredentialId = CredentialId::of_hash(7);

/// Results of a day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepDay {
    /// Commands that ran.
    pub ran: u64,
    /// Commands refused while the wall clock was wrong, or correct for less than a minute.
    pub refused: u64,
    /// Commands refused because an earlier epoch had used their time.
    pub spent: u64,
    /// Times that the device's clock was set back.
    pub set_back: u64,
    /// Refused replays.
    pub replays: u64,
    /// Violations of the clock rules.
    pub violations: Vec<String>,
}

struct StepWorld {
    chance: Arc<RandomSource>,
    true_ms: u64,
    wall_off_ms: i64,
    right_since_ms: u64,
    /// Last restart. Afterwards a device waits until its clock is near its lease, and confirms
    /// steps again.
    restarted_ms: u64,
    booted_ms: u64,
    boot: u8,
    machine: MachineClock,
    kept: MachineState,
    kept_at_ms: u64,
    memory: NonceMemory<ParkingLot>,
    history: NonceHistory,
    latest_ms: u64,
    start_lease_ms: u64,
    recorded: Vec<Nonce>,
    seen: BTreeSet<[u8; 12]>,
    /// Latest time of a trusted clock: what expired by it stays invalid.
    held_ms: u64,
    day: StepDay,
}

/// Simulates the day of a seed.
#[must_use]
pub fn step_day(seed: u64) -> StepDay {
    let chance = RandomSource::new(seed, "clock steps");
    let reading = ClockReading { wall_ms: START_MS, boot_ms: 1_000 };
    let machine = MachineClock::start(reading, [0; 16], None);
    let kept = machine.state(1_000);
    let history = NonceHistory::default();
    let memory = memory(&chance, &history);
    let mut world = StepWorld {
        chance,
        true_ms: START_MS,
        wall_off_ms: 0,
        right_since_ms: START_MS,
        restarted_ms: 0,
        booted_ms: START_MS - 1_000,
        boot: 0,
        machine,
        kept,
        kept_at_ms: START_MS,
        memory,
        history,
        latest_ms: 0,
        start_lease_ms: 0,
        recorded: Vec::new(),
        seen: BTreeSet::new(),
        held_ms: 0,
        day: StepDay::default(),
    };
    let mut event_ms = START_MS + world.chance.range(1_000..=600_000);
    while world.true_ms < START_MS + DAY_MS {
        world.true_ms += TURN_MS;
        if world.true_ms >= event_ms {
            event_ms = world.true_ms + world.chance.logarithmic(500..=1_800_000);
            world.event();
        }
        world.turn();
    }
    world.day
}

fn memory(chance: &RandomSource, history: &NonceHistory) -> NonceMemory<ParkingLot> {
    let mut seed = [0; 16];
    chance.fill(&mut seed);
    let limits = NonceLimits { slots_per_second: 1 << 10, shards: 1, ..NonceLimits::default() };
    let memory = NonceMemory::new(limits, &seed, history.lease_ms());
    memory.refuse_spent(history.spent());
    memory
}

impl StepWorld {
    fn reading(&self) -> ClockReading {
        let wall_ms = self.true_ms.saturating_add_signed(self.wall_off_ms);
        ClockReading { wall_ms, boot_ms: self.true_ms - self.booted_ms }
    }

    /// Sets the wall clock, or restarts the process or the machine.
    fn event(&mut self) {
        match self.chance.range(0..=9) {
            0..=3 => {
                let days = 86_400_000;
                self.wall_off_ms =
                    *self.chance.pick(&[3 * days, -3 * days, 600_000, -600_000, 1_500, -1_500, 30_000, days]);
            }
            4..=6 => {
                if self.wall_off_ms != 0 {
                    self.right_since_ms = self.true_ms;
                }
                self.wall_off_ms = 0;
            }
            7 | 8 => self.restart(false),
            _ => self.restart(true),
        }
    }

    fn restart(&mut self, machine: bool) {
        if machine {
            // The hardware clock is correct, or has the time to which it was last set.
            self.boot += 1;
            self.booted_ms = self.true_ms;
        } else {
            // A clean end, or a crash that loses unsaved state.
            if self.chance.percent(50) {
                self.kept = self.machine.state(self.reading().boot_ms);
            }
        }
        self.machine = MachineClock::start(self.reading(), [self.boot; 16], Some(self.kept));
        self.history =
            NonceHistory::new(self.history.lease_ms(), self.history.era_ms(), self.history.spent());
        self.memory = memory(&self.chance, &self.history);
        self.latest_ms = 0;
        self.start_lease_ms = self.history.lease_ms();
        self.restarted_ms = self.true_ms;
        // A pending step is confirmed again.
        self.right_since_ms =
            self.right_since_ms.max(if machine { self.true_ms } else { self.right_since_ms });
    }

    fn turn(&mut self) {
        let reading = self.reading();
        let (time_ms, _) = self.machine.read(reading);
        if self.true_ms >= self.kept_at_ms + SAVE_MS {
            self.kept = self.machine.state(reading.boot_ms);
            self.kept_at_ms = self.true_ms;
        }
        let sound = self.machine.behind_ms(reading.boot_ms) <= BEHIND_OK_MS;
        if self.machine.trust() == ClockTrust::Held {
            self.held_ms = self.held_ms.max(time_ms);
        }
        let Some(now_ms) = self.device_time(time_ms, sound) else {
            return self.judge(Err("not ready"), sound);
        };
        if let Some(due) = self.memory.lease_due(now_ms) {
            self.history = self.history.extended(due, OLD_MS);
            self.memory.refuse_spent(self.history.spent());
            self.memory.extend_lease(due);
        }
        if now_ms.saturating_add(BEHIND_OK_MS + 2 * LEASE_AHEAD_MS) < self.held_since_boot() {
            self.day.violations.push(format!("{}: {now_ms} is before a time that held", self.true_ms));
        }
        for _ in 0..REPLAYS.min(self.recorded.len()) {
            let old = *self.chance.pick(&self.recorded);
            match self.memory.admit(CLIENT, &old, now_ms) {
                Ok(()) => self.day.violations.push(format!("{}: {old:?} runs again", self.true_ms)),
                Err(_) => self.day.replays += 1,
            }
        }
        // The client learned the device's clock from a refusal, and signs for it.
        let mut random = [0; 6];
        self.chance.fill(&mut random);
        let nonce = Nonce::new(now_ms, random);
        let outcome = match self.memory.admit(CLIENT, &nonce, now_ms) {
            Ok(()) => {
                if !self.seen.insert(nonce.0) {
                    self.day.violations.push(format!("{}: twice", self.true_ms));
                }
                self.recorded.push(nonce);
                Ok(now_ms)
            }
            Err(_) if self.memory.spent_for_ms(now_ms) > 0 => {
                self.day.spent += 1;
                return;
            }
            Err(_) => Err("refused"),
        };
        self.judge(outcome, sound);
    }

    fn held_since_boot(&self) -> u64 {
        self.machine.least_ms(self.true_ms - self.booted_ms)
    }

    /// Returns the device's clock, as in `sealstone-osd-device`.
    fn device_time(&mut self, time_ms: u64, sound: bool) -> Option<u64> {
        if !sound {
            return None;
        }
        let reached_ms = self.latest_ms.max(self.start_lease_ms);
        if reached_ms.saturating_sub(time_ms) > STAND_MAX_MS {
            self.history = self.history.set_back(time_ms);
            self.memory.begin_era(&self.history);
            (self.latest_ms, self.start_lease_ms) = (time_ms, time_ms);
            self.day.set_back += 1;
        }
        let now_ms = clock_after_restart(time_ms, self.start_lease_ms).ok()?;
        self.latest_ms = self.latest_ms.max(now_ms);
        Some(self.latest_ms)
    }

    fn judge(&mut self, outcome: Result<u64, &'static str>, sound: bool) {
        let is_settled = self.true_ms >= self.restarted_ms + STAND_MAX_MS;
        let right = is_settled && self.wall_off_ms == 0 && self.true_ms >= self.right_since_ms + RIGHT_MS;
        match outcome {
            Ok(now_ms) => {
                self.day.ran += 1;
                // A wrong time that was trusted for an hour is left only by a reset.
                let off_ms = now_ms.abs_diff(self.true_ms);
                let stuck = self.machine.least_ms(self.true_ms - self.booted_ms) > self.true_ms + 3_000;
                let since_ms = self.right_since_ms.max(self.restarted_ms);
                let long_right = right && self.true_ms >= since_ms + LONG_CONFIRM_MS + RIGHT_MS;
                if long_right && off_ms > 10_000 && !stuck {
                    self.day.violations.push(format!("{}: still {off_ms} ms off", self.true_ms));
                }
            }
            Err(_) if !right || !sound => self.day.refused += 1,
            Err(why) => {
                self.day.violations.push(format!("{}: {why} though the clock is right", self.true_ms))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Default number of days; `SEALSTONE_SEEDS` overrides it.
    const DAYS: u64 = 24;

    #[test]
    fn clock_steps_stop_no_device_or_revive_commands() {
        let days = std::env::var("SEALSTONE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(DAYS);
        let mut all = StepDay::default();
        for seed in 0..days {
            let day = step_day(seed);
            let first: Vec<_> = day.violations.iter().take(3).collect();
            assert!(first.is_empty(), "seed {seed}: {first:#?}");
            all.ran += day.ran;
            all.set_back += day.set_back;
            all.replays += day.replays;
            all.spent += day.spent;
        }
        // The relevant cases occurred.
        assert!(all.ran > days * 20_000 && all.set_back > days && all.replays > days * 100_000, "{all:?}");
    }

    #[test]
    fn one_seed_is_one_day_of_steps() {
        assert_eq!(step_day(3), step_day(3));
    }
}
