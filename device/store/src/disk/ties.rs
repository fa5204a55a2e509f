//! Are memberships whole? The part of the walk at open that looks at collections.
//!
//! Does: count members and memberships of each object as the walk comes by, and weigh one side against the other.
//! Costs: O(1) memory. Each membership adds a keyed hash on the collection's side and takes it away on the member's;
//! what is not on both sides leaves a rest, but for one chance in 2^64.

use std::hash::{BuildHasher, RandomState};

use redb::ReadOnlyTable;
use sealstone_osd::{ObjectId, ObjectType};

use super::index::Owned;
use super::record::{
    Key, ObjectRecord, Value, all_collections, all_members, all_memberships, object_of, sub_of,
};

/// The three kinds of records, walked side by side.
pub(crate) struct Ties<'a> {
    members: Owned<'a>,
    memberships: Owned<'a>,
    counts: Owned<'a>,
    hasher: RandomState,
    balance: u64,
}

/// What the walk found of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tie {
    members: u64,
    memberships: u64,
    /// The number of members that it says it has.
    said: Option<u64>,
}

impl Tie {
    /// Is it what the object's record asks for?
    pub(crate) fn fits(&self, record: &ObjectRecord) -> bool {
        let said = (record.kind == ObjectType::Collection).then_some(self.members);
        self.said == said
            && self.memberships == u64::from(record.memberships)
            && (self.members == 0 || said.is_some())
    }
}

impl<'a> Ties<'a> {
    pub(crate) fn new(
        table: &'a ReadOnlyTable<&'static [u8; 25], &'static [u8]>,
    ) -> Result<Self, redb::Error> {
        let range = |(first, last): (Key, Key)| table.range::<&[u8; 25]>(&first..=&last);
        Ok(Self {
            members: Owned::new(range(all_members())?),
            memberships: Owned::new(range(all_memberships())?),
            counts: Owned::new(range(all_collections())?),
            hasher: RandomState::new(),
            balance: 0,
        })
    }

    /// Goes on to an object.
    pub(crate) fn advance(&mut self, id: ObjectId, damaged: &mut u64) -> Result<Tie, redb::Error> {
        let mut tie = Tie::default();
        let (hasher, balance) = (&self.hasher, &mut self.balance);
        self.members.advance(id, damaged, |key, value| {
            let Value::Membership(slot) = value else { return };
            let collection = object_of(key);
            tie.members += u64::from(collection == id);
            let fact = (collection.partition, collection.object, sub_of(key), slot);
            *balance = balance.wrapping_add(hasher.hash_one(fact));
        })?;
        self.memberships.advance(id, damaged, |key, value| {
            let Value::Membership(slot) = value else { return };
            let member = object_of(key);
            tie.memberships += u64::from(member == id);
            let fact = (member.partition, sub_of(key), member.object, slot);
            *balance = balance.wrapping_sub(hasher.hash_one(fact));
        })?;
        self.counts.advance(id, damaged, |key, value| {
            if let (true, Value::Count(count)) = (object_of(key) == id, value) {
                tie.said = Some(count);
            }
        })?;
        Ok(tie)
    }

    /// After the last object: does every membership stand on both sides?
    pub(crate) fn finish(mut self, damaged: &mut u64) -> Result<bool, redb::Error> {
        self.advance(ObjectId::new(u64::MAX, u64::MAX), damaged)?;
        Ok(self.balance == 0)
    }
}
