//! `sha256` and `blake3`: digests of files without moving their data.
//!
//! SHA-256 processes a file in order, so it needs the file in one object. BLAKE3 is a tree: the
//! function returns the value of each stripe unit, and the client computes the root from them.

use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use sealstone_function_host::{
    CHUNK_BYTES, FunctionCall, FunctionErrno, FunctionFailure, StripeGeometry, encode_hex,
};
use sha2::{Digest as _, Sha256};

use crate::count::for_each_part;
use crate::result::{DigestLine, ResultLine, SubtreeLine, emit};

/// Size of a BLAKE3 chunk, bytes; a stripe unit must be a power of two of at least this.
const BLAKE3_CHUNK_BYTES: u64 = 1024;

/// Runs `sha256` on each object.
pub fn run_sha256(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    call.arguments()?.allow_only(&["stripe."])?;
    let mut buffer = vec![0; CHUNK_BYTES];
    for object in 0..call.object_count() {
        let geometry = call.geometry(object)?;
        if geometry.unit_count() > 1 {
            let message = format!("sha256 of object {object}: the file is striped; read it at the client");
            return Err(FunctionFailure::new(FunctionErrno::UNSUPPORTED, message));
        }
        for unit in geometry.units() {
            let mut hasher = Sha256::new();
            for_each_part(call, object, (unit.object_offset, unit.length), &mut buffer, |data| {
                hasher.update(data);
            })?;
            emit(call, &digest_line(object, "sha256", &hasher.finalize()))?;
        }
        call.progress(u64::from(object) + 1, u64::from(call.object_count()));
    }
    Ok(())
}

/// Runs `blake3` on each object.
pub fn run_blake3(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    call.arguments()?.allow_only(&["stripe."])?;
    let mut buffer = vec![0; CHUNK_BYTES];
    for object in 0..call.object_count() {
        let geometry = call.geometry(object)?;
        let is_tree = geometry.unit_count() > 1;
        if is_tree && !has_subtrees(&geometry) {
            let message = format!("blake3 of object {object}: the stripe unit is not a power of two");
            return Err(FunctionFailure::new(FunctionErrno::UNSUPPORTED, message));
        }
        for unit in geometry.units() {
            let mut hasher = blake3::Hasher::new();
            if is_tree {
                hasher.set_input_offset(unit.file_offset);
            }
            for_each_part(call, object, (unit.object_offset, unit.length), &mut buffer, |data| {
                hasher.update(data);
            })?;
            let line = if is_tree {
                let value = encode_hex(&hasher.finalize_non_root());
                ResultLine::Subtree(SubtreeLine { object, unit: unit.number, value })
            } else {
                digest_line(object, "blake3", hasher.finalize().as_bytes())
            };
            emit(call, &line)?;
        }
        call.progress(u64::from(object) + 1, u64::from(call.object_count()));
    }
    Ok(())
}

fn digest_line(object: u32, algorithm: &str, digest: &[u8]) -> ResultLine {
    ResultLine::Digest(DigestLine { object, algorithm: algorithm.to_owned(), digest: encode_hex(digest) })
}

/// Whether the units of a striped file are subtrees of its BLAKE3 tree.
fn has_subtrees(geometry: &StripeGeometry) -> bool {
    geometry.unit_bytes().is_power_of_two() && geometry.unit_bytes() >= BLAKE3_CHUNK_BYTES
}

/// Computes the digest of a file from the values of its units, in their order.
pub(crate) fn merge_subtrees(file: u32, values: &[ChainingValue]) -> Option<ResultLine> {
    if values.len() < 2 {
        return None;
    }
    let (left, right) = values.split_at(left_count(values.len()));
    let root = merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash);
    Some(digest_line(file, "blake3", root.as_bytes()))
}

/// The recursion is as deep as the logarithm of the number of units.
fn subtree(values: &[ChainingValue]) -> ChainingValue {
    match values {
        [value] => *value,
        _ => {
            let (left, right) = values.split_at(left_count(values.len()));
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// Returns the number of units of the left subtree, as if each unit were one chunk.
fn left_count(units: usize) -> usize {
    (left_subtree_len(units as u64 * BLAKE3_CHUNK_BYTES) / BLAKE3_CHUNK_BYTES) as usize
}

#[cfg(test)]
mod tests {
    use sealstone_function_host::MemoryHost;

    use super::*;

    #[test]
    fn sha256_of_abc_equals_fips_vector() {
        let mut host = MemoryHost::new(vec![b"abc".to_vec()]);
        FunctionCall::new(&mut host, "", b"", 1).run(run_sha256).unwrap();
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(String::from_utf8(host.result).unwrap().contains(digest));
    }

    #[test]
    fn sha256_of_striped_file_is_refused() {
        let mut host = MemoryHost::new(vec![vec![0; 8192]]);
        let failure =
            FunctionCall::new(&mut host, "", b"stripe.0=4096,2,0,16384\0", 1).run(run_sha256).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::UNSUPPORTED);
    }

    #[test]
    fn blake3_of_odd_unit_is_refused() {
        for unit in [512, 5000] {
            let mut host = MemoryHost::new(vec![vec![0; 8192]]);
            let arguments = format!("stripe.0={unit},2,0,16384\0");
            let failure =
                FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(run_blake3).unwrap_err();
            assert_eq!(failure.errno, FunctionErrno::UNSUPPORTED);
        }
    }
}
