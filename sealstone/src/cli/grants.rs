//! Arguments of `cap`, `revoke` and `audit`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{ArgGroup, Args, Subcommand};
use sealstone_units::{ByteRange, Expiry, parse_byte_range, parse_expiry, parse_partition, parse_size};

use super::MethodName;
use super::functions::CallArgs;

/// Capability files.
#[derive(Debug, Subcommand)]
pub(crate) enum Cap {
    /// Issue a capability file: access to a part of one file without a login.
    #[command(after_help = "\
Examples:
  sealstone cap issue --read --until 30m /data/in.csv -o in.cap
  sealstone cap issue --read --write --range 4K..8K --until 10m /data/table -o table.cap
  sealstone cap issue --execute grep --data /logs/a.log --until 10m -o grep.cap
The file is a secret: it grants access to anyone until it expires or is revoked (`sealstone revoke`). It cannot grant more
than your own rights, and is valid for an hour at most unless the server is configured otherwise. A stored file with a
writable capability loses its recorded checksum.")]
    Issue(IssueArgs),
    /// Show what a capability file allows, without its keys.
    #[command(after_help = "\
Examples:
  sealstone cap show in.cap
  sealstone --json cap show in.cap | jq .expires_ms")]
    Show {
        /// The capability file.
        file: PathBuf,
    },
    /// Read with a capability file, directly from the devices.
    #[command(after_help = "\
Examples:
  sealstone cap get in.cap local.csv
  sealstone cap get in.cap - | wc -l
  sealstone cap get table.cap - --range 4096..4196
The output starts with the first byte of the range.")]
    Get {
        /// The capability file.
        file: PathBuf,
        /// Destination; `-` is standard output.
        #[arg(default_value = "-")]
        place: OsString,
        /// Bytes A..B of the stored file [default: the range of the capability file].
        #[arg(long, value_name = "A..B", value_parser = parse_byte_range)]
        range: Option<ByteRange>,
    },
    /// Write with a capability file, in place, directly to the devices.
    #[command(after_help = "\
Examples:
  sealstone cap put table.cap rows.bin
  produce | sealstone cap put table.cap - --at 4096
Nothing is written outside of the range. The bytes are durable when the command ends.")]
    Put {
        /// The capability file.
        file: PathBuf,
        /// Source; `-` is standard input.
        source: OsString,
        /// Offset of the first byte in the stored file [default: the start of the range].
        #[arg(long, value_name = "OFFSET", value_parser = parse_size)]
        at: Option<u64>,
    },
    /// Run a function with a capability file, directly on the devices.
    #[command(after_help = "\
Examples:
  sealstone cap issue --execute grep --data /logs/a.log --until 10m -o grep.cap
  sealstone cap run grep.cap --pattern error
  sealstone --json cap run count.cap more.cap --by lines | jq .total.count.lines
The function of the first file runs on all files that the capability files permit to read with --data.
Arguments and results are those of `sealstone run`; a job returns at most 64 KiB.")]
    Run(CapRunArgs),
}

/// Arguments of `cap run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CapRunArgs {
    /// Capability file of `cap issue --execute`.
    pub(crate) file: PathBuf,
    /// Further capability files to read whole files with.
    pub(crate) data: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) call: CallArgs,
}

/// Arguments of `cap issue`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("rights").required(true).multiple(true).args(["read", "write", "execute"]))]
pub(crate) struct IssueArgs {
    /// The stored file; with --execute a function: a stored path, or a name in /.functions.
    pub(crate) path: OsString,
    /// Allow reading.
    #[arg(long)]
    pub(crate) read: bool,
    /// Allow writing in place; the length of the file cannot change.
    #[arg(long)]
    pub(crate) write: bool,
    /// Allow running the stored file as a function, but neither reading nor writing it.
    #[arg(long, conflicts_with_all = ["read", "write", "range"])]
    pub(crate) execute: bool,
    /// Stored file that the function may read; repeat it for more, 64 at most.
    #[arg(long, value_name = "PATH", requires = "execute")]
    pub(crate) data: Vec<OsString>,
    /// Bytes A..B, A.. or ..B, with sizes such as 4K or 1M [default: the whole file].
    #[arg(long, value_name = "A..B", value_parser = parse_byte_range)]
    pub(crate) range: Option<ByteRange>,
    /// Expiry: 90s, 30m or 1h from now, or a time in UTC such as 2026-11-22T18:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_expiry)]
    pub(crate) until: Expiry,
    /// The capability file to be written (mode 0600).
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing file.
    #[arg(long)]
    pub(crate) force: bool,
    /// Security method of commands; the server may raise it.
    #[arg(long, env = "SEALSTONE_METHOD", default_value = "alldata", value_name = "METHOD")]
    pub(crate) method: MethodName,
}

/// Parses a time in the past into milliseconds since 1970: `2h` is two hours ago.
fn parse_past(text: &str) -> Result<u64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    sealstone_units::parse_past(text, u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// Arguments of `revoke`.
#[derive(Args, Clone, Debug)]
#[command(
    group = ArgGroup::new("whose").required(true).args(["object", "partition", "user", "list"]),
    after_help = "\
Examples:
  sealstone revoke --object /data/in.csv          all credentials for one file (its owner, administrators)
  sealstone revoke --user bob                     all credentials of bob (administrators)
  sealstone revoke --partition 0x10000            all credentials for a partition, by its key (administrators)
  sealstone revoke --list                         progress, and pending devices
Clients that still have access get new credentials automatically. Revoked capability files must be issued again.
The command waits until the last device refuses. The metadata server informs an unavailable device when it returns."
)]
pub(crate) struct RevokeArgs {
    /// Credentials for this file.
    #[arg(long, value_name = "PATH")]
    pub(crate) object: Option<OsString>,
    /// Credentials for this partition (0x… or decimal), of all devices or of --device.
    #[arg(long, value_name = "ID", value_parser = parse_partition)]
    pub(crate) partition: Option<u64>,
    /// Only on this device.
    #[arg(long, value_name = "NAME", requires = "partition")]
    pub(crate) device: Option<String>,
    /// Credentials of this user.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// List revocations instead.
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

/// How long to wait for devices.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct WaitArgs {
    /// Do not wait until the last device refuses.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Maximum seconds to wait.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) wait: u64,
}

/// How long to wait for devices if revocation is a side effect of the command.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct SideEffectWait {
    /// Do not wait for devices.
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Fail if a device has not confirmed after this many seconds; by default unavailable devices
    /// are only listed.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u64>,
}

/// Arguments of `audit`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone audit --object /data/in.csv                        all credentials
  sealstone audit --object /data/in.csv --since 2h --user bob
  sealstone audit --object /data/in.csv --device-log osd1.jsonl --device-log osd2.jsonl
  sealstone --json audit --object /data/in.csv | jq '.entries[] | select(.kind == \"delegate\")'
For the owner of the file and administrators. `principal` identifies a credential in the audit logs of devices: with
--device-log the command shows how each one was used.")]
pub(crate) struct AuditArgs {
    /// The stored file.
    #[arg(long, value_name = "PATH")]
    pub(crate) object: OsString,
    /// Start of the period: 2h (ago), or a time in UTC such as 2026-11-22T18:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_past)]
    pub(crate) since: Option<u64>,
    /// End of the period.
    #[arg(long, value_name = "TIME", value_parser = parse_past)]
    pub(crate) until: Option<u64>,
    /// Only credentials of this user.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Audit log of a device, or a copy; can be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) device_log: Vec<PathBuf>,
}
