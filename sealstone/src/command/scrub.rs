//! `sealstone scrub`: starts, follows and stops scrubs of running devices, and shows the damage
//! that they found.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealstone_device_server::{ControlRequest, ScrubAction, ScrubReport, UnreadObject, send_request};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_units::utc;

use crate::cli::ScrubArgs;
use crate::command::osd_check::{summary, verdict};
use crate::output::Output;

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// File that every data folder of a device has.
const DEVICE_FILE: &str = "device.toml";

/// Runs the command.
pub(crate) fn command(output: Output, arguments: &ScrubArgs) -> Outcome {
    let folders = folders(&arguments.data, arguments.device.as_deref())?;
    let action = match (arguments.show, arguments.stop) {
        (true, _) => ScrubAction::Show,
        (_, true) => ScrubAction::Stop,
        _ => ScrubAction::Begin,
    };
    let mut all = Vec::new();
    // All devices start before the first one is waited for.
    for folder in &folders {
        all.push(request(folder, action)?);
    }
    if action == ScrubAction::Begin && !arguments.no_wait {
        for (report, folder) in all.iter_mut().zip(&folders) {
            follow(output, folder, report)?;
        }
    }
    output.result(&serde_json::json!({ "devices": all }), || {
        all.iter().map(text).collect::<Vec<_>>().join("\n")
    })?;
    if action == ScrubAction::Begin && !arguments.no_wait {
        let unfinished = all.iter().find(|report| report.ended_ms < report.began_ms);
        if let Some(report) = unfinished {
            return Err(Failure::operation("the scrub was stopped")
                .at(&report.device)
                .hint("run `sealstone scrub` again"));
        }
    }
    all.iter().try_for_each(|report| verdict(&report.device, report.damaged, None))
}

/// Returns the folders of the selected devices.
fn folders(data: &Path, device: Option<&str>) -> Outcome<Vec<PathBuf>> {
    let at = |error: std::io::Error| Failure::from(error).at(data.shown());
    if data.join(DEVICE_FILE).exists() && device.is_none() {
        return Ok(vec![data.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(data).map_err(at)? {
        let path = entry.map_err(at)?.path();
        let meant = device.is_none_or(|device| path.file_name().is_some_and(|name| name == device));
        if meant && path.join(DEVICE_FILE).exists() {
            found.push(path);
        }
    }
    found.sort();
    match (found.is_empty(), device) {
        (false, _) => Ok(found),
        (true, Some(device)) => Err(Failure::not_found(format!("no device named '{device}'"))
            .at(data.shown())
            .hint("ls shows its folders")),
        (true, None) => Err(Failure::not_found("no device in this folder")
            .at(data.shown())
            .hint("use the data folder of a device or of `sealstone up`")),
    }
}

fn request(folder: &Path, action: ScrubAction) -> Outcome<ScrubReport> {
    let value = send_request(folder, &ControlRequest::Scrub(action))?.ok_or_else(|| {
        Failure::operation("no running device in this folder")
            .at(folder.shown())
            .hint(format!("start it, or check it offline: sealstone osd check --data {}", folder.shown()))
    })?;
    serde_json::from_value(value).map_err(Failure::operation)
}

/// Waits until the scrub ends.
fn follow(output: Output, folder: &Path, report: &mut ScrubReport) -> Outcome {
    let bar = output.progress(Some(report.bytes_total), &report.device);
    while report.running {
        // Blocks that several objects share are read once per object.
        bar.set_length(report.bytes_total.max(report.bytes));
        bar.set_position(report.bytes);
        std::thread::sleep(POLL_INTERVAL);
        *report = request(folder, ScrubAction::Show)?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn text(report: &ScrubReport) -> String {
    let mut lines: Vec<String> =
        report.findings.iter().map(|found| format!("object {}", found.line())).collect();
    if report.more {
        lines.push("and more".into());
    }
    lines.extend(report.unread_objects.iter().map(|one| {
        let UnreadObject { object, at, error } = one;
        format!("object {object}: cannot be read from byte {at}: {error}; the next scrub retries")
    }));
    let mut summary = summary(&report.device, report.objects, report.bytes, report.damaged);
    if report.unread > 0 {
        summary += &format!(", {} could not be read completely", report.unread);
    }
    if report.digested > 0 {
        summary += &format!(", {} missing digests computed", report.digested);
    }
    lines.push(match (report.running, report.ended_ms, report.began_ms) {
        (true, _, _) => format!(
            "{summary}; in progress, {} of {} objects",
            report.objects,
            report.objects_total.max(report.objects)
        ),
        (false, _, 0) => {
            format!("{}: never scrubbed, {} objects known to be damaged", report.device, report.damaged)
        }
        (false, ended, began) if ended < began => format!("{summary}; stopped"),
        (false, ended, _) => format!("{summary}; ended {}", utc(ended)),
    });
    lines.join("\n")
}
