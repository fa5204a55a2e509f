//! Errors of functions: an error number of POSIX, and a message for the caller's log.

use alloc::borrow::Cow;
use core::fmt;

/// Error number that a host call or a function returns; positive, as in `errno.h` of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionErrno(i32);

impl FunctionErrno {
    /// `ENOENT`: no such object.
    pub const NOT_FOUND: Self = Self(2);
    /// `EIO`: the device failed to read or write.
    pub const IO: Self = Self(5);
    /// `EBADF`: no object has this index.
    pub const BAD_OBJECT: Self = Self(9);
    /// `ENOMEM`: the memory limit of the job is reached.
    pub const NO_MEMORY: Self = Self(12);
    /// `EACCES`: the capability does not permit the access, or is expired or revoked.
    pub const ACCESS: Self = Self(13);
    /// `EINVAL`: an argument is invalid.
    pub const INVALID: Self = Self(22);
    /// `EFBIG`: a record, a file or a result is larger than its limit.
    pub const TOO_LARGE: Self = Self(27);
    /// `ENOSPC`: the device or the quota is full.
    pub const NO_SPACE: Self = Self(28);
    /// `ENOSYS`: the engine has no such call.
    pub const UNSUPPORTED: Self = Self(38);
    /// `EBADMSG`: the data is not of the expected format.
    pub const BAD_DATA: Self = Self(74);
    /// `ECANCELED`: the job was cancelled.
    pub const CANCELLED: Self = Self(125);

    /// Returns the error of a positive or negative error number.
    #[must_use]
    pub const fn from_raw(number: i32) -> Self {
        match number.checked_abs() {
            Some(0) | None => Self::IO,
            Some(positive) => Self(positive),
        }
    }

    /// Returns the positive error number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// Returns the symbol of `errno.h`, if this SDK names it.
    #[must_use]
    pub const fn symbol(self) -> Option<&'static str> {
        Some(match self {
            Self::NOT_FOUND => "ENOENT",
            Self::IO => "EIO",
            Self::BAD_OBJECT => "EBADF",
            Self::NO_MEMORY => "ENOMEM",
            Self::ACCESS => "EACCES",
            Self::INVALID => "EINVAL",
            Self::TOO_LARGE => "EFBIG",
            Self::NO_SPACE => "ENOSPC",
            Self::UNSUPPORTED => "ENOSYS",
            Self::BAD_DATA => "EBADMSG",
            Self::CANCELLED => "ECANCELED",
            _ => return None,
        })
    }
}

impl fmt::Debug for FunctionErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for FunctionErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.symbol() {
            Some(symbol) => f.write_str(symbol),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl core::error::Error for FunctionErrno {}

/// Failure of a function. The engine writes the message to the job's log and returns the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionFailure {
    /// Error number that the caller receives.
    pub errno: FunctionErrno,
    /// Text for the log of the job: what failed, on what. Contains no secret.
    pub message: Cow<'static, str>,
}

impl FunctionFailure {
    /// Returns a failure with a message.
    #[must_use]
    pub fn new(errno: FunctionErrno, message: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, message: message.into() }
    }

    /// Returns a failure of an invalid argument.
    #[must_use]
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FunctionErrno::INVALID, message)
    }
}

impl fmt::Display for FunctionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.errno)
    }
}

impl core::error::Error for FunctionFailure {}

impl From<FunctionErrno> for FunctionFailure {
    fn from(errno: FunctionErrno) -> Self {
        let message = match errno {
            FunctionErrno::ACCESS => "access to an object refused",
            FunctionErrno::CANCELLED => "job cancelled",
            FunctionErrno::NO_SPACE => "no space left for output",
            FunctionErrno::TOO_LARGE => "output limit reached",
            FunctionErrno::BAD_OBJECT => "no object with this index",
            _ => "host call failed",
        };
        Self::new(errno, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_number_of_any_sign_is_positive() {
        assert_eq!(FunctionErrno::from_raw(-13), FunctionErrno::ACCESS);
        assert_eq!(FunctionErrno::from_raw(13), FunctionErrno::ACCESS);
        for invalid in [0, i32::MIN] {
            assert_eq!(FunctionErrno::from_raw(invalid), FunctionErrno::IO);
        }
        assert!(FunctionErrno::from_raw(i32::MAX).raw() > 0);
    }
}
