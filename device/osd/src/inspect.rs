//! The check of a device that rests: `osd check`.
//!
//! Does: read every object of a store against its checksums, as the scrub of a running device does, and tell what is
//! damaged; note it in the Error Recovery attributes if asked to, so that the device knows when it starts.
//! Does not: need keys or write anything unless asked to. Contract: the caller holds the store alone.
//! Truth: docs/how-to/check-and-repair.md.

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{ObjectStore, StoreError};

use crate::catalog::successor;
use crate::damage::{Book, Damage, Examiner, PIECE};

/// Objects that it asks the store for at a time.
const LIST_STEP: usize = 256;
/// Most damaged objects that it tells of one by one; more are counted.
pub const FINDINGS_MAX: usize = 65_536;

/// A damaged object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub id: ObjectId,
    /// Of which kind.
    pub kind: ObjectType,
    /// What of it.
    pub damage: Damage,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Objects read.
    pub objects: u64,
    /// Bytes read; blocks that objects share once for each.
    pub bytes: u64,
    /// Damaged objects.
    pub damaged: u64,
    /// The first of them, in order.
    pub findings: Vec<Finding>,
    /// Objects whose notes of damage are other than before: made, changed or taken back.
    pub noted: u64,
}

/// Reads everything. With `note`, a moment in ms since 1970, what is found is noted on the objects, and what was noted
/// before and is sound again is taken back. `tell` hears of objects and bytes read so far.
///
/// # Errors
/// [`StoreError`] of a store that fails as a whole; what is damaged is no error.
pub fn inspect(
    store: &dyn ObjectStore,
    note: Option<u64>,
    mut tell: impl FnMut(&Inspection),
) -> Result<Inspection, StoreError> {
    let examiner = Examiner { store, locks: None };
    let book = Book::load(store);
    let mut done = Inspection::default();
    let mut buffer = vec![0; PIECE];
    let mut from = Some(ObjectId::ROOT);
    while let Some(first) = from {
        let listed = store.list(first, LIST_STEP)?;
        let whole = listed.len() == LIST_STEP;
        from = listed.last().filter(|_| whole).and_then(|(last, _)| successor(*last));
        for (id, kind) in listed {
            let mut bytes = done.bytes;
            let found = examiner.examine(id, &mut buffer, |read| {
                bytes += read;
                tell(&Inspection {
                    objects: done.objects,
                    bytes,
                    damaged: done.damaged,
                    ..Inspection::default()
                });
            })?;
            done.bytes = bytes;
            done.objects += 1;
            let damage = found.unwrap_or_default();
            if !damage.is_none() {
                done.damaged += 1;
                if done.findings.len() < FINDINGS_MAX {
                    done.findings.push(Finding { id, kind, damage: damage.clone() });
                }
            }
            if let Some(now_ms) = note {
                book.settle(examiner, id, &damage, &mut buffer, now_ms)?;
            }
        }
    }
    if let Some(now_ms) = note {
        // Removed since it was noted.
        for (id, _) in book.all() {
            if matches!(store.stat(id), Err(StoreError::NotFound(_))) {
                book.settle(examiner, id, &Damage::default(), &mut buffer, now_ms)?;
            }
        }
        while book.news().is_some() {
            done.noted += 1;
        }
        store.flush()?;
    }
    Ok(done)
}
