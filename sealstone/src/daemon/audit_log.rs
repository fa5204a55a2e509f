//! Audit log of a daemon: one JSON object per line in `audit.jsonl` of the daemon's folder.
//!
//! Does: formats on the caller's thread, writes on its own thread, rotates, and reopens a file that
//! was renamed.
//! Contract: a line has at most 4 KiB; longer texts are truncated, with length and digest. Each
//! record of a principal is a line, in order, within its share (`audit_shares`). Records about
//! unauthenticated peers are rate limited (`audit_rate_limit`). All other records are in the
//! `count` of a line. The files are bounded, and a principal cannot displace records of others
//! (`audit_file`). If the queue of [`QUEUE_RECORDS_MAX`] is full, the caller waits. Records that
//! the disk refuses are counted durably; the next line has the count.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_block::{LossSink, LostWrites};
use sealstone_function_service::{RunRecord, RunRecorder};
use sealstone_iscsi_target::{RefusalRecord, RefusalSink};
use sealstone_osd::function::ExitReason;
use sealstone_osd_device::audit::{AuditRecord, AuditSink, AuditVerdict};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::audit_file::{AuditFile, LostRecords};
use super::audit_rate_limit::{AuditRateLimit, LogLine, Overflow, RecordKind};
use super::audit_shares::{AuditShares, RecordSubject};
use super::now_ms;
use crate::failure::{Failure, Outcome};
use crate::text::{ShownPath as _, printable_json};

/// Capacity of the queue to the writer, records of at most 4 KiB.
const QUEUE_RECORDS_MAX: usize = 4096;

/// Maximum length of a line, bytes: two texts of [`TEXT_BYTES_MAX`] with each byte escaped, and the
/// rest.
#[cfg(test)]
const LINE_BYTES_MAX: usize = 4096;

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
fn bounded(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let kept = (0..=TEXT_BYTES_KEPT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let digest: String = Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Cow::Owned(format!("{}... ({} bytes, sha256 {digest})", &text[..kept], text.len()))
}

/// Number of hexadecimal digits of the session at the start of a principal.
pub(super) const SESSION_DIGITS: usize = 32;

/// A line of a device's log about a command.
#[derive(Serialize)]
struct CommandLine<'a> {
    time_ms: u64,
    principal: &'a str,
    nexus: u64,
    initiator: &'a str,
    action: &'a str,
    object: String,
    verdict: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sense: Option<String>,
}

/// A line of a device's log about a run of a function. Arguments are never in it.
#[derive(Serialize)]
struct FunctionLine<'a> {
    time_ms: u64,
    principal: &'a str,
    initiator: &'a str,
    action: &'a str,
    object: String,
    job: String,
    digest: String,
    objects: Vec<String>,
    verdict: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    error: i32,
    bytes_in: u64,
    bytes_out: u64,
    calls: u64,
    denials: u64,
    cpu_us: u64,
    wall_us: u64,
}

/// A line of a device's log about a refused login or connection.
#[derive(Serialize)]
struct RefusedPeerLine<'a> {
    time_ms: u64,
    source: &'a str,
    initiator: &'a str,
    action: &'a str,
    verdict: &'a str,
    reason: &'a str,
}

/// A line of a device's log about writes to a block unit that may be lost.
#[derive(Serialize)]
struct LostWritesLine<'a> {
    time_ms: u64,
    nexus: u64,
    initiator: &'a str,
    action: &'a str,
    unit: &'a str,
    lun: u16,
    verdict: &'a str,
    reason: &'a str,
}

/// A line of a metadata server's log about a request.
#[derive(Serialize)]
struct RequestLine<'a> {
    time_ms: u64,
    user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    verdict: &'a str,
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
    shares: Mutex<AuditShares>,
    opened: Instant,
}

impl CountedRecords {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn flush(&self, all: bool) -> Vec<Vec<u8>> {
        let lines = self.unauthenticated.lock().flush(all, self.now_ms());
        let summaries = self.shares.lock().flush(all, self.now_ms());
        let summaries = summaries.into_iter().map(|(line, count)| LogLine::Last(line, count));
        lines.into_iter().chain(summaries).map(encode).collect()
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
pub(crate) struct AuditState {
    failing: AtomicBool,
    records: AtomicU64,
    suppressed: AtomicU64,
    lost: AtomicU64,
}

impl AuditState {
    /// Whether the last write failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Returns the number of lines written since the start.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns the number of records since the start that are in the count of another line, by the
    /// share of their principal.
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed.load(Ordering::Relaxed)
    }

    /// Returns the number of records that the disk refused since the start, or before it without a
    /// report.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// An open log. Dropping it writes all queued records.
pub(crate) struct AuditLog {
    queue: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    state: Arc<AuditState>,
    counted: Arc<CountedRecords>,
}

impl AuditLog {
    /// Opens or creates the log (0600). All its files have `bytes_max` bytes together, and one
    /// segment more.
    pub(crate) fn open(path: &Path, bytes_max: u64) -> Outcome<Self> {
        let file = AuditFile::open(path, bytes_max).map_err(|error| {
            Failure::operation(&error).at(path.shown()).medium_hint(&error, path.parent().unwrap_or(path))
        })?;
        let (queue, lines) = sync_channel(QUEUE_RECORDS_MAX);
        let state = Arc::new(AuditState::default());
        state.lost.store(file.lost().count, Ordering::Relaxed);
        let (unauthenticated, shares) = (Mutex::default(), Mutex::default());
        let counted = Arc::new(CountedRecords { unauthenticated, shares, opened: Instant::now() });
        let for_writer = (Arc::clone(&state), Arc::clone(&counted));
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_all(file, &lines, &for_writer.0, &for_writer.1))
            .map_err(Failure::from)?;
        Ok(Self { queue: Some(queue), writer: Some(writer), state, counted })
    }

    pub(crate) fn state(&self) -> Arc<AuditState> {
        Arc::clone(&self.state)
    }

    /// Records `count` responses of a time server that is `ahead_ms` ahead of this clock, and the
    /// verdict on them.
    pub(crate) fn time(
        &self,
        (time_ms, source): (u64, &str),
        verdict: &str,
        reason: Option<&str>,
        ahead_ms: Option<i64>,
        count: u64,
    ) {
        self.write(&ClockLine { time_ms, source, action: "TIME", verdict, reason, ahead_ms, count });
    }

    fn write(&self, record: &impl Serialize) {
        self.send(to_line(record));
    }

    /// Writes or counts a record about an authenticated principal.
    fn record_principal(&self, about: RecordSubject<'_>, record: &impl Serialize) {
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
    fn record_unauthenticated(&self, kind: RecordKind, record: &impl Serialize, count: u64) {
        let line =
            self.counted.unauthenticated.lock().add(kind, to_line(record), count, self.counted.now_ms());
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

impl sealstone_mds::audit::AuditSink for AuditLog {
    fn record(&self, record: &sealstone_mds::audit::AuditRecord<'_>) {
        let hex = |id: &[u8; 16]| id.iter().map(|byte| format!("{byte:02x}")).collect();
        let source = record.source.map(|source| source.to_string());
        let (user, subject) = (bounded(record.user), record.subject.map(bounded));
        let decision = RequestLine {
            time_ms: record.time_ms,
            user: &user,
            session: record.session.map(hex),
            source: source.clone(),
            action: record.action,
            subject: subject.as_deref(),
            verdict: record.verdict,
        };
        if record.proven {
            // An ended session has no user: its number is the principal.
            let session = decision.session.as_deref().unwrap_or_default();
            let owner = if record.user.is_empty() { session } else { record.user };
            let is_done = record.verdict == "ok";
            let about = RecordSubject { owner, action: record.action, verdict: record.verdict, is_done };
            return self.record_principal(about, &decision);
        }
        let (source, action) = (source.unwrap_or_default(), record.action.to_owned());
        self.record_unauthenticated(
            RecordKind { source, action, verdict: record.verdict.to_owned() },
            &decision,
            1,
        );
    }
}

impl AuditSink for AuditLog {
    fn record(&self, record: &AuditRecord<'_>) {
        let (principal, initiator) = (record.principal.to_string(), bounded(record.initiator));
        let command = CommandLine {
            time_ms: record.time_ms,
            principal: &principal,
            nexus: record.nexus.0,
            initiator: &initiator,
            action: record.action,
            object: record.object.to_string(),
            verdict: record.verdict.name(),
            reason: record.verdict.reason(),
            sense: record.sense.map(|(key, code, qualifier)| format!("{key:X}/{code:02X}/{qualifier:02X}")),
        };
        let reason = record.verdict.reason().unwrap_or_else(|| record.verdict.name());
        if record.proven {
            // The principals of a session differ in the number of the credential.
            let owner = principal.get(..SESSION_DIGITS).unwrap_or(&principal);
            let is_done = record.verdict == AuditVerdict::Done;
            return self.record_principal(
                RecordSubject { owner, action: record.action, verdict: reason, is_done },
                &command,
            );
        }
        let (source, action) = (record.initiator.to_owned(), record.action.to_owned());
        self.record_unauthenticated(RecordKind { source, action, verdict: reason.to_owned() }, &command, 1);
    }
}

impl RunRecorder for AuditLog {
    fn record_run(&self, record: &RunRecord<'_>) {
        let (principal, initiator) = (record.principal.to_string(), bounded(record.initiator));
        let done = record.exit == ExitReason::Success;
        let run = FunctionLine {
            time_ms: record.time_ms,
            principal: &principal,
            initiator: &initiator,
            action: "RUN FUNCTION",
            object: record.function.to_string(),
            job: record.job.to_string(),
            digest: record.digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            objects: record.objects.iter().map(ToString::to_string).collect(),
            verdict: if done { "done" } else { "failed" },
            reason: (!done).then(|| record.exit.name()),
            error: record.error,
            bytes_in: record.usage.bytes_read,
            bytes_out: record.usage.bytes_written,
            calls: record.usage.calls,
            denials: record.denials,
            cpu_us: record.usage.cpu_us,
            wall_us: record.usage.wall_us,
        };
        let owner = principal.get(..SESSION_DIGITS).unwrap_or(&principal);
        let verdict = record.exit.name();
        self.record_principal(RecordSubject { owner, action: run.action, verdict, is_done: done }, &run);
    }
}

impl LossSink for AuditLog {
    fn record(&self, lost: &LostWrites<'_>) {
        self.write(&LostWritesLine {
            time_ms: now_ms(),
            nexus: lost.nexus.0,
            initiator: &bounded(lost.initiator),
            action: "SYNCHRONIZE CACHE",
            unit: lost.unit,
            lun: lost.lun,
            verdict: "failed",
            reason: "writes_lost",
        });
    }
}

impl RefusalSink for AuditLog {
    fn refused(&self, refused: &RefusalRecord<'_>) {
        let initiator = bounded(refused.initiator);
        let refusal = RefusedPeerLine {
            time_ms: now_ms(),
            source: refused.source,
            initiator: &initiator,
            action: refused.action,
            verdict: "refused",
            reason: refused.reason,
        };
        let (source, action) = (refused.source.to_owned(), refused.action.to_owned());
        self.record_unauthenticated(
            RecordKind { source, action, verdict: refused.reason.to_owned() },
            &refusal,
            refused.count,
        );
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use sealstone_osd::ObjectId;
    use sealstone_osd_device::audit::Principal;
    use sealstone_scsi::lu::NexusId;

    #[test]
    fn renamed_log_is_reopened_without_loss() {
        use sealstone_mds::audit::AuditSink;
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path, u64::MAX).expect("opened");
        let record = |user: &str| {
            let record = sealstone_mds::audit::AuditRecord {
                time_ms: 1,
                user,
                session: Some(&[0xAB; 16]),
                proven: true,
                source: None,
                action: "login",
                subject: None,
                verdict: "ok",
            };
            AuditSink::record(&log, &record);
        };
        record("before");
        std::thread::sleep(Duration::from_millis(100));
        let moved = folder.path().join("audit.jsonl.1");
        fs::rename(&path, &moved).expect("renamed");
        std::thread::sleep(CHECK_INTERVAL);
        record("after");
        drop(log);
        let text = |path: &Path| fs::read_to_string(path).expect("readable");
        assert!(text(&moved).contains("before") && !text(&moved).contains("after"));
        assert!(text(&path).contains("\"user\":\"after\",\"session\":\"abababab"), "{}", text(&path));
        assert_eq!(fs::metadata(&path).expect("exists").mode() & 0o777, 0o600);
    }

    /// Refusals of unauthenticated peers are counted in few lines; records of principals keep a
    /// line each.
    #[test]
    fn unauthenticated_flood_leaves_records_of_principals() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path, u64::MAX).expect("opened");
        let flood = 30_000u32;
        for n in 0..flood {
            let name = format!("guess{n}");
            let source = std::net::Ipv4Addr::from(0x0A00_0000 + (n % 5000) * 256);
            let decision = sealstone_mds::audit::AuditRecord {
                time_ms: u64::from(n),
                user: &name,
                session: None,
                proven: false,
                source: Some(std::net::IpAddr::from(source).into()),
                action: "login",
                subject: None,
                verdict: "refused",
            };
            sealstone_mds::audit::AuditSink::record(&log, &decision);
            AuditSink::record(
                &log,
                &AuditRecord {
                    time_ms: u64::from(n),
                    principal: Principal([7; 20]),
                    proven: n % 100 == 0,
                    nexus: NexusId(1),
                    initiator: "iqn.2026-11.org.example:known",
                    action: "WRITE",
                    object: ObjectId::new(0x10000, 0x10001),
                    verdict: AuditVerdict::Refused("permission"),
                    sense: None,
                },
            );
        }
        drop(log);
        let text = fs::read_to_string(&path).expect("readable");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let count = |line: &serde_json::Value| line.get("count").map_or(1, |count| count.as_u64().unwrap());
        let of = |action: &str| lines.iter().filter(|line| line["action"] == action).map(count).sum::<u64>();
        assert_eq!((of("login"), of("WRITE")), (u64::from(flood), u64::from(flood)));
        let precise = lines.iter().filter(|line| line["action"] == "WRITE" && line.get("count").is_none());
        assert!(precise.count() >= flood as usize / 100);
        assert!(lines.len() < flood as usize / 100 + 1_000, "{} lines", lines.len());
        let of_others = |action: &str, verdict: &str| {
            lines.iter().any(|line| {
                line["source"] == "others" && line["action"] == action && line["verdict"] == verdict
            })
        };
        assert!(of_others("login", "refused"), "the sources exceed the limit");
    }

    #[test]
    fn records_are_lines_in_order() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path, u64::MAX).expect("opened");
        for index in 0..10_000 {
            AuditSink::record(
                &log,
                &AuditRecord {
                    time_ms: index,
                    principal: Principal([7; 20]),
                    proven: true,
                    nexus: NexusId(1),
                    initiator: "iqn.2026-11.org.example:\"quoted\"",
                    action: "WRITE",
                    object: ObjectId::new(0x10000, 0x10001),
                    verdict: AuditVerdict::Done,
                    sense: Some((5, 0x24, 6)),
                },
            );
        }
        drop(log);
        let text = fs::read_to_string(&path).expect("readable");
        assert_eq!(text.lines().count(), 10_000);
        for (index, line) in text.lines().enumerate() {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(value["time_ms"], index);
            assert_eq!(value["sense"], "5/24/06");
        }
    }

    /// Long texts are truncated and remain distinct.
    #[test]
    fn line_length_is_bounded() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path, u64::MAX).expect("opened");
        let subjects = ["\u{1}".repeat(3800), "\u{1}".repeat(3801), "\u{10FFFF}".repeat(900)];
        for subject in &subjects {
            let record = sealstone_mds::audit::AuditRecord {
                time_ms: 1,
                user: "eve",
                session: Some(&[0xAB; 16]),
                proven: true,
                source: None,
                action: "Remove",
                subject: Some(subject),
                verdict: "NotFound",
            };
            sealstone_mds::audit::AuditSink::record(&log, &record);
        }
        drop(log);
        let text = fs::read_to_string(&path).expect("readable");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() < LINE_BYTES_MAX));
        assert!(lines[0].contains("(3800 bytes, sha256 ") && lines[0] != lines[1], "{}", lines[0]);
    }

    #[test]
    fn flood_of_one_user_is_counted() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path, u64::MAX).expect("opened");
        let state = log.state();
        let flood = 50_000u64;
        for n in 0..flood {
            let user = if n % 1000 == 0 { "alice" } else { "eve" };
            let record = sealstone_mds::audit::AuditRecord {
                time_ms: n,
                user,
                session: None,
                proven: true,
                source: None,
                action: "Remove",
                subject: Some("/x"),
                verdict: "Denied",
            };
            sealstone_mds::audit::AuditSink::record(&log, &record);
        }
        drop(log);
        let text = fs::read_to_string(&path).expect("readable");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let of = |user: &str| lines.iter().filter(|line| line["user"] == user).count();
        assert_eq!(of("alice"), 50);
        assert!(of("eve") < 1_100, "{}", of("eve"));
        let counted: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
        assert_eq!(counted, flood);
        assert!(state.suppressed() > flood / 2 && state.lost() == 0);
    }
}
