//! Files with secrets: created with mode 0600, replaced atomically, refused if others can read
//! them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sealstone_private::PrivateError;
use zeroize::Zeroizing;

use crate::text::ShownPath as _;
use crate::{Failure, FailureKind, Outcome};

/// Maximum size of a secret, bytes.
const BYTES_MAX: u64 = 64 * 1024;
/// Maximum size of a configuration file, bytes.
const CONFIGURATION_BYTES_MAX: u64 = 1 << 20;

/// Creates or replaces a file. It is durable when this returns.
pub fn write(path: &Path, contents: &[u8]) -> Outcome {
    let at = |error: io::Error| Failure::from(error).at(path.shown());
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or_else(|| Failure::usage("not a file name").at(path.shown()))?;
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

/// Fails if a file exists: it may be the last copy of another secret.
pub fn ensure_new(path: &Path) -> Outcome {
    if path.exists() {
        return Err(Failure::operation("already exists").at(path.shown()).hint("choose another file"));
    }
    Ok(())
}

/// Writes a file unless it has this content already, so that an unchanged file needs no disk space.
pub fn write_changed(path: &Path, contents: &[u8]) -> Outcome {
    match read_bytes(path) {
        Ok(found) if **found == *contents => Ok(()),
        _ => write(path, contents),
    }
}

/// Returns a secret as hex digits.
pub fn to_hex(secret: &[u8]) -> Zeroizing<String> {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble & 15)]);
    // Without the capacity, growth would leave copies behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * secret.len()));
    text.extend(secret.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]));
    text
}

/// Parses a secret of hex digits.
pub fn from_hex(digits: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digits = digits.as_bytes();
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let pairs = digits.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?));
    pairs.collect::<Option<Vec<u8>>>().map(Zeroizing::new)
}

/// Reads a secret text. Refuses a file that others can read.
pub fn read(path: &Path) -> Outcome<Zeroizing<String>> {
    read_up_to(path, BYTES_MAX)
}

/// Reads a secret that is not text, as [`read`] does.
pub fn read_bytes(path: &Path) -> Outcome<Zeroizing<Vec<u8>>> {
    let (mut file, length) = open(path, BYTES_MAX)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(length as usize + 1));
    file.read_to_end(&mut bytes).map_err(|error| Failure::from(error).at(path.shown()))?;
    Ok(bytes)
}

/// Reads a secret text of at most `bytes_max` bytes, as [`read`] does.
pub fn read_up_to(path: &Path, bytes_max: u64) -> Outcome<Zeroizing<String>> {
    let (mut file, length) = open(path, bytes_max)?;
    let mut text = Zeroizing::new(String::with_capacity(length as usize + 1));
    file.read_to_string(&mut text).map_err(|error| Failure::from(error).at(path.shown()))?;
    Ok(text)
}

/// Reads a configuration file, which is not secret.
pub fn read_bounded(path: &Path) -> Outcome<String> {
    let at = |failure: Failure| failure.at(path.shown());
    let length = fs::metadata(path).map_err(|error| at(error.into()))?.len();
    if length > CONFIGURATION_BYTES_MAX {
        return Err(at(Failure::usage(format!(
            "the file has {length} bytes, the limit is {CONFIGURATION_BYTES_MAX}"
        ))));
    }
    fs::read_to_string(path).map_err(|error| at(error.into()))
}

/// Reads a small file that is not secret.
pub fn read_public(path: &Path) -> Outcome<Vec<u8>> {
    let at = |error: io::Error| Failure::from(error).at(path.shown());
    let mut bytes = Vec::new();
    File::open(path).map_err(at)?.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(at)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(Failure::usage(format!("the file has more than {BYTES_MAX} bytes")).at(path.shown()));
    }
    Ok(bytes)
}

/// Opens a secret of at most `bytes_max` bytes; also returns its length.
fn open(path: &Path, bytes_max: u64) -> Outcome<(File, u64)> {
    let at = |failure: Failure| failure.at(path.shown());
    let file = sealstone_private::open(path).map_err(|error| not_private(&error, path))?;
    let metadata = file.metadata().map_err(|error| at(error.into()))?;
    if metadata.len() > bytes_max {
        return Err(at(Failure::usage(format!(
            "the file has {} bytes, the limit is {bytes_max}",
            metadata.len()
        ))));
    }
    Ok((file, metadata.len()))
}

/// Returns the failure of a refused file or folder, with the next step.
fn not_private(error: &PrivateError, path: &Path) -> Failure {
    let failure = match error {
        PrivateError::Io(source) => {
            let again =
                source.raw_os_error().map_or_else(|| source.kind().into(), io::Error::from_raw_os_error);
            Failure::from(again)
        }
        denied => Failure::new(FailureKind::Denied, denied.to_string()),
    };
    let failure = failure.at(path.shown());
    match error.next_step(path) {
        Some(next) => failure.hint(next),
        None => failure,
    }
}

/// Refuses a data folder of another user, or one that others can write.
pub fn check_folder(path: &Path) -> Outcome {
    sealstone_private::check_folder(path).map_err(|error| not_private(&error, path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secret_is_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("secret");
        write(&path, b"first").expect("written");
        write(&path, b"second").expect("replaced");
        assert_eq!(read(&path).expect("readable").as_str(), "second");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("widened");
        assert_eq!(read(&path).expect_err("refused").kind, FailureKind::Denied);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1, "no temporary file stays behind");
    }
}
