//! Drifting clocks of devices, disciplined by the metadata server, and checks of credential times.
//!
//! Does: an oscillator with its own rate, the real algorithm of a following device
//! (`sealstone-sntp`), queries over the simulated network.
//! Does not: serve wrong times; [`crate::timekeeping`] does.
//! Contract of the oracle ([`ClockAudit`]), in the metadata server's time, with a tolerance of
//! [`TOLERANCE_MS`]: a following device does not refuse a command with a fresh nonce as late, does
//! not refuse a valid credential as expired, and does not accept an expired one.
//! Truth: docs/adr/0030-time-from-the-metadata-server.md; docs/design/security.md 3.3 (window), 3.5
//! (restart).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_osd::{Cdb, SecurityMethod};
use sealstone_osd_device::{AuditRecord, AuditSink, AuditVerdict};
use sealstone_scsi::Status;
use sealstone_scsi::lu::ScsiReply;
use sealstone_seal::Nonce;
use sealstone_sntp::{
    ClockState, Datagram, FollowPolicy, Follower, RequestSource, Responder, StoredClock, TimeKey, TimeQuery,
};
use tokio::time::{Instant, sleep, timeout};

use crate::clock::{START_MS, SimulatedClock};
use crate::history::History;
use crate::network::{Host, Network};
use crate::random::RandomSource;

/// How long a device waits for the first response before it serves.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// Interval of storing the clock's state, in milliseconds.
const SAVE_MS: u64 = 10_000;
/// Maximum error of a following clock: half a second that an attacker can cause, the drift between
/// two queries, and the remaining slew.
pub const TOLERANCE_MS: i64 = 3_000;
/// Age of the last response up to which a clock counts as following.
const HEARD_MS: u64 = 150_000;
/// Time after a start in which a device may refuse fresh commands: it accepts nothing that it may
/// have accepted before the restart.
const STARTED_MS: u64 = 10_000;
/// Narrowest nonce window: maximum age, and maximum lead.
const WINDOW_MS: [i64; 2] = [20_000, 2_000];
/// Fastest drift of a runaway clock, in millionths.
pub const WILD_PPM: u64 = 10_000;

/// The time server inside the metadata server.
pub struct TimeServer {
    /// The metadata server's clock.
    pub clock: Arc<SimulatedClock>,
    responder: Mutex<Responder>,
}

impl TimeServer {
    /// Creates a server of this clock's time.
    #[must_use]
    pub fn new(clock: Arc<SimulatedClock>) -> Arc<Self> {
        Arc::new(Self { clock, responder: Mutex::default() })
    }

    fn answer(&self, datagram: &[u8], place: u8, stopwatch_ms: u64) -> Option<Vec<u8>> {
        let now_ms = self.clock.now_ms();
        let state = ClockState::own(now_ms);
        let source = RequestSource::from(IpAddr::from([10, 0, 0, place]));
        let received = Datagram { datagram, source, stopwatch_ms, received_ms: now_ms, now_ms };
        let own = key(place);
        let answer = self.responder.lock().answer(&received, &state, |id| (id == own.id()).then_some(own));
        answer.reply.map(|reply| reply.bytes().to_vec())
    }
}

fn key(place: u8) -> TimeKey {
    TimeKey::derived(&[place + 1; 32])
}

/// An oscillator with a rate; its base is reset when the rate changes.
struct Oscillator {
    since: Instant,
    passed_us: u64,
    drift_ppm: i64,
}

impl Oscillator {
    fn passed_us(&self) -> u64 {
        let elapsed = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let drifted = elapsed.cast_signed() / 1_000 * self.drift_ppm / 1_000;
        self.passed_us.saturating_add(elapsed.saturating_add_signed(drifted))
    }
}

struct FollowedClock {
    clock: Follower,
    booted_us: u64,
    /// State as stored in `clock.toml`.
    kept: StoredClock,
    /// Whether a time was served, which cannot be withdrawn.
    has_served: bool,
    booted: Instant,
    last_reply: Option<Instant>,
}

/// The clock of a device: the machine's, or a following one.
pub struct DeviceClock {
    steady: Arc<SimulatedClock>,
    drifting: Option<DriftSimulation>,
}

struct DriftSimulation {
    place: u8,
    skew_ms: i64,
    oscillator: Mutex<Oscillator>,
    followed: Mutex<FollowedClock>,
    server: Arc<TimeServer>,
    network: Arc<Network>,
    chance: Arc<RandomSource>,
}

impl DeviceClock {
    /// Creates a clock that is always correct.
    #[must_use]
    pub fn steady(steady: Arc<SimulatedClock>) -> Arc<Self> {
        Arc::new(Self { steady, drifting: None })
    }

    /// Creates a clock with an initial error of `skew_ms` that drifts and follows.
    #[must_use]
    pub fn drifting(
        steady: Arc<SimulatedClock>,
        place: u8,
        (skew_ms, drift_ppm): (i64, i64),
        server: Arc<TimeServer>,
        network: Arc<Network>,
        chance: Arc<RandomSource>,
    ) -> Arc<Self> {
        let oscillator = Mutex::new(Oscillator { since: Instant::now(), passed_us: 0, drift_ppm });
        let followed = Mutex::new(FollowedClock {
            clock: Follower::new(FollowPolicy::SIGNED, START_MS.saturating_add_signed(skew_ms), 0, 0, 0),
            booted_us: 0,
            kept: StoredClock::default(),
            has_served: false,
            booted: Instant::now(),
            last_reply: None,
        });
        let drifting = DriftSimulation { place, skew_ms, oscillator, followed, server, network, chance };
        Arc::new(Self { steady, drifting: Some(drifting) })
    }

    /// Returns milliseconds since 1970 by this clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        match &self.drifting {
            None => self.steady.now_ms(),
            Some(drifting) => drifting.now_ms(),
        }
    }

    /// Whether it follows a server.
    #[must_use]
    pub const fn follows(&self) -> bool {
        self.drifting.is_some()
    }

    /// Sets the drift from now on.
    pub fn drift(&self, drift_ppm: i64) {
        let Some(drifting) = &self.drifting else { return };
        let mut oscillator = drifting.oscillator.lock();
        let passed_us = oscillator.passed_us();
        *oscillator = Oscillator { since: Instant::now(), passed_us, drift_ppm };
    }

    /// Restarts the clock from its stored state, when the device starts.
    pub fn boot(&self) {
        if let Some(drifting) = &self.drifting {
            drifting.boot();
        }
    }

    /// Queries the time until the first response, for a limited time.
    pub async fn first_answer(&self) {
        let Some(drifting) = &self.drifting else { return };
        let asked = async {
            while !drifting.ask().await {
                sleep(Duration::from_millis(200)).await;
            }
        };
        // With or without a response, the device serves from now on.
        let _ = timeout(FIRST_ANSWER, asked).await;
        drifting.followed.lock().has_served = true;
    }

    /// Queries the time periodically, and stores the state.
    pub async fn follow(&self) {
        let Some(drifting) = &self.drifting else { return };
        loop {
            let pause_ms = drifting.followed.lock().clock.pause_ms();
            let mut slept_ms = 0;
            while slept_ms < pause_ms {
                let some_ms = SAVE_MS.min(pause_ms - slept_ms);
                sleep(Duration::from_millis(some_ms)).await;
                slept_ms += some_ms;
                drifting.save();
            }
            drifting.ask().await;
        }
    }
}

impl DriftSimulation {
    fn wall_ms(&self, passed_us: u64) -> u64 {
        (START_MS + passed_us / 1_000).saturating_add_signed(self.skew_ms)
    }

    /// Returns its stopwatch and the machine's clock.
    fn look(&self, followed: &FollowedClock) -> (u64, u64) {
        let passed_us = self.oscillator.lock().passed_us();
        (passed_us.saturating_sub(followed.booted_us) / 1_000, self.wall_ms(passed_us))
    }

    fn now_ms(&self) -> u64 {
        let mut followed = self.followed.lock();
        let (stopwatch_ms, _) = self.look(&followed);
        if followed.has_served {
            followed.clock.time_ms(stopwatch_ms)
        } else {
            followed.clock.unclamped_ms(stopwatch_ms)
        }
    }

    fn boot(&self) {
        let mut followed = self.followed.lock();
        let passed_us = self.oscillator.lock().passed_us();
        let clock = Follower::resume(FollowPolicy::SIGNED, self.wall_ms(passed_us), followed.kept);
        let (kept, booted) = (followed.kept, Instant::now());
        *followed =
            FollowedClock { clock, booted_us: passed_us, kept, has_served: false, booted, last_reply: None };
    }

    fn save(&self) {
        let mut followed = self.followed.lock();
        if !followed.has_served {
            return;
        }
        let (stopwatch_ms, wall_ms) = self.look(&followed);
        if let Some(kept) = followed.clock.keep(stopwatch_ms, wall_ms) {
            followed.kept = kept;
        }
    }

    /// Sends one query. Returns whether a sample was accepted.
    async fn ask(&self) -> bool {
        let mut nonce = [0; 8];
        self.chance.fill(&mut nonce);
        let sent_ms = self.look(&self.followed.lock()).0;
        let query = TimeQuery::new(u64::from_be_bytes(nonce), Some(key(self.place)), sent_ms);
        let here = Host::Device(self.place);
        let reply = async {
            self.network.datagram(here, Host::Mds).await?;
            let stopwatch_ms = self.server.clock.now_ms().saturating_sub(START_MS);
            let reply = self.server.answer(query.bytes(), self.place, stopwatch_ms)?;
            self.network.datagram(Host::Mds, here).await?;
            Some(reply)
        };
        let reply = reply.await;
        let mut followed = self.followed.lock();
        let (stopwatch_ms, wall_ms) = self.look(&followed);
        let sample = reply.and_then(|reply| query.read(&reply, stopwatch_ms, START_MS).ok());
        let believed =
            sample.is_some_and(|sample| followed.clock.apply_sample(sample, stopwatch_ms, wall_ms).is_ok());
        if believed {
            followed.last_reply = Some(Instant::now());
        } else {
            followed.clock.record_failure();
        }
        believed
    }

    /// Whether it has followed for long enough that its time must be correct.
    fn is_settled(&self) -> bool {
        let followed = self.followed.lock();
        let since = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        since(followed.booted) > STARTED_MS && followed.last_reply.is_some_and(|at| since(at) < HEARD_MS)
    }
}

impl sealstone_osd_device::DeviceEnvironment for DeviceClock {
    fn now_ms(&self) -> u64 {
        Self::now_ms(self)
    }

    fn fill_random(&self, into: &mut [u8]) {
        sealstone_osd_device::DeviceEnvironment::fill_random(&*self.steady, into);
    }
}

/// Checks how a device judges times.
pub struct ClockAudit {
    place: u8,
    truth: Arc<SimulatedClock>,
    clock: Arc<DeviceClock>,
    history: Arc<History>,
    /// Audit record of the current command. All commands of a device run in sequence.
    last: Mutex<Option<AuditVerdict>>,
    /// Commands checked while the device followed.
    pub judged: AtomicU64,
    /// Largest error of the device's clock at one of them, in milliseconds.
    pub off_ms: AtomicU64,
}

impl AuditSink for ClockAudit {
    fn record(&self, record: &AuditRecord<'_>) {
        *self.last.lock() = Some(record.verdict);
    }
}

impl ClockAudit {
    /// Creates a judge without checked commands.
    #[must_use]
    pub fn new(
        place: u8,
        truth: Arc<SimulatedClock>,
        clock: Arc<DeviceClock>,
        history: Arc<History>,
    ) -> Arc<Self> {
        let (judged, off_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { place, truth, clock, history, last: Mutex::default(), judged, off_ms })
    }

    /// Starts a command.
    pub(crate) fn begin(&self) {
        self.last.lock().take();
    }

    /// Ends a command and checks its result.
    pub(crate) fn end(&self, cdb: &[u8], reply: &ScsiReply) {
        let settled = self.clock.drifting.as_ref().is_some_and(DriftSimulation::is_settled);
        let Some(cdb) = Cdb::parse(cdb).ok().filter(|_| settled) else { return };
        let Ok(capability) = cdb.capability.parse() else { return };
        if capability.method < SecurityMethod::CmdRsp {
            return;
        }
        let now_ms = self.truth.now_ms();
        self.judged.fetch_add(1, Ordering::Relaxed);
        self.off_ms.fetch_max(self.clock.now_ms().abs_diff(now_ms), Ordering::Relaxed);
        let reason = self.last.lock().and_then(|verdict| verdict.reason());
        let age_ms = difference(now_ms, Nonce(cdb.security.nonce).time_ms());
        let [oldest, newest] = WINDOW_MS;
        let fresh = age_ms < oldest - TOLERANCE_MS && age_ms > TOLERANCE_MS.min(newest) - newest;
        if reason == Some("out_of_window") && fresh {
            self.wrong(format!("refused a command as late that was {age_ms} ms old"));
        }
        if capability.expires_ms == 0 {
            return;
        }
        let over_ms = difference(now_ms, capability.expires_ms);
        if reason == Some("expired") && over_ms < -TOLERANCE_MS {
            self.wrong(format!("refused a credential as expired {} ms before it was", -over_ms));
        }
        if reply.status == Status::Good && over_ms > TOLERANCE_MS {
            self.wrong(format!("took a credential {over_ms} ms after it had expired"));
        }
    }

    fn wrong(&self, what: String) {
        let off_ms = difference(self.clock.now_ms(), self.truth.now_ms());
        self.history.violate(format!("osd{}, {off_ms} ms off, {what}", self.place));
    }
}

fn difference(a: u64, b: u64) -> i64 {
    let [a, b] = [a, b].map(|time| i64::try_from(time).unwrap_or(i64::MAX));
    a.saturating_sub(b)
}

/// Lets clocks run away for a while, one after the other.
pub async fn wild(
    clocks: Vec<Arc<DeviceClock>>,
    usual_ppm: Vec<i64>,
    chance: Arc<RandomSource>,
    history: Arc<History>,
) {
    loop {
        sleep(Duration::from_millis(chance.logarithmic(1_000..=60_000))).await;
        let at = chance.range(0..=clocks.len() as u64 - 1) as usize;
        let Some((clock, usual)) = clocks.get(at).zip(usual_ppm.get(at)) else { return };
        let ppm = chance.range(0..=2 * WILD_PPM).cast_signed() - WILD_PPM.cast_signed();
        history.add_line(format!("the clock of osd{at} drifts by {ppm} ppm"));
        clock.drift(ppm);
        sleep(Duration::from_millis(chance.logarithmic(1_000..=120_000))).await;
        clock.drift(*usual);
    }
}
