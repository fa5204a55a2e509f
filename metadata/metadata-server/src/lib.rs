//! A metadata server as a library: its configuration, its start, and the handle of the running one.
//!
//! Does: opens a data folder, serves it with its clock, audit log and metrics; creates such
//! folders.
//! Does not: parse options, print, take signals or end the process.
//! Contract: [`MetadataServer::start`] returns when clients can connect. [`MetadataServer::join`]
//! returns after the last response.
//! Truth: docs/design/architecture.md; docs/reference/files.md (data folder, cluster file).

mod audit;
mod clock;
mod cluster_file;
mod config;
mod directory;
mod failures;
mod metrics;
mod server;

pub use cluster_file::{CLUSTER_FILE, ClusterFile};
pub use config::MetadataServerConfig;
pub use directory::{DirectoryConfig, DirectoryUser};
pub use failures::{in_use, keystore_failure, setup_failure, transfer_failure};
pub use server::{ADMIN, MetadataServer, create_metadata_server};
