//! Collections through the typed client, over iSCSI, signed and verified.

use crate::world::World;
use bytes::Bytes;
use sealstone_client::OsdError;
use sealstone_crypto::RustCrypto;
use sealstone_initiator::{AttributeRange, Bearer, CollectionOperation, EVERY_OBJECT, QueryCriteria};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::{
    AttributeId, Capability, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, KeySelector};

const PID: u64 = 0x1_0000;
/// An attribute of an application.
const GRADE: AttributeId = AttributeId::new(0x1_0000, 1);

fn object(number: u64) -> ObjectId {
    ObjectId::new(PID, number)
}

/// Returns a credential with all rights on one object of the first device, under the factory's
/// working key.
fn bearer(world: &World, object_type: ObjectType, allowed: ObjectId) -> Bearer {
    let scope = Scope::default();
    let capability = Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: sealstone_seal::algorithm::SLOT_UNITS_BLAKE3,
        method: SecurityMethod::AllData,
        expires_ms: world.clock.now() + 3_600_000,
        audit: [7; 20],
        discriminator: [1; 12],
        object_created_ms: 0,
        object_type,
        permissions: Permissions::ALL_OSD2,
        descriptor: match object_type {
            ObjectType::Collection => Descriptor::Collection { scope, allowed },
            ObjectType::User => Descriptor::User { scope, allowed, range: Range::ALL },
            ObjectType::Root | ObjectType::Partition => {
                Descriptor::Partition { scope, partition: allowed.partition }
            }
        },
    };
    let mut keys: KeyHierarchy<RustCrypto> =
        KeyHierarchy::factory(Hash::Sha256, &InitialKey::new(&[1; 32]).unwrap(), [1; 20]);
    keys.add_partition(PID).unwrap();
    let selector = KeySelector::Working { partition: PID, version: 0 };
    let credential = Credential::issue_under(&keys, &AlgorithmSlots::DEFAULT, selector, &capability).unwrap();
    Bearer::of(&credential).unwrap()
}

#[tokio::test(start_paused = true)]
async fn collections_are_made_joined_listed_queried_and_removed() {
    let world = World::new(1).await;
    let device = world.osd(0);
    let on = |number| bearer(&world, ObjectType::Collection, object(number));
    for number in 0..5_u64 {
        let id = object(PID + number);
        device.create(&bearer(&world, ObjectType::User, id), id).await.unwrap();
        let owner = bearer(&world, ObjectType::User, id);
        let value = Bytes::copy_from_slice(&[number as u8]);
        device.set_attributes(&owner, id, vec![(GRADE, value)]).await.unwrap();
    }
    let chosen = device.create_collection(&on(0), object(0)).await.unwrap();
    let again = device.create_collection(&on(chosen.object), chosen).await;
    assert!(matches!(again, Err(OsdError::Exists)), "{again:?}");
    for number in 1..4 {
        let id = object(PID + number);
        device.join(&bearer(&world, ObjectType::User, id), id, 1, chosen.object).await.unwrap();
    }
    let owner = on(chosen.object);
    let listed = device.list_collection(&owner, chosen, 0, 2).await.unwrap();
    assert_eq!((listed.ids, listed.next), (vec![PID + 1, PID + 2], Some(PID + 3)));
    let partition = bearer(&world, ObjectType::Partition, object(0));
    let all = device.list_collection(&partition, object(0), 0, 10).await.unwrap();
    assert_eq!(all.ids, [chosen.object]);
    // Criteria are in the continuation segment, which is signed separately.
    let question = |any, min: &'static [u8], max: &'static [u8]| QueryCriteria {
        any,
        criteria: vec![AttributeRange {
            id: GRADE,
            min: Bytes::from_static(min),
            max: Bytes::from_static(max),
        }],
    };
    let found = device.query(&owner, chosen, question(true, &[2], &[]), 10).await.unwrap();
    assert_eq!(found, (vec![PID + 2, PID + 3], 2));
    let everything = object(EVERY_OBJECT);
    let cut = device.query(&on(EVERY_OBJECT), everything, question(false, &[], &[3]), 1).await.unwrap();
    assert_eq!(cut, (vec![PID], 4), "one found room, four match");
    let tracked = object(0x9_0000);
    let track = |reading| CollectionOperation::Track {
        collection: tracked,
        source: chosen.object,
        reading,
        immediate: false,
    };
    let unflushed_bytes = device.on_collection(&on(tracked.object), track(None)).await;
    assert!(unflushed_bytes.is_err(), "the source needs a right of its own");
    device.on_collection(&on(tracked.object), track(Some(owner.clone()))).await.unwrap();
    let into = CollectionOperation::QueryInto {
        collection: everything,
        question: question(true, &[2], &[2]),
        matches: tracked.object,
        filling: Some(on(tracked.object)),
        immediate: false,
    };
    device.on_collection(&on(EVERY_OBJECT), into).await.unwrap();
    let values = vec![(AttributeId::new(0x1_0000, 2), Bytes::from_static(b"all"))];
    let set = CollectionOperation::SetMemberAttributes { collection: chosen, values, immediate: false };
    device.on_collection(&owner, set).await.unwrap();
    let ids = vec![GRADE, AttributeId::new(0x1_0000, 2)];
    let get = CollectionOperation::GetMemberAttributes { collection: tracked, ids, length_max: 4096 };
    let members = device.on_collection(&on(tracked.object), get).await.unwrap().members;
    assert_eq!(members.iter().map(|member| member.object).collect::<Vec<_>>(), [PID + 1, PID + 2, PID + 3]);
    assert!(members.iter().all(|member| member.attributes[1].1.as_deref() == Some(b"all")));
    let full = device.remove_collection(&owner, chosen, false).await;
    assert!(matches!(full, Err(OsdError::NotEmpty)), "{full:?}");
    device.remove_collection(&owner, chosen, true).await.unwrap();
    let remove = CollectionOperation::RemoveMembers { collection: tracked, immediate: false };
    device.on_collection(&on(tracked.object), remove).await.unwrap();
    let left = device.list(&partition, PID, 0, 10).await.unwrap();
    assert_eq!(left.ids, [PID, PID + 4]);
}
