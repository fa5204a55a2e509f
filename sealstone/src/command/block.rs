//! `sealstone block`: block units of a device, running or stopped.

use std::path::Path;

use sealstone_block::UnitProtection;
use sealstone_block_disks::{
    NO_PAPER_PROFILE, UnitProtectionChoice, create_protected_unit, create_unit, protection_text, unit_text,
    units_text,
};
use sealstone_block_protection::ProtectionProfile;
use sealstone_device_server::{
    ControlRequest, ProtectionReport, RemovedUnit, RotatedUnit, UnitParams, UnitReport, administer,
};
use sealstone_failure::text::human_bytes;
use sealstone_failure::{Failure, Outcome};
use serde_json::json;

use super::{block_attach, block_e2e, block_on};
use crate::cli::{Block, GlobalArgs};
use crate::output::Output;

/// Runs one of the subcommands.
pub(crate) fn command(global: &GlobalArgs, output: Output, command: Block) -> Outcome {
    match command {
        Block::Attach(arguments) => block_attach::command(global, output, &arguments),
        Block::Create {
            data,
            name,
            size,
            block_size,
            lun,
            thick,
            removable,
            write_through,
            protect,
            insecure_paper_profile,
        } => {
            if insecure_paper_profile && !protect.has_paper_profile() {
                return Err(Failure::usage(NO_PAPER_PROFILE).at("--insecure-paper-profile"));
            }
            let (sessions, is_sealed) = match protect {
                UnitProtectionChoice::Sessions(level) => (level, false),
                UnitProtectionChoice::EndToEnd => (UnitProtection::NONE, true),
            };
            let profile = insecure_paper_profile.then(|| ProtectionProfile::Paper.name().to_owned());
            let (thin, protect) = (!thick, sessions.name());
            let wanted =
                UnitParams { name, size, block_size, lun, thin, removable, write_through, protect, profile };
            let unit = match is_sealed {
                false => create_unit(&data, wanted)?,
                true => create_protected(global, output, &data, wanted)?,
            };
            output.result(&unit, || match &unit.url {
                Some(url) => format!("block unit {} ({}) at {url}", unit.name, human_bytes(unit.size)),
                None => format!(
                    "block unit {} ({}), LUN {} of {}, once the device runs",
                    unit.name,
                    human_bytes(unit.size),
                    unit.lun,
                    unit.target
                ),
            })
        }
        Block::Key => block_on(block_e2e::key(global, output)),
        Block::Grant { disk, user, key } => {
            block_on(block_e2e::grant(global, output, (&disk, &user, key.as_deref())))
        }
        Block::Revoke { disk, user } => block_on(block_e2e::revoke(global, output, &disk, &user)),
        Block::Rotate { disk: name, data: Some(data) } => {
            let value = administer(&data, ControlRequest::Rotate { name })?;
            let unit: RotatedUnit = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&unit, || format!("{}: key epoch {}", unit.unit, unit.key_epoch))
        }
        Block::Rotate { disk, data: None } => block_on(block_e2e::rotate(global, output, &disk)),
        Block::Set { name, data, write_through } => {
            let write_through = write_through.unwrap_or(true);
            let value = administer(&data, ControlRequest::Set { name, write_through })?;
            let unit: UnitReport = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&unit, || unit_text(&unit))
        }
        Block::Show { name, data } => {
            let value = administer(&data, ControlRequest::Show { name })?;
            let unit: UnitReport = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&unit, || unit_text(&unit))
        }
        Block::Status { name: Some(name), data: Some(data) } => {
            let value = administer(&data, ControlRequest::Status { name })?;
            let status: ProtectionReport = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&status, || protection_text(&status))
        }
        Block::Status { name, .. } => block_on(block_e2e::status(global, output, name.as_deref())),
        Block::List { data } => {
            let value = administer(&data, ControlRequest::List)?;
            let units: Vec<UnitReport> = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&json!({ "units": units }), || units_text(&units))
        }
        Block::Rm { data: Some(data), name, force, record: false } => {
            let value = administer(&data, ControlRequest::Remove { name, force })?;
            let unit: RemovedUnit = serde_json::from_value(value).map_err(Failure::operation)?;
            let record_removed = match unit.disk {
                Some(disk) => block_on(block_e2e::remove_record_of(global, output, &unit.removed, disk))?,
                None => false,
            };
            output.done(&json!({
                "removed": unit.removed, "lun": unit.lun, "record_removed": record_removed,
            }))
        }
        Block::Rm { name, .. } => {
            block_on(block_e2e::remove_record(global, &name, None))?;
            output.done(&json!({ "removed": name, "record_removed": true }))
        }
    }
}

/// Creates the record of a disk and its unit, and formats the unit.
fn create_protected(
    global: &GlobalArgs,
    output: Output,
    data: &Path,
    wanted: UnitParams,
) -> Outcome<UnitReport> {
    let options = block_attach::unit_options(global);
    block_on(async {
        let (remark, warn) =
            (|text: &str| output.remark(text), |failure: &Failure| output.part_failure(failure));
        create_protected_unit(block_e2e::disks(global)?, data, wanted, &options, (&remark, &warn)).await
    })
}
