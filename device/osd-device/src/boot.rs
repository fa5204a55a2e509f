//! Creates data directories and starts devices from them.
//!
//! Does: the steps that `osd init` and `osd serve` share, in the right order.
//! Does not: threads, sockets, configuration files.
//! Contract: `start` increments the boot epoch before the device can answer anything.
//! Truth: docs/design/architecture.md section 5; docs/design/security.md 3.4.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_seal::InitialKey;
use sealstone_seal::freshness::NonceHistory;
use sealstone_store::{
    DiskStore, FileMedium, FormatError, FormatOptions, MIN_CAPACITY, StoreOptions, bind_device,
    open_store_medium, survey_device,
};
use thiserror::Error;

use crate::audit::AuditSink;
use crate::device::OsdConfig;
use crate::environment::DeviceEnvironment;
use crate::folder::Folder;
use crate::guard::LeaseStore;
use crate::keyfile::SealedKeyFile;
use crate::keyring::{KEY_HASH, KeyRecord, KeyStore, Keys};
use crate::provision::{self, BootRecord, BootState, DataDir, DeviceIdentity, ProvisionError};
use crate::unit::{DeviceParts, OsdUnit, StartError};

/// Why a device cannot be created or started.
#[derive(Debug, Error)]
pub enum BootError {
    /// The directory or one of its files is invalid.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// The store in the directory cannot be opened.
    #[error("store: {0}")]
    Store(#[from] FormatError),
    /// The device on the store cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Parameters of a new device. The caller supplies the random values.
pub struct NewDevice {
    /// Name of the device: 1 to 64 of a-z, 0-9, '.', '-'.
    pub name: String,
    /// Bytes that objects may use.
    pub capacity: u64,
    /// Block device for the store, and whether to overwrite existing content. `None`: files in the
    /// directory.
    pub raw: Option<(PathBuf, bool)>,
    /// Random unique part of the OSD SYSTEM ID.
    pub unique: [u8; 12],
    /// Random id of the store.
    pub store_uuid: [u8; 16],
    /// Random initial master key.
    pub master_key: provision::InitialKey,
}

/// Creates a device: `osd init`.
///
/// # Errors
/// [`BootError::Provision`] or [`BootError::Store`]. A partly created directory stays marked as
/// interrupted.
pub fn init(root: &Path, device: NewDevice) -> Result<DataDir, BootError> {
    let identity = DeviceIdentity::new(&device.name, device.capacity, device.unique)?;
    let options = FormatOptions::new(device.capacity, device.store_uuid);
    if let Some((path, overwrite)) = &device.raw {
        // Checked before the directory is created, so a refused device leaves nothing behind.
        let max = survey_device(path, *overwrite)?;
        if device.capacity > max {
            let (bytes, min) = (device.capacity, MIN_CAPACITY);
            return Err(FormatError::Capacity { bytes, min, max }.into());
        }
    }
    let created = DataDir::format(root, identity, device.master_key, |store| match &device.raw {
        Some((path, overwrite)) => {
            let medium = bind_device(store, path, device.store_uuid, *overwrite)?;
            sealstone_store::format(&medium, &options)
        }
        None => sealstone_store::format(&FileMedium::open(store)?, &options),
    })?;
    Ok(created?.0)
}

/// A running device, with the parts that the daemon needs.
pub struct RunningDevice {
    /// The logical unit.
    pub unit: Arc<OsdUnit>,
    /// The store under it, for its background thread and its metrics.
    pub store: Arc<DiskStore>,
    /// Identity of the device.
    pub identity: DeviceIdentity,
    /// Boot epoch of this start.
    pub boot_epoch: u16,
}

/// Starts the device in a directory: `osd serve`.
///
/// # Errors
/// [`BootError`] if the directory, its store or the device is unusable.
pub fn start(
    root: &Path,
    config: OsdConfig,
    options: StoreOptions,
    environment: Arc<dyn DeviceEnvironment>,
    audit: Arc<dyn AuditSink>,
) -> Result<RunningDevice, BootError> {
    let mut dir = DataDir::open(root)?;
    let store = Arc::new(DiskStore::open(open_store_medium(dir.store_path(), options.io)?, options)?);
    store.require_files()?;
    let boot = dir.begin_boot()?;
    let master_key = InitialKey::new(&*dir.master_key.0).expect("an initial key has 32 bytes");
    let identity = dir.identity.clone();
    let folder: Arc<dyn Folder> = Arc::new(dir.folder());
    let (file, stored) = if dir.has_key_file() {
        let (file, stored) = SealedKeyFile::open(folder, Arc::clone(&environment), boot.keys)?;
        (file, Some(stored))
    } else {
        (SealedKeyFile::create(folder, Arc::clone(&environment))?, None)
    };
    let generation = file.generation();
    let first_start = stored.is_none();
    let lease = BootFile { dir: dir.boot_record(), epoch: boot.epoch, keys: generation };
    let unit = OsdUnit::start(DeviceParts {
        store: Arc::clone(&store) as Arc<dyn sealstone_store::ObjectStore>,
        config,
        system_id: identity.system_id,
        name: identity.name.clone(),
        master_key,
        keys: KeyRecord { stored, store: Box::new(file) },
        boot_epoch: boot.epoch,
        nonces: boot.history(),
        lease: Box::new(lease),
        environment,
        audit,
    })?;
    if first_start {
        // The keys are stored now. Before any key can change, a start without the key file must
        // fail.
        dir.require_key_file()?;
    }
    // Objects with damage found while opening the store are scrubbed first.
    unit.suspect_objects(store.health().damage.iter().map(|damage| damage.object));
    Ok(RunningDevice { unit: Arc::new(unit), store, identity, boot_epoch: boot.epoch })
}

/// Gives a stopped device a new initial key: `osd new-key`. All keys become void, objects stay.
/// Partitions have no keys until the new security manager sets them. For a device whose manager
/// lost its keys.
///
/// A crash leaves the old keys, or the new ones under the new initial key. Running it again
/// completes the change.
///
/// # Errors
/// [`BootError`]; `InUse` of the store if the device is running.
pub fn new_key(
    root: &Path,
    master_key: provision::InitialKey,
    environment: Arc<dyn DeviceEnvironment>,
) -> Result<DataDir, BootError> {
    let mut dir = DataDir::open(root)?;
    let options = StoreOptions::default();
    // The open store excludes other processes from the directory.
    let _store = DiskStore::open(open_store_medium(dir.store_path(), options.io)?, options)?;
    let boot = dir.begin_boot()?;
    let initial = InitialKey::new(&*master_key.0).expect("an initial key has 32 bytes");
    let keys = Keys::factory(KEY_HASH, &initial, dir.identity.system_id);
    dir.replace_key(master_key)?;
    // Nothing signed so far verifies under the new keys, so all nonce times are usable again.
    let nonces = NonceHistory::new(boot.lease_ms, boot.era_ms, &[]);
    dir.boot_record().write(boot.clone().with_history(&nonces))?;
    let file = SealedKeyFile::renew(Arc::new(dir.folder()), environment, boot.keys)?;
    file.persist_keys(&keys.encode())?;
    dir.require_key_file()?;
    Ok(dir)
}

/// Stores the nonce lease with the boot epoch, and the generation of the keys that were durable
/// before.
struct BootFile {
    dir: BootRecord,
    epoch: u16,
    keys: Arc<AtomicU64>,
}

impl LeaseStore for BootFile {
    fn persist(&self, history: &NonceHistory) -> Result<(), ProvisionError> {
        let keys = self.keys.load(Ordering::Acquire);
        let boot = BootState { epoch: self.epoch, keys, ..BootState::default() };
        self.dir.write(boot.with_history(history))
    }
}
