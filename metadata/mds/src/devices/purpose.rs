//! Purposes for which the metadata server signs credentials for itself.

use sealstone_osd::ObjectId;

/// Purposes of the server's own credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPurpose {
    /// Create the partition of the files.
    PreparePartition,
    /// Read capacity and use: attributes of the root object.
    ReadCapacity,
    /// Read and set the policy access tags of a file partition.
    TagPartition(u64),
    /// List the objects of a file partition.
    ListObjects(u64),
    /// Remove an object.
    RemoveObject(ObjectId),
    /// Truncate an object.
    TruncateObject(ObjectId),
    /// Read attributes of an object: its length, the description of a function.
    MeasureObject(ObjectId),
    /// Set the description of a function at an object, which needs none of its bytes.
    DescribeObject(ObjectId),
    /// Read an object that is moved to another device.
    CopyFrom(ObjectId),
    /// Create the object on the new device.
    CopyTo(ObjectId),
    /// Set the policy access tag of an object, and create the object if it does not exist.
    Retag {
        /// Object to retag.
        object: ObjectId,
        /// Whether the object may have to be created.
        creates: bool,
    },
}
