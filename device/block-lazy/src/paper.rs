//! Behaviour of the paper, with its vulnerabilities.
//!
//! A client that reads a block successfully commits the version that it read. It deletes older
//! ones, and newer ones that a client reported as not authentic. A write that was changed on its
//! way is acknowledged; readers receive the version before it, and neither end detects the loss.
//! Keys are stored beside the data.

use crate::policy::VersionPolicy;

pub(crate) const POLICY: VersionPolicy = VersionPolicy {
    commits_on_report: true,
    verifies_at_flush: false,
    marks_lost_writes: false,
    eager_percent: 100,
    seals_keys: false,
    has_unit_keys: false,
};
