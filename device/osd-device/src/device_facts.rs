//! Facts about objects that the checks of a command read: floors, frozen keys, tags, created times.
//!
//! Does: implements the callbacks of `sealstone_seal` ([`DeviceFacts`]) on the catalogue and the
//! caches.
//! Contract: the floor of an object that cannot be read is that of its partition.

use sealstone_osd::{AttributeId, ObjectId, ObjectType, SecurityMethod};
use sealstone_seal::{DeviceFacts, ObjectFacts};
use sealstone_store::StoreError;

use crate::attributes::rows::{PARTITION, page};
use crate::catalog;
use crate::commands::collections;
use crate::device::OsdDevice;

impl DeviceFacts for OsdDevice {
    fn floor(&self, object: ObjectId) -> SecurityMethod {
        let root = self.catalog.root();
        if object.partition == 0 {
            return root.policy.default_method;
        }
        let Some(policy) = self.catalog.policy(object.partition) else { return root.partition_method };
        let floor = policy.default_method;
        if object.object == 0 {
            return floor;
        }
        match self.facts(object) {
            Ok(facts) => {
                floor.max(SecurityMethod::from_nibble(facts.method).unwrap_or(SecurityMethod::AllData))
            }
            // It does not exist or cannot be read: the command will fail under the partition's
            // floor.
            Err(_) => floor,
        }
    }

    fn frozen_keys(&self, partition: u64) -> u16 {
        self.catalog.policy(partition).map_or(0, |policy| policy.frozen_keys)
    }

    fn audit_frozen(&self, audit: &[u8; 20]) -> bool {
        self.catalog.audit_frozen(audit)
    }

    fn object(&self, id: ObjectId) -> Option<ObjectFacts> {
        if id.is_root() {
            return Some(ObjectFacts { kind: ObjectType::Root, created_ms: 0, policy_access_tag: 0 });
        }
        if id.is_partition() {
            let policy = self.catalog.policy(id.partition)?;
            return Some(ObjectFacts {
                kind: ObjectType::Partition,
                created_ms: policy.created_ms,
                policy_access_tag: policy.tag,
            });
        }
        if collections::is_everything(id) {
            // It has the created time and tag of its partition.
            let policy = self.catalog.partition(id.partition)?.policy();
            return Some(ObjectFacts {
                kind: ObjectType::Collection,
                created_ms: policy.created_ms,
                policy_access_tag: policy.tag,
            });
        }
        let kind = self.store.stat(id).ok()?.kind;
        let facts = self.facts(id).ok()?;
        Some(ObjectFacts { kind, created_ms: facts.created_ms, policy_access_tag: facts.tag })
    }

    fn is_absent(&self, id: ObjectId) -> bool {
        !id.is_root()
            && !id.is_partition()
            && !collections::is_everything(id)
            && matches!(self.store.stat(id), Err(StoreError::NotFound(_)))
    }

    fn length(&self, id: ObjectId) -> Option<u64> {
        match self.store.stat(id) {
            Ok(stat) if stat.kind == ObjectType::User => Some(stat.length),
            // Object number 0 means that the device chooses the number of a new object.
            Ok(_) | Err(StoreError::NotFound(_)) => Some(0),
            Err(_) => None,
        }
    }

    fn attribute_allowed(&self, partition: u64, access: u32, attribute: AttributeId) -> bool {
        let list = AttributeId::new(PARTITION + page::ATTRIBUTES_ACCESS, access);
        let names = catalog::get(&*self.store, ObjectId::of_partition(partition), list);
        // A list that does not exist or cannot be read allows nothing.
        let Ok(Some(names)) = names else { return false };
        let number = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, &byte| sum << 8 | u32::from(byte));
        names.chunks_exact(8).any(|name| {
            let (page, of_page) = (number(&name[..4]), number(&name[4..]));
            let allows = |named: u32, wanted: u32| named == wanted || named == AttributeId::ALL;
            allows(page, attribute.page) && allows(of_page, attribute.number)
        })
    }
}
