//! Descriptor 0003h of the ASF paper. Only with `OsdConfig::paper_functions`.

use sealstone_osd::cdb::pointer;
use sealstone_osd::function::paper::PaperRequest;
use sealstone_osd::function::{ApiVersion, FunctionObject, RunRequest};
use sealstone_osd::{CapabilityBytes, ObjectId, Permissions};

use crate::failure::OsdFailure;

/// Low half of an object number.
const LOW: u64 = 0xFFFF_FFFF;

/// Converts a request. Each extension capability gives one handle, with the rights that it permits.
///
/// # Errors
/// Another object than that of the CDB, or a capability for an object that functions cannot access.
pub(crate) fn run_request(
    request: &PaperRequest,
    function: ObjectId,
    extensions: &[CapabilityBytes],
) -> Result<RunRequest, OsdFailure> {
    let wrong = || OsdFailure::Field(pointer::CONTINUATION);
    if u64::from(request.code_bundle) != function.object & LOW {
        return Err(wrong());
    }
    let mut objects = Vec::with_capacity(extensions.len());
    for bytes in extensions {
        let capability = bytes.parse().map_err(|_| wrong())?;
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
        result_entry: false,
        timeout_ms: request.timeout_ms,
        api: ApiVersion::CURRENT,
        digest: None,
        method: request.method.clone(),
        arguments: request.arguments.clone(),
        objects,
    })
}
