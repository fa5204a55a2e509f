//! Types of the online metadata check (fsck): requested scope, progress and findings.
//!
//! Truth: docs/standards/mds/operations.md §5.10.

use crate::quota::QuotaDrift;
use crate::records::InodeId;
use crate::wire::{Text, code, record};

code! {
    /// Scope of a check; each one includes those before it.
    pub enum CheckScope: u8 as "scope of a check" {
        /// Use of users and quota trees.
        Counts = 1,
        /// Names, nodes and the records that must agree with them.
        Names = 2,
        /// Objects on the devices.
        Objects = 3,
    }
}

code! {
    /// Kind of an inconsistency.
    pub enum FindingKind: u8 as "finding" {
        /// A counter is wrong. It can be repaired.
        Count = 1,
        /// A name refers to a missing node, or to one that cannot have it.
        Name = 2,
        /// A node has no name or a wrong link count, or a directory is not below the root.
        Node = 3,
        /// Two records contradict each other.
        Record = 4,
        /// An object belongs to two files, or to a file and the removal queue.
        Shared = 5,
        /// An object of a file is missing on its device: its data is lost.
        Lost = 6,
        /// An object on a device belongs to no file. It can be repaired: it is removed.
        Leaked = 7,
        /// A device did not respond.
        Silent = 8,
    }
}

code! {
    /// Phase of a check.
    pub enum CheckPhase: u8 as "phase of a check" {
        /// Nodes are read.
        Nodes = 1,
        /// Names are read.
        Names = 2,
        /// Directories are walked from the root.
        Walk = 3,
        /// The objects of the devices are listed.
        Objects = 4,
        /// The check is complete.
        Done = 5,
        /// The check ended early; see `problem`.
        Failed = 6,
    }
}

record! {
    /// Progress of a check.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CheckStatus {
        pub number: u64,
        pub scope: CheckScope,
        /// Whether repairable findings are repaired.
        pub repair: bool,
        pub phase: CheckPhase,
        /// Start time, milliseconds since 1970.
        pub began_ms: u64,
        /// Nodes checked.
        pub nodes: u64,
        /// Estimated total number of nodes.
        pub nodes_all: u64,
        /// Names checked.
        pub names: u64,
        /// Objects on devices checked.
        pub objects: u64,
        /// Number of findings.
        pub findings: u64,
        /// Findings that were repaired.
        pub repaired: u64,
        /// Reason why it ended early.
        pub problem: Text<512>,
    }
}

record! {
    /// An inconsistency.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CheckFinding {
        pub kind: FindingKind,
        /// The node concerned.
        pub node: Option<InodeId>,
        /// Path of one of its names, if it has any.
        pub path: Text<4096>,
        /// Description for users.
        pub said: Text<512>,
        /// Actual and counted use of a user or quota tree.
        pub drift: Option<QuotaDrift>,
        /// Whether it was repaired, or will resolve without action.
        pub repaired: bool,
    }
}
