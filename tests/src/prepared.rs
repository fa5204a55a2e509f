//! The folder of a new metadata server, prepared once in each test program.
//!
//! Reason: `mds init` and the first login derive keys with Argon2id, which takes a large part of
//! the processor time of a test that starts a system.
//! Contract: a folder has the content and the modes that `mds init` without other flags writes, or
//! those after a login of the administrator as well. Systems of one test program have the same keys
//! and the same administrator's secret.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{CommandResult, Daemon, Signal, command, run, text};

/// A folder, or a file with its content.
#[derive(Debug)]
struct PreparedEntry {
    /// Relative to the folder of the server; empty for that folder itself.
    path: PathBuf,
    mode: u32,
    content: Option<Vec<u8>>,
}

/// A session of the administrator, and the folder of the server that knows it.
#[derive(Debug)]
struct PreparedSession {
    entries: Vec<PreparedEntry>,
    /// Content of the session file.
    session: String,
    /// Address of the server in it.
    address: String,
}

/// Writes the folder that `mds init --data FOLDER` writes.
#[track_caller]
pub(crate) fn init_mds(folder: &Path) {
    static ENTRIES: OnceLock<Vec<PreparedEntry>> = OnceLock::new();
    let prepare = || {
        let parent = tempfile::tempdir().expect("temporary folder");
        let folder = parent.path().join("mds");
        run(&["mds", "init", "--data", text(&folder)]).ok();
        read_entries(&folder)
    };
    write_entries(ENTRIES.get_or_init(prepare), folder);
}

/// Writes the folder of a server after a login of the administrator. [`write_session`] writes the
/// session when the server has an address.
#[track_caller]
pub(crate) fn init_mds_with_session(folder: &Path) {
    write_entries(&prepared_session().entries, folder);
}

/// Writes the file of the administrator's session with a server at this address.
#[track_caller]
pub(crate) fn write_session(file: &Path, address: &str) {
    let PreparedSession { session, address: old, .. } = prepared_session();
    fs::write(file, session.replace(old, address)).expect("written");
    fs::set_permissions(file, Permissions::from_mode(0o600)).expect("narrowed");
}

/// Logs the administrator in with the secret that `mds init` wrote.
#[track_caller]
pub(crate) fn log_in(folder: &Path, session: &Path) {
    let (cluster, secret) = (folder.join("cluster.toml"), folder.join("admin-secret"));
    let mut login =
        command(&["login", "admin", "--cluster", text(&cluster), "--password-file", text(&secret)]);
    login.env("SEALSTONE_SESSION", session);
    CommandResult::from(login.output().expect("the binary starts")).ok();
}

fn prepared_session() -> &'static PreparedSession {
    static SESSION: OnceLock<PreparedSession> = OnceLock::new();
    SESSION.get_or_init(|| {
        let parent = tempfile::tempdir().expect("temporary folder");
        let (folder, file) = (parent.path().join("mds"), parent.path().join("session.toml"));
        init_mds(&folder);
        let serve = ["--json", "mds", "serve", "--data", text(&folder), "--listen", "127.0.0.1:0"];
        let mut server = Daemon::start(command(&serve));
        let address = server.field("address").to_owned();
        log_in(&folder, &file);
        assert_eq!(server.end(Signal::Terminate), 0, "{}", server.stderr());
        let session = fs::read_to_string(&file).expect("readable");
        assert!(session.contains(&address), "the session file has no address");
        PreparedSession { entries: read_entries(&folder), session, address }
    })
}

/// Reads a folder, each folder before its content.
fn read_entries(root: &Path) -> Vec<PreparedEntry> {
    let mut entries = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = fs::symlink_metadata(&path).expect("a file of the server");
        let content = metadata.is_file().then(|| fs::read(&path).expect("readable"));
        if metadata.is_dir() {
            let names = fs::read_dir(&path).expect("readable");
            pending.extend(names.map(|entry| entry.expect("an entry of the folder").path()));
        }
        let mode = metadata.permissions().mode() & 0o7777;
        let path = path.strip_prefix(root).expect("a path in the folder").to_owned();
        entries.push(PreparedEntry { path, mode, content });
    }
    entries
}

#[track_caller]
fn write_entries(entries: &[PreparedEntry], folder: &Path) {
    for PreparedEntry { path, mode, content } in entries {
        let path = folder.join(path);
        match content {
            Some(content) => fs::write(&path, content),
            None => fs::create_dir(&path),
        }
        .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(*mode)))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}
