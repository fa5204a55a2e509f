//! The keys of one block, random for each write, with its MAC; at M-lazy the generation of the
//! write from which its key is derived, with its tag.

use alloc::vec::Vec;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::cipher::{MAC_LEN, MacTag};
use crate::generation::{GENERATION_LEN, Generation};
use crate::key_list::KeyScheme;

/// Bytes of a block encryption key (AES-192).
pub const BEK_LEN: usize = 24;
/// Bytes of a block authentication key (HMAC-MD5).
pub const BAK_LEN: usize = 16;

/// Encryption key and authentication key of one block, or the generation of its write. A part that
/// the level does not use is zero.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct BlockKeys {
    /// Block encryption key (BEK).
    pub encryption: [u8; BEK_LEN],
    /// Block authentication key (BAK).
    pub authentication: [u8; BAK_LEN],
    /// Generation of the write; not secret.
    #[zeroize(skip)]
    pub generation: Generation,
}

impl BlockKeys {
    /// The keys of a block that was never written: it reads as zeros and has no MAC.
    pub const UNWRITTEN: Self =
        Self { encryption: [0; BEK_LEN], authentication: [0; BAK_LEN], generation: Generation::UNWRITTEN };

    /// Returns the entry of a block whose key is derived from a generation.
    #[must_use]
    pub fn of_generation(generation: Generation) -> Self {
        Self { generation, ..Self::UNWRITTEN }
    }

    /// Generates the keys that a scheme uses. `random` fills a slice with unpredictable bytes.
    pub fn generate(scheme: KeyScheme, random: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut keys = Self::UNWRITTEN;
        if scheme.has_encryption() {
            random(&mut keys.encryption);
        }
        if scheme.has_random_authentication() {
            random(&mut keys.authentication);
        }
        keys
    }

    /// Whether these are the keys of a block that was never written.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        let has_no_keys = self.encryption.ct_eq(&[0; BEK_LEN]) & self.authentication.ct_eq(&[0; BAK_LEN]);
        self.generation == Generation::UNWRITTEN && bool::from(has_no_keys)
    }
}

/// Keys and MAC of one block, as the target stores and forwards them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSeal {
    /// The keys that the writer generated.
    pub keys: BlockKeys,
    /// The writer's MAC; zero at levels without block MACs.
    pub mac: MacTag,
}

impl BlockSeal {
    /// The seal of a block that was never written.
    pub const UNWRITTEN: Self = Self { keys: BlockKeys::UNWRITTEN, mac: [0; MAC_LEN] };

    /// Appends the seal as the target stores it, [`KeyScheme::seal_len`] bytes: BEK, BAK and MAC,
    /// or generation and tag.
    pub fn append_to(&self, scheme: KeyScheme, out: &mut Vec<u8>) {
        if scheme.has_generations() {
            out.extend_from_slice(&self.keys.generation.to_bytes());
        } else {
            out.extend_from_slice(&self.keys.encryption);
            out.extend_from_slice(&self.keys.authentication);
        }
        out.extend_from_slice(&self.mac);
    }

    /// Returns the seal of bytes that [`Self::append_to`] made; `None` if their number differs.
    #[must_use]
    pub fn decode(scheme: KeyScheme, bytes: &[u8]) -> Option<Self> {
        let mut seal = Self::UNWRITTEN;
        let (keys, mac) = bytes.split_last_chunk::<MAC_LEN>()?;
        seal.mac = *mac;
        if scheme.has_generations() {
            seal.keys.generation = Generation::from_bytes(<[u8; GENERATION_LEN]>::try_from(keys).ok()?);
            return Some(seal);
        }
        let (encryption, authentication) = keys.split_first_chunk::<BEK_LEN>()?;
        seal.keys.encryption = *encryption;
        seal.keys.authentication = authentication.try_into().ok()?;
        Some(seal)
    }
}

impl PartialEq for BlockKeys {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        let has_same_keys =
            self.encryption.ct_eq(&other.encryption) & self.authentication.ct_eq(&other.authentication);
        self.generation == other.generation && bool::from(has_same_keys)
    }
}

impl Eq for BlockKeys {}

impl core::fmt::Debug for BlockKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("BlockKeys(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_follow_the_scheme() {
        let mut random = |into: &mut [u8]| into.fill(7);
        for (scheme, encryption, authentication) in
            [(KeyScheme::Encryption, 7, 0), (KeyScheme::Authentication, 0, 7), (KeyScheme::Both, 7, 7)]
        {
            let keys = BlockKeys::generate(scheme, &mut random);
            assert_eq!(keys.encryption, [encryption; BEK_LEN]);
            assert_eq!(keys.authentication, [authentication; BAK_LEN]);
            assert!(!keys.is_unwritten());
        }
        assert!(BlockKeys::UNWRITTEN.is_unwritten());
        assert!(!BlockKeys::of_generation(Generation::from_bytes([1; 8])).is_unwritten());
    }

    #[test]
    fn stored_seals_read_back_by_scheme() {
        let generation = Generation::from_bytes([4; 8]);
        let keys =
            BlockKeys { encryption: [1; BEK_LEN], authentication: [2; BAK_LEN], ..BlockKeys::UNWRITTEN };
        for (scheme, keys) in
            [(KeyScheme::Both, keys), (KeyScheme::Generation, BlockKeys::of_generation(generation))]
        {
            let seal = BlockSeal { keys, mac: [3; MAC_LEN] };
            let mut bytes = Vec::new();
            seal.append_to(scheme, &mut bytes);
            assert_eq!(bytes.len(), scheme.seal_len());
            assert_eq!(BlockSeal::decode(scheme, &bytes), Some(seal));
            assert_eq!(BlockSeal::decode(scheme, &bytes[1..]), None);
        }
    }

    #[test]
    fn printed_keys_reveal_nothing() {
        let keys = BlockKeys {
            encryption: [0xAB; BEK_LEN],
            authentication: [0xAB; BAK_LEN],
            ..BlockKeys::UNWRITTEN
        };
        assert_eq!(std::format!("{keys:?}"), "BlockKeys(..)");
    }
}
