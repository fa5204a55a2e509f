//! An embedded cluster as a Python object.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use sealstone_client::tls::Fingerprint;
use sealstone_cluster::AdminCredential;
use sealstone_embed::EmbeddedCluster;

use crate::client::NativeClient;
use crate::errors;
use crate::runtime::{OwnerProcess, wait};

/// A running cluster, or a stopped one.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeCluster {
    running: Mutex<Option<EmbeddedCluster>>,
    owner: OwnerProcess,
    metadata_server: String,
    pin: Fingerprint,
    devices: Vec<(String, String)>,
    folder: PathBuf,
    cluster_file: PathBuf,
    admin_secret: PathBuf,
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
        let endpoints = cluster.endpoints();
        Ok(Self {
            owner: OwnerProcess::current(),
            metadata_server: endpoints.metadata_server.to_string(),
            pin: endpoints.pin,
            devices: endpoints.devices.iter().map(|one| (one.name.clone(), one.url.clone())).collect(),
            folder: cluster.folder().to_owned(),
            cluster_file: endpoints.cluster_file.clone(),
            admin_secret: endpoints.admin_secret.clone(),
            running: Mutex::new(Some(cluster)),
        })
    }

    /// Returns a client of the administrator.
    fn client(&self, py: Python<'_>) -> PyResult<NativeClient> {
        self.owner.check()?;
        let login = async {
            let credential = AdminCredential::read(&self.admin_secret)?;
            credential.login(&self.metadata_server, self.pin).await
        };
        let client = wait(py, login)?.map_err(|error| errors::failure(py, &error))?;
        NativeClient::new(client)
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
    fn metadata_server(&self) -> &str {
        &self.metadata_server
    }

    #[getter]
    fn pin(&self) -> String {
        format!("sha256:{}", self.pin)
    }

    #[getter]
    fn devices(&self) -> Vec<(String, String)> {
        self.devices.clone()
    }

    #[getter]
    fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    #[getter]
    fn cluster_file(&self) -> PathBuf {
        self.cluster_file.clone()
    }

    #[getter]
    fn admin_secret(&self) -> PathBuf {
        self.admin_secret.clone()
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
