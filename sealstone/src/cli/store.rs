//! Arguments of the metadata store, `mds join`, `mds export` and `mds import`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::keys::KeystoreArgs;

/// Location of the metadata store, if it is not in the server's folder.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MetaArgs {
    /// `postgres://USER@HOST[:PORT]/DATABASE`, which several servers can share,
    /// `ldaps://DN@HOST[:PORT]/BASE`, or file:PATH [default: a file in the folder].
    #[arg(long, env = "SEALSTONE_MDS_META", value_name = "URL")]
    pub(crate) meta: Option<OsString>,
    /// PEM file of the authority of the certificate of the database or LDAP server (TLS 1.3).
    #[arg(long, env = "SEALSTONE_MDS_META_CA_FILE", value_name = "FILE")]
    pub(crate) meta_ca_file: Option<PathBuf>,
    /// Private file (mode 0600) whose first line is the password [default for a database:
    /// PGPASSWORD].
    #[arg(long, env = "SEALSTONE_MDS_META_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) meta_password_file: Option<PathBuf>,
    /// Name of the systemd credential (LoadCredential=) with that password.
    #[arg(long, env = "SEALSTONE_MDS_META_CREDENTIAL", value_name = "NAME")]
    pub(crate) meta_credential: Option<String>,
    /// Allow plain text to a database or LDAP server beyond this machine. A man in the middle can
    /// read and change all records that are not sealed.
    #[arg(long, env = "SEALSTONE_MDS_INSECURE_META")]
    pub(crate) insecure_meta: bool,
    /// Seconds, from 1 to 600, that a start and a request wait for an unavailable database or LDAP
    /// server [default: 20].
    #[arg(long, env = "SEALSTONE_MDS_META_WAIT_S_MAX", value_name = "SECONDS")]
    pub(crate) meta_wait_s_max: Option<u64>,
}

/// Arguments of `mds join`.
#[derive(Args, Clone, Debug)]
pub(crate) struct JoinArgs {
    /// Folder of the new server; must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Folder of a server on the same database, or a copy of the folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) from: PathBuf,
}

/// Arguments of `mds export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArgs {
    /// File to be written; must not exist.
    pub(crate) file: PathBuf,
    /// Folder of the server.
    #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
    pub(crate) data: PathBuf,
}

/// Arguments of `mds import`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImportArgs {
    /// The exported file.
    pub(crate) file: PathBuf,
    /// Folder of the server. Without it the file is only verified.
    #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) meta: MetaArgs,
    #[command(flatten)]
    pub(crate) keystore: KeystoreArgs,
}
