//! `mount` and `umount`, and the words of an `/etc/fstab` line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use sealstone_fuse::UNKNOWN_ID;
use sealstone_mds_protocol::shown;

use crate::output::parse_size;

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone mount ~/files                    everything, as the user of the session
  sealstone mount /mnt/projects --path /projects --read-only
  sealstone mount /srv/shared --allow-other --session /etc/mount.session --key-file /etc/mount.key
  sealstone --json mount /mnt --foreground   one line when ready, for a supervisor
  sealstone umount ~/files

What a program closed is seen by whoever opens it afterwards, on any machine; what it has synced is durable. A server or
device that restarts is waited for. In /etc/fstab, with mount.sealstone linked to this program:
  sealstone:/projects /mnt/projects sealstone session=/etc/sealstone/mount.session,_netdev 0 0")]
pub(crate) struct Mount {
    /// An existing directory.
    pub(crate) mountpoint: PathBuf,
    /// The stored directory to be seen there.
    #[arg(long, default_value = "/", value_name = "PATH")]
    pub(crate) path: OsString,
    /// Nothing can be changed through the mount.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// No program on it can be run.
    #[arg(long)]
    pub(crate) no_exec: bool,
    /// Let all users of this machine in. The kernel checks owners and permission bits; the session should be an
    /// administrator's, so that what they make is theirs.
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// How long names and attributes are believed without asking again, seconds.
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) attr_timeout: f64,
    /// Ask the metadata server at each open, and believe attributes for --attr-timeout only, instead of until somebody else
    /// wants the file.
    #[arg(long)]
    pub(crate) no_leases: bool,
    /// Have each name that is made, moved or removed durable, and each file that is closed on its devices, before the program goes
    /// on, instead of by its next fsync.
    #[arg(long)]
    pub(crate) dirsync: bool,
    /// How long a server or device that does not answer is waited for before programs get an error, seconds; 0 is for
    /// ever.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: f64,
    /// Memory for data on its way, both ways.
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: u64,
    /// With --allow-other: the user number shown for accounts that this machine has no user for. No local user may have it.
    #[arg(long, default_value_t = UNKNOWN_ID, value_name = "UID")]
    pub(crate) unknown_uid: u32,
    /// With --allow-other: the group number shown for files without a group, and for groups that this machine does not have.
    #[arg(long, default_value_t = UNKNOWN_ID, value_name = "GID")]
    pub(crate) unknown_gid: u32,
    /// The key of the session's service account: with it the mount logs in by itself when the session is over, which
    /// happens some hours after every login.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// What the table of mounts shows, if it is to be another word than ours.
    #[arg(long, hide = true)]
    pub(crate) source: Option<OsString>,
    /// Nothing is mounted: what is there becomes read-only or not, executable or not, as it is said.
    #[arg(long, hide = true)]
    pub(crate) remount: bool,
    /// Do not go into the background.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Where a mount in the background writes its log; none is kept without it.
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    pub(crate) log_file: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone umount ~/files
  sealstone umount --lazy ~/files            now, for new users; those who are in it may finish")]
pub(crate) struct Umount {
    /// Where it is mounted.
    pub(crate) mountpoint: PathBuf,
    /// Take it away although it is in use.
    #[arg(long, short)]
    pub(crate) lazy: bool,
}

/// The least memory of a mount, bytes: some commands in each direction.
const MEMORY_MIN: u64 = 8 << 20;

/// Memory for data, not too little of it.
fn memory(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes >= MEMORY_MIN => Ok(bytes),
        _ => Err(format!("at least {} MiB are needed", MEMORY_MIN >> 20)),
    }
}

/// Seconds, with a fraction perhaps.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("'{text}' is not a number of seconds from 0 to 86400")),
    }
}

/// Names that `mount` calls us by: for the type `sealstone`, and for `fuse.sealstone`, which is what its table says of ours.
const HELPERS: [&str; 2] = ["mount.sealstone", "mount.fuse.sealstone"];
/// Before the stored directory, in the table of mounts and, as one likes, in `/etc/fstab`.
pub(crate) const SOURCE_PREFIX: &str = "sealstone:";

/// What `mount.sealstone SOURCE MOUNTPOINT [-o OPTIONS]` says, as `mount` of util-linux calls it, in words of our own
/// command line; `None` if the program was not called by that name.
///
/// # Errors
/// A sentence for people.
pub(crate) fn helper_arguments(
    mut given: impl Iterator<Item = OsString>,
) -> Result<Option<Vec<OsString>>, String> {
    let Some(program) = given.next() else { return Ok(None) };
    let name = Path::new(&program).file_name().unwrap_or_default();
    if !HELPERS.iter().any(|helper| name == *helper) {
        return Ok(None);
    }
    let (mut places, mut options) = (Vec::new(), Vec::new());
    while let Some(word) = given.next() {
        match word.as_bytes() {
            b"-o" => {
                let list = given.next().ok_or("-o wants a list of options")?;
                let each = list.as_bytes().split(|byte| *byte == b',').filter(|option| !option.is_empty());
                options.extend(each.map(<[u8]>::to_vec));
            }
            // No mtab, verbose, sloppy: nothing to do.
            b"-n" | b"-v" | b"-s" => {}
            b"-t" => drop(given.next()),
            flag if flag.starts_with(b"-") => {
                return Err(format!("mount.sealstone does not know {}", shown(flag)));
            }
            _ => places.push(word),
        }
    }
    let [source, mountpoint] = &places[..] else {
        return Err("say mount.sealstone SOURCE MOUNTPOINT [-o OPTIONS]; SOURCE is a stored directory".into());
    };
    let mut words: Vec<OsString> = vec![program, "mount".into()];
    for option in &options {
        let unknown = || format!("mount.sealstone does not know the option {}", shown(option));
        // The value is a path perhaps: any bytes.
        let (key, value) = match option.iter().position(|byte| *byte == b'=') {
            Some(at) => (&option[..at], option.get(at + 1..).map(OsStr::from_bytes)),
            None => (&option[..], None),
        };
        let flag = std::str::from_utf8(key).map_err(|_| unknown())?.replace('_', "-");
        match (flag.as_str(), value) {
            ("ro", None) => {
                words.retain(|word| word != "--read-only");
                words.push("--read-only".into());
            }
            ("rw", None) => words.retain(|word| word != "--read-only"),
            ("noexec", None) => {
                words.retain(|word| word != "--no-exec");
                words.push("--no-exec".into());
            }
            ("exec", None) => words.retain(|word| word != "--no-exec"),
            ("remount", None) => words.push("--remount".into()),
            ("allow-other" | "read-only" | "no-exec" | "no-leases" | "dirsync" | "escaped", None) => {
                words.push(format!("--{flag}").into())
            }
            (
                "session" | "key-file" | "attr-timeout" | "timeout" | "memory" | "log-file" | "chap-file"
                | "device-tls" | "unknown-uid" | "unknown-gid",
                Some(value),
            ) => words.extend([format!("--{flag}").into(), value.into()]),
            // What mount itself acts on, or what is so anyway.
            (
                "defaults" | "auto" | "noauto" | "-netdev" | "nofail" | "nosuid" | "nodev" | "suid" | "dev"
                | "async" | "relatime" | "noatime" | "nodiratime" | "user" | "users" | "nouser" | "owner"
                | "group",
                None,
            ) => {}
            (flag, _) if flag.starts_with("x-") || flag.starts_with("comment") => {}
            _ => return Err(unknown()),
        }
    }
    let path = source.as_bytes().strip_prefix(SOURCE_PREFIX.as_bytes()).unwrap_or(source.as_bytes());
    words.extend(["--path".into(), OsStr::from_bytes(path).into()]);
    // As it was said: by that `mount -a` finds what is mounted already.
    words.extend(["--source".into(), source.clone(), mountpoint.clone()]);
    Ok(Some(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Option<Vec<OsString>>, String> {
        helper_arguments(line.split(' ').map(OsString::from))
    }

    #[test]
    fn a_line_of_fstab_becomes_a_command() {
        let line = "/sbin/mount.sealstone /projects /mnt -o rw,_netdev,session=/etc/s,allow_other,timeout=5,x-systemd.automount";
        let expected = "/sbin/mount.sealstone mount --session /etc/s --allow-other --timeout 5 --path /projects --source /projects /mnt";
        let expected: Vec<OsString> = expected.split(' ').map(OsString::from).collect();
        assert_eq!(words(line), Ok(Some(expected)));
        assert_eq!(words("/usr/bin/sealstone mount /mnt"), Ok(None));
        // What mount itself makes of "user", and what is said later counts.
        let line = "mount.sealstone / /mnt -o user,noexec,nosuid,nodev,noatime,ro,rw,dirsync";
        let expected = "mount.sealstone mount --no-exec --dirsync --path / --source / /mnt";
        assert_eq!(words(line), Ok(Some(expected.split(' ').map(OsString::from).collect())));
        let line = "mount.sealstone / /mnt -o noexec,exec,group,async,nodiratime";
        let expected = "mount.sealstone mount --path / --source / /mnt";
        assert_eq!(words(line), Ok(Some(expected.split(' ').map(OsString::from).collect())));
    }

    #[test]
    fn the_table_of_mounts_says_what_fstab_said() {
        let line = "/sbin/mount.fuse.sealstone sealstone:/projects /mnt -o remount,ro";
        let expected = "/sbin/mount.fuse.sealstone mount --remount --read-only --path /projects --source sealstone:/projects /mnt";
        assert_eq!(words(line), Ok(Some(expected.split(' ').map(OsString::from).collect())));
    }

    #[test]
    fn places_that_are_not_text_are_kept() {
        let given: [&[u8]; 5] =
            [b"mount.sealstone", b"sealstone:/\xff", b"/mnt/\xfe", b"-o", b"session=/etc/\xfd"];
        let words = helper_arguments(given.iter().map(|word| OsStr::from_bytes(word).into()));
        let words = words.expect("understood").expect("called as the helper");
        for word in [&b"/\xff"[..], b"/mnt/\xfe", b"/etc/\xfd"] {
            assert!(words.iter().any(|one| one.as_bytes() == word), "{words:?}");
        }
    }

    #[test]
    fn what_it_does_not_know_it_says() {
        assert!(words("mount.sealstone / /mnt -o quiet").unwrap_err().contains("quiet"));
        // Not what these mounts do: it is not passed over in silence.
        assert!(words("mount.sealstone / /mnt -o sync").unwrap_err().contains("sync"));
        assert!(words("mount.sealstone /mnt").unwrap_err().contains("SOURCE"));
        assert!(words("mount.sealstone / /mnt -x").unwrap_err().contains("-x"));
        assert!(words("mount.sealstone / /mnt -o").is_err());
    }
}
