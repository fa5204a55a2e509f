//! Revocations of the credentials of an object, user or partition.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sealstone_client::{Client, DeviceId, Revocation, WaitingDevice};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{KeyLevel, Request};
use sealstone_units::utc;
use serde_json::{Value, json};

use crate::keys::{keys_pending, progress};
use crate::observer::{OperationObserver, OperationProgress, OperationUnit, WaitLimit};

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A revocation, as far as it was awaited.
#[derive(Debug)]
pub struct RevocationReport {
    revocation: Revocation,
    devices: DeviceNames,
    elapsed: Duration,
    wait: WaitLimit,
}

/// All revocations that the server knows.
#[derive(Debug)]
pub struct RevocationList {
    all: Vec<Revocation>,
    devices: DeviceNames,
}

/// The revocation of all credentials for a partition, by a new working key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartitionRevocation {
    /// The partition.
    pub partition: u64,
    /// Number of keys that are not replaced yet.
    pub open: u64,
    /// Duration in milliseconds.
    pub elapsed_ms: f64,
}

/// Device names by number.
#[derive(Debug)]
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

fn waiting(revocation: &Revocation, devices: &DeviceNames) -> Value {
    let device = |one: &WaitingDevice| {
        let problem = Some(one.problem.as_str()).filter(|problem| !problem.is_empty());
        let name = devices.of(one.device);
        json!({ "device": one.device.0, "name": name, "objects": one.objects, "problem": problem })
    };
    revocation.waiting.iter().map(device).collect()
}

fn revocation_json(revocation: &Revocation, devices: &DeviceNames) -> Value {
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
    let one = |waiting: &WaitingDevice| {
        let problem = waiting.problem.as_str();
        let problem = if problem.is_empty() { String::new() } else { format!(" ({problem})") };
        format!("device {}{problem}", devices.of(waiting.device))
    };
    revocation.waiting.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Waits until the last device refuses the credentials of a revocation that began at `started`.
///
/// # Errors
/// Not all credentials are listed, or the metadata server cannot be reached.
pub async fn follow_revocation(
    client: &Client,
    mut revocation: Revocation,
    wait: WaitLimit,
    started: Instant,
    observer: &dyn OperationObserver,
) -> Outcome<RevocationReport> {
    let progress = OperationProgress::begin(observer, OperationUnit::Items, revocation.total, "objects");
    while revocation.done_ms.is_none() && !wait.is_over(started) {
        tokio::time::sleep(POLL_INTERVAL).await;
        revocation = client.revocation(revocation.id).await?;
        progress.set(revocation.total.saturating_sub(revocation.open), revocation.total);
    }
    drop(progress);
    let devices = DeviceNames::load(client).await;
    let elapsed = started.elapsed();
    if !revocation.complete {
        let what = format!("revocation {} is not complete: not all credentials are listed", revocation.id);
        return Err(Failure::operation(what)
            .hint("`sealstone revoke --user NAME` or `--partition ID` revokes the others"));
    }
    Ok(RevocationReport { revocation, devices, elapsed, wait })
}

/// The next step of a revocation that has not ended.
const CONTINUES: &str = "the metadata server continues; `sealstone revoke --list` shows the progress";

impl RevocationReport {
    /// Returns the remark about keys that were replaced because a list was full.
    fn replaced_keys(&self) -> Option<String> {
        (self.revocation.keys > 0).then(|| {
            format!(
                "not all credentials of the user were listed, so the working keys of {} partitions are replaced; issue \
                 capability files for files in them again",
                self.revocation.keys
            )
        })
    }

    /// Returns the state as lines of text, unless it is that of the failure.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let revocation = &self.revocation;
        let state = match (revocation.done_ms, self.wait) {
            (Some(done_ms), _) => Some(format!(
                "revoked credentials for {} objects; the last device refused after {} ms, {:.0} ms in total",
                revocation.total,
                done_ms.saturating_sub(revocation.began_ms),
                self.elapsed.as_secs_f64() * 1000.0,
            )),
            (None, WaitLimit::None) => Some(format!("revocation {} is in progress", revocation.id)),
            (None, WaitLimit::Required(_)) => None,
            (None, _) => Some(format!("pending: {} ({CONTINUES})", pending(revocation, &self.devices))),
        };
        self.replaced_keys().into_iter().chain(state).collect()
    }

    /// Returns the outcome.
    ///
    /// # Errors
    /// A device accepts credentials after a required time.
    pub fn outcome(&self) -> Outcome {
        match (self.revocation.done_ms, self.wait) {
            (None, WaitLimit::Required(_)) => {
                Err(Failure::operation(pending(&self.revocation, &self.devices)).hint(CONTINUES))
            }
            _ => Ok(()),
        }
    }

    /// Adds the report to the JSON of a command.
    pub fn add_json(&self, value: &mut Value) {
        value["revocation"] = revocation_json(&self.revocation, &self.devices);
        value["pending"] = waiting(&self.revocation, &self.devices);
        value["elapsed_ms"] = json!(self.elapsed.as_secs_f64() * 1000.0);
    }
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

/// Revokes all credentials for a partition by a new working key.
///
/// # Errors
/// The user is no administrator, or a device has the old key after a required time.
pub async fn revoke_partition(
    client: &Client,
    partition: u64,
    device: Option<DeviceId>,
    wait: WaitLimit,
) -> Outcome<PartitionRevocation> {
    let started = Instant::now();
    let (level, revoke) = (KeyLevel::Working, true);
    let request = Request::KeyRotate { level, device, partition: Some(partition), revoke };
    let (mut open, mut stuck, _) = progress(client, request).await?;
    while open > 0 && wait != WaitLimit::None {
        if wait.is_over(started) {
            return Err(keys_pending(open, stuck));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        (open, stuck, _) = progress(client, Request::KeyProgress { device }).await?;
    }
    Ok(PartitionRevocation { partition, open, elapsed_ms: started.elapsed().as_secs_f64() * 1000.0 })
}

impl PartitionRevocation {
    /// Returns the revocation as text.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { partition, elapsed_ms, .. } = self;
        match self.open {
            0 => format!(
                "revoked the credentials for partition {partition:#x}; {elapsed_ms:.0} ms until the last device refused"
            ),
            open => format!("{open} keys are being replaced"),
        }
    }

    /// Returns the revocation as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "object": null, "user": null, "partition": self.partition, "open": self.open, "revocation": null,
            "pending": [], "elapsed_ms": self.elapsed_ms,
        })
    }
}

/// Lists all revocations that the server knows.
///
/// # Errors
/// The user is no administrator, or the metadata server cannot be reached.
pub async fn list_revocations(client: &Client) -> Outcome<RevocationList> {
    Ok(RevocationList { all: client.revocations().await?, devices: DeviceNames::load(client).await })
}

impl RevocationList {
    /// Returns the list as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let all: Vec<Value> = self.all.iter().map(|one| revocation_json(one, &self.devices)).collect();
        json!({ "revocations": all })
    }

    /// Returns the list as a table.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{:>6} {:30} {:16} {:>9} {:>9} {}",
            "ID", "WHAT", "SINCE", "OBJECTS", "OPEN", "STATE"
        )];
        lines.extend(self.all.iter().map(|one| {
            let state = match one.done_ms {
                Some(done) => format!("done in {} ms", done.saturating_sub(one.began_ms)),
                None if one.waiting.is_empty() => "in progress".to_owned(),
                None => format!("waiting for {}", names(one, &self.devices)),
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
    }
}
