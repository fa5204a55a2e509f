//! Settings of the directory, checked before the first connection.

use core::time::Duration;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use sealstone_ldap::{Attribute, Filter, FilterError};
use zeroize::Zeroizing;

use super::{EntrySearch, LdapDirectory};
use crate::files;

/// Default time for one lookup.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Maximum time for one lookup: a login waits for it, and has 30 s.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(20);
/// Maximum number of member attributes of each kind.
const MEMBER_ATTRIBUTES_MAX: usize = 8;
const PORT: u16 = 389;
const PORT_TLS: u16 = 636;

/// Address of the directory, and how entries are found.
#[derive(Clone, Debug)]
pub struct DirectorySettings {
    /// `ldaps://HOST[:PORT]`, or `ldap://HOST[:PORT]`, which upgrades to TLS (StartTLS) if there is
    /// a `ca_file`.
    pub url: String,
    /// PEM file of certificate authorities, one of which must have signed the directory's
    /// certificate.
    pub ca_file: Option<PathBuf>,
    /// Whether plain text to another machine is allowed.
    pub insecure: bool,
    /// Name (DN) and password to bind with; anonymous if `None`.
    pub bind: Option<(String, Zeroizing<String>)>,
    /// Base of users, such as `ou=people,dc=example,dc=org`.
    pub user_base: String,
    /// Filter that an entry must match to be a user.
    pub user_filter: String,
    /// Attribute with the user's name.
    pub user_attribute: String,
    /// Attribute that identifies an entry: its value never changes and is never reused.
    pub id_attribute: String,
    /// Base of groups.
    pub group_base: String,
    /// Filter that an entry must match to be a group.
    pub group_filter: String,
    /// Attribute with the group's name.
    pub group_attribute: String,
    /// Group attributes with the DNs of its members.
    pub member_attributes: Vec<String>,
    /// Group attributes with its members' names, as in `user_attribute`.
    pub member_name_attributes: Vec<String>,
    /// Time for one lookup, at most [`TIMEOUT_MAX`].
    pub timeout: Duration,
}

impl DirectorySettings {
    /// Returns settings that fit most directories, for the given bases.
    #[must_use]
    pub fn new(url: &str, user_base: &str, group_base: &str) -> Self {
        Self {
            url: url.to_owned(),
            ca_file: None,
            insecure: false,
            bind: None,
            user_base: user_base.to_owned(),
            user_filter: "(objectClass=person)".to_owned(),
            user_attribute: "uid".to_owned(),
            id_attribute: "entryUUID".to_owned(),
            group_base: group_base.to_owned(),
            group_filter: "(objectClass=*)".to_owned(),
            group_attribute: "cn".to_owned(),
            member_attributes: vec!["member".to_owned(), "uniqueMember".to_owned()],
            member_name_attributes: vec!["memberUid".to_owned()],
            timeout: TIMEOUT_DEFAULT,
        }
    }
}

/// Reason why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectorySettingsError {
    /// The URL is not that of an LDAP server.
    #[error("the directory's URL must be ldaps://HOST[:PORT] or ldap://HOST[:PORT]")]
    Url,
    /// There is no CA file: plain text to another machine, or TLS with an unknown authority.
    #[error("the directory needs a CA file, because it is on another machine or uses ldaps")]
    NoCa,
    /// The CA file cannot be used.
    #[error("cannot use the directory's CA file {}: {why}", .path.display())]
    Ca {
        /// Path of the CA file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// The bind name or password is empty.
    #[error("bind name and bind password must not be empty")]
    Bind,
    /// A filter does not parse.
    #[error("invalid {which} filter: {error}")]
    Filter {
        /// `user` or `group`.
        which: &'static str,
        /// Parse error.
        #[source]
        error: FilterError,
    },
    /// An attribute name is invalid.
    #[error("'{name}' is not an attribute name")]
    Attribute {
        /// The invalid name.
        name: String,
    },
    /// There are no member attributes, or too many.
    #[error("set 1 to {MEMBER_ATTRIBUTES_MAX} member attributes of groups")]
    Members,
    /// The timeout is zero or too long.
    #[error("the directory timeout must be 1 to {} s", TIMEOUT_MAX.as_secs())]
    Timeout,
}

/// How the connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectorySecurity {
    /// TLS from the first byte.
    Tls,
    /// TLS after StartTLS.
    StartTls,
    /// No encryption.
    Plain,
}

/// Address of the server.
#[derive(Clone, Debug)]
pub(super) struct DirectoryAddress {
    pub(super) host: String,
    pub(super) port: u16,
    /// Name that its certificate must have.
    pub(super) name: ServerName<'static>,
    pub(super) security: DirectorySecurity,
    /// Whether only loopback addresses may be used: plain text is allowed because the host name
    /// means this machine, whatever it resolves to.
    pub(super) loopback_only: bool,
}

impl DirectoryAddress {
    fn parse(url: &str, has_ca: bool, insecure: bool) -> Result<Self, DirectorySettingsError> {
        let wrong = DirectorySettingsError::Url;
        let (scheme, rest) = url.split_once("://").ok_or(DirectorySettingsError::Url)?;
        let tls = match scheme {
            "ldaps" => true,
            "ldap" => false,
            _ => return Err(wrong),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((host, port))) if host.parse::<std::net::Ipv6Addr>().is_ok() => (host, port),
            Some(_) => return Err(wrong),
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or(DirectorySettingsError::Url)?,
            None if port.is_empty() => {
                if tls {
                    PORT_TLS
                } else {
                    PORT
                }
            }
            None => return Err(wrong),
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| DirectorySettingsError::Url)?;
        let here = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let security = match (tls, has_ca) {
            (true, true) => DirectorySecurity::Tls,
            (false, true) => DirectorySecurity::StartTls,
            (false, false) if here || insecure => DirectorySecurity::Plain,
            // TLS with an unauthenticated server would give no protection.
            (_, false) => return Err(DirectorySettingsError::NoCa),
        };
        let loopback_only = security == DirectorySecurity::Plain && !insecure;
        Ok(Self { host: host.to_owned(), port, name, security, loopback_only })
    }
}

impl LdapDirectory {
    /// Checks the settings and reads the CA file; does not connect.
    ///
    /// # Errors
    /// See [`DirectorySettingsError`].
    pub fn new(settings: DirectorySettings) -> Result<Self, DirectorySettingsError> {
        let address = DirectoryAddress::parse(&settings.url, settings.ca_file.is_some(), settings.insecure)?;
        let tls = settings.ca_file.as_deref().map(client_config).transpose()?;
        // A bind with an empty password succeeds without authentication (RFC 4513 §5.1.2).
        if settings.bind.as_ref().is_some_and(|(dn, password)| dn.is_empty() || password.is_empty()) {
            return Err(DirectorySettingsError::Bind);
        }
        let filter = |which, text: &str| {
            Filter::parse(text).map_err(|error| DirectorySettingsError::Filter { which, error })
        };
        let list = |names: &[String]| names.iter().map(|name| attribute(name)).collect::<Result<Vec<_>, _>>();
        let members = (list(&settings.member_attributes)?, list(&settings.member_name_attributes)?);
        let count = |list: &Vec<Attribute>| list.len() > MEMBER_ATTRIBUTES_MAX;
        if (members.0.is_empty() && members.1.is_empty()) || count(&members.0) || count(&members.1) {
            return Err(DirectorySettingsError::Members);
        }
        if settings.timeout < Duration::from_secs(1) || settings.timeout > TIMEOUT_MAX {
            return Err(DirectorySettingsError::Timeout);
        }
        Ok(Self {
            address,
            tls,
            bind: settings.bind,
            users: EntrySearch {
                base: settings.user_base,
                filter: filter("user", &settings.user_filter)?,
                name: attribute(&settings.user_attribute)?,
            },
            groups: EntrySearch {
                base: settings.group_base,
                filter: filter("group", &settings.group_filter)?,
                name: attribute(&settings.group_attribute)?,
            },
            id_attribute_name: attribute(&settings.id_attribute)?,
            members,
            timeout: settings.timeout,
            unanswered_since: Mutex::new(None),
        })
    }

    /// Whether lookups travel over a network in plain text.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.address.security == DirectorySecurity::Plain && !self.address.loopback_only
    }
}

fn attribute(name: &str) -> Result<Attribute, DirectorySettingsError> {
    Attribute::new(name).map_err(|_| DirectorySettingsError::Attribute { name: name.to_owned() })
}

fn client_config(path: &Path) -> Result<Arc<ClientConfig>, DirectorySettingsError> {
    let wrong = |why: String| DirectorySettingsError::Ca { path: path.to_owned(), why };
    let pem = files::read(path).map_err(|error| match error {
        files::FileError::Io { source, .. } => wrong(source.to_string()),
        error => wrong(error.to_string()),
    })?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("no certificate in it".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| wrong(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str, has_ca: bool, insecure: bool) -> Option<(String, u16, DirectorySecurity, bool)> {
        let address = DirectoryAddress::parse(url, has_ca, insecure).ok()?;
        Some((address.host, address.port, address.security, address.loopback_only))
    }

    #[test]
    fn remote_server_requires_tls_or_insecure_flag() {
        let is = |host: &str, port, security, loopback| Some((host.to_owned(), port, security, loopback));
        use DirectorySecurity::{Plain, StartTls, Tls};
        assert_eq!(address("ldaps://h", true, false), is("h", 636, Tls, false));
        assert_eq!(address("ldap://h:1389/", true, false), is("h", 1389, StartTls, false));
        assert_eq!(address("ldap://localhost", true, false), is("localhost", 389, StartTls, false));
        for here in ["localhost", "127.0.0.1", "127.9.9.9"] {
            assert_eq!(address(&format!("ldap://{here}"), false, false), is(here, 389, Plain, true));
        }
        assert_eq!(address("ldap://[::1]:7", false, false), is("::1", 7, Plain, true));
        for elsewhere in [
            "ldap://ldap.example.org",
            "ldap://127.0.0.1.example.org",
            "ldap://10.0.0.1",
            "ldap://localhost.evil",
        ] {
            assert!(matches!(
                DirectoryAddress::parse(elsewhere, false, false),
                Err(DirectorySettingsError::NoCa)
            ));
            assert!(address(elsewhere, false, true).is_some_and(|found| found.2 == Plain && !found.3));
        }
        // TLS without an authority is rejected for every host, even with `insecure`.
        for url in ["ldaps://localhost", "ldaps://h"] {
            assert!(matches!(DirectoryAddress::parse(url, false, true), Err(DirectorySettingsError::NoCa)));
        }
    }

    #[test]
    fn malformed_urls_are_rejected() {
        for url in [
            "",
            "h",
            "ldap",
            "://h",
            "http://h",
            "ldapi://%2Frun%2Fldapi",
            "ldap://",
            "ldap://:389",
            "ldap://h:",
            "ldap://h:0",
            "ldap://h:65536",
            "ldap://h:1/dc=x",
            "ldap://a b",
            "ldap://[::1",
            "ldap://[h]",
            "ldap://u@h",
            "ldap://[::1]x",
        ] {
            assert!(
                matches!(DirectoryAddress::parse(url, true, false), Err(DirectorySettingsError::Url)),
                "{url}"
            );
        }
    }

    #[test]
    fn invalid_settings_are_rejected() {
        let good = || DirectorySettings::new("ldap://127.0.0.1", "ou=people", "ou=groups");
        let new = |settings| LdapDirectory::new(settings).err();
        assert!(new(good()).is_none());
        for (dn, password) in [("cn=reader", ""), ("", "pw")] {
            let bind = Some((dn.to_owned(), Zeroizing::new(password.to_owned())));
            assert!(matches!(new(DirectorySettings { bind, ..good() }), Some(DirectorySettingsError::Bind)));
        }
        let user_filter = "(a=b)(c=d)".to_owned();
        let error = new(DirectorySettings { user_filter, ..good() }).map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("invalid user filter: text after the filter at byte 5"));
        let user_attribute = "uid=*)(".to_owned();
        let settings = DirectorySettings { user_attribute, ..good() };
        assert!(matches!(new(settings), Some(DirectorySettingsError::Attribute { .. })));
        let many = |count: usize| DirectorySettings {
            member_attributes: vec!["member".to_owned(); count],
            member_name_attributes: Vec::new(),
            ..good()
        };
        assert!(new(many(MEMBER_ATTRIBUTES_MAX)).is_none());
        for count in [0, MEMBER_ATTRIBUTES_MAX + 1] {
            assert!(matches!(new(many(count)), Some(DirectorySettingsError::Members)));
        }
        let entry_id = |timeout| DirectorySettings { timeout, ..good() };
        assert!(new(entry_id(TIMEOUT_MAX)).is_none());
        for timeout in [Duration::ZERO, TIMEOUT_MAX + Duration::from_secs(1)] {
            assert!(matches!(new(entry_id(timeout)), Some(DirectorySettingsError::Timeout)));
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        for content in
            ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            std::fs::write(&file, content).unwrap();
            let settings = DirectorySettings { ca_file: Some(file.clone()), ..good() };
            assert!(matches!(new(settings), Some(DirectorySettingsError::Ca { .. })), "{content}");
        }
        let missing = DirectorySettings { ca_file: Some(folder.path().join("none")), ..good() };
        assert!(matches!(new(missing), Some(DirectorySettingsError::Ca { .. })));
    }
}
