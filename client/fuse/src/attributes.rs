//! Conversion of attributes to the kernel's form.

use sealstone_mds_protocol::{FileKind, Stat};

use crate::id_map::IdMap;
use crate::kernel::{Attributes, KernelTime};

/// Preferred size of reads and writes that `stat` shows, in bytes.
const BLOCK_BYTES: u32 = 128 << 10;
/// Position of the file kind in the mode bits.
const KIND_SHIFT: u32 = 12;

/// Returns the kernel's number of a kind, as in directory entries: the kind bits of the mode.
pub(crate) const fn kind_number(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::File => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

/// Returns nanoseconds since 1970, clamped to the range of the type; none for the current time.
pub(crate) fn nanoseconds(when: KernelTime) -> Option<i64> {
    match when {
        KernelTime::Now => None,
        KernelTime::At { seconds, nanoseconds } => {
            let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(i64::from(nanoseconds)));
            Some(ns.unwrap_or(if seconds < 0 { i64::MIN } else { i64::MAX }))
        }
    }
}

/// Returns the attributes that `stat` shows.
pub(crate) fn attributes(ino: u64, stat: &Stat, id_map: &IdMap) -> Attributes {
    Attributes {
        ino,
        size: stat.size,
        // Holes are not known here, so this is the largest possible value; 0 if nothing was
        // written.
        blocks: if stat.width == 0 { 0 } else { stat.size.div_ceil(512) },
        atime_ns: stat.atime_ns,
        mtime_ns: stat.mtime_ns,
        ctime_ns: stat.ctime_ns,
        mode: kind_number(stat.kind) << KIND_SHIFT | u32::from(stat.mode & 0o7777),
        links: stat.links,
        uid: id_map.uid(&stat.owner),
        gid: id_map.gid(stat.group.as_ref()),
        rdev: stat.rdev,
        block_bytes: BLOCK_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_reach_become_the_nearest() {
        let at = |seconds, nanoseconds| nanoseconds_of(seconds, nanoseconds);
        assert_eq!(at(1, 5), 1_000_000_005);
        assert_eq!(at(-1, 999_999_999), -1);
        assert_eq!(at(i64::MAX, 0), i64::MAX);
        assert_eq!(at(i64::MIN, 0), i64::MIN);
    }

    fn nanoseconds_of(seconds: i64, ns: u32) -> i64 {
        nanoseconds(KernelTime::At { seconds, nanoseconds: ns }).unwrap()
    }
}
