//! Digests of an object's bytes: computed when data is written, stored, and reused for every
//! protected read.
//!
//! Does: the value of a unit for each [`Profile`], incremental change of AdHash, digests of partial
//! units, the [`DigestCover`] that both ends of a transfer use, the order-independent sum
//! [`LtHash`], the cost model of the paper.
//! Does not: store anything, or authenticate: a value is authentic only if a MAC covers it together
//! with its context.
//! Contract: `value` of a unit depends on the profile, the unit's number (BLAKE3) and its bytes
//! alone.
//! Source of truth: docs/design/security.md 5.1 to 5.6; the paper's profiles are for reproduction,
//! AdHash is broken (5.2).

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod arriving;
mod attributes;
mod cover;
mod header;
mod lthash;
pub mod paper;
mod profile;
mod subtree;

pub use arriving::ReceivedDigests;
pub use attributes::AttributePage;
pub use cover::{CoverPart, CoveredDigests, DigestCover};
pub use header::{DataDirection, HEADER_BYTES, RangeHeader};
pub use lthash::{LTHASH_BYTES, LtHash, LtHashElement};
pub use profile::{DigestValue, Profile, ProfileStatus, UNIT_BYTES_MAX, UNIT_BYTES_MIN, VALUE_BYTES_MAX};
