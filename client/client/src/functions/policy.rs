//! Policies of partitions on devices: which functions may run.
//!
//! Contract: a change replaces policy, trusted keys and allowed digests of a device in one command,
//! so that a device never applies a mixture.
//! Truth: docs/standards/active.md, attribute pages.

use std::collections::BTreeSet;

use bytes::Bytes;
use sealstone_initiator::{Bearer, Operation};
use sealstone_mds_protocol::{
    DeviceId, ErrorCode, FILE_PARTITION, FILE_PARTITIONS_MAX, Method, Request, Response,
};
use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::{
    ALLOWED_CODE, FunctionPolicy, POLICY, POLICY_ENTRIES_MAX, PUBLIC_KEY_LEN, TRUSTED_KEYS,
};
use sealstone_osd::{AttributeId, ObjectId};

use super::FunctionError;
use crate::{Client, ClientError, Devices, Metadata};

/// Bytes of an attribute in a list beside its value, at most.
const ENTRY_BYTES: usize = 16;

/// Which functions of a partition may run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionPolicy {
    /// The policy.
    pub policy: FunctionPolicy,
    /// Public keys of trusted publishers.
    pub keys: BTreeSet<[u8; PUBLIC_KEY_LEN]>,
    /// Digests of allowed code.
    pub digests: BTreeSet<[u8; CODE_DIGEST_LEN]>,
}

const fn numbered(first: AttributeId, index: u32) -> AttributeId {
    AttributeId::new(first.page, first.number + index)
}

/// Returns the attributes of a list. Empty values remove the attributes after its end.
fn list_values(first: AttributeId, list: &BTreeSet<[u8; 32]>) -> impl Iterator<Item = (AttributeId, Bytes)> {
    let values = list.iter().map(|value| Bytes::copy_from_slice(value));
    let all = values.chain(std::iter::repeat(Bytes::new()));
    (0..POLICY_ENTRIES_MAX).zip(all).map(move |(index, value)| (numbered(first, index), value))
}

impl PartitionPolicy {
    fn check(&self) -> Result<(), FunctionError> {
        let max = u64::from(POLICY_ENTRIES_MAX);
        for (what, count) in [("trusted keys", self.keys.len()), ("allowed functions", self.digests.len())] {
            if count as u64 > max {
                return Err(FunctionError::Limit { what, max });
            }
        }
        Ok(())
    }

    fn parse(values: &[(AttributeId, Option<Bytes>)]) -> Result<Self, ClientError> {
        let invalid = ClientError::Protocol("a device returned an invalid policy about functions");
        let mut found = Self::default();
        for (id, value) in values {
            let Some(value) = value.as_ref().filter(|value| !value.is_empty()) else { continue };
            let list = match id.number {
                number if number == POLICY.number => {
                    let Some(policy) = FunctionPolicy::from_code(value[0]) else { return Err(invalid) };
                    found.policy = policy;
                    continue;
                }
                number if number >= ALLOWED_CODE.number => &mut found.digests,
                _ => &mut found.keys,
            };
            let Ok(entry) = <[u8; 32]>::try_from(&value[..]) else { return Err(invalid) };
            list.insert(entry);
        }
        Ok(found)
    }
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Returns the partitions with files, which are the same on each device (administrators).
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn policy_partitions(
        &self,
        device: DeviceId,
        method: Method,
    ) -> Result<Vec<u64>, FunctionError> {
        let mut partitions = Vec::new();
        for partition in (FILE_PARTITION..).take(FILE_PARTITIONS_MAX as usize) {
            let request = Request::FunctionPolicyAccess { id: device, partition, change: false, method };
            match self.core.metadata.call(request).await {
                Ok(_) => partitions.push(partition),
                // Their numbers have no gap.
                Err(ClientError::Refused(failure))
                    if failure.code == ErrorCode::NotFound && !partitions.is_empty() =>
                {
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(partitions)
    }

    /// Returns the policy of a partition on a device (administrators).
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `NotPermitted` among others; `Device`.
    pub async fn function_policy(
        &self,
        device: DeviceId,
        partition: u64,
        method: Method,
    ) -> Result<PartitionPolicy, FunctionError> {
        let mut values = Vec::new();
        let lists = [TRUSTED_KEYS, ALLOWED_CODE]
            .map(|first| (0..POLICY_ENTRIES_MAX).map(move |at| numbered(first, at)));
        let ids: Vec<AttributeId> = std::iter::once(POLICY).chain(lists.into_iter().flatten()).collect();
        let length_max = ids.len() * (ENTRY_BYTES + 32);
        let object = ObjectId::of_partition(partition);
        let get = Operation::GetAttributes { object, ids, length_max };
        values.extend(self.at_policy(device, partition, (false, method), get).await?);
        Ok(PartitionPolicy::parse(&values)?)
    }

    /// Stores the policy of a partition, or of all of them, for devices that are added later
    /// (administrators). Set it before those of the devices.
    ///
    /// # Errors
    /// `Limit`; `Refused` with `NotFound` or `Denied` among others.
    pub async fn set_cluster_policy(
        &self,
        partition: Option<u64>,
        policy: &PartitionPolicy,
    ) -> Result<(), FunctionError> {
        policy.check()?;
        let request = Request::FunctionPolicySet {
            partition,
            policy: policy.policy as u8,
            keys: policy.keys.iter().copied().collect(),
            digests: policy.digests.iter().copied().collect(),
        };
        match self.core.metadata.call(request).await? {
            Response::Done {} => Ok(()),
            _ => Err(ClientError::OTHER_ANSWER.into()),
        }
    }

    /// Replaces the policy of a partition on a device durably (administrators).
    ///
    /// # Errors
    /// `Limit`; as [`Client::function_policy`].
    pub async fn set_function_policy(
        &self,
        device: DeviceId,
        partition: u64,
        policy: &PartitionPolicy,
        method: Method,
    ) -> Result<(), FunctionError> {
        policy.check()?;
        let mut values = vec![(POLICY, Bytes::copy_from_slice(&[policy.policy as u8]))];
        values.extend(list_values(TRUSTED_KEYS, &policy.keys));
        values.extend(list_values(ALLOWED_CODE, &policy.digests));
        let object = ObjectId::of_partition(partition);
        let set = Operation::SetAttributes { object, values, durable: true };
        self.at_policy(device, partition, (true, method), set).await?;
        Ok(())
    }

    async fn at_policy(
        &self,
        id: DeviceId,
        partition: u64,
        (change, method): (bool, Method),
        operation: Operation,
    ) -> Result<Vec<(AttributeId, Option<Bytes>)>, ClientError> {
        let device = self.core.device(id).await?;
        let request = Request::FunctionPolicyAccess { id, partition, change, method };
        let Response::DeviceGrant { grant } = self.core.metadata.call(request).await? else {
            return Err(ClientError::OTHER_ANSWER);
        };
        let bearer = Bearer::new(grant.capability.as_slice(), grant.key.expose())
            .map_err(|_| ClientError::Protocol("a grant without a usable credential"))?;
        let answer = self.core.devices.execute(&device, &bearer, operation).await.map_err(|error| {
            ClientError::Device { device: id, name: device.name.shown().into_owned(), error }
        })?;
        Ok(answer.attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_round_trips() {
        let policy = PartitionPolicy {
            policy: FunctionPolicy::AllowList,
            keys: [[1; 32], [2; 32]].into(),
            digests: [[3; 32]].into(),
        };
        let mut values = vec![(POLICY, Some(Bytes::from_static(&[2])))];
        let lists = [(TRUSTED_KEYS, &policy.keys), (ALLOWED_CODE, &policy.digests)];
        for (first, list) in lists {
            let all: Vec<_> = list_values(first, list).collect();
            assert_eq!(all.len(), POLICY_ENTRIES_MAX as usize, "the rest is removed");
            values.extend(all.into_iter().map(|(id, value)| (id, Some(value))));
        }
        assert_eq!(PartitionPolicy::parse(&values).unwrap(), policy);
        values[0].1 = Some(Bytes::from_static(&[9]));
        assert!(PartitionPolicy::parse(&values).is_err());
    }
}
