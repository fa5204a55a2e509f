//! A whole cluster in one process: a metadata server and devices, created on first use.
//!
//! Does: creates the folder, starts and stops the daemons, adds devices to a metadata server,
//! issues their certificates.
//! Does not: parse options, print, take signals or end the process.
//! Contract: [`Cluster::start`] returns when clients can use the cluster. Several clusters can run
//! in one process, each in its own folder.
//! Truth: docs/reference/files.md (folder of `sealstone up`).

mod certificate;
mod cluster;
mod join;

pub use certificate::{DeviceCertificate, issue_certificate};
pub use cluster::{AdminCredential, AdminLogin, Cluster, ClusterConfig, OSDS_MAX, WarningSink};
pub use join::{JOIN_S_MAX, add_osd, wait_until_joined};
pub use sealstone_device_server::DeviceServer;
