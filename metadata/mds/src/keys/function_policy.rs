//! Keys of policies about functions, and of devices that do not have them yet.

use sealstone_mds_protocol::DeviceId;

use super::key;

/// Policy about functions of partitions.
const FUNCTION_POLICY: u8 = b'O';
/// Devices that do not have the recorded policy about functions yet.
const POLICY_DUE: u8 = b'Q';

/// Returns the key of the policy of a partition, or of all without one of their own.
pub(crate) fn function_policy(partition: Option<u64>) -> Vec<u8> {
    key(FUNCTION_POLICY, &[&partition.unwrap_or_default().to_be_bytes()])
}

pub(crate) fn function_policies() -> Vec<u8> {
    vec![FUNCTION_POLICY]
}

/// Returns the key of a device that does not have the recorded policy yet.
pub(crate) fn policy_due(device: DeviceId) -> Vec<u8> {
    key(POLICY_DUE, &[&device.0.to_be_bytes()])
}

pub(crate) fn policies_due() -> Vec<u8> {
    vec![POLICY_DUE]
}

pub(crate) fn device_of_policy_due(key: &[u8]) -> Option<DeviceId> {
    Some(DeviceId(u32::from_be_bytes(*key.get(1..)?.first_chunk()?)))
}
