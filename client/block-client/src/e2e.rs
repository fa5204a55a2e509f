//! A disk on a unit whose server is not trusted.
//!
//! Does: seals blocks before they leave the client, verifies them with the integrity tree, keeps
//! journal, checkpoints and root in an order that survives a power failure at any moment.
//! Does not: find the key, hold the lease; a [`RootStore`] has lease and root.
//! Contract: a read returns what was written last, or an error. A flush covers all acknowledged
//! writes.
//! Truth: `docs/standards/block-e2e.md`; ADR 75.

mod checkpoint;
mod cipher;
mod commit;
mod disk;
mod error;
mod medium;
mod open;
mod range_lock;
mod rewrite;
mod root_store;
mod state;

pub use cipher::fast_aead;
pub use disk::{DiskExtent, E2eDisk, E2eOptions};
pub use error::{E2eError, RootStoreError};
pub use medium::{SealedMedium, UnitMedium, WriteGuarantee};
pub use open::{DiskKeys, OpenReport};
pub use rewrite::RewriteStep;
pub use root_store::{MemoryRootStore, RootStore};
