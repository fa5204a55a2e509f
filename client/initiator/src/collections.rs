//! Commands on collections, as a caller means them.
//!
//! Does: name what can be asked of collections and of all their members. Does not: encode or sign; `osd` does.
//! Truth: t10-osd §1.9, §1.10, §2; docs/standards/device.md, collections.

use bytes::Bytes;
use sealstone_osd::{AttributeId, ObjectId};

use crate::Bearer;

/// The collection of every partition that holds all of its user objects, and that nobody makes or removes.
pub const EVERY_OBJECT: u64 = 0x1082;
/// Page of a user object's attributes that name the collections that it is a member of.
pub const COLLECTIONS_PAGE: u32 = 0x0000_0004;

/// What a device is to do with a collection or with its members.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OnCollection {
    /// Makes an empty collection that user objects join; object number 0 lets the device choose one.
    Create {
        /// The collection wanted.
        collection: ObjectId,
    },
    /// Makes a tracking collection of what is in another one now.
    Track {
        /// The collection wanted.
        collection: ObjectId,
        /// The other one's object number; 0 for an empty collection.
        source: u64,
        /// READ on the other one; without security, or without a source, nobody asks for it.
        reading: Option<Bearer>,
        /// Answer at once; the collection tells when it is complete.
        immediate: bool,
    },
    /// Removes a collection; its members stay.
    Remove {
        /// The collection.
        collection: ObjectId,
        /// Even if it has members.
        force: bool,
    },
    /// Members of a collection, or the collections of a partition.
    List {
        /// The collection; with object number 0 the partition.
        collection: ObjectId,
        /// The smallest id wanted.
        from: u64,
        /// As many ids at most, up to [`LIST_IDS_MAX`](crate::LIST_IDS_MAX).
        ids_max: usize,
    },
    /// Makes a collection and its members durable.
    Flush {
        /// The collection.
        collection: ObjectId,
    },
    /// Which members have attributes as asked for.
    Query {
        /// The collection.
        collection: ObjectId,
        /// What is asked.
        question: Question,
        /// As many ids at most, up to [`LIST_IDS_MAX`](crate::LIST_IDS_MAX).
        ids_max: usize,
    },
    /// Puts the members that have attributes as asked for into a tracking collection.
    QueryInto {
        /// The collection.
        collection: ObjectId,
        /// What is asked.
        question: Question,
        /// Number of the tracking collection, in the same partition.
        matches: u64,
        /// M_OBJECT on the tracking collection; without security nobody asks for it.
        filling: Option<Bearer>,
        /// Answer at once; the tracking collection tells the progress.
        immediate: bool,
    },
    /// Reads attributes of all members.
    GetMemberAttributes {
        /// The collection.
        collection: ObjectId,
        /// Which.
        ids: Vec<AttributeId>,
        /// Room for the answer in bytes, up to [`ATTRIBUTES_LENGTH_MAX`](crate::ATTRIBUTES_LENGTH_MAX).
        length_max: usize,
    },
    /// Sets the same attributes of all members.
    SetMemberAttributes {
        /// The collection; a tracking one if immediate.
        collection: ObjectId,
        /// Names and values.
        values: Vec<(AttributeId, Bytes)>,
        /// Answer at once; the collection tells the progress.
        immediate: bool,
    },
    /// Removes all members of a collection, which stays.
    RemoveMembers {
        /// The collection; a tracking one if immediate.
        collection: ObjectId,
        /// Answer at once; the collection tells the progress.
        immediate: bool,
    },
}

/// What QUERY asks of each member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// One criterion is enough; otherwise all of them have to hold.
    pub any: bool,
    /// The criteria, at most [`CRITERIA_MAX`](sealstone_osd::query::CRITERIA_MAX); none select every member.
    pub criteria: Vec<Within>,
}

/// An attribute of a user object between two values, both included; an empty one does not bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Within {
    /// The attribute.
    pub id: AttributeId,
    /// The least value, as a byte string.
    pub min: Bytes,
    /// The greatest value, as a byte string.
    pub max: Bytes,
}

/// Attributes of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its object number.
    pub object: u64,
    /// What was asked for, in order; an undefined one has no value.
    pub attributes: Vec<(AttributeId, Option<Bytes>)>,
}

impl OnCollection {
    /// The command's name in the standard.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "CREATE COLLECTION",
            Self::Track { .. } => "CREATE USER TRACKING COLLECTION",
            Self::Remove { .. } => "REMOVE COLLECTION",
            Self::List { .. } => "LIST COLLECTION",
            Self::Flush { .. } => "FLUSH COLLECTION",
            Self::Query { .. } | Self::QueryInto { .. } => "QUERY",
            Self::GetMemberAttributes { .. } => "GET MEMBER ATTRIBUTES",
            Self::SetMemberAttributes { .. } => "SET MEMBER ATTRIBUTES",
            Self::RemoveMembers { .. } => "REMOVE MEMBER OBJECTS",
        }
    }

    /// Is the outcome of repeating it the same as of doing it once?
    pub(crate) const fn is_repeatable(&self) -> bool {
        match self {
            Self::List { .. }
            | Self::Flush { .. }
            | Self::Query { .. }
            | Self::GetMemberAttributes { .. } => true,
            // A second one would find the first one under way.
            Self::QueryInto { immediate, .. } | Self::SetMemberAttributes { immediate, .. } => !*immediate,
            Self::Create { .. } | Self::Track { .. } | Self::Remove { .. } | Self::RemoveMembers { .. } => {
                false
            }
        }
    }

    /// The id that it makes, if it makes one.
    pub(crate) const fn made(&self) -> Option<ObjectId> {
        match self {
            Self::Create { collection } | Self::Track { collection, .. } => Some(*collection),
            _ => None,
        }
    }
}
