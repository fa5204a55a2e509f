//! HMAC with cached midstates.

use aes_gcm_siv::Aes256GcmSiv;
use aes_gcm_siv::aead::AeadInOut as _;
use aes_gcm_siv::aead::inout::InOutBuf;
use hmac::block_api::HmacCore;
use hmac::digest::block_api::{Buffer, EagerHash, FixedOutputCore, UpdateCore};
use hmac::digest::{KeyInit as _, Output, OutputSizeUser};
use sealstone_seal::provider::SIV_LEN;
use sealstone_seal::{Hash, Provider, Tag};
use sha1::Sha1;
use sha2::Sha256;

/// RustCrypto's HMAC as seal's provider.
pub enum RustCrypto {}

/// The inner and the outer midstate of an HMAC key; wiped when dropped.
pub struct MacKey(MacMidstates);

enum MacMidstates {
    Sha1(HmacCore<Sha1>),
    Sha256(HmacCore<Sha256>),
}

impl Provider for RustCrypto {
    type MacKey = MacKey;

    fn mac_key(hash: Hash, key: &[u8]) -> MacKey {
        MacKey(match hash {
            Hash::Sha1 => MacMidstates::Sha1(prepare(key)),
            Hash::Sha256 => MacMidstates::Sha256(prepare(key)),
        })
    }

    fn tag(key: &MacKey, parts: &[&[u8]]) -> Tag {
        match &key.0 {
            MacMidstates::Sha1(core) => Tag::from_sha1(finish(core, parts).into()),
            MacMidstates::Sha256(core) => Tag::from_sha256(finish(core, parts).into()),
        }
    }

    fn seal_deterministically(key: &[u8; 32], associated: &[u8], data: &mut [u8]) -> [u8; SIV_LEN] {
        Aes256GcmSiv::new(key.into())
            .encrypt_inout_detached(&[0; 12].into(), associated, InOutBuf::from(data))
            .expect("what is sealed is shorter than 64 GiB")
            .into()
    }

    fn open_deterministically(
        key: &[u8; 32],
        associated: &[u8],
        data: &mut [u8],
        tag: &[u8; SIV_LEN],
    ) -> bool {
        Aes256GcmSiv::new(key.into())
            .decrypt_inout_detached(&[0; 12].into(), associated, InOutBuf::from(data), tag.into())
            .is_ok()
    }
}

fn prepare<D: EagerHash>(key: &[u8]) -> HmacCore<D> {
    HmacCore::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn finish<D: EagerHash>(midstates: &HmacCore<D>, parts: &[&[u8]]) -> Output<HmacCore<D>>
where
    HmacCore<D>: FixedOutputCore + OutputSizeUser,
{
    let mut core = midstates.clone();
    let mut buffer = Buffer::<HmacCore<D>>::default();
    for part in parts {
        buffer.digest_blocks(part, |blocks| core.update_blocks(blocks));
    }
    let mut output = Output::<HmacCore<D>>::default();
    core.finalize_fixed_core(&mut buffer, &mut output);
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn check(hash: Hash, key: &[u8], message: &[u8], tag: &str) {
        let key = RustCrypto::mac_key(hash, key);
        for cut in 0..=message.len() {
            let (head, tail) = message.split_at(cut);
            assert_eq!(RustCrypto::tag(&key, &[head, &[], tail]).as_bytes(), hex(tag), "cut at {cut}");
        }
    }

    #[test]
    fn hmac_sha1_gives_the_tags_of_rfc_2202() {
        check(Hash::Sha1, &[0x0b; 20], b"Hi There", "b617318655057264e28bc0b6fb378c8ef146be00");
        check(
            Hash::Sha1,
            b"Jefe",
            b"what do ya want for nothing?",
            "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
        );
        check(Hash::Sha1, &[0xaa; 20], &[0xdd; 50], "125d7342b9ac11cd91a39af48aa17b4f63f175d3");
        check(
            Hash::Sha1,
            &[0xaa; 80],
            b"Test Using Larger Than Block-Size Key and Larger Than One Block-Size Data",
            "e8e99d0f45237d786d6bbaa7965c7808bbff1a91",
        );
    }

    #[test]
    fn hmac_sha256_gives_the_tags_of_rfc_4231() {
        check(
            Hash::Sha256,
            &[0x0b; 20],
            b"Hi There",
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
        );
        check(
            Hash::Sha256,
            b"Jefe",
            b"what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        );
        check(
            Hash::Sha256,
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        );
    }

    #[test]
    fn prepared_mac_key_is_two_midstates() {
        assert!(size_of::<MacKey>() <= 96, "{}", size_of::<MacKey>());
    }
}
