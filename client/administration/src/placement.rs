//! Placement of a file: its objects, their devices, and the reason of the choice.

use sealstone_client::{Client, Device, FilePath, Layout, PlacementRecord, WidthBound};
use sealstone_failure::text::human_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_units::utc;
use serde_json::{Value, json};

use crate::devices::state_name;

/// Placement of a file, and the present state of all devices.
#[derive(Clone, Debug)]
pub struct PlacementReport {
    layout: Option<Layout>,
    placed: Option<PlacementRecord>,
    devices: Vec<Device>,
}

impl PlacementReport {
    /// Requests the placement of a file.
    ///
    /// # Errors
    /// There is no such file, or the user may not read it.
    pub async fn of_file(client: &Client, path: &FilePath) -> Outcome<Self> {
        let (layout, placed) = client.placement(path).await.map_err(|error| Failure::from(error).at(path))?;
        Ok(Self { layout, placed, devices: client.device_list().await? })
    }

    /// Returns the placement as `--json` prints it: each object with its device, then and now.
    #[must_use]
    pub fn json(&self) -> Value {
        let Some(layout) = &self.layout else { return Value::Null };
        let object = |(at, object): (usize, &sealstone_client::ObjectRef)| {
            let device = self.devices.iter().find(|device| device.id == object.device);
            let chosen = self.placed.as_ref().and_then(|placed| placed.chosen.get(at));
            json!({
                "device": object.device.0,
                "name": device.map(|device| device.name.shown()),
                "partition": object.object.partition,
                "object": object.object.object,
                "chosen": chosen.map(|chosen| json!({
                    "condition": chosen.condition.as_str(),
                    "fill": f64::from(chosen.fill) / 1000.0,
                    "weight": f64::from(chosen.weight) / 100.0,
                })),
                "state": device.map(|device| state_name(device.state)),
                "fill": device.map(|device| device.used as f64 / device.total.max(1) as f64),
            })
        };
        let why = self.placed.as_ref().map(|placed| {
            json!({
                "at_ms": placed.at_ms, "size_hint": placed.size_hint, "bound": placed.bound.as_str(),
                "why": why(placed), "considered": placed.considered, "left_out": placed.left_out,
                "outgrew": placed.outgrew,
            })
        });
        json!({
            "kind": layout.kind_name(), "width": layout.width(), "unit": layout.stripe_unit(), "reason": why,
            "objects": layout.objects().iter().enumerate().map(object).collect::<Vec<_>>(),
        })
    }

    /// Returns the placement as lines of text.
    #[must_use]
    pub fn lines(&self, version: u64) -> Vec<String> {
        let Some(layout) = &self.layout else {
            return vec![format!("  layout  no objects, version {version}")];
        };
        let shape = match layout.stripe_unit() {
            None => "one object".to_owned(),
            Some(unit) => {
                format!("stripes of {} over {} objects", human_bytes(u64::from(unit)), layout.width())
            }
        };
        let mut lines = vec![format!("  layout  {shape}, version {version}")];
        if let Some(placed) = &self.placed {
            lines.push(format!("  chosen  {}: {}", utc(placed.at_ms), why(placed)));
        }
        for (at, object) in layout.objects().iter().enumerate() {
            let device = self.devices.iter().find(|device| device.id == object.device);
            let name = device
                .map_or_else(|| format!("device {}", object.device.0), |one| one.name.shown().into_owned());
            let then = self.placed.as_ref().and_then(|placed| placed.chosen.get(at)).map(|chosen| {
                format!(
                    ": {} when chosen, {:.1} % full, weight x{:.2}",
                    chosen.condition.as_str(),
                    f64::from(chosen.fill) / 10.0,
                    f64::from(chosen.weight) / 100.0,
                )
            });
            let now = device.map(|device| {
                let full = device.used as f64 * 100.0 / device.total.max(1) as f64;
                format!("; now {}, {full:.1} % full", state_name(device.state))
            });
            lines.push(format!(
                "      on  {name} {}{}{}",
                object.object,
                then.unwrap_or_default(),
                now.unwrap_or_default(),
            ));
        }
        lines
    }
}

/// Returns the reason as text.
fn why(placed: &PlacementRecord) -> String {
    let size = match (placed.size_hint, placed.outgrew) {
        (Some(size), Some(1)) => format!("moved at {} from one object", human_bytes(size)),
        (Some(size), Some(width)) => format!("moved at {} from {width} objects", human_bytes(size)),
        (Some(size), None) => format!("announced size {}", human_bytes(size)),
        (None, _) => "unknown size".to_owned(),
    };
    let width = placed.chosen.len();
    let bound = match placed.bound {
        WidthBound::Small => "a small file has one object, on a device chosen by capacity and use".to_owned(),
        WidthBound::Units => format!("it has only {width} stripe units"),
        WidthBound::Devices => format!("only {width} devices were in equally good condition"),
        WidthBound::Speed => format!("{width} devices are fast enough for one stream"),
        WidthBound::Room => format!("only {width} devices had free space for their share"),
        WidthBound::Configured => format!("the server stripes over at most {width} devices"),
    };
    let out = match placed.left_out {
        0 => String::new(),
        out => format!(", {out} were not (draining, unreachable, full or new)"),
    };
    format!("{size}; {bound}; {} devices were eligible{out}", placed.considered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_client::{ChosenDevice, DeviceCondition};

    #[test]
    fn every_reason_has_its_numbers() {
        let chosen = vec![ChosenDevice { condition: DeviceCondition::Good, fill: 10, weight: 100 }; 3];
        for bound in WidthBound::ALL {
            let (size_hint, chosen) = (Some(3 << 20), chosen.clone());
            let mut placed = PlacementRecord {
                at_ms: 1,
                size_hint,
                bound: *bound,
                considered: 7,
                left_out: 2,
                chosen,
                outgrew: None,
            };
            let reason = why(&placed);
            assert!(reason.starts_with("announced size 3.0 MiB; "), "{reason}");
            assert!(
                reason.contains('3') && reason.contains("7 devices were eligible, 2 were not"),
                "{reason}"
            );
            placed.outgrew = Some(2);
            assert!(why(&placed).starts_with("moved at 3.0 MiB from 2 objects; "));
        }
    }
}
