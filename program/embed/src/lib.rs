//! A whole cluster inside a program: a metadata server and devices, in memory or in a folder.
//!
//! Does: creates the cluster on first use, starts it on threads of its own, and returns clients
//! that are logged in.
//! Does not: listen beyond loopback, print, take signals or end the process.
//! Contract: clients use the same protocols as with servers on other machines: OPAQUE over TLS to
//! the metadata server, capabilities and MACs to the devices. When [`EmbeddedCluster::stop`] or a
//! drop returns, all data is durable and all ports are free.
//! Truth: docs/adr/0086-embedded-clusters.md.
//!
//! ```
//! use sealstone_client::{GetOptions, PutOptions};
//! use sealstone_embed::EmbeddedCluster;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = EmbeddedCluster::builder().devices(2).start().await?;
//! let client = cluster.client().await?;
//! client.put("/notes.txt", &b"hello"[..], PutOptions::default()).await?;
//! let mut text = Vec::new();
//! client.get("/notes.txt", &mut text, GetOptions::default()).await?;
//! assert_eq!(text, b"hello");
//! cluster.stop().await?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod cluster;
mod memory_folder;

pub use builder::{
    EmbeddedClusterBuilder, FOLDER_CAPACITY_DEFAULT, MEMORY_BYTES_PER_DEVICE_MIN, MEMORY_CAPACITY_MAX,
};
pub use cluster::{DeviceEndpoint, EmbeddedCluster, Endpoints};
pub use sealstone_cluster::{AdminCredential, OSDS_MAX as DEVICES_MAX};
pub use sealstone_failure::{Failure, FailureKind};
