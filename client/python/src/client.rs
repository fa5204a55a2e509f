//! A client as a Python object: operations by path.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use sealstone_client::nodes::{Nodes, NodesOptions};
use sealstone_client::tls::Fingerprint;
use sealstone_client::{Client, ClientError, FileKind, GetOptions, Proofs, PutOptions, ServiceKey, Stat};
use sealstone_mds_protocol::{ErrorCode, Failure};
use sealstone_metadata_server::ClusterFile;
use tokio::io::AsyncWriteExt as _;
use zeroize::Zeroizing;

use crate::errors;
use crate::file::NativeFile;
use crate::operation::{NativeOperation, OperationContext};
use crate::paths;
use crate::results::{BytesResult, entry_tuple, stat_tuple};
use crate::runtime::{login_limits, runtime};
use crate::upload::{self, NativeUpload};

/// A connected client.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeClient {
    client: Client,
    /// Files in place, created at the first open.
    nodes: Mutex<Option<Nodes>>,
    context: OperationContext,
}

impl NativeClient {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, nodes: Mutex::new(None), context: OperationContext::new(Arc::default()) }
    }

    /// Returns an operation between the file at `path` and a local file. An error of the local file
    /// names that.
    fn local_operation(
        &self,
        path: &[u8],
        local: PathBuf,
        work: impl Future<Output = Result<Stat, ClientError>> + Send + 'static,
    ) -> PyResult<NativeOperation> {
        let path = path.to_vec();
        self.context.operation_with(
            work,
            |stat| stat_tuple(&stat),
            |error| match error {
                ClientError::Source(_) | ClientError::Sink(_) => Some(local.into_os_string().into_vec()),
                _ => Some(path),
            },
        )
    }

    /// Returns the files in place of this client, with leases as a mount has them.
    fn nodes(&self) -> PyResult<Nodes> {
        self.context.owner.check()?;
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nodes) = &*nodes {
            return Ok(nodes.clone());
        }
        let runtime = runtime()?;
        let _guard = runtime.enter();
        // Names are changed at the server, so that other clients and the operations by path see
        // them at once.
        let options = NodesOptions { leases: true, directory_delegations: false, ..NodesOptions::default() };
        let created = Nodes::new(&self.client, options);
        *nodes = Some(created.clone());
        Ok(created)
    }
}

#[pymethods]
impl NativeClient {
    /// Stores bytes as one file. Other clients see all of them or none.
    fn put(&self, path: &[u8], data: PyBackedBytes, replace: bool, mode: u16) -> PyResult<NativeOperation> {
        let (client, target) = (self.client.clone(), path.to_vec());
        let options = PutOptions { size: Some(data.len() as u64), replace, mode, ..PutOptions::default() };
        let work = async move { client.put(target, &data[..], options).await };
        self.context.operation(Some(path), work, |stat| stat_tuple(&stat))
    }

    /// Stores a local file.
    fn put_file(&self, path: &[u8], local: PathBuf, replace: bool, mode: u16) -> PyResult<NativeOperation> {
        let (client, target, source) = (self.client.clone(), path.to_vec(), local.clone());
        let options = PutOptions { replace, mode, ..PutOptions::default() };
        let work = async move { client.put_file(target, &source, options).await };
        self.local_operation(path, local, work)
    }

    /// Returns the bytes of a file, or of a range of it.
    fn get(&self, path: &[u8], range: Option<(u64, u64)>) -> PyResult<NativeOperation> {
        let (client, source) = (self.client.clone(), path.to_vec());
        let options = GetOptions { range: range.map(|(start, end)| start..end), ..GetOptions::default() };
        let work = async move {
            let mut bytes = Vec::new();
            client.get(source, &mut bytes, options).await?;
            Ok(bytes)
        };
        self.context.operation(Some(path), work, BytesResult)
    }

    /// Returns the bytes of a range of a file, read under its lease. Negative offsets count from
    /// the end.
    fn read(&self, path: &[u8], start: i64, end: Option<i64>) -> PyResult<NativeOperation> {
        let (nodes, source) = (self.nodes()?, path.to_vec());
        let work = async move { paths::read(&nodes, &source, start, end).await };
        self.context.operation(Some(path), work, BytesResult)
    }

    /// Returns the entries of a directory: names, kinds, and attributes where they may be read.
    fn list(&self, path: &[u8]) -> PyResult<NativeOperation> {
        let (client, directory) = (self.client.clone(), path.to_vec());
        let work = async move { client.list(directory)?.collect().await };
        self.context
            .operation(Some(path), work, |entries| entries.iter().map(entry_tuple).collect::<Vec<_>>())
    }

    /// Returns the attributes of a node.
    fn stat(&self, path: &[u8], follow_symlinks: bool) -> PyResult<NativeOperation> {
        let (client, node) = (self.client.clone(), path.to_vec());
        let work = async move {
            match follow_symlinks {
                true => client.stat(node).await,
                false => client.lstat(node).await,
            }
        };
        self.context.operation(Some(path), work, |stat| stat_tuple(&stat))
    }

    /// Removes a node; returns the number of removed nodes.
    fn remove(&self, path: &[u8], recursive: bool) -> PyResult<NativeOperation> {
        let (client, node) = (self.client.clone(), path.to_vec());
        self.context
            .operation(Some(path), async move { client.remove(node, recursive).await }, |removed| removed)
    }

    /// Creates a directory.
    fn mkdir(&self, path: &[u8], parents: bool, mode: u16) -> PyResult<NativeOperation> {
        let (client, directory) = (self.client.clone(), path.to_vec());
        self.context.operation(Some(path), async move { client.mkdir(directory, parents, mode).await }, drop)
    }

    /// Renames a node.
    fn rename(&self, from: &[u8], to: &[u8], replace: bool) -> PyResult<NativeOperation> {
        let (client, source, target) = (self.client.clone(), from.to_vec(), to.to_vec());
        self.context.operation(
            Some(from),
            async move { client.rename(source, target, replace).await },
            |()| (),
        )
    }

    /// Copies a file; returns the attributes of the copy.
    fn copy(&self, from: &[u8], to: &[u8], replace: bool) -> PyResult<NativeOperation> {
        let (client, source, target) = (self.client.clone(), from.to_vec(), to.to_vec());
        let work = async move { upload::copy(&client, &source, &target, replace).await };
        self.context.operation(Some(from), work, |stat| stat_tuple(&stat))
    }

    /// Reads a file into a local file, which an error removes.
    fn get_file(&self, path: &[u8], local: PathBuf) -> PyResult<NativeOperation> {
        let (client, source, target) = (self.client.clone(), path.to_vec(), local.clone());
        let work = async move {
            if client.stat(&source).await?.kind == FileKind::Directory {
                let failure = Failure::new(ErrorCode::IsADirectory, &String::from_utf8_lossy(&source));
                return Err(ClientError::from(failure));
            }
            let mut file = tokio::fs::File::create(&target).await.map_err(ClientError::Sink)?;
            let partial = PartialFile(Some(target));
            let stat = client.get_file(source, &mut file, GetOptions::default()).await?;
            file.flush().await.map_err(ClientError::Sink)?;
            partial.keep();
            Ok(stat)
        };
        self.local_operation(path, local, work)
    }

    /// Starts to store a file whose bytes are written later.
    fn upload(&self, path: &[u8], replace: bool, mode: u16) -> PyResult<NativeUpload> {
        let options = PutOptions { replace, mode, ..PutOptions::default() };
        NativeUpload::start(self.client.clone(), path, options, self.context.clone())
    }

    /// Opens a file in place.
    fn open(
        &self,
        path: &[u8],
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        append: bool,
    ) -> PyResult<NativeOperation> {
        let (nodes, target) = (self.nodes()?, path.to_vec());
        let context = self.context.clone();
        let how = paths::OpenMode { write, create, exclusive, truncate };
        let work = async move {
            let file = paths::open(&nodes, &target, how).await?;
            Ok((nodes, file))
        };
        self.context
            .operation(Some(path), work, move |(nodes, file)| NativeFile::new(nodes, file, append, context))
    }

    /// Returns the name of the user.
    fn user(&self) -> PyResult<NativeOperation> {
        let client = self.client.clone();
        let work = async move { client.whoami().await };
        self.context.operation(None, work, |who| who.user.as_str().to_owned())
    }

    /// Makes files in place durable, returns their leases, and ends the session.
    fn logout(&self) -> PyResult<NativeOperation> {
        self.context.owner.check()?;
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner).take();
        let client = self.client.clone();
        let work = async move {
            let stored = match &nodes {
                Some(nodes) => nodes.shut_down().await,
                None => Ok(()),
            };
            let ended = client.logout().await;
            stored.and(ended)
        };
        self.context.operation(None, work, |()| ())
    }
}

impl Drop for NativeClient {
    fn drop(&mut self) {
        if !self.context.owner.is_current() {
            // Its tasks belong to the runtime of the parent.
            core::mem::forget(self.client.clone());
            core::mem::forget(self.nodes.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// A local file that is not complete. Dropping it removes the file, so that programs do not use it.
struct PartialFile(Option<PathBuf>);

impl PartialFile {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // A link is followed, as by the creation.
        if let Some(path) = self.0.take().and_then(|path| std::fs::canonicalize(path).ok())
            && path.is_file()
        {
            // The error of the read is the cause.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns address and pin of a cluster file.
#[pyfunction]
pub(crate) fn read_cluster_file(py: Python<'_>, path: PathBuf) -> PyResult<(String, String)> {
    let file = ClusterFile::read(&path).map_err(|error| errors::failure(py, &error))?;
    Ok((file.mds, file.pin))
}

fn pin_of(py: Python<'_>, pin: &str) -> PyResult<Fingerprint> {
    let wrong = |_| {
        errors::failure(
            py,
            &sealstone_failure::Failure::usage("not a pin: sha256: and 64 hexadecimal digits"),
        )
    };
    pin.parse().map_err(wrong)
}

/// Returns the operation of a login.
pub(crate) fn login_operation(
    login: impl Future<Output = Result<Client, ClientError>> + Send + 'static,
) -> PyResult<NativeOperation> {
    OperationContext::new(login_limits()?).operation(None, login, NativeClient::new)
}

/// Logs in with a password.
#[pyfunction]
pub(crate) fn connect_with_password(
    py: Python<'_>,
    server: String,
    pin: &str,
    user: String,
    password: &[u8],
) -> PyResult<NativeOperation> {
    let (pin, password) = (pin_of(py, pin)?, Zeroizing::new(password.to_vec()));
    login_operation(async move { Client::connect(&server, pin, &user, &password).await })
}

/// Logs in with the key file of a service.
#[pyfunction]
pub(crate) fn connect_with_key(
    py: Python<'_>,
    server: String,
    pin: &str,
    key_file: PathBuf,
) -> PyResult<NativeOperation> {
    let pin = pin_of(py, pin)?;
    let text =
        sealstone_failure::secret_file::read(&key_file).map_err(|error| errors::failure(py, &error))?;
    let file = key_file.as_os_str().as_bytes();
    let key = ServiceKey::from_text(&text).map_err(|error| errors::client_error(py, &error, Some(file)))?;
    login_operation(async move { Client::connect_with_key(&server, pin, &key, Proofs::default()).await })
}
