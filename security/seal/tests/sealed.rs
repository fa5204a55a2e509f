//! Sealed capabilities: only the device can read them, and they cannot be changed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use crate::common::*;
use proptest::prelude::*;
use sealstone_osd::capability::Range;
use sealstone_osd::{Capability, Cdb, Descriptor, Generation, Permissions, SecurityMethod};
use sealstone_seal::*;

const OSD2: Generation = Generation::Osd2;

fn sealed(device: &Device, capability: &Capability) -> Credential {
    Credential::issue_sealed(&device.keys, &AlgorithmSlots::DEFAULT, capability).unwrap()
}

fn signed(device: &Device, capability: &Capability) -> Vec<u8> {
    let signer = TestSigner::new(&sealed(device, capability), &AlgorithmSlots::DEFAULT).unwrap();
    sign(&signer, read(OSD2), NOW, &mut random()).cdb.to_vec()
}

fn refused(device: &Device, bytes: &[u8]) -> Denial {
    device.admit(bytes).err().expect("refused").denial
}

fn strict() -> Device {
    Device::with(GatePolicy { sealed_only: true, ..GatePolicy::default() })
}

#[test]
fn sealed_capability_grants_the_same_rights() {
    for method in [SecurityMethod::CmdRsp, SecurityMethod::AllData] {
        let device = strict();
        let capability = capability(OSD2, method);
        let bytes = signed(&device, &capability);
        let permit = device.permit(&bytes).unwrap();
        assert_eq!(permit.method(), method);
        // A second command finds the decrypted capability in the cache.
        let again = TestSigner::new(&sealed(&device, &capability), &AlgorithmSlots::DEFAULT).unwrap();
        let mut random = random();
        random.fill(&mut [0]);
        assert!(device.permit(&sign(&again, read(OSD2), NOW + 1, &mut random).cdb).is_ok());
        assert_eq!(device.gate.credentials().len(), 1);
        let wire = &bytes[80..184];
        for part in
            [&OBJECT.object.to_be_bytes()[..], &capability.audit, &capability.expires_ms.to_be_bytes()[2..]]
        {
            assert!(!wire.windows(part.len()).any(|window| window == part));
        }
        // An open one is refused by a device that requires seals, before its key is checked.
        let open =
            sign(&signer(&device.keys, &capability), read(OSD2), NOW, &mut crate::common::random()).cdb;
        assert_eq!(refused(&device, &open), Denial::Seal);
    }
}

/// The restrictions of a sealed capability apply: range, permission, object, time.
#[test]
fn sealed_restrictions_are_enforced() {
    let device = Device::new();
    let base = capability(OSD2, SecurityMethod::CmdRsp);
    let descriptor = |range| match base.descriptor {
        Descriptor::User { scope, allowed, .. } => Descriptor::User { scope, allowed, range },
        other => other,
    };
    for (capability, denial) in [
        (Capability { permissions: Permissions::WRITE, ..base }, Denial::Permission),
        (Capability { expires_ms: NOW - 1, ..base }, Denial::Expired),
        (Capability { object_created_ms: 1, ..base }, Denial::CreatedTime),
        (Capability { descriptor: descriptor(Range { start: 0, length: 4095 }), ..base }, Denial::Range),
    ] {
        assert_eq!(device.permit(&signed(&device, &capability)), Err(denial));
    }
    let mut frozen = Device::new();
    frozen.world.frozen_audit = Some(base.audit);
    assert_eq!(frozen.permit(&signed(&frozen, &base)), Err(Denial::AuditFrozen), "the audit field is kept");
}

/// The downgrade: even if the device trusts the capability's method, changing it breaks the seal.
#[test]
fn sealed_capability_cannot_be_changed() {
    let mut device =
        Device::with(GatePolicy { sealed_only: true, insecure_nosec: true, ..GatePolicy::default() });
    device.world.floor = SecurityMethod::NoSec;
    let bytes = signed(&device, &capability(OSD2, SecurityMethod::CapKey));
    assert!(device.permit(&bytes).is_ok());
    let mut attack = bytes.clone();
    attack[82] &= 0xF0;
    attack[184..216].fill(0);
    assert_eq!(refused(&device, &attack), Denial::Seal);
    for bit in 80 * 8..184 * 8 {
        let mut forged = bytes.clone();
        forged[bit / 8] ^= 0x80 >> (bit % 8);
        let denial = refused(&device, &forged);
        assert!(!denial.is_proven(), "bit {bit}: {denial}");
        // And without a check value, by NOSEC.
        forged[82] &= 0xF0;
        assert!(!refused(&device, &forged).is_proven(), "bit {bit}");
    }
}

/// The same attack on the same weak device without seals succeeds.
#[test]
fn unsealed_downgrade_succeeds_on_weak_device() {
    let mut device = Device::with(GatePolicy { insecure_nosec: true, ..GatePolicy::default() });
    device.world.floor = SecurityMethod::NoSec;
    let open = capability(OSD2, SecurityMethod::CapKey);
    let mut attack = sign(&signer(&device.keys, &open), read(OSD2), NOW, &mut random()).cdb.to_vec();
    attack[82] &= 0xF0;
    attack[184..216].fill(0);
    assert!(device.permit(&attack).is_ok());
}

#[test]
fn foreign_seal_does_not_open() {
    let device = strict();
    let capability = capability(OSD2, SecurityMethod::CmdRsp);
    let bytes = signed(&device, &capability);
    let mut other = strict();
    other.keys.set_working(PARTITION, 0, &[9; 20], [1; 7]).unwrap();
    assert_eq!(refused(&other, &bytes), Denial::Seal);
    other.keys.set_partition(PARTITION, &[9; 20], [1; 7]).unwrap();
    assert_eq!(refused(&other, &bytes), Denial::KeyUnknown);
    assert!(device.permit(&bytes).is_ok());
}

#[test]
fn only_osd2_capabilities_have_room_for_a_seal() {
    let device = Device::new();
    let capability = capability(Generation::Osd1, SecurityMethod::CmdRsp);
    let issued = Credential::issue_sealed(&device.keys, &AlgorithmSlots::DEFAULT, &capability);
    assert_eq!(issued.err(), Some(IssueError::NoRoomForSeal(Generation::Osd1)));
    // And format Eh in an OSD-1 CDB is invalid.
    let mut bytes =
        sign(&signer(&device.keys, &capability), read(Generation::Osd1), NOW, &mut random()).cdb.to_vec();
    bytes[80] = 0x0E;
    assert!(matches!(refused(&device, &bytes), Denial::Capability(_)));
}

proptest! {
    /// Arbitrary bytes of format Eh are refused, never a panic.
    #[test]
    fn arbitrary_sealed_bytes_are_refused(noise in proptest::collection::vec(any::<u8>(), 103), method in 0..4_u8) {
        let mut device = Device::with(GatePolicy { insecure_nosec: true, ..GatePolicy::default() });
        device.world.floor = SecurityMethod::NoSec;
        let mut bytes = signed(&device, &capability(OSD2, SecurityMethod::CmdRsp));
        bytes[81..184].copy_from_slice(&noise);
        bytes[82] = method;
        prop_assert!(Cdb::parse(&bytes).is_ok());
        prop_assert!(!refused(&device, &bytes).is_proven());
    }
}
