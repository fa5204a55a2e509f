//! Seals of blocks under their own keys.
//!
//! A block's MAC is HMAC-MD5 over what is stored: the ciphertext if blocks are encrypted, otherwise
//! the data. The profile `paper+safe` puts the block's address before it. The initialisation vector
//! of a block is zero, since its key is used for one write of one block only. Blocks of M-lazy are
//! sealed by `UnitKeys`.

use alloc::vec::Vec;

use subtle::ConstantTimeEq as _;

use crate::block_keys::BlockKeys;
use crate::cipher::{CIPHER_BLOCK, MAC_LEN, MacTag, cbc_decrypt, cbc_encrypt, hmac_md5};
use crate::key_list::{BlockKeyList, KeyListForm};
use crate::level::ProtectionProfile;

/// The data of a block are not those that its writer sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {lba} is not authentic")]
pub struct BlockMismatch {
    /// Address of the first such block.
    pub lba: u64,
}

fn block_mac(profile: ProtectionProfile, lba: u64, keys: &BlockKeys, stored: &[u8]) -> MacTag {
    let address = lba.to_be_bytes();
    let address: &[u8] = if profile.binds_address() { &address } else { &[] };
    hmac_md5(&keys.authentication, &[address, stored])
}

/// Whether a stored block has this MAC under its key. A block that was never written is zero and
/// has a MAC of zeros. A block of the profile `modern` that was written never has: `UnitKeys`
/// verifies it.
#[must_use]
pub fn verify_block(
    profile: ProtectionProfile,
    lba: u64,
    keys: &BlockKeys,
    stored: &[u8],
    mac: &MacTag,
) -> bool {
    if keys.is_unwritten() {
        return bool::from(mac.ct_eq(&[0; MAC_LEN])) && stored.iter().all(|byte| *byte == 0);
    }
    if profile == ProtectionProfile::Modern {
        return false;
    }
    block_mac(profile, lba, keys, stored).ct_eq(mac).into()
}

/// Seals and opens blocks at a client.
#[derive(Clone, Copy, Debug)]
pub struct BlockSealer {
    form: KeyListForm,
}

impl BlockSealer {
    /// Creates a sealer of a session's form.
    #[must_use]
    pub const fn new(form: KeyListForm) -> Self {
        Self { form }
    }

    /// Generates keys for whole blocks, encrypts the blocks in place and computes their MACs. There
    /// are no MACs if the scheme has no authentication. Panics if the length is no multiple of a
    /// block, or if the scheme has generations.
    pub fn seal(
        &self,
        first_lba: u64,
        data: &mut [u8],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> (BlockKeyList, Vec<MacTag>) {
        let block = self.form.block.bytes();
        assert_eq!(data.len() % block, 0, "whole blocks are sealed");
        assert!(!self.form.scheme.has_generations(), "such blocks are sealed by UnitKeys");
        let mut list = BlockKeyList { first_lba, keys: Vec::with_capacity(data.len() / block) };
        let mut macs = Vec::new();
        for (lba, block) in (first_lba..).zip(data.chunks_exact_mut(block)) {
            let keys = BlockKeys::generate(self.form.scheme, random);
            if self.form.scheme.has_encryption() {
                cbc_encrypt(&keys.encryption, &[0; CIPHER_BLOCK], block);
            }
            if self.form.scheme.has_authentication() {
                macs.push(block_mac(self.form.profile, lba, &keys, block));
            }
            list.keys.push(keys);
        }
        (list, macs)
    }

    /// Verifies one block and decrypts it in place. `mac` must be present if the scheme has
    /// authentication. Returns false, with unspecified data, if the block is not authentic.
    #[must_use]
    pub fn open_block(&self, lba: u64, keys: &BlockKeys, mac: Option<&MacTag>, block: &mut [u8]) -> bool {
        let authentic = self.form.scheme.has_authentication();
        if authentic && mac.is_none() || !block.len().is_multiple_of(CIPHER_BLOCK) {
            return false;
        }
        // Without a MAC of its own, a block was authenticated by its record.
        let mac = mac.unwrap_or(&[0; MAC_LEN]);
        if (authentic || keys.is_unwritten()) && !verify_block(self.form.profile, lba, keys, block, mac) {
            return false;
        }
        if self.form.scheme.has_encryption() && !keys.is_unwritten() {
            cbc_decrypt(&keys.encryption, &[0; CIPHER_BLOCK], block);
        }
        true
    }

    /// Verifies blocks and decrypts them in place. The data are unspecified after an error. Panics
    /// unless there is data for each key, and a MAC if the scheme has authentication.
    ///
    /// # Errors
    /// The first block that is not authentic.
    pub fn open(&self, list: &BlockKeyList, macs: &[MacTag], data: &mut [u8]) -> Result<(), BlockMismatch> {
        let block = self.form.block.bytes();
        assert_eq!(data.len(), list.keys.len() * block, "data for each key");
        let authentic = self.form.scheme.has_authentication();
        assert_eq!(macs.len(), if authentic { list.keys.len() } else { 0 }, "a MAC for each key");
        for (at, (keys, block)) in list.keys.iter().zip(data.chunks_exact_mut(block)).enumerate() {
            let lba = list.first_lba + at as u64;
            if !self.open_block(lba, keys, macs.get(at), block) {
                return Err(BlockMismatch { lba });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;
    use crate::key_list::KeyScheme;
    use crate::level::ProtectedBlock;

    fn form(scheme: KeyScheme, profile: ProtectionProfile) -> KeyListForm {
        KeyListForm { scheme, block: ProtectedBlock::B512, profile }
    }

    fn random() -> impl FnMut(&mut [u8]) {
        let mut next = 0_u8;
        move |into: &mut [u8]| {
            for byte in into {
                next = next.wrapping_mul(77).wrapping_add(31);
                *byte = next;
            }
        }
    }

    const SCHEMES: [KeyScheme; 3] = [KeyScheme::Encryption, KeyScheme::Authentication, KeyScheme::Both];

    #[test]
    fn sealed_blocks_open_and_hide_data() {
        for scheme in SCHEMES {
            let sealer = BlockSealer::new(form(scheme, ProtectionProfile::Paper));
            let plain = vec![0x5A; 1536];
            let mut data = plain.clone();
            let (list, macs) = sealer.seal(40, &mut data, &mut random());
            assert_eq!(macs.len(), if scheme.has_authentication() { 3 } else { 0 });
            assert_eq!(data != plain, scheme.has_encryption());
            sealer.open(&list, &macs, &mut data).unwrap();
            assert_eq!(data, plain);
        }
    }

    #[test]
    fn every_changed_byte_of_block_is_detected() {
        for scheme in [KeyScheme::Authentication, KeyScheme::Both] {
            for profile in
                [ProtectionProfile::Paper, ProtectionProfile::PaperTaskTag, ProtectionProfile::PaperSafe]
            {
                let sealer = BlockSealer::new(form(scheme, profile));
                let mut data = vec![0x5A; 1024];
                let (list, macs) = sealer.seal(40, &mut data, &mut random());
                for at in 0..data.len() {
                    let mut changed = data.clone();
                    changed[at] ^= 1 << (at % 8);
                    let lba = 40 + at as u64 / 512;
                    assert_eq!(sealer.open(&list, &macs, &mut changed), Err(BlockMismatch { lba }));
                }
                for at in 0..MAC_LEN * 2 {
                    let mut changed = macs.clone();
                    changed[at / MAC_LEN][at % MAC_LEN] ^= 0x80;
                    assert!(sealer.open(&list, &changed, &mut data.clone()).is_err());
                }
                for at in 0..16 {
                    let mut changed = list.clone();
                    changed.keys[1].authentication[at] ^= 1;
                    assert!(sealer.open(&changed, &macs, &mut data.clone()).is_err());
                }
            }
        }
    }

    /// A block that is moved with its key and MAC is detected by `paper+safe` only.
    #[test]
    fn moved_block_is_detected_by_bound_address() {
        for (profile, detected) in [(ProtectionProfile::Paper, false), (ProtectionProfile::PaperSafe, true)] {
            let sealer = BlockSealer::new(form(KeyScheme::Both, profile));
            let mut data = vec![0x5A; 512];
            let (mut list, macs) = sealer.seal(40, &mut data, &mut random());
            list.first_lba = 41;
            assert_eq!(sealer.open(&list, &macs, &mut data).is_err(), detected);
        }
    }

    #[test]
    fn unwritten_block_must_be_zero() {
        for scheme in SCHEMES {
            let sealer = BlockSealer::new(form(scheme, ProtectionProfile::PaperSafe));
            let list = BlockKeyList { first_lba: 3, keys: vec![BlockKeys::UNWRITTEN] };
            let macs = if scheme.has_authentication() { vec![[0; MAC_LEN]] } else { Vec::new() };
            let mut data = vec![0; 512];
            assert_eq!(sealer.open(&list, &macs, &mut data), Ok(()));
            assert_eq!(data, vec![0; 512]);
            data[100] = 1;
            assert_eq!(sealer.open(&list, &macs, &mut data), Err(BlockMismatch { lba: 3 }));
        }
    }

    proptest! {
        #[test]
        fn any_blocks_open_as_sealed(seed: u8, blocks in 1..5_usize, scheme in 0..3_usize, lba in 0..1_u64 << 40) {
            let sealer = BlockSealer::new(form(SCHEMES[scheme], ProtectionProfile::PaperSafe));
            let plain: Vec<u8> = (0..blocks * 512).map(|at| (at as u8).wrapping_mul(seed)).collect();
            let mut data = plain.clone();
            let (list, macs) = sealer.seal(lba, &mut data, &mut random());
            prop_assert_eq!(sealer.open(&list, &macs, &mut data), Ok(()));
            prop_assert_eq!(data, plain);
        }
    }
}
