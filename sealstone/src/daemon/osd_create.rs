//! Creates a device for `sealstone osd init`, and a new initial key for one that is stopped.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_channel::Pin;
use sealstone_device::boot::{self, NewDevice};
use sealstone_device::provision::{DataDir, InitialKey};
use sealstone_store::{FileMedium, bytes_with_reserve, free_space_of, survey_device};
use zeroize::Zeroizing;

use super::osd::{Machine, boot_failure, store_failure, store_hint};
use super::{check_data_folder, identity, random};
use crate::failure::{Failure, Kind, Outcome, chain};
use crate::output::human_bytes;
use crate::text::ShownPath as _;

/// What a new device tells its operator.
pub(crate) struct Made {
    pub(crate) capacity: u64,
    pub(crate) system_id: String,
    pub(crate) name: String,
    pub(crate) key: PathBuf,
    pub(crate) pin: Pin,
    /// What is wrong with its capacity.
    pub(crate) warning: Option<String>,
}

/// What a new device promises, beside what its file system can hold.
struct Promise {
    /// Bytes that the new device may come to take.
    wanted: u64,
    /// Bytes that devices beside it may still come to take.
    promised: u64,
    /// Bytes that the file system has free.
    free: u64,
}

/// Folders beside a new device's that are looked at for devices, at most.
const BESIDE_MAX: usize = 1024;

impl Promise {
    /// Of a device in this folder, which need not exist yet, and the devices in folders beside it.
    fn of(data: &Path, capacity: u64) -> Outcome<Self> {
        let absolute = std::path::absolute(data).map_err(|error| Failure::from(error).at(data.shown()))?;
        let place = absolute.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
        let at = |error: std::io::Error| Failure::from(error).at(place.shown());
        let beneath = free_space_of(place).map_err(at)?;
        let mut promised = 0_u64;
        let beside = absolute.parent().and_then(|parent| std::fs::read_dir(parent).ok());
        for entry in beside.into_iter().flatten().flatten().take(BESIDE_MAX) {
            let folder = entry.path();
            let store = folder.join("store");
            let Ok(other) = DataDir::open(&folder) else { continue };
            // A store on a block device takes nothing of this file system.
            if free_space_of(&store).is_ok_and(|other| other.id == beneath.id)
                && !store.join("device").exists()
            {
                let whole = bytes_with_reserve(other.identity.capacity);
                promised = promised.saturating_add(whole.saturating_sub(taken(&store)));
            }
        }
        Ok(Self { wanted: bytes_with_reserve(capacity), promised, free: beneath.free })
    }

    /// Says that the file system cannot hold all of it.
    fn warning(&self, data: &Path) -> Option<String> {
        let all = self.wanted.saturating_add(self.promised);
        if all <= self.free {
            return None;
        }
        let beside = match self.promised {
            0 => String::new(),
            promised => format!(" and devices beside it {} more", human_bytes(promised)),
        };
        Some(format!(
            "warning: {}: the device may take {}{beside}, but the file system has {} free: writes will fail when it is \
             full; use a smaller --capacity, or free some space (df shows what there really is)",
            data.shown(),
            human_bytes(self.wanted),
            human_bytes(self.free),
        ))
    }
}

/// Bytes that the files of a folder take.
fn taken(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.blocks().saturating_mul(512)).sum()
}

/// Where a new device keeps its objects.
pub(crate) enum Place {
    /// In files that hold so many bytes of them.
    Files {
        /// How many.
        capacity: u64,
        /// Whether the files get all of their space at once.
        preallocate: bool,
    },
    /// On a block device: path, bytes (or as many as fit), and whether to overwrite what is there.
    Raw { path: PathBuf, capacity: Option<u64>, force: bool },
}

/// Formats a device.
pub(crate) fn init(data: &Path, place: Place, name: Option<&str>, key_out: Option<&Path>) -> Outcome<Made> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => std::path::absolute(data)
            .ok()
            .and_then(|path| Some(path.file_name()?.to_str()?.to_ascii_lowercase()))
            .ok_or_else(|| {
                Failure::usage("the folder's name is no device name").at(data.shown()).hint("use --name")
            })?,
    };
    check_data_folder(data)?;
    let key = key_out.map_or_else(|| data.join("initial.key"), Path::to_owned);
    if key.exists() {
        return Err(Failure::operation("already exists").at(key.shown()));
    }
    // Before the device is made: afterwards there would be a device whose key nobody was given.
    key_out.map_or(Ok(()), can_be_made)?;
    let mut warning = None;
    let mut fills = false;
    let (capacity, raw) = match place {
        Place::Files { capacity, preallocate } => {
            fills = preallocate;
            let promise = Promise::of(data, capacity)?;
            if preallocate && promise.wanted > promise.free {
                return Err(Failure::operation(format!(
                    "{} are wanted and the file system has {} free",
                    human_bytes(promise.wanted),
                    human_bytes(promise.free)
                ))
                .at(data.shown())
                .hint("use a smaller --capacity, or free some space"));
            }
            warning = promise.warning(data);
            (capacity, None)
        }
        Place::Raw { path, capacity, force } => {
            let refused = |error| store_hint(error, data).at(path.shown());
            let max = survey_device(&path, force).map_err(refused)?;
            (capacity.unwrap_or(max), Some((path, force)))
        }
    };
    let device = NewDevice {
        name,
        capacity,
        raw,
        unique: random(),
        store_uuid: random(),
        master_key: InitialKey(Zeroizing::new(random())),
    };
    let made = boot::init(data, device).map_err(|error| boot_failure(error, data))?;
    if fills {
        let full = |error| store_failure(error, data);
        let medium = FileMedium::open(made.store_path()).map_err(full)?;
        sealstone_store::preallocate(&medium).map_err(full)?;
    }
    made.write_key_out(&key).map_err(|error| Failure::operation(chain(&error)))?;
    let own = identity::open(data, &made.identity.system_id)?;
    Ok(Made {
        warning,
        pin: own.pin().map_err(Failure::operation)?,
        capacity,
        system_id: made.identity.system_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        name: made.identity.name.clone(),
        key,
    })
}

/// Can a file be made there?
fn can_be_made(path: &Path) -> Outcome {
    if let Some(folder) = path.parent()
        && !folder.as_os_str().is_empty()
        && !folder.is_dir()
    {
        return Err(Failure::new(Kind::NotFound, "no such folder").at(folder.shown()));
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.and_then(|_| std::fs::remove_file(path)).map_err(|error| Failure::from(error).at(path.shown()))
}

/// Gives a device that rests a new initial key.
pub(super) fn new_key(data: &Path, key_out: Option<&Path>) -> Outcome<(DataDir, PathBuf)> {
    check_data_folder(data)?;
    let key = key_out.map_or_else(|| data.join("initial.key"), Path::to_owned);
    if key.exists() {
        return Err(Failure::operation("exists already")
            .at(key.shown())
            .hint("move it away, or use --key-out"));
    }
    key_out.map_or(Ok(()), can_be_made)?;
    let master_key = InitialKey(Zeroizing::new(random()));
    let made =
        boot::new_key(data, master_key, Arc::new(Machine)).map_err(|error| boot_failure(error, data))?;
    made.write_key_out(&key).map_err(|error| Failure::operation(chain(&error)))?;
    Ok((made, key))
}
