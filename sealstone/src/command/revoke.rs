//! `sealstone revoke`: revokes the credentials of an object, user or partition, and waits until the
//! last device refuses them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sealstone_client::{Client, DeviceId, Metadata, Revocation};
use sealstone_failure::text::set_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{KeyLevel, Request, Response};
use sealstone_units::utc;
use serde_json::json;

use crate::cli::GlobalArgs;
use crate::cli::grants::{RevokeArgs, SideEffectWait, WaitArgs};
use crate::command::keys;
use crate::command::session::client;
use crate::output::Output;

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Default time to wait for devices where revocation is a side effect.
const SIDE_EFFECT_WAIT: Duration = Duration::from_secs(10);

/// How long to wait for the last device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    wait: Duration,
    /// Whether a timeout fails the command.
    must: bool,
}

impl From<WaitArgs> for Until {
    fn from(wait: WaitArgs) -> Self {
        match wait.no_wait {
            true => Self { wait: Duration::ZERO, must: false },
            false => Self { wait: Duration::from_secs(wait.wait), must: true },
        }
    }
}

impl From<SideEffectWait> for Until {
    fn from(wait: SideEffectWait) -> Self {
        match (wait.no_wait, wait.wait) {
            (true, _) => Self { wait: Duration::ZERO, must: false },
            (false, None) => Self { wait: SIDE_EFFECT_WAIT, must: false },
            (false, Some(seconds)) => Self { wait: Duration::from_secs(seconds), must: true },
        }
    }
}

/// `sealstone revoke`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &RevokeArgs) -> Outcome {
    let (client, _) = client(global)?;
    let started = Instant::now();
    let wait = arguments.wait;
    match (&arguments.object, &arguments.user, arguments.partition) {
        (Some(path), _, _) => {
            let path = global.stored(path)?;
            let revoking =
                client.revoke_object(&path).await.map_err(|error| Failure::from(error).at(&path))?;
            let mut value = json!({ "user": null, "partition": null, "open": null });
            set_bytes(&mut value, "object", &path);
            follow(&client, output, revoking, wait.into(), started, value).await
        }
        (None, Some(name), _) => {
            let revoking = client.revoke_user(name).await.map_err(|error| Failure::from(error).at(name))?;
            follow(&client, output, revoking, wait.into(), started, revoked_user_json(name)).await
        }
        (None, None, Some(partition)) => {
            let device = keys::device(&client, arguments.device.as_deref()).await?;
            revoke_partition(&client, output, partition, device, wait).await
        }
        (None, None, None) => list(&client, output).await,
    }
}

fn revoked_user_json(name: &str) -> serde_json::Value {
    json!({ "object": null, "user": name, "partition": null, "open": null })
}

/// Device names by number.
struct DeviceNames(BTreeMap<DeviceId, String>);

impl DeviceNames {
    /// Requests the names. If that fails, devices are named by number.
    async fn load(client: &Client) -> Self {
        let devices = client.device_list().await.unwrap_or_default();
        Self(devices.iter().map(|device| (device.id, device.name.to_string())).collect())
    }

    fn of(&self, id: DeviceId) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| format!("number {}", id.0))
    }
}

fn waiting(revocation: &Revocation, devices: &DeviceNames) -> serde_json::Value {
    let device = |one: &sealstone_client::WaitingDevice| {
        let problem = Some(one.problem.as_str()).filter(|problem| !problem.is_empty());
        let name = devices.of(one.device);
        json!({ "device": one.device.0, "name": name, "objects": one.objects, "problem": problem })
    };
    revocation.waiting.iter().map(device).collect()
}

fn revocation_json(revocation: &Revocation, devices: &DeviceNames) -> serde_json::Value {
    json!({
        "id": revocation.id, "what": revocation.what.to_string(), "began_ms": revocation.began_ms,
        "objects": revocation.total, "open": revocation.open, "collecting": revocation.collecting,
        "complete": revocation.complete, "done_ms": revocation.done_ms,
        "keys": revocation.keys, "keys_open": revocation.keys_open,
        "last_refusal_ms": revocation.done_ms.map(|done| done.saturating_sub(revocation.began_ms)),
        "waiting": waiting(revocation, devices),
    })
}

fn names(revocation: &Revocation, devices: &DeviceNames) -> String {
    let one = |waiting: &sealstone_client::WaitingDevice| {
        let problem = waiting.problem.as_str();
        let problem = if problem.is_empty() { String::new() } else { format!(" ({problem})") };
        format!("device {}{problem}", devices.of(waiting.device))
    };
    revocation.waiting.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Waits until the last device refuses, and prints how long that took, or which devices are
/// pending.
pub(crate) async fn follow(
    client: &Client,
    output: Output,
    mut revocation: Revocation,
    until: Until,
    started: Instant,
    mut value: serde_json::Value,
) -> Outcome {
    let bar = output.counting(revocation.total, "objects");
    while revocation.done_ms.is_none() && started.elapsed() < until.wait {
        tokio::time::sleep(POLL_INTERVAL).await;
        revocation = client.revocation(revocation.id).await?;
        bar.set_length(revocation.total);
        bar.set_position(revocation.total.saturating_sub(revocation.open));
    }
    bar.finish_and_clear();
    let devices = DeviceNames::load(client).await;
    let elapsed = started.elapsed();
    if !revocation.complete {
        let what = format!("revocation {} is not complete: not all credentials are listed", revocation.id);
        return Err(Failure::operation(what)
            .hint("`sealstone revoke --user NAME` or `--partition ID` revokes the others"));
    }
    if revocation.keys > 0 {
        output.remark(format!(
            "not all credentials of the user were listed, so the working keys of {} partitions are replaced; issue \
             capability files for files in them again",
            revocation.keys
        ));
    }
    let continues = "the metadata server continues; `sealstone revoke --list` shows the progress";
    match revocation.done_ms {
        Some(done_ms) => output.remark(format!(
            "revoked credentials for {} objects; the last device refused after {} ms, {:.0} ms in total",
            revocation.total,
            done_ms.saturating_sub(revocation.began_ms),
            elapsed.as_secs_f64() * 1000.0,
        )),
        None if until.must => return Err(Failure::operation(pending(&revocation, &devices)).hint(continues)),
        None if until.wait.is_zero() => output.remark(format!("revocation {} is in progress", revocation.id)),
        None => output.remark(format!("pending: {} ({continues})", pending(&revocation, &devices))),
    }
    value["revocation"] = revocation_json(&revocation, &devices);
    value["pending"] = waiting(&revocation, &devices);
    value["elapsed_ms"] = json!(elapsed.as_secs_f64() * 1000.0);
    output.done(&value)
}

/// Returns the remaining work as text.
fn pending(revocation: &Revocation, devices: &DeviceNames) -> String {
    let objects = revocation.open;
    if revocation.keys_open > 0 {
        let keys = revocation.keys_open;
        return format!("working keys of {keys} partitions are not replaced yet; {objects} objects remain");
    }
    match names(revocation, devices) {
        devices if devices.is_empty() => format!("credentials for {objects} objects are still accepted"),
        devices => format!("credentials for {objects} objects are still accepted; waiting for {devices}"),
    }
}

/// Revokes all credentials for a partition by replacing its working key.
async fn revoke_partition(
    client: &Client,
    output: Output,
    partition: u64,
    device: Option<DeviceId>,
    wait: WaitArgs,
) -> Outcome {
    let started = Instant::now();
    let (level, revoke) = (KeyLevel::Working, true);
    let request = Request::KeyRotate { level, device, partition: Some(partition), revoke };
    let (mut open, mut stuck) = progress(client, request).await?;
    while open > 0 && !wait.no_wait {
        if started.elapsed() > Duration::from_secs(wait.wait) {
            let what = format!("{open} keys are not replaced yet; {stuck} devices have a problem");
            return Err(Failure::operation(what)
                .hint("the metadata server continues; `sealstone df` shows the devices"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        (open, stuck) = progress(client, Request::KeyProgress { device }).await?;
    }
    let elapsed_ms = started.elapsed().as_secs_f64() * 1000.0;
    output.remark(match open {
        0 => format!("revoked the credentials for partition {partition:#x}; {elapsed_ms:.0} ms until the last device refused"),
        open => format!("{open} keys are being replaced"),
    });
    output.done(&json!({
        "object": null, "user": null, "partition": partition, "open": open, "revocation": null, "pending": [],
        "elapsed_ms": elapsed_ms,
    }))
}

async fn progress(client: &Client, request: Request) -> Outcome<(u64, u32)> {
    match client.metadata().call(request).await? {
        Response::KeyProgress { open, stuck, .. } => Ok((open, stuck)),
        _ => Err(Failure::unexpected_response()),
    }
}

async fn list(client: &Client, output: Output) -> Outcome {
    let all = client.revocations().await?;
    let devices = DeviceNames::load(client).await;
    let value: Vec<_> = all.iter().map(|one| revocation_json(one, &devices)).collect();
    output.result(&json!({ "revocations": value }), || {
        let mut lines = vec![format!(
            "{:>6} {:30} {:16} {:>9} {:>9} {}",
            "ID", "WHAT", "SINCE", "OBJECTS", "OPEN", "STATE"
        )];
        lines.extend(all.iter().map(|one| {
            let state = match one.done_ms {
                Some(done) => format!("done in {} ms", done.saturating_sub(one.began_ms)),
                None if one.waiting.is_empty() => "in progress".to_owned(),
                None => format!("waiting for {}", names(one, &devices)),
            };
            let what = one.what.to_string();
            format!(
                "{:>6} {what:30} {:16} {:>9} {:>9} {state}",
                one.id,
                utc(one.began_ms),
                one.total,
                one.open
            )
        }));
        lines.join("\n")
    })
}
