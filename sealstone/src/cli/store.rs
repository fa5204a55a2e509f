//! Arguments about where the metadata is.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::keys::Keystore;

/// Where the metadata is, if it is not in the server's folder.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Meta {
    /// `postgres://USER@HOST[:PORT]/DATABASE`, which several servers can use, `ldaps://NAME@HOST[:PORT]/BASE` (names as LDAP has
    /// them), or file:PATH [default: a file in the folder].
    #[arg(long, env = "SEALSTONE_MDS_META", value_name = "URL")]
    pub(crate) meta: Option<OsString>,
    /// PEM file of the authority that must have signed the certificate of the database or LDAP server (TLS 1.3).
    #[arg(long, env = "SEALSTONE_MDS_META_CA_FILE", value_name = "FILE")]
    pub(crate) meta_ca_file: Option<PathBuf>,
    /// Private file (mode 0600) whose first line is the password; without one a database's is PGPASSWORD's, if there is any.
    #[arg(long, env = "SEALSTONE_MDS_META_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) meta_password_file: Option<PathBuf>,
    /// Name of the systemd credential (LoadCredential=) with that password.
    #[arg(long, env = "SEALSTONE_MDS_META_CREDENTIAL", value_name = "NAME")]
    pub(crate) meta_credential: Option<String>,
    /// Let a database or LDAP server beyond this machine be used in plain text. Whoever is on the way reads and changes what is not sealed.
    #[arg(long, env = "SEALSTONE_MDS_INSECURE_META")]
    pub(crate) insecure_meta: bool,
}

/// What `join` takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Join {
    /// Folder of the new server; must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Folder of a server that uses the same database, or a copy of it.
    #[arg(long, value_name = "DIR")]
    pub(crate) from: PathBuf,
}

/// What `export` takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Export {
    /// The file to be written; must not exist.
    pub(crate) file: PathBuf,
    /// Folder of the server.
    #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
    pub(crate) data: PathBuf,
}

/// What `import` takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Import {
    /// The exported file.
    pub(crate) file: PathBuf,
    /// Folder of the server. Without it the file is read and checked only.
    #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) meta: Meta,
    #[command(flatten)]
    pub(crate) keystore: Keystore,
}
