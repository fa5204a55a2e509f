//! One OSD command as a caller means it, before it has a CDB.
//!
//! Does: name what can be asked and what an answer holds. Does not: encode or sign; `osd` does.
//! Truth: t10-osd §1.2, §1.10.

use bytes::Bytes;
use sealstone_osd::cdb::{Rewrite, SetKey, SetMasterKey};
use sealstone_osd::map::Stretch;
use sealstone_osd::rewrite::RewriteOperation;
use sealstone_osd::{AttributeId, Command, ObjectId};

use crate::Bearer;
use crate::collections::{Member, OnCollection};

/// The most bytes one READ or WRITE may carry.
pub const TRANSFER_MAX: usize = 16 << 20;
/// The most bytes of attributes that one GET ATTRIBUTES may bring back.
pub const ATTRIBUTES_LENGTH_MAX: usize = 256 << 10;
/// The most ids that one LIST may bring back.
pub const LIST_IDS_MAX: usize = 8192;
/// The most stretches that one READ MAP may bring back.
pub const STRETCHES_MAX: usize = 16384;

/// What a device is to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Makes an empty user object; object number 0 lets the device choose one.
    Create {
        /// The object wanted.
        object: ObjectId,
    },
    /// Makes a user object that holds `data`.
    CreateAndWrite {
        /// The object wanted.
        object: ObjectId,
        /// Where `data` begins in it.
        offset: u64,
        /// Its bytes, at most [`TRANSFER_MAX`].
        data: Bytes,
    },
    /// Writes bytes; the object grows as needed.
    Write {
        /// The object.
        object: ObjectId,
        /// Where.
        offset: u64,
        /// The bytes, at most [`TRANSFER_MAX`].
        data: Bytes,
    },
    /// Writes bytes at the end, wherever it is.
    Append {
        /// The object.
        object: ObjectId,
        /// The bytes, at most [`TRANSFER_MAX`].
        data: Bytes,
    },
    /// Reads bytes.
    Read {
        /// The object.
        object: ObjectId,
        /// Where.
        offset: u64,
        /// How many, at most [`TRANSFER_MAX`].
        length: usize,
        /// The buffer to read into; its contents are lost. An empty one makes a new allocation.
        buffer: Vec<u8>,
    },
    /// Zeroes a range; the object grows as needed.
    Clear {
        /// The object.
        object: ObjectId,
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Takes a range out; what follows moves down.
    Punch {
        /// The object.
        object: ObjectId,
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Removes a user object.
    Remove {
        /// The object.
        object: ObjectId,
    },
    /// Makes an object's data and attributes durable.
    Flush {
        /// The object.
        object: ObjectId,
    },
    /// Makes a partition and all in it durable.
    FlushPartition {
        /// The partition.
        partition: u64,
    },
    /// Makes everything durable.
    FlushOsd,
    /// Ids in a partition, or of partitions.
    List {
        /// The partition; 0 lists partitions.
        partition: u64,
        /// The smallest id wanted.
        from: u64,
        /// As many ids at most, up to [`LIST_IDS_MAX`].
        ids_max: usize,
    },
    /// Reads attributes.
    GetAttributes {
        /// Whose: user object, partition or root.
        object: ObjectId,
        /// Which.
        ids: Vec<AttributeId>,
        /// Room for the answer in bytes, up to [`ATTRIBUTES_LENGTH_MAX`].
        length_max: usize,
    },
    /// Sets attributes; an empty value removes one.
    SetAttributes {
        /// Whose: user object, partition or root.
        object: ObjectId,
        /// Names and values.
        values: Vec<(AttributeId, Bytes)>,
    },
    /// Makes an empty user object or a partition of this id, with these attributes: there is no moment in which it has
    /// others.
    CreateWith {
        /// The object or partition wanted; neither number is 0, but a partition's object number.
        object: ObjectId,
        /// Names and values.
        values: Vec<(AttributeId, Bytes)>,
    },
    /// Makes a partition; id 0 lets the device choose one.
    CreatePartition {
        /// The id wanted.
        partition: u64,
    },
    /// Removes an empty partition.
    RemovePartition {
        /// Its id.
        partition: u64,
    },
    /// Erases the device.
    FormatOsd {
        /// Bytes to use; 0 is all.
        capacity: u64,
    },
    /// Sets a root, partition or working key. Sent again with the same seed it sets the same key.
    SetKey {
        /// Which key, from what seed.
        set: SetKey,
    },
    /// A step of the exchange of a master key.
    SetMasterKey {
        /// Which step.
        set: SetMasterKey,
        /// Its parameter data.
        data_out: Bytes,
    },
    /// Something about a collection or its members.
    Collection(OnCollection),
    /// Makes a user object that has the bytes of another one, without moving them; object number 0 lets the device
    /// choose one.
    Copy {
        /// The object wanted.
        object: ObjectId,
        /// The object to copy.
        source: ObjectId,
        /// Its attributes too.
        attributes: bool,
        /// The right to read the source.
        reading: Bearer,
    },
    /// Makes a read-only copy of a partition; id 0 lets the device choose one.
    CreateSnapshot {
        /// The id wanted.
        partition: u64,
        /// The partition to copy.
        source: u64,
    },
    /// Makes a copy of a partition that goes its own way; id 0 lets the device choose one.
    CreateClone {
        /// The id wanted.
        partition: u64,
        /// The partition to copy.
        source: u64,
    },
    /// Makes a clone a partition of its own.
    DetachClone {
        /// The clone.
        partition: u64,
    },
    /// Makes a snapshot or clone again what its source is.
    Refresh {
        /// The snapshot or clone.
        partition: u64,
    },
    /// Makes a partition again what it was when its snapshot was made.
    Restore {
        /// The partition.
        partition: u64,
        /// One of its snapshots.
        snapshot: u64,
    },
    /// Tells where an object has data, holes and damage.
    ReadMap {
        /// The object.
        object: ObjectId,
        /// The first byte wanted.
        from: u64,
        /// As many stretches at most, up to [`STRETCHES_MAX`].
        stretches_max: usize,
        /// Only where it differs from the object that it was duplicated from.
        compare: bool,
    },
    /// Checks all data and records of a partition, or of the device.
    CheckStructure {
        /// Partition or root.
        object: ObjectId,
    },
    /// Reads, changes and writes a range of an object in one command.
    Rewrite {
        /// What, where, and what comes back; `operands` is filled in.
        rewrite: Rewrite,
        /// What is done, each with its operand.
        operations: Vec<(RewriteOperation, Bytes)>,
        /// Attributes set together with it.
        values: Vec<(AttributeId, Bytes)>,
    },
    /// Another one of an object whose number is known, and in the same command attributes of that object are read when it is
    /// done; none come back if its answer was lost and it is only known that it was done.
    Asking {
        /// What is done.
        operation: Box<Self>,
        /// Which attributes; few and short ones.
        ids: Vec<AttributeId>,
    },
    /// Any typed command, for what has no variant of its own. Never retried.
    Other {
        /// The command.
        command: Command,
        /// Its command data.
        data_out: Bytes,
    },
}

/// What may happen if a command runs twice because its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The same as once.
    Safe,
    /// A second CREATE of a given id finds the first one's object: "exists" then means done.
    CreateOfKnownId,
    /// Something else than once.
    Unsafe,
}

impl Operation {
    /// The command's name in the standard.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "CREATE",
            Self::CreateWith { object, .. } if object.is_partition() => "CREATE PARTITION",
            Self::CreateWith { .. } => "CREATE",
            Self::CreateAndWrite { .. } => "CREATE AND WRITE",
            Self::Write { .. } => "WRITE",
            Self::Append { .. } => "APPEND",
            Self::Read { .. } => "READ",
            Self::Clear { .. } => "CLEAR",
            Self::Punch { .. } => "PUNCH",
            Self::Remove { .. } => "REMOVE",
            Self::Flush { .. } => "FLUSH",
            Self::FlushPartition { .. } => "FLUSH PARTITION",
            Self::FlushOsd => "FLUSH OSD",
            Self::List { .. } => "LIST",
            Self::GetAttributes { .. } => "GET ATTRIBUTES",
            Self::SetAttributes { .. } => "SET ATTRIBUTES",
            Self::CreatePartition { .. } => "CREATE PARTITION",
            Self::RemovePartition { .. } => "REMOVE PARTITION",
            Self::FormatOsd { .. } => "FORMAT OSD",
            Self::SetKey { .. } => "SET KEY",
            Self::SetMasterKey { .. } => "SET MASTER KEY",
            Self::Collection(what) => what.name(),
            Self::Copy { .. } => "COPY USER OBJECTS",
            Self::CreateSnapshot { .. } => "CREATE SNAPSHOT",
            Self::CreateClone { .. } => "CREATE CLONE",
            Self::DetachClone { .. } => "DETACH CLONE",
            Self::Refresh { .. } => "REFRESH SNAPSHOT OR CLONE",
            Self::Restore { .. } => "RESTORE PARTITION FROM SNAPSHOT",
            Self::ReadMap { compare: false, .. } => "READ MAP",
            Self::ReadMap { compare: true, .. } => "READ MAPS AND COMPARE",
            Self::CheckStructure { .. } => "OBJECT STRUCTURE CHECK",
            Self::Rewrite { .. } => "REWRITE",
            Self::Asking { operation, .. } => operation.name(),
            Self::Other { .. } => "OTHER",
        }
    }

    /// What it does, whatever it asks for besides.
    #[must_use]
    pub fn done(&self) -> &Self {
        match self {
            Self::Asking { operation, .. } => operation.done(),
            other => other,
        }
    }

    /// What repeating it after an unknown outcome means.
    ///
    /// REMOVE is `Unsafe`: a second one would report "not found" for an object that the first one removed, and the
    /// id may have been taken again in between.
    #[must_use]
    pub fn repeat(&self) -> Repeat {
        match self {
            Self::Asking { operation, .. } => operation.repeat(),
            Self::Write { .. }
            | Self::Read { .. }
            | Self::Clear { .. }
            | Self::Flush { .. }
            | Self::FlushPartition { .. }
            | Self::FlushOsd
            | Self::List { .. }
            | Self::GetAttributes { .. }
            | Self::SetAttributes { .. }
            | Self::SetKey { .. }
            | Self::ReadMap { .. }
            | Self::CheckStructure { .. } => Repeat::Safe,
            Self::Create { object } | Self::CreateAndWrite { object, .. } if object.object != 0 => {
                Repeat::CreateOfKnownId
            }
            Self::CreatePartition { partition } if *partition != 0 => Repeat::CreateOfKnownId,
            // "Exists" may also mean that somebody else made it, with other attributes.
            Self::CreateWith { .. } => Repeat::Unsafe,
            Self::Collection(what) if what.is_repeatable() => Repeat::Safe,
            Self::Collection(OnCollection::Create { collection }) if collection.object != 0 => {
                Repeat::CreateOfKnownId
            }
            Self::Collection(_)
            | Self::Create { .. }
            | Self::CreateAndWrite { .. }
            | Self::CreatePartition { .. }
            | Self::Append { .. }
            | Self::Punch { .. }
            | Self::Remove { .. }
            | Self::RemovePartition { .. }
            | Self::FormatOsd { .. }
            | Self::SetMasterKey { .. }
            // A second one would find what the first one made, and not know whether it did.
            | Self::Copy { .. }
            | Self::CreateSnapshot { .. }
            | Self::CreateClone { .. }
            | Self::DetachClone { .. }
            | Self::Refresh { .. }
            | Self::Restore { .. }
            | Self::Rewrite { .. }
            | Self::Other { .. } => Repeat::Unsafe,
        }
    }
}

/// What came back from a command that succeeded.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// READ: the bytes, exactly as many as were asked for. Others: their parameter data.
    pub data: Vec<u8>,
    /// Attributes asked for, in order; an undefined one has no value.
    pub attributes: Vec<(AttributeId, Option<Bytes>)>,
    /// The object made, where the device chose its id; the partition in CREATE PARTITION.
    pub created: Option<ObjectId>,
    /// APPEND: where the bytes begin.
    pub appended_at: Option<u64>,
    /// LIST, LIST COLLECTION, QUERY: the ids found and where to continue.
    pub listed: Option<Listed>,
    /// QUERY: how many match, also those that found no room.
    pub matches_total: Option<u64>,
    /// GET MEMBER ATTRIBUTES: each member, as far as there was room.
    pub members: Vec<Member>,
    /// READ MAP and READ MAPS AND COMPARE: what is where.
    pub map: Vec<Stretch>,
}

/// A page of LIST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Ids, ascending.
    pub ids: Vec<u64>,
    /// The id to continue from; none at the end.
    pub next: Option<u64>,
}
