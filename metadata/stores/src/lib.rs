//! Stores behind the metadata seam of `sealstone-mds`.
//!
//! Does: keep ordered keys on a medium. Does not: know what they mean. The store in memory is beside the seam itself.
//! Truth: docs/standards/mds.md §8.

mod embedded;

pub use embedded::{EmbeddedMeta, OpenError};
