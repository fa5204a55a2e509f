//! Diffie-Hellman for SET MASTER KEY: the MODP groups 14, 15 and 16 of RFC 3526, and X25519 (RFC
//! 7748).
//!
//! Does: draws a secret, returns its public value, agrees with a peer's.
//! Does not: derive keys; `sealstone-seal` does.
//! Contract: exponentiation takes the same time for every secret. A peer's value that would make
//! the result predictable is refused: 0, 1, p - 1 and values not below p; of X25519 one of low
//! order.
//! Source of truth: RFC 3526 sections 3 to 5, RFC 7748; t10-osd 4.9; codes and choices in
//! `docs/standards/security.md`.

use alloc::vec::Vec;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U512, U2048, U3072, U4096, Uint};
use sealstone_seal::Random;
use sealstone_seal::exchange::Derivation;
use thiserror::Error;
use zeroize::{Zeroize as _, Zeroizing};

/// Bits of a secret exponent: more than twice the strength of the largest group.
const EXPONENT_BITS: u32 = U512::BITS;

/// A group, known to both ends by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhGroup {
    /// 2048-bit MODP group, number 14 of RFC 3526.
    Modp2048,
    /// 3072-bit MODP group, number 15.
    Modp3072,
    /// 4096-bit MODP group, number 16.
    Modp4096,
    /// X25519; the code is ours.
    X25519,
}

impl DhGroup {
    /// All groups, in the order of the attributes from R+5/80000010h on.
    pub const ALL: [Self; 4] = [Self::Modp2048, Self::Modp3072, Self::Modp4096, Self::X25519];

    /// Returns DH GROUP in the CDB, and the value of the attribute. No source shows the standard's
    /// codes: the MODP groups have their numbers of RFC 3526, X25519 a code of the vendor's range.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Modp2048 => 14,
            Self::Modp3072 => 15,
            Self::Modp4096 => 16,
            Self::X25519 => 0xF1,
        }
    }

    /// Returns the group of a code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.code() == code)
    }

    /// Returns the bytes of a public value and of the agreed secret.
    #[must_use]
    pub const fn value_len(self) -> usize {
        match self {
            Self::Modp2048 => 256,
            Self::Modp3072 => 384,
            Self::Modp4096 => 512,
            Self::X25519 => 32,
        }
    }

    /// Returns how keys are derived from the agreed secret.
    #[must_use]
    pub const fn derivation(self) -> Derivation {
        match self {
            Self::Modp2048 | Self::Modp3072 | Self::Modp4096 => Derivation::Standard,
            Self::X25519 => Derivation::Transcript,
        }
    }
}

/// Why a peer's public value was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ValueError {
    /// The length is not that of the group's values.
    #[error("public value has {actual} bytes, expected {expected}")]
    Length {
        /// Bytes given.
        actual: usize,
        /// Bytes of the group.
        expected: usize,
    },
    /// The agreed secret would be predictable.
    #[error("weak public value: the shared secret would be predictable")]
    Weak,
}

/// The secret of one end; wiped when dropped, never printed.
pub struct DhSecret(DhSecretInner);

enum DhSecretInner {
    Modp(DhGroup, Zeroizing<U512>),
    X25519(x25519_dalek::StaticSecret),
}

impl DhSecret {
    /// Draws a secret.
    #[must_use]
    pub fn draw(group: DhGroup, random: &mut dyn Random) -> Self {
        let mut bytes = Zeroizing::new([0; 64]);
        random.fill(&mut *bytes);
        Self(match group {
            DhGroup::Modp2048 | DhGroup::Modp3072 | DhGroup::Modp4096 => {
                // An exponent of full length: the top bit is set.
                bytes[0] |= 0x80;
                DhSecretInner::Modp(group, Zeroizing::new(U512::from_be_slice(&*bytes)))
            }
            DhGroup::X25519 => {
                let mut scalar = [0; 32];
                scalar.copy_from_slice(&bytes[..32]);
                let secret = x25519_dalek::StaticSecret::from(scalar);
                scalar.zeroize();
                DhSecretInner::X25519(secret)
            }
        })
    }

    /// Returns the group of the secret.
    #[must_use]
    pub const fn group(&self) -> DhGroup {
        match &self.0 {
            DhSecretInner::Modp(group, _) => *group,
            DhSecretInner::X25519(_) => DhGroup::X25519,
        }
    }

    /// Returns the public value: as many bytes as the group's values have, big-endian with leading
    /// zeros (X25519: in the form of RFC 7748).
    #[must_use]
    pub fn public(&self) -> Vec<u8> {
        match &self.0 {
            DhSecretInner::Modp(group, exponent) => power(*group, &[2], exponent).to_vec(),
            DhSecretInner::X25519(secret) => x25519_dalek::PublicKey::from(secret).as_bytes().to_vec(),
        }
    }

    /// Returns the shared secret of both ends, as long as a public value.
    ///
    /// # Errors
    /// [`ValueError`].
    pub fn agree(&self, peer: &[u8]) -> Result<Zeroizing<Vec<u8>>, ValueError> {
        let expected = self.group().value_len();
        if peer.len() != expected {
            return Err(ValueError::Length { actual: peer.len(), expected });
        }
        match &self.0 {
            DhSecretInner::Modp(group, exponent) => {
                if !in_range(*group, peer) {
                    return Err(ValueError::Weak);
                }
                Ok(power(*group, peer, exponent))
            }
            DhSecretInner::X25519(secret) => {
                let peer: [u8; 32] = peer.try_into().map_err(|_| ValueError::Weak)?;
                let shared = secret.diffie_hellman(&x25519_dalek::PublicKey::from(peer));
                if !shared.was_contributory() {
                    return Err(ValueError::Weak);
                }
                Ok(Zeroizing::new(shared.as_bytes().to_vec()))
            }
        }
    }
}

/// Returns `base^exponent mod p`, as long as p. The modulus is a safe prime, so every base in range
/// has a large order.
fn power(group: DhGroup, base: &[u8], exponent: &U512) -> Zeroizing<Vec<u8>> {
    match group {
        DhGroup::Modp2048 => power_in(&P2048, base, exponent),
        DhGroup::Modp3072 => power_in(&P3072, base, exponent),
        // X25519 has its own arithmetic and never gets here.
        DhGroup::Modp4096 | DhGroup::X25519 => power_in(&P4096, base, exponent),
    }
}

fn power_in<const LIMBS: usize>(modulus: &Uint<LIMBS>, base: &[u8], exponent: &U512) -> Zeroizing<Vec<u8>> {
    // The modulus is public, so the time for its parameters may vary.
    let odd = Odd::new(*modulus).expect("the primes of RFC 3526 are odd");
    let params = FixedMontyParams::new_vartime(odd);
    let base = FixedMontyForm::new(&number(base), &params);
    let mut power = base.pow_bounded_exp(exponent, EXPONENT_BITS);
    let mut value = power.retrieve();
    let bytes = Zeroizing::new(value.to_be_bytes().as_ref().to_vec());
    value.zeroize();
    power.zeroize();
    bytes
}

/// Parses a big-endian number of at most the width's bytes.
fn number<const LIMBS: usize>(bytes: &[u8]) -> Uint<LIMBS> {
    let mut wide = Zeroizing::new(alloc::vec![0; LIMBS * 8]);
    let at = wide.len() - bytes.len().min(LIMBS * 8);
    wide[at..].copy_from_slice(&bytes[..LIMBS * 8 - at]);
    Uint::from_be_slice(&wide)
}

/// Whether the value is from 2 to p - 2. A public value is not secret.
fn in_range(group: DhGroup, value: &[u8]) -> bool {
    fn within<const LIMBS: usize>(modulus: &Uint<LIMBS>, value: &[u8]) -> bool {
        let value = number::<LIMBS>(value);
        let top = modulus.wrapping_sub(&Uint::from_u8(2));
        value.cmp_vartime(&Uint::from_u8(2)).is_ge() && value.cmp_vartime(&top).is_le()
    }
    match group {
        DhGroup::Modp2048 => within(&P2048, value),
        DhGroup::Modp3072 => within(&P3072, value),
        DhGroup::Modp4096 => within(&P4096, value),
        DhGroup::X25519 => true,
    }
}

/// 2^2048 - 2^1984 - 1 + 2^64 * (floor(2^1918 pi) + 124476)
const P2048: U2048 = U2048::from_be_hex(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD\
     EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED\
     EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F\
     83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B\
     E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510\
     15728E5A8AACAA68FFFFFFFFFFFFFFFF",
);
/// 2^3072 - 2^3008 - 1 + 2^64 * (floor(2^2942 pi) + 1690314)
const P3072: U3072 = U3072::from_be_hex(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD\
     EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED\
     EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F\
     83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B\
     E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510\
     15728E5A8AAAC42DAD33170D04507A33A85521ABDF1CBA64ECFB850458DBEF0A8AEA71575D060C7DB3970F85A6E1E4C7\
     ABF5AE8CDB0933D71E8C94E04A25619DCEE3D2261AD2EE6BF12FFA06D98A0864D87602733EC86A64521F2B18177B200C\
     BBE117577A615D6C770988C0BAD946E208E24FA074E5AB3143DB5BFCE0FD108E4B82D120A93AD2CAFFFFFFFFFFFFFFFF",
);
/// 2^4096 - 2^4032 - 1 + 2^64 * (floor(2^3966 pi) + 240904)
const P4096: U4096 = U4096::from_be_hex(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD\
     EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED\
     EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F\
     83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B\
     E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510\
     15728E5A8AAAC42DAD33170D04507A33A85521ABDF1CBA64ECFB850458DBEF0A8AEA71575D060C7DB3970F85A6E1E4C7\
     ABF5AE8CDB0933D71E8C94E04A25619DCEE3D2261AD2EE6BF12FFA06D98A0864D87602733EC86A64521F2B18177B200C\
     BBE117577A615D6C770988C0BAD946E208E24FA074E5AB3143DB5BFCE0FD108E4B82D120A92108011A723C12A787E6D7\
     88719A10BDBA5B2699C327186AF4E23C1A946834B6150BDA2583E9CA2AD44CE8DBBBC2DB04DE8EF92E8EFC141FBECAA6\
     287C59474E6BC05D99B2964FA090C3A2233BA186515BE7ED1F612970CEE2D7AFB81BDD762170481CD0069127D5B05AA9\
     93B4EA988D8FDDC186FFB7DC90A6C08F4DF435C934063199FFFFFFFFFFFFFFFF",
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn counting(seed: u8) -> impl FnMut(&mut [u8]) {
        let mut next = seed;
        move |into: &mut [u8]| {
            for byte in into {
                next = next.wrapping_mul(29).wrapping_add(17);
                *byte = next;
            }
        }
    }

    #[test]
    fn both_ends_agree_and_a_third_does_not() {
        for group in DhGroup::ALL {
            let [alice, bob, carol] = [1, 2, 3].map(|seed| DhSecret::draw(group, &mut counting(seed)));
            let [a, b] = [&alice, &bob].map(DhSecret::public);
            assert_eq!((a.len(), b.len()), (group.value_len(), group.value_len()));
            let shared = alice.agree(&b).unwrap();
            assert_eq!(shared.len(), group.value_len());
            assert_eq!(*shared, *bob.agree(&a).unwrap(), "{group:?}");
            assert_ne!(*shared, *carol.agree(&a).unwrap());
            assert_eq!(DhGroup::from_code(group.code()), Some(group));
        }
        assert_eq!(DhGroup::from_code(0), None);
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        fn minus<const LIMBS: usize>(modulus: &Uint<LIMBS>, by: u8) -> Vec<u8> {
            modulus.wrapping_sub(&Uint::from_u8(by)).to_be_bytes().as_ref().to_vec()
        }
        let edges = |group| match group {
            DhGroup::Modp2048 => [0, 1, 2].map(|by| minus(&P2048, by)),
            DhGroup::Modp3072 => [0, 1, 2].map(|by| minus(&P3072, by)),
            _ => [0, 1, 2].map(|by| minus(&P4096, by)),
        };
        for group in [DhGroup::Modp2048, DhGroup::Modp3072, DhGroup::Modp4096] {
            let secret = DhSecret::draw(group, &mut counting(7));
            let mut small = vec![0; group.value_len()];
            for weak in [0, 1] {
                small[group.value_len() - 1] = weak;
                assert_eq!(secret.agree(&small).err(), Some(ValueError::Weak), "{weak}");
            }
            small[group.value_len() - 1] = 2;
            assert_eq!(*secret.agree(&small).unwrap(), secret.public(), "2 is the generator");
            let [p, below, fine] = edges(group);
            assert_eq!(secret.agree(&p).err(), Some(ValueError::Weak));
            assert_eq!(secret.agree(&below).err(), Some(ValueError::Weak));
            assert_eq!(secret.agree(&vec![0xFF; group.value_len()]).err(), Some(ValueError::Weak));
            assert!(secret.agree(&fine).is_ok());
            let short = ValueError::Length { actual: 3, expected: group.value_len() };
            assert_eq!(secret.agree(&[9; 3]).err(), Some(short));
        }
        let secret = DhSecret::draw(DhGroup::X25519, &mut counting(7));
        let mut one = [0; 32];
        assert_eq!(secret.agree(&one).err(), Some(ValueError::Weak));
        one[0] = 1;
        assert_eq!(secret.agree(&one).err(), Some(ValueError::Weak));
    }

    /// The published form of the primes, and the proof that 2 generates the subgroup of prime
    /// order: 2^((p-1)/2) = 1.
    #[test]
    fn the_primes_are_those_of_rfc_3526() {
        fn check<const LIMBS: usize>(modulus: &Uint<LIMBS>, word_after_pi: &str) {
            let bytes = modulus.to_be_bytes();
            let bytes = bytes.as_ref();
            assert_eq!(bytes[..8], [0xFF; 8]);
            assert_eq!(bytes[bytes.len() - 8..], [0xFF; 8]);
            // The start of pi, from its fourth bit on.
            assert_eq!(bytes[8..16], [0xC9, 0x0F, 0xDA, 0xA2, 0x21, 0x68, 0xC2, 0x34]);
            let tail: std::string::String = bytes[bytes.len() - 16..bytes.len() - 8]
                .iter()
                .map(|byte| std::format!("{byte:02X}"))
                .collect();
            assert_eq!(tail, word_after_pi);
            let params = FixedMontyParams::new_vartime(Odd::new(*modulus).unwrap());
            let half = modulus.wrapping_sub(&Uint::ONE).wrapping_shr_vartime(1);
            let two = FixedMontyForm::new(&Uint::from_u8(2), &params);
            assert_eq!(two.pow(&half).retrieve(), Uint::ONE);
            for base in [3u8, 5] {
                let whole = modulus.wrapping_sub(&Uint::ONE);
                let base = FixedMontyForm::new(&Uint::from_u8(base), &params);
                assert_eq!(base.pow(&whole).retrieve(), Uint::ONE, "Fermat");
            }
        }
        check(&P2048, "15728E5A8AACAA68");
        check(&P3072, "4B82D120A93AD2CA");
        check(&P4096, "4DF435C934063199");
    }

    /// RFC 7748 section 5.2, the first vector of the function.
    #[test]
    fn x25519_gives_the_vector_of_its_rfc() {
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        let scalar = hex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4");
        let secret =
            DhSecret::draw(DhGroup::X25519, &mut |into: &mut [u8]| into[..32].copy_from_slice(&scalar));
        let peer = hex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c");
        let shared = secret.agree(&peer).unwrap();
        assert_eq!(*shared, hex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"));
    }
}
