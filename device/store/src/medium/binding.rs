//! Opens the medium of a store: its folder, or the device that the folder refers to.
//!
//! Does: binds a folder to a labelled device, and opens whichever it is. A binding is a symbolic
//! link `device`, which an operator can see and change if the device's path changes, and a file
//! `device.uuid` with the label's uuid, so that the link cannot refer to another store's device
//! unnoticed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::{BlockDevice, DeviceMedium, FileMedium, IoMode, Medium, MediumFile};
use crate::FormatError;

/// Name of the symbolic link to the device.
const LINK: &str = "device";
/// Name of the file with the uuid of its label, 32 hexadecimal digits.
const UUID: &str = "device.uuid";

fn failed(doing: &'static str) -> impl Fn(io::Error) -> FormatError {
    move |source| FormatError::Io { doing, source }
}

/// Checks a device without changing it; returns the largest capacity of a store on it, in bytes.
///
/// # Errors
/// Errors of [`bind_device`].
pub fn survey_device(device: impl AsRef<Path>, overwrite: bool) -> Result<u64, FormatError> {
    let device: Arc<dyn MediumFile> = Arc::new(BlockDevice::open(device)?);
    DeviceMedium::survey(&device, overwrite)
}

/// Labels a device and binds the folder to it; returns the device, still without a store.
///
/// # Errors
/// `AlreadyFormatted` if the folder refers to another device, or to this one with a store; and
/// unless `overwrite`, if the device has a label and a finished store. Otherwise as
/// [`BlockDevice::open`] and [`DeviceMedium::format`].
pub fn bind_device(
    folder: impl AsRef<Path>,
    device: impl AsRef<Path>,
    uuid: [u8; 16],
    overwrite: bool,
) -> Result<DeviceMedium, FormatError> {
    let (folder, path) = (folder.as_ref(), device.as_ref());
    let _held = FileMedium::open(folder)?;
    // The path as given: /dev/disk/by-id/… stays valid where /dev/sdX does not.
    let path = std::path::absolute(path).map_err(failed("finding the device"))?;
    let link = folder.join(LINK);
    if fs::symlink_metadata(&link).is_ok() {
        // Whether this repeats an interrupted call, before there is a store.
        let same = fs::read_link(&link).is_ok_and(|target| target == path);
        let device: Arc<dyn MediumFile> = Arc::new(BlockDevice::open(&path)?);
        if !same || DeviceMedium::survey(&device, false).is_err() {
            return Err(FormatError::AlreadyFormatted);
        }
        drop(device);
        fs::remove_file(&link).map_err(failed("naming the device"))?;
    }
    let medium = DeviceMedium::format(Arc::new(BlockDevice::open(&path)?), uuid, overwrite)?;
    let tie = || -> io::Result<()> {
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(folder.join(UUID))?;
        writeln!(file, "{}", hex(&uuid))?;
        file.sync_all()?;
        std::os::unix::fs::symlink(&path, folder.join(LINK))?;
        File::open(folder)?.sync_all()
    };
    tie().map_err(failed("naming the device"))?;
    Ok(medium)
}

/// Opens the medium of a store's folder: the folder itself, or the device that it refers to.
///
/// # Errors
/// As [`FileMedium::open`]; for a device as [`BlockDevice::open`] and [`DeviceMedium::open`], and
/// `OtherDevice`.
pub fn open_store_medium(folder: impl AsRef<Path>, io: IoMode) -> Result<Arc<dyn Medium>, FormatError> {
    let folder = folder.as_ref();
    let files = FileMedium::open_with(folder, io)?;
    let link = folder.join(LINK);
    if fs::symlink_metadata(&link).is_err() {
        return Ok(Arc::new(files));
    }
    let device = Arc::new(BlockDevice::open_with(&link, io)?);
    let data = device.data();
    let device = DeviceMedium::open_with(device, data)?;
    let expected = fs::read_to_string(folder.join(UUID)).map_err(failed("reading the device's uuid"))?;
    if expected.trim_end() != hex(&device.uuid()) {
        return Err(FormatError::OtherDevice);
    }
    Ok(Arc::new(BoundDevice { device, _folder: files }))
}

fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A device, with the lock of the folder that refers to it.
struct BoundDevice {
    device: DeviceMedium,
    _folder: FileMedium,
}

impl Medium for BoundDevice {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>> {
        self.device.open(name, create)
    }

    fn open_data(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        self.device.open_data(name)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.device.delete(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.device.list()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.device.sync_names()
    }

    fn rewrite_names(&self) -> io::Result<()> {
        self.device.rewrite_names()
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.device.boot_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(folder: &Path, name: &str) -> std::path::PathBuf {
        let path = folder.join(name);
        File::create(&path).unwrap().set_len(super::super::DEVICE_MIN).unwrap();
        path
    }

    #[test]
    fn folder_opens_its_own_device_and_no_other() {
        let scratch = tempfile::tempdir().unwrap();
        let (one, other) = (device(scratch.path(), "one"), device(scratch.path(), "other"));
        let folder = scratch.path().join("store");
        bind_device(&folder, &one, [1; 16], false).unwrap().open("x", true).unwrap().sync().unwrap();
        assert!(matches!(bind_device(&folder, &other, [1; 16], false), Err(FormatError::AlreadyFormatted)));
        assert_eq!(open_store_medium(&folder, IoMode::Auto).unwrap().list().unwrap(), ["x"]);
        let held = open_store_medium(&folder, IoMode::Auto).unwrap();
        assert!(
            matches!(open_store_medium(&folder, IoMode::Auto), Err(FormatError::InUse)),
            "the folder is held"
        );
        let elsewhere = scratch.path().join("elsewhere");
        let again = bind_device(&elsewhere, &one, [2; 16], true);
        assert!(matches!(again, Err(FormatError::InUse)), "the device is held, whichever folder names it");
        drop(held);
        drop(bind_device(&elsewhere, &other, [2; 16], false).unwrap());
        fs::remove_file(folder.join(LINK)).unwrap();
        std::os::unix::fs::symlink(&other, folder.join(LINK)).unwrap();
        assert!(matches!(open_store_medium(&folder, IoMode::Auto), Err(FormatError::OtherDevice)));
        fs::remove_file(&other).unwrap();
        assert!(
            matches!(open_store_medium(&folder, IoMode::Auto), Err(FormatError::Io { .. })),
            "a device that is not there"
        );
    }

    #[test]
    fn folder_without_device_is_the_medium_itself() {
        let scratch = tempfile::tempdir().unwrap();
        open_store_medium(scratch.path(), IoMode::Auto).unwrap().open("x", true).unwrap();
        assert!(scratch.path().join("x").is_file());
    }
}
