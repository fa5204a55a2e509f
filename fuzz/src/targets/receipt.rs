//! `sealstone-seal`: receipts of functions. Only bytes that the key sealed are verified.

use std::sync::OnceLock;

use sealstone_crypto::RustCrypto;
use sealstone_osd::ObjectId;
use sealstone_seal::{
    FunctionReceipt, Hash, InitialKey, KeyHierarchy, ReceiptInput, ReceiptKey, ReceiptLimits,
};

use crate::Target;

const SYSTEM: [u8; 20] = [7; 20];

fn key() -> &'static ReceiptKey<RustCrypto> {
    static KEY: OnceLock<ReceiptKey<RustCrypto>> = OnceLock::new();
    KEY.get_or_init(|| {
        let initial = InitialKey::new(&[1; 32]).expect("32 bytes are a key");
        let keys = KeyHierarchy::factory(Hash::Sha256, &initial, SYSTEM);
        keys.receipt_key().expect("a new device has a root key")
    })
}

fn example(inputs: usize) -> FunctionReceipt {
    let object = |number: u64| ObjectId::new(0x10000, 0x10000 + number);
    let input = ReceiptInput {
        object: object(5),
        rights: 0x80,
        kind: 0x80,
        length: 1 << 20,
        version: 1_700_000_000_000,
        unchanged: true,
        digest: Some([9; 32]),
    };
    let (wall_ms, cpu_ms, memory, output) = (30_000, 10_000, 1 << 28, 1 << 24);
    FunctionReceipt {
        engine: 1,
        exit: 0,
        error: -22,
        secret_arguments: true,
        system_id: SYSTEM,
        job: [3; 16],
        function: object(4),
        code_digest: [4; 32],
        arguments_digest: [5; 32],
        result_digest: [6; 32],
        result_length: 100_000,
        result_object: Some(object(6)),
        api: (1, 0),
        audit: [8; 20],
        started_ms: 1_700_000_000_100,
        ended_ms: 1_700_000_000_200,
        limits: ReceiptLimits { wall_ms, cpu_ms, memory, output, calls: 9, bytes: 1 },
        bytes_read: 1 << 20,
        bytes_written: 100_000,
        cpu_us: 1234,
        inputs: vec![input; inputs],
    }
}

fn seeds() -> Vec<Vec<u8>> {
    [0, 3].map(|inputs| key().seal(&example(inputs)).expect("few inputs")).to_vec()
}

fn receipt(input: &[u8]) {
    let verified = key().verify(input).is_ok();
    let Some(parsed) = FunctionReceipt::parse_unverified(input) else {
        assert!(!verified, "a receipt that does not parse was verified");
        return;
    };
    let sealed = key().seal(&parsed).expect("no more inputs than parse");
    assert_eq!(sealed.len(), input.len());
    assert_eq!(verified, sealed == input, "a receipt of this key has one encoding");
}

pub(crate) const RECEIPT: Target = Target {
    name: "seal-receipt",
    about: "a receipt of a function; only what the key sealed is verified",
    run: receipt,
    seeds,
    cost: 2,
    quarantine: None,
    covers: &["seal::FunctionReceipt::parse_unverified"],
};
