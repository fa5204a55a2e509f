//! The regions of a raw device, and which units they have.
//!
//! Does: allocates and frees units; tracks freed units that a crash could still return to an old
//! owner.
//! Does not: read or write the device.
//! Costs: O(regions) per allocation; there are few regions, and few allocations.

use std::collections::BTreeMap;
use std::io;

use super::label::{NAME_MAX, REGIONS_MAX, RegionEntry, UNIT, UnitExtent};

/// One region, with the number of its last change.
#[derive(Clone, Debug)]
pub(super) struct DeviceRegion {
    pub(super) entry: RegionEntry,
    pub(super) changed: u64,
}

/// All regions. Changes are numbered; the table on the device includes all up to some number.
#[derive(Debug, Default)]
pub(super) struct RegionTable {
    units: u64,
    regions: BTreeMap<u64, DeviceRegion>,
    names: BTreeMap<String, u64>,
    next: u64,
    changes: u64,
    /// Units released by a change; they can be allocated when a table with that change is durable.
    leaving: Vec<(u64, UnitExtent)>,
}

/// A part of the device, and how many of the caller's bytes it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionPiece {
    pub(super) at: u64,
    pub(super) length: u64,
}

impl RegionTable {
    pub(super) fn new(units: u64, entries: Vec<RegionEntry>) -> Self {
        let mut regions = Self { units, ..Self::default() };
        for entry in entries {
            regions.insert(entry);
        }
        regions
    }

    fn insert(&mut self, entry: RegionEntry) -> u64 {
        let id = self.next;
        self.next += 1;
        self.names.insert(entry.name.clone(), id);
        self.regions.insert(id, DeviceRegion { entry, changed: self.changes });
        id
    }

    pub(super) fn find(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub(super) fn entries(&self) -> impl ExactSizeIterator<Item = &RegionEntry> {
        self.regions.values().map(|region| &region.entry)
    }

    /// Returns a region by its number; `NotFound` if it was deleted.
    pub(super) fn get(&self, id: u64) -> io::Result<&DeviceRegion> {
        self.regions.get(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns the number of the last change.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn create(&mut self, name: &str) -> io::Result<u64> {
        if !(1..=NAME_MAX).contains(&name.len()) || self.regions.len() == REGIONS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.changes += 1;
        Ok(self.insert(RegionEntry { name: name.to_owned(), length: 0, extents: Vec::new() }))
    }

    pub(super) fn delete(&mut self, name: &str) -> io::Result<()> {
        let id = self.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        let region = self.regions.remove(&id).ok_or(io::ErrorKind::NotFound)?;
        self.changes += 1;
        self.leaving.extend(region.entry.extents.into_iter().map(|extent| (self.changes, extent)));
        Ok(())
    }

    /// Sets a region's length. Fails with `StorageFull` if there are not enough units;
    /// [`is_leaving`](Self::is_leaving) says whether a durable table would free some.
    pub(super) fn set_length(&mut self, id: u64, length: u64) -> io::Result<()> {
        let region = self.get(id)?;
        let had: u64 = region.entry.extents.iter().map(|extent| u64::from(extent.count)).sum();
        let wanted = length.div_ceil(UNIT);
        let more = match wanted.checked_sub(had) {
            Some(0) | None => Vec::new(),
            Some(more) => self.find_units(region.entry.extents.last().copied(), more)?,
        };
        self.changes += 1;
        let change = self.changes;
        let region = self.regions.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        region.changed = change;
        region.entry.length = length;
        for extent in more {
            match region.entry.extents.last_mut() {
                Some(last) if last.end() == u64::from(extent.first) => last.count += extent.count,
                _ => region.entry.extents.push(extent),
            }
        }
        let mut surplus = had.saturating_sub(wanted);
        while surplus > 0
            && let Some(last) = region.entry.extents.pop()
        {
            let cut = u64::from(last.count).min(surplus) as u32;
            let kept = last.count - cut;
            self.leaving.push((change, UnitExtent { first: last.first + kept, count: cut }));
            if kept > 0 {
                region.entry.extents.push(UnitExtent { first: last.first, count: kept });
            }
            surplus -= u64::from(cut);
        }
        Ok(())
    }

    /// Whether there are units that become free with the next durable table.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Frees the units released up to `change`: a table with it is durable.
    pub(super) fn settle(&mut self, change: u64) {
        self.leaving.retain(|(left, _)| *left > change);
    }

    /// Returns the free units, in order.
    fn gaps(&self) -> Vec<UnitExtent> {
        let owned = self.regions.values().flat_map(|region| region.entry.extents.iter().copied());
        let mut taken: Vec<UnitExtent> =
            owned.chain(self.leaving.iter().map(|(_, extent)| *extent)).collect();
        taken.sort_unstable();
        let mut gaps = Vec::new();
        let mut at = 1;
        let end = UnitExtent { first: self.units.min(u64::from(u32::MAX)) as u32, count: 0 };
        for extent in taken.into_iter().chain([end]) {
            if extent.first > at {
                gaps.push(UnitExtent { first: at, count: extent.first - at });
            }
            at = at.max(extent.end().min(u64::from(u32::MAX)) as u32);
        }
        gaps
    }

    /// Finds units for a region: behind its last ones if these are free, else consecutive ones if
    /// possible.
    fn find_units(&self, last: Option<UnitExtent>, more: u64) -> io::Result<Vec<UnitExtent>> {
        let mut gaps = self.gaps();
        let free: u64 = gaps.iter().map(|gap| u64::from(gap.count)).sum();
        let more = u32::try_from(more).ok().filter(|_| more <= free).ok_or(io::ErrorKind::StorageFull)?;
        let behind = gaps.iter().position(|gap| last.is_some_and(|last| u64::from(gap.first) == last.end()));
        let fitting = gaps.iter().position(|gap| gap.count >= more);
        if let Some(first) = behind.or(fitting) {
            let gap = gaps.remove(first);
            gaps.insert(0, gap);
        }
        let mut left = more;
        let mut found = Vec::new();
        for gap in gaps {
            if left == 0 {
                break;
            }
            let count = gap.count.min(left);
            found.push(UnitExtent { first: gap.first, count });
            left -= count;
        }
        Ok(found)
    }
}

/// Returns where bytes of a region are on the device, in order. The range must lie within its
/// extents.
pub(super) fn pieces(extents: &[UnitExtent], offset: u64, length: u64) -> Vec<RegionPiece> {
    let mut pieces = Vec::with_capacity(1);
    let (mut offset, mut left) = (offset, length);
    for extent in extents {
        let size = u64::from(extent.count) * UNIT;
        if offset >= size {
            offset -= size;
            continue;
        }
        if left == 0 {
            break;
        }
        let length = left.min(size - offset);
        pieces.push(RegionPiece { at: u64::from(extent.first) * UNIT + offset, length });
        left -= length;
        offset = 0;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::label::is_sound;
    use super::*;

    #[test]
    fn deleted_region_units_are_freed_by_next_table() {
        let mut regions = RegionTable::new(5, Vec::new());
        let one = regions.create("one").unwrap();
        regions.set_length(one, 3 * UNIT).unwrap();
        regions.delete("one").unwrap();
        let two = regions.create("two").unwrap();
        regions.set_length(two, 1).unwrap();
        assert_eq!(regions.set_length(two, 2 * UNIT).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(regions.is_leaving());
        assert_eq!(regions.get(two).unwrap().entry.length, 1, "a refusal changes nothing");
        regions.settle(regions.changes());
        regions.set_length(two, 4 * UNIT).unwrap();
        assert!(is_sound(&regions.entries().cloned().collect::<Vec<_>>(), 5));
        assert!(regions.get(one).is_err());
    }

    #[test]
    fn region_grows_in_place_and_shrinks_from_end() {
        let mut regions = RegionTable::new(100, Vec::new());
        let (one, two) = (regions.create("one").unwrap(), regions.create("two").unwrap());
        regions.set_length(one, 2 * UNIT).unwrap();
        regions.set_length(one, 4 * UNIT).unwrap();
        regions.set_length(two, UNIT).unwrap();
        regions.set_length(one, 6 * UNIT).unwrap();
        let extents = regions.get(one).unwrap().entry.extents.clone();
        assert_eq!(extents, [UnitExtent { first: 1, count: 4 }, UnitExtent { first: 6, count: 2 }]);
        let across = pieces(&extents, 4 * UNIT - 10, 30);
        assert_eq!(
            across,
            [RegionPiece { at: 5 * UNIT - 10, length: 10 }, RegionPiece { at: 6 * UNIT, length: 20 }]
        );
        regions.set_length(one, 3 * UNIT + 1).unwrap();
        assert_eq!(regions.get(one).unwrap().entry.extents, [UnitExtent { first: 1, count: 4 }]);
        regions.set_length(one, UNIT).unwrap();
        assert_eq!(regions.get(one).unwrap().entry.extents, [UnitExtent { first: 1, count: 1 }]);
    }
}
