//! `sealstone osd approve`: an administrator lets a device that an operator added hold files.

use sealstone_administration::{approval_json, approval_text, fetch_device, required_device};
use sealstone_client::Metadata;
use sealstone_cluster::wait_until_joined;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{DeviceState, Request, Response};

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
        let device = fetch_device(&client, id).await.map_err(|failure| failure.at(name))?;
        return output.result(&approval_json(&device), || approval_text(&device));
    }
    let request = Request::DeviceSetState { id, state: DeviceState::Joining };
    let approved = client.metadata().call(request).await.map_err(|error| Failure::from(error).at(name))?;
    let Response::Device { device } = approved else {
        return Err(Failure::unexpected_response());
    };
    output.remark(approval_text(&device));
    let device = wait_until_joined(&client, device.system_id, name, device.pin.is_some(), wait_s).await?;
    output.result(&approval_json(&device), || format!("{name} is active"))
}
