//! `sealstone block`: block units of a device, running or stopped.

use std::path::Path;
use std::sync::Arc;

use sealstone_osd_device::{DataDir, ProvisionError};
use sealstone_store::{DiskStore, FormatError, IoMode, ObjectStore, open_store_medium};

use crate::cli::{Block, GlobalArgs};
use crate::daemon::blocks::{Blocks, UnitParams, UnitReport, store_options, unit_options};
use crate::daemon::control::{self, ControlHandler, ControlRequest};
use crate::daemon::osd::{TARGET_PREFIX, store_failure};
use crate::failure::{Failure, FailureKind, Outcome, chain};
use crate::output::{Output, human_bytes};
use crate::text::ShownPath as _;

/// Runs one of the subcommands.
pub(crate) fn command(global: &GlobalArgs, output: Output, command: Block) -> Outcome {
    match command {
        Block::Attach(arguments) => super::block_attach::command(global, output, &arguments),
        Block::Create { data, name, size, block_size, lun, thick, removable, write_through } => {
            let wanted = UnitParams { name, size, block_size, lun, thin: !thick, removable, write_through };
            let value = perform(&data, ControlRequest::Create(wanted))?;
            let unit: UnitReport = serde_json::from_value(value).map_err(Failure::operation)?;
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
        Block::Set { name, data, write_through } => {
            let write_through = write_through.unwrap_or(true);
            let value = perform(&data, ControlRequest::Set { name, write_through })?;
            let unit: UnitReport = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&unit, || details(&unit))
        }
        Block::Show { name, data } => {
            let value = perform(&data, ControlRequest::Show { name })?;
            let unit: UnitReport = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&unit, || details(&unit))
        }
        Block::List { data } => {
            let value = perform(&data, ControlRequest::List)?;
            let units: Vec<UnitReport> = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&serde_json::json!({ "units": units }), || table(&units))
        }
        Block::Rm { data, name, force } => {
            let value = perform(&data, ControlRequest::Remove { name, force })?;
            output.done(&value)
        }
    }
}

/// Returns the write cache mode, and whether it is set for the unit.
const fn cache(unit: &UnitReport) -> &'static str {
    match (unit.write_through, unit.write_cache) {
        (true, _) => "write-through (set)",
        (false, false) => "write-through",
        (false, true) => "write-back",
    }
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
        "{:>3}  {:20} {:>10} {:>10} {:>5}  {:5}  {:19}  {}",
        "LUN", "NAME", "SIZE", "USED", "BLOCK", "KIND", "CACHE", "URL"
    )];
    lines.extend(units.iter().map(|unit| {
        format!(
            "{:>3}  {:20} {:>10} {:>10} {:>5}  {:5}  {:19}  {}",
            unit.lun,
            unit.name,
            human_bytes(unit.size),
            human_bytes(unit.used),
            unit.block_size,
            if unit.thin { "thin" } else { "thick" },
            cache(unit),
            unit.url.as_deref().unwrap_or("-"),
        )
    }));
    lines.join("\n")
}

/// Sends the request to the device that runs in the folder. If none does, opens the store, whose
/// lock excludes others.
pub(super) fn perform(data: &Path, request: ControlRequest) -> Outcome<serde_json::Value> {
    // A wrong folder is reported before the control socket is tried.
    let folder = DataDir::open(data).map_err(|error| {
        let failure = Failure::operation(chain(&error));
        match error {
            ProvisionError::NotInitialised(_) => Failure { kind: FailureKind::NotFound, ..failure },
            _ => failure,
        }
    })?;
    if let Some(value) = control::send(data, &request)? {
        return Ok(value);
    }
    let closed = |error: FormatError| match error {
        // A running device would have answered.
        FormatError::InUse => Failure::operation(chain(&error))
            .at(data.shown())
            .hint("the device is starting or stopping; try again"),
        error => store_failure(error, data),
    };
    let medium = open_store_medium(folder.store_path(), IoMode::Auto).map_err(closed)?;
    let store = DiskStore::open(medium, store_options()).map_err(closed)?;
    let target = format!("{TARGET_PREFIX}{}", folder.identity.name);
    let blocks = Blocks::open(Arc::new(store) as Arc<dyn ObjectStore>, &target, unit_options())?;
    control::perform(&ControlHandler { blocks: Arc::new(blocks), scrubber: None, functions: None }, request)
}
