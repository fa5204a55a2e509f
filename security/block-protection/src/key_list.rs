//! The list of block keys that a PDU carries as an additional header segment (AHS).
//!
//! ```text
//! 0 AHSLength 2 | 2 AHSType 1 = 3Fh | 3 scheme 1: bit 0 BEK, bit 1 BAK, bit 2 generation
//! 4 log2 of the block 1 | 5 algorithms 1 | 6 blocks n 2 | 8 first LBA 8
//! 16 n times { BEK 24 } { BAK 16 } or { generation 8 } | zeros to 4
//! ```
//!
//! Source of truth: RFC 7143 section 11.2.2 for AHSLength; `docs/standards/block-protection.md`.

use alloc::vec::Vec;

use zeroize::Zeroizing;

use crate::block_keys::{BAK_LEN, BEK_LEN, BlockKeys};
use crate::cipher::MAC_LEN;
use crate::generation::{GENERATION_LEN, Generation};
use crate::level::{ProtectedBlock, ProtectionProfile};

/// AHSType of a key list.
pub const KEY_LIST_TYPE: u8 = 0x3F;
/// Bytes of a key list before its entries.
pub const KEY_LIST_FIXED: usize = 16;
/// Bytes of all AHS of a PDU: TotalAHSLength counts 4-byte words in one byte.
pub const AHS_TOTAL_MAX: usize = 255 * 4;
/// Bytes that AHSLength does not count: itself and AHSType.
pub(crate) const AHS_UNCOUNTED: usize = 3;

/// Which keys each block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScheme {
    /// A key for encryption.
    Encryption,
    /// A key for authentication.
    Authentication,
    /// Both keys.
    Both,
    /// No key, but the generation of the write from which the block's key is derived.
    Generation,
}

impl KeyScheme {
    const fn code(self) -> u8 {
        match self {
            Self::Encryption => 1,
            Self::Authentication => 2,
            Self::Both => 3,
            Self::Generation => 4,
        }
    }

    /// Whether blocks have a random encryption key.
    #[must_use]
    pub const fn has_encryption(self) -> bool {
        self.code() & 1 != 0
    }

    /// Whether blocks have a random authentication key.
    #[must_use]
    pub(crate) const fn has_random_authentication(self) -> bool {
        self.code() & 2 != 0
    }

    /// Whether blocks have generations instead of keys.
    #[must_use]
    pub const fn has_generations(self) -> bool {
        self.code() & 4 != 0
    }

    /// Whether blocks have MACs.
    #[must_use]
    pub const fn has_authentication(self) -> bool {
        self.has_random_authentication() || self.has_generations()
    }

    /// Returns the bytes of keys and MAC of one block, as a target stores them.
    #[must_use]
    pub const fn seal_len(self) -> usize {
        MAC_LEN + if self.has_generations() { GENERATION_LEN } else { BEK_LEN + BAK_LEN }
    }

    /// Returns the bytes of one block's entry.
    #[must_use]
    pub const fn entry_len(self) -> usize {
        match self {
            Self::Encryption => BEK_LEN,
            Self::Authentication => BAK_LEN,
            Self::Both => BEK_LEN + BAK_LEN,
            Self::Generation => GENERATION_LEN,
        }
    }

    /// Returns how many blocks fit into a PDU whose other AHS take `other_ahs` bytes.
    #[must_use]
    pub const fn blocks_max(self, other_ahs: usize) -> usize {
        AHS_TOTAL_MAX.saturating_sub(KEY_LIST_FIXED + other_ahs) / self.entry_len()
    }
}

/// Why a key list was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyListError {
    /// Shorter than its fixed part, or than its own length.
    #[error("key list of {0} bytes is truncated")]
    Truncated(usize),
    /// AHSLength contradicts the number of blocks, or the list exceeds [`AHS_TOTAL_MAX`].
    #[error("key list has AHSLength {found}, its {blocks} blocks need {expected}")]
    Length {
        /// AHSLength found.
        found: usize,
        /// AHSLength for that number of blocks.
        expected: usize,
        /// Number of blocks.
        blocks: usize,
    },
    /// Another AHSType.
    #[error("AHSType {0:#04x} is not a key list")]
    Type(u8),
    /// Not the scheme of the session's level.
    #[error("key scheme {0} is not that of the session")]
    Scheme(u8),
    /// Not the block length of the session.
    #[error("block length 2^{0} is not that of the session")]
    BlockLength(u8),
    /// Not the algorithms of the session's profile.
    #[error("algorithm code {0} is not that of the session")]
    Algorithm(u8),
    /// No block, or more than fit into a PDU.
    #[error("key list of {0} blocks")]
    BlockCount(usize),
    /// The last block's address exceeds 64 bits.
    #[error("block addresses from {0} on overflow")]
    Address(u64),
    /// The bytes after the last entry are not zero.
    #[error("padding of the key list is not zero")]
    Padding,
    /// The PDU's data segment does not have the length of the listed blocks.
    #[error("{blocks} block keys for a data segment of {data} bytes")]
    DataLength {
        /// Number of listed blocks.
        blocks: usize,
        /// Bytes of the data segment.
        data: usize,
    },
    /// Two key lists in one PDU.
    #[error("more than one key list")]
    Repeated,
}

/// The parts of a key list that the session's settings determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyListForm {
    /// Which keys each block has.
    pub scheme: KeyScheme,
    /// Length of a block.
    pub block: ProtectedBlock,
    /// Determines the algorithms.
    pub profile: ProtectionProfile,
}

/// The keys of consecutive blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockKeyList {
    /// Address of the first block.
    pub first_lba: u64,
    /// The keys, one entry for each block.
    pub keys: Vec<BlockKeys>,
}

impl BlockKeyList {
    /// Encodes the list with its padding.
    ///
    /// # Errors
    /// `BlockCount` if there is no block or too many, `Address` if their addresses overflow.
    pub fn encode(&self, form: KeyListForm) -> Result<Zeroizing<Vec<u8>>, KeyListError> {
        let blocks = self.keys.len();
        check_extent(form.scheme, self.first_lba, blocks)?;
        let used = KEY_LIST_FIXED + blocks * form.scheme.entry_len();
        let counted = u16::try_from(used - AHS_UNCOUNTED).map_err(|_| KeyListError::BlockCount(blocks))?;
        let count = u16::try_from(blocks).map_err(|_| KeyListError::BlockCount(blocks))?;
        let mut out = Zeroizing::new(Vec::with_capacity(used.next_multiple_of(4)));
        out.extend_from_slice(&counted.to_be_bytes());
        out.extend_from_slice(&[
            KEY_LIST_TYPE,
            form.scheme.code(),
            form.block.shift(),
            form.profile.algorithm_code(),
        ]);
        out.extend_from_slice(&count.to_be_bytes());
        out.extend_from_slice(&self.first_lba.to_be_bytes());
        for keys in &self.keys {
            if form.scheme.has_encryption() {
                out.extend_from_slice(&keys.encryption);
            }
            if form.scheme.has_random_authentication() {
                out.extend_from_slice(&keys.authentication);
            }
            if form.scheme.has_generations() {
                out.extend_from_slice(&keys.generation.to_bytes());
            }
        }
        out.resize(used.next_multiple_of(4), 0);
        Ok(out)
    }

    /// Parses one AHS with its padding; longer input is refused.
    ///
    /// # Errors
    /// See [`KeyListError`].
    pub fn parse(ahs: &[u8], form: KeyListForm) -> Result<Self, KeyListError> {
        let truncated = KeyListError::Truncated(ahs.len());
        let (fixed, entries) = ahs.split_first_chunk::<KEY_LIST_FIXED>().ok_or(truncated)?;
        let [_, _, ahs_type, scheme, shift, algorithm, ..] = *fixed;
        let found = usize::from(u16::from_be_bytes([fixed[0], fixed[1]]));
        if ahs_type != KEY_LIST_TYPE {
            return Err(KeyListError::Type(ahs_type));
        }
        if scheme != form.scheme.code() {
            return Err(KeyListError::Scheme(scheme));
        }
        if shift != form.block.shift() {
            return Err(KeyListError::BlockLength(shift));
        }
        if algorithm != form.profile.algorithm_code() {
            return Err(KeyListError::Algorithm(algorithm));
        }
        let blocks = usize::from(u16::from_be_bytes([fixed[6], fixed[7]]));
        let first_lba = u64::from_be_bytes(fixed[8..].try_into().expect("8 of 16 bytes"));
        check_extent(form.scheme, first_lba, blocks)?;
        let used = KEY_LIST_FIXED + blocks * form.scheme.entry_len();
        let expected = used - AHS_UNCOUNTED;
        if found != expected || ahs.len() > used.next_multiple_of(4) {
            return Err(KeyListError::Length { found, expected, blocks });
        }
        if ahs.len() < used.next_multiple_of(4) {
            return Err(truncated);
        }
        let (entries, padding) = entries.split_at(used - KEY_LIST_FIXED);
        if padding.iter().any(|byte| *byte != 0) {
            return Err(KeyListError::Padding);
        }
        let keys = entries.chunks_exact(form.scheme.entry_len()).map(|entry| {
            if form.scheme.has_generations() {
                let generation = entry.try_into().expect("8 bytes");
                return BlockKeys::of_generation(Generation::from_bytes(generation));
            }
            let mut keys = BlockKeys::UNWRITTEN;
            let split = if form.scheme.has_encryption() { BEK_LEN } else { 0 };
            let (encryption, authentication) = entry.split_at(split);
            keys.encryption[..encryption.len()].copy_from_slice(encryption);
            keys.authentication[..authentication.len()].copy_from_slice(authentication);
            keys
        });
        Ok(Self { first_lba, keys: keys.collect() })
    }

    /// Finds and parses the key list among all AHS of a PDU; `None` if there is none. AHS of other
    /// types are skipped.
    ///
    /// # Errors
    /// See [`KeyListError`].
    pub fn find(mut all: &[u8], form: KeyListForm) -> Result<Option<Self>, KeyListError> {
        let mut found = None;
        while !all.is_empty() {
            let [high, low, ahs_type, ..] = *all else { return Err(KeyListError::Truncated(all.len())) };
            let length = usize::from(u16::from_be_bytes([high, low])) + AHS_UNCOUNTED;
            let Some((ahs, rest)) = all.split_at_checked(length.next_multiple_of(4)) else {
                return Err(KeyListError::Truncated(all.len()));
            };
            if ahs_type == KEY_LIST_TYPE && found.replace(Self::parse(ahs, form)?).is_some() {
                return Err(KeyListError::Repeated);
            }
            all = rest;
        }
        Ok(found)
    }

    /// Checks that a data segment has the length of the listed blocks.
    ///
    /// # Errors
    /// `DataLength` if not.
    pub fn check_data(&self, form: KeyListForm, data: usize) -> Result<(), KeyListError> {
        let blocks = self.keys.len();
        if blocks * form.block.bytes() == data {
            Ok(())
        } else {
            Err(KeyListError::DataLength { blocks, data })
        }
    }
}

fn check_extent(scheme: KeyScheme, first_lba: u64, blocks: usize) -> Result<(), KeyListError> {
    if blocks == 0 || blocks > scheme.blocks_max(0) {
        return Err(KeyListError::BlockCount(blocks));
    }
    first_lba.checked_add(blocks as u64).map(|_| ()).ok_or(KeyListError::Address(first_lba))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;

    const SCHEMES: [KeyScheme; 4] =
        [KeyScheme::Encryption, KeyScheme::Authentication, KeyScheme::Both, KeyScheme::Generation];

    fn form(scheme: KeyScheme) -> KeyListForm {
        KeyListForm { scheme, block: ProtectedBlock::B512, profile: ProtectionProfile::Paper }
    }

    fn list(scheme: KeyScheme, blocks: usize) -> BlockKeyList {
        let mut next = 1;
        let mut random = |into: &mut [u8]| {
            into.fill(next);
            next = next.wrapping_add(1);
        };
        let of_generation = |at: usize| BlockKeys::of_generation(Generation::from_bytes([at as u8; 8]));
        let keys = (0..blocks)
            .map(|at| match scheme.has_generations() {
                true => of_generation(at),
                false => BlockKeys::generate(scheme, &mut random),
            })
            .collect();
        BlockKeyList { first_lba: 7, keys }
    }

    #[test]
    fn limits_of_blocks_follow_ahs_length() {
        let limits = SCHEMES.map(|scheme| (scheme.blocks_max(0), scheme.blocks_max(224)));
        assert_eq!(limits, [(41, 32), (62, 48), (25, 19), (125, 97)]);
        for scheme in SCHEMES {
            let most = scheme.blocks_max(0);
            let full = list(scheme, most);
            let bytes = full.encode(form(scheme)).unwrap();
            assert!(bytes.len() <= AHS_TOTAL_MAX);
            assert_eq!(BlockKeyList::parse(&bytes, form(scheme)).unwrap(), full);
            let excess = list(scheme, most + 1).encode(form(scheme));
            assert_eq!(excess.unwrap_err(), KeyListError::BlockCount(most + 1));
            assert_eq!(list(scheme, 0).encode(form(scheme)).unwrap_err(), KeyListError::BlockCount(0));
        }
        assert_eq!(KeyScheme::Both.blocks_max(AHS_TOTAL_MAX), 0);
    }

    #[test]
    fn each_broken_field_has_its_error() {
        let form = form(KeyScheme::Both);
        let good = list(KeyScheme::Both, 2).encode(form).unwrap().to_vec();
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            BlockKeyList::parse(&bytes, form).unwrap_err()
        };
        assert_eq!(changed(2, 1), KeyListError::Type(1));
        assert_eq!(changed(3, 1), KeyListError::Scheme(1));
        assert_eq!(changed(4, 12), KeyListError::BlockLength(12));
        assert_eq!(changed(5, 2), KeyListError::Algorithm(2));
        assert_eq!(changed(7, 3), KeyListError::Length { found: 93, expected: 133, blocks: 3 });
        assert_eq!(changed(7, 0), KeyListError::BlockCount(0));
        assert_eq!(changed(6, 1), KeyListError::BlockCount(258));
        assert_eq!(changed(1, 94), KeyListError::Length { found: 94, expected: 93, blocks: 2 });
        for cut in 0..good.len() {
            let error = BlockKeyList::parse(&good[..cut], form).unwrap_err();
            assert_eq!(error, KeyListError::Truncated(cut));
        }
        let longer = [&good[..], &[0; 4]].concat();
        let error = BlockKeyList::parse(&longer, form).unwrap_err();
        assert!(matches!(error, KeyListError::Length { .. }));
        let mut last = list(KeyScheme::Both, 2);
        last.first_lba = u64::MAX - 1;
        assert_eq!(last.encode(form).unwrap_err(), KeyListError::Address(u64::MAX - 1));
        let mut high = good.clone();
        high[8..16].fill(0xFF);
        assert_eq!(BlockKeyList::parse(&high, form).unwrap_err(), KeyListError::Address(u64::MAX));
    }

    #[test]
    fn key_list_is_found_among_others() {
        let form = form(KeyScheme::Encryption);
        let own = list(KeyScheme::Encryption, 3);
        let bytes = own.encode(form).unwrap();
        let other = [0_u8, 5, 1, 0, 9, 9, 9, 9];
        assert_eq!(BlockKeyList::find(&[], form), Ok(None));
        assert_eq!(BlockKeyList::find(&other, form), Ok(None));
        assert_eq!(BlockKeyList::find(&[&other[..], &bytes].concat(), form), Ok(Some(own.clone())));
        let twice = [&bytes[..], &bytes].concat();
        assert_eq!(BlockKeyList::find(&twice, form), Err(KeyListError::Repeated));
        assert_eq!(BlockKeyList::find(&bytes[..40], form), Err(KeyListError::Truncated(40)));
    }

    #[test]
    fn data_length_must_match_block_count() {
        let form = form(KeyScheme::Both);
        let list = list(KeyScheme::Both, 3);
        assert_eq!(list.check_data(form, 1536), Ok(()));
        for data in [0, 1024, 1535, 1537, 2048] {
            assert_eq!(list.check_data(form, data), Err(KeyListError::DataLength { blocks: 3, data }));
        }
    }

    proptest! {
        #[test]
        fn parsed_bytes_encode_to_themselves(scheme in 0..4_usize, bytes: Vec<u8>, blocks in 0..130_u16) {
            let form = form(SCHEMES[scheme]);
            let used = KEY_LIST_FIXED + usize::from(blocks) * form.scheme.entry_len();
            let mut ahs = vec![0; used.next_multiple_of(4)];
            let length = ahs.len().min(bytes.len());
            ahs[..length].copy_from_slice(&bytes[..length]);
            ahs[..2].copy_from_slice(&u16::try_from(used - 3).unwrap().to_be_bytes());
            ahs[2..6].copy_from_slice(&[KEY_LIST_TYPE, form.scheme.code(), 9, 1]);
            ahs[6..8].copy_from_slice(&blocks.to_be_bytes());
            if let Ok(list) = BlockKeyList::parse(&ahs, form) {
                prop_assert_eq!(&list.encode(form).unwrap()[..], &ahs[..]);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = BlockKeyList::find(&bytes, form(KeyScheme::Both));
            let _ = BlockKeyList::parse(&bytes, form(KeyScheme::Both));
        }
    }
}
