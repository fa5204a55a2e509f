//! A client as a Python object: operations by path.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use sealstone_client::nodes::{Nodes, NodesOptions};
use sealstone_client::tls::Fingerprint;
use sealstone_client::{
    Client, ClientError, DirEntry, FileKind, GetOptions, Proofs, PutOptions, ServiceKey, Stat,
};
use sealstone_embed::Failure;
use sealstone_metadata_server::ClusterFile;
use zeroize::Zeroizing;

use crate::errors;
use crate::file::NativeFile;
use crate::paths;
use crate::runtime::{OwnerProcess, runtime, wait};

/// Attributes of a node as a tuple: kind, mode, owner, group, links, size, inode, version, and the
/// times of access, modification, change and creation in nanoseconds since 1970.
pub(crate) type StatTuple =
    (&'static str, u16, String, Option<String>, u32, u64, u64, u64, i64, i64, i64, i64);

pub(crate) fn stat_tuple(stat: &Stat) -> StatTuple {
    (
        kind_name(stat.kind),
        stat.mode,
        stat.owner.as_str().to_owned(),
        stat.group.as_ref().map(|group| group.as_str().to_owned()),
        stat.links,
        stat.size,
        stat.inode.0,
        stat.version,
        stat.atime_ns,
        stat.mtime_ns,
        stat.ctime_ns,
        stat.birth_ns,
    )
}

const fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
    }
}

/// A connected client.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeClient {
    client: Client,
    /// Files in place, created at the first open.
    nodes: Mutex<Option<Nodes>>,
    owner: OwnerProcess,
}

impl NativeClient {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, nodes: Mutex::new(None), owner: OwnerProcess::current() }
    }

    /// Runs an operation on the file at `path`.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        operation: impl Future<Output = Result<T, ClientError>> + Send,
    ) -> PyResult<T> {
        self.owner.check()?;
        wait(py, operation)?.map_err(|error| errors::client_error(py, &error, Some(path)))
    }

    /// Returns the files in place of this client, with leases as a mount has them.
    fn nodes(&self) -> PyResult<Nodes> {
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
    fn put(
        &self,
        py: Python<'_>,
        path: &[u8],
        data: PyBackedBytes,
        replace: bool,
        mode: u16,
    ) -> PyResult<StatTuple> {
        let options = PutOptions { size: Some(data.len() as u64), replace, mode, ..PutOptions::default() };
        self.run(py, path, self.client.put(path, &data[..], options)).map(|stat| stat_tuple(&stat))
    }

    /// Stores a local file.
    fn put_file(
        &self,
        py: Python<'_>,
        path: &[u8],
        local: PathBuf,
        replace: bool,
        mode: u16,
    ) -> PyResult<StatTuple> {
        self.owner.check()?;
        let options = PutOptions { replace, mode, ..PutOptions::default() };
        let stored = wait(py, self.client.put_file(path, &local, options))?;
        stored.map(|stat| stat_tuple(&stat)).map_err(|error| {
            let path = match &error {
                ClientError::Source(_) => local.as_os_str().as_bytes(),
                _ => path,
            };
            errors::client_error(py, &error, Some(path))
        })
    }

    /// Returns the bytes of a file, or of a range of it.
    fn get<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        range: Option<(u64, u64)>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let range = range.map(|(start, end)| start..end);
        let mut bytes = Vec::new();
        let options = GetOptions { range, ..GetOptions::default() };
        self.run(py, path, self.client.get(path, &mut bytes, options))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Returns the entries of a directory: names, kinds, and attributes where they may be read.
    fn list(&self, py: Python<'_>, path: &[u8]) -> PyResult<Vec<(Vec<u8>, &'static str, Option<StatTuple>)>> {
        let listing = self.client.list(path).map_err(|error| errors::client_error(py, &error, Some(path)))?;
        let entries = self.run(py, path, listing.collect())?;
        let entry = |entry: DirEntry| {
            (entry.name.as_bytes().to_vec(), kind_name(entry.kind), entry.stat.as_ref().map(stat_tuple))
        };
        Ok(entries.into_iter().map(entry).collect())
    }

    /// Returns the attributes of a node.
    fn stat(&self, py: Python<'_>, path: &[u8], follow_symlinks: bool) -> PyResult<StatTuple> {
        let stat = async {
            match follow_symlinks {
                true => self.client.stat(path).await,
                false => self.client.lstat(path).await,
            }
        };
        self.run(py, path, stat).map(|stat| stat_tuple(&stat))
    }

    /// Removes a node; returns the number of removed nodes.
    fn remove(&self, py: Python<'_>, path: &[u8], recursive: bool) -> PyResult<u64> {
        self.run(py, path, self.client.remove(path, recursive))
    }

    /// Creates a directory.
    fn mkdir(&self, py: Python<'_>, path: &[u8], parents: bool, mode: u16) -> PyResult<()> {
        self.run(py, path, self.client.mkdir(path, parents, mode)).map(|_| ())
    }

    /// Renames a node.
    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8], replace: bool) -> PyResult<()> {
        self.run(py, from, self.client.rename(from, to, replace)).map(|_| ())
    }

    /// Opens a file in place.
    fn open(
        &self,
        py: Python<'_>,
        path: &[u8],
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        append: bool,
    ) -> PyResult<NativeFile> {
        self.owner.check()?;
        let nodes = self.nodes()?;
        let how = paths::OpenMode { write, create, exclusive, truncate };
        let file = self.run(py, path, paths::open(&nodes, path, how))?;
        Ok(NativeFile::new(nodes, file, append, self.owner))
    }

    /// Returns the name of the user.
    fn user(&self, py: Python<'_>) -> PyResult<String> {
        self.owner.check()?;
        let who = wait(py, self.client.whoami())?;
        who.map(|who| who.user.as_str().to_owned()).map_err(|error| errors::client_error(py, &error, None))
    }

    /// Makes files in place durable, returns their leases, and ends the session.
    fn logout(&self, py: Python<'_>) -> PyResult<()> {
        self.owner.check()?;
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = async {
            let stored = match &nodes {
                Some(nodes) => nodes.shut_down().await,
                None => Ok(()),
            };
            let ended = self.client.logout().await;
            stored.and(ended)
        };
        wait(py, ended)?.map_err(|error| errors::client_error(py, &error, None))
    }
}

impl Drop for NativeClient {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // Its tasks belong to the runtime of the parent.
            core::mem::forget(self.client.clone());
            core::mem::forget(self.nodes.get_mut().unwrap_or_else(PoisonError::into_inner).take());
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
    let wrong = |_| errors::failure(py, &Failure::usage("not a pin: sha256: and 64 hexadecimal digits"));
    pin.parse().map_err(wrong)
}

/// Logs in with a password.
#[pyfunction]
pub(crate) fn connect_with_password(
    py: Python<'_>,
    server: &str,
    pin: &str,
    user: &str,
    password: &[u8],
) -> PyResult<NativeClient> {
    let (pin, password) = (pin_of(py, pin)?, Zeroizing::new(password.to_vec()));
    let client = wait(py, Client::connect(server, pin, user, &password))?;
    client.map(NativeClient::new).map_err(|error| errors::client_error(py, &error, None))
}

/// Logs in with the key file of a service.
#[pyfunction]
pub(crate) fn connect_with_key(
    py: Python<'_>,
    server: &str,
    pin: &str,
    key_file: PathBuf,
) -> PyResult<NativeClient> {
    let pin = pin_of(py, pin)?;
    let text =
        sealstone_failure::secret_file::read(&key_file).map_err(|error| errors::failure(py, &error))?;
    let file = key_file.as_os_str().as_bytes();
    let key = ServiceKey::from_text(&text).map_err(|error| errors::client_error(py, &error, Some(file)))?;
    let client = wait(py, Client::connect_with_key(server, pin, &key, Proofs::default()))?;
    client.map(NativeClient::new).map_err(|error| errors::client_error(py, &error, None))
}
