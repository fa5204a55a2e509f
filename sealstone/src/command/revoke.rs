//! `sealstone revoke`, and following a revocation until the last device refuses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sealstone_client::{Client, DeviceId, Metadata, Revocation};
use sealstone_mds_protocol::{KeyLevel, Request, Response};
use serde_json::json;

use crate::cli::Global;
use crate::cli::grants::{Patience, Revoke, Wait};
use crate::command::keys;
use crate::command::session::client;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, utc};
use crate::text::set_bytes;

/// Between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long devices are waited for that were told of in passing.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for the last device, and what if it is not enough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    wait: Duration,
    /// Is that the failure of the command? Not if it has done something else that it was asked for.
    must: bool,
}

impl From<Wait> for Until {
    fn from(wait: Wait) -> Self {
        match wait.no_wait {
            true => Self { wait: Duration::ZERO, must: false },
            false => Self { wait: Duration::from_secs(wait.wait), must: true },
        }
    }
}

impl From<Patience> for Until {
    fn from(patience: Patience) -> Self {
        match (patience.no_wait, patience.wait) {
            (true, _) => Self { wait: Duration::ZERO, must: false },
            (false, None) => Self { wait: PATIENCE, must: false },
            (false, Some(seconds)) => Self { wait: Duration::from_secs(seconds), must: true },
        }
    }
}

/// `sealstone revoke`.
pub(crate) async fn run(global: &Global, output: Output, arguments: &Revoke) -> Outcome {
    let (client, _) = client(global)?;
    let started = Instant::now();
    let wait = arguments.wait;
    match (&arguments.object, &arguments.user, arguments.partition) {
        (Some(path), _, _) => {
            let path = global.stored(path)?;
            let revoking =
                client.revoke_object(&path).await.map_err(|error| Failure::from(error).at(&path))?;
            let mut value = json!({});
            set_bytes(&mut value, "object", &path);
            follow(&client, output, revoking, wait.into(), started, value).await
        }
        (None, Some(name), _) => {
            let revoking = client.revoke_user(name).await.map_err(|error| Failure::from(error).at(name))?;
            follow(&client, output, revoking, wait.into(), started, json!({ "user": name })).await
        }
        (None, None, Some(partition)) => {
            let device = keys::device(&client, arguments.device.as_deref()).await?;
            revoke_partition(&client, output, partition, device, wait).await
        }
        (None, None, None) => list(&client, output).await,
    }
}

/// Names of devices by their numbers.
struct DeviceNames(BTreeMap<DeviceId, String>);

impl DeviceNames {
    /// Asks for the devices; without an answer each is called by its number.
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

fn told(revocation: &Revocation, devices: &DeviceNames) -> serde_json::Value {
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

/// Waits until the last device refuses, and tells how long that took, or which devices are waited for still.
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
        tokio::time::sleep(LOOK_EVERY).await;
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
            .hint("sealstone revoke --user NAME, or revoke --partition ID, ends them before they expire"));
    }
    if revocation.keys > 0 {
        output.remark(format!(
            "not all credentials of the user were listed, so the working keys of {} partitions are replaced: capability \
             files for files in them have to be issued again",
            revocation.keys
        ));
    }
    let goes_on =
        "the metadata server goes on until each device has answered; `sealstone revoke --list` tells how far";
    match revocation.done_ms {
        Some(done_ms) => output.remark(format!(
            "revoked credentials for {} objects; {} ms from the request until the last device refused, {:.0} ms with the \
             way there and back",
            revocation.total,
            done_ms.saturating_sub(revocation.began_ms),
            elapsed.as_secs_f64() * 1000.0,
        )),
        None if until.must => return Err(Failure::operation(pending(&revocation, &devices)).hint(goes_on)),
        None if until.wait.is_zero() => output.remark(format!("revocation {} is under way", revocation.id)),
        None => output.remark(format!("pending: {} ({goes_on})", pending(&revocation, &devices))),
    }
    value["revocation"] = told(&revocation, &devices);
    value["pending"] = waiting(&revocation, &devices);
    value["elapsed_ms"] = json!(elapsed.as_secs_f64() * 1000.0);
    output.done(&value)
}

/// What is not done yet, in words.
fn pending(revocation: &Revocation, devices: &DeviceNames) -> String {
    let objects = revocation.open;
    if revocation.keys_open > 0 {
        let keys = revocation.keys_open;
        return format!("working keys of {keys} partitions are not replaced yet, {objects} objects are open");
    }
    match names(revocation, devices) {
        // Not all objects were found yet, or their devices were told just now.
        devices if devices.is_empty() => format!("credentials for {objects} objects are accepted still"),
        devices => format!("credentials for {objects} objects are accepted still; waiting for {devices}"),
    }
}

/// By the key: all credentials for the partition.
async fn revoke_partition(
    client: &Client,
    output: Output,
    partition: u64,
    device: Option<DeviceId>,
    wait: Wait,
) -> Outcome {
    let started = Instant::now();
    let (level, revoke) = (KeyLevel::Working, true);
    let request = Request::KeyRotate { level, device, partition: Some(partition), revoke };
    let (mut open, mut stuck) = progress(client, request).await?;
    while open > 0 && !wait.no_wait {
        if started.elapsed() > Duration::from_secs(wait.wait) {
            let what = format!("{open} keys are not replaced yet, {stuck} devices have a problem");
            return Err(Failure::operation(what)
                .hint("the metadata server goes on by itself; `sealstone df` tells what devices say"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
        (open, stuck) = progress(client, Request::KeyProgress { device }).await?;
    }
    let elapsed_ms = started.elapsed().as_secs_f64() * 1000.0;
    output.remark(match open {
        0 => format!("revoked the credentials for partition {partition:#x}; {elapsed_ms:.0} ms until the last device refused"),
        open => format!("{open} keys are being replaced"),
    });
    output.done(&json!({ "partition": partition, "open": open, "elapsed_ms": elapsed_ms }))
}

async fn progress(client: &Client, request: Request) -> Outcome<(u64, u32)> {
    match client.metadata().call(request).await? {
        Response::KeyProgress { open, stuck, .. } => Ok((open, stuck)),
        _ => Err(Failure::operation("an answer to another request")),
    }
}

async fn list(client: &Client, output: Output) -> Outcome {
    let all = client.revocations().await?;
    let devices = DeviceNames::load(client).await;
    let value: Vec<_> = all.iter().map(|one| told(one, &devices)).collect();
    output.result(&value, || {
        let mut lines = vec![format!(
            "{:>6} {:30} {:16} {:>9} {:>9} {}",
            "ID", "WHAT", "SINCE", "OBJECTS", "OPEN", "STATE"
        )];
        lines.extend(all.iter().map(|one| {
            let state = match one.done_ms {
                Some(done) => format!("done in {} ms", done.saturating_sub(one.began_ms)),
                None if one.waiting.is_empty() => "under way".to_owned(),
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
