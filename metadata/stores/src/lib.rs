//! Stores behind the metadata seam of `sealstone-mds`.
//!
//! Does: keep ordered keys, in a file of this machine, in a database server, or in an LDAP server. Does not: know what they mean. The store
//! in memory is beside the seam itself.
//! Truth: docs/standards/mds/store.md §8.

mod embedded;
#[cfg(feature = "ldap")]
mod ldap;
#[cfg(feature = "postgres")]
mod postgres;

pub use embedded::{EmbeddedMeta, OpenError};
#[cfg(feature = "ldap")]
pub use ldap::{LdapMeta, LdapSettings, LdapStoreError};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresError, PostgresMeta, PostgresSettings};
