//! Capacity of the devices.

use sealstone_client::{Client, Device, DiskFree};
use sealstone_failure::Outcome;
use sealstone_failure::text::human_bytes;
use sealstone_units::columns;
use serde_json::{Value, json};

use crate::devices::state_name;
use crate::drain::device_json;

/// Capacity and use of all devices, and of each.
#[derive(Clone, Debug)]
pub struct CapacityReport {
    free: DiskFree,
    devices: Vec<Device>,
}

impl CapacityReport {
    /// Requests the capacity from the metadata server.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn load(client: &Client) -> Outcome<Self> {
        Ok(Self { free: client.disk_free().await?, devices: client.device_list().await? })
    }

    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let free = &self.free;
        json!({
            "total": free.total, "used": free.used, "available": free.total.saturating_sub(free.used),
            "devices": self.devices.iter().map(|device| json!({
                "id": device.id.0, "name": device.name.shown(), "url": device.url.as_str(),
                "state": state_name(device.state), "total": device.total, "used": device.used,
                "speed": Some(device.speed).filter(|speed| *speed > 0),
                "drain": device_json(device)["drain"],
            })).collect::<Vec<_>>(),
        })
    }

    /// Returns the report as a table.
    #[must_use]
    pub fn text(&self) -> String {
        let free = &self.free;
        let percent = |total: u64, used: u64| {
            if total == 0 { 0.0 } else { used as f64 * 100.0 / total as f64 }
        };
        let row = |name: &str, total: u64, used: u64, state: String| {
            let available = human_bytes(total.saturating_sub(used));
            let share = format!("{:.1}%", percent(total, used));
            [name.to_owned(), human_bytes(total), human_bytes(used), available, share, state]
        };
        let mut rows = vec![["DEVICE", "SIZE", "USED", "AVAIL", "USE", "STATE"].map(ToOwned::to_owned)];
        for device in &self.devices {
            let mut state = state_name(device.state).to_owned();
            match &device.drain {
                Some(drain) if drain.done_ms.is_some() => state += ", empty",
                Some(drain) => state += &format!(", {} objects left", drain.left_objects),
                None => {}
            }
            rows.push(row(&device.name.shown(), device.total, device.used, state));
        }
        rows.push(row("all", free.total, free.used, format!("{} of {} active", free.active, free.devices)));
        columns(&rows, [false, true, true, true, true, false])
    }
}
