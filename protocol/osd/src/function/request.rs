//! Descriptor FF01h: a request to run a function, or about a job.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use zeroize::Zeroizing;

use super::{
    ARGUMENTS_MAX, ApiVersion, CODE_DIGEST_LEN, EngineType, JOB_ID_LEN, JobId, METHOD_MAX, OBJECT_ENTRY_LEN,
    OBJECTS_MAX, REQUEST_HEADER_LEN, TIMEOUT_MAX_MS,
};
use crate::bytes::{array, u8_at, u16_at, u32_at, u64_at};
use crate::{ObjectId, ObjectType, Permissions};

/// The only format.
const FORMAT: u8 = 0x01;
/// OPERATION code of [`ExecuteRequest::Run`].
const RUN: u8 = 1;
/// FLAGS: arguments are secret.
const SECRET: u8 = 0x01;
/// FLAGS: output is committed on success.
const COMMIT: u8 = 0x02;
/// FLAGS: the last entry is the object for a result that does not fit into a reply.
const RESULT: u8 = 0x04;
/// FLAGS: the receipt has digests of all bytes that are read for the function.
const INPUT_DIGESTS: u8 = 0x08;

/// Offsets in the fixed part.
mod at {
    pub(super) const OPERATION: usize = 1;
    pub(super) const ENGINE: usize = 2;
    pub(super) const FLAGS: usize = 3;
    pub(super) const API: usize = 4;
    pub(super) const TIMEOUT: usize = 8;
    pub(super) const METHOD_LENGTH: usize = 12;
    pub(super) const OBJECT_COUNT: usize = 14;
    pub(super) const ARGUMENTS_LENGTH: usize = 16;
    pub(super) const RESERVED: usize = 20;
    pub(super) const OFFSET: usize = 24;
    pub(super) const JOB: usize = 32;
    pub(super) const DIGEST: usize = 48;
}

/// A request of EXECUTE FUNCTION.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecuteRequest {
    /// Runs the function object.
    Run(RunRequest),
    /// Acts on a job of the function object.
    Job(JobRequest),
}

/// A run of a function.
#[derive(Clone, PartialEq, Eq)]
pub struct RunRequest {
    /// The engine; `None` for that of the function's attributes.
    pub engine: Option<EngineType>,
    /// Whether the arguments are secret: never logged, and cleared after use.
    pub secret_arguments: bool,
    /// Whether writes become visible only if the function succeeds.
    pub commit_on_success: bool,
    /// Whether the receipt of a synchronous run has digests of all bytes that are read. The receipt
    /// of an asynchronous one always has them.
    pub input_digests: bool,
    /// Longest run in milliseconds, up to [`TIMEOUT_MAX_MS`]; 0 starts an asynchronous job.
    pub timeout_ms: u32,
    /// The API version that the client requests.
    pub api: ApiVersion,
    /// BLAKE3-256 of the code; `None` if the client does not check it.
    pub digest: Option<[u8; CODE_DIGEST_LEN]>,
    /// The method, UTF-8, at most [`METHOD_MAX`] bytes; empty for the default method.
    pub method: String,
    /// The arguments, at most [`ARGUMENTS_MAX`] bytes.
    pub arguments: Zeroizing<Vec<u8>>,
    /// The objects that the function may access, at most [`OBJECTS_MAX`].
    pub objects: Vec<FunctionObject>,
    /// Whether the last entry is an object for a result that does not fit into a reply, with
    /// [`FunctionObject::RESULT_RIGHTS`]. The function has no handle of it.
    pub result_entry: bool,
    /// Id for an asynchronous job: 16 random bytes of the client, which knows it before the job
    /// starts. `None` if the device chooses one.
    pub job: Option<JobId>,
}

impl fmt::Debug for RunRequest {
    /// Omits the arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunRequest")
            .field("engine", &self.engine)
            .field("method", &self.method)
            .field("arguments_len", &self.arguments.len())
            .field("objects", &self.objects)
            .field("timeout_ms", &self.timeout_ms)
            .field("api", &self.api)
            .finish_non_exhaustive()
    }
}

/// An object that a function may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionObject {
    /// The object.
    pub object: ObjectId,
    /// Its type: user object, collection or partition.
    pub kind: ObjectType,
    /// The requested rights, of [`FunctionObject::RIGHTS`].
    pub rights: Permissions,
}

impl FunctionObject {
    /// Rights that a function can have: the first byte of the permissions bit mask.
    pub const RIGHTS: Permissions = Permissions::from_bytes([0xFF, 0, 0, 0, 0]);

    /// Rights of the entry for a result: the device creates the object when it is needed.
    pub const RESULT_RIGHTS: Permissions = Permissions::CREATE.union(Permissions::WRITE);

    /// Whether the entry is valid: some rights, all of them in [`FunctionObject::RIGHTS`], and an
    /// id that fits the type.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        let id = match self.kind {
            ObjectType::User => self.object.partition != 0 && self.object.object != 0,
            // Number 0: the device chooses that of a new collection.
            ObjectType::Collection => {
                self.object.partition != 0
                    && (self.object.object != 0 || self.rights.contains(Permissions::CREATE))
            }
            ObjectType::Partition => self.object.is_partition(),
            ObjectType::Root => false,
        };
        id && !self.rights.is_empty() && Self::RIGHTS.contains(self.rights)
    }

    fn read(entry: &[u8]) -> Option<Self> {
        let reserved: [u8; 6] = array(entry, 18)?;
        let object = Self {
            object: ObjectId::new(u64_at(entry, 0)?, u64_at(entry, 8)?),
            rights: Permissions::from_bytes([u8_at(entry, 16)?, 0, 0, 0, 0]),
            kind: ObjectType::from_byte(u8_at(entry, 17)?)?,
        };
        (reserved == [0; 6] && object.is_valid()).then_some(object)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.object.partition.to_be_bytes());
        out.extend(self.object.object.to_be_bytes());
        out.extend([self.rights.bytes()[0], self.kind as u8, 0, 0, 0, 0, 0, 0]);
    }
}

/// A request about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobRequest {
    /// The action.
    pub action: JobAction,
    /// The job.
    pub job: JobId,
}

/// An action on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAction {
    /// Returns the state.
    Status,
    /// Waits until the job ends, at most this many milliseconds, and returns the state.
    Wait {
        /// Up to [`TIMEOUT_MAX_MS`].
        timeout_ms: u32,
    },
    /// Stops the job.
    Cancel,
    /// Returns log bytes from an offset on.
    Log {
        /// Offset in all log bytes of the job.
        offset: u64,
    },
    /// Returns result bytes from an offset on, and the receipt.
    Result {
        /// Offset in the result.
        offset: u64,
    },
}

impl JobAction {
    /// Returns code, timeout and offset.
    const fn fields(self) -> (u8, u32, u64) {
        match self {
            Self::Status => (2, 0, 0),
            Self::Wait { timeout_ms } => (3, timeout_ms, 0),
            Self::Cancel => (4, 0, 0),
            Self::Log { offset } => (5, 0, offset),
            Self::Result { offset } => (6, 0, offset),
        }
    }

    fn from_fields(code: u8, timeout_ms: u32, offset: u64) -> Option<Self> {
        let action = match code {
            2 => Self::Status,
            3 => Self::Wait { timeout_ms },
            4 => Self::Cancel,
            5 => Self::Log { offset },
            6 => Self::Result { offset },
            _ => return None,
        };
        (action.fields() == (code, timeout_ms, offset)).then_some(action)
    }
}

impl ExecuteRequest {
    /// Parses the data of descriptor FF01h.
    ///
    /// # Errors
    /// The offset of the first wrong field.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, usize> {
        let header = data.get(..REQUEST_HEADER_LEN).ok_or(0_usize)?;
        if u8_at(header, 0) != Some(FORMAT) {
            return Err(0);
        }
        let operation = u8_at(header, at::OPERATION).ok_or(at::OPERATION)?;
        if u32_at(header, at::RESERVED) != Some(0) {
            return Err(at::RESERVED);
        }
        let timeout_ms = u32_at(header, at::TIMEOUT).ok_or(at::TIMEOUT)?;
        if timeout_ms > TIMEOUT_MAX_MS {
            return Err(at::TIMEOUT);
        }
        if operation == RUN {
            return run(header, data, timeout_ms).map(Self::Run);
        }
        let offset = u64_at(header, at::OFFSET).ok_or(at::OFFSET)?;
        let action = JobAction::from_fields(operation, timeout_ms, offset).ok_or(at::OPERATION)?;
        let job: [u8; JOB_ID_LEN] = array(header, at::JOB).ok_or(at::JOB)?;
        if job == JobId::NONE.0 {
            return Err(at::JOB);
        }
        let unused =
            [(at::ENGINE, at::TIMEOUT), (at::METHOD_LENGTH, at::RESERVED), (at::DIGEST, header.len())];
        for (from, to) in unused {
            if header.get(from..to).is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)) {
                return Err(from);
            }
        }
        if data.len() != REQUEST_HEADER_LEN {
            return Err(REQUEST_HEADER_LEN);
        }
        Ok(Self::Job(JobRequest { action, job: JobId(job) }))
    }

    /// Returns the data of descriptor FF01h; `None` if a limit is exceeded or an entry is invalid.
    ///
    /// The buffer is cleared when it is dropped, since arguments may be secret.
    #[must_use]
    pub fn encode(&self) -> Option<Zeroizing<Vec<u8>>> {
        let mut header = [0; REQUEST_HEADER_LEN];
        header[0] = FORMAT;
        let mut out = Zeroizing::new(Vec::new());
        match self {
            Self::Job(request) => {
                let (code, timeout_ms, offset) = request.action.fields();
                header[at::OPERATION] = code;
                header[at::TIMEOUT..][..4].copy_from_slice(&timeout_ms.to_be_bytes());
                header[at::OFFSET..][..8].copy_from_slice(&offset.to_be_bytes());
                header[at::JOB..][..JOB_ID_LEN].copy_from_slice(&request.job.0);
                out.extend_from_slice(&header);
            }
            Self::Run(request) => {
                let tail = request.objects.len() * OBJECT_ENTRY_LEN + request.method.len();
                out.reserve_exact(REQUEST_HEADER_LEN + tail + request.arguments.len());
                request.write_header(&mut header)?;
                out.extend_from_slice(&header);
                request.objects.iter().for_each(|object| object.write(&mut out));
                out.extend_from_slice(request.method.as_bytes());
                out.extend_from_slice(&request.arguments);
            }
        }
        // Parsing again decides what is legal.
        (Self::parse(&out).as_ref() == Ok(self)).then_some(out)
    }
}

impl RunRequest {
    fn write_header(&self, header: &mut [u8; REQUEST_HEADER_LEN]) -> Option<()> {
        header[at::OPERATION] = RUN;
        header[at::ENGINE] = self.engine.map_or(0, EngineType::code);
        let flags = [
            (self.secret_arguments, SECRET),
            (self.commit_on_success, COMMIT),
            (self.result_entry, RESULT),
            (self.input_digests, INPUT_DIGESTS),
        ];
        header[at::FLAGS] = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        header[at::API..][..ApiVersion::LEN].copy_from_slice(&self.api.bytes());
        header[at::TIMEOUT..][..4].copy_from_slice(&self.timeout_ms.to_be_bytes());
        let method = u16::try_from(self.method.len()).ok()?;
        header[at::METHOD_LENGTH..][..2].copy_from_slice(&method.to_be_bytes());
        let objects = u16::try_from(self.objects.len()).ok()?;
        header[at::OBJECT_COUNT..][..2].copy_from_slice(&objects.to_be_bytes());
        let arguments = u32::try_from(self.arguments.len()).ok()?;
        header[at::ARGUMENTS_LENGTH..][..4].copy_from_slice(&arguments.to_be_bytes());
        header[at::JOB..][..JOB_ID_LEN].copy_from_slice(&self.job.unwrap_or(JobId::NONE).0);
        header[at::DIGEST..][..CODE_DIGEST_LEN].copy_from_slice(&self.digest.unwrap_or_default());
        Some(())
    }
}

/// Parses a request to run a function.
fn run(header: &[u8], data: &[u8], timeout_ms: u32) -> Result<RunRequest, usize> {
    let engine = match u8_at(header, at::ENGINE).ok_or(at::ENGINE)? {
        0 => None,
        code => Some(EngineType::from_code(code).ok_or(at::ENGINE)?),
    };
    let known = SECRET | COMMIT | RESULT | INPUT_DIGESTS;
    let flags = u8_at(header, at::FLAGS).filter(|flags| flags & !known == 0).ok_or(at::FLAGS)?;
    let method_length = usize::from(u16_at(header, at::METHOD_LENGTH).ok_or(at::METHOD_LENGTH)?);
    if method_length > METHOD_MAX {
        return Err(at::METHOD_LENGTH);
    }
    let count = usize::from(u16_at(header, at::OBJECT_COUNT).ok_or(at::OBJECT_COUNT)?);
    if count > OBJECTS_MAX {
        return Err(at::OBJECT_COUNT);
    }
    let arguments_length = u32_at(header, at::ARGUMENTS_LENGTH)
        .and_then(|length| usize::try_from(length).ok())
        .filter(|length| *length <= ARGUMENTS_MAX)
        .ok_or(at::ARGUMENTS_LENGTH)?;
    if u64_at(header, at::OFFSET) != Some(0) {
        return Err(at::OFFSET);
    }
    let job = JobId(array(header, at::JOB).ok_or(at::JOB)?);
    // The client of a synchronous job does not need an id before its end.
    if job != JobId::NONE && timeout_ms != 0 {
        return Err(at::JOB);
    }
    let objects_end = REQUEST_HEADER_LEN + count * OBJECT_ENTRY_LEN;
    let method_end = objects_end + method_length;
    if data.len() != method_end + arguments_length {
        return Err(at::ARGUMENTS_LENGTH);
    }
    let entries = data.get(REQUEST_HEADER_LEN..objects_end).ok_or(at::OBJECT_COUNT)?;
    let mut objects = Vec::with_capacity(count);
    for (index, entry) in entries.chunks_exact(OBJECT_ENTRY_LEN).enumerate() {
        objects.push(FunctionObject::read(entry).ok_or(REQUEST_HEADER_LEN + index * OBJECT_ENTRY_LEN)?);
    }
    if flags & RESULT != 0 {
        let last = objects.last().ok_or(at::OBJECT_COUNT)?;
        if (last.kind, last.rights) != (ObjectType::User, FunctionObject::RESULT_RIGHTS) {
            return Err(objects_end - OBJECT_ENTRY_LEN);
        }
    }
    let method = data.get(objects_end..method_end).and_then(|bytes| core::str::from_utf8(bytes).ok());
    let method = method.filter(|method| !method.chars().any(char::is_control)).ok_or(objects_end)?;
    let arguments = data.get(method_end..).ok_or(at::ARGUMENTS_LENGTH)?;
    let digest: [u8; CODE_DIGEST_LEN] = array(header, at::DIGEST).ok_or(at::DIGEST)?;
    Ok(RunRequest {
        engine,
        secret_arguments: flags & SECRET != 0,
        commit_on_success: flags & COMMIT != 0,
        input_digests: flags & INPUT_DIGESTS != 0,
        result_entry: flags & RESULT != 0,
        timeout_ms,
        api: ApiVersion::from_bytes(array(header, at::API).ok_or(at::API)?),
        digest: Some(digest).filter(|digest| *digest != [0; CODE_DIGEST_LEN]),
        method: method.to_string(),
        arguments: Zeroizing::new(arguments.to_vec()),
        objects,
        job: Some(job).filter(|job| *job != JobId::NONE),
    })
}
