//! Checksums of whole files, computed while their bytes pass in order.

use sealstone_mds_protocol::{Checksum, ChecksumKind};
use sha2::{Digest, Sha256};

/// A checksum under way.
#[derive(Clone)]
pub(crate) enum Running {
    /// CRC32C so far.
    Crc32c(u32),
    /// SHA-256 so far.
    Sha256(Box<Sha256>),
}

impl Running {
    /// Begins one; `None` for a kind this client cannot compute.
    pub(crate) fn begin(kind: ChecksumKind) -> Option<Self> {
        match kind {
            ChecksumKind::Crc32c => Some(Self::Crc32c(0)),
            ChecksumKind::Sha256 => Some(Self::Sha256(Box::default())),
            ChecksumKind::Blake3 => None,
        }
    }

    /// The next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32c(sum) => *sum = crc32c::crc32c_append(*sum, bytes),
            Self::Sha256(hash) => hash.update(bytes),
        }
    }

    /// The value over all bytes.
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
        };
        Checksum { kind, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_do_not_change_the_value() {
        for kind in [ChecksumKind::Crc32c, ChecksumKind::Sha256] {
            let mut whole = Running::begin(kind).unwrap();
            whole.update(b"123456789");
            let mut sliced = Running::begin(kind).unwrap();
            [&b"1234"[..], b"", b"56789"].iter().for_each(|part| sliced.update(part));
            assert_eq!(whole.finish(), sliced.finish());
        }
        let mut crc = Running::begin(ChecksumKind::Crc32c).unwrap();
        crc.update(b"123456789");
        assert_eq!(crc.finish().value[..4], [0xE3, 0x06, 0x92, 0x83]);
    }
}
