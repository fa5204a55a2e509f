//! Arguments of `user`, `group`, `enrol` and `login`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sealstone_client::Role;

use super::grants::SideEffectWait;

#[derive(Debug, Subcommand)]
pub(crate) enum User {
    /// Add an account. The server receives an OPAQUE record, not the password.
    #[command(after_help = "\
Examples:
  sealstone user add alice                              prompts for the password
  sealstone user add carol --enrol                      prints a one-time code; carol sets her password
  sealstone user add dave --enrol --code-file dave.code --hours 72 --role read-only
  sealstone user add erika --directory --enrol          an account of the LDAP directory
  sealstone user add backup --service --key-file backup.key
  sealstone user add root --role admin --password-file root.pw
Roles: admin: everything; operator: devices, but neither files nor accounts; user: files; read-only: reading files.")]
    Add {
        /// Name of the account.
        name: String,
        /// Role: admin, operator, user or read-only.
        #[arg(long, default_value = "user", value_parser = parse_role, value_name = "ROLE")]
        role: Role,
        /// Short for --role admin.
        #[arg(long, conflicts_with = "role")]
        admin: bool,
        /// Create a one-time code, with which the user sets the password: `sealstone enrol`.
        #[arg(long, conflicts_with = "service")]
        enrol: bool,
        #[command(flatten)]
        code: CodeArgs,
        /// The LDAP directory of the server decides about existence and groups of the user.
        #[arg(long, requires = "enrol")]
        directory: bool,
        /// Account of a program: it logs in with a key file instead of a password.
        #[arg(long, requires = "key_file")]
        service: bool,
        /// File for the key of the service (mode 0600).
        #[arg(long, value_name = "FILE", requires = "service")]
        key_file: Option<PathBuf>,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Create a one-time code for a new password; the old one is valid until then.
    #[command(after_help = "\
Examples:
  sealstone user reset alice
  sealstone user reset alice --code-file alice.code --hours 1")]
    Reset {
        /// Name of the account.
        name: String,
        #[command(flatten)]
        code: CodeArgs,
    },
    /// Change the role of an account; its sessions end.
    #[command(after_help = "\
Examples:
  sealstone user role alice operator
  sealstone user role bob read-only")]
    Role {
        /// Name of the account.
        name: String,
        /// admin, operator, user or read-only.
        #[arg(value_parser = parse_role)]
        role: Role,
    },
    /// Create a second key for a service; both are valid until the first is retired.
    #[command(after_help = "\
Examples:
  sealstone user rotate-key backup --key-file backup-new.key                        as an administrator
  sealstone user rotate-key backup --old-key backup.key --key-file backup-new.key   as the service itself")]
    RotateKey {
        /// Name of the service.
        name: String,
        /// File for the new key (mode 0600).
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// Current key, if the service itself rotates it; administrators need none.
        #[arg(long, value_name = "FILE")]
        old_key: Option<PathBuf>,
    },
    /// Retire one of two keys of a service; its sessions end.
    #[command(after_help = "\
Examples:
  sealstone user retire-key backup --key-file backup.key
  sealstone user retire-key backup --suite 0101          without the file; `user list` shows the suites")]
    RetireKey {
        /// Name of the service.
        name: String,
        /// Key file to be retired.
        #[arg(long, value_name = "FILE", required_unless_present = "suite")]
        key_file: Option<PathBuf>,
        /// Suite of the key, 0101 or 0102.
        #[arg(long, value_name = "HEX", conflicts_with = "key_file", value_parser = parse_suite)]
        suite: Option<u16>,
    },
    /// List accounts.
    #[command(after_help = "\
Example:
  sealstone user list")]
    #[command(visible_alias = "ls")]
    List,
    /// Change your own password, or as an administrator that of another account.
    #[command(after_help = "\
Examples:
  sealstone user passwd
  sealstone user passwd --old-password-file old.pw --password-file new.pw
  sealstone user passwd alice --password-file alice.pw")]
    Passwd {
        /// Name of the account [default: your own].
        name: Option<String>,
        /// File whose first line is your old password (mode 0600), or `-` for standard input
        /// [default: prompt].
        #[arg(long, value_name = "FILE")]
        old_password_file: Option<PathBuf>,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Set or remove an account's passphrase for the paper's login (administrators).
    ///
    /// Insecure: the server stores a passphrase equivalent, and a recorded login can be attacked
    /// with a word list. Use a passphrase that is used nowhere else. A missing account is created
    /// and can then use only the paper's login. The server must run with --insecure-paper-login.
    #[command(after_help = "\
Examples:
  sealstone user paper alice --password-file paper.pw
  sealstone user paper alice --remove")]
    Paper {
        /// Name of the account.
        name: String,
        /// Remove the passphrase.
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Enable the login of an account.
    #[command(after_help = "\
Example:
  sealstone user enable alice")]
    Enable {
        /// Name of the account.
        name: String,
    },
    /// Disable the login of an account, end its sessions and revoke its credentials.
    #[command(after_help = "\
Examples:
  sealstone user disable alice
  sealstone user disable alice --wait 60      fails if a device does not confirm within a minute
  sealstone user disable alice --no-wait      do not wait for any device
The account is disabled and its sessions end when the metadata server responds. The command then waits until the last
device refuses the credentials. Devices that are unavailable for ten seconds are listed (`pending` with --json); the metadata
server informs them when they return.")]
    Disable {
        /// Name of the account.
        name: String,
        #[command(flatten)]
        wait: SideEffectWait,
    },
    /// Remove an account and revoke its credentials; its files stay.
    #[command(after_help = "\
Example:
  sealstone user rm alice
Unavailable devices are listed as by `sealstone user disable`.")]
    Rm {
        /// Name of the account.
        name: String,
        #[command(flatten)]
        wait: SideEffectWait,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Group {
    /// Add a group, with optional members.
    #[command(after_help = "\
Examples:
  sealstone group add staff
  sealstone group add staff alice bob")]
    Add {
        /// Name of the group.
        name: String,
        /// Names of the members.
        users: Vec<String>,
    },
    /// List groups.
    #[command(after_help = "\
Example:
  sealstone group list")]
    #[command(visible_alias = "ls")]
    List,
    /// List the members of a group.
    #[command(after_help = "\
Example:
  sealstone group members staff")]
    Members {
        /// Name of the group.
        name: String,
    },
    /// Add accounts to a group.
    #[command(after_help = "\
Example:
  sealstone group join staff alice bob")]
    Join {
        /// Name of the group.
        name: String,
        /// Names of the accounts.
        #[arg(required = true)]
        users: Vec<String>,
    },
    /// Remove accounts from a group.
    #[command(after_help = "\
Example:
  sealstone group leave staff bob")]
    Leave {
        /// Name of the group.
        name: String,
        /// Names of the accounts.
        #[arg(required = true)]
        users: Vec<String>,
    },
    /// Remove a group. Its files keep the name, which grants no rights then.
    #[command(after_help = "\
Example:
  sealstone group rm staff")]
    Rm {
        /// Name of the group.
        name: String,
    },
}

/// File and validity of an enrolment code.
#[derive(Args, Clone, Debug)]
pub(crate) struct CodeArgs {
    /// Write the code to this file (mode 0600) instead of printing it.
    #[arg(long, value_name = "FILE")]
    pub(crate) code_file: Option<PathBuf>,
    /// Validity of the code, hours.
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=720))]
    pub(crate) hours: u32,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone enrol --user carol --cluster cluster.toml                        prompts for code and password
  sealstone enrol --user carol --cluster cluster.toml --code-file carol.code
A code is valid once. Then log in with the new password.")]
pub(crate) struct EnrolArgs {
    /// Name of the account.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: String,
    /// Private file (mode 0600) with the code [default: prompt].
    #[arg(long, value_name = "FILE")]
    pub(crate) code_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) password: PasswordArgs,
}

/// Address and pin of the metadata server.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// Cluster file with address and pin, which `up` and `mds serve` write.
    #[arg(long, env = "SEALSTONE_CLUSTER", value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// Address of the metadata server.
    #[arg(long, value_name = "HOST:PORT", requires = "pin")]
    pub(crate) mds: Option<String>,
    /// SHA-256 of the server's certificate.
    #[arg(long, value_name = "sha256:HEX", requires = "mds")]
    pub(crate) pin: Option<String>,
}

fn parse_role(text: &str) -> Result<Role, String> {
    Role::from_name(text).ok_or_else(|| "must be admin, operator, user or read-only".to_owned())
}

fn parse_suite(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 16).map_err(|_| "must be four hex digits such as 0101".to_owned())
}

/// Source of a password; by default a prompt on the terminal.
#[derive(Args, Clone, Debug)]
pub(crate) struct PasswordArgs {
    /// File whose first line is the password (mode 0600), or `-` for standard input.
    #[arg(long, env = "SEALSTONE_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone login alice --cluster /srv/mds/cluster.toml
  sealstone login alice --mds 10.0.0.5:3270 --pin sha256:4f0c…
  sealstone login --key-file backup.key --cluster cluster.toml      a service
  sealstone login alice --paper-profile 127.0.0.1:3271              insecure, to reproduce a paper
The pin is the SHA-256 of the server's certificate: `mds serve` and `up` print it.")]
pub(crate) struct LoginArgs {
    /// Name of the account.
    #[arg(required_unless_present = "key_file")]
    pub(crate) name: Option<String>,
    /// Key file of a service (mode 0600); it has the name of the account.
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub(crate) key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Use the paper's login, at the address of the server's --insecure-paper-login. Insecure: a
    /// recorded login can be attacked with a word list. Loopback addresses only.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["mds", "pin", "key_file"])]
    pub(crate) paper_profile: Option<String>,
    /// Request the server's cookie before computing anything.
    #[arg(long, requires = "paper_profile")]
    pub(crate) conservative: bool,
    /// Allow --paper-profile beyond loopback.
    #[arg(long, requires = "paper_profile")]
    pub(crate) i_accept_insecure: bool,
    #[command(flatten)]
    pub(crate) password: PasswordArgs,
}
