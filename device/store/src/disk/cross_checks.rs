//! Cross-checks of memberships: the part of the walk at open that concerns collections.
//!
//! Does: counts members and memberships of each object during the walk, and compares both
//! directions.
//! Costs: O(1) memory. Each membership adds a keyed hash on the collection's side and subtracts it
//! on the member's; a membership that is on one side only leaves a difference, except with
//! probability 2^-64.

use std::hash::{BuildHasher, RandomState};

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_redb_format::TreeReader;

use super::record::{
    Key, ObjectRecord, RecordValue, all_collections, all_members, all_memberships, object_of, sub_of,
};
use super::survey::OwnedRecords;

/// The three kinds of records, walked side by side.
pub(crate) struct CrossChecks<'a> {
    members: OwnedRecords<'a>,
    memberships: OwnedRecords<'a>,
    counts: OwnedRecords<'a>,
    hasher: RandomState,
    balance: u64,
    /// Whether a record was corrupt: the balance is then meaningless.
    corrupt: bool,
}

/// Findings for one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MembershipCheck {
    members: u64,
    memberships: u64,
    /// Its recorded number of members.
    recorded_count: Option<u64>,
    corrupt: bool,
}

impl MembershipCheck {
    /// Whether it matches the object's record.
    pub(crate) fn fits(&self, record: &ObjectRecord) -> bool {
        let recorded_count = (record.kind == ObjectType::Collection).then_some(self.members);
        !self.corrupt
            && self.recorded_count == recorded_count
            && self.memberships == u64::from(record.memberships)
            && (self.members == 0 || recorded_count.is_some())
    }

    /// Whether one of its records was corrupt.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.corrupt
    }
}

impl<'a> CrossChecks<'a> {
    pub(crate) fn new(reader: &'a TreeReader) -> Self {
        Self {
            members: OwnedRecords::new(reader, all_members()),
            memberships: OwnedRecords::new(reader, all_memberships()),
            counts: OwnedRecords::new(reader, all_collections()),
            hasher: RandomState::new(),
            balance: 0,
            corrupt: false,
        }
    }

    /// Advances to an object.
    pub(crate) fn advance(&mut self, id: ObjectId) -> MembershipCheck {
        let mut check = MembershipCheck::default();
        let (hasher, balance, corrupt) = (&self.hasher, &mut self.balance, &mut self.corrupt);
        self.members.advance(id, |key, value| {
            let collection = object_of(key);
            let Ok(RecordValue::Membership(slot)) = value else {
                *corrupt = true;
                check.corrupt |= collection == id;
                return;
            };
            check.members += u64::from(collection == id);
            let fact = (collection.partition, collection.object, sub_of(key), slot);
            *balance = balance.wrapping_add(hasher.hash_one(fact));
        });
        self.memberships.advance(id, |key, value| {
            let member = object_of(key);
            let Ok(RecordValue::Membership(slot)) = value else {
                *corrupt = true;
                check.corrupt |= member == id;
                return;
            };
            check.memberships += u64::from(member == id);
            let fact = (member.partition, sub_of(key), member.object, slot);
            *balance = balance.wrapping_sub(hasher.hash_one(fact));
        });
        self.counts.advance(id, |key, value| match value {
            Ok(RecordValue::Count(count)) if object_of(key) == id => check.recorded_count = Some(count),
            Ok(RecordValue::Count(_)) => {}
            _ => check.corrupt |= object_of(key) == id,
        });
        check
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
        self.balance == 0 || self.corrupt || lost
    }
}
