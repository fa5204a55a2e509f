//! Backends of the metadata store trait of `sealstone-mds`.
//!
//! Does: keeps ordered keys in a local file, in a database server, or in an LDAP server.
//! Does not: interpret them. The in-memory backend is next to the trait.
//! Truth: docs/standards/mds/store.md §8.

use core::time::Duration;

mod embedded;
#[cfg(feature = "ldap")]
mod ldap;
#[cfg(test)]
mod model_tests;
#[cfg(feature = "postgres")]
mod postgres;

pub use embedded::{EmbeddedMeta, OpenError};
#[cfg(feature = "ldap")]
pub use ldap::{LdapMeta, LdapSettings, LdapStoreError};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresError, PostgresMeta, PostgresSettings};

/// Default wait of a start and of a new transaction for an unavailable server behind the store.
pub const UNAVAILABLE_WAIT_DEFAULT: Duration = Duration::from_secs(20);
