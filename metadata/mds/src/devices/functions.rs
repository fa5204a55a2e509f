//! Credentials and receipts of devices that run functions.
//!
//! Truth: docs/standards/mds/functions.md §5.12.

use sealstone_mds_protocol::{
    CapabilityBlob, DeviceId, DeviceState, ErrorCode, Grant, ObjectRef, ReceiptVerdict, Secret,
};
use sealstone_osd::capability::Scope;
use sealstone_osd::{Descriptor, ObjectId, ObjectType};
use sealstone_seal::{FunctionReceipt, KeySelector, ReceiptRefusal};

use super::{CapabilityTerms, DeviceTable, capability, signed};
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::store::MetaError;

impl DeviceTable {
    /// Returns a grant to read the attributes of a device's root object.
    pub(crate) fn root_grant(
        &self,
        device: DeviceId,
        terms: &CapabilityTerms,
        rng: &mut dyn Entropy,
    ) -> Result<Grant> {
        self.partition_grant((device, 0), terms, rng)
    }

    /// Returns a grant to the attributes of a partition; of the root object for number 0.
    pub(crate) fn partition_grant(
        &self,
        (device, partition): (DeviceId, u64),
        terms: &CapabilityTerms,
        rng: &mut dyn Entropy,
    ) -> Result<Grant> {
        if self.get(device).is_none_or(|found| found.state == DeviceState::Pending) {
            return Err(MdsError::refused(ErrorCode::NotFound, format!("device {}", device.0)));
        }
        let (keys, version) = self.current(device, partition, terms.expires_ms)?;
        let descriptor = Descriptor::Partition { scope: Scope::default(), partition };
        let kind = if partition == 0 { ObjectType::Root } else { ObjectType::Partition };
        let capability = capability(kind, descriptor, terms, version, random(rng));
        let selector = KeySelector::Working { partition, version };
        let credential = signed(&keys, selector, &capability, terms.sealed)
            .map_err(|_| MetaError::Damaged("device keys lack the working key"))?;
        Ok(Grant {
            object: ObjectRef { device, object: ObjectId::of_partition(partition) },
            method: terms.method,
            expires_ms: terms.expires_ms,
            capability: CapabilityBlob::new(credential.capability.to_vec())?,
            key: Secret::new(credential.key.expose().to_vec())?,
        })
    }

    /// Verifies a receipt with the keys of the device that it names.
    pub(crate) fn verify_receipt(&self, bytes: &[u8]) -> (ReceiptVerdict, Option<DeviceId>) {
        let Some(receipt) = FunctionReceipt::parse_unverified(bytes) else {
            return (ReceiptVerdict::Malformed, None);
        };
        let table = self.0.read();
        let Some((id, known)) = table.iter().find(|(_, known)| known.record.system_id == receipt.system_id)
        else {
            return (ReceiptVerdict::UnknownDevice, None);
        };
        let verdict = match known.keys.verify_receipt(bytes) {
            Ok(_) => ReceiptVerdict::Genuine,
            Err(ReceiptRefusal::Malformed) => ReceiptVerdict::Malformed,
            Err(ReceiptRefusal::AnotherDevice) => ReceiptVerdict::UnknownDevice,
            Err(ReceiptRefusal::KeyReplaced) => ReceiptVerdict::KeyReplaced,
            Err(ReceiptRefusal::Forged) => ReceiptVerdict::Forged,
        };
        (verdict, Some(*id))
    }
}
