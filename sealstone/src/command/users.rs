//! Accounts, for administrators.

use crate::cli::{Global, User};
use crate::command::session::{client, password};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, utc};

/// `sealstone user …`.
pub(crate) async fn run(global: &Global, output: Output, command: &User) -> Outcome {
    let (client, saved) = client(global)?;
    match command {
        User::Add { name, admin, password: source } => {
            let password = password(source, &format!("Password for {name}"), true)?;
            client
                .add_user(name, password.as_bytes(), *admin)
                .await
                .map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("added {name}"));
            output.done(&serde_json::json!({ "user": name, "admin": admin }))
        }
        User::Passwd { name, password: source } => {
            let name = name.as_deref().unwrap_or_else(|| saved.ticket.user.as_str());
            let password = password(source, &format!("New password for {name}"), true)?;
            client
                .set_password(name, password.as_bytes())
                .await
                .map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("changed the password of {name}"));
            output.done(&serde_json::json!({ "user": name }))
        }
        User::List => {
            let users = client.users().await?;
            let value: Vec<_> = users
                .iter()
                .map(|user| {
                    serde_json::json!({
                        "user": user.name.as_str(), "admin": user.admin, "enabled": user.enabled,
                        "created_ms": user.created_ms,
                    })
                })
                .collect();
            output.result(&value, || {
                let mut lines = vec![format!("{:24} {:6} {:8} {}", "NAME", "ROLE", "STATE", "SINCE")];
                lines.extend(users.iter().map(|user| {
                    let role = if user.admin { "admin" } else { "user" };
                    let state = if user.enabled { "enabled" } else { "disabled" };
                    format!("{:24} {role:6} {state:8} {}", user.name.as_str(), utc(user.created_ms))
                }));
                lines.join("\n")
            })
        }
        User::Enable { name } | User::Disable { name } => {
            let enabled = matches!(command, User::Enable { .. });
            client.set_user_enabled(name, enabled).await.map_err(|error| Failure::from(error).at(name))?;
            output
                .remark(format!("{name} {}", if enabled { "may log in" } else { "may not log in any more" }));
            output.done(&serde_json::json!({ "user": name, "enabled": enabled }))
        }
        User::Rm { name } => {
            client.remove_user(name).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("removed {name}"));
            output.done(&serde_json::json!({ "user": name }))
        }
    }
}
