//! The vectors in `docs/standards/vectors/`, recomputed with the public functions.
//!
//! `make.py` there created them independently of this code. The files and their description suffice
//! for another implementation.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use std::path::Path;

use crate::common::*;
use sealstone_crypto::RustCrypto;
use sealstone_digest::{CoveredDigests, DataDirection, DigestCover, Profile};
use sealstone_osd::{CapabilityBytes, Cdb, Generation, ObjectId, SecurityMethod};
use sealstone_seal::hierarchy::{derive_master, derive_pair, derive_working, factory_seed};
use sealstone_seal::icv::{LABELS, Purpose, purpose_key};
use sealstone_seal::layout::{CONTINUATION_ICV, SecurityFields};
use sealstone_seal::*;
use serde_json::Value;

fn file(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/standards/vectors").join(name);
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap()
}

/// Returns the entries of a file; there must be as many as its description says.
fn vectors(name: &str, count: usize) -> Vec<Value> {
    let all = file(name)["vectors"].as_array().unwrap().clone();
    assert_eq!(all.len(), count, "{name}");
    all
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn generation(vector: &Value) -> Generation {
    if vector["generation"] == 1 { Generation::Osd1 } else { Generation::Osd2 }
}

fn algorithm(vector: &Value) -> Algorithm {
    Algorithm::from_code(hex(&vector["algorithm"])[0]).unwrap()
}

fn method(vector: &Value) -> SecurityMethod {
    let name = vector["method"].as_str().unwrap();
    SecurityMethod::ALL.into_iter().find(|method| method.to_string() == name).unwrap()
}

fn nonce(vector: &Value) -> Nonce {
    Nonce(hex(&vector["nonce"]).try_into().unwrap())
}

fn icv_keys(vector: &Value) -> IcvKeys<RustCrypto> {
    let key = CapabilityKey::new(&hex(&vector["capability_key"])).unwrap();
    IcvKeys::new(algorithm(vector), &key, method(vector))
}

fn placed(tag: Tag, generation: Generation) -> Vec<u8> {
    let mut field = vec![0; generation.icv_len()];
    assert!(tag.place(&mut field));
    field
}

fn tag(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    RustCrypto::tag(&RustCrypto::mac_key(hash, key), parts).as_bytes().to_vec()
}

/// Every combination of generation and algorithm whose tags fit: OSD-1 with 01h; OSD-2 with 01h,
/// F1h, F0h.
const COMBINATIONS: usize = 4;

#[test]
fn capability_keys() {
    for vector in vectors("credentials.json", COMBINATIONS * 3) {
        let bytes = hex(&vector["capability"]);
        let capability = CapabilityBytes::new(generation(&vector), &bytes).unwrap();
        assert!(capability.is_canonical());
        let parsed = capability.parse().unwrap();
        assert_eq!(
            (parsed.method, u64::from(parsed.icv_algorithm)),
            (method(&vector), vector["slot"].as_u64().unwrap())
        );
        let hash = algorithm(&vector).hash();
        let key = tag(hash, &hex(&vector["working_key"]), &[&bytes, &hex(&vector["system_id"])]);
        assert_eq!(key, hex(&vector["capability_key"]));
        for ((purpose, _), name) in LABELS.into_iter().zip(["request", "response", "data_in", "data_out"]) {
            let expected = hex(&vector["purpose_keys"][name]);
            if algorithm(&vector).is_split() {
                let split = purpose_key::<RustCrypto>(&RustCrypto::mac_key(hash, &key), purpose);
                assert_eq!(split.as_bytes(), expected, "{purpose:?}");
            } else {
                assert_eq!(expected, key);
            }
        }
    }
    assert_eq!(LABELS[0].0, Purpose::Request);
}

#[test]
fn requests() {
    for vector in vectors("requests.json", COMBINATIONS * 5) {
        let (keys, generation) = (icv_keys(&vector), generation(&vector));
        let expected = hex(&vector["request_icv"]);
        if method(&vector) == SecurityMethod::CapKey {
            let token = SecurityToken(hex(&vector["security_token"]).try_into().unwrap());
            assert_eq!(placed(keys.token(&token), generation), expected);
            continue;
        }
        let mut wire = hex(&vector["cdb"]);
        assert_eq!(placed(keys.request(generation, &wire).unwrap(), generation), expected);
        // With the value in its field the result is the same, and the CDB is valid.
        wire[SecurityFields::of(generation).request_icv].copy_from_slice(&expected);
        assert_eq!(placed(keys.request(generation, &wire).unwrap(), generation), expected);
        let cdb = Cdb::parse(&wire).unwrap();
        assert_eq!(cdb.security.request_icv[..expected.len()], expected);
        assert_eq!(&*cdb.capability, hex(&vector["capability"]));
        assert_eq!(&*cdb.encode().unwrap(), wire);
    }
}

#[test]
fn responses() {
    for vector in vectors("responses.json", COMBINATIONS * 4) {
        let (keys, generation) = (icv_keys(&vector), generation(&vector));
        let status = vector["status"].as_u64().unwrap() as u8;
        let (wire, expected) = (hex(&vector["sense"]), hex(&vector["response_icv"]));
        let covered = if status == 0 { &[][..] } else { &wire };
        assert_eq!(placed(keys.response(&nonce(&vector), status, covered), generation), expected);
        let field = sense::response_icv_field(&wire).unwrap();
        assert_eq!(wire[field], expected);
        assert_eq!(sense::good_carrier(&wire).is_some(), status == 0);
        sealstone_scsi::Sense::parse(&wire).unwrap();
    }
}

#[test]
fn data() {
    for vector in vectors("data.json", COMBINATIONS * 2) {
        let (keys, generation, nonce) = (icv_keys(&vector), generation(&vector), nonce(&vector));
        let content: Vec<u8> =
            (0..vector["data_len"].as_u64().unwrap()).map(|at| (at * 7 % 251) as u8).collect();
        let (set, get) = (hex(&vector["set_attributes"]), hex(&vector["get_attributes"]));
        let retrieved = hex(&vector["retrieved_attributes"]);
        let mut out = icv::DataOutCounts::of(&set, &get, &[&content]).encode().to_vec();
        out.extend(placed(keys.data_out(&nonce, &set, &get, &[&content]), generation));
        assert_eq!(out, hex(&vector["data_out_integrity"]));
        let counts = icv::DataInCounts { data: content.len() as u64, attributes: retrieved.len() as u64 };
        let mut inward = counts.encode().to_vec();
        inward.extend(placed(keys.data_in(&nonce, &[&content], &retrieved), generation));
        assert_eq!(inward, hex(&vector["data_in_integrity"]));
    }
}

/// Returns bytes of the object in the vectors of digests.
fn object_bytes(start: u64, length: u64) -> Vec<u8> {
    (start..start + length).map(|at| (7 * at + at / 251) as u8).collect()
}

fn values_of(vector: &Value, field: &str) -> Vec<u8> {
    vector[field].as_array().unwrap().iter().flat_map(hex).collect()
}

#[test]
fn covers() {
    for vector in vectors("covers.json", 5 * 6) {
        let (keys, generation, nonce) = (icv_keys(&vector), generation(&vector), nonce(&vector));
        let profile = keys.digest().unwrap();
        let number = |field: &str| vector[field].as_u64().unwrap();
        let object = ObjectId::new(number("partition"), number("object"));
        let origin = cover::DataLocation { object, start: vector["start"].as_u64() };
        let start = origin.start.unwrap_or(0);
        let content = object_bytes(start, number("data_len"));
        let length = content.len() as u64;
        let (set, get) = (hex(&vector["set_attributes"]), hex(&vector["get_attributes"]));
        let retrieved = hex(&vector["retrieved_attributes"]);

        let place = cover::ObjectBounds { object_length: number("object_length"), generation: 0 };
        let inward =
            CoveredDigests::of(DigestCover::new(profile, start, length, place.object_length), &content);
        assert_eq!(inward.to_bytes(), values_of(&vector, "values_in"), "{profile:?}");
        let tag = cover::tag(
            &keys,
            DataDirection::In,
            &nonce,
            &origin,
            place,
            &inward,
            [cover::CoveredList::default(), cover::CoveredList::of(&retrieved)],
        );
        let counts = icv::DataInCounts { data: length, attributes: retrieved.len() as u64 };
        let block = [&counts.encode()[..], &place.encode(), &placed(tag, generation)].concat();
        assert_eq!(block, hex(&vector["data_in_integrity"]), "{profile:?}");

        let outward = CoveredDigests::of(DigestCover::of_write(profile, start, length), &content);
        assert_eq!(outward.to_bytes(), values_of(&vector, "values_out"), "{profile:?}");
        let none = cover::ObjectBounds::NONE;
        let tag = cover::tag(
            &keys,
            DataDirection::Out,
            &nonce,
            &origin,
            none,
            &outward,
            [&set, &get].map(|list| cover::CoveredList::of(list)),
        );
        let counts = icv::DataOutCounts::of(&set, &get, &[&content]);
        let block = [&counts.encode()[..], &placed(tag, generation)].concat();
        assert_eq!(block, hex(&vector["data_out_integrity"]), "{profile:?}");
    }
}

#[test]
fn pages() {
    for vector in vectors("pages.json", 3) {
        let (keys, generation, nonce) = (icv_keys(&vector), generation(&vector), nonce(&vector));
        let profile = keys.digest().unwrap();
        let number = |field: &str| vector[field].as_u64().unwrap();
        let origin =
            cover::DataLocation { object: ObjectId::new(number("partition"), number("object")), start: None };
        let retrieved = hex(&vector["retrieved_attributes"]);
        let page = cover::page_value(profile, generation, number("page") as u32, &retrieved).unwrap();
        assert_eq!(page.as_bytes(), hex(&vector["page_digest"]));
        let nothing = CoveredDigests::of(DigestCover::new(profile, 0, 0, 0), &[]);
        let lists =
            [cover::CoveredList::default(), cover::CoveredList { bytes: &retrieved, page: Some(page) }];
        let tag =
            cover::tag(&keys, DataDirection::In, &nonce, &origin, cover::ObjectBounds::NONE, &nothing, lists);
        let counts = icv::DataInCounts { data: 0, attributes: retrieved.len() as u64 };
        let block =
            [&counts.encode()[..], &cover::ObjectBounds::NONE.encode(), &placed(tag, generation)].concat();
        assert_eq!(block, hex(&vector["data_in_integrity"]));
    }
}

#[test]
fn continuation_segments() {
    for vector in vectors("continuations.json", 3 * 2) {
        let segment = hex(&vector["segment"]);
        let tag = icv_keys(&vector).continuation(&nonce(&vector), &segment).unwrap();
        assert_eq!(placed(tag, Generation::Osd2), segment[CONTINUATION_ICV]);
    }
}

fn check_pair(pair: &KeyPair, vector: &Value) {
    assert_eq!(pair.generation.expose(), hex(&vector["generation"]));
    assert_eq!(pair.authentication.expose(), hex(&vector["authentication"]));
}

#[test]
fn key_hierarchies() {
    for vector in vectors("keys.json", 2) {
        let hash = if vector["hash"] == "sha1" { Hash::Sha1 } else { Hash::Sha256 };
        let initial = InitialKey::new(&hex(&vector["initial_key"])).unwrap();
        let system: SystemId = hex(&vector["system_id"]).try_into().unwrap();
        let master = derive_master::<RustCrypto>(hash, &initial, &system);
        check_pair(&master, &vector["master"]);
        let root = derive_pair::<RustCrypto>(hash, &master.generation, &factory_seed(2, 0, 0));
        check_pair(&root, &vector["root"]);
        let mut hierarchy = Keys::factory(hash, &initial, system);
        hierarchy.add_partition(PARTITION).unwrap();
        let seed = hex(&vector["set_key_seed"]).try_into().unwrap();
        for entry in vector["partitions"].as_array().unwrap() {
            let partition = entry["partition"].as_u64().unwrap();
            let pair = derive_pair::<RustCrypto>(hash, &root.generation, &factory_seed(3, 0, partition));
            check_pair(&pair, entry);
            let working =
                derive_working::<RustCrypto>(hash, &pair.generation, &factory_seed(4, 0, partition));
            assert_eq!(working.expose(), hex(&entry["working_0"]));
            for (selector, key) in [
                (KeySelector::Partition(partition), &entry["authentication"]),
                (KeySelector::Working { partition, version: 0 }, &entry["working_0"]),
                (KeySelector::Root, &vector["root"]["authentication"]),
                (KeySelector::Master, &vector["master"]["authentication"]),
            ] {
                check_signs(&hierarchy, selector, &hex(key));
            }
        }
        hierarchy.set_working(PARTITION, 3, &seed, [0; 7]).unwrap();
        let working = KeySelector::Working { partition: PARTITION, version: 3 };
        check_signs(&hierarchy, working, &hex(&vector["set_key_working"]));
        check_pair(&derive_pair::<RustCrypto>(hash, &master.generation, &seed), &vector["set_key_root"]);
        hierarchy.set_root(&seed, [0; 7]);
        check_signs(&hierarchy, KeySelector::Root, &hex(&vector["set_key_root"]["authentication"]));
    }
}

/// Checks that the hierarchy signs with this key.
fn check_signs(hierarchy: &Keys, selector: KeySelector, key: &[u8]) {
    let capability = capability(Generation::Osd2, SecurityMethod::CmdRsp).encode();
    let signed = hierarchy.signing_key(selector).unwrap();
    let signed = signed.capability_key(Algorithm::HmacSha256, &capability, hierarchy.system_id());
    assert_eq!(
        signed.expose(),
        tag(Hash::Sha256, key, &[&capability, hierarchy.system_id()]),
        "{selector:?}"
    );
}

/// The vectors pinned by the design. Its HMAC-SHA256 ones have one key for everything: code F0h.
#[test]
fn the_designs_own_vectors() {
    let given = file("given.json");
    let (one, two, set_key) = (&given["osd1"], &given["osd2_hmac_sha256"], &given["setkey"]);
    let system = hex(&one["system_id"]);
    for (vector, hash, key) in [(one, Hash::Sha1, &[0x0B; 20][..]), (two, Hash::Sha256, &[0x0B; 32])] {
        assert_eq!(tag(hash, key, &[&hex(&vector["capability"]), &system]), hex(&vector["cap_key"]));
    }
    let keys = |vector: &Value, field: &str, algorithm, method| {
        IcvKeys::<RustCrypto>::new(algorithm, &CapabilityKey::new(&hex(&vector[field])).unwrap(), method)
    };
    let sha1 = keys(one, "cap_key", Algorithm::HmacSha1, SecurityMethod::CmdRsp);
    assert_eq!(
        sha1.request(Generation::Osd1, &hex(&one["cdb"])).unwrap().as_bytes(),
        hex(&one["cmdrsp_icv"])
    );
    // HierMAC (security.md 5.1): three digests, of the end of a block, of a whole one and of the
    // head of a third.
    let units = keys(one, "cap_key", Algorithm::UnitsSha1, SecurityMethod::AllData);
    let covered = CoveredDigests::of(
        DigestCover::new(Profile::Sha1, 5000, 12_000, 20_000),
        &object_bytes(5000, 12_000),
    );
    let origin = cover::DataLocation { object: OBJECT, start: Some(5000) };
    let place = cover::ObjectBounds { object_length: 20_000, generation: 0 };
    let icv = cover::tag(
        &units,
        DataDirection::In,
        &nonce(one),
        &origin,
        place,
        &covered,
        [cover::CoveredList::default(); 2],
    );
    assert!(icv.as_bytes().starts_with(&[0x5B, 0x25, 0xBD, 0x3B]) && icv.as_bytes().ends_with(&[0x44, 0x92]));
    let good = sha1.response(&nonce(one), 0, &[]);
    assert_eq!(good.as_bytes(), hex(&one["cmdrsp_response_icv_good"]));
    let sha256 = keys(two, "cap_key", Algorithm::HmacSha256, SecurityMethod::CmdRsp);
    assert_eq!(
        sha256.request(Generation::Osd2, &hex(&two["cdb"])).unwrap().as_bytes(),
        hex(&two["cmdrsp_icv"])
    );

    let mut capkey = hex(&one["capability"]);
    capkey[2] = 1;
    assert_eq!(tag(Hash::Sha1, &[0x0B; 20], &[&capkey, &system]), hex(&one["capkey_method_capkey"]));
    let token = SecurityToken(hex(&one["security_token"]).try_into().unwrap());
    let capkey = keys(one, "capkey_method_capkey", Algorithm::HmacSha1, SecurityMethod::CapKey);
    assert_eq!(capkey.token(&token).as_bytes(), hex(&one["capkey_icv"]));

    let parent = GenerationKey::new(&hex(&set_key["parent_generation"])).unwrap();
    let pair = derive_pair::<RustCrypto>(Hash::Sha1, &parent, &hex(&set_key["seed"]).try_into().unwrap());
    assert_eq!(pair.generation.expose(), hex(&set_key["new_generation"]));
    assert_eq!(pair.authentication.expose(), hex(&set_key["new_authentication"]));
}
