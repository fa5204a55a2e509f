//! Accounts and groups as text and JSON.

use sealstone_client::{AccountKind, Group, Role, User};
use sealstone_units::utc;
use serde_json::{Value, json};

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
