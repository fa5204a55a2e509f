//! `sealstone check`, and `sealstone quota check`: have the metadata server look through everything, and follow it.

use std::time::Duration;

use sealstone_client::{CheckFinding, CheckPhase, CheckScope, CheckStatus, Client, ClientError, FindingKind};
use sealstone_mds_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::cli::Global;
use crate::cli::check::Check as Arguments;
use crate::command::session::client;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, utc};

/// Between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs `sealstone check`.
pub(crate) async fn run(global: &Global, output: Output, arguments: &Arguments) -> Outcome {
    let (client, _) = client(global)?;
    let scope = if arguments.no_objects { CheckScope::Names } else { CheckScope::Objects };
    let check = match arguments.show {
        true => match client.last_check().await? {
            Some(check) => check,
            None => {
                let none = || "nothing was checked since the metadata server was started".to_owned();
                return output.result(&Value::Null, none);
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
    output.result(&told(&check, &findings), || text(&check, &findings))?;
    if check.findings == check.repaired {
        return Ok(());
    }
    let repairable =
        |finding: &CheckFinding| matches!(finding.kind, FindingKind::Count | FindingKind::Leaked);
    let failure = Failure::operation("not everything is as it should be");
    Err(match findings.iter().any(|finding| repairable(finding) && !finding.repaired) {
        true => failure.hint("sealstone check --repair"),
        false => failure.hint("docs/how-to/check-and-repair.md says what each of them means"),
    })
}

/// Begins a check.
pub(crate) async fn begin(client: &Client, scope: CheckScope, repair: bool) -> Outcome<CheckStatus> {
    client.begin_check(scope, repair).await.map_err(|error| {
        let under_way = matches!(&error, ClientError::Refused(failure) if failure.code == ErrorCode::Exists);
        let failure = Failure::from(error);
        if under_way { failure.hint("sealstone check --show tells how far it is") } else { failure }
    })
}

/// Waits until it is over.
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
        tokio::time::sleep(LOOK_EVERY).await;
        now = match client.last_check().await? {
            Some(now) if (now.number, now.began_ms) == (begun.number, begun.began_ms) => now,
            _ => {
                let failure =
                    Failure::operation("the metadata server that checked began anew, or another one answers");
                return Err(failure.hint("say it again"));
            }
        };
    }
    bar.finish_and_clear();
    if now.phase == CheckPhase::Failed {
        return Err(Failure::operation(format!("it ended early: {}", now.problem)));
    }
    Ok(now)
}

/// For scripts.
fn told(check: &CheckStatus, findings: &[CheckFinding]) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|finding| {
            json!({
                "kind": finding.kind.name(), "inode": finding.node.map(|node| node.0),
                "path": Some(finding.path.as_str()).filter(|path| !path.is_empty()),
                "said": finding.said.as_str(), "repaired": finding.repaired,
            })
        })
        .collect();
    json!({
        "number": check.number, "scope": check.scope.name(), "phase": check.phase.name(), "repair": check.repair,
        "began_ms": check.began_ms, "nodes": check.nodes, "names": check.names, "objects": check.objects,
        "wrong": check.findings, "repaired": check.repaired, "findings": findings,
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
        (0, _) => "nothing wrong".to_owned(),
        (wrong, repaired) if wrong == repaired => format!("{wrong} wrong, repaired"),
        (wrong, 0) => format!("{wrong} wrong"),
        (wrong, repaired) => format!("{wrong} wrong, {repaired} of them repaired"),
    };
    lines.push(match check.phase {
        CheckPhase::Done => format!("{seen}: {end}"),
        CheckPhase::Failed => format!("{seen}, then it ended early: {}; {end}", check.problem),
        _ => format!("since {}: {seen} until now: {end}", utc(check.began_ms)),
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
