//! Scrub thread of a running device.
//!
//! Does: runs scrub steps of the device at the configured rate, starts a pass when it is due, and
//! slows down while the device executes commands.
//! Does not: store findings; the device does.
//! Contract: a pass always makes progress, also under load, and continues after a restart.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sealstone_daemon::machine::now_ms;
use sealstone_daemon::metrics::{MetricKind, Page};
use sealstone_failure::{Failure, Outcome, chain};
use sealstone_osd::ObjectId;
use sealstone_osd_device::{Damage, OsdUnit, ScrubState, ScrubStep};
use serde::{Deserialize, Serialize};

/// Minimum time from the start of the device to an automatic pass.
const FIRST_AFTER: Duration = Duration::from_secs(600);
/// Interval at which an idle thread checks for work.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// A device is idle after this time without a command.
const QUIET: Duration = Duration::from_millis(20);
/// Maximum time that a step waits for an idle device.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Pause after a failed step.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);
/// Minimum cost of a step, bytes: reading the records of an object is work, too.
const STEP_BYTES_MIN: u64 = 4096;
/// Shorter waits are accumulated.
const WAIT_MIN: Duration = Duration::from_millis(5);
/// Maximum number of damaged objects in a report.
const FINDINGS_MAX: usize = 1000;
/// Maximum number of damaged ranges of an object in a report.
const RANGES_MAX: usize = 16;

/// Configuration of the scrub.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubSettings {
    /// Interval between the starts of two passes; `None`: no automatic passes.
    pub(crate) interval: Option<Duration>,
    /// Maximum rate, bytes per second.
    pub(crate) bytes_per_s: u64,
}

/// Action of a scrub request.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubAction {
    /// Start a pass, unless one is running.
    Begin,
    /// Stop the running pass.
    Stop,
    /// Only report.
    Show,
}

/// A byte range of an object.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct DamagedRange {
    /// Offset of its first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A damaged object.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct DamageReport {
    /// Identifier of the object.
    pub object: String,
    /// Number of damaged bytes.
    pub bytes: u64,
    /// Their first ranges, at most `RANGES_MAX`.
    pub ranges: Vec<DamagedRange>,
    /// Whether its records or attributes are damaged.
    pub records: bool,
}

impl DamageReport {
    pub(crate) fn new(id: ObjectId, damage: &Damage) -> Self {
        let bytes =
            |range: &sealstone_osd_device::Range| DamagedRange { offset: range.offset, length: range.length };
        Self {
            object: id.to_string(),
            bytes: damage.bytes(),
            ranges: damage.ranges.iter().take(RANGES_MAX).map(bytes).collect(),
            records: damage.attributes,
        }
    }

    /// Returns the finding as one line of text.
    #[must_use]
    pub fn line(&self) -> String {
        let ranges: Vec<String> =
            self.ranges.iter().map(|range| format!("{} at {}", range.length, range.offset)).collect();
        let listed: u64 = self.ranges.iter().map(|range| range.length).sum();
        let rest = self.bytes.saturating_sub(listed);
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

/// An object that could not be read completely.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct UnreadObject {
    /// Identifier of the object.
    pub object: String,
    /// Offset of the first byte that was not read.
    pub at: u64,
    /// Why it was not read.
    pub error: String,
}

/// State of the scrub of a device.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ScrubReport {
    /// Name of the device.
    pub device: String,
    /// Whether a pass is running.
    pub running: bool,
    /// Start of the pass, milliseconds since 1970.
    pub began_ms: u64,
    /// End of the last complete pass, milliseconds since 1970.
    pub ended_ms: u64,
    /// Verified objects of the pass.
    pub objects: u64,
    /// Objects of the device.
    pub objects_total: u64,
    /// Verified bytes of the pass.
    pub bytes: u64,
    /// Bytes of the device.
    pub bytes_total: u64,
    /// Objects that this pass could not read completely.
    #[serde(default)]
    pub unread: u64,
    /// The first of them since the start of the device, with the error.
    #[serde(default)]
    pub unread_objects: Vec<UnreadObject>,
    /// Missing digests that this pass computed.
    #[serde(default)]
    pub digested: u64,
    /// Known damaged objects; a lower bound if `more` is set.
    pub damaged: u64,
    /// Whether more objects are damaged than `findings` has.
    pub more: bool,
    /// Damaged objects.
    pub findings: Vec<DamageReport>,
}

/// The scrub thread; dropping it stops the thread.
pub(crate) struct Scrubber {
    name: String,
    unit: Arc<OsdUnit>,
    shared: Arc<ScrubSignals>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct ScrubSignals {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    ended: bool,
    /// A request arrived: the thread wakes up.
    requested: bool,
}

impl ScrubSignals {
    /// Waits. Returns false if the thread must end.
    fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.ended && !state.requested {
            self.changed.wait_for(&mut state, time);
        }
        state.requested = false;
        !state.ended
    }

    /// Whether the thread must end.
    fn is_over(&self) -> bool {
        self.state.lock().ended
    }

    fn signal(&self, change: impl FnOnce(&mut SignalState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

impl Scrubber {
    pub(crate) fn start(name: String, unit: Arc<OsdUnit>, settings: ScrubSettings) -> Outcome<Self> {
        let shared = Arc::new(ScrubSignals::default());
        let (for_thread, of_thread) = (Arc::clone(&unit), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("scrub".into())
            .spawn(move || scrub(&for_thread, &of_thread, settings))?;
        Ok(Self { name, unit, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Executes an action and returns the state.
    pub(crate) fn perform(&self, action: ScrubAction) -> Outcome<ScrubReport> {
        let done = match action {
            ScrubAction::Begin => self.unit.scrub_begin(),
            ScrubAction::Stop => self.unit.scrub_stop(),
            ScrubAction::Show => Ok(()),
        };
        done.map_err(|error| Failure::operation(chain(&error)))?;
        self.shared.signal(|signals| signals.requested = true);
        let state = self.unit.scrub_state();
        let findings = self.unit.damaged();
        Ok(ScrubReport {
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
                .map(|one| UnreadObject { object: one.id.to_string(), at: one.at, error: one.error })
                .collect(),
            digested: state.digested,
            damaged: state.damaged,
            more: state.more_damaged || findings.len() > FINDINGS_MAX,
            findings: findings
                .iter()
                .take(FINDINGS_MAX)
                .map(|(id, damage)| DamageReport::new(*id, damage))
                .collect(),
        })
    }

    /// Adds the metrics of the scrub.
    pub(crate) fn observe(&self, page: &mut Page) {
        let state = self.unit.scrub_state();
        let labels = [("device", self.name.as_str())];
        let mut one =
            |kind, name: &str, help: &str, value| page.family(kind, name, help, [(&labels[..], value)]);
        let (gauge, counter) = (MetricKind::Gauge, MetricKind::Counter);
        one(gauge, "sealstone_osd_damaged_objects", "Objects known to be damaged.", state.damaged);
        one(gauge, "sealstone_osd_scrub_running", "1 while a scrub is running.", state.running.into());
        one(gauge, "sealstone_osd_scrub_objects", "Objects read by this pass.", state.objects);
        one(gauge, "sealstone_osd_scrub_objects_expected", "Objects of the device.", state.objects_total);
        one(gauge, "sealstone_osd_scrub_bytes", "Bytes read by this pass.", state.bytes);
        one(
            gauge,
            "sealstone_osd_scrub_unread_objects",
            "Objects that this or the last pass could not read completely.",
            state.unread,
        );
        one(
            counter,
            "sealstone_osd_scrub_digests_total",
            "Missing digests that scrubs computed.",
            state.digested_since_start,
        );
        one(
            gauge,
            "sealstone_osd_scrub_ended_seconds",
            "End of the last pass, seconds since 1970; 0: never.",
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

    /// Stops the thread; returns when its current step is done.
    pub(crate) fn end(&self) {
        self.shared.signal(|signals| signals.ended = true);
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        self.end();
    }
}

fn scrub(unit: &OsdUnit, shared: &ScrubSignals, settings: ScrubSettings) {
    let started = Instant::now();
    let mut pace = ScrubPace { bytes_per_s: settings.bytes_per_s.max(1), due: started };
    let mut commands = CommandActivity { unit, last: 0, changed: started };
    let mut complained = false;
    // A step that is slower than the rate does not wait.
    while !shared.is_over() {
        let continues = match unit.scrub_step() {
            Ok(ScrubStep::Worked { bytes }) => {
                complained = false;
                let wait = pace.after(bytes.max(STEP_BYTES_MIN), Instant::now());
                (wait < WAIT_MIN || shared.wait(wait)) && commands.wait_until_idle(shared)
            }
            Ok(ScrubStep::Ended) => shared.wait(Duration::ZERO),
            Ok(ScrubStep::Idle) => {
                if is_due(&unit.scrub_state(), settings.interval, started)
                    && let Err(error) = unit.scrub_begin()
                {
                    tracing::error!(%error, "cannot start a scrub");
                }
                shared.wait(IDLE_INTERVAL)
            }
            Err(error) => {
                if !complained {
                    complained = true;
                    tracing::error!(error = chain(&error), "scrub step failed; retrying");
                }
                shared.wait(FAILURE_PAUSE)
            }
        };
        if !continues {
            return;
        }
    }
}

fn is_due(state: &ScrubState, interval: Option<Duration>, started: Instant) -> bool {
    let Some(interval) = interval else { return false };
    if state.running || started.elapsed() < FIRST_AFTER {
        return false;
    }
    // A clock that was set back must not delay the pass forever.
    let since = now_ms().checked_sub(state.began_ms).map(Duration::from_millis);
    since.is_none_or(|since| since >= interval)
}

/// Rate limit of steps.
struct ScrubPace {
    bytes_per_s: u64,
    due: Instant,
}

impl ScrubPace {
    /// Returns the wait after a step of this many bytes. Unused time is not carried over.
    fn after(&mut self, bytes: u64, now: Instant) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(IDLE_WAIT_MAX * 60);
        self.due = self.due.max(now.checked_sub(cost).unwrap_or(now)) + cost;
        self.due.saturating_duration_since(now)
    }
}

/// Detects whether the device executes commands.
struct CommandActivity<'a> {
    unit: &'a OsdUnit,
    last: u64,
    changed: Instant,
}

impl CommandActivity<'_> {
    /// Waits until the device is idle, at most [`IDLE_WAIT_MAX`]. Returns false if the thread must
    /// end.
    fn wait_until_idle(&mut self, shared: &ScrubSignals) -> bool {
        let until = Instant::now() + IDLE_WAIT_MAX;
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

    /// A pass takes as long as its bytes at the rate, whatever the size of its steps.
    #[test]
    fn pace_follows_rate_without_saving_idle_time() {
        let start = Instant::now();
        for step in [4096, 65_536, 1 << 20] {
            let mut pace = ScrubPace { bytes_per_s: 32 << 20, due: start };
            let mut now = start;
            for _ in 0..(32 << 20) / step {
                now += pace.after(step, now);
            }
            let took = now - start;
            assert!(took > Duration::from_millis(950) && took < Duration::from_millis(1050), "{took:?}");
            // After an idle hour the next steps wait as before.
            now += Duration::from_secs(3600);
            pace.after(step, now);
            assert!(pace.after(step, now) >= Duration::from_micros(100));
        }
    }

    #[test]
    fn pass_is_due_after_interval() {
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

    #[test]
    fn finding_is_one_line() {
        let ranges: Vec<_> =
            (0..100).map(|n| sealstone_osd_device::Range { offset: n * 8192, length: 4096 }).collect();
        let found = DamageReport::new(ObjectId::new(0x10000, 0x10001), &Damage { ranges, attributes: true });
        assert_eq!((found.ranges.len(), found.bytes), (RANGES_MAX, 409_600));
        let line = found.line();
        assert!(line.starts_with("0x10000/0x10001: bytes damaged: 4096 at 0, 4096 at 8192, "), "{line}");
        assert!(line.ends_with(", and 344064 more; records or attributes damaged"), "{line}");
    }
}
