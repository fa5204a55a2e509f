//! Protection of block units at little cost for the server: lazy decryption and lazy
//! authentication, after the StorageSS 2006 paper.
//!
//! Does: levels, keys of blocks, the key list of a PDU, seals of headers, of blocks and of records,
//! session keys, login keys.
//! Does not: sockets, storage, randomness; the caller supplies random bytes.
//! Contract: encoding and parsing are inverse. Every mismatch of a MAC is an error, compared in
//! constant time. Keys are wiped when dropped, and never printed.
//! Truth: `docs/standards/block-protection.md`; ADR 74.

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod block_keys;
mod cipher;
mod generation;
mod header;
mod key_list;
mod level;
mod negotiation;
mod payload;
mod pdu;
mod record;
mod requirement;
mod session;
mod unit_keys;

pub use block_keys::{BAK_LEN, BEK_LEN, BlockKeys, BlockSeal};
pub use cipher::{MAC_LEN, MacTag};
pub use generation::{GENERATION_LEN, Generation, GenerationCounter};
pub use header::{
    BHS_LEN, HeaderError, HeaderKeys, HeaderOpener, HeaderSealer, OpeningHeader, PduDirection,
    padded_ahs_length,
};
pub use key_list::{
    AHS_TOTAL_MAX, BlockKeyList, KEY_LIST_FIXED, KEY_LIST_TYPE, KeyListError, KeyListForm, KeyScheme,
};
pub use level::{ProtectedBlock, ProtectionLevel, ProtectionProfile, RecordProtection};
pub use negotiation::{LoginNonce, NONCE_LEN, NegotiationError, ProtectionSettings, ReceivedSettings};
pub use payload::{BlockMismatch, BlockSealer, verify_block};
pub use pdu::{AppendedPdu, PDU_DATA_MAX, PduBlocks, PduError, PduHeader, PduProtection, SegmentSeals};
pub use record::{RecordError, RecordKeys, RecordOpener, RecordSealer, RecordSize};
pub use requirement::{UnitProtection, UnknownProtection};
pub use session::{LoginTranscript, NoSessionSecret, PROOF_LEN, ProofRole, SessionKeys, SessionSecrets};
pub use unit_keys::{EPOCHS_MAX, UNIT_KEY_LEN, UNIT_KEYS_BYTES_MAX, UnitKeys, UnitKeysError};
