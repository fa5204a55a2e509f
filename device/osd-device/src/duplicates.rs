//! Source and duplicates of a partition, and whether a duplication is unfinished.
//!
//! Does: read and write the attributes of page P+F004h, and the mark of an unfinished duplication.
//! Does not: copy anything; `commands::duplicates` does.
//! Contract: both ends of a lineage change in one transaction group. The mark is set no later than
//! the first change of contents and cleared no earlier than the last.
//! Truth: docs/standards/device.md, duplicates (the page and its numbers are ours).

use sealstone_osd::{AttributeId, ObjectId};
use sealstone_store::{ObjectStore, StoreError};

use crate::attributes::rows::{DUPLICATES, INTERNAL, PARTITION};
use crate::catalog;
use crate::failure::OsdFailure;

/// Snapshots, and clones, of one partition.
pub(crate) const CHILDREN_MAX: usize = 1024;
/// Generations from an original to a duplicate.
pub(crate) const DEPTH_MAX: u32 = 16;

/// Attribute numbers in the page.
const KIND: u32 = 1;
const SOURCE: u32 = 2;
const MADE: u32 = 3;
const METHOD: u32 = 4;
const DEPTH: u32 = 5;
const REPLACED: u32 = 6;
/// Number of snapshots. The number of clones follows.
const COUNTS: u32 = 7;
/// Ids of snapshots, 8 bytes each, ascending. Those of clones follow.
const CHILDREN: u32 = 9;

/// In the internal page of a partition: the unfinished duplication and its source.
const UNFINISHED: AttributeId = AttributeId::new(INTERNAL, 0x10);

/// Origin of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum DuplicateKind {
    /// Not a duplicate.
    #[default]
    Original = 0,
    /// A read-only duplicate.
    Snapshot = 1,
    /// A writable duplicate.
    Clone = 2,
}

/// Source of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) kind: DuplicateKind,
    /// The partition that it was duplicated from; 0 for an original.
    pub(crate) source: u64,
    /// Generations from an original.
    pub(crate) depth: u32,
}

/// Unfinished operation on a hidden partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// It is being created. After a crash it is removed.
    Made,
    /// Its contents are being replaced by those of this partition. After a crash the replacement is
    /// completed.
    Replaced(u64),
}

const fn at(number: u32) -> AttributeId {
    AttributeId::new(PARTITION + DUPLICATES, number)
}

impl Lineage {
    /// Whether the contents of the partition never change.
    pub(crate) const fn is_read_only(self) -> bool {
        matches!(self.kind, DuplicateKind::Snapshot)
    }

    pub(crate) fn read(store: &dyn ObjectStore, partition: ObjectId) -> Result<Self, StoreError> {
        let number = |id| catalog::number(store, partition, at(id), 0);
        let kind = match number(KIND)? {
            1 => DuplicateKind::Snapshot,
            2 => DuplicateKind::Clone,
            _ => DuplicateKind::Original,
        };
        Ok(Self { kind, source: number(SOURCE)?, depth: u32::try_from(number(DEPTH)?).unwrap_or(u32::MAX) })
    }

    /// Stores the lineage of a new duplicate.
    pub(crate) fn write(
        self,
        store: &dyn ObjectStore,
        partition: ObjectId,
        method: u8,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let set = |number, value: &[u8]| store.set_attribute(partition, at(number), value);
        set(KIND, &[self.kind as u8])?;
        set(SOURCE, &self.source.to_be_bytes())?;
        set(MADE, &catalog::time(now_ms))?;
        set(METHOD, &[method])?;
        set(DEPTH, &self.depth.to_be_bytes())
    }
}

/// Returns the numbers of the list and of the count of a kind.
fn numbers(kind: DuplicateKind) -> (u32, u32) {
    match kind {
        DuplicateKind::Snapshot => (CHILDREN, COUNTS),
        DuplicateKind::Original | DuplicateKind::Clone => (CHILDREN + 1, COUNTS + 1),
    }
}

/// Returns the duplicates of a kind of a partition, ascending.
pub(crate) fn children(
    store: &dyn ObjectStore,
    partition: ObjectId,
    kind: DuplicateKind,
) -> Result<Vec<u64>, StoreError> {
    let ids = catalog::get(store, partition, at(numbers(kind).0))?.unwrap_or_default();
    Ok(ids.chunks_exact(8).map(catalog::be).collect())
}

fn set_children(
    store: &dyn ObjectStore,
    partition: ObjectId,
    kind: DuplicateKind,
    ids: &[u64],
) -> Result<(), StoreError> {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
    let (list, count) = numbers(kind);
    store.set_attribute(partition, at(list), &bytes)?;
    let number = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    store.set_attribute(partition, at(count), &number.to_be_bytes())
}

/// Adds a duplicate to the list of its source.
pub(crate) fn adopt(
    store: &dyn ObjectStore,
    source: ObjectId,
    kind: DuplicateKind,
    id: u64,
) -> Result<(), StoreError> {
    let mut ids = children(store, source, kind)?;
    if let Err(at) = ids.binary_search(&id) {
        ids.insert(at, id);
    }
    set_children(store, source, kind, &ids)
}

/// Removes a duplicate from the list of its source, because it is removed or detached.
pub(crate) fn forget(
    store: &dyn ObjectStore,
    partition: ObjectId,
    lineage: Lineage,
) -> Result<(), StoreError> {
    if lineage.kind == DuplicateKind::Original {
        return Ok(());
    }
    let source = ObjectId::of_partition(lineage.source);
    let mut ids = match children(store, source, lineage.kind) {
        Ok(ids) => ids,
        Err(StoreError::NotFound(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let before = ids.len();
    ids.retain(|id| *id != partition.partition);
    if ids.len() == before {
        return Ok(());
    }
    set_children(store, source, lineage.kind, &ids)
}

/// Makes a clone an original.
pub(crate) fn detach(store: &dyn ObjectStore, partition: ObjectId) -> Result<(), StoreError> {
    for number in [KIND, SOURCE, METHOD, DEPTH] {
        store.set_attribute(partition, at(number), &[])?;
    }
    Ok(())
}

/// Checks that a partition has no duplicates, which must be removed or detached first.
pub(crate) fn check_childless(store: &dyn ObjectStore, partition: ObjectId) -> Result<(), OsdFailure> {
    for kind in [DuplicateKind::Snapshot, DuplicateKind::Clone] {
        if !children(store, partition, kind)?.is_empty() {
            return Err(OsdFailure::Sequence);
        }
    }
    Ok(())
}

/// Stores when the contents were last replaced.
pub(crate) fn set_replaced(
    store: &dyn ObjectStore,
    partition: ObjectId,
    now_ms: u64,
) -> Result<(), StoreError> {
    store.set_attribute(partition, at(REPLACED), &catalog::time(now_ms))
}

/// Returns the unfinished operation on a partition.
pub(crate) fn unfinished(store: &dyn ObjectStore, id: u64) -> Result<Option<Unfinished>, StoreError> {
    let value = catalog::get(store, ObjectId::of_partition(id), UNFINISHED)?;
    Ok(value.map(|value| match catalog::be(&value) {
        0 => Unfinished::Made,
        source => Unfinished::Replaced(source),
    }))
}

/// Sets or clears the mark of an unfinished operation.
pub(crate) fn mark(store: &dyn ObjectStore, id: u64, what: Option<Unfinished>) -> Result<(), StoreError> {
    let value = match what {
        None => Vec::new(),
        Some(Unfinished::Made) => 0u64.to_be_bytes().to_vec(),
        Some(Unfinished::Replaced(source)) => source.to_be_bytes().to_vec(),
    };
    store.set_attribute(ObjectId::of_partition(id), UNFINISHED, &value)
}
