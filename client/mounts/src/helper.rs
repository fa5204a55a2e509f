//! The helper `mount.sealstone` of util-linux, for `/etc/fstab`.
//!
//! Does: translates its arguments into words of the command line of `sealstone`, and names the
//! source of a mount in the mount table.
//! Does not: mount.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sealstone_mds_protocol::shown;

/// Names by which `mount` starts this program: for the types `sealstone` and `fuse.sealstone`.
const HELPERS: [&str; 2] = ["mount.sealstone", "mount.fuse.sealstone"];
/// Prefix of the stored directory in the mount table; optional in `/etc/fstab`.
const SOURCE_PREFIX: &str = "sealstone:";

/// Translates `mount.sealstone SOURCE MOUNTPOINT [-o OPTIONS]` of util-linux into words of the
/// command line. Returns `None` if the program has another name.
///
/// # Errors
/// The arguments are wrong.
pub fn helper_arguments(mut given: impl Iterator<Item = OsString>) -> Result<Option<Vec<OsString>>, String> {
    let Some(program) = given.next() else { return Ok(None) };
    let name = Path::new(&program).file_name().unwrap_or_default();
    if !HELPERS.iter().any(|helper| name == *helper) {
        return Ok(None);
    }
    let (mut places, mut options) = (Vec::new(), Vec::new());
    while let Some(word) = given.next() {
        match word.as_bytes() {
            b"-o" => {
                let list = given.next().ok_or("-o requires a list of options")?;
                let each = list.as_bytes().split(|byte| *byte == b',').filter(|option| !option.is_empty());
                options.extend(each.map(<[u8]>::to_vec));
            }
            // No mtab, verbose, sloppy: nothing to do.
            b"-n" | b"-v" | b"-s" => {}
            b"-t" => drop(given.next()),
            flag if flag.starts_with(b"-") => {
                return Err(format!("unknown argument {}", shown(flag)));
            }
            _ => places.push(word),
        }
    }
    let [source, mountpoint] = &places[..] else {
        return Err(
            "usage: mount.sealstone SOURCE MOUNTPOINT [-o OPTIONS]; SOURCE is a stored directory".into()
        );
    };
    let mut words: Vec<OsString> = vec![program, "mount".into()];
    for option in &options {
        let unknown = || format!("unknown option {}", shown(option));
        // A value can be a path: any bytes.
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
            // Options that `mount` handles itself, or that are always in effect.
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
    // The source as `/etc/fstab` has it: `mount -a` finds mounted entries by it.
    words.extend(["--source".into(), source.clone(), mountpoint.clone()]);
    Ok(Some(words))
}

/// Returns the source that the mount table shows for a stored directory.
#[must_use]
pub fn source_of(path: &[u8]) -> OsString {
    let mut source = OsString::from(SOURCE_PREFIX);
    source.push(OsStr::from_bytes(path));
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Option<Vec<OsString>>, String> {
        helper_arguments(line.split(' ').map(OsString::from))
    }

    #[test]
    fn fstab_line_becomes_command() {
        let line = "/sbin/mount.sealstone /projects /mnt -o rw,_netdev,session=/etc/s,allow_other,timeout=5,x-systemd.automount";
        let expected = "/sbin/mount.sealstone mount --session /etc/s --allow-other --timeout 5 --path /projects --source /projects /mnt";
        let expected: Vec<OsString> = expected.split(' ').map(OsString::from).collect();
        assert_eq!(words(line), Ok(Some(expected)));
        assert_eq!(words("/usr/bin/sealstone mount /mnt"), Ok(None));
        // The options that `mount` passes for "user"; later options override earlier ones.
        let line = "mount.sealstone / /mnt -o user,noexec,nosuid,nodev,noatime,ro,rw,dirsync";
        let expected = "mount.sealstone mount --no-exec --dirsync --path / --source / /mnt";
        assert_eq!(words(line), Ok(Some(expected.split(' ').map(OsString::from).collect())));
        let line = "mount.sealstone / /mnt -o noexec,exec,group,async,nodiratime";
        let expected = "mount.sealstone mount --path / --source / /mnt";
        assert_eq!(words(line), Ok(Some(expected.split(' ').map(OsString::from).collect())));
    }

    #[test]
    fn mount_table_shows_source_of_fstab() {
        let line = "/sbin/mount.fuse.sealstone sealstone:/projects /mnt -o remount,ro";
        let expected = "/sbin/mount.fuse.sealstone mount --remount --read-only --path /projects --source sealstone:/projects /mnt";
        assert_eq!(words(line), Ok(Some(expected.split(' ').map(OsString::from).collect())));
    }

    #[test]
    fn non_utf8_paths_are_kept() {
        let given: [&[u8]; 5] =
            [b"mount.sealstone", b"sealstone:/\xff", b"/mnt/\xfe", b"-o", b"session=/etc/\xfd"];
        let words = helper_arguments(given.iter().map(|word| OsStr::from_bytes(word).into()));
        let words = words.expect("understood").expect("called as the helper");
        for word in [&b"/\xff"[..], b"/mnt/\xfe", b"/etc/\xfd"] {
            assert!(words.iter().any(|one| one.as_bytes() == word), "{words:?}");
        }
    }

    #[test]
    fn unknown_options_are_named() {
        assert!(words("mount.sealstone / /mnt -o quiet").unwrap_err().contains("quiet"));
        // An unsupported option is refused.
        assert!(words("mount.sealstone / /mnt -o sync").unwrap_err().contains("sync"));
        assert!(words("mount.sealstone /mnt").unwrap_err().contains("SOURCE"));
        assert!(words("mount.sealstone / /mnt -x").unwrap_err().contains("-x"));
        assert!(words("mount.sealstone / /mnt -o").is_err());
    }
}
