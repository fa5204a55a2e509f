//! `sealstone audit`: who could touch a file, when, by which credential; and with the devices' logs, who did.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use sealstone_client::{IssueEntry, IssueKind};
use sealstone_osd::Permissions;
use serde::Deserialize;
use serde_json::json;

use crate::cli::Global;
use crate::cli::grants::Audit;
use crate::command::session::client;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, utc};
use crate::text::{ShownPath as _, set_bytes};

/// A line of a device's log is shorter.
const LINE_MAX: u64 = 64 * 1024;

/// What a device's log says of one credential.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    done: u64,
    refused: u64,
    last_ms: u64,
}

/// One line of a device's log, as far as it matters.
#[derive(Deserialize)]
struct Line {
    time_ms: u64,
    principal: Option<String>,
    verdict: String,
    /// Records that the line stands for.
    count: Option<u64>,
}

/// What a device's log says of itself.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    /// Lines that were not understood.
    strange: u64,
    /// Records that the disk did not take.
    lost: u64,
}

const fn kind(kind: IssueKind) -> &'static str {
    match kind {
        IssueKind::Create => "create",
        IssueKind::Open => "open",
        IssueKind::Renew => "renew",
        IssueKind::Delegate => "delegate",
        IssueKind::Refused => "refused",
    }
}

/// Session and number: what devices call whoever uses the credential.
fn principal(entry: &IssueEntry) -> String {
    let bytes = entry.session.iter().chain(&entry.number.to_be_bytes()).copied().collect::<Vec<u8>>();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn permissions(entry: &IssueEntry) -> Vec<&'static str> {
    let [a, b] = entry.permissions.to_be_bytes();
    let held = Permissions::from_bytes([a, b, 0, 0, 0]);
    Permissions::NAMES.iter().filter(|(one, _)| held.contains(*one)).map(|(_, name)| *name).collect()
}

/// Reads a device's log and its older segments.
fn read_all(path: &Path, uses: &mut BTreeMap<String, Uses>, gaps: &mut Gaps) -> Outcome<()> {
    for (_, segment) in crate::daemon::audit_segments(path) {
        read(&segment, uses, gaps)?;
    }
    read(path, uses, gaps)
}

/// Reads a file of a device's log line by line.
fn read(path: &Path, uses: &mut BTreeMap<String, Uses>, gaps: &mut Gaps) -> Outcome<()> {
    let at = |error: std::io::Error| Failure::from(error).at(path.shown());
    let mut input = BufReader::new(File::open(path).map_err(at)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut input).take(LINE_MAX).read_until(b'\n', &mut line).map_err(at)? == 0 {
            return Ok(());
        }
        let Ok(Line { time_ms, principal, verdict, count }) = serde_json::from_slice(&line) else {
            gaps.strange += 1;
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

/// `sealstone audit`.
pub(crate) async fn run(global: &Global, output: Output, arguments: &Audit) -> Outcome {
    let Audit { object, since, until, user, device_log } = arguments;
    let object = &global.stored(object)?;
    let (client, _) = client(global)?;
    let (since_ms, until_ms) = (since.unwrap_or(0), until.unwrap_or(u64::MAX));
    let (entries, known_since_ms) = client
        .issued(object, user.as_deref(), since_ms, until_ms)
        .await
        .map_err(|error| Failure::from(error).at(object))?;
    let given = entries.iter().filter(|entry| entry.kind != IssueKind::Refused);
    let mut uses: BTreeMap<String, Uses> = given.map(|entry| (principal(entry), Uses::default())).collect();
    let mut gaps = Gaps::default();
    for path in device_log {
        read_all(path, &mut uses, &mut gaps)?;
    }
    let Gaps { strange, lost } = gaps;
    if lost > 0 {
        output.remark(format!(
            "{lost} records of the devices' logs were lost, as the disk was full; lines with the verdict \"lost\" say when"
        ));
    }
    if strange > 0 {
        output.remark(format!("{strange} lines of the devices' logs were not understood"));
    }
    let known = (known_since_ms != u64::MAX).then_some(known_since_ms);
    let has_logs = !device_log.is_empty();
    let value: Vec<_> = entries.iter().map(|entry| told(entry, &uses, has_logs)).collect();
    let mut value = json!({ "known_since_ms": known, "lost": lost, "entries": value });
    set_bytes(&mut value, "object", object);
    match known {
        Some(known) if known > since_ms => {
            output.remark(format!("the record begins at {} UTC; what was before is not known", utc(known)));
        }
        None => output.remark("the record of credentials is empty"),
        Some(_) => {}
    }
    output.result(&value, || {
        let mut lines = vec![format!(
            "{:16} {:9} {:16} {:40} {:16} {}",
            "WHEN", "HOW", "USER", "PRINCIPAL", "UNTIL", "WHAT"
        )];
        lines.extend(entries.iter().map(|entry| line(entry, &uses, has_logs)));
        lines.join("\n")
    })
}

fn told(entry: &IssueEntry, uses: &BTreeMap<String, Uses>, has_logs: bool) -> serde_json::Value {
    let session: String = entry.session.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut value = json!({
        "time_ms": entry.time_ms, "kind": kind(entry.kind), "user": entry.user.as_str(), "session": session,
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

fn line(entry: &IssueEntry, uses: &BTreeMap<String, Uses>, has_logs: bool) -> String {
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
