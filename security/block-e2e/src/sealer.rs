//! Seals and opens blocks of data and nodes of the tree.
//!
//! The nonce is the lease epoch and the counter of the writer. The associated data are
//! `"SLE2E\0" ‖ kind 1 ‖ level 1 ‖ unit 16 ‖ index 8 ‖ key epoch 2`.

use alloc::sync::Arc;

use crate::aead::{NONCE_LEN, TAG_LEN};
use crate::keys::{EpochCiphers, KeyEpoch, UnitKeyRing};
use crate::layout::NodeId;
use crate::{BlockEntry, NodeSlot};

/// Number of a lease for writing. The metadata server never gives a number twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseEpoch(pub u32);

/// Identifier of a unit, random at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub [u8; 16]);

/// Kind and address of a sealed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockPosition {
    /// A block of data.
    Data {
        /// Its number.
        lba: u64,
    },
    /// A node of the tree.
    Node(NodeId),
}

impl core::fmt::Display for BlockPosition {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Data { lba } => write!(f, "block {lba}"),
            Self::Node(node) => {
                write!(f, "node {} of level {} of the integrity tree", node.index, node.level)
            }
        }
    }
}

/// A block that is not what its last writer stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum E2eMismatch {
    /// Changed, moved or replaced by an older version.
    #[error("{position} is damaged or was replaced: its tag does not match the integrity tree")]
    Tag {
        /// The block.
        position: BlockPosition,
    },
    /// A key epoch that the client has no key of.
    #[error("{position} is sealed under the key of epoch {epoch}, which this client does not have")]
    UnknownKey {
        /// The block.
        position: BlockPosition,
        /// The epoch.
        epoch: u16,
    },
    /// A verified node with an entry that no version of this program writes.
    #[error("{position} has an entry of unknown form; a newer version wrote it")]
    EntryForm {
        /// The node.
        position: BlockPosition,
    },
    /// A wrong number of bytes.
    #[error("{position} is incomplete")]
    Length {
        /// The block.
        position: BlockPosition,
    },
}

const DOMAIN: &[u8; 6] = b"SLE2E\0";
const ASSOCIATED_LEN: usize = 34;

/// Seals with the newest key of a ring, under one lease; opens with all of them.
#[derive(Debug)]
pub struct DiskSealer {
    ring: Arc<UnitKeyRing>,
    lease: LeaseEpoch,
}

impl DiskSealer {
    /// Returns the sealer of a client that has the lease.
    #[must_use]
    pub fn new(ring: impl Into<Arc<UnitKeyRing>>, lease: LeaseEpoch) -> Self {
        Self { ring: ring.into(), lease }
    }

    /// Returns the keys.
    #[must_use]
    pub const fn ring(&self) -> &Arc<UnitKeyRing> {
        &self.ring
    }

    /// Returns the lease.
    #[must_use]
    pub const fn lease(&self) -> LeaseEpoch {
        self.lease
    }

    pub(crate) fn newest_ciphers(&self) -> &EpochCiphers {
        self.ring.ciphers(self.ring.newest()).expect("a ring has its newest key")
    }

    /// Encrypts a block in place and returns its entry. A counter is used once for each lease.
    pub fn seal_block(&self, position: BlockPosition, counter: u64, block: &mut [u8]) -> BlockEntry {
        let key_epoch = self.ring.newest();
        let tag = self.newest_ciphers().blocks.seal(
            &nonce(self.lease, counter),
            &self.associated(position, key_epoch),
            block,
        );
        BlockEntry { key_epoch, slot: NodeSlot::First, lease_epoch: self.lease, counter, tag }
    }

    /// Decrypts a block into `data`. A block that is unwritten reads as zeros; what is stored there
    /// does not matter.
    ///
    /// # Errors
    /// [`E2eMismatch`]; then `data` has no plain text.
    pub fn open_block(
        &self,
        position: BlockPosition,
        entry: &BlockEntry,
        sealed: &[u8],
        data: &mut [u8],
    ) -> Result<(), E2eMismatch> {
        if sealed.len() != data.len() {
            return Err(E2eMismatch::Length { position });
        }
        if entry.is_unwritten() {
            data.fill(0);
            return Ok(());
        }
        let ciphers = self
            .ring
            .ciphers(entry.key_epoch)
            .ok_or(E2eMismatch::UnknownKey { position, epoch: entry.key_epoch.0 })?;
        ciphers
            .blocks
            .open(
                &nonce(entry.lease_epoch, entry.counter),
                &self.associated(position, entry.key_epoch),
                sealed,
                &entry.tag,
                data,
            )
            .map_err(|_| E2eMismatch::Tag { position })
    }

    fn associated(&self, position: BlockPosition, key_epoch: KeyEpoch) -> [u8; ASSOCIATED_LEN] {
        let (kind, level, index) = match position {
            BlockPosition::Data { lba } => (1, 0, lba),
            BlockPosition::Node(node) => (2, node.level, node.index),
        };
        let mut bytes = [0; ASSOCIATED_LEN];
        bytes[..6].copy_from_slice(DOMAIN);
        (bytes[6], bytes[7]) = (kind, level);
        bytes[8..24].copy_from_slice(&self.ring.unit().0);
        bytes[24..32].copy_from_slice(&index.to_be_bytes());
        bytes[32..].copy_from_slice(&key_epoch.0.to_be_bytes());
        bytes
    }
}

/// The nonce of a block or record: unique for a key, because a lease has one writer.
pub(crate) fn nonce(lease: LeaseEpoch, counter: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[..4].copy_from_slice(&lease.0.to_be_bytes());
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    nonce
}

const _: () = assert!(TAG_LEN == 16, "an entry has 16 bytes for the tag");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{UnitKey, portable_aead};

    fn sealer(unit: u8, key: u8) -> DiskSealer {
        let ring = UnitKeyRing::new(UnitId([unit; 16]), KeyEpoch(1), UnitKey::new([key; 32]), portable_aead);
        DiskSealer::new(ring.expect("epoch 1"), LeaseEpoch(5))
    }

    #[test]
    fn blocks_open_at_their_place_only() {
        let position = BlockPosition::Data { lba: 9 };
        let mut sealed = [3; 4096];
        let entry = sealer(1, 1).seal_block(position, 8, &mut sealed);
        let mut data = [0; 4096];
        sealer(1, 1).open_block(position, &entry, &sealed, &mut data).expect("it is the block");
        assert_eq!(data, [3; 4096]);
        let node = |level, index| BlockPosition::Node(NodeId { level, index });
        let others = [BlockPosition::Data { lba: 8 }, node(0, 9), node(1, 9)];
        for other in others {
            let refused = sealer(1, 1).open_block(other, &entry, &sealed, &mut data);
            assert_eq!(refused, Err(E2eMismatch::Tag { position: other }));
        }
        for other in [sealer(2, 1), sealer(1, 2)] {
            assert!(other.open_block(position, &entry, &sealed, &mut data).is_err());
        }
        let changes: [fn(&mut BlockEntry); 4] = [
            |entry| entry.counter += 1,
            |entry| entry.lease_epoch.0 += 1,
            |entry| entry.key_epoch.0 += 1,
            |entry| entry.tag[15] ^= 1,
        ];
        for change in changes {
            let mut changed = entry;
            change(&mut changed);
            assert!(sealer(1, 1).open_block(position, &changed, &sealed, &mut data).is_err(), "{changed:?}");
        }
        assert_eq!(data, [0; 4096], "no plain text after an error");
    }

    #[test]
    fn unwritten_blocks_read_as_zeros() {
        let mut data = [1; 4096];
        let position = BlockPosition::Data { lba: 9 };
        sealer(1, 1).open_block(position, &BlockEntry::UNWRITTEN, &[7; 4096], &mut data).expect("zeros");
        assert_eq!(data, [0; 4096]);
        let short = sealer(1, 1).open_block(position, &BlockEntry::UNWRITTEN, &[7; 512], &mut data);
        assert_eq!(short, Err(E2eMismatch::Length { position }));
    }
}
