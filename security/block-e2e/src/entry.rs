//! The entry of a block in its parent: the key, the nonce and the tag under which it was sealed.
//!
//! ```text
//! key epoch 2 | slot 1 | zero 1 | lease epoch 4 | counter 8 | tag 16
//! ```

use crate::aead::TAG_LEN;
use crate::{KeyEpoch, LeaseEpoch};

/// Bytes of an entry.
pub const ENTRY_LEN: usize = 32;

/// The slot of a node, of which it has two: a checkpoint overwrites the one that is not current.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeSlot {
    /// The first slot; also that of all blocks of data.
    #[default]
    First,
    /// The second slot.
    Second,
}

impl NodeSlot {
    /// Returns the slot that is not this one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Returns the number of the slot, 0 or 1.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}

/// How a block was sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockEntry {
    /// The key.
    pub key_epoch: KeyEpoch,
    /// The slot of a node.
    pub slot: NodeSlot,
    /// The lease of the writer.
    pub lease_epoch: LeaseEpoch,
    /// The number of the block within the lease; together with it unique for the unit.
    pub counter: u64,
    /// The tag of the block.
    pub tag: [u8; TAG_LEN],
}

impl BlockEntry {
    /// The entry of a block that was never written or was unmapped: it reads as zeros.
    pub const UNWRITTEN: Self = Self {
        key_epoch: KeyEpoch(0),
        slot: NodeSlot::First,
        lease_epoch: LeaseEpoch(0),
        counter: 0,
        tag: [0; TAG_LEN],
    };

    /// Whether the block reads as zeros. The counters of written blocks start at 1.
    #[must_use]
    pub const fn is_unwritten(&self) -> bool {
        self.counter == 0
    }

    /// Returns the entry as it is stored.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[..2].copy_from_slice(&self.key_epoch.0.to_be_bytes());
        bytes[2] = u8::from(self.slot == NodeSlot::Second);
        bytes[4..8].copy_from_slice(&self.lease_epoch.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.counter.to_be_bytes());
        bytes[16..].copy_from_slice(&self.tag);
        bytes
    }

    /// Parses a stored entry; `None` if it has no valid form.
    #[must_use]
    pub fn parse(bytes: &[u8; ENTRY_LEN]) -> Option<Self> {
        let slot = match bytes[2] {
            0 => NodeSlot::First,
            1 => NodeSlot::Second,
            _ => return None,
        };
        let entry = Self {
            key_epoch: KeyEpoch(u16::from_be_bytes(*bytes.first_chunk()?)),
            slot,
            lease_epoch: LeaseEpoch(u32::from_be_bytes(*bytes[4..].first_chunk()?)),
            counter: u64::from_be_bytes(*bytes[8..].first_chunk()?),
            tag: *bytes.last_chunk()?,
        };
        let is_valid = bytes[3] == 0 && (!entry.is_unwritten() || entry == Self::UNWRITTEN);
        is_valid.then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parsed_entries_encode_to_the_same_bytes(bytes in any::<[u8; ENTRY_LEN]>()) {
            let mut bytes = bytes;
            for fix in [false, true] {
                if fix {
                    (bytes[2], bytes[3]) = (bytes[2] & 1, 0);
                }
                if let Some(entry) = BlockEntry::parse(&bytes) {
                    prop_assert_eq!(entry.encode(), bytes);
                } else {
                    prop_assert!(!fix || bytes[8..16] == [0; 8]);
                }
            }
        }
    }
}
