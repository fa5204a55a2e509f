//! The thread that scrubs a running device, at a pace that commands do not feel.
//!
//! Does: call the device's scrub step by step; begin a pass when one is due; wait between steps as the rate says, and
//! longer while commands come. Does not: know what is damaged; the device does.
//! Contract: a pass that is under way makes some progress however many commands come, and goes on after a restart.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sealstone_device::{Damage, OsdUnit, ScrubState, ScrubStep};
use sealstone_osd::ObjectId;
use serde::{Deserialize, Serialize};

use super::now_ms;
use crate::failure::{Failure, Outcome, chain};
use crate::metrics::{Kind as Sample, Page};

/// Rate unless the operator says otherwise, MiB a second.
pub(crate) const MIB_S_DEFAULT: u64 = 32;
/// Between the beginnings of two passes unless the operator says otherwise, hours.
pub(crate) const INTERVAL_H_DEFAULT: u64 = 168;
/// No pass begins by itself sooner after a start: a device that comes back has other work.
const FIRST_AFTER: Duration = Duration::from_secs(600);
/// How often a thread that has nothing to do looks whether there is something.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A device that had no command for so long is at rest.
const QUIET: Duration = Duration::from_millis(20);
/// Longest that one step waits for a device at rest.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause after a store that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// What a step costs at least, in bytes: reading an object's records is work too.
const STEP_BYTES_MIN: u64 = 4096;
/// Waits shorter than this are saved up.
const WAIT_MIN: Duration = Duration::from_millis(5);
/// Damaged objects that are told of one by one.
const FINDINGS_MAX: usize = 1000;
/// Damaged ranges that are told of each.
const RANGES_MAX: usize = 16;

/// What the operator decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Between the beginnings of two passes; `None`: only when asked.
    pub(crate) interval: Option<Duration>,
    pub(crate) bytes_per_s: u64,
}

/// What can be asked.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Asked {
    /// Begin a pass, unless one is under way.
    Begin,
    /// End the pass that is under way.
    Stop,
    /// Only tell.
    Show,
}

/// A range of an object.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Bytes {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A damaged object.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Found {
    pub(crate) object: String,
    /// All damaged bytes of it.
    pub(crate) bytes: u64,
    /// The first of the ranges in which they are.
    pub(crate) ranges: Vec<Bytes>,
    /// Its records or attributes are damaged.
    pub(crate) records: bool,
}

impl Found {
    pub(crate) fn new(id: ObjectId, damage: &Damage) -> Self {
        let bytes = |range: &sealstone_device::Range| Bytes { offset: range.offset, length: range.length };
        Self {
            object: id.to_string(),
            bytes: damage.bytes(),
            ranges: damage.ranges.iter().take(RANGES_MAX).map(bytes).collect(),
            records: damage.attributes,
        }
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let ranges: Vec<String> =
            self.ranges.iter().map(|range| format!("{} at {}", range.length, range.offset)).collect();
        let told: u64 = self.ranges.iter().map(|range| range.length).sum();
        let rest = self.bytes.saturating_sub(told);
        let mut parts = Vec::new();
        if !ranges.is_empty() {
            let more = if rest > 0 { format!(", and {rest} more") } else { String::new() };
            parts.push(format!("bytes damaged: {}{more}", ranges.join(", ")));
        }
        if self.records {
            parts.push("records or attributes damaged".into());
        }
        format!("{}: {}", self.object, parts.join("; "))
    }
}

/// An object that could not be read to its end.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Unread {
    pub(crate) object: String,
    /// The first byte that was not read.
    pub(crate) at: u64,
    pub(crate) error: String,
}

/// What is answered.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    pub(crate) device: String,
    pub(crate) running: bool,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: u64,
    pub(crate) objects: u64,
    pub(crate) objects_total: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_total: u64,
    /// Objects that this pass could not read to their end.
    #[serde(default)]
    pub(crate) unread: u64,
    /// The first of them, and why; since the device's start.
    #[serde(default)]
    pub(crate) unread_objects: Vec<Unread>,
    /// Units that this pass gave the digest that was missing.
    #[serde(default)]
    pub(crate) digested: u64,
    /// Damaged objects that the device knows of; at least, if `more`.
    pub(crate) damaged: u64,
    pub(crate) more: bool,
    pub(crate) findings: Vec<Found>,
}

/// The thread; ends when this is dropped.
pub(crate) struct Scrubber {
    name: String,
    unit: Arc<OsdUnit>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Signals>,
    changed: Condvar,
}

#[derive(Default)]
struct Signals {
    ended: bool,
    /// Somebody asked for something: no use to wait any longer.
    asked: bool,
}

impl Shared {
    /// Waits; `false`: it is time to end.
    fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.ended && !state.asked {
            self.changed.wait_for(&mut state, time);
        }
        state.asked = false;
        !state.ended
    }

    /// It is time to end.
    fn is_over(&self) -> bool {
        self.state.lock().ended
    }

    fn signal(&self, change: impl FnOnce(&mut Signals)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

impl Scrubber {
    pub(crate) fn start(name: String, unit: Arc<OsdUnit>, settings: Settings) -> Outcome<Self> {
        let shared = Arc::new(Shared::default());
        let (for_thread, of_thread) = (Arc::clone(&unit), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("scrub".into())
            .spawn(move || scrub(&for_thread, &of_thread, settings))?;
        Ok(Self { name, unit, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Does what is asked and tells how it stands.
    pub(crate) fn perform(&self, asked: Asked) -> Outcome<Told> {
        let done = match asked {
            Asked::Begin => self.unit.scrub_begin(),
            Asked::Stop => self.unit.scrub_stop(),
            Asked::Show => Ok(()),
        };
        done.map_err(|error| Failure::operation(chain(&error)))?;
        self.shared.signal(|signals| signals.asked = true);
        let state = self.unit.scrub_state();
        let findings = self.unit.damaged();
        Ok(Told {
            device: self.name.clone(),
            running: state.running,
            began_ms: state.began_ms,
            ended_ms: state.ended_ms,
            objects: state.objects,
            objects_total: state.objects_total,
            bytes: state.bytes,
            bytes_total: state.bytes_total,
            unread: state.unread,
            unread_objects: self
                .unit
                .unread()
                .into_iter()
                .map(|one| Unread { object: one.id.to_string(), at: one.at, error: one.error })
                .collect(),
            digested: state.digested,
            damaged: state.damaged,
            more: state.more_damaged || findings.len() > FINDINGS_MAX,
            findings: findings
                .iter()
                .take(FINDINGS_MAX)
                .map(|(id, damage)| Found::new(*id, damage))
                .collect(),
        })
    }

    /// Its families of the metrics page.
    pub(crate) fn observe(&self, page: &mut Page) {
        let state = self.unit.scrub_state();
        let labels = [("device", self.name.as_str())];
        let mut one =
            |kind, name: &str, help: &str, value| page.family(kind, name, help, [(&labels[..], value)]);
        let (gauge, counter) = (Sample::Gauge, Sample::Counter);
        one(gauge, "sealstone_osd_damaged_objects", "Objects known as damaged.", state.damaged);
        one(gauge, "sealstone_osd_scrub_running", "1 while a scrub is under way.", state.running.into());
        one(gauge, "sealstone_osd_scrub_objects", "Objects that this pass has read.", state.objects);
        one(gauge, "sealstone_osd_scrub_objects_expected", "Objects that there are.", state.objects_total);
        one(gauge, "sealstone_osd_scrub_bytes", "Bytes that this pass has read.", state.bytes);
        one(
            gauge,
            "sealstone_osd_scrub_unread_objects",
            "Objects that this pass, or the last one, could not read to their end.",
            state.unread,
        );
        one(
            counter,
            "sealstone_osd_scrub_digests_total",
            "Stored digests that were missing and that scrubs made.",
            state.digested_since_start,
        );
        one(
            gauge,
            "sealstone_osd_scrub_ended_seconds",
            "When a pass last came to its end, in seconds since 1970; 0: never.",
            state.ended_ms / 1000,
        );
        one(
            counter,
            "sealstone_osd_scrub_objects_total",
            "Objects read by scrubs.",
            state.objects_since_start,
        );
        one(counter, "sealstone_osd_scrub_bytes_total", "Bytes read by scrubs.", state.bytes_since_start);
        one(counter, "sealstone_osd_scrub_passes_total", "Scrubs that ended.", state.passes_since_start);
    }

    /// Ends the thread; returns when its step under way is done.
    pub(crate) fn end(&self) {
        self.shared.signal(|signals| signals.ended = true);
        if let Some(thread) = self.thread.lock().take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        self.end();
    }
}

fn scrub(unit: &OsdUnit, shared: &Shared, settings: Settings) {
    let started = Instant::now();
    let mut pace = Pace { bytes_per_s: settings.bytes_per_s.max(1), due: started };
    let mut commands = Commands { unit, last: 0, changed: started };
    let mut complained = false;
    // A step that is slower than the rate waits for nothing.
    while !shared.is_over() {
        let go_on = match unit.scrub_step() {
            Ok(ScrubStep::Worked { bytes }) => {
                complained = false;
                let wait = pace.after(bytes.max(STEP_BYTES_MIN), Instant::now());
                (wait < WAIT_MIN || shared.wait(wait)) && commands.wait_for_rest(shared)
            }
            Ok(ScrubStep::Ended) => shared.wait(Duration::ZERO),
            Ok(ScrubStep::Idle) => {
                if is_due(&unit.scrub_state(), settings.interval, started)
                    && let Err(error) = unit.scrub_begin()
                {
                    tracing::error!(%error, "a scrub could not begin");
                }
                shared.wait(LOOK_EVERY)
            }
            Err(error) => {
                if !complained {
                    complained = true;
                    tracing::error!(error = chain(&error), "the scrub cannot go on; it tries again");
                }
                shared.wait(AFTER_FAILURE)
            }
        };
        if !go_on {
            return;
        }
    }
}

fn is_due(state: &ScrubState, interval: Option<Duration>, started: Instant) -> bool {
    let Some(interval) = interval else { return false };
    if state.running || started.elapsed() < FIRST_AFTER {
        return false;
    }
    // A clock that was set back must not put it off for ever.
    let since = now_ms().checked_sub(state.began_ms).map(Duration::from_millis);
    since.is_none_or(|since| since >= interval)
}

/// When the next step may begin.
struct Pace {
    bytes_per_s: u64,
    due: Instant,
}

impl Pace {
    /// How long to wait after a step that cost so many bytes. What was not used before is lost.
    fn after(&mut self, bytes: u64, now: Instant) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(PATIENCE * 60);
        self.due = self.due.max(now.checked_sub(cost).unwrap_or(now)) + cost;
        self.due.saturating_duration_since(now)
    }
}

/// Whether commands come.
struct Commands<'a> {
    unit: &'a OsdUnit,
    last: u64,
    changed: Instant,
}

impl Commands<'_> {
    /// Waits until none came for a while, but not for ever; `false`: it is time to end.
    fn wait_for_rest(&mut self, shared: &Shared) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            let count = self.unit.metrics().commands().map(|(_, count)| count.received).sum();
            let now = Instant::now();
            if count != self.last {
                (self.last, self.changed) = (count, now);
            }
            if now >= self.changed + QUIET || now >= until {
                return true;
            }
            if !shared.wait(QUIET) {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However a pass is cut into steps, it takes the time that its bytes take at the rate.
    #[test]
    fn the_pace_is_the_rate_and_rest_is_not_saved_up() {
        let start = Instant::now();
        for step in [4096, 65_536, 1 << 20] {
            let mut pace = Pace { bytes_per_s: 32 << 20, due: start };
            let mut now = start;
            for _ in 0..(32 << 20) / step {
                now += pace.after(step, now);
            }
            let took = now - start;
            assert!(took > Duration::from_millis(950) && took < Duration::from_millis(1050), "{took:?}");
            // After an hour's rest the next steps wait as before.
            now += Duration::from_secs(3600);
            pace.after(step, now);
            assert!(pace.after(step, now) >= Duration::from_micros(100));
        }
    }

    /// A pass begins when the interval is over, and not right after a start.
    #[test]
    fn a_pass_is_due_by_the_interval() {
        let hour = Duration::from_secs(3600);
        let long_ago = Instant::now().checked_sub(FIRST_AFTER).expect("the machine runs for ten minutes");
        let began = |hours_ago: u64| ScrubState {
            began_ms: now_ms() - hours_ago * 3_600_000,
            ..ScrubState::default()
        };
        assert!(is_due(&ScrubState::default(), Some(hour), long_ago), "never scrubbed");
        assert!(is_due(&began(2), Some(hour), long_ago));
        assert!(!is_due(&began(0), Some(hour), long_ago));
        assert!(!is_due(&began(2), None, long_ago), "switched off");
        assert!(!is_due(&began(2), Some(hour), Instant::now()), "just started");
        assert!(!is_due(&ScrubState { running: true, ..began(2) }, Some(hour), long_ago));
        let ahead = ScrubState { began_ms: now_ms() + 3_600_000, ..ScrubState::default() };
        assert!(is_due(&ahead, Some(hour), long_ago), "the clock was set back");
    }

    /// What is told of an object is short however much of it is damaged.
    #[test]
    fn a_finding_is_one_line() {
        let ranges: Vec<_> =
            (0..100).map(|n| sealstone_device::Range { offset: n * 8192, length: 4096 }).collect();
        let found = Found::new(ObjectId::new(0x10000, 0x10001), &Damage { ranges, attributes: true });
        assert_eq!((found.ranges.len(), found.bytes), (RANGES_MAX, 409_600));
        let line = found.line();
        assert!(line.starts_with("0x10000/0x10001: bytes damaged: 4096 at 0, 4096 at 8192, "), "{line}");
        assert!(line.ends_with(", and 344064 more; records or attributes damaged"), "{line}");
    }
}
