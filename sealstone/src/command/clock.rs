//! `sealstone osd clock` and `mds clock`.

use std::path::Path;

use sealstone_administration::clock_text;
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
            output.result(&value, || clock_text(&value))
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
