//! The clock of a daemon as text.

use serde_json::Value;

/// Returns the state of a clock, as the daemon reports it, as text.
#[must_use]
pub fn clock_text(value: &Value) -> String {
    let mut lines = Vec::new();
    for (name, text) in [
        ("wall_ms", "wall clock of this machine, ms since 1970"),
        ("clock_ms", "clock of the daemon"),
        ("wall_ahead_ms", "wall clock ahead of the daemon, ms"),
        ("least_ms", "least time"),
        ("trust", "trust"),
    ] {
        let shown = match &value[name] {
            Value::Null => "unknown".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        lines.push(format!("{text:42} {shown}"));
    }
    if value["reset_requested"] == true {
        lines.push("a reset is pending until the next start".to_owned());
    }
    lines.join("\n")
}
