//! Arguments of `mount` and `umount`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use sealstone_fuse::UNKNOWN_ID;
use sealstone_units::parse_size;

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone mount ~/files                    all files, as the user of the session
  sealstone mount /mnt/projects --path /projects --read-only
  sealstone mount /srv/shared --allow-other --session /etc/mount.session --key-file /etc/mount.key
  sealstone --json mount /mnt --foreground   prints the ready line, for a supervisor
  sealstone umount ~/files

Closed files are visible to all clients that open them later; synced files are durable. Programs wait while a server or
device restarts. In /etc/fstab, with mount.sealstone linked to this program:
  sealstone:/projects /mnt/projects sealstone session=/etc/sealstone/mount.session,_netdev 0 0")]
pub(crate) struct MountArgs {
    /// An existing directory.
    pub(crate) mountpoint: PathBuf,
    /// Stored directory to mount.
    #[arg(long, default_value = "/", value_name = "PATH")]
    pub(crate) path: OsString,
    /// Mount read-only.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Do not allow the execution of programs.
    #[arg(long)]
    pub(crate) no_exec: bool,
    /// Allow access by all users of this machine; the kernel checks permissions. The session should
    /// be an administrator's, so that new files belong to their creator.
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// How long names and attributes are cached without a lease, in seconds.
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) attr_timeout: f64,
    /// Use no leases: attributes are cached for --attr-timeout only, and every open is a request.
    #[arg(long)]
    pub(crate) no_leases: bool,
    /// Make every change of names durable, and store every closed file, before the system call
    /// returns.
    #[arg(long)]
    pub(crate) dirsync: bool,
    /// How long programs wait for an unavailable server or device before they get an error, in
    /// seconds; 0: forever.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: f64,
    /// Memory for cached and unflushed data.
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: u64,
    /// With --allow-other: user id shown for accounts without a local user. No local user may have
    /// it.
    #[arg(long, default_value_t = UNKNOWN_ID, value_name = "UID")]
    pub(crate) unknown_uid: u32,
    /// With --allow-other: group id shown for files without a group, and for groups without a local
    /// group.
    #[arg(long, default_value_t = UNKNOWN_ID, value_name = "GID")]
    pub(crate) unknown_gid: u32,
    /// Key file of the session's service account: the mount uses it to log in again when the
    /// session expires.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Source that the mount table shows.
    #[arg(long, hide = true)]
    pub(crate) source: Option<OsString>,
    /// Change the flags of an existing mount.
    #[arg(long, hide = true)]
    pub(crate) remount: bool,
    /// Stay in the foreground.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Log file of a mount in the background [default: none].
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    pub(crate) log_file: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone umount ~/files
  sealstone umount --lazy ~/files            detach now; open files stay usable")]
pub(crate) struct UmountArgs {
    /// Mount point.
    pub(crate) mountpoint: PathBuf,
    /// Unmount even if busy (lazy).
    #[arg(long, short)]
    pub(crate) lazy: bool,
}

/// Minimum memory of a mount, bytes.
const MEMORY_MIN: u64 = 8 << 20;

/// Parses the memory of a mount.
fn memory(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes >= MEMORY_MIN => Ok(bytes),
        _ => Err(format!("the minimum is {} MiB", MEMORY_MIN >> 20)),
    }
}

/// Parses seconds, with an optional fraction.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("'{text}' is not a number of seconds from 0 to 86400")),
    }
}
