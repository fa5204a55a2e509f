//! The folder of a new metadata server, prepared once in each test program.
//!
//! Reason: `mds init` derives the administrator's key with Argon2id, which takes a large part of
//! the processor time of a test that starts a system.
//! Contract: a folder has the content and the modes that `mds init` without other flags writes.
//! Systems of one test program have the same keys and the same administrator's secret.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{run, text};

/// A folder, or a file with its content.
#[derive(Debug)]
struct PreparedEntry {
    /// Relative to the folder of the server; empty for that folder itself.
    path: PathBuf,
    mode: u32,
    content: Option<Vec<u8>>,
}

/// Writes the folder that `mds init --data FOLDER` writes.
#[track_caller]
pub(crate) fn init_mds(folder: &Path) {
    static ENTRIES: OnceLock<Vec<PreparedEntry>> = OnceLock::new();
    for PreparedEntry { path, mode, content } in ENTRIES.get_or_init(prepare) {
        let path = folder.join(path);
        match content {
            Some(content) => fs::write(&path, content),
            None => fs::create_dir(&path),
        }
        .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(*mode)))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Runs `mds init` and returns its folder, each folder before its content.
fn prepare() -> Vec<PreparedEntry> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let root = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&root)]).ok();
    let mut entries = Vec::new();
    let mut pending = vec![root.clone()];
    while let Some(path) = pending.pop() {
        let metadata = fs::symlink_metadata(&path).expect("a file of the server");
        let content = metadata.is_file().then(|| fs::read(&path).expect("readable"));
        if metadata.is_dir() {
            let names = fs::read_dir(&path).expect("readable");
            pending.extend(names.map(|entry| entry.expect("an entry of the folder").path()));
        }
        let mode = metadata.permissions().mode() & 0o7777;
        let path = path.strip_prefix(&root).expect("a path in the folder").to_owned();
        entries.push(PreparedEntry { path, mode, content });
    }
    entries
}
