//! An operation of a client, before a caller waits for it or an event loop runs it.
//!
//! Does: owns the future of the operation, and converts its result.
//! Does not: choose between both ways; `Client` of the Python half waits, `AsyncClient` runs.
//! Contract: an operation runs once. Its future has no Python objects but immutable bytes, so that
//! threads of the runtime never need the interpreter.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use sealstone_client::ClientError;

use crate::errors;
use crate::limits::OperationLimits;
use crate::runtime::{OwnerProcess, wait};

/// Creates the Python object of a result, or the exception.
pub(crate) type ResultConversion = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
/// The future of an operation.
pub(crate) type OperationFuture = Pin<Box<dyn Future<Output = ResultConversion> + Send>>;

/// The process and the limits that the operations of one client share.
#[derive(Clone)]
pub(crate) struct OperationContext {
    pub(crate) owner: OwnerProcess,
    limits: Arc<OperationLimits>,
}

impl OperationContext {
    /// Returns the context of objects that this process creates.
    pub(crate) fn new(limits: Arc<OperationLimits>) -> Self {
        Self { owner: OwnerProcess::current(), limits }
    }

    /// Returns an operation; `path` is the file that its errors name.
    pub(crate) fn operation<T, V>(
        &self,
        path: Option<&[u8]>,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
        convert: impl FnOnce(T) -> V + Send + 'static,
    ) -> PyResult<NativeOperation>
    where
        T: Send + 'static,
        V: for<'py> IntoPyObject<'py>,
    {
        let path = path.map(<[u8]>::to_vec);
        self.operation_with(work, convert, move |_| path)
    }

    /// As [`OperationContext::operation`]; `path_of` returns the file that an error names.
    pub(crate) fn operation_with<T, V>(
        &self,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
        convert: impl FnOnce(T) -> V + Send + 'static,
        path_of: impl FnOnce(&ClientError) -> Option<Vec<u8>> + Send + 'static,
    ) -> PyResult<NativeOperation>
    where
        T: Send + 'static,
        V: for<'py> IntoPyObject<'py>,
    {
        self.owner.check()?;
        let future: OperationFuture = Box::pin(async move {
            let result = work.await;
            Box::new(move |py: Python<'_>| match result {
                Ok(value) => convert(value).into_py_any(py),
                Err(error) => {
                    let path = path_of(&error);
                    Err(errors::client_error(py, &error, path.as_deref()))
                }
            }) as ResultConversion
        });
        Ok(NativeOperation { future: Mutex::new(Some(future)), context: self.clone() })
    }
}

/// An operation that has not started.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeOperation {
    future: Mutex<Option<OperationFuture>>,
    context: OperationContext,
}

impl NativeOperation {
    /// Returns the future, once.
    pub(crate) fn take(&self) -> PyResult<OperationFuture> {
        self.context.owner.check()?;
        let future = self.future.lock().unwrap_or_else(PoisonError::into_inner).take();
        future.ok_or_else(|| PyRuntimeError::new_err("the operation has started already"))
    }

    pub(crate) const fn limits(&self) -> &Arc<OperationLimits> {
        &self.context.limits
    }
}

#[pymethods]
impl NativeOperation {
    /// Runs the operation and waits for its result.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let future = self.take()?;
        wait(py, future)?(py)
    }
}

impl Drop for NativeOperation {
    fn drop(&mut self) {
        if !self.context.owner.is_current() {
            // Its objects belong to the runtime of the parent.
            core::mem::forget(self.future.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
