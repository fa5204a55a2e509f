//! `sealstone check` and the counts of `sealstone quota check`: start a check in the metadata
//! server and follow it.

use std::time::Duration;

use sealstone_client::{CheckFinding, CheckPhase, CheckScope, CheckStatus, Client, ClientError, FindingKind};
use sealstone_failure::text::snake_case;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::ErrorCode;
use sealstone_units::utc;
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::check::CheckArgs as Arguments;
use crate::command::session::client;
use crate::output::Output;

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Runs `sealstone check`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &Arguments) -> Outcome {
    let (client, _) = client(global)?;
    let scope = if arguments.no_objects { CheckScope::Names } else { CheckScope::Objects };
    let check = match arguments.show {
        true => match client.last_check().await? {
            Some(check) => check,
            None => {
                let none = || "no check has run since the metadata server started".to_owned();
                return output.result(&json!({ "check": null }), none);
            }
        },
        false => {
            let begun = begin(&client, scope, arguments.repair).await?;
            match arguments.no_wait {
                true => begun,
                false => follow(&client, output, begun).await?,
            }
        }
    };
    let findings = client.findings(check.number).await?;
    output.result(&json!({ "check": check_json(&check, &findings) }), || text(&check, &findings))?;
    if check.findings == check.repaired {
        return Ok(());
    }
    let repairable =
        |finding: &CheckFinding| matches!(finding.kind, FindingKind::Count | FindingKind::Leaked);
    let failure = Failure::operation(match check.findings.saturating_sub(check.repaired) {
        1 => "1 problem found".to_owned(),
        count => format!("{count} problems found"),
    });
    Err(match findings.iter().any(|finding| repairable(finding) && !finding.repaired) {
        true => failure.hint("sealstone check --repair"),
        false => failure.hint("docs/how-to/check-and-repair.md explains each kind"),
    })
}

/// Starts a check.
pub(crate) async fn begin(client: &Client, scope: CheckScope, repair: bool) -> Outcome<CheckStatus> {
    client.begin_check(scope, repair).await.map_err(|error| {
        let under_way = matches!(&error, ClientError::Refused(failure) if failure.code == ErrorCode::Exists);
        let failure = Failure::from(error);
        if under_way { failure.hint("`sealstone check --show` shows its progress") } else { failure }
    })
}

/// Waits until the check ends.
pub(crate) async fn follow(client: &Client, output: Output, begun: CheckStatus) -> Outcome<CheckStatus> {
    let bar = output.counting(begun.nodes_all.max(1), "nodes");
    let mut now = begun.clone();
    while !matches!(now.phase, CheckPhase::Done | CheckPhase::Failed) {
        let (what, at, all) = match now.phase {
            CheckPhase::Names => ("names", now.names, now.nodes_all),
            CheckPhase::Walk => ("directories", now.nodes, now.nodes_all),
            CheckPhase::Objects => ("objects", now.objects, now.objects.max(now.nodes_all)),
            _ => ("nodes", now.nodes, now.nodes_all),
        };
        bar.set_message(what);
        bar.set_length(all.max(at).max(1));
        bar.set_position(at);
        tokio::time::sleep(POLL_INTERVAL).await;
        now = match client.last_check().await? {
            Some(now) if (now.number, now.began_ms) == (begun.number, begun.began_ms) => now,
            _ => {
                let failure = Failure::operation("the metadata server restarted during the check");
                return Err(failure.hint("run the command again"));
            }
        };
    }
    bar.finish_and_clear();
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
