//! Engines of the devices.

use sealstone_client::{Client, Method};
use sealstone_failure::{Failure, Outcome};
use serde_json::{Value, json};

/// The engines of all devices.
#[derive(Clone, Debug)]
pub struct EngineList {
    values: Vec<Value>,
    lines: Vec<String>,
}

impl EngineList {
    /// Requests the engines from all devices. One that does not answer is in the list with its
    /// failure.
    ///
    /// # Errors
    /// The session is over, or the metadata server cannot be reached.
    pub async fn load(client: &Client, method: Method) -> Outcome<Self> {
        let (mut values, mut lines) = (Vec::new(), Vec::new());
        for device in client.device_list().await? {
            let name = device.name.shown().into_owned();
            let found = match client.device_engines(device.id, method).await {
                Ok(found) => found,
                Err(error) => {
                    let failure = Failure::from(error);
                    if failure.fatal {
                        return Err(failure);
                    }
                    lines.push(format!("{name:16} {failure}"));
                    values.push(json!({ "id": device.id.0, "device": name, "error": failure.message }));
                    continue;
                }
            };
            if found.is_empty() {
                lines.push(format!("{name:16} runs no functions"));
            }
            let engines: Vec<Value> = found
                .iter()
                .map(|one| {
                    let entry = &one.entry;
                    let state = if entry.available { "available".to_owned() } else { format!("unavailable: {}", entry.detail) };
                    lines.push(format!(
                        "{name:16} {:7} API {} to {}  {}  {state}",
                        one.engine.name(),
                        entry.api_lowest,
                        entry.api_highest,
                        entry.version
                    ));
                    json!({
                        "engine": one.engine.name(), "available": entry.available, "version": entry.version,
                        "api": [entry.api_lowest.to_string(), entry.api_highest.to_string()], "detail": entry.detail,
                    })
                })
                .collect();
            values.push(json!({ "id": device.id.0, "device": name, "engines": engines }));
        }
        Ok(Self { values, lines })
    }

    /// Returns the list as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "devices": self.values })
    }

    /// Returns the list as text.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }
}
