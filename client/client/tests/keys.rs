//! Key changes of a real device over real sessions, some of which break.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::world::World;
use crate::world::faults::Fault;
use sealstone_client::OsdError;
use sealstone_crypto::dh::DhGroup;
use sealstone_initiator::{Bearer, KeyManager, ManagerError, MasterOutcome};
use sealstone_osd::capability::Scope;
use sealstone_osd::cdb::KeyToSet;
use sealstone_osd::{
    AttributeId, Capability, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy};

const PID: u64 = 0x1_0000;

fn manager(world: &World) -> KeyManager {
    let mut keys = KeyHierarchy::factory(Hash::Sha256, &InitialKey::new(&[1; 32]).unwrap(), [1; 20]);
    keys.add_partition(PID).unwrap();
    KeyManager::new(world.osd(0), keys, world.client_clock.clone())
}

/// Returns the identifiers of the device's keys, read under the manager's working keys.
async fn identifiers(
    world: &World,
    manager: &KeyManager,
    object: ObjectId,
    ids: &[(u32, u32)],
) -> Vec<Vec<u8>> {
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
        object_type: if object.is_root() { ObjectType::Root } else { ObjectType::Partition },
        permissions: Permissions::GET_ATTR | Permissions::POL_SEC,
        descriptor: Descriptor::Partition { scope: Scope::default(), partition: object.partition },
    };
    let credential = Credential::issue(manager.keys(), &AlgorithmSlots::DEFAULT, &capability).unwrap();
    let ids = ids.iter().map(|&(page, number)| AttributeId::new(page, number)).collect();
    let got = world.osd(0).attributes(&Bearer::of(&credential).unwrap(), object, ids).await.unwrap();
    got.into_iter().map(|(_, value)| value.map(|value| value.to_vec()).unwrap_or_default()).collect()
}

/// Sets the keys of the root, partition zero and the partition of files, from the master key down.
async fn set_all_below(manager: &mut KeyManager, fill: u8) {
    manager.set_key(KeyToSet::Root, 0, [fill; 7]).await.unwrap();
    for partition in [0, PID] {
        manager.set_key(KeyToSet::Partition, partition, [fill; 7]).await.unwrap();
        manager.set_key(KeyToSet::Working(0), partition, [fill; 7]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn every_device_key_changes_with_its_identifier() {
    let world = World::new(1).await;
    let mut manager = manager(&world);
    for (round, group) in (1u8..).zip(DhGroup::ALL) {
        manager.set_master_key(group, [round; 7]).await.unwrap();
        set_all_below(&mut manager, 0x10 + round).await;
        let root = [(0x9000_0005, 0x7FFD), (0x9000_0005, 0x7FFE)];
        let reported = identifiers(&world, &manager, ObjectId::ROOT, &root).await;
        assert_eq!(reported, [[round; 7], [0x10 + round; 7]], "{group:?}");
        let below = [(0x3000_0005, 0x7FFF), (0x3000_0005, 0x8000), (0x3000_0005, 0x8001)];
        let reported = identifiers(&world, &manager, ObjectId::of_partition(PID), &below).await;
        assert_eq!(reported, [vec![0x10 + round; 7], vec![0x10 + round; 7], vec![]]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_with_other_keys_changes_nothing() {
    let world = World::new(1).await;
    let keys = KeyHierarchy::factory(Hash::Sha256, &InitialKey::new(&[9; 32]).unwrap(), [1; 20]);
    let mut stranger = KeyManager::new(world.osd(0), keys, world.client_clock.clone());
    let denied = |outcome: Result<(), ManagerError>| matches!(outcome, Err(ManagerError::Device(error)) if error.is_denied());
    assert!(denied(stranger.set_key(KeyToSet::Root, 0, [1; 7]).await));
    assert!(denied(stranger.set_master_key(DhGroup::X25519, [1; 7]).await));
    let mut manager = manager(&world);
    manager.set_key(KeyToSet::Working(5), PID, [1; 7]).await.unwrap();
    let no_such = manager.set_key(KeyToSet::Working(5), 0x7_7777, [1; 7]).await;
    assert!(matches!(no_such, Err(ManagerError::Key(_))));
}

/// A failure at any point of SET KEY: repeated, it sets the same key, and both ends agree in the
/// end.
#[tokio::test(start_paused = true)]
async fn set_key_over_broken_sessions_keeps_keys_equal() {
    for cut in (200..1600).step_by(200) {
        let world = World::new(1).await;
        let mut manager = manager(&world);
        world.faults.next([Some(Fault::CutReads(cut)), Some(Fault::CutWrites(cut))]);
        manager.set_key(KeyToSet::Root, 0, [7; 7]).await.unwrap();
        set_all_below(&mut manager, 8).await;
        let reported = identifiers(&world, &manager, ObjectId::ROOT, &[(0x9000_0005, 0x7FFE)]).await;
        assert_eq!(reported, [[8; 7]], "cut at {cut}");
    }
}

/// After a lost answer to the change step, the manager finds out which master key the device has
/// and continues with it.
#[tokio::test(start_paused = true)]
async fn lost_answer_to_change_step_is_settled() {
    let mut seen = Vec::new();
    // A break ends the session between the steps; a stall delays the answer while the device
    // continues.
    let cuts = [300, 1020, 1400].map(Fault::CutReads);
    let stalls = [300, 500, 540, 1020, 1400].map(Fault::StallReads);
    for fault in cuts.into_iter().chain(stalls).chain([900, 1500].map(Fault::CutWrites)) {
        let world = World::new(1).await;
        let mut manager = manager(&world);
        world.faults.next([Some(fault)]);
        match manager.set_master_key(DhGroup::X25519, [1; 7]).await {
            Ok(()) => seen.push("done"),
            Err(error) => {
                let early = manager.set_key(KeyToSet::Root, 0, [2; 7]).await;
                if matches!(early, Err(ManagerError::Unsettled)) {
                    seen.push(match manager.settle_master(DhGroup::X25519).await.unwrap() {
                        MasterOutcome::New => "new",
                        MasterOutcome::Old => "old",
                    });
                } else {
                    // The first step was lost, so nothing changed.
                    let lost = OsdError::OutcomeUnknown { command: "SET MASTER KEY" };
                    assert_eq!(error.to_string(), lost.to_string(), "{fault:?}");
                    early.unwrap();
                    seen.push("not begun");
                }
            }
        }
        set_all_below(&mut manager, 3).await;
        let reported = identifiers(&world, &manager, ObjectId::ROOT, &[(0x9000_0005, 0x7FFE)]).await;
        assert_eq!(reported, [[3; 7]], "{fault:?}");
    }
    for outcome in ["done", "new", "old"] {
        assert!(seen.contains(&outcome), "never {outcome}: {seen:?}");
    }
}
