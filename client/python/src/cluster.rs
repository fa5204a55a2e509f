//! An embedded cluster as a Python object.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use sealstone_embed::{EmbeddedCluster, Endpoints};

use crate::client::login_operation;
use crate::errors;
use crate::operation::NativeOperation;
use crate::runtime::{OwnerProcess, wait};

/// A running cluster, or a stopped one.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeCluster {
    running: Mutex<Option<EmbeddedCluster>>,
    owner: OwnerProcess,
    endpoints: Endpoints,
    folder: PathBuf,
}

#[pymethods]
impl NativeCluster {
    /// Starts a cluster in a folder, or in memory without one.
    #[staticmethod]
    fn start(
        py: Python<'_>,
        folder: Option<PathBuf>,
        devices: Option<usize>,
        capacity: Option<u64>,
    ) -> PyResult<Self> {
        let mut builder = EmbeddedCluster::builder();
        if let Some(folder) = folder {
            builder = builder.folder(folder);
        }
        if let Some(devices) = devices {
            builder = builder.devices(devices);
        }
        if let Some(capacity) = capacity {
            builder = builder.capacity(capacity);
        }
        let cluster = wait(py, builder.start())?.map_err(|error| errors::failure(py, &error))?;
        Ok(Self {
            owner: OwnerProcess::current(),
            endpoints: cluster.endpoints().clone(),
            folder: cluster.folder().to_owned(),
            running: Mutex::new(Some(cluster)),
        })
    }

    /// Logs in as the administrator.
    fn client(&self, py: Python<'_>) -> PyResult<NativeOperation> {
        self.owner.check()?;
        let credential = self.endpoints.admin_credential().map_err(|error| errors::failure(py, &error))?;
        let (server, pin) = (self.endpoints.metadata_server.to_string(), self.endpoints.pin);
        login_operation(async move { credential.login(&server, pin).await })
    }

    /// Stops the cluster; does nothing if it has stopped.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.owner.check()?;
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        match running {
            Some(cluster) => wait(py, cluster.stop())?.map_err(|error| errors::failure(py, &error)),
            None => Ok(()),
        }
    }

    /// Whether the cluster runs in this process.
    #[getter]
    fn is_running(&self) -> bool {
        self.owner.is_current() && self.running.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    #[getter]
    fn metadata_server(&self) -> String {
        self.endpoints.metadata_server.to_string()
    }

    #[getter]
    fn pin(&self) -> String {
        format!("sha256:{}", self.endpoints.pin)
    }

    #[getter]
    fn devices(&self) -> Vec<(String, String)> {
        self.endpoints.devices.iter().map(|device| (device.name.clone(), device.url.clone())).collect()
    }

    #[getter]
    fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    #[getter]
    fn cluster_file(&self) -> PathBuf {
        self.endpoints.cluster_file.clone()
    }

    #[getter]
    fn admin_secret(&self) -> PathBuf {
        self.endpoints.admin_secret.clone()
    }
}

impl Drop for NativeCluster {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(cluster) = running else { return };
        if !self.owner.is_current() {
            // The threads of the cluster are in the parent; a wait for them would not end.
            core::mem::forget(cluster);
            return;
        }
        let mut waiting = Some(cluster);
        Python::try_attach(|py| py.detach(|| drop(waiting.take())));
        drop(waiting);
    }
}
