//! Clocks of devices that drift, steered by what the metadata server tells, and whether their credentials' times hold.
//!
//! Does: an oscillator with a rate of its own, the real rule by which a device follows (`sealstone-sntp`), questions over
//! the simulated network. Does not: lie about the time; [`crate::timekeeping`] has days full of that.
//! Contract of the oracle ([`Judge`]), in the metadata server's time: a device that follows refuses no command as late
//! whose nonce is fresh, and no credential as expired that is not, by more than [`TOLERANCE_MS`]; and it takes none that
//! has expired by more than that.
//! Truth: docs/adr/0030-time-from-the-metadata-server.md; docs/design/security.md 3.3 (window), 3.5 (restart).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_device::{AuditRecord, AuditSink, Verdict};
use sealstone_osd::{Cdb, SecurityMethod};
use sealstone_scsi::Status;
use sealstone_scsi::lu::ScsiReply;
use sealstone_seal::Nonce;
use sealstone_sntp::{Came, ClockState, Follower, Kept, Policy, Query, Responder, Source, TimeKey};
use tokio::time::{Instant, sleep, timeout};

use crate::chance::Chance;
use crate::clock::{Clockwork, START_MS};
use crate::history::History;
use crate::network::{Host, Network};

/// A device waits so long for the first answer before it serves.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// What was told is kept so often, milliseconds.
const SAVE_MS: u64 = 10_000;
/// How far off a clock that follows may be: half a second that somebody on the way can make of it, what it drifts by
/// between two questions, and what it still makes good of before.
pub const TOLERANCE_MS: i64 = 3_000;
/// A clock that heard its server so lately follows it.
const HEARD_MS: u64 = 150_000;
/// After a start a device takes nothing that its last life may have taken: for so long it may refuse what is fresh.
const STARTED_MS: u64 = 10_000;
/// The narrowest window of nonces: so old and so new.
const WINDOW_MS: [i64; 2] = [20_000, 2_000];
/// The fastest that a clock runs away, millionths.
pub const WILD_PPM: u64 = 10_000;

/// The server of the time, as the metadata server has it.
pub struct TimeServer {
    /// The metadata server's clock.
    pub clock: Arc<Clockwork>,
    responder: Mutex<Responder>,
}

impl TimeServer {
    /// One that tells the time of this clock.
    #[must_use]
    pub fn new(clock: Arc<Clockwork>) -> Arc<Self> {
        Arc::new(Self { clock, responder: Mutex::default() })
    }

    fn answer(&self, datagram: &[u8], place: u8, stopwatch_ms: u64) -> Option<Vec<u8>> {
        let now_ms = self.clock.now_ms();
        let state = ClockState::own(now_ms);
        let source = Source::from(IpAddr::from([10, 0, 0, place]));
        let came = Came { datagram, source, stopwatch_ms, received_ms: now_ms, now_ms };
        let own = key(place);
        let answer = self.responder.lock().answer(&came, &state, |id| (id == own.id()).then_some(own));
        answer.reply.map(|reply| reply.bytes().to_vec())
    }
}

fn key(place: u8) -> TimeKey {
    TimeKey::derived(&[place + 1; 32])
}

/// What an oscillator makes of the time: it is rebased whenever its rate changes.
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

struct Followed {
    clock: Follower,
    booted_us: u64,
    /// As `clock.toml` keeps it.
    kept: Kept,
    /// Somebody goes by it: what it tells cannot be taken back.
    told: bool,
    booted: Instant,
    heard: Option<Instant>,
}

/// The clock of a device: its machine's, or one that follows.
pub struct DeviceClock {
    steady: Arc<Clockwork>,
    drifting: Option<Drifting>,
}

struct Drifting {
    place: u8,
    skew_ms: i64,
    oscillator: Mutex<Oscillator>,
    followed: Mutex<Followed>,
    server: Arc<TimeServer>,
    network: Arc<Network>,
    chance: Arc<Chance>,
}

impl DeviceClock {
    /// A clock that is always right.
    #[must_use]
    pub fn steady(steady: Arc<Clockwork>) -> Arc<Self> {
        Arc::new(Self { steady, drifting: None })
    }

    /// One that is off by `skew_ms` at first, drifts, and follows.
    #[must_use]
    pub fn drifting(
        steady: Arc<Clockwork>,
        place: u8,
        (skew_ms, drift_ppm): (i64, i64),
        server: Arc<TimeServer>,
        network: Arc<Network>,
        chance: Arc<Chance>,
    ) -> Arc<Self> {
        let oscillator = Mutex::new(Oscillator { since: Instant::now(), passed_us: 0, drift_ppm });
        let followed = Mutex::new(Followed {
            clock: Follower::new(Policy::SIGNED, START_MS.saturating_add_signed(skew_ms), 0, 0, 0),
            booted_us: 0,
            kept: Kept::default(),
            told: false,
            booted: Instant::now(),
            heard: None,
        });
        let drifting = Drifting { place, skew_ms, oscillator, followed, server, network, chance };
        Arc::new(Self { steady, drifting: Some(drifting) })
    }

    /// Milliseconds since 1970 by this clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        match &self.drifting {
            None => self.steady.now_ms(),
            Some(drifting) => drifting.now_ms(),
        }
    }

    /// Does it follow another one?
    #[must_use]
    pub const fn follows(&self) -> bool {
        self.drifting.is_some()
    }

    /// From here on it drifts by so much.
    pub fn drift(&self, drift_ppm: i64) {
        let Some(drifting) = &self.drifting else { return };
        let mut oscillator = drifting.oscillator.lock();
        let passed_us = oscillator.passed_us();
        *oscillator = Oscillator { since: Instant::now(), passed_us, drift_ppm };
    }

    /// The device starts: its clock goes on from what was kept.
    pub fn boot(&self) {
        if let Some(drifting) = &self.drifting {
            drifting.boot();
        }
    }

    /// Asks for the time until the first answer, but not for long.
    pub async fn first_answer(&self) {
        let Some(drifting) = &self.drifting else { return };
        let asked = async {
            while !drifting.ask().await {
                sleep(Duration::from_millis(200)).await;
            }
        };
        // Whatever came of it, the device serves from now on.
        let _ = timeout(FIRST_ANSWER, asked).await;
        drifting.followed.lock().told = true;
    }

    /// Asks again and again, and keeps what was told.
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

impl Drifting {
    fn wall_ms(&self, passed_us: u64) -> u64 {
        (START_MS + passed_us / 1_000).saturating_add_signed(self.skew_ms)
    }

    /// Its stopwatch, and the machine's clock.
    fn look(&self, followed: &Followed) -> (u64, u64) {
        let passed_us = self.oscillator.lock().passed_us();
        (passed_us.saturating_sub(followed.booted_us) / 1_000, self.wall_ms(passed_us))
    }

    fn now_ms(&self) -> u64 {
        let mut followed = self.followed.lock();
        let (stopwatch_ms, _) = self.look(&followed);
        if followed.told { followed.clock.tell(stopwatch_ms) } else { followed.clock.untold_ms(stopwatch_ms) }
    }

    fn boot(&self) {
        let mut followed = self.followed.lock();
        let passed_us = self.oscillator.lock().passed_us();
        let clock = Follower::resume(Policy::SIGNED, self.wall_ms(passed_us), followed.kept);
        let (kept, booted) = (followed.kept, Instant::now());
        *followed = Followed { clock, booted_us: passed_us, kept, told: false, booted, heard: None };
    }

    fn save(&self) {
        let mut followed = self.followed.lock();
        if !followed.told {
            return;
        }
        let (stopwatch_ms, wall_ms) = self.look(&followed);
        if let Some(kept) = followed.clock.keep(stopwatch_ms, wall_ms) {
            followed.kept = kept;
        }
    }

    /// One question; true if its answer was believed.
    async fn ask(&self) -> bool {
        let mut nonce = [0; 8];
        self.chance.fill(&mut nonce);
        let sent_ms = self.look(&self.followed.lock()).0;
        let query = Query::new(u64::from_be_bytes(nonce), Some(key(self.place)), sent_ms);
        let here = Host::Device(self.place);
        let heard = async {
            self.network.datagram(here, Host::Mds).await?;
            let stopwatch_ms = self.server.clock.now_ms().saturating_sub(START_MS);
            let reply = self.server.answer(query.bytes(), self.place, stopwatch_ms)?;
            self.network.datagram(Host::Mds, here).await?;
            Some(reply)
        };
        let heard = heard.await;
        let mut followed = self.followed.lock();
        let (stopwatch_ms, wall_ms) = self.look(&followed);
        let sample = heard.and_then(|reply| query.read(&reply, stopwatch_ms, START_MS).ok());
        let believed =
            sample.is_some_and(|sample| followed.clock.take(sample, stopwatch_ms, wall_ms).is_ok());
        if believed {
            followed.heard = Some(Instant::now());
        } else {
            followed.clock.missed();
        }
        believed
    }

    /// Has it followed for long enough that its time is to be trusted?
    fn is_settled(&self) -> bool {
        let followed = self.followed.lock();
        let since = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        since(followed.booted) > STARTED_MS && followed.heard.is_some_and(|at| since(at) < HEARD_MS)
    }
}

impl sealstone_device::Environment for DeviceClock {
    fn now_ms(&self) -> u64 {
        Self::now_ms(self)
    }

    fn fill_random(&self, into: &mut [u8]) {
        sealstone_device::Environment::fill_random(&*self.steady, into);
    }
}

/// Who looks at what devices make of times.
pub struct Judge {
    place: u8,
    truth: Arc<Clockwork>,
    clock: Arc<DeviceClock>,
    history: Arc<History>,
    /// How the command that runs now was recorded. All commands of a device run one after the other.
    last: Mutex<Option<Verdict>>,
    /// Commands that were looked at while the device followed.
    pub judged: AtomicU64,
    /// The most that the device was off at one of them, milliseconds.
    pub off_ms: AtomicU64,
}

impl AuditSink for Judge {
    fn record(&self, record: &AuditRecord<'_>) {
        *self.last.lock() = Some(record.verdict);
    }
}

impl Judge {
    /// Nobody has been looked at yet.
    #[must_use]
    pub fn new(
        place: u8,
        truth: Arc<Clockwork>,
        clock: Arc<DeviceClock>,
        history: Arc<History>,
    ) -> Arc<Self> {
        let (judged, off_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { place, truth, clock, history, last: Mutex::default(), judged, off_ms })
    }

    /// A command begins.
    pub(crate) fn begin(&self) {
        self.last.lock().take();
    }

    /// A command has ended.
    pub(crate) fn end(&self, cdb: &[u8], reply: &ScsiReply) {
        let settled = self.clock.drifting.as_ref().is_some_and(Drifting::is_settled);
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

/// Clocks that run away for a while, one after the other.
pub async fn wild(
    clocks: Vec<Arc<DeviceClock>>,
    usual_ppm: Vec<i64>,
    chance: Arc<Chance>,
    history: Arc<History>,
) {
    loop {
        sleep(Duration::from_millis(chance.logarithmic(1_000..=60_000))).await;
        let at = chance.range(0..=clocks.len() as u64 - 1) as usize;
        let Some((clock, usual)) = clocks.get(at).zip(usual_ppm.get(at)) else { return };
        let ppm = chance.range(0..=2 * WILD_PPM).cast_signed() - WILD_PPM.cast_signed();
        history.tell(format!("the clock of osd{at} drifts by {ppm} ppm"));
        clock.drift(ppm);
        sleep(Duration::from_millis(chance.logarithmic(1_000..=120_000))).await;
        clock.drift(*usual);
    }
}
