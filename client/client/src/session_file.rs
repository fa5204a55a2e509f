//! The file that keeps a session between two runs of a program, readable by its owner only.
//!
//! Does: saves atomically, loads, and refuses files that others could read or write.
//! Does not: ask for passwords.
//! Contract: the file is always either the old or the new one, and never readable by others.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sealstone_login::SessionKeys;
use sealstone_login::paper::{PAPER_SESSION_BYTES, PaperSession};
use sealstone_mds_protocol::UserName;
use sealstone_private::PrivateError;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::ClientError;
use crate::mds::{SessionTicket, TicketKeys};
use crate::tls::Fingerprint;

/// The profile name in the file; without one it is the modern profile.
const PAPER: &str = "paper";
/// Maximum bytes of a session file.
pub const SESSION_FILE_MAX: u64 = 16 * 1024;

/// A session and the address of its server.
#[derive(Clone, Debug)]
pub struct SavedSession {
    /// `HOST:PORT` of the metadata server.
    pub server: String,
    /// Pin of the server's certificate; none in the paper's profile, where only the login
    /// authenticates the server.
    pub fingerprint: Option<Fingerprint>,
    /// The session.
    pub ticket: SessionTicket,
}

/// The text form of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionToml {
    server: String,
    /// `paper`, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    user: String,
    server_id: String,
    session: String,
    expires_ms: u64,
    keys: String,
}

impl Drop for SessionToml {
    fn drop(&mut self) {
        self.keys.zeroize();
    }
}

impl SavedSession {
    /// Writes the file with mode 0600, replacing an older one.
    ///
    /// # Errors
    /// `SessionFileIo`; the older file then still exists.
    pub fn save(&self, path: &Path) -> Result<(), ClientError> {
        let profile = matches!(self.ticket.keys, TicketKeys::Paper(_)).then(|| PAPER.to_owned());
        let text = SessionToml {
            server: self.server.clone(),
            profile,
            fingerprint: self.fingerprint.map(|fingerprint| fingerprint.to_string()),
            user: self.ticket.user.as_str().to_owned(),
            server_id: hex(&self.ticket.server_id),
            session: hex(&self.ticket.session),
            expires_ms: self.ticket.expires_ms,
            keys: hex(&self.ticket.keys.to_bytes()),
        };
        let body =
            toml::to_string(&text).map_err(|_| ClientError::SessionFile("cannot be written as text"))?;
        let body = Zeroizing::new(format!("# A secret: whoever reads this file acts as its user.\n{body}"));
        replace(path, body.as_bytes()).map_err(ClientError::SessionFileIo)
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// `SessionFile` if others may read or write it, or it is damaged; `SessionFileIo`.
    pub fn load(path: &Path) -> Result<Option<Self>, ClientError> {
        let file = match sealstone_private::open(path) {
            Ok(file) => file,
            Err(PrivateError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(PrivateError::Mode { .. }) => {
                return Err(ClientError::SessionFile("others may read or write it; its mode must be 0600"));
            }
            Err(PrivateError::NotAFile) => return Err(ClientError::SessionFile("not a session file")),
            Err(error) => return Err(ClientError::SessionFileIo(error.into())),
        };
        let metadata = file.metadata().map_err(ClientError::SessionFileIo)?;
        if metadata.len() > SESSION_FILE_MAX {
            return Err(ClientError::SessionFile("not a session file"));
        }
        // One allocation, so that no copy of keys remains in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(metadata.len() as usize + 1));
        file.take(SESSION_FILE_MAX).read_to_string(&mut text).map_err(ClientError::SessionFileIo)?;
        Self::parse(&text).map(Some)
    }

    /// Removes the file, if it exists.
    ///
    /// # Errors
    /// `SessionFileIo`.
    pub fn remove(path: &Path) -> Result<(), ClientError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ClientError::SessionFileIo(error)),
            _ => Ok(()),
        }
    }

    /// Returns the path of the file that programs of a user share; `None` if neither
    /// `XDG_STATE_HOME` nor `HOME` is set to an absolute path.
    #[must_use]
    pub fn default_path() -> Option<PathBuf> {
        let folder = state_folder(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))?;
        Some(folder.join("sealstone").join("session.toml"))
    }

    fn parse(text: &str) -> Result<Self, ClientError> {
        const DAMAGED: ClientError = ClientError::SessionFile("it is damaged; log in again");
        let text: SessionToml = toml::from_str(text).map_err(|_| DAMAGED)?;
        let fingerprint = text.fingerprint.as_deref().map(str::parse).transpose().map_err(|_| DAMAGED)?;
        let keys = match (text.profile.as_deref(), &fingerprint) {
            (None, Some(_)) => {
                let keys = Zeroizing::new(unhex::<32>(&text.keys).ok_or(DAMAGED)?);
                TicketKeys::Modern(SessionKeys::from_bytes(&keys))
            }
            (Some(PAPER), None) => {
                let keys = Zeroizing::new(unhex::<PAPER_SESSION_BYTES>(&text.keys).ok_or(DAMAGED)?);
                TicketKeys::Paper(PaperSession::from_bytes(&keys).ok_or(DAMAGED)?)
            }
            _ => return Err(DAMAGED),
        };
        Ok(Self {
            server: text.server.clone(),
            fingerprint,
            ticket: SessionTicket {
                user: UserName::new(text.user.as_str()).map_err(|_| DAMAGED)?,
                server_id: unhex(&text.server_id).ok_or(DAMAGED)?,
                session: unhex(&text.session).ok_or(DAMAGED)?,
                keys,
                expires_ms: text.expires_ms,
            },
        })
    }
}

/// Returns the folder for state. By the XDG Base Directory Specification an empty or relative
/// variable counts as unset.
fn state_folder(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(state).or_else(|| Some(absolute(home)?.join(".local/state")))
}

/// Writes a temporary file beside `path`, syncs it, and renames it.
pub(crate) fn replace(path: &Path, body: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let beside = folder.join(beside);
    let _ = fs::remove_file(&beside);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(body)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    };
    let result = write();
    if result.is_err() {
        let _ = fs::remove_file(&beside);
    }
    result
}

fn hex(bytes: &[u8]) -> String {
    use core::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let digits = Zeroizing::new(digits);
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    Some(core::array::from_fn(|at| pairs[at][0] << 4 | pairs[at][1]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn empty_and_relative_folders_are_unset() {
        let folder = |state: Option<&str>, home: Option<&str>| {
            state_folder(state.map(OsString::from), home.map(OsString::from))
        };
        let (by_home, by_state) = (Some(PathBuf::from("/h/.local/state")), Some(PathBuf::from("/s")));
        assert_eq!(folder(Some("/s"), Some("/h")), by_state);
        for unset in [None, Some(""), Some("."), Some("s")] {
            assert_eq!(folder(unset, Some("/h")), by_home);
            assert_eq!(folder(unset, None), None);
            assert_eq!(folder(unset, Some("")), None);
            assert_eq!(folder(unset, Some("h")), None);
        }
    }

    fn saved() -> SavedSession {
        SavedSession {
            server: "mds.example:3270".to_owned(),
            fingerprint: Some(Fingerprint::certificate(b"it")),
            ticket: SessionTicket {
                user: UserName::new("alice").unwrap(),
                server_id: [1; 16],
                session: [2; 16],
                keys: SessionKeys::from_bytes(&[3; 32]).into(),
                expires_ms: 1_800_000_000_000,
            },
        }
    }

    #[test]
    fn saved_file_loads_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/session.toml");
        assert!(SavedSession::load(&path).unwrap().is_none());
        saved().save(&path).unwrap();
        saved().save(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let loaded = SavedSession::load(&path).unwrap().unwrap();
        assert_eq!(loaded.server, saved().server);
        assert_eq!(loaded.ticket.session, [2; 16]);
        assert!(matches!(loaded.ticket.keys, TicketKeys::Modern(keys) if *keys.to_bytes() == [3; 32]));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        SavedSession::remove(&path).unwrap();
        SavedSession::remove(&path).unwrap();
    }

    #[test]
    fn paper_session_file_names_its_profile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.toml");
        let mut keys = [7; PAPER_SESSION_BYTES];
        (keys[0], keys[1]) = (1, 3);
        let paper = PaperSession::from_bytes(&keys).unwrap();
        let mut saved = saved();
        saved.fingerprint = None;
        saved.ticket.keys = TicketKeys::Paper(paper);
        saved.save(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("profile = \"paper\"") && !text.contains("fingerprint"), "{text}");
        let loaded = SavedSession::load(&path).unwrap().unwrap();
        assert!(matches!(loaded.ticket.keys, TicketKeys::Paper(session) if *session.to_bytes() == keys));
        // Refused without its profile, and with a fingerprint of the other profile.
        assert!(SavedSession::parse(&text.replace("profile = \"paper\"\n", "")).is_err());
        let pinned = text.replace("profile", "fingerprint = \"sha256:00\"\nprofile");
        assert!(SavedSession::parse(&pinned).is_err());
        assert!(SavedSession::parse(&text.replace("\"paper\"", "\"modern\"")).is_err());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.toml");
        saved().save(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(SavedSession::load(&path), Err(ClientError::SessionFile(_))));
    }

    proptest! {
        #[test]
        fn damaged_files_are_refused_without_panic(text in "\\PC{0,200}") {
            prop_assert!(SavedSession::parse(&text).is_err());
        }
    }
}
