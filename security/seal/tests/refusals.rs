//! Refusals of the gate: each step of the order of checks, in its place, with its sense data and
//! without an effect.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use crate::common::*;
use proptest::prelude::*;
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{KeyToSet, SetKey};
use sealstone_osd::{
    Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_scsi::{AdditionalSense, Status};
use sealstone_seal::*;

const METHODS: [SecurityMethod; 2] = [SecurityMethod::CmdRsp, SecurityMethod::AllData];

fn refused(device: &Device, bytes: &[u8]) -> Denial {
    device.permit(bytes).expect_err("refused")
}

/// Signs a READ under a changed capability, and returns the device's result.
fn try_read(device: &Device, change: impl Fn(&mut Capability)) -> Result<Permit, Denial> {
    let mut capability = capability(Generation::Osd2, SecurityMethod::CmdRsp);
    change(&mut capability);
    let signer = signer(&device.keys, &capability);
    device.permit(&sign(&signer, read(Generation::Osd2), NOW, &mut random()).cdb)
}

#[test]
fn a_proven_capability_that_allows_gives_a_permit() {
    for generation in GENERATIONS {
        for method in METHODS {
            let device = Device::new();
            let signer = signer(&device.keys, &capability(generation, method));
            let permit = device.permit(&sign(&signer, read(generation), NOW, &mut random()).cdb).unwrap();
            assert_eq!(permit.object(), OBJECT);
            assert_eq!(device.gate.credentials().len(), 1);
        }
    }
}

/// C1: no bit of the capability can be changed.
#[test]
fn check_value_covers_every_capability_bit() {
    for generation in GENERATIONS {
        for method in METHODS {
            let device = Device::new();
            let signer = signer(&device.keys, &capability(generation, method));
            let signed = sign(&signer, read(generation), NOW, &mut random()).cdb.to_vec();
            let mut refusals = 0;
            for bit in 0..generation.capability_len() * 8 {
                let mut forged = signed.clone();
                forged[80 + bit / 8] ^= 0x80 >> (bit % 8);
                let denial = refused(&device, &forged);
                assert!(!denial.is_proven(), "bit {bit}: {denial}");
                let sense = denial.sense(generation).unwrap();
                assert_eq!((sense.code, sense.field), (AdditionalSense(0x2400), None));
                refusals += 1;
            }
            assert_eq!(refusals, generation.capability_len() * 8);
            assert!(device.gate.credentials().is_empty() && device.gate.nonces().bytes() == 0, "no effect");
            assert!(device.permit(&signed).is_ok());
        }
    }
}

/// Every other bit of the CDB, the check value included.
#[test]
fn check_value_covers_every_cdb_bit() {
    for generation in GENERATIONS {
        let device = Device::new();
        let signer = signer(&device.keys, &capability(generation, SecurityMethod::CmdRsp));
        let signed = sign(&signer, read(generation), NOW, &mut random()).cdb.to_vec();
        for bit in 0..signed.len() * 8 {
            let mut forged = signed.clone();
            forged[bit / 8] ^= 0x80 >> (bit % 8);
            match Cdb::parse(&forged) {
                Ok(cdb) if cdb.generation == generation => {
                    assert!(!refused(&device, &forged).is_proven(), "bit {bit}");
                }
                Ok(_) | Err(_) => {}
            }
        }
        assert!(device.permit(&signed).is_ok());
    }
}

/// Attack C3 of docs/design/security.md, section 8.
#[test]
fn constant_or_padded_check_value_is_refused() {
    let device = Device::new();
    for fill in [0, 0xFF] {
        let signer = signer(&device.keys, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
        let mut bytes = sign(&signer, read(Generation::Osd2), NOW, &mut random()).cdb.to_vec();
        bytes[184..216].fill(fill);
        assert_eq!(refused(&device, &bytes), Denial::RequestIcv);
    }
    let short = Capability { icv_algorithm: 0, ..capability(Generation::Osd2, SecurityMethod::CmdRsp) };
    let mut bytes =
        sign(&signer(&device.keys, &short), read(Generation::Osd2), NOW, &mut random()).cdb.to_vec();
    assert_eq!(bytes[204..216], [0; 12]);
    bytes[215] = 1;
    assert_eq!(refused(&device, &bytes), Denial::RequestIcv);
    bytes[215] = 0;
    assert!(device.permit(&bytes).is_ok());
}

/// Z1 and 4.5: the downgrade.
#[test]
fn method_below_floor_is_refused_first() {
    for generation in GENERATIONS {
        let device = Device::new();
        let signer = signer(&device.keys, &capability(generation, SecurityMethod::AllData));
        let mut bytes = sign(&signer, read(generation), NOW, &mut random()).cdb.to_vec();
        bytes[82] &= 0xF0;
        bytes[80 + generation.capability_len()..][..generation.icv_len()].fill(0);
        let floor = SecurityMethod::CmdRsp;
        assert_eq!(refused(&device, &bytes), Denial::BelowFloor { method: SecurityMethod::NoSec, floor });
        assert_eq!(*device.world.asked.borrow(), ["floor"], "nothing else was looked at");
    }
}

#[test]
fn each_floor_counts() {
    let secure = NexusSecurity { token: Some(TOKEN), secure_channel: true };
    for method in SecurityMethod::ALL {
        for floor in SecurityMethod::ALL {
            for channel in [NexusSecurity::default(), secure] {
                let mut device = Device::new();
                device.world.floor = floor;
                device.nexus = NexusSecurity { token: Some(TOKEN), ..channel };
                let nexus_floor =
                    if channel.secure_channel { SecurityMethod::CapKey } else { SecurityMethod::CmdRsp };
                let result = device.permit(
                    &sign(
                        &signer(&device.keys, &capability(Generation::Osd2, method)),
                        read(Generation::Osd2),
                        NOW,
                        &mut random(),
                    )
                    .cdb,
                );
                let floor = floor.max(nexus_floor);
                if method < floor {
                    assert_eq!(result, Err(Denial::BelowFloor { method, floor }));
                } else {
                    assert!(result.is_ok(), "{method} {floor}: {result:?}");
                }
            }
        }
    }
}

/// Attack C15 of docs/design/security.md, section 8.
#[test]
fn capkey_needs_secure_channel_or_permission() {
    let mut device = Device::new();
    let capability = capability(Generation::Osd2, SecurityMethod::CapKey);
    let bytes = sign(&signer(&device.keys, &capability), read(Generation::Osd2), NOW, &mut random()).cdb;
    assert!(matches!(refused(&device, &bytes), Denial::BelowFloor { .. }));
    device.nexus.secure_channel = true;
    assert!(device.permit(&bytes).is_ok());
    device.nexus.token = Some(SecurityToken([0x43; 32]));
    assert_eq!(refused(&device, &bytes), Denial::RequestIcv, "the token of another nexus");
    device.nexus.token = None;
    assert_eq!(refused(&device, &bytes), Denial::NoToken);
    let insecure = Device::with(GatePolicy { insecure_capkey: true, ..GatePolicy::default() });
    assert!(insecure.permit(&bytes).is_ok());
}

/// Attack K1 of docs/design/security.md, section 8.
#[test]
fn keys_are_never_set_below_cmdrsp() {
    for insecure_nosec in [false, true] {
        let mut device = Device::with(GatePolicy { insecure_nosec, ..GatePolicy::default() });
        device.nexus.secure_channel = true;
        let set =
            SetKey { partition: PARTITION, key: KeyToSet::Working(1), identifier: [0; 7], seed: [0; 20] };
        for method in SecurityMethod::ALL {
            let capability = Capability {
                object_type: ObjectType::Partition,
                object_created_ms: 0,
                descriptor: Descriptor::Partition { scope: Scope::default(), partition: PARTITION },
                ..capability(Generation::Osd2, method)
            };
            let slots = AlgorithmSlots::DEFAULT;
            let selector = KeySelector::Partition(PARTITION);
            let credential = Credential::issue_under(&device.keys, &slots, selector, &capability).unwrap();
            let signer = TestSigner::new(&credential, &slots).unwrap();
            let cdb = Cdb::new(Generation::Osd2, Command::SetKey(set));
            let result = device.permit(&sign(&signer, cdb, NOW, &mut random()).cdb);
            assert_eq!(result.is_ok(), method >= SecurityMethod::CmdRsp, "{method}: {result:?}");
        }
    }
}

#[test]
fn execute_function_needs_protected_arguments() {
    use sealstone_osd::cdb::ExecuteFunction;
    let Command::Read(extent) = read(Generation::Osd2).command else { panic!("READ") };
    let execute = Command::ExecuteFunction(ExecuteFunction { object: extent.object, allocation: 128 });
    for method in SecurityMethod::ALL {
        let mut device = Device::new();
        device.nexus = NexusSecurity { token: Some(TOKEN), secure_channel: true };
        let mut cdb = Cdb::new(Generation::Osd2, execute);
        cdb.continuation_length = 48;
        let signer = signer(&device.keys, &capability(Generation::Osd2, method));
        let mut parts = SentParts { continuation: &mut [0; 48], ..SentParts::default() };
        let bytes = signer.sign(cdb, &mut parts, NOW, Some(&TOKEN), &mut random()).unwrap().cdb;
        let admitted = device.admit(&bytes).map(drop).map_err(|refusal| refusal.denial);
        let floor = SecurityMethod::CmdRsp;
        let expected = if method < floor { Err(Denial::BelowFloor { method, floor }) } else { Ok(()) };
        assert_eq!(admitted, expected, "{method}");
    }
}

#[test]
fn a_working_key_sets_no_key() {
    let device = Device::new();
    let capability = Capability {
        object_type: ObjectType::Partition,
        object_created_ms: 0,
        descriptor: Descriptor::Partition { scope: Scope::default(), partition: PARTITION },
        ..capability(Generation::Osd2, SecurityMethod::AllData)
    };
    let signer = signer(&device.keys, &capability);
    for key in [KeyToSet::Root, KeyToSet::Partition, KeyToSet::Working(0)] {
        let set = SetKey { partition: PARTITION, key, identifier: [0; 7], seed: [0; 20] };
        let cdb = Cdb::new(Generation::Osd2, Command::SetKey(set));
        assert_eq!(refused(&device, &sign(&signer, cdb, NOW, &mut random()).cdb), Denial::RequestIcv);
    }
}

#[test]
fn nosec_needs_administrator_and_attributes() {
    let mut device = Device::with(GatePolicy { insecure_nosec: true, ..GatePolicy::default() });
    // As open-osd does: format 1 in an OSD-2 CDB, identifiers at the wrong offset.
    let mut cdb = read(Generation::Osd2);
    let mut wire = [0; 104];
    wire[0] = 1;
    wire[48] = 0x80;
    wire[49..51].copy_from_slice(&[0xFF, 0xE0]);
    cdb.capability = wire.into();
    let bytes = cdb.encode().unwrap();
    assert!(device.permit(&bytes).is_ok());
    assert!(device.admit(&bytes).is_ok_and(|admitted| admitted.capability().is_none()));
    wire[49] = 0x40;
    cdb.capability = wire.into();
    assert_eq!(refused(&device, &cdb.encode().unwrap()), Denial::Permission);
    device.world.floor = SecurityMethod::CapKey;
    assert!(matches!(refused(&device, &bytes), Denial::BelowFloor { .. }));
}

/// Attack C11 of docs/design/security.md, section 8.
#[test]
fn the_capability_of_another_device_is_refused() {
    let device = Device::new();
    let initial = InitialKey::new(&[0x5A; 32]).unwrap();
    let mut system = SYSTEM;
    system[19] ^= 1;
    let mut other = Keys::factory(Hash::Sha256, &initial, system);
    other.add_partition(PARTITION).unwrap();
    let signer = signer(&other, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    assert_eq!(
        refused(&device, &sign(&signer, read(Generation::Osd2), NOW, &mut random()).cdb),
        Denial::RequestIcv
    );
}

/// Attack C13 of docs/design/security.md, section 8.
#[test]
fn empty_slot_or_unset_key_is_refused() {
    let device = Device::new();
    let all = AlgorithmSlots::DEFAULT.with(5, Some(Algorithm::HmacSha256));
    for (slot, generation) in [(5, Generation::Osd2), (1, Generation::Osd1)] {
        let capability = Capability { icv_algorithm: slot, ..capability(generation, SecurityMethod::CmdRsp) };
        let mut bytes = read(generation);
        bytes.capability = capability.encode();
        assert_eq!(refused(&device, &bytes.encode().unwrap()), Denial::Algorithm(slot));
    }
    let osd1 = Capability { icv_algorithm: 1, ..capability(Generation::Osd1, SecurityMethod::CmdRsp) };
    assert!(matches!(Credential::issue(&device.keys, &all, &osd1), Err(IssueError::TagTooWide(_))));
    let mut cdb = read(Generation::Osd2);
    cdb.capability =
        Capability { key_version: 3, ..capability(Generation::Osd2, SecurityMethod::CmdRsp) }.encode();
    assert_eq!(refused(&device, &cdb.encode().unwrap()), Denial::KeyUnknown);
}

#[test]
fn the_format_of_the_other_generation_is_refused() {
    let device = Device::new();
    let wrong =
        Capability { format: Generation::Osd1, ..capability(Generation::Osd2, SecurityMethod::CmdRsp) };
    let bytes = sign(&signer(&device.keys, &wrong), read(Generation::Osd2), NOW, &mut random()).cdb;
    assert_eq!(refused(&device, &bytes), Denial::Format);
}

/// N1, N3, N5.
#[test]
fn signed_command_runs_once_within_window() {
    let mut device = Device::new();
    let signer = signer(&device.keys, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    let bytes = sign(&signer, read(Generation::Osd2), NOW, &mut random()).cdb;
    assert!(device.permit(&bytes).is_ok());
    for nexus in [NexusSecurity::default(), NexusSecurity { token: None, secure_channel: true }] {
        device.nexus = nexus;
        let denial = refused(&device, &bytes);
        assert_eq!((denial, denial.code().0), (Denial::Replayed, 0x2406));
    }
    for time in [NOW - 21_000, NOW + 11_000, 0, 0xFFFF_FFFF_FFFF] {
        let denial = refused(&device, &sign(&signer, read(Generation::Osd2), time, &mut random()).cdb);
        assert_eq!(denial, Denial::OutOfWindow { clock_ms: NOW });
        let sense = denial.sense(Generation::Osd2).unwrap();
        assert_eq!((sense.code.0, sense.information), (0x2407, Some(NOW)));
    }
    // The same nonce under another credential uses up nothing.
    let other = Capability { discriminator: [4; 12], ..capability(Generation::Osd2, SecurityMethod::CmdRsp) };
    let other = crate::common::signer(&device.keys, &other);
    let mut chance = random();
    let mut draws = move |into: &mut [u8]| {
        chance.fill(into);
        into.fill(0x77);
    };
    assert!(device.permit(&sign(&other, read(Generation::Osd2), NOW, &mut draws).cdb).is_ok());
    assert!(device.permit(&sign(&signer, read(Generation::Osd2), NOW, &mut draws).cdb).is_ok());
}

/// Attack K3 of docs/design/security.md, section 8.
#[test]
fn new_working_key_revokes_cached_credentials() {
    let mut device = Device::new();
    let signer = signer(&device.keys, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    let mut chance = random();
    assert!(device.permit(&sign(&signer, read(Generation::Osd2), NOW, &mut chance).cdb).is_ok());
    device.keys.set_working(PARTITION, 0, &[9; 20], [1; 7]).unwrap();
    let bytes = sign(&signer, read(Generation::Osd2), NOW, &mut chance).cdb;
    assert_eq!(refused(&device, &bytes), Denial::RequestIcv);
    device.keys.set_partition(PARTITION, &[9; 20], [1; 7]).unwrap();
    assert_eq!(refused(&device, &bytes), Denial::KeyUnknown);
}

#[test]
fn time_dependent_checks_run_for_each_command() {
    let mut device = Device::new();
    let signer = signer(&device.keys, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    let mut chance = random();
    let mut now = |device: &Device| {
        device.permit(&sign(&signer, read(Generation::Osd2), device.clock_ms, &mut chance).cdb)
    };
    assert!(now(&device).is_ok());
    device.world.frozen_keys = 1;
    assert_eq!(now(&device), Err(Denial::KeyFrozen));
    device.world.frozen_keys = 0xFFFE;
    device.world.frozen_audit = Some(*b"audit-vector-0000001");
    assert_eq!(now(&device), Err(Denial::AuditFrozen));
    device.world.frozen_audit = None;
    assert!(now(&device).is_ok());
    device.world.objects.get_mut(&OBJECT).unwrap().policy_access_tag += 1;
    assert_eq!(now(&device), Err(Denial::PolicyAccessTag));
    device.world.objects.get_mut(&OBJECT).unwrap().policy_access_tag -= 1;
    // C7: removed and created again.
    device.world.objects.get_mut(&OBJECT).unwrap().created_ms += 1;
    assert_eq!(now(&device), Err(Denial::CreatedTime));
    device.world.objects.get_mut(&OBJECT).unwrap().created_ms -= 1;
    device.clock_ms = NOW + 300_000;
    assert!(now(&device).is_ok());
    device.clock_ms += 1;
    assert_eq!(now(&device), Err(Denial::Expired));
}

type Change = fn(&mut Capability);

/// Each field of a capability that does not match the command, and the offset in the CDB that is
/// reported.
const MISFITS: [(Denial, u16, Change); 11] = [
    (Denial::Expired, 84, |c| c.expires_ms = NOW - 1),
    (Denial::CreatedTime, 122, |c| c.object_created_ms -= 1),
    (Denial::ObjectType, 128, |c| c.object_type = ObjectType::Collection),
    (Denial::Permission, 129, |c| c.permissions = Permissions::ALL_OSD2.without(Permissions::READ)),
    (Denial::DescriptorType, 135, |c| {
        c.descriptor = Descriptor::Collection { scope: scope(), allowed: OBJECT }
    }),
    (Denial::DescriptorType, 135, |c| {
        c.descriptor = Descriptor::Partition { scope: scope(), partition: PARTITION }
    }),
    (Denial::PolicyAccessTag, 140, |c| c.descriptor = user(|s, _, _| s.policy_access_tag = TAG + 1)),
    (Denial::BootEpoch, 144, |c| c.descriptor = user(|s, _, _| s.boot_epoch = BOOT_EPOCH - 1)),
    (Denial::Object, 160, |c| c.descriptor = user(|_, id, _| id.object += 1)),
    (Denial::Range, 168, |c| c.descriptor = user(|_, _, range| *range = Range { start: 0, length: 4095 })),
    (Denial::Range, 168, |c| c.descriptor = user(|_, _, range| *range = Range { start: 1, length: 1 << 40 })),
];

fn user(change: fn(&mut Scope, &mut ObjectId, &mut Range)) -> Descriptor {
    let (mut scope, mut allowed, mut range) = (scope(), OBJECT, Range { start: 0, length: 0 });
    change(&mut scope, &mut allowed, &mut range);
    Descriptor::User { scope, allowed, range }
}

/// C5 (pointer), C7, C17 and the rest of step 8.
#[test]
fn mismatched_fields_are_refused_with_pointers() {
    for (denial, at, change) in MISFITS {
        let device = Device::new();
        assert_eq!(try_read(&device, change), Err(denial));
        let sense = denial.sense(Generation::Osd2).unwrap();
        assert_eq!(sense.code.0, 0x2400);
        assert_eq!(sense.field.map(|field| (field.in_cdb, field.byte)), Some((true, at)), "{denial}");
    }
    assert!(try_read(&Device::new(), |c| c.descriptor = user(|s, _, _| s.boot_epoch = BOOT_EPOCH)).is_ok());
    let exact: Change = |c| c.descriptor = user(|_, _, range| *range = Range { start: 0, length: 4096 });
    assert!(try_read(&Device::new(), exact).is_ok());
}

/// The key of a partition signs for that partition: possession of a capability for another one
/// cannot even be proven.
#[test]
fn a_capability_about_another_partition_is_refused() {
    let mut device = Device::new();
    device.keys.add_partition(PARTITION + 1).unwrap();
    let other = Capability {
        descriptor: user(|_, id, _| id.partition += 1),
        ..capability(Generation::Osd2, SecurityMethod::CmdRsp)
    };
    let bytes = sign(&signer(&device.keys, &other), read(Generation::Osd2), NOW, &mut random()).cdb;
    assert_eq!(refused(&device, &bytes), Denial::RequestIcv);
    // Even if it is signed with the right key, the descriptor counts.
    let selector = KeySelector::Working { partition: PARTITION, version: 0 };
    let slots = AlgorithmSlots::DEFAULT;
    let credential = Credential::issue_under(&device.keys, &slots, selector, &other).unwrap();
    let signer = TestSigner::new(&credential, &slots).unwrap();
    let bytes = sign(&signer, read(Generation::Osd2), NOW, &mut random()).cdb;
    assert_eq!(refused(&device, &bytes), Denial::Partition);
}

#[test]
fn full_nonce_memory_returns_task_set_full() {
    for denial in [Denial::NonceFull, Denial::NonceShare] {
        assert_eq!(denial.status(), Status::TaskSetFull);
        assert_eq!(denial.sense(Generation::Osd2), None);
    }
    assert_eq!(Denial::RequestIcv.status(), Status::CheckCondition);
}

/// Attack N7 of docs/design/security.md, section 8.
#[test]
fn concurrent_duplicates_are_admitted_once() {
    let device = Device::new();
    let signer = signer(&device.keys, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    let bytes = sign(&signer, read(Generation::Osd2), NOW, &mut random()).cdb;
    let (gate, keys) = (&device.gate, &device.keys);
    let wins: usize = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..64)
            .map(|_| {
                scope.spawn(|| {
                    let cdb = Cdb::parse(&bytes).unwrap();
                    let world = World::new();
                    let nexus = NexusSecurity::default();
                    let request = GateRequest {
                        cdb: &cdb,
                        bytes: &bytes,
                        nexus: &nexus,
                        clock_ms: NOW,
                        boot_epoch: 1,
                        keys,
                        facts: &world,
                    };
                    usize::from(gate.admit(&request).is_ok())
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
}

proptest! {
    /// 4.5: no capability with method 0 passes a floor.
    #[test]
    fn no_invented_capability_passes_with_method_0(
        invented in proptest::array::uniform32(any::<u8>()),
        rest in proptest::collection::vec(any::<u8>(), 72),
        floor in 1_usize..4,
    ) {
        let mut device = Device::new();
        device.world.floor = SecurityMethod::ALL[floor];
        device.nexus.secure_channel = true;
        let mut bytes = remove(Generation::Osd2).encode().unwrap().to_vec();
        bytes[80..112].copy_from_slice(&invented);
        bytes[112..184].copy_from_slice(&rest);
        bytes[82] &= 0xF0;
        let denial = device.permit(&bytes).unwrap_err();
        let expected = Denial::BelowFloor { method: SecurityMethod::NoSec, floor: SecurityMethod::ALL[floor] };
        prop_assert_eq!(denial, expected);
    }

    /// Arbitrary capabilities and security parameters neither panic nor pass.
    #[test]
    fn no_random_bytes_are_admitted(tail in proptest::collection::vec(any::<u8>(), 148), osd1 in any::<bool>()) {
        let generation = if osd1 { Generation::Osd1 } else { Generation::Osd2 };
        let device = Device::new();
        let mut bytes = read(generation).encode().unwrap().to_vec();
        let end = bytes.len() - 8;
        let len = end - 80;
        bytes[80..end].copy_from_slice(&tail[..len]);
        prop_assert!(device.permit(&bytes).is_err_and(|denial| !denial.is_proven()));
    }
}
