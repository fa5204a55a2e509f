//! The groups of RFC 2412 and RFC 3526 over a prime, generator 2.
//!
//! Source of truth: RFC 2409 6.1 and 6.2 (groups 1 and 2), RFC 3526 2 and 3 (groups 5 and 14).

use alloc::vec::Vec;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U256, U768, U1024, U1536, U2048, Uint};
use sealstone_mds_protocol::paper::Element;
use zeroize::{Zeroize as _, Zeroizing};

use super::PaperFailure;
use crate::{CryptoRng, RngCore};

/// Bytes of a secret exponent: more than twice the strength of the largest group.
const EXPONENT_BYTES: usize = 32;

/// A group by its Oakley number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OakleyGroup {
    /// 768 bits: has been broken in public; refused unless explicitly enabled.
    Modp768,
    /// 1024 bits: usual at the time of the paper, within reach of states.
    Modp1024,
    /// 1536 bits.
    Modp1536,
    /// 2048 bits.
    Modp2048,
}

impl OakleyGroup {
    /// All groups.
    pub const ALL: [Self; 4] = [Self::Modp768, Self::Modp1024, Self::Modp1536, Self::Modp2048];

    /// Returns GRP.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Modp768 => 1,
            Self::Modp1024 => 2,
            Self::Modp1536 => 5,
            Self::Modp2048 => 14,
        }
    }

    /// Returns the group of a number; 3 and 4, over elliptic curves, are obsolete.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.number() == number)
    }

    /// Returns the bytes of the prime and of every element.
    #[must_use]
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::Modp768 => 96,
            Self::Modp1024 => 128,
            Self::Modp1536 => 192,
            Self::Modp2048 => 256,
        }
    }
}

/// A secret exponent; wiped when dropped.
pub(crate) struct SecretExponent(OakleyGroup, Zeroizing<[u8; EXPONENT_BYTES]>);

impl SecretExponent {
    pub(crate) fn draw<R: RngCore + CryptoRng + ?Sized>(group: OakleyGroup, rng: &mut R) -> Self {
        let mut bytes = Zeroizing::new([0; EXPONENT_BYTES]);
        rng.fill_bytes(&mut *bytes);
        Self(group, bytes)
    }

    pub(crate) fn public(&self) -> Element {
        let bytes = self.power(&[2]);
        Element::new(bytes.as_slice()).expect("an element is 96 to 256 bytes")
    }

    /// Returns g^xy, of a peer's value that passed [`check`].
    pub(crate) fn agree(&self, peer: &CheckedElement) -> Zeroizing<Vec<u8>> {
        self.power(peer.0.as_slice())
    }

    fn power(&self, base: &[u8]) -> Zeroizing<Vec<u8>> {
        let mut exponent = U256::from_be_slice(&*self.1);
        let power = match self.0 {
            OakleyGroup::Modp768 => power(&P768, base, &exponent),
            OakleyGroup::Modp1024 => power(&P1024, base, &exponent),
            OakleyGroup::Modp1536 => power(&P1536, base, &exponent),
            OakleyGroup::Modp2048 => power(&P2048, base, &exponent),
        };
        exponent.zeroize();
        power
    }
}

/// A peer's public value from 2 to p - 2.
#[derive(Clone)]
pub(crate) struct CheckedElement(Element);

/// Refuses values with predictable powers. The primes are safe, so every other value has a large
/// order.
pub(crate) fn check(group: OakleyGroup, value: &Element) -> Result<CheckedElement, PaperFailure> {
    fn within<const LIMBS: usize>(modulus: &Uint<LIMBS>, value: &[u8]) -> bool {
        let value = Uint::<LIMBS>::from_be_slice(value);
        let top = modulus.wrapping_sub(&Uint::from_u8(2));
        value.cmp_vartime(&Uint::from_u8(2)).is_ge() && value.cmp_vartime(&top).is_le()
    }
    let (bytes, expected) = (value.as_slice(), group.element_bytes());
    if bytes.len() != expected {
        return Err(PaperFailure::ElementLength { actual: bytes.len(), expected });
    }
    let fits = match group {
        OakleyGroup::Modp768 => within(&P768, bytes),
        OakleyGroup::Modp1024 => within(&P1024, bytes),
        OakleyGroup::Modp1536 => within(&P1536, bytes),
        OakleyGroup::Modp2048 => within(&P2048, bytes),
    };
    if fits { Ok(CheckedElement(value.clone())) } else { Err(PaperFailure::ElementWeak) }
}

/// Returns `base^exponent mod p`, as long as p, in the same time for every exponent.
fn power<const LIMBS: usize>(modulus: &Uint<LIMBS>, base: &[u8], exponent: &U256) -> Zeroizing<Vec<u8>> {
    // The modulus is public, so the time for its parameters may vary.
    let params = FixedMontyParams::new_vartime(Odd::new(*modulus).expect("the primes are odd"));
    let mut wide = Zeroizing::new(alloc::vec![0; LIMBS * 8]);
    let at = (LIMBS * 8).saturating_sub(base.len());
    wide[at..].copy_from_slice(base);
    let base = FixedMontyForm::new(&Uint::<LIMBS>::from_be_slice(&wide), &params);
    let mut power = base.pow_bounded_exp(exponent, U256::BITS);
    let mut value = power.retrieve();
    let bytes = Zeroizing::new(value.to_be_bytes().as_ref().to_vec());
    value.zeroize();
    power.zeroize();
    bytes
}

/// 2^768 - 2^704 - 1 + 2^64 * (floor(2^638 pi) + 149686)
const P768: U768 = U768::from_be_hex(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD\
     EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A63A3620FFFFFFFFFFFFFFFF",
);
/// 2^1024 - 2^960 - 1 + 2^64 * (floor(2^894 pi) + 129093)
const P1024: U1024 = U1024::from_be_hex(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD\
     EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED\
     EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE65381FFFFFFFFFFFFFFFF",
);
/// 2^1536 - 2^1472 - 1 + 2^64 * (floor(2^1406 pi) + 741804)
const P1536: U1536 = U1536::from_be_hex(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD\
     EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED\
     EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F\
     83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA237327FFFFFFFFFFFFFFFF",
);
/// 2^2048 - 2^1984 - 1 + 2^64 * (floor(2^1918 pi) + 124476)
const P2048: U2048 = U2048::from_be_hex(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD\
     EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED\
     EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F\
     83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B\
     E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510\
     15728E5A8AACAA68FFFFFFFFFFFFFFFF",
);

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn minus(group: OakleyGroup, by: u8) -> Element {
        fn less<const LIMBS: usize>(modulus: &Uint<LIMBS>, by: u8) -> Element {
            Element::new(modulus.wrapping_sub(&Uint::from_u8(by)).to_be_bytes().as_ref()).unwrap()
        }
        match group {
            OakleyGroup::Modp768 => less(&P768, by),
            OakleyGroup::Modp1024 => less(&P1024, by),
            OakleyGroup::Modp1536 => less(&P1536, by),
            OakleyGroup::Modp2048 => less(&P2048, by),
        }
    }

    #[test]
    fn both_ends_agree_in_every_group() {
        let mut rng = StdRng::seed_from_u64(1);
        for group in OakleyGroup::ALL {
            let (x, y) = (SecretExponent::draw(group, &mut rng), SecretExponent::draw(group, &mut rng));
            let (gx, gy) = (check(group, &x.public()).unwrap(), check(group, &y.public()).unwrap());
            assert_eq!(*x.agree(&gy), *y.agree(&gx));
            assert_eq!(x.public().as_slice().len(), group.element_bytes());
            assert_eq!(OakleyGroup::from_number(group.number()), Some(group));
        }
        assert_eq!([0, 3, 4, 15].map(OakleyGroup::from_number), [None; 4]);
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        for group in OakleyGroup::ALL {
            let length = group.element_bytes();
            let small = |value: u8| {
                let mut bytes = alloc::vec![0; length];
                bytes[length - 1] = value;
                Element::new(bytes).unwrap()
            };
            for weak in [small(0), small(1), minus(group, 1), minus(group, 0)] {
                assert_eq!(check(group, &weak).err(), Some(PaperFailure::ElementWeak));
            }
            assert!(check(group, &small(2)).is_ok() && check(group, &minus(group, 2)).is_ok());
            let short = Element::new(alloc::vec![9; length - 1]).unwrap();
            assert!(matches!(check(group, &short), Err(PaperFailure::ElementLength { .. })));
        }
    }

    /// The primes begin with pi and end as published, and 2 generates the subgroup of prime order:
    /// 2^((p-1)/2) = 1.
    #[test]
    fn the_primes_are_those_of_their_rfcs() {
        fn check<const LIMBS: usize>(modulus: &Uint<LIMBS>, word_after_pi: u64) {
            let bytes = modulus.to_be_bytes();
            let bytes = bytes.as_ref();
            assert_eq!(bytes[..8], [0xFF; 8]);
            assert_eq!(bytes[bytes.len() - 8..], [0xFF; 8]);
            assert_eq!(bytes[8..16], 0xC90F_DAA2_2168_C234_u64.to_be_bytes());
            assert_eq!(bytes[bytes.len() - 16..bytes.len() - 8], word_after_pi.to_be_bytes());
            let params = FixedMontyParams::new_vartime(Odd::new(*modulus).unwrap());
            let half = modulus.wrapping_sub(&Uint::ONE).wrapping_shr_vartime(1);
            let two = FixedMontyForm::new(&Uint::from_u8(2), &params);
            assert_eq!(two.pow(&half).retrieve(), Uint::ONE);
        }
        check(&P768, 0xF44C_42E9_A63A_3620);
        check(&P1024, 0x4928_6651_ECE6_5381);
        check(&P1536, 0xF174_6C08_CA23_7327);
        check(&P2048, 0x1572_8E5A_8AAC_AA68);
    }
}
