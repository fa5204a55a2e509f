//! `sealstone osd drain`: moves all files away from a device, shows progress, and undoes it.

use std::time::{Duration, Instant};

use sealstone_client::{Client, Device, DeviceId, DrainState, Metadata};
use sealstone_failure::text::human_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{DeviceState, Request, Response};
use sealstone_units::utc;
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::drain::DrainArgs;
use crate::command::keys;
use crate::command::session::client;
use crate::output::Output;

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Runs the command.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &DrainArgs) -> Outcome {
    let (client, _) = client(global)?;
    let name = arguments.device.as_str();
    let id = keys::device(&client, Some(name))
        .await?
        .ok_or_else(|| Failure::not_found("no such device").at(name))?;
    if arguments.show {
        let device = fetch_device(&client, id).await?;
        return output.result(&device_json(&device), || text(&device));
    }
    let request = if arguments.undo {
        Request::DeviceSetState { id, state: DeviceState::Active }
    } else {
        Request::DeviceDrain { id, rate: arguments.rate }
    };
    let mut device =
        match client.metadata().call(request).await.map_err(|error| Failure::from(error).at(name))? {
            Response::Device { device } => device,
            _ => return Err(Failure::unexpected_response()),
        };
    if arguments.undo || arguments.no_wait {
        return output.result(&device_json(&device), || text(&device));
    }
    let bar = output.progress(Some(1), name);
    let begun = Instant::now();
    while is_under_way(&device) {
        if arguments.wait.is_some_and(|seconds| begun.elapsed() > Duration::from_secs(seconds)) {
            bar.finish_and_clear();
            return Err(Failure::operation(format!("timed out: {}", left(&device))).at(name).hint(
                "the metadata server continues; `sealstone osd drain NAME --show` shows the progress",
            ));
        }
        if let Some(drain) = &device.drain {
            bar.set_length(drain.moved_bytes.saturating_add(drain.left_bytes));
            bar.set_position(drain.moved_bytes);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        device = fetch_device(&client, id).await?;
    }
    bar.finish_and_clear();
    if device.drain.is_none() {
        return Err(Failure::operation("the drain was undone by another command").at(name));
    }
    output.result(&device_json(&device), || text(&device))
}

async fn fetch_device(client: &Client, id: DeviceId) -> Outcome<Device> {
    let devices = client.device_list().await?;
    devices
        .into_iter()
        .find(|device| device.id == id)
        .ok_or_else(|| Failure::not_found("the device was removed"))
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
        "state": keys::state_name(device.state), "drain": drain,
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
        None => format!("{name}: not drained, {}", keys::state_name(device.state)),
        Some(drain) => match drain.done_ms {
            Some(done_ms) => format!("{name}: empty since {}, {}", utc(done_ms), moved(drain)),
            None => format!("{name}: since {} {}, {}", utc(drain.began_ms), moved(drain), left(device)),
        },
    }
}
