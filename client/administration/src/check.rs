//! Checks of the metadata: names, counts, objects on devices.

use std::time::Duration;

use sealstone_client::{
    CheckFinding, CheckPhase, CheckScope, CheckStatus, Client, ClientError, FindingKind, QuotaDrift,
};
use sealstone_failure::text::snake_case;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::ErrorCode;
use sealstone_units::utc;
use serde_json::{Value, json};

use crate::observer::{OperationObserver, OperationProgress, OperationUnit};

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A check and its findings.
#[derive(Clone, Debug)]
pub struct CheckReport {
    check: CheckStatus,
    findings: Vec<CheckFinding>,
}

/// The result of a new count of quotas.
#[derive(Clone, Debug)]
pub struct CountReport(CheckReport);

/// Starts a check and waits for its end; without an observer it only starts it.
///
/// # Errors
/// A check is in progress, or this one ended early. Findings are no error.
pub async fn check(
    client: &Client,
    scope: CheckScope,
    repair: bool,
    observer: Option<&dyn OperationObserver>,
) -> Outcome<CheckReport> {
    let begun = begin(client, scope, repair).await?;
    let check = match observer {
        Some(observer) => follow(client, observer, begun).await?,
        None => begun,
    };
    report(client, check).await
}

/// Returns the last check; `None` if the server has made none since its start.
///
/// # Errors
/// The metadata server cannot be reached.
pub async fn last_check(client: &Client) -> Outcome<Option<CheckReport>> {
    match client.last_check().await? {
        Some(check) => report(client, check).await.map(Some),
        None => Ok(None),
    }
}

/// Counts the usage of all quotas again.
///
/// # Errors
/// A check is in progress, or this one ended early. Wrong counts are no error.
pub async fn count_again(
    client: &Client,
    repair: bool,
    observer: &dyn OperationObserver,
) -> Outcome<CountReport> {
    check(client, CheckScope::Counts, repair, Some(observer)).await.map(CountReport)
}

async fn report(client: &Client, check: CheckStatus) -> Outcome<CheckReport> {
    let findings = client.findings(check.number).await?;
    Ok(CheckReport { check, findings })
}

impl CheckReport {
    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        check_json(&self.check, &self.findings)
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        text(&self.check, &self.findings)
    }

    /// Returns the outcome.
    ///
    /// # Errors
    /// There are findings that were not repaired.
    pub fn outcome(&self) -> Outcome {
        let left = match self.check.findings.saturating_sub(self.check.repaired) {
            0 => return Ok(()),
            1 => "1 problem found".to_owned(),
            count => format!("{count} problems found"),
        };
        let repairable = |finding: &CheckFinding| {
            matches!(finding.kind, FindingKind::Count | FindingKind::Leaked) && !finding.repaired
        };
        Err(Failure::operation(left).hint(match self.findings.iter().any(repairable) {
            true => "sealstone check --repair",
            false => "docs/how-to/check-and-repair.md explains each kind",
        }))
    }
}

impl CountReport {
    fn drifts(&self) -> impl Iterator<Item = &QuotaDrift> {
        self.0.findings.iter().filter_map(|finding| finding.drift.as_ref())
    }

    fn has_more(&self) -> bool {
        self.0.check.findings > self.0.findings.len() as u64
    }

    fn is_repaired(&self) -> bool {
        self.0.check.findings > 0 && self.0.check.repaired == self.0.check.findings
    }

    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let wrong: Vec<Value> = self.drifts().map(drift_json).collect();
        json!({
            "nodes": self.0.check.nodes, "wrong": wrong, "more": self.has_more(), "repaired": self.is_repaired(),
        })
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines: Vec<String> = self.drifts().map(drift_line).collect();
        if self.has_more() {
            lines.push("and more".into());
        }
        let end = match (self.0.check.findings, self.is_repaired()) {
            (0, _) => "all counts are correct".to_owned(),
            (wrong, true) => format!("{wrong} counts were wrong and have been corrected"),
            (wrong, false) => format!("{wrong} counts are wrong"),
        };
        lines.push(format!("{} files counted: {end}", self.0.check.nodes));
        lines.join("\n")
    }

    /// Returns the outcome.
    ///
    /// # Errors
    /// Counts are wrong and were not corrected.
    pub fn outcome(&self) -> Outcome {
        match self.0.check.findings {
            0 => Ok(()),
            _ if self.is_repaired() => Ok(()),
            wrong => Err(Failure::operation(format!("{wrong} counts are wrong"))
                .hint("sealstone quota check --repair")),
        }
    }
}

/// Starts a check.
async fn begin(client: &Client, scope: CheckScope, repair: bool) -> Outcome<CheckStatus> {
    client.begin_check(scope, repair).await.map_err(|error| {
        let under_way = matches!(&error, ClientError::Refused(failure) if failure.code == ErrorCode::Exists);
        let failure = Failure::from(error);
        if under_way { failure.hint("`sealstone check --show` shows its progress") } else { failure }
    })
}

/// Waits until the check ends.
async fn follow(
    client: &Client,
    observer: &dyn OperationObserver,
    begun: CheckStatus,
) -> Outcome<CheckStatus> {
    let progress = OperationProgress::begin(observer, OperationUnit::Items, begun.nodes_all.max(1), "nodes");
    let mut now = begun.clone();
    while !matches!(now.phase, CheckPhase::Done | CheckPhase::Failed) {
        let (what, at, all) = match now.phase {
            CheckPhase::Names => ("names", now.names, now.nodes_all),
            CheckPhase::Walk => ("directories", now.nodes, now.nodes_all),
            CheckPhase::Objects => ("objects", now.objects, now.objects.max(now.nodes_all)),
            _ => ("nodes", now.nodes, now.nodes_all),
        };
        progress.label(what);
        progress.set(at, all.max(at).max(1));
        tokio::time::sleep(POLL_INTERVAL).await;
        now = match client.last_check().await? {
            Some(now) if (now.number, now.began_ms) == (begun.number, begun.began_ms) => now,
            _ => {
                let failure = Failure::operation("the metadata server restarted during the check");
                return Err(failure.hint("run the command again"));
            }
        };
    }
    if now.phase == CheckPhase::Failed {
        return Err(Failure::operation(format!("the check ended early: {}", now.problem)));
    }
    Ok(now)
}

/// Returns a check as `--json` prints it.
fn check_json(check: &CheckStatus, findings: &[CheckFinding]) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|finding| {
            json!({
                "kind": snake_case(finding.kind.name()), "inode": finding.node.map(|node| node.0),
                "path": Some(finding.path.as_str()).filter(|path| !path.is_empty()),
                "detail": finding.said.as_str(), "repaired": finding.repaired,
            })
        })
        .collect();
    json!({
        "number": check.number, "scope": snake_case(check.scope.name()), "phase": snake_case(check.phase.name()), "repair": check.repair,
        "began_ms": check.began_ms, "nodes": check.nodes, "names": check.names, "objects": check.objects,
        "findings_count": check.findings, "repaired": check.repaired, "findings": findings,
        "problem": Some(check.problem.as_str()).filter(|problem| !problem.is_empty()),
    })
}

fn text(check: &CheckStatus, findings: &[CheckFinding]) -> String {
    let mut lines: Vec<String> = findings.iter().map(line).collect();
    if check.findings > findings.len() as u64 {
        lines.push(format!("and {} more", check.findings - findings.len() as u64));
    }
    let seen = format!("{} nodes, {} names, {} objects", check.nodes, check.names, check.objects);
    let end = match (check.findings, check.repaired) {
        (0, _) => "no problems found".to_owned(),
        (wrong, repaired) if wrong == repaired => format!("{wrong} problems, all repaired"),
        (wrong, 0) => format!("{wrong} problems"),
        (wrong, repaired) => format!("{wrong} problems, {repaired} of them repaired"),
    };
    lines.push(match check.phase {
        CheckPhase::Done => format!("{seen}: {end}"),
        CheckPhase::Failed => format!("{seen}; ended early: {}; {end}", check.problem),
        _ => format!("running since {}: {seen}: {end}", utc(check.began_ms)),
    });
    lines.join("\n")
}

fn line(finding: &CheckFinding) -> String {
    let mut line = finding.kind.name().to_lowercase();
    if let Some(node) = finding.node {
        line += &match finding.path.as_str() {
            "" => format!(": node {}", node.0),
            path => format!(": {path} (node {})", node.0),
        };
    }
    line += &format!(": {}", finding.said);
    if finding.repaired {
        line += ", repaired";
    }
    line
}

fn drift_json(drift: &QuotaDrift) -> Value {
    json!({
        "of": drift.place.to_string(), "bytes": drift.bytes, "files": drift.nodes,
        "bytes_found": drift.bytes_found, "files_found": drift.nodes_found,
    })
}

fn drift_line(drift: &QuotaDrift) -> String {
    format!(
        "{}: counted {} bytes in {} files, found {} bytes in {} files",
        drift.place, drift.bytes, drift.nodes, drift.bytes_found, drift.nodes_found
    )
}
