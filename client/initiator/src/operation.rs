//! OSD commands as typed operations, before they have a CDB.
//!
//! Does: lists the operations and the contents of their answers.
//! Does not: encode or sign; `osd` does.
//! Truth: t10-osd §1.2, §1.10.

use core::time::Duration;

use bytes::Bytes;
use sealstone_osd::cdb::{Rewrite, SetKey, SetMasterKey};
use sealstone_osd::function::paper::PaperRequest;
use sealstone_osd::function::{ExecuteRequest, JobAction, JobRequest};
use sealstone_osd::map::MapExtent;
use sealstone_osd::rewrite::RewriteOperation;
use sealstone_osd::{AttributeId, Command, ObjectId};

use crate::Bearer;
use crate::collections::{CollectionOperation, MemberAttributes};

/// Maximum bytes of one READ or WRITE.
pub const TRANSFER_MAX: usize = 16 << 20;
/// Maximum bytes of attributes in an answer to GET ATTRIBUTES.
pub const ATTRIBUTES_LENGTH_MAX: usize = 256 << 10;
/// Maximum ids in an answer to LIST.
pub const LIST_IDS_MAX: usize = 8192;
/// Maximum extents in an answer to READ MAP.
pub const MAP_EXTENTS_MAX: usize = 16384;

/// An operation of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Creates an empty user object; object number 0 lets the device choose one.
    Create {
        /// The requested object.
        object: ObjectId,
    },
    /// Creates a user object with `data`.
    CreateAndWrite {
        /// The requested object.
        object: ObjectId,
        /// Offset of `data` in the object.
        offset: u64,
        /// The bytes, at most [`TRANSFER_MAX`].
        data: Bytes,
    },
    /// Writes bytes; the object grows as needed.
    Write {
        /// The object.
        object: ObjectId,
        /// Offset of the bytes.
        offset: u64,
        /// The bytes, at most [`TRANSFER_MAX`].
        data: Bytes,
    },
    /// Appends bytes at the end of the object.
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
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, at most [`TRANSFER_MAX`].
        length: usize,
        /// The buffer to read into; its contents are lost. If it is empty, a new one is allocated.
        buffer: Vec<u8>,
    },
    /// Zeroes a range; the object grows as needed.
    Clear {
        /// The object.
        object: ObjectId,
        /// Start of the range.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Removes a range; the bytes after it move down.
    Punch {
        /// The object.
        object: ObjectId,
        /// Start of the range.
        offset: u64,
        /// Number of bytes.
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
    /// Makes a partition and everything in it durable.
    FlushPartition {
        /// The partition.
        partition: u64,
    },
    /// Makes everything durable.
    FlushOsd,
    /// Lists the ids in a partition, or of all partitions.
    List {
        /// The partition; 0 lists partitions.
        partition: u64,
        /// The smallest id to list.
        from: u64,
        /// Maximum number of ids, up to [`LIST_IDS_MAX`].
        ids_max: usize,
    },
    /// Reads attributes.
    GetAttributes {
        /// The user object, partition or root object.
        object: ObjectId,
        /// The attributes.
        ids: Vec<AttributeId>,
        /// Maximum bytes of the answer, up to [`ATTRIBUTES_LENGTH_MAX`].
        length_max: usize,
    },
    /// Sets attributes; an empty value removes one.
    SetAttributes {
        /// The user object, partition or root object.
        object: ObjectId,
        /// Attributes with their values.
        values: Vec<(AttributeId, Bytes)>,
        /// Whether the device flushes before it answers (FUA). It needs no right to flush.
        durable: bool,
    },
    /// Creates an empty user object or a partition with this id and these attributes, atomically.
    CreateWith {
        /// The requested object or partition; its numbers are not 0, except the object number of a
        /// partition.
        object: ObjectId,
        /// Attributes with their values.
        values: Vec<(AttributeId, Bytes)>,
    },
    /// Creates a partition; id 0 lets the device choose one.
    CreatePartition {
        /// The requested id.
        partition: u64,
    },
    /// Removes an empty partition.
    RemovePartition {
        /// Its id.
        partition: u64,
    },
    /// Erases the device.
    FormatOsd {
        /// Bytes to use; 0 for all.
        capacity: u64,
    },
    /// Sets a root, partition or working key. It is idempotent for the same seed.
    SetKey {
        /// The key and its seed.
        set: SetKey,
    },
    /// Runs a step of the exchange of a master key.
    SetMasterKey {
        /// The step.
        set: SetMasterKey,
        /// Its parameter data.
        data_out: Bytes,
    },
    /// An operation on a collection or its members.
    Collection(CollectionOperation),
    /// Creates a user object that shares the bytes of another one; object number 0 lets the device
    /// choose one.
    Copy {
        /// The requested object.
        object: ObjectId,
        /// The object to copy.
        source: ObjectId,
        /// Whether attributes are copied too.
        attributes: bool,
        /// The credential to read the source.
        reading: Bearer,
    },
    /// Creates a read-only copy of a partition; id 0 lets the device choose one.
    CreateSnapshot {
        /// The requested id.
        partition: u64,
        /// The partition to copy.
        source: u64,
    },
    /// Creates a writable copy of a partition; id 0 lets the device choose one.
    CreateClone {
        /// The requested id.
        partition: u64,
        /// The partition to copy.
        source: u64,
    },
    /// Makes a clone independent of its source.
    DetachClone {
        /// The clone.
        partition: u64,
    },
    /// Updates a snapshot or clone from its source.
    Refresh {
        /// The snapshot or clone.
        partition: u64,
    },
    /// Restores a partition from a snapshot.
    Restore {
        /// The partition.
        partition: u64,
        /// One of its snapshots.
        snapshot: u64,
    },
    /// Returns where an object has data, holes and damage.
    ReadMap {
        /// The object.
        object: ObjectId,
        /// The first byte to report.
        from: u64,
        /// Maximum number of extents, up to [`MAP_EXTENTS_MAX`].
        extents_max: usize,
        /// Reports only differences from the object that it was duplicated from.
        compare: bool,
    },
    /// Checks all data and records of a partition or of the device.
    CheckStructure {
        /// The partition or root object.
        object: ObjectId,
    },
    /// Reads, changes and writes a range of an object in one command.
    Rewrite {
        /// The range and the value to return; `operands` is filled in.
        rewrite: Rewrite,
        /// The operations with their operands.
        operations: Vec<(RewriteOperation, Bytes)>,
        /// Attributes to set in the same command.
        values: Vec<(AttributeId, Bytes)>,
    },
    /// Runs a function object, or acts on one of its jobs.
    ExecuteFunction {
        /// The function object.
        object: ObjectId,
        /// The request.
        request: Box<ExecuteRequest>,
        /// Maximum bytes of the reply, within the bounds of `sealstone_osd::function`.
        reply_max: u32,
        /// The credentials for the object entries of the request, in their order; none without
        /// security.
        data: Vec<Bearer>,
    },
    /// Runs a function object by the descriptor of the ASF paper (0003h), if
    /// [`crate::OsdOptions::paper_functions`] is set. Requests about its jobs are
    /// [`Operation::ExecuteFunction`].
    ExecutePaperFunction {
        /// The function object.
        object: ObjectId,
        /// The request.
        request: Box<PaperRequest>,
        /// Maximum bytes of the reply, within the bounds of `sealstone_osd::function`.
        reply_max: u32,
        /// The credentials for the objects. Each is a handle of the function, in their order.
        data: Vec<Bearer>,
    },
    /// Runs another operation on an object with a known number, and reads attributes of the object
    /// in the same command. None are returned if the answer was lost and only the success is known.
    Asking {
        /// The operation.
        operation: Box<Self>,
        /// The attributes; few and short ones.
        ids: Vec<AttributeId>,
    },
    /// Any typed command that has no variant here. Never retried.
    Other {
        /// The command.
        command: Command,
        /// Its command data.
        data_out: Bytes,
    },
}

/// The effect of a command that runs twice because its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatEffect {
    /// The same as once.
    Safe,
    /// A repeated CREATE of a given id finds the object of the first one: "exists" then means
    /// success.
    CreateOfKnownId,
    /// Different from once.
    Unsafe,
}

impl Operation {
    /// Returns the command's name in the standard.
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
            Self::ExecuteFunction { .. } => "EXECUTE FUNCTION",
            Self::ExecutePaperFunction { .. } => "EXECUTE FUNCTION of the ASF paper",
            Self::Asking { operation, .. } => operation.name(),
            Self::Other { .. } => "OTHER",
        }
    }

    /// Returns the operation itself, without additionally requested attributes.
    #[must_use]
    pub fn done(&self) -> &Self {
        match self {
            Self::Asking { operation, .. } => operation.done(),
            other => other,
        }
    }

    /// Returns the effect of a repetition after an unknown outcome.
    ///
    /// REMOVE is `Unsafe`: a repetition would report "not found" for an object that the first one
    /// removed, and the id may have been reused in between.
    #[must_use]
    pub fn repeat(&self) -> RepeatEffect {
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
            | Self::CheckStructure { .. } => RepeatEffect::Safe,
            Self::Create { object } | Self::CreateAndWrite { object, .. } if object.object != 0 => {
                RepeatEffect::CreateOfKnownId
            }
            Self::CreatePartition { partition } if *partition != 0 => RepeatEffect::CreateOfKnownId,
            // "Exists" may also mean that another client created it, with other attributes.
            Self::CreateWith { .. } => RepeatEffect::Unsafe,
            Self::ExecuteFunction { request, .. } if matches!(**request, ExecuteRequest::Job(_)) => RepeatEffect::Safe,
            Self::Collection(what) if what.is_repeatable() => RepeatEffect::Safe,
            Self::Collection(CollectionOperation::Create { collection }) if collection.object != 0 => {
                RepeatEffect::CreateOfKnownId
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
            // A repetition would find the result of the first one without knowing that.
            | Self::Copy { .. }
            | Self::CreateSnapshot { .. }
            | Self::CreateClone { .. }
            | Self::DetachClone { .. }
            | Self::Refresh { .. }
            | Self::Restore { .. }
            | Self::Rewrite { .. }
            // A repetition would run the function twice.
            | Self::ExecuteFunction { .. }
            | Self::ExecutePaperFunction { .. }
            | Self::Other { .. } => RepeatEffect::Unsafe,
        }
    }
}

impl Operation {
    /// Returns the time that the device may take for it besides the usual one.
    #[must_use]
    pub fn device_time(&self) -> Duration {
        let ms = match self {
            Self::ExecutePaperFunction { request, .. } => request.timeout_ms,
            Self::ExecuteFunction { request, .. } => match &**request {
                ExecuteRequest::Run(run) => run.timeout_ms,
                ExecuteRequest::Job(JobRequest { action: JobAction::Wait { timeout_ms }, .. }) => *timeout_ms,
                ExecuteRequest::Job(_) => 0,
            },
            _ => 0,
        };
        Duration::from_millis(ms.into())
    }
}

/// The answer of a successful command.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// READ: the bytes, exactly as many as requested. Others: their parameter data.
    pub data: Vec<u8>,
    /// The requested attributes, in order; an undefined one has no value.
    pub attributes: Vec<(AttributeId, Option<Bytes>)>,
    /// The created object, if the device chose its id; the partition of CREATE PARTITION.
    pub created: Option<ObjectId>,
    /// APPEND: the offset of the bytes.
    pub appended_at: Option<u64>,
    /// LIST, LIST COLLECTION, QUERY: the ids, and where to continue.
    pub listed: Option<Listed>,
    /// QUERY: the number of all matches, including those that did not fit.
    pub matches_total: Option<u64>,
    /// GET MEMBER ATTRIBUTES: the members that fit into the answer.
    pub members: Vec<MemberAttributes>,
    /// READ MAP and READ MAPS AND COMPARE: the extents.
    pub map: Vec<MapExtent>,
}

/// A page of LIST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Ids, ascending.
    pub ids: Vec<u64>,
    /// The id to continue from; none at the end.
    pub next: Option<u64>,
}
