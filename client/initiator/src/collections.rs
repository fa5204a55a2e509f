//! Operations on collections.
//!
//! Does: lists the operations on collections and on all their members.
//! Does not: encode or sign; `osd` does.
//! Truth: t10-osd §1.9, §1.10, §2; docs/standards/device.md, collections.

use bytes::Bytes;
use sealstone_osd::{AttributeId, ObjectId};

use crate::Bearer;

/// The built-in collection of every partition with all its user objects; it cannot be created or
/// removed.
pub const EVERY_OBJECT: u64 = 0x1082;
/// Attribute page of a user object with the collections that it is a member of.
pub const COLLECTIONS_PAGE: u32 = 0x0000_0004;

/// An operation on a collection or its members.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CollectionOperation {
    /// Creates an empty collection for user objects; object number 0 lets the device choose a
    /// number.
    Create {
        /// The requested collection.
        collection: ObjectId,
    },
    /// Creates a tracking collection with the current members of another collection.
    Track {
        /// The requested collection.
        collection: ObjectId,
        /// Object number of the source collection; 0 for an empty one.
        source: u64,
        /// Credential with READ on the source; not needed without security or without a source.
        reading: Option<Bearer>,
        /// Answer at once; the collection reports when it is complete.
        immediate: bool,
    },
    /// Removes a collection; its members stay.
    Remove {
        /// The collection.
        collection: ObjectId,
        /// Removes it even if it has members.
        force: bool,
    },
    /// Lists the members of a collection, or the collections of a partition.
    List {
        /// The collection; with object number 0 the partition.
        collection: ObjectId,
        /// The smallest id to list.
        from: u64,
        /// Maximum number of ids, up to [`LIST_IDS_MAX`](crate::LIST_IDS_MAX).
        ids_max: usize,
    },
    /// Makes a collection and its members durable.
    Flush {
        /// The collection.
        collection: ObjectId,
    },
    /// Finds the members whose attributes match.
    Query {
        /// The collection.
        collection: ObjectId,
        /// The criteria.
        question: QueryCriteria,
        /// Maximum number of ids, up to [`LIST_IDS_MAX`](crate::LIST_IDS_MAX).
        ids_max: usize,
    },
    /// Stores the members whose attributes match in a tracking collection.
    QueryInto {
        /// The collection.
        collection: ObjectId,
        /// The criteria.
        question: QueryCriteria,
        /// Number of the tracking collection, in the same partition.
        matches: u64,
        /// Credential with M_OBJECT on the tracking collection; not needed without security.
        filling: Option<Bearer>,
        /// Answer at once; the tracking collection reports the progress.
        immediate: bool,
    },
    /// Reads attributes of all members.
    GetMemberAttributes {
        /// The collection.
        collection: ObjectId,
        /// The attributes.
        ids: Vec<AttributeId>,
        /// Maximum bytes of the answer, up to
        /// [`ATTRIBUTES_LENGTH_MAX`](crate::ATTRIBUTES_LENGTH_MAX).
        length_max: usize,
    },
    /// Sets the same attributes of all members.
    SetMemberAttributes {
        /// The collection; a tracking one if immediate.
        collection: ObjectId,
        /// Attributes with their values.
        values: Vec<(AttributeId, Bytes)>,
        /// Answer at once; the collection reports the progress.
        immediate: bool,
    },
    /// Removes all members of a collection, which stays.
    RemoveMembers {
        /// The collection; a tracking one if immediate.
        collection: ObjectId,
        /// Answer at once; the collection reports the progress.
        immediate: bool,
    },
}

/// The criteria of a QUERY.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryCriteria {
    /// Whether one matching criterion is enough; otherwise all have to match.
    pub any: bool,
    /// The criteria, at most [`CRITERIA_MAX`](sealstone_osd::query::CRITERIA_MAX); without any,
    /// every member matches.
    pub criteria: Vec<AttributeRange>,
}

/// A range of values for an attribute, both ends included; an empty bound does not limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeRange {
    /// The attribute.
    pub id: AttributeId,
    /// The lower bound, as a byte string.
    pub min: Bytes,
    /// The upper bound, as a byte string.
    pub max: Bytes,
}

/// Attributes of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAttributes {
    /// Its object number.
    pub object: u64,
    /// The requested attributes, in order; an undefined one has no value.
    pub attributes: Vec<(AttributeId, Option<Bytes>)>,
}

impl CollectionOperation {
    /// Returns the command's name in the standard.
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

    /// Whether it is idempotent.
    pub(crate) const fn is_repeatable(&self) -> bool {
        match self {
            Self::List { .. }
            | Self::Flush { .. }
            | Self::Query { .. }
            | Self::GetMemberAttributes { .. } => true,
            // A repetition would find the first one in progress.
            Self::QueryInto { immediate, .. } | Self::SetMemberAttributes { immediate, .. } => !*immediate,
            Self::Create { .. } | Self::Track { .. } | Self::Remove { .. } | Self::RemoveMembers { .. } => {
                false
            }
        }
    }

    /// Returns the id of the collection that it creates, if it creates one.
    pub(crate) const fn made(&self) -> Option<ObjectId> {
        match self {
            Self::Create { collection } | Self::Track { collection, .. } => Some(*collection),
            _ => None,
        }
    }
}
