//! Why the bytes of a file lie where they lie, for people and for scripts.

use sealstone_client::{Client, Device, FilePath, Layout, PlacementRecord, WidthBound};
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::output::{human_bytes, utc};

/// Where a file is, why there, and all devices as they are now.
pub(crate) struct Placement {
    layout: Option<Layout>,
    placed: Option<PlacementRecord>,
    devices: Vec<Device>,
}

/// Asks for it.
pub(crate) async fn of(client: &Client, path: &FilePath) -> Outcome<Placement> {
    let (layout, placed) = client.placement(path).await.map_err(|error| Failure::from(error).at(path))?;
    Ok(Placement { layout, placed, devices: client.device_list().await? })
}

impl Placement {
    /// One row for each object: its device, what was thought of it, how it is now.
    pub(crate) fn json(&self) -> Value {
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
                "state": device.map(state),
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

    /// The same as lines of `sealstone stat`.
    pub(crate) fn lines(&self, version: u64) -> Vec<String> {
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
                    ": {} when chosen, {:.1} % full, chance x{:.2}",
                    chosen.condition.as_str(),
                    f64::from(chosen.fill) / 10.0,
                    f64::from(chosen.weight) / 100.0,
                )
            });
            let now = device.map(|device| {
                let full = device.used as f64 * 100.0 / device.total.max(1) as f64;
                format!("; now {}, {full:.1} % full", state(device))
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

fn state(device: &Device) -> String {
    format!("{:?}", device.state).to_lowercase()
}

/// The reason in words.
fn why(placed: &PlacementRecord) -> String {
    let size = match (placed.size_hint, placed.outgrew) {
        (Some(size), Some(1)) => format!("at {} it had outgrown its one object", human_bytes(size)),
        (Some(size), Some(width)) => format!("at {} it had outgrown its {width} objects", human_bytes(size)),
        (Some(size), None) => format!("{} were announced", human_bytes(size)),
        (None, _) => "the size was not known".to_owned(),
    };
    let width = placed.chosen.len();
    let bound = match placed.bound {
        WidthBound::Small => "a small file is one object, on a device drawn by capacity and use".to_owned(),
        WidthBound::Units => format!("it has no more than {width} stripe units"),
        WidthBound::Devices => format!("no more than {width} devices were in as good a condition"),
        WidthBound::Speed => format!("{width} devices of their speeds are enough for one stream"),
        WidthBound::Room => format!("{width} devices had room for their share"),
        WidthBound::Configured => format!("the server stripes over {width} devices at most"),
    };
    let out = match placed.left_out {
        0 => String::new(),
        out => format!(" and {out} could not (draining, silent, full or new)"),
    };
    format!("{size}; {bound}; {} devices could be chosen{out}", placed.considered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_client::{ChosenDevice, DeviceCondition};

    #[test]
    fn every_reason_is_told_with_its_figures() {
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
            let said = why(&placed);
            assert!(said.starts_with("3.0 MiB were announced; "), "{said}");
            assert!(
                said.contains('3') && said.contains("7 devices could be chosen and 2 could not"),
                "{said}"
            );
            placed.outgrew = Some(2);
            assert!(why(&placed).starts_with("at 3.0 MiB it had outgrown its 2 objects; "));
        }
    }
}
