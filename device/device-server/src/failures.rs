//! Failures of a device's folder and store, with the next step.

use std::path::Path;

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, chain};
use sealstone_osd_device::boot::BootError;
use sealstone_store::FormatError;

/// Returns the failure of a device that cannot start.
pub(crate) fn boot_failure(error: BootError, data: &Path) -> Failure {
    use sealstone_osd_device::ProvisionError as P;
    let error = match error {
        BootError::Store(error) => return store_failure(error, data),
        other => other,
    };
    let failure = Failure::operation(chain(&error));
    match &error {
        BootError::Provision(P::NotInitialised(_)) => Failure { kind: FailureKind::NotFound, ..failure },
        BootError::Provision(P::KeyMode { path, .. }) => {
            Failure { kind: FailureKind::Denied, ..failure }.hint(format!("chmod 600 {}", path.shown()))
        }
        BootError::Provision(P::Io { path, source }) => failure.medium_hint(source, path),
        BootError::Provision(P::Name(_)) => {
            Failure { kind: FailureKind::Usage, ..failure }.hint("use --name")
        }
        _ => failure,
    }
}

/// Returns the failure of a store that cannot be opened, with its path and the next step.
pub(crate) fn store_failure(error: FormatError, data: &Path) -> Failure {
    store_hint(error, data).at(data.join("store").shown())
}

/// Returns the failure of a store, with the next step.
pub(crate) fn store_hint(error: FormatError, data: &Path) -> Failure {
    let place = data.join("store");
    let failure = Failure::operation(chain(&error));
    let check = format!("sealstone osd check --data {}", data.shown());
    match &error {
        FormatError::InUse => failure.hint(format!(
            "stop the device first, or check it while it runs: sealstone scrub --data {}",
            data.shown()
        )),
        FormatError::Occupied { .. } | FormatError::AlreadyFormatted => failure.hint("--force overwrites it"),
        FormatError::NotFormatted => {
            failure.hint("restore the folder from a backup, or create a new device with `sealstone osd init`")
        }
        FormatError::Missing { name } | FormatError::Truncated { name, .. } => failure.hint(format!(
            "restore {name} from a backup of this folder; without it put the files of this device again"
        )),
        FormatError::Superblock(_) | FormatError::Foreign => {
            failure.hint("restore all files of the folder from one backup")
        }
        FormatError::Index { .. } | FormatError::IndexLost => {
            failure.hint(format!("the index is damaged; `{check}` shows what can be read"))
        }
        FormatError::Io { source, .. } => failure.medium_hint(source, &place),
        _ => failure,
    }
}
