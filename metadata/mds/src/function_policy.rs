//! Which functions devices may run: the policy of partitions with files.
//!
//! Does: stores the policy that administrators set, returns it as attributes of a partition, and
//! records the devices that do not have it yet.
//! Does not: send it; the daemon does.
//! Contract: a new partition gets the policy in the command that creates it, and a new device
//! before it is taken into use. For a device that could not be reached, no credential permits to
//! execute a function until it has the policy.
//! Truth: docs/standards/mds/functions.md §5.12, policy.

use sealstone_mds_protocol::{DeviceId, DeviceState, ErrorCode, Response};
use sealstone_osd::AttributeId;
use sealstone_osd::function::attributes::{ALLOWED_CODE, POLICY_ENTRIES_MAX, TRUSTED_KEYS};

use crate::access::Principal;
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::function_policy_record::{AttributeValue, FunctionPolicyRecord, PolicyDueRecord};
use crate::keys;
use crate::records::{decode, load, save};
use crate::server::Mds;
use crate::store::{MetaError, Snapshot};

/// A device that does not have the recorded policy yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuePolicy {
    /// The device.
    pub device: DeviceId,
    /// Names the change of the policy.
    change: u64,
}

impl Mds {
    /// Stores the policy of a partition, or of all present and future ones.
    pub(crate) fn set_function_policy(
        &self,
        principal: &Principal,
        partition: Option<u64>,
        policy: &FunctionPolicyRecord,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        if !principal.is_admin() {
            return Err(MdsError::refused(ErrorCode::Denied, "administrators set the policy of functions"));
        }
        policy.check()?;
        if let Some(partition) = partition {
            self.require_file_partition(partition)?;
        }
        let change = u64::from_be_bytes(random(rng));
        let due: Vec<(DeviceId, PolicyDueRecord)> = self
            .devices()
            .into_iter()
            // One that joins may have read the policy before this change.
            .filter(|(_, state)| state.was_in_use() || *state == DeviceState::Joining)
            .map(|(device, state)| {
                let is_reachable = state.was_in_use() && state != DeviceState::Unreachable;
                let is_missed = !is_reachable || !self.is_device_healthy(device.id);
                (device.id, PolicyDueRecord { change, is_missed })
            })
            .collect();
        self.update(|tx| {
            for (device, record) in &due {
                save(tx, &keys::policy_due(*device), record)?;
            }
            if partition.is_none() {
                let all = keys::function_policies();
                for (key, _) in tx.scan(&all, &keys::after_prefix(&all), usize::MAX)? {
                    tx.delete(&key)?;
                }
            }
            Ok(save(tx, &keys::function_policy(partition), policy)?)
        })?;
        self.wake_for_devices();
        Ok(Response::Done {})
    }

    /// Returns the devices that do not have the recorded policy yet.
    ///
    /// # Errors
    /// `Store`.
    pub fn due_policies(&self) -> Result<Vec<DuePolicy>> {
        let view = self.store.snapshot()?;
        let all = keys::policies_due();
        let mut due = Vec::new();
        for (key, value) in view.scan(&all, &keys::after_prefix(&all), usize::MAX)? {
            let device = keys::device_of_policy_due(&key).ok_or(MetaError::Damaged("device of a policy"))?;
            due.push(DuePolicy { device, change: decode::<PolicyDueRecord>(&value)?.change });
        }
        Ok(due)
    }

    /// Records that a device has the policy. Ignored if the policy was changed since.
    ///
    /// # Errors
    /// `Store`.
    pub fn policy_given(&self, due: &DuePolicy) -> Result<()> {
        let key = keys::policy_due(due.device);
        self.update(|tx| match load::<PolicyDueRecord, _>(tx, &key)? {
            Some(record) if record.change == due.change => Ok(tx.delete(&key)?),
            _ => Ok(()),
        })
    }

    /// Records that a device could not be given the policy: until it has it, no credential permits
    /// to execute functions there.
    ///
    /// # Errors
    /// `Store`.
    pub fn policy_missed(&self, due: &DuePolicy) -> Result<()> {
        let key = keys::policy_due(due.device);
        self.update(|tx| match load::<PolicyDueRecord, _>(tx, &key)? {
            Some(record) if record.change == due.change && !record.is_missed => {
                Ok(save(tx, &key, &PolicyDueRecord { is_missed: true, ..record })?)
            }
            _ => Ok(()),
        })
    }

    /// Whether a device may have an older policy than the recorded one.
    pub(crate) fn lacks_policy<S: Snapshot + ?Sized>(view: &S, device: DeviceId) -> Result<bool> {
        let due = load::<PolicyDueRecord, _>(view, &keys::policy_due(device))?;
        Ok(due.is_some_and(|record| record.is_missed))
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
