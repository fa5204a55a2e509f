//! Cross-checks of memberships: the part of the walk at open that concerns collections.
//!
//! Does: counts members and memberships of each object during the walk, and compares both
//! directions.
//! Costs: O(1) memory. Each membership adds a keyed hash on the collection's side and subtracts it
//! on the member's; a membership that is on one side only leaves a difference, except with
//! probability 2^-64.

use std::hash::{BuildHasher, RandomState};

use sealstone_osd::{ObjectId, ObjectType};

use super::record::{
    Key, ObjectRecord, Value, all_collections, all_members, all_memberships, object_of, sub_of,
};
use super::survey::Owned;
use super::tree::Reader;

/// The three kinds of records, walked side by side.
pub(crate) struct Ties<'a> {
    members: Owned<'a>,
    memberships: Owned<'a>,
    counts: Owned<'a>,
    hasher: RandomState,
    balance: u64,
    /// Whether a record was corrupt: the balance is then meaningless.
    rotten: bool,
}

/// Findings for one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tie {
    members: u64,
    memberships: u64,
    /// Its recorded number of members.
    said: Option<u64>,
    rotten: bool,
}

impl Tie {
    /// Whether it matches the object's record.
    pub(crate) fn fits(&self, record: &ObjectRecord) -> bool {
        let said = (record.kind == ObjectType::Collection).then_some(self.members);
        !self.rotten
            && self.said == said
            && self.memberships == u64::from(record.memberships)
            && (self.members == 0 || said.is_some())
    }

    /// Whether one of its records was corrupt.
    pub(crate) fn is_rotten(&self) -> bool {
        self.rotten
    }
}

impl<'a> Ties<'a> {
    pub(crate) fn new(reader: &'a Reader) -> Self {
        Self {
            members: Owned::new(reader, all_members()),
            memberships: Owned::new(reader, all_memberships()),
            counts: Owned::new(reader, all_collections()),
            hasher: RandomState::new(),
            balance: 0,
            rotten: false,
        }
    }

    /// Advances to an object.
    pub(crate) fn advance(&mut self, id: ObjectId) -> Tie {
        let mut tie = Tie::default();
        let (hasher, balance, rotten) = (&self.hasher, &mut self.balance, &mut self.rotten);
        self.members.advance(id, |key, value| {
            let collection = object_of(key);
            let Ok(Value::Membership(slot)) = value else {
                *rotten = true;
                tie.rotten |= collection == id;
                return;
            };
            tie.members += u64::from(collection == id);
            let fact = (collection.partition, collection.object, sub_of(key), slot);
            *balance = balance.wrapping_add(hasher.hash_one(fact));
        });
        self.memberships.advance(id, |key, value| {
            let member = object_of(key);
            let Ok(Value::Membership(slot)) = value else {
                *rotten = true;
                tie.rotten |= member == id;
                return;
            };
            tie.memberships += u64::from(member == id);
            let fact = (member.partition, sub_of(key), member.object, slot);
            *balance = balance.wrapping_sub(hasher.hash_one(fact));
        });
        self.counts.advance(id, |key, value| match value {
            Ok(Value::Count(count)) if object_of(key) == id => tie.said = Some(count),
            Ok(Value::Count(_)) => {}
            _ => tie.rotten |= object_of(key) == id,
        });
        tie
    }

    /// Whether records of these ranges (members, memberships, count) may be lost.
    pub(crate) fn misses(&self, members: (&Key, &Key), memberships: (&Key, &Key), count: &Key) -> bool {
        self.members.misses(members.0, members.1)
            || self.memberships.misses(memberships.0, memberships.1)
            || self.counts.misses(count, count)
    }

    /// After the last object: whether every membership is on both sides, or the reason for a
    /// difference is known.
    pub(crate) fn finish(self) -> bool {
        let lost = self.members.has_lost() || self.memberships.has_lost();
        self.balance == 0 || self.rotten || lost
    }
}
