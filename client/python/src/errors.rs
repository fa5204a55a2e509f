//! Errors as exceptions of `sealstone._errors`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::io::Errno;
use sealstone_client::{ClientError, errno};
use sealstone_embed::{Failure, FailureKind};

/// Returns the exception of a client error; `path` is the file, if the error is about one.
pub(crate) fn client_error(py: Python<'_>, error: &ClientError, path: Option<&[u8]>) -> PyErr {
    let kind = match error {
        ClientError::Damaged { .. } | ClientError::ChecksumMismatch | ClientError::DataMissing { .. } => {
            "damaged"
        }
        ClientError::LoginRefused
        | ClientError::CookieRefused
        | ClientError::SessionOver
        | ClientError::WrongCertificate(_)
        | ClientError::LoginFailed(_) => "login",
        ClientError::LoginBusy { .. } => "throttled",
        ClientError::Connection(_) | ClientError::OutcomeUnknown { .. } => "connection",
        _ => "",
    };
    let number = match kind {
        "login" => Errno::ACCESS,
        "throttled" => Errno::AGAIN,
        _ => errno(error),
    };
    raise(py, kind, number, &sealstone_failure::chain(error), path)
}

/// Returns the exception of a failure of a cluster.
pub(crate) fn failure(py: Python<'_>, failure: &Failure) -> PyErr {
    let number = match failure.kind {
        FailureKind::Usage => Errno::INVAL,
        FailureKind::Denied => Errno::ACCESS,
        FailureKind::NotFound => Errno::NOENT,
        FailureKind::Operation | FailureKind::Signal(_) => Errno::IO,
    };
    raise(py, "cluster", number, &failure.to_string(), None)
}

/// Creates the exception in the Python half, which knows the classes.
pub(crate) fn raise(py: Python<'_>, kind: &str, number: Errno, message: &str, path: Option<&[u8]>) -> PyErr {
    let path = path.map(|path| PyBytes::new(py, path));
    let made = py
        .import("sealstone._errors")
        .and_then(|module| module.getattr("from_native"))
        .and_then(|function| function.call1((kind, number.raw_os_error(), message, path)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
