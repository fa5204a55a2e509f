//! The command line: commands, options and environment variables, with examples in the help texts.

pub(crate) mod alternatives;
mod block;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod drain;
pub(crate) mod functions;
pub(crate) mod grants;
mod help;
pub(crate) mod keys;
mod logs;
pub(crate) mod mount;
pub(crate) mod rebalance;
pub(crate) mod shipped;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use sealstone_channel::Pin;
use sealstone_cluster::{JOIN_S_MAX, OSDS_MAX};

mod accounts;
mod names;
pub(crate) mod quota;
pub(crate) mod store;
mod stored;
mod transfer;
mod words;

pub(crate) use accounts::{CodeArgs, EnrolArgs, Group, LoginArgs, PasswordArgs, ServerArgs, User};
pub(crate) use block::{AttachArgs, Block};
pub(crate) use names::{LnArgs, MkdirArgs, MvArgs};
pub(crate) use sealstone_transfer::StoredPath;
use sealstone_units::parse_size;
pub(crate) use transfer::{CatArgs, GetArgs, MethodName, PutArgs, TreeOptions};
pub(crate) use words::command_words;

use self::logs::LogName;
use crate::config::{MdsOptions, OsdOptions};

/// Secure object storage: devices that verify every command, a metadata server, and clients of
/// both.
#[derive(Debug, Parser)]
#[command(
    name = "sealstone",
    version,
    max_term_width = 110,
    arg_required_else_help = true,
    after_help = "\
Examples:
  sealstone demo                             store files, then see attacks refused, in a minute
  sealstone up --data ~/sealstone            run a small system on this machine
  sealstone login admin --cluster ~/sealstone/cluster.toml --password-file ~/sealstone/admin-secret
  sealstone put -r photos /photos            store a folder
  sealstone get /photos/cat.jpg -            write a file to standard output

Exit codes: 0 ok, 1 the operation failed, 2 usage, 3 access denied, 4 not found."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Returns the command line as clap has it, with its help texts laid out.
    pub(crate) fn tree() -> clap::Command {
        help::lay_out(Self::command())
    }

    /// Parses a command line and its environment. An option overrides a variable that it excludes.
    pub(crate) fn parse_words(
        command: clap::Command,
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().collect();
        // The layout does not change what is parsed, and takes longer than the rest of the start.
        Self::parse_with(command, Self::command, &words)
            .or_else(|_| Self::parse_with(Self::tree(), Self::tree, &words))
    }

    /// Parses with a command that `again` returns once more.
    fn parse_with(
        mut command: clap::Command,
        again: fn() -> clap::Command,
        words: &[OsString],
    ) -> Result<Self, clap::Error> {
        let mut matches = command.try_get_matches_from_mut(words)?;
        let (path, overridden) = alternatives::overridden(&command, &matches)?;
        if !overridden.is_empty() {
            command = alternatives::without_variables(again(), &path, &overridden);
            matches = command.try_get_matches_from_mut(words)?;
        }
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    }
}

/// Options that every command accepts.
#[derive(Args, Clone, Debug)]
pub(crate) struct GlobalArgs {
    /// Print JSON: the result as one line on standard output, a failure as one line on standard
    /// error.
    #[arg(long, global = true, help_heading = help::GLOBAL)]
    pub(crate) json: bool,
    /// Print no progress bars and no remarks.
    #[arg(long, short, global = true, help_heading = help::GLOBAL)]
    pub(crate) quiet: bool,
    /// Session file [default: $XDG_STATE_HOME/sealstone/session.toml].
    #[arg(long, global = true, env = "SEALSTONE_SESSION", value_name = "FILE", help_heading = help::GLOBAL)]
    pub(crate) session: Option<PathBuf>,
    /// Decode escapes in stored paths and link targets: `\xNN` is a byte, `\\` a backslash. Without
    /// this option every byte stands for itself.
    #[arg(long, global = true, help_heading = help::ADVANCED, hide_short_help = true)]
    pub(crate) escaped: bool,
    /// Private file (mode 0600) with CHAP accounts for devices that require CHAP.
    #[arg(
        long, global = true, env = "SEALSTONE_CHAP_FILE", value_name = "FILE", help_heading = help::ADVANCED,
        hide_short_help = true
    )]
    pub(crate) chap_file: Option<PathBuf>,
    /// TLS to devices. auto: use TLS if the device has a pinned certificate. required: refuse
    /// devices without one. off: no TLS (loopback only).
    #[arg(
        long, global = true, env = "SEALSTONE_DEVICE_TLS", default_value = "auto", value_name = "WHEN",
        help_heading = help::ADVANCED, hide_short_help = true, hide_possible_values = true
    )]
    pub(crate) device_tls: DeviceTls,
    /// Conceal the security method of each command by the ESM paper's cipher, for devices with
    /// --method-cipher. It protects nothing.
    #[arg(
        long, global = true, env = "SEALSTONE_CONCEAL_METHOD", help_heading = help::ADVANCED,
        hide_short_help = true
    )]
    pub(crate) conceal_method: bool,
    /// Format of log lines. `SEALSTONE_LOG` takes a filter such as
    /// `info,sealstone_osd_device=debug`.
    #[arg(
        long, global = true, env = "SEALSTONE_LOG_FORMAT", default_value = "auto", value_name = "FORMAT",
        help_heading = help::ADVANCED, hide_short_help = true
    )]
    pub(crate) log_format: LogName,
}

/// When the client uses TLS to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceTls {
    /// Use TLS if the device has a pinned certificate.
    Auto,
    /// Refuse devices without a pinned certificate.
    Required,
    /// Use no TLS; only devices on loopback are accepted if they have a pinned certificate.
    Off,
}

impl From<DeviceTls> for sealstone_initiator::TlsPolicy {
    fn from(name: DeviceTls) -> Self {
        match name {
            DeviceTls::Auto => Self::Auto,
            DeviceTls::Required => Self::Required,
            DeviceTls::Off => Self::Off,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a metadata server and devices in one process; created on first use.
    Up(UpArgs),
    /// Devices: create, run, check, drain, rebalance.
    #[command(subcommand)]
    Osd(Osd),
    /// Verify all checksums of running devices, and show damage.
    Scrub(ScrubArgs),
    /// Block units of a device: disks for iSCSI initiators.
    #[command(subcommand)]
    Block(Block),
    /// Metadata servers: create, run, add devices, keys, backups.
    #[command(subcommand)]
    Mds(Mds),
    /// Accounts (administrators).
    #[command(subcommand)]
    User(User),
    /// Groups (administrators).
    #[command(subcommand)]
    Group(Group),
    /// Set the first password of an account with a one-time code.
    Enrol(EnrolArgs),
    /// Log in; the session is stored in a private file.
    Login(LoginArgs),
    /// End the session.
    #[command(after_help = "\
Examples:
  sealstone logout
  sealstone logout --revoke     also revokes the credentials of the session
Without --revoke devices accept these credentials until they expire, after a few minutes; capability files later. With
--revoke the metadata server continues until every device has confirmed.")]
    Logout {
        /// Revoke the credentials of the session, including capability files.
        #[arg(long)]
        revoke: bool,
    },
    /// Show user, role, server and expiry of the session.
    #[command(after_help = "\
Examples:
  sealstone whoami
  sealstone --json whoami")]
    Whoami,
    /// Store files.
    Put(PutArgs),
    /// Fetch files.
    Get(GetArgs),
    /// Write files to standard output.
    Cat(CatArgs),
    /// List a directory.
    Ls(LsArgs),
    /// Show a file's attributes and where it is placed.
    #[command(after_help = "\
Examples:
  sealstone stat /docs/report.pdf
  sealstone --json stat /docs/report.pdf | jq -r .files[0].checksum
  sealstone --json stat /backup/photos.tar | jq .files[0].placement.reason.why")]
    Stat(PathArgs),
    /// Create directories.
    Mkdir(MkdirArgs),
    /// Move or rename.
    Mv(MvArgs),
    /// Create a hard link, or with -s a symbolic link.
    Ln(LnArgs),
    /// Remove files, or directories with -r.
    Rm(RmArgs),
    /// Change permission bits.
    Chmod(ChmodArgs),
    /// Change the owner, or owner and group (administrators).
    Chown(ChownArgs),
    /// Change the group of a file.
    Chgrp(ChgrpArgs),
    /// Functions: code that runs on the devices, beside the data.
    #[command(subcommand, name = "fn")]
    Function(functions::Function),
    /// Run a function on stored files.
    Run(functions::RunArgs),
    /// Jobs of functions: state, log, result, receipt.
    #[command(subcommand)]
    Job(functions::Job),
    /// Capability files: access to a part of one file without a login.
    #[command(subcommand)]
    Cap(grants::Cap),
    /// Revoke credentials of a file, a partition or a user.
    Revoke(grants::RevokeArgs),
    /// Show the credentials issued for a file.
    Audit(grants::AuditArgs),
    /// Quotas of users and directory trees.
    #[command(subcommand)]
    Quota(quota::Quota),
    /// Check metadata and all devices for inconsistencies (fsck).
    Check(check::CheckArgs),
    /// Mount a stored directory.
    Mount(mount::MountArgs),
    /// Unmount; closed files are durable then.
    Umount(mount::UmountArgs),
    /// Show the space of all devices.
    #[command(after_help = "\
Example:
  sealstone df")]
    Df,
    /// Print example configuration files.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a shell completion script.
    #[command(after_help = "\
Example:
  sealstone completion bash > ~/.local/share/bash-completion/completions/sealstone")]
    Completion {
        /// Name of the shell.
        shell: clap_complete::Shell,
    },
    /// Store files on three devices and attack them, in a minute.
    Demo(DemoArgs),
}

/// Arguments of `up`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone up                               data in ./sealstone-data, three devices of 10 GiB (sparse)
  sealstone up --data /srv/sealstone --osds 5 --capacity 100G
  sealstone up --listen localhost:4270 --osd-port 5000
  sealstone up --json | head -1              prints the ready line")]
pub(crate) struct UpArgs {
    /// Folder of the system; created on first use.
    #[arg(long, env = "SEALSTONE_DATA", default_value = "sealstone-data", value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Number of devices to create on first use [default: 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(OSDS_MAX)))]
    pub(crate) osds: Option<u16>,
    /// Address of the metadata server; devices use the following ports. Port 0 takes free ports.
    #[arg(long, default_value = "127.0.0.1:3270", value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// Port of the first device, on first use; 0 takes free ports [default: the port after
    /// --listen].
    #[arg(long, value_name = "PORT")]
    pub(crate) osd_port: Option<u16>,
    /// Capacity of each device, on first use; the files are sparse.
    #[arg(long, default_value = "10G", value_parser = parse_size, value_name = "SIZE")]
    pub(crate) capacity: u64,
    /// Address of /metrics and /healthz of the whole process.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Osd {
    /// Create a device and write its initial master key to a file.
    #[command(after_help = "\
Example:
  sealstone osd init --data /srv/osd1 --capacity 1T --name osd1 --key-out osd1.key
  sealstone osd init --data /srv/osd3 --capacity 500G --preallocate
  sealstone osd init --data /srv/osd2 --device /dev/disk/by-id/nvme-example
`sealstone mds add-osd` reads the key file. Keep it secret, and delete it when the device is added.")]
    Init {
        /// Folder of the device; must be empty or not exist.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Capacity; the files are sparse. Default with --device: the whole block device.
        #[arg(long, value_parser = parse_size, value_name = "SIZE", required_unless_present = "device")]
        capacity: Option<u64>,
        /// Allocate all space of the files now.
        #[arg(long, conflicts_with = "device")]
        preallocate: bool,
        /// Store objects on this block device instead of in files; it must be blank and unused.
        #[arg(long, value_name = "PATH")]
        device: Option<PathBuf>,
        /// Overwrite the content of the block device.
        #[arg(long, requires = "device")]
        force: bool,
        /// Name of the device, part of its iSCSI name [default: the folder's name].
        #[arg(long)]
        name: Option<String>,
        /// File for the initial master key [default: DIR/initial.key].
        #[arg(long, value_name = "FILE")]
        key_out: Option<PathBuf>,
    },
    /// Run a device.
    #[command(after_help = "\
Example:
  sealstone osd serve --data /srv/osd1 --listen 0.0.0.0:3260 --metrics 127.0.0.1:9260")]
    Serve {
        /// Folder of the device.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Configuration file; `sealstone config example osd` prints one.
        #[arg(long, env = "SEALSTONE_OSD_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        options: Box<OsdOptions>,
    },
    /// Show engines and isolation layers of functions on a running device.
    #[command(after_help = "\
Examples:
  sealstone osd status --data /srv/osd1
  sealstone --json osd status --data /srv/osd1 | jq '.functions.engines[] | select(.available)'")]
    Status {
        /// Folder of the device.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
    },
    /// Create a new initial key for a stopped device whose keys are lost. Objects stay.
    #[command(after_help = "\
Example:
  sealstone osd new-key --data /srv/osd1 --key-out osd1.key
Then start the device, and: sealstone mds add-osd URL --key osd1.key")]
    NewKey {
        /// Folder of the device.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
        /// File for the new key, for `mds add-osd` [default: DIR/initial.key].
        #[arg(long, value_name = "FILE")]
        key_out: Option<PathBuf>,
    },
    /// Show or reset the clock of a device on this machine.
    #[command(subcommand)]
    Clock(clock::Clock),
    /// Approve a device that an operator added (administrators).
    #[command(after_help = "\
Examples:
  sealstone osd approve osd7
  sealstone --json osd approve osd7 | jq .state
Shows name, address, system id and certificate of the device, and waits until it is active. Then it stores data of users:
first compare its certificate with the one that `osd serve` prints. A device that an administrator adds needs no approval.")]
    Approve {
        /// Name of the device, as `sealstone df` lists it.
        device: String,
        /// Show the device without approving it.
        #[arg(long)]
        show: bool,
        /// Seconds to wait until it is active.
        #[arg(long, default_value_t = JOIN_S_MAX, value_name = "SECONDS")]
        wait: u64,
    },
    /// Move all files away from a device (administrators and operators).
    Drain(drain::DrainArgs),
    /// Make devices equally full (administrators and operators).
    Rebalance(rebalance::RebalanceArgs),
    /// Verify all checksums of a stopped device. Exit code 1 if anything is damaged.
    #[command(after_help = "\
Examples:
  sealstone osd check --data /srv/osd1
  sealstone osd check --data /srv/osd1 --repair
  sealstone --json osd check --data /srv/osd1 | jq '.findings[].object'
Nothing is written without --repair. Damaged bytes can be restored only from a copy: put the file again when the
device runs, or restore the folder from a backup.")]
    Check {
        /// Folder of the stopped device.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Record damaged ranges on the objects and clear records of damage that has been repaired.
        #[arg(long)]
        repair: bool,
    },
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone scrub --data /srv/osd1           start a scrub and follow it
  sealstone scrub osd2 --data ~/sealstone    one device of `sealstone up` [default: all]
  sealstone scrub --data /srv/osd1 --show    progress and damage
  sealstone scrub --data /srv/osd1 --stop    stop it; the next one starts when it is due
  sealstone --json scrub --data /srv/osd1 --show | jq '.devices[].damaged'
Exit code 1 if anything is damaged. Rewriting damaged bytes clears the damage without another scrub.")]
pub(crate) struct ScrubArgs {
    /// Name of a device in the folder of `sealstone up`.
    pub(crate) device: Option<String>,
    /// Folder of the device, or of `sealstone up`; the device must run.
    #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Only show the state.
    #[arg(long, conflicts_with = "stop")]
    pub(crate) show: bool,
    /// Stop the running scrub.
    #[arg(long)]
    pub(crate) stop: bool,
    /// Start it without waiting.
    #[arg(long, conflicts_with_all = ["show", "stop"])]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Mds {
    /// Create a metadata server: store, keystore, certificate, administrator.
    #[command(after_help = "\
Examples:
  sealstone mds init --data /srv/mds
  sealstone mds init --data /srv/mds --passphrase-file mds.passphrase   keystore sealed under a passphrase
  sealstone mds init --data /srv/mds --meta postgres://sealstone@db.example.org/sealstone --meta-ca-file db-ca.pem \
--meta-password-file db.password
  sealstone mds init --data /srv/mds --meta ldaps://cn=fs,dc=org@ldap.example.org/ou=fs,dc=org \
--meta-ca-file ldap-ca.pem --meta-password-file ldap.password")]
    Init {
        /// Folder of the server; must be empty or not exist.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        keystore: keys::KeystoreArgs,
        #[command(flatten)]
        meta: store::MetaArgs,
    },
    /// Create another server on the database of an existing one.
    #[command(after_help = "\
Example:
  sealstone mds join --data /srv/mds2 --from /srv/mds
Copies the keystore, the certificate and the location of the database, but not the key of the authority.")]
    Join(store::JoinArgs),
    /// Export all records of the metadata store to a file, for an import. Secrets stay sealed.
    #[command(after_help = "\
Example:
  sealstone mds export meta.export --data /srv/mds
Stop the servers first: later changes are not exported. This is no backup: it has no keystore (see `mds backup`).")]
    Export(store::ExportArgs),
    /// Import records into an empty store and use it from then on; without --data only verify the
    /// file.
    #[command(after_help = "\
Examples:
  sealstone mds import meta.export --data /srv/mds --meta postgres://sealstone@localhost/sealstone
  sealstone mds import meta.export --data /srv/mds      into a file of the folder
  sealstone mds import meta.export                      verify only")]
    Import(store::ImportArgs),
    /// Show or reset the clock of a metadata server on this machine.
    #[command(subcommand)]
    Clock(clock::Clock),
    /// Keys of the devices, and the keystore.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Back up a stopped server, with its keys, to one sealed file.
    #[command(after_help = "\
Example:
  sealstone mds backup --data /srv/mds --to mds.backup --backup-passphrase-file backup.passphrase")]
    Backup(keys::BackupArgs),
    /// Restore a server from a backup; without --data only verify the file.
    #[command(after_help = "\
Examples:
  sealstone mds restore --from mds.backup --backup-passphrase-file backup.passphrase --data /srv/new
  sealstone mds restore --from mds.backup --backup-passphrase-file backup.passphrase      verify only")]
    Restore(keys::RestoreArgs),
    /// Run the metadata server.
    #[command(after_help = "\
Example:
  sealstone mds serve --data /srv/mds --listen 0.0.0.0:3270 --metrics 127.0.0.1:9270")]
    Serve {
        /// Folder of the server.
        #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Configuration file; `sealstone config example mds` prints one.
        #[arg(long, env = "SEALSTONE_MDS_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        options: MdsOptions,
    },
    /// Look up a user in the LDAP directory, to test the configuration.
    #[command(after_help = "\
Examples:
  sealstone mds directory erika --config /etc/sealstone/mds.toml
  sealstone mds directory erika --directory-url ldaps://ldap.example.org --directory-ca-file ca.pem \
--directory-user-base ou=people,dc=example,dc=org --directory-group-base ou=groups,dc=example,dc=org
Exit code 4: no such user; 3: the account is locked or has no role; 1: the directory does not respond.")]
    Directory {
        /// Name of the user.
        name: String,
        /// Configuration file of the server.
        #[arg(long, env = "SEALSTONE_MDS_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        options: MdsOptions,
    },
    /// Issue a certificate for a device, signed by the cluster's authority.
    #[command(after_help = "\
Example:
  sealstone mds issue-certificate --data /srv/mds --key osd1.key --out osd1-tls
Copy the files of the folder to the device's folder, and add the device with the printed `--pin ca-sha256:…`.
Without this a device has a self-signed certificate, which is pinned itself.")]
    IssueCertificate {
        /// Folder of the server, with the key of the authority.
        #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Initial key file of the device; it has the system id and the name.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Folder for certificate and key; created if necessary.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Validity of the certificate, days.
        #[arg(long, default_value_t = 3653, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..))]
        days: u16,
    },
    /// Add a device and replace its keys. An administrator must approve a device that an operator
    /// adds.
    #[command(after_help = "\
Example:
  sealstone mds add-osd iscsi://10.0.0.7:3260/iqn.2026-11.org.sealstone:osd.osd1/0 --key osd1.key --certificate certificate.der
With a pin all clients use TLS to the device. Without one they use plain text, which a device accepts on loopback or with
--tls optional.")]
    AddOsd {
        /// `iscsi://HOST:PORT/IQN/LUN`, as `osd serve` prints it.
        url: String,
        /// Initial key file of the device.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// SHA-256 of the device's certificate, as `osd serve` prints it; or ca-sha256:… of the
        /// authority that signed it.
        #[arg(long, value_name = "PIN")]
        pin: Option<Pin>,
        /// The device's certificate (certificate.der of its folder) instead of the pin.
        #[arg(long, value_name = "FILE", conflicts_with = "pin")]
        certificate: Option<PathBuf>,
        /// Throughput in bytes per second, such as 500M, for the placement of large files [default:
        /// unchanged, or unknown].
        #[arg(long, default_value = "0", hide_default_value = true, value_parser = parse_size, value_name = "SIZE")]
        speed: u64,
        /// Seconds to wait until the device is active.
        #[arg(long, default_value_t = 30, value_name = "SECONDS")]
        wait: u64,
    },
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone ls -l /docs
  sealstone ls -r /                 all entries
  sealstone --json ls /docs | jq '.entries[].size'")]
pub(crate) struct LsArgs {
    /// Directory or file.
    #[arg(default_value = "/")]
    pub(crate) path: OsString,
    /// Show mode, owner, size and time.
    #[arg(long, short)]
    pub(crate) long: bool,
    /// List subdirectories too.
    #[arg(long, short)]
    pub(crate) recursive: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct PathArgs {
    /// Stored files or directories.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone rm /docs/old.txt
  sealstone rm -r /backup/2025")]
pub(crate) struct RmArgs {
    /// Stored files or directories.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
    /// Remove directories and their contents.
    #[arg(long, short)]
    pub(crate) recursive: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  sealstone chmod 600 /docs/private.txt")]
pub(crate) struct ChmodArgs {
    /// Octal mode, such as 640.
    pub(crate) mode: String,
    /// Stored files or directories.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone chown alice /docs/report.pdf
  sealstone chown alice:staff /docs /docs/report.pdf")]
pub(crate) struct ChownArgs {
    /// OWNER or OWNER:GROUP.
    pub(crate) owner: String,
    /// Stored files or directories.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone chgrp staff /docs/report.pdf
  sealstone chgrp none /docs/private.txt     no group
Your files can get a group of yours; an administrator can set any group. For a directory whose new files get its group:
chgrp staff DIR, then chmod 2770 DIR.")]
pub(crate) struct ChgrpArgs {
    /// Group, or `none`.
    pub(crate) group: String,
    /// Stored files or directories.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a commented configuration file with every key.
    #[command(after_help = "\
Examples:
  sealstone config example osd > osd.toml
  sealstone config example mds > mds.toml")]
    Example {
        /// `osd` or `mds`.
        daemon: String,
    },
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone demo
  sealstone demo --tree ~/projects --large 1G --keep")]
pub(crate) struct DemoArgs {
    /// Folder to store.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) tree: PathBuf,
    /// Size of the large file.
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    pub(crate) large: u64,
    /// Keep the folder of the demo.
    #[arg(long)]
    pub(crate) keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::tree().debug_assert();
    }

    #[test]
    fn reference_names_every_command() {
        let reference = include_str!("../../docs/reference/cli.md");
        let json = include_str!("../../docs/reference/json.md");
        let names_json =
            |command: &str| assert!(json.contains(&format!("`{command}`")), "json.md: {command}");
        for command in Cli::tree().get_subcommands().filter(|command| command.get_name() != "help") {
            let nested: Vec<&clap::Command> = command.get_subcommands().collect();
            if nested.is_empty() {
                assert!(reference.contains(&format!("`{}`", command.get_name())), "{}", command.get_name());
                names_json(command.get_name());
            }
            for verb in nested.iter().filter(|verb| verb.get_name() != "help") {
                let both = format!("`{} {}`", command.get_name(), verb.get_name());
                assert!(reference.contains(&both), "{both}");
                let has_below = verb.get_subcommands().next().is_some();
                for below in verb.get_subcommands().filter(|below| below.get_name() != "help") {
                    names_json(&format!("{} {} {}", command.get_name(), verb.get_name(), below.get_name()));
                }
                if !has_below {
                    names_json(both.trim_matches('`'));
                }
            }
        }
    }

    /// Every command has examples, and all of them parse.
    #[test]
    fn examples_of_all_commands_parse() {
        fn visit(command: &mut clap::Command, examples: &mut Vec<String>) {
            let name = command.get_name().to_owned();
            if name == "help" {
                return;
            }
            let leaf = command.get_subcommands().all(|verb| verb.get_name() == "help");
            let help = command.render_long_help().to_string();
            assert!(!leaf || help.contains("Example"), "{name} has no example");
            let lines = help.lines().filter_map(|line| line.strip_prefix("  sealstone "));
            examples.extend(lines.map(str::to_owned));
            command.get_subcommands_mut().for_each(|verb| visit(verb, examples));
        }
        let mut examples = Vec::new();
        let mut all = Cli::tree().max_term_width(1000);
        all.build();
        visit(&mut all, &mut examples);
        assert!(examples.len() > 40, "{examples:?}");
        for example in examples {
            let words = help::example_words(&example);
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{words:?}: {error}");
            }
        }
    }

    #[test]
    fn no_option_takes_a_secret() {
        fn visit(command: &clap::Command) {
            for argument in command.get_arguments() {
                let name = argument.get_id().as_str();
                assert!(
                    !(name.contains("password") || name.contains("secret"))
                        || name.ends_with("file")
                        || name == "password",
                    "{name}"
                );
            }
            command.get_subcommands().for_each(visit);
        }
        visit(&Cli::tree());
    }
}
