//! `sealstone block …`: block units of a device, whether it runs or not.

use std::path::Path;
use std::sync::Arc;

use sealstone_device::{DataDir, ProvisionError};
use sealstone_store::{DiskStore, FormatError, IoMode, ObjectStore, StoreOptions, open_store_medium};

use crate::cli::Block;
use crate::daemon::blocks::{Blocks, Told, Wanted, unit_options};
use crate::daemon::control::{self, Request, Served};
use crate::daemon::osd::{TARGET_PREFIX, store_failure};
use crate::failure::{Failure, Kind, Outcome, chain};
use crate::output::{Output, human_bytes};
use crate::text::ShownPath as _;

/// Runs one of the verbs.
pub(crate) fn command(output: Output, command: Block) -> Outcome {
    match command {
        Block::Create { data, name, size, block_size, lun, thick, removable, write_through } => {
            let wanted = Wanted { name, size, block_size, lun, thin: !thick, removable, write_through };
            let value = perform(&data, Request::Create(wanted))?;
            let told: Told = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&told, || match &told.url {
                Some(url) => format!("block unit {} ({}) at {url}", told.name, human_bytes(told.size)),
                None => format!(
                    "block unit {} ({}), LUN {} of {}, once the device runs",
                    told.name,
                    human_bytes(told.size),
                    told.lun,
                    told.target
                ),
            })
        }
        Block::Set { name, data, write_through } => {
            let write_through = write_through.unwrap_or(true);
            let value = perform(&data, Request::Set { name, write_through })?;
            let told: Told = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&told, || details(&told))
        }
        Block::Show { name, data } => {
            let value = perform(&data, Request::Show { name })?;
            let told: Told = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&told, || details(&told))
        }
        Block::List { data } => {
            let value = perform(&data, Request::List)?;
            let units: Vec<Told> = serde_json::from_value(value).map_err(Failure::operation)?;
            output.result(&units, || table(&units))
        }
        Block::Rm { data, name, force } => {
            let value = perform(&data, Request::Remove { name, force })?;
            output.done(&value)
        }
    }
}

/// How a unit acknowledges writes, and who decided so.
const fn cache(unit: &Told) -> &'static str {
    match (unit.write_through, unit.write_cache) {
        (true, _) => "write-through (set)",
        (false, false) => "write-through",
        (false, true) => "write-back",
    }
}

fn details(unit: &Told) -> String {
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

fn table(units: &[Told]) -> String {
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

/// Asks the device that runs on the folder; if none does, opens the store itself, whose lock keeps any other away.
fn perform(data: &Path, request: Request) -> Outcome<serde_json::Value> {
    // The folder first: a wrong one is told as such whoever runs.
    let folder = DataDir::open(data).map_err(|error| {
        let failure = Failure::operation(chain(&error));
        match error {
            ProvisionError::NotInitialised(_) => Failure { kind: Kind::NotFound, ..failure },
            _ => failure,
        }
    })?;
    if let Some(value) = control::ask(data, &request)? {
        return Ok(value);
    }
    let closed = |error: FormatError| match error {
        // A device that serves would have answered.
        FormatError::InUse => Failure::operation(chain(&error))
            .at(data.shown())
            .hint("the device is just starting or ending; try again"),
        error => store_failure(error, data),
    };
    let medium = open_store_medium(folder.store_path(), IoMode::Auto).map_err(closed)?;
    let store = DiskStore::open(medium, StoreOptions::default()).map_err(closed)?;
    let target = format!("{TARGET_PREFIX}{}", folder.identity.name);
    let blocks = Blocks::open(Arc::new(store) as Arc<dyn ObjectStore>, &target, unit_options())?;
    control::perform(&Served { blocks: Arc::new(blocks), scrubber: None }, request)
}
