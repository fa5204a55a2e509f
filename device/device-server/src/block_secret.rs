//! The secret of a device under which keys of blocks are sealed at rest.
//!
//! Does: read its file, create it for the first unit that needs it, and notice a restored one.
//! Contract: an existing file is never replaced. Without the secret only the units that need it are
//! unavailable.

use std::io::ErrorKind::NotFound;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use sealstone_block::{BlockUnits, LazyOptions, PageSecret, StoredSecret};
use sealstone_daemon::machine::random;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, chain, secret_file};
use sealstone_initiator::{Environment as _, SystemEnvironment};
use sealstone_store::ObjectStore;

/// File with the secret under which keys of blocks are sealed at rest.
const PAGE_SECRET: &str = "block-keys.secret";

/// Returns the secret of this device and random bytes, for units with keys of blocks. Without the
/// secret only the units that need it are unavailable.
pub(crate) fn lazy_options(folder: &Path, store: &dyn ObjectStore) -> LazyOptions {
    let secret = match load_secret(folder, store) {
        Ok(secret) => StoredSecret::Present(secret),
        Err(failure) => {
            let reason = secret_failure_text(&failure);
            tracing::error!(reason, "units that store sealed keys are unavailable");
            StoredSecret::Missing(reason.into())
        }
    };
    LazyOptions { secret, random: Arc::new(|into: &mut [u8]| SystemEnvironment.fill_random(into)) }
}

/// Returns a failure of [`load_secret`] in one line, with the next step.
pub(crate) fn secret_failure_text(failure: &Failure) -> String {
    let step = failure.next_step.as_ref().map(|step| format!("; {step}")).unwrap_or_default();
    format!("{}{step}", failure.message)
}

/// Reads the secret of block keys. Creates it unless a unit needs the one before, which a new one
/// could not replace. An existing file is never replaced.
pub(crate) fn load_secret(folder: &Path, store: &dyn ObjectStore) -> Outcome<PageSecret> {
    let path = folder.join(PAGE_SECRET);
    // A symbolic link to a missing file is not replaced either.
    let is_missing = std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == NotFound);
    if is_missing {
        let sealed =
            BlockUnits::sealed_unit_names(store).map_err(|error| Failure::operation(chain(&error)))?;
        if !sealed.is_empty() {
            let units = sealed.join(", ");
            return Err(Failure::operation(format!(
                "the secret of block keys is missing; without it these units cannot be read: {units}"
            ))
            .at(path.shown())
            .hint(
                "restore the file from a copy, which the device then loads by itself; if there is none, the \
                 units are lost: sealstone block rm",
            ));
        }
        secret_file::write(&path, &random::<32>())?;
    }
    read_secret(folder)
}

/// Reads the secret of block keys from its file.
pub(crate) fn read_secret(folder: &Path) -> Outcome<PageSecret> {
    let path = folder.join(PAGE_SECRET);
    let bytes = secret_file::read_bytes(&path)?;
    let secret = bytes.as_slice().try_into().map_err(|_| {
        Failure::operation("the secret of block keys does not have 32 bytes")
            .at(path.shown())
            .hint("restore the file from a copy, which the device then loads by itself")
    })?;
    Ok(PageSecret::new(secret))
}

/// Identifies a state of the file with the secret: inode, length, and time of the last change of
/// content or mode.
pub(crate) type SecretState = (u64, u64, i64, i64);

/// Returns the state of the file with the secret; `None` if it is missing.
pub(crate) fn secret_state(folder: &Path) -> Option<SecretState> {
    let found = std::fs::metadata(folder.join(PAGE_SECRET)).ok()?;
    Some((found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
}
