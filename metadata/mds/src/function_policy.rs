//! Which functions devices may run: the policy of partitions with files, for new devices.
//!
//! Does: stores the policy that administrators set, and returns it as attributes of a partition.
//! Does not: change devices in use; `sealstone fn policy` does.
//! Contract: a new partition gets the policy in the command that creates it, and a new device
//! before it is taken into use. So none runs a function that the policy excludes.
//! Truth: docs/standards/mds/functions.md §5.12, policy.

use sealstone_mds_protocol::{ErrorCode, Response};
use sealstone_osd::AttributeId;
use sealstone_osd::function::attributes::{ALLOWED_CODE, POLICY_ENTRIES_MAX, TRUSTED_KEYS};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::function_policy_record::{AttributeValue, FunctionPolicyRecord};
use crate::keys;
use crate::records::{load, save};
use crate::server::Mds;

impl Mds {
    /// Stores the policy of a partition, or of all present and future ones.
    pub(crate) fn set_function_policy(
        &self,
        principal: &Principal,
        partition: Option<u64>,
        policy: &FunctionPolicyRecord,
    ) -> Result<Response> {
        if !principal.is_admin() {
            return Err(MdsError::refused(ErrorCode::Denied, "administrators set the policy of functions"));
        }
        policy.check()?;
        if let Some(partition) = partition {
            self.require_file_partition(partition)?;
        }
        self.update(|tx| {
            if partition.is_none() {
                let all = keys::function_policies();
                for (key, _) in tx.scan(&all, &keys::after_prefix(&all), usize::MAX)? {
                    tx.delete(&key)?;
                }
            }
            Ok(save(tx, &keys::function_policy(partition), policy)?)
        })?;
        Ok(Response::Done {})
    }

    /// Returns the attributes with the policy of a partition; none if it was never set.
    ///
    /// # Errors
    /// `Store`.
    pub fn policy_attributes(&self, partition: u64) -> Result<Vec<AttributeValue>> {
        let view = self.store.snapshot()?;
        let own = load::<FunctionPolicyRecord, _>(&*view, &keys::function_policy(Some(partition)))?;
        let policy = match own {
            Some(policy) => Some(policy),
            None => load(&*view, &keys::function_policy(None))?,
        };
        Ok(policy.map(|policy: FunctionPolicyRecord| policy.attributes()).unwrap_or_default())
    }

    /// Returns the attributes with the policy of a partition that may have another one: those of
    /// its lists that it does not have are removed.
    ///
    /// # Errors
    /// `Store`.
    pub fn whole_policy_attributes(&self, partition: u64) -> Result<Vec<AttributeValue>> {
        let mut all = self.policy_attributes(partition)?;
        if all.is_empty() {
            return Ok(all);
        }
        for first in [TRUSTED_KEYS, ALLOWED_CODE] {
            for number in first.number..first.number + POLICY_ENTRIES_MAX {
                let id = AttributeId::new(first.page, number);
                if !all.iter().any(|(known, _)| *known == id) {
                    all.push((id, Vec::new()));
                }
            }
        }
        Ok(all)
    }
}
