//! Receipts of functions: both ends have the key, and every byte counts.

use proptest::prelude::*;
use sealstone_crypto::RustCrypto;
use sealstone_osd::ObjectId;
use sealstone_seal::{
    FunctionReceipt, Hash, InitialKey, KeyHierarchy, RECEIPT_INPUTS_MAX, RECEIPT_LEN_MAX, ReceiptInput,
    ReceiptLimits, ReceiptRefusal,
};

const SYSTEM: [u8; 20] = [7; 20];

fn hierarchy(system_id: [u8; 20]) -> KeyHierarchy<RustCrypto> {
    KeyHierarchy::factory(Hash::Sha256, &InitialKey::new(&[1; 32]).unwrap(), system_id)
}

fn receipt(inputs: usize) -> FunctionReceipt {
    let input = ReceiptInput {
        object: ObjectId::new(0x10000, 0x10005),
        rights: 0x80,
        kind: 0x80,
        length: 1 << 20,
        version: 1_700_000_000_000,
        unchanged: true,
        digest: Some([9; 32]),
    };
    FunctionReceipt {
        engine: 1,
        exit: 0,
        error: -22,
        secret_arguments: true,
        system_id: SYSTEM,
        job: [3; 16],
        function: ObjectId::new(0x10000, 0x10004),
        code_digest: [4; 32],
        arguments_digest: [5; 32],
        result_digest: [6; 32],
        result_length: 100_000,
        result_object: Some(ObjectId::new(0x10000, 0x10006)),
        api: (1, 0),
        audit: [8; 20],
        started_ms: 1_700_000_000_100,
        ended_ms: 1_700_000_000_200,
        limits: ReceiptLimits {
            wall_ms: 30_000,
            cpu_ms: 10_000,
            memory: 1 << 28,
            output: 1 << 24,
            calls: 9,
            bytes: 1,
        },
        bytes_read: 1 << 20,
        bytes_written: 100_000,
        cpu_us: 1234,
        inputs: vec![input; inputs],
    }
}

#[test]
fn manager_verifies_receipt_of_its_device() {
    let (device, manager) = (hierarchy(SYSTEM), hierarchy(SYSTEM));
    let issued = receipt(RECEIPT_INPUTS_MAX);
    let bytes = device.receipt_key().unwrap().seal(&issued).unwrap();
    assert_eq!(bytes.len(), RECEIPT_LEN_MAX);
    assert_eq!(manager.verify_receipt(&bytes).unwrap(), issued);
    assert!(device.receipt_key().unwrap().seal(&receipt(RECEIPT_INPUTS_MAX + 1)).is_none());
}

#[test]
fn every_changed_byte_is_refused() {
    let device = hierarchy(SYSTEM);
    let key = device.receipt_key().unwrap();
    let bytes = key.seal(&receipt(2)).unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(key.verify(&changed).is_err(), "byte {at}");
    }
    assert_eq!(key.verify(&bytes[..bytes.len() - 1]), Err(ReceiptRefusal::Malformed));
}

#[test]
fn other_devices_and_old_keys_are_named() {
    let mut device = hierarchy(SYSTEM);
    let bytes = device.receipt_key().unwrap().seal(&receipt(0)).unwrap();
    assert_eq!(hierarchy([8; 20]).verify_receipt(&bytes), Err(ReceiptRefusal::AnotherDevice));
    device.set_root(&[2; 20], [1; 7]);
    assert_eq!(device.verify_receipt(&bytes), Err(ReceiptRefusal::KeyReplaced));
    let mut forged = device.receipt_key().unwrap().seal(&receipt(0)).unwrap();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(device.verify_receipt(&forged), Err(ReceiptRefusal::Forged));
}

proptest! {
    #[test]
    fn arbitrary_receipt_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..800)) {
        let _ = FunctionReceipt::parse_unverified(&bytes);
        prop_assert!(hierarchy(SYSTEM).verify_receipt(&bytes).is_err());
    }
}
