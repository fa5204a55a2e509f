//! File sizes: growth, truncation, and reports of writes.
//!
//! Contract: truncated bytes never reappear. A file truncated to nothing releases its objects. A
//! file truncated to a shorter size does not grow again before the server has cleared its objects
//! from there on. A writer detects a concurrent truncation by the generation.
//! Truth: docs/standards/mds/nodes.md §5.8; docs/adr/0035-truncated-data-is-cleared.md.

use sealstone_mds_protocol::{ErrorCode, Failure, InodeId, Layout, ObjectRef, PlacementRecord, Stat};

use super::unlink::{forget_clear, queue_objects};
use super::{check_size, need_file, nodes, owner};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::placement::outgrown::{LayoutForm, is_marked};
use crate::quota;
use crate::records::{Inode, count, counter, load, ns, save};
use crate::store::{Snapshot, Transaction};

/// Delay before a client repeats a write that has to wait for objects to be cleared, milliseconds.
const CLEAR_RETRY_MS: u32 = 10;

/// Fails while truncated bytes are being cleared: new bytes could be cleared with them.
pub(crate) fn check_clear(file: &Inode) -> Result<()> {
    if file.truncated_from.is_some() { Err(MdsError::Refused(Failure::busy(CLEAR_RETRY_MS))) } else { Ok(()) }
}

/// Changes the size of a file; the caller saves the inode.
pub(super) fn resize(
    tx: &mut dyn Transaction,
    id: InodeId,
    file: &mut Inode,
    size: u64,
    reap_due_ms: u64,
    now_ms: u64,
) -> Result<()> {
    if size > file.size {
        check_clear(file)?;
    }
    quota::resize(tx, file, size)?;
    if size == 0 || size < file.size {
        truncate_objects(tx, id, file, size, reap_due_ms)?;
    }
    mark_outgrown(tx, id, file, file.size, size)?;
    file.sparse |= size > file.size;
    file.size = size;
    file.version += 1;
    file.checksum = None;
    file.changes(now_ms);
    Ok(())
}

/// Marks the bytes from `size` on as truncated, to be cleared on the devices.
fn truncate_objects(
    tx: &mut dyn Transaction,
    id: InodeId,
    file: &mut Inode,
    size: u64,
    reap_due_ms: u64,
) -> Result<()> {
    if size == 0 {
        return release_objects(tx, id, file, reap_due_ms);
    }
    file.generation = file.generation.wrapping_add(1);
    if file.layout.is_some() {
        if file.truncated_from.replace(size).is_none() {
            count(tx, counter::CLEARS, 1)?;
        }
        save(tx, &keys::clear(id), &())?;
    }
    Ok(())
}

/// Queues the objects of a file for clearing that may hold bytes beyond its size, unless the file
/// has changed since it was measured.
pub(crate) fn truncate_overlong(
    tx: &mut dyn Transaction,
    id: InodeId,
    (size, generation): (u64, u32),
    reap_due_ms: u64,
) -> Result<bool> {
    let Some(mut file) = load::<Inode, _>(tx, &keys::inode(id))? else { return Ok(false) };
    if file.size != size || file.generation != generation || file.layout.is_none() {
        return Ok(false);
    }
    truncate_objects(tx, id, &mut file, size, reap_due_ms)?;
    save(tx, &keys::inode(id), &file)?;
    Ok(true)
}

/// Releases all objects of an empty file.
fn release_objects(tx: &mut dyn Transaction, id: InodeId, file: &mut Inode, reap_due_ms: u64) -> Result<()> {
    let Some(layout) = file.layout.take() else { return Ok(()) };
    queue_objects(tx, layout.objects(), reap_due_ms, file.create_grants_until_ms)?;
    if file.truncated_from.take().is_some() {
        forget_clear(tx, id)?;
    }
    file.placed = None;
    file.objects_exist = false;
    file.create_grants_until_ms = 0;
    file.in_place_grants_until_ms = 0;
    file.generation = file.generation.wrapping_add(1);
    Ok(())
}

/// Gives a file a layout chosen by `lay_out`, if it has none. Until its objects all exist, a
/// credential that may create them can be valid until `grants_until_ms`.
pub(crate) fn allocate(
    tx: &mut dyn Transaction,
    id: InodeId,
    grants_until_ms: u64,
    lay_out: impl FnOnce(&mut dyn Transaction) -> Result<(Layout, PlacementRecord)>,
) -> Result<(Inode, Layout)> {
    let mut file = nodes::node(tx, id)?;
    need_file(&file, "node")?;
    check_clear(&file)?;
    let layout = match &file.layout {
        Some(layout) => layout.clone(),
        None => {
            if file.size == 0 {
                // Any write will make it longer.
                quota::check_growth(tx, &file, 1)?;
            }
            let (layout, placed) = lay_out(tx)?;
            file.layout = Some(layout.clone());
            file.placed = Some(placed);
            file.objects_exist = false;
            file.sparse = true;
            layout
        }
    };
    if !file.objects_exist {
        file.create_grants_until_ms = file.create_grants_until_ms.max(grants_until_ms);
        file.in_place_grants_until_ms = file.in_place_grants_until_ms.max(grants_until_ms);
        save(tx, &keys::inode(id), &file)?;
    }
    Ok((file, layout))
}

/// Records the expiry of a credential that can create objects of a file, before it is issued. Does
/// nothing if all objects exist.
pub(crate) fn note_create_grant(tx: &mut dyn Transaction, id: InodeId, until_ms: u64) -> Result<Inode> {
    let mut file = nodes::node(tx, id)?;
    if !file.objects_exist && file.layout.is_some() {
        file.create_grants_until_ms = file.create_grants_until_ms.max(until_ms);
        file.in_place_grants_until_ms = file.in_place_grants_until_ms.max(until_ms);
        save(tx, &keys::inode(id), &file)?;
    }
    Ok(file)
}

/// Report of a write.
pub(crate) struct WriteReport {
    pub(crate) size_at_least: u64,
    pub(crate) mtime_ns: Option<i64>,
    pub(crate) generation: u32,
    pub(crate) made: bool,
    pub(crate) fit: bool,
}

/// Attributes after the write, and the reason if only a part was accepted.
pub(crate) type WriteOutcome = (Stat, Option<MdsError>);

/// Records bytes that are on the devices. A later report never shortens the file. With `fit`, bytes
/// beyond the quota are truncated and the refusal is returned with the new attributes.
pub(crate) fn written(
    tx: &mut dyn Transaction,
    principal: &Principal,
    id: InodeId,
    writing: &WriteReport,
    reap_due_ms: u64,
    now_ms: u64,
) -> Result<WriteOutcome> {
    let mut over = None;
    let mut file = nodes::node(tx, id)?;
    need_file(&file, "node")?;
    check_size(writing.size_at_least)?;
    if file.generation != writing.generation || (file.layout.is_none() && writing.size_at_least > 0) {
        return Err(MdsError::refused(ErrorCode::Stale, "file was truncated meanwhile"));
    }
    if writing.size_at_least > file.size {
        check_clear(&file)?;
        let mut size = writing.size_at_least;
        if let Err(error) = quota::resize(tx, &file, size) {
            size = match quota::free_bytes(tx, &file)? {
                Some(free) if writing.fit => file.size.saturating_add(free).min(size),
                _ => return Err(error),
            };
            // If the reason is not a limit, this fails again.
            quota::resize(tx, &file, size)?;
            over = Some(error);
            truncate_objects(tx, id, &mut file, size, reap_due_ms)?;
        }
        mark_outgrown(tx, id, &file, file.size, size)?;
        file.size = size;
        file.sparse = true;
    }
    file.objects_exist |= writing.made && file.layout.is_some();
    if writing.made && writing.size_at_least == 0 && writing.mtime_ns.is_none() {
        // The existence of its objects is not a visible change.
        save(tx, &keys::inode(id), &file)?;
        return Ok((file.stat(id), None));
    }
    file.version += 1;
    file.checksum = None;
    file.mtime_ns = writing.mtime_ns.unwrap_or(ns(now_ms));
    file.changes(now_ms);
    owner::clear_setid_bits(principal, &mut file);
    save(tx, &keys::inode(id), &file)?;
    Ok((file.stat(id), over))
}

/// Marks a file that may have outgrown its layout, so that it is checked for migration.
pub(super) fn mark_outgrown(
    tx: &mut dyn Transaction,
    id: InodeId,
    file: &Inode,
    before: u64,
    size: u64,
) -> Result<()> {
    let form = file.layout.as_ref().map(LayoutForm::of);
    if form.is_some_and(|form| is_marked(form, file.placed.as_ref(), before, size)) {
        save(tx, &keys::outgrown(id), &())?;
    }
    Ok(())
}

/// A file whose objects hold truncated bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClearItem {
    /// Inode number of the file.
    pub inode: InodeId,
    /// Its objects, each with its maximum length.
    pub objects: Vec<(ObjectRef, u64)>,
    size: u64,
    generation: u32,
}

/// Returns up to `limit` files to be cleared, in order of their numbers, after `after`.
pub(crate) fn next_clears<S: Snapshot + ?Sized>(
    view: &S,
    after: Option<InodeId>,
    limit: usize,
) -> Result<Vec<ClearItem>> {
    let (from, until) = keys::clears(after);
    let mut items = Vec::new();
    for (key, _) in view.scan(&from, &until, limit)? {
        let Some(inode) = keys::clear_inode(&key) else { continue };
        items.extend(clear_of(view, inode)?);
    }
    Ok(items)
}

/// Returns the clear work of a file, if there is any.
pub(crate) fn clear_of<S: Snapshot + ?Sized>(view: &S, inode: InodeId) -> Result<Option<ClearItem>> {
    let file = load::<Inode, _>(view, &keys::inode(inode))?;
    let Some((file, size)) = file.and_then(|file| file.truncated_from.map(|size| (file, size))) else {
        return Ok(None);
    };
    let objects = file.layout.iter().flat_map(|layout| {
        let objects = layout.objects().iter().enumerate();
        objects.map(move |(index, object)| (*object, layout.object_length(index, size)))
    });
    Ok(Some(ClearItem { inode, objects: objects.collect(), size, generation: file.generation }))
}

/// Records that the devices have cleared these files. A file that was truncated again stays queued.
pub(crate) fn cleared(tx: &mut dyn Transaction, items: &[ClearItem]) -> Result<()> {
    for item in items {
        let Some(mut file) = load::<Inode, _>(tx, &keys::inode(item.inode))? else { continue };
        if file.truncated_from == Some(item.size) && file.generation == item.generation {
            file.truncated_from = None;
            // Bytes written behind the end since the truncation may have been cleared too.
            file.generation = file.generation.wrapping_add(1);
            save(tx, &keys::inode(item.inode), &file)?;
            forget_clear(tx, item.inode)?;
        }
    }
    Ok(())
}
