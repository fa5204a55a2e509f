//! Queue of objects without a file, until their devices have removed them.
//!
//! Contract: an object leaves the queue only after its device confirmed the removal at a time when
//! no credential can create it again.

use sealstone_mds_protocol::ObjectRef;

use crate::error::Result;
use crate::keys;
use crate::records::{count, counter, decode, load, save};
use crate::store::{Snapshot, Transaction};

/// An object due for removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReapItem {
    /// Object to remove.
    pub object: ObjectRef,
    due_ms: u64,
    guard_ms: u64,
}

/// Returns up to `limit` due objects, after `after` in the queue.
pub(crate) fn next<S: Snapshot + ?Sized>(
    view: &S,
    after: Option<&ReapItem>,
    limit: usize,
    now_ms: u64,
) -> Result<Vec<ReapItem>> {
    let (first, until) = keys::due_reaps(now_ms);
    let from = after.map_or(first, |item| [&keys::reap(item.due_ms, item.object)[..], &[0]].concat());
    let mut items = Vec::new();
    for (key, value) in view.scan(&from, &until, limit)? {
        if let Some((due_ms, object)) = keys::reap_parts(&key) {
            items.push(ReapItem { object, due_ms, guard_ms: decode(&value)? });
        }
    }
    Ok(items)
}

/// Records removals that the devices confirmed. An object that a credential could still create
/// stays queued for a second removal.
pub(crate) fn confirm_removed(tx: &mut dyn Transaction, items: &[ReapItem], now_ms: u64) -> Result<()> {
    for item in items {
        let key = keys::reap(item.due_ms, item.object);
        if load::<u64, _>(tx, &key)?.is_none() {
            continue;
        }
        tx.delete(&key)?;
        if item.guard_ms >= now_ms {
            save(tx, &keys::reap(item.guard_ms.saturating_add(1), item.object), &0u64)?;
        } else {
            // It is never created again, so its tag is not needed.
            tx.delete(&keys::tag(item.object))?;
            count(tx, counter::REAPS, -1)?;
        }
    }
    Ok(())
}

/// Returns those due objects that must not be removed yet: their credentials were revoked, and one
/// of these could create the object again if it did not exist.
pub(crate) fn revoked_items<S: Snapshot + ?Sized>(
    view: &S,
    items: &[ReapItem],
    now_ms: u64,
) -> Result<Vec<ReapItem>> {
    let mut revoked = Vec::new();
    for item in items.iter().filter(|item| item.guard_ms >= now_ms) {
        if view.get(&keys::tag(item.object))?.is_some() {
            revoked.push(*item);
        }
    }
    Ok(revoked)
}

/// Postpones these objects until no credential can create them again.
pub(crate) fn postpone_revoked(tx: &mut dyn Transaction, items: &[ReapItem]) -> Result<()> {
    for item in items {
        let key = keys::reap(item.due_ms, item.object);
        if load::<u64, _>(tx, &key)?.is_some() {
            tx.delete(&key)?;
            save(tx, &keys::reap(item.guard_ms.saturating_add(1), item.object), &0u64)?;
        }
    }
    Ok(())
}

/// Postpones these objects, because their device did not answer.
pub(crate) fn postpone(tx: &mut dyn Transaction, items: &[ReapItem], until_ms: u64) -> Result<()> {
    for item in items {
        let key = keys::reap(item.due_ms, item.object);
        if load::<u64, _>(tx, &key)?.is_some() {
            tx.delete(&key)?;
            save(tx, &keys::reap(until_ms, item.object), &item.guard_ms)?;
        }
    }
    Ok(())
}
