//! Rights of a capability: every row of the command table, every permission, every attribute
//! page.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use crate::common::*;
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{GetPage, Segment, SetValue};
use sealstone_osd::table::SERVICE_ACTIONS;
use sealstone_osd::{
    AttributeId, AttributeParameters, Capability, Cdb, Descriptor, Generation, ObjectId, ObjectType,
    Permissions, SecurityMethod,
};
use sealstone_seal::*;

/// Creates a CDB of a row from raw bytes, so that no operand is omitted.
fn cdb_of(code: u16, object: ObjectId) -> Option<Cdb> {
    let mut bytes = [0; 236];
    bytes[0] = 0x7F;
    bytes[7] = 228;
    bytes[8..10].copy_from_slice(&code.to_be_bytes());
    bytes[11] = 0x30;
    if matches!(code, 0x8898) {
        bytes[11] |= if object.is_root() { 1 } else { 2 };
    }
    bytes[16..24].copy_from_slice(&object.partition.to_be_bytes());
    bytes[24..32].copy_from_slice(&object.object.to_be_bytes());
    if matches!(code, 0x88A0 | 0x8893 | 0x8F90 | 0x8F91) {
        bytes[48..52].copy_from_slice(&48_u32.to_be_bytes());
    }
    if matches!(code, 0x8F90) {
        // A range needs at least one byte.
        bytes[39] = 1;
    }
    if matches!(code, 0x8F91) {
        // The header of a reply needs 128 bytes.
        bytes[39] = 128;
    }
    bytes[228..].fill(0xFF);
    Cdb::parse(&bytes).ok()
}

/// Returns a capability for one type of object and the object of a CDB, with these permissions.
fn about(object_type: ObjectType, object: ObjectId, permissions: Permissions) -> Capability {
    let scope = Scope::default();
    let descriptor = match object_type {
        ObjectType::Root | ObjectType::Partition => {
            Descriptor::Partition { scope, partition: object.partition }
        }
        ObjectType::Collection => Descriptor::Collection { scope, allowed: object },
        ObjectType::User => Descriptor::User { scope, allowed: object, range: Range { start: 0, length: 0 } },
    };
    Capability {
        object_created_ms: 0,
        object_type,
        permissions,
        descriptor,
        ..capability(Generation::Osd2, SecurityMethod::CmdRsp)
    }
}

fn permit(
    device: &Device,
    cdb: Cdb,
    capability: &Capability,
    random: &mut dyn Random,
) -> Result<Permit, Denial> {
    let slots = AlgorithmSlots::DEFAULT;
    let selector = selector(&cdb.command, 0);
    let credential = Credential::issue_under(&device.keys, &slots, selector, capability).unwrap();
    let signer = TestSigner::new(&credential, &slots).unwrap();
    let segment = &mut vec![0; cdb.continuation_length as usize][..];
    let mut parts = SentParts { continuation: segment, ..SentParts::default() };
    let data = vec![0; cdb.command.data_out_len() as usize];
    let pieces = [&data[..]];
    parts.data = &pieces;
    device.permit(&signer.sign(cdb, &mut parts, NOW, None, random).unwrap().cdb)
}

/// C5: with exactly its permissions each command of the table is permitted; without any one of
/// them, or with the wrong type of object, it is refused.
#[test]
fn every_command_needs_its_permissions_and_type() {
    let device = Device::new();
    let mut chance = random();
    let objects =
        [ObjectId::ROOT, ObjectId::of_partition(PARTITION), ObjectId::new(PARTITION, 0x1_0002), OBJECT];
    let (mut rows, mut refusals) = (0, 0);
    for row in SERVICE_ACTIONS {
        let mut permitted = 0;
        for object in objects {
            let cdb = cdb_of(row.code(Generation::Osd2).unwrap(), object)
                .unwrap_or_else(|| panic!("{} does not parse", row.name));
            let (object, needed) = (cdb.command.object(), cdb.command.permissions());
            for kind in [ObjectType::Root, ObjectType::Partition, ObjectType::Collection, ObjectType::User] {
                let exact = about(kind, object, needed);
                let fits = permit(&device, cdb, &exact, &mut chance);
                if !cdb.command.object_types().contains(&kind) {
                    assert_eq!(fits, Err(Denial::ObjectType), "{} {kind:?}", row.name);
                    continue;
                }
                if fits.is_err() {
                    continue; // the object exists and is of another type
                }
                permitted += 1;
                for (bit, name) in Permissions::NAMES.iter().filter(|(bit, _)| needed.contains(*bit)) {
                    let lacking = about(kind, object, Permissions::ALL_OSD2.without(*bit));
                    let denial = permit(&device, cdb, &lacking, &mut chance);
                    assert_eq!(denial, Err(Denial::Permission), "{} without {name}", row.name);
                    refusals += 1;
                }
                let denial = permit(&device, cdb, &about(kind, object, Permissions::NONE), &mut chance);
                assert_eq!(denial, Err(Denial::Permission), "{} with nothing", row.name);
            }
        }
        assert!(permitted > 0, "{} is never permitted", row.name);
        rows += 1;
    }
    assert_eq!(rows, SERVICE_ACTIONS.len());
    assert!(refusals >= rows);
}

/// Attack C9 of docs/design/security.md, section 8.
#[test]
fn attributes_beside_a_command_need_their_own_permission() {
    let device = Device::new();
    let mut chance = random();
    let get = GetPage { page: 1, retrieved: Segment { offset: 4096, length: 64 } };
    let set = SetValue { id: AttributeId::new(1, 9), value: Segment::default() };
    let page = |get, set| AttributeParameters::Page { get, set };
    let one = AttributeParameters::One { id: AttributeId::new(1, 9), length: 0, value: [0; 18] };
    for (attributes, needed) in [
        (page(Some(get), None), Permissions::GET_ATTR),
        (page(None, Some(set)), Permissions::SET_ATTR),
        (page(Some(get), Some(set)), Permissions::GET_ATTR | Permissions::SET_ATTR),
        (one, Permissions::SET_ATTR),
    ] {
        let cdb = Cdb { attributes, ..read(Generation::Osd2) };
        let bare = about(ObjectType::User, OBJECT, Permissions::READ);
        assert_eq!(permit(&device, cdb, &bare, &mut chance), Err(Denial::Permission));
        let enough = about(ObjectType::User, OBJECT, Permissions::READ | needed);
        assert!(permit(&device, cdb, &enough, &mut chance).is_ok());
    }
}

#[test]
fn policy_and_quota_pages_need_extra_permissions() {
    let device = Device::new();
    let world = &device.world;
    let mut chance = random();
    let mut with = |permissions| {
        let capability = about(ObjectType::User, OBJECT, permissions | Permissions::READ);
        permit(&device, read(Generation::Osd2), &capability, &mut chance).unwrap()
    };
    let (get, set) = (Permissions::GET_ATTR, Permissions::SET_ATTR);
    let plain = AttributeId::new(1, 9);
    assert_eq!(with(Permissions::NONE).check_get(plain, world), Err(Denial::Permission));
    assert_eq!(with(get).check_get(plain, world), Ok(()));
    assert_eq!(with(get).check_set(plain, &[], world), Err(Denial::Permission));
    assert_eq!(with(set).check_set(plain, &[], world), Ok(()));
    for page in POLICY_SECURITY_PAGES.into_iter().chain([MINIMUM_METHOD_PAGE]) {
        let guarded = AttributeId::new(page, 1);
        assert_eq!(with(get | set).check_get(guarded, world), Err(Denial::Permission));
        assert_eq!(with(get | set).check_set(guarded, &[], world), Err(Denial::Permission));
        assert_eq!(with(get | Permissions::POL_SEC).check_get(guarded, world), Ok(()));
        assert_eq!(with(set | Permissions::POL_SEC).check_set(guarded, &[], world), Ok(()));
    }
    for page in QUOTAS_PAGES {
        let quota = AttributeId::new(page, 1);
        assert_eq!(with(get).check_get(quota, world), Ok(()));
        assert_eq!(with(set).check_set(quota, &[], world), Err(Denial::Permission));
        assert_eq!(with(set | Permissions::OBJ_MGMT).check_set(quota, &[], world), Ok(()));
    }
}

#[test]
fn allowed_attributes_access_restricts_to_its_list() {
    let mut device = Device::new();
    device.world.allowed.push((PARTITION, 3, AttributeId::new(1, 9)));
    let scope = Scope { attributes_access: 3, ..Scope::default() };
    let capability = Capability {
        descriptor: Descriptor::User { scope, allowed: OBJECT, range: Range { start: 0, length: 0 } },
        ..about(ObjectType::User, OBJECT, Permissions::ALL_OSD2)
    };
    let permit = permit(&device, read(Generation::Osd2), &capability, &mut random()).unwrap();
    assert_eq!(permit.check_get(AttributeId::new(1, 9), &device.world), Ok(()));
    assert_eq!(permit.check_get(AttributeId::new(1, 10), &device.world), Err(Denial::AttributesAccess));
    assert_eq!(permit.check_set(AttributeId::new(1, 10), &[], &device.world), Err(Denial::AttributesAccess));
}

#[test]
fn a_range_restricts_every_byte_and_every_piece() {
    let device = Device::new();
    let mut chance = random();
    let ranged = |start, length| Capability {
        descriptor: Descriptor::User {
            scope: Scope::default(),
            allowed: OBJECT,
            range: Range { start, length },
        },
        ..about(ObjectType::User, OBJECT, Permissions::ALL_OSD2)
    };
    let permit_all = permit(&device, read(Generation::Osd2), &ranged(0, 8192), &mut chance).unwrap();
    assert_eq!(permit_all.check_range(4096, 4096), Ok(()));
    assert_eq!(permit_all.check_range(4096, 4097), Err(Denial::Range));
    assert_eq!(permit_all.check_range(u64::MAX, 2), Err(Denial::Range));
    let scattered = Cdb { continuation_length: 56, ..read(Generation::Osd2) };
    let pieces = permit(&device, scattered, &ranged(100, 50), &mut chance).unwrap();
    for (start, length) in [(100, 50), (149, 1), (150, 0)] {
        assert_eq!(pieces.check_range(start, length), Ok(()));
    }
    for (start, length) in [(99, 1), (150, 1), (100, 51), (0, 0), (151, 0)] {
        assert_eq!(pieces.check_range(start, length), Err(Denial::Range), "{start} {length}");
    }
}

/// A new object has no tag yet: its partition's tag counts.
#[test]
fn create_uses_the_partition_tag() {
    let mut device = Device::new();
    let mut chance = random();
    let code = 0x8882;
    let object = ObjectId::of_partition(PARTITION);
    let cdb = cdb_of(code, object).unwrap();
    let scope = Scope { policy_access_tag: TAG, ..Scope::default() };
    let capability = Capability {
        descriptor: Descriptor::User { scope, allowed: object, range: Range { start: 0, length: 0 } },
        ..about(ObjectType::User, object, Permissions::CREATE)
    };
    assert!(permit(&device, cdb, &capability, &mut chance).is_ok());
    device.world.objects.get_mut(&object).unwrap().policy_access_tag = TAG + 1;
    assert_eq!(permit(&device, cdb, &capability, &mut chance), Err(Denial::PolicyAccessTag));
    let named = cdb_of(code, OBJECT).unwrap();
    assert_eq!(permit(&device, named, &capability, &mut chance), Err(Denial::Object));
}

/// 4.4: CAPKEY protects no attribute list, so it cannot set policy attributes.
#[test]
fn capkey_sets_no_policy_attribute() {
    let mut device = Device::new();
    device.nexus.secure_channel = true;
    let capability = Capability {
        method: SecurityMethod::CapKey,
        ..about(ObjectType::User, OBJECT, Permissions::ALL_OSD2)
    };
    let signer = signer(&device.keys, &capability);
    let permit = device.permit(&sign(&signer, read(Generation::Osd2), NOW, &mut random()).cdb).unwrap();
    assert_eq!(permit.method(), SecurityMethod::CapKey);
    let guarded = AttributeId::new(POLICY_SECURITY_PAGES[3], 0x4000_0001);
    assert!(matches!(permit.check_set(guarded, &[], &device.world), Err(Denial::BelowFloor { .. })));
    assert_eq!(permit.check_set(AttributeId::new(1, 9), &[], &device.world), Ok(()));
}
