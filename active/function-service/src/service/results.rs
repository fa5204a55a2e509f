//! Results, staged output and receipts at the end of a run.

use std::sync::Arc;

use sealstone_osd::attribute::user_timestamps::DATA_MODIFIED;
use sealstone_osd::function::{INLINE_MAX, JobId};
use sealstone_osd::{ObjectId, ObjectType, Permissions};
use sealstone_osd_device::{FunctionCall, GrantError, GrantedObject};
use sealstone_seal::{FunctionReceipt, ReceiptInput, ReceiptLimits};
use thiserror::Error;

use super::ServiceState;
use crate::invocation::{InvocationEnd, call_errno};
use crate::job_table::JobResult;
use crate::limits::RunLimits;
use crate::staging::StagedOutput;

/// Bytes of a result that are written at once.
const RESULT_PIECE: usize = 1 << 20;

/// The result of a run that succeeded, or the empty one of another run.
pub(super) struct PublishedResult {
    pub(super) result: JobResult,
    /// BLAKE3-256 of all bytes of the result.
    pub(super) digest: [u8; 32],
}

impl PublishedResult {
    /// Returns the result of a run that failed.
    pub(super) fn empty() -> Self {
        Self { result: JobResult::default(), digest: *blake3::hash(b"").as_bytes() }
    }
}

/// A result in an object.
struct StoredResult {
    object: Arc<dyn GrantedObject>,
    /// Whether the device chose its number. The caller removes the one that it named.
    is_own: bool,
}

impl StoredResult {
    /// Removes the object of the device; returns it if that failed.
    fn discard(self) -> Option<ObjectId> {
        (self.is_own && self.object.remove().is_err()).then(|| self.object.object())
    }
}

/// Why a function that returned 0 has no result. `kept` is a result object that the rights of its
/// handle do not permit to remove.
#[derive(Debug, Error)]
pub(super) enum PublishError {
    #[error("the result has {0} bytes; more than {INLINE_MAX} need an object for the result")]
    NoPartition(usize),
    #[error("the result object could not be stored: {error}{}", kept_text(*kept))]
    Store { error: GrantError, kept: Option<ObjectId> },
    #[error("the output could not be committed: {error}{}", kept_text(*kept))]
    Commit { error: GrantError, kept: Option<ObjectId> },
}

impl PublishError {
    /// Returns the error code of the run: a negative error number, or 0.
    pub(super) fn code(&self) -> i32 {
        match self {
            Self::NoPartition(_) => 0,
            Self::Store { error, .. } | Self::Commit { error, .. } => call_errno(*error).result() as i32,
        }
    }
}

fn kept_text(kept: Option<ObjectId>) -> String {
    kept.map_or_else(String::new, |id| {
        format!("; object {:#x} of the result could not be removed", id.object)
    })
}

/// The objects of a run as they were at its start.
pub(super) struct RunInputs(Vec<ReceiptInput>);

impl RunInputs {
    pub(super) fn of(call: &FunctionCall) -> Self {
        Self(call.objects.iter().map(|object| input(&**object)).collect())
    }

    /// Returns the inputs with a note whether they are the same at the end, and with the digests of
    /// what the function read.
    fn at_end(&self, call: &FunctionCall, digests: &[Option<[u8; 32]>]) -> Vec<ReceiptInput> {
        let digests = digests.iter().copied().chain(std::iter::repeat(None));
        let inputs = self.0.iter().zip(&call.objects).zip(digests);
        inputs
            .map(|((before, object), digest)| {
                let after = input(&**object);
                let unchanged = (before.length, before.version) == (after.length, after.version);
                ReceiptInput { unchanged: unchanged && before.version != 0, digest, ..*before }
            })
            .collect()
    }
}

fn input(object: &dyn GrantedObject) -> ReceiptInput {
    let (rights, is_user) = (object.rights(), object.kind() == ObjectType::User);
    let length = if is_user && rights.contains(Permissions::READ) { object.length().ok() } else { None };
    let version = if is_user && rights.contains(Permissions::GET_ATTR) {
        object.attribute(DATA_MODIFIED).ok().flatten().map(|value| number(&value))
    } else {
        None
    };
    ReceiptInput {
        object: object.object(),
        rights: rights.bytes()[0],
        kind: object.kind() as u8,
        length: length.unwrap_or(0),
        version: version.unwrap_or(0),
        unchanged: false,
        digest: None,
    }
}

/// Returns a big-endian number of at most 8 bytes; 0 for longer values.
fn number(value: &[u8]) -> u64 {
    if value.len() > 8 { 0 } else { value.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) }
}

impl ServiceState {
    /// Stores the result of a function that succeeded, then commits staged output. After an error
    /// no result exists.
    pub(super) fn publish(
        call: &FunctionCall,
        stage: Option<&StagedOutput>,
        bytes: Vec<u8>,
    ) -> Result<PublishedResult, PublishError> {
        let object = if bytes.len() > INLINE_MAX { Some(store(call, &bytes)?) } else { None };
        if let Some(Err(error)) = stage.map(StagedOutput::commit) {
            return Err(PublishError::Commit { error, kept: object.and_then(StoredResult::discard) });
        }
        let digest = *blake3::hash(&bytes).as_bytes();
        let length = bytes.len() as u64;
        let object = object.map(|stored| stored.object.object());
        let bytes = if object.is_some() { Vec::new() } else { bytes };
        Ok(PublishedResult { result: JobResult { length, bytes, object, receipt: Vec::new() }, digest })
    }

    /// Returns the receipt of a run; empty if the device has no key for it now.
    pub(super) fn receipt(
        &self,
        id: JobId,
        call: &FunctionCall,
        inputs: &RunInputs,
        limits: &RunLimits,
        end: &InvocationEnd,
        published: &PublishedResult,
        (started_ms, ended_ms): (u64, u64),
    ) -> Vec<u8> {
        let Some(key) = (self.receipts)() else { return Vec::new() };
        let receipt = FunctionReceipt {
            engine: call.engine.code(),
            exit: end.exit.code(),
            error: end.error,
            secret_arguments: call.secret_arguments,
            system_id: *key.system_id(),
            job: id.0,
            function: call.function,
            code_digest: call.digest,
            arguments_digest: arguments_digest(call),
            result_digest: published.digest,
            result_length: published.result.length,
            result_object: published.result.object,
            api: (call.api.major, call.api.minor),
            audit: call.caller.audit,
            started_ms,
            ended_ms,
            limits: ReceiptLimits {
                wall_ms: u64::try_from(limits.wall.as_millis()).unwrap_or(u64::MAX),
                cpu_ms: limits.cpu_s.saturating_mul(1000),
                memory: limits.memory,
                output: limits.output,
                calls: limits.calls,
                bytes: limits.bytes,
            },
            bytes_read: end.usage.bytes_read,
            bytes_written: end.usage.bytes_written,
            cpu_us: end.usage.cpu_us,
            inputs: inputs.at_end(call, &end.read_digests),
        };
        key.seal(&receipt).unwrap_or_default()
    }
}

/// Returns the digest of method and arguments; secret arguments are left out.
fn arguments_digest(call: &FunctionCall) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&u32::try_from(call.method.len()).unwrap_or(u32::MAX).to_be_bytes());
    hasher.update(call.method.as_bytes());
    if !call.secret_arguments {
        hasher.update(&call.arguments);
    }
    *hasher.finalize().as_bytes()
}

/// Stores a result: in the object of the call for it, or in a new one, through the first handle
/// that may create objects.
fn store(call: &FunctionCall, bytes: &[u8]) -> Result<StoredResult, PublishError> {
    let (object, is_own) = match &call.result_object {
        Some(object) => (object.create(), false),
        None => (partition(call, bytes)?.create(), true),
    };
    let object = object.map_err(|error| PublishError::Store { error, kept: None })?;
    let stored = StoredResult { object, is_own };
    let mut pieces = bytes.chunks(RESULT_PIECE).enumerate();
    let written =
        pieces.try_for_each(|(index, piece)| stored.object.write((index * RESULT_PIECE) as u64, piece));
    match written {
        Ok(()) => Ok(stored),
        Err(error) => Err(PublishError::Store { error, kept: stored.discard() }),
    }
}

/// Returns the first handle that may create objects.
fn partition<'a>(call: &'a FunctionCall, bytes: &[u8]) -> Result<&'a Arc<dyn GrantedObject>, PublishError> {
    let creates = |object: &&Arc<dyn GrantedObject>| {
        object.kind() == ObjectType::Partition && object.rights().contains(Permissions::CREATE)
    };
    call.objects.iter().find(creates).ok_or(PublishError::NoPartition(bytes.len()))
}
