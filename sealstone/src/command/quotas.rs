//! `sealstone quota`: shows, sets and lists quotas, and counts the usage again.

use sealstone_administration::{count_again, quota_json, quotas_text};
use sealstone_client::{Quota, QuotaChange, QuotaCursor, QuotaSubject, quota_of_tree, quota_of_user};
use sealstone_failure::{Failure, Outcome};
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::quota::{Of, Quota as Command};
use crate::command::progress::ShownOperation;
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
            output.result(&json!({ "quotas": quotas }), || quotas_text(&all))
        }
        Command::Check { repair } => {
            let report = count_again(&client, *repair, &ShownOperation::new(output)).await?;
            output.result(&report.json(), || report.text())?;
            report.outcome()
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
    output.result(&quota_json(quota), || quotas_text(std::slice::from_ref(quota)))
}
