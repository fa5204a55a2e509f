//! Creates a device, and a new initial key for one that is stopped.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_channel::Pin;
use sealstone_daemon::check_data_folder;
use sealstone_daemon::machine::random;
use sealstone_failure::text::{ShownPath as _, hex, human_bytes};
use sealstone_failure::{Failure, Outcome, chain};
use sealstone_osd_device::boot::{self, NewDevice};
use sealstone_osd_device::provision::{DataDir, InitialKey};
use sealstone_store::{FileMedium, bytes_with_reserve, free_space_of, survey_device};
use zeroize::Zeroizing;

use crate::environment::MachineEnvironment;
use crate::failures::{boot_failure, store_failure, store_hint};
use crate::identity;

/// A new device.
pub struct CreatedDevice {
    /// Capacity in bytes.
    pub capacity: u64,
    /// System identifier, hexadecimal.
    pub system_id: String,
    /// Name of the device.
    pub name: String,
    /// File with its initial key.
    pub key: PathBuf,
    /// Pin of its certificate.
    pub pin: Pin,
    /// Warning about overcommitment.
    pub warning: Option<String>,
}

/// Space of a new device and of its neighbours, and the free space of their file system.
struct SpacePlan {
    /// Maximum bytes of the new device.
    wanted: u64,
    /// Bytes that devices in neighbouring folders can still allocate.
    promised: u64,
    /// Free bytes of the file system.
    free: u64,
}

/// Maximum number of neighbouring folders that are checked for devices.
const BESIDE_MAX: usize = 1024;

impl SpacePlan {
    /// Returns the plan for a device in this folder, which need not exist yet.
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
            // A store on a block device uses no space of this file system.
            if free_space_of(&store).is_ok_and(|other| other.id == beneath.id)
                && !store.join("device").exists()
            {
                let whole = bytes_with_reserve(other.identity.capacity);
                promised = promised.saturating_add(whole.saturating_sub(taken(&store)));
            }
        }
        Ok(Self { wanted: bytes_with_reserve(capacity), promised, free: beneath.free })
    }

    /// Returns a warning if the file system cannot hold all devices.
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
            "warning: {}: the device can use {}{beside}, but the file system has {} free; writes will fail when it is \
             full (use a smaller --capacity, or free some space)",
            data.shown(),
            human_bytes(self.wanted),
            human_bytes(self.free),
        ))
    }
}

/// Returns the allocated bytes of the files of a folder.
fn taken(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.blocks().saturating_mul(512)).sum()
}

/// Storage of a new device.
pub enum StorePlace {
    /// Files in the data folder.
    Files {
        /// Capacity in bytes.
        capacity: u64,
        /// Whether all space is allocated now.
        preallocate: bool,
    },
    /// A block device.
    Raw {
        /// Path of the block device.
        path: PathBuf,
        /// Capacity in bytes; `None`: all.
        capacity: Option<u64>,
        /// Whether to overwrite its content.
        force: bool,
    },
}

/// Formats a device, and writes its initial key to a file [default: in its folder].
///
/// # Errors
/// The folder, the block device or the file of the key cannot be used.
pub fn create_device(
    data: &Path,
    place: StorePlace,
    name: Option<&str>,
    key_out: Option<&Path>,
) -> Outcome<CreatedDevice> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => std::path::absolute(data)
            .ok()
            .and_then(|path| Some(path.file_name()?.to_str()?.to_ascii_lowercase()))
            .ok_or_else(|| {
                Failure::usage("the name of the folder is not a valid device name")
                    .at(data.shown())
                    .hint("use --name")
            })?,
    };
    check_data_folder(data)?;
    // Checked first: otherwise the key of a new device could be lost.
    let key = new_key_file(data, key_out)?;
    let mut warning = None;
    let mut fills = false;
    let (capacity, raw) = match place {
        StorePlace::Files { capacity, preallocate } => {
            fills = preallocate;
            let promise = SpacePlan::of(data, capacity)?;
            if preallocate && promise.wanted > promise.free {
                return Err(Failure::operation(format!(
                    "{} are required, but the file system has {} free",
                    human_bytes(promise.wanted),
                    human_bytes(promise.free)
                ))
                .at(data.shown())
                .hint("use a smaller --capacity, or free some space"));
            }
            warning = promise.warning(data);
            (capacity, None)
        }
        StorePlace::Raw { path, capacity, force } => {
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
    let created = boot::init(data, device).map_err(|error| boot_failure(error, data))?;
    if fills {
        let full = |error| store_failure(error, data);
        let medium = FileMedium::open(created.store_path()).map_err(full)?;
        sealstone_store::preallocate(&medium).map_err(full)?;
    }
    created.write_key_out(&key).map_err(|error| Failure::operation(chain(&error)))?;
    let own = identity::open(data, &created.identity.system_id)?;
    Ok(CreatedDevice {
        warning,
        pin: own.pin().map_err(Failure::operation)?,
        capacity,
        system_id: hex(&created.identity.system_id),
        name: created.identity.name.clone(),
        key,
    })
}

/// Returns the file of a new initial key. Fails if it exists or cannot be created.
fn new_key_file(data: &Path, key_out: Option<&Path>) -> Outcome<PathBuf> {
    let key = key_out.map_or_else(|| data.join("initial.key"), Path::to_owned);
    if key.exists() {
        return Err(Failure::operation("already exists").at(key.shown()).hint("move it, or use --key-out"));
    }
    key_out.map_or(Ok(()), check_creatable)?;
    Ok(key)
}

/// Fails if a file cannot be created at a path.
fn check_creatable(path: &Path) -> Outcome {
    if let Some(folder) = path.parent()
        && !folder.as_os_str().is_empty()
        && !folder.is_dir()
    {
        return Err(Failure::not_found("no such folder").at(folder.shown()));
    }
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.and_then(|_| std::fs::remove_file(path)).map_err(|error| Failure::from(error).at(path.shown()))
}

/// Creates a new initial key for a stopped device, and writes it to a file.
///
/// # Errors
/// The folder or the file of the key cannot be used.
pub fn new_key(data: &Path, key_out: Option<&Path>) -> Outcome<(DataDir, PathBuf)> {
    check_data_folder(data)?;
    let key = new_key_file(data, key_out)?;
    let master_key = InitialKey(Zeroizing::new(random()));
    let created = boot::new_key(data, master_key, Arc::new(MachineEnvironment))
        .map_err(|error| boot_failure(error, data))?;
    created.write_key_out(&key).map_err(|error| Failure::operation(chain(&error)))?;
    Ok((created, key))
}
