//! Audit records of the metadata server.

use std::sync::Arc;

use sealstone_daemon::{AuditLog, RecordKind, RecordSubject, truncate_text};
use sealstone_failure::text::hex;
use sealstone_mds::audit::{AuditRecord, AuditSink};
use serde::Serialize;

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

/// Writes the records of a metadata server to its audit log.
pub(crate) struct MdsAudit(pub(crate) Arc<AuditLog>);

impl AuditSink for MdsAudit {
    fn record(&self, record: &AuditRecord<'_>) {
        let source = record.source.map(|source| source.to_string());
        let (user, subject) = (truncate_text(record.user), record.subject.map(truncate_text));
        let decision = RequestLine {
            time_ms: record.time_ms,
            user: &user,
            session: record.session.map(|session| hex(session)),
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
            return self.0.record_principal(about, &decision);
        }
        let (source, action) = (source.unwrap_or_default(), record.action.to_owned());
        self.0.record_unauthenticated(
            RecordKind { source, action, verdict: record.verdict.to_owned() },
            &decision,
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    /// Maximum length of a line, bytes: two texts with each byte escaped, and
    /// the rest.
    const LINE_BYTES_MAX: usize = 4096;

    #[test]
    fn renamed_log_is_reopened_without_loss() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = MdsAudit(Arc::new(AuditLog::open(&path, u64::MAX).expect("opened")));
        let record = |user: &str| {
            let record = AuditRecord {
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
        std::thread::sleep(Duration::from_secs(1));
        record("after");
        drop(log);
        let text = |path: &Path| fs::read_to_string(path).expect("readable");
        assert!(text(&moved).contains("before") && !text(&moved).contains("after"));
        assert!(text(&path).contains("\"user\":\"after\",\"session\":\"abababab"), "{}", text(&path));
        assert_eq!(fs::metadata(&path).expect("exists").mode() & 0o777, 0o600);
    }

    /// Long texts are truncated and remain distinct.
    #[test]
    fn line_length_is_bounded() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = MdsAudit(Arc::new(AuditLog::open(&path, u64::MAX).expect("opened")));
        let subjects = ["\u{1}".repeat(3800), "\u{1}".repeat(3801), "\u{10FFFF}".repeat(900)];
        for subject in &subjects {
            let record = AuditRecord {
                time_ms: 1,
                user: "eve",
                session: Some(&[0xAB; 16]),
                proven: true,
                source: None,
                action: "Remove",
                subject: Some(subject),
                verdict: "NotFound",
            };
            AuditSink::record(&log, &record);
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
        let log = MdsAudit(Arc::new(AuditLog::open(&path, u64::MAX).expect("opened")));
        let state = log.0.state();
        let flood = 50_000u64;
        for n in 0..flood {
            let user = if n % 1000 == 0 { "alice" } else { "eve" };
            let record = AuditRecord {
                time_ms: n,
                user,
                session: None,
                proven: true,
                source: None,
                action: "Remove",
                subject: Some("/x"),
                verdict: "Denied",
            };
            AuditSink::record(&log, &record);
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

    /// Refusals of unauthenticated peers are counted in few lines.
    #[test]
    fn refused_logins_are_counted() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let log = MdsAudit(Arc::new(AuditLog::open(&path, u64::MAX).expect("opened")));
        let flood = 30_000u32;
        for n in 0..flood {
            let name = format!("guess{n}");
            let source = std::net::Ipv4Addr::from(0x0A00_0000 + (n % 5000) * 256);
            let decision = AuditRecord {
                time_ms: u64::from(n),
                user: &name,
                session: None,
                proven: false,
                source: Some(std::net::IpAddr::from(source).into()),
                action: "login",
                subject: None,
                verdict: "refused",
            };
            AuditSink::record(&log, &decision);
        }
        drop(log);
        let text = fs::read_to_string(&path).expect("readable");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let count = |line: &serde_json::Value| line.get("count").map_or(Some(1), |count| count.as_u64());
        let counted: Option<u64> = lines.iter().map(count).sum();
        assert_eq!(counted, Some(u64::from(flood)));
        assert!(lines.len() < 1_000, "{} lines", lines.len());
        let is_overflow = |line: &serde_json::Value| {
            line["source"] == "others" && line["action"] == "login" && line["verdict"] == "refused"
        };
        assert!(lines.iter().any(is_overflow), "the sources exceed the limit");
    }
}
