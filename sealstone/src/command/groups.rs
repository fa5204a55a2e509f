//! `sealstone group`: groups and their members, for administrators.

use sealstone_administration::{groups_json, groups_text};
use sealstone_client::Client;
use sealstone_failure::{Failure, Outcome, PartResults, for_each};

use crate::cli::{GlobalArgs, Group};
use crate::command::session::client;
use crate::output::Output;

/// `sealstone group …`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, command: &Group) -> Outcome {
    let (client, _) = client(global)?;
    match command {
        Group::Add { name, users } => {
            client.add_group(name).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("added {name}"));
            let results = set_members(&client, output, name, users, true).await?;
            let value = serde_json::json!({ "group": name, "users": results.done });
            output.parts(results, value)
        }
        Group::List => {
            let groups = client.groups().await?;
            output.result(&groups_json(&groups), || groups_text(&groups))
        }
        Group::Members { name } => {
            let members = client.members(name).await.map_err(|error| Failure::from(error).at(name))?;
            let value: Vec<&str> = members.iter().map(sealstone_client::UserName::as_str).collect();
            if !output.is_json() && value.is_empty() {
                return Ok(());
            }
            output.result(&serde_json::json!({ "group": name, "users": value }), || value.join("\n"))
        }
        Group::Join { name, users } | Group::Leave { name, users } => {
            let member = matches!(command, Group::Join { .. });
            let results = set_members(&client, output, name, users, member).await?;
            let value = serde_json::json!({ "group": name, "users": results.done, "member": member });
            output.parts(results, value)
        }
        Group::Rm { name } => {
            client.remove_group(name).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("removed {name}"));
            output.done(&serde_json::json!({ "group": name }))
        }
    }
}

/// Adds users to a group or removes them, and returns those that were.
async fn set_members(
    client: &Client,
    output: Output,
    group: &str,
    users: &[String],
    member: bool,
) -> Outcome<PartResults<String>> {
    let results = for_each(&output, users, async |user| {
        let changed = client.set_member(group, user, member).await;
        changed.map_err(|error| Failure::from(error).at_both(group, ", ", user))?;
        Ok(user.clone())
    });
    results.await
}
