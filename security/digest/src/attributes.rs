//! The digest of an attribute page.
//!
//! Does: hashes a page's attributes in the order of their numbers, each with its length, so that
//! different pages have different input.
//! Source of truth: docs/design/security.md 5.1 ("attribute digest") and 5.4; the hashed record is
//! our choice.

use alloc::vec::Vec;

use blake3::Hasher;

use crate::paper::cost::PlainEngine;
use crate::paper::sha1;
use crate::{DigestValue, Profile};

/// Separates digests of pages from all other BLAKE3 uses.
const CONTEXT: &str = "sealstone attribute page v1";
/// Begins the record under SHA-1, which also hashes lists and units. No list begins with it, and no
/// list of a page is as long as the record of one: a list has 4 + 10 n or 8 + 16 n bytes beside n
/// values and padding, a record 13 + 8 n.
const DOMAIN: &[u8] = b"OSDPAGE01";

/// The digest of a page in progress: domain under SHA-1, page number (4 bytes), then for each
/// attribute its number (4), length (4) and value.
pub struct AttributePage(PageState);

enum PageState {
    Blake3(Hasher),
    /// The paper's hash, over the record as a whole.
    Sha1(Vec<u8>),
}

impl AttributePage {
    /// Starts a page.
    #[must_use]
    pub fn new(profile: Profile, page: u32) -> Self {
        let mut state = Self(match profile {
            Profile::Blake3 | Profile::LtHash => PageState::Blake3(Hasher::new_derive_key(CONTEXT)),
            Profile::Sha1 | Profile::AdHash128 | Profile::AdHash256 => PageState::Sha1(DOMAIN.to_vec()),
        });
        state.update(&page.to_be_bytes());
        state
    }

    fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            PageState::Blake3(hasher) => {
                hasher.update(bytes);
            }
            PageState::Sha1(record) => record.extend_from_slice(bytes),
        }
    }

    /// Adds the next attribute, by ascending numbers.
    pub fn push(&mut self, number: u32, value: &[u8]) {
        self.update(&number.to_be_bytes());
        self.update(&(value.len() as u32).to_be_bytes());
        self.update(value);
    }

    /// Returns the digest.
    #[must_use]
    pub fn finish(self) -> DigestValue {
        match self.0 {
            PageState::Blake3(hasher) => (*hasher.finalize().as_bytes()).into(),
            PageState::Sha1(record) => sha1::digest(&mut PlainEngine, &[&record]).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(profile: Profile, page: u32, attributes: &[(u32, &[u8])]) -> DigestValue {
        let mut digest = AttributePage::new(profile, page);
        attributes.iter().for_each(|(number, value)| digest.push(*number, value));
        digest.finish()
    }

    /// The record without its domain would be such a list.
    #[test]
    fn empty_page_differs_from_list_of_its_number() {
        for profile in Profile::ALL {
            assert!(page(profile, 0x1_0005, &[]) != profile.list(&0x1_0005_u32.to_be_bytes()));
        }
    }

    #[test]
    fn pages_that_differ_in_anything_have_other_digests() {
        for profile in Profile::ALL {
            let pages: [(u32, &[(u32, &[u8])]); 7] = [
                (1, &[]),
                (2, &[]),
                (1, &[(1, b"ab")]),
                (1, &[(2, b"ab")]),
                (1, &[(1, b"a"), (2, b"b")]),
                (1, &[(1, b""), (2, b"ab")]),
                (1, &[(1, b"ab"), (2, b"")]),
            ];
            for (index, (number, attributes)) in pages.iter().enumerate() {
                let value = page(profile, *number, attributes);
                assert!(pages[..index].iter().all(|(other, list)| page(profile, *other, list) != value));
            }
        }
    }
}
