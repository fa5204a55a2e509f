//! The policy of a partition about the functions in it.
//!
//! Truth: docs/standards/active.md, attribute pages.

use sealstone_crypto::signature;
use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::{
    ALLOWED_CODE, FunctionAttributes, FunctionPolicy, POLICY, POLICY_ENTRIES_MAX, POLICY_PAGE, TRUSTED_KEYS,
    signed_message,
};
use sealstone_osd::{AttributeId, ObjectId};

use crate::device::OsdDevice;
use crate::failure::OsdFailure;

/// Checks whether a function may run.
pub(crate) fn check(
    device: &OsdDevice,
    partition: u64,
    digest: &[u8; CODE_DIGEST_LEN],
    attributes: &FunctionAttributes,
) -> Result<(), OsdFailure> {
    let values = device.store.attributes(ObjectId::of_partition(partition), Some(POLICY_PAGE))?;
    let policy = values.iter().find(|(id, _)| *id == POLICY).and_then(|(_, value)| value.first().copied());
    // A reserved code cannot be set; if it is stored nevertheless, nothing may run.
    let policy = policy.map_or(Some(FunctionPolicy::Any), FunctionPolicy::from_code);
    let lists = |first: AttributeId, wanted: &[u8]| {
        let numbers = first.number..first.number + POLICY_ENTRIES_MAX;
        values.iter().any(|(id, value)| numbers.contains(&id.number) && value == wanted)
    };
    let allowed = match policy {
        None => false,
        Some(FunctionPolicy::Any) => true,
        Some(FunctionPolicy::AllowList) => lists(ALLOWED_CODE, digest),
        Some(FunctionPolicy::Signed) => match (&attributes.publisher_key, &attributes.signature) {
            (Some(key), Some(signed)) => {
                lists(TRUSTED_KEYS, key)
                    && signature::verify(key, &signed_message(digest, attributes), signed)
            }
            _ => false,
        },
    };
    if allowed { Ok(()) } else { Err(OsdFailure::FunctionPolicy) }
}
