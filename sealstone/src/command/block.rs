//! `sealstone block`: block units of a device, running or stopped.

use std::path::Path;

use sealstone_block::UnitProtection;
use sealstone_block_disks::{NO_PAPER_PROFILE, UnitProtectionChoice, create_protected_unit, create_unit};
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
            output.result(&unit, || details(&unit))
        }
        Block::Show { name, data } => {
            let value = administer(&data, ControlRequest::Show { name })?;
            let unit: UnitReport = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&unit, || details(&unit))
        }
        Block::Status { name: Some(name), data: Some(data) } => {
            let value = administer(&data, ControlRequest::Status { name })?;
            let status: ProtectionReport = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&status, || protection_details(&status))
        }
        Block::Status { name, .. } => block_on(block_e2e::status(global, output, name.as_deref())),
        Block::List { data } => {
            let value = administer(&data, ControlRequest::List)?;
            let units: Vec<UnitReport> = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&json!({ "units": units }), || table(&units))
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

/// Returns the write cache mode, and whether it is set for the unit.
const fn cache(unit: &UnitReport) -> &'static str {
    match (unit.write_through, unit.write_cache) {
        (true, _) => "write-through (set)",
        (false, false) => "write-through",
        (false, true) => "write-back",
    }
}

/// Returns the level, and the profile unless it is the default one.
fn protection(unit: &UnitReport) -> String {
    let default = UnitProtection::parse(&unit.protect).map(UnitProtection::profile);
    match unit.profile.as_deref() {
        Some(profile) if default.is_ok_and(|default| default.name() != profile) => {
            format!("{} ({profile})", unit.protect)
        }
        _ => unit.protect.clone(),
    }
}

fn protection_details(status: &ProtectionReport) -> String {
    let mut rows = vec![
        ("name", status.name.clone()),
        ("protection", status.protect.clone()),
        ("available", if status.available { "yes" } else { "no" }.to_owned()),
    ];
    if let Some(profile) = &status.profile {
        let versions = format!("{} unverified, {} unverifiable", status.unverified, status.unverifiable);
        let window = format!(
            "oldest {} ms, p99 {} ms, longest {} ms",
            status.oldest_ms, status.window_p99_ms, status.window_max_ms
        );
        let log = format!("{} of {}", human_bytes(status.log_bytes), human_bytes(status.log_bytes_max));
        rows.extend([
            ("profile", profile.clone()),
            ("key epoch", status.key_epoch.to_string()),
            ("versions", versions),
            ("window", window),
            ("log", log),
            ("verified", format!("{} versions, {} writes at once", status.verified, status.eager)),
            ("rejected", format!("{} writes, {} refused at once", status.rejected, status.refused_writes)),
            ("busy", format!("{} writes", status.busy)),
            ("reports", format!("{} of intact blocks", status.false_reports)),
        ]);
    }
    rows.push(("damage", format!("{} failed commands", status.damaged)));
    let sessions = format!(
        "{} ended by forged bytes, {} malformed writes, {} refused logins (of the device)",
        status.sessions.forged, status.sessions.malformed_writes, status.sessions.refused_logins
    );
    rows.push(("sessions", sessions));
    let lines: Vec<String> = rows.iter().map(|(name, value)| format!("{name:11}  {value}")).collect();
    lines.join("\n")
}

fn details(unit: &UnitReport) -> String {
    let rows = [
        ("name", unit.name.clone()),
        ("LUN", unit.lun.to_string()),
        ("size", human_bytes(unit.size)),
        ("used", human_bytes(unit.used)),
        ("block size", unit.block_size.to_string()),
        ("kind", if unit.thin { "thin" } else { "thick" }.to_owned()),
        ("write cache", cache(unit).to_owned()),
        ("protection", protection(unit)),
        ("serial", unit.serial.clone()),
        ("URL", unit.url.clone().unwrap_or_else(|| "-".to_owned())),
    ];
    rows.map(|(name, value)| format!("{name:11}  {value}")).join("\n")
}

fn table(units: &[UnitReport]) -> String {
    if units.is_empty() {
        return "no block units".into();
    }
    let mut lines = vec![format!(
        "{:>3}  {:20} {:>10} {:>10} {:>5}  {:5}  {:19}  {:12}  {}",
        "LUN", "NAME", "SIZE", "USED", "BLOCK", "KIND", "CACHE", "PROTECTION", "URL"
    )];
    lines.extend(units.iter().map(|unit| {
        format!(
            "{:>3}  {:20} {:>10} {:>10} {:>5}  {:5}  {:19}  {:12}  {}",
            unit.lun,
            unit.name,
            human_bytes(unit.size),
            human_bytes(unit.used),
            unit.block_size,
            if unit.thin { "thin" } else { "thick" },
            cache(unit),
            protection(unit),
            unit.url.as_deref().unwrap_or("-"),
        )
    }));
    lines.join("\n")
}
