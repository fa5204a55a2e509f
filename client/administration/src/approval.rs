//! Devices that wait for an approval, as text and JSON.

use sealstone_channel::Pin;
use sealstone_client::Device;
use sealstone_failure::text::hex;
use serde_json::{Value, json};

use crate::devices::state_name;

fn pin(device: &Device) -> Option<String> {
    device.pin.map(|pin| Pin::from(pin).to_string())
}

fn system_id(device: &Device) -> String {
    hex(&device.system_id)
}

/// Returns a device with its certificate as `--json` prints it.
#[must_use]
pub fn approval_json(device: &Device) -> Value {
    json!({
        "device": device.id.0, "name": device.name.shown(), "state": state_name(device.state),
        "url": device.url.as_str(), "system_id": system_id(device), "pin": pin(device),
    })
}

/// Returns a device with its certificate as text, for a comparison with that of the device.
#[must_use]
pub fn approval_text(device: &Device) -> String {
    let pin = pin(device).unwrap_or_else(|| "none: no TLS".to_owned());
    format!(
        "{} ({}): {}\n  system id {}\n  certificate {pin}",
        device.name.shown(),
        state_name(device.state),
        device.url.as_str(),
        system_id(device)
    )
}
