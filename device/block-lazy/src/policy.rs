//! The points at which the profiles differ.

use sealstone_block_protection::ProtectionProfile;

use crate::config::WriterId;
use crate::layout::VersionNumber;
use crate::{modern, paper, paper_safe};

/// Result of a client's verification of a block that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadVerdict {
    /// The MAC is right.
    Authentic,
    /// The MAC is wrong.
    Corrupt,
}

/// An acknowledged write that the target found not authentic and deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedVersion {
    /// The block.
    pub lba: u64,
    /// The deleted version.
    pub version: VersionNumber,
    /// The writer; `None` if the write was made before a restart.
    pub writer: Option<WriterId>,
}

/// Behaviour of a profile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionPolicy {
    /// A client's report of success commits the version that it read. It deletes older ones, and
    /// newer ones that were reported as not authentic.
    pub(crate) commits_on_report: bool,
    /// Flushes and writes with FUA verify before they are acknowledged.
    pub(crate) verifies_at_flush: bool,
    /// A block whose acknowledged write was deleted cannot be read until it is written again.
    pub(crate) marks_lost_writes: bool,
    /// Percentage of the log above which writes are verified at once instead of logged. 100 and
    /// above: never.
    pub(crate) eager_percent: u64,
    /// Keys are sealed at rest.
    pub(crate) seals_keys: bool,
    /// Keys of blocks are derived from those of the unit.
    pub(crate) has_unit_keys: bool,
}

impl VersionPolicy {
    /// Returns the behaviour of a profile.
    pub(crate) const fn of(profile: ProtectionProfile) -> Self {
        match profile {
            ProtectionProfile::Paper | ProtectionProfile::PaperTaskTag => paper::POLICY,
            ProtectionProfile::PaperSafe => paper_safe::POLICY,
            ProtectionProfile::Modern => modern::POLICY,
        }
    }
}
