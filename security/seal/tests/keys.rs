//! The key hierarchy: both ends agree, and keys below a changed key become invalid.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use crate::common::*;
use proptest::prelude::*;
use sealstone_crypto::{ParkingLot, RustCrypto};
use sealstone_osd::{Capability, Generation, SecurityMethod};
use sealstone_seal::hierarchy::{FACTORY_KEY_VERSION, WORKING_KEYS, derive_pair};
use sealstone_seal::keystore::KeystoreError;
use sealstone_seal::*;

fn selectors(partition: u64) -> Vec<KeySelector> {
    let working = (0..WORKING_KEYS as u8).map(|version| KeySelector::Working { partition, version });
    [KeySelector::Master, KeySelector::Root, KeySelector::Partition(partition)]
        .into_iter()
        .chain(working)
        .collect()
}

/// Returns what a key signs, as a fingerprint of the key.
fn signature(keys: &Keys, selector: KeySelector) -> Option<Vec<u8>> {
    let capability = capability(Generation::Osd2, SecurityMethod::CmdRsp).encode();
    let key =
        keys.signing_key(selector)?.capability_key(Algorithm::HmacSha256, &capability, keys.system_id());
    Some(key.expose().to_vec())
}

fn signatures(keys: &Keys) -> Vec<Option<Vec<u8>>> {
    [0, PARTITION].into_iter().flat_map(selectors).map(|selector| signature(keys, selector)).collect()
}

#[test]
fn device_and_mds_agree_from_initial_key() {
    assert_eq!(signatures(&keys()), signatures(&keys()));
    let set: Vec<_> =
        selectors(PARTITION).into_iter().filter(|key| signature(&keys(), *key).is_some()).collect();
    let working = KeySelector::Working { partition: PARTITION, version: FACTORY_KEY_VERSION };
    assert_eq!(set, [KeySelector::Master, KeySelector::Root, KeySelector::Partition(PARTITION), working]);
}

#[test]
fn factory_keys_are_unique_per_device() {
    let mut seen: Vec<_> = signatures(&keys()).into_iter().flatten().collect();
    let mut system = SYSTEM;
    system[0] ^= 1;
    for hash in [Hash::Sha1, Hash::Sha256] {
        let mut other = Keys::factory(hash, &InitialKey::new(&[0x5A; 32]).unwrap(), system);
        other.add_partition(PARTITION).unwrap();
        seen.extend(signatures(&other).into_iter().flatten());
    }
    // Master and root are in both halves of each list.
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count - 3 * 2);
}

#[test]
fn setting_a_key_voids_only_keys_below() {
    let working = |version| KeySelector::Working { partition: PARTITION, version };
    let zero = KeySelector::Working { partition: 0, version: 0 };
    let mut keys = keys();
    keys.add_partition(PARTITION + 1).unwrap();
    let neighbour = KeySelector::Working { partition: PARTITION + 1, version: 0 };
    let before = signature(&keys, neighbour);

    keys.set_working(PARTITION, 1, &[1; 20], [1; 7]).unwrap();
    assert!(signature(&keys, working(0)).is_some() && signature(&keys, working(1)).is_some());
    assert_eq!(keys.identifier(working(1)), Some([1; 7]));
    let identity = keys.signing_key(working(1)).unwrap().identity();
    keys.set_working(PARTITION, 1, &[1; 20], [2; 7]).unwrap();
    assert!(keys.holds(working(1), identity), "the same bytes are the same key");
    keys.set_working(PARTITION, 1, &[2; 20], [2; 7]).unwrap();
    assert!(!keys.holds(working(1), identity), "other bytes are another key");

    keys.set_partition(PARTITION, &[2; 20], [2; 7]).unwrap();
    assert!((0..16).all(|version| signature(&keys, working(version)).is_none()));
    assert!(signature(&keys, KeySelector::Partition(PARTITION)).is_some());
    assert_eq!(signature(&keys, neighbour), before);

    keys.set_root(&[3; 20], [3; 7]);
    assert!(signature(&keys, neighbour).is_none() && signature(&keys, zero).is_none());
    assert!(signature(&keys, KeySelector::Partition(PARTITION)).is_none());
    assert_eq!(keys.set_working(PARTITION, 0, &[4; 20], [4; 7]), Err(KeyError::ParentUnset));
    keys.set_partition(PARTITION, &[4; 20], [4; 7]).unwrap();
    keys.set_working(PARTITION, 0, &[4; 20], [4; 7]).unwrap();

    let pair = KeyPair {
        authentication: AuthenticationKey::new(&[1; 32]).unwrap(),
        generation: GenerationKey::new(&[2; 32]).unwrap(),
    };
    keys.set_master(pair, [5; 7]);
    assert!(signature(&keys, KeySelector::Root).is_none() && signature(&keys, working(0)).is_none());
    assert_eq!(keys.set_partition(PARTITION, &[4; 20], [4; 7]), Err(KeyError::ParentUnset));
    assert_eq!(keys.add_partition(PARTITION + 2), Err(KeyError::ParentUnset));
}

#[test]
fn invalid_key_changes_are_refused() {
    let mut keys = keys();
    assert_eq!(keys.add_partition(PARTITION), Err(KeyError::PartitionExists(PARTITION)));
    assert_eq!(keys.set_working(PARTITION, 16, &[0; 20], [0; 7]), Err(KeyError::Version(16)));
    assert_eq!(keys.set_working(77, 0, &[0; 20], [0; 7]), Err(KeyError::NoPartition(77)));
    assert_eq!(keys.set_partition(77, &[0; 20], [0; 7]), Err(KeyError::NoPartition(77)));
    keys.remove_partition(PARTITION);
    assert!(signature(&keys, KeySelector::Partition(PARTITION)).is_none());
    keys.remove_partition(0);
    assert!(signature(&keys, KeySelector::Partition(0)).is_some());
    keys.add_partition(PARTITION).unwrap();
    keys.set_root(&[9; 20], [9; 7]);
    let root = keys.signing_key(KeySelector::Root).unwrap().identity();
    keys.format();
    assert!(signature(&keys, KeySelector::Partition(PARTITION)).is_none());
    assert_eq!(keys.partitions().collect::<Vec<_>>(), [0]);
    assert!(keys.holds(KeySelector::Root, root), "a format brings no factory key back");
    assert!(signature(&keys, KeySelector::Working { partition: 0, version: 0 }).is_none());
}

/// The factory keys follow from the id alone: anyone who knew them would know them again, and old
/// credentials would be valid.
#[test]
fn recreated_partition_has_no_keys() {
    let zero = KeySelector::Working { partition: PARTITION, version: 0 };
    let has_keys = |keys: &KeyHierarchy<_>, partition| {
        signature(keys, KeySelector::Partition(partition)).is_some()
            || signature(keys, KeySelector::Working { partition, version: 0 }).is_some()
    };
    let mut keys = keys();
    keys.retire_partition(PARTITION);
    assert!(has_keys(&keys, PARTITION), "it is still there");
    keys.remove_partition(PARTITION);
    keys.add_partition(PARTITION).unwrap();
    assert!(!has_keys(&keys, PARTITION));
    keys.set_partition(PARTITION, &[7; 20], [7; 7]).unwrap();
    keys.set_working(PARTITION, 0, &[8; 20], [8; 7]).unwrap();
    assert!(has_keys(&keys, PARTITION));
    assert_ne!(signature(&keys, zero), signature(&crate::common::keys(), zero));
    // A partition whose creation failed leaves nothing behind.
    keys.add_partition(PARTITION + 9).unwrap();
    keys.forget_partition(PARTITION + 9);
    keys.add_partition(PARTITION + 9).unwrap();
    assert!(has_keys(&keys, PARTITION + 9));
    keys.format();
    for partition in [PARTITION, PARTITION + 9] {
        keys.add_partition(partition).unwrap();
        assert!(!has_keys(&keys, partition), "after a format");
    }
    // It is stored with the keys; an older store has none.
    let mut again = KeyHierarchy::<RustCrypto>::decode(&keys.encode()).unwrap();
    again.remove_partition(PARTITION);
    again.add_partition(PARTITION).unwrap();
    assert!(!has_keys(&again, PARTITION));
    let fresh = crate::common::keys().encode();
    let mut old = b"OSDKH01\0".to_vec();
    old.extend_from_slice(&fresh[8..fresh.len() - 4]);
    let mut old = KeyHierarchy::<RustCrypto>::decode(&old).unwrap();
    assert!(has_keys(&old, PARTITION) && !old.is_retired(PARTITION));
    // Below a new root key the factory keys are new, too.
    old.remove_partition(PARTITION);
    old.set_root(&[5; 20], [5; 7]);
    old.add_partition(PARTITION).unwrap();
    assert!(has_keys(&old, PARTITION));
    assert_ne!(signature(&old, zero), signature(&crate::common::keys(), zero));
}

#[test]
fn equal_keys_have_equal_identities() {
    let zero = KeySelector::Working { partition: PARTITION, version: 0 };
    let mut keys = keys();
    let identity = keys.signing_key(zero).unwrap().identity();
    assert_eq!(identity, crate::common::keys().signing_key(zero).unwrap().identity());
    keys.forget_partition(PARTITION);
    assert!(!keys.holds(zero, identity));
    keys.add_partition(PARTITION).unwrap();
    assert!(keys.holds(zero, identity));
    assert_ne!(identity, keys.signing_key(KeySelector::Partition(PARTITION)).unwrap().identity());

    let mut copy = keys.clone();
    copy.set_working(PARTITION, 0, &[1; 20], [1; 7]).unwrap();
    copy.set_root(&[2; 20], [2; 7]);
    assert!(keys.holds(zero, identity) && !copy.holds(zero, identity));
}

fn exchange(derivation: exchange::Derivation) -> exchange::SeedExchange<'static> {
    exchange::SeedExchange { derivation, group: 14, client: &[1; 4], device: &[2; 4], secret: &[3; 4] }
}

#[test]
fn proposed_master_key_signs_only_its_acceptance() {
    let mut keys = keys();
    let old = keys.signing_key(KeySelector::Master).unwrap().identity();
    assert!(!keys.clone().accept_master([1; 7]), "nothing was proposed");
    keys.propose_master(keys.exchanged(&exchange(exchange::Derivation::Standard)));
    let next = keys.signing_key(KeySelector::NextMaster).unwrap().identity();
    assert!(keys.holds(KeySelector::Master, old), "until it is accepted nothing changes");
    let mut abandoned = keys.clone();
    abandoned.abandon_master();
    assert!(signature(&abandoned, KeySelector::NextMaster).is_none());
    assert!(signature(&Keys::decode(&keys.encode()).unwrap(), KeySelector::NextMaster).is_none());
    assert!(keys.accept_master([7; 7]));
    assert!(keys.holds(KeySelector::Master, next));
    assert_eq!(keys.identifier(KeySelector::Master), Some([7; 7]));
    assert!(signature(&keys, KeySelector::Root).is_none());
    assert!(signature(&keys, KeySelector::NextMaster).is_none());
}

#[test]
fn exchange_inputs_all_affect_the_master_key() {
    use exchange::{Derivation, SeedExchange, derive_exchanged};
    let present = GenerationKey::new(&[9; 32]).unwrap();
    let of = |present: &GenerationKey, system: &[u8; 20], exchange: &SeedExchange<'_>| {
        let pair = derive_exchanged::<RustCrypto>(Hash::Sha256, present, system, exchange);
        assert!(!ct_eq(pair.authentication.expose(), pair.generation.expose()));
        pair.authentication.expose().to_vec()
    };
    let mut other = SYSTEM;
    other[19] ^= 1;
    for derivation in [Derivation::Standard, Derivation::Transcript] {
        let base = exchange(derivation);
        let mut all = vec![
            of(&present, &SYSTEM, &base),
            of(&GenerationKey::new(&[8; 32]).unwrap(), &SYSTEM, &base),
            of(&present, &other, &base),
            of(&present, &SYSTEM, &SeedExchange { secret: &[3, 3, 3, 5], ..base }),
        ];
        if derivation == Derivation::Transcript {
            all.push(of(&present, &SYSTEM, &SeedExchange { client: &[1; 5], ..base }));
            all.push(of(&present, &SYSTEM, &SeedExchange { device: &[2; 3], ..base }));
            all.push(of(&present, &SYSTEM, &SeedExchange { group: 15, ..base }));
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{derivation:?}");
    }
}

/// The standard's derivation, computed by hand: MAC(generation key, secret with last bit b, OSD
/// SYSTEM ID).
#[test]
fn standard_exchange_is_mac_over_secret_and_id() {
    let present = GenerationKey::new(&[9; 32]).unwrap();
    let base = exchange(exchange::Derivation::Standard);
    let pair = exchange::derive_exchanged::<RustCrypto>(Hash::Sha256, &present, &SYSTEM, &base);
    let mac = RustCrypto::mac_key(Hash::Sha256, present.expose());
    for (bit, key) in [(2, pair.generation.expose()), (3, pair.authentication.expose())] {
        assert!(ct_eq(RustCrypto::tag(&mac, &[&[3, 3, 3, bit], &SYSTEM]).as_bytes(), key));
    }
}

/// Derivation under the same parent differs in one bit of the seed.
#[test]
fn last_seed_bit_does_not_choose_keys() {
    let parent = GenerationKey::new(&[7; 20]).unwrap();
    let even = derive_pair::<RustCrypto>(Hash::Sha1, &parent, &[0x10; 20]);
    let mut seed = [0x10; 20];
    seed[19] |= 1;
    let odd = derive_pair::<RustCrypto>(Hash::Sha1, &parent, &seed);
    assert!(ct_eq(even.generation.expose(), odd.generation.expose()));
    assert!(ct_eq(even.authentication.expose(), odd.authentication.expose()));
    assert!(!ct_eq(even.generation.expose(), even.authentication.expose()));
}

#[test]
fn a_stored_hierarchy_signs_as_before() {
    for hash in [Hash::Sha1, Hash::Sha256] {
        let mut keys = Keys::factory(hash, &InitialKey::new(&[3; 20]).unwrap(), SYSTEM);
        keys.add_partition(PARTITION).unwrap();
        keys.set_working(PARTITION, 5, &[8; 20], [8; 7]).unwrap();
        let stored = keys.encode();
        let back = Keys::decode(&stored).unwrap();
        assert_eq!(signatures(&back), signatures(&keys));
        let working = KeySelector::Working { partition: PARTITION, version: 5 };
        assert_eq!(back.identifier(working), Some([8; 7]));
        assert!(ct_eq(&back.encode(), &stored));
        for cut in 0..stored.len() {
            assert!(Keys::decode(&stored[..cut]).is_err(), "{cut}");
        }
        let mut longer = stored.to_vec();
        longer.push(0);
        assert_eq!(Keys::decode(&longer).err(), Some(KeystoreError::Malformed));
    }
}

#[test]
fn hierarchy_round_trips_in_parts() {
    for hash in [Hash::Sha1, Hash::Sha256] {
        let mut keys = Keys::factory(hash, &InitialKey::new(&[0x5A; 32]).unwrap(), SYSTEM);
        keys.add_partition(PARTITION).unwrap();
        keys.set_working(PARTITION, 5, &[7; 20], [8; 7]).unwrap();
        let pair = derive_pair::<RustCrypto>(hash, &GenerationKey::new(&[3; 32]).unwrap(), &[4; 20]);
        keys.propose_master(pair);
        let top = keys.encode_top();
        let mut back = Keys::decode_top(&top).unwrap();
        assert!(keys.encode_partition(PARTITION + 1).is_none());
        for partition in [0, PARTITION] {
            let part = keys.encode_partition(partition).unwrap();
            for cut in 0..part.len() {
                assert!(back.put_partition(9, &part[..cut]).is_err(), "{cut}");
            }
            assert!(back.put_partition(9, &[&part[..], &[0]].concat()).is_err());
            assert!(back.put_partition(9, &top).is_err(), "another kind of part");
            back.put_partition(partition, &part).unwrap();
        }
        assert_eq!(signatures(&back), signatures(&keys));
        assert_eq!(signature(&back, KeySelector::NextMaster), signature(&keys, KeySelector::NextMaster));
        assert!(signature(&back, KeySelector::NextMaster).is_some());
        assert_eq!(*back.encode_top(), *top);
        for cut in 0..top.len() {
            assert!(Keys::decode_top(&top[..cut]).is_err(), "{cut}");
        }
    }
}

#[test]
fn identifiers_differ_per_key_and_setting() {
    let keys = keys();
    let [master, root] = [KeySelector::Master, KeySelector::Root].map(|key| keys.signing_key(key).unwrap());
    let all = [master.identifier(1), master.identifier(2), root.identifier(1)];
    assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
    assert_eq!(all[0], master.identifier(1));
}

#[test]
fn credential_cache_is_bounded_and_drops_old_keys() {
    let mut device = Device::with(GatePolicy { credentials: 128, ..GatePolicy::default() });
    let mut chance = random();
    for number in 0..500_u16 {
        let mut discriminator = [0; 12];
        discriminator[..2].copy_from_slice(&number.to_be_bytes());
        let capability = Capability { discriminator, ..capability(Generation::Osd2, SecurityMethod::CmdRsp) };
        let signer = signer(&device.keys, &capability);
        let bytes = sign(&signer, read(Generation::Osd2), NOW, &mut chance).cdb;
        assert!(device.permit(&bytes).is_ok());
    }
    let len = device.gate.credentials().len();
    assert!(len > 64 && len <= 128, "{len}");
    device.keys.set_working(PARTITION, 0, &[1; 20], [0; 7]).unwrap();
    let signer = signer(&keys(), &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    assert!(device.permit(&sign(&signer, read(Generation::Osd2), NOW, &mut chance).cdb).is_err());
    device.gate.credentials().clear();
    assert!(device.gate.credentials().is_empty());
}

#[test]
fn an_idle_gate_takes_less_than_a_megabyte() {
    // 16 shards of 512 empty sets, and no nonce tables.
    let gate = Gate::<RustCrypto, ParkingLot>::new(GatePolicy::default(), 0, &mut random());
    assert_eq!(gate.nonces().bytes(), 0);
    assert!(size_of_val(&gate) < 4096);
}

proptest! {
    #[test]
    fn no_bytes_make_the_keystore_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), flip in any::<proptest::sample::Index>()) {
        let _ = Keys::decode(&bytes);
        let mut stored = keys().encode().to_vec();
        let at = flip.index(stored.len());
        stored[at] ^= bytes.first().copied().unwrap_or(1);
        let _ = Keys::decode(&stored);
    }
}
