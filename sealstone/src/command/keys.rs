//! `sealstone mds keys`: lists and rotates the keys of the devices. The work is in
//! `sealstone-administration`.

use std::time::Duration;

use sealstone_administration::{KeyRotation, WaitLimit, device_of_name, list_keys, rotate_keys};
use sealstone_failure::Outcome;
use sealstone_mds_protocol::KeyLevel;

use crate::cli::GlobalArgs;
use crate::cli::keys::{Level, RotateArgs};
use crate::command::progress::ShownOperation;
use crate::command::session::client;
use crate::output::Output;

const fn level(level: Level) -> KeyLevel {
    match level {
        Level::Working => KeyLevel::Working,
        Level::Partition => KeyLevel::Partition,
        Level::Root => KeyLevel::Root,
        Level::Master => KeyLevel::Master,
    }
}

/// `sealstone mds keys list`.
pub(crate) async fn list(global: &GlobalArgs, output: Output, name: Option<&str>) -> Outcome {
    let (client, _) = client(global)?;
    let report = list_keys(&client, device_of_name(&client, name).await?).await?;
    output.result(&report.json(), || report.text())
}

/// `sealstone mds keys rotate`.
pub(crate) async fn rotate(global: &GlobalArgs, output: Output, arguments: &RotateArgs) -> Outcome {
    let (client, _) = client(global)?;
    let rotation = KeyRotation {
        level: level(arguments.level),
        device: device_of_name(&client, arguments.device.as_deref()).await?,
        partition: arguments.partition,
        revoke: arguments.revoke,
    };
    let wait = match arguments.no_wait {
        true => WaitLimit::None,
        false => WaitLimit::Required(Duration::from_secs(arguments.wait)),
    };
    let report = rotate_keys(&client, rotation, wait, &ShownOperation::new(output)).await?;
    output.remark(report.text());
    output.done(&report.json())
}
