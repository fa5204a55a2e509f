//! Results of operations as Python objects.

use core::convert::Infallible;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sealstone_client::{DirEntry, FileKind, Stat};

/// Bytes that become a `bytes` object.
pub(crate) struct BytesResult<B>(pub(crate) B);

impl<'py, B: AsRef<[u8]>> IntoPyObject<'py> for BytesResult<B> {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        Ok(PyBytes::new(py, self.0.as_ref()))
    }
}

/// Attributes of a node as a tuple: kind, mode, owner, group, links, size, inode, version, and the
/// times of access, modification, change and creation in nanoseconds since 1970.
pub(crate) type StatTuple =
    (&'static str, u16, String, Option<String>, u32, u64, u64, u64, i64, i64, i64, i64);

pub(crate) fn stat_tuple(stat: &Stat) -> StatTuple {
    (
        kind_name(stat.kind),
        stat.mode,
        stat.owner.as_str().to_owned(),
        stat.group.as_ref().map(|group| group.as_str().to_owned()),
        stat.links,
        stat.size,
        stat.inode.0,
        stat.version,
        stat.atime_ns,
        stat.mtime_ns,
        stat.ctime_ns,
        stat.birth_ns,
    )
}

/// A directory entry as a tuple: name, kind, and attributes where they may be read.
pub(crate) type EntryTuple = (BytesResult<Vec<u8>>, &'static str, Option<StatTuple>);

pub(crate) fn entry_tuple(entry: &DirEntry) -> EntryTuple {
    (BytesResult(entry.name.as_bytes().to_vec()), kind_name(entry.kind), entry.stat.as_ref().map(stat_tuple))
}

const fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character_device",
        FileKind::BlockDevice => "block_device",
    }
}
