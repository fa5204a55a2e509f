//! Block units on servers that are not trusted: format, integrity tree, journal and keys.
//!
//! Does: seals blocks of data and nodes of the tree, keeps the tree's nodes in a bounded cache,
//! encodes records of the journal and the root, wraps keys for users.
//! Does not: input and output, clocks, randomness; the caller supplies bytes, times and random
//! bytes.
//! Contract: a block that does not match its entry in the tree is an error, never data. Keys are
//! wiped when dropped, and never printed.
//! Truth: `docs/standards/block-e2e.md`; ADR 75.

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod aead;
mod entry;
mod header;
mod journal;
mod keys;
mod layout;
mod reader;
mod root;
mod sealer;
mod tree;
mod user_key;

pub use aead::{AeadFactory, AeadMismatch, BlockAead, KEY_LEN, NONCE_LEN, TAG_LEN, portable_aead};
pub use entry::{BlockEntry, ENTRY_LEN, NodeSlot};
pub use header::{DiskHeader, HEADER_MAGIC, HeaderFormatError};
pub use journal::{
    ChainTag, JournalBuilder, JournalChange, JournalRecord, JournalRecordError, RECORD_UNITS_MAX,
    UNMAP_BLOCKS_MAX, WRITE_BLOCKS_MAX,
};
pub use keys::{KeyEpoch, PREVIOUS_KEY_LEN, UnitKey, UnitKeyError, UnitKeyRing};
pub use layout::{
    BLOCK_LEN, DiskLayout, DiskLayoutError, FANOUT, JOURNAL_BLOCKS_MIN, NodeId, UNIT_BLOCKS_MAX,
    UNIT_BLOCKS_MIN,
};
pub use root::{DiskRoot, ROOT_LEN, RootError};
pub use sealer::{BlockPosition, DiskSealer, E2eMismatch, LeaseEpoch, UnitId};
pub use tree::{IntegrityTree, NodeRead, NodeWrite, TreeError};
pub use user_key::{UserPublicKey, UserSecretKey, WRAPPED_KEY_LEN, WrapError};
