//! Accounts and groups: keys of services, and reports as text and JSON.

use std::path::Path;

use sealstone_client::{AccountKind, Client, Group, Role, ServiceKey, User};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_units::utc;
use serde_json::{Value, json};

/// Reads the key of a service from a private file.
///
/// # Errors
/// The file is unreadable, not private, or has no key.
pub fn read_service_key(file: &Path) -> Outcome<ServiceKey> {
    ServiceKey::from_text(&secret_file::read(file)?).map_err(|error| Failure::from(error).at(file.shown()))
}

/// Registers a new key of a service beside the old one; returns the login suite of the old one, and
/// the new key. `own`: the account of the session. A service replaces its own key with the old one.
///
/// # Errors
/// The old key is missing or that of another service, there are two keys already, or the server
/// refuses.
pub async fn rotate_service_key(
    client: &Client,
    own: &str,
    name: &str,
    old: Option<&ServiceKey>,
) -> Outcome<(u16, ServiceKey)> {
    let is_own = own == name;
    let (suite, key) = match old {
        Some(old) if old.user.as_str() != name => {
            return Err(Failure::usage(format!("the old key belongs to {}", old.user)).at(name));
        }
        Some(old) if is_own => (old.suite, client.rotate_own_key(old).await),
        Some(old) => (old.suite, client.rotate_key(name, old.suite).await),
        None if is_own => return Err(Failure::usage("missing option --old-key FILE")),
        None => {
            let suite = only_suite(client, name).await?;
            (suite, client.rotate_key(name, suite).await)
        }
    };
    Ok((suite, key.map_err(|error| Failure::from(error).at(name))?))
}

async fn only_suite(client: &Client, name: &str) -> Outcome<u16> {
    let users = client.users().await.map_err(|error| {
        Failure::from(error).at(name).hint("a service rotates its own key with --old-key FILE")
    })?;
    let user = users.iter().find(|user| user.name.as_str() == name);
    match user.map(|user| user.suites.as_slice()) {
        Some([suite]) => Ok(*suite),
        Some([]) | None => Err(Failure::not_found("no such service").at(name)),
        Some(_) => Err(Failure::operation("has two keys already")
            .at(name)
            .hint("retire one first: sealstone user retire-key NAME")),
    }
}

/// Sets the passphrase of an account for the paper's login. Adds the account if it is missing: with
/// a random password it has no other login.
///
/// # Errors
/// The server refuses the passphrase or the account.
pub async fn set_paper_passphrase(client: &Client, name: &str, passphrase: &str) -> Outcome {
    let at = |error| Failure::from(error).at(name);
    if !client.users().await?.iter().any(|user| user.name.as_str() == name) {
        client.add_user(name, &*client.random_password(), Role::User).await.map_err(at)?;
    }
    client.set_paper_passphrase(name, Some(passphrase)).await.map_err(at)
}

/// Returns a new or changed account as `--json` prints it; its secrets are null.
#[must_use]
pub fn account_json(name: &str, role: Option<Role>) -> Value {
    json!({
        "user": name, "role": role.map(Role::as_str), "admin": role.map(|role| role == Role::Admin),
        "code": null, "code_file": null, "expires_ms": null, "key_file": null,
    })
}

/// Returns accounts as `--json` prints them.
#[must_use]
pub fn users_json(users: &[User]) -> Value {
    let value: Vec<Value> = users
        .iter()
        .map(|user| {
            json!({
                "user": user.name.as_str(), "role": user.role.as_str(),
                "admin": user.role == Role::Admin, "kind": kind(user), "enabled": user.enabled,
                "created_ms": user.created_ms, "suites": suites(user),
                "code_until_ms": user.code_until_ms,
            })
        })
        .collect();
    json!({ "users": value })
}

/// Returns accounts as a table.
#[must_use]
pub fn users_text(users: &[User]) -> String {
    let row = |name: &str, role: &str, kind: &str, state: &str, since: &str, keys: &str| {
        format!("{name:24} {role:9} {kind:9} {state:8} {since:16} {keys}").trim_end().to_owned()
    };
    let mut lines = vec![row("NAME", "ROLE", "KIND", "STATE", "SINCE", "KEYS")];
    lines.extend(users.iter().map(|user| {
        let state = match (user.enabled, user.suites.is_empty()) {
            (false, _) => "disabled",
            (true, true) => "invited",
            (true, false) => "enabled",
        };
        let keys = match user.kind {
            AccountKind::Service => suites(user).join(","),
            AccountKind::Password | AccountKind::Directory => String::new(),
        };
        let role = user.role.as_str();
        row(user.name.as_str(), role, kind(user), state, &utc(user.created_ms), &keys)
    }));
    lines.join("\n")
}

/// Returns groups as `--json` prints them.
#[must_use]
pub fn groups_json(groups: &[Group]) -> Value {
    let value: Vec<Value> = groups
        .iter()
        .map(|group| json!({ "group": group.name.as_str(), "created_ms": group.created_ms }))
        .collect();
    json!({ "groups": value })
}

/// Returns groups as a table.
#[must_use]
pub fn groups_text(groups: &[Group]) -> String {
    let mut lines = vec![format!("{:24} {}", "NAME", "SINCE")];
    let row = |group: &Group| format!("{:24} {}", group.name.as_str(), utc(group.created_ms));
    lines.extend(groups.iter().map(row));
    lines.join("\n")
}

fn kind(user: &User) -> &'static str {
    match user.kind {
        AccountKind::Password => "person",
        AccountKind::Service => "service",
        AccountKind::Directory => "directory",
    }
}

fn suites(user: &User) -> Vec<String> {
    user.suites.iter().map(|suite| format!("{suite:04x}")).collect()
}
