//! `sealstone mds keys`: lists and rotates the keys of the devices.

use std::time::{Duration, Instant};

use sealstone_client::{Client, Metadata};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{Device, DeviceId, DeviceState, KeyInfo, KeyLevel, KeyUse, Request, Response};
use sealstone_units::utc;

use crate::cli::GlobalArgs;
use crate::cli::keys::{Level, RotateArgs};
use crate::command::session::client;
use crate::output::Output;

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

const fn level(level: Level) -> KeyLevel {
    match level {
        Level::Working => KeyLevel::Working,
        Level::Partition => KeyLevel::Partition,
        Level::Root => KeyLevel::Root,
        Level::Master => KeyLevel::Master,
    }
}

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
pub(crate) async fn device(client: &Client, name: Option<&str>) -> Outcome<Option<DeviceId>> {
    let Some(name) = name else { return Ok(None) };
    let devices = client.device_list().await?;
    // A device that is not approved yet may have the name of another one.
    let pending = |device: &&Device| device.state == DeviceState::Pending;
    let found = devices.iter().filter(|device| device.name.shown() == name).min_by_key(pending);
    let found = found.ok_or_else(|| Failure::not_found("no such device").at(name))?;
    Ok(Some(found.id))
}

/// `sealstone mds keys list`.
pub(crate) async fn list(global: &GlobalArgs, output: Output, name: Option<&str>) -> Outcome {
    let (client, _) = client(global)?;
    let device = device(&client, name).await?;
    let devices = client.device_list().await?;
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        match client.metadata().call(Request::KeyList { device, from }).await? {
            Response::Keys { keys, next } => {
                all.extend(keys);
                if next.is_none() || next == from {
                    break;
                }
                from = next;
            }
            _ => return Err(Failure::unexpected_response()),
        }
    }
    let value: Vec<_> = all.iter().map(|info| json(info, &devices)).collect();
    output.result(&serde_json::json!({ "keys": value }), || {
        let mut lines = vec![format!(
            "{:12} {:10} {:>12} {:>3} {:10} {:16} {:20} {:>11}",
            "DEVICE", "LEVEL", "PARTITION", "VER", "STATE", "NAME", "SINCE", "CREDENTIALS"
        )];
        lines.extend(all.iter().map(|info| line(info, &devices)));
        lines.join("\n")
    })
}

fn device_name(info: &KeyInfo, devices: &[Device]) -> String {
    let found = devices.iter().find(|device| device.id == info.device);
    found.map_or_else(|| info.device.0.to_string(), |device| device.name.to_string())
}

fn hex(identifier: Option<[u8; 7]>) -> Option<String> {
    identifier.map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
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

fn json(info: &KeyInfo, devices: &[Device]) -> serde_json::Value {
    serde_json::json!({
        "device": device_name(info, devices), "level": info.level.name().to_lowercase(),
        "partition": is_below(info).then_some(info.partition),
        "version": (info.level == KeyLevel::Working).then_some(info.version),
        "state": usage(info), "identifier": hex(info.identifier),
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
        hex(info.identifier).unwrap_or_default(),
    )
}

/// `sealstone mds keys rotate`.
pub(crate) async fn rotate(global: &GlobalArgs, output: Output, arguments: &RotateArgs) -> Outcome {
    let (client, _) = client(global)?;
    let device = device(&client, arguments.device.as_deref()).await?;
    let started = Instant::now();
    let RotateArgs { partition, revoke, .. } = *arguments;
    let request = Request::KeyRotate { level: level(arguments.level), device, partition, revoke };
    let (asked, _, before) = progress(&client, request).await?;
    let value = |open: u64, changed: u64| {
        serde_json::json!({
            "asked": asked, "open": open, "changed": changed, "seconds": started.elapsed().as_secs_f64(),
        })
    };
    if arguments.no_wait {
        output.remark(format!("{asked} keys will be replaced"));
        return output.done(&value(asked, 0));
    }
    let bar = output.counting(asked, "keys");
    loop {
        let (open, stuck, changed) = progress(&client, Request::KeyProgress { device }).await?;
        bar.set_position(asked.saturating_sub(open));
        let changed = changed.saturating_sub(before);
        if open == 0 {
            bar.finish_and_clear();
            output.remark(format!("replaced {changed} keys in {:.1} s", started.elapsed().as_secs_f64()));
            return output.done(&value(open, changed));
        }
        if started.elapsed() > Duration::from_secs(arguments.wait) {
            bar.finish_and_clear();
            let what = format!("{open} keys are not replaced yet; {stuck} devices have a problem");
            return Err(Failure::operation(what)
                .hint("the metadata server continues; `sealstone df` shows the devices"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn progress(client: &Client, request: Request) -> Outcome<(u64, u32, u64)> {
    match client.metadata().call(request).await? {
        Response::KeyProgress { open, stuck, changed } => Ok((open, stuck, changed)),
        _ => Err(Failure::unexpected_response()),
    }
}
