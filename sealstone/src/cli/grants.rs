//! Arguments about credentials beyond an open file: capability files, revocation, the record of what was given.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{ArgGroup, Args, Subcommand};

use super::MethodName;
use crate::output::{parse_moment, parse_size};

/// Capability files.
#[derive(Debug, Subcommand)]
pub(crate) enum Cap {
    /// Make a capability file: with it a program reads or writes a part of one file, without logging in.
    #[command(after_help = "\
Examples:
  sealstone cap issue --read --until 30m /data/in.csv -o in.cap
  sealstone cap issue --read --write --range 4K..8K --until 10m /data/table -o table.cap
The file is a secret: whoever has it may do what it says until it expires or is revoked (`sealstone revoke`). It allows
nothing that you may not do yourself, and lives for an hour at most unless the server says otherwise. A file that
somebody may write loses its recorded checksum.")]
    Issue(Issue),
    /// Tell what a capability file allows; never its keys.
    #[command(after_help = "\
Examples:
  sealstone cap show in.cap
  sealstone --json cap show in.cap | jq .expires_ms")]
    Show {
        /// The capability file.
        file: PathBuf,
    },
    /// Read by a capability file, straight from the devices.
    #[command(after_help = "\
Examples:
  sealstone cap get in.cap local.csv
  sealstone cap get in.cap - | wc -l
  sealstone cap get table.cap - --range 4096..4196
The first byte that is written out is the first one of the range.")]
    Get {
        /// The capability file.
        file: PathBuf,
        /// Where the bytes go; `-` is standard output.
        #[arg(default_value = "-")]
        place: OsString,
        /// Bytes A..B of the stored file [default: all that it allows].
        #[arg(long, value_name = "A..B", value_parser = parse_range)]
        range: Option<ByteRange>,
    },
    /// Write by a capability file, in place, straight to the devices.
    #[command(after_help = "\
Examples:
  sealstone cap put table.cap rows.bin
  produce | sealstone cap put table.cap - --at 4096
Nothing is written outside the range. When it returns, the bytes are durable.")]
    Put {
        /// The capability file.
        file: PathBuf,
        /// Where the bytes come from; `-` is standard input.
        source: OsString,
        /// First byte of the stored file to be written [default: the first one that it allows].
        #[arg(long, value_name = "OFFSET", value_parser = parse_size)]
        at: Option<u64>,
    },
}

/// What `cap issue` takes.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("rights").required(true).multiple(true).args(["read", "write"]))]
pub(crate) struct Issue {
    /// The stored file.
    pub(crate) path: OsString,
    /// Allow reading.
    #[arg(long)]
    pub(crate) read: bool,
    /// Allow writing, in place: the file keeps its length.
    #[arg(long)]
    pub(crate) write: bool,
    /// Bytes A..B, A.. or ..B; sizes such as 4K or 1M are understood [default: the whole file].
    #[arg(long, value_name = "A..B", value_parser = parse_range)]
    pub(crate) range: Option<ByteRange>,
    /// Until when: 90s, 30m, 1h from now, or a moment such as 2026-11-22T18:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_until)]
    pub(crate) until: Until,
    /// Where the capability file is written (mode 0600).
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Write over an older capability file.
    #[arg(long)]
    pub(crate) force: bool,
    /// How commands are protected; the server may raise it.
    #[arg(long, env = "SEALSTONE_METHOD", default_value = "alldata", value_name = "METHOD")]
    pub(crate) method: MethodName,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    /// First.
    pub(crate) start: u64,
    /// The one after the last; none: to the end.
    pub(crate) end: Option<u64>,
}

fn parse_range(text: &str) -> Result<ByteRange, String> {
    let (start, end) =
        text.split_once("..").ok_or_else(|| format!("'{text}' is not a range such as 0..4096 or 1M.."))?;
    let start = if start.is_empty() { 0 } else { parse_size(start)? };
    let end = if end.is_empty() { None } else { Some(parse_size(end)?) };
    match end {
        Some(end) if end <= start => Err(format!("'{text}' holds no byte")),
        end => Ok(ByteRange { start, end }),
    }
}

/// A moment to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Milliseconds from now.
    In(u64),
    /// Milliseconds since 1970.
    At(u64),
}

fn parse_until(text: &str) -> Result<Until, String> {
    match parse_span(text) {
        Some(ms) => Ok(Until::In(ms)),
        None => parse_moment(text).map(Until::At),
    }
}

/// `90s`, `30m`, `2h`, `3d`, in milliseconds.
fn parse_span(text: &str) -> Option<u64> {
    let unit_ms = match text.chars().last()? {
        's' => 1000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => 86_400_000,
        _ => return None,
    };
    text.get(..text.len() - 1)?.parse::<u64>().ok()?.checked_mul(unit_ms)
}

/// A moment that was, as milliseconds since 1970: `2h` is two hours ago.
fn parse_past(text: &str) -> Result<u64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    match parse_span(text) {
        Some(ms) => Ok(now_ms.saturating_sub(ms)),
        None => parse_moment(text),
    }
}

fn parse_partition(text: &str) -> Result<u64, String> {
    super::keys::partition(text)
}

/// What `revoke` takes.
#[derive(Args, Clone, Debug)]
#[command(
    group = ArgGroup::new("whose").required(true).args(["object", "partition", "user", "list"]),
    after_help = "\
Examples:
  sealstone revoke --object /data/in.csv          all credentials for one file (its owner, administrators)
  sealstone revoke --user bob                     all that bob holds, on every device (administrators)
  sealstone revoke --partition 0x10000            all credentials for a partition, by its key (administrators)
  sealstone revoke --list                         what is under way, and which devices it waits for
Who may still have a right gets new credentials by itself. Capability files that are revoked have to be issued again.
The command waits until the last device refuses; a device that is away is told when it comes back, whether somebody
waits or not."
)]
pub(crate) struct Revoke {
    /// Credentials for this file.
    #[arg(long, value_name = "PATH")]
    pub(crate) object: Option<OsString>,
    /// Credentials for this partition (0x… or decimal), of all devices or of --device.
    #[arg(long, value_name = "ID", value_parser = parse_partition)]
    pub(crate) partition: Option<u64>,
    /// Of this device alone.
    #[arg(long, value_name = "NAME", requires = "partition")]
    pub(crate) device: Option<String>,
    /// Credentials that this user holds.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// List revocations instead.
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// How long to wait for devices.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Do not wait until the last device refuses.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Seconds to wait at most.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) wait: u64,
}

/// How long to wait for devices after what was asked for is done already.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Do not wait for devices.
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Fail if a device has not refused within so many seconds; without it those that are away are told of.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u64>,
}

/// What `audit` takes.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone audit --object /data/in.csv                        who could touch it, when, by which credential
  sealstone audit --object /data/in.csv --since 2h --user bob
  sealstone audit --object /data/in.csv --device-log osd1.jsonl --device-log osd2.jsonl
  sealstone --json audit --object /data/in.csv | jq '.entries[] | select(.kind == \"delegate\")'
For the file's owner and administrators. `principal` is what the devices' audit logs call whoever used the credential:
with --device-log the command shows what was done and refused under each.")]
pub(crate) struct Audit {
    /// The stored file.
    #[arg(long, value_name = "PATH")]
    pub(crate) object: OsString,
    /// Not before: 2h (ago), or a moment such as 2026-11-22T18:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_past)]
    pub(crate) since: Option<u64>,
    /// Not after.
    #[arg(long, value_name = "TIME", value_parser = parse_past)]
    pub(crate) until: Option<u64>,
    /// What this user was given or refused, alone.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Audit log of a device, or a copy of it; may be given more than once.
    #[arg(long, value_name = "FILE")]
    pub(crate) device_log: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_times_are_what_people_mean() {
        assert_eq!(parse_range("4K..8K"), Ok(ByteRange { start: 4096, end: Some(8192) }));
        assert_eq!(parse_range("..5"), Ok(ByteRange { start: 0, end: Some(5) }));
        assert_eq!(parse_range("7.."), Ok(ByteRange { start: 7, end: None }));
        assert!(parse_range("5..5").is_err() && parse_range("9..5").is_err() && parse_range("5").is_err());
        assert_eq!(parse_until("30m"), Ok(Until::In(1_800_000)));
        assert_eq!(parse_until("2000-02-29T00:00Z"), Ok(Until::At(951_782_400_000)));
        assert!(parse_until("soon").is_err() && parse_until("99999999999999999h").is_err());
    }
}
