//! Renames of files and directories.
//!
//! Truth: POSIX.1-2017 rename(), Linux renameat2 for further modes;
//! docs/standards/mds/operations.md §5.3.

use sealstone_mds_protocol::{ErrorCode, FilePath, InodeId, Name, RenameMode, Stat};

use super::trees::check_same;
use super::unlink::{UnlinkContext, drop_directory, unlink_name};
use super::walk::{FinalLink, NameInDirectory, resolve_entry};
use super::{DEPTH_MAX, ROOT, child, inode, is_empty, need_directory, nodes, touch};
use crate::access::{AccessRight, Principal};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Inode, save};
use crate::store::Transaction;

/// Parameters of a rename by parent node.
pub(crate) struct RenameParams<'a> {
    pub(crate) from_parent: InodeId,
    pub(crate) from: &'a Name,
    pub(crate) to_parent: InodeId,
    pub(crate) to: &'a Name,
    pub(crate) mode: RenameMode,
}

/// Attributes of the renamed node and of the node that had the new name.
type RenameOutcome = (Stat, Option<Stat>);

/// Renames `from` to `to`, given as paths.
pub(crate) fn rename(
    tx: &mut dyn Transaction,
    principal: &Principal,
    from: &FilePath,
    to: &FilePath,
    replace: bool,
    ending: &UnlinkContext<'_>,
) -> Result<()> {
    let (source, moved) = resolve_entry(tx, principal, from, FinalLink::NoFollow)?;
    let moved = moved.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, from.shown()))?;
    let (target, old) = resolve_entry(tx, principal, to, FinalLink::NoFollow)?;
    if (source.directory, &source.name) == (target.directory, &target.name) {
        return Ok(());
    }
    let mode = if replace { RenameMode::Replace } else { RenameMode::NoReplace };
    let subject = [&*from.shown(), &*to.shown()];
    rename_entry(tx, principal, (source, moved), (target, old), mode, subject, ending)?;
    Ok(())
}

/// Renames an entry of directories given by number.
pub(crate) fn rename_node(
    tx: &mut dyn Transaction,
    principal: &Principal,
    rename: &RenameParams<'_>,
    ending: &UnlinkContext<'_>,
) -> Result<RenameOutcome> {
    let subject = [&*rename.from.shown(), &*rename.to.shown()];
    let at = |directory, name: &Name, subject: &str| {
        let directory_inode = nodes::node(tx, directory)?;
        need_directory(&directory_inode, subject)?;
        principal.needs(AccessRight::Search, &directory_inode, subject)?;
        let found = child(tx, directory, name)?;
        Ok::<_, MdsError>((NameInDirectory { directory, directory_inode, name: name.clone() }, found))
    };
    let (source, moved) = at(rename.from_parent, rename.from, subject[0])?;
    let moved = moved.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, subject[0]))?;
    let (target, old) = at(rename.to_parent, rename.to, subject[1])?;
    rename_entry(tx, principal, (source, moved), (target, old), rename.mode, subject, ending)
}

fn rename_entry(
    tx: &mut dyn Transaction,
    principal: &Principal,
    (source, (moved_id, mut moved)): (NameInDirectory, (InodeId, Inode)),
    (target, old): (NameInDirectory, Option<(InodeId, Inode)>),
    mode: RenameMode,
    [from, to]: [&str; 2],
    ending: &UnlinkContext<'_>,
) -> Result<RenameOutcome> {
    match (mode, &old) {
        (RenameMode::NoReplace, Some(_)) => return Err(MdsError::refused(ErrorCode::Exists, to)),
        (RenameMode::Exchange, None) => return Err(MdsError::refused(ErrorCode::NotFound, to)),
        // Both names are hard links of one file: nothing changes, and both names stay.
        (_, Some((old_id, old))) if *old_id == moved_id => {
            return Ok((moved.stat(moved_id), Some(old.stat(*old_id))));
        }
        _ => {}
    }
    let across = source.directory != target.directory;
    check_may_leave(principal, &source, &moved, across, from)?;
    principal.needs_entries(&target.directory_inode, to)?;
    if let Some((_, old)) = &old {
        principal.needs_removal(&target.directory_inode, old, to)?;
    }
    if moved.is_directory() {
        check_no_cycle(tx, moved_id, target.directory, to)?;
    }
    check_same(moved_id, &moved, &target.directory_inode, to)?;
    let now_ms = ending.now_ms;
    // Change of the number of subdirectories of both parents.
    let gained = i32::from(moved.is_directory());
    let (mut of_source, mut of_target) = (-gained, gained);
    let other = match old {
        None => {
            tx.delete(&keys::entry(source.directory, &source.name))?;
            None
        }
        Some((old_id, mut old)) if mode == RenameMode::Exchange => {
            check_may_leave(principal, &target, &old, across, to)?;
            check_same(old_id, &old, &source.directory_inode, from)?;
            if old.is_directory() {
                check_no_cycle(tx, old_id, source.directory, from)?;
                old.parent = source.directory;
                (of_source, of_target) = (of_source + 1, of_target - 1);
            }
            old.changes(now_ms);
            save(tx, &keys::inode(old_id), &old)?;
            save(tx, &keys::entry(source.directory, &source.name), &old_id)?;
            Some(old.stat(old_id))
        }
        Some((old_id, old)) => {
            of_target -= i32::from(old.is_directory());
            let old = remove_target(tx, (old_id, old), &moved, to, ending)?;
            tx.delete(&keys::entry(source.directory, &source.name))?;
            Some(old.stat(old_id))
        }
    };
    save(tx, &keys::entry(target.directory, &target.name), &moved_id)?;
    moved.changes(now_ms);
    if moved.is_directory() {
        moved.parent = target.directory;
    }
    save(tx, &keys::inode(moved_id), &moved)?;
    if across {
        touch(tx, source.directory, of_source, now_ms)?;
        touch(tx, target.directory, of_target, now_ms)?;
    } else {
        touch(tx, source.directory, of_source + of_target, now_ms)?;
    }
    Ok((moved.stat(moved_id), other))
}

/// Fails unless a node may leave its directory. A directory with a new parent changes its `..`
/// entry, which needs the write permission on itself.
fn check_may_leave(
    principal: &Principal,
    place: &NameInDirectory,
    node: &Inode,
    across: bool,
    subject: &str,
) -> Result<()> {
    principal.needs_removal(&place.directory_inode, node, subject)?;
    if across && node.is_directory() {
        principal.needs(AccessRight::Write, node, subject)?;
    }
    Ok(())
}

/// Removes the replaced node: a non-directory, or an empty directory if the renamed node is a
/// directory.
fn remove_target(
    tx: &mut dyn Transaction,
    (old_id, mut old): (InodeId, Inode),
    moved: &Inode,
    to: &str,
    ending: &UnlinkContext<'_>,
) -> Result<Inode> {
    match (moved.is_directory(), old.is_directory()) {
        (false, false) => unlink_name(tx, old_id, old, ending),
        (false, true) => Err(MdsError::refused(ErrorCode::IsADirectory, to)),
        (true, false) => Err(MdsError::refused(ErrorCode::NotADirectory, to)),
        (true, true) => {
            if !is_empty(tx, old_id)? {
                return Err(MdsError::refused(ErrorCode::NotEmpty, to));
            }
            drop_directory(tx, old_id, &old, ending.reap_due_ms)?;
            old.links = 0;
            Ok(old)
        }
    }
}

/// Fails if `target` is `moved` or below it.
fn check_no_cycle(tx: &dyn Transaction, moved: InodeId, target: InodeId, to: &str) -> Result<()> {
    let mut at = target;
    for _ in 0..DEPTH_MAX {
        if at == moved {
            return Err(MdsError::refused(ErrorCode::Cycle, to));
        }
        if at == ROOT {
            return Ok(());
        }
        at = inode(tx, at)?.parent;
    }
    Err(MdsError::refused(ErrorCode::Limit, "directory depth"))
}
