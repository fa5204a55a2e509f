//! The data directory of a device: created by `osd init`, opened by `osd serve`.
//!
//! Does: system id, name and capacity in `device.toml`; the initial master key in `master.key`
//! (0600); state that changes at every start (boot epoch, nonce lease) in `boot.toml`.
//! Does not: touch the objects under `store/`, or generate random bytes, which are passed in. Keys
//! that SET KEY changes are in [`crate::keyfile`].
//! Contract: each file is replaced as a whole (write, fsync, rename, fsync of the directory),
//! except `boot.toml`, which is overwritten in place, so that a full disk cannot stop a device.
//! `device.toml` is written last, so a directory without it is no device, and one with a leftover
//! marker shows an interrupted init.
//! From layout version 2 on the keys are in a separate file, which must exist. `osd init` creates
//! version 1, whose keys are the factory keys, and the first start upgrades it to version 2.
//! Truth: docs/design/security.md 3.4 (lease), 3.7 (key files); docs/design/architecture.md section
//! 5 (`osd init`).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sealstone_crypto::vault::VaultError;
use sealstone_private::PrivateError;
use sealstone_seal::freshness::{NonceHistory, TimeSpan};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::folder::{self, DirectoryFolder};

mod initial_key;

pub use initial_key::{InitialKey, InitialKeyFile, InitialKeyFileError};

/// Layout of the data directory that this version reads and writes.
pub const LAYOUT_VERSION: u32 = 2;
/// Layout of a device that was never started: its keys are not stored yet.
const LAYOUT_WITHOUT_KEYS: u32 = 1;
/// Bytes of a master key.
pub const MASTER_KEY_LEN: usize = 32;
/// Bytes of an OSD SYSTEM ID.
pub const SYSTEM_ID_LEN: usize = 20;
/// Longest name of a device in bytes. It becomes part of its iSCSI name.
pub const NAME_MAX: usize = 64;
/// Longest file in bytes. Longer ones are refused unread.
const FILE_MAX: u64 = 16 * 1024;

const DEVICE_FILE: &str = "device.toml";
const BOOT_FILE: &str = "boot.toml";
const KEY_FILE: &str = "master.key";
const MARKER_FILE: &str = "init.incomplete";
const STORE_DIR: &str = "store";

/// Why a data directory cannot be created or opened.
#[derive(Debug, Error)]
pub enum ProvisionError {
    /// The directory already contains a device.
    #[error("{0} already holds a device")]
    AlreadyInitialised(PathBuf),
    /// The directory has other content.
    #[error("{0} is not empty")]
    NotEmpty(PathBuf),
    /// The directory contains no device.
    #[error("{0} holds no device; run `sealstone osd init`")]
    NotInitialised(PathBuf),
    /// `osd init` did not finish here.
    #[error("{0}: initialisation was interrupted; remove the directory and run `sealstone osd init` again")]
    Interrupted(PathBuf),
    /// Created by another version of this program.
    #[error("{path} has layout version {found}, this program reads {LAYOUT_VERSION}")]
    Version {
        /// The file with the version.
        path: PathBuf,
        /// The version in the file.
        found: u32,
    },
    /// A key file does not exist.
    #[error("{0} is missing: without it the device cannot be opened")]
    KeyMissing(PathBuf),
    /// The key file cannot be unsealed.
    #[error("{path}: {source}")]
    Sealed {
        /// The key file.
        path: PathBuf,
        /// Cause of the failure.
        source: VaultError,
    },
    /// The key file is an old copy, whose keys may have been revoked.
    #[error("{path} is an old copy: generation {found}, but the device had stored generation {least}")]
    KeysOld {
        /// The key file.
        path: PathBuf,
        /// Its generation.
        found: u64,
        /// The minimum generation.
        least: u64,
    },
    /// The key file is readable by other users.
    #[error("{path} has mode {mode:04o}, want 0600")]
    KeyMode {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The key file belongs to another device.
    #[error("{0} belongs to another device: its system id differs")]
    KeyOfAnotherDevice(PathBuf),
    /// The content of a file is invalid.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        reason: String,
    },
    /// The name cannot be part of an iSCSI name.
    #[error("bad device name {0:?}: 1 to {NAME_MAX} of a-z, 0-9, '.', '-'")]
    Name(String),
    /// An operation of the system failed.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Immutable properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// OSD SYSTEM ID: a designation descriptor (VPD 83h) of the logical unit, zero padded.
    pub system_id: [u8; SYSTEM_ID_LEN],
    /// Name of the device, the last part of its iSCSI name.
    pub name: String,
    /// Bytes that the store may use.
    pub capacity: u64,
}

impl DeviceIdentity {
    /// Creates an identity. `unique` becomes the vendor-specific part of the system id.
    ///
    /// # Errors
    /// [`ProvisionError::Name`] if the name is invalid.
    pub fn new(name: &str, capacity: u64, unique: [u8; 12]) -> Result<Self, ProvisionError> {
        check_name(name)?;
        Ok(Self { system_id: system_id(unique), name: name.to_owned(), capacity })
    }
}

/// Returns a VPD 83h designation descriptor of exactly 20 bytes: code set 1 (binary), association
/// logical unit, designator type 0 (vendor specific), 16 bytes: `SEAL` and the unique part.
#[must_use]
pub fn system_id(unique: [u8; 12]) -> [u8; SYSTEM_ID_LEN] {
    let mut id = [0; SYSTEM_ID_LEN];
    id[..8].copy_from_slice(&[0x01, 0x00, 0x00, 0x10, b'S', b'E', b'A', b'L']);
    id[8..].copy_from_slice(&unique);
    id
}

/// State that changes at each start and every second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootState {
    /// Boot epoch: number of starts modulo 65536, never 0 (0 in a capability means unchecked).
    pub epoch: u16,
    /// Nonce lease in ms since 1970: no request nonce with a later time was ever accepted.
    pub lease_ms: u64,
    /// Minimum generation of the key file.
    #[serde(default)]
    pub keys: u64,
    /// Start of the nonce era that the lease ends, in ms since 1970.
    #[serde(default)]
    pub era_ms: u64,
    /// Closed nonce eras, first and last time of each, in ms since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spent: Vec<[u64; 2]>,
}

impl BootState {
    /// Returns the times in which nonces may have been accepted.
    #[must_use]
    pub fn history(&self) -> NonceHistory {
        let spans: Vec<TimeSpan> =
            self.spent.iter().map(|&[from_ms, to_ms]| TimeSpan { from_ms, to_ms }).collect();
        NonceHistory::new(self.lease_ms, self.era_ms, &spans)
    }

    /// Returns the record with this history.
    #[must_use]
    pub fn with_history(self, history: &NonceHistory) -> Self {
        let spent = history.spent().iter().map(|span| [span.from_ms, span.to_ms]).collect();
        Self { lease_ms: history.lease_ms(), era_ms: history.era_ms(), spent, ..self }
    }
}

/// File with a device's boot record.
#[derive(Clone, Debug)]
pub struct BootRecord(PathBuf);

impl BootRecord {
    /// Overwrites the record in place, durably. It contains the nonce lease.
    ///
    /// # Errors
    /// [`ProvisionError::Io`] if writing fails.
    pub fn write(&self, boot: BootState) -> Result<(), ProvisionError> {
        folder::store(&DirectoryFolder(self.0.clone()), BOOT_FILE, toml_text(&boot).as_bytes())
    }
}

/// The open directory of a device.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    /// Identity of the device.
    pub identity: DeviceIdentity,
    /// Initial master key of the device.
    pub master_key: InitialKey,
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceFile {
    version: u32,
    system_id: String,
    name: String,
    capacity: u64,
}

impl DataDir {
    /// Creates a device in an empty or absent directory. `make_store` gets the path of the store's
    /// directory, which does not exist yet. If it fails, the marker stays.
    ///
    /// # Errors
    /// The inner result is that of the store, the outer one that of this module.
    pub fn format<S, E>(
        root: &Path,
        identity: DeviceIdentity,
        master_key: InitialKey,
        make_store: impl FnOnce(&Path) -> Result<S, E>,
    ) -> Result<Result<(Self, S), E>, ProvisionError> {
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(at(root))?;
        if root.join(MARKER_FILE).exists() {
            return Err(ProvisionError::Interrupted(root.to_owned()));
        }
        if root.join(DEVICE_FILE).exists() {
            return Err(ProvisionError::AlreadyInitialised(root.to_owned()));
        }
        if fs::read_dir(root).map_err(at(root))?.next().is_some() {
            return Err(ProvisionError::NotEmpty(root.to_owned()));
        }
        mark(root)?;
        let store = match make_store(&root.join(STORE_DIR)) {
            Ok(store) => store,
            Err(error) => return Ok(Err(error)),
        };
        replace(root, KEY_FILE, key_file(&identity, &master_key).as_bytes())?;
        BootRecord(root.to_owned()).write(BootState::default())?;
        write_device(root, LAYOUT_WITHOUT_KEYS, &identity)?;
        let marker = root.join(MARKER_FILE);
        fs::remove_file(&marker).map_err(at(&marker))?;
        sync_dir(root)?;
        Ok(Ok((Self { root: root.to_owned(), identity, master_key, version: LAYOUT_WITHOUT_KEYS }, store)))
    }

    /// Opens a directory that [`Self::format`] created.
    ///
    /// # Errors
    /// All variants of [`ProvisionError`] except those about names and non-empty directories.
    pub fn open(root: &Path) -> Result<Self, ProvisionError> {
        if root.join(MARKER_FILE).exists() {
            return Err(ProvisionError::Interrupted(root.to_owned()));
        }
        let path = root.join(DEVICE_FILE);
        let text = match read_bounded(&path) {
            Err(ProvisionError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(ProvisionError::NotInitialised(root.to_owned()));
            }
            other => other?,
        };
        // The version is checked first, because another version may have other fields.
        let table: toml::Table = text.parse().map_err(malformed(&path))?;
        let found = table.get("version").and_then(toml::Value::as_integer).unwrap_or(0);
        if found != i64::from(LAYOUT_VERSION) && found != i64::from(LAYOUT_WITHOUT_KEYS) {
            return Err(ProvisionError::Version { path, found: u32::try_from(found).unwrap_or(0) });
        }
        let device: DeviceFile = toml::from_str(&text).map_err(malformed(&path))?;
        check_name(&device.name)?;
        let identity = DeviceIdentity {
            system_id: unhex(&device.system_id)
                .ok_or_else(|| bad(&path, "system_id is not 20 bytes of hex"))?,
            name: device.name,
            capacity: device.capacity,
        };
        let master_key = read_key(&root.join(KEY_FILE), &identity)?;
        Ok(Self { root: root.to_owned(), identity, master_key, version: device.version })
    }

    /// Returns the path of the store.
    #[must_use]
    pub fn store_path(&self) -> PathBuf {
        self.root.join(STORE_DIR)
    }

    /// Whether the keys are in a separate file. Otherwise they are the factory keys.
    #[must_use]
    pub const fn has_key_file(&self) -> bool {
        self.version != LAYOUT_WITHOUT_KEYS
    }

    /// Records that the keys are in a separate file, without which a start fails.
    ///
    /// # Errors
    /// [`ProvisionError::Io`] if writing fails.
    pub fn require_key_file(&mut self) -> Result<(), ProvisionError> {
        write_device(&self.root, LAYOUT_VERSION, &self.identity)?;
        self.version = LAYOUT_VERSION;
        Ok(())
    }

    /// Replaces the initial key durably. It is used where there is no key file, and is passed to
    /// the security manager.
    ///
    /// # Errors
    /// [`ProvisionError::Io`] if writing fails.
    pub(crate) fn replace_key(&mut self, master_key: InitialKey) -> Result<(), ProvisionError> {
        replace(&self.root, KEY_FILE, key_file(&self.identity, &master_key).as_bytes())?;
        self.master_key = master_key;
        Ok(())
    }

    /// Returns the folder of the device's own files.
    #[must_use]
    pub fn folder(&self) -> DirectoryFolder {
        DirectoryFolder(self.root.clone())
    }

    /// Starts a boot: increments the boot epoch durably.
    ///
    /// # Errors
    /// [`ProvisionError::Io`] or [`ProvisionError::Malformed`].
    pub fn begin_boot(&self) -> Result<BootState, ProvisionError> {
        let path = self.root.join(BOOT_FILE);
        let content = folder::load(&self.folder(), BOOT_FILE, FILE_MAX)
            .and_then(|content| content.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .map_err(at(&path))?;
        let text = std::str::from_utf8(&content).map_err(|_| bad(&path, "not UTF-8"))?;
        let mut boot: BootState = toml::from_str(text).map_err(malformed(&path))?;
        boot.epoch = boot.epoch.checked_add(1).unwrap_or(1);
        self.write_boot(boot.clone())?;
        Ok(boot)
    }

    /// Returns the handle that writes the boot record.
    #[must_use]
    pub fn boot_record(&self) -> BootRecord {
        BootRecord(self.root.clone())
    }

    fn write_boot(&self, boot: BootState) -> Result<(), ProvisionError> {
        self.boot_record().write(boot)
    }

    /// Writes the key file that `mds add-osd --key` reads: `system_id`, `name`, `master_key`; mode
    /// 0600.
    ///
    /// # Errors
    /// [`ProvisionError::Io`]; an existing file is not overwritten.
    pub fn write_key_out(&self, path: &Path) -> Result<(), ProvisionError> {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(at(path))?;
        let text = key_file(&self.identity, &self.master_key);
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(at(path))
    }
}

fn write_device(root: &Path, version: u32, identity: &DeviceIdentity) -> Result<(), ProvisionError> {
    let device = DeviceFile {
        version,
        system_id: hex(&identity.system_id),
        name: identity.name.clone(),
        capacity: identity.capacity,
    };
    replace(root, DEVICE_FILE, toml_text(&device).as_bytes())
}

fn check_name(name: &str) -> Result<(), ProvisionError> {
    let fits = !name.is_empty() && name.len() <= NAME_MAX;
    let plain = name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-'));
    if fits && plain { Ok(()) } else { Err(ProvisionError::Name(name.chars().take(NAME_MAX).collect())) }
}

fn key_file(identity: &DeviceIdentity, key: &InitialKey) -> Zeroizing<String> {
    InitialKeyFile { system_id: identity.system_id, name: identity.name.clone(), key: key.clone() }.to_text()
}

fn read_key(path: &Path, identity: &DeviceIdentity) -> Result<InitialKey, ProvisionError> {
    let file = match sealstone_private::open(path) {
        Err(PrivateError::Io(source)) if source.kind() == io::ErrorKind::NotFound => {
            return Err(ProvisionError::KeyMissing(path.to_owned()));
        }
        Err(PrivateError::Mode { mode }) => {
            return Err(ProvisionError::KeyMode { path: path.to_owned(), mode });
        }
        other => other.map_err(|error| at(path)(error.into()))?,
    };
    let text = Zeroizing::new(read_file(file, path)?);
    let file = InitialKeyFile::parse(&text).map_err(|error| bad(path, &error.to_string()))?;
    if file.system_id != identity.system_id {
        return Err(ProvisionError::KeyOfAnotherDevice(path.to_owned()));
    }
    Ok(file.key)
}

fn replace(dir: &Path, name: &str, content: &[u8]) -> Result<(), ProvisionError> {
    folder::replace(&DirectoryFolder(dir.to_owned()), name, content)
}

/// Marks a folder as incomplete. Not by [`replace`], whose temporary file would be the only one if
/// this process is killed now.
fn mark(dir: &Path) -> Result<(), ProvisionError> {
    let marker = dir.join(MARKER_FILE);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&marker);
    file.and_then(|file| file.sync_all()).map_err(at(&marker))?;
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> Result<(), ProvisionError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
}

fn read_bounded(path: &Path) -> Result<String, ProvisionError> {
    read_file(File::open(path).map_err(at(path))?, path)
}

fn read_file(file: File, path: &Path) -> Result<String, ProvisionError> {
    let length = file.metadata().map_err(at(path))?.len();
    if length > FILE_MAX {
        return Err(bad(path, "file is too long"));
    }
    // One allocation, so that no copy of a key remains in freed memory.
    let mut text = String::with_capacity(length as usize + 1);
    file.take(FILE_MAX).read_to_string(&mut text).map_err(at(path))?;
    Ok(text)
}

fn toml_text(value: &impl Serialize) -> String {
    toml::to_string(value).expect("our own structs have string keys and plain values")
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ProvisionError + '_ {
    move |source| ProvisionError::Io { path: path.to_owned(), source }
}

fn malformed(path: &Path) -> impl FnOnce(toml::de::Error) -> ProvisionError + '_ {
    move |error| bad(path, error.message())
}

fn bad(path: &Path, reason: &str) -> ProvisionError {
    ProvisionError::Malformed { path: path.to_owned(), reason: reason.to_owned() }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn identity() -> DeviceIdentity {
        DeviceIdentity::new("osd-1", 1 << 30, [7; 12]).unwrap()
    }

    fn key() -> InitialKey {
        InitialKey(Zeroizing::new([0xA5; MASTER_KEY_LEN]))
    }

    fn made(root: &Path) -> DataDir {
        let made = DataDir::format(root, identity(), key(), |store| {
            fs::create_dir(store)?;
            Ok::<(), io::Error>(())
        });
        made.unwrap().unwrap().0
    }

    #[test]
    fn formatted_directory_reopens() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("d");
        let made = made(&root);
        let open = DataDir::open(&root).unwrap();
        assert_eq!(open.identity, made.identity);
        assert_eq!(*open.master_key.0, [0xA5; MASTER_KEY_LEN]);
        assert_eq!(fs::metadata(root.join(KEY_FILE)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn boot_epoch_increments_and_skips_zero() {
        let dir = tempfile::tempdir().unwrap();
        let made = made(&dir.path().join("d"));
        assert_eq!(made.begin_boot().unwrap().epoch, 1);
        assert_eq!(made.begin_boot().unwrap().epoch, 2);
        made.write_boot(BootState { epoch: u16::MAX, lease_ms: 9, keys: 4, ..BootState::default() }).unwrap();
        assert_eq!(
            made.begin_boot().unwrap(),
            BootState { epoch: 1, lease_ms: 9, keys: 4, ..BootState::default() }
        );
    }

    #[test]
    fn invalid_directories_have_distinct_errors() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("d");
        assert!(matches!(DataDir::open(&root), Err(ProvisionError::NotInitialised(_))));
        made(&root);
        let again = DataDir::format(&root, identity(), key(), |_| Ok::<(), io::Error>(()));
        assert!(matches!(again, Err(ProvisionError::AlreadyInitialised(_))));

        let key_path = root.join(KEY_FILE);
        fs::set_permissions(&key_path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(DataDir::open(&root), Err(ProvisionError::KeyMode { mode: 0o644, .. })));
        fs::set_permissions(&key_path, fs::Permissions::from_mode(0o600)).unwrap();

        let text = fs::read_to_string(&key_path).unwrap();
        let other = DeviceIdentity::new("osd-1", 1 << 30, [8; 12]).unwrap();
        fs::write(&key_path, key_file(&other, &key()).as_bytes()).unwrap();
        assert!(matches!(DataDir::open(&root), Err(ProvisionError::KeyOfAnotherDevice(_))));
        fs::write(&key_path, text.replace("a5", "zz")).unwrap();
        assert!(matches!(DataDir::open(&root), Err(ProvisionError::Malformed { .. })));
        fs::remove_file(&key_path).unwrap();
        assert!(matches!(DataDir::open(&root), Err(ProvisionError::KeyMissing(_))));

        let device = root.join(DEVICE_FILE);
        let text = fs::read_to_string(&device).unwrap();
        fs::write(&device, text.replace("version = 1", "version = 3")).unwrap();
        assert!(matches!(DataDir::open(&root), Err(ProvisionError::Version { found: 3, .. })));

        fs::write(root.join(MARKER_FILE), "").unwrap();
        assert!(matches!(DataDir::open(&root), Err(ProvisionError::Interrupted(_))));
    }

    #[test]
    fn failed_store_creation_leaves_interrupted_init() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("d");
        let failed = DataDir::format(&root, identity(), key(), |_| Err::<(), _>(io::Error::other("full")));
        assert!(failed.unwrap().is_err());
        assert!(matches!(DataDir::open(&root), Err(ProvisionError::Interrupted(_))));
        let again = DataDir::format(&root, identity(), key(), |_| Ok::<(), io::Error>(()));
        assert!(matches!(again, Err(ProvisionError::Interrupted(_))));
    }

    #[test]
    fn non_empty_directory_is_left_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let refused = DataDir::format(dir.path(), identity(), key(), |_| Ok::<(), io::Error>(()));
        assert!(matches!(refused, Err(ProvisionError::NotEmpty(_))));
    }

    #[test]
    fn invalid_device_names_are_refused() {
        for name in ["", "A", "a b", "ä", &"x".repeat(NAME_MAX + 1)] {
            assert!(
                matches!(DeviceIdentity::new(name, 0, [0; 12]), Err(ProvisionError::Name(_))),
                "{name:?}"
            );
        }
    }

    #[test]
    fn debug_output_hides_key() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!format!("{:?}", made(&dir.path().join("d"))).to_lowercase().contains("a5a5"));
    }
}
