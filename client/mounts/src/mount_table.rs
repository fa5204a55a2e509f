//! The kernel's table of mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use sealstone_failure::{Failure, Outcome};

/// Whether a path is a mount of Sealstone.
pub(crate) fn is_mount(place: &Path) -> Outcome<bool> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|error| Failure::from(error).at("mounts"))?;
    Ok(is_listed(&table, place))
}

/// Whether a table of mounts lists a mount of this program at a path. Mount points need not be
/// UTF-8.
fn is_listed(table: &[u8], place: &Path) -> bool {
    table.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let here = fields.nth(4).map(unescape).is_some_and(|path| path == place);
        let mut kind = fields.skip_while(|field| *field != b"-").skip(1);
        here && kind.next().is_some_and(|kind| kind == b"fuse.sealstone")
    })
}

/// Decodes a field of the table of mounts: the kernel writes blanks, line feeds and backslashes in
/// octal, as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), field);
    while let [first, after @ ..] = rest {
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn octal_escapes_of_mount_table_are_decoded() {
        assert_eq!(unescape(br"/mnt/two\040words\134x"), PathBuf::from(r"/mnt/two words\x"));
        assert_eq!(unescape(br"/plain\9"), PathBuf::from(r"/plain\9"));
    }

    #[test]
    fn non_utf8_mount_points_are_found() {
        let line = |place: &[u8], kind: &str| {
            [b"36 35 0:31 / ", place, b" rw,nosuid shared:1 - ", kind.as_bytes(), b" src rw\n"].concat()
        };
        let table =
            [line(b"/mnt/\xff", "ext4"), line(b"/mnt/b\xfe\\011c", "fuse.sealstone"), line(b"/a", "tmpfs")]
                .concat();
        assert!(is_listed(&table, Path::new(OsStr::from_bytes(b"/mnt/b\xfe\tc"))));
        assert!(!is_listed(&table, Path::new(OsStr::from_bytes(b"/mnt/\xff"))));
        assert!(!is_listed(&table, Path::new("/a")));
    }
}
