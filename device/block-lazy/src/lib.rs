//! Storage of block units with lazy decryption and lazy authentication, on objects of the store.
//!
//! Does: keeps sealed blocks, their keys and MACs; keeps unverified writes as versions in a log;
//! verifies and commits them; deletes versions that are not authentic.
//! Does not: SCSI, sockets, timers; the caller passes the time.
//! Contract: after [`LazyVolume::synchronize`], every write acknowledged before survives a power
//! failure, as a version or committed. A block reads as a version of one write, with the keys and
//! the MAC of this write. `paper+safe` never deletes a version on a client's report.
//! Truth: `docs/design/block-lazy.md`; ADR 74.

mod config;
mod error;
mod index;
mod key_pages;
mod layout;
mod paper;
mod paper_safe;
mod policy;
mod version_log;
mod volume;
mod window;

pub use config::{LazyLimits, LazyUnit, PageSecret, RandomSource};
pub use error::LazyError;
pub use layout::{LAZY_PARTITION, VersionNumber};
pub use policy::{ReadVerdict, RejectedVersion};
pub use volume::{LazyStatus, LazyVolume, LazyWrite, VersionedBlocks, WriterId};
