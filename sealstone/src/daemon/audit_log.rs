//! The audit log of a daemon: one JSON object a line, appended to `audit.jsonl` in the daemon's folder.
//!
//! Does: format on the caller's thread, write on a thread of its own, notice that the file was moved away and begin a
//! new one. Does not: rotate; `logrotate`, or `mv`, does.
//! Contract: records about principals that are known are written one by one, in order; those about whoever has proven
//! nothing are put together (`strangers`). When the writer falls [`QUEUE_RECORDS_MAX`] behind, whoever records waits for
//! it: a record is never dropped while the daemon serves. A disk that refuses the log shows in `/healthz`.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_device::audit::{AuditRecord, AuditSink};
use sealstone_target::{Refused, Watcher};
use serde::Serialize;

use super::now_ms;
use super::osd::medium_hint;
use super::strangers::{Kind, Others, Strangers, Told};
use crate::failure::{Failure, Outcome};

/// Records under way between commands and the writer; about 300 bytes each.
const QUEUE_RECORDS_MAX: usize = 4096;

/// Rest of the writer after each write. Whoever records meanwhile need not wake it, which would cost a command more
/// than the record itself.
const REST: Duration = Duration::from_millis(1);

/// How often the writer looks whether the file still has its name, and what strangers did meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One line of a device's log.
#[derive(Serialize)]
struct Line<'a> {
    time_ms: u64,
    principal: String,
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

/// One line of a device's log about whoever was turned away before there was a command.
#[derive(Serialize)]
struct Turned<'a> {
    time_ms: u64,
    source: &'a str,
    initiator: &'a str,
    action: &'a str,
    verdict: &'a str,
    reason: &'a str,
}

/// One line of a metadata server's log.
#[derive(Serialize)]
struct Decision<'a> {
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

/// One line about a clock: what was said of the time, and whether it was believed.
#[derive(Serialize)]
struct Clock<'a> {
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

/// One line about strangers that there were no lines for.
#[derive(Serialize)]
struct Crowd<'a> {
    time_ms: u64,
    source: &'a str,
    action: &'a str,
    verdict: &'a str,
    count: u64,
}

/// Records of those who have proven nothing, and since when the log is open: clocks that are set do not disturb it.
struct Outside {
    strangers: Mutex<Strangers>,
    opened: Instant,
}

impl Outside {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn flush(&self, all: bool) -> Vec<Vec<u8>> {
        let told = self.strangers.lock().flush(all, self.now_ms());
        told.into_iter().map(written).collect()
    }
}

/// The line for it.
fn written(told: Told) -> Vec<u8> {
    match told {
        Told::Last(line, 1) => line,
        Told::Last(mut line, count) => {
            // An object without its last brace and line feed.
            line.truncate(line.len().saturating_sub(2));
            line.extend_from_slice(format!(",\"count\":{count}}}\n").as_bytes());
            line
        }
        Told::Others(Others { action, verdict, count }) => {
            let other = |word: String| if word.is_empty() { "others".to_owned() } else { word };
            let (action, verdict) = (other(action), other(verdict));
            let (time_ms, source) = (now_ms(), "others");
            line(&Crowd { time_ms, source, action: &action, verdict: &verdict, count })
        }
    }
}

fn line(of: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(of).expect("strings and numbers serialise");
    bytes.push(b'\n');
    bytes
}

/// What the log can say about itself.
#[derive(Debug, Default)]
pub(crate) struct AuditState {
    failing: AtomicBool,
    records: AtomicU64,
}

impl AuditState {
    /// Did the last write fail?
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Records written since the start.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }
}

/// The log, open. Dropping it writes what is still under way.
pub(crate) struct AuditLog {
    queue: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    state: Arc<AuditState>,
    outside: Arc<Outside>,
}

impl AuditLog {
    /// Opens or creates the log (0600).
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        let file = append(path).map_err(|error| {
            medium_hint(Failure::operation(&error).at(path.display()), &error, path.parent().unwrap_or(path))
        })?;
        let path = path.to_owned();
        let (queue, lines) = sync_channel(QUEUE_RECORDS_MAX);
        let state = Arc::new(AuditState::default());
        let outside = Arc::new(Outside { strangers: Mutex::default(), opened: Instant::now() });
        let for_writer = (Arc::clone(&state), Arc::clone(&outside));
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_all(&path, file, &lines, &for_writer.0, &for_writer.1))
            .map_err(Failure::from)?;
        Ok(Self { queue: Some(queue), writer: Some(writer), state, outside })
    }

    pub(crate) fn state(&self) -> Arc<AuditState> {
        Arc::clone(&self.state)
    }

    /// Records what became of the time that a server told: `ahead_ms` of ours by its words, `count` times.
    pub(crate) fn time(
        &self,
        (time_ms, source): (u64, &str),
        verdict: &str,
        reason: Option<&str>,
        ahead_ms: Option<i64>,
        count: u64,
    ) {
        self.write(&Clock { time_ms, source, action: "TIME", verdict, reason, ahead_ms, count });
    }

    fn write(&self, of: &impl Serialize) {
        self.send(line(of));
    }

    /// A record about somebody who has proven nothing.
    fn outside(&self, kind: Kind, of: &impl Serialize, count: u64) {
        let told = self.outside.strangers.lock().add(kind, line(of), count, self.outside.now_ms());
        if let Some(told) = told {
            self.send(written(told));
        }
    }

    fn send(&self, bytes: Vec<u8>) {
        if let Some(queue) = &self.queue {
            // The writer ends only after this sender is gone.
            let _ = queue.send(bytes);
        }
    }
}

fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

impl sealstone_mds::audit::AuditSink for AuditLog {
    fn record(&self, record: &sealstone_mds::audit::AuditRecord<'_>) {
        let hex = |id: &[u8; 16]| id.iter().map(|byte| format!("{byte:02x}")).collect();
        let source = record.source.map(|source| source.to_string());
        let decision = Decision {
            time_ms: record.time_ms,
            user: record.user,
            session: record.session.map(hex),
            source: source.clone(),
            action: record.action,
            subject: record.subject,
            verdict: record.verdict,
        };
        if record.proven {
            return self.write(&decision);
        }
        let (source, action) = (source.unwrap_or_default(), record.action.to_owned());
        self.outside(Kind { source, action, verdict: record.verdict.to_owned() }, &decision, 1);
    }
}

impl AuditSink for AuditLog {
    fn record(&self, record: &AuditRecord<'_>) {
        let command = Line {
            time_ms: record.time_ms,
            principal: record.principal.to_string(),
            nexus: record.nexus.0,
            initiator: record.initiator,
            action: record.action,
            object: record.object.to_string(),
            verdict: record.verdict.name(),
            reason: record.verdict.reason(),
            sense: record.sense.map(|(key, code, qualifier)| format!("{key:X}/{code:02X}/{qualifier:02X}")),
        };
        if record.proven {
            return self.write(&command);
        }
        let reason = record.verdict.reason().unwrap_or_else(|| record.verdict.name());
        let (source, action) = (record.initiator.to_owned(), record.action.to_owned());
        self.outside(Kind { source, action, verdict: reason.to_owned() }, &command, 1);
    }
}

impl Watcher for AuditLog {
    fn refused(&self, refused: &Refused<'_>) {
        let turned = Turned {
            time_ms: now_ms(),
            source: refused.source,
            initiator: refused.initiator,
            action: refused.action,
            verdict: "refused",
            reason: refused.reason,
        };
        let (source, action) = (refused.source.to_owned(), refused.action.to_owned());
        self.outside(Kind { source, action, verdict: refused.reason.to_owned() }, &turned, refused.count);
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

/// Does the name still lead to this file? Somebody who rotates logs gives it another one.
fn is_there(path: &Path, file: &File) -> bool {
    match (fs::metadata(path), file.metadata()) {
        (Ok(named), Ok(open)) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
        // Nothing has the name: it was moved away. What cannot be asked is left as it is.
        (Err(error), _) => error.kind() != std::io::ErrorKind::NotFound,
        (Ok(_), Err(_)) => true,
    }
}

fn write_all(path: &Path, file: File, lines: &Receiver<Vec<u8>>, state: &AuditState, outside: &Outside) {
    let mut out = BufWriter::with_capacity(64 << 10, file);
    let mut looked = Instant::now();
    let mut is_open = true;
    while is_open {
        let first = match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                is_open = false;
                None
            }
        };
        let mut gathered = Vec::new();
        if looked.elapsed() >= LOOK_EVERY || !is_open {
            looked = Instant::now();
            gathered = outside.flush(!is_open);
            // One that cannot be opened anew is told when the old one cannot be written either.
            if !is_there(path, out.get_ref())
                && let Ok(file) = append(path)
            {
                out = BufWriter::with_capacity(64 << 10, file);
            }
        }
        if first.is_none() && gathered.is_empty() {
            continue;
        }
        // Everything that is waiting goes out in one write.
        let (mut outcome, mut count) = (Ok(()), 0);
        for line in first.into_iter().chain(lines.try_iter()).chain(gathered) {
            outcome = outcome.and_then(|()| out.write_all(&line));
            count += 1;
        }
        match outcome.and_then(|()| out.flush()) {
            Ok(()) => {
                state.failing.store(false, Ordering::Relaxed);
                state.records.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                if !state.failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, "the audit log cannot be written");
                }
            }
        }
        std::thread::sleep(REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_device::audit::{Principal, Verdict};
    use sealstone_osd::ObjectId;
    use sealstone_scsi::lu::NexusId;

    /// A log that was moved away is begun anew, and no record is lost over it.
    #[test]
    fn a_log_that_was_moved_away_is_begun_anew() {
        use sealstone_mds::audit::AuditSink;
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path).expect("opened");
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
        std::thread::sleep(LOOK_EVERY);
        record("after");
        drop(log);
        let text = |path: &Path| fs::read_to_string(path).expect("readable");
        assert!(text(&moved).contains("before") && !text(&moved).contains("after"));
        assert!(text(&path).contains("\"user\":\"after\",\"session\":\"abababab"), "{}", text(&path));
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
    }

    /// However many refusals strangers cause, each is in the count of one of a few lines; what known principals do has a
    /// line of its own in between.
    #[test]
    fn a_flood_from_outside_makes_few_lines_and_known_principals_keep_theirs() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path).expect("opened");
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
                    verdict: Verdict::Refused("permission"),
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
        assert!(of_others("login", "refused"), "there are too many sources");
    }

    /// Whatever was recorded before the end is in the file, in order, one JSON object a line.
    #[test]
    fn every_record_is_a_line_in_order() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path).expect("opened");
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
                    verdict: Verdict::Refused("replayed"),
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
}
