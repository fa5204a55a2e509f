//! Arguments of `mds keys`, `mds backup` and `mds restore`, and of the keystore.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sealstone_units::parse_partition;

/// Secret of the keystore of a metadata server.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct KeystoreArgs {
    /// Key file of the keystore (mode 0600) [default: keystore.key in the server's folder].
    #[arg(long, env = "SEALSTONE_MDS_KEYSTORE_KEY", value_name = "FILE")]
    pub(crate) keystore_key: Option<PathBuf>,
    /// File (mode 0600) whose first line is the keystore's passphrase.
    #[arg(long, env = "SEALSTONE_MDS_PASSPHRASE_FILE", value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// Name of the systemd credential (LoadCredential=) with the key or the passphrase of the
    /// keystore.
    #[arg(long, env = "SEALSTONE_MDS_KEYSTORE_CREDENTIAL", value_name = "NAME")]
    pub(crate) keystore_credential: Option<String>,
}

/// New secret of the keystore.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub(crate) struct NewSeal {
    /// Key file; created if it does not exist.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_key: Option<PathBuf>,
    /// File (mode 0600) whose first line is the passphrase, for Argon2id.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_passphrase_file: Option<PathBuf>,
    /// Name of a systemd credential of at least 32 random bytes.
    #[arg(long, value_name = "NAME")]
    pub(crate) new_credential: Option<String>,
}

/// Secret of a backup.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct BackupSeal {
    /// Key file; `backup` creates it if it does not exist.
    #[arg(long, value_name = "FILE")]
    pub(crate) backup_key: Option<PathBuf>,
    /// File (mode 0600) whose first line is the passphrase, for Argon2id.
    #[arg(long, value_name = "FILE")]
    pub(crate) backup_passphrase_file: Option<PathBuf>,
}

/// Levels of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Keys that sign credentials; versions overlap, so clients are not interrupted.
    Working,
    /// Partition key and its working keys; credentials are renewed.
    Partition,
    /// Root key of a device and all keys below it.
    Root,
    /// Master key of a device, by a Diffie-Hellman exchange, and all keys below it.
    Master,
}

/// Arguments of `mds keys rotate`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RotateArgs {
    /// Level; all keys below it are replaced too.
    pub(crate) level: Level,
    /// Only keys of this device.
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Only keys of this partition (0x… or decimal).
    #[arg(long, value_name = "ID", value_parser = parse_partition)]
    pub(crate) partition: Option<u64>,
    /// With working keys: revoke all issued credentials at once. Clients with access get new ones.
    #[arg(long)]
    pub(crate) revoke: bool,
    /// Do not wait until the keys are replaced.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Maximum seconds to wait.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub(crate) wait: u64,
}

/// Keys and keystore of the metadata server.
#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// List the devices' keys: level, name and age, not the secrets (administrators).
    #[command(after_help = "\
Examples:
  sealstone mds keys list
  sealstone --json mds keys list --device osd1")]
    List {
        /// Only keys of this device.
        #[arg(long, value_name = "NAME")]
        device: Option<String>,
    },
    /// Replace keys of devices without interrupting clients (administrators).
    #[command(after_help = "\
Examples:
  sealstone mds keys rotate working                                  all devices
  sealstone mds keys rotate working --partition 0x10000 --revoke     revoke all issued credentials
  sealstone mds keys rotate master --device osd1                     a new master key, and all below it")]
    Rotate(RotateArgs),
    /// Change the secret of the keystore of a stopped server.
    #[command(after_help = "\
Examples:
  sealstone mds keys reseal --data /srv/mds --new-passphrase-file mds.passphrase
  sealstone mds keys reseal --data /srv/mds --passphrase-file mds.phrase --new-key mds.key
Without a --new… option the keystore is sealed under the key file in the server's folder.")]
    Reseal {
        /// Folder of the server.
        #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        keystore: KeystoreArgs,
        #[command(flatten)]
        new: NewSeal,
    },
}

/// Arguments of `mds backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupArgs {
    /// Folder of the server.
    #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Backup file to be written; must not exist.
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) keystore: KeystoreArgs,
    #[command(flatten)]
    pub(crate) seal: BackupSeal,
}

/// Arguments of `mds restore`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RestoreArgs {
    /// The backup.
    #[arg(long, value_name = "FILE")]
    pub(crate) from: PathBuf,
    /// Folder of the new server; must be empty or not exist. Without it the backup is only
    /// verified.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) seal: BackupSeal,
    #[command(flatten)]
    pub(crate) keystore: KeystoreArgs,
}
