//! The metadata server: accounts, namespace, layouts, credentials.
//!
//! Does: everything a metadata server decides, as functions of a request, the time, randomness and
//! the metadata store.
//! Does not: use sockets, clocks or threads; `sealstone-mds-server` does.
//! Contract: the store has all durable state. After a crash a new [`Mds`] continues on the same
//! store, and every change is one transaction. [`Connection`] turns frames into calls of
//! [`Mds::handle`].
//! Truth: docs/standards/mds/README.md; docs/design/security.md 2.4, 3.5, 3.6.

pub mod access;
pub mod audit;
pub mod placement;
pub mod records;
pub mod sessions;
pub mod store;

mod accounts;
mod cache_epochs;
mod check;
mod client_registry;
mod config;
mod connection;
mod counters;
mod device_keys;
mod devices;
mod dir_delegations;
mod directory;
mod disks;
mod election;
mod entropy;
mod error;
mod familiar;
mod fence;
mod function_policy;
mod function_policy_record;
mod grant_log;
mod groups;
mod handle;
mod issue;
mod issued_credentials;
mod key_rotation;
mod keys;
mod leases;
mod lengths;
mod limiter;
mod limits;
mod locks;
mod login;
mod moving;
mod namespace;
mod open_files;
mod paper;
mod proof;
mod quota;
mod reap;
mod reauth;
mod replay_cache;
mod request_context;
mod revoke;
mod roles;
mod server;
mod server_registry;
mod share;
mod shared;
mod tags;
mod user_directory;
mod violation;

pub use access::Principal;
pub use check::{CheckJob, ObjectDiff, ObjectWindow, check_failure};
pub use config::Config;
pub use connection::{Connection, Output, SessionRequest, SessionResponse};
pub use counters::Counters;
pub use device_keys::{KeyAction, KeyStep, StepOutcome};
pub use devices::{DeviceAddress, ServerPurpose, SharedSpace, security_method};
pub use election::LEASE_MS;
pub use entropy::Entropy;
pub use error::{MdsError, Result};
pub use function_policy::DuePolicy;
pub use function_policy_record::{AttributeValue, FunctionPolicyRecord};
pub use grant_log::{GrantLog, IssueRecord, IssueStream, MemoryGrantLog, NoGrantLog};
pub use handle::PendingRecalls;
pub use issued_credentials::CredentialList;
pub use key_rotation::KeyStepsResult;
pub use lengths::LengthItem;
pub use limiter::{Familiarity, LoginLimiter, LoginSource};
pub use moving::{
    BalancePass, DRAIN_RATE_MIN, DrainPass, FileMigration, MigrationOrder, MoveItem, MoveOrder, MovePage,
    MoveStart, ObjectMove,
};
pub use namespace::{ClearItem, ROOT};
pub use open_files::CLIENT_TIMEOUT_MS;
pub use paper::{HALF_OPEN_MAX, PaperConnection, PaperListener};
pub use reap::ReapItem;
pub use revoke::{RetagItem, RevocationRecord};
pub use server::{Mds, OpenError, QueuedLogin};
pub use server_registry::ServerName;
pub use tags::{INITIAL_TAG, object_attribute, partition_attributes};
pub use user_directory::{
    DIRECTORY_GROUPS_MAX, DirectoryEntry, DirectoryError, DirectoryLookup, DirectoryRoles, UserDirectory,
};

#[cfg(test)]
mod tests;
