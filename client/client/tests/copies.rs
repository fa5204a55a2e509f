//! Copies, snapshots, maps and REWRITE of a real device over real sessions.

use crate::world::World;
use bytes::Bytes;
use sealstone_initiator::Bearer;
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{Rewrite, RewriteReturn};
use sealstone_osd::map::{HOLE, WRITTEN};
use sealstone_osd::rewrite::{RewriteAction, RewriteOperation};
use sealstone_osd::{
    AttributeId, Capability, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, KeySelector};

const PID: u64 = 0x1_0000;
const CLONE: u64 = 0x2_0000;

/// Returns a credential with all rights on a user object (number 0: one to be created) or a
/// partition.
fn bearer(object: ObjectId, partition_zero: bool) -> Bearer {
    let mut keys = KeyHierarchy::<sealstone_crypto::RustCrypto>::factory(
        Hash::Sha256,
        &InitialKey::new(&[1; 32]).unwrap(),
        [1; 20],
    );
    keys.add_partition(PID).unwrap();
    keys.add_partition(CLONE).unwrap();
    let user = !(object.is_partition() || object.is_root()) || object.object == 0 && !partition_zero;
    let scope = Scope::default();
    let capability = Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: sealstone_seal::algorithm::SLOT_UNITS_BLAKE3,
        method: SecurityMethod::AllData,
        expires_ms: 0,
        audit: [0; 20],
        discriminator: [3; 12],
        object_created_ms: 0,
        object_type: if user { ObjectType::User } else { ObjectType::Partition },
        permissions: Permissions::ALL_OSD2 | Permissions::REWRITE_CONDITIONAL,
        descriptor: if user {
            Descriptor::User { scope, allowed: object, range: Range::ALL }
        } else {
            Descriptor::Partition { scope, partition: object.partition }
        },
    };
    let selector = if partition_zero {
        KeySelector::Working { partition: 0, version: 0 }
    } else {
        KeySelector::of_capability(&capability)
    };
    let credential = Credential::issue_under(&keys, &AlgorithmSlots::DEFAULT, selector, &capability).unwrap();
    Bearer::of(&credential).unwrap()
}

#[tokio::test(start_paused = true)]
async fn objects_are_copied_rewritten_mapped_and_cloned() {
    let world = World::new(1).await;
    let osd = world.osd(0);
    let any = ObjectId::new(PID, 0);
    let first =
        osd.create_and_write(&bearer(any, false), any, 8192, Bytes::from_static(b"data")).await.unwrap();
    let reading = bearer(first, false);

    let copy = osd.copy(&bearer(any, false), any, first, true, &reading).await.unwrap();
    assert_ne!(copy, first);
    let held = bearer(copy, false);
    let version = AttributeId::new(0x1_0000, 1);
    let step = |action, offset, length| RewriteOperation { action, offset, length, operand: 0 };
    let rewrite = Rewrite {
        object: copy,
        start: 8192,
        length: 4,
        operands: 0,
        returns: RewriteReturn::Old,
        conditional: true,
        extend: false,
    };
    let operations = vec![
        (step(RewriteAction::Compare, 0, 2), Bytes::from_static(b"da")),
        (step(RewriteAction::Replace, 2, 2), Bytes::from_static(b"sh")),
    ];
    let values = vec![(version, Bytes::from_static(b"v2"))];
    let old = osd.rewrite(&held, rewrite, operations.clone(), values).await.unwrap();
    assert_eq!(old, b"data");
    assert_eq!(osd.read(&held, copy, 8192, 4).await.unwrap(), b"dash");
    assert_eq!(osd.read(&reading, first, 8192, 4).await.unwrap(), b"data");
    let got = osd.attributes(&held, copy, vec![version]).await.unwrap();
    assert_eq!(got[0].1.as_deref(), Some(&b"v2"[..]));
    // An operation outside its range is refused by the client.
    let wrong = vec![(step(RewriteAction::Replace, 3, 2), Bytes::from_static(b"xx"))];
    assert!(osd.rewrite(&held, rewrite, wrong, Vec::new()).await.is_err());
    let map = osd.map(&held, copy, 0).await.unwrap();
    let reported: Vec<_> = map.iter().map(|stretch| (stretch.kind, stretch.offset, stretch.length)).collect();
    assert_eq!(reported, [(HOLE, 0, 8192), (WRITTEN, 8192, 4)]);

    let clone = ObjectId::of_partition(CLONE);
    let made = osd.create_clone(&bearer(clone, true), CLONE, PID).await.unwrap();
    assert_eq!(made, CLONE);
    let twin = ObjectId::new(CLONE, copy.object);
    let theirs = bearer(twin, false);
    assert!(osd.differences(&theirs, twin, 0).await.unwrap().is_empty());
    osd.write(&theirs, twin, 0, Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(osd.differences(&theirs, twin, 0).await.unwrap().len(), 1);
    let over = bearer_of_partition(CLONE);
    assert!(osd.refresh(&over, CLONE).await.is_err(), "it reads the source: its own key is not enough");
    osd.refresh(&bearer(clone, true), CLONE).await.unwrap();
    assert!(osd.differences(&theirs, twin, 0).await.unwrap().is_empty());
    osd.check_structure(&over, clone).await.unwrap();
    osd.detach_clone(&over, CLONE).await.unwrap();
}

/// Signed with the working key of the partition itself.
fn bearer_of_partition(partition: u64) -> Bearer {
    let mut keys = KeyHierarchy::<sealstone_crypto::RustCrypto>::factory(
        Hash::Sha256,
        &InitialKey::new(&[1; 32]).unwrap(),
        [1; 20],
    );
    keys.add_partition(partition).unwrap();
    let held = *bearer(ObjectId::of_partition(partition), true).capability().expect("it is open");
    Bearer::of(&Credential::issue(&keys, &AlgorithmSlots::DEFAULT, &held).unwrap()).unwrap()
}
