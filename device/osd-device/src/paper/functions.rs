//! Descriptor 0003h of the ASF paper, converted to a request of our own. Only with
//! `OsdConfig::paper_functions`.

use sealstone_osd::function::paper::PaperRequest;
use sealstone_osd::function::{ApiVersion, FunctionObject, RunRequest};
use sealstone_osd::{CapabilityBytes, ObjectId, Permissions};
use sealstone_seal::Denial;

use crate::failure::OsdFailure;
use crate::report::OsdRefusal;

/// Low half of an object number.
const LOW: u64 = 0xFFFF_FFFF;

/// Offset of CODE BUNDLE OBJECT_ID from the first byte of its descriptor.
const CODE_BUNDLE: u16 = 8;

/// Returns the byte of CODE BUNDLE OBJECT_ID in the segment. `at` is that of the descriptor.
pub(crate) const fn code_bundle_field(at: u16) -> u16 {
    at.saturating_add(CODE_BUNDLE)
}

/// Converts a request whose CODE BUNDLE OBJECT_ID is byte `field` of the segment. Each extension
/// capability gives one handle, with the rights that it permits.
///
/// # Errors
/// Another object than that of the CDB, or a capability for an object that functions cannot access.
pub(crate) fn run_request(
    request: &PaperRequest,
    field: u16,
    function: ObjectId,
    extensions: &[CapabilityBytes],
) -> Result<RunRequest, OsdRefusal> {
    if u64::from(request.code_bundle) != function.object & LOW {
        return Err(OsdFailure::Continuation(field).into());
    }
    let wrong = || OsdRefusal::ExtensionDenied(Denial::Permission);
    let mut objects = Vec::with_capacity(extensions.len());
    for bytes in extensions {
        let capability =
            bytes.parse().map_err(|error| OsdRefusal::ExtensionDenied(Denial::Capability(error)))?;
        let other = capability.permissions.without(FunctionObject::RIGHTS);
        let object = capability.descriptor.allowed().ok_or_else(wrong)?;
        let rights = capability.permissions.without(other);
        let kind = match object.is_partition() {
            // A capability to create objects names number 0.
            true => sealstone_osd::ObjectType::Partition,
            false => capability.object_type,
        };
        // CREATE of an existing object means nothing.
        let rights = if object.is_partition() { rights } else { rights.without(Permissions::CREATE) };
        objects.push(FunctionObject { object, kind, rights });
    }
    if !objects.iter().all(FunctionObject::is_valid) {
        return Err(wrong());
    }
    Ok(RunRequest {
        engine: None,
        secret_arguments: false,
        commit_on_success: false,
        input_digests: false,
        result_entry: false,
        job: None,
        timeout_ms: request.timeout_ms,
        api: ApiVersion::FIRST,
        digest: None,
        method: request.method.clone(),
        arguments: request.arguments.clone(),
        objects,
    })
}
