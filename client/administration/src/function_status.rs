//! Engines and isolation layers of a running device.

use std::fmt::Write as _;
use std::path::Path;

use sealstone_device_server::{ControlRequest, FunctionStatus, send_request};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};

/// Requests the state of functions from the device that runs in a folder.
///
/// # Errors
/// No device runs there.
pub fn function_status(data: &Path) -> Outcome<FunctionStatus> {
    let value = send_request(data, &ControlRequest::Functions)?.ok_or_else(|| {
        Failure::operation("no device runs in this folder")
            .at(data.shown())
            .hint("start it with `sealstone osd serve`")
    })?;
    serde_json::from_value(value).map_err(Failure::operation)
}

/// Returns the state of functions as text.
#[must_use]
pub fn function_status_text(status: &FunctionStatus) -> String {
    let mut text = format!(
        "functions: {} running, {} queued, {} ended\nisolation: {}",
        status.jobs_running, status.jobs_queued, status.jobs_kept, status.isolation
    );
    for engine in &status.engines {
        // Writing to a String cannot fail.
        let _ = match engine.available {
            true => write!(text, "\nengine {}: available", engine.engine),
            false => write!(text, "\nengine {}: not available: {}", engine.engine, engine.detail),
        };
        for layer in &engine.layers {
            let reason = if layer.detail.is_empty() { String::new() } else { format!(" ({})", layer.detail) };
            let _ = write!(text, "\n  {}: {}{reason}", layer.layer, layer.state);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_engines_and_layers() {
        let status: FunctionStatus = serde_json::from_str(
            r#"{"isolation":"best-effort","jobs_queued":0,"jobs_running":1,"jobs_kept":2,"engines":[
                {"engine":"c","program":"/e","available":true,"detail":"","layers":[
                    {"layer":"seccomp","state":"active","detail":""},
                    {"layer":"memory-cgroup","state":"unavailable","detail":"no controller"}]},
                {"engine":"java","program":null,"available":false,"detail":"no program","layers":[]}]}"#,
        )
        .unwrap();
        let text = function_status_text(&status);
        assert!(text.contains(
            "engine c: available\n  seccomp: active\n  memory-cgroup: unavailable (no controller)"
        ));
        assert!(text.ends_with("engine java: not available: no program"));
    }
}
