//! Checksums of whole files, computed while the bytes pass in order.

use sealstone_mds_protocol::{Checksum, ChecksumKind};
use sha2::{Digest, Sha256};

/// A checksum in progress.
#[derive(Clone)]
pub(crate) enum RunningChecksum {
    /// The CRC32C so far.
    Crc32c(u32),
    /// The SHA-256 so far.
    Sha256(Box<Sha256>),
    /// The BLAKE3 so far.
    Blake3(Box<blake3::Hasher>),
}

impl RunningChecksum {
    /// Starts a checksum.
    pub(crate) fn begin(kind: ChecksumKind) -> Option<Self> {
        match kind {
            ChecksumKind::Crc32c => Some(Self::Crc32c(0)),
            ChecksumKind::Sha256 => Some(Self::Sha256(Box::default())),
            ChecksumKind::Blake3 => Some(Self::Blake3(Box::default())),
        }
    }

    /// Adds the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32c(sum) => *sum = crc32c::crc32c_append(*sum, bytes),
            Self::Sha256(hash) => hash.update(bytes),
            Self::Blake3(hash) => _ = hash.update(bytes),
        }
    }

    /// Adds zeros for a hole. For a CRC the time grows with the logarithm of the length.
    pub(crate) fn zeros(&mut self, length: u64) {
        match self {
            Self::Crc32c(sum) => *sum = crc_after_zeros(*sum, length),
            Self::Sha256(hash) => each_zeros(length, |zeros| hash.update(zeros)),
            Self::Blake3(hash) => each_zeros(length, |zeros| _ = hash.update(zeros)),
        }
    }

    /// Returns the value over all bytes.
    pub(crate) fn finish(self) -> Checksum {
        let mut value = [0; 32];
        let kind = match self {
            Self::Crc32c(sum) => {
                value[..4].copy_from_slice(&sum.to_be_bytes());
                ChecksumKind::Crc32c
            }
            Self::Sha256(hash) => {
                value = (*hash).finalize().into();
                ChecksumKind::Sha256
            }
            Self::Blake3(hash) => {
                value = *hash.finalize().as_bytes();
                ChecksumKind::Blake3
            }
        };
        Checksum { kind, value }
    }
}

/// Calls `update` with pieces of zeros of this length together.
fn each_zeros(length: u64, mut update: impl FnMut(&[u8])) {
    let zeros = [0; 64 << 10];
    let mut left = length;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
        update(&zeros[..count]);
        left -= count as u64;
    }
}

/// Returns the CRC32C of some bytes followed by `length` zeros, by doubling a run of zeros.
fn crc_after_zeros(mut sum: u32, mut length: u64) -> u32 {
    let (mut run, mut run_length) = (crc32c::crc32c(&[0]), 1usize);
    while length > 0 {
        if length & 1 == 1 {
            sum = crc32c::crc32c_combine(sum, run, run_length);
        }
        length >>= 1;
        if length > 0 {
            run = crc32c::crc32c_combine(run, run, run_length);
            run_length = run_length.saturating_mul(2);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_do_not_change_the_value() {
        for &kind in ChecksumKind::ALL {
            let mut whole = RunningChecksum::begin(kind).unwrap();
            whole.update(b"123456789");
            let mut sliced = RunningChecksum::begin(kind).unwrap();
            [&b"1234"[..], b"", b"56789"].iter().for_each(|part| sliced.update(part));
            assert_eq!(whole.finish(), sliced.finish());
        }
        for &kind in ChecksumKind::ALL {
            for length in [0usize, 1, 2, 3, 4096, 100_001] {
                let mut written = RunningChecksum::begin(kind).unwrap();
                let mut skipped = written.clone();
                [&b"12"[..], &vec![0; length], b"34"].iter().for_each(|part| written.update(part));
                skipped.update(b"12");
                skipped.zeros(length as u64);
                skipped.update(b"34");
                assert_eq!(written.finish(), skipped.finish(), "{length}");
            }
        }
        let mut crc = RunningChecksum::begin(ChecksumKind::Crc32c).unwrap();
        crc.update(b"123456789");
        assert_eq!(crc.finish().value[..4], [0xE3, 0x06, 0x92, 0x83]);
    }
}
