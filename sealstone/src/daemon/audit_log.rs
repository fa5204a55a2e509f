//! The device's audit log: one JSON object a line, appended to `audit.jsonl` in the device's folder.
//!
//! Does: format on the command's thread, write on a thread of its own. Does not: rotate; `logrotate` with
//! `copytruncate` does, because the file is opened for appending.
//! Contract: records are written in order. When the writer falls [`QUEUE_RECORDS_MAX`] behind, commands wait for it:
//! a record is never dropped while the device serves. A disk that refuses the log shows in `/healthz`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use sealstone_device::audit::{AuditRecord, AuditSink};
use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// Records under way between commands and the writer; about 300 bytes each.
const QUEUE_RECORDS_MAX: usize = 4096;

/// Rest of the writer after each write. Whoever records meanwhile need not wake it, which would cost a command more
/// than the record itself.
const REST: Duration = Duration::from_millis(1);

/// One line of the log.
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
}

impl AuditLog {
    /// Opens or creates the log (0600).
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| Failure::from(error).at(path.display()))?;
        let (queue, lines) = sync_channel(QUEUE_RECORDS_MAX);
        let state = Arc::new(AuditState::default());
        let for_writer = Arc::clone(&state);
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_all(file, &lines, &for_writer))
            .map_err(Failure::from)?;
        Ok(Self { queue: Some(queue), writer: Some(writer), state })
    }

    pub(crate) fn state(&self) -> Arc<AuditState> {
        Arc::clone(&self.state)
    }
}

impl AuditSink for AuditLog {
    fn record(&self, record: &AuditRecord<'_>) {
        let line = Line {
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
        let mut bytes = serde_json::to_vec(&line).expect("strings and numbers serialise");
        bytes.push(b'\n');
        if let Some(queue) = &self.queue {
            // The writer ends only after this sender is gone.
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

fn write_all(file: File, lines: &Receiver<Vec<u8>>, state: &AuditState) {
    let mut out = BufWriter::with_capacity(64 << 10, file);
    while let Ok(first) = lines.recv() {
        // Everything that is waiting goes out in one write.
        let mut outcome = out.write_all(&first);
        let mut count = 1;
        while let Ok(line) = lines.try_recv() {
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

    /// Whatever was recorded before the end is in the file, in order, one JSON object a line.
    #[test]
    fn every_record_is_a_line_in_order() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path).expect("opened");
        for index in 0..10_000 {
            log.record(&AuditRecord {
                time_ms: index,
                principal: Principal([7; 20]),
                nexus: NexusId(1),
                initiator: "iqn.2026-11.org.example:\"quoted\"",
                action: "WRITE",
                object: ObjectId::new(0x10000, 0x10001),
                verdict: Verdict::Refused("replayed"),
                sense: Some((5, 0x24, 6)),
            });
        }
        drop(log);
        let text = std::fs::read_to_string(&path).expect("readable");
        assert_eq!(text.lines().count(), 10_000);
        for (index, line) in text.lines().enumerate() {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(value["time_ms"], index);
            assert_eq!(value["sense"], "5/24/06");
        }
    }
}
