//! Keys of the devices: lists and rotations.

use std::time::{Duration, Instant};

use sealstone_client::{Client, Metadata};
use sealstone_failure::text::hex;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{Device, DeviceId, KeyInfo, KeyLevel, KeyUse, Request, Response};
use sealstone_units::utc;
use serde_json::{Value, json};

use crate::observer::{OperationObserver, OperationProgress, OperationUnit, WaitLimit};

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The keys of devices.
#[derive(Clone, Debug)]
pub struct KeysReport {
    keys: Vec<KeyInfo>,
    devices: Vec<Device>,
}

/// A rotation of keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyRotation {
    /// Level of the keys.
    pub level: KeyLevel,
    /// One device instead of all.
    pub device: Option<DeviceId>,
    /// One partition instead of all.
    pub partition: Option<u64>,
    /// Credentials of the replaced keys are revoked at once.
    pub revoke: bool,
}

/// The result of a rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyRotationReport {
    /// Number of keys to be replaced.
    pub requested: u64,
    /// Number of keys that are not replaced yet.
    pub open: u64,
    /// Number of keys that were replaced.
    pub changed: u64,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Lists the keys of a device, or of all.
///
/// # Errors
/// The user is no administrator, or the metadata server cannot be reached.
pub async fn list_keys(client: &Client, device: Option<DeviceId>) -> Outcome<KeysReport> {
    let devices = client.device_list().await?;
    let (mut keys, mut from) = (Vec::new(), None);
    loop {
        match client.metadata().call(Request::KeyList { device, from }).await? {
            Response::Keys { keys: page, next } => {
                keys.extend(page);
                if next.is_none() || next == from {
                    return Ok(KeysReport { keys, devices });
                }
                from = next;
            }
            _ => return Err(Failure::unexpected_response()),
        }
    }
}

impl KeysReport {
    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let keys: Vec<Value> = self.keys.iter().map(|info| key_json(info, &self.devices)).collect();
        json!({ "keys": keys })
    }

    /// Returns the report as a table.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{:12} {:10} {:>12} {:>3} {:10} {:16} {:20} {:>11}",
            "DEVICE", "LEVEL", "PARTITION", "VER", "STATE", "NAME", "SINCE", "CREDENTIALS"
        )];
        lines.extend(self.keys.iter().map(|info| line(info, &self.devices)));
        lines.join("\n")
    }
}

impl KeyRotationReport {
    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "asked": self.requested, "open": self.open, "changed": self.changed, "seconds": self.seconds,
        })
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        match self.open {
            0 => format!("replaced {} keys in {:.1} s", self.changed, self.seconds),
            open => format!("{open} keys will be replaced"),
        }
    }
}

/// Rotates keys.
///
/// # Errors
/// The user is no administrator, or not all keys were replaced in time.
pub async fn rotate_keys(
    client: &Client,
    rotation: KeyRotation,
    wait: WaitLimit,
    observer: &dyn OperationObserver,
) -> Outcome<KeyRotationReport> {
    let started = Instant::now();
    let KeyRotation { level, device, partition, revoke } = rotation;
    let request = Request::KeyRotate { level, device, partition, revoke };
    let (requested, _, before) = progress(client, request).await?;
    let report = |open: u64, changed: u64| {
        let seconds = started.elapsed().as_secs_f64();
        KeyRotationReport { requested, open, changed, seconds }
    };
    if wait == WaitLimit::None {
        return Ok(report(requested, 0));
    }
    let shown = OperationProgress::begin(observer, OperationUnit::Items, requested, "keys");
    loop {
        let (open, stuck, changed) = progress(client, Request::KeyProgress { device }).await?;
        shown.set(requested.saturating_sub(open), requested);
        if open == 0 {
            return Ok(report(open, changed.saturating_sub(before)));
        }
        if wait.is_over(started) {
            return Err(keys_pending(open, stuck));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the failure of a rotation that did not end in time.
pub(crate) fn keys_pending(open: u64, stuck: u32) -> Failure {
    Failure::operation(format!("{open} keys are not replaced yet; {stuck} devices have a problem"))
        .hint("the metadata server continues; `sealstone df` shows the devices")
}

fn device_name(info: &KeyInfo, devices: &[Device]) -> String {
    let found = devices.iter().find(|device| device.id == info.device);
    found.map_or_else(|| info.device.0.to_string(), |device| device.name.to_string())
}

fn identifier(info: &KeyInfo) -> Option<String> {
    info.identifier.map(|identifier| hex(&identifier))
}

const fn usage(info: &KeyInfo) -> &'static str {
    match info.usage {
        KeyUse::Current => "current",
        KeyUse::Superseded => "superseded",
        KeyUse::Changing => "changing",
        KeyUse::Factory => "factory",
        KeyUse::Unset => "unset",
    }
}

fn is_below(info: &KeyInfo) -> bool {
    matches!(info.level, KeyLevel::Partition | KeyLevel::Working)
}

fn key_json(info: &KeyInfo, devices: &[Device]) -> Value {
    json!({
        "device": device_name(info, devices), "level": info.level.name().to_lowercase(),
        "partition": is_below(info).then_some(info.partition),
        "version": (info.level == KeyLevel::Working).then_some(info.version),
        "state": usage(info), "identifier": identifier(info),
        "set_ms": (info.set_ms > 0).then_some(info.set_ms), "dead_ms": (info.dead_ms > 0).then_some(info.dead_ms),
        "credentials": (info.level == KeyLevel::Working).then_some(info.credentials),
    })
}

fn line(info: &KeyInfo, devices: &[Device]) -> String {
    let is_working = info.level == KeyLevel::Working;
    let partition = if is_below(info) { format!("{:#x}", info.partition) } else { String::new() };
    let version = if is_working { info.version.to_string() } else { String::new() };
    let since = if info.set_ms > 0 { utc(info.set_ms) } else { String::new() };
    let credentials = if is_working { info.credentials.to_string() } else { String::new() };
    format!(
        "{:12} {:10} {partition:>12} {version:>3} {:10} {:16} {since:20} {credentials:>11}",
        device_name(info, devices),
        info.level.name().to_lowercase(),
        usage(info),
        identifier(info).unwrap_or_default(),
    )
}

/// Returns the numbers of keys to be replaced, of devices with a problem, and of replaced keys.
pub(crate) async fn progress(client: &Client, request: Request) -> Outcome<(u64, u32, u64)> {
    match client.metadata().call(request).await? {
        Response::KeyProgress { open, stuck, changed } => Ok((open, stuck, changed)),
        _ => Err(Failure::unexpected_response()),
    }
}
