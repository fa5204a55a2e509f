//! The vectors of docs/standards/vectors/digests.json, and the attack on AdHash.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sealstone_digest::{CoveredDigests, DataDirection, DigestCover, Profile, RangeHeader};
use serde_json::Value as Json;
use sha1::Sha1;

const VECTORS: &str = include_str!("../../../docs/standards/vectors/digests.json");
const FORGED: &str = include_str!("../../../docs/standards/vectors/adhash-forged.json");

fn vectors() -> Json {
    serde_json::from_str(VECTORS).expect("the vectors are JSON")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

fn object(length: u64) -> Vec<u8> {
    (0..length).map(|at| (7 * at + at / 251) as u8).collect()
}

#[test]
fn the_designs_read_is_bound_as_given() {
    let vectors = vectors();
    let given = &vectors["given"]["hiermac"];
    let bytes = object(20_000);
    let cover = DigestCover::new(Profile::Sha1, 5000, 12_000, 20_000);
    let covered = CoveredDigests::of(cover, &bytes[5000..17_000]);
    let digests: Vec<String> = covered.values().iter().map(|value| hex(value.as_bytes())).collect();
    assert_eq!(Json::from(digests), given["digests"]);
    let header = RangeHeader {
        profile: Profile::Sha1,
        direction: DataDirection::In,
        nonce: unhex("019b76daabe8aaaaaaaaaaaa").try_into().unwrap(),
        partition: 0x10000,
        object: 0x10001,
        start: 5000,
        moved: 12_000,
        object_length: 20_000,
        generation: 0,
        digests: 3,
        set_attributes: 0,
        get_attributes: 0,
    };
    assert_eq!(hex(&header.encode()), given["header"]);
    let key = unhex(given["cap_key"].as_str().unwrap());
    let mut mac = Hmac::<Sha1>::new_from_slice(&key).unwrap();
    mac.update(&header.encode());
    mac.update(&covered.to_bytes());
    assert_eq!(hex(&mac.finalize().into_bytes()), given["icv"]);
}

#[test]
fn sums_match_the_design_document() {
    let vectors = vectors();
    let unit = &object(8192)[..];
    let given = &vectors["given"]["adhash"];
    assert_eq!(hex(Profile::AdHash128.value(0, unit).as_bytes()), given["ad128"]);
    assert_eq!(hex(Profile::AdHash256.value(0, unit).as_bytes()), given["ad256"]);
}

/// Values of whole and short units, and of edges, of every profile, computed by a separate program
/// (`make_digests.py`).
#[test]
fn units_and_edges_match_independent_vectors() {
    let vectors = vectors();
    let bytes = object(40_000);
    let mut seen = 0;
    for row in vectors["values"].as_array().unwrap() {
        let profile = Profile::from_name(row["profile"].as_str().unwrap()).unwrap();
        let number = |name: &str| row[name].as_u64().unwrap();
        let (from, to) = (number("from"), number("to"));
        let data = &bytes[from as usize..to as usize];
        let value = match row["part"].as_str().unwrap() {
            "whole" => profile.value(from / profile.unit_bytes(), data),
            _ => profile.edge(from, data),
        };
        assert_eq!(hex(value.as_bytes()), row["value"], "{row}");
        seen += 1;
    }
    assert!(seen >= 16, "{seen} rows");
}

/// Broken as expected: a constructed block has the digest of another one under the literal reading
/// of the paper. The other profiles distinguish them.
#[test]
fn forged_block_collides_under_adhash128_only() {
    let blocks: Json = serde_json::from_str(FORGED).unwrap();
    let [original, forged] = ["original", "forged"].map(|name| unhex(blocks[name].as_str().unwrap()));
    assert_eq!((original.len(), forged.len()), (8192, 8192));
    let differing = original.iter().zip(&forged).filter(|(one, two)| one != two).count();
    assert!(differing > 4000, "{differing} bytes differ");
    for profile in Profile::ALL {
        let alike = profile.value(0, &original) == profile.value(0, &forged);
        assert_eq!(alike, profile == Profile::AdHash128, "{profile:?}");
    }
}
