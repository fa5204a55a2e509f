//! Audit records of a device: commands, runs of functions, refused peers, lost writes of units.

use std::sync::Arc;

use sealstone_block::{LossSink, LostWrites};
use sealstone_daemon::machine::now_ms;
use sealstone_daemon::{AuditLog, RecordKind, RecordSubject, SESSION_DIGITS, truncate_text};
use sealstone_failure::text::hex;
use sealstone_function_service::{RunRecord, RunRecorder};
use sealstone_iscsi_target::{RefusalRecord, RefusalSink};
use sealstone_osd::function::ExitReason;
use sealstone_osd_device::audit::{AuditRecord, AuditSink, AuditVerdict};
use serde::Serialize;

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
