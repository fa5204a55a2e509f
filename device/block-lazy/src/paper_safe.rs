//! The paper's formats with counter-measures.
//!
//! Reports of clients are hints: the target verifies before it commits or deletes. A flush verifies
//! everything, and so does a timer within a second. A deleted write makes its block unreadable
//! until the next write, so that no reader accepts the older version as the newest. A log that is
//! almost full makes writes eager. Keys are sealed at rest.

use crate::policy::VersionPolicy;

pub(crate) const POLICY: VersionPolicy = VersionPolicy {
    commits_on_report: false,
    verifies_at_flush: true,
    marks_lost_writes: true,
    eager_percent: 90,
    seals_keys: true,
    has_unit_keys: false,
};
