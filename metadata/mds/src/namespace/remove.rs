//! Removing files and whole trees, a bounded number of entries per transaction.

use sealstone_mds_protocol::{ErrorCode, FileKind, FilePath, InodeId, Name};

use super::{child, drop_file, inode, place, touch};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Inode, count, counter};
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
    reap_due_ms: u64,
    now_ms: u64,
) -> Result<(u64, bool)> {
    let top = place(tx, who, path)?;
    let (id, found) = child(tx, top.directory, &top.name)?
        .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, path.as_str()))?;
    who.needs_removal(&top.directory_inode, &found, path.as_str())?;
    if found.kind == FileKind::File {
        drop_file(tx, id, &found, reap_due_ms)?;
        tx.delete(&keys::entry(top.directory, &top.name))?;
        touch(tx, top.directory, top.directory_inode, now_ms)?;
        return Ok((1, false));
    }
    let mut way = vec![Level { id, inode: found, name: top.name }];
    let mut removed = 0;
    while let Some(level) = way.last() {
        let all = keys::entries(level.id);
        let Some((key, value)) = tx.scan(&all, &keys::after_prefix(&all), 1)?.pop() else {
            // Empty: take it away from the directory above.
            let level = way.pop().expect("the loop saw it");
            let above = way.last().map_or(top.directory, |level| level.id);
            tx.delete(&keys::inode(level.id))?;
            tx.delete(&keys::entry(above, &level.name))?;
            count(tx, counter::DIRECTORIES, -1)?;
            removed += 1;
            if removed >= REMOVE_BATCH && !way.is_empty() {
                return Ok((removed, true));
            }
            continue;
        };
        if !recursive {
            return Err(MdsError::refused(ErrorCode::NotEmpty, path.as_str()));
        }
        let name = keys::entry_name(&key).ok_or(MetaError::Damaged("entry with an impossible name"))?;
        let child: InodeId = crate::records::decode(&value)?;
        let entry = inode(tx, child)?;
        who.needs_removal(&level.inode, &entry, name.as_str())?;
        match entry.kind {
            FileKind::Directory => way.push(Level { id: child, inode: entry, name }),
            FileKind::File => {
                drop_file(tx, child, &entry, reap_due_ms)?;
                tx.delete(&key)?;
                removed += 1;
                if removed >= REMOVE_BATCH {
                    return Ok((removed, true));
                }
            }
        }
    }
    touch(tx, top.directory, top.directory_inode, now_ms)?;
    Ok((removed, false))
}
