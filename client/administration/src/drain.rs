//! Drains: all files move away from a device.

use std::time::{Duration, Instant};

use sealstone_client::{Client, Device, DrainState, Metadata};
use sealstone_failure::text::human_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{DeviceState, Request, Response};
use sealstone_units::utc;
use serde_json::{Value, json};

use crate::devices::{fetch_device, required_device, state_name};
use crate::observer::{OperationObserver, OperationProgress, OperationUnit, WaitLimit};

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A step in the drain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainAction {
    /// Start it, with at most so many bytes per second, and wait for its end.
    Start {
        /// Bytes per second; 0: unlimited.
        rate: u64,
        /// How long to wait.
        wait: WaitLimit,
    },
    /// Let the device have files again.
    Undo,
    /// Show its progress.
    Show,
}

/// A device, and the progress of its drain.
#[derive(Clone, Debug)]
pub struct DrainReport(Device);

/// Starts, ends or shows the drain of a device.
///
/// # Errors
/// There is no such device, the server refuses, or the drain did not end in time.
pub async fn drain(
    client: &Client,
    name: &str,
    action: DrainAction,
    observer: &dyn OperationObserver,
) -> Outcome<DrainReport> {
    let id = required_device(client, name).await?;
    let (request, wait) = match action {
        DrainAction::Show => return fetch_device(client, id).await.map(DrainReport),
        DrainAction::Undo => (Request::DeviceSetState { id, state: DeviceState::Active }, WaitLimit::None),
        DrainAction::Start { rate, wait } => (Request::DeviceDrain { id, rate }, wait),
    };
    let mut device =
        match client.metadata().call(request).await.map_err(|error| Failure::from(error).at(name))? {
            Response::Device { device } => device,
            _ => return Err(Failure::unexpected_response()),
        };
    if wait == WaitLimit::None {
        return Ok(DrainReport(device));
    }
    let progress = OperationProgress::begin(observer, OperationUnit::Bytes, 1, name);
    let begun = Instant::now();
    while is_under_way(&device) {
        if wait.is_over(begun) {
            return Err(Failure::operation(format!("timed out: {}", left(&device))).at(name).hint(
                "the metadata server continues; `sealstone osd drain NAME --show` shows the progress",
            ));
        }
        if let Some(drain) = &device.drain {
            progress.set(drain.moved_bytes, drain.moved_bytes.saturating_add(drain.left_bytes));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        device = fetch_device(client, id).await?;
    }
    if device.drain.is_none() {
        return Err(Failure::operation("the drain was undone by another command").at(name));
    }
    Ok(DrainReport(device))
}

impl DrainReport {
    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        device_json(&self.0)
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        text(&self.0)
    }
}

fn is_under_way(device: &Device) -> bool {
    device.drain.as_ref().is_some_and(|drain| drain.done_ms.is_none())
}

/// Returns a device with the progress of its drain, as `--json` prints it.
pub(crate) fn device_json(device: &Device) -> Value {
    let drain = device.drain.as_ref().map(|drain| {
        let problem = Some(drain.problem.as_str()).filter(|problem| !problem.is_empty());
        json!({
            "began_ms": drain.began_ms, "rate": drain.rate, "done_ms": drain.done_ms,
            "moved_objects": drain.moved_objects, "moved_bytes": drain.moved_bytes,
            "left_objects": drain.left_objects, "left_bytes": drain.left_bytes,
            "in_use": drain.in_use, "removing": drain.removing, "problem": problem,
        })
    });
    json!({
        "device": device.id.0, "name": device.name.shown(),
        "state": state_name(device.state), "drain": drain,
    })
}

fn moved(drain: &DrainState) -> String {
    format!("{} objects ({}) moved", drain.moved_objects, human_bytes(drain.moved_bytes))
}

/// Returns the remaining work as text.
fn left(device: &Device) -> String {
    let Some(drain) = &device.drain else { return String::new() };
    let mut text = format!("{} objects ({}) left", drain.left_objects, human_bytes(drain.left_bytes));
    if drain.in_use > 0 {
        text += &format!(", {} of them in use", drain.in_use);
    }
    if drain.removing > 0 {
        text += &format!(", {} to be removed", drain.removing);
    }
    if !drain.problem.as_str().is_empty() {
        text += &format!("; {}", drain.problem.as_str());
    }
    text
}

fn text(device: &Device) -> String {
    let name = device.name.shown();
    match &device.drain {
        None if device.state == DeviceState::Draining => {
            format!("{name}: takes no new files; no files are moved")
        }
        None => format!("{name}: not drained, {}", state_name(device.state)),
        Some(drain) => match drain.done_ms {
            Some(done_ms) => format!("{name}: empty since {}, {}", utc(done_ms), moved(drain)),
            None => format!("{name}: since {} {}, {}", utc(drain.began_ms), moved(drain), left(device)),
        },
    }
}
