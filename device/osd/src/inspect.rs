//! The check of a device that rests: `osd check`.
//!
//! Does: have the store read every object against its checksums, and tell what is damaged, of objects and of the store
//! itself; note it in the Error Recovery attributes if asked to, so that the device knows when it starts.
//! Does not: need keys or write anything unless asked to. Contract: the caller holds the store alone.
//! Truth: docs/how-to/check-and-repair.md.

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{
    Damage as Piece, DiskStore, ObjectStore as _, Scrub, ScrubProgress, StoreError, StoreFault,
};

use crate::damage::{Book, Damage, Examiner};

/// Bytes that the store reads between two words about how far it is.
const STEP: u64 = 4 << 20;

/// A damaged object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub id: ObjectId,
    /// Of which kind; none if the record that says so is lost.
    pub kind: Option<ObjectType>,
    /// What of it, piece by piece.
    pub pieces: Vec<Piece>,
}

impl Finding {
    /// In the words of the Error Recovery attributes.
    #[must_use]
    pub fn damage(&self) -> Damage {
        let mut pieces = self.pieces.clone();
        pieces.sort_unstable_by_key(|piece| piece.offset);
        let mut damage = Damage::default();
        damage.take(&pieces);
        damage
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Objects read.
    pub objects: u64,
    /// Bytes read; blocks that objects share once for each.
    pub bytes: u64,
    /// Damaged objects, in order.
    pub findings: Vec<Finding>,
    /// There are more of them than the store remembers.
    pub more: bool,
    /// What of the store itself is damaged.
    pub faults: Vec<StoreFault>,
    /// The store takes no changes as it is.
    pub read_only: bool,
    /// Objects whose notes of damage are other than before: made, changed or taken back.
    pub noted: u64,
}

/// Reads everything. With `note`, a moment in ms since 1970, what is found is noted on the objects, and what was noted
/// before and is sound again is taken back. `tell` hears how far it is.
///
/// # Errors
/// [`StoreError`] of a store that fails as a whole; what is damaged is no error.
pub fn inspect(
    store: &DiskStore,
    note: Option<u64>,
    mut tell: impl FnMut(&ScrubProgress),
) -> Result<Inspection, StoreError> {
    let mut walk = Scrub::new();
    while !store.scrub(&mut walk, STEP)?.done {
        tell(&walk.progress(store));
    }
    let progress = walk.progress(store);
    let health = store.health();
    let mut findings: Vec<Finding> = Vec::new();
    for piece in health.damage {
        match findings.last_mut().filter(|last| last.id == piece.object) {
            Some(last) => last.pieces.push(piece),
            None => {
                let kind = store.stat(piece.object).ok().map(|stat| stat.kind);
                findings.push(Finding { id: piece.object, kind, pieces: vec![piece] });
            }
        }
    }
    let noted = match note {
        Some(now_ms) => take_note(store, &findings, now_ms)?,
        None => 0,
    };
    Ok(Inspection {
        objects: progress.objects,
        bytes: progress.bytes,
        findings,
        more: health.more,
        faults: health.faults,
        read_only: health.read_only,
        noted,
    })
}

/// Notes what was found, and takes back what is sound again; gives how many objects that changed.
fn take_note(store: &DiskStore, findings: &[Finding], now_ms: u64) -> Result<u64, StoreError> {
    let examiner = Examiner { store, locks: None };
    let book = Book::load(store);
    for finding in findings {
        book.settle(examiner, finding.id, &finding.damage(), now_ms)?;
    }
    // Of old notes what was found now is all that is true.
    for (id, _) in book.all() {
        if findings.binary_search_by_key(&id, |finding| finding.id).is_err() {
            book.settle(examiner, id, &Damage::default(), now_ms)?;
        }
    }
    let mut noted = 0;
    while book.news().is_some() {
        noted += 1;
    }
    store.flush()?;
    Ok(noted)
}
