//! The command line: every noun, verb, flag and variable, with examples in the help texts.

pub(crate) mod alternatives;
mod block;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod drain;
pub(crate) mod grants;
pub(crate) mod keys;
pub(crate) mod mount;
pub(crate) mod rebalance;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use sealstone_channel::Pin;

mod names;
mod people;
pub(crate) mod quota;
pub(crate) mod store;
mod stored;
mod transfer;

pub(crate) use block::Block;
pub(crate) use names::{Ln, Mkdir, Mv};
pub(crate) use people::{Code, Enrol, Group, Login, Password, Server, User};
pub(crate) use stored::StoredPath;
pub(crate) use transfer::{Cat, Get, MethodName, Put};

use crate::config::{MdsOptions, OsdOptions};
use crate::daemon::mds::JOIN_S_MAX;
use crate::logging::LogFormat;
use crate::output::parse_size;

/// Secure object storage: devices that check every command, a metadata server, clients that talk straight to both.
#[derive(Debug, Parser)]
#[command(
    name = "sealstone",
    version,
    max_term_width = 110,
    arg_required_else_help = true,
    after_help = "\
Examples:
  sealstone demo                             see it work, and see attacks refused, in a minute
  sealstone up --data ~/sealstone            keep a small system running on this machine
  sealstone login admin --cluster ~/sealstone/cluster.toml --password-file ~/sealstone/admin-secret
  sealstone put -r photos /photos            store a folder
  sealstone get /photos/cat.jpg -            write a file to standard output

Exit codes: 0 ok, 1 the operation failed, 2 usage, 3 access denied, 4 not found."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses a command line and its environment; a flag wins over a variable that it excludes.
    pub(crate) fn parse_words(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().collect();
        let mut command = Self::command();
        let mut matches = command.try_get_matches_from_mut(&words)?;
        let (path, overridden) = alternatives::overridden(&command, &matches)?;
        if !overridden.is_empty() {
            command = alternatives::without_variables(Self::command(), &path, &overridden);
            matches = command.try_get_matches_from_mut(&words)?;
        }
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    }
}

/// Options that every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// Print JSON: one line on standard output, errors as one JSON line on standard error.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// No progress bars, no remarks.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Stored paths and link targets are escaped as they are displayed: `\xNN` is a byte, `\\` a backslash. Without this
    /// every byte stands for itself.
    #[arg(long, global = true)]
    pub(crate) escaped: bool,
    /// The session file [default: $XDG_STATE_HOME/sealstone/session.toml].
    #[arg(long, global = true, env = "SEALSTONE_SESSION", value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,
    /// Private file (mode 0600) with our CHAP accounts, for devices that ask who logs in.
    #[arg(long, global = true, env = "SEALSTONE_CHAP_FILE", value_name = "FILE")]
    pub(crate) chap_file: Option<PathBuf>,
    /// TLS to devices: auto is inside TLS whenever the device's certificate is known; required is not at all otherwise; off is
    /// never, for devices of this machine.
    #[arg(long, global = true, env = "SEALSTONE_DEVICE_TLS", default_value = "auto", value_name = "WHEN")]
    pub(crate) device_tls: DeviceTls,
    /// Conceal the security method of each command by the ESM paper's cipher, for devices with --method-cipher. It protects
    /// nothing.
    #[arg(long, global = true, env = "SEALSTONE_CONCEAL_METHOD")]
    pub(crate) conceal_method: bool,
    /// How log lines look. `SEALSTONE_LOG` takes a filter such as `info,sealstone_device=debug`.
    #[arg(long, global = true, env = "SEALSTONE_LOG_FORMAT", default_value = "auto")]
    pub(crate) log_format: LogFormat,
}

/// When devices are talked to inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceTls {
    /// Whenever the device's certificate is known.
    Auto,
    /// Always; a device whose certificate is not known is not talked to.
    Required,
    /// Never; only devices of this machine are talked to if their certificate is known.
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
    Up(Up),
    /// Devices: `init` formats one, `serve` runs its daemon, `check` reads one that rests, `drain` empties one,
    /// `rebalance` makes them equally full.
    #[command(subcommand)]
    Osd(Osd),
    /// Have a running device read everything against its checksums, and show what is damaged.
    Scrub(Scrub),
    /// Block units of a device: disks for any iSCSI initiator.
    #[command(subcommand)]
    Block(Block),
    /// The metadata server: `init`, `serve`, and `add-osd` to take over a device.
    #[command(subcommand)]
    Mds(Mds),
    /// Accounts (administrators).
    #[command(subcommand)]
    User(User),
    /// Groups (administrators).
    #[command(subcommand)]
    Group(Group),
    /// Choose the password of your new account with the code that you were given.
    Enrol(Enrol),
    /// Log in; the session is kept in a file that only you can read.
    Login(Login),
    /// End the session.
    #[command(after_help = "\
Examples:
  sealstone logout
  sealstone logout --revoke     credentials that the session was given become worthless, too
Without --revoke devices accept those until they expire, some minutes at most; capability files for longer. With it the
command tells how many there are; the metadata server goes on until each device has answered.")]
    Logout {
        /// Have the credentials revoked that the session was given, capability files among them.
        #[arg(long)]
        revoke: bool,
    },
    /// Who is logged in, where, until when.
    #[command(after_help = "\
Examples:
  sealstone whoami
  sealstone --json whoami")]
    Whoami,
    /// Store files.
    Put(Put),
    /// Fetch files.
    Get(Get),
    /// Write files to standard output.
    Cat(Cat),
    /// List a directory.
    Ls(Ls),
    /// Everything known about a file, and why it lies on the devices that it lies on.
    #[command(after_help = "\
Examples:
  sealstone stat /docs/report.pdf
  sealstone --json stat /docs/report.pdf | jq -r .checksum
  sealstone --json stat /backup/photos.tar | jq .placement.reason.why")]
    Stat(Paths),
    /// Make directories.
    Mkdir(Mkdir),
    /// Move or rename.
    Mv(Mv),
    /// Give a file another name, or with -s make a symbolic link.
    Ln(Ln),
    /// Remove files, or with -r whole trees.
    Rm(Rm),
    /// Change permission bits.
    Chmod(Chmod),
    /// Change the owner, or owner and group (administrators).
    Chown(Chown),
    /// Change the group: of your files to a group of yours, or as an administrator of any to any.
    Chgrp(Chgrp),
    /// Capability files: a part of one file for a program that never logs in.
    #[command(subcommand)]
    Cap(grants::Cap),
    /// End credentials before they expire: of a file, of a partition, of a user.
    Revoke(grants::Revoke),
    /// Who could touch a file, when, by which credential.
    Audit(grants::Audit),
    /// Limits on what a user owns, or on what lies in a directory, and how much of them is in use.
    #[command(subcommand)]
    Quota(quota::Quota),
    /// Look through everything on record, and what lies on every device, for what does not fit.
    Check(check::Check),
    /// Make stored files a part of this machine's file system.
    Mount(mount::Mount),
    /// End a mount; everything that was closed is durable then.
    Umount(mount::Umount),
    /// Space, over all and by device.
    #[command(after_help = "\
Example:
  sealstone df")]
    Df,
    /// Configuration files.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Shell completion.
    #[command(after_help = "\
Example:
  sealstone completion bash > ~/.local/share/bash-completion/completions/sealstone")]
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Store real files on three devices, then attack them: what the product is for, in a minute.
    Demo(Demo),
}

/// What `up` runs.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone up                               data in ./sealstone-data, three devices of 10 GiB (sparse)
  sealstone up --data /srv/sealstone --osds 5 --capacity 100G
  sealstone up --listen localhost:4270 --osd-port 5000
  sealstone up --json | head -1              one line when ready, for scripts")]
pub(crate) struct Up {
    /// Folder of the system; made on first use.
    #[arg(long, env = "SEALSTONE_DATA", default_value = "sealstone-data", value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Devices to create on first use [default: 3]; later runs use those that exist.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) osds: Option<u16>,
    /// Address of the metadata server; devices listen on the ports above it. Port 0 takes free ports.
    #[arg(long, default_value = "127.0.0.1:3270", value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// Port of the first device on first use, the others follow; 0 takes free ports [default: the one above --listen].
    #[arg(long, value_name = "PORT")]
    pub(crate) osd_port: Option<u16>,
    /// Capacity of each device on first use; the files are sparse.
    #[arg(long, default_value = "10G", value_parser = parse_size, value_name = "SIZE")]
    pub(crate) capacity: u64,
    /// Address of /metrics and /healthz of the whole process.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Osd {
    /// Format a device and write its initial master key to a file.
    #[command(after_help = "\
Example:
  sealstone osd init --data /srv/osd1 --capacity 1T --name osd1 --key-out osd1.key
  sealstone osd init --data /srv/osd3 --capacity 500G --preallocate
  sealstone osd init --data /srv/osd2 --device /dev/disk/by-id/nvme-example
The key file is what `sealstone mds add-osd` wants; guard it, and delete it once the device is added.")]
    Init {
        /// Folder of the device; must be empty or not exist.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Capacity; the files are sparse. With --device all that the device can take, if left out.
        #[arg(long, value_parser = parse_size, value_name = "SIZE", required_unless_present = "device")]
        capacity: Option<u64>,
        /// Take all space of the files from the file system now: they are not sparse, and nobody else can take it.
        #[arg(long, conflicts_with = "device")]
        preallocate: bool,
        /// Keep objects on this block device instead of in files; it must be blank and not in use.
        #[arg(long, value_name = "PATH")]
        device: Option<PathBuf>,
        /// Overwrite whatever the block device carries.
        #[arg(long, requires = "device")]
        force: bool,
        /// Name of the device, part of its iSCSI name [default: the folder's name].
        #[arg(long)]
        name: Option<String>,
        /// Where the initial master key is written [default: DIR/initial.key].
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
    /// Give a device that does not run a new initial key, when its metadata server lost its keys. Objects stay.
    #[command(after_help = "\
Example:
  sealstone osd new-key --data /srv/osd1 --key-out osd1.key
Then start the device, and: sealstone mds add-osd URL --key osd1.key")]
    NewKey {
        /// Folder of the device.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Where the new key goes, for `mds add-osd` [default: DIR/initial.key].
        #[arg(long, value_name = "FILE")]
        key_out: Option<PathBuf>,
    },
    /// The clock of a device on this machine.
    #[command(subcommand)]
    Clock(clock::Clock),
    /// Let a device that an operator added hold files (administrators).
    #[command(after_help = "\
Examples:
  sealstone osd approve osd7
  sealstone --json osd approve osd7 | jq .state
Shows name, address, system id and certificate of the device, and waits until it takes objects. From then on the device is given
bytes of users, so compare its certificate with what `osd serve` prints there first. A device that an administrator adds needs none.")]
    Approve {
        /// Name of the device, as `sealstone df` lists it.
        device: String,
        /// Only show what would be approved.
        #[arg(long)]
        show: bool,
        /// Seconds to wait until it takes objects.
        #[arg(long, default_value_t = JOIN_S_MAX, value_name = "SECONDS")]
        wait: u64,
    },
    /// Move all files away from a device, so that it can be taken out (administrators and operators).
    Drain(drain::Drain),
    /// Make devices equally full, after one was added (administrators and operators).
    Rebalance(rebalance::Rebalance),
    /// Read everything of a device that does not run against its checksums; exit code 1 if anything is damaged.
    #[command(after_help = "\
Examples:
  sealstone osd check --data /srv/osd1
  sealstone osd check --data /srv/osd1 --repair
  sealstone --json osd check --data /srv/osd1 | jq '.findings[].object'
Nothing is written without --repair. Damaged bytes come back only from a good copy: put the file again once the
device runs, or bring the folder back from a backup.")]
    Check {
        /// Folder of the device; it must not run.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Note on the objects what is damaged, and take back what was noted and is sound again.
        #[arg(long)]
        repair: bool,
    },
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone scrub --data /srv/osd1           begin (or join) a scrub and follow it to its end
  sealstone scrub osd2 --data ~/sealstone    one device of `sealstone up`; without a name all of them
  sealstone scrub --data /srv/osd1 --show    how far it is, and what is damaged
  sealstone scrub --data /srv/osd1 --stop    not now; the next one begins when it is due
  sealstone --json scrub --data /srv/osd1 --show | jq '.[].damaged'
Exit code 1 if anything is damaged. What is written anew is sound again, without another scrub.")]
pub(crate) struct Scrub {
    /// Name of a device in the folder of `sealstone up`.
    pub(crate) device: Option<String>,
    /// Folder of the device, or of `sealstone up`; the device must run.
    #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Only show how it stands.
    #[arg(long, conflicts_with = "stop")]
    pub(crate) show: bool,
    /// End the scrub that is under way.
    #[arg(long)]
    pub(crate) stop: bool,
    /// Begin it and do not wait for its end.
    #[arg(long, conflicts_with_all = ["show", "stop"])]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Mds {
    /// Make a metadata server: store, keystore, certificate, administrator.
    #[command(after_help = "\
Examples:
  sealstone mds init --data /srv/mds
  sealstone mds init --data /srv/mds --passphrase-file mds.passphrase   the keystore opens with a passphrase only
  sealstone mds init --data /srv/mds --meta postgres://sealstone@db.example.org/sealstone --meta-ca-file db-ca.pem \
--meta-password-file db.password
  sealstone mds init --data /srv/mds --meta ldaps://cn=fs,dc=org@ldap.example.org/ou=fs,dc=org \
--meta-ca-file ldap-ca.pem --meta-password-file ldap.password")]
    Init {
        /// Folder of the server; must be empty or not exist.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        keystore: keys::Keystore,
        #[command(flatten)]
        meta: store::Meta,
    },
    /// Make another server beside one whose metadata is in a database.
    #[command(after_help = "\
Example:
  sealstone mds join --data /srv/mds2 --from /srv/mds
It gets the keystore, the certificate and the place of the database; the authority's key stays where it is.")]
    Join(store::Join),
    /// Write all records of the metadata store into a file, its secrets sealed as they are, to import it elsewhere.
    #[command(after_help = "\
Example:
  sealstone mds export meta.export --data /srv/mds
Stop the servers first: what they do later is not in it. A copy for bad days is `mds backup`: this has no keystore.")]
    Export(store::Export),
    /// Put exported records into an empty store, which is the server's from then on; or check such a file.
    #[command(after_help = "\
Examples:
  sealstone mds import meta.export --data /srv/mds --meta postgres://sealstone@localhost/sealstone
  sealstone mds import meta.export --data /srv/mds      back into a file of the folder
  sealstone mds import meta.export                      checks it only")]
    Import(store::Import),
    /// The clock of a metadata server on this machine.
    #[command(subcommand)]
    Clock(clock::Clock),
    /// Keys of the devices, and the keystore that keeps them.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Write everything that a server knows, its keys too, into one sealed file. The server must not run.
    #[command(after_help = "\
Example:
  sealstone mds backup --data /srv/mds --to mds.backup --backup-passphrase-file backup.passphrase")]
    Backup(keys::Backup),
    /// Make a server of a backup, or check one.
    #[command(after_help = "\
Examples:
  sealstone mds restore --from mds.backup --backup-passphrase-file backup.passphrase --data /srv/new
  sealstone mds restore --from mds.backup --backup-passphrase-file backup.passphrase      checks it only")]
    Restore(keys::Restore),
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
    /// Ask the LDAP directory of users about somebody as the server would, to try its configuration.
    #[command(after_help = "\
Examples:
  sealstone mds directory erika --config /etc/sealstone/mds.toml
  sealstone mds directory erika --directory-url ldaps://ldap.example.org --directory-ca-file ca.pem \
--directory-user-base ou=people,dc=example,dc=org --directory-group-base ou=groups,dc=example,dc=org
Exit code 4: the directory has nobody of that name who may work here; 3: his account there is closed; 1: it does not answer.")]
    Directory {
        /// Name of the user.
        name: String,
        /// Configuration file of the server.
        #[arg(long, env = "SEALSTONE_MDS_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        options: MdsOptions,
    },
    /// Sign a certificate for a device with the cluster's own authority, which clients may pin once for all devices.
    #[command(after_help = "\
Example:
  sealstone mds issue-certificate --data /srv/mds --key osd1.key --out osd1-tls
Carry the files of the folder into the device's folder, and add the device with `--pin ca-sha256:…` as it is printed.
Without this a device has a certificate of its own, which is pinned itself.")]
    IssueCertificate {
        /// Folder of the server: the authority's key is in it.
        #[arg(long, env = "SEALSTONE_MDS_DATA", value_name = "DIR")]
        data: PathBuf,
        /// The device's initial key file: it says the device's system id and name.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Folder for certificate and key; made if it is not there.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Days that the certificate is good for.
        #[arg(long, default_value_t = 3653, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..))]
        days: u16,
    },
    /// Take over a device. One that an operator adds waits for `sealstone osd approve` by an administrator.
    #[command(after_help = "\
Example:
  sealstone mds add-osd iscsi://10.0.0.7:3260/iqn.2026-11.org.sealstone:osd.osd1/0 --key osd1.key --certificate certificate.der
Whoever knows the pin talks to the device inside TLS and not otherwise. Without one it is talked to in plain text,
which a device takes on loopback, or with --tls optional.")]
    AddOsd {
        /// `iscsi://HOST:PORT/IQN/LUN`, as `osd serve` prints it.
        url: String,
        /// The device's initial key file.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// SHA-256 of the device's certificate, as `osd init` and `osd serve` print it; or, as ca-sha256:…, of the authority
        /// that signed it.
        #[arg(long, value_name = "PIN")]
        pin: Option<Pin>,
        /// The device's certificate (certificate.der of its folder) instead of the pin.
        #[arg(long, value_name = "FILE", conflicts_with = "pin")]
        certificate: Option<PathBuf>,
        /// Bytes that it reads or writes in a second, such as 500M, for the choice of devices of large files [default: not
        /// known, or as said before].
        #[arg(long, default_value = "0", hide_default_value = true, value_parser = parse_size, value_name = "SIZE")]
        speed: u64,
        /// Seconds to wait until the device takes objects.
        #[arg(long, default_value_t = 30, value_name = "SECONDS")]
        wait: u64,
    },
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone ls -l /docs
  sealstone ls -r /                 everything
  sealstone --json ls /docs | jq '.[].size'")]
pub(crate) struct Ls {
    /// Directory or file.
    #[arg(default_value = "/")]
    pub(crate) path: OsString,
    /// Mode, owner, size and time.
    #[arg(long, short)]
    pub(crate) long: bool,
    /// With all below.
    #[arg(long, short)]
    pub(crate) recursive: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Paths {
    /// Stored files or directories.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone rm /docs/old.txt
  sealstone rm -r /backup/2025")]
pub(crate) struct Rm {
    /// Stored files or directories.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
    /// Directories with all below them.
    #[arg(long, short)]
    pub(crate) recursive: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  sealstone chmod 600 /docs/private.txt")]
pub(crate) struct Chmod {
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
pub(crate) struct Chown {
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
What is made in a directory with the set-group bit has its group: chgrp staff DIR, then chmod 2770 DIR.")]
pub(crate) struct Chgrp {
    /// Group; `none` for no group.
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
pub(crate) struct Demo {
    /// Folder to store; the current one by default.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) tree: PathBuf,
    /// Size of the one large file.
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    pub(crate) large: u64,
    /// Keep the folder instead of removing it at the end.
    #[arg(long)]
    pub(crate) keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap's own check of names, conflicts and defaults.
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// A command that the reference does not name is one that nobody finds.
    #[test]
    fn the_reference_names_every_command() {
        let reference = include_str!("../../docs/reference/cli.md");
        for command in Cli::command().get_subcommands().filter(|command| command.get_name() != "help") {
            let nested: Vec<&clap::Command> = command.get_subcommands().collect();
            if nested.is_empty() {
                assert!(reference.contains(&format!("`{}`", command.get_name())), "{}", command.get_name());
            }
            for verb in nested.iter().filter(|verb| verb.get_name() != "help") {
                let both = format!("`{} {}`", command.get_name(), verb.get_name());
                assert!(reference.contains(&both), "{both}");
            }
        }
    }

    /// Every command that does something has examples, and every example in a help text is a command line that is taken.
    #[test]
    fn every_command_has_examples_and_they_are_right() {
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
        let mut all = Cli::command().max_term_width(1000);
        all.build();
        visit(&mut all, &mut examples);
        assert!(examples.len() > 40, "{examples:?}");
        for example in examples {
            // What follows two blanks is a remark, what follows a pipe or `>` another matter.
            let line = example.split("  ").next().unwrap_or_default();
            let line = line.split(['|', '>']).next().unwrap_or_default();
            let words = line.split_whitespace().map(|word| word.trim_matches('\''));
            let words: Vec<&str> = core::iter::once("sealstone").chain(words).collect();
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{words:?}: {error}");
            }
        }
    }

    /// No option takes a secret as its value.
    #[test]
    fn no_argument_is_a_secret() {
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
        visit(&Cli::command());
    }
}
