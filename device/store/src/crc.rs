//! CRC32C (Castagnoli), the checksum of blocks and records.
//!
//! Does: names the algorithm in one place.
//! Source of truth: RFC 3720 appendix B.4 (the test vectors below).

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Returns the checksum of some bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    // Only the low 32 bits are used.
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the checksum of the concatenation of two byte slices.
pub(crate) fn crc32c_of(first: &[u8], second: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(first);
    digest.update(second);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vectors_match() {
        let ascending: Vec<u8> = (0..32).collect();
        let vectors: [(&[u8], u32); 4] = [
            (&[0; 32], 0x8A91_36AA),
            (&[0xFF; 32], 0x62A8_AB43),
            (&ascending, 0x46DD_794E),
            (b"123456789", 0xE306_9283),
        ];
        for (bytes, sum) in vectors {
            assert_eq!(crc32c(bytes), sum);
            assert_eq!(crc32c_of(&bytes[..5], &bytes[5..]), sum);
        }
    }
}
