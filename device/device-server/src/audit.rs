//! Audit records of a device: commands, runs of functions, refused peers, and block units: lost
//! writes, integrity failures, changes by an administrator.

use std::sync::Arc;

use sealstone_block::{IntegrityFailure, LossSink, LostWrites};
use sealstone_daemon::machine::now_ms;
use sealstone_daemon::{AuditLog, RecordKind, RecordSubject, SESSION_DIGITS, truncate_text};
use sealstone_failure::text::hex;
use sealstone_function_service::{RunRecord, RunRecorder};
use sealstone_iscsi_target::{RefusalRecord, RefusalSink};
use sealstone_osd::function::ExitReason;
use sealstone_osd_device::audit::{AuditRecord, AuditSink, AuditVerdict};
use serde::Serialize;

/// Action of records about block units whose data are damaged or not authentic.
const INTEGRITY: &str = "INTEGRITY";

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

/// A line of a device's log about blocks that are damaged or not authentic.
#[derive(Serialize)]
struct IntegrityLine<'a> {
    time_ms: u64,
    initiator: &'a str,
    action: &'a str,
    unit: &'a str,
    lun: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    blocks: u64,
    verdict: &'a str,
    reason: &'a str,
}

/// A line of a device's log about a block unit that an administrator changed.
#[derive(Serialize)]
pub(crate) struct UnitChangeLine<'a> {
    time_ms: u64,
    action: &'a str,
    unit: &'a str,
    lun: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_epoch: Option<u32>,
    verdict: &'a str,
}

impl<'a> UnitChangeLine<'a> {
    pub(crate) fn new(action: &'a str, unit: &'a str, lun: u16, key_epoch: Option<u32>) -> Self {
        Self { time_ms: now_ms(), action, unit, lun, key_epoch, verdict: "done" }
    }
}

/// Writes the records of a device to its audit log.
pub(crate) struct DeviceAudit(pub(crate) Arc<AuditLog>);

impl AuditSink for DeviceAudit {
    fn record(&self, record: &AuditRecord<'_>) {
        let (principal, initiator) = (record.principal.to_string(), truncate_text(record.initiator));
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
            return self.0.record_principal(
                RecordSubject { owner, action: record.action, verdict: reason, is_done },
                &command,
            );
        }
        let (source, action) = (record.initiator.to_owned(), record.action.to_owned());
        self.0.record_unauthenticated(RecordKind { source, action, verdict: reason.to_owned() }, &command, 1);
    }
}

impl RunRecorder for DeviceAudit {
    fn record_run(&self, record: &RunRecord<'_>) {
        let (principal, initiator) = (record.principal.to_string(), truncate_text(record.initiator));
        let done = record.exit == ExitReason::Success;
        let run = FunctionLine {
            time_ms: record.time_ms,
            principal: &principal,
            initiator: &initiator,
            action: "RUN FUNCTION",
            object: record.function.to_string(),
            job: record.job.to_string(),
            digest: hex(&record.digest),
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
        self.0.record_principal(RecordSubject { owner, action: run.action, verdict, is_done: done }, &run);
    }
}

impl LossSink for DeviceAudit {
    fn record(&self, lost: &LostWrites<'_>) {
        self.0.write(&LostWritesLine {
            time_ms: now_ms(),
            nexus: lost.nexus.0,
            initiator: &truncate_text(lost.initiator),
            action: "SYNCHRONIZE CACHE",
            unit: lost.unit,
            lun: lost.lun,
            verdict: "failed",
            reason: "writes_lost",
        });
    }

    fn record_integrity(&self, failure: &IntegrityFailure<'_>) {
        let reason = failure.kind.name();
        let line = IntegrityLine {
            time_ms: now_ms(),
            initiator: &truncate_text(failure.initiator),
            action: INTEGRITY,
            unit: failure.unit,
            lun: failure.lun,
            block: failure.block,
            blocks: failure.count,
            verdict: "failed",
            reason,
        };
        let (source, action) = (format!("unit {}", failure.unit), INTEGRITY.to_owned());
        self.0.record_integrity(RecordKind { source, action, verdict: reason.to_owned() }, &line, 1);
    }
}

impl RefusalSink for DeviceAudit {
    fn refused(&self, refused: &RefusalRecord<'_>) {
        let initiator = truncate_text(refused.initiator);
        let refusal = RefusedPeerLine {
            time_ms: now_ms(),
            source: refused.source,
            initiator: &initiator,
            action: refused.action,
            verdict: "refused",
            reason: refused.reason,
        };
        let (source, action) = (refused.source.to_owned(), refused.action.to_owned());
        self.0.record_unauthenticated(
            RecordKind { source, action, verdict: refused.reason.to_owned() },
            &refusal,
            refused.count,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sealstone_block::IntegrityFailureKind;
    use sealstone_osd::ObjectId;
    use sealstone_osd_device::audit::Principal;
    use sealstone_scsi::lu::NexusId;

    use super::*;

    /// Refusals of unauthenticated peers are counted in few lines; records of principals keep a
    /// line each.
    #[test]
    fn refusals_without_proof_are_counted() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = DeviceAudit(Arc::new(AuditLog::open(&path, u64::MAX).expect("opened")));
        let flood = 30_000u32;
        for n in 0..flood {
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
        let count = |line: &serde_json::Value| line.get("count").map_or(Some(1), |count| count.as_u64());
        let counted: Option<u64> = lines.iter().map(count).sum();
        assert_eq!(counted, Some(u64::from(flood)));
        let precise = lines.iter().filter(|line| line.get("count").is_none());
        assert!(precise.count() >= flood as usize / 100);
        assert!(lines.len() < flood as usize / 100 + 1_000, "{} lines", lines.len());
    }

    #[test]
    fn integrity_records_survive_flood_of_strangers() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = DeviceAudit(Arc::new(AuditLog::open(&path, u64::MAX).expect("opened")));
        for n in 0..3_000 {
            let source = format!("192.0.2.{n}");
            log.refused(&RefusalRecord {
                source: &source,
                initiator: "",
                action: "login",
                reason: "authentication",
                count: 1,
            });
        }
        let failures = 500;
        for block in 0..failures {
            let (unit, kind) = ("disk", IntegrityFailureKind::WriteRejected);
            log.record_integrity(&IntegrityFailure {
                unit,
                lun: 1,
                initiator: "iqn.2026-11.org.example:writer",
                kind,
                block: Some(block),
                count: 1,
            });
        }
        drop(log);
        let text = fs::read_to_string(&path).expect("readable");
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .filter(|line: &serde_json::Value| line["action"] == INTEGRITY)
            .collect();
        assert!((2..=5).contains(&lines.len()), "{lines:?}");
        assert_eq!((&lines[0]["unit"], &lines[0]["block"]), (&"disk".into(), &0.into()));
        let counted: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
        assert_eq!(counted, failures);
    }

    #[test]
    fn records_are_lines_in_order() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = DeviceAudit(Arc::new(AuditLog::open(&path, u64::MAX).expect("opened")));
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
}
