//! The root of a unit: the state that the metadata server keeps, sealed by the last writer.
//!
//! ```text
//! clear:  magic 4 | key epoch 2 | zero 2 | lease epoch 4 | zero 4 | version 8
//! sealed: blocks of the unit 8 | entry of the top node 32 | checkpoint: sequence 8, chain 16 |
//!         journal: sequence 8, chain 16 | is clean 1 | oldest key epoch 2 | zero 5
//! tag 16
//! ```
//!
//! The clear part and the unit are associated data. The nonce is the lease epoch and the version.

use crate::aead::TAG_LEN;
use crate::entry::{BlockEntry, ENTRY_LEN};
use crate::journal::ChainTag;
use crate::keys::KeyEpoch;
use crate::reader::FieldReader;
use crate::sealer::{DiskSealer, LeaseEpoch, nonce};

const MAGIC: &[u8; 4] = b"SLER";
const CLEAR_LEN: usize = 24;
const SEALED_LEN: usize = 96;
/// Bytes of a root.
pub const ROOT_LEN: usize = CLEAR_LEN + SEALED_LEN + TAG_LEN;
const ASSOCIATED_LEN: usize = CLEAR_LEN + 16;

/// Why a root was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootError {
    /// Bytes that are no root.
    #[error("the root of the disk is malformed")]
    Malformed,
    /// The client has no key of this epoch.
    #[error("the root is sealed under the key of epoch {0}, which this client does not have")]
    UnknownKey(u16),
    /// Changed, of another unit, or the key is a wrong one.
    #[error("the root does not open: it is damaged, of another disk, or the key is a wrong one")]
    Tag,
}

/// The state of a unit: a tree, and the records of the journal that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoot {
    /// The lease of the writer.
    pub lease_epoch: LeaseEpoch,
    /// Number of the root; each one is larger than the one before.
    pub version: u64,
    /// Blocks of the unit.
    pub unit_blocks: u64,
    /// The top node of the tree.
    pub top: BlockEntry,
    /// The last record of the journal that the tree contains.
    pub checkpoint: (u64, ChainTag),
    /// The last record of the journal whose blocks were durable when the root was published. The
    /// journal may have more.
    pub journal: (u64, ChainTag),
    /// Whether the writer ended in order, with all acknowledged writes in this root.
    pub is_clean: bool,
    /// No block is sealed under the key of an earlier epoch; 0: unknown.
    pub oldest_key: KeyEpoch,
}

impl DiskRoot {
    /// Returns the root sealed under the newest key. `lease_epoch` is that of the sealer.
    #[must_use]
    pub fn seal(&self, sealer: &DiskSealer) -> [u8; ROOT_LEN] {
        let mut bytes = [0; ROOT_LEN];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..6].copy_from_slice(&sealer.ring().newest().0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.lease_epoch.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.version.to_be_bytes());
        let associated = associated(sealer, &bytes);
        let fields = &mut bytes[CLEAR_LEN..CLEAR_LEN + SEALED_LEN];
        fields[..8].copy_from_slice(&self.unit_blocks.to_be_bytes());
        fields[8..40].copy_from_slice(&self.top.encode());
        fields[40..48].copy_from_slice(&self.checkpoint.0.to_be_bytes());
        fields[48..64].copy_from_slice(&self.checkpoint.1.0);
        fields[64..72].copy_from_slice(&self.journal.0.to_be_bytes());
        fields[72..88].copy_from_slice(&self.journal.1.0);
        fields[88] = u8::from(self.is_clean);
        fields[89..91].copy_from_slice(&self.oldest_key.0.to_be_bytes());
        let nonce = nonce(self.lease_epoch, self.version);
        let tag = sealer.newest_ciphers().root.seal(&nonce, &associated, fields);
        bytes[CLEAR_LEN + SEALED_LEN..].copy_from_slice(&tag);
        bytes
    }

    /// Opens a root.
    ///
    /// # Errors
    /// [`RootError`].
    pub fn open(bytes: &[u8; ROOT_LEN], sealer: &DiskSealer) -> Result<Self, RootError> {
        use RootError::Malformed;
        let mut clear = FieldReader(bytes);
        let is_root = clear.array() == Some(*MAGIC);
        let key_epoch = KeyEpoch(clear.u16().ok_or(Malformed)?);
        let is_padded = clear.array() == Some([0; 2]);
        let lease_epoch = LeaseEpoch(clear.u32().ok_or(Malformed)?);
        if !is_root || !is_padded || clear.array() != Some([0; 4]) {
            return Err(Malformed);
        }
        let version = clear.u64().ok_or(Malformed)?;
        let ciphers = sealer.ring().ciphers(key_epoch).ok_or(RootError::UnknownKey(key_epoch.0))?;
        let tag = bytes.last_chunk().ok_or(Malformed)?;
        let mut fields = [0; SEALED_LEN];
        let sealed = &bytes[CLEAR_LEN..CLEAR_LEN + SEALED_LEN];
        ciphers
            .root
            .open(&nonce(lease_epoch, version), &associated(sealer, bytes), sealed, tag, &mut fields)
            .map_err(|_| RootError::Tag)?;
        let mut fields = FieldReader(&fields);
        let unit_blocks = fields.u64().ok_or(Malformed)?;
        let top = BlockEntry::parse(&fields.array::<ENTRY_LEN>().ok_or(Malformed)?).ok_or(Malformed)?;
        let checkpoint = (fields.u64().ok_or(Malformed)?, ChainTag(fields.array().ok_or(Malformed)?));
        let journal = (fields.u64().ok_or(Malformed)?, ChainTag(fields.array().ok_or(Malformed)?));
        let is_clean = match fields.array::<1>().ok_or(Malformed)? {
            [0] => false,
            [1] => true,
            _ => return Err(Malformed),
        };
        let oldest_key = KeyEpoch(fields.u16().ok_or(Malformed)?);
        if fields.array() != Some([0; 5]) || oldest_key > key_epoch || journal.0 < checkpoint.0 {
            return Err(Malformed);
        }
        Ok(Self { lease_epoch, version, unit_blocks, top, checkpoint, journal, is_clean, oldest_key })
    }

    /// Whether this root may follow one that the client has seen: not older, and not another root
    /// with the same number.
    #[must_use]
    pub fn follows(&self, seen: &Self) -> bool {
        self == seen || (self.version > seen.version && self.lease_epoch >= seen.lease_epoch)
    }
}

fn associated(sealer: &DiskSealer, bytes: &[u8; ROOT_LEN]) -> [u8; ASSOCIATED_LEN] {
    let mut associated = [0; ASSOCIATED_LEN];
    associated[..CLEAR_LEN].copy_from_slice(&bytes[..CLEAR_LEN]);
    associated[CLEAR_LEN..].copy_from_slice(&sealer.ring().unit().0);
    associated
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{UnitId, UnitKey, UnitKeyRing, portable_aead};

    fn sealer(unit: u8, key: u8) -> DiskSealer {
        let ring = UnitKeyRing::new(UnitId([unit; 16]), KeyEpoch(1), UnitKey::new([key; 32]), portable_aead);
        DiskSealer::new(ring.expect("epoch 1"), LeaseEpoch(5))
    }

    fn root() -> DiskRoot {
        DiskRoot {
            lease_epoch: LeaseEpoch(5),
            version: 77,
            unit_blocks: 1 << 20,
            top: BlockEntry { counter: 9, tag: [8; 16], ..BlockEntry::UNWRITTEN },
            checkpoint: (40, ChainTag([4; 16])),
            journal: (41, ChainTag([5; 16])),
            is_clean: true,
            oldest_key: KeyEpoch(1),
        }
    }

    #[test]
    fn every_changed_byte_of_root_is_detected() {
        let sealed = root().seal(&sealer(1, 1));
        assert_eq!(DiskRoot::open(&sealed, &sealer(1, 1)), Ok(root()));
        for at in 0..ROOT_LEN {
            let mut changed = sealed;
            changed[at] ^= 0x40;
            assert!(DiskRoot::open(&changed, &sealer(1, 1)).is_err(), "{at}");
        }
    }

    #[test]
    fn wrong_key_and_other_unit_do_not_open_root() {
        let sealed = root().seal(&sealer(1, 1));
        assert_eq!(DiskRoot::open(&sealed, &sealer(1, 2)), Err(RootError::Tag));
        assert_eq!(DiskRoot::open(&sealed, &sealer(2, 1)), Err(RootError::Tag));
    }

    #[test]
    fn older_and_forked_roots_do_not_follow() {
        let seen = root();
        assert!(seen.follows(&seen));
        assert!(DiskRoot { version: 78, ..seen }.follows(&seen));
        assert!(DiskRoot { version: 78, lease_epoch: LeaseEpoch(6), ..seen }.follows(&seen));
        assert!(!DiskRoot { version: 76, ..seen }.follows(&seen), "older");
        assert!(!DiskRoot { is_clean: false, ..seen }.follows(&seen), "a fork");
        assert!(!DiskRoot { version: 78, lease_epoch: LeaseEpoch(4), ..seen }.follows(&seen), "an old lease");
    }
}
