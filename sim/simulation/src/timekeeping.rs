//! A day of clocks: devices with skewed and drifting clocks follow a metadata server, with an
//! attacker on the network.
//!
//! The real ends of `sealstone-sntp`, a simulated network, machines that lose power. The attacker
//! delays packets, drops, changes, replays and forges them; the metadata server's own clock is
//! wrong for a while; keys change. Properties that are checked:
//!
//! - No clock goes back, and none restarts below its stored time.
//! - No response that the attacker forged, or delayed for more than a second, is accepted.
//! - A server whose clock is an hour off is not followed by a clock that followed it before, and
//!   never backwards.
//! - A clock with recent responses is within half a second of its server plus drift, despite
//!   delays, and within 60 ms   without an attacker.

use sealstone_sntp::{
    ClockSample, ClockState, Datagram, FollowPolicy, Follower, HEADER_LEN, ImplausibleSample, NtpTimestamp,
    RequestSource, Responder, StoredClock, TimeKey, TimeQuery,
};
use std::net::IpAddr;
use std::sync::Arc;

use crate::clock::START_MS;
use crate::random::RandomSource;

/// Length of a day, and start of the time without attacker, in milliseconds.
const DAY_MS: u64 = 24 * 3600 * 1000;
const CALM_MS: u64 = 21 * 3600 * 1000;
/// Drift of clocks, in millionths.
const DRIFT_PPM: i64 = 150;
/// Initial error of clocks, in milliseconds.
const SKEW_MS: u64 = 40_000;
/// Error of the server's clock while it is wrong.
const HOUR_MS: i64 = 3_600_000;
/// Interval of storing the clock's state.
const SAVE_MS: u64 = 10_000;
/// Age of the last response up to which a clock must be near its server.
const HEARD_MS: u64 = 300_000;
/// Maximum distance with and without the attacker.
const NEAR_MS: u64 = 600;
const NEAR_CALM_MS: u64 = 60;
/// Time after it was set in which a clock may stand still.
const SETTLE_MS: u64 = 120_000;

/// A machine's clock.
#[derive(Clone, Copy)]
struct MachineOscillator {
    skew_ms: i64,
    drift_ppm: i64,
}

impl MachineOscillator {
    fn draw(chance: &RandomSource, skew_ms: u64, drift_ppm: i64) -> Self {
        let either = |chance: &RandomSource, most: u64| {
            chance.range(0..=2 * most).cast_signed().saturating_sub(most.cast_signed())
        };
        Self { skew_ms: either(chance, skew_ms), drift_ppm: either(chance, drift_ppm.unsigned_abs()) }
    }

    /// Returns the time by its oscillator.
    const fn passed_ms(&self, true_ms: u64) -> u64 {
        true_ms.saturating_add_signed(true_ms.cast_signed() / 1000 * self.drift_ppm / 1000)
    }

    const fn wall_ms(&self, true_ms: u64) -> u64 {
        (START_MS + self.passed_ms(true_ms)).saturating_add_signed(self.skew_ms)
    }
}

/// The server: its clock, the error of the clock, and its keys.
struct TimeServer {
    machine: MachineOscillator,
    wrong_ms: i64,
    responder: Responder,
    keys: Vec<TimeKey>,
}

impl TimeServer {
    fn now_ms(&self, true_ms: u64) -> u64 {
        self.machine.wall_ms(true_ms).saturating_add_signed(self.wrong_ms)
    }

    fn answer(&mut self, datagram: &[u8], from: RequestSource, true_ms: u64) -> Option<Vec<u8>> {
        let now_ms = self.now_ms(true_ms);
        let state = ClockState::own(now_ms);
        let keys = &self.keys;
        let find = |id| keys.iter().find(|key| key.id() == id).cloned();
        let received =
            Datagram { datagram, source: from, stopwatch_ms: true_ms, received_ms: now_ms, now_ms };
        let answer = self.responder.answer(&received, &state, find);
        answer.reply.map(|reply| reply.bytes().to_vec())
    }
}

struct FollowingDevice {
    place: usize,
    machine: MachineOscillator,
    key: TimeKey,
    booted_ms: u64,
    clock: Follower,
    /// Whether a time was served.
    told: bool,
    last_ms: u64,
    kept: StoredClock,
    saved_ms: u64,
    next_ms: u64,
    set_ms: Option<u64>,
    heard_ms: u64,
    /// Responses that the attacker recorded.
    seen: Vec<Vec<u8>>,
}

impl FollowingDevice {
    fn stopwatch_ms(&self, true_ms: u64) -> u64 {
        self.machine.passed_ms(true_ms) - self.machine.passed_ms(self.booted_ms)
    }

    fn boot(&mut self, true_ms: u64) {
        self.booted_ms = true_ms;
        self.clock = Follower::resume(FollowPolicy::SIGNED, self.machine.wall_ms(true_ms), self.kept);
        self.told = false;
        self.last_ms = self.kept.last_served_ms;
        self.next_ms = true_ms;
        self.set_ms = None;
    }

    fn save(&mut self, true_ms: u64) {
        let stopwatch_ms = self.stopwatch_ms(true_ms);
        if let Some(kept) = self.clock.keep(stopwatch_ms, self.machine.wall_ms(true_ms)) {
            self.kept = kept;
        }
        self.saved_ms = true_ms;
    }
}

/// Results of a day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockDay {
    /// Accepted responses.
    pub believed: u64,
    /// Rejected datagrams, by reason.
    pub refused: std::collections::BTreeMap<&'static str, u64>,
    /// Rejected responses of a server whose clock was wrong.
    pub lies: u64,
    /// Number of starts.
    pub starts: u64,
    /// Violations of the clock rules.
    pub violations: Vec<String>,
}

/// A received datagram, and whether the attacker modified it.
struct DatagramArrival {
    bytes: Vec<u8>,
    at_ms: u64,
    forged: bool,
}

struct ClockWorld {
    chance: Arc<RandomSource>,
    server: TimeServer,
    devices: Vec<FollowingDevice>,
    day: ClockDay,
}

/// Simulates the day of a seed.
#[must_use]
pub fn day(seed: u64) -> ClockDay {
    let chance = RandomSource::new(seed, "timekeeping");
    let devices: Vec<FollowingDevice> = (0..chance.range(1..=4) as usize)
        .map(|place| FollowingDevice {
            place,
            machine: MachineOscillator::draw(&chance, SKEW_MS, DRIFT_PPM),
            key: new_key(&chance),
            booted_ms: 0,
            clock: Follower::new(FollowPolicy::SIGNED, 0, 0, 0, 0),
            told: false,
            last_ms: 0,
            kept: StoredClock::default(),
            saved_ms: 0,
            next_ms: 0,
            set_ms: None,
            heard_ms: 0,
            seen: Vec::new(),
        })
        .collect();
    let server = TimeServer {
        machine: MachineOscillator::draw(&chance, 0, DRIFT_PPM / 2),
        wrong_ms: 0,
        responder: Responder::default(),
        keys: devices.iter().map(|device| device.key.clone()).collect(),
    };
    let mut world = ClockWorld { chance, server, devices, day: ClockDay::default() };
    world.live();
    world.day
}

fn new_key(chance: &RandomSource) -> TimeKey {
    let mut bytes = [0; 32];
    chance.fill(&mut bytes);
    TimeKey::derived(&bytes)
}

impl ClockWorld {
    fn live(&mut self) {
        for at in 0..self.devices.len() {
            self.devices[at].boot(0);
            self.day.starts += 1;
        }
        let mut event_ms = self.chance.range(600_000..=3_600_000);
        // Until when the server's clock is wrong, and when it learns a new key.
        let (mut wrong_until_ms, mut learns_ms) = (0, u64::MAX);
        let mut true_ms = 0;
        while true_ms < DAY_MS {
            let next = self.devices.iter().map(|device| device.next_ms.min(device.saved_ms + SAVE_MS)).min();
            true_ms = next.unwrap_or(DAY_MS).max(true_ms + 1);
            if true_ms >= learns_ms {
                self.server.keys = self.devices.iter().map(|device| device.key.clone()).collect();
                learns_ms = u64::MAX;
            }
            if true_ms >= wrong_until_ms {
                self.server.wrong_ms = 0;
            }
            if true_ms >= event_ms && true_ms < CALM_MS {
                event_ms = true_ms + self.chance.range(300_000..=3_600_000);
                let one = self.chance.range(0..=self.devices.len() as u64 - 1) as usize;
                match self.chance.range(0..=3) {
                    // A clock that was just started accepts a wrong time ahead, so there are no
                    // starts meanwhile.
                    0 if self.server.wrong_ms <= 0 => {
                        self.devices[one].boot(true_ms);
                        self.day.starts += 1;
                    }
                    1 => {
                        self.server.wrong_ms = *self.chance.pick(&[-HOUR_MS, HOUR_MS]);
                        // Only if all clocks follow: one that was not set yet would accept it.
                        if self.devices.iter().any(|device| !device.clock.is_set()) {
                            self.server.wrong_ms = -HOUR_MS;
                        }
                        wrong_until_ms = true_ms + self.chance.range(60_000..=1_800_000);
                        event_ms = wrong_until_ms.max(event_ms);
                    }
                    _ => {
                        self.devices[one].key = new_key(&self.chance);
                        learns_ms = true_ms + self.chance.range(0..=60_000);
                    }
                }
            }
            for at in 0..self.devices.len() {
                self.turn(at, true_ms);
            }
        }
    }

    fn turn(&mut self, at: usize, true_ms: u64) {
        if self.devices[at].next_ms <= true_ms {
            self.ask(at, true_ms);
            let device = &mut self.devices[at];
            // With or without a response, the device serves from now on.
            device.told = true;
            device.next_ms = true_ms + device.clock.pause_ms();
        }
        let device = &mut self.devices[at];
        if device.told {
            let now_ms = device.clock.time_ms(device.stopwatch_ms(true_ms));
            if now_ms < device.last_ms {
                let (place, last) = (device.place, device.last_ms);
                self.day.violations.push(format!("{true_ms}: osd{place} told {now_ms} after {last}"));
            }
            device.last_ms = now_ms;
            if device.saved_ms + SAVE_MS <= true_ms {
                device.save(true_ms);
            }
        } else {
            device.saved_ms = true_ms;
        }
        self.check_distance(at, true_ms);
    }

    fn check_distance(&mut self, at: usize, true_ms: u64) {
        let device = &mut self.devices[at];
        let settled = device.set_ms.is_some_and(|set| true_ms > set + SETTLE_MS);
        if self.server.wrong_ms != 0 || !settled || true_ms > device.heard_ms + HEARD_MS {
            return;
        }
        let server_ms = self.server.now_ms(true_ms);
        let now_ms = device.clock.time_ms(device.stopwatch_ms(true_ms));
        // The last delayed sample is dropped after some responses.
        let near_ms = if true_ms > CALM_MS + 3_600_000 { NEAR_CALM_MS } else { NEAR_MS };
        if now_ms.abs_diff(server_ms) > near_ms {
            let off = i128::from(now_ms) - i128::from(server_ms);
            self.day.violations.push(format!("{true_ms}: osd{} is {off} ms off", device.place));
        }
    }

    fn ask(&mut self, at: usize, true_ms: u64) {
        let mut nonce = [0; 8];
        self.chance.fill(&mut nonce);
        let device = &self.devices[at];
        let query =
            TimeQuery::new(u64::from_be_bytes(nonce), Some(device.key.clone()), device.stopwatch_ms(true_ms));
        let arrivals = self.on_the_way(at, &query, true_ms);
        for arrival in arrivals {
            let device = &mut self.devices[at];
            let stopwatch_ms = device.stopwatch_ms(arrival.at_ms);
            match query.read(&arrival.bytes, stopwatch_ms, START_MS) {
                Ok(sample) => {
                    if arrival.forged {
                        self.day.violations.push(format!("{true_ms}: a forged answer counts: {sample:?}"));
                    }
                    if arrival.at_ms > true_ms + 1_001 {
                        self.day
                            .violations
                            .push(format!("{true_ms}: an answer after {} counts", arrival.at_ms));
                    }
                    self.take(at, sample, arrival.at_ms);
                    return;
                }
                Err(refusal) => *self.day.refused.entry(refusal.name()).or_default() += 1,
            }
        }
        self.devices[at].clock.record_failure();
    }

    fn take(&mut self, at: usize, sample: ClockSample, true_ms: u64) {
        let wrong = self.server.wrong_ms != 0;
        let device = &mut self.devices[at];
        let stopwatch_ms = device.stopwatch_ms(true_ms);
        let was_set = device.clock.is_set();
        match device.clock.apply_sample(sample, stopwatch_ms, device.machine.wall_ms(true_ms)) {
            Ok(_) => {
                self.day.believed += 1;
                device.heard_ms = true_ms;
                device.set_ms.get_or_insert(true_ms);
                // At the very first start no time was served yet.
                if wrong && (was_set || device.kept.last_served_ms > 0) {
                    self.day.violations.push(format!("{true_ms}: osd{} believes a wrong hour", device.place));
                }
            }
            Err(ImplausibleSample::TooFar { .. } | ImplausibleSample::Past { .. }) if wrong => {
                self.day.lies += 1;
                device.clock.record_failure();
            }
            Err(lie) => {
                self.day
                    .violations
                    .push(format!("{true_ms}: osd{} does not believe the truth: {lie}", device.place));
            }
        }
    }

    /// Returns the datagrams that arrive for a query, in order.
    fn on_the_way(&mut self, at: usize, query: &TimeQuery, true_ms: u64) -> Vec<DatagramArrival> {
        let chance = self.chance.clone();
        let hostile = true_ms < CALM_MS && chance.percent(40);
        let delay = |held: bool| if held { chance.range(0..=1_200) } else { chance.range(0..=5) };
        let (there_ms, back_ms) =
            (delay(hostile && chance.percent(30)), delay(hostile && chance.percent(30)));
        let mut request = query.bytes().to_vec();
        let mut forged = false;
        if hostile && chance.percent(10) {
            return Vec::new();
        }
        if hostile && chance.percent(15) {
            flip(&chance, &mut request);
            forged = true;
        }
        let from = RequestSource::from(IpAddr::from([10, 0, 0, at as u8]));
        let Some(mut reply) = self.server.answer(&request, from, true_ms + there_ms) else {
            return Vec::new();
        };
        let device = &mut self.devices[at];
        let mut arrivals = Vec::new();
        let at_ms = true_ms + there_ms + back_ms;
        if hostile {
            let mut lie = |bytes: Vec<u8>| arrivals.push(DatagramArrival { bytes, at_ms, forged: true });
            match chance.range(0..=4) {
                0 if !device.seen.is_empty() => lie(chance.pick(&device.seen).clone()),
                1 => lie(query.bytes().to_vec()),
                // The best forgery by an attacker who sees the query: all but the MAC.
                2 => {
                    let mut bytes = reply.clone();
                    let wrong = NtpTimestamp::of_ms(START_MS + chance.range(0..=DAY_MS));
                    bytes[32..40].copy_from_slice(&wrong.0.to_be_bytes());
                    bytes[40..48].copy_from_slice(&wrong.0.to_be_bytes());
                    lie(bytes.clone());
                    lie(bytes[..HEADER_LEN].to_vec());
                }
                3 => lie([&reply[..HEADER_LEN], &[0; 4]].concat()),
                _ => {}
            }
            device.seen.push(reply.clone());
            if device.seen.len() > 8 {
                device.seen.remove(0);
            }
            if chance.percent(15) {
                flip(&chance, &mut reply);
                forged = true;
            }
        }
        arrivals.push(DatagramArrival { bytes: reply, at_ms, forged });
        arrivals
    }
}

fn flip(chance: &RandomSource, bytes: &mut [u8]) {
    if let Some(last) = bytes.len().checked_sub(1) {
        bytes[chance.range(0..=last as u64) as usize] ^= 1 << chance.range(0..=7);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Default number of days; `SEALSTONE_SEEDS` overrides it.
    const DAYS: u64 = 24;

    #[test]
    fn clocks_follow_despite_drift_attacks_and_restarts() {
        let days = std::env::var("SEALSTONE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(DAYS);
        let mut all = ClockDay::default();
        for seed in 0..days {
            let day = day(seed);
            assert!(day.violations.is_empty(), "seed {seed}: {:#?}", day.violations);
            assert!(day.believed > 500, "seed {seed}: {day:?}");
            all.lies += day.lies;
            all.starts += day.starts;
            for (name, count) in day.refused {
                *all.refused.entry(name).or_default() += count;
            }
        }
        // The relevant cases occurred.
        assert!(all.lies > 0 && all.starts > days, "{all:?}");
        for name in ["wrong_mac", "unsigned", "not_ours", "reflected", "slow", "unknown_key", "malformed"] {
            assert!(all.refused.contains_key(name), "{name}: {all:?}");
        }
    }

    #[test]
    fn one_seed_is_one_day() {
        assert_eq!(day(3), day(3));
        assert_ne!(day(3), day(4));
    }
}
