//! Object identifiers (OSD-2 §4.6).

use core::fmt;

/// The type of object that a `PARTITION_ID`, `USER_OBJECT_ID` pair identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ObjectType {
    /// The only root object, (0, 0).
    Root = 0x01,
    /// A partition, (pid, 0).
    Partition = 0x02,
    /// A collection; shares its id space with the user objects of the partition.
    Collection = 0x40,
    /// A user object.
    User = 0x80,
}

impl ObjectType {
    /// Returns the type of a wire byte; `None` for a reserved one.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x01 => Self::Root,
            0x02 => Self::Partition,
            0x40 => Self::Collection,
            0x80 => Self::User,
            _ => return None,
        })
    }
}

/// Partition and object id; the order is that of LIST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// `PARTITION_ID`; 0 is the root.
    pub partition: u64,
    /// `USER_OBJECT_ID` or `COLLECTION_ID`; 0 is the partition itself.
    pub object: u64,
}

impl ObjectId {
    /// The root object.
    pub const ROOT: Self = Self { partition: 0, object: 0 };
    /// The smallest id for a partition, collection or user object created by a client.
    pub const FIRST_ASSIGNABLE: u64 = 0x1_0000;

    /// Returns the id of a user object or collection.
    #[must_use]
    pub const fn new(partition: u64, object: u64) -> Self {
        Self { partition, object }
    }

    /// Returns the id of a partition.
    #[must_use]
    pub const fn of_partition(partition: u64) -> Self {
        Self { partition, object: 0 }
    }

    /// Whether this is (0, 0).
    #[must_use]
    pub const fn is_root(self) -> bool {
        self.partition == 0 && self.object == 0
    }

    /// Whether this is (pid, 0) with pid ≠ 0.
    #[must_use]
    pub const fn is_partition(self) -> bool {
        self.partition != 0 && self.object == 0
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.partition, self.object)
    }
}
