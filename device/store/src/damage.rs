//! What is damaged: the words for it.
//!
//! Does: name the object, the kind and the bytes; keep what is known, with a bound. Does not: look for damage;
//! [`DiskStore`](crate::DiskStore) does when it opens, reads and scrubs.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use sealstone_osd::ObjectId;

/// Most pieces of damage that are kept. What is beyond is still refused when it is read.
pub const MAX_DAMAGE: usize = 65536;

/// What of an object is damaged.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DamageKind {
    /// Bytes fail their checksum.
    Data,
    /// The medium gives an error for these bytes, or the file that they lie in is missing or too short.
    Unreadable,
    /// The record is lost that says where these bytes lie.
    Map,
    /// The object's own record is lost: its length and kind are unknown. Offset and length are 0.
    Record,
    /// Some of its attributes are lost. Offset and length are 0.
    Attributes,
    /// What it is a member of, or who its members are, is in doubt. Offset and length are 0.
    Memberships,
    /// The stored digest of one of its attribute pages is not that of its values, or is lost. Offset and length are 0.
    Digests,
    /// The sum over its digests is not what they add up to, or is lost: a record of where its bytes are is gone, or is
    /// one of another time. Offset and length are 0.
    Sum,
    /// Of a partition: which digests its objects have is lost; it counts as the default. Offset and length are 0.
    Profile,
}

/// One piece of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Damage {
    /// Whose.
    pub object: ObjectId,
    /// Of what kind.
    pub kind: DamageKind,
    /// First damaged byte of the object.
    pub offset: u64,
    /// Number of damaged bytes.
    pub length: u64,
}

impl Damage {
    /// Damage of the whole object's `kind`.
    pub(crate) fn whole(object: ObjectId, kind: DamageKind) -> Self {
        Self { object, kind, offset: 0, length: 0 }
    }
}

/// What of the store itself is damaged. Found when it is opened.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// A segment file is not there.
    MissingFile {
        /// Its name on the medium.
        name: String,
    },
    /// A segment file has less than its length.
    ShortFile {
        /// Its name on the medium.
        name: String,
        /// Its length in bytes.
        found: u64,
        /// What it should be, in bytes.
        expected: u64,
    },
    /// A segment file that does not belong to the store. It is left alone.
    UnknownFile {
        /// Its name on the medium.
        name: String,
    },
    /// One of the two copies of the superblock was damaged; it was written anew.
    Superblock,
    /// Pages of the index fail their checksum or cannot be read.
    IndexPages {
        /// How many were met; a page may be met more than once.
        pages: u64,
    },
    /// The index's last commit may be lost: its place in the header is damaged, and so is the copy.
    LostCommit,
    /// Objects with ids from `from` to `to` may be lost without a trace.
    LostObjects {
        /// The lowest id.
        from: ObjectId,
        /// The highest id.
        to: ObjectId,
    },
    /// Records that disagree although their pages are sound: no medium does that.
    Inconsistent {
        /// How many.
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

/// What is known to be damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Does the store refuse changes until it is opened again, or mended?
    pub read_only: bool,
    /// Of the store itself.
    pub faults: Vec<StoreFault>,
    /// Of objects, in order of their ids.
    pub damage: Vec<Damage>,
    /// Is there more than is kept ([`MAX_DAMAGE`])?
    pub more: bool,
}

impl Health {
    /// Is nothing damaged?
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty() && self.damage.is_empty()
    }
}

/// The damage that is known, by object.
#[derive(Debug, Default)]
pub(crate) struct DamageBook {
    objects: BTreeMap<ObjectId, Vec<Damage>>,
    count: usize,
    more: bool,
}

impl DamageBook {
    /// Adds a piece. Bytes that are known already, or follow on known ones, make no second piece.
    pub(crate) fn add(&mut self, new: Damage) {
        let full = self.count >= MAX_DAMAGE;
        if full && !self.objects.contains_key(&new.object) {
            self.more = true;
            return;
        }
        let pieces = self.objects.entry(new.object).or_default();
        // Pieces of one kind never touch, so that their ends are in order, too.
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

    /// Takes out bytes of one kind, or what is said of the whole object.
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

    /// What is known of an object.
    pub(crate) fn of(&self, id: ObjectId) -> Vec<Damage> {
        self.objects.get(&id).cloned().unwrap_or_default()
    }

    /// Is anything known of an object?
    pub(crate) fn knows(&self, id: ObjectId) -> bool {
        self.objects.contains_key(&id)
    }

    /// Puts what was found of an object in place of what was known.
    pub(crate) fn replace(&mut self, id: ObjectId, found: impl IntoIterator<Item = Damage>) {
        self.count -= self.objects.remove(&id).map_or(0, |old| old.len());
        found.into_iter().for_each(|damage| self.add(damage));
    }

    /// The objects that miss records, if all of them are known.
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
    fn pieces_that_touch_are_one_and_there_is_a_bound() {
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
