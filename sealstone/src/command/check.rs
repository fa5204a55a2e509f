//! `sealstone osd check`: is everything on a device that rests what was written?

use std::path::Path;

use sealstone_device::inspect::{Finding, Inspection, inspect};
use sealstone_device::{DataDir, ProvisionError};
use sealstone_osd::ObjectType;
use sealstone_store::{DiskStore, FormatError, Io, ObjectStore as _, Options, StoreError, open_place};
use serde::Serialize;

use crate::daemon::now_ms;
use crate::daemon::osd::store_failure;
use crate::daemon::scrub::Found;
use crate::failure::{Failure, Kind, Outcome, chain};
use crate::output::{Output, human_bytes};

/// A damaged object as `--json` tells it.
#[derive(Serialize)]
struct Told {
    kind: &'static str,
    #[serde(flatten)]
    found: Found,
}

/// Runs the check.
pub(crate) fn check(output: Output, data: &Path, repair: bool) -> Outcome {
    let folder = DataDir::open(data).map_err(|error| {
        let failure = Failure::operation(chain(&error));
        match error {
            ProvisionError::NotInitialised(_) => Failure { kind: Kind::NotFound, ..failure },
            _ => failure,
        }
    })?;
    let closed = |error: FormatError| store_failure(error, data);
    let medium = open_place(folder.store_path(), Io::Auto).map_err(closed)?;
    let store = DiskStore::open(medium, Options::default()).map_err(closed)?;
    let read_only = store.is_poisoned();
    let faults: Vec<String> = store.health().faults.iter().map(ToString::to_string).collect();
    if repair && read_only {
        return Err(Failure::operation("the index is damaged: the store is for reading only").at(data.display()).hint(
            "without --repair the check tells what can be read; bring the folder back from a copy, or put what \
             can be read elsewhere",
        ));
    }
    let bar = output.progress(Some(store.space().used), &folder.identity.name);
    let seen = inspect(&store, repair.then(now_ms), |so_far| {
        // Blocks that objects share are read for each.
        bar.set_length(store.space().used.max(so_far.bytes));
        bar.set_position(so_far.bytes);
    });
    bar.finish_and_clear();
    let seen = seen.map_err(|error: StoreError| Failure::operation(chain(&error)).at(data.display()))?;
    let told: Vec<Told> = seen.findings.iter().map(tell).collect();
    let value = serde_json::json!({
        "device": folder.identity.name, "objects": seen.objects, "bytes": seen.bytes, "damaged": seen.damaged,
        "index_damaged": read_only, "faults": faults, "noted": seen.noted, "findings": told,
    });
    output.result(&value, || text(&folder.identity.name, &seen, &told, &faults, read_only))?;
    verdict(&folder.identity.name, seen.damaged, read_only)
}

fn tell(finding: &Finding) -> Told {
    let kind = match finding.kind {
        ObjectType::Root => "root",
        ObjectType::Partition => "partition",
        ObjectType::Collection => "collection",
        ObjectType::User => "user",
    };
    Told { kind, found: Found::new(finding.id, &finding.damage) }
}

fn text(name: &str, seen: &Inspection, told: &[Told], faults: &[String], read_only: bool) -> String {
    let mut lines: Vec<String> =
        told.iter().map(|told| format!("{} object {}", told.kind, told.found.line())).collect();
    let unlisted = seen.damaged.saturating_sub(told.len() as u64);
    if unlisted > 0 {
        lines.push(format!("and {unlisted} more"));
    }
    lines.extend_from_slice(faults);
    if read_only {
        lines.push(
            "the index is damaged: objects may be missing from it; the device would only be read".into(),
        );
    }
    if seen.noted > 0 {
        lines.push(format!("noted on {} objects what changed", seen.noted));
    }
    lines.push(summary(name, seen.objects, seen.bytes, seen.damaged));
    lines.join("\n")
}

/// One line about a check or a scrub.
pub(crate) fn summary(name: &str, objects: u64, bytes: u64, damaged: u64) -> String {
    let end = if damaged == 0 { "all sound".to_owned() } else { format!("{damaged} damaged") };
    format!("{name}: {objects} objects, {} read, {end}", human_bytes(bytes))
}

/// Exit code 1 if anything is damaged.
pub(crate) fn verdict(name: &str, damaged: u64, index: bool) -> Outcome {
    match (damaged, index) {
        (0, false) => Ok(()),
        (0, true) => Err(Failure::operation("the index is damaged").at(name).hint(
            "bring the folder back from a copy; or read what can be read, and put it on another device",
        )),
        (damaged, _) => {
            let what = if damaged == 1 {
                "1 object is damaged".into()
            } else {
                format!("{damaged} objects are damaged")
            };
            Err(Failure::operation(what)
                .at(name)
                .hint("`get` names the file; put it again from a good copy: what is written anew is sound"))
        }
    }
}
