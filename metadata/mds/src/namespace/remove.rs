//! Removal of files and trees, a bounded number of entries per transaction.
//!
//! Contract: a request visits O(entries removed + directories on the path) keys. It never scans a
//! directory again from its first key for each entry, because the store steps over every removed
//! key that its file still has.

use std::collections::VecDeque;

use parking_lot::Mutex;
use sealstone_mds_protocol::{ErrorCode, FilePath, InodeId, Name};

use super::unlink::{UnlinkContext, drop_directory, unlink_name};
use super::walk::{FinalLink, resolve_entry};
use super::{inode, touch};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::Inode;
use crate::request_context::recall_dir_writer;
use crate::store::{MetaError, Pair, Transaction};

/// Maximum number of files and directories removed by one request, so that other writers get their
/// turn.
pub(crate) const REMOVE_BATCH: u64 = 64;
/// Entries of a directory that are read at once.
const REMOVE_PAGE: usize = 64;
/// Maximum number of directories whose last removed name is remembered for the next request.
const CURSORS_MAX: usize = 256;

/// Where the next request of a recursive removal continues in each directory.
///
/// A cursor only skips removed keys: a directory counts as empty after one scan of all of it.
#[derive(Default)]
pub(crate) struct RemoveCursors(Mutex<VecDeque<(InodeId, Vec<u8>)>>);

impl RemoveCursors {
    fn get(&self, directory: InodeId) -> Option<Vec<u8>> {
        self.0.lock().iter().find(|(id, _)| *id == directory).map(|(_, from)| from.clone())
    }

    fn set(&self, directory: InodeId, from: Vec<u8>) {
        let mut cursors = self.0.lock();
        cursors.retain(|(id, _)| *id != directory);
        if cursors.len() >= CURSORS_MAX {
            cursors.pop_front();
        }
        cursors.push_back((directory, from));
    }

    fn forget(&self, directory: InodeId) {
        self.0.lock().retain(|(id, _)| *id != directory);
    }
}

/// A directory on the way down: its number, its record, its name, and the position in its entries.
struct RemovalLevel {
    id: InodeId,
    inode: Inode,
    name: Name,
    page: VecDeque<Pair>,
    /// First key that was not read yet.
    from: Vec<u8>,
    /// Whether the scan began behind the first key.
    skipped: bool,
}

impl RemovalLevel {
    fn new(id: InodeId, inode: Inode, name: Name, cursors: &RemoveCursors) -> Self {
        let cursor = cursors.get(id);
        let skipped = cursor.is_some();
        let from = cursor.unwrap_or_else(|| keys::entries(id));
        Self { id, inode, name, page: VecDeque::new(), from, skipped }
    }

    /// Returns the next entry; none if the directory is empty.
    fn next(&mut self, tx: &mut dyn Transaction) -> Result<Option<Pair>> {
        if let Some(pair) = self.page.pop_front() {
            return Ok(Some(pair));
        }
        recall_dir_writer(self.id)?;
        let all = keys::entries(self.id);
        let until = keys::after_prefix(&all);
        loop {
            self.page = tx.scan(&self.from, &until, REMOVE_PAGE)?.into();
            if let Some((last, _)) = self.page.back() {
                self.from = [&last[..], &[0]].concat();
                return Ok(self.page.pop_front());
            }
            if !std::mem::take(&mut self.skipped) {
                return Ok(None);
            }
            // Names may have been created before the cursor since the last request.
            self.from.clone_from(&all);
        }
    }

    /// First key that the next request has to read.
    fn cursor(&self) -> Vec<u8> {
        self.page.front().map_or_else(|| self.from.clone(), |(key, _)| key.clone())
    }
}

/// Removes a file, an empty directory or, with `recursive`, a tree from the leaves up. Returns the
/// number of entries removed, at most [`REMOVE_BATCH`], and whether more remain.
pub(crate) fn remove(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    recursive: bool,
    cursors: &RemoveCursors,
    ending: &UnlinkContext<'_>,
) -> Result<(u64, bool)> {
    let now_ms = ending.now_ms;
    let (top, found) = resolve_entry(tx, principal, path, FinalLink::NoFollow)?;
    let (id, found) = found.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, path.shown()))?;
    principal.needs_removal(&top.directory_inode, &found, &path.shown())?;
    if !found.is_directory() {
        unlink_name(tx, id, found, ending)?;
        tx.delete(&keys::entry(top.directory, &top.name))?;
        touch(tx, top.directory, 0, now_ms)?;
        return Ok((1, false));
    }
    let mut levels = vec![RemovalLevel::new(id, found, top.name, cursors)];
    let mut removed = 0;
    let pause = |levels: &[RemovalLevel], removed| {
        for level in levels {
            cursors.set(level.id, level.cursor());
        }
        Ok((removed, true))
    };
    while let Some(level) = levels.last_mut() {
        let Some((key, value)) = level.next(tx)? else {
            // Empty: remove it from the directory above.
            let level = levels.pop().expect("the loop saw it");
            let above = levels.last().map_or(top.directory, |level| level.id);
            drop_directory(tx, level.id, &level.inode, ending.reap_due_ms)?;
            tx.delete(&keys::entry(above, &level.name))?;
            touch(tx, above, -1, now_ms)?;
            cursors.forget(level.id);
            removed += 1;
            if removed >= REMOVE_BATCH && !levels.is_empty() {
                return pause(&levels, removed);
            }
            continue;
        };
        if !recursive {
            return Err(MdsError::refused(ErrorCode::NotEmpty, path.shown()));
        }
        let name = keys::entry_name(&key).ok_or(MetaError::Damaged("entry with an impossible name"))?;
        let child: InodeId = crate::records::decode(&value)?;
        let entry = inode(tx, child)?;
        principal.needs_removal(&level.inode, &entry, &name.shown())?;
        if entry.is_directory() {
            levels.push(RemovalLevel::new(child, entry, name, cursors));
            continue;
        }
        unlink_name(tx, child, entry, ending)?;
        tx.delete(&key)?;
        removed += 1;
        if removed >= REMOVE_BATCH {
            return pause(&levels, removed);
        }
    }
    Ok((removed, false))
}
