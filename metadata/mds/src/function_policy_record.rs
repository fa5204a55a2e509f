//! The stored policy about functions, and the attributes of a partition that express it.

use sealstone_mds_protocol::{ErrorCode, record};
use sealstone_osd::AttributeId;
use sealstone_osd::function::attributes::{
    ALLOWED_CODE, FunctionPolicy, POLICY, POLICY_ENTRIES_MAX, TRUSTED_KEYS,
};

use crate::error::{MdsError, Result};

/// Bytes of a key or digest.
const ENTRY_LEN: usize = 32;

record! {
    /// The policy of partitions.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct FunctionPolicyRecord {
        /// Code of the policy.
        pub policy: u8,
        /// Public keys of trusted publishers.
        pub keys: Vec<[u8; ENTRY_LEN]>,
        /// Digests of allowed code.
        pub digests: Vec<[u8; ENTRY_LEN]>,
    }
}

record! {
    /// A device that does not have the recorded policy yet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PolicyDueRecord {
        /// Names the change of the policy; random.
        pub change: u64,
        /// Whether the device could not be reached when it was to get the policy.
        pub is_missed: bool,
    }
}

/// An attribute and its value; an empty value removes it.
pub type AttributeValue = (AttributeId, Vec<u8>);

impl FunctionPolicyRecord {
    pub(crate) fn check(&self) -> Result<()> {
        if FunctionPolicy::from_code(self.policy).is_none() {
            return Err(MdsError::refused(ErrorCode::Invalid, "unknown policy about functions"));
        }
        let max = POLICY_ENTRIES_MAX as usize;
        if self.keys.len() > max || self.digests.len() > max {
            return Err(MdsError::refused(ErrorCode::Limit, format!("a list has at most {max} entries")));
        }
        Ok(())
    }

    /// Returns the attributes of a new partition.
    pub(crate) fn attributes(&self) -> Vec<AttributeValue> {
        let list = |first: AttributeId, entries: &[[u8; ENTRY_LEN]]| -> Vec<AttributeValue> {
            let numbered = (first.number..).zip(entries);
            numbered.map(|(number, entry)| (AttributeId::new(first.page, number), entry.to_vec())).collect()
        };
        let mut all = vec![(POLICY, vec![self.policy])];
        all.extend(list(TRUSTED_KEYS, &self.keys));
        all.extend(list(ALLOWED_CODE, &self.digests));
        all
    }
}
