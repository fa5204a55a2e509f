//! Quotas as text and JSON.

use sealstone_client::{Quota, QuotaCursor};
use sealstone_failure::text::{human_bytes, set_bytes};
use serde_json::{Value, json};

/// Returns a quota as `--json` prints it.
#[must_use]
pub fn quota_json(quota: &Quota) -> Value {
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

/// Returns quotas as a table.
#[must_use]
pub fn quotas_text(quotas: &[Quota]) -> String {
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
