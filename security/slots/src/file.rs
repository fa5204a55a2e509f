//! Slot files of a real file system.
//!
//! Does: reads and writes them, with mode 0600.
//! Does not: lock: each file has one writer.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::{CONTENT_MAX, Plan, content, file_len_max, plan};

/// Reads the content of a slot file, or a file of an earlier release as it is; `None` if there is
/// no file.
///
/// # Errors
/// Those of the file system; `InvalidData` if the file is longer than content of `len_max` bytes
/// takes, or damaged.
pub fn read(path: &Path, len_max: u64) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let Some(file) = read_file(path, len_max)? else { return Ok(None) };
    let content = content(&file)?;
    Ok(Some(Zeroizing::new(content.to_vec())))
}

/// Stores content durably: in place if the file has slots that it fits, else in a new file of mode
/// 0600.
///
/// # Errors
/// Those of the file system; the old content stays. `StorageFull` only where a new file is needed.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if content.len() > CONTENT_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "content over its limit"));
    }
    let file = read_file(path, CONTENT_MAX as u64)?;
    match plan(file.as_deref().map(Vec::as_slice), content) {
        Plan::InPlace { offset, bytes } => {
            let file = OpenOptions::new().write(true).open(path)?;
            file.write_all_at(&bytes, offset)?;
            file.sync_data()
        }
        Plan::Whole(bytes) => replace(path, &bytes),
    }
}

fn read_file(path: &Path, len_max: u64) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let file_max = file_len_max(len_max);
    if metadata.len() > file_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is longer than it can be"));
    }
    // Reserved in full, so that no copy of a secret stays behind when it grows.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1));
    File::open(path)?.take(file_max).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(".new");
    let beside: PathBuf = folder.join(beside);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let fill = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    };
    let filled = fill();
    if filled.is_err() {
        let _ = fs::remove_file(&beside);
    }
    filled
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn second_write_stays_in_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        assert!(read(&path, 100).unwrap().is_none());
        fs::write(&path, b"of an earlier release").unwrap();
        assert_eq!(**read(&path, 100).unwrap().unwrap(), *b"of an earlier release");
        write(&path, b"first").unwrap();
        let made = fs::metadata(&path).unwrap();
        assert_eq!(made.permissions().mode() & 0o777, 0o600);
        for number in 0..5 {
            let content = format!("content {number}");
            write(&path, content.as_bytes()).unwrap();
            assert_eq!(**read(&path, 100).unwrap().unwrap(), *content.as_bytes());
        }
        let now = fs::metadata(&path).unwrap();
        assert_eq!((now.ino(), now.len(), now.blocks()), (made.ino(), made.len(), made.blocks()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
