//! Credentials that were issued for a file, and their uses by the devices' audit logs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use sealstone_client::{Client, FilePath, IssueEntry, IssueKind};
use sealstone_failure::text::{ShownPath as _, hex, set_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_osd::Permissions;
use sealstone_units::utc;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::capability_files::permission_names;

/// Maximum length of a line of a device's log, bytes.
const LINE_MAX: u64 = 64 * 1024;

/// Uses of one credential in the devices' logs.
#[derive(Clone, Copy, Debug, Default)]
struct CredentialUses {
    done: u64,
    refused: u64,
    last_ms: u64,
}

/// The fields of a line of a device's log that are needed here.
#[derive(Deserialize)]
struct DeviceLogLine {
    time_ms: u64,
    principal: Option<String>,
    verdict: String,
    /// Number of records that the line represents.
    count: Option<u64>,
}

/// Incomplete parts of the devices' logs.
#[derive(Clone, Copy, Debug, Default)]
struct LogGaps {
    /// Lines that could not be parsed.
    unparsed: u64,
    /// Records that were lost because the disk was full.
    lost: u64,
}

const fn kind(kind: IssueKind) -> &'static str {
    match kind {
        IssueKind::Create => "create",
        IssueKind::Open => "open",
        IssueKind::Renew => "renew",
        IssueKind::Delegate => "delegate",
        IssueKind::Refused => "refused",
        IssueKind::Execute => "execute",
    }
}

/// Returns the principal in the devices' audit logs: session and number of the credential.
fn principal(entry: &IssueEntry) -> String {
    hex(&entry.session) + &hex(&entry.number.to_be_bytes())
}

fn permissions(entry: &IssueEntry) -> Vec<String> {
    let [a, b] = entry.permissions.to_be_bytes();
    permission_names(Permissions::from_bytes([a, b, 0, 0, 0]))
}

/// Reads a device's log and its older segments.
fn read_all(path: &Path, uses: &mut BTreeMap<String, CredentialUses>, gaps: &mut LogGaps) -> Outcome {
    for (_, segment) in sealstone_daemon::audit_segments(path) {
        read(&segment, uses, gaps)?;
    }
    read(path, uses, gaps)
}

/// Reads a file of a device's log line by line.
fn read(path: &Path, uses: &mut BTreeMap<String, CredentialUses>, gaps: &mut LogGaps) -> Outcome {
    let at = |error: std::io::Error| Failure::from(error).at(path.shown());
    let mut input = BufReader::new(File::open(path).map_err(at)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut input).take(LINE_MAX).read_until(b'\n', &mut line).map_err(at)? == 0 {
            return Ok(());
        }
        let Ok(DeviceLogLine { time_ms, principal, verdict, count }) = serde_json::from_slice(&line) else {
            gaps.unparsed += 1;
            continue;
        };
        let count = count.unwrap_or(1);
        if verdict == "lost" {
            gaps.lost = gaps.lost.saturating_add(count);
        }
        let Some(of) = principal.and_then(|principal| uses.get_mut(&principal)) else { continue };
        match verdict.as_str() {
            "done" => of.done += count,
            "refused" => of.refused += count,
            _ => {}
        }
        of.last_ms = of.last_ms.max(time_ms);
    }
}

/// Credentials of a file, and their uses.
#[derive(Debug)]
pub struct IssueReport {
    object: FilePath,
    entries: Vec<IssueEntry>,
    uses: BTreeMap<String, CredentialUses>,
    gaps: LogGaps,
    since_ms: u64,
    /// Begin of the record; `None` if it is empty.
    known_since_ms: Option<u64>,
    has_logs: bool,
}

/// Returns the credentials that were issued for a file from `since_ms` to `until_ms`, of one user
/// or of all. Their uses are read from logs of devices.
///
/// # Errors
/// The user may not see them, or a log cannot be read.
pub async fn audit(
    client: &Client,
    object: &FilePath,
    user: Option<&str>,
    (since_ms, until_ms): (u64, u64),
    device_logs: &[PathBuf],
) -> Outcome<IssueReport> {
    let (entries, known_since_ms) = client
        .issued(object, user, since_ms, until_ms)
        .await
        .map_err(|error| Failure::from(error).at(object))?;
    let given = entries.iter().filter(|entry| entry.kind != IssueKind::Refused);
    let mut uses: BTreeMap<String, CredentialUses> =
        given.map(|entry| (principal(entry), CredentialUses::default())).collect();
    let mut gaps = LogGaps::default();
    for path in device_logs {
        read_all(path, &mut uses, &mut gaps)?;
    }
    Ok(IssueReport {
        object: object.clone(),
        entries,
        uses,
        gaps,
        since_ms,
        known_since_ms: (known_since_ms != u64::MAX).then_some(known_since_ms),
        has_logs: !device_logs.is_empty(),
    })
}

impl IssueReport {
    /// Returns what the report does not cover, one line for each gap.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let LogGaps { unparsed, lost } = self.gaps;
        let lost = (lost > 0).then(|| {
            format!(
                "{lost} records of the devices' logs were lost because the disk was full; see lines with the verdict \
                 \"lost\""
            )
        });
        let unparsed =
            (unparsed > 0).then(|| format!("{unparsed} lines of the devices' logs could not be parsed"));
        let begin = match self.known_since_ms {
            Some(known) if known > self.since_ms => {
                Some(format!("the record begins at {} UTC; earlier credentials are unknown", utc(known)))
            }
            None => Some("the record of credentials is empty".to_owned()),
            Some(_) => None,
        };
        [lost, unparsed, begin].into_iter().flatten().collect()
    }

    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let entries: Vec<Value> =
            self.entries.iter().map(|entry| entry_json(entry, &self.uses, self.has_logs)).collect();
        let mut value =
            json!({ "known_since_ms": self.known_since_ms, "lost": self.gaps.lost, "entries": entries });
        set_bytes(&mut value, "object", &self.object);
        value
    }

    /// Returns the report as a table.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{:16} {:9} {:16} {:40} {:16} {}",
            "WHEN", "HOW", "USER", "PRINCIPAL", "UNTIL", "WHAT"
        )];
        lines.extend(self.entries.iter().map(|entry| line(entry, &self.uses, self.has_logs)));
        lines.join("\n")
    }
}

fn entry_json(entry: &IssueEntry, uses: &BTreeMap<String, CredentialUses>, has_logs: bool) -> Value {
    let mut value = json!({
        "time_ms": entry.time_ms, "kind": kind(entry.kind), "user": entry.user.as_str(), "session": hex(&entry.session),
        "permissions": null, "method": null, "expires_ms": null, "start": null, "end": null, "devices": null,
        "principal": null,
    });
    if entry.kind == IssueKind::Refused {
        return value;
    }
    let principal = principal(entry);
    let end = (entry.end != u64::MAX).then_some(entry.end);
    value["permissions"] = json!(permissions(entry));
    value["method"] = json!(entry.method.name().to_lowercase());
    value["expires_ms"] = json!(entry.expires_ms);
    value["start"] = json!(entry.start);
    value["end"] = json!(end);
    if let Some(of) = uses.get(&principal).filter(|_| has_logs) {
        value["devices"] = json!({
            "done": of.done, "refused": of.refused, "last_ms": (of.last_ms > 0).then_some(of.last_ms),
        });
    }
    value["principal"] = json!(principal);
    value
}

fn line(entry: &IssueEntry, uses: &BTreeMap<String, CredentialUses>, has_logs: bool) -> String {
    let (when, user) = (utc(entry.time_ms), entry.user.as_str());
    if entry.kind == IssueKind::Refused {
        return format!("{when:16} {:9} {user:16}", kind(entry.kind));
    }
    let principal = principal(entry);
    let bytes = match (entry.start, entry.end) {
        (0, u64::MAX) => String::new(),
        (start, end) => format!(" bytes {start}..{end}"),
    };
    let used = match uses.get(&principal).filter(|_| has_logs) {
        Some(of) => format!(", {} done and {} refused at devices", of.done, of.refused),
        None => String::new(),
    };
    format!(
        "{when:16} {:9} {user:16} {principal:40} {:16} {}{bytes}{used}",
        kind(entry.kind),
        utc(entry.expires_ms),
        permissions(entry).join(" "),
    )
}
