//! Incremental update of AdHash digests: subtracts a block's old hash from the unit's digest and
//! adds its new one.
//!
//! Does: for a write that changes a part of one or two blocks of a unit, computes the new digest
//! from the old one and the bytes of those blocks, which are in memory anyway; the rest of the unit
//! is neither read nor hashed.
//! Source of truth: docs/design/security.md 5.2 and 5.6.

use std::collections::BTreeMap;
use std::ops::Range;

use sealstone_digest::paper::AdHash;
use sealstone_digest::{DigestValue as Digest, Profile};

use crate::BLOCK;
use crate::disk::chunk::in_chunk;
use crate::disk::stage::StagedChanges;
use crate::disk::write::WriteSource;

impl StagedChanges<'_> {
    /// Whether the old bytes of partially changed blocks are needed.
    pub(crate) fn needs_old_bytes(&self) -> bool {
        self.profile.and_then(Profile::adhash).is_some()
    }

    /// Returns the unit digests that can be updated incrementally. Called before any slot is set,
    /// since that clears the old digests.
    pub(crate) fn increments<'s>(
        &mut self,
        sources: impl Iterator<Item = &'s WriteSource<'s>>,
    ) -> BTreeMap<u64, Digest> {
        let mut found = BTreeMap::new();
        let Some((profile, hash)) = self.profile.and_then(|profile| Some((profile, profile.adhash()?)))
        else {
            return found;
        };
        let mut touched: BTreeMap<u64, u32> = BTreeMap::new();
        for source in sources {
            let edges = [&source.head, &source.tail].into_iter().flatten();
            let units = edges.map(|edge| edge.block * BLOCK / profile.unit_bytes());
            for unit in units.collect::<std::collections::BTreeSet<_>>() {
                *touched.entry(unit).or_default() += 1;
                if let Some(value) = self.increment(profile, hash, unit, source) {
                    found.insert(unit, value);
                }
            }
        }
        // With two pieces in one unit, each would yield a digest without the other.
        found.retain(|unit, _| touched[unit] == 1);
        found
    }

    fn increment(
        &mut self,
        profile: Profile,
        hash: AdHash,
        unit: u64,
        source: &WriteSource<'_>,
    ) -> Option<Digest> {
        let start = unit * profile.unit_bytes();
        let length = |object: u64| (object.saturating_sub(start)).min(profile.unit_bytes()) as usize;
        let (before, after) = (length(self.length_before), length(self.record.length));
        let Range { start: first, end: last } = source.range();
        let (from, to) = (first.max(start) - start, last.min(start + profile.unit_bytes()) - start);
        let (from, to) = (from as usize, to as usize);
        // Truncated bytes, and gaps between the old end, the data and the new end, are not in
        // memory.
        if from > before || after < before || (after > before && to < after) {
            return None;
        }
        let (low, high) = hash.grown(from, to, after);
        if (high - low) * 2 >= after {
            return None;
        }
        let (chunk, number) = in_chunk(profile, unit);
        let forgotten = self.forgotten.filter(|(of, _)| *of == unit).map(|(_, value)| value);
        let old = self.flat(chunk).ok()?.digest(number).or(forgotten)?;
        let bytes = |of: &dyn Fn(u64) -> Option<Vec<u8>>, end: usize| -> Option<Vec<u8>> {
            let mut bytes = Vec::new();
            let mut at = low;
            while at < end {
                let block = (start + at as u64) / BLOCK;
                let within = at % BLOCK as usize;
                let stop = end.min(at + BLOCK as usize - within);
                bytes.extend_from_slice(&of(block)?[within..within + stop - at]);
                at = stop;
            }
            Some(bytes)
        };
        let edges = || [&source.head, &source.tail].into_iter().flatten();
        let was = |block| {
            edges().find(|edge| edge.block == block).and_then(|edge| Some(edge.before.as_ref()?.to_vec()))
        };
        let is = |block| source.find(block).map(<[u8]>::to_vec);
        hash.changed(&old, low, &bytes(&was, high.min(before))?, &bytes(&is, high)?)
    }
}
