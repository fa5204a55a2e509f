//! Diffie-Hellman in the 2048-bit group of RFC 3526 section 3: enough for one exchange, not for
//! secrets.

/// Bytes of a value.
pub(crate) const BYTES: usize = 256;
const LIMBS: usize = BYTES / 4;

const PRIME: &str = "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD\
EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED\
EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F\
83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B\
E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510\
15728E5A8AACAA68FFFFFFFFFFFFFFFF";

/// Limbs, the least significant first.
type LimbNumber = [u32; LIMBS];

pub(crate) fn prime() -> Vec<u8> {
    (0..PRIME.len()).step_by(2).map(|at| u8::from_str_radix(&PRIME[at..at + 2], 16).unwrap()).collect()
}

fn number(bytes: &[u8]) -> LimbNumber {
    assert_eq!(bytes.len(), BYTES);
    core::array::from_fn(|at| {
        let end = BYTES - 4 * at;
        u32::from_be_bytes(bytes[end - 4..end].try_into().unwrap())
    })
}

fn bytes(number: &LimbNumber) -> Vec<u8> {
    number.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect()
}

/// Subtracts the modulus once if the number, with its carry, is not below it.
fn reduce(value: &mut LimbNumber, carry: bool, modulus: &LimbNumber) {
    if !carry && value.iter().rev().lt(modulus.iter().rev()) {
        return;
    }
    let mut borrow = 0;
    for (limb, take) in value.iter_mut().zip(modulus) {
        let (one, first) = limb.overflowing_sub(*take);
        let (two, second) = one.overflowing_sub(borrow);
        (*limb, borrow) = (two, u32::from(first || second));
    }
}

/// Returns a b / 2^2048 mod p (Montgomery); the lowest limb of p is all ones, so its negative
/// inverse is 1.
fn multiply(a: &LimbNumber, b: &LimbNumber, modulus: &LimbNumber) -> LimbNumber {
    let mut sum = [0_u64; LIMBS + 2];
    for limb in a {
        let mut carry = 0;
        for at in 0..LIMBS {
            let next = sum[at] + u64::from(*limb) * u64::from(b[at]) + carry;
            (sum[at], carry) = (next & 0xFFFF_FFFF, next >> 32);
        }
        let next = sum[LIMBS] + carry;
        (sum[LIMBS], sum[LIMBS + 1]) = (next & 0xFFFF_FFFF, next >> 32);
        let factor = sum[0] & 0xFFFF_FFFF;
        let mut carry = (sum[0] + factor * u64::from(modulus[0])) >> 32;
        for at in 1..LIMBS {
            let next = sum[at] + factor * u64::from(modulus[at]) + carry;
            (sum[at - 1], carry) = (next & 0xFFFF_FFFF, next >> 32);
        }
        let next = sum[LIMBS] + carry;
        (sum[LIMBS - 1], sum[LIMBS]) = (next & 0xFFFF_FFFF, sum[LIMBS + 1] + (next >> 32));
    }
    let mut result: LimbNumber = core::array::from_fn(|at| sum[at] as u32);
    reduce(&mut result, sum[LIMBS] != 0, modulus);
    result
}

/// Returns base^exponent mod p.
pub(crate) fn power(base: &[u8], exponent: &[u8]) -> Vec<u8> {
    let modulus = number(&prime());
    // 2^2048 mod p, then doubled 2048 times: 2^4096 mod p.
    let mut one: LimbNumber = [0; LIMBS];
    reduce(&mut one, true, &modulus);
    let mut square = one;
    for _ in 0..32 * LIMBS {
        let carry = square[LIMBS - 1] >> 31 != 0;
        for at in (0..LIMBS).rev() {
            square[at] = square[at] << 1 | if at > 0 { square[at - 1] >> 31 } else { 0 };
        }
        reduce(&mut square, carry, &modulus);
    }
    let base = multiply(&number(base), &square, &modulus);
    let mut result = one;
    for byte in exponent {
        for bit in (0..8).rev() {
            result = multiply(&result, &result, &modulus);
            if byte >> bit & 1 != 0 {
                result = multiply(&result, &base, &modulus);
            }
        }
    }
    let mut plain = [0; LIMBS];
    plain[0] = 1;
    bytes(&multiply(&result, &plain, &modulus))
}

/// Returns a small number as a value.
pub(crate) fn small(value: u8) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    bytes[BYTES - 1] = value;
    bytes
}

/// Returns 2^exponent mod p, the public value.
pub(crate) fn public(exponent: &[u8]) -> Vec<u8> {
    power(&small(2), exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_agree_and_fermat_holds() {
        let (one, other) = ([7_u8; 32], [0x91_u8; 32]);
        assert_eq!(power(&public(&one), &other), power(&public(&other), &one));
        assert_eq!(power(&small(2), &[5]), small(32));
        let mut less = prime();
        *less.last_mut().unwrap() -= 1;
        assert_eq!(power(&small(3), &less), small(1));
    }
}
