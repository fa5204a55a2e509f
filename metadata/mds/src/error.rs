//! Errors of the metadata server.

use sealstone_mds_protocol::{ErrorCode, Failure, WireError};

use crate::store::MetaError;

/// Delay before a client repeats a request while the store is unavailable, milliseconds.
const UNAVAILABLE_RETRY_MS: u32 = 1_000;

/// Errors of a request.
#[derive(Debug, thiserror::Error)]
pub enum MdsError {
    /// The failure is sent to the client.
    #[error("{0}")]
    Refused(Failure),
    /// The client gets `Internal`, or `Busy` if a retry can help. The log has the cause.
    #[error("metadata store error")]
    Store(#[from] MetaError),
}

impl MdsError {
    /// Returns a refusal with a subject.
    pub(crate) fn refused(code: ErrorCode, subject: impl AsRef<str>) -> Self {
        Self::Refused(Failure::new(code, subject.as_ref()))
    }

    /// Whether the refusal is `NotFound`.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(failure) if failure.code == ErrorCode::NotFound)
    }

    /// Returns the failure that the client gets.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Refused(failure) => failure.clone(),
            Self::Store(MetaError::Conflict) => Failure::busy(10),
            Self::Store(MetaError::Away(_)) => Failure::busy(UNAVAILABLE_RETRY_MS),
            Self::Store(MetaError::Full { disk, .. }) => Failure::new(ErrorCode::NoSpace, disk),
            Self::Store(
                MetaError::TooLong { .. }
                | MetaError::Poisoned
                | MetaError::Damaged(_)
                | MetaError::Failed(_),
            ) => Failure::new(ErrorCode::Internal, ""),
        }
    }
}

impl From<WireError> for MdsError {
    fn from(error: WireError) -> Self {
        Self::Refused(Failure::from(error))
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, MdsError>;
