//! The check of a function against the policy of its partition.
//!
//! Truth: docs/standards/active.md, attribute pages.

use std::sync::Arc;

use sealstone_osd::ObjectId;
use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::{FunctionAttributes, POLICY_PAGE};

use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::partition_policy::PartitionPolicy;

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
    let policy = match device.policies.get(id, changes) {
        Some(policy) => policy,
        None => {
            let policy = Arc::new(PartitionPolicy::new(device.store.attributes(id, Some(POLICY_PAGE))?));
            device.policies.insert(id, changes, Arc::clone(&policy), policy.bytes());
            policy
        }
    };
    if policy.permits(digest, attributes) { Ok(()) } else { Err(OsdFailure::FunctionPolicy) }
}
