//! Where a server's metadata is: in its folder, in a file elsewhere, in a database that other servers use too, or in an LDAP
//! server.
//!
//! Contract: what is said of a database at setup is kept in the folder's file `metadata-store`, but for its password; a
//! folder without that file has the embedded store.
//! Truth: docs/standards/mds/store.md §8.7, §8.9.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_mds::store::MetaStore;
use sealstone_mds_protocol::shown;
use sealstone_meta::EmbeddedMeta;
#[cfg(feature = "ldap")]
use sealstone_meta::{LdapMeta, LdapSettings};
#[cfg(feature = "postgres")]
use sealstone_meta::{PostgresMeta, PostgresSettings};
#[cfg(any(feature = "postgres", feature = "ldap"))]
use zeroize::Zeroizing;

use crate::files::{self, FileError};
#[cfg(any(feature = "postgres", feature = "ldap"))]
use crate::keystore::systemd_credential;
use crate::setup::{STORE_FILE, SetupError};

/// Says where the metadata is, if it is not in the folder.
pub(crate) const LOCATION_FILE: &str = "metadata-store";
/// Bytes of that file at most.
const LOCATION_BYTES_MAX: u64 = 16 * 1024;
/// The variable with the database's password, as the database's own tools call it.
#[cfg(feature = "postgres")]
const PASSWORD_VARIABLE: &str = "PGPASSWORD";

/// Where the password of a database or LDAP server is; never in an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PasswordFrom {
    /// Of a database in the variable `PGPASSWORD`, if there is one; there may be none. Of an LDAP server nowhere.
    #[default]
    Environment,
    /// In the first line of a private file (mode 0600).
    File(PathBuf),
    /// In a systemd credential.
    Credential(String),
}

/// Where metadata is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// `file:PATH`, `postgres://USER@HOST[:PORT]/DATABASE` or `ldaps://NAME@HOST[:PORT]/BASE`.
    pub url: OsString,
    /// PEM file of the authority that signed the server's certificate; with it there is TLS.
    pub ca_file: Option<PathBuf>,
    /// The password.
    pub password: PasswordFrom,
    /// Plain text beyond this machine.
    pub insecure: bool,
}

/// Why a location cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LocationError {
    /// Neither of the kinds that are known.
    #[error(
        "'{0}' is no metadata store: say file:PATH, postgres://USER@HOST/DATABASE or ldaps://NAME@HOST/BASE"
    )]
    Url(String),
    /// The file that says it.
    #[error("{}: line {line} is not understood", .path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
    /// The file that says it is too long.
    #[error("{} has more than {LOCATION_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
    /// The file with the server's name among several.
    #[error("{} is not 16 bytes long; a server that was not copied gets a new one if it is removed", .0.display())]
    ServerName(PathBuf),
    /// Several servers cannot share it.
    #[error("the metadata of {} is in a file or an LDAP server, which one server alone can use", .0.display())]
    NotShared(PathBuf),
}

impl Location {
    /// The embedded store in this file.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        Self { url: file_url(path), ..Self::default() }
    }

    /// Can several servers use it at a time?
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.url.as_bytes().starts_with(b"postgres")
    }

    /// The path of an embedded store.
    fn file_path(&self) -> Option<&Path> {
        let path = self.url.as_bytes().strip_prefix(b"file:")?;
        Some(Path::new(OsStr::from_bytes(path)))
    }

    /// The URL as text: one of a file need not be any.
    #[cfg(any(feature = "postgres", feature = "ldap"))]
    fn url_text(&self) -> &str {
        self.url.to_str().unwrap_or_default()
    }

    /// The URL for messages.
    pub(crate) fn shown(&self) -> String {
        shown(self.url.as_bytes()).into_owned()
    }

    /// As it is kept in a folder; paths are made absolute.
    fn text(&self) -> Vec<u8> {
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let url = self.file_path().map_or_else(|| self.url.clone(), |path| file_url(&whole(path)));
        let mut text = Vec::new();
        let mut line = |key: &str, value: &[u8]| {
            text.extend_from_slice(key.as_bytes());
            if !value.is_empty() {
                text.push(b' ');
                text.extend_from_slice(value);
            }
            text.push(b'\n');
        };
        line("url", url.as_bytes());
        if let Some(path) = &self.ca_file {
            line("ca-file", whole(path).as_os_str().as_bytes());
        }
        match &self.password {
            PasswordFrom::Environment => {}
            PasswordFrom::File(path) => line("password-file", whole(path).as_os_str().as_bytes()),
            PasswordFrom::Credential(name) => line("password-credential", name.as_bytes()),
        }
        if self.insecure {
            line("insecure", b"");
        }
        text
    }

    /// Reads that; the number of a line that is not understood, from 1.
    fn parse(text: &[u8]) -> Result<Self, usize> {
        let mut this = Self::default();
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        for (number, line) in lines.iter().enumerate() {
            let at = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
            let (key, value) = (&line[..at], OsStr::from_bytes(line.get(at + 1..).unwrap_or_default()));
            match (key, value.is_empty()) {
                (b"url", false) if this.url.is_empty() => this.url = value.to_owned(),
                (b"ca-file", false) => this.ca_file = Some(value.into()),
                (b"password-file", false) => this.password = PasswordFrom::File(value.into()),
                (b"password-credential", false) => {
                    let name = value.to_str().ok_or(number + 1)?;
                    this.password = PasswordFrom::Credential(name.to_owned());
                }
                (b"insecure", true) => this.insecure = true,
                _ => return Err(number + 1),
            }
        }
        if this.url.is_empty() { Err(lines.len() + 1) } else { Ok(this) }
    }

    /// What the folder says; none if the store is in it.
    pub(crate) fn of_folder(folder: &Path) -> Result<Option<Self>, SetupError> {
        let path = folder.join(LOCATION_FILE);
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(FileError::Io { path, source }.into()),
            Ok(metadata) if metadata.len() > LOCATION_BYTES_MAX => {
                return Err(LocationError::TooLong(path).into());
            }
            Ok(_) => {}
        }
        let text = files::read(&path)?;
        Self::parse(&text).map(Some).map_err(|line| LocationError::Line { path, line }.into())
    }

    /// Writes it into the folder: from now on it is where the metadata is.
    pub(crate) fn keep(&self, folder: &Path) -> Result<(), SetupError> {
        Ok(files::write(&folder.join(LOCATION_FILE), &self.text(), 0o600)?)
    }

    #[cfg(any(feature = "postgres", feature = "ldap"))]
    fn password(&self) -> Result<Option<Zeroizing<Vec<u8>>>, SetupError> {
        Ok(match &self.password {
            PasswordFrom::Environment => None,
            PasswordFrom::File(path) => {
                let text = files::read_secret(path)?;
                let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
                Some(Zeroizing::new(line.strip_suffix(b"\r").unwrap_or(line).to_vec()))
            }
            PasswordFrom::Credential(name) => Some(systemd_credential(name)?),
        })
    }

    /// Opens the store for a server that makes many changes: one in a file gets a journal beside it until it is closed.
    pub(crate) fn serve(&self) -> Result<Arc<dyn MetaStore>, SetupError> {
        match self.file_path() {
            Some(path) => Ok(Arc::new(EmbeddedMeta::serve(path)?)),
            None => self.open(),
        }
    }

    /// Opens the store, or makes an empty one.
    pub(crate) fn open(&self) -> Result<Arc<dyn MetaStore>, SetupError> {
        if let Some(path) = self.file_path() {
            return Ok(Arc::new(EmbeddedMeta::open(path)?));
        }
        #[cfg(feature = "postgres")]
        if PostgresSettings::is_one(self.url_text()) {
            return self.open_postgres();
        }
        #[cfg(feature = "ldap")]
        if LdapSettings::is_one(self.url_text()) {
            return self.open_ldap();
        }
        Err(LocationError::Url(self.shown()).into())
    }

    #[cfg(feature = "postgres")]
    fn open_postgres(&self) -> Result<Arc<dyn MetaStore>, SetupError> {
        let variable = || {
            std::env::var_os(PASSWORD_VARIABLE)
                .map(|password| Zeroizing::new(std::os::unix::ffi::OsStringExt::into_vec(password)))
        };
        let store = PostgresMeta::open(&PostgresSettings {
            url: self.url_text().to_owned(),
            password: self.password()?.or_else(variable),
            ca_file: self.ca_file.clone(),
            insecure: self.insecure,
        })?;
        if store.is_exposed() {
            tracing::warn!(
                "--insecure-meta: whoever is on the way to the database reads and changes what is not sealed"
            );
        }
        Ok(Arc::new(store))
    }

    #[cfg(feature = "ldap")]
    fn open_ldap(&self) -> Result<Arc<dyn MetaStore>, SetupError> {
        let store = LdapMeta::open(&LdapSettings {
            url: self.url_text().to_owned(),
            password: self.password()?,
            ca_file: self.ca_file.clone(),
            insecure: self.insecure,
        })?;
        if store.is_exposed() {
            tracing::warn!(
                "--insecure-meta: whoever is on the way to the LDAP server reads its password, and reads and changes what is not sealed"
            );
        }
        tracing::info!(store = store.name(), bytes = store.memory_bytes(), "the metadata is in memory");
        Ok(Arc::new(store))
    }
}

fn file_url(path: &Path) -> OsString {
    let mut url = OsString::from("file:");
    url.push(path);
    url
}

/// Where the metadata of a folder is that is set up.
pub(crate) fn of(folder: &Path, named: Option<&Location>) -> Result<Location, SetupError> {
    match named {
        Some(named) => Ok(named.clone()),
        None => Ok(Location::of_folder(folder)?.unwrap_or_else(|| Location::file(&folder.join(STORE_FILE)))),
    }
}

/// Opens the store of a folder that is set up.
pub(crate) fn open_store(folder: &Path, named: Option<&Location>) -> Result<Arc<dyn MetaStore>, SetupError> {
    of(folder, named)?.open()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_at_setup_is_what_the_next_start_knows() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Location::of_folder(folder.path()).unwrap(), None);
        for location in [
            Location { url: "postgres://u@h/d".into(), ..Location::default() },
            Location {
                url: "postgres://u@h/d?host=/run".into(),
                ca_file: Some("/etc/ca file.pem".into()),
                password: PasswordFrom::File("/etc/pw".into()),
                insecure: true,
            },
            Location { url: "ldaps://cn=s,dc=a@h/ou=f,dc=a".into(), ..Location::default() },
            Location {
                password: PasswordFrom::Credential("name".into()),
                ..Location::file(Path::new("/m/s.redb"))
            },
            Location {
                ca_file: Some(Path::new(OsStr::from_bytes(b"/\xfe")).into()),
                ..Location::file(Path::new(OsStr::from_bytes(b"/m/\xff")))
            },
        ] {
            location.keep(folder.path()).unwrap();
            assert_eq!(Location::of_folder(folder.path()).unwrap(), Some(location));
        }
        Location::file(Path::new("here.redb")).keep(folder.path()).unwrap();
        let kept = Location::of_folder(folder.path()).unwrap().unwrap();
        assert!(
            kept.file_path().is_some_and(Path::is_absolute),
            "a later start may be in another folder: {kept:?}"
        );
    }

    #[test]
    fn a_line_that_is_not_understood_is_told_by_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCATION_FILE);
        for (text, line) in [
            (&b""[..], 1),
            (b"url\n", 1),
            (b"url a\nurl b\n", 2),
            (b"url a\nco-file x\n", 2),
            (b"url a\ninsecure yes\n", 2),
            (b"insecure\n", 2),
            (b"\xFF", 1),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Location::of_folder(folder.path()).unwrap_err();
            let SetupError::Location(LocationError::Line { line: told, .. }) = error else {
                panic!("{error:?}")
            };
            assert_eq!(told, line, "{text:?}");
        }
        std::fs::write(&path, vec![b'\n'; LOCATION_BYTES_MAX as usize + 1]).unwrap();
        let error = Location::of_folder(folder.path()).unwrap_err();
        assert!(matches!(error, SetupError::Location(LocationError::TooLong(_))));
    }

    #[test]
    fn another_kind_of_store_is_refused_by_name() {
        for url in ["", "mysql://h", "/srv/meta.redb", "postgres:/h"] {
            let location = Location { url: url.into(), ..Location::default() };
            let Err(SetupError::Location(LocationError::Url(told))) = location.open() else {
                panic!("{url}")
            };
            assert_eq!(told, url);
        }
    }

    #[test]
    #[cfg(any(feature = "postgres", feature = "ldap"))]
    fn a_password_is_the_first_line_of_a_private_file() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret pass\r\nrest").unwrap();
        let location = Location { password: PasswordFrom::File(file.path().into()), ..Location::default() };
        assert_eq!(&**location.password().unwrap().unwrap(), b"secret pass");
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(location.password().unwrap_err().is_exposed());
    }
}
