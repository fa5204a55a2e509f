//! The trait by which the device reaches the service that runs functions.
//!
//! Does: defines a call with its code, arguments and objects, and the service that runs it.
//! Does not: start engines; an implementation of [`FunctionRunner`] does.
//! Contract: a call is complete and authorized. The code is an immutable copy, so later changes of
//! the function object have no effect on it. Objects check their authority on every operation.
//! Truth: docs/standards/active.md.

use std::any::Any;
use std::sync::Arc;

use sealstone_osd::capability::Range;
use sealstone_osd::function::attributes::{EngineEntry, FunctionAttributes};
use sealstone_osd::function::{ApiVersion, CODE_DIGEST_LEN, EngineType, JobId, JobRequest, ReplyParts};
use sealstone_osd::{AttributeId, ObjectId, ObjectType, Permissions};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::nexus::OsdNexus;

/// Runs functions and keeps their jobs.
pub trait FunctionRunner: Send + Sync {
    /// Returns the engines of this device, at most one of each type. Called for every read of the
    /// root's engine page, so it must not block.
    fn engines(&self) -> Vec<EngineInfo>;

    /// Reserves memory for the code of a run, before the code is read. Refuses runs that
    /// [`execute`](Self::execute) would refuse whatever their code is.
    ///
    /// # Errors
    /// [`FunctionRefusal`].
    fn reserve_code(&self, request: &CodeRequest<'_>) -> Result<CodeReservation, FunctionRefusal>;

    /// Runs a function. With a timeout it returns when the job has ended, otherwise at once.
    ///
    /// # Errors
    /// [`FunctionRefusal`] if no job was created.
    fn execute(&self, call: FunctionCall) -> Result<ReplyParts, FunctionRefusal>;

    /// Acts on a job. A job of another caller or function counts as unknown.
    ///
    /// # Errors
    /// [`FunctionRefusal`].
    fn job(&self, call: JobCall) -> Result<ReplyParts, FunctionRefusal>;
}

/// An engine of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// Its type.
    pub engine: EngineType,
    /// Its description, as the root's page shows it.
    pub entry: EngineEntry,
}

/// A run whose code will be read.
pub struct CodeRequest<'a> {
    /// The function object.
    pub function: ObjectId,
    /// Bytes of its code.
    pub bytes: u64,
    /// The engine, of the request or of the attributes.
    pub engine: EngineType,
    /// The requested API version.
    pub api: ApiVersion,
    /// The caller.
    pub caller: &'a FunctionCaller,
}

/// Memory for the code of one run. It is returned when this value is dropped.
pub struct CodeReservation {
    _share: Box<dyn Send + Sync>,
}

impl CodeReservation {
    /// Returns a reservation that drops `share` at its end.
    #[must_use]
    pub fn new(share: impl Send + Sync + 'static) -> Self {
        Self { _share: Box::new(share) }
    }
}

/// Code in memory, with the memory that was reserved for it.
pub struct FunctionCode {
    /// An immutable copy of the code.
    pub bytes: Arc<[u8]>,
    /// Its memory. Drop it after the bytes.
    pub reservation: CodeReservation,
}

/// One run of a function.
pub struct FunctionCall {
    /// The function object.
    pub function: ObjectId,
    /// The code; `None` as soon as an engine has it.
    pub code: Option<FunctionCode>,
    /// BLAKE3-256 of the code. It was compared with the request and with the attribute.
    pub digest: [u8; CODE_DIGEST_LEN],
    /// The attributes of the function object.
    pub attributes: FunctionAttributes,
    /// The engine, of the request or of the attributes.
    pub engine: EngineType,
    /// The requested API version, which the attributes permit.
    pub api: ApiVersion,
    /// The method; empty for the default method.
    pub method: String,
    /// The arguments; they are cleared when dropped.
    pub arguments: Zeroizing<Vec<u8>>,
    /// Whether the arguments must not appear in logs and records.
    pub secret_arguments: bool,
    /// Whether output becomes visible only if the function succeeds.
    pub commit_on_success: bool,
    /// Whether the receipt has digests of all bytes that are read.
    pub input_digests: bool,
    /// The objects, in the order of the request. The index is the handle.
    pub objects: Vec<Arc<dyn GrantedObject>>,
    /// Creates the object for a result that does not fit into a reply. The function has no handle
    /// of it.
    pub result_object: Option<Arc<dyn GrantedObject>>,
    /// Id that the client chose for an asynchronous job.
    pub job: Option<JobId>,
    /// Longest run in milliseconds; 0 for an asynchronous job.
    pub timeout_ms: u32,
    /// Most result bytes in the reply.
    pub inline_max: usize,
    /// The caller.
    pub caller: FunctionCaller,
}

/// A request about a job.
pub struct JobCall {
    /// The function object that the capability names.
    pub function: ObjectId,
    /// The job and the action.
    pub request: JobRequest,
    /// Most result or log bytes in the reply.
    pub inline_max: usize,
    /// The caller.
    pub caller: FunctionCaller,
}

/// The client of a call.
#[derive(Clone)]
pub struct FunctionCaller {
    /// AUDIT of its capability, which identifies the user. All zero without security.
    pub audit: [u8; 20],
    /// Its iSCSI name.
    pub initiator: String,
    nexus: Option<Arc<OsdNexus>>,
}

impl FunctionCaller {
    /// Returns a caller without a connection.
    #[must_use]
    pub const fn new(audit: [u8; 20], initiator: String) -> Self {
        Self { audit, initiator, nexus: None }
    }

    pub(crate) const fn connected(audit: [u8; 20], initiator: String, nexus: Arc<OsdNexus>) -> Self {
        Self { audit, initiator, nexus: Some(nexus) }
    }

    /// Whether the connection of the command was lost, so that no client waits for the reply.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.nexus.as_ref().is_some_and(|nexus| nexus.is_lost())
    }
}

/// Why no job was created, or why a request about a job failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FunctionRefusal {
    /// The device has no engine of this type.
    #[error("no {0} engine")]
    EngineMissing(EngineType),
    /// The engine does not have the requested API version.
    #[error("API version {requested} is not within {lowest} to {highest}, those of the engine")]
    ApiUnsupported {
        /// The requested version.
        requested: ApiVersion,
        /// The lowest version of the engine.
        lowest: ApiVersion,
        /// The highest one.
        highest: ApiVersion,
    },
    /// The engine refuses the code, for example a malformed module.
    #[error("the engine refuses the code: {0}")]
    CodeRejected(String),
    /// The function has no such method.
    #[error("the function has no such method")]
    UnknownMethod,
    /// Too many jobs of this caller or of the device run.
    #[error("too many jobs")]
    TooManyJobs,
    /// The job does not exist, or belongs to another caller or function.
    #[error("unknown job")]
    UnknownJob,
    /// The client chose the id of a job that exists.
    #[error("the job id is in use")]
    JobIdInUse,
    /// An asynchronous job may run for longer than the credential for its result is valid.
    #[error("the job may end after the credential for its result")]
    ResultExpires,
    /// The device is shutting down.
    #[error("the device is shutting down")]
    Stopping,
    /// The service failed; the log has the reason.
    #[error("the function service failed")]
    ServiceFailed,
}

/// An object that a function may access, with the authority of its capability.
///
/// Every operation acquires the lock of the object, checks rights, range, expiry, policy access tag
/// and key, and then does what the corresponding OSD command does. Both handles of an operation on
/// two have the same type.
pub trait GrantedObject: Any + Send + Sync {
    /// Returns the object. A handle for new objects has the id of their partition.
    fn object(&self) -> ObjectId;
    /// Returns its type.
    fn kind(&self) -> ObjectType;
    /// Returns the rights, as bits of `FunctionObject::RIGHTS`.
    fn rights(&self) -> Permissions;
    /// Returns the bytes that may be accessed.
    fn range(&self) -> Range;
    /// Returns the time at which its authority ends, milliseconds since 1970; 0 for never.
    fn expires_ms(&self) -> u64 {
        0
    }
    /// Reads from an offset; returns the number of bytes, short only at the end of the object.
    ///
    /// # Errors
    /// [`GrantError`], as for all operations.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, GrantError>;
    /// Writes at an offset; the object grows as needed.
    ///
    /// # Errors
    /// [`GrantError`].
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), GrantError>;
    /// Appends bytes; returns their offset.
    ///
    /// # Errors
    /// [`GrantError`].
    fn append(&self, data: &[u8]) -> Result<u64, GrantError>;
    /// Removes a range; the bytes after it move down. Returns how many bytes moved, which count as
    /// written.
    ///
    /// # Errors
    /// [`GrantError`].
    fn punch(&self, offset: u64, length: u64) -> Result<u64, GrantError>;
    /// Writes zeros to a range; the object grows as needed. Returns how many zeros count as
    /// written: none where the range becomes a hole.
    ///
    /// # Errors
    /// [`GrantError`].
    fn clear(&self, offset: u64, length: u64) -> Result<u64, GrantError>;
    /// Returns the length, at most the end of the range.
    ///
    /// # Errors
    /// [`GrantError`].
    fn length(&self) -> Result<u64, GrantError>;
    /// Returns an attribute; `None` if it is undefined.
    ///
    /// # Errors
    /// [`GrantError`].
    fn attribute(&self, id: AttributeId) -> Result<Option<Vec<u8>>, GrantError>;
    /// Sets an attribute; an empty value removes it.
    ///
    /// # Errors
    /// [`GrantError`].
    fn set_attribute(&self, id: AttributeId, value: &[u8]) -> Result<(), GrantError>;
    /// Lists object numbers of a partition or collection from a number on, ascending.
    ///
    /// # Errors
    /// [`GrantError`].
    fn list(&self, from: u64, max: usize) -> Result<GrantedList, GrantError>;
    /// Creates a user object: in a partition one whose number the device chooses, otherwise that of
    /// the entry. Its rights are those of this handle.
    ///
    /// # Errors
    /// [`GrantError`].
    fn create(&self) -> Result<Arc<dyn GrantedObject>, GrantError>;
    /// Removes the object.
    ///
    /// # Errors
    /// [`GrantError`].
    fn remove(&self) -> Result<(), GrantError>;
    /// Makes the object durable.
    ///
    /// # Errors
    /// [`GrantError`].
    fn flush(&self) -> Result<(), GrantError>;
    /// Creates the collection of the entry, or one whose number the device chooses. Its rights are
    /// those of this handle.
    ///
    /// # Errors
    /// [`GrantError`]; a handle that creates no collections is invalid.
    fn create_collection(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        Err(GrantError::Invalid)
    }
    /// Removes the collection. With `force` its memberships end first, otherwise it must be empty.
    ///
    /// # Errors
    /// [`GrantError`]; another object is invalid.
    fn remove_collection(&self, _force: bool) -> Result<(), GrantError> {
        Err(GrantError::Invalid)
    }
    /// Makes an object a member of this collection. Both need the right to set attributes.
    ///
    /// # Errors
    /// [`GrantError`]; another object, and a member of another partition, are invalid.
    fn add_member(&self, _member: &dyn GrantedObject) -> Result<(), GrantError> {
        Err(GrantError::Invalid)
    }
    /// Ends the membership of an object in this collection, with the rights as for adding it.
    ///
    /// # Errors
    /// [`GrantError`]; an object that is no member is not found.
    fn remove_member(&self, _member: &dyn GrantedObject) -> Result<(), GrantError> {
        Err(GrantError::Invalid)
    }
    /// Whether an object is a member of this collection, which needs READ, and the object GET_ATTR.
    ///
    /// # Errors
    /// [`GrantError`].
    fn is_member(&self, _member: &dyn GrantedObject) -> Result<bool, GrantError> {
        Err(GrantError::Invalid)
    }
}

/// Some object numbers, and where to continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantedList {
    /// Object numbers, ascending.
    pub numbers: Vec<u64>,
    /// The number to continue from; `None` at the end.
    pub next: Option<u64>,
}

/// Why an operation on a granted object failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GrantError {
    /// The capability does not permit it, or is no longer valid.
    #[error("access denied")]
    AccessDenied,
    /// The object does not exist any more.
    #[error("the object does not exist")]
    NotFound,
    /// The operation or a parameter does not fit the object.
    #[error("invalid operation or parameter")]
    Invalid,
    /// The object would become too long, or the transfer is.
    #[error("too large")]
    TooLarge,
    /// A quota or the disk is full.
    #[error("no space")]
    NoSpace,
    /// The collection has members.
    #[error("the collection is not empty")]
    NotEmpty,
    /// The store failed, or the device is busy for too long.
    #[error("input/output error")]
    Io,
}
