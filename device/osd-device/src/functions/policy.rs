//! The policy of a partition about the functions in it.
//!
//! Truth: docs/standards/active.md, attribute pages.

use sealstone_osd::ObjectId;
use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::{FunctionAttributes, POLICY_PAGE};

use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::policy_cache::PartitionPolicy;

/// Checks whether a function may run.
pub(crate) fn check(
    device: &OsdDevice,
    partition: u64,
    digest: &[u8; CODE_DIGEST_LEN],
    attributes: &FunctionAttributes,
) -> Result<(), OsdFailure> {
    let id = ObjectId::of_partition(partition);
    // Before the policy is read.
    let changes = device.store.change_count(id);
    let read = || Ok(PartitionPolicy::new(device.store.attributes(id, Some(POLICY_PAGE))?));
    let policy = device.policies.get_or_read(partition, changes, read)?;
    if policy.permits(digest, attributes) { Ok(()) } else { Err(OsdFailure::FunctionPolicy) }
}
