//! Administration of a device that may be stopped: its store is opened directly then.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::sync::Arc;

use sealstone_daemon::{AUDIT_FILE, AUDIT_LOST_FILE, AuditLog};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, chain};
use sealstone_osd_device::DataDir;
use sealstone_store::{DiskStore, FormatError, IoMode, ObjectStore, open_store_medium};

use crate::blocks::{Blocks, TARGET_PREFIX, store_options, unit_options};
use crate::control::{ControlHandler, ControlRequest, perform, send_request};
use crate::failures::{boot_failure, store_failure};

/// Opens the folder of a device.
pub(crate) fn open_folder(data: &Path) -> Outcome<DataDir> {
    DataDir::open(data).map_err(|error| boot_failure(error.into(), data))
}

fn open_store(folder: &DataDir) -> Result<DiskStore, FormatError> {
    DiskStore::open(open_store_medium(folder.store_path(), IoMode::Auto)?, store_options())
}

/// Opens the store of a stopped device; the lock of the store excludes others.
///
/// # Errors
/// The folder has no device, or the device runs, or its store cannot be opened.
pub fn open_stopped(data: &Path) -> Outcome<(DataDir, DiskStore)> {
    let folder = open_folder(data)?;
    let store = open_store(&folder).map_err(|error| store_failure(error, data))?;
    Ok((folder, store))
}

/// Opens the audit log of a stopped device. Files that root creates get the owner of the folder.
fn open_audit_log(data: &Path) -> Outcome<AuditLog> {
    // The device removes old lines after its next start.
    let log = AuditLog::open(&data.join(AUDIT_FILE), u64::MAX)?;
    if let Ok(folder) = fs::metadata(data) {
        for name in [AUDIT_FILE, AUDIT_LOST_FILE] {
            // Only root needs it, and can do it.
            let _ = chown(data.join(name), Some(folder.uid()), Some(folder.gid()));
        }
    }
    Ok(log)
}

/// Sends the request to the device that runs in the folder. If none does, opens the store, whose
/// lock excludes others.
///
/// # Errors
/// The folder has no device, its store cannot be opened, or the request failed.
pub fn administer(data: &Path, request: ControlRequest) -> Outcome<serde_json::Value> {
    // A wrong folder is reported before the control socket is tried.
    let folder = open_folder(data)?;
    if let Some(value) = send_request(data, &request)? {
        return Ok(value);
    }
    let store = open_store(&folder).map_err(|error| match error {
        // A running device would have answered.
        FormatError::InUse => Failure::operation(chain(&error))
            .at(data.shown())
            .hint("the device is starting or stopping; try again"),
        error => store_failure(error, data),
    })?;
    let target = format!("{TARGET_PREFIX}{}", folder.identity.name);
    let blocks = Blocks::open(Arc::new(store) as Arc<dyn ObjectStore>, &target, unit_options())?;
    let audit = match request.changes_unit() {
        true => Some(Arc::new(open_audit_log(data)?)),
        false => None,
    };
    perform(&ControlHandler { blocks: Arc::new(blocks), audit, scrubber: None, functions: None }, request)
}
