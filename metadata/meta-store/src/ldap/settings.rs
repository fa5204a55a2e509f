//! Settings of the LDAP server, checked before the first connection.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use zeroize::Zeroizing;

use super::LdapStoreError;
use crate::UNAVAILABLE_WAIT_DEFAULT;

/// Maximum bytes of the CA file.
const CA_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes of a URL.
const URL_BYTES_MAX: usize = 4096;
const PORT: u16 = 389;
const PORT_TLS: u16 = 636;

/// Address of the LDAP server, and how to connect.
#[derive(Clone, Debug)]
pub struct LdapSettings {
    /// `ldaps://NAME@HOST[:PORT]/BASE`, or `ldap://…`, which upgrades to TLS (StartTLS) if there is
    /// a `ca_file`, or `ldapi://NAME@SOCKET/BASE`. NAME is the DN to bind as, BASE the entry below
    /// which the records are. `%` and two hex digits encode a character in both and in the socket's
    /// path, such as `%2F` for `/`.
    pub url: String,
    /// Password of NAME; it is rejected inside the URL.
    pub password: Option<Zeroizing<Vec<u8>>>,
    /// PEM file of certificate authorities, one of which must have signed the server's certificate.
    /// Enables TLS.
    pub ca_file: Option<PathBuf>,
    /// Whether plain text to another machine is allowed.
    pub insecure: bool,
    /// How long a start and a new transaction wait for an unavailable server.
    pub unavailable_wait: Duration,
}

impl LdapSettings {
    /// Returns settings without a password and without TLS.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            password: None,
            ca_file: None,
            insecure: false,
            unavailable_wait: UNAVAILABLE_WAIT_DEFAULT,
        }
    }

    /// Whether this is the URL of an LDAP server.
    #[must_use]
    pub fn is_one(url: &str) -> bool {
        ["ldap://", "ldaps://", "ldapi://"].iter().any(|scheme| url.starts_with(scheme))
    }
}

/// How the connection is encrypted.
#[derive(Clone, Debug)]
pub(super) enum LdapSecurity {
    /// TLS from the first byte.
    Tls(Arc<ClientConfig>, ServerName<'static>),
    /// TLS after StartTLS.
    StartTls(Arc<ClientConfig>, ServerName<'static>),
    /// No encryption.
    Plain,
}

/// Address of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerAddress {
    Host {
        host: String,
        port: u16,
        /// Whether only loopback addresses may be used: plain text is allowed because the host name
        /// means this machine, whatever it resolves to.
        loopback_only: bool,
    },
    Socket(PathBuf),
}

/// Validated settings.
pub(super) struct LdapTarget {
    pub(super) address: ServerAddress,
    pub(super) security: LdapSecurity,
    pub(super) who: String,
    pub(super) password: Zeroizing<String>,
    pub(super) base: String,
    /// Host and base, for messages.
    pub(super) name: String,
    /// Whether requests travel over a network in plain text.
    pub(super) exposed: bool,
}

fn wrong(why: impl Into<String>) -> LdapStoreError {
    LdapStoreError::Url(why.into())
}

/// Decodes `%` and two hex digits.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = core::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control))
}

/// Decodes a DN and checks that it has an attribute and a value.
fn name(text: &str, what: &str) -> Result<String, LdapStoreError> {
    let name = decoded(text).ok_or_else(|| wrong(format!("{what} is not UTF-8 with %XX")))?;
    match name.split_once('=') {
        Some((attribute, value)) if !attribute.trim().is_empty() && !value.trim().is_empty() => Ok(name),
        _ => Err(wrong(format!("{what} is missing; it is like cn=files,dc=example,dc=org"))),
    }
}

fn host_and_port(text: &str, port: u16) -> Option<(&str, u16)> {
    let (host, given) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, given) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, given)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    match given.strip_prefix(':') {
        Some(given) => Some((host, given.parse().ok().filter(|port| *port != 0)?)),
        None if given.is_empty() => Some((host, port)),
        None => None,
    }
}

impl LdapTarget {
    pub(super) fn new(settings: &LdapSettings) -> Result<Self, LdapStoreError> {
        let url = &settings.url;
        if url.len() > URL_BYTES_MAX {
            return Err(wrong(format!("more than {URL_BYTES_MAX} bytes")));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it begins with ldaps://"))?;
        let (authority, base) = rest.split_once('/').ok_or_else(|| wrong("the base is missing"))?;
        let (who, host) =
            authority.rsplit_once('@').ok_or_else(|| wrong("the name to bind as is missing"))?;
        if who.contains(':') {
            return Err(LdapStoreError::PasswordInUrl);
        }
        if base.contains('?') {
            return Err(wrong("a '?' in it; %3F stands for one in a name"));
        }
        let (who, base) = (name(who, "the name to bind as")?, name(base, "the base")?);
        // A bind with an empty password succeeds without authentication (RFC 4513 §5.1.2).
        let password = settings.password.as_deref().filter(|password| !password.is_empty());
        let password = password.ok_or(LdapStoreError::NoPassword)?;
        let password = core::str::from_utf8(password).map_err(|_| LdapStoreError::NoPassword)?;
        let password = Zeroizing::new(password.to_owned());
        let (address, security, shown) = match scheme {
            "ldapi" => {
                let path = decoded(host).filter(|path| path.starts_with('/'));
                let path = path.ok_or_else(|| wrong("the socket is no absolute path, with %2F for '/'"))?;
                (ServerAddress::Socket(path.clone().into()), LdapSecurity::Plain, path)
            }
            "ldap" | "ldaps" => {
                let is_tls = scheme == "ldaps";
                let default = if is_tls { PORT_TLS } else { PORT };
                let (host, port) = host_and_port(host, default).ok_or_else(|| wrong("host or port"))?;
                let server = ServerName::try_from(host.to_owned()).map_err(|_| wrong("host"))?;
                let here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
                let tls = settings.ca_file.as_deref().map(client_config).transpose()?;
                let security = match (is_tls, tls) {
                    (true, Some(tls)) => LdapSecurity::Tls(tls, server),
                    (false, Some(tls)) => LdapSecurity::StartTls(tls, server),
                    (false, None) if here || settings.insecure => LdapSecurity::Plain,
                    // TLS with an unauthenticated server would give no protection.
                    (_, None) => return Err(LdapStoreError::NoCa),
                };
                let loopback_only = matches!(security, LdapSecurity::Plain) && !settings.insecure;
                let address = ServerAddress::Host { host: host.to_owned(), port, loopback_only };
                (address, security, format!("{host}:{port}"))
            }
            _ => return Err(wrong("it begins with ldap://, ldaps:// or ldapi://")),
        };
        let exposed = matches!(
            (&address, &security),
            (ServerAddress::Host { loopback_only: false, .. }, LdapSecurity::Plain)
        );
        Ok(Self { address, security, who, password, name: format!("{shown}/{base}"), base, exposed })
    }
}

fn client_config(path: &Path) -> Result<Arc<ClientConfig>, LdapStoreError> {
    let wrong = |why: String| LdapStoreError::Ca { path: path.to_owned(), why };
    let length = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if length > CA_BYTES_MAX {
        return Err(wrong(format!("more than {CA_BYTES_MAX} bytes")));
    }
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
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

    fn settings(url: &str) -> LdapSettings {
        LdapSettings { password: Some(Zeroizing::new(b"pw".to_vec())), ..LdapSettings::new(url) }
    }

    fn refused(url: &str) -> LdapStoreError {
        LdapTarget::new(&settings(url)).err().unwrap_or_else(|| panic!("{url} is refused"))
    }

    #[test]
    fn url_gives_bind_name_host_and_base() {
        let target = LdapTarget::new(&settings("ldap://cn=s%2Fx,dc=a@localhost:1389/ou=f%3F,dc=a")).unwrap();
        assert_eq!((&*target.who, &*target.base), ("cn=s/x,dc=a", "ou=f?,dc=a"));
        let host = "localhost".to_owned();
        assert_eq!(target.address, ServerAddress::Host { host, port: 1389, loopback_only: true });
        let target = LdapTarget::new(&settings("ldapi://cn=s@%2Frun%2Fldapi/ou=f")).unwrap();
        assert_eq!(target.address, ServerAddress::Socket("/run/ldapi".into()));
        let target = LdapTarget::new(&settings("ldap://mail=a@b,dc=x@[::1]/ou=f")).unwrap();
        assert_eq!(target.who, "mail=a@b,dc=x", "the last @ is before the host");
    }

    #[test]
    fn remote_server_requires_tls_or_insecure_flag() {
        for here in ["ldap://cn=s@127.9.9.9/ou=f", "ldap://cn=s@[::1]/ou=f", "ldapi://cn=s@%2Fs/ou=f"] {
            assert!(LdapTarget::new(&settings(here)).is_ok_and(|target| !target.exposed), "{here}");
        }
        for there in ["ldap://cn=s@10.0.0.1/ou=f", "ldap://cn=s@localhost.evil/ou=f"] {
            assert!(matches!(refused(there), LdapStoreError::NoCa), "{there}");
            let insecure = LdapSettings { insecure: true, ..settings(there) };
            assert!(LdapTarget::new(&insecure).is_ok_and(|target| target.exposed), "{there}");
        }
        let tls = LdapSettings { insecure: true, ..settings("ldaps://cn=s@localhost/ou=f") };
        assert!(matches!(LdapTarget::new(&tls), Err(LdapStoreError::NoCa)), "TLS with whomever is none");
    }

    #[test]
    fn password_is_required_and_rejected_in_url() {
        let error = refused("ldap://cn=s:secret@localhost/ou=f");
        assert!(matches!(error, LdapStoreError::PasswordInUrl));
        assert!(!error.to_string().contains("secret"));
        for password in [None, Some(Zeroizing::new(Vec::new())), Some(Zeroizing::new(vec![0xFF]))] {
            let settings = LdapSettings { password, ..LdapSettings::new("ldap://cn=s@localhost/ou=f") };
            assert!(matches!(LdapTarget::new(&settings), Err(LdapStoreError::NoPassword)));
        }
    }

    #[test]
    fn malformed_urls_are_rejected() {
        for url in [
            "",
            "ldap",
            "http://cn=s@h/ou=f",
            "ldap://cn=s@localhost",
            "ldap://cn=s@localhost/",
            "ldap://cn=s@localhost/f",
            "ldap://localhost/ou=f",
            "ldap://@localhost/ou=f",
            "ldap://s@localhost/ou=f",
            "ldap://cn=s@/ou=f",
            "ldap://cn=s@localhost:0/ou=f",
            "ldap://cn=s@localhost:65536/ou=f",
            "ldap://cn=s@[::1/ou=f",
            "ldap://cn=s@[h]/ou=f",
            "ldap://cn=s@[::1]x/ou=f",
            "ldap://cn=s@localhost/ou=f??sub",
            "ldap://cn=s@localhost/ou=%f",
            "ldap://cn=s@localhost/ou=%+f",
            "ldap://cn=s@localhost/ou=%FF",
            "ldap://cn=s@localhost/ou=%0A",
            "ldapi://cn=s@run%2Fldapi/ou=f",
        ] {
            assert!(matches!(refused(url), LdapStoreError::Url(_)), "{url}");
        }
        let long = format!("ldap://cn=s@localhost/ou={}", "f".repeat(URL_BYTES_MAX));
        assert!(matches!(refused(&long), LdapStoreError::Url(_)));
    }
}
