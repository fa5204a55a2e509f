//! The paper's cipher for the security method: it decrypts correctly, and it protects nothing.

#![allow(clippy::unwrap_used, reason = "a test")]

mod breaks;

use breaks::{Breaker, difference};
use proptest::prelude::*;
use sealstone_osd::Generation;
use sealstone_seal::paper::mceliece::{CONCEALED, CipherError, Parameters, PrivateKey, PublicKey};

/// Returns the method bits of a code word: of H3 its first four, of H4 bits 7 to 10, otherwise 12
/// to 15. The highest comes first.
fn method_bits(parameters: Parameters) -> core::ops::Range<usize> {
    match parameters {
        Parameters::H3 => 0..4,
        Parameters::H4 => 7..11,
        _ => 12..16,
    }
}

fn chance(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut state = seed;
    move |into: &mut [u8]| {
        for byte in into {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
}

/// Returns a CDB of this length with random bytes and zeros in the reserved bits that matter.
fn cdb(seed: u64, generation: Generation) -> Vec<u8> {
    let mut cdb = vec![0; generation.cdb_len()];
    chance(seed)(&mut cdb);
    cdb[1] = 0;
    cdb[82] &= 0x0F;
    cdb[83] = 0;
    cdb
}

/// Returns the code word of a concealed CDB, found by flipping its bits.
fn word(cdb: &[u8], parameters: Parameters) -> u128 {
    places(parameters)
        .into_iter()
        .enumerate()
        .fold(0, |word, (at, (byte, bit))| word | u128::from(cdb[byte] >> bit & 1) << at)
}

fn put(cdb: &mut [u8], parameters: Parameters, word: u128) {
    for (at, (byte, bit)) in places(parameters).into_iter().enumerate() {
        cdb[byte] = cdb[byte] & !(1 << bit) | ((word >> at & 1) as u8) << bit;
    }
}

/// Section 4.2 of the design, written independently.
fn places(parameters: Parameters) -> Vec<(usize, u8)> {
    let run = |byte: usize, highest: u8, bits: u8| (0..bits).map(move |bit| (byte, highest - bit));
    let bytes = |first: usize, bits: usize| (0..bits).map(move |bit| (first + bit / 8, 7 - (bit % 8) as u8));
    let four = || run(80, 3, 4).chain(run(81, 7, 4)).chain(run(81, 3, 4)).chain(run(82, 3, 4));
    let mut all: Vec<_> = match parameters {
        Parameters::H3 => run(82, 3, 4).collect(),
        Parameters::H4 => run(81, 6, 3).chain(run(81, 3, 4)).chain(run(82, 3, 4)).collect(),
        Parameters::H5Short => four().collect(),
        Parameters::H5 => four().chain(bytes(84, 10)).collect(),
        Parameters::H6 => four().chain(bytes(84, 41)).collect(),
        Parameters::H7Short => four().chain(bytes(84, 48)).collect(),
        Parameters::H7 => four().chain(bytes(84, 48)).chain(bytes(90, 56)).collect(),
    };
    all.extend(run(82, 7, 4).chain(bytes(83, 8)).take(parameters.redundancy()));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn conceal_and_reveal_round_trip(
        seed in any::<u64>(), at in 0..7_usize, osd1 in any::<bool>(),
    ) {
        let parameters = Parameters::ALL[at];
        let key = PrivateKey::generate(parameters, &mut chance(seed));
        let plain = cdb(!seed, if osd1 { Generation::Osd1 } else { Generation::Osd2 });
        let mut sent = plain.clone();
        key.public().conceal(&mut sent, &mut chance(seed ^ 7)).unwrap();
        prop_assert!(PrivateKey::is_concealed(&sent) && sent[1] == CONCEALED);
        // Only the named fields changed.
        let named: Vec<usize> = places(parameters).into_iter().map(|(byte, _)| byte).chain([1]).collect();
        prop_assert!((0..plain.len()).all(|byte| plain[byte] == sent[byte] || named.contains(&byte)));
        key.reveal(&mut sent).unwrap();
        prop_assert_eq!(sent, plain);
    }

    #[test]
    fn single_wrong_bit_is_corrected(seed in any::<u64>(), at in 0..7_usize) {
        let parameters = Parameters::ALL[at];
        let key = PrivateKey::generate(parameters, &mut chance(seed));
        let plain = cdb(seed, Generation::Osd2);
        let message = word(&plain, parameters) & ((1 << parameters.dimension()) - 1);
        let clean = difference(key.public(), message);
        for bit in 0..parameters.length() {
            let mut sent = plain.clone();
            put(&mut sent, parameters, clean ^ 1 << bit);
            sent[1] |= CONCEALED;
            key.reveal(&mut sent).unwrap();
            prop_assert_eq!(&sent, &plain, "bit {}", bit);
        }
    }

    #[test]
    fn public_key_round_trips_and_bad_bytes_fail(
        seed in any::<u64>(), at in 0..7_usize, bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let key = PrivateKey::generate(Parameters::ALL[at], &mut chance(seed));
        let encoded = key.public().encode();
        prop_assert_eq!(&PublicKey::parse(&encoded).unwrap(), key.public());
        for cut in 0..encoded.len() {
            prop_assert_eq!(PublicKey::parse(&encoded[..cut]), Err(CipherError::PublicKey));
        }
        if let Ok(read) = PublicKey::parse(&bytes) {
            prop_assert_eq!(read.encode(), bytes);
        }
    }

    /// Attack C: the private key is not needed.
    #[test]
    fn broken_public_key_suffices_to_decrypt(seed in any::<u64>(), at in 0..7_usize) {
        let parameters = Parameters::ALL[at];
        let key = PrivateKey::generate(parameters, &mut chance(seed));
        let plain = cdb(seed, Generation::Osd2);
        let mut sent = plain.clone();
        key.public().conceal(&mut sent, &mut chance(seed ^ 1)).unwrap();
        let message = Breaker::new(key.public()).decrypt(word(&sent, parameters));
        prop_assert_eq!(message, Some(word(&plain, parameters) & ((1 << parameters.dimension()) - 1)));
    }

    /// Attack B: the method of a captured CDB becomes NOSEC by adding rows of the public key.
    #[test]
    fn broken_a_method_is_changed_without_decrypting(seed in any::<u64>(), at in 0..7_usize) {
        let parameters = Parameters::ALL[at];
        let key = PrivateKey::generate(parameters, &mut chance(seed));
        let mut plain = cdb(seed, Generation::Osd2);
        plain[82] = 3;
        let mut sent = plain.clone();
        key.public().conceal(&mut sent, &mut chance(seed ^ 1)).unwrap();
        let [.., third, fourth] = method_bits(parameters).collect::<Vec<_>>()[..] else { unreachable!() };
        let changed = word(&sent, parameters) ^ difference(key.public(), 1 << third | 1 << fourth);
        put(&mut sent, parameters, changed);
        key.reveal(&mut sent).unwrap();
        plain[82] = 0;
        prop_assert_eq!(sent, plain);
    }
}

/// Attack A: anyone can encrypt.
#[test]
fn broken_anyone_can_conceal_nosec() {
    for parameters in Parameters::ALL {
        let key = PrivateKey::generate(parameters, &mut chance(3));
        let public = PublicKey::parse(&key.public().encode()).unwrap();
        let mut forged = vec![0; 236];
        forged[80] = 2;
        public.conceal(&mut forged, &mut chance(4)).unwrap();
        key.reveal(&mut forged).unwrap();
        assert_eq!((forged[80] & 0x0F, forged[82] & 0x0F), (2, 0));
    }
}

/// Attack D: if only the method is concealed, a random word is NOSEC one time in sixteen.
#[test]
fn broken_one_word_in_sixteen_is_nosec() {
    let key = PrivateKey::generate(Parameters::H3, &mut chance(5));
    let mut nosec = 0;
    for guess in 0..1 << 7 {
        let mut sent = vec![0; 236];
        put(&mut sent, Parameters::H3, guess);
        sent[1] = CONCEALED;
        key.reveal(&mut sent).unwrap();
        nosec += u32::from(sent[82] & 0x0F == 0);
    }
    assert_eq!(nosec, 8);
}

#[test]
fn unfit_cdb_is_refused_unchanged() {
    let key = PrivateKey::generate(Parameters::H5Short, &mut chance(6));
    let refused = |cdb: &[u8], reveal: bool| {
        let mut after = cdb.to_vec();
        let result =
            if reveal { key.reveal(&mut after) } else { key.public().conceal(&mut after, &mut chance(7)) };
        assert_eq!(after, cdb);
        result.unwrap_err()
    };
    assert_eq!(refused(&[0; 199], false), CipherError::Length(199));
    assert_eq!(refused(&[0; 199], true), CipherError::Length(199));
    assert_eq!(refused(&[0; 236], true), CipherError::Clear);
    let mut marked = vec![0; 236];
    marked[1] = CONCEALED;
    assert_eq!(refused(&marked, false), CipherError::Twice);
    let mut taken = vec![0; 236];
    taken[82] = 0x10;
    assert_eq!(refused(&taken, false), CipherError::Reserved);
    // With a shortened code, some words with two wrong bits cannot be mistaken for words with one.
    let mut wrong = 0;
    for bits in 0..1 << 21 {
        if bits % 97 == 0 {
            put(&mut marked, Parameters::H5Short, bits);
            let before = marked.clone();
            if key.reveal(&mut marked) == Err(CipherError::NoCodeWord) {
                assert_eq!(marked, before);
                wrong += 1;
            }
            marked[1] = CONCEALED;
        }
    }
    assert!(wrong > 0);
}
