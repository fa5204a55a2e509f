//! The policy of a partition about the functions in it.
//!
//! Truth: docs/standards/active.md, attribute pages.

use sealstone_crypto::signature;
use sealstone_osd::AttributeId;
use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::{
    ALLOWED_CODE, FunctionAttributes, FunctionPolicy, POLICY, POLICY_ENTRIES_MAX, TRUSTED_KEYS,
    signed_message,
};

/// The policy page of a partition.
pub(crate) struct PartitionPolicy {
    /// `None` for a reserved code: nothing may run.
    policy: Option<FunctionPolicy>,
    values: Vec<(AttributeId, Vec<u8>)>,
}

impl PartitionPolicy {
    /// Maximum bytes of all policies that are kept. Each has at most 512 entries of 32 bytes.
    pub(crate) const CACHE_BYTES_MAX: usize = 1 << 20;

    /// Returns the policy of the attributes of its page.
    pub(crate) fn new(values: Vec<(AttributeId, Vec<u8>)>) -> Self {
        let policy =
            values.iter().find(|(id, _)| *id == POLICY).and_then(|(_, value)| value.first().copied());
        // A reserved code cannot be set; if it is stored nevertheless, nothing may run.
        let policy = policy.map_or(Some(FunctionPolicy::Any), FunctionPolicy::from_code);
        Self { policy, values }
    }

    /// Returns the bytes of the attributes.
    pub(crate) fn bytes(&self) -> usize {
        self.values.iter().map(|(_, value)| value.len()).sum()
    }

    fn lists(&self, first: AttributeId, wanted: &[u8]) -> bool {
        let numbers = first.number..first.number + POLICY_ENTRIES_MAX;
        self.values.iter().any(|(id, value)| numbers.contains(&id.number) && value == wanted)
    }

    /// Whether a function may run.
    pub(crate) fn permits(&self, digest: &[u8; CODE_DIGEST_LEN], attributes: &FunctionAttributes) -> bool {
        match self.policy {
            None => false,
            Some(FunctionPolicy::Any) => true,
            Some(FunctionPolicy::AllowList) => self.lists(ALLOWED_CODE, digest),
            Some(FunctionPolicy::Signed) => match (&attributes.publisher_key, &attributes.signature) {
                (Some(key), Some(signed)) => {
                    self.lists(TRUSTED_KEYS, key)
                        && signature::verify(key, &signed_message(digest, attributes), signed)
                }
                _ => false,
            },
        }
    }
}
