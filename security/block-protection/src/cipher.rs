//! The paper's algorithms, HMAC-MD5 and AES-192-CBC, and those of M-lazy for headers:
//! HMAC-SHA-256-128 and AES-256-CTR.
//!
//! Source of truth: RFC 2104 and RFC 2202, NIST SP 800-38A; RFC 4868 for the truncated MAC.

use aes::{Aes192, Aes256};
use cbc::cipher::array::Array;
use cbc::cipher::{
    BlockCipherEncrypt as _, BlockModeDecrypt as _, BlockModeEncrypt as _, KeyInit, KeyIvInit as _,
};
use ctr::Ctr32BE;
use ctr::cipher::StreamCipher as _;
use hmac::{Hmac, Mac as _};
use md5::Md5;
use sha2::Sha256;

/// Bytes of a MAC.
pub const MAC_LEN: usize = 16;
/// Bytes of a block of AES.
pub(crate) const CIPHER_BLOCK: usize = 16;

/// A MAC of HMAC-MD5 or HMAC-SHA-256-128, or a tag of AES-256-GCM-SIV.
pub type MacTag = [u8; MAC_LEN];

/// Computes HMAC-MD5 of the concatenation of the parts.
pub(crate) fn hmac_md5(key: &[u8], parts: &[&[u8]]) -> MacTag {
    let mut mac = <Hmac<Md5> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Computes HMAC-SHA-256-128 of the concatenation of the parts.
pub(crate) fn hmac_sha256_128(key: &[u8], parts: &[&[u8]]) -> MacTag {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    *mac.finalize().into_bytes().first_chunk().expect("16 of 32 bytes")
}

/// Encrypts or decrypts in place with AES-256-CTR. The last 4 bytes of `first` count cipher blocks.
pub(crate) fn ctr_apply(key: &[u8; 32], first: &[u8; CIPHER_BLOCK], data: &mut [u8]) {
    Ctr32BE::<Aes256>::new(key.into(), first.into()).apply_keystream(data);
}

/// Encrypts whole cipher blocks in place. Panics if the length is no multiple of 16.
pub(crate) fn cbc_encrypt(key: &[u8; 24], iv: &[u8; CIPHER_BLOCK], data: &mut [u8]) {
    let (blocks, rest) = Array::slice_as_chunks_mut(data);
    assert!(rest.is_empty(), "CBC works on whole cipher blocks");
    cbc::Encryptor::<Aes192>::new(key.into(), iv.into()).encrypt_blocks(blocks);
}

/// Decrypts whole cipher blocks in place. Panics if the length is no multiple of 16.
pub(crate) fn cbc_decrypt(key: &[u8; 24], iv: &[u8; CIPHER_BLOCK], data: &mut [u8]) {
    let (blocks, rest) = Array::slice_as_chunks_mut(data);
    assert!(rest.is_empty(), "CBC works on whole cipher blocks");
    cbc::Decryptor::<Aes192>::new(key.into(), iv.into()).decrypt_blocks(blocks);
}

/// Encrypts one cipher block.
pub(crate) fn ecb_encrypt(key: &[u8; 24], mut block: [u8; CIPHER_BLOCK]) -> [u8; CIPHER_BLOCK] {
    Aes192::new(key.into()).encrypt_block((&mut block).into());
    block
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    /// RFC 2202 section 2.
    #[test]
    fn hmac_md5_matches_rfc2202() {
        let counting: Vec<u8> = (1..=25).collect();
        let cases: [(Vec<u8>, Vec<u8>, &str); 7] = [
            (vec![0x0B; 16], b"Hi There".to_vec(), "9294727a3638bb1c13f48ef8158bfc9d"),
            (b"Jefe".to_vec(), b"what do ya want for nothing?".to_vec(), "750c783e6ab0b503eaa86e310a5db738"),
            (vec![0xAA; 16], vec![0xDD; 50], "56be34521d144c88dbb8c733f0e8b3f6"),
            (counting, vec![0xCD; 50], "697eaf0aca3a3aea3a75164746ffaa79"),
            (vec![0x0C; 16], b"Test With Truncation".to_vec(), "56461ef2342edc00f9bab995690efd4c"),
            (
                vec![0xAA; 80],
                b"Test Using Larger Than Block-Size Key - Hash Key First".to_vec(),
                "6b1ab7fe4bd7bf8f0b62e6ce61b9d0cd",
            ),
            (
                vec![0xAA; 80],
                b"Test Using Larger Than Block-Size Key and Larger Than One Block-Size Data".to_vec(),
                "6f630fad67cda0ee1fb1f562db3aa53e",
            ),
        ];
        for (key, data, mac) in cases {
            assert_eq!(hmac_md5(&key, &[&data]).to_vec(), unhex(mac));
            let (head, tail) = data.split_at(data.len() / 3);
            assert_eq!(hmac_md5(&key, &[head, tail]).to_vec(), unhex(mac));
        }
    }

    /// RFC 4231, test cases 1 and 2, truncated; NIST SP 800-38A, F.5.5.
    #[test]
    fn modern_algorithms_match_published_vectors() {
        let mac = hmac_sha256_128(&[0x0B; 20], &[b"Hi ", b"There"]);
        assert_eq!(mac.to_vec(), unhex("b0344c61d8db38535ca8afceaf0bf12b"));
        let mac = hmac_sha256_128(b"Jefe", &[b"what do ya want for nothing?"]);
        assert_eq!(mac.to_vec(), unhex("5bdcc146bf60754e6a042426089575c7"));
        let key = unhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4");
        let first = unhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff").try_into().unwrap();
        let mut data = unhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51");
        ctr_apply(&key.try_into().unwrap(), &first, &mut data);
        assert_eq!(data, unhex("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"));
    }

    /// NIST SP 800-38A, F.2.3, F.2.4, and F.1.3 for the single block.
    #[test]
    fn aes192_matches_nist_vectors() {
        let key: [u8; 24] = unhex("8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b").try_into().unwrap();
        let iv: [u8; 16] = unhex("000102030405060708090a0b0c0d0e0f").try_into().unwrap();
        let plain = unhex(concat!(
            "6bc1bee22e409f96e93d7e117393172a",
            "ae2d8a571e03ac9c9eb76fac45af8e51",
            "30c81c46a35ce411e5fbc1191a0a52ef",
            "f69f2445df4f9b17ad2b417be66c3710"
        ));
        let mut data = plain.clone();
        cbc_encrypt(&key, &iv, &mut data);
        assert_eq!(
            data,
            unhex(concat!(
                "4f021db243bc633d7178183a9fa071e8",
                "b4d9ada9ad7dedf4e5e738763f69145a",
                "571b242012fb7ae07fa9baac3df102e0",
                "08b0e27988598881d920a9e64f5615cd"
            ))
        );
        cbc_decrypt(&key, &iv, &mut data);
        assert_eq!(data, plain);
        let single = ecb_encrypt(&key, plain[..16].try_into().unwrap());
        assert_eq!(single.to_vec(), unhex("bd334f1d6e45f25ff712a214571fa5cc"));
    }
}
