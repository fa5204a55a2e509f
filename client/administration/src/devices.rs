//! Devices by their names.

use sealstone_client::{Client, Device, DeviceId};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::DeviceState;

/// Returns the name of a device's state in JSON and text.
pub(crate) const fn state_name(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Joining => "joining",
        DeviceState::Active => "active",
        DeviceState::Draining => "draining",
        DeviceState::Unreachable => "unreachable",
        DeviceState::Pending => "pending",
    }
}

/// Returns the number of the device of a name.
///
/// # Errors
/// There is no such device.
pub async fn required_device(client: &Client, name: &str) -> Outcome<DeviceId> {
    let devices = client.device_list().await?;
    // A device that is not approved yet may have the name of another one.
    let pending = |device: &&Device| device.state == DeviceState::Pending;
    let found = devices.iter().filter(|device| device.name.shown() == name).min_by_key(pending);
    found.map(|device| device.id).ok_or_else(|| Failure::not_found("no such device").at(name))
}

/// Returns the number of the device of a name; `None` without a name.
///
/// # Errors
/// There is no such device.
pub async fn device_of_name(client: &Client, name: Option<&str>) -> Outcome<Option<DeviceId>> {
    match name {
        Some(name) => required_device(client, name).await.map(Some),
        None => Ok(None),
    }
}

/// Returns a device by its number.
///
/// # Errors
/// It was removed.
pub async fn fetch_device(client: &Client, id: DeviceId) -> Outcome<Device> {
    let devices = client.device_list().await?;
    devices
        .into_iter()
        .find(|device| device.id == id)
        .ok_or_else(|| Failure::not_found("the device was removed"))
}
