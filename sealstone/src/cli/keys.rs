//! Arguments about the devices' keys and the metadata server's keystore.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// What the keystore of a metadata server is sealed under, or opened with.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Keystore {
    /// Key file of the keystore (mode 0600) [default: keystore.key in the server's folder].
    #[arg(long, env = "SEALSTONE_MDS_KEYSTORE_KEY", value_name = "FILE")]
    pub(crate) keystore_key: Option<PathBuf>,
    /// File (mode 0600) whose first line is the keystore's passphrase.
    #[arg(long, env = "SEALSTONE_MDS_PASSPHRASE_FILE", value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// Name of the systemd credential (LoadCredential=) that the keystore is sealed under, or its passphrase is in.
    #[arg(long, env = "SEALSTONE_MDS_KEYSTORE_CREDENTIAL", value_name = "NAME")]
    pub(crate) keystore_credential: Option<String>,
}

/// What the keystore is to be sealed under from now on.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub(crate) struct NewSeal {
    /// This key file; it is made if it is not there.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_key: Option<PathBuf>,
    /// The first line of this file (mode 0600), stretched with Argon2id.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_passphrase_file: Option<PathBuf>,
    /// This systemd credential: at least 32 random bytes.
    #[arg(long, value_name = "NAME")]
    pub(crate) new_credential: Option<String>,
}

/// What a backup is sealed under.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct BackupSeal {
    /// This key file; `backup` makes it if it is not there.
    #[arg(long, value_name = "FILE")]
    pub(crate) backup_key: Option<PathBuf>,
    /// The first line of this file (mode 0600), stretched with Argon2id.
    #[arg(long, value_name = "FILE")]
    pub(crate) backup_passphrase_file: Option<PathBuf>,
}

/// Levels of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Sign credentials; versions overlap, so nobody notices.
    Working,
    /// Above the working keys of a partition; its credentials are renewed.
    Partition,
    /// Above all partitions of a device.
    Root,
    /// The device's own, by a Diffie-Hellman exchange; all below it are set anew.
    Master,
}

/// Which keys to change.
#[derive(Args, Clone, Debug)]
pub(crate) struct Rotate {
    /// Which level; all below it are changed with it.
    pub(crate) level: Level,
    /// Of this device alone.
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Of this partition alone (0x… or decimal).
    #[arg(long, value_name = "ID", value_parser = partition)]
    pub(crate) partition: Option<u64>,
    /// Working keys: make all credentials that are out worthless at once. Clients in good standing get new ones.
    #[arg(long)]
    pub(crate) revoke: bool,
    /// Do not wait until it is done.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Seconds to wait at most.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub(crate) wait: u64,
}

pub(super) fn partition(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is no partition: say a number such as 0x10000"))
}

/// Keys and keystore of the metadata server.
#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// List the devices' keys: levels, names, ages; never the keys (needs an administrator's session).
    #[command(after_help = "\
Examples:
  sealstone mds keys list
  sealstone --json mds keys list --device osd1")]
    List {
        /// Of this device alone.
        #[arg(long, value_name = "NAME")]
        device: Option<String>,
    },
    /// Change keys of devices, while clients go on (needs an administrator's session).
    #[command(after_help = "\
Examples:
  sealstone mds keys rotate working                                  all devices; nobody notices
  sealstone mds keys rotate working --partition 0x10000 --revoke     credentials that are out become worthless
  sealstone mds keys rotate master --device osd1                     a new master key, and all below it")]
    Rotate(Rotate),
    /// Seal the keystore of a server that does not run under something else.
    #[command(after_help = "\
Examples:
  sealstone mds keys reseal --data /srv/mds --new-passphrase-file mds.passphrase
  sealstone mds keys reseal --data /srv/mds --passphrase-file mds.phrase --new-key mds.key
Without a --new… option it is the key file in the server's folder.")]
    Reseal {
        /// Folder of the server.
        #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        keystore: Keystore,
        #[command(flatten)]
        new: NewSeal,
    },
}

/// What `backup` takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Backup {
    /// Folder of the server.
    #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// The file to be written; must not exist.
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) keystore: Keystore,
    #[command(flatten)]
    pub(crate) seal: BackupSeal,
}

/// What `restore` takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Restore {
    /// The backup.
    #[arg(long, value_name = "FILE")]
    pub(crate) from: PathBuf,
    /// Folder of the new server; must be empty or not exist. Without it the backup is read and checked only.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) seal: BackupSeal,
    #[command(flatten)]
    pub(crate) keystore: Keystore,
}
