//! Content of the device as a client reads it.

use std::sync::atomic::Ordering;

use sealstone_initiator::{COLLECTIONS_PAGE, OsdClient, OsdError};
use sealstone_osd::{AttributeId, ObjectId};

use super::{ATTRIBUTES, COLLECTIONS, FIRST, FIRST_COLLECTION, MEMBERSHIPS, OBJECTS, PAGE, RunState, Worker};
use crate::oracle::{Entry, Object, ObjectStates};

/// LOGICAL LENGTH.
pub(super) const LENGTH: AttributeId = AttributeId::new(1, 0x82);
/// Attributes of a partition: whether it is a snapshot (1) or a clone (2), and its source.
const KIND: AttributeId = AttributeId::new(0x3000_F004, 1);
const SOURCE: AttributeId = AttributeId::new(0x3000_F004, 2);
/// Maximum ids of a list; there are fewer.
const IDS_MAX: usize = 64;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

impl Worker {
    /// Returns the ids of the user objects that a partition should have now.
    pub(super) fn objects_in(&self, partition: u64) -> Vec<ObjectId> {
        let inside = self.history.now().range(crate::oracle::all_of(partition));
        inside.filter(|(_, entry)| matches!(entry, Entry::User(_))).map(|(id, _)| *id).collect()
    }

    /// Reads a partition with all its content, if it exists. Checks that both sides of each
    /// membership agree, and lists with readable objects.
    pub(super) async fn observe_partition(
        &mut self,
        device: &OsdClient,
        life: &RunState<'_>,
        partition: u64,
        found: &mut ObjectStates,
    ) -> Result<(), String> {
        let id = ObjectId::of_partition(partition);
        let bearer = self.bearer(life.issuer, id);
        let wrong = |what: &str, error: OsdError| format!("{id}: {what}: {error:?}");
        let values = match device.attributes(&bearer, id, vec![KIND, SOURCE]).await {
            Err(OsdError::NotFound) if partition != self.partition => return Ok(()),
            other => other.map_err(|error| wrong("attributes", error))?,
        };
        let value = |name| {
            let value = values.iter().find(|(id, _)| *id == name).and_then(|(_, value)| value.as_deref());
            value.map_or(0, number)
        };
        match value(KIND) {
            0 => {}
            kind => {
                let made = Entry::Duplicate { source: value(SOURCE), clone: kind == 2 };
                found.insert(id, made);
            }
        }
        let mut members = Vec::new();
        for slot in 0..OBJECTS {
            let id = ObjectId::new(partition, FIRST + slot);
            if let Some(object) = self.observe(device, life, id).await? {
                members.extend(object.memberships.values().map(|&collection| (collection, id.object)));
                found.insert(id, Entry::User(object));
            }
            life.tally.compared.fetch_add(1, Ordering::Relaxed);
        }
        let listed =
            device.list(&bearer, partition, 0, IDS_MAX).await.map_err(|error| wrong("LIST", error))?;
        let seen: Vec<u64> = found
            .range(crate::oracle::all_of(partition))
            .filter(|(_, entry)| matches!(entry, Entry::User(_)))
            .map(|(id, _)| id.object)
            .collect();
        if listed.ids != seen {
            return Err(format!("{id}: LIST gives {:x?}, and there are {seen:x?}", listed.ids));
        }
        let listed = device.list_collection(&bearer, id, 0, IDS_MAX).await;
        let collections = listed.map_err(|error| wrong("LIST COLLECTION", error))?.ids;
        let known = FIRST_COLLECTION..FIRST_COLLECTION + COLLECTIONS;
        for collection in collections {
            let id = ObjectId::new(partition, collection);
            let bearer = self.bearer(life.issuer, id);
            let listed = device.list_collection(&bearer, id, 0, IDS_MAX).await;
            let listed = listed.map_err(|error| format!("{id}: LIST COLLECTION: {error:?}"))?;
            let mut wanted: Vec<u64> =
                members.iter().filter(|(of, _)| *of == collection).map(|(_, member)| *member).collect();
            wanted.sort_unstable();
            if listed.ids != wanted {
                return Err(format!("{id} has members {:x?}, and {wanted:x?} say that they are", listed.ids));
            }
            members.retain(|(of, _)| *of != collection);
            found.insert(id, Entry::Collection);
            if !known.contains(&collection) {
                return Err(format!("{id}: nobody made this collection"));
            }
        }
        match members.is_empty() {
            true => Ok(()),
            false => Err(format!("{id}: members of collections that are not there: {members:x?}")),
        }
    }

    /// Reads an object.
    pub(super) async fn observe(
        &mut self,
        device: &OsdClient,
        life: &RunState<'_>,
        id: ObjectId,
    ) -> Result<Option<Object>, String> {
        let bearer = self.bearer(life.issuer, id);
        let memberships = (1..=MEMBERSHIPS).map(|number| AttributeId::new(COLLECTIONS_PAGE, number));
        let own = (1..=ATTRIBUTES).map(|number| AttributeId::new(PAGE, number));
        let names = core::iter::once(LENGTH).chain(own).chain(memberships);
        let values = match device.attributes(&bearer, id, names.collect()).await {
            Err(OsdError::NotFound) => return Ok(None),
            other => other.map_err(|error| format!("{id}: attributes by {:?}: {error:?}", self.method))?,
        };
        let mut object = Object::default();
        let mut length = 0;
        for (name, value) in values {
            let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
            match name {
                LENGTH => length = number(&value),
                AttributeId { page: COLLECTIONS_PAGE, number: at } => {
                    object.memberships.insert(at, number(&value));
                }
                name => drop(object.attributes.insert(name.number, value.to_vec())),
            }
        }
        if length > 0 {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            object.content = device
                .read(&bearer, id, 0, length)
                .await
                .map_err(|error| format!("{id}: {length} bytes by {:?}: {error:?}", self.method))?;
        }
        Ok(Some(object))
    }
}
