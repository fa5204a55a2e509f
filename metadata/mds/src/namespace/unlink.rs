//! Removal of nodes: with the last name or, for open files, with the last close.
//!
//! Contract: the transaction that deletes the inode record also queues its objects; an inode
//! without a name has an orphan record. So a crash between two transactions neither loses nor leaks
//! anything.

use sealstone_mds_protocol::{InodeId, ObjectRef};

use crate::error::Result;
use crate::keys;
use crate::open_files::{CLIENT_TIMEOUT_MS, RemovalGuard};
use crate::quota;
use crate::records::{Inode, count, counter, load, save};
use crate::store::{Snapshot, Transaction};

/// Context of a removal.
pub(crate) struct UnlinkContext<'a> {
    /// Time at which the objects of removed files are removed.
    pub(crate) reap_due_ms: u64,
    pub(crate) now_ms: u64,
    pub(crate) removing: &'a RemovalGuard<'a>,
}

/// Decrements the link count of a node that is not a directory. Without links it is dropped, or
/// becomes an orphan if it is open. The caller deletes the entry. Returns the changed node.
pub(super) fn unlink_name(
    tx: &mut dyn Transaction,
    id: InodeId,
    mut node: Inode,
    ending: &UnlinkContext<'_>,
) -> Result<Inode> {
    node.links = node.links.saturating_sub(1);
    node.changes(ending.now_ms);
    if node.links > 0 {
        save(tx, &keys::inode(id), &node)?;
        return Ok(node);
    }
    count(tx, counter::FILES, -1)?;
    if ending.removing.is_removable(id) {
        drop_node(tx, id, &node, ending.reap_due_ms)?;
    } else {
        save(tx, &keys::inode(id), &node)?;
        save(tx, &keys::orphan(ending.now_ms.saturating_add(CLIENT_TIMEOUT_MS), id), &())?;
        count(tx, counter::ORPHANS, 1)?;
    }
    Ok(node)
}

/// Deletes an inode with its attributes and queues its objects for removal at `due_ms`.
pub(super) fn drop_node(tx: &mut dyn Transaction, id: InodeId, node: &Inode, due_ms: u64) -> Result<()> {
    tx.delete(&keys::inode(id))?;
    quota::release_node(tx, node)?;
    if node.xattrs > 0 {
        let all = keys::xattrs(id);
        for (key, _) in tx.scan(&all, &keys::after_prefix(&all), usize::from(node.xattrs))? {
            tx.delete(&key)?;
        }
    }
    if node.truncated_from.is_some() {
        forget_clear(tx, id)?;
    }
    if let Some(layout) = &node.layout {
        queue_objects(tx, layout.objects(), due_ms, node.create_grants_until_ms)?;
    }
    Ok(())
}

/// Deletes an empty directory.
pub(super) fn drop_directory(tx: &mut dyn Transaction, id: InodeId, node: &Inode, due_ms: u64) -> Result<()> {
    drop_node(tx, id, node, due_ms)?;
    if tx.get(&keys::delegation(id))?.is_some() {
        tx.delete(&keys::delegation(id))?;
    }
    Ok(count(tx, counter::DIRECTORIES, -1)?)
}

pub(super) fn forget_clear(tx: &mut dyn Transaction, id: InodeId) -> Result<()> {
    tx.delete(&keys::clear(id))?;
    Ok(count(tx, counter::CLEARS, -1)?)
}

/// Drops an orphan after a close, if no other client has it open.
pub(crate) fn close(tx: &mut dyn Transaction, id: InodeId, ending: &UnlinkContext<'_>) -> Result<()> {
    let Some(node) = load::<Inode, _>(tx, &keys::inode(id))? else { return Ok(()) };
    if node.links > 0 || !ending.removing.is_removable(id) {
        return Ok(());
    }
    // The sweep later finds its orphan record without an inode and deletes it.
    drop_node(tx, id, &node, ending.reap_due_ms)
}

/// Returns keys of orphans that are due soon, in order of time, after `after`.
pub(crate) fn orphans<S: Snapshot + ?Sized>(
    view: &S,
    after: Option<&[u8]>,
    limit: usize,
    now_ms: u64,
) -> Result<Vec<Vec<u8>>> {
    let (first, until) = keys::due_orphans(now_ms.saturating_add(CLIENT_TIMEOUT_MS / 2));
    let from = after.map_or(first, |after| [after, &[0]].concat());
    Ok(view.scan(&from, &until, limit)?.into_iter().map(|(key, _)| key).collect())
}

/// Whether the sweep has to act on this orphan.
pub(crate) fn is_swept(key: &[u8], drops: bool, ending: &UnlinkContext<'_>) -> bool {
    let Some((due_ms, id)) = keys::orphan_parts(key) else { return false };
    !ending.removing.is_free(id) || (drops && due_ms <= ending.now_ms)
}

/// Extends orphans that are open, or whose clients may still return, before they are due, so that
/// no other server drops them. With `drops`, due orphans that are not open are removed.
pub(crate) fn sweep_orphans(
    tx: &mut dyn Transaction,
    page: &[Vec<u8>],
    drops: bool,
    ending: &UnlinkContext<'_>,
) -> Result<()> {
    for key in page.iter().filter(|key| is_swept(key, drops, ending)) {
        let Some((_, id)) = keys::orphan_parts(key) else { continue };
        if tx.get(key)?.is_none() {
            // Another server has handled it.
            continue;
        }
        tx.delete(key)?;
        let node = load::<Inode, _>(tx, &keys::inode(id))?.filter(|node| node.links == 0);
        match node {
            Some(_) if !ending.removing.is_free(id) => {
                save(tx, &keys::orphan(ending.now_ms.saturating_add(CLIENT_TIMEOUT_MS), id), &())?;
            }
            Some(node) => {
                drop_node(tx, id, &node, ending.reap_due_ms)?;
                count(tx, counter::ORPHANS, -1)?;
            }
            None => count(tx, counter::ORPHANS, -1)?,
        }
    }
    Ok(())
}

/// Queues objects for removal. While a credential that can create them is valid, they are removed a
/// second time after it expires.
pub(crate) fn queue_objects(
    tx: &mut dyn Transaction,
    objects: &[ObjectRef],
    due_ms: u64,
    guard_ms: u64,
) -> Result<()> {
    for object in objects {
        save(tx, &keys::reap(due_ms, *object), &guard_ms)?;
    }
    Ok(count(tx, counter::REAPS, objects.len() as i64)?)
}
