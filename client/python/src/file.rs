//! An open file as a Python object: reads and writes at offsets.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use sealstone_client::ClientError;
use sealstone_client::nodes::{File, Nodes};
use sealstone_mds_protocol::NodeChange;

use crate::errors;
use crate::runtime::{OwnerProcess, wait};

/// Maximum bytes of one read; a longer one returns fewer bytes.
const READ_BYTES_MAX: usize = 16 << 20;

/// An open file.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeFile {
    nodes: Nodes,
    file: Mutex<Option<Arc<File>>>,
    append: bool,
    owner: OwnerProcess,
}

impl NativeFile {
    pub(crate) fn new(nodes: Nodes, file: File, append: bool, owner: OwnerProcess) -> Self {
        Self { nodes, file: Mutex::new(Some(Arc::new(file))), append, owner }
    }

    fn file(&self) -> PyResult<Arc<File>> {
        self.owner.check()?;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        file.ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl Future<Output = Result<T, ClientError>> + Send,
    ) -> PyResult<T> {
        wait(py, operation)?.map_err(|error| errors::client_error(py, &error, None))
    }
}

#[pymethods]
impl NativeFile {
    /// Returns up to `length` bytes at an offset; none at the end of the file.
    fn read<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.file()?;
        let bytes = self.run(py, file.read(offset, length.min(READ_BYTES_MAX)))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes bytes at an offset, or at the end of a file that is open for appending. Returns the
    /// offset of the first byte.
    fn write(&self, py: Python<'_>, data: PyBackedBytes, offset: u64) -> PyResult<u64> {
        let file = self.file()?;
        let append = self.append;
        self.run(py, async {
            match append {
                true => file.append(&data).await,
                false => file.write(offset, &data).await.map(|()| offset),
            }
        })
    }

    /// Changes the size.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let file = self.file()?;
        let change = NodeChange { size: Some(size), ..NodeChange::default() };
        self.run(py, self.nodes.set(file.node(), change, true)).map(|_| ())
    }

    /// Returns the size.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.file()?;
        self.run(py, self.nodes.node(file.node())).map(|stat| stat.size)
    }

    /// Sends written bytes, so that other clients see them.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file()?;
        self.run(py, file.flush())
    }

    /// Makes written bytes durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file()?;
        self.run(py, file.sync())
    }

    /// Sends written bytes and closes the file. The file is closed after an error too.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.owner.check()?;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        match file {
            Some(file) => self.run(py, file.flush()),
            None => Ok(()),
        }
    }
}

impl Drop for NativeFile {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // Its tasks belong to the runtime of the parent.
            core::mem::forget(self.file.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            core::mem::forget(self.nodes.clone());
        }
    }
}
