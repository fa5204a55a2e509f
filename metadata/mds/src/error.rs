//! Why the metadata server did not do something.

use sealstone_mds_protocol::{ErrorCode, Failure, WireError};

use crate::store::MetaError;

/// Whoever needs a store that is away asks again after this.
const AWAY_RETRY_MS: u32 = 1_000;

/// Why not.
#[derive(Debug, thiserror::Error)]
pub enum MdsError {
    /// The client hears this.
    #[error("{0}")]
    Refused(Failure),
    /// The client hears `Internal`, or `Busy` where it helps to ask again; the log has the cause.
    #[error("metadata store")]
    Store(#[from] MetaError),
}

impl MdsError {
    /// A refusal about something.
    pub(crate) fn refused(code: ErrorCode, subject: impl AsRef<str>) -> Self {
        Self::Refused(Failure::new(code, subject.as_ref()))
    }

    /// Is there nothing of that name?
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(failure) if failure.code == ErrorCode::NotFound)
    }

    /// What the client hears.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Refused(failure) => failure.clone(),
            Self::Store(MetaError::Conflict) => Failure::busy(10),
            Self::Store(MetaError::Away(_)) => Failure::busy(AWAY_RETRY_MS),
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

/// A result of this crate.
pub type Result<T> = std::result::Result<T, MdsError>;
