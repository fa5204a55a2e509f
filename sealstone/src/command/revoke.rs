//! `sealstone revoke`: revokes the credentials of an object, user or partition, and waits until the
//! last device refuses them. The work is in `sealstone-administration`.

use std::time::{Duration, Instant};

use sealstone_administration::{
    WaitLimit, device_of_name, follow_revocation, list_revocations, revoke_partition,
};
use sealstone_client::{Client, Revocation};
use sealstone_failure::text::set_bytes;
use sealstone_failure::{Failure, Outcome};
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::grants::{RevokeArgs, SideEffectWait, WaitArgs};
use crate::command::progress::ShownOperation;
use crate::command::session::client;
use crate::output::Output;

/// Default time to wait for devices where revocation is a side effect.
const SIDE_EFFECT_WAIT: Duration = Duration::from_secs(10);

impl From<WaitArgs> for WaitLimit {
    fn from(wait: WaitArgs) -> Self {
        match wait.no_wait {
            true => Self::None,
            false => Self::Required(Duration::from_secs(wait.wait)),
        }
    }
}

impl From<SideEffectWait> for WaitLimit {
    fn from(wait: SideEffectWait) -> Self {
        match (wait.no_wait, wait.wait) {
            (true, _) => Self::None,
            (false, None) => Self::Wanted(SIDE_EFFECT_WAIT),
            (false, Some(seconds)) => Self::Required(Duration::from_secs(seconds)),
        }
    }
}

/// `sealstone revoke`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &RevokeArgs) -> Outcome {
    let (client, _) = client(global)?;
    let started = Instant::now();
    let wait = arguments.wait.into();
    match (&arguments.object, &arguments.user, arguments.partition) {
        (Some(path), _, _) => {
            let path = global.stored(path)?;
            let revoking =
                client.revoke_object(&path).await.map_err(|error| Failure::from(error).at(&path))?;
            let mut value = json!({ "user": null, "partition": null, "open": null });
            set_bytes(&mut value, "object", &path);
            follow(&client, output, revoking, wait, started, value).await
        }
        (None, Some(name), _) => {
            let revoking = client.revoke_user(name).await.map_err(|error| Failure::from(error).at(name))?;
            let value = json!({ "object": null, "user": name, "partition": null, "open": null });
            follow(&client, output, revoking, wait, started, value).await
        }
        (None, None, Some(partition)) => {
            let device = device_of_name(&client, arguments.device.as_deref()).await?;
            let report = revoke_partition(&client, partition, device, wait).await?;
            output.remark(report.text());
            output.done(&report.json())
        }
        (None, None, None) => {
            let report = list_revocations(&client).await?;
            output.result(&report.json(), || report.text())
        }
    }
}

/// Waits until the last device refuses, and prints how long that took, or which devices are
/// pending.
pub(crate) async fn follow(
    client: &Client,
    output: Output,
    revocation: Revocation,
    wait: WaitLimit,
    started: Instant,
    mut value: Value,
) -> Outcome {
    let report = follow_revocation(client, revocation, wait, started, &ShownOperation::new(output)).await?;
    report.lines().iter().for_each(|line| output.remark(line));
    report.outcome()?;
    report.add_json(&mut value);
    output.done(&value)
}
