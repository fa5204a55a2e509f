//! BLAKE3: the chaining value of a unit's subtree, and the digest of a part of a unit.
//!
//! Source of truth: BLAKE3 paper 2.1 (tree), 2.4 (modes); docs/design/security.md 5.3 and 5.4.

use blake3::Hasher;
use blake3::hazmat::HasherExt as _;

use crate::DigestValue;

/// Separates the digests of partial units from all else (5.4).
const EDGE: &str = "osd range edge v1";

/// Returns the chaining value of the bytes as a subtree that starts at `offset` of the object,
/// never as a root.
pub(crate) fn value(offset: u64, bytes: &[u8]) -> DigestValue {
    Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root().into()
}

/// Returns the digest of a part of a unit. The offset comes last: in front it would shift every
/// chunk in the caller's bytes and prevent vectorised hashing.
pub(crate) fn edge(offset: u64, bytes: &[u8]) -> DigestValue {
    let mut hasher = Hasher::new_derive_key(EDGE);
    (*hasher.update(bytes).update(&offset.to_be_bytes()).finalize().as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use blake3::hazmat::{
        ChainingValue, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
    };
    use proptest::prelude::*;

    use crate::Profile;

    fn tree(values: &[ChainingValue]) -> ChainingValue {
        match values {
            [value] => *value,
            _ => {
                let left = left_subtree_len(values.len() as u64 * 1024) as usize / 1024;
                merge_subtrees_non_root(&tree(&values[..left]), &tree(&values[left..]), Mode::Hash)
            }
        }
    }

    proptest! {
        /// The values are nodes of the object's own BLAKE3 tree: the stored ones alone yield its
        /// root.
        #[test]
        fn units_values_give_the_objects_hash(length in (16_u64 << 10) + 1..200_000, seed in any::<u8>()) {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + at / 509) as u8 ^ seed).collect();
            let values: Vec<ChainingValue> = bytes
                .chunks(16 << 10)
                .zip(0..)
                .map(|(unit, number)| Profile::Blake3.value(number, unit).as_bytes().try_into().unwrap())
                .collect();
            let left = left_subtree_len(values.len() as u64 * 1024) as usize / 1024;
            let root = merge_subtrees_root(&tree(&values[..left]), &tree(&values[left..]), Mode::Hash);
            prop_assert_eq!(root, blake3::hash(&bytes));
        }
    }
}
