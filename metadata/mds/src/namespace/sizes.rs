//! Sizes: where the bytes of a file begin and end to exist.
//!
//! Contract: a byte that was cut off never comes back. Cut to nothing, a file gives its objects up; cut shorter, it does not
//! grow again before its objects were cleared from there on, which the server does itself. Whoever wrote behind a cut is
//! told so by the generation.
//! Truth: docs/standards/mds/nodes.md §5.8; docs/adr/0035-truncated-data-is-cleared.md.

use sealstone_mds_protocol::{ErrorCode, Failure, InodeId, Layout, ObjectRef, Placed, Stat};

use super::endings::{forget_clear, queue_objects};
use super::{check_size, need_file, nodes, owner};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::placement::outgrown::{Form, is_marked};
use crate::quota;
use crate::records::{Inode, count, counter, load, ns, save};
use crate::store::{Snapshot, Transaction};

/// Whoever wants a file to grow asks again after this while its objects are being cleared.
const CLEAR_RETRY_MS: u32 = 10;

/// Nobody begins to write while what was cut off is being cleared: it could be cleared too.
pub(crate) fn check_clear(file: &Inode) -> Result<()> {
    if file.old_from.is_some() { Err(MdsError::Refused(Failure::busy(CLEAR_RETRY_MS))) } else { Ok(()) }
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
        cut_objects(tx, id, file, size, reap_due_ms)?;
    }
    mark_outgrown(tx, id, file, file.size, size)?;
    file.sparse |= size > file.size;
    file.size = size;
    file.version += 1;
    file.checksum = None;
    file.changes(now_ms);
    Ok(())
}

/// Nothing from `size` on is in the objects any more, or will be when they are cleared.
fn cut_objects(
    tx: &mut dyn Transaction,
    id: InodeId,
    file: &mut Inode,
    size: u64,
    reap_due_ms: u64,
) -> Result<()> {
    if size == 0 {
        return give_up_objects(tx, id, file, reap_due_ms);
    }
    file.generation = file.generation.wrapping_add(1);
    if file.layout.is_some() {
        if file.old_from.replace(size).is_none() {
            count(tx, counter::CLEARS, 1)?;
        }
        save(tx, &keys::clear(id), &())?;
    }
    Ok(())
}

/// Objects of a file may hold bytes beyond its size: they are cleared. Not if the file changed since it was measured.
pub(crate) fn cut_to_size(
    tx: &mut dyn Transaction,
    id: InodeId,
    (size, generation): (u64, u32),
    reap_due_ms: u64,
) -> Result<bool> {
    let Some(mut file) = load::<Inode, _>(tx, &keys::inode(id))? else { return Ok(false) };
    if file.size != size || file.generation != generation || file.layout.is_none() {
        return Ok(false);
    }
    cut_objects(tx, id, &mut file, size, reap_due_ms)?;
    save(tx, &keys::inode(id), &file)?;
    Ok(true)
}

/// An empty file has no objects.
fn give_up_objects(tx: &mut dyn Transaction, id: InodeId, file: &mut Inode, reap_due_ms: u64) -> Result<()> {
    let Some(layout) = file.layout.take() else { return Ok(()) };
    queue_objects(tx, layout.objects(), reap_due_ms, file.create_grants_until_ms)?;
    if file.old_from.take().is_some() {
        forget_clear(tx, id)?;
    }
    file.placed = None;
    file.made = false;
    file.create_grants_until_ms = 0;
    file.placing_until_ms = 0;
    file.generation = file.generation.wrapping_add(1);
    Ok(())
}

/// Gives a file objects, if it has none: `lay_out` chooses them. A grant that may make them can be alive until
/// `grants_until_ms`, as long as they are not all made.
pub(crate) fn allocate(
    tx: &mut dyn Transaction,
    id: InodeId,
    grants_until_ms: u64,
    lay_out: impl FnOnce(&mut dyn Transaction) -> Result<(Layout, Placed)>,
) -> Result<(Inode, Layout)> {
    let mut file = nodes::node(tx, id)?;
    need_file(&file, "node")?;
    check_clear(&file)?;
    let layout = match &file.layout {
        Some(layout) => layout.clone(),
        None => {
            if file.size == 0 {
                // Whatever is written to it makes it longer.
                quota::check_growth(tx, &file, 1)?;
            }
            let (layout, placed) = lay_out(tx)?;
            file.layout = Some(layout.clone());
            file.placed = Some(placed);
            file.made = false;
            file.sparse = true;
            layout
        }
    };
    if !file.made {
        file.create_grants_until_ms = file.create_grants_until_ms.max(grants_until_ms);
        file.placing_until_ms = file.placing_until_ms.max(grants_until_ms);
        save(tx, &keys::inode(id), &file)?;
    }
    Ok((file, layout))
}

/// A grant that may make the objects of a file is about to leave; none does if they are all made.
pub(crate) fn note_creating(tx: &mut dyn Transaction, id: InodeId, until_ms: u64) -> Result<Inode> {
    let mut file = nodes::node(tx, id)?;
    if !file.made && file.layout.is_some() {
        file.create_grants_until_ms = file.create_grants_until_ms.max(until_ms);
        file.placing_until_ms = file.placing_until_ms.max(until_ms);
        save(tx, &keys::inode(id), &file)?;
    }
    Ok(file)
}

/// What somebody wrote.
pub(crate) struct Writing {
    pub(crate) size_at_least: u64,
    pub(crate) mtime_ns: Option<i64>,
    pub(crate) generation: u32,
    pub(crate) made: bool,
    pub(crate) fit: bool,
}

/// What a file is after it, and why not all of it was taken, if it was not.
pub(crate) type Taken = (Stat, Option<MdsError>);

/// Records bytes that are on the devices. Of two who write behind the end, whoever is later shortens nothing. What a quota
/// does not let in is cut off, if the writer asked for that, and the refusal is given with what is left.
pub(crate) fn written(
    tx: &mut dyn Transaction,
    who: &Principal,
    id: InodeId,
    writing: &Writing,
    reap_due_ms: u64,
    now_ms: u64,
) -> Result<Taken> {
    let mut over = None;
    let mut file = nodes::node(tx, id)?;
    need_file(&file, "node")?;
    check_size(writing.size_at_least)?;
    if file.generation != writing.generation || (file.layout.is_none() && writing.size_at_least > 0) {
        return Err(MdsError::refused(ErrorCode::Stale, "the file was cut meanwhile"));
    }
    if writing.size_at_least > file.size {
        check_clear(&file)?;
        let mut size = writing.size_at_least;
        if let Err(error) = quota::resize(tx, &file, size) {
            size = match quota::room(tx, &file)? {
                Some(room) if writing.fit => file.size.saturating_add(room).min(size),
                _ => return Err(error),
            };
            // Refused for another reason than a limit, it is refused again.
            quota::resize(tx, &file, size)?;
            over = Some(error);
            cut_objects(tx, id, &mut file, size, reap_due_ms)?;
        }
        mark_outgrown(tx, id, &file, file.size, size)?;
        file.size = size;
        file.sparse = true;
    }
    file.made |= writing.made && file.layout.is_some();
    if writing.made && writing.size_at_least == 0 && writing.mtime_ns.is_none() {
        // That its objects are there is no change that anybody could see.
        save(tx, &keys::inode(id), &file)?;
        return Ok((file.stat(id), None));
    }
    file.version += 1;
    file.checksum = None;
    file.mtime_ns = writing.mtime_ns.unwrap_or(ns(now_ms));
    file.changes(now_ms);
    owner::after_writing(who, &mut file);
    save(tx, &keys::inode(id), &file)?;
    Ok((file.stat(id), over))
}

/// A file that may have outgrown its layout is looked at by whoever carries files over.
pub(super) fn mark_outgrown(
    tx: &mut dyn Transaction,
    id: InodeId,
    file: &Inode,
    before: u64,
    size: u64,
) -> Result<()> {
    let form = file.layout.as_ref().map(Form::of);
    if form.is_some_and(|form| is_marked(form, file.placed.as_ref(), before, size)) {
        save(tx, &keys::outgrown(id), &())?;
    }
    Ok(())
}

/// A file whose objects hold bytes that were cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClearItem {
    /// Which file.
    pub inode: InodeId,
    /// Its objects, and the length that each is to have at most.
    pub objects: Vec<(ObjectRef, u64)>,
    size: u64,
    generation: u32,
}

/// Up to `limit` files to be cleared, in order of their numbers, those after `after`.
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

/// A file to be cleared, if it is one.
pub(crate) fn clear_of<S: Snapshot + ?Sized>(view: &S, inode: InodeId) -> Result<Option<ClearItem>> {
    let file = load::<Inode, _>(view, &keys::inode(inode))?;
    let Some((file, size)) = file.and_then(|file| file.old_from.map(|size| (file, size))) else {
        return Ok(None);
    };
    let objects = file.layout.iter().flat_map(|layout| {
        let objects = layout.objects().iter().enumerate();
        objects.map(move |(index, object)| (*object, layout.object_length(index, size)))
    });
    Ok(Some(ClearItem { inode, objects: objects.collect(), size, generation: file.generation }))
}

/// The devices have cleared these. One that was cut again meanwhile stays.
pub(crate) fn cleared(tx: &mut dyn Transaction, items: &[ClearItem]) -> Result<()> {
    for item in items {
        let Some(mut file) = load::<Inode, _>(tx, &keys::inode(item.inode))? else { continue };
        if file.old_from == Some(item.size) && file.generation == item.generation {
            file.old_from = None;
            // Who wrote behind the end since the cut may have been cleared with it.
            file.generation = file.generation.wrapping_add(1);
            save(tx, &keys::inode(item.inode), &file)?;
            forget_clear(tx, item.inode)?;
        }
    }
    Ok(())
}
