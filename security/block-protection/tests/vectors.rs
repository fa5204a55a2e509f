//! The vectors of docs/standards/vectors/block-lazy.json, of an independent implementation.

use sealstone_block_protection::{
    Generation, HeaderSealer, LoginTranscript, PduDirection, ProofRole, ProtectedBlock, ProtectionLevel,
    ProtectionProfile, ProtectionSettings, SessionKeys, SessionSecrets, UnitKeys,
};
use serde_json::Value;

const VECTORS: &str = include_str!("../../../docs/standards/vectors/block-lazy.json");

fn unhex(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("a string");
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn vectors() -> Value {
    serde_json::from_str(VECTORS).expect("valid JSON")
}

fn unit_keys(vectors: &Value) -> UnitKeys {
    let bytes = unhex(&vectors["unit_keys"]["bytes"]);
    let (keys, session) = UnitKeys::parse(&bytes).expect("keys");
    assert_eq!(u64::from(session), number(&vectors["unit_keys"]["session"]));
    assert_eq!(keys.encode(session)[..], bytes);
    keys
}

#[test]
fn blocks_have_published_tags_and_bytes() {
    use sha2::Digest as _;
    let vectors = vectors();
    let keys = unit_keys(&vectors);
    for vector in vectors["blocks"].as_array().expect("a list") {
        let [lba, session, count, length] =
            ["lba", "session", "count", "length"].map(|name| number(&vector[name]));
        let plain: Vec<u8> = (0..length).map(|at| ((7 * at + at / 251) % 256) as u8).collect();
        let generation = Generation::new(session as u32, count as u32);
        let mut block = plain.clone();
        let tag = keys.seal_block(lba, generation, &mut block).expect("an epoch");
        assert_eq!(tag.to_vec(), unhex(&vector["tag"]), "{vector}");
        assert_eq!(sha2::Sha256::digest(&block).to_vec(), unhex(&vector["sealed_sha256"]));
        assert!(keys.open_block(lba, generation, &tag, &mut block));
        assert_eq!(block, plain);
    }
}

#[test]
fn headers_have_published_bytes() {
    let vectors = vectors();
    let settings = ProtectionSettings {
        level: ProtectionLevel::ModernLazy,
        block: ProtectedBlock::B4096,
        profile: ProtectionProfile::Modern,
        record: None,
    };
    let transcript = LoginTranscript {
        initiator: "iqn.i",
        target: "iqn.t",
        isid: [1; 6],
        settings,
        initiator_nonce: [2; 32],
        target_nonce: [3; 32],
    };
    let secrets = SessionSecrets { chap: b"a secret of CHAP", tls_exporter: &[4; 32] };
    let keys = SessionKeys::derive(secrets, &transcript).expect("a secret");
    let session = &vectors["session"];
    assert_eq!(keys.proof(ProofRole::Target).to_vec(), unhex(&session["target_proof"]));
    let (level, profile) = (settings.level, settings.profile);
    let mut sealer = HeaderSealer::new(keys.header_keys(), level, profile, PduDirection::ToTarget, 0);
    for vector in session["headers"].as_array().expect("a list") {
        let words = number(&vector["ahs_words"]) as u8;
        let mut bhs = [0x11; 48];
        bhs[4] = words;
        let mut ahs = vec![0x22; usize::from(words) * 4];
        let mac = sealer.seal(&mut bhs, &mut ahs).expect("sealed").expect("a MAC");
        assert_eq!(bhs.to_vec(), unhex(&vector["bhs"]), "{vector}");
        assert_eq!(ahs, unhex(&vector["ahs"]));
        assert_eq!(mac.to_vec(), unhex(&vector["mac"]));
    }
}
