//! Digests of an object's bytes: computed when data is written, stored, and used again for every protected read.
//!
//! Does: the value of a unit for each [`Profile`], incremental change of AdHash, digests of partial units, the
//! [`Cover`] that both ends of a transfer walk alike, the order-free sum [`LtHash`], the cost model of the paper.
//! Does not: keep anything, or authenticate: a value is no proof before a MAC covers it together with what it is of.
//! Contract: `value` of a unit depends on the profile, the unit's number (BLAKE3) and its bytes alone.
//! Truth: docs/design/security.md 5.1 to 5.6; the paper's profiles are for reproduction, AdHash is broken (5.2).

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod adhash;
mod arriving;
mod attributes;
pub mod cost;
mod cover;
mod header;
mod lthash;
mod profile;
mod sha1;
mod subtree;

pub use adhash::AdHash;
pub use arriving::Arriving;
pub use attributes::AttributePage;
pub use cover::{Cover, Covered, Part};
pub use header::{Direction, HEADER_BYTES, RangeHeader};
pub use lthash::{Element, LTHASH_BYTES, LtHash};
pub use profile::{Profile, Standing, UNIT_BYTES_MAX, UNIT_BYTES_MIN, VALUE_BYTES_MAX, Value};
