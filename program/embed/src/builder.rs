//! Parameters of an embedded cluster, checked before anything starts.

use std::path::{Path, PathBuf};

use sealstone_cluster::{AdminLogin, ClusterConfig, OSDS_MAX};
use sealstone_failure::{Failure, Outcome};

use crate::cluster::{self, EmbeddedCluster};
use crate::memory_folder::MemoryFolder;

/// Capacity of each device in a folder unless set: 10 GiB. The files are sparse.
pub const FOLDER_CAPACITY_DEFAULT: u64 = 10 << 30;
/// Maximum default capacity of each device in memory: 1 GiB. It is less if memory is scarce.
pub const MEMORY_CAPACITY_MAX: u64 = 1 << 30;
/// Memory that must be free for each device when a cluster in memory starts: 16 MiB.
pub const MEMORY_BYTES_PER_DEVICE_MIN: u64 = 16 << 20;
/// Seconds that clients get to log out when the cluster stops. A client whose runtime is blocked by
/// the drop of the cluster uses all of it.
const DRAIN_S_MAX: u16 = 1;
/// Number of devices of a new cluster unless set.
const DEVICES_DEFAULT: u16 = 1;

/// Parameters of an [`EmbeddedCluster`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing starts before `start`"]
pub struct EmbeddedClusterBuilder {
    folder: Option<PathBuf>,
    devices: Option<usize>,
    capacity: Option<u64>,
}

impl EmbeddedCluster {
    /// Returns the parameters of a cluster with one device in memory.
    pub fn builder() -> EmbeddedClusterBuilder {
        EmbeddedClusterBuilder::default()
    }
}

impl EmbeddedClusterBuilder {
    /// Stores the cluster in a folder, and starts the one that is there. Without this, the cluster
    /// is in memory and ends with the handle.
    pub fn folder(self, folder: impl AsRef<Path>) -> Self {
        Self { folder: Some(folder.as_ref().to_owned()), ..self }
    }

    /// Sets the number of devices, 1 to [`DEVICES_MAX`](crate::DEVICES_MAX); 1 unless set. An
    /// existing cluster keeps its number, and refuses another one.
    pub fn devices(self, devices: usize) -> Self {
        Self { devices: Some(devices), ..self }
    }

    /// Sets the capacity of each new device in bytes. An existing cluster keeps its capacity.
    pub fn capacity(self, capacity: u64) -> Self {
        Self { capacity: Some(capacity), ..self }
    }

    /// Starts the cluster on threads of its own. The future needs no runtime; dropping it stops the
    /// cluster.
    ///
    /// # Errors
    /// `Usage`: the parameters are wrong, or do not fit the folder. `Denied`: the folder is not
    /// writable, or others can write it. `Operation`: the folder is in use or has other content, or
    /// memory is scarce.
    pub async fn start(self) -> Outcome<EmbeddedCluster> {
        let devices = self.devices.map(device_count).transpose()?;
        let (data, memory, devices, capacity) = match self.folder {
            Some(folder) => {
                let is_new = !ClusterConfig::is_created(&folder);
                let devices = devices.or(is_new.then_some(DEVICES_DEFAULT));
                (folder, None, devices, FOLDER_CAPACITY_DEFAULT)
            }
            None => {
                let devices = devices.unwrap_or(DEVICES_DEFAULT);
                let memory = MemoryFolder::create(u64::from(devices) * MEMORY_BYTES_PER_DEVICE_MIN)?;
                // Writes fail when a device is full, before the machine has no memory left.
                let share = memory.free_bytes() / 2 / u64::from(devices);
                let data = memory.path().join("cluster");
                (data, Some(memory), Some(devices), share.min(MEMORY_CAPACITY_MAX))
            }
        };
        let config = ClusterConfig {
            data,
            osds: devices,
            listen: format!("{}:0", cluster::loopback_host()),
            osd_port: None,
            capacity: self.capacity.unwrap_or(capacity),
            admin: AdminLogin::ServiceKey,
            drain_s_max: Some(DRAIN_S_MAX),
        };
        EmbeddedCluster::start(config, memory).await
    }
}

/// Returns the number of devices if a cluster may have it.
fn device_count(devices: usize) -> Outcome<u16> {
    u16::try_from(devices).ok().filter(|devices| (1..=OSDS_MAX).contains(devices)).ok_or_else(|| {
        Failure::usage(format!("a cluster has 1 to {OSDS_MAX} devices, not {devices}"))
            .hint("choose another number of devices")
    })
}
