//! Types that describe damage of objects and of the store, and the bounded list of known damage.
//!
//! Does: names the object, the kind and the bytes; keeps a bounded list of known damage.
//! Does not: search for damage; [`DiskStore`](crate::DiskStore) does when it opens, reads and
//! scrubs.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use sealstone_osd::ObjectId;

/// Maximum number of damage entries that are kept. Further damage is still refused when it is read.
pub const MAX_DAMAGE: usize = 65536;

/// The damaged part of an object.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DamageKind {
    /// The bytes do not match their checksum.
    Data,
    /// The medium returns an error for these bytes, or their file is missing or too short.
    Unreadable,
    /// The record with the location of these bytes is lost.
    Map,
    /// The object's own record is lost: its length and kind are unknown. Offset and length are 0.
    Record,
    /// Some of its attributes are lost. Offset and length are 0.
    Attributes,
    /// Its memberships, or the members of the collection, are uncertain. Offset and length are 0.
    Memberships,
    /// The stored digest of one of its attribute pages is lost or does not match the page. Offset
    /// and length are 0.
    Digests,
    /// The stored sum of its digests is lost or wrong, because a chunk record is lost or out of
    /// date. Offset and length are 0.
    Sum,
    /// Of a partition: the record of its digest profile is lost; the default profile applies.
    /// Offset and length are 0.
    Profile,
}

/// One damaged range or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Damage {
    /// The object concerned.
    pub object: ObjectId,
    /// The kind of damage.
    pub kind: DamageKind,
    /// First damaged byte of the object.
    pub offset: u64,
    /// Number of damaged bytes.
    pub length: u64,
}

impl Damage {
    /// Returns damage of this kind that concerns the whole object.
    pub(crate) fn whole(object: ObjectId, kind: DamageKind) -> Self {
        Self { object, kind, offset: 0, length: 0 }
    }
}

/// Damage of the store itself, found when it is opened.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// A segment file is missing.
    MissingFile {
        /// File name on the medium.
        name: String,
    },
    /// A segment file is shorter than it should be.
    ShortFile {
        /// File name on the medium.
        name: String,
        /// Actual length in bytes.
        found: u64,
        /// Expected length in bytes.
        expected: u64,
    },
    /// A segment file that does not belong to the store. It is left unchanged.
    UnknownFile {
        /// File name on the medium.
        name: String,
    },
    /// One of the two copies of the superblock was damaged; it was rewritten.
    Superblock,
    /// Pages of the index do not match their checksum or cannot be read.
    IndexPages {
        /// Number of such reads; a page may be counted more than once.
        pages: u64,
    },
    /// The last commit of the index may be lost: its slot in the header and the copy of it are
    /// damaged.
    LostCommit,
    /// Objects with ids from `from` to `to` may be lost, and which of them existed is unknown.
    LostObjects {
        /// The lowest id.
        from: ObjectId,
        /// The highest id.
        to: ObjectId,
    },
    /// Records contradict each other although their pages are intact; a defect of the medium cannot
    /// cause that.
    Inconsistent {
        /// Number of such records.
        records: u64,
    },
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingFile { name } => write!(f, "file {name} of the store is missing"),
            Self::ShortFile { name, found, expected } => {
                write!(f, "file {name} of the store has {found} bytes, expected {expected}")
            }
            Self::UnknownFile { name } => write!(f, "file {name} does not belong to the store"),
            Self::Superblock => write!(f, "a copy of the superblock was damaged"),
            Self::IndexPages { pages } => write!(f, "{pages} pages of the index are damaged"),
            Self::LostCommit => write!(f, "the last commit of the index may be lost"),
            Self::LostObjects { from, to } => write!(f, "objects from {from} to {to} may be lost"),
            Self::Inconsistent { records } => write!(f, "{records} records of the index disagree"),
        }
    }
}

/// All known damage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Whether the store refuses changes until it is reopened or repaired.
    pub read_only: bool,
    /// Damage of the store itself.
    pub faults: Vec<StoreFault>,
    /// Damage of objects, in order of their ids.
    pub damage: Vec<Damage>,
    /// Whether there is more damage than is kept ([`MAX_DAMAGE`]).
    pub more: bool,
}

impl StoreHealth {
    /// Whether no damage is known.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty() && self.damage.is_empty()
    }
}

/// The known damage, by object.
#[derive(Debug, Default)]
pub(crate) struct DamageBook {
    objects: BTreeMap<ObjectId, Vec<Damage>>,
    count: usize,
    more: bool,
}

impl DamageBook {
    /// Adds an entry, merged with entries of the same kind that it overlaps or touches.
    pub(crate) fn add(&mut self, new: Damage) {
        let full = self.count >= MAX_DAMAGE;
        if full && !self.objects.contains_key(&new.object) {
            self.more = true;
            return;
        }
        let pieces = self.objects.entry(new.object).or_default();
        // Entries of one kind never touch, so their ends are in order, too.
        let end = new.offset + new.length;
        let first =
            pieces.partition_point(|old| (old.kind, old.offset + old.length) < (new.kind, new.offset));
        let touching = |old: &&Damage| old.kind == new.kind && old.offset <= end;
        let behind = first + pieces[first..].iter().take_while(touching).count();
        if full && first == behind {
            self.more = true;
            return;
        }
        let met = &pieces[first..behind];
        let start = met.first().map_or(new.offset, |old| old.offset.min(new.offset));
        let end = met.last().map_or(end, |old| end.max(old.offset + old.length));
        drop(pieces.splice(first..behind, [Damage { offset: start, length: end - start, ..new }]));
        self.count = self.count + 1 - (behind - first);
    }

    /// Removes a range of one kind, or an entry that concerns the whole object.
    pub(crate) fn remove(&mut self, gone: &Damage) {
        let Some(pieces) = self.objects.get_mut(&gone.object) else { return };
        let before = pieces.len();
        let mut left = Vec::with_capacity(before + 1);
        for old in pieces.drain(..) {
            if old.kind != gone.kind {
                left.push(old);
                continue;
            }
            let (end, gone_end) = (old.offset + old.length, gone.offset + gone.length);
            for (start, end) in [(old.offset, end.min(gone.offset)), (old.offset.max(gone_end), end)] {
                if start < end {
                    left.push(Damage { offset: start, length: end - start, ..old });
                }
            }
        }
        self.count = self.count + left.len() - before;
        if left.is_empty() {
            self.objects.remove(&gone.object);
        } else {
            *pieces = left;
        }
    }

    /// Returns the known damage of an object.
    pub(crate) fn of(&self, id: ObjectId) -> Vec<Damage> {
        self.objects.get(&id).cloned().unwrap_or_default()
    }

    /// Whether damage of the object is known.
    pub(crate) fn has_damage(&self, id: ObjectId) -> bool {
        self.objects.contains_key(&id)
    }

    /// Replaces the known damage of an object.
    pub(crate) fn replace(&mut self, id: ObjectId, found: impl IntoIterator<Item = Damage>) {
        self.count -= self.objects.remove(&id).map_or(0, |old| old.len());
        found.into_iter().for_each(|damage| self.add(damage));
    }

    /// Returns the objects that lack records, if all of them are known.
    pub(crate) fn incomplete(&self) -> Option<HashSet<ObjectId>> {
        let all_there = |kind| {
            use DamageKind::{Data, Digests, Profile, Sum, Unreadable};
            matches!(kind, Data | Unreadable | Digests | Sum | Profile)
        };
        let missing = |damage: &&Damage| !all_there(damage.kind);
        let all = || self.objects.values().flatten().filter(missing).map(|damage| damage.object).collect();
        (!self.more).then(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn all(&self) -> (Vec<Damage>, bool) {
        (self.objects.values().flatten().copied().collect(), self.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_damage_is_merged_and_bounded() {
        let mut book = DamageBook::default();
        let id = |number| ObjectId::new(1, number);
        let piece = |object, offset, kind| Damage { object, kind, offset, length: 4096 };
        book.add(piece(id(1), 4096, DamageKind::Data));
        book.add(piece(id(1), 0, DamageKind::Data));
        book.add(piece(id(1), 0, DamageKind::Data));
        book.add(piece(id(1), 0, DamageKind::Map));
        let whole = Damage { length: 8192, ..piece(id(1), 0, DamageKind::Data) };
        assert_eq!(book.of(id(1)), [whole, piece(id(1), 0, DamageKind::Map)]);
        book.add(piece(id(1), 12288, DamageKind::Data));
        book.add(piece(id(1), 8192, DamageKind::Data));
        assert_eq!(book.of(id(1))[0], Damage { length: 16384, ..whole });
        book.remove(&piece(id(1), 4096, DamageKind::Data));
        let parts = [
            piece(id(1), 0, DamageKind::Data),
            Damage { length: 8192, ..piece(id(1), 8192, DamageKind::Data) },
        ];
        assert_eq!(book.of(id(1)), [parts[0], parts[1], piece(id(1), 0, DamageKind::Map)]);
        book.replace(id(1), []);
        assert!(book.is_empty());
        for number in 0..=MAX_DAMAGE as u64 {
            book.add(piece(id(number), 0, DamageKind::Data));
        }
        let (all, more) = book.all();
        assert_eq!((all.len(), more), (MAX_DAMAGE, true));
    }
}
