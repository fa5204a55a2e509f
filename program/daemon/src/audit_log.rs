//! Audit log of a daemon: one JSON object per line in `audit.jsonl` of the daemon's folder.
//!
//! Does: formats on the caller's thread, writes on its own thread, rotates, and reopens a file that
//! was renamed.
//! Contract: a line has at most 4 KiB; longer texts are truncated, with length and digest. Each
//! record of a principal is a line, in order, within its share (`audit_shares`). Records about
//! unauthenticated peers are rate limited (`audit_rate_limit`). So are integrity failures, under a
//! limit of their own. All other records are in the `count` of a line. The files are bounded, and a
//! principal cannot displace records of others (`audit_file`). If the queue of
//! [`QUEUE_RECORDS_MAX`] is full, the caller waits. Records that the disk refuses are counted
//! durably; the next line has the count.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_failure::text::{ShownPath as _, hex, printable_json};
use sealstone_failure::{Failure, Outcome};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::audit_file::{AuditFile, LostRecords};
use crate::audit_rate_limit::{AuditRateLimit, LogLine, Overflow, RecordKind};
use crate::audit_shares::{AuditShares, RecordSubject};
use crate::machine::now_ms;

/// The audit log's name in a daemon's folder.
pub const AUDIT_FILE: &str = "audit.jsonl";

/// Capacity of the queue to the writer, records of at most 4 KiB.
const QUEUE_RECORDS_MAX: usize = 4096;

/// Maximum length of a text from a client, such as a path, bytes; a longer one is truncated.
const TEXT_BYTES_MAX: usize = 256;
/// Bytes that remain of a truncated text, before its length and digest.
const TEXT_BYTES_KEPT: usize = 192;

/// Pause of the writer after each write. Records in this time need no wake-up, which costs more
/// than the record itself.
const WRITER_PAUSE: Duration = Duration::from_millis(1);

/// Interval at which the writer checks for a renamed file and writes pending counts.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Truncates a long text, and appends its length and a digest.
#[must_use]
pub fn truncate_text(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let kept = (0..=TEXT_BYTES_KEPT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let digest = hex(&Sha256::digest(text)[..8]);
    Cow::Owned(format!("{}... ({} bytes, sha256 {digest})", &text[..kept], text.len()))
}

/// A line about a time server: its time, and whether the clock follows it.
#[derive(Serialize)]
struct ClockLine<'a> {
    time_ms: u64,
    source: &'a str,
    action: &'a str,
    verdict: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead_ms: Option<i64>,
    count: u64,
}

/// A line about the overflow of the rate limit.
#[derive(Serialize)]
struct OverflowLine<'a> {
    time_ms: u64,
    source: &'a str,
    action: &'a str,
    verdict: &'a str,
    count: u64,
}

/// A line about records that the disk refused.
#[derive(Serialize)]
struct LostLine {
    time_ms: u64,
    action: &'static str,
    verdict: &'static str,
    count: u64,
    since_ms: u64,
    until_ms: u64,
}

/// Counted records that are not written yet. Time is measured from the opening of the log, on a
/// monotonic clock.
struct CountedRecords {
    unauthenticated: Mutex<AuditRateLimit>,
    integrity: Mutex<AuditRateLimit>,
    shares: Mutex<AuditShares>,
    opened: Instant,
}

impl CountedRecords {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn flush(&self, all: bool) -> Vec<Vec<u8>> {
        let lines = self.unauthenticated.lock().flush(all, self.now_ms());
        let integrity = self.integrity.lock().flush(all, self.now_ms());
        let lines = lines.into_iter().chain(integrity);
        let summaries = self.shares.lock().flush(all, self.now_ms());
        let summaries = summaries.into_iter().map(|(line, count)| LogLine::Last(line, count));
        lines.chain(summaries).map(encode).collect()
    }
}

/// Returns the bytes of a line.
fn encode(line: LogLine) -> Vec<u8> {
    match line {
        LogLine::Last(line, 1) => line,
        LogLine::Last(mut line, count) => {
            // The count goes before the closing brace.
            line.truncate(line.len().saturating_sub(2));
            line.extend_from_slice(format!(",\"count\":{count}}}\n").as_bytes());
            line
        }
        LogLine::Overflow(Overflow { action, verdict, count }) => {
            let other = |word: String| if word.is_empty() { "others".to_owned() } else { word };
            let (action, verdict) = (other(action), other(verdict));
            let (time_ms, source) = (now_ms(), "others");
            to_line(&OverflowLine { time_ms, source, action: &action, verdict: &verdict, count })
        }
    }
}

fn to_line(record: &impl Serialize) -> Vec<u8> {
    let mut text = printable_json(serde_json::to_string(record).expect("strings and numbers serialise"));
    text.push('\n');
    text.into_bytes()
}

/// Metrics of the log.
#[derive(Debug, Default)]
pub struct AuditState {
    failing: AtomicBool,
    records: AtomicU64,
    suppressed: AtomicU64,
    lost: AtomicU64,
}

impl AuditState {
    /// Whether the last write failed.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Returns the number of lines written since the start.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns the number of records since the start that are in the count of another line, by the
    /// share of their principal.
    pub fn suppressed(&self) -> u64 {
        self.suppressed.load(Ordering::Relaxed)
    }

    /// Returns the number of records that the disk refused since the start, or before it without a
    /// report.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// An open log. Dropping it writes all queued records.
pub struct AuditLog {
    queue: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    state: Arc<AuditState>,
    counted: Arc<CountedRecords>,
}

impl AuditLog {
    /// Opens or creates the log (0600). All its files have `bytes_max` bytes together, and one
    /// segment more.
    pub fn open(path: &Path, bytes_max: u64) -> Outcome<Self> {
        let file = AuditFile::open(path, bytes_max).map_err(|error| {
            Failure::operation(&error).at(path.shown()).medium_hint(&error, path.parent().unwrap_or(path))
        })?;
        let (queue, lines) = sync_channel(QUEUE_RECORDS_MAX);
        let state = Arc::new(AuditState::default());
        state.lost.store(file.lost().count, Ordering::Relaxed);
        let (unauthenticated, integrity, shares) = (Mutex::default(), Mutex::default(), Mutex::default());
        let counted = Arc::new(CountedRecords { unauthenticated, integrity, shares, opened: Instant::now() });
        let for_writer = (Arc::clone(&state), Arc::clone(&counted));
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_all(file, &lines, &for_writer.0, &for_writer.1))
            .map_err(Failure::from)?;
        Ok(Self { queue: Some(queue), writer: Some(writer), state, counted })
    }

    /// Returns the counters of the log.
    #[must_use]
    pub fn state(&self) -> Arc<AuditState> {
        Arc::clone(&self.state)
    }

    /// Records `count` responses of a time server that is `ahead_ms` ahead of this clock, and the
    /// verdict on them.
    pub fn time(
        &self,
        (time_ms, source): (u64, &str),
        verdict: &str,
        reason: Option<&str>,
        ahead_ms: Option<i64>,
        count: u64,
    ) {
        self.write(&ClockLine { time_ms, source, action: "TIME", verdict, reason, ahead_ms, count });
    }

    /// Writes a record that has no share and no rate limit.
    pub fn write(&self, record: &impl Serialize) {
        self.send(to_line(record));
    }

    /// Writes or counts a record about an authenticated principal.
    pub fn record_principal(&self, about: RecordSubject<'_>, record: &impl Serialize) {
        let now_ms = self.counted.now_ms();
        let (line, suppressed) = {
            let mut shares = self.counted.shares.lock();
            (shares.add(about, to_line(record), now_ms), shares.suppressed())
        };
        match line {
            Some(line) => self.send(line),
            None => self.state.suppressed.store(suppressed, Ordering::Relaxed),
        }
    }

    /// Writes or counts a record about an unauthenticated peer.
    pub fn record_unauthenticated(&self, kind: RecordKind, record: &impl Serialize, count: u64) {
        self.record_limited(&self.counted.unauthenticated, kind, record, count);
    }

    /// Writes or counts a record about data that are damaged or not authentic. It has a rate limit
    /// of its own.
    pub fn record_integrity(&self, kind: RecordKind, record: &impl Serialize, count: u64) {
        self.record_limited(&self.counted.integrity, kind, record, count);
    }

    fn record_limited(
        &self,
        limit: &Mutex<AuditRateLimit>,
        kind: RecordKind,
        record: &impl Serialize,
        count: u64,
    ) {
        let line = limit.lock().add(kind, to_line(record), count, self.counted.now_ms());
        if let Some(line) = line {
            self.send(encode(line));
        }
    }

    fn send(&self, bytes: Vec<u8>) {
        if let Some(queue) = &self.queue {
            // The writer ends after this sender is dropped.
            let _ = queue.send(bytes);
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write_all(mut file: AuditFile, lines: &Receiver<Vec<u8>>, state: &AuditState, counted: &CountedRecords) {
    let mut looked = Instant::now();
    let mut is_open = true;
    if file.lost().count > 0 {
        let LostRecords { count, since_ms, until_ms } = file.lost();
        tracing::error!(count, since_ms, until_ms, "audit records were lost before this start");
    }
    while is_open {
        let first = match lines.recv_timeout(CHECK_INTERVAL) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                is_open = false;
                None
            }
        };
        let mut late = Vec::new();
        if looked.elapsed() >= CHECK_INTERVAL || !is_open {
            looked = Instant::now();
            late = counted.flush(!is_open);
            file.follow_name();
        }
        if first.is_none() && late.is_empty() && file.lost().count == 0 {
            continue;
        }
        // All queued records go into one write.
        let (mut bytes, mut count) = (Vec::new(), 0);
        for line in first.into_iter().chain(lines.try_iter()).chain(late) {
            bytes.extend_from_slice(&line);
            count += 1;
        }
        let report = |lost: LostRecords| {
            let LostRecords { count, since_ms, until_ms } = lost;
            let time_ms = now_ms();
            to_line(&LostLine { time_ms, action: "audit", verdict: "lost", count, since_ms, until_ms })
        };
        match file.write(&bytes, count, now_ms(), report) {
            Ok(()) => {
                state.failing.store(false, Ordering::Relaxed);
                state.records.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                state.lost.fetch_add(count, Ordering::Relaxed);
                if !state.failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, "cannot write the audit log; records are lost and counted");
                }
            }
        }
        std::thread::sleep(WRITER_PAUSE);
    }
}
