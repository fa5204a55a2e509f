//! SHA-1 over the compression function, so that its calls can be counted.
//!
//! Source of truth: FIPS 180-4, 5.1.1 (padding), 5.3.1 (initial value), 6.1.2.

use crate::paper::cost::CompressionEngine;

/// The state of SHA-1.
pub(crate) type Sha1State = [u32; 5];
/// Bytes that one compression takes.
pub(crate) const BLOCK: usize = 64;
/// The initial state (FIPS 180-4, 5.3.1).
pub(crate) const INITIAL: Sha1State = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];

/// Returns a state as 20 bytes.
pub(crate) fn bytes_of(state: &Sha1State) -> [u8; 20] {
    let mut bytes = [0; 20];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

/// Returns the SHA-1 of concatenated pieces.
pub(crate) fn digest(engine: &mut impl CompressionEngine, pieces: &[&[u8]]) -> [u8; 20] {
    let mut state = INITIAL;
    let (mut buffer, mut filled) = ([0; BLOCK], 0);
    let mut total = 0_u64;
    for piece in pieces {
        total += piece.len() as u64;
        let mut rest = *piece;
        if filled > 0 {
            let (head, tail) = rest.split_at(rest.len().min(BLOCK - filled));
            buffer[filled..][..head.len()].copy_from_slice(head);
            filled += head.len();
            rest = tail;
            if filled == BLOCK {
                engine.compress(&mut state, &[buffer]);
                filled = 0;
            }
        }
        if filled == 0 {
            let (blocks, tail) = rest.as_chunks::<BLOCK>();
            engine.compress(&mut state, blocks);
            buffer[..tail.len()].copy_from_slice(tail);
            filled = tail.len();
        }
    }
    buffer[filled] = 0x80;
    buffer[filled + 1..].fill(0);
    if filled >= BLOCK - 8 {
        engine.compress(&mut state, &[buffer]);
        buffer.fill(0);
    }
    buffer[BLOCK - 8..].copy_from_slice(&(total * 8).to_be_bytes());
    engine.compress(&mut state, &[buffer]);
    bytes_of(&state)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use ::sha1::{Digest, Sha1};
    use proptest::prelude::*;

    use super::*;
    use crate::paper::cost::{CountingEngine, PlainEngine, compressions};

    #[test]
    fn the_published_vectors_match() {
        let hex = |bytes: [u8; 20]| -> std::string::String {
            bytes.iter().map(|byte| std::format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(digest(&mut PlainEngine, &[b"a", b"bc"])), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let long = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(digest(&mut PlainEngine, &[long])), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    }

    proptest! {
        /// However the bytes are split, the result is the SHA-1 of the library, at the cost of the
        /// model plus the padding.
        #[test]
        fn any_cut_gives_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in any::<proptest::sample::Index>(),
        ) {
            let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
            let mut count = CountingEngine::default();
            let expected: Vec<u8> = Sha1::digest(&bytes).to_vec();
            prop_assert_eq!(&digest(&mut count, &[first, &[], second])[..], &expected[..]);
            prop_assert!((0..=1).contains(&(count.compressions - compressions(bytes.len() as u64))));
        }
    }
}
