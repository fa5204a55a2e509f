//! Scrubs of running devices, and the damage that they found.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealstone_device_server::{ControlRequest, ScrubReport, UnreadObject, send_request};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_units::utc;
use serde_json::{Value, json};

pub use sealstone_device_server::ScrubAction;

use crate::device_check::{summary, verdict};
use crate::observer::{OperationObserver, OperationProgress, OperationUnit};

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// File that every data folder of a device has.
const DEVICE_FILE: &str = "device.toml";

/// The scrubs of some devices.
#[derive(Debug)]
pub struct ScrubResult {
    reports: Vec<ScrubReport>,
    is_awaited: bool,
}

/// Starts, stops or shows scrubs of the devices in a folder: that of a device, or of `sealstone
/// up`. With an observer it waits for the end of scrubs that it starts.
///
/// # Errors
/// There is no such device, or it does not run. Damage is no error.
pub fn scrub(
    data: &Path,
    device: Option<&str>,
    action: ScrubAction,
    observer: Option<&dyn OperationObserver>,
) -> Outcome<ScrubResult> {
    let folders = folders(data, device)?;
    let mut reports = Vec::new();
    // All devices start before the first one is waited for.
    for folder in &folders {
        reports.push(request(folder, action)?);
    }
    let observer = observer.filter(|_| action == ScrubAction::Begin);
    if let Some(observer) = observer {
        for (report, folder) in reports.iter_mut().zip(&folders) {
            follow(observer, folder, report)?;
        }
    }
    Ok(ScrubResult { reports, is_awaited: observer.is_some() })
}

impl ScrubResult {
    /// Returns the result as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "devices": self.reports })
    }

    /// Returns the result as text.
    #[must_use]
    pub fn text(&self) -> String {
        self.reports.iter().map(text).collect::<Vec<_>>().join("\n")
    }

    /// Returns the outcome.
    ///
    /// # Errors
    /// A device has damaged objects, or a scrub that was awaited was stopped.
    pub fn outcome(&self) -> Outcome {
        let unfinished = |report: &&ScrubReport| report.ended_ms < report.began_ms;
        if let Some(report) = self.reports.iter().find(unfinished).filter(|_| self.is_awaited) {
            return Err(Failure::operation("the scrub was stopped")
                .at(&report.device)
                .hint("run `sealstone scrub` again"));
        }
        self.reports.iter().try_for_each(|report| verdict(&report.device, report.damaged, None))
    }
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
fn follow(observer: &dyn OperationObserver, folder: &Path, report: &mut ScrubReport) -> Outcome {
    let progress =
        OperationProgress::begin(observer, OperationUnit::Bytes, report.bytes_total, &report.device);
    while report.running {
        // Blocks that several objects share are read once per object.
        progress.set(report.bytes, report.bytes_total.max(report.bytes));
        std::thread::sleep(POLL_INTERVAL);
        *report = request(folder, ScrubAction::Show)?;
    }
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
