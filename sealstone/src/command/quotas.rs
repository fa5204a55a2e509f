//! `sealstone quota`: shows, sets and lists quotas, and counts the usage again.

use sealstone_client::{
    CheckScope, Quota, QuotaChange, QuotaCursor, QuotaDrift, QuotaSubject, quota_of_tree, quota_of_user,
};
use sealstone_failure::text::{human_bytes, set_bytes};
use sealstone_failure::{Failure, Outcome};
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::quota::{Of, Quota as Command};
use crate::command::check;
use crate::command::session::client;
use crate::output::Output;

/// Runs one of the subcommands.
pub(crate) async fn run(global: &GlobalArgs, output: Output, command: &Command) -> Outcome {
    let (client, saved) = client(global)?;
    match command {
        Command::Set { of, size, files } => {
            let of = place_of(global, of)?;
            let change =
                QuotaChange { bytes_max: size.map(|limit| limit.0), nodes_max: files.map(|limit| limit.0) };
            let quota = client.set_quota(of, change).await?;
            let over = |used: u64, max: Option<u64>| max.is_some_and(|max| used > max);
            if over(quota.bytes, quota.bytes_max) || over(quota.nodes, quota.nodes_max) {
                output.remark("current use is above the limit: existing files stay, nothing can be added");
            }
            show(output, &quota)
        }
        Command::Clear { of } => {
            let of = place_of(global, of)?;
            let quota = client.clear_quota(of.clone()).await?;
            let still_a_tree = matches!(quota.place, QuotaCursor::Tree(_)) && quota.nodes > 0;
            output.remark(match still_a_tree {
                false => format!("removed the limits of {of}"),
                true => format!("removed the limits of {of}; it remains a tree until it is empty"),
            });
            show(output, &quota)
        }
        Command::Show { user, tree } => {
            let of = match (user, tree) {
                (_, Some(path)) => quota_of_tree(global.stored(path)?)?,
                (Some(name), None) => quota_of_user(name)?,
                (None, None) => QuotaSubject::User(saved.ticket.user.clone()),
            };
            let quota = client.quota(of).await?;
            show(output, &quota)
        }
        Command::List => {
            let (mut all, mut more) = client.quotas(None).await?;
            while more {
                let (page, again) = client.quotas(all.last().map(|quota| quota.place.clone())).await?;
                all.extend(page);
                more = again;
            }
            let quotas: Vec<Value> = all.iter().map(quota_json).collect();
            output.result(&json!({ "quotas": quotas }), || text(&all))
        }
        Command::Check { repair } => {
            let begun = check::begin(&client, CheckScope::Counts, *repair).await?;
            let check = check::follow(&client, output, begun).await?;
            let findings = client.findings(check.number).await?;
            let drifts: Vec<_> = findings.iter().filter_map(|finding| finding.drift.as_ref()).collect();
            let (wrong, more) = (check.findings, check.findings > findings.len() as u64);
            let repaired = wrong > 0 && check.repaired == wrong;
            let listed: Vec<Value> = drifts.iter().map(|drift| drift_json(drift)).collect();
            let value = json!({ "nodes": check.nodes, "wrong": listed, "more": more, "repaired": repaired });
            output.result(&value, || {
                let mut lines: Vec<String> = drifts.iter().map(|drift| drift_line(drift)).collect();
                if more {
                    lines.push("and more".into());
                }
                let end = match (wrong, repaired) {
                    (0, _) => "all counts are correct".to_owned(),
                    (wrong, true) => format!("{wrong} counts were wrong and have been corrected"),
                    (wrong, false) => format!("{wrong} counts are wrong"),
                };
                lines.push(format!("{} files counted: {end}", check.nodes));
                lines.join("\n")
            })?;
            if wrong == 0 || repaired {
                return Ok(());
            }
            Err(Failure::operation(format!("{wrong} counts are wrong"))
                .hint("sealstone quota check --repair"))
        }
    }
}

fn place_of(global: &GlobalArgs, of: &Of) -> Outcome<QuotaSubject> {
    match (&of.user, &of.tree) {
        (Some(name), _) => Ok(quota_of_user(name)?),
        (None, Some(path)) => Ok(quota_of_tree(global.stored(path)?)?),
        (None, None) => Err(Failure::usage("missing --user NAME or --tree PATH")),
    }
}

fn show(output: Output, quota: &Quota) -> Outcome {
    output.result(&quota_json(quota), || text(std::slice::from_ref(quota)))
}

/// Returns a quota as `--json` prints it.
fn quota_json(quota: &Quota) -> Value {
    let mut value = json!({
        "user": null, "tree": null, "inode": null,
        "bytes": quota.bytes, "bytes_max": quota.bytes_max, "files": quota.nodes, "files_max": quota.nodes_max,
    });
    match &quota.place {
        QuotaCursor::User(name) => value["user"] = json!(name.as_str()),
        QuotaCursor::Tree(id) => {
            if let Some(path) = &quota.path {
                set_bytes(&mut value, "tree", path);
            }
            value["inode"] = json!(id.0);
        }
    }
    value
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

fn text(quotas: &[Quota]) -> String {
    let row = |of: &str, used: &str, max: &str, part: &str, files: &str, files_max: &str| {
        format!("{used:>12} {max:>12} {part:>6} {files:>10} {files_max:>10}  {of}")
    };
    let mut lines = vec![row("OF", "USED", "LIMIT", "USE", "FILES", "LIMIT")];
    lines.extend(quotas.iter().map(|quota| {
        let of = match (&quota.place, &quota.path) {
            (QuotaCursor::User(name), _) => format!("user {name}"),
            (QuotaCursor::Tree(_), Some(path)) => format!("tree {path}"),
            (QuotaCursor::Tree(id), None) => format!("tree of inode {}, renamed since", id.0),
        };
        let max = quota.bytes_max.map_or_else(|| "-".into(), human_bytes);
        let part = match quota.bytes_max {
            None | Some(0) => "-".to_owned(),
            Some(max) => format!("{:.1}%", quota.bytes as f64 * 100.0 / max as f64),
        };
        let files_max = quota.nodes_max.map_or_else(|| "-".into(), |max| max.to_string());
        row(&of, &human_bytes(quota.bytes), &max, &part, &quota.nodes.to_string(), &files_max)
    }));
    lines.join("\n")
}
