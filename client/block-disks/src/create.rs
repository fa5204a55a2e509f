//! Creation of units on devices of this machine, with or without end-to-end protection.

use std::path::Path;
use std::time::Duration;

use sealstone_device_server::{ControlRequest, END_TO_END, UnitParams, UnitReport, administer};
use sealstone_failure::{Failure, Outcome};
use sealstone_mounts::RemarkSink;

use crate::unit::{UnitAddress, UnitOptions, connect_unit};
use crate::user_disks::{NewDisk, UserDisks};

/// How long requests of the formatting wait for the device.
const FORMAT_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates a unit of the device in a folder, running or stopped.
///
/// # Errors
/// The device refuses, or its folder is unreadable.
pub fn create_unit(data: &Path, wanted: UnitParams) -> Outcome<UnitReport> {
    let value = administer(data, ControlRequest::Create(wanted))?;
    serde_json::from_value(value).map_err(Failure::operation)
}

/// Creates the record of a disk, then its unit, and formats the unit. Removes both if a later step
/// fails; `warn` receives the failure of a removal.
///
/// # Errors
/// The device is stopped or refuses, or the metadata server has a disk of this name.
pub async fn create_protected_unit(
    user: UserDisks,
    data: &Path,
    wanted: UnitParams,
    options: &UnitOptions,
    (remark, warn): (RemarkSink<'_>, &(dyn Fn(&Failure) + Sync)),
) -> Outcome<UnitReport> {
    let name = wanted.name.clone();
    let disk = user.create(&name, remark).await?;
    let created = create_unit(data, wanted);
    let is_created = created.is_ok();
    let formatted = match created {
        Ok(unit) => format_unit(&disk, &name, data, options)
            .await
            .map(|()| UnitReport { protect: END_TO_END.to_owned(), ..unit }),
        Err(failure) => Err(failure),
    };
    if formatted.is_err() {
        disk.discard().await;
        if is_created && let Err(failure) = administer(data, ControlRequest::Remove { name, force: true }) {
            warn(&failure);
        }
    }
    formatted
}

async fn format_unit(disk: &NewDisk, name: &str, data: &Path, options: &UnitOptions) -> Outcome {
    let address = UnitAddress::Name { name: name.to_owned(), data: data.to_owned() };
    let options = UnitOptions { recovery_timeout: Some(FORMAT_TIMEOUT), ..options.clone() };
    let client = connect_unit(&address, &options).await?;
    let formatted = disk.format(client.clone()).await;
    client.close().await;
    formatted
}
