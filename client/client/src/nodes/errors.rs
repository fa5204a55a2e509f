//! Meaning of errors for an open file: retry, reopen, or report.

use sealstone_initiator::{OsdError, SessionError};
use sealstone_mds_protocol::{ErrorCode, Failure};

use crate::ClientError;

/// Another client truncates the file faster than this one can open it again.
pub(super) const TRUNCATED_REPEATEDLY: ClientError =
    ClientError::Protocol("too many concurrent truncations of the file");

/// Maximum times that bytes are sent again because a device restarted.
pub(super) const RESENDS_MAX: u32 = 8;
/// Maximum times that an operation follows a truncation or migration of the file.
pub(super) const REOPENS_MAX: u32 = 4;

/// Whether the server denied the request.
pub(super) fn is_denied(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code.is_denial())
}

/// Whether the server has fenced this client: it did not return a lease in time, or was silent for
/// too long.
pub(super) fn is_fenced(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Fenced)
}

/// Returns the error of a fenced client.
pub(super) fn fenced() -> ClientError {
    Failure::new(ErrorCode::Fenced, "").into()
}

/// Whether the server may not know that this client has the file open.
pub(super) fn is_invalid(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Invalid)
}

/// Whether a quota was exceeded.
pub(super) fn is_over_quota(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Quota)
}

/// Whether the error is transient: a restarting server or device, or an interrupted network.
pub(super) fn is_transient(error: &ClientError) -> bool {
    match error {
        ClientError::Connection(_) | ClientError::LoginBusy { .. } => true,
        ClientError::Refused(failure) => failure.code == ErrorCode::Busy,
        ClientError::Device { error, .. } => match error {
            OsdError::Busy => true,
            error if error.is_about_time() => true,
            // All operations here are idempotent.
            OsdError::OutcomeUnknown { .. } => true,
            OsdError::Session(
                SessionError::Unreachable(_)
                | SessionError::LoginTimeout(_)
                | SessionError::NexusLost
                | SessionError::Closed
                | SessionError::Timeout(_),
            ) => true,
            _ => false,
        },
        _ => false,
    }
}
