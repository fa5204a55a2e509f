//! An open file as a Python object: reads and writes at offsets.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use sealstone_client::nodes::{File, Nodes};
use sealstone_mds_protocol::NodeChange;

use crate::operation::{NativeOperation, OperationContext};
use crate::results::BytesResult;

/// Maximum bytes of one read; a longer one returns fewer bytes.
pub(crate) const READ_BYTES_MAX: usize = 16 << 20;

/// An open file.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeFile {
    nodes: Nodes,
    file: Mutex<Option<Arc<File>>>,
    append: bool,
    context: OperationContext,
}

impl NativeFile {
    pub(crate) fn new(nodes: Nodes, file: File, append: bool, context: OperationContext) -> Self {
        Self { nodes, file: Mutex::new(Some(Arc::new(file))), append, context }
    }

    fn file(&self) -> PyResult<Arc<File>> {
        self.context.owner.check()?;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        file.ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }
}

#[pymethods]
impl NativeFile {
    /// Returns up to `length` bytes at an offset; none at the end of the file.
    fn read(&self, offset: u64, length: usize) -> PyResult<NativeOperation> {
        let file = self.file()?;
        self.context.operation(
            None,
            async move { file.read(offset, length.min(READ_BYTES_MAX)).await },
            BytesResult,
        )
    }

    /// Writes bytes at an offset, or at the end of a file that is open for appending. Returns the
    /// offset of the first byte.
    fn write(&self, data: PyBackedBytes, offset: u64) -> PyResult<NativeOperation> {
        let (file, append) = (self.file()?, self.append);
        let work = async move {
            match append {
                true => file.append(&data).await,
                false => file.write(offset, &data).await.map(|()| offset),
            }
        };
        self.context.operation(None, work, |offset| offset)
    }

    /// Changes the size.
    fn truncate(&self, size: u64) -> PyResult<NativeOperation> {
        let (file, nodes) = (self.file()?, self.nodes.clone());
        let change = NodeChange { size: Some(size), ..NodeChange::default() };
        self.context.operation(None, async move { nodes.set(file.node(), change, true).await }, drop)
    }

    /// Returns the size.
    fn size(&self) -> PyResult<NativeOperation> {
        let (file, nodes) = (self.file()?, self.nodes.clone());
        self.context.operation(None, async move { nodes.node(file.node()).await }, |stat| stat.size)
    }

    /// Sends written bytes, so that other clients see them.
    fn flush(&self) -> PyResult<NativeOperation> {
        let file = self.file()?;
        self.context.operation(None, async move { file.flush().await }, |()| ())
    }

    /// Makes written bytes durable.
    fn sync(&self) -> PyResult<NativeOperation> {
        let file = self.file()?;
        self.context.operation(None, async move { file.sync().await }, |()| ())
    }

    /// Sends written bytes and closes the file. The file is closed after an error too.
    fn close(&self) -> PyResult<NativeOperation> {
        self.context.owner.check()?;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        let work = async move {
            match file {
                Some(file) => file.flush().await,
                None => Ok(()),
            }
        };
        self.context.operation(None, work, |()| ())
    }
}

impl Drop for NativeFile {
    fn drop(&mut self) {
        if !self.context.owner.is_current() {
            // Its tasks belong to the runtime of the parent.
            core::mem::forget(self.file.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            core::mem::forget(self.nodes.clone());
        }
    }
}
