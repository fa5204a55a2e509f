//! Listings of stored directories, also of whole trees.

use sealstone_client::{Client, DirEntry, FileKind, FilePath, Stat};
use sealstone_failure::{Failure, Outcome};

use crate::stored_path::StoredPath;
use crate::tree::{TreePath, join};

/// Returns the name of a kind of file.
#[must_use]
pub const fn kind_name(kind: FileKind) -> &'static str {
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

/// An entry of a listing.
pub struct ListEntry {
    /// Path below the listed directory.
    pub path: TreePath,
    /// Number of the node.
    pub inode: u64,
    /// Kind of the entry.
    pub kind: FileKind,
    /// `None` in a directory that the user may read but not search.
    pub stat: Option<Stat>,
}

/// Returns the entries of a directory, or of its tree, and the directories that cannot be listed
/// with the reason. Stops after a fatal failure.
pub async fn list_readable(
    client: &Client,
    top: &FilePath,
    recursive: bool,
) -> (Vec<ListEntry>, Vec<(TreePath, Failure)>) {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    let mut waiting = vec![TreePath::top()];
    while let Some(below) = waiting.pop() {
        let mut deeper = Vec::new();
        let listed = list_directory(client, top, &below, &mut found, &mut deeper).await;
        if let Err(failure) = listed {
            let fatal = failure.fatal;
            failed.push((below, failure));
            if fatal {
                break;
            }
        }
        if recursive {
            deeper.reverse();
            waiting.append(&mut deeper);
        }
    }
    (found, failed)
}

/// Returns the entries of a directory or of its tree, or the one of another file, and the failures
/// of directories that cannot be listed. With `follow`, or after a slash, a symbolic link is
/// followed.
///
/// # Errors
/// The path does not exist, or is the only directory and cannot be listed.
pub async fn list_path(
    client: &Client,
    top: &StoredPath,
    recursive: bool,
    follow: bool,
) -> Outcome<(Vec<ListEntry>, Vec<Failure>)> {
    let mut stat = client.lstat(top).await.map_err(|error| Failure::from(error).at(top))?;
    if stat.kind == FileKind::Symlink && (follow || top.trailing_slash) {
        stat = client.stat(top).await.unwrap_or(stat);
    }
    if stat.kind != FileKind::Directory {
        let path = top.split_last().map(|(_, name)| TreePath::top().join(&name)).unwrap_or_default();
        let entry = ListEntry { path, inode: stat.inode.0, kind: stat.kind, stat: Some(stat) };
        return Ok((vec![entry], Vec::new()));
    }
    let (found, failed) = list_readable(client, top, recursive).await;
    if let [(directory, failure)] = &failed[..]
        && directory.is_top()
        && found.is_empty()
    {
        return Err(failure.clone());
    }
    Ok((found, failed.into_iter().map(|(_, failure)| failure).collect()))
}

async fn list_directory(
    client: &Client,
    top: &FilePath,
    below: &TreePath,
    found: &mut Vec<ListEntry>,
    deeper: &mut Vec<TreePath>,
) -> Outcome {
    let directory = join(top, below)?;
    let at = |error| Failure::from(error).at(&directory);
    let mut entries = client.list(&directory).map_err(at)?;
    while let Some(DirEntry { name, inode, kind, stat }) = entries.next().await.map_err(at)? {
        let path = below.join(&name);
        if kind == FileKind::Directory {
            deeper.push(path.clone());
        }
        found.push(ListEntry { path, inode: inode.0, kind, stat });
    }
    Ok(())
}
