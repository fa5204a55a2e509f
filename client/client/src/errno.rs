//! Error numbers of Linux for errors of the client, as programs get them from a mount or a binding.

use rustix::io::Errno;
use sealstone_initiator::OsdError;
use sealstone_mds_protocol::{ErrorCode, WireError};

use crate::ClientError;

/// Returns the error number of a client error.
#[must_use]
pub fn errno(error: &ClientError) -> Errno {
    match error {
        ClientError::Refused(failure) => of_server(failure.code),
        ClientError::Device { error, .. } => of_device(error),
        ClientError::Name(WireError::TooLong { .. }) => Errno::NAMETOOLONG,
        ClientError::Name(_) => Errno::INVAL,
        ClientError::TooLarge { .. } => Errno::FBIG,
        ClientError::SessionOver => Errno::ACCESS,
        ClientError::Connection(_) | ClientError::LoginBusy { .. } => Errno::TIMEDOUT,
        ClientError::UnknownDevice(_) => Errno::NXIO,
        ClientError::Source(error) | ClientError::Sink(error) => {
            Errno::from_io_error(error).unwrap_or(Errno::IO)
        }
        _ => Errno::IO,
    }
}

const fn of_server(code: ErrorCode) -> Errno {
    match code {
        ErrorCode::NotFound => Errno::NOENT,
        ErrorCode::Exists => Errno::EXIST,
        ErrorCode::NotEmpty => Errno::NOTEMPTY,
        ErrorCode::NotADirectory => Errno::NOTDIR,
        ErrorCode::IsADirectory => Errno::ISDIR,
        ErrorCode::Denied | ErrorCode::NotLoggedIn => Errno::ACCESS,
        ErrorCode::NotPermitted => Errno::PERM,
        ErrorCode::NoSpace => Errno::NOSPC,
        ErrorCode::InvalidName | ErrorCode::Invalid | ErrorCode::Cycle => Errno::INVAL,
        ErrorCode::Stale => Errno::STALE,
        ErrorCode::Busy => Errno::TIMEDOUT,
        ErrorCode::Limit => Errno::NOSPC,
        ErrorCode::Loop => Errno::LOOP,
        ErrorCode::TooManyLinks => Errno::MLINK,
        ErrorCode::NoAttribute => Errno::NODATA,
        ErrorCode::NotSupported => Errno::OPNOTSUPP,
        ErrorCode::FileTooLarge => Errno::FBIG,
        ErrorCode::Locked => Errno::AGAIN,
        ErrorCode::Deadlock => Errno::DEADLK,
        ErrorCode::Quota => Errno::DQUOT,
        ErrorCode::CrossesTrees => Errno::XDEV,
        ErrorCode::Version | ErrorCode::Internal | ErrorCode::Fenced => Errno::IO,
    }
}

fn of_device(error: &OsdError) -> Errno {
    match error {
        OsdError::NoSpace => Errno::NOSPC,
        OsdError::Busy => Errno::TIMEDOUT,
        error if error.is_about_time() => Errno::TIMEDOUT,
        OsdError::Session(error) if error.is_denied() => Errno::ACCESS,
        OsdError::Session(_) | OsdError::OutcomeUnknown { .. } => Errno::TIMEDOUT,
        error if error.is_denied() => Errno::ACCESS,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_mds_protocol::Failure;

    #[test]
    fn errors_map_to_distinct_numbers() {
        for (code, expected) in [
            (ErrorCode::NotFound, Errno::NOENT),
            (ErrorCode::Exists, Errno::EXIST),
            (ErrorCode::NotPermitted, Errno::PERM),
            (ErrorCode::NoSpace, Errno::NOSPC),
            (ErrorCode::Quota, Errno::DQUOT),
            (ErrorCode::CrossesTrees, Errno::XDEV),
            (ErrorCode::NoAttribute, Errno::NODATA),
        ] {
            let error = ClientError::Refused(Failure::new(code, "x"));
            assert_eq!(errno(&error), expected, "{error}");
        }
        let full = ClientError::Device {
            device: sealstone_mds_protocol::DeviceId(1),
            name: "osd1".into(),
            error: OsdError::NoSpace,
        };
        assert_eq!(errno(&full), Errno::NOSPC);
        let missing = ClientError::Source(std::io::Error::from_raw_os_error(Errno::NOENT.raw_os_error()));
        assert_eq!(errno(&missing), Errno::NOENT);
    }
}
