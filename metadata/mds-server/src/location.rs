//! Location of a server's metadata: in its folder, in a file elsewhere, in a shared database, or in
//! an LDAP server.
//!
//! Contract: the location given at setup is kept in the folder's file `metadata-store`, without the
//! password. A folder without that file has the embedded store.
//! Truth: docs/standards/mds/store.md §8.7, §8.9.

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(any(feature = "postgres", feature = "ldap"))]
use std::time::Duration;

use sealstone_mds::store::MetaStore;
use sealstone_mds_protocol::shown;
use sealstone_meta_store::EmbeddedMeta;
#[cfg(any(feature = "postgres", feature = "ldap"))]
use sealstone_meta_store::UNAVAILABLE_WAIT_DEFAULT;
#[cfg(feature = "ldap")]
use sealstone_meta_store::{LdapMeta, LdapSettings};
#[cfg(feature = "postgres")]
use sealstone_meta_store::{PostgresMeta, PostgresSettings};
#[cfg(any(feature = "postgres", feature = "ldap"))]
use zeroize::Zeroizing;

use crate::files::{self, FileError};
#[cfg(any(feature = "postgres", feature = "ldap"))]
use crate::keystore::systemd_credential;
use crate::setup::{STORE_FILE, SetupError};

/// File with the location of the metadata, if it is not in the folder.
pub(crate) const LOCATION_FILE: &str = "metadata-store";
/// Maximum length of that file in bytes.
const LOCATION_BYTES_MAX: u64 = 16 * 1024;
/// Variable with the database's password, as PostgreSQL's own tools name it.
#[cfg(feature = "postgres")]
const PASSWORD_VARIABLE: &str = "PGPASSWORD";

/// Source of the password for a database or LDAP server; never an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PasswordSource {
    /// For a database the variable `PGPASSWORD`, if it is set; for an LDAP server no password.
    #[default]
    Environment,
    /// The first line of a private file (mode 0600).
    File(PathBuf),
    /// A systemd credential.
    Credential(String),
}

/// Location of the metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// `file:PATH`, `postgres://USER@HOST[:PORT]/DATABASE` or `ldaps://NAME@HOST[:PORT]/BASE`.
    pub url: OsString,
    /// PEM file of the authority that signed the server's certificate; enables TLS.
    pub ca_file: Option<PathBuf>,
    /// Source of the password.
    pub password: PasswordSource,
    /// Whether plain text to another machine is allowed.
    pub insecure: bool,
    /// Seconds that a start and a new transaction wait for an unavailable server, within
    /// [`UNAVAILABLE_WAIT_S`]; 20 if `None`.
    pub unavailable_wait_s: Option<u64>,
}

/// Allowed values of [`Location::unavailable_wait_s`].
pub const UNAVAILABLE_WAIT_S: RangeInclusive<u64> = 1..=600;

/// Reason why a location cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LocationError {
    /// The URL is of no known kind.
    #[error(
        "'{0}' is not a metadata store URL: use file:PATH, postgres://USER@HOST/DATABASE or ldaps://NAME@HOST/BASE"
    )]
    Url(String),
    /// The location file does not parse.
    #[error("{}: line {line} is invalid", .path.display())]
    Line {
        /// Path of the location file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
    /// The location file is too long.
    #[error("{} has more than {LOCATION_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
    /// The file with the server's name has the wrong length.
    #[error("{} is not 16 bytes long; remove it to draw a new server name, unless the folder was copied from another server", .0.display())]
    ServerName(PathBuf),
    /// The metadata cannot be shared by several servers.
    #[error("the metadata of {} is in a file or an LDAP server, which only one server can use", .0.display())]
    NotShared(PathBuf),
}

impl Location {
    /// Returns the location of an embedded store in this file.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        Self { url: file_url(path), ..Self::default() }
    }

    /// Whether several servers can use it at the same time.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.url.as_bytes().starts_with(b"postgres")
    }

    /// Returns the path of an embedded store.
    fn file_path(&self) -> Option<&Path> {
        let path = self.url.as_bytes().strip_prefix(b"file:")?;
        Some(Path::new(OsStr::from_bytes(path)))
    }

    /// Returns the URL as text; empty if it is not UTF-8, which only a file path can be.
    #[cfg(any(feature = "postgres", feature = "ldap"))]
    fn url_text(&self) -> &str {
        self.url.to_str().unwrap_or_default()
    }

    /// Returns the URL for messages.
    pub(crate) fn shown(&self) -> String {
        shown(self.url.as_bytes()).into_owned()
    }

    /// Returns the text of the location file; paths are made absolute.
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
            PasswordSource::Environment => {}
            PasswordSource::File(path) => line("password-file", whole(path).as_os_str().as_bytes()),
            PasswordSource::Credential(name) => line("password-credential", name.as_bytes()),
        }
        if self.insecure {
            line("insecure", b"");
        }
        if let Some(seconds) = self.unavailable_wait_s {
            line("unavailable-wait-s", seconds.to_string().as_bytes());
        }
        text
    }

    /// Parses the location file. Fails with the number of the invalid line, from 1.
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
                (b"password-file", false) => this.password = PasswordSource::File(value.into()),
                (b"password-credential", false) => {
                    let name = value.to_str().ok_or(number + 1)?;
                    this.password = PasswordSource::Credential(name.to_owned());
                }
                (b"insecure", true) => this.insecure = true,
                (b"unavailable-wait-s", false) => {
                    let seconds = value.to_str().and_then(|text| text.parse().ok());
                    let seconds = seconds.filter(|seconds| UNAVAILABLE_WAIT_S.contains(seconds));
                    this.unavailable_wait_s = Some(seconds.ok_or(number + 1)?);
                }
                _ => return Err(number + 1),
            }
        }
        if this.url.is_empty() { Err(lines.len() + 1) } else { Ok(this) }
    }

    /// Reads the location file of a folder; `None` if the store is in the folder.
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

    /// Writes the location file into the folder.
    pub(crate) fn keep(&self, folder: &Path) -> Result<(), SetupError> {
        Ok(files::write(&folder.join(LOCATION_FILE), &self.text(), 0o600)?)
    }

    #[cfg(any(feature = "postgres", feature = "ldap"))]
    fn password(&self) -> Result<Option<Zeroizing<Vec<u8>>>, SetupError> {
        Ok(match &self.password {
            PasswordSource::Environment => None,
            PasswordSource::File(path) => {
                let text = files::read_secret(path)?;
                let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
                Some(Zeroizing::new(line.strip_suffix(b"\r").unwrap_or(line).to_vec()))
            }
            PasswordSource::Credential(name) => Some(systemd_credential(name)?),
        })
    }

    /// Opens the store for a server that makes many changes: one in a file gets a journal beside it
    /// until it is closed.
    pub(crate) fn serve(&self) -> Result<Arc<dyn MetaStore>, SetupError> {
        match self.file_path() {
            Some(path) => Ok(Arc::new(EmbeddedMeta::serve(path)?)),
            None => self.open(),
        }
    }

    /// Opens the store, or creates an empty one.
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

    #[cfg(any(feature = "postgres", feature = "ldap"))]
    fn unavailable_wait(&self) -> Duration {
        self.unavailable_wait_s.map_or(UNAVAILABLE_WAIT_DEFAULT, Duration::from_secs)
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
            unavailable_wait: self.unavailable_wait(),
        })?;
        if store.is_exposed() {
            tracing::warn!(
                "--insecure-meta: records that are not sealed can be read and changed between this server and the database"
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
            unavailable_wait: self.unavailable_wait(),
        })?;
        if store.is_exposed() {
            tracing::warn!(
                "--insecure-meta: the LDAP password, and records that are not sealed, can be read and changed on the network"
            );
        }
        tracing::info!(store = store.name(), bytes = store.memory_bytes(), "metadata loaded into memory");
        Ok(Arc::new(store))
    }
}

fn file_url(path: &Path) -> OsString {
    let mut url = OsString::from("file:");
    url.push(path);
    url
}

/// Returns the location of the metadata of an initialised folder.
pub(crate) fn of(folder: &Path, named: Option<&Location>) -> Result<Location, SetupError> {
    match named {
        Some(named) => Ok(named.clone()),
        None => Ok(Location::of_folder(folder)?.unwrap_or_else(|| Location::file(&folder.join(STORE_FILE)))),
    }
}

/// Opens the store of an initialised folder.
pub(crate) fn open_store(folder: &Path, named: Option<&Location>) -> Result<Arc<dyn MetaStore>, SetupError> {
    of(folder, named)?.open()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_file_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Location::of_folder(folder.path()).unwrap(), None);
        for location in [
            Location { url: "postgres://u@h/d".into(), ..Location::default() },
            Location {
                url: "postgres://u@h/d?host=/run".into(),
                ca_file: Some("/etc/ca file.pem".into()),
                password: PasswordSource::File("/etc/pw".into()),
                insecure: true,
                unavailable_wait_s: Some(600),
            },
            Location { url: "ldaps://cn=s,dc=a@h/ou=f,dc=a".into(), ..Location::default() },
            Location {
                password: PasswordSource::Credential("name".into()),
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
    fn invalid_location_line_is_reported_by_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCATION_FILE);
        for (text, line) in [
            (&b""[..], 1),
            (b"url\n", 1),
            (b"url a\nurl b\n", 2),
            (b"url a\nco-file x\n", 2),
            (b"url a\ninsecure yes\n", 2),
            (b"url a\nunavailable-wait-s 0\n", 2),
            (b"url a\nunavailable-wait-s 601\n", 2),
            (b"insecure\n", 2),
            (b"\xFF", 1),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Location::of_folder(folder.path()).unwrap_err();
            let SetupError::Location(LocationError::Line { line: found, .. }) = error else {
                panic!("{error:?}")
            };
            assert_eq!(found, line, "{text:?}");
        }
        std::fs::write(&path, vec![b'\n'; LOCATION_BYTES_MAX as usize + 1]).unwrap();
        let error = Location::of_folder(folder.path()).unwrap_err();
        assert!(matches!(error, SetupError::Location(LocationError::TooLong(_))));
    }

    #[test]
    fn unknown_store_url_is_rejected() {
        for url in ["", "mysql://h", "/srv/meta.redb", "postgres:/h"] {
            let location = Location { url: url.into(), ..Location::default() };
            let Err(SetupError::Location(LocationError::Url(found))) = location.open() else {
                panic!("{url}")
            };
            assert_eq!(found, url);
        }
    }

    #[test]
    #[cfg(any(feature = "postgres", feature = "ldap"))]
    fn password_file_gives_its_first_line() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret pass\r\nrest").unwrap();
        let location = Location { password: PasswordSource::File(file.path().into()), ..Location::default() };
        assert_eq!(&**location.password().unwrap().unwrap(), b"secret pass");
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(location.password().unwrap_err().is_exposed());
    }
}
