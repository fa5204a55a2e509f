//! Moving files and directories.

use sealstone_mds_protocol::{ErrorCode, FileKind, FilePath, InodeId};

use super::{DEPTH_MAX, Place, ROOT, child, drop_file, inode, place, touch};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Inode, count, counter, save};
use crate::store::Transaction;

/// Moves `from` to `to`, all or nothing.
pub(crate) fn rename(
    tx: &mut dyn Transaction,
    who: &Principal,
    from: &FilePath,
    to: &FilePath,
    replace: bool,
    reap_due_ms: u64,
    now_ms: u64,
) -> Result<()> {
    let source = place(tx, who, from)?;
    let (moved_id, mut moved) = child(tx, source.directory, &source.name)?
        .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, from.as_str()))?;
    let target = place(tx, who, to)?;
    if (source.directory, &source.name) == (target.directory, &target.name) {
        return Ok(());
    }
    who.needs_removal(&source.directory_inode, &moved, from.as_str())?;
    who.needs_entries(&target.directory_inode, to.as_str())?;
    if moved.kind == FileKind::Directory {
        check_no_cycle(tx, moved_id, target.directory, to)?;
    }
    if let Some((old_id, old)) = child(tx, target.directory, &target.name)? {
        if !replace {
            return Err(MdsError::refused(ErrorCode::Exists, to.as_str()));
        }
        who.needs_removal(&target.directory_inode, &old, to.as_str())?;
        displace(tx, (old_id, &old), &moved, to, reap_due_ms)?;
    }
    tx.delete(&keys::entry(source.directory, &source.name))?;
    save(tx, &keys::entry(target.directory, &target.name), &moved_id)?;
    moved.ctime_ms = now_ms;
    if moved.kind == FileKind::Directory {
        moved.parent = target.directory;
    }
    save(tx, &keys::inode(moved_id), &moved)?;
    touch_both(tx, source, target, now_ms)
}

/// Takes away what lies in the way: a file under a file, an empty directory under a directory.
fn displace(
    tx: &mut dyn Transaction,
    (old_id, old): (InodeId, &Inode),
    moved: &Inode,
    to: &FilePath,
    reap_due_ms: u64,
) -> Result<()> {
    match (moved.kind, old.kind) {
        (FileKind::File, FileKind::File) => drop_file(tx, old_id, old, reap_due_ms),
        (FileKind::File, FileKind::Directory) => Err(MdsError::refused(ErrorCode::IsADirectory, to.as_str())),
        (FileKind::Directory, FileKind::File) => {
            Err(MdsError::refused(ErrorCode::NotADirectory, to.as_str()))
        }
        (FileKind::Directory, FileKind::Directory) => {
            let all = keys::entries(old_id);
            if !tx.scan(&all, &keys::after_prefix(&all), 1)?.is_empty() {
                return Err(MdsError::refused(ErrorCode::NotEmpty, to.as_str()));
            }
            tx.delete(&keys::inode(old_id))?;
            Ok(count(tx, counter::DIRECTORIES, -1)?)
        }
    }
}

/// `moved` must not lie on the way from `target` to the root.
fn check_no_cycle(tx: &dyn Transaction, moved: InodeId, target: InodeId, to: &FilePath) -> Result<()> {
    let mut at = target;
    for _ in 0..DEPTH_MAX {
        if at == moved {
            return Err(MdsError::refused(ErrorCode::Cycle, to.as_str()));
        }
        if at == ROOT {
            return Ok(());
        }
        at = inode(tx, at)?.parent;
    }
    Err(MdsError::refused(ErrorCode::Limit, "directory depth"))
}

fn touch_both(tx: &mut dyn Transaction, source: Place, target: Place, now_ms: u64) -> Result<()> {
    // Read again: one may be the other, or have been changed above.
    let fresh = inode(tx, source.directory)?;
    touch(tx, source.directory, fresh, now_ms)?;
    if target.directory != source.directory {
        let fresh = inode(tx, target.directory)?;
        touch(tx, target.directory, fresh, now_ms)?;
    }
    Ok(())
}
