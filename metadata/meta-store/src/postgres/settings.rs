//! Settings of the database, checked before the first connection.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use zeroize::Zeroizing;

use super::{CONNECT_MAX, KEEPALIVE, PostgresError};
use crate::UNAVAILABLE_WAIT_DEFAULT;

/// Allowed keys behind `?` in the URL; others are rejected, so that a misspelt key is not ignored.
const KEYS: [&str; 4] = ["host", "port", "user", "dbname"];
/// Maximum bytes of the CA file.
const CA_BYTES_MAX: u64 = 1 << 20;

/// Address of the database, and how to connect.
#[derive(Clone, Debug)]
pub struct PostgresSettings {
    /// `postgres://USER@HOST[:PORT]/DATABASE`; `?host=/FOLDER` is a socket in that folder. With
    /// several hosts, separated by commas, the first that accepts writes is used.
    pub url: String,
    /// The password, if the database requires one; it is rejected inside the URL.
    pub password: Option<Zeroizing<Vec<u8>>>,
    /// PEM file of certificate authorities, one of which must have signed the server's certificate.
    /// Enables TLS.
    pub ca_file: Option<PathBuf>,
    /// Whether plain text to another machine is allowed.
    pub insecure: bool,
    /// How long a start and a new transaction wait for an unavailable server.
    pub unavailable_wait: Duration,
}

impl PostgresSettings {
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

    /// Whether this is the URL of a PostgreSQL database.
    #[must_use]
    pub fn is_one(url: &str) -> bool {
        url.starts_with("postgres://") || url.starts_with("postgresql://")
    }
}

/// Validated settings.
pub(super) struct DatabaseTarget {
    pub(super) config: tokio_postgres::Config,
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// Hosts and database, for messages.
    pub(super) name: String,
    /// Whether queries travel over a network in plain text.
    pub(super) exposed: bool,
}

fn wrong(why: impl Into<String>) -> PostgresError {
    PostgresError::Url(why.into())
}

impl DatabaseTarget {
    pub(super) fn new(settings: &PostgresSettings) -> Result<Self, PostgresError> {
        let url = &settings.url;
        if !PostgresSettings::is_one(url) {
            return Err(wrong("it begins with postgres://"));
        }
        if let Some((_, query)) = url.split_once('?') {
            for pair in query.split('&') {
                let key = pair.split('=').next().unwrap_or_default();
                if key == "password" {
                    return Err(PostgresError::PasswordInUrl);
                }
                if !KEYS.contains(&key) {
                    return Err(wrong(format!("'{key}' is not one of {}", KEYS.join(", "))));
                }
            }
        }
        let mut config = tokio_postgres::Config::from_str(url).map_err(|error| wrong(error.to_string()))?;
        if config.get_password().is_some() {
            return Err(PostgresError::PasswordInUrl);
        }
        if config.get_user().is_none_or(str::is_empty) {
            return Err(wrong("the user is missing: postgres://USER@HOST/DATABASE"));
        }
        if config.get_hosts().is_empty() {
            return Err(wrong("the host is missing: postgres://USER@HOST/DATABASE"));
        }
        let Some(database) = config.get_dbname().filter(|name| !name.is_empty()).map(str::to_owned) else {
            return Err(wrong("the database is missing: postgres://USER@HOST/DATABASE"));
        };
        let tls = settings.ca_file.as_deref().map(client_config).transpose()?;
        let sockets = config.get_hosts().iter().filter(|host| matches!(host, Host::Unix(_))).count();
        if sockets > 0 && sockets < config.get_hosts().len() {
            return Err(wrong("either sockets of this machine or hosts, not both"));
        }
        let here = config.get_hosts().iter().all(is_here);
        if tls.is_none() && !here && !settings.insecure {
            return Err(PostgresError::NoCa);
        }
        // A local socket needs no TLS, and the server does not offer it there.
        let tls = tls.filter(|_| sockets == 0);
        let exposed = tls.is_none() && !here;
        let names: Vec<String> = config.get_hosts().iter().map(host_name).collect();
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if config.get_hosts().len() > 1 {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if let Some(password) = &settings.password {
            config.password(&**password);
        }
        config.application_name("sealstone");
        config.connect_timeout(CONNECT_MAX);
        config.tcp_user_timeout(KEEPALIVE);
        config.keepalives_idle(KEEPALIVE);
        Ok(Self { config, tls, name: format!("{}/{database}", names.join(",")), exposed })
    }
}

fn is_here(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
    }
}

fn host_name(host: &Host) -> String {
    match host {
        Host::Unix(path) => path.display().to_string(),
        Host::Tcp(name) => name.clone(),
    }
}

fn client_config(path: &Path) -> Result<Arc<ClientConfig>, PostgresError> {
    let wrong = |why: String| PostgresError::Ca { path: path.to_owned(), why };
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
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| wrong(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(settings: &PostgresSettings) -> Result<DatabaseTarget, PostgresError> {
        DatabaseTarget::new(settings)
    }

    fn refused(url: &str) -> PostgresError {
        check(&PostgresSettings::new(url)).err().unwrap_or_else(|| panic!("{url} is refused"))
    }

    #[test]
    fn remote_server_requires_tls_or_insecure_flag() {
        for url in [
            "postgres://u@localhost/d",
            "postgresql://u@127.0.0.1:5433/d",
            "postgres://u@[::1]/d",
            "postgres://u@/d?host=/run/postgresql",
            "postgres:///d?host=/run/postgresql&user=u&port=5433",
        ] {
            assert!(check(&PostgresSettings::new(url)).is_ok_and(|target| !target.exposed), "{url}");
        }
        for url in ["postgres://u@db.example.org/d", "postgres://u@127.0.0.1,10.0.0.1/d"] {
            assert!(matches!(refused(url), PostgresError::NoCa), "{url}");
            let settings = PostgresSettings { insecure: true, ..PostgresSettings::new(url) };
            assert!(check(&settings).is_ok_and(|target| target.exposed), "{url}");
        }
    }

    #[test]
    fn password_in_url_is_rejected_and_not_shown() {
        for url in ["postgres://u:secret@localhost/d", "postgres://u@localhost/d?password=secret"] {
            let error = refused(url);
            assert!(matches!(error, PostgresError::PasswordInUrl), "{url}");
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn malformed_urls_are_rejected() {
        for url in [
            "",
            "mysql://u@h/d",
            "postgres://",
            "postgres://localhost/d",
            "postgres://u@localhost",
            "postgres://u@localhost/",
            "postgres://u@localhost:99999/d",
            "postgres://u@localhost/d?sslmode=disable",
            "postgres://u@localhost/d?hots=/run",
            "postgres://u@localhost/d?host=/run/postgresql",
        ] {
            assert!(matches!(refused(url), PostgresError::Url(_)), "{url}");
        }
    }

    #[test]
    fn ca_file_without_certificates_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let settings =
            PostgresSettings { ca_file: Some(file.clone()), ..PostgresSettings::new("postgres://u@h/d") };
        assert!(matches!(check(&settings), Err(PostgresError::Ca { .. })));
        for content in
            ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            std::fs::write(&file, content).unwrap();
            assert!(matches!(check(&settings), Err(PostgresError::Ca { .. })), "{content}");
        }
    }
}
