//! The keys of one block, random for each write, with its MAC.

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::cipher::{MAC_LEN, MacTag};
use crate::key_list::KeyScheme;

/// Bytes of a block encryption key (AES-192).
pub const BEK_LEN: usize = 24;
/// Bytes of a block authentication key (HMAC-MD5).
pub const BAK_LEN: usize = 16;

/// Encryption key and authentication key of one block. A key that the level does not use is zero.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct BlockKeys {
    /// Block encryption key (BEK).
    pub encryption: [u8; BEK_LEN],
    /// Block authentication key (BAK).
    pub authentication: [u8; BAK_LEN],
}

impl BlockKeys {
    /// The keys of a block that was never written: it reads as zeros and has no MAC.
    pub const UNWRITTEN: Self = Self { encryption: [0; BEK_LEN], authentication: [0; BAK_LEN] };

    /// Generates the keys that a scheme uses. `random` fills a slice with unpredictable bytes.
    pub fn generate(scheme: KeyScheme, random: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut keys = Self::UNWRITTEN;
        if scheme.has_encryption() {
            random(&mut keys.encryption);
        }
        if scheme.has_authentication() {
            random(&mut keys.authentication);
        }
        keys
    }

    /// Whether these are the keys of a block that was never written.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        bool::from(self.encryption.ct_eq(&[0; BEK_LEN]) & self.authentication.ct_eq(&[0; BAK_LEN]))
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
    /// Bytes of BEK, BAK and MAC.
    pub const LEN: usize = BEK_LEN + BAK_LEN + MAC_LEN;
    /// The seal of a block that was never written.
    pub const UNWRITTEN: Self = Self { keys: BlockKeys::UNWRITTEN, mac: [0; MAC_LEN] };

    /// Returns the seal as bytes.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<[u8; Self::LEN]> {
        let mut out = Zeroizing::new([0; Self::LEN]);
        let (encryption, rest) = out.split_at_mut(BEK_LEN);
        let (authentication, mac) = rest.split_at_mut(BAK_LEN);
        encryption.copy_from_slice(&self.keys.encryption);
        authentication.copy_from_slice(&self.keys.authentication);
        mac.copy_from_slice(&self.mac);
        out
    }

    /// Returns the seal of these bytes.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let mut seal = Self::UNWRITTEN;
        let (encryption, rest) = bytes.split_at(BEK_LEN);
        let (authentication, mac) = rest.split_at(BAK_LEN);
        seal.keys.encryption.copy_from_slice(encryption);
        seal.keys.authentication.copy_from_slice(authentication);
        seal.mac.copy_from_slice(mac);
        seal
    }
}

impl PartialEq for BlockKeys {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        bool::from(
            self.encryption.ct_eq(&other.encryption) & self.authentication.ct_eq(&other.authentication),
        )
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
    }

    #[test]
    fn printed_keys_reveal_nothing() {
        let keys = BlockKeys { encryption: [0xAB; BEK_LEN], authentication: [0xAB; BAK_LEN] };
        assert_eq!(std::format!("{keys:?}"), "BlockKeys(..)");
    }
}
