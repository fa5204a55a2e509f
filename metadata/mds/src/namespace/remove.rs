//! Removing files and whole trees, a bounded number of entries per transaction.

use sealstone_mds_protocol::{ErrorCode, FilePath, InodeId, Name};

use super::endings::{Ending, drop_directory, lose_name};
use super::walk::{Last, place};
use super::{inode, touch};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::handle::leases::sees_names;
use crate::keys;
use crate::records::Inode;
use crate::store::{MetaError, Transaction};

/// Files and directories removed by one request at most.
pub(crate) const REMOVE_BATCH: u64 = 512;

/// A directory on the way down: its number, itself, and the name it has in the one above.
struct Level {
    id: InodeId,
    inode: Inode,
    name: Name,
}

/// Removes a file, an empty directory, or (recursive) a tree from its leaves up: up to [`REMOVE_BATCH`] entries, then
/// says that there is more.
pub(crate) fn remove(
    tx: &mut dyn Transaction,
    who: &Principal,
    path: &FilePath,
    recursive: bool,
    ending: &Ending<'_>,
) -> Result<(u64, bool)> {
    let now_ms = ending.now_ms;
    let (top, found) = place(tx, who, path, Last::Itself)?;
    let (id, found) = found.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, path.shown()))?;
    who.needs_removal(&top.directory_inode, &found, &path.shown())?;
    if !found.is_directory() {
        lose_name(tx, id, found, ending)?;
        tx.delete(&keys::entry(top.directory, &top.name))?;
        touch(tx, top.directory, 0, now_ms)?;
        return Ok((1, false));
    }
    let mut way = vec![Level { id, inode: found, name: top.name }];
    let mut removed = 0;
    while let Some(level) = way.last() {
        sees_names(level.id)?;
        let all = keys::entries(level.id);
        let Some((key, value)) = tx.scan(&all, &keys::after_prefix(&all), 1)?.pop() else {
            // Empty: take it away from the directory above.
            let level = way.pop().expect("the loop saw it");
            let above = way.last().map_or(top.directory, |level| level.id);
            drop_directory(tx, level.id, &level.inode, ending.reap_due_ms)?;
            tx.delete(&keys::entry(above, &level.name))?;
            touch(tx, above, -1, now_ms)?;
            removed += 1;
            if removed >= REMOVE_BATCH && !way.is_empty() {
                return Ok((removed, true));
            }
            continue;
        };
        if !recursive {
            return Err(MdsError::refused(ErrorCode::NotEmpty, path.shown()));
        }
        let name = keys::entry_name(&key).ok_or(MetaError::Damaged("entry with an impossible name"))?;
        let child: InodeId = crate::records::decode(&value)?;
        let entry = inode(tx, child)?;
        who.needs_removal(&level.inode, &entry, &name.shown())?;
        if entry.is_directory() {
            way.push(Level { id: child, inode: entry, name });
            continue;
        }
        lose_name(tx, child, entry, ending)?;
        tx.delete(&key)?;
        removed += 1;
        if removed >= REMOVE_BATCH {
            return Ok((removed, true));
        }
    }
    Ok((removed, false))
}
