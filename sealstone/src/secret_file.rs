//! Files that hold secrets: created 0600 from the start, replaced whole, refused when others could read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sealstone_private::PrivateError;
use zeroize::Zeroizing;

use crate::failure::{Failure, Kind, Outcome};
use crate::text::ShownPath as _;

/// Secrets are short; more than this is not one.
const BYTES_MAX: u64 = 64 * 1024;

/// Writes a new file or replaces an old one; after return it is durable under its name.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Outcome {
    let at = |error: io::Error| Failure::from(error).at(path.shown());
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or_else(|| Failure::usage("is not a file name").at(path.shown()))?;
    let temporary = folder.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| File::open(folder)?.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(at)
}

/// As [`write()`], unless the file has these contents already: then nothing is written, so that a full disk is no matter.
pub(crate) fn write_changed(path: &Path, contents: &[u8]) -> Outcome {
    match read_bytes(path) {
        Ok(found) if **found == *contents => Ok(()),
        _ => write(path, contents),
    }
}

/// Reads a secret; a file that others may read is refused, because it no longer is one.
pub(crate) fn read(path: &Path) -> Outcome<Zeroizing<String>> {
    read_up_to(path, BYTES_MAX)
}

/// The same, where it is no text.
pub(crate) fn read_bytes(path: &Path) -> Outcome<Zeroizing<Vec<u8>>> {
    let (mut file, length) = open(path, BYTES_MAX)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(length as usize + 1));
    file.read_to_end(&mut bytes).map_err(|error| Failure::from(error).at(path.shown()))?;
    Ok(bytes)
}

/// The same of at most so many bytes of text.
pub(crate) fn read_up_to(path: &Path, bytes_max: u64) -> Outcome<Zeroizing<String>> {
    let (mut file, length) = open(path, bytes_max)?;
    let mut text = Zeroizing::new(String::with_capacity(length as usize + 1));
    file.read_to_string(&mut text).map_err(|error| Failure::from(error).at(path.shown()))?;
    Ok(text)
}

/// Reads a small file that is no secret.
pub(crate) fn read_public(path: &Path) -> Outcome<Vec<u8>> {
    let at = |error: io::Error| Failure::from(error).at(path.shown());
    let mut bytes = Vec::new();
    File::open(path).map_err(at)?.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(at)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(Failure::usage(format!("more than {BYTES_MAX} bytes")).at(path.shown()));
    }
    Ok(bytes)
}

/// Opens a secret of at most so many bytes; its length.
fn open(path: &Path, bytes_max: u64) -> Outcome<(File, u64)> {
    let at = |failure: Failure| failure.at(path.shown());
    let file = sealstone_private::open(path).map_err(|error| not_private(&error, path))?;
    let metadata = file.metadata().map_err(|error| at(error.into()))?;
    if metadata.len() > bytes_max {
        return Err(at(Failure::usage(format!("{} bytes; at most {bytes_max} are read", metadata.len()))));
    }
    Ok((file, metadata.len()))
}

/// The failure that says why a file or folder is refused, and what to do about it.
fn not_private(error: &PrivateError, path: &Path) -> Failure {
    let failure = match error {
        PrivateError::Io(source) => {
            let again =
                source.raw_os_error().map_or_else(|| source.kind().into(), io::Error::from_raw_os_error);
            Failure::from(again)
        }
        denied => Failure::new(Kind::Denied, denied.to_string()),
    };
    let failure = failure.at(path.shown());
    match error.next_step(path) {
        Some(next) => failure.hint(next),
        None => failure,
    }
}

/// Refuses a data folder that is another user's or that others can write.
pub(crate) fn check_folder(path: &Path) -> Outcome {
    sealstone_private::check_folder(path).map_err(|error| not_private(&error, path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The file never exists with wider permissions, and a widened one is refused.
    #[test]
    fn a_secret_is_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("secret");
        write(&path, b"first").expect("written");
        write(&path, b"second").expect("replaced");
        assert_eq!(read(&path).expect("readable").as_str(), "second");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("widened");
        assert_eq!(read(&path).expect_err("refused").kind, Kind::Denied);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1, "no temporary file stays behind");
    }
}
