//! Policies of partitions about the functions in them.
//!
//! Does: keep the policies that were used lately, so that a run need not read one from the store.
//! Does not: read them.
//! Contract: a kept policy is used only while the store has counted no change of the partition. The
//! count is read before the policy, so a change meanwhile makes the entry useless, and never wrong.
//! At most [`POLICIES_MAX`] policies are kept.
//! Truth: docs/standards/active.md, attribute pages; docs/adr/0082-short-runs-of-functions.md.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_crypto::signature;
use sealstone_osd::AttributeId;
use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::{
    ALLOWED_CODE, FunctionAttributes, FunctionPolicy, POLICY, POLICY_ENTRIES_MAX, TRUSTED_KEYS,
    signed_message,
};
use sealstone_store::StoreError;

/// Maximum number of partitions whose policy is kept. Each has at most 512 entries of 32 bytes.
const POLICIES_MAX: usize = 32;

/// The policy page of a partition.
pub(crate) struct PartitionPolicy {
    /// `None` for a reserved code: nothing may run.
    policy: Option<FunctionPolicy>,
    values: Vec<(AttributeId, Vec<u8>)>,
}

struct CachedPolicy {
    partition: u64,
    changes: u64,
    policy: Arc<PartitionPolicy>,
}

/// The policies of a device; the entry that was used last is the last one.
#[derive(Default)]
pub(crate) struct PolicyCache(Mutex<VecDeque<CachedPolicy>>);

impl PolicyCache {
    /// Returns a policy as it was after `changes`; reads it with `read` if it is not kept.
    ///
    /// # Errors
    /// The error of `read`; nothing is kept then.
    pub(crate) fn get_or_read(
        &self,
        partition: u64,
        changes: u64,
        read: impl FnOnce() -> Result<PartitionPolicy, StoreError>,
    ) -> Result<Arc<PartitionPolicy>, StoreError> {
        let kept = {
            let mut policies = self.0.lock();
            let at = policies.iter().position(|entry| entry.partition == partition);
            at.and_then(|at| policies.remove(at)).filter(|entry| entry.changes == changes).map(|entry| {
                let policy = Arc::clone(&entry.policy);
                policies.push_back(entry);
                policy
            })
        };
        if let Some(policy) = kept {
            return Ok(policy);
        }
        let policy = Arc::new(read()?);
        let mut policies = self.0.lock();
        policies.retain(|entry| entry.partition != partition);
        policies.push_back(CachedPolicy { partition, changes, policy: Arc::clone(&policy) });
        if policies.len() > POLICIES_MAX {
            policies.pop_front();
        }
        Ok(policy)
    }
}

impl PartitionPolicy {
    /// Returns the policy of the attributes of its page.
    pub(crate) fn new(values: Vec<(AttributeId, Vec<u8>)>) -> Self {
        let policy =
            values.iter().find(|(id, _)| *id == POLICY).and_then(|(_, value)| value.first().copied());
        // A reserved code cannot be set; if it is stored nevertheless, nothing may run.
        let policy = policy.map_or(Some(FunctionPolicy::Any), FunctionPolicy::from_code);
        Self { policy, values }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Result<PartitionPolicy, StoreError> {
        Ok(PartitionPolicy::new(Vec::new()))
    }

    #[test]
    fn policy_is_read_once_per_change() {
        let cache = PolicyCache::default();
        let reads = std::cell::Cell::new(0);
        let get = |partition, changes| {
            let read = || {
                reads.set(reads.get() + 1);
                policy()
            };
            assert!(cache.get_or_read(partition, changes, read).is_ok());
            reads.get()
        };
        assert_eq!((get(1, 5), get(1, 5), get(2, 5), get(1, 5)), (1, 1, 2, 2));
        assert_eq!((get(1, 6), get(1, 6), get(2, 5)), (3, 3, 3));
        let failed = cache.get_or_read(3, 1, || Err(StoreError::NoSpace));
        assert!(failed.is_err());
        assert_eq!(get(3, 1), 4, "a failed read is not kept");
    }

    #[test]
    fn limit_drops_policy_used_longest_ago() {
        let cache = PolicyCache::default();
        let is_kept = |partition: u64| {
            let kept = std::cell::Cell::new(true);
            let read = || {
                kept.set(false);
                policy()
            };
            assert!(cache.get_or_read(partition, 1, read).is_ok());
            kept.get()
        };
        let limit = POLICIES_MAX as u64;
        assert!((1..=limit).all(|partition| !is_kept(partition)));
        assert!(is_kept(1) && !is_kept(limit + 1));
        assert!(is_kept(1) && !is_kept(2));
        assert_eq!(cache.0.lock().len(), POLICIES_MAX);
    }
}
