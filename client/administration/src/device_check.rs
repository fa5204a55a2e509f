//! Checks of stopped devices: all checksums.

use std::path::Path;

use sealstone_daemon::machine::now_ms;
use sealstone_device_server::open_stopped;
use sealstone_failure::text::{ShownPath as _, human_bytes};
use sealstone_failure::{Failure, Outcome, chain};
use sealstone_osd::ObjectType;
use sealstone_osd_device::inspect::{DamagedObject, Inspection, inspect};
use sealstone_store::{DamageKind, ObjectStore as _, StoreError, StoreFault};
use serde::Serialize;
use serde_json::{Value, json};

use crate::observer::{OperationObserver, OperationProgress, OperationUnit};

/// Maximum number of damaged objects that the text lists.
const LINES_MAX: usize = 1000;

/// A damaged byte range, as `--json` prints it.
#[derive(Debug, Serialize)]
struct DamagedPiece {
    what: &'static str,
    offset: u64,
    length: u64,
}

/// A damaged object, as `--json` prints it.
#[derive(Debug, Serialize)]
struct DamagedObjectReport {
    object: String,
    kind: &'static str,
    pieces: Vec<DamagedPiece>,
}

/// Result of the check of a stopped device.
#[derive(Debug)]
pub struct DeviceCheckReport {
    name: String,
    seen: Inspection,
    objects: Vec<DamagedObjectReport>,
    faults: Vec<String>,
}

/// Verifies all checksums of the stopped device in a folder. With `repair` the device records the
/// damage.
///
/// # Errors
/// The device runs, or its store cannot be opened or changed. Damage is no error.
pub fn check_device(
    data: &Path,
    repair: bool,
    observer: &dyn OperationObserver,
) -> Outcome<DeviceCheckReport> {
    let (folder, store) = open_stopped(data)?;
    if repair && store.is_poisoned() {
        let faults: Vec<String> = store.health().faults.iter().map(ToString::to_string).collect();
        return Err(Failure::operation(format!("cannot record damage: {}", faults.join("; ")))
            .at(data.shown())
            .hint("run it without --repair to see what can be read"));
    }
    let name = folder.identity.name.clone();
    let progress = OperationProgress::begin(observer, OperationUnit::Bytes, store.space().used, &name);
    let seen = inspect(&store, repair.then(now_ms), |so_far| {
        // Blocks that several objects share are read once per object.
        progress.set(so_far.bytes, so_far.bytes_total.max(so_far.bytes));
    });
    let seen = seen.map_err(|error: StoreError| Failure::operation(chain(&error)).at(data.shown()))?;
    let objects = seen.findings.iter().map(damaged_object).collect();
    let faults = seen.faults.iter().map(ToString::to_string).collect();
    Ok(DeviceCheckReport { name, seen, objects, faults })
}

impl DeviceCheckReport {
    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let seen = &self.seen;
        json!({
            "device": self.name, "objects": seen.objects, "bytes": seen.bytes,
            "damaged": self.objects.len() as u64, "more": seen.more, "read_only": seen.read_only,
            "faults": self.faults, "noted": seen.noted, "findings": self.objects,
        })
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        text(&self.name, &self.seen, &self.objects, &self.faults)
    }

    /// Returns the outcome.
    ///
    /// # Errors
    /// An object or the store is damaged.
    pub fn outcome(&self) -> Outcome {
        // Reported, but harmless.
        let harmless =
            |fault: &StoreFault| matches!(fault, StoreFault::UnknownFile { .. } | StoreFault::Superblock);
        let fault = self.seen.faults.iter().find(|fault| !harmless(fault));
        verdict(&self.name, self.objects.len() as u64, fault)
    }
}

fn damaged_object(finding: &DamagedObject) -> DamagedObjectReport {
    let kind = match finding.kind {
        Some(ObjectType::Root) => "root",
        Some(ObjectType::Partition) => "partition",
        Some(ObjectType::Collection) => "collection",
        Some(ObjectType::User) => "user",
        None => "unknown",
    };
    let pieces = finding.pieces.iter().map(|piece| DamagedPiece {
        what: word(piece.kind),
        offset: piece.offset,
        length: piece.length,
    });
    DamagedObjectReport { object: finding.id.to_string(), kind, pieces: pieces.collect() }
}

/// Returns the name of a kind of damage in JSON.
fn word(kind: DamageKind) -> &'static str {
    match kind {
        DamageKind::Data => "data",
        DamageKind::Unreadable => "unreadable",
        DamageKind::Map => "map",
        DamageKind::Record => "record",
        DamageKind::Attributes => "attributes",
        DamageKind::Memberships => "memberships",
        DamageKind::Digests => "digests",
        DamageKind::Sum => "sum",
        DamageKind::Profile => "profile",
        _ => "other",
    }
}

fn line(object: &DamagedObjectReport) -> String {
    let pieces: Vec<String> = object
        .pieces
        .iter()
        .map(|piece| {
            let bytes = format!("{} bytes at {}", piece.length, piece.offset);
            match piece.what {
                "data" => format!("{bytes} fail their checksum or digest"),
                "unreadable" => format!("{bytes} cannot be read"),
                "map" if piece.length > 0 => format!("{bytes} cannot be found"),
                "map" => "its block map is damaged".into(),
                "record" => "its record is lost".into(),
                "attributes" => "attributes are lost".into(),
                "digests" => "the digest of an attribute page does not match its values".into(),
                "sum" => "its digests do not add up: records are lost or stale".into(),
                "profile" => "its digest profile is lost; set the profile again".into(),
                _ => "its memberships are damaged".into(),
            }
        })
        .collect();
    format!("{} object {}: {}", object.kind, object.object, pieces.join(", "))
}

fn text(name: &str, seen: &Inspection, objects: &[DamagedObjectReport], faults: &[String]) -> String {
    let mut lines: Vec<String> = faults.to_vec();
    lines.extend(objects.iter().take(LINES_MAX).map(line));
    let unlisted = objects.len().saturating_sub(LINES_MAX);
    if unlisted > 0 || seen.more {
        lines.push(format!("and {unlisted}{} more", if seen.more { " and still" } else { "" }));
    }
    if seen.read_only {
        lines.push("the device is read-only in this state".into());
    }
    if seen.noted > 0 {
        lines.push(format!("damage records of {} objects were updated", seen.noted));
    }
    lines.push(summary(name, seen.objects, seen.bytes, objects.len() as u64));
    lines.join("\n")
}

/// Returns the summary line of a check or a scrub.
pub(crate) fn summary(name: &str, objects: u64, bytes: u64, damaged: u64) -> String {
    let end = if damaged == 0 { "no object damaged".to_owned() } else { format!("{damaged} damaged") };
    format!("{name}: {objects} objects, {} read, {end}", human_bytes(bytes))
}

/// Returns a failure (exit code 1) if anything is damaged.
pub(crate) fn verdict(name: &str, damaged: u64, store: Option<&StoreFault>) -> Outcome {
    let objects = match damaged {
        0 => None,
        1 => Some("1 object is damaged".to_owned()),
        damaged => Some(format!("{damaged} objects are damaged")),
    };
    match (store, objects) {
        (None, None) => Ok(()),
        (
            Some(StoreFault::MissingFile { name: file } | StoreFault::ShortFile { name: file, .. }),
            objects,
        ) => {
            let what = format!("{file} is missing or too short");
            Err(Failure::operation(
                [Some(what), objects].into_iter().flatten().collect::<Vec<_>>().join("; "),
            )
            .at(name)
            .hint("restore the file; until then the device is read-only"))
        }
        (Some(other), objects) => Err(Failure::operation(
            [Some(other.to_string()), objects].into_iter().flatten().collect::<Vec<_>>().join("; "),
        )
        .at(name)
        .hint("restore the folder from a backup, or copy what can be read to another device")),
        (None, Some(objects)) => Err(Failure::operation(objects)
            .at(name)
            .hint("`sealstone get` names the file; put it again from a good copy")),
    }
}
