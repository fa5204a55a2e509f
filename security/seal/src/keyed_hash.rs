//! SipHash-2-4: the keyed 64-bit hash of the nonce memory and the credential cache.
//!
//! Does: computes slot numbers that an attacker can neither predict nor choose.
//! Does not: authenticate anything.
//! Source of truth: Aumasson and Bernstein, SipHash, 2012; the test vectors are those of its
//! reference implementation.

/// A keyed hash function; the key is drawn at start and never leaves memory.
#[derive(Clone)]
pub(crate) struct KeyedHash {
    k0: u64,
    k1: u64,
}

impl KeyedHash {
    pub(crate) fn new(key: &[u8; 16]) -> Self {
        let [k0, k1] = [0, 8].map(|at| word(&key[at..at + 8]));
        Self { k0, k1 }
    }

    /// Returns the hash of a byte string.
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        let mut v = [
            self.k0 ^ 0x736f_6d65_7073_6575,
            self.k1 ^ 0x646f_7261_6e64_6f6d,
            self.k0 ^ 0x6c79_6765_6e65_7261,
            self.k1 ^ 0x7465_6462_7974_6573,
        ];
        let (words, rest) = bytes.as_chunks::<8>();
        for chunk in words {
            absorb(&mut v, word(chunk));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last[7] = bytes.len() as u8;
        absorb(&mut v, word(&last));
        v[2] ^= 0xFF;
        (0..4).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

/// SipHash is defined over little-endian words.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn absorb(v: &mut [u64; 4], message: u64) {
    v[3] ^= message;
    round(v);
    round(v);
    v[0] ^= message;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_hash_is_siphash_2_4() {
        let key: [u8; 16] = core::array::from_fn(|at| at as u8);
        let message: [u8; 15] = core::array::from_fn(|at| at as u8);
        let hash = KeyedHash::new(&key);
        assert_eq!(hash.hash(&message), 0xa129_ca61_49be_45e5);
        assert_eq!(hash.hash(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(hash.hash(&[0]), 0x74f8_39c5_93dc_67fd);
    }
}
