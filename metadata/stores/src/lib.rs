//! Stores behind the metadata seam of `sealstone-mds`.
//!
//! Does: keep ordered keys, in a file of this machine or in a database server. Does not: know what they mean. The store
//! in memory is beside the seam itself.
//! Truth: docs/standards/mds.md §8.

mod embedded;
#[cfg(feature = "postgres")]
mod postgres;

pub use embedded::{EmbeddedMeta, OpenError};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresError, PostgresMeta, PostgresSettings};
