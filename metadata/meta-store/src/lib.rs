//! Backends of the metadata store trait of `sealstone-mds`.
//!
//! Does: keeps ordered keys in a local file, in a database server, or in an LDAP server.
//! Does not: interpret them. The in-memory backend is next to the trait.
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
