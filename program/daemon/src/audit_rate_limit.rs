//! Rate limit of audit records about unauthenticated peers, and of those about integrity failures.
//!
//! Does: writes the first records of a kind (source, action, verdict) at once, and counts the rest
//! in one later line.
//! Does not: format lines or read clocks; `audit_log` does.
//! Contract: at most a burst of [`LINES_AT_ONCE`] lines, then one per second, and [`OTHERS_MAX`]
//! per minute for the overflow. Each record is in the `count` of one line. Memory is bounded by
//! [`KINDS_MAX`] and [`OTHERS_MAX`].

use std::collections::HashMap;
use std::mem;

/// Interval between two lines of a kind, ms.
const EVERY_MS: u64 = 10_000;
/// Number of records of a kind that get a line each, for example mistyped passwords.
const UNCOUNTED_MAX: u32 = 4;
/// Maximum number of kinds that are counted separately.
const KINDS_MAX: usize = 1024;
/// Burst size of the line budget.
const LINES_AT_ONCE: u64 = 256;
/// Interval at which the line budget grows by one, ms.
const LINE_EVERY_MS: u64 = 1_000;
/// Interval between two overflow lines, ms.
const OTHERS_EVERY_MS: u64 = 60_000;
/// Maximum number of overflow counters.
const OTHERS_MAX: usize = 64;

/// Key by which records are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordKind {
    /// Address of the peer, the name that it claims, or a block unit.
    pub source: String,
    /// The attempted action.
    pub action: String,
    /// Its result.
    pub verdict: String,
}

struct KindState {
    since_ms: u64,
    /// Records that got a line each.
    uncounted: u32,
    /// Records since then.
    count: u64,
    /// The last record.
    line: Vec<u8>,
}

/// Records of kinds beyond [`KINDS_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overflow {
    /// The attempted action; empty if the records differ in it.
    pub(crate) action: String,
    /// Its result; empty if the records differ in it.
    pub(crate) verdict: String,
    /// Number of records.
    pub(crate) count: u64,
}

/// A line to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogLine {
    /// The last record of a kind, and the number of records that it represents.
    Last(Vec<u8>, u64),
    /// A counter of the overflow.
    Overflow(Overflow),
}

/// Records that are not written yet, and the line budget.
pub(crate) struct AuditRateLimit {
    kinds: HashMap<RecordKind, KindState>,
    others: HashMap<(String, String), (u64, u64)>,
    lines: u64,
    refilled_ms: u64,
}

impl Default for AuditRateLimit {
    fn default() -> Self {
        Self { kinds: HashMap::new(), others: HashMap::new(), lines: LINES_AT_ONCE, refilled_ms: 0 }
    }
}

impl AuditRateLimit {
    /// Adds `count` records of a kind; `line` is the last of them. Returns a line to be written at
    /// once.
    pub(crate) fn add(
        &mut self,
        kind: RecordKind,
        line: Vec<u8>,
        count: u64,
        now_ms: u64,
    ) -> Option<LogLine> {
        let at_once = match self.kinds.get(&kind) {
            Some(known) => known.uncounted < UNCOUNTED_MAX && known.count == 0,
            None => self.kinds.len() < KINDS_MAX,
        };
        if at_once && self.take_line(now_ms) {
            let new = || KindState { since_ms: now_ms, uncounted: 0, count: 0, line: Vec::new() };
            self.kinds.entry(kind).or_insert_with(new).uncounted += 1;
            return Some(LogLine::Last(line, count));
        }
        match self.kinds.get_mut(&kind) {
            Some(known) => {
                known.count = known.count.saturating_add(count);
                known.line = line;
            }
            None => self.fold(kind.action, kind.verdict, count, now_ms),
        }
        None
    }

    /// Returns the lines that are due; with `all`, when the log closes, all of them.
    pub(crate) fn flush(&mut self, all: bool, now_ms: u64) -> Vec<LogLine> {
        let is_due = |since_ms: u64, every_ms: u64| all || now_ms.saturating_sub(since_ms) >= every_ms;
        let mut lines = Vec::new();
        let mut kinds = mem::take(&mut self.kinds);
        kinds.retain(|kind, pending| {
            if !is_due(pending.since_ms, EVERY_MS) {
                return true;
            }
            let (count, line) = (mem::take(&mut pending.count), mem::take(&mut pending.line));
            if count == 0 {
                return false;
            }
            if self.take_line(now_ms) {
                lines.push(LogLine::Last(line, count));
            } else {
                self.fold(kind.action.clone(), kind.verdict.clone(), count, now_ms);
            }
            // Further records of the kind wait for the next interval.
            (pending.since_ms, pending.uncounted) = (now_ms, UNCOUNTED_MAX);
            !all
        });
        self.kinds = kinds;
        self.others.retain(|(action, verdict), (since_ms, count)| {
            let due = is_due(*since_ms, OTHERS_EVERY_MS);
            if due {
                let (action, verdict) = (action.clone(), verdict.clone());
                lines.push(LogLine::Overflow(Overflow { action, verdict, count: *count }));
            }
            !due
        });
        lines
    }

    fn fold(&mut self, action: String, verdict: String, count: u64, now_ms: u64) {
        let mut key = (action, verdict);
        // The last counter is for all further actions and verdicts.
        if self.others.len() + 1 >= OTHERS_MAX && !self.others.contains_key(&key) {
            key = Default::default();
        }
        let (_, known) = self.others.entry(key).or_insert((now_ms, 0));
        *known = known.saturating_add(count);
    }

    fn take_line(&mut self, now_ms: u64) -> bool {
        let refill = now_ms.saturating_sub(self.refilled_ms) / LINE_EVERY_MS;
        self.lines = self.lines.saturating_add(refill).min(LINES_AT_ONCE);
        self.refilled_ms = self.refilled_ms.saturating_add(refill.saturating_mul(LINE_EVERY_MS));
        match self.lines.checked_sub(1) {
            Some(left) => {
                self.lines = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(source: &str, verdict: &str) -> RecordKind {
        RecordKind { source: source.to_owned(), action: "login".to_owned(), verdict: verdict.to_owned() }
    }

    fn count(lines: &[LogLine]) -> u64 {
        lines
            .iter()
            .map(|one| match one {
                LogLine::Last(_, count) | LogLine::Overflow(Overflow { count, .. }) => *count,
            })
            .sum()
    }

    #[test]
    fn first_records_get_lines_and_others_are_counted() {
        let mut limit = AuditRateLimit::default();
        for n in 1..=UNCOUNTED_MAX as u8 {
            let line = limit.add(kind("a", "refused"), vec![n], 1, 0);
            assert_eq!(line, Some(LogLine::Last(vec![n], 1)));
        }
        assert!(limit.add(kind("a", "abandoned"), b"x".to_vec(), 1, 0).is_some(), "another kind");
        for n in 2..=9u8 {
            assert_eq!(limit.add(kind("a", "refused"), vec![n], 1, 5), None);
        }
        assert_eq!(limit.flush(false, EVERY_MS - 1), []);
        assert_eq!(limit.flush(false, EVERY_MS), [LogLine::Last(vec![9], 8)]);
        assert_eq!(
            limit.add(kind("a", "refused"), vec![7], 1, EVERY_MS),
            None,
            "waits for the next interval"
        );
        assert_eq!(limit.flush(false, 2 * EVERY_MS), [LogLine::Last(vec![7], 1)]);
        assert_eq!(limit.flush(false, 3 * EVERY_MS), [], "no new records");
        assert!(limit.kinds.is_empty(), "an idle kind is removed");
        assert!(limit.add(kind("a", "refused"), b"2".to_vec(), 1, 3 * EVERY_MS).is_some());
    }

    #[test]
    fn flood_makes_few_lines_and_counts_all() {
        let (mut limit, mut counted, mut lines) = (AuditRateLimit::default(), 0, 0u64);
        let day_ms = 86_400_000u64;
        let records = 200_000u64;
        for n in 0..records {
            let now_ms = n * day_ms / records;
            let verdict = ["refused", "abandoned", "malformed"][(n % 3) as usize];
            let now = limit.add(kind(&n.to_string(), verdict), vec![0; 100], 1, now_ms);
            lines += u64::from(now.is_some());
            counted += now.map_or(0, |one| count(&[one]));
            if n % 3 == 0 {
                let flushed = limit.flush(false, now_ms);
                lines += flushed.len() as u64;
                counted += count(&flushed);
            }
            assert!(limit.kinds.len() <= KINDS_MAX && limit.others.len() <= OTHERS_MAX);
        }
        let last = limit.flush(true, day_ms);
        lines += last.len() as u64;
        counted += count(&last);
        assert_eq!(counted, records);
        let most =
            LINES_AT_ONCE + day_ms / LINE_EVERY_MS + OTHERS_MAX as u64 * (day_ms / OTHERS_EVERY_MS + 1);
        assert!(lines <= most, "{lines} lines, at most {most}");
    }

    #[test]
    fn kind_beyond_limit_is_in_overflow() {
        let mut limit = AuditRateLimit::default();
        let mut now_ms = 0;
        for n in 0..KINDS_MAX {
            now_ms += LINE_EVERY_MS;
            assert!(limit.add(kind(&n.to_string(), "refused"), Vec::new(), 1, now_ms).is_some());
        }
        assert_eq!(limit.add(kind("one more", "refused"), Vec::new(), 3, now_ms), None);
        let overflow = Overflow { action: "login".to_owned(), verdict: "refused".to_owned(), count: 3 };
        assert!(limit.flush(true, now_ms).contains(&LogLine::Overflow(overflow)));
    }

    #[test]
    fn line_beyond_burst_waits() {
        let mut limit = AuditRateLimit::default();
        let kind_of = |n: u64| kind(&n.to_string(), "refused");
        for n in 0..LINES_AT_ONCE {
            assert!(limit.add(kind_of(n), Vec::new(), 1, 0).is_some());
        }
        assert_eq!(limit.add(kind_of(LINES_AT_ONCE), Vec::new(), 1, 0), None);
        assert!(limit.add(kind_of(LINES_AT_ONCE + 1), Vec::new(), 1, LINE_EVERY_MS).is_some());
        assert_eq!(limit.flush(false, OTHERS_EVERY_MS).len(), 1, "the waiting record is in the overflow");
    }

    #[test]
    fn overflow_counters_are_bounded() {
        let mut limit = AuditRateLimit { lines: 0, ..AuditRateLimit::default() };
        for n in 0..3 * OTHERS_MAX {
            limit.add(kind("a", &n.to_string()), Vec::new(), 1, 0);
        }
        let lines = limit.flush(true, 0);
        assert_eq!((lines.len(), count(&lines)), (OTHERS_MAX, 3 * OTHERS_MAX as u64));
        let rest = lines
            .iter()
            .any(|one| matches!(one, LogLine::Overflow(one) if one.verdict.is_empty() && one.count > 1));
        assert!(rest, "{lines:?}");
    }
}
