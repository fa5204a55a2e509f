//! Checks of everything that a metadata server has on record: what is asked for, how far one is, what it found.
//!
//! Truth: docs/standards/mds/operations.md §5.10.

use crate::quota::QuotaDrift;
use crate::records::InodeId;
use crate::wire::{Text, code, record};

code! {
    /// How much is looked at; each has what those before it have.
    pub enum CheckScope: u8 as "scope of a check" {
        /// What users and trees use.
        Counts = 1,
        /// Names, nodes and everything that has to agree about them.
        Names = 2,
        /// What lies on the devices.
        Objects = 3,
    }
}

code! {
    /// What is not as it should be.
    pub enum FindingKind: u8 as "finding" {
        /// A count is not that of what is there. It can be repaired.
        Count = 1,
        /// A name leads to nothing, or to what cannot have it.
        Name = 2,
        /// A node has no name, or another number of names than it says; a directory is not below the root.
        Node = 3,
        /// Two records that must agree do not.
        Record = 4,
        /// An object belongs to two files, or to one and to what is removed.
        Shared = 5,
        /// An object of a file is not on its device: its bytes are lost.
        Lost = 6,
        /// An object on a device belongs to nothing. It can be repaired: it is removed.
        Leaked = 7,
        /// A device could not be asked.
        Silent = 8,
    }
}

code! {
    /// Where a check is.
    pub enum CheckPhase: u8 as "phase of a check" {
        /// Nodes are read.
        Nodes = 1,
        /// Names are read.
        Names = 2,
        /// Directories are walked from the root.
        Walk = 3,
        /// Devices tell what lies on them.
        Objects = 4,
        /// It is over.
        Done = 5,
        /// It ended early, see what it says.
        Failed = 6,
    }
}

record! {
    /// How far a check is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CheckStatus {
        /// Which one.
        pub number: u64,
        /// How much is looked at.
        pub scope: CheckScope,
        /// Is what can be repaired repaired?
        pub repair: bool,
        /// Where it is.
        pub phase: CheckPhase,
        /// Since when, milliseconds since 1970.
        pub began_ms: u64,
        /// Nodes looked at.
        pub nodes: u64,
        /// About how many there are.
        pub nodes_all: u64,
        /// Names looked at.
        pub names: u64,
        /// Objects on devices looked at.
        pub objects: u64,
        /// What was found not to be as it should.
        pub findings: u64,
        /// Of them repaired.
        pub repaired: u64,
        /// Why it ended early.
        pub problem: Text<512>,
    }
}

record! {
    /// Something that is not as it should be.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CheckFinding {
        /// What.
        pub kind: FindingKind,
        /// Of which node.
        pub node: Option<InodeId>,
        /// One of its names, if it has any: a path.
        pub path: Text<4096>,
        /// The same for people.
        pub said: Text<512>,
        /// What a user or a tree uses and what is counted.
        pub drift: Option<QuotaDrift>,
        /// Is it right now, or will it be by itself?
        pub repaired: bool,
    }
}
