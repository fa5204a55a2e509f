//! Errors as exceptions of `sealstone._errors`.

use pyo3::prelude::*;
use sealstone_client::ClientError;
use sealstone_embed::{Failure, FailureKind};
use sealstone_initiator::OsdError;
use sealstone_mds_protocol::{ErrorCode, WireError};

/// Error numbers of Linux, as the module `errno` names them.
mod number {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EIO: i32 = 5;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EXDEV: i32 = 18;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EFBIG: i32 = 27;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EMLINK: i32 = 31;
    pub(super) const EDEADLK: i32 = 35;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ENOTEMPTY: i32 = 39;
    pub(super) const ELOOP: i32 = 40;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const ESTALE: i32 = 116;
    pub(super) const EDQUOT: i32 = 122;
}

/// Returns the error number of an error, the same as a mount returns.
fn errno(error: &ClientError) -> i32 {
    match error {
        ClientError::Refused(failure) => errno_of_server(failure.code),
        ClientError::Device { error: OsdError::NoSpace, .. } => number::ENOSPC,
        ClientError::Device { error, .. } if error.is_denied() => number::EACCES,
        ClientError::Device {
            error: OsdError::Busy | OsdError::Session(_) | OsdError::OutcomeUnknown { .. },
            ..
        } => number::ETIMEDOUT,
        ClientError::Name(WireError::TooLong { .. }) => number::ENAMETOOLONG,
        ClientError::Name(_) => number::EINVAL,
        ClientError::TooLarge { .. } => number::EFBIG,
        ClientError::Source(error) | ClientError::Sink(error) => error.raw_os_error().unwrap_or(number::EIO),
        ClientError::Connection(_) | ClientError::LoginBusy { .. } => number::ETIMEDOUT,
        _ => number::EIO,
    }
}

const fn errno_of_server(code: ErrorCode) -> i32 {
    match code {
        ErrorCode::NotFound => number::ENOENT,
        ErrorCode::Exists => number::EEXIST,
        ErrorCode::NotEmpty => number::ENOTEMPTY,
        ErrorCode::NotADirectory => number::ENOTDIR,
        ErrorCode::IsADirectory => number::EISDIR,
        ErrorCode::Denied | ErrorCode::NotLoggedIn => number::EACCES,
        ErrorCode::NotPermitted => number::EPERM,
        ErrorCode::NoSpace | ErrorCode::Limit => number::ENOSPC,
        ErrorCode::InvalidName | ErrorCode::Invalid | ErrorCode::Cycle => number::EINVAL,
        ErrorCode::Stale => number::ESTALE,
        ErrorCode::Busy => number::ETIMEDOUT,
        ErrorCode::Loop => number::ELOOP,
        ErrorCode::TooManyLinks => number::EMLINK,
        ErrorCode::NoAttribute => number::ENODATA,
        ErrorCode::NotSupported => number::EOPNOTSUPP,
        ErrorCode::FileTooLarge => number::EFBIG,
        ErrorCode::Locked => number::EAGAIN,
        ErrorCode::Deadlock => number::EDEADLK,
        ErrorCode::Quota => number::EDQUOT,
        ErrorCode::CrossesTrees => number::EXDEV,
        ErrorCode::Version | ErrorCode::Internal | ErrorCode::Fenced => number::EIO,
    }
}

/// Returns the exception of a client error; `path` is the stored file, if the error is about one.
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
        ClientError::Connection(_) | ClientError::OutcomeUnknown { .. } | ClientError::LoginBusy { .. } => {
            "connection"
        }
        _ => "",
    };
    let number = match kind {
        "login" => number::EACCES,
        _ => errno(error),
    };
    raise(py, kind, number, &chain(error), path)
}

/// Returns the exception of a failure of a cluster.
pub(crate) fn failure(py: Python<'_>, failure: &Failure) -> PyErr {
    let number = match failure.kind {
        FailureKind::Usage => number::EINVAL,
        FailureKind::Denied => number::EACCES,
        FailureKind::NotFound => number::ENOENT,
        FailureKind::Operation | FailureKind::Signal(_) => number::EIO,
    };
    raise(py, "cluster", number, &failure.to_string(), None)
}

/// Joins an error and its causes on one line.
fn chain(error: &ClientError) -> String {
    sealstone_failure::chain(error)
}

/// Creates the exception in the Python half, which knows the classes.
fn raise(py: Python<'_>, kind: &str, number: i32, message: &str, path: Option<&[u8]>) -> PyErr {
    let path = path.map(|path| String::from_utf8_lossy(path).into_owned());
    let made = py
        .import("sealstone._errors")
        .and_then(|module| module.getattr("from_native"))
        .and_then(|function| function.call1((kind, number, message, path)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
