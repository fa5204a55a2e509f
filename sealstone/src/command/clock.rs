//! `sealstone osd clock` and `mds clock`.

use std::path::Path;

use sealstone_daemon::machine_clock;
use sealstone_failure::text::{ShownPath as _, with_paths};
use sealstone_failure::{Failure, Outcome};

use crate::cli::clock::Clock;
use crate::output::Output;

/// Shows or resets the clock of the daemon in a folder. `marker` is a file that its folder has.
pub(crate) fn run(output: Output, command: Clock, marker: &str) -> Outcome {
    match command {
        Clock::Show { data } => {
            check_folder(&data, marker)?;
            let value = machine_clock::show(&data)?;
            output.result(&value, || lines(&value))
        }
        Clock::Reset { data } => {
            check_folder(&data, marker)?;
            let done = machine_clock::request_reset(&data)?;
            let value = with_paths(serde_json::json!({ "reset": done }), [("data", &data)]);
            output.result(&value, || {
                match done {
                    true => "the clock was reset to the wall clock of this machine",
                    false => "no daemon runs in this folder; its next start resets the clock",
                }
                .to_owned()
            })
        }
    }
}

fn check_folder(data: &Path, marker: &str) -> Outcome {
    if data.join(marker).exists() {
        return Ok(());
    }
    Err(Failure::not_found(format!("no {marker} in this folder"))
        .at(data.shown())
        .hint("use the data folder of a device or metadata server"))
}

fn lines(value: &serde_json::Value) -> String {
    let mut lines = Vec::new();
    for (name, text) in [
        ("wall_ms", "wall clock of this machine, ms since 1970"),
        ("clock_ms", "clock of the daemon"),
        ("wall_ahead_ms", "wall clock ahead of the daemon, ms"),
        ("least_ms", "least time"),
        ("trust", "trust"),
    ] {
        let shown = match &value[name] {
            serde_json::Value::Null => "unknown".to_owned(),
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        lines.push(format!("{text:42} {shown}"));
    }
    if value["reset_requested"] == true {
        lines.push("a reset is pending until the next start".to_owned());
    }
    lines.join("\n")
}
