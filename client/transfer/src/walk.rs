//! Walk of local trees for `put -r`: entries with their attributes, in the order in which they are
//! stored.
//!
//! Contract: entries that cannot be read are failures of the walk, not its end.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use sealstone_client::Name;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};

use crate::tree::TreePath;

/// Maximum number of entries of a tree, so that a loop of mounts ends.
const ENTRIES_MAX: usize = 10_000_000;

/// An entry of a local tree.
#[derive(Clone, Debug)]
pub struct TreeEntry {
    /// Local path.
    pub path: PathBuf,
    /// Path below the top.
    pub below: TreePath,
    /// Its type.
    pub kind: EntryKind,
    /// Its attributes when it was found.
    pub metadata: Metadata,
}

/// Type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A file.
    File {
        /// Its length.
        bytes: u64,
    },
    /// A symbolic link.
    Symlink,
    /// A pipe, socket or device, with the name of its type.
    Special(&'static str),
}

impl EntryKind {
    /// Returns the type of an entry with these attributes.
    pub fn of(metadata: &Metadata) -> Self {
        let kind = metadata.file_type();
        match () {
            () if kind.is_dir() => Self::Directory,
            () if kind.is_file() => Self::File { bytes: metadata.len() },
            () if kind.is_symlink() => Self::Symlink,
            () if kind.is_fifo() => Self::Special("named pipe"),
            () if kind.is_socket() => Self::Special("socket"),
            () if kind.is_char_device() => Self::Special("character device"),
            () if kind.is_block_device() => Self::Special("block device"),
            () => Self::Special("file of an unknown kind"),
        }
    }
}

/// Result of a walk.
#[derive(Debug, Default)]
pub struct Tree {
    /// Each directory before its entries, names in byte order.
    pub entries: Vec<TreeEntry>,
    /// Failures of unreadable entries.
    pub failed: Vec<Failure>,
}

/// Walks a tree from `top` down; `wanted` selects entries and subtrees. Symbolic links are not
/// followed, except the top with `follow_top`. Continues after unreadable entries.
///
/// # Errors
/// The top itself cannot be read; there are more than 10 million entries.
pub fn walk(top: &Path, follow_top: bool, wanted: impl Fn(&TreePath) -> bool) -> Outcome<Tree> {
    let at = |path: &Path, error: std::io::Error| Failure::from(error).at(path.shown());
    let metadata = if follow_top { fs::metadata(top) } else { fs::symlink_metadata(top) };
    let metadata = metadata.map_err(|error| at(top, error))?;
    let mut tree = Tree::default();
    let mut waiting = vec![TreeEntry {
        path: top.to_owned(),
        below: TreePath::top(),
        kind: EntryKind::of(&metadata),
        metadata,
    }];
    while let Some(entry) = waiting.pop() {
        if tree.entries.len() >= ENTRIES_MAX {
            return Err(Failure::operation(format!("more than {ENTRIES_MAX} entries")).at(top.shown()));
        }
        if entry.kind == EntryKind::Directory {
            let (mut children, mut failed) = children(&entry, &wanted);
            children.sort_by(|a, b| b.below.cmp(&a.below));
            waiting.append(&mut children);
            tree.failed.append(&mut failed);
        }
        tree.entries.push(entry);
    }
    Ok(tree)
}

/// Returns the entries of a directory.
fn children(directory: &TreeEntry, wanted: &impl Fn(&TreePath) -> bool) -> (Vec<TreeEntry>, Vec<Failure>) {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    let mut read = || -> Outcome {
        let at = |error: std::io::Error| Failure::from(error).at(directory.path.shown());
        for child in fs::read_dir(&directory.path).map_err(at)? {
            let child = child.map_err(at)?;
            let path = child.path();
            let name = match Name::new(child.file_name().as_bytes()) {
                Ok(name) => name,
                Err(error) => {
                    failed.push(Failure::operation(error).at(path.shown()));
                    continue;
                }
            };
            let below = directory.below.join(&name);
            if !wanted(&below) {
                continue;
            }
            match fs::symlink_metadata(&path) {
                Ok(metadata) => {
                    found.push(TreeEntry { path, below, kind: EntryKind::of(&metadata), metadata })
                }
                Err(error) => failed.push(Failure::from(error).at(path.shown())),
            }
        }
        Ok(())
    };
    if let Err(failure) = read() {
        failed.push(failure);
    }
    (found, failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn walk_returns_entries_in_order() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let at = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
        fs::create_dir_all(at(b"b/c")).expect("made");
        fs::write(at(b"b/c/\xff\\x2d"), b"12345").expect("written");
        fs::write(at(b"a"), b"").expect("written");
        fs::create_dir(at(b"left-out")).expect("made");
        std::os::unix::fs::symlink("a", at(b"link")).expect("linked");
        let tree = walk(folder.path(), true, |below| below.as_ref() != b"left-out").expect("walked");
        let seen: Vec<(&[u8], EntryKind)> =
            tree.entries.iter().map(|entry| (entry.below.as_ref(), entry.kind)).collect();
        let expected: [(&[u8], EntryKind); 6] = [
            (b"", EntryKind::Directory),
            (b"a", EntryKind::File { bytes: 0 }),
            (b"b", EntryKind::Directory),
            (b"b/c", EntryKind::Directory),
            (b"b/c/\xff\\x2d", EntryKind::File { bytes: 5 }),
            (b"link", EntryKind::Symlink),
        ];
        assert_eq!(seen, expected);
        assert!(tree.failed.is_empty());
    }
}
