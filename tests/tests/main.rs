//! All integration tests of the crate in one program: linking many takes longer than running them.
//!
//! `cargo run -p xtask -- tests` runs each module in a separate process.

mod access;
mod accounts;
mod api;
mod audit;
mod bad_session;
mod bad_setup;
mod block_units;
mod chap_clients;
mod clock;
mod crash;
mod damage;
mod delegated;
mod demo;
mod directory;
mod downgrade;
mod drain;
mod fair_share;
mod files;
mod full_device;
mod function_jobs;
mod function_runs;
mod functions;
mod hostile_peers;
mod key_management;
mod keys;
mod ldap_store;
mod metadata_check;
mod methods;
mod metrics;
mod mount;
mod mount_fenced;
mod mount_fstab;
mod mount_full;
mod mount_leases;
mod mount_listings;
mod mount_locks;
mod nodes;
mod outside_clients;
mod paper_login;
mod python_functions;
mod quotas;
mod raw_device;
mod restriping;
mod revocation;
mod several_paths;
mod shared_locks;
mod shared_store;
#[path = "../../metadata/meta-store/tests/support/slapd.rs"]
mod slapd;
mod slow_peers;
mod terminal;
mod tls;
mod tls_support;
mod tour;
