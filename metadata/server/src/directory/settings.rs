//! Where the directory is and how it is asked: checked once, before anything is asked.

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

use super::{LdapDirectory, Searching};
use crate::files;

/// Time for one question unless configured otherwise.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// The longest time: a login waits for it, and has 30 s.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(20);
/// Attributes that make a member at most, of each kind.
const MEMBER_ATTRIBUTES_MAX: usize = 8;
const PORT: u16 = 389;
const PORT_TLS: u16 = 636;

/// Where the directory is and how it is asked.
#[derive(Clone, Debug)]
pub struct DirectorySettings {
    /// `ldaps://HOST[:PORT]`, or `ldap://HOST[:PORT]`, which goes on in TLS (StartTLS) if there is a `ca_file`.
    pub url: String,
    /// PEM file: certificates of authorities, one of which must have signed the directory's.
    pub ca_file: Option<PathBuf>,
    /// Plain text beyond this machine.
    pub insecure: bool,
    /// Whom to bind as, with which password; nobody in particular without it.
    pub bind: Option<(String, Zeroizing<String>)>,
    /// Where users are, such as `ou=people,dc=example,dc=org`.
    pub user_base: String,
    /// What an entry must be to be a user that may work here.
    pub user_filter: String,
    /// The attribute with the user's name.
    pub user_attribute: String,
    /// The attribute by which an entry is known again: its value stays with the entry and is never used again.
    pub id_attribute: String,
    /// Where groups are.
    pub group_base: String,
    /// What an entry must be to be a group that counts here.
    pub group_filter: String,
    /// The attribute with the group's name.
    pub group_attribute: String,
    /// Attributes of a group with the names (DNs) of its members' entries.
    pub member_attributes: Vec<String>,
    /// Attributes of a group with its members' names as `user_attribute` has them.
    pub member_name_attributes: Vec<String>,
    /// Time for one question, at most [`TIMEOUT_MAX`].
    pub timeout: Duration,
}

impl DirectorySettings {
    /// As most directories are; the bases have to be said.
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

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectorySettingsError {
    /// Not the URL of an LDAP server.
    #[error("the directory's URL must be ldaps://HOST[:PORT] or ldap://HOST[:PORT]")]
    Url,
    /// Plain text beyond this machine, or TLS with whomever.
    #[error("the directory is not on this machine: its CA file is missing")]
    NoCa,
    /// The file of certificates.
    #[error("the directory's CA file {}: {why}", .path.display())]
    Ca {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A bind that proves nothing.
    #[error("the name and the password to bind with must both not be empty")]
    Bind,
    /// A filter.
    #[error("the {which} filter: {error}")]
    Filter {
        /// Of what.
        which: &'static str,
        /// What is wrong.
        #[source]
        error: FilterError,
    },
    /// An attribute.
    #[error("'{name}' is not the name of an attribute")]
    Attribute {
        /// What was given.
        name: String,
    },
    /// Nobody could be in any group, or too many ways to be.
    #[error("1 to {MEMBER_ATTRIBUTES_MAX} attributes make a member of a group")]
    Members,
    /// A time of nothing, or too long.
    #[error("a question to the directory may take from 1 to {} s", TIMEOUT_MAX.as_secs())]
    Timeout,
}

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    /// In TLS from the first byte.
    Tls,
    /// In TLS from the answer to StartTLS on.
    StartTls,
    /// As they are.
    Plain,
}

/// Where the server is.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    /// As its certificate must have it.
    pub(super) name: ServerName<'static>,
    pub(super) security: Security,
    /// Plain text, and only because the host is this machine: whatever its name is said to mean.
    pub(super) loopback_only: bool,
}

impl Address {
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
            (true, true) => Security::Tls,
            (false, true) => Security::StartTls,
            (false, false) if here || insecure => Security::Plain,
            // TLS with whoever answers would look safe and be none.
            (_, false) => return Err(DirectorySettingsError::NoCa),
        };
        let loopback_only = security == Security::Plain && !insecure;
        Ok(Self { host: host.to_owned(), port, name, security, loopback_only })
    }
}

impl LdapDirectory {
    /// Checks the settings; connects to nothing.
    ///
    /// # Errors
    /// See [`DirectorySettingsError`].
    pub fn new(settings: DirectorySettings) -> Result<Self, DirectorySettingsError> {
        let address = Address::parse(&settings.url, settings.ca_file.is_some(), settings.insecure)?;
        let tls = settings.ca_file.as_deref().map(client_config).transpose()?;
        // An empty password makes a bind that succeeds and proves nothing (RFC 4513 §5.1.2).
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
            users: Searching {
                base: settings.user_base,
                filter: filter("user", &settings.user_filter)?,
                name: attribute(&settings.user_attribute)?,
            },
            groups: Searching {
                base: settings.group_base,
                filter: filter("group", &settings.group_filter)?,
                name: attribute(&settings.group_attribute)?,
            },
            lasting_name: attribute(&settings.id_attribute)?,
            members,
            timeout: settings.timeout,
            silent: Mutex::new(None),
        })
    }

    /// Does what is asked go over a network in plain text?
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.address.security == Security::Plain && !self.address.loopback_only
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

    fn address(url: &str, has_ca: bool, insecure: bool) -> Option<(String, u16, Security, bool)> {
        let address = Address::parse(url, has_ca, insecure).ok()?;
        Some((address.host, address.port, address.security, address.loopback_only))
    }

    #[test]
    fn beyond_this_machine_there_is_tls_with_a_known_authority_or_a_flag_that_says_otherwise() {
        let is = |host: &str, port, security, loopback| Some((host.to_owned(), port, security, loopback));
        use Security::{Plain, StartTls, Tls};
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
            assert!(matches!(Address::parse(elsewhere, false, false), Err(DirectorySettingsError::NoCa)));
            assert!(address(elsewhere, false, true).is_some_and(|found| found.2 == Plain && !found.3));
        }
        // TLS without knowing with whom is refused wherever, and whatever the flag says.
        for url in ["ldaps://localhost", "ldaps://h"] {
            assert!(matches!(Address::parse(url, false, true), Err(DirectorySettingsError::NoCa)));
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
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
            assert!(matches!(Address::parse(url, true, false), Err(DirectorySettingsError::Url)), "{url}");
        }
    }

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        let good = || DirectorySettings::new("ldap://127.0.0.1", "ou=people", "ou=groups");
        let new = |settings| LdapDirectory::new(settings).err();
        assert!(new(good()).is_none());
        for (dn, password) in [("cn=reader", ""), ("", "pw")] {
            let bind = Some((dn.to_owned(), Zeroizing::new(password.to_owned())));
            assert!(matches!(new(DirectorySettings { bind, ..good() }), Some(DirectorySettingsError::Bind)));
        }
        let user_filter = "(a=b)(c=d)".to_owned();
        let error = new(DirectorySettings { user_filter, ..good() }).map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("the user filter: something after the filter at byte 5"));
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
        let lasting = |timeout| DirectorySettings { timeout, ..good() };
        assert!(new(lasting(TIMEOUT_MAX)).is_none());
        for timeout in [Duration::ZERO, TIMEOUT_MAX + Duration::from_secs(1)] {
            assert!(matches!(new(lasting(timeout)), Some(DirectorySettingsError::Timeout)));
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
