//! Errors of functions and their calls.

use sealstone_initiator::OsdError;
use sealstone_osd::function::EngineType;

use crate::ClientError;

/// Why a function could not be stored, described or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// The file has no checksum of its code: it was not stored as a function, or was changed since.
    #[error("{path} was not stored as a function, or was changed since; store it with `sealstone fn put`")]
    NotAFunction {
        /// The file.
        path: String,
    },
    /// The file is in stripes or empty, so no object has all of the code.
    #[error("{path} is not one object with code; store it with `sealstone fn put`")]
    NotWhole {
        /// The file.
        path: String,
    },
    /// The objects of the function have no description.
    #[error("{path} has no description; store it with `sealstone fn put`")]
    NotDescribed {
        /// The file.
        path: String,
    },
    /// The code differs from the recorded digest.
    #[error("the code of {path} differs from its digest; store it again with `sealstone fn put`")]
    DigestMismatch {
        /// The file.
        path: String,
    },
    /// The code is longer than a device runs.
    #[error("code of {length} bytes; at most {max} are possible")]
    CodeTooLong {
        /// Bytes of the code.
        length: u64,
        /// The limit.
        max: u64,
    },
    /// A field of the description is invalid.
    #[error("{field}: {problem}")]
    Description {
        /// The field.
        field: &'static str,
        /// The violated rule.
        problem: &'static str,
    },
    /// An argument is invalid.
    #[error("argument {name}: {problem}")]
    Argument {
        /// Name of the argument.
        name: String,
        /// The violated rule.
        problem: &'static str,
    },
    /// All arguments together are too long.
    #[error("arguments of {length} bytes; at most {max} are possible")]
    ArgumentsTooLong {
        /// Bytes of the arguments, with those that the client adds.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// A limit of the wire format.
    #[error("{what} exceeds its limit of {max}")]
    Limit {
        /// The value.
        what: &'static str,
        /// The limit.
        max: u64,
    },
    /// Files that are changed in one job need an object in each job, or the wrong ones are paired.
    #[error(
        "{path} has no bytes on device {device}, and files that are changed together need some in each job; \
         give it the size and the layout of the other files first, for example with `truncate` in a mount"
    )]
    NoObject {
        /// The file.
        path: String,
        /// Name of the device.
        device: String,
    },
    /// The device has no copy of the function, and the caller may not make one.
    #[error("device {device} has no copy of the function, and making one needs the right to read it")]
    NoCopy {
        /// Name of the device.
        device: String,
        /// The refusal.
        #[source]
        error: ClientError,
    },
    /// The file with the key is empty, too long, or in stripes.
    #[error("{path} is not a file with a key: it needs 1 to 4096 bytes in one object")]
    NotAKey {
        /// The file.
        path: String,
    },
    /// The device has no copy of the file with the key, and the caller may not make one.
    #[error("device {device} has no copy of {path}, and making one needs the rights to read and execute it")]
    NoKeyCopy {
        /// The file with the key.
        path: String,
        /// Name of the device.
        device: String,
        /// The refusal.
        #[source]
        error: ClientError,
    },
    /// The device has too many jobs.
    #[error("device {device} is busy: it has as many jobs as it may have; try again later")]
    Busy {
        /// Name of the device.
        device: String,
    },
    /// The device cannot run the function: it has no functions, or not this engine.
    #[error(
        "device {device} cannot run {} functions",
        .engine.map_or("any", EngineType::name)
    )]
    NoEngine {
        /// Name of the device.
        device: String,
        /// The engine, if it is known.
        engine: Option<EngineType>,
    },
    /// The job is not known: it ended long ago, belongs to another session, or its function was
    /// replaced.
    #[error("device {device} does not know the job: it expired, or belongs to another session")]
    UnknownJob {
        /// Name of the device.
        device: String,
    },
    /// An asynchronous job could not be recorded, so it was not started.
    #[error("the job was not started, because it cannot be recorded: {problem}")]
    NotRecorded {
        /// The problem.
        problem: String,
    },
    /// An asynchronous job could end after the credential for its long result.
    #[error(
        "device {device} may run the job for longer than the credential for its result is valid; raise \
         delegated_s_max of the metadata server, or lower function_wall_s_max of the device"
    )]
    ResultExpires {
        /// Name of the device.
        device: String,
    },
    /// The device refuses the call.
    #[error("device {device} refuses the call: {error}")]
    Refused {
        /// Name of the device.
        device: String,
        /// The refusal.
        #[source]
        error: OsdError,
    },
    /// Any other error of the client.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl FunctionError {
    /// Returns the exit code of the command line: 1 failed, 2 usage, 3 access denied, 4 not found.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Client(error) => error.exit_code(),
            Self::NoCopy { .. } | Self::NoKeyCopy { .. } => 3,
            Self::Refused { error, .. }
                if error.is_denied() || matches!(error, OsdError::FunctionExcluded) =>
            {
                3
            }
            Self::UnknownJob { .. } => 4,
            Self::NotAKey { .. } | Self::Description { .. } | Self::Argument { .. } | Self::Limit { .. } => 2,
            Self::ArgumentsTooLong { .. } | Self::CodeTooLong { .. } => 2,
            _ => 1,
        }
    }

    /// Whether it says that a run was certainly not started.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        match self {
            Self::Client(ClientError::Device { error, .. }) => error.is_denied(),
            Self::Client(ClientError::Refused(_) | ClientError::NotDelegated(_)) => true,
            Self::Client(_) | Self::UnknownJob { .. } => false,
            _ => true,
        }
    }

    /// Returns the error of a command of a call.
    pub(super) fn of_call(error: ClientError, engine: Option<EngineType>) -> Self {
        match error {
            ClientError::Device { name, error: OsdError::Busy, .. } => Self::Busy { device: name },
            ClientError::Device { name, error: OsdError::NotImplemented(_), .. } => {
                Self::NoEngine { device: name, engine }
            }
            ClientError::Device {
                name,
                error:
                    error @ (OsdError::FunctionUnsupported
                    | OsdError::FunctionExcluded
                    | OsdError::FunctionRequestUnknown { .. }
                    | OsdError::InvalidParameter { .. }
                    | OsdError::InvalidField { .. }),
                ..
            } => Self::Refused { device: name, error },
            other => Self::Client(other),
        }
    }
}
