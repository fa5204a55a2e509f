//! M-lazy: the counter-measures of `paper+safe`, with keys that are derived.
//!
//! Each block has the generation of its write and a tag, from which no key can be computed. The
//! keys of the unit are sealed at rest, and so are pages of slots.

use crate::paper_safe;
use crate::policy::VersionPolicy;

pub(crate) const POLICY: VersionPolicy = VersionPolicy { has_unit_keys: true, ..paper_safe::POLICY };
