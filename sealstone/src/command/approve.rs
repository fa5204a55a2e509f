//! `sealstone osd approve`: an administrator lets a device that an operator added hold files.

use sealstone_administration::{required_device, state_name};
use sealstone_channel::Pin;
use sealstone_client::{Device, Metadata};
use sealstone_cluster::wait_until_joined;
use sealstone_failure::text::hex;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{DeviceState, Request, Response};
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::command::session::client;
use crate::output::Output;

/// Runs the command.
pub(crate) async fn run(
    global: &GlobalArgs,
    output: Output,
    name: &str,
    (show, wait_s): (bool, u64),
) -> Outcome {
    let (client, _) = client(global)?;
    let id = required_device(&client, name).await?;
    if show {
        let devices = client.device_list().await?;
        let device = devices.iter().find(|device| device.id == id);
        let device = device.ok_or_else(|| Failure::not_found("the device was removed").at(name))?;
        return output.result(&value(device), || text(device));
    }
    let request = Request::DeviceSetState { id, state: DeviceState::Joining };
    let approved = client.metadata().call(request).await.map_err(|error| Failure::from(error).at(name))?;
    let Response::Device { device } = approved else {
        return Err(Failure::unexpected_response());
    };
    output.remark(text(&device));
    let device = wait_until_joined(&client, device.system_id, name, device.pin.is_some(), wait_s).await?;
    output.result(&value(&device), || format!("{name} is active"))
}

fn pin(device: &Device) -> Option<String> {
    device.pin.map(|pin| Pin::from(pin).to_string())
}

fn system_id(device: &Device) -> String {
    hex(&device.system_id)
}

fn value(device: &Device) -> Value {
    json!({
        "device": device.id.0, "name": device.name.shown(), "state": state_name(device.state),
        "url": device.url.as_str(), "system_id": system_id(device), "pin": pin(device),
    })
}

fn text(device: &Device) -> String {
    let pin = pin(device).unwrap_or_else(|| "none: no TLS".to_owned());
    format!(
        "{} ({}): {}\n  system id {}\n  certificate {pin}",
        device.name.shown(),
        state_name(device.state),
        device.url.as_str(),
        system_id(device)
    )
}
