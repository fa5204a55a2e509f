//! Single-use enrolment codes, which an administrator passes to a new user.
//!
//! Does: creates them, digests them, compares digests.
//! Does not: count attempts or uses, or let them expire; the server does.
//! Contract: a code has 130 random bits, so its digest needs no stretching: trying all codes is
//! infeasible.

use sealstone_mds_protocol::UserName;
use sha2_opaque::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::{CryptoRng, RngCore};

/// Letters and digits of a code.
pub const CODE_CHARACTERS: usize = 26;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const LABEL: &[u8] = b"sealstone enrolment code v1";

/// Creates a code, in lower-case letters and digits.
#[must_use]
pub fn new_code<R: RngCore + CryptoRng>(rng: &mut R) -> Zeroizing<[u8; CODE_CHARACTERS]> {
    let mut bytes = Zeroizing::new([0; CODE_CHARACTERS]);
    rng.fill_bytes(&mut *bytes);
    for byte in bytes.iter_mut() {
        *byte = ALPHABET[usize::from(*byte % 32)];
    }
    bytes
}

/// Returns what the server stores of a code: it is valid for this account only.
#[must_use]
pub fn code_digest(user: &UserName, code: &[u8]) -> [u8; 32] {
    let user = user.as_str().as_bytes();
    let mut hash = Sha256::new();
    hash.update(LABEL);
    hash.update((user.len() as u16).to_be_bytes());
    hash.update(user);
    hash.update(code);
    hash.finalize().into()
}

/// Whether the code matches the digest. Takes the same time for an account that has none.
#[must_use]
pub fn code_matches(kept: Option<&[u8; 32]>, user: &UserName, code: &[u8]) -> bool {
    let same = code_digest(user, code).ct_eq(kept.unwrap_or(&[0; 32]));
    bool::from(same) && kept.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn user(name: &str) -> UserName {
        UserName::new(name).unwrap()
    }

    #[test]
    fn a_code_is_good_for_its_account_only() {
        let code = new_code(&mut StdRng::seed_from_u64(1));
        assert!(code.iter().all(|byte| ALPHABET.contains(byte)));
        let kept = code_digest(&user("alice"), &*code);
        assert!(code_matches(Some(&kept), &user("alice"), &*code));
        assert!(!code_matches(Some(&kept), &user("bob"), &*code));
        assert!(!code_matches(Some(&kept), &user("alice"), &code[1..]));
        assert!(!code_matches(None, &user("alice"), &*code));
        assert_ne!(*code, *new_code(&mut StdRng::seed_from_u64(2)));
    }

    #[test]
    fn digest_depends_on_boundary_of_name_and_code() {
        assert_ne!(code_digest(&user("ab"), b"c"), code_digest(&user("a"), b"bc"));
    }
}
