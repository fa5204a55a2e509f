//! Accounts and groups on the command line, and how people and programs log in.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sealstone_client::Role;

use super::grants::Patience;

#[derive(Debug, Subcommand)]
pub(crate) enum User {
    /// Add an account. The password never leaves this machine: only its OPAQUE record does.
    #[command(after_help = "\
Examples:
  sealstone user add alice                              asks for the password
  sealstone user add carol --enrol                      prints a code; carol chooses her password herself
  sealstone user add dave --enrol --code-file dave.code --hours 72 --role read-only
  sealstone user add erika --directory --enrol          the LDAP directory says whether she is there, and her groups
  sealstone user add backup --service --key-file backup.key
  sealstone user add root --role admin --password-file root.pw
Roles: admin may do everything; operator has devices, but neither files nor accounts; user has files; read-only reads
them.")]
    Add {
        /// Name of the account.
        name: String,
        /// What it may do: admin, operator, user or read-only.
        #[arg(long, default_value = "user", value_parser = parse_role, value_name = "ROLE")]
        role: Role,
        /// The same as --role admin.
        #[arg(long, conflicts_with = "role")]
        admin: bool,
        /// Make a code that is good once, with which the user chooses the password: `sealstone enrol`.
        #[arg(long, conflicts_with = "service")]
        enrol: bool,
        #[command(flatten)]
        code: Code,
        /// The LDAP directory that the server is configured with says whether the user exists and which groups he is in.
        #[arg(long, requires = "enrol")]
        directory: bool,
        /// An account for a program: it logs in with a key file, never with a password.
        #[arg(long, requires = "key_file")]
        service: bool,
        /// Where the key of a service is written (mode 0600).
        #[arg(long, value_name = "FILE", requires = "service")]
        key_file: Option<PathBuf>,
        #[command(flatten)]
        password: Password,
    },
    /// Make a code with which a user chooses a new password; the old one is good until then.
    #[command(after_help = "\
Examples:
  sealstone user reset alice
  sealstone user reset alice --code-file alice.code --hours 1")]
    Reset {
        /// Name of the account.
        name: String,
        #[command(flatten)]
        code: Code,
    },
    /// Give an account another role; its sessions end.
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
    /// Make a second key for a service, good beside the first until that is retired.
    #[command(after_help = "\
Examples:
  sealstone user rotate-key backup --key-file backup-new.key                        as an administrator
  sealstone user rotate-key backup --old-key backup.key --key-file backup-new.key   as the service itself")]
    RotateKey {
        /// Name of the service.
        name: String,
        /// Where the new key is written (mode 0600).
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// The key in use, for a service that does it itself; administrators need none.
        #[arg(long, value_name = "FILE")]
        old_key: Option<PathBuf>,
    },
    /// Take a key from a service that has two; the sessions opened with it end.
    #[command(after_help = "\
Examples:
  sealstone user retire-key backup --key-file backup.key
  sealstone user retire-key backup --suite 0101          without the file; `user list` shows the suites")]
    RetireKey {
        /// Name of the service.
        name: String,
        /// The key.
        #[arg(long, value_name = "FILE", required_unless_present = "suite")]
        key_file: Option<PathBuf>,
        /// Its suite, 0101 or 0102.
        #[arg(long, value_name = "HEX", conflicts_with = "key_file", value_parser = parse_suite)]
        suite: Option<u16>,
    },
    /// List accounts.
    #[command(after_help = "\
Example:
  sealstone user list")]
    #[command(visible_alias = "ls")]
    List,
    /// Change a password: your own, which you are asked for first, or as an administrator anybody's.
    #[command(after_help = "\
Examples:
  sealstone user passwd
  sealstone user passwd --old-password-file old.pw --password-file new.pw
  sealstone user passwd alice --password-file alice.pw")]
    Passwd {
        /// Name of the account [default: your own].
        name: Option<String>,
        /// File whose first line is your password until now (mode 0600), or `-` for standard input; asked for on the
        /// terminal otherwise.
        #[arg(long, value_name = "FILE")]
        old_password_file: Option<PathBuf>,
        #[command(flatten)]
        password: Password,
    },
    /// Give an account a passphrase for the paper's login, or take it away (administrators).
    ///
    /// Insecure: what the server keeps is as good as the passphrase, and whoever records a login finds the passphrase
    /// with a word list. Use one that is used nowhere else. An account that is not there is made, and then logs in by
    /// the paper's login alone. The server must run with --insecure-paper-login.
    #[command(after_help = "\
Examples:
  sealstone user paper alice --password-file paper.pw
  sealstone user paper alice --remove")]
    Paper {
        /// Name of the account.
        name: String,
        /// Take the passphrase away.
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        password: Password,
    },
    /// Let an account log in again.
    #[command(after_help = "\
Example:
  sealstone user enable alice")]
    Enable {
        /// Name of the account.
        name: String,
    },
    /// Keep an account from logging in, end its sessions and revoke its credentials.
    #[command(after_help = "\
Examples:
  sealstone user disable alice
  sealstone user disable alice --wait 60      fails if a device has not refused in a minute
  sealstone user disable alice --no-wait      do not wait for any device
The account is disabled and its sessions are over when the metadata server has answered. It tells how long it took until
the last device refused what alice holds. Devices that are away for longer than ten seconds are named, and under --json listed
as `pending`; they are told when they come back, whether somebody waits or not.")]
    Disable {
        /// Name of the account.
        name: String,
        #[command(flatten)]
        wait: Patience,
    },
    /// Remove an account and revoke its credentials; its files stay.
    #[command(after_help = "\
Example:
  sealstone user rm alice
Devices that are away are told of as by `sealstone user disable`.")]
    Rm {
        /// Name of the account.
        name: String,
        #[command(flatten)]
        wait: Patience,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Group {
    /// Add a group, with members if they are named.
    #[command(after_help = "\
Examples:
  sealstone group add staff
  sealstone group add staff alice bob")]
    Add {
        /// Name of the group.
        name: String,
        /// Accounts to be members.
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
    /// Make accounts members.
    #[command(after_help = "\
Example:
  sealstone group join staff alice bob")]
    Join {
        /// Name of the group.
        name: String,
        /// Accounts.
        #[arg(required = true)]
        users: Vec<String>,
    },
    /// End memberships, from the accounts' next request on.
    #[command(after_help = "\
Example:
  sealstone group leave staff bob")]
    Leave {
        /// Name of the group.
        name: String,
        /// Accounts.
        #[arg(required = true)]
        users: Vec<String>,
    },
    /// Remove a group; its files keep the name, which then gives nobody a right.
    #[command(after_help = "\
Example:
  sealstone group rm staff")]
    Rm {
        /// Name of the group.
        name: String,
    },
}

/// An enrolment code's file and life.
#[derive(Args, Clone, Debug)]
pub(crate) struct Code {
    /// Write the code to this file (mode 0600) instead of printing it.
    #[arg(long, value_name = "FILE")]
    pub(crate) code_file: Option<PathBuf>,
    /// Hours that the code is good for.
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=720))]
    pub(crate) hours: u32,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone enrol --user carol --cluster cluster.toml                        asks for code and password
  sealstone enrol --user carol --cluster cluster.toml --code-file carol.code
A code is good once. Log in with the new password afterwards.")]
pub(crate) struct Enrol {
    /// Name of the account.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: String,
    /// Private file (mode 0600) with the code; asked for on the terminal otherwise.
    #[arg(long, value_name = "FILE")]
    pub(crate) code_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(flatten)]
    pub(crate) password: Password,
}

/// Where the metadata server is, and how to know it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Server {
    /// Cluster file that `up` and `mds serve` write: address and pin in one.
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

/// Where a password comes from; asked for on the terminal otherwise. Never an argument.
#[derive(Args, Clone, Debug)]
pub(crate) struct Password {
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
pub(crate) struct Login {
    /// Name of the account.
    #[arg(required_unless_present = "key_file")]
    pub(crate) name: Option<String>,
    /// Key file of a service (mode 0600), which also says its name.
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub(crate) key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: Server,
    /// Log in as a paper has it, at the address of the server's --insecure-paper-login. Insecure: whoever records it
    /// finds the passphrase with a word list. On a loopback address alone.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["mds", "pin", "key_file"])]
    pub(crate) paper_profile: Option<String>,
    /// Ask for the server's cookie before anything is computed.
    #[arg(long, requires = "paper_profile")]
    pub(crate) conservative: bool,
    /// Let --paper-profile be used beyond loopback.
    #[arg(long, requires = "paper_profile")]
    pub(crate) i_accept_insecure: bool,
    #[command(flatten)]
    pub(crate) password: Password,
}
