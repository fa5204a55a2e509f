//! From an admitted EXECUTE FUNCTION to a call of the service.
//!
//! Does: match object entries with extension capabilities, reserve memory for the code, copy it,
//! check its digest, its attributes and the policy of its partition.
//! Does not: run anything.
//! Contract: called under the lock of the function object, after the permit of the command. No byte
//! of the code is read before the service has admitted it. The code is a copy, so a write or
//! removal of the function object during a run has no effect on it.
//! Truth: docs/standards/active.md; docs/design/active.md, authority.

use std::sync::Arc;

use sealstone_crypto::RustCrypto;
use sealstone_osd::cdb::{ExecuteFunction, pointer};
use sealstone_osd::function::attributes::{FUNCTION_PAGE, FunctionAttributes};
use sealstone_osd::function::{
    CODE_DIGEST_LEN, EngineType, ExecuteRequest, INLINE_MAX, JobRequest, REPLY_HEADER_LEN, RunRequest,
};
use sealstone_osd::{CapabilityBytes, ObjectId};
use sealstone_seal::{Admitted, Denial, Permit, RequiredRights};

use super::granted::{DeviceGrant, ExecuteAuthority, GrantBasis};
use super::policy;
use crate::commands::data;
use crate::continued::Continued;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::function_fields::{DIGEST_FIELD, ENGINE_FIELD};
use crate::function_runner::{
    CodeRequest, FunctionCall, FunctionCaller, FunctionCode, GrantedObject, JobCall,
};
use crate::guard::CommandContext;
use crate::nexus::OsdNexus;
use crate::paper;
use crate::report::OsdRefusal;
use crate::stored_code::StoredCode;

/// Longest code of a function in bytes. It is in memory while a run waits for an engine.
pub(crate) const CODE_MAX: u64 = 64 << 20;

/// A call that can be made once no lock is held.
pub(crate) enum PreparedFunction {
    Run(Box<FunctionCall>),
    Job(JobCall),
}

/// The command whose function is prepared.
pub(crate) struct FunctionContext<'a> {
    pub(crate) device: &'a Arc<OsdDevice>,
    pub(crate) nexus: &'a Arc<OsdNexus>,
    pub(crate) command: &'a CommandContext<'a>,
    pub(crate) admitted: &'a Admitted<RustCrypto>,
    pub(crate) permit: &'a Permit,
}

/// A request whose authority was checked.
pub(crate) enum AuthorizedFunction {
    Run {
        request: RunRequest,
        objects: Vec<Arc<dyn GrantedObject>>,
        /// Byte of the segment that names the code.
        code_field: u16,
    },
    Job(JobRequest),
}

/// Checks the authority of an EXECUTE FUNCTION for the objects of its request.
pub(crate) fn authorize(
    context: &FunctionContext<'_>,
    execute: &ExecuteFunction,
    continued: &Continued,
) -> Result<AuthorizedFunction, OsdRefusal> {
    let segment = &continued.segment;
    let paper = segment.paper_function.as_ref().zip(continued.paper_function_at);
    let (request, code_field) = match (&segment.function, paper) {
        (Some(ExecuteRequest::Job(request)), _) => return Ok(AuthorizedFunction::Job(*request)),
        (Some(ExecuteRequest::Run(request)), _) => (request.clone(), DIGEST_FIELD),
        (None, Some((request, at))) if context.device.config.paper_functions => {
            let field = paper::functions::code_bundle_field(at);
            (paper::functions::run_request(request, field, execute.object, &segment.extensions)?, field)
        }
        (None, _) => return Err(OsdFailure::Field(pointer::CONTINUATION).into()),
    };
    let objects = grants(context, &request, &segment.extensions, &segment.proofs)?;
    Ok(AuthorizedFunction::Run { request, objects, code_field })
}

/// Prepares the call of an EXECUTE FUNCTION.
pub(crate) fn prepare(
    context: &FunctionContext<'_>,
    execute: &ExecuteFunction,
    authorized: AuthorizedFunction,
) -> Result<PreparedFunction, OsdRefusal> {
    let device = context.device;
    let runner = device.functions.get().ok_or(OsdFailure::NoFunctions)?;
    let allocation = usize::try_from(execute.allocation).unwrap_or(0);
    let inline_max = allocation.saturating_sub(REPLY_HEADER_LEN).min(INLINE_MAX);
    let audit = context.admitted.capability().map_or([0; 20], |capability| capability.audit);
    let initiator = context.nexus.initiator.clone();
    let caller = FunctionCaller::connected(audit, initiator, Arc::clone(context.nexus));
    let function = execute.object;
    let (request, mut objects, code_field) = match authorized {
        AuthorizedFunction::Job(request) => {
            return Ok(PreparedFunction::Job(JobCall { function, request, inline_max, caller }));
        }
        AuthorizedFunction::Run { request, objects, code_field } => (request, objects, code_field),
    };
    let result_object = if request.result_entry { objects.pop() } else { None };
    // Read before the code: a change meanwhile makes the entry useless, and never wrong.
    let changes = device.store.change_count(function);
    let cached = device.codes.get(function, changes);
    let attributes = match &cached {
        Some(code) => code.attributes.clone(),
        None => attributes(device, function)?,
    };
    let engine = engine(request.engine, attributes.engine)?;
    if !attributes.supports(request.api) {
        return Err(OsdFailure::FunctionVersion.into());
    }
    let length = match &cached {
        Some(code) => code.bytes.len(),
        None => code_length(device, function)?,
    };
    let requested = CodeRequest { function, bytes: length as u64, engine, api: request.api, caller: &caller };
    let reservation = runner.reserve_code(&requested).map_err(OsdFailure::Function)?;
    let StoredCode { bytes, digest, .. } = match cached {
        Some(code) => code,
        None => {
            let bytes = snapshot(device, function, length)?;
            let digest = *blake3::hash(&bytes).as_bytes();
            let stored = StoredCode { attributes: attributes.clone(), bytes, digest };
            device.codes.insert(function, changes, stored.clone(), stored.bytes.len());
            stored
        }
    };
    let code = FunctionCode { bytes, reservation };
    let agrees = |wanted: Option<[u8; CODE_DIGEST_LEN]>| wanted.is_none_or(|wanted| wanted == digest);
    if !agrees(request.digest) || !agrees(attributes.digest) {
        return Err(OsdFailure::Continuation(code_field).into());
    }
    policy::check(device, function.partition, &digest, &attributes)?;
    Ok(PreparedFunction::Run(Box::new(FunctionCall {
        function,
        code: Some(code),
        digest,
        attributes,
        engine,
        api: request.api,
        method: request.method,
        arguments: request.arguments,
        secret_arguments: request.secret_arguments,
        commit_on_success: request.commit_on_success,
        input_digests: request.input_digests,
        objects,
        result_object,
        job: request.job,
        timeout_ms: request.timeout_ms,
        inline_max,
        caller,
    })))
}

/// Creates a handle for each object entry: one extension capability each, in the order of the
/// entries.
fn grants(
    context: &FunctionContext<'_>,
    request: &RunRequest,
    extensions: &[CapabilityBytes],
    proofs: &[[u8; 32]],
) -> Result<Vec<Arc<dyn GrantedObject>>, OsdRefusal> {
    let FunctionContext { device, command, admitted, permit, .. } = context;
    let authority = |is_for_result: bool| {
        Arc::new(ExecuteAuthority {
            capability: admitted.capability().copied(),
            signed: admitted.signed_by(),
            need: RequiredRights::of(command.cdb),
            is_for_result,
        })
    };
    let (execute, store) = (authority(false), authority(true));
    let is_secured = admitted.capability().is_some();
    if is_secured && (extensions.len(), proofs.len()) != (request.objects.len(), request.objects.len()) {
        return Err(match extensions.len() < request.objects.len() {
            true => OsdRefusal::ExtensionDenied(Denial::Permission),
            false => OsdFailure::Field(pointer::CONTINUATION).into(),
        });
    }
    let mut grants: Vec<Arc<dyn GrantedObject>> = Vec::with_capacity(request.objects.len());
    for (index, entry) in request.objects.iter().enumerate() {
        let basis = match (is_secured, extensions.get(index), proofs.get(index)) {
            (true, Some(capability), Some(proof)) => {
                let extended = device.guard.extend(&***device, command, capability, proof);
                GrantBasis::Proven(extended.map_err(OsdRefusal::ExtensionDenied)?)
            }
            // NOSEC: nothing is authenticated anyway.
            _ => GrantBasis::Unsecured(**permit),
        };
        let is_result = request.result_entry && index + 1 == request.objects.len();
        let execute = if is_result { &store } else { &execute };
        grants.push(Arc::new(DeviceGrant::new(device, execute, basis, *entry, command.now_ms)?));
    }
    Ok(grants)
}

/// Returns the engine. The description of the function, which its publisher may have signed, cannot
/// be overridden.
fn engine(requested: Option<EngineType>, described: Option<EngineType>) -> Result<EngineType, OsdFailure> {
    match (requested, described) {
        (Some(requested), Some(described)) if requested != described => {
            Err(OsdFailure::Continuation(ENGINE_FIELD))
        }
        (_, Some(engine)) | (Some(engine), None) => Ok(engine),
        (None, None) => Err(OsdFailure::FunctionAttributes),
    }
}

/// Reads the function page.
fn attributes(device: &OsdDevice, function: ObjectId) -> Result<FunctionAttributes, OsdRefusal> {
    let values = device.store.attributes(function, Some(FUNCTION_PAGE))?;
    let value = |id| values.iter().find(|(one, _)| *one == id).map(|(_, value)| &value[..]);
    FunctionAttributes::parse(value).map_err(|id| OsdFailure::Attribute(id).into())
}

/// Returns the length of the code.
fn code_length(device: &OsdDevice, function: ObjectId) -> Result<usize, OsdRefusal> {
    let length = data::user_object(device, function)?.length;
    match usize::try_from(length) {
        Ok(fits) if length <= CODE_MAX => Ok(fits),
        _ => Err(OsdFailure::CodeTooLong(length).into()),
    }
}

/// Copies the code.
fn snapshot(device: &OsdDevice, function: ObjectId, length: usize) -> Result<Arc<[u8]>, OsdRefusal> {
    let mut code: Arc<[u8]> = std::iter::repeat_n(0, length).collect();
    let bytes = Arc::get_mut(&mut code).ok_or(OsdFailure::NoBuffer)?;
    let read = device.store.read(function, 0, bytes)?;
    // The length was read under the same lock.
    if read == length { Ok(code) } else { Err(OsdFailure::NoBuffer.into()) }
}
