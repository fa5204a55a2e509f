//! Offline check of a stopped device: `osd check`.
//!
//! Does: have the store verify every object against its checksums, report damage of objects and of
//! the store itself, and record it in the Error Recovery attributes on request, so that the device
//! knows it at start.
//! Does not: need keys, or write anything unless requested.
//! Contract: the caller has exclusive access to the store.
//! Truth: docs/how-to/check-and-repair.md.

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{
    Damage as Piece, DiskStore, ObjectStore as _, ScrubProgress, StoreError, StoreFault, StoreScrub,
};

use crate::damage::{Damage, DamageList, Examiner};

/// Bytes read between two progress reports.
const STEP: u64 = 4 << 20;

/// One damaged object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedObject {
    /// Id of the object.
    pub id: ObjectId,
    /// Type of the object; `None` if its record is lost.
    pub kind: Option<ObjectType>,
    /// Damaged pieces.
    pub pieces: Vec<Piece>,
}

impl DamagedObject {
    /// Returns the damage as the Error Recovery attributes describe it.
    #[must_use]
    pub fn damage(&self) -> Damage {
        let mut pieces = self.pieces.clone();
        pieces.sort_unstable_by_key(|piece| piece.offset);
        let mut damage = Damage::default();
        damage.take(&pieces);
        damage
    }
}

/// Result of an offline check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Objects read.
    pub objects: u64,
    /// Bytes read. Shared blocks count once per object.
    pub bytes: u64,
    /// Damaged objects in order of their ids.
    pub findings: Vec<DamagedObject>,
    /// Whether there are more than the store remembers.
    pub more: bool,
    /// Damage of the store itself.
    pub faults: Vec<StoreFault>,
    /// Whether the store refuses changes because of its state.
    pub read_only: bool,
    /// Objects whose record of damage changed.
    pub noted: u64,
}

/// Verifies the whole store. With `note`, the current time in ms since 1970, records damage on the
/// objects and clears records of repaired damage. `report` receives the progress.
///
/// # Errors
/// [`StoreError`] if the store fails as a whole. Damage is not an error.
pub fn inspect(
    store: &DiskStore,
    note: Option<u64>,
    mut report: impl FnMut(&ScrubProgress),
) -> Result<Inspection, StoreError> {
    let mut walk = StoreScrub::new();
    while !store.scrub(&mut walk, STEP)?.done {
        report(&walk.progress(store));
    }
    let progress = walk.progress(store);
    let health = store.health();
    let mut findings: Vec<DamagedObject> = Vec::new();
    for piece in health.damage {
        match findings.last_mut().filter(|last| last.id == piece.object) {
            Some(last) => last.pieces.push(piece),
            None => {
                let kind = store.stat(piece.object).ok().map(|stat| stat.kind);
                findings.push(DamagedObject { id: piece.object, kind, pieces: vec![piece] });
            }
        }
    }
    let noted = match note {
        Some(now_ms) => record_findings(store, &findings, now_ms)?,
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

/// Records damage and clears records of repaired damage. Returns the number of changed objects.
fn record_findings(store: &DiskStore, findings: &[DamagedObject], now_ms: u64) -> Result<u64, StoreError> {
    let examiner = Examiner { store, locks: None };
    let book = DamageList::load(store);
    for finding in findings {
        book.settle(examiner, finding.id, &finding.damage(), now_ms)?;
    }
    // Earlier records are valid only as far as the damage was found again.
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
